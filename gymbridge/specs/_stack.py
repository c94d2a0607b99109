"""What lazy stacks are, be it of leaves or of Composites: one spec for each place along a dim."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from tensordict import is_tensor_collection

from gymbridge.errors import SpecError
from gymbridge.specs._base import TensorSpec, name_of
from gymbridge.specs._bridge import cartesian
from gymbridge.specs._entries import Entries
from gymbridge.specs._leaf import MAX_ENUMERATION
from gymbridge.specs._shapes import Indexing, as_dim, as_size, fits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from gymbridge.specs._bridge import DeviceLike
    from gymbridge.specs._shapes import Index, ShapeLike


def stacked_as(lazy: Callable[..., TensorSpec], specs: Sequence[TensorSpec], dim: int) -> Any:
    """Stack specs along a new batch dim: densely where they are equal, else as ``lazy(*specs, dim=dim)``.

    Raises:
        ValueError: no specs, or specs that cannot stand in one stack.
    """
    check_alike(specs)
    first = specs[0]
    dim = as_dim(dim, _shared_ndim(specs) + 1, "the stack")
    if any(spec != first for spec in specs[1:]):
        return lazy(*specs, dim=dim)
    single = first.unsqueeze(dim)
    batch = single._batch_shape
    return single._expand(torch.Size([*batch[:dim], len(specs), *batch[dim + 1 :]]))


def are_alike(specs: Sequence[TensorSpec]) -> bool:
    """Say whether specs can stand in one stack: all of tensors, all of data or all Composites.

    Data and Composites need as many dims each, which the values of a stack have in common. Tensors do not: where their
    numbers of dims differ, each is a leaf of its own row.

    Example:
        >>> from gymbridge.specs import Binary, Categorical, Composite
        >>> are_alike([Categorical(3), Binary(2)]), are_alike([Categorical(3), Composite()])
        (True, False)
    """
    return all(_nature(spec) == _nature(specs[0]) for spec in specs)


def _nature(spec: TensorSpec) -> tuple[bool, bool, int | None]:
    is_group = isinstance(spec, Entries)
    return is_group, spec._holds_data, spec.ndim if is_group or spec._holds_data else None


def check_alike(specs: Sequence[Any]) -> None:
    """Refuse specs that cannot stand in one stack.

    Raises:
        TypeError: one is no spec.
        ValueError: there are none, or one is not like the first.
    """
    if not specs:
        raise ValueError("a stack needs one spec at least")
    for spec in specs:
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"a stack is made of specs, got {type(spec).__name__}")
    for i, spec in enumerate(specs):
        if not are_alike([specs[0], spec]):
            one, other = (f"{each._title} of shape {list(each.shape)}" for each in (spec, specs[0]))
            raise ValueError(f"cannot stack spec {i}, {one}, with spec 0, {other}")


def _shared_ndim(specs: Sequence[TensorSpec]) -> int:
    return min(spec.ndim for spec in specs)


class Stack(TensorSpec):
    """What the lazy stacks of leaves and of Composites share: one spec for each place along ``dim``."""

    _members: list[Any]
    _dim: int

    def _init_stack(self, specs: Sequence[TensorSpec], dim: int) -> None:
        check_alike(specs)
        self._members = list(specs)
        self._dim = as_dim(dim, _shared_ndim(specs) + 1, self._title)
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
        """Shape of the stack: the dims, from the front, that all specs have, ``-1`` where they differ in size."""
        return self._merged([spec.shape for spec in self._members])

    @property
    def _batch_shape(self) -> torch.Size:
        return self._merged([spec._batch_shape for spec in self._members])

    def _merged(self, shapes: list[torch.Size]) -> torch.Size:
        dims = [sizes[0] if len(set(sizes)) == 1 else -1 for sizes in zip(*shapes, strict=False)]
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

        return self._stacked_at(picked(entry), dim)

    def _stacked_at(self, picked: Any, dim: int) -> Any:
        """Stack nested lists of specs, each level along ``dim``."""
        if not isinstance(picked, list):
            return picked
        if not picked:
            raise IndexError(f"{self._title}: the index leaves no spec")
        return stacked_as(type(self), [self._stacked_at(part, dim) for part in picked], dim)

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
        if type(other) is not type(self) or not isinstance(other, Stack):
            return NotImplemented
        return self._dim == other._dim and self._members == other._members

    __hash__ = None
