"""Rows whose env is another one than the caller believes: its worker died and was replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op, RowState, Source
from gymbridge.engine.host import IN_BLOCK, NOTHING, Report
from gymbridge.engine.info_records import forget_infos

__all__ = ["RESTARTED", "LostRows"]

RESTARTED = "worker_restarted"
"""The info that says so."""

_STATE_OF_NO_EPISODE = {"np_random", "row"}
"""All that there is of the state of a gymnasium env without ``get_state`` and ``set_state``."""

_WITHOUT_STEP = bytes.maketrans(bytes([Op.STEP, Op.STEP_MAYBE_RESET]), bytes([Op.IDLE, Op.RESET]))


class LostRows:
    """The rows whose episode was lost, until the caller has been told: its next step there is a truncated one.

    That step reaches no env. It shows the latest observation that the caller knows, a reward of zero and the end of the
    episode; where the step would reset an env whose episode ends, the new env is reset.

    Args:
        block: the engine's.

    Attributes:
        rows: their numbers.

    Example:
        >>> from gymbridge.engine.layout import Layout, Leaf
        >>> position, flag = Leaf(("position",), (), np.dtype("f4")), np.dtype(bool)
        >>> outcome = [Leaf(("reward",), (), np.dtype("f4")), Leaf(("terminated",), (), flag)]
        >>> outcome += [Leaf(("truncated",), (), flag)]
        >>> block = Block(Layout(2, input=[], next=[position, *outcome], root=[position]))
        >>> lost = LostRows(block)
        >>> block.next["position",][:] = 1
        >>> lost.keep_known([0, 1])
        >>> lost.rows.add(1)
        >>> block.next["position",][:] = 7
        >>> step = bytes([Op.STEP] * 2)
        >>> [*lost.ops(step)], lost.shown(step, NOTHING).lost
        ([2, 0], {1})
        >>> block.next["position",], block.next["truncated",]
        (array([7., 1.], dtype=float32), array([False,  True]))
    """

    def __init__(self, block: Block):
        self.rows: set[int] = set()
        self._block = block
        pairs = [(array, block.root[key]) for key, array in block.next.items() if key in block.root]
        self._leaves: list[tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]] = [
            (following, root, root.copy()) for following, root in pairs
        ]
        self._all_in_next = bytes([Source.NEXT]) * block.layout.num_rows

    def keep_known(self, rows: Sequence[int]) -> None:
        """Keeps what rows show now, which the caller is about to be given.

        A worker that dies may be in the middle of writing the next.
        """
        source = self._block.source.tobytes()
        if len(rows) == len(source):
            if source == self._all_in_next:
                for following, _, known in self._leaves:
                    np.copyto(known, following)
                return
            in_root = np.frombuffer(source, np.bool_)
            for following, root, known in self._leaves:
                np.copyto(known, following)
                known[in_root] = root[in_root]
            return
        for row in rows:
            for following, root, known in self._leaves:
                known[row] = (root if source[row] == Source.ROOT else following)[row]

    def is_lost_in(self, row: int, op: int) -> bool:
        """Whether a row whose env is replaced in a round with this op is lost: it steps, or is idle in an episode."""
        return op >= Op.STEP or (op == Op.IDLE and self._block.state[row] == RowState.RUNNING)

    def take_loaded(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """Rows are what the caller believes where it has put back all that there is of an env's state."""
        self.rows -= {row for row, state in states.items() if not state.keys() <= _STATE_OF_NO_EPISODE}

    def ops(self, ops: bytes, rows: Iterable[int] | None = None) -> bytes:
        """What the hosts are to do, where the caller wants ``ops``; ``rows`` are theirs, all unless given."""
        if not self.rows:
            return ops
        without = ops.translate(_WITHOUT_STEP)
        numbers = range(len(ops)) if rows is None else rows
        return bytes(own if row in self.rows else op for row, op, own in zip(numbers, ops, without, strict=True))

    def shown(self, ops: bytes, report: Report, rows: Iterable[int] | None = None) -> Report:
        """Writes what the caller is to see of the rows that are lost and are told of now; they are not any more then.

        Args:
            ops: what the caller wanted, of which the hosts have done :meth:`ops`.
            report: of that.
            rows: the rows of the ops; all unless given.

        Returns:
            The report, with the rows that were lost.
        """
        for row, op in zip(range(len(ops)) if rows is None else rows, ops, strict=True):
            if op and row in self.rows and self.show(row, op, failed=row in report.errors):
                if report is NOTHING or report is IN_BLOCK:
                    report = Report()
                report.lost.add(row)
        return report

    def show(self, row: int, op: int, *, failed: bool = False) -> bool:
        """The same for one row, which is lost: whether it was a step that it did not do.

        Args:
            failed: its reset raised.
        """
        self.rows.discard(row)
        if op == Op.RESET or failed:
            return False
        block = self._block
        for following, _, known in self._leaves:
            following[row] = known[row]
        for name, value in (("reward", 0), ("terminated", False), ("truncated", True)):
            if (name,) in block.next:
                block.next[name,][row] = value
        if op == Op.STEP:
            block.state[row], block.source[row] = RowState.ENDED, Source.NEXT
            forget_infos(block, [row])  # where it is reset, the new host has done so
        return True
