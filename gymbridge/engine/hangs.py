"""Which workers hang: they have been at one call of one env for too long."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter

__all__ = ["HangWatch"]

_LOOKS = 8
"""So often in the time that an env has it is seen where a worker is."""


class HangWatch:
    """Watches how workers get on, each of which calls its envs in turn.

    Args:
        seconds: that an env may take for a step or a reset; a worker is seen to hang an eighth later at most.
        at_work: worker -> a number that changes when it comes to the next call of those it was woken for.

    Attributes:
        seconds: as it was given.
        interval: how often ``hung`` is to be asked, in seconds.

    Example:
        >>> watch = HangWatch(60.0, {0: 7, 1: 3}.get)
        >>> watch.begin([0, 1])
        >>> watch.hung([0, 1])
        []
    """

    def __init__(self, seconds: float, at_work: Callable[[int], int | None]):
        self.seconds = seconds
        self.interval = seconds / _LOOKS
        self._at_work = at_work
        self._since: dict[int, tuple[float, int | None]] = {}

    def begin(self, workers: Iterable[int]) -> None:
        """These are woken now."""
        now = perf_counter()
        for worker in workers:
            self._since[worker] = now, self._at_work(worker)

    def hung(self, workers: Iterable[int]) -> list[int]:
        """Which of these, that have not answered, are at one call for too long."""
        found, now = [], perf_counter()
        for worker in workers:
            at_work = self._at_work(worker)
            since, before = self._since.setdefault(worker, (now, at_work))
            if at_work != before:
                self._since[worker] = now, at_work
            elif now - since >= self.seconds:
                found.append(worker)
        return found
