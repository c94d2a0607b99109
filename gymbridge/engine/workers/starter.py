"""This process's side of its starter process: begins it, asks it for workers, replaces it when it was killed."""

from __future__ import annotations

import atexit
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import NoReturn

from gymnasium.envs.registration import EnvSpec

from gymbridge.engine.workers import descriptors
from gymbridge.engine.workers.interpreter import new_interpreter
from gymbridge.engine.workers.starter_main import FAILED, STARTED, Message
from gymbridge.engine.workers.surroundings import without_mpi
from gymbridge.errors import WorkerStartError

__all__ = ["Starter", "StarterGoneError", "has_starter", "running_starter"]

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Importing numpy would else start threads, and a process with threads should not fork."""

_PROGRAM = "gymbridge.engine.workers.starter_main:main"


def has_starter() -> bool:
    """Has this platform what a starter process needs: Linux 5.4 and later have."""
    if sys.platform != "linux" or not hasattr(os, "memfd_create") or not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class StarterGoneError(Exception):
    """The starter died before it did what it was asked for."""


class Starter:
    """A running starter process.

    Args:
        timeout: seconds that it may take until it has imported what workers need.
        modules: what it imports beside what all workers need.

    Attributes:
        pid: its process id.
        known: the gymnasium ids that its workers have of their own.

    Raises:
        WorkerStartError: it took longer, or ended.
    """

    def __init__(self, timeout: float | None, modules: Sequence[str] = ()):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.pidfd_open(os.getpid())
        try:
            environ = {**without_mpi(os.environ), **_ONE_THREAD}
            self._process = new_interpreter(_PROGRAM, [theirs.fileno(), parent], environ, modules)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(parent)
        self.pid = self._process.pid
        self._control = ours.detach()
        try:
            self.known: Mapping[str, EnvSpec] = self._greeting(timeout)
        except BaseException:
            self._process.kill()
            self.stop()
            raise

    def _greeting(self, timeout: float | None) -> dict[str, EnvSpec]:
        if not descriptors.readable(self._control, timeout):
            raise WorkerStartError(f"the starter process of the workers was not ready after {timeout} s")
        data, received = descriptors.receive(self._control, 16)
        if not data:
            raise WorkerStartError(
                f"the starter process of the workers ended with exit code {self._process.wait()} before it was ready; "
                f"what it printed to standard error says why"
            )
        try:
            known: dict[str, EnvSpec] = pickle.loads(descriptors.read_file(received[0]))
        finally:
            descriptors.close_all(received)
        return known

    @property
    def is_alive(self) -> bool:
        """Has it not ended?"""
        return self._process.poll() is None

    def fork_worker(self, given: Sequence[int], timeout: float | None) -> tuple[int, int, int]:
        """Has it fork a worker.

        Args:
            given: descriptors of which the worker gets copies: standard output and error, then those that
                :class:`~gymbridge.engine.workers.worker_main.WorkerDescriptors` names.
            timeout: seconds that it may take.

        Returns:
            The worker's process id, a pidfd of it, and the socket on which the starter will say how it ended.

        Raises:
            OSError: the kernel forks no more processes.
            StarterGoneError: the starter is dead.
            WorkerStartError: it can have no more descriptors, or did not answer in time.
        """
        ours, theirs = (end.detach() for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        try:
            try:
                descriptors.send(self._control, b"w", [theirs, *given])
            except (BrokenPipeError, ConnectionResetError):
                self._explain_silence()
            finally:
                os.close(theirs)
            if not descriptors.readable(ours, timeout):
                raise WorkerStartError(f"the starter process {self.pid} did not answer within {timeout} s")
            data, received = descriptors.receive(ours, 16)
            if not data:
                self._explain_silence()
            kind, number = Message.unpacked(data)
            if kind == FAILED:
                raise OSError(number, f"no process for another worker: {os.strerror(number)}")
            assert kind == STARTED, kind
        except BaseException:
            os.close(ours)
            raise
        return number, received[0], ours

    def _explain_silence(self) -> NoReturn:
        try:
            self._process.wait(1.0)  # its sockets are closed a moment before it can be waited for
        except subprocess.TimeoutExpired:
            raise WorkerStartError(f"the starter process {self.pid} can have no more file descriptors") from None
        raise StarterGoneError

    def stop(self) -> None:
        """Ends it, and with it the workers that still run."""
        descriptors.close_all((self._control,))
        self._control = -1
        try:
            self._process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:  # an interrupt has left a copy of the control socket open, or it is stopped
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """In a fork of this process, whose starter it is not: closes the copy of the control socket."""
        descriptors.close_all((self._control,))
        self._control = -1
        self._process.returncode = 0  # else `Popen` would warn that a child, which is not ours, still runs


_SECONDS_TO_STOP = 2.0

_lock = threading.Lock()
_starters: dict[tuple[str, ...], Starter] = {}


def running_starter(timeout: float | None, modules: Sequence[str] = ()) -> Starter:
    """This process's starter that has imported these modules: begun at the first call, and anew where it was killed."""
    key = tuple(modules)
    with _lock:
        starter = _starters.get(key)
        if starter is None or not starter.is_alive:
            if starter is not None:
                starter.stop()
            starter = _starters[key] = Starter(timeout, key)
        return starter


def _stop() -> None:
    with _lock:
        while _starters:
            _starters.popitem()[1].stop()


def _forget() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    while _starters:
        _starters.popitem()[1].forget()


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
