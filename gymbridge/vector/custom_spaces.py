"""Custom spaces that gymnasium was told how to batch, through the functions of ``gymnasium.vector.utils``.

``batch_space``, ``iterate``, ``concatenate`` and ``create_empty_array`` dispatch on the type of a space; a user who
registers a type of their own there has its samples joined and taken apart in their way. Samples of other custom spaces
stand in a tuple, one for each env.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

__all__ = ["JoinedSamples", "batched_by_its_users", "taken_apart"]


class JoinedSamples:
    """Joins one sample an env into a batch.

    Args:
        space: the space of one env, of a type that is registered with ``concatenate``.
        num_envs: number of envs.

    Example:
        >>> samples = JoinedSamples(gym.spaces.Discrete(3), num_envs=2)
        >>> samples.joined([1, 2], copy=True)
        array([1, 2])
    """

    def __init__(self, space: gym.Space[Any], num_envs: int):
        self._space = space
        self._num_envs = num_envs
        self._buffer: Any = None

    @classmethod
    def of(cls, space: gym.Space[Any], num_envs: int) -> JoinedSamples | None:
        """For a space of a type that users registered; None for any other."""
        users_own = concatenate.dispatch(type(space)) is not concatenate.dispatch(gym.Space)
        return cls(space, num_envs) if users_own else None

    def joined(self, samples: Iterable[Any], copy: bool) -> Any:
        """The batch; written over the last one unless ``copy``."""
        if copy:
            return concatenate(self._space, samples, self._empty())
        self._buffer = concatenate(self._space, samples, self._empty() if self._buffer is None else self._buffer)
        return self._buffer

    def _empty(self) -> Any:
        return create_empty_array(self._space, n=self._num_envs, fn=np.zeros)


def batched_by_its_users(space: gym.Space[Any], num_envs: int) -> gym.Space[Any] | None:
    """The batched space, where the type is registered with ``batch_space`` by users; None for any other."""
    users_own = batch_space.dispatch(type(space)) is not batch_space.dispatch(gym.Space)
    return batch_space(space, num_envs) if users_own else None


def taken_apart(batched: gym.Space[Any], samples: Any) -> list[Any]:
    """One sample an env.

    Example:
        >>> taken_apart(gym.spaces.MultiDiscrete([3, 3]), [1, 2])
        [1, 2]
    """
    return list(iterate(batched, samples))
