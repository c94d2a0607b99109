"""The vector env classes that the same tests run over, and what their workers need to get the tests' envs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import cloudpickle
import generated_envs
import gymnasium as gym
import pytest
import zoo

from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv

Maker = Callable[[], gym.Env]


def two_workers(env_fns: Sequence[Maker], *args: Any, **kwargs: Any) -> AsyncVectorEnv:
    """An ``AsyncVectorEnv`` of two workers, or of one where there is one env."""
    return AsyncVectorEnv(env_fns, *args, **{"num_workers": min(2, max(1, len(env_fns))), **kwargs})


CLASSES = [pytest.param(SyncVectorEnv, id="sync"), pytest.param(two_workers, id="async")]

BOTH = pytest.mark.parametrize("cls", CLASSES)


def travels(*modules: ModuleType) -> None:
    """Has what modules define go to workers by value, so that these need not import pytest and hypothesis."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)


travels(generated_envs, zoo)
