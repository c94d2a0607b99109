"""Keys of a spec's leaves and groups, as tuples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from gymbridge.specs import Composite, TensorSpec

__all__ = ["group_sizes", "leaf_keys"]

Key = tuple[str, ...]


def leaf_keys(spec: Composite) -> list[Key]:
    """The keys of a spec's leaves, as tuples."""
    return [(key,) if isinstance(key, str) else key for key in spec.keys(True, True)]


def group_sizes(spec: Composite) -> dict[Key, torch.Size]:
    """The keys of a spec's nested groups, empty ones too, with their batch sizes."""
    items: Iterable[tuple[Any, TensorSpec]] = spec.items(include_nested=True)
    return {(key,) if isinstance(key, str) else key: part.shape for key, part in items if isinstance(part, Composite)}
