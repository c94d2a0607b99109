"""The leaves of a batched env's specs as gymnasium spaces have them: values out, actions in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDictBase

from gymbridge.envs.tensordicts import entry, put_entry
from gymbridge.spaces.conversion import spec_to_space
from gymbridge.spaces.naming import SpaceLeaf, SpaceTree, action_tree, observation_tree
from gymbridge.spaces.samples import decoded_leaf, encoded_leaf
from gymbridge.spaces.translation import translation_of
from gymbridge.specs import Composite, MultiOneHot, OneHot, TensorSpec
from gymbridge.specs._bridge import array_of, as_torch_dtype
from gymbridge.specs._leaf import LeafSpec
from gymbridge.vector.actions import batch_of_leaf, require_actions

__all__ = ["ActionWriter", "ObservationReader", "handed_out"]

Key = tuple[str, ...]
Array = npt.NDArray[Any]


class ObservationReader:
    """Reads the observations of a TensorDict ``[N]``, in the structure and dtypes of the env's space.

    Args:
        spec: the env's observations, of batch size ``[N]``.
        space: the space of one env, where the specs were made from one: specs do not keep the order of keys that stand
            under ``"_user"``. Without, or where the spec has a part of it only, it is made from the spec.

    Attributes:
        single_space: the space of one env.
        tree: its leaves.

    Example:
        >>> from gymbridge.specs import Categorical, Unbounded
        >>> from tensordict import TensorDict
        >>> spec = Composite(x=Unbounded((2, 3)), gear=Categorical(4, (2,)), shape=(2,))
        >>> reader = ObservationReader(spec)
        >>> reader.single_space["gear"], reader.arrays(spec.zero(), copy=True)[1]
        (Discrete(4), array([0, 0]))
    """

    def __init__(self, spec: Composite, space: gym.Space[Any] | None = None):
        self._batch_size = spec.shape
        single = spec[0]
        if space is not None and any(single.get(leaf.key, None) is None for leaf in observation_tree(space).leaves):
            space = None
        self.single_space: gym.Space[Any] = spec_to_space(single) if space is None else space
        self.tree: SpaceTree = observation_tree(self.single_space)
        keys = _keys(single) if space is None else (leaf.key for leaf in self.tree.leaves)
        self._leaves = [
            (leaf, key, single.get(key), isinstance(single.get(key), (OneHot, MultiOneHot)))
            for leaf, key in zip(self.tree.leaves, keys, strict=True)
        ]

    def arrays(self, tensordict: TensorDictBase, copy: bool) -> list[Any]:
        """An array ``[N, *shape]`` a leaf, or a tuple of objects; ``copy=False`` lets arrays share tensors' memory."""
        return self._read(tensordict, _own_array if copy else array_of)

    def tensors(self, tensordict: TensorDictBase, copy: bool, device: torch.device | None) -> list[Any]:
        """A tensor ``[N, *shape]`` a leaf, or a tuple of objects; on the device, or where it is with None."""
        return self._read(tensordict, lambda value: handed_out(value.detach(), copy, device))

    def _read(self, tensordict: TensorDictBase, give: Callable[[torch.Tensor], Any]) -> list[Any]:
        values = []
        for leaf, key, spec, is_one_hot in self._leaves:
            value = entry(tensordict, key[0]) if len(key) == 1 else tensordict.get(key)
            if not leaf.is_array:
                value = decoded_leaf(leaf, value, spec, self._batch_size)
            else:
                value = give(spec.to_categorical(value) if is_one_hot else value)
            values.append(value)
        return values


class ActionWriter:
    """Writes actions, as users give them to a vector env, into a TensorDict ``[N]``.

    Args:
        spec: the env's actions, of batch size ``[N]``. A lone key is left out of the space.
        space: the space of one env, where the specs were made from one; else it is made from the spec.

    Attributes:
        single_space: the space of one env.

    Example:
        >>> from gymbridge.specs import OneHot
        >>> from tensordict import TensorDict
        >>> writer = ActionWriter(Composite(action=OneHot(3, (2, 3)), shape=(2,)))
        >>> td = TensorDict(batch_size=[2])
        >>> writer.write(td, [2, 0])
        >>> writer.single_space, td["action"].int()
        (Discrete(3), tensor([[0, 0, 1],
                [1, 0, 0]], dtype=torch.int32))
    """

    def __init__(self, spec: Composite, space: gym.Space[Any] | None = None):
        self._batch_size = spec.shape
        self._num_envs = spec.shape[0]
        names = [*spec.keys()]
        prefix: Key = (str(names[0]),) if len(names) == 1 else ()
        batched: TensorSpec = spec[prefix[0]] if prefix else spec
        self.single_space: gym.Space[Any] = spec_to_space(batched[0]) if space is None else space
        self._tree = action_tree(self.single_space)
        keys = (
            [(*prefix, *key) for key in _keys(batched)] if space is None else [leaf.key for leaf in self._tree.leaves]
        )
        self._leaves = [(leaf, key, spec.get(key)) for leaf, key in zip(self._tree.leaves, keys, strict=True)]
        self._as_they_are = [_is_its_own_encoding(leaf, own) for leaf, _, own in self._leaves]

    def write(self, tensordict: TensorDictBase, actions: Any, ignored: npt.NDArray[np.bool_] | None = None) -> None:
        """Sets the actions.

        Args:
            tensordict: where.
            actions: a batch of the action space: numpy, torch on any device, a list, or a dict or tuple of these.
            ignored: envs whose actions, of the right shape and kind, may have any value.

        Raises:
            ValueError, TypeError, KeyError, SpecError: actions that do not fit the space; nothing has been set then.
        """
        parts = self._tree.flatten(actions)
        encoded = []
        for (leaf, key, spec), part, as_it_is in zip(self._leaves, parts, self._as_they_are, strict=True):
            if as_it_is and type(part) is np.ndarray and part.dtype == leaf.dtype and part.shape == spec.shape:
                encoded.append((key, torch.from_numpy(part.copy())))
            else:
                encoded.append((key, self._encoded(leaf, part, spec, ignored)))
        for key, value in encoded:
            if len(key) == 1 and isinstance(value, torch.Tensor):
                put_entry(tensordict, key[0], value)
            else:
                tensordict.set(key, value)

    def _encoded(self, leaf: SpaceLeaf, given: Any, spec: Any, ignored: npt.NDArray[np.bool_] | None) -> Any:
        is_one_hot = isinstance(spec, (OneHot, MultiOneHot))
        if isinstance(given, torch.Tensor) and leaf.is_array and not is_one_hot:
            return self._cast(leaf, given, spec)
        batch = batch_of_leaf(leaf, given, self._num_envs)
        if is_one_hot and ignored is not None:
            batch = np.array(batch)
            batch[ignored] = leaf.space.start  # type: ignore[attr-defined]
        return encoded_leaf(leaf, batch, spec, self._batch_size)

    def _cast(self, leaf: SpaceLeaf, given: torch.Tensor, spec: Any) -> torch.Tensor:
        """A tensor in the spec's dtype and on its device, without a way through numpy."""
        if given.ndim == 0:
            raise TypeError(f"{leaf.name}: got {given!r} of type Tensor, expected one action for each env")
        if len(given) != self._num_envs:
            raise ValueError(f"{leaf.name}: got {len(given)} actions, expected {self._num_envs}, one for each env")
        require_actions(leaf, tuple(given.shape[1:]), _kind(given.dtype), given.dtype)
        cast = given.detach().to(device=spec.device, dtype=spec.dtype)
        if given.dtype != spec.dtype and leaf.dtype.kind in "iu" and not bool((cast == given.to(cast.device)).all()):
            raise ValueError(f"{leaf.name}: got {given}, whose values {leaf.dtype} does not hold")
        return cast


def handed_out(value: torch.Tensor, copy: bool, device: torch.device | None) -> torch.Tensor:
    """A tensor on the device, or where it is with None; with ``copy`` in memory of its own.

    Example:
        >>> value = torch.ones(2)
        >>> [handed_out(value, copy, None).data_ptr() == value.data_ptr() for copy in (False, True)]
        [True, False]
    """
    if device is None or value.device == device:
        return value.clone() if copy else value
    return value.to(device)


def _own_array(value: torch.Tensor) -> Array:
    array = array_of(value)
    is_own = value.device.type != "cpu" or value.dtype is torch.bfloat16  # made for numpy
    return array if is_own else array.copy()


def _keys(spec: TensorSpec, key: Key = ()) -> Iterator[Key]:
    """The keys of a spec's leaves, in the order of the leaves of its space."""
    if not isinstance(spec, Composite):
        yield key
        return
    names: Sequence[Any] = [str(i) for i in range(len(spec))] if spec.kind == "tuple" else [*spec.keys()]
    for name in names:
        yield from _keys(spec[name], (*key, name))


def _is_its_own_encoding(leaf: SpaceLeaf, spec: TensorSpec) -> bool:
    """Whether an array of the leaf's dtype and the spec's shape is what the env is given."""
    return (
        leaf.is_array
        and translation_of(leaf.space) is None
        and isinstance(spec, LeafSpec)
        and not isinstance(spec, (OneHot, MultiOneHot))
        and spec.device.type == "cpu"
        and as_torch_dtype(leaf.dtype) == spec.dtype
    )


def _kind(dtype: torch.dtype) -> str:
    """A torch dtype's kind as numpy has it, unsigned integers among the signed."""
    if dtype is torch.bool:
        return "b"
    return "f" if dtype.is_floating_point else "c" if dtype.is_complex else "i"
