"""A batch of actions, checked and taken apart leaf by leaf."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gymbridge.spaces.naming import SpaceLeaf, SpaceTree
from gymbridge.vector.custom_spaces import batched_by_its_users, taken_apart

__all__ = ["ActionLeaves", "array_of_tensor", "batch_of_leaf", "require_actions"]

_TAKEN_BY = {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}
"""Kind of a space's dtype -> kinds of dtype that an action for it may have."""


class ActionLeaves:
    """Takes the actions that users give a vector env apart, one batch for each leaf of the action space.

    Actions may be numpy arrays, torch tensors on any device, lists, or what ``action_space.sample()`` gives. They stay
    as they were given: an env gets a row of the caller's array, an item of the caller's list.

    Args:
        tree: the action space of one env.
        num_envs: number of envs.

    Example:
        >>> from gymnasium.spaces import Discrete
        >>> from gymbridge.spaces.naming import action_tree
        >>> leaves = ActionLeaves(action_tree(Discrete(3)), num_envs=2)
        >>> leaves([0, 2])
        [[0, 2]]
        >>> leaves([0, 2, 1])
        Traceback (most recent call last):
        ValueError: action: got 3 actions, expected 2, one for each env
    """

    def __init__(self, tree: SpaceTree, num_envs: int):
        self._tree = tree
        self._num_envs = num_envs
        self._users_own = {
            position: batched
            for position, leaf in enumerate(tree.leaves)
            if not leaf.is_array and (batched := batched_by_its_users(leaf.space, num_envs)) is not None
        }
        only = tree.leaves[0] if tree.is_leaf else None
        self._shape = (num_envs, *only.shape) if only else None
        self._dtype = only.dtype if only else None

    def __call__(self, actions: Any) -> list[Any]:
        """An array or a list for each leaf, with one item an env.

        Raises:
            ValueError: another number of actions than envs, or an action of another shape or kind than the space's.
            TypeError: something that holds no actions.
            KeyError: an item of a ``Dict`` or ``Tuple`` action is missing.
        """
        if type(actions) is np.ndarray and actions.dtype is self._dtype and actions.shape == self._shape:
            return [actions]
        parts = self._tree.flatten(actions)
        for position, batched in self._users_own.items():
            parts[position] = taken_apart(batched, parts[position])
        leaves = zip(self._tree.leaves, parts, strict=True)
        return [batch_of_leaf(leaf, part, self._num_envs) for leaf, part in leaves]


def batch_of_leaf(leaf: SpaceLeaf, actions: Any, num_envs: int) -> npt.NDArray[Any] | list[Any]:
    """The actions of one leaf as an array or a list, one item an env, seen to be of the leaf's shape and kind.

    Raises:
        ValueError: another number of actions than envs, or an action of another shape or kind than the space's.
        TypeError: something that holds no actions.
    """
    batch = _indexable(leaf, actions)
    if len(batch) != num_envs:
        raise ValueError(f"{leaf.name}: got {len(batch)} actions, expected {num_envs}, one for each env")
    if not leaf.is_array:
        return batch
    try:
        array = np.asarray(batch)
    except ValueError:  # a ragged list
        shapes = [np.shape(action) for action in batch]
        raise ValueError(f"{leaf.name}: got actions of the shapes {shapes}, expected {leaf.shape} each") from None
    require_actions(leaf, array.shape[1:], array.dtype.kind if array.size else leaf.dtype.kind, array.dtype)
    return batch


def require_actions(leaf: SpaceLeaf, shape: tuple[int, ...], kind: str, dtype: Any) -> None:
    """Refuses actions whose shape, or whose dtype's kind (a letter of numpy's), a leaf does not take.

    Raises:
        ValueError: naming the leaf.
    """
    if shape != leaf.shape:
        raise ValueError(f"{leaf.name}: got actions of shape {shape}, expected {leaf.shape} each")
    if kind not in _TAKEN_BY.get(leaf.dtype.kind, ""):
        raise ValueError(f"{leaf.name}: got actions of dtype {dtype}, expected {leaf.dtype}")


def _indexable(leaf: SpaceLeaf, actions: Any) -> npt.NDArray[Any] | list[Any]:
    """The actions as an array or a list."""
    if isinstance(actions, np.ndarray) and actions.ndim:
        return actions
    if hasattr(actions, "detach"):  # a torch tensor, without importing torch
        array = array_of_tensor(leaf.name, actions)
        if array.ndim:
            return array
    elif isinstance(actions, Iterable) and not isinstance(actions, (str, bytes, Mapping, np.ndarray)):
        return [array_of_tensor(leaf.name, item) if hasattr(item, "detach") else item for item in actions]
    raise TypeError(f"{leaf.name}: got {actions!r} of type {type(actions).__name__}, expected one action for each env")


def array_of_tensor(name: str, tensor: Any) -> npt.NDArray[Any]:
    """A torch tensor on any device as an array, without importing torch.

    Raises:
        TypeError: one that numpy cannot hold: of bfloat16, sparse, or on the meta device; the message begins with
            ``name``.
    """
    try:
        array: npt.NDArray[Any] = tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:  # NotImplementedError too
        raise TypeError(
            f"{name}: got a tensor of {tensor.dtype} on device {str(tensor.device)!r}, expected one that numpy can hold"
        ) from error
    return array
