"""Whether a worker that died is replaced, and with which seed its envs go on."""

from __future__ import annotations

import math
from collections import deque
from time import perf_counter
from typing import Any, Literal

import numpy as np

from gymbridge.engine.layout import EnvDescription
from gymbridge.errors import WorkerStartError

__all__ = ["OnWorkerFailure", "RestartLimit", "Restarts", "require_same_leaves", "restart_limit"]

OnWorkerFailure = Literal["raise", "restart"]

RestartLimit = tuple[int, float]
"""So many restarts in so many seconds."""


def restart_limit(on_worker_failure: Any, max_restarts: Any) -> RestartLimit | None:
    """How often workers may be replaced; None where none is.

    Args:
        on_worker_failure: ``"raise"`` or ``"restart"``.
        max_restarts: so many in so many seconds.

    Raises:
        ValueError, TypeError: something else, in either case.

    Example:
        >>> restart_limit("restart", (10, 60.0)), restart_limit("raise", (10, 60.0))
        ((10, 60.0), None)
    """
    if on_worker_failure not in ("raise", "restart"):
        raise ValueError(f"on_worker_failure: got {on_worker_failure!r}, expected 'raise' or 'restart'")
    if not isinstance(max_restarts, (tuple, list)) or len(max_restarts) != 2:
        raise TypeError(f"max_restarts: got {max_restarts!r}, expected (number, seconds)")
    number, seconds = max_restarts
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
        raise TypeError(f"max_restarts: got the number {number!r}, expected an int")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float, np.number)):
        raise TypeError(f"max_restarts: got the seconds {seconds!r}, expected a number")
    if number < 1 or math.isnan(seconds) or seconds <= 0:
        raise ValueError(f"max_restarts: got {max_restarts!r}, expected at least 1 in more than 0 seconds")
    return (int(number), float(seconds)) if on_worker_failure == "restart" else None


class Restarts:
    """The restarts of an engine's workers.

    Args:
        limit: so many in so many seconds; None for none at all. One call replaces a worker that often at most, however
            long each of them lives: it would never end where a worker dies of what the call has it do.

    Attributes:
        of_worker: worker -> how often it has been replaced, where it has; it only grows.

    Example:
        >>> restarts = Restarts((2, 60.0))
        >>> restarts.allow(0), restarts.allow(3), restarts.allow(0)
        (True, True, False)
        >>> restarts.of_worker
        {0: 1, 3: 1}
    """

    def __init__(self, limit: RestartLimit | None):
        self.limit = limit
        self.of_worker: dict[int, int] = {}
        self._latest: deque[float] = deque(maxlen=1 if limit is None else limit[0])
        self._in_call: dict[int, int] = {}
        self._of_row: dict[int, int] = {}
        self._seeds: dict[int, int] = {}

    def begin_call(self) -> None:
        """What is allowed from now on is for another call."""
        self._in_call.clear()

    def allow(self, worker: int) -> bool:
        """Whether a worker may be replaced now; it is counted then."""
        if self.limit is None:
            return False
        number, seconds = self.limit
        now, in_call = perf_counter(), self._in_call.get(worker, 0)
        if in_call == number or (len(self._latest) == number and now - self._latest[0] < seconds):
            return False
        self._in_call[worker] = in_call + 1
        self._latest.append(now)
        self.of_worker[worker] = self.of_worker.get(worker, 0) + 1
        return True

    def take_seed(self, row: int, seed: Any) -> None:
        """Keeps the seed that a row's env is given; None is not one."""
        if seed is not None:
            self._seeds[row] = int(seed)

    def next_seed(self, row: int) -> int | None:
        """The seed for a row's env that is made anew: of the one it was given, its row and how often it was so far.

        The same seed would have it run into the same end again. None where it never was given one.
        """
        count = self._of_row[row] = self._of_row.get(row, 0) + 1
        if row not in self._seeds:
            return None
        entropy = [self._seeds[row] % 2**64, row, count]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0]) >> 1  # 31 bits: envs take them everywhere


def require_same_leaves(row: int, made: EnvDescription, before: EnvDescription) -> None:
    """Refuses an env made anew whose leaves are others than those that the block has places for.

    Raises:
        WorkerStartError: naming the env and the leaves.
    """
    for section in ("input_leaves", "next_leaves", "root_leaves"):
        got, expected = getattr(made, section), getattr(before, section)
        if tuple(got) != tuple(expected):
            raise WorkerStartError(f"env {row}: made anew, it is another: got the {section} {got}, expected {expected}")
