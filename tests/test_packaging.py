"""What the metadata promises is what the test matrix installs."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

tomllib = pytest.importorskip("tomllib", reason="reads pyproject.toml with tomllib, which Python 3.10 lacks")

TESTS = Path(__file__).parent


def test_oldest_environment_installs_every_lower_bound() -> None:
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]
    requirements = map(Requirement, project["dependencies"] + project["optional-dependencies"]["test"])
    bounds = {str(bound).replace(">=", f"{r.name}==") for r in requirements for bound in r.specifier}
    lines = (TESTS / "requirements-oldest.txt").read_text().splitlines()
    assert {line for line in lines if not line.startswith("#")} == bounds
