"""What an env returned, checked against the leaf that it is for.

Two policies, both refusing what does not fit by name instead of bending it:

- :func:`exact`, for the TensorDict face: shape and dtype are those of the space; a ``Discrete`` takes any integer that
  fits its dtype.
- :func:`casting`, for the gymnasium face, whose users rely on gymnasium's cast into its buffers: the shape is that of
  the space; a value of another dtype is cast where numpy's ``same_kind`` rule allows it or nothing is lost.
"""

from __future__ import annotations

import copy
import reprlib
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from gymbridge.errors import EnvOutputError
from gymbridge.spaces.naming import SpaceLeaf

__all__ = ["Check", "Conform", "as_array", "casting", "exact", "flag", "snapshot_of_object"]

Check = Callable[[Any], Any]
"""Gives a value in a form that numpy assigns to the leaf's row unchanged, or raises ``EnvOutputError``."""

Conform = Callable[[SpaceLeaf], Check]
"""A policy: makes the check of a leaf."""


def exact(leaf: SpaceLeaf) -> Check:
    """Check that lets through values of the leaf's own shape and dtype.

    Example:
        >>> from gymnasium.spaces import Box
        >>> check = exact(SpaceLeaf(("observation",), Box(-1, 1, (2,), np.float32)))
        >>> check(np.zeros(2))
        Traceback (most recent call last):
        gymbridge.errors.EnvOutputError: observation: got dtype float64, expected float32
    """
    if not leaf.is_array:
        return snapshot_of_object
    if isinstance(leaf.space, Discrete):
        return _integer(leaf)
    name, shape, dtype = leaf.name, leaf.shape, leaf.dtype

    def check(value: Any) -> Any:
        if not isinstance(value, (np.ndarray, np.generic)):
            raise EnvOutputError(
                f"{name}: got {value!r} of type {type(value).__name__}, expected an array of shape {shape} and {dtype}"
            )
        if value.shape != shape:
            raise EnvOutputError(f"{name}: got shape {value.shape}, expected {shape}")
        if value.dtype != dtype:
            raise EnvOutputError(f"{name}: got dtype {value.dtype}, expected {dtype}")
        return value

    return check


def casting(leaf: SpaceLeaf) -> Check:
    """Check that casts to the leaf's dtype where ``same_kind`` casting allows it or the cast loses nothing.

    Example:
        >>> from gymnasium.spaces import Box
        >>> check = casting(SpaceLeaf(("observation",), Box(0, 255, (2,), np.uint8)))
        >>> check([3, 4])
        array([3, 4], dtype=uint8)
        >>> check([3, 400])
        Traceback (most recent call last):
        gymbridge.errors.EnvOutputError: observation: got [3, 400] of dtype int64, expected uint8: the cast changes it
    """
    if not leaf.is_array:
        return snapshot_of_object
    name, shape, dtype = leaf.name, leaf.shape, leaf.dtype
    low, high = _integer_range(leaf)
    expected = f"an array of shape {shape} and {dtype}"

    def check(value: Any) -> Any:
        if type(value) is int and shape == () and low <= value <= high:
            return value
        array = as_array(name, value, expected)
        if array.dtype == dtype and array.shape == shape:
            return array
        if array.shape != shape:
            raise EnvOutputError(f"{name}: got shape {array.shape}, expected {shape}")
        if np.can_cast(array.dtype, dtype, "same_kind"):
            return array.astype(dtype)
        if array.dtype.kind not in "iufb":
            raise EnvOutputError(f"{name}: got dtype {array.dtype}, expected {dtype}")
        return _without_loss(array, leaf, value)

    return check


def snapshot_of_object(value: Any) -> Any:
    """An object as it is now: a copy, unless nothing can change it.

    Example:
        >>> moves = [1]
        >>> kept = snapshot_of_object(moves)
        >>> moves.append(2)
        >>> kept
        [1]
    """
    return value if isinstance(value, _IMMUTABLE) else copy.deepcopy(value)


def as_array(name: str, value: Any, expected: str) -> np.ndarray[Any, Any]:
    """A value as an array of numbers; an array of anything else as it is.

    Raises:
        EnvOutputError: something that numpy makes no numbers of: None, a dict, a ragged list, a tensor with a gradient.

    Example:
        >>> as_array("position", [[1], [2, 3]], "an array of shape (2, 2)")
        Traceback (most recent call last):
        gymbridge.errors.EnvOutputError: position: got [[1], [2, 3]] of type list, expected an array of shape (2, 2)
    """
    if isinstance(value, np.ndarray):
        return value
    cause = None
    try:
        array = np.asarray(value)
        if array.dtype.kind in "biufc":
            return array
    except Exception as error:
        cause = error
    raise EnvOutputError(
        f"{name}: got {reprlib.repr(value)} of type {type(value).__name__}, expected {expected}"
    ) from cause


def flag(name: str, value: Any) -> bool:
    """An end-of-episode flag: a bool, an integer, or an array with one of these.

    Raises:
        EnvOutputError: anything else, since the truth of a list, a string or NaN says nothing of an episode.

    Example:
        >>> flag("terminated", np.True_)
        True
        >>> flag("terminated", [False])
        Traceback (most recent call last):
        gymbridge.errors.EnvOutputError: terminated: got [False] of type list, expected a bool
    """
    if isinstance(value, (bool, np.bool_, int, np.integer)):
        return bool(value)
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biu":
        return bool(value.item())
    raise EnvOutputError(f"{name}: got {reprlib.repr(value)} of type {type(value).__name__}, expected a bool")


_IMMUTABLE = (str, bytes, int, float, complex, type(None))


def _integer(leaf: SpaceLeaf) -> Check:
    low, high = _integer_range(leaf)

    def check(value: Any) -> Any:
        if type(value) is int and low <= value <= high:
            return value
        array = as_array(leaf.name, value, "an integer")
        if array.shape != () or array.dtype.kind not in "iub":
            raise EnvOutputError(f"{leaf.name}: got {value!r}, expected an integer")
        return _without_loss(array, leaf, value)

    return check


def _integer_range(leaf: SpaceLeaf) -> tuple[int, int]:
    """Python ints that the leaf's dtype holds; an empty range where it is not one of integers."""
    if leaf.dtype.kind not in "iu":
        return 0, -1
    limits = np.iinfo(leaf.dtype)
    return int(limits.min), int(limits.max)


def _without_loss(array: np.ndarray[Any, Any], leaf: SpaceLeaf, value: Any) -> Any:
    with np.errstate(all="ignore"):
        cast = array.astype(leaf.dtype)
        back = cast.astype(array.dtype)
    # each alone misses some: numpy 1 compares uint64 with int64 as floats, an int's minimum goes back to -inf, -1 wraps
    same = np.array_equal(cast, array) and np.array_equal(back, array) and np.array_equal(cast < 0, array < 0)
    if not same:
        raise EnvOutputError(
            f"{leaf.name}: got {value!r} of dtype {array.dtype}, expected {leaf.dtype}: the cast changes it"
        )
    return cast
