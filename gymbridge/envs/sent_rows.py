"""What rows were sent, kept until they are received, and put together again as they come."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
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

__all__ = ["Sent", "taken_over", "together"]

Key = tuple[str, ...]

_Tensor = torch.Tensor
_TENSORS = {torch.Tensor}
_FEW = 8
"""So many rows are copied one by one sooner than those of a TensorDict together."""


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


class Sent:
    """What rows were sent together, the pool's own; what is worked out of it is so once, when it is first needed.

    Args:
        tensordict: ``[n, *B]``.
    """

    __slots__ = ("_arrays", "_kinds", "tensordict")

    def __init__(self, tensordict: TensorDictBase):
        self.tensordict = tensordict
        self._kinds: tuple[Any, ...] | None = None
        self._arrays: list[npt.NDArray[Any]] = []

    @property
    def kinds(self) -> tuple[Any, ...]:
        """Batch size of a row, device, and name, dtype and shape of each leaf; empty where no array shows them all."""
        if self._kinds is None:
            self._kinds = self._look()
        return self._kinds

    @property
    def arrays(self) -> list[npt.NDArray[Any]]:
        """The leaves as arrays, in the order of ``kinds``: of these numpy takes a row in a tenth of torch's time."""
        return self._arrays

    def _look(self) -> tuple[Any, ...]:
        own = self.tensordict
        if type(own) is not TensorDict or not {*map(type, own._tensordict.values())} <= _TENSORS:
            return ()
        try:
            self._arrays = [value.numpy() for value in own._tensordict.values()]
        except (
            TypeError,
            RuntimeError,
        ):  # elsewhere than on the CPU, of a dtype that numpy has not, or with a gradient
            return ()
        leaves = zip(own._tensordict, self._arrays, strict=True)
        return (own.batch_size[1:], own.device, *((name, array.dtype, array.shape[1:]) for name, array in leaves))


def together(parts: Sequence[tuple[Sent | None, int]], *, dense: bool) -> TensorDictBase | None:
    """Rows of what was sent, in this order, as one TensorDict of the caller's own; None where nothing was.

    Args:
        parts: what a row was sent in, and its position there. A row is asked for once: one whole TensorDict in its own
            order is handed out as it is.
        dense: put dense rows together leaf by leaf; what one has and another has not is zero there. Without, and where
            shapes differ, the result is a lazy stack.

    Example:
        >>> sent = Sent(TensorDict(x=torch.arange(3), batch_size=[3]))
        >>> together([(sent, 2), (sent, 0)], dense=True)["x"]
        tensor([2, 0])
    """
    first, _ = parts[0]
    if _are_one(first, parts) and (first is None or dense is (type(first.tensordict) is TensorDict)):
        return None if first is None else first.tensordict
    if first is None and not any(sent is not None for sent, _ in parts):
        return None
    if (
        dense
        and first is not None
        and first.kinds
        and all(own is not None and own.kinds == first.kinds for own, _ in parts)
    ):
        return _gathered(parts)  # type: ignore[arg-type]
    given = [(None if sent is None else sent.tensordict, at) for sent, at in parts]
    columns = _columns(given) if dense else None
    if columns is not None:
        assert first is not None
        whole = first.tensordict
        return tensordict_of(columns, torch.Size((len(parts), *whole.batch_size[1:])), whole.device)
    rows = _with_equal_keys([None if td is None else cloned(row_of(td, at)) for td, at in given], fill=dense)
    stacked = LazyStackedTensorDict(*rows, stack_dim=0)
    return densified(stacked) if dense else stacked


def _are_one(whole: Sent | None, parts: Sequence[tuple[Sent | None, int]]) -> bool:
    """Whether the parts are all rows of one, in its order."""
    if whole is not None and whole.tensordict.batch_size[0] != len(parts):
        return False
    return all(sent is whole and at == position for position, (sent, at) in enumerate(parts))


def _gathered(parts: Sequence[tuple[Sent, int]]) -> TensorDict:
    """Rows of like leaves, leaf by leaf."""
    first, num_rows = parts[0][0], len(parts)
    row_batch_size, device, *kinds = first.kinds
    columns = [np.empty((num_rows, *shape), dtype) for _, dtype, shape in kinds]
    if num_rows <= _FEW:
        for row, (sent, at) in enumerate(parts):
            for column, array in zip(columns, sent.arrays, strict=True):
                column[row] = array[at]
    else:
        groups: dict[int, tuple[Sent, list[int], list[int]]] = {}
        for row, (sent, at) in enumerate(parts):
            _, positions, rows = groups.setdefault(id(sent), (sent, [], []))
            positions.append(at)
            rows.append(row)
        for sent, positions, rows in groups.values():
            for column, array in zip(columns, sent.arrays, strict=True):
                column[rows] = array[positions]
    entries_of_all: Any = {kind[0]: torch.from_numpy(column) for kind, column in zip(kinds, columns, strict=True)}
    return tensordict_of(entries_of_all, torch.Size((num_rows, *row_batch_size)), device)


def _columns(parts: Sequence[tuple[TensorDictBase | None, int]]) -> dict[str, Any] | None:
    """Root entry by root entry, where all of them are tensors and the rows have the same; else None."""
    first, _ = parts[0]
    if type(first) is not TensorDict or not {*map(type, first._tensordict.values())} <= _TENSORS:
        return None
    plain: Any = first._tensordict
    shared = [(name, value.shape[1:], value.dtype, value.device) for name, value in plain.items()]
    for tensordict in {id(own): own for own, _ in parts}.values():
        if type(tensordict) is not TensorDict or not _is_like(tensordict, first, shared):
            return None
    return {name: torch.stack([td._tensordict[name][at] for td, at in parts]) for name in plain}  # type: ignore[union-attr]


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
