"""What every test has: checks of the installed versions, the gymnasium marker, hypothesis' settings, and more.

Nothing here imports torch: the tests in ``torch_free/`` run where it is not installed.
"""

from __future__ import annotations

import gc
import os
import signal
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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
