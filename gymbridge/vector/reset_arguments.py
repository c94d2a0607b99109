"""What users give the ``reset`` of a vector env: seeds, and a mask among the options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded

from gymbridge.engine.codes import RowState
from gymbridge.vector.actions import array_of_tensor

__all__ = ["require_observed", "row_seeds", "split_reset_mask"]


def row_seeds(seed: Any, num_envs: int) -> list[int | None]:
    """One seed an env, or None, from what ``reset`` was given.

    Raises:
        gymnasium.error.Error: a negative seed, with the error that gymnasium's envs raise.
        TypeError, ValueError: what is no seed, or a wrong number of them.

    Example:
        >>> row_seeds(7, 3), row_seeds([1, None, 2], 3)
        ([7, 8, 9], [1, None, 2])
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        _require_seed(seed, "")
        return [int(seed) + row for row in range(num_envs)]
    if not isinstance(seed, Sequence) and not (isinstance(seed, np.ndarray) and seed.ndim):
        raise TypeError(f"seed: got {seed!r} of type {type(seed).__name__}, expected an int, a list of them or None")
    if len(seed) != num_envs:
        raise ValueError(f"seed: got a list of {len(seed)}, expected {num_envs}, one for each env")
    for row, one in enumerate(seed):
        if one is not None:
            _require_seed(one, f" for env {row}")
    return [None if one is None else int(one) for one in seed]


def split_reset_mask(
    options: dict[str, Any] | None, num_envs: int
) -> tuple[npt.NDArray[np.bool_] | None, dict[str, Any] | None]:
    """The mask at ``options["reset_mask"]``, None where there is none, and the options that the envs are to see.

    Raises:
        ValueError, TypeError: a mask of another type, shape or dtype, or without a True.

    Example:
        >>> split_reset_mask({"reset_mask": np.array([True, False]), "level": 3}, 2)
        (array([ True, False]), {'level': 3})
    """
    if options is None or "reset_mask" not in options:
        return None, options
    mask = options["reset_mask"]
    if hasattr(mask, "detach"):  # a torch tensor, without importing torch
        mask = array_of_tensor("options['reset_mask']", mask)
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"options['reset_mask']: got {type(mask)}, expected a numpy array")
    if mask.shape != (num_envs,):
        raise ValueError(f"options['reset_mask']: got shape {mask.shape}, expected ({num_envs},)")
    if mask.dtype != np.bool_:
        raise TypeError(f"options['reset_mask']: got dtype {mask.dtype}, expected bool")
    if not mask.any():
        raise ValueError(f"options['reset_mask']: got {mask}, expected at least one True")
    return mask, {key: value for key, value in options.items() if key != "reset_mask"}


def require_observed(states: bytes, mask: npt.NDArray[np.bool_]) -> None:
    """Refuses a mask that leaves out an env of which there is nothing to show yet.

    Args:
        states: one :class:`~gymbridge.engine.codes.RowState` a row.
        mask: the envs that are to be reset.

    Raises:
        ResetNeeded: naming the envs.
    """
    new = [row for row, state in enumerate(states) if state == RowState.NEW and not mask[row]]
    if new:
        raise ResetNeeded(f"options['reset_mask'] leaves out envs {new}, which have never been reset")


def _require_seed(seed: Any, whose: str) -> None:
    """Refuses what is no seed, before any env is reset."""
    if not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed: got {seed!r} of type {type(seed).__name__}{whose}, expected an int or None")
    if seed < 0:
        raise gym.error.Error(f"seed: got {seed}{whose}, expected 0 or greater")
