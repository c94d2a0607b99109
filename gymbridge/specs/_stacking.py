"""``stack_specs``: which of the stacks, dense or lazy, some specs make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gymbridge.specs._composite import Composite
from gymbridge.specs._stack import stacked_as
from gymbridge.specs._stacked import Stacked
from gymbridge.specs._stacked_composite import StackedComposite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymbridge.specs._base import TensorSpec


def stack_specs(specs: Sequence[TensorSpec], dim: int = 0) -> Any:
    """Stack specs along a new batch dim: densely where they are equal, lazily where they are not.

    Args:
        specs: specs of tensors, or (with as many dims each) of data or of TensorDicts.
        dim: where the new dim goes; negative dims count from the end of the result's shape.

    Returns:
        A spec of the same kind, a ``Stacked`` or a ``StackedComposite``.

    Raises:
        ValueError: no specs, or specs that cannot stand in one stack.

    Example:
        >>> from gymbridge.specs import Categorical
        >>> stack_specs([Categorical(3), Categorical(3)]) == Categorical(3, (2,))
        True
        >>> stack_specs([Categorical(3), Categorical(4)]).shape
        torch.Size([2])
    """
    specs = list(specs)
    return stacked_as(StackedComposite if specs and isinstance(specs[0], Composite) else Stacked, specs, dim)
