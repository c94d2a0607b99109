"""TensorDicts on their way to another process, their tensors packed as bytes: pickling tensors costs far more."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any, NamedTuple

import cloudpickle
import torch
from tensordict import LazyStackedTensorDict, MemoryMappedTensor, NonTensorData, TensorDict

from gymbridge.engine.workers.pickling import can_be_pickled, loads, what_cannot_be_pickled
from gymbridge.envs.tensordicts import non_tensor, tensordict_of
from gymbridge.errors import UnpicklableError

__all__ = ["Handed", "Packer", "Parcel"]

_ALIGNMENT = 16
_SMALL_BYTES = 4096
"""Tensors of no more are copied once more than they need be, which takes a fraction of the calls."""
_CPU = torch.device("cpu")


_GROUP, _STACK, _DATA, _WHOLE, _LIST, _TUPLE = range(6)
"""What a part of the contents is; tuples of built-in types pickle fastest."""

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})


class _Place(NamedTuple):
    """Where a tensor lies."""

    dtype: str
    shape: tuple[int, ...]
    buffer: int
    offset: int
    size: int
    device: str | None


class Parcel(NamedTuple):
    """What has been packed; it pickles without any tensor.

    Attributes:
        contents: the pickle of the values, with a number in place of each tensor, and of where each tensor lies in
            ``buffers``.
        buffers: the bytes.
    """

    contents: bytes
    buffers: list[bytearray]

    def unpacked(self) -> Any:
        """The values; their tensors are views of ``buffers``, which nobody else has."""
        content, places = loads(self.contents)
        return _unpacked(content, [self._tensor(_Place(*place)) for place in places])

    def _tensor(self, place: _Place) -> torch.Tensor:
        dtype = getattr(torch, place.dtype)
        if not place.size:
            return torch.empty(place.shape, dtype=dtype, device=place.device or _CPU)
        buffer = self.buffers[place.buffer]
        made = torch.frombuffer(buffer, dtype=dtype, count=place.size, offset=place.offset).view(place.shape)
        return made if place.device is None else made.to(place.device)


class Handed(NamedTuple):
    """In place of a parcel: what stays in this process.

    Attributes:
        value: the values; their tensors are copies that nobody else has.
    """

    value: Any

    def unpacked(self) -> Any:
        """The values."""
        return self.value


class Packer:
    """Packs tensors, TensorDicts, stacks of these, data that are no tensors, and lists and tuples of all.

    Args:
        consolidate: pack all tensors into one piece of memory; if not, each is a piece of its own.
        keeps_devices: tensors are unpacked where they were; if not, on the CPU, as are those that are not strided.
        in_process: what is packed stays in this process: tensors are copied, and other objects are the very same, of
            whatever kind.

    Example:
        >>> td = TensorDict({"x": torch.arange(3), "arm": TensorDict({"name": "left"})})
        >>> made, number = Packer().packed([td, 4]).unpacked()
        >>> made["x"], made["arm", "name"], number
        (tensor([0, 1, 2]), 'left', 4)
    """

    def __init__(self, *, consolidate: bool = True, keeps_devices: bool = False, in_process: bool = False):
        self._consolidate = consolidate
        self._keeps_devices = keeps_devices
        self._in_process = in_process

    def packed(self, value: Any) -> Parcel | Handed:
        """The parcel of a value.

        Raises:
            TypeError: with ``consolidate``, a tensor that has no plain bytes: a sparse one, say; one on the meta device
                that is not to stay there.
            UnpicklableError: an object that cannot be pickled; the message names its key.
        """
        if self._in_process:
            return Handed(self._copied(value))
        packing = _Packing()
        contents = self._content(value, packing, ()), [tuple(place) for place in packing.places]
        if not packing.objects:
            return Parcel(pickle.dumps(contents, 5), packing.buffers)
        try:  # what only the caller's __main__ knows takes cloudpickle, which costs several times as much
            return Parcel(cloudpickle.dumps(contents), packing.buffers)
        except Exception as error:
            raise _unpicklable(packing.objects, error) from error

    def _copied(self, value: Any) -> Any:
        """Copies of tensors, TensorDicts, lists and tuples; the very object of anything else."""
        kind = type(value)
        if isinstance(value, torch.Tensor):
            if self._keeps_devices or value.device == _CPU:
                return value.detach().clone()
            if value.is_meta:
                raise TypeError(f"a tensor {[*value.shape]} on the meta device holds no values to be sent")
            return value.detach().cpu()
        if kind is list or kind is tuple:
            return kind(map(self._copied, value))
        if kind is TensorDict:
            entries = {name: self._copied(part) for name, part in value._tensordict.items()}
            return tensordict_of(entries, value.batch_size, self._own_device(value.device))
        if kind is LazyStackedTensorDict:
            return LazyStackedTensorDict(*map(self._copied, value.tensordicts), stack_dim=value.stack_dim)
        return value

    def _own_device(self, device: torch.device | None) -> torch.device | None:
        return device if device is None or self._keeps_devices else _CPU

    def _content(self, value: Any, packing: _Packing, path: tuple[str, ...]) -> Any:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            return self._put(value, packing, path)
        if kind is TensorDict:
            entries = {name: self._content(part, packing, (*path, name)) for name, part in value._tensordict.items()}
            return _GROUP, entries, tuple(value.batch_size), self._device(value.device)
        if kind is LazyStackedTensorDict:
            return _STACK, [self._content(part, packing, path) for part in value.tensordicts], value.stack_dim
        if kind is NonTensorData and not value.batch_size:
            packing.note(value.data, path)
            return _DATA, value.data
        if kind is list or kind is tuple:
            return (_LIST if kind is list else _TUPLE), [self._content(part, packing, path) for part in value]
        if kind is MemoryMappedTensor:
            return self._put(value.as_subclass(torch.Tensor), packing, path)
        packing.note(value, path)
        return _WHOLE, value

    def _put(self, tensor: torch.Tensor, packing: _Packing, path: tuple[str, ...]) -> Any:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            if self._consolidate:
                raise TypeError(
                    f"consolidate: got True with {_named(path)}a tensor of {tensor.layout} and {tensor.dtype}, which "
                    f"cannot be packed into one; give consolidate=False"
                )
            sent = tensor.detach().cpu()
            packing.note(sent, path)
            return _WHOLE, sent
        device = self._device(tensor.device) if self._keeps_devices and tensor.device != _CPU else None
        shape = tuple(tensor.shape)
        if tensor.is_meta:
            if device is None:
                raise TypeError(f"{_named(path)}a tensor {[*shape]} on the meta device holds no values to be sent")
            tensor = torch.empty(0, dtype=tensor.dtype)
        buffer, offset = packing.put(_bytes_of(tensor), in_one=self._consolidate)
        packing.places.append(_Place(_name_of(tensor.dtype), shape, buffer, offset, tensor.numel(), device))
        return len(packing.places) - 1

    def _device(self, device: torch.device | None) -> str | None:
        if device is None:
            return None
        return str(device) if self._keeps_devices else "cpu"


class _Packing:
    """A parcel in the making."""

    def __init__(self) -> None:
        self.places: list[_Place] = []
        self.buffers: list[bytearray] = []
        self.objects: list[tuple[tuple[str, ...], Any]] = []
        """Key and value of what is of no type that every process knows."""

    def note(self, value: Any, path: tuple[str, ...]) -> None:
        """Takes down what is of no such type."""
        if type(value) not in _PLAIN:
            self.objects.append((path, value))

    def put(self, data: Any, *, in_one: bool) -> tuple[int, int]:
        """Appends bytes to the one buffer, or to a new one; which it is, and where they begin."""
        if not in_one or not self.buffers:
            self.buffers.append(bytearray(data))
            return len(self.buffers) - 1, 0
        buffer = self.buffers[0]
        buffer += bytes(-len(buffer) % _ALIGNMENT)
        offset = len(buffer)
        buffer += data
        return 0, offset


def _unpicklable(objects: list[tuple[tuple[str, ...], Any]], error: Exception) -> UnpicklableError:
    """The error that names which of the objects cannot be pickled."""
    path, value = next(each for each in objects if each is objects[-1] or not can_be_pickled(each[1]))
    within, culprit = what_cannot_be_pickled(value)
    part = f"{', '.join(within)} in it is" if within else "it is"
    return UnpicklableError(
        f"{_named(path)}a {type(value).__qualname__} cannot be sent to another process: {part} of type "
        f"{type(culprit).__qualname__}, which cannot be pickled ({error})"
    )


def _named(path: tuple[str, ...]) -> str:
    return f"{'.'.join(path)}: " if path else ""


def _bytes_of(tensor: torch.Tensor) -> Any:
    if tensor.nbytes <= _SMALL_BYTES and tensor.dtype is not torch.bfloat16:
        try:
            return tensor.numpy(force=True).tobytes()
        except TypeError:  # a dtype that numpy does not have
            pass
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


@cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _unpacked(content: Any, tensors: list[torch.Tensor]) -> Any:
    if type(content) is int:
        return tensors[content]
    kind, value, *others = content
    if kind == _GROUP:
        batch_size, device = others
        entries: Any = {name: _unpacked(part, tensors) for name, part in value.items()}
        return tensordict_of(entries, torch.Size(batch_size), None if device is None else torch.device(device))
    if kind == _STACK:
        return LazyStackedTensorDict(*(_unpacked(part, tensors) for part in value), stack_dim=others[0])
    if kind == _DATA:
        return non_tensor(value)
    if kind == _WHOLE:
        return value
    parts = [_unpacked(part, tensors) for part in value]
    return parts if kind == _LIST else tuple(parts)
