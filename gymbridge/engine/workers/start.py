"""Starting a worker, whichever way."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Literal, get_args

from gymbridge.engine.workers.pickling import dumps
from gymbridge.engine.workers.process import ExecutedWorker, ForkedWorker, MultiprocessingWorker, WorkerProcess
from gymbridge.engine.workers.starter import StarterGoneError, has_starter, running_starter
from gymbridge.engine.workers.surroundings import Surroundings
from gymbridge.engine.workers.worker_main import Job, write_payload
from gymbridge.errors import WorkerStartError

__all__ = ["StartMethod", "default_method", "start_worker"]

StartMethod = Literal["starter", "exec", "fork", "spawn", "forkserver"]

_TRIES = 3


def default_method() -> StartMethod:
    """``"starter"`` where the platform has what that needs, else ``"exec"``."""
    return "starter" if has_starter() else "exec"


def start_worker(
    job: Job,
    *,
    method: StartMethod | None = None,
    surroundings: Surroundings | None = None,
    pass_descriptors: Sequence[int] = (),
    daemon: bool = False,
    timeout: float | None = 60.0,
    preload: Sequence[str] = (),
    what: str = "the job",
) -> WorkerProcess:
    """Starts a process that runs ``job(worker_side)`` and ends.

    The worker ignores SIGINT, has random states of its own, and ends when this process is gone. What the job
    writes to standard output goes where that of this process goes now; what it writes to standard error comes to that
    of this process, as it is then, and the end of it is kept. Where the job cannot be unpickled in the worker,
    ``connection.recv()`` here raises a ``WorkerStartError`` that says why.

    Args:
        job: is given a :class:`~gymbridge.engine.workers.worker_main.WorkerSide`. A function, lambda or object of any
            module, ``__main__`` included; it is pickled, but for ``"fork"``. When it raises, the worker prints the
            traceback and ends with exit code 1. It should end once ``recv`` or ``wake.wait`` raises ``EOFError``.
        method: ``"starter"``: forked by a clean process, begun once (Linux; the default there). ``"exec"``: an
            interpreter of its own, for variables that are read only when one starts. ``"fork"``, ``"spawn"`` and
            ``"forkserver"``: as ``multiprocessing`` starts processes; the last two import the user's script.
        surroundings: what the worker takes over; those of now unless given. For several workers, take them once.
        pass_descriptors: file descriptors that the worker gets copies of.
        daemon: whether a worker that ``multiprocessing`` started may not start ``multiprocessing`` processes itself;
            those of ``"starter"`` and ``"exec"`` always may.
        timeout: seconds that the starter process may take for its part.
        preload: modules that the job needs and that take long to import: for ``"starter"``, there is one starter more
            that has imported them.
        what: name of the job in the error.

    Raises:
        UnpicklableError: the job cannot be pickled; the message names the part of it that stands in the way.
        WorkerStartError: the starter process cannot start.
        OSError: there can be no more processes or file descriptors.
        ValueError: no such method.
        NotImplementedError: on Windows, and for ``"starter"`` where the platform lacks what it needs.

    Example:
        >>> from gymbridge.engine.workers import start_worker
        >>> def answer(side):
        ...     side.connection.send(side.connection.recv() + 1)
        >>> worker = start_worker(answer)
        >>> worker.connection.send(41)
        >>> worker.connection.recv(), worker.exit_status()
        (42, 0)
        >>> worker.close()
    """
    if sys.platform == "win32":
        raise NotImplementedError(
            "gymbridge starts no worker processes on Windows: use SerialEnv, SyncVectorEnv or a pool of threads"
        )
    if method is None:
        method = default_method()
    elif method not in get_args(StartMethod):
        raise ValueError(f"method: got {method!r}, expected None or one of {', '.join(get_args(StartMethod))}")
    elif method == "starter" and not has_starter():
        raise NotImplementedError('method="starter" needs Linux 5.4 or later; "exec" works here')
    if not callable(job):
        raise TypeError(f"job: got {type(job).__name__}, expected a callable")
    for descriptor in pass_descriptors:
        os.fstat(descriptor)  # a closed one is refused before anything is started

    surroundings = surroundings or Surroundings.now()
    if method == "fork":
        return MultiprocessingWorker("fork", job, pass_descriptors, surroundings, daemon)
    pickled = dumps(job, what)
    if method == "starter":
        return _fork(pickled, surroundings, pass_descriptors, timeout, preload)
    payload = write_payload(surroundings.packed({}), pickled)
    try:
        if method == "exec":
            return ExecutedWorker(payload, pass_descriptors, surroundings)
        return MultiprocessingWorker(method, payload, pass_descriptors, surroundings, daemon)
    finally:
        os.close(payload)


def _fork(
    job: bytes, surroundings: Surroundings, passed: Sequence[int], timeout: float | None, preload: Sequence[str]
) -> WorkerProcess:
    for _ in range(_TRIES):
        starter = running_starter(timeout, preload)
        payload = write_payload(surroundings.packed(starter.known), job)
        try:
            return ForkedWorker(starter, payload, passed, timeout)
        except StarterGoneError:  # the next try begins a new one
            continue
        finally:
            os.close(payload)
    raise WorkerStartError(
        f"the starter process of the workers was killed {_TRIES} times while it was asked for a worker"
    )
