"""``gymbridge info`` tells what is here, and ``gymbridge demo`` plays to its end, in a terminal and without one."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import gymbridge
from gymbridge.cli import info, main

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_info_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "cpu_limit", lambda: 1.5)
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gymbridge"] == gymbridge.__version__
    assert found["packages"]["gymnasium"] == gymnasium.__version__
    assert found["packages"]["numpy"] == np.__version__
    assert found["usable_cores"] == len(os.sched_getaffinity(0))
    assert found["cpu_limit"] == 1.5
    assert found["shared_memory"]["size"] >= found["shared_memory"]["free"] >= 0
    assert found["start_methods"]["default"] == "starter"
    assert found["extras"]["cli"] == []


def test_info_as_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "cuda_devices", lambda: ["A card", "Another"])
    monkeypatch.setattr(info, "installed", lambda name: "not installed" if name == "ray" else "1.2")
    monkeypatch.setattr(info, "cpu_limit", lambda: 1.5)
    assert main(["info"]) == 0
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["gymnasium"] == "1.2"
    assert rows["CUDA devices"] == "A card, Another"
    assert rows["extra ray"] == "ray missing: pip install 'gymbridge[ray]'"
    assert rows["extra sb3"] == "available"
    assert rows["cores"].endswith("control groups allow 1.5")


def test_every_extra_for_users_is_told() -> None:
    text = PYPROJECT.read_text()
    extras = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    names = set(re.findall(r"^(\w+) = \[", extras, re.MULTILINE)) - {"test", "dev", "docs"}
    assert names == set(info.EXTRAS)
    for extra, packages in info.EXTRAS.items():
        (brought,) = re.findall(rf"^{extra} = \[(.*)\]$", extras, re.MULTILINE)
        assert all(f'"{package}' in brought for package in packages)


@pytest.mark.parametrize(("version", "files", "asks"), [("2.13.0+cpu", ["/"], False), ("2.13.0", [], False)])
def test_torch_is_not_asked_where_it_can_find_no_gpu(
    version: str, files: list[str], asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(info, "installed", lambda name: version)
    monkeypatch.setattr(info, "_GPU_FILES", files)
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it would fail
    assert info.cuda_devices() == []


def test_the_demo_plays_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seconds=0.3"]) == 0
    said = capsys.readouterr().out
    for engine in ("SyncVectorEnv", "AsyncVectorEnv", "SerialEnv", "ParallelEnv"):
        (rate,) = re.findall(rf"^gymbridge {engine} .* ([\d,]+) steps a second", said, re.MULTILINE)
        assert int(rate.replace(",", "")) > 0
    replaced = re.findall(r"process (\d+) was killed; \d+ ms later process (\d+) had replaced it: envs (\d+) to", said)
    assert len(replaced) == 2
    assert all(old != new for old, new, _ in replaced)
    assert [first for *_, first in replaced] == ["4", "8"]
    counts = [int(count.replace(",", "")) for count in re.findall(r"^env \d.* ([\d,]+) steps", said, re.MULTILINE)]
    assert len(counts) == 8
    assert sum(counts) > 0
    assert "\x1b" not in said


def test_the_demo_plays_in_a_terminal(subprocess_env: dict[str, str]) -> None:
    terminal, end = pty.openpty()
    environment = {**subprocess_env, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "40"}
    demo = subprocess.Popen(
        [sys.executable, "-m", "gymbridge", "demo", "--seconds=0.3"], env=environment, stdout=end, stderr=end
    )
    os.close(end)
    said = b""
    with suppress(OSError):  # which is how a terminal tells that its other end is closed
        while part := os.read(terminal, 65536):
            said += part
    os.close(terminal)
    assert demo.wait(60) == 0
    text = said.decode()
    assert "\x1b[" in text
    assert "Traceback" not in text
    assert "…" not in text  # all of it fits
    assert "had replaced it" in text
    assert "gymbridge ParallelEnv" in text
