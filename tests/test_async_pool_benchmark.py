"""The benchmark of pools times what is installed, and says why it does not time the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "async_pool.py"
QUICK = ["--num-envs=2", "--slow-envs=2", "--rounds=1", "--seconds=0.001"]


def test_our_pools_and_the_envs_alone_are_timed(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    timed = ("alone", "gymbridge-processes", "gymbridge-threads")
    file = tmp_path / "figures.json"
    command = [sys.executable, PROGRAM, *QUICK, f"--peers={','.join(timed)}", f"--json={file}"]
    done = subprocess.run(command, env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())["figures"]
    assert len(figures) == 3 * len(timed)
    assert {figure["failure"] for figure in figures} == {None}
    assert all(figure["median"] > 0 for figure in figures)


@pytest.mark.parametrize(
    ("option", "said"), [("--peers=none", "unknown peers none"), ("--cases=jump", "unknown cases jump")]
)
def test_what_it_does_not_know_is_refused(option: str, said: str, refusal: Callable[[Path, str], str]) -> None:
    assert said in refusal(PROGRAM, option)
