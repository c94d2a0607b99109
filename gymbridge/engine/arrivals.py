"""Calls that have come to their end in other threads, and who waits until there are enough of them.

Who waits is a thread, or a coroutine on an event loop of its own. It says how many it waits for, so that it is woken
once and not by each of them. The interpreter's lock is relied upon: what one thread does in two lines, the others see
in that order.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress
from time import perf_counter
from typing import Any

__all__ = ["Arrivals"]

_NOBODY_WAITS = sys.maxsize


class Arrivals:
    """What has come, in order, and one thread or coroutine that waits for it.

    A wait that ends early, by a time-out, an interrupt or a cancellation, takes nothing away.

    Attributes:
        come: what has come; who waits takes it out.

    Example:
        >>> arrivals = Arrivals()
        >>> threading.Thread(target=arrivals.add, args=("a",)).start()
        >>> arrivals.wait(1, None), [*arrivals.come]
        (True, ['a'])
        >>> asyncio.run(arrivals.wait_async(2, perf_counter() + 0.001))
        False
    """

    __slots__ = ("_bell", "_loop_bell", "_wanted", "come")

    def __init__(self) -> None:
        self.come: dict[Any, None] = {}
        self._wanted = _NOBODY_WAITS
        self._bell = threading.Lock()  # let go of by who comes last, taken by who waits
        self._bell.acquire()
        self._loop_bell: _LoopBell | None = None

    def add(self, comer: Any) -> None:
        """Something has come; called in any thread."""
        self.come[comer] = None  # before the look at how many are wanted, which who waits sets before it counts
        if len(self.come) < self._wanted:
            return
        loop_bell = self._loop_bell
        if loop_bell is not None:
            loop_bell.ring()
        elif self._bell.locked():
            with suppress(RuntimeError):  # another has just let go of it
                self._bell.release()

    def wait(self, least: int, deadline: float | None) -> bool:
        """Waits until ``least`` are there; False if they are not at the deadline, a ``perf_counter`` time."""
        self._loop_bell = None
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

    async def wait_async(self, least: int, deadline: float | None) -> bool:
        """As ``wait``, for a coroutine on whichever event loop."""
        loop = asyncio.get_running_loop()
        while len(self.come) < least:
            if deadline is not None and perf_counter() >= deadline:
                return False
            bell = self._loop_bell = _LoopBell(loop)
            self._wanted = least
            timer = None if deadline is None else loop.call_later(_seconds_to(deadline), bell.wake)
            try:
                if len(self.come) < least:
                    await bell.woken
            finally:
                self._wanted = _NOBODY_WAITS
                self._loop_bell = None
                if timer is not None:
                    timer.cancel()
        return True


class _LoopBell:
    """Wakes a coroutine from another thread, once."""

    __slots__ = ("_is_rung", "_loop", "woken")

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._is_rung = False
        self.woken: asyncio.Future[None] = loop.create_future()

    def ring(self) -> None:
        if not self._is_rung:
            self._is_rung = True
            with suppress(RuntimeError):  # a loop that is closed: nobody waits there any more
                self._loop.call_soon_threadsafe(self.wake)

    def wake(self) -> None:
        """Called on the loop."""
        if not self.woken.done():
            self.woken.set_result(None)


def _seconds_to(deadline: float) -> float:
    return min(max(0.0, deadline - perf_counter()), threading.TIMEOUT_MAX)
