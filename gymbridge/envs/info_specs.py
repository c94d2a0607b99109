"""Which entries of a gymnasium env's infos are kept as leaves, and what they look like."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
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

    Steps go on until an episode ends, 1,000 at most. Entries that are no numbers or arrays are named in one warning.
    """
    env = make()
    found: dict[tuple[str, ...], Any] = {}
    try:
        env.action_space.seed(0)
        _, info = env.reset(seed=0)
        found.update(info_entries(info))
        for _ in range(DISCOVERY_STEPS):
            _, _, terminated, truncated, info = env.step(env.action_space.sample())
            found.update((key, value) for key, value in info_entries(info) if key not in found)
            if terminated or truncated:
                break
    finally:
        env.close()
    spec = Composite()
    others = []
    for key, value in found.items():
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            spec.set(key, Unbounded(array.shape, dtype=torch.from_numpy(np.empty(0, array.dtype)).dtype))
        else:
            others.append(".".join(key))
    if others:
        warnings.warn(
            f"info entries that are neither numbers nor arrays of numbers are left out: {others}", stacklevel=2
        )
    return spec
