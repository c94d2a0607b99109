"""The rows of a pool: which have work under way or results that nobody took, in which order they came, what is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gymbridge.engine.block import Block

__all__ = ["PoolRows", "gather_rows"]


class PoolRows:
    """Where each row of a pool stands; it knows nothing of what runs them.

    A row that has been given work is busy until what it gave is taken. One that is a *lane* is waited for by itself,
    the others are waited for together. A row whose call an interrupt has ended is idle, and what it does still is to
    be waited for before it is given work again.

    Attributes:
        batch: busy rows that are no lanes.
        lanes: busy rows that are.
        ready: rows of the batch that were seen to be done, in the order in which that was seen.
        interrupted: rows that do what nobody will take.

    Example:
        >>> rows = PoolRows()
        >>> for row in (0, 1, 2):
        ...     rows.begin(row, lane=row == 2)
        >>> rows.note_ready(1)
        >>> rows.busy, [*rows.ready]
        ({0, 1, 2}, [1])
        >>> rows.require_free([1, 3])
        Traceback (most recent call last):
        RuntimeError: envs [1] have work under way, or results that were not received
        >>> rows.let_go([1])
        >>> rows.abandon([0])
        >>> rows.busy, rows.interrupted
        ({2}, {0})
    """

    __slots__ = ("batch", "interrupted", "lanes", "ready")

    def __init__(self) -> None:
        self.batch: set[int] = set()
        self.lanes: set[int] = set()
        self.ready: dict[int, None] = {}
        self.interrupted: set[int] = set()

    @property
    def busy(self) -> set[int]:
        """The rows whose work is under way or not taken yet, lanes too."""
        return self.batch | self.lanes

    def require_free(self, rows: Iterable[int]) -> None:
        """Refuses rows that are busy.

        Raises:
            RuntimeError: naming them.
        """
        busy = [row for row in rows if row in self.batch or row in self.lanes]
        if busy:
            raise RuntimeError(f"envs {busy} have work under way, or results that were not received")

    def require_idle(self, what: str) -> None:
        """Refuses what is done with all rows while one is busy.

        Raises:
            RuntimeError: naming those.
        """
        if self.batch or self.lanes:
            raise RuntimeError(f"{what}: refused while envs {sorted(self.busy)} have work under way, or unread results")

    def require_least(self, least: int) -> None:
        """Refuses a wait for more than could come.

        Raises:
            ValueError: ``least`` is more than there are rows in the batch.
        """
        if least > len(self.batch):
            raise ValueError(f"least: got {least}, expected at most {len(self.batch)}, the envs with work under way")

    def require_lane(self, row: int) -> None:
        """Refuses a wait for a row alone that is not waited for so.

        Raises:
            ValueError: the row is no lane with work under way.
        """
        if row not in self.lanes:
            raise ValueError(f"env {row} has no work under way in a lane")

    def begin(self, row: int, *, lane: bool) -> None:
        """A row is given work."""
        (self.lanes if lane else self.batch).add(row)

    def note_ready(self, row: int) -> None:
        """A row of the batch has been seen to be done."""
        self.ready[row] = None

    def let_go(self, rows: Iterable[int]) -> None:
        """These rows are idle again."""
        for row in rows:
            self.lanes.discard(row)
            self.batch.discard(row)
            self.ready.pop(row, None)

    def abandon(self, rows: Iterable[int]) -> None:
        """These rows' work is not to be taken any more: what they do, the caller never sees."""
        rows = [*rows]
        self.interrupted.update(rows)
        self.let_go(rows)


def gather_rows(block: Block, rows: Sequence[int], into: Block) -> None:
    """Copies what rows gave to the first rows of another block.

    Args:
        block: of all rows.
        rows: those wanted, in this order.
        into: a block with as many rows or more; leaves that it does not have are left out.
    """
    index = np.asarray(rows, np.intp)
    number = len(index)
    for source, target in ((block.next, into.next), (block.root, into.root)):
        for key, array in source.items():
            if key in target:
                array.take(index, 0, target[key][:number], "clip")  # not "raise": that would copy twice
    for position, row in enumerate(rows):
        into.state[position] = block.state[row]
        into.source[position] = block.source[row]
