"""The workers of an engine: started together, asked and awaited, buried when they die, and ended."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, NoReturn

from gymbridge.engine.caller_worker import CallerGroup, CallerWorker
from gymbridge.engine.failures import mark_error
from gymbridge.engine.hangs import HangWatch
from gymbridge.engine.mailbox import Mailbox
from gymbridge.engine.protocol import SYNC, Answer, Command
from gymbridge.engine.shared_memory import SharedBytes
from gymbridge.engine.worker_kinds import ProcessWorkers
from gymbridge.engine.worker_loop import EnvWorker
from gymbridge.engine.workers import ReadyEnds, WakeEnd, WakeGroup, WorkerProcess, WorkerShare
from gymbridge.errors import (
    CallTimeoutError,
    UnpicklableError,
    WorkerDiedError,
    WorkerStartError,
    WorkerTimeoutError,
)

__all__ = ["Crew", "not_known"]

Worker = WorkerProcess | WorkerShare | CallerWorker

_SECONDS_TO_SAY = 0.5
"""That a worker which hangs has to say where, before it is killed."""

_SECONDS_TO_DIE = 5.0
"""That a worker whose end of a pipe is closed, or that was killed, may take to be seen dead."""


class Crew:
    """The workers of an engine, numbered from 0.

    One call is under way at a time: commands go out, each worker concerned answers once, and only then comes the next.
    Dropping the last reference to a crew ends its workers: those that are idle close their envs, those in the middle
    of something are killed.

    Args:
        parts: the rows of each worker.
        jobs: what each runs.
        kind: where they run.
        start_timeout: seconds until all have made their envs.
        caller: what the caller itself runs, as one worker more, the last: it makes its envs, and does what it is told,
            in the waits for the others. None for nothing.

    Several may be one process, ``kind.together`` of them: each answers for itself, and they die together. In errors and
    warnings the number of such a worker is that of its process, counted from 0.

    Attributes:
        parts: the rows of each worker.
        made: what each worker told once its envs were made.
        dead: worker -> what its death is told with.
        jobs: what each process runs; what is set there is so for one that replaces it.
        doing: says what a worker is doing, in words; it may be set.
        concerned: the workers that the last command went to.
        timeouts: how many processes were ended since one of their envs took too long.
        groups: those that wait for the workers' ends; who makes another puts it there, and it knows of deaths then.
        refusal: why the workers are not to be used any more; empty as long as they are.
    """

    def __init__(
        self,
        parts: Sequence[range],
        jobs: Sequence[EnvWorker],
        kind: ProcessWorkers,
        start_timeout: float | None,
        caller: EnvWorker | None = None,
    ):
        self.parts = parts
        self.dead: dict[int, WorkerDiedError] = {}
        self.doing: Callable[[int], str] = not_known
        self.jobs = jobs
        self._start_timeout = start_timeout
        self.timeouts = 0
        self._hung: dict[int, tuple[float, str]] = {}  # by process: the time that an env had, and what for
        self._sync_byte = SYNC
        self.concerned: Collection[int] = ()
        self._pending: set[int] = set()
        self._workers: list[Worker] = []
        self._mailboxes: list[Mailbox] = []
        self._ends: list[Any] = []  # WakeEnds, and of the caller's share a CallerEnd
        self.groups: list[WakeGroup | ReadyEnds] = []
        self._kind = kind
        self._closed: set[int] = set()  # those that have closed their envs
        self.refusal = ""
        deadline = None if start_timeout is None else perf_counter() + start_timeout
        self._release = weakref.finalize(self, _release, self._workers, self._mailboxes, self._pending)
        _crews.add(self)
        try:
            self._mailboxes.extend(Mailbox.create() for _ in parts)
            for worker in kind.start(jobs, self._mailboxes[: len(jobs)], start_timeout):
                self._take_on(worker)
            self._group = WakeGroup(self._ends)
            if caller is not None:
                own = CallerWorker(caller, self._mailboxes[-1])
                self._group = CallerGroup(self._ends, own.wake)
                self._take_on(own)
            self.groups.append(self._group)
            self.made = self._first_answers(deadline)
        except BaseException as error:
            is_of_an_env = isinstance(error, Exception) and not isinstance(error, (WorkerStartError, UnpicklableError))
            self._discard(_SECONDS_TO_DIE if is_of_an_env else 0.0)
            raise

    def _take_on(self, worker: Worker) -> None:
        self._workers.append(worker)
        self._pending.add(len(self._ends))
        self._ends.append(worker.wake)

    def _first_answers(self, deadline: float | None) -> list[Any]:
        """What each worker tells of its envs."""
        answers: dict[int, Any] = {}
        while self._pending:
            waiting = set(self._pending)
            left = None if deadline is None else max(0.0, deadline - perf_counter())
            dead = self._group.wait(self._pending, left, first=True)
            if dead:
                self._raise_start_failure(min(dead))
            if waiting == self._pending:
                rows = [row for worker in sorted(waiting) for row in self.parts[worker]]
                raise WorkerStartError(f"the envs {rows} were not made within the start timeout")
            for worker in sorted(waiting - self._pending):
                answers[worker] = self.answer(worker)
        return [answers[worker] for worker in range(len(self.parts))]

    def _raise_start_failure(self, worker: int) -> NoReturn:
        """Raises why a worker ended before it served."""
        connection = self._workers[worker].connection
        with suppress(EOFError, OSError):
            if connection.poll():
                connection.recv()  # raises what the worker could not read
        self._bury(worker)
        raise self.dead[worker].again()

    # ---------------------------------------------------------------- commands and answers

    @property
    def ends(self) -> Sequence[WakeEnd]:
        """This side's wake-up ends."""
        return self._ends

    def hand_over(self, worker: int, memory: SharedBytes) -> None:
        """Gives a worker the block's memory.

        Raises:
            WorkerDiedError: it has died.
        """
        try:
            if worker not in self.dead:
                memory.send(self._workers[worker].connection)
        except (BrokenPipeError, ConnectionResetError):
            self._bury(worker)
        if worker in self.dead:
            raise self.dead[worker].again()

    def post(self, worker: int, packed: Any) -> None:
        """Puts a packed message into a worker's mailbox, before the command to read it."""
        self._mailboxes[worker].put(packed)

    def command(self, workers: Collection[int], command: Command, with_mail: Collection[int] = ()) -> None:
        """Sends a command; those that are found dead are in ``dead`` then.

        Args:
            workers: the workers; none of them is dead, as far as is known.
            command: the command.
            with_mail: those that get ``ROUND_WITH_MAIL`` instead.
        """
        self.concerned = workers  # before the first: an interrupt may come between any two
        for worker in workers:
            self.begin(worker, Command.ROUND_WITH_MAIL if worker in with_mail else command)

    def begin(self, worker: int, command: Command) -> None:
        """Sends a command to one worker, whose answer ``finish`` takes; one found dead is in ``dead`` then."""
        self._pending.add(worker)
        end = self._ends[worker]
        try:
            if command is Command.ALLOCATE:  # which has both sides count from zero
                end.signal(command)
            else:
                end.wake(command)
        except BrokenPipeError:
            self._bury(worker)

    def finish(self, worker: int, *, is_certain: bool = False) -> None:
        """Takes what a worker has answered to ``begin``, which is there; one found dead is in ``dead`` then.

        Args:
            is_certain: see :meth:`~gymbridge.engine.workers.wake.WakeEnd.take_ready`.
        """
        if worker in self.dead:
            return
        try:
            self._ends[worker].take_ready(is_certain=is_certain)
        except EOFError:
            self._bury(worker)
        self._pending.discard(worker)

    def wait(self, timeout: float | None = None, hangs: HangWatch | None = None) -> None:
        """Waits until each worker under way has answered, or died.

        Args:
            timeout: seconds; None to wait for ever.
            hangs: tells which of them hang; those are ended.

        Raises:
            CallTimeoutError: they took longer; they are still under way.
        """
        deadline = None
        if timeout is not None:
            deadline = perf_counter() + timeout
        if hangs is not None:
            hangs.begin(self._pending)
        while self._pending:
            if deadline is not None:
                timeout = max(0.0, deadline - perf_counter())
            left = timeout
            if hangs is not None:
                left = hangs.interval if timeout is None else min(hangs.interval, timeout)
            dead = self._group.wait(self._pending, left)
            for worker in dead:
                self._bury(worker)
            if self._pending and not dead:
                if hangs is not None:
                    for worker in hangs.hung(self._pending):
                        self.end_hung(worker, hangs.seconds)
                    if deadline is None or perf_counter() < deadline:
                        continue
                late = sorted(self._pending)
                rows = [row for worker in late for row in self.parts[worker]]
                raise CallTimeoutError(f"workers {self._numbers(late)} did not answer in time: envs {rows}")

    def end_hung(self, worker: int, seconds: float) -> None:
        """Ends a worker at once, one of whose envs has had its time; its process's death is told with that."""
        if worker not in self.dead:
            self.timeouts += not any(other in self.dead for other in self.same_process(worker))  # ended with those
            self._hung.setdefault(self.number(worker), (seconds, self.doing(worker)))
            self._workers[worker].abort(_SECONDS_TO_SAY)
            self._bury(worker)

    def look_for_dead(self, workers: Iterable[int]) -> None:
        """Looks whether idle workers have died since they were heard of last."""
        for worker in workers:
            if worker not in self.dead and self._ends[worker].is_bereft:
                self._bury(worker)

    def answer(self, worker: int) -> Any:
        """What a worker has answered, or raises what went wrong there.

        Raises:
            WorkerDiedError: it has died.
        """
        if worker in self.dead:
            raise self.dead[worker].again()
        mail = self._mailboxes[worker].take()
        if self._ends[worker].latest != Answer.FAILED:
            return mail
        told, row = mail
        error: Exception = told.rebuilt()
        if row is not None:
            mark_error(error, row, f"raised while env {row} was made")
        raise error

    def settle(self, workers: Collection[int] | None = None, hangs: HangWatch | None = None) -> None:
        """Waits until what was under way is done, and drops the answers.

        Args:
            workers: those concerned; unless given, those that the last command went to.
            hangs: as for ``wait``.

        Also where an interrupt has kept this process from knowing which workers it has woken and which have answered:
        what is sent now comes back behind all that.
        """
        self._sync_byte = SYNC + (self._sync_byte + 1 - SYNC) % SYNC
        workers = self.concerned if workers is None else workers
        concerned = [worker for worker in workers if worker not in self.dead]
        for worker in concerned:
            self._pending.add(worker)
            try:
                self._ends[worker].restart()
                self._ends[worker].signal(self._sync_byte)
            except BrokenPipeError:
                self._bury(worker)
        if hangs is not None:
            hangs.begin(concerned)
        for worker in concerned:
            try:
                while worker not in self.dead:
                    if self._ends[worker].skip_to(self._sync_byte, None if hangs is None else hangs.interval):
                        self._ends[worker].restart()
                        break
                    if hangs is not None and hangs.hung([worker]):
                        self.end_hung(worker, hangs.seconds)
            except EOFError:
                self._bury(worker)
        self._pending.difference_update(concerned)

    # ---------------------------------------------------------------- one worker apart from the others

    def replace(self, worker: int) -> dict[int, list[Any]]:
        """Starts a process in the place of one that died: worker -> what its envs say of themselves.

        All workers that were one process with it are replaced; those that are not dead yet are about to be.

        Raises:
            WorkerDiedError: it died too.
            WorkerStartError: it could not be started, or its envs were not made in time.

        What a maker raises comes through. The workers are dead as before then.
        """
        workers = self.same_process(worker)
        deadline = None if self._start_timeout is None else perf_counter() + self._start_timeout
        for other in workers:
            self._bury(other)
        self._hung.pop(self.number(worker), None)
        first = [self.dead[other] for other in workers]
        mailboxes = [Mailbox.create() for _ in workers]
        for other, mailbox in zip(workers, mailboxes, strict=True):
            before, self._mailboxes[other] = self._mailboxes[other], mailbox
            before.close()
        try:
            jobs = [self.jobs[other] for other in workers]
            started = self._kind.start(jobs, mailboxes, self._start_timeout)
            for other, process in zip(workers, started, strict=True):
                self._workers[other] = process
                self._ends[other] = process.wake
                for group in self.groups:
                    group.replace(other, process.wake)
                del self.dead[other]
                self._pending.add(other)  # it is killed if it is let go of now
            return {other: self._answer_of(other, deadline) for other in workers}
        except BaseException:
            self.end(workers)
            self.dead.update(zip(workers, first, strict=True))
            for other in workers:  # those of which an interrupt came before they counted as living
                self._let_go(other)
            raise

    def end(self, workers: Iterable[int]) -> None:
        """Ends those of some workers at once that are not dead."""
        for worker in workers:
            if worker not in self.dead:
                self._workers[worker].kill()
                self._bury(worker)

    def ask(self, worker: int, command: Command, mail: Any = None) -> Any:
        """What one worker answers to a command; none is under way there.

        Args:
            mail: what goes with it, packed.

        Raises:
            WorkerDiedError: it has died.
            WorkerStartError: it took longer than a start may take.
        """
        if mail is not None:
            self.post(worker, mail)
        self.begin(worker, command)
        return self._answer_of(worker, None if self._start_timeout is None else perf_counter() + self._start_timeout)

    def _answer_of(self, worker: int, deadline: float | None) -> Any:
        if worker not in self.dead:
            left = None if deadline is None else max(0.0, deadline - perf_counter())
            try:
                if self._ends[worker].wait(left) is None:
                    rows = [*self.parts[worker]]
                    raise WorkerStartError(f"the envs {rows} were not made anew within the start timeout")
            except EOFError:
                self._bury(worker)
            self._pending.discard(worker)
        return self.answer(worker)

    def require_open(self) -> None:
        """Refuses use after the end, and in a fork of the process that started the workers."""
        if self.refusal:
            raise RuntimeError(self.refusal)

    def disown(self) -> None:
        """In a fork: the workers are none of its business."""
        self.refusal = (
            "the workers belong to the process that started them, of which this one is a fork: start others here"
        )
        self._release.detach()
        for mailbox in self._mailboxes:
            mailbox.close()

    # ---------------------------------------------------------------- ends

    def _discard(self, patience: float) -> None:
        """Ends workers that never came to serve; they close the envs that they have, if they come to it in time."""
        living = [worker for worker in range(len(self._workers)) if worker not in self.dead]
        with suppress(Exception):  # what went wrong first is what the caller is to see
            self._close_envs(living, perf_counter() + patience)
        self._kill(living)
        self._release()

    def _kill(self, workers: Sequence[int]) -> None:
        """Ends workers at once."""
        for worker in workers:
            self._workers[worker].kill()
        for worker in workers:
            self._workers[worker].join(_SECONDS_TO_DIE)

    def _bury(self, worker: int) -> None:
        """Keeps how a worker ended; one that has only let go of its pipe is killed.

        A second call does what an interrupt has kept the first from.
        """
        self._pending.discard(worker)
        if worker not in self.dead:
            ended = self._workers[worker]
            if not ended.join(_SECONDS_TO_DIE):
                ended.kill()
            rows = [row for other in self.same_process(worker) for row in self.parts[other]]
            number, status, stderr = self.number(worker), ended.exit_status(_SECONDS_TO_DIE), ended.stderr_tail
            if number in self._hung:
                self.dead[worker] = WorkerTimeoutError(number, rows, status, *self._hung[number], stderr)
            else:
                self.dead[worker] = WorkerDiedError(number, rows, status, self.doing(worker), stderr, ended.how)
        self._let_go(worker)

    def _let_go(self, worker: int) -> None:
        """Waits for a dead worker no more and closes what there is of it here."""
        for group in self.groups:
            group.remove(worker)
        self._workers[worker].close()

    def same_process(self, worker: int) -> range:
        """The workers that are one process with it, itself included."""
        together = self._kind.together
        first = worker // together * together
        return range(first, min(first + together, len(self.parts)))

    def _are_closed_with(self, worker: int) -> bool:
        """Have it and all that are one process with it closed their envs?"""
        return all(other in self._closed for other in self.same_process(worker))

    def number(self, worker: int) -> int:
        """The number under which users know a worker: that of its process, where several are one."""
        return worker // self._kind.together

    def _numbers(self, workers: Iterable[int]) -> list[int]:
        return sorted({*map(self.number, workers)})

    def close(self, timeout: float | None, terminate: bool) -> list[Exception]:
        """Ends the workers: each closes its envs first, but for those that do not come to it in time.

        Args:
            timeout: seconds after which those left are killed, with a warning; None to wait for ever.
            terminate: kill them all at once.

        Returns:
            The errors of envs that could not be closed.
        """
        if self.refusal or not self._release.alive:  # at exit all has been released already
            return []
        errors: list[Exception] = []
        living = [worker for worker in range(len(self._workers)) if worker not in self.dead]
        try:
            if not terminate:
                errors = self._close_envs(living, None if timeout is None else perf_counter() + timeout)
            left = [worker for worker in living if self._workers[worker].is_alive]
            self._kill(left)
            if left and not terminate:
                late = [worker for worker in left if worker not in self._closed or self._are_closed_with(worker)]
                rows = [row for worker in late for row in self.parts[worker]]
                told = f"workers {self._numbers(left)} did not close the envs {rows} in time and were killed"
                warnings.warn(told, stacklevel=3)
        except BaseException:  # an interrupt: nobody would end those that do not end by themselves
            self._pending.update(living)  # which are killed when they are let go
            raise
        finally:
            self.refusal = "the workers are closed"
            self._release()
        return errors

    def _close_envs(self, workers: Iterable[int], deadline: float | None) -> list[Exception]:
        def left() -> float | None:
            return None if deadline is None else max(0.0, deadline - perf_counter())

        errors = []
        asked = []
        for worker in workers:
            with suppress(BrokenPipeError):  # it has died since it was heard of last
                self._ends[worker].signal(Command.CLOSE)
                asked.append(worker)
        for worker in asked:
            with suppress(EOFError):
                if self._ends[worker].skip_to(Answer.CLOSED, left()):
                    self._closed.add(worker)
                    told: tuple[Any, int | None] | None = self._mailboxes[worker].take()
                    if told is not None:
                        errors.append(self._error_of_close(worker, *told))
        for worker in asked:
            self._workers[worker].join(left())
        return errors

    def _error_of_close(self, worker: int, told: Any, index: int | None) -> Exception:
        error: Exception = told.rebuilt()
        if index is not None:
            row = self.parts[worker].start + index
            mark_error(error, row, f"raised by env {row}")
        return error


def not_known(worker: int) -> str:
    """What a worker is doing, where nobody can tell."""
    return ""


def _release(workers: list[Worker], mailboxes: list[Mailbox], pending: set[int]) -> None:
    """Lets go of workers without waiting: those in the middle of something would not notice for long.

    The caller's own share is in the middle of nothing where an interrupt has ended that: its envs are closed.
    """
    for number, worker in enumerate(workers):
        if number in pending and not isinstance(worker, CallerWorker):
            with suppress(ValueError):  # closed already
                worker.kill()
        worker.close()
    for mailbox in mailboxes:
        mailbox.close()


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


def _disown_all() -> None:
    for crew in list(_crews):
        crew.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
