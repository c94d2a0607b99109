"""Counts what goes through a pool."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

from gymbridge.engine.turns import Turns

__all__ = ["ExchangeStats"]


class _Counts(NamedTuple):
    """What has been counted since the pool was made."""

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

    One thread sends and receives batches; any may ask, and sees a part of a batch that is counted meanwhile. The counts
    only grow: to begin anew is to know what they were.

    Args:
        num_envs: number of envs of the pool.
    """

    def __init__(self, num_envs: int):
        self._num_envs = num_envs
        self._handed_out: dict[int, float] = {}
        """Row -> when it was received, until it is sent again."""
        self._turns = Turns()
        self._before = _Counts()
        self._since: float | None = None
        self._batches = self._items = self._capacity = self._partial = self._actions = 0
        self._ready_s = self._action_s = self._waited_s = 0.0

    def sent(self, rows: Sequence[int]) -> None:
        """Rows are given work together."""
        if self._handed_out:
            now = perf_counter()
            for row in rows:
                handed_out = self._handed_out.pop(row, None)
                if handed_out is not None:
                    self._action_s += now - handed_out
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
        self._waited_s += now - begun
        self._batches += 1
        self._items += len(rows)
        capacity = self._num_envs if capacity is None else min(capacity, self._num_envs)
        self._capacity += capacity
        self._partial += len(rows) < capacity
        self._ready_s += now * len(rows) - sum(done_at)
        for row in rows:
            self._handed_out[row] = now

    def _taken(self, reset: bool) -> tuple[_Counts, float | None]:
        """What has been counted since it began anew, and when the first batch since then was received."""
        counts, since = _Counts(*(getattr(self, f"_{name}") for name in _Counts._fields)), self._since
        own = _Counts._make(now - before for now, before in zip(counts, self._before, strict=True))
        if reset:
            self._before, self._since = counts, None
        return own, since

    def taken(self, *, reset: bool) -> dict[str, float]:
        """The counts, as :meth:`gymbridge.AsyncEnvPool.stats` gives them; from zero afterwards, if told."""
        own, since = self._turns.take(partial(self._taken, reset))
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
