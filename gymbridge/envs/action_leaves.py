"""The actions in a TensorDict, checked and taken apart leaf by leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase

from gymbridge.engine.codes import Op
from gymbridge.envs.inputs import require_like
from gymbridge.envs.tensordicts import entry
from gymbridge.spaces.actions import ActionCodec
from gymbridge.spaces.naming import action_tree
from gymbridge.specs import Composite, TensorSpec

__all__ = ["TensorDictActionLeaves"]

Array: TypeAlias = npt.NDArray[Any]


class TensorDictActionLeaves:
    """Takes the actions of a batch out of a TensorDict, as the envs take them.

    Args:
        space: action space of one env.
        spec: the spec of the batch's actions, what stands under ``"action"``.
        batch_size: that of the TensorDict.
        categorical_action_encoding: False where the tensors have one-hot encodings.

    Example:
        >>> from gymnasium.spaces import Discrete
        >>> from tensordict import TensorDict
        >>> from gymbridge.spaces import space_to_spec
        >>> spec = space_to_spec(Discrete(3), batch_size=(2,))
        >>> leaves = TensorDictActionLeaves(Discrete(3), spec, torch.Size([2]), True)
        >>> td = TensorDict({"action": torch.tensor([2, 0])}, [2])
        >>> leaves(td, bytes([2, 2]))
        [array([2, 0])]
    """

    def __init__(
        self, space: gym.Space[Any], spec: TensorSpec, batch_size: torch.Size, categorical_action_encoding: bool
    ):
        self._tree = action_tree(space)
        self._batch_size = batch_size
        self._num_rows = batch_size.numel()
        codec = ActionCodec(space, categorical_action_encoding=categorical_action_encoding)
        self._decode = codec.decode
        has_objects = not all(leaf.is_array for leaf in self._tree.leaves)
        self._any_action = None if categorical_action_encoding or has_objects else codec.encode(_first_actions(codec))
        specs = Composite({"action": spec}, shape=batch_size)
        leaves = [(leaf.key, specs[leaf.key]) for leaf in self._tree.leaves]
        self._leaves = [(key, spec, spec.shape, spec.dtype) for key, spec in leaves]
        # one tensor whose numbers are the env's own is by far the most common action: it has a short way of its own
        self._plain = self._tree.is_leaf and categorical_action_encoding and not has_objects
        self._plain_shape = (self._num_rows, *self._tree.leaves[0].shape) if self._plain else ()

    def __call__(self, tensordict: TensorDictBase, ops: bytes) -> list[Array]:
        """An array ``[num_rows, *leaf.shape]`` a leaf; its rows are the envs' own, which they may keep or change.

        Args:
            tensordict: has the actions.
            ops: one op a row; the actions of rows that do not step may be anything of their spec's shape and dtype.

        Raises:
            KeyError: an action is missing.
            ValueError, TypeError: an action of another shape or dtype than its spec.
            SpecError: a one-hot action without exactly one True.
        """
        actions = []
        for key, spec, shape, dtype in self._leaves:
            value = entry(tensordict, "action") if len(key) == 1 else tensordict.get(key, None)
            if not (type(value) is torch.Tensor and value.shape == shape and value.dtype is dtype):
                require_like(key, value, spec, tensordict)
            actions.append(value)
        if self._plain:
            return [self._decode(actions)[0].reshape(self._plain_shape).copy()]
        if self._any_action is not None and min(ops) < Op.STEP:
            actions = self._only_picked(actions, self._any_action, ops)
        decoded = zip(self._decode(actions), self._tree.leaves, strict=True)
        return [array.reshape((self._num_rows, *leaf.shape)).copy() for array, leaf in decoded]

    def _only_picked(
        self, actions: Sequence[torch.Tensor], any_action: Sequence[torch.Tensor], ops: bytes
    ) -> list[torch.Tensor]:
        """The actions of the envs that step, and one that can be decoded for each other, whose own may be anything."""
        steps = torch.tensor([op >= Op.STEP for op in ops]).reshape(self._batch_size)
        return [
            torch.where(steps.to(action.device).unsqueeze(-1), action, other.to(action.device))
            if action.dtype is torch.bool and other.ndim == 1  # only what is one-hot may be beyond decoding
            else action
            for action, other in zip(actions, any_action, strict=True)
        ]


def _first_actions(codec: ActionCodec) -> list[Array]:
    """The lowest choice of each discrete leaf, zeros of the others."""
    return [np.full(leaf.shape, getattr(leaf.space, "start", 0), leaf.dtype) for leaf in codec.leaves]
