"""The warnings filters of the parent process, for its workers.

A filter may name a category of a module that the worker has not imported, and may never import (torch has such filters
put in place): it is to cost no import, and to hold all the same once the module is there.
"""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from typing import Any, NamedTuple, cast

import cloudpickle

__all__ = ["WarningFilter", "current_filters", "set_filters"]


class WarningFilter(NamedTuple):
    """The arguments of the ``warnings.filterwarnings`` that makes a filter, with its category by name.

    Attributes:
        action, message, module, lineno: as there.
        category: its module and qualified name.
        pickled_category: the category itself, where no module can be asked for it.
    """

    action: Any
    message: str
    category: tuple[str, str]
    module: str
    lineno: int
    pickled_category: bytes | None


def current_filters() -> list[WarningFilter]:
    """Those of this process, the one that is asked first at the front."""
    filters = []
    category: Any
    for action, message, category, module, lineno in list(warnings.filters):
        pickled = None
        if category.__module__ == "__main__":
            with contextlib.suppress(Exception):  # the filter then holds for nothing there
                pickled = cloudpickle.dumps(category)
        name = (category.__module__, category.__qualname__)
        filters.append(WarningFilter(action, _pattern(message), name, _pattern(module), lineno, pickled))
    return filters


def set_filters(filters: list[WarningFilter]) -> None:
    """Has these filters hold in this process, and no others.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", BytesWarning)
        ...     filters = current_filters()
        >>> with warnings.catch_warnings():
        ...     set_filters(filters)
        ...     warnings.warn("example", BytesWarning)
        Traceback (most recent call last):
        BytesWarning: example
    """
    warnings.resetwarnings()
    for action, message, name, module, lineno, pickled in filters:
        with contextlib.suppress(Exception):  # what makes no sense here leaves the others alone
            category = _named(name) if pickled is None else cloudpickle.loads(pickled)
            warnings.filterwarnings(action, message, category or _later(name), module, lineno, append=True)


def _pattern(pattern: re.Pattern[str] | str | None) -> str:
    if pattern is None:
        return ""
    # the interpreter's own filters hold strings, which must match whole
    return rf"{re.escape(pattern)}\Z" if isinstance(pattern, str) else pattern.pattern


def _named(name: tuple[str, str]) -> type[Warning] | None:
    """The category of that name, if its module has been imported."""
    value: Any = sys.modules.get(name[0])
    for part in name[1].split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, type) else None


class _ByName(type):
    """Of classes that stand for a category which may not be there yet: a filter asks for subclasses, no more."""

    stands_for: tuple[str, str]

    def __subclasscheck__(cls, subclass: type) -> bool:
        category = _named(cls.stands_for)
        return category is not None and issubclass(subclass, category)


def _later(name: tuple[str, str]) -> type[Warning]:
    stand_in: Any = _ByName(name[1], (Warning,), {"stands_for": name})
    return cast(type[Warning], stand_in)
