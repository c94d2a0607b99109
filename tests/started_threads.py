"""The threads that a test has started, and whether they have ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from worker_processes import PATIENCE

__all__ = ["have_ended", "new_threads"]


@contextmanager
def new_threads() -> Iterator[list[threading.Thread]]:
    """The threads that were started in the block, once it is over."""
    before, new = set(threading.enumerate()), list[threading.Thread]()
    yield new
    new += set(threading.enumerate()) - before


def have_ended(threads: list[threading.Thread]) -> bool:
    """Whether there are some and all of them end."""
    for thread in threads:
        thread.join(PATIENCE)
    return bool(threads) and not any(thread.is_alive() for thread in threads)
