"""``ThreadPoolEngine``: threads that share one queue of calls; none waits behind one that blocks, and none is lost.

What it has in common with the other pools is tested in ``test_pool_engine.py``.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from interrupts import interrupted
from started_threads import have_ended, new_threads
from waiting_envs import ActingEnv, acting, await_entry, closed_envs, make_gates, release
from worker_processes import PATIENCE, run_script

from gymbridge.engine.arrivals import Arrivals
from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.env_calls import VerbCall
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.thread_crew import ThreadCrew
from gymbridge.engine.thread_pool import ThreadPoolEngine
from gymbridge.errors import WorkerDiedError, WorkerStartError

RESET, STEP = Op.RESET, Op.STEP
INFOS = GymHostOptions.for_gymnasium(np.dtype(np.float64))

Pool = ThreadPoolEngine[Any]


class DoingEnv(gym.Env[Any, Any]):
    """Observes its index and its steps, and does in them what a test wants; it fails if it is in two calls at once.

    Args:
        index: of the env.

    Attributes:
        deed: called in each step.
        closing: called in ``close``.
        closed: how often it has been.
    """

    observation_space = gym.spaces.Box(0, 1000, (2,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, index: int = 0):
        self.index = index
        self.steps = 0
        self.closed = 0
        self.deed: Callable[[], Any] = lambda: None
        self.closing: Callable[[], Any] = lambda: None
        self._calls: list[str] = []

    @contextmanager
    def _alone(self, call: str) -> Iterator[None]:
        self._calls.append(call)
        try:
            assert self._calls == [call]
            yield
        finally:
            self._calls.remove(call)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        with self._alone("reset"):
            self.steps = 0
            return self._observation(), {}

    def step(self, action: Any) -> Any:
        with self._alone("step"):
            self.steps += 1
            self.deed()
            return self._observation(), float(action), False, False, {}

    def act(self) -> int:
        with self._alone("act"):
            self.deed()
            return self.index

    def close(self) -> None:
        with self._alone("close"):
            self.closed += 1
            self.closing()

    def _observation(self) -> np.ndarray:
        return np.array([self.index, self.steps], np.float32)


def open_pool(envs: list[Any], **options: Any) -> Pool:
    """A pool of envs that have been reset."""
    pool: Pool = ThreadPoolEngine([partial(lambda env: env, env) for env in envs], INFOS, **options)
    pool.allocate()
    pool.run(bytes([RESET] * len(envs)), None)
    return pool


@pytest.fixture
def envs() -> list[DoingEnv]:
    return [DoingEnv(index) for index in range(3)]


@pytest.fixture
def pool(envs: list[DoingEnv]) -> Iterator[Pool]:
    pool = open_pool(envs)
    yield pool
    pool.close(terminate=True)


@pytest.fixture
def acting_pool(tmp_path: Path) -> Iterator[Pool]:
    """Of envs with gates."""
    pool: Pool = ThreadPoolEngine(acting(3, tmp_path), INFOS)
    pool.allocate()
    pool.run(bytes([RESET] * 3), None)
    yield pool
    pool.close(terminate=True)


@pytest.fixture
def switching() -> Iterator[None]:
    """The interpreter switches between threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def step(pool: Pool, rows: list[int], actions: list[int] | None = None, **options: Any) -> None:
    pool.submit(rows, bytes([STEP]) * len(rows), [np.array(actions or [0] * len(rows))], **options)


def step_all(pool: Pool) -> None:
    """A round of steps, none of which fails."""
    assert not pool.run(bytes([STEP] * pool.num_envs), [np.zeros(pool.num_envs, np.int64)]).errors


def taken(pool: Pool, rows: list[int]) -> tuple[Any, Block]:
    """The report of rows, and the block with what they gave."""
    block = Block(pool.block.layout.rows(0, len(rows)))
    return pool.take(rows, block), block


def observed(block: Block) -> list[list[float]]:
    """Index and step of each env."""
    observations: list[list[float]] = block.next["observation",].tolist()
    return observations


def raising(error: BaseException) -> Callable[[], Any]:
    def deed() -> Any:
        raise error

    return deed


def meeting(envs: list[Any]) -> threading.Barrier:
    """Has each env's deed wait for those of all the others."""
    all_there = threading.Barrier(len(envs), timeout=PATIENCE)
    for env in envs:
        env.deed = all_there.wait
    return all_there


# ---------------------------------------------------------------- at the same time


@pytest.mark.parametrize("call", ["submit", "one by one", "lanes", "run", "each"])
def test_envs_that_block_are_all_at_it_at_once(call: str) -> None:
    """Each waits for all others, round after round, whichever way they are given work."""
    rows = [*range(8)]
    envs = [DoingEnv(index) for index in rows]
    pool = open_pool(envs)
    meeting(envs)
    for number in range(1, 21):
        if call == "submit":
            step(pool, rows)
        elif call == "one by one":
            for row in rows:
                step(pool, [row])
        elif call == "lanes":
            for row in rows:
                step(pool, [row], lane=True)
            for row in rows:
                pool.wait_for(row, PATIENCE)
        elif call == "run":
            step_all(pool)
            assert observed(pool.block) == [[row, number] for row in rows]
            continue
        else:
            assert pool.each("call", [("act",)] * 8) == rows
            continue
        assert sorted(pool.wait(8 if call != "lanes" else 0, PATIENCE)) == (rows if call != "lanes" else [])
        report, block = taken(pool, rows)
        assert not report.errors
        assert observed(block) == [[row, number] for row in rows]
    pool.close()


def test_two_hundred_envs_are_at_it_at_once() -> None:
    with new_threads() as threads:
        envs = [DoingEnv(index) for index in range(200)]
        pool = open_pool(envs)
    assert len(threads) == 200
    meeting(envs)
    order = [*range(199, -1, -1)]
    step(pool, order, [row % 5 for row in order])
    assert len(pool.wait(200, PATIENCE)) == 200
    report, block = taken(pool, order)
    assert not report.errors
    assert observed(block) == [[row, 1] for row in order]
    assert block.next["reward",].tolist() == [row % 5 for row in order]
    pool.close()
    assert have_ended(threads)
    assert {env.closed for env in envs} == {1}


@pytest.mark.parametrize("lane", [False, True])
def test_no_call_waits_behind_one_that_blocks(lane: bool) -> None:
    """However many block: those that do not come, again and again; in the end all do."""
    envs = [DoingEnv(index) for index in range(6)]
    pool = open_pool(envs)
    gates = [threading.Event() for _ in envs]
    for row, env in enumerate(envs[:5]):
        env.deed = partial(gates[row].wait, PATIENCE)
        step(pool, [row, 5] if not lane else [row])
        for number in range(10):
            if number or lane:
                step(pool, [5], lane=lane)
            if lane:
                pool.wait_for(5, PATIENCE)
            else:
                assert pool.wait(1, PATIENCE) == [5]
            assert observed(taken(pool, [5])[1]) == [[5, row * 10 + number + 1]]
    assert pool.busy == {0, 1, 2, 3, 4}
    for row in (3, 0, 4, 1, 2):
        gates[row].set()
        assert pool.wait(1, PATIENCE) == [row]
        assert observed(taken(pool, [row])[1]) == [[row, 1]]
    pool.close()


def test_calls_that_block_in_turn_never_hold_up_the_others() -> None:
    """Some rows at a time, chosen at random, of which some wait until all that do not have come."""
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    random = np.random.default_rng(seed)
    envs = [DoingEnv(index) for index in range(8)]
    pool = open_pool(envs)
    steps = [0] * 8
    for _ in range(150):
        rows = random.permutation(8)[: random.integers(1, 9)].tolist()
        slow = rows[: random.integers(0, len(rows) + 1)]
        random.shuffle(rows)
        gate = threading.Event()
        for row in rows:
            steps[row] += 1
            envs[row].deed = partial(gate.wait, PATIENCE) if row in slow else lambda: None
        step(pool, rows)
        quick = sorted({*rows} - {*slow})
        assert sorted(pool.wait(len(quick), PATIENCE)) == quick
        gate.set()
        assert sorted(pool.wait(len(rows), PATIENCE)) == sorted(rows)
        report, block = taken(pool, rows)
        assert not report.errors
        assert observed(block) == [[row, steps[row]] for row in rows]
    pool.close()


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no interpreter's lock")
def test_of_envs_that_do_not_block_one_thread_makes_all_calls(pool: Pool, envs: list[DoingEnv]) -> None:
    """In a round: nobody but those who block lets another thread run."""
    made: list[int] = []
    for env in envs:
        env.deed = lambda: made.append(threading.get_ident())
    before = sys.getswitchinterval()
    sys.setswitchinterval(PATIENCE)
    try:
        for _ in range(100):
            made.clear()
            step_all(pool)
            assert len(made) == 3
            assert len({*made, threading.get_ident()}) == 2
    finally:
        sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_lanes_of_several_threads_never_meet_in_an_env() -> None:
    """However the interpreter switches between threads, and beside a batch: each transition once and in order."""
    envs = [DoingEnv(index) for index in range(6)]
    pool = open_pool(envs)
    seen: dict[int, list[list[float]]] = {row: [] for row in range(4)}

    def drive(row: int) -> None:
        for _ in range(100):
            step(pool, [row], lane=True)
            pool.wait_for(row, PATIENCE)
            report, block = taken(pool, [row])
            assert not report.errors
            seen[row] += observed(block)

    threads = [threading.Thread(target=drive, args=(row,)) for row in seen]
    for thread in threads:
        thread.start()
    for number in range(1, 101):
        step(pool, [5, 4])
        assert sorted(pool.wait(2, PATIENCE)) == [4, 5]
        report, block = taken(pool, [4, 5])
        assert not report.errors
        assert observed(block) == [[4, number], [5, number]]
    for thread in threads:
        thread.join(PATIENCE)
    assert seen == {row: [[row, number] for number in range(1, 101)] for row in seen}
    pool.close()


def test_it_is_awaited_on_the_callers_own_loop(pool: Pool, envs: list[DoingEnv]) -> None:
    gates = [threading.Event() for _ in envs]
    for env, gate in zip(envs, gates, strict=True):
        env.deed = partial(gate.wait, PATIENCE)

    async def main() -> None:
        step(pool, [0, 1])
        step(pool, [2], lane=True)
        batch = asyncio.create_task(pool.wait_async(2, PATIENCE))
        await asyncio.sleep(0)
        assert not batch.done()
        gates[0].set()
        gates[1].set()
        assert sorted(await batch) == [0, 1]
        gates[2].set()
        await pool.wait_for_async(2, PATIENCE)

    asyncio.run(main())
    assert observed(taken(pool, [0, 1, 2])[1]) == [[0, 1], [1, 1], [2, 1]]


# ---------------------------------------------------------------- errors and deaths


@pytest.mark.parametrize(
    ("error", "code"), [(SystemExit(3), 3), (SystemExit(), 0), (SystemExit("so long"), 1), (KeyboardInterrupt(), 1)]
)
@pytest.mark.parametrize("lane", [False, True])
def test_an_env_that_would_end_its_thread_is_dead(
    pool: Pool, envs: list[DoingEnv], error: BaseException, code: int, lane: bool
) -> None:
    """In a lane or not, and nobody else; its env is closed, and the threads go on."""
    heard = threading.Event()
    envs[1].deed, envs[1].closing = raising(error), heard.set
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("gymbridge-worker")]
    step(pool, [1], lane=lane)
    if lane:
        pool.wait_for(1, PATIENCE)
    else:
        assert pool.wait(1, PATIENCE) == [1]
    report, _ = taken(pool, [1])
    death = report.errors[0]
    assert isinstance(death, WorkerDiedError)
    assert (death.env_indices, death.exit_code, death.__cause__) == ((1,), code, error)
    assert heard.wait(PATIENCE)
    for refused in (
        lambda: step(pool, [0, 1]),
        lambda: pool.attribute(1, "index"),
        lambda: pool.each("attribute", [("index",)] * 3),
        lambda: pool.require_workers(),
        lambda: pool.run(bytes([STEP] * 3), [np.zeros(3, np.int64)]),
    ):
        with pytest.raises(WorkerDiedError):
            refused()
    pool.require_workers([0, 2])
    assert not pool.busy
    meeting([envs[0], envs[2]])
    step(pool, [0, 2])
    assert len(pool.wait(2, PATIENCE)) == 2
    assert observed(taken(pool, [0, 2])[1]) == [[0, 1], [2, 1]]
    assert not pool.run(bytes([STEP, 0, STEP]), [np.zeros(3, np.int64)]).errors
    assert all(thread.is_alive() for thread in threads)
    pool.close()
    assert [env.closed for env in envs] == [1, 1, 1]


def test_an_env_that_ends_in_a_call_is_dead(pool: Pool, envs: list[DoingEnv]) -> None:
    envs[1].deed = raising(SystemExit(3))
    with pytest.raises(WorkerDiedError, match="exit code 3"):
        pool.call(1, "act")
    assert pool.attribute(2, "index") == 2


def test_what_an_env_gives_is_the_very_object(acting_pool: Pool, tmp_path: Path) -> None:
    """Also what could not be pickled; and what it is given, but for arrays and what they lie in."""
    error, lock, array = LookupError("itself"), threading.Lock(), np.zeros(2)
    acting_pool.set_attribute(0, "_observation", raising(error))
    step(acting_pool, [0])
    acting_pool.wait(1)
    assert taken(acting_pool, [0])[0].errors[0] is error
    with pytest.raises(LookupError) as raised:
        acting_pool.call(0, "_observation")
    assert raised.value is error

    acting_pool.set_attribute(1, "act", "wait in reset")
    options = {"lock": lock, "arrays": [(array,)]}
    acting_pool.submit([1], bytes([RESET]), None, [{"options": options}])
    array[:] = 1
    options["more"] = True
    release(tmp_path, 1)
    acting_pool.wait(1)
    given = taken(acting_pool, [1])[0].resets[0]["options"]
    assert given["lock"] is lock
    assert set(given) == {"lock", "arrays"}
    assert given["arrays"][0][0].tolist() == [0, 0]


def test_a_check_of_outputs_goes_on_in_threads(pool: Pool, envs: list[DoingEnv]) -> None:
    envs[1]._observation = lambda: np.zeros(3, np.float32)  # type: ignore[method-assign]
    faults = pool.each("faults", [(3, 0)] * 3)
    assert (faults[0], faults[2]) == ([], [])
    assert faults[1] == [f"{name}: observation: got shape (3,), expected (2,)" for name in ("reset", "step")]


def test_what_a_call_gave_is_not_kept(pool: Pool, envs: list[DoingEnv]) -> None:
    """Not by a thread either that has nothing else to do."""

    class Given:
        pass

    envs[1].deed = Given
    given, freed = pool.call(1, "deed"), threading.Event()
    weakref.finalize(given, freed.set)
    del given
    assert freed.wait(PATIENCE)


# ---------------------------------------------------------------- interrupts


class Interrupted(BaseException):
    """What a signal handler raises."""


EVENTS = ("call", "c_call", "c_return")


@pytest.mark.parametrize("call", ["submit", "take", "run", "each", "settle"])
def test_an_interrupt_anywhere_fails_the_rows_at_most(call: str) -> None:
    """At each Python call of it in turn: what was begun is dropped, and the envs go on when they are reset.

    No thread is lost or left asleep either: all envs can be at it at once after each.
    """
    envs = [DoingEnv(row) for row in range(3)]
    pool = open_pool(envs)
    calls: dict[str, Callable[[], object]] = {
        "submit": lambda: step(pool, [0, 1, 2]),
        "take": lambda: taken(pool, [0, 1, 2]),
        "run": lambda: step_all(pool),
        "each": lambda: pool.each("attribute", [("index",)] * 3),
        "settle": lambda: pool.settle(),
    }
    number = 0
    done = False
    while not done:
        number += 1
        if call in ("take", "settle"):
            step(pool, [0, 1, 2])
        if call == "take":
            pool.wait(3)
        if call == "settle":
            pool.abandon([0, 1, 2])
        done = not interrupted(calls[call], number, Interrupted, EVENTS)[0]
        pool.wait(len(pool.busy), PATIENCE)  # those that the interrupt came too early or too late to touch
        taken(pool, sorted(pool.busy))
        pool.submit([0, 1, 2], bytes([RESET] * 3), None)
        assert len(pool.wait(3, PATIENCE)) == 3
        report, block = taken(pool, [0, 1, 2])
        assert not report.errors
        assert block.state.tolist()[:3] == [RowState.RUNNING] * 3
        meeting(envs)
        step(pool, [0, 1, 2])
        assert len(pool.wait(3, PATIENCE)) == 3
        report, block = taken(pool, [0, 1, 2])
        assert not report.errors
        assert observed(block) == [[0, 1], [1, 1], [2, 1]]
        for env in envs:
            env.deed = lambda: None
    assert number > 20
    pool.close()
    assert [env.closed for env in envs] == [1, 1, 1]


def test_an_interrupt_anywhere_in_close_leaves_nothing_open() -> None:
    """At each Python call of it in turn: the envs are closed once, and the threads end."""
    number = 0
    done = False
    while not done:
        number += 1 + number // 20
        envs = [DoingEnv(row) for row in range(2)]
        with new_threads() as threads:
            pool = open_pool(envs)
        done = not interrupted(pool.close, number, Interrupted, EVENTS)[0]
        pool.close()
        del pool
        gc.collect()
        assert have_ended(threads)
        assert [env.closed for env in envs] == [1, 1]
    assert number > 20


# ---------------------------------------------------------------- start and end


def test_envs_are_made_at_the_same_time_in_threads_of_their_own() -> None:
    all_there = threading.Barrier(3, timeout=PATIENCE)
    made = {}

    def make(index: int) -> Any:
        all_there.wait()
        made[index] = threading.get_ident()
        return DoingEnv(index)

    pool: Pool = ThreadPoolEngine([partial(make, index) for index in range(3)], INFOS)
    assert len({threading.get_ident(), *made.values()}) == 4
    assert [description.action_space for description in pool.descriptions] == [DoingEnv.action_space] * 3
    pool.close()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no thread can be bound to cores on this platform")
def test_each_env_is_made_on_the_cores_of_its_thread() -> None:
    """And what it starts there has them; the caller's own stay as they are."""
    before = os.sched_getaffinity(0)
    masks = [{min(before)}, {max(before)}, before]
    made: dict[int, list[set[int]]] = {}

    def make(index: int) -> Any:
        own = made[index] = [os.sched_getaffinity(0)]
        thread = threading.Thread(target=lambda: own.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        return DoingEnv(index)

    for given in (masks, masks.__getitem__):
        pool: Pool = ThreadPoolEngine([partial(make, index) for index in range(3)], INFOS, worker_affinity=given)
        assert made == {index: [mask, mask] for index, mask in enumerate(masks)}
        pool.close()
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no thread can be bound to cores on this platform")
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([[0]], ValueError, "worker_affinity: got 1 entries, expected 2"),
        ([[], [0]], ValueError, r"worker_affinity: got \[\] for worker 0"),
        ([[0], [True]], TypeError, r"worker_affinity: got \[True\] for worker 1"),
        ([[0], [-1]], ValueError, r"worker_affinity: got \[-1\] for worker 1"),
        (3, TypeError, "worker_affinity: got 3 of type int"),
    ],
)
def test_cores_are_looked_at_before_anything_starts(given: Any, error: type[Exception], message: str) -> None:
    made: list[int] = []
    with new_threads() as threads, pytest.raises(error, match=message):
        ThreadPoolEngine([lambda: made.append(1)] * 2, INFOS, worker_affinity=given)
    assert not made
    assert not threads


def test_a_thread_that_would_end_while_it_makes_its_env(tmp_path: Path) -> None:
    makers = [*acting(2, tmp_path), lambda: ActingEnv(2, None, "exit in init")]
    with new_threads() as threads, pytest.raises(WorkerDiedError, match=r"envs \[2\], has died: exit code 3"):
        ThreadPoolEngine(makers, INFOS)
    assert have_ended(threads)
    assert closed_envs(tmp_path) == {0, 1}


def test_what_a_maker_raises_comes_through_itself(tmp_path: Path) -> None:
    error = LookupError("no such level")
    with pytest.raises(LookupError) as raised:
        ThreadPoolEngine([*acting(2, tmp_path), raising(error)], INFOS)
    assert raised.value is error
    assert error.env_index == 2  # type: ignore[attr-defined]
    assert closed_envs(tmp_path) == {0, 1}


def test_a_maker_that_gives_no_env_is_named() -> None:
    env = DoingEnv()
    with pytest.raises(TypeError, match="the maker of env 1 gave 3 of type int, expected a gymnasium"):
        ThreadPoolEngine([lambda: env, lambda: 3], INFOS)
    assert env.closed == 1
    with pytest.raises(TypeError, match="the maker of env 0: got 3 of type int"):
        ThreadPoolEngine([3], INFOS)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="got no maker"):
        ThreadPoolEngine([], INFOS)


@pytest.mark.parametrize("error", [LookupError("no space"), SystemExit(3)])
def test_what_an_env_raises_when_it_is_looked_at_comes_through(error: BaseException) -> None:
    class Hiding(DoingEnv):
        @property
        def action_space(self) -> Any:  # type: ignore[override]
            raise error

    envs = [DoingEnv(0), Hiding(1)]
    with new_threads() as threads, pytest.raises((LookupError, WorkerDiedError)) as raised:
        open_pool(envs)
    assert have_ended(threads)
    assert (raised.value if isinstance(error, Exception) else raised.value.__cause__) is error
    assert [env.closed for env in envs] == [1, 1]


def test_makers_that_take_too_long_are_left_behind(tmp_path: Path) -> None:
    """Their envs are closed once they are made, those of the others at once."""
    make_gates(1, tmp_path)
    env = DoingEnv()
    closed = threading.Event()
    env.closing = closed.set
    makers = [lambda: ActingEnv(0, tmp_path, "wait in init"), lambda: env]
    with new_threads() as threads, pytest.raises(WorkerStartError, match=r"the envs \[0\] were not made"):
        ThreadPoolEngine(makers, INFOS, start_timeout=0.5)
    assert closed.wait(PATIENCE)
    release(tmp_path, 0)
    assert have_ended(threads)
    assert closed_envs(tmp_path) == {0}


def test_close_waits_for_what_is_under_way_and_closes_all_at_once(pool: Pool, envs: list[DoingEnv]) -> None:
    """And for results that nobody took; each env once, and the second time nothing is done."""
    entered, gate = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        gate.wait(PATIENCE)

    envs[0].deed = block
    step(pool, [0, 1])
    pool.wait(1)
    assert entered.wait(PATIENCE)
    envs[2].closing = gate.set
    for env in envs[:2]:
        env.closing = partial(gate.wait, PATIENCE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.close()
        pool.close()
    assert [env.closed for env in envs] == [1, 1, 1]
    with pytest.raises(RuntimeError, match="closed"):
        step(pool, [1])


def test_envs_that_do_not_end_in_time_are_left_behind(acting_pool: Pool, tmp_path: Path) -> None:
    """In a step or in their ``close``: the others are closed, and a warning names them."""
    with new_threads() as threads:
        pool: Pool = ThreadPoolEngine([*acting(0), *(partial(ActingEnv, row, tmp_path) for row in range(3))], INFOS)
        pool.allocate()
        pool.run(bytes([RESET] * 3), None)
    pool.set_attribute(0, "act", "tell and wait")
    pool.set_attribute(2, "act", "wait in close")
    step(pool, [0, 1])
    pool.wait(1)
    await_entry(tmp_path, 0)
    with pytest.warns(
        UserWarning, match=r"workers \[0, 2\] did not close the envs \[0, 2\] in time and were left behind"
    ):
        pool.close(timeout=0.5)
    assert closed_envs(tmp_path) == {1}
    for row in (0, 2):
        release(tmp_path, row)
    assert have_ended(threads)
    assert closed_envs(tmp_path) == {0, 1, 2}


@pytest.mark.parametrize("error", [OSError("cannot close"), SystemExit(3)])
def test_close_raises_what_an_env_raises_there(pool: Pool, envs: list[DoingEnv], error: BaseException) -> None:
    """If that is an error; the other envs are closed."""
    envs[1].closing = raising(error)
    if isinstance(error, Exception):
        with pytest.raises(OSError, match="cannot close") as raised:
            pool.close()
        assert raised.value.env_index == 1  # type: ignore[attr-defined]
    else:
        pool.close()
    assert [env.closed for env in envs] == [1, 1, 1]


def test_with_terminate_nothing_is_waited_for(pool: Pool, envs: list[DoingEnv]) -> None:
    gate, heard = threading.Event(), threading.Event()
    envs[0].deed, envs[1].closing = partial(gate.wait, PATIENCE), heard.set
    step(pool, [0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.close(terminate=True)
    assert heard.wait(PATIENCE)
    assert envs[0].closed == 0
    gate.set()


def step_until_it_raises(pool: Pool, row: int, begun: threading.Barrier, told: list[Exception]) -> None:
    """Steps an env in a lane until something raises; adds that to what was told."""
    begun.wait()
    try:
        while True:
            step(pool, [row], lane=True)
            pool.wait_for(row, PATIENCE)
            report, _ = taken(pool, [row])
            if report.errors:
                raise report.errors[0]
    except Exception as error:
        told.append(error)


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("terminate", [False, True])
def test_threads_with_lanes_hear_of_the_end(terminate: bool) -> None:
    """Whatever they are at when another closes the pool: none waits for ever, and no env is in two calls at once."""
    for _ in range(40):
        envs = [DoingEnv(index) for index in range(4)]
        with new_threads() as threads:
            pool = open_pool(envs)
        begun = threading.Barrier(5, timeout=PATIENCE)
        told: list[Exception] = []

        drivers = [threading.Thread(target=step_until_it_raises, args=(pool, row, begun, told)) for row in range(4)]
        for driver in drivers:
            driver.start()
        begun.wait()
        pool.close(terminate=terminate)
        for driver in drivers:
            driver.join(PATIENCE)
        assert [type(error) for error in told] == [RuntimeError] * 4, told
        assert all("closed" in str(error) for error in told), told
        assert have_ended(threads)
        assert [env.closed for env in envs] == [1] * 4


class PausedTelling(Arrivals):
    """Has the thread that tells of a call's end wait, once it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()

    def add(self, comer: Any) -> None:
        self.thread = threading.current_thread()
        super().add(comer)
        self.goes_on.wait(PATIENCE)


def test_an_env_that_has_its_next_call_is_not_closed_by_the_thread_of_the_last() -> None:
    """The end begins when that thread has told of its call, and looks at nothing until the next one is under way."""
    env = DoingEnv()
    with new_threads() as threads:
        crew = ThreadCrew([lambda: env, DoingEnv], (gym.Env,), [None, None], PATIENCE)
    entered, gate = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        gate.wait(PATIENCE)

    last, following = VerbCall(0, env.act), VerbCall(0, env.act)
    paused = last.arrivals = PausedTelling()
    crew.start([last])
    assert paused.wait(1, perf_counter() + PATIENCE)
    env.deed = block
    following.arrivals = Arrivals()
    crew.start([following])
    assert entered.wait(PATIENCE)
    crew.close(None, True)
    paused.goes_on.set()
    paused.thread.join(PATIENCE)
    assert not paused.thread.is_alive()
    assert env.closed == 0
    gate.set()
    assert have_ended(threads)
    assert (env.closed, last.error, following.error) == (1, None, None)


def test_what_is_given_once_the_end_has_begun_is_refused() -> None:
    crew = ThreadCrew([DoingEnv], (gym.Env,), [None], PATIENCE)
    assert crew.close(None, False) == []
    late = VerbCall(0, lambda: 1)
    late.arrivals = Arrivals()
    crew.start([late])
    assert late.arrivals.wait(1, perf_counter() + PATIENCE)
    assert isinstance(late.error, RuntimeError)


@pytest.mark.parametrize("lane", [False, True])
def test_who_waits_for_an_env_that_is_left_behind_hears_of_the_end(lane: bool) -> None:
    """In another thread than the one that closes the pool."""
    envs = [DoingEnv(index) for index in range(2)]
    with new_threads() as threads:
        pool = open_pool(envs)
    gate = threading.Event()
    envs[0].deed = partial(gate.wait, PATIENCE)
    step(pool, [0], lane=lane)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            if lane:
                pool.wait_for(0)
            else:
                pool.wait(1)
        except RuntimeError as error:
            told.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    with pytest.warns(UserWarning, match=r"envs \[0\] in time and were left behind"):
        pool.close(timeout=0.1)
    waiter.join(PATIENCE)
    assert [str(error) for error in told] == ["the envs have been closed, in another thread"]
    gate.set()
    assert have_ended(threads)


@pytest.mark.parametrize("is_under_way", [False, True])
def test_dropping_it_ends_the_threads_and_closes_the_envs(is_under_way: bool) -> None:
    """Those that are at it once their call has come to its end."""
    envs = [DoingEnv(row) for row in range(3)]
    with new_threads() as threads:
        pool = open_pool(envs)
    entered, gate = threading.Event(), threading.Event()

    def block() -> None:
        entered.set()
        gate.wait(PATIENCE)

    if is_under_way:
        envs[0].deed = block
        step(pool, [0, 1])
        assert entered.wait(PATIENCE)
    dropped = weakref.ref(pool)
    del pool
    gc.collect()
    assert dropped() is None
    gate.set()
    assert len(threads) == 3
    assert have_ended(threads)
    assert [env.closed for env in envs] == [1, 1, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_of_the_process_disowns_the_threads(pool: Pool) -> None:
    child = os.fork()
    if not child:
        code = 1
        try:
            try:
                step(pool, [0])
            except RuntimeError as error:
                code = 0 if "of which this one is a fork" in str(error) else 2
            pool.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    step(pool, [0])
    assert pool.wait(1) == [0]
    assert observed(taken(pool, [0])[1]) == [[0, 1]]


def test_envs_that_nobody_closed_are_closed_at_exit(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    """Of a pool that is held, and of which one hangs; and nothing of torch is imported."""
    script = """
import sys, threading
import gymnasium as gym, numpy as np
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.thread_pool import ThreadPoolEngine

class Env(gym.Env):
    observation_space = action_space = gym.spaces.Box(-1, 1)
    def reset(self, **kwargs):
        threading.Event().wait()
    def close(self):
        print("closed\\n", end="")  # in one piece, beside that of the other thread

pool = ThreadPoolEngine([Env] * 3, GymHostOptions())
pool.allocate()
pool.submit([1], bytes([1]), None)
print("end", sorted({"torch", "tensordict"} & set(sys.modules)))
"""
    assert run_script(tmp_path, script, subprocess_env).split() == ["end", "[]", "closed", "closed"]


PACKAGES = """
import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium as gym

from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.makers import EnvMaker
from gymbridge.engine.thread_pool import ThreadPoolEngine

ENV = '''
import gymnasium as gym

for _ in range(100_000):  # threads take turns in it
    pass

class Env(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)
'''
makers = []
for package in (f"package_{number}" for number in range(12)):
    folder = Path(sys.argv[1], package)
    folder.mkdir()
    (folder / "__init__.py").write_text(f"import {package}.left\\nimport {package}.right")
    for module in ("left", "right"):
        (folder / f"{module}.py").write_text(ENV)
        gym.register(f"{package}-{module}-v0", f"{package}.{module}:Env")
        made_of = f"{package}-{module}-v0"
        makers.append(EnvMaker(made_of if sys.argv[2] == "ids" else partial(gym.make, made_of), {}))
sys.path.insert(0, sys.argv[1])
sys.setswitchinterval(1e-4)
engine = ThreadPoolEngine(makers, GymHostOptions())
print(len(engine.descriptions))
engine.close()
"""


@pytest.mark.parametrize("given", ["ids", "callables"])
def test_envs_of_one_package_are_made_at_once(given: str, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    """Python breaks the deadlock of two threads that import each other's module by showing one of them half of it."""
    command = [sys.executable, "-c", PACKAGES, tmp_path, given]
    done = subprocess.run(command, env=subprocess_env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "24"
