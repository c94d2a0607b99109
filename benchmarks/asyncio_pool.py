"""What a pool on an event loop costs: transitions a second of many slow envs, against a bare loop that awaits the same.

    python benchmarks/asyncio_pool.py --num-envs 500 --milliseconds 10

Each env awaits a sleep in its step. The bare loop has a task an env that steps it again and again and drops what it
gives. The pool's caller waits for the first result, takes all that are there as one TensorDict, and has those envs
stepped again. Both take turns in one process; the ratio is the median of the turns'.
"""

from __future__ import annotations

import argparse
import asyncio
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

from gymbridge.engine.asyncio_pool import AsyncioPoolEngine
from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.envs import EnvBase
from gymbridge.envs.remote_host import RemoteTensorDictOptions
from gymbridge.envs.remote_inputs import GivenColumns, RoundInputs
from gymbridge.specs import Categorical, Composite, Unbounded

Rows = Sequence[int]


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


class Driven:
    """A pool whose caller steps each env again as soon as it has heard of it."""

    def __init__(self, make: Callable[[], Any], num_envs: int, options: Any, inputs: Callable[[int], Any], none: Any):
        self.engine: AsyncioPoolEngine[Any] = AsyncioPoolEngine([make] * num_envs, options)
        self.engine.allocate()
        self.engine.run(bytes([Op.RESET]) * num_envs, none)
        self._inputs = inputs
        self._blocks: dict[int, Block] = {}

    def rate(self, seconds: float) -> float:
        """Transitions a second."""
        number = 0
        num_envs = self.engine.num_envs
        end = perf_counter() + seconds
        self._submit(range(num_envs))
        while perf_counter() < end:
            rows = self.engine.wait(1)
            self._take(rows)
            number += len(rows)
            self._submit(rows)
        self._take(self.engine.wait(num_envs))
        return number / seconds

    def _submit(self, rows: Rows) -> None:
        self.engine.submit(rows, bytes([Op.STEP]) * len(rows), self._inputs(len(rows)))

    def _take(self, rows: Rows) -> TensorDict:
        number = len(rows)
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = Block(self.engine.block.layout.rows(0, number))
        report = self.engine.take(rows, block)
        assert not report.errors
        columns = {".".join(key): torch.from_numpy(array.copy()) for key, array in block.next.items()}
        return TensorDict(columns, [number])


def main() -> None:
    """Prints a line a kind of env."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=500)
    parser.add_argument("--milliseconds", type=float, default=10.0, help="that each step awaits")
    parser.add_argument("--seconds", type=float, default=2.0, help="of one turn")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    pause, number = arguments.milliseconds / 1000, arguments.num_envs

    def actions(length: int) -> torch.Tensor:
        return torch.zeros(length, dtype=torch.int64)

    def columns(length: int) -> RoundInputs:
        return RoundInputs(GivenColumns((("action",),), [actions(length)]))

    given = TensorDict(action=torch.tensor(0))
    kinds: dict[str, tuple[list[Callable[[], Any]], Driven]] = {
        "gymnasium envs": (
            [partial(SlowGymEnv(pause).step, 0) for _ in range(number)],
            Driven(lambda: SlowGymEnv(pause), number, GymHostOptions(), lambda length: [actions(length).numpy()], None),
        ),
        "TensorDict envs": (
            [partial(SlowTensorDictEnv(pause)._step, given) for _ in range(number)],
            Driven(
                lambda: SlowTensorDictEnv(pause),
                number,
                RemoteTensorDictOptions(in_process=True),
                columns,
                RoundInputs(None),
            ),
        ),
    }
    print(f"{number} envs that await {arguments.milliseconds:g} ms: at most {number / pause:,.0f} transitions a second")
    for kind, (steps, pool) in kinds.items():
        bare, own, ratios = [], [], []
        for _ in range(arguments.turns):
            bare.append(asyncio.run(bare_rate(steps, arguments.seconds)))
            own.append(pool.rate(arguments.seconds))
            ratios.append(own[-1] / bare[-1])
        pool.engine.close()
        print(
            f"{kind}: bare loop {statistics.median(bare):,.0f}/s, pool {statistics.median(own):,.0f}/s, ratio "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
