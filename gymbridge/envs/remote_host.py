"""Runs TensorDict envs in a worker: what they are given and what they give goes through the block, or beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import torch
from tensordict import TensorDict, TensorDictBase

from gymbridge.engine.any_env import EnvBase as AnyEnvBase
from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op, RowState, Source
from gymbridge.engine.copies import copied
from gymbridge.engine.host import NOTHING, Report
from gymbridge.envs.base import EnvBase
from gymbridge.envs.engine_env import EngineEnv
from gymbridge.envs.env_specs import EnvSpecs, first_alike
from gymbridge.envs.gym_env import GymEnv
from gymbridge.envs.output_rows import OutputRows, RowLayout
from gymbridge.envs.parcels import Handed, Packer, Parcel
from gymbridge.envs.placed_leaves import NO_PLACES, EnvPlaces, put_rows, tensors_of
from gymbridge.envs.remote_inputs import GivenColumns, GivenRows, RemoteInputs, RoundInputs, Sent, inputs_of_rows
from gymbridge.envs.spec_keys import leaf_keys
from gymbridge.envs.tensordict_calls import TensorDictCall, TimedTensorDictCall
from gymbridge.envs.tensordict_host import (
    HonouredMasks,
    RowInputs,
    TensorDictEnvDescription,
    TensorDictHost,
    TensorDictHostOptions,
)
from gymbridge.envs.tensordicts import Assembler
from gymbridge.errors import EnvOutputError

__all__ = ["RemoteEnvDescription", "RemoteTensorDictHost", "RemoteTensorDictOptions", "SentOutputs"]

Key = tuple[str, ...]


@dataclass(frozen=True)
class RemoteTensorDictOptions:
    """How TensorDict envs are run in workers; gymnasium envs among them are wrapped in a ``GymEnv``.

    Attributes:
        buffers: what has a fixed shape goes through the block; if not, everything goes beside it.
        stacks: outputs of envs that are alike are stacked at once.
        keeps_devices: what the envs give is handed out where it was; if not, on the CPU.
        consolidate: what goes beside the block is packed into one piece of memory.
        in_process: the workers are in this process: tensors are copied, and nothing is packed or pickled.
    """

    buffers: bool = True
    stacks: bool = True
    keeps_devices: bool = False
    consolidate: bool = True
    in_process: bool = False

    @property
    def packer(self) -> Packer:
        """Packs what goes beside the block."""
        return Packer(consolidate=self.consolidate, keeps_devices=self.keeps_devices, in_process=self.in_process)

    @property
    def kinds(self) -> tuple[type, ...]:
        """What the makers may give."""
        return (gym.Env, AnyEnvBase)

    def describe(self, env: Any) -> RemoteEnvDescription:
        """What an env says of itself, on the CPU where what it gives is handed out there."""
        own = _wrapped(env)
        description = TensorDictHostOptions().describe(own)
        specs = description.specs
        if not self.keeps_devices and specs.device is not None:
            specs = EnvSpecs.of(specs, device="cpu")
        places = self.places(own)
        return RemoteEnvDescription(
            specs,
            description.is_gym_env,
            input_leaves=tuple(placed.leaf for placed in places.input),
            next_leaves=tuple(placed.leaf for placed in places.next),
            root_leaves=tuple(placed.leaf for placed in places.root),
            places=places,
            masks=HonouredMasks.of(own),
            is_engine_batch=_is_engine_batch(own),
        )

    def places(self, env: EnvSpecs) -> EnvPlaces:
        """The leaves of an env that have a place in the block."""
        return EnvPlaces.of(env, keeps_devices=self.keeps_devices) if self.buffers else NO_PLACES

    def host(self, envs: Sequence[Any], block: Block) -> RemoteTensorDictHost:
        """The host that runs the envs."""
        return RemoteTensorDictHost([_wrapped(env) for env in envs], self, block)

    def inputs(self, descriptions: Sequence[RemoteEnvDescription], block: Block) -> RemoteInputs:
        """How what the rows are given reaches the hosts."""
        places = [description.places for description in descriptions]
        return RemoteInputs(places, block, self.packer)


@dataclass(frozen=True, kw_only=True, eq=False)
class RemoteEnvDescription(TensorDictEnvDescription):
    """What a TensorDict env in a worker says of itself.

    Attributes:
        places: its leaves that have a place in the block.
        masks: those that it honours, if it is a batch of its own.
        is_engine_batch: it is a batch of ours, whose envs may each have to be reset before they are stepped.
    """

    places: EnvPlaces
    masks: HonouredMasks
    is_engine_batch: bool

    @property
    def without_place(self) -> list[Key]:
        """The leaves of what the env is given in a step and of what it gives that have no place in the block."""
        env = self.specs
        sections = {
            self.places.input: (env.full_action_spec, env.full_state_spec),
            self.places.next: (env.full_observation_spec, env.full_reward_spec, env.full_done_spec),
        }
        keys = {key: None for specs in sections.values() for spec in specs for key in leaf_keys(spec)}
        placed = {one.key for section in sections for one in section}
        return [key for key in keys if key not in placed]

    def __eq__(self, other: object) -> bool:
        """Whether the envs are alike: one description of them is sent then."""
        if not isinstance(other, RemoteEnvDescription):
            return NotImplemented
        mine, theirs = vars(self).copy(), vars(other).copy()
        return mine.pop("specs").is_like(theirs.pop("specs")) and mine == theirs

    __hash__ = None  # type: ignore[assignment]


class SentOutputs(NamedTuple):
    """What a row, or several from this one on, gave that has no place in the block.

    Attributes:
        keys: of the leaves.
        values: one a leaf.
        num_rows: how many rows are stacked in each; 0 for one row that is not.
    """

    keys: tuple[Key, ...]
    values: Parcel | Handed
    num_rows: int


class RemoteTensorDictHost(TensorDictHost):
    """Runs TensorDict envs in a worker, without gradients.

    What the rows gave is in the block and, where it has no place there, in the report. An env whose episode ends in a
    step waits for the caller to have it reset, since only the caller knows what its reset is to be given.

    Args:
        envs: the envs.
        options: how to run them.
        block: of their rows.
    """

    def __init__(self, envs: Sequence[Any], options: RemoteTensorDictOptions, block: Block):
        super().__init__(envs, TensorDictHostOptions(gradients=False, stacks=options.stacks), block)
        self._keeps_devices = options.keeps_devices
        self._packer = options.packer
        alike = first_alike(envs)
        distinct = {id(env): options.places(env) for env in alike}
        places = [distinct[id(env)] for env in alike]
        self._are_alike = len(distinct) == 1
        self._placed_inputs = inputs_of_rows(places, block)
        outputs = {
            kind: (_PlacedOutputs(tensors_of(block.next, own.next)), _PlacedOutputs(tensors_of(block.root, own.root)))
            for kind, own in distinct.items()
        }
        self._step_outputs = [outputs[id(env)][0] for env in alike]
        self._reset_outputs = [outputs[id(env)][1] for env in alike]
        # envs whose rounds are their own are asked for these by whoever calls them
        self._is_whole = [type(env)._next is not EnvBase._next for env in self.envs]
        self._assemblers: dict[tuple[Key, ...], Assembler] = {}
        self._engine_batches = [row for row, env in enumerate(self.envs) if _is_engine_batch(env)]

    def run(  # type: ignore[override]
        self, ops: bytes, inputs: Sent | None, reset_kwargs: Sequence[Mapping[str, Any]] | None = None
    ) -> Report:
        """See :class:`~gymbridge.engine.host.Host`."""
        told = Report()
        with torch.no_grad():
            try:
                given = self._row_inputs(ops, inputs)
            except Exception as error:  # what cannot be moved to an env's device
                for row in [row for row, op in enumerate(ops) if op]:
                    self._fail(row, error, told)
                return told
            report = super().run(ops, given, reset_kwargs)
            told.errors = report.errors
            told.steps = self._handed_over(report.steps, self._step_outputs, told)
            told.resets = self._handed_over(report.resets, self._reset_outputs, told)
        self._look_at_batches(row for row in self._engine_batches if ops[row])
        return told if told.errors or told.steps or told.resets else NOTHING

    def _look_at_batches(self, rows: Iterable[int]) -> None:
        """Has the states of rows that are batches of ours say whether each of their envs may be stepped."""
        for row in rows:
            if self._state[row] in (RowState.RUNNING, RowState.ENDED):
                self._state[row] = RowState.RUNNING if _are_running(self.envs[row]) else RowState.ENDED

    def _require_ready(self, ops: bytes, inputs: RowInputs) -> None:
        """The caller has looked; what only the envs know, each row's env says for itself."""

    # ---------------------------------------------------------------- what the envs are given

    def _row_inputs(self, ops: bytes, sent: Sent | None) -> RowInputs:
        if not isinstance(sent, GivenRows):
            return RowInputs(self._steps_given(ops, sent), None, self._nothing)
        if sent.is_reset:
            given = [self._for_env(row, own) for row, own in enumerate(sent.rows)]
        else:
            given = self._steps_given(ops, None)
            for row, rest in enumerate(sent.rows):
                if rest is not None:
                    own, moved = given[row], self._for_env(row, rest)
                    given[row] = moved if own is None or ops[row] == Op.RESET else own.update(moved)
        return RowInputs(given, sent.masks, self._nothing)

    def _steps_given(self, ops: bytes, sent: GivenColumns | None) -> list[TensorDictBase | None]:
        """What each row's step is given of what lies in the block, and of columns that were sent."""
        if not any(op >= Op.STEP for op in ops):
            return [None] * len(ops)
        if self._are_alike:
            return self._from_columns(sent)
        return [self._from_row(row) if op else None for row, op in enumerate(ops)]

    def _from_columns(self, sent: GivenColumns | None) -> list[TensorDictBase | None]:
        """TensorDicts that are the envs' own, from one ``unbind`` a leaf."""
        placed = self._placed_inputs[0]
        keys, columns = tuple(placed), [column.clone() for column in placed.values()]
        if sent is not None:
            keys, columns = (*keys, *sent.keys), [*columns, *sent.values]
        if not keys:
            return [self._nothing(row) for row in range(len(self.envs))]
        return self._assembled(keys, columns)

    def _assembled(self, keys: tuple[Key, ...], columns: list[Any]) -> list[TensorDictBase | None]:
        """TensorDicts over the rows of columns, on the device of the envs, which are alike."""
        assemble = self._assemblers.get(keys)
        if assemble is None:
            env = self.envs[0]
            assemble = self._assemblers[keys] = Assembler(keys, env.batch_size, env.device)
        if assemble.device is not None and assemble.device.type != "cpu":
            columns = [column.to(assemble.device) for column in columns]
        return [*assemble.each([column.unbind(0) for column in columns])]

    def _from_row(self, row: int) -> TensorDictBase:
        env = self.envs[row]
        given = self._nothing(row)
        for key, column in self._placed_inputs[row].items():
            given.set(key, column[row].clone() if env.device is None else column[row].clone().to(env.device))
        return given

    def _for_env(self, row: int, given: TensorDictBase | None) -> TensorDictBase | None:
        """A row on the device of its env."""
        device = self.envs[row].device
        if given is None or device is None or given.device == device:
            return given
        return given.to(device)

    def _nothing(self, row: int) -> TensorDictBase:
        return TensorDict({}, self.envs[row].batch_size, device=self.envs[row].device)

    # ---------------------------------------------------------------- envs that are called by others

    _call_kind = TensorDictCall

    def time_calls(self) -> None:
        """See :class:`~gymbridge.engine.env_calls.CallingHost`."""
        self._call_kind = TimedTensorDictCall

    def prepare_thread(self) -> None:
        """See :class:`~gymbridge.engine.env_calls.CallingHost`; no gradients in it."""
        torch.set_grad_enabled(False)

    def calls(
        self,
        rows: Sequence[int],
        ops: bytes,
        inputs: RoundInputs | None,
        reset_kwargs: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[TensorDictCall]:
        """See :class:`~gymbridge.engine.env_calls.CallingHost`; an env that ends in a step waits for its reset."""
        if Op.STEP_MAYBE_RESET in ops:
            raise ValueError("STEP_MAYBE_RESET: only the caller knows what the reset of a TensorDict env is given")
        with torch.no_grad():
            given, masks = self._given_in_process(rows, ops, None if inputs is None else inputs.given)
        made = []
        envs, is_plain, is_whole, kind = self.envs, self._plain, self._is_whole, self._call_kind
        for index, (row, op) in enumerate(zip(rows, ops, strict=True)):
            if op == Op.RESET:
                kwargs: Mapping[str, Any] = copied(dict(reset_kwargs[index])) if reset_kwargs else {}
                own = given[index]
            elif op:
                kwargs = {}
                own = self._nothing(row) if given[index] is None else given[index]
            else:
                continue
            mask = None if masks is None else masks[index]
            made.append(kind(row, op, envs[row], own, mask, kwargs, is_plain[row], is_whole[row]))
        return made

    def _given_in_process(
        self, rows: Sequence[int], ops: bytes, sent: Sent | None
    ) -> tuple[Sequence[TensorDictBase | None], Sequence[torch.Tensor | None] | None]:
        """What reaches each row's env, as copies, and the masks of the rows' own batches."""
        if sent is None:
            return [None] * len(rows), None
        if isinstance(sent, GivenRows):
            packed = self._packer.packed([[*sent.rows], sent.masks and [*sent.masks]])
            given, masks = packed.unpacked()
            return [self._for_env(row, own) for row, own in zip(rows, given, strict=True)], masks
        columns = self._packer.packed([*sent.values]).unpacked()
        if not columns:
            return [None] * len(rows), None
        return self._assembled(tuple(sent.keys), columns), None

    def finish(self, calls: Sequence[TensorDictCall], *, by_row: bool = False) -> Report:
        """See :class:`~gymbridge.engine.env_calls.CallingHost`."""
        rows = [call.row for call in calls]
        told = Report()
        with torch.no_grad():
            are_in_order = not by_row or rows == [*range(len(rows))]  # as a stack's are
            steps = self._stacked_steps(rows, calls) if are_in_order else None
            if steps is not None:
                told.steps = self._handed_over(steps, self._step_outputs, told, rows)
                for index in steps.ended():
                    self._state[rows[index]] = RowState.ENDED
                return told if told.errors or told.steps else NOTHING
            steps, resets = OutputRows(), OutputRows()
            for row, call in zip(rows, calls, strict=True):
                try:
                    if call.op == Op.RESET:
                        resets[row] = self._first_taken(row, call.round())
                    else:
                        steps[row] = self._taken(row, call.stepped() if self._plain[row] else call.round())
                except Exception as error:
                    self._fail(row, error, told)
            for row in steps.ended():
                self._state[row] = RowState.ENDED
            sent_steps = self._handed_over(steps, self._step_outputs, told)
            sent_resets = self._handed_over(resets, self._reset_outputs, told)
        if self._engine_batches:
            self._look_at_batches(row for row in rows if row in self._engine_batches)
        index_of = {row: row if by_row else index for index, row in enumerate(rows)}
        told.errors = {index_of[row]: error for row, error in told.errors.items()}
        told.steps = {index_of[row]: own for row, own in sent_steps.items()}
        told.resets = {index_of[row]: own for row, own in sent_resets.items()}
        return told if told.errors or told.steps or told.resets else NOTHING

    def _stacked_steps(self, rows: Sequence[int], calls: Sequence[TensorDictCall]) -> OutputRows | None:
        """What steps of envs that are alike gave, looked at together; None where each has to be by itself."""
        if not self._stacks or any(call.op != Op.STEP or call.error is not None for call in calls):
            return None
        try:
            stacked = self._read_step[0].stacked([call.stepped() for call in calls])
        except EnvOutputError:
            return None
        if stacked is not None and not all(map(self._may_be_placed, stacked.columns)):
            return None
        if stacked is not None:
            for row in rows:
                self._state[row] = RowState.RUNNING
                self._source[row] = Source.NEXT
        return stacked

    # ---------------------------------------------------------------- what they gave

    def _handed_over(
        self,
        rows: OutputRows,
        places: Sequence[_PlacedOutputs],
        told: Report,
        numbers: Sequence[int] | None = None,
    ) -> dict[int, SentOutputs]:
        """Writes what has a place; what has none, by row. A row of which something cannot be sent has failed.

        Args:
            numbers: the rows of the block that stacked rows are; all unless given.
        """
        if rows.layout is not None and all(map(self._may_be_placed, rows.columns)):
            placed, rest, keys = places[0].parts(rows.layout)
            beside = [rows.columns[at] for at in rest]
            sent = {0: SentOutputs(keys, self._packer.packed(beside), len(rows))} if keys else {}
            index = None if numbers is None else torch.tensor(numbers)
            for at, column in placed:
                if index is None:
                    column.copy_(rows.columns[at])
                else:
                    put_rows(column, index, rows.columns[at])
            return sent
        sent = {}
        for row, output in rows.items():
            try:
                layout, values, _ = output.with_every_flag()
                placed, rest, keys = places[row].parts(layout)
                if not all(map(self._may_be_placed, values)):
                    placed, rest, keys = [], [*range(len(values))], layout.keys
                if keys:
                    sent[row] = SentOutputs(keys, self._packer.packed([values[at] for at in rest]), 0)
                for at, column in placed:
                    column[row].copy_(values[at])
            except Exception as error:  # what cannot be packed
                self._fail(row, error, told)
        return sent

    def _may_be_placed(self, value: Any) -> bool:
        """Whether a value goes where its leaf has a place; one that is elsewhere, or not strided, is sent."""
        if not isinstance(value, torch.Tensor):
            return True
        return value.layout is torch.strided and not (self._keeps_devices and value.device.type != "cpu")


_Parts: TypeAlias = tuple[list[tuple[int, torch.Tensor]], list[int], tuple[Key, ...]]
"""Positions of the leaves that have a place, with that; positions, and keys, of the others."""


class _PlacedOutputs:
    """The places of what envs of one kind give, in one section of a block.

    Args:
        columns: key -> the tensor ``[N, …]``.
    """

    def __init__(self, columns: dict[Key, torch.Tensor]):
        self._columns = columns
        self._known: dict[RowLayout, _Parts] = {}

    def parts(self, layout: RowLayout) -> _Parts:
        """Which leaves of a layout have a place, and which do not."""
        found = self._known.get(layout)
        if found is None:
            placed = [(at, self._columns[key]) for at, key in enumerate(layout.keys) if key in self._columns]
            rest = [at for at, key in enumerate(layout.keys) if key not in self._columns]
            found = self._known[layout] = placed, rest, tuple(layout.keys[at] for at in rest)
        return found


def _wrapped(env: Any) -> Any:
    return GymEnv(env) if isinstance(env, gym.Env) else env


def _is_engine_batch(env: EnvBase) -> bool:
    """Whether an env is a batch of ours."""
    return isinstance(env, EngineEnv) and bool(env.batch_size)


def _are_running(env: Any) -> bool:
    """Whether each env of a batch of ours may be stepped."""
    return set(bytes(env.engine.block.state)) <= {RowState.RUNNING}
