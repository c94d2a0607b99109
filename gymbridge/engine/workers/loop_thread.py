"""A thread of this process that runs an event loop."""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

from gymbridge.errors import WorkerStartError

__all__ = ["LoopThread"]

_SECONDS_AT_EXIT = 1.0
"""That what runs on the loops has at this process's exit to end: later it would be stopped wherever it is."""


class LoopThread:
    """A daemon thread that runs an event loop until it is told to stop.

    What a task raises that would end a program, ``SystemExit`` say, does not end the loop: it is told to the loop's
    exception handler.

    Args:
        name: of the thread.
        at_exit: called when the process ends, before the thread is waited for; it should have the loop stop soon. It
            must not hold the ``LoopThread`` itself for longer than its owner does.

    Attributes:
        loop: the event loop.

    Raises:
        WorkerStartError: there can be no more threads.

    Example:
        >>> thread = LoopThread("example", lambda: None)
        >>> asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "slept"), thread.loop).result()
        'slept'
        >>> thread.stop()
        >>> thread.join()
        True
    """

    def __init__(self, name: str, at_exit: Callable[[], None]):
        self.loop = asyncio.new_event_loop()
        self.at_exit = at_exit
        self._life = _Life()
        self._thread = threading.Thread(target=_serve, args=(self.loop, self._life), name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self.loop.close()
            raise WorkerStartError(f"{name}: {error}") from error
        _threads.add(self)

    @property
    def is_alive(self) -> bool:
        """Has it not ended?"""
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Is this the thread that runs?"""
        return threading.current_thread() is self._thread

    def call_soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Has the loop call something; nothing where it has been closed."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(call, *arguments)

    def stop(self) -> None:
        """Has the loop stop once it has done what it is at; does not wait."""
        self._life.is_over = True
        self.call_soon(self.loop.stop)

    def join(self, timeout: float | None = None) -> bool:
        """Waits until it has ended, for ``timeout`` seconds at most; has it?"""
        self._thread.join(timeout)
        return not self._thread.is_alive()


class _Life:
    is_over = False


def _serve(loop: asyncio.AbstractEventLoop, life: _Life) -> None:
    """The target of the thread, which holds no more than it needs: who dropped the rest wants it to end."""
    asyncio.set_event_loop(loop)
    try:
        while not life.is_over:
            try:
                loop.run_forever()
            except BaseException as error:  # of a task that an env has made, SystemExit say
                loop.call_exception_handler({"message": "raised by a task on the event loop", "exception": error})
        with suppress(Exception):
            loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Lets what runs on the loops close its envs while there is an interpreter to do it in."""
    threads = [thread for thread in list(_threads) if thread.is_alive]
    for thread in threads:
        thread.at_exit()
    deadline = perf_counter() + _SECONDS_AT_EXIT
    for thread in threads:
        thread.join(max(0.0, deadline - perf_counter()))
