"""What tests of the contract check share."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_value import send_by_value


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    send_by_value(items, Path(__file__).parent)
