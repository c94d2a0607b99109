"""Times that calls and starts may take: infinity is one of them, and what is no time is refused by name."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from worker_processes import PATIENCE

from gymbridge import AsyncEnvPool, ParallelEnv, ThreadingAsyncEnvPool
from gymbridge.envs.pool_calls import PoolCalls

BACKENDS = ["threading", "multiprocessing", "asyncio"]
INFINITY = float("inf")


@pytest.mark.parametrize("longest", [INFINITY, 1e10, np.float32(INFINITY)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_receive_may_collect_for_ever(backend: str, longest: Any) -> None:
    pool = AsyncEnvPool(["CartPole-v1"] * 2, backend=backend, start_timeout=longest, shutdown_timeout=longest)
    pool.async_reset_send()
    assert len(pool.async_reset_recv(min_get=1, max_get=2, timeout=longest)) == 2
    pool.async_reset_send(env_index=0)
    assert pool.async_reset_recv(env_index=0, timeout=longest)["env_index"] == 0
    pool.close()
    pool.reset()
    pool.shutdown(timeout=longest)
    assert pool.is_closed


def test_a_parallel_env_may_start_and_close_for_ever() -> None:
    env = ParallelEnv(2, "CartPole-v1", start_timeout=INFINITY, shutdown_timeout=INFINITY)
    env.reset()
    env.close()


@pytest.mark.parametrize("name", ["start_timeout", "shutdown_timeout"])
@pytest.mark.parametrize(("given", "error"), [(-1, ValueError), (float("nan"), ValueError), ("1", TypeError)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pool_is_not_made_with_what_is_no_time(backend: str, name: str, given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"{name}: got"):
        AsyncEnvPool(["CartPole-v1"], backend=backend, **{name: given})


def test_a_shutdown_that_is_refused_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a later ``close`` is the pool's own."""
    pool = ThreadingAsyncEnvPool(["CartPole-v1"] * 2, shutdown_timeout=PATIENCE)
    pool.reset()
    entered, may_go_on, receive = threading.Event(), threading.Event(), PoolCalls.receive

    def held(*args: Any) -> Any:
        entered.set()
        assert may_go_on.wait(PATIENCE)
        return receive(*args)

    monkeypatch.setattr(PoolCalls, "receive", held)
    pool.async_step_send(pool.fake_tensordict().set("action", torch.zeros(2, dtype=torch.int64)))
    receiver = threading.Thread(target=pool.async_step_recv)
    receiver.start()
    assert entered.wait(PATIENCE)
    with pytest.raises(RuntimeError, match="shutdown: refused while a call of"):
        pool.shutdown(timeout=0)
    engine: Any = pool.engine
    assert engine.shutdown_timeout == PATIENCE
    may_go_on.set()
    receiver.join(PATIENCE)
    pool.shutdown()
