"""The benchmark of EnvPool times it beside the TensorDict env over it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "envpool_step.py"


def test_each_is_timed_beside_envpools(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    pytest.importorskip("envpool")
    file = tmp_path / "figures.json"
    quick = ["--kinds=Pendulum-v1", "--num-envs=2", "--thinks=0,5", "--rounds=1", "--seconds=0.001"]
    command = [sys.executable, PROGRAM, *quick, f"--json={file}"]
    done = subprocess.run(command, env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())["figures"]
    assert {figure["case"] for figure in figures} == {"Pendulum-v1 N=2", "Pendulum-v1 N=2, 5 us between"}
    assert {figure["candidate"]: figure["failure"] for figure in figures} == dict.fromkeys(
        ("envpool", "gymbridge", "gymbridge-vector", "envpool-async", "gymbridge-async")
    )
    assert all(figure["median"] > 0 for figure in figures)
    assert {figure["against"] for figure in figures if figure["candidate"] == "gymbridge"} == {"envpool"}
