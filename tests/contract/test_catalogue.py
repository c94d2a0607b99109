"""All faults are on their page with the test of each, and each test has an env for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from faulty_envs import FAULTY_ENVS
from faulty_tensordict_envs import FAULTY_TENSORDICT_ENVS

from gymbridge.contract import CATALOGUE

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "checking.md"
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
CASES = {
    "contract/test_gymnasium_faults.py": FAULTY_ENVS,
    "contract/test_tensordict_faults.py": FAULTY_TENSORDICT_ENVS,
}


def rows() -> dict[str, list[str]]:
    """Code -> the cells of its row."""
    lines = [line.replace("\\|", "or") for line in PAGE.read_text().splitlines() if re.match(r"\| `[a-z-]+` \|", line)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {code.strip("`"): rest for code, *rest in cells if not code.startswith("`--")}


@pytest.mark.parametrize("code", CATALOGUE)
def test_a_fault_has_a_row_and_a_test(code: str) -> None:
    severity, seen, test = rows()[code]
    assert severity == CATALOGUE[code].severity
    assert seen
    with_it = {path for path, cases in CASES.items() if any(case.partition(":")[0] == code for case in cases)}
    assert {path for path, _ in NAMED.findall(test)} == with_it
    assert with_it
    for path, function in NAMED.findall(test):
        assert re.search(rf"^def {function}\(", (TESTS / path).read_text(), re.MULTILINE), (path, function)


def test_the_page_has_no_other_rows() -> None:
    assert list(rows()) == list(CATALOGUE)


def test_an_advice_is_a_sentence() -> None:
    for code, kind in CATALOGUE.items():
        assert re.fullmatch(r"[A-Z].{10,}[.]", kind.advice), code
