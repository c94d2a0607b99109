"""Equality to the bit: of values, dtypes, types and structure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces


def assert_same(ours: Any, theirs: Any, where: str = "value") -> None:
    """Fails, naming the place, unless the two are equal to the bit.

    Dicts have the same keys in the same order, arrays the same dtype, shape and bytes, scalars the same type; NaN
    equals NaN.
    """
    assert type(ours) is type(theirs), f"{where}: {type(ours)} ({ours!r}), expected {type(theirs)} ({theirs!r})"
    if isinstance(ours, dict):
        assert list(ours) == list(theirs), where
        for key in ours:
            assert_same(ours[key], theirs[key], f"{where}[{key!r}]")
    elif isinstance(ours, (tuple, list)):
        assert len(ours) == len(theirs), where
        for index, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(our, their, f"{where}[{index}]")
    elif isinstance(ours, (np.ndarray, np.generic)):
        assert ours.dtype == theirs.dtype, f"{where}: {ours.dtype}, expected {theirs.dtype}"
        assert ours.shape == theirs.shape, f"{where}: {ours.shape}, expected {theirs.shape}"
        if ours.dtype.hasobject:
            for index in np.ndindex(ours.shape):
                assert_same(ours[index], theirs[index], f"{where}[{index}]")
        elif ours.dtype.char == "g":  # has padding bytes that mean nothing
            assert np.array_equal(ours, theirs, equal_nan=True), f"{where}: {ours}, expected {theirs}"
            assert np.array_equal(np.signbit(ours), np.signbit(theirs)), f"{where}: {ours}, expected {theirs}"
        else:
            assert ours.tobytes() == theirs.tobytes(), f"{where}: {ours}, expected {theirs}"
    elif isinstance(ours, (float, complex)):
        assert_same(np.asarray(ours), np.asarray(theirs), where)
    else:
        assert ours == theirs, f"{where}: {ours!r}, expected {theirs!r}"


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    """All arrays in a structure, those that object arrays hold included."""
    if isinstance(value, dict):
        for part in value.values():
            yield from arrays_in(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from arrays_in(part)
    elif isinstance(value, np.ndarray):
        yield value
        if value.dtype.hasobject:
            for part in value.flat:
                yield from arrays_in(part)


def as_in_space(space: spaces.Space, sample: Any) -> Any:
    """A sample with each array in its space's dtype, one without dimensions as a numpy scalar; the rest as it is."""
    if isinstance(space, spaces.Dict):
        return {key: as_in_space(part, sample[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(as_in_space(part, value) for part, value in zip(space.spaces, sample, strict=True))
    is_array = isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))
    return np.asarray(sample).astype(space.dtype)[()] if is_array else sample


def with_final_obs_in_space(infos: dict[str, Any], space: spaces.Space) -> dict[str, Any]:
    """gymnasium's infos with ``final_obs`` as gymbridge gives it: in the space's dtype and structure."""
    if "final_obs" not in infos:
        return infos
    final = np.full(len(infos["final_obs"]), None, object)
    for row in np.flatnonzero(infos["_final_obs"]):
        final[row] = as_in_space(space, infos["final_obs"][row])
    return {key: final if key == "final_obs" else value for key, value in infos.items()}
