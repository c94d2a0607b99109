"""The bytes of a row, on their way between a caller and an actor: there is no memory that both see.

Each side has memory of the same layout. A layout's places of a row are the same numbers on both, so what travels is the
bytes there, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt

from gymbridge.engine.codes import AtWork, Op, Source
from gymbridge.engine.layout import Field, Layout
from gymbridge.engine.work_counts import forget_round, note_round

__all__ = ["EVERYTHING", "Parts", "RowBytes"]

Key = tuple[str, ...]
Span = tuple[int, int]


class Parts(IntFlag):
    """Which bytes of a row are sent."""

    GIVEN = 1
    """What the caller writes before a round: the op, where the row stands, and the section ``input``; and what it has
    counted, which one that is new goes on from."""
    STANDING = 2
    """What every round changes: where the row stands, what it has counted, and of ``next`` what a reset clears: reward,
    flags and infos."""
    NEXT = 4
    """What a step alone gives: the rest of ``next``."""
    ROOT = 8
    """What a reset gives."""


EVERYTHING = Parts.GIVEN | Parts.STANDING | Parts.NEXT | Parts.ROOT


class RowBytes:
    """One row in the memory of a layout.

    Args:
        layout: of the row alone, a part of that of all.
        memory: that of all rows, uint8.

    Example:
        >>> from gymbridge.engine.layout import Leaf
        >>> image = Leaf(("image",), (), np.dtype(np.float32))
        >>> layout = Layout(3, input=[], next=[image], root=[image])
        >>> ours, theirs = np.zeros(layout.nbytes, np.uint8), np.zeros(layout.nbytes, np.uint8)
        >>> mine, yours = RowBytes(layout.rows(1, 2), ours), RowBytes(layout.rows(1, 2), theirs)
        >>> ours.view(np.float32)[layout.sections["next"]["image",].offset // 4 + 1] = 2.5
        >>> yours.take(Parts.NEXT, mine.packed(Parts.NEXT))
        >>> float(theirs.view(np.float32)[layout.sections["next"]["image",].offset // 4 + 1])
        2.5
    """

    def __init__(self, layout: Layout, memory: npt.NDArray[np.uint8]):
        control, following = layout.sections["control"], layout.sections["next"]
        root = layout.sections["root"]
        standing = _spans(control[name,] for name in ("state", "source", "counts"))
        cleared = [key for key in following if key not in root or key[0] == "info"]
        self._spans = {
            Parts.GIVEN: [
                *_spans([control["op",], control["is_counted",]]),
                *standing,
                *_spans(layout.sections["input"].values()),
            ],
            Parts.STANDING: [*standing, *_spans(following[key] for key in cleared)],
            Parts.NEXT: _spans(field for key, field in following.items() if key not in cleared),
            Parts.ROOT: _spans(root.values()),
        }
        self._of: dict[Parts, list[Span]] = {}
        self._memory = memory.data
        self._op, self._source = control["op",].offset, control["source",].offset
        self._at_work = _array(memory, control["at_work",])
        self._done_at = _array(memory, control["done_at",])
        self._is_counted, self._counts = (_array(memory, control[name,]) for name in ("is_counted", "counts"))

    def packed(self, parts: Parts) -> bytes:
        """The bytes of some parts."""
        memory = self._memory
        return b"".join([memory[start:stop] for start, stop in self._spans_of(parts)])

    def take(self, parts: Parts, packed: bytes) -> None:
        """Writes what another's ``packed`` gave.

        Raises:
            ValueError: it is of another row's size.
        """
        memory, spans = self._memory, self._spans_of(parts)
        expected = sum(stop - start for start, stop in spans)
        if len(packed) != expected:
            raise ValueError(f"got {len(packed)} bytes of a row, expected {expected}")
        view, at = memoryview(packed), 0
        for start, stop in spans:
            end = at + stop - start
            memory[start:stop] = view[at:end]
            at = end

    def _spans_of(self, parts: Parts) -> list[Span]:
        spans = self._of.get(parts)
        if spans is None:
            spans = self._of[parts] = [span for part in Parts if part & parts for span in self._spans[part]]
        return spans

    @property
    def written(self) -> Parts:
        """What the round that the row has just done has written."""
        op = self._memory[self._op]
        if op == Op.RESET:
            return Parts.STANDING | Parts.ROOT
        if op == Op.STEP_MAYBE_RESET and self._memory[self._source] == Source.ROOT:
            return Parts.STANDING | Parts.NEXT | Parts.ROOT
        return Parts.STANDING | Parts.NEXT

    def begin_round(self) -> None:
        """The row's env is at the op that it is given."""
        self._at_work[0] = AtWork.RESET if self._memory[self._op] == Op.RESET else AtWork.STEP
        if self._is_counted[0]:
            note_round(self._counts)

    def begin_call(self) -> None:
        """The row's env is asked for something beside rounds."""
        self._at_work[0] = AtWork.CALL

    def set_at_work(self, at_work: int) -> None:
        """The row's env is at this; see :class:`~gymbridge.engine.codes.AtWork`."""
        self._at_work[0] = at_work

    def end(self, done_at: float) -> None:
        """The row's env has nothing to do, since a time on ``time.perf_counter``'s clock."""
        self._at_work[0] = AtWork.NOTHING
        self._done_at[0] = done_at
        forget_round(self._counts)


def _spans(fields: Iterable[Field]) -> list[Span]:
    return [(field.offset, field.offset + field.nbytes) for field in fields if field.nbytes]


def _array(memory: npt.NDArray[np.uint8], field: Field) -> npt.NDArray[Any]:
    return memory[field.offset : field.offset + field.nbytes].view(field.dtype)
