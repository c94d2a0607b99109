"""The benchmark of ``caller_steps`` times each engine for each kind and number of environments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "caller_steps.py"


@pytest.mark.skipif(sys.platform == "win32", reason="with worker processes")
def test_each_engine_is_timed(subprocess_env: dict[str, str]) -> None:
    command = [sys.executable, PROGRAM, "--rounds=1", "--seconds=0.001", "--num-envs=2", "--kinds=null,busy"]
    done = subprocess.run(command, env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if "Env(" in line or line.startswith("| with")]
    assert [row.count("(") for row in rows] == [1, 2, 2, 3]
