"""What an env says of itself: batch size, device, specs and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gymbridge.envs.inputs import DeviceLike, NestedKey, env_device
from gymbridge.envs.spec_access import FullSpecAttribute, LeafSpecAttribute
from gymbridge.envs.transitions import NextRoot
from gymbridge.specs import Binary, Composite

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FLAGS", "EnvSpecs"]

FLAGS = ("done", "terminated", "truncated")
"""The end-of-episode flags; the first is what the other two say together."""


class EnvSpecs:
    """Batch size, device, specs and keys of an env; the part of ``EnvBase`` that describes and does nothing.

    Args:
        device: device of all that the env returns, None where each leaf has its own.
        batch_size: ``B``.
    """

    def __init__(self, device: DeviceLike | None, batch_size: Any):
        self._device = None if device is None else env_device(device)
        self._batch_size = torch.Size(batch_size)
        flag = Binary(1, (*self._batch_size, 1), device=self._device, dtype=torch.bool)
        self._specs: dict[str, Composite] = {
            "done": Composite({name: flag.clone() for name in FLAGS}, shape=self._batch_size, device=self._device),
            "state": Composite(shape=self._batch_size, device=self._device),
        }
        self._specs_locked = False
        self._plan: _SpecPlan | None = None

    @property
    def batch_size(self) -> torch.Size:
        """``B``: the leading dims of all that the env returns."""
        return self._batch_size

    @property
    def device(self) -> torch.device | None:
        """Device of all that the env returns; None where each leaf has its own."""
        return self._device

    @property
    def ndim(self) -> int:
        """Number of batch dims."""
        return len(self.batch_size)

    def numel(self) -> int:
        """Number of envs."""
        return self.batch_size.numel()

    @property
    def batch_locked(self) -> bool:
        """True: the env takes TensorDicts of its own batch size only."""
        return True

    full_observation_spec = FullSpecAttribute("observation")
    full_action_spec = FullSpecAttribute("action")
    full_reward_spec = FullSpecAttribute("reward")
    full_done_spec = FullSpecAttribute("done")
    full_state_spec = FullSpecAttribute("state")
    observation_spec = FullSpecAttribute("observation")
    action_spec = LeafSpecAttribute("action")
    reward_spec = LeafSpecAttribute("reward")
    done_spec = FullSpecAttribute("done")
    state_spec = FullSpecAttribute("state")

    def _spec_of(self, kind: str) -> Composite:
        try:
            return self._specs[kind]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {kind}_spec yet: set it in __init__") from None

    def _store_spec(self, kind: str, spec: Composite) -> None:
        if self._specs_locked:
            raise RuntimeError(
                f"{kind}_spec: the specs of {type(self).__name__} are locked; set_spec_lock_(False) first"
            )
        nested = [key for key in spec.keys(True, True) if not isinstance(key, str)]
        if nested and kind in ("reward", "done"):
            raise ValueError(f"{kind}_spec: got the nested keys {nested}, expected keys at the root")
        if kind == "done":
            spec = _with_every_flag(spec)
        self._specs[kind] = spec if self._device is None else spec.to(self._device)
        self._plan = None

    @property
    def _spec_plan(self) -> _SpecPlan:
        """What follows from the specs, worked out when they are set."""
        if self._plan is None:
            self._plan = _SpecPlan(self)
        return self._plan

    @property
    def _next_root(self) -> NextRoot:
        return self._spec_plan.next_root

    @property
    def input_spec(self) -> Composite:
        """What the env reads: ``full_action_spec`` and ``full_state_spec``."""
        return Composite(
            {"full_action_spec": self.full_action_spec, "full_state_spec": self.full_state_spec},
            shape=self.batch_size,
            device=self._device,
        )

    @property
    def output_spec(self) -> Composite:
        """What the env writes: ``full_observation_spec``, ``full_reward_spec`` and ``full_done_spec``."""
        return Composite(
            {
                "full_observation_spec": self.full_observation_spec,
                "full_reward_spec": self.full_reward_spec,
                "full_done_spec": self.full_done_spec,
            },
            shape=self.batch_size,
            device=self._device,
        )

    @property
    def specs(self) -> Composite:
        """``input_spec`` and ``output_spec``."""
        both = {"input_spec": self.input_spec, "output_spec": self.output_spec}
        return Composite(both, shape=self.batch_size, device=self._device)

    def set_spec_lock_(self, mode: bool = True) -> Self:
        """Locks the specs, or unlocks them with ``False``; returns the env."""
        self._specs_locked = mode
        for spec in self._specs.values():
            _ = spec.lock_() if mode else spec.unlock_()
        return self

    @property
    def is_spec_locked(self) -> bool:
        """Whether the specs are locked."""
        return self._specs_locked

    @property
    def action_keys(self) -> list[NestedKey]:
        """Keys of the actions."""
        return [*self.full_action_spec.keys(True, True)]

    @property
    def action_key(self) -> NestedKey:
        """Key of the first action."""
        return self.action_keys[0]

    @property
    def reward_keys(self) -> list[NestedKey]:
        """Keys of the rewards."""
        return [*self.full_reward_spec.keys(True, True)]

    @property
    def reward_key(self) -> NestedKey:
        """Key of the first reward."""
        return self.reward_keys[0]

    @property
    def done_keys(self) -> list[NestedKey]:
        """Keys of the end-of-episode flags."""
        return [*self.full_done_spec.keys(True, True)]

    @property
    def reset_keys(self) -> list[NestedKey]:
        """Keys of the masks that ``reset`` reads."""
        return ["_reset"]


class _SpecPlan:
    """What an env's specs say about its steps, worked out once."""

    def __init__(self, env: EnvSpecs):
        observations, rewards, flags = env.full_observation_spec, env.full_reward_spec, env.full_done_spec
        states = env.full_state_spec
        self.required = [*env.full_action_spec.items(True, True), *states.items(True, True)]
        """Key and spec of what a step has to be given."""
        preset = [
            ("next", *((key,) if isinstance(key, str) else key))
            for spec in (observations, rewards, flags, states)
            for key in spec.keys(True, True)
        ]
        self.inputs = [*(key for key, _ in self.required), *preset]
        """Keys of what reaches the env: actions, states, and what stands under ``"next"`` at a key of the specs."""
        names = [key for key, _ in self.required]
        self.names = (
            [key for key in names if isinstance(key, str)] if all(isinstance(key, str) for key in names) else None
        )
        """Keys of actions and states, where all stand at the root."""
        self.next_root = NextRoot(observations, env.full_action_spec, rewards, flags)


def _with_every_flag(spec: Composite) -> Composite:
    """A done spec with all three flags: one that is missing looks like one that is there.

    Raises:
        ValueError: another key, or none of the three.
    """
    names = [*spec.keys()]
    if not names or set(names) - set(FLAGS):
        raise ValueError(f"done_spec: got the keys {names}, expected some of {[*FLAGS]}")
    flag = spec[names[0]]
    return Composite(
        {name: spec[name] if name in names else flag.clone() for name in FLAGS}, shape=spec.shape, device=spec.device
    )
