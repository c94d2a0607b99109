"""What a round gave on its way to the device where the caller wants it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gymbridge.engine.layout import ALIGNMENT

__all__ = ["DeviceMove", "Staging", "move_to"]

DeviceMove = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]

SMALL_BYTES = 2**16
"""A leaf of no more gets memory of its own, so that whoever keeps a reward does not keep the images beside it."""


def move_to(device: torch.device | None, *, non_blocking: bool = False) -> DeviceMove:
    """What moves the tensors of a round to a device.

    Args:
        device: where to; None leaves each where it is.
        non_blocking: on CUDA, what comes from the CPU moves in one copy, for which the CPU does not wait.

    Example:
        >>> [moved] = move_to(torch.device("cpu"))([torch.zeros(3)])
        >>> moved
        tensor([0., 0., 0.])
    """
    if device is None:
        return list
    if non_blocking and device.type == "cuda":
        return Staging(device)
    return lambda tensors: [tensor.to(device) for tensor in tensors]


class Staging:
    """Moves tensors to a CUDA device in one copy from pinned memory, which the CPU does not wait for.

    There are two pieces of pinned memory, used in turn. Each is written again only when its last copy is done; whoever
    reads the results on the device's current stream reads them after the copy.

    Args:
        device: the device.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._turn = 0
        self._pinned = [torch.empty(0, dtype=torch.uint8)] * 2
        self._copied: list[Any] = [None, None]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors on the device; those that are not on the CPU move by themselves."""
        staged = [at for at, tensor in enumerate(tensors) if tensor.device.type == "cpu"]
        offsets, end = [], 0
        for at in staged:
            offsets.append(end)
            end += -(-tensors[at].nbytes // ALIGNMENT) * ALIGNMENT
        self._turn = 1 - self._turn
        pinned = self._writable(end)
        for at, offset in zip(staged, offsets, strict=True):
            _part(pinned, offset, tensors[at]).copy_(tensors[at].detach())
        there = pinned[:end].to(self._device, non_blocking=True, copy=True)
        self._copied[self._turn] = self._now()
        moved = [tensor if at in staged else tensor.to(self._device) for at, tensor in enumerate(tensors)]
        for at, offset in zip(staged, offsets, strict=True):
            part = _part(there, offset, tensors[at])
            moved[at] = part.clone() if part.nbytes <= SMALL_BYTES < end else part
        return moved

    def _writable(self, nbytes: int) -> torch.Tensor:
        """The pinned memory whose turn it is, once nothing is copied from it any more."""
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        if len(self._pinned[self._turn]) < nbytes:
            self._pinned[self._turn] = torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._is_cuda)
        return self._pinned[self._turn]

    def _now(self) -> Any:
        """An event on the device's current stream."""
        if not self._is_cuda:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def _part(memory: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    """A part of bytes as a tensor with the shape and dtype of another."""
    return memory[offset : offset + like.nbytes].view(like.dtype).view(like.shape)
