"""Copies of what a caller may change while an env of its own process has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["copied"]


def copied(value: Any) -> Any:
    """A copy of dicts, lists, tuples and arrays, however nested; the very object of anything else.

    Example:
        >>> lock, position = object(), np.zeros(2)
        >>> own = copied({"lock": lock, "positions": [position]})
        >>> position += 1
        >>> own["positions"], own["lock"] is lock
        ([array([0., 0.])], True)
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) is dict:
        return {key: copied(part) for key, part in value.items()}
    if type(value) is list:
        return [copied(part) for part in value]
    if isinstance(value, tuple):
        parts: Iterable[Any] = map(copied, value)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
