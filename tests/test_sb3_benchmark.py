"""The benchmark of Stable-Baselines3 vec envs times them beside gymbridge's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "sb3_step.py"


def test_each_is_timed_beside_gymbridges(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    pytest.importorskip("stable_baselines3")
    file = tmp_path / "figures.json"
    quick = ["--kinds=null", "--num-envs=2", "--rounds=1", "--seconds=0.001", "--peers=sb3-dummy,gymbridge"]
    command = [sys.executable, PROGRAM, *quick, f"--json={file}"]
    done = subprocess.run(command, env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = {figure["candidate"]: figure for figure in json.loads(file.read_text())["figures"]}
    assert {name: figure["failure"] for name, figure in figures.items()} == dict.fromkeys(
        ("gymbridge", "gymbridge-sync", "sb3-dummy")
    )
    assert all(figure["median"] > 0 for figure in figures.values())
    assert figures["sb3-dummy"]["against"] == "gymbridge-sync"
