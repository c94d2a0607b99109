"""Shapes with dynamic (``-1``) dims, and what indexing, expanding and the like make of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ShapeLike: TypeAlias = "int | Iterable[int]"
Index: TypeAlias = "tuple[int | slice | torch.Tensor | None, ...]"

_STAND_INS = (1 << 16, (1 << 16) + 1)
"""Two sizes for a dynamic dim: what differs between them after an operation is dynamic afterwards too."""


def as_size(shape: ShapeLike) -> torch.Size:
    """Return ``shape`` as a ``torch.Size``; one int is a shape of one dim, ``-1`` is a dynamic dim.

    Example:
        >>> as_size(3), as_size([2, -1])
        (torch.Size([3]), torch.Size([2, -1]))
    """
    dims = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    for dim in dims:
        if isinstance(dim, bool) or not isinstance(dim, (int, np.integer)) or dim < -1:
            raise ValueError(f"a shape is made of ints >= -1, got {dim!r} in {dims}")
    return torch.Size([int(dim) for dim in dims])


def size_of_args(args: tuple[Any, ...]) -> torch.Size:
    """Return the size in ``f(2, 3)`` and in ``f((2, 3))`` alike."""
    return as_size(args[0] if len(args) == 1 and not isinstance(args[0], (int, np.integer)) else args)


def concrete(shape: Sequence[int]) -> torch.Size:
    """Return ``shape`` with dynamic dims of size 1, which is what is drawn for them."""
    return torch.Size([1 if dim == -1 else dim for dim in shape])


def fits(got: Sequence[int], expected: Sequence[int]) -> bool:
    """Say whether ``got`` is ``expected``, where a dynamic dim takes any size."""
    return len(got) == len(expected) and all(b in (-1, a) for a, b in zip(got, expected, strict=True))


def fits_end(got: Sequence[int], expected: Sequence[int]) -> bool:
    """Say whether ``got`` is ``expected`` after any number of leading dims."""
    return len(got) >= len(expected) and fits(got[len(got) - len(expected) :], expected)


def as_dim(dim: int, ndim: int, what: str) -> int:
    """Return ``dim`` counted from the front."""
    if not -ndim <= dim < ndim:
        raise IndexError(f"dim {dim} is out of range for {what}, expected {-ndim} to {ndim - 1}")
    return dim % ndim


def expanded(old: torch.Size, new: torch.Size, what: str) -> torch.Size:
    """Return the shape that ``expand(new)`` gives: ``-1`` keeps an old dim, and makes a new leading dim dynamic."""
    lead = len(new) - len(old)
    kept = [a if b == -1 or a == b else b if a == 1 else None for a, b in zip(old, new[max(lead, 0) :], strict=False)]
    if lead < 0 or None in kept:
        raise ValueError(f"cannot expand {what} of shape {list(old)} to {list(new)}")
    return torch.Size([*new[:lead], *(dim for dim in kept if dim is not None)])


def reshaped(old: torch.Size, new: torch.Size, what: str) -> torch.Size:
    """Return the shape that ``reshape(new)`` gives, with one ``-1`` worked out."""
    if -1 in old:
        raise ValueError(f"cannot reshape dynamic dims: {what} of shape {list(old)} to {list(new)}")
    count, known = math.prod(old), math.prod(dim for dim in new if dim != -1)
    dims = list(new)
    if dims.count(-1) == 1 and known and count % known == 0:
        dims[dims.index(-1)] = count // known
    if -1 in dims or math.prod(dims) != count:
        raise ValueError(f"cannot reshape {what} of shape {list(old)} to {list(new)}")
    return torch.Size(dims)


def as_index(index: Any, shape: torch.Size, what: str) -> Index:
    """Return ``index`` as a tuple without Ellipsis and masks, so that it means the same where more dims follow.

    Raises:
        IndexError: it reaches past ``shape`` or a mask does not match its dims.
        TypeError: an entry that cannot index.
    """
    entries = [_as_entry(entry, what) for entry in (index if isinstance(index, tuple) else (index,))]
    used = sum(_dims_used(entry) for entry in entries)
    if used > len(shape):
        raise IndexError(f"{index!r} indexes {used} dims, but {what} has the batch dims {list(shape)} only")
    if (ellipses := sum(entry is Ellipsis for entry in entries)) > 1:
        raise IndexError(f"{index!r} has {ellipses} ellipses, expected one at most")
    plain: list[int | slice | torch.Tensor | None] = []
    dim = 0
    for entry in entries:
        if entry is Ellipsis:
            plain += [slice(None)] * (len(shape) - used)
            dim += len(shape) - used
            continue
        if isinstance(entry, torch.Tensor) and entry.dtype == torch.bool:
            if not fits(entry.shape, shape[dim : dim + entry.ndim]):
                raise IndexError(
                    f"a mask of shape {list(entry.shape)} cannot index {what} of batch shape {list(shape)}"
                )
            plain += entry.nonzero(as_tuple=True)
        else:
            plain.append(entry)
        dim += _dims_used(entry)
    return tuple(plain)


def _as_entry(entry: Any, what: str) -> Any:
    if entry is None or entry is Ellipsis or isinstance(entry, slice):
        return entry
    if isinstance(entry, (int, np.integer)) and not isinstance(entry, bool):
        return int(entry)
    if isinstance(entry, (torch.Tensor, np.ndarray, list, range)):
        found = entry.cpu() if isinstance(entry, torch.Tensor) else torch.as_tensor(np.asarray(entry))
        if found.numel() == 0 and isinstance(entry, list):
            found = found.long()  # numpy makes an empty list a float array
        if not found.is_floating_point() and (found.ndim or found.dtype != torch.bool):
            return found if found.dtype == torch.bool else found.long()
    raise TypeError(
        f"{what} cannot be indexed with {entry!r}; expected ints, slices, None, ..., masks or index tensors"
    )


def _dims_used(entry: Any) -> int:
    if entry is None or entry is Ellipsis:
        return 0
    return entry.ndim if isinstance(entry, torch.Tensor) and entry.dtype == torch.bool else 1


class Indexing:
    """An index, ready to be applied to the leading dims of a spec and of the tensors that it holds.

    Args:
        index: from ``as_index``.
        shape: batch shape of what is indexed.

    Attributes:
        shape: batch shape of the result.

    Example:
        >>> Indexing((0, slice(None, 2)), torch.Size([3, 4, -1])).shape
        torch.Size([2, -1])
    """

    def __init__(self, index: Index, shape: torch.Size):
        self._index = index
        self._dynamic = [dim for dim, size in enumerate(shape) if size == -1]
        if not self._dynamic:
            self.shape = torch.zeros((), dtype=torch.int8, device="cpu").expand(shape)[index].shape
            return
        one, other = (
            torch.zeros((), device="meta").expand([size if dim == -1 else dim for dim in shape])[index].shape
            for size in _STAND_INS
        )
        self.shape = torch.Size([a if a == b else -1 for a, b in zip(one, other, strict=True)])

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Index the leading dims of ``tensor``, where dynamic dims have size 1 before and after."""
        if self._dynamic:
            tensor = tensor.expand(
                [_STAND_INS[0] if dim in self._dynamic else size for dim, size in enumerate(tensor.shape)]
            )
        tensor = tensor[self._index]
        for dim, size in enumerate(self.shape):
            if size == -1:
                tensor = tensor.narrow(dim, 0, 1)
        return tensor
