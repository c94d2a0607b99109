"""``AsyncVectorEnv`` against gymnasium's own: results to the bit, calls out of order, time-outs, the first error."""

from __future__ import annotations

import copy
import importlib
import inspect
import multiprocessing
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import waiting_envs
from agreement import assert_same, with_final_obs_in_space
from generated_envs import Plan, makers
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode
from vector_classes import travels
from waiting_envs import acting, release

from gymbridge.errors import CallTimeoutError
from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="there are no worker processes on Windows"),
    pytest.mark.filterwarnings("ignore:.*ERROR"),  # as which gymnasium tells what its workers raise
]

OURS_AND_THEIRS = pytest.mark.parametrize(
    "cls",
    [
        pytest.param(AsyncVectorEnv, id="ours"),
        pytest.param(gym.vector.AsyncVectorEnv, id="theirs", marks=pytest.mark.newest_gymnasium),
    ],
)

travels(sys.modules[__name__], waiting_envs)

MODES = tuple(AutoresetMode)
BOX = spaces.Box(0, 255, (2,), np.uint8)
NESTED = spaces.Dict(
    box=BOX,
    pair=spaces.Tuple([spaces.Discrete(3, start=-1), spaces.MultiBinary(2)]),
    real=spaces.Box(-1, 1, (2, 2), np.float64),
    choices=spaces.MultiDiscrete([2, 3]),
)
PLAN = Plan(
    NESTED,
    NESTED,
    lengths=(2, 3, 1),
    ends=((True, False), (False, True)),
    step_infos=({"x": 1, "inner": {"y": 2.5}}, {}, {"x": 3, "array": np.arange(3)}),
    reset_infos=({"begun": True},),
)
FAMILIES: dict[str, list[Callable[[], gym.Env]]] = {
    "CartPole": [lambda steps=steps: gym.make("CartPole-v1", max_episode_steps=steps) for steps in (5, 6, 7)],  # type: ignore[misc]
    "Pendulum": [lambda steps=steps: gym.make("Pendulum-v1", max_episode_steps=steps) for steps in (5, 6, 7)],  # type: ignore[misc]
    "nested": makers(PLAN, 3),  # type: ignore[dict-item]
}


def in_order(infos: Any) -> Any:
    return {key: in_order(infos[key]) for key in sorted(infos)} if isinstance(infos, dict) else infos


@pytest.mark.newest_gymnasium
@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_those_of_gymnasiums_own(family: str, mode: AutoresetMode, shared_memory: bool) -> None:
    """Also through ``..._async`` and ``..._wait``, and with other seeds and masks in the middle."""
    ours = AsyncVectorEnv(FAMILIES[family], shared_memory, autoreset_mode=mode, num_workers=2)
    theirs = gym.vector.AsyncVectorEnv(FAMILIES[family], shared_memory, autoreset_mode=mode)
    assert ours.metadata == theirs.metadata
    assert_same(ours.reset(seed=3), theirs.reset(seed=3), "reset")
    ours.action_space.seed(4)
    ended = np.zeros(3, np.bool_)
    for step in range(40):
        if mode is AutoresetMode.DISABLED and ended.any():
            mask = ended.copy()
        else:
            mask = np.array([step % 5 == 0, False, step % 7 == 0]) & ~ended  # there gymnasium resets twice
        if mask.any():
            options = {"reset_mask": mask}
            both = [envs.reset(seed=[step, None, 2], options=copy.copy(options)) for envs in (ours, theirs)]
            assert_same(*both, f"reset before step {step}")
        actions = ours.action_space.sample()
        for envs in (ours, theirs):
            envs.step_async(actions)
        our = ours.step_wait()
        *their, infos = theirs.step_wait()
        infos = with_final_obs_in_space(infos, theirs.single_observation_space)
        # the order of the infos' keys is that of its SyncVectorEnv, which is another than that of its AsyncVectorEnv
        assert_same((*our[:4], in_order(our[4])), (*their, in_order(infos)), f"step {step}")
        ended = our[2] | our[3]
    assert_same(ours.get_attr("np_random_seed"), theirs.get_attr("np_random_seed"))
    ours.close(), theirs.close()


@pytest.mark.newest_gymnasium
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(AsyncVectorEnv, gym.vector.AsyncVectorEnv), (SyncVectorEnv, gym.vector.SyncVectorEnv)],
    ids=["async", "sync"],
)
def test_methods_take_gymnasiums_arguments(ours: Any, theirs: Any) -> None:
    """All of them but ``worker``, in the same order, with the same defaults; what is ours alone comes after them."""

    def arguments(cls: Any, name: str) -> list[Any]:
        parameters = inspect.signature(getattr(cls, name)).parameters.values()
        return [(each.name, each.kind, each.default) for each in parameters if each.name != "worker"]

    public = [name for name in dir(theirs) if not name.startswith("_") and inspect.isfunction(getattr(theirs, name))]
    assert {"reset", "step", "call", "get_attr", "set_attr", "render", "close"} <= set(public)
    for name in ("__init__", *public):
        expected = arguments(theirs, name)
        own = arguments(ours, name)
        assert own[: len(expected)] == expected, name
        assert all(kind is inspect.Parameter.KEYWORD_ONLY for _, kind, _ in own[len(expected) :]), name


def test_attributes_and_repr() -> None:
    ours, theirs = AsyncVectorEnv(FAMILIES["nested"]), gym.vector.AsyncVectorEnv(FAMILIES["nested"])
    for name in ("observation_space", "single_observation_space", "action_space", "single_action_space"):
        assert getattr(ours, name) == getattr(theirs, name)
    for name in (
        *("num_envs", "render_mode", "spec", "copy", "observation_mode", "autoreset_mode"),
        *("shared_memory", "context", "daemon", "env_fns", "closed"),
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert repr(ours) == repr(theirs)
    ours.close(), theirs.close()


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_the_number_of_workers_changes_nothing(num_workers: int) -> None:
    plan = Plan(NESTED, lengths=(2, 3, 1), step_infos=({"x": 1}, {}))
    ours = AsyncVectorEnv(makers(plan, 5), num_workers=num_workers, autoreset_mode="SameStep")
    local = SyncVectorEnv(makers(plan, 5), autoreset_mode="SameStep")
    assert ours.num_workers == num_workers
    assert_same(ours.reset(seed=1), local.reset(seed=1))
    for step in range(8):
        actions = np.arange(5) % 3
        assert_same(ours.step(actions), local.step(actions), f"step {step}")
        mask = np.arange(5) == step % 5
        assert_same(ours.reset(options={"reset_mask": mask}), local.reset(options={"reset_mask": mask}))
    assert_same(ours.get_attr("calls"), local.get_attr("calls"))
    ours.close()


CONTEXTS = (None, "exec", "fork", "spawn", "forkserver")


@pytest.mark.parametrize("context", CONTEXTS)
def test_what_workers_take_over_and_what_they_do_not(context: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings filters; but neither MPI's variables nor random states, which no two have and the caller keeps."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("GYMBRIDGE_TEST", "3")
    random.seed(0), np.random.seed(0)  # noqa: NPY002
    before = random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="bad")
        warnings.filterwarnings("ignore", message="old")
        each = [AsyncVectorEnv(acting(2), context=context, num_workers=2) for _ in range(2)]
    assert (random.getstate(), repr(np.random.get_state())) == before  # noqa: NPY002
    draws = [draw for envs in each for pair in envs.call("draws") for draw in pair]
    assert len({*draws, random.random(), np.random.random()}) == 2 * 2 * 2 + 2  # noqa: NPY002
    envs, other = each
    assert envs.call("warn", "bad news") == ("raised",) * 2
    assert envs.call("warn", "old news") == ("ignored",) * 2
    assert envs.call("warn", "news") == ("seen",) * 2
    assert envs.call("variable", "OMPI_COMM_WORLD_RANK") == (None,) * 2
    assert envs.call("variable", "GYMBRIDGE_TEST") == ("3",) * 2
    envs.close(), other.close()


ENV_THAT_RAISES = """
import gymnasium as gym
import numpy as np

print("imported", flush=True)

class OwnError(Exception):
    pass

class Raising(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.boom = OwnError("held")

    def reset(self, *, seed=None, options=None):
        return np.int64(0), {}

    def step(self, action):
        raise OwnError("in a step")
"""


def test_a_worker_does_not_import_the_module_of_a_class_that_it_has_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither for an error of that class nor for an attribute: importing it may run anything."""
    (tmp_path / "env_that_raises.py").write_text(ENV_THAT_RAISES)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("env_that_raises")
    cloudpickle.register_pickle_by_value(module)
    try:
        envs = AsyncVectorEnv([module.Raising])
        envs.reset()
        envs.get_attr("boom")
        with pytest.raises(module.OwnError, match="in a step"):
            envs.step(np.zeros(1, np.int64))
        envs.close()
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[module.__name__]
    assert capfd.readouterr().out == "imported\n"


@pytest.mark.parametrize("daemon", [True, False])
@pytest.mark.parametrize("context", CONTEXTS)
def test_an_env_may_start_processes_unless_daemonic(context: str | None, daemon: bool) -> None:
    """And is by ``multiprocessing``'s own rule only, which holds for workers that it started."""
    envs = AsyncVectorEnv(acting(2), context=context, daemon=daemon, num_workers=2)
    if daemon and context in ("fork", "spawn", "forkserver"):
        with pytest.raises(AssertionError, match="daemonic processes are not allowed to have children"):
            envs.call("process")
    else:
        assert envs.call("process") == (5, 5)
    envs.close()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this platform binds no process to cores")
@pytest.mark.parametrize("context", [None, "fork"])
def test_workers_have_the_cores_that_they_are_given(context: str | None) -> None:
    usable = sorted(os.sched_getaffinity(0))
    for given in ([usable[:1], usable], [{usable[-1]}, range(usable[0], usable[0] + 1)]):
        envs = AsyncVectorEnv(acting(4), context=context, num_workers=2, worker_affinity=given)
        assert envs.call("cores") == tuple(set(given[worker]) for worker in (0, 0, 1, 1))
        envs.close()
    assert sorted(os.sched_getaffinity(0)) == usable


@pytest.mark.parametrize("context", ["exec", "fork", "spawn", "forkserver"])
def test_ways_to_start(context: str) -> None:
    envs = AsyncVectorEnv(acting(2), context=context, num_workers=1)
    envs.reset()
    assert envs.step([1, 2])[1].tolist() == [1, 2]
    envs.close()


def test_max_concurrency_bounds_the_number_of_workers() -> None:
    envs = AsyncVectorEnv(acting(3), max_concurrency=1)
    assert envs.num_workers == 1
    assert len(set(envs.call("pid"))) == 1
    envs.close()
    with pytest.raises(ValueError, match="num_workers: got 2, expected at most max_concurrency, 1"):
        AsyncVectorEnv(acting(3), max_concurrency=1, num_workers=2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_concurrency": 0}, ValueError, "max_concurrency: got 0, expected None or an int of 1 or more"),
        ({"max_concurrency": 1.5}, ValueError, "max_concurrency: got 1.5"),
        ({"context": "thread"}, ValueError, "context: got 'thread', expected None or one of"),
        ({"num_workers": 0}, ValueError, "num_workers: got 0, expected 1 to 2, the number of envs"),
        ({"num_workers": 3}, ValueError, "num_workers: got 3, expected 1 to 2"),
        ({"num_workers": 1.0}, TypeError, "num_workers: got 1.0 of type float"),
        ({"worker_affinity": [[0]], "num_workers": 2}, ValueError, "worker_affinity: got 1 entries, expected 2"),
        ({"worker_affinity": [[]], "num_workers": 1}, ValueError, r"worker_affinity: got \[\] for worker 0"),
        ({"worker_affinity": [[99999]], "num_workers": 1}, ValueError, r"got \[99999\] .* expected some of the cores"),
        ({"worker_affinity": [[True]], "num_workers": 1}, TypeError, r"got \[True\] for worker 0, expected ints"),
    ],
)
def test_bad_options_are_refused_before_a_worker_is_started(
    options: dict[str, Any], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr("gymbridge.engine.worker_kinds.start_worker", never)
    with pytest.raises(error, match=message):
        AsyncVectorEnv(acting(2), **options)


def test_workers_import_neither_torch_nor_tensordict_and_make_all_envs() -> None:
    envs = AsyncVectorEnv(acting(2))
    assert envs.call("modules") == ([], [])
    assert multiprocessing.current_process().pid not in envs.call("pid")
    envs.close()


# ---------------------------------------------------------------- calls out of order


@pytest.fixture(params=["ours", pytest.param("theirs", marks=pytest.mark.newest_gymnasium)])
def either(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Ours, and gymnasium's: what each test says holds for both."""
    cls = AsyncVectorEnv if request.param == "ours" else gym.vector.AsyncVectorEnv
    envs = cls(makers(Plan(BOX), 2))
    envs.reset(seed=0)
    yield envs
    envs.close(terminate=True)


ACTIONS = np.array([0, 1])
BEGIN: dict[str, Callable[[Any], Any]] = {
    "reset": lambda envs: envs.reset_async(),
    "step": lambda envs: envs.step_async(ACTIONS),
    "call": lambda envs: envs.call_async("add", 1),
}
END: dict[str, Callable[[Any], Any]] = {
    "reset": lambda envs: envs.reset_wait(),
    "step": lambda envs: envs.step_wait(),
    "call": lambda envs: envs.call_wait(),
}
WHOLE: dict[str, Callable[[Any], Any]] = {
    "reset": lambda envs: envs.reset(),
    "step": lambda envs: envs.step(ACTIONS),
    "call": lambda envs: envs.call("add", 1),
    "get_attr": lambda envs: envs.get_attr("label"),
    "set_attr": lambda envs: envs.set_attr("label", "x"),
    "render": lambda envs: envs.render(),
}


@pytest.mark.filterwarnings("ignore:.*while waiting for a pending call")
@pytest.mark.parametrize("pending", BEGIN)
def test_while_a_call_is_pending(either: Any, pending: str) -> None:
    BEGIN[pending](either)
    for call in (*BEGIN.values(), *WHOLE.values()):
        with pytest.raises(AlreadyPendingCallError) as raised:
            call(either)
        assert raised.value.name == pending
    for name, wait in END.items():
        if name != pending:
            with pytest.raises(NoAsyncCallError) as missing:
                wait(either)
            assert missing.value.name == name
    END[pending](either)
    with pytest.raises(NoAsyncCallError):
        END[pending](either)
    either.step(ACTIONS)


def test_after_close(either: Any) -> None:
    either.close()
    for call in (*BEGIN.values(), *END.values(), *WHOLE.values()):
        with pytest.raises(ClosedEnvironmentError):
            call(either)
    either.close()


@pytest.mark.parametrize("name", ["reset", "step", "close"])
def test_what_call_does_not_reach(either: Any, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        either.call(name)


def test_that_a_vector_env_is_closed_is_told_before_what_call_does_not_reach(either: Any) -> None:
    either.close()
    with pytest.raises(ClosedEnvironmentError):
        either.call("reset")


def test_actions_that_do_not_fit_leave_nothing_pending(either: Any) -> None:
    if isinstance(either, AsyncVectorEnv):  # gymnasium's has sent some of them by then
        with pytest.raises(ValueError, match="got 1 actions"):
            either.step_async([0])
        either.step_async([0, 1])
        either.step_wait()


@OURS_AND_THEIRS
def test_the_first_env_that_raises(cls: Any) -> None:
    envs = cls(acting(2))
    envs.reset(seed=0)
    envs.set_attr("act", ["", "raise"])
    with pytest.raises(LookupError, match="broken"):
        envs.step(ACTIONS)
    envs.close(terminate=True)


# ---------------------------------------------------------------- time-outs


@OURS_AND_THEIRS
@pytest.mark.parametrize("what", ["reset", "step", "call"])
def test_a_wait_that_takes_too_long(cls: Any, what: str, tmp_path: Path) -> None:
    envs = cls(acting(2, tmp_path))
    envs.reset(seed=0)
    if what == "step":
        envs.set_attr("act", ["", "wait"])
        envs.step_async(ACTIONS)
    elif what == "reset":
        envs.set_attr("act", ["", "wait in reset"])
        envs.reset_async(seed=1)
    else:
        envs.call_async("wait")
    with pytest.raises(multiprocessing.TimeoutError) as raised:
        getattr(envs, f"{what}_wait")(timeout=0)
    with pytest.raises(NoAsyncCallError):
        END[what](envs)
    if cls is AsyncVectorEnv:
        assert isinstance(raised.value, CallTimeoutError)
        assert isinstance(raised.value, TimeoutError)
        threads = [threading.Thread(target=release, args=(tmp_path, index)) for index in range(2)]
        for thread in threads[what != "call" :]:
            thread.start()
        envs.set_attr("act", "")  # waits for what was under way
        if what != "call":
            with pytest.raises(ResetNeeded, match=r"envs \[0, 1\] .* interrupted"):
                envs.step(ACTIONS)
            envs.reset()
        assert envs.step(ACTIONS)[0][:, 1].tolist() == [1, 1]
        for thread in threads[what != "call" :]:
            thread.join()
    envs.close(terminate=True)


def test_a_second_thread_is_refused(tmp_path: Path) -> None:
    envs = AsyncVectorEnv(acting(2, tmp_path))
    envs.reset(seed=0)
    envs.set_attr("act", "wait")
    results: list[Any] = []
    first = threading.Thread(target=lambda: results.append(envs.step([1, 2])))
    first.start()
    release(tmp_path, 0)  # returns once the first env waits
    try:
        with pytest.raises(RuntimeError, match=r"^reset: refused while a call of step is under way"):
            envs.reset()
    finally:
        release(tmp_path, 1)
        first.join()
    assert results[0][1].tolist() == [1, 2]
    envs.close()
