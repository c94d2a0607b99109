"""The state of a gymnasium env, as far as it can be told, and how to put it back."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

__all__ = ["env_state", "load_env_state", "without_locks"]

_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def env_state(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """The state of an env's ``np_random`` and, where the env has ``get_state`` and ``set_state``, what the first gives.

    Locks in it, which cannot be copied, are None.

    Example:
        >>> env = gym.make("CartPole-v1")
        >>> state = env_state(env)
        >>> first = env.unwrapped.np_random.random()
        >>> load_env_state(env, state)
        >>> env.unwrapped.np_random.random() == first
        True
    """
    state: dict[str, Any] = {"np_random": copy.deepcopy(env.unwrapped.np_random.bit_generator.state)}
    if _has_state(env):
        state["state"] = without_locks(env.get_wrapper_attr("get_state")())
    return state


def load_env_state(env: gym.Env[Any, Any], state: Mapping[str, Any]) -> None:
    """Puts back what :func:`env_state` gave.

    Raises:
        TypeError: something that is not a dict.
        KeyError: not what ``env_state`` gives for such an env; nothing is changed then.
    """
    expected = ["np_random", *(["state"] if _has_state(env) else [])]
    if not isinstance(state, Mapping):
        raise TypeError(f"state: got {state!r} of type {type(state).__name__}, expected a dict of {expected}")
    if any(key not in state for key in expected):
        raise KeyError(f"state: got the keys {[*state]}, expected {expected}")
    env.unwrapped.np_random.bit_generator.state = copy.deepcopy(state["np_random"])
    if "state" in expected:
        env.get_wrapper_attr("set_state")(copy.deepcopy(state["state"]))


def _has_state(env: gym.Env[Any, Any]) -> bool:
    return env.has_wrapper_attr("get_state") and env.has_wrapper_attr("set_state")


def without_locks(value: Any) -> Any:
    """A deep copy in which locks, which cannot be copied, are None."""
    if isinstance(value, _LOCKS):
        return None
    if isinstance(value, dict):
        return {key: without_locks(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(without_locks, value))
    return copy.deepcopy(value)
