"""The engine that runs its envs in this process, one after the other."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym

from gymbridge.engine.block import Block
from gymbridge.engine.gym_host import GymEnvDescription, GymHost, GymHostOptions, close_all
from gymbridge.engine.host import Host, Report
from gymbridge.engine.layout import Layout

__all__ = ["LocalEngine", "make_all"]


class LocalEngine:
    """Envs of one kind in this process, over a private block.

    Args:
        envs: the envs, one or more, no two of them the same; they are closed by ``close``.
        options: how they are run.

    Attributes:
        envs: the envs; putting another one in an env's place has the engine run that one.
        descriptions: what each env says of itself.
        block: the memory.
        num_envs: number of envs.

    Example:
        >>> from gymbridge.engine.codes import Op
        >>> engine = LocalEngine([gym.make("CartPole-v1") for _ in range(2)], GymHostOptions())
        >>> engine.allocate()
        >>> report = engine.run(bytes([Op.RESET] * 2), [None] * 2, [{"seed": 0}, {"seed": 1}])
        >>> engine.block.root["observation",].shape
        (2, 4)
        >>> engine.close()
    """

    block: Block
    _host: Host

    def __init__(self, envs: Iterable[gym.Env[Any, Any]], options: GymHostOptions):
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        self._options = options
        self.descriptions = [GymEnvDescription.of(env, options) for env in self.envs]

    def allocate(self) -> None:
        """See :class:`~gymbridge.engine.host.Engine`."""
        first = self.descriptions[0]
        self.block = Block(
            Layout(self.num_envs, input=first.input_leaves, next=first.next_leaves, root=first.root_leaves)
        )
        self._host = GymHost(self.envs, self._options, self.block)

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
        return self._host.call(row, name, args, kwargs)

    def faults(self, row: int, num_steps: int, seed: int | None) -> list[str]:
        """What a row's env returns against its spaces; see :func:`gymbridge.engine.contract.env_faults`."""
        return self._host.faults(row, num_steps, seed)

    def state(self, row: int) -> dict[str, Any]:
        """The state of a row's env, and of the row; see :func:`gymbridge.engine.env_state.env_state`."""
        return self._host.state(row)

    def load_state(self, row: int, state: Mapping[str, Any]) -> None:
        """Puts a state back that :meth:`state` gave."""
        self._host.load_state(row, state)

    def close(self) -> None:
        """Closes the envs, each of them even if another's ``close`` raises; raises the first error at the end."""
        close_all(self.envs)


def make_all(makers: Iterable[Callable[[], Any]], *kinds: type) -> list[Any]:
    """Calls each maker; where one fails, the envs already made are closed and its error comes through.

    Raises:
        ValueError: no maker.
        TypeError: something that cannot be called, or that gave something that is none of ``kinds``, of which
            ``gymnasium.Env`` is the first.
    """
    envs: list[Any] = []
    try:
        for index, maker in enumerate(makers):
            if not callable(maker):
                raise TypeError(
                    f"the maker of env {index}: got {reprlib.repr(maker)} of type {type(maker).__name__}, expected a "
                    f"callable that makes an env"
                )
            env = maker()
            envs.append(env)
            if not isinstance(env, kinds):
                expected = " or a ".join(kind.__name__ for kind in kinds)
                raise TypeError(
                    f"the maker of env {index} gave {reprlib.repr(env)} of type {type(env).__name__}, "
                    f"expected a gymnasium.{expected}"
                )
        if not envs:
            raise ValueError("got no maker of an env, expected one or more")
    except BaseException:
        with suppress(Exception):  # what went wrong first is what the caller is to see
            close_all(env for env in envs if hasattr(env, "close"))
        raise
    return envs
