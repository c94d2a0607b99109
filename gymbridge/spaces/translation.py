"""Translations of custom spaces, which users register."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from gymnasium import Space, spaces

from gymbridge.spaces.naming import register_leaf
from gymbridge.specs import TensorSpec

__all__ = ["Translation", "register_space", "translation_for", "translation_of"]

_BUILT_IN = frozenset(
    {
        spaces.Box,
        spaces.Discrete,
        spaces.MultiDiscrete,
        spaces.MultiBinary,
        spaces.Dict,
        spaces.Tuple,
        spaces.Text,
        spaces.Graph,
        spaces.Sequence,
        spaces.OneOf,
        Space,
    }
)


@dataclass(frozen=True)
class Translation:
    """How the spaces of a custom type, and their samples, travel; see :func:`register_space`."""

    to_spec: Callable[[Any], TensorSpec]
    to_space: Callable[[Any], Space[Any]]
    to_tensor: Callable[[Any, Any], Any] | None = None
    from_tensor: Callable[[Any, Any], Any] | None = None


@singledispatch
def translation_of(space: object) -> Translation | None:
    """The translation that is registered for a space's type or the nearest of its bases, None if there is none."""
    return None


def translation_for(space_type: type) -> Translation | None:
    """The translation that is registered for a type of spaces or the nearest of its bases."""
    return translation_of.dispatch(space_type)(None)


def register_space(
    space_type: type[Space[Any]],
    *,
    to_spec: Callable[[Any], TensorSpec],
    to_space: Callable[[Any], Space[Any]],
    to_tensor: Callable[[Any, Any], Any] | None = None,
    from_tensor: Callable[[Any, Any], Any] | None = None,
) -> None:
    """Tell how the spaces of a custom type travel: as a leaf of numbers, or as a ``NonTensor`` leaf.

    It holds in this process, for subclasses too, and replaces an earlier registration of the type.

    Args:
        space_type: a subclass of ``gymnasium.Space``, also of one that has a translation of its own.
        to_spec: ``to_spec(space)`` gives the spec of one leaf, without batch dims; its device does not matter.
        to_space: ``to_space(spec)`` gives the space back from such a spec, on any device; where the spec was given
            batch dims it still has them.
        to_tensor: ``to_tensor(space, sample)`` gives one sample's tensor (its datum for a ``NonTensor`` leaf). None
            where the spec's own ``encode`` can do it.
        from_tensor: ``from_tensor(space, tensor)`` gives the sample back, from a tensor on any device (or a datum).
            None where the spec's own ``to_numpy`` can do it.

    Raises:
        TypeError: ``space_type`` is not a subclass of ``gymnasium.Space``.
        ValueError: ``space_type`` is one of gymnasium's own, whose translation is fixed.

    Example:
        >>> from gymnasium import Space
        >>> import torch
        >>> from gymbridge.spaces import from_tensordict, space_to_spec, spec_to_space, to_tensordict
        >>> from gymbridge.specs import Categorical
        >>> class Compass(Space):
        ...     def contains(self, x):
        ...         return x in ("north", "south")
        ...
        ...     def __eq__(self, other):
        ...         return isinstance(other, Compass)
        >>> register_space(
        ...     Compass,
        ...     to_spec=lambda space: Categorical(2),
        ...     to_space=lambda spec: Compass(),
        ...     to_tensor=lambda space, sample: torch.tensor(["north", "south"].index(sample)),
        ...     from_tensor=lambda space, tensor: ["north", "south"][int(tensor)],
        ... )
        >>> td = to_tensordict(Compass(), "south")
        >>> td["observation"], from_tensordict(Compass(), td)
        (tensor(1), 'south')
        >>> spec_to_space(space_to_spec(Compass())) == Compass()
        True
    """
    if not (isinstance(space_type, type) and issubclass(space_type, Space)):
        raise TypeError(f"register_space: got {space_type!r}, expected a subclass of gymnasium.Space")
    if space_type in _BUILT_IN:
        raise ValueError(f"register_space: the translation of {space_type.__qualname__} is fixed; register a subclass")
    translation = Translation(to_spec, to_space, to_tensor, from_tensor)
    translation_of.register(space_type, lambda space: translation)
    register_leaf(space_type)
