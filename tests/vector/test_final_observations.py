"""With ``SAME_STEP``, final observations and infos are what each env says that it returned, for every kind of space."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import custom_spaces
import gymnasium as gym
import numpy as np
import pytest
from agreement import as_in_space, assert_same
from custom_spaces import Unheard
from fuzzing import examples
from generated_envs import Plan, PlannedEnv
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from space_strategies import any_spaces, batchable, leaf_spaces, object_spaces
from vector_classes import travels, two_workers
from zoo import OBJECT_SPACES

from gymbridge import AsyncEnvPool, ParallelEnv, SerialEnv
from gymbridge.envs import GymEnv
from gymbridge.vector import SyncVectorEnv, TensorDictVectorEnv

travels(sys.modules[__name__], custom_spaces)

BOX = spaces.Box(-1, 1, (2,), np.float32)


KINDS: dict[str, spaces.Space] = {
    "box": BOX,
    "image": spaces.Box(0, 255, (2, 3, 1), np.uint8),
    "bool_box": spaces.Box(0, 1, (2,), np.bool_),
    "half_scalar": spaces.Box(-1, 1, (), np.float16),
    "empty_box": spaces.Box(-1, 1, (0,), np.float64),
    "discrete": spaces.Discrete(5, start=-2),
    "multi_discrete": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "dict": spaces.Dict(a=BOX, reward=spaces.Discrete(3), inner=spaces.Dict(b=spaces.MultiBinary(2))),
    "tuple": spaces.Tuple([BOX, spaces.Tuple([spaces.Discrete(3)]), spaces.Dict(x=spaces.Box(0, 9, (), np.int64))]),
    **OBJECT_SPACES,
    "text_in_tuple": spaces.Tuple([spaces.Text(4), spaces.Discrete(2)]),
    "sequence_of_dicts": spaces.Sequence(spaces.Dict(a=BOX, b=spaces.Discrete(3))),
    "one_of_sequences": spaces.OneOf([spaces.Sequence(spaces.Discrete(3)), BOX]),
    "custom": Unheard(),
    "custom_in_dict": spaces.Dict(a=Unheard(), b=BOX),
}
CUSTOM = ("custom", "custom_in_dict")


class RecordsEnv(PlannedEnv):
    """Lists copies of the observations and infos that it returned.

    Attributes:
        returned: one list an episode, of pairs of observation and info.
    """

    def __init__(self, plan: Plan, index: int):
        super().__init__(plan, index)
        self.returned: list[list[tuple[Any, dict[str, Any]]]] = []
        self._info_of_mine: dict[str, Any] = {"array": np.zeros(2, np.int64), "nested": {}}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        self.returned.append([copy.deepcopy((observation, info))])
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        observation, *outcome, info = super().step(action)
        self.returned[-1].append(copy.deepcopy((observation, info)))
        return (observation, *outcome, info)  # type: ignore[return-value]

    def _info(self, kind: int, infos: Any) -> dict[str, Any]:
        number = 10 * self._episode + self._step
        info = self._info_of_mine if self.plan.own_arrays else {"array": np.zeros(2, np.int64), "nested": {}}
        info["array"][:] = number
        info["nested"]["half"] = number / 2
        info["number"], info["word"] = number, f"word {number}"
        return info


def plan_of(space: spaces.Space, reuses: bool) -> Plan:
    ends = ((True, False), (False, True), (True, True))
    return Plan(space, lengths=(2, 1, 3), ends=ends, own_arrays=reuses)


def sync(fns: list[Callable[[], gym.Env]]) -> Any:
    return SyncVectorEnv(fns, autoreset_mode="SameStep")


def workers(fns: list[Callable[[], gym.Env]]) -> Any:
    return two_workers(fns, autoreset_mode="SameStep")


def serial(fns: list[Callable[[], gym.Env]]) -> Any:
    env = SerialEnv(len(fns), [lambda fn=fn: GymEnv(fn, info="auto") for fn in fns])  # type: ignore[misc]
    return TensorDictVectorEnv(env, autoreset_mode="SameStep")


def parallel(fns: list[Callable[[], gym.Env]]) -> Any:
    env = ParallelEnv(len(fns), [lambda fn=fn: GymEnv(fn, info="auto") for fn in fns], num_workers=2)  # type: ignore[misc]
    return TensorDictVectorEnv(env, autoreset_mode="SameStep")


def pool(fns: list[Callable[[], gym.Env]]) -> Any:
    env = AsyncEnvPool([lambda fn=fn: GymEnv(fn, info="auto") for fn in fns])  # type: ignore[misc]
    return TensorDictVectorEnv(env, autoreset_mode="SameStep")


def records(envs: Any) -> Any:
    """What each env says that it returned."""
    return envs.env.returned if isinstance(envs, TensorDictVectorEnv) else envs.get_attr("returned")


def assert_finals_are_those_of_the_envs(make: Any, space: spaces.Space, reuses: bool, num_steps: int = 7) -> None:
    plan = plan_of(space, reuses)
    envs = make([lambda index=index: RecordsEnv(plan, index) for index in range(3)])
    try:
        envs.reset(seed=4)
        num_ended = 0
        finals = []
        for _ in range(num_steps):
            *_, terminated, truncated, infos = envs.step(np.zeros(3, np.int64))
            ended = terminated | truncated
            num_ended += int(ended.sum())
            assert_same(infos.get("_final_obs", np.zeros(3, np.bool_)), ended, "_final_obs")
            assert_same(infos.get("_final_info", np.zeros(3, np.bool_)), ended, "_final_info")
            for row, record in enumerate(records(envs)):
                if not ended[row]:
                    assert "final_obs" not in infos or infos["final_obs"][row] is None
                    continue
                assert len(record[-1]) == 1, "the env has been reset in the same step"
                observation, info = record[-2][-1]
                assert_same(infos["final_obs"][row], as_in_space(space, observation), f"final_obs[{row}]")
                assert_infos_have(infos["final_info"], info, row)
                assert_infos_have(infos, record[-1][0][1], row)
                finals.append((infos["final_obs"][row], copy.deepcopy(infos["final_obs"][row])))
        assert num_ended >= num_steps
        for final, as_it_was in finals:
            assert_same(final, as_it_was, "a final observation that was handed out before")
    finally:
        envs.close()


def assert_infos_have(infos: dict[str, Any], info: dict[str, Any], row: int) -> None:
    """Fails unless the row of the batch's infos is the env's info."""
    for key, value in info.items():
        assert infos[f"_{key}"][row], key
        if isinstance(value, dict):
            assert_infos_have(infos[key], value, row)
        else:
            assert np.array_equal(infos[key][row], value), f"{key}: {infos[key][row]!r}, expected {value!r}"
    assert not {key for key in infos if key[0] != "_"} - info.keys() - {"final_obs", "final_info"}


REUSES = pytest.mark.parametrize("reuses", [False, True], ids=["fresh", "reuses"])


@pytest.mark.every(2, "make", "name", "reuses")
@REUSES
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("make", [sync, serial, pool])
def test_each_kind_of_space(make: Any, name: str, reuses: bool) -> None:
    """Also where an env's reset writes into the observation and the info that ended the episode before."""
    if make in (serial, pool) and name in CUSTOM:
        pytest.skip("a TensorDict has no place for a custom space, before one is registered")
    assert_finals_are_those_of_the_envs(make, KINDS[name], reuses)


@REUSES
@pytest.mark.parametrize("make", [workers, parallel])
def test_each_kind_of_space_in_workers(make: Any, reuses: bool) -> None:
    """The same with all kinds in one, since workers take their time to start."""
    kinds = {name: space for name, space in KINDS.items() if make is workers or name not in CUSTOM}
    assert_finals_are_those_of_the_envs(make, spaces.Dict(kinds), reuses)


SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=examples(25))
leaves = st.one_of(leaf_spaces(), object_spaces())
any_space = st.one_of(leaves, any_spaces(leaves=leaves, min_items=1)).filter(batchable)


@pytest.mark.parametrize("make", [sync, serial, pool])
def test_generated_spaces(make: Any) -> None:
    """The same over any space."""

    @SETTINGS
    @given(space=any_space, reuses=st.booleans())
    def agree(space: spaces.Space, reuses: bool) -> None:
        assert_finals_are_those_of_the_envs(make, space, reuses, num_steps=4)

    agree()
