"""The masks ``"_reset"`` and ``"_step"`` that pick envs of a batch."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from gymbridge.envs.tensordicts import entry

__all__ = ["read_mask"]


def read_mask(tensordict: TensorDictBase | None, name: str, batch_size: torch.Size) -> torch.Tensor | None:
    """The mask at a root key, one bool an env; None where there is none or where it picks every env.

    Args:
        tensordict: what the caller gave; it stays as it is.
        name: ``"_reset"`` or ``"_step"``.
        batch_size: ``[*B]`` of the env.

    Returns:
        A CPU bool tensor ``[*B]``. A scalar has been broadcast, and trailing dims have been OR-ed.

    Raises:
        TypeError: a mask that is not a bool tensor.
        ValueError: a shape that is neither a scalar nor begins with ``[*B]``.

    Example:
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"_step": torch.tensor([[True], [False]])}, [2])
        >>> read_mask(td, "_step", torch.Size([2]))
        tensor([ True, False])
    """
    mask = None if tensordict is None else entry(tensordict, name)
    if mask is None:
        return None
    if not isinstance(mask, torch.Tensor) or mask.dtype is not torch.bool:
        got = mask.dtype if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise TypeError(f"{name}: got {got}, expected a bool tensor of shape {[*batch_size]} or {[*batch_size, 1]}")
    mask = mask.detach().cpu()
    if mask.ndim == 0:
        mask = mask.expand(batch_size)
    elif mask.shape[: len(batch_size)] != batch_size:
        raise ValueError(f"{name}: got shape {[*mask.shape]}, expected {[*batch_size]} or {[*batch_size, 1]}")
    if mask.ndim > len(batch_size):
        mask = mask.flatten(len(batch_size)).any(-1)
    return None if bool(mask.all()) else mask
