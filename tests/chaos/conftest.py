"""The table of faults that a long run ends with."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints how often each fault was tried and survived."""
    counts: Counter[tuple[str, str]] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when == "teardown":
                for name, told in report.user_properties:
                    if name == "chaos":
                        counts.update({(fault, what): number for fault, what, number in told})
    if counts:
        terminalreporter.section("faults")
        for fault in sorted({fault for fault, _ in counts}):
            tried, survived = counts[fault, "tried"], counts[fault, "survived"]
            terminalreporter.write_line(f"{fault:40} tried {tried:6}, survived {survived:6}")
