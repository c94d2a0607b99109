"""The engine that runs its envs in worker processes, which share one block of memory with the caller."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from gymbridge.engine.block import Block
from gymbridge.engine.codes import AtWork, Op, RowState
from gymbridge.engine.failures import fail_rows, raise_env_error
from gymbridge.engine.hangs import HangWatch
from gymbridge.engine.host import IN_BLOCK, NOTHING, EnvDescription, Inputs, RemoteHostOptions, Report, joined
from gymbridge.engine.info_records import forget_infos
from gymbridge.engine.layout import ALIGNMENT, Layout
from gymbridge.engine.mailbox import packed_for_this_process, packed_for_worker
from gymbridge.engine.protocol import Allocation, Answer, Call, Command, RoundMail, RoundNews
from gymbridge.engine.replacing import Replacing
from gymbridge.engine.restarts import RestartLimit, Restarts
from gymbridge.engine.row_verbs import RowVerbs
from gymbridge.engine.shared_memory import MemoryKind
from gymbridge.engine.supervision import Crew, not_known
from gymbridge.engine.work_counts import EngineStats, SharedTally, forget_round
from gymbridge.engine.worker_kinds import ProcessWorkers
from gymbridge.engine.worker_loop import EnvWorker
from gymbridge.engine.workers import StartMethod
from gymbridge.engine.workers.wake import LOOK_SECONDS

__all__ = [
    "Affinity",
    "ParallelEngine",
    "affinities",
    "number_of_workers",
    "require_no_step_timeout",
    "usable_cores",
]

Description = TypeVar("Description", bound=EnvDescription)

Affinity = Sequence[Iterable[int]] | Callable[[int], Iterable[int]]

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def usable_cores() -> list[int]:
    """The numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


class _Round(NamedTuple):
    """A round under way.

    Attributes:
        wanted: what the caller wants of each row.
        ops: what the workers do; otherwise where a row's worker was replaced.
        workers: those concerned.
        inputs, reset_kwargs: what the rows are given.
    """

    wanted: bytes
    ops: bytes
    workers: Sequence[int]
    inputs: Any
    reset_kwargs: Sequence[Mapping[str, Any]] | None


class ParallelEngine(RowVerbs, Generic[Description]):
    """Envs in worker processes, each of which runs a contiguous run of them in turn.

    The workers are started, and make their envs, at once; none is made here. A round wakes only the workers that have
    something to do. It may be sent and received in two calls; one round is under way at a time.

    Args:
        makers: one callable an env; see :class:`~gymbridge.engine.makers.EnvMaker`.
        options: how the envs are run.
        num_workers: worker processes; ``min(len(makers), usable cores)`` unless told.
        method: how they are started; see :func:`~gymbridge.engine.workers.start.start_worker`.
        memory: what the block lies in; see :meth:`~gymbridge.engine.shared_memory.SharedBytes.allocate`.
        daemon: whether a worker that ``multiprocessing`` started may not start such processes itself.
        worker_affinity: the cores of each worker, a sequence with one entry a worker or a function of its number; None
            for all.
        num_sub_threads: threads of numerical libraries in a worker; None to leave them alone.
        torch_dtype: the name of torch's default dtype in a worker that has torch; None to leave it alone.
        start_timeout: seconds until all envs are made.
        shutdown_timeout: seconds that ``close`` gives the workers unless it is told otherwise.
        preload: modules that the envs need and that take long to import, see
            :func:`~gymbridge.engine.workers.start.start_worker`.
        step_timeout: seconds that a step or a reset of an env may take; its worker is ended then. None for no limit.
        max_restarts: replace a worker that died, so often in so many seconds; None to raise at once. See
            :class:`~gymbridge.engine.lost_rows.LostRows` for what becomes of its rows.
        caller_steps: the caller runs a share of the envs itself, the last of them, in ``receive``, where it would wait
            else: as many as a worker or one less, made here in the process and the thread that calls. What bounds time
            does not bound that share.

    Attributes:
        num_envs: number of envs.
        num_workers: number of worker processes.
        descriptions: what each env says of itself.
        block: the memory, once ``allocate`` has made it.
        unsettled: whether an interrupted call has left something under way.
        shutdown_timeout: as it was given; it may be set.
        restarts: which workers have been replaced.
        counts: what ``stats`` gives, after ``close`` too.

    Raises:
        UnpicklableError: a maker cannot be sent; the message names its env.
        WorkerDiedError: a worker died while it made its envs.
        WorkerStartError: a worker could not be started, or the envs were not made in time.
        ValueError, TypeError: no maker, or an option with a value that it does not have; ``step_timeout`` with
            ``caller_steps``, since nobody can end a step of the caller's.

    What a maker raises comes through, marked with its env; all workers are gone then.

    Example:
        >>> import gymnasium as gym
        >>> from gymbridge.engine.codes import Op
        >>> from gymbridge.engine.gym_host import GymHostOptions
        >>> engine = ParallelEngine([lambda: gym.make("CartPole-v1")] * 2, GymHostOptions())
        >>> engine.allocate()
        >>> report = engine.run(bytes([Op.RESET] * 2), None, [{"seed": 0}, {"seed": 1}])
        >>> engine.block.root["observation",].shape
        (2, 4)
        >>> engine.close()
    """

    block: Block
    _inputs: Inputs

    def __init__(
        self,
        makers: Iterable[Callable[[], Any]],
        options: RemoteHostOptions[Description],
        *,
        num_workers: int | None = None,
        method: StartMethod | None = None,
        memory: MemoryKind | None = None,
        daemon: bool = False,
        worker_affinity: Affinity | None = None,
        num_sub_threads: int | None = None,
        torch_dtype: str | None = None,
        start_timeout: float | None = 60.0,
        shutdown_timeout: float | None = 10.0,
        preload: Sequence[str] = (),
        step_timeout: float | None = None,
        max_restarts: RestartLimit | None = None,
        caller_steps: bool = False,
    ):
        makers = list(makers)
        threads: dict[str, str | None] = {}
        if num_sub_threads is not None:
            threads.update(dict.fromkeys(_THREAD_VARIABLES, str(num_sub_threads)))
        kind = self._processes(method=method, daemon=daemon, memory=memory, environ=threads, preload=preload)
        if not makers:
            raise ValueError("got no maker of an env, expected one or more")
        if caller_steps:
            require_no_step_timeout(step_timeout)
        cores = usable_cores()
        self.num_envs = len(makers)
        self.num_workers = number_of_workers(num_workers, self.num_envs, len(cores), caller_steps)
        self._options = options
        self._kind = kind
        self.shutdown_timeout = shutdown_timeout
        # of several threads of a process, one that looks keeps the interpreter from the others
        self._looks = kind.together == 1 and self.num_workers + 1 <= len(cores)
        cores_of = affinities(worker_affinity, ceil(self.num_workers / kind.together))
        parts = _parts(self.num_envs, self.num_workers, caller_steps)
        jobs = [
            EnvWorker(
                makers[part.start : part.stop],
                options,
                part.start,
                cores_of[worker // kind.together],
                num_sub_threads,
                torch_dtype,
            )
            for worker, part in enumerate(parts[: self.num_workers])
        ]
        caller = None
        if caller_steps:
            first = parts[-1].start
            caller = EnvWorker(makers[first:], options, first, cores=None, num_threads=None)
        self._crew = Crew(parts, jobs, kind, start_timeout, caller)
        self.descriptions: list[Description] = [each for told in self._crew.made for each in told]
        self._all_workers = range(len(parts))  # the caller's share is one too
        self._worker_of = [worker for worker, part in enumerate(parts) for _ in part]
        self.restarts = Restarts(max_restarts)
        crew = self._crew
        self.counts = EngineStats(len(parts), self.restarts, lambda: crew.timeouts)
        self._step_timeout = step_timeout
        self._hangs: HangWatch | None = None
        self._replacing: Replacing | None = None
        self._round: _Round | None = None
        self.unsettled = False
        self._interrupted_ops = bytes(self.num_envs)
        self._calls_under_way = False

    def _processes(self, **how: Any) -> ProcessWorkers:
        """The processes that the workers are."""
        return ProcessWorkers(**how)

    def stats(self, *, reset: bool = False) -> dict[str, Any]:
        """See :class:`~gymbridge.engine.host.Engine`; each worker counts in its part of the block."""
        self.counts.begin(self._begin_to_count)
        return self.counts.taken(reset=reset)

    def _begin_to_count(self) -> list[SharedTally]:
        block, firsts = self.block, [part.start for part in self._crew.parts]
        for first in firsts:
            block.is_counted[first] = True
        return [SharedTally(block.counts[first]) for first in firsts]

    # ---------------------------------------------------------------- before the first round

    def describe(self, options: RemoteHostOptions[Any]) -> None:
        """Has the envs describe themselves anew, under other options, which are those of the hosts too.

        For a front that can choose how to run the envs only once it knows what they are; before ``allocate``.
        """
        self._crew.require_open()
        packed = packed_for_worker(options, "the options")
        for worker in self._all_workers:
            self._crew.post(worker, packed)
        self._options = options
        for job in self._crew.jobs:
            job.options = options
        self.descriptions = [each for told in self._ask(Command.DESCRIBE) for each in told]

    def allocate(self) -> None:
        """See :class:`~gymbridge.engine.host.Engine`; the workers make their hosts over their own rows."""
        self._crew.require_open()
        layout = Layout.of(self.descriptions)
        # behind the layout two sequence bytes a worker, each in a cache line of its own
        nbytes = layout.nbytes + 2 * ALIGNMENT * len(self._all_workers)
        self._memory = self._kind.memory(nbytes)
        self.block = Block(layout, self._memory.array)
        for worker in self._all_workers:
            self._hand_over_block(worker, in_use=False)
        self._ask(Command.ALLOCATE)
        self._inputs = self._options.inputs(self.descriptions, self.block)
        self._op = self.block.op
        at_work, firsts = self.block.at_work, [part.start for part in self._crew.parts]
        self._crew.doing = lambda worker: AtWork.text(at_work[firsts[worker]], firsts[worker])
        if self._step_timeout is not None:
            self._hangs = HangWatch(self._step_timeout, lambda worker: at_work[firsts[worker]])
        if self.restarts.limit is not None:
            self._replacing = Replacing(self._crew, self.restarts, self.block, self.descriptions, self._hand_over_block)

    def _hand_over_block(self, worker: int, in_use: bool = True) -> None:
        """Gives a worker its part of the block, before it is told to allocate.

        Args:
            in_use: another has had it.
        """
        part, nbytes = self._crew.parts[worker], self._memory.array.nbytes
        theirs = self.block.layout.nbytes + 2 * ALIGNMENT * worker
        ours = theirs + ALIGNMENT
        whole = memoryview(self._memory.array)  # type: ignore[arg-type]
        whole[theirs] = 0  # of a worker that died
        forget_round(self.block.counts[part.start])
        look = LOOK_SECONDS if self._looks else 0.0
        rows = self.block.layout.rows(part.start, part.stop)
        allocation = Allocation(rows, nbytes, theirs, ours, look, in_use)
        self._crew.post(worker, packed_for_worker(allocation, "the layout"))
        self._crew.hand_over(worker, self._memory)
        self._crew.ends[worker].share(whole[ours : ours + 1], whole[theirs : theirs + 1])

    def _ask(self, command: Command) -> list[Any]:
        """What each worker answers to a command that all are given."""
        self._crew.command(self._all_workers, command)
        self._crew.wait()
        return [self._crew.answer(worker) for worker in self._all_workers]

    # ---------------------------------------------------------------- rounds

    overlaps = True
    """``run`` takes what is done ``meanwhile``."""

    def run(
        self,
        ops: bytes,
        inputs: Any,
        reset_kwargs: Sequence[Mapping[str, Any]] | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> Report:
        """One round: one op a row; see :class:`~gymbridge.engine.host.Host`.

        Args:
            ops, inputs, reset_kwargs: see there.
            meanwhile: what the caller does while the envs are at work.
        """
        try:
            self.send(ops, inputs, reset_kwargs)
            if meanwhile is not None:
                meanwhile()
            return self.receive()
        except BaseException:
            if self._round is not None:  # an interrupt between the two
                self._abandon(self._round.wanted)
            raise

    def send(self, ops: bytes, inputs: Any, reset_kwargs: Sequence[Mapping[str, Any]] | None = None) -> None:
        """Begins a round, which ``receive`` ends.

        Args:
            ops, inputs, reset_kwargs: see :class:`~gymbridge.engine.host.Host`.

        Raises:
            WorkerDiedError: a row that is to do something had its env in a worker that is dead; nothing has begun.
            UnpicklableError: what cannot be sent; nothing has begun.
            RuntimeError: a round is under way.
        """
        if self._round is not None or self._calls_under_way:
            raise RuntimeError("send: refused while a round or a call is under way")
        crew = self._crew
        if crew.refusal:
            crew.require_open()
        if self.unsettled:
            self.settle()
        if crew.dead:
            self._require_living(self._with_work(ops))
        wanted = ops
        if self._replacing is not None:
            self._keep_seeds(range(self.num_envs), ops, reset_kwargs)
            ops = self._replacing.lost.ops(ops)
        workers = self._all_workers if 0 not in ops else self._with_work(ops)
        with_mail = self._write(ops, workers, inputs, reset_kwargs)
        self._round = _Round(wanted, ops, workers, inputs, reset_kwargs)
        try:
            crew.command(workers, Command.ROUND, with_mail)
        except BaseException:
            self._abandon(wanted)
            raise

    def _write(self, ops: bytes, workers: Sequence[int], inputs: Any, reset_kwargs: Any) -> Sequence[int]:
        """Puts a round where the workers find it; those that find a part of it in their mailbox."""
        beside = self._inputs.write(inputs)
        with_mail: Sequence[int] = ()
        if beside is not None or reset_kwargs is not None:
            with_mail = workers
            self._post(workers, beside, reset_kwargs)
        self._op[:] = ops
        return with_mail

    def receive(self, timeout: float | None = None) -> Report:
        """Waits for the end of the round that ``send`` began.

        Args:
            timeout: seconds; None to wait for ever.

        Raises:
            CallTimeoutError: the round took longer; what it still gives ``settle`` drops, and its rows are ``FAILED``.
            RuntimeError: no round is under way.
        """
        if self._round is None:
            raise RuntimeError("receive: no round is under way")
        wanted, ops, workers, *_ = self._round
        try:
            deadline = None if timeout is None else perf_counter() + timeout
            self._crew.wait(timeout, self._hangs)
            report = self._report(ops, workers)
            if self._replacing is not None:
                report = self._with_lost_shown(self._round, report, self._replacing, deadline)
        except BaseException:
            self._abandon(wanted)
            raise
        self._round = None
        return report

    def _with_lost_shown(self, begun: _Round, report: Report, replacing: Replacing, deadline: float | None) -> Report:
        """The report of a round, once the workers that died in it are replaced and have done what is left of it."""
        crew, lost = self._crew, replacing.lost
        wanted, ops, workers = begun.wanted, begun.ops, begun.workers
        if crew.dead:
            self.restarts.begin_call()
        while dead := [worker for worker in workers if worker in crew.dead]:
            failed = replacing.replace(dead, wanted)
            for worker, error in failed.items():
                report.errors.update({row: error for row in crew.parts[worker] if ops[row]})
            replaced = {other for worker in dead if worker not in failed for other in crew.same_process(worker)}
            rows = {row for worker in replaced for row in crew.parts[worker]}
            for row in rows:
                report.errors.pop(row, None)
            ops = lost.ops(bytes(op if row in rows else Op.IDLE for row, op in enumerate(wanted)))
            workers = self._with_work(ops)
            with_mail = self._write(ops, workers, begun.inputs, begun.reset_kwargs)
            crew.command(workers, Command.ROUND, with_mail)
            crew.wait(None if deadline is None else max(0.0, deadline - perf_counter()), self._hangs)
            report = joined(report, self._report(ops, workers))
        report = lost.shown(wanted, report)
        lost.keep_known([row for row, op in enumerate(wanted) if op])
        return report

    def _keep_seeds(self, rows: Iterable[int], ops: bytes, reset_kwargs: Sequence[Mapping[str, Any]] | None) -> None:
        for row, op, kwargs in zip(rows, ops, reset_kwargs or (), strict=False):
            if op:  # else they are ignored
                self.restarts.take_seed(row, kwargs.get("seed"))

    def _with_work(self, ops: bytes) -> list[int]:
        parts = self._crew.parts
        return [worker for worker in self._all_workers if any(ops[parts[worker].start : parts[worker].stop])]

    def _post(self, workers: Sequence[int], beside: Any, reset_kwargs: Sequence[Mapping[str, Any]] | None) -> None:
        packed = []
        for worker in workers:
            part = self._crew.parts[worker]
            mail = RoundMail(
                None if beside is None else self._inputs.part(beside, part.start, part.stop),
                None if reset_kwargs is None else reset_kwargs[part.start : part.stop],
            )
            packed.append(self._packed(worker, mail, f"what the envs {[*part]} are given"))
        for worker, message in zip(workers, packed, strict=True):
            self._crew.post(worker, message)

    def _packed(self, worker: int, message: Any, what: str) -> bytes:
        """Pickles what a worker is given; the share of the caller, whose number is behind the processes', is here."""
        return (packed_for_worker if worker < self.num_workers else packed_for_this_process)(message, what)

    def _report(self, ops: bytes, workers: Sequence[int]) -> Report:
        crew, report = self._crew, NOTHING
        for worker in workers:
            answer, is_dead = crew.ends[worker].latest, worker in crew.dead
            if answer == Answer.DONE and not is_dead:
                continue
            if answer == Answer.DONE_WITH_INFOS and not is_dead:
                report = IN_BLOCK if report is NOTHING else report
                continue
            report = Report() if report is NOTHING or report is IN_BLOCK else report
            if is_dead:
                death = crew.dead[worker].again()
                for row in crew.parts[worker]:
                    if ops[row]:
                        report.errors[row] = death
                        self.block.state[row] = RowState.FAILED
                forget_infos(self.block, crew.parts[worker])
            else:
                self._read_news(crew.answer(worker), report)
        return report

    def _read_news(self, news: RoundNews, report: Report) -> None:
        report.steps.update(news.steps)
        report.resets.update(news.resets)
        for row, told in news.errors.items():
            report.errors[row] = told.rebuilt()
        for section, key, row, value in news.objects:
            getattr(self.block, section)[key][row] = value

    def _abandon(self, ops: bytes) -> None:
        """The round is not to be received any more: what its rows do, the caller never sees."""
        self._interrupted_ops = ops
        self.unsettled = True
        self._round = None
        fail_rows(self.block.state, ops)

    def settle(self) -> None:
        """See :class:`~gymbridge.engine.host.Engine`."""
        if self.unsettled:
            self._crew.settle(hangs=self._hangs if any(self._interrupted_ops) else None)
            fail_rows(self.block.state, self._interrupted_ops)  # the workers wrote the rows meanwhile
            self.unsettled = False

    def require_workers(self, rows: Iterable[int] | None = None) -> None:
        """See :class:`~gymbridge.engine.host.Engine`; where dead ones are replaced, they are so in the next call."""
        if self._replacing is None:
            self._require_living(self._all_workers if rows is None else [self._worker_of[row] for row in rows])

    def _require_living(self, workers: Iterable[int]) -> None:
        """Refuses to use dead workers, but for those that can be replaced."""
        dead = self._crew.dead
        if dead:
            if self._replacing is not None:
                self.restarts.begin_call()
                left = self._replacing.replace([worker for worker in workers if worker in dead], bytes(self.num_envs))
                for error in left.values():
                    raise error
            for worker in workers:
                if worker in dead:
                    raise dead[worker].again()

    # ---------------------------------------------------------------- verbs of rows

    def each(self, verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """A verb of the host for each row, in all workers at once; see :class:`~gymbridge.engine.host.Engine`.

        Raises:
            WorkerDiedError: a worker is dead, or dies meanwhile.

        What a verb raises comes through, that of the first row that failed; the other rows have done theirs then.
        """
        results = self._called(verb, dict(enumerate(arguments)))
        return [results[row] for row in range(len(arguments))]

    def _called(self, verb: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        try:
            self.send_calls(verb, arguments)
            results = self.receive_calls()
            if verb == "load_state" and self._replacing is not None:
                self._replacing.lost.take_loaded({row: state for row, (state,) in arguments.items()})
            return results
        except BaseException:
            if self._calls_under_way:  # an interrupt between the two
                self._abandon_calls()
            raise

    def send_calls(self, verb: str, arguments: Mapping[int, tuple[Any, ...]]) -> None:
        """Asks rows for a verb of their host; ``receive_calls`` has what they give.

        Args:
            verb: a method of :class:`~gymbridge.engine.host.Host` whose first argument is a row.
            arguments: row -> the other arguments.

        Raises:
            WorkerDiedError: the worker of a row is dead; nothing has begun.
            UnpicklableError: an argument cannot be sent; nothing has begun.
            RuntimeError: a round or another call is under way.
        """
        if self._round is not None or self._calls_under_way:
            raise RuntimeError(f"{verb}: refused while a round or a call is under way")
        self._crew.require_open()
        self.settle()
        calls: dict[int, list[Call]] = {}
        if verb == "seed":
            for row, (seed, *_) in arguments.items():
                self.restarts.take_seed(row, seed)
        for row, own in arguments.items():
            calls.setdefault(self._worker_of[row], []).append(Call(verb, row, own))
        if self._replacing is not None:
            self._crew.look_for_dead(calls)
        self._require_living(calls)
        packed = {
            worker: self._packed(worker, own, f"what {verb!r} of the envs {[call.row for call in own]} is given")
            for worker, own in calls.items()
        }
        for worker, message in packed.items():
            self._crew.post(worker, message)
        self._calls_under_way = True
        try:
            self._crew.command(list(calls), Command.CALL)
        except BaseException:
            self._abandon_calls()
            raise

    def receive_calls(self, timeout: float | None = None) -> dict[int, Any]:
        """Row -> what its verb gave, of the calls that ``send_calls`` sent.

        Args:
            timeout: seconds; None to wait for ever.

        Raises:
            CallTimeoutError: they took longer; what they still give is dropped.
            WorkerDiedError: a worker died meanwhile.
            RuntimeError: no call is under way.

        What a verb raises comes through, that of the first row that failed.
        """
        if not self._calls_under_way:
            raise RuntimeError("receive_calls: no call is under way")
        crew = self._crew
        results: dict[int, Any] = {}
        errors: dict[int, Exception] = {}
        try:
            crew.wait(timeout)
            for worker in crew.concerned:
                if worker in crew.dead:
                    errors[crew.parts[worker].start] = crew.dead[worker].again()
                else:
                    given, told = crew.answer(worker)
                    results.update(given)
                    errors.update({row: each.rebuilt() for row, each in told.items()})
        except BaseException:
            self._abandon_calls()
            raise
        self._calls_under_way = False
        if errors:
            raise_env_error(errors)
        return results

    def _abandon_calls(self) -> None:
        self._calls_under_way = False
        self._interrupted_ops = bytes(self.num_envs)  # no row has failed
        self.unsettled = True

    def ask(self, verb: str, row: int, *arguments: Any) -> Any:
        """A verb of the host for one row; see :class:`~gymbridge.engine.host.Engine`."""
        return self._called(verb, {row: arguments})[row]

    # ---------------------------------------------------------------- the end

    def close(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Has the workers close their envs and end, each even if another's ``close`` raises.

        What is under way is waited for, within the time. Raises the first error of an env's ``close`` at the end.

        Args:
            timeout: seconds after which the workers left are killed, with a warning; ``shutdown_timeout`` unless told.
            terminate: kill them at once; their envs are not closed.
        """
        self._round = None
        self._calls_under_way = False
        self.counts.end()
        errors = self._crew.close(self.shutdown_timeout if timeout is None else timeout, terminate)
        if hasattr(self, "_memory"):
            self._memory.close()
            self.__dict__.pop("block", None)  # whoever has no views of it any more frees the memory
            self.__dict__.pop("_inputs", None)
            self.__dict__.pop("_op", None)
            self._hangs = self._replacing = None
            self._crew.doing = not_known
        if errors:
            raise errors[0]


def number_of_workers(given: int | None, num_envs: int, num_cores: int, caller_steps: bool = False) -> int:
    """How many worker processes run so many envs.

    Args:
        given: what the user wants; None to have one for each core, but for that of a caller who steps.
        num_envs: at least one for each worker, and for a caller who steps.
        num_cores: those that may be used.
        caller_steps: the caller runs a share of the envs itself.

    Raises:
        ValueError, TypeError: no such number.

    Example:
        >>> number_of_workers(None, 16, 4), number_of_workers(None, 16, 4, caller_steps=True)
        (4, 3)
    """
    most = num_envs - caller_steps
    if not most:
        raise ValueError("caller_steps: got True for one env, expected two or more: one of them is the caller's")
    if given is None:
        return min(most, max(1, num_cores - caller_steps))
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise TypeError(f"num_workers: got {given!r} of type {type(given).__name__}, expected an int")
    if not 1 <= given <= most:
        of_all = "the number of envs less that of the caller, who steps too" if caller_steps else "the number of envs"
        raise ValueError(f"num_workers: got {given}, expected 1 to {most}, {of_all}")
    return int(given)


def require_no_step_timeout(step_timeout: float | None) -> None:
    """Refuses a time limit of steps where the caller makes some itself.

    Raises:
        ValueError: there is one.
    """
    if step_timeout is not None:
        raise ValueError(
            f"step_timeout: got {step_timeout} with caller_steps, expected None: nobody can end a step of the caller's"
        )


def _parts(num_envs: int, num_workers: int, caller_steps: bool) -> list[range]:
    """Contiguous runs of envs, as equal as can be; that of a caller who steps is the last, and none of the longer."""
    num_parts = num_workers + caller_steps
    bounds = [part * num_envs // num_parts for part in range(num_parts + 1)]
    if caller_steps:
        bounds = [num_envs - bound for bound in reversed(bounds)]
    return [range(start, stop) for start, stop in pairwise(bounds)]


def affinities(given: Affinity | None, num_workers: int) -> Sequence[list[int] | None]:
    """The cores of each worker, seen to be usable; None for all.

    Args:
        given: as ``worker_affinity`` of an engine.
        num_workers: how many there are.

    Raises:
        ValueError, TypeError: it is not that; the message names the worker.
        NotImplementedError: it is given on a platform that cannot bind to cores.

    Example:
        >>> affinities(None, 2)
        [None, None]
    """
    if given is None:
        return [None] * num_workers
    if not hasattr(os, "sched_setaffinity"):
        raise NotImplementedError("worker_affinity: this platform cannot bind a process to cores")
    if callable(given):
        given = [given(worker) for worker in range(num_workers)]
    if not isinstance(given, Iterable):
        raise TypeError(
            f"worker_affinity: got {given!r} of type {type(given).__name__}, expected the cores of each worker, or a "
            f"function of its number"
        )
    given = list(given)
    if len(given) != num_workers:
        raise ValueError(f"worker_affinity: got {len(given)} entries, expected {num_workers}, one for each worker")
    cores = usable_cores()
    bound: list[list[int] | None] = []
    for worker, own in enumerate(given):
        if not isinstance(own, Iterable):
            raise TypeError(f"worker_affinity: got {own!r} for worker {worker}, expected several cores")
        wanted = list(own)
        if any(isinstance(core, bool) or not isinstance(core, (int, np.integer)) for core in wanted):
            raise TypeError(f"worker_affinity: got {wanted} for worker {worker}, expected ints")
        if not wanted or not set(wanted) <= set(cores):
            raise ValueError(f"worker_affinity: got {wanted} for worker {worker}, expected some of the cores {cores}")
        bound.append([int(core) for core in wanted])
    return bound
