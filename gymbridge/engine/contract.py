"""Does a gymnasium env return what its spaces say?"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from inspect import iscoroutine
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from gymbridge.engine.conform import exact, flag
from gymbridge.errors import EnvOutputError
from gymbridge.spaces.naming import SpaceLeaf, kind_of, observation_tree, outline

__all__ = ["Mismatch", "env_faults", "has_ended", "observation_mismatches"]


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
        if has_ended(outcome):
            reset()
    return list(faults)


def has_ended(outcome: Any) -> bool:
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
    return map(str, observation_mismatches(env.observation_space, observation))


class Mismatch(NamedTuple):
    """One thing in which an observation is not as its space says.

    Attributes:
        kind: ``"items"`` (of a ``Dict`` or ``Tuple``), ``"type"``, ``"shape"``, ``"dtype"``, ``"nan"`` or ``"domain"``.
        key: where, with the names of the items: ``"arm.angle"``.
        got, expected: in words.
    """

    kind: str
    key: str
    got: str
    expected: str

    def __str__(self) -> str:
        return f"{self.key}: {'out of domain: ' * (self.kind == 'domain')}got {self.got}, expected {self.expected}"


def observation_mismatches(space: spaces.Space[Any], observation: Any) -> Iterator[Mismatch]:
    """All in which an observation is not as its space says.

    Example:
        >>> space = spaces.Dict(arm=spaces.Box(-1, 1, (3,), np.float32), count=spaces.Discrete(3))
        >>> for mismatch in observation_mismatches(space, {"arm": np.float32([0, 2, -3]), "on": True}):
        ...     print(mismatch)
        observation: got the items ['on'] too, expected only ['arm', 'count']
        arm: out of domain: got -3.0 at [2] (2 of 3 values wrong), expected -1.0 to 1.0
        observation: got no item 'count', expected ['arm', 'count']

    Raises:
        TypeError: a ``Dict`` in the space has a key that is no string.
    """
    leaves = iter(observation_tree(space).leaves)

    def walk(space: spaces.Space[Any], value: Any, name: str) -> Iterator[Mismatch]:
        if isinstance(space, spaces.Dict):
            yield from walk_items(space.spaces, value, name, isinstance(value, Mapping), "a dict")
        elif isinstance(space, spaces.Tuple):
            parts = dict(enumerate(space.spaces))
            is_group = isinstance(value, (tuple, list))
            yield from walk_items(parts, dict(enumerate(value)) if is_group else value, name, is_group, "a tuple")
        else:
            yield from _leaf_mismatches(next(leaves), value)

    def walk_items(parts: Mapping[Any, Any], value: Any, name: str, is_group: bool, kind: str) -> Iterator[Mismatch]:
        if not is_group:
            yield Mismatch("type", name, _typed(value), f"{kind} of {[*parts]}")
            value = {}
        elif extra := [key for key in value if key not in parts]:
            yield Mismatch("items", name, f"the items {extra} too", f"only {[*parts]}")
        for key, part in parts.items():
            if key in value:
                yield from walk(part, value[key], f"{name}.{key}")
            else:
                for _ in observation_tree(part).leaves:
                    next(leaves)
                if is_group:
                    yield Mismatch("items", name, f"no item {key!r}", f"{[*parts]}")

    yield from walk(space, observation, "observation")


def _typed(value: Any) -> str:
    return kind_of(value) if iscoroutine(value) else f"{reprlib.repr(value)} of type {type(value).__name__}"


def _leaf_mismatches(leaf: SpaceLeaf, value: Any) -> Iterator[Mismatch]:
    if not leaf.is_array:
        if not leaf.space.contains(value):
            yield Mismatch("domain", leaf.name, _typed(value), f"a value of {leaf.space}")
        return
    if isinstance(leaf.space, spaces.Discrete):
        try:
            value = np.asarray(exact(leaf)(value), leaf.dtype)
        except EnvOutputError:
            yield Mismatch("type", leaf.name, _typed(value), f"an integer that is one of {leaf.dtype} too")
            return
    elif not isinstance(value, (np.ndarray, np.generic)):
        yield Mismatch("type", leaf.name, _typed(value), f"an array of shape {leaf.shape} and {leaf.dtype}")
        return
    if value.shape != leaf.shape:
        yield Mismatch("shape", leaf.name, f"shape {value.shape}", f"{leaf.shape}")
    if value.dtype != leaf.dtype:
        yield Mismatch("dtype", leaf.name, f"dtype {value.dtype}", f"{leaf.dtype}")
    if value.shape != leaf.shape or value.dtype != leaf.dtype:
        return
    array = np.asarray(value)
    if array.dtype.kind == "f" and (wrong := np.isnan(array)).any():
        yield Mismatch("nan", leaf.name, _worst(array, wrong, wrong), "numbers")
    elif not leaf.space.contains(array[()] if isinstance(leaf.space, spaces.Discrete) else array):
        yield _out_of_domain(leaf, array)


def _out_of_domain(leaf: SpaceLeaf, array: np.ndarray[Any, Any]) -> Mismatch:
    """Names the value that is farthest out."""
    space = leaf.space
    low: Any
    high: Any
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
    elif isinstance(space, spaces.Discrete):
        low, high = space.start, space.start + space.n - 1
    elif isinstance(space, spaces.MultiDiscrete):
        start = getattr(space, "start", 0)  # not there in each gymnasium
        low, high = np.broadcast_to(start, array.shape), start + space.nvec - 1
    elif isinstance(space, spaces.MultiBinary):
        low, high = 0, 1
    else:
        return Mismatch("domain", leaf.name, _typed(array), f"a value of {space}")
    low, high = (np.broadcast_to(bound, array.shape) for bound in (low, high))
    wrong = (array < low) | (array > high)
    if not wrong.any():  # the space has rules of its own
        return Mismatch("domain", leaf.name, _typed(array), f"a value of {space}")
    with np.errstate(over="ignore", invalid="ignore"):  # inf - inf is as far out as it can be
        below, above = np.subtract(low, array, dtype=np.float64), np.subtract(array, high, dtype=np.float64)
    excess = np.where(wrong, np.nan_to_num(np.fmax(below, above), nan=np.inf), -np.inf)
    at = np.unravel_index(np.argmax(excess), array.shape)
    return Mismatch("domain", leaf.name, _worst(array, wrong, excess), f"{low[at].item()} to {high[at].item()}")


def _worst(array: np.ndarray[Any, Any], wrong: np.ndarray[Any, Any], excess: np.ndarray[Any, Any]) -> str:
    if not array.ndim:
        return repr(array.item())
    at = np.unravel_index(np.argmax(excess), array.shape)
    place = [int(index) for index in at]
    return f"{array[at].item()!r} at {place} ({int(wrong.sum())} of {array.size} values wrong)"
