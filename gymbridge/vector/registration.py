"""``gymnasium.make_vec`` for gymbridge's vector envs."""

from __future__ import annotations

import copy
import operator
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, VectorizeMode, _find_spec
from gymnasium.error import Error
from gymnasium.vector import VectorEnv

from gymbridge.vector.sync_vector_env import SyncVectorEnv

if TYPE_CHECKING:
    from gymbridge.vector.async_vector_env import AsyncVectorEnv

__all__ = ["VectorizeMode", "make_vec"]

_DEFAULT_MODE = VectorizeMode.SYNC if sys.platform == "win32" else VectorizeMode.ASYNC


def make_vec(
    id: str | EnvSpec,
    num_envs: int = 1,
    vectorization_mode: VectorizeMode | str | None = _DEFAULT_MODE,
    vector_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] | None = None,
    **kwargs: Any,
) -> VectorEnv[Any, Any, Any]:
    """Makes a vector env from a gymnasium id or spec, as ``gymnasium.make_vec`` does.

    Args:
        id: a registered id, also ``"module:id"``, or an ``EnvSpec``; what a spec's ``kwargs`` say of the arguments
            below wins over them.
        num_envs: number of envs.
        vectorization_mode: ``"async"`` for :class:`~gymbridge.vector.AsyncVectorEnv`, the default where the platform
            has worker processes, ``"sync"`` for :class:`~gymbridge.vector.SyncVectorEnv`, ``"vector_entry_point"`` for
            the env's own vector class, None for the latter where the env has one and ``"sync"`` elsewhere.
        vector_kwargs: further arguments of the vector env: ``autoreset_mode``, ``output`` and so on.
        wrappers: applied to each env, in order.
        **kwargs: arguments of each env.

    Returns:
        The vector env, with its ``spec`` set.

    Raises:
        gymnasium.error.Error: an unknown id, or an env without the entry point that the mode needs.
        ValueError: an unknown mode, or fewer than one env.
        TypeError: a ``num_envs`` that is no integer.

    Example:
        >>> envs = make_vec("CartPole-v1", num_envs=2)
        >>> envs
        AsyncVectorEnv(CartPole-v1, num_envs=2)
        >>> envs.close()
    """
    if not isinstance(id, (str, EnvSpec)):
        raise Error(f"id: got {id!r} of type {type(id).__name__}, expected a str or an EnvSpec")
    spec = copy.deepcopy(id if isinstance(id, EnvSpec) else _find_spec(id))
    env_kwargs = {**spec.kwargs}
    num_envs = env_kwargs.pop("num_envs", num_envs)
    vectorization_mode = env_kwargs.pop("vectorization_mode", vectorization_mode)
    vector_kwargs = env_kwargs.pop("vector_kwargs", vector_kwargs) or {}
    wrappers = env_kwargs.pop("wrappers", wrappers) or []
    env_kwargs.update(kwargs)
    spec.kwargs = {}
    num_envs = _number(num_envs)
    if vectorization_mode is None:
        has_own = spec.vector_entry_point is not None
        vectorization_mode = VectorizeMode.VECTOR_ENTRY_POINT if has_own else VectorizeMode.SYNC
    try:
        mode = VectorizeMode(vectorization_mode)
    except ValueError:
        raise ValueError(
            f"vectorization_mode: got {vectorization_mode!r}, expected one of {[mode.value for mode in VectorizeMode]}"
        ) from None

    if mode is VectorizeMode.VECTOR_ENTRY_POINT:
        return gym.make_vec(
            id, num_envs, vectorization_mode=mode, vector_kwargs=vector_kwargs, wrappers=wrappers, **kwargs
        )
    if spec.entry_point is None:
        raise Error(f"{spec.id} has no entry point to make single envs with")

    def make_env() -> gym.Env[Any, Any]:
        env = gym.make(spec, **env_kwargs)
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    envs: AsyncVectorEnv | SyncVectorEnv
    if mode is VectorizeMode.ASYNC:
        from gymbridge.vector.async_vector_env import AsyncVectorEnv

        envs = AsyncVectorEnv([make_env] * num_envs, **vector_kwargs)
    else:
        envs = SyncVectorEnv([make_env] * num_envs, **vector_kwargs)
    made_from = copy.deepcopy(spec)
    made_from.kwargs = {**env_kwargs, "vectorization_mode": mode.value}
    if num_envs != 1:
        made_from.kwargs["num_envs"] = num_envs
    if vector_kwargs:
        made_from.kwargs["vector_kwargs"] = vector_kwargs
    if wrappers:
        made_from.kwargs["wrappers"] = wrappers
    envs.spec = made_from
    return envs


def _number(num_envs: Any) -> int:
    """``num_envs`` as an int of 1 or more."""
    try:
        number = operator.index(num_envs)
    except TypeError:
        raise TypeError(f"num_envs: got {num_envs!r} of type {type(num_envs).__name__}, expected an int") from None
    if number < 1:
        raise ValueError(f"num_envs: got {number}, expected at least 1")
    return number
