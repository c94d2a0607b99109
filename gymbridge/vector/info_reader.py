"""The infos of a round: those that lie in the block as records are read as columns, all others row by row.

Where every info of a round is a record, the entries of the batch follow from the forms of the rows alone: which rows
have an entry, and where. That is worked out once and kept as a plan, since most rounds are like one before. What an
entry is for the batch, :func:`~gymbridge.vector.infos.add_info` says; a plan gives the same, and there is none where
rows have different things under one key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

_MAX_PLANS = 64
_NUMPY_BOOLS = np.array([np.False_, np.True_], object)


class InfoReader:
    """Reads the infos of an engine's rounds.

    Args:
        engine: of gymnasium envs that collects infos, with its block.
        final_observation: gives the observation that ended a row's episode.
    """

    def __init__(self, engine: Engine[Any], final_observation: Callable[[int], Any]):
        block = engine.block
        self._engine = engine
        self._num_envs = engine.num_envs
        self._final_observation = final_observation
        self._records = block.next[RECORDS_KEY]
        self._numbers = memoryview(block.next[FORMS_KEY].reshape(-1).data).cast("B")
        self._no_numbers = bytes(len(self._numbers))
        self._none_ended = bytes(self._num_envs)
        self._forms: dict[int, InfoForm] = {}
        self._plans: dict[tuple[bytes, bytes], _Dict | None] = {}

    def read(self, ops: bytes, report: Report, ended: bytes | None = None) -> dict[str, Any]:
        """The infos of a round, the caller's own.

        Args:
            ops: the op of each row.
            report: of the round.
            ended: a byte a row that is not 0 where the row has been reset in the same round as its step: the infos of
                the step are under ``final_info`` then. None where no row has been.
        """
        numbers = self._numbers.tobytes()
        if 0 in ops:  # a row without an op has what it had in an earlier round
            pairs = np.frombuffer(numbers, np.uint64).reshape(-1, 2).copy()
            pairs[np.frombuffer(ops, np.uint8) == 0] = 0
            numbers = pairs.tobytes()
        if not (report.steps or report.resets or report.errors):
            plan = self._plan(numbers, self._none_ended if ended is None else ended)
            if plan is not None:
                return plan.read()
        return self._by_rows(numbers, report, ended)

    # ---------------------------------------------------------------- columns

    def _plan(self, numbers: bytes, ended: bytes) -> _Dict | None:
        """How to read the batch of rows with these forms; None if it is to be read row by row."""
        key = numbers, ended
        try:
            return self._plans[key]
        except KeyError:
            pass
        if len(self._plans) == _MAX_PLANS:
            self._plans.clear()
        try:
            plan: _Dict | None = self._planned(numbers, ended)
        except _DiffersError:
            plan = None
        self._plans[key] = plan
        return plan

    def _planned(self, numbers: bytes, ended: bytes) -> _Dict:
        like: dict[tuple[int, int, int], list[int]] = {}
        for row, ((step, reset), has_ended) in enumerate(zip(_pairs(numbers), ended, strict=True)):
            like.setdefault((step, reset, has_ended), []).append(row)
        # keys stand in the order in which the rows bring them, and the first row of a group brings all of its group
        plan = _Dict({})
        for (step, reset, has_ended), rows in like.items():
            mask = np.zeros(self._num_envs, np.bool_)
            mask[rows] = True
            if has_ended:
                final_info = self._part(step, OF_STEP, mask)
                final_obs = _FinalObservations(self._final_observation, mask)
                plan.absorb(_Dict({"final_obs": (final_obs, mask), "final_info": (final_info, mask)}))
                plan.absorb(self._part(reset, OF_RESET, mask))
            else:
                plan.absorb(self._part(reset, OF_RESET, mask) if reset else self._part(step, OF_STEP, mask))
        return plan

    def _part(self, number: int, which: int, mask: Mask) -> _Dict:
        """What the rows of a mask have in records of one form."""
        if not number:
            return _Dict({})
        return self._dict(self._form(number, int(np.argmax(mask))).entries, which, mask)

    def _dict(self, entries: Mapping[str, Any], which: int, mask: Mask) -> _Dict:
        return _Dict(
            {
                key: (
                    self._dict(entry, which, mask)
                    if isinstance(entry, dict)
                    else _Column(entry, self._view(entry, which), mask),
                    mask,
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
        steps, resets = report.steps, report.resets
        if numbers != self._no_numbers:
            pairs = [*enumerate(_pairs(numbers))]
            steps = {**steps, **{row: self._record(step, row, OF_STEP) for row, (step, _) in pairs if step}}
            resets = {**resets, **{row: self._record(reset, row, OF_RESET) for row, (_, reset) in pairs if reset}}
        infos: dict[str, Any] = {}
        if ended is None:
            merged = {**steps, **resets}
            for row in sorted(merged):
                add_info(infos, merged[row], row, self._num_envs)
            return infos
        for row, has_ended in enumerate(ended):
            info = steps.get(row, {})
            if has_ended and row not in report.errors:
                final = {"final_obs": self._final_observation(row), "final_info": info}
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


class _DiffersError(Exception):
    """Rows have different things under one key."""


class _Part(Protocol):
    """An entry of a plan, for some of the rows."""

    def absorb(self, other: Any) -> None:
        """Takes over what the same entry is for other rows.

        Raises:
            _DiffersError: it is something else for them.
        """

    def read(self) -> Any:
        """The entry of the batch, the caller's own."""


class _Dict:
    """A dict of entries, each with the mask of the rows that have it."""

    def __init__(self, entries: dict[str, tuple[_Part, Mask]]):
        self._entries = entries

    def absorb(self, other: Any) -> None:
        """See :class:`_Part`."""
        if type(other) is not _Dict:
            raise _DiffersError
        for key, (part, mask) in other._entries.items():
            if key in self._entries:
                own, own_mask = self._entries[key]
                own.absorb(part)
                self._entries[key] = own, own_mask | mask
            else:
                self._entries[key] = part, mask

    def read(self) -> dict[str, Any]:
        """See :class:`_Part`."""
        infos: dict[str, Any] = {}
        for key, (part, mask) in self._entries.items():
            infos[key] = part.read()
            infos[f"_{key}"] = mask.copy()
        return infos


class _Column:
    """A number or an array: one array for the batch."""

    def __init__(self, entry: Entry, view: Array, mask: Mask):
        self._kind = entry.dtype.char, entry.shape, entry.is_numpy_bool
        self._is_numpy_bool = entry.is_numpy_bool
        self._parts = [(view, mask)]
        self._is_whole = bool(mask.all()) and not entry.is_numpy_bool

    def absorb(self, other: Any) -> None:
        """See :class:`_Part`."""
        if type(other) is not _Column or other._kind != self._kind:
            raise _DiffersError
        self._parts += other._parts

    def read(self) -> Array:
        """See :class:`_Part`."""
        view, mask = self._parts[0]
        if self._is_whole:
            return view.copy()
        if self._is_numpy_bool:  # gymnasium has no array of bools for numpy's
            entry = np.full(len(view), None, object)
            for view, mask in self._parts:
                entry[mask] = _NUMPY_BOOLS[view[mask].view(np.uint8)]
            return entry
        entry = np.zeros(view.shape, view.dtype)
        for view, mask in self._parts:
            entry[mask] = view[mask]
        return entry


class _FinalObservations:
    """The observations that ended episodes: an object for each row."""

    def __init__(self, observation_of: Callable[[int], Any], mask: Mask):
        self._observation_of = observation_of
        self._mask = mask

    def absorb(self, other: Any) -> None:
        """See :class:`_Part`; no form has this key, so that the other is of this class."""
        self._mask = self._mask | other._mask

    def read(self) -> Array:
        """See :class:`_Part`."""
        entry = np.full(len(self._mask), None, object)
        for row in np.flatnonzero(self._mask):
            entry[row] = self._observation_of(int(row))
        return entry
