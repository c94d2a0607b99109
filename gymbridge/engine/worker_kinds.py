"""Where an engine's workers run: in a process each, or several as threads of one process.

Who wakes them sees no difference, but that those of one process end together.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from gymbridge.engine.env_threads import EnvThreads
from gymbridge.engine.mailbox import Mailbox
from gymbridge.engine.shared_memory import MemoryKind, SharedBytes
from gymbridge.engine.worker_loop import EnvWorker
from gymbridge.engine.workers import (
    Job,
    StartMethod,
    Surroundings,
    WorkerProcess,
    WorkerShare,
    shares_of,
    start_worker,
)
from gymbridge.engine.workers.pickling import dumps
from gymbridge.errors import UnpicklableError

__all__ = ["ProcessWorkers", "SharedProcessWorkers"]


class ProcessWorkers:
    """Worker processes.

    Args:
        method, daemon, preload: see :func:`~gymbridge.engine.workers.start.start_worker`.
        memory: see :meth:`~gymbridge.engine.shared_memory.SharedBytes.allocate`.
        environ: variables that the workers have otherwise than this process.

    Attributes:
        together: so many, in the order of their numbers, are one process: what ends one of them ends all.
    """

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

    def start(
        self, jobs: Sequence[EnvWorker], mailboxes: Sequence[Mailbox], timeout: float | None
    ) -> Iterator[WorkerProcess | WorkerShare]:
        """Starts a worker for each job, numbered from 0; each is had once it is started, and the next is only then.

        Raises:
            UnpicklableError: a job cannot be sent.
            WorkerStartError: there can be no such worker.
        """
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

    def memory(self, nbytes: int) -> SharedBytes:
        """Memory for a block."""
        return SharedBytes.allocate(nbytes, self._memory_kind)


class SharedProcessWorkers(ProcessWorkers):
    """Worker processes, each of which is several workers that run in its threads.

    Args:
        together: workers a process; the last process may have fewer.
        **how: see :class:`ProcessWorkers`.
    """

    def __init__(self, together: int, **how: Any):
        super().__init__(**how)
        self.together = together

    def start(
        self, jobs: Sequence[EnvWorker], mailboxes: Sequence[Mailbox], timeout: float | None
    ) -> Iterator[WorkerProcess | WorkerShare]:
        """See :class:`ProcessWorkers`."""
        for number, first in enumerate(range(0, len(jobs), self.together)):
            part = slice(first, first + self.together)
            process = self._started(number, EnvThreads(jobs[part]), jobs[part], [], timeout)
            yield from shares_of(process, [[mailbox.descriptor] for mailbox in mailboxes[part]])
