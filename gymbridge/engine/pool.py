"""The engine of a pool: each env in a worker of its own, given work and heard in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from gymbridge.engine.block import Block
from gymbridge.engine.codes import RowState
from gymbridge.engine.host import IN_BLOCK, NOTHING, EnvDescription, RemoteHostOptions, Report
from gymbridge.engine.info_records import forget_infos
from gymbridge.engine.parallel import Affinity, ParallelEngine
from gymbridge.engine.protocol import Answer, Command, RoundMail
from gymbridge.engine.worker_kinds import SharedProcessWorkers, ThreadWorkers, WorkerKind
from gymbridge.errors import CallTimeoutError

__all__ = ["PoolEngine", "ThreadPoolEngine"]

Description = TypeVar("Description", bound=EnvDescription)


class PoolEngine(ParallelEngine[Description]):
    """Envs in a worker each, here a process, to which work is handed out and which are heard as they come to its end.

    ``submit`` gives envs work, ``wait`` tells which are ready, and ``take`` has what they gave; what is ready stays so
    until it is taken. An env that is submitted as a *lane* is waited for by ``wait_for`` alone, so that threads may
    each have an env of their own: calls for different lanes, and those for all that are none, may run at once.

    While nothing is under way it is an engine like any other, with rounds of all rows and verbs of rows.

    Args:
        makers, options: see :class:`~gymbridge.engine.parallel.ParallelEngine`.
        envs_per_worker: envs a process, contiguous ones, each of which is made and run in a thread of its own there;
            the last process may have fewer. ``worker_affinity`` has an entry for each process. What ends a process, be
            it the ``SystemExit`` of one env, ends all its envs.
        **how: its other arguments, but for ``num_workers``.

    Attributes:
        envs_per_worker: envs a process.

    Raises:
        ValueError, TypeError: ``envs_per_worker`` is no positive int; and what else ``ParallelEngine`` raises.

    Example:
        >>> import gymnasium as gym
        >>> from gymbridge.engine.codes import Op
        >>> from gymbridge.engine.gym_host import GymHostOptions
        >>> engine = PoolEngine([lambda: gym.make("CartPole-v1")] * 3, GymHostOptions())
        >>> engine.allocate()
        >>> engine.submit([2, 0], bytes([Op.RESET, Op.RESET]), None, [{"seed": 7}, {"seed": 8}])
        >>> sorted(engine.wait(2))
        [0, 2]
        >>> rows = Block(engine.block.layout.rows(0, 2))
        >>> report = engine.take([0, 2], rows)
        >>> rows.root["observation",].shape, dict(report.errors)
        ((2, 4), {})
        >>> engine.close()
    """

    envs_per_worker: int

    def __init__(
        self,
        makers: Iterable[Callable[[], Any]],
        options: RemoteHostOptions[Description],
        *,
        envs_per_worker: int = 1,
        **how: Any,
    ):
        if isinstance(envs_per_worker, bool) or not isinstance(envs_per_worker, (int, np.integer)):
            kind = type(envs_per_worker).__name__
            raise TypeError(f"envs_per_worker: got {envs_per_worker!r} of type {kind}, expected an int")
        if envs_per_worker < 1:
            raise ValueError(f"envs_per_worker: got {envs_per_worker}, expected 1 or more")
        makers = list(makers)
        self.envs_per_worker = int(envs_per_worker)
        super().__init__(makers, options, num_workers=max(1, len(makers)), **how)

    def _processes(self, **how: Any) -> WorkerKind:
        if self.envs_per_worker == 1:
            return super()._processes(**how)
        return SharedProcessWorkers(self.envs_per_worker, **how)

    def _start(self, makers: Any, options: Any, kind: WorkerKind, **how: Any) -> None:
        super()._start(makers, options, kind, **how)
        self._ends = kind.ready_ends(self._crew.ends)
        self._batch: set[int] = set()  # rows with work under way, or done and not taken
        self._lanes: set[int] = set()
        self._ready: dict[int, None] = {}
        self._interrupted: set[int] = set()

    # ---------------------------------------------------------------- work

    @property
    def busy(self) -> set[int]:
        """The rows whose work is under way or not taken yet, lanes too."""
        return self._batch | self._lanes

    def submit(
        self,
        rows: Sequence[int],
        ops: bytes,
        inputs: Any,
        reset_kwargs: Sequence[Mapping[str, Any]] | None = None,
        *,
        lane: bool = False,
    ) -> None:
        """Gives rows work; nothing has begun where it raises.

        Args:
            rows: the rows, each once.
            ops: the op of each.
            inputs: what they are given, a batch of these rows in the form that their hosts take; see
                :class:`~gymbridge.engine.host.Host`.
            reset_kwargs: of each.
            lane: the rows are waited for by ``wait_for`` and not by ``wait``.

        Raises:
            RuntimeError: a row that is busy.
            WorkerDiedError: a row whose worker is dead.
            UnpicklableError: what cannot be sent.
        """
        self._crew.require_open()
        busy = [row for row in rows if row in self._batch or row in self._lanes]
        if busy:
            raise RuntimeError(f"envs {busy} have work under way, or results that were not received")
        self._settle(rows)
        if self._crew.dead:
            self._require_living(rows)
        beside = self._inputs.write_rows(rows, inputs)
        mail: list[bytes | None] = [None] * len(rows)
        if beside is not None or reset_kwargs is not None:
            for index, row in enumerate(rows):
                own = None if beside is None else self._inputs.part(beside, index, index + 1)
                kwargs = None if reset_kwargs is None else reset_kwargs[index : index + 1]
                mail[index] = self._kind.packed_round(RoundMail(own, kwargs), f"what env {row} is given")
        try:
            for row, op, message in zip(rows, ops, mail, strict=True):
                (self._lanes if lane else self._batch).add(row)
                self._op[row] = op
                if message is not None:
                    self._crew.post(row, message)
                if not lane:
                    self._ends.watch(row)
                self._crew.begin(row, Command.ROUND if message is None else Command.ROUND_WITH_MAIL)
                if row in self._crew.dead and not lane:
                    self._note_ready(row)
        except BaseException:
            self._abandon_rows(rows)
            raise

    def wait(self, least: int, timeout: float | None = None) -> list[int]:
        """The rows that are ready, in the order in which that was seen, once there are ``least`` or the time is over.

        What an interrupt ends has lost nothing.

        Args:
            least: how many to wait for; with 0 it tells what is ready now.
            timeout: seconds; None to wait for ever.

        Raises:
            ValueError: ``least`` is more than there are rows under way, lanes apart.
        """
        if least > len(self._batch):
            raise ValueError(f"least: got {least}, expected at most {len(self._batch)}, the envs with work under way")
        deadline = None if timeout is None else perf_counter() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - perf_counter())
            missing = least - len(self._ready)
            found = self._ends.wait(left, missing) if missing > 0 else self._ends.wait(0.0)
            for row in found:
                self._note_ready(row)
            if len(self._ready) >= least or (not found and deadline is not None and perf_counter() >= deadline):
                return [*self._ready]

    def wait_for(self, row: int, timeout: float | None = None) -> None:
        """Waits until a lane is ready.

        Raises:
            CallTimeoutError: it took longer; it is still under way.
            ValueError: the row is no lane with work under way.
        """
        if row not in self._lanes:
            raise ValueError(f"env {row} has no work under way in a lane")
        if row not in self._crew.dead and not self._crew.ends[row].is_ready(timeout):
            raise CallTimeoutError(f"env {row} did not come to its end in time")

    def take(self, rows: Sequence[int], into: Block) -> Report:
        """What rows that are ready gave; they are idle then.

        Args:
            rows: the rows, in the order in which they are wanted.
            into: a block with as many rows or more, of these rows' layout; its first rows are written.

        Returns:
            The report of the work, of which row ``i`` is ``rows[i]``.
        """
        crew, report = self._crew, NOTHING
        try:
            for index, row in enumerate(rows):
                crew.finish(row)
                answer = crew.ends[row].latest
                if row not in crew.dead and answer == Answer.DONE:
                    continue
                if row not in crew.dead and answer == Answer.DONE_WITH_INFOS:
                    report = IN_BLOCK if report is NOTHING else report
                    continue
                report = Report() if report is NOTHING or report is IN_BLOCK else report
                self._read_row(row, index, report)
            _gather(self.block, rows, into)
            self._let_go(rows)
        except BaseException:
            self._abandon_rows(rows)
            raise
        return report

    def _read_row(self, row: int, index: int, report: Report) -> None:
        crew = self._crew
        if row in crew.dead:
            report.errors[index] = crew.dead[row]
            self.block.state[row] = RowState.FAILED
            forget_infos(self.block, [row])
            return
        own = Report()
        self._read_news(crew.answer(row), own)
        for ours, theirs in ((report.steps, own.steps), (report.resets, own.resets), (report.errors, own.errors)):
            if row in theirs:
                ours[index] = theirs[row]

    def _note_ready(self, row: int) -> None:
        self._ready[row] = None  # before it is forgotten: an interrupt may come between the two
        self._ends.forget(row)

    def _let_go(self, rows: Iterable[int]) -> None:
        """These rows are idle again."""
        self._lanes.difference_update(rows)
        self._batch.difference_update(rows)
        for row in rows:
            self._ready.pop(row, None)

    # ---------------------------------------------------------------- what was interrupted

    def _abandon_rows(self, rows: Iterable[int]) -> None:
        """These rows' work is not to be taken any more: what they do, the caller never sees."""
        for row in rows:
            self._interrupted.add(row)
            self._ends.forget(row)
            self.block.state[row] = RowState.FAILED
        self._let_go(rows)

    def _settle(self, rows: Iterable[int]) -> None:
        left = self._interrupted.intersection(rows)
        if left:
            self._crew.settle(left)
            for row in left:
                self.block.state[row] = RowState.FAILED  # the worker wrote it meanwhile
            self._interrupted -= left
        if self.unsettled:
            self.settle()

    # ---------------------------------------------------------------- rounds and verbs

    def send(self, ops: bytes, inputs: Any, reset_kwargs: Sequence[Mapping[str, Any]] | None = None) -> None:
        """See :meth:`ParallelEngine.send`; refused while a row is busy."""
        self._require_idle("send")
        super().send(ops, inputs, reset_kwargs)

    def send_calls(self, verb: str, arguments: Mapping[int, tuple[Any, ...]]) -> None:
        """See :meth:`ParallelEngine.send_calls`; refused while a row is busy."""
        self._require_idle(verb)
        super().send_calls(verb, arguments)

    def _require_idle(self, what: str) -> None:
        if self.busy:
            raise RuntimeError(f"{what}: refused while envs {sorted(self.busy)} have work under way, or unread results")
        self._settle(range(self.num_envs))


class ThreadPoolEngine(PoolEngine[Description]):
    """A pool whose envs run in a thread of this process each: nothing is pickled, and no env can be killed.

    Each env is made in the thread that runs it, at the same time as the others, and stays there. What it gives,
    exceptions included, is had as the very object, and so are attributes and what goes to and comes from calls; of what
    work is given, arrays, dicts, lists and tuples are copied and other objects are not. An env that
    ends its thread (by ``sys.exit()``, say) is dead for good, with a ``WorkerDiedError`` whose cause is what it raised.
    The threads are daemons: ``close`` warns of those that do not end in time and leaves them behind, and with
    ``terminate`` it waits for none.

    Args:
        makers, options: see :class:`~gymbridge.engine.parallel.ParallelEngine`.
        worker_affinity: the cores of each thread, and of what its env starts.
        start_timeout, shutdown_timeout: see there.

    Example:
        >>> import gymnasium as gym
        >>> from gymbridge.engine.codes import Op
        >>> from gymbridge.engine.gym_host import GymHostOptions
        >>> engine = ThreadPoolEngine([lambda: gym.make("CartPole-v1")] * 3, GymHostOptions())
        >>> engine.allocate()
        >>> engine.submit([1], bytes([Op.RESET]), None)
        >>> engine.wait(1)
        [1]
        >>> engine.close()
    """

    def __init__(
        self,
        makers: Iterable[Callable[[], Any]],
        options: RemoteHostOptions[Description],
        *,
        worker_affinity: Affinity | None = None,
        start_timeout: float | None = 60.0,
        shutdown_timeout: float | None = 10.0,
    ):
        makers = list(makers)
        self._start(
            makers,
            options,
            ThreadWorkers(),
            num_workers=max(1, len(makers)),
            worker_affinity=worker_affinity,
            start_timeout=start_timeout,
            shutdown_timeout=shutdown_timeout,
        )


def _gather(block: Block, rows: Sequence[int], into: Block) -> None:
    """Copies what rows gave to the first rows of another block."""
    index = np.asarray(rows, np.intp)
    for section in ("next", "root"):
        targets = getattr(into, section)
        for key, array in getattr(block, section).items():
            if key in targets:
                np.take(array, index, 0, targets[key][: len(index)], "clip")  # not "raise": that would copy twice
    for number, row in enumerate(rows):
        into.state[number] = block.state[row]
        into.source[number] = block.source[row]
