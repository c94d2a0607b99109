"""The program of the starter process: imports what workers need, then forks a worker a request.

It runs one thread and nothing of the user's: what a request carries, only the forked worker reads. It ends, and the
kernel then ends its workers, when the process that it works for is dead or has closed its end of the control socket.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import pickle
import select
import struct
import traceback
import weakref
from typing import NamedTuple

from gymbridge.engine.workers.interpreter import own_signals

__all__ = ["ENDED", "FAILED", "PRELOADED", "STARTED", "Message", "main"]

PRELOADED = (
    "gymnasium",
    "gymbridge.engine.any_env",
    "gymbridge.engine.env_threads",
    "gymbridge.engine.workers.worker_main",
)
"""Imported once, before the first fork, so that no worker has to."""

STARTED, FAILED, ENDED = b"s", b"f", b"e"


class Message(NamedTuple):
    """What the starter says of one worker, on a socket that it has for that worker alone.

    Attributes:
        kind: ``STARTED``, ``FAILED`` or ``ENDED``.
        number: its process id, an ``errno``, or its exit code (minus the number of the signal that killed it).
    """

    kind: bytes
    number: int

    def packed(self) -> bytes:
        """Its bytes on the socket."""
        return struct.pack("=ci", *self)

    @classmethod
    def unpacked(cls, data: bytes) -> Message:
        """What the bytes say."""
        return cls(*struct.unpack("=ci", data))


def main(arguments: list[str]) -> int:
    """Serves until the parent is gone.

    Args:
        arguments: descriptors of the control socket and of the parent's pidfd, and more modules to import.
    """
    control, parent = map(int, arguments[:2])
    own_signals()
    for descriptor in (control, parent):
        os.set_inheritable(descriptor, False)
    gc.disable()  # it would look for garbage in torch again and again while that is imported, a sixth of the time
    for name in (*PRELOADED, *arguments[2:]):
        importlib.import_module(name)
    for finalizer in [*getattr(weakref.finalize, "_registry", ())]:  # which only CPython has
        finalizer.atexit = False  # else torch takes itself apart in each worker, half of its cost
    starter = _Starter(control, parent)
    starter.greet()
    os.chdir("/")  # keeps no directory busy; a worker goes where its parent is
    gc.collect()
    gc.freeze()  # a collection in a worker would else write to, and so copy, every page that they share
    gc.enable()
    starter.serve()
    return 0


class _Starter:
    def __init__(self, control: int, parent: int):
        self._control = control
        self._parent = parent
        self._pid = os.getpid()
        self._status: dict[int, int] = {}  # a worker's pidfd -> the socket on which to say how it ended
        self._poll = select.poll()
        for descriptor in (control, parent):
            self._poll.register(descriptor, select.POLLIN)

    def greet(self) -> None:
        """Tells the parent which gymnasium ids workers have already."""
        from gymbridge.engine.workers import descriptors, registrations

        self._descriptors = descriptors
        file = descriptors.anonymous_file("gymbridge-registered")
        os.write(file, pickle.dumps(registrations.registered()))
        with contextlib.suppress(BrokenPipeError):  # the parent is gone already; `serve` sees that
            descriptors.send(self._control, b"hello", [file])
        os.close(file)

    def serve(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._parent:
                    return
                if descriptor == self._control:
                    if not self._take_request():
                        return
                else:
                    self._reap(descriptor)

    def _take_request(self) -> bool:
        """Forks the worker that a request asks for; False where the parent has closed its end."""
        try:
            data, given = self._descriptors.receive(self._control, 1)
        except OSError:  # too many descriptors for this process; the requester finds end-of-file
            return True
        if not data:
            return False
        status, *theirs = given
        try:
            pid = os.fork()
        except OSError as error:
            self._say(status, Message(FAILED, error.errno or errno.EAGAIN))
            self._descriptors.close_all(given)
            return True
        if pid == 0:
            self._become_worker(status, theirs)
        pidfd = os.pidfd_open(pid)
        self._status[pidfd] = status
        self._poll.register(pidfd, select.POLLIN)
        self._say(status, Message(STARTED, pid), pidfd)
        self._descriptors.close_all(theirs)
        return True

    def _become_worker(self, status: int, theirs: list[int]) -> None:
        """Runs the worker, in the forked process; does not return."""
        code = 1
        from gymbridge.engine.workers import worker_main
        from gymbridge.engine.workers.parent_death import die_with_parent

        try:
            die_with_parent(self._pid)
            self._descriptors.close_all((self._control, self._parent, status, *self._status, *self._status.values()))
            output, errors, payload, connection, wake_read, wake_write, *passed = theirs
            os.dup2(output, 1)
            os.dup2(errors, 2)
            self._descriptors.close_all((output, errors))
            given = worker_main.WorkerDescriptors(payload, connection, wake_read, wake_write, tuple(passed))
            code = worker_main.run_payload(given)
        except BaseException:
            traceback.print_exc()
        finally:
            worker_main.leave(code)

    def _reap(self, pidfd: int) -> None:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        assert result is not None  # only a call with WNOHANG gives none
        code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        status = self._status.pop(pidfd)
        self._poll.unregister(pidfd)
        self._say(status, Message(ENDED, code))
        self._descriptors.close_all((pidfd, status))

    def _say(self, status: int, message: Message, *attached: int) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            self._descriptors.send(status, message.packed(), attached)
