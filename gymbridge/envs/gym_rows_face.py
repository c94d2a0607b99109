"""Some rows of an engine of gymnasium envs seen as TensorDicts, taken out of the block of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase

from gymbridge.engine.codes import Source
from gymbridge.engine.host import Report
from gymbridge.envs.engine_face import Rows
from gymbridge.envs.gym_face import GymFace

__all__ = ["GymRowsFace"]

Array: TypeAlias = npt.NDArray[Any]

_IN_ROOT = int(Source.ROOT)


class GymRowsFace(GymFace):
    """The face of some rows of another, which may be others from one round to the next.

    Args:
        whole: the face of all rows.
        rows: what stands for an engine of so many rows.
        batch_size: ``[n]``, or ``[]`` for one row that is to look like an env.

    Attributes:
        rows: which rows it shows now.
    """

    rows: Sequence[int]

    def __init__(self, whole: GymFace, rows: Any, batch_size: torch.Size):
        super().__init__(rows, batch_size, whole._device, *whole.choices)
        self._whole = whole
        self._one = not batch_size

    def _taken(self, array: Array) -> Array:
        """The rows of an array of all, in memory of their own."""
        first = self.rows[0]
        taken: Array = (
            array[first, ...].copy()
            if self._one
            else array[first : first + 1].copy()
            if len(self.rows) == 1
            else array.take(self._index, 0)
        )
        return taken

    def show(self, rows: Sequence[int]) -> None:
        """Has it show these rows from now on, as many as it was made for."""
        self.rows = rows
        self._index = np.asarray(rows, np.intp)

    def _next_of(self, tensordict: TensorDictBase, untouched: Rows | None, report: Report) -> TensorDict:
        whole, taken = self._whole, self._taken
        arrays = [taken(array) for array in whole._next]
        flags = taken(whole._terminated), taken(whole._truncated)
        return self._assembled_next(arrays, taken(whole._reward), *flags)

    def _root_of(
        self,
        tensordict: TensorDictBase | None,
        untouched: Rows | None,
        report: Report,
        following: TensorDictBase | None = None,
    ) -> TensorDict:
        whole, taken = self._whole, self._taken
        source = whole._block.source
        in_root = [position for position, row in enumerate(self.rows) if source[row] == _IN_ROOT]
        if len(in_root) == len(self.rows):
            arrays = [taken(array) for array in whole._reader.root]
        else:
            arrays = [taken(array) for array in whole._next]
            for position in in_root:
                for array, roots in zip(arrays, whole._reader.root, strict=True):
                    array[position] = roots[self.rows[position]]
        no_flag = self._no_flag
        return self._assemble_root(self._tensors([*arrays, no_flag.copy(), no_flag.copy(), no_flag.copy()]))
