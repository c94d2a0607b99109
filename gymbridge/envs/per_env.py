"""Attributes and methods of all envs of a batch at once."""

from __future__ import annotations

from typing import Any

__all__ = ["PerEnv"]


class PerEnv(list[Any]):
    """A list with one value an env; calls and attributes reach each value and give such a list again.

    What every list has, ``index`` or ``copy`` say, is the list's own.

    Example:
        >>> PerEnv(["one", "two"]).upper()
        ['ONE', 'TWO']
    """

    def __call__(self, *args: Any, **kwargs: Any) -> PerEnv:
        """What each value gives, called with the arguments."""
        return PerEnv(value(*args, **kwargs) for value in self)

    def __getattr__(self, name: str) -> PerEnv:
        if name.startswith("_"):
            raise AttributeError(name)
        return PerEnv(_attribute(index, value, name) for index, value in enumerate(self))


def _attribute(index: int, value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except AttributeError as error:
        raise AttributeError(f"env {index}: {error}") from error
