"""Spaces that gymnasium does not bring: one that it knows nothing of, one that it is told how to batch, two subclasses.

In a module that imports little, since a worker that sends such a space imports it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

__all__ = ["Digits", "Named", "Narrowed", "Unheard"]


class Unheard(spaces.Space):
    """A space that gymnasium knows nothing of; its samples are dicts."""

    def __init__(self) -> None:
        super().__init__((), None)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return {"choice": int(self.np_random.integers(3)), "list": [1, 2]}

    def contains(self, x: Any) -> bool:
        return isinstance(x, dict)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)


class Narrowed(spaces.Box):
    """A user's own kind of ``Box``."""


class Named(spaces.Dict):
    """A user's own kind of ``Dict``."""


class Digits(Unheard):
    """Of a type that is registered with gymnasium's functions: a batch is an array of int16, one of actions a dict."""

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return int(self.np_random.integers(10))

    def contains(self, x: Any) -> bool:
        return isinstance(x, int)


class BatchedDigits(Unheard):
    """What a batch of actions of ``Digits`` is."""

    def __init__(self, num_envs: int):
        super().__init__()
        self.num_envs = num_envs

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return {"digits": [int(digit) for digit in self.np_random.integers(10, size=self.num_envs)]}


@batch_space.register(Digits)
def _(space: Digits, n: int = 1) -> BatchedDigits:
    return BatchedDigits(n)


@iterate.register(BatchedDigits)
def _(space: BatchedDigits, items: Any) -> Any:
    return iter(items["digits"])


@create_empty_array.register(Digits)
def _(space: Digits, n: int = 1, fn: Any = np.zeros) -> Any:
    return fn(n, dtype=np.int16)


@concatenate.register(Digits)
def _(space: Digits, items: Any, out: Any) -> Any:
    out[:] = list(items)
    return out
