"""``NonTensor``: the spec of data that no tensor holds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack

from gymbridge.errors import SpecError
from gymbridge.specs._base import name_of
from gymbridge.specs._leaf import LeafSpec
from gymbridge.specs._shapes import fits_end

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from gymbridge.specs._bridge import DeviceLike
    from gymbridge.specs._shapes import ShapeLike


class Domain(Protocol):
    """What can say whether a datum belongs to it, such as a ``gymnasium.Space``."""

    def contains(self, x: Any) -> bool:
        """Say whether ``x`` is in the domain."""
        ...


class NonTensor(LeafSpec):
    """Python data, one datum for each element of the batch; each dim is a batch dim.

    Values are ``NonTensorData`` (one datum, the same for the whole batch) or ``NonTensorStack``.

    Args:
        shape: batch shape of a value.
        device: device of the TensorDict that holds a value; None is torch's default device.
        dtype: kept for whoever asks; data has none.
        example_data: what ``rand``, ``zero`` and ``one`` give for each element.
        space: what each datum must be in; None allows anything.

    Example:
        >>> spec = NonTensor((2,), example_data="go")
        >>> spec.rand().tolist(), spec.is_in(spec.encode(["stay", "go"]))
        (['go', 'go'], True)
    """

    _shown = ("shape", "space", "example_data", "dtype", "device")

    def __init__(
        self,
        shape: ShapeLike = (),
        device: DeviceLike = None,
        dtype: torch.dtype | None = None,
        example_data: Any = None,
        *,
        space: Domain | None = None,
    ):
        super().__init__(shape, device, torch.uint8 if dtype is None else dtype)
        self._data_dtype = dtype
        self._example_data = example_data
        self._space = space

    @property
    def dtype(self) -> torch.dtype | None:  # type: ignore[override]  # a leaf without numbers may have none
        """The dtype that the spec was given."""
        return self._data_dtype

    @property
    def _holds_data(self) -> bool:
        return True

    @property
    def example_data(self) -> Any:
        """What ``rand``, ``zero`` and ``one`` give for each element."""
        return self._example_data

    @property
    def space(self) -> Domain | None:
        """What each datum must be in."""
        return self._space

    def _draw(self, shape: torch.Size) -> Any:
        return _filled(self._example_data, shape)

    def zero(self, shape: ShapeLike = ()) -> Any:
        """Return the example data in batch shape ``[*shape, *self.shape]``."""
        return self.rand(shape)

    def one(self, shape: ShapeLike = ()) -> Any:
        """Return the example data in batch shape ``[*shape, *self.shape]``."""
        return self.rand(shape)

    def _form_faults(self, value: Any, name: str, batch_dims: int | None = None) -> list[str]:
        if not isinstance(value, (NonTensorData, NonTensorStack)):
            return [f"{name}: got {type(value).__name__}, expected NonTensorData or NonTensorStack"]
        got = value.batch_size
        if not fits_end(got, self._shape) or batch_dims not in (None, len(got) - self.ndim):
            lead = "" if batch_dims is None else f" after {batch_dims} batch dims"
            return [f"{name}: shape: got {list(got)}, expected {list(self._shape)}{lead}"]
        return []

    def faults(self, value: Any, key: tuple[str, ...] = (), batch_dims: int | None = None) -> list[str]:
        """List what is wrong with ``value``, a line for each fault."""
        name = name_of(key)
        found = self._form_faults(value, name, batch_dims)
        if found or self._space is None:
            return found
        wrong = [datum for datum in _data_of(value) if not self._space.contains(datum)]
        return [f"{name}: out of domain: got {datum!r}, expected one of {self._space}" for datum in wrong[:1]]

    def _out_of_domain(self, value: Any) -> None:
        return None

    def project(self, value: Any) -> Any:
        """Return ``value``, which must be in the spec: data has no nearest neighbour."""
        self.assert_is_in(value)
        return value

    def _projected(self, value: Any) -> Any:
        return value

    def encode(self, value: Any) -> Any:
        """Return ``value`` wrapped: one datum, or nested sequences of them for a batch shape, with no dims before it.

        Raises:
            SpecError: the sequences do not have the lengths of ``shape``.
        """
        return _wrapped(value, self._shape)

    def to_numpy(self, value: Any) -> Any:
        """Return the data of ``value``: one datum, or nested lists of them."""
        if found := self._form_faults(value, "value"):
            raise SpecError("\n".join(found))
        return value.tolist() if value.batch_dims else value.data

    def cardinality(self) -> int | float:
        """Return ``math.inf``."""
        return math.inf

    def enumerate(self, use_mask: bool = False) -> Any:
        """Raise NotImplementedError: data cannot be listed."""
        raise NotImplementedError(f"the values of {self._title} of shape {list(self._shape)} cannot be listed")

    def to(self, dest: torch.dtype | DeviceLike) -> Self:
        """Return this spec on another device; a dtype is nothing to data and leaves it as it is."""
        return self if isinstance(dest, torch.dtype) else super().to(dest)

    def _with_dtype(self, dtype: torch.dtype) -> Self:
        return self

    def _stack_values(self, values: list[Any], dim: int) -> Any:
        return LazyStackedTensorDict.lazy_stack(values, dim)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NonTensor):
            return NotImplemented
        return (
            super().__eq__(other) is True
            and self._data_dtype == other._data_dtype
            and _same_data(self._space, other._space)
            and _same_data(self._example_data, other._example_data)
        )

    __hash__ = None


def _filled(datum: Any, shape: torch.Size) -> Any:
    if not shape or 0 in shape:
        return NonTensorData(datum, batch_size=shape)
    return NonTensorStack(*(_filled(datum, shape[1:]) for _ in range(shape[0])))


def _wrapped(value: Any, shape: torch.Size) -> Any:
    if not shape:
        return NonTensorData(value)
    if not isinstance(value, (list, tuple, np.ndarray)) or shape[0] not in (-1, len(value)):
        raise SpecError(f"value: got {value!r}, expected a sequence of {shape[0]} for batch shape {list(shape)}")
    if not len(value):
        return NonTensorData(None, batch_size=[0, *shape[1:]])
    return NonTensorStack(*(_wrapped(part, shape[1:]) for part in value))


def _data_of(value: Any) -> Iterator[Any]:
    """Yield each datum once."""
    if isinstance(value, NonTensorData):
        if 0 not in value.batch_size:
            yield value.data
        return
    for part in value.unbind(0):
        yield from _data_of(part)


def _same_data(one: Any, other: Any) -> bool:
    """Compare data that may hold arrays, whose own ``==`` is not one bool."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (np.ndarray, torch.Tensor)):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same_data(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same_data, one, other))
    same = one == other
    return bool(same) if isinstance(same, (bool, np.bool_)) else bool(np.all(np.asarray(same)))
