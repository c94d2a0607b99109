"""Envs that are well have no fault: those of the other tests, and gymnasium's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from own_envs import OwnBatch
from tensordict_zoo import TENSORDICT_ENVS
from zoo import OBJECT_SPACES, CountingEnv, DictEnv, ObjectEnv

from gymbridge import SerialEnv
from gymbridge.contract import check
from gymbridge.envs import GymEnv

WARNINGS = {
    *("no-end", "seed-ignored", "reset-carries-over", "space-by-message"),
    *("state-not-written",),
}
"""What there is to know of some of them: they have no end, no randomness, or count their episodes."""

IDS = [
    env_id
    for env_id, spec in gym.registry.items()
    if str(spec.entry_point).startswith(("gymnasium.envs.classic_control", "gymnasium.envs.toy_text"))
]

OURS: dict[str, Callable[[], Any]] = {
    "counting": CountingEnv,
    "continuous": partial(CountingEnv, continuous=True),
    "dict": DictEnv,
    **{name: partial(ObjectEnv, space) for name, space in OBJECT_SPACES.items()},
    "own batch": lambda: OwnBatch([CountingEnv] * 2),
    "a GymEnv": partial(GymEnv, "CartPole-v1"),
    "a batch": lambda: SerialEnv(2, "CartPole-v1"),
}

IN_WORKERS_TOO = ("dict", "nested", "a GymEnv", "a batch", "groups alone", "dynamic shape", "strings", "batched")


def require_well(env: Any, name: str, num_steps: int) -> None:
    workers = name in IN_WORKERS_TOO
    report = check(env, num_steps=num_steps, workers=workers)
    assert not report.errors, "\n".join(map(str, report.errors))
    assert {fault.code for fault in report.warnings} <= WARNINGS, "\n".join(map(str, report.warnings))
    masks = "masks: each entry depends on the seed"
    assert set(report.not_checked) - {masks} == (set() if workers else {"worker processes: as was asked for"})


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasiums_own(env_id: str) -> None:
    require_well(env_id, env_id, 100)


@pytest.mark.parametrize("name", OURS)
def test_ours(name: str) -> None:
    require_well(OURS[name], name, 40)


@pytest.mark.parametrize("name", TENSORDICT_ENVS)
def test_tensordict_envs(name: str) -> None:
    require_well(partial(TENSORDICT_ENVS[name], 1), name, 20)


def test_there_are_some() -> None:
    assert len(IDS) >= 8
    assert {*IN_WORKERS_TOO} <= {*OURS, *TENSORDICT_ENVS}
