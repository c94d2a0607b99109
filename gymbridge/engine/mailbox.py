"""Messages between a process and its worker that never block: each lies in a file that both have open."""

from __future__ import annotations

import io
import os
import types
import weakref
from typing import Any

import cloudpickle

from gymbridge.engine.workers.descriptors import anonymous_file
from gymbridge.engine.workers.pickling import dumps_plainly, loads, what_cannot_be_pickled
from gymbridge.errors import UnpicklableError

__all__ = ["Mailbox", "packed_for_caller", "packed_for_this_process", "packed_for_worker"]

_LENGTH_BYTES = 8

_FIRST_READ = 4096
"""Bytes read at once: most messages are whole then."""

_KEPT = 2**20
"""Bytes that the file keeps; the memory of a longer message is given back once it has been read."""


class Mailbox:
    """One message at a time, written by one side and read by the other when a wake-up tells it to.

    What is unpickled was written by the other side: the file has no name, is its user's alone, and only the process
    that made it and the worker that it was handed to have it open.

    Neither writing nor reading waits for the other side, so no full pipe can stop both. A write or a read that an
    interrupt ends leaves no half message for later: the next one begins at the start of the file again.

    Args:
        descriptor: of the file; closed by ``close``.

    Example:
        >>> ours = Mailbox.create()
        >>> theirs = Mailbox(os.dup(ours.descriptor))  # in a worker, as a rule
        >>> ours.put(packed_for_worker({"answer": 42}, "the answer"))
        >>> theirs.take()
        {'answer': 42}
        >>> ours.close(), theirs.close()
        (None, None)
    """

    def __init__(self, descriptor: int):
        self.descriptor = descriptor

    @classmethod
    def create(cls) -> Mailbox:
        """A new one; it is handed over by descriptor."""
        descriptor = anonymous_file("gymbridge-mail")
        os.fchmod(descriptor, 0o600)
        return cls(descriptor)

    def put(self, packed: bytes) -> None:
        """Writes a message, over what is there."""
        rest = memoryview(len(packed).to_bytes(_LENGTH_BYTES, "little") + packed)
        offset = 0
        while rest:  # one call writes 2 GiB at most
            written = os.pwrite(self.descriptor, rest, offset)
            rest = rest[written:]
            offset += written

    def take(self) -> Any:
        """The message that was written last.

        Raises:
            EOFError: the file ends before the message does.
        """
        return loads(self.take_packed())

    def take_packed(self) -> memoryview:
        """The same as it was put."""
        start = os.pread(self.descriptor, _FIRST_READ, 0)
        end = _LENGTH_BYTES + int.from_bytes(start[:_LENGTH_BYTES], "little")
        if end <= len(start):
            return memoryview(start)[_LENGTH_BYTES:end]
        message = bytearray(end)
        offset = 0
        while offset < end:
            read = os.preadv(self.descriptor, [memoryview(message)[offset:]], offset)
            if not read:
                raise EOFError(f"a message of {end} bytes ends after {offset}")
            offset += read
        if end > _KEPT:
            os.ftruncate(self.descriptor, 0)
        return memoryview(message)[_LENGTH_BYTES:]

    def close(self) -> None:
        """Closes the file; again: does nothing."""
        descriptor, self.descriptor = self.descriptor, -1  # first: after an interrupt the number may be another file's
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def packed_for_worker(message: Any, what: str) -> bytes:
    """Pickles what goes to a worker, which need not know the modules of this process.

    Args:
        message: anything.
        what: its name in the error.

    Raises:
        UnpicklableError: it cannot be pickled; the message names the part that stands in the way.
    """
    try:
        packed: bytes = cloudpickle.dumps(message)
    except Exception as error:
        raise _unpicklable(message, what, "to a worker process", error) from error
    return packed


def packed_for_this_process(message: Any, what: str) -> bytes:
    """Pickles what is unpickled here, as long as the message is there, in either direction; see the others.

    Classes and functions stay what they are. To unpickle those of ``__main__`` that cloudpickle has copied would put
    copies in the place of all attributes of the class that is here: its lists and its methods, which see other globals.
    """
    try:
        return dumps_plainly(message)
    except Exception:
        packed = io.BytesIO()
        try:
            _PicklerForHere(packed).dump(message)
        except Exception as error:
            raise _unpicklable(message, what, "between the caller and the envs that it steps", error) from error
        return packed.getvalue()


class _PicklerForHere(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles classes and functions as where they are."""

    def reducer_override(self, obj: Any) -> Any:
        if issubclass(type(obj), (type, types.FunctionType)) and obj is not _found:
            _sent_here[id(obj)] = obj
            return _found, (id(obj),)
        return super().reducer_override(obj)


_sent_here: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def _found(number: int) -> Any:
    """The class or function that was pickled as this number."""
    return _sent_here[number]


def packed_for_caller(message: Any, what: str) -> bytes:
    """Pickles what a worker sends back; see :func:`packed_for_worker`.

    What the worker imported, the caller can import too, so the plain and quick way comes first. It refuses what belongs
    to no module here, such as the classes of the caller's ``__main__``.
    """
    try:
        return dumps_plainly(message)
    except Exception:
        try:
            packed: bytes = cloudpickle.dumps(message)
        except Exception as error:
            raise _unpicklable(message, what, "from its worker process", error) from error
        return packed


def _unpicklable(message: Any, what: str, way: str, error: Exception) -> UnpicklableError:
    path, culprit = what_cannot_be_pickled(message)
    part = f"{', '.join(path)} is" if path else "it is"
    return UnpicklableError(
        f"{what} cannot be sent {way}: {part} of type {type(culprit).__qualname__}, which cannot be pickled ({error})"
    )
