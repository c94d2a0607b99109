"""``ParallelEnv(..., caller_steps=True)``: the caller steps a share of the envs instead of waiting."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import pytest
import torch
from by_hand import assert_equal
from engines import WITH_WORKERS
from gymnasium.error import ResetNeeded
from tensordict_zoo import CountingTensorDictEnv
from worker_processes import descendants, still_running, watch
from zoo import CountingEnv, DictEnv

from gymbridge import ParallelEnv, SerialEnv
from gymbridge.engine.caller_worker import CallerEnd, CallerWorker
from gymbridge.engine.codes import Op
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.mailbox import Mailbox
from gymbridge.engine.parallel import ParallelEngine
from gymbridge.engine.protocol import Answer, Command
from gymbridge.engine.worker_loop import EnvWorker
from gymbridge.envs import GymEnv, check_env_specs
from gymbridge.errors import WorkerDiedError
from gymbridge.vector import TensorDictVectorEnv

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux has them"),
    pytest.mark.skipif(not WITH_WORKERS, reason="about worker processes"),
]

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PATIENCE = 60.0
HERE = os.getpid()


class Acting(CountingEnv):
    """Tells its process, does in a step, a reset or at its close what it is told, and notes its end."""

    act: Any = None
    """What it raises in its next step, once."""
    closing: Exception | None = None
    made_here: ClassVar[list[Acting]] = []
    closed_here: ClassVar[list[str]] = []
    """Those of this process, and the names of those that were closed: workers have lists of their own."""

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.name = name
        self.made_here.append(self)

    def pid(self) -> int:
        return os.getpid()

    def steps(self) -> int:
        return len(self.actions)

    def step(self, action: Any) -> Any:
        act, self.act = self.act, None
        if act == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if act is not None:
            raise act
        return super().step(action)

    def close(self) -> None:
        self.closed_here.append(self.name)
        if self.closing is not None:
            raise self.closing


class Unsendable(Exception):
    """Of no module that another process knows, and with an argument that cannot be pickled."""


@pytest.fixture(autouse=True)
def closed() -> Iterator[list[str]]:
    """The names of envs that were closed in this process."""
    lists: list[list[Any]] = [Acting.made_here, Acting.closed_here]
    for each in lists:
        each.clear()
    yield Acting.closed_here
    for each in lists:
        each.clear()


def named(num_envs: int = 3) -> list[Any]:
    return [lambda name=f"env {index}": Acting(name) for index in range(num_envs)]


def batch(num_envs: int = 3, **options: Any) -> Any:
    """Two processes, and the last env here, unless told."""
    options = {"num_workers": 2, "caller_steps": True, **options}
    return ParallelEnv(num_envs, named(num_envs), **options)


def stepped(env: Any) -> Any:
    return env.step(env.full_action_spec.zero())["next"]


def here(env: Any) -> list[bool]:
    """Which envs are in this process."""
    return [pid == HERE for pid in env.pid()]


# ---------------------------------------------------------------- who runs what


@pytest.mark.parametrize(
    ("num_envs", "num_workers", "shares"),
    [(2, 1, [1, 1]), (3, 1, [2, 1]), (5, 1, [3, 2]), (5, 2, [2, 2, 1]), (8, 3, [2, 2, 2, 2]), (4, 3, [1, 1, 1, 1])],
)
def test_the_caller_has_the_last_run_and_none_of_the_longer(num_envs: int, num_workers: int, shares: list[int]) -> None:
    with ParallelEnv(num_envs, Acting, num_workers=num_workers, caller_steps=True) as env:
        pids: list[int] = list(env.pid())
        assert [pids.count(pid) for pid in dict.fromkeys(pids)] == shares
        assert pids[-1] == HERE
        assert [worker["steps"] for worker in env.stats()["workers"]] == [0] * len(shares)
        env.rollout(4, break_when_any_done=False)
        assert [worker["steps"] for worker in env.stats()["workers"]] == [4 * share for share in shares]


def test_unless_told_there_is_a_core_left_for_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def num_workers(num_envs: int, cores: int) -> int:
        monkeypatch.setattr("gymbridge.parallel_env.usable_cores", lambda: [*range(cores)])
        return ParallelEnv(num_envs, Acting, caller_steps=True).num_workers

    assert [num_workers(16, 1), num_workers(16, 2), num_workers(16, 64), num_workers(16, 8)] == [1, 1, 15, 7]
    with ParallelEnv(4, Acting, caller_steps=True) as env:
        assert here(env)[-1]
        assert not here(env)[0]


@pytest.mark.parametrize("maker", [CountingEnv, DictEnv, lambda: GymEnv(CountingEnv), lambda: CountingTensorDictEnv(0)])
@pytest.mark.parametrize(
    "options",
    [{}, {"use_buffers": False}, {"share_individual_td": True}, {"memmap": True}, {"num_workers": 3}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_the_results_are_those_of_serial_env(maker: Any, options: dict[str, Any]) -> None:
    """In whole steps, and where some envs sleep or are reset alone."""
    lazy = {key: own for key, own in options.items() if key == "share_individual_td"}

    def played(env: Any) -> list[Any]:
        env.set_seed(5)
        shown = [env.reset()]
        for index in range(8):
            td = shown[-1].clone().update(env.full_action_spec.zero())
            if index % 3 == 1:
                td["_step"] = torch.tensor([True, False, True, index % 2 == 0])
            following, root = env.step_and_maybe_reset(td)
            shown += [following.clone(), root.clone()]
        env.close()
        return shown

    expected = played(SerialEnv(4, maker, **lazy))
    got = played(ParallelEnv(4, maker, **{"num_workers": 2, "caller_steps": True, **options}))
    for one, other in zip(got, expected, strict=True):
        assert_equal(one, other)


class Meeting(CountingEnv):
    """Writes in each step that it is there, and goes on once the others are."""

    def __init__(self, folder: Path, name: int, num_envs: int):
        super().__init__((100,))
        self.folder, self.name, self.num_envs = folder, name, num_envs

    def step(self, action: Any) -> Any:
        (self.folder / f"{self.t}-{self.name}").touch()
        deadline = monotonic() + PATIENCE
        while len([*self.folder.glob(f"{self.t}-*")]) < self.num_envs:
            assert monotonic() < deadline, "the others did not come"
        return super().step(action)


def test_the_caller_steps_while_the_workers_do(tmp_path: Path) -> None:
    """Else each of these envs would wait for the others in vain."""
    makers = [lambda name=name: Meeting(tmp_path, name, 3) for name in range(3)]
    with ParallelEnv(3, makers, num_workers=2, caller_steps=True) as env:
        assert env.rollout(5, break_when_any_done=False)["next", "reward"].shape == (3, 5, 1)
    assert len([*tmp_path.iterdir()]) == 15


def test_verbs_reach_the_callers_envs_too() -> None:
    env = batch()
    env.reset()
    env.set_attr("lengths", [(2,), (3,), (4,)])
    assert list(env.lengths) == [(2,), (3,), (4,)]
    state = env.state_dict()
    one = stepped(env)["observation"]
    assert [*env.steps()] == [1, 1, 1]
    env.load_state_dict(state)
    env.reset()
    assert not torch.equal(stepped(env)["observation"][:, -1], one[:, -1])
    check_env_specs(env)
    env.close()


class Noted:
    """Kept in a list of its class, and counted in a global of this module, which is pickled by value."""

    instances: ClassVar[list[Noted]] = []

    def __init__(self) -> None:
        self.instances.append(self)

    def count(self) -> None:
        global num_counted
        num_counted += 1


num_counted = 0


def test_what_the_callers_envs_are_given_leaves_its_classes_as_they_are() -> None:
    """Pickled by value and unpickled here, it would have the class take a copy of its list and of its methods."""
    instances, count = Noted.instances, Noted.count
    before = num_counted
    env = batch()
    env.reset(options={"noted": Noted()})
    env.set_attr("noted", Noted())
    env.set_attr("make", lambda: Noted())
    assert Noted.instances is instances
    assert Noted.count is count
    assert isinstance(Acting.made_here[-1].noted, Noted)  # type: ignore[attr-defined]
    assert isinstance(Acting.made_here[-1].resets[-1]["options"]["noted"], Noted)
    Acting.made_here[-1].make().count()  # type: ignore[attr-defined]
    assert num_counted == before + 1
    env.close()


def test_what_the_callers_envs_give_leaves_classes_as_they_are() -> None:
    """The same the other way: of a class that only this function knows."""

    class Told:
        instances: ClassVar[list[Any]] = []

    class Telling(CountingEnv):
        def step(self, action: Any) -> Any:
            *outputs, info = super().step(action)
            return *outputs, {**info, "told": Told()}

    instances = Told.instances
    makers = [CountingEnv, Telling]
    engine: Any = ParallelEngine(makers, GymHostOptions.for_gymnasium(np.dtype("f8")), caller_steps=True)
    engine.allocate()
    engine.run(bytes([Op.RESET] * 2), None)
    report = engine.run(bytes([Op.STEP] * 2), [[0, 0]])
    assert type(report.steps[1]["told"]) is Told
    assert Told.instances is instances
    engine.close()


@pytest.mark.parametrize("caller_steps", [True, False])
def test_envs_that_are_started_in_inference_mode_go_on_outside_of_it(caller_steps: bool) -> None:
    """As those of a ``SerialEnv``: what lies in the block is no tensor of that mode."""
    env = ParallelEnv(3, CountingTensorDictEnv, num_workers=2, caller_steps=caller_steps)
    with torch.inference_mode():
        env.rollout(2, break_when_any_done=False)
    assert env.rollout(2, break_when_any_done=False)["next", "reward"].shape == (3, 2, 1)
    env.close()


def test_the_gymnasium_face_over_it() -> None:
    """Whose vector env is stepped as any other."""
    with batch() as env:
        vector = TensorDictVectorEnv(env)
        first, _ = vector.reset(seed=3)
        observations, rewards, *_ = vector.step(vector.action_space.sample() * 0)
        assert first.shape == observations.shape == (3, 4)
        assert rewards.tolist() == [1.0, 1.0, 1.0]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"step_timeout": 5.0}, ValueError, "step_timeout: got 5.0 with caller_steps, expected None"),
        ({"caller_steps": 1}, TypeError, "caller_steps: got 1, expected True or False"),
        ({"num_workers": 3}, ValueError, "num_workers: got 3, expected 1 to 2, the number of envs less that of the"),
    ],
)
def test_what_cannot_be_had_is_refused_at_once(options: dict[str, Any], error: type, told: str) -> None:
    with pytest.raises(error) as raised:
        batch(**options)
    assert told in str(raised.value)


def test_one_env_leaves_the_workers_none() -> None:
    with pytest.raises(ValueError, match="caller_steps: got True for one env, expected two or more"):
        ParallelEnv(1, Acting, caller_steps=True)
    assert type(ParallelEnv(1, Acting, caller_steps=True, serial_for_single=True)) is SerialEnv


def test_a_time_limit_that_comes_later_is_refused_too() -> None:
    env = batch()
    with pytest.raises(ValueError, match="step_timeout"):
        env.configure_parallel(step_timeout=1.0)
    with pytest.raises(ValueError, match="step_timeout"):
        ParallelEngine([Acting] * 2, GymHostOptions(), step_timeout=1.0, caller_steps=True)


# ---------------------------------------------------------------- errors and interrupts


def test_an_error_of_the_callers_env_is_told_as_any_others() -> None:
    env = batch()
    env.reset()
    env.set_attr("act", [None, None, LookupError("broken", 3)])
    with pytest.raises(LookupError) as raised:
        stepped(env)
    assert raised.value.args == ("broken", 3)
    assert raised.value.env_index == 2  # type: ignore[attr-defined]
    partial = env.last_partial()
    assert partial["_failed"].tolist() == [False, False, True]
    assert partial["next", "reward"].flatten().tolist() == [1.0, 1.0, 0.0]
    with pytest.raises(ResetNeeded, match=r"envs \[2\]"):
        stepped(env)
    env.reset()
    assert stepped(env)["reward"].flatten().tolist() == [11.0, 11.0, 11.0]
    env.close()


def test_an_error_that_cannot_be_sent_is_told_with_its_name() -> None:
    env = batch()
    env.reset()
    Acting.made_here[-1].act = Unsendable(lambda: None, gc)
    with pytest.raises(Exception, match="Unsendable") as raised:
        stepped(env)
    assert raised.value.env_index == 2  # type: ignore[attr-defined]
    env.close()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_the_callers_env_comes_through_and_a_reset_goes_on(interrupt: type[BaseException]) -> None:
    env = batch()
    env.reset()
    Acting.made_here[-1].act = interrupt()
    with pytest.raises(interrupt):
        stepped(env)
    with pytest.raises(ResetNeeded, match=r"interrupted"):
        stepped(env)
    env.reset()
    assert stepped(env)["reward"].flatten().tolist() == [11.0, 11.0, 11.0]
    env.close()


def test_an_interrupt_in_the_callers_env_ends_its_round_in_the_counts() -> None:
    """Else all the time after it would be that of work under way."""
    env = batch()
    env.reset()
    env.stats()
    stepped(env)
    Acting.made_here[-1].act = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        stepped(env)
    told = env.stats()
    own = told["workers"][-1]
    assert own["steps"] == 2
    assert own["wait_s"] + own["step_s"] + own["copy_s"] == pytest.approx(told["seconds"], rel=0, abs=1e-9)
    env.close()


def test_what_was_sent_and_not_received_leaves_the_callers_envs_alone() -> None:
    """An interrupt between the two: the processes are at it already, the caller is not."""
    engine: Any = ParallelEngine(named(), GymHostOptions(), num_workers=2, caller_steps=True)
    engine.allocate()
    engine.run(bytes([Op.RESET] * 3), None)
    zeros = [[0, 0, 0]]
    engine.run(bytes([Op.STEP] * 3), zeros)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.run(bytes([Op.STEP] * 3), zeros, meanwhile=interrupted)
    engine.settle()
    assert engine.each("call", [("steps",)] * 3) == [2, 2, 1]
    engine.run(bytes([Op.RESET] * 3), None)
    assert engine.run(bytes([Op.STEP] * 3), zeros).errors == {}
    assert engine.each("call", [("steps",)] * 3) == [3, 3, 2]
    engine.close()


def test_a_worker_that_dies_takes_nothing_of_the_callers() -> None:
    env = batch()
    env.reset()
    env.set_attr("act", ["die", None, None])
    with pytest.raises(WorkerDiedError, match=r"envs \[0\]"):
        stepped(env)
    assert env.last_partial()["_failed"].tolist() == [True, False, False]
    assert env.last_partial()["next", "reward"].flatten().tolist() == [0.0, 1.0, 1.0]
    env.close(raise_if_closed=False)


def test_a_worker_that_dies_is_replaced_and_the_caller_goes_on() -> None:
    env = batch(on_worker_failure="restart")
    env.reset()
    before = env.pid()
    env.set_attr("act", ["die", None, None])
    result = stepped(env)
    assert result["info", "worker_restarted"].flatten().tolist() == [True, False, False]
    assert result["truncated"].flatten().tolist() == [True, False, False]
    after = env.pid()
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, True, True]
    assert after[2] == HERE
    env.close()


# ---------------------------------------------------------------- beginnings and ends


def test_a_maker_of_the_callers_that_raises_ends_the_workers(closed: list[str]) -> None:
    def broken() -> Any:
        raise LookupError("no env")

    makers = [*named(2), lambda: Acting("env 2"), broken]
    ParallelEnv(1, Acting).start().close()  # there is a starter from now on
    before = descendants()
    with pytest.raises(LookupError, match="no env") as raised:
        ParallelEnv(4, makers, num_workers=1, caller_steps=True).start()
    assert raised.value.env_index == 3  # type: ignore[attr-defined]
    assert closed == ["env 2"]
    assert not still_running(watch(descendants() - before))


def test_a_maker_of_a_workers_that_raises_has_the_callers_envs_closed(closed: list[str]) -> None:
    def broken() -> Any:
        raise LookupError("no env")

    with pytest.raises(LookupError, match="no env") as raised:
        ParallelEnv(3, [broken, *named(3)[1:]], num_workers=2, caller_steps=True).start()
    assert raised.value.env_index == 0  # type: ignore[attr-defined]
    assert closed == ["env 2"]


def test_an_interrupt_while_the_caller_makes_its_envs_ends_the_workers(closed: list[str]) -> None:
    def interrupted() -> Any:
        raise KeyboardInterrupt

    ParallelEnv(1, Acting).start().close()  # there is a starter from now on
    before = descendants()
    with pytest.raises(KeyboardInterrupt):
        ParallelEnv(4, [*named(3), interrupted], num_workers=1, caller_steps=True).start()
    assert closed == ["env 2"]
    assert not still_running(watch(descendants() - before))


def test_close_closes_the_callers_envs_once(closed: list[str]) -> None:
    env = batch().start()
    env.close()
    assert closed == ["env 2"]
    env.start()
    assert stepped_after_reset(env).flatten().tolist() == [1.0, 1.0, 1.0]
    env.close()
    assert closed == ["env 2"] * 2


def stepped_after_reset(env: Any) -> Any:
    env.reset()
    return stepped(env)["reward"]


def test_an_error_of_a_close_here_is_told_and_all_are_closed(closed: list[str]) -> None:
    env = batch(5).start()
    Acting.made_here[-1].closing = LookupError("cannot close")
    with pytest.raises(LookupError, match="cannot close") as raised:
        env.close()
    assert raised.value.env_index == 4  # type: ignore[attr-defined]
    assert closed == ["env 4"]


def test_a_batch_that_is_dropped_closes_the_callers_envs(closed: list[str]) -> None:
    env = batch().start()
    env.reset()
    del env
    gc.collect()
    assert closed == ["env 2"]


def test_a_batch_that_is_dropped_after_an_interrupt_closes_the_callers_envs(closed: list[str]) -> None:
    """The interrupt has ended their step: they are in the middle of nothing, as those of a process may be."""
    env = batch()
    env.reset()
    Acting.made_here[-1].act = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        stepped(env)
    del env
    gc.collect()
    assert closed == ["env 2"]


def test_a_close_before_the_callers_envs_are_made_makes_none() -> None:
    """They would be of no use, and nobody would close them."""
    mailbox = Mailbox.create()
    worker = CallerWorker(EnvWorker(named(1), GymHostOptions(), 0, cores=None, num_threads=None), mailbox)
    worker.wake.signal(Command.CLOSE)
    with pytest.raises(EOFError):
        worker.wake.skip_to(Answer.CLOSED)
    worker.close()
    mailbox.close()
    assert Acting.made_here == []


def test_workers_that_are_killed_at_the_end_leave_the_callers_envs_unclosed(closed: list[str]) -> None:
    """As it is with those of the processes."""
    engine: Any = ParallelEngine(named(), GymHostOptions(), num_workers=2, caller_steps=True)
    engine.allocate()
    engine.close(terminate=True)
    assert closed == []


def test_the_callers_threads_of_torch_and_its_generator_stay_its_own() -> None:
    """What a worker process sets up for itself, and seeds, is not set here."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    env = batch(num_sub_threads=1, num_threads=threads)
    env.reset()
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, dtype)
    torch.manual_seed(11)
    env.seed_rows([1, 2, 3])
    env.reset()
    drawn = torch.rand(3)
    env.close()
    torch.manual_seed(11)
    assert torch.equal(drawn, torch.rand(3))


def test_a_worker_of_the_callers_with_no_envs_is_gone() -> None:
    """So that nothing waits for it."""

    def gone(command: int | None) -> int:
        raise EOFError("gone")

    end = CallerEnd(gone)
    end.wake(3)
    with pytest.raises(EOFError):
        end.skip_to(4)
