"""``gymbridge bench`` times what it says, and tells of what it could not time."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gymbridge.benchmarking.rounds import Cell
from gymbridge.cli import main
from gymbridge.cli.bench import _choice, _reference
from gymbridge.cli.bench_engines import ALONE, ENGINES, EnvTraits

QUICK = ["--rounds=2", "--seconds=0.002"]
OURS = "alone,gymbridge-s[ey]*,gymbridge-async,gymbridge-parallel,gymbridge-tensor*,gymbridge-pool-t*,gymbridge-pool-p*"


def figures(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """What a bench gives as JSON, and what it says on standard error."""
    assert main(["bench", *arguments, *QUICK, "--json=-"]) == 0
    said = capsys.readouterr()
    return json.loads(said.out), said.err


@pytest.mark.parametrize(
    ("env", "engines"),
    [
        ("cli_envs:Counting", f"{OURS},gymnasium-*"),
        (
            "cli_tensordict_envs:Counting",
            "alone,gymbridge-serial,gymbridge-parallel,gymbridge-tensor*,gymbridge-pool-[tp]*",
        ),
        ("cli_envs:Awaited", "gymbridge-pool-asyncio"),
    ],
)
def test_every_engine_that_takes_the_env_is_timed(env: str, engines: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = figures([env, "-n2", f"--engines={engines}"], capsys)
    cells = found["figures"]
    assert {cell["engine"]: cell["failure"] for cell in cells} == dict.fromkeys(cell["engine"] for cell in cells)
    assert all(len(cell["us_per_step_rounds"]) == 2 and cell["us_per_step"] > 0 for cell in cells)
    kind = "TensorDict" if env.startswith("cli_tensordict") else "gymnasium"
    traits = EnvTraits(kind, awaited=env.endswith("Awaited"))
    of_this_env = {name for name, engine in ENGINES.items() if engine.needs is None and not engine.why_not(traits)}
    if traits.awaited:
        of_this_env &= {"gymbridge-pool-asyncio"}
    assert {cell["engine"] for cell in cells} == of_this_env
    assert found["about"]["env"] == env
    assert {"date", "machine", "python", "gymbridge", "gymnasium", "torch"} <= set(found["about"])


def test_table_file_and_picture_have_the_same_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [f"--json={tmp_path / 'figures.json'}", f"--plot={tmp_path / 'costs.svg'}"]
    engines = "--engines=alone,gymbridge-sync,gymnasium-sync"
    assert main(["bench", "CartPole-v1", "-n", "1,3", engines, "--baseline=gymnasium-sync", *QUICK, *files]) == 0
    shown = capsys.readouterr().out
    cells = json.loads((tmp_path / "figures.json").read_text())["figures"]
    assert [(cell["num_envs"], cell["engine"]) for cell in cells] == [
        (n, name) for n in (1, 3) for name in ("alone", "gymbridge-sync", "gymnasium-sync")
    ]
    picture = (tmp_path / "costs.svg").read_text()
    for cell in cells:
        title = ENGINES[cell["engine"]].title
        (row,) = [line for line in shown.splitlines() if f" {title} " in line and "(" in line]
        assert f"({cell['ratio']:.2f})" in row
        assert title in picture
    assert {cell["against"] for cell in cells} == {"gymnasium-sync"}
    assert [cell["ratio"] for cell in cells if cell["engine"] == "gymnasium-sync"] == [1.0, 1.0]


def test_a_picture_of_one_number_of_envs_has_a_point_an_engine(tmp_path: Path) -> None:
    picture = tmp_path / "costs.svg"
    assert main(["bench", "CartPole-v1", "-n2", "--engines=gymbridge-sync", *QUICK, f"--plot={picture}"]) == 0
    text = picture.read_text()
    assert "microseconds for a step of 2 envs" in text
    assert "gymbridge SyncVectorEnv" in text


def test_an_engine_that_fails_is_told_in_a_line_and_the_others_are_timed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLI_ENVS_PID", str(os.getpid()))
    found, said = figures(["cli_envs:RaisingInWorkers", "-n2", "--engines=gymbridge-sync,gymbridge-async"], capsys)
    assert [cell["failure"] for cell in found["figures"]] == [None, "ArithmeticError: stepped elsewhere"]
    assert "not timed: gymbridge-async (N=2): ArithmeticError: stepped elsewhere" in said.splitlines()
    assert "Traceback" not in said


def test_where_no_engine_can_be_timed_the_status_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cli_envs:Raising", "-n2", "--engines=gymbridge-sync", *QUICK]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == [
        "not timed: gymbridge-sync (N=2): ArithmeticError: stepped too far",
        "gymbridge bench: cli_envs:Raising: no engine could be timed",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engines=nonsense"], "got the engine 'nonsense', expected some of alone, "),
        (["--baseline=nonsense"], "--baseline: got 'nonsense', expected one of alone, "),
        (["--baseline=gymbridge-pool-asyncio"], "--baseline: gymbridge-pool-asyncio is for envs whose steps are cor"),
        (["--plot=costs.nonsense"], "--plot: got 'costs.nonsense', expected a file that ends in one of "),
        (["--plot=no/such/folder/a.png"], "there is no folder"),
        (["--json=no/such/folder/a.json"], "there is no folder"),
        (["--json=."], "is a folder, expected a file"),
        (["--engines=gymbridge-pool-asyncio"], "is for envs whose steps are coroutines"),
    ],
)
def test_what_cannot_be_done_is_told_before_anything_is_timed(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "CartPole-v1", *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "timing" not in error


@pytest.mark.parametrize("options", [["-n0"], ["-n", "two"], ["--rounds=0"], ["--seconds=nan"], ["--engines=,"]])
def test_values_that_mean_nothing_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "CartPole-v1", *options])
    assert exit_.value.code == 2
    assert "expected" in capsys.readouterr().err


def test_a_picture_that_cannot_be_drawn_is_told_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(figure: Any, file: Any, **options: Any) -> None:
        file.write(b"half of it")
        raise RuntimeError("latex was not found")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    picture = tmp_path / "costs.svg"
    assert main(["bench", "CartPole-v1", "-n2", "--engines=gymbridge-sync", *QUICK, f"--plot={picture}"]) == 2
    said = capsys.readouterr()
    assert "gymbridge SyncVectorEnv" in said.out
    assert f"--plot: writing {picture} raised RuntimeError: latex was not found" in said.err
    assert not picture.exists()


def test_an_env_that_exits_is_told_as_a_failure(
    env_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(env_folder)
    assert main(["bench", "cli_envs:LeavingInSteps", "-n2", "--engines=alone,gymbridge-sync", *QUICK]) == 2
    assert "SystemExit: 0" in capsys.readouterr().err


def test_without_matplotlib_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("matplotlib", "matplotlib.backend_bases"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    assert main(["bench", "CartPole-v1", "--plot=a.png"]) == 2
    assert "pip install 'gymbridge[cli]'" in capsys.readouterr().err


def test_peers_that_are_missing_are_told_and_engines_that_do_not_fit_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymbridge.cli.bench_engines.find_spec", lambda name: None)
    wanted = [name for name, engine in ENGINES.items() if engine.by_default]
    timed, left_out = _choice(wanted, EnvTraits("gymnasium", awaited=False), named=False)
    assert set(left_out.values()) == {
        f"needs {p}, which is not installed" for p in ("stable-baselines3", "torchrl", "envpool")
    }
    assert not {*timed} & {*left_out}
    assert "gymbridge-pool-asyncio" not in {*timed, *left_out}
    _, told = _choice(["gymbridge-pool-asyncio"], EnvTraits("gymnasium", awaited=False), named=True)
    assert told == {"gymbridge-pool-asyncio": "is for envs whose steps are coroutines"}


def test_ratios_are_to_the_best_engine_and_never_to_the_envs_alone() -> None:
    cells = {ALONE: Cell((1.0,)), "gymbridge-sync": Cell((3.0,)), "gymnasium-sync": Cell((2.0,)), "envpool": Cell()}
    assert _reference(cells, None) == "gymnasium-sync"
    assert _reference(cells, "gymbridge-sync") == "gymbridge-sync"
    assert _reference(cells, "envpool") is None
