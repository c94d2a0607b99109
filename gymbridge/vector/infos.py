"""The infos of a batch as gymnasium has them: an array an entry, with a mask of the envs that gave it.

The rules are those of ``gymnasium.vector.VectorEnv._add_info`` but where gymnasium loses data or raises: an entry's
dtype widens to hold what later envs give, and entries that no array holds together become an object array.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["add_info"]

_PLAIN = {float: np.dtype(np.float64), int: np.dtype(np.int64), bool: np.dtype(np.bool_)}


def add_info(infos: dict[str, Any], info: Mapping[str, Any], index: int, num_envs: int) -> None:
    """Adds one env's info to those of the batch, in place.

    Args:
        infos: what the batch has so far.
        info: the env's info; it stays as it is.
        index: the env's index.
        num_envs: number of envs.

    Example:
        >>> infos = {}
        >>> add_info(infos, {"lives": 3}, 0, 2)
        >>> add_info(infos, {"lives": 2.5}, 1, 2)
        >>> infos
        {'lives': array([3. , 2.5]), '_lives': array([ True,  True])}
    """
    for key, value in info.items():
        mask_key = f"_{key}"
        mask = infos.get(mask_key)
        if mask is None:
            mask = np.zeros(num_envs, np.bool_)
        entry = infos.get(key)
        if isinstance(entry, np.ndarray) and _is_mask(key, infos) and _assigned(entry, value, index):
            pass  # the mask of another entry is not widened: it stays a mask, as gymnasium has it
        elif key == "final_obs":
            entry = _boxes(num_envs) if entry is None else entry
            entry[index] = value
        elif isinstance(value, dict):
            if entry is None or isinstance(entry, dict):
                entry = {} if entry is None else entry
                add_info(entry, value, index, num_envs)
            else:
                entry = _boxed(entry, mask)
                entry[index] = value
        elif isinstance(entry, dict):
            entry = _boxed_dicts(entry, mask, num_envs)
            entry[index] = value
        else:
            entry = _put(_empty(value, num_envs) if entry is None else entry, value, index, mask)
        with suppress(TypeError, ValueError):  # an entry of an env's own, in the mask's place, that takes no bools
            mask[index] = True
        infos[key], infos[mask_key] = entry, mask


def _is_mask(key: Any, infos: Mapping[Any, Any]) -> bool:
    return isinstance(key, str) and key[:1] == "_" and key[1:] in infos


def _assigned(array: npt.NDArray[Any], value: Any, index: int) -> bool:
    """Whether numpy puts the value in its place, cast to the dtype that the array has."""
    if isinstance(value, dict):
        return False
    try:
        array[index] = value
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _empty(value: Any, num_envs: int) -> npt.NDArray[Any]:
    """The array in which gymnasium collects an entry whose first value is this one."""
    if type(value) in _PLAIN or isinstance(value, np.number):
        dtype = np.asarray(value).dtype
        return _boxes(num_envs) if dtype.hasobject else np.zeros(num_envs, dtype)
    if isinstance(value, np.ndarray):
        return np.zeros((num_envs, *value.shape), value.dtype)
    return _boxes(num_envs)


def _put(array: npt.NDArray[Any], value: Any, index: int, mask: Any) -> npt.NDArray[Any]:
    """The array with the value in its place: the same array where it holds the value, else one that does."""
    if type(value) in _PLAIN and array.ndim == 1 and array.dtype == _PLAIN[type(value)] and _fits(value):
        array[index] = value
        return array
    if array.dtype == object and array.ndim == 1:
        array[index] = value
        return array
    if value is None and array.ndim == 1 and array.dtype.kind == "f":
        array[index] = np.nan
        return array
    dtype = _common_dtype(array, value)
    if dtype is None:
        array = _boxed(array, mask)
    elif dtype != array.dtype:
        array = array.astype(dtype)
    array[index] = value
    return array


def _fits(value: Any) -> bool:
    return type(value) is not int or -(2**63) <= value < 2**63


def _common_dtype(array: npt.NDArray[Any], value: Any) -> np.dtype[Any] | None:
    """The dtype that holds both what the array has and the value; None where no array of its shape does."""
    try:
        given = np.asarray(value)
    except ValueError:  # a ragged list
        return None
    if given.shape != array.shape[1:]:
        return None
    if given.dtype == array.dtype or array.dtype == object:
        return array.dtype
    if given.dtype == object or (given.dtype.kind in "biufc") != (array.dtype.kind in "biufc"):
        return None
    try:
        wide = np.result_type(array.dtype, given.dtype)
        if given.dtype.kind == "c" != array.dtype.kind:
            return wide
        with np.errstate(all="ignore"):
            cast = given.astype(array.dtype)
        if given.dtype.kind == array.dtype.kind == "f" and np.array_equal(np.isinf(cast), np.isinf(given)):
            return array.dtype  # rounded, as gymnasium does: only what would be cut off widens
        return array.dtype if np.array_equal(cast, given) else wide
    except TypeError:  # numpy knows no dtype for the two
        return None


def _boxes(num_envs: int) -> npt.NDArray[Any]:
    return np.full(num_envs, None, object)


def _boxed(array: npt.NDArray[Any], mask: Any) -> npt.NDArray[Any]:
    """An object array with the rows of ``array`` that the mask has."""
    boxes = _boxes(len(array))
    for row in range(len(array)):
        if _has(mask, row):
            boxes[row] = array[row]
    return boxes


def _boxed_dicts(entries: Mapping[str, Any], mask: Any, num_envs: int) -> npt.NDArray[Any]:
    """An object array with each env's own dict, taken out of the batch's nested entries."""
    boxes = _boxes(num_envs)
    for row in range(num_envs):
        if _has(mask, row):
            boxes[row] = _row_of(entries, row)
    return boxes


def _has(mask: Any, row: int) -> bool:
    """Whether a mask has a row; an entry of an env's own may stand in its place."""
    given = mask.get(row) if isinstance(mask, dict) else mask[row]
    return bool(given) if isinstance(given, (bool, np.bool_, int, float, complex, np.number)) else given is not None


def _row_of(entries: Mapping[str, Any], row: int) -> dict[str, Any]:
    return {
        key: _row_of(value, row) if isinstance(value, dict) else value[row]
        for key, value in entries.items()
        if f"_{key}" in entries and _has(entries[f"_{key}"], row)
    }
