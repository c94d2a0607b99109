"""A worker that is a thread of this process, seen by the one who started it."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from time import perf_counter

from gymbridge.engine.workers.thread_wake import ThreadEnd, WorkerThreadEnd
from gymbridge.errors import WorkerStartError

__all__ = ["WorkerThread", "exit_code_of"]

_SECONDS_AT_EXIT = 1.0
"""That idle threads have at this process's exit to end: later they would be stopped wherever they are."""


class WorkerThread:
    """A daemon thread that runs a job; it cannot be killed, only told that there is nothing more to do.

    Args:
        index: the worker's number.
        job: is given the worker's end; it should end once that end's ``wait`` raises ``EOFError``.

    Attributes:
        wake: this side's end.

    Raises:
        WorkerStartError: there can be no more threads.

    Example:
        >>> worker = WorkerThread(0, lambda end: end.wake(end.wait() + 1))
        >>> worker.wake.wake(41)
        >>> worker.wake.skip_to(42), worker.exit_status()
        (True, 0)
    """

    def __init__(self, index: int, job: Callable[[WorkerThreadEnd], None]):
        self.wake = ThreadEnd(index)
        self._outcome = _Outcome()
        self._thread = threading.Thread(
            target=_run, args=(job, self.wake.theirs, self._outcome), name=f"gymbridge-worker-{index}", daemon=True
        )
        _workers.add(self)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise WorkerStartError(f"worker {index}: {error}") from error

    @property
    def is_alive(self) -> bool:
        """Has it not ended?"""
        return self._thread.is_alive()

    @property
    def error(self) -> BaseException | None:
        """What ended its job before its time."""
        return self._outcome.error

    def exit_status(self, timeout: float | None = None) -> int | None:
        """Waits until it has ended: with which code a process would, whose main thread ended so; None if it runs."""
        if not self.join(timeout):
            return None
        return exit_code_of(self.error)

    def join(self, timeout: float | None = None) -> bool:
        """Waits until it has ended, for ``timeout`` seconds at most; has it?"""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def kill(self) -> None:
        """Nothing: a thread cannot be killed."""

    def close(self) -> None:
        """Has the job find that there is nothing more to do; does not wait."""
        self.wake.close()

    def __del__(self) -> None:
        if hasattr(self, "wake"):
            self.close()


def exit_code_of(error: BaseException | None) -> int:
    """With which code a process would end that this ends; None for nothing.

    Example:
        >>> exit_code_of(SystemExit(3)), exit_code_of(KeyboardInterrupt()), exit_code_of(None)
        (3, 1, 0)
    """
    code = error.code if isinstance(error, SystemExit) else None if error is None else 1
    return 0 if code is None else code & 0xFF if isinstance(code, int) else 1


class _Outcome:
    error: BaseException | None = None


def _run(job: Callable[[WorkerThreadEnd], None], end: WorkerThreadEnd, outcome: _Outcome) -> None:
    """The target of the thread, which holds no more than it needs: who dropped the worker wants it to end."""
    try:
        job(end)
    except BaseException as error:  # also what would end a process: it is told by who finds the worker dead
        outcome.error = error
    finally:
        end.leave()


_workers: weakref.WeakSet[WorkerThread] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Lets idle threads close their envs while there is an interpreter to do it in."""
    workers = [worker for worker in list(_workers) if worker.is_alive]
    for worker in workers:
        worker.close()
    deadline = perf_counter() + _SECONDS_AT_EXIT
    for worker in workers:
        worker.join(max(0.0, deadline - perf_counter()))
