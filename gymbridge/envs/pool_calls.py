"""The calls of a pool: what is sent, what is under way, and what is received by when."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from gymbridge.engine.codes import CALLS, Op
from gymbridge.engine.failures import raise_env_error
from gymbridge.engine.time_limits import time_limit
from gymbridge.envs.pool_faces import PoolFace, RowFailed, Work
from gymbridge.envs.pool_stats import ExchangeStats
from gymbridge.envs.sent_rows import Sent, taken_over, together
from gymbridge.envs.tensordicts import entry, put
from gymbridge.errors import CallTimeoutError

__all__ = ["PoolCalls", "Wanted"]


class Wanted(NamedTuple):
    """How much a receive is to get, and by when; see :meth:`gymbridge.AsyncEnvPool.async_step_recv`.

    Attributes:
        min_get, max_get: how many rows.
        deadline: on ``time.perf_counter``'s clock; None for none.

    Example:
        >>> Wanted.of(min_get=0)
        Traceback (most recent call last):
        ValueError: min_get: got 0, expected at least 1
    """

    min_get: int
    max_get: int | None
    deadline: float | None

    @classmethod
    def of(cls, min_get: int = 1, max_get: int | None = None, timeout: float | None = None) -> Wanted:
        """What is wanted from now on.

        Raises:
            ValueError, TypeError: ``min_get`` that is no int or less than 1, ``max_get`` less than ``min_get``, or a
                negative ``timeout``.
        """
        for name, given in (("min_get", min_get), ("max_get", max_get)):
            if given is not None and (isinstance(given, bool) or not isinstance(given, (int, np.integer))):
                raise TypeError(f"{name}: got {given!r}, expected an int")
        if min_get < 1:
            raise ValueError(f"min_get: got {min_get}, expected at least 1")
        if max_get is not None and max_get < min_get:
            raise ValueError(f"max_get: got {max_get}, expected at least min_get, {min_get}")
        return cls(int(min_get), None if max_get is None else int(max_get), deadline_of(timeout))


def deadline_of(timeout: float | None) -> float | None:
    """When a call is to end, on ``time.perf_counter``'s clock.

    Raises:
        ValueError, TypeError: a negative time, or something that is none.
    """
    limit = time_limit("timeout", timeout)
    return None if limit is None else perf_counter() + limit


class PoolCalls:
    """What is under way in a pool, and how it gets there and back.

    Batches are sent and received by one thread at a time, which the pool sees to; lanes by a thread each.

    Args:
        face: the pool's engine seen as TensorDicts.
        inputs: the leaves that envs are given in a step.
        row_batch_size: that of an env.
        dense: results are dense.
        stats: keeps count.
    """

    def __init__(
        self,
        face: PoolFace[Any, Any],
        inputs: Iterable[tuple[str, ...]],
        row_batch_size: torch.Size,
        *,
        dense: bool,
        stats: ExchangeStats,
    ):
        self._face = face
        self._engine = face.engine
        self._inputs = tuple(inputs)
        self._row_batch_size = row_batch_size
        self._dense = dense
        self._stats = stats
        self._claims = face.engine._rows.held
        """Of the rows that were sent work and not received: the engine refuses calls of all rows meanwhile."""
        self._works: dict[Op, dict[int, Work]] = {op: {} for op in CALLS}
        self._lanes: dict[int, Work] = {}
        self._received_lanes: dict[int, bool] = {}
        """The lanes that a thread receives."""

    @property
    def under_way(self) -> int:
        """How many rows have work under way or were not received, lanes apart."""
        return sum(map(len, self._works.values()))

    @property
    def busy(self) -> list[int]:
        """The rows whose work is under way or whose results were not received."""
        return sorted(self._claims.rows)

    # ---------------------------------------------------------------- on the way in

    def send(
        self,
        op: Op,
        rows: Sequence[int],
        tensordict: TensorDictBase | None,
        reset_kwargs: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        """Gives rows work, together; nothing has begun where it raises.

        Args:
            tensordict: ``[n, *B]``, a row each.
        """
        claim = object()
        try:
            self._claim(op, rows, claim)
            own = self._taken_over(op, rows, tensordict)
            self._face.submit(rows, op, own, reset_kwargs)
            sent, works = None if own is None else Sent(own), self._works[op]
            for position, row in enumerate(rows):
                works[row] = Work(op, sent, position)
        except BaseException as error:
            self._let_go(self._claims.of(rows, claim), error)
            raise
        self._stats.sent(rows)

    def send_lane(
        self,
        op: Op,
        row: int,
        tensordict: TensorDictBase | None,
        reset_kwargs: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        """Gives one row work as a lane.

        Args:
            tensordict: ``[*B]``.
        """
        claim = object()
        try:
            self._claim(op, [row], claim)
            own = self._taken_over(op, [row], tensordict)
            self._face.submit_lane(row, op, own, reset_kwargs)
            self._lanes[row] = Work(op, None if own is None else Sent(own), -1)
        except BaseException as error:
            self._let_go(self._claims.of([row], claim), error)
            raise

    def _claim(self, op: Op, rows: Sequence[int], claim: object) -> None:
        busy = self._claims.claim(rows, claim)
        if busy:
            raise RuntimeError(
                f"async_{CALLS[op]}_send: envs {busy} have work under way, or results that were not received: receive "
                f"these first"
            )

    def _taken_over(self, op: Op, rows: Sequence[int], tensordict: TensorDictBase | None) -> TensorDictBase | None:
        if op != Op.RESET:
            if tensordict is None:
                raise TypeError(f"async_{CALLS[op]}_send: got None, expected a TensorDict with the action")
            following = entry(tensordict, "next")
            if following is not None and not isinstance(following, TensorDictBase):
                kind = type(following).__name__
                raise TypeError(f"async_{CALLS[op]}_send: got a {kind} at 'next', expected a TensorDict or nothing")
            self._face.require_steppable(rows)
        if tensordict is None:
            return None
        for name in ("_reset", "_step"):
            if entry(tensordict, name) is not None:
                raise ValueError(
                    f"async_{CALLS[op]}_send: got a mask at {name!r}, expected none: env_index picks the envs"
                )
        return taken_over(tensordict, () if op == Op.RESET else self._inputs, ("env_index",))

    # ---------------------------------------------------------------- on the way out

    def receive(self, op: Op, wanted: Wanted) -> Any:
        """What rows gave, together, in the order of their numbers.

        Raises:
            RuntimeError: more is wanted than is under way.
            CallTimeoutError: less than is wanted came in time; it is there for the next call.

        What an env raises comes through, one a call; what the others gave is there for the next.
        """
        begun = perf_counter()
        self._require_under_way(op, wanted)
        rows = self._waited(self._waits(f"async_{CALLS[op]}_recv", self._works[op], wanted))
        return self._results(op, rows, wanted, begun)

    def receive_any(self, wanted: Wanted, into: list[tuple[Op, Any]]) -> None:
        """The same of rows with whichever work: adds what those gave that had the same, one work after the other.

        What came before one that raises is there then.

        Raises:
            CallTimeoutError: see :meth:`receive`; as many as are wanted have to be under way.
        """
        begun = perf_counter()
        works = {row: work for own in [*self._works.values()] for row, work in own.items()}
        rows = self._waited(self._waits("recv", works, wanted))
        done_at = self._face.done_at(rows)
        for op in sorted({works[row].op for row in rows}):
            made = self._results_of(op, [row for row in rows if works[row].op == op])
            into.append((op, made))
        self._stats.received(begun, done_at, rows, wanted.max_get)

    def _waited(self, waits: Generator[tuple[int, float | None], Iterable[int], list[int]]) -> list[int]:
        wait = self._engine.wait
        try:
            following = next(waits)
            while True:
                following = waits.send(wait(*following))
        except StopIteration as end:
            rows: list[int] = end.value
            return rows

    async def receive_async(self, op: Op, wanted: Wanted) -> Any:
        """The same, awaited."""
        begun = perf_counter()
        self._require_under_way(op, wanted)
        waits = self._waits(f"async_{CALLS[op]}_recv", self._works[op], wanted)
        try:
            following = next(waits)
            while True:
                following = waits.send(await self._engine.wait_async(*following))
        except StopIteration as end:
            rows = end.value
        return self._results(op, rows, wanted, begun)

    def _require_under_way(self, op: Op, wanted: Wanted) -> None:
        under_way = len(self._works[op])
        if wanted.min_get > under_way:
            raise RuntimeError(
                f"async_{CALLS[op]}_recv: got min_get={wanted.min_get}, expected at most {under_way}, the envs that "
                f"were sent a {CALLS[op]}{self._told_of_others(op)}"
            )

    def _told_of_others(self, op: Op) -> str:
        """What is under way besides that a receive of this work does not see."""
        others = [
            f"envs {sorted(works)} a {CALLS[other]}" for other, works in self._works.items() if works and other != op
        ]
        if self._lanes:
            others.append(f"envs {sorted(self._lanes)} work in lanes, which are received with env_index")
        return f"; others were sent other work: {', '.join(others)}" if others else ""

    def _waits(
        self, call: str, works: dict[int, Work], wanted: Wanted
    ) -> Generator[tuple[int, float | None], Iterable[int], list[int]]:
        """The waits of a receive; returns the rows that it is to get, in order."""
        most = len(works) if wanted.max_get is None else min(wanted.max_get, len(works))
        at_once = wanted.min_get if wanted.deadline is None else most
        found = yield from self._face.waits(works, at_once, wanted.deadline)
        if len(found) < wanted.min_get:
            raise CallTimeoutError(
                f"{call}: {len(found)} of min_get={wanted.min_get} envs came in time; what they gave is there for the "
                f"next call"
            )
        return sorted(found[:most])

    def _results(self, op: Op, rows: Sequence[int], wanted: Wanted, begun: float) -> Any:
        done_at = self._face.done_at(rows)
        made = self._results_of(op, rows)
        self._stats.received(begun, done_at, rows, wanted.max_get)
        return made

    def _results_of(self, op: Op, rows: Sequence[int]) -> Any:
        works = self._works[op]
        sent = together([works[row][1:] for row in rows], dense=self._dense)
        index = torch.from_numpy(np.array(rows, np.int64))  # a third of what torch.tensor costs
        if self._row_batch_size:
            size = (len(rows), *self._row_batch_size)
            index = index.reshape(-1, *[1] * len(self._row_batch_size)).expand(size).contiguous()
        if sent is not None:
            _put_index(sent, index)
        made = self._made(rows, works, lambda: self._face.results(rows, op, sent))
        if sent is None:
            _put_index(made, index)
        return made

    def receive_lane(self, op: Op, row: int, deadline: float | None) -> Any:
        """What a lane gave; see :meth:`receive`."""
        received = self._received_lanes
        if row in received:
            raise self._is_received_already(op, row)
        received[row] = True  # no call between look, mark and try, as in `exclusive`
        try:
            self._require_lane(op, row)
            for left in self._face.lane_waits(row, self._lanes, deadline):
                self._engine.wait_for(row, left)
            return self._lane_results(op, row)
        finally:
            del received[row]

    async def receive_lane_async(self, op: Op, row: int, deadline: float | None) -> Any:
        """The same, awaited."""
        received = self._received_lanes
        if row in received:
            raise self._is_received_already(op, row)
        received[row] = True
        try:
            self._require_lane(op, row)
            for left in self._face.lane_waits(row, self._lanes, deadline):
                await self._engine.wait_for_async(row, left)
            return self._lane_results(op, row)
        finally:
            del received[row]

    def _is_received_already(self, op: Op, row: int) -> RuntimeError:
        return RuntimeError(f"async_{CALLS[op]}_recv: env {row} is being received already, in another thread")

    def _require_lane(self, op: Op, row: int) -> None:
        work = self._lanes.get(row)
        if work is None or work.op != op:
            under_way = "nothing" if work is None else f"a {CALLS[work.op]}"
            raise RuntimeError(
                f"async_{CALLS[op]}_recv: env {row} has {under_way} under way in its lane, expected a {CALLS[op]}"
            )

    def _lane_results(self, op: Op, row: int) -> Any:
        sent = self._lanes[row].row()
        index = torch.full(self._row_batch_size, row)
        if sent is not None:
            _put_index(sent, index)
        made = self._made([row], self._lanes, lambda: self._face.lane_results(row, op, sent))
        if sent is None:
            _put_index(made, index)
        return made

    def _made(self, rows: Sequence[int], works: dict[int, Work], make: Callable[[], Any]) -> Any:
        """What is made of rows that are complete, which are idle then; where one raised, that one alone is."""
        failed: RowFailed | None = None
        owners = self._claims.owners(rows)
        try:
            try:
                made = make()
            except RowFailed as error:
                failed = error
            self._done(rows if failed is None else [failed.row], works)
        except BaseException:  # an interrupt or no memory: what they gave will not be seen
            rows = self._claims.still(rows, owners)
            self._face.lose(rows)
            self._done(rows, works)
            raise
        if failed is not None:
            raise_env_error({failed.row: failed.error})
        return made

    def drop(self) -> None:
        """What rows do, or gave, is not to be seen, lanes apart; they are to be reset."""
        for works in self._works.values():
            rows = [*works]
            self._face.lose(rows)
            self._done(rows, works)

    def _done(self, rows: Sequence[int], works: dict[int, Work]) -> None:
        for row in rows:
            works.pop(row, None)
        self._claims.let_go(rows)  # last: another thread may give them work from here on

    def _let_go(self, rows: Sequence[int], error: BaseException) -> None:
        """Rows were not given their work, or an interrupt keeps anybody from knowing whether they were."""
        if not isinstance(error, Exception):
            self._face.lose(rows)
        for row in rows:
            for works in (*self._works.values(), self._lanes):
                works.pop(row, None)
        self._claims.let_go(rows)


def _put_index(tensordict: TensorDictBase, index: torch.Tensor) -> None:
    """Sets ``"env_index"`` where it is carried from there to the next root."""
    if type(tensordict) is not TensorDict and isinstance(tensordict, LazyStackedTensorDict):
        for row, number in zip(tensordict.tensordicts, index, strict=True):
            _put_index(row, number.clone())
    else:
        put(tensordict, ("env_index",), index if tensordict.device is None else index.to(tensordict.device))
