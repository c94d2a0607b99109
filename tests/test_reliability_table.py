"""Each row of docs/reliability.md names a test that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reliability.md"
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> list[str]:
    """The rows of all tables, but for heads and rules."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    return [line for line in lines if not line.startswith(("| fault |", "| --- |"))]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip())
def test_a_row_names_a_test(row: str) -> None:
    named = NAMED.findall(row.rstrip("| ").rpartition("|")[2])
    assert named
    for path, function in named:
        assert re.search(rf"^def {function}\(", (TESTS / path).read_text(), re.MULTILINE), (path, function)


def test_each_test_that_the_page_names_is_there() -> None:
    named = NAMED.findall(PAGE.read_text())
    assert len(named) >= len(rows())
    for path, function in named:
        assert f"def {function}(" in (TESTS / path).read_text(), (path, function)
