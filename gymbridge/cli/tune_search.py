"""Which of several batches is the fastest, found within a time: each is timed alone, then the best of them in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gymbridge.benchmarking.rounds import Cell, measure
from gymbridge.cli.tune_batches import BatchCall

__all__ = ["Outcome", "best_of", "search"]

_FINALISTS = 3
_WORTH_A_FINAL = 1.5
"""Times the best: what took longer by itself is not timed again."""
_HOPELESS = 2.0
"""Times the best: what must take longer is not timed at all."""
_AS_GOOD = 1.05
"""Times the best: what is no slower and takes fewer processes is preferred."""
_FINAL_ROUNDS = 7


@dataclass
class Outcome:
    """What became of a batch.

    Attributes:
        batch: the batch.
        alone: its figures when it was timed alone, or why there are none.
        final: its figures beside the other finalists', if it was one.
        not_tried: why it was not timed; empty where it was.
        start_s: how long it took to be made and to do its first step.
    """

    batch: BatchCall
    alone: Cell = field(default_factory=Cell)
    final: Cell = field(default_factory=Cell)
    not_tried: str = ""
    start_s: float = 0.0

    @property
    def us(self) -> float | None:
        """Microseconds for a step of all envs, as it is told; None without a figure."""
        if self.final.rounds:
            return self.final.median
        return min(self.alone.rounds, default=None)


def search(
    batches: Sequence[BatchCall],
    seconds: float,
    *,
    stage: Callable[[str, int], object] = lambda text, turns: None,
    turn: Callable[[str], object] = lambda name: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Outcome]:
    """Times them, within about so many seconds but for the first of them and for a batch that is slow to start.

    Args:
        batches: the most promising first.
        seconds: for all.
        stage, turn: told how it goes, see :class:`~gymbridge.cli.progress.WorkProgress`.
        clock: the time.

    Returns:
        An outcome for each, in their order.
    """
    begun = clock()
    outcomes = [Outcome(batch) for batch in batches]
    share = min(0.6, 0.4 * seconds / len(outcomes))
    stage("timing each alone", len(outcomes))
    for outcome in outcomes:
        turn(outcome.batch.title)
        best_us = min((known.us for known in outcomes if known.us is not None), default=None)
        least_us = outcome.batch.least_us
        if best_us is not None and least_us > _HOPELESS * best_us:
            outcome.not_tried = f"cannot be faster than {told(least_us)}, the envs' own time"
            continue
        left = 0.6 * seconds - (clock() - begun)
        if best_us is not None and 4 * least_us * 1e-6 > left:  # a step to start with, and three to be sure of it
            outcome.not_tried = "there was no time left; --seconds gives more"
            continue
        outcome.alone, outcome.start_s = _timed_alone(outcome.batch, share, clock)
    _hold_final(outcomes, seconds - (clock() - begun), stage, turn)
    return outcomes


def _timed_alone(batch: BatchCall, seconds: float, clock: Callable[[], float]) -> tuple[Cell, float]:
    """Its figures, and how long it took to start."""
    marks = [clock()]
    cell = measure({"": batch.build}, 3, seconds / 4, turn=lambda name: marks.append(clock()))[""]
    return cell, marks[2] - marks[0] if len(marks) > 2 else 0.0  # the second turn begins where it has started


def _hold_final(
    outcomes: Sequence[Outcome],
    seconds: float,
    stage: Callable[[str, int], object],
    turn: Callable[[str], object],
) -> None:
    """Times the best in turn, if there is more than one and time for it."""
    ranked = sorted((outcome for outcome in outcomes if outcome.us is not None), key=_us)
    finalists = [outcome for outcome in ranked if _us(outcome) <= _WORTH_A_FINAL * _us(ranked[0])][:_FINALISTS]
    seconds -= sum(outcome.start_s for outcome in finalists)
    a_turn = min(0.4, seconds / len(finalists) / (_FINAL_ROUNDS + 2)) if finalists else 0.0
    if len(finalists) < 2 or a_turn < 1e-6 * max(map(_us, finalists)):
        return
    stage("timing the best in turn", len(finalists) * (_FINAL_ROUNDS + 2))
    names = [own.batch.title for own in finalists]
    builds = {name: own.batch.build for name, own in zip(names, finalists, strict=True)}
    cells = measure(builds, _FINAL_ROUNDS, a_turn, turn=turn)
    for name, own in zip(names, finalists, strict=True):
        own.final = cells[name]


def _us(outcome: Outcome) -> float:
    assert outcome.us is not None
    return outcome.us


def best_of(outcomes: Sequence[Outcome]) -> tuple[Outcome, str] | None:
    """The one to use, and why; None where none could be timed.

    Of those that are as good as the fastest, as far as figures can tell, it is the one with the fewest processes.
    """
    with_figures = [outcome for outcome in outcomes if outcome.final.rounds] or [
        outcome for outcome in outcomes if outcome.us is not None
    ]
    if not with_figures:
        return None
    fastest = min(with_figures, key=_us)
    as_good = [outcome for outcome in with_figures if times(outcome, fastest) <= _AS_GOOD]
    chosen = min(as_good, key=lambda outcome: (outcome.batch.processes, _us(outcome)))
    if sum(outcome.us is not None for outcome in outcomes) == 1:
        return chosen, "the only one that was timed"
    if chosen is fastest:
        return chosen, "the fastest"
    return chosen, f"as fast as {fastest.batch.title}, within {_AS_GOOD - 1:.0%}, with fewer processes"


def times(outcome: Outcome, best: Outcome) -> float:
    """How many times as long it took as the best, timed in the same way.

    Of two finalists it is the median of their rounds' ratios; else both were timed alone, and the machine may have had
    more to do in the final.
    """
    if outcome.final.rounds and best.final.rounds:
        return outcome.final.ratio(best.final)
    return min(outcome.alone.rounds) / min(best.alone.rounds)


def told(microseconds: float) -> str:
    """A time as people read it.

    Example:
        >>> told(4.567), told(45_678), told(4_567_890)
        ('4.57 us', '45.7 ms', '4.57 s')
    """
    for limit, unit, divisor in ((1e3, "us", 1.0), (1e6, "ms", 1e3)):
        if microseconds < limit:
            return f"{microseconds / divisor:.3g} {unit}"
    return f"{microseconds / 1e6:.3g} s"
