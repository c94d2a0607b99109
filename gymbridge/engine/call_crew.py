"""What calls envs in this process, as an engine sees it."""

from __future__ import annotations

import os
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gymbridge.engine.arrivals import Arrivals
from gymbridge.engine.env_calls import CallingHost, EnvCall
from gymbridge.engine.failures import mark_error
from gymbridge.errors import WorkerDiedError

if TYPE_CHECKING:
    from gymbridge.engine.recovery import Recovery

__all__ = ["LEFT_BEHIND", "AlsoArrivals", "CallCrew", "death_of", "errors_of_close", "wait_for_ends", "warn_of_late"]

LEFT_BEHIND = "were left behind: they end when their envs let them"
"""What becomes of threads that do not end in time, in words."""


class CallCrew(ABC):
    """Has made envs, calls them, and closes them.

    No env is ever in two calls at once: who gives it a call has heard of the end of the one before.

    Dropping the last reference ends what calls the envs, once they let it, and closes them.

    Args:
        dead: row -> what its death is told with; filled by what calls the envs.
        release: lets go of all without waiting; it must not hold the crew.
        recovery: sees to envs that die or take too long; None where they may take any time and none is made anew.

    Attributes:
        dead, recovery: as they were given.
        refusal: why it is not to be used any more; empty as long as it is.
    """

    def __init__(self, dead: dict[int, WorkerDiedError], release: Any, recovery: Recovery | None):
        self.dead = dead
        self.recovery = recovery
        self.refusal = ""
        self._release = weakref.finalize(self, release)
        self._release.atexit = False  # what runs the envs sees to that, and waits for what ends then
        _crews.add(self)

    @property
    @abstractmethod
    def envs(self) -> list[Any]:
        """The envs that the makers gave, or those of the host that was taken."""

    @abstractmethod
    def take_host(self, host: CallingHost) -> None:
        """Has the envs of a host called from now on: those that were made, or what is in them."""

    @abstractmethod
    def start(self, calls: Sequence[EnvCall]) -> None:
        """Has calls made; the arrivals of each are told once it has been."""

    def perform(self, calls: Sequence[EnvCall], meanwhile: Callable[[], object] | None = None) -> None:
        """Has calls made and waits until all have been; does something meanwhile."""
        arrivals = Arrivals()
        for call in calls:
            call.arrivals = arrivals
        self.start(calls)
        if meanwhile is not None:
            meanwhile()
        arrivals.wait(len(calls), None)
        arrivals.come.clear()  # the two would hold each other, and what the calls gave, until garbage is collected

    @abstractmethod
    def await_ended(self, calls: Iterable[EnvCall]) -> None:
        """Waits until calls have been made, those of them that an interrupt has let start."""

    def require_open(self) -> None:
        """Refuses use after the end, and in a fork of the process that made the envs."""
        if self.refusal:
            raise RuntimeError(self.refusal)

    def require_elsewhere(self, call: str) -> None:  # noqa: B027  # in threads of their own no env is in the way
        """Refuses what would wait for itself, where it is called.

        Raises:
            RuntimeError: naming the call.
        """

    def require_living(self, rows: Iterable[int]) -> None:
        """Raises the death of the first of these rows that is dead."""
        for row in rows:
            if row in self.dead:
                raise self.dead[row].again()

    def disown(self) -> None:
        """In a fork: what calls the envs is not there."""
        self.refusal = (
            "the workers belong to the process that started them, of which this one is a fork: start others here"
        )
        self._release.detach()

    def close(self, timeout: float | None, terminate: bool) -> list[Exception]:
        """Closes the envs, once their calls have been made, and ends what calls them.

        Args:
            timeout: seconds after which what does not end is cancelled or left behind, with a warning; None to wait
                for ever.
            terminate: let go of it at once, and wait for nothing.

        Returns:
            The errors of envs that could not be closed.
        """
        if self.refusal or not self._release.alive:
            return []
        try:
            return [] if terminate else self._close_envs(timeout)
        finally:
            self.refusal = "the workers are closed"
            self._release()

    @abstractmethod
    def _close_envs(self, timeout: float | None) -> list[Exception]:
        """Closes the envs and waits for that; see ``close``."""


class AlsoArrivals(Arrivals):
    """In place of a call's arrivals: has others know of its end too."""

    __slots__ = ("_arrivals",)

    def __init__(self, *arrivals: Arrivals):
        super().__init__()
        self._arrivals = arrivals

    def add(self, comer: Any) -> None:
        """See :class:`~gymbridge.engine.arrivals.Arrivals`."""
        for each in self._arrivals:
            each.add(comer)


def wait_for_ends(service: Any, calls: Iterable[EnvCall]) -> None:
    """Waits until calls that were begun are done, or given up.

    Args:
        service: what makes them: it tells which are under way.
        calls: those; some may be done.
    """
    ended = Arrivals()
    left = 0
    for call in calls:
        if service.is_under_way(call):
            call.arrivals = AlsoArrivals(call.arrivals, ended)
            if call.is_done:  # after that: it may not have told these
                ended.add(call)
            left += 1
    service.take_up()
    ended.wait(left, None)


def death_of(row: int, error: BaseException) -> WorkerDiedError:
    """What the death of a row is told with, whose env raised what would end a program.

    Example:
        >>> death_of(2, SystemExit(3)).exit_code, death_of(2, SystemExit()).exit_code
        (3, 0)
        >>> death_of(2, KeyboardInterrupt()).exit_code
        1
    """
    code = error.code if isinstance(error, SystemExit) else 1
    death = WorkerDiedError(row, (row,), 0 if code is None else code & 0xFF if isinstance(code, int) else 1)
    death.__cause__ = error
    return death


def warn_of_late(rows: Sequence[int], fate: str) -> None:
    """Warns, where an engine is closed, of envs that were not closed in time."""
    if rows:
        warnings.warn(f"workers {rows} did not close the envs {rows} in time and {fate}", stacklevel=6)


def errors_of_close(errors: Mapping[int, Exception]) -> list[Exception]:
    """What envs raised in their ``close``, in the order of their rows, each marked with its row."""
    for row, error in errors.items():
        mark_error(error, row, f"raised by env {row}")
    return [errors[row] for row in sorted(errors)]


_crews: weakref.WeakSet[CallCrew] = weakref.WeakSet()


def _disown_all() -> None:
    for crew in list(_crews):
        crew.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
