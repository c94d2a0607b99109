"""The engine that runs its envs in this process, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from gymbridge.engine.block import Block
from gymbridge.engine.dispatch import Arguments
from gymbridge.engine.gym_host import close_all
from gymbridge.engine.host import EnvDescription, EnvHost, HostOptions, Report
from gymbridge.engine.layout import Layout
from gymbridge.engine.work_counts import EngineStats, Tally

__all__ = ["LocalEngine"]

Env = TypeVar("Env")
Description = TypeVar("Description", bound=EnvDescription)


class LocalEngine(Generic[Env, Description]):
    """Envs of one kind in this process, over a private block.

    Args:
        envs: the envs, one or more, no two of them the same; they are closed by ``close``.
        options: how they are run.

    Attributes:
        envs: the envs; putting another one in an env's place has the engine run that one.
        descriptions: what each env says of itself.
        block: the memory.
        num_envs: number of envs.
        counts: what ``stats`` gives, after ``close`` too.

    Example:
        >>> import gymnasium as gym
        >>> from gymbridge.engine.codes import Op
        >>> from gymbridge.engine.gym_host import GymHostOptions
        >>> engine = LocalEngine([gym.make("CartPole-v1") for _ in range(2)], GymHostOptions())
        >>> engine.allocate()
        >>> report = engine.run(bytes([Op.RESET] * 2), None, [{"seed": 0}, {"seed": 1}])
        >>> engine.block.root["observation",].shape
        (2, 4)
        >>> engine.close()
    """

    block: Block
    unsettled = False
    _host: EnvHost
    _tally: Tally | None = None

    def __init__(self, envs: Iterable[Env], options: HostOptions[Env, Description]):
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        self._options = options
        self.descriptions = [options.describe(env) for env in self.envs]
        self.counts = EngineStats(1)

    def allocate(self) -> None:
        """See :class:`~gymbridge.engine.host.Engine`."""
        self.block = Block(Layout.of(self.descriptions))
        self._host = self._options.host(self.envs, self.block)

    def run(self, ops: bytes, inputs: Any, reset_kwargs: Sequence[Mapping[str, Any]] | None = None) -> Report:
        """One round: one op a row; see :class:`~gymbridge.engine.host.Host`."""
        tally = self._tally
        if tally is None:
            return self._host.run(ops, inputs, reset_kwargs)
        tally.begin_round()
        try:
            return self._host.run(ops, inputs, reset_kwargs)
        finally:
            tally.end_round()

    def stats(self, *, reset: bool = False) -> dict[str, Any]:
        """See :class:`~gymbridge.engine.host.Engine`; the one worker is who calls ``run``."""
        self.counts.begin(self._begin_to_count)
        return self.counts.taken(reset=reset)

    def _begin_to_count(self) -> list[Tally]:
        tally = Tally()
        self._host.count(tally)
        self._tally = tally
        return [tally]

    def attribute(self, row: int, name: str) -> Any:
        """Attribute ``name`` of a row's env."""
        return self._host.attribute(row, name)

    def set_attribute(self, row: int, name: str, value: Any) -> None:
        """Sets attribute ``name`` of a row's env."""
        self._host.set_attribute(row, name, value)

    def call(self, row: int, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Attribute ``name`` of a row's env, called if it is callable."""
        return self._host.call(row, name, args, kwargs)

    def follow(self, row: int, path: Sequence[str], call: Arguments | None = None) -> Any:
        """See :class:`~gymbridge.engine.host.Host`."""
        return self._host.follow(row, path, call)

    def ask(self, verb: str, row: int, *arguments: Any) -> Any:
        """A verb of the host for one row; see :class:`~gymbridge.engine.host.Engine`."""
        return getattr(self._host, verb)(row, *arguments)

    def each(self, verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """A verb of the host for each row; see :class:`~gymbridge.engine.host.Engine`."""
        ask = getattr(self._host, verb)
        return [ask(row, *own) for row, own in enumerate(arguments)]

    def settle(self) -> None:
        """See :class:`~gymbridge.engine.host.Engine`; an interrupted round leaves nothing under way here."""

    def require_workers(self, rows: Iterable[int] | None = None) -> None:
        """See :class:`~gymbridge.engine.host.Engine`; no worker here could have died."""

    def seed(self, row: int, seed: int | None, static_seed: bool) -> None:
        """Gives a row's env a seed for its next reset; see :class:`~gymbridge.engine.host.Host`."""
        self._host.seed(row, seed, static_seed)

    def faults(self, row: int, num_steps: int, seed: int | None) -> list[str]:
        """What a row's env returns against what it says of itself; see :class:`~gymbridge.engine.host.Host`."""
        return self._host.faults(row, num_steps, seed)

    def state(self, row: int) -> dict[str, Any]:
        """The state of a row's env, and of the row."""
        return self._host.state(row)

    def load_state(self, row: int, state: Mapping[str, Any]) -> None:
        """Puts a state back that :meth:`state` gave."""
        self._host.load_state(row, state)

    def close(self) -> None:
        """Closes the envs, each of them even if another's ``close`` raises; raises the first error at the end."""
        self.counts.end()
        close_all(self.envs)
