"""What callers hand to envs, refused by name where it does not fit."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase

from gymbridge.specs import TensorSpec
from gymbridge.specs._bridge import as_device

__all__ = ["DeviceLike", "NestedKey", "as_seed", "env_device", "fits", "require_like"]

NestedKey: TypeAlias = str | tuple[str, ...]
DeviceLike: TypeAlias = torch.device | str | int

_NO_LEAD = torch.Size()


def as_seed(seed: Any) -> int | None:
    """A seed as a Python int, or None.

    Raises:
        TypeError: no int.
        ValueError: a negative one.
    """
    if seed is None:
        return None
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed: got {seed!r} of type {type(seed).__name__}, expected an int or None")
    if seed < 0:
        raise ValueError(f"seed: got {seed}, expected an int that is not negative")
    return int(seed)


def env_device(device: DeviceLike) -> torch.device:
    """The device with its index: ``"cuda"`` means the current one.

    Raises:
        ValueError: the device ``"meta"``, which holds no values.
    """
    found = as_device(device)
    if found.type == "meta":
        raise ValueError("device: got meta, expected one that holds values")
    return found


def require_like(
    key: NestedKey, value: Any, spec: TensorSpec, tensordict: TensorDictBase, lead: torch.Size = _NO_LEAD
) -> None:
    """Refuses an input that is missing or has another shape or dtype than its spec.

    Args:
        lead: dims that the value has before those of its spec.
    """
    name = key if isinstance(key, str) else ".".join(key)
    shape = torch.Size((*lead, *spec.shape)) if lead else spec.shape
    if value is None:
        raise KeyError(f"{name}: missing, expected shape {[*shape]} and {spec.dtype}; got keys {[*tensordict.keys()]}")
    if spec.dtype is None:  # data that are no tensor
        if found := spec.faults(value, (name,), len(lead)):
            raise ValueError("; ".join(found))
        return
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name}: got {type(value).__name__}, expected a tensor of shape {[*shape]} and {spec.dtype}")
    if value.shape != shape and not (spec.is_dynamic and fits(value.shape, shape)):
        raise ValueError(f"{name}: got shape {[*value.shape]}, expected {[*shape]}")
    if value.dtype is not spec.dtype:
        raise ValueError(f"{name}: got dtype {value.dtype}, expected {spec.dtype}")


def fits(shape: torch.Size, expected: torch.Size) -> bool:
    """Whether a shape is the expected one, in which ``-1`` stands for any size."""
    return len(shape) == len(expected) and all(wanted in (-1, got) for got, wanted in zip(shape, expected, strict=True))
