"""The gymnasium face: ``gymnasium.vector`` environments over gymbridge's engine, by changing one import.

What else ``gymnasium.vector`` has (``VectorEnv``, ``VectorWrapper``, ``utils`` …) is here too, so that one import is
all that a program changes. ``TensorDictVectorEnv``, ``PoolVectorEnv`` and ``from_vector_env``, which need torch,
and ``AsyncVectorEnv`` are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from gymnasium.vector import (
    AutoresetMode,
    VectorActionWrapper,
    VectorEnv,
    VectorObservationWrapper,
    VectorRewardWrapper,
    VectorWrapper,
    utils,
)

from gymbridge.vector.registration import VectorizeMode, make_vec
from gymbridge.vector.sync_vector_env import SyncVectorEnv

if TYPE_CHECKING:
    from gymbridge.vector.as_tensordict_env import from_vector_env
    from gymbridge.vector.async_vector_env import AsyncVectorEnv
    from gymbridge.vector.pool_vector_env import PoolVectorEnv
    from gymbridge.vector.tensordict_vector_env import TensorDictVectorEnv

_HOMES = {
    "AsyncVectorEnv": "gymbridge.vector.async_vector_env",
    "PoolVectorEnv": "gymbridge.vector.pool_vector_env",
    "TensorDictVectorEnv": "gymbridge.vector.tensordict_vector_env",
    "from_vector_env": "gymbridge.vector.as_tensordict_env",
}
"""Public name that is imported late -> the module that defines it."""

__all__ = [
    "AsyncVectorEnv",
    "AutoresetMode",
    "PoolVectorEnv",
    "SyncVectorEnv",
    "TensorDictVectorEnv",
    "VectorActionWrapper",
    "VectorEnv",
    "VectorObservationWrapper",
    "VectorRewardWrapper",
    "VectorWrapper",
    "VectorizeMode",
    "from_vector_env",
    "make_vec",
    "utils",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gymbridge.vector' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
