"""Which keys of an env's outputs are returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymbridge.envs.inputs import NestedKey
from gymbridge.envs.spec_keys import leaf_keys
from gymbridge.specs import Composite

__all__ = ["ALL_KEYS", "Selection"]

Path = tuple[str, ...]


class Selection:
    """The observations and rewards that are returned.

    The key of a group stands for all in it, and that of an info for its mask, too.

    Args:
        selected: the keys, actions among them; None for all.
        excluded: keys that are left out; None for none.

    Raises:
        TypeError: something that is no list of keys.
        ValueError: both given.

    Example:
        >>> from gymbridge.specs import Unbounded
        >>> spec = Composite(pixels=Unbounded((3,)), arm=Composite(angle=Unbounded((1,)), speed=Unbounded((1,))))
        >>> leaf_keys(Selection(excluded=["pixels", ("arm", "speed")]).of(spec))
        [('arm', 'angle')]
    """

    def __init__(self, selected: Sequence[NestedKey] | None = None, excluded: Sequence[NestedKey] | None = None):
        if selected is not None and excluded is not None:
            raise ValueError("selected_keys and excluded_keys: got both, expected at most one")
        self._selected = None if selected is None else _paths("selected_keys", selected)
        self._excluded = _paths("excluded_keys", excluded or ())

    def __contains__(self, key: Path) -> bool:
        parts = {key[:length] for length in range(1, len(key) + 1)}
        if key[:2] == ("info", "_mask"):  # says where an entry is present, and goes where that goes
            parts |= {("info", *key[2:length]) for length in range(3, len(key) + 1)}
        return not parts & self._excluded if self._selected is None else bool(parts & self._selected)

    def of(self, spec: Composite) -> Composite:
        """The spec of what is returned, without groups of which nothing is left."""
        kept = spec.exclude(*(key for key in leaf_keys(spec) if key not in self))
        groups = [key for key, part in kept.items(include_nested=True) if isinstance(part, Composite)]
        emptied = [key for key in groups if not leaf_keys(kept[key]) and leaf_keys(spec[key])]
        return kept.exclude(*emptied) if emptied else kept

    def require(self, actions: Composite) -> None:
        """Refuses to leave out an action.

        Raises:
            ValueError: naming it.
        """
        left_out = [key for key in leaf_keys(actions) if key not in self]
        if left_out:
            names = [key[0] if len(key) == 1 else key for key in left_out]
            raise ValueError(
                f"{'selected_keys' if self._selected is not None else 'excluded_keys'}: the actions {names} are left "
                f"out, expected them to stay"
            )


def _paths(name: str, keys: Any) -> frozenset[Path]:
    if isinstance(keys, str) or not isinstance(keys, Sequence):
        raise TypeError(f"{name}: got {keys!r}, expected a list of keys")
    paths = [(key,) if isinstance(key, str) else key for key in keys]
    for path in paths:
        if not (isinstance(path, tuple) and path and all(isinstance(part, str) for part in path)):
            raise TypeError(f"{name}: got {path!r}, expected a string or a tuple of strings")
    return frozenset(paths)


ALL_KEYS = Selection()
"""Nothing is left out."""
