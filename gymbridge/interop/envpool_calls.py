"""What envs of an asynchronous EnvPool have been given to do, and what has come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase

from gymbridge.engine.codes import CALLS, Op
from gymbridge.envs.sent_rows import Sent, together
from gymbridge.envs.tensordicts import entry, put
from gymbridge.envs.transitions import NextRoot, put_first, put_next
from gymbridge.interop.envpool_layout import Chunk, EnvPoolLayout, Part, gathered

__all__ = ["EnvPoolCalls"]


@dataclass
class _Work:
    """What one env was given to do.

    Attributes:
        sent, at: what it was given, and the row of that; None where a reset was given nothing.
        final: what its step gave.
        first: what its reset gave.
    """

    sent: Sent | None
    at: int
    final: Part | None = None
    first: Part | None = None


class EnvPoolCalls:
    """The work of an EnvPool's envs, from its sending to its receiving.

    Args:
        layout: what turns EnvPool's arrays into TensorDicts.
        batch: how many envs EnvPool gives at a time; as long as fewer are at work it gives none.

    Attributes:
        at_work: how many envs EnvPool is still to give.
    """

    def __init__(self, layout: EnvPoolLayout, batch: int):
        self._layout = layout
        self._batch = batch
        self.drop()

    def drop(self) -> None:
        """Nothing is under way any more."""
        self._works: dict[Op, dict[int, _Work]] = {op: {} for op in CALLS}
        self._done: dict[Op, list[int]] = {op: [] for op in CALLS}
        self._op_of: dict[int, Op] = {}
        self.at_work = 0

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way, or was not received."""
        return bool(self._op_of)

    @property
    def busy(self) -> list[int]:
        """The envs whose work is under way, or whose results were not received."""
        return sorted(self._op_of)

    def require_idle(self, call: str, rows: Sequence[int]) -> None:
        """Refuses work for envs that have some.

        Raises:
            RuntimeError: naming them.
        """
        busy = sorted(self._op_of.keys() & {*rows})
        if busy:
            raise RuntimeError(
                f"{call}: envs {busy} have work under way, or results that were not received: receive these first"
            )

    def sent(self, op: Op, rows: Sequence[int], tensordict: TensorDictBase | None) -> None:
        """Notes what envs were given to do.

        Args:
            tensordict: what with, ``[n]``, which nobody changes any more.
        """
        sent = None if tensordict is None else Sent(tensordict)
        self._op_of.update(dict.fromkeys(rows, op))
        self._works[op].update((row, _Work(sent, at)) for at, row in enumerate(rows))
        self.at_work += len(rows)

    def require_under_way(self, op: Op, min_get: int) -> None:
        """Refuses to wait for more than was sent.

        Raises:
            RuntimeError: naming the number.
        """
        if min_get > len(self._works[op]):
            raise RuntimeError(
                f"async_{CALLS[op]}_recv: got min_get={min_get}, expected at most {len(self._works[op])}, the envs "
                f"that were sent a {CALLS[op]}"
            )

    def is_to_wait(self, op: Op, min_get: int) -> bool:
        """Whether EnvPool is to be asked for a batch, to have ``min_get`` envs that are done.

        Raises:
            RuntimeError: it would not give any.
        """
        if len(self._done[op]) >= min_get:
            return False
        if self.at_work < self._batch:
            raise RuntimeError(
                f"async_{CALLS[op]}_recv: got min_get={min_get}, expected at most {len(self._done[op])}, which are "
                f"there: {self.at_work} more envs are at work, and this EnvPool hands out batch_size={self._batch} at "
                f"a time; send others first"
            )
        return True

    def take(self, chunk: Chunk) -> npt.NDArray[np.int32]:
        """Notes what EnvPool gave.

        Returns:
            The envs that are to be reset, after which they have done what they were sent.
        """
        self.at_work -= len(chunk.ids)
        resets = []
        for at, (row, ended) in enumerate(zip(chunk.ids.tolist(), chunk.done.tolist(), strict=True)):
            op = self._op_of[row]
            work = self._works[op][row]
            if op == Op.RESET or work.final is not None:
                work.first = chunk, at
            else:
                work.final = chunk, at
                if ended and op == Op.STEP_MAYBE_RESET:
                    resets.append(row)
                    continue
            self._done[op].append(row)
        self.at_work += len(resets)
        return np.array(resets, np.int32)

    def received(
        self,
        op: Op,
        max_get: int | None,
        next_root: NextRoot,
    ) -> Any:
        """What envs gave that have done what they were sent, those that came first; they are idle then.

        Args:
            next_root: knows what goes from a step to the next root.
        """
        done = self._done[op]
        rows = sorted(done[:max_get])
        works = [self._works[op][row] for row in rows]
        made = self._made(op, rows, works, next_root)
        self._done[op] = done[len(rows) :]
        for row in rows:
            del self._works[op][row], self._op_of[row]
        return made

    def _made(
        self,
        op: Op,
        rows: Sequence[int],
        works: Sequence[_Work],
        next_root: NextRoot,
    ) -> Any:
        td = together([(work.sent, work.at) for work in works], dense=True)
        index = torch.from_numpy(np.array(rows, np.int64))
        form = self._layout.form(len(rows))
        if op == Op.RESET:
            first: TensorDictBase = form.root(gathered([_there(work.first) for work in works]))
            if td is not None:
                first = put_first(td, first, [("_reset",)])
            _put_index(first, index)
            return first
        assert td is not None  # a step is given its actions
        _put_index(td, index)
        final = gathered([_there(work.final) for work in works])
        following, has_more = form.following(final), entry(td, "next") is not None
        put_next(td, following)
        if op == Op.STEP:
            return td
        shown = [column.copy() for column in final.shown]
        reset = [at for at, work in enumerate(works) if work.first is not None]
        if reset:
            begun = gathered([_there(works[at].first) for at in reset])
            for whole, column in zip(shown, begun.shown, strict=True):
                whole[reset] = column
        root = form.moved(form.root_of(shown, form.no_flags()))
        if has_more:  # what the caller had under "next" already
            next_root.carry(following, root)
        next_root.carry(td, root)
        return td, root


def _there(part: Part | None) -> Part:
    assert part is not None
    return part


def _put_index(tensordict: TensorDictBase, index: torch.Tensor) -> None:
    put(tensordict, ("env_index",), index if tensordict.device is None else index.to(tensordict.device))
