"""Runs TensorDict envs: rows of TensorDicts in, rows of tensors out, handed over beside the block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDictBase

from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op, RowState, Source
from gymbridge.engine.env_state import without_locks
from gymbridge.engine.failures import fail_rows
from gymbridge.engine.gym_host import close_all
from gymbridge.engine.host import Report
from gymbridge.engine.layout import Leaf
from gymbridge.envs.base import EnvBase
from gymbridge.envs.engine_env import EngineEnv
from gymbridge.envs.env_specs import EnvSpecs
from gymbridge.envs.output_rows import OutputReader, OutputRow
from gymbridge.envs.transitions import put_next
from gymbridge.errors import EnvOutputError

__all__ = ["RowInputs", "TensorDictEnvDescription", "TensorDictHost", "TensorDictHostOptions"]


@dataclass(frozen=True)
class TensorDictHostOptions:
    """How TensorDict envs are run.

    Attributes:
        gradients: outputs may require a gradient.
    """

    gradients: bool = False

    def describe(self, env: EnvBase) -> TensorDictEnvDescription:
        """What an env says of itself."""
        return TensorDictEnvDescription(EnvSpecs.of(env))

    def host(self, envs: Sequence[EnvBase], block: Block) -> TensorDictHost:
        """The host that runs the envs; of the block it uses the control bytes."""
        return TensorDictHost(envs, self, block)


@dataclass(frozen=True)
class TensorDictEnvDescription:
    """The specs of one TensorDict env; its rows have no leaves in the block."""

    specs: EnvSpecs
    input_leaves: tuple[Leaf, ...] = ()
    next_leaves: tuple[Leaf, ...] = ()
    root_leaves: tuple[Leaf, ...] = ()


@dataclass
class RowInputs:
    """What the rows of a round are given.

    Attributes:
        given: row -> what reaches its env: of a step the inputs, of a reset what the caller has in this row, or None.
        masks: row -> which envs of the row's own batch are picked, None for all; None where no row has such a mask.
        root: row -> what the caller has in this row, without ``"next"``, for the reset of an env that ends in a step.
    """

    given: Callable[[int], TensorDictBase | None]
    masks: Sequence[torch.Tensor | None] | None
    root: Callable[[int], TensorDictBase]


class TensorDictHost:
    """Runs TensorDict envs, one a row.

    What a row gives, an :class:`~gymbridge.envs.output_rows.OutputRow` of its env's own tensors, is in the report.

    Args:
        envs: the envs, as many as the block has rows; they are closed by ``close``.
        options: how to run them.
        block: its control bytes say where each row stands.
    """

    def __init__(self, envs: Sequence[EnvBase], options: TensorDictHostOptions, block: Block):
        self.envs = envs
        self._options = options
        self._state, self._source = block.state, block.source
        self._state[:] = bytes([RowState.NEW]) * len(envs)
        self._source[:] = bytes([Source.ROOT]) * len(envs)
        self._read_step = [OutputReader(env, with_rewards=True) for env in envs]
        self._read_reset = [OutputReader(env, with_rewards=False) for env in envs]
        # an env without a batch, that leaves the contract's rounds alone, is asked for its step without ceremony
        self._plain = [not env.batch_size and type(env)._next is EnvBase._next for env in envs]

    def run(self, ops: bytes, inputs: RowInputs, reset_kwargs: Sequence[Mapping[str, Any]] | None = None) -> Report:
        """See :class:`~gymbridge.engine.host.Host`."""
        report = Report()
        row = -1
        try:
            for row, op in enumerate(ops):
                if op:
                    with_kwargs = reset_kwargs[row] if reset_kwargs else {}
                    try:
                        if op == Op.RESET:
                            report.resets[row] = self._reset(row, inputs.given(row), _mask(inputs, row), with_kwargs)
                        else:
                            report.steps[row] = self._step(row, inputs.given(row), _mask(inputs, row))
                    except Exception as error:
                        self._fail(row, error, report)
            for row in self._ended(report.steps):
                self._state[row] = RowState.ENDED
                if ops[row] == Op.STEP_MAYBE_RESET:
                    try:
                        with_kwargs = reset_kwargs[row] if reset_kwargs else {}
                        report.resets[row] = self._reset_ended(row, report.steps[row], inputs, with_kwargs)
                    except Exception as error:
                        self._fail(row, error, report)
        except BaseException:  # an interrupt: the caller will not see what the rows did
            fail_rows(self._state, ops)
            raise
        return report

    def _fail(self, row: int, error: Exception, report: Report) -> None:
        report.errors[row] = error
        self._state[row] = RowState.FAILED

    def _step(self, row: int, given: Any, mask: torch.Tensor | None) -> OutputRow:
        env = self.envs[row]
        made = env._step(given) if self._plain[row] else env._next(given, mask)
        out = self._read("_step", self._read_step[row], env, made, is_complete=not self._plain[row])
        self._source[row] = Source.NEXT
        self._state[row] = RowState.RUNNING
        return out

    def _reset(
        self, row: int, given: TensorDictBase | None, mask: torch.Tensor | None, kwargs: Mapping[str, Any]
    ) -> OutputRow:
        env = self.envs[row]
        made = env._first(given, mask, dict(kwargs))
        out = self._read("_reset", self._read_reset[row], env, made, is_complete=True)
        self._source[row] = Source.ROOT
        self._state[row] = RowState.RUNNING
        return out

    def _reset_ended(self, row: int, step: OutputRow, inputs: RowInputs, kwargs: Mapping[str, Any]) -> OutputRow:
        """Resets a row, or those envs of its own batch, whose episode has just ended."""
        env, reader = self.envs[row], self._read_step[row]
        following = reader.completed(step)
        td = put_next(inputs.root(row), following, None)
        root = env.step_mdp(td)
        ended = reader.groups.ended(following)
        mask = _mask(inputs, row)
        reader.groups.put_resets(root, ended if mask is None else ended & mask.to(ended.device))
        return self._reset(row, root, env._mask(root, "_reset"), kwargs)

    def _read(self, method: str, reader: OutputReader, env: EnvBase, made: object, *, is_complete: bool) -> OutputRow:
        try:
            out = reader(made, is_complete=is_complete)
        except EnvOutputError as error:
            raise EnvOutputError(f"{type(env).__name__}.{method}: {error}") from None
        if not self._options.gradients and torch.is_grad_enabled():
            for key, value in zip(reader.keys, out.values, strict=True):
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    raise RuntimeError(
                        f"{type(env).__name__}.{method}: {'.'.join(key)} requires a gradient. For gradients through "
                        f"the envs of a SerialEnv give it share_individual_td=True or use_buffers=False; without, "
                        f"step under torch.no_grad()"
                    )
        return out

    def _ended(self, steps: Mapping[int, OutputRow]) -> list[int]:
        """The rows in which an env has ended."""
        by_flags: dict[tuple[int, ...], list[int]] = {}
        for row in steps:
            by_flags.setdefault(tuple(self._read_step[row].flag_positions), []).append(row)
        ended = []
        for rows in by_flags.values():
            found = self._read_step[rows[0]].ended([steps[row] for row in rows])
            ended += [rows[index] for index in found]
        return sorted(ended)

    # ---------------------------------------------------------------- the envs themselves

    def attribute(self, row: int, name: str) -> Any:
        """See :class:`~gymbridge.engine.host.Host`; of a gymnasium env in a ``GymEnv`` it is that one's first."""
        env = self.envs[row]
        if isinstance(env, EngineEnv) and not env.batch_size:
            try:
                return env.engine.attribute(0, name)
            except AttributeError:
                return getattr(env, name)
        return getattr(env, name)

    def set_attribute(self, row: int, name: str, value: Any) -> None:
        """See :class:`~gymbridge.engine.host.Host`."""
        env = self.envs[row]
        if isinstance(env, EngineEnv) and not env.batch_size:
            env.engine.set_attribute(0, name, value)
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
        """See :class:`~gymbridge.engine.host.Host`."""
        self.envs[row].load_state_dict(state)

    def close(self) -> None:
        """See :class:`~gymbridge.engine.host.Host`."""
        close_all(self.envs)


def _mask(inputs: RowInputs, row: int) -> torch.Tensor | None:
    return None if inputs.masks is None else inputs.masks[row]
