"""What a vector step costs: gymbridge's engines and their peers, timed in turn in one run.

    python benchmarks/vector_step.py --kinds null,CartPole-v1,image --num-envs 2,8,64 --json figures.json

All candidates of a table are built first, then timed in rounds: each gets its turn in every round, so that whatever
slows the machine for a while slows them all. A figure is the median over the rounds, in microseconds for one step of
all the environments, episodes' ends included. Beside it stands how many times gymbridge's own figure that is: the
median of the rounds' ratios, against the gymbridge engine with the same kind of results (numpy or TensorDict).
TensorDict candidates take integer actions and run under ``no_grad`` with one torch thread.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("RL_WARNINGS", "0")

import gymnasium as gym
import numpy as np

from gymbridge.benchmarking import rounds as timing
from gymbridge.benchmarking.drivers import (
    NUM_ACTIONS,
    gym_envs_in_turn,
    numpy_engine,
    tensordict_engine,
    without_gradients,
)
from gymbridge.benchmarking.machine import circumstances
from gymbridge.benchmarking.rounds import Cell, Close, Run

Build = Callable[[str, int], tuple[Run, Close]]
"""From a kind of environment and a number of them."""

ROLLOUT = 100
"""Steps of a rollout."""


class BlankEnv(gym.Env):
    """Costs nothing: returns a copy of one array, ends after ``length`` steps; with infos of three entries if told."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, space: gym.spaces.Box, length: int, infos: bool = False):
        self.observation_space = space
        self.blank = np.zeros(space.shape, space.dtype)
        self.length = length
        self.infos = infos
        self.steps = 0

    def info(self) -> dict[str, Any]:
        if not self.infos:
            return {}
        return {"lives": 3, "progress": self.steps / self.length, "position": np.zeros(3, np.float32)}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.blank.copy(), self.info()

    def step(self, action: np.integer) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.blank.copy(), 1.0, self.steps >= self.length, False, self.info()


def make(kind: str) -> gym.Env:
    if kind in ("null", "infos"):
        return BlankEnv(gym.spaces.Box(-1, 1, (4,), np.float32), 200, kind == "infos")
    if kind == "image":
        return BlankEnv(gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), 500)
    return gym.make(kind)


# --- candidates ---


def raw_loop(kind: str, num_envs: int) -> tuple[Run, Close]:
    return gym_envs_in_turn([make(kind) for _ in range(num_envs)])


def vector_env(load: Callable[[], Any], kind: str, num_envs: int) -> tuple[Run, Close]:
    envs = load()([functools.partial(make, kind)] * num_envs)
    envs.reset(seed=0)
    return numpy_engine(envs, [envs.action_space.sample() for _ in range(NUM_ACTIONS)])


def gymbridge_sync() -> Any:
    from gymbridge.vector import SyncVectorEnv

    return SyncVectorEnv


def gymbridge_async() -> Any:
    from gymbridge.vector import AsyncVectorEnv

    return AsyncVectorEnv


def sb3(name: str, kind: str, num_envs: int) -> tuple[Run, Close]:
    from stable_baselines3.common import vec_env

    envs = getattr(vec_env, name)([functools.partial(make, kind)] * num_envs)
    envs.reset()
    actions = [np.array([envs.action_space.sample() for _ in range(num_envs)]) for _ in range(NUM_ACTIONS)]
    return numpy_engine(envs, actions)


def rollouts(env: Any) -> tuple[Run, Close]:
    """``rollout`` of so many steps at a time, with random actions; the same code for gymbridge and TorchRL."""

    def run(steps: int) -> None:
        for first in range(0, steps, ROLLOUT):
            env.rollout(min(ROLLOUT, steps - first), break_when_any_done=False)

    return without_gradients(run), env.close


def plain_step(env: Any) -> tuple[Run, Close]:
    """``step`` of one env, reset when it is done."""
    td = env.reset()
    actions = [env.rand_action(td)["action"].clone() for _ in range(NUM_ACTIONS)]

    def run(steps: int) -> None:
        nonlocal td
        for i in range(steps):
            td["action"] = actions[i % NUM_ACTIONS]
            if env.step(td)["next", "done"]:
                td = env.reset()

    return without_gradients(run), env.close


def torchrl_env(kind: str) -> Any:
    from torchrl.envs import GymWrapper

    return GymWrapper(make(kind), categorical_action_encoding=True)


def gymbridge_env(kind: str) -> Any:
    from gymbridge.envs import GymEnv

    return GymEnv(make(kind))


def torchrl_serial(kind: str, num_envs: int) -> tuple[Run, Close]:
    from torchrl.envs import SerialEnv

    return tensordict_engine(SerialEnv(num_envs, functools.partial(torchrl_env, kind)))


def gymbridge_serial(kind: str, num_envs: int) -> tuple[Run, Close]:
    from gymbridge import SerialEnv

    return tensordict_engine(SerialEnv(num_envs, functools.partial(make, kind)))


def torchrl_parallel(
    kind: str, num_envs: int, drive: Callable[[Any], tuple[Run, Close]] = tensordict_engine
) -> tuple[Run, Close]:
    from torchrl.envs import ParallelEnv

    return drive(ParallelEnv(num_envs, functools.partial(torchrl_env, kind)))


def gymbridge_parallel(
    kind: str, num_envs: int, drive: Callable[[Any], tuple[Run, Close]] = tensordict_engine
) -> tuple[Run, Close]:
    from gymbridge import ParallelEnv

    return drive(ParallelEnv(num_envs, functools.partial(make, kind)))


def gymbridge_parallel_piped(kind: str, num_envs: int) -> tuple[Run, Close]:
    from gymbridge import ParallelEnv

    return tensordict_engine(ParallelEnv(num_envs, functools.partial(gymbridge_env, kind), use_buffers=False))


def single(drive: Callable[[Any], tuple[Run, Close]], make_env: Callable[[str], Any]) -> Build:
    return lambda kind, num_envs: drive(make_env(kind))


@dataclass(frozen=True)
class Candidate:
    """``title`` is the row's name in the table; ``against`` names gymbridge's engine of the same kind."""

    title: str
    build: Build
    against: str
    by_default: bool = True


VECTOR_CANDIDATES = {
    "raw": Candidate("the envs alone, in a loop", raw_loop, "gymbridge-sync"),
    "gymnasium-sync": Candidate(
        "gymnasium `SyncVectorEnv`", functools.partial(vector_env, lambda: gym.vector.SyncVectorEnv), "gymbridge-sync"
    ),
    "gymnasium-async": Candidate(
        "gymnasium `AsyncVectorEnv`",
        functools.partial(vector_env, lambda: gym.vector.AsyncVectorEnv),
        "gymbridge-async",
        by_default=False,
    ),
    "sb3-dummy": Candidate("Stable-Baselines3 `DummyVecEnv`", functools.partial(sb3, "DummyVecEnv"), "gymbridge-sync"),
    "sb3-subproc": Candidate(
        "Stable-Baselines3 `SubprocVecEnv`",
        functools.partial(sb3, "SubprocVecEnv"),
        "gymbridge-async",
        by_default=False,
    ),
    "gymbridge-sync": Candidate(
        "**gymbridge `SyncVectorEnv`**", functools.partial(vector_env, gymbridge_sync), "gymbridge-sync"
    ),
    "gymbridge-async": Candidate(
        "**gymbridge `AsyncVectorEnv`**",
        functools.partial(vector_env, gymbridge_async),
        "gymbridge-async",
        by_default=False,
    ),
    "torchrl-serial": Candidate("TorchRL `SerialEnv`", torchrl_serial, "gymbridge-serial"),
    "gymbridge-serial": Candidate("**gymbridge `SerialEnv`**", gymbridge_serial, "gymbridge-serial"),
    "torchrl-parallel": Candidate("TorchRL `ParallelEnv`", torchrl_parallel, "gymbridge-parallel", by_default=False),
    "gymbridge-parallel": Candidate(
        "**gymbridge `ParallelEnv`**", gymbridge_parallel, "gymbridge-parallel", by_default=False
    ),
    "torchrl-parallel-rollout": Candidate(
        f"TorchRL `ParallelEnv.rollout({ROLLOUT})`",
        functools.partial(torchrl_parallel, drive=rollouts),
        "gymbridge-parallel-rollout",
        by_default=False,
    ),
    "gymbridge-parallel-rollout": Candidate(
        f"**gymbridge `ParallelEnv.rollout({ROLLOUT})`**",
        functools.partial(gymbridge_parallel, drive=rollouts),
        "gymbridge-parallel-rollout",
        by_default=False,
    ),
    "gymbridge-parallel-piped": Candidate(
        "**gymbridge `ParallelEnv`, `use_buffers=False`**",
        gymbridge_parallel_piped,
        "gymbridge-parallel",
        by_default=False,
    ),
}

SINGLE_CANDIDATES = {
    "torchrl-step": Candidate("TorchRL `GymWrapper.step`", single(plain_step, torchrl_env), "gymbridge-step"),
    "gymbridge-step": Candidate("**gymbridge `GymEnv.step`**", single(plain_step, gymbridge_env), "gymbridge-step"),
    "torchrl-step-reset": Candidate(
        "TorchRL `GymWrapper.step_and_maybe_reset`", single(tensordict_engine, torchrl_env), "gymbridge-step-reset"
    ),
    "gymbridge-step-reset": Candidate(
        "**gymbridge `GymEnv.step_and_maybe_reset`**", single(tensordict_engine, gymbridge_env), "gymbridge-step-reset"
    ),
}

CANDIDATES = VECTOR_CANDIDATES | SINGLE_CANDIDATES


# --- measuring ---


def measure(
    names: Iterable[str],
    kind: str,
    num_envs: int,
    rounds: int,
    seconds: float,
    candidates: Mapping[str, Candidate] = CANDIDATES,
) -> dict[str, Cell]:
    """Time the candidates in turn, ``rounds`` times for about ``seconds`` each."""
    builds = {name: functools.partial(candidates[name].build, kind, num_envs) for name in names}
    return timing.measure(builds, rounds, seconds)


# --- reporting ---


def table(
    names: list[str], columns: dict[str, dict[str, Cell]], candidates: Mapping[str, Candidate] = CANDIDATES
) -> str:
    """A markdown table: a row a candidate, a column a kind and number of envs, ``median (ratio)`` in the cells."""
    lines = ["| us a step (times gymbridge's) | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for name in names:
        row = [candidates[name].title]
        for cells in columns.values():
            cell, reference = cells[name], cells.get(candidates[name].against, Cell())
            text = "-"
            if cell.rounds:
                text = f"{cell.median:.0f}" if cell.median >= 100 else f"{cell.median:.3g}"
            if cell.rounds and reference.rounds and cell is not reference:
                text += f" ({cell.ratio(reference):.2f})"
            row.append(text)
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def failures(columns: dict[str, dict[str, Cell]]) -> list[str]:
    """A line for each candidate and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for column, cells in columns.items():
        for name, cell in cells.items():
            if cell.failure:
                found.setdefault((name, cell.failure), []).append(column)
    return [f"- {name}, {', '.join(where)}: {why}" for (name, why), where in found.items()]


def as_json(
    columns: dict[str, dict[str, Cell]], candidates: Mapping[str, Candidate] = CANDIDATES
) -> list[dict[str, Any]]:
    return [
        {
            "case": column,
            "candidate": name,
            "failure": cell.failure or None,
            "us_per_step": cell.median if cell.rounds else None,
            "us_per_step_rounds": cell.rounds,
            "ratio": cell.ratio(reference) if cell.rounds and reference.rounds else None,
            "against": candidates[name].against,
        }
        for column, cells in columns.items()
        for name, cell in cells.items()
        for reference in [cells.get(candidates[name].against, Cell())]
    ]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )

    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    parser.add_argument(
        "--kinds",
        type=words,
        default="null,CartPole-v1,image",
        help="null, infos (null with infos of three entries, one an array), image (4x84x84 uint8) or gymnasium ids",
    )
    parser.add_argument("--num-envs", type=lambda text: [int(n) for n in text.split(",")], default="2,8,64")
    parser.add_argument("--single", type=words, default="CartPole-v1", help="kinds for the single environments, or ''")
    parser.add_argument(
        "--peers",
        type=words,
        default=",".join(name for name, candidate in CANDIDATES.items() if candidate.by_default),
        help=f"some of {', '.join(CANDIDATES)}; gymbridge's engines are always timed with them",
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="for one candidate in one round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every round's figures there")
    options = parser.parse_args(argv)
    if unknown := set(options.peers) - set(CANDIDATES):
        parser.error(f"unknown peers {', '.join(sorted(unknown))}; there are {', '.join(CANDIDATES)}")
    if options.rounds < 1 or options.seconds <= 0 or min(options.num_envs) < 1:
        parser.error("--rounds, --seconds and --num-envs must be positive")
    return options


def tell_the_rest(
    about: Mapping[str, Any],
    columns: dict[str, dict[str, Cell]],
    path: Path | None,
    candidates: Mapping[str, Candidate] = CANDIDATES,
) -> None:
    """Prints what could not be timed, and writes all figures to a file, if there is to be one."""
    if missing := failures(columns):
        print("\nNot timed:\n\n" + "\n".join(missing))
    if path:
        figures = {"about": about, "figures": as_json(columns, candidates)}
        path.write_text(json.dumps(figures, indent=1) + "\n")


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    warnings.filterwarnings("ignore")
    wanted = {name for peer in options.peers for name in (peer, CANDIDATES[peer].against)}
    about = circumstances()
    print("\n".join(f"- {what}: {value}" for what, value in about.items()), flush=True)

    everything: dict[str, dict[str, Cell]] = {}
    vector_cases = [(f"{kind} N={n}", kind, n) for kind in options.kinds for n in options.num_envs]
    single_cases = [(kind, kind, 1) for kind in options.single]
    for candidates, cases in ((VECTOR_CANDIDATES, vector_cases), (SINGLE_CANDIDATES, single_cases)):
        names = [name for name in candidates if name in wanted]
        if not names:
            continue
        columns = {}
        for column, kind, num_envs in cases:
            print(f"timing {column} ...", file=sys.stderr, flush=True)
            columns[column] = measure(names, kind, num_envs, options.rounds, options.seconds)
        print("\n" + table(names, columns), flush=True)
        everything |= columns if candidates is VECTOR_CANDIDATES else {f"single {c}": v for c, v in columns.items()}

    tell_the_rest(about, everything, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
