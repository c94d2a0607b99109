"""Several candidates, built first and timed in turn: whatever slows the machine for a while slows them all."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

__all__ = ["Build", "Cell", "Close", "Run", "closed", "in_short", "measure", "steps_for", "timed"]

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


def in_short(error: BaseException) -> str:
    """An error in a line: its type, and the first line of what it says.

    Example:
        >>> in_short(ValueError("a: got 1, expected 2\\nand more"))
        'ValueError: a: got 1, expected 2'
    """
    try:
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    except Exception:  # an exception of the env's own, which cannot be shown
        said = ""
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def closed(close: Close) -> None:
    """Closes what may have failed before, whose end is nobody's news."""
    with suppress(Exception, SystemExit):
        close()


def measure(
    builds: Mapping[str, Build],
    rounds: int,
    seconds: float,
    *,
    turn: Callable[[str], object] = lambda name: None,
    interrupted: Callable[[], object] = lambda: None,
) -> dict[str, Cell]:
    """Builds all candidates, then times them in turn.

    Args:
        builds: name -> what builds the candidate. One that fails, now or in a round, has its failure told in its cell,
            and costs the others nothing.
        rounds: how often each gets its turn.
        seconds: how long a turn takes, about: as many steps as take that long, one at least.
        turn: told whose turn it is: ``2 + rounds`` times each, of which the first is for building.
        interrupted: called where this is interrupted, before the candidates are closed: some would wait for a step that
            was under way.

    Returns:
        A cell for each candidate.
    """
    cells: dict[str, Cell] = {}
    running: dict[str, tuple[Run, Close]] = {}
    steps: dict[str, int] = {}
    figures: dict[str, list[float]] = {name: [] for name in builds}

    def start(name: str) -> None:
        running[name] = builds[name]()
        running[name][0](1)

    def find_steps(name: str) -> None:
        steps[name] = steps_for(running[name][0], seconds)

    def take_time(name: str) -> None:
        figures[name].append(timed(running[name][0], steps[name]))

    def each(names: Iterable[str], action: Callable[[str], None]) -> None:
        for name in list(names):
            turn(name)
            try:
                action(name)
            except (Exception, SystemExit) as error:
                cells[name] = Cell(failure=in_short(error))
                if name in running:
                    closed(running.pop(name)[1])

    try:
        each(builds, start)
        gc.collect()
        gc.freeze()  # what has been built would otherwise be looked through again in every collection
        each(running, find_steps)
        for _ in range(rounds):
            each(running, take_time)
    except BaseException:
        interrupted()
        raise
    finally:
        gc.unfreeze()
        for _, close in running.values():
            closed(close)
    return {name: cells.get(name) or Cell(tuple(figures[name])) for name in builds}
