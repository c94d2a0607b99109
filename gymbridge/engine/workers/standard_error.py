"""What workers write to standard error: it comes out where this process's does, and the end of it is kept.

Descriptor 2 of a worker is the write end of a pipe. One thread of this process reads all of these pipes and writes on,
as long as there are any; a pipe stays until its last writer is gone, which may be a process that an env has started and
that outlives the worker. Who finds a worker dead reads by itself what is left: all that the worker wrote is in its pipe
by then, so that nothing has to be waited for.

What is read is written to descriptor 2 as it is at that moment: a terminal, a file, or what a notebook or a test runner
has put there to show or keep it, as with what a library in C writes.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import re
import select
import signal
import sys
import threading
from time import perf_counter

from gymbridge.engine.workers.descriptors import close_all, milliseconds
from gymbridge.errors import WorkerStartError

__all__ = ["TAIL_BYTES", "StandardErrorPipe", "prepare_standard_error", "redirect_standard_error"]

TAIL_BYTES = 4096
"""So much of what a worker wrote last is told."""

_KEPT_BYTES = 4 * TAIL_BYTES
_READ_BYTES = 64 * 1024  # what a pipe of Linux holds
_SURE_BYTES = 512  # so many can be written at once to any pipe that a poll says can be written to

_SECONDS_FOR_REST = 0.1
"""That reading and writing on what a dead worker left may take, where standard error takes nothing more, say."""

_STANDARD_ERROR = 2

_EXTENSION_MODULES = re.compile(rb"\n*Extension modules: [^\n]*\(total: \d+\)\n?")
"""What faulthandler ends with: long, and of no use to who looks for what an env did."""

_FATAL = b"Fatal Python error: "


class StandardErrorPipe:
    """The pipe that a worker has as its standard error, seen from the process that started the worker.

    Attributes:
        theirs: the worker's end, until ``begin``.

    Example:
        >>> pipe = StandardErrorPipe()
        >>> pipe.begin(), pipe.read_rest(), pipe.tail
        (None, None, '')
    """

    def __init__(self) -> None:
        self._ours, self.theirs = os.pipe()
        self._kept = b""
        self._lock = threading.Lock()  # held while something is read, kept and written on: in this order, whoever reads
        os.set_blocking(self._ours, False)

    @property
    def tail(self) -> str:
        """The last that was written, 4 KiB at most; of Python's report of a fatal error the first, the innermost call.

        A list of extension modules is left out.
        """
        text = _EXTENSION_MODULES.sub(b"\n", self._kept)
        start = max(0, len(text) - TAIL_BYTES)
        fatal = text.rfind(_FATAL)
        if fatal >= 0:
            start = min(start, fatal)
        return text[start : start + TAIL_BYTES].decode(errors="replace")

    def begin(self) -> None:
        """Has what comes read from now on. The worker has its end, of which this process's copy is closed.

        Raises:
            WorkerStartError: this process can have no more threads.
        """
        close_all((self.theirs,))
        self.theirs = -1
        _add(self._ours, self)

    def read_rest(self) -> None:
        """Reads what is there, once the worker is dead; leaves what standard error does not take to the thread."""
        deadline = perf_counter() + _SECONDS_FOR_REST
        if self._ours >= 0 and self._lock.acquire(timeout=_SECONDS_FOR_REST):
            try:
                while _takes_more(deadline - perf_counter()) and self._forward(_SURE_BYTES):
                    continue
            finally:
                self._lock.release()
        _join_idle(deadline - perf_counter())

    def read_some(self) -> None:
        """Reads once what has come, for the thread."""
        if not self._lock.acquire(timeout=10 * _SECONDS_FOR_REST):
            self._lock = threading.Lock()  # whose holder an interrupt has kept from letting go
            return
        try:
            self._forward(_READ_BYTES)
        finally:
            self._lock.release()

    def _forward(self, most: int) -> bool:
        """Reads, keeps and writes on; was there something?"""
        if self._ours < 0:  # another has read to its end
            return False
        try:
            data = os.read(self._ours, most)
        except BlockingIOError:
            return False
        if not data:
            try:
                _remove(self._ours)
            finally:
                self.close()
            return False
        self._kept = (self._kept + data)[-_KEPT_BYTES:]
        _write(data)
        return True

    def close(self) -> None:
        """Closes the ends that this process has. Only where nobody writes any more, or it never came to that."""
        ours, self._ours = self._ours, -1
        close_all((ours, self.theirs))
        self.theirs = -1

    def abandon(self) -> None:
        """Closes both ends where the worker has never been started; else the thread reads on, to the end."""
        if self.theirs >= 0:
            self.close()

    def forget(self) -> None:
        """In a fork of this process: closes its copy of the end that is read. A worker may need the other."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        ours, self._ours = self._ours, -1
        close_all((ours,))
        self.theirs = -1


def redirect_standard_error(descriptor: int) -> None:
    """In a worker: has descriptor 2 be this one, which is closed."""
    os.dup2(descriptor, _STANDARD_ERROR)
    if descriptor == _STANDARD_ERROR:
        os.set_inheritable(descriptor, True)
    else:
        os.close(descriptor)


def prepare_standard_error() -> None:
    """In a worker: has Python write to descriptor 2, where it began without, and report there what kills it."""
    if sys.stderr is None:  # the process that started it has none either
        errors = open(_STANDARD_ERROR, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - stays
        sys.stderr = sys.__stderr__ = errors  # type: ignore[misc]
    if not faulthandler.is_enabled():
        with contextlib.suppress(OSError, RuntimeError):
            faulthandler.enable(_STANDARD_ERROR, all_threads=True)


# ---------------------------------------------------------------- standard error of this process


def _write(data: bytes) -> None:
    """Writes all of it, or drops it where there is no standard error."""
    left = memoryview(data)
    while left:
        try:
            if not os.get_inheritable(_STANDARD_ERROR):  # it was closed, and the number is that of something else
                return
            left = left[os.write(_STANDARD_ERROR, left) :]
        except BlockingIOError:  # somebody has made it so
            _takes_more(None)
        except OSError:  # closed, broken, or a full disk
            return


def _takes_more(timeout: float | None) -> bool:
    """Waits until standard error can be written to, also in vain; False after ``timeout`` seconds."""
    poll = select.poll()
    poll.register(_STANDARD_ERROR, select.POLLOUT)
    return bool(poll.poll(milliseconds(timeout))) and (timeout is None or timeout > 0)


# ---------------------------------------------------------------- the thread

_lock = threading.RLock()  # a collection, and so anything, may come while this thread holds it
_pipes: dict[int, StandardErrorPipe] = {}
"""Those that are read, by the descriptor of their read end; never changed, but replaced."""

_thread: threading.Thread | None = None
_is_serving = False
_wake: tuple[int, int] | None = None
"""Ends of the pipe by which the thread is told that ``_pipes`` is another; it stays, whichever threads come and go."""


def _add(descriptor: int, pipe: StandardErrorPipe) -> None:
    global _pipes, _thread, _is_serving, _wake
    with _lock:
        if _wake is None:
            _wake = os.pipe()
            for end in _wake:
                os.set_blocking(end, False)
        _pipes = {**_pipes, descriptor: pipe}
        if _is_serving and _thread is not None and _thread.is_alive():  # and no interrupt came before it was begun
            _wake_thread()
            return
        _thread = threading.Thread(target=_serve, args=(_wake[0],), name="gymbridge-stderr", daemon=True)
        _is_serving = True
        try:
            _thread.start()
        except RuntimeError as error:
            _is_serving, _thread = False, None
            _pipes = {}
            raise WorkerStartError(f"no thread to read what the workers write to standard error: {error}") from error


def _remove(descriptor: int) -> None:
    global _pipes
    with _lock:
        _pipes = {number: pipe for number, pipe in _pipes.items() if number != descriptor}


def _wake_thread() -> None:
    if _wake is not None:
        with contextlib.suppress(BlockingIOError):  # it is being told already
            os.write(_wake[1], b"\0")


def _join_idle(timeout: float) -> None:
    """Waits for the end of the thread, where there is nothing left to read."""
    thread = _thread
    if _pipes or thread is None or thread is threading.current_thread():
        return
    _wake_thread()
    thread.join(max(0.0, timeout))


def _serve(wake: int) -> None:
    """The target of the thread."""
    global _is_serving
    # signals are for the other threads; one that says that standard error is broken would end the process
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _SIGNALS_OF_FAULTS)
    known: dict[int, StandardErrorPipe] | None = None
    poll = select.poll()
    while True:
        with _lock:
            if not _pipes:
                _is_serving = False
                return
            pipes = _pipes
        if pipes is not known:
            known = pipes
            poll = select.poll()
            for descriptor in (wake, *known):
                poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll():
            if descriptor == wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, _READ_BYTES)
            else:
                pipes[descriptor].read_some()


_SIGNALS_OF_FAULTS = {
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")
    if hasattr(signal, name)
}


@atexit.register
def _read_the_last() -> None:
    """After the workers were told to end, so before this module's importers register what does that."""
    deadline = perf_counter() + _SECONDS_FOR_REST
    thread = _thread
    if _is_serving and thread is not None:
        thread.join(_SECONDS_FOR_REST)
    for pipe in _pipes.values():
        if perf_counter() < deadline:
            pipe.read_rest()


def _forget_all() -> None:
    """In a fork of this process."""
    global _lock, _pipes, _thread, _is_serving, _wake
    for pipe in _pipes.values():
        pipe.forget()
    if _wake is not None:
        close_all(_wake)
    _lock, _pipes, _thread, _is_serving, _wake = threading.RLock(), {}, None, False, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
