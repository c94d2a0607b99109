"""Which of several threads has what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Claims"]


class Claims:
    """Rows that somebody has: of several threads that claim one at once, one gets it.

    A claim is any object, by which its owner tells its rows from those of others.

    Example:
        >>> claims, mine, yours = Claims(), object(), object()
        >>> claims.claim([0, 1], mine), claims.claim([1, 2], yours)
        ([], [1])
        >>> claims.of([1, 2], yours), claims.rows
        ([2], {0, 1, 2})
        >>> claims.let_go([0, 1])
        >>> claims.rows
        {2}
    """

    __slots__ = ("_owners",)

    def __init__(self) -> None:
        self._owners: dict[int, object] = {}
        """Row -> whose it is; a dict, since of two threads that set a default in it one is the first. A lock would stay
        locked by an interrupt right after it was acquired."""

    @property
    def rows(self) -> set[int]:
        """Those that somebody has."""
        return {*self._owners}

    def __len__(self) -> int:
        """How many somebody has."""
        return len(self._owners)

    def claim(self, rows: Iterable[int], claim: object) -> list[int]:
        """Takes the rows that nobody has; those that another has are returned."""
        owners = self._owners
        return [row for row in rows if owners.setdefault(row, claim) is not claim]

    def of(self, rows: Iterable[int], claim: object) -> list[int]:
        """Those of some rows that are the claim's."""
        return [row for row in rows if self._owners.get(row) is claim]

    def owners(self, rows: Iterable[int]) -> list[object]:
        """Whose each row is; None of one that nobody has."""
        return [self._owners.get(row) for row in rows]

    def still(self, rows: Sequence[int], owners: Sequence[object]) -> list[int]:
        """Those of some rows that are still whose they were."""
        return [row for row, owner in zip(rows, owners, strict=True) if owner and self._owners.get(row) is owner]

    def let_go(self, rows: Iterable[int]) -> None:
        """Nobody has these rows any more."""
        for row in rows:
            self._owners.pop(row, None)
