"""What the workers of an engine have done, and where their time has gone: counted once somebody has asked.

A worker is whatever runs envs: a process, a thread, or the caller itself. Its time is of three kinds::

    waiting for work │ round: copying │ env.step │ copying │ env.step │ copying │ waiting for work
                     └── begin_round                                  end_round ┘

What it counts only grows, and only it writes that, so that counting takes no message and no lock: a worker of another
process counts in memory that the caller sees. Who reads has what was read before and takes differences, so that counts
begin anew while steps are under way.

Nothing here runs before the first question: an env is called by a :class:`CountedEnv` from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gymbridge.engine.turns import Turns

if TYPE_CHECKING:
    from gymbridge.engine.restarts import Restarts

__all__ = [
    "NUM_FIGURES",
    "CountedEnv",
    "EngineStats",
    "Figures",
    "SharedTally",
    "Tally",
    "counted",
    "forget_round",
    "note_round",
]

NUM_FIGURES = 4
"""How many numbers a worker's part of shared memory has."""

_BEGUN_AT, _STEPS, _STEP_S, _COPY_S = range(NUM_FIGURES)


class Figures(NamedTuple):
    """What a worker has done since it began to count.

    Attributes:
        steps: calls of a step of an env, those that raised too.
        step_s: seconds in steps and resets of envs.
        copy_s: seconds of rounds that were not.
        under_way_s: seconds of the work under way, or of work that has come to its end and is not counted yet. They
            may be counted above already, so that what is left for waiting is too little and not too much.
    """

    steps: int = 0
    step_s: float = 0.0
    copy_s: float = 0.0
    under_way_s: float = 0.0


class Readable(Protocol):
    """What tells the figures of a worker."""

    def read(self, now: float) -> Figures:
        """The figures at a time, on ``time.perf_counter``'s clock, that was taken before the call."""


class Tally:
    """Counts what a worker does.

    Attributes:
        steps, step_s, copy_s: see :class:`Figures`.
        begun_at: when the round under way began, on ``time.perf_counter``'s clock; zero between rounds.

    Example:
        >>> tally = Tally()
        >>> tally.begin_round()
        >>> tally.steps += 1
        >>> tally.end_round()
        >>> tally.read(perf_counter()).steps
        1
    """

    __slots__ = ("_step_s_before", "begun_at", "copy_s", "step_s", "steps")

    def __init__(self) -> None:
        self.begun_at = 0.0
        self.steps = 0
        self.step_s = self.copy_s = self._step_s_before = 0.0

    def begin_round(self) -> None:
        """The worker has been given work."""
        self._step_s_before = self.step_s
        self.begun_at = perf_counter()

    def end_round(self) -> None:
        """It has done that."""
        self.copy_s += perf_counter() - self.begun_at - (self.step_s - self._step_s_before)
        self.begun_at = 0.0

    def read(self, now: float) -> Figures:
        """See :class:`Readable`."""
        begun_at = self.begun_at  # first: what ends from here on is counted twice and not left out
        return Figures(self.steps, self.step_s, self.copy_s, max(0.0, now - begun_at) if begun_at else 0.0)


class SharedTally(Tally):
    """A tally of which others read what it was at the end of the last round.

    Args:
        places: float64 ``[NUM_FIGURES]``, in the memory that they see; it goes on from what stands there.

    Example:
        >>> places = np.zeros(NUM_FIGURES)
        >>> theirs, ours = SharedTally(places), SharedTally(places)
        >>> theirs.begin_round()
        >>> theirs.steps += 3
        >>> ours.read(perf_counter()).steps
        0
        >>> theirs.end_round()
        >>> ours.read(perf_counter()).steps
        3
    """

    __slots__ = ("_places",)

    def __init__(self, places: npt.NDArray[np.float64]):
        super().__init__()
        self._places: Any = memoryview(places.data)  # setting an item of it costs less than one of an array
        self.steps = int(places[_STEPS])
        self.step_s, self.copy_s = float(places[_STEP_S]), float(places[_COPY_S])

    def begin_round(self) -> None:
        """See :class:`Tally`."""
        super().begin_round()
        self._places[_BEGUN_AT] = self.begun_at

    def end_round(self) -> None:
        """See :class:`Tally`."""
        super().end_round()
        places = self._places
        places[_STEPS] = self.steps
        places[_STEP_S] = self.step_s
        places[_COPY_S] = self.copy_s
        places[_BEGUN_AT] = 0.0

    def read(self, now: float) -> Figures:
        """See :class:`Readable`."""
        places = self._places
        begun_at = places[_BEGUN_AT]  # first: see Tally.read
        under_way_s = max(0.0, now - begun_at) if begun_at else 0.0
        return Figures(int(places[_STEPS]), places[_STEP_S], places[_COPY_S], under_way_s)


def forget_round(places: npt.NDArray[np.float64]) -> None:
    """A worker has died, and with it the round that it was in, if it was in one."""
    places[_BEGUN_AT] = 0.0


def note_round(places: npt.NDArray[np.float64]) -> None:
    """A worker that has memory and a clock of its own is in a round from now on."""
    places[_BEGUN_AT] = perf_counter()


class CountedEnv:
    """Called in the place of an env, whose steps and resets it counts; the env is looked up at each call.

    Args:
        envs: those of the host.
        row: the env's place among them.
        tally: where it is counted.

    Example:
        >>> import gymnasium as gym
        >>> env = CountedEnv([gym.make("CartPole-v1")], 0, tally := Tally())
        >>> _ = env.reset(seed=0)
        >>> _ = env.step(0)
        >>> tally.steps
        1
    """

    __slots__ = ("_envs", "_row", "_tally")

    def __init__(self, envs: Sequence[Any], row: int, tally: Tally):
        self._envs = envs
        self._row = row
        self._tally = tally

    def step(self, action: Any) -> Any:
        """The step of a gymnasium env."""
        tally = self._tally
        tally.steps += 1
        begun = perf_counter()
        try:
            return self._envs[self._row].step(action)
        finally:
            tally.step_s += perf_counter() - begun

    def reset(self, **kwargs: Any) -> Any:
        """The reset of a gymnasium env."""
        return self._timed(self._envs[self._row].reset, **kwargs)

    def _step(self, given: Any) -> Any:
        """The step of a TensorDict env."""
        self._tally.steps += 1
        return self._timed(self._envs[self._row]._step, given)

    def _next(self, given: Any, mask: Any) -> Any:
        """The step of a TensorDict env, with all that the contract adds."""
        self._tally.steps += 1
        return self._timed(self._envs[self._row]._next, given, mask)

    def _first(self, given: Any, mask: Any, kwargs: dict[str, Any]) -> Any:
        """The reset of a TensorDict env, with all that the contract adds."""
        return self._timed(self._envs[self._row]._first, given, mask, kwargs)

    def _timed(self, method: Callable[..., Any], *arguments: Any, **kwargs: Any) -> Any:
        begun = perf_counter()
        try:
            return method(*arguments, **kwargs)
        finally:
            self._tally.step_s += perf_counter() - begun


def counted(envs: Sequence[Any], tally: Tally) -> list[Any]:
    """What a host calls in the place of its envs, to have what they do counted."""
    return [CountedEnv(envs, row, tally) for row in range(len(envs))]


class _Told(NamedTuple):
    """What was read of a worker, whose waiting follows from the rest; none of it ever shrinks."""

    steps: int = 0
    wait_s: float = 0.0
    step_s: float = 0.0
    copy_s: float = 0.0

    def grown(self, figures: Figures, seconds: float) -> _Told:
        """What is known once its figures have been read, so many seconds after it began to count."""
        wait_s = seconds - figures.step_s - figures.copy_s - figures.under_way_s
        return _Told(
            max(self.steps, figures.steps),
            max(self.wait_s, wait_s),
            max(self.step_s, figures.step_s),
            max(self.copy_s, figures.copy_s),
        )


class EngineStats:
    """What an engine's ``stats`` gives, in any thread, at any time, and the last of it when the engine is no more.

    Args:
        num_workers: how many there are.
        restarts: which of them were replaced; None where none can be.
        timeouts: how many were ended because an env took too long.

    Example:
        >>> stats = EngineStats(1)
        >>> tally = Tally()
        >>> stats.begin(lambda: [tally])
        >>> tally.steps = 5
        >>> stats.taken(reset=True)["workers"][0]["steps"], stats.taken(reset=False)["workers"][0]["steps"]
        (5, 0)
    """

    def __init__(self, num_workers: int, restarts: Restarts | None = None, timeouts: Callable[[], int] = int):
        self._turns = Turns()
        self._is_over = False
        self._tallies: Sequence[Readable] = ()
        self._began_at: float | None = None
        self._ended_at: float | None = None
        self._told = [_Told()] * num_workers
        self._restarts = restarts
        self._timeouts = timeouts
        self._before: tuple[float, Sequence[_Told], dict[int, int], int] = (0.0, self._told, {}, 0)
        """What had been told when the counts began anew: seconds, workers, restarts of each, time-outs."""

    def begin(self, tallies: Callable[[], Sequence[Readable]]) -> None:
        """Has the workers count from now on, unless they do or the engine is no more.

        Args:
            tallies: begins that; those of the workers.
        """
        if self._began_at is None:
            self._turns.take(partial(self._begin, tallies))

    def _begin(self, tallies: Callable[[], Sequence[Readable]]) -> None:
        if self._began_at is None and not self._is_over:
            began_at = perf_counter()  # first: no worker has counted more than there was time for
            self._tallies = tallies()
            self._began_at = began_at

    def end(self) -> None:
        """The workers are about to go: what they have counted until now stays."""
        self._turns.take(self._end)

    def _end(self) -> None:
        if not self._is_over:
            self._ended_at = perf_counter()  # first: what is read is told as of then
            self._read()
            self._is_over = True
            self._tallies = ()
            timeouts = self._timeouts()
            self._timeouts = lambda: timeouts

    def _read(self) -> float:
        """Reads what the workers have counted; the seconds since they began."""
        if self._began_at is None:
            return 0.0
        now = perf_counter() if self._ended_at is None else self._ended_at
        seconds = now - self._began_at
        told = [before.grown(own.read(now), seconds) for before, own in zip(self._told, self._tallies, strict=False)]
        self._told = told or self._told
        return seconds

    def taken(self, *, reset: bool) -> dict[str, Any]:
        """The counts, a dict as :meth:`gymbridge.SerialEnv.stats` describes it.

        Args:
            reset: count from zero again.
        """
        return self._turns.take(partial(self._taken, reset))

    def _taken(self, reset: bool) -> dict[str, Any]:
        seconds = self._read()
        restarts_of = {} if self._restarts is None else dict(self._restarts.of_worker)
        timeouts = self._timeouts()
        seconds_before, told_before, restarts_before, timeouts_before = self._before
        if reset:
            self._before = (seconds, self._told, restarts_of, timeouts)
        since = {
            worker: number - restarts_before.get(worker, 0)
            for worker, number in restarts_of.items()
            if number > restarts_before.get(worker, 0)
        }
        workers = [
            {name: getattr(own, name) - getattr(before, name) for name in _Told._fields}
            for own, before in zip(self._told, told_before, strict=True)
        ]
        return {
            "workers": workers,
            "seconds": seconds - seconds_before,
            "restarts": sum(since.values()),
            "restarts_of": since,
            "timeouts": timeouts - timeouts_before,
        }
