"""An engine of TensorDict envs seen as one TensorDict env: rows of tensors in, stacked tensors out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict, TensorDictBase

from gymbridge.engine.host import Engine, Report
from gymbridge.envs.engine_face import EngineFace, Rows
from gymbridge.envs.env_specs import KINDS, EnvSpecs, SpecPlan, fake_tensordict
from gymbridge.envs.inputs import require_like
from gymbridge.envs.output_rows import OutputReader, OutputRow
from gymbridge.envs.selection import ALL_KEYS, Selection
from gymbridge.envs.spec_keys import leaf_keys
from gymbridge.envs.tensordict_host import RowInputs, TensorDictEnvDescription
from gymbridge.envs.tensordicts import Assembler, dense_stack, entry, leaf_paths, picked_rows, row_of
from gymbridge.specs import Composite, stack_specs

__all__ = ["TensorDictFace"]

Key = tuple[str, ...]


class TensorDictFace(EngineFace):
    """Reset and step of an engine of TensorDict envs.

    Where keys, shapes and dtypes of all envs agree the results are dense: each leaf is stacked once, and flags are
    completed for all envs together. Else, or if each env is to have a TensorDict of its own, they are lazy stacks.

    Args:
        engine: the engine, with its block allocated.
        device: where what is returned is to be; None leaves each leaf where it is.
        selection: which keys are returned.
        share_individual_td: True for lazy stacks, False for dense results, None for these where they can be.

    Raises:
        ValueError: envs of differing batch sizes, an action that is left out, or ``share_individual_td=False`` over
            envs that do not agree.
    """

    may_have_extras = True
    steps_after_the_end = True

    def __init__(
        self,
        engine: Engine[TensorDictEnvDescription],
        device: torch.device | None,
        selection: Selection = ALL_KEYS,
        share_individual_td: bool | None = None,
    ):
        envs = [description.specs for description in engine.descriptions]
        super().__init__(engine, torch.Size((len(envs), *_common_batch_size(envs))))
        self._device = device
        self._selection = selection
        self._share_individual_td = share_individual_td
        self._envs = _with_shared_plans(envs)
        for env in envs:
            selection.require(env.full_action_spec)
        self._take_specs(
            device, {kind: self._stacked_specs([env._spec_of(kind) for env in envs], kind) for kind in KINDS}
        )
        difference = _difference(envs)
        if share_individual_td is False and difference is not None:
            raise ValueError(f"share_individual_td: got False, expected envs that agree: {difference}")
        self.is_dense = difference is None and not share_individual_td
        first = self._envs[0]
        self._row_batch_size = first.batch_size
        self._row_device = [env.device for env in envs]
        self._moves = any(env.device != device for env in envs) and device is not None
        self._step_readers = self._readers(with_rewards=True)
        self._reset_readers = self._readers(with_rewards=False)
        self._left_out = [
            [key for key in reader.keys if key not in reader.flag_keys and key not in selection]
            for reader in self._step_readers
        ]
        self._devices_differ = len({env.device for env in envs}) > 1
        self._num_observations = len(leaf_keys(first.full_observation_spec))
        root_reader = self._reset_readers[0]
        self._root_positions = [
            position for position, key in enumerate(root_reader.keys) if key not in self._left_out[0]
        ]
        self._assemble_root = root_reader.assembler(self._root_positions, self.batch_size, device)
        self._last: list[tuple[OutputReader, OutputRow] | TensorDictBase | None] = [None] * len(envs)
        self._masks: list[torch.Tensor | None] | None = None
        self._assemblers: dict[tuple[bool, tuple[int, ...]], tuple[list[int], Assembler]] = {}
        self._input_assemblers: dict[tuple[Key, ...], Assembler] = {}

    def on(self, device: torch.device) -> TensorDictFace:
        """The same engine's face on another device."""
        face = TensorDictFace(self.engine, device, self._selection, self._share_individual_td)
        face._last = self._last
        return face

    def _stacked_specs(self, specs: Sequence[Composite], kind: str) -> Composite:
        chosen = [self._selection.of(spec) if kind in ("observation", "reward") else spec for spec in specs]
        if self._device is not None:
            chosen = [spec.to(self._device) for spec in chosen]
        stacked: Composite = stack_specs(chosen, 0)
        return stacked

    def _readers(self, *, with_rewards: bool) -> list[OutputReader]:
        """One a row; rows with one plan share one."""
        by_plan: dict[int, OutputReader] = {}
        readers = []
        for env in self._envs:
            if id(env) not in by_plan:
                by_plan[id(env)] = OutputReader(env, with_rewards=with_rewards)
            readers.append(by_plan[id(env)])
        return readers

    # ---------------------------------------------------------------- what the envs are given

    def _reset_inputs(self, tensordict: TensorDictBase | None, mask: torch.Tensor | None) -> RowInputs:
        masks = self._masks = self._row_masks(mask)
        if tensordict is None:
            return RowInputs(lambda row: None, masks, self._nothing)
        moved = tensordict.exclude("next")
        return RowInputs(partial(self._row_for_env, moved), masks, self._nothing)

    def row_plan(self, row: int) -> SpecPlan:
        """See :class:`EngineFace`."""
        return self._envs[row]._spec_plan

    def carry(
        self, tensordict: TensorDictBase, root: TensorDictBase, mask: torch.Tensor | None, *, with_next: bool
    ) -> TensorDictBase:
        """See :class:`EngineFace`; what is lazy goes row by row."""
        if not self.is_dense and not isinstance(tensordict, LazyStackedTensorDict):
            tensordict = LazyStackedTensorDict(
                *(row_of(tensordict, row) for row in range(len(self._envs))), stack_dim=0
            )
        return super().carry(tensordict, root, mask, with_next=with_next)

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        """See :class:`EngineFace`; of a lazy stack row by row."""
        if self.is_dense:
            return super().step_mdp(tensordict)
        rows = [env._spec_plan.next_root(row_of(tensordict, row)) for row, env in enumerate(self._envs)]
        return LazyStackedTensorDict(*rows, stack_dim=0)

    def ended(self, tensordict: TensorDictBase) -> torch.Tensor:
        """See :class:`EngineFace`; of a lazy stack row by row."""
        if self.is_dense:
            return super().ended(tensordict)
        rows = [env._spec_plan.groups.ended(row_of(tensordict, row)) for row, env in enumerate(self._envs)]
        return torch.stack(rows)

    def fake_tensordict(self) -> TensorDictBase:
        """See :class:`EngineFace`; of a lazy stack row by row."""
        if self.is_dense:
            return super().fake_tensordict()
        rows = [
            fake_tensordict({kind: spec[row] for kind, spec in self.specs.items()}, env.batch_size, self._device)
            for row, env in enumerate(self._envs)
        ]
        return LazyStackedTensorDict(*rows, stack_dim=0)

    def _nothing(self, row: int) -> TensorDictBase:
        return TensorDict({}, self._row_batch_size, device=self._row_device[row])

    def _step_inputs(self, tensordict: TensorDictBase, mask: torch.Tensor | None, ops: bytes) -> RowInputs:
        masks = self._masks = self._row_masks(mask)
        root = partial(self._row_root, tensordict)
        if self.is_dense and type(tensordict) is TensorDict and masks is None:
            self._envs[0]._spec_plan.require_inputs(tensordict, self.batch_size[:1])
            return RowInputs(self._unbound(tensordict), None, root)
        picked = [
            self._row_inputs(tensordict, row, None if masks is None else masks[row]) if op else None
            for row, op in enumerate(ops)
        ]
        return RowInputs(picked.__getitem__, masks, root)

    def _unbound(self, tensordict: TensorDict) -> Callable[[int], TensorDictBase]:
        """Row -> what reaches its env, from one ``unbind`` a leaf."""
        plan = self._envs[0]._spec_plan
        keys = [(key,) if isinstance(key, str) else key for key, _ in plan.required]
        if plan.groups.nested or entry(tensordict, "next") is not None:
            paths = [(key,) if isinstance(key, str) else key for key in plan.inputs[len(keys) :]]
            keys += [key for key in paths if tensordict.get(key, None) is not None]
        device = self._row_device[0]
        leaves = [tensordict.get(key) if len(key) > 1 else entry(tensordict, key[0]) for key in keys]
        if self._moves and device is not None:
            leaves = [leaf.to(device) for leaf in leaves]
        assemble = self._input_assemblers.get(tuple(keys))
        if assemble is None:
            assemble = self._input_assemblers[tuple(keys)] = Assembler(keys, self._row_batch_size, device)
        columns = [leaf.unbind(0) for leaf in leaves]
        return lambda row: assemble([column[row] for column in columns])

    def _row_inputs(self, tensordict: TensorDictBase, row: int, mask: torch.Tensor | None) -> TensorDictBase:
        given = self._row_for_env(tensordict, row)
        plan = self._envs[row]._spec_plan
        try:
            plan.require_inputs(given)
        except (KeyError, TypeError, ValueError) as error:
            error.args = (f"env {row}: {error.args[0]}", *error.args[1:])
            raise
        return plan.inputs_of(given) if mask is None else given

    def _row_for_env(self, tensordict: TensorDictBase, row: int) -> TensorDictBase:
        """A row as its env has it; a TensorDict of its own, without the caller's masks."""
        given = row_of(tensordict, row).exclude("_step", "_reset")
        device = self._row_device[row]
        return given.copy() if device is None or given.device == device else given.to(device)

    def _row_root(self, tensordict: TensorDictBase, row: int) -> TensorDictBase:
        masks = self._envs[row]._spec_plan.groups.mask_keys("_step")
        return self._row_for_env(tensordict, row).exclude("next", *masks)

    def _row_masks(self, mask: torch.Tensor | None) -> list[torch.Tensor | None] | None:
        """The masks for the rows' own batches; None where no row is picked in part."""
        if mask is None or mask.ndim == 1:
            return None
        masks = [None if row.all() else row for row in mask.unbind(0)]
        return masks if any(row is not None and row.any() for row in masks) else None

    def _require_own(self, tensordict: TensorDictBase | None) -> None:
        if tensordict is None or not self.is_dense:
            return
        for kind in ("observation", "done"):
            for key, spec in self.specs[kind].items(True, True):
                value = tensordict.get(key, None)
                if value is not None:
                    require_like(key, value, spec, tensordict)

    def _shows_all(self, tensordict: TensorDictBase) -> bool:
        return all(tensordict.get(key, None) is not None for key in leaf_keys(self.specs["observation"]))

    # ---------------------------------------------------------------- what they gave

    def _next_of(self, tensordict: TensorDictBase, untouched: Rows | None, report: Report) -> TensorDictBase:
        self._remember(report.steps, self._step_readers)
        if self.is_dense and untouched is None:
            stacked = self._stacked([*report.steps.values()], with_rewards=True)
            if stacked is not None:
                return stacked
        return self._put_together(
            [
                self._own(row, tensordict, with_rewards=True)
                if untouched is not None and untouched[row]
                else self._step_readers[row].completed(report.steps[row])
                for row in range(self.engine.num_envs)
            ],
            tensordict,
        )

    def _root_of(
        self,
        tensordict: TensorDictBase | None,
        untouched: Rows | None,
        report: Report,
        following: TensorDictBase | None = None,
    ) -> TensorDictBase:
        self._remember(report.resets, self._reset_readers)
        num_rows = self.engine.num_envs
        if self.is_dense and untouched is None:
            if len(report.resets) == num_rows:
                stacked = self._stacked([report.resets[row] for row in range(num_rows)], with_rewards=False)
                if stacked is not None:
                    return stacked
            if following is not None:
                root = self._root_after(following, report)
                if root is not None:
                    return root
        rows = []
        for row in range(num_rows):
            if untouched is not None and untouched[row]:
                rows.append(self._own(row, tensordict, with_rewards=False))
            elif row in report.resets:
                rows.append(self._reset_readers[row].completed(report.resets[row]))
            else:
                stepped = self._step_readers[row]
                shown = stepped.completed(report.steps[row]).select(*self._reset_readers[row].keys)
                rows.append(shown.clone())  # the root is the caller's to change
        return self._put_together(rows, tensordict, after_step=following is not None)

    def _latest_of(self, tensordict: TensorDictBase, untouched: Rows | None, report: Report) -> TensorDictBase:
        self._remember(report.steps, self._step_readers)
        self._remember(report.resets, self._reset_readers)
        rows = []
        for row in range(self.engine.num_envs):
            if untouched is not None and untouched[row]:
                rows.append(self._own(row, tensordict, with_rewards=True))
            elif row in report.resets:
                made = self._reset_readers[row].completed(report.resets[row])
                rows.append(made.update(self._nothing_gained(row)))
            else:
                rows.append(self._step_readers[row].completed(report.steps[row]))
        return self._put_together(rows, tensordict)

    def _stacked(self, rows: Sequence[OutputRow], *, with_rewards: bool) -> TensorDictBase | None:
        """The rows of all envs, a leaf at a time; None where one has more or fewer leaves than another."""
        _, absent, _, is_complete = rows[0]
        for row in rows:
            if row.extras is not None or row.absent != absent or row.is_complete is not is_complete:
                return None
        found = self._assemblers.get((with_rewards, absent))
        if found is None:
            reader = (self._step_readers if with_rewards else self._reset_readers)[0]
            kept = [
                position
                for position, key in enumerate(reader.keys)
                if position not in absent and key not in self._left_out[0]
            ]
            assemble = reader.assembler(kept, self.batch_size, self._device)
            found = self._assemblers[with_rewards, absent] = (kept, assemble)
        kept, assemble = found
        columns = [[row.values[position] for row in rows] for position in kept]
        tensors = [self._column(column) for column in columns]
        stacked = assemble(tensors)
        return stacked if is_complete else self.groups.completed(stacked)

    def _column(self, values: list[Any]) -> Any:
        if self._moves:
            values = [value.to(self._device) for value in values] if self._devices_differ else values
        if not isinstance(values[0], torch.Tensor):
            return NonTensorStack(*values)
        stacked = torch.stack(values)
        return stacked.to(self._device) if self._moves else stacked

    def _root_after(self, following: TensorDictBase, report: Report) -> TensorDictBase | None:
        """The root after a step of all envs, in tensors of its own; None where it takes a look at each row."""
        keys = self._assemble_root.keys
        if not report.resets:
            return self._assemble_root([following.get(key).clone() for key in keys])
        rows = [report.resets.get(row, out) for row, out in report.steps.items()]
        if self.groups.nested or self._masks is not None or any(row.extras is not None for row in rows):
            return None
        leaves = []
        for position, key in zip(self._root_positions, keys, strict=True):
            if position < self._num_observations:
                leaves.append(self._column([row.values[position] for row in rows]))
            else:  # an env that goes on is not done, nor is one after its reset
                leaves.append(torch.zeros_like(following.get(key)))
        return self._assemble_root(leaves)

    def _own(self, row: int, tensordict: TensorDictBase | None, *, with_rewards: bool) -> TensorDictBase:
        """What an env that was left out shows: what the caller has for it, else its latest, else zeros."""
        env = self._envs[row]
        caller = None if tensordict is None else row_of(tensordict, row)
        latest = self._latest(row)
        shown = TensorDict({}, env.batch_size, device=env.device)
        for spec in (env.full_observation_spec, env.full_done_spec):
            for key, leaf in spec.items(True, True):
                value = None if caller is None else caller.get(key, None)
                if value is None and latest is not None:
                    value = latest.get(key, None)
                shown.set(key, leaf.zero() if value is None else value.clone())
        return shown.update(self._nothing_gained(row)) if with_rewards else shown

    def _remember(self, outputs: Mapping[int, OutputRow], readers: Sequence[OutputReader]) -> None:
        """Takes down what each env shows now, for a time when it is left out and the caller has nothing for it."""
        for row, out in outputs.items():
            mask = None if self._masks is None else self._masks[row]
            if mask is None:
                self._last[row] = (readers[row], out)
                continue
            shown, before = readers[row].completed(out), self._latest(row)
            chosen = TensorDict({}, shown.batch_size)
            for key in self._reset_readers[row].keys:
                other = None if before is None else before.get(key, None)
                chosen.set(key, picked_rows(mask, shown.get(key), other))
            self._last[row] = chosen

    def _latest(self, row: int) -> TensorDictBase | None:
        last = self._last[row]
        return last[0].completed(last[1]) if isinstance(last, tuple) else last

    def _nothing_gained(self, row: int) -> TensorDictBase:
        """Reward and infos of an env that was not stepped."""
        env = self._envs[row]
        zero: TensorDictBase = env.full_reward_spec.zero()
        if "info" in env.full_observation_spec.keys():
            zero["info"] = env.full_observation_spec["info"].zero()
        return zero

    def _put_together(
        self, rows: list[TensorDictBase], tensordict: TensorDictBase | None, after_step: bool = False
    ) -> TensorDictBase:
        """The rows of all envs as one TensorDict."""
        for row, left_out in enumerate(self._left_out):
            if left_out:
                rows[row] = rows[row].exclude(*left_out)
        if self._moves:
            rows = [row.to(self._device) for row in rows]
        if not self.is_dense:
            return LazyStackedTensorDict(*rows, stack_dim=0)
        return dense_stack(_with_equal_keys(rows, tensordict, after_step), 0)


def _with_equal_keys(
    rows: list[TensorDictBase], tensordict: TensorDictBase | None, after_step: bool
) -> list[TensorDictBase]:
    """The rows, each with every key that one of them has: as the caller has it for this row, else zeros.

    Args:
        after_step: of a root after a step, to which what the caller has under ``"next"`` goes first.
    """
    keys: dict[Key, Any] = {}
    for row in rows:
        for key in leaf_paths(row):
            keys.setdefault(key, row.get(key))
    for index, row in enumerate(rows):
        missing = keys.keys() - set(leaf_paths(row))
        caller = None if tensordict is None or not missing else row_of(tensordict, index)
        for key in missing:
            own = None if caller is None else caller.get(key, None)
            if caller is not None and after_step:
                own = caller.get(("next", *key), own)
            if own is None or own.shape != keys[key].shape:
                own = torch.zeros_like(keys[key])
            row.set(key, own)
    return rows


def _common_batch_size(envs: Sequence[EnvSpecs]) -> torch.Size:
    for row, env in enumerate(envs):
        if env.batch_size != envs[0].batch_size:
            raise ValueError(
                f"env {row}: got batch size {[*env.batch_size]}, expected {[*envs[0].batch_size]} as env 0 has it"
            )
    return envs[0].batch_size


def _with_shared_plans(envs: Sequence[EnvSpecs]) -> list[EnvSpecs]:
    """For each row the first env whose specs look like its own, so that rows that are alike share what follows."""
    distinct: list[EnvSpecs] = []
    shared = []
    for env in envs:
        like = next(
            (other for other in distinct if _difference([other, env]) is None and other.device == env.device), None
        )
        if like is None:
            distinct.append(env)
        shared.append(env if like is None else like)
    return shared


def _difference(envs: Sequence[EnvSpecs]) -> str | None:
    """How envs disagree in keys, shapes or dtypes, or why nothing can be said of that; None if they do not."""
    leaves = [_leaves(env) for env in envs]
    for row, own in enumerate(leaves):
        for key, (shape, dtype) in own.items():
            if -1 in shape:
                return f"env {row} has dynamic specs, {'.'.join(key)} has shape {[*shape]}"
            if leaves[0].get(key) != (shape, dtype):
                got = f"{'.'.join(key)} of shape {[*shape]} and {dtype}"
                return f"env {row} has {got}, env 0 has {leaves[0].get(key, 'none')}"
        if missing := [".".join(key) for key in leaves[0] if key not in own]:
            return f"env {row} lacks {missing}, which env 0 has"
    return None


def _leaves(env: EnvSpecs) -> dict[Key, tuple[torch.Size, torch.dtype | None]]:
    return {
        (kind, *key): (spec[key].shape, spec[key].dtype)
        for kind in KINDS
        for spec in [env._spec_of(kind)]
        for key in leaf_keys(spec)
    }
