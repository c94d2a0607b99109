"""Pools that are closed under those who wait, called by their own envs, and given what makes no sense."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import pools
import pytest
import tensordict_waiting_envs
import torch
import waiting_envs
from pools import BACKENDS, Backend, acting_pool
from tensordict import TensorDict
from waiting_envs import await_entry, make_gates, release
from worker_processes import PATIENCE

from gymbridge import AsyncEnvPool
from gymbridge.vector import PoolVectorEnv

for module in (sys.modules[__name__], waiting_envs, tensordict_waiting_envs, pools):
    cloudpickle.register_pickle_by_value(module)

NUM_ENVS = 3


def actions(*numbers: int) -> TensorDict:
    return TensorDict(action=torch.tensor(numbers), batch_size=[len(numbers)])


@pytest.fixture(params=BACKENDS, ids=str)
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Acting envs that were reset."""
    make_gates(NUM_ENVS, tmp_path)
    own = acting_pool(request.param, "gymnasium", NUM_ENVS, tmp_path)
    own.reset()
    yield own
    own.shutdown(timeout=1.0)


# ---------------------------------------------------------------- closed under those who wait

CLOSES: dict[str, Callable[[AsyncEnvPool], None]] = {
    "shutdown": lambda pool: pool.shutdown(timeout=0.05),
    "close": lambda pool: pool.close(),
}


@pytest.mark.parametrize("close", CLOSES)
@pytest.mark.parametrize("timeout", [None, PATIENCE], ids=["no timeout", "timeout"])
def test_a_receive_of_batches_ends_with_an_error_when_another_thread_closes_the_pool(
    pool: Any, tmp_path: Path, close: str, timeout: float | None
) -> None:
    """However long its envs would take; the next use starts the pool again."""
    pool.set_attr("act", ["tell and wait", *[""] * (NUM_ENVS - 1)])
    pool.async_step_send(actions(*range(NUM_ENVS)))
    await_entry(tmp_path, 0)
    pool.engine.shutdown_timeout = 0.05
    with ThreadPoolExecutor(1) as threads, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of envs that were killed, or left behind
        receiving = threads.submit(pool.async_step_recv, NUM_ENVS, timeout=timeout)
        while pool._call_under_way is None:
            assert not receiving.done()
        CLOSES[close](pool)
        error = receiving.exception(PATIENCE)
    if pool.backend != "multiprocessing":  # where it was not killed
        release(tmp_path, 0)
    assert isinstance(error, RuntimeError), error
    assert "closed" in str(error), "".join(traceback.format_exception(error))
    pool.async_reset_send()
    assert len(pool.async_reset_recv(NUM_ENVS, timeout=PATIENCE)) == NUM_ENVS


def test_a_receive_of_a_vector_env_ends_with_an_error_when_another_thread_closes_it(pool: Any, tmp_path: Path) -> None:
    envs = PoolVectorEnv(pool)
    envs.reset()
    pool.set_attr("act", ["tell and wait", *[""] * (NUM_ENVS - 1)])
    envs.send(list(range(NUM_ENVS)))
    await_entry(tmp_path, 0)
    pool.engine.shutdown_timeout = 0.05
    with ThreadPoolExecutor(1) as threads, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        receiving = threads.submit(envs.recv)
        while pool._call_under_way is None:
            assert not receiving.done()
        envs.close()
        error = receiving.exception(PATIENCE)
    if pool.backend != "multiprocessing":  # where it was not killed
        release(tmp_path, 0)
    assert envs.closed
    assert isinstance(error, RuntimeError), error
    assert "closed" in str(error), "".join(traceback.format_exception(error))


@pytest.mark.parametrize("env_index", [None, 0], ids=["batch", "lane"])
def test_an_awaited_receive_ends_with_an_error_when_the_pool_is_closed(tmp_path: Path, env_index: int | None) -> None:
    make_gates(1, tmp_path)
    pool: Any = acting_pool(Backend("asyncio", {"backend": "asyncio"}), "gymnasium", 1, tmp_path)
    pool.reset()
    pool.set_attr("act", "tell and wait")
    pool.async_step_send(*((actions(1)[0], 0) if env_index is not None else (actions(1),)))
    await_entry(tmp_path, 0)

    async def close() -> Any:
        receiving = asyncio.ensure_future(pool.async_step_recv_async(env_index=env_index))
        await asyncio.sleep(0)  # it waits now
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pool.shutdown(timeout=0.05)
        pool.async_reset_send()
        assert len(pool.async_reset_recv()) == 1  # nobody awaits the new pool
        with pytest.raises(RuntimeError, match="closed"):
            await asyncio.wait_for(receiving, PATIENCE)

    try:
        asyncio.run(close())
    finally:
        release(tmp_path, 0)
        pool.shutdown(timeout=1.0)


def test_a_lane_of_a_plain_env_in_an_asyncio_pool_ends_with_an_error_too(tmp_path: Path) -> None:
    """Its thread cannot be cancelled."""
    make_gates(1, tmp_path)
    pool: Any = AsyncEnvPool([lambda: waiting_envs.ActingEnv(0, tmp_path, "")], backend="asyncio")
    pool.reset()
    pool.set_attr("act", "tell and wait")
    pool.async_step_send(actions(1)[0], 0)
    await_entry(tmp_path, 0)
    with ThreadPoolExecutor(1) as threads, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        receiving = threads.submit(pool.async_step_recv, env_index=0)
        while not pool._calls._received_lanes:
            assert not receiving.done()
        pool.shutdown(timeout=0.05)
        try:
            with pytest.raises(RuntimeError, match="closed"):
                receiving.result(PATIENCE)
        finally:
            release(tmp_path, 0)


# ---------------------------------------------------------------- called by its own envs


class Calling(gym.Env[Any, Any]):
    """Coroutines on the pool's loop, of which a step calls the pool."""

    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(2)
    call: Any = None

    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
        return 0, {}

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        if action == 1:
            self.call()
        return 0, 0.0, False, False, {}


CALLS: dict[str, Callable[[AsyncEnvPool], Any]] = {
    "lane": lambda pool: (pool.async_reset_send(env_index=1), pool.async_reset_recv(env_index=1)),
    "batch": lambda pool: (pool.async_reset_send(env_index=[1]), pool.async_reset_recv()),
    "attribute": lambda pool: pool.unwrapped,
}


@pytest.mark.parametrize("call", CALLS)
def test_what_waits_for_the_loop_of_the_envs_is_refused_on_it(call: str) -> None:
    """It would wait for itself, and no other env would go on."""
    envs = [Calling(), Calling()]
    pool: Any = AsyncEnvPool([lambda env=env: env for env in envs], backend="asyncio")
    pool.reset()
    envs[0].call = lambda: CALLS[call](pool)
    pool.async_step_send(actions(1)[0], 0)
    with pytest.raises(RuntimeError, match="refused on the event loop of the envs"):
        pool.async_step_recv(env_index=0, timeout=PATIENCE)
    pool.shutdown(timeout=PATIENCE)


# ---------------------------------------------------------------- given what makes no sense

FOR_EVER = [math.inf, 1e300, 1e10]


@pytest.mark.parametrize("timeout", FOR_EVER)
def test_times_that_no_system_call_takes_are_for_ever(pool: Any, timeout: float) -> None:
    pool.async_step_send(actions(*range(NUM_ENVS)))
    assert len(pool.async_step_recv(2, max_get=2, timeout=timeout)) == 2
    assert len(pool.async_step_recv(timeout=timeout)) == NUM_ENVS - 2
    pool.async_step_send(actions(1)[0], 1)
    assert pool.async_step_recv(env_index=1, timeout=timeout)["env_index"] == 1
    pool.shutdown(timeout=timeout)
    other = AsyncEnvPool(["CartPole-v1"], backend=pool.backend, start_timeout=timeout, shutdown_timeout=timeout)
    assert other.reset().batch_size == (1,)
    other.close()


@pytest.mark.parametrize("name", ["start_timeout", "shutdown_timeout"])
def test_times_that_are_none_are_refused_at_once(name: str) -> None:
    for timeout, kind in ((-1.0, ValueError), (math.nan, ValueError), ("1", TypeError), (True, TypeError)):
        with pytest.raises(kind, match=rf"^{name}: got"):
            AsyncEnvPool(["CartPole-v1"], **{name: timeout})


def test_what_is_no_tensordict_at_next_is_refused_before_an_env_is_stepped(pool: Any) -> None:
    sent = actions(*range(NUM_ENVS))
    with pytest.raises(TypeError, match=r"^async_step_send: got a Tensor at 'next'"):
        pool.async_step_send(sent.clone().set("next", torch.ones(NUM_ENVS)))
    with pytest.raises(TypeError, match=r"^async_step_send: got a Tensor at 'next'"):
        pool.async_step_send(sent.clone().set("next", torch.ones(NUM_ENVS))[0], 0)
    pool.async_step_send(sent)
    assert len(pool.async_step_recv(NUM_ENVS)) == NUM_ENVS


def test_one_env_is_meant_by_all_rows_of_its_index(pool: Any) -> None:
    for index in ([[0, 1]], torch.tensor([[0, 1]])):
        with pytest.raises(ValueError, match="expected the same one in all rows"):
            pool.async_step_send(actions(0), index)
    pool.async_step_send(actions(0), [[1]])
    assert pool.async_step_recv()["env_index"].tolist() == [1]


def test_a_receive_whose_event_loop_was_closed_keeps_no_other_from_receiving() -> None:
    gate = threading.Event()

    class Gated(Calling):
        async def step(self, action: Any) -> Any:  # type: ignore[override]
            await asyncio.to_thread(gate.wait)
            return await super().step(action)

    pool: Any = AsyncEnvPool([Gated], backend="asyncio")
    pool.reset()
    pool.async_step_send(actions(0))
    loop = asyncio.new_event_loop()
    receiving = loop.create_task(pool.async_step_recv_async())
    loop.run_until_complete(asyncio.sleep(0))
    with pytest.raises(RuntimeError, match="another receive of batches is awaited"):
        pool.async_step_recv()
    loop.close()
    gate.set()
    assert not receiving.done()
    assert len(pool.async_step_recv(timeout=PATIENCE)) == 1
    receiving._log_destroy_pending = False  # type: ignore[attr-defined]
    pool.shutdown()
