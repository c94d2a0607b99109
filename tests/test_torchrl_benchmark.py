"""The benchmark of TorchRL collectors times them over TorchRL's batches beside gymbridge's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "benchmarks" / "torchrl_collector.py"


def test_each_is_timed_beside_gymbridges(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    pytest.importorskip("torchrl")
    file = tmp_path / "figures.json"
    quick = ["--cases=random,transformed", "--num-envs=2", "--rounds=1", "--seconds=0.001", "--peers=torchrl-serial"]
    command = [sys.executable, PROGRAM, *quick, f"--json={file}"]
    done = subprocess.run(command, env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())["figures"]
    assert [(figure["case"], figure["candidate"], figure["against"]) for figure in figures] == [
        (f"{case} N=2", candidate, "gymbridge-serial")
        for case in ("random", "transformed")
        for candidate in ("torchrl-serial", "gymbridge-serial")
    ]
    assert all(figure["median"] > 0 for figure in figures)
