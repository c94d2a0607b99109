"""Keys of nested specs: a name, or a path of names."""

from __future__ import annotations

from typing import Any, TypeAlias

Key: TypeAlias = "str | tuple[str, ...]"


def is_key(item: Any) -> bool:
    """Say whether ``item`` is a key rather than an index."""
    return isinstance(item, str) or (isinstance(item, tuple) and bool(item) and all(isinstance(k, str) for k in item))


def as_path(key: Any) -> tuple[str, ...]:
    """Return a key as a tuple of strings.

    Raises:
        TypeError: it is neither a string nor a non-empty tuple of strings.
    """
    if not is_key(key):
        raise TypeError(f"a key is a string or a non-empty tuple of strings, got {key!r}")
    return (key,) if isinstance(key, str) else tuple(key)
