"""What gymnasium envs return, from the form that they give it to the rows of the block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gymbridge.engine.conform import Conform, as_array
from gymbridge.engine.layout import Leaf
from gymbridge.errors import EnvOutputError
from gymbridge.spaces.naming import SpaceTree

__all__ = ["NumbersOnly", "SectionRows", "info_entries", "row_views", "snapshot"]

Key = tuple[str, ...]


class SectionRows:
    """Observations and infos of one section of the block: checked first, then written, so that no row is half new."""

    def __init__(
        self, arrays: Mapping[Key, npt.NDArray[Any]], tree: SpaceTree, conform: Conform, infos: Sequence[Leaf]
    ):
        self._tree = tree
        self._checks = [conform(leaf) for leaf in tree.leaves]
        self._put = [_putter(arrays[leaf.key]) for leaf in tree.leaves]
        self._info_entries = [_info_entry(leaf) for leaf in infos]
        self._infos = [(leaf, arrays[("info", *leaf.key)], arrays[("info", "_mask", *leaf.key)]) for leaf in infos]

    def checked(self, observation: Any) -> list[Any]:
        """The leaves of an observation as ``write`` takes them."""
        if self._tree.is_leaf:
            return [self._checks[0](observation)]
        try:
            values = self._tree.flatten(observation)
        except KeyError as error:
            told = error.args[0]
            raise EnvOutputError(told if told.startswith("observation") else f"observation: {told}") from error
        return [check(value) for check, value in zip(self._checks, values, strict=True)]

    def write(self, row: int, values: Sequence[Any]) -> None:
        """Writes a checked observation."""
        for put, value in zip(self._put, values, strict=True):
            put(row, value)

    def checked_info(self, info: Mapping[str, Any]) -> list[Any]:
        """The entries that are leaves, None for one that the info lacks."""
        return [entry_of(info) for entry_of in self._info_entries]

    def write_info(self, row: int, values: Sequence[Any]) -> None:
        """Writes the checked entries of an info; one that is None reads zero, or None where it would be an object."""
        for (leaf, array, mask), value in zip(self._infos, values, strict=True):
            array[row] = 0 if value is None and not leaf.dtype.hasobject else value
            mask[row] = value is not None

    def no_info(self, row: int) -> None:
        """Zeroes the entries that are leaves."""
        for leaf, array, mask in self._infos:
            array[row] = None if leaf.dtype.hasobject else 0
            mask[row] = False


def _putter(array: npt.NDArray[Any]) -> Callable[[int, Any], None]:
    """What writes a row of an array; one of an array of objects is put there whole, also if it is an array itself."""
    if array.dtype.hasobject:
        return array.__setitem__
    rows = row_views(array)

    def put(row: int, value: Any) -> None:
        rows[row][...] = value

    return put


class NumbersOnly:
    """Item assignment that takes numbers alone, as a memoryview of floats does, for an array of any dtype."""

    def __init__(self, array: npt.NDArray[Any]):
        self._array = array

    def __setitem__(self, row: int, value: Any) -> None:
        if value is None or isinstance(value, (str, bytes)):
            raise TypeError(f"must be a number, not {type(value).__name__}")
        self._array[row] = value


def row_views(array: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """The rows of an array, each a view that can be assigned to whole, also where a row has no dimension."""
    return [array[row : row + 1].reshape(array.shape[1:]) for row in range(len(array))]


def snapshot(info: Any) -> dict[str, Any]:
    """An info as it is now: its dicts and arrays are copied, since the env may change them later; the rest is not.

    Raises:
        EnvOutputError: not a mapping.

    Example:
        >>> position = np.zeros(2)
        >>> info = snapshot({"position": position})
        >>> position += 1
        >>> info
        {'position': array([0., 0.])}
    """
    if type(info) is not dict and not isinstance(info, Mapping):  # the first of the two takes no time
        raise EnvOutputError(f"info: got {info!r} of type {type(info).__name__}, expected a dict")
    return {
        key: value.copy() if isinstance(value, np.ndarray) else snapshot(value) if isinstance(value, dict) else value
        for key, value in info.items()
    }


def info_entries(info: Mapping[str, Any], prefix: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Path and value of each entry of an info that is no dict itself.

    Example:
        >>> list(info_entries({"lives": 3, "goal": {"x": 1}}))
        [(('lives',), 3), (('goal', 'x'), 1)]
    """
    for key, value in info.items():
        if isinstance(value, dict):
            yield from info_entries(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def _info_entry(leaf: Leaf) -> Callable[[Any], Any]:
    """What finds what an info has at a leaf's path: an array of the leaf's dtype, the object, or None for nothing."""
    path, shape, dtype = leaf
    name = f"info.{'.'.join(path)}"
    expected = f"shape {shape} and dtype {dtype}"

    def entry_of(info: Any) -> Any:
        value = info
        try:
            for part in path:
                value = value[part]
        except (KeyError, TypeError, IndexError):
            return None
        if value is None:
            return None
        if dtype.hasobject:
            return value.copy() if isinstance(value, np.ndarray) else value
        given = as_array(name, value, expected)
        if given.shape != shape or not np.can_cast(given.dtype, dtype, "same_kind"):
            raise EnvOutputError(
                f"{name}: got shape {given.shape} and dtype {given.dtype}, expected {shape} and {dtype}"
            )
        cast = given.astype(dtype)
        if dtype.kind in "iu" and given.dtype != dtype and not np.array_equal(cast, given):
            raise EnvOutputError(f"{name}: got {value!r} of dtype {given.dtype}, expected {dtype}: the cast changes it")
        return cast

    return entry_of
