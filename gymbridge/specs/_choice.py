"""What the specs of choices share: ranges of values, masks, and the way from a value to its bits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

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
from gymbridge.specs._shapes import as_size, concrete

if TYPE_CHECKING:
    from typing_extensions import Self

    from gymbridge.specs._bridge import DeviceLike, DtypeLike
    from gymbridge.specs._shapes import ShapeLike


class Choice(LeafSpec):
    """One choice out of ``nvec[i]`` for each slot i; ``nvec``'s dims are the trailing dims of a value.

    A ``Categorical`` is the case of an ``nvec`` without dims. Values are compared by their index, ``value - start``,
    in int64: the difference is right modulo 2**64 whatever the dtype. The mask is held padded to the longest slot,
    ``[*batch, *nvec.shape, max(nvec)]``.
    """

    _batch_held: ClassVar[tuple[str, ...]] = ("_allowed", "_rank", "_draw_allowed")
    _compared: ClassVar[tuple[str, ...]] = ("_nvec", "_start", "_allowed")

    def __init__(self, nvec: Any, batch: ShapeLike, device: DeviceLike, dtype: DtypeLike, mask: Any, start: Any):
        counts = as_counts(self._title, nvec)
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


def as_counts(title: str, nvec: Any) -> torch.Tensor:
    """Return numbers of values as an int64 tensor on the CPU, after a check that they are positive integers."""
    given = array_of(nvec) if isinstance(nvec, torch.Tensor) else np.asarray(nvec)
    if given.size and (given.dtype.kind not in "iu" or not (given > 0).all()):
        raise ValueError(f"{title}: expected positive integers as numbers of values, got {nvec!r}")
    if given.dtype.kind == "u" and (given > np.iinfo(np.int64).max).any():
        raise ValueError(f"{title}: got {nvec!r}, expected numbers of values below 2**63")
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


def batch_of(title: str, shape: ShapeLike | None, event: tuple[int, ...]) -> torch.Size:
    """Return the dims of ``shape`` that come before those of ``event``."""
    size = as_size(event if shape is None else shape)
    if tuple(size[len(size) - len(event) :]) != event:
        raise ValueError(f"{title}: shape: got {list(size)}, expected one that ends with {list(event)}")
    return size[: len(size) - len(event)]
