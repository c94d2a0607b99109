"""``PoolEngine``: work handed out env by env, and heard in any order; nothing is lost, whatever happens in between."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import waiting_envs
from vector_classes import travels
from waiting_envs import acting, await_entry, closed_envs, release
from worker_processes import still_running, watch

from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.host import IN_BLOCK, NOTHING
from gymbridge.engine.pool import PoolEngine
from gymbridge.errors import CallTimeoutError, EnvOutputError, UnpicklableError, WorkerDiedError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no worker processes on Windows")

travels(sys.modules[__name__], waiting_envs)

RESET, STEP = Op.RESET, Op.STEP
INFOS = GymHostOptions.for_gymnasium(np.dtype(np.float64))


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PoolEngine[Any]]:
    """Three envs that have been reset, each with a gate."""
    engine: PoolEngine[Any] = PoolEngine(acting(3, tmp_path), INFOS)
    engine.allocate()
    engine.run(bytes([RESET] * 3), None)
    yield engine
    engine.close(terminate=True)


def step(pool: PoolEngine[Any], rows: list[int], actions: list[int] | None = None, **options: Any) -> None:
    pool.submit(rows, bytes([STEP]) * len(rows), [np.array(actions or [0] * len(rows))], **options)


def taken(pool: PoolEngine[Any], rows: list[int]) -> tuple[Any, Block]:
    """The report of rows, and the block with what they gave."""
    block = Block(pool.block.layout.rows(0, len(rows)))
    return pool.take(rows, block), block


def observed(block: Block) -> list[list[float]]:
    """Index and step of each env."""
    observations: list[list[float]] = block.next["observation",].tolist()
    return observations


def test_rows_come_as_they_are_ready_and_in_the_order_asked_for(pool: PoolEngine[Any], tmp_path: Path) -> None:
    pool.set_attribute(1, "act", "wait")
    step(pool, [0, 1, 2], [1, 2, 3])
    assert sorted(pool.wait(2)) == [0, 2]
    report, block = taken(pool, [2, 0])
    assert report is NOTHING
    assert observed(block) == [[2, 1], [0, 1]]
    assert block.next["reward",].tolist() == [3, 1]
    assert pool.busy == {1}

    step(pool, [2], [4])
    assert pool.wait(1) == [2]
    release(tmp_path, 1)
    assert sorted(pool.wait(2)) == [1, 2]
    _, block = taken(pool, [1, 2])
    assert observed(block) == [[1, 1], [2, 2]]
    assert block.next["reward",].tolist() == [2, 4]
    assert not pool.busy


def test_a_time_out_loses_nothing(pool: PoolEngine[Any], tmp_path: Path) -> None:
    """What was ready stays so, and what comes later is there for the next wait."""
    for row in (0, 1):
        pool.set_attribute(row, "act", "wait")
    step(pool, [0, 1, 2])
    assert pool.wait(1) == [2]
    assert pool.wait(3, timeout=0.01) == [2]
    assert pool.wait(0, timeout=0) == [2]
    release(tmp_path, 1)
    assert pool.wait(2) == [2, 1]
    release(tmp_path, 0)
    assert pool.wait(3) == [2, 1, 0]
    _, block = taken(pool, [0, 1, 2])
    assert observed(block) == [[0, 1], [1, 1], [2, 1]]


def test_more_than_is_under_way_is_an_error_at_once(pool: PoolEngine[Any]) -> None:
    step(pool, [0, 1])
    with pytest.raises(ValueError, match="least: got 3, expected at most 2"):
        pool.wait(3)
    step(pool, [2], lane=True)
    with pytest.raises(ValueError, match="least: got 3, expected at most 2"):
        pool.wait(3)


def test_a_busy_env_is_refused_by_name_and_the_others_have_not_begun(pool: PoolEngine[Any]) -> None:
    step(pool, [1])
    pool.wait(1)
    for refused in (lambda: step(pool, [0, 1]), lambda: step(pool, [1], lane=True)):
        with pytest.raises(RuntimeError, match=r"envs \[1\] have work under way"):
            refused()
    for name, call in {
        "send": lambda: pool.run(bytes([RESET] * 3), None),
        "attribute": lambda: pool.attribute(0, "index"),
    }.items():
        with pytest.raises(RuntimeError, match=rf"{name}: refused while envs \[1\]"):
            call()
    taken(pool, [1])
    assert pool.attribute(0, "steps") == 0


def test_lanes_are_waited_for_by_themselves(pool: PoolEngine[Any], tmp_path: Path) -> None:
    pool.set_attribute(0, "act", "wait")
    step(pool, [0], [4], lane=True)
    step(pool, [1, 2])
    assert sorted(pool.wait(2)) == [1, 2]
    with pytest.raises(CallTimeoutError, match="env 0 did not come to its end"):
        pool.wait_for(0, timeout=0)
    for row in (0, 1, 2):
        if row:
            with pytest.raises(ValueError, match=f"env {row} has no work under way in a lane"):
                pool.wait_for(row)
    release(tmp_path, 0)
    pool.wait_for(0)
    _, block = taken(pool, [0])
    assert block.next["reward",].tolist() == [4]
    assert sorted(pool.busy) == [1, 2]


def test_threads_may_each_have_a_lane(pool: PoolEngine[Any]) -> None:
    """While this thread hears another env as one of all; each transition once and in order."""
    seen: dict[int, list[float]] = {0: [], 1: []}

    def drive(row: int) -> None:
        for _ in range(200):
            step(pool, [row], lane=True)
            pool.wait_for(row)
            _, block = taken(pool, [row])
            assert observed(block)[0][0] == row
            seen[row].append(observed(block)[0][1])

    threads = [threading.Thread(target=drive, args=(row,)) for row in seen]
    for thread in threads:
        thread.start()
    for number in range(200):
        step(pool, [2])
        assert pool.wait(1) == [2]
        _, block = taken(pool, [2])
        assert observed(block) == [[2, number + 1]]
    for thread in threads:
        thread.join()
    assert seen == {row: [*range(1, 201)] for row in seen}


def test_errors_are_those_of_their_row(pool: PoolEngine[Any]) -> None:
    """The row's number is that in what was taken, and the env goes on after a reset."""
    pool.set_attribute(2, "act", "raise")
    step(pool, [0, 2])
    pool.wait(2)
    report, block = taken(pool, [2, 0])
    assert {row: type(error) for row, error in report.errors.items()} == {0: LookupError}
    assert block.state.tolist()[:2] == [RowState.FAILED, RowState.RUNNING]
    pool.set_attribute(2, "act", "")
    pool.submit([2], bytes([RESET]), None, [{"options": {"a": "b"}}])
    pool.wait(1)
    report, block = taken(pool, [2])
    assert dict(report.resets) == {0: {"options": {"a": "b"}}}
    assert block.state.tolist()[:1] == [RowState.RUNNING]


def test_infos_of_numbers_come_in_the_block(pool: PoolEngine[Any]) -> None:
    pool.submit([1], bytes([RESET]), None, [{"options": {"level": 3}}])
    pool.wait(1)
    report, _ = taken(pool, [1])
    assert report is IN_BLOCK


def test_a_dead_worker_is_ready_and_named(pool: PoolEngine[Any], tmp_path: Path) -> None:
    """Whether it died of its work, beside it or in a lane; the others go on."""
    pool.set_attribute(1, "act", "kill")
    step(pool, [0, 1])
    assert sorted(pool.wait(2)) == [0, 1]
    report, block = taken(pool, [0, 1])
    assert isinstance(report.errors[1], WorkerDiedError)
    assert list(report.errors[1].env_indices) == [1]
    assert observed(block)[0] == [0, 1]
    with pytest.raises(WorkerDiedError):
        step(pool, [0, 1])
    assert not pool.busy

    pool.set_attribute(2, "act", "kill")
    step(pool, [2], lane=True)
    pool.wait_for(2)
    report, _ = taken(pool, [2])
    assert isinstance(report.errors[0], WorkerDiedError)
    step(pool, [0])
    pool.wait(1)
    assert observed(taken(pool, [0])[1]) == [[0, 2]]


def test_a_worker_that_died_idle_is_found_when_it_is_given_work(pool: PoolEngine[Any]) -> None:
    pid = pool.call(0, "pid")
    watched = watch([pid])
    os.kill(pid, signal.SIGKILL)
    assert not still_running(watched)
    step(pool, [0, 1])
    assert sorted(pool.wait(2)) == [0, 1]
    report, block = taken(pool, [0, 1])
    assert [*report.errors] == [0]
    assert observed(block)[1] == [1, 1]


def test_what_cannot_be_sent_begins_nothing(pool: PoolEngine[Any]) -> None:
    with pytest.raises(UnpicklableError, match="what env 1 is given"):
        pool.submit([0, 1], bytes([RESET] * 2), None, [{}, {"options": {"lock": threading.Lock()}}])
    assert not pool.busy
    assert pool.attribute(0, "steps") == 0


class Interrupted(BaseException):
    """What a signal handler raises."""


def test_an_interrupt_of_a_wait_loses_nothing(pool: PoolEngine[Any], tmp_path: Path) -> None:
    """A signal that comes while a wait blocks."""
    pool.set_attribute(0, "act", "tell and wait")

    def interrupt(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    main, waits = threading.main_thread().ident, threading.Event()
    assert main is not None
    try:
        step(pool, [0, 1])

        def later() -> None:
            await_entry(tmp_path, 0)
            waits.wait()
            signal.pthread_kill(main, signal.SIGUSR1)

        thread = threading.Thread(target=later)
        thread.start()

        def wait() -> None:
            waits.set()
            pool.wait(2)

        with pytest.raises(Interrupted):
            wait()
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    release(tmp_path, 0)
    assert sorted(pool.wait(2)) == [0, 1]
    assert observed(taken(pool, [0, 1])[1]) == [[0, 1], [1, 1]]


@pytest.mark.parametrize("call", ["submit", "take"])
def test_an_interrupt_anywhere_fails_the_rows_at_most(pool: PoolEngine[Any], call: str) -> None:
    """At each Python call of a submit or a take in turn: what was begun is dropped, and the envs go on when reset."""
    number = 0
    while True:
        number += 1
        left = number

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal left
            if event in ("call", "c_call"):
                left -= 1
                if left == 0:
                    raise Interrupted

        if call == "take":
            step(pool, [0, 1])
            pool.wait(2)
        try:
            sys.setprofile(count)
            try:
                step(pool, [0, 1]) if call == "submit" else taken(pool, [0, 1])
            finally:
                sys.setprofile(None)
        except Interrupted:
            done = False
        else:
            done = left > 0
        pool.wait(len(pool.busy))  # those that the interrupt came too early or too late to touch
        taken(pool, sorted(pool.busy))
        pool.submit([0, 1], bytes([RESET] * 2), None)
        pool.wait(2)
        report, block = taken(pool, [0, 1])
        assert not report.errors
        assert block.state.tolist()[:2] == [RowState.RUNNING] * 2
        step(pool, [0, 1])
        pool.wait(2)
        assert observed(taken(pool, [0, 1])[1]) == [[0, 1], [1, 1]]
        if done:
            break
    assert number > 20


def test_it_closes_with_work_under_way_and_results_unread(pool: PoolEngine[Any], tmp_path: Path) -> None:
    pids = watch([pool.call(row, "pid") for row in range(3)])
    pool.set_attribute(0, "act", "wait")
    step(pool, [0, 1])
    pool.wait(1)
    with pytest.warns(UserWarning, match=r"workers \[0\] did not close the envs \[0\] in time"):
        pool.close(timeout=0.2)
    assert not still_running(pids)
    assert closed_envs(tmp_path) == {1, 2}
    with pytest.raises(RuntimeError, match="closed"):
        step(pool, [1])


def test_as_an_engine_it_runs_rounds_of_all(pool: PoolEngine[Any]) -> None:
    report = pool.run(bytes([STEP] * 3), [np.array([1, 2, 3])])
    assert report is NOTHING
    assert pool.block.next["reward",].tolist() == [1, 2, 3]
    assert pool.each("attribute", [("steps",)] * 3) == [1, 1, 1]
    step(pool, [1])
    pool.wait(1)
    taken(pool, [1])
    assert pool.each("attribute", [("steps",)] * 3) == [1, 2, 1]


def test_an_observation_that_does_not_fit_is_the_rows_error(pool: PoolEngine[Any]) -> None:
    pool.call(1, "__setattr__", ("_observation", lambda: np.zeros(3)))
    step(pool, [1, 2])
    pool.wait(2)
    report, block = taken(pool, [1, 2])
    assert isinstance(report.errors[0], EnvOutputError)
    assert observed(block)[1] == [2, 1]
