"""Groups whose members differ, agents of several kinds say: a group of groups in place of a lazy stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from gymbridge.envs.spec_keys import leaf_keys
from gymbridge.specs import Composite, StackedComposite

__all__ = ["UnlikeMembers", "split_specs"]

Key = tuple[str, ...]


class UnlikeMembers(NamedTuple):
    """A group that is a lazy stack of unlike members where it comes from.

    Here each member is a group in it, ``(*path, "0")`` and so on.

    Attributes:
        path: of the group.
        dim: along which the members are stacked.
        num_members: how many there are.
    """

    path: Key
    dim: int
    num_members: int

    def apart(self, tensordict: TensorDictBase, lead: int) -> None:
        """Puts a group of groups in the place of the stack, if there is one.

        Args:
            tensordict: changed.
            lead: number of dims before those of the specs.
        """
        group = tensordict.get(self.path, None)
        if group is None:
            return
        dim = self.dim + lead
        members = {str(index): member for index, member in enumerate(group.unbind(dim))}
        tensordict.set(self.path, TensorDict(members, group.batch_size[:dim], device=group.device))

    def together(self, tensordict: TensorDictBase, lead: int) -> None:
        """Puts the stack in the place of the group of groups, if there is one; the way back of :meth:`apart`."""
        group = tensordict.get(self.path, None)
        if group is None:
            return
        members = [group.get(str(index)) for index in range(self.num_members)]
        tensordict.set(self.path, LazyStackedTensorDict(*members, stack_dim=self.dim + lead))


def split_specs(specs: Mapping[str, Composite], ndim: int) -> tuple[dict[str, Composite], list[UnlikeMembers]]:
    """The specs with each member of a group for itself, where members differ; and the groups, outer ones first.

    Args:
        specs: of an env, one of each kind. A group that one kind has unlike members in is split in all of them.
        ndim: number of the env's batch dims.

    Raises:
        ValueError: members along a batch dim of the env, which is a batch of unlike envs then; or a group that has
            the members' dim in one kind and lacks it in another.
    """
    own = dict(specs)
    found: list[UnlikeMembers] = []
    while (members := _first_unlike(own, ndim)) is not None:
        found.append(members)
        for kind, spec in own.items():
            group: Any = spec.get(members.path, None)
            if group is None:
                continue
            if not isinstance(group, Composite) or len(group.shape) <= members.dim:
                raise ValueError(
                    f"{kind}_spec: got a group {members.path} of shape {[*group.shape]}, expected one with dim "
                    f"{members.dim}, along which its members differ"
                )
            each = {str(index): member for index, member in enumerate(group.unbind(members.dim))}
            own[kind] = spec.clone()
            own[kind].set(members.path, Composite(each, shape=group.shape[: members.dim], device=group.device))
    return own, found


def _first_unlike(specs: Mapping[str, Composite], ndim: int) -> UnlikeMembers | None:
    for kind, spec in specs.items():
        parts: list[tuple[Key, Any]] = [((), spec)]
        parts += [(key if isinstance(key, tuple) else (key,), part) for key, part in spec.items(include_nested=True)]
        for path, part in parts:
            if isinstance(part, StackedComposite) and _differ(part):
                if part.dim < ndim or not path:
                    raise ValueError(
                        f"{kind}_spec: got a batch of unlike envs, which differ along dim {part.dim}, expected one of "
                        f"like envs; give the envs to a batch of gymbridge one by one"
                    )
                return UnlikeMembers(path, part.dim, part.shape[part.dim])
    return None


def _differ(stack: StackedComposite) -> bool:
    """Whether members have other keys, shapes or dtypes than the first."""
    leaves = [{key: _form(member, key) for key in leaf_keys(member)} for member in stack.unbind(stack.dim)]  # type: ignore[arg-type]
    return any(own != leaves[0] for own in leaves)


def _form(spec: Any, key: Key) -> tuple[torch.Size, torch.dtype | None]:
    return spec[key].shape, spec[key].dtype
