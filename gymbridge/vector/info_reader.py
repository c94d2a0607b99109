"""The infos of a round: those that lie in the block as records are read as columns, all others row by row.

Where every info of a round is a record, the entries of the batch follow from the forms of the rows alone: rows of the
same forms are a group, and the groups, in the order of their first rows, say what entries the batch has and where they
lie. That is worked out once and kept as a plan, whichever rows are in a group, since episodes end at random. What an
entry is for the batch, :func:`~gymbridge.vector.infos.add_info` says; a plan gives the same, and there is none where
rows have different things under one key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gymbridge.engine.host import Engine, Report
from gymbridge.engine.info_forms import CAPACITY, Entry, InfoForm
from gymbridge.engine.info_records import FORMS_KEY, OF_RESET, OF_STEP, RECORDS_KEY
from gymbridge.vector.infos import add_info

__all__ = ["InfoReader"]

Array: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]

_MAX_KEPT = 64
_NUMPY_BOOLS = np.array([np.False_, np.True_], object)


class InfoReader:
    """Reads the infos of an engine's rounds.

    Args:
        engine: of gymnasium envs that collects infos, with its block.
        final_observation: gives the observation that ended a row's episode.

    Attributes:
        final_observation: the same.
    """

    def __init__(self, engine: Engine[Any], final_observation: Callable[[int], Any]):
        block = engine.block
        self._engine = engine
        self._num_envs = engine.num_envs
        self.final_observation = final_observation
        self._records = block.next[RECORDS_KEY]
        self._numbers = memoryview(block.next[FORMS_KEY].reshape(-1).data).cast("B")
        self._no_numbers = bytes(len(self._numbers))
        self._none_ended = bytes(self._num_envs)
        self._forms: dict[int, InfoForm] = {}
        self._plans: dict[tuple[tuple[int, int, int], ...], _Dict | None] = {}
        self._patterns: dict[tuple[bytes, bytes], tuple[_Dict | None, _Groups]] = {}

    def read(self, ops: bytes, report: Report, ended: bytes | None = None) -> dict[str, Any]:
        """The infos of a round, the caller's own.

        Args:
            ops: the op of each row.
            report: of the round.
            ended: a byte a row that is not 0 where the row has been reset in the same round as its step: the infos of
                the step are under ``final_info`` then. None where no row has been.
        """
        numbers = self._numbers_of(ops)
        if not (report.steps or report.resets or report.errors):
            plan, groups = self._plan(numbers, self._none_ended if ended is None else ended)
            if plan is not None:
                return plan.read(groups)
        return self._by_rows(numbers, report, ended)

    def each(self, ops: bytes, report: Report) -> tuple[Mapping[int, Any], Mapping[int, Any]]:
        """The infos of a round as the envs gave them: row -> that of its step, and row -> that of its reset.

        An empty one may be missing. They are the caller's own.
        """
        return self._each(self._numbers_of(ops), report)

    def _numbers_of(self, ops: bytes) -> bytes:
        """The numbers of the forms in the block, 0 for a row without an op, which has what it had before."""
        numbers = self._numbers.tobytes()
        if 0 in ops:
            pairs = np.frombuffer(numbers, np.uint64).reshape(-1, 2).copy()
            pairs[np.frombuffer(ops, np.uint8) == 0] = 0
            numbers = pairs.tobytes()
        return numbers

    def _each(self, numbers: bytes, report: Report) -> tuple[Mapping[int, Any], Mapping[int, Any]]:
        steps, resets = report.steps, report.resets
        if numbers != self._no_numbers:
            pairs = [*enumerate(_pairs(numbers))]
            steps = {**steps, **{row: self._record(step, row, OF_STEP) for row, (step, _) in pairs if step}}
            resets = {**resets, **{row: self._record(reset, row, OF_RESET) for row, (_, reset) in pairs if reset}}
        return steps, resets

    # ---------------------------------------------------------------- columns

    def _plan(self, numbers: bytes, ended: bytes) -> tuple[_Dict | None, _Groups]:
        """How to read the batch of rows with these forms, None if it is to be read row by row; and its groups."""
        pattern = numbers, ended
        try:
            return self._patterns[pattern]
        except KeyError:
            pass
        rows: dict[tuple[int, int, int], list[int]] = {}
        for row, ((step, reset), has_ended) in enumerate(zip(_pairs(numbers), ended, strict=True)):
            rows.setdefault((step, reset, has_ended), []).append(row)
        kinds = (*rows,)
        if kinds not in self._plans:
            _make_room(self._plans)
            try:
                self._plans[kinds] = self._planned(kinds, [own[0] for own in rows.values()])
            except _DiffersError:
                self._plans[kinds] = None
        _make_room(self._patterns)
        self._patterns[pattern] = self._plans[kinds], _Groups(self._num_envs, [*rows.values()])
        return self._patterns[pattern]

    def _planned(self, kinds: tuple[tuple[int, int, int], ...], first_rows: list[int]) -> _Dict:
        """How to read groups of rows, each of one kind: the forms of step and reset, and whether they have ended."""
        # keys stand in the order in which the rows bring them, and the first row of a group brings all of its group
        plan = _Dict({})
        for group, ((step, reset, has_ended), row) in enumerate(zip(kinds, first_rows, strict=True)):
            if has_ended:
                final_info = self._part(step, OF_STEP, group, row)
                final_obs = _FinalObservations(self.final_observation, group)
                plan.absorb(_Dict({"final_obs": (final_obs, (group,)), "final_info": (final_info, (group,))}))
                plan.absorb(self._part(reset, OF_RESET, group, row))
            else:
                number, which = (reset, OF_RESET) if reset else (step, OF_STEP)
                plan.absorb(self._part(number, which, group, row))
        return plan

    def _part(self, number: int, which: int, group: int, row: int) -> _Dict:
        """What a group of rows, of which this is one, has in records of one form."""
        return self._dict(self._form(number, row).entries, which, group) if number else _Dict({})

    def _dict(self, entries: Mapping[str, Any], which: int, group: int) -> _Dict:
        return _Dict(
            {
                key: (
                    self._dict(entry, which, group)
                    if isinstance(entry, dict)
                    else _Column(entry, self._view(entry, which), group),
                    (group,),
                )
                for key, entry in entries.items()
            }
        )

    def _view(self, entry: Entry, which: int) -> Array:
        """An entry of all rows, a view of the block."""
        records = self._records
        inner = np.empty(entry.shape, entry.dtype).strides
        shape, strides = (self._num_envs, *entry.shape), (records.strides[0], *inner)
        return np.ndarray(shape, entry.dtype, records.data, which * CAPACITY + entry.offset, strides)

    def _form(self, number: int, row: int) -> InfoForm:
        form = self._forms.get(number)
        if form is None:
            form = self._forms[number] = self._engine.ask("info_form", row, number)
        return form

    # ---------------------------------------------------------------- row by row

    def _by_rows(self, numbers: bytes, report: Report, ended: bytes | None) -> dict[str, Any]:
        steps, resets = self._each(numbers, report)
        infos: dict[str, Any] = {}
        if ended is None:
            merged = {**steps, **resets}
            for row in sorted(merged):
                add_info(infos, merged[row], row, self._num_envs)
            return infos
        for row, has_ended in enumerate(ended):
            info = steps.get(row, {})
            if has_ended and row not in report.errors:
                final = {"final_obs": self.final_observation(row), "final_info": info}
                add_info(infos, final, row, self._num_envs)
                info = resets.get(row, {})
            if info:
                add_info(infos, info, row, self._num_envs)
        return infos

    def _record(self, number: int, row: int, which: int) -> dict[str, Any]:
        return self._form(number, row).unpack_from(self._records.data, (2 * row + which) * CAPACITY)


def _pairs(numbers: bytes) -> list[list[int]]:
    pairs: list[list[int]] = np.frombuffer(numbers, np.uint64).reshape(-1, 2).tolist()
    return pairs


def _make_room(cache: dict[Any, Any]) -> None:
    if len(cache) == _MAX_KEPT:
        cache.clear()


class _Groups:
    """Which rows of a round are alike: all infos of a group are of the same forms."""

    def __init__(self, num_envs: int, rows: Sequence[Sequence[int]]):
        masks = np.zeros((len(rows), num_envs), np.bool_)
        for mask, own in zip(masks, rows, strict=True):
            mask[own] = True
        self._masks: dict[tuple[int, ...], Mask] = {(group,): mask for group, mask in enumerate(masks)}
        self.is_one = len(rows) == 1

    def mask(self, groups: tuple[int, ...]) -> Mask:
        """The rows of some groups; not to be changed."""
        mask = self._masks.get(groups)
        if mask is None:
            mask = self._masks[groups] = np.logical_or.reduce([self._masks[group,] for group in groups])
        return mask


class _DiffersError(Exception):
    """Rows have different things under one key."""


class _Part(Protocol):
    """An entry of a plan, for some of the groups."""

    def absorb(self, other: Any) -> None:
        """Takes over what the same entry is for other groups.

        Raises:
            _DiffersError: it is something else for them.
        """

    def read(self, groups: _Groups) -> Any:
        """The entry of the batch, the caller's own."""


class _Dict:
    """A dict of entries, each with the groups that have it."""

    def __init__(self, entries: dict[str, tuple[_Part, tuple[int, ...]]]):
        self._entries = entries

    def absorb(self, other: Any) -> None:
        """See :class:`_Part`."""
        if type(other) is not _Dict:
            raise _DiffersError
        for key, (part, groups) in other._entries.items():
            if key in self._entries:
                own, own_groups = self._entries[key]
                own.absorb(part)
                self._entries[key] = own, own_groups + groups
            else:
                self._entries[key] = part, groups

    def read(self, groups: _Groups) -> dict[str, Any]:
        """See :class:`_Part`."""
        infos: dict[str, Any] = {}
        for key, (part, own) in self._entries.items():
            infos[key] = part.read(groups)
            infos[f"_{key}"] = groups.mask(own).copy()
        return infos


class _Column:
    """A number or an array: one array for the batch."""

    def __init__(self, entry: Entry, view: Array, group: int):
        self._kind = entry.dtype.char, entry.shape, entry.is_numpy_bool
        self._is_numpy_bool = entry.is_numpy_bool
        self._parts: list[tuple[Array, tuple[int, ...]]] = [(view, (group,))]

    def absorb(self, other: Any) -> None:
        """See :class:`_Part`."""
        if type(other) is not _Column or other._kind != self._kind:
            raise _DiffersError
        self._parts += other._parts

    def read(self, groups: _Groups) -> Array:
        """See :class:`_Part`."""
        view = self._parts[0][0]
        if self._is_numpy_bool:  # gymnasium has no array of bools for numpy's
            entry = np.full(len(view), None, object)
            for view, own in self._parts:
                mask = groups.mask(own)
                entry[mask] = _NUMPY_BOOLS[view[mask].view(np.uint8)]
            return entry
        if groups.is_one:
            return view.copy()
        entry = np.zeros(view.shape, view.dtype)
        for view, own in self._parts:
            mask = groups.mask(own)
            entry[mask] = view[mask]
        return entry


class _FinalObservations:
    """The observations that ended episodes: an object for each row."""

    def __init__(self, observation_of: Callable[[int], Any], group: int):
        self._observation_of = observation_of
        self._groups: tuple[int, ...] = (group,)

    def absorb(self, other: Any) -> None:
        """See :class:`_Part`; no form has this key, so that the other is of this class."""
        self._groups += other._groups

    def read(self, groups: _Groups) -> Array:
        """See :class:`_Part`."""
        mask = groups.mask(self._groups)
        entry = np.full(len(mask), None, object)
        for row in np.flatnonzero(mask):
            entry[row] = self._observation_of(int(row))
        return entry
