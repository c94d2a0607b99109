"""The slow lane: whole objects, as messages between a process and its worker."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import cloudpickle

from gymbridge.engine.workers import descriptors
from gymbridge.errors import WorkerStartError

__all__ = ["Channel", "StartFailure"]


class StartFailure(NamedTuple):
    """What a worker sends that could not read its job: the error, and its traceback as text."""

    error: Exception
    remote_traceback: str

    @classmethod
    def of(cls, error: BaseException) -> StartFailure:
        """The error itself where it can be pickled and unpickled, else its type and message."""
        told: Exception = RuntimeError("".join(traceback.format_exception_only(type(error), error)).strip())
        if isinstance(error, Exception):
            with contextlib.suppress(Exception):
                told = pickle.loads(cloudpickle.dumps(error))
        return cls(told, "".join(traceback.format_exception(type(error), error, error.__traceback__)))


class Channel(Connection):
    """One end of a two-way channel of messages: a ``multiprocessing`` connection that pickles with cloudpickle.

    So objects of classes of ``__main__`` travel both ways, and an object that went there and back is of the class that
    it was of. ``recv`` raises ``EOFError`` where the other side is closed or dead and all it sent has been read.

    Args:
        descriptor: of one end of a socket pair; the channel closes it.

    Example:
        >>> import socket
        >>> ours, theirs = (Channel(end.detach()) for end in socket.socketpair())
        >>> ours.send({"answer": 42})
        >>> theirs.recv()
        {'answer': 42}
        >>> ours.close()
        >>> theirs.recv()
        Traceback (most recent call last):
        EOFError
        >>> theirs.close()
    """

    def send(self, obj: Any) -> None:
        """Sends an object; blocks while the other side has not read what was sent before.

        Raises:
            BrokenPipeError: the other side is closed or dead.
        """
        self.send_bytes(cloudpickle.dumps(obj))

    def recv(self) -> Any:
        """The next object; blocks until there is one.

        Raises:
            EOFError: the other side is closed or dead.
            WorkerStartError: the worker could not read its job.
        """
        try:
            message = super().recv()
        except ConnectionResetError:  # the other side ended with something of ours unread: end-of-file too
            raise EOFError from None
        if isinstance(message, StartFailure):
            raise WorkerStartError(
                f"the worker could not read what it is to run: {type(message.error).__name__}: {message.error}\n\n"
                f"In the worker:\n{message.remote_traceback}"
            ) from message.error
        return message

    def send_descriptors(self, to_send: Sequence[int]) -> None:
        """Sends copies of file descriptors, which the other side takes with :meth:`recv_descriptors`."""
        descriptors.send(self.fileno(), b"\0", to_send)

    def recv_descriptors(self, count: int) -> list[int]:
        """Descriptors sent with one :meth:`send_descriptors`, not inheritable; they are the caller's to close.

        Raises:
            EOFError: the other side is closed or dead.
            ValueError: another number of them came; they are closed.
        """
        data, received = descriptors.receive(self.fileno(), 1)
        if not data:
            raise EOFError
        if len(received) != count:
            descriptors.close_all(received)
            raise ValueError(f"got {len(received)} descriptors, expected {count}")
        return received
