"""What a batched env gave, against its specs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase

from gymbridge.envs.base import EnvBase
from gymbridge.envs.spec_keys import leaf_keys
from gymbridge.envs.tensordicts import entry
from gymbridge.errors import EnvOutputError
from gymbridge.spaces.naming import place_name
from gymbridge.specs import Composite, NonTensor

__all__ = ["OutputCheck"]


class _Leaf(NamedTuple):
    key: str | tuple[str, ...]
    shape: torch.Size
    dtype: torch.dtype | None
    """None for data that are no tensor."""


class OutputCheck:
    """Refuses outputs of another shape or dtype than their spec, by name; domains are not looked at.

    Args:
        env: the env.

    Example:
        >>> from gymbridge import SerialEnv
        >>> env = SerialEnv(2, "CartPole-v1")
        >>> td = env.reset()
        >>> td["done"] = td["done"].squeeze(-1)
        >>> OutputCheck(env).first(td)
        Traceback (most recent call last):
        gymbridge.errors.EnvOutputError: SerialEnv: done: got [2] of torch.bool, expected [2, 1] of torch.bool
    """

    def __init__(self, env: EnvBase):
        self._name = type(env).__name__
        self._shown = [*_leaves(env.full_observation_spec), *_leaves(env.full_done_spec)]
        self._rewards = _leaves(env.full_reward_spec)

    def first(self, tensordict: TensorDictBase) -> None:
        """Checks a root: observations and flags.

        Raises:
            EnvOutputError: naming the key, what was got and what was expected.
        """
        self._check(tensordict, self._shown)

    def following(self, tensordict: TensorDictBase) -> None:
        """Checks what stands under ``"next"``: rewards too.

        Raises:
            EnvOutputError: naming the key, what was got and what was expected.
        """
        self._check(tensordict, self._rewards)
        self._check(tensordict, self._shown)

    def _check(self, tensordict: TensorDictBase, leaves: list[_Leaf]) -> None:
        for key, shape, dtype in leaves:
            value = entry(tensordict, key) if isinstance(key, str) else tensordict.get(key, None)
            if dtype is None:
                if value is not None:
                    continue
            elif isinstance(value, torch.Tensor) and value.dtype is dtype and _fits(value.shape, shape):
                continue
            self._refuse(key, value, shape, dtype)

    def _refuse(self, key: Any, value: object, shape: torch.Size, dtype: torch.dtype | None) -> None:
        if isinstance(value, torch.Tensor):
            got = f"{[*value.shape]} of {value.dtype}"
        else:
            got = "nothing" if value is None else type(value).__name__
        expected = "data" if dtype is None else f"{[*shape]} of {dtype}"
        name = key if isinstance(key, str) else place_name(key)
        raise EnvOutputError(f"{self._name}: {name}: got {got}, expected {expected}")


def _leaves(spec: Composite) -> list[_Leaf]:
    leaves = []
    for key in leaf_keys(spec):
        leaf = spec.get(key)
        dtype = None if isinstance(leaf, NonTensor) else leaf.dtype
        leaves.append(_Leaf(key[0] if len(key) == 1 else key, leaf.shape, dtype))
    return leaves


def _fits(shape: torch.Size, expected: torch.Size) -> bool:
    """Whether a shape is the expected one, in which -1 is a dim of any size."""
    if shape == expected:
        return True
    pairs = zip(shape, expected, strict=False)
    return len(shape) == len(expected) and all(size == wanted or wanted == -1 for size, wanted in pairs)
