"""gymnasium's own vector envs as the oracle of ours, with each deviation that concerns their results modelled.

Each model bears the name of its row in ``docs/deviations.md`` and applies only where gymnasium's result loses what an
env gave, or gymnasium raises; everywhere else the result is gymnasium's, to the bit. No torch here.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from agreement import as_in_space, assert_same

__all__ = ["AsyncOracle", "SyncOracle", "assert_results_same"]

_NUMBERS = "biufc"


class BoxedEntry(np.ndarray):
    """An info entry that the table has as "an object array": what it says of it is each env's value."""


class DeviatingInfos(gym.vector.VectorEnv):
    """Collects infos by gymnasium's code, key by key, and corrects an entry where the table has gymnasium wrong."""

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        if "final_obs" in env_info:  # row: order of `final_obs` and `final_info`
            env_info = {"final_obs": None, **env_info}
        for key, value in env_info.items():
            if key == "final_obs":  # row: `final_obs`
                value = copy.deepcopy(as_in_space(self.single_observation_space, value))
            self._add_entry(vector_infos, key, value, env_num)
        return vector_infos

    def _add_entry(self, infos: dict[str, Any], key: Any, value: Any, row: int) -> None:
        before = copy.copy(infos.get(key))
        mask = infos.get(f"_{key}", np.zeros(self.num_envs, np.bool_))
        kept = isinstance(before, dict) == isinstance(value, dict) or before is None
        if isinstance(before, BoxedEntry):
            before[row] = value
            kept = True
            infos[key] = before
        elif kept:
            try:
                with warnings.catch_warnings():  # numpy's, of imaginary parts and overflows
                    warnings.simplefilter("ignore")
                    super()._add_info(infos, {key: value}, row)
                kept = key == "final_obs" or isinstance(value, dict) or _holds(infos[key], value, row)
            except (TypeError, ValueError, OverflowError, IndexError):
                kept = False
        if not kept:
            infos[key] = _corrected(before, value, row, mask)
        mask[row] = True
        infos[f"_{key}"] = mask


def _holds(entry: np.ndarray, value: Any, row: int) -> bool:
    """Whether the array has the value that the env gave, rounded at most."""
    if entry.dtype == object and entry.ndim == 1:
        return True
    if value is None:
        return entry.ndim == 1 and entry.dtype.kind == "f"  # NaN, as gymnasium has it
    given = np.asarray(value)
    if given.shape != entry.shape[1:]:
        return False
    got = entry[row]
    if entry.dtype == object:
        return True
    if (given.dtype.kind in _NUMBERS) != (entry.dtype.kind in _NUMBERS):
        return False
    if given.dtype.kind == "c" != entry.dtype.kind:
        return False
    if given.dtype.kind == entry.dtype.kind == "f":
        return np.array_equal(np.isinf(got), np.isinf(given))
    return bool(np.array_equal(got, given, equal_nan=given.dtype.kind in "fc"))


def _corrected(before: Any, value: Any, row: int, mask: np.ndarray) -> np.ndarray:
    """The entry in a wider dtype, or as an object array where no dtype holds its values."""
    if isinstance(before, np.ndarray) and before.dtype.kind in _NUMBERS and not isinstance(value, (dict, type(None))):
        given = _as_array(value)
        if given is not None and given.dtype.kind in _NUMBERS and given.shape == before.shape[1:]:
            wide = before.astype(np.result_type(before.dtype, given.dtype))  # row: `1` from one, `2.7` from another
            wide[row] = given
            return wide
    if isinstance(before, np.ndarray) and before.dtype.kind in "US" and isinstance(value, np.ndarray):
        same = value.dtype.kind == before.dtype.kind and value.shape == before.shape[1:]
        if same:  # the same, for strings
            wide = before.astype(np.result_type(before.dtype, value.dtype))
            wide[row] = value
            return wide
    boxes = np.full(len(mask), None, object).view(BoxedEntry)  # rows: the other info entries
    for other in np.flatnonzero(mask):
        boxes[other] = _row(before, int(other))
    boxes[row] = value
    return boxes


def _as_array(value: Any) -> np.ndarray | None:
    try:
        return np.asarray(value)
    except ValueError:  # a ragged list
        return None


def _row(entry: Any, row: int) -> Any:
    """What one env gave of an entry."""
    if not isinstance(entry, Mapping):
        return entry[row]
    return {key: _row(part, row) for key, part in entry.items() if f"_{key}" in entry and entry[f"_{key}"][row]}


class SyncOracle(DeviatingInfos, gym.vector.SyncVectorEnv):
    """gymnasium's ``SyncVectorEnv``."""


class AsyncOracle(DeviatingInfos, gym.vector.AsyncVectorEnv):
    """gymnasium's ``AsyncVectorEnv``."""


def assert_results_same(ours: Any, theirs: Any, where: str) -> None:
    """Fails unless ours is the oracle's, to the bit; of an entry that both box, what the envs gave is compared."""
    if isinstance(theirs, BoxedEntry):
        assert type(ours) is np.ndarray, f"{where}: {ours!r}, expected an object array"
        assert ours.dtype == object, f"{where}: {ours!r}, expected an object array"
        assert len(ours) == len(theirs), where
        for row, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            assert_values_equal(our, their, f"{where}[{row}]")
    elif isinstance(theirs, dict) and isinstance(ours, dict):
        assert list(ours) == list(theirs), f"{where}: {list(ours)}, expected {list(theirs)}"
        for key in theirs:
            assert_results_same(ours[key], theirs[key], f"{where}[{key!r}]")
    elif type(theirs) is tuple and type(ours) is tuple:
        assert len(ours) == len(theirs), where
        for index, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            assert_results_same(our, their, f"{where}[{index}]")
    else:
        assert_same(ours, theirs, where)


def assert_values_equal(ours: Any, theirs: Any, where: str) -> None:
    """Fails unless an env's values are equal, be a number Python's or numpy's."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), f"{where}: {ours!r}, expected {theirs!r}"
        assert ours.keys() == theirs.keys(), f"{where}: {ours!r}, expected {theirs!r}"
        for key in theirs:
            assert_values_equal(ours[key], theirs[key], f"{where}[{key!r}]")
    elif isinstance(theirs, (bool, int, float, complex, np.generic, np.ndarray)):
        our, their = np.asarray(ours), np.asarray(theirs)
        assert our.shape == their.shape, f"{where}: {ours!r}, expected {theirs!r}"
        assert np.array_equal(our, their, equal_nan=their.dtype.kind in "fc"), f"{where}: {ours!r}, expected {theirs!r}"
    else:
        assert_same(ours, theirs, where)
