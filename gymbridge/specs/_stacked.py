"""Lazy stacks of specs that differ from one env to the next: ``Stacked``, ``StackedComposite``, ``stack_specs``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import TensorDictBase, is_tensor_collection

from gymbridge.errors import SpecError
from gymbridge.specs._base import TensorSpec, name_of
from gymbridge.specs._bridge import array_of, cartesian
from gymbridge.specs._composite import Composite
from gymbridge.specs._keys import as_path
from gymbridge.specs._leaf import MAX_ENUMERATION
from gymbridge.specs._shapes import Indexing, as_dim, as_size, fits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from gymbridge.specs._bridge import DeviceLike
    from gymbridge.specs._composite import Kind
    from gymbridge.specs._keys import Key
    from gymbridge.specs._shapes import Index, ShapeLike


def stack_specs(specs: Sequence[TensorSpec], dim: int = 0) -> Any:
    """Stack specs along a new batch dim: densely where they are equal, lazily where they are not.

    Args:
        specs: specs of tensors, or of TensorDicts, with as many dims each.
        dim: where the new dim goes; negative dims count from the end of the result's shape.

    Returns:
        A spec of the same kind, a ``Stacked`` or a ``StackedComposite``.

    Raises:
        ValueError: no specs, or specs that cannot stand in one stack.

    Example:
        >>> from gymbridge.specs import Categorical
        >>> stack_specs([Categorical(3), Categorical(3)]) == Categorical(3, (2,))
        True
        >>> stack_specs([Categorical(3), Categorical(4)]).shape
        torch.Size([2])
    """
    specs = list(specs)
    _check_alike(specs)
    first = specs[0]
    dim = as_dim(dim, first.ndim + 1, "the stack")
    if all(spec == first for spec in specs[1:]):
        single = first.unsqueeze(dim)
        batch = single._batch_shape
        return single._expand(torch.Size([*batch[:dim], len(specs), *batch[dim + 1 :]]))
    return (StackedComposite if isinstance(first, Composite) else Stacked)(*specs, dim=dim)


def _check_alike(specs: Sequence[Any]) -> None:
    if not specs:
        raise ValueError("a stack needs one spec at least")
    for spec in specs:
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"a stack is made of specs, got {type(spec).__name__}")
    first = specs[0]
    for i, spec in enumerate(specs):
        if isinstance(spec, Composite) != isinstance(first, Composite) or spec._holds_data != first._holds_data:
            raise ValueError(f"cannot stack spec {i}, {spec._title}, with spec 0, {first._title}")
        if spec.ndim != first.ndim:
            raise ValueError(f"cannot stack spec {i} of shape {list(spec.shape)} with spec 0 of {list(first.shape)}")


class _Stack(TensorSpec):
    """What the lazy stacks of leaves and of Composites share: one spec for each place along ``dim``."""

    _members: list[Any]
    _dim: int

    def _init_stack(self, specs: Sequence[TensorSpec], dim: int) -> None:
        _check_alike(specs)
        self._members = list(specs)
        self._dim = as_dim(dim, specs[0].ndim + 1, self._title)
        if any(self._dim > len(spec._batch_shape) for spec in specs):
            raise ValueError(f"{self._title}: dim {dim} is not among the batch dims of its specs")

    @property
    def dim(self) -> int:
        """The dim along which specs differ, counted from the front."""
        return self._dim

    @property
    def stack_dim(self) -> int:
        """The dim along which specs differ, by TensorDict's name."""
        return self._dim

    @property
    def specs(self) -> list[Any]:
        """The specs, one for each place along ``dim``."""
        return list(self._members)

    @property
    def shape(self) -> torch.Size:
        """Shape of the stack; a dim in which the specs differ is ``-1``."""
        return self._merged([spec.shape for spec in self._members])

    @property
    def _batch_shape(self) -> torch.Size:
        batches = [spec._batch_shape for spec in self._members]
        shared = min(map(len, batches))
        return self._merged([batch[:shared] for batch in batches])

    def _merged(self, shapes: list[torch.Size]) -> torch.Size:
        dims = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=True)]
        return torch.Size([*dims[: self._dim], len(shapes), *dims[self._dim :]])

    @property
    def device(self) -> torch.device | None:
        """The device of all specs, None where they have not got one in common."""
        devices = {spec.device for spec in self._members}
        return devices.pop() if len(devices) == 1 else None

    @property
    def is_dynamic(self) -> bool:
        """Whether one of the specs is dynamic; that they differ makes none of them so."""
        return any(spec.is_dynamic for spec in self._members)

    # -- values

    def _stack_values(self, values: list[Any], dim: int) -> Any:
        return self._members[0]._stack_values(values, dim)

    def _gathered(self, values: list[Any], lead: int) -> Any:
        return self._members[0]._stack_values(values, self._dim + lead)

    def rand(self, shape: ShapeLike = ()) -> Any:
        """Draw a value of each spec, stacked."""
        lead = as_size(shape)
        return self._gathered([spec.rand(lead) for spec in self._members], len(lead))

    def zero(self, shape: ShapeLike = ()) -> Any:
        """Return the zeros of each spec, stacked."""
        lead = as_size(shape)
        return self._gathered([spec.zero(lead) for spec in self._members], len(lead))

    def one(self, shape: ShapeLike = ()) -> Any:
        """Return the ones of each spec, stacked."""
        lead = as_size(shape)
        return self._gathered([spec.one(lead) for spec in self._members], len(lead))

    def faults(self, value: Any, key: tuple[str, ...] = (), batch_dims: int | None = None) -> list[str]:
        """List what is wrong with ``value``, place by place along ``dim``."""
        name = name_of(key)
        if not isinstance(value, torch.Tensor) and not is_tensor_collection(value):
            return [f"{name}: got {type(value).__name__}, expected a value of {self._title}"]
        lead, batch = value.ndim - self.ndim, self.shape
        if lead < 0 or batch_dims not in (None, lead) or not fits(value.shape[lead:], batch):
            after = "" if batch_dims is None else f" after {batch_dims} batch dims"
            return [f"{name}: shape: got {list(value.shape)}, expected {list(batch)}{after}"]
        return [
            f"row {row}: {fault}"
            for row, (spec, part) in enumerate(zip(self._members, value.unbind(self._dim + lead), strict=True))
            for fault in spec.faults(part, key, lead)
        ]

    def _parts(self, value: Any) -> tuple[tuple[Any, ...], int]:
        """Return the value for each spec, and how many leading dims it has beyond this spec's shape."""
        if not isinstance(value, torch.Tensor) and not is_tensor_collection(value):
            raise SpecError(f"value: got {type(value).__name__}, expected a value of {self._title}")
        lead = value.ndim - self.ndim
        if lead < 0 or value.shape[lead + self._dim] != len(self._members):
            raise SpecError(f"value: shape: got {list(value.shape)}, expected {list(self.shape)}")
        return value.unbind(self._dim + lead), lead

    def project(self, value: Any) -> Any:
        """Return the nearest value that is in the spec, place by place along ``dim``."""
        parts, lead = self._parts(value)
        return self._gathered([spec.project(part) for spec, part in zip(self._members, parts, strict=True)], lead)

    def _members_of(self, value: Any) -> Any:
        if not isinstance(value, (list, tuple)) or len(value) != len(self._members):
            got = f"{len(value)} values" if isinstance(value, (list, tuple)) else type(value).__name__
            raise SpecError(f"value: got {got}, expected a list of one value for each of {len(self._members)} specs")
        return value

    def encode(self, value: Any) -> Any:
        """Return the stack of values of the space, given as a list of one for each spec."""
        encoded = [spec.encode(part) for spec, part in zip(self._members, self._members_of(value), strict=True)]
        return self._gathered(encoded, encoded[0].ndim - self._members[0].ndim)

    def to_numpy(self, value: Any) -> Any:
        """Return the space's values of a stack, a list of one for each spec: the inverse of ``encode``."""
        parts, _ = self._parts(value)
        return [spec.to_numpy(part) for spec, part in zip(self._members, parts, strict=True)]

    def cardinality(self) -> int | float:
        """Return the number of values: each spec's, multiplied."""
        counts: list[int | float] = [spec.cardinality() for spec in self._members]
        return math.prod(counts)

    def enumerate(self, use_mask: bool = False) -> Any:
        """Return every combination of the specs' values, along a new first dim.

        Args:
            use_mask: leave masked values out.
        """
        columns = [spec.enumerate(use_mask) for spec in self._members]
        if math.prod(map(len, columns)) > MAX_ENUMERATION:
            raise NotImplementedError(f"{self._title} has {self.cardinality()} values, too many to list")
        picks = cartesian([torch.arange(len(column)) for column in columns])
        return self._gathered([column[picks[:, i].to(column.device)] for i, column in enumerate(columns)], 1)

    # -- other specs

    def _restacked(self, specs: Sequence[TensorSpec], dim: int) -> Self:
        return type(self)(*specs, dim=dim)  # type: ignore[call-arg]  # both subclasses take these

    def clone(self) -> Self:
        """Return a copy that can be changed without a change to this one."""
        return self._restacked([spec.clone() for spec in self._members], self._dim)

    def to(self, dest: torch.dtype | DeviceLike) -> Self:
        """Return this stack on another device, or with another dtype."""
        return self._restacked([spec.to(dest) for spec in self._members], self._dim)

    def _expand(self, batch: torch.Size) -> Self:
        lead = len(batch) - len(self._batch_shape)
        dim = self._dim + lead
        rest = [*batch[:dim], *batch[dim + 1 :]]
        specs = self._members
        if batch[dim] not in (-1, len(specs)):
            specs = specs * batch[dim]  # a stack of one, or ``expand`` would have refused

        def grown(spec: TensorSpec) -> TensorSpec:
            own = spec._batch_shape
            kept = [own[i - lead] if i >= lead and size == -1 else size for i, size in enumerate(rest)]
            return spec._expand(torch.Size([*kept, *own[len(rest) - lead :]]))

        return self._restacked([grown(spec) for spec in specs], dim)

    def _squeeze(self, dims: tuple[int, ...]) -> Any:
        others = tuple(dim - (dim > self._dim) for dim in dims if dim != self._dim)
        specs = [spec._squeeze(others) for spec in self._members]
        if self._dim in dims:
            return specs[0]
        return self._restacked(specs, self._dim - sum(dim < self._dim for dim in dims))

    def _unsqueeze(self, dim: int) -> Self:
        after = dim > self._dim
        return self._restacked([spec._unsqueeze(dim - after) for spec in self._members], self._dim + (not after))

    def _reshape(self, batch: torch.Size) -> Self:
        raise NotImplementedError(f"{self._title} of shape {list(self.shape)} cannot be reshaped: its specs differ")

    def _index(self, index: Index) -> Any:
        at, entry = self._place(index)
        before, after = index[:at], index[at + 1 :]
        has_tensor = [any(isinstance(e, torch.Tensor) for e in part) for part in (before, after)]
        if (isinstance(entry, (int, torch.Tensor)) and any(has_tensor)) or all(has_tensor):
            raise NotImplementedError(
                f"{self._title}: an index tensor for dim {self._dim} of a stack must be the only one"
            )
        dim = len(Indexing(before, self._batch_shape[: self._dim]).shape)
        rest = (*before, *after)

        def picked(entry: Any) -> Any:
            if isinstance(entry, slice):
                return [member(i) for i in range(*entry.indices(len(self._members)))]
            if isinstance(entry, int):
                return member(entry)
            return [picked(part) for part in entry] if entry.ndim else member(int(entry))

        def member(i: int) -> Any:
            return self._members[i]._index(rest) if rest else self._members[i]

        return _stacked_at(picked(entry), dim, self._title)

    def _place(self, index: Index) -> tuple[int, Any]:
        """Return where in ``index`` the entry for the stack's dim is, and that entry."""
        dim = 0
        for at, entry in enumerate(index):
            if entry is not None:
                if dim == self._dim:
                    return at, entry
                dim += 1
        return len(index), slice(None)

    def unbind(self, dim: int = 0) -> tuple[TensorSpec, ...]:
        """Return the specs along batch dim ``dim``."""
        if as_dim(dim, len(self._batch_shape), self._title) == self._dim:
            return tuple(self._members)
        return super().unbind(dim)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or not isinstance(other, _Stack):
            return NotImplemented
        return self._dim == other._dim and self._members == other._members

    __hash__ = None


def _stacked_at(picked: Any, dim: int, title: str) -> Any:
    """Stack nested lists of specs, each level along ``dim``."""
    if not isinstance(picked, list):
        return picked
    if not picked:
        raise IndexError(f"{title}: the index leaves no spec")
    return stack_specs([_stacked_at(part, dim, title) for part in picked], dim)


class Stacked(_Stack):
    """A lazy stack of specs of one tensor each, which differ along ``dim``.

    A dim in which the specs differ is ``-1`` in ``shape``. A value is one tensor, so that specs of different shapes
    or dtypes have values in a ``StackedComposite`` only.

    Args:
        *specs: the specs, of as many dims each.
        dim: where the new dim goes.

    Raises:
        ValueError: no specs, or specs that cannot stand in one stack.

    Example:
        >>> import torch
        >>> from gymbridge.specs import Categorical
        >>> spec = Stacked(Categorical(2), Categorical(9), dim=0)
        >>> spec.is_in(torch.tensor([1, 8])), spec.is_in(torch.tensor([8, 1])), spec[1].n
        (True, False, 9)
    """

    def __init__(self, *specs: TensorSpec, dim: int):
        self._init_stack(specs, dim)
        if any(isinstance(spec, Composite) for spec in specs):
            raise TypeError("Stacked is a stack of leaves; use StackedComposite for Composites")

    @property
    def dtype(self) -> torch.dtype | None:
        """dtype of all specs, None where they have not got one in common."""
        dtypes = {spec.dtype for spec in self._members}
        return dtypes.pop() if len(dtypes) == 1 else None

    @property
    def _holds_data(self) -> bool:
        return bool(self._members[0]._holds_data)

    def _gathered(self, values: list[Any], lead: int) -> Any:
        forms = {(tuple(value.shape), getattr(value, "dtype", None)) for value in values}
        if len(forms) > 1 and not self._holds_data:
            raise SpecError(
                f"no tensor holds values of a Stacked whose specs differ in shape or dtype: {sorted(map(str, forms))}"
            )
        return super()._gathered(values, lead)

    @property
    def _space_ndim(self) -> int:
        return 1 + int(self._members[0]._space_ndim)

    def encode(self, value: Any) -> Any:
        """Return the tensor for values of the space, an array (or nested list) with the stack's dim at its place."""
        if self._holds_data:
            return super().encode(value)
        array = array_of(value) if isinstance(value, torch.Tensor) else np.asarray(value)
        lead = array.ndim - self._space_ndim
        if lead < 0 or array.shape[lead + self._dim] != len(self._members):
            raise SpecError(f"value: got shape {list(array.shape)}, expected {len(self._members)} in dim {self._dim}")
        parts = np.moveaxis(array, lead + self._dim, 0)
        return self._gathered([spec.encode(part) for spec, part in zip(self._members, parts, strict=True)], lead)

    def to_numpy(self, value: Any) -> Any:
        """Return the space's values of a tensor, an array with the stack's dim at its place."""
        parts = super().to_numpy(value)
        if self._holds_data:
            return parts
        return np.stack(parts, np.ndim(parts[0]) - self._space_ndim + 1 + self._dim)

    def update_mask(self, mask: Any) -> None:
        """Allow some values only.

        Args:
            mask: one mask for each spec, or a tensor with the stack's dim first; None allows all.

        Raises:
            TypeError: one of the specs has no masks.
            ValueError: there are not as many masks as specs.
        """
        for spec in self._members:
            if not hasattr(spec, "update_mask"):
                raise TypeError(f"{spec._title} has no masks")
        if mask is not None and len(mask) != len(self._members):
            raise ValueError(f"mask: got {len(mask)}, expected one for each of {len(self._members)} specs")
        for i, spec in enumerate(self._members):
            spec.update_mask(None if mask is None else mask[i])

    def __repr__(self) -> str:
        lines = [f"{i}: {spec!r}" for i, spec in enumerate(self._members)]
        lines += [f"dim={self._dim}", f"shape={list(self.shape)}"]
        return f"{self._title}(\n    " + ",\n".join(lines).replace("\n", "\n    ") + ")"


class StackedComposite(_Stack, Composite):
    """A lazy stack of Composites, which differ along ``dim``; its values are lazy stacks of TensorDicts.

    Its keys are those that all specs have. An entry that is a Composite everywhere is a ``StackedComposite`` of the
    specs' own; any other entry is stacked anew, densely where it is equal everywhere.

    Args:
        *specs: the Composites, of as many dims each.
        dim: where the new dim goes.

    Raises:
        ValueError: no specs, or specs that cannot stand in one stack.

    Example:
        >>> from gymbridge.specs import Composite
        >>> from gymbridge.specs import Binary, Unbounded
        >>> spec = StackedComposite(Composite(a=Binary(1)), Composite(a=Binary(1), b=Unbounded(2)), dim=0)
        >>> list(spec.keys()), type(spec.rand()).__name__, list(spec[1].keys())
        (['a'], 'LazyStackedTensorDict', ['a', 'b'])
    """

    def __init__(self, *specs: TensorSpec, dim: int):
        self._init_stack(specs, dim)
        if not all(isinstance(spec, Composite) for spec in specs):
            raise TypeError("StackedComposite is a stack of Composites; use Stacked for leaves")

    @property
    def kind(self) -> Kind:
        """What kind of space the specs came from, ``"dict"`` where they differ."""
        kinds = {spec.kind for spec in self._composites}
        return kinds.pop() if len(kinds) == 1 else "dict"

    @property
    def _composites(self) -> list[Composite]:
        return self._members

    def _names(self) -> list[str]:
        first, *others = (spec._names() for spec in self._composites)
        return [name for name in first if all(name in other for other in others)]

    def _entry(self, name: str) -> TensorSpec:
        entries = [spec._entry(name) for spec in self._composites]
        if all(isinstance(entry, Composite) for entry in entries):
            return StackedComposite(*entries, dim=self._dim)
        stacked: TensorSpec = stack_specs(entries, self._dim)
        return stacked

    def set(self, key: Key, spec: TensorSpec | Mapping[Any, Any]) -> Self:
        """Put ``spec``, whose batch dims begin with this one's, under ``key``: each part in its own Composite."""
        path = as_path(key)
        self._check_unlocked(f"set {name_of(path)}")
        if not isinstance(spec, TensorSpec):
            spec = Composite(spec, shape=self.shape)
        if not fits(spec._batch_shape[: self.ndim], self.shape):
            raise ValueError(
                f"entry {name_of(path)}: got {spec._title} with batch dims {list(spec._batch_shape)}, "
                f"expected batch dims that begin with {list(self.shape)}"
            )
        parts = spec.unbind(self._dim)
        for members in (self.clone()._composites, self._composites):  # tried on a copy, so that it is done whole or not
            for member, part in zip(members, parts, strict=True):
                member.set(path, part)
        return self

    def __delitem__(self, key: Key) -> None:
        path = as_path(key)
        self._check_unlocked(f"delete {name_of(path)}")
        self.get(path)
        for member in self._composites:
            del member[path]

    def select(self, *keys: Key, strict: bool = True) -> Self:
        """Return a stack with the given entries only."""
        return self._restacked([spec.select(*keys, strict=strict) for spec in self._composites], self._dim)

    def exclude(self, *keys: Key) -> Self:
        """Return a stack without the given entries."""
        return self._restacked([spec.exclude(*keys) for spec in self._composites], self._dim)

    def empty(self) -> Self:
        """Return a stack of specs without entries."""
        return self._restacked([spec.empty() for spec in self._composites], self._dim)

    @property
    def is_locked(self) -> bool:
        """Whether entries can neither be set nor removed."""
        return any(spec.is_locked for spec in self._composites)

    def _set_lock(self, is_locked: bool) -> Self:
        for spec in self._composites:
            spec._set_lock(is_locked)
        return self

    def faults(self, value: Any, key: tuple[str, ...] = (), batch_dims: int | None = None) -> list[str]:
        """List what is wrong with ``value``, place by place along ``dim``."""
        if not isinstance(value, TensorDictBase):
            return [f"{name_of(key)}: got {type(value).__name__}, expected a TensorDict"]
        return super().faults(value, key, batch_dims)

    def __repr__(self) -> str:
        shared = self._names()
        lines = [f"{name}: {spec!r}" for name, spec in self.items()]
        for i, member in enumerate(self._composites):
            lines += [f"{i} -> {name}: {spec!r}" for name, spec in member.items() if name not in shared]
        lines += [f"dim={self._dim}", f"shape={list(self.shape)}", f"device={self.device}", f"kind={self.kind!r}"]
        return f"{self._title}(\n    " + ",\n".join(lines).replace("\n", "\n    ") + ")"
