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
from inspect import iscoroutine
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from gymbridge.errors import UnsupportedSpaceError

__all__ = [
    "RESERVED_KEYS",
    "SpaceLeaf",
    "SpaceTree",
    "action_tree",
    "dict_items",
    "kind_of",
    "no_translation",
    "observation_tree",
    "outline",
    "place_name",
    "register_leaf",
    "root_key",
    "space_tree",
    "tuple_items",
]

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


def place_name(key: Key) -> str:
    """A key in one string, for messages.

    Example:
        >>> place_name(("goal", "0")), place_name(())
        ('goal.0', 'the root')
    """
    return ".".join(key) or "the root"


def no_translation(space: Space[Any], key: Key) -> UnsupportedSpaceError:
    """The error that refuses ``space`` at ``key``, and says what to do about it."""
    kind = type(space)
    return UnsupportedSpaceError(
        f"{place_name(key)}: no translation for {space} of type {kind.__module__}.{kind.__qualname__}; tell one with "
        f"gymbridge.spaces.register_space({kind.__qualname__}, to_spec=..., to_space=...)"
    )


class SpaceLeaf:
    """A part of a space that has no parts of its own, and the key it stands at.

    Attributes:
        key: path from the root.
        name: the key in one string, for messages.
        space: the gymnasium space.
        is_array: whether a sample is one array: that of a ``Box``, ``Discrete``, ``MultiDiscrete`` or ``MultiBinary``.
        shape: shape of one sample, ``()`` where it is no array.
        dtype: numpy dtype of a sample, ``object`` where it is no array.
    """

    __slots__ = ("dtype", "is_array", "key", "name", "shape", "space")

    def __init__(self, key: Key, space: Space[Any], is_array: bool = True):
        self.key = key
        self.name = place_name(key)
        self.space = space
        self.is_array = is_array
        self.shape: tuple[int, ...] = tuple(space.shape or ()) if is_array else ()
        self.dtype: np.dtype[Any] = np.dtype(space.dtype if is_array else object)

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
                    f"{place_name(self.key)} lacks the item {position!r}: "
                    f"got {outline(sample)}, expected items {[position for position, _ in self.items]}"
                ) from error
            node.flatten(part, out)


class _DictNode(_GroupNode):
    def unflatten(self, values: Iterator[Any]) -> dict[str, Any]:
        return {key: node.unflatten(values) for key, node in self.items}


class _TupleNode(_GroupNode):
    def unflatten(self, values: Iterator[Any]) -> tuple[Any, ...]:
        return tuple(node.unflatten(values) for _, node in self.items)


def kind_of(value: object) -> str:
    """The type's name of what an env gave; what to do about a coroutine."""
    if iscoroutine(value):
        return "a coroutine, which only AsyncEnvPool(..., backend='asyncio') awaits"
    return type(value).__name__


def outline(sample: Any) -> str:
    """A sample in few words: keys and lengths rather than values; what to do about a coroutine."""
    if iscoroutine(sample):
        return kind_of(sample)
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
    raise TypeError(f"{place_name(key)}: got {space!r}, expected a gymnasium Space")


@_node.register(spaces.Box)
@_node.register(spaces.Discrete)
@_node.register(spaces.MultiDiscrete)
@_node.register(spaces.MultiBinary)
def _(space: Space[Any], key: Key, place: Callable[[str], Key]) -> _Node:
    return _LeafNode(SpaceLeaf(key, space))


@_node.register(Space)
def _data_node(space: Space[Any], key: Key, place: Callable[[str], Key]) -> _Node:
    return _LeafNode(SpaceLeaf(key, space, is_array=False))


def register_leaf(space_type: type[Space[Any]]) -> None:
    """Make the spaces of a type leaves that are no arrays, instead of what they are as instances of its bases."""
    _node.register(space_type, _data_node)


@_node.register(spaces.Dict)
def _(space: spaces.Dict, key: Key, place: Callable[[str], Key]) -> _Node:
    return _DictNode(key, [(name, _below(part, at)) for name, at, part in dict_items(space, key, place)])


@_node.register(spaces.Tuple)
def _(space: Any, key: Key, place: Callable[[str], Key]) -> _Node:
    return _TupleNode(key, [(i, _below(part, at)) for i, at, part in tuple_items(space, key)])


def dict_items(
    space: spaces.Dict, key: Key, place: Callable[[str], Key] | None = None
) -> Iterator[tuple[str, Key, Space[Any]]]:
    """Name, key and space of each item of a ``Dict`` at ``key``; ``place`` gives the keys (default: below ``key``).

    Raises:
        TypeError: a name is not a string.
    """
    for name, part in space.spaces.items():
        if not isinstance(name, str):
            raise TypeError(f"{place_name(key)}: got the Dict key {name!r}, expected a string")
        yield name, place(name) if place is not None else (*key, name), part


def tuple_items(space: Any, key: Key) -> Iterator[tuple[int, Key, Space[Any]]]:
    """Position, key and space of each item of a ``Tuple`` at ``key``."""
    for i, part in enumerate(space.spaces):
        yield i, (*key, str(i)), part


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

    A space whose samples are not arrays (``Text``, ``Graph``, ``Sequence``, ``OneOf``, or one that nobody knows) is a
    leaf of objects.

    Raises:
        TypeError: not a space, or a ``Dict`` key that is not a string.
    """
    return SpaceTree(space, _below(space, key))


def observation_tree(space: Space[Any]) -> SpaceTree:
    """The tree of an observation space, with its keys as they stand in an env's TensorDict.

    Raises:
        TypeError: not a space, or a ``Dict`` key that is not a string.
    """
    root = _node(space, (), root_key)
    return SpaceTree(space, root) if isinstance(root, _DictNode) else space_tree(space, ("observation",))


def action_tree(space: Space[Any]) -> SpaceTree:
    """The tree of an action space: everything under ``"action"``.

    Raises:
        TypeError: not a space, or a ``Dict`` key that is not a string.
    """
    return space_tree(space, ("action",))
