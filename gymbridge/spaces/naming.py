"""Where each part of a space stands: the leaves of a space, their keys, and samples taken apart and put together.

This is the one place that names leaves, and it knows neither torch nor tensordict, so that workers and the numpy
front can use it. The rules:

- a ``Dict`` observation's keys stand at the root, nested ``Dict`` spaces nest;
- the items of a ``Tuple`` have the keys ``"0"``, ``"1"``, … under the tuple's own key;
- any other observation is the leaf ``"observation"``, and a ``Tuple`` observation stands under that key;
- an action stands under ``"action"``, whatever its kind;
- a user's key at the root that means something to a TensorDict env goes to ``("_user", key)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from gymbridge.errors import UnsupportedSpaceError

__all__ = ["RESERVED_KEYS", "SpaceLeaf", "SpaceTree", "action_tree", "observation_tree", "root_key", "space_tree"]

Key = tuple[str, ...]

RESERVED_KEYS = frozenset({"reward", "done", "terminated", "truncated", "action", "next", "info", "env_index", "valid"})
"""Root keys that a TensorDict env uses itself."""


def root_key(key: str) -> Key:
    """Key at the root of a TensorDict under which a user's root key stands.

    Example:
        >>> root_key("position"), root_key("reward"), root_key("_hidden")
        (('position',), ('_user', 'reward'), ('_user', '_hidden'))
    """
    return ("_user", key) if key in RESERVED_KEYS or key.startswith("_") else (key,)


class SpaceLeaf:
    """One array of a space: a ``Box``, ``Discrete``, ``MultiDiscrete`` or ``MultiBinary`` and the key it stands at.

    Attributes:
        key: path from the root.
        name: the key in one string, for messages.
        space: the gymnasium space.
        shape: shape of one sample.
        dtype: numpy dtype of a sample.
    """

    __slots__ = ("dtype", "key", "name", "shape", "space")

    def __init__(self, key: Key, space: Space[Any]):
        self.key = key
        self.name = ".".join(key)
        self.space = space
        self.shape: tuple[int, ...] = tuple(space.shape or ())
        self.dtype = np.dtype(space.dtype)

    def __repr__(self) -> str:
        return f"SpaceLeaf({self.name!r}, {self.space})"


class _Node(ABC):
    """A part of a space that knows how a sample of it is taken apart."""

    @abstractmethod
    def leaves(self) -> Iterator[SpaceLeaf]: ...

    @abstractmethod
    def flatten(self, sample: Any, out: list[Any]) -> None: ...

    @abstractmethod
    def unflatten(self, values: Iterator[Any]) -> Any: ...


class _LeafNode(_Node):
    def __init__(self, leaf: SpaceLeaf):
        self.leaf = leaf

    def leaves(self) -> Iterator[SpaceLeaf]:
        yield self.leaf

    def flatten(self, sample: Any, out: list[Any]) -> None:
        out.append(sample)

    def unflatten(self, values: Iterator[Any]) -> Any:
        return next(values)


class _GroupNode(_Node):
    """A ``Dict`` or a ``Tuple``: its items, by the key or position that a sample has them at."""

    def __init__(self, key: Key, items: Sequence[tuple[Any, _Node]]):
        self.key = key
        self.items = tuple(items)

    def leaves(self) -> Iterator[SpaceLeaf]:
        for _, node in self.items:
            yield from node.leaves()

    def flatten(self, sample: Any, out: list[Any]) -> None:
        for position, node in self.items:
            try:
                part = sample[position]
            except (KeyError, IndexError, TypeError) as error:
                raise KeyError(
                    f"{'.'.join(self.key) or 'the root'} lacks the item {position!r}: "
                    f"got {_outline(sample)}, expected items {[position for position, _ in self.items]}"
                ) from error
            node.flatten(part, out)


class _DictNode(_GroupNode):
    def unflatten(self, values: Iterator[Any]) -> dict[str, Any]:
        return {key: node.unflatten(values) for key, node in self.items}


class _TupleNode(_GroupNode):
    def unflatten(self, values: Iterator[Any]) -> tuple[Any, ...]:
        return tuple(node.unflatten(values) for _, node in self.items)


def _outline(sample: Any) -> str:
    """A sample in few words: keys and lengths rather than values."""
    if isinstance(sample, dict):
        return f"a dict with keys {list(sample)}"
    if isinstance(sample, (tuple, list)):
        return f"a {type(sample).__name__} of length {len(sample)}"
    if isinstance(sample, np.ndarray):
        return f"an array of shape {sample.shape} and dtype {sample.dtype}"
    return repr(sample)


@singledispatch
def _node(space: object, key: Key, place: Callable[[str], Key]) -> _Node:
    """The node of ``space`` at ``key``; ``place`` gives the key of a ``Dict`` item."""
    where = ".".join(key) or "the root"
    if not isinstance(space, Space):
        raise TypeError(f"{where}: got {space!r}, expected a gymnasium Space")
    raise UnsupportedSpaceError(
        f"{where}: no translation for {space} of type {type(space).__module__}.{type(space).__qualname__}; "
        f"Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple have one"
    )


@_node.register(spaces.Box)
@_node.register(spaces.Discrete)
@_node.register(spaces.MultiDiscrete)
@_node.register(spaces.MultiBinary)
def _(space: Space[Any], key: Key, place: Callable[[str], Key]) -> _Node:
    return _LeafNode(SpaceLeaf(key, space))


@_node.register(spaces.Dict)
def _(space: spaces.Dict, key: Key, place: Callable[[str], Key]) -> _Node:
    items = []
    for name, part in space.spaces.items():
        if not isinstance(name, str):
            raise TypeError(f"{'.'.join(key) or 'the root'}: got the Dict key {name!r}, expected a string")
        items.append((name, _below(part, place(name))))
    return _DictNode(key, items)


@_node.register(spaces.Tuple)
def _(space: Any, key: Key, place: Callable[[str], Key]) -> _Node:
    return _TupleNode(key, [(i, _below(part, (*key, str(i)))) for i, part in enumerate(space.spaces)])


def _below(space: Space[Any], key: Key) -> _Node:
    return _node(space, key, lambda name: (*key, name))


class SpaceTree:
    """A space as a list of leaves.

    Attributes:
        space: the space.
        leaves: its leaves, in the order in which ``flatten`` and ``unflatten`` have them.

    Example:
        >>> from gymnasium.spaces import Box, Dict, Discrete, Tuple
        >>> space = Dict(camera=Box(0, 255, (2, 2), np.uint8), goal=Tuple([Discrete(3), Discrete(4)]))
        >>> tree = observation_tree(space)
        >>> [leaf.key for leaf in tree.leaves]
        [('camera',), ('goal', '0'), ('goal', '1')]
        >>> tree.unflatten(tree.flatten({"camera": "pixels", "goal": (1, 2)}))
        {'camera': 'pixels', 'goal': (1, 2)}
    """

    __slots__ = ("_node", "is_leaf", "leaves", "space")

    def __init__(self, space: Space[Any], node: _Node):
        self.space = space
        self._node = node
        self.leaves = tuple(node.leaves())
        self.is_leaf = isinstance(node, _LeafNode)

    def flatten(self, sample: Any) -> list[Any]:
        """Values of a sample's leaves, in order.

        Raises:
            KeyError: an item is missing; the message names it. Items that the space does not have are left out.
        """
        values: list[Any] = []
        self._node.flatten(sample, values)
        return values

    def unflatten(self, values: Iterable[Any]) -> Any:
        """The sample (or the batch of samples) whose leaves are ``values``."""
        return self._node.unflatten(iter(values))

    def rows(self, arrays: Sequence[Any], num_rows: int) -> Iterator[Any]:
        """Samples one by one from arrays of shape ``[num_rows, *leaf.shape]``, one array a leaf."""
        if self.is_leaf:
            return iter(arrays[0])
        if not arrays:
            return (self.unflatten(()) for _ in range(num_rows))
        return (self.unflatten(values) for values in zip(*arrays, strict=True))


def space_tree(space: Space[Any], key: Key = ()) -> SpaceTree:
    """The tree of a space that stands at ``key``, without the rules for the root.

    Raises:
        UnsupportedSpaceError: a part has no translation.
        TypeError: not a space, or a ``Dict`` key that is not a string.
    """
    return SpaceTree(space, _below(space, key))


def observation_tree(space: Space[Any]) -> SpaceTree:
    """The tree of an observation space, with its keys as they stand in an env's TensorDict.

    Raises:
        UnsupportedSpaceError: a part has no translation.
        TypeError: not a space, or a ``Dict`` key that is not a string.
    """
    if isinstance(space, spaces.Dict):
        return SpaceTree(space, _node(space, (), root_key))
    return space_tree(space, ("observation",))


def action_tree(space: Space[Any]) -> SpaceTree:
    """The tree of an action space: everything under ``"action"``.

    Raises:
        UnsupportedSpaceError: a part has no translation.
        TypeError: not a space, or a ``Dict`` key that is not a string.
    """
    return space_tree(space, ("action",))
