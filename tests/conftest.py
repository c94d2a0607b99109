"""What all tests share."""

from __future__ import annotations

import gymnasium
import pytest
from hypothesis import settings

settings.register_profile("gymbridge", deadline=None)  # no test is timed
settings.load_profile("gymbridge")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    version = tuple(int(part) for part in gymnasium.__version__.split(".")[:2])
    if version >= (1, 4):
        return
    skip = pytest.mark.skip(reason=f"gymnasium is {gymnasium.__version__}, the test is about 1.4 and later")
    for item in items:
        if item.get_closest_marker("newest_gymnasium"):
            item.add_marker(skip)
