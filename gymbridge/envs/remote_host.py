"""Runs TensorDict envs in a worker: what the rows are given and what they gave travels as parcels, beside the block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from tensordict import TensorDict, TensorDictBase

from gymbridge.engine.any_env import EnvBase as AnyEnvBase
from gymbridge.engine.block import Block
from gymbridge.engine.host import NOTHING, Report
from gymbridge.envs.env_specs import EnvSpecs
from gymbridge.envs.gym_env import GymEnv
from gymbridge.envs.output_rows import OutputRow, OutputRows
from gymbridge.envs.parcels import Packer, Parcel
from gymbridge.envs.tensordict_host import RowInputs, TensorDictEnvDescription, TensorDictHost, TensorDictHostOptions
from gymbridge.envs.tensordicts import row_of

__all__ = ["RemoteTensorDictOptions", "SentInputs", "SentOutputs"]


@dataclass(frozen=True)
class RemoteTensorDictOptions:
    """How TensorDict envs are run in workers; gymnasium envs among them are wrapped in a ``GymEnv``.

    Attributes:
        stacks: outputs of envs that are alike are stacked at once.
        keeps_devices: what the envs give is unpacked where it was; if not, on the CPU.
        consolidate: what travels is packed into one piece of memory.
    """

    stacks: bool = True
    keeps_devices: bool = False
    consolidate: bool = True

    @property
    def kinds(self) -> tuple[type, ...]:
        """What the makers may give."""
        return (gym.Env, AnyEnvBase)

    def describe(self, env: Any) -> TensorDictEnvDescription:
        """What an env says of itself, on the CPU where what it gives is unpacked there."""
        description = TensorDictHostOptions().describe(_wrapped(env))
        specs = description.specs
        if self.keeps_devices or specs.device is None:
            return description
        return TensorDictEnvDescription(_on_cpu(specs), description.is_gym_env)

    def host(self, envs: Sequence[Any], block: Block) -> RemoteTensorDictHost:
        """The host that runs the envs."""
        return RemoteTensorDictHost([_wrapped(env) for env in envs], self, block)

    def inputs(self, description: TensorDictEnvDescription, block: Block) -> ParcelInputs:
        """How what the rows are given reaches the hosts."""
        return ParcelInputs(Packer(consolidate=self.consolidate, keeps_devices=self.keeps_devices))


class SentInputs(NamedTuple):
    """What the rows of a round are given, on its way.

    Attributes:
        rows: the caller's TensorDict, without what reaches no env, or a list with one a row; None where nothing was
            given.
        masks: row -> which envs of the row's own batch are picked, None for all; None where no row has such a mask.
        is_reset: all rows that do something are reset.
    """

    rows: TensorDictBase | Sequence[TensorDictBase | None] | None
    masks: Sequence[torch.Tensor | None] | None
    is_reset: bool


class SentOutputs(NamedTuple):
    """What a row gave, or what several rows from this one on gave, stacked.

    Attributes:
        keys: of the leaves.
        values: one a leaf.
        is_complete: every flag is there.
        num_rows: how many are stacked; 0 for one row that is not.
    """

    keys: tuple[tuple[str, ...], ...]
    values: Parcel
    is_complete: bool
    num_rows: int


class ParcelInputs:
    """What the rows are given on its way to the workers' hosts; see :class:`~gymbridge.engine.host.Inputs`."""

    def __init__(self, packer: Packer):
        self._packer = packer

    def write(self, inputs: SentInputs | None) -> SentInputs | None:
        """Nothing has a place in the block."""
        return inputs

    def part(self, beside: SentInputs, start: int, stop: int) -> Parcel:
        """What the host of some rows is to get."""
        rows = None if beside.rows is None else beside.rows[start:stop]
        masks = None if beside.masks is None else [*beside.masks[start:stop]]
        return self._packer.packed((rows, masks, beside.is_reset))

    def read(self, beside: Parcel | None) -> SentInputs | None:
        """In the worker: what its rows are given."""
        return None if beside is None else SentInputs(*beside.unpacked())


class RemoteTensorDictHost(TensorDictHost):
    """Runs TensorDict envs in a worker, without gradients; what the rows gave is in the report as parcels.

    Args:
        envs: the envs.
        options: how to run them.
        block: its control bytes say where each row stands.
    """

    def __init__(self, envs: Sequence[Any], options: RemoteTensorDictOptions, block: Block):
        super().__init__(envs, TensorDictHostOptions(gradients=False, stacks=options.stacks), block)
        self._packer = Packer(consolidate=options.consolidate, keeps_devices=options.keeps_devices)

    def run(  # type: ignore[override]
        self, ops: bytes, inputs: SentInputs | None, reset_kwargs: Sequence[Mapping[str, Any]] | None = None
    ) -> Report:
        """See :class:`~gymbridge.engine.host.Host`."""
        with torch.no_grad():
            report = super().run(ops, self._row_inputs(ops, inputs), reset_kwargs)
            told = Report()
            told.errors = report.errors
            told.steps = self._told(report.steps, told)
            told.resets = self._told(report.resets, told)
        return told if told.errors or told.steps or told.resets else NOTHING

    def _row_inputs(self, ops: bytes, inputs: SentInputs | None) -> RowInputs:
        if inputs is None or inputs.rows is None:
            masks = None if inputs is None else inputs.masks
            return RowInputs([None] * len(ops), masks, self._nothing)
        sent = inputs.rows
        rows = [
            self._for_env(row, row_of(sent, row) if isinstance(sent, TensorDictBase) else sent[row], op)
            for row, op in enumerate(ops)
        ]
        if inputs.is_reset:
            return RowInputs(rows, inputs.masks, self._nothing)
        masks = inputs.masks
        given = [
            env._spec_plan.inputs_of(row) if row is not None and (masks is None or masks[number] is None) else row
            for number, (env, row) in enumerate(zip(self.envs, rows, strict=True))
        ]
        return RowInputs(given, masks, lambda row: self._root(row, rows[row]))

    def _for_env(self, row: int, given: TensorDictBase | None, op: int) -> TensorDictBase | None:
        """A row on the device of its env; None where that does nothing."""
        if not op or given is None:
            return None
        device = self.envs[row].device
        return given.copy() if device is None or given.device == device else given.to(device)

    def _root(self, row: int, given: TensorDictBase | None) -> TensorDictBase:
        if given is None:
            return self._nothing(row)
        return given.exclude("next", *self.envs[row]._spec_plan.groups.mask_keys("_step"))

    def _nothing(self, row: int) -> TensorDictBase:
        return TensorDict({}, self.envs[row].batch_size, device=self.envs[row].device)

    def _told(self, rows: OutputRows, told: Report) -> dict[int, SentOutputs]:
        if rows.layout is not None:
            return {0: SentOutputs(rows.layout.keys, self._packer.packed([*rows.columns]), True, len(rows))}
        sent = {}
        for row, output in rows.items():
            try:
                sent[row] = self._sent(output)
            except Exception as error:  # what cannot be packed
                self._fail(row, error, told)
        return sent

    def _sent(self, output: OutputRow) -> SentOutputs:
        return SentOutputs(output.layout.keys, self._packer.packed(output.values), output.is_complete, 0)


def _wrapped(env: Any) -> Any:
    return GymEnv(env) if isinstance(env, gym.Env) else env


def _on_cpu(specs: EnvSpecs) -> EnvSpecs:
    moved = EnvSpecs("cpu", specs.batch_size)
    moved._specs = {kind: spec.to("cpu") for kind, spec in specs._specs.items()}
    moved.batch_locked = specs.batch_locked
    return moved
