"""The parts of gymbridge that workers and numpy users load need neither torch nor tensordict.

Tests in this folder run on their own in an environment without torch.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

# Every module whose import, and whose examples, need neither torch nor tensordict.
TORCH_FREE_MODULES = ["gymbridge", "gymbridge.errors"]
HEAVY = {"torch", "tensordict"}


def imported_packages(source: str) -> set[str]:
    """Top-level packages that the source imports, wherever in it."""
    packages = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            packages.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("importorskip"):
            packages.update(ast.literal_eval(argument).partition(".")[0] for argument in node.args[:1])
    return packages


@pytest.mark.parametrize("module", TORCH_FREE_MODULES)
def test_import_loads_neither_torch_nor_tensordict(module: str, subprocess_env: dict[str, str]) -> None:
    code = f"import {module}, sys; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], env=subprocess_env, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.mark.parametrize("module", TORCH_FREE_MODULES)
def test_examples_run_without_torch(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.rglob("*.py")), ids=lambda path: path.name)
def test_tests_of_this_folder_import_neither(path: Path) -> None:
    assert not imported_packages(path.read_text()) & HEAVY


def test_imported_packages_sees_every_form() -> None:
    sources = ["import torch.nn", "def f():\n    from torch import nn", "pytest.importorskip('torch')"]
    assert [imported_packages(source) for source in sources] == [{"torch"}] * 3
    assert imported_packages("import gymbridge, numpy as np") == {"gymbridge", "numpy"}
