"""Envs of which only their worker knows what they are: gymnasium's, TensorDict envs, or some of each. No torch here.

A front that takes both has the workers describe them with :class:`AnyEnvOptions` first, chooses how they are run, and
has them described again under the options of its choice.
"""

from __future__ import annotations

import os
import reprlib
from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import gymnasium as gym

from gymbridge.engine.block import Block
from gymbridge.engine.gym_host import GymEnvDescription, GymHost, GymHostOptions
from gymbridge.engine.gym_inputs import GymInputs
from gymbridge.engine.layout import Leaf

__all__ = ["AnyEnvDescription", "AnyEnvOptions", "EnvBase", "WrappedGymOptions", "core_objects", "is_torchrl_env"]


class EnvBase(ABC):  # noqa: B024  # it only looks for a method
    """The type of TensorDict envs, told by what they have: ``gymbridge.envs.EnvBase`` itself is not to be imported.

    Example:
        >>> isinstance(gym.make("CartPole-v1"), EnvBase)
        False
    """

    @classmethod
    def __subclasshook__(cls, kind: type) -> bool:
        return hasattr(kind, "_engine_description")


def is_torchrl_env(env: Any) -> bool:
    """Whether it is an env of TorchRL's or of a class that is made of one; TorchRL is not imported.

    Example:
        >>> is_torchrl_env(gym.make("CartPole-v1"))
        False
    """
    return any(kind.__module__.partition(".")[0] == "torchrl" for kind in type(env).__mro__)


class AnyEnvDescription:
    """What an env says of itself before anybody has chosen how it is run.

    Attributes:
        kind: a :class:`~gymbridge.engine.gym_host.GymEnvDescription`, or what a TensorDict env's
            ``_engine_description`` gives.
        cores: (process, object) -> how an env in it looks, without its wrappers: two envs that share one are the same.
    """

    input_leaves: tuple[Leaf, ...] = ()
    next_leaves: tuple[Leaf, ...] = ()
    root_leaves: tuple[Leaf, ...] = ()

    def __init__(self, kind: Any, cores: Mapping[tuple[int, int], str]):
        self.kind = kind
        self.cores = cores


class AnyEnvOptions:
    """Has the envs of a worker described, whatever they are."""

    def __init__(self) -> None:
        self._first: GymEnvDescription | None = None

    def describe(self, env: Any) -> AnyEnvDescription:
        """What an env says of itself."""
        process = os.getpid()
        cores = {(process, id(core)): reprlib.repr(core) for core in core_objects(env)}
        if not isinstance(env, gym.Env):
            return AnyEnvDescription(env._engine_description(), cores)
        kind = GymEnvDescription.of(env, GymHostOptions())
        if self._first is not None and _same(self._first, kind):
            kind = self._first  # one object is pickled once: spaces of images are large
        self._first = self._first or kind
        return AnyEnvDescription(kind, cores)

    @property
    def kinds(self) -> tuple[type, ...]:
        """What the makers may give."""
        return (gym.Env, EnvBase)

    def host(self, envs: Sequence[Any], block: Block) -> NoReturn:
        """Refused: nobody has chosen yet.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("the envs have been described, but how they are run has not been chosen yet")

    def inputs(self, descriptions: Any, block: Block) -> NoReturn:
        """Refused, as ``host`` is.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("the envs have been described, but how they are run has not been chosen yet")


class WrappedGymOptions:
    """How gymnasium envs are run each of which a TensorDict env has as its ``env``.

    Args:
        host: how the gymnasium envs are run.
    """

    def __init__(self, host: GymHostOptions):
        self._host = host

    def describe(self, env: Any) -> GymEnvDescription:
        """What the gymnasium env says of itself."""
        return self._host.describe(env.env)

    @property
    def kinds(self) -> tuple[type, ...]:
        """What the makers may give."""
        return (gym.Env, EnvBase)

    def host(self, envs: Sequence[Any], block: Block) -> GymHost:
        """The host that runs the gymnasium envs."""
        return self._host.host([env.env for env in envs], block)

    def inputs(self, descriptions: Sequence[GymEnvDescription], block: Block) -> GymInputs:
        """How actions reach a host in another process."""
        return self._host.inputs(descriptions, block)


def core_objects(env: Any) -> list[Any]:
    """The env without its wrappers; of a batch in this process, or of an env around one, itself and those inside."""
    if isinstance(env, gym.Env):
        return [env.unwrapped]
    is_ours = hasattr(type(env), "_engine_description")  # another library's env has none to tell of
    inside = env._inner_envs() if is_ours else ()
    return [env, *(core for inner in inside for core in core_objects(inner))]


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # spaces may compare in ways of their own
        return False
