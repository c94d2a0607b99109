"""Specs of numbers with an order: ``Bounded``, ``Unbounded``, ``Binary``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from gymbridge.specs._bridge import (
    IntegerRange,
    array_of,
    as_numpy_dtype,
    as_torch_dtype,
    cartesian,
    clamp,
    draw_any,
    extremes,
    from_array,
    outside,
)
from gymbridge.specs._leaf import LeafSpec, shown_numbers
from gymbridge.specs._shapes import as_size, concrete

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

    from gymbridge.specs._bridge import DeviceLike, DtypeLike
    from gymbridge.specs._shapes import ShapeLike


class Bounded(LeafSpec):
    """Numbers from ``low`` to ``high`` inclusive, element by element; each dim is a batch dim.

    ``rand`` draws as ``gymnasium.spaces.Box.sample`` does in kind: uniformly between two finite bounds, from a
    shifted exponential beside one, from a normal distribution without any. For an integer dtype an infinite bound is
    the dtype's own extreme.

    Args:
        low: lowest values: a number, array or tensor that broadcasts to ``shape``; ``-inf`` for none.
        high: highest values; ``inf`` for none.
        shape: shape of a value; None takes that of ``low`` and ``high``, one of which then has a dim at least.
        device: device of a value; None is torch's default device.
        dtype: dtype of a value (bool, any integer, any real float); None is torch's default dtype.

    Raises:
        ValueError: no shape, bounds that do not broadcast to it, are NaN, do not fit the dtype or are empty.

    Example:
        >>> import torch
        >>> spec = Bounded(-1, [1.0, 2.0, float("inf")])
        >>> spec.shape, spec.is_in(torch.tensor([0.0, 2.0, 1e9])), spec.is_in(torch.tensor([0.0, 2.1, 0.0]))
        (torch.Size([3]), True, False)
    """

    _batch_held: ClassVar[tuple[str, ...]] = ("_low", "_high", "_range")
    _compared: ClassVar[tuple[str, ...]] = ("_low", "_high")
    _shown = ("shape", "low", "high", "dtype", "device")

    def __init__(
        self,
        low: Any,
        high: Any,
        shape: ShapeLike | None = None,
        device: DeviceLike = None,
        dtype: DtypeLike | None = None,
    ):
        dtype = torch.get_default_dtype() if dtype is None else as_torch_dtype(dtype)
        lowest, highest = _as_bound("low", low, dtype), _as_bound("high", high, dtype)
        if shape is None:
            if not lowest.ndim and not highest.ndim:
                raise ValueError(f"Bounded({low!r}, {high!r}) needs a shape, for its bounds have no dims")
            shape = np.broadcast_shapes(lowest.shape, highest.shape)
        super().__init__(shape, device, dtype)
        if (lowest > highest).any():
            raise ValueError(f"Bounded: low > high somewhere: low={low!r}, high={high!r}")
        bounds = [from_array(np.array(bound)).to(self._dtype) for bound in (lowest, highest)]
        self._is_finite = all(bool(torch.isfinite(bound).all()) for bound in bounds)
        self._range = None if self._dtype.is_floating_point else IntegerRange(*bounds)
        self._low, self._high = bounds
        drawn = concrete(self._shape)
        try:
            self._change_held(self._batch_held, lambda bound: bound.to(self._device).expand(drawn))
        except RuntimeError as error:
            got = [list(bound.shape) for bound in bounds]
            raise ValueError(f"Bounded: bounds of shapes {got} do not fit shape {list(self._shape)}") from error

    @property
    def low(self) -> torch.Tensor:
        """Lowest values, of ``shape`` (size 1 for a dynamic dim)."""
        return self._low

    @property
    def high(self) -> torch.Tensor:
        """Highest values, of ``shape`` (size 1 for a dynamic dim)."""
        return self._high

    def _draw(self, shape: torch.Size) -> torch.Tensor:
        if self._range is not None:
            return self._range.draw(shape)
        work = torch.float64 if self._dtype == torch.float64 else torch.float32
        low, high = self._low.to(work), self._high.to(work)
        part = torch.rand(shape, dtype=work, device=self._device)
        drawn = (_mix if self._is_finite else _mix_or_tail)(low, high, part)
        return clamp(drawn.to(self._dtype), self._low, self._high)

    def _out_of_domain(self, value: torch.Tensor) -> torch.Tensor:
        return outside(value, self._low, self._high)

    @property
    def _domain(self) -> str:
        return f"low={shown_numbers(self._low)} to high={shown_numbers(self._high)}"

    def _projected(self, value: torch.Tensor) -> torch.Tensor:
        if self._dtype.is_floating_point:
            value = torch.where(value.isnan(), torch.zeros_like(value), value)
        return clamp(value, self._low, self._high)

    def cardinality(self) -> int | float:
        """Return the number of values, all dims counted; ``math.inf`` for a float dtype."""
        return math.inf if self._dtype.is_floating_point else math.prod(self._counts())

    def _counts(self) -> list[int]:
        """Return how many values each element has, for an integer dtype."""
        if self._dtype == torch.bool:
            return [
                1 + int(high) - int(low) for low, high in zip(self._low.flatten(), self._high.flatten(), strict=True)
            ]
        # Python's integers, since a full range's count fits no dtype.
        return list((array_of(self._high).astype(object) - array_of(self._low).astype(object) + 1).flat)

    def enumerate(self, use_mask: bool = False) -> torch.Tensor:
        """Return all values, ``[cardinality, *shape]``, of an integer spec.

        Raises:
            NotImplementedError: there are too many.
        """
        count = self._enumerable()
        offset = (
            cartesian([torch.arange(span) for span in self._counts()]).reshape(count, *self._low.shape).to(self._device)
        )
        return (self._low.to(torch.int64) + offset).to(self._dtype)

    def _with_dtype(self, dtype: torch.dtype) -> Self:
        low, high = array_of(self._low), array_of(self._high)
        if not dtype.is_floating_point and self._dtype.is_floating_point:
            low, high = np.ceil(low), np.floor(high)
        return type(self)(low, high, self._shape, self._device, dtype)

    def _shown_value(self, name: str) -> str:
        if name in ("low", "high"):
            return shown_numbers(getattr(self, name))
        return super()._shown_value(name)


def _mix(low: torch.Tensor, high: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    # Not low + part * (high - low), whose difference may overflow.
    return low * (1 - part) + high * part


def _mix_or_tail(low: torch.Tensor, high: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Draw between two finite bounds, from one on, or around zero where there is none."""
    has_low, has_high = torch.isfinite(low), torch.isfinite(high)
    low, high = (torch.where(has, bound, 0.0) for has, bound in ((has_low, low), (has_high, high)))
    tail = torch.empty_like(part).exponential_()
    one_sided = torch.where(has_low, low + tail, high - tail)
    either = torch.where(has_low | has_high, one_sided, torch.randn_like(part))
    return torch.where(has_low & has_high, _mix(low, high, part), either)


def _as_bound(name: str, value: Any, dtype: torch.dtype) -> NDArray[Any]:
    """Return a bound as an array of the dtype, with an integer dtype's extremes for infinities, if it fits."""
    given = array_of(value) if isinstance(value, torch.Tensor) else np.asarray(value)
    if given.dtype.kind not in "biuf" or np.isnan(given).any():
        raise ValueError(f"Bounded: {name} must be numbers, got {value!r}")
    wanted = as_numpy_dtype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        bound = given.astype(wanted)
    if wanted.kind == "f":
        wrong_end = bound == (np.inf if name == "low" else -np.inf)
        if wrong_end.any() or (np.isinf(bound) & ~np.isinf(given)).any():
            raise ValueError(f"Bounded: {name}={value!r} leaves no {dtype} in the domain, or does not fit it")
        return bound
    lowest, highest = extremes(dtype)
    bound = np.where(given == -np.inf, np.asarray(lowest, wanted), bound)
    bound = np.where(given == np.inf, np.asarray(highest, wanted), bound)
    if (~np.isinf(given) & (bound != given)).any():
        raise ValueError(f"Bounded: {name}={value!r} does not fit {dtype}")
    return bound


class Unbounded(LeafSpec):
    """Any numbers of a dtype, NaN included; each dim is a batch dim.

    ``rand`` draws floats from a normal distribution, and integers and bools uniformly from all that the dtype has.

    Args:
        shape: shape of a value.
        device: device of a value; None is torch's default device.
        dtype: dtype of a value; None is torch's default dtype.

    Example:
        >>> import torch
        >>> Unbounded((2, 3), dtype=torch.uint16).rand((4,)).shape
        torch.Size([4, 2, 3])
    """

    def __init__(
        self,
        shape: ShapeLike = torch.Size([1]),  # noqa: B008  # a torch.Size cannot be changed
        device: DeviceLike = None,
        dtype: DtypeLike | None = None,
    ):
        super().__init__(shape, device, torch.get_default_dtype() if dtype is None else dtype)

    def _draw(self, shape: torch.Size) -> torch.Tensor:
        if self._dtype.is_floating_point:
            return torch.randn(shape, dtype=self._dtype, device=self._device)
        return draw_any(shape, self._dtype, self._device)

    def _out_of_domain(self, value: torch.Tensor) -> None:
        return None

    def _projected(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def cardinality(self) -> int | float:
        """Return ``math.inf``."""
        return math.inf

    def enumerate(self, use_mask: bool = False) -> torch.Tensor:
        """Raise NotImplementedError: the values cannot be listed."""
        raise NotImplementedError(f"the values of {self._title} of shape {list(self._shape)} cannot be listed")

    def _with_dtype(self, dtype: torch.dtype) -> Self:
        return type(self)(self._shape, self._device, dtype)


class Binary(LeafSpec):
    """Zeros and ones; each dim is a batch dim.

    Args:
        n: size of the last dim; None takes it from ``shape``.
        shape: shape of a value; None is ``(n,)``.
        device: device of a value; None is torch's default device.
        dtype: dtype of a value.

    Raises:
        TypeError: neither ``n`` nor ``shape`` is given.
        ValueError: they disagree.

    Example:
        >>> Binary(2).enumerate().tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
    """

    def __init__(
        self,
        n: int | None = None,
        shape: ShapeLike | None = None,
        device: DeviceLike = None,
        dtype: DtypeLike = torch.int8,
    ):
        if n is None and shape is None:
            raise TypeError("Binary needs n or a shape")
        size = as_size(shape if shape is not None else int(n or 0))
        if n is not None and (not size or size[-1] != n):
            raise ValueError(f"Binary: the last dim of shape {list(size)} must be n={n}")
        super().__init__(size, device, dtype)
        self._n = None if n is None else int(n)

    @property
    def n(self) -> int | None:
        """The ``n`` that the spec was made with, None where it was made from a shape alone (no part of equality)."""
        return self._n

    def _draw(self, shape: torch.Size) -> torch.Tensor:
        return draw_any(shape, torch.bool, self._device).to(self._dtype)

    def _out_of_domain(self, value: torch.Tensor) -> torch.Tensor:
        return (value != 0) & (value != 1)

    @property
    def _domain(self) -> str:
        return "0 or 1"

    def _projected(self, value: torch.Tensor) -> torch.Tensor:
        zeros, ones = torch.zeros_like(value), torch.ones_like(value)
        if value.is_floating_point():
            value = torch.where(value.isnan(), zeros, value.round())
        return clamp(value, zeros, ones)

    def cardinality(self) -> int:
        """Return the number of values, all dims counted."""
        return int(2 ** math.prod(concrete(self._shape)))

    def enumerate(self, use_mask: bool = False) -> torch.Tensor:
        """Return all values, ``[cardinality, *shape]``.

        Raises:
            NotImplementedError: there are too many.
        """
        count, shape = self._enumerable(), concrete(self._shape)
        return cartesian([torch.arange(2)] * math.prod(shape)).reshape(count, *shape).to(self._device, self._dtype)

    def _with_dtype(self, dtype: torch.dtype) -> Self:
        return type(self)(self._n, self._shape, self._device, dtype)
