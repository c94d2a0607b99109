"""Does a gymnasium env return what its spaces say?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from gymbridge.engine.conform import exact, flag
from gymbridge.errors import EnvOutputError
from gymbridge.spaces.naming import observation_tree, outline

__all__ = ["env_faults"]


def env_faults(env: gym.Env[Any, Any], num_steps: int, seed: int | None) -> list[str]:
    """Resets an env, steps it with random actions and lists all that is wrong with what it returns.

    Args:
        env: the env; it is to be reset before it is used again.
        num_steps: steps, across episodes.
        seed: of the first reset and of the actions; None seeds neither.

    Returns:
        One line for each fault, as often as it may come: keys that are missing or too many, another shape, dtype or
        type, values out of their space.

    Example:
        >>> env = gym.make("CartPole-v1").unwrapped
        >>> env_faults(env, 10, seed=0)
        []
        >>> env.observation_space = spaces.Box(-1, 1, (5,), np.float64)
        >>> env_faults(env, 10, seed=0)  # doctest: +NORMALIZE_WHITESPACE
        ['reset: observation: got shape (4,), expected (5,)', 'reset: observation: got dtype float32, expected float64',
         'step: observation: got shape (4,), expected (5,)', 'step: observation: got dtype float32, expected float64']
    """
    faults: dict[str, None] = {}

    def reset(**kwargs: Any) -> None:
        for fault in _reset_faults(env, env.reset(**kwargs)):
            faults.setdefault(f"reset: {fault}")

    if seed is not None:
        env.action_space.seed(seed)
    reset(seed=seed)
    for _ in range(num_steps):
        outcome = env.step(env.action_space.sample())
        for fault in _step_faults(env, outcome):
            faults.setdefault(f"step: {fault}")
        if _has_ended(outcome):
            reset()
    return list(faults)


def _has_ended(outcome: Any) -> bool:
    """Whether the env has to be reset: also where what it returned does not say."""
    if not (isinstance(outcome, tuple) and len(outcome) == 5):
        return True
    try:
        return flag("terminated", outcome[2]) or flag("truncated", outcome[3])
    except EnvOutputError:
        return True


def _reset_faults(env: gym.Env[Any, Any], result: Any) -> Iterator[str]:
    if not (isinstance(result, tuple) and len(result) == 2):
        yield f"got {outline(result)}, expected (observation, info)"
        return
    yield from _observation_faults(env, result[0])
    yield from _info_faults(result[1])


def _step_faults(env: gym.Env[Any, Any], outcome: Any) -> Iterator[str]:
    if not (isinstance(outcome, tuple) and len(outcome) == 5):
        yield f"got {outline(outcome)}, expected (observation, reward, terminated, truncated, info)"
        return
    observation, reward, terminated, truncated, info = outcome
    yield from _observation_faults(env, observation)
    if np.ndim(reward) or np.asarray(reward).dtype.kind not in "biuf":
        yield f"reward: got {reward!r}, expected a number"
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        try:
            flag(name, value)
        except EnvOutputError as error:
            yield str(error)
    yield from _info_faults(info)


def _info_faults(info: Any) -> Iterator[str]:
    if not isinstance(info, Mapping):
        yield f"info: got {info!r} of type {type(info).__name__}, expected a dict"


def _observation_faults(env: gym.Env[Any, Any], observation: Any) -> Iterator[str]:
    leaves = iter(observation_tree(env.observation_space).leaves)

    def walk(space: spaces.Space[Any], value: Any, name: str) -> Iterator[str]:
        if isinstance(space, spaces.Dict):
            yield from walk_items(space.spaces, value, name, isinstance(value, Mapping), "a dict")
        elif isinstance(space, spaces.Tuple):
            parts = dict(enumerate(space.spaces))
            is_group = isinstance(value, (tuple, list))
            yield from walk_items(parts, dict(enumerate(value)) if is_group else value, name, is_group, "a tuple")
        else:
            yield from _leaf_faults(next(leaves), value)

    def walk_items(parts: Mapping[Any, Any], value: Any, name: str, is_group: bool, kind: str) -> Iterator[str]:
        if not is_group:
            yield f"{name}: got {value!r} of type {type(value).__name__}, expected {kind} of {[*parts]}"
            value = {}
        elif extra := [key for key in value if key not in parts]:
            yield f"{name}: got the items {extra} too, expected only {[*parts]}"
        for key, part in parts.items():
            if key in value:
                yield from walk(part, value[key], f"{name}.{key}")
            else:
                for _ in observation_tree(part).leaves:
                    next(leaves)
                if is_group:
                    yield f"{name}: lacks the item {key!r}, expected {[*parts]}"

    yield from walk(env.observation_space, observation, "observation")


def _leaf_faults(leaf: Any, value: Any) -> Iterator[str]:
    if not leaf.is_array:
        if not leaf.space.contains(value):
            yield f"{leaf.name}: got {value!r}, expected a value of {leaf.space}"
        return
    if isinstance(value, (np.ndarray, np.generic)) and not isinstance(leaf.space, spaces.Discrete):
        if value.shape != leaf.shape:
            yield f"{leaf.name}: got shape {value.shape}, expected {leaf.shape}"
        if value.dtype != leaf.dtype:
            yield f"{leaf.name}: got dtype {value.dtype}, expected {leaf.dtype}"
        if value.shape != leaf.shape or value.dtype != leaf.dtype:
            return
    try:
        checked = np.asarray(exact(leaf)(value), leaf.dtype)
    except EnvOutputError as error:
        yield str(error)
        return
    if not leaf.space.contains(checked[()] if isinstance(leaf.space, spaces.Discrete) else checked):
        yield f"{leaf.name}: out of domain: got {value!r}, expected a value of {leaf.space}"
