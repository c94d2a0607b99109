"""What rows were sent, kept until they are received, and put together again as they come."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from gymbridge.envs.tensordicts import (
    cloned,
    densified,
    entries,
    entry,
    leaf_paths,
    nothing_like,
    put,
    row_of,
    tensordict_of,
)

__all__ = ["taken_over", "together"]

Key = tuple[str, ...]

_Tensor = torch.Tensor
_TENSORS = {torch.Tensor}


def taken_over(tensordict: TensorDictBase, inputs: Collection[Key], left_out: Collection[str]) -> TensorDictBase:
    """A shallow copy that the caller's later changes do not reach, with copies of the leaves that envs are given.

    Args:
        inputs: the leaves that are copied, where they are there.
        left_out: names that are not taken over.

    Example:
        >>> td = TensorDict(action=torch.zeros(2), env_index=torch.tensor([0, 1]), batch_size=[2])
        >>> own = taken_over(td, [("action",)], ["env_index"])
        >>> td["action"].add_(1), own["action"]
        (tensor([1., 1.]), tensor([0., 0.]))
    """
    if type(tensordict) is LazyStackedTensorDict and tensordict.stack_dim == 0:  # the rows may have other shapes
        rows = [taken_over(row, inputs, left_out) for row in tensordict.tensordicts]
        return LazyStackedTensorDict(*rows, stack_dim=0)
    if type(tensordict) is not TensorDict:
        own: TensorDictBase = tensordict.exclude(*left_out).copy()
    else:
        root = entries(tensordict)
        for name in left_out:
            root.pop(name, None)
        for name, value in root.items():
            if type(value) is not _Tensor and isinstance(value, TensorDictBase):
                root[name] = value.copy()
        own = tensordict_of(root, tensordict.batch_size, tensordict.device)
    for key in inputs:
        value = entry(own, key[0]) if len(key) == 1 else own.get(key, None)
        if type(value) is _Tensor or isinstance(value, torch.Tensor):
            put(own, key, value.clone())
    return own


def together(parts: Sequence[tuple[TensorDictBase | None, int]], *, dense: bool) -> TensorDictBase | None:
    """Rows of what was sent, in this order, as one TensorDict of the caller's own; None where nothing was.

    Args:
        parts: a TensorDict, and the position of the row in it. A row is asked for once: one whole TensorDict in its own
            order is handed out as it is.
        dense: put dense rows together leaf by leaf; what one has and another has not is zero there. Without, and where
            shapes differ, the result is a lazy stack.

    Example:
        >>> td = TensorDict(x=torch.arange(3), batch_size=[3])
        >>> together([(td, 2), (td, 0)], dense=True)["x"]
        tensor([2, 0])
    """
    first, _ = parts[0]
    if _are_one(first, parts) and (first is None or dense is (type(first) is TensorDict)):
        return first
    if first is None and not any(tensordict is not None for tensordict, _ in parts):
        return None
    columns = _columns(parts) if dense else None
    if columns is not None:
        assert first is not None
        return tensordict_of(columns, torch.Size((len(parts), *first.batch_size[1:])), first.device)
    rows = _with_equal_keys([None if td is None else cloned(row_of(td, at)) for td, at in parts], fill=dense)
    stacked = LazyStackedTensorDict(*rows, stack_dim=0)
    return densified(stacked) if dense else stacked


def _are_one(whole: TensorDictBase | None, parts: Sequence[tuple[TensorDictBase | None, int]]) -> bool:
    """Whether the parts are all rows of a TensorDict, in its order."""
    if whole is not None and whole.batch_size[0] != len(parts):
        return False
    return all(tensordict is whole and at == position for position, (tensordict, at) in enumerate(parts))


def _columns(parts: Sequence[tuple[TensorDictBase | None, int]]) -> dict[str, Any] | None:
    """Root entry by root entry, where all of them are tensors and the rows have the same; else None."""
    first, position = parts[0]
    if type(first) is not TensorDict:
        return None
    plain = first._tensordict
    if not {*map(type, plain.values())} <= _TENSORS:
        return None
    if len(parts) == 1:
        return {name: value[position : position + 1].clone() for name, value in plain.items()}
    groups: dict[int, tuple[TensorDict, list[int], list[int]]] = {}
    shared = [(name, value.shape[1:], value.dtype, value.device) for name, value in plain.items()]
    for row, (tensordict, at) in enumerate(parts):
        group = groups.get(id(tensordict))
        if group is None:
            if type(tensordict) is not TensorDict or (
                tensordict is not first and not _is_like(tensordict, first, shared)
            ):
                return None
            group = groups[id(tensordict)] = (tensordict, [], [])
        group[1].append(at)
        group[2].append(row)
    if 2 * len(groups) > len(parts):
        return {name: torch.stack([td._tensordict[name][at] for td, at in parts]) for name in plain}  # type: ignore[union-attr]
    picked = [(td._tensordict, torch.tensor(at)) for td, at, _ in groups.values()]
    if len(picked) == 1:
        ((entries_of, index),) = picked
        return {name: value[index.to(value.device)] for name, value in entries_of.items()}
    order = torch.tensor([row for _, _, rows in groups.values() for row in rows]).argsort()
    columns = {}
    for name in plain:
        joined = torch.cat([entries_of[name][index.to(entries_of[name].device)] for entries_of, index in picked])
        columns[name] = joined[order.to(joined.device)]
    return columns


def _is_like(tensordict: TensorDict, first: TensorDict, shared: Sequence[tuple[Any, ...]]) -> bool:
    """Whether rows of both can be put together leaf by leaf."""
    others: Any = tensordict._tensordict
    return (
        tensordict.device == first.device
        and len(others) == len(shared)
        and {*map(type, others.values())} <= _TENSORS
        and all(
            name in others
            and others[name].shape[1:] == shape
            and others[name].dtype is dtype
            and others[name].device == device
            for name, shape, dtype, device in shared
        )
    )


def _with_equal_keys(rows: list[TensorDictBase | None], *, fill: bool) -> list[TensorDictBase]:
    """The rows, where one was given nothing an empty one; with ``fill`` each with every key that one of them has."""
    some = next(row for row in rows if row is not None)
    made = [some.empty() if row is None else row for row in rows]
    if fill:
        keys = {key: row.get(key) for row in reversed(made) for key in leaf_paths(row)}
        for row in made:
            for key in keys.keys() - {*leaf_paths(row)}:
                row.set(key, nothing_like(keys[key]))
    return made
