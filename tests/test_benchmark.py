"""The benchmarks run; the large one finds gymbridge's engines, and computes what it prints."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parents[1] / "benchmarks"
PROGRAM = PROGRAMS / "vector_step.py"


@pytest.fixture(scope="module")
def vector_step() -> Any:
    spec = importlib.util.spec_from_file_location("vector_step", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["vector_step"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_gymbridge_engine_is_timed(vector_step: Any, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    engines = [name for name in vector_step.CANDIDATES if name.startswith("gymbridge-")]
    options = ["--kinds=null", "--num-envs=2", f"--peers={','.join(engines)}", f"--json={tmp_path / 'figures.json'}"]
    command = [sys.executable, PROGRAM, *options, "--rounds=1", "--seconds=0.001"]
    done = subprocess.run(command, env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert {figure["candidate"]: figure["failure"] for figure in figures} == dict.fromkeys(engines)


def test_infos_are_timed_with_an_array_among_them(vector_step: Any) -> None:
    env = vector_step.make("infos")
    _, info = env.reset()
    *_, next_info = env.step(0)
    assert list(info) == list(next_info) == ["lives", "progress", "position"]
    assert info["position"].shape == (3,)
    assert vector_step.make("null").reset()[1] == {}


def test_ratio_is_the_median_of_the_rounds_ratios(vector_step: Any) -> None:
    # Rounds' ratios 2, 2, 3; the ratio of the medians would be 3.
    peer, reference = vector_step.Cell((2.0, 40.0, 30.0)), vector_step.Cell((1.0, 20.0, 10.0))
    assert peer.ratio(reference) == 2.0


def test_a_peer_that_fails_says_why_and_leaves_its_cell_empty(vector_step: Any) -> None:
    cells = {"sb3-dummy": vector_step.Cell(failure="no such module"), "gymbridge-sync": vector_step.Cell((4.0,))}
    printed = vector_step.table(list(cells), {"null N=2": cells}).splitlines()
    assert [line.split("|")[2].strip() for line in printed[2:]] == ["-", "4"]
    assert vector_step.failures({"null N=2": cells}) == ["- sb3-dummy, null N=2: no such module"]


def test_worker_starts_are_measured_by_every_method(subprocess_env: dict[str, str]) -> None:
    command = [sys.executable, PROGRAMS / "worker_start.py", "--num-workers=1", "--rounds=1", "--programs=1"]
    done = subprocess.run(command, env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    methods = [line.split("|")[1].strip() for line in done.stdout.splitlines()[2:]]
    assert methods == ["starter", "exec", "fork", "spawn", "forkserver"]


def test_starts_of_engines_are_measured(subprocess_env: dict[str, str]) -> None:
    options = ["--num-workers=1", "--rounds=1", "--programs=1", "--engines=gymbridge-parallel,gymnasium-spawn"]
    done = subprocess.run(
        [sys.executable, PROGRAMS / "engine_start.py", *options], env=subprocess_env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == [
        "**gymbridge `AsyncVectorEnv`**",
        "**gymbridge `ParallelEnv`**",
        'gymnasium `AsyncVectorEnv`, `context="spawn"`',
    ]
    assert all(float(cell.split()[0]) > 0 for row in rows for cell in row[1:])
    assert all("(" in cell for row in rows[1:] for cell in row[1:])
