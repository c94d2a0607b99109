"""A worker that is the caller: a share of the envs that the waiting side steps itself, in the thread that waits.

It is told what a worker process is told, and does it when it is waited for::

    caller    tells the processes │ tells itself │ does its own share │ waits for the processes
    process                       └─────────── does its share ────────────────────┘

What is told and not waited for is never done: an interrupt before that leaves its envs as they were.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from gymbridge.engine.mailbox import Mailbox, packed_for_this_process
from gymbridge.engine.worker_loop import EnvService, EnvWorker, ProcessSide
from gymbridge.engine.workers import WakeEnd, WakeGroup
from gymbridge.engine.workers.channel import Channel

__all__ = ["CallerEnd", "CallerGroup", "CallerWorker"]


class CallerEnd:
    """This side's end of the wake-ups of a worker that is the caller; see :class:`~gymbridge.engine.workers.WakeEnd`.

    Args:
        obey: has the worker do what it is told, and gives its answer.

    Attributes:
        latest: the answer that was taken last; -1 before the first.

    Example:
        >>> end = CallerEnd(lambda command: command + 1)
        >>> end.wake(3)
        >>> end.take()
        >>> end.latest
        4
    """

    is_bereft = False
    """It does not die before this side does."""

    def __init__(self, obey: Callable[[int | None], int]):
        self._obey = obey
        self._told: int | None = None
        self.latest = -1

    def wake(self, byte: int = 0) -> None:
        """Tells the worker something, in the place of what it was told before and has not done."""
        self._told = byte

    def signal(self, byte: int) -> None:
        """The same."""
        self._told = byte

    def restart(self) -> None:
        """Takes back what the worker was told and has not done."""
        self._told = None

    def share(self, ours: memoryview, theirs: memoryview) -> None:
        """Nobody looks."""

    def take(self) -> None:
        """Has the worker do what it was told; before it was told anything, make its envs.

        Raises:
            EOFError: it has no envs any more.
        """
        told, self._told = self._told, None  # first: an interrupt is not to have it done again
        self.latest = self._obey(told)

    def skip_to(self, byte: int, timeout: float | None = None) -> bool:
        """Has the worker do what it was told, however long that takes; whether this is its answer.

        Raises:
            EOFError: it has no envs any more.
        """
        self.take()
        return self.latest == byte


class CallerWorker:
    """A worker that is the caller, seen as a process is; it makes its envs when it is waited for first.

    Args:
        job: what it runs.
        mailbox: its mailbox, and the caller's.

    Attributes:
        wake: this side's end of its wake-ups.
        connection: the slow lane.
        how, stderr_tail: empty.
    """

    how = stderr_tail = ""

    def __init__(self, job: EnvWorker, mailbox: Mailbox):
        ours, theirs = (Channel(end.detach()) for end in socket.socketpair())
        self.wake = CallerEnd(self._obey)
        self.connection = ours
        self._theirs = theirs
        self._job: EnvWorker | None = job
        self._answers = _Answers()
        self._side = _Side(self._answers, mailbox, theirs)
        self._service: EnvService | None = None
        self._is_at_work = False

    def _obey(self, command: int | None) -> int:
        outer, self._is_at_work = self._is_at_work, True
        try:
            if self._service is not None:
                if not self._service.obey(command):
                    self._service = None
            elif self._job is not None and command is None:
                job, self._job = self._job, None
                self._service = job.service_in(self._side)
                if self._service is not None:
                    self._service.begin()
            else:
                raise EOFError("its envs are closed, or were never made")
        except BaseException:
            if self._service is not None:
                self._service.abandon_round()
            raise
        finally:
            self._is_at_work = outer
        return self._answers.latest

    @property
    def is_alive(self) -> bool:
        """Whether it has envs."""
        return self._service is not None

    def exit_status(self, timeout: float | None = None) -> int | None:
        """0 once it has none."""
        return None if self.is_alive else 0

    def join(self, timeout: float | None = None) -> bool:
        """Whether it has none."""
        return not self.is_alive

    def kill(self) -> None:
        """Has it forget its envs, which are not closed."""
        self._service = self._job = None

    def abort(self, timeout: float) -> None:
        """The same."""
        self.kill()

    def close(self) -> None:
        """Closes the envs, unless they are, or are at work; nobody is told how that goes. Again: does nothing."""
        service = None if self._is_at_work else self._service  # at work in another thread, say, when this process ends
        self.kill()
        self.connection.close()
        self._theirs.close()
        if service is not None:
            service.end()


class CallerGroup(WakeGroup):
    """Waits for worker processes, and does the caller's own share first.

    Args:
        ends: this side's end of each process.
        caller: that of the caller's share, whose index is the next one.
    """

    def __init__(self, ends: Sequence[WakeEnd], caller: CallerEnd):
        super().__init__(ends)
        self._caller = caller
        self._index_of_caller = len(ends)

    def wait(self, pending: set[int], timeout: float | None = None, *, first: bool = False) -> set[int]:
        """See :class:`~gymbridge.engine.workers.WakeGroup`; the own share takes as long as it takes."""
        if self._index_of_caller in pending:
            begun = perf_counter()
            self._caller.take()
            pending.discard(self._index_of_caller)
            if first or not pending:
                return set()
            if timeout is not None:
                timeout = max(0.0, timeout - (perf_counter() - begun))
        return super().wait(pending, timeout, first=first)


class _Side(ProcessSide):
    """The worker's end of what connects it with the caller."""

    def packed(self, message: Any, what: str) -> bytes:
        """See :class:`~gymbridge.engine.worker_loop.Side`."""
        return packed_for_this_process(message, what)


class _Answers:
    """The worker's end of its wake-ups.

    Attributes:
        latest: its latest answer.
    """

    latest = -1

    def wake(self, byte: int = 0) -> None:
        """Answers."""
        self.latest = byte

    def signal(self, byte: int) -> None:
        """Answers."""
        self.latest = byte

    def wait(self, timeout: float | None = None) -> int | None:
        """Refused: it is called, and waits for nothing."""
        raise RuntimeError("a worker that is the caller waits for no command")

    def restart(self) -> None:
        """Nothing is counted."""

    def share(self, ours: memoryview, theirs: memoryview, look_seconds: float) -> None:
        """Nobody looks."""
