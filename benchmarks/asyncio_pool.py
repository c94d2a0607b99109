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
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

os.environ.setdefault("RL_WARNINGS", "0")

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDict

from gymbridge import AsyncEnvPool
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


def main() -> None:
    """Prints a line a kind of env."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=500)
    parser.add_argument("--milliseconds", type=float, default=10.0, help="that each step awaits")
    parser.add_argument("--min-get", type=int, default=1, help="of a receive")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one turn")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    pause, number = arguments.milliseconds / 1000, arguments.num_envs

    given = TensorDict(action=torch.tensor(0))
    torch.set_num_threads(1)
    kinds: dict[str, tuple[list[Callable[[], Any]], Callable[[], Any]]] = {
        "gymnasium envs": (
            [partial(SlowGymEnv(pause).step, 0) for _ in range(number)],
            partial(SlowGymEnv, pause),
        ),
        "TensorDict envs": (
            [partial(SlowTensorDictEnv(pause)._step, given) for _ in range(number)],
            partial(SlowTensorDictEnv, pause),
        ),
    }
    print(f"{number} envs that await {arguments.milliseconds:g} ms: at most {number / pause:,.0f} transitions a second")
    for kind, (steps, maker) in kinds.items():
        bare, own, ratios = [], [], []
        pool = AsyncEnvPool([maker] * number, backend="asyncio")
        pool_rate(pool, arguments.min_get, 0.2)
        gc.collect()
        gc.freeze()  # what has been built would otherwise be looked through again in every collection
        for _ in range(arguments.turns):
            bare.append(asyncio.run(bare_rate(steps, arguments.seconds)))
            own.append(pool_rate(pool, arguments.min_get, arguments.seconds))
            ratios.append(own[-1] / bare[-1])
        gc.unfreeze()
        pool.shutdown()
        print(
            f"{kind}: bare loop {statistics.median(bare):,.0f}/s, pool {statistics.median(own):,.0f}/s, ratio "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
