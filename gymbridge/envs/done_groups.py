"""The groups of end-of-episode flags of an env, and the masks that pick envs of a batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import torch
from tensordict import TensorDictBase

from gymbridge.envs.tensordicts import entry, tensordict_of, with_entries
from gymbridge.specs import Composite

__all__ = ["FLAGS", "DoneGroups", "completed_flags"]

Path: TypeAlias = tuple[str, ...]

FLAGS = ("done", "terminated", "truncated")
"""The end-of-episode flags; the first is what the other two say together."""


class DoneGroups:
    """Where an env's end-of-episode flags stand, and what follows for its episodes and masks.

    Flags at the root speak for the env. An env without any has groups of its own, ``("agents", "done")`` say; it has
    ended where a flag of any group is True. A group with more than one flag an env, ``[*B, num_agents, 1]``, may end in
    part.

    Args:
        spec: the env's ``full_done_spec``, with all three flags in each group.

    Attributes:
        paths: the groups, ``()`` for the root, which comes first.
        nested: those that are not the root.

    Example:
        >>> from tensordict import TensorDict
        >>> from gymbridge.specs import Binary
        >>> flag = Binary(1, (2, 1), dtype=torch.bool)
        >>> groups = DoneGroups(Composite({("agents", name): flag for name in FLAGS}))
        >>> groups.reset_keys
        [('agents', '_reset')]
        >>> td = TensorDict(agents=TensorDict(terminated=torch.tensor([[True], [False]])))
        >>> groups.completed(td)["agents", "done"], groups.ended(groups.completed(td))
        (tensor([[ True],
                [False]]), tensor(True))
    """

    def __init__(self, spec: Composite):
        self._ndim = len(spec.shape)
        found: dict[Path, torch.Size] = {}
        for key, flag in spec.items(True, True):
            found[() if isinstance(key, str) else key[:-1]] = flag.shape[self._ndim :]
        self._shapes = dict(sorted(found.items(), key=lambda item: len(item[0])))
        self.paths = [*self._shapes]
        self.nested = [path for path in self.paths if path]
        self._has_root = () in self._shapes

    # ---------------------------------------------------------------- flags

    def completed(self, made: TensorDictBase) -> TensorDictBase:
        """With all three flags in every group, and ``done`` what the other two say; a shallow copy.

        Args:
            made: what an env gave; some flags may be missing, or lack their last dim.
        """
        out = made
        if self._has_root:
            out = with_entries(made, self._flags(made, self._shapes[()], made.batch_size))
        if self.nested:
            out = out.copy()
            for path in self.nested:
                group = out.get(path, None)
                if group is None:
                    group = tensordict_of({}, made.batch_size, made.device)
                for name, flag in self._flags(group, self._shapes[path], made.batch_size).items():
                    out.set((*path, name), flag)
        return out

    def _flags(self, group: TensorDictBase, shape: torch.Size, batch_size: torch.Size) -> dict[str, torch.Tensor]:
        given = (entry(group, name) for name in FLAGS)
        flags = completed_flags(*given, shape=(*batch_size, *shape), device=group.device)
        return dict(zip(FLAGS, flags, strict=True))

    def ended(self, flags: TensorDictBase) -> torch.Tensor:
        """Which envs have ended: bool ``[*B]``, from what has every flag."""
        groups = self.paths[:1] if self._has_root else self.paths
        ended: Any = None
        for path in groups:
            done = _per_env(flags.get((*path, "done")), flags.ndim)
            ended = done if ended is None else ended | done
        result: torch.Tensor = ended
        return result

    def keys_of_the_end(self, given: Collection[Path]) -> list[Path]:
        """Of the leaves that an env gave, the flags that say whether it has ended."""
        keys = []
        for path in self.paths[:1] if self._has_root else self.paths:
            outcome = [key for key in ((*path, "terminated"), (*path, "truncated")) if key in given]
            keys += outcome if len(outcome) == 2 or (*path, "done") not in given else [*outcome, (*path, "done")]
        return keys

    def still_done(
        self, first: TensorDictBase, mask: torch.Tensor | None, masks: TensorDictBase | None
    ) -> torch.Tensor:
        """Which envs are done although they have just been reset: bool ``[*B]``.

        Args:
            first: what the reset gave, with every flag.
            mask: the envs that were to be reset, ``[*B]``; None for all.
            masks: what the reset was given, with the masks of groups, of which only a part may have been reset.
        """
        if self._has_root:
            done = self.ended(first)
        else:
            done = torch.zeros(first.batch_size, dtype=torch.bool, device=first.get((*self.paths[0], "done")).device)
            for path in self.paths:
                flags = first.get((*path, "done"))
                group = None if masks is None else masks.get((*path, "_reset"), None)
                if group is not None:
                    flags = flags & _widened(group.to(flags.device), flags.ndim)
                done = done | _per_env(flags, first.ndim)
        return done if mask is None else done & mask.to(done.device)

    # ---------------------------------------------------------------- masks

    @property
    def reset_keys(self) -> list[str | Path]:
        """Keys of the masks that a reset reads, one a group."""
        return [(*path, "_reset") if path else "_reset" for path in self.paths]

    def mask_keys(self, name: str) -> list[Path]:
        """The keys at which a mask may stand: at the root, and in each group."""
        return [(name,), *((*path, name) for path in self.nested)]

    def mask(self, tensordict: TensorDictBase | None, name: str, batch_size: torch.Size) -> torch.Tensor | None:
        """Which envs a caller picks, one bool an env; None where there is no mask or where it picks every env.

        Args:
            tensordict: what the caller gave; it stays as it is.
            name: ``"_reset"`` or ``"_step"``.
            batch_size: ``[*B]`` of the env.

        Returns:
            A CPU bool tensor ``[*B]``: the root's mask, or what the groups' masks say together. A scalar has been
            broadcast, and trailing dims have been OR-ed.

        Raises:
            TypeError: a mask that is not a bool tensor.
            ValueError: a shape that is neither a scalar nor begins with ``[*B]``, or masks of some groups only.
        """
        if tensordict is None:
            return None
        masks = {key: tensordict.get(key, None) for key in self.mask_keys(name)}
        given = [key for key, mask in masks.items() if mask is not None]
        if not given:
            return None
        missing = [(*path, name) for path in self.paths if masks[(*path, name)] is None]
        if missing and given != [(name,)]:
            raise ValueError(
                f"{name}: got masks at {given} and none at {missing}, expected one at the root, or one in every group"
            )
        mask = torch.zeros(batch_size, dtype=torch.bool)
        for key in given:
            mask = mask | _one_an_env(".".join(key), masks[key], batch_size)
        return None if bool(mask.all()) else mask

    def put_resets(self, root: TensorDictBase, ended: torch.Tensor) -> None:
        """Puts the masks of a reset into a root: the envs that ended, and of a group without a root what is done.

        Args:
            root: a root with every flag, as the step before left it.
            ended: bool ``[*B]``.
        """
        if self._has_root:
            if not ended.all():
                root.set("_reset", ended)
            return
        for path in self.paths:
            done = root.get((*path, "done"))
            root.set((*path, "_reset"), done & _widened(ended.to(done.device), done.ndim))


def completed_flags(
    done: torch.Tensor | None,
    terminated: torch.Tensor | None,
    truncated: torch.Tensor | None,
    *,
    shape: Sequence[int],
    device: torch.device | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The three flags of a group, of which some may be missing or lack their last dim: ``done`` is the other two's.

    Args:
        done, terminated, truncated: what an env gave.
        shape: that of each flag.
        device: of flags of which none was given.
    """
    ndim = len(shape)
    done, terminated, truncated = [
        flag.unsqueeze(-1) if flag is not None and flag.ndim == ndim - 1 else flag
        for flag in (done, terminated, truncated)
    ]
    if terminated is None:
        if done is not None:
            terminated = done if truncated is None else done & ~truncated
        elif truncated is not None:
            terminated = torch.zeros_like(truncated)
        else:
            terminated = torch.zeros(tuple(shape), dtype=torch.bool, device=device)
    if truncated is None:
        truncated = torch.zeros_like(terminated) if done is None else done & ~terminated
    return terminated | truncated, terminated, truncated


def _one_an_env(name: str, mask: Any, batch_size: torch.Size) -> torch.Tensor:
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool:
        got = mask.dtype if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise TypeError(f"{name}: got {got}, expected a bool tensor of shape {[*batch_size]} or {[*batch_size, 1]}")
    own: torch.Tensor = mask.detach().cpu()
    if own.ndim == 0:
        return own.expand(batch_size)
    if own.shape[: len(batch_size)] != batch_size:
        raise ValueError(f"{name}: got shape {[*own.shape]}, expected {[*batch_size]} or {[*batch_size, 1]}")
    return _per_env(own, len(batch_size))


def _per_env(flags: torch.Tensor, ndim: int) -> torch.Tensor:
    per_env: torch.Tensor = flags.flatten(ndim).any(-1) if flags.ndim > ndim else flags
    return per_env


def _widened(mask: torch.Tensor, ndim: int) -> torch.Tensor:
    """A mask with dims of one at its end, so that it broadcasts over flags of ``ndim`` dims."""
    return mask.reshape((*mask.shape, *[1] * (ndim - mask.ndim)))
