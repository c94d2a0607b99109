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
from gymbridge.specs._entries import Entries
from gymbridge.specs._keys import is_key
from gymbridge.specs._kinds import put_together, taken_apart
from gymbridge.specs._leaf import MAX_ENUMERATION
from gymbridge.specs._shapes import Indexing, as_size, concrete, fits_end

if TYPE_CHECKING:
    from typing_extensions import Self

    from gymbridge.specs._bridge import DeviceLike
    from gymbridge.specs._shapes import Index, ShapeLike

Kind: TypeAlias = Literal["dict", "tuple", "leaf", "renamed"]


class Composite(Entries):
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

    def _group(self, entries: Mapping[Any, Any]) -> Composite:
        return Composite(entries, shape=self._shape, device=self._device)

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

    # -- values

    def _build(self, shape: ShapeLike, leaf: Callable[[TensorSpec, torch.Size], Any]) -> Any:
        lead = as_size(shape)
        source = {name: leaf(spec, lead) for name, spec in self._specs.items()}
        return TensorDict(source, batch_size=[*lead, *concrete(self._shape)], device=self._device)

    def rand(self, shape: ShapeLike = ()) -> Any:
        """Draw a TensorDict of batch size ``[*shape, *self.shape]`` with torch's generator; dynamic dims get size 1."""
        return self._build(shape, lambda spec, lead: spec.rand(lead))

    def zero(self, shape: ShapeLike = ()) -> Any:
        """Return a TensorDict of zeros, of batch size ``[*shape, *self.shape]``; dynamic dims get size 1."""
        return self._build(shape, lambda spec, lead: spec.zero(lead))

    def one(self, shape: ShapeLike = ()) -> Any:
        """Return a TensorDict of ones, of batch size ``[*shape, *self.shape]``; dynamic dims get size 1."""
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
        for name in value.keys():  # a TensorDict iterates over its rows
            if name not in self._specs:
                found.append(f"{name_of((*key, name))}: extra, expected only {self._names()}")
        return found

    def _faults_of_rows(self, value: LazyStackedTensorDict, key: tuple[str, ...], lead: int) -> list[str]:
        lead -= value.stack_dim < lead
        return [
            f"row {row}: {fault}"
            for row, (spec, part) in enumerate(self._rows(value))
            for fault in spec.faults(part, key, lead)
        ]

    def _rows(self, value: LazyStackedTensorDict) -> Iterator[tuple[TensorSpec, Any]]:
        """Return the spec and the value of each row; rows may differ in keys and, along dynamic dims, in shape."""
        rows, lead = value.unbind(value.stack_dim), value.batch_dims - self.ndim
        specs: tuple[TensorSpec, ...]
        if value.stack_dim < lead:
            specs = (self,) * len(rows)
        elif self._shape[value.stack_dim - lead] == -1:
            at: Index = (*[slice(None)] * (value.stack_dim - lead), 0)
            specs = (self._index(at),) * len(rows)
        else:
            specs = self.unbind(value.stack_dim - lead)
        return zip(specs, rows, strict=True)

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
        if isinstance(value, LazyStackedTensorDict):
            if not fits_end(value.batch_size, self._shape):
                raise SpecError(f"value: batch size: got {list(value.batch_size)}, expected {list(self._shape)}")
            return LazyStackedTensorDict.lazy_stack(
                [spec.project(row) for spec, row in self._rows(value)], value.stack_dim
            )
        moved = value.copy()
        for name, spec in self._specs.items():
            moved.set(name, _naming(name, spec.project, value.get(name)))
        return moved

    def encode(self, value: Any) -> Any:
        """Return the TensorDict for a value of the space: a dict, a tuple or a bare value as ``kind`` says.

        Raises:
            SpecError: keys are missing or too many, or a leaf does not fit (the message names its key).
        """
        source = taken_apart(value, self)
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
        return put_together(parts, self)

    def cardinality(self) -> int | float:
        """Return the number of values: the entries' numbers, multiplied."""
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

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        lines = [f"{name}: {spec!r}" for name, spec in self.items()]
        lines += [f"shape={list(self.shape)}", f"device={self.device}", f"kind={self.kind!r}"]
        return f"{self._title}(\n    " + ",\n".join(lines).replace("\n", "\n    ") + ")"


def _naming(name: str, convert: Callable[[Any], Any], value: Any) -> Any:
    """Return ``convert(value)``, with ``name`` put before the message of a SpecError."""
    try:
        return convert(value)
    except SpecError as error:
        raise SpecError(f"{name!r}: {error}") from error
