"""Several workers that are one process, each seen as one that has it alone would be."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from gymbridge.engine.workers.channel import Channel
from gymbridge.engine.workers.process import WorkerProcess
from gymbridge.engine.workers.wake import WakeEnd

__all__ = ["WorkerShare", "shares_of"]


def shares_of(process: WorkerProcess, passed: Sequence[Sequence[int]]) -> list[WorkerShare]:
    """Workers in the place of one that has just been started.

    Args:
        process: it is theirs from now on, and closed with the last of them.
        passed: of each worker, the descriptors that its end of the wake-ups goes with; see
            :meth:`~gymbridge.engine.workers.process.WorkerProcess.another_wake`.

    Raises:
        OSError: there can be no more file descriptors; the process is killed.

    Example:
        >>> from gymbridge.engine.workers import WakeEnd, start_worker
        >>> def answer_each(side):
        ...     for _ in range(2):
        ...         WakeEnd(*side.connection.recv_descriptors(2)).wake(7)
        >>> one, other = shares_of(start_worker(answer_each), [(), ()])
        >>> one.wake.wait(), other.wake.wait(), one.exit_status(), other.exit_status()
        (7, 7, 0, 0)
        >>> one.close(), other.close()
        (None, None)
    """
    common = _Common(process)
    shares: list[WorkerShare] = []
    try:
        shares.extend(WorkerShare(common, process.another_wake(own)) for own in passed)
    except BaseException:
        process.kill()  # while none of them has been let go, which would close it
        process.close()
        raise
    return shares


class _Common:
    """What the workers of one process have in common.

    Attributes:
        process: the process.
        lock: held by who asks the process for something, which it bears from one thread at a time.
        open: the workers that have not been closed, by ``id``.
    """

    def __init__(self, process: WorkerProcess):
        self.process = process
        self.lock = threading.Lock()
        self.open: set[int] = set()


class WorkerShare:
    """One of several workers that are one process; made by :func:`shares_of`.

    It has wake-ups of its own and is closed by itself. What ends one ends all, so those of one process may be asked,
    and told to end, by several threads at once.

    Attributes:
        wake: its wake-ups; its waits end when the process dies.
        how: see :class:`~gymbridge.engine.workers.process.WorkerProcess`.
    """

    how = ""

    def __init__(self, common: _Common, wake: WakeEnd):
        self._common = common
        self.wake = wake
        common.open.add(id(self))

    @property
    def connection(self) -> Channel:
        """The slow lane of the process."""
        return self._common.process.connection

    @property
    def stderr_tail(self) -> str:
        """See :attr:`~gymbridge.engine.workers.process.WorkerProcess.stderr_tail`."""
        return self._common.process.stderr_tail

    @property
    def is_alive(self) -> bool:
        """Has the process not ended?"""
        return self.exit_status(timeout=0) is None

    def exit_status(self, timeout: float | None = None) -> int | None:
        """See :meth:`~gymbridge.engine.workers.process.WorkerProcess.exit_status`."""
        with self._common.lock:
            return self._common.process.exit_status(timeout)

    def join(self, timeout: float | None = None) -> bool:
        """Waits until the process has ended, for ``timeout`` seconds at most; has it?"""
        return self.exit_status(timeout) is not None

    def abort(self, timeout: float) -> None:
        """See :meth:`~gymbridge.engine.workers.process.WorkerProcess.abort`; it ends the others too."""
        with self._common.lock:
            self._common.process.abort(timeout)

    def kill(self) -> None:
        """Kills the process, and so the others too."""
        with self._common.lock:
            self._common.process.kill()

    def close(self) -> None:
        """Closes its wake-ups, and with the last of them the process's descriptors; does not wait."""
        self.wake.close()
        self._common.open.discard(id(self))
        if not self._common.open:
            self._common.process.close()

    def __del__(self) -> None:
        if hasattr(self, "wake"):
            self.close()
