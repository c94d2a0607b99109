"""Candidates are timed in turn, and one that fails costs the others nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gymbridge.benchmarking import rounds
from gymbridge.benchmarking.machine import cpu_limit
from gymbridge.benchmarking.rounds import Cell, measure, steps_for


class Stepped:
    """A candidate that takes a second a step of a clock that stands still otherwise."""

    def __init__(self, clock: list[float], log: list[str], name: str, fails_after: int | None = None):
        self.clock, self.log, self.name, self.left = clock, log, name, fails_after

    def build(self) -> tuple[Callable[[int], None], Callable[[], None]]:
        return self.run, lambda: self.log.append(f"{self.name} closed")

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.left == 0:
                raise OSError(f"{self.name} is worn out")
            self.left = None if self.left is None else self.left - 1
            self.clock[0] += 1.0
        self.log.append(self.name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: now[0])
    return now


def test_candidates_take_turns(clock: list[float]) -> None:
    log: list[str] = []
    turns: list[str] = []
    builds = {name: Stepped(clock, log, name).build for name in ("a", "b")}
    cells = measure(builds, 3, 2.0, turn=turns.append)
    assert cells == {"a": Cell((1e6,) * 3), "b": Cell((1e6,) * 3)}
    assert turns == ["a", "b"] * 5
    assert log[-8:] == ["a", "b"] * 3 + ["a closed", "b closed"]


@pytest.mark.parametrize("fails_after", [0, 1, 3])
def test_a_failure_is_told_and_the_others_go_on(fails_after: int, clock: list[float]) -> None:
    log: list[str] = []
    builds = {
        "bad": Stepped(clock, log, "bad", fails_after).build,
        "good": Stepped(clock, log, "good").build,
    }
    cells = measure(builds, 2, 1.0)
    assert cells == {"bad": Cell(failure="OSError: bad is worn out"), "good": Cell((1e6, 1e6))}
    assert log.count("bad closed") == log.count("good closed") == 1


def test_what_cannot_be_built_is_told(clock: list[float]) -> None:
    def build() -> tuple[Callable[[int], None], Callable[[], None]]:
        raise ImportError("\nno such library\nat all")

    assert measure({"a": build}, 1, 1.0) == {"a": Cell(failure="ImportError: no such library")}


def test_an_interrupt_closes_all(clock: list[float]) -> None:
    log: list[str] = []

    def interrupt(name: str) -> None:
        if log:
            raise KeyboardInterrupt

    builds = {name: Stepped(clock, log, name).build for name in ("a", "b")}
    with pytest.raises(KeyboardInterrupt):
        measure(builds, 1, 1.0, turn=interrupt, interrupted=lambda: log.append("interrupted"))
    assert log == ["a", "interrupted", "a closed"]


def test_slow_steps_are_not_made_in_numbers(clock: list[float]) -> None:
    log: list[str] = []
    assert steps_for(Stepped(clock, log, "a").run, 0.5) == 1
    assert steps_for(Stepped(clock, log, "a").run, 20.0) == 20
    assert len(log) == 1 + 4  # 1 step; then 1, 2, 4 and 8, which take a quarter of the time


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/cpu.max": "200000 100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/a\n3:memory:/m\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        ({}, None),
    ],
)
def test_limits_of_control_groups_are_read(files: dict[str, str], limit: float | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_limit(tmp_path) == limit
