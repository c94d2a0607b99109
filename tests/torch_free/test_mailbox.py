"""Messages through a file: whole, whatever their size, and never waiting for the other side."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from enum import Enum
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import pytest
from agreement import assert_same

from gymbridge.engine.mailbox import Mailbox, packed_for_caller, packed_for_worker
from gymbridge.engine.remote_errors import RemoteTraceback, ToldError
from gymbridge.engine.workers import pickling
from gymbridge.engine.workers.pickling import loads
from gymbridge.errors import RemoteEnvError, UnpicklableError


@pytest.fixture
def both() -> Iterator[tuple[Mailbox, Mailbox]]:
    ours = Mailbox.create()
    theirs = Mailbox(os.dup(ours.descriptor))
    yield ours, theirs
    ours.close(), theirs.close()


@pytest.mark.parametrize("nbytes", [0, 1, 4000, 4095, 4096, 100_000, 2**20, 5 * 2**20])
def test_a_message_arrives_whole(both: tuple[Mailbox, Mailbox], nbytes: int) -> None:
    ours, theirs = both
    for sender, receiver in ((ours, theirs), (theirs, ours)):
        message = {"data": np.arange(nbytes, dtype=np.uint32).astype(np.uint8), "nbytes": nbytes}
        sender.put(packed_for_worker(message, "x"))
        assert_same(receiver.take(), message)
        sender.put(packed_for_caller("short", "x"))
        assert receiver.take() == "short"


def test_the_memory_of_a_long_message_is_given_back(both: tuple[Mailbox, Mailbox]) -> None:
    ours, theirs = both
    ours.put(packed_for_worker(bytes(3 * 2**20), "x"))
    assert os.fstat(ours.descriptor).st_size > 3 * 2**20
    theirs.take()
    assert os.fstat(ours.descriptor).st_size == 0


def test_what_is_closed_stays_closed(both: tuple[Mailbox, Mailbox]) -> None:
    ours, _ = both
    ours.close()
    ours.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        ours.take()


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(
        UnpicklableError, match=r"the options cannot be sent to a worker process: its item 'a' is of type"
    ):
        packed_for_worker({"a": threading.Lock()}, "the options")
    with pytest.raises(UnpicklableError, match="the info cannot be sent from its worker process: it is of type lock"):
        packed_for_caller(threading.Lock(), "the info")


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        OSError(2, "No such file", "name"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_is_rebuilt(error: Exception) -> None:
    again = ToldError.of(error).rebuilt()
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.args == error.args
    assert isinstance(again.__cause__, RemoteTraceback)


def test_attributes_of_an_exception_arrive() -> None:
    error = ValueError("x")
    error.level = 3  # type: ignore[attr-defined]
    assert ToldError.of(error).rebuilt().level == 3  # type: ignore[attr-defined]


def test_an_exception_without_a_message_is_told_somehow() -> None:
    again: Any = ToldError.of(Odd()).rebuilt()
    assert isinstance(again, RemoteEnvError)
    assert "its message cannot be had" in str(again)


# ---------------------------------------------------------------- classes that are known where they arrive


class Shade(Enum):
    DARK = "dark"


def test_a_class_that_comes_back_stays_as_it_is() -> None:
    """Else its list is a copy, and its methods see copies of the globals, once an instance has come from a worker."""

    class Counting:
        instances: ClassVar[list[Any]] = []

        def count(self) -> int:
            return len(self.instances)

    instances, count = Counting.instances, Counting.count
    came = loads(cloudpickle.dumps([Counting(), Counting]))
    assert (type(came[0]), came[1]) == (Counting, Counting)
    assert (Counting.instances, Counting.count) == (instances, count)
    assert Counting.instances is instances


def test_a_class_that_comes_first_has_all_that_it_had(subprocess_env: dict[str, str]) -> None:
    """Here as a process sees it that has never had the class, and again when it comes again."""
    code = """
import sys
from gymbridge.engine.workers.pickling import loads
first, again = (loads(bytes.fromhex(text)) for text in sys.argv[1:])
assert type(first) is type(again), (type(first), type(again))
first.seen.append(1)
assert (again.seen, again.shade.value, type(again.shade).DARK is again.shade) == ([1], "dark", True)
"""

    class Seeing:
        seen: ClassVar[list[Any]] = []
        shade = Shade.DARK

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        sent = [cloudpickle.dumps(Seeing()).hex() for _ in range(2)]
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert "_make_skeleton_enum" in bytes.fromhex(sent[0]).decode("latin1")
    done = subprocess.run([sys.executable, "-c", code, *sent], env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_has_no_class_of_its_own_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickling, "_Unpickler", None)
    assert loads(cloudpickle.dumps({"position": np.zeros(3)}))["position"].shape == (3,)
    assert loads(cloudpickle.dumps(lambda: 3))() == 3
