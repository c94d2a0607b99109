"""``make_vec`` against ``gymnasium.make_vec``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from agreement import assert_same
from generated_envs import Plan, PlannedEnv
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from vector_classes import travels

from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv, VectorizeMode, make_vec

travels(sys.modules[__name__])


class Registered(PlannedEnv):
    def __init__(self, size: int = 2, **kwargs: Any):
        super().__init__(Plan(spaces.Box(0, 9, (size,), np.int64)), **kwargs)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    ids = ("gymbridge-tests/Planned-v0", "gymbridge-tests/VectorOnly-v0")
    gym.register(ids[0], entry_point=Registered, max_episode_steps=2, kwargs={"size": 3})
    gym.register(ids[1], vector_entry_point=lambda num_envs, **kwargs: SyncVectorEnv([Registered] * num_envs))
    yield
    for id in ids:
        del gym.registry[id]


def twice(reward: Any) -> Any:
    return 2 * reward


def double(env: gym.Env) -> gym.Env:
    return gym.wrappers.TransformReward(env, twice)


CALLS: tuple[dict[str, Any], ...] = (
    {"id": "CartPole-v1"},
    {"id": "CartPole-v1", "num_envs": 3},
    {"id": "CartPole-v1", "num_envs": 2, "max_episode_steps": 4},
    {"id": "CartPole-v1", "num_envs": 2, "sutton_barto_reward": True},
    {"id": "CartPole-v1", "num_envs": 2, "render_mode": "rgb_array"},
    {"id": "CartPole-v1", "num_envs": 2, "wrappers": (double, gym.wrappers.TimeAwareObservation)},
    {"id": "CartPole-v1", "num_envs": 2, "vector_kwargs": {"autoreset_mode": "SameStep", "copy": False}},
    {"id": "gymbridge-tests/Planned-v0", "num_envs": 2},
    {"id": "gymbridge-tests/Planned-v0", "num_envs": 2, "size": 4, "index": 1},
    {"id": "gymnasium.envs.classic_control:CartPole-v1", "num_envs": 2},
)


@pytest.mark.parametrize("kwargs", CALLS, ids="-".join)
@pytest.mark.parametrize("mode", ["sync", VectorizeMode.SYNC])
def test_the_result_is_gymnasiums(kwargs: dict[str, Any], mode: Any) -> None:
    ours = make_vec(**kwargs, vectorization_mode=mode)
    theirs = gym.make_vec(**kwargs, vectorization_mode=mode)
    assert type(ours) is SyncVectorEnv
    assert ours.spec == theirs.spec
    assert ours.spec is not None
    assert theirs.spec is not None
    assert ours.spec.kwargs == theirs.spec.kwargs
    assert repr(ours) == repr(theirs)
    assert ours.metadata == theirs.metadata
    assert ours.render_mode == theirs.render_mode
    assert [env.spec for env in ours.envs] == [env.spec for env in theirs.envs]  # type: ignore[attr-defined]
    assert [str(env) for env in ours.envs] == [str(env) for env in theirs.envs]  # type: ignore[attr-defined]
    assert_same(ours.reset(seed=1), theirs.reset(seed=1))
    actions = ours.action_space.sample()
    for _ in range(6):
        assert_same(ours.step(actions)[:4], theirs.step(actions)[:4])
    ours.close(), theirs.close()


@pytest.mark.parametrize("kwargs", CALLS, ids="-".join)
def test_a_vector_env_can_be_made_again_from_its_spec(kwargs: dict[str, Any]) -> None:
    """What the spec says wins over the arguments, as in gymnasium."""
    first = make_vec(**kwargs, vectorization_mode="sync")
    for make in (make_vec, gym.make_vec):
        again: Any = make(first.spec, num_envs=kwargs.get("num_envs", 1), vectorization_mode="async")
        assert again.spec == first.spec
        assert again.spec.kwargs == first.spec.kwargs  # type: ignore[union-attr]
        assert again.num_envs == first.num_envs
        assert again.autoreset_mode is first.autoreset_mode  # type: ignore[attr-defined]
        assert again.single_observation_space == first.single_observation_space
        again.close()
    first.close()


def test_the_callers_spec_stays_as_it_is() -> None:
    spec = gym.spec("gymbridge-tests/Planned-v0")
    make_vec(spec, 2, "sync", size=4)
    assert spec.kwargs == {"size": 3}


@pytest.mark.skipif(sys.platform == "win32", reason="there are no worker processes on Windows")
@pytest.mark.parametrize("mode", [{}, {"vectorization_mode": "async"}, {"vectorization_mode": VectorizeMode.ASYNC}])
def test_async_is_the_default_and_knows_ids_that_only_this_process_has(mode: dict[str, Any]) -> None:
    ours: Any = make_vec("gymbridge-tests/Planned-v0", 2, size=4, **mode)
    theirs: Any = gym.make_vec("gymbridge-tests/Planned-v0", 2, size=4, vectorization_mode="async")
    assert type(ours) is AsyncVectorEnv
    assert ours.spec == theirs.spec
    assert ours.spec.kwargs == theirs.spec.kwargs
    assert repr(ours) == repr(theirs)
    assert_same(ours.reset(seed=1), theirs.reset(seed=1))
    ours.close(), theirs.close()


def test_the_vector_class_of_the_env() -> None:
    ours: Any = make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point", sutton_barto_reward=True)
    theirs: Any = gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point", sutton_barto_reward=True)
    assert type(ours) is type(theirs)
    assert ours.spec == theirs.spec
    assert ours.spec.kwargs == theirs.spec.kwargs
    assert_same(ours.reset(seed=1), theirs.reset(seed=1))


def test_no_mode_is_the_envs_own_class_or_sync() -> None:
    assert type(make_vec("CartPole-v1", 2, None)) is type(gym.make_vec("CartPole-v1", 2))
    assert type(make_vec("Acrobot-v1", 2, None)) is SyncVectorEnv


def test_further_arguments_reach_the_vector_env() -> None:
    envs: Any = make_vec("CartPole-v1", 2, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED})
    assert envs.autoreset_mode is AutoresetMode.DISABLED
    with pytest.raises(TypeError, match="shared_memory"):
        make_vec("CartPole-v1", 2, "sync", vector_kwargs={"shared_memory": True})


@pytest.mark.parametrize(
    "call",
    [
        lambda make: make("NoSuch-v0", 2, vectorization_mode="sync"),
        lambda make: make("CartPole-v77", 2, vectorization_mode="sync"),
        lambda make: make("no_such_module:CartPole-v1", 2, vectorization_mode="sync"),
        lambda make: make(3, 2, vectorization_mode="sync"),
        lambda make: make("CartPole-v1", 2, vectorization_mode="both"),
        lambda make: make("CartPole-v1", 2, vectorization_mode="sync", no_such_argument=1),
        lambda make: make("gymbridge-tests/VectorOnly-v0", 2, vectorization_mode="sync"),
        lambda make: make("Acrobot-v1", 2, vectorization_mode="vector_entry_point"),
        lambda make: make("CartPole-v1", 2, vectorization_mode="vector_entry_point", vector_kwargs={"copy": True}),
        lambda make: make("CartPole-v1", 2, vectorization_mode="vector_entry_point", wrappers=(double,)),
    ],
)
def test_errors_are_of_gymnasiums_types(call: Callable[[Any], Any]) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - whatever it is
        call(gym.make_vec)
    with pytest.raises(type(theirs.value)) as ours:
        call(make_vec)
    assert type(ours.value) is type(theirs.value)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(gym.error.Error, match=r"id: got 3 of type int, expected a str or an EnvSpec"):
        make_vec(3, 2, "sync")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"vectorization_mode: got 'both', expected one of \['async', 'sync', "):
        make_vec("CartPole-v1", 2, "both")
    with pytest.raises(gym.error.Error, match=r"gymbridge-tests/VectorOnly-v0 has no entry point"):
        make_vec("gymbridge-tests/VectorOnly-v0", 2, "sync")


def test_an_unregistered_spec() -> None:
    spec = EnvSpec("gymbridge-tests/Unregistered-v0", entry_point=Registered, kwargs={"size": 5})
    envs = make_vec(spec, 2, "sync")
    assert envs.single_observation_space.shape == (5,)


@pytest.mark.parametrize(
    ("num_envs", "error", "message"),
    [
        (0, ValueError, "num_envs: got 0, expected at least 1"),
        (-1, ValueError, "num_envs: got -1, expected at least 1"),
        ("2", TypeError, "num_envs: got '2' of type str, expected an int"),
        (2.0, TypeError, "num_envs: got 2.0 of type float, expected an int"),
        (None, TypeError, "num_envs: got None"),
    ],
)
@pytest.mark.parametrize("mode", ["sync", "vector_entry_point", "async", None])
def test_a_number_of_envs_that_is_none(num_envs: Any, error: type[Exception], message: str, mode: Any) -> None:
    with pytest.raises(error, match=message):
        make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode=mode)
