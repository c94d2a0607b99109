"""Public names explain themselves: a docstring with an example, which the doctest run executes."""

from __future__ import annotations

import doctest
import importlib
import inspect
import types

import pytest

PACKAGES = (
    *("gymbridge", "gymbridge.contract", "gymbridge.envs", "gymbridge.spaces", "gymbridge.specs"),
    "gymbridge.vector",
)

ELSEWHERE = {
    *("AutoresetMode", "VectorizeMode", "VectorEnv", "VectorWrapper"),
    *("VectorActionWrapper", "VectorObservationWrapper", "VectorRewardWrapper"),
}
"""Names of gymnasium's that are handed on."""


def public_value(package: str, name: str) -> object:
    return getattr(importlib.import_module(package), name)


def public_names() -> list[tuple[str, str]]:
    names = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if name not in ELSEWHERE and not isinstance(value, (types.ModuleType, str, dict)):
                names.append((package, name))
    return names


@pytest.mark.parametrize(("package", "name"), public_names())
def test_public_name_has_an_example(package: str, name: str) -> None:
    value = public_value(package, name)
    text = inspect.getdoc(value) or ""
    assert ">>>" in text, f"{package}.{name} has no example"
    assert text.split("\n")[0].rstrip().endswith((".", ":", "…")), f"{package}.{name}: no summary in one line"


@pytest.mark.parametrize(("package", "name"), public_names())
def test_the_example_runs_as_pasted(package: str, name: str) -> None:
    """With nothing but the name itself at hand: the rest is imported by the example."""
    value = public_value(package, name)
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(value) or "", {name: value}, name, None, 0)
    told: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    runner.run(example, out=told.append)
    assert not runner.failures, "".join(told)


@pytest.mark.parametrize(("package", "name"), [it for it in public_names() if inspect.isclass(public_value(*it))])
def test_public_methods_are_documented(package: str, name: str) -> None:
    value = public_value(package, name)
    bare = [
        attribute
        for attribute, member in inspect.getmembers(value)
        if not attribute.startswith("_")
        and callable(member)
        and str(getattr(member, "__module__", "")).startswith("gymbridge")
        and not inspect.getdoc(member)
    ]
    assert not bare, f"{package}.{name}: {bare} have no docstring"
