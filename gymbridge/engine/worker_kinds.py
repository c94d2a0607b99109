"""Where an engine's workers run, and all that follows from it: what starts them, wakes them and carries messages.

Worker processes are woken by bytes on pipes, and are sent pickled copies; several workers may be threads of one
process, which changes nothing for who wakes them, but that they end together. Threads of this process are woken by what
lies in their queue, and are handed the objects themselves; where the two sides go on at the same time with what both
would have, one of them gets a copy, which is said here.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gymbridge.engine.copies import copied
from gymbridge.engine.env_threads import EnvThreads
from gymbridge.engine.layout import ALIGNMENT
from gymbridge.engine.mailbox import Mailbox, packed_for_worker
from gymbridge.engine.protocol import RoundMail
from gymbridge.engine.shared_memory import MemoryKind, SharedBytes
from gymbridge.engine.worker_loop import EnvWorker
from gymbridge.engine.workers import (
    Job,
    ReadyEnds,
    ReadyThreads,
    StartMethod,
    Surroundings,
    WakeGroup,
    WorkerProcess,
    WorkerShare,
    WorkerThread,
    WorkerThreadEnd,
    shares_of,
    start_worker,
)
from gymbridge.engine.workers.pickling import dumps
from gymbridge.engine.workers.thread_wake import ThreadGroup
from gymbridge.errors import UnpicklableError

__all__ = ["Memory", "ProcessWorkers", "SharedProcessWorkers", "ThreadWorkers", "Worker", "WorkerKind"]


class Worker(Protocol):
    """A worker as the one who started it sees it."""

    @property
    def wake(self) -> Any:
        """This side's end: a :class:`~gymbridge.engine.workers.wake.WakeEnd`, or what a thread has in its place."""

    @property
    def error(self) -> BaseException | None:
        """What ended it, if that is known here."""

    @property
    def is_alive(self) -> bool:
        """Has it not ended?"""

    def exit_status(self, timeout: float | None = None) -> int | None:
        """Waits until it has ended; how, or None if it still runs."""

    def join(self, timeout: float | None = None) -> bool:
        """Waits until it has ended; has it?"""

    def kill(self) -> None:
        """Ends it at once, if it can be."""

    def close(self) -> None:
        """Lets go of it; one that waits for commands ends then."""


class Memory(Protocol):
    """The memory of a block."""

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """``[nbytes]``, all zeros at first."""

    def close(self) -> None:
        """Lets go of it; arrays over it stay as they are."""


class WorkerKind(Protocol):
    """What an engine and its crew ask of the place where the workers run.

    Attributes:
        fate: what becomes of workers that do not end in time, in words.
        ends_by_force: they can be made to end.
        together: so many, in the order of their numbers, are one process: what ends one of them ends all.
    """

    fate: str
    ends_by_force: bool
    together: int

    def mailbox(self) -> Any:
        """A mailbox for one worker, with ``put``, ``take`` and ``close``."""

    def start(self, jobs: Sequence[EnvWorker], mailboxes: Sequence[Any], timeout: float | None) -> Iterator[Worker]:
        """Starts a worker for each job, numbered from 0; each is had once it is started, and the next is only then.

        Raises:
            UnpicklableError: a job cannot be sent.
            WorkerStartError: there can be no such worker.
        """

    def group(self, ends: Sequence[Any]) -> Any:
        """Waits for several workers: a :class:`~gymbridge.engine.workers.wake.WakeGroup`, or its like."""

    def ready_ends(self, ends: Sequence[Any]) -> Any:
        """Tells which have answered: a :class:`~gymbridge.engine.workers.wake.ReadyEnds`, or its like."""

    def packed(self, message: Any, what: str) -> Any:
        """A message as the mailbox takes it, of which the caller waits for the answer.

        Raises:
            UnpicklableError: it cannot be sent; the message names it ``what``.
        """

    def packed_round(self, mail: RoundMail, what: str) -> Any:
        """What a round is given, as the mailbox takes it; what the caller does with it later, the worker never sees."""

    def memory(self, nbytes: int) -> Memory:
        """Memory for a block."""

    def hand_over(self, memory: Any, worker: Any) -> None:
        """Gives the memory to a worker, before the command that has it taken."""

    def died_at_start(self, worker: Any) -> None:
        """Raises why a worker ended before it served, if it left word of it."""


class ProcessWorkers:
    """Worker processes.

    Args:
        method, daemon, preload: see :func:`~gymbridge.engine.workers.start.start_worker`.
        memory: see :meth:`~gymbridge.engine.shared_memory.SharedBytes.allocate`.
        environ: variables that the workers have otherwise than this process.
    """

    fate = "were killed"
    ends_by_force = True

    together = 1

    def __init__(
        self,
        *,
        method: StartMethod | None,
        daemon: bool,
        memory: MemoryKind | None,
        environ: dict[str, str | None],
        preload: Sequence[str],
    ):
        self._method = method
        self._daemon = daemon
        self._memory_kind = memory
        self._preload = preload
        self._environ = environ

    @cached_property
    def _surroundings(self) -> Surroundings:
        """What all of an engine's workers take over, as it is when the first is started."""
        return Surroundings.now(self._environ)

    def mailbox(self) -> Mailbox:
        """See :class:`WorkerKind`."""
        return Mailbox.create()

    def start(self, jobs: Sequence[EnvWorker], mailboxes: Sequence[Mailbox], timeout: float | None) -> Iterator[Worker]:
        """See :class:`WorkerKind`."""
        for number, (job, mailbox) in enumerate(zip(jobs, mailboxes, strict=True)):
            # a duplicate: where the worker is a fork of this process, the crew's own is closed there
            mail = os.dup(mailbox.descriptor)
            try:
                worker = self._started(number, job, [job], [mail], timeout)
            finally:
                os.close(mail)
            yield worker

    def _started(
        self, number: int, job: Job, parts: Sequence[EnvWorker], passed: Sequence[int], timeout: float | None
    ) -> WorkerProcess:
        """A process that runs a job, which is made of parts."""
        try:
            return start_worker(
                job,
                method=self._method,
                surroundings=self._surroundings,
                pass_descriptors=passed,
                daemon=self._daemon,
                timeout=timeout,
                preload=self._preload,
                what=f"what worker {number} is to run",
            )
        except UnpicklableError:
            for part in parts:
                for row, maker in enumerate(part.makers, part.first_row):  # which of them is in the way
                    dumps(maker, f"the maker of env {row}")
            raise

    def group(self, ends: Sequence[Any]) -> WakeGroup:
        """See :class:`WorkerKind`."""
        return WakeGroup(ends)

    def ready_ends(self, ends: Sequence[Any]) -> ReadyEnds:
        """See :class:`WorkerKind`."""
        return ReadyEnds(ends)

    packed = staticmethod(packed_for_worker)
    packed_round = staticmethod(packed_for_worker)

    def memory(self, nbytes: int) -> SharedBytes:
        """See :class:`WorkerKind`."""
        return SharedBytes.allocate(nbytes, self._memory_kind)

    def hand_over(self, memory: SharedBytes, worker: WorkerProcess | WorkerShare) -> None:
        """See :class:`WorkerKind`; the descriptor goes over the worker's connection."""
        memory.send(worker.connection)

    def died_at_start(self, worker: WorkerProcess | WorkerShare) -> None:
        """See :class:`WorkerKind`."""
        with suppress(EOFError, OSError):
            if worker.connection.poll():
                worker.connection.recv()  # raises what the worker could not read


class SharedProcessWorkers(ProcessWorkers):
    """Worker processes, each of which is several workers that run in its threads.

    Args:
        together: workers a process; the last process may have fewer.
        **how: see :class:`ProcessWorkers`.
    """

    def __init__(self, together: int, **how: Any):
        super().__init__(**how)
        self.together = together

    def start(self, jobs: Sequence[EnvWorker], mailboxes: Sequence[Mailbox], timeout: float | None) -> Iterator[Worker]:
        """See :class:`WorkerKind`."""
        for number, first in enumerate(range(0, len(jobs), self.together)):
            part = slice(first, first + self.together)
            process = self._started(number, EnvThreads(jobs[part]), jobs[part], [], timeout)
            yield from shares_of(process, [[mailbox.descriptor] for mailbox in mailboxes[part]])


class ThreadWorkers:
    """Threads of this process.

    What an env gives (infos, answers, exceptions) reaches the caller as the very object, and so do the arguments of
    calls reach the env: the caller waits meanwhile. Copied are what a round is given, as far as it is arrays, dicts,
    lists and tuples, since the caller may write to them while the env runs; and what envs say of themselves, since a
    space is drawn from by both sides.
    """

    fate = "were left behind: they end when their envs let them"
    ends_by_force = False
    together = 1

    def mailbox(self) -> _Handed:
        """See :class:`WorkerKind`."""
        return _Handed()

    def start(self, jobs: Sequence[EnvWorker], mailboxes: Sequence[_Handed], timeout: float | None) -> Iterator[Worker]:
        """See :class:`WorkerKind`."""
        for number, (job, mailbox) in enumerate(zip(jobs, mailboxes, strict=True)):
            yield WorkerThread(number, partial(_run_in_thread, job, mailbox))

    def group(self, ends: Sequence[Any]) -> ThreadGroup:
        """See :class:`WorkerKind`."""
        return ThreadGroup(ends)

    def ready_ends(self, ends: Sequence[Any]) -> ReadyThreads:
        """See :class:`WorkerKind`."""
        return ReadyThreads(ends)

    def packed(self, message: Any, what: str) -> Any:
        """See :class:`WorkerKind`: the very object."""
        return message

    def packed_round(self, mail: RoundMail, what: str) -> RoundMail:
        """See :class:`WorkerKind`."""
        own: RoundMail = copied(mail)
        return own

    def memory(self, nbytes: int) -> _PrivateBytes:
        """See :class:`WorkerKind`."""
        return _PrivateBytes(nbytes)

    def hand_over(self, memory: _PrivateBytes, worker: WorkerThread) -> None:
        """See :class:`WorkerKind`."""
        worker.wake.theirs.memory = memory.array

    def died_at_start(self, worker: WorkerThread) -> None:
        """See :class:`WorkerKind`; what ended it is the cause of the error that is raised anyway."""


def _run_in_thread(job: EnvWorker, mailbox: _Handed, end: WorkerThreadEnd) -> None:
    job.bind_to_cores()
    job.run_in(_ThreadSide(end, mailbox))


class _Handed:
    """The mailbox of a thread: one object at a time."""

    def __init__(self) -> None:
        self._message: Any = None

    def put(self, message: Any) -> None:
        self._message = message

    def take(self) -> Any:
        message, self._message = self._message, None  # who takes it has it, and nobody keeps it for longer
        return message

    def close(self) -> None:
        self._message = None


class _ToldItself(NamedTuple):
    """An exception that the caller is to have itself."""

    error: Exception

    def rebuilt(self) -> Exception:
        return self.error


class _ThreadSide:
    """What a thread's service works with; see :class:`~gymbridge.engine.worker_loop.ServiceSide`."""

    told = _ToldItself

    def __init__(self, wake: WorkerThreadEnd, mailbox: _Handed):
        self.wake = wake
        self.mailbox = mailbox

    def packed(self, message: Any, what: str) -> Any:
        return message

    def detached(self, description: Any) -> Any:
        try:
            return copy.deepcopy(description)
        except Exception:  # a custom space that cannot be copied is shared, as it is with an env that runs here
            return description

    def received_memory(self, nbytes: int) -> npt.NDArray[np.uint8]:
        return self.wake.memory


class _PrivateBytes:
    """Memory of this process alone, aligned as a block's must be."""

    def __init__(self, nbytes: int):
        memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
        skip = -memory.ctypes.data % ALIGNMENT
        self.array = memory[skip : skip + nbytes]

    def close(self) -> None:
        self.array = np.empty(0, np.uint8)
