"""Faults at random moments, over each front: the call is in time, the others' transitions are exact, nothing is left.

Each program draws a front's options, and then rounds of resets and steps in which one env has a fault: it raises, ends
its process, hangs, is killed or stopped, gives what cannot be sent or does not fit; or the caller is interrupted. After
each round every env's transition is compared with a model of that env alone; a call that takes too long, an error that
is not the right one, a process, thread, descriptor, mapping or name that is left once the front is closed, fail.

A program prints its seed and what it does. ``GYMBRIDGE_CHAOS_SEED=serial-1-0 pytest tests/chaos -k serial`` runs that
one again; ``GYMBRIDGE_CHAOS_SECONDS=3600 pytest tests/chaos`` runs for so long, with new seeds, and prints a table of
the faults that were tried and survived at the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, time_ns

import pytest
from chaos_fronts import FRONTS
from chaos_programs import ChaosProgram, Counts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux has them")

SECONDS = float(os.environ.get("GYMBRIDGE_CHAOS_SECONDS", "0"))
"""That all fronts together run, on one worker of pytest; 0 for the programs that always run."""

SEED = os.environ.get("GYMBRIDGE_CHAOS_SEED")
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
EACH = SECONDS / len(FRONTS) * WORKERS

ROUNDS = 40
PROGRAMS = {"serial": 6, "sync-vector": 6, "pool-threads": 4, "pool-asyncio": 4}
"""How many programs always run; of the other fronts 3."""


@pytest.fixture
def chaos(record_property: Callable[[str, object], None]) -> Iterator[Counts]:
    """What is counted; a table of all tests' is printed at the end."""
    counts = Counts()
    yield counts
    record_property("chaos", [[*key, number] for key, number in counts.items()])


@pytest.mark.timeout(int(180 + 2 * EACH))
@pytest.mark.parametrize("name", FRONTS)
def test_faults_cost_nobody_else_anything(name: str, tmp_path: Path, chaos: Counts) -> None:
    first = time_ns() if SECONDS else 1
    seeds = [f"{name}-{first}-{number}" for number in range(10**6 if SECONDS else PROGRAMS.get(name, 3))]
    deadline = monotonic() + EACH
    for number, seed in enumerate([SEED] if SEED else seeds):
        if number and SECONDS and monotonic() > deadline:
            break
        folder = tmp_path / str(number)
        folder.mkdir()
        ChaosProgram(seed, FRONTS[name], folder, chaos).run(ROUNDS)
    assert sum(number for (_, what), number in chaos.items() if what == "tried") > 0
