"""The part of ``Composite`` that is a mapping: entries under keys, and the lock that keeps them as they are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gymbridge.specs._base import TensorSpec, name_of
from gymbridge.specs._keys import as_path

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from gymbridge.specs._composite import Kind
    from gymbridge.specs._keys import Key

_NO_DEFAULT = object()


class Entries(TensorSpec):
    """Specs under names; a spec with specs of its own is reached into with a path of names.

    Example:
        >>> from gymbridge.specs import Binary, Composite
        >>> spec = Composite(arm={"grip": Binary(1)})
        >>> isinstance(spec, Entries), "arm" in spec, ("arm", "grip") in spec, spec.lock_().is_locked
        (True, True, True, True)
    """

    _specs: dict[str, TensorSpec]
    _is_locked: bool

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """What kind of space the entries came from."""

    @abstractmethod
    def _group(self, entries: Mapping[Any, Any]) -> Entries:
        """Return a new spec of ``entries`` that can stand in this one."""

    @abstractmethod
    def _like(self, specs: Mapping[str, TensorSpec], shape: torch.Size, device: torch.device | None) -> Self:
        """Return an unlocked spec of the same kind from entries that are known to fit."""

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
            is_nested = isinstance(spec, Entries)
            if not (is_nested and leaves_only):
                yield name, spec
            if is_nested and include_nested:
                assert isinstance(spec, Entries)
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
            if not isinstance(found, Entries) or name not in found._names():
                if default is not _NO_DEFAULT:
                    return default
                place = name_of(path[:depth]) if depth else "the spec"
                raise KeyError(f"no entry {name_of(path)}: {place} has {_outline(found)}")
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
                inner = self._group({})
            if not isinstance(inner, Entries):
                raise KeyError(f"cannot set {name_of(path)}: {path[0]!r} is a leaf, {inner._title}")
            inner.set(path[1:], spec)
            self._specs[path[0]] = inner
            return self
        if isinstance(spec, Mapping):
            spec = self._group(spec)
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"entry {name_of(path)}: expected a spec, got {type(spec).__name__}")
        if tuple(spec._batch_shape[: self.ndim]) != tuple(self.shape):
            raise ValueError(
                f"entry {name_of(path)}: got {spec._title} of shape {list(spec.shape)} with batch dims "
                f"{list(spec._batch_shape)}, expected batch dims that begin with {list(self.shape)}"
            )
        self._specs[path[0]] = spec if self.device is None else spec.to(self.device)
        return self

    def __setitem__(self, key: Key, spec: TensorSpec | Mapping[Any, Any]) -> None:
        self.set(key, spec)

    def update(self, other: Entries | Mapping[Any, Any]) -> Self:
        """Put in every entry of ``other``; nested Composites are updated rather than replaced.

        One that is updated with a ``StackedComposite`` becomes one, so that each row gets its own entries.

        Raises:
            KeyError, TypeError, ValueError, RuntimeError: as ``set``, before anything is changed.
            ValueError: ``other`` is a ``StackedComposite`` that has entries in some of its rows only.
        """
        self._check_unlocked("update")
        self._rehearsal()._update(other)
        return self._update(other)

    def _update(self, other: Entries | Mapping[Any, Any]) -> Self:
        if isinstance(other, Entries) and (rows := other._row_names()):
            raise ValueError(
                f"cannot update {self._title} with {other._title}: these entries are in some rows only: {rows}"
            )
        for key, spec in other.items():
            mine = self.get(key, None)
            if isinstance(mine, Entries) and isinstance(spec, (Entries, Mapping)):
                mine._check_unlocked(f"update {name_of(as_path(key))}")
                target = spec._split_alike(mine) if isinstance(spec, Entries) else mine
                target._update(spec)
                if target is not mine:
                    self.set(key, target)
            else:
                self.set(key, spec)
        return self

    def _row_names(self) -> dict[str, list[int]]:
        """Return the names of entries that some rows have and others have not, with those rows."""
        return {}

    def _split_alike(self, other: Entries) -> Entries:
        """Return ``other`` split into rows as this spec is, so that it can take this one's entries."""
        return other

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
            if self._reaches(path):
                groups.setdefault(path[0], []).append(path[1:])
            elif strict:
                self.get(path)
        kept: dict[str, TensorSpec] = {}
        for name in self._names():
            if rest := groups.get(name):
                spec = self._entry(name)
                if isinstance(spec, Entries) and () not in rest:
                    kept[name] = spec.select(*rest, strict=strict)
                else:
                    kept[name] = spec.clone()
        return self._like(kept, self.shape, self.device)

    def _reaches(self, path: tuple[str, ...]) -> bool:
        """Say whether there is an entry at ``path``, be it in some rows only."""
        if path[0] not in self._names():
            return False
        spec = self._entry(path[0])
        return len(path) == 1 or (isinstance(spec, Entries) and spec._reaches(path[1:]))

    def exclude(self, *keys: Key) -> Self:
        """Return a spec with copies of all but the given entries; those that are missing are passed over."""
        paths = [as_path(key) for key in keys]
        kept: dict[str, TensorSpec] = {}
        for name in self._names():
            rest = [path[1:] for path in paths if path[0] == name]
            spec = self._entry(name)
            if () not in rest:
                kept[name] = spec.exclude(*rest) if rest and isinstance(spec, Entries) else spec.clone()
        return self._like(kept, self.shape, self.device)

    def is_empty(self, recurse: bool = False) -> bool:
        """Say whether there is no entry, or (``recurse``) no leaf."""
        if not recurse:
            return not self._names()
        return not any(True for _ in self.items(include_nested=True, leaves_only=True))

    def empty(self) -> Self:
        """Return a spec without entries, with the same shape, device and kind."""
        return self._like({}, self.shape, self.device)

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
            if isinstance(spec, Entries):
                spec._set_lock(is_locked)
        return self

    def _rehearsal(self) -> Self:
        """Return a copy, locked alike, on which a change is tried first, so that it is done whole or not at all."""
        twin = self.clone()
        twin._lock_as(self)
        return twin

    def _lock_as(self, other: Entries) -> None:
        """Lock what is locked in ``other``, which has the same entries."""
        self._is_locked = other._is_locked
        for name, spec in self._specs.items():
            if isinstance(spec, Entries):
                theirs = other._specs[name]
                assert isinstance(theirs, Entries)
                spec._lock_as(theirs)

    def _check_unlocked(self, what: str) -> None:
        if self.is_locked:
            raise RuntimeError(f"cannot {what}: the spec is locked; call unlock_() first, or change a clone()")


def _outline(spec: TensorSpec) -> str:
    """Return what entries there are, for messages."""
    if not isinstance(spec, Entries):
        return f"{spec._title}, which is a leaf"
    rows = spec._row_names()
    return f"{spec._names()}" + (f", and in some rows only {rows}" if rows else "")


class _Keys:
    """Keys of a spec, worked out when they are asked for."""

    def __init__(self, spec: Entries, include_nested: bool, leaves_only: bool):
        self._spec, self._include_nested, self._leaves_only = spec, include_nested, leaves_only

    def __iter__(self) -> Iterator[Key]:
        return (key for key, _ in self._spec.items(self._include_nested, self._leaves_only))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: Any) -> bool:
        path = as_path(key)
        found = self._spec.get(path, None) if self._include_nested or len(path) == 1 else None
        return found is not None and not (self._leaves_only and isinstance(found, Entries))

    def __repr__(self) -> str:
        return f"keys({list(self)})"
