"""The benchmark of TensorDict envs times what is installed, and says why it does not time the rest."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "tensordict_step.py"
QUICK = ["--num-envs=2", "--texts=2", "--rounds=1", "--seconds=0.001"]


def test_envs_alone_and_texts_are_timed(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    timed = ("gymbridge-alone", "text-alone", "text-stack", "gymbridge-text")
    file = tmp_path / "figures.json"
    command = [sys.executable, PROGRAM, *QUICK, f"--peers={','.join(timed)}", f"--json={file}"]
    done = subprocess.run(command, env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = {figure["candidate"]: figure for figure in json.loads(file.read_text())["figures"]}
    assert {name: figures[name]["failure"] for name in timed} == dict.fromkeys(timed)
    assert all(figures[name]["median"] > 0 for name in timed)
    assert figures["text-stack"]["against"] == "gymbridge-text"
    assert figures["gymbridge-text"]["ratio"] == 1


@pytest.mark.parametrize(
    ("option", "said"), [("--peers=none", "unknown peers none"), ("--cases=jump", "unknown cases jump")]
)
def test_what_it_does_not_know_is_refused(option: str, said: str, refusal: Callable[[Path, str], str]) -> None:
    assert said in refusal(PROGRAM, option)
