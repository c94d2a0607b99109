"""Objects of the block, texts say, as entries of a TensorDict."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from tensordict import NonTensorStack

from gymbridge.engine.conform import snapshot_of_object
from gymbridge.envs.tensordicts import non_tensor
from gymbridge.spaces.actions import objects_in
from gymbridge.spaces.naming import SpaceLeaf
from gymbridge.spaces.samples import decoded_leaf, encoded_leaf
from gymbridge.spaces.translation import translation_of
from gymbridge.specs import NonTensor
from gymbridge.specs._leaf import LeafSpec

__all__ = ["ObjectEntries"]

Array: TypeAlias = npt.NDArray[Any]


class ObjectEntries:
    """Turns arrays of one leaf's objects into entries, and entries back: non-tensor data, or a user's translation.

    Args:
        leaf: the leaf of the space.
        single, batched: its spec for one env, and for the batch.
        batch_size: ``[*B]``.

    Example:
        >>> from gymnasium.spaces import Text
        >>> from gymbridge.specs import NonTensor
        >>> leaf = SpaceLeaf(("goal",), Text(5), is_array=False)
        >>> entries = ObjectEntries(leaf, NonTensor(()), NonTensor((2,)), torch.Size([2]))
        >>> entry = entries.entry(np.array(["left", "up"], object))
        >>> entry.tolist(), entries.array(entry)
        (['left', 'up'], array(['left', 'up'], dtype=object))
    """

    def __init__(self, leaf: SpaceLeaf, single: LeafSpec, batched: LeafSpec, batch_size: torch.Size):
        self._leaf = leaf
        self._single = single
        self._batched = batched
        self._batch_size = batch_size
        self._plain = isinstance(batched, NonTensor) and len(batch_size) == 1 and translation_of(leaf.space) is None

    def entry(self, array: Array) -> Any:
        """The entry ``[*B]`` for an array ``[*B]`` of objects, with copies of those that may change."""
        if self._plain and all(type(value) is str for value in array):
            return NonTensorStack(*map(non_tensor, array))
        copies = np.empty(array.shape, object)
        for at in np.ndindex(*array.shape):
            copies[at] = snapshot_of_object(array[at])
        return encoded_leaf(
            self._leaf, copies[()] if not array.shape else copies.tolist(), self._batched, self._batch_size
        )

    def array(self, entry: Any) -> Array:
        """The array ``[*B]`` of objects in an entry."""
        return objects_in(decoded_leaf(self._leaf, entry, self._single, self._batch_size), self._batch_size)
