"""TensorDict envs in workers seen as one TensorDict env."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from gymnasium.error import ResetNeeded
from tensordict import TensorDict, TensorDictBase

from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.failures import fail_rows
from gymbridge.engine.host import NOTHING, Engine, Report
from gymbridge.envs.env_specs import EnvSpecs
from gymbridge.envs.output_rows import OneOfRows, OutputReader, OutputRow, OutputRows
from gymbridge.envs.placed_leaves import EnvPlaces, tensors_of
from gymbridge.envs.remote_host import RemoteEnvDescription, SentOutputs
from gymbridge.envs.remote_inputs import GivenColumns, GivenRows, RoundInputs
from gymbridge.envs.selection import ALL_KEYS, Selection
from gymbridge.envs.spec_keys import leaf_keys
from gymbridge.envs.tensordict_face import TensorDictFace
from gymbridge.envs.tensordicts import Assembler, cloned
from gymbridge.envs.transitions import root_to_reset
from gymbridge.errors import UnpicklableError, WorkerDiedError

__all__ = ["RemoteTensorDictFace"]

Key = tuple[str, ...]

_STEPS_ALONE = bytes.maketrans(bytes([Op.STEP_MAYBE_RESET]), bytes([Op.STEP]))


class RemoteTensorDictFace(TensorDictFace):
    """Reset and step of an engine whose hosts run TensorDict envs in workers; no gradient flows through it.

    An env whose episode ends in a step is reset in a round of its own, with what the caller has in its row: what is not
    in the specs need then go to no worker in any other round.

    Args:
        engine: the engine, of envs with a :class:`~gymbridge.envs.remote_host.RemoteEnvDescription`.
        device, selection, share_individual_td, non_blocking: see
            :class:`~gymbridge.envs.tensordict_face.TensorDictFace`.
    """

    def __init__(
        self,
        engine: Engine[Any],
        device: torch.device | None,
        selection: Selection = ALL_KEYS,
        share_individual_td: bool | None = None,
        non_blocking: bool = False,
    ):
        super().__init__(engine, device, selection, share_individual_td, non_blocking)
        # what moves to another device is copied by that
        copies = self._copies = device is None or device.type == "cpu"
        kinds: dict[int, _Outputs] = {}
        for env, description in zip(self._envs, engine.descriptions, strict=True):
            if id(env) not in kinds:
                kinds[id(env)] = _Outputs(env, description.places, engine.block, copies=copies)
        self._outputs = [kinds[id(env)] for env in self._envs]
        self._whole_rounds = {self._step_all, self._reset_all}
        self._batches: dict[int, RemoteEnvDescription] = {
            row: env for row, env in enumerate(engine.descriptions) if env.specs.batch_size
        }
        self._step_sections = [own.next for own in self._outputs]
        self._reset_sections = [own.root for own in self._outputs]

    def over(self, engine: Any) -> RemoteTensorDictFace:
        """The same face of another engine of such envs."""
        choices = self._selection, self._share_individual_td, self._non_blocking
        face = type(self)(engine, self._device, *choices)
        face.keep_apart()
        return face

    def keep_apart(self) -> None:
        """Has what rows gave be copied even where it moves to another device, since it may wait before it does."""
        if not self._copies:
            self._copies = True
            for outputs in self._outputs:
                outputs.keep_apart()

    # ---------------------------------------------------------------- what the envs are given

    def columns_given(self, tensordict: TensorDictBase) -> GivenColumns | None:
        """What steps of all rows are given, a leaf at a time; None where each row has to be looked at by itself."""
        if not (self.is_dense and type(tensordict) is TensorDict):
            return None
        self._envs[0]._spec_plan.require_inputs(tensordict, self.batch_size[:1])
        return None if self._has_faulty_one_hot(tensordict) else GivenColumns(*self._input_columns(tensordict))

    def row_given(self, row: int, tensordict: TensorDictBase, *, validated: bool) -> TensorDictBase:
        """What the env of a row is given, of a TensorDict of its own ``[*B]``."""
        return self._checked_row(row, self._for_env(row, tensordict), None, validated=validated)

    def given_to_reset(
        self, row: int, tensordict: TensorDictBase | None, step: OutputRow
    ) -> tuple[TensorDictBase, torch.Tensor | None]:
        """What the reset of a row is given whose episode ended in a step; and which envs of its own batch it resets.

        Args:
            tensordict: what the step was given.
            step: what it gave.
        """
        plan = self._envs[row]._spec_plan
        return root_to_reset(self.root_of(row, tensordict), step.completed(), plan.next_root, plan.groups, None)

    def root_of(self, row: int, tensordict: TensorDictBase | None) -> TensorDictBase:
        """What the caller has of a row, of a TensorDict of its own ``[*B]``, which was given to a step."""
        assert tensordict is not None
        masks = self._envs[row]._spec_plan.groups.mask_keys("_step")
        return self._for_env(row, tensordict).exclude("next", *masks)

    def remember_rows(self, rows: Sequence[int], report: Report) -> None:
        """Takes down what rows show now, that were run apart from the others.

        Args:
            rows: their numbers.
            report: of their work, of which row ``i`` is ``rows[i]``.
        """
        for outputs in (report.steps, report.resets):
            if outputs.layout is not None:  # the stacks themselves are handed out
                own = outputs.copied()
                self._last.update((rows[position], OneOfRows(own, position)) for position in outputs)
            else:
                self._last.update(
                    (rows[position], output if self.is_dense else output.copied())
                    for position, output in outputs.items()
                )

    def known_of(self, row: int, root: TensorDictBase) -> TensorDictBase:
        """What the caller knows of a row: its root, and what the row showed last where that has nothing."""
        latest = self._latest(row)
        return root if latest is None else latest.copy().update(root)

    def _reset_inputs(  # type: ignore[override]
        self, tensordict: TensorDictBase | None, mask: torch.Tensor | None
    ) -> RoundInputs:
        masks = self._masks = self._row_masks(mask)
        if tensordict is None and masks is None:
            return RoundInputs(None)
        rows: list[TensorDictBase | None] = [None] * self.engine.num_envs
        if tensordict is not None:
            given = tensordict.exclude("next")
            picked = [True] * len(rows) if mask is None else mask.reshape(len(rows), -1).any(1).tolist()
            rows = [self._row_for_env(given, row) if picked[row] else None for row in range(len(rows))]
        return RoundInputs(GivenRows(rows, masks, True), masks)

    def _step_inputs(  # type: ignore[override]
        self, tensordict: TensorDictBase, mask: torch.Tensor | None, ops: bytes
    ) -> RoundInputs:
        masks = self._masks = self._row_masks(mask)
        root = partial(self._row_root, tensordict)
        resets = {row for row, op in enumerate(ops) if op == Op.RESET} if Op.RESET in ops else ()
        columns = None if masks is not None or resets else self.columns_given(tensordict)
        if columns is not None:
            return RoundInputs(columns, None, root)
        rows = self._picked_inputs(tensordict, masks, ops)
        for row in resets:
            rows[row] = root(row)
        return RoundInputs(GivenRows(rows, masks, False, resets), masks, root)

    # ---------------------------------------------------------------- what they gave

    def _round(self, ops: bytes, inputs: RoundInputs, reset_kwargs: Sequence[Mapping[str, Any]] | None) -> Report:
        if self._batches:
            self._require_ready(ops, inputs)
        if inputs.masks is not None:
            self._keep_latest(inputs.masks)
        step_ops = ops.translate(_STEPS_ALONE)
        try:
            told = self.engine.run(step_ops, inputs, reset_kwargs)
        except BaseException:
            self._distrust(row for row, op in enumerate(ops) if op)
            raise
        try:
            root = inputs.root
            report = self._received(step_ops, told, None if root is None else lambda row: self.known_of(row, root(row)))
            if report.lost and self._masks is not None:  # with it went what the row's own batch left out
                for row in report.lost:
                    self._masks[row] = None
            if step_ops != ops and (ended := report.steps.ended()):
                self._reset_ended(ended, inputs, report)
        except BaseException:  # an interrupt: the caller will not see what the rows did
            fail_rows(self._block.state, ops)
            self._distrust(row for row, op in enumerate(ops) if op)
            raise
        return report

    def _distrust(self, rows: Iterable[int]) -> None:
        """What the block has of these rows the caller never saw, or it was half written.

        They show last what was handed out, unless the caller has changed it.
        """
        outputs = self._last_outputs
        columns = [column for column in outputs.columns if isinstance(column, torch.Tensor)]
        is_intact = self._copies and all(not column.is_inference() and column._version == 0 for column in columns)
        for row in rows:
            if row not in self._last:
                self._last[row] = cloned(outputs[row].completed()) if is_intact and row in outputs else None

    def _keep_latest(self, masks: Sequence[torch.Tensor | None]) -> None:
        """Keeps what the rows show of which a part is left out: the block will have the other part's news."""
        for row, mask in enumerate(masks):
            if mask is not None and row not in self._last and (latest := self._latest(row)) is not None:
                self._last[row] = latest

    def _require_ready(self, ops: bytes, inputs: RoundInputs) -> None:
        """Refuses a round that an env which is a batch of its own would refuse, before any env has done its part."""
        if self.engine.unsettled:
            self.engine.settle()
        for row, env in self._batches.items():
            mask = None if inputs.masks is None else inputs.masks[row]
            env.masks.require(row, ops[row], mask)
            if env.is_engine_batch and ops[row] >= Op.STEP and self._block.state[row] != RowState.RUNNING:
                try:
                    self.engine.call(row, "_require_steppable", (mask,))
                except ResetNeeded as error:
                    raise ResetNeeded(f"env {row}: {error}") from None

    def _reset_ended(self, ended: Sequence[int], inputs: RoundInputs, report: Report) -> None:
        """Resets the rows, or those envs of their own batches, whose episode has just ended."""
        given = {}
        for row in ended:
            try:
                given[row] = self._given_to_reset(row, report.steps[row], inputs)
            except Exception as error:
                self._fail_row(row, error, report)
        try:
            self._reset_rows(given, report)
        except (UnpicklableError, TypeError):  # nothing has been sent: whose fault that is shows each by itself
            for row, own in given.items():
                try:
                    self._reset_rows({row: own}, report)
                except (UnpicklableError, TypeError) as error:
                    self._fail_row(row, error, report)

    def _fail_row(self, row: int, error: Exception, report: Report) -> None:
        report.errors[row] = error
        self._block.state[row] = RowState.FAILED

    def _reset_rows(self, given: Mapping[int, tuple[TensorDictBase, torch.Tensor | None]], report: Report) -> None:
        """Resets rows in one round, each with what it is given and the mask of its own batch."""
        ops = bytearray(self.engine.num_envs)
        rows: list[TensorDictBase | None] = [None] * len(ops)
        masks: list[torch.Tensor | None] = [None] * len(ops)
        for row, own in given.items():
            ops[row] = Op.RESET
            rows[row], masks[row] = own
        sent = GivenRows(rows, masks if any(mask is not None for mask in masks) else None, True)
        told = self._received(bytes(ops), self.engine.run(bytes(ops), RoundInputs(sent), None), None)
        for row, output in told.resets.items():
            report.resets[row] = output
        report.errors.update(told.errors)

    def _given_to_reset(
        self, row: int, step: OutputRow, inputs: RoundInputs
    ) -> tuple[TensorDictBase, torch.Tensor | None]:
        """The root after a row's step, with the masks of what is to be reset in it; and the one of its own batch."""
        assert inputs.root is not None
        plan = self._envs[row]._spec_plan
        mask = None if inputs.masks is None else inputs.masks[row]
        return root_to_reset(inputs.root(row), step.completed(), plan.next_root, plan.groups, mask)

    def _received(self, ops: bytes, told: Report, root: Callable[[int], TensorDictBase] | None) -> Report:
        """The report of a round with what the rows gave, in the form that the face takes.

        Args:
            root: row -> what the caller knows of it, where it steps.
        """
        report = Report()
        report.errors = dict(told.errors)
        if told is NOTHING and self.is_dense and ops in self._whole_rounds:  # by far the most common round
            outputs = self._outputs[0]
            if ops[0] == Op.STEP:
                report.steps, report.resets = outputs.next.all_rows(), OutputRows()
            else:
                report.steps, report.resets = OutputRows(), outputs.root.all_rows()
            return report
        self._distrust(row for row, error in told.errors.items() if isinstance(error, WorkerDiedError))
        self._distrust(told.lost)
        unseen = told.errors.keys() | told.lost
        steps = [row for row, op in enumerate(ops) if op == Op.STEP and row not in unseen]
        resets = [row for row, op in enumerate(ops) if op == Op.RESET and row not in told.errors]
        report.steps = self._rows(steps, told.steps, self._step_sections)
        report.resets = self._rows(resets, told.resets, self._reset_sections)
        if told.lost:
            assert root is not None
            report.lost = {*told.lost}
            report.steps = self._with_lost(report.steps, {row: self._lost_step(row, root(row)) for row in told.lost})
        return report

    def _with_lost(self, steps: OutputRows, lost: Mapping[int, OutputRow]) -> OutputRows:
        """What rows gave, with those that were lost, in the order of their numbers."""
        outputs = OutputRows()
        for row in sorted({*steps, *lost}):
            outputs[row] = lost[row] if row in lost else steps[row]
        return outputs

    def _lost_step(self, row: int, root: TensorDictBase) -> OutputRow:
        """What a step shows that reached no env, since its worker was replaced: the root, truncated.

        Args:
            root: what the caller knows of the row; what is not there is zero.
        """
        env, reader = self._envs[row], self._step_sections[row].reader
        rewards = {*leaf_keys(env.full_reward_spec)}
        values = []
        for key, leaf in reader.leaves.items():
            own = None if key in rewards or leaf.is_flag else root.get(key, None)
            values.append(leaf.spec.zero() if own is None else cloned(own))
            if leaf.is_flag:
                values[-1].fill_(key[-1] != "terminated")
        return OutputRow(reader.layout_of(tuple(reader.leaves)), values, True)

    def _rows(self, rows: Sequence[int], sent: Mapping[int, SentOutputs], sections: Sequence[_Section]) -> OutputRows:
        """What these rows gave: what is in the block, and what was sent beside it."""
        if not rows:
            return OutputRows()
        if self.is_dense and len(rows) == self.engine.num_envs:
            columns = self._columns(sent, sections[0])
            if columns is not None:
                return columns
        beside: dict[int, tuple[tuple[Key, ...], list[Any]]] = {}
        for first, own in sent.items():
            values = own.values.unpacked()
            for row in range(first, first + max(own.num_rows, 1)):
                parts = [value[row - first] for value in values] if own.num_rows else values
                beside[row] = own.keys, parts
        outputs = OutputRows()
        for row in rows:
            outputs[row] = sections[row].row(row, *beside.get(row, ((), [])))
        return outputs

    def _columns(self, sent: Mapping[int, SentOutputs], section: _Section) -> OutputRows | None:
        """The rows of all envs, stacked; None where one gave other leaves than another, or was not stacked."""
        if not sent:
            return section.all_rows()
        keys = {own.keys for own in sent.values()}
        if len(keys) > 1 or sum(own.num_rows for own in sent.values()) != self.engine.num_envs:
            return None
        parts = [sent[row].values.unpacked() for row in sorted(sent)]
        columns = parts[0] if len(parts) == 1 else [torch.cat(column) for column in zip(*parts, strict=True)]
        return section.with_sent(keys.pop(), columns)


class _Outputs:
    """What envs of one kind give, by section."""

    def __init__(self, env: EnvSpecs, places: EnvPlaces, block: Block, *, copies: bool):
        step, reset = (OutputReader(env, with_rewards=with_rewards) for with_rewards in (True, False))
        self.next = _Section(step, tensors_of(block.next, places.next), copies=copies)
        self.root = _Section(reset, tensors_of(block.root, places.root), copies=copies)

    def keep_apart(self) -> None:
        self.next.copies = self.root.copies = True


class _Section:
    """What envs of one kind give in a section of the block, and what is sent beside it.

    Args:
        reader: of what they give.
        columns: key -> the tensor ``[N, …]`` in the block.
        copies: whether what is handed out whole is a copy of what is in the block.
    """

    def __init__(self, reader: OutputReader, columns: Mapping[Key, torch.Tensor], *, copies: bool):
        self.copies = copies
        self.reader = reader
        self._keys = tuple(columns)
        self._in_block = [*columns.values()]
        self._layout = reader.layout_of(self._keys)
        self._latest = _LatestRows(self._layout.assemble, self._in_block)

    def _columns(self) -> list[torch.Tensor]:
        return [column.clone() for column in self._in_block] if self.copies else self._in_block

    def row(self, row: int, keys: tuple[Key, ...], values: Sequence[Any]) -> OutputRow:
        """What a row gave: copies of what is in the block, and what was sent.

        Args:
            keys, values: of what was sent. Where that has a leaf that the block has too, it counts.
        """
        own: dict[Key, Any] = dict(zip(self._keys, (column[row].clone() for column in self._in_block), strict=True))
        own |= zip(keys, values, strict=True)
        return OutputRow(self.reader.layout_of(tuple(own)), [*own.values()], True)

    def all_rows(self) -> OutputRows:
        """What all rows gave, where nothing was sent."""
        return OutputRows(self._layout, self._columns(), self._latest)

    def with_sent(self, keys: tuple[Key, ...], columns: Sequence[torch.Tensor]) -> OutputRows:
        """What all rows gave; ``keys`` and ``columns`` are what was sent."""
        own = dict(zip(self._keys, self._columns(), strict=True))
        own.update(zip(keys, columns, strict=True))
        kept = [column.clone() for column in columns]
        layout = self.reader.layout_of(tuple(own))
        latest = dict(zip(self._keys, self._in_block, strict=True)) | dict(zip(keys, kept, strict=True))
        return OutputRows(layout, [*own.values()], _LatestRows(layout.assemble, [*latest.values()]))


class _LatestRows(Sequence[TensorDictBase]):
    """What the rows of columns show, as TensorDicts that are made when they are asked for."""

    def __init__(self, assemble: Assembler, columns: Sequence[torch.Tensor]):
        self._assemble = assemble
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0]) if self._columns else 0

    def __getitem__(self, row: Any) -> Any:
        return self._assemble([column[row].clone() for column in self._columns])
