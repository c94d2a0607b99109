"""The steps of a rollout, of which the large tensors go at once to where they lie in the result.

To keep all steps until the last and to stack them then takes the memory of the rollout twice, and new memory for each
step, whose first use costs more than the copy. A tensor that is copied on at once leaves its own memory to the next
step's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from gymbridge.envs.tensordicts import (
    LARGE_STACK,
    Key,
    dense_stack,
    entries,
    entry,
    is_plain,
    large_tensor,
    tensordict_of,
)

__all__ = ["StepRecord"]

_LARGE = 2**16
"""Bytes of a tensor, of all envs in one step, from which on a copy of its own pays."""


class StepRecord:
    """Takes the steps of a rollout one by one and stacks them.

    Args:
        max_steps: how many may come.
        dim: the dim of the stack that is time.
        all_come: whether that many do come, unless an error ends the rollout.
        out: a TensorDict with room for ``max_steps`` steps, in whose tensors the stack's are to lie where they fit.

    Attributes:
        in_out: paths of the stack's tensors that lie in ``out``.

    Example:
        >>> record = StepRecord(3, 1, all_come=False)
        >>> for number in range(2):
        ...     image = torch.full((1, 3, 100, 100), number)
        ...     record.add(TensorDict(image=image, count=torch.tensor([number]), batch_size=1))
        >>> made = record.stacked()
        >>> made["image"].shape, made["image"][0, :, 0, 0, 0], made["count"]
        (torch.Size([1, 2, 3, 100, 100]), tensor([0, 1]), tensor([[0, 1]]))
    """

    def __init__(self, max_steps: int, dim: int, *, all_come: bool, out: TensorDictBase | None = None):
        self._max_steps = max_steps
        self._dim = dim
        self._all_come = all_come
        self._out = out
        self._steps: list[TensorDictBase] = []
        self._rooms: dict[Key, torch.Tensor] = {}
        self._firsts: dict[str, Any] = {}
        self.in_out: set[Key] = set()

    def add(self, step: TensorDictBase) -> None:
        """Takes the next step, whose tensors are the stack's from now on: a later change may not be seen."""
        if not self._steps:
            self._make_rooms(step)
        self._steps.append(self._with_large_ones_moved(step) if self._rooms else step)

    def _make_rooms(self, step: TensorDictBase) -> None:
        for path, value in _tensors_of(step):
            room = self._room_for(path, value)
            if room is not None:
                self._rooms[path] = room
        self._firsts = _nested({path: room.select(self._dim, 0) for path, room in self._rooms.items()})

    def _room_for(self, path: Key, value: torch.Tensor) -> torch.Tensor | None:
        """Where a tensor of all steps is to lie; None where it is kept until all are there."""
        if value.nbytes < _LARGE or not is_plain(value):
            return None
        dim, shape = self._dim, value.shape
        if self._out is not None:
            own = _tensor_at(self._out, path)
            if own is None or own.dtype is not value.dtype or own.select(dim, 0).shape != shape:
                return None
            self.in_out.add(path)
            return own
        if not self._all_come or value.nbytes * self._max_steps < LARGE_STACK:
            return None
        return large_tensor((*shape[:dim], self._max_steps, *shape[dim:]), value.dtype)

    def _with_large_ones_moved(self, step: TensorDictBase) -> TensorDictBase:
        """The step with the first one's tensors in place of those that have been copied."""
        position = len(self._steps)
        values = [(path, room, _tensor_at(step, path)) for path, room in self._rooms.items()]
        for path, room, value in values:
            slot = room.select(self._dim, position)
            if value is not None and value.dtype is slot.dtype and value.shape == slot.shape:
                slot.copy_(value)
            else:
                self._keep_from_now_on(path)
        return _replaced(step, self._firsts) if self._rooms else step

    def _keep_from_now_on(self, path: Key) -> None:
        """Keeps a leaf until all steps are there, since a step has another thing there."""
        room = self._rooms.pop(path)
        self.in_out.discard(path)
        for number, step in enumerate(self._steps):
            step.set(path, room.select(self._dim, number))
        self._firsts = _nested({path: room.select(self._dim, 0) for path, room in self._rooms.items()})

    def stacked(self) -> TensorDictBase:
        """The steps that came, as one TensorDict.

        Raises:
            ValueError: they differ in keys, shapes or dtypes; the message begins with the number of one that does.
        """
        num_steps = len(self._steps)
        made = {path: room.narrow(self._dim, 0, num_steps) for path, room in self._rooms.items()}
        return dense_stack(self._steps, self._dim, _nested(made))


def _nested(leaves: dict[Key, torch.Tensor]) -> dict[str, Any]:
    """The leaves in dicts as the TensorDicts are that they lie in."""
    nested: dict[str, Any] = {}
    for path, leaf in leaves.items():
        group = nested
        for name in path[:-1]:
            group = group.setdefault(name, {})
        group[path[-1]] = leaf
    return nested


def _replaced(tensordict: Any, others: dict[str, Any]) -> TensorDict:
    """A plain TensorDict with other tensors at some paths."""
    parts = entries(tensordict)
    for name, other in others.items():
        parts[name] = _replaced(parts[name], other) if type(other) is dict else other
    return tensordict_of(parts, tensordict.batch_size, tensordict.device)


def _tensors_of(tensordict: TensorDictBase, prefix: Key = ()) -> Iterator[tuple[Key, torch.Tensor]]:
    """Path and value of the tensors that lie in plain TensorDicts."""
    if type(tensordict) is TensorDict:
        for name, value in entries(tensordict).items():
            if type(value) is TensorDict:
                yield from _tensors_of(value, (*prefix, name))
            elif type(value) is torch.Tensor:
                yield (*prefix, name), value


def _tensor_at(tensordict: TensorDictBase, path: Key) -> torch.Tensor | None:
    """A plain tensor that lies in plain TensorDicts; None where there is another thing or nothing."""
    value: Any = tensordict
    for name in path:
        if type(value) is not TensorDict:
            return None
        value = entry(value, name)
    return value if is_plain(value) else None
