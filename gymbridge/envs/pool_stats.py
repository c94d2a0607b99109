"""Counts what goes through a pool."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

__all__ = ["ExchangeStats"]


class ExchangeStats:
    """What a pool has handed out since it was started, or since its counts were taken last.

    Args:
        num_envs: number of envs of the pool.
    """

    def __init__(self, num_envs: int):
        self._num_envs = num_envs
        self._handed_out: dict[int, float] = {}
        """Row -> when it was received, until it is sent again."""
        self._restart()

    def _restart(self) -> None:
        self._batches = self._items = self._capacity = self._partial = self._actions = 0
        self._ready_seconds = self._action_seconds = self._waited_seconds = 0.0
        self._since: float | None = None

    def sent(self, rows: Sequence[int]) -> None:
        """Rows are given work together."""
        if self._handed_out:
            now = perf_counter()
            for row in rows:
                handed_out = self._handed_out.pop(row, None)
                if handed_out is not None:
                    self._action_seconds += now - handed_out
                    self._actions += 1

    def received(self, begun: float, done_at: Sequence[float], rows: Sequence[int], capacity: int | None) -> None:
        """Rows are handed out together.

        Args:
            begun: when the receive was called.
            done_at: when each row came to the end of its work.
            rows: the rows.
            capacity: how many rows it would have taken; None for all.
        """
        now = perf_counter()
        if self._since is None:
            self._since = begun
        self._waited_seconds += now - begun
        self._batches += 1
        self._items += len(rows)
        capacity = self._num_envs if capacity is None else min(capacity, self._num_envs)
        self._capacity += capacity
        self._partial += len(rows) < capacity
        self._ready_seconds += now * len(rows) - sum(done_at)
        for row in rows:
            self._handed_out[row] = now

    def taken(self, *, reset: bool) -> dict[str, float]:
        """The counts, as :meth:`gymbridge.AsyncEnvPool.stats` gives them; from zero afterwards, if told."""
        elapsed = 0.0 if self._since is None else perf_counter() - self._since
        counts = {
            "batches": self._batches,
            "items": self._items,
            "avg_batch_size": _ratio(self._items, self._batches),
            "batch_fill_ratio": _ratio(self._items, self._capacity),
            "partial_batch_fraction": _ratio(self._partial, self._batches),
            "avg_observation_to_batch_ms": 1e3 * _ratio(self._ready_seconds, self._items),
            "avg_batch_to_action_ms": 1e3 * _ratio(self._action_seconds, self._actions),
            "consumer_busy_fraction": _ratio(max(0.0, elapsed - self._waited_seconds), elapsed),
        }
        if reset:
            self._restart()
        return counts


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
