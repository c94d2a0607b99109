"""The envs of an asyncio pool and what runs them: one event loop in a thread, and a thread for each plain env.

::

    caller's threads            the loop's thread                     a plain env's thread
       |  start(calls) ──inbox──►  a task a call: await env.step()          |
       |              ──────────────────────────── its queue ──────────►  env.step()
       |  ◄── arrivals ─────────  call.is_done  ◄─────────────────────────  |

An env is made in the loop's thread, and one with coroutines is called nowhere else. No env is ever in two calls at
once: who gives it a call has heard of the end of the one before.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from gymbridge.engine.call_crew import (
    LEFT_BEHIND,
    CallCrew,
    death_of,
    errors_of_close,
    wait_for_ends,
    warn_of_late,
)
from gymbridge.engine.env_calls import Await, CallingHost, EnvCall, RowCall, VerbCall, is_awaitable, is_coroutine_env
from gymbridge.engine.failures import mark_error
from gymbridge.engine.makers import require_env, require_maker
from gymbridge.engine.recovery import Recovery, Revival, recovery_of
from gymbridge.engine.remade_rows import Remake
from gymbridge.engine.restarts import Restarts
from gymbridge.engine.workers.loop_thread import LoopThread
from gymbridge.errors import WorkerDiedError, WorkerStartError

__all__ = ["LoopCrew"]

_logger = logging.getLogger(__name__)

_SECONDS_TO_CANCEL = 1.0
"""That tasks which are cancelled may take to end."""


class LoopCrew(CallCrew):
    """Makes envs on an event loop of its own, has them called, and closes them.

    Dropping the last reference ends the loop: calls that are awaited are cancelled, threads end once their env lets
    them, and all envs are closed.

    Args:
        makers: one a row.
        kinds: what they may give.
        start_timeout: seconds until all envs are made; and until one is that is made anew.
        step_timeout: seconds that a step or a reset may take; what awaits it is cancelled then, or left behind. None
            for no limit.
        restarts: how often envs may be made anew; None for never.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], Any]],
        kinds: tuple[type, ...],
        start_timeout: float | None,
        step_timeout: float | None = None,
        restarts: Restarts | None = None,
    ):
        self._service = service = _Service(makers, kinds)
        try:
            service.recovery = recovery_of(service, step_timeout, start_timeout, restarts)
        except BaseException:
            service.release()
            raise
        super().__init__(service.dead, service.release, service.recovery)
        try:
            made = self.on_loop(self._service.make(), start_timeout)
            if made is not None:
                raise made
        except concurrent.futures.TimeoutError:
            self._release()
            missing = [row for row in range(len(makers)) if row not in self._service.envs]
            raise WorkerStartError(f"the envs {missing} were not made within the start timeout") from None
        except BaseException:
            self._release()
            self._service.thread.join(_SECONDS_TO_CANCEL)
            raise

    @property
    def envs(self) -> list[Any]:
        """See :class:`~gymbridge.engine.call_crew.CallCrew`."""
        return [self._service.envs[row] for row in range(len(self._service.envs))]

    def take_host(self, host: CallingHost) -> None:
        """See :class:`~gymbridge.engine.call_crew.CallCrew`."""
        self._service.take_host(host)

    def is_on_loop(self, row: int) -> bool:
        """Whether a row's env is called on the loop, and not in a thread."""
        return self._service.is_on_loop(row)

    def awaited(self, awaitable: Any) -> Any:
        """What an awaitable gives on the loop; on the loop itself, and of what is no awaitable, the very object."""
        return self._service.awaited_anywhere(awaitable)

    @property
    def await_anywhere(self) -> Await:
        """As ``awaited``; it does not hold the crew."""
        return self._service.awaited_anywhere

    def on_loop(self, coroutine: Any, timeout: float | None = None) -> Any:
        """What a coroutine gives on the loop, which it is waited for.

        Raises:
            concurrent.futures.TimeoutError: it took longer; it goes on.
        """
        return asyncio.run_coroutine_threadsafe(coroutine, self._service.thread.loop).result(timeout)

    def start(self, calls: Sequence[EnvCall]) -> None:
        """See :class:`~gymbridge.engine.call_crew.CallCrew`; each is made where its env is called."""
        self._service.start(calls)

    def await_ended(self, calls: Iterable[EnvCall]) -> None:
        """See :class:`~gymbridge.engine.call_crew.CallCrew`."""
        calls, service = [*calls], self._service
        if service.recovery is None:
            on_loop = [call for call in calls if self.is_on_loop(call.row)]
            in_threads = [call for call in calls if not self.is_on_loop(call.row)]
            self.perform([VerbCall(call.row, _nothing) for call in in_threads])  # a thread makes one by one
            self.on_loop(service.ended(on_loop))
            return
        wait_for_ends(service, calls)

    def beside(self, call: EnvCall) -> None:
        """Has a call made in a thread of its own, which may wait for the loop."""
        threading.Thread(target=self._service.make_call, args=(call,), name=_name("call"), daemon=True).start()

    def require_elsewhere(self, call: str) -> None:
        """See :class:`~gymbridge.engine.call_crew.CallCrew`: an env whose coroutine calls its own pool blocks it."""
        if self._service.thread.is_current:
            raise RuntimeError(f"{call}: refused on the event loop of the envs themselves, which it would wait for")

    def _close_envs(self, timeout: float | None) -> list[Exception]:
        service = self._service
        deadline = None if timeout is None else perf_counter() + timeout
        closing = asyncio.run_coroutine_threadsafe(service.close_all(deadline), service.thread.loop)
        # a loop that something blocks does not even come to cancel what it runs
        left = None if deadline is None else max(0.0, deadline - perf_counter()) + 2 * _SECONDS_TO_CANCEL
        try:
            late = closing.result(left)
            cancelled = [row for row in late if service.is_on_loop(row)]
        except concurrent.futures.TimeoutError:
            late, cancelled = sorted({*service.envs} - service.closed - {*self.dead}), []
        warn_of_late(cancelled, "were cancelled")
        warn_of_late([row for row in late if row not in cancelled], LEFT_BEHIND)
        self._release()
        service.thread.join(_SECONDS_TO_CANCEL)
        return errors_of_close(service.close_errors)


class _Service:
    """What the loop's thread knows: nothing of who owns it."""

    def __init__(self, makers: Sequence[Callable[[], Any]], kinds: tuple[type, ...]):
        num_rows = len(makers)
        self.recovery: Recovery | None = None
        self._makers = makers
        self.envs: dict[int, Any] = {}
        self.dead: dict[int, WorkerDiedError] = {}
        self.closed: set[int] = set()
        self.close_errors: dict[int, Exception] = {}
        self._num_rows = num_rows
        self._kinds = kinds
        self._failure: tuple[int, BaseException] | None = None
        self._making: list[asyncio.Task[None]] = []
        self._under_way: dict[EnvCall, asyncio.Task[None]] = {}
        self._inbox: deque[EnvCall] = deque()
        self._is_called = False
        self._threads: list[_EnvThread | None] = [None] * num_rows
        self._closers: dict[int, asyncio.Task[None]] = {}
        self._prepare: Callable[[], None] = _nothing
        self._is_ending = False
        self._is_closing = False
        self._left: set[int] = set()
        """Rows whose env is closed by what is left behind with it."""
        self._left_tasks: set[asyncio.Task[None]] = set()
        self._given: dict[EnvCall, None] = {}
        """Calls of plain envs that no thread has begun with. One may have been put twice: it is made once."""
        self._in_hand: dict[EnvCall, None] = {}
        """Those that one has, and one that the loop is about to begin."""
        self._waiting: dict[EnvCall, float] = {}
        """What lay in the inbox when that was looked at, since when."""
        self.thread = LoopThread(_name("loop"), self.release)

    # ---------------------------------------------------------------- the envs

    async def make(self) -> Exception | None:
        """Makes the envs, those whose makers give awaitables at once.

        Returns:
            Why it failed; what was made is closed then.
        """
        for row, maker in enumerate(self._makers):
            if self._failure is not None or self._is_ending:
                break
            try:
                require_maker(row, maker)
                made = maker()
                if is_awaitable(made):
                    self._making.append(asyncio.ensure_future(self._await_env(row, made)))
                else:
                    self._take_env(row, made)
            except BaseException as error:
                self._fail_making(row, error)
        await _wait(self._making)
        if self._failure is None:
            return None
        await self.close_all(perf_counter() + _SECONDS_TO_CANCEL)
        row, failure = self._failure
        if not isinstance(failure, Exception):
            return death_of(row, failure)
        mark_error(failure, row, f"raised while env {row} was made")
        return failure

    async def _await_env(self, row: int, made: Any) -> None:
        try:
            self._take_env(row, await made)
        except BaseException as error:
            self._fail_making(row, error)

    def _take_env(self, row: int, env: Any) -> None:
        if hasattr(env, "close"):  # first: also what is no env may be closed
            self.envs[row] = env
        require_env(row, env, self._kinds)

    def _fail_making(self, row: int, error: BaseException) -> None:
        if self._failure is None:
            self._failure = row, error
            for task in self._making:
                task.cancel()

    def take_host(self, host: CallingHost) -> None:
        """See :class:`LoopCrew`."""
        self.envs = dict(enumerate(host.envs))
        self._prepare = host.prepare_thread
        self.thread.call_soon(host.prepare_thread)
        for row, env in self.envs.items():
            self._thread_of(row, env)

    def _thread_of(self, row: int, env: Any) -> _EnvThread | None:
        """The thread of a plain env; None for an env that is called on the loop."""
        if self._threads[row] is None and not is_coroutine_env(env):
            make_call = self.make_call if self.recovery is None else self._make_given
            self._threads[row] = _EnvThread(row, self._prepare, make_call)
        return self._threads[row]

    def is_on_loop(self, row: int) -> bool:
        """Whether a row's env is called on the loop; once its host is known."""
        return self._threads[row] is None

    # ---------------------------------------------------------------- calls

    def start(self, calls: Iterable[EnvCall]) -> None:
        """See :class:`LoopCrew`."""
        threads, inbox, recovers = self._threads, self._inbox, self.recovery is not None
        for call in calls:
            thread = threads[call.row]
            if thread is None or (recovers and isinstance(call, (Remake, Revival))):
                inbox.append(call)
            else:
                if recovers:
                    self._given[call] = None
                thread.put(call)
        if inbox and not self._is_called:
            self._is_called = True
            try:
                self.thread.call_soon(self._begin)
            except BaseException:  # an interrupt
                self._is_called = False
                raise

    def _begin(self) -> None:
        """On the loop: begins what lies in the inbox."""
        self._is_called = False  # first: what is put there from now on has this called again
        if self.recovery is not None:
            self._begin_watched(self.recovery)
        inbox, create_task = self._inbox, self.thread.loop.create_task
        while inbox:
            call = inbox.popleft()
            self._under_way[call] = create_task(self._run(call))

    async def _run(self, call: EnvCall) -> None:
        try:
            await call.on_loop()
        except BaseException as error:
            call.error = error
        self._note_end(call)
        del self._under_way[call]

    async def ended(self, calls: Iterable[EnvCall]) -> None:
        """Waits until calls have been made, or are seen never to have been started."""
        self._begin()
        await _wait([self._under_way[call] for call in calls if call in self._under_way])

    def make_call(self, call: EnvCall) -> None:
        """In a thread that is not the loop's: makes a call."""
        if self.recovery is not None:
            self._make_or_recover(call, self.recovery)
            return
        try:
            call.in_thread(self.awaited)
        except BaseException as error:
            call.error = error
        self._note_end(call)

    def awaited(self, awaitable: Any) -> Any:
        """What an awaitable gives on the loop, asked for in another thread."""
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self.thread.loop).result()

    def awaited_anywhere(self, awaitable: Any) -> Any:
        """See :meth:`LoopCrew.awaited`."""
        if self.thread.is_current or not is_awaitable(awaitable):
            return awaitable
        return self.awaited(awaitable)

    def _note_end(self, call: EnvCall) -> None:
        error = call.error
        if error is not None and not isinstance(error, Exception):
            self.dead[call.row] = death_of(call.row, error)
            call.error = self.dead[call.row].again()
            self.thread.call_soon(self._close_soon, call.row)
        self.tell_end(call)

    def tell_end(self, call: EnvCall) -> None:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        call.done_at = perf_counter()
        call.is_done = True
        call.arrivals.add(call)

    # ---------------------------------------------------------------- envs that die or take too long

    def _begin_watched(self, recovery: Recovery) -> None:
        """As ``_begin``, where calls may be taken back, or be seen to have begun and not."""
        inbox, in_hand, under_way = self._inbox, self._in_hand, self._under_way
        create_task = self.thread.loop.create_task
        while inbox:
            try:
                call = inbox[0]
            except IndexError:  # it has been taken back
                break
            in_hand[call] = None  # before it is taken: it is seen in one place or the other
            try:
                inbox.remove(call)
            except ValueError:
                del in_hand[call]
                continue
            under_way[call] = create_task(self._run_or_recover(call, recovery.begin(call), recovery))
            del in_hand[call]

    async def _run_or_recover(self, call: EnvCall, watched: bool, recovery: Recovery) -> None:
        error: BaseException | None = None
        try:
            if isinstance(call, Remake):
                await self._remake(call, recovery)
            elif not watched or call in recovery.watched:  # else it was given up before it had its turn
                await call.on_loop()
        except BaseException as raised:
            error = raised
        if watched and not recovery.end(call):
            return  # who gave it up sees to its env
        if error is None and recovery.is_calm:
            self.tell_end(call)
        else:
            self._settle(call, error, recovery)
        self._under_way.pop(call, None)

    def _make_given(self, call: EnvCall) -> None:
        """As ``make_call``, of what may have been made already."""
        if isinstance(call, _Closing):
            self.make_call(call)
            return
        self._in_hand[call] = None  # before it is taken: it is seen in one place or the other
        if self._given.pop(call, False) is None:
            self.make_call(call)
        self._in_hand.pop(call, None)

    def _make_or_recover(self, call: EnvCall, recovery: Recovery) -> None:
        """As ``make_call``, where envs may be given up or made anew."""
        env = self.envs[call.row]
        watched = recovery.begin(call)
        error: BaseException | None = None
        try:
            call.in_thread(self.awaited)
        except BaseException as raised:
            error = raised
        if watched and not recovery.end(call):
            try:
                VerbCall(call.row, env.close).in_thread(self.awaited)
            except BaseException as raised:
                _log_close(call.row, raised)
            return
        self._settle(call, error, recovery)

    def _settle(self, call: EnvCall, error: BaseException | None, recovery: Recovery) -> None:
        if recovery.settle(call, error):
            self.thread.call_soon(self._close_soon, call.row)

    async def _remake(self, remake: Remake, recovery: Recovery) -> None:
        """Closes a row's env, where that has not been left behind, and makes another."""
        row = remake.row
        if row not in self._left and row not in self._closers:
            self._close_soon(row)
            await _wait([self._closers[row]])
            error = self.close_errors.pop(row, None)
            if error is not None:
                _log_close(row, error)
        made = self._makers[row]()
        assert recovery.rows is not None
        recovery.rows.accept(remake, await made if is_awaitable(made) else made)

    @property
    def is_ending(self) -> bool:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        return self._is_ending or self._is_closing

    def begin_remaking(self, remake: Remake) -> None:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        self.start([remake])

    def go_on(self, rest: RowCall) -> None:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        self.start([rest])

    def install(self, remake: Remake) -> None:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        row, env = remake.row, remake.env
        self._threads[row] = None
        self._thread_of(row, env)
        self.envs[row] = env
        self._left.discard(row)
        self._closers.pop(row, None)
        self.closed.discard(row)

    def close_made(self, remake: Remake) -> None:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        if remake.made is not None:
            self.thread.call_soon(self._close_left, remake.row, remake.made)

    def _close_left(self, row: int, env: Any) -> None:
        task = self.thread.loop.create_task(_close_quietly(row, env))
        self._left_tasks.add(task)
        task.add_done_callback(self._left_tasks.discard)

    def waiting(self, seconds: float) -> list[RowCall]:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`: those of a loop that something blocks."""
        now = perf_counter()
        self._waiting = {call: self._waiting.get(call, now) for call in self._inbox.copy()}
        late = [call for call, since in self._waiting.items() if now - since >= seconds]
        return [call for call in late if isinstance(call, RowCall)]

    def take_back(self, call: RowCall) -> bool:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        try:
            self._inbox.remove(call)
        except ValueError:  # the loop has it now
            return False
        return True

    def leave_behind(self, todo: EnvCall) -> Callable[[], None]:
        """See :class:`~gymbridge.engine.recovery.RecoveringService`."""
        row = todo.row
        with suppress(ValueError):
            self._inbox.remove(todo)
        if isinstance(todo, Remake):
            return partial(self.thread.call_soon, self._cancel_left, todo, None)
        env, thread = self.envs[row], self._threads[row]
        if thread is not None:
            self._left.add(row)
            return thread.end
        if todo not in self._under_way:  # its env is idle
            return partial(self.thread.call_soon, self._close_idle, row, env)
        self._left.add(row)
        return partial(self.thread.call_soon, self._cancel_left, todo, env)

    def _close_idle(self, row: int, env: Any) -> None:
        if self.envs[row] is env:  # else another has its place, and it is closed
            self._close_soon(row)

    def _cancel_left(self, todo: EnvCall, env: Any) -> None:
        """On the loop: has an env, or what was made late, closed once what awaits it has come to its end."""
        task = self._under_way.pop(todo, None)
        if task is not None:
            task.cancel()
            self._left_tasks.add(task)
            task.add_done_callback(partial(self._come_back, todo, env))

    def _come_back(self, todo: EnvCall, env: Any, task: asyncio.Task[None]) -> None:
        self._left_tasks.discard(task)
        if not isinstance(todo, Remake):
            self._close_left(todo.row, env)
        elif todo.made is not None:
            self._close_left(todo.row, todo.made)

    def is_under_way(self, call: EnvCall) -> bool:
        """Whether a call has been started; it may have come to its end since."""
        if any(call in known for known in (self._inbox.copy(), self._given, self._in_hand, self._under_way)):
            return True
        return self.recovery is not None and self.recovery.is_recovering(call)  # last: it comes to that from there

    def take_up(self) -> None:
        """Has calls made that an interrupt has kept from the loop's notice, or a thread's."""
        for call in [*self._given]:
            thread = self._threads[call.row]
            if thread is not None:
                thread.put(call)
        self.thread.call_soon(self._begin)

    # ---------------------------------------------------------------- the end

    async def close_all(self, deadline: float | None) -> list[int]:
        """Closes each env once its call has been made.

        Calls that are awaited are cancelled at the deadline; their envs are closed too, if that does not take long.

        Returns:
            The rows that were not closed by the deadline, but for those that were dead before.
        """
        self._is_closing = True
        dead = {*self.dead}
        for row in self.envs:
            self._close_soon(row)
        running = {row: task for row, task in self._closers.items() if not task.done()}
        await _wait(running.values(), None if deadline is None else max(0.0, deadline - perf_counter()))
        late = {row: task for row, task in running.items() if not task.done()}
        if late:
            self._cancel_calls(late)
            on_loop = [task for row, task in late.items() if self.is_on_loop(row)]
            await _wait(on_loop, _SECONDS_TO_CANCEL)
            for task in late.values():
                task.cancel()
        return sorted({*late} - dead)

    def _cancel_calls(self, rows: Container[int]) -> None:
        for call, task in [*self._under_way.items()]:
            if call.row in rows:
                task.add_done_callback(partial(self._note_cancelled, call))
                task.cancel()

    def _note_cancelled(self, call: EnvCall, task: asyncio.Task[None]) -> None:
        """One that was cancelled before it began has not said so itself."""
        if self._under_way.pop(call, None) is not None:
            if self.recovery is not None:
                self.recovery.end(call)
                self._settle(call, asyncio.CancelledError(), self.recovery)
                return
            call.error = asyncio.CancelledError()
            self._note_end(call)

    def _close_soon(self, row: int) -> None:
        if row not in self._closers and row not in self._left:
            self._closers[row] = self.thread.loop.create_task(self._close(row))

    async def _close(self, row: int) -> None:
        """Closes an env once its call has been made."""
        env = self.envs[row]
        call = _Closing(row, env.close)
        thread = self._thread_of(row, env)
        if thread is not None:
            ended = self.thread.loop.create_future()
            call.arrivals = _Telling(self.thread, ended)  # type: ignore[assignment]
            thread.put(call)
            thread.end()
            await ended
        else:
            under_way = [each for each in self._under_way.items() if not isinstance(each[0], Remake)]
            await _wait([task for other, task in under_way if other.row == row])
            try:
                await call.on_loop()
            except BaseException as error:
                call.error = error
        if isinstance(call.error, Exception) and not isinstance(call.error, WorkerDiedError):
            self.close_errors[row] = call.error
        if self._closers.get(row) is asyncio.current_task():  # else another env has its place
            self.closed.add(row)

    def release(self) -> None:
        """Ends all without waiting; called in whichever thread."""
        if self.recovery is not None:
            self.recovery.stop()
        if not self._is_ending:
            self._is_ending = True
            self.thread.call_soon(self._end_soon)

    def _end_soon(self) -> None:
        self._ending = self.thread.loop.create_task(self._end())

    async def _end(self) -> None:
        """Cancels what is under way, closes the envs that are open, and stops the loop."""
        try:
            self._cancel_calls(range(self._num_rows))
            for task in self._making:
                task.cancel()
            await self.close_all(perf_counter() + _SECONDS_TO_CANCEL)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for other in others:
                other.cancel()
            await _wait(others, _SECONDS_TO_CANCEL)
            await _wait(self._left_tasks - others, _SECONDS_TO_CANCEL)  # closings of what these have let go of
        finally:
            self.thread.stop()


class _Closing(VerbCall):
    """Closes an env; what would end a program ends none."""

    __slots__ = ()

    def in_thread(self, awaited: Await) -> None:
        try:
            super().in_thread(awaited)
        except Exception:
            raise
        except BaseException:
            pass


class _EnvThread:
    """The thread of a plain env: a daemon that makes the env's calls, one after the other."""

    def __init__(self, row: int, prepare: Callable[[], None], make_call: Callable[[EnvCall], None]):
        self._calls: SimpleQueue[EnvCall | None] = SimpleQueue()
        self.put = self._calls.put
        thread = threading.Thread(
            target=_make_calls, args=(self._calls, prepare, make_call), name=_name(f"env-{row}"), daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            raise WorkerStartError(f"env {row}: {error}") from error

    def end(self) -> None:
        """Has it end once it has made the calls that it was given."""
        self._calls.put(None)


def _make_calls(
    calls: SimpleQueue[EnvCall | None], prepare: Callable[[], None], make_call: Callable[[EnvCall], None]
) -> None:
    prepare()
    while (call := calls.get()) is not None:
        make_call(call)
        del call  # what it gave is not to be kept until the next one comes


class _Telling:
    """In place of arrivals: has a future of the loop know of the end of a call."""

    def __init__(self, thread: LoopThread, ended: asyncio.Future[None]):
        self._thread = thread
        self._ended = ended

    def add(self, call: EnvCall) -> None:
        self._thread.call_soon(self._tell)

    def _tell(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


async def _wait(tasks: Iterable[asyncio.Task[Any]], timeout: float | None = None) -> None:
    """Waits until tasks have ended, however; at most for ``timeout`` seconds."""
    tasks = [*tasks]
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)


async def _close_quietly(row: int, env: Any) -> None:
    """Closes an env of which nobody is told how that goes."""
    try:
        closing = env.close()
        if is_awaitable(closing):
            await closing
    except BaseException as error:
        _log_close(row, error)


def _log_close(row: int, error: BaseException) -> None:
    _logger.warning("env %d, in whose place another was made: its close raised %s", row, repr(error))


def _name(what: str) -> str:
    return f"gymbridge-asyncio-{what}"


def _nothing() -> None:
    """Nothing."""
