"""What engines know of their workers is right, and the same everywhere, whichever die and are replaced."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from mortal_envs import GO, HANG, KILL, mortal

from gymbridge.engine import hangs, pool
from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.info_records import FORMS_KEY
from gymbridge.engine.pool import PoolEngine
from gymbridge.errors import CallTimeoutError, WorkerDiedError, WorkerTimeoutError
from gymbridge.vector import AsyncVectorEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tests the ends of workers as Linux has them")

SECONDS = 30.0
"""More than anything here takes."""


@pytest.fixture
def started() -> Iterator[Callable[..., PoolEngine[Any]]]:
    """Starts a pool's engine, whose envs are reset, and ends it."""
    engines: list[PoolEngine[Any]] = []

    def start(makers: list[Callable[[], Any]], **options: Any) -> PoolEngine[Any]:
        engine: PoolEngine[Any] = PoolEngine(makers, GymHostOptions(collect_infos=True), **options)
        engines.append(engine)
        engine.allocate()
        engine.run(bytes([Op.RESET] * len(makers)), None)
        return engine

    yield start
    for engine in engines:
        engine.close(terminate=True)


class GatedEnv(gym.Env[Any, Any]):
    """A step ends the episode; it waits until a FIFO was opened and closed, and so does a reset, at another.

    Args:
        folder: with the FIFOs ``step`` and ``reset``; where one is not there, nothing is waited for.
    """

    observation_space = gym.spaces.Box(0, 1, (1,), np.float64)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, folder: Path):
        self.folder = folder

    def _observation(self, gate: str) -> Any:
        if (self.folder / gate).exists():
            (self.folder / gate).read_bytes()
        return np.zeros(1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._observation("reset"), {}

    def step(self, action: Any) -> Any:
        return self._observation("step"), 0.0, True, False, {}


cloudpickle.register_pickle_by_value(sys.modules[__name__])


def actions(*deeds: int) -> Any:
    return [np.array(deeds)]


@pytest.mark.parametrize("max_restarts", [None, (10, 60.0)])
def test_descriptors_of_dead_workers_are_known_to_nobody_once_they_are_closed(started: Any, max_restarts: Any) -> None:
    """Else they would be taken for those of the worker, or of whatever else, that has their numbers next."""
    engine = started(mortal(3), max_restarts=max_restarts)
    groups = engine._crew._group, engine._ends
    bury, known = engine._crew._bury, dict[int, set[int]]()

    def bury_and_look(worker: int) -> None:
        bury(worker)
        known.setdefault(worker, {of for group in groups for of in group._index.values()})

    engine._crew._bury = bury_and_look
    report = engine.run(bytes([Op.STEP] * 3), actions(KILL, KILL, GO))
    assert {*known} == {0, 1}
    assert all(worker not in still for worker, still in known.items())
    if max_restarts is None:
        assert {row: type(error) for row, error in report.errors.items()} == dict.fromkeys((0, 1), WorkerDiedError)
        return
    for group in groups:
        assert {group._index[end.fileno()] for end in engine._crew.ends} == {0, 1, 2}
    engine.submit([0, 1, 2], bytes([Op.RESET] * 3), None)
    assert {*engine.wait(3, SECONDS)} == {0, 1, 2}


def test_a_step_and_the_reset_after_it_have_their_time_each(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a pool, where both are one piece of work."""
    clock = [0.0]
    for module in (hangs, pool):
        monkeypatch.setattr(module, "perf_counter", lambda: clock[0])
    engine = started([lambda: GatedEnv(tmp_path)], step_timeout=1.0)
    for gate in ("step", "reset"):
        os.mkfifo(tmp_path / gate)

    def timeouts_after(seconds: float) -> int:
        clock[0] += seconds
        engine.wait(0)
        return int(engine.stats()["timeouts"])

    engine.submit([0], bytes([Op.STEP_MAYBE_RESET]), actions(0))
    with open(tmp_path / "step", "wb"):  # once the env opens it too
        assert timeouts_after(0.7) == 0
    with open(tmp_path / "reset", "wb"):
        assert timeouts_after(0.7) == 0
        assert timeouts_after(0.7) == 0
        assert timeouts_after(0.7) == 1
    assert isinstance(engine.take([0], None).errors[0], WorkerTimeoutError)


def test_all_envs_of_a_process_that_is_ended_are_told_why(started: Any) -> None:
    """One of them took too long, the other's worker was the same process."""
    engine = started(mortal(2), envs_per_worker=2, step_timeout=0.5)
    engine.submit([0, 1], bytes([Op.STEP] * 2), actions(GO, HANG))
    assert {*engine.wait(2, SECONDS)} == {0, 1}
    engine.take([0], None)
    engine.release([0])
    (hung,) = engine.take([1], None).errors.values()
    engine.release([1])
    engine.submit([0], bytes([Op.RESET]), None)
    assert engine.wait(1, SECONDS) == [0]
    (sibling,) = engine.take([0], None).errors.values()
    assert isinstance(sibling, WorkerTimeoutError)
    assert str(sibling) == str(hung)


def test_what_was_counted_stays_known_after_the_end() -> None:
    envs: Any = AsyncVectorEnv(mortal(2), num_workers=2, on_worker_failure="restart", step_timeout=0.5)
    envs.reset()
    envs.step([GO, HANG])
    counted = envs.stats()
    assert counted.items() >= {"restarts": 1, "restarts_of": {1: 1}, "timeouts": 1}.items()
    envs.close()
    assert envs.stats().items() >= {"restarts": 1, "restarts_of": {1: 1}, "timeouts": 1}.items()


@pytest.mark.parametrize("together", [True, False], ids=["taken together", "taken one by one"])
def test_the_info_of_an_env_that_has_stepped_outlives_its_worker(started: Any, together: bool) -> None:
    """Another env of the process has ended it, and is received before or with it."""
    engine = started(mortal(2), envs_per_worker=2, max_restarts=(10, 60.0))
    for row, deed in enumerate((GO, KILL)):
        engine.submit([row], bytes([Op.STEP]), actions(deed))
        assert row in engine.wait(row + 1, SECONDS)
    block = Block(engine.block.layout)
    if together:
        report = engine.take([0, 1], block)
        assert report.lost == {1}
    else:
        assert engine.take([1], block).lost == {0}
        assert not engine.take([0], block).lost
    assert block.next[FORMS_KEY][0].tolist().count(0) == 1  # the step's alone
    assert engine.block.next["reward",][0] == 1
    engine.submit([0], bytes([Op.STEP]), actions(GO))
    engine.wait(1, SECONDS)
    assert engine.take([0], block).lost == {0}
    assert not block.next[FORMS_KEY][0].any()


def test_seeds_of_rows_that_are_not_reset_are_ignored(started: Any) -> None:
    """Also where they are kept for workers that replace others."""
    engine = started(mortal(2), max_restarts=(10, 60.0))
    engine.run(bytes([Op.RESET, Op.IDLE]), None, [{"seed": 7}, {"seed": 7}])
    assert engine.restarts.next_seed(0) is not None
    assert engine.restarts.next_seed(1) is None


@pytest.mark.parametrize("max_restarts", [None, (10, 60.0)], ids=["raise", "restart"])
@pytest.mark.parametrize("in_round", [True, False], ids=["round", "lane"])
def test_an_env_that_hangs_in_a_call_that_was_given_up_is_ended_too(
    started: Any, in_round: bool, max_restarts: Any
) -> None:
    """The next call waits for what was given up, and not for ever."""
    engine = started(mortal(2), step_timeout=0.5, max_restarts=max_restarts)
    if in_round:
        engine.send(bytes([Op.STEP] * 2), actions(GO, HANG))
        with pytest.raises(CallTimeoutError):
            engine.receive(0.0)
    else:
        engine.submit([1], bytes([Op.STEP]), actions(HANG), lane=True)
        with pytest.raises(CallTimeoutError):
            engine.wait_for(1, 0.0)
        engine.abandon([1])
    if max_restarts is None:
        with pytest.raises(WorkerTimeoutError, match="the step of env 1"):
            engine.run(bytes([Op.RESET] * 2), None)
    else:
        assert not engine.run(bytes([Op.RESET] * 2), None).errors
    assert engine.stats()["timeouts"] == 1


def test_what_an_env_gave_is_kept_before_another_thread_may_replace_its_worker(started: Any) -> None:
    """Else a step that was done would be cut off, and shown as one that was not."""
    engine = started(mortal(2), envs_per_worker=2, max_restarts=(10, 60.0))
    sibling = threading.Thread(target=lambda: engine.submit([1], bytes([Op.STEP]), actions(GO)))

    class Lock:
        """The engine's, which another thread gets, and replaces the worker, as soon as it can."""

        def __enter__(self) -> None:
            engine_lock.acquire()

        def __exit__(self, *error: object) -> None:
            engine_lock.release()
            if threading.current_thread() is not sibling and not sibling.ident:
                os.kill(engine._crew._workers[0]._common.process.pid, signal.SIGKILL)
                engine._crew._workers[0].join(SECONDS)
                engine._crew.look_for_dead([1])
                sibling.start()
                sibling.join(SECONDS)

    engine_lock = engine._replacing_lock
    engine.submit([0], bytes([Op.STEP]), actions(GO), lane=True)
    engine.wait_for(0, SECONDS)
    engine._replacing_lock = Lock()
    block = Block(engine.block.layout)
    assert not engine.take([0], block).lost
    assert block.next["reward",][0] == 1
    assert engine.stats()["restarts"] == 1


@pytest.mark.parametrize("envs_per_worker", [1, 2])
def test_what_a_maker_raises_the_second_time_costs_the_other_envs_nothing(
    started: Any, tmp_path: Path, envs_per_worker: int
) -> None:
    """They are received after it, and the next call makes the env."""
    engine = started(mortal(4, tmp_path, ["", "init"]), envs_per_worker=envs_per_worker, max_restarts=(10, 60.0))
    for row, deed in enumerate((GO, KILL, GO, GO)):
        engine.submit([row], bytes([Op.STEP]), actions(deed))
        assert row in engine.wait(row + 1, SECONDS)
    block = Block(engine.block.layout)
    (failed,) = engine.take([0, 1, 2, 3], block).errors.items()
    assert failed[0] == 1
    with pytest.raises(LookupError, match="not now") as raised:
        raise failed[1]
    assert raised.value.env_index == 1  # type: ignore[attr-defined]
    assert not engine.take([0, 2, 3], block).errors
    assert block.next["reward",][:3].tolist() == [1, 1, 1]
    engine.submit([1], bytes([Op.RESET]), None)
    engine.wait(1, SECONDS)
    assert not engine.take([1], block).errors
