"""Where each leaf of a batch lies in one piece of memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import NamedTuple, Protocol

import numpy as np

from gymbridge.engine.work_counts import NUM_FIGURES

__all__ = ["EnvDescription", "Field", "Layout", "Leaf"]

Key = tuple[str, ...]

ALIGNMENT = 64
"""Bytes: a cache line, so that no two leaves share one."""


class Leaf(NamedTuple):
    """One part of an env's input or output: its key, the shape of one row, and its dtype.

    A leaf of dtype ``object`` has one Python object a row: it lies beside the memory that others share.
    """

    key: Key
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


class EnvDescription(Protocol):
    """What an env says of itself before any memory exists."""

    @property
    def input_leaves(self) -> tuple[Leaf, ...]:
        """Leaves of the block's ``input`` section."""

    @property
    def next_leaves(self) -> tuple[Leaf, ...]:
        """Leaves of the block's ``next`` section."""

    @property
    def root_leaves(self) -> tuple[Leaf, ...]:
        """Leaves of the block's ``root`` section."""


class Field(NamedTuple):
    """A leaf's place: byte offset of a contiguous ``[num_rows, *shape]`` array; objects take no place."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def nbytes(self) -> int:
        """Bytes that the array takes."""
        if self.dtype.hasobject:
            return 0
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class Layout:
    """The places of all leaves of ``num_rows`` envs: a structure of arrays in named sections.

    Plain data, numpy only; it pickles. The sections are

    - ``input``: what the caller writes for the envs; with ``op``, it is for hosts in other processes, to whom actions
      and ops come by memory alone (a host in this process is handed both),
    - ``next``: what a step gave,
    - ``root``: what a reset gave,
    - ``control``: one byte a row each of ``op``, ``state`` and ``source`` (see :mod:`gymbridge.engine.codes`); of each
      worker, in its first row, ``done_at``, when it came to the end of a round, on ``time.perf_counter``'s clock,
      ``at_work``, which of its rows it calls now (see :class:`~gymbridge.engine.codes.AtWork`), ``is_counted``, whether
      it is to count what it does, and ``counts``, that (see :class:`~gymbridge.engine.work_counts.SharedTally`).

    Args:
        num_rows: number of envs.
        input, next, root: the leaves of each section.

    Raises:
        ValueError: two leaves of a section have the same key.

    Example:
        >>> reward = Leaf(("reward",), (), np.dtype(np.float64))
        >>> layout = Layout(8, input=[], next=[reward], root=[])
        >>> layout.sections["next"]["reward",].shape
        (8,)
    """

    sections: Mapping[str, Mapping[Key, Field]]
    first_row = 0
    """The number that the first of these rows has for whoever has them all."""

    def __init__(self, num_rows: int, *, input: Iterable[Leaf], next: Iterable[Leaf], root: Iterable[Leaf]):
        byte = np.dtype(np.uint8)
        control = [Leaf((name,), (), byte) for name in ("op", "state", "source", "is_counted")]
        control.append(Leaf(("done_at",), (), np.dtype(np.float64)))
        control.append(Leaf(("at_work",), (), np.dtype(np.uint32)))
        control.append(Leaf(("counts",), (NUM_FIGURES,), np.dtype(np.float64)))
        self.num_rows = num_rows
        self.nbytes = 0
        self.sections = {
            name: self._place(name, leaves)
            for name, leaves in (("control", control), ("input", input), ("next", next), ("root", root))
        }

    @classmethod
    def of(cls, envs: Sequence[EnvDescription]) -> Layout:
        """The places of the leaves of some envs, a row each: every leaf that one of them has is there for all rows.

        Where envs differ, some rows of a leaf are nobody's: shared memory that nobody touches takes up none.

        Raises:
            ValueError: envs have leaves of one key that differ in shape or dtype.

        Example:
            >>> from types import SimpleNamespace
            >>> speed, angle = (Leaf((name,), (), np.dtype(np.float32)) for name in ("speed", "angle"))
            >>> envs = [SimpleNamespace(input_leaves=(), next_leaves=(x,), root_leaves=()) for x in (speed, angle)]
            >>> [*Layout.of(envs).sections["next"]]
            [('speed',), ('angle',)]
        """

        def all_leaves(section: str) -> Iterable[Leaf]:
            return dict.fromkeys(leaf for env in envs for leaf in getattr(env, f"{section}_leaves"))

        return cls(len(envs), input=all_leaves("input"), next=all_leaves("next"), root=all_leaves("root"))

    def rows(self, start: int, stop: int) -> Layout:
        """The places of some of the rows, in the same memory: a host that has them need not know of the others.

        Example:
            >>> reward = Leaf(("reward",), (), np.dtype(np.float64))
            >>> layout = Layout(8, input=[], next=[reward], root=[])
            >>> part = layout.rows(6, 8)
            >>> part.num_rows, part.sections["next"]["reward",].offset - layout.sections["next"]["reward",].offset
            (2, 48)
        """
        part = copy(self)
        part.first_row = self.first_row + start
        part.num_rows = stop - start
        part.sections = {
            name: {key: _rows_of(field, start, stop) for key, field in fields.items()}
            for name, fields in self.sections.items()
        }
        return part

    def _place(self, section: str, leaves: Iterable[Leaf]) -> dict[Key, Field]:
        fields: dict[Key, Field] = {}
        for key, shape, dtype in leaves:
            if key in fields:
                raise ValueError(f"section {section!r} has the key {'.'.join(key)!r} twice")
            fields[key] = Field(self.nbytes, (self.num_rows, *shape), dtype)
            self.nbytes += -(-fields[key].nbytes // ALIGNMENT) * ALIGNMENT
        return fields


def _rows_of(field: Field, start: int, stop: int) -> Field:
    num_rows, *shape = field.shape
    bytes_a_row = field.nbytes // num_rows
    return Field(field.offset + start * bytes_a_row, (stop - start, *shape), field.dtype)
