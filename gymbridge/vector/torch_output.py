"""Torch tensors from the arrays of a vector env."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gymbridge.spaces.naming import SpaceTree
from gymbridge.vector.output import Arrays

__all__ = ["TorchOutput"]

_NUMPY_OF_REWARD = {torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64}


class TorchOutput:
    """Tensors on a device; on the CPU they share the memory of the arrays, which are the caller's own.

    Args:
        device: where the tensors are to be; the CPU unless told.
        reward_dtype: dtype of the rewards; float32 unless told.

    Raises:
        ValueError: the meta device, which holds no data.
        TypeError: a ``reward_dtype`` that is no floating dtype, or that the device lacks.
    """

    def __init__(self, device: torch.device | str | int | None, reward_dtype: torch.dtype | None):
        self.device = torch.device("cpu" if device is None else device)
        if self.device.type == "meta":
            raise ValueError("device: got 'meta', expected one that holds data")
        reward_dtype = torch.float32 if reward_dtype is None else reward_dtype
        if reward_dtype not in _NUMPY_OF_REWARD:
            raise TypeError(f"reward_dtype: got {reward_dtype!r}, expected one of {list(_NUMPY_OF_REWARD)}")
        self.reward_dtype = np.dtype(_NUMPY_OF_REWARD[reward_dtype])
        require_dtype("reward", self.reward_dtype, self.device)
        self._moves = self.device.type != "cpu"
        self._is_array: list[bool] = []

    def require(self, tree: SpaceTree) -> None:
        """Refuses by name a leaf whose dtype torch or the device lacks."""
        self._is_array = [leaf.is_array for leaf in tree.leaves]
        for leaf in tree.leaves:
            if leaf.is_array:
                require_dtype(leaf.name, leaf.dtype, self.device)

    def observation(self, arrays: Arrays) -> list[Any]:
        """The leaves of an observation as tensors, those that are no arrays as they are; scalars have shape ``()``."""
        both = zip(arrays, self._is_array, strict=True)
        return [self._tensor(array) if is_array else array for array, is_array in both]

    def outcome(self, reward: Any, terminated: Any, truncated: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tensors of shape ``[num_envs]``."""
        return self._tensor(reward.copy()), self._tensor(terminated.copy()), self._tensor(truncated.copy())

    def _tensor(self, array: Any) -> torch.Tensor:
        tensor = torch.from_numpy(np.asarray(array))
        return tensor.to(self.device) if self._moves else tensor


def require_dtype(name: str, dtype: np.dtype[Any], device: torch.device) -> None:
    """Refuses a dtype that torch, or the device, does not have.

    Raises:
        TypeError: naming the key, the dtype and what lacks it.

    Example:
        >>> require_dtype("position", np.dtype(np.float64), torch.device("mps"))
        Traceback (most recent call last):
        TypeError: position: got dtype float64, which device 'mps' does not have
    """
    try:
        torch.from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: got dtype {dtype}, which torch does not have") from error
    if device.type == "mps" and dtype == np.float64:
        raise TypeError(f"{name}: got dtype {dtype}, which device {str(device)!r} does not have")
