"""Samples of observation spaces to TensorDicts and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from tensordict import TensorDict

from gymbridge.errors import SpecError
from gymbridge.spaces.conversion import observation_spec
from gymbridge.spaces.naming import observation_tree
from gymbridge.spaces.translation import translation_of
from gymbridge.specs import Composite, NonTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gymnasium import Space
    from tensordict import TensorDictBase

    from gymbridge.spaces.naming import Key, SpaceLeaf
    from gymbridge.specs._bridge import DeviceLike
    from gymbridge.specs._leaf import LeafSpec
    from gymbridge.specs._shapes import ShapeLike

__all__ = ["from_tensordict", "to_tensordict"]


def to_tensordict(
    space: Space[Any], sample: Any, *, device: DeviceLike = None, batch_size: ShapeLike = ()
) -> TensorDict:
    """Return a sample of an observation space as a TensorDict, with the keys of ``observation_spec``.

    Args:
        space: the space.
        sample: a sample of it, or a batch: the same structure with arrays of shape ``[*batch_size, *shape]``, and with
            nested sequences of data where the samples are no arrays (``Text`` and the like).
        device: where the tensors are put; None is torch's default device, and gives a TensorDict of device None.
        batch_size: batch dims of the sample.

    Raises:
        SpecError: a part of the sample has another shape than its space, or its dtype cannot hold it.
        KeyError: an item is missing. Items that the space does not have are left out.
        UnsupportedSpaceError: a part of the space has no translation.

    Example:
        >>> from gymnasium.spaces import Box, Dict, Discrete
        >>> space = Dict(x=Box(-1, 1, (2,)), reward=Discrete(3))
        >>> td = to_tensordict(space, {"x": [[0.0, 0.5]] * 4, "reward": [0, 1, 2, 0]}, batch_size=[4])
        >>> td["x"].shape, td["_user", "reward"]
        (torch.Size([4, 2]), tensor([0, 1, 2, 0]))
    """
    spec = observation_spec(space, device=device, batch_size=batch_size)
    if spec.shape and min(spec.shape) < 0:
        raise ValueError(f"batch_size: got {list(spec.shape)}, expected sizes")
    tree = observation_tree(space)
    leaves = zip(tree.leaves, tree.flatten(sample), strict=True)
    return _filled(
        spec, (), {leaf.key: encoded_leaf(leaf, value, spec.get(leaf.key), spec.shape) for leaf, value in leaves}
    )


def _filled(spec: Composite, key: Key, values: Mapping[Key, Any]) -> TensorDict:
    """Return a TensorDict with the groups of a spec, empty ones too, and ``values`` at their keys."""
    entries = {}
    for name, part in spec.items():
        at = (*key, str(name))
        entries[name] = _filled(part, at, values) if isinstance(part, Composite) else values[at]
    return TensorDict(entries, batch_size=spec.shape, device=spec.device)


def encoded_leaf(leaf: SpaceLeaf, value: Any, spec: LeafSpec, batch: torch.Size) -> Any:
    """Return the entry of a TensorDict for a leaf's value, or for a batch of them in arrays or nested sequences.

    Raises:
        SpecError: the value has another shape than the leaf's, or its spec cannot hold it.
    """
    translation = translation_of(leaf.space)
    to_tensor = translation.to_tensor if translation is not None else None
    try:
        if to_tensor is None:
            encoded = spec.encode(value)
        elif isinstance(spec, NonTensor):
            encoded = spec.encode(_each(batch, lambda at: to_tensor(leaf.space, _item(value, at))))
        else:
            encoded = spec.zero()
            for at in np.ndindex(*batch):
                encoded[at] = _checked(to_tensor(leaf.space, _item(value, at)), encoded[at])
    except SpecError as error:
        raise SpecError(f"{leaf.name}: {error}") from error
    if encoded.shape != spec.shape:
        raise SpecError(f"{leaf.name}: shape: got {list(encoded.shape)}, expected {list(spec.shape)}")
    return encoded


def _checked(tensor: Any, place: torch.Tensor) -> torch.Tensor:
    """Return what a user's ``to_tensor`` gave, if it goes to ``place`` without a cast or a broadcast."""
    if not isinstance(tensor, torch.Tensor):
        raise SpecError(f"to_tensor gave {tensor!r}, expected a tensor")
    if tensor.shape != place.shape or tensor.dtype != place.dtype:
        raise SpecError(
            f"to_tensor gave shape {list(tensor.shape)} and {tensor.dtype}, "
            f"expected {list(place.shape)} and {place.dtype}"
        )
    return tensor


def from_tensordict(space: Space[Any], td: TensorDictBase) -> Any:
    """Return the sample of an observation space that a TensorDict holds: the inverse of ``to_tensordict``.

    Args:
        space: the space.
        td: a TensorDict that has the keys of ``observation_spec(space)``, others are left out. Batch dims of it become
            leading dims of each array (tuples of data where the samples are no arrays).

    Returns:
        What the space contains, in new memory: a numpy scalar for a ``Discrete``, arrays, dicts, tuples.

    Raises:
        KeyError: a key is missing.
        SpecError: a leaf has another shape or dtype than its space.
        UnsupportedSpaceError: a part of the space has no translation.

    Example:
        >>> from gymbridge.spaces import from_tensordict, to_tensordict
        >>> from gymnasium.spaces import Dict, Discrete, Tuple
        >>> space = Dict(reward=Tuple([Discrete(3), Discrete(2)]))
        >>> td = to_tensordict(space, {"reward": (2, 1)})
        >>> sample = from_tensordict(space, td)
        >>> sample == {"reward": (2, 1)}, type(sample["reward"][0]).__name__
        (True, 'int64')
    """
    spec = observation_spec(space)
    tree = observation_tree(space)
    values = []
    for leaf in tree.leaves:
        value = td.get(leaf.key, None)
        if value is None:
            raise KeyError(f"{leaf.name}: missing, the TensorDict has {sorted(map(str, td.keys(True, True)))}")
        values.append(decoded_leaf(leaf, value, spec.get(leaf.key), td.batch_size))
    return tree.unflatten(values)


def decoded_leaf(leaf: SpaceLeaf, value: Any, spec: LeafSpec, batch: torch.Size) -> Any:
    """Return the value of a leaf, or a batch of them, from the entry of a TensorDict; ``spec`` is that of one value.

    Raises:
        SpecError: the entry has another shape or dtype than the leaf.
    """
    expected = [*batch, *spec.shape]
    if list(value.shape) != expected:
        raise SpecError(f"{leaf.name}: shape: got {list(value.shape)}, expected {expected}")
    translation = translation_of(leaf.space)
    from_tensor = translation.from_tensor if translation is not None else None
    if isinstance(spec, NonTensor):
        data = spec.to_numpy(value)
        if from_tensor is None:
            return _each(batch, lambda at: _item(data, at))
        return _each(batch, lambda at: from_tensor(leaf.space, _item(data, at)))
    if value.dtype != spec.dtype:
        raise SpecError(f"{leaf.name}: dtype: got {value.dtype}, expected {spec.dtype}")
    if from_tensor is not None:
        return _each(batch, lambda at: from_tensor(leaf.space, value[at]))
    array = np.asarray(spec.to_numpy(value))
    # A sample of a Discrete is a scalar, one of any other space an array even without dims.
    return array[()] if isinstance(leaf.space, Discrete) else array


def _each(batch: Sequence[int], function: Callable[[tuple[int, ...]], Any], at: tuple[int, ...] = ()) -> Any:
    """Return ``function(place)`` for each place of a batch, in nested tuples."""
    if not batch:
        return function(at)
    return tuple(_each(batch[1:], function, (*at, i)) for i in range(batch[0]))


def _item(value: Any, at: tuple[int, ...]) -> Any:
    for i in at:
        value = value[i]
    return value
