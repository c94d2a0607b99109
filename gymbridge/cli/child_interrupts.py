"""Ctrl-C in a terminal reaches every process: workers of other libraries are to leave it to this one."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess

__all__ = ["children_without_interrupts"]


@contextmanager
def children_without_interrupts() -> Iterator[Callable[[], None]]:
    """What ``multiprocessing`` starts in the block does not hear of Ctrl-C, and is gone after it.

    gymbridge's own workers ignore it anyway; others would each print a traceback. The block is given a function that
    ends these processes.
    """
    before = set(multiprocessing.active_children())
    start = BaseProcess.start

    def start_without(process: BaseProcess) -> None:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a new process takes that over
        try:
            start(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def end_children() -> None:
        for child in set(multiprocessing.active_children()) - before:
            child.kill()
            child.join()

    if hasattr(signal, "pthread_sigmask"):
        BaseProcess.start = start_without  # type: ignore[assignment,method-assign]
    try:
        yield end_children
    finally:
        BaseProcess.start = start  # type: ignore[method-assign]
        end_children()  # whose close failed
