"""Steps of vector envs in which an env was reset in place of being stepped."""

from __future__ import annotations

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from gymbridge.envs.tensordicts import leaf_paths

__all__ = ["valid_transitions"]


def valid_transitions(tensordict: TensorDictBase) -> TensorDictBase:
    """The transitions of a TensorDict that are steps of an env, as one flat batch.

    A vector env that resets its envs itself, in the step after an episode's end, has a dead step there: the action did
    nothing, and ``next`` is the first observation of another episode. :func:`gymbridge.vector.from_vector_env` marks it
    with a False at ``("next", "valid")``. A TensorDict without that leaf, or a part of a
    lazy stack without it, has no dead steps, and all of it is returned.

    Args:
        tensordict: stepped TensorDicts ``[*B]``, ``[N, T]`` of a rollout for example.

    Returns:
        A TensorDict ``[num_valid]`` with copies of the transitions, env by env and each env's in time.

    Raises:
        TypeError: no TensorDict.
        KeyError: a TensorDict without ``"next"``.
        ValueError: ``("next", "valid")`` is not one bool a transition, ``[*B]`` or ``[*B, 1]``.

    Example:
        >>> import gymnasium as gym
        >>> from gymbridge.vector import from_vector_env
        >>> env = from_vector_env(gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"))
        >>> steps = env.rollout(100, break_when_any_done=False)
        >>> valid_transitions(steps).batch_size[0] == int(steps["next", "valid"].sum()) < 200
        True
    """
    if not isinstance(tensordict, TensorDictBase):
        raise TypeError(f"got {tensordict!r} of type {type(tensordict).__name__}, expected a TensorDict")
    following = tensordict.get("next", None)
    if following is None:
        raise KeyError(f"next: missing, expected what a step returned; got the keys {[*tensordict.keys()]}")
    mask = _valid(following, tensordict.batch_size)
    if isinstance(following, LazyStackedTensorDict):  # older versions of tensordict do not join parts of unlike keys
        tensordict = tensordict.select(*leaf_paths(tensordict))
    picked: TensorDictBase = tensordict[mask]
    return picked


def _valid(following: object, batch_size: torch.Size) -> torch.Tensor:
    """Which transitions are steps of an env, bool ``[*B]``."""
    valid = following.get("valid", None) if isinstance(following, TensorDictBase) else None
    if valid is None and isinstance(following, LazyStackedTensorDict):  # of which some may have the leaf and some not
        dim = following.stack_dim
        rows = [_valid(row, batch_size[:dim] + batch_size[dim + 1 :]) for row in following.tensordicts]
        return torch.stack(rows, dim)
    if valid is None:
        device = following.device if isinstance(following, TensorDictBase) else None
        return torch.ones(batch_size, dtype=torch.bool, device=device)
    is_mask = isinstance(valid, torch.Tensor) and valid.dtype is torch.bool
    if not is_mask or valid.shape not in (batch_size, (*batch_size, 1)):
        got = f"{[*valid.shape]} and {valid.dtype}" if isinstance(valid, torch.Tensor) else type(valid).__name__
        raise ValueError(f"next.valid: got {got}, expected bool of shape {[*batch_size, 1]}")
    mask: torch.Tensor = valid.reshape(batch_size)
    return mask
