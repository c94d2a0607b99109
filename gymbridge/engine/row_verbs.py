"""The verbs of a host for one row, as an engine has them that can ask a row for any."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from gymbridge.engine.dispatch import Arguments

__all__ = ["RowVerbs"]


class RowVerbs(ABC):
    """What has ``ask``; where the envs are elsewhere than in this process, values are copies, both ways."""

    @abstractmethod
    def ask(self, verb: str, row: int, *arguments: Any) -> Any:
        """A verb of the host for one row; see :class:`~gymbridge.engine.host.Engine`."""

    def attribute(self, row: int, name: str) -> Any:
        """Attribute ``name`` of a row's env."""
        return self.ask("attribute", row, name)

    def set_attribute(self, row: int, name: str, value: Any) -> None:
        """Sets attribute ``name`` of a row's env."""
        self.ask("set_attribute", row, name, value)

    def call(self, row: int, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Attribute ``name`` of a row's env, called if it is callable."""
        return self.ask("call", row, name, args, kwargs)

    def follow(self, row: int, path: Sequence[str], call: Arguments | None = None) -> Any:
        """See :class:`~gymbridge.engine.host.Host`."""
        return self.ask("follow", row, path, call)

    def seed(self, row: int, seed: int | None, static_seed: bool) -> None:
        """Gives a row's env a seed for its next reset; see :class:`~gymbridge.engine.host.Host`."""
        self.ask("seed", row, seed, static_seed)

    def faults(self, row: int, num_steps: int, seed: int | None) -> list[str]:
        """What a row's env returns against what it says of itself; see :class:`~gymbridge.engine.host.Host`."""
        faults: list[str] = self.ask("faults", row, num_steps, seed)
        return faults

    def state(self, row: int) -> dict[str, Any]:
        """The state of a row's env, and of the row."""
        state: dict[str, Any] = self.ask("state", row)
        return state

    def load_state(self, row: int, state: Mapping[str, Any]) -> None:
        """Puts a state back that :meth:`state` gave."""
        self.ask("load_state", row, state)
