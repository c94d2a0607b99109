"""The tables that map what is promised to the tests that protect it name tests that exist.

They are ``behaviour/spec_*.md`` and ``docs/gymnasium.md``. A table has the columns ``what the spec says``, or
``promise``, and ``tests``; in the second stand node ids in backticks, with paths from ``tests/``,
``behaviour/test_steps.py::test_rand_action_and_rand_step`` for one, separated by commas.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLES = [*sorted((TESTS / "behaviour").glob("spec_*.md")), TESTS.parent / "docs" / "gymnasium.md"]
HEADERS = (["what the spec says", "tests"], ["promise", "tests"])
NODE_ID = re.compile(r"`([\w/]+\.py)::((?:\w+::)?test_\w+)`")


def rows(page: str) -> list[tuple[str, str]]:
    """The sentences of a page's tables, each with its cell of tests.

    Raises:
        ValueError: a row of other than two cells, or a table with another header.
    """
    found: list[tuple[str, str]] = []
    in_table = False
    for number, line in enumerate(page.splitlines(), 1):
        if not line.startswith("|"):
            in_table = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 2:
            raise ValueError(f"line {number}: got {len(cells)} cells, expected 2")
        if not in_table:
            if cells not in HEADERS:
                raise ValueError(f"line {number}: got the header {cells}, expected one of {HEADERS}")
            in_table = True
        elif "".join(cells).strip("-: "):
            found.append((cells[0], cells[1]))
    return found


def node_ids(cell: str) -> list[tuple[str, str]]:
    """File and test of each node id.

    Raises:
        ValueError: something else in the cell, or nothing.
    """
    found = NODE_ID.findall(cell)
    rest = NODE_ID.sub("", cell).replace(",", "").strip()
    if rest or not found:
        raise ValueError(f"got {cell!r}, expected node ids in backticks, separated by commas")
    return [(file, test) for file, test in found]


@cache
def names_of_tests(file: str) -> frozenset[str]:
    """The tests of a file, those of classes as ``Class::test``; none where there is no file."""
    path = TESTS / file
    if not path.is_file():
        return frozenset()
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return frozenset(names)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_sentence_names_tests_that_exist(table: Path) -> None:
    found = rows(table.read_text())
    assert found, "no row"
    missing = [
        f"{sentence}: {file}::{test}"
        for sentence, cell in found
        for file, test in node_ids(cell)
        if test not in names_of_tests(file)
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_sentence_stands_once(table: Path) -> None:
    sentences = [sentence for sentence, _ in rows(table.read_text())]
    assert sorted(set(sentences)) == sorted(sentences)
    assert all(sentences)


def test_there_is_a_table() -> None:
    """Of both kinds: a pattern that finds nothing would have nothing to check."""
    assert {table.parent.name for table in TABLES} == {"behaviour", "docs"}


def test_what_is_no_table_is_refused() -> None:
    head = "| what the spec says | tests |\n| --- | --- |\n"
    assert rows(f"# Title\n\n{head}| a | `x.py::test_b` |\n\nWords.\n") == [("a", "`x.py::test_b`")]
    with pytest.raises(ValueError, match="line 1: got the header"):
        rows("| sentence | tests |\n| --- | --- |\n")
    with pytest.raises(ValueError, match="line 3: got 3 cells"):
        rows(f"{head}| a | b | c |\n")


@pytest.mark.parametrize("cell", ["", "none yet", "`x.py::test_a` and more", "x.py::test_a", "`x.py`"])
def test_a_cell_without_node_ids_is_refused(cell: str) -> None:
    with pytest.raises(ValueError, match="expected node ids"):
        node_ids(cell)


def test_tests_are_found_where_they_are() -> None:
    here = Path(__file__).name
    assert "test_there_is_a_table" in names_of_tests(here)
    assert "test_there_is_no_such_test" not in names_of_tests(here)
    assert names_of_tests("no_such_file.py") == frozenset()
    assert node_ids("`a/x.py::test_b`, `y.py::Group::test_c`") == [("a/x.py", "test_b"), ("y.py", "Group::test_c")]
