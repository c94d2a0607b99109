"""The env that a command is about: a registered id, or ``MODULE:MAKER``."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
from gymnasium.error import Error as GymnasiumError

from gymbridge.benchmarking.rounds import in_short
from gymbridge.cli import CommandError
from gymbridge.engine.any_env import EnvBase, is_torchrl_env

__all__ = ["EnvKind", "NamedEnv", "add_env_argument", "env_called", "kind_of"]

EnvKind = Literal["gymnasium", "TensorDict"]


@dataclass(frozen=True)
class NamedEnv:
    """An env that a user named.

    Attributes:
        name: as it was given.
        create_env_fn: what gymbridge's batches take: an id, or a maker.
        import_line: what a program needs to import for the expression; empty for an id.
        expression: ``create_env_fn`` in a program.
    """

    name: str
    create_env_fn: str | Callable[[], Any]
    import_line: str
    expression: str

    @property
    def maker(self) -> Callable[[], Any]:
        """A callable that makes the env, and pickles."""
        return partial(gym.make, self.create_env_fn) if isinstance(self.create_env_fn, str) else self.create_env_fn

    def made(self) -> Any:
        """The env.

        Raises:
            CommandError: making it failed, or gave something else.
        """
        try:
            env = self.maker()
        except (Exception, SystemExit) as error:
            raise CommandError(f"{self.name}: making the env raised {in_short(error)}") from error
        kind_of(env, self.name)
        return env


def add_env_argument(parser: argparse.ArgumentParser) -> None:
    """Adds ``ENV``, as ``arguments.env``."""
    parser.add_argument(
        "env",
        metavar="ENV",
        help="a gymnasium id (CartPole-v1; MODULE:ID imports a module first), or MODULE:MAKER, a callable without "
        "arguments that makes an env; the module may be a file in the current directory",
    )


def env_called(name: str) -> NamedEnv:
    """Finds what a user named; makes no env.

    Raises:
        CommandError: no such id, module or attribute, or an attribute that cannot be called, or not without arguments.

    Example:
        >>> env_called("CartPole-v1").expression
        '"CartPole-v1"'
    """
    module_name, colon, attribute = name.partition(":")
    if not colon:
        _require_registered(name, name)
        return NamedEnv(name, name, "", json.dumps(name))
    module, module_name = _imported(module_name, name)
    found = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            _require_registered(attribute, name, module)
            return NamedEnv(name, name, "", json.dumps(name))
        except Exception as error:  # a module that loads its parts when they are asked for
            raise CommandError(f"{name}: {module_name}.{attribute} raised {in_short(error)}") from error
    if not callable(found):
        raise CommandError(
            f"{name}: got an object of type {type(found).__name__}, expected a callable that makes an env"
        )
    if wanted := _needed_arguments(found):
        raise CommandError(
            f"{name}: got a callable that needs arguments ({wanted}), expected one without any; write a function that "
            f"gives them to it, and name that"
        )
    return NamedEnv(name, found, _import_line(module_name, attribute.partition(".")[0]), attribute)


def kind_of(env: Any, name: str) -> EnvKind:
    """Whether an env is a gymnasium or a TensorDict one.

    Raises:
        CommandError: neither.

    Example:
        >>> kind_of(gym.make("CartPole-v1"), "CartPole-v1")
        'gymnasium'
    """
    if isinstance(env, gym.Env):
        return "gymnasium"
    if isinstance(env, EnvBase):
        return "TensorDict"
    hint = ""
    if isinstance(env, gym.vector.VectorEnv):
        hint = "; it is a batch already"
    elif is_torchrl_env(env):
        hint = "; gymbridge.interop.torchrl.from_torchrl(maker) makes one of TorchRL's"
    raise CommandError(
        f"{name}: the maker gave an object of type {type(env).__name__}, expected a gymnasium.Env or a "
        f"gymbridge.envs.EnvBase{hint}"
    )


def _imported(module_name: str, name: str) -> tuple[Any, str]:
    """A module, which may be a file (``envs.py``), and the name that it is imported by."""
    folder, path = Path.cwd(), None
    if module_name.endswith(".py"):
        path = Path(module_name).resolve()
        folder, module_name = path.parent, path.stem
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # workers get the same path
    try:
        found = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise CommandError(f"{name}: importing {module_name} raised {in_short(error)}") from error
        raise CommandError(
            f"{name}: there is no module {error.name!r}, expected a module that Python finds or a file in {folder}"
        ) from error
    except Exception as error:
        raise CommandError(f"{name}: importing {module_name} raised {in_short(error)}") from error
    except SystemExit as error:  # a script without a guard
        raise CommandError(f"{name}: importing {module_name} ended with SystemExit({error.code!r})") from error
    source = getattr(found, "__file__", None)
    if path is not None and (source is None or Path(source).resolve() != path):
        raise CommandError(
            f"{name}: another module is called {module_name}: {source or 'one of Python itself'}; rename the file"
        )
    return found, module_name


def _import_line(module_name: str, name: str) -> str:
    """What a program has to say to have a name of a module.

    Example:
        >>> _import_line("my_envs", "make"), _import_line("my-envs", "make").splitlines()[1]
        ('from my_envs import make', 'make = import_module("my-envs").make')
    """
    if all(part.isidentifier() and not iskeyword(part) for part in module_name.split(".")):
        return f"from {module_name} import {name}"
    return f"from importlib import import_module\n{name} = import_module({json.dumps(module_name)}).{name}"


def _needed_arguments(maker: Callable[..., Any]) -> str:
    """What a call without arguments lacks; empty where it lacks none, or that cannot be told."""
    try:
        signature = inspect.signature(maker)
    except (TypeError, ValueError):  # of some that are written in C
        return ""
    try:
        signature.bind()
    except TypeError as error:
        return str(error)
    return ""


def _makers_like(name: str, module: Any) -> str:
    """What a module defines that may have been meant, as the end of a sentence; empty where it defines nothing."""
    defined = [
        own
        for own, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__ and not own.startswith("_")
    ]
    meant = get_close_matches(name, defined, cutoff=0.5) or defined[:5]
    return f"; there is {', '.join(meant)}" if meant else ""


def _require_registered(env_id: str, name: str, module: Any = None) -> None:
    """Refuses what is no id, and what is neither an id nor in a module."""
    try:
        gym.spec(env_id)
    except (GymnasiumError, ValueError, ImportError) as error:
        module_name, colon, attribute = name.partition(":")
        if colon:
            raise CommandError(
                f"{name}: module {module_name!r} has no {attribute!r}, and no env of that id is registered; expected "
                f"MODULE:MAKER or MODULE:ID{_makers_like(attribute, module)}"
            ) from error
        hint = ""
        dotted, _, last = name.rpartition(".")
        if os.path.exists(name) or os.path.exists(f"{name}.py"):
            hint = f"; {name} is a file or folder: MODULE:MAKER names a callable in it"
        elif dotted and os.path.exists(f"{dotted.replace('.', '/')}.py"):
            hint = f"; a callable in a module is named with a colon: {dotted}:{last}"
        elif versions := [known for known in gym.registry if known.rpartition("-v")[0] == env_id]:
            hint = f"; there is {', '.join(versions)}"
        raise CommandError(
            f"{name}: got no registered id, expected one or MODULE:MAKER ({in_short(error)}){hint}"
        ) from error
