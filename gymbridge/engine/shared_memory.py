"""Memory that this process and its workers share: where it comes from and how it is handed over, chosen here alone.

Whatever its kind, it is handed over by descriptor, and no name of it stays (but a path that was asked for), so nothing
is left behind, whatever dies. It is its user's alone, and there from the beginning where it can run out later: who
writes to a mapping that has no room is killed, and who asks for the room has an error.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Literal, get_args

import numpy as np

from gymbridge.engine.workers.channel import Channel

__all__ = ["MemoryKind", "SharedBytes"]

MemoryKind = Literal["anonymous", "file", "named"]

_NAMES: dict[str, str] = {"anonymous": "shared memory", "file": "a memory-mapped file", "named": "shared memory"}

_AT_ONCE = 2**20
"""Bytes written at once where a file can be given room in no other way."""


class SharedBytes:
    """Bytes that several processes see.

    The memory lives until no process has an array over it any more; ``close`` only ends that it can be handed over.

    Args:
        descriptor: of the memory; closed by ``close``.
        nbytes: how much of it.

    Attributes:
        array: ``[nbytes]`` uint8, aligned to a page.
        descriptor: to hand it over, now or when a worker is started; -1 once closed.

    Raises:
        ValueError: the memory is smaller.

    Example:
        >>> import socket
        >>> ours, theirs = (Channel(end.detach()) for end in socket.socketpair())  # in two processes, as a rule
        >>> memory = SharedBytes.allocate(3)
        >>> memory.send(ours)
        >>> received = SharedBytes.receive(theirs, 3)
        >>> received.array[1] = 7
        >>> memory.array
        array([0, 7, 0], dtype=uint8)
        >>> for each in (memory, received, ours, theirs):
        ...     each.close()
    """

    def __init__(self, descriptor: int, nbytes: int):
        self.descriptor = descriptor
        size = os.fstat(descriptor).st_size
        if size < nbytes:
            raise ValueError(f"got memory of {size} bytes, expected {nbytes} or more")
        # a mapping has a descriptor of its own, but where it can be told not to
        untracked: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        self.array = np.frombuffer(mmap.mmap(descriptor, max(nbytes, 1), **untracked), np.uint8, nbytes)

    @classmethod
    def allocate(
        cls, nbytes: int, kind: MemoryKind | None = None, path: str | os.PathLike[str] | None = None
    ) -> SharedBytes:
        """New memory, all zeros.

        Args:
            nbytes: how much.
            kind: ``"anonymous"``: memory without a name. ``"file"``: a memory-mapped file. ``"named"``: memory that has
                a name until this call returns, for platforms without ``memfd_create``. None: ``"anonymous"`` where the
                platform has it, else ``"named"``. Only its owner may open it, whichever it is.
            path: for ``"file"``: where it is made, to stay there; without one no path leads to it.

        Raises:
            FileExistsError: there is something at ``path``.
            OSError: not so much memory, or no more descriptors, or a full disk; of room that is missing, with how much
                was wanted.
            ValueError: no such kind, or a path for memory.
        """
        if kind is None:
            kind = "anonymous" if hasattr(os, "memfd_create") else "named"
        if kind not in get_args(MemoryKind):
            raise ValueError(f"kind: got {kind!r}, expected None or one of {', '.join(get_args(MemoryKind))}")
        if path is not None and kind != "file":
            raise ValueError(f"path: got {os.fspath(path)!r} for memory of kind {kind!r}, which has none")
        size = max(nbytes, 1)  # no memory at all cannot be mapped
        if kind == "named":
            descriptor = _unlinked_shared_memory(size)
        elif kind == "anonymous":
            descriptor = os.memfd_create("gymbridge-block", os.MFD_CLOEXEC)
        else:
            descriptor = _private_file(path)
        try:
            if kind == "anonymous":  # the others are made so
                os.fchmod(descriptor, 0o600)
            try:
                _make_room(descriptor, size, kind)
            except OSError as error:
                raise OSError(error.errno, f"{size} bytes of {_NAMES[kind]} cannot be had: {error.strerror}") from error
            return cls(descriptor, nbytes)
        except BaseException:
            os.close(descriptor)
            if path is not None:
                os.unlink(path)
            raise

    def send(self, channel: Channel) -> None:
        """Hands it over to a process at the other end of a channel, which takes it with :meth:`receive`."""
        channel.send_descriptors([self.descriptor])

    @classmethod
    def receive(cls, channel: Channel, nbytes: int) -> SharedBytes:
        """The memory that the process at the other end of a channel has sent."""
        (descriptor,) = channel.recv_descriptors(1)
        try:
            return cls(descriptor, nbytes)
        except BaseException:
            os.close(descriptor)
            raise

    def close(self) -> None:
        """Closes the descriptor and lets go of ``array``, not of other arrays over the memory; again: does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self.array = np.empty(0, np.uint8)

    def __del__(self) -> None:
        if hasattr(self, "array"):
            self.close()


def _unlinked_shared_memory(size: int) -> int:
    named = SharedMemory(create=True, size=size)
    try:
        return os.dup(named._fd)  # type: ignore[attr-defined]  # only so can memory outlive its name
    finally:
        named.close()
        named.unlink()


def _private_file(path: str | os.PathLike[str] | None) -> int:
    """A new file, mode 0600: one that is there already, or a link, is never opened."""
    if path is not None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        return os.open(path, flags, 0o600)
    descriptor, name = tempfile.mkstemp(prefix="gymbridge-")
    os.unlink(name)
    return descriptor


def _make_room(descriptor: int, size: int, kind: MemoryKind) -> None:
    """Gives memory its size, and takes the room now where it could be found missing later.

    Anonymous memory has no limit of its own but all memory there is, so what nobody touches need not be there, unless
    the kernel is told to promise no more than it has.
    """
    if kind == "anonymous" and not _promises_are_kept():
        os.ftruncate(descriptor, size)
    elif hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    elif kind == "file":
        zeros = bytes(min(size, _AT_ONCE))
        left = size
        while left:
            left -= os.write(descriptor, zeros[:left])


def _promises_are_kept() -> bool:
    """Whether Linux was told to give out no more memory than there is."""
    try:
        with open("/proc/sys/vm/overcommit_memory") as file:
            return file.read().strip() == "2"
    except OSError:
        return False
