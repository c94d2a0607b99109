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
from gymbridge.specs import Composite, NonTensor, Unbounded

__all__ = ["discover_infos", "info_leaves"]

DISCOVERY_STEPS = 1_000
"""Steps at most to look for entries: many appear only at an episode's end."""


def info_leaves(info_spec: Composite | None) -> tuple[Leaf, ...]:
    """The leaves of a spec of infos, keyed by their path in the info.

    Raises:
        TypeError: something that is not a Composite, or a leaf of a dtype that numpy lacks.
        ValueError: a spec with a batch shape, or a top-level key ``"_mask"`` that is not what an env returns.
    """
    if info_spec is None:
        return ()
    if not isinstance(info_spec, Composite):
        raise TypeError(f"info: got {info_spec!r}, expected None, 'auto' or a Composite of the entries to keep")
    if info_spec.shape:
        raise ValueError(f"info: got batch shape {[*info_spec.shape]}, expected the specs of one env, without a batch")
    leaves = []
    for key, spec in entries_alone(info_spec).items(True, True):
        path = (key,) if isinstance(key, str) else key
        if isinstance(spec, NonTensor):
            if spec.shape:
                raise ValueError(f"info: {'.'.join(path)} has the batch shape {[*spec.shape]}, expected none")
            leaves.append(Leaf(path, (), np.dtype(object)))
            continue
        if spec.dtype is torch.bfloat16:
            raise TypeError(f"info: {'.'.join(path)} has dtype {spec.dtype}, expected one that numpy has")
        leaves.append(Leaf(path, tuple(spec.shape), torch.empty(0, dtype=spec.dtype).numpy().dtype))
    return tuple(leaves)


def entries_alone(info_spec: Composite) -> Composite:
    """A spec of infos without the ``"_mask"`` that a spec of what an env returns has of its entries.

    Raises:
        ValueError: another ``"_mask"``: an entry of that name would stand in the way.
    """
    if "_mask" not in info_spec.keys():
        return info_spec
    entries, mask = info_spec.exclude("_mask"), info_spec["_mask"]
    is_mask = isinstance(mask, Composite) and all(spec.dtype is torch.bool for spec in mask.values(True, True))
    if not is_mask or {*mask.keys(True, True)} != {*entries.keys(True, True)}:
        raise ValueError("info: got the key '_mask', which says what was present")
    return entries


def discover_infos(make: Callable[[], gym.Env[Any, Any]]) -> tuple[Composite, frozenset[tuple[Any, ...]]]:
    """The entries that an env's infos have, found by random steps of an env made for that.

    Steps go on until an episode ends, 1,000 at most. An entry that was an int and then a float is a float. One that is
    no number or array of numbers that torch has, or that changes its shape, is a ``NonTensor``. One whose key is not a
    string, or that is a dict at other times, is left out, and named in one warning.

    Returns:
        The spec of the entries that are kept, and the paths of those left out.
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
    left_out = found.left_out()
    if left_out:
        names = sorted(".".join(map(str, path)) for path in left_out)
        warnings.warn(
            f"info entries whose keys are no strings, or that are dicts at other times, are left out: {names}",
            stacklevel=3,
        )
    return found.spec(), left_out


class _Found:
    """The entries of the infos seen so far: an array like theirs, or None where no array is like all of them."""

    def __init__(self) -> None:
        self.entries: dict[tuple[Any, ...], npt.NDArray[Any] | None] = {}

    def look_at(self, info: Any) -> None:
        if not isinstance(info, Mapping):
            return  # the first step says what is wrong with it
        for path, value in info_entries(info):
            if value is not None:
                now = _as_numbers(value)
                self.entries[path] = _merged(self.entries[path], now) if path in self.entries else now

    def left_out(self) -> frozenset[tuple[Any, ...]]:
        groups = {path[:length] for path in self.entries for length in range(1, len(path))}
        odd = {path for path in self.entries if not all(isinstance(part, str) for part in path)}
        return frozenset((groups & set(self.entries)) | odd)

    def spec(self) -> Composite:
        spec = Composite()
        for path, array in self.entries.items():
            if path not in self.left_out():
                kept = NonTensor(()) if array is None else Unbounded(array.shape, dtype=torch.from_numpy(array).dtype)
                spec.set(path, kept)
        return spec


def _as_numbers(value: Any) -> npt.NDArray[Any] | None:
    """An array like the value that torch can have; None where there is none."""
    try:
        array = np.asarray(value)
        torch.from_numpy(np.empty(0, array.dtype))
    except (TypeError, ValueError, RuntimeError):
        return None
    return np.empty(array.shape, array.dtype) if array.dtype.kind in "biuf" else None


def _merged(before: npt.NDArray[Any] | None, now: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
    """An array of the shape of both and a dtype that holds both; None where there is none."""
    if before is None or now is None or before.shape != now.shape:
        return None
    return np.empty(now.shape, np.result_type(before, now))
