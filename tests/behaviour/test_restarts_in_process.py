"""Envs of this process that leave their thread, or hang, are made anew where the pool is told to."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import gymbridge
from gymbridge import AsyncEnvPool
from gymbridge.errors import WorkerDiedError, WorkerTimeoutError

GO, LEAVE, HANG = range(3)
MARK = ("info", "worker_restarted")
N = 3
LIMIT = 2.0

gates: list[threading.Event] = []
"""What hanging envs wait for; opened at the end of a test."""


class LeavingEnv(gym.Env[Any, Any]):
    """Observes its index, its steps and its first random number."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, index: int):
        self.index = index

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.first = 0, float(self.np_random.random())
        return np.array([self.index, self.steps, self.first]), {}

    def step(self, action: Any) -> Any:
        if action == LEAVE:
            sys.exit(3)
        if action == HANG:
            gates.append(threading.Event())
            gates[-1].wait()
        self.steps += 1
        return np.array([self.index, self.steps, self.first]), float(self.steps), False, False, {}


class AwaitedEnv(LeavingEnv):
    """The same in coroutines."""

    async def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().reset(**kwargs)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if action == HANG:
            await asyncio.Event().wait()
        return super().step(action)


def as_tensordict_env(kind: Any, index: int) -> Any:
    return gymbridge.envs.GymEnv(kind(index))


POOLS = {
    "threads": ("threading", partial(partial, LeavingEnv)),
    "threads, TensorDict": ("threading", partial(partial, as_tensordict_env, LeavingEnv)),
    "coroutines": ("asyncio", partial(partial, AwaitedEnv)),
    "threads beside a loop": ("asyncio", partial(partial, LeavingEnv)),
}

each_pool = pytest.mark.parametrize(("backend", "maker"), POOLS.values(), ids=POOLS)
each_deed = pytest.mark.parametrize("deed", [LEAVE, HANG], ids=["leave", "hang"])


@pytest.fixture(autouse=True)
def open_gates() -> Iterator[None]:
    yield
    for gate in gates:
        gate.set()
    gates.clear()


@each_pool
@each_deed
def test_a_step_in_which_an_env_is_lost(backend: Any, maker: Any, deed: int) -> None:
    """Is truncated with the latest observation; the others notice nothing, and the run goes on."""
    env = AsyncEnvPool(
        [maker(row) for row in range(N)], backend=backend, on_worker_failure="restart", step_timeout=LIMIT
    )
    env.set_seed(5)
    td = env.reset()
    td["action"] = torch.tensor([GO, GO, GO])
    _, td = env.step_and_maybe_reset(td)
    before = td["observation"].clone()
    td["action"] = torch.tensor([GO, deed, GO])
    td, td_ = env.step_and_maybe_reset(td)
    following = td["next"]
    assert following[MARK].tolist() == following["truncated"].flatten().tolist() == [False, True, False]
    assert following["observation"][:, 1].tolist() == [2, 1, 2]
    assert torch.equal(following["observation"][1], before[1])
    assert following["reward"].flatten().tolist() == [2, 0, 2]
    assert td_["observation"][:, 1].tolist() == [2, 0, 2]
    assert td_["observation"][1, 2] != before[1, 2]
    assert not td_[MARK].any()
    td_["action"] = torch.tensor([GO, GO, GO])
    td, _ = env.step_and_maybe_reset(td_)
    assert td["next", "observation"][:, 1].tolist() == [3, 1, 3]
    stats = env.stats()
    assert (stats["restarts"], stats["timeouts"]) == (1, deed == HANG)
    env.close()


@each_pool
@each_deed
def test_a_lost_env_is_received_as_it_comes(backend: Any, maker: Any, deed: int) -> None:
    env = AsyncEnvPool(
        [maker(row) for row in range(N)], backend=backend, on_worker_failure="restart", step_timeout=LIMIT
    )
    td = env.reset()
    td["action"] = torch.tensor([GO, deed, GO])
    env.async_step_and_maybe_reset_send(td)
    marks: dict[int, bool] = {}
    while len(marks) < N:
        done, _ = env.async_step_and_maybe_reset_recv()
        marks.update(zip(done["env_index"].tolist(), done["next"][MARK].tolist(), strict=True))
    assert marks == {0: False, 1: True, 2: False}
    env.close()


@each_pool
@each_deed
def test_without_restarts_it_is_raised(backend: Any, maker: Any, deed: int) -> None:
    env = AsyncEnvPool([maker(row) for row in range(N)], backend=backend, step_timeout=LIMIT)
    td = env.reset()
    td["action"] = torch.tensor([GO, deed, GO])
    with pytest.raises(WorkerTimeoutError if deed == HANG else WorkerDiedError) as raised:
        env.step(td)
    assert raised.value.env_indices == (1,)
    assert deed != HANG or "the step of env 1" in str(raised.value)
    env.close()
