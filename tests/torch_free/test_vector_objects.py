"""Spaces whose samples are no arrays: our vector envs hand them out and take them as gymnasium's does."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import pytest
from agreement import assert_same
from vector_classes import BOTH, travels
from zoo import OBJECT_SPACES, CustomSpace, ObjectEnv

travels(sys.modules[__name__])


SPACES = {**OBJECT_SPACES, "custom": CustomSpace()}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("name", SPACES)
@BOTH
def test_objects_are_those_of_gymnasium(cls: Any, name: str, mode: str) -> None:
    space = SPACES[name]
    makers = [lambda: ObjectEnv(space)] * 3
    theirs = gym.vector.SyncVectorEnv(makers, autoreset_mode=mode)
    ours = cls(makers, autoreset_mode=mode)
    assert_same(ours.reset(seed=1), theirs.reset(seed=1))
    theirs.action_space.seed(3)
    for index in range(9):
        actions = theirs.action_space.sample()
        mine, expected = ours.step(actions), theirs.step(actions)
        assert_same(mine, expected)
        if mode == "Disabled" and (expected[2] | expected[3]).any():
            assert_same(ours.reset(seed=index), theirs.reset(seed=index))
    assert_same(ours.get_attr("actions"), theirs.get_attr("actions"))


@BOTH
def test_an_object_handed_out_is_the_callers(cls: Any) -> None:
    """What the env does to it later, or the caller, is not seen by the other."""

    class Changing(ObjectEnv):
        def reset(self, **kwargs: Any) -> Any:
            self.observation = {"choice": 0, "list": [0]}
            return self.observation, {}

        def step(self, action: Any) -> Any:
            self.observation["list"][0] += 1
            return self.observation, 1.0, False, False, {}

    envs = cls([lambda: Changing(CustomSpace())])
    envs.reset(seed=0)
    first = envs.step([0])[0]
    first[0]["list"].append("mine")
    second = envs.step([0])[0]
    assert first == ({"choice": 0, "list": [1, "mine"]},)
    assert second == ({"choice": 0, "list": [2]},)


@BOTH
def test_too_few_objects_are_refused(cls: Any) -> None:
    space = SPACES["text"]
    envs = cls([lambda: ObjectEnv(space)] * 3)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="action: got 2 actions, expected 3, one for each env"):
        envs.step(("a", "b"))
