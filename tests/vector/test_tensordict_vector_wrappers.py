"""gymnasium's vector wrappers give over a ``TensorDictVectorEnv`` what they give over gymnasium's own vector envs."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import pytest
import torch
import vector_wrappers
from agreement import assert_same
from gymnasium.vector import AutoresetMode
from vector_classes import travels
from vector_wrappers import CASES, KeepsOptions, WrapperCase, assert_same_trace, require_packages, stand_ins, trace

from gymbridge import AsyncEnvPool, ParallelEnv, SerialEnv
from gymbridge.envs import GymEnv
from gymbridge.vector import TensorDictVectorEnv

__all__ = ["stand_ins"]

travels(sys.modules[__name__], vector_wrappers)

MODES = tuple(AutoresetMode)


def sorted_keys(value: Any) -> Any:
    """With the keys of dicts in order: gymnasium's infos have them in that in which the envs came upon them."""
    if isinstance(value, dict):
        return {key: sorted_keys(value[key]) for key in sorted(value)}
    return type(value)(sorted_keys(part) for part in value) if isinstance(value, (list, tuple)) else value


def pool(num_envs: int, makers: list[Any]) -> AsyncEnvPool:
    return AsyncEnvPool(makers)


@pytest.mark.every(3, "batch", "case")
@pytest.mark.parametrize(
    ("batch", "mode"),
    [*((SerialEnv, mode) for mode in MODES), (ParallelEnv, MODES[0]), (pool, MODES[0])],
    ids=lambda it: getattr(it, "__name__", getattr(it, "value", "")),
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_wrapper_gives_what_it_gives_over_gymnasiums_envs(
    batch: Any, case: WrapperCase, mode: AutoresetMode, stand_ins: dict[str, Any]
) -> None:
    require_packages(case)
    makers = case.makers(3)
    theirs = trace(case, KeepsOptions(gym.vector.SyncVectorEnv(makers, autoreset_mode=mode)))
    their_videos = dict(stand_ins)
    stand_ins.clear()
    infos = GymEnv(makers[0], info="auto").observation_spec["info"].exclude("_mask")
    envs = [lambda make=make: GymEnv(make(), info=infos, reward_dtype=torch.float64) for make in makers]
    options = {"num_workers": 2} if batch is ParallelEnv else {}
    ours = trace(case, TensorDictVectorEnv(batch(3, envs, **options), autoreset_mode=mode))
    assert_same_trace(case, mode, sorted_keys(ours), sorted_keys(theirs))
    assert_same(stand_ins, their_videos)
    assert bool(their_videos) == (case.name == "RecordVideo")
