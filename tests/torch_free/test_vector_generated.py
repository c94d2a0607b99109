"""Our vector envs give what gymnasium's ``SyncVectorEnv`` gives over generated spaces, infos, rewards and episodes."""

from __future__ import annotations

import copy
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from agreement import assert_same, with_final_obs_in_space
from generated_envs import Plan, PlannedEnv, makers, plans
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from space_strategies import HAS_DISCRETE_DTYPE, any_spaces, batchable, samples
from vector_classes import BOTH, travels, two_workers

from gymbridge.vector import SyncVectorEnv

travels(sys.modules[__name__])

MODES = tuple(AutoresetMode)
SLOW_TO_DRAW = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=150)

observation_spaces = any_spaces().filter(batchable)
action_spaces = any_spaces(min_items=1, max_leaves=4).filter(batchable)


def agree(
    plan: Plan, mode: AutoresetMode, seed: Any, num_envs: int, copied: bool, rounds: int = 12, cls: Any = SyncVectorEnv
) -> None:
    ours = cls(makers(plan, num_envs), copy=copied, autoreset_mode=mode)
    theirs = gym.vector.SyncVectorEnv(makers(plan, num_envs), copy=copied, autoreset_mode=mode)
    assert_same(ours.reset(seed=seed), theirs.reset(seed=seed), "reset")
    ours.action_space.seed(3)
    for number in range(rounds):
        actions = ours.action_space.sample()
        our = ours.step(actions)
        *their, infos = theirs.step(actions)
        infos = with_final_obs_in_space(infos, theirs.single_observation_space)
        if plan.own_arrays and "final_obs" in infos:  # gymnasium's final_obs is the env's array, overwritten by now
            for part in (our[-1], infos):
                part.pop("final_obs")
        assert_same(our, (*their, infos), f"step {number}")
        mask = our[2] | our[3]
        if mode is not AutoresetMode.DISABLED:
            mask = np.arange(num_envs) == number % 4
        if mask.any():
            options = {"reset_mask": mask, "level": number}
            seeds = [None if index % 2 else number for index in range(num_envs)]
            assert_same(
                ours.reset(seed=seeds, options=options),
                theirs.reset(seed=seeds, options=copy.copy(options)),
                f"reset after step {number}",
            )
    assert_same(ours.get_attr("calls"), theirs.get_attr("calls"), "what the envs were asked")
    ours.close()
    theirs.close()


seeds = st.one_of(st.integers(0, 1000), st.just([5, 6, 7]))


@SLOW_TO_DRAW
@given(plan=plans(observation_spaces), mode=st.sampled_from(MODES), seed=seeds, copied=st.booleans())
def test_observations_and_infos(plan: Plan, mode: AutoresetMode, seed: Any, copied: bool) -> None:
    agree(plan, mode, seed, 3, copied)


@SLOW_TO_DRAW
@given(plan=plans(st.just(spaces.Discrete(2)), action_spaces), mode=st.sampled_from(MODES))
def test_actions_reach_the_envs_as_gymnasium_hands_them_out(plan: Plan, mode: AutoresetMode) -> None:
    """Same types, dtypes, values and structure."""
    agree(plan, mode, 0, 2, True, rounds=4)


@settings(SLOW_TO_DRAW, max_examples=50)
@given(plan=plans(observation_spaces), mode=st.sampled_from(MODES), seed=seeds, copied=st.booleans())
def test_observations_and_infos_of_workers(plan: Plan, mode: AutoresetMode, seed: Any, copied: bool) -> None:
    agree(plan, mode, seed, 3, copied, rounds=6, cls=two_workers)


@settings(SLOW_TO_DRAW, max_examples=50)
@given(plan=plans(st.just(spaces.Discrete(2)), action_spaces), mode=st.sampled_from(MODES))
def test_actions_reach_the_envs_of_workers_as_gymnasium_hands_them_out(plan: Plan, mode: AutoresetMode) -> None:
    agree(plan, mode, 0, 2, True, rounds=4, cls=two_workers)


def shows(space: spaces.Space, observations: list[Any]) -> list[Any]:
    """Makers of envs that show these observations, one each."""

    class Shows(gym.Env[Any, Any]):
        observation_space = space
        action_space = spaces.Discrete(2)

        def __init__(self, index: int):
            self.index = index

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return observations[self.index], {}

    return [lambda index=index: Shows(index) for index in range(len(observations))]  # type: ignore[misc]


@SLOW_TO_DRAW
@given(space=any_spaces(max_leaves=4).filter(batchable), data=st.data())
def test_sampled_observations_come_back(space: spaces.Space, data: st.DataObject) -> None:
    """Whatever gymnasium's ``concatenate`` makes of two observations, ours are the same."""
    fns = shows(space, [data.draw(samples(space)) for _ in range(2)])
    assert_same(SyncVectorEnv(fns).reset(), gym.vector.SyncVectorEnv(fns).reset())


@BOTH
def test_longdouble_observations(cls: Any) -> None:
    """A dtype that gymnasium takes but cannot sample."""
    space = spaces.Box(-np.inf, np.inf, (2,), np.longdouble)
    fns = shows(space, [np.array([1, np.nan], np.longdouble) / 3, np.array([-0.0, np.inf], np.longdouble)])
    assert_same(cls(fns).reset(), gym.vector.SyncVectorEnv(fns).reset())


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 1, (2,), np.bool_),
        spaces.Box(-1, 1, (), np.float16),
        spaces.Box(-1, 1, (3, 0), np.float32),
        spaces.Discrete(3, start=-2, **({"dtype": np.int8} if HAS_DISCRETE_DTYPE else {})),
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, -1], [0, 7]]),
        spaces.MultiBinary((2, 2)),
        spaces.Dict(),
        spaces.Tuple([]),
        spaces.Tuple([spaces.Dict(), spaces.Tuple([spaces.Tuple([])])]),
        spaces.Dict(
            {"reward": spaces.Discrete(2), "_x": spaces.Dict({"reward": spaces.Discrete(3)}), "": spaces.Dict()}
        ),
        spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(3)})}),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@BOTH
def test_odd_spaces(cls: Any, space: spaces.Space, mode: AutoresetMode) -> None:
    agree(Plan(space, lengths=(1, 2)), mode, 0, 3, True, cls=cls)


@pytest.mark.parametrize("mode", MODES[1:2], ids=lambda mode: mode.value)
@BOTH
def test_final_obs_and_final_info_are_those_of_the_end(cls: Any, mode: AutoresetMode) -> None:
    """Also where the env writes its next observation and info into the same arrays."""
    box = spaces.Box(0, 9, (1,), np.int64)

    class InPlace(gym.Env[Any, Any]):
        observation_space = box
        action_space = spaces.Discrete(2)

        def __init__(self) -> None:
            self.array = np.zeros(1, np.int64)
            self.info: dict[str, Any] = {"inner": {"array": self.array}, "array": self.array}

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            self.array[:] = 0
            self.info["steps"] = 0
            return self.array, self.info

        def step(self, action: Any) -> Any:
            self.array += 1
            self.info["steps"] += 1
            return self.array, 0.0, bool(self.array[0] == 2), False, self.info

    envs = cls([InPlace, InPlace], autoreset_mode=mode)
    envs.reset()
    envs.step([0, 0])
    observation, *_, infos = envs.step([0, 0])
    assert observation.tolist() == [[0], [0]]
    assert [final.tolist() for final in infos["final_obs"]] == [[2], [2]]
    assert infos["final_info"]["array"].tolist() == [[2], [2]]
    assert infos["final_info"]["inner"]["array"].tolist() == [[2], [2]]
    assert infos["final_info"]["steps"].tolist() == [2, 2]
    assert infos["array"].tolist() == [[0], [0]]
    assert infos["steps"].tolist() == [0, 0]


def test_infos_that_envs_share_are_read_when_each_env_gives_them() -> None:
    """An info array that one env writes and another changes in the same call keeps each env's value."""
    shared = {"count": np.zeros(1, np.int64)}

    class Counts(PlannedEnv):
        def step(self, action: Any) -> Any:
            shared["count"] += 1
            return (*super().step(action)[:4], shared)

    plan = Plan(spaces.Discrete(2))
    envs = SyncVectorEnv([lambda: Counts(plan)] * 3)
    envs.reset(seed=0)
    assert envs.step([0, 0, 0])[-1]["count"].tolist() == [[1], [2], [3]]
