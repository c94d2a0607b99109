"""What tests of the command line share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gymbridge.benchmarking import rounds


@pytest.fixture(autouse=True)
def _undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command changes its process: where modules are looked for, torch's threads, what is not collected."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    no_collector = dict.fromkeys(("collect", "freeze", "unfreeze"), lambda: None)
    monkeypatch.setattr(rounds, "gc", SimpleNamespace(**no_collector))
    torch = sys.modules.get("torch")
    num_threads = torch.get_num_threads() if torch is not None else None
    yield
    if torch is not None:
        torch.set_num_threads(num_threads)


@pytest.fixture
def env_folder() -> Path:
    """The folder with ``cli_envs.py``."""
    return Path(__file__).parents[1]
