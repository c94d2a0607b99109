"""A block read by a front: views made once, copies that are the caller's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gymbridge.engine.block import Block
from gymbridge.engine.codes import Source

__all__ = ["BlockReader"]

Array: TypeAlias = npt.NDArray[Any]


class BlockReader:
    """What a front reads of a block.

    Args:
        block: the block.
        keys: the leaves that ``next`` and ``root`` both have and the front hands out, in its order.
        batch_shape: the shape that the rows have for the front, ``(num_rows,)`` unless told.

    Attributes:
        next, root: an array ``[*batch_shape, *leaf.shape]`` for each key, a view of the block.
        reward, terminated, truncated: arrays of ``batch_shape``, views of the block.
        all_in_next: the block's ``source`` where the latest observation of each row is in ``next``.

    Example:
        >>> from gymbridge.engine.layout import Layout, Leaf
        >>> position = Leaf(("position",), (2,), np.dtype("f4"))
        >>> outcome = [Leaf(("reward",), (), np.dtype("f8"))]
        >>> outcome += [Leaf((name,), (), np.dtype("?")) for name in ("terminated", "truncated")]
        >>> block = Block(Layout(2, input=[], next=[position, *outcome], root=[position]))
        >>> reader = BlockReader(block, [position.key])
        >>> block.next["position",][:] = 1
        >>> block.source[0] = Source.ROOT
        >>> reader.latest()
        [array([[0., 0.],
               [1., 1.]], dtype=float32)]
    """

    def __init__(self, block: Block, keys: Iterable[tuple[str, ...]], batch_shape: Sequence[int] | None = None):
        keys = tuple(keys)
        num_rows = block.layout.num_rows
        self._shape = (num_rows,) if batch_shape is None else tuple(batch_shape)
        self._source = block.source
        self.next = [self._batched(block.next[key]) for key in keys]
        self.root = [self._batched(block.root[key]) for key in keys]
        self.reward = self._batched(block.next["reward",])
        self.terminated = self._batched(block.next["terminated",])
        self.truncated = self._batched(block.next["truncated",])
        self.all_in_next = bytes([Source.NEXT]) * num_rows
        self._all_in_root = bytes([Source.ROOT]) * num_rows

    def _batched(self, array: Array) -> Array:
        return array.reshape((*self._shape, *array.shape[1:]))

    def latest(self, out: list[Array] | None = None) -> list[Array]:
        """Each row's latest observation, one array a key: copies, or what is in ``out`` written over."""
        source = self._source.tobytes()
        if source == self.all_in_next and out is None:  # the usual case
            return [array.copy() for array in self.next]
        arrays = self.root if source == self._all_in_root else self.next
        if out is None:
            out = [array.copy() for array in arrays]
        else:
            for result, array in zip(out, arrays, strict=True):
                np.copyto(result, array)
        if arrays is self.next and source != self.all_in_next:
            in_root = self.in_root()
            for result, array in zip(out, self.root, strict=True):
                result[in_root] = array[in_root]
        return out

    def in_root(self) -> npt.NDArray[np.bool_]:
        """Which rows have their latest observation in ``root``: bool ``[*batch_shape]``."""
        return np.frombuffer(self._source.tobytes(), np.bool_).reshape(self._shape)

    def picked(self, rows: Iterable[int]) -> npt.NDArray[np.bool_]:
        """True for these rows: bool ``[*batch_shape]``, the caller's own."""
        picked = np.zeros(len(self.all_in_next), np.bool_)
        picked[list(rows)] = True
        return picked.reshape(self._shape)
