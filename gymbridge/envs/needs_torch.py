"""Will what makes an env import torch where it is unpickled?"""

from __future__ import annotations

import pickletools
import sys
from collections.abc import Iterable
from types import ModuleType

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
        try:
            pickled = cloudpickle.dumps((source, kwargs))
        except Exception:
            continue
        named.update(
            argument.split(" ")[0] for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str)
        )
    return any(_has_torch(sys.modules[name]) for name in named if name in sys.modules)


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
