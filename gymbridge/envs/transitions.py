"""From what an env made to the TensorDict of a step, and from there to the root of the next step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_leaf_nontensor

from gymbridge.envs.done_groups import DoneGroups
from gymbridge.envs.inputs import NestedKey
from gymbridge.envs.spec_keys import leaf_keys
from gymbridge.envs.tensordicts import cloned, entry, fill, leaf_paths, picked_rows, put_entry, row_of, tensordict_of
from gymbridge.specs import Composite

__all__ = ["NextRoot", "keep_asleep", "put_first", "put_next", "root_to_reset", "step_mdp"]


def put_first(
    tensordict: TensorDictBase, first: TensorDictBase, mask_keys: Sequence[tuple[str, ...]]
) -> TensorDictBase:
    """What a reset was given, without its masks and ``next``, with what it gave; a new TensorDict."""
    if isinstance(first, LazyStackedTensorDict):
        pairs = [(row_of(tensordict, row), own) for row, own in enumerate(first.tensordicts)]
        rows = [put_first(given, own, mask_keys) for given, own in pairs]
        return LazyStackedTensorDict(*rows, stack_dim=first.stack_dim)
    out = tensordict.exclude(*mask_keys, "next").copy()  # its groups are the caller's
    _put_leaves(out, first)
    return out


def _put_leaves(tensordict: TensorDictBase, others: TensorDictBase) -> None:
    """Sets all leaves of ``others``; a group that is new has the batch size that it has there."""
    for key, value in others.items():
        if not isinstance(value, TensorDictBase) or is_leaf_nontensor(type(value)):
            tensordict.set(key, value)
        elif isinstance(mine := entry(tensordict, key), TensorDictBase):
            _put_leaves(mine, value)
        else:
            tensordict.set(key, value.copy())


def put_next(
    tensordict: TensorDictBase, following: TensorDictBase, groups: Iterable[tuple[str, ...]] = ()
) -> TensorDictBase:
    """Sets ``"next"`` over what was there, of which it keeps the other keys, and takes the masks out.

    Args:
        groups: paths of the nested groups that may have a mask of their own.
    """
    if isinstance(tensordict, LazyStackedTensorDict):
        for row, own in enumerate(tensordict.tensordicts):
            put_next(own, row_of(following, row), groups)
        return tensordict
    preset = entry(tensordict, "next")
    if preset is not None:
        fill(following, preset)
    if entry(tensordict, "_step") is not None:
        del tensordict["_step"]
    for path in groups:
        group = tensordict.get(path, None)
        if group is not None and entry(group, "_step") is not None:
            del group["_step"]
    put_entry(tensordict, "next", following)
    return tensordict


def step_mdp(
    tensordict: TensorDictBase,
    next_tensordict: TensorDictBase | None = None,
    keep_other: bool = True,
    exclude_reward: bool = True,
    exclude_done: bool = False,
    exclude_action: bool = True,
    reward_keys: NestedKey | list[NestedKey] = "reward",
    done_keys: NestedKey | list[NestedKey] | None = None,
    action_keys: NestedKey | list[NestedKey] = "action",
) -> TensorDictBase:
    """The root of the next step: what stands under ``"next"``, with the other keys of the root.

    Args:
        tensordict: what a step returned; it stays as it is.
        next_tensordict: where to write; a new TensorDict unless given.
        keep_other: keep root keys that are not under ``"next"`` and are no reward, done flag or action.
        exclude_reward, exclude_done: leave the rewards, the done flags out.
        exclude_action: leave the root's actions out.
        reward_keys, done_keys, action_keys: which keys these are; a list for several. The done flags are ``"done"``,
            ``"terminated"`` and ``"truncated"`` unless told.

    Returns:
        A TensorDict with the batch size of the one given, sharing its tensors.

    Raises:
        KeyError: there is no ``"next"``.

    The function and its arguments are those of TorchRL's ``step_mdp``, but for ``done_keys``, which there is ``"done"``
    alone.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"action": torch.zeros(2), "observation": torch.zeros(2), "hidden": torch.zeros(2)}, [2])
        >>> td["next"] = TensorDict({"observation": torch.ones(2), "reward": torch.ones(2)}, [2])
        >>> sorted(step_mdp(td).keys())
        ['hidden', 'observation']
    """
    rewards, actions = _keys(reward_keys), _keys(action_keys)
    dones = _keys(["done", "terminated", "truncated"] if done_keys is None else done_keys)
    out = tensordict.empty() if next_tensordict is None else next_tensordict
    following = _next_of(tensordict)
    dropped = (rewards if exclude_reward else set()) | (dones if exclude_done else set())
    moved = [key for key in leaf_paths(following) if key not in dropped]
    for key in leaf_paths(tensordict):
        if key[0] == "next" or key in moved:
            continue
        other = keep_other and key not in rewards and key not in dones
        if not exclude_action if key in actions else other:
            out.set(key, tensordict.get(key))
    for key in moved:
        out.set(key, following.get(key))
    return out


def _next_of(tensordict: TensorDictBase) -> TensorDictBase:
    following: TensorDictBase | None = entry(tensordict, "next")
    if following is None:
        raise KeyError(f"next: missing, expected what a step returned; got keys {[*tensordict.keys()]}")
    return following


def keep_asleep(
    root: TensorDictBase, tensordict: TensorDictBase, mask: torch.Tensor, latest: TensorDictBase | None = None
) -> None:
    """Gives the envs that were not stepped their own row of what was given, in the root after the step.

    Args:
        root: changed in place.
        tensordict: what the step was given.
        mask: the envs that were stepped, bool ``[*B]``.
        latest: what the others show where the caller has nothing.
    """
    for key in leaf_paths(root):
        own = tensordict.get(key, None)
        if own is None and latest is not None:
            own = latest.get(key, None)
        if own is not None:
            root.set(key, picked_rows(mask, root.get(key), own))


def root_to_reset(
    root: TensorDictBase,
    following: TensorDictBase,
    next_root: Callable[[TensorDictBase], TensorDictBase],
    groups: DoneGroups,
    mask: torch.Tensor | None,
) -> tuple[TensorDictBase, torch.Tensor | None]:
    """What the reset is given of an env, or of a batch, that has ended in a step; and which of the batch it resets.

    Args:
        root: what the caller has, without ``"next"``; it is changed.
        following: what the step gave, with every flag.
        next_root: makes the root after a step.
        groups: those of the env's flags.
        mask: which envs of the batch were stepped; None for all.
    """
    made = next_root(put_next(root, following))
    ended = groups.ended(following)
    groups.put_resets(made, ended if mask is None else ended & mask.to(ended.device))
    return made, groups.mask(made, "_reset", made.batch_size)


class NextRoot:
    """Makes the root of an env's next step, with what depends on its specs worked out once.

    Args:
        observations, actions, rewards, flags: the env's specs.

    What stands under ``"next"`` goes to the root but for the rewards. Of the root itself, what the env has nothing to
    say about stays, and masks and actions go.
    """

    def __init__(self, observations: Composite, actions: Composite, rewards: Composite, flags: Composite):
        self._names = tuple(dict.fromkeys((*observations.keys(), *flags.keys())))
        self._empty = frozenset(
            name for name, part in observations.items() if isinstance(part, Composite) and not leaf_keys(part)
        )
        self._groups = frozenset(
            name
            for spec in (observations, actions, rewards, flags)
            for name, part in spec.items()
            if isinstance(part, Composite)
        )
        self._nested_rewards = [key for key in leaf_keys(rewards) if len(key) > 1]
        masks = {(*path, name) for *path, _ in leaf_keys(flags) for name in ("_step", "_reset")}
        self._left_out = frozenset(masks.union(leaf_keys(actions), leaf_keys(rewards)))
        self._not_carried = frozenset(
            {"next", "_step", "_reset", "_failed"}
            | {*observations.keys(), *actions.keys(), *rewards.keys(), *flags.keys()}
        )

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The root after a step; what comes from ``"next"`` is copied.

        Raises:
            KeyError: there is no ``"next"``, or an observation or flag is not in it.
        """
        following = _next_of(tensordict)
        entries = {}
        for name in self._names:
            value = entry(following, name)
            if value is None and name in self._empty:
                continue
            if value is None:
                raise KeyError(f"next.{name}: missing, expected what a step returned; got {[*following.keys()]}")
            entries[name] = cloned(value)  # a policy that changes the root in place leaves ``next`` as it was
        root = tensordict_of(entries, tensordict.batch_size, following.device)
        for key in self._nested_rewards:
            group = root.get(key[:-1], None)
            if group is not None and entry(group, key[-1]) is not None:
                del group[key[-1]]
        self.carry(following, root)
        self.carry(tensordict, root)
        return root

    def carry(self, source: TensorDictBase, root: TensorDictBase) -> None:
        """Takes over into the root what the env has nothing to say about and is not there yet."""
        for name in source.keys():
            in_group = name in self._groups
            if name in self._not_carried and not in_group:
                continue
            value = entry(source, name)
            if type(value) is torch.Tensor and not in_group:
                if entry(root, name) is None:
                    put_entry(root, name, value)
                continue
            if not in_group and entry(root, name) is None:
                # what is set in the root's copy of a group is not set in the source
                root.set(name, value.copy() if isinstance(value, TensorDictBase) else value)
            elif isinstance(value, TensorDictBase):
                for key in leaf_paths(value):
                    path = (name, *key)
                    if path not in self._left_out and root.get(path, None) is None:
                        if entry(root, name) is None:  # a group of actions alone
                            root.set(name, value.empty())
                        root.set(path, value.get(key))


def _keys(keys: NestedKey | list[NestedKey]) -> set[tuple[str, ...]]:
    """One key, or a list of them, each as a tuple."""
    several = keys if isinstance(keys, list) else [keys]
    return {(key,) if isinstance(key, str) else key for key in several}
