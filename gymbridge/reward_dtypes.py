"""Dtypes of rewards: what the caller is to get, and what the block holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["block_dtype_of_reward"]

_IN_BLOCK = {
    torch.float16: np.float16,
    torch.bfloat16: np.float32,  # which numpy lacks
    torch.float32: np.float32,
    torch.float64: np.float64,
}


def block_dtype_of_reward(dtype: Any) -> np.dtype[Any]:
    """Numpy dtype in which the block holds rewards that the caller is to get as ``dtype``.

    Raises:
        TypeError: not a torch dtype that rewards can have.

    Example:
        >>> block_dtype_of_reward(torch.bfloat16)
        dtype('float32')
    """
    if not isinstance(dtype, torch.dtype) or dtype not in _IN_BLOCK:
        raise TypeError(f"reward_dtype: got {dtype!r}, expected one of {[*_IN_BLOCK]}")
    return np.dtype(_IN_BLOCK[dtype])
