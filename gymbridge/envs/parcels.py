"""TensorDicts on their way to another process, their tensors packed as bytes: pickling tensors costs far more."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict

from gymbridge.envs.tensordicts import non_tensor, tensordict_of

__all__ = ["Packer", "Parcel"]

_ALIGNMENT = 16
_NO_BATCH = torch.Size()
_CPU = torch.device("cpu")


class _Group(NamedTuple):
    entries: dict[str, Any]
    batch_size: tuple[int, ...]
    device: str | None


class _Stack(NamedTuple):
    parts: list[Any]
    dim: int


class _Data(NamedTuple):
    data: Any


class _Whole(NamedTuple):
    value: Any


class _Place(NamedTuple):
    """Where a tensor lies."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    buffer: int
    offset: int
    size: int
    device: str | None


class Parcel(NamedTuple):
    """What has been packed; it pickles without any tensor.

    Attributes:
        content: the values, with a number in place of each tensor.
        places: where each tensor lies in ``buffers``.
        buffers: the bytes.
    """

    content: Any
    places: list[_Place]
    buffers: list[bytearray]

    def unpacked(self) -> Any:
        """The values; their tensors are views of ``buffers``, which nobody else has."""
        tensors = [self._tensor(place) for place in self.places]
        return _unpacked(self.content, tensors)

    def _tensor(self, place: _Place) -> torch.Tensor:
        if not place.size:
            return torch.empty(place.shape, dtype=place.dtype, device=place.device or _CPU)
        buffer = self.buffers[place.buffer]
        made = torch.frombuffer(buffer, dtype=place.dtype, count=place.size, offset=place.offset).view(place.shape)
        return made if place.device is None else made.to(place.device)


class Packer:
    """Packs tensors, TensorDicts, stacks of these, data that are no tensors, and lists, tuples and dicts of all.

    Args:
        consolidate: pack all tensors into one piece of memory; if not, each is a piece of its own.
        keeps_devices: tensors are unpacked where they were; if not, on the CPU.

    Example:
        >>> td = TensorDict({"x": torch.arange(3), "arm": TensorDict({"name": "left"})})
        >>> parcel = Packer().packed({"td": td, "number": 4})
        >>> made = parcel.unpacked()
        >>> made["td"]["x"], made["td"]["arm", "name"], made["number"]
        (tensor([0, 1, 2]), 'left', 4)
    """

    def __init__(self, *, consolidate: bool = True, keeps_devices: bool = False):
        self._consolidate = consolidate
        self._keeps_devices = keeps_devices

    def packed(self, value: Any) -> Parcel:
        """The parcel of a value.

        Raises:
            TypeError: with ``consolidate``, a tensor that has no plain bytes: a sparse one, say.
        """
        arrays: list[Any] = []
        places: list[_Place] = []
        content = self._content(value, arrays, places)
        if not self._consolidate:
            return Parcel(content, places, [bytearray(array) for array in arrays])
        end = places[-1].offset + arrays[-1].nbytes if places else 0
        buffer = bytearray(end)
        view = memoryview(buffer)
        for array, place in zip(arrays, places, strict=True):
            view[place.offset : place.offset + array.nbytes] = array
        return Parcel(content, places, [buffer])

    def _content(self, value: Any, arrays: list[Any], places: list[_Place]) -> Any:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            return self._put(value, arrays, places)
        if kind is TensorDict:
            entries = {name: self._content(part, arrays, places) for name, part in value._tensordict.items()}
            return _Group(entries, tuple(value.batch_size), self._device(value.device))
        if kind is LazyStackedTensorDict:
            parts = [self._content(part, arrays, places) for part in value.tensordicts]
            return _Stack(parts, value.stack_dim)
        if kind is NonTensorData and not value.batch_size:
            return _Data(value.data)
        if kind is list or kind is tuple:
            return kind(self._content(part, arrays, places) for part in value)
        if kind is dict:
            return {key: self._content(part, arrays, places) for key, part in value.items()}
        return _Whole(value)

    def _put(self, tensor: torch.Tensor, arrays: list[Any], places: list[_Place]) -> Any:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            if self._consolidate:
                raise TypeError(
                    f"consolidate: got True with a tensor of {tensor.layout} and {tensor.dtype}, which cannot be "
                    f"packed into one; give consolidate=False"
                )
            return _Whole(tensor.detach().cpu())
        device = self._device(tensor.device) if self._keeps_devices and tensor.device != _CPU else None
        shape = tuple(tensor.shape)
        if tensor.is_meta:  # which holds no values
            tensor = torch.empty(0, dtype=tensor.dtype)
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
        array = memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]
        buffer = offset = 0
        if not self._consolidate:
            buffer = len(arrays)
        elif places:
            end = places[-1].offset + arrays[-1].nbytes
            offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        arrays.append(array)
        places.append(_Place(tensor.dtype, shape, buffer, offset, flat.shape[0], device))
        return len(places) - 1

    def _device(self, device: torch.device | None) -> str | None:
        if device is None:
            return None
        return str(device) if self._keeps_devices else "cpu"


def _unpacked(content: Any, tensors: list[torch.Tensor]) -> Any:
    kind = type(content)
    if kind is int:
        return tensors[content]
    if kind is _Group:
        entries: Any = {name: _unpacked(part, tensors) for name, part in content.entries.items()}
        device = None if content.device is None else torch.device(content.device)
        return tensordict_of(entries, torch.Size(content.batch_size), device)
    if kind is _Stack:
        return LazyStackedTensorDict(*(_unpacked(part, tensors) for part in content.parts), stack_dim=content.dim)
    if kind is _Data:
        return non_tensor(content.data)
    if kind is _Whole:
        return content.value
    if kind is dict:
        return {key: _unpacked(part, tensors) for key, part in content.items()}
    return kind(_unpacked(part, tensors) for part in content)
