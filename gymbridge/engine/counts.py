"""How many of something there are to be, as callers say it."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["count_of"]


def count_of(name: str, given: Any) -> int:
    """A number of things, one at least.

    Args:
        name: that of the argument, for errors.
        given: an int, also one of numpy's.

    Raises:
        TypeError: no int.
        ValueError: less than 1.

    Example:
        >>> count_of("num_envs", np.int64(3))
        3
        >>> count_of("num_envs", 0)
        Traceback (most recent call last):
        ValueError: num_envs: got 0, expected at least 1
    """
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise TypeError(f"{name}: got {given!r} of type {type(given).__name__}, expected an int")
    if given < 1:
        raise ValueError(f"{name}: got {given}, expected at least 1")
    return int(given)
