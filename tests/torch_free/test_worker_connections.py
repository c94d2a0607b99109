"""Wake-ups and messages between two sides, both of them in this process."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymbridge.engine.workers.channel import Channel
from gymbridge.engine.workers.descriptors import MOST_DESCRIPTORS, receive, send
from gymbridge.engine.workers.wake import LONG_WAIT_SECONDS, WakeEnd, WakeGroup, wake_pipes


@contextlib.contextmanager
def two_sides(look_seconds: float | None = None) -> Iterator[tuple[WakeEnd, WakeEnd]]:
    """Both ends; with a time to look, they share two bytes of memory."""
    ours, descriptors = wake_pipes()
    theirs = WakeEnd(*descriptors)
    if look_seconds is not None:
        shared = memoryview(bytearray(2))
        ours.share(shared[:1], shared[1:], look_seconds)
        theirs.share(shared[1:], shared[:1], look_seconds)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("look_seconds", [None, 0.0, 10.0])
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300))))
def test_every_byte_comes_once_and_in_order(look_seconds: float | None, turns: list[tuple[bool, int]]) -> None:
    """However many are under way, and more of them than the shared byte can count."""
    with two_sides(look_seconds) as (ours, theirs):
        for from_here, count in turns:
            sender, receiver = (ours, theirs) if from_here else (theirs, ours)
            sent = [number % 256 for number in range(count % 100)]
            for byte in sent:
                sender.wake(byte)
            assert [receiver.wait() for _ in sent] == sent
            assert receiver.wait(timeout=0) is None


def test_a_byte_that_is_taken_before_it_is_announced_is_not_taken_twice() -> None:
    """The sender writes the pipe first; the receiver may be quick."""
    ours, (read, write) = wake_pipes()
    mine, others = memoryview(bytearray(1)), memoryview(bytearray(1))
    ours.share(mine, others, look_seconds=0.01)
    for count in (1, 2, 3):
        os.write(write, b"\7")
        assert ours.wait() == 7
        assert not ours.announced
        assert ours.wait(timeout=0) is None
        others[0] = count
        assert not ours.announced
    ours.close()
    os.close(read)
    os.close(write)


def test_long_waits_end_the_looking_and_short_ones_begin_it_again() -> None:
    with two_sides(look_seconds=1e-4) as (ours, theirs):
        assert ours.look_seconds == 1e-4
        theirs.wake()
        ours.take(waited_since=perf_counter() - 100 * LONG_WAIT_SECONDS)
        assert ours.look_seconds == 0.0
        for _ in range(10_000):  # a busy machine makes some of them long
            theirs.wake()
            assert ours.wait() == 0
            if ours.look_seconds:
                break
        assert ours.look_seconds == 1e-4


def test_end_of_file_comes_after_the_last_byte() -> None:
    with two_sides() as (ours, theirs):
        theirs.wake(3)
        theirs.close()
        assert ours.wait() == 3
        for _ in range(2):
            with pytest.raises(EOFError):
                ours.wait()
        with pytest.raises(BrokenPipeError):
            ours.wake()


@pytest.mark.parametrize("look_seconds", [None, 1e-4])
def test_a_sentinel_ends_waits_but_not_before_the_last_byte(look_seconds: float | None) -> None:
    reader, writer = os.pipe()
    with two_sides(look_seconds) as (ours, theirs):
        ours.guard(reader)
        assert ours.wait(timeout=0) is None
        theirs.wake(3)
        os.close(writer)
        assert ours.wait() == 3
        with pytest.raises(EOFError):
            ours.wait()
    os.close(reader)


def test_shared_bytes_are_checked() -> None:
    byte = memoryview(bytearray(1))
    with two_sides() as (ours, _):
        with pytest.raises(ValueError, match="ours: got 2 bytes of format 'B', expected 1 of 'B'"):
            ours.share(memoryview(bytearray(2)), byte)
        with pytest.raises(ValueError, match="theirs: got 8 bytes"):
            ours.share(byte, memoryview(np.zeros(1)))


@pytest.fixture(params=[None, 1e-3], ids=["blocking", "looking"])
def sides(request: pytest.FixtureRequest) -> Iterator[tuple[list[WakeEnd], list[WakeEnd]]]:
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(two_sides(request.param)) for _ in range(4)]
        yield [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


def test_a_group_waits_for_those_that_are_pending(sides: tuple[list[WakeEnd], list[WakeEnd]]) -> None:
    ours, theirs = sides
    group = WakeGroup(ours)
    assert group.wait(set()) == set()
    for number in range(300):
        awaited = {number % 4, (number + 1) % 4}
        for index in awaited:
            theirs[index].wake()
        pending = set(awaited)
        assert group.wait(pending) == set()
        assert not pending
    theirs[2].wake()
    pending = {1, 2}
    assert group.wait(pending, timeout=0.01) == set()
    assert pending == {1}


def test_a_group_finds_the_dead_and_goes_on_with_one_in_its_place(
    sides: tuple[list[WakeEnd], list[WakeEnd]],
) -> None:
    ours, theirs = sides
    group = WakeGroup(ours)
    theirs[0].wake()
    theirs[3].close()
    pending = {0, 1}
    dead: set[int] = set()
    while 0 in pending or not dead:  # the byte and the death may be found together, or one after the other
        dead |= group.wait(pending)
    assert (dead, pending) == ({3}, {1})
    with two_sides() as (new, new_theirs):
        group.replace(3, new)
        new_theirs.wake()
        theirs[1].wake()
        pending.add(3)
        assert group.wait(pending) == set()
        assert not pending


def test_a_group_heeds_sentinels(sides: tuple[list[WakeEnd], list[WakeEnd]]) -> None:
    ours, theirs = sides
    reader, writer = os.pipe()
    ours[1].guard(reader)
    group = WakeGroup(ours)
    theirs[1].wake()
    os.close(writer)
    pending = {1}
    assert group.wait(pending) == set()
    assert not pending
    pending = {0}
    assert group.wait(pending) == {1}
    os.close(reader)


def test_a_byte_that_nobody_waits_for_is_an_error(sides: tuple[list[WakeEnd], list[WakeEnd]]) -> None:
    ours, theirs = sides
    theirs[2].wake()
    with pytest.raises(RuntimeError, match="worker 2 sent a byte"):
        WakeGroup(ours).wait({1})


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = (Channel(end.detach()) for end in socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def test_messages_of_any_size_and_descriptors_come_in_order(channels: tuple[Channel, Channel]) -> None:
    ours, theirs = channels
    reader, writer = os.pipe()
    large = np.arange(1 << 20)

    def send_all() -> None:
        ours.send({"rows": large})
        ours.send_descriptors([writer, writer])
        ours.send(lambda: 5)

    thread = threading.Thread(target=send_all)
    thread.start()
    assert (theirs.recv()["rows"] == large).all()
    copies = theirs.recv_descriptors(2)
    assert theirs.recv()() == 5
    thread.join()
    os.close(writer)
    for copy in copies:
        assert not os.get_inheritable(copy)
        os.write(copy, b"x")
        os.close(copy)
    assert os.read(reader, 3) == b"xx"
    assert os.read(reader, 3) == b""  # no copy is left open
    os.close(reader)


def test_another_number_of_descriptors_is_refused_and_they_are_closed(channels: tuple[Channel, Channel]) -> None:
    ours, theirs = channels
    reader, writer = os.pipe()
    ours.send_descriptors([writer])
    os.close(writer)
    with pytest.raises(ValueError, match="got 1 descriptors, expected 2"):
        theirs.recv_descriptors(2)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_closed_side_is_end_of_file_though_something_of_ours_was_unread(channels: tuple[Channel, Channel]) -> None:
    ours, theirs = channels
    ours.send("never read")
    theirs.close()
    with pytest.raises(EOFError):
        ours.recv()
    with pytest.raises(BrokenPipeError):
        ours.send("more")
    with pytest.raises(EOFError):
        ours.recv_descriptors(1)


def test_most_descriptors_fit_and_one_more_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours.fileno(), b"x", [0] * MOST_DESCRIPTORS)
        data, received = receive(theirs.fileno(), 1)
        for copy in received:
            os.close(copy)
        assert (data, len(received)) == (b"x", MOST_DESCRIPTORS)
        with pytest.raises(ValueError, match="254 descriptors"):
            send(ours.fileno(), b"x", [0] * (MOST_DESCRIPTORS + 1))


def test_a_group_stops_at_the_first(sides: tuple[list[WakeEnd], list[WakeEnd]]) -> None:
    ours, theirs = sides
    group = WakeGroup(ours)
    theirs[2].signal(7)
    pending = {0, 2, 3}
    assert group.wait(pending, first=True) == set()
    assert pending == {0, 3}
    assert ours[2].latest == 7


def test_a_group_forgets_the_dead(sides: tuple[list[WakeEnd], list[WakeEnd]]) -> None:
    ours, theirs = sides
    group = WakeGroup(ours)
    theirs[3].close()
    assert group.wait({1}) == {3}
    group.remove(3)
    assert group.wait({1}, timeout=0) == set()


@pytest.mark.parametrize("look_seconds", [None, 1e-3], ids=["blocking", "looking"])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_two_sides_find_together_again(look_seconds: float | None, lost: int) -> None:
    """Whichever bytes are under way, and whichever were taken without being counted, as after an interrupt."""
    with two_sides(look_seconds) as (ours, theirs):
        for _ in range(5):
            ours.wake(1)
            theirs.wait()
            theirs.wake(2)
        for _ in range(lost):
            os.read(ours.fileno(), 1)
        assert not ours.skip_to(9, timeout=0)
        theirs.wake(3)
        ours.restart()
        ours.signal(200)
        assert theirs.wait() == 200
        theirs.restart()
        theirs.signal(200)
        assert ours.skip_to(200)
        ours.restart()
        for byte in range(300):
            ours.wake(byte % 100)
            assert theirs.wait() == byte % 100
            theirs.wake(byte % 50)
            assert theirs.wait(timeout=0) is None
            assert ours.wait() == byte % 50
        theirs.close()
        with pytest.raises(EOFError):
            ours.skip_to(1)
