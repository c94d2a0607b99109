"""What every test has: checks of the installed versions, markers, hypothesis' settings, and more.

Nothing here imports torch: the tests in ``torch_free/`` run where it is not installed.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from fuzzing import examples
from hypothesis import settings
from packaging.version import Version

import gymbridge

NEWEST_GYMNASIUM = Version("1.4")

# No test is timed. GYMBRIDGE_EXAMPLES=10 draws ten times as many examples; give it --timeout 3600 too.
settings.register_profile("gymbridge", deadline=None, max_examples=examples(settings.default.max_examples))
settings.load_profile("gymbridge")


def pytest_configure(config: pytest.Config) -> None:
    """Stop where the environment promises other versions (``EXPECT_NUMPY=1.26``) than are installed."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; tests send it, to scripts too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for package in ("gymnasium", "numpy", "tensordict", "torch"):
        expected = os.environ.get(f"EXPECT_{package.upper()}")
        if expected is None:
            continue
        try:
            found = version(package)
        except PackageNotFoundError:
            found = "none"
        if f"{found}.".startswith(f"{expected}."):
            continue
        raise pytest.UsageError(f"this environment is for {package} {expected}, but {found} is installed")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nobody looks for garbage while modules are imported and tests made, none of which becomes any."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what tests marked ``every`` do without, unless ``GYMBRIDGE_ENGINES`` is ``all``."""
    if os.environ.get("GYMBRIDGE_ENGINES") == "all":
        return
    marked: dict[str, list[Any]] = {}
    for item in items:
        if item.get_closest_marker("every"):
            marked.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = {item for each in marked.values() for item in _beside_the_diagonals(each)}
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=[*left_out])


def _beside_the_diagonals(items: list[Any]) -> list[Any]:
    """Those of a test's items that do not run: in a table of two arguments, all but every n-th diagonal.

    So each row and each column has a part. One that is named by its whole id, and so alone, runs.
    """
    if len(items) == 1:
        return []
    marker = items[0].get_closest_marker("every")
    n, *names = marker.args
    sums = [0] * len(items)
    for name in names:
        first = {}  # the place of each value among the argument's values; values need have no hash
        for item in sorted(items, key=lambda item: item.callspec.indices[name]):
            first.setdefault(id(item.callspec.params[name]), len(first))
        for at, item in enumerate(items):
            sums[at] += first[id(item.callspec.params[name])]
    return [item for item, total in zip(items, sums, strict=True) if total % n != marker.kwargs.get("first", 0)]


def pytest_collection_finish() -> None:
    """Who collects garbage does not look through what was imported, which takes a third of a second."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("newest_gymnasium") and Version(gymnasium.__version__) < NEWEST_GYMNASIUM:
        pytest.skip(f"compares with gymnasium {NEWEST_GYMNASIUM}; {gymnasium.__version__} is installed")


@pytest.fixture
def subprocess_env() -> dict[str, str]:
    """The environment variables with which a subprocess imports the gymbridge that is under test."""
    paths = [str(Path(gymbridge.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[Path, str], str]:
    """Calls a program of ``benchmarks/`` in this process: what it says as it refuses an option."""

    def refuse(program: Path, option: str) -> str:
        monkeypatch.syspath_prepend(program.parent)
        with pytest.raises(SystemExit, match="2"):
            import_module(program.stem).main([option])
        return capsys.readouterr().err

    return refuse
