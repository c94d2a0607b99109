"""What a vector env hands out: numpy arrays as they are, or torch tensors on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from gymbridge.spaces.naming import SpaceTree

if TYPE_CHECKING:
    import torch

__all__ = ["NumpyOutput", "Output", "make_output"]

Arrays = Sequence[npt.NDArray[Any]]


class Output(Protocol):
    """Turns arrays that already belong to the caller into what the caller asked for."""

    reward_dtype: np.dtype[Any]
    """Dtype of the rewards in the block."""

    def require(self, tree: SpaceTree) -> None:
        """Refuses by name, with a ``TypeError``, an observation space that it cannot hand out."""

    def observation(self, arrays: Arrays) -> Sequence[Any]:
        """The leaves of an observation."""

    def outcome(self, reward: Any, terminated: Any, truncated: Any) -> tuple[Any, Any, Any]:
        """Copies of reward and flags, taken from the block."""


class NumpyOutput:
    """Arrays as they are."""

    def __init__(self, reward_dtype: npt.DTypeLike | None = None):
        self.reward_dtype = np.dtype(np.float64 if reward_dtype is None else reward_dtype)
        if self.reward_dtype.kind != "f":
            raise TypeError(f"reward_dtype: got {reward_dtype!r}, expected a floating dtype")

    def require(self, tree: SpaceTree) -> None:
        """Numpy has every dtype that a space has."""

    def observation(self, arrays: Arrays) -> Sequence[Any]:
        """The arrays themselves."""
        return arrays

    def outcome(self, reward: Any, terminated: Any, truncated: Any) -> tuple[Any, Any, Any]:
        """Copies."""
        return reward.copy(), terminated.copy(), truncated.copy()


def make_output(kind: str, device: torch.device | str | int | None, reward_dtype: Any) -> Output:
    """The output of a kind.

    Raises:
        ValueError: another kind than ``"numpy"`` and ``"torch"``, a device for numpy output, or the meta device.
        TypeError: a ``reward_dtype`` that is not a floating dtype of that kind.
    """
    if kind == "numpy":
        if device is not None:
            raise ValueError(f"device: got {device!r} with output='numpy'; a device needs output='torch'")
        return NumpyOutput(reward_dtype)
    if kind == "torch":
        from gymbridge.vector.torch_output import TorchOutput

        return TorchOutput(device, reward_dtype)
    raise ValueError(f"output: got {kind!r}, expected 'numpy' or 'torch'")
