"""Attributes of envs by a path, wherever the envs are: what is looked into or called stays where it is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gymbridge.engine.workers.pickling import dumps_plainly

__all__ = ["Arguments", "FollowsPaths", "Kept"]

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


class Kept(NamedTuple):
    """In place of a value that stays with its env: a method, say, or something that cannot be pickled.

    Attributes:
        text: how the value shows.
    """

    text: str


class FollowsPaths:
    """What a host has that knows the attributes of its rows' envs."""

    @abstractmethod
    def attribute(self, row: int, name: str) -> Any:
        """See :class:`~gymbridge.engine.host.Host`."""

    def follow(self, row: int, path: Sequence[str], call: Arguments | None = None) -> Any:
        """See :class:`~gymbridge.engine.host.Host`."""
        value = self.attribute(row, path[0])
        for name in path[1:]:
            value = getattr(value, name)
        if call is not None:
            arguments, named = call
            return value(*arguments, **named)
        return value if _can_leave(value) else Kept(repr(value))


def _can_leave(value: Any) -> bool:
    """Whether a copy of a value says all that there is to know; one of a method would act on a copy of its env."""
    if isinstance(value, list):
        return all(_can_leave(part) for part in value)
    if callable(value):
        return False
    try:
        dumps_plainly(value)
    except Exception:
        return False
    return True
