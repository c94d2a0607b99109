"""The benchmark of deaths times each front, with and without restarts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "worker_death.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills workers as Linux has them")


def test_each_front_is_timed(subprocess_env: dict[str, str]) -> None:
    command = [sys.executable, PROGRAM, "--rounds=1"]
    done = subprocess.run(command, env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith(("| `A", "| `P"))]
    assert [row.count("(") for row in rows] == [2, 2, 2]


def test_no_rounds_are_refused(refusal: Callable[[Path, str], str]) -> None:
    assert "expected an integer of 1 or more" in refusal(PROGRAM, "--rounds=0")
