"""Ray actors as the workers of an engine: what :mod:`gymbridge.engine.supervision` sees of them is what it sees of
processes.

::

    caller's threads             a thread of Ray's here                        actor: a thread an env
      |  wake(command) ── by a thread that asks Ray: command, mail, row ──────►  obey(...)
      |                            |                                               |
      |                            |  ◄── what the call returns ────────────────── |
      |                            |  writes the row into the block, the mail into
      |  ◄── a byte on a pipe ──── |  the mailbox
      |                            |
      |  ◄── a byte on another ─── |  ◄── the call `stay` has failed: the process is gone

So the waits are the same as those for processes, and so is what follows from a death. What came from an actor is
written by whoever Ray has tell of it, at whatever time; as a process would.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from gymbridge.engine.mailbox import Mailbox
from gymbridge.engine.protocol import Answer, Command
from gymbridge.engine.worker_kinds import ProcessWorkers
from gymbridge.engine.worker_loop import EnvWorker
from gymbridge.engine.workers import WakeEnd
from gymbridge.engine.workers.descriptors import close_all, readable
from gymbridge.engine.workers.pickling import dumps
from gymbridge.engine.workers.registrations import Registrations, registered
from gymbridge.engine.workers.warning_filters import current_filters
from gymbridge.errors import UnpicklableError
from gymbridge.interop.ray_actor import ENDED, MAKE, EnvActor, Reply
from gymbridge.interop.ray_rows import EVERYTHING, Parts, RowBytes

if TYPE_CHECKING:
    from gymbridge.interop.ray_session import RaySession

OVER = "the Ray session is over: this process has called ray.shutdown()"
"""Why nothing more is to be had of Ray."""

__all__ = ["ActorEnd", "RayActor", "RayWorker", "RayWorkers", "how_it_ended"]

_ASIDE = "aside"
"""The thread of an actor in which it is asked for what is no env's business."""

_WITH_MAIL = frozenset({Command.ROUND_WITH_MAIL, Command.DESCRIBE, Command.ALLOCATE, Command.CALL})

_GIVEN = {
    Command.ROUND: Parts.GIVEN,
    Command.ROUND_WITH_MAIL: Parts.GIVEN,
    Command.ALLOCATE: EVERYTHING,
    Command.CALL: EVERYTHING,
}
"""Command -> the parts of the row that go with it."""


class RayWorkers(ProcessWorkers):
    """Workers that Ray runs, several an actor.

    Args:
        together: workers an actor; the last one may have fewer.
        session: with Ray.
        actor_options: of each actor, as Ray's ``options`` takes them.
        **how: see :class:`~gymbridge.engine.worker_kinds.ProcessWorkers`.
    """

    def __init__(self, together: int, session: RaySession, actor_options: dict[str, Any], **how: Any):
        super().__init__(**how)
        self.together = together
        self._session = session
        self._actor_options = actor_options

    @cached_property
    def _registrations(self) -> Registrations:
        return Registrations.of(registered(), known={})

    def start(self, jobs: Sequence[EnvWorker], mailboxes: Sequence[Mailbox], timeout: float | None) -> Iterator[Any]:
        """See :class:`~gymbridge.engine.worker_kinds.ProcessWorkers`."""
        self._session.require_usable()
        for first in range(0, len(jobs), self.together):
            part = slice(first, first + self.together)
            try:
                packed = [dumps(job, f"what worker {first} is to run") for job in jobs[part]]
            except UnpicklableError:
                for job in jobs[part]:
                    for row, maker in enumerate(job.makers, job.first_row):  # which of them is in the way
                        dumps(maker, f"the maker of env {row}")
                raise
            arguments = packed, current_filters(), self._registrations, [*sys.path]
            actor = RayActor(self._session, EnvActor, self._actor_options, len(packed), arguments)
            workers = [RayWorker(actor, ActorEnd(actor, number, own)) for number, own in enumerate(mailboxes[part])]
            for worker in workers:
                worker.wake.signal(MAKE)
            yield from workers


class RayActor:
    """An actor, and what is known of its end.

    Args:
        session: with Ray.
        kind: its class.
        options: Ray's, of the actor.
        num_workers: threads for envs.
        arguments: of its class.

    Attributes:
        has_ended: its process is gone.
        exit_code: that of its process, where it has told that; else None.
        how: how it ended, in words, where it has not.
        open: the workers that have not been closed.
    """

    def __init__(
        self, session: RaySession, kind: type, options: dict[str, Any], num_workers: int, arguments: tuple[Any, ...]
    ):
        self.has_ended = False
        self.exit_code: int | None = None
        self.how = ""
        self.open: set[RayWorker] = set()
        self._session = session
        self._handle: Any = None
        self._lock = threading.RLock()
        self._ends: list[ActorEnd] = []
        self._is_killed = self._is_left = False
        self._pid = os.getpid()
        self._read, self._write = os.pipe()
        threads = [*(f"env{number}" for number in range(num_workers)), _ASIDE]
        self.post(partial(self._create, kind, options, threads, arguments))

    def post(self, request: Callable[[], object]) -> None:
        """Has Ray asked for something; where it cannot be, the actor is gone."""
        self._session.post(partial(self._asked_for, request))

    def _asked_for(self, request: Callable[[], object]) -> None:
        if self.has_ended:
            return
        try:
            self._session.look()
            request()
        except BrokenPipeError as error:
            self.lose(str(error))
        except Exception as error:
            self.lose(f"Ray could not be asked for its actor: {type(error).__name__}: {error}")

    def _create(self, kind: type, options: dict[str, Any], threads: list[str], arguments: tuple[Any, ...]) -> None:
        self._session.watch(self)
        self._handle = self._session.new_actor(kind, options, threads, arguments)
        self._handle.stay.remote().future().add_done_callback(self._stayed)

    def sentinel(self) -> int:
        """A descriptor that is readable once the process is gone; it is the caller's to close."""
        return os.dup(self._read)

    def method(self, worker: int) -> Any:
        """What calls ``obey`` in the thread of a worker."""
        return self._handle.obey.options(concurrency_group=f"env{worker}")

    def require_living(self) -> None:
        """Refuses to call it where nobody would answer.

        Raises:
            BrokenPipeError: it is gone, or has been told to go.
        """
        if self.has_ended or self._is_killed or self._is_left:
            raise BrokenPipeError("the actor is gone")

    def _stayed(self, future: Any) -> None:
        """The process is gone, or what is left of it cannot be reached any more."""
        self.lose(how_it_ended(future.exception()))

    def lose(self, how: str) -> None:
        """Nothing more is to be expected of it.

        Args:
            how: why, in words.
        """
        with self._lock:
            if self.has_ended:
                return
            if self.exit_code is None:
                self.how = self.how or how
            self.has_ended = True
            if self._write >= 0:
                os.write(self._write, b"\0")

    def join(self, timeout: float | None) -> bool:
        """Waits until it has ended, for so many seconds at most; has it?"""
        return self.has_ended or (self._read >= 0 and readable(self._read, timeout))

    def end_with(self, exit_code: int) -> None:
        """An env of it has ended its process, but for the process itself."""
        if self.exit_code is None:
            self.exit_code = exit_code
        self.kill()

    def give_up(self, how: str) -> None:
        """It cannot be relied upon any more."""
        self.how = self.how or how
        self.kill()

    def kill(self) -> None:
        """Ends the process at once; does not wait."""
        self._is_killed = True
        if not self.has_ended and os.getpid() == self._pid:
            self.post(lambda: self._session.kill(self._handle))
            if self._session.is_headless:  # nobody would tell of its end
                self.lose(f"it was to be killed, and {self._session.headless}")

    def ask_at_work(self, worker: int, answer: Callable[[int], object]) -> None:
        """Asks what an env does now.

        Args:
            answer: is given what the actor says to that, if it does.
        """

        def answered(future: Any) -> None:
            if future.exception() is None:
                answer(future.result())

        self.post(lambda: self._aside("at_work", worker).future().add_done_callback(answered))

    def asked(self) -> Any:
        """A future that is done once the actor has answered, whatever its envs do."""
        if self._handle is None:  # Ray has not even begun with it
            return Future[int]()
        return self._aside("at_work", 0).future()

    def _aside(self, method: str, *arguments: Any) -> Any:
        return getattr(self._handle, method).options(concurrency_group=_ASIDE).remote(*arguments)

    def add(self, end: ActorEnd) -> None:
        """It has another worker."""
        self._ends.append(end)

    def note_closed(self) -> None:
        """One of its workers has closed its envs; with the last it is of no use any more."""
        if all(end.is_over for end in self._ends):
            self.kill()

    def release(self) -> None:
        """Nobody uses it any more: it closes its idle envs and ends."""
        if not (self._is_killed or self._is_left or self.has_ended) and os.getpid() == self._pid:
            self._is_left = True
            self.post(lambda: self._aside("leave").future().add_done_callback(lambda _: self.kill()))
        with self._lock:
            read, self._read, write, self._write = self._read, -1, self._write, -1
            close_all((read, write))

    def __del__(self) -> None:
        close_all((self.__dict__.get("_read", -1), self.__dict__.get("_write", -1)))


class ActorEnd(WakeEnd):
    """The caller's end of the wake-ups of one of an actor's workers: what wakes that is a call.

    Args:
        actor: the actor.
        number: the worker's number there.
        mailbox: what goes beside the row; it stays its owner's.

    Attributes:
        row: the worker's row in the block, once there is one.
        is_over: it has closed its envs.
    """

    def __init__(self, actor: RayActor, number: int, mailbox: Mailbox):
        read, self._reply = os.pipe()
        super().__init__(read, -1)
        self._actor = actor
        self._number = number
        self._mailbox = mailbox
        self._obey: Any = None
        self._lock = threading.RLock()
        self._calls: deque[Any] = deque()
        self._guarded = actor.sentinel()
        self.guard(self._guarded)
        self.row: RowBytes | None = None
        self.is_over = False
        actor.add(self)

    def share(self, ours: memoryview, theirs: memoryview, look_seconds: float = 0.0) -> None:
        """See :class:`~gymbridge.engine.workers.wake.WakeEnd`; there is no memory that both see."""
        self.restart()

    def wake(self, byte: int = 0) -> None:
        """See :class:`~gymbridge.engine.workers.wake.WakeEnd`."""
        self.signal(byte)

    def signal(self, byte: int) -> None:
        """See :class:`~gymbridge.engine.workers.wake.WakeEnd`; the row and the mailbox are sent as they are now."""
        self._actor.require_living()
        row, mail, packed = self.row, None, None
        if byte in _WITH_MAIL:
            mail = bytes(self._mailbox.take_packed())
        if row is not None and byte in _GIVEN:
            parts = _GIVEN[Command(byte)]
            packed = row.packed(parts)
            if parts == EVERYTHING:
                row.begin_call()
            else:
                row.begin_round()
        self._actor.post(partial(self._call, int(byte), mail, packed))

    def _call(self, *arguments: Any) -> None:
        if self._obey is None:
            self._obey = self._actor.method(self._number)
        future = self._obey.remote(self._number, *arguments).future()
        with self._lock:
            self._calls.append(future)
        future.add_done_callback(self._take_up)

    def _take_up(self, _: Any) -> None:
        """Takes what calls have returned, in the order in which they were made."""
        with self._lock:
            while self._calls and self._calls[0].done():
                future = self._calls.popleft()
                try:
                    self._answer(future)
                except Exception as error:
                    self._actor.give_up(f"what it gave could not be taken: {error!r}")

    def _answer(self, future: Any) -> None:
        error = future.exception()
        if error is not None:
            self._actor.give_up(how_it_ended(error))
            return
        reply: Reply = future.result()
        answer, mail, parts, packed = reply
        if answer == ENDED:
            self._actor.end_with(parts)
            return
        if self._reply < 0:  # nobody waits for it any more
            return
        if self.row is not None:
            if packed is not None:
                self.row.take(Parts(parts), packed)
            self.row.end(perf_counter())
        if mail is not None:
            self._mailbox.put(mail)
        os.write(self._reply, bytes([answer]))
        if answer == Answer.CLOSED:
            self.is_over = True
            self._actor.note_closed()

    def ask_at_work(self) -> None:
        """Has the row say what its env does now, once the actor has answered."""
        self._actor.ask_at_work(self._number, self._set_at_work)

    def _set_at_work(self, at_work: int) -> None:
        with self._lock:
            if self.row is not None and self._calls:
                self.row.set_at_work(at_work)

    def close(self) -> None:
        """See :class:`~gymbridge.engine.workers.wake.WakeEnd`; what is returned later is dropped."""
        with self._lock:
            super().close()
            self.row = None  # which holds the block, and Ray holds this until the actor is gone
            reply, self._reply, guarded, self._guarded = self._reply, -1, self._guarded, -1
            close_all((reply, guarded))

    def __del__(self) -> None:
        if hasattr(self, "is_over"):
            self.close()


class RayWorker:
    """One of an actor's workers; see :class:`~gymbridge.engine.workers.share.WorkerShare`, which it is like.

    Attributes:
        wake: its wake-ups; its waits end when the actor dies.
        connection: takes what processes are sent beside wake-ups, to no purpose.
        stderr_tail: empty: what actors write goes where Ray has it go.
    """

    stderr_tail = ""

    def __init__(self, actor: RayActor, wake: ActorEnd):
        self._actor = actor
        self.wake = wake
        self.connection = _NoConnection()
        actor.open.add(self)

    @property
    def how(self) -> str:
        """How the actor ended, in words; empty where its exit code is known."""
        return self._actor.how if self._actor.exit_code is None else ""

    @property
    def is_alive(self) -> bool:
        """Has the actor not ended?"""
        return not self._actor.has_ended

    def exit_status(self, timeout: float | None = None) -> int | None:
        """The exit code of the actor's process; None where that is not known, or it still runs after a time."""
        self._actor.join(timeout)
        return self._actor.exit_code

    def join(self, timeout: float | None = None) -> bool:
        """Waits until the actor has ended, for ``timeout`` seconds at most; has it?"""
        return self._actor.join(timeout)

    def abort(self, timeout: float) -> None:
        """Kills the actor."""
        self.kill()

    def kill(self) -> None:
        """Kills the actor, and so its other workers too."""
        self._actor.kill()

    def close(self) -> None:
        """Closes its wake-ups, and with the last of them lets go of the actor; does not wait."""
        self.wake.close()
        self._actor.open.discard(self)
        if not self._actor.open:
            self._actor.release()


class _NoConnection:
    """In place of the slow lane of a process."""

    def send_descriptors(self, to_send: Sequence[int]) -> None:
        """An actor has no use for them."""

    def poll(self) -> bool:
        """Nothing comes this way."""
        return False


_REASON = re.compile(r"The actor (?:is dead because|died because) .*", re.DOTALL)


def how_it_ended(error: BaseException | None) -> str:
    """Why an actor is gone, in Ray's words, without its advice.

    Example:
        >>> how_it_ended(RuntimeError("The actor is dead because of a storm. Some common causes are clouds."))
        'its Ray actor is gone (RuntimeError): The actor is dead because of a storm.'
    """
    if error is None:
        return "its Ray actor has returned"
    text = str(error).strip()
    found = _REASON.search(text)
    reason = " ".join((found[0] if found else text).partition(" Some common causes")[0].split())
    return f"its Ray actor is gone ({type(error).__name__}): {reason}"
