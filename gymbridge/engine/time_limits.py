"""How long something may take, as callers say it."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["positive_time_limit", "time_limit"]

_LONGEST = 2e6
"""Seconds, 23 days: the waits of the operating system take little more than these."""


def time_limit(name: str, seconds: Any) -> float | None:
    """The seconds that something may take, infinity cut down to some weeks; None for no limit.

    Args:
        name: that of the argument, for errors.
        seconds: a number, infinity too, or None.

    Raises:
        TypeError: no number.
        ValueError: a negative one, or none that can be compared.

    Example:
        >>> time_limit("timeout", 2), time_limit("timeout", float("inf"))
        (2.0, 2000000.0)
        >>> time_limit("timeout", -1)
        Traceback (most recent call last):
        ValueError: timeout: got -1, expected 0 or more seconds
    """
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}: got {seconds!r}, expected seconds, or None for no limit")
    if not seconds >= 0:
        raise ValueError(f"{name}: got {seconds}, expected 0 or more seconds")
    return min(float(seconds), _LONGEST)


def positive_time_limit(name: str, seconds: Any) -> float | None:
    """The same of something that takes some time in any case.

    Raises:
        TypeError: no number.
        ValueError: 0, or what ``time_limit`` refuses.

    Example:
        >>> positive_time_limit("step_timeout", 0)
        Traceback (most recent call last):
        ValueError: step_timeout: got 0, expected more than 0 seconds
    """
    limit = time_limit(name, seconds)
    if limit == 0:
        raise ValueError(f"{name}: got {seconds}, expected more than 0 seconds")
    return limit
