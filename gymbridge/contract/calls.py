"""Calls of an env under check: what it raises, how long it takes, and which random generators it draws from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from gymbridge.contract.findings import Findings, told
from gymbridge.contract.surroundings import CallHangs, global_generators, limited

__all__ = ["Calls", "Options", "PhaseOver", "phase"]


@dataclass(frozen=True)
class Options:
    """How an env is checked.

    Attributes:
        num_steps: of the longest run.
        seed: of its first episode.
        step_timeout: seconds that a call of an env may take; None for no limit.
        start_timeout: seconds in which an env is made, here or in workers, and in which it closes; None for no limit.
        workers: run envs in worker processes too.
        progress: is told what is looked at next.
    """

    num_steps: int
    seed: int
    step_timeout: float | None
    start_timeout: float | None
    workers: bool
    progress: Callable[[str], object]

    @property
    def num_compared(self) -> int:
        """Steps of the runs that are compared with one another, of which there are many."""
        return min(self.num_steps, 100)


class PhaseOver(Exception):
    """An env cannot go on with what it is at; the fault that says why has been noted."""


@contextmanager
def phase() -> Iterator[None]:
    """Something that may end early, since the env cannot go on; what comes after it is looked at still.

    Example:
        >>> with phase():
        ...     raise PhaseOver
    """
    with suppress(PhaseOver):
        yield


class Calls:
    """Calls an env and notes what goes wrong.

    Args:
        findings: where faults go.
        step_timeout: seconds that a reset or a step may take.
        start_timeout: seconds that making an env or closing it may take.
        seeds_torch: an env's seed reaches torch's shared generator too.
    """

    def __init__(self, findings: Findings, step_timeout: float | None, start_timeout: float | None, seeds_torch: bool):
        self._findings = findings
        self._step_timeout = step_timeout
        self._start_timeout = start_timeout
        self._seeds_torch = seeds_torch

    def call(self, name: str, where: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the function gives.

        Args:
            name: ``"reset"``, ``"step"``, ``"close"``, ``"close-twice"`` or ``"make-again"``: the code of what it
                raises is ``f"{name}-raises"``.
            where: the call, as faults tell it.

        Raises:
            PhaseOver: it raised, or took too long.
        """
        before = global_generators()
        value = self.attempt(name, where, function, *args, **kwargs)
        after = global_generators()
        for generator, state in before.items():
            if after[generator] != state:
                code = "torch-random" if generator == "torch" and self._seeds_torch else "global-random"
                self._findings.add(code, where, "", f"draws from {generator}", "draws from generators of its own")
        return value

    def attempt(self, name: str, where: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The same of what may well move the shared generators."""
        may_hang = name in ("reset", "step")
        try:
            with limited(self._step_timeout if may_hang else self._start_timeout):
                return function(*args, **kwargs)
        except CallHangs as error:
            code = f"{name}-hangs" if may_hang else f"{name}-raises"
            self._findings.add(code, where, "", f"a call that {error}", "one that comes back")
            raise PhaseOver from None
        except (Exception, SystemExit) as error:
            self._findings.add(f"{name}-raises", where, "", told(error), "no exception")
            raise PhaseOver from error
