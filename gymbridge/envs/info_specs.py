"""Which entries of a gymnasium env's infos are kept as leaves, and what they look like."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from gymbridge.engine.layout import Leaf
from gymbridge.engine.rows import info_entries
from gymbridge.specs import Composite, Unbounded

__all__ = ["discover_infos", "info_leaves"]

DISCOVERY_STEPS = 1_000
"""Steps at most to look for entries: many appear only at an episode's end."""


def info_leaves(info_spec: Composite | None) -> tuple[Leaf, ...]:
    """The leaves of a spec of infos, keyed by their path in the info.

    Raises:
        TypeError: something that is not a Composite, or a leaf that is not a tensor.
        ValueError: a spec with a batch shape, or a top-level key ``"_mask"``.
    """
    if info_spec is None:
        return ()
    if not isinstance(info_spec, Composite):
        raise TypeError(f"info: got {info_spec!r}, expected None, 'auto' or a Composite of the entries to keep")
    if info_spec.shape:
        raise ValueError(f"info: got batch shape {[*info_spec.shape]}, expected the specs of one env, without a batch")
    if "_mask" in info_spec.keys():
        raise ValueError("info: got the key '_mask', which says what was present")
    leaves = []
    for key, spec in info_spec.items(True, True):
        path = (key,) if isinstance(key, str) else key
        if spec.dtype is None:
            raise TypeError(f"info: {'.'.join(path)} has the spec {spec}, expected one of a tensor")
        if spec.dtype is torch.bfloat16:
            raise TypeError(f"info: {'.'.join(path)} has dtype {spec.dtype}, expected one that numpy has")
        leaves.append(Leaf(path, tuple(spec.shape), torch.empty(0, dtype=spec.dtype).numpy().dtype))
    return tuple(leaves)


def discover_infos(make: Callable[[], gym.Env[Any, Any]]) -> Composite:
    """The numeric entries that an env's infos have, found by random steps of an env made for that.

    Steps go on until an episode ends, 1,000 at most. An entry that was an int and then a float is a float. Entries that
    are no numbers or arrays of numbers that torch has, that change their shape, or that are a dict at other times, are
    left out and named in one warning.
    """
    env = make()
    found = _Found()
    try:
        env.action_space.seed(0)
        _, info = env.reset(seed=0)
        found.look_at(info)
        for _ in range(DISCOVERY_STEPS):
            _, _, terminated, truncated, info = env.step(env.action_space.sample())
            found.look_at(info)
            if terminated or truncated:
                break
    finally:
        env.close()
    spec = found.spec()
    if found.left_out:
        names = sorted(".".join(map(str, path)) for path in found.left_out)
        warnings.warn(
            f"info entries that are no leaves of one shape and of numbers are left out: {names}", stacklevel=2
        )
    return spec


class _Found:
    """The entries of the infos seen so far."""

    def __init__(self) -> None:
        self.entries: dict[tuple[Any, ...], npt.NDArray[Any]] = {}
        self.left_out: set[tuple[Any, ...]] = set()

    def look_at(self, info: Any) -> None:
        if not isinstance(info, Mapping):
            return  # the first step says what is wrong with it
        for path, value in info_entries(info):
            if path not in self.left_out and value is not None:
                merged = _merged(self.entries.get(path), _as_numbers(path, value))
                if merged is None:
                    self.left_out.add(path)
                else:
                    self.entries[path] = merged

    def spec(self) -> Composite:
        groups = {path[:length] for path in self.entries for length in range(1, len(path))}
        self.left_out |= groups & set(self.entries)
        spec = Composite()
        for path, array in self.entries.items():
            if path not in self.left_out:
                spec.set(path, Unbounded(array.shape, dtype=torch.from_numpy(array).dtype))
        return spec


def _as_numbers(path: tuple[Any, ...], value: Any) -> npt.NDArray[Any] | None:
    """The value as an array that torch can have; None where there is none."""
    if not all(isinstance(part, str) for part in path):
        return None
    try:
        array = np.asarray(value)
        torch.from_numpy(np.empty(0, array.dtype))
    except (TypeError, ValueError, RuntimeError):
        return None
    return np.empty(array.shape, array.dtype) if array.dtype.kind in "biuf" else None


def _merged(before: npt.NDArray[Any] | None, now: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
    """An array of the shape of both and a dtype that holds both; None where there is none."""
    if before is None or now is None:
        return now
    if before.shape != now.shape:
        return None
    return np.empty(now.shape, np.result_type(before, now))
