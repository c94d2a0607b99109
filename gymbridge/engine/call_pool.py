"""What pools in this process have in common: envs that a crew calls, and one host over all rows that never waits.

A call is made of what a row is given (``host.calls``), on the caller's side. Whoever runs the env makes it, and keeps
there what the env gave. Taking it (``host.finish``), again on the caller's side, checks that and writes it into the
block. So nothing crosses between threads but calls, of which each lies with one side at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Generic, TypeVar

from gymbridge.engine.arrivals import Arrivals
from gymbridge.engine.block import Block
from gymbridge.engine.call_crew import CallCrew
from gymbridge.engine.call_tallies import CallTally, note_copied
from gymbridge.engine.codes import RowState, call_of
from gymbridge.engine.env_calls import CallingHost, EnvCall, VerbCall
from gymbridge.engine.failures import raise_env_error
from gymbridge.engine.host import EnvDescription, RemoteHostOptions, Report
from gymbridge.engine.info_records import forget_infos
from gymbridge.engine.layout import Layout
from gymbridge.engine.pool_rows import Gathering, PoolRows
from gymbridge.engine.recovery import Revival
from gymbridge.engine.remade_rows import RemadeRows
from gymbridge.engine.restarts import Restarts
from gymbridge.engine.row_verbs import RowVerbs
from gymbridge.engine.work_counts import EngineStats
from gymbridge.errors import CallTimeoutError, WorkerDiedError

__all__ = ["CallPoolEngine"]

Description = TypeVar("Description", bound=EnvDescription)

_OF_THE_HOST = frozenset({"info_form"})
"""Verbs for which no env is asked."""


_CLOSED = "the envs have been closed, in another thread"


class CallPoolEngine(RowVerbs, Generic[Description]):
    """A pool of envs that a crew calls in this process; the base of the engines whose crews differ.

    Nothing is pickled: what is given in arrays, dicts, lists and tuples is copied, and what an env gives, exceptions
    included, is had as the very object.

    Args:
        crew: has made the envs; it is closed with the engine, and where this fails.
        options: how the envs are run.
        shutdown_timeout: seconds that ``close`` gives the envs unless it is told otherwise.
        restarts: those of the crew.

    Attributes:
        num_envs: number of envs.
        descriptions: what each env says of itself.
        block: the memory, once ``allocate`` has made it.
        shutdown_timeout: as it was given; it may be set.
        restarts: which envs have been made anew.
        counts: what ``stats`` gives, after ``close`` too.
    """

    block: Block
    _host: CallingHost
    _tallies: Sequence[CallTally] | None = None
    """One a row, once they are counted."""

    def __init__(
        self,
        crew: CallCrew,
        options: RemoteHostOptions[Description],
        shutdown_timeout: float | None,
        restarts: Restarts,
    ):
        self.restarts = restarts
        self._remade: RemadeRows | None = None
        self.num_envs = len(crew.envs)
        recovery = crew.recovery
        self.counts = EngineStats(self.num_envs, restarts, lambda: 0 if recovery is None else recovery.timeouts)
        self.shutdown_timeout = shutdown_timeout
        self._crew = crew
        self._rows = PoolRows()
        self._arrivals = Arrivals()
        self._lane_arrivals: dict[int, Arrivals] = {}
        self._is_closed = False
        self._calls: dict[int, EnvCall] = {}
        """Row -> its last call, until that is taken; or waited for, where an interrupt has ended it."""
        try:
            self.describe(options)
        except BaseException:
            crew.close(shutdown_timeout, False)
            raise

    def stats(self, *, reset: bool = False) -> dict[str, Any]:
        """See :class:`~gymbridge.engine.host.Engine`; each env is a worker."""
        self.counts.begin(self._begin_to_count)
        return self.counts.taken(reset=reset)

    def _begin_to_count(self) -> Sequence[CallTally]:
        self._host.time_calls()
        self._tallies = [CallTally() for _ in range(self.num_envs)]
        return self._tallies

    # ---------------------------------------------------------------- before the first round

    def describe(self, options: RemoteHostOptions[Any]) -> None:
        """Has the envs describe themselves anew, under other options, which are those of the host too.

        For a front that can choose how to run the envs only once it knows what they are; before ``allocate``.

        Raises:
            WorkerDiedError: an env ends so.

        What an env raises comes through.
        """
        self._crew.require_open()
        self._options = options
        calls = [VerbCall(row, partial(self._description_of, row, env)) for row, env in enumerate(self._crew.envs)]
        self._crew.perform(calls)
        _raise_errors(calls)
        self.descriptions: list[Description] = _callers_own([call.result for call in calls])

    def _description_of(self, row: int, env: Any) -> Any:
        """Called by the crew, where it calls the env."""
        return self._options.describe(env)

    def allocate(self) -> None:
        """See :class:`~gymbridge.engine.host.Engine`."""
        self._crew.require_open()
        self.block = Block(Layout.of(self.descriptions))
        self._gather = Gathering(self.block)
        made = self._crew.envs
        self._host = self._made_host()
        self._crew.take_host(self._host)
        if self._crew.recovery is not None and self.restarts.limit is not None:
            self._remade = self._crew.recovery.rows = self._remade_rows(made)

    def _made_host(self) -> CallingHost:
        host: Any = self._options.host(self._crew.envs, self.block)
        return host  # type: ignore[no-any-return]

    def _remade_rows(self, made: Sequence[Any]) -> RemadeRows:
        return RemadeRows(made, self._options, self._host, self.block, self.descriptions, self.restarts)

    # ---------------------------------------------------------------- work

    @property
    def busy(self) -> set[int]:
        """The rows whose work is under way or not taken yet, lanes too."""
        return self._rows.busy

    def submit(
        self,
        rows: Sequence[int],
        ops: bytes,
        inputs: Any,
        reset_kwargs: Sequence[Mapping[str, Any]] | None = None,
        *,
        lane: bool = False,
    ) -> None:
        """Gives rows work; nothing has begun where it raises.

        Args:
            rows: the rows, each once.
            ops: the op of each, none of them ``IDLE``.
            inputs: what they are given, a batch of these rows in the form that their host takes; see
                :class:`~gymbridge.engine.host.Host`.
            reset_kwargs: of each.
            lane: the rows are waited for by ``wait_for`` and not by ``wait``.

        Raises:
            RuntimeError: a row that is busy.
            WorkerDiedError: a row whose env is dead.
        """
        crew, state = self._crew, self._rows
        crew.require_open()
        claim = object()
        try:
            state.claim(rows, claim, lane=lane)
            if state.interrupted:
                self._settle(rows)
            if crew.dead:
                self._require_living(rows)
            calls = self._made_calls(rows, ops, inputs, reset_kwargs)
        except BaseException as error:
            self._require_open(error)
            state.let_go(state.claimed(rows, claim))
            raise
        try:
            for call in calls:
                call.arrivals = self._arrivals_of_lane(call.row) if lane else self._arrivals
                self._calls[call.row] = call
            crew.start(calls)
        except BaseException:
            self._abandon(calls)
            raise

    def _made_calls(
        self, rows: Sequence[int], ops: bytes, inputs: Any, reset_kwargs: Sequence[Mapping[str, Any]] | None
    ) -> list[Any]:
        host = self._host if self._remade is None else self._remade
        if self._tallies is None:
            return host.calls(rows, ops, inputs, reset_kwargs)
        begun = perf_counter()
        calls = host.calls(rows, ops, inputs, reset_kwargs)
        for call in calls:
            self._tallies[call.row].begin(call)
        note_copied(self._tallies, calls, begun)
        return calls

    def _finished(self, calls: Sequence[Any], *, by_row: bool = False) -> Report:
        host = self._host if self._remade is None else self._remade
        if self._tallies is None:
            return host.finish(calls, by_row=by_row)
        begun = perf_counter()
        report = host.finish(calls, by_row=by_row)
        note_copied(self._tallies, calls, begun)
        return report

    def _arrivals_of_lane(self, row: int) -> Arrivals:
        arrivals = self._lane_arrivals.get(row)
        if arrivals is None:
            arrivals = self._lane_arrivals.setdefault(row, Arrivals())
        if self._is_closed:
            arrivals.end(_CLOSED)
        return arrivals

    def wait(self, least: int, timeout: float | None = None) -> list[int]:
        """The rows that are ready, in the order in which they came, once there are ``least`` or the time is over.

        What an interrupt ends has lost nothing.

        Args:
            least: how many to wait for; with 0 it tells what is ready now.
            timeout: seconds; None to wait for ever.

        Raises:
            RuntimeError: the engine has been closed, by another thread.
            ValueError: ``least`` is more than there are rows under way, lanes apart.
        """
        self._rows.require_least(least)
        deadline = None if timeout is None else perf_counter() + timeout
        while True:
            self._require_open()
            ready = self._ready()
            if len(ready) >= least:
                return ready
            self._crew.require_elsewhere("wait")
            if not self._arrivals.wait(least, deadline):
                return self._ready()

    async def wait_async(self, least: int, timeout: float | None = None) -> list[int]:
        """As :meth:`wait`, for a coroutine on the caller's own event loop; one that is cancelled has lost nothing."""
        self._rows.require_least(least)
        deadline = None if timeout is None else perf_counter() + timeout
        while True:
            self._require_open()
            ready = self._ready()
            if len(ready) >= least:
                return ready
            if not await self._arrivals.wait_async(least, deadline):
                return self._ready()

    def _ready(self) -> list[int]:
        """The rows of the batch that have come."""
        come, calls, batch = self._arrivals.come, self._calls, self._rows.batch
        ready = []
        call: EnvCall
        for call in list(come):
            if call.row in batch and calls.get(call.row) is call:
                ready.append(call.row)
            else:
                come.pop(call, None)  # one that was abandoned and came late
        return ready

    def wait_for(self, row: int, timeout: float | None = None) -> None:
        """Waits until a lane is ready.

        Raises:
            CallTimeoutError: it took longer; it is still under way.
            RuntimeError: the engine has been closed, by another thread.
            ValueError: the row is no lane with work under way.
        """
        call = self._lane_call(row)
        deadline = None if timeout is None else perf_counter() + timeout
        while not call.is_done:
            self._require_open()
            self._forget_others(call)
            self._crew.require_elsewhere("wait_for")
            if not call.arrivals.wait(1, deadline) and not call.is_done:
                raise CallTimeoutError(f"env {row} did not come to its end in time")
        self._require_open()

    async def wait_for_async(self, row: int, timeout: float | None = None) -> None:
        """As :meth:`wait_for`, for a coroutine on the caller's own event loop."""
        call = self._lane_call(row)
        deadline = None if timeout is None else perf_counter() + timeout
        while not call.is_done:
            self._require_open()
            self._forget_others(call)
            if not await call.arrivals.wait_async(1, deadline) and not call.is_done:
                raise CallTimeoutError(f"env {row} did not come to its end in time")
        self._require_open()

    def _require_open(self, error: BaseException | None = None) -> None:
        """Refuses to go on where another thread has closed the engine, which is why something was not there."""
        if self._is_closed and (error is None or isinstance(error, Exception)):
            raise RuntimeError(_CLOSED) from error

    def _lane_call(self, row: int) -> EnvCall:
        self._rows.require_lane(row)
        return self._calls[row]

    def _forget_others(self, call: EnvCall) -> None:
        """A call of the same lane that was abandoned may come late."""
        for other in list(call.arrivals.come):
            if other is not call:
                call.arrivals.come.pop(other, None)

    def take(self, rows: Sequence[int], into: Block | None) -> Report:
        """What rows that are ready gave; they are idle then.

        Where some raised, the first of those alone is taken, and the others stay ready.

        Args:
            rows: the rows, in the order in which they are wanted.
            into: a block with as many rows or more, of these rows' layout; its first rows are written. None to leave
                what they gave in the engine's own block: the rows are busy until ``release`` then.

        Returns:
            The report of the work, of which row ``i`` is ``rows[i]``; with an error in it, of that row alone.

        Raises:
            ValueError: a row that is not ready.
        """
        known = self._calls
        missing = [row for row in rows if row not in known or not known[row].is_done]
        if missing:
            raise ValueError(f"envs {missing} have no results that are ready")
        calls: list[EnvCall] = [known[row] for row in rows]
        try:
            report = self._finished(calls)
            if report.errors:
                first = min(report.errors)
                if self._remade is not None:
                    self._remade.take_error(rows[first])
                report = self._alone(report, first, rows[first])
                self._let_go([rows[first]])
            elif into is not None:
                self._gather(rows, into)
                self._let_go(rows)
        except BaseException as error:
            self._require_open(error)
            self._abandon(calls)
            raise
        return report

    def _alone(self, report: Report, index: int, row: int) -> Report:
        """The part of a report that is of a row which raised."""
        own = Report()
        for name in ("steps", "resets", "errors"):
            part = getattr(report, name)
            setattr(own, name, {index: part[index]} if index in part else {})
        if isinstance(own.errors[index], WorkerDiedError):
            forget_infos(self.block, [row])
        return own

    def release(self, rows: Iterable[int]) -> None:
        """Rows that were taken from the engine's own block are idle again: it may be written to."""
        self._let_go(rows)

    def done_at(self, rows: Iterable[int]) -> list[float]:
        """When each of some rows that are ready came to the end of its work, on ``time.perf_counter``'s clock."""
        return [self._calls[row].done_at for row in rows]

    def _let_go(self, rows: Iterable[int]) -> None:
        """These rows are idle again."""
        rows = [*rows]
        for row in rows:
            call = self._calls.pop(row)
            call.arrivals.come.pop(call, None)
            if self._tallies is not None:
                self._tallies[row].add(call)
        self._rows.let_go(rows)

    # ---------------------------------------------------------------- what was interrupted

    @property
    def unsettled(self) -> bool:
        """See :class:`~gymbridge.engine.host.Engine`."""
        return bool(self._rows.interrupted)

    def settle(self) -> None:
        """See :class:`~gymbridge.engine.host.Engine`."""
        self._settle(range(self.num_envs))

    def _settle(self, rows: Iterable[int]) -> None:
        """Waits for what interrupts have left under way in these rows."""
        left = self._rows.interrupted.intersection(rows)
        if left:
            self._crew.await_ended([self._calls[row] for row in left if row in self._calls])
            for row in left:
                call = self._calls.pop(row, None)
                if self._tallies is not None and call is not None:
                    self._tallies[row].add(call)
                self._rows.interrupted.discard(row)

    def abandon(self, rows: Iterable[int]) -> None:
        """Has rows be idle whose work, if any is under way, the caller is not to see: they are to be reset."""
        rows = [*rows]
        for row in rows:
            if row in self._calls:
                self._abandon([self._calls[row]])
            self.block.state[row] = RowState.FAILED
        self._rows.let_go(rows)

    def _abandon(self, calls: Iterable[EnvCall], state: RowState | None = RowState.FAILED) -> None:
        """These calls' results are not to be taken any more: what the envs do, the caller never sees.

        Args:
            state: of the rows from now on; None leaves it.
        """
        if self._is_closed:
            return
        for call in calls:
            self._rows.abandon([call.row])
            self._calls[call.row] = call
            if state is not None:
                self.block.state[call.row] = state

    # ---------------------------------------------------------------- rounds and verbs

    overlaps = True
    """``run`` takes what is done ``meanwhile``."""

    def run(
        self,
        ops: bytes,
        inputs: Any,
        reset_kwargs: Sequence[Mapping[str, Any]] | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> Report:
        """One round of all rows, whose envs do their parts at once; see :class:`~gymbridge.engine.host.Host`.

        Args:
            ops, inputs, reset_kwargs: see there.
            meanwhile: what the caller does while the envs are at work.

        Raises:
            RuntimeError: a row is busy.
            WorkerDiedError: a row that is to do something has an env that is dead.
        """
        state = self._rows
        state.is_for_all = True  # before the look: who claims a row does so before it looks at this
        try:
            self._require_idle(call_of(ops))
            if self._crew.dead:
                self._require_living([row for row, op in enumerate(ops) if op])
            calls = self._made_calls(range(self.num_envs), ops, inputs, reset_kwargs)
            try:
                self._crew.perform(calls, meanwhile)
                report = self._finished(calls, by_row=True)
                if self._tallies is not None:
                    for call in calls:
                        self._tallies[call.row].add(call)
            except BaseException:
                self._abandon(calls)
                raise
        finally:
            state.is_for_all = False
        for row, error in report.errors.items():
            if isinstance(error, WorkerDiedError):
                forget_infos(self.block, [row])
        return report

    def _require_idle(self, what: str) -> None:
        """Refuses what is for all rows while one has work; waits for what interrupts have left."""
        self._crew.require_open()
        self._crew.require_elsewhere(what)
        self._rows.require_idle(what)
        self.settle()

    def require_workers(self, rows: Iterable[int] | None = None) -> None:
        """See :class:`~gymbridge.engine.host.Engine`; where envs are made anew, they are so in the next call."""
        if self._remade is None:
            self._crew.require_living(range(self.num_envs) if rows is None else rows)

    def _require_living(self, rows: Iterable[int]) -> None:
        """Refuses to use envs that are dead, but for those that can be made anew."""
        dead = self._crew.dead
        if self._remade is not None:
            revivals = [Revival(row) for row in rows if row in dead]
            if revivals:
                try:
                    self._crew.perform(revivals)
                except BaseException:
                    self._abandon(revivals, None)
                    raise
                _raise_errors(revivals)
        elif dead:
            self._crew.require_living(rows)

    def each(self, verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """A verb of the host for each row, at once; see :class:`~gymbridge.engine.host.Engine`.

        Raises:
            RuntimeError: a row is busy.
            WorkerDiedError: an env is dead, or ends so.

        What a verb raises comes through, that of the first row that failed; the other rows have done theirs then.
        """
        return self._called(verb, dict(enumerate(arguments)))

    def _called(self, verb: str, arguments: Mapping[int, tuple[Any, ...]]) -> list[Any]:
        state = self._rows
        state.is_for_all = True
        try:
            self._require_idle(verb)
            if self._crew.dead:
                self._require_living([*arguments])
            if verb == "seed":
                for row, (seed, *_) in arguments.items():
                    self.restarts.take_seed(row, seed)
            function = getattr(self._host, verb)
            calls = [VerbCall(row, partial(function, row, *own)) for row, own in arguments.items()]
            try:
                self._perform_verb(verb, calls)
            except BaseException:
                self._abandon(calls, None)
                raise
        finally:
            state.is_for_all = False
        _raise_errors(calls)
        if verb == "load_state" and self._remade is not None:
            self._remade.lost.take_loaded({row: state for row, (state,) in arguments.items()})
        return [call.result for call in calls]

    def _perform_verb(self, verb: str, calls: Sequence[VerbCall]) -> None:
        """Has a verb's calls made and waits until all have been."""
        self._crew.perform(calls)

    def ask(self, verb: str, row: int, *arguments: Any) -> Any:
        """A verb of the host for one row; see :class:`~gymbridge.engine.host.Engine`."""
        if verb in _OF_THE_HOST:
            return getattr(self._host, verb)(row, *arguments)
        return self._called(verb, {row: arguments})[0]

    # ---------------------------------------------------------------- the end

    def end_waits(self) -> None:
        """Has waits end with an error, for a thread that is to ``close``; nothing else may follow.

        Raises:
            RuntimeError: called where it would wait for itself, on the envs' own event loop.
        """
        self._crew.require_elsewhere("close")
        self._is_closed = True
        for arrivals in (self._arrivals, *list(self._lane_arrivals.values())):
            arrivals.end(_CLOSED)

    def close(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Closes the envs, each even if another's ``close`` raises, and ends what calls them.

        What is under way is waited for, within the time. Raises the first error of an env's ``close`` at the end.

        Args:
            timeout: seconds after which threads are left behind and what is awaited on a loop is cancelled, with a
                warning; ``shutdown_timeout`` unless told.
            terminate: do so at once, and wait for nothing.
        """
        self.end_waits()
        self.counts.end()
        try:
            errors = self._crew.close(self.shutdown_timeout if timeout is None else timeout, terminate)
        finally:
            for call in [*self._calls.values()]:  # whoever waits for one that was left behind is to go on
                if not call.is_done:
                    call.arrivals.add(call)
        self.__dict__.pop("block", None)
        self.__dict__.pop("_host", None)
        if errors:
            raise errors[0]


def _raise_errors(calls: Sequence[EnvCall]) -> None:
    errors = {call.row: call.error for call in calls if call.error is not None}
    if errors:
        raise_env_error(errors)


def _callers_own(descriptions: Sequence[Any]) -> list[Any]:
    """Copies of what envs say of themselves; of equal ones one and the same."""
    own: list[Any] = []
    copies: dict[int, Any] = {}  # what several have they share again
    for description in descriptions:
        if own and _equal(description, descriptions[0]):
            own.append(own[0])
            continue
        try:
            own.append(copy.deepcopy(description, copies))
        except Exception:  # a custom space that cannot be copied is shared, as it is with an env that runs here
            own.append(description)
    return own


def _equal(one: Any, other: Any) -> bool:
    """Whether two descriptions are the same, where that can be told: spaces may compare in ways of their own."""
    try:
        return bool(one == other)
    except Exception:
        return False
