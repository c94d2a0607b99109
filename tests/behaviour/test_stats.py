"""``stats()``: what workers have done and where their time has gone, of every engine and front.

Times are compared with each other alone, while an env waits for the test: no clock decides.
"""

from __future__ import annotations

import pickle
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import mortal_envs
import pools
import pytest
import torch
import waiting_envs
import zoo
from engines import ON_RAY, WITH_WORKERS, Engine
from mortal_envs import DEATHS, GO, STEP_TIMEOUT, mortal
from pools import Backend, acting_pool
from tensordict import TensorDict
from tensordict_zoo import CountingTensorDictEnv
from waiting_envs import ActingEnv, await_entry, make_gates, release
from zoo import CountingEnv

from gymbridge import AsyncEnvPool, ParallelEnv, SerialEnv
from gymbridge.envs import GymEnv
from gymbridge.vector import AsyncVectorEnv, PoolVectorEnv, SyncVectorEnv, TensorDictVectorEnv, from_vector_env

for module in (mortal_envs, waiting_envs, zoo, pools):
    cloudpickle.register_pickle_by_value(module)

WORKER = ["steps", "wait_s", "step_s", "copy_s"]
PATIENCE = 60.0

needs_workers = pytest.mark.skipif(not WITH_WORKERS, reason="about worker processes")
not_on_ray = pytest.mark.skipif(ON_RAY, reason="about envs and engines that are elsewhere than in actors")


def steps_of(env: Any, **kwargs: Any) -> list[int]:
    """The steps of each worker."""
    return [worker["steps"] for worker in env.stats(**kwargs)["workers"]]


def workers_of(env: Any) -> list[list[int]]:
    """The rows of each worker."""
    num_envs = env.numel()
    if isinstance(env, AsyncEnvPool):
        return [[row] for row in range(num_envs)]
    if not isinstance(env, ParallelEnv):
        return [[*range(num_envs)]]
    return [[*part] for part in env.engine._crew.parts]  # type: ignore[attr-defined]


def require_sums(stats: dict[str, Any]) -> None:
    """Where nothing is under way, each worker's time is accounted for."""
    for worker in stats["workers"]:
        assert [*worker] == WORKER
        assert min(worker.values()) >= 0
        assert worker["wait_s"] + worker["step_s"] + worker["copy_s"] == pytest.approx(stats["seconds"], abs=1e-9)


# ---------------------------------------------------------------- steps are exact


def test_steps_of_random_programs_are_counted_one_by_one(engine: Engine) -> None:
    """Whole steps, steps and resets of parts, and counts that begin anew in between."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    env = engine.make(ActingEnv)
    shape = env.batch_size

    def mask() -> torch.Tensor:
        return torch.tensor([draw.random() < 0.5 for _ in range(env.numel())]).reshape(shape)

    td = env.reset()
    env.stats()
    workers = workers_of(env)
    expected: Counter[int] = Counter()
    for _ in range(40):
        deed = draw.choice(["step", "step_and_maybe_reset", "reset", "stats", "reset of all"])
        if deed == "stats":
            is_reset = draw.random() < 0.5
            assert steps_of(env, reset=is_reset) == [sum(expected[row] for row in rows) for rows in workers]
            if is_reset:
                expected.clear()
            continue
        if deed == "reset of all":
            td = env.reset()
        elif deed == "reset":
            td = env.reset(td.set("_reset", mask()))
        else:
            picked = torch.ones(shape, dtype=torch.bool)
            td = td.set("action", torch.zeros(shape, dtype=torch.int64))
            if draw.random() < 0.5:
                picked = mask()
                td.set("_step", picked)
            expected.update(torch.nonzero(picked.reshape(-1)).reshape(-1).tolist())
            td = env.step_mdp(env.step(td)) if deed == "step" else env.step_and_maybe_reset(td)[1]
    stats = env.stats()
    assert [worker["steps"] for worker in stats["workers"]] == [sum(expected[r] for r in rows) for rows in workers]
    require_sums(stats)
    env.close()


def test_resets_at_an_episodes_end_are_no_steps(engine: Engine) -> None:
    env = engine.make(CountingEnv)
    env.stats()
    env.rollout(11, break_when_any_done=False)
    stats = env.stats()
    assert [worker["steps"] for worker in stats["workers"]] == [11 * len(rows) for rows in workers_of(env)]
    assert all(worker["step_s"] > 0 and worker["copy_s"] > 0 for worker in stats["workers"])
    require_sums(stats)
    env.close()


def test_a_pool_counts_what_was_sent_in_batches_and_lanes(backend: Backend, kind: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    pool = acting_pool(backend, kind, 3)
    pool.reset()
    pool.stats()
    expected = [0, 0, 0]

    def give(rows: list[int]) -> Any:
        for row in rows:
            expected[row] += 1
        return TensorDict({"action": torch.zeros(len(rows), dtype=torch.int64)}, [len(rows)])

    for _ in range(12):
        rows = draw.sample(range(3), draw.randint(1, 3))
        pool.async_step_send(give(rows), env_index=rows)
        pool.async_step_recv(min_get=len(rows))
        row = draw.randrange(3)
        pool.async_step_and_maybe_reset_send(give([row])[0], env_index=row)
        pool.async_step_and_maybe_reset_recv(env_index=row)
        pool.async_reset_send(env_index=[row])
        pool.async_reset_recv()
        assert steps_of(pool) == expected
    pool.step(give([0, 1, 2]))
    stats = pool.stats()
    assert [worker["steps"] for worker in stats["workers"]] == expected
    assert stats["exchange"]["batches"] == 24
    require_sums(stats)
    pool.shutdown()


@not_on_ray
@pytest.mark.parametrize("make", [SerialEnv, pytest.param(ParallelEnv, marks=needs_workers)])
def test_an_env_that_is_a_batch_of_its_own_makes_one_step_a_call(make: Any) -> None:
    env = make(2, lambda: SerialEnv(3, CountingTensorDictEnv))
    env.stats()
    env.rollout(5, break_when_any_done=False)
    assert sum(steps_of(env)) == 10
    require_sums(env.stats())
    env.close()


@not_on_ray
def test_steps_that_raise_are_counted() -> None:
    env = SerialEnv(2, [partial(ActingEnv, 0), partial(ActingEnv, 1, None, "raise")])
    env.stats()
    td = env.reset().set("action", torch.zeros(2, dtype=torch.int64))
    with pytest.raises(LookupError):
        env.step(td)
    assert steps_of(env) == [2]
    require_sums(env.stats())
    env.close()


# ---------------------------------------------------------------- where the time goes


@contextmanager
def in_thread(work: Any) -> Iterator[threading.Thread]:
    """Has work done in a thread, which has ended after the context."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(PATIENCE)
        assert not thread.is_alive()


@not_on_ray
@pytest.mark.parametrize("make", [SerialEnv, pytest.param(partial(ParallelEnv, num_workers=2), marks=needs_workers)])
def test_a_worker_in_a_step_does_not_wait_and_the_step_has_the_time(make: Any, tmp_path: Path) -> None:
    """Asked in another thread than the one whose step is under way."""
    make_gates(2, tmp_path)
    env = make(2, [partial(ActingEnv, 0, tmp_path, "tell and wait"), partial(ActingEnv, 1, tmp_path)])
    td = env.reset().set("action", torch.zeros(2, dtype=torch.int64))
    env.stats()
    with in_thread(lambda: env.step(td)):
        try:
            await_entry(tmp_path, 0)
            one, other = env.stats(), env.stats()
        finally:
            release(tmp_path, 0)
    between = other["seconds"] - one["seconds"]
    assert between > 0
    assert other["workers"][0]["wait_s"] == one["workers"][0]["wait_s"]
    assert other["workers"][0]["step_s"] == one["workers"][0]["step_s"]  # it counts where it ends
    after = env.stats()
    assert after["workers"][0]["step_s"] >= between
    assert after["workers"][0]["copy_s"] < after["workers"][0]["step_s"]
    if len(after["workers"]) > 1:
        assert after["workers"][1]["wait_s"] >= between
    assert sum(steps_of(env)) == 2
    require_sums(after)
    env.close()


def test_an_env_of_a_pool_in_a_step_does_not_wait_and_the_others_do(
    backend: Backend, kind: str, tmp_path: Path
) -> None:
    make_gates(2, tmp_path)
    pool = acting_pool(backend, kind, 2, tmp_path, ["tell and wait"])
    pool.reset()
    pool.stats()
    pool.async_step_send(TensorDict({"action": torch.zeros(2, dtype=torch.int64)}, [2]))
    try:
        pool.async_step_recv(min_get=1, max_get=1)
        await_entry(tmp_path, 0)
        one, other = pool.stats(), pool.stats()
    finally:
        release(tmp_path, 0)
    between = other["seconds"] - one["seconds"]
    assert between > 0
    assert other["workers"][0]["wait_s"] == one["workers"][0]["wait_s"]
    assert other["workers"][1]["wait_s"] - one["workers"][1]["wait_s"] == pytest.approx(between, abs=1e-9)
    assert [worker["steps"] for worker in other["workers"]] == [0, 1]
    pool.async_step_recv()
    after = pool.stats()
    assert after["workers"][0]["step_s"] >= between
    assert [worker["steps"] for worker in after["workers"]] == [1, 1]
    pool.shutdown()


# ---------------------------------------------------------------- when it is asked


def test_nothing_is_counted_before_it_is_asked_for(engine: Engine) -> None:
    """The envs are called themselves, and workers are not told to count."""
    env = engine.make(CountingEnv)
    env.rollout(5, break_when_any_done=False)
    own: Any = env.engine
    host = getattr(own, "_host", None)
    if hasattr(host, "_called"):
        assert host._called is host.envs
    assert not any(own.block.is_counted)
    assert getattr(own, "_tallies", None) is None
    assert set(steps_of(env)) == {0}
    env.rollout(3, break_when_any_done=False)
    assert sum(steps_of(env)) == 3 * env.numel()
    env.close()


def test_counts_that_are_asked_for_before_the_start_begin_with_it(batch: Engine) -> None:
    env = batch.make(CountingEnv)
    before = env.stats()
    assert env._engine_face is None
    assert before["seconds"] == 0
    assert not any(value for worker in before["workers"] for value in worker.values())
    env.rollout(4, break_when_any_done=False)
    after = env.stats()
    assert len(after["workers"]) == len(before["workers"])
    assert (
        after.keys()
        == before.keys()
        == {"workers", "seconds", "restarts", "restarts_of", "timeouts"}
        | ({"exchange"} if isinstance(env, AsyncEnvPool) else set())
    )
    assert sum(steps_of(env)) == 4 * env.numel()
    env.close()


def test_after_the_end_the_last_counts_are_there_and_another_start_counts_anew(batch: Engine) -> None:
    env = batch.make(CountingEnv)
    env.stats()
    env.rollout(4, break_when_any_done=False)
    env.close()
    last = env.stats()
    assert sum(worker["steps"] for worker in last["workers"]) == 4 * env.numel()
    assert env.stats() == last
    require_sums(last)
    assert sum(steps_of(env, reset=True)) == 4 * env.numel()
    assert sum(steps_of(env)) == 0
    env.rollout(3, break_when_any_done=False)
    assert sum(steps_of(env)) == 3 * env.numel()
    env.close()


def test_counts_may_begin_anew_in_other_threads_while_steps_are_under_way(batch: Engine) -> None:
    """None is lost and none is told twice."""
    env = batch.make(CountingEnv)
    env.stats()
    env.reset()
    told: list[int] = []
    times: list[float] = []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            stats = env.stats(reset=True)
            told.append(sum(worker["steps"] for worker in stats["workers"]))
            times.append(min(min(worker.values()) for worker in stats["workers"]))

    with in_thread(ask), in_thread(ask):
        try:
            env.rollout(200, break_when_any_done=False)
        finally:
            is_over.set()
    assert len(told) > 2
    assert min(times) >= 0
    assert sum(told) + sum(steps_of(env)) == 200 * env.numel()
    env.close()


@not_on_ray
def test_a_copy_counts_for_itself() -> None:
    env = SerialEnv(2, "CartPole-v1")
    env.stats()
    env.rollout(3, break_when_any_done=False)
    copy = pickle.loads(pickle.dumps(env))
    copy.rollout(5, break_when_any_done=False)
    assert steps_of(copy) == [0]
    copy.rollout(5, break_when_any_done=False)
    assert (steps_of(copy), steps_of(env)) == ([10], [6])
    for each in (env, copy):
        each.close()


@not_on_ray
def test_an_env_that_moves_goes_on_counting() -> None:
    env = SerialEnv(2, "CartPole-v1", device="cpu")
    env.stats()
    env.rollout(3, break_when_any_done=False)
    env.to(torch.device("meta") if env.device is None else "cpu")
    assert steps_of(env) == [6]
    env.close()


# ---------------------------------------------------------------- workers that are replaced


@needs_workers
@pytest.mark.parametrize("deed", DEATHS.values(), ids=DEATHS)
def test_a_worker_that_is_replaced_goes_on_counting(deed: int) -> None:
    """The step in which it died is counted for none of its envs."""
    env = ParallelEnv(4, mortal(4), num_workers=2, on_worker_failure="restart", step_timeout=STEP_TIMEOUT)
    td = env.reset()
    env.stats()

    def step(*actions: int) -> None:
        nonlocal td
        _, td = env.step_and_maybe_reset(td.set("action", torch.tensor(actions)))

    for _ in range(3):
        step(GO, GO, GO, GO)
    step(GO, GO, deed, GO)
    assert steps_of(env) == [8, 6]
    step(GO, GO, GO, GO)
    stats = env.stats()
    assert [worker["steps"] for worker in stats["workers"]] == [10, 8]
    assert stats["restarts_of"] == {1: 1}
    require_sums(stats)
    assert env.stats(reset=True)["restarts"] == 1
    assert env.stats()["restarts_of"] == {}
    env.close()


@pytest.mark.parametrize("deed", ["exit", "wait"])
def test_an_env_of_a_pool_that_is_made_anew_goes_on_counting(backend: Backend, deed: str, tmp_path: Path) -> None:
    if "envs_per_worker" in backend.options:
        pytest.skip("the other env dies too, in its step or after it")
    if backend.options["backend"] == "asyncio" and deed == "exit":
        pytest.skip("a thread that awaits for the loop would end in its place")
    make_gates(2, tmp_path)
    pool = acting_pool(
        backend,
        "gymnasium",
        2,
        tmp_path,
        on_worker_failure="restart",
        step_timeout=STEP_TIMEOUT if deed == "wait" else None,
    )
    td = pool.reset()
    pool.stats()
    td = td.set("action", torch.zeros(2, dtype=torch.int64))
    pool.step(td)
    pool.set_attr("act", ["", deed])
    pool.step(td)
    assert steps_of(pool) == [2, 1]
    pool.step(pool.reset().set("action", torch.zeros(2, dtype=torch.int64)))
    assert steps_of(pool) == [3, 2]
    if backend.in_process and deed == "wait":  # what was left behind
        release(tmp_path, 1)
    pool.shutdown()


# ---------------------------------------------------------------- fronts


@not_on_ray
@pytest.mark.parametrize("make", [SyncVectorEnv, pytest.param(AsyncVectorEnv, marks=needs_workers)])
def test_a_vector_env_counts_steps_and_not_the_resets_in_their_place(make: Any) -> None:
    envs = make([partial(CountingEnv, (2,))] * 3)
    assert sum(steps_of(envs)) == 0
    envs.reset()
    for _ in range(6):  # two steps and a reset, twice
        envs.step([0, 0, 0])
    assert sum(steps_of(envs)) == 12
    require_sums(envs.stats())
    if make is AsyncVectorEnv:
        envs.step_async([0, 0, 0])
        envs.stats()
        envs.step_wait()
    envs.close()
    assert sum(steps_of(envs)) == (15 if make is AsyncVectorEnv else 12)


@not_on_ray
def test_fronts_tell_what_is_behind_them_counts() -> None:
    engine = SerialEnv(2, CountingEnv)
    envs = TensorDictVectorEnv(engine, autoreset_mode="SameStep")
    envs.stats()
    envs.reset()
    envs.step([0, 0])
    assert steps_of(envs) == steps_of(engine) == [2]
    envs.close()
    assert steps_of(envs) == [2]
    env = from_vector_env(SyncVectorEnv([CountingEnv] * 2))
    env.stats()
    env.rollout(4, break_when_any_done=False)
    assert steps_of(env) == steps_of(env.env) == [8]
    env.close()
    pool_envs = PoolVectorEnv(AsyncEnvPool([CountingEnv] * 3), batch_size=3)
    pool_envs.stats()
    pool_envs.reset()
    pool_envs.step([0, 0, 0])
    assert steps_of(pool_envs) == [1, 1, 1]
    assert pool_envs.stats()["exchange"]["batches"] == 2
    pool_envs.close()


@not_on_ray
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_foreign_vector_env_is_one_worker_without_its_dead_steps(mode: str) -> None:
    envs = gym.vector.SyncVectorEnv([partial(CountingEnv, (2,))] * 3, autoreset_mode=gym.vector.AutoresetMode(mode))
    env = from_vector_env(envs, reset_mask=False)
    env.stats()
    td = env.rollout(6, break_when_any_done=False)
    valid = td.get(("next", "valid"), torch.ones(1))
    expected = int(valid.sum()) if valid.numel() > 1 else 18
    assert steps_of(env) == [expected]
    assert (expected < 18) == (mode == "NextStep")
    stats = env.stats(reset=True)
    assert stats["workers"][0]["step_s"] > 0
    require_sums(stats)
    env.close()
    assert steps_of(env) == [0]


@not_on_ray
def test_an_env_that_no_engine_runs_says_that_it_counts_nothing() -> None:
    from own_envs import OwnBatch

    envs = TensorDictVectorEnv(OwnBatch([CountingEnv] * 2))
    with pytest.raises(AttributeError, match="no engine runs OwnBatch"):
        envs.stats()
    envs.close()


@not_on_ray
def test_a_single_env_counts() -> None:
    env = GymEnv(CountingEnv)
    env.stats()
    env.rollout(3, break_when_any_done=False)
    assert steps_of(env) == [3]
    env.close()
