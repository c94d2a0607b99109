"""The engine that runs its envs in this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym

from gymbridge.engine.block import Block
from gymbridge.engine.gym_host import GymEnvDescription, GymHost, GymHostOptions, close_all
from gymbridge.engine.host import Report
from gymbridge.engine.layout import Layout

__all__ = ["LocalEngine", "make_all"]


class LocalEngine:
    """Envs of one kind in this process, over a private block.

    Args:
        makers: one callable an env.
        options: how gymnasium envs are run.

    Attributes:
        descriptions: what each env says of itself.
        block: the memory.
        num_envs: number of envs.

    Raises:
        ValueError: no maker.
        TypeError: a maker gave something that is not a ``gymnasium.Env``.

    Whatever a maker raises comes through, after the envs already made are closed.

    Example:
        >>> from gymbridge.engine.codes import Op
        >>> engine = LocalEngine([lambda: gym.make("CartPole-v1")] * 2, GymHostOptions())
        >>> engine.allocate()
        >>> report = engine.run(bytes([Op.RESET] * 2), [None] * 2, [{"seed": 0}, {"seed": 1}])
        >>> engine.block.root["observation",].shape
        (2, 4)
        >>> engine.close()
    """

    def __init__(self, makers: Iterable[Callable[[], Any]], options: GymHostOptions):
        envs = make_all(makers, gym.Env)
        self.num_envs = len(envs)
        self._host = GymHost(envs, options)
        self.descriptions: list[GymEnvDescription] = self._host.descriptions()

    @property
    def envs(self) -> list[gym.Env[Any, Any]]:
        """The envs themselves."""
        return self._host.envs

    def allocate(self) -> None:
        """Makes the block, once the caller has seen from ``descriptions`` that the envs fit together."""
        first = self.descriptions[0]
        self.block = Block(
            Layout(self.num_envs, input=first.input_leaves, next=first.next_leaves, root=first.root_leaves)
        )
        self._host.attach(self.block)

    def run(
        self,
        ops: bytes,
        actions: Iterable[Any],
        reset_kwargs: Sequence[Mapping[str, Any]] | None = None,
    ) -> Report:
        """One round: one op a row; see :class:`~gymbridge.engine.host.Host`."""
        return self._host.run(ops, actions, reset_kwargs)

    def call(self, row: int, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Attribute ``name`` of a row's env, called if it is callable."""
        return self._host.call(row, name, args, kwargs or {})

    def set_attribute(self, row: int, name: str, value: Any) -> None:
        """Sets an attribute of a row's env."""
        self._host.set_attribute(row, name, value)

    def render(self, row: int) -> Any:
        """What a row's env renders."""
        return self._host.render(row)

    def faults(self, row: int, num_steps: int, seed: int | None) -> list[str]:
        """What a row's env returns against its spaces; see :func:`gymbridge.engine.contract.env_faults`."""
        return self._host.faults(row, num_steps, seed)

    def close(self) -> None:
        """Closes the envs, each of them even if another's ``close`` raises; raises the first error at the end."""
        self._host.close()


def make_all(makers: Iterable[Callable[[], Any]], *kinds: type) -> list[Any]:
    """Calls each maker; where one fails, the envs already made are closed and its error comes through.

    Raises:
        ValueError: no maker.
        TypeError: a maker gave something that is none of ``kinds``.
    """
    envs: list[Any] = []
    try:
        for index, maker in enumerate(makers):
            env = maker()
            envs.append(env)
            if not isinstance(env, kinds):
                expected = " or ".join(f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in kinds)
                raise TypeError(
                    f"the maker of env {index} gave {env!r} of type {type(env).__name__}, expected a {expected}"
                )
        if not envs:
            raise ValueError("got no maker of an env, expected one or more")
    except BaseException:
        with suppress(Exception):  # what went wrong first is what the caller is to see
            close_all(env for env in envs if hasattr(env, "close"))
        raise
    return envs
