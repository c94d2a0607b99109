"""The oracle of TensorDict envs: each env's own ``_reset`` and ``_step``, called one by one.

It shares no code with what it checks: keys, masks and flags follow the rules as they are written down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_leaf_nontensor, is_non_tensor

from gymbridge.envs import EnvBase
from gymbridge.specs import Composite

__all__ = ["FLAGS", "OneByOne", "done_groups", "keys_of", "leaves_of", "stacked"]

FLAGS = ("done", "terminated", "truncated")

Key = tuple[str, ...]


def keys_of(spec: Composite) -> list[Key]:
    """The keys of a spec's leaves."""
    return [(key,) if isinstance(key, str) else key for key in spec.keys(True, True)]


def leaves_of(tensordict: TensorDictBase) -> list[Key]:
    """The keys of a TensorDict's leaves, those that are no tensors included."""
    keys = tensordict.keys(True, True, is_leaf=is_leaf_nontensor)
    return [(key,) if isinstance(key, str) else key for key in keys]


def done_groups(env: EnvBase) -> list[Key]:
    """Where the env has done flags: the empty key is the root."""
    return list(dict.fromkeys(key[:-1] for key in keys_of(env.full_done_spec)))


def without_masks(tensordict: TensorDictBase, name: str) -> TensorDictBase:
    """A copy without the masks of that name, at whatever depth."""
    return tensordict.exclude(*(key for key in leaves_of(tensordict) if key[-1] == name)).copy()


class OneByOne:
    """Envs reset and stepped one by one.

    Args:
        envs: the envs; their ``_reset`` and ``_step`` are called, nothing else of them but specs and batch size.
        batched: the TensorDicts have a leading dim with a row an env; without it there is one env.
    """

    def __init__(self, envs: Sequence[EnvBase], batched: bool):
        assert batched or len(envs) == 1
        self.envs = envs
        self.batched = batched
        self.latest: list[TensorDictBase] = [TensorDict({}, env.batch_size) for env in envs]
        """Observation and flags that each env gave last."""

    def set_seed(self, seed: int) -> int:
        """Seeds the envs, and gives the next seed."""
        for env in self.envs:
            env._set_seed(seed)
            seed += env.batch_size.numel()
        return seed

    def running(self) -> list[torch.Tensor]:
        """Which of each env's rows are in an episode, ``[*b]`` an env.

        Without flags at the root an env goes on: who is done in it waits.
        """
        return [
            ~per_row(latest["done"], env) if () in done_groups(env) else torch.ones(env.batch_size, dtype=torch.bool)
            for env, latest in zip(self.envs, self.latest, strict=True)
        ]

    def rows_of(self, tensordict: TensorDictBase) -> list[TensorDictBase]:
        """Each env's part of a TensorDict."""
        return [*tensordict.unbind(0)] if self.batched else [tensordict]

    def joined(self, rows: Sequence[TensorDictBase]) -> TensorDictBase:
        """A TensorDict of each env's part."""
        return stacked(rows) if self.batched else rows[0]

    # ---------------------------------------------------------------- the three calls

    def reset(
        self, tensordict: TensorDictBase | None = None, kwargs: Sequence[Mapping[str, Any]] | None = None
    ) -> TensorDictBase:
        """What a reset gives."""
        given = [None] * len(self.envs) if tensordict is None else self.rows_of(tensordict)
        each = [{}] * len(self.envs) if kwargs is None else kwargs
        return self.joined([self._reset_one(i, given[i], each[i]) for i in range(len(self.envs))])

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What stands under ``"next"`` after a step."""
        return self.joined([self._step_one(i, row) for i, row in enumerate(self.rows_of(tensordict))])

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """What stands under ``"next"``, and the next root."""
        rows = self.rows_of(tensordict)
        followings = [self._step_one(i, row) for i, row in enumerate(rows)]
        roots = [self._root_one(i, *pair) for i, pair in enumerate(zip(rows, followings, strict=True))]
        return self.joined(followings), self.joined(roots)

    # ---------------------------------------------------------------- one env

    def _reset_one(self, i: int, row: TensorDictBase | None, kwargs: Mapping[str, Any]) -> TensorDictBase:
        env = self.envs[i]
        masks = {} if row is None else self._masks(env, row, "_reset")
        bare = TensorDict({}, env.batch_size, device=env.device) if row is None else without_masks(row, "_reset")
        picked = picks(env, masks)
        shown = self._shown(i, bare)
        if picked.any():
            asked = None if row is None else with_masks(env, bare, masks, "_reset")
            made = completed(env, env._reset(asked, **kwargs))
            shown = self._taken(i, picked, made, shown.update(own_of(made, bare)))
        return written(bare.exclude("next"), shown)

    def _step_one(self, i: int, row: TensorDictBase) -> TensorDictBase:
        env = self.envs[i]
        masks = self._masks(env, row, "_step")
        bare = without_masks(row, "_step")
        picked = picks(env, masks)
        shown = self._shown(i, bare)
        zeros = {key: env.full_reward_spec[key].zero() for key in keys_of(env.full_reward_spec)}
        for key in keys_of(env.full_observation_spec):
            if key[0] == "info":
                zeros[key] = env.full_observation_spec[key].zero()
        for key, zero in zeros.items():
            shown.set(key, zero)
        following = shown
        if picked.any():
            made = completed(env, env._step(with_masks(env, self._inputs(env, bare), masks, "_step")))
            following = self._taken(i, picked, made, shown.update(own_of(made, bare).exclude(*leaves_of(shown))))
        preset = bare.get("next", None)
        return following if preset is None else written(following, preset.exclude(*leaves_of(following)))

    def _root_one(self, i: int, row: TensorDictBase, following: TensorDictBase) -> TensorDictBase:
        env = self.envs[i]
        picked = picks(env, self._masks(env, row, "_step"))
        kept = without_masks(row, "_step").exclude("next", *keys_of(env.full_action_spec)).copy()
        asleep = written(kept, self._shown(i, kept))
        root = written(kept, following.exclude(*keys_of(env.full_reward_spec)))
        root = chosen(picked, root, written(root, asleep)) if picked.any() else asleep
        groups = done_groups(env)
        if () in groups:
            ended = per_row(following["done"], env) & picked
            masks: dict[Key, torch.Tensor] = {("_reset",): ended}
        else:
            masks = {(*group, "_reset"): following[(*group, "done")] for group in groups}
            masks = {key: mask & spread(picked, mask) for key, mask in masks.items()}
        if not any(mask.any() for mask in masks.values()):
            return root
        for key, mask in masks.items():
            root.set(key, mask)
        return self._reset_one(i, root, {})

    def _masks(self, env: EnvBase, row: TensorDictBase, name: str) -> dict[Key, torch.Tensor]:
        """The masks in an env's part, by their keys: none, the root's, or every group's."""
        masks = {key: row.get(key) for key in leaves_of(row) if key[-1] == name}
        groups = {(*group, name) for group in done_groups(env)}
        assert set(masks) in (set(), {(name,)}, groups), f"not legal: {set(masks)}"
        return masks

    def _inputs(self, env: EnvBase, row: TensorDictBase) -> TensorDictBase:
        """Actions, states, and what stands under ``"next"`` at a key of the specs."""
        inputs = [*keys_of(env.full_action_spec), *keys_of(env.full_state_spec)]
        outputs = (env.full_observation_spec, env.full_reward_spec, env.full_done_spec, env.full_state_spec)
        preset = [("next", *key) for spec in outputs for key in keys_of(spec)]
        return row.select(*inputs, *preset, strict=False).clone()

    def _shown(self, i: int, row: TensorDictBase) -> TensorDictBase:
        """Observation and flags of an env that sleeps: its part's own where it has them, else its latest."""
        env = self.envs[i]
        shown = TensorDict({}, env.batch_size, device=env.device)
        for key in [*keys_of(env.full_observation_spec), *keys_of(env.full_done_spec)]:
            own = row.get(key, None)
            own = self.latest[i].get(key, None) if own is None else own
            if own is not None:  # before the first reset there is no latest
                shown.set(key, own.clone())
        return shown

    def _taken(self, i: int, picked: torch.Tensor, made: TensorDictBase, others: TensorDictBase) -> TensorDictBase:
        """What the env made, for the rows that a mask picks, with its latest brought up to date."""
        env = self.envs[i]
        keys = [*keys_of(env.full_observation_spec), *keys_of(env.full_done_spec)]
        latest = made.select(*keys)
        self.latest[i] = latest.clone() if picked.all() else chosen(picked, latest, self.latest[i])
        return made if picked.all() else chosen(picked, made, others)


def picks(env: EnvBase, masks: Mapping[Key, torch.Tensor]) -> torch.Tensor:
    """Which of an env's rows take part, ``[*b]``."""
    if not masks:
        return torch.ones(env.batch_size, dtype=torch.bool)
    return torch.stack([per_row(mask, env) for mask in masks.values()]).any(0)


def per_row(flags: torch.Tensor, env: EnvBase) -> torch.Tensor:
    """Trailing dims OR-ed: ``[*b]``."""
    ndim = len(env.batch_size)
    return flags.flatten(ndim).any(-1) if flags.ndim > ndim else flags


def spread(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A mask with as many dims as the other."""
    return mask.reshape(*mask.shape, *[1] * (like.ndim - mask.ndim))


def with_masks(env: EnvBase, row: TensorDictBase, masks: Mapping[Key, torch.Tensor], name: str) -> TensorDictBase:
    """What an env is given: nothing where all is picked, ``[*b]`` at the root, or the groups' own."""
    given = row.clone()
    if all(mask.all() for mask in masks.values()):
        return given
    if set(masks) == {(name,)}:
        return given.set(name, per_row(masks[(name,)], env))
    for key, mask in masks.items():
        given.set(key, mask)
    return given


def completed(env: EnvBase, made: TensorDictBase) -> TensorDictBase:
    """With all three flags of each group, in their shapes; ``done`` is ``terminated | truncated``."""
    made = made.clone()
    for group in done_groups(env):
        shape = env.full_done_spec[(*group, "done")].shape
        flags = {name: made.get((*group, name), None) for name in FLAGS}
        done, terminated, truncated = (None if flag is None else flag.reshape(shape) for flag in flags.values())
        nothing = torch.zeros(shape, dtype=torch.bool, device=env.device)
        if terminated is None:
            terminated = nothing if done is None else done if truncated is None else done & ~truncated
        if truncated is None:
            truncated = nothing if done is None else done & ~terminated
        for name, flag in zip(FLAGS, (terminated | truncated, terminated, truncated), strict=True):
            made.set((*group, name), flag)
    return made


def own_of(made: TensorDictBase, row: TensorDictBase) -> TensorDictBase:
    """What the row has at keys that the env made."""
    return row.select(*leaves_of(made), strict=False)


def written(tensordict: TensorDictBase, over: TensorDictBase) -> TensorDictBase:
    """A copy in which the leaves of the second stand over those of the first."""
    out = tensordict.clone()
    for key in leaves_of(over):
        out.set(key, over.get(key).clone())
    return out


def chosen(mask: torch.Tensor, one: TensorDictBase, other: TensorDictBase) -> TensorDictBase:
    """Rows of the one where the mask is True, of the other elsewhere."""
    if not mask.ndim:
        return one if mask else other
    return stacked([chosen(*parts) for parts in zip(mask, one.unbind(0), other.unbind(0), strict=True)])


def stacked(rows: Sequence[TensorDictBase]) -> TensorDictBase:
    """A dense stack where keys, shapes and dtypes agree, else a lazy one."""
    kinds = [{key: kind_of(row.get(key)) for key in leaves_of(row)} for row in rows]
    if all(kind == kinds[0] for kind in kinds):
        dense: TensorDictBase = torch.stack([*rows])
        return dense
    lazy: TensorDictBase = LazyStackedTensorDict(*rows, stack_dim=0)
    return lazy


def kind_of(leaf: Any) -> tuple[Any, ...]:
    """Shape and dtype, which have to agree in a dense stack."""
    return (leaf.batch_size,) if is_non_tensor(leaf) else (leaf.shape, leaf.dtype)
