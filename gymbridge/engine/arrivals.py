"""Calls that have come to their end in other threads, and who waits until there are enough of them.

Who waits is a thread, or a coroutine on an event loop of its own. It says how many it waits for, so that it is woken
once and not by each of them. The interpreter's lock is relied upon: what one thread does in two lines, the others see
in that order.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from time import perf_counter
from typing import Any

__all__ = ["Arrivals"]


class Arrivals:
    """What has come, in order, and the threads and coroutines that wait for it.

    A wait takes nothing away, whether it comes to its end or a time-out, an interrupt or a cancellation ends it.

    Attributes:
        come: what has come; who has done with it takes it out.
        refusal: why nothing more is waited for; empty as long as it is.

    Example:
        >>> arrivals = Arrivals()
        >>> threading.Thread(target=arrivals.add, args=("a",)).start()
        >>> arrivals.wait(1, None), [*arrivals.come]
        (True, ['a'])
        >>> asyncio.run(arrivals.wait_async(2, perf_counter() + 0.001))
        False
    """

    __slots__ = ("_bells", "come", "refusal")

    def __init__(self) -> None:
        self.come: dict[Any, None] = {}
        self.refusal = ""
        self._bells: dict[_ThreadBell | _LoopBell, None] = {}

    def add(self, comer: Any) -> None:
        """Something has come; called in any thread."""
        self.come[comer] = None  # before the look at who waits, who shows that before it counts
        if self._bells:
            for bell in list(self._bells):
                if len(self.come) >= bell.least:
                    bell.ring()

    def end(self, refusal: str) -> None:
        """Has waits end with a ``RuntimeError``, those under way too; called in any thread."""
        self.refusal = refusal  # before the look at who waits, who shows that before it looks at this
        for bell in list(self._bells):
            bell.ring()

    def _require_open(self) -> None:
        if self.refusal:
            raise RuntimeError(self.refusal)

    def wait(self, least: int, deadline: float | None) -> bool:
        """Waits until ``least`` are there; False if they are not at the deadline, a ``perf_counter`` time."""
        if len(self.come) >= least:
            return True
        bell = _ThreadBell(least)
        try:
            self._bells[bell] = None
            while len(self.come) < least:
                self._require_open()
                if not bell.wait(deadline):
                    return len(self.come) >= least
        finally:
            self._bells.pop(bell, None)
        return True

    async def wait_async(self, least: int, deadline: float | None) -> bool:
        """As ``wait``, for a coroutine on whichever event loop."""
        while len(self.come) < least:
            if deadline is not None and perf_counter() >= deadline:
                return False
            bell = _LoopBell(least)
            try:
                self._bells[bell] = None
                if len(self.come) < least:
                    self._require_open()
                    await bell.wait(deadline)
            finally:
                self._bells.pop(bell, None)
        return True


class _ThreadBell:
    """Wakes a thread."""

    __slots__ = ("_lock", "least")

    def __init__(self, least: int):
        self.least = least
        self._lock = threading.Lock()  # let go of by who comes last, taken by who waits
        self._lock.acquire()

    def ring(self) -> None:
        if self._lock.locked():
            with suppress(RuntimeError):  # another has just let go of it
                self._lock.release()

    def wait(self, deadline: float | None) -> bool:
        """Waits until it rings; False if it does not until the deadline."""
        return self._lock.acquire(timeout=-1 if deadline is None else _seconds_to(deadline))


class _LoopBell:
    """Wakes a coroutine on the loop that runs, from another thread, once."""

    __slots__ = ("_is_rung", "_loop", "_woken", "least")

    def __init__(self, least: int):
        self.least = least
        self._is_rung = False
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()

    def ring(self) -> None:
        if not self._is_rung:
            self._is_rung = True
            with suppress(RuntimeError):  # a loop that is closed: nobody waits there any more
                self._loop.call_soon_threadsafe(self._wake)

    async def wait(self, deadline: float | None) -> None:
        """Waits until it rings, or the deadline."""
        timer = None if deadline is None else self._loop.call_later(_seconds_to(deadline), self._wake)
        try:
            await self._woken
        finally:
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)


def _seconds_to(deadline: float) -> float:
    return min(max(0.0, deadline - perf_counter()), threading.TIMEOUT_MAX)
