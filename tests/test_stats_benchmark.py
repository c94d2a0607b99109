"""The benchmark of ``stats()`` times each engine with and without."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "stats_cost.py"


@pytest.mark.skipif(sys.platform == "win32", reason="with worker processes")
def test_each_engine_is_timed(subprocess_env: dict[str, str]) -> None:
    command = [sys.executable, PROGRAM, "--rounds=1", "--seconds=0.001", "--num-envs=2"]
    done = subprocess.run(command, env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| `")]
    assert [row.count("(") for row in rows] == [0, 2] * 6


def test_no_rounds_are_refused(refusal: Callable[[Path, str], str]) -> None:
    assert "expected an integer of 1 or more" in refusal(PROGRAM, "--rounds=0")
