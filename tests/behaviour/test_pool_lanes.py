"""Pools in several threads: lanes side by side, lanes beside batches, and what a second thread may not."""

from __future__ import annotations

import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import cloudpickle
import pools
import pytest
import tensordict_waiting_envs
import torch
import waiting_envs
from engines import EVERY_ENGINE
from pools import BACKENDS, STEP_VERBS, Verb, acting_pool
from tensordict import TensorDict, TensorDictBase
from waiting_envs import await_entry, make_gates, release
from worker_processes import PATIENCE

for module in (sys.modules[__name__], waiting_envs, tensordict_waiting_envs, pools):
    cloudpickle.register_pickle_by_value(module)

NUM_ENVS = 6
ROUNDS = 40

WAYS = [(backend, kind) for backend in BACKENDS for kind in pools.ACTING]
if not EVERY_ENGINE:
    WAYS = [way for way in WAYS if way[0].in_process or way[1] == "gymnasium"]


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}")
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Acting envs that have not been started."""
    make_gates(NUM_ENVS, tmp_path)
    own = acting_pool(*request.param, NUM_ENVS, tmp_path)
    yield own
    own.shutdown(timeout=1.0)


@pytest.fixture
def pool(fresh: Any) -> Any:
    """The same after a reset."""
    fresh.reset()
    return fresh


@pytest.fixture(autouse=True)
def often_interrupted() -> Iterator[None]:
    """Threads take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as own:
        yield own


def action_of(row: int, number: int) -> int:
    return (row + number) % 5


def lane(pool: Any, row: int, verb: Verb, rounds: int = ROUNDS) -> int:
    """One env's steps, in its lane; how many there were."""
    for number in range(1, rounds + 1):
        action = torch.tensor(action_of(row, number))
        verb.send(pool, TensorDict(action=action, mine=torch.tensor(100 * row + number)), env_index=row)
        td = verb.recv(pool, env_index=row, timeout=PATIENCE)
        check(td, row, number)
    return rounds


def check(td: TensorDictBase, row: int, number: int) -> None:
    """A transition is that of this env's step of this number, with what it was given."""
    assert td["env_index"].item() == row
    assert td["next", "observation"].tolist() == [row, number]
    assert td["next", "reward"].item() == td["action"].item() == action_of(row, number)
    assert td["mine"].item() == 100 * row + number


def batches(pool: Any, rows: list[int], verb: Verb, rounds: int = ROUNDS) -> int:
    """Some envs' steps, in batches; how many there were."""
    counts = dict.fromkeys(rows, 1)
    idle = [*rows]
    taken = 0
    while True:
        idle = [row for row in idle if counts[row] <= rounds]
        if idle:
            numbers = [counts[row] for row in idle]
            pairs = [*zip(idle, numbers, strict=True)]
            work = TensorDict(
                action=torch.tensor([action_of(*pair) for pair in pairs]),
                mine=torch.tensor([100 * row + number for row, number in pairs]),
                batch_size=[len(pairs)],
            )
            verb.send(pool, work, idle)
        if taken == rounds * len(rows):
            return taken
        got = verb.recv(pool, timeout=PATIENCE, max_get=len(rows) // 2)
        idle = [int(row) for row in got["env_index"]]
        for row, td in zip(idle, got.unbind(0), strict=True):
            check(td, row, counts[row])
            counts[row] += 1
            taken += 1


@pytest.mark.parametrize("verb", STEP_VERBS, ids=str)
def test_threads_with_a_lane_each_and_one_with_batches(pool: Any, threads: ThreadPoolExecutor, verb: Verb) -> None:
    """Each gets its own transitions, all of them, in order."""
    running = [threads.submit(lane, pool, row, verb) for row in (1, 4, 5)]
    running.append(threads.submit(batches, pool, [0, 2, 3], verb))
    assert [each.result(PATIENCE) for each in running] == [ROUNDS] * 3 + [3 * ROUNDS]
    assert not pool._calls.busy
    assert pool.steps == [ROUNDS] * NUM_ENVS
    pool.reset()


def test_resets_and_steps_in_lanes(pool: Any, threads: ThreadPoolExecutor) -> None:
    """Threads take turns with an env, too: a lane is anybody's once it is received."""

    def run(row: int) -> None:
        for number in range(ROUNDS):
            pool.async_reset_send(env_index=row)
            td = pool.async_reset_recv(env_index=row, timeout=PATIENCE)
            assert td["observation"].tolist() == [row, 0]
            pool.async_step_send(td.set("action", torch.tensor(number % 5)), env_index=row)
            td = pool.async_step_recv(env_index=row, timeout=PATIENCE)
            assert td["next", "observation"].tolist() == [row, 1]
            assert td["next", "reward"].item() == number % 5

    for shift in range(2):
        for each in [threads.submit(run, (row + shift) % NUM_ENVS) for row in range(NUM_ENVS)]:
            each.result(PATIENCE)
    assert not pool._calls.busy


def test_the_first_use_may_be_in_several_threads(fresh: Any, threads: ThreadPoolExecutor) -> None:
    """One starts the envs, once, and the others wait for that."""
    together = threading.Barrier(NUM_ENVS)

    def run(row: int) -> int:
        together.wait(PATIENCE)
        fresh.async_reset_send(env_index=row)
        td = fresh.async_reset_recv(env_index=row, timeout=PATIENCE)
        assert td["observation"].tolist() == [row, 0]
        return lane(fresh, row, STEP_VERBS[0], 3)

    assert [each.result(PATIENCE) for each in [threads.submit(run, row) for row in range(NUM_ENVS)]] == [3] * NUM_ENVS
    assert fresh.steps == [3] * NUM_ENVS


def test_of_two_threads_that_send_to_one_env_one_is_refused(pool: Any, threads: ThreadPoolExecutor) -> None:
    """Whichever: never both, and never none."""
    for number in range(1, ROUNDS + 1):
        together = threading.Barrier(3)

        def send(in_lane: bool, together: threading.Barrier = together) -> bool:
            work = TensorDict(action=torch.tensor(1))
            together.wait(PATIENCE)
            try:
                if in_lane:
                    pool.async_step_send(work, env_index=0)
                else:
                    pool.async_step_send(work.unsqueeze(0), env_index=[0])
            except RuntimeError:
                return False
            return True

        sent = [each.result(PATIENCE) for each in [threads.submit(send, how) for how in (True, True, False)]]
        assert sent.count(True) == 1
        td = (
            pool.async_step_recv(timeout=PATIENCE)[0]
            if sent[2]
            else pool.async_step_recv(env_index=0, timeout=PATIENCE)
        )
        assert td["next", "observation"].tolist() == [0, number]
        assert not pool._calls.busy


def test_a_lane_is_received_in_one_thread_at_a_time(pool: Any, threads: ThreadPoolExecutor, tmp_path: Path) -> None:
    """The second is told, and the first gets it."""
    pool.set_attr("act", "tell and wait")
    pool.async_step_send(TensorDict(action=torch.tensor(3)), env_index=2)
    await_entry(tmp_path, 2)
    both = [threads.submit(pool.async_step_recv, env_index=2) for _ in range(2)]
    refused = next(as_completed(both, PATIENCE))
    with pytest.raises(RuntimeError, match="async_step_recv: env 2 is being received already, in another thread"):
        refused.result()
    release(tmp_path, 2)
    (other,) = (each for each in both if each is not refused)
    assert other.result(PATIENCE)["next", "observation"].tolist() == [2, 1]


BATCH_CALLS: dict[str, Callable[[Any], Any]] = {
    "async_step_send": lambda pool: pool.async_step_send(TensorDict(action=torch.zeros(1), batch_size=[1]), [1]),
    "async_reset_send": lambda pool: pool.async_reset_send(env_index=[1]),
    "async_step_recv": lambda pool: pool.async_step_recv(),
    "async_reset_recv": lambda pool: pool.async_reset_recv(timeout=0),
    "reset": lambda pool: pool.reset(),
    "rollout": lambda pool: pool.rollout(2),
    "set_seed": lambda pool: pool.set_seed(1),
}


def test_a_second_thread_in_the_batch_calls_is_refused(pool: Any, threads: ThreadPoolExecutor, tmp_path: Path) -> None:
    """The first gets its own; lanes go on meanwhile."""
    pool.set_attr("act", ["tell and wait", *[""] * (NUM_ENVS - 1)])
    pool.async_step_send(TensorDict(action=torch.tensor([4]), batch_size=[1]), [0])
    receiving = threads.submit(pool.async_step_recv)
    await_entry(tmp_path, 0)
    while pool._call_under_way is None:
        assert not receiving.done()
    for name, call in BATCH_CALLS.items():
        with pytest.raises(RuntimeError, match="refused while a call of async_step_recv is under way"):
            call(pool)
        assert pool._call_under_way == "async_step_recv", name
    assert lane(pool, 3, STEP_VERBS[0], 3) == 3
    release(tmp_path, 0)
    assert receiving.result(PATIENCE)["next", "reward"].item() == 4
    assert not pool._calls.busy


@pytest.mark.parametrize("end", ["shutdown", "close"])
def test_a_lane_that_waits_ends_with_an_error_when_the_pool_does(
    pool: Any, threads: ThreadPoolExecutor, tmp_path: Path, end: str
) -> None:
    """However long its env would take; the next use starts the pool again."""
    pool.set_attr("act", "tell and wait")
    waiting = []
    for row in (1, 3):
        pool.async_step_send(TensorDict(action=torch.tensor(3)), env_index=row)
        await_entry(tmp_path, row)
        waiting.append(threads.submit(pool.async_step_recv, env_index=row))
    while len(pool._calls._received_lanes) < 2:
        assert not any(each.done() for each in waiting)
    in_process = pool.backend not in ("multiprocessing", "ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of envs that were killed, or left behind
        if end == "shutdown":
            pool.shutdown(timeout=0.05)
        else:
            pool._shutdown_timeout = pool.engine.shutdown_timeout = 0.05
            pool.close()
    errors = [each.exception(PATIENCE) for each in waiting]
    if in_process:
        for row in (1, 3):
            release(tmp_path, row)
    for error in errors:
        assert isinstance(error, RuntimeError), "".join(traceback.format_exception(error))
    pool.async_reset_send(env_index=1)
    assert pool.async_reset_recv(env_index=1, timeout=PATIENCE)["observation"].tolist() == [1, 0]


def test_lanes_that_are_at_work_while_the_pool_ends(pool: Any, threads: ThreadPoolExecutor) -> None:
    """Each ends with an error or a start of its own: none hangs."""
    together = threading.Barrier(NUM_ENVS + 1)
    stop = threading.Event()

    def run(row: int) -> str:
        together.wait(PATIENCE)
        while not stop.is_set():
            try:
                pool.async_step_send(TensorDict(action=torch.tensor(1)), env_index=row)
                pool.async_step_recv(env_index=row)
            except Exception as error:
                return type(error).__name__
        return ""

    running = [threads.submit(run, row) for row in range(NUM_ENVS)]
    together.wait(PATIENCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pool.shutdown(timeout=PATIENCE)
    stop.set()
    for each in running:
        each.result(PATIENCE)
