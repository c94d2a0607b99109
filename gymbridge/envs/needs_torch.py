"""Will what makes an env import torch where it is unpickled?"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from gymbridge.engine.makers import EnvMaker

__all__ = ["need_torch"]

_TORCH = frozenset({"torch", "tensordict"})


def need_torch(makers: Iterable[EnvMaker]) -> bool:
    """Whether the pickle of a maker names a module that has something of torch in it, as far as can be told from here.

    A wrong answer costs the workers time or memory, nothing else. What cannot be pickled is told by who sends it.

    Example:
        >>> need_torch([EnvMaker("CartPole-v1", {})])
        False
        >>> from gymbridge.envs import GymEnv
        >>> need_torch([EnvMaker(lambda: GymEnv("CartPole-v1"), {})])
        True
    """
    named: set[str] = set()
    for source, kwargs in {id(maker.source): (maker.source, maker.kwargs) for maker in makers}.values():
        with suppress(Exception):
            _NamedModules(named).dump((source, kwargs))
    return any(_has_torch(sys.modules[name]) for name in named if name in sys.modules)


class _NamedModules(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles, to no purpose but to see which modules are to be imported for it."""

    def __init__(self, named: set[str]):
        super().__init__(io.BytesIO())
        self._named = named

    def reducer_override(self, value: Any) -> Any:
        reduced = super().reducer_override(value)
        if isinstance(value, ModuleType):
            self._named.add(value.__name__)
        elif reduced is NotImplemented and isinstance(value, (type, FunctionType)):  # by name, that is
            self._named.add(value.__module__)
        return reduced


def _has_torch(module: ModuleType) -> bool:
    return module.__name__.partition(".")[0] in _TORCH or any(
        _root(value) in _TORCH or _origin(value).startswith(("gymbridge.envs", "gymbridge.specs"))
        for value in list(vars(module).values())
    )


def _origin(value: object) -> str:
    origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return origin if isinstance(origin, str) else ""


def _root(value: object) -> str:
    return _origin(value).partition(".")[0]
