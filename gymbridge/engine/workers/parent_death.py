"""Two ways in which a worker ends with the process that it works for, even in C code that holds the GIL."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

from gymbridge.engine.workers.descriptors import readable

__all__ = ["die_with_lifeline", "die_with_parent"]

_PR_SET_PDEATHSIG = 1

# loaded before the starter forks, so that a fork finds it there
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent: int) -> None:
    """Has Linux kill this process when the thread that forked it ends; for children of single-threaded processes.

    Args:
        parent: the id of the parent process, as it was before the fork.

    Raises:
        OSError: the kernel refuses.
    """
    if _libc is None:
        raise NotImplementedError(f"a death signal of the parent is Linux's alone; this is {sys.platform}")
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before the signal was set
        os.kill(os.getpid(), signal.SIGKILL)


def die_with_lifeline(descriptor: int, *, by_thread: bool = sys.platform != "linux") -> None:
    """Has this process killed when the other end of a socket pair is closed, as it is when its holder dies.

    Args:
        descriptor: one end; nothing is ever sent through it.
        by_thread: watch it with a thread, where the kernel cannot be asked to signal it. A thread waits for its turn
            while C code holds the GIL.
    """
    if by_thread:
        threading.Thread(target=_end_at_end_of_file, args=(descriptor,), name="lifeline", daemon=True).start()
        return
    import fcntl  # Windows, which lacks it, imports this module too

    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    if readable(descriptor, 0):  # it was closed before the signal was set
        os.kill(os.getpid(), signal.SIGKILL)


def _end_at_end_of_file(descriptor: int) -> None:
    os.read(descriptor, 1)
    os.kill(os.getpid(), signal.SIGKILL)
