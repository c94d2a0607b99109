"""How a seed for many envs becomes one for each, where the envs have a rule of their own for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

__all__ = ["SeedChain", "common_chain"]


class SeedChain(NamedTuple):
    """The seeds that follow one another, in place of ``seed``, ``seed + 1``, ``seed + 2`` and so on.

    Attributes:
        rule: its name, by which envs are known to have the same.
        following: seed -> the one after it; it is pickled with what an env says of itself.
        num_seeds: how many the env takes: more than one if it is a batch.

    Example:
        >>> SeedChain("doubled", lambda seed: 2 * seed, 3).after(1)
        8
    """

    rule: str
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
    first = each[0]
    known = [chain for chain in each if chain is not None and first is not None and chain.rule == first.rule]
    if first is None or len(known) < len(each):
        return None
    return first._replace(num_seeds=sum(chain.num_seeds for chain in known))
