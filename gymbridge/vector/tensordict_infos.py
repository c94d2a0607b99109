"""The infos of a TensorDict, what stands under ``"info"``, as gymnasium's vector envs have them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase

from gymbridge.spaces.naming import SpaceLeaf
from gymbridge.spaces.samples import decoded_leaf
from gymbridge.specs import Composite, NonTensor
from gymbridge.specs._bridge import array_of

__all__ = ["TensorDictInfoReader"]


class TensorDictInfoReader:
    """Reads the infos of a TensorDict ``[N]``: an array an entry, with a mask of the envs that have it.

    Args:
        spec: the spec of what stands under ``"info"``, of batch size ``[N]``; None where there is nothing. Under
            ``"_mask"`` it has, for entries that are not always there, whether they are.

    Example:
        >>> from gymbridge.specs import Unbounded
        >>> from tensordict import TensorDict
        >>> spec = Composite({"lives": Unbounded((2,), dtype=torch.int64)}, shape=(2,))
        >>> infos = TensorDict(lives=torch.tensor([3, 2]), batch_size=[2])
        >>> TensorDictInfoReader(spec)(TensorDict(info=infos, batch_size=[2]), np.array([True, False]))
        {'lives': array([3, 0]), '_lives': array([ True, False])}
    """

    def __init__(self, spec: Composite | None):
        items = [] if spec is None else spec.items(True, True)
        paths = [((key,) if isinstance(key, str) else key, leaf) for key, leaf in items]
        self._leaves = [(path, leaf[0]) for path, leaf in paths if path[0] != "_mask"]

    def __call__(self, tensordict: TensorDictBase, rows: npt.NDArray[np.bool_]) -> dict[str, Any]:
        """The infos of some envs; an entry that none of them has is left out."""
        infos: dict[str, Any] = {}
        for path, spec in self._leaves:
            mask = rows.copy()
            present = tensordict.get(("info", "_mask", *path), None)
            if present is not None:
                mask &= array_of(present).reshape(rows.shape)
            if not mask.any():
                continue
            group = infos
            for part in path[:-1]:
                inner = group.setdefault(part, {})
                group[f"_{part}"] = mask | group.get(f"_{part}", False)
                group = inner
            group[path[-1]] = _array(path, tensordict.get(("info", *path)), spec, mask)
            group[f"_{path[-1]}"] = mask
        return infos


def _array(path: tuple[str, ...], value: Any, spec: Any, mask: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """An entry's array, zero or None where it is absent."""
    if not isinstance(spec, NonTensor):
        array = array_of(value).copy()
        array[~mask] = 0
        return array
    data = decoded_leaf(SpaceLeaf(path, gym.Space(), is_array=False), value, spec, torch.Size(mask.shape))
    objects = np.full(mask.shape, None, object)
    for row in np.flatnonzero(mask):
        objects[row] = data[row]
    return objects
