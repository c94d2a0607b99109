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
from engines import WITH_WORKERS
from gymnasium.error import ResetNeeded
from pools import ALL_BACKENDS, BACKENDS, VERBS, Backend, Verb, acting_pool
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, TensorDictBase
from tensordict_zoo import TENSORDICT_ENVS, CountingTensorDictEnv, RecurrentEnv, TaskEnv
from waiting_envs import ActingEnv, await_entry, closed_envs, make_gates, release
from worker_processes import PATIENCE, still_running, watch
from zoo import CountingEnv, DictEnv

import gymbridge
from gymbridge import AsyncEnvPool, SerialEnv
from gymbridge.async_env_pool import ProcessorAsyncEnvPool, ThreadingAsyncEnvPool
from gymbridge.envs import EnvBase, EnvCreator, GymEnv
from gymbridge.errors import WorkerDiedError
from gymbridge.specs import Bounded, Composite, Unbounded

for module in (sys.modules[__name__], waiting_envs, tensordict_waiting_envs, tensordict_zoo, zoo, pools):
    cloudpickle.register_pickle_by_value(module)

RESET, STEP, STEP_MAYBE_RESET = VERBS
PROCESSES = [backend for backend in ALL_BACKENDS if not backend.in_process]
THREADS = ALL_BACKENDS[0]

needs_workers = pytest.mark.skipif(not WITH_WORKERS, reason="about worker processes")


@pytest.fixture(params=BACKENDS, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend."""
    own: Backend = request.param
    return own


@pytest.fixture(params=pools.ACTING)
def kind(request: pytest.FixtureRequest) -> str:
    """Gymnasium envs and TensorDict envs."""
    own: str = request.param
    return own


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


@pytest.fixture
def pool(backend: Backend, kind: str, folder: Path) -> Iterator[Any]:
    """Four acting envs that have been reset; whatever a test leaves under way is dropped."""
    own = acting_pool(backend, kind, 4, folder)
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
        assert pool.env_makers == makers
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
    with pytest.raises(ValueError) as refused:
        pool.async_reset_send()
    assert all(key in str(refused.value) for key in ("of_task_0", "of_task_1", "observation.x", "stack"))
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
    verb_order = verb.recv(pool, min_get=3)
    first = verb_order
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
