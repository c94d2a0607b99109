"""Makers of envs: callables that pickle, and envs made by them, all or none."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import cloudpickle
import gymnasium as gym

from gymbridge.engine.failures import mark_error
from gymbridge.engine.gym_host import close_all
from gymbridge.engine.import_races import made_by

__all__ = ["EnvMaker", "as_env_fns", "is_env", "listed", "make_all", "require_env", "require_maker"]


class EnvMaker:
    """Makes an env, from whatever a user gives to make one; it pickles wherever that does with cloudpickle.

    Args:
        source: an env, a registered gymnasium id, or a callable.
        kwargs: for ``gymnasium.make`` or the callable.
        remakes: it will be called more than once.

    Raises:
        TypeError: none of the three, or an env that is made already where kwargs are given or more are to be made.

    Example:
        >>> EnvMaker("CartPole-v1", {"max_episode_steps": 10})().spec.max_episode_steps
        10
    """

    def __init__(self, source: Any, kwargs: Mapping[str, Any], *, remakes: bool = False):
        made_already = is_env(source)
        if not made_already and not isinstance(source, str) and not callable(source):
            raise TypeError(
                f"got {reprlib.repr(source)} of type {type(source).__name__}, "
                f"expected an env, a registered id or a callable that makes an env"
            )
        if made_already and kwargs:
            raise TypeError(f"make_kwargs: got {sorted(kwargs)} with an env that is made already, expected none")
        if made_already and remakes:
            raise TypeError("info='auto' looks at a separate env: give an id or a maker instead of an env")
        self.source = source
        self.kwargs = dict(kwargs)

    def __call__(self) -> Any:
        """An env; the same one each time where that is what was given."""
        if is_env(self.source):
            return self.source
        if isinstance(self.source, str):
            return made_by(gym.make, (self.source,), self.kwargs)
        return made_by(self.source, (), self.kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _maker_of, (cloudpickle.dumps((self.source, self.kwargs)),)


def _maker_of(pickled: bytes) -> EnvMaker:
    return EnvMaker(*cloudpickle.loads(pickled))


def is_env(source: Any) -> bool:
    """Whether it is an env, of gymnasium or a TensorDict one, rather than something that makes one."""
    return not isinstance(source, type) and hasattr(source, "reset") and hasattr(source, "step")


def as_env_fns(makers: Any) -> Any:
    """What a vector env is given to make its envs of; a lone maker, which cannot be gone through, is refused.

    Raises:
        TypeError: no iterable.
    """
    try:
        iter(makers)
    except TypeError:
        raise TypeError(
            f"env_fns: got {reprlib.repr(makers)} of type {type(makers).__name__}, expected a list of callables, one "
            f"for each env"
        ) from None
    return makers


def listed(makers: Iterable[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """The makers of an engine's envs, of which there must be one.

    Raises:
        ValueError: there is none.
    """
    makers = list(makers)
    if not makers:
        raise ValueError("got no maker of an env, expected one or more")
    return makers


def require_maker(index: int, maker: Any) -> None:
    """Refuses what makes no env.

    Raises:
        TypeError: naming the env that it is for.
    """
    if not callable(maker):
        raise TypeError(
            f"the maker of env {index}: got {reprlib.repr(maker)} of type {type(maker).__name__}, expected a "
            f"callable that makes an env"
        )


def require_env(index: int, env: Any, kinds: tuple[type, ...]) -> None:
    """Refuses what a maker gave that is no env.

    Args:
        index: of the env.
        env: what its maker gave.
        kinds: what it may give, ``gymnasium.Env`` first.

    Raises:
        TypeError: naming the env.
    """
    if not isinstance(env, kinds):
        expected = " or an ".join(kind.__name__ for kind in kinds)
        raise TypeError(
            f"the maker of env {index} gave {reprlib.repr(env)} of type {type(env).__name__}, "
            f"expected a gymnasium.{expected}"
        )


def make_all(makers: Iterable[Callable[[], Any]], *kinds: type, first: int = 0) -> list[Any]:
    """Calls each maker; where one fails, the envs already made are closed and its error comes through.

    The error gets the env's index as ``env_index`` and, on Python 3.11 and later, a note that names it.

    Args:
        makers: the makers.
        kinds: what they may give, ``gymnasium.Env`` first.
        first: index of the first maker's env.

    Raises:
        ValueError: no maker.
        TypeError: something that cannot be called, or that gave something that is none of ``kinds``, of which
            ``gymnasium.Env`` is the first.
    """
    envs: list[Any] = []
    index = first
    try:
        for index, maker in enumerate(makers, first):
            require_maker(index, maker)
            env = maker()
            envs.append(env)
            require_env(index, env, kinds)
        if not envs:
            raise ValueError("got no maker of an env, expected one or more")
    except BaseException as error:
        if isinstance(error, Exception):
            mark_error(error, index, f"raised while env {index} was made")
        with suppress(Exception):  # what went wrong first is what the caller is to see
            close_all(env for env in envs if hasattr(env, "close"))
        raise
    return envs
