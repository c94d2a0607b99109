"""Specs of choices: ``Categorical`` and ``MultiCategorical`` as numbers, ``OneHot`` and ``MultiOneHot`` as bits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from gymbridge.errors import SpecError
from gymbridge.specs._bridge import (
    IntegerRange,
    array_of,
    as_torch_dtype,
    cartesian,
    clamp,
    extremes,
    from_array,
    tensor_of,
)
from gymbridge.specs._leaf import LeafSpec, shown_numbers
from gymbridge.specs._shapes import as_size, concrete, fits_end

if TYPE_CHECKING:
    from typing_extensions import Self

    from gymbridge.specs._bridge import DeviceLike, DtypeLike
    from gymbridge.specs._leaf import Operation
    from gymbridge.specs._shapes import ShapeLike


class _Choice(LeafSpec):
    """One choice out of ``nvec[i]`` for each slot i; ``nvec``'s dims are the trailing dims of a value.

    A ``Categorical`` is the case of an ``nvec`` without dims. Values are compared by their index, ``value - start``,
    in int64: the difference is right modulo 2**64 whatever the dtype. The mask is held padded to the longest slot,
    ``[*batch, *nvec.shape, max(nvec)]``.
    """

    _batch_held: ClassVar[tuple[str, ...]] = ("_allowed", "_rank", "_draw_allowed")
    _compared: ClassVar[tuple[str, ...]] = ("_nvec", "_start", "_allowed")

    def __init__(self, nvec: Any, batch: ShapeLike, device: DeviceLike, dtype: DtypeLike, mask: Any, start: Any):
        counts = _as_counts(self._title, nvec)
        super().__init__((*as_size(batch), *counts.shape), device, dtype)
        self._nvec = counts
        self._counts: list[int] = counts.flatten().tolist()
        self._width = max(self._counts, default=0)
        self._allowed: torch.Tensor | None = None
        self._rank: torch.Tensor | None = None
        self._draw_allowed: IntegerRange | None = None
        self._set_start(start)
        if mask is not None:
            self.update_mask(mask)

    def _set_start(self, start: Any) -> None:
        """Work out lowest and highest values in the dtype, then put everything on the device."""
        self._start = _as_start(self._title, start, self._nvec, self._dtype)
        self._starts: list[int] = array_of(self._start).ravel().tolist()
        self._first = self._start.to(torch.int64)
        self._highest = (self._first + self._nvec.cpu() - 1).to(self._dtype)
        self._draw_free = IntegerRange(self._start, self._highest)
        self._change_held(tuple(vars(self)), lambda tensor: tensor.to(self._device))

    @property
    def _event_shape(self) -> torch.Size:
        return self._nvec.shape

    @property
    def start(self) -> Any:
        """Lowest value of each slot."""
        return self._start

    @property
    def mask(self) -> torch.Tensor | None:
        """Which values are allowed, ``[*batch, sum(nvec)]`` (the slots one after the other), or None for all."""
        return None if self._allowed is None else self._allowed[..., self._valid()]

    def update_mask(self, mask: Any) -> None:
        """Allow some values only, which alone are sampled and in the spec from now on.

        Args:
            mask: bools that broadcast to ``[*batch, sum(nvec)]``, the slots one after the other; None allows all.

        Raises:
            ValueError: a mask of another shape, or one that leaves a slot without any value.
        """
        if mask is None:
            self._allowed = self._rank = self._draw_allowed = None
            return
        total = sum(self._counts)
        batch = concrete(self._batch_shape)
        bits = torch.as_tensor(mask, dtype=torch.bool, device=self._device)
        try:
            bits = bits.expand(*batch, total)
        except RuntimeError as error:
            raise ValueError(
                f"{self._title}: mask: got shape {list(bits.shape)}, expected {[*batch, total]}"
            ) from error
        allowed = self._padded(bits)
        if not allowed.any(-1).all():
            raise ValueError(f"{self._title}: the mask leaves a choice without any value: {mask!r}")
        self._allowed = allowed
        self._rank = allowed.cumsum(-1)
        self._draw_allowed = IntegerRange(torch.zeros_like(self._rank[..., -1]), self._rank[..., -1] - 1)

    def _valid(self) -> torch.Tensor:
        """Return where the padded form holds a value, ``[*nvec.shape, max(nvec)]``."""
        return torch.arange(self._width, device=self._device) < self._nvec.unsqueeze(-1)

    def _padded(self, bits: torch.Tensor) -> torch.Tensor:
        """Return ``[..., sum(nvec)]`` bits as ``[..., *nvec.shape, max(nvec)]``."""
        valid = self._valid()
        padded = torch.zeros(*bits.shape[:-1], *valid.shape, dtype=bits.dtype, device=bits.device)
        padded[..., valid] = bits
        return padded

    def _index_of(self, value: torch.Tensor) -> torch.Tensor:
        return value.to(torch.int64) - self._first

    def _value_of(self, index: torch.Tensor) -> torch.Tensor:
        return (index + self._first).to(self._dtype)

    def _draw(self, shape: torch.Size) -> torch.Tensor:
        if self._draw_allowed is None or self._rank is None:
            return self._draw_free.draw(shape)
        rank = self._draw_allowed.draw(shape)
        return self._value_of((self._rank <= rank.unsqueeze(-1)).sum(-1))

    def _out_of_domain(self, value: torch.Tensor) -> torch.Tensor:
        index = self._index_of(value)
        wrong = (index < 0) | (index >= self._nvec)
        if self._allowed is None:
            return wrong
        reachable = index.clamp(0, max(self._width - 1, 0)).unsqueeze(-1)
        allowed = self._allowed.expand(*index.shape, self._width).gather(-1, reachable).squeeze(-1)
        return wrong | ~allowed

    @property
    def _domain(self) -> str:
        masked = "" if self._allowed is None else ", without the masked ones"
        return f"{shown_numbers(self._start)} to {shown_numbers(self._highest)}{masked}"

    def _projected(self, value: torch.Tensor) -> torch.Tensor:
        value = clamp(value, self._start, self._highest)
        if self._allowed is None:
            return value
        distance = (torch.arange(self._width, device=self._device) - self._index_of(value).unsqueeze(-1)).abs()
        return self._value_of(distance.masked_fill(~self._allowed, self._width).argmin(-1))

    def to_numpy(self, value: torch.Tensor) -> Any:
        """Return the space's value for a tensor: an array, or a numpy scalar where it has no dims."""
        return super().to_numpy(value)[()]

    def cardinality(self) -> int:
        """Return the number of values of one element of the batch, masked ones included."""
        return math.prod(self._counts)

    def enumerate(self, use_mask: bool = False) -> torch.Tensor:
        """Return all values, ``[cardinality, *shape]``: each repeated over the batch dims.

        Args:
            use_mask: leave masked values out; all elements of the batch must have the same mask then.
        """
        self._enumerable()
        columns = [torch.arange(count) for count in self._counts]
        if use_mask and self._allowed is not None:
            slots = self._allowed.reshape(-1, len(columns), self._width).cpu()
            if not (slots == slots[:1]).all():
                raise ValueError(f"{self._title}: enumerate(use_mask=True) needs one mask for the whole batch")
            columns = [slot.nonzero().flatten() for slot in slots[0]]
        index = cartesian(columns).reshape(-1, *self._event_shape).to(self._device)
        return self._over_batch(self._value_of(index))

    def _with_dtype(self, dtype: torch.dtype) -> Self:
        new = self.clone()
        new._dtype = as_torch_dtype(dtype)
        new._set_start(self._start)
        return new

    def to_categorical(self, value: torch.Tensor) -> torch.Tensor:
        """Return ``value``, which is categorical."""
        return value

    def to_categorical_spec(self) -> Self:
        """Return this spec, which is categorical."""
        return self

    def _one_hot(self, value: torch.Tensor) -> torch.Tensor:
        """Return bools ``[..., sum(nvec)]`` for values of this spec."""
        places = torch.arange(self._width, device=self._device)
        bits: torch.Tensor = places == self._index_of(value).unsqueeze(-1)
        return bits[..., self._valid()]

    def _shown_value(self, name: str) -> str:
        value = getattr(self, name)
        return shown_numbers(value) if isinstance(value, torch.Tensor) else super()._shown_value(name)


def _as_counts(title: str, nvec: Any) -> torch.Tensor:
    given = array_of(nvec) if isinstance(nvec, torch.Tensor) else np.asarray(nvec)
    if given.size and (given.dtype.kind not in "iu" or not (given > 0).all()):
        raise ValueError(f"{title}: expected positive integers as numbers of values, got {nvec!r}")
    return from_array(given.astype(np.int64))


def _as_start(title: str, start: Any, counts: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the lowest values in the dtype, after a check that the highest fit it too."""
    if dtype.is_floating_point:
        raise TypeError(f"{title}: expected an integer or bool dtype, got {dtype}")
    first = np.asarray(array_of(start) if isinstance(start, torch.Tensor) else start)
    if first.dtype.kind not in "iub":
        raise TypeError(f"{title}: start must be an integer, got {start!r}")
    try:
        first = np.broadcast_to(first, tuple(counts.shape))
    except ValueError as error:
        raise ValueError(f"{title}: start: got shape {list(first.shape)}, expected {list(counts.shape)}") from error
    lowest, highest = extremes(dtype)
    for low, count in zip(first.flat, counts.flatten().tolist(), strict=True):
        if int(low) < lowest or int(low) + count - 1 > highest:
            raise ValueError(f"{title}: {dtype} cannot hold {count} values from {int(low)} on")
    return tensor_of(first, dtype, torch.device("cpu"))


class Categorical(_Choice):
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


class MultiCategorical(_Choice):
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
        super().__init__(nvec, _batch_of(self._title, shape, event), device, dtype, mask, start)

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


def _batch_of(title: str, shape: ShapeLike | None, event: tuple[int, ...]) -> torch.Size:
    """Return the dims of ``shape`` that come before those of ``event``."""
    size = as_size(event if shape is None else shape)
    if not fits_end(event, ()) or tuple(size[len(size) - len(event) :]) != event:
        raise ValueError(f"{title}: shape: got {list(size)}, expected one that ends with {list(event)}")
    return size[: len(size) - len(event)]


class _OneHotChoice(LeafSpec):
    """Bits, one set for each slot of a choice; the last dim, ``sum(nvec)``, is not a batch dim."""

    def __init__(self, choice: _Choice, total: int, device: DeviceLike, dtype: DtypeLike):
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
        scores = self._choice._padded(value.to(torch.float64)).nan_to_num(-math.inf)
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
        mask: Any = None,
        *,
        start: int = 0,
        categorical_dtype: DtypeLike = torch.int64,
    ):
        batch = _batch_of(self._title, shape, (int(n),))
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
        mask: Any = None,
        *,
        start: Any = 0,
        categorical_dtype: DtypeLike = torch.int64,
    ):
        counts = _as_counts(self._title, nvec)
        total = int(counts.sum())
        batch = _batch_of(self._title, shape, (total,))
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
