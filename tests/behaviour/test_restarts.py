"""Workers that die are replaced: the run goes on, the caller is told, and the other envs' transitions are exact."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mortal_envs import DEATHS, GO, HANG, KILL, RAISE, STEP_TIMEOUT, mortal
from tensordict import TensorDict
from worker_processes import run_script, still_running, watch

import gymbridge
from gymbridge import AsyncEnvPool, ParallelEnv
from gymbridge.engine.hangs import HangWatch
from gymbridge.errors import WorkerDiedError, WorkerStartError, WorkerTimeoutError
from gymbridge.vector import AsyncVectorEnv, PoolVectorEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tests the ends of workers as Linux has them")

N = 4
MARK = ("info", "worker_restarted")


def as_tensordict_envs(makers: list[Callable[[], Any]]) -> list[Callable[[], Any]]:
    return [partial(lambda make: gymbridge.envs.GymEnv(make()), make) for make in makers]


def of_two_workers(makers: list[Any], **options: Any) -> ParallelEnv:
    return ParallelEnv(N, makers, num_workers=2, **options)


def by_message(makers: list[Any], **options: Any) -> ParallelEnv:
    return of_two_workers(as_tensordict_envs(makers), use_buffers=False, **options)


def lazily(makers: list[Any], **options: Any) -> ParallelEnv:
    return of_two_workers(as_tensordict_envs(makers), share_individual_td=True, **options)


def pool(makers: list[Any], **options: Any) -> AsyncEnvPool:
    return AsyncEnvPool(makers, backend="multiprocessing", **options)


def pool_by_message(makers: list[Any], **options: Any) -> AsyncEnvPool:
    return pool(as_tensordict_envs(makers), exchange="queue", **options)


def shared_pool(makers: list[Any], **options: Any) -> AsyncEnvPool:
    return pool(makers, envs_per_worker=2, **options)


BATCHES = {
    "gymnasium": (of_two_workers, [0, 1]),
    "by message": (by_message, [0, 1]),
    "lazy": (lazily, [0, 1]),
    "pool": (pool, [1]),
    "pool by message": (pool_by_message, [1]),
    "pool of shared processes": (shared_pool, [0, 1]),
}
"""Name -> what makes a batch of four, and the rows of which env 1's worker has the envs."""

each_batch = pytest.mark.parametrize(("make", "lost"), BATCHES.values(), ids=BATCHES)


@pytest.fixture
def started() -> Iterator[Callable[..., Any]]:
    """Starts a batch, which is closed at the end; its workers are gone then."""
    running: list[Any] = []

    def start(make: Callable[..., Any], makers: list[Any] | None = None, **options: Any) -> Any:
        options.setdefault("on_worker_failure", "restart")
        running.append(make(mortal(N) if makers is None else makers, **options))
        return running[-1]

    yield start
    for env in running:
        face = env._engine_face
        living = set[int]()
        if face is not None:
            crew = face.engine._crew
            processes = [getattr(own, "_common", None) for own in crew._workers]
            numbered = zip(crew._workers, processes, strict=True)
            living = {
                worker.pid if common is None else common.process.pid
                for number, (worker, common) in enumerate(numbered)
                if number not in crew.dead
            }
        watched = dict[int, int]()
        for pid in living:
            with suppress(ProcessLookupError):  # the process of one that hung
                watched |= watch([pid])
        env.close(raise_if_closed=False)
        assert not still_running(watched)


def rows_of(column: torch.Tensor) -> list[Any]:
    return [own.tolist() if own.numel() > 1 else own.item() for own in column]


def step(env: Any, td: Any, *actions: int, op: str = "step_and_maybe_reset") -> Any:
    td["action"] = torch.tensor(actions)
    return getattr(env, op)(td)


@each_batch
@pytest.mark.parametrize("deed", DEATHS.values(), ids=DEATHS)
def test_a_step_in_which_a_worker_dies(started: Any, make: Any, lost: list[int], deed: int) -> None:
    """Is truncated with the latest observation for the worker's envs, which are reset; the others notice nothing."""
    env = started(make, step_timeout=STEP_TIMEOUT)
    env.set_seed(5)
    td = env.reset()
    first = td["observation"].clone()
    _, td = step(env, td, GO, GO, GO, GO)
    before, td = td["observation"].clone(), td
    td, td_ = step(env, td, GO, deed, GO, GO)
    following = td["next"]
    for row in range(N):
        is_lost = row in lost
        assert following[MARK][row].item() is is_lost
        assert following["truncated"][row].item() is is_lost
        assert following["done"][row].item() is is_lost
        assert not following["terminated"][row].any()
        assert following["reward"][row].item() == (0 if is_lost else 2)
        if is_lost:
            assert torch.equal(following["observation"][row], before[row])
            assert td_["observation"][row][:2].tolist() == [row, 0]
            assert td_["observation"][row][2] != first[row][2]  # another seed: it is not to run into the same again
        else:
            assert following["observation"][row].tolist() == [row, 2, first[row][2].item()]
            assert torch.equal(td_["observation"][row], following["observation"][row])
    assert not td_[MARK].any()
    assert not td_["done"].any()
    td, _ = step(env, td_, GO, GO, GO, GO)
    assert [own[1] for own in rows_of(td["next", "observation"])] == [1 if row in lost else 3 for row in range(N)]
    assert not td["next"][MARK].any()
    stats = env.stats()
    assert stats["restarts"] == 1
    assert stats["timeouts"] == (deed == HANG)


@each_batch
def test_the_latest_observation_of_who_sends_actions_alone(started: Any, make: Any, lost: list[int]) -> None:
    """Is what the env showed, whether the caller has it in what is sent or not."""
    env = started(make)
    td = env.reset()
    td, td_ = step(env, td, GO, GO, GO, GO)
    before = td_["observation"].clone()
    alone = td_.select("action", strict=False)
    td = step(env, alone, GO, KILL, GO, GO, op="step")
    assert all(torch.equal(td["next", "observation"][row], before[row]) for row in lost)
    if isinstance(env, AsyncEnvPool):
        root = env.reset()
        env.async_step_send(TensorDict(action=torch.tensor([KILL]), batch_size=[1]), [1])
        assert torch.equal(env.async_step_recv()["next", "observation"][0], root["observation"][1])


@each_batch
def test_a_step_alone_and_a_reset_of_what_ended(started: Any, make: Any, lost: list[int]) -> None:
    env = started(make)
    td = step(env, env.reset(), GO, KILL, GO, GO, op="step")
    assert rows_of(td["next", "truncated"]) == [row in lost for row in range(N)]
    td = td["next"].exclude("reward")
    td["_reset"] = td["done"].clone()
    td = env.reset(td)
    td = step(env, td, GO, GO, GO, GO, op="step")
    assert [own[1] for own in rows_of(td["next", "observation"])] == [1 if row in lost else 2 for row in range(N)]


@each_batch
def test_a_reset_in_which_a_worker_dies_is_done_again(started: Any, make: Any, lost: list[int], tmp_path: Path) -> None:
    env = started(make, mortal(N, tmp_path, ["", "reset"]))
    td = env.reset()
    assert [own[:2] for own in rows_of(td["observation"])] == [[row, 0] for row in range(N)]
    assert env.stats()["restarts"] == 1
    td, _ = step(env, td, GO, GO, GO, GO)
    assert [own[1] for own in rows_of(td["next", "observation"])] == [1] * N
    assert not td["next", "done"].any()


@each_batch
def test_a_worker_that_dies_between_two_calls(started: Any, make: Any, lost: list[int]) -> None:
    """The next step is none: it is truncated, and shows what the caller knows."""
    env = started(make)
    td = env.reset()
    pid = env.pid()[1]
    watched = watch([pid])
    os.kill(pid, signal.SIGKILL)
    assert not still_running(watched)
    before = td["observation"].clone()
    td, td_ = step(env, td, GO, GO, GO, GO)
    assert rows_of(td["next"][MARK]) == [row in lost for row in range(N)]
    assert all(torch.equal(td["next", "observation"][row], before[row]) for row in lost)
    assert [own[1] for own in rows_of(td_["observation"])] == [0 if row in lost else 1 for row in range(N)]


@each_batch
def test_calls_of_envs_are_answered_by_those_made_anew(started: Any, make: Any, lost: list[int]) -> None:
    env = started(make)
    td = env.reset()
    pids = env.pid()
    watched = watch([pids[1]])
    os.kill(pids[1], signal.SIGKILL)
    assert not still_running(watched)
    assert [pid in pids for pid in env.pid()] == [row not in lost for row in range(N)]
    td, _ = step(env, td, GO, GO, GO, GO)
    assert rows_of(td["next"][MARK]) == [row in lost for row in range(N)]


@pytest.mark.parametrize("make", [of_two_workers, by_message, lazily])
def test_an_env_that_sleeps_while_its_worker_dies(started: Any, make: Any) -> None:
    """Is told of it in its next step, and shows until then what it showed."""
    env = started(make)
    td = env.reset()
    before = td["observation"].clone()
    td["_step"] = torch.tensor([False, True, True, True])
    td, td_ = step(env, td, GO, KILL, GO, GO)
    assert rows_of(td["next"][MARK]) == [False, True, False, False]
    assert torch.equal(td_["observation"][0], before[0])
    td, td_ = step(env, td_, GO, GO, GO, GO)
    assert rows_of(td["next"][MARK]) == [True, False, False, False]
    assert torch.equal(td["next", "observation"][0], before[0])
    assert [own[1] for own in rows_of(td_["observation"])] == [0, 1, 2, 2]


@each_batch
def test_too_many_deaths_are_raised(started: Any, make: Any, lost: list[int]) -> None:
    env = started(make, max_restarts=(2, 1e6))
    td = env.reset()
    for _ in range(2):
        _, td = step(env, td, GO, KILL, GO, GO)
    with pytest.raises(WorkerDiedError, match="SIGKILL") as died:
        step(env, td, GO, KILL, GO, GO)
    assert {*lost} == {*died.value.env_indices}
    assert env.stats()["restarts"] == 2
    with pytest.raises(WorkerDiedError):
        env.reset()


@each_batch
def test_what_a_maker_raises_the_second_time_comes_through(
    started: Any, make: Any, lost: list[int], tmp_path: Path
) -> None:
    """And the next call tries again."""
    env = started(make, mortal(N, tmp_path, ["", "init"]))
    td = env.reset()
    with pytest.raises(LookupError, match="not now") as raised:
        step(env, td, GO, KILL, GO, GO)
    assert raised.value.env_index == 1  # type: ignore[attr-defined]
    td = env.reset()
    td, _ = step(env, td, GO, GO, GO, GO)
    assert [own[1] for own in rows_of(td["next", "observation"])] == [1] * N


each_of_two_workers = pytest.mark.parametrize("make", [of_two_workers, by_message, lazily])


@each_of_two_workers
def test_what_a_maker_raises_the_second_time_costs_other_workers_nothing(
    started: Any, make: Any, tmp_path: Path
) -> None:
    """What their envs gave is the partial result, and they go on where they are."""
    env = started(make, mortal(N, tmp_path, ["", "init"]))
    td = env.reset()
    with pytest.raises(LookupError, match="not now") as raised:
        step(env, td, GO, KILL, GO, GO)
    assert raised.value.env_index == 1  # type: ignore[attr-defined]
    partial = env.last_partial()
    assert rows_of(partial["_failed"]) == [True, True, False, False]
    assert rows_of(partial["next", "reward"])[2:] == [1, 1]
    td = env.reset(TensorDict({"_reset": torch.tensor([True, True, False, False])}, [N]))
    td, _ = step(env, td, GO, GO, GO, GO)
    assert [own[1] for own in rows_of(td["next", "observation"])] == [1, 1, 2, 2]
    assert not td["next", "truncated"].any()


@each_of_two_workers
def test_where_the_limit_is_reached_between_two_dead_workers_one_goes_on(started: Any, make: Any) -> None:
    env = started(make, max_restarts=(1, 1e6))
    td = env.reset()
    with pytest.raises(WorkerDiedError) as died:
        step(env, td, KILL, GO, KILL, GO)
    assert died.value.env_indices == (2, 3)
    partial = env.last_partial()
    assert rows_of(partial["_failed"]) == [False, False, True, True]
    assert rows_of(partial["next"][MARK])[:2] == [True, True]
    assert rows_of(partial["next", "truncated"])[:2] == [True, True]
    assert env.stats()["restarts"] == 1


@pytest.mark.parametrize("make", [of_two_workers, pool])
def test_envs_that_are_others_when_they_are_made_anew_are_refused(started: Any, make: Any, tmp_path: Path) -> None:
    makers = mortal(N, tmp_path)
    makers[1] = mortal(N, tmp_path, width=2)[1]
    (tmp_path / "made-1").unlink(missing_ok=True)
    env = started(make, makers)
    td = env.reset()
    with pytest.raises(WorkerStartError, match=r"env 1: made anew, it is another"):
        step(env, td, GO, KILL, GO, GO)


@each_batch
def test_an_env_that_raises_is_no_failure_of_its_worker(started: Any, make: Any, lost: list[int]) -> None:
    env = started(make)
    with pytest.raises(LookupError, match="broken"):
        step(env, env.reset(), GO, RAISE, GO, GO)
    assert env.stats()["restarts"] == 0


@each_batch
def test_the_seeds_of_new_envs_follow_from_those_that_were_given(started: Any, make: Any, lost: list[int]) -> None:
    """Two runs are the same, each restart has another, and without a seed nothing is."""
    seen = []
    for seed in (5, 5, None):
        env = started(make)
        if seed is not None:
            env.set_seed(seed)
        td = env.reset()
        numbers = []
        for _ in range(2):
            _, td = step(env, td, GO, KILL, GO, GO)
            numbers += [td["observation"][row][2].item() for row in lost]
        seen.append(numbers)
        env.close()
    assert seen[0] == seen[1]
    assert len({*seen[0], *seen[2]}) == 4 * len(lost)


@each_batch
def test_the_state_of_the_lost_envs_alone_is_put_back(started: Any, make: Any, lost: list[int]) -> None:
    env = started(make)
    td = env.reset()
    _, td = step(env, td, GO, GO, GO, GO)
    saved, root = env.state_dict(), td.clone()
    _, td = step(env, td, GO, KILL, GO, GO)
    env.load_state_dict({f"worker{row}": saved[f"worker{row}"] for row in lost})
    td, _ = step(env, td, GO, GO, GO, GO)
    assert [own[1] for own in rows_of(td["next", "observation"])] == [2 if row in lost else 3 for row in range(N)]
    assert all(td["next", "observation"][row][2] == root["observation"][row][2] for row in lost)


@each_batch
def test_the_leaf_is_in_the_specs_in_this_mode_only(started: Any, make: Any, lost: list[int]) -> None:
    env = started(make)
    td, td_ = step(env, env.reset(), GO, GO, GO, GO)
    for shown in (td, td["next"], td_, env.fake_tensordict(), env.fake_tensordict()["next"]):
        assert (shown[MARK].shape, shown[MARK].dtype) == ((N,), torch.bool)
        assert env.observation_spec.is_in(shown.select(*env.observation_spec.keys()))
    raising = started(make, on_worker_failure="raise")
    assert MARK not in raising.observation_spec.keys(True, True)


def test_many_restarts_leave_nothing(started: Any) -> None:
    """Descriptors and memory maps are as many as before."""
    env = started(of_two_workers, max_restarts=(1000, 1.0))
    td = env.reset()

    def held() -> tuple[int, int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text().count("gymbridge")
        return len(os.listdir("/proc/self/fd")), maps

    counts = []
    for restart in range(24):
        _, td = step(env, td, GO, *([KILL, GO] if restart % 2 else [GO, KILL]), GO)
        counts.append(held())
    assert env.stats()["restarts"] == 24
    assert counts[3] == counts[-1]


# ---------------------------------------------------------------- pools


@pytest.mark.parametrize("make", [pool, pool_by_message, shared_pool])
def test_a_pool_whose_workers_die_loses_no_other_results(started: Any, make: Any) -> None:
    """Each env is received once for each time that it was sent, with its own steps or the mark of a restart."""
    env = started(make, max_restarts=(1000, 1.0))
    print("seed 3")
    generator = np.random.default_rng(3)
    env.async_reset_send()
    steps, known, op = dict.fromkeys(range(N), 0), {}, "reset"
    received = restarts = 0
    while received < 200:
        got = getattr(env, f"async_{op}_recv")()
        td, root = got if isinstance(got, tuple) else (None, got)
        received += len(root)
        for position, row in enumerate(root["env_index"].tolist()):
            if td is not None:
                following = td["next"][position]
                if following[MARK]:
                    assert following["done"].item()
                    assert torch.equal(following["observation"], known[row])
                    steps[row], restarts = 0, restarts + 1
                else:
                    steps[row] += 1
                    assert following["observation"][:2].tolist() == [row, steps[row]]
            assert root["observation"][position][:2].tolist() == [row, steps[row]]
            known[row] = root["observation"][position].clone()
        if td is None:
            op = "step_and_maybe_reset"
        root["action"] = torch.tensor([KILL if generator.random() < 0.1 else GO for _ in range(len(root))])
        env.async_step_and_maybe_reset_send(root)
        if op == "step_and_maybe_reset" and td is None and received < N:
            op = "reset" if len(env._calls._works[1]) else op
    assert restarts >= env.stats()["restarts"] > 5


@pytest.mark.parametrize("make", [pool, pool_by_message, shared_pool])
def test_a_lane_whose_worker_dies(started: Any, make: Any) -> None:
    env = started(make, step_timeout=STEP_TIMEOUT)
    root = env.reset()
    for deed in (KILL, HANG):
        sent = TensorDict(observation=root["observation"][1], action=torch.tensor(deed))
        env.async_step_send(sent, 1)
        following = env.async_step_recv(env_index=1)["next"]
        assert following[MARK].item()
        assert following["truncated"].item()
        assert torch.equal(following["observation"], root["observation"][1])
        env.async_reset_send(env_index=1)
        root["observation"][1] = env.async_reset_recv(env_index=1)["observation"]
        assert root["observation"][1][:2].tolist() == [1, 0]
        if env.envs_per_worker == 2:  # its sibling went with it
            env.async_step_send(TensorDict(observation=root["observation"][0], action=torch.tensor(GO)), 0)
            assert env.async_step_recv(env_index=0)["next"][MARK].item()
            env.async_reset_send(env_index=0)
            env.async_reset_recv(env_index=0)


@pytest.mark.parametrize("make", [pool, pool_by_message, shared_pool])
def test_lanes_in_threads_whose_workers_die(started: Any, make: Any) -> None:
    """At once, also two of one process: each thread has its env's own steps, or the mark."""
    env = started(make, max_restarts=(10_000, 1.0))
    root = env.reset()
    print("seed 11")
    errors: list[BaseException] = []

    def drive(row: int) -> None:
        generator = np.random.default_rng([11, row])
        own, steps = root[row], 0
        try:
            for _ in range(60):
                deed = KILL if generator.random() < 0.1 else GO
                sent = TensorDict(observation=own["observation"], action=torch.tensor(deed))
                env.async_step_and_maybe_reset_send(sent, row)
                td, following = env.async_step_and_maybe_reset_recv(env_index=row)
                if td["next"][MARK]:
                    assert torch.equal(td["next", "observation"], own["observation"])
                    steps = 0
                else:
                    steps += 1
                    assert td["next", "observation"][:2].tolist() == [row, steps]
                assert following["observation"][:2].tolist() == [row, steps]
                own = following
        except BaseException as error:
            traceback.print_exc()
            errors.append(error)

    threads = [threading.Thread(target=drive, args=(row,)) for row in range(N)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert env.stats()["restarts"] > 8


def test_a_pool_in_envpools_manner_whose_workers_die(started: Any) -> None:
    envs = PoolVectorEnv(started(pool), N)
    envs.async_reset()
    infos = envs.recv()[-1]
    envs.send(np.array([GO, KILL, GO, GO]), infos["env_id"])
    observations, rewards, _, truncations, infos = envs.recv()
    assert observations[:, 1].tolist() == [1, 0, 1, 1]
    assert rewards.tolist() == [1, 0, 1, 1]
    assert truncations.tolist() == infos["worker_restarted"].tolist() == [False, True, False, False]


# ---------------------------------------------------------------- envs that hang


@each_batch
def test_an_env_that_hangs_is_named(started: Any, make: Any, lost: list[int]) -> None:
    """With what it was doing; other workers' envs go on."""
    env = started(make, on_worker_failure="raise", step_timeout=STEP_TIMEOUT)
    td = env.reset()
    with pytest.raises(WorkerTimeoutError, match=r"the step of env 1 took longer than the step_timeout of 2 s") as hung:
        step(env, td, GO, HANG, GO, GO)
    assert {*hung.value.env_indices} == {*lost}
    assert isinstance(hung.value, WorkerDiedError)
    assert re.search(r"in wait\n.* in step\n", hung.value.stderr)  # where it hangs
    assert "  |   File" in str(hung.value)
    counts = env.stats(reset=True)
    assert [counts[name] for name in ("restarts", "restarts_of", "timeouts")] == [0, {}, 1]
    assert env.stats()["timeouts"] == 0


def test_a_worker_that_gets_on_does_not_hang() -> None:
    """However long it takes with all its envs: each has the time for itself."""
    at_work = {0: 1, 1: 1}
    watch_hangs = HangWatch(1e-9, at_work.get)
    watch_hangs.begin([0, 1])
    at_work[0] = 2
    assert watch_hangs.hung([0, 1]) == [1]
    assert watch_hangs.hung([0]) == [0]


# ---------------------------------------------------------------- the gymnasium API


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_a_vector_env_whose_worker_dies(mode: str, output: Any) -> None:
    envs: Any = AsyncVectorEnv(
        mortal(N), num_workers=2, on_worker_failure="restart", autoreset_mode=mode, output=output
    )
    envs.reset(seed=5)
    envs.step([GO] * N)
    observations, rewards, terminations, truncations, infos = map(np.asarray, envs.step([GO, KILL, GO, GO]))
    infos = infos.item()
    assert rewards.tolist() == [0, 0, 2, 2]
    assert not terminations.any()
    assert truncations.tolist() == [True, True, False, False]
    assert infos["worker_restarted"].tolist() == infos["_worker_restarted"].tolist() == [True, True, False, False]
    shown = [final[1] for final in infos["final_obs"][:2]] if mode == "SameStep" else observations[:2, 1].tolist()
    assert shown == [1, 1]
    assert observations[2:, 1].tolist() == [2, 2]
    if mode == "Disabled":
        envs.reset(options={"reset_mask": np.array([True, True, False, False])})
    observations, *_, infos = envs.step([GO] * N)
    assert np.asarray(observations)[:, 1].tolist() == ([0, 0, 3, 3] if mode == "NextStep" else [1, 1, 3, 3])
    assert "worker_restarted" not in infos
    assert envs.stats().items() >= {"restarts": 1, "restarts_of": {0: 1}, "timeouts": 0}.items()
    envs.close()


def test_a_vector_env_whose_env_hangs() -> None:
    envs: Any = AsyncVectorEnv(mortal(2), num_workers=2, step_timeout=STEP_TIMEOUT)
    envs.reset()
    with pytest.raises(WorkerTimeoutError, match="the step of env 1"):
        envs.step([GO, HANG])
    partial_result = envs.last_partial()
    assert partial_result[-1]["_failed"].tolist() == [False, True]
    assert partial_result[0][0, 1] == 1
    envs.close()


# ---------------------------------------------------------------- what is logged

QUIET = """
import os, signal
import gymnasium as gym
from gymbridge.vector import AsyncVectorEnv

class Mortal(gym.Wrapper):
    def step(self, action):
        return super().step(action) if action == 0 else os.kill(os.getpid(), signal.SIGKILL)

envs = AsyncVectorEnv([lambda: Mortal(gym.make("CartPole-v1"))] * 2, num_workers=2, on_worker_failure="restart")
envs.reset()
print(envs.step([0, 1])[3].tolist())
envs.close()
"""


def test_nothing_is_printed(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    """Unless the program asks for what is logged."""
    assert run_script(tmp_path, QUIET, subprocess_env) == "[False, True]\n"
    asked = "import logging\nlogging.basicConfig(format='%(name)s', stream=__import__('sys').stdout)\n"
    assert run_script(tmp_path, asked + QUIET, subprocess_env).splitlines()[0].startswith("gymbridge.")


def test_a_replacement_is_logged(started: Any, caplog: pytest.LogCaptureFixture) -> None:
    env = started(of_two_workers)
    step(env, env.reset(), GO, KILL, GO, GO)
    (record,) = [own for own in caplog.records if own.name.startswith("gymbridge")]
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("worker 0, which ran the envs [0, 1], has died: killed by SIGKILL")


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"on_worker_failure": "ignore"}, ValueError, "got 'ignore', expected 'raise' or 'restart'"),
        ({"max_restarts": 3}, TypeError, r"max_restarts: got 3, expected \(number, seconds\)"),
        ({"max_restarts": (0, 1.0)}, ValueError, "expected at least 1 in more than 0 seconds"),
        ({"max_restarts": (1, 0)}, ValueError, "expected at least 1 in more than 0 seconds"),
        ({"max_restarts": (1.5, 1)}, TypeError, "got the number 1.5, expected an int"),
        ({"max_restarts": (1, "s")}, TypeError, "got the seconds 's', expected a number"),
        ({"step_timeout": 0}, ValueError, "step_timeout: got 0, expected more than 0 seconds"),
        ({"step_timeout": "long"}, TypeError, "step_timeout: got 'long', expected seconds"),
    ],
)
@pytest.mark.parametrize("make", [of_two_workers, pool, lambda makers, **options: AsyncVectorEnv(makers, **options)])
def test_bad_options_are_refused_at_once(make: Any, options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make(mortal(N), **options)
