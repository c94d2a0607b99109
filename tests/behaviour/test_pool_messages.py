"""What pools that are misused say: what is wrong, in the user's words, and what to do."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import gymnasium as gym
import pytest
import torch
from gymnasium.error import AlreadyPendingCallError
from pools import BACKENDS
from tensordict import TensorDict

from gymbridge import AsyncEnvPool, ParallelEnv
from gymbridge.envs import EnvBase
from gymbridge.errors import EnvOutputError, WorkerDiedError
from gymbridge.specs import Categorical, Composite, Unbounded
from gymbridge.vector import PoolVectorEnv

cloudpickle.register_pickle_by_value(sys.modules[__name__])

RECEIVE_FIRST = r"have work under way, or results that were not received: receive these first$"


@pytest.fixture(params=BACKENDS, ids=str)
def pool(request: pytest.FixtureRequest) -> Iterator[Any]:
    own: Any = AsyncEnvPool(["CartPole-v1"] * 3, **request.param.options)
    yield own
    own.shutdown()


def test_a_call_of_all_envs_is_refused_by_its_own_name(pool: Any) -> None:
    """Also by an engine that knows it as something else."""
    td = pool.rand_action(pool.reset())
    pool.async_reset_send(env_index=[1])
    for call, refused in (
        ("reset", pool.reset),
        ("step", lambda: pool.step(td)),
        ("step_and_maybe_reset", lambda: pool.step_and_maybe_reset(td)),
    ):
        with pytest.raises(RuntimeError, match=rf"^{call}: refused while envs \[1\] {RECEIVE_FIRST}"):
            refused()


def test_work_for_a_busy_env_is_refused_with_what_to_do(pool: Any) -> None:
    pool.async_reset_send()
    with pytest.raises(RuntimeError, match=rf"^async_reset_send: envs \[1\] {RECEIVE_FIRST}"):
        pool.async_reset_send(env_index=[1])
    with pytest.raises(RuntimeError, match=rf"^to: refused while envs \[0, 1, 2\] {RECEIVE_FIRST}"):
        pool.to("cpu")


def test_a_vector_env_refuses_work_for_a_busy_env_with_what_to_do() -> None:
    with PoolVectorEnv(AsyncEnvPool(["CartPole-v1"] * 2)) as envs:
        envs.async_reset()
        with pytest.raises(AlreadyPendingCallError, match=r"results that were not received: recv them first$"):
            envs.async_reset([1])


def test_a_receive_of_too_much_tells_what_else_is_under_way(pool: Any) -> None:
    """One that has the wrong verb, or no lane, is seen at once."""
    nothing = "async_step_recv: got min_get=1, expected at most 0, the envs that were sent a step"
    with pytest.raises(RuntimeError, match=f"^{nothing}$"):
        pool.async_step_recv()
    pool.reset()
    pool.async_reset_send(env_index=[0, 2])
    pool.async_step_send(TensorDict(action=torch.tensor(0)), env_index=1)
    told = r"envs \[0, 2\] a reset, envs \[1\] work in lanes, which are received with env_index"
    with pytest.raises(RuntimeError, match=f"^{nothing}; others were sent other work: {told}$"):
        pool.async_step_recv()


def test_a_tensordict_of_another_size_is_refused_with_whose_was_expected(pool: Any) -> None:
    """A policy that makes a TensorDict of its own may forget the env_index."""
    pool.reset()
    two = TensorDict(action=torch.zeros(2, dtype=torch.int64), batch_size=[2])
    size = r"^async_step_send: got a TensorDict of batch size \[2\], expected "
    with pytest.raises(ValueError, match=size + r"\[3\], that of all envs, or an env_index$"):
        pool.async_step_send(two)
    with pytest.raises(ValueError, match=size + r"\[1\], that of envs \[1\]$"):
        pool.async_step_send(two, env_index=[1])
    with pytest.raises(ValueError, match=size + r"\[\], that of the env of a lane$"):
        pool.async_step_send(two, env_index=1)


def test_envs_that_do_not_agree_are_told_apart_in_the_same_words() -> None:
    pool = AsyncEnvPool(["CartPole-v1", "Pendulum-v1"])
    told = (
        r"env 1 has observation\.observation of shape \[3\] and torch\.float32, env 0 has one of shape \[4\] and "
        r"torch\.float32; "
    )
    with pytest.raises(ValueError, match=told):
        pool.reset()
    pool.shutdown()


async def nothing() -> None: ...


def a_coroutine() -> Any:
    """One that does not warn that nobody awaited it."""
    coroutine = nothing()
    coroutine.close()
    return coroutine


class CoroutineEnv(gym.Env[Any, Any]):
    """Its methods are coroutines, of those that are named."""

    observation_space = gym.spaces.Discrete(3)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, *names: str) -> None:
        self.names = names

    def reset(self, **_: Any) -> Any:
        return a_coroutine() if "reset" in self.names else (0, {})

    def step(self, _: Any) -> Any:
        return a_coroutine() if "step" in self.names else (0, 0.0, False, False, {})


@pytest.mark.parametrize("name", ["reset", "step"])
@pytest.mark.parametrize("backend", ["threading", "multiprocessing"])
def test_an_env_with_coroutines_is_told_which_backend_awaits_them(backend: str, name: str) -> None:
    pool = AsyncEnvPool([lambda: CoroutineEnv(name)], backend=backend)
    with pytest.raises(EnvOutputError, match=rf"{name}: got a coroutine, which only .*backend='asyncio'\) awaits"):
        pool.rollout(1)
    pool.shutdown()


class CoroutineTensorDictEnv(EnvBase):
    """The same as a TensorDict env."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names
        self.observation_spec = Composite(x=Unbounded(()))
        self.action_spec = Categorical(3)
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: Any = None, **_: Any) -> Any:
        return a_coroutine() if "reset" in self.names else TensorDict({"x": torch.zeros(())}, [])

    def _step(self, tensordict: Any) -> Any:
        return a_coroutine()

    def _set_seed(self, seed: Any) -> None:
        pass


@pytest.mark.parametrize("name", ["reset", "step"])
def test_a_tensordict_env_with_coroutines_is_told_which_backend_awaits_them(name: str) -> None:
    pool = AsyncEnvPool([lambda: CoroutineTensorDictEnv(name)])
    with pytest.raises(EnvOutputError, match=rf"_{name}: got a coroutine, which only .*backend='asyncio'\) awaits"):
        pool.rollout(1)
    pool.shutdown()


@pytest.mark.parametrize("backend", ["threading", "multiprocessing"])
@pytest.mark.parametrize("verb", ["reset", "step", "step_and_maybe_reset"])
def test_a_backend_without_awaited_receives_says_which_has_them(backend: str, verb: str) -> None:
    """And starts no env to look for them."""
    pool: Any = AsyncEnvPool([lambda: pytest.fail("an env was made")], backend=backend)
    name = f"async_{verb}_recv_async"
    with pytest.raises(AttributeError, match=f"AsyncEnvPool has no {name}: .*backend='asyncio'") as raised:
        getattr(pool, name)
    assert raised.value.name == name
    assert not hasattr(pool, name)


class FatalEnv(gym.Env[Any, Any]):
    """Its steps end the worker."""

    observation_space = gym.spaces.Discrete(3)
    action_space = gym.spaces.Discrete(3)

    def reset(self, **_: Any) -> Any:
        return 0, {}

    def step(self, _: Any) -> Any:
        sys.exit(3)


ENGINES: dict[str, Callable[[], Any]] = {
    **{str(backend): lambda backend=backend: AsyncEnvPool([FatalEnv], **backend.options) for backend in BACKENDS},
    "ParallelEnv": lambda: ParallelEnv(1, FatalEnv, serial_for_single=False),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_death_that_is_told_again_tells_of_the_latest_call_alone(engine: str) -> None:
    """One error for all calls would hold their frames, with what the caller has there, and show them one in another."""
    env = ENGINES[engine]()
    td = env.rand_action(env.reset())
    with pytest.raises(WorkerDiedError, match="exit code 3") as first:
        env.step(td)
    told = []
    for _ in range(3):
        with pytest.raises(WorkerDiedError, match="exit code 3") as again:
            env.reset()
        assert type(again.value.__cause__) is type(first.value.__cause__)
        told.append(len(traceback.extract_tb(again.value.__traceback__)))
    assert told[0] == told[1] == told[2]
    env.close()
