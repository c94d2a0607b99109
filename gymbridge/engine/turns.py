"""Short work that threads do one after the other, and that no interrupt leaves locked."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import sleep
from typing import TypeVar

__all__ = ["Turns"]

_Made = TypeVar("_Made")

_SECONDS = 0.0001
"""How often who waits looks; what is waited for is short."""


class Turns:
    """What a lock would be for, but for interrupts: one may come right after a lock has been acquired.

    A signal handler that wants a turn in the midst of its own thread's gets it.

    Example:
        >>> turns = Turns()
        >>> turns.take(lambda: turns.take(lambda: "both"))
        'both'
    """

    __slots__ = ("_thread",)

    def __init__(self) -> None:
        self._thread: int | None = None

    def take(self, work: Callable[[], _Made]) -> _Made:
        """Does some work while no other thread does any."""
        thread = get_ident()
        while self._thread is not None and self._thread != thread:
            sleep(_SECONDS)
        # no call stands between look and mark, nor between mark and try: see gymbridge.engine.calls
        outer, self._thread = self._thread, thread
        try:
            return work()
        finally:
            self._thread = outer
