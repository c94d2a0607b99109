"""What a Ray actor of a pool does: makes its envs and runs them, each in a thread of its own.

An actor is one worker process of :class:`~gymbridge.engine.env_threads.EnvThreads`' kind: it has several workers, each
with one env, which obey the commands that workers of processes do. A command comes as a call with what goes with it,
and what is answered is what the call returns. Calls of one worker come one after the other, in one thread.

Nothing here imports Ray.
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gymbridge.engine.mailbox import packed_for_caller
from gymbridge.engine.protocol import Allocation, Answer, Command
from gymbridge.engine.remote_errors import ToldError
from gymbridge.engine.worker_loop import EnvService, EnvWorker
from gymbridge.engine.workers.pickling import loads
from gymbridge.engine.workers.registrations import Registrations, expect_ids_again
from gymbridge.engine.workers.surroundings import reseed
from gymbridge.engine.workers.warning_filters import WarningFilter, set_filters
from gymbridge.engine.workers.worker_main import exit_code_after
from gymbridge.errors import WorkerStartError
from gymbridge.interop.ray_rows import EVERYTHING, Parts, RowBytes

__all__ = ["ENDED", "MAKE", "EnvActor", "Reply"]

MAKE = -1
"""The command to make the env, before any other."""

ENDED = -1
"""The answer of an env that would end its process: its exit code stands where otherwise the parts of the row do."""

Reply = tuple[int, bytes | None, int, bytes | None]
"""The answer, what is beside the row, and which parts of the row are which bytes."""


class EnvActor:
    """Several envs in a process that Ray starts.

    Args:
        jobs: what each worker runs, pickled: an :class:`~gymbridge.engine.worker_loop.EnvWorker`.
        warnings_filters: those of the caller.
        registrations: the caller's gymnasium ids.
        path: the caller's ``sys.path``: what of it this machine has is looked at last.
    """

    def __init__(
        self,
        jobs: Sequence[bytes],
        warnings_filters: Sequence[WarningFilter],
        registrations: Registrations,
        path: Sequence[str],
    ):
        reseed()
        sys.path.extend(folder for folder in path if folder not in sys.path and os.path.exists(folder))
        set_filters(list(warnings_filters))
        expect_ids_again()
        registrations.apply()
        self._workers = [_Worker(job) for job in jobs]
        self._setting_up = threading.Lock()
        self._is_set_up = False
        self._end = threading.Event()

    def obey(self, worker: int, command: int, mail: bytes | None, row: bytes | None) -> Reply:
        """Has a worker do what its caller asks.

        Args:
            worker: its number here.
            command: a :class:`~gymbridge.engine.protocol.Command`, a byte to be given back, or ``MAKE``.
            mail: what goes with it beside the row.
            row: the parts of the row that go with it.
        """
        own = self._workers[worker]
        with own.at_work:
            try:
                if command == MAKE:
                    return self._made(own)
                return own.obey(command, mail, row)
            except BaseException as error:
                ended_with = exit_code_after(error)
        self.leave()
        return ENDED, None, ended_with, None

    def _made(self, worker: _Worker) -> Reply:
        try:
            job: EnvWorker = pickle.loads(worker.job)
        except Exception as error:
            what = f"the actor could not read what it is to run: {type(error).__name__}: {error}"
            told = ToldError.of(error)._replace(whole=None, parts=None)
            failure = WorkerStartError(f"{what}\n\nIn the actor:\n{told.remote_traceback}")
            return int(Answer.FAILED), packed_for_caller((ToldError.of(failure), None), "an error"), 0, None
        with self._setting_up:
            if not self._is_set_up:
                self._is_set_up = True
                job.set_up_torch()
        return worker.make(job)

    def at_work(self, worker: int) -> int:
        """What a worker does now; see :class:`~gymbridge.engine.codes.AtWork`."""
        service = self._workers[worker].service
        return 0 if service is None else service.at_work

    def leave(self) -> None:
        """Closes the envs that have nothing to do: the process is about to be ended."""
        for worker in self._workers:
            if worker.at_work.acquire(blocking=False):
                try:
                    if worker.service is not None:
                        worker.service.end()
                finally:
                    worker.at_work.release()

    def stay(self) -> None:
        """Never returns: who waits for it hears of the end of the process."""
        self._end.wait()


class _Worker:
    """A worker of the actor: the envs of one job, and what comes and goes with the call that is under way.

    Attributes:
        job: what it runs, pickled.
        at_work: held while it does something.
        service: the envs; None before they are made.
    """

    def __init__(self, job: bytes):
        self.job = job
        self.at_work = threading.Lock()
        self.service: EnvService | None = None
        self._side = _Side()

    def make(self, job: EnvWorker) -> Reply:
        self.service = job.service_in(self._side)
        if self.service is not None:
            self.service.begin()
        return self._side.reply(None)

    def obey(self, command: int, mail: bytes | None, row: bytes | None) -> Reply:
        side, service = self._side, self.service
        if service is None:  # its maker has failed
            is_end = command == Command.CLOSE
            return (
                (int(Answer.CLOSED), packed_for_caller(None, "no error"), 0, None)
                if is_end
                else (command, None, 0, None)
            )
        side.mailbox.given = mail
        is_round = command in (Command.ROUND, Command.ROUND_WITH_MAIL)
        if command == Command.ALLOCATE:
            side.allocate()
        if row is not None and side.row is not None:
            side.row.take(Parts.GIVEN if is_round else EVERYTHING, row)
        service.obey(command)
        if side.row is None or command not in _WITH_ROW:
            return side.reply(None)
        return side.reply(side.row.written if is_round else EVERYTHING)


_WITH_ROW = frozenset({Command.ROUND, Command.ROUND_WITH_MAIL, Command.ALLOCATE, Command.CALL})
"""Commands that change the row."""


class _Side:
    """A worker's end of what connects it with its caller; see :class:`~gymbridge.engine.worker_loop.Side`."""

    def __init__(self) -> None:
        self.mailbox = _Mail()
        self.wake = _Answers()
        self.row: RowBytes | None = None
        self._memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    def allocate(self) -> None:
        """Has memory as large as the caller's, of which the row's part alone is touched: the rest takes up none."""
        allocation: Allocation = self.mailbox.take()
        self._memory = np.frombuffer(mmap.mmap(-1, max(allocation.nbytes, 1)), np.uint8, allocation.nbytes)
        self.row = RowBytes(allocation.layout, self._memory)

    def packed(self, message: Any, what: str) -> bytes:
        """See :class:`~gymbridge.engine.worker_loop.Side`."""
        return packed_for_caller(message, what)

    def received_memory(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """See :class:`~gymbridge.engine.worker_loop.Side`."""
        return self._memory

    def reply(self, parts: Parts | None) -> Reply:
        """What goes back, with these parts of the row."""
        answer, mail = self.wake.byte, self.mailbox.left
        self.mailbox.given = self.mailbox.left = None
        if parts is None or self.row is None:
            return answer, mail, 0, None
        return answer, mail, int(parts), self.row.packed(parts)


class _Mail:
    """The messages that come and go with a call."""

    def __init__(self) -> None:
        self.given: bytes | None = None
        self.left: bytes | None = None

    def take(self) -> Any:
        """What came with the call."""
        return loads(self.given or b"")

    def put(self, packed: bytes) -> None:
        """Goes back with it."""
        self.left = packed


class _Answers:
    """The answer to a call: the last one counts."""

    byte = -1

    def wait(self, timeout: float | None = None) -> int | None:
        """Commands come as calls."""
        raise NotImplementedError

    def wake(self, byte: int = 0) -> None:
        """Answers."""
        self.byte = int(byte)

    signal = wake

    def restart(self) -> None:
        """Nothing is counted."""

    def share(self, ours: memoryview, theirs: memoryview, look_seconds: float) -> None:
        """Nothing is looked at."""
