"""Runs TensorDict envs: rows of TensorDicts in, rows of tensors out, handed over beside the block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import torch
from gymnasium.error import ResetNeeded
from tensordict import TensorDictBase

from gymbridge.engine.block import Block
from gymbridge.engine.codes import AtWork, Op, RowState, Source
from gymbridge.engine.dispatch import FollowsPaths
from gymbridge.engine.env_state import without_locks
from gymbridge.engine.failures import fail_rows, unmarked
from gymbridge.engine.gym_host import close_all
from gymbridge.engine.host import Report
from gymbridge.engine.layout import Leaf
from gymbridge.engine.work_counts import Tally, counted
from gymbridge.envs.base import EnvBase
from gymbridge.envs.engine_env import EngineEnv
from gymbridge.envs.env_specs import EnvSpecs, difference, first_alike
from gymbridge.envs.output_rows import OutputReader, OutputRow, OutputRows
from gymbridge.envs.transitions import root_to_reset
from gymbridge.errors import EnvOutputError

__all__ = ["HonouredMasks", "RowInputs", "TensorDictEnvDescription", "TensorDictHost", "TensorDictHostOptions"]

_AT_RESET = int(AtWork.RESET)


@dataclass(frozen=True)
class TensorDictHostOptions:
    """How TensorDict envs are run.

    Attributes:
        gradients: outputs may require a gradient.
        stacks: outputs of envs that are alike are stacked at once.
    """

    gradients: bool = False
    stacks: bool = True

    def describe(self, env: EnvBase) -> TensorDictEnvDescription:
        """What an env says of itself."""
        return TensorDictEnvDescription(EnvSpecs.of(env), _is_gym_env(env))

    def host(self, envs: Sequence[EnvBase], block: Block) -> TensorDictHost:
        """The host that runs the envs; of the block it uses the control bytes."""
        return TensorDictHost(envs, self, block)


@dataclass(frozen=True)
class TensorDictEnvDescription:
    """The specs of one TensorDict env; its rows have no leaves in the block.

    Attributes:
        specs: of the env.
        is_gym_env: it is a gymnasium env in a ``GymEnv``.
    """

    specs: EnvSpecs
    is_gym_env: bool = False
    input_leaves: tuple[Leaf, ...] = ()
    next_leaves: tuple[Leaf, ...] = ()
    root_leaves: tuple[Leaf, ...] = ()


class HonouredMasks(NamedTuple):
    """Which masks an env that is a batch of its own honours.

    Attributes:
        env: the class's name.
        partial_step, partial_reset: those of the env.
    """

    env: str
    partial_step: bool
    partial_reset: bool

    @classmethod
    def of(cls, env: EnvBase) -> HonouredMasks:
        """Those of an env."""
        return cls(type(env).__name__, env.partial_step, env.partial_reset)

    def require(self, row: int, op: int, mask: torch.Tensor | None) -> None:
        """Refuses a mask that the env of a row does not honour.

        Raises:
            ValueError: naming the env.
        """
        if not op or mask is None:
            return
        name, honoured = ("step", self.partial_step) if op >= Op.STEP else ("reset", self.partial_reset)
        if not honoured:
            raise ValueError(
                f"env {row}: _{name}: {self.env} has partial_{name}=False and is {name} whole only; got the mask {mask}"
            )


@dataclass
class RowInputs:
    """What the rows of a round are given.

    Attributes:
        given: row -> what reaches its env: of a step the inputs, of a reset what the caller has in this row, or None.
        masks: row -> which envs of the row's own batch are picked, None for all; None where no row has such a mask.
        root: row -> what the caller has in this row, without ``"next"``, for the reset of an env that ends in a step.
    """

    given: Sequence[TensorDictBase | None]
    masks: Sequence[torch.Tensor | None] | None
    root: Callable[[int], TensorDictBase]

    def mask(self, row: int) -> torch.Tensor | None:
        """The mask of a row's own batch."""
        return None if self.masks is None else self.masks[row]


class TensorDictHost(FollowsPaths):
    """Runs TensorDict envs, one a row.

    What the rows gave, as :class:`~gymbridge.envs.output_rows.OutputRows`, is in the report.

    Args:
        envs: the envs, as many as the block has rows; they are closed by ``close``.
        options: how to run them.
        block: its control bytes say where each row stands.
    """

    def __init__(self, envs: Sequence[EnvBase], options: TensorDictHostOptions, block: Block):
        self.envs = envs
        self._called: Sequence[Any] = envs
        """What is called in rounds: the envs, or what counts what they do."""
        self._refuses_gradients = not options.gradients
        self._state, self._source, self._at_work = block.state, block.source, block.at_work
        if not block.in_use:
            self._state[:] = bytes([RowState.NEW]) * len(envs)
            self._source[:] = bytes([Source.ROOT]) * len(envs)
        alike = first_alike(envs)
        readers = {id(env): [OutputReader(env, with_rewards=step) for step in (True, False)] for env in alike}
        self._read_step = [readers[id(env)][0] for env in alike]
        self._read_reset = [readers[id(env)][1] for env in alike]
        # an env without a batch, that leaves the contract's rounds alone, is asked for its step without ceremony
        self._plain = [not env.batch_size and type(env)._next is EnvBase._next for env in envs]
        self._stacks = options.stacks and all(self._plain) and difference(envs) is None
        self._batches = {row: HonouredMasks.of(env) for row, env in enumerate(envs) if env.batch_size}
        self._whole_steps = {bytes([op]) * len(envs) for op in (Op.STEP, Op.STEP_MAYBE_RESET)}
        self._all_running = bytes([RowState.RUNNING]) * len(envs)
        self._all_in_next = bytes([Source.NEXT]) * len(envs)

    def run(self, ops: bytes, inputs: RowInputs, reset_kwargs: Sequence[Mapping[str, Any]] | None = None) -> Report:
        """See :class:`~gymbridge.engine.host.Host`."""
        report = Report()
        report.resets = OutputRows()
        self._require_ready(ops, inputs)
        try:
            if self._stacks and ops in self._whole_steps:
                steps = self._whole_step(inputs, report)
            else:
                steps = self._row_by_row(ops, inputs, reset_kwargs, report)
            report.steps, resets = steps, report.resets
            for row in steps.ended():
                self._state[row] = RowState.ENDED
                if ops[row] == Op.STEP_MAYBE_RESET:
                    try:
                        with_kwargs = reset_kwargs[row] if reset_kwargs else {}
                        if steps.layout is None:  # the env's own tensors, which its reset may write into
                            steps[row] = steps[row].copied()
                        resets[row] = self._reset_ended(row, steps[row], inputs, with_kwargs)
                    except Exception as error:
                        self._fail(row, error, report)
        except BaseException:  # an interrupt: the caller will not see what the rows did
            fail_rows(self._state, ops)
            raise
        return report

    def _require_ready(self, ops: bytes, inputs: RowInputs) -> None:
        """Refuses a round that an env which is a batch of its own would refuse, before any env has done its part."""
        for row, masks in self._batches.items():
            env, mask = self.envs[row], inputs.mask(row)
            masks.require(row, ops[row], mask)
            if ops[row] >= Op.STEP and isinstance(env, EngineEnv):
                try:
                    env._require_steppable(mask)
                except ResetNeeded as error:
                    raise ResetNeeded(f"env {row}: {error}") from None

    def _whole_step(self, inputs: RowInputs, report: Report) -> OutputRows:
        """Steps all envs, whose outputs are checked together, or each by itself where that cannot be."""
        made: list[Any] = []
        at_work = self._at_work
        for row, (called, given) in enumerate(zip(self._called, inputs.given, strict=True)):
            at_work[0] = row
            try:
                out = called._step(given)
                if out is given:
                    self.envs[row]._require_new("_step", out, given)
                made.append(out)
            except Exception as error:
                self._fail(row, error, report)
                made.append(None)
        stacked = None if report.errors else self._read_step[0].stacked(made)
        if stacked is not None and self._refuses_gradients and torch.is_grad_enabled():
            stacked = None if any(column.requires_grad for column in stacked.columns) else stacked
        if stacked is not None:
            self._state[:] = self._all_running
            self._source[:] = self._all_in_next
            return stacked
        outputs = OutputRows()
        for row, out in enumerate(made):
            if row not in report.errors:
                try:
                    outputs[row] = self._taken(row, out)
                except Exception as error:
                    self._fail(row, error, report)
        return outputs

    def _row_by_row(
        self, ops: bytes, inputs: RowInputs, reset_kwargs: Sequence[Mapping[str, Any]] | None, report: Report
    ) -> OutputRows:
        """Steps and resets rows in turn; what the resets gave is in the report."""
        steps = OutputRows()
        for row, op in enumerate(ops):
            if not op:
                continue
            try:
                if op == Op.RESET:
                    with_kwargs = reset_kwargs[row] if reset_kwargs else {}
                    report.resets[row] = self._reset(row, inputs.given[row], inputs.mask(row), with_kwargs)
                else:
                    steps[row] = self._step(row, inputs.given[row], inputs.mask(row))
            except Exception as error:
                self._fail(row, error, report)
        return steps

    def _fail(self, row: int, error: Exception, report: Report) -> None:
        report.errors[row] = unmarked(error) if _is_gym_env(self.envs[row]) else error
        self._state[row] = RowState.FAILED

    def _step(self, row: int, given: Any, mask: torch.Tensor | None) -> OutputRow:
        env = self.envs[row]
        self._at_work[0] = row
        if not self._plain[row]:
            return self._taken(row, self._called[row]._next(given, mask))
        out = self._called[row]._step(given)
        env._require_new("_step", out, given)
        return self._taken(row, out)

    def _taken(self, row: int, made: object) -> OutputRow:
        """What a step gave, if it is as the specs say."""
        env = self.envs[row]
        out = self._read("_step", self._read_step[row], env, made, is_complete=not self._plain[row])
        self._source[row] = Source.NEXT
        self._state[row] = RowState.RUNNING
        return out

    def _reset(
        self, row: int, given: TensorDictBase | None, mask: torch.Tensor | None, kwargs: Mapping[str, Any]
    ) -> OutputRow:
        self._at_work[0] = _AT_RESET | row
        return self._first_taken(row, self._called[row]._first(given, mask, dict(kwargs)))

    def _first_taken(self, row: int, made: object) -> OutputRow:
        """What a reset gave, if it is as the specs say."""
        env = self.envs[row]
        out = self._read("_reset", self._read_reset[row], env, made, is_complete=True)
        self._source[row] = Source.ROOT
        self._state[row] = RowState.RUNNING
        return out

    def _reset_ended(self, row: int, step: OutputRow, inputs: RowInputs, kwargs: Mapping[str, Any]) -> OutputRow:
        """Resets a row, or those envs of its own batch, whose episode has just ended."""
        groups, next_root = self._read_step[row].groups, self.envs[row].step_mdp
        root, mask = root_to_reset(inputs.root(row), step.completed(), next_root, groups, inputs.mask(row))
        return self._reset(row, root, mask, kwargs)

    def _read(self, method: str, reader: OutputReader, env: EnvBase, made: object, *, is_complete: bool) -> OutputRow:
        try:
            out = reader(made, is_complete=is_complete)
        except EnvOutputError as error:
            raise EnvOutputError(f"{type(env).__name__}.{method}: {error}") from None
        if self._refuses_gradients and torch.is_grad_enabled():
            for key, value in zip(out.layout.keys, out.values, strict=True):
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    raise RuntimeError(
                        f"{type(env).__name__}.{method}: {'.'.join(key)} requires a gradient. For gradients through "
                        f"the envs of a SerialEnv give it share_individual_td=True or use_buffers=False; without, "
                        f"step under torch.no_grad()"
                    )
        return out

    def count(self, tally: Tally) -> None:
        """See :class:`~gymbridge.engine.host.EnvHost`."""
        self._called = counted(self.envs, tally)

    # ---------------------------------------------------------------- the envs themselves

    def attribute(self, row: int, name: str) -> Any:
        """See :class:`~gymbridge.engine.host.Host`; of a gymnasium env in a ``GymEnv`` it is that one's first."""
        env = self.envs[row]
        if _is_gym_env(env):
            try:
                return env.engine.attribute(0, name)
            except AttributeError:
                return getattr(env, name)
        return getattr(env, name)

    def set_attribute(self, row: int, name: str, value: Any) -> None:
        """See :class:`~gymbridge.engine.host.Host`."""
        env = self.envs[row]
        if _is_gym_env(env):
            env.engine.set_attribute(0, name, value)
        elif hasattr(type(env), "set_attr"):  # a batch hands it on to its envs
            env.set_attr(name, value)  # type: ignore[attr-defined]
        else:
            setattr(env, name, value)

    def call(self, row: int, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """See :class:`~gymbridge.engine.host.Host`."""
        value = self.attribute(row, name)
        return value(*args, **(kwargs or {})) if callable(value) else value

    def seed(self, row: int, seed: int | None, static_seed: bool) -> None:
        """See :class:`~gymbridge.engine.host.Host`."""
        self.envs[row].set_seed(seed, static_seed)

    def faults(self, row: int, num_steps: int, seed: int | None) -> list[str]:
        """See :class:`~gymbridge.engine.host.Host`."""
        self._state[row] = RowState.NEW
        return self.envs[row]._output_faults(num_steps, seed)

    def state(self, row: int) -> dict[str, Any]:
        """See :class:`~gymbridge.engine.host.Host`: what the env's own ``state_dict`` gives."""
        state: dict[str, Any] = without_locks(self.envs[row].state_dict())
        return state

    def load_state(self, row: int, state: Mapping[str, Any]) -> None:
        """See :class:`~gymbridge.engine.host.Host`; a gymnasium env's row stands where that does then."""
        env = self.envs[row]
        env.load_state_dict(state)
        if _is_gym_env(env):
            self._state[row] = env.engine.block.state[0]

    def close(self) -> None:
        """See :class:`~gymbridge.engine.host.Host`."""
        close_all(self.envs)


def _is_gym_env(env: EnvBase) -> TypeGuard[EngineEnv]:
    """Whether it is one gymnasium env in a ``GymEnv``."""
    return isinstance(env, EngineEnv) and not env.batch_size
