"""The engine of a pool seen as TensorDicts: of any rows together, or of one row alone.

What some rows gave is seen by a face of as many rows, that of a whole batch, made once for each number of rows: of
gymnasium envs it takes the rows out of the block of all; of TensorDict envs they are gathered into the first rows of a
private block, where they wait for those that are still to be reset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.host import Report
from gymbridge.engine.layout import Layout
from gymbridge.engine.pool_rows import PoolRows
from gymbridge.engine.restarts import Restarts
from gymbridge.envs.engine_face import EngineFace
from gymbridge.envs.gym_face import GymFace
from gymbridge.envs.gym_rows_face import GymRowsFace
from gymbridge.envs.output_rows import OutputRow, OutputRows
from gymbridge.envs.remote_face import RemoteTensorDictFace
from gymbridge.envs.remote_inputs import GivenRows, RoundInputs
from gymbridge.envs.remote_inputs import Sent as GivenToRows
from gymbridge.envs.sent_rows import Sent
from gymbridge.envs.tensordicts import row_of

__all__ = ["GymPoolFace", "PoolFace", "RowFailed", "SubmittingEngine", "TensorDictPoolFace", "Work", "pool_face"]

_RUNNING = int(RowState.RUNNING)

Face = TypeVar("Face", bound=EngineFace)
Part = TypeVar("Part", bound=EngineFace)


class SubmittingEngine(Protocol):
    """What a pool asks of its engine: see :class:`~gymbridge.engine.pool.PoolEngine`, which all others are like."""

    num_envs: int
    descriptions: list[Any]
    block: Block
    restarts: Restarts
    _rows: PoolRows

    def submit(
        self,
        rows: Sequence[int],
        ops: bytes,
        inputs: Any,
        reset_kwargs: Sequence[Mapping[str, Any]] | None = None,
        *,
        lane: bool = False,
    ) -> None:
        """Gives rows work."""

    def wait(self, least: int, timeout: float | None = None) -> Iterable[int]:
        """Waits until so many rows are ready."""

    def wait_for(self, row: int, timeout: float | None = None) -> None:
        """Waits until a lane is ready."""

    async def wait_async(self, least: int, timeout: float | None = None) -> Iterable[int]:
        """The same, awaited; of a pool whose envs run on an event loop."""

    async def wait_for_async(self, row: int, timeout: float | None = None) -> None:
        """The same, awaited."""

    def end_waits(self) -> None:
        """Has waits end with an error, for a thread that is to close it."""

    def take(self, rows: Sequence[int], into: Block | None) -> Report:
        """What rows gave; of some that raised one alone."""

    def release(self, rows: Iterable[int]) -> None:
        """Has rows be idle that were taken from the engine's own block."""

    def abandon(self, rows: Iterable[int]) -> None:
        """Has rows be idle whose work, if any is under way, nobody is to see; they are to be reset."""

    def done_at(self, rows: Iterable[int]) -> Sequence[float]:
        """When each row came to the end of its work, on ``time.perf_counter``'s clock."""


class Work(NamedTuple):
    """What a row was given to do.

    Attributes:
        op: ``RESET``, ``STEP`` or ``STEP_MAYBE_RESET``.
        sent: what the rows were sent that were given work together; of a lane what its env was; None for a reset that
            is given nothing.
        position: the row's in it; -1 for all of it, a lane's.
    """

    op: Op
    sent: Sent | None
    position: int

    def row(self) -> TensorDictBase | None:
        """The row's own part of what was given, ``[*B]``."""
        if self.sent is None:
            return None
        return self.sent.tensordict if self.position < 0 else row_of(self.sent.tensordict, self.position)


class _Rows:
    """Some rows of an engine as a face sees them: all that it has."""

    unsettled = False

    def __init__(self, descriptions: Sequence[Any], block: Block, restarts: Restarts):
        self.num_envs = len(descriptions)
        self.descriptions = [*descriptions]
        self.block = block
        self.restarts = restarts


class PoolFace(ABC, Generic[Face, Part]):
    """Rows of a pool, TensorDict in and out.

    Args:
        engine: the engine.
        face: of all rows.
    """

    def __init__(self, engine: SubmittingEngine, face: Face):
        self.engine = self._engine = engine
        self._whole = face
        self._num_rows = engine.num_envs
        self._block = engine.block  # kept: another thread may close the engine in the middle of a lane's call
        self._faces: dict[int, Part] = {}
        self._lanes: dict[int, Part] = {}

    @abstractmethod
    def _face_of_batch(self, num_rows: int) -> Part:
        """A face of this many rows, which are alike."""

    @abstractmethod
    def _face_of_lane(self, row: int) -> Part:
        """A face of one row alone."""

    def _batch_face(self, num_rows: int) -> Part:
        """The face of this many rows of a pool whose results are dense."""
        if num_rows not in self._faces:
            self._faces[num_rows] = self._face_of_batch(num_rows)
        return self._faces[num_rows]

    def _lane_face(self, row: int) -> Part:
        """The face of one row, which no other thread uses."""
        if row not in self._lanes:
            self._lanes[row] = self._face_of_lane(row)
        return self._lanes[row]

    # ---------------------------------------------------------------- on the way in

    def require_steppable(self, rows: Sequence[int]) -> None:
        """Refuses to step rows of which one has to be reset before."""
        states = self._block.state
        for row in rows:
            if states[row] != _RUNNING:
                ops = bytearray(self._num_rows)
                for each in rows:
                    ops[each] = Op.STEP
                self._whole._require_steppable(bytes(ops), bytes(states))
                return

    @abstractmethod
    def submit(
        self,
        rows: Sequence[int],
        op: Op,
        tensordict: TensorDictBase | None,
        reset_kwargs: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        """Gives rows work; what does not fit their specs is refused."""

    @abstractmethod
    def submit_lane(
        self, row: int, op: Op, tensordict: TensorDictBase | None, reset_kwargs: Sequence[Mapping[str, Any]] | None
    ) -> None:
        """Gives a row work as a lane; ``tensordict`` is that of its env."""

    # ---------------------------------------------------------------- on the way out

    def waits(
        self, works: dict[int, Work], wanted: int, deadline: float | None
    ) -> Generator[tuple[int, float | None], Iterable[int], list[int]]:
        """The waits by which so many rows come to the end of all their work, or the deadline.

        Args:
            works: row -> what it was given to do; other rows may be under way too.
            wanted: how many of them.
            deadline: on ``time.perf_counter``'s clock; None for none.

        Yields:
            What the engine's ``wait`` is to be called with; it is sent what that gives.

        Returns:
            The rows that are complete, in the order in which they were seen to be.
        """
        least = max(0, wanted - self._num_held(works))
        while True:
            ready = yield least, None if deadline is None else max(0.0, deadline - perf_counter())
            found = self.complete(ready, works)
            missing = wanted - len(found)
            if missing <= 0 or (deadline is not None and perf_counter() >= deadline):
                return found
            least = self._num_untouched(ready, works) + self._num_to_wait_for(missing)

    def _num_held(self, works: Mapping[int, Work]) -> int:
        """How many of these rows are complete and no longer the engine's."""
        return 0

    def _num_untouched(self, ready: Iterable[int], works: Mapping[int, Work]) -> int:
        """How many rows stay ready."""
        return len([*ready])

    def _num_to_wait_for(self, missing: int) -> int:
        """How many of those that are missing to wait for at once."""
        return missing

    def lane_waits(
        self, row: int, works: dict[int, Work], deadline: float | None
    ) -> Generator[float | None, None, None]:
        """The same for a lane; yields what the engine's ``wait_for`` is to be called with."""
        while not self._is_held(row):
            yield None if deadline is None else max(0.0, deadline - perf_counter())
            if row in self.complete([row], works, lane=True) or row not in works:  # others' lanes may be complete
                return

    def _is_held(self, row: int) -> bool:
        """Whether a lane is complete and no longer the engine's."""
        return False

    def done_at(self, rows: Sequence[int]) -> Sequence[float]:
        """When each of some rows that are complete came to the end of its work; see the engine's."""
        return self._engine.done_at(rows)

    def complete(self, ready: Iterable[int], works: dict[int, Work], *, lane: bool = False) -> list[int]:
        """Which rows have come to the end of all their work, in the order in which they did.

        Args:
            ready: rows of the engine that are.
            works: row -> what it was given to do; other rows are not looked at. Those that an interrupt has lost are
                taken out.
            lane: they are lanes.
        """
        return [row for row in ready if row in works]

    @abstractmethod
    def results(self, rows: Sequence[int], op: Op, tensordict: TensorDictBase | None) -> Any:
        """What rows that are complete gave, put into what they were given.

        Returns:
            What :meth:`EngineFace.after_reset`, ``after_step`` or ``after_step_and_maybe_reset`` give.

        Raises:
            RowFailed: one raised; it is idle then, and the others stay as they are.
        """

    @abstractmethod
    def lane_results(self, row: int, op: Op, tensordict: TensorDictBase | None) -> Any:
        """The same of a lane, without a dim for rows."""

    def lose(self, rows: Iterable[int]) -> None:
        """What rows do, or gave, will not be seen; they are to be reset."""
        self._engine.abandon(rows)


class RowFailed(Exception):
    """A row of a pool raised.

    Attributes:
        row: the row.
        error: what it raised.
    """

    def __init__(self, row: int, error: Exception):
        super().__init__(row, error)
        self.row = row
        self.error = error


class GymPoolFace(PoolFace[GymFace, GymRowsFace]):
    """A pool of gymnasium envs of one kind."""

    def _face_of_batch(self, num_rows: int) -> GymRowsFace:
        rows = _Rows(self._engine.descriptions[:num_rows], self._block.rows(0, num_rows), self._engine.restarts)
        return GymRowsFace(self._whole, rows, torch.Size([num_rows]))

    def _face_of_lane(self, row: int) -> GymRowsFace:
        rows = _Rows([self._engine.descriptions[row]], self._block.rows(row, row + 1), self._engine.restarts)
        return GymRowsFace(self._whole, rows, torch.Size())

    def submit(
        self,
        rows: Sequence[int],
        op: Op,
        tensordict: TensorDictBase | None,
        reset_kwargs: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        """See :class:`PoolFace`."""
        inputs = self._batch_face(len(rows)).given_to(op, tensordict)
        self._engine.submit(rows, bytes([op]) * len(rows), inputs, reset_kwargs)

    def submit_lane(
        self, row: int, op: Op, tensordict: TensorDictBase | None, reset_kwargs: Sequence[Mapping[str, Any]] | None
    ) -> None:
        """See :class:`PoolFace`."""
        inputs = self._lane_face(row).given_to(op, tensordict)
        self._engine.submit([row], bytes([op]), inputs, reset_kwargs, lane=True)

    def results(self, rows: Sequence[int], op: Op, tensordict: TensorDictBase | None) -> Any:
        """See :class:`PoolFace`."""
        if len(rows) == self._num_rows:  # all of them, in order
            return self._results(self._whole, rows, op, tensordict)
        face = self._batch_face(len(rows))
        face.show(rows)
        return self._results(face, rows, op, tensordict)

    def lane_results(self, row: int, op: Op, tensordict: TensorDictBase | None) -> Any:
        """See :class:`PoolFace`."""
        face = self._lane_face(row)
        face.show([row])
        return self._results(face, [row], op, tensordict)

    def _results(self, face: GymFace, rows: Sequence[int], op: Op, tensordict: TensorDictBase | None) -> Any:
        report = self._engine.take(rows, None)
        _require_no_error(rows, report)
        try:
            return _after(face, op, tensordict, report)
        finally:
            self._engine.release(rows)


class _Outcome(NamedTuple):
    """All that a row's work gave: of its step, of its reset, or what it raised."""

    step: _Part | None
    reset: _Part | None
    done_at: float
    error: Exception | None = None


class _Part(NamedTuple):
    """A row of what several gave together."""

    outputs: OutputRows
    position: int
    is_lost: bool = False
    """It was no step: the row's worker was replaced."""

    def output(self) -> OutputRow:
        return self.outputs[self.position]


class TensorDictPoolFace(PoolFace[RemoteTensorDictFace, RemoteTensorDictFace]):
    """A pool of TensorDict envs.

    A row whose episode ends in a step that may be followed by a reset is given that reset as a second piece of work
    once the step has been heard of; only then it is complete.
    """

    def __init__(self, engine: SubmittingEngine, face: RemoteTensorDictFace):
        super().__init__(engine, face)
        self._gathered = Block(self._block.layout)
        self._steps: dict[int, _Part] = {}
        """What the steps gave of rows that are being reset."""
        self._outcomes: dict[int, _Outcome] = {}

    def _face_of_batch(self, num_rows: int) -> RemoteTensorDictFace:
        # they are alike, and what follows from one object is worked out once
        descriptions = [self._engine.descriptions[0]] * num_rows
        return self._whole.over(_Rows(descriptions, self._gathered.rows(0, num_rows), self._engine.restarts))

    def _face_of_lane(self, row: int) -> RemoteTensorDictFace:
        description = self._engine.descriptions[row]
        return self._whole.over(_Rows([description], Block(Layout.of([description])), self._engine.restarts))

    def submit(
        self,
        rows: Sequence[int],
        op: Op,
        tensordict: TensorDictBase | None,
        reset_kwargs: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        """See :class:`PoolFace`."""
        given: Any = None
        if op != Op.RESET and self._whole.is_dense:
            assert tensordict is not None
            given = self._batch_face(len(rows)).columns_given(tensordict)
        if given is None and tensordict is not None:
            given = self._rows_given(rows, op, [row_of(tensordict, position) for position in range(len(rows))])
        self._submit(rows, op, given, reset_kwargs, lane=False)

    def submit_lane(
        self, row: int, op: Op, tensordict: TensorDictBase | None, reset_kwargs: Sequence[Mapping[str, Any]] | None
    ) -> None:
        """See :class:`PoolFace`."""
        given = None if tensordict is None else self._rows_given([row], op, [tensordict])
        self._submit([row], op, given, reset_kwargs, lane=True)

    def _rows_given(self, rows: Sequence[int], op: Op, tensordicts: Sequence[TensorDictBase]) -> GivenRows:
        is_reset = op == Op.RESET
        own = [
            self._whole.row_given(row, given.exclude("next") if is_reset else given, validated=not is_reset)
            for row, given in zip(rows, tensordicts, strict=True)
        ]
        return GivenRows(own, None, is_reset)

    def _submit(
        self,
        rows: Sequence[int],
        op: Op,
        given: GivenToRows | None,
        reset_kwargs: Sequence[Mapping[str, Any]] | None,
        *,
        lane: bool,
    ) -> None:
        first = Op.RESET if op == Op.RESET else Op.STEP
        self._engine.submit(rows, bytes([first]) * len(rows), RoundInputs(given), reset_kwargs, lane=lane)

    def lose(self, rows: Iterable[int]) -> None:
        """See :class:`PoolFace`."""
        super().lose(rows)
        for row in rows:
            self._steps.pop(row, None)
            self._outcomes.pop(row, None)

    # ---------------------------------------------------------------- on the way out

    def _num_held(self, works: Mapping[int, Work]) -> int:
        return sum(row in works for row in [*self._outcomes])

    def _num_untouched(self, ready: Iterable[int], works: Mapping[int, Work]) -> int:
        return sum(row not in works for row in ready)

    def _num_to_wait_for(self, missing: int) -> int:
        return 1  # a row whose episode has ended is to be reset at once, and not once all have been heard of

    def _is_held(self, row: int) -> bool:
        return row in self._outcomes

    def done_at(self, rows: Sequence[int]) -> Sequence[float]:
        """See :class:`PoolFace`."""
        return [self._outcomes[row].done_at for row in rows]

    def complete(self, ready: Iterable[int], works: dict[int, Work], *, lane: bool = False) -> list[int]:
        """See :class:`PoolFace`."""
        rows = [row for row in ready if row in works]
        while rows:
            group = rows if self._whole.is_dense and not lane else rows[:1]
            try:
                failed = self._collect(group, works, lane=lane)
            except BaseException as error:  # an interrupt: what was taken will not be seen
                lost = [row for row in group if row not in self._outcomes and not self._engine._rows.has(row)]
                self._engine.abandon(lost)
                for row in lost:
                    self._steps.pop(row, None)
                    failed_row = RuntimeError(f"env {row}: {error!r} has lost what it gave; reset it")
                    self._outcomes[row] = _Outcome(None, None, perf_counter(), failed_row)
                raise
            rows = [row for row in rows if row not in group or (failed is not None and row != failed)]
        return [row for row in [*self._outcomes] if row in works]  # a copy: lanes come and go meanwhile

    def _collect(self, rows: Sequence[int], works: Mapping[int, Work], *, lane: bool) -> int | None:
        """Takes what rows gave in one piece of their work; of some that raised one alone, which is returned."""
        face = self._batch_face(len(rows)) if self._whole.is_dense and not lane else self._lane_face(rows[0])
        done_at = self._engine.done_at(rows)
        told = self._engine.take(rows, face._block)
        if told.errors:
            (position,) = told.errors
            self._steps.pop(rows[position], None)
            self._outcomes[rows[position]] = _Outcome(None, None, done_at[position], told.errors[position])
            return rows[position]
        steps = [works[row].op != Op.RESET and row not in self._steps for row in rows]
        ops = bytes(Op.STEP if is_step else Op.RESET for is_step in steps)

        def known(position: int) -> TensorDictBase:
            row = rows[position]
            return self._whole.known_of(row, self._whole.root_of(row, works[row].row()))

        report = face._received(ops, told, known)
        ended = {*report.steps.ended()} if any(steps) else ()
        for position, row in enumerate(rows):
            if not steps[position]:
                self._outcomes[row] = _Outcome(
                    self._steps.pop(row, None), _Part(report.resets, position), done_at[position]
                )
                continue
            part = _Part(report.steps, position, position in report.lost)
            if position in ended and works[row].op == Op.STEP_MAYBE_RESET:
                self._begin_reset(row, works[row], part, lane=lane)
            else:
                self._outcomes[row] = _Outcome(part, None, done_at[position])
        return None

    def _begin_reset(self, row: int, work: Work, step: _Part, *, lane: bool) -> None:
        try:
            given, mask = self._whole.given_to_reset(row, work.row(), step.output())
            rows = GivenRows([given], None if mask is None else [mask], True)
            self._steps[row] = step
            self._engine.submit([row], bytes([Op.RESET]), RoundInputs(rows), None, lane=lane)
        except Exception as error:  # what cannot be sent, or a worker that has died since
            self._steps.pop(row, None)
            self._block.state[row] = RowState.FAILED
            self._outcomes[row] = _Outcome(None, None, perf_counter(), error)

    def results(self, rows: Sequence[int], op: Op, tensordict: TensorDictBase | None) -> Any:
        """See :class:`PoolFace`."""
        if self._whole.is_dense:
            return self._results(self._batch_face(len(rows)), rows, op, tensordict)
        self._require_no_error(rows)
        each = [
            self.lane_results(row, op, None if tensordict is None else row_of(tensordict, position))
            for position, row in enumerate(rows)
        ]
        if op != Op.STEP_MAYBE_RESET:
            return LazyStackedTensorDict(*each, stack_dim=0)
        return tuple(LazyStackedTensorDict(*own, stack_dim=0) for own in zip(*each, strict=True))

    def lane_results(self, row: int, op: Op, tensordict: TensorDictBase | None) -> Any:
        """See :class:`PoolFace`."""
        own = None if tensordict is None else tensordict.unsqueeze(0)
        made = self._results(self._lane_face(row), [row], op, own)
        return tuple(row_of(part, 0) for part in made) if isinstance(made, tuple) else row_of(made, 0)

    def _results(
        self, face: RemoteTensorDictFace, rows: Sequence[int], op: Op, tensordict: TensorDictBase | None
    ) -> Any:
        self._require_no_error(rows)
        outcomes = [self._outcomes.pop(row) for row in rows]
        report = Report()
        report.steps = _joined([own.step for own in outcomes])
        report.resets = _joined([own.reset for own in outcomes])
        report.lost = {position for position, own in enumerate(outcomes) if own.step is not None and own.step.is_lost}
        self._whole.remember_rows(rows, report)
        return _after(face, op, tensordict, report)

    def _require_no_error(self, rows: Sequence[int]) -> None:
        for row in rows:
            error = self._outcomes[row].error
            if error is not None:
                del self._outcomes[row]
                raise RowFailed(row, error)


def pool_face(engine: SubmittingEngine, face: EngineFace) -> PoolFace[Any, Any]:
    """The face of a pool whose rows all together have this one."""
    if isinstance(face, RemoteTensorDictFace):
        return TensorDictPoolFace(engine, face)
    assert isinstance(face, GymFace)
    return GymPoolFace(engine, face)


def _require_no_error(rows: Sequence[int], report: Report) -> None:
    for position, error in report.errors.items():
        raise RowFailed(rows[position], error)


def _after(face: EngineFace, op: Op, tensordict: TensorDictBase | None, report: Report) -> Any:
    if op == Op.RESET:
        return face.after_reset(tensordict, report)
    assert tensordict is not None
    if op == Op.STEP:
        return face.after_step(tensordict, report)
    return face.after_step_and_maybe_reset(tensordict, report)


def _joined(parts: Sequence[_Part | None]) -> OutputRows:
    """What rows gave, in this order; as it was given together, where they were heard of so."""
    first = parts[0]
    together = None if first is None or len(first.outputs) != len(parts) else first.outputs
    if together is not None and all(
        part is not None and part[:2] == (together, position) for position, part in enumerate(parts)
    ):
        return together
    outputs = OutputRows()
    for position, part in enumerate(parts):
        if part is not None:
            outputs[position] = part.output()
    return outputs
