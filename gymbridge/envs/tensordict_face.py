"""An engine of TensorDict envs seen as one TensorDict env: rows of tensors in, stacked tensors out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict, TensorDictBase

from gymbridge.engine.codes import Op
from gymbridge.engine.host import Engine, Report
from gymbridge.envs.device_moves import move_to
from gymbridge.envs.engine_face import EngineFace, Rows
from gymbridge.envs.env_specs import (
    KINDS,
    EnvSpecs,
    SpecPlan,
    UnlikeEnvs,
    difference,
    fake_tensordict,
    first_alike,
    nothing_gained,
    shown_before,
    shown_leaves,
)
from gymbridge.envs.inputs import name_env, require_showable
from gymbridge.envs.output_rows import OneOfRows, OutputRow, OutputRows, RowLayout
from gymbridge.envs.restart_marks import with_mark
from gymbridge.envs.selection import ALL_KEYS, Selection
from gymbridge.envs.spec_keys import group_sizes, leaf_keys
from gymbridge.envs.tensordict_host import RowInputs, TensorDictEnvDescription
from gymbridge.envs.tensordicts import (
    Assembler,
    cloned,
    dense_stack,
    entries,
    entry,
    leaf_paths,
    nothing_like,
    picked_rows,
    row_of,
)
from gymbridge.errors import SpecError
from gymbridge.specs import Composite, OneHot, stack_specs
from gymbridge.specs._keys import as_path

__all__ = ["TensorDictFace"]

Key = tuple[str, ...]
_Fact = TypeVar("_Fact")


class TensorDictFace(EngineFace):
    """Reset and step of an engine of TensorDict envs.

    Where keys, shapes and dtypes of all envs agree the results are dense: each leaf is stacked once, and flags are
    completed for all envs together. Else, or if each env is to have a TensorDict of its own, they are lazy stacks.

    Args:
        engine: the engine, with its block allocated.
        device: where what is returned is to be; None leaves each leaf where it is.
        selection: which keys are returned.
        share_individual_td: True for lazy stacks, False for dense results, None for these where they can be.
        non_blocking: see :func:`~gymbridge.envs.device_moves.move_to`; of dense results.

    Raises:
        ValueError: envs of differing batch sizes, an action that is left out, or ``share_individual_td=False`` over
            envs that do not agree.
    """

    may_have_extras = True

    def __init__(
        self,
        engine: Engine[TensorDictEnvDescription],
        device: torch.device | None,
        selection: Selection = ALL_KEYS,
        share_individual_td: bool | None = None,
        non_blocking: bool = False,
    ):
        envs = [description.specs for description in engine.descriptions]
        super().__init__(engine, torch.Size((len(envs), *_common_batch_size(envs))), device)
        self.waits_for_reset = [description.is_gym_env for description in engine.descriptions]
        self._selection = selection
        self._share_individual_td = share_individual_td
        self._non_blocking = non_blocking
        self._move = move_to(device, non_blocking=non_blocking)
        self._envs = first_alike(envs)
        distinct = {id(env): env for env in envs}
        for env in distinct.values():
            selection.require(env.full_action_spec, *_states_observed(env))
        selection.require_known(
            [key for env in distinct.values() for kind in KINDS for key in leaf_keys(env._spec_of(kind))]
        )
        self._take_specs({kind: self._stacked_specs([env._spec_of(kind) for env in envs], kind) for kind in KINDS})
        unlike = difference(envs)
        if share_individual_td is False and unlike is not None:
            raise UnlikeEnvs("share_individual_td: got False, expected envs that agree", unlike)
        self.is_dense = unlike is None and not share_individual_td
        first = self._envs[0]
        self._row_batch_size = first.batch_size
        self._row_device = [env.device for env in envs]
        self._moves = any(env.device != device for env in envs) and device is not None
        self._root_keys = self._of_each(
            lambda env: [*leaf_keys(env.full_observation_spec), *leaf_keys(env.full_done_spec)]
        )
        self._left_out = self._of_each(self._keys_left_out)
        self._required_keys = tuple(as_path(key) for key, _ in first._spec_plan.required)
        self._devices_differ = len({env.device for env in envs}) > 1
        self._root_flags = {*leaf_keys(first.full_done_spec)}
        self._one_hot_actions = self._of_each(
            lambda env: [
                (key, env.full_action_spec[key])
                for key in leaf_keys(env.full_action_spec)
                if isinstance(env.full_action_spec[key], OneHot)
            ]
        )
        self._shown_plans = self._of_each(self._shown_plan)
        shown = [key for key in self._root_keys[0] if key not in self._left_out[0]]
        self._assemble_root = Assembler(shown, self.batch_size, device, self._sizes_of_groups("observation", "done"))
        self._last: dict[int, OutputRow | OneOfRows | TensorDictBase | None] = {}
        self._last_outputs = OutputRows()
        self._given_next: dict[str, Any] = {}
        self._masks: list[torch.Tensor | None] | None = None
        self._assemblers: dict[RowLayout, tuple[list[int], Assembler]] = {}
        self._input_assemblers: dict[tuple[Key, ...], Assembler] = {}

    def on(self, device: torch.device) -> TensorDictFace:
        """The same engine's face on another device."""
        face = type(self)(self.engine, device, self._selection, self._share_individual_td, self._non_blocking)
        face._last, face._last_outputs = self._last, self._last_outputs
        return face

    def difference(self) -> str | None:
        """See :class:`EngineFace`."""
        return difference(self._envs)

    def _of_each(self, fact: Callable[[EnvSpecs], _Fact]) -> list[_Fact]:
        """What follows from each row's env, worked out once for those that are alike."""
        facts = {id(env): fact(env) for env in {id(env): env for env in self._envs}.values()}
        return [facts[id(env)] for env in self._envs]

    def _stacked_specs(self, specs: Sequence[Composite], kind: str) -> Composite:
        chosen = {id(spec): self._chosen_spec(spec, kind) for spec in {id(spec): spec for spec in specs}.values()}
        stacked: Composite = stack_specs([chosen[id(spec)] for spec in specs], 0)
        return stacked

    def _chosen_spec(self, spec: Composite, kind: str) -> Composite:
        chosen = self._selection.of(spec) if kind in ("observation", "reward") else spec
        if kind == "observation" and self._marks is not None:
            chosen = with_mark(chosen)
        return chosen if self._device is None else chosen.to(self._device)

    def _shown_plan(self, env: EnvSpecs) -> SpecPlan:
        """What follows from the specs of a row's env without what is left out."""
        if self._selection is ALL_KEYS:
            return env._spec_plan
        shown = EnvSpecs.of(env)
        for kind in ("observation", "reward"):
            shown._store_spec(kind, self._selection.of(env._spec_of(kind)))
        return shown._spec_plan

    def _keys_left_out(self, env: EnvSpecs) -> list[Key]:
        """The leaves of what an env gives that are not returned, and the groups of which nothing is left."""
        given, groups = [env.full_observation_spec, env.full_reward_spec], group_sizes(env.full_done_spec)
        kept = groups.keys() | {key for spec in given for key in group_sizes(self._selection.of(spec))}
        leaves = [key for spec in given for key in leaf_keys(spec) if key not in self._selection]
        return leaves + [key for spec in given for key in group_sizes(spec) if key not in kept]

    def _sizes_of_groups(self, *kinds: str) -> dict[Key, torch.Size]:
        """The groups in what is returned of like envs and their batch sizes in a batch."""
        sizes: dict[Key, torch.Size] = {}
        for kind in kinds:
            spec = self._envs[0]._spec_of(kind)
            sizes |= group_sizes(spec if kind == "done" else self._selection.of(spec))
        return {key: torch.Size((*self.batch_size[:1], *size)) for key, size in sizes.items()}

    # ---------------------------------------------------------------- what the envs are given

    def _reset_inputs(self, tensordict: TensorDictBase | None, mask: torch.Tensor | None) -> RowInputs:
        masks = self._masks = self._row_masks(mask)
        if tensordict is None:
            return RowInputs([None] * self.engine.num_envs, masks, self._nothing)
        moved = tensordict.exclude("next")
        given = [self._row_for_env(moved, row) for row in range(self.engine.num_envs)]
        return RowInputs(given, masks, self._nothing)

    def row_plan(self, row: int) -> SpecPlan:
        """See :class:`EngineFace`."""
        return self._shown_plans[row]

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
        rows = [self._shown_plans[row].next_root(row_of(tensordict, row)) for row in range(self.engine.num_envs)]
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
            if not self._has_faulty_one_hot(tensordict):
                return RowInputs(self._unbound(tensordict), None, root)
        return RowInputs(self._picked_inputs(tensordict, masks, ops), masks, root)

    def _has_faulty_one_hot(self, tensordict: TensorDictBase) -> bool:
        """Whether a one-hot action, of any env, is none: the one that is stepped is then named."""
        actions = self.specs["action"]
        return any(actions[key].faults(tensordict.get(key), key) for key, _ in self._one_hot_actions[0])

    def _picked_inputs(
        self, tensordict: TensorDictBase, masks: Sequence[torch.Tensor | None] | None, ops: bytes
    ) -> list[TensorDictBase | None]:
        """What reaches each env that does something; what one is given that is reset may be anything."""
        return [
            self._row_inputs(tensordict, row, None if masks is None else masks[row], validated=op != Op.RESET)
            if op
            else None
            for row, op in enumerate(ops)
        ]

    def _unbound(self, tensordict: TensorDict) -> list[TensorDict]:
        """What reaches each env, from one ``unbind`` a leaf."""
        keys, leaves = self._input_columns(tensordict)
        device = self._row_device[0]
        if self._moves and device is not None:
            leaves = [leaf.to(device) for leaf in leaves]
        assemble = self._input_assemblers.get(keys)
        if assemble is None:
            assemble = self._input_assemblers[keys] = Assembler(keys, self._row_batch_size, device)
        return assemble.each([leaf.clone().unbind(0) for leaf in leaves])  # an env may keep or change what it is given

    def _input_columns(self, tensordict: TensorDict) -> tuple[tuple[Key, ...], list[Any]]:
        """Keys and leaves ``[N, …]`` of what reaches envs that are alike, all of which are stepped."""
        plan = self._envs[0]._spec_plan
        keys = self._required_keys
        preset = entry(tensordict, "next")
        if plan.groups.nested or (preset is not None and not self._is_given(preset)):
            keys = (*keys, *(key for key in plan.optional if tensordict.get(key, None) is not None))
        return keys, [tensordict.get(key) if len(key) > 1 else entry(tensordict, key[0]) for key in keys]

    def _is_given(self, preset: TensorDictBase) -> bool:
        """Whether what stands under ``"next"`` is what the last step gave, in which no policy has written since."""
        return _is_as_given(preset, self._given_next)

    def _row_inputs(
        self, tensordict: TensorDictBase, row: int, mask: torch.Tensor | None, *, validated: bool
    ) -> TensorDictBase:
        return self._checked_row(row, self._row_for_env(tensordict, row), mask, validated=validated)

    def _checked_row(
        self, row: int, given: TensorDictBase, mask: torch.Tensor | None, *, validated: bool
    ) -> TensorDictBase:
        plan = self._envs[row]._spec_plan
        if not validated:
            return given
        try:
            plan.require_inputs(given)
            for key, spec in () if mask is not None else self._one_hot_actions[row]:  # a batch looks for itself
                if faults := spec.faults(given.get(key), key):
                    raise SpecError("; ".join(faults))
        except (KeyError, TypeError, ValueError) as error:
            name_env(error, row)
            raise
        return plan.inputs_of(given) if mask is None else given

    def _row_for_env(self, tensordict: TensorDictBase, row: int) -> TensorDictBase:
        """A row as its env has it; a TensorDict of its own, without the caller's masks."""
        return self._for_env(row, row_of(tensordict, row))

    def _for_env(self, row: int, tensordict: TensorDictBase) -> TensorDictBase:
        given = tensordict.exclude("_step", "_reset")
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
        if self.is_dense or tensordict is None:
            super()._require_own(tensordict)
            return
        for row, env in enumerate(self._envs):
            try:
                require_showable(row_of(tensordict, row), shown_leaves(env))
            except (TypeError, ValueError) as error:
                name_env(error, row)
                raise

    def _shows_all(self, tensordict: TensorDictBase) -> bool:
        return all(tensordict.get(key, None) is not None for key in leaf_keys(self.specs["observation"]))

    # ---------------------------------------------------------------- what they gave

    def _next_of(self, tensordict: TensorDictBase, untouched: Rows | None, report: Report) -> TensorDictBase:
        self._remember(report.steps)
        if self.is_dense and untouched is None:
            stacked = self._stacked(report.steps)
            if stacked is not None:
                self.may_have_extras = report.steps.layout is None or report.steps.layout.has_extras
                self._given_next = {} if self.groups.nested else _all_entries(stacked)
                return stacked
        self.may_have_extras = True
        return self._put_together(
            [
                self._own(row, tensordict, with_rewards=True)
                if untouched is not None and untouched[row]
                else report.steps[row].completed()
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
        self._remember(report.resets)
        num_rows = self.engine.num_envs
        if self.is_dense and untouched is None:
            if len(report.resets) == num_rows:
                stacked = self._stacked(report.resets)
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
                rows.append(report.resets[row].completed())
            else:
                shown = report.steps[row].completed().exclude(*leaf_keys(self._envs[row].full_reward_spec))
                rows.append(cloned(shown))  # the root is the caller's to change
        return self._put_together(rows, tensordict, after_step=following is not None)

    def _latest_of(self, tensordict: TensorDictBase, untouched: Rows | None, report: Report) -> TensorDictBase:
        self._remember(report.steps)
        self._remember(report.resets)
        rows = []
        for row in range(self.engine.num_envs):
            if untouched is not None and untouched[row]:
                rows.append(self._own(row, tensordict, with_rewards=True))
            elif row in report.resets:
                made = report.resets[row].completed()
                rows.append(made.update(self._envs[row].full_reward_spec.zero()))
            else:
                rows.append(report.steps[row].completed())
        return self._put_together(rows, tensordict)

    def _stacked(self, rows: OutputRows) -> TensorDictBase | None:
        """The rows of all envs, a leaf at a time; None where one has other leaves than another."""
        if rows.layout is not None:
            positions, assemble = self._assembler_of(rows.layout)
            columns = [rows.columns[position] for position in positions]
            return assemble(self._move(columns) if self._moves else columns)
        outputs = [out for _, out in rows.items()]
        layout, _, is_complete = outputs[0]
        if layout.has_extras or any(out.layout is not layout or out.is_complete is not is_complete for out in outputs):
            return None
        positions, assemble = self._assembler_of(layout)
        columns = [self._column([out.values[position] for out in outputs]) for position in positions]
        if self._moves:
            plain = [column for column in columns if isinstance(column, torch.Tensor)]
            moved = iter(self._move(plain))
            columns = [next(moved) if isinstance(column, torch.Tensor) else column for column in columns]
        stacked = assemble(columns)
        return stacked if is_complete else self.groups.completed(stacked)

    def _assembler_of(self, layout: RowLayout) -> tuple[list[int], Assembler]:
        """Positions of the leaves that are handed out, and what puts their stacks together."""
        found = self._assemblers.get(layout)
        if found is None:
            keys = [key for key in layout.keys if key not in self._left_out[0]]
            assemble = Assembler(
                keys, self.batch_size, self._device, self._sizes_of_groups("observation", "reward", "done")
            )
            found = self._assemblers[layout] = ([layout.position[key] for key in keys], assemble)
        return found

    def _column(self, values: list[Any]) -> Any:
        if self._moves and self._devices_differ:
            values = [value.to(self._device) for value in values]
        if not isinstance(values[0], torch.Tensor):
            return NonTensorStack(*values)
        return torch.stack(values)

    def _root_after(self, following: TensorDictBase, report: Report) -> TensorDictBase | None:
        """The root after a step of all envs, in tensors of its own; None where it takes a look at each row."""
        keys = self._assemble_root.keys
        leaves = [(entry(following, key[0]) if len(key) == 1 else following.get(key)).clone() for key in keys]
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):  # objects are copied with their rows
            return None
        if not len(report.resets):
            return self._assemble_root(leaves)
        resets = dict(report.resets.items())
        if self.groups.nested or self._masks is not None or any(out.layout.has_extras for out in resets.values()):
            return None
        for key, leaf in zip(keys, leaves, strict=True):
            if key in self._root_flags:  # an env that goes on is not done, nor is one after its reset
                leaf.zero_()
            else:
                for row, out in resets.items():
                    leaf[row] = out.values[out.layout.position[key]]
        return self._assemble_root(leaves)

    def _own(self, row: int, tensordict: TensorDictBase | None, *, with_rewards: bool) -> TensorDictBase:
        """What an env that was left out shows: what the caller has for it, else its latest, else zeros."""
        env = self._envs[row]
        caller = None if tensordict is None else row_of(tensordict, row)
        shown = shown_before(env, caller, self._latest(row))
        return shown.update(nothing_gained(env)) if with_rewards else shown

    def _remember(self, outputs: OutputRows) -> None:
        """Takes down what each env shows now, for a time when it is left out and the caller has nothing for it."""
        if not outputs:
            return
        if outputs.layout is not None and self._masks is None:
            self._last, self._last_outputs = {}, outputs
            return
        if self._masks is None:
            self._last.update(outputs.items())
            return
        for row, out in outputs.items():
            mask = self._masks[row]
            if mask is None:
                self._last[row] = out
                continue
            shown, before = out.completed(), self._latest(row)
            chosen = TensorDict({}, shown.batch_size)
            for key in self._root_keys[row]:
                other = None if before is None else before.get(key, None)
                chosen.set(key, picked_rows(mask, shown.get(key), other))
            self._last[row] = chosen

    def _latest(self, row: int) -> TensorDictBase | None:
        if row in self._last:
            last = self._last[row]
        else:
            last = self._last_outputs.as_given(row) if row in self._last_outputs else None
        return last.completed() if isinstance(last, (OutputRow, OneOfRows)) else last

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
            return LazyStackedTensorDict(*(cloned(row) for row in rows), stack_dim=0)  # not the envs' own tensors
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
                own = nothing_like(keys[key])
            row.set(key, own)
    return rows


def _common_batch_size(envs: Sequence[EnvSpecs]) -> torch.Size:
    for row, env in enumerate(envs):
        if env.batch_size != envs[0].batch_size:
            raise ValueError(
                f"env {row}: got batch size {[*env.batch_size]}, expected {[*envs[0].batch_size]} as env 0 has it"
            )
    return envs[0].batch_size


def _states_observed(env: EnvSpecs) -> list[Composite]:
    """The states that a step is given as observations of the one before."""
    observed = leaf_keys(env.full_observation_spec)
    states = [key for key in leaf_keys(env.full_state_spec) if key in observed]
    return [env.full_state_spec.select(*states)] if states else []


def _all_entries(tensordict: TensorDictBase) -> dict[str, Any]:
    """The entries of a TensorDict, and in place of each TensorDict in it the dict of its own."""
    return {
        name: _all_entries(value) if type(value) is TensorDict else value for name, value in entries(tensordict).items()
    }


def _is_as_given(tensordict: TensorDictBase, given: dict[str, Any]) -> bool:
    """Whether a TensorDict has these very entries and no others, and none that was written into since."""
    if len(tensordict.keys()) != len(given):
        return False
    for name, value in given.items():
        own = entry(tensordict, name)
        if isinstance(value, dict):
            if not (isinstance(own, TensorDictBase) and _is_as_given(own, value)):
                return False
        elif own is not value or not isinstance(value, torch.Tensor) or value.is_inference() or value._version != 0:
            return False
    return True
