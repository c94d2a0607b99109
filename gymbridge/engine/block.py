"""The memory that a layout describes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gymbridge.engine.layout import ALIGNMENT, Field, Layout

__all__ = ["Block"]

Key = tuple[str, ...]


class Block:
    """The memory of a layout, and the arrays in it.

    Args:
        layout: the layout.
        memory: ``[layout.nbytes]`` uint8 or more, aligned to 64 bytes, which other processes may see too; unless given,
            private memory, all zeros.
        in_use: see below.

    Attributes:
        layout: the layout.
        input, next, root: leaf key -> array ``[num_rows, *leaf.shape]``, a view of the memory; an array of objects,
            this process's own, for a leaf of objects.
        op, state, source, done_at, at_work, is_counted: what is in ``control``, as memoryviews: indexing them costs
            less than an array.
        counts: the rest of it, an array.
        in_use: its rows have been run before, by a host that is no more: the next one takes them as they stand. Else
            a host makes them new.

    Raises:
        ValueError: ``memory`` is too small, of another dtype, not aligned, not contiguous or read-only.

    Example:
        >>> from gymbridge.engine.layout import Leaf
        >>> block = Block(Layout(2, input=[], next=[Leaf(("reward",), (), np.dtype("f8"))], root=[]))
        >>> block.next["reward",]
        array([0., 0.])
        >>> bytes(block.op)
        b'\\x00\\x00'
    """

    def __init__(self, layout: Layout, memory: npt.NDArray[np.uint8] | None = None, *, in_use: bool = False):
        self.layout = layout
        self.in_use = in_use
        self._memory = self._allocate(layout.nbytes) if memory is None else _checked(memory, layout.nbytes)
        self.input = self._arrays("input")
        self.next = self._arrays("next")
        self.root = self._arrays("root")
        control = self._arrays("control")
        self.op = memoryview(control["op",].data)
        self.state = memoryview(control["state",].data)
        self.source = memoryview(control["source",].data)
        self.done_at: Any = memoryview(control["done_at",].data)
        self.at_work: Any = memoryview(control["at_work",].data)
        self.is_counted = memoryview(control["is_counted",].data)
        self.counts = control["counts",]

    def rows(self, start: int, stop: int) -> Block:
        """The block of some of the rows, in the same memory; objects are its own."""
        return Block(self.layout.rows(start, stop), self._memory)

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


def _checked(memory: npt.NDArray[np.uint8], nbytes: int) -> npt.NDArray[np.uint8]:
    fits = memory.dtype == np.uint8 and memory.ndim == 1 and memory.nbytes >= nbytes
    if not (fits and memory.flags.c_contiguous and memory.flags.writeable and memory.ctypes.data % ALIGNMENT == 0):
        raise ValueError(
            f"memory: got {memory.dtype} of shape {memory.shape} at {memory.ctypes.data:#x}, "
            f"{'writeable' if memory.flags.writeable else 'read-only'}; expected uint8 of {nbytes} bytes or more, "
            f"contiguous, writeable and aligned to {ALIGNMENT} bytes"
        )
    return memory[:nbytes]
