"""``Composite``: the spec of a TensorDict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from gymbridge.errors import SpecError
from gymbridge.specs._base import TensorSpec, name_of
from gymbridge.specs._bridge import as_device, cartesian
from gymbridge.specs._leaf import MAX_ENUMERATION
from gymbridge.specs._shapes import Indexing, as_size, concrete, fits_end

if TYPE_CHECKING:
    from typing_extensions import Self

    from gymbridge.specs._bridge import DeviceLike
    from gymbridge.specs._shapes import Index, ShapeLike

Kind: TypeAlias = Literal["dict", "tuple", "leaf", "renamed"]
Key: TypeAlias = "str | tuple[str, ...]"

_NO_DEFAULT = object()


def is_key(item: Any) -> bool:
    """Say whether ``item`` is a key rather than an index."""
    return isinstance(item, str) or (isinstance(item, tuple) and bool(item) and all(isinstance(k, str) for k in item))


def as_path(key: Any) -> tuple[str, ...]:
    """Return a key as a tuple of strings.

    Raises:
        TypeError: it is neither a string nor a non-empty tuple of strings.
    """
    if not is_key(key):
        raise TypeError(f"a key is a string or a non-empty tuple of strings, got {key!r}")
    return (key,) if isinstance(key, str) else tuple(key)


class Composite(TensorSpec):
    """A nested spec: names for specs that share leading batch dims. Its values are TensorDicts.

    Args:
        *args: a mapping (or a Composite) of entries, at most one; nested mappings become Composites.
        shape: batch shape, with which each entry's batch dims must begin.
        device: where every leaf is put; None lets leaves keep their own.
        kind: what kind of space this came from, which ``encode`` takes values of: a ``"dict"``, a ``"tuple"`` (keys
            ``"0"``, ``"1"``, ...) or a bare ``"leaf"`` under one key. The entries of a ``"renamed"`` one are items of
            the dict above it, which stand apart because of their names.
        **kwargs: more entries.

    Raises:
        TypeError: a key that is not made of strings, or an entry that is no spec.
        ValueError: an entry's shape does not begin with ``shape``.

    Example:
        >>> from gymbridge.specs import Binary, Bounded
        >>> spec = Composite({("arm", "angle"): Bounded(-1, 1, (2, 3))}, grip=Binary(1, (2, 1)), shape=(2,))
        >>> sorted(spec.keys(include_nested=True, leaves_only=True), key=str)
        [('arm', 'angle'), 'grip']
        >>> spec.rand().batch_size, spec.zero((5,))["grip"].shape
        (torch.Size([2]), torch.Size([5, 2, 1]))
    """

    def __init__(
        self,
        *args: Mapping[Any, Any] | Composite,
        shape: ShapeLike = (),
        device: DeviceLike = None,
        kind: Kind = "dict",
        **kwargs: Any,
    ):
        if len(args) > 1:
            raise TypeError(f"Composite takes one mapping at most, got {len(args)}")
        if kind not in get_args(Kind):
            raise ValueError(f"kind: got {kind!r}, expected one of {get_args(Kind)}")
        self._shape = as_size(shape)
        self._device = None if device is None else as_device(device)
        self._kind: Kind = kind
        self._is_locked = False
        self._specs: dict[str, TensorSpec] = {}
        for source in (*args, kwargs):
            for key, spec in source.items():
                self.set(key, spec)

    def _like(self, specs: Mapping[str, TensorSpec], shape: torch.Size, device: torch.device | None) -> Self:
        """Return an unlocked spec of the same kind from entries that are known to fit."""
        new = object.__new__(type(self))
        new._shape, new._device, new._kind, new._is_locked = shape, device, self._kind, False
        new._specs = dict(specs)
        return new

    @property
    def shape(self) -> torch.Size:
        """Batch shape."""
        return self._shape

    @property
    def batch_size(self) -> torch.Size:
        """Batch shape, by TensorDict's name."""
        return self.shape

    @property
    def dtype(self) -> None:
        """None: leaves have their own."""
        return None

    @property
    def device(self) -> torch.device | None:
        """Where every leaf is, None where leaves have their own."""
        return self._device

    @property
    def kind(self) -> Kind:
        """What kind of space this came from."""
        return self._kind

    @property
    def is_dynamic(self) -> bool:
        """Whether the batch shape, or the shape of a leaf, has a dim of any size (``-1``)."""
        return -1 in self.shape or any(spec.is_dynamic for spec in self.values())

    # -- entries

    def _names(self) -> list[str]:
        return list(self._specs)

    def _entry(self, name: str) -> TensorSpec:
        return self._specs[name]

    def items(self, include_nested: bool = False, leaves_only: bool = False) -> Iterator[tuple[Key, TensorSpec]]:
        """Iterate over keys and specs.

        Args:
            include_nested: entries of nested Composites too, with tuples for keys.
            leaves_only: no Composites.
        """
        for name in self._names():
            spec = self._entry(name)
            is_nested = isinstance(spec, Composite)
            if not (is_nested and leaves_only):
                yield name, spec
            if is_nested and include_nested:
                assert isinstance(spec, Composite)
                for key, inner in spec.items(True, leaves_only):
                    yield (name, *as_path(key)), inner

    def keys(self, include_nested: bool = False, leaves_only: bool = False) -> _Keys:
        """Return the keys, as ``items``; the view has a length and can be asked whether it has a key."""
        return _Keys(self, include_nested, leaves_only)

    def values(self, include_nested: bool = False, leaves_only: bool = False) -> Iterator[TensorSpec]:
        """Iterate over the specs, as ``items``."""
        return (spec for _, spec in self.items(include_nested, leaves_only))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __contains__(self, key: Any) -> bool:
        return self.get(key, None) is not None

    def get(self, key: Key, default: Any = _NO_DEFAULT) -> Any:
        """Return the spec under ``key``.

        Raises:
            KeyError: there is none and no default.
        """
        path = as_path(key)
        found: TensorSpec = self
        for depth, name in enumerate(path):
            if not isinstance(found, Composite) or name not in found._names():
                if default is not _NO_DEFAULT:
                    return default
                has = found._names() if isinstance(found, Composite) else f"{found._title}, which is a leaf"
                raise KeyError(f"no entry {name_of(path)}: {name_of(path[:depth]) if depth else 'the spec'} has {has}")
            found = found._entry(name)
        return found

    def set(self, key: Key, spec: TensorSpec | Mapping[Any, Any]) -> Self:
        """Put ``spec`` (a mapping becomes a Composite) under ``key``; nested Composites are made as needed.

        Raises:
            TypeError: a key or an entry of the wrong type.
            ValueError: the spec's shape does not begin with this one's.
            RuntimeError: this spec is locked.
        """
        path = as_path(key)
        self._check_unlocked(f"set {name_of(path)}")
        if len(path) > 1:
            inner = self._specs.get(path[0])
            if inner is None:
                inner = Composite(shape=self._shape, device=self._device)
            if not isinstance(inner, Composite):
                raise KeyError(f"cannot set {name_of(path)}: {path[0]!r} is a leaf, {inner._title}")
            inner.set(path[1:], spec)
            self._specs[path[0]] = inner
            return self
        if isinstance(spec, Mapping):
            spec = Composite(spec, shape=self._shape, device=self._device)
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"entry {name_of(path)}: expected a spec, got {type(spec).__name__}")
        if tuple(spec._batch_shape[: self.ndim]) != tuple(self._shape):
            raise ValueError(
                f"entry {name_of(path)}: got {spec._title} of shape {list(spec.shape)} with batch dims "
                f"{list(spec._batch_shape)}, expected batch dims that begin with {list(self._shape)}"
            )
        self._specs[path[0]] = spec if self._device is None else spec.to(self._device)
        return self

    def __setitem__(self, key: Key, spec: TensorSpec | Mapping[Any, Any]) -> None:
        self.set(key, spec)

    def update(self, other: Composite | Mapping[Any, Any]) -> Self:
        """Put in every entry of ``other``; nested Composites are updated rather than replaced.

        Raises:
            KeyError, TypeError, ValueError, RuntimeError: as ``set``, before anything is changed.
        """
        self._check_unlocked("update")
        self.clone()._update(other)
        return self._update(other)

    def _update(self, other: Composite | Mapping[Any, Any]) -> Self:
        for key, spec in other.items():
            mine = self.get(key, None)
            if isinstance(mine, Composite) and isinstance(spec, (Composite, Mapping)):
                mine._update(spec)
            else:
                self.set(key, spec)
        return self

    def __delitem__(self, key: Key) -> None:
        path = as_path(key)
        self._check_unlocked(f"delete {name_of(path)}")
        self.get(path)
        if len(path) > 1:
            del self.get(path[:-1])[path[-1]]
        else:
            del self._specs[path[0]]

    def pop(self, key: Key, default: Any = _NO_DEFAULT) -> Any:
        """Remove the spec under ``key`` and return it, or ``default`` if there is none.

        Raises:
            KeyError: there is none and no default.
            RuntimeError: this spec is locked.
        """
        self._check_unlocked(f"pop {name_of(as_path(key))}")
        found = self.get(key, default)
        if key in self:
            del self[key]
        return found

    def select(self, *keys: Key, strict: bool = True) -> Self:
        """Return a spec with copies of the given entries only.

        Raises:
            KeyError: ``strict`` and one is missing.
        """
        groups: dict[str, list[tuple[str, ...]]] = {}
        for path in map(as_path, keys):
            if path in self:
                groups.setdefault(path[0], []).append(path[1:])
            elif strict:
                self.get(path)
        kept: dict[str, TensorSpec] = {}
        for name in self._names():
            if rest := groups.get(name):
                spec = self._entry(name)
                kept[name] = spec.clone() if () in rest or not isinstance(spec, Composite) else spec.select(*rest)
        return self._like(kept, self._shape, self._device)

    def exclude(self, *keys: Key) -> Self:
        """Return a spec with copies of all but the given entries; those that are missing are passed over."""
        paths = [as_path(key) for key in keys]
        kept: dict[str, TensorSpec] = {}
        for name in self._names():
            rest = [path[1:] for path in paths if path[0] == name]
            spec = self._entry(name)
            if () not in rest:
                kept[name] = spec.exclude(*rest) if rest and isinstance(spec, Composite) else spec.clone()
        return self._like(kept, self._shape, self._device)

    def is_empty(self, recurse: bool = False) -> bool:
        """Say whether there is no entry, or (``recurse``) no leaf."""
        if not recurse:
            return not self._names()
        return not any(True for _ in self.items(include_nested=True, leaves_only=True))

    def empty(self) -> Self:
        """Return a spec without entries, with the same shape, device and kind."""
        return self._like({}, self._shape, self._device)

    # -- the lock

    @property
    def is_locked(self) -> bool:
        """Whether entries can neither be set nor removed."""
        return self._is_locked

    def lock_(self) -> Self:
        """Refuse changes of entries from now on, here and in nested specs; return self."""
        return self._set_lock(True)

    def unlock_(self) -> Self:
        """Allow changes of entries from now on, here and in nested specs; return self."""
        return self._set_lock(False)

    def _set_lock(self, is_locked: bool) -> Self:
        self._is_locked = is_locked
        for spec in self._specs.values():
            if isinstance(spec, Composite):
                spec._set_lock(is_locked)
        return self

    def _check_unlocked(self, what: str) -> None:
        if self.is_locked:
            raise RuntimeError(f"cannot {what}: the spec is locked; call unlock_() first, or change a clone()")

    # -- values

    def _build(self, shape: ShapeLike, leaf: Callable[[TensorSpec, torch.Size], Any]) -> Any:
        lead = as_size(shape)
        source = {name: leaf(spec, lead) for name, spec in self._specs.items()}
        return TensorDict(source, batch_size=[*lead, *concrete(self._shape)], device=self._device)

    def rand(self, shape: ShapeLike = ()) -> Any:
        """Draw a TensorDict of batch size ``[*shape, *self.shape]`` with torch's generator."""
        return self._build(shape, lambda spec, lead: spec.rand(lead))

    def zero(self, shape: ShapeLike = ()) -> Any:
        """Return a TensorDict of zeros, of batch size ``[*shape, *self.shape]``."""
        return self._build(shape, lambda spec, lead: spec.zero(lead))

    def one(self, shape: ShapeLike = ()) -> Any:
        """Return a TensorDict of ones, of batch size ``[*shape, *self.shape]``."""
        return self._build(shape, lambda spec, lead: spec.one(lead))

    def faults(self, value: Any, key: tuple[str, ...] = (), batch_dims: int | None = None) -> list[str]:
        """List what is wrong with ``value``, a line for each fault; missing and extra keys are faults too."""
        if not isinstance(value, TensorDictBase):
            return [f"{name_of(key)}: got {type(value).__name__}, expected a TensorDict"]
        lead = value.batch_dims - self.ndim
        if not fits_end(value.batch_size, self._shape) or batch_dims not in (None, lead):
            after = "" if batch_dims is None else f" after {batch_dims} batch dims"
            return [f"{name_of(key)}: batch size: got {list(value.batch_size)}, expected {list(self._shape)}{after}"]
        if isinstance(value, LazyStackedTensorDict):
            return self._faults_of_rows(value, key, lead)
        found = []
        for name, spec in self._specs.items():
            entry = value.get(name, None)
            if entry is None:
                found.append(f"{name_of((*key, name))}: missing, expected {spec._title} of shape {list(spec.shape)}")
            else:
                found += spec.faults(entry, (*key, name), lead)
        for name in value.keys():  # noqa: SIM118  # a TensorDict iterates over its rows
            if name not in self._specs:
                found.append(f"{name_of((*key, name))}: extra, expected only {self._names()}")
        return found

    def _faults_of_rows(self, value: LazyStackedTensorDict, key: tuple[str, ...], lead: int) -> list[str]:
        """List the faults of a lazy stack, whose rows may differ in keys and, along dynamic dims, in shape."""
        rows = value.unbind(value.stack_dim)
        specs: tuple[TensorSpec, ...]
        if value.stack_dim < lead:
            specs, lead = (self,) * len(rows), lead - 1
        elif self._shape[value.stack_dim - lead] == -1:
            at: Index = (*[slice(None)] * (value.stack_dim - lead), 0)
            specs = (self._index(at),) * len(rows)
        else:
            specs = self.unbind(value.stack_dim - lead)
        return [
            f"row {row}: {fault}"
            for row, (spec, part) in enumerate(zip(specs, rows, strict=True))
            for fault in spec.faults(part, key, lead)
        ]

    def _check_form(self, value: Any) -> None:
        """Refuse a value whose keys are not this spec's."""
        if not isinstance(value, TensorDictBase):
            raise SpecError(f"value: got {type(value).__name__}, expected a TensorDict")
        names, got = set(self._names()), set(value.keys())
        if names != got:
            raise SpecError(f"value: keys: got {sorted(map(str, got))}, expected {sorted(names)}")

    def project(self, value: Any) -> Any:
        """Return a TensorDict whose leaves are moved to the nearest values of their domains."""
        self._check_form(value)
        moved = value.copy()
        for name, spec in self._specs.items():
            moved.set(name, _naming(name, spec.project, value.get(name)))
        return moved

    def encode(self, value: Any) -> Any:
        """Return the TensorDict for a value of the space: a dict, a tuple or a bare value as ``kind`` says.

        Raises:
            SpecError: keys are missing or too many, or a leaf does not fit (the message names its key).
        """
        source = _TAKE_APART[self._kind](value, self)
        if missing := [name for name in self._specs if name not in source]:
            raise SpecError(f"value: missing {missing}, got {list(source)}")
        if extra := [name for name in source if name not in self._specs]:
            raise SpecError(f"value: extra {extra}, expected {self._names()}")
        encoded = {name: _naming(name, spec.encode, source[name]) for name, spec in self._specs.items()}
        leads = {
            name: tuple(encoded[name].shape[: encoded[name].ndim - spec.ndim]) for name, spec in self._specs.items()
        }
        if len(set(leads.values())) > 1:
            raise SpecError(f"value: leading dims differ from key to key: {leads}")
        lead = next(iter(leads.values()), ())
        return TensorDict(encoded, batch_size=[*lead, *self._encoded_batch(encoded)], device=self._device)

    def _encoded_batch(self, encoded: Mapping[str, Any]) -> torch.Size:
        """Return the batch shape of encoded entries, with their own sizes for dynamic dims."""
        for name, entry in encoded.items():
            lead = entry.ndim - self._specs[name].ndim
            return torch.Size(entry.shape[lead : lead + self.ndim])
        return concrete(self._shape)

    def to_numpy(self, value: Any) -> Any:
        """Return the space's value for a TensorDict: the inverse of ``encode``."""
        self._check_form(value)
        parts = {name: _naming(name, spec.to_numpy, value.get(name)) for name, spec in self._specs.items()}
        return _PUT_TOGETHER[self._kind](parts, self)

    def cardinality(self) -> int | float:
        """Return the number of values of one element of the batch."""
        return math.prod(spec.cardinality() for spec in self.values())

    def enumerate(self, use_mask: bool = False) -> Any:
        """Return all values, a TensorDict of batch size ``[cardinality, *shape]``.

        Args:
            use_mask: leave masked values out.
        """
        columns = {name: spec.enumerate(use_mask) for name, spec in self.items()}
        if math.prod(map(len, columns.values())) > MAX_ENUMERATION:
            raise NotImplementedError(f"{self._title} has {self.cardinality()} values, too many to list")
        picks = cartesian([torch.arange(len(column)) for column in columns.values()])
        source = {name: column[picks[:, i].to(column.device)] for i, (name, column) in enumerate(columns.items())}
        return TensorDict(source, batch_size=[len(picks), *concrete(self._shape)], device=self._device)

    def _stack_values(self, values: list[Any], dim: int) -> Any:
        return LazyStackedTensorDict.lazy_stack(values, dim)

    # -- other specs

    def clone(self) -> Self:
        """Return an unlocked copy, nested specs copied too."""
        return self._like({k: spec.clone() for k, spec in self._specs.items()}, self._shape, self._device)

    def to(self, dest: torch.dtype | DeviceLike) -> Self:
        """Return this spec with every leaf on another device, or with another dtype."""
        device = self._device if isinstance(dest, torch.dtype) else as_device(dest)
        return self._like({k: spec.to(dest) for k, spec in self._specs.items()}, self._shape, device)

    def _each(self, change: Callable[[TensorSpec], TensorSpec], batch: torch.Size) -> Self:
        return self._like({k: change(spec) for k, spec in self._specs.items()}, batch, self._device)

    def _expand(self, batch: torch.Size) -> Self:
        dims = self.ndim
        return self._each(lambda spec: spec._expand(torch.Size([*batch, *spec._batch_shape[dims:]])), batch)

    def _squeeze(self, dims: tuple[int, ...]) -> Self:
        batch = torch.Size([size for dim, size in enumerate(self._shape) if dim not in dims])
        return self._each(lambda spec: spec._squeeze(dims), batch)

    def _unsqueeze(self, dim: int) -> Self:
        batch = torch.Size([*self._shape[:dim], 1, *self._shape[dim:]])
        return self._each(lambda spec: spec._unsqueeze(dim), batch)

    def _reshape(self, batch: torch.Size) -> Self:
        dims = self.ndim
        return self._each(lambda spec: spec._reshape(torch.Size([*batch, *spec._batch_shape[dims:]])), batch)

    def _index(self, index: Index) -> Self:
        return self._each(lambda spec: spec._index(index), Indexing(index, self._shape).shape)

    def __getitem__(self, item: Any) -> Any:
        """Return the spec under a key, or index the batch dims with anything else."""
        return self.get(item) if is_key(item) else super().__getitem__(item)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or not isinstance(other, Composite):
            return NotImplemented
        mine, theirs = ((spec._shape, spec._device, spec._kind, spec._specs) for spec in (self, other))
        return mine == theirs

    __hash__ = None

    def __repr__(self) -> str:
        lines = [f"{name}: {spec!r}" for name, spec in self.items()]
        lines += [f"shape={list(self.shape)}", f"device={self.device}", f"kind={self.kind!r}"]
        return f"{self._title}(\n    " + ",\n".join(lines).replace("\n", "\n    ") + ")"


class _Keys:
    """The keys of a Composite, worked out when they are asked for."""

    def __init__(self, spec: Composite, include_nested: bool, leaves_only: bool):
        self._spec, self._include_nested, self._leaves_only = spec, include_nested, leaves_only

    def __iter__(self) -> Iterator[Key]:
        return (key for key, _ in self._spec.items(self._include_nested, self._leaves_only))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: Any) -> bool:
        path = as_path(key)
        found = self._spec.get(path, None) if self._include_nested or len(path) == 1 else None
        return found is not None and not (self._leaves_only and isinstance(found, Composite))

    def __repr__(self) -> str:
        return f"keys({list(self)})"


def _naming(name: str, convert: Callable[[Any], Any], value: Any) -> Any:
    """Return ``convert(value)``, with ``name`` put before the message of a SpecError."""
    try:
        return convert(value)
    except SpecError as error:
        raise SpecError(f"{name!r}: {error}") from error


def _dict_apart(value: Any, spec: Composite) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(f"value: got {type(value).__name__}, expected a dict with the keys {spec._names()}")
    parts = dict(value)
    for group, inner in _renamed(spec):
        parts[group] = {name: parts.pop(name) for name in inner._names() if name in parts}
    return parts


def _renamed(spec: Composite) -> Iterator[tuple[str, Composite]]:
    """Yield the groups of items that stand apart, and what they are under."""
    for name, inner in spec.items():
        if isinstance(inner, Composite) and inner.kind == "renamed":
            assert isinstance(name, str)
            yield name, inner


def _dict_together(parts: dict[str, Any], spec: Composite) -> Any:
    for group, _ in _renamed(spec):
        parts.update(parts.pop(group))
    return parts


def _tuple_apart(value: Any, spec: Composite) -> Mapping[str, Any]:
    if not isinstance(value, (tuple, list)):
        raise SpecError(f"value: got {type(value).__name__}, expected a tuple of {len(spec)}")
    return {str(i): item for i, item in enumerate(value)}


def _leaf_apart(value: Any, spec: Composite) -> Mapping[str, Any]:
    return {_only_name(spec): value}


def _tuple_together(parts: dict[str, Any], spec: Composite) -> Any:
    return tuple(parts[str(i)] for i in range(len(parts)))


def _leaf_together(parts: dict[str, Any], spec: Composite) -> Any:
    return parts[_only_name(spec)]


def _only_name(spec: Composite) -> str:
    if len(spec) != 1:
        raise SpecError(f"a Composite of kind 'leaf' has a value under one key, got the keys {spec._names()}")
    return spec._names()[0]


_TAKE_APART: dict[Kind, Callable[[Any, Composite], Mapping[str, Any]]] = {
    "dict": _dict_apart,
    "tuple": _tuple_apart,
    "leaf": _leaf_apart,
    "renamed": _dict_apart,
}
_PUT_TOGETHER: dict[Kind, Callable[[dict[str, Any], Composite], Any]] = {
    "dict": _dict_together,
    "tuple": _tuple_together,
    "leaf": _leaf_together,
    "renamed": _dict_together,
}
