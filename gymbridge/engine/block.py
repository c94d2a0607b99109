"""The memory that a layout describes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gymbridge.engine.layout import ALIGNMENT, Field, Layout

__all__ = ["Block"]

Key = tuple[str, ...]


class Block:
    """The memory of a layout, zeroed, and the arrays in it.

    Attributes:
        layout: the layout.
        input, next, root: leaf key -> array ``[num_rows, *leaf.shape]``, a view of the memory; an array of objects,
            this process's own, for a leaf of objects.
        op, state, source: the control bytes, as memoryviews: indexing them costs less than indexing an array.

    Example:
        >>> from gymbridge.engine.layout import Leaf
        >>> block = Block(Layout(2, input=[], next=[Leaf(("reward",), (), np.dtype("f8"))], root=[]))
        >>> block.next["reward",]
        array([0., 0.])
        >>> bytes(block.op)
        b'\\x00\\x00'
    """

    def __init__(self, layout: Layout):
        self.layout = layout
        self._memory = self._allocate(layout.nbytes)
        self.input = self._arrays("input")
        self.next = self._arrays("next")
        self.root = self._arrays("root")
        control = self._arrays("control")
        self.op = memoryview(control["op",].data)
        self.state = memoryview(control["state",].data)
        self.source = memoryview(control["source",].data)

    def _allocate(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Private memory of this process, aligned."""
        memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
        skip = -memory.ctypes.data % ALIGNMENT
        return memory[skip : skip + nbytes]

    def _arrays(self, section: str) -> dict[Key, npt.NDArray[Any]]:
        return {key: self._array(field) for key, field in self.layout.sections[section].items()}

    def _array(self, field: Field) -> npt.NDArray[Any]:
        if field.dtype.hasobject:
            return np.full(field.shape, None, object)
        return self._memory[field.offset : field.offset + field.nbytes].view(field.dtype).reshape(field.shape)
