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

import gymbridge

HEAVY = {"torch", "tensordict"}
# Modules and packages that may import them; every other module, and its examples, runs without.
NEEDS_TORCH = (
    "gymbridge.async_env_pool",
    "gymbridge.batched",
    "gymbridge.contract.tensordict_env",
    "gymbridge.contract.tensordict_outputs",
    "gymbridge.parallel_env",
    "gymbridge.thread_limits",
    "gymbridge.envs",
    "gymbridge.interop.envpool",
    "gymbridge.interop.envpool_calls",
    "gymbridge.interop.envpool_layout",
    "gymbridge.interop.ray",
    "gymbridge.interop.ray_session",
    "gymbridge.interop.sb3",
    "gymbridge.interop.tensordict_rounds",
    "gymbridge.interop.torchrl",
    "gymbridge.interop.torchrl_batch",
    "gymbridge.interop.torchrl_env",
    "gymbridge.interop.torchrl_specs",
    "gymbridge.interop.unlike_members",
    "gymbridge.reward_dtypes",
    "gymbridge.spaces.actions",
    "gymbridge.spaces.conversion",
    "gymbridge.spaces.leaves",
    "gymbridge.spaces.samples",
    "gymbridge.spaces.translation",
    "gymbridge.specs",
    "gymbridge.vector.as_tensordict_env",
    "gymbridge.vector.env_outputs",
    "gymbridge.vector.pool_vector_env",
    "gymbridge.vector.spec_leaves",
    "gymbridge.vector.spec_requirements",
    "gymbridge.vector.tensordict_form",
    "gymbridge.vector.tensordict_infos",
    "gymbridge.vector.tensordict_vector_env",
    "gymbridge.vector.torch_output",
    "gymbridge.worker_batch",
)


def torch_free_modules() -> list[str]:
    """Every module's name, found by its file, since importing some of them needs torch."""
    package = Path(gymbridge.__file__).parent
    paths = [path.relative_to(package.parent).with_suffix("") for path in package.rglob("*.py")]
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    return sorted(name for name in names if not f"{name}.".startswith(tuple(f"{heavy}." for heavy in NEEDS_TORCH)))


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


def test_import_loads_neither_torch_nor_tensordict(subprocess_env: dict[str, str]) -> None:
    code = f"""
import importlib, sys
for module in {torch_free_modules()}:
    importlib.import_module(module)
    heavy = {HEAVY} & set(sys.modules)
    assert not heavy, f"{{module}} imports {{heavy}}"
"""
    done = subprocess.run([sys.executable, "-c", code], env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", torch_free_modules())
def test_examples_run_without_torch(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.rglob("*.py")), ids=lambda path: path.name)
def test_tests_of_this_folder_import_neither(path: Path) -> None:
    assert not imported_packages(path.read_text()) & HEAVY


def test_imported_packages_sees_every_form() -> None:
    sources = ["import torch.nn", "def f():\n    from torch import nn", "pytest.importorskip('torch')"]
    assert [imported_packages(source) for source in sources] == [{"torch"}] * 3
    assert imported_packages("import gymbridge, numpy as np") == {"gymbridge", "numpy"}
