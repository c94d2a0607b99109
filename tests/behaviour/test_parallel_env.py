"""What is ``ParallelEnv``'s own: workers, options about them, and what becomes of them."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from by_hand import assert_equal
from gymnasium.error import ResetNeeded
from tensordict_zoo import CountingTensorDictEnv, TaskEnv
from worker_processes import run_script, still_running, watch
from zoo import CountingEnv

from gymbridge import ParallelEnv, SerialEnv
from gymbridge.engine.remote_errors import RemoteTraceback
from gymbridge.envs import GymEnv
from gymbridge.errors import UnpicklableError, WorkerDiedError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux has them")

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Acting(CountingEnv):
    """Tells its process, and does in a step what ``act`` says."""

    act = ""

    def pid(self) -> int:
        return os.getpid()

    def loaded(self) -> list[str]:
        return [name for name in ("torch", "tensordict") if name in sys.modules]

    def step(self, action: Any) -> Any:
        if self.act == "raise":
            raise LookupError("broken", 3)
        if self.act == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class ActingTensorDictEnv(CountingTensorDictEnv):
    """The same as a TensorDict env."""

    act = ""
    pid = Acting.pid

    def _step(self, tensordict: Any) -> Any:
        if self.act == "raise":
            raise LookupError("broken", 3)
        if self.act == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._step(tensordict)


KINDS: dict[str, Any] = {
    "gymnasium": lambda: Acting(),
    "GymEnv": lambda: GymEnv(Acting),
    "own": lambda: ActingTensorDictEnv(0),
}


@pytest.fixture(params=KINDS)
def maker(request: pytest.FixtureRequest) -> Any:
    """Makers of acting envs of each kind."""
    return KINDS[request.param]


def workers_of(env: Any) -> list[int]:
    return sorted(set(env.pid()))


def stepped(env: Any, td: Any) -> Any:
    return env.step(td.update(env.full_action_spec.zero()))


# ---------------------------------------------------------------- where the envs run


def test_no_env_is_in_this_process_and_each_worker_has_its_run() -> None:
    env: Any = ParallelEnv(5, Acting, num_workers=2)
    pids = env.pid()
    assert os.getpid() not in pids
    assert len(set(pids)) == 2
    assert pids == sorted(pids, key=pids.index)
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 3]
    env.close()


def test_workers_of_gymnasium_envs_import_no_torch() -> None:
    env: Any = ParallelEnv(2, lambda: Acting())
    env.rollout(5, break_when_any_done=False)
    assert env.loaded() == [[], []]
    env.close()


def test_one_way_or_another_the_results_are_those_of_serial_env(maker: Any) -> None:
    """Through the block, by message, packed or not, mapped or not, one process or three."""
    expected = rolled_out(SerialEnv(3, maker))
    ways: list[dict[str, Any]] = [
        {"num_workers": 1},
        {"num_workers": 3, "memmap": True},
        {"use_buffers": False},
        {"use_buffers": False, "consolidate": False},
    ]
    for options in ways:
        with ParallelEnv(3, maker, **options) as env:
            assert_equal(rolled_out(env), expected)


def rolled_out(env: Any) -> Any:
    env.set_seed(0)
    idle = env.full_action_spec.zero()
    return env.rollout(12, break_when_any_done=False, policy=lambda td: td.update(idle.clone()))


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"shared_memory": True, "memmap": True}, ValueError, "shared_memory and memmap: got True for both"),
        ({"shared_memory": False, "memmap": False}, ValueError, "shared_memory and memmap: got False for both"),
        ({"memmap": "yes"}, TypeError, "memmap: got 'yes'"),
        ({"num_workers": 3}, ValueError, "num_workers: got 3, expected 1 to 2"),
        ({"num_workers": 0}, ValueError, "num_workers: got 0, expected at least 1"),
        ({"num_threads": 0}, ValueError, "num_threads: got 0, expected at least 1"),
        ({"num_sub_threads": 1.5}, TypeError, "num_sub_threads: got 1.5"),
        ({"mp_start_method": "thread"}, ValueError, "mp_start_method: got 'thread'"),
        ({"start_timeout": -1}, ValueError, "start_timeout: got -1"),
        ({"shutdown_timeout": "soon"}, TypeError, "shutdown_timeout: got 'soon'"),
        ({"daemon": None}, TypeError, "daemon: got None"),
        ({"step_timeout": 0}, ValueError, "step_timeout: got 0, expected more than 0 seconds"),
        ({"pin_memory": True}, TypeError, "pin_memory"),
    ],
)
def test_what_an_option_cannot_be_is_refused_at_once(options: dict[str, Any], error: type, told: str) -> None:
    with pytest.raises(error, match=told):
        ParallelEnv(2, CountingEnv, **options)


def test_num_workers_alone_is_a_process_each() -> None:
    env: Any = ParallelEnv(num_workers=3, create_env_fn=Acting)
    assert env.num_envs == env.num_workers == 3
    assert len(workers_of(env)) == 3
    env.close()


def test_serial_for_single() -> None:
    env = ParallelEnv(1, CountingEnv, serial_for_single=True, num_threads=1, mp_start_method="fork")
    assert isinstance(env, SerialEnv)
    assert env.reset().batch_size == (1,)
    assert type(ParallelEnv(2, CountingEnv, serial_for_single=True)) is ParallelEnv


def test_make_parallel() -> None:
    assert ParallelEnv.make_parallel(CountingEnv, num_envs=2).num_envs == 2
    assert ParallelEnv.make_parallel(2, CountingEnv, num_workers=1).num_workers == 1
    with pytest.raises(TypeError, match="make_parallel: got 1 arguments and num_envs=None"):
        ParallelEnv.make_parallel(CountingEnv)


def test_configure_parallel_before_the_start_and_not_after() -> None:
    env = ParallelEnv(2, CountingEnv)
    assert env.configure_parallel(use_buffers=False, memmap=True, num_threads=1) is env
    with pytest.raises(TypeError, match=r"configure_parallel: got \['num_envs'\]"):
        env.configure_parallel(num_envs=3)
    env.start()
    with pytest.raises(RuntimeError, match=r"configure_parallel: too late for \['use_buffers'\]"):
        env.configure_parallel(use_buffers=True)
    env.close()
    env.configure_parallel(use_buffers=None).reset()
    env.close()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "exec"])
def test_other_ways_to_start(method: Any) -> None:
    with ParallelEnv(2, "CartPole-v1", mp_start_method=method) as env:
        assert env.rollout(3).batch_size[0] == 2


def test_threads_here_and_there() -> None:
    before = torch.get_num_threads()

    class Threads(ActingTensorDictEnv):
        def threads(self) -> int:
            return torch.get_num_threads()

    env: Any = ParallelEnv(2, lambda: Threads(0), num_threads=3, num_sub_threads=2)
    other = ParallelEnv(2, CountingEnv, num_threads=5)
    assert env.threads() == [2, 2]
    assert torch.get_num_threads() == 3
    other.start()
    assert torch.get_num_threads() == 5
    env.close()
    assert torch.get_num_threads() == 5
    del other
    gc.collect()
    assert torch.get_num_threads() == before


def test_affinity() -> None:
    class Bound(CountingEnv):
        def cores(self) -> set[int]:
            return os.sched_getaffinity(0)

    core = min(os.sched_getaffinity(0))
    env: Any = ParallelEnv(2, Bound, worker_affinity=lambda worker: [core])
    assert env.cores() == [{core}] * 2
    env.close()
    with pytest.raises(ValueError, match="worker_affinity: got 1 entries, expected 2"):
        ParallelEnv(2, CountingEnv, num_workers=2, worker_affinity=[[core]]).start()


def test_a_sparse_observation_names_consolidate() -> None:
    class Sparse(CountingTensorDictEnv):
        def _step(self, tensordict: Any) -> Any:
            return super()._step(tensordict).set("sparse", torch.eye(2).to_sparse())

    env = ParallelEnv(2, Sparse, use_buffers=False)
    with pytest.raises(TypeError, match=r"consolidate: got True with a tensor of torch\.sparse_coo"):
        stepped(env, env.reset())
    env.close()


def test_a_maker_that_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(UnpicklableError, match="the maker of env 1"):
        ParallelEnv(2, [CountingEnv, lambda: lock and CountingEnv()]).start()


def test_one_env_from_two_makers_is_refused() -> None:
    """As far as they share a worker: what goes to two is copied on the way."""

    def make(kept: list[Any] = []) -> Any:  # noqa: B006  # so that each call gives the one in the list
        sys.modules.setdefault("_one_env", Acting())  # type: ignore[arg-type]
        return sys.modules["_one_env"]

    with pytest.raises(ValueError, match="the makers of envs 0 and 1 gave one and the same env"):
        ParallelEnv(2, make, num_workers=1).start()


def test_a_copy_starts_workers_of_its_own(maker: Any) -> None:
    env: Any = ParallelEnv(2, maker)
    env.reset()
    copy: Any = pickle.loads(pickle.dumps(env))
    assert set(workers_of(copy)).isdisjoint(workers_of(env))
    copy.close()
    assert env.reset().batch_size == (2,)
    env.close()


# ---------------------------------------------------------------- faults


def test_an_env_that_raises_costs_the_others_nothing(maker: Any) -> None:
    env: Any = ParallelEnv(3, maker, num_workers=2)
    td = env.reset()
    env.set_attr("act", ["", "raise", ""])
    with pytest.raises(LookupError) as raised:
        stepped(env, td)
    assert raised.value.args == ("broken", 3)
    assert raised.value.env_index == 1  # type: ignore[attr-defined]
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    partial = env.last_partial()
    assert partial["_failed"].tolist() == [False, True, False]
    assert partial["next", "reward"][1] == 0
    env.set_attr("act", "")
    with pytest.raises(ResetNeeded, match=r"envs \[1\] raised"):
        stepped(env, td)
    td = env.reset(partial.exclude("next", "_failed").set("_reset", partial["_failed"]))
    assert stepped(env, td)["next", "done"].shape == (3, 1)
    env.close()


def test_a_worker_that_dies_in_a_step_is_told(maker: Any) -> None:
    env: Any = ParallelEnv(3, maker, num_workers=3)
    td = env.reset()
    env.set_attr("act", ["", "", "die"])
    with pytest.raises(WorkerDiedError, match=r"worker 2, which ran the envs \[2\], has died: killed by SIGKILL"):
        stepped(env, td)
    assert env.last_partial()["_failed"].tolist() == [False, False, True]
    with pytest.raises((WorkerDiedError, ResetNeeded)):
        stepped(env, td)
    env.close()
    env.set_attr("act", "")
    assert env.reset().batch_size == (3,)  # started again
    env.close()


def test_a_worker_killed_while_idle_is_told_at_the_next_call(maker: Any) -> None:
    env: Any = ParallelEnv(2, maker, num_workers=2)
    td = env.reset()
    pids = env.pid()
    watched = watch(pids[:1])
    os.kill(pids[0], signal.SIGKILL)
    assert not still_running(watched)
    with pytest.raises(WorkerDiedError, match="worker 0"):
        stepped(env, td)
    env.close()


def test_closing_and_dropping_leave_nothing_behind(maker: Any) -> None:
    ParallelEnv(2, maker).start().close()  # the starter is there from now on
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))
    for drop in (False, True, False, True):
        env: Any = ParallelEnv(2, maker)
        env.rollout(3)
        watched, gone = watch(workers_of(env)), weakref.ref(env)
        if not drop:
            env.close()
        del env
        gc.collect()
        assert gone() is None
        assert not still_running(watched)
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_moving_keeps_the_workers() -> None:
    env: Any = ParallelEnv(2, [lambda: Acting(), lambda: TaskEnv(0)])
    assert env.device is None
    engine = env.engine
    env.to("cpu")
    assert env.engine is engine
    assert env.reset().device == torch.device("cpu")
    env.close()


@pytest.mark.parametrize(("ids", "has_torch"), [(["CartPole-v1"] * 2, False), (["CartPole-v1", "Pendulum-v1"], True)])
def test_workers_of_several_tasks_have_torch_from_the_start(ids: list[str], has_torch: bool) -> None:
    """Else each of them would import it for itself, for seconds; workers of one task do not need it."""
    preloaded = list[str]()

    class Recording(ParallelEnv):
        def _start_engine(self, preload: Sequence[str]) -> Any:
            preloaded.extend(preload)
            return super()._start_engine(preload)

    with Recording(2, ids) as env:
        env.rollout(2)
    assert bool(preloaded) is has_torch


# ---------------------------------------------------------------- scripts

SCRIPT = """
import gymnasium as gym, torch
from gymbridge import ParallelEnv
from gymbridge.envs import GymEnv

print("once")

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, False, False, {}

gym.register("Mine-v0", Mine)
for make in ("Mine-v0", lambda: GymEnv(Mine)):
    with ParallelEnv(2, make) as env:
        print(tuple(env.rollout(3).batch_size))
"""


def test_a_script_needs_no_guard_and_runs_once(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    assert run_script(tmp_path, SCRIPT, subprocess_env) == "once\n(2, 3)\n(2, 3)\n"
