"""What the specs of a batched env have to be for its envs to have one space."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from gymbridge.envs.base import EnvBase
from gymbridge.envs.done_groups import FLAGS
from gymbridge.envs.spec_keys import leaf_keys
from gymbridge.specs import Bounded, Composite, Stacked, StackedComposite

__all__ = ["require_one_space"]


def require_one_space(env: EnvBase, observations: Composite) -> None:
    """Refuses an env whose specs gymnasium's vector API has no words for.

    Args:
        env: of batch size ``[N]``.
        observations: its observation spec without infos.

    Raises:
        ValueError: envs that differ in their specs or bounds, other rewards and flags than one of each an env, or an
            observation that stands where something else does.
    """
    _require_apart(env)
    for kind in ("observation", "action", "reward", "done"):
        _require_alike(kind, getattr(env, f"full_{kind}_spec"), env.batch_size[0])
    _require_one_each("reward", env.full_reward_spec, {"reward"}, env.batch_size[0])
    _require_one_each("done", env.full_done_spec, {*FLAGS}, env.batch_size[0])
    _require_common_bounds("observation", observations, env.batch_size[0])
    _require_common_bounds("action", env.full_action_spec, env.batch_size[0])


def _require_alike(kind: str, spec: Composite, num_envs: int) -> None:
    """Refuses envs of differing specs, which have no space in common."""
    if not any(isinstance(part, (Stacked, StackedComposite)) for part in (spec, *spec.values(True))):
        return
    first, *others = [dict(spec[row].items(True, True)) for row in range(num_envs)]
    for row, own in enumerate(others, 1):
        for key in {**first, **own}:
            if own.get(key) != first.get(key):
                _refuse_unlike(kind, key, row, own.get(key, "nothing"), first.get(key, "nothing"))


def _require_common_bounds(kind: str, spec: Composite, num_envs: int) -> None:
    """Refuses rows with bounds of their own, of which gymnasium has one space; masks of actions are no part of it."""
    for key, leaf in spec.items(True, True):
        if not isinstance(leaf, Bounded) or all(_is_common(bound) for bound in (leaf.low, leaf.high)):
            continue
        for row in range(1, num_envs):
            if leaf[row] != leaf[0]:
                _refuse_unlike(kind, key, row, leaf[row], leaf[0])


def _is_common(bound: torch.Tensor) -> bool:
    return bound.stride(0) == 0 or torch.equal(bound, bound[:1].expand_as(bound))


def _refuse_unlike(kind: str, key: Any, row: int, *specs: Any) -> NoReturn:
    got, expected = [" ".join(str(spec).split()) for spec in specs]
    raise ValueError(
        f"env: got envs with {kind}s of their own, expected envs of one space: at {key!r} env {row} has {got}, env 0 "
        f"has {expected}"
    )


def _require_apart(env: EnvBase) -> None:
    """Refuses observations that stand where a step or a reset has something else."""
    taken: dict[tuple[str, ...], str] = {("next",): "what a step gave"}
    taken |= dict.fromkeys([("_step",), ("_reset",)], "a mask")
    for kind in ("action", "reward", "done"):
        taken |= dict.fromkeys(leaf_keys(getattr(env, f"full_{kind}_spec")), f"of the {kind} spec")
    for key in leaf_keys(env.full_observation_spec):
        other = taken.get(key) or taken.get(key[:1])
        if other is not None:
            raise ValueError(f"env: got an observation at {'.'.join(key)!r}, expected it elsewhere: there is {other}")


def _require_one_each(kind: str, spec: Composite, names: set[str], num_envs: int) -> None:
    """Refuses rewards and flags that are not one an env."""
    keys = [*spec.keys(True, True)]
    if set(keys) != names:
        raise ValueError(f"env: got the {kind} keys {keys}, expected {sorted(names)}, none in groups")
    for key in keys:
        shape = spec[key].shape
        if tuple(shape) not in ((num_envs,), (num_envs, 1)):
            raise ValueError(f"env: got {key} of shape {[*shape]}, expected one an env, {[num_envs, 1]}")
