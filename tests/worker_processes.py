"""For tests of worker processes: scripts run as a user runs them, and waiting for processes to end."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

from gymbridge.engine.workers import WorkerProcess, WorkerSide, standard_error, start_worker

PATIENCE = 60.0
"""Seconds after which something that should happen at once has not happened."""


def run_script(folder: Path, script: str, env: dict[str, str]) -> str:
    """What a script prints; it is a file of its own, run in ``folder``."""
    process = start_script(folder, script, env)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert not errors
    return output


def start_script(folder: Path, script: str, env: dict[str, str]) -> subprocess.Popen[str]:
    """A running script in a session, and so a process group, of its own."""
    path = folder / "script.py"
    path.write_text(script)
    return subprocess.Popen(
        [sys.executable, str(path)],
        cwd=folder,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def worker(job: Callable[[WorkerSide], object], **options: Any) -> Iterator[WorkerProcess]:
    """A worker that is gone at the end, whatever it does."""
    process = start_worker(job, **options)
    try:
        yield process
    finally:
        process.kill()
        assert process.join(PATIENCE)
        process.close()


def names_of_memory(beside: Iterable[str] = (), patience: float = PATIENCE / 6) -> set[str]:
    """The names that Python gave to shared memory, once only those ``beside`` are left or a while has passed.

    Tests of other processes may have some for a moment.
    """
    deadline = monotonic() + patience
    while True:
        names = {name for name in os.listdir("/dev/shm") if name.startswith("psm_")}
        if names <= {*beside} or monotonic() > deadline:
            return names


def watch(pids: Iterable[int]) -> dict[int, int]:
    """A pidfd of each process, by which :func:`still_running` knows it even when its id goes to another."""
    return {pid: os.pidfd_open(pid) for pid in pids}


def still_running(watched: dict[int, int], patience: float = PATIENCE) -> set[int]:
    """Waits until all have ended, for ``patience`` seconds at most; the ids of those that have not.

    By then what those that were workers of this process wrote to standard error has been read, and its pipes closed.
    """
    running, deadline = dict(watched), monotonic() + patience
    while running and (left := deadline - monotonic()) > 0:
        poll = select.poll()
        for pidfd in running.values():
            poll.register(pidfd, select.POLLIN)
        ended = {pidfd for pidfd, _ in poll.poll(left * 1e3)}
        running = {pid: pidfd for pid, pidfd in running.items() if pidfd not in ended}
    for pidfd in watched.values():
        os.close(pidfd)
    _await_reading(deadline)
    return set(running)


def _await_reading(deadline: float) -> None:
    """Waits until no pipe is open that nobody has the other end of, and for the thread that reads them if none is."""
    while monotonic() < deadline and (thread := standard_error._thread) is not None:
        if not (pipes := standard_error._pipes):
            thread.join(max(0.0, deadline - monotonic()))
            return
        poll = select.poll()
        for descriptor in pipes:
            poll.register(descriptor, 0)  # tells of the end alone
        if not poll.poll(0):
            return
        thread.join(0.01)


def descendants(*, dead: bool = False) -> set[int]:
    """The processes that this one has started, and those that these have, and so on.

    Args:
        dead: those too that have ended and that their parent has not waited for.
    """
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if dead or state not in "ZX":
                    parents[int(entry.name)] = int(parent)
    found: set[int] = set()
    new = {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new}
        found |= new
    return found
