"""``StackedComposite``: a lazy stack of Composites."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase

from gymbridge.specs._base import TensorSpec, name_of
from gymbridge.specs._composite import Composite
from gymbridge.specs._keys import as_path
from gymbridge.specs._shapes import fits
from gymbridge.specs._stack import Stack, are_alike, stacked_as
from gymbridge.specs._stacked import Stacked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from gymbridge.specs._composite import Kind
    from gymbridge.specs._entries import Entries
    from gymbridge.specs._keys import Key


class StackedComposite(Stack, Composite):
    """A lazy stack of Composites, which differ along ``dim``; its values are lazy stacks of TensorDicts.

    Its keys are those under which all specs have entries that can stand in one stack. An entry that is a Composite
    everywhere is a ``StackedComposite`` of the specs' own; any other entry is stacked anew, densely where it is equal
    everywhere. What else a spec has is found in it alone (``spec[1]["b"]``), and in its row of a value.

    Only a lazy stack takes such a value in with ``update``: a dense TensorDict would make one tensor of each leaf that
    all rows have, and leave out the others.

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
        shared = [name for name in first if all(name in other for other in others)]
        return [name for name in shared if are_alike([spec._entry(name) for spec in self._composites])]

    def _row_names(self) -> dict[str, list[int]]:
        """Return the names that are not keys of the stack, and the places of the specs that have them."""
        shared = self._names()
        rows: dict[str, list[int]] = {}
        for row, spec in enumerate(self._composites):
            for name in spec._names():
                if name not in shared:
                    rows.setdefault(name, []).append(row)
        return rows

    def _entry(self, name: str) -> TensorSpec:
        entries = [spec._entry(name) for spec in self._composites]
        if all(isinstance(entry, Composite) for entry in entries):
            return StackedComposite(*entries, dim=self._dim)
        stacked: TensorSpec = stacked_as(Stacked, entries, self._dim)
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
        for members in (self._rehearsal()._composites, self._composites):
            for member, part in zip(members, parts, strict=True):
                member.set(path, part)
        return self

    def _update(self, other: Entries | Mapping[Any, Any]) -> Self:
        if not isinstance(other, Composite) or not fits(other.shape[: self.ndim], self.shape):
            if isinstance(other, StackedComposite):
                raise _unlike_rows(self, other)
            other = Composite(dict(other.items()), shape=self.shape)
        for member, part in zip(self._composites, other.unbind(self._dim), strict=True):
            assert isinstance(part, Composite)
            member._update(part)
        return self

    def _split_alike(self, other: Entries) -> Entries:
        if self._dim >= other.ndim or not fits(self.shape[: other.ndim], other.shape):
            raise _unlike_rows(other, self)
        if isinstance(other, StackedComposite) and other._dim == self._dim:
            return other
        return StackedComposite(*other.unbind(self._dim), dim=self._dim)

    def _reaches(self, path: tuple[str, ...]) -> bool:
        return any(spec._reaches(path) for spec in self._composites)

    def __delitem__(self, key: Key) -> None:
        path = as_path(key)
        self._check_unlocked(f"delete {name_of(path)}")
        self.get(path)
        for member in self._composites:
            del member[path]

    def select(self, *keys: Key, strict: bool = True) -> Self:
        """Return a stack with the given entries only, which all specs must have if ``strict``."""
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

    def _lock_as(self, other: Entries) -> None:
        assert isinstance(other, StackedComposite)
        for member, theirs in zip(self._composites, other._composites, strict=True):
            member._lock_as(theirs)

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


def _unlike_rows(spec: Entries, stack: StackedComposite) -> ValueError:
    return ValueError(
        f"cannot update {spec._title} of shape {list(spec.shape)} with {stack._title} of shape {list(stack.shape)}"
    )
