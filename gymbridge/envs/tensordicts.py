"""TensorDicts made and read on the hot path, with as little ceremony as tensordict allows: the one place that does so.

What is built here from parts that are known to fit skips tensordict's checks; what a user hands in does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_leaf_nontensor,
)

__all__ = [
    "LARGE_STACK",
    "Assembler",
    "Key",
    "cloned",
    "dense_stack",
    "densified",
    "entries",
    "entry",
    "fill",
    "flattened",
    "is_plain",
    "large_tensor",
    "leaf_paths",
    "non_tensor",
    "nothing_like",
    "picked_rows",
    "put",
    "put_entry",
    "row_of",
    "tensordict_of",
    "with_entries",
]

Key = tuple[str, ...]

LARGE_STACK = 2**25
"""Bytes from which on allocators have memory from the system for each use, and give it back at once."""

_TENSORS = {torch.Tensor}
_new_unsafe = TensorDict._new_unsafe
_IS_PLAIN = vars(TensorDict()).keys() == {"_device", "_tensordict", "_batch_size", "_td_dim_names"}
"""Whether a TensorDict is no more than its entries, batch size, device and dim names."""


def _new(entries: Any, batch_size: torch.Size, device: torch.device | None) -> TensorDict:
    """A TensorDict over a dict of its own, whose values are known to fit; half the cost of ``_new_unsafe``."""
    if not _IS_PLAIN:
        made: TensorDict = _new_unsafe(source=entries, batch_size=batch_size, device=device)
        return made
    made = object.__new__(TensorDict)
    made.__dict__.update(_device=device, _tensordict=entries, _batch_size=batch_size, _td_dim_names=None)
    return made


def tensordict_of(entries: Any, batch_size: torch.Size, device: torch.device | None) -> TensorDict:
    """A TensorDict over entries that are known to have this batch size and device."""
    return _new(entries, batch_size, device)


def entry(tensordict: TensorDictBase, key: str) -> Any:
    """The entry at a root key, None where there is none."""
    if type(tensordict) is TensorDict:
        return tensordict._tensordict.get(key)
    return tensordict.get(key, None)


def with_entries(tensordict: TensorDictBase, entries: dict[str, Any]) -> TensorDictBase:
    """A shallow copy with these root entries, which are known to have the TensorDict's batch size and device.

    Example:
        >>> td = TensorDict(x=torch.zeros(2))
        >>> sorted(with_entries(td, {"y": torch.ones(2)}).keys()), [*td.keys()]
        (['x', 'y'], ['x'])
    """
    if type(tensordict) is TensorDict and not any(isinstance(value, TensorDictBase) for value in tensordict.values()):
        return tensordict_of({**tensordict._tensordict, **entries}, tensordict.batch_size, tensordict.device)
    copy = tensordict.copy()
    for key, value in entries.items():
        copy.set(key, value)
    return copy


_Value = TypeVar("_Value")


def cloned(value: _Value) -> _Value:
    """A tensor, or a TensorDict of tensors, in memory of its own; data that are no tensors are shared.

    A TensorDict's own ``clone`` adds zero to its tensors where it has a device: torch does not for uint16, uint32 and
    uint64, and -0.0 becomes 0.0.

    Example:
        >>> td = TensorDict(x=torch.tensor([-0.0]), y=torch.tensor([7], dtype=torch.uint16), device="cpu")
        >>> cloned(td)["x"], cloned(td)["y"]
        (tensor([-0.]), tensor([7], dtype=torch.uint16))
    """
    made: Any = value
    if type(made) is TensorDict:
        entries = {name: cloned(part) for name, part in made._tensordict.items()}
        return tensordict_of(entries, made.batch_size, made.device)
    if type(made) is LazyStackedTensorDict:
        rows = [cloned(row) for row in made.tensordicts]
        return LazyStackedTensorDict(*rows, stack_dim=made.stack_dim)
    return made.clone()  # type: ignore[no-any-return]


def put_entry(tensordict: TensorDictBase, key: str, value: TensorDictBase | torch.Tensor) -> None:
    """Sets a root key to a value that has the TensorDict's batch size, moving it if the TensorDict has another device.

    Raises:
        RuntimeError: the TensorDict is locked.
    """
    fits = type(tensordict) is TensorDict and not tensordict.is_locked and tensordict.device in (None, value.device)
    if fits:
        tensordict._set_str(key, value, validated=True, inplace=False, non_blocking=False)
    else:
        tensordict.set(key, value)


def put(tensordict: TensorDictBase, key: Key, value: torch.Tensor) -> None:
    """Sets a leaf of a TensorDict of our own to a tensor that is known to fit."""
    if len(key) == 1 and type(tensordict) is TensorDict:
        tensordict._tensordict[key[0]] = value
    else:
        tensordict.set(key, value)


def leaf_paths(tensordict: TensorDictBase) -> list[Key]:
    """The paths of all leaves, those that are no tensors included.

    Example:
        >>> leaf_paths(TensorDict(x=torch.zeros(2), arm=TensorDict(name="left")))
        [('x',), ('arm', 'name')]
    """
    keys = tensordict.keys(include_nested=True, leaves_only=True, is_leaf=is_leaf_nontensor)
    return [(key,) if isinstance(key, str) else key for key in keys]


def flattened(tensordict: TensorDictBase) -> tuple[tuple[Any, ...], list[Any]]:
    """The keys of all leaves, those that are no tensors included, and their values; at the root a key is a string.

    Example:
        >>> flattened(TensorDict(x=torch.zeros(()), arm=TensorDict(angle=torch.ones(()))))
        (('x', ('arm', 'angle')), [tensor(0.), tensor(1.)])
    """
    if type(tensordict) is TensorDict:
        source = tensordict._tensordict
        values = [*source.values()]
        if set(map(type, values)) <= _TENSORS:  # the usual case
            return tuple(source), values
    keys: list[Any] = []
    values = []
    _collect(tensordict, (), keys, values)
    return tuple(keys), values


def _collect(tensordict: TensorDictBase, path: Key, keys: list[Any], values: list[Any]) -> None:
    for name, value in tensordict.items():
        if isinstance(value, TensorDictBase) and not is_leaf_nontensor(type(value)):
            _collect(value, (*path, name), keys, values)
        else:
            keys.append((*path, name) if path else name)
            values.append(value)


def entries(tensordict: TensorDictBase) -> dict[str, Any]:
    """The entries at the root, in a dict of their own."""
    return dict(tensordict._tensordict) if type(tensordict) is TensorDict else dict(tensordict.items())


def row_of(tensordict: TensorDictBase, row: int) -> TensorDictBase:
    """A row of the first batch dim, with views of the tensors; of a lazy stack the TensorDict that lies there."""
    if isinstance(tensordict, LazyStackedTensorDict) and tensordict.stack_dim == 0:
        lying: TensorDictBase = tensordict.tensordicts[row]
        return lying
    return tensordict[row]


def dense_stack(
    tensordicts: Sequence[TensorDictBase], dim: int, made: Mapping[str, Any] = MappingProxyType({})
) -> TensorDictBase:
    """A stack made leaf by leaf, which costs a fraction of what stacking TensorDicts does.

    Lazy stacks along a dim before ``dim`` stay such, and what lies in them is stacked.

    Args:
        tensordicts: one or more.
        dim: that of the stack.
        made: leaves that are stacked already, nested as the TensorDicts are; of plain TensorDicts only.

    Raises:
        ValueError: the TensorDicts differ in keys or shapes.

    Example:
        >>> dense_stack([TensorDict(x=torch.zeros(2)), TensorDict(x=torch.ones(2))], 0)["x"]
        tensor([[0., 0.],
                [1., 1.]])
    """
    first = tensordicts[0]
    if isinstance(first, LazyStackedTensorDict) and not is_leaf_nontensor(type(first)) and first.stack_dim < dim:
        rows = zip(*(lazy.tensordicts for lazy in tensordicts), strict=True)
        return LazyStackedTensorDict(*(dense_stack(row, dim - 1) for row in rows), stack_dim=first.stack_dim)
    for index, other in enumerate(tensordicts):
        if set(other.keys()) != set(first.keys()):
            raise ValueError(f"{index} has the keys {[*other.keys()]}, and 0 {[*first.keys()]}")
    batch_size = torch.Size([*first.batch_size[:dim], len(tensordicts), *first.batch_size[dim:]])
    stacked: TensorDictBase = first.empty(batch_size=batch_size)
    for key, value in first.items():
        if isinstance(made.get(key), torch.Tensor):
            stacked.set(key, made[key])
            continue
        values = [entry(other, key) for other in tensordicts]
        if isinstance(value, TensorDictBase) and not is_leaf_nontensor(type(value)):
            stacked.set(key, dense_stack(values, dim, made.get(key, {})))
            continue
        if isinstance(value, torch.Tensor) and len(dtypes := {part.dtype for part in values}) > 1:
            raise ValueError(f"{key}: dtypes {dtypes} differ")
        try:
            stacked.set(key, _stack(values, dim))
        except RuntimeError as error:
            shapes = [[*part.shape] for part in values]
            raise ValueError(f"{key}: shapes {shapes} differ") from error
    return stacked


def _stack(values: list[Any], dim: int) -> Any:
    first = values[0]
    if type(first) is torch.Tensor and first.nbytes * len(values) >= LARGE_STACK and all(map(is_plain, values)):
        shape = (*first.shape[:dim], len(values), *first.shape[dim:])
        return torch.stack(values, dim, out=large_tensor(shape, first.dtype))
    return torch.stack(values, dim)


def is_plain(value: Any) -> bool:
    """Whether a value is a tensor on the CPU of which a copy of its numbers is all there is."""
    return type(value) is torch.Tensor and value.is_cpu and value.layout is torch.strided and not value.requires_grad


def large_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of ``LARGE_STACK`` bytes or more, which may hold anything.

    Its memory is numpy's, which asks for large pages: the first use of many small ones costs more than a copy does.
    """
    return torch.from_numpy(np.empty(prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(*shape)


def densified(tensordict: TensorDictBase) -> TensorDictBase:
    """A lazy stack along the first dim as a dense TensorDict, if its rows agree; else as it is.

    Example:
        >>> lazy = LazyStackedTensorDict(TensorDict(x=torch.zeros(2)), TensorDict(x=torch.ones(2)))
        >>> type(densified(lazy)).__name__
        'TensorDict'
    """
    if not isinstance(tensordict, LazyStackedTensorDict) or tensordict.stack_dim:
        return tensordict
    try:
        return dense_stack(tensordict.tensordicts, 0)
    except ValueError:
        return tensordict


def fill(tensordict: TensorDictBase, others: TensorDictBase) -> None:
    """Sets the leaves of ``others`` that the TensorDict does not have, at any depth.

    Example:
        >>> td = TensorDict(x=torch.zeros(2), arm=TensorDict(angle=torch.zeros(2)))
        >>> fill(td, TensorDict(x=torch.ones(2), arm=TensorDict(hidden=torch.ones(2))))
        >>> td["x"], sorted(td["arm"].keys())
        (tensor([0., 0.]), ['angle', 'hidden'])
    """
    if type(others) is TensorDict and type(tensordict) is TensorDict:
        theirs, kinds = others._tensordict, set(map(type, others._tensordict.values()))
        if kinds <= _TENSORS:  # no groups: names are enough
            if not theirs.keys() <= tensordict._tensordict.keys():
                for name in [name for name in theirs if name not in tensordict._tensordict]:
                    tensordict.set(name, theirs[name])
            return
    if isinstance(tensordict, LazyStackedTensorDict):
        for row, part in enumerate(tensordict.tensordicts):
            fill(part, row_of(others, row))
        return
    mine = set(leaf_paths(tensordict))
    for key in leaf_paths(others):
        if key not in mine:
            tensordict.set(key, others.get(key))


def picked_rows(mask: torch.Tensor, value: Any, other: Any) -> Any:
    """Rows of a leaf where the mask is True, of another elsewhere; zeros, or None as data, where there is no other.

    Example:
        >>> picked_rows(torch.tensor([True, False]), torch.ones(2, 2), torch.zeros(2, 2))
        tensor([[1., 1.],
                [0., 0.]])
    """
    if not mask.ndim:
        if mask:
            return value
        return other if other is not None else nothing_like(value)
    if isinstance(value, torch.Tensor):
        if other is not None and other.shape != value.shape:
            raise ValueError(
                f"rows of shape {[*value.shape]} and, where the mask leaves them out, {[*other.shape]} are no tensor: "
                f"of shapes that change a batch of its own is stepped and reset whole"
            )
        rows = mask.to(value.device).reshape((*mask.shape, *[1] * (value.ndim - mask.ndim)))
        return torch.where(rows, value, torch.zeros_like(value) if other is None else other)
    if not len(mask):
        return value
    rest = [None] * len(mask) if other is None else other
    return NonTensorStack(*[picked_rows(*row) for row in zip(mask, value, rest, strict=True)])


def nothing_like(value: Any) -> Any:
    """Zeros like a tensor; of data that are no tensor None."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    return NonTensorData(None, batch_size=value.batch_size)


def non_tensor(data: Any) -> NonTensorData:
    """One piece of data that is no tensor, without a batch.

    It is a copy of one that tensordict made, with other data in it: before tensordict 0.15 making one costs ten times
    as much.

    Example:
        >>> non_tensor("left").data
        'left'
    """
    if not _COPIES:
        return NonTensorData(data)
    made: NonTensorData = object.__new__(NonTensorData)
    parts = made.__dict__
    parts.update(_PARTS)
    parts["_tensordict"] = _new({}, _NO_BATCH, None)
    parts["_non_tensordict"] = {**_PARTS["_non_tensordict"], "data": data}
    return made


_NO_BATCH = torch.Size()
_PARTS = vars(NonTensorData(""))
_COPIES = _PARTS.keys() == {"_tensordict", "_non_tensordict", "_is_initialized"}
"""Whether a ``NonTensorData`` has the parts that :func:`non_tensor` knows of, and no others."""


class Assembler:
    """Builds TensorDicts of one shape over and over.

    Args:
        keys: the leaves' keys, in the order in which their tensors will be given.
        batch_size, device: those of the TensorDict and, unless told, of the ones nested in it.
        groups: keys of nested TensorDicts, which are there even if they are empty, and their batch sizes.

    Example:
        >>> assemble = Assembler([("pixels",), ("joints", "speed")], torch.Size([2]), None)
        >>> made = assemble([torch.zeros(2, 3), torch.ones(2)])
        >>> made["joints", "speed"]
        tensor([1., 1.])
    """

    def __init__(
        self,
        keys: Iterable[Key],
        batch_size: torch.Size,
        device: torch.device | None,
        groups: Mapping[Key, torch.Size] | None = None,
    ):
        self.keys = tuple(keys)
        self.batch_size = batch_size
        self.device = device
        self._tree: dict[str, Any] = {}
        for position, key in enumerate(self.keys):
            group = self._tree
            for part in key[:-1]:
                group = group.setdefault(part, {})
            group[key[-1]] = position
        self._sizes = dict(groups or {})
        for key in self._sizes:
            group = self._tree
            for part in key:
                group = group.setdefault(part, {})
        flat = all(isinstance(part, int) for part in self._tree.values())
        self._names = [key[0] for key in self.keys] if flat else None

    def __call__(self, tensors: Sequence[Any]) -> TensorDict:
        """The TensorDict of these tensors, one a key."""
        if self._names is not None:
            entries: Any = dict(zip(self._names, tensors, strict=True))
            return _new(entries, self.batch_size, self.device)
        return self._build((), self._tree, tensors)

    def each(self, columns: Sequence[Sequence[Any]]) -> list[TensorDict]:
        """A TensorDict for each row of the columns, one column a key."""
        names, batch_size, device = self._names, self.batch_size, self.device
        if names is None:
            return [self._build((), self._tree, row) for row in zip(*columns, strict=True)]
        if len(names) == 1:
            name = names[0]
            return [_new({name: value}, batch_size, device) for value in columns[0]]
        rows = zip(*columns, strict=True)
        return [_new(dict(zip(names, row, strict=True)), batch_size, device) for row in rows]

    def _build(self, path: Key, tree: dict[str, Any], tensors: Sequence[Any]) -> TensorDict:
        entries = {
            name: self._build((*path, name), part, tensors) if isinstance(part, dict) else tensors[part]
            for name, part in tree.items()
        }
        return tensordict_of(entries, self._sizes.get(path, self.batch_size), self.device)
