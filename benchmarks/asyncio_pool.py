"""What a pool on an event loop costs: transitions a second of many slow envs, against a bare loop that awaits the same.

    python benchmarks/asyncio_pool.py --num-envs 500 --milliseconds 10

Each env awaits a sleep in its step. The bare loop has a task an env that steps it again and again and drops what it
gives. The pool's caller receives the envs that are ready, at least ``--min-get`` of them, as one TensorDict, and sends
them their next step. Both take turns in one process, in which only new objects are looked through for
garbage; the ratio is the median of the turns'.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

os.environ.setdefault("RL_WARNINGS", "0")

import gymnasium as gym
import numpy as np
import torch
from program_options import program_parser
from report import Row, begin, figures_of, measured_how, report, table, tell_progress
from tensordict import TensorDict

from gymbridge import AsyncEnvPool
from gymbridge.benchmarking.rounds import Cell
from gymbridge.cli.option_values import positive_int
from gymbridge.envs import EnvBase
from gymbridge.specs import Categorical, Composite, Unbounded


class SlowGymEnv(gym.Env[Any, Any]):
    """A gymnasium env whose steps are awaited."""

    observation_space = gym.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.observation = np.zeros(8, np.float32)

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.observation, {}

    async def step(self, action: Any) -> Any:
        await asyncio.sleep(self.seconds)
        return self.observation, 1.0, False, False, {}


class SlowTensorDictEnv(EnvBase):
    """A TensorDict env whose steps are awaited."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds = seconds
        self.observation_spec = Composite(observation=Unbounded((8,)))
        self.action_spec = Categorical(4)
        self.reward_spec = Unbounded((1,))
        self.leaves = {"observation": torch.zeros(8), "reward": torch.ones(1), "terminated": torch.tensor([False])}

    async def _reset(self, tensordict: Any, **kwargs: Any) -> TensorDict:
        return TensorDict({"observation": self.leaves["observation"]})

    async def _step(self, tensordict: Any) -> TensorDict:
        await asyncio.sleep(self.seconds)
        return TensorDict(self.leaves)

    def _set_seed(self, seed: int | None) -> None:
        pass


async def bare_rate(steps: Sequence[Callable[[], Any]], seconds: float) -> float:
    """Transitions a second of a loop with a task for each env."""
    end = perf_counter() + seconds

    async def drive(step: Callable[[], Any]) -> int:
        number = 0
        while perf_counter() < end:
            await step()
            number += 1
        return number

    return sum(await asyncio.gather(*map(drive, steps))) / seconds


def pool_rate(pool: AsyncEnvPool, min_get: int, seconds: float) -> float:
    """Transitions a second of a pool whose caller sends each env its next step once it is received."""
    td = pool.reset()
    actions = torch.zeros(pool.num_envs, dtype=torch.int64)
    td["action"] = actions
    pool.async_step_and_maybe_reset_send(td)
    number = 0
    end = perf_counter() + seconds
    while perf_counter() < end:
        _, td = pool.async_step_and_maybe_reset_recv(min_get=min_get)
        number += len(td)
        td["action"] = actions[: len(td)]
        pool.async_step_and_maybe_reset_send(td)
    pool.async_step_and_maybe_reset_recv(min_get=pool.num_envs)
    return number / seconds


CANDIDATES = {"bare": Row("a bare loop", "bare"), "pool": Row("**gymbridge `AsyncEnvPool`**", "bare")}

STEPS = {
    "gymnasium": lambda pause: partial(SlowGymEnv(pause).step, 0),
    "TensorDict": lambda pause: partial(SlowTensorDictEnv(pause)._step, TensorDict(action=torch.tensor(0))),
}
"""Kind of env -> what makes a step of one, from the seconds that it awaits."""
MAKERS = {"gymnasium": SlowGymEnv, "TensorDict": SlowTensorDictEnv}


def measure(kind: str, options: argparse.Namespace) -> dict[str, Cell]:
    """Transitions a second of both in each round."""
    pause, number = options.milliseconds / 1000, options.num_envs
    steps = [STEPS[kind](pause) for _ in range(number)]
    rates: dict[str, list[float]] = {"bare": [], "pool": []}
    pool = AsyncEnvPool([partial(MAKERS[kind], pause)] * number, backend="asyncio")
    try:
        pool_rate(pool, options.min_get, min(0.2, options.seconds))
        gc.collect()
        gc.freeze()  # what has been built would otherwise be looked through again in every collection
        for _ in range(options.rounds):
            rates["bare"].append(asyncio.run(bare_rate(steps, options.seconds)))
            rates["pool"].append(pool_rate(pool, options.min_get, options.seconds))
    finally:
        gc.unfreeze()
        pool.shutdown()
    return {name: Cell(tuple(own)) for name, own in rates.items()}


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = program_parser(__doc__, rounds=5, seconds=2.0)
    parser.add_argument("--num-envs", type=positive_int, default=500)
    parser.add_argument("--milliseconds", type=float, default=10.0, help="that each step awaits")
    parser.add_argument("--min-get", type=positive_int, default=1, help="of a receive")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Prints a table."""
    options = arguments(argv)
    torch.set_num_threads(1)
    about = begin(
        ("gymnasium", "numpy", "torch", "tensordict"),
        **measured_how(options),
        num_envs=options.num_envs,
        milliseconds=options.milliseconds,
    )
    columns = {}
    for kind in MAKERS:
        tell_progress(kind)
        columns[kind] = measure(kind, options)
    figures = figures_of(columns, CANDIDATES)
    print("\n" + table(figures, "transitions a second (times the bare loop's)"), flush=True)
    report(about, "transitions a second", figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
