"""The threads that a test has started, and whether they have ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from worker_processes import PATIENCE

__all__ = ["have_ended", "new_threads"]


@contextmanager
def new_threads() -> Iterator[list[threading.Thread]]:
    """The threads that this one, or one that it started, starts in the block, those too that end in it."""
    new, start, mine = list[threading.Thread](), threading.Thread.start, threading.current_thread()

    def noted_start(thread: threading.Thread) -> None:
        starter = threading.current_thread()
        start(thread)
        if starter is mine or starter in new:
            new.append(thread)

    with patch.object(threading.Thread, "start", noted_start):
        yield new


def have_ended(threads: list[threading.Thread]) -> bool:
    """Whether there are some and all of them end."""
    for thread in threads:
        thread.join(PATIENCE)
    return bool(threads) and not any(thread.is_alive() for thread in threads)
