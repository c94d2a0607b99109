"""What the bytes mean that wake an engine's worker, and those with which it answers."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from gymbridge.engine.layout import Layout

__all__ = ["SYNC", "Allocation", "Answer", "Call", "Command", "RoundMail", "RoundNews"]


class Command(IntEnum):
    """What the caller asks of a worker."""

    ROUND = 0
    """A round: the ops and all inputs are in the block."""
    ROUND_WITH_MAIL = 1
    """A round; the mailbox has a :class:`RoundMail`."""
    DESCRIBE = 2
    """To describe the envs again; the mailbox has the options."""
    ALLOCATE = 3
    """To make the host; the mailbox has an :class:`Allocation`, and the memory's descriptor is on the connection."""
    CALL = 4
    """Verbs of the host; the mailbox has a list of :class:`Call`."""
    CLOSE = 5
    """To close the envs and end."""


class Answer(IntEnum):
    """What a worker has done; it is busy with nothing then, but for ``CLOSED``, after which it ends."""

    DONE = 0
    """A round: all there is to know is in the block."""
    DONE_WITH_MAIL = 1
    """What was asked; the mailbox has a :class:`RoundNews`, or what the command gives."""
    FAILED = 2
    """Not what was asked; the mailbox has a :class:`~gymbridge.engine.remote_errors.ToldError` and a row, or None."""
    DONE_WITH_INFOS = 3
    """A round: all there is to know is in the block, infos too."""
    CLOSED = 4
    """The envs are closed; the mailbox has the first error's ``ToldError`` and the index of its env, or None."""


SYNC = 128
"""Bytes from here on come back as they are once all before them is done, and count nowhere."""


class RoundMail(NamedTuple):
    """What a round's hosts are given beside the block: what ``Inputs.part`` gave, and the rows' reset kwargs."""

    beside: Any
    reset_kwargs: Any


class RoundNews(NamedTuple):
    """What a round leaves beside the block; rows are numbered as the caller does.

    Attributes:
        steps, resets: those of the :class:`~gymbridge.engine.host.Report`.
        errors: row -> ``ToldError``.
        objects: (section, leaf key, row, object): what was written to leaves of objects.
    """

    steps: dict[int, Any]
    resets: dict[int, Any]
    errors: dict[int, Any]
    objects: list[tuple[str, tuple[str, ...], int, Any]]


class Allocation(NamedTuple):
    """The memory of a worker.

    Attributes:
        layout: of the worker's rows.
        nbytes: of the whole memory.
        ours, theirs: where the worker's and the caller's sequence bytes lie in it.
        look_seconds: how long the worker looks at the caller's byte before it blocks.
        in_use: another worker has had these rows; see :class:`~gymbridge.engine.block.Block`.
    """

    layout: Layout
    nbytes: int
    ours: int
    theirs: int
    look_seconds: float
    in_use: bool


class Call(NamedTuple):
    """A verb of the host for a row, as the caller numbers it."""

    verb: str
    row: int
    arguments: tuple[Any, ...]
