"""Infos of numbers in the block: a record for a row's step and one for its reset, and the number of each one's form.

A host clears the numbers of the rows that have their turn before a round and writes those of the infos that a record
holds; a row that does nothing in a round keeps what it had. An info without a form goes another way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gymbridge.engine.block import Block
from gymbridge.engine.info_forms import CAPACITY, InfoForm, InfoTree, info_tree
from gymbridge.engine.layout import Leaf

__all__ = ["FORMS_KEY", "INFO_LEAVES", "OF_RESET", "OF_STEP", "RECORDS_KEY", "InfoRecords", "forget_infos"]

FORMS_KEY, RECORDS_KEY = ("_infos", "forms"), ("_infos", "records")

INFO_LEAVES = (Leaf(FORMS_KEY, (2,), np.dtype(np.uint64)), Leaf(RECORDS_KEY, (2, CAPACITY), np.dtype(np.uint8)))
"""Of the section ``next``: for each row one of its step and one of its reset; the number 0 means that there is none."""

OF_STEP, OF_RESET = 0, 1

_MAX_FORMS = 32
"""Forms of one host: an env that invents keys is not to fill the memory."""
_MAX_TRIES = 8
_NO_FORMS: list[InfoForm] = []


class InfoRecords:
    """What a host writes the infos of its rows with.

    Args:
        block: with the :data:`INFO_LEAVES`.

    Attributes:
        numbers: of the forms of all rows, the step's and the reset's of each row in turn.
        used: whether there may be any in ``numbers``.

    Example:
        >>> from gymbridge.engine.layout import Layout
        >>> block = Block(Layout(2, input=[], next=INFO_LEAVES, root=[]))
        >>> records = InfoRecords(block)
        >>> records.numbers[2] = records.put(1, OF_STEP, {"lives": 3})
        >>> (block.next[FORMS_KEY] != 0).tolist()
        [[False, False], [True, False]]
        >>> records.put(0, OF_STEP, {"name": "x"})
        0
    """

    def __init__(self, block: Block):
        forms = block.next[FORMS_KEY]
        self.numbers = memoryview(forms.reshape(-1).data)
        self.used = block.in_use  # the host before may have left some
        self._no_numbers = memoryview(np.zeros_like(forms).reshape(-1).data)
        self._memory = block.next[RECORDS_KEY].reshape(-1).data
        self._forms: dict[InfoTree, InfoForm | None] = {}
        self._by_keys: dict[tuple[Any, ...], list[InfoForm] | None] = {}
        self._tries: dict[tuple[Any, ...], int] = {}

    def clear(self, ops: bytes, rows: Iterable[int] | None = None) -> None:
        """Forgets the infos of the rows that have an op; ``rows`` are the rows of the ops, all unless given."""
        if rows is not None:
            for row in rows:
                self.numbers[2 * row] = self.numbers[2 * row + 1] = 0
            return
        if 0 not in ops:
            self.numbers[:] = self._no_numbers
            return
        for row, op in enumerate(ops):
            if op:
                self.numbers[2 * row] = self.numbers[2 * row + 1] = 0

    def put(self, row: int, which: int, info: Any) -> int:
        """Writes a row's info where it has a form; nobody looks at it before its number is in ``numbers``.

        Args:
            row: the row.
            which: ``OF_STEP`` or ``OF_RESET``.
            info: the info.

        Returns:
            The number of its form, 0 if it is to go another way.
        """
        if type(info) is not dict:
            return 0
        keys = (*info,)
        forms = self._by_keys.get(keys, _NO_FORMS)
        if forms is None:
            return 0
        offset = (2 * row + which) * CAPACITY
        for form in forms:
            if form.pack_into(self._memory, offset, info):
                return form.number
        new = self._new_form(keys, info)
        return new.number if new is not None and new.pack_into(self._memory, offset, info) else 0

    def _new_form(self, keys: tuple[Any, ...], info: dict[str, Any]) -> InfoForm | None:
        if len(self._forms) == _MAX_FORMS:
            return None
        tree = info_tree(info)
        if tree is None or tree in self._forms:  # it is there as one that does not fit: else it would have been taken
            self._count_try(keys)
            return None
        new = self._forms[tree] = _form_that_fits(tree)
        if new is None:
            self._count_try(keys)
        else:
            self._by_keys[keys] = [*(self._by_keys.get(keys) or ()), new]
            self.used = True
        return new

    def _count_try(self, keys: tuple[Any, ...]) -> None:
        """Gives up on infos of some keys after a few that had no form, none of them: each look takes its time."""
        tries = self._tries.get(keys, 0) + 1
        if keys in self._by_keys or (tries == 1 and len(self._tries) == _MAX_FORMS):
            return
        self._tries[keys] = tries
        if tries == _MAX_TRIES:
            self._by_keys[keys] = None

    def form(self, number: int) -> InfoForm:
        """The form of a number that ``put`` gave."""
        return next(form for form in self._forms.values() if form is not None and form.number == number)


def _form_that_fits(tree: InfoTree) -> InfoForm | None:
    form = InfoForm(tree)
    return form if form.nbytes <= CAPACITY else None


def forget_infos(block: Block, rows: Iterable[int]) -> None:
    """Has rows show no info, whatever their host wrote last: it had no turn, or died in it."""
    forms = block.next.get(FORMS_KEY)
    if forms is not None:
        forms[[*rows]] = 0
