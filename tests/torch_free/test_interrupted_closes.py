"""What an interrupted close has closed already stays another's, whom the system gives the number next."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from interrupts import interrupted

from gymbridge.engine.mailbox import Mailbox
from gymbridge.engine.workers import descriptors
from gymbridge.engine.workers.starter import Starter
from gymbridge.engine.workers.wake import wake_pipes

EVENTS = ("call", "c_call", "c_return")


class Several:
    """Three descriptors."""

    def __init__(self) -> None:
        self.numbers = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]

    def close(self) -> None:
        descriptors.close_and_forget(self.numbers)


def wake_end() -> Any:
    ours, theirs = wake_pipes()
    descriptors.close_all(theirs)
    return ours


@pytest.mark.parametrize("make", [Several, wake_end, Mailbox.create])
def test_a_second_close_closes_nothing_of_others(make: Callable[[], Any]) -> None:
    at, came = 1, True
    while came:
        owner = make()
        came, _ = interrupted(owner.close, at, events=EVENTS)
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]  # they get the lowest numbers that are free
        owner.close()
        for number in others:
            os.close(number)  # raises where it has been closed
        at += 1
    assert at > 3


def test_a_message_that_is_interrupted_leaves_the_socket_open() -> None:
    at, came = 1, True
    while came:
        ours, theirs = socket.socketpair()
        came, _ = interrupted(partial(descriptors.send, ours.fileno(), b"x", []), at, events=EVENTS)
        os.fstat(ours.fileno())
        ours.send(b"y")
        came_too, _ = interrupted(partial(descriptors.receive, theirs.fileno(), 1), at, events=EVENTS)
        os.fstat(theirs.fileno())
        came = came or came_too
        ours.close()
        theirs.close()
        at += 1
    assert at > 10


def test_a_starter_whose_control_socket_is_open_elsewhere_is_ended() -> None:
    """An interrupt may leave a copy of it: the end of the program waits for no end-of-file that never comes."""
    starter = Starter(None, ())
    copy = os.dup(starter._control)
    starter.stop()
    assert not starter.is_alive
    os.close(copy)
