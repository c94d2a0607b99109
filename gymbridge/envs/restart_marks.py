"""The leaf that says whether a row's worker was replaced in a step; it is there where workers may be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from gymbridge.engine.lost_rows import RESTARTED
from gymbridge.envs.tensordicts import row_of
from gymbridge.specs import Binary, Composite

__all__ = ["MARK", "RestartMarks", "may_restart", "with_mark"]

MARK = ("info", RESTARTED)


def may_restart(engine: Any) -> bool:
    """Whether an engine replaces workers."""
    restarts = getattr(engine, "restarts", None)
    return restarts is not None and restarts.limit is not None


def with_mark(observations: Composite) -> Composite:
    """The spec of what an env shows, with the leaf; a new one.

    Example:
        >>> with_mark(Composite(shape=(2,)))["info", "worker_restarted"].shape
        torch.Size([2])
    """
    size, device = observations.shape, observations.device
    marked: Composite = observations.clone()
    if MARK[0] not in marked.keys():
        marked.set(MARK[0], Composite(shape=size, device=device))
    marked.set(MARK, Binary(shape=size, device=device, dtype=torch.bool))
    return marked


class RestartMarks:
    """Sets the leaf in what an engine of ``N`` rows shows.

    Args:
        batch_size: ``[N, *B]``, or ``[]`` for one row that looks like an env.
        device: where what is shown is; None for the CPU, without saying so.

    Example:
        >>> marks = RestartMarks(torch.Size([3]), None)
        >>> shown = TensorDict(batch_size=[3])
        >>> marks.put(shown, {1})
        >>> shown["info", "worker_restarted"]
        tensor([False,  True, False])
    """

    def __init__(self, batch_size: torch.Size, device: torch.device | None):
        self._batch_size = batch_size
        self._device = device

    def put(
        self,
        shown: TensorDictBase,
        rows: Iterable[int] = (),
        before: TensorDictBase | None = None,
        untouched: Any = None,
    ) -> None:
        """Sets the leaf.

        Args:
            shown: ``[N, *B]``, of our own.
            rows: those whose worker was replaced.
            before: what the rows showed before.
            untouched: bool ``[N]``, which of them still show that; None for none.
        """
        marks = torch.zeros(self._batch_size, dtype=torch.bool)
        own = None if before is None or untouched is None else before.get(MARK, None)
        if own is not None and own.shape == marks.shape:
            kept = torch.from_numpy(np.asarray(untouched)).reshape(-1, *[1] * (len(self._batch_size) - 1))
            marks = torch.where(kept, own.cpu(), marks)
        for row in rows:
            marks[row if self._batch_size else ...] = True
        _put(shown, marks if self._device is None else marks.to(self._device))


def _put(shown: TensorDictBase, marks: torch.Tensor) -> None:
    if isinstance(shown, LazyStackedTensorDict):
        for row in range(len(shown.tensordicts)):
            _put(row_of(shown, row), marks[row].clone())
        return
    group = shown.get(MARK[0], None)
    if group is None:
        shown.set(MARK[0], TensorDict({RESTARTED: marks}, shown.batch_size, device=shown.device))
    else:
        group.set(RESTARTED, marks)
