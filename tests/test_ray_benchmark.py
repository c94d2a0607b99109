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
    quick = ["--num-envs=2", "--milliseconds=0,1", "--turns=1", "--seconds=0.01", f"--json={file}"]
    done = subprocess.run([sys.executable, PROGRAM, *quick], env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())
    assert [own["milliseconds"] for own in figures] == [0, 1]
    assert all(own["ray"] > 0 and own["ray_caller_us"] > 0 and own["ratio"] > 0 for own in figures)
