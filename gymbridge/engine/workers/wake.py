"""Wake-ups between a process and its workers: a byte on a pipe, with a bounded look at shared memory before blocking.

End-of-file on the pipe is the news that the other side is gone. In the parent a wait heeds the worker's sentinel too: a
child that an env has forked (in C, where no hook of ours runs) may hold the worker's end of the pipe open.

Blocking costs the time that a sleeping core needs to wake, some 40 us, so a waiting side may first look at a sequence
byte of the block for about as long. The byte on the pipe is written before the sequence byte and is read in any case:
no wake-up can be lost, and what was written before a wake-up is there after it, whatever the processor's memory order.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter

from gymbridge.engine.workers.descriptors import close_all, milliseconds

__all__ = ["LOOK_SECONDS", "ReadyEnds", "WakeEnd", "WakeGroup", "wake_pipes"]

LOOK_SECONDS = 50e-6
"""How long a look lasts at most."""

LONG_WAIT_SECONDS = 100e-6
"""Where recent waits took longer than this, a look is not worth its while."""

_SHARE_OF_LATEST = 0.25
"""Of the latest wait, in the running mean that "recent" means."""

_READABLE = getattr(select, "POLLIN", 1)  # Windows imports this module too

_GONE = "the other side is gone"


class WakeEnd:
    """One side's ends of two pipes: wakes the other side and waits to be woken.

    Args:
        read: read end of the pipe on which the other side wakes this one; closed by ``close``.
        write: write end of the other pipe; closed by ``close``.

    Attributes:
        latest: the byte that was taken last; -1 before the first.

    Example:
        >>> ours, (read, write) = wake_pipes()
        >>> theirs = WakeEnd(read, write)
        >>> ours.wake(7)
        >>> theirs.wait()
        7
        >>> theirs.wait(timeout=0) is None
        True
        >>> ours.close()
        >>> theirs.wait()
        Traceback (most recent call last):
        EOFError: the other side is gone
        >>> theirs.close()
    """

    def __init__(self, read: int, write: int):
        self._read = read
        self._write = write
        self._sentinel = -1
        self._poll = select.poll()
        self._poll.register(read, _READABLE)
        self._told = self._heard = 0  # wake-ups since `restart`, modulo 256
        self.latest = -1
        self._ours: memoryview | None = None
        self._theirs: memoryview | None = None
        self._look_seconds = 0.0
        self._recent_wait = 0.0

    def fileno(self) -> int:
        """The read end, for waiting on several at once: readable when a byte, or end-of-file, is there."""
        return self._read

    @property
    def sentinel(self) -> int:
        """What :meth:`guard` was given, or -1."""
        return self._sentinel

    def guard(self, sentinel: int) -> None:
        """Has waits end with ``EOFError`` once ``sentinel``, which stays its owner's, is readable: a death."""
        self._sentinel = sentinel
        self._poll.register(sentinel, _READABLE)

    def share(self, ours: memoryview, theirs: memoryview, look_seconds: float = LOOK_SECONDS) -> None:
        """Counts wake-ups in shared memory from now on, so that a wait can look before it blocks.

        Both sides call this, with the two bytes the other way round, before either wakes the other again: no byte may
        be under way.

        Args:
            ours: one byte, zero, which this side writes.
            theirs: one byte, zero, which the other side writes.
            look_seconds: how long to look at most; 0 to block at once, as is best where cores are scarce.

        Raises:
            ValueError: something else than one byte each.
        """
        for name, byte in (("ours", ours), ("theirs", theirs)):
            if byte.nbytes != 1 or byte.format != "B":
                raise ValueError(f"{name}: got {byte.nbytes} bytes of format {byte.format!r}, expected 1 of 'B'")
        self._ours, self._theirs = ours, theirs
        self._look_seconds = look_seconds
        self.restart()

    def restart(self) -> None:
        """Counts from zero again; both sides do, with no counted byte under way."""
        self._told = self._heard = 0
        if self._ours is not None:
            self._ours[0] = 0

    def signal(self, byte: int) -> None:
        """Wakes the other side without counting it: its look does not see it.

        Raises:
            BrokenPipeError: the other side is gone.
        """
        os.write(self._write, _BYTES[byte])

    def skip_to(self, byte: int, timeout: float | None = None) -> bool:
        """Takes bytes until this one has come, without a look; False where it has not after ``timeout`` seconds.

        Raises:
            EOFError: the other side is gone.
        """
        deadline = None if timeout is None else perf_counter() + timeout
        while True:
            ready = self._poll.poll(milliseconds(None if deadline is None else deadline - perf_counter()))
            if not ready:
                return False
            if ready[0][0] == self._sentinel and len(ready) == 1 and not self._has_byte():
                raise EOFError(_GONE)
            if self.take(perf_counter()) == byte:
                return True

    def wake(self, byte: int = 0) -> None:
        """Wakes the other side, which is given the byte; one that nobody waits for yet is kept.

        Raises:
            BrokenPipeError: the other side is gone.
        """
        os.write(self._write, _BYTES[byte])
        if self._ours is not None:
            self._told = (self._told + 1) & 255
            self._ours[0] = self._told

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits until the other side wakes this one; its byte, or None after ``timeout`` seconds.

        A wait that an exception of a signal handler ends, as Ctrl-C's, loses nothing and can be taken up again.

        Raises:
            EOFError: the other side is gone.
        """
        start = perf_counter()
        may_block = timeout is None and self._sentinel < 0  # the read alone will do then
        if not self._look(start, timeout) and not may_block:
            ready = self._poll.poll(milliseconds(timeout))
            if not ready:
                return None
            if ready[0][0] == self._sentinel and len(ready) == 1 and not self._has_byte():
                raise EOFError(_GONE)
        return self.take(start)

    def is_ready(self, timeout: float | None = 0.0) -> bool:
        """Whether a byte is there, or the other side gone, now or within ``timeout`` seconds; takes nothing."""
        return bool(self._poll.poll(milliseconds(timeout)))

    @property
    def is_bereft(self) -> bool:
        """Whether the other side is known to be dead, whatever it has sent before."""
        found = self._looked_at()
        return self._sentinel in found or bool(found.get(self._read, 0) & ~_READABLE)

    @property
    def has_byte(self) -> bool:
        """Whether a byte is there, which the other side may have sent before it died."""
        return bool(self._looked_at().get(self._read, 0) & _READABLE)

    def _looked_at(self) -> dict[int, int]:
        """What there is to see; with a poll of its own, since another thread may be in a wait."""
        poll = select.poll()
        for descriptor in (self._read, self._sentinel):
            if descriptor >= 0:
                poll.register(descriptor, _READABLE)
        return dict(poll.poll(0))

    def take_ready(self, *, is_certain: bool = False) -> int:
        """The byte that is there, as :meth:`is_ready` has found.

        Args:
            is_certain: it was the byte or end-of-file that was found, and not a death alone.

        Raises:
            EOFError: the other side is gone.
        """
        if not is_certain and not self._has_byte():
            raise EOFError(_GONE)
        return self.take(perf_counter())

    @property
    def announced(self) -> bool:
        """Does shared memory say that there is a byte that has not been taken?"""
        # less than half way round ahead of what was taken: a byte can be taken before it has been announced
        return self._theirs is not None and 0 < (self._theirs[0] - self._heard) & 255 < 128

    @property
    def look_seconds(self) -> float:
        """How long the next wait will look before it blocks: 0 where recent waits were too long for that."""
        return self._look_seconds if self._recent_wait < LONG_WAIT_SECONDS else 0.0

    def take(self, waited_since: float) -> int:
        """The byte that is there, as a look or a poll has found; blocks if none is.

        Args:
            waited_since: when the wait for it began, on ``time.perf_counter``'s clock.

        Raises:
            EOFError: the other side is gone.
        """
        byte = os.read(self._read, 1)
        if not byte:
            raise EOFError(_GONE)
        self._heard = (self._heard + 1) & 255
        self._recent_wait += _SHARE_OF_LATEST * (perf_counter() - waited_since - self._recent_wait)
        self.latest = byte[0]
        return self.latest

    def _look(self, start: float, timeout: float | None) -> bool:
        theirs, heard = self._theirs, self._heard
        if theirs is None or self._recent_wait >= LONG_WAIT_SECONDS or not self._look_seconds:
            return False
        end = start + _shorter(self._look_seconds, timeout)
        while not 0 < (theirs[0] - heard) & 255 < 128:
            if perf_counter() > end:
                return False
        return True

    def _has_byte(self) -> bool:
        """Asked again once the other side is known to be dead: it may have sent its last byte between two looks."""
        return self._read in dict(self._poll.poll(0))

    def close(self) -> None:
        """Closes both ends: the other side finds end-of-file. A second call does nothing."""
        read, self._read = self._read, -1  # before it is closed: after an interrupt the number may be another file's
        close_all((read,))
        write, self._write = self._write, -1
        close_all((write,))
        self._sentinel = -1
        self._poll = select.poll()
        self._ours = self._theirs = None

    def __del__(self) -> None:
        if hasattr(self, "_theirs"):
            self.close()


class _OneAndDeaths:
    """Waits for one worker's byte, or for the death of any: to be woken by each byte costs a wake-up each.

    Attributes:
        is_of_use: each worker has a sentinel; else the end-of-file of one that is not waited for would not be heard.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self.is_of_use = True

    def add(self, sentinel: int) -> None:
        """Heeds the death of a worker."""
        if sentinel >= 0:
            self._poll.register(sentinel, _READABLE)
        else:
            self.is_of_use = False

    def remove(self, sentinel: int) -> None:
        """Heeds it no more; also where it is not heeded."""
        if sentinel >= 0:
            with suppress(KeyError):
                self._poll.unregister(sentinel)

    def wait(self, end: WakeEnd, timeout: float | None) -> None:
        """Waits until a byte or end-of-file of this one is there, or one has died, or the time is over."""
        descriptor = end.fileno()
        self._poll.register(descriptor, _READABLE)
        try:
            self._poll.poll(milliseconds(timeout))
        finally:
            self._poll.unregister(descriptor)


class WakeGroup:
    """Waits for several workers at once.

    Args:
        ends: this side's end of each; they stay their owners'.

    Example:
        >>> pairs = [wake_pipes() for _ in range(3)]
        >>> theirs = [WakeEnd(*descriptors) for _, descriptors in pairs]
        >>> group = WakeGroup([ours for ours, _ in pairs])
        >>> theirs[0].wake(), theirs[2].wake()
        (None, None)
        >>> pending = {0, 2}
        >>> group.wait(pending), pending
        (set(), set())
        >>> theirs[1].close()
        >>> pending = {0}
        >>> group.wait(pending), pending
        ({1}, {0})
    """

    def __init__(self, ends: Sequence[WakeEnd]):
        self._ends = list(ends)
        self._poll = select.poll()
        self._index: dict[int, int] = {}
        self._one = _OneAndDeaths()
        self._slowest = -1
        """The one that was waited for last."""
        for index, end in enumerate(self._ends):
            self._register(index, end)

    def _register(self, index: int, end: WakeEnd) -> None:
        self._one.add(end.sentinel)
        for descriptor in (end.fileno(), end.sentinel):
            if descriptor >= 0:
                self._index[descriptor] = index  # before it is waited for: an interrupt may come between the two
                self._poll.register(descriptor, _READABLE)

    def remove(self, index: int) -> None:
        """Waits for a worker that died no more.

        Call it before its end is closed: the numbers of its descriptors may soon be those of others. After an interrupt
        it may be called again.
        """
        self._one.remove(self._ends[index].sentinel)
        for descriptor in [descriptor for descriptor, of in self._index.items() if of == index]:
            with suppress(KeyError):
                self._poll.unregister(descriptor)
            del self._index[descriptor]

    def replace(self, index: int, end: WakeEnd) -> None:
        """Puts a new worker's end in the place of one that was removed."""
        self._ends[index] = end
        self._register(index, end)

    def wait(self, pending: set[int], timeout: float | None = None, *, first: bool = False) -> set[int]:
        """Waits until each of ``pending`` has woken this side, or one of the group is dead, or the time is over.

        Args:
            pending: indices of those waited for; those that woke this side are taken out.
            timeout: seconds; None to wait for ever.
            first: wait for one of them only.

        Returns:
            The indices of those found dead, pending or not. Without any and with some left in ``pending``, the time is
            over. A byte that one sent before it died counts first: its death is found by the next wait.

        Raises:
            RuntimeError: one that was not pending woke this side, against the protocol of the two.
        """
        start = perf_counter()
        self._look(pending, start, timeout)
        dead: set[int] = set()
        while pending and not dead:
            left = None if timeout is None else max(0.0, start + timeout - perf_counter())
            if not first and len(pending) > 1 and self._one.is_of_use:
                self._one.wait(self._ends[self._slowest if self._slowest in pending else max(pending)], left)
                left = 0.0
            ready = self._poll.poll(milliseconds(left))
            if not ready:
                break
            readable = {descriptor for descriptor, _ in ready}
            for index in {self._index[descriptor] for descriptor in readable}:
                end = self._ends[index]
                try:
                    if end.fileno() not in readable and not end._has_byte():  # its sentinel alone
                        raise EOFError(_GONE)
                    end.take(start)
                except EOFError:
                    dead.add(index)
                    continue
                if index not in pending:
                    raise RuntimeError(f"worker {index} sent a byte that nobody waited for")
                pending.discard(index)
                self._slowest = index
            if first:
                break
        return dead

    def _look(self, pending: set[int], start: float, timeout: float | None) -> None:
        """Takes the bytes that shared memory announces, for as long as looking is worth it."""
        look = min((self._ends[index].look_seconds for index in pending), default=0.0)
        if not look:
            return
        end_of_look = start + _shorter(look, timeout)
        while pending:
            for index in [index for index in pending if self._ends[index].announced]:
                self._ends[index].take(start)
                pending.discard(index)
            if perf_counter() > end_of_look:
                return


class ReadyEnds:
    """Tells which of several workers have answered, or died, without taking their bytes: an interrupt loses none.

    Args:
        ends: this side's end of each; they stay their owners'.

    Attributes:
        gone: those that are known to be dead, watched or not.

    Example:
        >>> pairs = [wake_pipes() for _ in range(3)]
        >>> theirs = [WakeEnd(*descriptors) for _, descriptors in pairs]
        >>> ready = ReadyEnds([ours for ours, _ in pairs])
        >>> ready.watch(0), ready.watch(2)
        (None, None)
        >>> theirs[1].wake(), theirs[2].wake()
        (None, None)
        >>> ready.wait()
        {2}
        >>> ready.forget(2)
        >>> ready.wait(timeout=0)
        set()
    """

    def __init__(self, ends: Sequence[WakeEnd]):
        self._ends = list(ends)
        self._poll = select.poll()
        self._one = _OneAndDeaths()
        self._watched: set[int] = set()
        self.gone: set[int] = set()
        self._descriptors = [end.fileno() for end in ends]  # an end that is closed knows its own no more
        self._index = {descriptor: index for index, descriptor in enumerate(self._descriptors)}
        self._sentinels = {end.sentinel: index for index, end in enumerate(ends) if end.sentinel >= 0}
        for end in ends:
            self._one.add(end.sentinel)
        for sentinel in self._sentinels:
            self._poll.register(sentinel, _READABLE)

    def watch(self, index: int) -> None:
        """Has waits look at a worker, until ``forget``."""
        self._watched.add(index)
        if self._descriptors[index] >= 0:  # else it is gone
            self._poll.register(self._descriptors[index], _READABLE)

    def forget(self, index: int) -> None:
        """Has waits look at a worker no more; also where none does."""
        if index in self._watched:
            if self._descriptors[index] >= 0:
                with suppress(KeyError):  # an interrupt has come between the lines of `watch`
                    self._poll.unregister(self._descriptors[index])
            self._watched.discard(index)  # last: else an interrupt would leave it registered

    def remove(self, index: int) -> None:
        """See :meth:`WakeGroup.remove`; the worker is ``gone``."""
        self.forget(index)
        self._index.pop(self._descriptors[index], None)
        self._descriptors[index] = -1
        self._lose(self._ends[index].sentinel)
        self.gone.add(index)

    def replace(self, index: int, end: WakeEnd) -> None:
        """See :meth:`WakeGroup.replace`."""
        self._ends[index] = end
        self.gone.discard(index)
        self._descriptors[index] = end.fileno()
        self._index[end.fileno()] = index
        if end.sentinel >= 0:
            self._sentinels[end.sentinel] = index  # before it is heeded: an interrupt may come between the two
            self._poll.register(end.sentinel, _READABLE)
        self._one.add(end.sentinel)

    def wait(self, timeout: float | None = None, least: int = 1) -> set[int]:
        """The watched workers that are ready once one of them is, or none where none is; at times too early.

        Args:
            timeout: seconds; None to wait for ever.
            least: how many the caller needs; a wait for less than all that are watched ends when one is ready.
        """
        watched = self._watched
        found = self.gone & watched if self.gone else set()
        left = 0.0 if found else timeout
        at_once = bool(found) or timeout == 0
        if at_once or least < len(watched) or len(watched) < 2 or not self._one.is_of_use:
            ready = self._poll.poll(milliseconds(left))
        else:
            self._one.wait(self._ends[max(watched)], left)
            ready = self._poll.poll(0)
        for descriptor, _ in ready:
            index = self._index.get(descriptor)
            if index is None:
                index = self._lose(descriptor)
            if index in watched:
                found.add(index)
        return found

    def _lose(self, sentinel: int) -> int | None:
        """A worker is dead: its sentinel says so for ever, and is looked at no more; None where it was so already."""
        index = self._sentinels.get(sentinel)
        if index is not None:
            self.gone.add(index)
            with suppress(KeyError):  # an interrupt has ended an earlier call, or that of `replace`
                self._poll.unregister(sentinel)
            self._one.remove(sentinel)
            self._sentinels.pop(sentinel, None)
        return index


def wake_pipes() -> tuple[WakeEnd, tuple[int, int]]:
    """Two pipes: this side's ends, and the descriptors (read, write) for the other side's :class:`WakeEnd`."""
    from_here = os.pipe()
    try:
        to_here = os.pipe()
    except OSError:
        close_all(from_here)
        raise
    return WakeEnd(to_here[0], from_here[1]), (from_here[0], to_here[1])


def _shorter(look_seconds: float, timeout: float | None) -> float:
    return look_seconds if timeout is None else min(look_seconds, timeout)


_BYTES = [bytes([byte]) for byte in range(256)]
