"""Modules of tests whose envs go to workers by value: where pytest finds the modules, a worker may not."""

from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle
import pytest

__all__ = ["send_by_value"]


def send_by_value(items: list[pytest.Item], folder: Path) -> None:
    """Has what the collected modules of a folder define be pickled by value."""
    for name in {item.module.__name__ for item in items if isinstance(item, pytest.Function)}:
        module = sys.modules.get(name)
        if module is not None and folder in Path(module.__file__ or "").parents:
            cloudpickle.register_pickle_by_value(module)
