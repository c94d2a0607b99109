"""How a seed for many envs becomes one for each, where the envs have a rule of their own for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

__all__ = ["SeedChain", "common_chain"]


class SeedChain(NamedTuple):
    """The seeds that follow one another, in place of ``seed``, ``seed + 1``, ``seed + 2`` and so on.

    Attributes:
        following: seed -> the one after it; it is pickled with what an env says of itself.
        num_seeds: how many the env takes: more than one if it is a batch.

    Example:
        >>> SeedChain(lambda seed: 2 * seed, 3).after(1)
        8
    """

    following: Callable[[int], int]
    num_seeds: int = 1

    def after(self, seed: int) -> int:
        """The first seed that is free once the env has been given ``seed``."""
        for _ in range(self.num_seeds):
            seed = self.following(seed)
        return seed


def common_chain(chains: Iterable[SeedChain | None]) -> SeedChain | None:
    """The chain of several envs, one after the other; None unless all have the same rule."""
    each = [*chains]
    rules = {None if chain is None else chain.following for chain in each}
    if len(rules) != 1 or (rule := rules.pop()) is None:
        return None
    return SeedChain(rule, sum(chain.num_seeds for chain in each if chain is not None))
