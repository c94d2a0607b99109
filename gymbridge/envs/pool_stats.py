"""Counts what goes through a pool."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from time import perf_counter
from typing import NamedTuple

__all__ = ["ExchangeStats"]


class _Counts(NamedTuple):
    """What has been counted since the pool was made; it only grows."""

    batches: int = 0
    items: int = 0
    capacity: int = 0
    partial: int = 0
    actions: int = 0
    ready_s: float = 0.0
    action_s: float = 0.0
    waited_s: float = 0.0


class ExchangeStats:
    """What a pool has handed out since it was made, or since its counts were last begun anew.

    One thread sends and receives batches; any may ask. The counts only grow, so that to begin anew is to know what they
    were.

    Args:
        num_envs: number of envs of the pool.
    """

    def __init__(self, num_envs: int):
        self._num_envs = num_envs
        self._handed_out: dict[int, float] = {}
        """Row -> when it was received, until it is sent again."""
        self._lock = threading.Lock()
        self._counts = self._before = _Counts()
        self._since: float | None = None

    def sent(self, rows: Sequence[int]) -> None:
        """Rows are given work together."""
        if self._handed_out:
            now, counts = perf_counter(), self._counts
            since = [handed_out for row in rows if (handed_out := self._handed_out.pop(row, None)) is not None]
            seconds = now * len(since) - sum(since)
            self._counts = counts._replace(actions=counts.actions + len(since), action_s=counts.action_s + seconds)

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
        capacity = self._num_envs if capacity is None else min(capacity, self._num_envs)
        counts = self._counts
        self._counts = _Counts(
            counts.batches + 1,
            counts.items + len(rows),
            counts.capacity + capacity,
            counts.partial + (len(rows) < capacity),
            counts.actions,
            counts.ready_s + now * len(rows) - sum(done_at),
            counts.action_s,
            counts.waited_s + now - begun,
        )
        for row in rows:
            self._handed_out[row] = now

    def taken(self, *, reset: bool) -> dict[str, float]:
        """The counts, as :meth:`gymbridge.AsyncEnvPool.stats` gives them; from zero afterwards, if told."""
        with self._lock:
            counts, since = self._counts, self._since
            own = _Counts(*(now - before for now, before in zip(counts, self._before, strict=True)))
            if reset:
                self._before, self._since = counts, None
        elapsed = 0.0 if since is None else perf_counter() - since
        return {
            "batches": own.batches,
            "items": own.items,
            "avg_batch_size": _ratio(own.items, own.batches),
            "batch_fill_ratio": _ratio(own.items, own.capacity),
            "partial_batch_fraction": _ratio(own.partial, own.batches),
            "avg_observation_to_batch_ms": 1e3 * _ratio(own.ready_s, own.items),
            "avg_batch_to_action_ms": 1e3 * _ratio(own.action_s, own.actions),
            "consumer_busy_fraction": _ratio(max(0.0, elapsed - own.waited_s), elapsed),
        }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
