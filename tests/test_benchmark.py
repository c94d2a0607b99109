"""The benchmarks run; the large one finds gymbridge's engines, and computes what it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from gymbridge.benchmarking.rounds import Cell

PROGRAMS = Path(__file__).parents[1] / "benchmarks"
PROGRAM = PROGRAMS / "vector_step.py"


@pytest.fixture
def vector_step(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(PROGRAMS)
    return import_module("vector_step")


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(PROGRAMS)
    return import_module("report")


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


def test_a_kind_may_have_a_number_of_envs_of_its_own(vector_step: Any) -> None:
    assert vector_step.cases(["null", "image@8"], [2, 4]) == {
        "null N=2": ("null", 2),
        "null N=4": ("null", 4),
        "image N=8": ("image", 8),
    }


def test_a_ratio_is_the_median_of_the_rounds_ratios(vector_step: Any, report: Any) -> None:
    """The rounds' ratios are 2, 2 and 3; that of the medians would be 3. Of rates, it is the other way round."""
    columns = {"null N=2": {"sb3-dummy": Cell((2.0, 40.0, 30.0)), "gymbridge-sync": Cell((1.0, 20.0, 10.0))}}
    for are_rates, expected in ((False, 2.0), (True, 0.5)):
        peer, own = report.figures_of(columns, vector_step.CANDIDATES, are_rates=are_rates)
        assert (peer["ratio"], peer["median"], own["ratio"]) == (expected, 30.0, 1.0)


def test_a_peer_that_fails_says_why_and_leaves_its_cell_empty(vector_step: Any, report: Any) -> None:
    cells = {"sb3-dummy": Cell(failure="no such module"), "gymbridge-sync": Cell((4.0,))}
    figures = report.figures_of({"null N=2": cells}, vector_step.CANDIDATES)
    assert [line.split("|")[2].strip() for line in report.table(figures).splitlines()[2:]] == ["-", "**4**"]
    assert report.failures(figures) == ["- sb3-dummy, null N=2: no such module"]


def test_a_table_has_the_rows_and_columns_that_are_asked_for(vector_step: Any, report: Any) -> None:
    columns = {f"null N={n}": {"raw": Cell((n,)), "gymbridge-sync": Cell((2.0 * n,))} for n in (2, 8)}
    figures = report.figures_of(columns, vector_step.CANDIDATES)
    assert report.table(figures, "us", {"null N=8": "8", "null N=64": "64"}, ["gymbridge-sync", "raw"]) == (
        "| us | 8 | 64 |\n| --- | --- | --- |\n"
        "| **gymbridge `SyncVectorEnv`** | **16** | - |\n| the envs alone, in a loop | 8 (0.50) | - |"
    )


def test_what_is_written_is_read_back(report: Any, tmp_path: Path) -> None:
    """With five digits of each figure."""
    figures = [{"case": "a", "median": 1.23456789, "rounds": [1.0, 123456.0], "failure": None}]
    results = {"about": {"date": "2026-11-30", "rounds": 2}, "unit": "us", "figures": figures}
    report.write(tmp_path / "figures.json", results)
    rounded = [{"case": "a", "median": 1.2346, "rounds": [1.0, 123460.0], "failure": None}]
    assert json.loads((tmp_path / "figures.json").read_text()) == {**results, "figures": rounded}


def test_worker_starts_are_measured_by_every_method(subprocess_env: dict[str, str]) -> None:
    command = [sys.executable, PROGRAMS / "worker_start.py", "--num-workers=1", "--rounds=1", "--programs=1"]
    done = subprocess.run(command, env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("|")][2:]
    assert [row[0].strip() for row in rows] == ["starter", "exec", "fork", "spawn", "forkserver"]
    assert [row[-1].strip() == "-" for row in rows] == [False, True, True, True, True]  # only one has a starter
    assert all(float(cell.replace(",", "")) > 0 for row in rows for cell in row[1:-1])


def test_starts_of_engines_are_measured(subprocess_env: dict[str, str]) -> None:
    options = ["--num-workers=1", "--rounds=1", "--programs=1", "--peers=gymbridge-parallel,gymnasium-spawn"]
    done = subprocess.run(
        [sys.executable, PROGRAMS / "engine_start.py", *options], env=subprocess_env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    table = [line for line in done.stdout.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[2:]]
    assert [row[0] for row in rows] == [
        "**gymbridge `AsyncVectorEnv`**",
        "**gymbridge `ParallelEnv`**",
        'gymnasium `AsyncVectorEnv`, `context="spawn"`',
    ]
    assert all(float(cell.split()[0].strip("*").replace(",", "")) > 0 for row in rows for cell in row[1:])
    assert all("(" in cell for row in rows[1:] for cell in row[1:])
