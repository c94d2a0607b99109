"""What a Composite's values are in the space it came from: dicts, tuples and bare values, by the name of each part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gymbridge.errors import SpecError
from gymbridge.specs._entries import Entries

if TYPE_CHECKING:
    from collections.abc import Iterator


def taken_apart(value: Any, spec: Entries) -> Mapping[str, Any]:
    """Return the parts of a value of the space that ``spec`` came from, by the names of its entries.

    Raises:
        SpecError: the value is not of the type that ``spec.kind`` calls for.

    Example:
        >>> from gymbridge.specs import Binary, Composite
        >>> taken_apart((5, 7), Composite({"0": Binary(1), "1": Binary(1)}, kind="tuple"))
        {'0': 5, '1': 7}
    """
    return _TAKE_APART[spec.kind](value, spec)


def put_together(parts: dict[str, Any], spec: Entries) -> Any:
    """Return the value that has ``parts``: the inverse of ``taken_apart``.

    Example:
        >>> from gymbridge.specs import Binary, Composite
        >>> put_together({"observation": 5}, Composite(observation=Binary(1), kind="leaf"))
        5
    """
    return _PUT_TOGETHER[spec.kind](parts, spec)


def _dict_apart(value: Any, spec: Entries) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(f"value: got {type(value).__name__}, expected a dict with the keys {spec._names()}")
    parts = dict(value)
    for group, inner in _renamed(spec):
        parts[group] = {name: parts.pop(name) for name in inner._names() if name in parts}
    return parts


def _renamed(spec: Entries) -> Iterator[tuple[str, Entries]]:
    """Yield the groups of items that stand apart, and what they are under."""
    for name, inner in spec.items():
        if isinstance(inner, Entries) and inner.kind == "renamed":
            assert isinstance(name, str)
            yield name, inner


def _dict_together(parts: dict[str, Any], spec: Entries) -> Any:
    for group, _ in _renamed(spec):
        parts.update(parts.pop(group))
    return parts


def _tuple_apart(value: Any, spec: Entries) -> Mapping[str, Any]:
    if not isinstance(value, (tuple, list)):
        raise SpecError(f"value: got {type(value).__name__}, expected a tuple of {len(spec)}")
    return {str(i): item for i, item in enumerate(value)}


def _leaf_apart(value: Any, spec: Entries) -> Mapping[str, Any]:
    return {_only_name(spec): value}


def _tuple_together(parts: dict[str, Any], spec: Entries) -> Any:
    return tuple(parts[str(i)] for i in range(len(parts)))


def _leaf_together(parts: dict[str, Any], spec: Entries) -> Any:
    return parts[_only_name(spec)]


def _only_name(spec: Entries) -> str:
    if len(spec) != 1:
        raise SpecError(f"a Composite of kind 'leaf' has a value under one key, got the keys {spec._names()}")
    return spec._names()[0]


_TAKE_APART: dict[str, Callable[[Any, Entries], Mapping[str, Any]]] = {
    "dict": _dict_apart,
    "tuple": _tuple_apart,
    "leaf": _leaf_apart,
    "renamed": _dict_apart,
}
_PUT_TOGETHER: dict[str, Callable[[dict[str, Any], Entries], Any]] = {
    "dict": _dict_together,
    "tuple": _tuple_together,
    "leaf": _leaf_together,
    "renamed": _dict_together,
}
