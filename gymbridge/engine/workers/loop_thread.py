"""A thread of this process that runs an event loop."""

from __future__ import annotations

import asyncio
import atexit
import selectors
import sys
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

    The loop looks for what other threads have left for it each time it comes round, and says whether it sleeps: one
    that is awake need not be woken. A wake-up writes to a socket, which lets go of the interpreter's lock, and under
    load a thread has that back only milliseconds later.

    Args:
        name: of the thread.
        look: called on the loop, to take what has been left for it; gives whether there was something.
        at_exit: called when the process ends, before the thread is waited for; it should have the loop stop soon. It
            must not hold the ``LoopThread`` itself for longer than its owner does.

    Attributes:
        loop: the event loop.

    Raises:
        WorkerStartError: there can be no more threads.

    Example:
        >>> thread = LoopThread("example", lambda: False, lambda: None)
        >>> asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "slept"), thread.loop).result()
        'slept'
        >>> thread.stop()
        >>> thread.join()
        True
    """

    def __init__(self, name: str, look: Callable[[], bool], at_exit: Callable[[], None]):
        self._look = look
        self._selector = _LookingSelector(look) if _CAN_CHOOSE_SELECTOR else None
        self.loop: asyncio.AbstractEventLoop = (
            asyncio.new_event_loop() if self._selector is None else asyncio.SelectorEventLoop(self._selector)
        )
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

    def wake(self) -> None:
        """Has the loop look for what has been left for it."""
        if self._selector is None or self._selector.sleeps:
            self.call_soon(self._look)

    def stop(self) -> None:
        """Has the loop stop once it has done what it is at; does not wait."""
        self._life.is_over = True
        self.call_soon(self.loop.stop)

    def join(self, timeout: float | None = None) -> bool:
        """Waits until it has ended, for ``timeout`` seconds at most; has it?"""
        self._thread.join(timeout)
        return not self._thread.is_alive()


_CAN_CHOOSE_SELECTOR = sys.platform != "win32"  # there the loop that can start processes has none


class _LookingSelector(selectors.DefaultSelector):
    """The selector of a loop that looks for what other threads have left for it.

    Attributes:
        sleeps: the loop is woken by nothing but what it selects, and perhaps has not looked.
    """

    def __init__(self, look: Callable[[], bool]):
        super().__init__()
        self._look = look
        self.sleeps = False

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout > 0:
            self.sleeps = True  # before the look: who leaves something from now on wakes the loop
            if self._look():
                timeout = 0
        events = super().select(timeout)
        self.sleeps = False
        self._look()
        return events


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
