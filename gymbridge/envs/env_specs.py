"""What an env says of itself: batch size, device, specs and keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase

from gymbridge.envs.done_groups import FLAGS, DoneGroups
from gymbridge.envs.inputs import DeviceLike, NestedKey, env_device, require_like
from gymbridge.envs.seed_chain import SeedChain
from gymbridge.envs.spec_access import FullSpecAttribute, LeafSpecAttribute
from gymbridge.envs.spec_keys import group_sizes, leaf_keys
from gymbridge.envs.tensordicts import entry, tensordict_of
from gymbridge.envs.transitions import NextRoot
from gymbridge.specs import Binary, Composite, StackedComposite, TensorSpec, Unbounded

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "KINDS",
    "EnvSpecs",
    "SpecPlan",
    "UnlikeEnvs",
    "difference",
    "fake_tensordict",
    "first_alike",
    "nothing_gained",
    "shown_before",
    "shown_leaves",
]
KINDS = ("observation", "action", "reward", "done", "state")
"""What an env has specs of."""

_NO_LEAD = torch.Size()


class EnvSpecs:
    """Batch size, device, specs and keys of an env; the part of ``EnvBase`` that describes and does nothing.

    Args:
        device: device of all that the env returns, None where each leaf has its own.
        batch_size: ``B``.

    Attributes:
        batch_locked: the env takes TensorDicts of its own batch size only. One that takes any, ``[*S, *B]``, and gives
            what it returns the batch size of what it was given, says so with False, as an attribute of its class or set
            in ``__init__``; its specs have ``B``.
        seed_chain: which seeds the envs of a batch get, if all have the same; None for ``seed + i``.
    """

    batch_locked: bool = True
    seed_chain: SeedChain | None = None

    def __init__(self, device: DeviceLike | None, batch_size: Any):
        self._device = None if device is None else env_device(device)
        self._batch_size = torch.Size(batch_size)
        flag = Binary(1, (*self._batch_size, 1), device=self._device, dtype=torch.bool)
        self._specs: dict[str, Composite] = {
            "done": Composite({name: flag.clone() for name in FLAGS}, shape=self._batch_size, device=self._device),
            "state": Composite(shape=self._batch_size, device=self._device),
            "reward": Composite(
                reward=Unbounded((*self._batch_size, 1), device=self._device),
                shape=self._batch_size,
                device=self._device,
            ),
        }
        self._specs_locked = False
        self._plan: SpecPlan | None = None

    @classmethod
    def of(cls, env: EnvSpecs, device: DeviceLike | None = None) -> EnvSpecs:
        """What an env says of itself, apart from the env; on another device, if one is given."""
        described = EnvSpecs(env.device if device is None else device, env.batch_size)
        specs = {kind: env._spec_of(kind) for kind in KINDS}
        described._specs = {kind: spec.clone() if device is None else spec.to(device) for kind, spec in specs.items()}
        described.batch_locked = env.batch_locked
        described.seed_chain = env.seed_chain
        return described

    def is_like(self, other: EnvSpecs) -> bool:
        """Whether two envs have the same specs, batch size, device and chain of seeds."""
        return self._specs == other._specs and (self.device, self.batch_size, self.batch_locked, self.seed_chain) == (
            other.device,
            other.batch_size,
            other.batch_locked,
            other.seed_chain,
        )

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
    def has_dynamic_specs(self) -> bool:
        """Whether a leaf has a dim of any size, ``-1`` in its spec."""
        return any(self._spec_of(kind).is_dynamic for kind in KINDS)

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
        if kind == "done":
            spec = _with_every_flag(spec)
        self._specs[kind] = spec.clone() if self._device is None else spec.to(self._device).clone()
        self._plan = None

    @property
    def _spec_plan(self) -> SpecPlan:
        """What follows from the specs, worked out when they are set."""
        if self._plan is None:
            self._plan = SpecPlan(self)
        return self._plan

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
        return _first("action", self.action_keys)

    @property
    def reward_keys(self) -> list[NestedKey]:
        """Keys of the rewards."""
        return [*self.full_reward_spec.keys(True, True)]

    @property
    def reward_key(self) -> NestedKey:
        """Key of the first reward."""
        return _first("reward", self.reward_keys)

    @property
    def done_keys(self) -> list[NestedKey]:
        """Keys of the end-of-episode flags."""
        return [*self.full_done_spec.keys(True, True)]

    @property
    def reset_keys(self) -> list[NestedKey]:
        """Keys of the masks that ``reset`` reads."""
        return self._spec_plan.groups.reset_keys


class SpecPlan:
    """What an env's specs say about its steps, worked out once.

    Attributes:
        required: key and spec of what a step has to be given: actions and states.
        optional: keys of what reaches the env beside these: what stands under ``"next"`` at a key of the specs, and
            masks of groups.
        names: keys of actions and states, where all stand at the root, else None.
        root_actions: names and specs of the actions, where all are tensors at the root, else None.
        groups: the groups of end-of-episode flags.
        group_sizes: path of each group of observations or flags, outer ones first -> its batch size.
        next_root: makes the root of the next step.
    """

    def __init__(self, env: EnvSpecs):
        observations, rewards, flags = env.full_observation_spec, env.full_reward_spec, env.full_done_spec
        states = env.full_state_spec
        self.required = [*env.full_action_spec.items(True, True), *states.items(True, True)]
        self.root_actions = _tensors_at_the_root(env.full_action_spec)
        names = [key for key, _ in self.required]
        self.names = (
            [key for key in names if isinstance(key, str)] if all(isinstance(key, str) for key in names) else None
        )
        self.groups = DoneGroups(flags)
        self.group_sizes = group_sizes(observations) | group_sizes(flags)
        self.optional = [
            *(("next", *key) for spec in (observations, rewards, flags, states) for key in leaf_keys(spec)),
            *((*path, "_step") for path in self.groups.nested),
        ]
        self.inputs = [*names, *self.optional]
        self.next_root = NextRoot(observations, env.full_action_spec, rewards, flags)

    def require_inputs(self, tensordict: TensorDictBase, lead: torch.Size = _NO_LEAD) -> None:
        """Refuses an action or a state that is missing or has another shape or dtype than its spec.

        Args:
            lead: dims that the TensorDict has before the env's batch size.

        Raises:
            KeyError: one that is missing.
            ValueError, TypeError: one of another shape or dtype.
        """
        for key, leaf in self.required:
            value = entry(tensordict, key) if isinstance(key, str) else tensordict.get(key, None)
            require_like(key, value, leaf, tensordict, lead)

    def inputs_of(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What reaches the env of what a caller gave to a step; a TensorDict of its own, with the same tensors."""
        if self.names is not None and entry(tensordict, "next") is None and not self.groups.nested:
            given: TensorDictBase = tensordict_of(
                {name: entry(tensordict, name) for name in self.names}, tensordict.batch_size, tensordict.device
            )
            return given
        return tensordict.select(*self.inputs, strict=False)


def _tensors_at_the_root(spec: Composite) -> list[tuple[str, TensorSpec]] | None:
    """The entries of a spec that is no stack and has no groups and no data that are no tensors; else None."""
    entries = [(name, leaf) for name, leaf in spec.items() if isinstance(name, str)] if type(spec) is Composite else []
    return entries if entries and all(leaf.dtype is not None for _, leaf in entries) else None


def fake_tensordict(
    specs: Mapping[str, Composite], batch_size: torch.Size, device: torch.device | None
) -> TensorDictBase:
    """A stepped TensorDict of zeros as specs, one of each kind, describe it."""

    def zeros(*kinds: str) -> TensorDict:
        made = TensorDict({}, batch_size, device=device)
        for kind in kinds:
            made.update(specs[kind].zero())
        return made

    following = zeros("observation", "reward", "done")
    return zeros("state", "observation", "done", "action").set("next", following)


def shown_leaves(env: EnvSpecs) -> list[tuple[NestedKey, TensorSpec]]:
    """Keys and specs of what an env shows at the root: its observations and flags."""
    return [*env.full_observation_spec.items(True, True), *env.full_done_spec.items(True, True)]


def shown_before(
    env: EnvSpecs, tensordict: TensorDictBase | None, latest: TensorDictBase | None, lead: torch.Size = _NO_LEAD
) -> TensorDict:
    """Observation and flags of an env that is left out of a call.

    Args:
        tensordict: what the caller has, which counts first.
        latest: what the env showed last, for keys that the caller does not have; zeros stand where it has none either.
        lead: dims before the env's batch size.
    """
    shown = TensorDict({}, (*lead, *env.batch_size), device=env.device)
    for group, size in env._spec_plan.group_sizes.items():
        shown.set(group, TensorDict({}, (*lead, *size), device=env.device))
    for key, leaf in shown_leaves(env):
        value = None if tensordict is None else tensordict.get(key, None)
        if value is None and latest is not None:
            value = latest.get(key, None)
        shown.set(key, leaf.zero(lead) if value is None else value.clone())
    return shown


def nothing_gained(env: EnvSpecs, lead: torch.Size = _NO_LEAD) -> TensorDictBase:
    """Reward and infos of an env that was not stepped: zeros."""
    zero: TensorDictBase = env.full_reward_spec.zero(lead)
    if "info" in env.full_observation_spec.keys():
        zero["info"] = env.full_observation_spec["info"].zero(lead)
    return zero


def _first(kind: str, keys: list[NestedKey]) -> NestedKey:
    if not keys:
        raise KeyError(f"{kind}_key: the env has no {kind}, its {kind}_keys are empty")
    return keys[0]


def _with_every_flag(spec: Composite) -> Composite:
    """A done spec with all three flags in each group: one that is missing looks like one that is there.

    Raises:
        ValueError: another key, or no flag at all.
    """
    if isinstance(spec, StackedComposite):  # of envs, whose flags are complete, each in groups of its own
        return spec
    complete = spec.clone()
    groups: dict[tuple[str, ...], list[str]] = {}
    for key in spec.keys(True, True):
        keys = (key,) if isinstance(key, str) else key
        groups.setdefault(keys[:-1], []).append(keys[-1])
    if not groups:
        raise ValueError(f"done_spec: got no flag, expected some of {[*FLAGS]}")
    for path, names in groups.items():
        if set(names) - set(FLAGS):
            raise ValueError(f"done_spec: got the keys {names} in the group {path}, expected some of {[*FLAGS]}")
        for name in FLAGS:
            if name not in names:
                complete.set((*path, name), spec[(*path, names[0])].clone())
    return complete


def first_alike(envs: Sequence[EnvSpecs]) -> list[EnvSpecs]:
    """For each env the first whose leaves and device are as its own, so that they share what follows."""
    distinct: list[EnvSpecs] = []
    first: dict[int, EnvSpecs] = {}
    for env in envs:
        if id(env) in first:
            continue
        like = next(
            (other for other in distinct if difference([other, env]) is None and other.device == env.device), None
        )
        if like is None:
            distinct.append(env)
        first[id(env)] = env if like is None else like
    return [first[id(env)] for env in envs]


class UnlikeEnvs(ValueError):
    """Envs do not agree whose results are to be dense.

    Attributes:
        difference: how, as :func:`difference` tells it.
    """

    def __init__(self, refused: str, difference: str):
        super().__init__(f"{refused}: {difference}")
        self.difference = difference


def difference(envs: Sequence[EnvSpecs]) -> str | None:
    """How the first env that does disagrees in keys, shapes or dtypes, or is dynamic; None where all agree."""
    rows: dict[int, int] = {}
    for row, env in enumerate(envs):
        rows.setdefault(id(env), row)
    first = _leaves(envs[0]) if envs else {}
    for row in rows.values():
        own, found = _leaves(envs[row]), []
        for key, (shape, dtype) in own.items():
            if -1 in shape:
                found.append(f"env {row} has dynamic specs, {'.'.join(key)} has shape {[*shape]}")
            elif first.get(key) != (shape, dtype):
                got = f"{'.'.join(key)} of shape {[*shape]} and {dtype}"
                other = first.get(key)
                expected = "none" if other is None else f"one of shape {[*other[0]]} and {other[1]}"
                found.append(f"env {row} has {got}, env 0 has {expected}")
        if missing := [".".join(key) for key in first if key not in own]:
            found.append(f"env {row} lacks {missing}, which env 0 has")
        if found:
            return "; ".join(found)
    return None


def _leaves(env: EnvSpecs) -> dict[tuple[str, ...], tuple[torch.Size, torch.dtype | None]]:
    return {
        (kind, *key): (spec[key].shape, spec[key].dtype)
        for kind in KINDS
        for spec in [env._spec_of(kind)]
        for key in leaf_keys(spec)
    }
