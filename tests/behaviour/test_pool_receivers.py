"""One receive of batches at a time, be it awaited or waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
import torch
from worker_processes import PATIENCE

from gymbridge import AsyncioAsyncEnvPool
from gymbridge.envs.pool_calls import PoolCalls


class Gated(gym.Env[Any, Any]):
    """Its steps end once its gate is opened."""

    observation_space = gym.spaces.Discrete(10)
    action_space = gym.spaces.Discrete(10)

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gate = asyncio.Event()

    def open_gate(self) -> None:
        self._loop.call_soon_threadsafe(self._gate.set)

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        return 0, {}

    async def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        await self._gate.wait()
        return action, 1.0, False, False, {}


Stepping = tuple[AsyncioAsyncEnvPool, list[Gated]]


@pytest.fixture
def stepping() -> Iterator[Stepping]:
    """A pool whose two envs are in the middle of a step, and the envs."""
    envs: list[Gated] = []

    def make() -> Gated:
        envs.append(Gated())
        return envs[-1]

    pool = AsyncioAsyncEnvPool([make, make])
    td = pool.reset()
    td["action"] = torch.ones(2, dtype=torch.int64)
    pool.async_step_send(td)
    yield pool, envs
    for env in envs:
        env.open_gate()
    pool.shutdown()


def test_none_is_awaited_while_a_thread_receives(stepping: Stepping, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two would wait for ever for what the other took."""
    pool, envs = stepping
    receives, receive = threading.Event(), PoolCalls.receive

    def noted(*args: Any) -> Any:
        receives.set()
        return receive(*args)

    monkeypatch.setattr(PoolCalls, "receive", noted)
    received: list[Any] = []
    receiver = threading.Thread(target=lambda: received.append(pool.async_step_recv(min_get=2)))
    receiver.start()
    assert receives.wait(PATIENCE)
    with pytest.raises(RuntimeError, match="async_step_recv_async: refused while a call of"):
        asyncio.run(pool.async_step_recv_async(min_get=2, timeout=PATIENCE))
    for env in envs:
        env.open_gate()
    receiver.join(PATIENCE)
    assert received[0]["env_index"].tolist() == [0, 1]


def test_while_one_is_awaited_nothing_takes_what_it_waits_for(stepping: Stepping) -> None:
    pool, envs = stepping

    async def receive() -> Any:
        awaited = asyncio.ensure_future(pool.async_step_recv_async(min_get=2, timeout=PATIENCE))
        await asyncio.sleep(0)
        for take in (lambda: pool.async_step_recv(timeout=0), pool._drop):
            with pytest.raises(RuntimeError, match="refused while another receive of batches is awaited"):
                take()
        with pytest.raises(RuntimeError, match="refused while another receive of batches is awaited"):
            await pool.async_step_recv_async(timeout=0)
        for env in envs:
            env.open_gate()
        return await awaited

    assert asyncio.run(receive())["env_index"].tolist() == [0, 1]
