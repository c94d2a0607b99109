"""Envs of pools in this process that die or take too long: noticed in time, told by name, made anew where asked for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from interrupts import interrupted
from started_threads import have_ended, new_threads
from worker_processes import PATIENCE

from gymbridge.engine.asyncio_pool import AsyncioPoolEngine
from gymbridge.engine.block import Block
from gymbridge.engine.call_pool import CallPoolEngine
from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.env_calls import RowCall, VerbCall
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.recovery import Recovery
from gymbridge.engine.restarts import Restarts
from gymbridge.engine.thread_pool import ThreadPoolEngine
from gymbridge.errors import WorkerDiedError, WorkerStartError, WorkerTimeoutError

RESET, STEP, STEP_MAYBE_RESET = Op.RESET, Op.STEP, Op.STEP_MAYBE_RESET
INFOS = GymHostOptions.for_gymnasium(np.dtype(np.float64))
SHORT = 0.2
"""Seconds that an env may take where one is to take too long; but for a few tests it is those that hang which do."""
WHILE = 1.0
"""The same where what does not hang has to be done in that time."""
OFTEN = (1000, 3600.0)

Pool = CallPoolEngine[Any]


class MortalEnv(gym.Env[Any, Any]):
    """Observes its index, which of those made for its row it is, and its steps; does what a test wants.

    Attributes:
        deeds: place ("step", "reset", "close") -> called there; what it gives is awaited where it can be.
        seeds: those of its resets.
        has_closed: it has been closed.
    """

    observation_space = gym.spaces.Box(0, 1000, (3,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, index: int, generation: int):
        self.index, self.generation, self.steps = index, generation, 0
        self.deeds: dict[str, Callable[[], Any]] = {}
        self.seeds: list[int | None] = []
        self.closed = 0
        self.has_closed = threading.Event()
        self.ends = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.deeds.get("reset", lambda: None)()
        return self._first(seed)

    def step(self, action: Any) -> Any:
        self.deeds.get("step", lambda: None)()
        return self._next(action)

    def close(self) -> None:
        self.deeds.get("close", lambda: None)()
        self._note_close()

    def act(self) -> Any:
        return self.deeds.get("act", lambda: self.generation)()

    def _first(self, seed: int | None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.steps = 0
        return self._observation(), {}

    def _next(self, action: Any) -> Any:
        self.steps += 1
        return self._observation(), float(action), self.ends, False, {"steps": self.steps}

    def _note_close(self) -> None:
        self.closed += 1
        self.has_closed.set()

    def _observation(self) -> np.ndarray:
        return np.array([self.index, self.generation, self.steps], np.float32)


class AwaitedEnv(MortalEnv):
    """The same, whose methods are coroutines."""

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        await self._do("reset")
        return self._first(seed)

    async def step(self, action: Any) -> Any:
        await self._do("step")
        return self._next(action)

    async def close(self) -> None:
        await self._do("close")
        self._note_close()

    async def _do(self, place: str) -> None:
        await asyncio.sleep(0)
        done = self.deeds.get(place, lambda: None)()
        if asyncio.iscoroutine(done):
            await done


class Makers:
    """Makes envs of a kind and keeps those that it made, by row.

    Attributes:
        made: row -> its envs, the latest last.
        deeds: row -> called each time that its env is made.
    """

    def __init__(self, kind: str, num_envs: int = 3):
        self.kind = kind
        self.num_envs = num_envs
        self.made: dict[int, list[Any]] = {row: [] for row in range(num_envs)}
        self.deeds: dict[int, Callable[[], Any]] = {}
        self.gates: list[Any] = []
        self.hanging: set[int] = set()

    def __call__(self, row: int) -> Any:
        given = self.deeds.get(row, lambda: None)()
        if given is not None:
            return given
        env_type = AwaitedEnv if self.kind == "loop" else MortalEnv
        self.made[row].append(env_type(row, len(self.made[row])))
        return self.made[row][-1]

    def pool(self, *, are_reset: bool = True, **options: Any) -> Pool:
        """A pool of them, whose envs have been reset."""
        engine: Any = ThreadPoolEngine if self.kind == "threads" else AsyncioPoolEngine
        pool: Pool = engine([partial(self, row) for row in range(self.num_envs)], INFOS, **options)
        pool.allocate()
        if are_reset:
            pool.run(bytes([RESET] * self.num_envs), None, [{"seed": row} for row in range(self.num_envs)])
        return pool

    def latest(self, row: int) -> Any:
        return self.made[row][-1]

    def gate(self) -> Any:
        """What opens with ``set`` for all that wait there: in a thread, or awaited and cancelled as others are."""
        gate = _Gate() if self.kind == "loop" else threading.Event()
        self.gates.append(gate)
        return gate

    def open_all(self) -> None:
        for gate in self.gates:
            gate.set()


class _Gate:
    def __init__(self) -> None:
        self._opened: concurrent.futures.Future[None] = concurrent.futures.Future()

    def set(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    async def wait(self, timeout: float | None = None) -> None:
        await asyncio.shield(asyncio.wrap_future(self._opened))

    async def wait_stubbornly(self) -> None:
        """Is not to be cancelled."""
        while not self._opened.done():
            with suppress(asyncio.CancelledError):
                await self.wait()


@pytest.fixture(params=["threads", "loop", "beside the loop"])
def makers(request: pytest.FixtureRequest, only_hanging_is_late: Callable[[Makers], Makers]) -> Iterator[Makers]:
    makers = only_hanging_is_late(Makers(request.param))
    yield makers
    makers.open_all()


@pytest.fixture
def only_hanging_is_late(monkeypatch: pytest.MonkeyPatch) -> Callable[[Makers], Makers]:
    """Has the steps and resets of those envs alone take too long that hang, however slow the machine is."""

    def of(makers: Makers) -> Makers:
        real = Recovery._is_late

        def is_late(recovery: Recovery, todo: Any, seconds: float) -> bool:
            if not isinstance(todo, RowCall):
                return real(recovery, todo, seconds)
            is_hanging = todo.row in makers.hanging
            makers.hanging.discard(todo.row)
            return is_hanging

        monkeypatch.setattr(Recovery, "_is_late", is_late)
        return makers

    return of


@pytest.fixture
def opened(makers: Makers) -> Iterator[Callable[..., Pool]]:
    """Opens pools that are closed in the end."""
    pools: list[Pool] = []

    def open_pool(**options: Any) -> Pool:
        pools.append(makers.pool(**options))
        return pools[-1]

    yield open_pool
    makers.open_all()
    for pool in pools:
        pool.close(terminate=True)


def step(pool: Pool, rows: list[int], op: Op = STEP, **options: Any) -> None:
    pool.submit(rows, bytes([op]) * len(rows), [np.ones(len(rows), np.int64)], **options)


def taken(pool: Pool, rows: list[int]) -> tuple[Any, Block]:
    block = Block(pool.block.layout.rows(0, len(rows)))
    return pool.take(rows, block), block


def come(pool: Pool, rows: list[int]) -> tuple[Any, Block]:
    """What rows give, all that are under way."""
    assert sorted(pool.wait(len(rows), PATIENCE)) == sorted(rows)
    return taken(pool, rows)


def stepped(pool: Pool, rows: list[int], op: Op = STEP) -> tuple[Any, Block]:
    step(pool, rows, op)
    return come(pool, rows)


def observed(block: Block) -> list[list[float]]:
    observations: list[list[float]] = block.next["observation",].tolist()
    return observations


def first_observed(block: Block) -> list[list[float]]:
    observations: list[list[float]] = block.root["observation",].tolist()
    return observations


def assert_lost(block: Block, index: int, known: list[float]) -> None:
    """A row shows a step that was lost."""
    assert observed(block)[index] == known
    assert (block.next["reward",][index], block.next["terminated",][index], block.next["truncated",][index]) == (
        0,
        False,
        True,
    )


def raising(error: BaseException) -> Callable[[], Any]:
    def deed() -> Any:
        raise error

    return deed


def once(deed: Callable[[], Any]) -> Callable[[], Any]:
    """Does it the first time alone."""
    left = [deed]
    return lambda: left.pop()() if left else None


DEATHS = ["exit", "hang"]


def fail_in(makers: Makers, row: int, place: str, death: str) -> Any:
    """Has the env of a row die there, once; the gate, if it is to hang."""
    env = makers.latest(row)
    if death == "exit":
        env.deeds[place] = raising(SystemExit(3))
        return None
    gate = makers.gate()
    hang_in(makers, row, place, gate.wait)
    return gate


def hang_in(makers: Makers, row: int, place: str, wait: Callable[[], Any]) -> None:
    """Has the env of a row take too long there."""

    def deed() -> Any:
        makers.hanging.add(row)
        return wait()

    makers.latest(row).deeds[place] = deed


# ---------------------------------------------------------------- envs that take too long


@pytest.mark.parametrize("way", ["wait", "wait_for", "wait_async", "wait_for_async", "run"])
def test_a_step_that_takes_too_long_is_an_error_of_its_row(
    makers: Makers, opened: Callable[..., Pool], way: str
) -> None:
    """However it is waited for, with no time-out of the wait; the others go on, and its env is closed once it ends."""
    pool = opened(step_timeout=SHORT)
    gate = fail_in(makers, 1, "step", "hang")
    if way == "run":
        error = pool.run(bytes([STEP] * 3), [np.zeros(3, np.int64)]).errors[1]
        assert observed(pool.block)[::2] == [[0, 0, 1], [2, 0, 1]]
    else:
        step(pool, [1], lane="for" in way)
        if way == "wait":
            assert pool.wait(1) == [1]
        elif way == "wait_for":
            pool.wait_for(1)
        elif way == "wait_async":
            assert asyncio.run(pool.wait_async(1)) == [1]
        else:
            asyncio.run(pool.wait_for_async(1))
        error = taken(pool, [1])[0].errors[0]
        assert observed(stepped(pool, [2, 0])[1]) == [[2, 0, 1], [0, 0, 1]]
    assert isinstance(error, WorkerTimeoutError)
    assert (error.worker, error.env_indices, error.seconds, error.doing) == (1, (1,), SHORT, "the step of env 1")
    assert "the step of env 1 took longer than the step_timeout of 0.2 s" in str(error)
    for refused in (
        lambda: step(pool, [1]),
        lambda: pool.attribute(1, "index"),
        lambda: pool.require_workers(),
        lambda: pool.run(bytes([RESET] * 3), None),
    ):
        with pytest.raises(WorkerTimeoutError):
            refused()
    assert not pool.busy
    assert pool.block.state[1] == RowState.FAILED
    assert pool.stats().items() >= {"restarts": 0, "restarts_of": {}, "timeouts": 1}.items()
    if makers.kind != "loop":
        assert not makers.latest(1).closed
        gate.set()
    assert makers.latest(1).has_closed.wait(PATIENCE)
    assert observed(stepped(pool, [2, 0])[1]) == [[2, 0, 2], [0, 0, 2]]
    pool.close()
    assert [makers.latest(row).closed for row in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["threads", "loop", "beside the loop"])
def test_the_time_is_taken(kind: str) -> None:
    """By the clock: of an env that hangs in its first reset."""
    makers = Makers(kind, 1)
    pool = makers.pool(are_reset=False, step_timeout=SHORT)
    makers.latest(0).deeds["reset"] = makers.gate().wait
    before = perf_counter()
    pool.submit([0], bytes([RESET]), None)
    error = come(pool, [0])[0].errors[0]
    assert perf_counter() - before >= SHORT
    assert isinstance(error, WorkerTimeoutError)
    assert error.doing == "the reset of env 0"
    pool.close()
    makers.open_all()
    assert makers.latest(0).has_closed.wait(PATIENCE)


@pytest.mark.parametrize("op", [RESET, STEP_MAYBE_RESET])
def test_it_is_told_that_it_was_the_reset(makers: Makers, opened: Callable[..., Pool], op: Op) -> None:
    pool = opened(step_timeout=SHORT)
    makers.latest(1).ends = True
    fail_in(makers, 1, "reset", "hang")
    error = stepped(pool, [1], op)[0].errors[0]
    assert isinstance(error, WorkerTimeoutError)
    assert error.doing == "the reset of env 1"


def test_calls_of_envs_may_take_longer(makers: Makers, opened: Callable[..., Pool]) -> None:
    """As those of envs in processes may; here a call waits until a step of another env has taken too long."""
    pool = opened(step_timeout=SHORT)
    if makers.kind == "loop":
        pytest.skip("what blocks there blocks all")
    gate = makers.gate()
    makers.latest(0).deeds["act"] = lambda: (gate.wait(PATIENCE), "acted")[1]
    fail_in(makers, 1, "step", "hang")
    step(pool, [1])
    waiter = threading.Thread(target=lambda: (pool.wait(1, PATIENCE), gate.set()))
    waiter.start()
    # a verb is refused while a row is busy, so it is asked of the crew
    call = VerbCall(0, makers.latest(0).act)
    pool._crew.perform([call])
    waiter.join(PATIENCE)
    assert call.result == "acted"
    assert pool.stats()["timeouts"] == 1


def test_the_pool_does_not_run_out_of_threads(only_hanging_is_late: Callable[[Makers], Makers]) -> None:
    """Of eight envs seven hang, one after the other; the others are all at it at once after each."""
    makers = only_hanging_is_late(Makers("threads", 8))
    pool = makers.pool(step_timeout=SHORT)
    for row in range(7):
        fail_in(makers, row, "step", "hang")
        assert isinstance(stepped(pool, [row])[0].errors[0], WorkerTimeoutError)
        left = [*range(row + 1, 8)]
        all_there = threading.Barrier(len(left), timeout=PATIENCE)
        for other in left:
            makers.latest(other).deeds["step"] = all_there.wait
        assert not stepped(pool, left)[0].errors
        for other in left:
            del makers.latest(other).deeds["step"]
    pool.close()
    makers.open_all()
    for row in range(7):
        assert makers.latest(row).has_closed.wait(PATIENCE)
        assert makers.latest(row).closed == 1


def test_what_comes_late_is_dropped(makers: Makers, opened: Callable[..., Pool]) -> None:
    """An env made anew goes on in its row while the one before comes back, and shows nothing of it."""
    pool = opened(step_timeout=SHORT, max_restarts=OFTEN)
    gate = fail_in(makers, 1, "step", "hang")
    report, block = stepped(pool, [1])
    assert report.lost == {0}
    assert_lost(block, 0, [1, 0, 0])
    old = makers.made[1][0]
    pool.submit([1], bytes([RESET]), None)
    assert first_observed(come(pool, [1])[1]) == [[1, 1, 0]]
    for number in (1, 2, 3):
        assert observed(stepped(pool, [1])[1]) == [[1, 1, number]]
        if number == 1:
            gate.set()
            assert old.has_closed.wait(PATIENCE)
    assert (old.closed, makers.latest(1).closed) == (1, 0)
    pool.close()
    assert (old.closed, makers.latest(1).closed) == (1, 1)


def test_a_coroutine_that_does_not_let_itself_be_cancelled_is_left_behind(
    only_hanging_is_late: Callable[[Makers], Makers],
) -> None:
    makers = only_hanging_is_late(Makers("loop"))
    pool = makers.pool(step_timeout=SHORT, max_restarts=OFTEN)
    gate = makers.gate()
    hang_in(makers, 1, "step", gate.wait_stubbornly)
    assert stepped(pool, [1])[0].lost == {0}
    old = makers.made[1][0]
    pool.submit([1], bytes([RESET]), None)
    assert first_observed(come(pool, [1])[1]) == [[1, 1, 0]]
    assert not old.closed
    gate.set()
    assert old.has_closed.wait(PATIENCE)
    pool.close()
    assert (old.closed, makers.latest(1).closed) == (1, 1)


@pytest.mark.parametrize("limit", [None, OFTEN])
def test_of_a_loop_that_a_coroutine_blocks_all_take_too_long(limit: Any) -> None:
    """No wait is endless, and where it comes back envs that are made anew go on."""
    makers = Makers("loop")
    pool = makers.pool(step_timeout=WHILE, max_restarts=limit, start_timeout=WHILE)
    gate, entered = threading.Event(), threading.Event()
    makers.latest(1).deeds["step"] = lambda: (entered.set(), gate.wait(PATIENCE))[1] and None
    step(pool, [1])
    assert entered.wait(PATIENCE)
    step(pool, [0, 2])
    report = pool.wait(3, PATIENCE)
    assert sorted(report) == [0, 1, 2]
    for row in range(3):
        error = taken(pool, [row])[0].errors[0]
        assert isinstance(error, WorkerTimeoutError if limit is None else WorkerStartError)
        assert f"env {row}" in str(error)
    gate.set()
    if limit is None:
        for row in range(3):
            assert makers.latest(row).has_closed.wait(PATIENCE)
    else:
        pool.submit([0, 1, 2], bytes([RESET] * 3), None)
        report, block = come(pool, [0, 1, 2])
        assert not report.errors
        assert all(generation >= 1 for _, generation, _ in first_observed(block))
    pool.close()
    assert {env.closed for envs in makers.made.values() for env in envs} == {1}


# ---------------------------------------------------------------- made anew


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("way", ["wait", "lane", "run"])
def test_a_step_is_lost_and_the_env_is_another(
    makers: Makers, opened: Callable[..., Pool], death: str, way: str
) -> None:
    """It shows the last known observation and is truncated; the others' steps are theirs."""
    pool = opened(step_timeout=SHORT, max_restarts=OFTEN)
    assert not stepped(pool, [0, 1, 2])[0].errors
    fail_in(makers, 1, "step", death)
    if way == "run":
        report, block = pool.run(bytes([STEP] * 3), [np.ones(3, np.int64)]), pool.block
    elif way == "lane":
        for row in range(3):
            step(pool, [row], lane=True)
        for row in range(3):
            pool.wait_for(row, PATIENCE)
        report, block = taken(pool, [0, 1, 2])
    else:
        report, block = stepped(pool, [0, 1, 2])
    assert not report.errors
    assert report.lost == {1}
    assert_lost(block, 1, [1, 0, 1])
    assert [observed(block)[row] for row in (0, 2)] == [[0, 0, 2], [2, 0, 2]]
    assert block.next["reward",].tolist() == [1, 0, 1]
    assert [block.state[row] for row in range(3)] == [RowState.RUNNING, RowState.ENDED, RowState.RUNNING]
    assert pool.restarts.of_worker == {1: 1}
    assert pool.stats().items() >= {"restarts": 1, "restarts_of": {1: 1}, "timeouts": int(death == "hang")}.items()
    pool.submit([1], bytes([RESET]), None)
    report, block = come(pool, [1])
    assert (first_observed(block), report.lost) == ([[1, 1, 0]], set())
    assert observed(stepped(pool, [2, 1])[1]) == [[2, 0, 3], [1, 1, 1]]
    if death == "exit":
        assert makers.made[1][0].has_closed.wait(PATIENCE)


@pytest.mark.parametrize("death", DEATHS)
def test_where_an_end_is_followed_by_a_reset_the_new_env_is_reset(
    makers: Makers, opened: Callable[..., Pool], death: str
) -> None:
    """Whether the step or the reset after it does not come to its end."""
    pool = opened(step_timeout=SHORT, max_restarts=OFTEN)
    for number, place in enumerate(["step", "reset"], 1):
        stepped(pool, [1], STEP_MAYBE_RESET)
        makers.latest(1).ends = True
        fail_in(makers, 1, place, death)
        report, block = stepped(pool, [0, 1], STEP_MAYBE_RESET)
        assert report.lost == {1}
        assert_lost(block, 1, [1, number - 1, 1])
        assert first_observed(block)[1] == [1, number, 0]
        assert observed(block)[0] == [0, 0, number]
        assert block.state[1] == RowState.RUNNING


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("way", ["submit", "run"])
def test_a_reset_is_made_of_the_new_env(makers: Makers, opened: Callable[..., Pool], death: str, way: str) -> None:
    """With what it was given, and without anybody noticing."""
    pool = opened(step_timeout=SHORT, max_restarts=OFTEN)
    fail_in(makers, 1, "reset", death)
    kwargs = [{"seed": 70 + row} for row in range(3)]
    if way == "run":
        report, block = pool.run(bytes([RESET] * 3), None, kwargs), pool.block
    else:
        pool.submit([0, 1, 2], bytes([RESET] * 3), None, kwargs)
        report, block = come(pool, [0, 1, 2])
    assert not report.errors
    assert not report.lost
    assert first_observed(block) == [[0, 0, 0], [1, 1, 0], [2, 0, 0]]
    assert [makers.latest(row).seeds[-1] for row in range(3)] == [70, 71, 72]


def test_new_envs_are_seeded_of_the_seeds_that_were_given(makers: Makers, opened: Callable[..., Pool]) -> None:
    """By a reset or by ``seed``; with others each time, that a run with the same seeds has again."""
    expected = Restarts(OFTEN)
    pool = opened(max_restarts=OFTEN)
    expected.take_seed(1, 1)
    for number in range(3):
        if number == 2:
            pool.seed(1, 5, False)
            expected.take_seed(1, 5)
        fail_in(makers, 1, "step", "exit")
        assert stepped(pool, [1])[0].lost == {0}
        pool.submit([1], bytes([RESET]), None)
        assert not come(pool, [1])[0].errors
        assert makers.latest(1).seeds == [expected.next_seed(1)]
    pool.seed(1, 9, False)
    expected.take_seed(1, 9)
    fail_in(makers, 1, "reset", "exit")
    pool.submit([1], bytes([RESET]), None)
    assert not come(pool, [1])[0].errors
    assert makers.latest(1).seeds == [expected.next_seed(1)]


def test_after_so_many_the_death_is_raised(makers: Makers, opened: Callable[..., Pool]) -> None:
    """And by each later use of that row, of which no other knows."""
    pool = opened(max_restarts=(2, 3600.0))
    for _ in range(2):
        fail_in(makers, 1, "step", "exit")
        assert stepped(pool, [1])[0].lost == {0}
        pool.submit([1], bytes([RESET]), None)
        come(pool, [1])
    fail_in(makers, 1, "step", "exit")
    error = stepped(pool, [1])[0].errors[0]
    assert isinstance(error, WorkerDiedError)
    assert (error.env_indices, error.exit_code) == ((1,), 3)
    assert makers.latest(1).has_closed.wait(PATIENCE)
    for refused in (lambda: step(pool, [1]), lambda: pool.run(bytes([RESET] * 3), None), lambda: pool.call(1, "act")):
        with pytest.raises(WorkerDiedError, match="exit code 3"):
            refused()
    assert not pool.busy
    assert pool.stats()["restarts"] == 2
    assert observed(stepped(pool, [0, 2])[1]) == [[0, 0, 1], [2, 0, 1]]


def test_one_that_dies_again_at_once_is_made_anew_again(makers: Makers, opened: Callable[..., Pool]) -> None:
    """In its maker, or in its first reset; as often as it may be."""
    pool = opened(max_restarts=(5, 3600.0))
    fail_in(makers, 1, "step", "exit")
    makers.deeds[1] = once(raising(SystemExit(5)))
    report, block = stepped(pool, [1], STEP_MAYBE_RESET)
    assert report.lost == {0}
    assert first_observed(block) == [[1, 1, 0]]
    assert pool.stats()["restarts"] == 2
    fail_in(makers, 1, "step", "exit")
    makers.deeds[1] = raising(SystemExit(5))
    error = stepped(pool, [1])[0].errors[0]
    assert isinstance(error, WorkerDiedError)
    assert error.exit_code == 5
    assert pool.stats()["restarts"] == 5


def test_what_a_maker_raises_is_the_rows_error_and_the_next_use_tries_again(
    makers: Makers, opened: Callable[..., Pool]
) -> None:
    pool = opened(max_restarts=OFTEN)
    fail_in(makers, 1, "step", "exit")
    makers.deeds[1] = raising(OSError("no display"))
    report, _ = stepped(pool, [1])
    assert isinstance(report.errors[0], OSError)
    assert report.errors[0].env_index == 1  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="no display"):
        pool.submit([1], bytes([RESET]), None)
    assert not pool.busy
    del makers.deeds[1]
    pool.submit([1], bytes([RESET]), None)
    report, block = come(pool, [1])
    assert (dict(report.errors), report.lost, first_observed(block)) == ({}, set(), [[1, 1, 0]])
    assert pool.stats()["restarts"] == 3


class Wider(MortalEnv):
    observation_space = gym.spaces.Box(0, 1000, (4,), np.float32)


def test_another_env_than_before_is_refused(makers: Makers, opened: Callable[..., Pool]) -> None:
    """One with other spaces, one that is none, and the one that died; what was made and is not taken is closed."""
    pool = opened(max_restarts=OFTEN)
    other = Wider(1, 7)
    old = makers.latest(1)
    fail_in(makers, 1, "step", "exit")
    for given, error, message in (
        (other, WorkerStartError, r"env 1: made anew, it is another: got the next_leaves .*\(4,\)"),
        (old, WorkerStartError, "env 1: its maker gave the very env"),
        ("no env", TypeError, "the maker of env 1 gave 'no env'"),
    ):
        makers.deeds[1] = lambda given=given: given  # type: ignore[misc]
        with pytest.raises(error, match=message):  # noqa: PT012  # the first time it is in the report
            report, _ = stepped(pool, [1])
            raise report.errors[0]
    assert other.has_closed.wait(PATIENCE)
    assert (other.closed, old.closed) == (1, 1)
    assert observed(stepped(pool, [0, 2])[1]) == [[0, 0, 1], [2, 0, 1]]


@pytest.mark.parametrize("death", DEATHS)
def test_while_an_env_is_made_anew_the_others_go_on(makers: Makers, opened: Callable[..., Pool], death: str) -> None:
    """Their results come; that of the row comes once it is there."""
    pool = opened(step_timeout=SHORT if death == "hang" else None, max_restarts=OFTEN, start_timeout=PATIENCE)
    gate, entered = threading.Event(), threading.Event()
    if makers.kind == "threads":
        makers.deeds[1] = lambda: (entered.set(), gate.wait(PATIENCE))[2:] or None
    else:
        opened_gate = makers.gates.append(gate) or _Gate()

        async def awaited_env() -> Any:
            entered.set()
            await opened_gate.wait()
            del makers.deeds[1]
            return makers(1)

        makers.deeds[1] = awaited_env
    fail_in(makers, 1, "step", death)
    step(pool, [1])
    assert entered.wait(PATIENCE)
    for number in range(1, 4):
        step(pool, [0, 2])
        assert sorted(pool.wait(2, PATIENCE)) == [0, 2]
        assert observed(taken(pool, [2, 0])[1]) == [[2, 0, number], [0, 0, number]]
    assert pool.busy == {1}
    gate.set()
    if makers.kind != "threads":
        opened_gate.set()
    report, block = come(pool, [1])
    assert report.lost == {0}
    assert_lost(block, 0, [1, 0, 0])


def test_a_maker_that_takes_too_long_is_left_behind(makers: Makers, opened: Callable[..., Pool]) -> None:
    """The row has an error, what it makes late is closed, and the next use tries again."""
    pool = opened(max_restarts=OFTEN, start_timeout=WHILE)
    gate = _Gate()
    event = threading.Event()
    late = (AwaitedEnv if makers.kind == "loop" else MortalEnv)(1, 7)
    if makers.kind == "threads":
        makers.deeds[1] = lambda: (event.wait(PATIENCE), late)[1]
    else:

        async def awaited_env() -> Any:
            await gate.wait_stubbornly()
            return late

        makers.deeds[1] = awaited_env
    fail_in(makers, 1, "step", "exit")
    error = stepped(pool, [1])[0].errors[0]
    assert isinstance(error, WorkerStartError)
    assert str(error) == "env 1: it was not made anew within the start timeout of 1 s"
    del makers.deeds[1]
    pool.submit([1], bytes([RESET]), None)
    assert first_observed(come(pool, [1])[1]) == [[1, 1, 0]]
    gate.set()
    event.set()
    assert late.has_closed.wait(PATIENCE)
    assert observed(stepped(pool, [1])[1]) == [[1, 1, 1]]


def test_an_env_that_dies_in_a_call_has_lost_its_episode(makers: Makers, opened: Callable[..., Pool]) -> None:
    """The call raises; the next step of its row is lost, and that of no other."""
    pool = opened(max_restarts=OFTEN)
    stepped(pool, [0, 1, 2])
    fail_in(makers, 1, "act", "exit")
    with pytest.raises(WorkerDiedError, match="exit code 3"):
        pool.each("call", [("act",)] * 3)
    assert pool.each("call", [("act",)] * 3) == [0, 1, 0]
    report, block = stepped(pool, [2, 1, 0])
    assert report.lost == {1}
    assert observed(block) == [[2, 0, 2], [1, 0, 1], [0, 0, 2]]
    assert_lost(block, 1, [1, 0, 1])
    fail_in(makers, 0, "act", "exit")
    with pytest.raises(WorkerDiedError):
        pool.call(0, "act")
    report = pool.run(bytes([STEP_MAYBE_RESET] * 2 + [0]), [np.zeros(3, np.int64)])
    assert report.lost == {0}
    assert_lost(pool.block, 0, [0, 0, 2])
    assert first_observed(pool.block)[0] == [0, 1, 0]


def test_a_row_that_is_lost_and_is_reset_is_lost_no_more(makers: Makers, opened: Callable[..., Pool]) -> None:
    pool = opened(max_restarts=OFTEN)
    fail_in(makers, 1, "act", "exit")
    with pytest.raises(WorkerDiedError):
        pool.call(1, "act")
    pool.submit([1], bytes([RESET]), None)
    assert not come(pool, [1])[0].lost
    report, block = stepped(pool, [1])
    assert (report.lost, observed(block)) == (set(), [[1, 1, 1]])


def test_of_several_of_which_one_raises_the_lost_ones_stay_lost(makers: Makers, opened: Callable[..., Pool]) -> None:
    """That one alone is taken; what is left is taken as it is, and told once."""
    pool = opened(max_restarts=OFTEN)
    stepped(pool, [0, 1, 2])
    fail_in(makers, 0, "step", "exit")
    fail_in(makers, 2, "step", "exit")
    makers.latest(1).deeds["step"] = raising(LookupError("broken"))
    step(pool, [0, 1, 2], STEP_MAYBE_RESET)
    pool.wait(3, PATIENCE)
    report, _ = taken(pool, [0, 1, 2])
    assert [*report.errors] == [1]
    report, block = taken(pool, [2, 0])
    assert report.lost == {0, 1}
    for index, row in enumerate([2, 0]):
        assert_lost(block, index, [row, 0, 1])
        assert first_observed(block)[index] == [row, 1, 0]
    assert not stepped(pool, [0, 2])[0].lost


def test_nothing_is_kept_of_envs_that_died(makers: Makers, opened: Callable[..., Pool]) -> None:
    """However many: neither they nor threads."""
    pool = opened(max_restarts=(100_000, 3600.0))
    died: list[weakref.ref[Any]] = []
    with new_threads() as threads:
        for _ in range(100):
            fail_in(makers, 1, "step", "exit")
            died.append(weakref.ref(makers.made[1].pop()))
            makers.made[1].append(makers.latest(0))  # in its place: the numbers go on
            report, block = stepped(pool, [1], STEP_MAYBE_RESET)
            assert report.lost == {0}
    del report, block
    assert not stepped(pool, [0, 1, 2])[0].errors  # what the last one gave, nobody has now
    gc.collect()
    assert [env for env in died if env() is not None] == []
    assert sum(thread.is_alive() for thread in threads) <= len(makers.made)  # one a row at most


# ---------------------------------------------------------------- the end, and interrupts


def test_it_closes_while_an_env_is_made_anew(makers: Makers) -> None:
    """Who waits for it hears of the end; what is made late is closed, or is not made."""
    with new_threads() as threads:
        pool = makers.pool(max_restarts=OFTEN)
    gate, entered, event = _Gate(), threading.Event(), threading.Event()
    late = (AwaitedEnv if makers.kind == "loop" else MortalEnv)(1, 7)
    if makers.kind == "threads":
        makers.deeds[1] = lambda: (entered.set(), event.wait(PATIENCE), late)[2]
    else:

        async def awaited_env() -> Any:
            entered.set()
            await gate.wait()
            return late

        makers.deeds[1] = awaited_env
    fail_in(makers, 1, "step", "exit")
    step(pool, [1])
    assert entered.wait(PATIENCE)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            pool.wait(1)
        except RuntimeError as error:
            told.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    pool.close(timeout=0.1)
    waiter.join(PATIENCE)
    assert [str(error) for error in told] == ["the envs have been closed, in another thread"]
    gate.set()
    event.set()
    assert have_ended(threads)
    assert {env.closed for envs in makers.made.values() for env in envs} == {1}
    assert late.closed == (makers.kind == "threads")


def test_close_does_not_wait_for_what_was_left_behind(makers: Makers) -> None:
    """Nor warns of it; all that was started ends once it is let go on."""
    with new_threads() as threads:
        pool = makers.pool(step_timeout=SHORT, max_restarts=OFTEN, shutdown_timeout=None)
        fail_in(makers, 1, "step", "hang")
        assert stepped(pool, [1])[0].lost == {0}
        fail_in(makers, 2, "step", "hang")
        assert stepped(pool, [2])[0].lost == {0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.close()
    makers.open_all()
    assert have_ended(threads)
    for row in range(3):
        for env in makers.made[row]:
            assert env.has_closed.wait(PATIENCE)
            assert env.closed == 1


def test_dropping_it_ends_what_watches(makers: Makers) -> None:
    with new_threads() as threads:
        pool = makers.pool(step_timeout=PATIENCE, max_restarts=OFTEN)
        fail_in(makers, 1, "step", "exit")
        assert stepped(pool, [1])[0].lost == {0}
    del pool
    gc.collect()
    assert any("watch" in thread.name for thread in threads)
    assert have_ended(threads)
    assert {env.closed for envs in makers.made.values() for env in envs} == {1}


class Interrupted(BaseException):
    """What a signal handler raises."""


@pytest.mark.parametrize("call", ["submit", "take", "run", "each", "revive"])
def test_an_interrupt_anywhere_leaves_the_pool_usable(makers: Makers, opened: Callable[..., Pool], call: str) -> None:
    """At one Python call after another, while an env dies in each; after a reset all rows are as they should be."""
    pool = opened(step_timeout=PATIENCE, max_restarts=(100_000, 3600.0))
    calls: dict[str, Callable[[], object]] = {
        "submit": lambda: step(pool, [0, 1, 2]),
        "take": lambda: taken(pool, [0, 1, 2]),
        "run": lambda: pool.run(bytes([STEP] * 3), [np.zeros(3, np.int64)]),
        "each": lambda: pool.each("call", [("act",)] * 3),
        "revive": lambda: pool.submit([0, 1, 2], bytes([RESET] * 3), None),
    }
    number = 0
    done = False
    while not done:
        number += 1 + number // 20
        if call == "revive":
            fail_in(makers, 1, "step", "exit")
            makers.deeds[1] = raising(OSError("no display"))
            assert [*stepped(pool, [1])[0].errors] == [0]
            del makers.deeds[1]
        else:
            fail_in(makers, 1, "act" if call == "each" else "step", "exit")
        if call == "take":
            step(pool, [0, 1, 2])
            pool.wait(3, PATIENCE)
        try:
            done = not interrupted(calls[call], number, Interrupted, ("call", "c_call", "c_return"))[0]
        except WorkerDiedError:
            done = call == "each"
        assert len(pool.wait(len(pool.busy), PATIENCE)) == len(pool.busy)
        for row in sorted(pool.busy):
            taken(pool, [row])
        makers.latest(1).deeds.clear()
        pool.submit([0, 1, 2], bytes([RESET] * 3), None)
        report, block = come(pool, [0, 1, 2])
        assert not report.errors
        assert not report.lost
        generation = makers.latest(1).generation
        assert first_observed(block) == [[0, 0, 0], [1, generation, 0], [2, 0, 0]]
        report, block = stepped(pool, [0, 1, 2])
        assert not report.errors
        assert not report.lost
        assert observed(block) == [[0, 0, 1], [1, generation, 1], [2, 0, 1]]
    assert number > 20
    pool.close()
    assert {env.closed for envs in makers.made.values() for env in envs} == {1}


def test_a_call_that_an_interrupt_has_ended_and_that_hangs_is_waited_for_so_long(
    makers: Makers, opened: Callable[..., Pool]
) -> None:
    """The next use of its row waits until it is given up, and goes on with another env."""
    pool = opened(step_timeout=SHORT, max_restarts=OFTEN)
    fail_in(makers, 1, "step", "hang")
    step(pool, [1])
    pool.abandon([1])
    pool.submit([1], bytes([RESET]), None)
    report, block = come(pool, [1])
    assert (dict(report.errors), first_observed(block)) == ({}, [[1, 1, 0]])


# ---------------------------------------------------------------- at random


def test_envs_that_die_at_random_disturb_no_other(makers: Makers, opened: Callable[..., Pool]) -> None:
    """Each transition is the next one of its env, or one that is lost; whatever dies, hangs or raises."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    pool = opened(step_timeout=SHORT, max_restarts=(100_000, 3600.0))
    known = {row: [row, 0, 0] for row in range(3)}
    lost = 0
    under_way: dict[int, str] = {}
    hangs = 0
    number = 0
    while number < 600 or under_way:
        number += 1
        idle = [row for row in range(3) if row not in under_way]
        rows = rng.sample(idle, rng.randint(0, len(idle))) if number < 600 else []
        for row in rows:
            under_way[row] = rng.choices(["", "exit", "raise", "hang"], [90, 8, 4, 1 if hangs < 4 else 0])[0]
            env = makers.latest(row)
            env.deeds.pop("step", None)
            if under_way[row] == "raise":
                env.deeds["step"] = raising(LookupError("broken"))
            elif under_way[row]:
                fail_in(makers, row, "step", under_way[row])
                hangs += under_way[row] == "hang"
        if rows:
            step(pool, rows, STEP_MAYBE_RESET)
        if not under_way:
            continue
        for row in pool.wait(1, PATIENCE):
            report, block = taken(pool, [row])
            deed = under_way.pop(row)
            if deed == "raise":
                assert isinstance(report.errors[0], LookupError)
                makers.latest(row).deeds.clear()
                pool.submit([row], bytes([RESET]), None, lane=True)
                pool.wait_for(row, PATIENCE)
                assert first_observed(taken(pool, [row])[1]) == [[row, known[row][1], 0]]
                known[row][2] = 0
            elif deed:
                assert report.lost == {0}
                assert_lost(block, 0, known[row])
                known[row] = [row, known[row][1] + 1, 0]
                assert first_observed(block) == [known[row]]
                lost += 1
            else:
                known[row][2] += 1
                assert (report.lost, observed(block)) == (set(), [known[row]])
    assert lost > 5
    assert pool.stats()["restarts"] == lost
