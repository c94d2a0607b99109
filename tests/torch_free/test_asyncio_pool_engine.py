"""``AsyncioPoolEngine``: envs of coroutines on one event loop, beside plain ones; nothing is lost, whatever happens."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from interrupts import interrupted
from started_threads import have_ended, new_threads
from waiting_envs import ActingEnv, acting, closed_envs, make_gates, release
from worker_processes import PATIENCE, run_script

from gymbridge.engine.arrivals import Arrivals
from gymbridge.engine.asyncio_pool import AsyncioPoolEngine
from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.host import IN_BLOCK, NOTHING
from gymbridge.engine.local import LocalEngine
from gymbridge.errors import CallTimeoutError, EnvOutputError, WorkerDiedError, WorkerStartError

RESET, STEP, STEP_MAYBE_RESET = Op.RESET, Op.STEP, Op.STEP_MAYBE_RESET
INFOS = GymHostOptions.for_gymnasium(np.dtype(np.float64))


class AwaitingEnv(gym.Env[Any, Any]):
    """Observes its index and its steps; its reward is the action. A test gives it more to do.

    Args:
        index: of the env.

    Attributes:
        gate: awaited in the next step, if it is set.
        deed: called in each step.
        closing: called in ``close``.
    """

    observation_space = gym.spaces.Box(0, 1000, (2,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, index: int = 0):
        self.index = index
        self.steps = 0
        self.gate: concurrent.futures.Future[None] | None = None
        self.deed: Callable[[], Any] = lambda: None
        self.closing: Callable[[], Any] = lambda: None
        self.closed = 0

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        await asyncio.sleep(0)
        self.steps = 0
        return self._observation(), {"options": options} if options else {}

    async def step(self, action: Any) -> Any:
        self.steps += 1
        if self.gate is not None:
            await asyncio.wrap_future(self.gate)
        else:
            await asyncio.sleep(0)
        done = self.deed()
        if asyncio.iscoroutine(done):
            await done
        return self._observation(), float(action), False, False, {}

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1
        self.closing()

    async def told_later(self, number: int) -> int:
        await asyncio.sleep(0)
        return number + self.index

    def _observation(self) -> np.ndarray:
        return np.array([self.index, self.steps], np.float32)


Pool = AsyncioPoolEngine[Any]


def open_pool(envs: list[Any], **options: Any) -> Pool:
    """A pool of envs that have been reset."""
    pool: Pool = AsyncioPoolEngine([partial(lambda env: env, env) for env in envs], INFOS, **options)
    pool.allocate()
    pool.run(bytes([RESET] * len(envs)), None)
    return pool


@pytest.fixture
def envs() -> list[AwaitingEnv]:
    return [AwaitingEnv(index) for index in range(3)]


@pytest.fixture
def pool(envs: list[AwaitingEnv]) -> Iterator[Pool]:
    pool = open_pool(envs)
    yield pool
    pool.close(terminate=True)


def step(pool: Pool, rows: list[int], actions: list[int] | None = None, **options: Any) -> None:
    pool.submit(rows, bytes([STEP]) * len(rows), [np.array(actions or [0] * len(rows))], **options)


def taken(pool: Pool, rows: list[int]) -> tuple[Any, Block]:
    """The report of rows, and the block with what they gave."""
    block = Block(pool.block.layout.rows(0, len(rows)))
    return pool.take(rows, block), block


def observed(block: Block) -> list[list[float]]:
    """Index and step of each env."""
    observations: list[list[float]] = block.next["observation",].tolist()
    return observations


def gate_of(env: AwaitingEnv) -> concurrent.futures.Future[None]:
    """Has the env's steps wait, until it is opened with ``set_result``."""
    env.gate = concurrent.futures.Future()
    return env.gate


# ---------------------------------------------------------------- as the envs in turn


class Awaiting(gym.Wrapper[Any, Any, Any, Any]):
    """A plain env as one of coroutines."""

    async def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.env.reset(**kwargs)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return self.env.step(action)


class SameArray(gym.Wrapper[Any, Any, Any, Any]):
    """Gives one array again and again, as envs that spare memory do."""

    def __init__(self, env: Any):
        super().__init__(env)
        self.array = np.zeros(env.observation_space.shape, env.observation_space.dtype)

    def _in_array(self, observation: Any) -> Any:
        self.array[...] = observation
        return self.array

    def reset(self, **kwargs: Any) -> Any:
        observation, info = self.env.reset(**kwargs)
        return self._in_array(observation), info

    def step(self, action: Any) -> Any:
        observation, *rest = self.env.step(action)
        return self._in_array(observation), *rest


MAKERS: dict[str, Callable[[], Any]] = {
    "arrays": lambda: gym.make("CartPole-v1", max_episode_steps=12),
    "one array": lambda: SameArray(gym.make("CartPole-v1", max_episode_steps=7)),
    "infos": lambda: gym.make("FrozenLake-v1", max_episode_steps=9),
    "box actions": lambda: gym.make("Pendulum-v1", max_episode_steps=5),
    "dicts": lambda: (
        gym.wrappers.FlattenObservation(gym.make("CartPole-v1"))
        if False
        else gym.wrappers.TransformObservation(
            gym.make("CartPole-v1", max_episode_steps=6),
            lambda observation: {"half": observation[:2], "rest": observation[2:]},
            gym.spaces.Dict(half=gym.spaces.Box(-10, 10, (2,)), rest=gym.spaces.Box(-10, 10, (2,))),
        )
    ),
}
"""Of real envs, whose episodes end within a few steps."""


def assert_like(one: Block, other: Block, rows: list[int], number: int) -> None:
    """The first rows of one block are these rows of the other."""
    for section in ("next", "root"):
        for key, array in getattr(one, section).items():
            if key[0] != "_infos":
                np.testing.assert_array_equal(array[:number], getattr(other, section)[key][rows], err_msg=str(key))
    for name in ("state", "source"):
        assert getattr(one, name).tolist()[:number] == [getattr(other, name)[row] for row in rows]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("op", [STEP, STEP_MAYBE_RESET])
def test_what_envs_give_is_what_they_give_in_turn(kind: str, op: Op) -> None:
    """Coroutines and plain envs, mixed; over some rows at a time, for equal seeds and actions."""
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)
    random = np.random.default_rng(seed)
    make = MAKERS[kind]
    local: LocalEngine[Any, Any] = LocalEngine([make() for _ in range(5)], INFOS)
    pool: Pool = AsyncioPoolEngine([lambda: Awaiting(make()), make, lambda: Awaiting(make()), make, make], INFOS)
    for engine in (local, pool):
        engine.allocate()
        for row in range(5):
            engine.seed(row, seed + row, False)
    try:
        local.run(bytes([RESET] * 5), None)
        pool.submit([3, 1, 0, 2, 4], bytes([RESET] * 5), None)
        pool.wait(5)
        _, block = taken(pool, [0, 1, 2, 3, 4])
        assert_like(block, local.block, [0, 1, 2, 3, 4], 5)
        space = local.descriptions[0].action_space
        space.seed(seed)
        for _ in range(60):
            number = int(random.integers(1, 6))
            rows = random.permutation(5)[:number].tolist()
            ops = bytearray(5)
            for row in rows:
                needs_reset = local.block.state[row] != RowState.RUNNING
                ops[row] = RESET if needs_reset or random.random() < 0.1 else op
            actions = np.array([space.sample() for _ in range(5)])
            kwargs: list[dict[str, Any]] = [{"seed": int(random.integers(99))} if row % 2 else {} for row in range(5)]
            expected = local.run(bytes(ops), [actions], kwargs)
            pool.submit(rows, bytes(ops[row] for row in rows), [actions[rows]], [kwargs[row] for row in rows])
            assert sorted(pool.wait(number)) == sorted(rows)
            report, block = taken(pool, rows)
            assert_like(block, local.block, rows, number)
            assert not report.errors
            for mine, theirs in ((report.steps, expected.steps), (report.resets, expected.resets)):
                assert {rows[index]: info for index, info in mine.items()}.keys() == theirs.keys()
                for index, info in mine.items():
                    np.testing.assert_equal(info, theirs[rows[index]])
            ops = bytearray(RESET if state != RowState.RUNNING else op for state in local.block.state)
            whole, mine = local.run(bytes(ops), [actions], kwargs), pool.run(bytes(ops), [actions], kwargs)
            assert_like(pool.block, local.block, [*range(5)], 5)
            assert (mine.steps.keys(), mine.resets.keys()) == (whole.steps.keys(), whole.resets.keys())
    finally:
        pool.close()
        local.close()


# ---------------------------------------------------------------- at the same time


@pytest.mark.parametrize("call", ["submit", "run", "each"])
def test_coroutines_and_plain_envs_are_all_at_it_at_once(call: str) -> None:
    """Each waits for all others."""
    all_there = threading.Barrier(5, timeout=PATIENCE)

    class Plain(ActingEnv):
        def step(self, action: Any) -> Any:
            self.meet()
            return super().step(action)

        def meet(self) -> bool:
            return all_there.wait() >= 0

    class Meeting(AwaitingEnv):
        async def step(self, action: Any) -> Any:
            await self.meet()
            return await super().step(action)

        async def meet(self) -> bool:
            return await asyncio.to_thread(all_there.wait) >= 0

    pool = open_pool([Meeting(0), Meeting(1), Meeting(2), Plain(3), Plain(4)])
    if call == "submit":
        step(pool, [0, 1, 2, 3, 4])
        assert sorted(pool.wait(5, PATIENCE)) == [0, 1, 2, 3, 4]
        assert not taken(pool, [0, 1, 2, 3, 4])[0].errors
    elif call == "run":
        assert not pool.run(bytes([STEP] * 5), [np.zeros(5, np.int64)]).errors
    else:
        assert pool.each("call", [("meet",)] * 5) == [True] * 5
    pool.close()


def test_five_hundred_envs_on_one_loop() -> None:
    """Each of which waits until the last has come, in one thread."""
    come: list[int] = []
    everybody: list[asyncio.Event] = []

    class Waiting(AwaitingEnv):
        def __init__(self, index: int):
            super().__init__(index)
            if not everybody:
                everybody.append(asyncio.Event())  # of the loop that is running

        async def step(self, action: Any) -> Any:
            come.append(self.index)
            if len(come) == 500:
                everybody[0].set()
            await everybody[0].wait()
            return await super().step(action)

    with new_threads() as threads:
        pool: Pool = AsyncioPoolEngine([partial(Waiting, index) for index in range(500)], INFOS)
    pool.allocate()
    pool.run(bytes([RESET] * 500), None)
    step(pool, [*range(500)], [index % 5 for index in range(500)])
    assert len(pool.wait(500, PATIENCE)) == 500
    _, block = taken(pool, [*range(499, -1, -1)])
    assert observed(block) == [[index, 1] for index in range(499, -1, -1)]
    assert block.next["reward",].tolist() == [index % 5 for index in range(499, -1, -1)]
    pool.close()
    assert have_ended(threads)
    assert len(threads) == 1


# ---------------------------------------------------------------- work


def test_rows_come_as_they_are_ready_and_in_the_order_asked_for(pool: Pool, envs: list[AwaitingEnv]) -> None:
    gate = gate_of(envs[1])
    step(pool, [0, 1, 2], [1, 2, 3])
    assert sorted(pool.wait(2)) == [0, 2]
    report, block = taken(pool, [2, 0])
    assert report is NOTHING
    assert observed(block) == [[2, 1], [0, 1]]
    assert block.next["reward",].tolist() == [3, 1]
    assert pool.busy == {1}
    with pytest.raises(ValueError, match=r"envs \[1, 2\] have no results that are ready"):
        taken(pool, [1, 2])

    step(pool, [2], [4])
    assert pool.wait(1) == [2]
    gate.set_result(None)
    assert pool.wait(2) == [2, 1]
    _, block = taken(pool, [1, 2])
    assert observed(block) == [[1, 1], [2, 2]]
    assert not pool.busy


def test_a_time_out_loses_nothing(pool: Pool, envs: list[AwaitingEnv]) -> None:
    gates = {row: gate_of(envs[row]) for row in (0, 1)}
    step(pool, [0, 1, 2])
    assert pool.wait(1) == [2]
    assert pool.wait(3, timeout=0.01) == [2]
    assert pool.wait(0, timeout=0) == [2]
    gates[1].set_result(None)
    assert pool.wait(2) == [2, 1]
    gates[0].set_result(None)
    assert pool.wait(3) == [2, 1, 0]
    assert observed(taken(pool, [0, 1, 2])[1]) == [[0, 1], [1, 1], [2, 1]]
    with pytest.raises(ValueError, match="least: got 1, expected at most 0"):
        pool.wait(1)


def test_a_busy_env_is_refused_by_name_and_the_others_have_not_begun(pool: Pool) -> None:
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


def test_lanes_are_waited_for_by_themselves(pool: Pool, envs: list[AwaitingEnv]) -> None:
    gate = gate_of(envs[0])
    step(pool, [0], [4], lane=True)
    step(pool, [1, 2])
    assert sorted(pool.wait(2)) == [1, 2]
    with pytest.raises(CallTimeoutError, match="env 0 did not come to its end"):
        pool.wait_for(0, timeout=0.001)
    with pytest.raises(ValueError, match="env 1 has no work under way in a lane"):
        pool.wait_for(1)
    gate.set_result(None)
    pool.wait_for(0)
    assert taken(pool, [0])[1].next["reward",].tolist() == [4]
    assert sorted(pool.busy) == [1, 2]


def test_threads_may_each_have_a_lane() -> None:
    """While this thread hears other envs as a batch; each transition once and in order."""
    pool = open_pool([AwaitingEnv(0), AwaitingEnv(1), ActingEnv(2), AwaitingEnv(3), ActingEnv(4)])
    seen: dict[int, list[float]] = {0: [], 1: [], 2: []}

    def drive(row: int) -> None:
        for _ in range(100):
            step(pool, [row], lane=True)
            pool.wait_for(row, PATIENCE)
            _, block = taken(pool, [row])
            assert observed(block)[0][0] == row
            seen[row].append(observed(block)[0][1])

    threads = [threading.Thread(target=drive, args=(row,)) for row in seen]
    for thread in threads:
        thread.start()
    for number in range(100):
        step(pool, [3, 4])
        assert sorted(pool.wait(2, PATIENCE)) == [3, 4]
        assert observed(taken(pool, [3, 4])[1]) == [[3, number + 1], [4, number + 1]]
    for thread in threads:
        thread.join()
    assert seen == {row: [*range(1, 101)] for row in seen}
    pool.close()


def test_what_the_caller_does_later_with_what_it_gave_no_env_sees(pool: Pool, envs: list[AwaitingEnv]) -> None:
    """Also what could not be pickled arrives, as the very object."""
    gate = gate_of(envs[0])
    actions, lock = np.array([3]), threading.Lock()
    pool.submit([0], bytes([STEP]), [actions])
    actions[:] = 1
    gate.set_result(None)
    pool.wait(1)
    assert taken(pool, [0])[1].next["reward",].tolist() == [3]

    options = {"lock": lock, "arrays": [(actions,)]}
    kwargs = [{"options": options}]
    pool.submit([0], bytes([RESET]), None, kwargs)
    actions[:] = 7
    options["more"] = True
    pool.wait(1)
    given = taken(pool, [0])[0].resets[0]["options"]
    assert given["lock"] is lock
    assert set(given) == {"lock", "arrays"}
    assert given["arrays"][0][0].tolist() == [1]


def test_infos_of_numbers_come_in_the_block(pool: Pool) -> None:
    pool.submit([1], bytes([RESET]), None, [{"options": {"level": 3}}])
    pool.wait(1)
    assert taken(pool, [1])[0] is IN_BLOCK


def test_verbs_of_rows() -> None:
    """Of envs of either kind; a method may be a coroutine."""
    pool = open_pool([AwaitingEnv(0), ActingEnv(1), AwaitingEnv(2)])
    pool.set_attribute(2, "index", 7)
    assert pool.each("attribute", [("index",)] * 3) == [0, 1, 7]
    assert pool.call(2, "told_later", (4,)) == 11
    assert pool.follow(2, ("told_later",), ((4,), {})) == 11
    for row in (0, 1):
        pool.seed(row, 5, False)
        pool.submit([row], bytes([RESET]), None)
        pool.wait(1)
        taken(pool, [row])
    assert pool.state(0)["np_random"] == pool.state(1)["np_random"]
    pool.call(1, "__setattr__", ("steps", 3))
    pool.load_state(2, pool.state(1))
    assert pool.state(2)["np_random"] == pool.state(1)["np_random"]
    with pytest.raises(AttributeError) as raised:
        pool.ask("attribute", 2, "missing")
    assert raised.value.env_index == 2  # type: ignore[attr-defined]
    pool.close()


def test_a_check_of_outputs_awaits_them() -> None:
    """Though what looks at them knows of no coroutines; the env's own calls of its coroutines go on."""

    class Faulty(AwaitingEnv):
        async def reset(self, **kwargs: Any) -> Any:
            await self.step(0)
            return await super().reset(**kwargs)

        def _observation(self) -> np.ndarray:
            return np.zeros(3, np.float32)

    pool: Pool = AsyncioPoolEngine([AwaitingEnv, Faulty, ActingEnv], INFOS)
    pool.allocate()
    faults = pool.each("faults", [(3, 0)] * 3)
    assert (faults[0], faults[2]) == ([], [])
    assert faults[1] == [f"{name}: observation: got shape (3,), expected (2,)" for name in ("reset", "step")]
    pool.run(bytes([RESET, 0, RESET]), None)
    assert not pool.run(bytes([STEP, 0, STEP]), [np.zeros(3, np.int64)]).errors
    pool.close()


def test_what_envs_say_of_themselves_is_the_callers_own(pool: Pool) -> None:
    space = pool.descriptions[0].action_space
    assert space == AwaitingEnv.action_space
    assert space is not AwaitingEnv.action_space


def test_envs_are_made_and_called_on_the_loop() -> None:
    """In one thread, in which that loop runs; a maker may be a coroutine."""
    loops: list[asyncio.AbstractEventLoop] = []

    class Bound(AwaitingEnv):
        def __init__(self, index: int = 0):
            super().__init__(index)
            loops.append(asyncio.get_running_loop())
            self.lock = asyncio.Lock()

        async def step(self, action: Any) -> Any:
            async with self.lock:
                loops.append(asyncio.get_running_loop())
                return await super().step(action)

    async def make(index: int) -> Any:
        await asyncio.sleep(0)
        return Bound(index)

    pool: Pool = AsyncioPoolEngine([Bound, partial(make, 1), partial(make, 2)], INFOS)
    pool.allocate()
    pool.run(bytes([RESET] * 3), None)
    pool.run(bytes([STEP] * 3), [np.zeros(3, np.int64)])
    assert observed(pool.block) == [[0, 1], [1, 1], [2, 1]]
    assert len(loops) == 6
    assert len({*loops}) == 1
    pool.close()


# ---------------------------------------------------------------- awaited


def test_it_is_awaited_on_the_callers_own_loop(pool: Pool, envs: list[AwaitingEnv]) -> None:
    """Batches and lanes, while others go on there."""
    gates = [gate_of(env) for env in envs]

    async def main() -> None:
        step(pool, [0, 1])
        step(pool, [2], lane=True)
        batch, lane = asyncio.create_task(pool.wait_async(2)), asyncio.create_task(pool.wait_for_async(2))
        await asyncio.sleep(0)
        assert not batch.done()
        gates[1].set_result(None)
        gates[0].set_result(None)
        assert sorted(await batch) == [0, 1]
        assert not lane.done()
        with pytest.raises(CallTimeoutError):
            await pool.wait_for_async(2, timeout=0.001)
        assert await pool.wait_async(0) == pool.wait(0)
        lane.cancel()
        gates[2].set_result(None)
        await pool.wait_for_async(2, PATIENCE)
        assert await pool.wait_async(2, timeout=0) == pool.wait(2)

    asyncio.run(main())
    assert observed(taken(pool, [0, 1, 2])[1]) == [[0, 1], [1, 1], [2, 1]]


def test_a_cancellation_or_a_time_out_of_an_await_loses_nothing(pool: Pool, envs: list[AwaitingEnv]) -> None:
    gate = gate_of(envs[0])

    async def main() -> None:
        step(pool, [0, 1])
        waiting = asyncio.create_task(pool.wait_async(2))
        assert await pool.wait_async(1, PATIENCE) == [1]
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await pool.wait_async(2, timeout=0.001) == [1]
        gate.set_result(None)
        assert await pool.wait_async(2, PATIENCE) == [1, 0]

    asyncio.run(main())
    assert observed(taken(pool, [0, 1])[1]) == [[0, 1], [1, 1]]


def test_awaits_and_waits_take_turns(pool: Pool) -> None:
    async def main() -> None:
        for number in range(100):
            step(pool, [0, 1, 2])
            if number % 2:
                await pool.wait_async(1)
            assert sorted(pool.wait(3) if number % 3 else await pool.wait_async(3)) == [0, 1, 2]
            assert observed(taken(pool, [0, 1, 2])[1]) == [[row, number + 1] for row in range(3)]

    asyncio.run(main())


def test_who_comes_late_wakes_nobody_by_mistake() -> None:
    """A loop that waited is closed, or waits for something else: the next wait counts anew."""
    arrivals = Arrivals()

    async def wait() -> bool:
        return await arrivals.wait_async(1, 0.0)

    assert not asyncio.run(wait())
    arrivals.add("a")
    assert asyncio.run(wait())
    assert not arrivals.wait(2, 0.0)
    arrivals.add("b")
    assert arrivals.wait(2, None)


# ---------------------------------------------------------------- errors and deaths


def raising(error: BaseException) -> Callable[[], Any]:
    def deed() -> Any:
        raise error

    return deed


def test_errors_are_those_of_their_row_and_the_others_stay_ready(pool: Pool, envs: list[AwaitingEnv]) -> None:
    """Of several the first asked for is taken alone, as the very object; the env goes on after a reset."""
    errors = {row: LookupError(row) for row in (1, 2)}
    for row, error in errors.items():
        envs[row].deed = raising(error)
    step(pool, [0, 1, 2])
    pool.wait(3)
    report, _ = taken(pool, [0, 2, 1])
    assert report.errors == {1: errors[2]}
    assert report.errors[1] is errors[2]
    assert pool.block.state[2] == RowState.FAILED
    assert pool.busy == {0, 1}
    assert sorted(pool.wait(2)) == [0, 1]
    report, block = taken(pool, [0, 1])
    assert report.errors == {1: errors[1]}
    assert pool.wait(1) == [0]
    report, block = taken(pool, [0])
    assert report is NOTHING
    assert observed(block) == [[0, 1]]
    envs[2].deed = lambda: None
    pool.submit([2], bytes([RESET]), None, [{"options": {"a": "b"}}])
    pool.wait(1)
    report, block = taken(pool, [2])
    assert dict(report.resets) == {0: {"options": {"a": "b"}}}
    assert block.state[0] == RowState.RUNNING
    with pytest.raises(LookupError) as raised:
        pool.call(1, "deed")
    assert raised.value is errors[1]


def test_what_a_run_raises_is_all_in_its_report(pool: Pool, envs: list[AwaitingEnv]) -> None:
    errors = {row: LookupError(row) for row in (0, 2)}
    for row, error in errors.items():
        envs[row].deed = raising(error)
    report = pool.run(bytes([STEP] * 3), [np.zeros(3, np.int64)])
    assert report.errors == errors
    assert pool.run(bytes([0, 0, STEP]), [np.zeros(3, np.int64)]).errors == {2: errors[2]}
    assert not pool.busy


def test_an_observation_that_does_not_fit_is_the_rows_error(pool: Pool, envs: list[AwaitingEnv]) -> None:
    envs[1]._observation = lambda: np.zeros(3)  # type: ignore[method-assign]
    step(pool, [1, 2])
    pool.wait(2)
    report, _ = taken(pool, [2, 1])
    assert isinstance(report.errors[1], EnvOutputError)
    assert observed(taken(pool, [2])[1]) == [[2, 1]]


def test_an_error_of_the_reset_after_an_end_leaves_the_step(pool: Pool, envs: list[AwaitingEnv]) -> None:
    class Ending(AwaitingEnv):
        async def step(self, action: Any) -> Any:
            return self._observation(), 2.5, True, False, {"why": "end"}

        async def reset(self, **kwargs: Any) -> Any:
            if self.closed < 0:
                raise LookupError("no reset")
            return await super().reset(**kwargs)

    env = Ending()
    pool = open_pool([env])
    env.closed = -1
    pool.submit([0], bytes([STEP_MAYBE_RESET]), [np.zeros(1, np.int64)])
    pool.wait(1)
    report, _ = taken(pool, [0])
    block = pool.block
    assert isinstance(report.errors[0], LookupError)
    assert report.steps == {0: {"why": "end"}}
    assert block.next["reward",].tolist() == [2.5]
    assert (block.state[0], block.next["terminated",].tolist()) == (RowState.FAILED, [True])
    pool.close()


@pytest.mark.parametrize(
    ("error", "code"),
    [(SystemExit(3), 3), (SystemExit(), 0), (KeyboardInterrupt(), 1), (asyncio.CancelledError(), 1)],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
@pytest.mark.parametrize("lane", [False, True])
@pytest.mark.parametrize("is_plain", [False, True])
def test_an_env_that_would_end_a_program_is_dead(error: BaseException, code: int, lane: bool, is_plain: bool) -> None:
    """And nobody else; its env is closed."""
    envs: list[Any] = [AwaitingEnv(0), ActingEnv(1) if is_plain else AwaitingEnv(1), AwaitingEnv(2)]
    pool = open_pool(envs)
    envs[1]._observation = raising(error)
    step(pool, [1], lane=lane)
    if lane:
        pool.wait_for(1, PATIENCE)
    else:
        assert pool.wait(1, PATIENCE) == [1]
    report, _ = taken(pool, [1])
    death = report.errors[0]
    assert isinstance(death, WorkerDiedError)
    assert (death.env_indices, death.exit_code, death.__cause__) == ((1,), code, error)
    for refused in (
        lambda: step(pool, [0, 1]),
        lambda: pool.attribute(1, "index"),
        lambda: pool.require_workers(),
        lambda: pool.require_workers([1]),
        lambda: pool.run(bytes([STEP] * 3), [np.zeros(3, np.int64)]),
    ):
        with pytest.raises(WorkerDiedError):
            refused()
    pool.require_workers([0, 2])
    assert not pool.busy
    step(pool, [0, 2])
    pool.wait(2)
    assert observed(taken(pool, [0, 2])[1]) == [[0, 1], [2, 1]]
    assert not pool.run(bytes([STEP, 0, STEP]), [np.zeros(3, np.int64)]).errors
    pool.close()
    assert is_plain or envs[1].closed == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_task_of_an_env_that_would_end_a_program_ends_nothing(pool: Pool, envs: list[AwaitingEnv]) -> None:
    """The env itself hears of it, the loop goes on."""

    async def exits() -> None:
        raise SystemExit(3)

    tasks = []

    async def deed() -> None:
        tasks.append(asyncio.create_task(exits()))
        await asyncio.wait(tasks)

    envs[0].deed = deed
    for number in (1, 2):
        step(pool, [0, 1, 2])
        assert len(pool.wait(3, PATIENCE)) == 3
        assert observed(taken(pool, [0, 1, 2])[1]) == [[row, number] for row in range(3)]
    assert all(isinstance(task.exception(), SystemExit) for task in tasks)


def test_an_env_that_ends_in_a_call_is_dead(pool: Pool, envs: list[AwaitingEnv]) -> None:
    envs[1].deed = raising(SystemExit(3))
    with pytest.raises(WorkerDiedError, match="exit code 3"):
        pool.call(1, "deed")
    assert pool.attribute(2, "index") == 2


# ---------------------------------------------------------------- interrupts


class Interrupted(BaseException):
    """What a signal handler raises."""


@pytest.mark.parametrize("call", ["submit", "take", "run", "each"])
@pytest.mark.parametrize("is_plain", [False, True])
def test_an_interrupt_anywhere_fails_the_rows_at_most(call: str, is_plain: bool) -> None:
    """At each Python call of it in turn: what was begun is dropped, and the envs go on when they are reset."""
    pool = open_pool([ActingEnv(row) if is_plain else AwaitingEnv(row) for row in range(2)])
    calls: dict[str, Callable[[], object]] = {
        "submit": lambda: step(pool, [0, 1]),
        "take": lambda: taken(pool, [0, 1]),
        "run": lambda: pool.run(bytes([STEP] * 2), [np.zeros(2, np.int64)]),
        "each": lambda: pool.each("attribute", [("index",)] * 2),
    }
    number = 0
    done = False
    while not done:
        number += 1
        if call == "take":
            step(pool, [0, 1])
            pool.wait(2)
        done = not interrupted(calls[call], number, Interrupted, ("call", "c_call", "c_return"))[0]
        pool.wait(len(pool.busy), PATIENCE)  # those that the interrupt came too early or too late to touch
        taken(pool, sorted(pool.busy))
        pool.submit([0, 1], bytes([RESET] * 2), None)
        assert len(pool.wait(2, PATIENCE)) == 2
        report, block = taken(pool, [0, 1])
        assert not report.errors
        assert block.state.tolist()[:2] == [RowState.RUNNING] * 2
        step(pool, [0, 1])
        assert len(pool.wait(2, PATIENCE)) == 2
        assert observed(taken(pool, [0, 1])[1]) == [[0, 1], [1, 1]]
    assert number > 20
    pool.close()


def test_an_interrupt_anywhere_in_a_wait_loses_nothing(pool: Pool) -> None:
    number = 0
    done = False
    while not done:
        number += 1
        step(pool, [0, 1, 2])
        done = not interrupted(lambda: pool.wait(3), number, Interrupted, ("call", "c_call", "c_return"))[0]
        assert sorted(pool.wait(3, PATIENCE)) == [0, 1, 2]
        assert observed(taken(pool, [0, 1, 2])[1]) == [[row, number] for row in range(3)]
    assert number > 5


# ---------------------------------------------------------------- start and end


@pytest.mark.parametrize("wrap", [lambda env: gym.wrappers.TimeLimit(env, 5), gym.wrappers.RecordEpisodeStatistics])
def test_a_wrapper_that_does_not_await_is_refused_by_name(wrap: Any) -> None:
    envs = [AwaitingEnv(0), wrap(AwaitingEnv(1))]
    name = type(envs[1]).__name__
    with pytest.raises(TypeError, match=f"env 1: the wrapper {name} does not await the coroutines of AwaitingEnv"):
        open_pool(envs)
    assert envs[0].closed == envs[1].unwrapped.closed == 1


def test_wrappers_that_hand_on_or_await_are_taken() -> None:
    envs = [
        gym.wrappers.OrderEnforcing(AwaitingEnv(0)),
        gym.wrappers.TransformAction(AwaitingEnv(1), lambda action: action + 1, AwaitingEnv.action_space),
        Awaiting(gym.wrappers.TimeLimit(ActingEnv(2), 5)),
    ]
    pool = open_pool(envs)
    pool.run(bytes([STEP] * 3), [np.array([1, 1, 1])])
    assert pool.block.next["reward",].tolist() == [1, 2, 1]
    assert observed(pool.block) == [[0, 1], [1, 1], [2, 1]]
    pool.close()


@pytest.mark.parametrize("is_awaitable", [False, True])
@pytest.mark.parametrize("error", [LookupError("no such level"), SystemExit(3), asyncio.CancelledError()])
def test_what_a_maker_raises_comes_through_and_the_others_are_closed(error: BaseException, is_awaitable: bool) -> None:
    envs = [AwaitingEnv(0), AwaitingEnv(1)]
    hangs = asyncio.Event

    def fail() -> Any:
        raise error

    async def fail_later() -> Any:
        await asyncio.sleep(0)
        raise error

    async def never() -> Any:
        await hangs().wait()

    makers = [lambda: envs[0], *([never] if is_awaitable else [lambda: envs[1]])]
    with new_threads() as threads:
        if isinstance(error, Exception):
            with pytest.raises(LookupError) as raised:
                AsyncioPoolEngine([*makers, fail_later if is_awaitable else fail], INFOS)
            assert raised.value is error
            assert error.env_index == 2  # type: ignore[attr-defined]
        else:
            with pytest.raises(WorkerDiedError) as died:
                AsyncioPoolEngine([*makers, fail_later if is_awaitable else fail], INFOS)
            assert (died.value.env_indices, died.value.__cause__) == ((2,), error)
    assert have_ended(threads)
    assert envs[0].closed == 1
    assert is_awaitable or envs[1].closed == 1


def test_a_maker_that_gives_no_env_is_named() -> None:
    env = AwaitingEnv()
    with pytest.raises(TypeError, match="the maker of env 1 gave 3 of type int, expected a gymnasium"):
        AsyncioPoolEngine([lambda: env, lambda: 3], INFOS)
    assert env.closed == 1
    with pytest.raises(TypeError, match="the maker of env 0: got 3 of type int"):
        AsyncioPoolEngine([3], INFOS)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="got no maker"):
        AsyncioPoolEngine([], INFOS)


def test_makers_that_take_too_long_are_left_behind(tmp_path: Path) -> None:
    """One that blocks, whose env is closed once it is made; and one that is awaited; each has begun by then."""
    make_gates(1, tmp_path)
    with new_threads() as threads, pytest.raises(WorkerStartError, match=r"the envs \[0, 1\] were not made"):
        AsyncioPoolEngine([lambda: ActingEnv(0, tmp_path, "wait in init"), AwaitingEnv], INFOS, start_timeout=2.0)
    release(tmp_path, 0)
    assert have_ended(threads)
    assert closed_envs(tmp_path) == {0}

    env = AwaitingEnv()

    async def never() -> Any:
        await asyncio.Event().wait()

    with new_threads() as threads, pytest.raises(WorkerStartError, match=r"the envs \[1\] were not made"):
        AsyncioPoolEngine([lambda: env, never], INFOS, start_timeout=2.0)
    assert have_ended(threads)
    assert env.closed == 1


def test_close_waits_for_what_is_under_way(pool: Pool, envs: list[AwaitingEnv]) -> None:
    """And for results that nobody took; it closes each env once, and the second time does nothing."""
    gates = [gate_of(env) for env in envs[:2]]
    step(pool, [0, 1, 2])
    pool.wait(1)

    def open_gates() -> None:
        for gate in gates:
            gate.set_result(None)

    envs[2].closing = open_gates
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.close()
        pool.close()
    assert [env.closed for env in envs] == [1, 1, 1]
    with pytest.raises(RuntimeError, match="closed"):
        step(pool, [1])


def test_coroutines_that_do_not_end_in_time_are_cancelled_and_their_envs_closed() -> None:
    """Those that heed it; the loop ends whether they do or not."""
    envs = [AwaitingEnv(0), AwaitingEnv(1), AwaitingEnv(2)]
    heard = []

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                heard.append(1)
                if len(heard) > 3:
                    raise

    with new_threads() as threads:
        pool = open_pool(envs)
    gate_of(envs[0])
    envs[1].deed = stubborn
    step(pool, [0, 1])
    with pytest.warns(
        UserWarning, match=r"workers \[0, 1\] did not close the envs \[0, 1\] in time and were cancelled"
    ):
        pool.close(timeout=0.05)
    assert have_ended(threads)
    assert heard
    assert [env.closed for env in envs] == [1, 0, 1]


def test_threads_that_do_not_end_in_time_are_left_behind(tmp_path: Path) -> None:
    with new_threads() as threads:
        pool: Pool = AsyncioPoolEngine([*acting(2, tmp_path), AwaitingEnv], INFOS)
        pool.allocate()
        pool.run(bytes([RESET] * 3), None)
    pool.set_attribute(0, "act", "wait")
    step(pool, [0, 1, 2])
    pool.wait(2)
    with pytest.warns(UserWarning, match=r"workers \[0\] did not close the envs \[0\] in time and were left behind"):
        pool.close(timeout=0.05)
    assert closed_envs(tmp_path) == {1}
    release(tmp_path, 0)
    assert have_ended(threads)
    assert closed_envs(tmp_path) == {0, 1}


def test_a_loop_that_an_env_blocks_is_left_behind(envs: list[AwaitingEnv]) -> None:
    gate = threading.Event()
    with new_threads() as threads:
        pool = open_pool(envs)
    envs[0].deed = gate.wait
    step(pool, [0])
    with pytest.warns(UserWarning, match=r"did not close the envs \[0, 1, 2\] in time and were left behind"):
        pool.close(timeout=0.05)
    gate.set()
    assert have_ended(threads)
    assert [env.closed for env in envs] == [1, 1, 1]


def test_close_raises_what_an_env_raises_there(pool: Pool, envs: list[AwaitingEnv]) -> None:
    envs[1].closing = raising(OSError("cannot close"))
    with pytest.raises(OSError, match="cannot close") as raised:
        pool.close()
    assert raised.value.env_index == 1  # type: ignore[attr-defined]
    assert [env.closed for env in envs] == [1, 1, 1]


@pytest.mark.parametrize("is_under_way", [False, True])
def test_dropping_it_ends_the_loop_and_closes_the_envs(tmp_path: Path, is_under_way: bool) -> None:
    envs = [AwaitingEnv(0), AwaitingEnv(1)]
    with new_threads() as threads:
        pool = open_pool([*envs, *(make() for make in acting(1, tmp_path))])
    if is_under_way:
        gate_of(envs[0])
        step(pool, [0, 1])
    dropped = weakref.ref(pool)
    del pool
    gc.collect()
    assert dropped() is None
    assert len(threads) == 2  # the loop's, and that of the plain env
    assert have_ended(threads)
    assert [env.closed for env in envs] == [1, 1]
    assert closed_envs(tmp_path) == {0}


def test_with_terminate_nothing_is_waited_for(pool: Pool, envs: list[AwaitingEnv]) -> None:
    gate_of(envs[0])
    step(pool, [0])
    heard = threading.Event()
    envs[0].closing = heard.set
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.close(terminate=True)
    assert heard.wait(PATIENCE)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_of_the_process_disowns_the_loop(pool: Pool) -> None:
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
    """Of a pool that is held, idle or in the middle of something; and nothing of torch is imported."""
    script = """
import asyncio, sys
import gymnasium as gym, numpy as np
from gymbridge.engine.asyncio_pool import AsyncioPoolEngine
from gymbridge.engine.gym_host import GymHostOptions

class Env(gym.Env):
    observation_space = action_space = gym.spaces.Box(-1, 1)
    async def reset(self, **kwargs):
        await asyncio.Event().wait()
    async def step(self, action):
        pass
    async def close(self):
        print("closed\\n", end="")

class Plain(Env):
    def reset(self, **kwargs):
        pass
    def step(self, action):
        pass
    def close(self):
        print("closed\\n", end="")

pool = AsyncioPoolEngine([Env, Env, Plain], GymHostOptions())
pool.allocate()
pool.submit([1], bytes([1]), None)
print("end", sorted({"torch", "tensordict"} & set(sys.modules)))
"""
    assert run_script(tmp_path, script, subprocess_env).split() == ["end", "[]", "closed", "closed", "closed"]
