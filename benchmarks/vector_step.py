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
import os
import sys
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

os.environ.setdefault("RL_WARNINGS", "0")

import gymnasium as gym
import numpy as np
from program_options import add_names, program_parser, some_or_none
from report import Candidate, begin, figures_of, measured_how, report, table, time_cases, with_references

from gymbridge.benchmarking.drivers import (
    NUM_ACTIONS,
    gym_envs_in_turn,
    sb3_engine,
    tensordict_engine,
    vector_engine,
    without_gradients,
)
from gymbridge.benchmarking.rounds import Close, Run
from gymbridge.cli.option_values import positive_ints, words

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


def vector_env(cls: str, kind: str, num_envs: int) -> tuple[Run, Close]:
    return vector_engine(resolve_name(cls)([functools.partial(make, kind)] * num_envs))


def sb3(cls: str, kind: str, num_envs: int) -> tuple[Run, Close]:
    return sb3_engine(resolve_name(cls)([functools.partial(make, kind)] * num_envs))


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


VECTOR_CANDIDATES = {
    "raw": Candidate("the envs alone, in a loop", raw_loop, "gymbridge-sync"),
    "gymnasium-sync": Candidate(
        "gymnasium `SyncVectorEnv`", functools.partial(vector_env, "gymnasium.vector:SyncVectorEnv"), "gymbridge-sync"
    ),
    "gymnasium-async": Candidate(
        "gymnasium `AsyncVectorEnv`",
        functools.partial(vector_env, "gymnasium.vector:AsyncVectorEnv"),
        "gymbridge-async",
        by_default=False,
    ),
    "sb3-dummy": Candidate(
        "Stable-Baselines3 `DummyVecEnv`",
        functools.partial(sb3, "stable_baselines3.common.vec_env:DummyVecEnv"),
        "gymbridge-sync",
    ),
    "sb3-subproc": Candidate(
        "Stable-Baselines3 `SubprocVecEnv`",
        functools.partial(sb3, "stable_baselines3.common.vec_env:SubprocVecEnv"),
        "gymbridge-async",
        by_default=False,
    ),
    "gymbridge-sync": Candidate(
        "**gymbridge `SyncVectorEnv`**",
        functools.partial(vector_env, "gymbridge.vector:SyncVectorEnv"),
        "gymbridge-sync",
    ),
    "gymbridge-async": Candidate(
        "**gymbridge `AsyncVectorEnv`**",
        functools.partial(vector_env, "gymbridge.vector:AsyncVectorEnv"),
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


# --- the program ---


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = program_parser(__doc__, rounds=7, seconds=0.3)
    parser.add_argument(
        "--kinds",
        type=words,
        default="null,CartPole-v1,image",
        help="null, infos (null with infos of three entries, one an array), image (4x84x84 uint8) or gymnasium ids; "
        "KIND@N is for this number of envs alone",
    )
    parser.add_argument("--num-envs", type=positive_ints, default="2,8,64")
    parser.add_argument(
        "--single",
        type=some_or_none(words),
        default="CartPole-v1",
        help="kinds for the single environments, or ''",
    )
    add_names(parser, "--peers", CANDIDATES, [name for name, each in CANDIDATES.items() if each.by_default])
    return parser.parse_args(argv)


def cases(kinds: list[str], num_envs: list[int]) -> dict[str, tuple[str, int]]:
    """Case -> kind and number of envs."""
    found = {}
    for each in kinds:
        kind, _, number = each.partition("@")
        for n in positive_ints(number) if number else num_envs:
            found[f"{kind} N={n}"] = (kind, n)
    return found


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    about = begin(**measured_how(options))
    wanted = with_references(CANDIDATES, options.peers)
    single_cases = {f"single {kind}": (kind, 1) for kind in options.single}
    figures = []
    for candidates, given in (
        (VECTOR_CANDIDATES, cases(options.kinds, options.num_envs)),
        (SINGLE_CANDIDATES, single_cases),
    ):
        names = [name for name in wanted if name in candidates]
        if names and given:
            columns = time_cases(names, candidates, given, options.rounds, options.seconds)
            found = figures_of(columns, candidates)
            print("\n" + table(found, "us a step (times gymbridge's)"), flush=True)
            figures += found
    report(about, "us a step", figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
