"""What a process runs that several workers share: each serves its envs in a thread of its own."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from gymbridge.engine.mailbox import Mailbox
from gymbridge.engine.worker_loop import EnvWorker, ProcessSide
from gymbridge.engine.workers import WakeEnd, WorkerSide
from gymbridge.engine.workers.pickling import dumps

__all__ = ["EnvThreads"]

_SECONDS_TO_CLOSE = 1.0
"""That idle envs have to close when another of their process ends it."""


class EnvThreads:
    """The job of a process that is several workers: makes their envs, at once, and serves until all are told to end.

    Each worker's thread makes and runs its envs, so those that block do not hold up the others. The process has the
    cores, torch's settings and the random states in common.

    What would end a worker that has a process of its own, such as a ``SystemExit`` that an env raises, ends this one
    the same way, with the same exit code. Envs that are idle are closed first, those in the middle of something not.

    Pickled, each worker's job is so by itself: what makers have in common they have each for themselves, as in
    processes of their own. Only a fork gets it as it is.

    Args:
        jobs: of the workers, one or more; the cores and torch's settings are those of the first.
    """

    def __init__(self, jobs: Sequence[EnvWorker]):
        self.jobs = jobs

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, ([dumps(job, f"what the envs from {job.first_row} on need") for job in self.jobs],)

    def __call__(self, side: WorkerSide) -> None:
        """Runs in a worker process, whose connection brings three descriptors for each worker: wake-ups, mailbox."""
        self.jobs[0].bind_to_cores()  # the threads too: they are started by this one
        self.jobs[0].set_up_torch()
        ended: SimpleQueue[_EnvThread] = SimpleQueue()
        receiving = threading.Lock()
        stop = _Stop()
        threads = []
        for job in self.jobs:
            try:
                read, write, mail = side.connection.recv_descriptors(3)
            except EOFError:  # the caller is gone
                return
            wake, mailbox = _EnvThreadEnd(read, write), Mailbox(mail)
            wake.guard(stop.descriptor)
            for close in (wake.close, mailbox.close):
                os.register_at_fork(after_in_child=close)
            threads.append(_EnvThread(job, ProcessSide(wake, mailbox, side.connection, receiving), ended))
        for thread in threads:
            thread.start()
        for _ in threads:
            error = ended.get().error
            if error is not None:
                _end_idle(threads, stop)
                raise error
        for thread in threads:
            thread.join()


def _unpickled(jobs: Sequence[bytes]) -> EnvThreads:
    return EnvThreads([pickle.loads(job) for job in jobs])


class _EnvThreadEnd(WakeEnd):
    """A worker's end of its wake-ups, which knows whether the worker has something to do.

    Attributes:
        is_idle: it has answered all that it was asked: also before it waits again, since its thread may get there late.
    """

    is_idle = False

    def wait(self, timeout: float | None = None) -> int | None:
        command = super().wait(timeout)
        self.is_idle = False
        return command

    def wake(self, byte: int = 0) -> None:
        self.is_idle = True
        super().wake(byte)

    def signal(self, byte: int) -> None:
        self.is_idle = True
        super().signal(byte)


class _EnvThread(threading.Thread):
    """Runs one worker; a daemon, since the process does not wait for envs that hang.

    Attributes:
        wake: the worker's end of its wake-ups.
        error: what ended it before its time.
    """

    error: BaseException | None = None

    def __init__(self, job: EnvWorker, side: ProcessSide, ended: SimpleQueue[_EnvThread]):
        super().__init__(name=f"gymbridge-env-{job.first_row}", daemon=True)
        self.wake: Any = side.wake
        self._job = job
        self._side = side
        self._ended = ended

    def run(self) -> None:
        try:
            self._job.run_in(self._side)
            self.wake.close()  # the caller sees that this one has ended though the process has not
        except BaseException as error:  # the process is to end with it, which the main thread sees to
            self.error = error
        finally:
            self._ended.put(self)


class _Stop:
    """Tells all workers of the process that there is nothing more to do.

    Attributes:
        descriptor: readable once they are told.
    """

    def __init__(self) -> None:
        self.descriptor, self._write = os.pipe()

    def tell(self) -> None:
        os.write(self._write, b"\0")


def _end_idle(threads: Sequence[_EnvThread], stop: _Stop) -> None:
    """Has the workers that have nothing to do close their envs, and waits for them."""
    idle = [thread for thread in threads if thread.wake.is_idle]
    stop.tell()
    deadline = perf_counter() + _SECONDS_TO_CLOSE
    for thread in idle:
        thread.join(max(0.0, deadline - perf_counter()))
