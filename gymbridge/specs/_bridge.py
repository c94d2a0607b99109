"""Dtypes, conversions and draws: the one place that knows where torch and numpy differ.

torch has no ``<``, no clamp and no random numbers for uint16, uint32 and uint64, and numpy has no bfloat16. Whoever
checks a domain or draws an integer calls a function of this module, and need not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from gymbridge.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

DeviceLike: TypeAlias = "torch.device | str | int | None"
DtypeLike: TypeAlias = "torch.dtype | np.dtype[Any] | type | str"

_TORCH_OF_NUMPY: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(name if name != "bool" else np.bool_): getattr(torch, name)
    for name in ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
} | {np.dtype(name): getattr(torch, name) for name in ("float16", "float32", "float64")}
_NUMPY_OF_TORCH = {ours: theirs for theirs, ours in _TORCH_OF_NUMPY.items()} | {torch.bfloat16: np.dtype(np.float32)}
_THROUGH_NUMPY = frozenset({torch.uint16, torch.uint32, torch.uint64})

_WIDE = 1 << 31
"""A range of more values is drawn without modulo bias, at a higher cost (below it the bias is under 2**-31)."""


def as_torch_dtype(dtype: DtypeLike) -> torch.dtype:
    """Return the torch dtype that ``dtype`` (torch's, numpy's, or the name of either) means.

    Example:
        >>> as_torch_dtype("uint16"), as_torch_dtype(np.float32)
        (torch.uint16, torch.float32)
    """
    if isinstance(dtype, torch.dtype):
        found = dtype
    elif dtype == "bfloat16":
        found = torch.bfloat16
    else:
        known = _TORCH_OF_NUMPY.get(np.dtype(dtype))
        if known is None:
            raise TypeError(f"dtype {dtype!r} has no torch dtype")
        found = known
    if found not in _NUMPY_OF_TORCH:
        raise TypeError(f"a spec cannot have dtype {found}; expected one of {sorted(map(str, _NUMPY_OF_TORCH))}")
    return found


def as_numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the numpy dtype of a torch dtype (float32 for bfloat16, which numpy lacks)."""
    return _NUMPY_OF_TORCH[dtype]


def as_device(device: DeviceLike) -> torch.device:
    """Return ``device`` with its index filled in; ``None`` is torch's default device.

    Example:
        >>> as_device("cpu")
        device(type='cpu')
    """
    found = torch.get_default_device() if device is None else torch.device(device)
    if found.index is None and found.type == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    if found.index is None and found.type not in ("cpu", "meta"):
        return torch.device(
            found.type, torch.get_device_module(found.type).current_device() if found.type != "mps" else 0
        )
    return found


def extremes(dtype: torch.dtype) -> tuple[int, int]:
    """Return the lowest and the highest value of a bool or integer dtype."""
    if dtype == torch.bool:
        return 0, 1
    info = np.iinfo(as_numpy_dtype(dtype))
    return int(info.min), int(info.max)


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor of any device as a numpy array (which shares a CPU tensor's memory)."""
    if tensor.requires_grad or not tensor.is_cpu:
        tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def from_array(array: NDArray[Any] | np.generic) -> torch.Tensor:
    """Return an array, or a numpy scalar, as a CPU tensor (which shares an array's memory)."""
    array = np.asarray(array)
    if array.dtype.kind in "iu":  # numpy has two types of 64 bits, of which torch knows one
        array = array.view(f"{array.dtype.kind}{array.dtype.itemsize}")
    return torch.from_numpy(array)


def tensor_of(value: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a fresh tensor with the numbers of ``value``, which is a tensor, an array, or nested Python numbers.

    Floats may be rounded to a smaller float dtype; a number that an integer dtype cannot hold is refused.

    Raises:
        SpecError: ``value`` is not numeric or does not fit ``dtype``.

    Example:
        >>> tensor_of([1.0, 2.0], torch.uint8, torch.device("cpu"))
        tensor([1, 2], dtype=torch.uint8)
    """
    if isinstance(value, torch.Tensor):
        if value.dtype == dtype:
            return value.to(device, copy=True)
        value = array_of(value)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise SpecError(f"got {value!r}, which is not a regular array of numbers, expected {dtype}") from error
    if array.dtype.kind not in "biuf":
        raise SpecError(f"got {value!r} of dtype {array.dtype}, expected numbers for {dtype}")
    wanted = as_numpy_dtype(dtype)
    if wanted.kind in "iu" and array.dtype.kind == "f" and not isinstance(value, (np.ndarray, np.generic)):
        array = _as_integers(value, wanted)
    with np.errstate(invalid="ignore", over="ignore"):
        cast = np.array(array, dtype=wanted, order="C")
    if wanted.kind in "biu" and not np.can_cast(array.dtype, wanted, "safe"):
        unfit = cast != array
        if unfit.any():
            raise SpecError(f"got {array[unfit].flat[0]!r}, which {dtype} cannot hold exactly")
    return from_array(cast).to(device=device, dtype=dtype)


def _as_integers(value: Any, wanted: np.dtype[Any]) -> NDArray[Any]:
    """Return nested Python numbers as integers: numpy makes rounded floats of those that int64 alone does not hold."""
    numbers = np.asarray(value, dtype=object)
    info = np.iinfo(wanted)
    for number in numbers.flat:
        if not (info.min <= number <= info.max and number == int(number)):
            raise SpecError(f"got {number!r}, which {wanted} cannot hold exactly")
    return numbers.astype(wanted)


def outside(value: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Return where ``low <= value <= high`` is false (NaN is outside of everything); all of one dtype."""
    if value.dtype in _THROUGH_NUMPY:
        array = array_of(value)
        inside = (array >= array_of(low)) & (array <= array_of(high))
        return from_array(~inside).to(value.device)
    return ~((value >= low) & (value <= high))


def clamp(value: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Return ``value`` moved into ``[low, high]``; all of one dtype."""
    if value.dtype in _THROUGH_NUMPY:
        array = np.minimum(np.maximum(array_of(value), array_of(low)), array_of(high))
        return from_array(array).to(value.device)
    return torch.minimum(torch.maximum(value, low), high)


def draw_any(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Draw from all values of a bool or integer dtype, uniformly."""
    bits = _draw_bits(shape, device)
    return bits < 0 if dtype == torch.bool else bits.to(dtype)


def _draw_bits(shape: torch.Size, device: torch.device) -> torch.Tensor:
    """Draw 64 random bits an element, as int64."""
    return torch.empty(shape, dtype=torch.int64, device=device).random_(-(1 << 63), None)


class PickledTensor(NamedTuple):
    """A tensor as pickle can carry it: torch writes tensors of uint16, uint32 and uint64 that it cannot read back.

    Example:
        >>> PickledTensor.of(torch.zeros(2, dtype=torch.uint16)).tensor()
        tensor([0, 0], dtype=torch.uint16)
    """

    array: NDArray[Any]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str

    @classmethod
    def of(cls, tensor: torch.Tensor) -> PickledTensor:
        """Return what carries ``tensor``, of which an expanded dim is carried once."""
        single = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]
        return cls(np.array(array_of(single)), tuple(tensor.shape), tensor.dtype, str(tensor.device))

    def tensor(self) -> torch.Tensor:
        """Return the tensor that was carried."""
        return from_array(self.array).to(device=self.device, dtype=self.dtype).expand(self.shape)


_DRAWN_BY_TORCH = {torch.bool, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}
"""Dtypes that ``torch.randint`` has."""


class IntegerRange:
    """Uniform draws of integers from ``low`` to ``high`` inclusive, element by element, for any dtype's full range.

    Args:
        low: lowest values, of any bool or integer dtype.
        high: highest values, same dtype and device, broadcastable with ``low``.

    Example:
        >>> full = IntegerRange(torch.tensor(0, dtype=torch.uint64), torch.tensor(2**64 - 1, dtype=torch.uint64))
        >>> full.draw(torch.Size([2])).dtype
        torch.uint64
    """

    def __init__(self, low: torch.Tensor, high: torch.Tensor):
        self._dtype = low.dtype
        # Arithmetic modulo 2**64 is exact for each integer dtype, since the result is known to fit the dtype.
        self._low = low.to(torch.int64)
        span = array_of(high).astype(np.uint64) - array_of(low).astype(np.uint64)
        self._is_narrow = bool((span < _WIDE).all())
        self._last = from_array(span).to(low.device, torch.int64)
        self._common = self._common_range(low, span)

    def _common_range(self, low: torch.Tensor, span: np.ndarray[Any, Any]) -> tuple[int, int] | None:
        """Lowest value and one more than the highest, where all elements have the same and torch draws such numbers."""
        lows = array_of(low)
        if not (span.size and self._is_narrow and self._dtype in _DRAWN_BY_TORCH):
            return None
        if (lows != lows.flat[0]).any() or (span != span.flat[0]).any():
            return None
        beyond = int(lows.flat[0]) + int(span.flat[0]) + 1
        return (int(lows.flat[0]), beyond) if beyond < 2**63 else None

    def mapped(self, operation: Callable[[torch.Tensor], torch.Tensor]) -> IntegerRange:
        """Return the range of bounds that are put through ``operation``, such as a move or an index."""
        new = object.__new__(IntegerRange)
        new._dtype, new._is_narrow, new._common = self._dtype, self._is_narrow, self._common
        new._low, new._last = operation(self._low), operation(self._last)
        return new

    def draw(self, shape: torch.Size) -> torch.Tensor:
        """Draw a tensor of ``shape``, whose trailing dims broadcast with the bounds."""
        if self._common is not None:  # a fraction of the cost
            return torch.randint(*self._common, shape, dtype=self._dtype, device=self._low.device)
        offset = self._narrow_offset(shape) if self._is_narrow else self._wide_offset(shape)
        return (self._low + offset).to(self._dtype)

    def _narrow_offset(self, shape: torch.Size) -> torch.Tensor:
        bits = torch.empty(shape, dtype=torch.int64, device=self._low.device).random_()
        return bits % (self._last + 1)

    def _wide_offset(self, shape: torch.Size) -> torch.Tensor:
        last = array_of(self._last).astype(np.uint64)
        every = np.uint64(2**64 - 1)
        count = np.where(last == every, np.uint64(1), last + np.uint64(1))  # a full range takes the bits as they are
        leftover = (every % count + np.uint64(1)) % count  # 2**64 modulo count: so many bit patterns are one too many
        offset = np.zeros(tuple(shape), dtype=np.uint64)
        open_ = np.ones(tuple(shape), dtype=bool)
        while open_.any():
            bits = array_of(_draw_bits(shape, self._low.device)).astype(np.uint64)
            offset = np.where(open_, np.where(last == every, bits, bits % count), offset)
            open_ &= bits > every - leftover
        return from_array(offset.astype(np.int64)).to(self._low.device)


def cartesian(columns: list[torch.Tensor]) -> torch.Tensor:
    """Return each combination of one number a column, ``[combinations, columns]`` (int64), last column fastest."""
    if not columns:
        return torch.zeros(1, 0, dtype=torch.int64)
    return torch.stack([grid.flatten() for grid in torch.meshgrid(*columns, indexing="ij")], dim=-1)
