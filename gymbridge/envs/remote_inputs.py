"""What TensorDict envs in workers are given, on its way: in the block what has a place there, the rest beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import torch
from tensordict import TensorDictBase

from gymbridge.engine.block import Block
from gymbridge.envs.parcels import Handed, Packer, Parcel
from gymbridge.envs.placed_leaves import EnvPlaces, put_rows, tensors_of

__all__ = ["GivenColumns", "GivenRows", "PackedInputs", "RemoteInputs", "RoundInputs", "Sent", "inputs_of_rows"]

Key: TypeAlias = tuple[str, ...]


class GivenColumns(NamedTuple):
    """What the steps of all rows, whose envs are alike, are given.

    Attributes:
        keys: of the leaves.
        values: one ``[N, …]`` a leaf.
    """

    keys: tuple[Key, ...]
    values: Sequence[Any]


class GivenRows(NamedTuple):
    """What the rows of a round are given, each its own.

    Attributes:
        rows: row -> its TensorDict; None where it does nothing, or is given nothing.
        masks: row -> which envs of the row's own batch are picked, None for all; None where no row has such a mask.
        is_reset: all rows that do something are reset.
        resets: rows that are reset while others step.
    """

    rows: Sequence[TensorDictBase | None]
    masks: Sequence[torch.Tensor | None] | None
    is_reset: bool
    resets: Collection[int] = ()


Sent: TypeAlias = GivenColumns | GivenRows


@dataclass
class RoundInputs:
    """A round's inputs as the caller has them.

    Attributes:
        given: what the rows are given; None for nothing.
        masks: as in :class:`GivenRows`.
        root: row -> what the caller has in it, without ``"next"``, for the reset of an env that ends in a step.
    """

    given: Sent | None
    masks: Sequence[torch.Tensor | None] | None = None
    root: Callable[[int], TensorDictBase] | None = None


class PackedInputs(NamedTuple):
    """What has no place in the block, packed for one worker."""

    kind: Callable[..., Sent]
    parcel: Parcel | Handed

    def unpacked(self) -> Sent:
        """In the worker: what its rows are given."""
        return self.kind(*self.parcel.unpacked())


def inputs_of_rows(places: Sequence[EnvPlaces], block: Block) -> list[dict[Key, torch.Tensor]]:
    """Row -> key -> the tensor ``[N, …]`` of the block in which what the row's steps are given has its place.

    Args:
        places: of each row's env; the same object for envs that are alike.
        block: the block of these rows.
    """
    distinct = {id(own): tensors_of(block.input, own.input) for own in places}
    return [distinct[id(own)] for own in places]


class RemoteInputs:
    """How what the rows are given reaches the workers' hosts; see :class:`~gymbridge.engine.host.Inputs`.

    Args:
        places: of each row's env.
        block: of all rows for the caller, of its own for a worker.
        packer: packs what goes beside the block.
    """

    def __init__(self, places: Sequence[EnvPlaces], block: Block, packer: Packer):
        self._places = places
        self._block = block
        self._packer = packer
        self._made: list[dict[Key, torch.Tensor]] | None = None

    @property
    def _placed(self) -> list[dict[Key, torch.Tensor]]:
        """Made at the first use, which is the caller's alone: a host has its own.

        Not by ``cached_property``, whose lock is one for all instances up to Python 3.11: threads would wait for each
        other's, and for ever for one that an interrupt has left taken.
        """
        if self._made is None:
            self._made = inputs_of_rows(self._places, self._block)
        return self._made

    def write(self, inputs: RoundInputs) -> Sent | None:
        """Writes the leaves of steps that have a place; the rest, or None where there is none."""
        return self._write(None, inputs)

    def write_rows(self, rows: Sequence[int], inputs: RoundInputs) -> Sent | None:
        """As ``write``, for what these rows alone are given, in this order."""
        return self._write(rows, inputs)

    def _write(self, rows: Sequence[int] | None, inputs: RoundInputs) -> Sent | None:
        given = inputs.given
        if given is None:
            return None
        if isinstance(given, GivenColumns):
            return self._write_columns(rows, given)
        if given.is_reset:
            return given
        rest = [
            row
            if row is None or number in given.resets  # which is given all that the caller has
            else self._write_row(number if rows is None else rows[number], row, own)
            for number, (row, own) in enumerate(zip(given.rows, given.masks or repeat(None), strict=False))
        ]
        if given.masks is None and all(row is None for row in rest):
            return None
        return GivenRows(rest, given.masks, False)

    def _write_columns(self, rows: Sequence[int] | None, given: GivenColumns) -> GivenColumns | None:
        placed = self._placed[0]
        index = None if rows is None else torch.tensor(rows)
        rest = []
        for key, value in zip(*given, strict=True):
            place = placed.get(key)
            if place is None:
                rest.append((key, value))
            elif index is None:
                place.copy_(value.detach())
            else:
                put_rows(place, index, value.detach().to(place.device))
        return GivenColumns(tuple(key for key, _ in rest), [value for _, value in rest]) if rest else None

    def _write_row(self, number: int, row: TensorDictBase, mask: torch.Tensor | None) -> TensorDictBase | None:
        if mask is not None:  # its own batch shows what the caller has: all of it
            return row
        placed = self._placed[number]
        for key, place in placed.items():
            place[number].copy_(row.get(key).detach())
        rest = row.exclude(*placed)
        return None if rest.is_empty() else rest

    def part(self, beside: Sent, start: int, stop: int) -> PackedInputs:
        """What the host of some rows is to get."""
        if isinstance(beside, GivenColumns):
            own: Any = [beside.keys, [value[start:stop] for value in beside.values]]
        else:
            own = [[*beside.rows[start:stop]], beside.masks and [*beside.masks[start:stop]], beside.is_reset]
        return PackedInputs(type(beside), self._packer.packed(own))

    def read(self, beside: PackedInputs | None) -> Sent | None:
        """In the worker: what came beside the block, from which its host reads the rest."""
        return None if beside is None else beside.unpacked()
