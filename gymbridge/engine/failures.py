"""From the errors of a round to the one exception that the caller sees."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import NoReturn

from gymbridge.engine.codes import RowState
from gymbridge.errors import EnvOutputError, WorkerDiedError, WorkerStartError

__all__ = ["fail_rows", "mark_error", "raise_env_error", "unmarked", "why_not_stepped"]


def raise_env_error(errors: Mapping[int, Exception]) -> NoReturn:
    """Raises the error of the first env that failed: the env's own exception, marked with where it comes from.

    The exception gets ``env_index`` as an attribute and, on Python 3.11 and later, a note that names the env and the
    others that failed in the same call; a type that takes neither comes through bare. What an env returned against its
    spaces is told with the env's index in the message. The death of a worker names its envs itself.
    """
    row = min(errors)
    error = errors[row]
    with suppress(Exception):  # whatever its type does to those who read an attribute
        told = error.env_index  # type: ignore[attr-defined]
        if type(told) is int and errors.get(told) is error:  # of the rows that one env's error has cost, its own
            row = told
    if type(error) is EnvOutputError and not str(error).startswith(f"env {row}: "):
        error.args = (f"env {row}: {error}",)
    if isinstance(error, (WorkerDiedError, WorkerStartError)):  # no env raised it, and it names those concerned
        raise error
    others = sorted(set(errors) - {row})
    mark_error(error, row, f"raised by env {row}" + (f"; envs {others} failed in the same call" if others else ""))
    raise error


def mark_error(error: Exception, row: int, note: str) -> None:
    """Gives an exception ``env_index`` and, on Python 3.11 and later, a note, where its type takes them."""
    with suppress(Exception):  # whatever its type does to those who set an attribute, the env's own error comes out
        error.env_index = row  # type: ignore[attr-defined]
    with suppress(Exception):
        if note not in getattr(error, "__notes__", ()):  # an env may raise one object again and again
            error.add_note(note)


def unmarked(error: Exception) -> Exception:
    """The error of an engine of one env, without the marks of :func:`raise_env_error`: it is a row of another engine.

    Example:
        >>> unmarked(EnvOutputError("env 0: reward: got None")).args
        ('reward: got None',)
    """
    if type(error) is EnvOutputError:
        error.args = (str(error).removeprefix("env 0: "),)
    with suppress(Exception):
        error.__notes__[:] = [note for note in error.__notes__ if note != "raised by env 0"]
    return error


def fail_rows(states: memoryview, ops: bytes) -> None:
    """Marks the rows that a round has touched as failed, since what they did never reaches the caller.

    Args:
        states: the block's, one :class:`~gymbridge.engine.codes.RowState` a row; changed in place.
        ops: one :class:`~gymbridge.engine.codes.Op` a row, of the first rows or of all.

    Example:
        >>> from gymbridge.engine.codes import Op
        >>> states = memoryview(bytearray([RowState.RUNNING] * 3))
        >>> fail_rows(states, bytes([Op.STEP, Op.IDLE]))
        >>> [RowState(state).name for state in states]
        ['FAILED', 'RUNNING', 'RUNNING']
    """
    for row, op in enumerate(ops):
        if op:
            states[row] = RowState.FAILED


_WHY = {
    RowState.NEW: "have not been reset yet",
    RowState.ENDED: "ended their episode",
    RowState.FAILED: "raised an error in an earlier call or were interrupted in it",
}


def why_not_stepped(states: bytes, rows: Collection[int]) -> str:
    """Why rows cannot be stepped before a reset, in words that name them.

    Args:
        states: one :class:`~gymbridge.engine.codes.RowState` a row.
        rows: those that cannot be stepped.

    Example:
        >>> why_not_stepped(bytes([RowState.ENDED, RowState.RUNNING, RowState.NEW]), [0, 2])
        'envs [2] have not been reset yet; envs [0] ended their episode'
    """
    by_reason = ((reason, [row for row in rows if states[row] == state]) for state, reason in _WHY.items())
    return "; ".join(f"envs {named} {reason}" for reason, named in by_reason if named)
