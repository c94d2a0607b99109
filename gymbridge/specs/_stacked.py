"""``Stacked``: a lazy stack of specs of one tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gymbridge.errors import SpecError
from gymbridge.specs._base import TensorSpec
from gymbridge.specs._bridge import array_of
from gymbridge.specs._entries import Entries
from gymbridge.specs._stack import Stack


class Stacked(Stack):
    """A lazy stack of specs of one tensor each, which differ along ``dim``.

    ``shape`` has the dims, from the front, that all specs have, ``-1`` where they differ in size. A value is one
    tensor, so that specs of different shapes or dtypes have values in a ``StackedComposite`` only, as leaves of its
    rows.

    Args:
        *specs: the specs, all of tensors, or all of data (``NonTensor``) and of as many dims each.
        dim: where the new dim goes.

    Raises:
        ValueError: no specs, or specs that cannot stand in one stack.

    Example:
        >>> import torch
        >>> from gymbridge.specs import Categorical
        >>> spec = Stacked(Categorical(2), Categorical(9), dim=0)
        >>> spec.is_in(torch.tensor([1, 8])), spec.is_in(torch.tensor([8, 1])), spec[1].n
        (True, False, 9)
    """

    def __init__(self, *specs: TensorSpec, dim: int):
        self._init_stack(specs, dim)
        if any(isinstance(spec, Entries) for spec in specs):
            raise TypeError("Stacked is a stack of leaves; use StackedComposite for Composites")

    @property
    def dtype(self) -> torch.dtype | None:
        """dtype of all specs, None where they have not got one in common."""
        dtypes = {spec.dtype for spec in self._members}
        return dtypes.pop() if len(dtypes) == 1 else None

    @property
    def _holds_data(self) -> bool:
        return bool(self._members[0]._holds_data)

    def _gathered(self, values: list[Any], lead: int) -> Any:
        forms = {(tuple(value.shape), getattr(value, "dtype", None)) for value in values}
        if len(forms) > 1 and not self._holds_data:
            raise SpecError(
                f"no tensor holds values of a Stacked whose specs differ in shape or dtype, {sorted(map(str, forms))}; "
                "the StackedComposite that it is a leaf of has values"
            )
        return super()._gathered(values, lead)

    @property
    def _space_ndim(self) -> int:
        return 1 + int(self._members[0]._space_ndim)

    def encode(self, value: Any) -> Any:
        """Return the tensor for values of the space, an array (or nested list) with the stack's dim at its place."""
        if self._holds_data:
            return super().encode(value)
        try:
            array = array_of(value) if isinstance(value, torch.Tensor) else np.asarray(value)
        except ValueError as error:
            raise SpecError(f"value: got {value!r}, which no array holds, expected shape {list(self.shape)}") from error
        lead = array.ndim - self._space_ndim
        if lead < 0 or array.shape[lead + self._dim] != len(self._members):
            raise SpecError(f"value: got shape {list(array.shape)}, expected {len(self._members)} in dim {self._dim}")
        parts = np.moveaxis(array, lead + self._dim, 0)
        return self._gathered([spec.encode(part) for spec, part in zip(self._members, parts, strict=True)], lead)

    def to_numpy(self, value: Any) -> Any:
        """Return the space's values of a tensor, an array with the stack's dim at its place."""
        parts = super().to_numpy(value)
        if self._holds_data:
            return parts
        return np.stack(parts, np.ndim(parts[0]) - self._space_ndim + 1 + self._dim)

    def update_mask(self, mask: Any) -> None:
        """Allow some values only.

        Args:
            mask: one mask for each spec, or a tensor with the stack's dim first; None allows all.

        Raises:
            TypeError: one of the specs has no masks.
            ValueError: there are not as many masks as specs.
        """
        for spec in self._members:
            if not hasattr(spec, "update_mask"):
                raise TypeError(f"{spec._title} has no masks")
        if mask is not None and len(mask) != len(self._members):
            raise ValueError(f"mask: got {len(mask)}, expected one for each of {len(self._members)} specs")
        for i, spec in enumerate(self._members):
            spec.update_mask(None if mask is None else mask[i])

    def __repr__(self) -> str:
        lines = [f"{i}: {spec!r}" for i, spec in enumerate(self._members)]
        lines += [f"dim={self._dim}", f"shape={list(self.shape)}"]
        return f"{self._title}(\n    " + ",\n".join(lines).replace("\n", "\n    ") + ")"
