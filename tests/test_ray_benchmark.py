"""The benchmark of pools on Ray times them beside pools of processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "ray_pool.py"


def test_both_are_timed(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    pytest.importorskip("ray")
    file = tmp_path / "figures.json"
    quick = ["--num-envs=2", "--milliseconds=0,1", "--rounds=1", "--seconds=0.01", f"--json={file}"]
    done = subprocess.run([sys.executable, PROGRAM, *quick], env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())["figures"]
    assert [(own["case"], own["candidate"]) for own in figures] == [
        (case, backend) for case in ("0 ms", "1 ms") for backend in ("multiprocessing", "ray")
    ]
    assert all(own["median"] > 0 and own["caller_us"] > 0 and own["ratio"] > 0 for own in figures)
