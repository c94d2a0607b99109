"""Attributes and methods of the envs in workers: values come as copies, what is called or looked into stays there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gymbridge.engine.dispatch import Arguments, Kept
from gymbridge.envs.per_env import PerEnv

__all__ = ["RemotePerEnv"]

Path = tuple[str, ...]
Ask = Callable[[Iterable[int], Path, "Arguments | None"], Mapping[int, Any]]
"""Rows, a path from their envs on and, for a call, its arguments -> what each row gives."""


class RemotePerEnv(PerEnv):
    """A list with one value an env, a copy; calls and attributes reach the value where the env is.

    Args:
        ask: follows a path in each env.
        num_envs: number of envs.
        path: from the env to the value.

    Raises:
        AttributeError: an env lacks it.
    """

    def __init__(self, ask: Ask, num_envs: int, path: Path):
        self._ask, self._path = ask, path
        rows = range(num_envs)
        values = _asked(ask, rows, path)
        super().__init__(
            _Part(ask, row, path, value.text) if isinstance(value, Kept) else value
            for row, value in ((row, values[row]) for row in rows)
        )

    def __call__(self, *args: Any, **kwargs: Any) -> PerEnv:
        """What each env's value gives, called with the arguments."""
        given = self._ask(range(len(self)), self._path, (args, kwargs))
        return PerEnv(given[row] for row in range(len(self)))

    def __getattr__(self, name: str) -> PerEnv:
        if name.startswith("_"):
            raise AttributeError(name)
        return RemotePerEnv(self._ask, len(self), (*self._path, name))

    def __reduce__(self) -> Any:
        return PerEnv, ([*self],)


class _Part:
    """A value of one env that stays with it."""

    def __init__(self, ask: Ask, row: int, path: Path, text: str):
        self._ask, self._row, self._path, self._text = ask, row, path, text

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask([self._row], self._path, (args, kwargs))[self._row]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        path = (*self._path, name)
        value = _asked(self._ask, [self._row], path)[self._row]
        return _Part(self._ask, self._row, path, value.text) if isinstance(value, Kept) else value

    def __repr__(self) -> str:
        return f"<in the worker of env {self._row}: {self._text}>"


def _asked(ask: Ask, rows: Iterable[int], path: Path) -> Mapping[int, Any]:
    try:
        return ask(rows, path, None)
    except AttributeError as error:
        row = getattr(error, "env_index", None)
        told = f"env {row} has no attribute {path[0]!r}" if len(path) == 1 else f"env {row}: {error}"
        raise AttributeError(told) from error
