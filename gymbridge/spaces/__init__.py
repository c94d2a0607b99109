"""Spaces and what they become: :mod:`~gymbridge.spaces.naming` without torch, everything else with it.

The names here are imported when they are first used, so that :mod:`~gymbridge.spaces.naming` costs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gymbridge.spaces.actions import ActionCodec
    from gymbridge.spaces.conversion import observation_spec, space_to_spec, spec_to_space
    from gymbridge.spaces.samples import from_tensordict, to_tensordict
    from gymbridge.spaces.translation import register_space

_HOMES = {
    "ActionCodec": "gymbridge.spaces.actions",
    "from_tensordict": "gymbridge.spaces.samples",
    "observation_spec": "gymbridge.spaces.conversion",
    "register_space": "gymbridge.spaces.translation",
    "space_to_spec": "gymbridge.spaces.conversion",
    "spec_to_space": "gymbridge.spaces.conversion",
    "to_tensordict": "gymbridge.spaces.samples",
}
"""Public name -> the module that defines it."""

__all__ = [
    "ActionCodec",
    "from_tensordict",
    "observation_spec",
    "register_space",
    "space_to_spec",
    "spec_to_space",
    "to_tensordict",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'gymbridge.spaces' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
