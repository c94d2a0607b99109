"""What editors and type checkers see of public names."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, get_type_hints

import pytest

from gymbridge import ParallelEnv
from gymbridge.vector import from_vector_env

MODULES = ["gymbridge", "gymbridge.envs", "gymbridge.spaces", "gymbridge.specs", "gymbridge.vector"]
PUBLIC = [getattr(module, name) for module in map(import_module, MODULES) for name in module.__all__]
CLASSES = {value for value in PUBLIC if inspect.isclass(value) and value.__module__.startswith("gymbridge")}


def told_return(function: Any) -> str:
    """The return annotation as it is written; names that only type checkers import are in it."""
    told: str = inspect.unwrap(function).__annotations__["return"]
    return told


@pytest.mark.parametrize("cls", sorted(CLASSES, key=lambda cls: cls.__name__), ids=lambda cls: cls.__name__)
def test_an_object_is_of_its_class(cls: type) -> None:
    """Pyright takes a ``__new__`` that gives ``Any`` at its word, and then an editor completes nothing."""
    for base in cls.__mro__:
        if base.__module__.startswith("gymbridge") and not issubclass(base, tuple) and "__new__" in vars(base):
            assert told_return(base.__new__) == "Self", base


def test_a_batch_in_workers_is_a_parallel_env() -> None:
    assert told_return(ParallelEnv.__new__) == told_return(ParallelEnv.make_parallel) == "Self"


def test_what_from_vector_env_gives_has_the_vector_envs_attributes() -> None:
    """``env.render()``, ``env.np_random`` and what else it passes on."""
    given = get_type_hints(from_vector_env)["return"]
    assert told_return(given.__getattr__) == "Any"
