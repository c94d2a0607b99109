"""Several candidates, built first and timed in turn: whatever slows the machine for a while slows them all."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["Build", "Cell", "Close", "Run", "measure", "started", "steps_for", "timed"]

Run = Callable[[int], object]
"""Makes so many steps."""
Close = Callable[[], object]
Build = Callable[[], tuple[Run, Close]]


@dataclass(frozen=True)
class Cell:
    """What one candidate cost: microseconds a step in each round, or why there are none.

    Example:
        >>> peer, reference = Cell((2.0, 40.0, 30.0)), Cell((1.0, 20.0, 10.0))
        >>> peer.median, peer.ratio(reference)
        (30.0, 2.0)
    """

    rounds: tuple[float, ...] = ()
    failure: str = ""

    @property
    def median(self) -> float:
        """Of the rounds."""
        return statistics.median(self.rounds)

    def ratio(self, reference: Cell) -> float:
        """How many times the reference's cost: the median of the rounds' ratios, which belong together."""
        return statistics.median(mine / theirs for mine, theirs in zip(self.rounds, reference.rounds, strict=True))


def timed(run: Run, steps: int) -> float:
    """Microseconds a step."""
    start = time.perf_counter()
    run(steps)
    return (time.perf_counter() - start) / steps * 1e6


def steps_for(run: Run, seconds: float) -> int:
    """How many steps take about so long, 1 or more; finds out by running ever more, which warms it up too."""
    steps = 1
    while True:
        step_seconds = timed(run, steps) * 1e-6
        if step_seconds * steps >= seconds / 4:
            return max(1, round(seconds / max(step_seconds, 1e-9)))
        steps *= 2


def started(build: Build, first_steps: int = 1) -> tuple[Run, Close] | str:
    """A candidate after its first steps, or why there is none."""
    try:
        run, close = build()
    except Exception as error:
        return in_short(error)
    try:
        run(first_steps)
    except BaseException as error:
        closed(close)
        if not isinstance(error, Exception):
            raise
        return in_short(error)
    return run, close


def in_short(error: BaseException) -> str:
    """An error in a line: its type, and the first line of what it says.

    Example:
        >>> in_short(ValueError("a: got 1, expected 2\\nand more"))
        'ValueError: a: got 1, expected 2'
    """
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def closed(close: Close) -> None:
    """Closes what may have failed before, whose end is nobody's news."""
    with suppress(Exception):
        close()


def measure(
    builds: Mapping[str, Build], rounds: int, seconds: float, *, turn: Callable[[str], object] = lambda name: None
) -> dict[str, Cell]:
    """Builds all candidates, then times them in turn.

    Args:
        builds: name -> what builds the candidate. One that fails, now or in a round, has its failure told in its cell,
            and costs the others nothing.
        rounds: how often each gets its turn.
        seconds: how long a turn takes, about: as many steps as take that long, one at least.
        turn: told whose turn it is: ``2 + rounds`` times each, of which the first is for building.

    Returns:
        A cell for each candidate.
    """
    cells: dict[str, Cell] = {}
    running: dict[str, tuple[Run, Close]] = {}

    def drop(name: str, error: Exception) -> None:
        cells[name] = Cell(failure=in_short(error))
        closed(running.pop(name)[1])

    try:
        for name, build in builds.items():
            turn(name)
            outcome = started(build)
            if isinstance(outcome, str):
                cells[name] = Cell(failure=outcome)
            else:
                running[name] = outcome
        gc.collect()
        gc.freeze()  # what has been built would otherwise be looked through again in every collection
        steps: dict[str, int] = {}
        figures: dict[str, list[float]] = {name: [] for name in running}
        for name, (run, _) in list(running.items()):
            turn(name)
            try:
                steps[name] = steps_for(run, seconds)
            except Exception as error:
                drop(name, error)
        for _ in range(rounds):
            for name, (run, _) in list(running.items()):
                turn(name)
                try:
                    figures[name].append(timed(run, steps[name]))
                except Exception as error:
                    drop(name, error)
        cells.update({name: Cell(tuple(figures[name])) for name in running})
    finally:
        gc.unfreeze()
        for _, close in running.values():
            closed(close)
    return {name: cells[name] for name in builds}
