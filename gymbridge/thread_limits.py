"""How many threads torch has in this process while engines with workers run."""

from __future__ import annotations

import threading

import torch

__all__ = ["ThreadLimits", "thread_limits"]


class ThreadLimits:
    """The limits of all engines that run: the last that began holds, and when none is left, what was before them.

    Example:
        >>> limits, before = ThreadLimits(), torch.get_num_threads()
        >>> limits.begin(1, 1)
        >>> limits.end(1)
        >>> torch.get_num_threads() == before
        True
    """

    def __init__(self) -> None:
        self._limits: dict[int, int] = {}
        self._before = 0
        self._lock = threading.RLock()  # an engine may be dropped, and end, at any moment

    def begin(self, engine: int, limit: int) -> None:
        """Limits the threads for an engine.

        Args:
            engine: its number, of which no other has the same.
            limit: number of threads.
        """
        with self._lock:
            if not self._limits:
                self._before = torch.get_num_threads()
            self._limits[engine] = limit
            torch.set_num_threads(limit)

    def end(self, engine: int) -> None:
        """Takes an engine's limit back; one that has none is left alone."""
        with self._lock:
            if self._limits.pop(engine, None) is not None:
                torch.set_num_threads([self._before, *self._limits.values()][-1])


thread_limits = ThreadLimits()
"""Of this process."""
