"""Which leaves of a TensorDict env have a place in a block, and how these places look as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from gymbridge.engine.layout import Leaf
from gymbridge.envs.env_specs import EnvSpecs
from gymbridge.envs.spec_keys import leaf_keys
from gymbridge.specs import Composite, TensorSpec

__all__ = ["NO_PLACES", "EnvPlaces", "PlacedLeaf", "placed_leaves", "put_rows", "tensors_of"]

Key = tuple[str, ...]


class PlacedLeaf(NamedTuple):
    """A leaf of a spec that has a place in a block.

    Attributes:
        key: in the spec.
        leaf: in the block, under a name that tells its dtype and shape too: envs that are not alike share a block.
        dtype: that of its tensors.
    """

    key: Key
    leaf: Leaf
    dtype: torch.dtype


class EnvPlaces(NamedTuple):
    """The leaves of an env that have a place in each section of a block.

    Attributes:
        input: of what a step is given.
        next: of what a step gives.
        root: of what a reset gives.
    """

    input: tuple[PlacedLeaf, ...]
    next: tuple[PlacedLeaf, ...]
    root: tuple[PlacedLeaf, ...]

    @classmethod
    def of(cls, env: EnvSpecs, *, keeps_devices: bool) -> EnvPlaces:
        """Those of an env; see :func:`placed_leaves`."""
        seen, flags, rewards = env.full_observation_spec, env.full_done_spec, env.full_reward_spec
        return cls(
            placed_leaves(env.full_action_spec, env.full_state_spec, keeps_devices=keeps_devices),
            placed_leaves(seen, rewards, flags, keeps_devices=keeps_devices),
            placed_leaves(seen, flags, keeps_devices=keeps_devices),
        )


NO_PLACES = EnvPlaces((), (), ())
"""Of an env of which nothing goes through a block."""


def placed_leaves(*specs: Composite, keeps_devices: bool = False) -> tuple[PlacedLeaf, ...]:
    """The leaves of some specs that have a place: tensors of fixed shapes.

    Args:
        specs: of one env, without keys that two of them have.
        keeps_devices: what is elsewhere than on the CPU has no place.

    Example:
        >>> from gymbridge.specs import NonTensor, Unbounded
        >>> spec = Composite(x=Unbounded((2,)), parts=Unbounded((-1,)), name=NonTensor(()))
        >>> [placed.leaf for placed in placed_leaves(spec)]
        [Leaf(key=('x', 'float32[2]'), shape=(2,), dtype=dtype('float32'))]
    """
    return tuple(_placed(specs, keeps_devices))


def _placed(specs: Iterable[Composite], keeps_devices: bool) -> Iterator[PlacedLeaf]:
    for spec in specs:
        for key in leaf_keys(spec):
            one: TensorSpec = spec[key]
            if one.dtype is None or -1 in one.shape or not _has_a_place(one.device, keeps_devices):
                continue
            shape = tuple(one.shape)
            name = f"{str(one.dtype).removeprefix('torch.')}{[*shape]}"
            yield PlacedLeaf(key, Leaf((*key, name), shape, _numpy_dtype(one.dtype)), one.dtype)


def _has_a_place(device: torch.device | None, keeps_devices: bool) -> bool:
    if device is None or device.type == "cpu":
        return True
    return not keeps_devices and device.type != "meta"  # which holds no values


def _numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The dtype of the same bytes in numpy; unsigned integers where numpy has no such dtype, bfloat16 say."""
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return np.dtype(f"u{dtype.itemsize}")


def tensors_of(arrays: Mapping[Key, npt.NDArray[Any]], placed: Iterable[PlacedLeaf]) -> dict[Key, torch.Tensor]:
    """Key -> the tensor ``[N, …]`` of a leaf in a section of a block, over the block's own memory.

    It may be written to in and outside of ``inference_mode``, wherever this was called.
    """
    with torch.inference_mode(False):
        return {one.key: torch.from_numpy(arrays[one.leaf.key]).view(one.dtype) for one in placed}


def put_rows(column: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> None:
    """Writes some rows of a column, of whichever dtype.

    Args:
        column: ``[N, …]``, changed in place.
        rows: their numbers, int64 ``[n]``.
        values: ``[n, …]``.

    Example:
        >>> column = torch.zeros(3, dtype=torch.uint16)
        >>> put_rows(column, torch.tensor([2, 0]), torch.tensor([7, 8], dtype=torch.uint16))
        >>> column
        tensor([8, 0, 7], dtype=torch.uint16)
    """
    try:
        column.index_copy_(0, rows, values)
    except NotImplementedError:  # torch has it for some dtypes only
        for row, value in zip(rows.tolist(), values, strict=True):
            column[row].copy_(value)
