"""``AsyncEnvPool(..., backend="ray")`` on real Ray clusters of this machine.

The behaviour suite's pool tests run over it with ``GYMBRIDGE_ENGINES=ray``; here is what is Ray's alone, and a short
choice of the rest.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

pytest.importorskip("ray")

import gymnasium as gym
import numpy as np
import ray
import torch
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode
from interrupts import interrupted
from ray_cluster import small_cluster
from ray_envs import END, EXIT, GO, HANG, KILL, LEAVE, RAISE, DeedError, deeds
from worker_processes import PATIENCE, run_script, start_script, still_running, watch

from gymbridge import AsyncEnvPool, ProcessorAsyncEnvPool
from gymbridge.envs import GymEnv
from gymbridge.errors import UnpicklableError, WorkerDiedError, WorkerStartError, WorkerTimeoutError
from gymbridge.interop.ray import RayAsyncEnvPool
from gymbridge.vector import PoolVectorEnv, SyncVectorEnv, TensorDictVectorEnv

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux has them"),
    pytest.mark.timeout(300),
]

MARK = ("info", "worker_restarted")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with small_cluster():
        yield


@pytest.fixture
def started() -> Iterator[Callable[..., Any]]:
    """Makes pools, which are closed at the end; their actors' processes are gone then."""
    pools: list[Any] = []

    def start(makers: Any, **options: Any) -> Any:
        pools.append(AsyncEnvPool(makers, backend="ray", **{"start_timeout": 240.0, **options}))
        return pools[-1]

    yield start
    for pool in pools:
        pool.shutdown()


def step(pool: Any, td: Any, *actions: int, op: str = "step_and_maybe_reset") -> Any:
    td["action"] = torch.tensor(actions)
    return getattr(pool, op)(td)


# ---------------------------------------------------------------- the same as in processes


def test_gymnasium_envs_give_what_they_give_in_processes(started: Any) -> None:
    """Batches, lanes and whole calls, over ends of episodes; and no actor imports torch for it."""
    found = []
    for pool in (started(deeds(3), envs_per_worker=2), ProcessorAsyncEnvPool(deeds(3))):
        pool.set_seed(7)
        tds = [pool.reset()]
        for actions in ((GO, GO, GO), (END, GO, END), (GO, END, GO)):
            tds += step(pool, tds[-1], *actions)
        pool.async_step_and_maybe_reset_send(tds[-1][[2, 0]].set("action", torch.tensor([GO, END])), [2, 0])
        tds += pool.async_step_and_maybe_reset_recv(min_get=2)
        pool.async_reset_send(env_index=1, seed=3, options={"a": 1})
        tds.append(pool.async_reset_recv(env_index=1))
        tds.append(pool.rollout(4, lambda td: td.set("action", torch.zeros(3, dtype=torch.int64))))
        assert pool.modules() == [[]] * 3
        found.append(tds)
        pool.shutdown()
    for ours, theirs in zip(*found, strict=True):
        assert {*ours.keys(True)} == {*theirs.keys(True)}
        assert (ours == theirs).all()


def test_tensordict_envs_give_what_they_give_in_processes(started: Any) -> None:
    makers = [lambda make=make: GymEnv(make()) for make in deeds(2)]
    found = []
    for pool in (started(makers, envs_per_worker=2), ProcessorAsyncEnvPool(makers)):
        pool.set_seed(7)
        td = pool.reset()
        tds = [td, *step(pool, td, END, GO)]
        pool.async_step_and_maybe_reset_send(tds[-1][:1].set("action", torch.tensor([END])), [0])
        found.append([*tds, *pool.async_step_and_maybe_reset_recv()])
        pool.shutdown()
    for ours, theirs in zip(*found, strict=True):
        assert (ours == theirs).all()


def test_attributes_states_and_seeds(started: Any) -> None:
    pool = started(deeds(3), envs_per_worker=3)
    assert pool.gravity == [9.8] * 3
    pool.set_attr("gravity", [1.0, 2.0, 3.0])
    assert pool.gravity == [1.0, 2.0, 3.0]
    assert len({*pool.pid()}) == 1
    assert pool.is_in_its_thread() == [True] * 3
    pool.set_seed(1)
    first = pool.reset()
    state = pool.state_dict()
    assert sorted(state) == ["worker0", "worker1", "worker2"]
    after, _ = step(pool, first, GO, GO, GO)
    pool.load_state_dict(state)
    again, _ = step(pool, first, GO, GO, GO)
    assert torch.equal(after["next", "observation"], again["next", "observation"])
    pool.set_seed(1)
    assert torch.equal(pool.reset()["observation"], first["observation"])
    with pytest.raises(AttributeError, match="no_such"):
        pool.no_such()


def test_rows_too_large_for_a_message_arrive_whole(started: Any) -> None:
    """Ray keeps results of more than 100 KB in a store of its own."""
    pool = started(deeds(2, size=300))
    td = pool.reset()
    assert td["image"].shape == (2, 300, 300, 3)
    for number in range(1, 4):
        td, td_ = step(pool, td, GO, END)
        image = td["next", "image"].reshape(2, -1)
        assert (image == image[:, :1]).all()
        assert image[:, 0].tolist() == [number, 2]
        assert td_["image"][:, 0, 0, 0].tolist() == [number, 1]
        td = td_


def test_fronts_of_gymnasiums_and_envpools_manner(started: Any) -> None:
    pool = started(["CartPole-v1"] * 2, envs_per_worker=2)
    envs = PoolVectorEnv(pool, batch_size=1)
    envs.async_reset()
    for _ in range(4):
        observation, *_, infos = envs.recv()
        assert observation.shape == (1, 4)
        envs.send(np.zeros(1, np.int64), infos["env_id"])
    envs.close()
    vector = TensorDictVectorEnv(started(["CartPole-v1"] * 2, envs_per_worker=2))
    observation, _ = vector.reset(seed=3)
    other = SyncVectorEnv([partial(gym.make, "CartPole-v1")] * 2)
    assert np.array_equal(observation, other.reset(seed=3)[0])
    for ours, theirs in zip(vector.step([1, 0])[:4], other.step([1, 0])[:4], strict=True):
        assert np.array_equal(ours, theirs)
    vector.close()
    other.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_rows_of_vector_envs_are_those_of_processes_over_ends_of_episodes(started: Any, mode: AutoresetMode) -> None:
    """A reset clears the reward and the flags of the step before it, which stand in what a step gives."""
    found = []
    for pool in (started(deeds(2), envs_per_worker=2), ProcessorAsyncEnvPool(deeds(2))):
        envs = TensorDictVectorEnv(pool, autoreset_mode=mode)
        results: list[Any] = [envs.reset(seed=3)]
        for actions in ([END, GO], [GO, END], [GO, GO], [END, END], [GO, GO]):
            results.append(envs.step(actions))
            if mode == AutoresetMode.DISABLED and results[-1][2].any():
                results.append(envs.reset(options={"reset_mask": results[-1][2]}))
        found.append(results)
        envs.close()
    for ours, theirs in zip(*found, strict=True):
        assert data_equivalence(ours, theirs)


def test_a_lambda_that_closes_over_what_cannot_be_sent_is_named(started: Any) -> None:
    lock = threading.Lock()
    with pytest.raises(UnpicklableError, match=r"the maker of env 1.*lock"):
        started([*deeds(1), lambda: lock]).reset()


def test_what_an_env_raises_comes_through_and_costs_nobody_else(started: Any) -> None:
    pool = started(deeds(3), envs_per_worker=2)
    td = pool.reset()
    pool.async_step_send(td.set("action", torch.tensor([GO, RAISE, GO])))
    with pytest.raises(DeedError, match="broken at 1") as caught:
        pool.async_step_recv(min_get=3)
    assert caught.value.index == caught.value.env_index == 1
    assert "in step\nray_envs.DeedError: broken at 1" in str(caught.value.__cause__)
    assert pool.async_step_recv(min_get=2)["env_index"].tolist() == [0, 2]
    pool.async_reset_send(env_index=[1])
    assert pool.async_reset_recv()["observation"][0, :2].tolist() == [1, 0]


def test_a_maker_that_raises_is_an_error_at_the_start(started: Any) -> None:
    def broken() -> Any:
        raise DeedError("not made", 1)

    with pytest.raises(DeedError, match="not made") as caught:
        started([*deeds(1), broken], envs_per_worker=2).reset()
    assert caught.value.env_index == 1


# ---------------------------------------------------------------- actors that die, and hang


@pytest.mark.parametrize(("deed", "exit_code"), [(KILL, None), (LEAVE, None), (EXIT, 3)], ids=["kill", "leave", "exit"])
def test_an_actor_that_dies_is_an_error_that_names_its_envs(started: Any, deed: int, exit_code: int | None) -> None:
    pool = started(deeds(4), envs_per_worker=2)
    td = pool.reset()
    pool.async_step_send(td.set("action", torch.tensor([GO, GO, deed, GO])))
    got, deaths = [], []
    while len(got) + len(deaths) < 4:
        try:
            got += pool.async_step_recv()["env_index"].tolist()
        except WorkerDiedError as error:
            deaths.append(error)
    assert deaths
    for death in deaths:
        assert (death.worker, death.env_indices, death.exit_code) == (1, (2, 3), exit_code)
        assert ("Ray actor" in str(death)) == (exit_code is None)
    assert {0, 1} <= {*got} <= {0, 1, 3}  # env 3's step may have come back before
    with pytest.raises(WorkerDiedError):
        pool.async_reset_send(env_index=[2])
    pool.async_reset_send(env_index=[0, 1])
    assert len(pool.async_reset_recv(min_get=2)) == 2


@pytest.mark.parametrize("deed", [KILL, EXIT, HANG], ids=["kill", "exit", "hang"])
def test_an_actor_that_dies_is_replaced(started: Any, deed: int) -> None:
    pool = started(deeds(4), envs_per_worker=2, on_worker_failure="restart", step_timeout=2.0)
    pool.set_seed(5)
    td = pool.reset()
    _, td = step(pool, td, GO, GO, GO, GO)
    before, pids = td["observation"].clone(), pool.pid()
    td, td_ = step(pool, td, GO, deed, GO, GO)
    following = td["next"]
    assert following[MARK].squeeze(-1).tolist() == [True, True, False, False]
    assert following["truncated"].squeeze(-1).tolist() == [True, True, False, False]
    assert following["reward"].squeeze(-1).tolist() == [0, 0, 2, 2]
    assert torch.equal(following["observation"][:2], before[:2])
    assert td_["observation"][:, 1].tolist() == [0, 0, 2, 2]
    assert not (td_["observation"][:2, 2] == before[:2, 2]).any()  # another seed
    td, _ = step(pool, td_, GO, GO, GO, GO)
    assert td["next", "reward"].squeeze(-1).tolist() == [1, 1, 3, 3]
    stats = pool.stats()
    assert (stats["restarts"], stats["restarts_of"], stats["timeouts"]) == (1, {0: 1}, int(deed == HANG))
    assert [own == other for own, other in zip(pool.pid(), pids, strict=True)] == [False, False, True, True]


def test_no_more_is_replaced_than_may_be(started: Any) -> None:
    pool = started(deeds(1), on_worker_failure="restart", max_restarts=(1, 3600.0))
    td, _ = step(pool, pool.reset(), KILL)
    assert td["next", MARK].item()
    with pytest.raises(WorkerDiedError):
        step(pool, pool.reset(), KILL)


def test_a_step_that_takes_too_long_is_an_error(started: Any) -> None:
    pool = started(deeds(2), step_timeout=1.0)
    td = pool.reset()
    pool.async_step_send(td.set("action", torch.tensor([HANG, GO])))
    assert pool.async_step_recv()["env_index"].tolist() == [1]
    with pytest.raises(WorkerTimeoutError, match="the step of env 0 took longer than the step_timeout of 1 s"):
        pool.async_step_recv()
    pool.async_reset_send(env_index=1, options={"hang": True})
    with pytest.raises(WorkerTimeoutError, match="the reset of env 1 took longer"):
        pool.async_reset_recv(env_index=1)


def test_an_idle_actor_that_dies_is_heard_of_by_the_next_call(started: Any) -> None:
    pool = started(deeds(2))
    pool.reset()
    watched = watch([pool.pid()[0]])
    os.kill(pool.pid()[0], signal.SIGKILL)
    assert not still_running(watched)
    pool.async_reset_send(env_index=[1])
    assert pool.async_reset_recv()["env_index"].tolist() == [1]
    with pytest.raises(WorkerDiedError) as caught:
        pool.reset()
    assert caught.value.env_indices == (0,)


# ---------------------------------------------------------------- time limits, interrupts, the end


def test_a_receive_has_a_time_limit_and_loses_nothing(started: Any) -> None:
    pool = started(deeds(2))
    td = pool.reset()
    pool.async_step_send(td.set("action", torch.tensor([GO, HANG])))
    with pytest.raises(TimeoutError):
        pool.async_step_recv(min_get=2, timeout=0.3)
    assert pool.async_step_recv(min_get=1)["env_index"].tolist() == [0]
    with pytest.warns(UserWarning, match=r"workers \[1\] did not close the envs \[1\] in time and were killed"):
        pool.shutdown(timeout=0.5)


def test_what_an_interrupt_ends_can_be_gone_on_with(started: Any) -> None:
    """Wherever in a call it comes: the envs are to be reset then, and answer."""
    pool = started(deeds(2), envs_per_worker=2)
    pool.set_seed(0)
    expected = pool.reset()["observation"]
    at, is_over = 1, False
    while not is_over:
        pool.set_seed(0)
        came, _ = interrupted(pool.reset, at)
        is_over = not came
        at += 7
        pool.set_seed(0)
        assert torch.equal(pool.reset()["observation"], expected)
    assert at > 50


def test_closing_and_letting_go_leave_no_process(started: Any) -> None:
    watched = {}
    for end in ("close", "shutdown", "let go"):
        pool = AsyncEnvPool(deeds(2), backend="ray")
        pool.reset()
        watched |= watch(pool.pid())
        if end == "let go":
            del pool
            gc.collect()
        else:
            getattr(pool, end)()
    assert not still_running(watched)
    assert ray.is_initialized()  # it is the program's own


def test_a_closed_pool_starts_again(started: Any) -> None:
    pool = started(deeds(1))
    pool.reset()
    pool.close()
    assert pool.reset()["observation"].shape == (1, 3)


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"exchange": "shm"}, ValueError, "exchange: got 'shm'"),
        ({"worker_affinity": [[0]]}, ValueError, "worker_affinity: got"),
        ({"actor_options": {"no_such": 1}}, ValueError, "actor_options: .*no_such"),
        ({"actor_options": {"num_gpus": -1}}, ValueError, "actor_options: .*num_gpus"),
        ({"actor_options": {"max_restarts": 1}}, ValueError, r"actor_options: got \['max_restarts'\]"),
        ({"actor_options": {"object_store_memory": 1}}, ValueError, "actor_options: got 'object_store_memory'"),
        ({"actor_options": 3}, TypeError, "actor_options: got 3 of type int"),
    ],
)
def test_options_that_there_are_not(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        AsyncEnvPool(deeds(1), backend="ray", **options)


def test_actor_options_are_rays_alone() -> None:
    for backend in ("threading", "multiprocessing", "asyncio"):
        with pytest.raises(ValueError, match="actor_options: got"):
            AsyncEnvPool(deeds(1), backend=backend, actor_options={"num_cpus": 1})


def test_actors_have_the_resources_that_they_are_given(started: Any) -> None:
    pool = started(deeds(2), actor_options={"num_cpus": 1})
    pool.reset()
    deadline = perf_counter() + PATIENCE
    while ray.available_resources().get("CPU"):  # Ray's own count comes a little later
        assert perf_counter() < deadline


def test_actors_for_which_there_is_no_room_are_an_error_that_says_so(started: Any) -> None:
    with pytest.raises(WorkerStartError, match=r"not made within the start timeout.*'num_gpus': 1.*'CPU'"):
        started(deeds(1), actor_options={"num_gpus": 1}, start_timeout=1.0).reset()


def test_the_class_of_the_backend() -> None:
    pool = AsyncEnvPool(deeds(1), backend="ray")
    assert type(pool) is RayAsyncEnvPool
    assert (pool.backend, type(RayAsyncEnvPool(deeds(1))).__name__) == ("ray", "RayAsyncEnvPool")
    with pytest.raises(ValueError, match="expected one of 'threading', 'multiprocessing', 'asyncio', 'ray'"):
        AsyncEnvPool(deeds(1), backend="spark")


# ---------------------------------------------------------------- whole programs, with clusters of their own

BEGIN = """
import os, signal, sys, threading, warnings
from time import perf_counter

import ray
import torch
from ray_cluster import SMALL
from ray_envs import GO, HANG, deeds
from gymbridge import AsyncEnvPool
from gymbridge.errors import WorkerDiedError, WorkerStartError

QUIET = {"log_to_driver": False, "logging_level": "ERROR"}


def say(*words):
    print(">", *words, flush=True)
"""


@pytest.fixture
def program(tmp_path: Path, subprocess_env: dict[str, str]) -> Callable[[str], list[str]]:
    """Runs a script, which sees no other cluster of this machine: what it says."""

    def run(script: str) -> list[str]:
        path = os.pathsep.join([str(Path(__file__).parents[1]), subprocess_env.get("PYTHONPATH", "")])
        env = {**subprocess_env, "PYTHONPATH": path, "RAY_ADDRESS": "local", "RAY_DEDUP_LOGS": "0"}
        return run_quietly(tmp_path, BEGIN + script, env)

    return run


def run_quietly(folder: Path, script: str, env: dict[str, str]) -> list[str]:
    """As ``run_script``, whatever Ray says beside."""
    muted = "import os, sys\nos.dup2(os.open(os.devnull, os.O_WRONLY), 2)\n"
    lines = run_script(folder, muted + script, env).splitlines()
    return [line.removeprefix("> ") for line in lines if line.startswith("> ")]


def test_a_cluster_is_started_where_there_is_none_and_ended_with_the_last_pool(program: Any) -> None:
    """And not by a fork, which is refused one; the module's example runs after that, with a cluster of its own."""
    assert program("""
import doctest
import gymbridge.interop.ray as tested

pools = [AsyncEnvPool(deeds(1), backend="ray") for _ in range(2)]
say(ray.is_initialized())
for pool in pools:
    pool.reset()
    say(ray.is_initialized())
child = os.fork()
if not child:
    signal.alarm(60)
    for pool in pools:
        pool.shutdown()
    try:
        AsyncEnvPool(deeds(1), backend="ray").reset()
    except RuntimeError as error:
        say("a fork" in str(error))
    os._exit(0)
say(os.waitpid(child, 0)[1])
for pool in pools:
    pool.reset()
    pool.shutdown()
    say(ray.is_initialized())
result = doctest.testmod(tested)
say(result.failed, result.attempted > 3)
""") == ["False", "True", "True", "True", "0", "True", "False", "0 True"]


def test_a_session_that_ends_is_an_error_at_once(program: Any) -> None:
    """And where workers are to be replaced, there is none to be had. An interrupt has ended a wait before that."""
    assert program("""
ray.init(**SMALL, **QUIET)
pools = [AsyncEnvPool(deeds(1), backend="ray", on_worker_failure=mode) for mode in ("raise", "restart")]
for pool in pools:
    pool.async_step_send(pool.reset().set("action", torch.tensor([HANG])))
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        pool.async_step_recv()
    except KeyboardInterrupt:
        say("interrupted")
shut_down = threading.Timer(0.2, ray.shutdown)
shut_down.start()
for pool in pools:
    try:
        pool.async_step_recv()
    except (WorkerDiedError, WorkerStartError):  # and then of its shutdown, or of actors whose owner is gone
        say("an error")
shut_down.join()
for pool in pools:
    try:
        pool.reset()
    except (WorkerDiedError, WorkerStartError) as error:
        say(type(error).__name__)
    say(ray.is_initialized())
    begun = perf_counter()
    pool.shutdown()
    say(perf_counter() - begun < 5)
""") == [
        *("interrupted", "interrupted", "an error", "an error"),
        *("WorkerDiedError", "False", "True", "WorkerStartError", "False", "True"),
    ]


def test_a_cluster_that_is_gone_is_an_error_and_no_hang(program: Any) -> None:
    """Its head and the actors die together: Ray itself would wait for the head for a minute, then end the process."""
    assert program("""
ray.init(**SMALL, **QUIET)
pools = [AsyncEnvPool(deeds(1), backend="ray", on_worker_failure=mode) for mode in ("raise", "restart")]
children = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().split()
    if words[3] == str(os.getpid()):
        children[words[1]] = int(pid)
tds = [pool.reset() for pool in pools]
pids = [children["(gcs_server)"], *(pid for pool in pools for pid in pool.pid())]
for pool, td in zip(pools, tds):
    pool.async_step_send(td.set("action", torch.tensor([HANG])))
begun = perf_counter()
for pid in pids:
    os.kill(pid, signal.SIGKILL)
for pool in pools:
    try:
        pool.async_step_recv()
    except (WorkerDiedError, WorkerStartError) as error:
        say(type(error).__name__, "is gone" in str(error))
begun_to_end = perf_counter()
for pool in pools:
    pool.shutdown()
say(perf_counter() - begun_to_end < 10)
for pool in (pools[0], AsyncEnvPool(deeds(1), backend="ray")):
    try:
        pool.reset()
    except WorkerStartError as error:
        say("no actor can be started" in str(error))
say(perf_counter() - begun < 50)
sys.stdout.flush()
os._exit(0)
""") == ["WorkerDiedError True", "WorkerStartError True", "True", "True", "True", "True"]


def test_batches_come_from_several_nodes_and_outlive_the_loss_of_one(program: Any) -> None:
    assert program("""
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
other = cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, **QUIET)
pool = AsyncEnvPool(
    deeds(4), backend="ray", envs_per_worker=2, actor_options={"num_cpus": 1}, on_worker_failure="restart"
)
pool.set_seed(0)
td = pool.reset()
nodes, pids = pool.node(), pool.pid()
say(len({*nodes}), nodes[0] == nodes[1], nodes[2] == nodes[3])
pool.async_step_send(td.set("action", torch.full((4,), GO)))
say(pool.async_step_recv(min_get=4)["env_index"].tolist())
third = cluster.add_node(num_cpus=1)
cluster.remove_node(other, allow_graceful=False)
for pid in {pid for pid, node in zip(pids, nodes) if node == other.node_id}:  # as where a machine is lost
    os.kill(pid, signal.SIGKILL)
td = pool.step(td.set("action", torch.full((4,), GO)))
lost = td["next", "info", "worker_restarted"].squeeze(-1).tolist()
say(lost == [node == other.node_id for node in nodes], len({*pool.node()}))
pool.shutdown()
ray.shutdown()
cluster.shutdown()
""") == ["2 True True", "[0, 1, 2, 3]", "True 2"]


def test_nothing_is_left_of_a_program_that_is_killed(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1]), subprocess_env.get("PYTHONPATH", "")])
    program = start_script(tmp_path, BEGIN + KILLED, {**subprocess_env, "PYTHONPATH": path})
    assert program.stdout is not None
    pids = [*map(int, program.stdout.readline().split())]
    watched = watch(pids)
    program.kill()
    program.communicate(timeout=PATIENCE)
    assert len(pids) == 2
    assert not still_running(watched)


KILLED = """
pool = AsyncEnvPool(deeds(2), backend="ray")
pool.reset()
print(*pool.pid(), flush=True)
sys.stdin.read()
"""
