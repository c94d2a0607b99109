"""Calls whose env dies or takes too long, in this process: the env is made anew where it may be, and the call goes on.

::

    a call ──► it ends ──────────────────────────────────────────────────────────► its arrivals are told
       │                                                                               ▲       ▲
       └─► its env raises what ends a program, or takes too long (it is left behind)   │       │
                │                                                                      │       │
                ├─► it may not be made anew: the row is dead ──────────────────────────┘       │
                └─► a Remake ──► the env is there ──► what is left of the call: a reset ───────┘
                       └─► ... it dies, or takes too long: again, or the call has the error

So who waits for a call waits for all of that, and nobody else does. A thread watches what may take only so long. Who
gets a call out of ``watched`` says how it ends: the one that has made it, or that thread. No caller's thread holds a
lock here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any, Protocol

from gymbridge.engine.call_crew import death_of
from gymbridge.engine.env_calls import EnvCall, RowCall, VerbCall
from gymbridge.engine.failures import mark_error
from gymbridge.engine.remade_rows import RemadeRows, Remake
from gymbridge.engine.restarts import Restarts
from gymbridge.errors import WorkerDiedError, WorkerStartError, WorkerTimeoutError

__all__ = ["Recovery", "Revival", "recovery_of"]

_logger = logging.getLogger(__name__)

_NAME = "gymbridge-watch"

_LOOKS = 8
"""So often in the shortest time that something may take it is looked at: it is seen an eighth later at most."""


class Revival(EnvCall):
    """Asks for the env of a row that is dead to be made anew; the env is not called."""

    __slots__ = ()

    async def on_loop(self) -> None:
        """See :class:`~gymbridge.engine.env_calls.EnvCall`."""

    def in_thread(self, awaited: Any) -> None:
        """See :class:`~gymbridge.engine.env_calls.EnvCall`."""


class RecoveringService(Protocol):
    """What calls the envs, as a recovery sees it.

    Attributes:
        dead: row -> what its death is told with.
        is_ending: no env is to be made any more.
    """

    dead: dict[int, WorkerDiedError]

    @property
    def is_ending(self) -> bool: ...

    def begin_remaking(self, remake: Remake) -> None:
        """Has an env made anew."""

    def install(self, remake: Remake) -> None:
        """Has the env that was made called from now on."""

    def go_on(self, rest: RowCall) -> None:
        """Has a call made of the env that was made."""

    def leave_behind(self, todo: EnvCall) -> Callable[[], None]:
        """Does without what makes a call, which closes the env, or what it has made, once it comes back.

        Returns:
            What forgets it, to be called once what becomes of its row is known.
        """

    def waiting(self, seconds: float) -> list[RowCall]:
        """The calls that nothing has begun with for so long."""

    def take_back(self, call: RowCall) -> bool:
        """Takes one of these away: nobody else has it then."""

    def close_made(self, remake: Remake) -> None:
        """Closes what was made and is not taken up; nobody is told how that goes."""

    def tell_end(self, call: EnvCall) -> None:
        """Has a call's arrivals know that it has come to its end."""


def recovery_of(
    service: RecoveringService, step_timeout: float | None, start_timeout: float | None, restarts: Restarts | None
) -> Recovery | None:
    """The recovery of a service; None where envs may take any time and none is made anew."""
    restarts = Restarts(None) if restarts is None else restarts
    if step_timeout is None and restarts.limit is None:
        return None
    return Recovery(service, step_timeout, start_timeout, restarts)


class Recovery:
    """Watches calls, and sees to those whose env dies or takes too long.

    Args:
        service: what makes the calls.
        step_timeout: seconds that a step or a reset may take; None for no limit.
        start_timeout: seconds in which an env is to be made anew; None for no limit.
        restarts: counts, and knows how many may be.

    Attributes:
        rows: how envs are made anew, once that is known; None where none is.
        timeouts: how many calls were given up since their env took too long.
        watched: what is being done and may take only so long -> the seconds.
    """

    def __init__(
        self,
        service: RecoveringService,
        step_timeout: float | None,
        start_timeout: float | None,
        restarts: Restarts,
    ):
        self.rows: RemadeRows | None = None
        self.timeouts = 0
        self._service = service
        self._step_timeout = step_timeout
        self._start_timeout = float("inf") if start_timeout is None else start_timeout
        self._restarts = restarts
        self._counting = threading.Lock()  # taken by what makes calls only
        self.watched: dict[EnvCall, float] = {}
        self._origins: dict[EnvCall, EnvCall] = {}
        """What is done, or to be done, of a call in place of it -> the call."""
        self._in_doubt: EnvCall | None = None
        """What is about to be given up: for a moment nothing else tells that its call has not come to its end."""
        self._end_bell = threading.Lock()
        self._end_bell.acquire()
        limits = [step_timeout] if step_timeout is not None else []
        limits += [start_timeout] if start_timeout is not None and restarts.limit is not None else []
        if limits:
            watch = threading.Thread(target=self._watch, args=(min(limits) / _LOOKS,), name=_NAME, daemon=True)
            try:
                watch.start()
            except RuntimeError as error:
                raise WorkerStartError(f"what watches the envs: {error}") from error

    # ---------------------------------------------------------------- for who makes calls

    def begin(self, todo: EnvCall) -> bool:
        """A call is about to be made; whether it is watched: ``end`` is to be asked then."""
        if isinstance(todo, RowCall):
            if self._step_timeout is None:
                return False
            todo.begun_at = perf_counter()
            self.watched[todo] = self._step_timeout
            return True
        return isinstance(todo, Remake)  # since it was asked for

    def end(self, todo: EnvCall) -> bool:
        """A call has been made that is watched; False where it has been given up: it is nobody's then."""
        return self.watched.pop(todo, None) is not None

    @property
    def is_calm(self) -> bool:
        """Whether there is nothing but usual calls: one that has raised nothing has come to its end."""
        return not self._origins and not self._service.dead  # each other call is there, or its row is

    def settle(self, todo: EnvCall, error: BaseException | None) -> bool:
        """What becomes of a call that has been made and not been given up.

        Args:
            error: what it raised.

        Returns:
            Whether its row is dead now.
        """
        if error is None and self.is_calm:
            self._service.tell_end(todo)
            return False
        if error is not None and not isinstance(error, Exception):
            return self._bury(todo, death_of(todo.row, error))
        if isinstance(todo, Remake):
            self._settle_remake(todo, error)
        elif isinstance(todo, Revival) and todo.row in self._service.dead:
            return self._bury(todo, self._service.dead[todo.row])
        else:
            todo.error = error
            self._note_end(todo)
        return False

    def fail(self, todo: EnvCall, error: Exception) -> None:
        """Ends a call, or the one for which this is done, with an error."""
        self.watched.pop(todo, None)
        call = self._origins.get(todo, todo)
        call.error = error
        self._service.tell_end(call)
        self._origins.pop(todo, None)

    def is_recovering(self, call: EnvCall) -> bool:
        """Whether something is done, or to be done, in place of a call."""
        in_doubt = self._in_doubt  # first: then it is in the other
        if in_doubt is not None and self._origins.get(in_doubt, in_doubt) is call:
            return True
        return call in [*self._origins.values()]

    def stop(self) -> None:
        """Nothing is given up any more."""
        if self._end_bell.locked():
            with suppress(RuntimeError):  # another has just let go of it
                self._end_bell.release()

    # ---------------------------------------------------------------- deaths

    def _bury(self, todo: EnvCall, death: WorkerDiedError) -> bool:
        """The env of a call is dead: it is made anew, or the call has the error; whether that is so."""
        call, row, rows = self._origins.get(todo, todo), todo.row, self.rows
        self._service.dead[row] = death
        if isinstance(call, VerbCall):  # what it asked for is lost
            call.error = death.again()
        if isinstance(todo, Remake):
            self._service.close_made(todo)
        if rows is None or self._service.is_ending or not self._may_restart(row):
            self.fail(todo, death.again())
            return True
        _logger.warning("%s; the env is made anew", str(death))  # the error would hold the frames of the env
        remake = Remake(row)
        self._origins[remake] = call
        self._origins.pop(todo, None)
        remake.begun_at = perf_counter()
        self.watched[remake] = self._start_timeout
        self._service.begin_remaking(remake)
        return False

    def _may_restart(self, row: int) -> bool:
        with self._counting:
            return self._restarts.allow(row)

    def _settle_remake(self, remake: Remake, error: Exception | None) -> None:
        assert self.rows is not None
        call = self._origins[remake]
        rest: RowCall | None = None
        if error is None and self._service.is_ending:
            error = RuntimeError("the workers are closed")
        if error is None:
            try:
                rest = self.rows.take_up(remake, call)
                self._service.install(remake)
            except Exception as raised:
                error = raised
        if error is not None:
            if not isinstance(error, WorkerStartError):
                mark_error(error, remake.row, f"raised while env {remake.row} was made anew")
            self._service.close_made(remake)
            self.fail(remake, error)
            return
        self._service.dead.pop(remake.row, None)
        if rest is None:
            self._service.tell_end(call)
            self._origins.pop(remake)
        else:
            self._origins[rest] = call
            self._origins.pop(remake)
            self._service.go_on(rest)

    def _note_end(self, todo: EnvCall) -> None:
        call = self._origins.get(todo)
        if call is None:
            self._service.tell_end(todo)
            return
        assert isinstance(todo, RowCall)
        assert isinstance(call, RowCall)  # of others nothing is left
        call.instead = todo
        self._service.tell_end(call)
        self._origins.pop(todo, None)

    # ---------------------------------------------------------------- hangs

    def _watch(self, interval: float) -> None:
        """In a thread: gives up what takes too long, until it is to stop."""
        while not self._end_bell.acquire(timeout=interval):
            for todo in [*self.watched]:
                seconds = self.watched.get(todo)
                if seconds is not None and self._is_late(todo, seconds):
                    self._in_doubt = todo
                    if self.end(todo):
                        self._give_up(todo, seconds)
                    self._in_doubt = None
                del todo  # what it gave is not to be kept until the next look
            if self._step_timeout is not None:
                for call in self._service.waiting(self._step_timeout):
                    self._in_doubt = call
                    if self._service.take_back(call):
                        self._give_up(call, self._step_timeout)
                    self._in_doubt = None
                    del call

    def _is_late(self, todo: EnvCall, seconds: float) -> bool:
        return perf_counter() - todo.begun_at >= seconds

    def _give_up(self, todo: EnvCall, seconds: float) -> None:
        forget = self._service.leave_behind(todo)
        row = todo.row
        if isinstance(todo, RowCall):
            self.timeouts += 1
            death = WorkerTimeoutError(row, (row,), None, seconds, todo.doing)
            _logger.warning("%s: what calls the env is left behind until the env lets it end", str(death))
            self._bury(todo, death)
        else:
            late = WorkerStartError(f"env {row}: it was not made anew within the start timeout of {seconds:g} s")
            _logger.warning("%s: what makes it is left behind", str(late))
            self.fail(todo, late)
        forget()
