"""The small numbers that caller and hosts exchange, one byte a row."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CALLS", "AtWork", "Op", "RowState", "Source", "call_of"]


class Op(IntEnum):
    """What a host is asked to do with a row in a round."""

    IDLE = 0
    """Nothing: the env sleeps."""
    RESET = 1
    """Reset the env: its observation goes to ``root``."""
    STEP = 2
    """Step the env: its outputs go to ``next``."""
    STEP_MAYBE_RESET = 3
    """Step the env, then reset it if that ended the episode: final outputs in ``next``, first ones in ``root``."""


CALLS = {Op.RESET: "reset", Op.STEP: "step", Op.STEP_MAYBE_RESET: "step_and_maybe_reset"}
"""How users call what a row is asked to do."""


class RowState(IntEnum):
    """Where a row's env stands between two rounds."""

    RUNNING = 0
    """In an episode."""
    ENDED = 1
    """Its episode ended and it has not been reset since."""
    FAILED = 2
    """It raised, or was in a call that an interrupt ended, and has not been reset since."""
    NEW = 3
    """Never reset."""


class Source(IntEnum):
    """Which section holds a row's latest observation."""

    NEXT = 0
    ROOT = 1


class AtWork(IntEnum):
    """What a worker does with one of its rows, whose number, counted from its first, stands in the lower bits."""

    STEP = 0
    RESET = 1 << 30
    CALL = 2 << 30
    """A method or an attribute of the env, or what else is asked of it beside rounds."""
    NOTHING = 3 << 30

    @staticmethod
    def text(value: int, first_row: int) -> str:
        """What a worker is doing, in words; nothing where it is idle.

        Args:
            value: what stands in its first row's ``at_work``.
            first_row: the number of that row.

        Example:
            >>> AtWork.text(AtWork.RESET + 1, 4), AtWork.text(AtWork.NOTHING, 4)
            ('the reset of env 5', '')
        """
        doing, row = AtWork(value & AtWork.NOTHING), first_row + (value & (AtWork.RESET - 1))
        return "" if doing == AtWork.NOTHING else f"{_WORK[doing]} of env {row}"


_WORK = {AtWork.STEP: "the step", AtWork.RESET: "the reset", AtWork.CALL: "a call"}


def call_of(ops: bytes) -> str:
    """What a user called that asks this of the rows.

    Example:
        >>> call_of(bytes([Op.IDLE, Op.STEP]))
        'step'
    """
    return CALLS.get(Op(max(ops)), "call")
