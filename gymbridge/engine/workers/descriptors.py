"""File descriptors: anonymous files, and sending descriptors to another process."""

from __future__ import annotations

import array
import os
import select
import socket
import tempfile
from collections.abc import Iterable, Sequence

__all__ = [
    "MOST_DESCRIPTORS",
    "anonymous_file",
    "close_all",
    "close_and_forget",
    "milliseconds",
    "read_file",
    "readable",
    "receive",
    "send",
]

MOST_DESCRIPTORS = 253
"""So many fit in one message (``SCM_MAX_FD`` of Linux)."""

_FOR_EVER = 7 * 24 * 3600.0
"""Seconds; a poll takes no more than 2**31 milliseconds."""

_INT_SIZE = array.array("i").itemsize


def anonymous_file(name: str) -> int:
    """A descriptor of an empty file that no path leads to; memory, where the platform has ``memfd_create``.

    Example:
        >>> descriptor = anonymous_file("example")
        >>> os.write(descriptor, b"abc"), read_file(descriptor)
        (3, b'abc')
        >>> os.close(descriptor)
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    descriptor, path = tempfile.mkstemp(prefix=f"{name}-")
    os.unlink(path)
    return descriptor


def read_file(descriptor: int) -> bytes:
    """All that is in a file, whatever its offset, which others may share."""
    size, parts = os.fstat(descriptor).st_size, []
    offset = 0
    while offset < size:  # one call reads 2 GiB at most
        parts.append(os.pread(descriptor, size - offset, offset))
        offset += len(parts[-1])
        if not parts[-1]:
            raise EOFError(f"the file ended after {offset} of {size} bytes")
    return b"".join(parts)


def close_all(descriptors: Iterable[int]) -> None:
    """Closes each; those that are closed already, or -1, are passed over."""
    for descriptor in descriptors:
        if descriptor >= 0:
            try:
                os.close(descriptor)
            except OSError:
                continue


def close_and_forget(numbers: list[int]) -> None:
    """Closes each, after it has left the list: one that an interrupt ends and that is called again closes none twice.

    A number that was closed may be another file's by then.

    Example:
        >>> numbers = [*os.pipe()]
        >>> close_and_forget(numbers), numbers
        (None, [])
    """
    while numbers:
        close_all((numbers.pop(),))


def readable(descriptor: int, timeout: float | None) -> bool:
    """Waits until a descriptor has something to read, or end-of-file; False after ``timeout`` seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(milliseconds(timeout)))


def milliseconds(timeout: float | None) -> float | None:
    """What a poll takes, of seconds that may be more than it can wait for: more than a week is for ever.

    Example:
        >>> milliseconds(0.5), milliseconds(-1.0), milliseconds(float("inf"))
        (500.0, 0.0, None)
    """
    return None if timeout is None or timeout > _FOR_EVER else max(0.0, timeout * 1e3)


def send(via: int, data: bytes, descriptors: Sequence[int]) -> None:
    """Sends bytes, and copies of descriptors with them, through a UNIX socket.

    Args:
        via: descriptor of the socket.
        data: one byte or more, few enough to fit in one message.
        descriptors: at most 253.

    Raises:
        ValueError: no byte, or more descriptors than fit.

    Example:
        >>> ours, theirs = socket.socketpair()
        >>> send(ours.fileno(), b"x", [0])
        >>> data, (copy,) = receive(theirs.fileno(), 16)
        >>> data, os.get_inheritable(copy)
        (b'x', False)
        >>> os.close(copy), ours.close(), theirs.close()
        (None, None, None)
    """
    if not data or len(descriptors) > MOST_DESCRIPTORS:
        raise ValueError(
            f"got {len(data)} bytes and {len(descriptors)} descriptors, expected 1 byte or more and "
            f"{MOST_DESCRIPTORS} descriptors or fewer"
        )
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    with _Borrowed(via) as sock:
        sock.sendmsg([data], ancillary)


def receive(via: int, nbytes: int) -> tuple[bytes, list[int]]:
    """Receives at most ``nbytes`` and the descriptors sent with them; no bytes where the other side is closed.

    The descriptors are not inheritable: ``socket.recv_fds`` does not see to that before Python 3.12.

    Raises:
        OSError: this process can have no more descriptors; those that it got are closed.
    """
    space = socket.CMSG_SPACE(MOST_DESCRIPTORS * _INT_SIZE)
    with _Borrowed(via) as sock:
        data, ancillary, flags, _ = sock.recvmsg(nbytes, space, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    received = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(content[: len(content) - len(content) % _INT_SIZE])
    descriptors = list(received)
    if flags & socket.MSG_CTRUNC:
        close_all(descriptors)
        raise OSError(f"only {len(descriptors)} of the descriptors sent could be taken over")
    if not hasattr(socket, "MSG_CMSG_CLOEXEC"):
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
    return data, descriptors


class _Borrowed:
    """A socket object over a descriptor that stays its owner's.

    It has a copy: one that an interrupt keeps from being let go of is closed with the object.
    """

    def __init__(self, descriptor: int):
        copy = os.dup(descriptor)
        try:
            self._socket = socket.socket(fileno=copy)
        except BaseException:
            os.close(copy)
            raise
        self._socket.setblocking(True)

    def __enter__(self) -> socket.socket:
        return self._socket

    def __exit__(self, *error: object) -> None:
        self._socket.close()
