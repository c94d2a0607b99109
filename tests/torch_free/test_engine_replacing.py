"""What engines know of their workers is right, and the same everywhere, whichever die and are replaced."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mortal_envs import GO, KILL, mortal

from gymbridge.engine.codes import Op
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.pool import PoolEngine
from gymbridge.errors import WorkerDiedError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tests the ends of workers as Linux has them")

SECONDS = 30.0
"""More than anything here takes."""


@pytest.fixture
def started() -> Iterator[Callable[..., PoolEngine[Any]]]:
    """Starts a pool's engine, whose envs are reset, and ends it."""
    engines: list[PoolEngine[Any]] = []

    def start(makers: list[Callable[[], Any]], **options: Any) -> PoolEngine[Any]:
        engine: PoolEngine[Any] = PoolEngine(makers, GymHostOptions(), **options)
        engines.append(engine)
        engine.allocate()
        engine.run(bytes([Op.RESET] * len(makers)), None)
        return engine

    yield start
    for engine in engines:
        engine.close(terminate=True)


def actions(*deeds: int) -> Any:
    return [np.array(deeds)]


@pytest.mark.parametrize("max_restarts", [None, (10, 60.0)])
def test_descriptors_of_dead_workers_are_known_to_nobody_once_they_are_closed(started: Any, max_restarts: Any) -> None:
    """Else they would be taken for those of the worker, or of whatever else, that has their numbers next."""
    engine = started(mortal(3), max_restarts=max_restarts)
    groups = engine._crew._group, engine._ends
    bury, known = engine._crew._bury, dict[int, set[int]]()

    def bury_and_look(worker: int) -> None:
        bury(worker)
        known[worker] = {of for group in groups for of in group._index.values()}

    engine._crew._bury = bury_and_look
    report = engine.run(bytes([Op.STEP] * 3), actions(KILL, KILL, GO))
    assert {*known} == {0, 1}
    assert all(worker not in still for worker, still in known.items())
    if max_restarts is None:
        assert {row: type(error) for row, error in report.errors.items()} == dict.fromkeys((0, 1), WorkerDiedError)
        return
    for group in groups:
        assert {group._index[end.fileno()] for end in engine._crew.ends} == {0, 1, 2}
    engine.submit([0, 1, 2], bytes([Op.RESET] * 3), None)
    assert {*engine.wait(3, SECONDS)} == {0, 1, 2}
