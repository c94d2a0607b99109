"""Specs of choices: ``Categorical`` and ``MultiCategorical`` as numbers, ``OneHot`` and ``MultiOneHot`` as bits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gymbridge.errors import SpecError
from gymbridge.specs._bridge import array_of, as_torch_dtype
from gymbridge.specs._choice import Choice, as_counts, batch_of
from gymbridge.specs._leaf import LeafSpec, shown_numbers

if TYPE_CHECKING:
    from typing_extensions import Self

    from gymbridge.specs._bridge import DeviceLike, DtypeLike
    from gymbridge.specs._leaf import Operation
    from gymbridge.specs._shapes import ShapeLike


class Categorical(Choice):
    """One of ``n`` values, ``start`` to ``start + n - 1``; each dim of a value is a batch dim.

    Args:
        n: number of values.
        shape: shape of a value.
        device: device of a value; None is torch's default device.
        dtype: an integer dtype, or bool for ``n <= 2``.
        mask: which values are allowed, bools that broadcast to ``[*shape, n]``; None allows all.
        start: lowest value.

    Raises:
        TypeError: a dtype or ``start`` that is not an integer's.
        ValueError: ``n`` is not positive, the dtype cannot hold the values, or the mask does not fit.

    Example:
        >>> spec = Categorical(3, start=5, mask=[True, False, True])
        >>> spec.enumerate().tolist(), spec.enumerate(use_mask=True).tolist()
        ([5, 6, 7], [5, 7])
    """

    _shown = ("shape", "n", "start", "mask", "dtype", "device")

    def __init__(
        self,
        n: int,
        shape: ShapeLike = (),
        device: DeviceLike = None,
        dtype: DtypeLike = torch.int64,
        mask: Any = None,
        *,
        start: int = 0,
    ):
        if np.ndim(array_of(n) if isinstance(n, torch.Tensor) else n):
            raise ValueError(f"Categorical: n must be one integer, got {n!r}")
        super().__init__(n, shape, device, dtype, mask, start)

    @property
    def n(self) -> int:
        """Number of values."""
        return self._counts[0]

    @property
    def start(self) -> int:
        """Lowest value."""
        return self._starts[0]

    def to_one_hot(self, value: torch.Tensor) -> torch.Tensor:
        """Return ``value`` as bools with one more dim of size ``n``."""
        return self._one_hot(value)

    def to_one_hot_spec(self) -> OneHot:
        """Return the spec of the one-hot encoding of these values."""
        return OneHot(
            self.n,
            (*self._shape, self.n),
            self._device,
            mask=self.mask,
            start=self.start,
            categorical_dtype=self._dtype,
        )


class MultiCategorical(Choice):
    """One of ``nvec[i]`` values for each slot i: ``start[i]`` to ``start[i] + nvec[i] - 1``.

    Args:
        nvec: numbers of values, an array of any number of dims.
        shape: shape of a value, whose trailing dims are those of ``nvec``; None is ``nvec``'s own.
        device: device of a value; None is torch's default device.
        dtype: an integer dtype, or bool where no slot has more than 2 values.
        mask: which values are allowed, bools that broadcast to ``[*batch, sum(nvec)]``, the slots one after the
            other in memory order; None allows all.
        start: lowest value of each slot, broadcastable to ``nvec``.

    Raises:
        TypeError: a dtype or ``start`` that is not an integer's.
        ValueError: ``nvec`` is not positive, ``shape`` does not end with its shape, the dtype cannot hold the
            values, or the mask does not fit.

    Example:
        >>> MultiCategorical([2, 3], start=[0, 10]).enumerate().tolist()
        [[0, 10], [0, 11], [0, 12], [1, 10], [1, 11], [1, 12]]
    """

    _shown = ("shape", "nvec", "start", "mask", "dtype", "device")

    def __init__(
        self,
        nvec: Any,
        shape: ShapeLike | None = None,
        device: DeviceLike = None,
        dtype: DtypeLike = torch.int64,
        mask: Any = None,
        *,
        start: Any = 0,
    ):
        event = np.shape(array_of(nvec) if isinstance(nvec, torch.Tensor) else nvec)
        super().__init__(nvec, batch_of(self._title, shape, event), device, dtype, mask, start)

    @property
    def nvec(self) -> torch.Tensor:
        """Numbers of values (int64)."""
        return self._nvec

    def to_one_hot(self, value: torch.Tensor) -> torch.Tensor:
        """Return ``value`` as bools, ``[*batch, sum(nvec)]``."""
        return self._one_hot(value)

    def to_one_hot_spec(self) -> MultiOneHot:
        """Return the spec of the one-hot encoding of these values."""
        return MultiOneHot(
            self._nvec,
            (*self._batch_shape, sum(self._counts)),
            self._device,
            mask=self.mask,
            start=self._start,
            categorical_dtype=self._dtype,
        )


class _OneHotChoice(LeafSpec):
    """Bits, one set for each slot of a choice; the last dim, ``sum(nvec)``, is not a batch dim."""

    def __init__(self, choice: Choice, total: int, device: DeviceLike, dtype: DtypeLike):
        super().__init__((*choice._batch_shape, total), device, dtype)
        self._choice = choice

    @property
    def _event_shape(self) -> torch.Size:
        return self._shape[-1:]

    @property
    def _space_ndim(self) -> int:
        return self._choice.ndim

    @property
    def mask(self) -> torch.Tensor | None:
        """Which bits may be set, of ``shape``, or None for all."""
        return self._choice.mask

    def update_mask(self, mask: Any) -> None:
        """Allow some values only, which alone are sampled and in the spec from now on.

        Args:
            mask: bools that broadcast to ``shape``; None allows all.

        Raises:
            ValueError: a mask of another shape, or one that leaves a choice without any value.
        """
        self._choice.update_mask(mask)

    @property
    def start(self) -> Any:
        """Lowest value of the space, which the first bit stands for."""
        return self._choice.start

    @property
    def categorical_dtype(self) -> torch.dtype:
        """dtype of the space's own values."""
        return self._choice.dtype

    def _encoded(self, value: torch.Tensor) -> torch.Tensor:
        return self._choice._one_hot(value).to(self._dtype)

    def _draw(self, shape: torch.Size) -> torch.Tensor:
        lead = shape[: len(shape) - 1]
        return self._encoded(self._choice._draw(torch.Size([*lead, *self._choice._event_shape])))

    def _set(self, value: torch.Tensor) -> torch.Tensor:
        """Return which bits are set, ``[..., *nvec.shape, max(nvec)]``."""
        return self._choice._padded(value != 0)

    def _not_one_hot(self, value: torch.Tensor) -> torch.Tensor:
        """Return which vectors do not have exactly one bit set in each slot."""
        miscounted = self._any_slot(self._set(value).sum(-1) != 1)
        return miscounted | ((value != 0) & (value != 1)).any(-1)

    def _any_slot(self, slots: torch.Tensor) -> torch.Tensor:
        dims = len(self._choice._event_shape)
        return slots.flatten(-dims).any(-1) if dims else slots

    def _out_of_domain(self, value: torch.Tensor) -> torch.Tensor:
        wrong = self._not_one_hot(value)
        if self._choice._allowed is None:
            return wrong
        return wrong | self._any_slot((self._set(value) & ~self._choice._allowed).any(-1))

    @property
    def _domain(self) -> str:
        masked = "" if self.mask is None else ", and no masked one"
        return f"exactly one bit set for each choice{masked}"

    def _projected(self, value: torch.Tensor) -> torch.Tensor:
        # The highest entry that is allowed, the first of equals: a float for each dtype, since some lack argmax.
        numbers = value if value.is_floating_point() else value.to(torch.float32)
        scores = self._choice._padded(numbers).nan_to_num(-math.inf)
        allowed = self._choice._valid() if self._choice._allowed is None else self._choice._allowed
        usable = scores.masked_fill(~allowed, -math.inf)
        best = (usable == usable.amax(-1, keepdim=True)) & allowed
        return self._encoded(self._choice._value_of(best.to(torch.uint8).argmax(-1)))

    def to_categorical(self, value: torch.Tensor) -> torch.Tensor:
        """Return the space's values for one-hot ones, as a tensor.

        Raises:
            SpecError: ``value`` is not one-hot; masked values are, since a mask can have changed in the meantime.
        """
        if found := self._form_faults(value, "value"):
            raise SpecError("\n".join(found))
        if (wrong := self._not_one_hot(value)).any():
            raise SpecError(f"value: out of domain: {self._domain_fault(value, wrong)}")
        return self._choice._value_of(self._set(value).to(torch.uint8).argmax(-1))

    def encode(self, value: Any) -> torch.Tensor:
        """Return the one-hot tensor for a value of the space, an integer for each slot; leading batch dims are kept."""
        categorical = self._choice.encode(value)
        index = self._choice._index_of(categorical)
        wrong = (index < 0) | (index >= self._choice._nvec)
        if wrong.any():
            raise SpecError(f"value: out of domain: {self._choice._domain_fault(categorical, wrong)}")
        return self._encoded(categorical)

    def to_numpy(self, value: torch.Tensor) -> Any:
        """Return the space's value for a one-hot tensor: the inverse of ``encode``."""
        return self._choice.to_numpy(self.to_categorical(value))

    def to_one_hot(self, value: torch.Tensor) -> torch.Tensor:
        """Return ``value``, which is one-hot."""
        return value

    def to_one_hot_spec(self) -> Self:
        """Return this spec, which is one-hot."""
        return self

    def cardinality(self) -> int:
        """Return the number of values of one element of the batch, masked ones included."""
        return self._choice.cardinality()

    def enumerate(self, use_mask: bool = False) -> torch.Tensor:
        """Return all values, ``[cardinality, *shape]``: each repeated over the batch dims.

        Args:
            use_mask: leave masked values out; all elements of the batch must have the same mask then.
        """
        return self._encoded(self._choice.enumerate(use_mask))

    def clone(self) -> Self:
        """Return a copy that can be changed without a change to this one."""
        new = super().clone()
        new._choice = self._choice.clone()
        return new

    def _with_dtype(self, dtype: torch.dtype) -> Self:
        new = self.clone()
        new._dtype = as_torch_dtype(dtype)
        return new

    def _with_device(self, device: torch.device) -> Self:
        new = super()._with_device(device)
        new._choice = self._choice._with_device(device)
        return new

    def _mapped(self, operation: Operation, batch: torch.Size) -> Self:
        new = super()._mapped(operation, batch)
        new._choice = self._choice._mapped(operation, batch)
        return new

    def __eq__(self, other: object) -> bool:
        same = super().__eq__(other)
        return same is True and isinstance(other, _OneHotChoice) and self._choice == other._choice

    __hash__ = None

    def _shown_value(self, name: str) -> str:
        value = getattr(self, name)
        return shown_numbers(value) if isinstance(value, torch.Tensor) else super()._shown_value(name)


class OneHot(_OneHotChoice):
    """One of ``n`` values as a vector of ``n`` bits, of which one is set; the last dim is not a batch dim.

    Args:
        n: number of values.
        shape: shape of a value, whose last dim is ``n``; None is ``(n,)``.
        device: device of a value; None is torch's default device.
        dtype: dtype of the bits.
        mask: which bits may be set, bools that broadcast to ``shape``; None allows all.
        start: the space's value that the first bit stands for.
        categorical_dtype: dtype of the space's values, which ``to_numpy`` and ``to_categorical`` return.

    Raises:
        ValueError: ``n`` is not positive, ``shape`` does not end with it, or the mask does not fit.

    Example:
        >>> import torch
        >>> spec = OneHot(3, start=1)
        >>> spec.encode(2).tolist(), int(spec.to_numpy(torch.tensor([False, False, True])))
        ([False, True, False], 3)
    """

    _shown = ("shape", "n", "start", "mask", "dtype", "device")

    def __init__(
        self,
        n: int,
        shape: ShapeLike | None = None,
        device: DeviceLike = None,
        dtype: DtypeLike = torch.bool,
        *,
        mask: Any = None,
        start: int = 0,
        categorical_dtype: DtypeLike = torch.int64,
    ):
        batch = batch_of(self._title, shape, (int(n),))
        choice = Categorical(n, batch, device, categorical_dtype, mask, start=start)
        super().__init__(choice, choice.n, device, dtype)

    @property
    def n(self) -> int:
        """Number of values."""
        return self._shape[-1]

    def to_categorical_spec(self) -> Categorical:
        """Return the spec of the space's own values."""
        choice = self._choice.clone()
        assert isinstance(choice, Categorical)
        return choice


class MultiOneHot(_OneHotChoice):
    """One of ``nvec[i]`` values for each slot i, as vectors of bits one after the other; that dim is not a batch dim.

    Args:
        nvec: numbers of values, an array of any number of dims.
        shape: shape of a value, whose last dim is ``sum(nvec)``; None is ``(sum(nvec),)``.
        device: device of a value; None is torch's default device.
        dtype: dtype of the bits.
        mask: which bits may be set, bools that broadcast to ``shape``; None allows all.
        start: the space's value that the first bit of each slot stands for, broadcastable to ``nvec``.
        categorical_dtype: dtype of the space's values, which ``to_numpy`` and ``to_categorical`` return.

    Raises:
        ValueError: ``nvec`` is not positive, ``shape`` does not end with its sum, or the mask does not fit.

    Example:
        >>> MultiOneHot([2, 3]).encode([1, 0]).int().tolist()
        [0, 1, 1, 0, 0]
    """

    _shown = ("shape", "nvec", "start", "mask", "dtype", "device")

    def __init__(
        self,
        nvec: Any,
        shape: ShapeLike | None = None,
        device: DeviceLike = None,
        dtype: DtypeLike = torch.bool,
        *,
        mask: Any = None,
        start: Any = 0,
        categorical_dtype: DtypeLike = torch.int64,
    ):
        counts = as_counts(self._title, nvec)
        total = int(counts.sum())
        batch = batch_of(self._title, shape, (total,))
        choice = MultiCategorical(counts, (*batch, *counts.shape), device, categorical_dtype, mask, start=start)
        super().__init__(choice, total, device, dtype)

    @property
    def nvec(self) -> torch.Tensor:
        """Numbers of values (int64)."""
        return self._choice._nvec

    def to_categorical_spec(self) -> MultiCategorical:
        """Return the spec of the space's own values."""
        choice = self._choice.clone()
        assert isinstance(choice, MultiCategorical)
        return choice
