"""``gymbridge tune``: what it measures, what it tries, what it chooses, and that what it prints runs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gymbridge.benchmarking import rounds
from gymbridge.benchmarking.rounds import Cell
from gymbridge.cli import env_profile, main
from gymbridge.cli.env_argument import NamedEnv, env_called
from gymbridge.cli.env_profile import EnvProfile, profile_of
from gymbridge.cli.tune import _verdict
from gymbridge.cli.tune_batches import BatchCall, batch_calls, worker_numbers
from gymbridge.cli.tune_search import Outcome, best_of, search

QUICK = ["-n2", "--seconds=1"]


def profile(**known: Any) -> EnvProfile:
    usual: dict[str, Any] = {
        "kind": "gymnasium",
        "awaited": False,
        "make_us": 1.0,
        "steps": 100,
        **dict.fromkeys(("step_us", "step_us_median", "step_us_99", "step_us_longest", "work_us"), 1e3),
        "resets": 2,
        "reset_us": 1e3,
        "episode_steps": 100.0,
        "observation_bytes": 8,
        "busy": 1.0,
    }
    return EnvProfile(**{**usual, **known})


# ---------------------------------------------------------------- what is printed


@pytest.mark.parametrize(("env", "api"), [("cli_envs:Counting", "gymnasium"), ("CartPole-v1", "pool")])
def test_what_is_printed_runs(
    env: str, api: str, env_folder: Path, subprocess_env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", env, "--api", api, *QUICK, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["program"].startswith(found["call"])
    pasted = ast.parse(found["call"]).body[-1]
    assert isinstance(pasted, ast.Assign)
    call = ast.dump(pasted.value)  # over several lines where it is long
    chosen = [own for own in found["candidates"] if ast.dump(ast.parse(own["call"], mode="eval").body) == call]
    assert [own["us_per_step"] for own in chosen if own["us_per_step"]]
    assert all(own["verdict"] for own in found["candidates"])
    done = subprocess.run(
        [sys.executable, "-c", found["program"]], cwd=env_folder, env=subprocess_env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_text_ends_with_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "cli_envs:Holder.make", "--api=gymnasium", *QUICK]) == 0
    said = capsys.readouterr().out
    facts, program = said[: said.index("from cli_envs")], said[said.index("from cli_envs") :]
    assert "a gymnasium env, 8 bytes an observation" in facts
    for candidate in ("SyncVectorEnv([Holder.make] * 2)", "AsyncVectorEnv([Holder.make] * 2, num_workers=1)"):
        assert f"│ {candidate} " in facts
    exec(program, {})


@pytest.mark.parametrize("api", ["native", "gymnasium", "pool"])
@pytest.mark.parametrize(
    ("env", "known"),
    [
        ("cli_envs:Counting", {}),
        ("CartPole-v1", {"busy": 0.1, "step_us_99": 1e5}),
        ("cli_tensordict_envs:Counting", {"kind": "TensorDict"}),
        ("cli_envs:Awaited", {"awaited": True}),
    ],
)
def test_every_program_that_could_be_printed_runs(env: str, known: dict[str, Any], api: Any) -> None:
    calls = batch_calls(env_called(env), 2, api, profile(**known), cores=2)
    assert calls
    assert len({(call.program) for call in calls}) == len(calls)
    for call in calls:
        exec(call.program, {})


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("cli_envs:Raising", "the env raised ArithmeticError: stepped too far while it was stepped alone"),
        ("cli_envs:Unmade", "making the env raised LookupError: no such map: [moon]"),
    ],
)
def test_an_env_that_fails_is_told_in_a_line(env: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", env, *QUICK]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"gymbridge tune: {env}: {said}"


# ---------------------------------------------------------------- what is tried


@pytest.mark.parametrize("num_envs", [1, 3, 8, 64, 1000])
@pytest.mark.parametrize("cores", [1, 2, 6, 64, 256])
@pytest.mark.parametrize("waits", [False, True])
def test_many_cores_do_not_make_many_candidates(num_envs: int, cores: int, waits: bool) -> None:
    numbers = worker_numbers(num_envs, cores, waits=waits)
    most = min(num_envs, max(cores, 64) if waits else cores)
    assert numbers[0] == 1
    assert numbers[-1] == most
    assert len(numbers) <= most.bit_length() + 1
    assert numbers == sorted(set(numbers))


def expressions(api: Any, **known: Any) -> str:
    calls = batch_calls(env_called("CartPole-v1"), 8, api, profile(**known), cores=2)
    return "\n".join(call.expression for call in calls)


def test_what_is_tried_depends_on_the_env() -> None:
    usual = expressions("native")
    assert "SerialEnv(8" in usual
    assert "num_workers=2" in usual
    assert "num_workers=4" not in usual
    assert "Pool" not in usual
    assert 'ParallelEnv(8, "CartPole-v1", num_workers=1, caller_steps=True)' in usual
    assert "num_workers=2, caller_steps" not in usual
    assert "num_workers=8" in expressions("native", busy=0.1)
    varying = expressions("native", step_us_99=1e5)
    assert 'exchange="shm"' in varying
    assert 'exchange="queue"' in varying
    assert "caller_steps" not in expressions("native", busy=0.1) + expressions("pool") + expressions("gymnasium")
    assert "SerialEnv" not in expressions("pool")
    of_vector_envs = expressions("gymnasium")
    assert 'make_vec("CartPole-v1", num_envs=8, vectorization_mode="sync")' in of_vector_envs
    assert 'make_vec("CartPole-v1", num_envs=8, vector_kwargs={"num_workers": 2})' in of_vector_envs


def test_what_a_batch_costs_is_of_its_kind_whatever_its_maker_is_called() -> None:
    env = NamedEnv("jobs:queue", dict, "from jobs import queue", "queue")
    calls = batch_calls(env, 2, "native", profile(step_us_99=1e5), cores=2)
    kinds = {"Serial": "making the results", "Parallel": "waking 1 worker and copying"}
    kinds |= {"threading": "handing over between threads", 'exchange="queue"': "messages"}
    for kind, overhead in kinds.items():
        assert overhead in [call.overhead for call in calls if kind in call.expression]
    assert [call.overhead for call in calls].count("messages") == 1


# ---------------------------------------------------------------- what an env takes


@dataclass
class ScriptedEnv:
    """Takes as long as it is told, by a clock of its own."""

    clock: list[float]
    step_s: Callable[[int], float]
    reset_s: float = 0.0
    length: int = 5
    count: int = 0
    steps: int = 0

    def reset(self) -> None:
        self.count = 0
        self.clock[0] += self.reset_s

    def draw(self) -> None:
        self.clock[0] += 1e-9

    def step(self) -> bool:
        self.clock[0] += self.step_s(self.steps)
        self.count += 1
        self.steps += 1
        return self.count == self.length

    def observation_bytes(self) -> int:
        return 8

    def close(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(env_profile.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(env_profile, "_computed_seconds", lambda: 0.25 * now[0])
    return now


def measured(env: ScriptedEnv, seconds: float) -> EnvProfile:
    return env_profile._measured(env, "gymnasium", False, 1.0, seconds)


def test_resets_have_their_share_of_the_work(clock: list[float]) -> None:
    found = measured(ScriptedEnv(clock, lambda i: 1e-3, reset_s=0.1), 100.0)
    assert found.episode_steps == 5
    assert found.step_us_median == pytest.approx(1e3)
    assert found.reset_us == pytest.approx(1e5)
    assert found.work_us == pytest.approx(1e3 + 1e5 / 5)
    assert found.varies
    assert found.waits
    assert found.busy == pytest.approx(0.25)


def test_times_that_vary_are_told_from_the_machines_hiccups(clock: list[float]) -> None:
    assert not measured(ScriptedEnv(clock, lambda i: 1e-3), 10.0).varies
    assert not measured(ScriptedEnv(clock, lambda i: 0.3 if i % 200 == 7 else 1e-3), 100.0).varies
    assert not measured(ScriptedEnv(clock, lambda i: 1e-6 * (1 + i % 2)), 0.01).varies
    assert measured(ScriptedEnv(clock, lambda i: 1e-3 * (1 + i % 5)), 10.0).varies


def test_an_env_that_takes_longer_than_the_time_is_stepped_once(clock: list[float]) -> None:
    env = ScriptedEnv(clock, lambda i: 50.0)
    assert measured(env, 1.0).steps == 1
    assert env.steps == 2  # the first one warms up


@pytest.mark.parametrize(
    ("env", "kind", "num_bytes"),
    [
        ("cli_envs:Counting", "gymnasium", 8),
        ("cli_tensordict_envs:Counting", "TensorDict", 8),
        ("cli_envs:Awaited", "", 8),
    ],
)
def test_every_kind_of_env_is_measured(env: str, kind: str, num_bytes: int) -> None:
    found = profile_of(env_called(env), 0.01)
    assert (found.kind, found.awaited) == (kind or "gymnasium", not kind)
    assert found.observation_bytes == num_bytes
    assert found.step_us > 0
    if not found.awaited:
        assert found.episode_steps in (None, 5)


# ---------------------------------------------------------------- what is chosen


@dataclass(frozen=True)
class ScriptedBatch(BatchCall):
    """Takes as long for a step as it is told, by a clock of its own; raises where that is a text."""

    clock: list[float] = field(default_factory=list)
    step_s: float | str = 0.0
    start_s: float = 0.0

    def build(self) -> tuple[Callable[[int], None], Callable[[], None]]:
        self.clock[0] += self.start_s

        def run(steps: int) -> None:
            if isinstance(self.step_s, str):
                raise ValueError(self.step_s)
            self.clock[0] += steps * self.step_s

        return run, lambda: None


Make = Callable[..., ScriptedBatch]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    now = [0.0]
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: now[0])

    def make(name: str, step_s: float | str, least_s: float = 0.0, processes: int = 0, **known: Any) -> ScriptedBatch:
        return ScriptedBatch(name, (), "step", processes, least_s * 1e6, 1, "copying", now, step_s, **known)

    return make


def searched(batches: list[ScriptedBatch], seconds: float = 100.0) -> dict[str, Outcome]:
    clock = batches[0].clock
    outcomes = search(batches, seconds, clock=lambda: clock[0])
    return {outcome.batch.expression: outcome for outcome in outcomes}


def chosen(outcomes: dict[str, Outcome]) -> tuple[str, str]:
    best = best_of([*outcomes.values()])
    assert best is not None
    return best[0].batch.expression, best[1]


def test_the_fastest_is_chosen_after_a_final(make: Make) -> None:
    outcomes = searched([make("a", 1e-3), make("b", 0.8e-3), make("c", 5e-3)])
    assert chosen(outcomes) == ("b", "the fastest")
    assert [bool(outcome.final.rounds) for outcome in outcomes.values()] == [True, True, False]
    assert outcomes["b"].us == pytest.approx(800)


def test_fewer_processes_are_preferred_where_that_costs_nothing(make: Make) -> None:
    outcomes = searched([make("many", 1.00e-3, processes=8), make("few", 1.03e-3, processes=2), make("slow", 1.2e-3)])
    assert chosen(outcomes) == ("few", "as fast as many, within 5%, with fewer processes")


def test_a_figure_of_another_hour_is_not_held_against_the_winners(make: Make) -> None:
    """What was timed alone only, before the machine had other work, took as long as it took beside the winner then."""
    best = Outcome(make("best", 0.0, processes=2), Cell((1.0e3,)), Cell((2.0e3,)))
    dearer = Outcome(make("dearer", 0.0, processes=1), Cell((1.2e3,)))
    told_of = _verdict(dearer, best, "the fastest")
    assert told_of.startswith("1.20 times as long when each was timed alone: ")
    alike = Outcome(make("alike", 0.0, processes=1), Cell((1.0e3,)), Cell((2.0e3,)))
    assert _verdict(alike, best, "the fastest").startswith("1.00 times as long: ")
    assert _verdict(best, alike, "the fastest") == "no slower, in 2 processes"


def test_a_program_fits_the_terminal_that_it_is_copied_from() -> None:
    env, known = env_called("cli_envs:Counting"), profile(busy=0.1, step_us_99=1e5)
    apis: tuple[Any, ...] = ("native", "gymnasium", "pool")
    calls = [call for api in apis for call in batch_calls(env, 64, api, known, cores=2)]
    assert any(len(f"env = {call.expression}") > 80 for call in calls)
    assert [line for call in calls for line in call.program.splitlines() if len(line) > 80] == []


def test_what_cannot_win_is_not_timed(make: Make) -> None:
    slow = make("slow", 1.0, least_s=0.5)
    outcomes = searched([make("a", 1e-3), slow])
    assert outcomes["slow"].us is None
    assert outcomes["slow"].not_tried == "cannot be faster than 500 ms, the envs' own time"
    assert slow.clock[0] < 100


def test_the_time_holds_and_what_was_left_out_is_told(make: Make) -> None:
    batches = [make(f"{i}", 1e-3, start_s=20.0) for i in range(6)]
    outcomes = searched(batches)
    assert [bool(outcome.not_tried) for outcome in outcomes.values()] == [False] * 3 + [True] * 3
    assert batches[0].clock[0] < 130
    assert chosen(outcomes)[1] == "the fastest"


def test_the_first_is_timed_however_slow_it_is(make: Make) -> None:
    assert chosen(searched([make("a", 300.0)], seconds=1.0)) == ("a", "the only one that was timed")


def test_what_fails_is_told_and_never_chosen(make: Make) -> None:
    outcomes = searched([make("bad", "boom"), make("good", 1e-3)])
    assert outcomes["bad"].alone.failure == "ValueError: boom"
    assert chosen(outcomes)[0] == "good"
    assert best_of([*searched([make("bad", "boom")]).values()]) is None
