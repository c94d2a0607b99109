"""What runs in a worker: from its first descriptors to the end of its job."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from gymbridge.engine.workers import surroundings
from gymbridge.engine.workers.channel import Channel, StartFailure
from gymbridge.engine.workers.descriptors import anonymous_file, close_all, read_file
from gymbridge.engine.workers.interpreter import own_signals
from gymbridge.engine.workers.parent_death import die_with_lifeline
from gymbridge.engine.workers.registrations import expect_ids_again
from gymbridge.engine.workers.standard_error import prepare_standard_error
from gymbridge.engine.workers.wake import WakeEnd

__all__ = [
    "Job",
    "WorkerDescriptors",
    "WorkerSide",
    "executed",
    "exit_code_after",
    "run_job",
    "run_payload",
    "write_payload",
]

_LENGTH_BYTES = 8


class WorkerSide:
    """A worker's ends of what connects it with the process that started it.

    Attributes:
        connection: the slow lane.
        wake: wake-ups, both ways.
        descriptors: copies of the descriptors that ``start_worker`` was given to pass.
    """

    def __init__(self, connection: Channel, wake: WakeEnd, descriptors: Sequence[int] = ()):
        self.connection = connection
        self.wake = wake
        self.descriptors = tuple(descriptors)

    def close(self) -> None:
        """Closes them all, but for passed descriptors that the job has taken out of ``descriptors``."""
        self.connection.close()
        self.wake.close()
        close_all(self.descriptors)
        self.descriptors = ()


Job = Callable[[WorkerSide], None]


class WorkerDescriptors(NamedTuple):
    """The descriptors with which a worker begins."""

    payload: int
    connection: int
    wake_read: int
    wake_write: int
    passed: tuple[int, ...] = ()

    def side(self) -> WorkerSide:
        """What the job is given."""
        return WorkerSide(Channel(self.connection), WakeEnd(self.wake_read, self.wake_write), self.passed)


def write_payload(packed_surroundings: bytes, job: bytes) -> int:
    """A descriptor of an anonymous file with all that :func:`run_payload` reads: no pipe that could fill up."""
    descriptor = anonymous_file("gymbridge-payload")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(len(packed_surroundings).to_bytes(_LENGTH_BYTES, "little"))
            file.write(packed_surroundings)
            file.write(job)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def run_payload(given: WorkerDescriptors) -> int:
    """Takes the surroundings over, reads the job and runs it; the exit code."""

    def load() -> Job:
        payload = memoryview(read_file(given.payload))
        os.close(given.payload)
        end = _LENGTH_BYTES + int.from_bytes(payload[:_LENGTH_BYTES], "little")
        surroundings.apply(bytes(payload[_LENGTH_BYTES:end]))
        job: Job = pickle.loads(payload[end:])
        return job

    return run_job(given.side(), load)


def run_job(side: WorkerSide, load: Callable[[], Job]) -> int:
    """Runs what ``load`` gives; the exit code: 0, that of a ``SystemExit``, or 1 after an exception, which is printed.

    Where ``load`` raises, the error goes to the other side, whose next ``recv`` raises it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # here for forks of `multiprocessing`; others do already
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    prepare_standard_error()
    # a process that the env forks would else hold our pipes open, and the parent would wait for their end
    os.register_at_fork(after_in_child=side.close)
    surroundings.reseed()
    expect_ids_again()
    try:
        try:
            job = load()
        except Exception as error:
            side.connection.send(StartFailure.of(error))
            return 1
        job(side)
    except BaseException as error:
        return exit_code_after(error)
    finally:
        side.close()
    return 0


def leave(code: int) -> NoReturn:
    """Ends a forked worker as its interpreter would end, but for taking it apart: threads, ``atexit``, buffers."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # as `multiprocessing` does: nothing public stops thread pools
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):  # none, broken or closed
                continue
        os._exit(code)


def executed(arguments: Sequence[str]) -> int:
    """Runs the worker of a new interpreter, whose arguments are descriptors: the lifeline's, then the worker's."""
    lifeline, payload, connection, wake_read, wake_write, *passed = map(int, arguments)
    for descriptor in (lifeline, payload, connection, wake_read, wake_write, *passed):
        os.set_inheritable(descriptor, False)
    own_signals()
    die_with_lifeline(lifeline)
    return run_payload(WorkerDescriptors(payload, connection, wake_read, wake_write, tuple(passed)))


def exit_code_after(error: BaseException) -> int:
    """The exit code of a worker that ends with this: of a ``SystemExit`` its own; else 1, and the traceback is printed.

    Example:
        >>> exit_code_after(SystemExit(3)), exit_code_after(SystemExit())
        (3, 0)
    """
    if not isinstance(error, SystemExit):
        traceback.print_exception(error)
        return 1
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1
