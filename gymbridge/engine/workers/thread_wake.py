"""Wake-ups between a caller and worker threads of its process: :mod:`~gymbridge.engine.workers.wake` without pipes.

Commands lie in a queue on which their worker blocks. Answers lie at the caller's end until they are taken. Each time
one is put there the worker tells it to whoever waits for that end, which the end knows: a lane that waits for it alone,
or a group. Whoever waits looks at the answers first and blocks only where they are not there, so a wake-up that an
interrupt takes away costs nothing. It says how many it waits for, so that it is woken once and not by each of them:
every wake-up of a thread takes the interpreter's lock from the others. That lock is relied upon too: what one thread
does in two lines, the others see in that order.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from time import perf_counter

import numpy as np
import numpy.typing as npt

__all__ = ["ReadyThreads", "ThreadEnd", "ThreadGroup", "WorkerThreadEnd"]

_GONE = "the other side is gone"

_NOBODY_WAITS = sys.maxsize


class _Arrivals:
    """Which workers have come, and one thread that waits until there are enough of them.

    Attributes:
        come: their indices, in the order in which they came.
    """

    __slots__ = ("_bell", "_wanted", "come")

    def __init__(self) -> None:
        self.come: dict[int, None] = {}
        self._wanted = _NOBODY_WAITS
        self._bell = threading.Lock()  # let go of by who comes last, taken by who waits
        self._bell.acquire()

    def add(self, index: int) -> None:
        """A worker has come; called by it."""
        self.come[index] = None  # before the look at how many are wanted, which who waits sets before it counts
        if len(self.come) >= self._wanted:
            with suppress(RuntimeError):  # another has just let go of it
                self._bell.release()

    def wait(self, least: int, deadline: float | None) -> bool:
        """Waits until ``least`` have come; False if they have not at the deadline."""
        self._wanted = least
        try:
            while len(self.come) < least:
                if deadline is None:
                    self._bell.acquire()
                elif not self._bell.acquire(timeout=_seconds_to(deadline)):
                    return len(self.come) >= least
        finally:
            self._wanted = _NOBODY_WAITS
        return True


class ThreadEnd:
    """The caller's end: gives a worker thread commands, and has its answers until they are taken.

    Args:
        index: the worker's number.

    Attributes:
        latest: the byte that was taken last; -1 before the first.
        theirs: the worker's end.

    Example:
        >>> ours = ThreadEnd(0)
        >>> ours.wake(7)
        >>> ours.theirs.wait()
        7
        >>> ours.theirs.wake(8)
        >>> ours.is_ready(), ours.take_ready()
        (True, 8)
        >>> ours.theirs.leave()
        >>> ours.take_ready()
        Traceback (most recent call last):
        EOFError: the other side is gone
    """

    def __init__(self, index: int):
        self.latest = -1
        self._own = _Arrivals()
        self._commands: SimpleQueue[int] = SimpleQueue()
        self.theirs = WorkerThreadEnd(index, self._commands, self._own)
        self._answers = self.theirs.answers

    def wake(self, byte: int = 0) -> None:
        """Gives the worker a command; one that it does not wait for yet is kept.

        Raises:
            BrokenPipeError: the worker has ended.
        """
        if self.theirs.is_gone:
            raise BrokenPipeError(_GONE)
        self._commands.put(byte)

    signal = wake

    def restart(self) -> None:
        """Nothing is counted here."""

    def share(self, ours: memoryview, theirs: memoryview, look_seconds: float = 0.0) -> None:
        """Nobody looks at shared memory here: a look would keep the interpreter from the thread that it waits for."""

    def tell(self, arrivals: _Arrivals | None = None) -> None:
        """Has what comes from now on told to a group, or to this end's own waits."""
        self.theirs.arrivals = self._own if arrivals is None else arrivals

    @property
    def has_news(self) -> bool:
        """Is there an answer, or has the worker ended?"""
        return bool(self._answers) or self.theirs.is_gone

    def is_ready(self, timeout: float | None = 0.0) -> bool:
        """Whether an answer is there, or the worker has ended, now or within ``timeout`` seconds; takes nothing."""
        return self.has_news or self._wait(None if timeout is None else perf_counter() + timeout)

    def _wait(self, deadline: float | None) -> bool:
        self.tell()
        while True:
            self._own.come.clear()  # it may be about an answer that has been taken already
            if self.has_news:
                return True
            if not self._own.wait(1, deadline):
                return self.has_news

    def take_ready(self) -> int:
        """The byte that is there, as :meth:`is_ready` has found.

        Raises:
            EOFError: the worker has ended and left none.
        """
        try:
            self.latest = self._answers.popleft()
        except IndexError:
            raise EOFError(_GONE) from None
        return self.latest

    def skip_to(self, byte: int, timeout: float | None = None) -> bool:
        """Takes answers until this one has come; False where it has not after ``timeout`` seconds.

        Raises:
            EOFError: the worker has ended.
        """
        deadline = None if timeout is None else perf_counter() + timeout
        while True:
            if not self.has_news and not self._wait(deadline):
                return False
            if self.take_ready() == byte:
                return True

    def close(self) -> None:
        """Has the worker find the end of its commands."""
        self._commands.put(self.theirs.END)


class WorkerThreadEnd:
    """The worker's end, which holds nothing of who waits but what it is to tell it.

    Attributes:
        answers: those that have not been taken.
        is_gone: the worker has ended.
        arrivals: of who waits for this worker now.
        memory: of the block, once the caller has handed it over.
    """

    END = -1

    memory: npt.NDArray[np.uint8]

    def __init__(self, index: int, commands: SimpleQueue[int], arrivals: _Arrivals):
        self.answers: deque[int] = deque()
        self.is_gone = False
        self.arrivals = arrivals
        self._index = index
        self._commands = commands

    def wait(self) -> int:
        """The next command.

        Raises:
            EOFError: there will be none.
        """
        byte = self._commands.get()
        if byte == self.END:
            raise EOFError(_GONE)
        return byte

    def wake(self, byte: int = 0) -> None:
        """Answers."""
        self.answers.append(byte)
        self.arrivals.add(self._index)

    signal = wake

    def leave(self) -> None:
        """Tells that the worker ends."""
        self.is_gone = True
        self.arrivals.add(self._index)

    def restart(self) -> None:
        """Nothing is counted here."""

    def share(self, ours: memoryview, theirs: memoryview, look_seconds: float) -> None:
        """Nobody looks at shared memory here."""


class ThreadGroup:
    """Waits for several worker threads at once; see :class:`~gymbridge.engine.workers.wake.WakeGroup`.

    Args:
        ends: this side's end of each; they stay their owners'.

    Example:
        >>> ends = [ThreadEnd(index) for index in range(3)]
        >>> ends[0].theirs.wake(1), ends[2].theirs.wake(1)
        (None, None)
        >>> group, pending = ThreadGroup(ends), {0, 2}
        >>> group.wait(pending), pending
        (set(), set())
        >>> ends[1].theirs.leave()
        >>> pending = {1}
        >>> group.wait(pending), pending
        ({1}, {1})
    """

    def __init__(self, ends: Sequence[ThreadEnd]):
        self._ends = ends
        self._arrivals = _Arrivals()

    def remove(self, index: int) -> None:
        """A worker has died: nothing is waited for that is not in ``pending``."""

    def wait(self, pending: set[int], timeout: float | None = None, *, first: bool = False) -> set[int]:
        """Waits until each of ``pending`` has answered, or one of them has ended, or the time is over.

        Args:
            pending: indices of those waited for; those that answered are taken out.
            timeout: seconds; None to wait for ever.
            first: wait for one of them only.

        Returns:
            Those found dead. Without any and with some left in ``pending``, the time is over.
        """
        deadline = None if timeout is None else perf_counter() + timeout
        for index in pending:
            self._ends[index].tell(self._arrivals)
        while True:
            self._arrivals.come.clear()
            news = [index for index in pending if self._ends[index].has_news]
            dead = {index for index in news if not self._take(index, pending)}
            if not pending or dead or (news and first):
                return dead
            if not self._arrivals.wait(1 if first else len(pending), deadline) and not self._arrivals.come:
                return set()

    def _take(self, index: int, pending: set[int]) -> bool:
        try:
            self._ends[index].take_ready()
        except EOFError:
            return False
        pending.discard(index)
        return True


class ReadyThreads:
    """Which of several worker threads have answered; see :class:`~gymbridge.engine.workers.wake.ReadyEnds`.

    Args:
        ends: this side's end of each; they stay their owners'.

    Example:
        >>> ends = [ThreadEnd(index) for index in range(3)]
        >>> ready = ReadyThreads(ends)
        >>> ready.watch(0), ready.watch(2)
        (None, None)
        >>> ends[1].theirs.wake(1), ends[2].theirs.wake(1)
        (None, None)
        >>> ready.wait()
        [2]
        >>> ready.forget(2)
        >>> ready.wait(timeout=0)
        []
    """

    def __init__(self, ends: Sequence[ThreadEnd]):
        self._ends = ends
        self._arrivals = _Arrivals()
        self._watched: set[int] = set()

    def watch(self, index: int) -> None:
        """Has waits look at a worker, until ``forget``."""
        end = self._ends[index]
        self._watched.add(index)
        end.tell(self._arrivals)
        if end.has_news:
            self._arrivals.add(index)

    def forget(self, index: int) -> None:
        """Has waits look at a worker no more; also where none does."""
        self._ends[index].tell()
        self._watched.discard(index)
        self._arrivals.come.pop(index, None)

    def wait(self, timeout: float | None = None, least: int = 1) -> list[int]:
        """The watched workers that are ready, in the order in which they came; at times fewer, or none, too early.

        Args:
            timeout: seconds; None to wait for ever.
            least: how many to wait for.
        """
        self._arrivals.wait(least, None if timeout is None else perf_counter() + timeout)
        return [index for index in list(self._arrivals.come) if self._is_ready(index)]

    def _is_ready(self, index: int) -> bool:
        """Whether it is: a worker may tell late of an answer that has been taken already."""
        if index in self._watched and self._ends[index].has_news:
            return True
        self._arrivals.come.pop(index, None)
        if index in self._watched and self._ends[index].has_news:  # an answer that has come between the two lines
            self._arrivals.add(index)
        return False


def _seconds_to(deadline: float) -> float:
    return min(max(0.0, deadline - perf_counter()), threading.TIMEOUT_MAX)
