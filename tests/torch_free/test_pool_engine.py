"""``PoolEngine``: work handed out env by env, and heard in any order; nothing is lost, whatever happens in between."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import waiting_envs
from interrupts import interrupted
from vector_classes import travels
from waiting_envs import acting, await_entry, closed_envs, release
from worker_processes import still_running, watch

from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.host import IN_BLOCK, NOTHING
from gymbridge.engine.pool import PoolEngine
from gymbridge.engine.thread_pool import ThreadPoolEngine
from gymbridge.errors import CallTimeoutError, EnvOutputError, UnpicklableError, WorkerDiedError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no worker processes on Windows")

travels(sys.modules[__name__], waiting_envs)

RESET, STEP = Op.RESET, Op.STEP
INFOS = GymHostOptions.for_gymnasium(np.dtype(np.float64))


KINDS: dict[str, Any] = {
    "processes": PoolEngine,
    "shared processes": partial(PoolEngine, envs_per_worker=2),
    "threads": ThreadPoolEngine,
}


def reset_pool(kind: str, folder: Path) -> Iterator[PoolEngine[Any]]:
    """Three envs that have been reset, each with a gate."""
    engine: PoolEngine[Any] = KINDS[kind](acting(3, folder), INFOS)
    engine.allocate()
    engine.run(bytes([RESET] * 3), None)
    yield engine
    engine.close(terminate=True)


@pytest.fixture(params=KINDS)
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PoolEngine[Any]]:
    """One of each kind."""
    yield from reset_pool(request.param, tmp_path)


@pytest.fixture
def process_pool(tmp_path: Path) -> Iterator[PoolEngine[Any]]:
    yield from reset_pool("processes", tmp_path)


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
        "reset": lambda: pool.run(bytes([RESET] * 3), None),
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
    report, _ = taken(pool, [2, 0])
    assert {row: type(error) for row, error in report.errors.items()} == {0: LookupError}
    assert pool.busy == {0}
    assert pool.wait(1) == [0]
    report, block = taken(pool, [0])
    assert not report.errors
    assert observed(block)[0] == [0, 1]
    assert pool.block.state.tolist() == [RowState.RUNNING, RowState.RUNNING, RowState.FAILED]
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


class Interrupted(BaseException):
    """What a signal handler raises."""


def test_an_interrupt_of_a_wait_loses_nothing(pool: PoolEngine[Any], tmp_path: Path) -> None:
    """A signal that comes while a wait blocks."""
    pool.set_attribute(0, "act", "tell and wait")

    main, waits, heard = threading.main_thread().ident, threading.Event(), threading.Event()
    assert main is not None

    def interrupt(*_: Any) -> None:
        if not heard.is_set():
            heard.set()
            raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        step(pool, [0, 1])

        def later() -> None:
            await_entry(tmp_path, 0)
            waits.wait()
            while not heard.is_set():  # Python hears of one that comes just before it blocks only with the next
                signal.pthread_kill(main, signal.SIGUSR1)
                heard.wait(0.05)

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


def came_to(number: int, call: Callable[[], object]) -> bool:
    """Interrupts a call at the Python or C call of this number, or right after one; whether it has so many."""
    return interrupted(call, number, Interrupted, ("call", "c_call", "c_return"))[0]


@pytest.mark.parametrize("call", ["submit", "take"])
def test_an_interrupt_anywhere_fails_the_rows_at_most(pool: PoolEngine[Any], call: str) -> None:
    """At each Python call of a submit or a take in turn: what was begun is dropped, and the envs go on when reset."""
    number = 0
    while True:
        number += 1
        if call == "take":
            step(pool, [0, 1])
            pool.wait(2)
        done = not came_to(number, lambda: step(pool, [0, 1]) if call == "submit" else taken(pool, [0, 1]))
        pool.wait(len(pool.busy))  # those that the interrupt came too early or too late to touch
        while pool.busy:
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


def test_an_interrupt_anywhere_in_a_wait_loses_nothing(pool: PoolEngine[Any]) -> None:
    """At each Python call of a wait in turn, and after each: the next wait has all of them."""
    number = 0
    steps = 0
    while True:
        number += 1
        steps += 1
        step(pool, [0, 1, 2])
        done = not came_to(number, lambda: pool.wait(3))
        assert sorted(pool.wait(3)) == [0, 1, 2]
        assert observed(taken(pool, [0, 1, 2])[1]) == [[0, steps], [1, steps], [2, steps]]
        if done:
            break
    assert number > 10


def test_rounds_batches_and_lanes_take_turns(pool: PoolEngine[Any]) -> None:
    """However the interpreter switches between threads: an answer to one is never taken for one to the next."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(0, 600, 4):
            pool.run(bytes([STEP] * 3), [np.zeros(3, np.int64)])
            step(pool, [0, 1, 2])
            assert sorted(pool.wait(3)) == [0, 1, 2]
            assert observed(taken(pool, [0, 1, 2])[1]) == [[row, number + 2] for row in range(3)]
            for lane in (True, False):
                step(pool, [0], lane=lane)
                step(pool, [1, 2])
                assert len(pool.wait(1)) >= 1
                if lane:
                    pool.wait_for(0)
                assert sorted(pool.wait(2 if lane else 3)) == [0, 1, 2][lane:]
                _, block = taken(pool, [2, 0, 1])
                assert observed(block) == [[row, number + 4 - lane] for row in (2, 0, 1)]
            assert pool.each("attribute", [("steps",)] * 3) == [number + 4] * 3
    finally:
        sys.setswitchinterval(before)


def test_verbs_of_rows(pool: PoolEngine[Any]) -> None:
    pool.set_attribute(1, "index", 7)
    assert pool.each("attribute", [("index",)] * 3) == [0, 7, 2]
    pool.seed(2, 5, False)
    state = pool.state(2)
    pool.load_state(1, state)
    assert pool.state(1)["np_random"] == state["np_random"]
    with pytest.raises(AttributeError) as raised:
        pool.ask("attribute", 2, "missing")
    assert raised.value.env_index == 2  # type: ignore[attr-defined]


def test_what_envs_say_of_themselves_is_the_callers_own(pool: PoolEngine[Any]) -> None:
    """Both sides draw from a space: one object would give neither the numbers that its seed promises."""
    space = pool.descriptions[0].action_space
    assert space == waiting_envs.ActingEnv.action_space
    assert space is not waiting_envs.ActingEnv.action_space


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
    report, block = taken(pool, [2])
    assert not report.errors
    assert observed(block)[0] == [2, 1]


@pytest.mark.parametrize("pool", ["processes", "shared processes"], indirect=True)
def test_a_round_over_its_time_can_be_settled(pool: PoolEngine[Any], tmp_path: Path) -> None:
    pool.set_attribute(1, "act", "wait")
    pool.send(bytes([STEP] * 3), [np.zeros(3, np.int64)])
    with pytest.raises(CallTimeoutError, match=r"did not answer in time: envs \[.*1.*\]"):
        pool.receive(timeout=0.01)
    assert pool.unsettled
    release(tmp_path, 1)
    pool.set_attribute(1, "act", "")
    assert pool.block.state.tolist()[:3] == [RowState.FAILED] * 3
    pool.run(bytes([RESET] * 3), None)
    assert not pool.run(bytes([STEP] * 3), [np.zeros(3, np.int64)]).errors
    assert pool.each("attribute", [("steps",)] * 3) == [1] * 3


# ---------------------------------------------------------------- processes


def test_a_dead_worker_is_ready_and_named(process_pool: PoolEngine[Any], tmp_path: Path) -> None:
    """Whether it died of its work, beside it or in a lane; the others go on."""
    process_pool.set_attribute(1, "act", "kill")
    step(process_pool, [0, 1])
    assert sorted(process_pool.wait(2)) == [0, 1]
    report, block = taken(process_pool, [0, 1])
    assert isinstance(report.errors[1], WorkerDiedError)
    assert list(report.errors[1].env_indices) == [1]
    report, block = taken(process_pool, [0])
    assert not report.errors
    assert observed(block)[0] == [0, 1]
    with pytest.raises(WorkerDiedError):
        step(process_pool, [0, 1])
    assert not process_pool.busy

    process_pool.set_attribute(2, "act", "kill")
    step(process_pool, [2], lane=True)
    process_pool.wait_for(2)
    report, _ = taken(process_pool, [2])
    assert isinstance(report.errors[0], WorkerDiedError)
    step(process_pool, [0])
    process_pool.wait(1)
    assert observed(taken(process_pool, [0])[1]) == [[0, 2]]


def test_a_worker_that_died_idle_is_found_when_it_is_given_work(process_pool: PoolEngine[Any]) -> None:
    pid = process_pool.call(0, "pid")
    watched = watch([pid])
    os.kill(pid, signal.SIGKILL)
    assert not still_running(watched)
    step(process_pool, [0, 1])
    assert sorted(process_pool.wait(2)) == [0, 1]
    report, block = taken(process_pool, [0, 1])
    assert [*report.errors] == [0]
    report, block = taken(process_pool, [1])
    assert not report.errors
    assert observed(block)[0] == [1, 1]


def test_of_several_that_raised_one_is_taken_at_a_time(pool: PoolEngine[Any]) -> None:
    """Infos and errors of the others wait for a take of theirs, whichever way these are asked for."""
    for row in (0, 2):
        pool.set_attribute(row, "act", "raise")
    step(pool, [0, 2])
    pool.submit([1], bytes([RESET]), None, [{"options": {"a": "b"}}])
    pool.wait(3)
    report, _ = taken(pool, [1, 0, 2])
    assert [*report.errors] == [1]
    report, _ = taken(pool, [2, 1])
    assert [*report.errors] == [0]
    report, _ = taken(pool, [1])
    assert dict(report.resets) == {0: {"options": {"a": "b"}}}
    assert not pool.busy


def test_what_cannot_be_sent_begins_nothing(process_pool: PoolEngine[Any]) -> None:
    with pytest.raises(UnpicklableError, match="what env 1 is given"):
        process_pool.submit([0, 1], bytes([RESET] * 2), None, [{}, {"options": {"lock": threading.Lock()}}])
    assert not process_pool.busy
    assert process_pool.attribute(0, "steps") == 0


def test_it_closes_with_work_under_way_and_results_unread(process_pool: PoolEngine[Any], tmp_path: Path) -> None:
    pids = watch([process_pool.call(row, "pid") for row in range(3)])
    process_pool.set_attribute(0, "act", "wait")
    step(process_pool, [0, 1])
    process_pool.wait(1)
    with pytest.warns(UserWarning, match=r"workers \[0\] did not close the envs \[0\] in time"):
        process_pool.close(timeout=0.2)
    assert not still_running(pids)
    assert closed_envs(tmp_path) == {1, 2}
    with pytest.raises(RuntimeError, match="closed"):
        step(process_pool, [1])
