"""An engine seen as TensorDicts: what its faces share, whatever kind of env the engine runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.error import ResetNeeded
from tensordict import LazyStackedTensorDict, TensorDictBase

from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.failures import fail_rows, raise_env_error, why_not_stepped
from gymbridge.engine.host import NOTHING, Engine, Report
from gymbridge.envs.done_groups import DoneGroups
from gymbridge.envs.env_specs import EnvSpecs, SpecPlan, fake_tensordict, shown_leaves
from gymbridge.envs.inputs import NestedKey, require_showable
from gymbridge.envs.restart_marks import RestartMarks, may_restart
from gymbridge.envs.tensordicts import entry, row_of
from gymbridge.envs.transitions import keep_asleep, put_first, put_next
from gymbridge.specs import Composite, TensorSpec

__all__ = ["EngineFace"]

Rows: TypeAlias = npt.NDArray[np.bool_]


class EngineFace(ABC):
    """Reset and step of an engine, TensorDict in and out: one round of the engine each.

    A subclass says what the env looks like and turns what a round gave into TensorDicts.

    Args:
        engine: the engine, with its block allocated.
        batch_size: that of the env.
        device: where what is returned is to be; None leaves each leaf where it is.

    Attributes:
        specs: ``"observation"``, ``"action"``, ``"reward"``, ``"done"`` and ``"state"``, each a ``Composite`` with the
            batch size.
        groups: the groups of end-of-episode flags.
        partial: what the last call in which an env raised would have returned.
    """

    specs: dict[str, Composite]
    groups: DoneGroups
    plan: SpecPlan
    is_dense = True
    """Whether results are dense; else they are lazy stacks with a row an env."""
    may_have_extras = False
    """Whether envs may give what no spec has."""

    def __init__(self, engine: Engine[Any], batch_size: torch.Size, device: torch.device | None):
        self.engine = engine
        self.batch_size = batch_size
        self._device = device
        self.partial: TensorDictBase | None = None
        self._marks = RestartMarks(batch_size, device) if may_restart(engine) else None
        self._lost_rows: Collection[int] = ()  # of the latest step_and_maybe_reset
        self._block = engine.block
        num_rows = engine.num_envs
        self._reset_all = bytes([Op.RESET]) * num_rows
        self._step_all = bytes([Op.STEP]) * num_rows
        self._step_and_maybe_reset_all = bytes([Op.STEP_MAYBE_RESET]) * num_rows
        self._all_running = bytes([RowState.RUNNING]) * num_rows
        self.waits_for_reset = [True] * num_rows
        """Row -> whether its env is not stepped before a first reset, and after its episode's end."""

    def _take_specs(self, specs: dict[str, Composite]) -> None:
        """Sets what follows from the specs."""
        described = EnvSpecs(self._device, self.batch_size)
        for kind, spec in specs.items():
            described._store_spec(kind, spec)
        self.specs = specs
        self._described = described
        self.plan = described._spec_plan
        self.groups = self.plan.groups

    @abstractmethod
    def on(self, device: torch.device) -> EngineFace:
        """The same engine's face on another device."""

    def difference(self) -> str | None:
        """How the envs disagree in keys, shapes or dtypes; None if they do not."""
        return None

    def copying(self) -> AbstractContextManager[None]:
        """A context in which what is returned is the caller's own, whatever was chosen."""
        return nullcontext()

    # ---------------------------------------------------------------- the four rounds

    def reset(
        self,
        tensordict: TensorDictBase | None,
        mask: torch.Tensor | None,
        reset_kwargs: Sequence[Mapping[str, Any]] | None,
    ) -> TensorDictBase:
        """Resets the envs that the mask picks: observation, infos and flags of all envs."""
        ops, idle = self._picked(self._reset_all, mask)
        if mask is not None:
            self._require_own(tensordict)
            self._require_observations(tensordict, ops)
        report = self._round(ops, self._reset_inputs(tensordict, mask), reset_kwargs)
        try:
            untouched = self._untouched(idle, report)
            first = self._root_of(tensordict, untouched, report)
            if self._marks is not None:
                self._marks.put(first, (), tensordict, untouched)
        except BaseException as error:  # an interrupt or no memory: the caller does not see what the envs did
            self._not_shown(ops, report, error)
            raise
        if report.errors:
            keys = self.groups.mask_keys("_reset")
            self._fail(first if tensordict is None else put_first(tensordict, first, keys), report)
        return first

    def step(self, tensordict: TensorDictBase, mask: torch.Tensor | None) -> TensorDictBase:
        """Steps the envs that the mask picks: what stands under ``"next"``."""
        ops, idle = self._picked(self._step_all, mask)
        if mask is not None:
            self._require_own(tensordict)
        report = self._run(tensordict, mask, ops)
        try:
            untouched = self._untouched(idle, report)
            following = self._next_of(tensordict, untouched, report)
            if self._marks is not None:
                self._marks.put(following, report.lost, tensordict, untouched)
        except BaseException as error:
            self._not_shown(ops, report, error)
            raise
        if report.errors:
            self._fail(self._stepped(tensordict, following), report)
        return following

    def step_and_maybe_reset(
        self, tensordict: TensorDictBase, mask: torch.Tensor | None
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """Steps the envs that the mask picks and resets those that ended: ``next``, and the root after it."""
        ops, idle = self._picked(self._step_and_maybe_reset_all, mask)
        if mask is not None:
            self._require_own(tensordict)
        report = self._run(tensordict, mask, ops)
        self._lost_rows = report.lost
        try:
            if idle is None and not report.errors:
                following, root = self._step_and_root(tensordict, report)
            else:
                untouched = self._untouched(idle, report)
                following = self._next_of(tensordict, untouched, report)
                root = self._root_of(tensordict, untouched, report, following)
                if self._marks is not None:
                    self._marks.put(following, report.lost, tensordict, untouched)
                    self._marks.put(root, (), tensordict, untouched)
        except BaseException as error:
            self._not_shown(ops, report, error)
            raise
        if report.errors:
            self._fail(self._stepped(tensordict, following), report)
        return following, root

    def _step_and_root(self, tensordict: TensorDictBase, report: Report) -> tuple[TensorDictBase, TensorDictBase]:
        """What stands under ``"next"`` after a step of all rows, none of which raised, and the root after it."""
        following = self._next_of(tensordict, None, report)
        root = self._root_of(tensordict, None, report, following)
        if self._marks is not None:
            self._marks.put(following, report.lost)
            self._marks.put(root)
        return following, root

    def concerned(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        """The envs that the latest ``step_and_maybe_reset`` has changed: of a row whose worker was replaced all.

        Args:
            mask: those that it was to step; None for all.
        """
        if mask is None or not self._lost_rows:
            return mask
        changed = mask.clone()
        changed[[*self._lost_rows]] = True
        return changed

    def step_or_reset(self, tensordict: TensorDictBase, resets: torch.Tensor) -> TensorDictBase:
        """Resets the rows that ``resets`` picks and steps the others, in one round: what each row shows then."""
        ops = np.where(resets.numpy().ravel(), np.uint8(Op.RESET), np.uint8(Op.STEP)).tobytes()
        report = self._run(tensordict, None, ops)
        try:
            untouched = self._untouched(None, report)
            shown = self._latest_of(tensordict, untouched, report)
            if self._marks is not None:
                self._marks.put(shown, report.lost, tensordict, untouched)
        except BaseException as error:
            self._not_shown(ops, report, error)
            raise
        if report.errors:
            self._fail(self._stepped(tensordict, shown), report)
        return shown

    # ---------------------------------------------------------------- a round whose two ends come apart

    def given_to(self, op: Op, tensordict: TensorDictBase | None) -> Any:
        """What the engine's hosts are handed for a step or a reset of all rows; refuses what does not fit the specs."""
        if op == Op.RESET:
            return self._reset_inputs(tensordict, None)
        assert tensordict is not None
        return self._step_inputs(tensordict, None, bytes([op]) * self.engine.num_envs)

    def after_reset(self, tensordict: TensorDictBase | None, report: Report) -> TensorDictBase:
        """What all rows' resets gave, in what they were given."""
        first = self._root_of(tensordict, None, report)
        if self._marks is not None:
            self._marks.put(first)
        return first if tensordict is None else put_first(tensordict, first, self.groups.mask_keys("_reset"))

    def after_step(self, tensordict: TensorDictBase, report: Report) -> TensorDictBase:
        """What all rows' steps gave, put into what they were given."""
        following = self._next_of(tensordict, None, report)
        if self._marks is not None:
            self._marks.put(following, report.lost)
        return put_next(tensordict, following, self.groups.nested)

    def after_step_and_maybe_reset(
        self, tensordict: TensorDictBase, report: Report
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """The same with the root of the next step, where rows that ended hold what their resets gave."""
        following, root = self._step_and_root(tensordict, report)
        with_next = self.may_have_extras or entry(tensordict, "next") is not None
        put_next(tensordict, following, self.groups.nested)
        return tensordict, self.carry(tensordict, root, None, with_next=with_next)

    def _not_shown(self, ops: bytes, report: Report, error: BaseException) -> None:
        """Takes down that what the envs did could not be put together; the error of one that raised is raised first."""
        fail_rows(self._block.state, ops)
        if report.errors and isinstance(error, Exception):
            raise_env_error(report.errors)

    def _run(self, tensordict: TensorDictBase, mask: torch.Tensor | None, ops: bytes) -> Report:
        if self.engine.unsettled:
            self.engine.settle()
        states = bytes(self._block.state)
        if states != self._all_running:
            self._require_steppable(ops, states)
        if not any(ops):
            return NOTHING
        return self._round(ops, self._step_inputs(tensordict, mask, ops), None)

    def _round(self, ops: bytes, inputs: Any, reset_kwargs: Sequence[Mapping[str, Any]] | None) -> Report:
        return self.engine.run(ops, inputs, reset_kwargs)

    def require_steppable(self, mask: torch.Tensor | None) -> None:
        """Refuses to step envs of which one has to be reset before.

        Args:
            mask: the envs that are to be stepped; None for all.
        """
        states = bytes(self._block.state)
        if states != self._all_running:
            self._require_steppable(self._picked(self._step_all, mask)[0], states)

    # ---------------------------------------------------------------- what stands in a stepped TensorDict

    def ended(self, tensordict: TensorDictBase) -> torch.Tensor:
        """Which envs have ended, bool ``[*B]``."""
        return self.groups.ended(tensordict)

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The root of the next step."""
        return self.plan.next_root(tensordict)

    def carry(
        self, tensordict: TensorDictBase, root: TensorDictBase, mask: torch.Tensor | None, *, with_next: bool
    ) -> TensorDictBase:
        """The root after a step, with what the envs have nothing to say about: of ``next`` first, then of the root.

        Args:
            tensordict: what the step was given, with ``next``.
            root: what the envs showed; it may be changed.
            mask: the envs that were stepped; the others have their own row of what was given.
            with_next: something may stand under ``next`` that the envs have nothing to say about.
        """
        if isinstance(tensordict, LazyStackedTensorDict):
            rows = [
                _carried(
                    self.row_plan(row),
                    row_of(tensordict, row),
                    row_of(root, row),
                    None if mask is None else mask[row],
                    with_next=True,
                )
                for row in range(self.engine.num_envs)
            ]
            return LazyStackedTensorDict(*rows, stack_dim=0)
        return _carried(self.plan, tensordict, root, mask, with_next=with_next)

    def row_plan(self, row: int) -> SpecPlan:
        """What follows from the specs of a row's env."""
        return self.plan

    def fake_tensordict(self) -> TensorDictBase:
        """A stepped TensorDict of zeros."""
        return fake_tensordict(self.specs, self.batch_size, self._device)

    # ---------------------------------------------------------------- what a subclass writes

    @abstractmethod
    def _reset_inputs(self, tensordict: TensorDictBase | None, mask: torch.Tensor | None) -> Any:
        """What the engine's hosts are handed for a reset."""

    @abstractmethod
    def _step_inputs(self, tensordict: TensorDictBase, mask: torch.Tensor | None, ops: bytes) -> Any:
        """What the engine's hosts are handed for a step; refuses what does not fit the specs."""

    @abstractmethod
    def _next_of(self, tensordict: TensorDictBase, untouched: Rows | None, report: Report) -> TensorDictBase:
        """What stands under ``"next"`` after a round; rows that it left untouched show what they showed before."""

    @abstractmethod
    def _root_of(
        self,
        tensordict: TensorDictBase | None,
        untouched: Rows | None,
        report: Report,
        following: TensorDictBase | None = None,
    ) -> TensorDictBase:
        """Each env's latest observation and its flags, after a reset or, with what it gave, after a step."""

    @abstractmethod
    def _latest_of(self, tensordict: TensorDictBase, untouched: Rows | None, report: Report) -> TensorDictBase:
        """Each env's latest observation, with reward (zero after a reset) and flags (False after one)."""

    @abstractmethod
    def _shows_all(self, tensordict: TensorDictBase) -> bool:
        """Whether a TensorDict has every observation."""

    # ---------------------------------------------------------------- rows

    def _require_own(self, tensordict: TensorDictBase | None) -> None:
        """Refuses observations and flags that rows which are not picked could not keep."""
        if tensordict is not None:
            require_showable(tensordict, self._shown_leaves)

    _known_leaves: list[tuple[NestedKey, TensorSpec]] | None = None

    @property
    def _shown_leaves(self) -> list[tuple[NestedKey, TensorSpec]]:
        if self._known_leaves is None:
            self._known_leaves = shown_leaves(self._described)
        return self._known_leaves

    def _picked(self, ops: bytes, mask: torch.Tensor | None) -> tuple[bytes, Rows | None]:
        """The ops of the rows in which the mask picks an env, ``IDLE`` for the others; and which the others are."""
        if mask is None:
            return ops, None
        picked = mask.numpy().reshape(len(ops), -1).any(1)
        idle = None if picked.all() else np.logical_not(picked)
        return (np.frombuffer(ops, np.uint8) * picked).tobytes(), idle

    def _untouched(self, idle: Rows | None, report: Report) -> Rows | None:
        """The rows that show what they showed before: the idle ones, and those that raised."""
        if not report.errors:
            return idle
        untouched = self._failed(report)
        return untouched if idle is None else untouched | idle

    def _failed(self, report: Report) -> Rows:
        failed = np.zeros(self.engine.num_envs, np.bool_)
        failed[[*report.errors]] = True
        return failed

    def _stepped(self, tensordict: TensorDictBase, following: TensorDictBase) -> TensorDictBase:
        return put_next(tensordict.copy(), following, self.groups.nested)

    def _fail(self, result: TensorDictBase, report: Report) -> None:
        """Keeps what the other envs gave and raises what an env raised."""
        failed = torch.from_numpy(self._failed(report))
        widened = failed.reshape((*self.batch_size[:1], *[1] * (len(self.batch_size) - 1)))
        self.partial = result.set("_failed", widened.expand(self.batch_size).clone())
        raise_env_error(report.errors)

    def _require_steppable(self, ops: bytes, states: bytes) -> None:
        """Refuses to step an env that has to be reset before.

        Raises:
            WorkerDiedError: the worker of such an env is dead.
            ResetNeeded: naming the envs and why each needs a reset.
        """
        refused = [
            row
            for row, op in enumerate(ops)
            if op >= Op.STEP
            and (states[row] != RowState.RUNNING if self.waits_for_reset[row] else states[row] == RowState.FAILED)
        ]
        if refused:
            self.engine.require_workers(refused)  # no reset helps where a worker is dead
            raise ResetNeeded(f"{why_not_stepped(states, refused)}: reset them before they are stepped")

    def _require_observations(self, tensordict: TensorDictBase | None, ops: bytes) -> None:
        """Refuses to show an env that has never been reset and of which td shows nothing."""
        if self.engine.unsettled:
            self.engine.settle()
        new = [row for row, state in enumerate(bytes(self._block.state)) if state == RowState.NEW and not ops[row]]
        if new and (tensordict is None or not self._shows_all(tensordict)):
            raise ResetNeeded(f"_reset leaves out envs {new}, which have never been reset: reset them too")


def _carried(
    plan: SpecPlan, tensordict: TensorDictBase, root: TensorDictBase, mask: torch.Tensor | None, *, with_next: bool
) -> TensorDictBase:
    if with_next:
        plan.next_root.carry(entry(tensordict, "next"), root)
    plan.next_root.carry(tensordict, root)
    if mask is not None:
        keep_asleep(root, tensordict, mask)
    return root
