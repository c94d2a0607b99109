"""The actions of gymnasium envs on their way to a host in another process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gymbridge.engine.block import Block
from gymbridge.engine.layout import Leaf

__all__ = ["GymInputs"]


class GymInputs:
    """Actions, a batch a leaf, through the block's ``input``, and beside it where they are to arrive as they are.

    An array of a leaf's own shape and dtype is copied into the block. Any other batch (a list, an array of another
    dtype, objects) travels beside it, since an env computes other numbers with a float32 than with the float64 that its
    caller gave.

    Args:
        leaves: the leaves of ``input``, in the order of the batches.
        block: the caller's block of all rows, or a host's of its own.

    Example:
        >>> from gymbridge.engine.layout import Layout
        >>> leaf = Leaf(("action",), (), np.dtype(np.int64))
        >>> inputs = GymInputs([leaf], Block(Layout(2, input=[leaf], next=[], root=[])))
        >>> inputs.write([np.array([3, 4])]) is None
        True
        >>> inputs.read(None)
        [array([3, 4])]
        >>> beside = inputs.write([[5, 6]])
        >>> inputs.read(inputs.part(beside, 0, 2))
        [[5, 6]]
    """

    def __init__(self, leaves: Iterable[Leaf], block: Block):
        self._num_rows = block.layout.num_rows
        self._arrays = [block.input[leaf.key] for leaf in leaves]
        self._fields = [(array, array.dtype, array.shape) for array in self._arrays]
        self._only = self._fields[0] if len(self._fields) == 1 and not self._fields[0][1].hasobject else None

    def write(self, inputs: list[Any] | None) -> Mapping[int, Any] | None:
        """Writes what has its place in the block; the rest, leaf position -> batch, or None if there is none."""
        if inputs is None:
            return None
        if self._only is not None:  # one array is by far the most common action
            array, dtype, shape = self._only
            batch = inputs[0]
            if type(batch) is np.ndarray and batch.dtype is dtype and batch.shape == shape:
                array[...] = batch
                return None
        return self._put(..., self._num_rows, inputs)

    def write_rows(self, rows: Sequence[int], inputs: list[Any] | None) -> Mapping[int, Any] | None:
        """As ``write``, for batches of these rows alone, in this order.

        Example:
            >>> from gymbridge.engine.layout import Layout
            >>> leaf = Leaf(("action",), (), np.dtype(np.int64))
            >>> inputs = GymInputs([leaf], Block(Layout(3, input=[leaf], next=[], root=[])))
            >>> inputs.write_rows([2, 0], [np.array([3, 4])]) is None
            True
            >>> inputs.read(None)
            [array([4, 0, 3])]
        """
        return None if inputs is None else self._put(rows, len(rows), inputs)

    def _put(self, rows: Any, num_rows: int, inputs: list[Any]) -> Mapping[int, Any] | None:
        """Writes batches of some rows; the rest, leaf position -> batch, or None if there is none."""
        beside = {}
        for position, (batch, (array, dtype, shape)) in enumerate(zip(inputs, self._fields, strict=True)):
            fits = isinstance(batch, np.ndarray) and batch.dtype == dtype and batch.shape == (num_rows, *shape[1:])
            if fits and not dtype.hasobject:
                array[rows] = batch
            else:
                beside[position] = batch
        return beside or None

    def part(self, beside: Mapping[int, Any], start: int, stop: int) -> Mapping[int, Any]:
        """What the host of some rows is to get of what ``write`` gave."""
        return {position: batch[start:stop] for position, batch in beside.items()}

    def read(self, beside: Mapping[int, Any] | None) -> list[Any]:
        """A batch a leaf, the host's own: an env may keep its action, and the block is written again."""
        if beside is None:
            return [array.copy() for array in self._arrays]
        return [beside[position] if position in beside else array.copy() for position, array in enumerate(self._arrays)]
