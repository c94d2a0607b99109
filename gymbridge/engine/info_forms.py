"""Infos of numbers alone as records of bytes: what one has, where each entry lies, and the way there and back.

An info has a *form* if all its entries are numbers or arrays of them, or dicts of such entries: the keys in their
order, and the type, dtype and shape of each entry. Infos of one form are records of one layout, so that an entry of
many records is one strided array.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np

__all__ = ["CAPACITY", "Entry", "EntryKind", "InfoForm", "InfoTree", "info_tree"]

CAPACITY = 960
"""Bytes of a record: whole cache lines, but no power of two, so that columns do not crowd a few sets of the cache."""


class EntryKind(NamedTuple):
    """What an entry is.

    Attributes:
        kind: ``"bool"``, ``"int"`` and ``"float"`` are Python's, ``"scalar"`` is numpy's, ``"array"`` an array.
        char: the character of the dtype, native; equal dtypes of other characters are other types.
        shape: of an array; ``()`` of a number.
    """

    kind: str
    char: str
    shape: tuple[int, ...]


_MAX_DEPTH = 8
_PYTHON_KINDS = {
    bool: EntryKind("bool", "?", ()),
    int: EntryKind("int", np.dtype(np.int64).char, ()),
    float: EntryKind("float", "d", ()),
}
_FORMATS = {"bool": "?", "int": "q", "float": "d"}
"""In the words of ``struct``; all else goes to a record as bytes."""

_DTYPES = {char: np.dtype(char) for char in "?bBhHiIlLqQefdgFDG"}
_SCALARS = {dtype.type: char for char, dtype in _DTYPES.items()}
_TYPES = frozenset({*_PYTHON_KINDS, *_SCALARS, np.ndarray, dict})


InfoTree: TypeAlias = tuple[tuple[str, Any], ...]
"""The entries of an info in their order: key and :class:`EntryKind`, or the tree of a dict."""


class Entry(NamedTuple):
    """An entry of a record: an array ``[*shape]`` of this dtype at this offset.

    Attributes:
        is_numpy_bool: it is a scalar of type ``numpy.bool_``.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    is_numpy_bool: bool


def info_tree(info: dict[str, Any], depth: int = _MAX_DEPTH) -> InfoTree | None:
    """What an info has, None if it has no form.

    Without a form are: what is no exact ``dict``, or has a dict in it that is none; keys that are no exact ``str``,
    that begin with ``"_"`` as masks do, or that a vector env uses itself; an int beyond int64; arrays of other dtypes
    than numbers and bools or in another byte order, subclasses of arrays and numbers, and anything else; dicts nested
    deeper than eight levels.

    Example:
        >>> info_tree({"goal": {"x": np.float32(1)}})
        (('goal', (('x', EntryKind(kind='scalar', char='f', shape=())),)),)
        >>> info_tree({"name": "x"})
    """
    if type(info) is not dict or depth == 0 or not _TYPES.issuperset(map(type, info.values())):
        return None
    tree = []
    for key, value in info.items():
        part = None
        if type(key) is str and key[:1] != "_" and key not in ("final_obs", "final_info"):
            part = info_tree(value, depth - 1) if type(value) is dict else _kind_of(value)
        if part is None:
            return None
        tree.append((key, part))
    return tuple(tree)


def _kind_of(value: Any) -> EntryKind | None:
    kind = type(value)
    if kind in _PYTHON_KINDS:
        if kind is int and not -(2**63) <= value < 2**63:
            return None
        return _PYTHON_KINDS[kind]
    if kind in _SCALARS:
        return EntryKind("scalar", _SCALARS[kind], ())
    dtype = value.dtype
    if dtype.char not in _DTYPES or not dtype.isnative or dtype.metadata or value.nbytes > CAPACITY:
        return None
    return EntryKind("array", dtype.char, value.shape)


class InfoForm:
    """The layout of the records of infos that have the same entries; it pickles.

    Args:
        tree: what they have.

    Attributes:
        tree: what they have.
        number: tells forms apart, in all processes alike; never 0.
        nbytes: bytes of a record.
        entries: key -> :class:`Entry`, or a dict of the same for a dict.

    Example:
        >>> info = {"lives": 3, "position": np.zeros(2)}
        >>> form = InfoForm(info_tree(info))
        >>> memory = bytearray(form.nbytes)
        >>> form.pack_into(memory, 0, info)
        True
        >>> form.pack_into(memory, 0, {"lives": 3})
        False
        >>> form.unpack_from(memory, 0)
        {'lives': 3, 'position': array([0., 0.])}
    """

    def __init__(self, tree: InfoTree):
        self.tree = tree
        self.number = int.from_bytes(blake2b(repr(tree).encode(), digest_size=8).digest(), "little") or 1
        self.nbytes = 0
        self._format = "="
        self.entries = self._placed(tree)
        record = struct.Struct(self._format)
        self._pack_into, self._unpack_from = record.pack_into, record.unpack_from
        self._values = _Level(tree).values

    def __reduce__(self) -> tuple[type[InfoForm], tuple[InfoTree]]:
        return InfoForm, (self.tree,)

    def _placed(self, tree: InfoTree) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for key, part in tree:
            if not isinstance(part, EntryKind):
                entries[key] = self._placed(part)
                continue
            dtype = _DTYPES[part.char]
            pad = -self.nbytes % dtype.alignment
            offset = self.nbytes + pad
            size = dtype.itemsize * int(np.prod(part.shape, dtype=np.int64))
            self._format += f"{pad}x{_FORMATS.get(part.kind, f'{size}s')}"
            self.nbytes = offset + size
            entries[key] = Entry(dtype, part.shape, offset, part.kind == "scalar" and part.char == "?")
        return entries

    def pack_into(self, memory: Any, offset: int, info: dict[str, Any]) -> bool:
        """Writes the record of an info, if it has this form: else says False, and the record has no meaning."""
        values = self._values(info)
        if values is None:
            return False
        try:
            self._pack_into(memory, offset, *values)
        except struct.error:  # an int beyond int64
            return False
        return True

    def unpack_from(self, memory: Any, offset: int) -> dict[str, Any]:
        """The info of a record, equal to the one packed in types and bits; its arrays are the caller's own."""
        return _rebuilt(self.tree, iter(self._unpack_from(memory, offset)))


class _Level:
    """Tells whether a dict has the entries of a tree, and has their values as a record takes them."""

    __slots__ = ("_arrays", "_dicts", "_keys", "_scalars", "_types")

    def __init__(self, tree: InfoTree):
        self._keys = tuple(key for key, _ in tree)
        types: list[type] = []
        self._arrays: list[tuple[int, np.dtype[Any], tuple[int, ...]]] = []
        self._scalars: list[int] = []
        self._dicts: list[tuple[int, _Level]] = []
        python = {part.kind: kind for kind, part in _PYTHON_KINDS.items()}
        for position, (_, part) in enumerate(tree):
            if not isinstance(part, EntryKind):
                types.append(dict)
                self._dicts.insert(0, (position, _Level(part)))
            elif part.kind == "array":
                types.append(np.ndarray)
                self._arrays.append((position, _DTYPES[part.char], part.shape))
            elif part.kind == "scalar":
                types.append(_DTYPES[part.char].type)
                self._scalars.append(position)
            else:
                types.append(python[part.kind])
        self._types = (*[str] * len(tree), *types)

    def values(self, info: dict[str, Any]) -> list[Any] | None:
        """The values in the order of the record, None where the dict has other entries."""
        values = [*info.values()]
        # a key of another type may be equal to a string
        if (*info,) != self._keys or (*map(type, chain(info, values)),) != self._types:
            return None
        for position, dtype, shape in self._arrays:
            value = values[position]
            if value.dtype is not dtype and not _is_as_numpys_own(value.dtype, dtype):
                return None
            if value.shape != shape:
                return None
            values[position] = value.tobytes()
        for position in self._scalars:
            values[position] = values[position].tobytes()
        for position, level in self._dicts:  # the last one first: those before it stay where they are
            inner = level.values(values[position])
            if inner is None:
                return None
            values[position : position + 1] = inner
        return values


def _is_as_numpys_own(given: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is one of numpy's own in all but identity."""
    return bool(given == dtype) and given.char == dtype.char and not given.metadata


def _rebuilt(tree: InfoTree, values: Any) -> dict[str, Any]:
    info: dict[str, Any] = {}
    for key, part in tree:
        if not isinstance(part, EntryKind):
            info[key] = _rebuilt(part, values)
            continue
        value = next(values)
        if part.kind in ("array", "scalar"):
            array: Any = np.ndarray(part.shape, _DTYPES[part.char], value)
            value = array.copy() if part.kind == "array" else array[()]
        info[key] = value
    return info
