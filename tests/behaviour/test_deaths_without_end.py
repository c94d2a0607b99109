"""Calls come to an end whatever workers do: hang while what was interrupted is waited for, or die again and again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from interrupts import interrupted
from mortal_envs import GO, HANG, KILL, STEP_TIMEOUT, MortalEnv, mortal

from gymbridge import AsyncEnvPool, ParallelEnv
from gymbridge.engine.codes import Op
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.pool import PoolEngine
from gymbridge.engine.restarts import Restarts
from gymbridge.errors import CallTimeoutError, WorkerDiedError, WorkerTimeoutError
from gymbridge.vector import AsyncVectorEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tests the ends of workers as Linux has them")

MARK = ("info", "worker_restarted")


class DyingInResets(MortalEnv):
    """Dies in each reset, or hangs in it, once a file is there."""

    def __init__(self, index: int, file: Path, *, hangs: bool = False):
        super().__init__(index)
        self.file, self.hangs = file, hangs

    def reset(self, **kwargs: Any) -> Any:
        if self.file.exists() and self.index == 1:
            if self.hangs:
                self.step(HANG)
            os._exit(4)
        return super().reset(**kwargs)


cloudpickle.register_pickle_by_value(sys.modules[__name__])


def parallel(makers: list[Callable[[], Any]], **options: Any) -> ParallelEnv:
    return ParallelEnv(len(makers), makers, num_workers=len(makers), **options)


def pool(makers: list[Callable[[], Any]], **options: Any) -> AsyncEnvPool:
    return AsyncEnvPool(makers, backend="multiprocessing", **options)


def shared_pool(makers: list[Callable[[], Any]], **options: Any) -> AsyncEnvPool:
    return pool(makers, envs_per_worker=2, **options)


@pytest.fixture
def started() -> Iterator[Callable[..., Any]]:
    running: list[Any] = []

    def start(make: Callable[..., Any], *args: Any, **options: Any) -> Any:
        running.append(make(*args, **options))
        return running[-1]

    yield start
    for env in running:
        env.close()


@pytest.mark.parametrize("make", [parallel, pool])
def test_an_env_that_hangs_in_an_interrupted_call_does_not_hold_up_the_next(
    started: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time counts on after the interrupt: its worker is ended and replaced."""
    env = started(make, mortal(2), step_timeout=STEP_TIMEOUT, on_worker_failure="restart")
    td = env.reset()
    td["action"] = torch.tensor([GO, HANG])
    engine = env._engine_face.engine

    def interrupted_wait(*args: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._crew, "wait", interrupted_wait)
    with pytest.raises(KeyboardInterrupt):
        env.step(td)
    td = env.reset()
    assert td["observation"][:, :2].tolist() == [[0, 0], [1, 0]]
    assert env.stats() == {"restarts": 1, "restarts_of": {1: 1}, "timeouts": 1}


def test_an_env_that_hangs_in_abandoned_work_of_a_pool_is_ended() -> None:
    """Before its row is given more."""
    engine = PoolEngine(mortal(2), GymHostOptions(), step_timeout=STEP_TIMEOUT)
    engine.allocate()
    engine.run(bytes([Op.RESET] * 2), None)
    engine.submit([1], bytes([Op.STEP]), [np.array([HANG])])
    engine.abandon([1])
    with pytest.raises(WorkerTimeoutError, match="the step of env 1"):
        engine.submit([1], bytes([Op.RESET]), None)
    engine.close()


def test_an_env_that_hangs_after_a_wait_with_a_timeout(started: Any) -> None:
    """Of step_wait, which has its own: the next call ends the worker."""
    envs = started(AsyncVectorEnv, mortal(2), num_workers=2, step_timeout=STEP_TIMEOUT)
    envs.reset()
    envs.step_async(np.array([GO, HANG]))
    with pytest.raises(CallTimeoutError):
        envs.step_wait(timeout=0.01)
    with pytest.raises(WorkerTimeoutError, match="the step of env 1"):
        envs.reset()


def test_a_wait_with_a_timeout_is_over_then_though_a_worker_is_replaced(started: Any, tmp_path: Path) -> None:
    """The new env hangs in its reset."""
    file = tmp_path / "now"
    makers = [partial(DyingInResets, index, file, hangs=True) for index in range(2)]
    options: dict[str, Any] = {"autoreset_mode": "SameStep", "shutdown_timeout": 0.1}
    envs = started(AsyncVectorEnv, makers, num_workers=2, on_worker_failure="restart", **options)
    envs.reset()
    file.touch()
    envs.step_async(np.array([GO, KILL]))
    with pytest.raises(CallTimeoutError):
        envs.step_wait(timeout=2.0)
    envs.close(terminate=True)


@pytest.mark.parametrize("make", [parallel, pool])
def test_a_worker_that_dies_of_each_reset_is_given_up(started: Any, make: Any, tmp_path: Path) -> None:
    """However long each lives, so that max_restarts never sees too many at once; the next call tries again."""
    file = tmp_path / "now"
    makers = [partial(DyingInResets, index, file) for index in range(2)]
    env = started(make, makers, on_worker_failure="restart", max_restarts=(3, 1e-9))
    td = env.reset()
    file.touch()
    td["action"] = torch.tensor([GO, KILL])
    with pytest.raises(WorkerDiedError, match="exit code 4, in the reset of env 1"):
        env.step_and_maybe_reset(td)
    assert env.stats()["restarts"] == 3
    file.unlink()
    td = env.reset()
    td["action"] = torch.tensor([GO, GO])
    td, _ = env.step_and_maybe_reset(td)
    assert td["next", "observation"][:, 1].tolist() == [1, 1]


def test_restarts_of_one_call_are_limited_however_long_it_takes() -> None:
    restarts = Restarts((2, 1e-9))
    assert [restarts.allow(0) for _ in range(3)] == [True, True, False]
    assert restarts.allow(1)
    restarts.begin_call()
    assert restarts.allow(0)


def test_a_process_that_hangs_with_two_envs_is_counted_once(started: Any) -> None:
    env = started(shared_pool, mortal(4), step_timeout=STEP_TIMEOUT, on_worker_failure="restart")
    td = env.reset()
    td["action"] = torch.tensor([GO, GO, HANG, HANG])
    td, _ = env.step_and_maybe_reset(td)
    assert td["next"][MARK].tolist() == [False, False, True, True]
    assert env.stats()["timeouts"] == 1


@pytest.mark.parametrize("make", [parallel, shared_pool])
def test_an_interrupt_at_each_call_of_a_replacement(started: Any, make: Any) -> None:
    """Leaves a batch that goes on after a reset."""
    env = started(make, mortal(2), on_worker_failure="restart", max_restarts=(100_000, 1.0))
    at, came = 1, True
    while came:
        td = env.reset()
        td["action"] = torch.tensor([GO, GO])
        td, following = env.step_and_maybe_reset(td)
        assert td["next", "observation"][:, :2].tolist() == [[0, 1], [1, 1]], at
        assert not td["next"][MARK].any(), at
        following["action"] = torch.tensor([GO, KILL])
        came, _ = interrupted(partial(env.step_and_maybe_reset, following), at)
        at += 37
    assert at > 1000


def test_a_worker_that_is_buried_in_two_parts(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt comes between: what is waited for is let go of with the rest, before its numbers are others'."""
    env = started(parallel, mortal(3), on_worker_failure="restart")
    td = env.reset()
    crew = env._engine_face.engine._crew

    def interrupted_let_go(worker: int) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(crew, "_let_go", interrupted_let_go)
    td["action"] = torch.tensor([GO, KILL, GO])
    with pytest.raises(KeyboardInterrupt):
        env.step(td)
    for _ in range(3):
        td = env.reset()
        td["action"] = torch.tensor([GO, GO, GO])
        td, _ = env.step_and_maybe_reset(td)
        assert td["next", "observation"][:, 1].tolist() == [1, 1, 1]
