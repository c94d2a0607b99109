"""The engine of a pool: each env in a worker of its own, given work and heard in any order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter, sleep
from typing import Any, NamedTuple, TypeVar

from gymbridge.engine.block import Block
from gymbridge.engine.codes import RowState, call_of
from gymbridge.engine.counts import count_of
from gymbridge.engine.hangs import HangWatch
from gymbridge.engine.host import IN_BLOCK, NOTHING, EnvDescription, RemoteHostOptions, Report
from gymbridge.engine.info_records import forget_infos
from gymbridge.engine.mailbox import packed_for_worker
from gymbridge.engine.parallel import ParallelEngine
from gymbridge.engine.pool_rows import Gathering, PoolRows
from gymbridge.engine.protocol import Answer, Command, RoundMail
from gymbridge.engine.replacing import Replacing
from gymbridge.engine.worker_kinds import ProcessWorkers, SharedProcessWorkers
from gymbridge.engine.workers import ReadyEnds
from gymbridge.errors import CallTimeoutError

__all__ = ["PoolEngine"]

Description = TypeVar("Description", bound=EnvDescription)

_CLOSED = "the workers have been closed, in another thread"

_CLOSE_SECONDS = 0.1
"""How often a thread that waits sees whether another has closed the engine."""


class _Given(NamedTuple):
    """What a row was given to do.

    Attributes:
        op: what the caller wants.
        message: what was posted with it, packed.
    """

    op: int
    message: Any


class PoolEngine(ParallelEngine[Description]):
    """Envs in a worker each, here a process, to which work is handed out and which are heard as they come to its end.

    ``submit`` gives envs work, ``wait`` tells which are ready, and ``take`` has what they gave; what is ready stays so
    until it is taken. An env that is submitted as a *lane* is waited for by ``wait_for`` alone, so that threads may
    each have an env of their own: calls for different lanes, and those for all that are none, may run at once.

    While nothing is under way it is an engine like any other, with rounds of all rows and verbs of rows.

    Args:
        makers, options: see :class:`~gymbridge.engine.parallel.ParallelEngine`.
        envs_per_worker: envs a process, contiguous ones, each of which is made and run in a thread of its own there;
            the last process may have fewer. ``worker_affinity`` has an entry for each process. What ends a process, be
            it the ``SystemExit`` of one env, ends all its envs.
        **how: its other arguments, but for ``num_workers``.

    Attributes:
        envs_per_worker: envs a process.

    Raises:
        ValueError, TypeError: ``envs_per_worker`` is no positive int; and what else ``ParallelEngine`` raises.

    Example:
        >>> import gymnasium as gym
        >>> from gymbridge.engine.codes import Op
        >>> from gymbridge.engine.gym_host import GymHostOptions
        >>> engine = PoolEngine([lambda: gym.make("CartPole-v1")] * 3, GymHostOptions())
        >>> engine.allocate()
        >>> engine.submit([2, 0], bytes([Op.RESET, Op.RESET]), None, [{"seed": 7}, {"seed": 8}])
        >>> sorted(engine.wait(2))
        [0, 2]
        >>> rows = Block(engine.block.layout.rows(0, 2))
        >>> report = engine.take([0, 2], rows)
        >>> rows.root["observation",].shape, dict(report.errors)
        ((2, 4), {})
        >>> engine.close()
    """

    envs_per_worker: int

    def __init__(
        self,
        makers: Iterable[Callable[[], Any]],
        options: RemoteHostOptions[Description],
        *,
        envs_per_worker: int = 1,
        **how: Any,
    ):
        makers = list(makers)
        self.envs_per_worker = count_of("envs_per_worker", envs_per_worker)
        super().__init__(makers, options, num_workers=max(1, len(makers)), **how)
        self._ends = ReadyEnds(self._crew.ends)
        self._crew.groups.append(self._ends)
        self._rows = PoolRows()
        self._look_seconds = _CLOSE_SECONDS
        self._is_closed = False
        self._waiting: set[int] = set()
        """Lanes that a thread waits for, or is about to take: another may not read their answers meanwhile."""
        self._read: dict[int, Report] = {}
        """Row -> what was read of it, until it is idle: it is taken with others, or its worker was replaced since."""
        self._given: dict[int, _Given] = {}
        """Row -> what it was given to do, where workers may be replaced or be ended."""
        self._cut_off: set[int] = set()
        """Rows whose worker was replaced while they had work under way: what is left of it is done when it is taken."""
        self._replacing_lock = threading.RLock()

    def _processes(self, **how: Any) -> ProcessWorkers:
        if self.envs_per_worker == 1:
            return super()._processes(**how)
        return SharedProcessWorkers(self.envs_per_worker, **how)

    def allocate(self) -> None:
        """See :meth:`ParallelEngine.allocate`."""
        super().allocate()
        self._gather = Gathering(self.block)
        if self._hangs is not None:
            self._look_seconds = min(_CLOSE_SECONDS, self._hangs.interval)

    def end_waits(self) -> None:
        """Has waits end with an error within 100 ms, for a thread that is to ``close``; nothing else may follow."""
        self._is_closed = True

    def close(self, timeout: float | None = None, terminate: bool = False) -> None:
        """See :meth:`ParallelEngine.close`; threads that wait have an error."""
        self.end_waits()
        deadline = perf_counter() + 10 * _CLOSE_SECONDS
        while self._waiting and perf_counter() < deadline:  # of one end there may be one wait at a time
            sleep(_CLOSE_SECONDS / 100)
        super().close(timeout, terminate)

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
            ops: the op of each.
            inputs: what they are given, a batch of these rows in the form that their hosts take; see
                :class:`~gymbridge.engine.host.Host`.
            reset_kwargs: of each.
            lane: the rows are waited for by ``wait_for`` and not by ``wait``.

        Raises:
            RuntimeError: a row that is busy.
            WorkerDiedError: a row whose worker is dead.
            UnpicklableError: what cannot be sent.
        """
        if self._replacing is None:
            self._submit(rows, ops, inputs, reset_kwargs, lane)
        else:
            with self._replacing_lock:  # another thread may be replacing the worker
                self._submit(rows, ops, inputs, reset_kwargs, lane)

    def _submit(
        self,
        rows: Sequence[int],
        ops: bytes,
        inputs: Any,
        reset_kwargs: Sequence[Mapping[str, Any]] | None,
        lane: bool,
    ) -> None:
        self._crew.require_open()
        claim = object()
        try:
            self._rows.claim(rows, claim, lane=lane)
            if self._round is not None or self._calls_under_way:
                raise RuntimeError(f"envs {[*rows]}: refused while a call of all envs is under way, in another thread")
            self._settle(rows)
            if self._crew.dead:
                self._require_living(rows)
            wanted = ops
            if self._replacing is not None:
                self._keep_seeds(rows, ops, reset_kwargs)
                ops = self._replacing.lost.ops(ops, rows)
            beside = self._inputs.write_rows(rows, inputs)
            mail: list[Any] = [None] * len(rows)
            if beside is not None or reset_kwargs is not None:
                for index, row in enumerate(rows):
                    own = None if beside is None else self._inputs.part(beside, index, index + 1)
                    kwargs = None if reset_kwargs is None else reset_kwargs[index : index + 1]
                    mail[index] = packed_for_worker(RoundMail(own, kwargs), f"what env {row} is given")
        except BaseException:
            self._let_go(self._rows.claimed(rows, claim))
            raise
        try:
            if self._hangs is not None:
                self._hangs.begin(rows)
            if self._replacing is not None or self._hangs is not None:
                for row, op, message in zip(rows, wanted, mail, strict=True):
                    self._cut_off.discard(row)
                    self._given[row] = _Given(op, message)
            for row, op, message in zip(rows, ops, mail, strict=True):
                self._op[row] = op
                if not op:  # it is lost, and its step reaches no env
                    self._cut_off.add(row)
                    if not lane:
                        self._note_ready(row)
                    continue
                if message is not None:
                    self._crew.post(row, message)
                if not lane:
                    self._ends.watch(row)
                self._crew.begin(row, Command.ROUND if message is None else Command.ROUND_WITH_MAIL)
                if row in self._crew.dead and not lane:
                    self._note_ready(row)
        except BaseException:
            self.abandon(rows)
            raise

    def wait(self, least: int, timeout: float | None = None) -> list[int]:
        """The rows that are ready, in the order in which that was seen, once there are ``least`` or the time is over.

        What an interrupt ends has lost nothing.

        Args:
            least: how many to wait for; with 0 it tells what is ready now.
            timeout: seconds; None to wait for ever.

        Raises:
            RuntimeError: the engine has been closed, by another thread.
            ValueError: ``least`` is more than there are rows under way, lanes apart.
        """
        self._rows.require_least(least)
        ready = self._rows.ready
        deadline = None if timeout is None else perf_counter() + timeout
        while True:
            if self._is_closed:
                raise RuntimeError(_CLOSED)
            left = (
                self._look_seconds if deadline is None else min(self._look_seconds, max(0.0, deadline - perf_counter()))
            )
            if self._hangs is not None:
                self._end_hung([row for row in self._rows.batch if row not in ready], self._hangs)
            missing = least - len(ready)
            found = self._ends.wait(left, missing) if missing > 0 else self._ends.wait(0.0)
            for row in found:
                self._note_ready(row)
            if len(ready) >= least or (not found and deadline is not None and perf_counter() >= deadline):
                return [*ready]

    def wait_for(self, row: int, timeout: float | None = None) -> None:
        """Waits until a lane is ready.

        Raises:
            CallTimeoutError: it took longer; it is still under way.
            RuntimeError: the engine has been closed, by another thread.
            ValueError: the row is no lane with work under way.
        """
        self._rows.require_lane(row)
        deadline = None if timeout is None else perf_counter() + timeout
        self._waiting.add(row)
        try:
            while True:
                # before the look: the end of one that replaces it is another thread's at first
                end = self._crew.ends[row]
                if row in self._crew.dead or self._is_closed or self._is_done(row):
                    break
                left = self._look_seconds if deadline is None else max(0.0, deadline - perf_counter())
                if end.is_ready(min(left, self._look_seconds)):
                    break
                if self._hangs is not None:
                    self._end_hung([row], self._hangs)
                if left <= 0:
                    raise CallTimeoutError(f"env {row} did not come to its end in time")
            if self._is_closed:  # by another thread
                raise RuntimeError(f"env {row}: {_CLOSED}")
        except BaseException:
            self._waiting.discard(row)
            raise

    def take(self, rows: Sequence[int], into: Block | None) -> Report:
        """What rows that are ready gave; they are idle then.

        Where some of them raised, the first that did is alone taken and its error in the report: the others stay ready.

        Args:
            rows: the rows, in the order in which they are wanted.
            into: a block with as many rows or more, of these rows' layout; its first rows are written. None to leave
                what they gave in the engine's own block: the rows are busy until ``release`` then.

        Returns:
            The report of the work, of which row ``i`` is ``rows[i]``.
        """
        try:
            for row in rows:  # each is kept at once: the next one's worker may be its own, and be replaced
                self._read_answer(row)
            reports = [self._read[row] for row in rows]
            failed = next((row for row, own in zip(rows, reports, strict=True) if own.errors), None)
            if failed is not None:
                rows, index = [failed], [*rows].index(failed)
                report = _renumbered([self._read[failed]], index)
            else:
                report = NOTHING if reports.count(NOTHING) == len(reports) else _renumbered(reports, 0)
            if into is not None and failed is None:
                self._gather(rows, into)
            if into is not None or failed is not None:
                self._let_go(rows)
        except BaseException as error:
            if self._is_closed and isinstance(error, Exception):
                raise RuntimeError(f"envs {[*rows]}: {_CLOSED}") from error
            self.abandon(rows)
            raise
        finally:
            if self._waiting:
                self._waiting.difference_update(rows)
        return report

    def release(self, rows: Iterable[int]) -> None:
        """Rows that were taken from the engine's own block are idle again: it may be written to."""
        self._let_go(rows)

    def done_at(self, rows: Iterable[int]) -> list[float]:
        """When each of some rows that are ready came to the end of its work, on ``time.perf_counter``'s clock."""
        done_at = self.block.done_at
        return [done_at[row] for row in rows]

    def _read_answer(self, row: int) -> None:
        """Keeps what a row that is ready left beside the block, unless that was done before."""
        if self._replacing is None:
            if row not in self._read:
                self._read[row] = self._own_report_of(row)
            return
        with self._replacing_lock:  # until it is kept: another thread may be about to replace the worker
            if row not in self._read:
                self._keep(row, self._report_over_death(row, self._replacing), self._replacing)

    def _keep(self, row: int, own: Report, replacing: Replacing) -> None:
        """Keeps what a row left; where it was lost before, as a step that it did not do."""
        lost = replacing.lost
        if row in lost.rows and lost.show(row, self._given[row].op, failed=bool(own.errors)):
            own = Report() if own is NOTHING or own is IN_BLOCK else own
            own.lost.add(0)
        self._read[row] = own
        lost.keep_known([row])

    def _own_report_of(self, row: int, *, has_answered: bool = False) -> Report:
        """What a row left whose worker has answered, or died: its errors, infos and outputs are under the number 0.

        Args:
            has_answered: it has been seen that it has, and not died alone.
        """
        crew = self._crew
        crew.finish(row, is_certain=has_answered or (row in self._rows.ready and row not in self._ends.gone))
        if row not in crew.dead:
            answer = crew.ends[row].latest
            if answer == Answer.DONE:
                return NOTHING
            if answer == Answer.DONE_WITH_INFOS:
                return IN_BLOCK
        told, own = Report(), Report()
        if row in crew.dead:
            own.errors[0] = crew.dead[row].again()
            self.block.state[row] = RowState.FAILED
            forget_infos(self.block, [row])
            return own
        self._read_news(crew.answer(row), told)
        for ours, theirs in ((own.steps, told.steps), (own.resets, told.resets), (own.errors, told.errors)):
            if row in theirs:
                ours[0] = theirs[row]
        return own

    # ---------------------------------------------------------------- workers that hang, or are replaced

    def _end_hung(self, rows: Iterable[int], hangs: HangWatch) -> None:
        """Ends the workers of those rows, with work under way, whose env has had too long."""
        for row in hangs.hung(row for row in rows if row in self._given):
            with self._replacing_lock:  # another thread may be replacing it
                if not self._is_done(row) and not self._crew.ends[row].has_byte:
                    self._crew.end_hung(row, hangs.seconds)
                    if row in self._rows.batch:
                        self._note_ready(row)

    def _is_done(self, row: int) -> bool:
        """Whether there is nothing to wait for though nothing came: its worker has been replaced."""
        return row in self._cut_off or row in self._read

    def _report_over_death(self, row: int, replacing: Replacing) -> Report:
        """What a row gave; where its worker died, once another has done what is left of its work."""
        wanted = self._given[row].op
        own = self._own_report_of(row) if row not in self._cut_off else NOTHING
        if row in self._crew.dead or row in self._cut_off:
            self.restarts.begin_call()
        while row in self._crew.dead or row in self._cut_off:
            error = self._replace(row, replacing) if row in self._crew.dead else None
            if error is not None:
                if self._is_closed:
                    raise error
                own = self._own_report_of(row)
                if getattr(error, "env_index", row) == row:  # of a maker, say: it is this row's, and costs no other
                    own.errors[0] = error
                else:
                    own.errors[0].__cause__ = error
                return own
            self._cut_off.discard(row)
            own = self._done_again(row, wanted, replacing)
        return own

    def _done_again(self, row: int, wanted: int, replacing: Replacing) -> Report:
        """Has a new worker do what is left of a row's work, and waits for that."""
        (op,) = replacing.lost.ops(bytes([wanted]), [row])
        if not op:
            return NOTHING
        crew, message = self._crew, self._given[row].message
        self._op[row] = op
        if message is not None:
            crew.post(row, message)
        if self._hangs is not None:
            self._hangs.begin([row])
        crew.begin(row, Command.ROUND if message is None else Command.ROUND_WITH_MAIL)
        while row not in crew.dead and not crew.ends[row].is_ready(self._look_seconds):
            if self._is_closed:
                raise RuntimeError(f"env {row}: {_CLOSED}")
            if self._hangs is not None:
                self._end_hung([row], self._hangs)
        return self._own_report_of(row)

    def _replace(self, row: int, replacing: Replacing) -> Exception | None:
        """Replaces the worker of a row, with all that are one process with it; why not, where it stays dead.

        What its siblings had given before it died is theirs.
        """
        crew, ops = self._crew, bytearray(self.num_envs)
        siblings = crew.same_process(row)
        for sibling in siblings:
            if sibling == row or self._is_done(sibling) or sibling not in self._given:
                continue
            if sibling not in crew.dead and crew.ends[sibling].has_byte:
                self._keep(sibling, self._own_report_of(sibling, has_answered=True), replacing)
            else:
                ops[sibling] = self._given[sibling].op
        if row in self._given:
            ops[row] = self._given[row].op
        for sibling in siblings:
            if ops[sibling]:
                self._cut_off.add(sibling)  # before there is another end to wait at
            if (ops[sibling] or sibling in self._read) and sibling in self._rows.batch:
                self._note_ready(sibling)
        return replacing.replace([row], bytes(ops)).get(row)

    def _require_living(self, workers: Iterable[int]) -> None:
        """See :class:`ParallelEngine`."""
        if self._replacing is None:
            return super()._require_living(workers)
        with self._replacing_lock:
            self.restarts.begin_call()
            for row in workers:
                error = self._replace(row, self._replacing) if row in self._crew.dead else None
                if error is not None:
                    raise error
        return None

    def _note_ready(self, row: int) -> None:
        self._rows.note_ready(row)  # before it is forgotten: an interrupt may come between the two
        self._ends.forget(row)

    def _let_go(self, rows: Iterable[int]) -> None:
        """These rows are idle again."""
        rows = [*rows]
        for row in rows if self._given else ():  # before it is unread: else its worker's end could cut it off
            self._given.pop(row, None)
        for row in rows:
            self._read.pop(row, None)
        self._rows.let_go(rows)

    # ---------------------------------------------------------------- what was interrupted

    def abandon(self, rows: Iterable[int]) -> None:
        """Has rows be idle whose work, if any is under way, the caller is not to see: they are to be reset."""
        if self._is_closed:
            return
        rows = [*rows]
        for row in rows:
            self._ends.forget(row)
            self.block.state[row] = RowState.FAILED
            self._given.pop(row, None)
            self._read.pop(row, None)
        self._rows.abandon(rows)

    def _settle(self, rows: Iterable[int]) -> None:
        interrupted = self._rows.interrupted
        left = interrupted.intersection(rows) if interrupted else None
        if left:
            self._crew.settle(left, self._hangs)
            for row in left:
                self.block.state[row] = RowState.FAILED  # the worker wrote it meanwhile
            interrupted -= left
        if self.unsettled:
            self.settle()

    # ---------------------------------------------------------------- rounds and verbs

    def send(self, ops: bytes, inputs: Any, reset_kwargs: Sequence[Mapping[str, Any]] | None = None) -> None:
        """See :meth:`ParallelEngine.send`; refused while a row is busy."""
        rows = self._rows
        rows.is_for_all = True  # before the look: who claims a row does so before it looks at this
        try:
            rows.require_idle(call_of(ops))
            self._settle(range(self.num_envs))
            super().send(ops, inputs, reset_kwargs)
        finally:
            rows.is_for_all = False

    def send_calls(self, verb: str, arguments: Mapping[int, tuple[Any, ...]]) -> None:
        """See :meth:`ParallelEngine.send_calls`; refused while a row is busy."""
        rows = self._rows
        rows.is_for_all = True  # before the look: who claims a row does so before it looks at this
        try:
            rows.require_idle(verb)
            self._settle(range(self.num_envs))
            super().send_calls(verb, arguments)
        finally:
            rows.is_for_all = False


def _renumbered(reports: Sequence[Report], first: int) -> Report:
    """One report of rows that have one each, counted from ``first``."""
    if all(own is NOTHING or own is IN_BLOCK for own in reports):
        return IN_BLOCK
    report = Report()
    for index, own in enumerate(reports, first):
        for ours, theirs in ((report.steps, own.steps), (report.resets, own.resets), (report.errors, own.errors)):
            if 0 in theirs:
                ours[index] = theirs[0]
        if own.lost:
            report.lost.add(index)
    return report
