"""A worker as the process that started it sees it, and the three ways in which one comes about."""

from __future__ import annotations

import abc
import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import Any, Literal

from gymbridge.engine.workers import descriptors
from gymbridge.engine.workers.channel import Channel
from gymbridge.engine.workers.interpreter import interrupts_blocked, new_interpreter
from gymbridge.engine.workers.parent_death import die_with_lifeline
from gymbridge.engine.workers.registrations import forget_ids
from gymbridge.engine.workers.standard_error import StandardErrorPipe, redirect_standard_error
from gymbridge.engine.workers.starter import Starter
from gymbridge.engine.workers.starter_main import Message
from gymbridge.engine.workers.surroundings import Surroundings
from gymbridge.engine.workers.wake import WakeEnd, wake_pipes
from gymbridge.engine.workers.worker_main import Job, WorkerDescriptors, executed, run_job

__all__ = [
    "ExecutedWorker",
    "ForkedWorker",
    "MultiprocessingMethod",
    "MultiprocessingWorker",
    "WorkerProcess",
]

MultiprocessingMethod = Literal["fork", "spawn", "forkserver"]


class WorkerProcess(abc.ABC):
    """A worker process, seen from the process that started it; made by :func:`~gymbridge.engine.workers.start_worker`.

    Dropping the last reference closes its descriptors, as :meth:`close` does: the worker's job finds end-of-file on its
    connection and its wake-ups, and is to end. In a fork of the process that started it, it is closed from the start.
    Not to be used by two threads at once.

    Attributes:
        connection: the slow lane.
        wake: wake-ups, both ways; its waits end when the worker dies.
        pid: its process id.
        sentinel: a descriptor that is readable once the worker is dead: a pidfd, where the platform has those.
    """

    pid: int
    sentinel: int
    how = ""
    """How it ended, in words, where its exit status does not tell."""

    def __init__(self) -> None:
        self._closed = False
        self._exit_code: int | None = None
        self._pidfd = self.sentinel = self.pid = -1
        self._owned: list[int] = []  # descriptors of ours beside `connection` and the wake-ups
        self._more_wakes: list[WakeEnd] = []
        self._lifeline = -1
        self._was_killed = False
        ours, theirs = (end.detach() for end in socket.socketpair())
        self.connection = Channel(ours)
        self._theirs = [theirs]  # the worker's descriptors, until it has them
        try:
            self._errors = StandardErrorPipe()
            self.wake, (read, write) = wake_pipes()
        except OSError:
            if hasattr(self, "_errors"):
                self._errors.close()
            self.connection.close()
            os.close(theirs)
            raise
        self._theirs += [read, write]
        _open_workers.add(self)

    def _started(self, pid: int, sentinel: int = -1) -> None:
        """Keeps what is known of the worker now.

        Args:
            pid: its process id; of a process that nobody else reaps before we have seen it dead.
            sentinel: for platforms without pidfds.
        """
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # an old kernel
                self._owned.append(os.pidfd_open(pid))
                self._pidfd = sentinel = self._owned[-1]
        self._watch(pid, sentinel)

    def _watch(self, pid: int, sentinel: int) -> None:
        self.pid, self.sentinel = pid, sentinel
        self.wake.guard(sentinel)
        # only without its ends in this process does end-of-file tell of the worker's death
        descriptors.close_and_forget(self._theirs)
        self._errors.begin()

    @property
    def stderr_tail(self) -> str:
        """The last that it, and what it started, wrote to standard error, 4 KiB at most: all of it, once seen dead."""
        return self._errors.tail

    def another_wake(self, passed: Sequence[int] = ()) -> WakeEnd:
        """Wake-ups beside ``wake``, for a thread of the worker, say; closed with the others, or before.

        The worker gets a message of descriptors for ``connection.recv_descriptors``: the two of its end, in the order
        of :class:`~gymbridge.engine.workers.wake.WakeEnd`, and copies of ``passed``.

        Raises:
            OSError: there can be no more file descriptors.
            ValueError: closed.
        """
        self._require_open()
        wake, theirs = wake_pipes()
        self._more_wakes.append(wake)
        try:
            if self.sentinel >= 0:
                # one of its own: a poll over several of these ends tells by the descriptor whose it is
                self._owned.append(os.dup(self.sentinel))
                wake.guard(self._owned[-1])
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it is dead, which a wait tells
                self.connection.send_descriptors([*theirs, *passed])
        finally:
            descriptors.close_all(theirs)
        return wake

    @property
    def is_alive(self) -> bool:
        """Has it not ended?"""
        return self.exit_status(timeout=0) is None

    def exit_status(self, timeout: float | None = None) -> int | None:
        """Waits until the worker has ended: its exit code, or minus the number of the signal that killed it.

        Args:
            timeout: seconds to wait at most; 0 to look.

        Returns:
            None if it still runs. :func:`~gymbridge.errors.exit_text` puts a status into words.

        Raises:
            ValueError: closed before it was seen to end.
        """
        if self._exit_code is None:
            self._require_open()
            self._exit_code = self._wait(timeout)
            if self._exit_code is not None:
                self._errors.read_rest()
        return self._exit_code

    def join(self, timeout: float | None = None) -> bool:
        """Waits until it has ended, for ``timeout`` seconds at most; has it?"""
        return self.exit_status(timeout) is not None

    def terminate(self) -> None:
        """Sends it SIGTERM; nothing happens where it has ended."""
        self._send_signal(signal.SIGTERM)

    def abort(self, timeout: float) -> None:
        """Ends it with SIGABRT, so that it says what it was doing, or with SIGKILL where it has not after a time.

        Args:
            timeout: seconds.
        """
        with contextlib.suppress(
            AttributeError, ImportError, OSError, ValueError
        ):  # no file of all its memory for that
            import resource

            resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, 0))
        self._send_signal(signal.SIGABRT)
        if not self.join(timeout):
            self.kill()

    def kill(self) -> None:
        """Sends it SIGKILL; nothing happens where it has ended."""
        self._send_signal(signal.SIGKILL)
        self._was_killed = True

    def _send_signal(self, number: int) -> None:
        if self._exit_code is not None:
            return
        self._require_open()
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:  # no other process can have come to its id
                signal.pidfd_send_signal(self._pidfd, number)
            elif self.is_alive:
                os.kill(self.pid, number)

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError(f"the worker process {self.pid} has been closed, or was started by another process")

    def close(self) -> None:
        """Closes all descriptors here, which the worker finds out; does not wait. A second call does nothing."""
        descriptors.close_and_forget(self._theirs)
        self._errors.abandon()
        if self._lifeline >= 0 and not self._was_killed and self._exit_code is None:
            _lifelines.append(self._lifeline)  # closing it would kill a worker that is to end by itself
            self._lifeline = -1
        self._close_ours()
        _close_lifelines_of_dead()

    def _close_ours(self) -> None:
        self._closed = True
        self.connection.close()
        for wake in (self.wake, *self._more_wakes):
            wake.close()
        descriptors.close_and_forget(self._owned)
        lifeline, self._lifeline = self._lifeline, -1
        descriptors.close_all((lifeline,))
        self._pidfd = self.sentinel = -1

    def forget(self) -> None:
        """In a fork of the process whose worker it is: closes the copies of that process's ends.

        Not those of the worker: where the fork is to become the worker, it needs them.
        """
        self._theirs = []
        self._errors.forget()
        self._close_ours()

    def __del__(self) -> None:
        if hasattr(self, "wake"):
            self.close()

    @abc.abstractmethod
    def _wait(self, timeout: float | None) -> int | None: ...


class ForkedWorker(WorkerProcess):
    """A worker that the starter has forked.

    Args:
        starter: the starter process.
        payload: a descriptor of its payload; stays the caller's.
        passed: descriptors that it gets copies of.
        timeout: seconds that the starter may take.
    """

    def __init__(self, starter: Starter, payload: int, passed: Sequence[int], timeout: float | None):
        super().__init__()
        with _standard_output() as output:
            given = [output, self._errors.theirs, payload, *self._theirs, *passed]
            pid, self._pidfd, self._status = starter.fork_worker(given, timeout)
        self._owned += [self._pidfd, self._status]
        self._watch(pid, self._pidfd)

    def _wait(self, timeout: float | None) -> int | None:
        start = perf_counter()
        if not descriptors.readable(self._status, timeout):
            return None
        data = os.read(self._status, 16)  # without a descriptor more: there may be none
        if data:
            return Message.unpacked(data).number
        # the starter was killed, and the kernel kills its workers with it
        left = None if timeout is None else timeout - (perf_counter() - start)
        return -signal.SIGKILL if descriptors.readable(self.sentinel, left) else None


class ExecutedWorker(WorkerProcess):
    """A worker that is an interpreter of its own, started by this process.

    Args:
        payload: a descriptor of its payload; stays the caller's.
        passed: descriptors that it gets copies of.
        surroundings: those that the payload holds; some variables are read before the payload is.
    """

    def __init__(self, payload: int, passed: Sequence[int], surroundings: Surroundings):
        super().__init__()
        _reap_closed()
        ours, lifeline = _lifeline(self)
        given = [lifeline, payload, *self._theirs[:3], *passed]
        program = f"{executed.__module__}:executed"
        self._process = new_interpreter(program, given, surroundings.environ, errors=self._errors.theirs)
        self._started(self._process.pid, ours)

    def _wait(self, timeout: float | None) -> int | None:
        if self._pidfd >= 0:
            return self._process.wait() if descriptors.readable(self._pidfd, timeout) else None
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def _close_ours(self) -> None:
        super()._close_ours()
        if hasattr(self, "_process") and self._process.poll() is None:
            _closed_but_running.append(self._process)

    def forget(self) -> None:
        """See :class:`WorkerProcess`."""
        if hasattr(self, "_process"):
            self._process.returncode = 0  # it is no child of this fork
        super().forget()


class MultiprocessingWorker(WorkerProcess):
    """A worker that ``multiprocessing`` starts.

    Args:
        method: one of its start methods.
        job: what the worker runs: for ``"fork"`` the job itself, else a descriptor of its payload, which stays the
            caller's.
        passed: descriptors that it gets copies of.
        surroundings: for ``"fork"``, which inherits all but the environment variables.
        daemon: whether the worker's own ``multiprocessing`` refuses to start processes.
    """

    def __init__(
        self,
        method: MultiprocessingMethod,
        job: Job | int,
        passed: Sequence[int],
        surroundings: Surroundings,
        daemon: bool,
    ):
        super().__init__()
        _, lifeline = _lifeline(self)
        connection, wake_read, wake_write = self._theirs[:3]
        payload = job if isinstance(job, int) else -1
        given = (self._errors.theirs, lifeline, payload, connection, wake_read, wake_write, *passed)
        arguments: tuple[Any, ...]
        if isinstance(job, int):
            arguments = (_run_sent, daemon, _Inherited(given))
        else:
            arguments = (_run_inherited, daemon, given, job, surroundings.environ)
        # daemonic here, so that `multiprocessing` ends it at exit, where it would wait for one that is not for ever
        context: Any = multiprocessing.get_context(method)
        self._process: BaseProcess = context.Process(target=_run, args=arguments, daemon=True)
        with interrupts_blocked():
            self._process.start()
        assert self._process.pid is not None
        self._started(self._process.pid, self._process.sentinel)

    def _wait(self, timeout: float | None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode


class _Inherited:
    """Descriptors on their way to a process that ``multiprocessing`` starts: unpickled, a tuple of its own."""

    def __init__(self, numbers: Sequence[int]):
        self._numbers = numbers

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd  # Windows, which lacks it, imports this module too

        return _detached, tuple(map(DupFd, self._numbers))


def _detached(*duplicates: Any) -> tuple[int, ...]:
    return tuple(duplicate.detach() for duplicate in duplicates)


def _run(run: Callable[..., int], daemon: bool, *arguments: Any) -> None:
    """The target of a ``multiprocessing`` process."""
    multiprocessing.current_process().daemon = daemon
    sys.exit(run(*arguments))


def _run_sent(given: Sequence[int]) -> int:
    errors, *given = given
    redirect_standard_error(errors)
    return executed([*map(str, given)])


def _run_inherited(given: Sequence[int], job: Job, environ: Mapping[str, str]) -> int:
    errors, lifeline, _, connection, wake_read, wake_write, *passed = given
    redirect_standard_error(errors)
    die_with_lifeline(lifeline)
    os.environ.clear()
    os.environ.update(environ)
    forget_ids()  # those that this process was given, if it is a worker that starts one
    return run_job(WorkerDescriptors(-1, connection, wake_read, wake_write, tuple(passed)).side(), lambda: job)


def _lifeline(worker: WorkerProcess) -> tuple[int, int]:
    """Our end and the worker's of a socket pair that tells it of our death."""
    _close_lifelines_of_dead()
    ours, theirs = (end.detach() for end in socket.socketpair())
    worker._lifeline = ours
    worker._theirs.append(theirs)
    return ours, theirs


def _close_lifelines_of_dead() -> None:
    for _ in range(len(_lifelines)):
        with contextlib.suppress(IndexError):
            lifeline = _lifelines.pop(0)  # this call's alone: a worker may be dropped, and come here, at any moment
            if descriptors.readable(lifeline, 0):
                os.close(lifeline)
            else:
                _lifelines.append(lifeline)


@contextlib.contextmanager
def _standard_output() -> Iterator[int]:
    """Descriptor of standard output as it is now; of nothing, where it is closed."""
    try:
        os.fstat(1)
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        try:
            yield nothing
        finally:
            os.close(nothing)
    else:
        yield 1


_open_workers: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()

_closed_but_running: list[subprocess.Popen[bytes]] = []
"""Children that nobody waits for any more; they are reaped when the next is started."""

_lifelines: list[int] = []
"""Our ends of the lifelines of workers that nobody waits for any more; closed once these have ended."""


def _reap_closed() -> None:
    _closed_but_running[:] = [process for process in _closed_but_running if process.poll() is None]


def _forget_all() -> None:
    for process in _closed_but_running:
        process.returncode = 0
    _closed_but_running.clear()
    descriptors.close_all(_lifelines)
    _lifelines.clear()
    for worker in list(_open_workers):
        worker.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
