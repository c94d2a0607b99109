"""What an engine's worker does: makes its envs, and runs rounds over its rows of the block when it is woken."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gymbridge.engine.block import Block
from gymbridge.engine.codes import AtWork, Op, RowState, Source
from gymbridge.engine.failures import fail_rows
from gymbridge.engine.gym_host import close_all
from gymbridge.engine.host import IN_BLOCK, NOTHING, EnvHost, Inputs, RemoteHostOptions, Report
from gymbridge.engine.info_records import forget_infos
from gymbridge.engine.mailbox import Mailbox, packed_for_caller
from gymbridge.engine.makers import make_all
from gymbridge.engine.protocol import SYNC, Allocation, Answer, Call, Command, RoundNews
from gymbridge.engine.remote_errors import ToldError
from gymbridge.engine.shared_memory import SharedBytes
from gymbridge.engine.work_counts import SharedTally
from gymbridge.engine.workers import WorkerSide
from gymbridge.engine.workers.channel import Channel
from gymbridge.engine.workers.registrations import restore_ids

__all__ = ["EnvService", "EnvWorker", "ProcessSide", "Side"]

_NOTHING, _CALL = int(AtWork.NOTHING), int(AtWork.CALL)


class Wakes(Protocol):
    """A worker's end of its wake-ups; see :class:`~gymbridge.engine.workers.wake.WakeEnd`."""

    def wait(self, timeout: float | None = None) -> int | None:
        """The next command."""

    def wake(self, byte: int = 0) -> None:
        """Answers."""

    def signal(self, byte: int) -> None:
        """Answers without counting that."""

    def restart(self) -> None:
        """Counts from zero again."""

    def share(self, ours: memoryview, theirs: memoryview, look_seconds: float) -> None:
        """Counts in shared memory from now on."""


class Mails(Protocol):
    """A worker's end of its mailbox; see :class:`~gymbridge.engine.mailbox.Mailbox`."""

    def put(self, packed: bytes) -> None:
        """Leaves a message."""

    def take(self) -> Any:
        """The message that was left last."""


class Side(Protocol):
    """A worker's end of what connects it with the caller."""

    @property
    def wake(self) -> Wakes:
        """The wake-ups."""

    @property
    def mailbox(self) -> Mails:
        """The messages beside them."""

    def packed(self, message: Any, what: str) -> bytes:
        """Pickles what the caller is told; see :func:`~gymbridge.engine.mailbox.packed_for_caller`."""

    def received_memory(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """The memory in which the worker's rows lie."""


class EnvWorker:
    """The job of a worker: makes its envs, tells what they say of themselves, and serves until told to end.

    Args:
        makers: of its envs.
        options: how they are run; unpickling it imports what its envs need, and nothing else here does.
        first_row: the row of its first env, as the caller numbers them.
        cores: those that it may use; None for all.
        num_threads: of torch, where that gets imported; None to leave it alone.
        torch_dtype: the name of torch's default dtype, where that gets imported; None to leave it alone.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], Any]],
        options: RemoteHostOptions[Any],
        first_row: int,
        cores: Iterable[int] | None,
        num_threads: int | None,
        torch_dtype: str | None = None,
    ):
        self.makers = makers
        self.options = options
        self.first_row = first_row
        self.cores = cores
        self.num_threads = num_threads
        self.torch_dtype = torch_dtype

    def __call__(self, side: WorkerSide) -> None:
        """Runs in a worker process."""
        mailbox = Mailbox(os.dup(side.descriptors[0]))
        os.register_at_fork(after_in_child=mailbox.close)
        self.bind_to_cores()
        self.set_up_torch()
        self.run_in(ProcessSide(side.wake, mailbox, side.connection))

    def bind_to_cores(self) -> None:
        """Has the calling thread, and what it starts, use the worker's cores alone."""
        if self.cores is not None:
            os.sched_setaffinity(0, self.cores)

    def set_up_torch(self) -> None:
        """In a process: has torch, if it was imported, draw numbers of its own and have the caller's dtype."""
        if "torch" in sys.modules:
            torch: Any = sys.modules["torch"]
            torch.manual_seed(int.from_bytes(os.urandom(8), "little"))  # all forks of a process have the same
            if self.torch_dtype is not None:
                torch.set_default_dtype(getattr(torch, self.torch_dtype))

    def limit_threads(self) -> None:
        """In a process, once its envs are made: has torch, if it was imported, use as many threads as it may."""
        if self.num_threads is not None and "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(self.num_threads)

    def run_in(self, side: Side) -> None:
        """Runs in a worker, a process or a thread of one.

        Args:
            side: the worker's end of what connects it with the caller.
        """
        service = self.service_in(side)
        if service is not None:
            with suppress(EOFError, BrokenPipeError):  # the caller is gone
                service.run()

    def service_in(self, side: Side) -> EnvService | None:
        """Makes the envs: what serves them from now on; None where that fails, of which the caller is told."""
        try:
            envs = make_all(_with_ids_restored(self.makers), *self.options.kinds, first=self.first_row)
        except Exception as error:
            side.mailbox.put(packed_for_caller((ToldError.of(error), getattr(error, "env_index", None)), "an error"))
            side.wake.signal(Answer.FAILED)
            return None
        self.limit_threads()
        return EnvService(envs, self.options, self.first_row, side)


class ProcessSide:
    """A worker's end of what connects it with the caller, in a process of its own or in one that it shares.

    Args:
        wake: its end of the wake-ups.
        mailbox: its mailbox.
        connection: that of the process.
        receiving: held while something is taken from the connection, where workers share it.
    """

    def __init__(self, wake: Wakes, mailbox: Mailbox, connection: Channel, receiving: threading.Lock | None = None):
        self.wake = wake
        self.mailbox = mailbox
        self._connection = connection
        self._receiving = receiving or threading.Lock()

    def packed(self, message: Any, what: str) -> bytes:
        """See :class:`Side`."""
        return packed_for_caller(message, what)

    def received_memory(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """The memory that the caller has handed over: its descriptor comes over the connection."""
        with self._receiving:  # the same memory is sent once for each worker
            memory = SharedBytes.receive(self._connection, nbytes)
        array = memory.array
        memory.close()
        return array


def _with_ids_restored(makers: Sequence[Callable[[], Any]]) -> Iterator[Callable[[], Any]]:
    """The makers, each of which finds the gymnasium ids as the caller has them, whatever the one before imported."""
    for maker in makers:
        restore_ids()
        yield maker


class EnvService:
    """The envs of a worker, from the moment when they are made.

    Args:
        envs: the envs.
        options: how they are run.
        first_row: the row of the first, as the caller numbers them.
        side: the worker's end of what connects it with the caller.
    """

    _block: Block
    _host: EnvHost
    _inputs: Inputs
    _is_counted: memoryview
    _tally: SharedTally | None

    def __init__(self, envs: list[Any], options: RemoteHostOptions[Any], first_row: int, side: Side):
        self._envs = envs
        self._options = options
        self._first_row = first_row
        self._side = side
        self._mailbox = side.mailbox
        self._objects: list[tuple[str, tuple[str, ...], Any]] = []
        self._are_closed = False
        self._commands: dict[int, Callable[[], Any]] = {
            Command.DESCRIBE: self._describe_again,
            Command.ALLOCATE: self._allocate,
            Command.CALL: self._call,
        }

    def run(self) -> None:
        """Serves until the envs are closed: because the caller says so, or is gone."""
        try:
            self.begin()
            wake = self._side.wake
            while self.obey(wake.wait()):
                pass
        finally:
            self.end()

    def begin(self) -> None:
        """Tells the caller what the envs say of themselves."""
        self._answer(self._describe)

    def obey(self, command: int | None) -> bool:
        """Does what the caller asks, and answers; False once that was to close the envs."""
        wake = self._side.wake
        if command == Command.ROUND:
            wake.wake(self._counted_round(with_mail=False) if self._is_counted[0] else self._round(with_mail=False))
        elif command == Command.ROUND_WITH_MAIL:
            wake.wake(self._counted_round(with_mail=True) if self._is_counted[0] else self._round(with_mail=True))
        elif command is not None and command >= SYNC:
            wake.restart()
            wake.signal(command)
        elif command == Command.CLOSE:
            self._close()
            return False
        else:
            self._answer(self._commands[command or 0])
        return True

    def end(self) -> None:
        """Closes the envs, unless that was done, where nobody is there to be told of what they raise."""
        with suppress(Exception):
            self._close_envs()

    @property
    def at_work(self) -> int:
        """What is done now; see :class:`~gymbridge.engine.codes.AtWork`."""
        block = self.__dict__.get("_block")
        return _NOTHING if block is None else int(block.at_work[0])

    # ---------------------------------------------------------------- rounds

    def _counted_round(self, *, with_mail: bool) -> Answer:
        """As ``_round``, once the caller has asked what the workers do."""
        tally = self._tally
        if tally is None:
            tally = self._tally = SharedTally(self._block.counts[0])
            self._host.count(tally)
        tally.begin_round()
        answer = self._round(with_mail=with_mail)
        tally.end_round()
        return answer

    def abandon_round(self) -> None:
        """An interrupt has ended the round under way, if one was, and the worker goes on: it counts as far as it came.

        As it does in a ``SerialEnv``; a process would end here, and its last round counts for nothing.
        """
        tally: SharedTally | None = getattr(self, "_tally", None)
        if tally is not None and tally.begun_at:
            tally.end_round()

    def _round(self, *, with_mail: bool) -> Answer:
        ops = self._block.op.tobytes()
        try:
            beside, reset_kwargs = self._mailbox.take() if with_mail else (None, None)
            inputs = self._inputs.read(beside)
        except Exception as error:  # what this process cannot unpickle
            report = self._all_failed(ops, error)
        else:
            report = self._host.run(ops, inputs, reset_kwargs)
        self._block.at_work[0] = _NOTHING
        self._block.done_at[0] = perf_counter()
        in_block = Answer.DONE_WITH_INFOS if report is IN_BLOCK else Answer.DONE
        if (report is NOTHING or report is IN_BLOCK) and not self._objects:
            return in_block
        first = self._first_row
        news = RoundNews(
            _shifted(report.steps, first),
            _shifted(report.resets, first),
            {first + row: ToldError.of(error) for row, error in report.errors.items()},
            list(self._written_objects(ops)) if self._objects else [],
        )
        if not any(news):
            return in_block
        try:
            packed = self._side.packed(news, "what the envs gave")
        except Exception:
            packed = self._side.packed(self._without_unpicklable(news), "what the envs gave")
        try:
            self._mailbox.put(packed)
        except OSError as error:  # no room for so much
            told = OSError(error.errno, f"no room for {len(packed)} bytes beside what is shared: {error.strerror}")
            failed = self._all_failed(ops, told)
            errors = {first + row: ToldError.of(each) for row, each in failed.errors.items()}
            self._mailbox.put(packed_for_caller(RoundNews({}, {}, errors, []), "an error"))
        return Answer.DONE_WITH_MAIL

    def _all_failed(self, ops: bytes, error: Exception) -> Report:
        """The report of a round in which no env was asked for anything."""
        report = Report()
        report.errors = {row: error for row, op in enumerate(ops) if op}
        fail_rows(self._block.state, ops)
        forget_infos(self._block, range(len(ops)))
        return report

    def _written_objects(self, ops: bytes) -> Iterable[tuple[str, tuple[str, ...], int, Any]]:
        source = self._block.source
        for section, key, array in self._objects:
            for row, op in enumerate(ops):
                if op and (section == "next" or source[row] == Source.ROOT):
                    yield section, key, self._first_row + row, array[row]

    def _without_unpicklable(self, news: RoundNews) -> RoundNews:
        """The news without the rows that cannot be sent, which are told as errors."""
        errors = dict(news.errors)

        def sendable(row: int, value: Any) -> bool:
            try:
                self._side.packed(value, f"what env {row} gave")
            except Exception as error:
                errors[row] = ToldError.of(error)
                self._block.state[row - self._first_row] = RowState.FAILED
                return False
            return True

        steps = {row: value for row, value in news.steps.items() if sendable(row, value)}
        resets = {row: value for row, value in news.resets.items() if sendable(row, value)}
        objects = [each for each in news.objects if sendable(each[2], each[3])]
        lost = {(section, row) for section, _, row, _ in news.objects} - {(each[0], each[2]) for each in objects}
        lost |= {("next", row) for row in news.steps.keys() - steps.keys()}
        lost |= {("root", row) for row in news.resets.keys() - resets.keys()}
        for section, row in lost:
            self._lose(section, row - self._first_row)
        return RoundNews(steps, resets, errors, objects)

    def _lose(self, section: str, row: int) -> None:
        """Has a row show what it would if its env had raised in its step (``next``) or in its reset (``root``)."""
        block = self._block
        if section == "next":
            for key in (("reward",), ("terminated",), ("truncated",)):
                if key in block.next:
                    block.next[key][row] = 0
        elif block.op[row] == Op.STEP_MAYBE_RESET:
            block.source[row] = Source.NEXT

    # ---------------------------------------------------------------- what is asked beside rounds

    def _answer(self, work: Callable[[], Any]) -> None:
        try:
            packed, answer = self._side.packed(work(), "the answer"), Answer.DONE_WITH_MAIL
        except Exception as error:
            packed, answer = packed_for_caller((ToldError.of(error), None), "an error"), Answer.FAILED
        self._mailbox.put(packed)
        self._side.wake.wake(answer)

    def _describe(self) -> list[Any]:
        descriptions: list[Any] = []
        for env in self._envs:
            description = self._options.describe(env)
            # equal ones are one and the same: pickled once, since spaces of images are large
            descriptions.append(
                descriptions[0] if descriptions and _equal(description, descriptions[0]) else description
            )
        self._descriptions = descriptions
        return descriptions

    def _describe_again(self) -> list[Any]:
        self._options = self._mailbox.take()
        return self._describe()

    def _allocate(self) -> None:
        allocation: Allocation = self._mailbox.take()
        memory = self._side.received_memory(allocation.nbytes)
        block = Block(allocation.layout, memory, in_use=allocation.in_use)
        whole = memoryview(memory)  # type: ignore[arg-type]
        self._host = self._options.host(self._envs, block)
        self._inputs = self._options.inputs(self._descriptions, block)
        self._block = block
        block.at_work[0] = _NOTHING
        self._is_counted = block.is_counted
        self._tally = None
        self._objects = [
            (section, key, array)
            for section in ("next", "root")
            for key, array in getattr(block, section).items()
            if array.dtype.hasobject
        ]
        self._side.wake.share(
            whole[allocation.ours : allocation.ours + 1],
            whole[allocation.theirs : allocation.theirs + 1],
            allocation.look_seconds,
        )

    def _call(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """What the rows' verbs gave, and the errors of those that raised."""
        results: dict[int, Any] = {}
        errors: dict[int, Any] = {}
        calls: list[Call] = self._mailbox.take()
        for verb, row, arguments in calls:
            self._block.at_work[0] = _CALL | (row - self._first_row)
            try:
                result = getattr(self._host, verb)(row - self._first_row, *arguments)
                if result is not None:
                    self._side.packed(result, f"what {verb!r} of env {row} gave")  # each is to fail for itself
                results[row] = result
            except Exception as error:
                errors[row] = ToldError.of(error)
        self._block.at_work[0] = _NOTHING
        return results, errors

    def _close(self) -> None:
        told = None
        try:
            self._close_envs()
        except Exception as error:
            told = ToldError.of(error), getattr(error, "env_index", None)
        self._mailbox.put(packed_for_caller(told, "an error"))
        self._side.wake.signal(Answer.CLOSED)

    def _close_envs(self) -> None:
        """Closes the envs, once."""
        if not self._are_closed:
            self._are_closed = True
            if hasattr(self, "_host"):
                self._host.close()
            else:
                close_all(self._envs)


def _shifted(rows: dict[int, Any], first_row: int) -> dict[int, Any]:
    return {first_row + row: value for row, value in rows.items()} if rows else rows


def _equal(one: Any, other: Any) -> bool:
    """Whether two descriptions are the same, where that can be told: spaces may compare in ways of their own."""
    try:
        return bool(one == other)
    except Exception:
        return False
