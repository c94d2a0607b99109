"""Samples that are no arrays: whose they are, and how many; what they are, ``test_vector_spaces`` compares."""

from __future__ import annotations

import sys
from typing import Any

import custom_spaces
import gymnasium as gym
import pytest
from custom_spaces import Unheard
from vector_classes import BOTH, travels
from zoo import ObjectEnv

travels(sys.modules[__name__], custom_spaces)


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

    envs = cls([lambda: Changing(Unheard())])
    envs.reset(seed=0)
    first = envs.step([0])[0]
    first[0]["list"].append("mine")
    second = envs.step([0])[0]
    assert first == ({"choice": 0, "list": [1, "mine"]},)
    assert second == ({"choice": 0, "list": [2]},)


@BOTH
def test_too_few_objects_are_refused(cls: Any) -> None:
    envs = cls([lambda: ObjectEnv(gym.spaces.Text(5))] * 3)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="action: got 2 actions, expected 3, one for each env"):
        envs.step(("a", "b"))
