"""gymbridge: one batched-environment engine with two faces, TensorDict rollouts and gymnasium vector envs.

Public names are imported when they are first used, so that ``import gymbridge`` costs neither torch nor tensordict.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0.dev0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # quiet unless the program asks for it

if TYPE_CHECKING:
    # `as`: type checkers take what is imported under its own name for public.
    from gymbridge import contract as contract
    from gymbridge import engine as engine
    from gymbridge import envs as envs
    from gymbridge import errors as errors
    from gymbridge import spaces as spaces
    from gymbridge import specs as specs
    from gymbridge import vector as vector
    from gymbridge.async_env_pool import AsyncEnvPool as AsyncEnvPool
    from gymbridge.async_env_pool import AsyncioAsyncEnvPool as AsyncioAsyncEnvPool
    from gymbridge.async_env_pool import ProcessorAsyncEnvPool as ProcessorAsyncEnvPool
    from gymbridge.async_env_pool import ThreadingAsyncEnvPool as ThreadingAsyncEnvPool
    from gymbridge.batched import BatchedEnvBase as BatchedEnvBase
    from gymbridge.batched import SerialEnv as SerialEnv
    from gymbridge.envs.dead_steps import valid_transitions as valid_transitions
    from gymbridge.parallel_env import ParallelEnv as ParallelEnv

_HOMES = {
    "AsyncEnvPool": "gymbridge.async_env_pool",
    "AsyncioAsyncEnvPool": "gymbridge.async_env_pool",
    "BatchedEnvBase": "gymbridge.batched",
    "ParallelEnv": "gymbridge.parallel_env",
    "ProcessorAsyncEnvPool": "gymbridge.async_env_pool",
    "SerialEnv": "gymbridge.batched",
    "ThreadingAsyncEnvPool": "gymbridge.async_env_pool",
    "valid_transitions": "gymbridge.envs.dead_steps",
}
"""Public name -> the module that defines it."""

_SUBMODULES = frozenset({"contract", "engine", "envs", "errors", "spaces", "specs", "vector"})

__all__ = ["__version__", *_HOMES, *_SUBMODULES]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value: object = getattr(import_module(_HOMES[name]), name)
    elif name in _SUBMODULES:
        value = import_module(f"gymbridge.{name}")
    else:
        raise AttributeError(f"module 'gymbridge' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
