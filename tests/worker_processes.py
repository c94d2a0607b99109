"""For tests of worker processes: scripts run as a user runs them, and waiting for processes to end."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

from gymbridge.engine.workers.starter import running_starter

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


def watch(pids: Iterable[int]) -> dict[int, int]:
    """A pidfd of each process, by which :func:`still_running` knows it even when its id goes to another."""
    return {pid: os.pidfd_open(pid) for pid in pids}


def still_running(watched: dict[int, int], patience: float = PATIENCE) -> set[int]:
    """Waits until all have ended, for ``patience`` seconds at most; the ids of those that have not."""
    running, deadline = dict(watched), monotonic() + patience
    while running and (left := deadline - monotonic()) > 0:
        poll = select.poll()
        for pidfd in running.values():
            poll.register(pidfd, select.POLLIN)
        ended = {pidfd for pidfd, _ in poll.poll(left * 1e3)}
        running = {pid: pidfd for pid, pidfd in running.items() if pidfd not in ended}
    for pidfd in watched.values():
        os.close(pidfd)
    return set(running)


def children() -> set[int]:
    """Child processes of this one and of its starter, dead ones included that nobody has waited for."""
    parents = {os.getpid(), running_starter(PATIENCE).pid}
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) in parents:
                    found.add(int(entry.name))
    return found
