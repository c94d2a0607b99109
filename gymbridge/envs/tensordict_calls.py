"""Resets and steps of TensorDict envs that are made by others than their host: awaited on a loop, or in a thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase

from gymbridge.engine.codes import Op
from gymbridge.engine.env_calls import Await, RowCall, TimedCall, is_awaitable
from gymbridge.envs.base import EnvBase

__all__ = ["TensorDictCall", "TimedTensorDictCall"]

_RESET = int(Op.RESET)


class TensorDictCall(RowCall):
    """A reset or a step of an ``EnvBase``, whose ``_reset`` and ``_step`` may be coroutines.

    Args:
        row, op: see :class:`~gymbridge.engine.env_calls.RowCall`.
        env: the env.
        given: what reaches it: the inputs of a step, or what the caller has in the row that is reset.
        mask: which envs of its own batch are picked; None for all.
        kwargs: of a reset.
        is_plain: it has no batch and leaves the contract's rounds alone: its ``_step`` is asked without ceremony.
        is_whole: its rounds are its own: it is asked for these.
    """

    __slots__ = ("_env", "_given", "_is_complete", "_is_plain", "_is_whole", "_kwargs", "_made", "_mask", "_own")

    def __init__(
        self,
        row: int,
        op: int,
        env: EnvBase,
        given: TensorDictBase | None,
        mask: torch.Tensor | None,
        kwargs: Mapping[str, Any],
        is_plain: bool,
        is_whole: bool,
    ):
        self.row = row
        self.op = op
        self.is_done = False
        self.error = None
        self._env = env
        self._given = given
        self._mask = mask
        self._kwargs = kwargs
        self._is_plain = is_plain
        self._is_whole = is_whole
        self._is_complete = False
        self._own: Any = None
        """What the env's method was given."""
        self._made: Any = None

    async def on_loop(self) -> None:
        """See :class:`~gymbridge.engine.env_calls.EnvCall`."""
        made = self._asked()
        self._made = await made if is_awaitable(made) else made

    def in_thread(self, awaited: Await) -> None:
        """See :class:`~gymbridge.engine.env_calls.EnvCall`."""
        made = self._asked()
        self._made = awaited(made) if is_awaitable(made) else made

    def _asked(self) -> Any:
        env, given, mask = self._env, self._given, self._mask
        if self._is_plain and self.op != _RESET:
            self._own = given
            return env._step(given)  # type: ignore[arg-type]
        is_reset = self.op == _RESET
        if self._is_whole:
            self._is_complete = True
            return env._first(given, mask, dict(self._kwargs)) if is_reset else env._next(given, mask)  # type: ignore[arg-type]
        if is_reset:
            env._require_partial_reset(mask)
        else:
            env._require_partial_step(mask)
        if mask is not None and not mask.any():
            self._is_complete = True
            shown = env._shown(given)
            return shown if is_reset else shown.update(env._zeros(given))  # type: ignore[arg-type]
        if is_reset:
            self._own = env._given_to_reset(given, mask)
            return env._reset(self._own, **self._kwargs)
        self._own = env._given_to_step(given, mask)  # type: ignore[arg-type]
        return env._step(self._own)

    def again(self, env: EnvBase, seed: int | None) -> TensorDictCall:
        """See :class:`~gymbridge.engine.env_calls.RowCall`; the env has its seed itself."""
        return type(self)(self.row, self.op, env, self._given, self._mask, self._kwargs, self._is_plain, self._is_whole)

    def stepped(self) -> Any:
        """What ``_step`` gave, or raises what it raised."""
        if self.error is not None:
            raise self.error
        if self._made is self._own:
            self._env._require_new("_step", self._made, self._own)
        return self._made

    def round(self) -> Any:
        """What a whole round gave: for a step with a batch what stands under ``"next"``, for a reset the root."""
        if self.error is not None:
            raise self.error
        if self._is_complete:
            return self._made
        if self.op == _RESET:
            return self._env._first_of(self._made, self._own, self._given, self._mask)
        return self._env._next_of(self._made, self._own, self._given, self._mask)  # type: ignore[arg-type]


class TimedTensorDictCall(TimedCall, TensorDictCall):
    """A reset or a step of an ``EnvBase`` that is timed."""
