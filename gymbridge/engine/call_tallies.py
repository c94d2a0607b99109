"""What the envs of a pool in this process have done: counted by who takes what their calls gave."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from gymbridge.engine.codes import Op
from gymbridge.engine.work_counts import Figures
from gymbridge.errors import WorkerDiedError

__all__ = ["CallTally", "note_copied"]


class CallTally:
    """Counts the calls of one row, whose env is the worker; one thread at a time has the row.

    A call knows itself how long its env has taken (:class:`~gymbridge.engine.env_calls.TimedCall`), so that nobody
    counts beside the caller: neither a thread that was left behind, nor an event loop.

    Attributes:
        steps, step_s, copy_s: see :class:`~gymbridge.engine.work_counts.Figures`.
    """

    __slots__ = ("_call", "copy_s", "step_s", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.step_s = self.copy_s = 0.0
        self._call: Any = None
        """The one under way, or whose results nobody has taken."""

    def begin(self, call: Any) -> None:
        """A call is about to be made."""
        self._call = call

    def add(self, call: Any) -> None:
        """A call has been made and is done with; one that no env has come to the end of counts for nothing."""
        made = getattr(call, "instead", call)
        env_s = getattr(made, "env_s", None)
        if env_s is not None:
            self.step_s += env_s
            self.steps += made is call and call.op >= Op.STEP and not isinstance(call.error, WorkerDiedError)
        self._call = None

    def read(self, now: float) -> Figures:
        """See :class:`~gymbridge.engine.work_counts.Readable`."""
        call = self._call  # first: what is added from here on is counted twice and not left out
        under_way_s = 0.0
        started_at = getattr(call, "started_at", None)
        if started_at is not None:
            under_way_s = getattr(call, "env_s", None) or max(0.0, now - started_at)
        return Figures(self.steps, self.step_s, self.copy_s, under_way_s)


def note_copied(tallies: Sequence[CallTally], calls: Sequence[Any], begun: float) -> None:
    """Calls have been made of what was given, or what they gave has been taken, since then: each has its share."""
    if calls:
        share = (perf_counter() - begun) / len(calls)
        for call in calls:
            tallies[call.row].copy_s += share
