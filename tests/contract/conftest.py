"""Has envs of these modules go to workers by value: where pytest finds the modules, a worker may not."""

from __future__ import annotations

import sys
from pathlib import Path

import cloudpickle
import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for name in {item.module.__name__ for item in items if isinstance(item, pytest.Function)}:
        module = sys.modules.get(name)
        if module is not None and Path(__file__).parent in Path(module.__file__ or "").parents:
            cloudpickle.register_pickle_by_value(module)
