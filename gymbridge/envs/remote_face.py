"""TensorDict envs in workers seen as one TensorDict env."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from gymbridge.engine.codes import Op
from gymbridge.engine.host import Engine, Report
from gymbridge.envs.env_specs import SpecPlan
from gymbridge.envs.output_rows import OutputReader, OutputRow, OutputRows
from gymbridge.envs.remote_host import SentInputs, SentOutputs
from gymbridge.envs.selection import ALL_KEYS, Selection
from gymbridge.envs.tensordict_face import TensorDictFace
from gymbridge.envs.tensordict_host import TensorDictEnvDescription
from gymbridge.envs.tensordicts import entry, row_of

__all__ = ["RemoteTensorDictFace"]


class RemoteTensorDictFace(TensorDictFace):
    """Reset and step of an engine whose hosts run TensorDict envs in workers; no gradient flows through it.

    Args:
        engine, device, selection, share_individual_td: see :class:`~gymbridge.envs.tensordict_face.TensorDictFace`.
    """

    def __init__(
        self,
        engine: Engine[TensorDictEnvDescription],
        device: torch.device | None,
        selection: Selection = ALL_KEYS,
        share_individual_td: bool | None = None,
    ):
        super().__init__(engine, device, selection, share_individual_td)
        readers = {
            id(env): tuple(OutputReader(env, with_rewards=with_rewards) for with_rewards in (True, False))
            for env in self._envs
        }
        self._readers = [readers[id(env)] for env in self._envs]

    # ---------------------------------------------------------------- what the envs are given

    def _reset_inputs(  # type: ignore[override]
        self, tensordict: TensorDictBase | None, mask: torch.Tensor | None
    ) -> SentInputs | None:
        masks = self._masks = self._row_masks(mask)
        if tensordict is None:
            return None if masks is None else SentInputs(None, masks, True)
        return SentInputs(self._rows_of(tensordict.exclude("next", "_step", "_reset")), masks, True)

    def _step_inputs(  # type: ignore[override]
        self, tensordict: TensorDictBase, mask: torch.Tensor | None, ops: bytes
    ) -> SentInputs:
        masks = self._masks = self._row_masks(mask)
        with_root = Op.STEP_MAYBE_RESET in ops
        if self.is_dense and type(tensordict) is TensorDict and masks is None and not self._one_hot_actions[0]:
            plan = self._envs[0]._spec_plan
            plan.require_inputs(tensordict, self.batch_size[:1])
            return SentInputs(self._for_step(tensordict, plan, with_root), None, False)
        rows: list[TensorDictBase | None] = []
        for row, op in enumerate(ops):
            if not op:
                rows.append(None)
                continue
            self._row_inputs(tensordict, row, None if masks is None else masks[row])  # refuses what does not fit
            rows.append(self._for_step(row_of(tensordict, row), self._envs[row]._spec_plan, with_root))
        return SentInputs(rows, masks, False)

    def _rows_of(self, tensordict: TensorDictBase) -> TensorDictBase | list[TensorDictBase]:
        if type(tensordict) is TensorDict:
            return tensordict
        return [row_of(tensordict, row) for row in range(self.engine.num_envs)]

    def _for_step(self, tensordict: TensorDictBase, plan: SpecPlan, with_root: bool) -> TensorDictBase:
        """What a step needs of a row or of all: the inputs and, where a reset may follow, the root."""
        preset = entry(tensordict, "next")
        if not with_root:
            sent: TensorDictBase = tensordict.select(*plan.inputs, strict=False)
            if preset is not None and self._is_given(preset):
                sent = sent.exclude("next")
            return sent
        sent = tensordict.exclude("next", "_step", "_reset")
        if preset is not None and not self._is_given(preset):
            keys = [key for key in plan.inputs if not isinstance(key, str) and key[0] == "next"]
            sent.update(tensordict.select(*keys, strict=False))
        return sent

    # ---------------------------------------------------------------- what they gave

    def _round(self, ops: bytes, inputs: Any, reset_kwargs: Sequence[Mapping[str, Any]] | None) -> Report:
        told = super()._round(ops, inputs, reset_kwargs)
        report = Report()
        report.errors = told.errors
        report.steps = self._received(told.steps, 0)
        report.resets = self._received(told.resets, 1)
        return report

    def _received(self, told: Mapping[int, SentOutputs], kind: int) -> OutputRows:
        num_rows = sum(sent.num_rows for sent in told.values())
        if self.is_dense and num_rows == self.engine.num_envs and len({sent.keys for sent in told.values()}) == 1:
            parts = [told[row].values.unpacked() for row in sorted(told)]
            columns = parts[0] if len(parts) == 1 else [torch.cat(column) for column in zip(*parts, strict=True)]
            return OutputRows(self._readers[0][kind].layout_of(told[0].keys), columns)
        rows = OutputRows()
        for first in sorted(told):
            sent = told[first]
            values = sent.values.unpacked()
            layout = self._readers[first][kind].layout_of(sent.keys)
            if not sent.num_rows:
                rows[first] = OutputRow(layout, values, sent.is_complete)
            for row in range(sent.num_rows):
                rows[first + row] = OutputRow(layout, [column[row] for column in values], True)
        return rows
