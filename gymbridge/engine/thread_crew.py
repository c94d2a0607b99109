"""The envs of a pool of threads and what calls them: threads that take their calls from one queue.

::

    caller's threads         one queue              threads, as many as envs
       |  start(calls) ─────► call call call ─────►  the leader takes one, wakes a follower if there are more,
       |                                              makes it, and takes the next
       |  ◄── arrivals ────────────────────────────  call.is_done

Who gives work wakes one thread. That takes a call and, where more are there, wakes another before it makes it; so calls
that block are all under way at once, and of those that do not one thread makes many, without a hand-over of the
interpreter's lock between them. A thread that is woken and has not come to look yet is waited for before another is
woken: it sees to what is there then.

Threads that have nothing to do wait for one bell, a lock that whoever wakes one lets go of. The interpreter's lock is
relied upon: what one thread does in two lines, the others see in that order, and dicts and deques change in one step.
An interrupt may end what a caller's thread does between any two lines, and finds no lock held.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

from gymbridge.engine.arrivals import Arrivals
from gymbridge.engine.call_crew import (
    LEFT_BEHIND,
    CallCrew,
    death_of,
    errors_of_close,
    wait_for_ends,
    warn_of_late,
)
from gymbridge.engine.env_calls import Await, CallingHost, EnvCall, RowCall, VerbCall
from gymbridge.engine.failures import mark_error
from gymbridge.engine.makers import require_env, require_maker
from gymbridge.engine.recovery import Recovery, recovery_of
from gymbridge.engine.remade_rows import Remake, close_quietly
from gymbridge.engine.restarts import Restarts
from gymbridge.errors import WorkerDiedError, WorkerStartError

__all__ = ["ThreadCrew"]

_logger = logging.getLogger(__name__)

_SECONDS_TO_END = 5.0
"""That threads have to close their envs where a maker has failed."""

_SECONDS_AT_EXIT = 1.0
"""That idle threads have at this process's exit to end: later they would be stopped wherever they are."""


class ThreadCrew(CallCrew):
    """Makes envs in threads, each in one of its own, and has them called in whichever of them is free.

    Args:
        makers: one a row.
        kinds: what they may give.
        cores: those of the thread in which each env is made; None for all.
        start_timeout: seconds until all envs are made; and until one is that is made anew.
        step_timeout: seconds that a step or a reset may take; its thread is left behind then and another started. None
            for no limit.
        restarts: how often envs may be made anew; None for never.

    Raises:
        WorkerDiedError: a maker raised what would end a program.
        WorkerStartError: there can be no more threads, or the envs were not made in time.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], Any]],
        kinds: tuple[type, ...],
        cores: Sequence[Iterable[int] | None],
        start_timeout: float | None,
        step_timeout: float | None = None,
        restarts: Restarts | None = None,
    ):
        deadline = None if start_timeout is None else perf_counter() + start_timeout
        self._service = service = _Service(makers, cores)
        service.recovery = recovery_of(service, step_timeout, start_timeout, restarts)
        super().__init__(service.dead, service.release, service.recovery)
        made = Arrivals()
        patience = 0.0
        try:
            for row, (maker, own) in enumerate(zip(makers, cores, strict=True)):
                service.start_thread(_Making(row, maker, kinds, own, service.envs, made), own)
            failed = _failed(made, len(makers), deadline)
            if failed is not None:
                patience = _SECONDS_TO_END
                raise _told(failed)
        except BaseException:
            self._release()
            service.join(perf_counter() + patience)
            raise

    @property
    def envs(self) -> list[Any]:
        """See :class:`~gymbridge.engine.call_crew.CallCrew`."""
        return [self._service.envs[row] for row in range(len(self._service.envs))]

    def take_host(self, host: CallingHost) -> None:
        """See :class:`~gymbridge.engine.call_crew.CallCrew`."""
        self._service.take_envs(host.envs)
        self._service.prepare = host.prepare_thread

    def start(self, calls: Sequence[EnvCall]) -> None:
        """See :class:`~gymbridge.engine.call_crew.CallCrew`."""
        self._service.start(calls)

    def await_ended(self, calls: Iterable[EnvCall]) -> None:
        """See :class:`~gymbridge.engine.call_crew.CallCrew`."""
        wait_for_ends(self._service, calls)

    def _close_envs(self, timeout: float | None) -> list[Exception]:
        service = self._service
        service.release()
        service.join(None if timeout is None else perf_counter() + timeout)
        warn_of_late(sorted({*service.envs} - service.closed - {*self.dead}), LEFT_BEHIND)
        return errors_of_close(service.close_errors)


class _Service:
    """What the threads know: nothing of who owns them.

    Attributes:
        envs: row -> its env.
        dead: row -> what its death is told with.
        closed: the rows whose envs have been closed.
        close_errors: row -> what its env raised then.
        prepare: to be called once in each thread.
        recovery: sees to envs that die or take too long; None where there is no such thing.
    """

    def __init__(self, makers: Sequence[Callable[[], Any]], cores: Sequence[Iterable[int] | None]) -> None:
        self.recovery: Recovery | None = None
        self._makers = makers
        self._cores = cores
        self.envs: dict[int, Any] = {}
        self.dead: dict[int, WorkerDiedError] = {}
        self.closed: set[int] = set()
        self.close_errors: dict[int, Exception] = {}
        self.prepare: Callable[[], None] = _nothing
        self._threads: list[_CallThread] = []
        self._queue: deque[EnvCall] = deque()
        self._given: dict[EnvCall, None] = {}
        """Calls that no thread has taken. A call may lie in the queue twice: who takes it out of here makes it."""
        self._bell = threading.Lock()
        self._bell.acquire()
        self._is_awaited = False
        """A thread has been woken, and is to look at the queue."""
        self._seats: dict[int, _Seat] = {}
        self._is_closing = False
        """A thread that comes to the end of a call closes the env."""
        self._is_over = False
        """A thread that finds nothing in the queue ends."""
        _services.add(self)

    def start_thread(self, making: EnvCall, cores: Iterable[int] | None) -> None:
        """Starts a thread, which makes an env and then whatever is in the queue."""
        thread = _CallThread(self, making.row, making, cores)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError as error:
            self._threads.pop()
            raise WorkerStartError(f"env {making.row}: {error}") from error

    def join(self, deadline: float | None) -> None:
        """Waits until all threads have ended, until the deadline."""
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - perf_counter()))

    # ---------------------------------------------------------------- calls

    def start(self, calls: Sequence[EnvCall]) -> None:
        """See :class:`ThreadCrew`."""
        self._given.update(dict.fromkeys(calls))
        if self._is_closing:  # after that: it has not been seen where the end began
            self._refuse(calls)
        self._queue.extend(calls)
        if not self._is_awaited:
            self._wake_one()

    def _refuse(self, calls: Sequence[EnvCall]) -> None:
        """Ends calls that no thread has taken."""
        for call in calls:
            if self._given.pop(call, False) is None:
                error = RuntimeError("the workers are closed")
                if self.recovery is not None:
                    self.recovery.fail(call, error)
                else:
                    call.error = error
                    _tell_end(call)

    def take_up(self) -> None:
        """Has calls made that an interrupt has kept from the queue, or whose threads it has kept asleep."""
        self._queue.extend([*self._given])
        self._wake_one()

    def is_under_way(self, call: EnvCall) -> bool:
        """Whether a call has been started; it may have come to its end since."""
        if call in self._given or any(thread.call is call for thread in self._threads):
            return True
        return self.recovery is not None and self.recovery.is_recovering(call)  # last: it comes to that from a thread

    def _busy_rows(self) -> set[int]:
        given = {call.row for call in [*self._given]}  # first: what is taken out of it, a thread has
        return given.union(call.row for thread in self._threads if (call := thread.call) is not None)

    def _wake_one(self) -> None:
        bell = self._bell
        if bell.locked():
            with suppress(RuntimeError):  # another has just let go of it
                bell.release()

    def serve(self, thread: _CallThread) -> None:
        """What a thread does: makes its first call, then those in the queue, until all is over."""
        if thread.call is not None:
            self._make(thread)
        queue, given, bell = self._queue, self._given, self._bell
        prepared: Callable[[], None] = _nothing
        while True:
            if not queue:
                if not self._is_over:
                    bell.acquire()
                    self._is_awaited = False
                elif not queue:  # after the look at what is over: nothing is put there since
                    break
                continue
            try:
                call = queue.popleft()
            except IndexError:  # another was quicker
                continue
            thread.call = call  # before it is taken: it is seen in one place or the other
            if given.pop(call, False) is None:
                if queue and not self._is_awaited:
                    self._is_awaited = True
                    self._wake_one()
                if self.prepare is not prepared:
                    prepared = self.prepare
                    prepared()
                del call  # what it gives is not to be kept until the next one comes
                if self.recovery is None:
                    self._make(thread)
                elif not self._make_or_recover(thread, self.recovery):
                    return  # another does what it did
            else:  # another has it, or had it
                row = call.row
                thread.call = None
                del call
                if self._is_closing:
                    self._close_idle(row)
        self._wake_one()  # it finds that all is over too

    def _make(self, thread: _CallThread) -> None:
        """Makes the call that a thread has taken."""
        call: Any = thread.call
        try:
            call.in_thread(_itself)
        except Exception as error:
            call.error = error
        except BaseException as error:
            self.dead[call.row] = death_of(call.row, error)
            call.error = self.dead[call.row].again()
        row = call.row
        _tell_end(call)
        thread.call = None
        if self._is_closing or row in self.dead:
            self._close_idle(row)

    def tell_end(self, call: EnvCall) -> None:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        _tell_end(call)

    # ---------------------------------------------------------------- envs that die or take too long

    def _make_or_recover(self, thread: _CallThread, recovery: Recovery) -> bool:
        """As ``_make``, where envs may be given up or made anew; False where the thread has been left behind."""
        call: Any = thread.call
        row = call.row
        seat = self._seat(row)
        watched = recovery.begin(call)
        error: BaseException | None = None
        try:
            if isinstance(call, Remake):
                self._remake(call)
            else:
                call.in_thread(_itself)
        except BaseException as raised:
            error = raised
        if watched and not recovery.end(call):
            if isinstance(call, Remake):
                self.close_made(call)
            elif seat is not None:
                close_quietly(row, seat.env)
            return False
        is_dead = recovery.settle(call, error)
        del error
        thread.call = None
        if self._is_closing:
            self._close_idle(row)
        elif is_dead and seat is not None:
            self._close(row, seat)
        return True

    def _remake(self, remake: Remake) -> None:
        """Closes a row's env, where that has not been left behind, and makes another on the same cores."""
        row = remake.row
        seat = self._seat(row)
        if seat is not None and seat.is_mine_to_close():
            close_quietly(row, seat.env)
        cores, before = self._cores[row], None
        if cores is not None:
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, cores)
        assert self.recovery is not None
        assert self.recovery.rows is not None
        try:
            self.recovery.rows.accept(remake, self._makers[row]())
        finally:
            if before is not None:
                os.sched_setaffinity(0, before)

    @property
    def is_ending(self) -> bool:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        return self._is_closing

    def begin_remaking(self, remake: Remake) -> None:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        self.start([remake])

    def go_on(self, rest: RowCall) -> None:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        self.start([rest])

    def install(self, remake: Remake) -> None:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        self.envs[remake.row] = remake.env
        self._seats[remake.row] = _Seat(remake.env)

    def close_made(self, remake: Remake) -> None:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        if remake.made is not None:
            close_quietly(remake.row, remake.made)

    def waiting(self, seconds: float) -> list[RowCall]:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`: there is a thread for each."""
        return []

    def take_back(self, call: RowCall) -> bool:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        return False

    def leave_behind(self, todo: EnvCall) -> Callable[[], None]:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`; another thread is started."""
        if self._given.pop(todo, False) is None:
            return _nothing
        seat = self._seat(todo.row)
        if isinstance(todo, RowCall) and seat is not None:
            seat.is_mine_to_close()  # its thread closes it
        left = next((thread for thread in self._threads if thread.call is todo), None)
        if left is None:  # it has been refused
            return _nothing
        spare = _CallThread(self, todo.row, None, left.cores)
        try:
            spare.start()
            self._threads = [*self._threads, spare]
        except RuntimeError as error:
            _logger.warning("there is one thread less from now on: %s", error)

        def forget() -> None:
            self._threads = [thread for thread in self._threads if thread is not left]

        return forget

    # ---------------------------------------------------------------- the end

    def take_envs(self, envs: Iterable[Any]) -> None:
        """These are the rows' envs from now on."""
        self.envs.update(enumerate(envs))
        self._seats.clear()

    def _seat(self, row: int) -> _Seat | None:
        seat = self._seats.get(row)
        if seat is None and row in self.envs:
            seat = self._seats.setdefault(row, _Seat(self.envs[row]))
        return seat

    def _close_idle(self, row: int) -> None:
        """Closes an env, once; not while a thread has a call of its row, which does it later.

        The row may have its next call already, from a caller's thread that did not see the end begin.
        """
        self._refuse([call for call in [*self._given] if call.row == row])  # who took one before is seen below
        if any(call.row == row for thread in self._threads if (call := thread.call) is not None):
            return
        seat = self._seat(row)
        if seat is not None:
            self._close(row, seat)

    def _close(self, row: int, seat: _Seat) -> None:
        if not seat.is_mine_to_close():
            return
        try:
            seat.env.close()
        except Exception as error:
            self.close_errors[row] = error
        except BaseException:  # what would end a program ends none
            pass
        self.closed.add(row)

    def release(self) -> None:
        """Has all envs closed, each once its call has been made, and all threads end; does not wait for it."""
        if not self._is_over:
            self._is_closing = True
            busy = self._busy_rows()
            closings = [VerbCall(row, _nothing) for row in [*self.envs] if row not in busy]
            for closing in closings:
                closing.arrivals = Arrivals()
            self._given.update(dict.fromkeys(closings))
            self._queue.extend([*self._given])
            self._is_over = True
        if self.recovery is not None:
            self.recovery.stop()
        self._wake_one()


class _Seat:
    """A row's env, to be closed once: by whoever asks first."""

    __slots__ = ("_token", "env")

    def __init__(self, env: Any):
        self.env = env
        self._token = [None]

    def is_mine_to_close(self) -> bool:
        try:
            self._token.pop()
        except IndexError:
            return False
        return True


class _CallThread(threading.Thread):
    """Makes calls; a daemon, since nobody is to wait for envs that hang.

    Attributes:
        call: the one that it is about to make, or makes.
        cores: those that it is to be bound to; None for all.
    """

    def __init__(self, service: _Service, row: int, making: EnvCall | None, cores: Iterable[int] | None):
        super().__init__(name=f"gymbridge-worker-{row}", daemon=True)
        self.call = making
        self.cores = cores
        self._service = service

    def run(self) -> None:
        service = self._service
        del self._service
        if self.call is None and self.cores is not None:  # who makes an env first binds itself then
            os.sched_setaffinity(0, self.cores)
        service.serve(self)


class _Making(EnvCall):
    """Makes the env of a row, in a thread that is bound to some cores."""

    __slots__ = ("_cores", "_envs", "_kinds", "_maker")

    def __init__(
        self,
        row: int,
        maker: Callable[[], Any],
        kinds: tuple[type, ...],
        cores: Iterable[int] | None,
        envs: dict[int, Any],
        arrivals: Arrivals,
    ):
        super().__init__(row)
        self.arrivals = arrivals
        self._maker = maker
        self._kinds = kinds
        self._cores = cores
        self._envs = envs

    def in_thread(self, awaited: Await) -> None:
        """See :class:`~gymbridge.engine.env_calls.EnvCall`."""
        if self._cores is not None:
            os.sched_setaffinity(0, self._cores)  # of this thread, and of what the env starts
        require_maker(self.row, self._maker)
        env = self._maker()
        if hasattr(env, "close"):  # first: also what is no env may be closed
            self._envs[self.row] = env
        require_env(self.row, env, self._kinds)


def _failed(made: Arrivals, num_envs: int, deadline: float | None) -> EnvCall | None:
    """Waits until all envs are made or one has failed: that one.

    Raises:
        WorkerStartError: they were not made by the deadline.
    """
    num_come = 0
    while num_come < num_envs:
        is_in_time = made.wait(num_come + 1, deadline)
        come: list[EnvCall] = [*made.come]
        if not is_in_time:
            missing = sorted({*range(num_envs)} - {call.row for call in come})
            raise WorkerStartError(f"the envs {missing} were not made within the start timeout")
        failed = [call for call in come if call.error is not None]
        if failed:
            return min(failed, key=lambda call: call.row)
        num_come = len(come)
    return None


def _told(failed: EnvCall) -> Exception:
    error: Exception = failed.error
    if not isinstance(error, WorkerDiedError):
        mark_error(error, failed.row, f"raised while env {failed.row} was made")
    return error


def _tell_end(call: EnvCall) -> None:
    call.done_at = perf_counter()
    call.is_done = True
    call.arrivals.add(call)


def _itself(value: Any) -> Any:
    """What is given: nothing here awaits it."""
    return value


def _nothing() -> None:
    """Nothing."""


_services: weakref.WeakSet[_Service] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Lets idle threads close their envs while there is an interpreter to do it in."""
    services = list(_services)
    for service in services:
        service.release()
    deadline = perf_counter() + _SECONDS_AT_EXIT
    for service in services:
        service.join(deadline)
