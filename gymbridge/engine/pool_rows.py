"""The rows of a pool: which have work under way or results that nobody took, in which order they came, what is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gymbridge.engine.block import Block
from gymbridge.engine.claims import Claims

__all__ = ["Gathering", "PoolRows"]


class PoolRows:
    """Where each row of a pool stands; it knows nothing of what runs them.

    A row that has been given work is busy until what it gave is taken. One that is a *lane* is waited for by itself,
    the others are waited for together. A row whose call an interrupt has ended is idle, and what it does still is to
    be waited for before it is given work again. Threads may claim rows at once, and one gets each.

    Attributes:
        is_for_all: no row can be claimed; a plain attribute: no interrupt comes before it is reset in ``finally``.
        held: rows that the front has given work and not handed out: while it puts together what came in several pieces,
            they are not busy here. The front writes it.
        batch: busy rows that are no lanes.
        lanes: busy rows that are.
        ready: rows of the batch that were seen to be done, in the order in which that was seen.
        interrupted: rows that do what nobody will take.

    Example:
        >>> rows = PoolRows()
        >>> rows.claim([0, 1], object())
        >>> rows.claim([2], object(), lane=True)
        >>> rows.note_ready(1)
        >>> rows.busy, [*rows.ready]
        ({0, 1, 2}, [1])
        >>> rows.claim([3, 1], mine := object())
        Traceback (most recent call last):
        RuntimeError: envs [1] have work under way, or results that were not received: receive these first
        >>> rows.let_go(rows.claimed([3, 1], mine))
        >>> rows.let_go([1])
        >>> rows.abandon([0])
        >>> rows.busy, rows.interrupted
        ({2}, {0})
    """

    __slots__ = ("_claims", "batch", "held", "interrupted", "is_for_all", "lanes", "ready")

    def __init__(self) -> None:
        self._claims = Claims()
        self.held = Claims()
        self.is_for_all = False
        self.batch: set[int] = set()
        self.lanes: set[int] = set()
        self.ready: dict[int, None] = {}
        self.interrupted: set[int] = set()

    @property
    def busy(self) -> set[int]:
        """The rows whose work is under way or not taken yet, lanes too."""
        return self._claims.rows

    def has(self, row: int) -> bool:
        """Whether a row's results can be waited for and taken."""
        return row in self.batch or row in self.lanes

    def claim(self, rows: Sequence[int], claim: object, *, lane: bool = False) -> None:
        """Has rows be busy from now on.

        Args:
            claim: by which the caller tells its rows from those of others, where this raises.

        Raises:
            RuntimeError: one of them is busy, in whichever thread, or all rows are about to do something; let go of
                those that are ``claimed`` then.
        """
        busy = self._claims.claim(rows, claim)
        if busy:
            raise RuntimeError(
                f"envs {busy} have work under way, or results that were not received: receive these first"
            )
        if self.is_for_all:
            raise RuntimeError(f"envs {[*rows]}: refused while a call of all envs is under way, in another thread")
        (self.lanes if lane else self.batch).update(rows)

    def claimed(self, rows: Iterable[int], claim: object) -> list[int]:
        """Those of some rows that are the claim's."""
        return self._claims.of(rows, claim)

    def require_idle(self, what: str) -> None:
        """Refuses what is for all rows while one is busy; set ``is_for_all`` before.

        Raises:
            RuntimeError: one is busy or held; the message names ``what`` is refused, and those.
        """
        busy = self._claims.rows | self.held.rows
        if busy:
            raise RuntimeError(
                f"{what}: refused while envs {sorted(busy)} have work under way, or results that were not received: "
                f"receive these first"
            )

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

    def note_ready(self, row: int) -> None:
        """A row of the batch has been seen to be done."""
        self.ready[row] = None

    def let_go(self, rows: Iterable[int]) -> None:
        """These rows are idle again."""
        rows = [*rows]
        self.batch.difference_update(rows)
        if self.lanes:
            self.lanes.difference_update(rows)
        if self.ready:
            for row in rows:
                self.ready.pop(row, None)
        self._claims.let_go(rows)  # last: another thread may claim a row from here on

    def abandon(self, rows: Iterable[int]) -> None:
        """These rows' work is not to be taken any more: what they do, the caller never sees."""
        rows = [*rows]
        self.interrupted.update(rows)
        self.let_go(rows)


class Gathering:
    """Copies what rows gave to the first rows of another block.

    Args:
        block: of all rows.

    Example:
        >>> from gymbridge.engine.layout import Layout, Leaf
        >>> block = Block(Layout(3, input=[], next=[Leaf(("reward",), (), np.dtype(np.float64))], root=[]))
        >>> block.next["reward",][:] = [1, 2, 3]
        >>> other = Block(block.layout)
        >>> Gathering(block)([2, 0], other)
        >>> other.next["reward",]
        array([3., 1., 0.])
    """

    def __init__(self, block: Block):
        self._block = block
        self._pairs: dict[Block, list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]] = {}

    def __call__(self, rows: Sequence[int], into: Block) -> None:
        """Copies some rows, in this order.

        Args:
            into: a block with as many rows or more; leaves that it does not have are left out.
        """
        block, num_rows = self._block, len(rows)
        pairs = self._pairs.get(into)
        if pairs is None:
            pairs = self._pairs[into] = self._leaves(into)
        if num_rows == 1:
            (row,) = rows
            for array, target in pairs:
                target[0] = array[row]
        else:
            index = np.asarray(rows, np.intp)
            for array, target in pairs:
                array.take(index, 0, target[:num_rows], "clip")  # not "raise": that would copy twice
        for number, row in enumerate(rows):
            into.state[number] = block.state[row]
            into.source[number] = block.source[row]

    def _leaves(self, into: Block) -> list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        sections = (self._block.next, into.next), (self._block.root, into.root)
        return [(array, theirs[key]) for own, theirs in sections for key, array in own.items() if key in theirs]
