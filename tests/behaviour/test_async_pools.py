"""``AsyncEnvPool``: work is handed out and heard in any order, in batches and in lanes."""

from __future__ import annotations

import copy
import gc
import logging
import os
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pools
import pytest
import tensordict_waiting_envs
import tensordict_zoo
import torch
import waiting_envs
import zoo
from by_hand import assert_equal, is_lazy
from engines import EVERY_ENGINE, WITH_WORKERS
from gymnasium.error import ResetNeeded
from pools import ALL_BACKENDS, BACKENDS, VERBS, Backend, Verb, acting_pool
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, TensorDictBase
from tensordict_zoo import TENSORDICT_ENVS, CountingTensorDictEnv, RecurrentEnv, TaskEnv
from waiting_envs import await_entry, closed_envs, make_gates, release
from worker_processes import PATIENCE, still_running, watch
from zoo import CountingEnv, DictEnv

import gymbridge
from gymbridge import AsyncEnvPool, SerialEnv
from gymbridge.async_env_pool import ProcessorAsyncEnvPool, ThreadingAsyncEnvPool
from gymbridge.envs import EnvCreator
from gymbridge.errors import WorkerDiedError

for module in (sys.modules[__name__], waiting_envs, tensordict_waiting_envs, tensordict_zoo, zoo, pools):
    cloudpickle.register_pickle_by_value(module)

RESET, STEP, STEP_MAYBE_RESET = VERBS
PROCESSES = [backend for backend in ALL_BACKENDS if not backend.in_process]
THREADS = ALL_BACKENDS[0]

needs_workers = pytest.mark.skipif(not WITH_WORKERS, reason="about worker processes")


@pytest.fixture(params=VERBS, ids=str)
def verb(request: pytest.FixtureRequest) -> Verb:
    """Each verb."""
    own: Verb = request.param
    return own


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With gates for envs that wait."""
    make_gates(4, tmp_path)
    return tmp_path


WAYS = [(backend, kind) for backend in BACKENDS for kind in pools.ACTING]
"""Each backend with each kind of env; of some, what others have shown too."""
if not EVERY_ENGINE:
    WAYS = [way for way in WAYS if way[0].in_process or way[1] == "gymnasium"]


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}")
def pool(request: pytest.FixtureRequest, folder: Path) -> Iterator[Any]:
    """Four acting envs that have been reset; whatever a test leaves under way is dropped."""
    own = acting_pool(*request.param, 4, folder)
    own.reset()
    yield own
    own.shutdown(timeout=1.0)  # a test has let go on whatever waits


def given(*rows: int, actions: Any = None) -> TensorDict:
    """What some envs are given: an action each, that of env i is i unless told, and which envs they are."""
    index = torch.tensor(rows)
    return TensorDict(
        action=index % 5 if actions is None else torch.tensor(actions), env_index=index, batch_size=[len(rows)]
    )


def index_of(td: TensorDictBase) -> list[int]:
    """The envs that a result is of, by what they are called and by what they show."""
    index = td["env_index"]
    assert index.dtype == torch.int64
    assert index.shape == td.batch_size
    observation = td["next", "observation"] if "next" in td.keys() else td["observation"]
    assert observation[:, 0].tolist() == index.tolist()
    return [int(number) for number in index]


def steps_of(td: TensorDictBase) -> list[int]:
    """How many steps each env has done."""
    observation = td["next", "observation"] if "next" in td.keys() else td["observation"]
    return [int(number) for number in observation[..., 1].reshape(-1)]


# ---------------------------------------------------------------- what a pool is made of


@pytest.mark.parametrize(
    ("cls", "backend"), [(ThreadingAsyncEnvPool, "threading"), (ProcessorAsyncEnvPool, "multiprocessing")]
)
def test_the_class_is_chosen_by_the_backend(cls: Any, backend: str) -> None:
    assert type(AsyncEnvPool(["CartPole-v1"], backend=backend)) is cls
    assert type(cls(["CartPole-v1"])) is cls
    assert cls(["CartPole-v1"]).backend == backend
    assert type(cls(["CartPole-v1"], backend=backend)) is cls
    with pytest.raises(ValueError, match=f"backend: got 'ipc', expected '{backend}'"):
        cls(["CartPole-v1"], backend="ipc")
    assert getattr(gymbridge, cls.__name__) is cls


def test_what_it_is_unless_told() -> None:
    """Nothing has started for that."""
    pool = AsyncEnvPool("CartPole-v1")
    assert type(pool) is ThreadingAsyncEnvPool
    assert (pool.num_envs, pool.backend, pool.stack, pool.envs_per_worker, pool.min_get) == (
        1,
        "threading",
        "dense",
        1,
        1,
    )
    assert pool.env_makers == ["CartPole-v1"]
    assert pool._engine_face is None
    pool.close(raise_if_closed=False)


def test_the_ways_to_say_which_envs(backend: Backend) -> None:
    """An id, a maker, a creator or an env; one or several; with kwargs for all or one each."""
    makers = [
        "CartPole-v1",
        lambda **kwargs: gym.make("CartPole-v1", **kwargs),
        EnvCreator(lambda **kwargs: gym.make("CartPole-v1", **kwargs)),
    ]
    each = [{"max_episode_steps": steps} for steps in (3, 4, 5)]
    for kwargs, lengths in ((each, [3, 4, 5]), (each[0], [3, 3, 3])):
        pool = backend.make(makers, create_env_kwargs=kwargs)
        assert pool.env_makers == makers or pool.backend == "asyncio"  # there they are put into others
        assert [spec.max_episode_steps for spec in pool.spec] == lengths
        pool.shutdown()
    env = CountingEnv()
    for one in (env, [env], lambda: CountingTensorDictEnv(0)):
        pool = backend.make(one)
        assert pool.num_envs == 1
        assert pool.env_batch_sizes == [torch.Size([])]
        pool.async_reset_send()
        assert pool.async_reset_recv().batch_size == (1,)
        pool.shutdown()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"backend": "ipc"}, ValueError, "backend: got 'ipc', expected one of 'threading', 'multiprocessing'"),
        ({"stack": "tight"}, ValueError, "stack: got 'tight', expected one of 'dense', 'maybe_dense', 'lazy'"),
        ({"exchange": "ipc"}, ValueError, "exchange: got 'ipc', expected one of 'auto', 'shm', 'queue'"),
        ({"exchange": "shm"}, ValueError, "exchange: got 'shm' with backend='threading'"),
        ({"envs_per_worker": 2}, ValueError, "envs_per_worker: got 2 with backend='threading'"),
        ({"envs_per_worker": 0, "backend": "multiprocessing"}, ValueError, "envs_per_worker: got 0"),
        ({"envs_per_worker": True, "backend": "multiprocessing"}, TypeError, "envs_per_worker: got True"),
        ({"envs_per_worker": 1.5, "backend": "multiprocessing"}, TypeError, "envs_per_worker: got 1.5"),
        ({"envs_per_worker": None, "backend": "multiprocessing"}, TypeError, "envs_per_worker: got None"),
        ({"create_env_kwargs": [{}]}, ValueError, "create_env_kwargs"),
        ({"wait": True}, TypeError, "wait"),
    ],
)
def test_options_that_there_are_not_are_refused_by_name(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        AsyncEnvPool(["CartPole-v1"] * 2, **options)


def test_no_envs_are_refused() -> None:
    with pytest.raises(ValueError, match="env_makers: got an empty list"):
        AsyncEnvPool([])


@pytest.mark.parametrize("backend", ALL_BACKENDS, ids=str)
def test_unlike_envs_stacked_dense_are_refused_with_the_keys_named(backend: Backend) -> None:
    makers = [lambda: TaskEnv(0), lambda: TaskEnv(1)]
    pool = backend.make(makers)
    with pytest.raises(ValueError, match="stack: got 'dense'") as refused:
        pool.async_reset_send()
    assert all(key in str(refused.value) for key in ("of_task_0", "of_task_1", "observation.x"))
    with pytest.raises(ValueError, match="of_task_1"):
        _ = pool.observation_spec
    pool.close(raise_if_closed=False)


@pytest.mark.parametrize("stack", ["maybe_dense", "lazy"])
def test_unlike_envs_give_lazy_stacks_in_which_each_has_its_own_keys(backend: Backend, stack: Any) -> None:
    pool = backend.make([lambda index=index: TaskEnv(index, (2,)) for index in range(3)], stack=stack)
    pool.async_reset_send(env_index=[2, 0])
    td = pool.async_reset_recv(min_get=2)
    assert isinstance(td, LazyStackedTensorDict)
    assert td["env_index"].tolist() == [0, 2]
    assert td["env_index"].dtype == torch.int64
    for row, own in zip((0, 2), td.tensordicts, strict=True):
        assert {*own.keys()} == {"x", f"of_task_{row}", "done", "terminated", "truncated", "env_index"}
        own["action"] = torch.full((row + 1,), 0.5)
    for number in (1, 2):
        pool.async_step_and_maybe_reset_send(td)
        td, td_ = pool.async_step_and_maybe_reset_recv(min_get=2)
        assert td["next", "done"].flatten().tolist() == [number == 2] * 2
        assert not td_["done"].any()
        for row, own, next_root in zip((0, 2), td.tensordicts, td_.tensordicts, strict=True):
            assert own["next", "x"].shape == (row + 1,)
            assert own["next", f"of_task_{row}"].item() == number
            assert next_root[f"of_task_{row}"].item() == number % 2
            next_root["action"] = torch.full((row + 1,), 0.5)
        td = td_
    pool.async_reset_send(env_index=1)
    assert {*pool.async_reset_recv(env_index=1).keys()} >= {"x", "of_task_1"}
    pool.shutdown()


@pytest.mark.parametrize("maker", [CountingEnv, CountingTensorDictEnv])
@pytest.mark.parametrize("stack", ["dense", "maybe_dense", "lazy"])
def test_envs_that_agree_are_dense_unless_told(backend: Backend, maker: Any, stack: Any) -> None:
    pool = backend.make([maker] * 3, stack=stack)
    pool.async_reset_send()
    td = pool.async_reset_recv(min_get=2, max_get=2)
    assert is_lazy(td) == (stack == "lazy")
    td["action"] = (
        pool.full_action_spec[0].zero()["action"].expand(2, *pool.full_action_spec[0]["action"].shape).clone()
    )
    pool.async_step_and_maybe_reset_send(td)
    for part in pool.async_step_and_maybe_reset_recv(min_get=2):
        assert is_lazy(part) == (stack == "lazy")
        assert part["env_index"].tolist() == td["env_index"].tolist()
    pool.shutdown()


# ---------------------------------------------------------------- batches


def test_results_come_as_they_are_ready(pool: Any, verb: Verb, folder: Path) -> None:
    """In index order, each with the number of its env, whatever order they were sent in."""
    where = " in reset" if verb is RESET else ""
    pool.set_attr("act", ["", f"wait{where}", "", ""])
    verb.send(pool, given(3, 1, 0), [3, 1, 0])
    td = verb.recv(pool, min_get=2)
    assert index_of(td) == [0, 3]
    assert td["action"].tolist() == [0, 3]
    verb.send(pool, given(2, 0), [2, 0])
    assert index_of(verb.recv(pool, min_get=2)) == [0, 2]
    release(folder, 1)
    assert index_of(verb.recv(pool)) == [1]
    if verb is not RESET:
        assert steps_of(pool.reset(TensorDict(_reset=torch.zeros(4, dtype=torch.bool), batch_size=[4]))) == [2, 1, 1, 1]


def test_envs_run_at_the_same_time(pool: Any, folder: Path) -> None:
    """All have begun before one is let go on."""
    pool.set_attr("act", "tell and wait")
    pool.async_step_send(given(0, 1, 2, 3))
    for row in (2, 3, 0, 1):
        await_entry(folder, row)
    for row in (3, 1, 0, 2):
        release(folder, row)
        assert index_of(pool.async_step_recv()) == [row]


def test_what_envs_give_of_a_batch_is_theirs(pool: Any, verb: Verb) -> None:
    """Rewards say which action came to which env, over and over."""
    for rows in ([0, 1, 2, 3], [3, 0], [2], [1, 2, 3]):
        verb.send(pool, given(*rows, actions=[row + 1 for row in rows]))
        td = verb.recv(pool, min_get=len(rows))
        assert index_of(td) == sorted(rows)
        if verb is not RESET:
            assert td["action"].tolist() == [row + 1 for row in sorted(rows)]
            assert td["next", "reward"].flatten().tolist() == [row + 1 for row in sorted(rows)]
    assert not pool._calls.busy


INDICES: dict[str, Callable[[], Any]] = {
    "list": lambda: [2, 0],
    "tuple": lambda: (2, 0),
    "tensor": lambda: torch.tensor([2, 0]),
    "small tensor": lambda: torch.tensor([2, 0], dtype=torch.uint8),
    "array": lambda: np.array([2, 0]),
    "ints of numpy": lambda: [np.int64(2), np.int32(0)],
    "tensors of no dims": lambda: [torch.tensor(2), torch.tensor(0)],
    "non-tensor": lambda: NonTensorStack(2, 0),
}


@pytest.mark.parametrize("index", INDICES)
def test_the_ways_to_say_which_envs_have_work(kind: str, index: str) -> None:
    """As the argument, and in the TensorDict; the argument wins."""
    pool = acting_pool(THREADS, kind, 3)
    pool.reset()
    work = TensorDict(action=torch.tensor([1, 2]), batch_size=[2])
    pool.async_step_send(work, INDICES[index]())
    td = pool.async_step_recv(min_get=2)
    assert (index_of(td), td["next", "reward"].flatten().tolist()) == ([0, 2], [2, 1])
    assert "env_index" not in work.keys()

    if index not in ("tuple", "ints of numpy", "tensors of no dims"):  # those, tensordict makes something else of
        work["env_index"] = INDICES[index]()
        pool.async_step_send(work)
        td = pool.async_step_recv(min_get=2)
        assert (index_of(td), td["next", "reward"].flatten().tolist()) == ([0, 2], [2, 1])
        assert td["env_index"].tolist() == [0, 2]
    work["env_index"] = torch.tensor([0, 1])
    pool.async_reset_send(work, INDICES[index]())
    assert index_of(pool.async_reset_recv(min_get=2)) == [0, 2]
    pool.shutdown()


@pytest.mark.parametrize(
    "number", [1, torch.tensor(1), np.array(1), NonTensorData(1)], ids=lambda own: type(own).__name__
)
def test_a_tensordict_of_one_env_that_names_it_is_a_batch_of_one(kind: str, verb: Verb, number: Any) -> None:
    """It is no lane."""
    pool = acting_pool(THREADS, kind, 2)
    pool.reset()
    work = TensorDict(action=torch.tensor(3))
    work["env_index"] = number
    verb.send(pool, work)
    with pytest.raises(RuntimeError, match="env 1 has nothing under way in its lane"):
        verb.recv(pool, env_index=1)
    td = verb.recv(pool)
    assert td.batch_size == (1,)
    assert index_of(td) == [1]
    assert td["action"].tolist() == [3]
    pool.shutdown()


def test_without_an_index_all_envs_are_meant(pool: Any, verb: Verb) -> None:
    verb.send(pool, given(0, 1, 2, 3).exclude("env_index"))
    assert index_of(verb.recv(pool, min_get=4)) == [0, 1, 2, 3]


def test_envs_that_are_batches_have_their_number_in_each_of_their_rows(backend: Backend, verb: Verb) -> None:
    """And what is sent is understood with it."""
    pool = backend.make([lambda index=index: TENSORDICT_ENVS["batched"](index) for index in range(3)])
    root = pool.reset()
    assert pool.env_batch_sizes == [torch.Size([2])] * 3
    td = root[[2, 1]].set("action", torch.full((2, 2, 1), 0.5))
    td["env_index"] = torch.tensor([[2, 2], [1, 1]])
    verb.send(pool, td)
    td = verb.recv(pool, min_get=2)
    assert td.batch_size == (2, 2)
    assert td["env_index"].tolist() == [[1, 1], [2, 2]]
    assert td["env_index"].dtype == torch.int64
    verb.send(pool, td[1].set("action", torch.full((2, 1), 0.5)))
    td = verb.recv(pool)
    assert td["env_index"].tolist() == [[2, 2]]
    verb.send(pool, td[0].exclude("env_index").set("action", torch.full((2, 1), 0.5)), env_index=0)
    lane = verb.recv(pool, env_index=0)
    assert lane.batch_size == (2,)
    assert lane["env_index"].tolist() == [0, 0]
    pool.shutdown()


def test_keys_of_the_callers_come_back_as_they_are(pool: Any, verb: Verb) -> None:
    """Wherever they stand, tensors or not, at whatever time the rows come; what was sent stays as it is."""
    td = given(2, 0, 3)
    td["mine"] = torch.tensor([[2.5], [0.5], [3.5]], dtype=torch.float64)
    td["deep", "er"] = torch.tensor([2, 0, 3], dtype=torch.uint8)
    td["word"] = NonTensorStack("two", "zero", "three")
    before = td.clone()
    verb.send(pool, td)
    assert_equal(td, before)
    first = verb.recv(pool, min_get=3)
    assert index_of(first) == [0, 2, 3]
    assert first["mine"].tolist() == [[0.5], [2.5], [3.5]]
    assert first["mine"].dtype == torch.float64
    assert first["deep", "er"].tolist() == [0, 2, 3]
    assert first["deep", "er"].dtype == torch.uint8
    assert [*first["word"]] == ["zero", "two", "three"]
    verb.send(pool, td)
    parts = [verb.recv(pool, max_get=1) for _ in range(3)]
    assert sorted((index_of(part)[0], part["mine"].item(), part["deep", "er"].item()) for part in parts) == [
        (0, 0.5, 0),
        (2, 2.5, 2),
        (3, 3.5, 3),
    ]
    assert_equal(td, before)


def test_the_callers_keys_are_in_the_next_root_too(pool: Any) -> None:
    td = given(2, 0).set("mine", torch.tensor([2, 0]))
    pool.async_step_and_maybe_reset_send(td)
    _, td_ = pool.async_step_and_maybe_reset_recv(min_get=2)
    assert {*td_.keys()} == {"mine", "env_index", "observation", "done", "terminated", "truncated"}
    assert (td_["mine"].tolist(), td_["env_index"].tolist()) == ([0, 2], [0, 2])


def test_rows_that_were_sent_apart_come_together(pool: Any) -> None:
    """What one was sent and another was not is zero there, as in any dense stack."""
    pool.async_step_send(given(0, 1).set("mine", torch.tensor([5, 6])))
    pool.async_step_send(given(3))
    td = pool.async_step_recv(min_get=3)
    assert index_of(td) == [0, 1, 3]
    assert td["mine"].tolist() == [5, 6, 0]


def test_what_is_changed_after_a_send_changes_nothing_that_was_sent(pool: Any, folder: Path) -> None:
    """The action that an env sees is that of the send, and so is what comes back."""
    pool.set_attr("act", ["wait", "", "", ""])
    td = given(0, 1, actions=[1, 2])
    pool.async_step_send(td)
    td["action"] += 1
    td["env_index"] += 1
    td["late"] = torch.ones(2)
    release(folder, 0)
    got = pool.async_step_recv(min_get=2)
    assert index_of(got) == [0, 1]
    assert got["action"].tolist() == [1, 2]
    assert got["next", "reward"].flatten().tolist() == [1, 2]
    assert "late" not in got.keys()


@pytest.mark.parametrize("lock", ["lock_", "memmap_", "share_memory_"])
def test_locked_tensordicts_are_sent_as_others(kind: str, verb: Verb, lock: str) -> None:
    pool = acting_pool(THREADS, kind, 2)
    pool.reset()
    td = given(0, 1)
    td["deep", "er"] = torch.tensor([0, 1])
    getattr(td, lock)()
    verb.send(pool, td)
    got = verb.recv(pool, min_get=2)
    assert not got.is_locked
    assert got["deep", "er"].tolist() == [0, 1]
    got["deep", "another"] = torch.ones(2)
    verb.send(pool, td[0], 0)
    assert not verb.recv(pool, env_index=0).is_locked
    pool.shutdown()


@pytest.mark.parametrize("verb", VERBS[1:], ids=str)
def test_recurrent_keys_under_next(backend: Backend, verb: Verb) -> None:
    """The env sees those of its specs, and its own outputs win; the others are put back."""
    pool = backend.make([lambda index=index: RecurrentEnv(index, (9,)) for index in range(3)])
    td = pool.reset()[[2, 0]]
    td["action"] = torch.ones(2, 1, dtype=torch.int8)
    td["hidden"] = torch.tensor([[2.0, 2.0], [0.0, 0.0]])
    td["next", "hidden"] = torch.tensor([[2.5, 2.5], [0.5, 0.5]])
    td["next", "of", "mine"] = torch.tensor([2, 0])
    td["next", "seen"] = torch.full((2, 2), 77.0)
    before = td.clone()
    verb.send(pool, td, [2, 0])
    assert_equal(td, before)
    got = verb.recv(pool, min_get=2)
    assert got["hidden"].tolist() == got["next", "before"].tolist() == [[0, 0], [2, 2]]
    assert got["next", "hidden"].tolist() == got["next", "seen"].tolist() == [[0.5, 0.5], [2.5, 2.5]]
    assert got["next", "of", "mine"].tolist() == [0, 2]
    pool.shutdown()


def test_after_an_end_next_has_the_last_observation_and_td_the_first(backend: Backend) -> None:
    """Of those whose episode ends; the others go on."""
    pool = backend.make([lambda length=length: CountingEnv((length,)) for length in (1, 3, 2)])
    pool.set_seed(3)
    pool.async_reset_send()
    td_ = pool.async_reset_recv(min_get=3)
    for number in range(1, 4):
        pool.async_step_and_maybe_reset_send(td_.set("action", torch.ones(3, dtype=torch.int64)))
        td, td_ = pool.async_step_and_maybe_reset_recv(min_get=3)
        for row, length in enumerate((1, 3, 2)):
            ended = number % length == 0
            assert td["next", "done"][row].item() == ended
            assert td["next", "observation"][row, 1].item() == (number - 1) % length + 1
            assert td_["observation"][row, :2].tolist() == [number // length, number % length]
        assert not td_["done"].any()
    pool.shutdown()


def test_a_step_alone_leaves_an_end_for_a_reset(backend: Backend) -> None:
    """A gymnasium env that ended is not stepped before, and the error names it."""
    pool = backend.make([lambda length=length: CountingEnv((length,)) for length in (9, 1)])
    td = pool.reset().set("action", torch.ones(2, dtype=torch.int64))
    pool.async_step_send(td)
    got = pool.async_step_recv(min_get=2)
    assert got["next", "done"].flatten().tolist() == [False, True]
    for send in (
        lambda: pool.async_step_send(td),
        lambda: pool.async_step_and_maybe_reset_send(td[1:], [1]),
        lambda: pool.async_step_send(td[1], 1),
    ):
        with pytest.raises(ResetNeeded, match="1"):
            send()
    assert not pool._calls.busy
    pool.async_reset_send(env_index=[1])
    assert pool.async_reset_recv()["observation"][0, :2].tolist() == [1, 0]
    pool.async_step_send(td)
    pool.async_step_recv(min_get=2)
    pool.shutdown()


# ---------------------------------------------------------------- resets


def test_kwargs_reach_the_resets(backend: Backend) -> None:
    """Those of all and those of each env, of which the first win; the caller's stay as they are."""
    pool = backend.make([CountingTensorDictEnv] * 3)
    pool.async_reset_send(start=7)
    assert pool.async_reset_recv(min_get=3)["count"].flatten().tolist() == [7, 7, 7]
    own = [{"start": 2}, {"start": 1}]
    pool.async_reset_send(env_index=[2, 1], list_of_kwargs=own)
    assert pool.async_reset_recv(min_get=2)["count"].flatten().tolist() == [1, 2]
    pool.async_reset_send(env_index=[2, 1], list_of_kwargs=own, start=5)
    assert pool.async_reset_recv(min_get=2)["count"].flatten().tolist() == [5, 5]
    assert own == [{"start": 2}, {"start": 1}]
    pool.async_reset_send(env_index=0, start=4)
    assert pool.async_reset_recv(env_index=0)["count"].tolist() == [4]
    pool.async_reset_send(env_index=0, list_of_kwargs=[{"start": 3}])
    assert pool.async_reset_recv(env_index=0)["count"].tolist() == [3]
    for wrong in ([{}], [{}] * 3, {}, "ab"):
        with pytest.raises(ValueError, match=r"list_of_kwargs: got .*, expected a list of 2 dicts"):
            pool.async_reset_send(env_index=[0, 1], list_of_kwargs=wrong)
    with pytest.raises(TypeError, match="list_of_kwargs: got 3 for env 1"):
        pool.async_reset_send(env_index=[0, 1], list_of_kwargs=[{}, 3])
    assert not pool._calls.busy
    pool.shutdown()


def test_options_and_seeds_reach_gymnasium_envs(backend: Backend) -> None:
    """A seed is for one env; several would all be the same."""
    pool = backend.make([CountingEnv] * 3)
    options = {"level": 3}
    pool.async_reset_send(options=options)
    pool.async_reset_recv(min_get=3)
    pool.async_reset_send(env_index=[2, 0], list_of_kwargs=[{"seed": 5}, {"seed": 6}])
    td = pool.async_reset_recv(min_get=2)
    pool.async_reset_send(env_index=1, seed=5)
    lane = pool.async_reset_recv(env_index=1)
    pool.async_reset_send(env_index=[0], seed=5)
    batch = pool.async_reset_recv()
    reference = [CountingEnv().reset(seed=seed)[0][3] for seed in (6, 5)]
    assert td["observation"][:, 3].tolist() == reference
    assert lane["observation"][3].item() == batch["observation"][0, 3].item() == reference[1]
    assert [own[0] for own in pool.resets] == [{"seed": None, "options": options}] * 3
    with pytest.raises(ValueError, match=r"got seed 5 for 2 envs, which would all be the same"):
        pool.async_reset_send(env_index=[0, 1], seed=5)
    assert not pool._calls.busy
    pool.shutdown()


def test_what_a_reset_is_given_steers_it(backend: Backend) -> None:
    """Each env gets its row."""
    pool = backend.make([lambda index=index: TENSORDICT_ENVS["stateful"](index) for index in range(3)])
    pool.reset()
    params = TensorDict(stiffness=torch.tensor([2.0, 1.0]), max_steps=torch.tensor([1, 2]), batch_size=[2])
    td = TensorDict(params=params, mine=torch.tensor([2, 1]), batch_size=[2])
    pool.async_reset_send(td, [2, 1])
    got = pool.async_reset_recv(min_get=2)
    assert got["position"].flatten().tolist() == [0.5, 1.0]
    assert got["params", "max_steps"].tolist() == [2, 1]
    assert got["mine"].tolist() == [1, 2]
    pool.async_reset_send(td[0], 0)
    assert pool.async_reset_recv(env_index=0)["position"].tolist() == [1.0]
    pool.shutdown()


# ---------------------------------------------------------------- how much, and by when


def test_a_receive_takes_what_is_ready_and_no_more_than_told(pool: Any, folder: Path) -> None:
    """``min_get`` is waited for, ``max_get`` is the most; what else is ready is there for the next."""
    pool.set_attr("act", ["", "", "wait", ""])
    pool.async_step_send(given(0, 1, 2, 3))
    first = pool.async_step_recv(min_get=2, max_get=2)
    assert first.batch_size == (2,)
    last = pool.async_step_recv(min_get=1, max_get=1)
    assert sorted(index_of(first) + index_of(last)) == [0, 1, 3]
    release(folder, 2)
    assert index_of(pool.async_step_recv(max_get=3)) == [2]


def test_without_a_timeout_what_else_is_ready_is_added(pool: Any, folder: Path) -> None:
    """All that has been done by then comes, though one would do."""
    pool.set_attr("act", ["wait", "", "", ""])
    pool.async_step_send(given(0, 1, 2, 3))
    pool.engine.wait(3)  # until the others are done
    assert index_of(pool.async_step_recv()) == [1, 2, 3]
    release(folder, 0)
    assert index_of(pool.async_step_recv()) == [0]


def test_min_get_is_the_pools_unless_told(pool: Any) -> None:
    pool.min_get = 3
    pool.async_step_send(given(0, 1, 2, 3))
    td = pool.async_step_recv()
    assert len(td) >= 3
    if len(td) == 3:
        with pytest.raises(RuntimeError, match="got min_get=3, expected at most 1"):
            pool.async_step_recv()
        assert len(pool.async_step_recv(min_get=1)) == 1
    copied = pickle.loads(cloudpickle.dumps(pool))
    assert copied.min_get == 3


def test_a_timeout_goes_on_collecting_until_there_is_nothing_more(pool: Any, folder: Path) -> None:
    """Though one would do: it ends when all is there, long before its time is over."""
    pool.set_attr("act", ["tell and wait", "", "tell and wait", ""])
    pool.async_step_send(given(0, 1, 2))
    for row in (0, 2):
        await_entry(folder, row)
    releasing = threading.Thread(target=lambda: [release(folder, row) for row in (0, 2)])
    releasing.start()
    assert index_of(pool.async_step_recv(timeout=PATIENCE * 1e3)) == [0, 1, 2]
    releasing.join()


def test_a_timeout_ends_at_max_get(pool: Any, folder: Path) -> None:
    pool.set_attr("act", ["", "", "wait", ""])
    pool.async_step_send(given(0, 1, 2, 3))
    td = pool.async_step_recv(max_get=2, timeout=PATIENCE * 1e3)
    rest = pool.async_step_recv(min_get=1, max_get=1, timeout=PATIENCE * 1e3)
    assert sorted(index_of(td) + index_of(rest)) == [0, 1, 3]
    release(folder, 2)
    assert index_of(pool.async_step_recv(timeout=PATIENCE * 1e3)) == [2]


def test_a_timeout_gives_what_has_come_where_that_is_enough(pool: Any, folder: Path) -> None:
    pool.set_attr("act", ["wait", "", "", ""])
    pool.async_step_send(given(0, 2))
    with pytest.raises(TimeoutError):
        pool.async_step_recv(min_get=2, timeout=0)
    td = None
    while td is None:  # however long the other takes to be done
        try:
            td = pool.async_step_recv(timeout=0.01)
        except TimeoutError:
            continue
    assert index_of(td) == [2]
    release(folder, 0)
    assert index_of(pool.async_step_recv()) == [0]


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_a_timeout_loses_nothing(pool: Any, verb: Verb, timeout: float, folder: Path) -> None:
    """Of none of the envs, also of those that had come."""
    where = " in reset" if verb is RESET else ""
    pool.set_attr("act", ["", f"wait{where}", "", f"wait{where}"])
    verb.send(pool, given(0, 1, 2, 3))
    for _ in range(3):
        with pytest.raises(TimeoutError, match="of min_get=4 envs came in time"):
            verb.recv(pool, min_get=4, timeout=timeout)
    release(folder, 3)
    with pytest.raises(TimeoutError):
        verb.recv(pool, min_get=4, timeout=timeout)
    release(folder, 1)
    td = verb.recv(pool, min_get=4, timeout=PATIENCE * 1e3)
    assert index_of(td) == [0, 1, 2, 3]
    if verb is not RESET:
        assert td["next", "reward"].flatten().tolist() == [0, 1, 2, 3]


def test_a_timeout_of_a_lane_loses_nothing(pool: Any, verb: Verb, folder: Path) -> None:
    pool.set_attr("act", f"wait{' in reset' if verb is RESET else ''}")
    verb.send(pool, given(2)[0], env_index=2)
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError, match="2"):
            verb.recv(pool, env_index=2, timeout=timeout)
    release(folder, 2)
    assert verb.recv(pool, env_index=2, timeout=PATIENCE * 1e3)["env_index"].item() == 2
    assert not pool._calls.busy


def test_a_row_whose_episode_has_ended_is_reset_while_others_are_waited_for(backend: Backend, folder: Path) -> None:
    """A call that comes to its deadline has not forgotten that it waits for that reset."""
    pool = backend.make([lambda index=index: EndingEnv(index, folder) for index in range(2)])
    pool.async_step_and_maybe_reset_send(pool.rand_action(pool.reset()))
    in_reset = threading.Thread(target=await_entry, args=(folder, 1))
    in_reset.start()
    while in_reset.is_alive():
        with pytest.raises(TimeoutError):
            pool.async_step_and_maybe_reset_recv(min_get=2, timeout=0.01)
    release(folder, 1)
    td, td_ = pool.async_step_and_maybe_reset_recv(min_get=2, timeout=PATIENCE * 1e3)
    assert td["next", "done"].flatten().tolist() == [False, True]
    assert td["next", "count"].flatten().tolist() == [1, 1]
    assert td_["count"].flatten().tolist() == [1, 0]
    pool.shutdown()


class EndingEnv(CountingTensorDictEnv):
    """Its episodes are of one step if its index is 1, and the second reset waits for the test."""

    def __init__(self, index: int, folder: Path):
        super().__init__(0, (9,) if index == 0 else (1,))
        self.number = index
        self.folder = folder

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        made = super()._reset(tensordict, **kwargs)
        if self.episode:
            (self.folder / f"entered-{self.number}").write_bytes(b"")
            (self.folder / f"gate-{self.number}").read_bytes()
        return made


BAD_AMOUNTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"min_get": 0}, ValueError, "min_get: got 0, expected at least 1"),
    ({"min_get": -1}, ValueError, "min_get: got -1"),
    ({"min_get": 1.0}, TypeError, "min_get: got 1.0, expected an int"),
    ({"min_get": True}, TypeError, "min_get: got True"),
    ({"min_get": 2, "max_get": 1}, ValueError, "max_get: got 1, expected at least min_get, 2"),
    ({"max_get": 0}, ValueError, "max_get: got 0"),
    ({"max_get": "2"}, TypeError, "max_get: got '2'"),
    ({"timeout": -0.1}, ValueError, "timeout: got -0.1"),
    ({"timeout": float("nan")}, ValueError, "timeout: got nan"),
    ({"timeout": "1"}, TypeError, "timeout: got '1'"),
    ({"timeout": True}, TypeError, "timeout: got True"),
    ({"timeout": -1, "env_index": 0}, ValueError, "timeout: got -1"),
    ({"env_index": [0]}, TypeError, "env_index"),
    ({"env_index": True}, TypeError, "env_index"),
    ({"env_index": 2}, IndexError, "2"),
    ({"env_index": -1}, IndexError, "-1"),
    ({"min_get": 3}, RuntimeError, "min_get=3, expected at most 2"),
]


@pytest.mark.parametrize(("wanted", "error", "text"), BAD_AMOUNTS)
def test_amounts_that_cannot_be_are_refused_at_once(
    verb: Verb, wanted: dict[str, Any], error: type[Exception], text: str
) -> None:
    """And nothing is lost by it."""
    pool = acting_pool(THREADS, "gymnasium", 2)
    pool.reset()
    verb.send(pool, given(0, 1))
    with pytest.raises(error, match=re.escape(text)):
        verb.recv(pool, **wanted)
    assert index_of(verb.recv(pool, min_get=2)) == [0, 1]
    with pytest.raises(RuntimeError, match="min_get=1, expected at most 0"):
        verb.recv(pool)
    pool.shutdown()


def test_ints_of_numpy_are_ints(kind: str) -> None:
    pool = acting_pool(THREADS, kind, 2)
    pool.reset()
    pool.async_step_send(given(0, 1))
    td = pool.async_step_recv(np.int64(1), max_get=np.int32(1), timeout=np.float32(PATIENCE))
    assert len(td) == 1
    pool.async_step_recv()
    pool.shutdown()


def test_what_is_of_another_verb_is_not_received(pool: Any, verb: Verb, folder: Path) -> None:
    """A step under way is not waited for by a receive of resets, nor the reverse."""
    others = [other for other in VERBS if other is not verb]
    verb.send(pool, given(0, 1))
    for other in others:
        with pytest.raises(RuntimeError, match=f"async_{other}_recv: got min_get=1, expected at most 0"):
            other.recv(pool, timeout=PATIENCE)
        other.send(pool, given(2, 3))
        assert index_of(other.recv(pool, min_get=2)) == [2, 3]
        assert index_of(verb.recv(pool, min_get=2)) == [0, 1]
        verb.send(pool, given(0, 1))
    assert index_of(verb.recv(pool, min_get=2)) == [0, 1]
    verb.send(pool, given(0)[0], 0)
    for other in others:
        with pytest.raises(RuntimeError, match=f"env 0 has a {verb} under way in its lane, expected a {other}"):
            other.recv(pool, env_index=0)
    verb.recv(pool, env_index=0)


def test_steps_and_resets_of_different_envs_are_under_way_at_once(pool: Any, folder: Path) -> None:
    pool.set_attr("act", ["wait", "wait", "wait in reset", ""])
    pool.async_step_send(given(0))
    pool.async_step_and_maybe_reset_send(given(1))
    pool.async_reset_send(env_index=[2, 3])
    assert index_of(pool.async_reset_recv()) == [3]
    release(folder, 2)
    assert index_of(pool.async_reset_recv()) == [2]
    release(folder, 0)
    release(folder, 1)
    assert index_of(pool.async_step_and_maybe_reset_recv()[0]) == [1]
    assert index_of(pool.async_step_recv()) == [0]


# ---------------------------------------------------------------- what cannot be sent


def one_more(td: TensorDict) -> TensorDict:
    return TensorDict(action=torch.zeros(3, dtype=torch.int64), batch_size=[3])


BAD_WORK: list[tuple[Any, Any, type[Exception], str]] = [
    (given(0), [0, 0], ValueError, "expected each env once"),
    (given(0, 0), None, ValueError, "expected each env once"),
    (given(0, 4), None, IndexError, "expected some of 0 to 3"),
    (given(0), [-1], IndexError, "expected some of 0 to 3"),
    (given(0)[0], 4, IndexError, "expected some of 0 to 3"),
    (given(0)[0], -1, IndexError, "expected some of 0 to 3"),
    (given(0), [], ValueError, "expected that of one env or more"),
    (given(0), [0, 1], ValueError, "batch size [1], expected [2]"),
    (given(0, 1), [0], ValueError, "batch size [2], expected [1]"),
    (given(0), 0, ValueError, "batch size [1], expected []"),
    (given(0, 1).exclude("env_index"), None, ValueError, "batch size [2], expected [4]"),
    (given(0)[0].exclude("env_index"), None, ValueError, "batch size [], expected [4]"),
    (given(0), "0", TypeError, "expected ints"),
    (given(0), [0.5], TypeError, "expected ints"),
    (given(0), [True], TypeError, "expected ints"),
    (given(0), torch.tensor([0.0]), TypeError, "expected ints"),
    (given(0), {0}, TypeError, "expected ints"),
    (given(0).set("env_index", torch.tensor([0.0])), None, TypeError, "expected ints"),
    ({"action": torch.zeros(1)}, [0], TypeError, "got dict, expected a TensorDict"),
    (given(0).set("_step", torch.tensor([True])), None, ValueError, "'_step'"),
    (given(0).set("_reset", torch.tensor([True])), None, ValueError, "'_reset'"),
]


@pytest.mark.parametrize(("td", "index", "error", "text"), BAD_WORK)
def test_work_that_cannot_be_is_refused_and_nothing_has_begun(
    verb: Verb, td: Any, index: Any, error: type[Exception], text: str
) -> None:
    """The error names the call, what it got and what it expected."""
    pool = acting_pool(THREADS, "gymnasium", 4)
    pool.reset()
    with pytest.raises(error, match=re.escape(text)) as refused:
        verb.send(pool, td, index)
    assert f"async_{verb}_send" in str(refused.value)
    assert not pool._calls.busy
    verb.send(pool, given(0, 1, 2, 3))
    assert index_of(verb.recv(pool, min_get=4)) == [0, 1, 2, 3]
    pool.shutdown()


BAD_ACTIONS: list[tuple[Any, type[Exception], str]] = [
    (None, TypeError, "expected a TensorDict"),
    (TensorDict(batch_size=[2]), KeyError, "action"),
    (TensorDict(action=torch.zeros(2, 3, dtype=torch.int64), batch_size=[2]), ValueError, "action"),
    (TensorDict(action=torch.zeros(2), batch_size=[2]), ValueError, "action"),
]


@pytest.mark.parametrize(("td", "error", "text"), BAD_ACTIONS)
@pytest.mark.parametrize("verb", VERBS[1:], ids=str)
def test_actions_that_do_not_fit_are_refused_before_any_env_sees_them(
    backend: Backend, kind: str, verb: Verb, td: Any, error: type[Exception], text: str
) -> None:
    pool = acting_pool(backend, kind, 2)
    pool.reset()
    with pytest.raises(error, match=text):
        verb.send(pool, td, [0, 1])
    with pytest.raises(error, match=text):
        verb.send(pool, None if td is None else td[0], 0)
    assert not pool._calls.busy
    verb.send(pool, given(0, 1))
    assert steps_of(verb.recv(pool, min_get=2)) == [1, 1]
    pool.shutdown()


def test_an_env_with_work_under_way_is_refused_by_name(pool: Any, verb: Verb, folder: Path) -> None:
    """In a batch or in a lane, done or not; those that were sent with it have not begun."""
    where = " in reset" if verb is RESET else ""
    pool.set_attr("act", ["", f"wait{where}", "", ""])
    verb.send(pool, given(1, 3))
    verb.send(pool, given(2)[0], 2)
    for other in VERBS:
        for rows, busy in (([0, 1], [1]), ([3], [3]), ([0, 1, 2, 3], [1, 2, 3]), ([2, 0], [2])):
            with pytest.raises(RuntimeError, match=rf"async_{other}_send: envs {re.escape(str(busy))} have work"):
                other.send(pool, given(*rows))
        for row in (1, 2, 3):
            with pytest.raises(RuntimeError, match=rf"async_{other}_send: envs \[{row}\] have work under way"):
                other.send(pool, given(row)[0], row)
    assert pool._calls.busy == [1, 2, 3]
    release(folder, 1)
    assert index_of(verb.recv(pool, min_get=2)) == [1, 3]
    assert verb.recv(pool, env_index=2)["env_index"].item() == 2
    assert pool.steps == ([0] * 4 if verb is RESET else [0, 1, 1, 1])


SYNCHRONOUS: dict[str, Callable[[Any], Any]] = {
    "reset": lambda pool: pool.reset(),
    "step": lambda pool: pool.step(given(0, 1, 2, 3).exclude("env_index")),
    "step_and_maybe_reset": lambda pool: pool.step_and_maybe_reset(given(0, 1, 2, 3).exclude("env_index")),
    "rollout": lambda pool: pool.rollout(2),
    "set_seed": lambda pool: pool.set_seed(0),
    "state_dict": lambda pool: pool.state_dict(),
    "load_state_dict": lambda pool: pool.load_state_dict({"np_random": None}),
    "attribute": lambda pool: pool.index,
    "call": lambda pool: pool.pid(),
    "set_attr": lambda pool: pool.set_attr("index", 9),
    "to": lambda pool: pool.to("meta"),
}


@pytest.mark.parametrize("call", SYNCHRONOUS)
def test_synchronous_calls_are_refused_while_work_is_under_way(kind: str, folder: Path, call: str) -> None:
    """And while results have not been received; the envs are named, and nothing has been done."""
    pool = acting_pool(THREADS, kind, 4, folder, ["", "wait"])
    pool.reset()
    pool.async_step_send(given(3, 1))
    with pytest.raises(RuntimeError, match=r"\[1, 3\]"):
        SYNCHRONOUS[call](pool)
    assert index_of(pool.async_step_recv()) == [3]
    release(folder, 1)
    with pytest.raises(RuntimeError, match=r"\[1\]"):
        SYNCHRONOUS[call](pool)
    assert index_of(pool.async_step_recv()) == [1]
    pool.async_step_send(given(2)[0], 2)
    with pytest.raises(RuntimeError, match=r"\[2\]"):
        SYNCHRONOUS[call](pool)
    assert pool.async_step_recv(env_index=2)["next", "observation"].tolist() == [2, 1]
    assert pool.index == [0, 1, 2, 3]
    assert pool.device is None
    pool.shutdown()


def test_synchronous_calls_have_the_envs_in_order_and_no_index(pool: Any) -> None:
    """Nor have the specs."""
    for td in (
        pool.reset(),
        pool.step(given(0, 1, 2, 3).exclude("env_index")),
        *pool.step_and_maybe_reset(given(0, 1, 2, 3).exclude("env_index")),
        pool.fake_tensordict(),
    ):
        assert "env_index" not in td.keys(True)
    for spec in (pool.output_spec, pool.input_spec, pool.observation_spec, pool.full_action_spec):
        assert "env_index" not in str(spec)
    assert "env_index" not in pool.rollout(2).keys(True)


# ---------------------------------------------------------------- lanes


def test_a_lane_is_one_env_without_a_dim_for_it(pool: Any, verb: Verb) -> None:
    """What was sent and what comes back have the env's own batch size."""
    work = given(2)[0].set("mine", torch.tensor(5.0))
    work["word"] = "two"
    before = work.clone()
    verb.send(pool, work, env_index=2)
    assert_equal(work, before)
    td = verb.recv(pool, env_index=2)
    assert td.batch_size == ()
    assert (td["env_index"].dtype, td["env_index"].shape, td["env_index"].item()) == (torch.int64, (), 2)
    assert td["mine"].item() == 5
    assert td["word"] == "two"
    assert verb.outputs(td)["observation"].tolist() == [2, verb is not RESET]
    if verb is STEP_MAYBE_RESET:
        verb.send(pool, work, env_index=np.int64(2))
        _, td_ = pool.async_step_and_maybe_reset_recv(env_index=np.int64(2))
        assert (td_.batch_size, td_["env_index"].item(), td_["observation"].tolist()) == ((), 2, [2, 2])


def test_lanes_and_batches_do_not_hear_each_other(pool: Any, verb: Verb) -> None:
    verb.send(pool, given(1)[0], env_index=1)
    verb.send(pool, given(0, 3))
    with pytest.raises(RuntimeError, match="expected at most 2"):
        verb.recv(pool, min_get=3)
    with pytest.raises(RuntimeError, match="env 0 has nothing under way in its lane"):
        verb.recv(pool, env_index=0)
    with pytest.raises(RuntimeError, match="env 2 has nothing under way in its lane"):
        verb.recv(pool, env_index=2)
    assert index_of(verb.recv(pool, min_get=2, timeout=PATIENCE * 1e3)) == [0, 3]
    assert verb.recv(pool, env_index=1)["env_index"].item() == 1
    assert not pool._calls.busy


def test_lanes_come_in_any_order(pool: Any, folder: Path) -> None:
    pool.set_attr("act", "wait")
    for row in range(4):
        pool.async_step_send(given(row)[0], env_index=row)
    for row in (2, 0, 3, 1):
        release(folder, row)
        td = pool.async_step_recv(env_index=row)
        assert td["next", "observation"].tolist() == [row, 1]
        assert td["next", "reward"].item() == row


# ---------------------------------------------------------------- what goes wrong


def test_what_envs_raise_comes_out_one_at_a_time(pool: Any, verb: Verb) -> None:
    """With type, message, number of the env and the place; what the others gave is there for the next call."""
    where = " in reset" if verb is RESET else ""
    pool.set_attr("act", ["", f"raise{where}", "", f"raise{where}"])
    verb.send(pool, given(0, 1, 2, 3))
    raised = []
    for left in (4, 3):
        with pytest.raises(LookupError, match="no reset" if verb is RESET else "broken") as caught:
            verb.recv(pool, min_get=left)
        raised.append(caught.value.env_index)
        assert any(f"env {raised[-1]}" in note for note in caught.value.__notes__)
        assert "obey" in "".join(str(caught.value.__cause__)) or caught.value.__cause__ is None
    assert sorted(raised) == [1, 3]
    td = verb.recv(pool, min_get=2)
    assert index_of(td) == [0, 2]
    if verb is not RESET:
        assert td["next", "reward"].flatten().tolist() == [0, 2]
    assert not pool._calls.busy


def test_after_a_failure_a_reset_goes_on(pool: Any) -> None:
    """Of that env; a gymnasium env is not stepped before, and the others never stop."""
    pool.set_attr("act", ["", "raise", "", ""])
    pool.async_step_send(given(0, 1))
    with pytest.raises(LookupError):
        pool.async_step_recv(min_get=2)
    pool.async_step_recv()
    pool.async_step_send(given(0, 2))
    assert steps_of(pool.async_step_recv(min_get=2)) == [2, 1]
    pool.set_attr("act", "")
    pool.async_reset_send(env_index=[1])
    assert index_of(pool.async_reset_recv()) == [1]
    pool.async_step_and_maybe_reset_send(given(0, 1, 2, 3))
    td, _ = pool.async_step_and_maybe_reset_recv(min_get=4)
    assert steps_of(td) == [3, 1, 2, 1]


def test_a_failure_in_a_lane_is_that_lanes(pool: Any, verb: Verb) -> None:
    where = " in reset" if verb is RESET else ""
    pool.set_attr("act", ["", f"raise{where}", "", ""])
    verb.send(pool, given(1)[0], 1)
    verb.send(pool, given(0)[0], 0)
    verb.send(pool, given(2))
    assert index_of(verb.recv(pool, timeout=PATIENCE * 1e3)) == [2]
    with pytest.raises(LookupError) as caught:
        verb.recv(pool, env_index=1)
    assert caught.value.env_index == 1
    assert verb.recv(pool, env_index=0)["env_index"].item() == 0
    assert not pool._calls.busy
    pool.set_attr("act", "")
    pool.async_reset_send(env_index=1)
    assert pool.async_reset_recv(env_index=1)["observation"].tolist() == [1, 0]


def test_an_end_followed_by_a_reset_that_raises(backend: Backend) -> None:
    """The error is the reset's, and another reset goes on."""
    pool = backend.make([lambda index=index: RaisesInReset(index) for index in range(2)])
    pool.reset()
    pool.async_step_and_maybe_reset_send(given(0, 1, actions=[0, 0]))
    with pytest.raises(LookupError, match="not this time") as caught:
        pool.async_step_and_maybe_reset_recv(min_get=2)
    assert caught.value.env_index == 1
    td, _ = pool.async_step_and_maybe_reset_recv()
    assert (td["env_index"].tolist(), td["next", "observation"][0, 1].item()) == ([0], 1)
    pool.async_reset_send(env_index=1)
    assert pool.async_reset_recv(env_index=1)["observation"][1].item() == 0
    pool.shutdown()


class RaisesInReset(CountingEnv):
    """Raises in its second reset if its index is 1."""

    def __init__(self, index: int):
        super().__init__((1,) if index else (9,))

    def reset(self, **kwargs: Any) -> Any:
        made = super().reset(**kwargs)
        if self.episode == 1:
            raise LookupError("not this time")
        return made


@needs_workers
@pytest.mark.parametrize("deed", ["kill", "exit"])
@pytest.mark.parametrize("lane", [False, True])
def test_a_dead_worker_is_told_and_costs_the_others_nothing(kind: str, verb: Verb, deed: str, lane: bool) -> None:
    """Whatever is sent to it after."""
    where = " in reset" if verb is RESET else ""
    pool = acting_pool(PROCESSES[0], kind, 3)
    pool.reset()
    pool.set_attr("act", ["", f"{deed}{where}", ""])
    verb.send(pool, given(0, 2) if lane else given(0, 1, 2))
    if lane:
        verb.send(pool, given(1)[0], 1)
    with pytest.raises(WorkerDiedError, match="SIGKILL" if deed == "kill" else "exit code 3") as died:
        verb.recv(pool, env_index=1, timeout=PATIENCE) if lane else verb.recv(pool, min_get=3, timeout=PATIENCE)
    assert died.value.env_indices == (1,)
    assert index_of(verb.recv(pool, min_get=2)) == [0, 2]
    for other in VERBS:
        with pytest.raises((WorkerDiedError, ResetNeeded)):
            other.send(pool, given(1))
        with pytest.raises((WorkerDiedError, ResetNeeded)):
            other.send(pool, given(1)[0], 1)
    with pytest.raises(WorkerDiedError):
        pool.async_reset_send(env_index=[0, 1])
    verb.send(pool, given(0, 2))
    assert index_of(verb.recv(pool, min_get=2)) == [0, 2]
    pool.shutdown()


def test_an_env_that_ends_its_thread_is_dead(kind: str) -> None:
    pool = acting_pool(THREADS, kind, 2)
    pool.reset()
    pool.set_attr("act", ["exit", ""])
    pool.async_step_send(given(0, 1))
    with pytest.raises(WorkerDiedError) as died:
        pool.async_step_recv(min_get=2)
    assert died.value.env_indices == (0,)
    assert isinstance(died.value.__cause__, SystemExit)
    assert index_of(pool.async_step_recv()) == [1]
    pool.shutdown()


def send_and_receive_a_reset(pool: Any, row: int) -> None:
    pool.async_reset_send(env_index=row)
    pool.async_reset_recv(env_index=row)


@needs_workers
def test_envs_of_one_process_die_together(folder: Path) -> None:
    pool = acting_pool(PROCESSES[1], "gymnasium", 4, folder, ["", "wait", "", "kill"])
    pool.reset()
    pids = pool.pid()
    assert pids[0] == pids[1] != pids[2] == pids[3]
    pool.async_step_send(given(3))
    with pytest.raises(WorkerDiedError) as died:
        pool.async_step_recv()
    assert sorted(died.value.env_indices) == [2, 3]
    pool.async_step_send(given(0, 1))
    assert index_of(pool.async_step_recv()) == [0]
    release(folder, 1)
    assert index_of(pool.async_step_recv()) == [1]
    with pytest.raises(WorkerDiedError) as died:  # at the latest when it is received
        send_and_receive_a_reset(pool, 2)
    assert sorted(died.value.env_indices) == [2, 3]
    pool.shutdown()


# ---------------------------------------------------------------- the end, and what comes after


def test_shutdown_drops_what_is_under_way_and_what_was_not_received(pool: Any, verb: Verb, folder: Path) -> None:
    """Then a use starts it again, with nothing under way."""
    verb.send(pool, given(0, 1))
    verb.send(pool, given(2)[0], 2)
    pool.shutdown()
    pool.shutdown()
    assert closed_envs(folder) == {0, 1, 2, 3}
    pool.async_reset_send()
    assert index_of(pool.async_reset_recv(min_get=4)) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="expected at most 0"):
        verb.recv(pool)
    with pytest.raises(RuntimeError, match="has nothing under way in its lane"):
        verb.recv(pool, env_index=2)


def test_receives_of_a_pool_that_never_ran_or_was_closed_do_not_wait(pool: Any, verb: Verb) -> None:
    pool.close()
    with pytest.raises(RuntimeError):
        verb.recv(pool)
    with pytest.raises(RuntimeError):
        verb.recv(pool, env_index=0)


def test_close_is_that_of_any_env(backend: Backend) -> None:
    pool = backend.make(["CartPole-v1"])
    pool.reset()
    assert not pool.is_closed
    pool.close()
    assert pool.is_closed
    with pytest.raises(RuntimeError):
        pool.close()
    pool.close(raise_if_closed=False)
    pool.shutdown()
    with backend.make(["CartPole-v1"]) as own:
        own.async_reset_send()
    assert own.is_closed


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_shutdown_ends_in_time_though_envs_hang(pool: Any, folder: Path, timeout: float) -> None:
    """Processes are killed, threads left behind; a warning names them."""
    pool.set_attr("act", ["", "tell and wait", "", ""])
    pids = {*pool.pid()}
    watched = {} if os.getpid() in pids else watch(pids)
    pool.async_step_send(given(0, 1, 2))
    await_entry(folder, 1)
    with pytest.warns(match="1"):
        pool.shutdown(timeout=timeout)
    assert pool._engine_face is None
    if os.getpid() in pids:
        release(folder, 1)  # of the thread that was left behind
    else:
        assert not still_running(watched)


@pytest.mark.parametrize("timeout", [-1, "1", float("nan")])
def test_shutdown_refuses_times_that_are_none(timeout: Any) -> None:
    pool = AsyncEnvPool(["CartPole-v1"])
    with pytest.raises((ValueError, TypeError), match="timeout"):
        pool.shutdown(timeout)
    assert pool.reset().batch_size == (1,)
    pool.shutdown(None)


def test_a_pickle_and_a_copy_have_envs_of_their_own(pool: Any) -> None:
    """The pool goes on, with what it has under way."""
    pool.async_step_send(given(0, 1))
    for other in (pickle.loads(cloudpickle.dumps(pool)), copy.deepcopy(pool)):
        assert type(other) is type(pool)
        assert other._engine_face is None
        with pytest.raises(RuntimeError, match="expected at most 0"):
            other.async_step_recv()
        other.async_reset_send(env_index=[3])
        assert index_of(other.async_reset_recv()) == [3]
        assert other.stats()["exchange"]["items"] == 1
        other.shutdown()
    assert index_of(pool.async_step_recv(min_get=2)) == [0, 1]
    assert pool.stats()["exchange"]["items"] == 2


def own_descriptors(backend: Backend) -> list[str]:
    """What this process has open, but for Ray's connections, which it closes when it likes."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the folder itself
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    if backend.options["backend"] != "ray":
        return links
    return [link for link in links if link.startswith(("pipe:", "/memfd:gymbridge"))]


@pytest.mark.parametrize("method", ["close", "shutdown"])
def test_nothing_is_left_open(backend: Backend, kind: str, method: str) -> None:
    """Nor is anything where it is dropped without an end."""
    acting_pool(backend, kind, 2).reset()  # the first of all starts what stays
    gc.collect()
    before = len(own_descriptors(backend))
    others = {*threading.enumerate()}
    for _ in range(3):
        own = acting_pool(backend, kind, 2)
        own.async_reset_send()
        own.async_reset_recv(min_get=2)
        getattr(own, method)()
        other = acting_pool(backend, kind, 2)
        other.async_reset_send()
        other.async_reset_recv(env_index=None)
        del own, other
    gc.collect()
    for thread in {*threading.enumerate()} - others:  # of pools that were dropped: they end by themselves
        if not thread.name.startswith("gymbridge-ray-asks"):  # which waits for the next pool
            thread.join(PATIENCE)
    assert len(own_descriptors(backend)) <= before


def test_to_moves_what_it_gives_and_keeps_the_envs(pool: Any) -> None:
    pids = pool.pid()
    pool.async_step_send(given(0, 1))
    with pytest.raises(RuntimeError, match=r"to: refused while envs \[0, 1\] have work under way"):
        pool.to("cpu")
    pool.async_step_recv(min_get=2)
    assert pool.to("cpu") is pool
    assert pool.device == torch.device("cpu")
    pool.async_step_send(given(0, 3).to("cpu"))
    td = pool.async_step_recv(min_get=2)
    assert td.device == torch.device("cpu")
    assert steps_of(td) == [2, 1]
    pool.async_step_send(given(0)[0], 0)
    assert pool.async_step_recv(env_index=0)["next"].device == torch.device("cpu")
    assert pool.pid() == pids


# ---------------------------------------------------------------- what was received is the caller's


@pytest.mark.parametrize("lane", [False, True])
def test_what_was_received_does_not_change(pool: Any, lane: bool) -> None:
    """Nor does what it was made from: whatever is sent and received after, and whatever is done to it."""
    kept = []
    td_ = pool.reset()
    if not lane:
        for number in range(6):
            pool.async_step_and_maybe_reset_send(td_.set("action", torch.full((len(td_),), number % 5)))
            td, td_ = pool.async_step_and_maybe_reset_recv(min_get=min(1 + number % 2, len(td_)))
            kept.append((td, td_, td.clone(), td_.clone()))
            if pool._calls.busy:
                pool.async_step_and_maybe_reset_recv(min_get=len(pool._calls.busy))
    else:
        td_ = td_[1]
        for number in range(6):
            pool.async_step_and_maybe_reset_send(td_.set("action", torch.tensor(number % 5)), env_index=1)
            td, td_ = pool.async_step_and_maybe_reset_recv(env_index=1)
            kept.append((td, td_, td.clone(), td_.clone()))
    for td, td_, before, before_ in kept:
        assert_equal(td, before)
        assert_equal(td_.exclude("action"), before_.exclude("action"))
        assert {leaf.untyped_storage().data_ptr() for leaf in td["next"].values()}.isdisjoint(
            leaf.untyped_storage().data_ptr() for leaf in td.exclude("next").values()
        )


def test_what_is_done_to_a_result_does_not_reach_the_pool(pool: Any) -> None:
    """A reset of no env shows where each stands, whatever became of what it gave."""
    nothing = TensorDict(_reset=torch.zeros(4, dtype=torch.bool), batch_size=[4])
    for rows in ([0, 1, 2, 3], [0, 2], [3]):
        pool.async_step_send(given(*rows))
        pool.async_step_recv(min_get=len(rows))["next"].apply_(lambda leaf: leaf.zero_())
    pool.async_step_send(given(1)[0], 1)
    pool.async_step_recv(env_index=1)["next"].apply_(lambda leaf: leaf.zero_())
    assert pool.reset(nothing)["observation"].tolist() == [[0, 2], [1, 2], [2, 2], [3, 2]]
    pool.async_reset_send(env_index=[0, 1])
    pool.async_reset_recv(min_get=2).apply_(lambda leaf: leaf.fill_(True))
    assert pool.reset(nothing)["observation"].tolist() == [[0, 0], [1, 0], [2, 2], [3, 2]]


NUM_STEPS = int(os.environ.get("GYMBRIDGE_POOL_STEPS", "10000"))
"""Steps of an env that costs nothing; give it 1000000 and --timeout 3600 to see whether anything is lost or grows."""


class NullEnv(gym.Env[Any, Any]):
    """Shows how often it was stepped, and does nothing else."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, index: int = 0):
        self.index = index
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return np.array([self.index, 0.0]), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.array([self.index, float(self.steps)]), 0.0, False, False, {}


def test_what_was_received_is_unchanged_after_many_steps(backend: Backend) -> None:
    """And no descriptor is held by all that is kept, nor by the pool."""
    pool = backend.make([lambda index=index: NullEnv(index) for index in range(4)])
    pool.async_reset_send()
    td = pool.async_reset_recv(min_get=4)
    kept, copies = [], []
    gc.collect()  # what other tests have dropped is none of this
    descriptors = len(os.listdir("/proc/self/fd"))
    taken, seen = 0, [0] * 4
    while taken < NUM_STEPS:
        td["action"] = torch.zeros(len(td), dtype=torch.int64)
        pool.async_step_and_maybe_reset_send(td)
        result, td = pool.async_step_and_maybe_reset_recv(min_get=2)
        taken += len(result)
        for row, (index, step) in zip(
            result["env_index"].tolist(), result["next", "observation"].tolist(), strict=True
        ):
            seen[row] += 1
            assert (index, step) == (row, seen[row])
        if len(kept) < 10_000:
            kept.append(result)
            if len(copies) < 100:
                copies.append(result.clone())
    assert len(kept) >= min(10_000, NUM_STEPS / 4)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    for result, before in zip(kept, copies, strict=False):
        assert_equal(result, before)
    pool.shutdown()
    for result, before in zip(kept, copies, strict=False):
        assert_equal(result, before)


# ---------------------------------------------------------------- as other batches


def serial_twin(maker: Any, num_envs: int) -> SerialEnv:
    return SerialEnv(num_envs, [lambda index=index: maker(index) for index in range(num_envs)])


@pytest.mark.parametrize("maker", [lambda index: CountingEnv(), CountingTensorDictEnv], ids=["gymnasium", "TensorDict"])
@pytest.mark.parametrize("static_seed", [False, True])
def test_seeds_are_those_of_other_batches(backend: Backend, maker: Any, static_seed: bool) -> None:
    """Env i has seed + i, whatever envs are reset first, before the start and after."""
    pool = backend.make([lambda index=index: maker(index) for index in range(3)])
    twin = serial_twin(maker, 3)
    for seed in (5, 70):
        assert pool.set_seed(seed, static_seed) == twin.set_seed(seed, static_seed)
        pool.async_reset_send(env_index=[2, 1])
        got = pool.async_reset_recv(min_get=2)
        pool.async_reset_send(env_index=0)
        lane = pool.async_reset_recv(env_index=0)
        expected = twin.reset()
        assert_equal(got.exclude("env_index"), expected[1:])
        assert_equal(lane.exclude("env_index"), expected[0])
    pool.shutdown()


def test_states_are_those_of_other_batches(backend: Backend) -> None:
    """One a worker; what they are loaded from goes on as they would have."""
    maker = lambda index: CountingEnv()  # noqa: E731
    pool = backend.make([lambda index=index: maker(index) for index in range(3)])
    twin = serial_twin(maker, 3)
    for env in (pool, twin):
        env.set_seed(5)
        env.reset()
    state = pool.state_dict()
    assert state == twin.state_dict()
    assert [*state] == ["worker0", "worker1", "worker2"]
    td = pool.reset()
    pool.load_state_dict(state)
    assert pool.reset()["observation"][:, 3].tolist() == td["observation"][:, 3].tolist()
    pool.shutdown()


def test_attributes_and_methods_are_dispatched_to_every_env(pool: Any) -> None:
    assert pool.index == [0, 1, 2, 3]
    assert len(pool.pid()) == 4
    pool.set_attr("index", [4, 5, 6, 7])
    assert pool.index == [4, 5, 6, 7]
    pool.set_attr("index", 1)
    assert pool.index == [1] * 4
    with pytest.raises(AttributeError, match="env 0 has no attribute 'nothing'"):
        _ = pool.nothing
    with pytest.raises(AttributeError, match="_private"):
        _ = pool._private


def test_dispatch_starts_it() -> None:
    pool = acting_pool(THREADS, "gymnasium", 2)
    assert pool.index == [0, 1]
    pool.shutdown()


# ---------------------------------------------------------------- how things travel


def test_threads_go_by_queue() -> None:
    pool = AsyncEnvPool(["CartPole-v1"] * 2)
    assert (pool.resolved_exchange, pool.exchange_keys) == ("queue", ())
    assert pool._engine_face is None
    assert AsyncEnvPool(["CartPole-v1"], exchange="queue").resolved_exchange == "queue"


EXCHANGES: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "CartPole": (lambda: gym.make("CartPole-v1"), ("action",), ""),
    "nested": (DictEnv, (("action", "go"), ("action", "push")), ""),
    "TensorDict": (CountingTensorDictEnv, ("action",), ""),
    "nested TensorDict": (TENSORDICT_ENVS["nested"], (("robot", "torque"),), ""),
    "groups": (TENSORDICT_ENVS["groups alone"], (("agents", "action"),), ""),
    "recurrent": (RecurrentEnv, ("action", "hidden"), ""),
    "batched": (TENSORDICT_ENVS["batched"], ("action",), ""),
    "text": (lambda: zoo.ObjectEnv(zoo.OBJECT_SPACES["text"]), (), "observation"),
    "strings": (TENSORDICT_ENVS["strings"], (), "text"),
    "spoken": (lambda: TENSORDICT_ENVS["spoken"](0), (), "text"),
    "dynamic": (TENSORDICT_ENVS["dynamic shape"], (), "points"),
}


@needs_workers
@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize("exchange", ["auto", "shm", "queue"])
def test_exchanges(name: str, exchange: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What does not fit is refused by name under "shm", and the reason is logged under "auto"; all give the same."""
    maker, keys, culprit = EXCHANGES[name]
    pool = PROCESSES[0].make([maker] * 2, exchange=exchange, stack="maybe_dense")
    if exchange == "shm" and culprit:
        with pytest.raises(ValueError, match=rf"exchange: got 'shm'.*env 0.*{culprit}"):
            pool.async_reset_send()
        with pytest.raises(ValueError, match="exchange: got 'shm'"):
            _ = pool.resolved_exchange
        pool.close(raise_if_closed=False)
        return
    with caplog.at_level(logging.INFO, "gymbridge"):
        resolved = pool.resolved_exchange
    assert resolved == ("queue" if culprit or exchange == "queue" else "shm")
    assert pool.exchange_keys == (() if resolved == "queue" else keys)
    told = [record.getMessage() for record in caplog.records if "exchange" in record.getMessage()]
    if exchange == "auto" and culprit:
        assert len(told) == 1
        assert "env 0" in told[0]
        assert culprit in told[0]
    else:
        assert not told
    twin = SerialEnv(2, [maker] * 2)
    for env in (pool, twin):
        env.set_seed(3)
    pool.async_reset_send()
    td, expected = pool.async_reset_recv(min_get=2), twin.reset()
    assert_equal(td.exclude("env_index"), expected)
    torch.manual_seed(0)
    twin.rand_action(expected)
    for key in pool.full_state_spec.keys(True, True):
        expected[key] = pool.full_state_spec[key].zero()
    td.update(expected)
    pool.async_step_and_maybe_reset_send(td)
    got = pool.async_step_and_maybe_reset_recv(min_get=2)
    for mine, theirs in zip(got, twin.step_and_maybe_reset(expected), strict=True):
        assert_equal(mine.exclude("env_index"), theirs)
    pool.shutdown()


@needs_workers
def test_a_pool_of_unlike_envs_goes_through_shared_memory_too() -> None:
    pool = PROCESSES[0].make([lambda: TaskEnv(0), lambda: TaskEnv(1)], stack="lazy", exchange="shm")
    pool.async_reset_send()
    assert pool.async_reset_recv(min_get=2)["env_index"].tolist() == [0, 1]
    assert pool.resolved_exchange == "shm"
    pool.shutdown()


@needs_workers
@pytest.mark.parametrize(("envs_per_worker", "num_workers"), [(1, 4), (2, 2), (3, 2), (4, 1), (9, 1)])
def test_envs_per_worker(folder: Path, envs_per_worker: int, num_workers: int) -> None:
    """Contiguous, and those of one process overlap where they wait."""
    pool = acting_pool(PROCESSES[0], "gymnasium", 4, folder, envs_per_worker=envs_per_worker)
    pids = pool.pid()
    assert len({*pids}) == num_workers
    assert pids == [pids[row // envs_per_worker * envs_per_worker] for row in range(4)]
    pool.reset()
    pool.set_attr("act", "tell and wait")
    pool.async_step_send(given(0, 1, 2, 3))
    for row in range(4):
        await_entry(folder, row)
    for row in (3, 0, 2, 1):
        release(folder, row)
        assert index_of(pool.async_step_recv()) == [row]
    pool.shutdown()


@needs_workers
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="as Linux has it")
def test_worker_affinity(kind: str) -> None:
    """A mask a worker process, or a function of its number."""
    cores = sorted(os.sched_getaffinity(0))
    masks = [{cores[0]}, {cores[-1]}]
    for affinity in ([[*mask] for mask in masks], lambda worker: [*masks[worker]]):
        pool = acting_pool(PROCESSES[1], kind, 3, worker_affinity=affinity)
        assert pool.cores() == [masks[0], masks[0], masks[1]] if kind == "gymnasium" else True
        pool.reset()
        pool.shutdown()


@pytest.mark.parametrize(
    ("affinity", "error"),
    [
        ([[0]], ValueError),
        ([[], [0]], ValueError),
        ([[-1], [0]], ValueError),
        ([[True], [0]], TypeError),
        ([["0"], [0]], TypeError),
        ([[4095], [0]], ValueError),
        (5, TypeError),
    ],
)
@pytest.mark.parametrize(
    "backend", [own for own in BACKENDS if own.options["backend"] not in ("asyncio", "ray")], ids=str
)
def test_bad_affinities_are_refused_before_an_env_is_made(
    backend: Backend, affinity: Any, error: type[Exception]
) -> None:
    made: list[int] = []
    pool = backend.make([lambda: made.append(1)] * 2, worker_affinity=affinity)
    with pytest.raises(error, match="affinity"):
        pool.reset()
    assert not made


# ---------------------------------------------------------------- stats


def test_stats_count_what_was_received(pool: Any) -> None:
    """Of batches; lanes are not counted."""
    pool.reset()
    empty = pool.stats()["exchange"]
    assert {*empty} == {
        "batches",
        "items",
        "avg_batch_size",
        "batch_fill_ratio",
        "partial_batch_fraction",
        "avg_observation_to_batch_ms",
        "avg_batch_to_action_ms",
        "consumer_busy_fraction",
    }
    assert not any(empty.values())
    for rows in ([0, 1, 2, 3], [0, 1]):
        pool.async_step_send(given(*rows))
        pool.async_step_recv(min_get=len(rows))
    pool.async_step_send(given(0, 1, 2))
    pool.async_step_recv(min_get=2, max_get=2)
    pool.async_step_recv()
    pool.async_step_send(given(3)[0], 3)
    pool.async_step_recv(env_index=3)
    stats = pool.stats()["exchange"]
    assert (stats["batches"], stats["items"], stats["avg_batch_size"]) == (4, 9, 9 / 4)
    assert stats["batch_fill_ratio"] == 9 / (4 + 4 + 2 + 4)
    assert stats["partial_batch_fraction"] == 2 / 4
    assert stats["avg_observation_to_batch_ms"] > 0
    assert stats["avg_batch_to_action_ms"] > 0
    assert 0 < stats["consumer_busy_fraction"] < 1
    assert pool.stats(reset=True)["exchange"]["items"] == 9
    assert not any(pool.stats()["exchange"].values())


# ---------------------------------------------------------------- an error that nobody can use is none


def test_a_second_thread_in_the_batch_calls_is_refused_by_the_name_of_the_call(kind: str, folder: Path) -> None:
    pool = acting_pool(THREADS, kind, 2, folder, ["tell and wait"])
    pool.reset()
    pool.async_step_send(given(0))
    receiving = threading.Thread(target=pool.async_step_recv)
    receiving.start()
    await_entry(folder, 0)
    while pool._call_under_way is None:
        pass
    for call in (
        lambda: pool.async_step_send(given(1)),
        lambda: pool.async_step_recv(timeout=0),
        lambda: pool.reset(),
    ):
        with pytest.raises(RuntimeError, match="refused while a call of async_step_recv is under way"):
            call()
    release(folder, 0)
    receiving.join(PATIENCE)
    assert not pool._calls.busy
    pool.shutdown()
