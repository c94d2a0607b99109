"""The benchmark of TorchRL envs times TorchRL's batches of them beside gymbridge's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "from_torchrl.py"


def test_each_is_timed_beside_gymbridges(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    pytest.importorskip("torchrl")
    file = tmp_path / "figures.json"
    quick = ["--cases=counting,transformed", "--num-envs=2", "--rounds=1", "--seconds=0.001"]
    command = [sys.executable, PROGRAM, *quick, "--peers=torchrl-serial,torchrl-alone", f"--json={file}"]
    done = subprocess.run(command, env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())["figures"]
    assert [(figure["case"], figure["candidate"]) for figure in figures] == [
        (f"{case} N=2", candidate)
        for case in ("counting", "transformed")
        for candidate in ("torchrl-serial", "gymbridge-serial", "torchrl-alone")
    ]
    assert all(figure["failure"] is None and figure["median"] > 0 for figure in figures)
    assert {figure["against"] for figure in figures} == {"gymbridge-serial"}
