"""The small numbers that caller and hosts exchange, one byte a row."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CALLS", "Op", "RowState", "Source", "call_of"]


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


def call_of(ops: bytes) -> str:
    """What a user called that asks this of the rows.

    Example:
        >>> call_of(bytes([Op.IDLE, Op.STEP]))
        'step'
    """
    return CALLS.get(Op(max(ops)), "call")
