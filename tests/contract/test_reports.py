"""What a report says of a fault, of what could not be looked at, and what a check leaves behind."""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
import warnings
from functools import partial
from queue import SimpleQueue
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from faulty_envs import FAULTY_ENVS, CountsEpisodes, SoundEnv, UnseededEnv
from faulty_tensordict_envs import FAULTY_TENSORDICT_ENVS, SoundTensorDictEnv

from gymbridge.contract import Fault, check, checks
from gymbridge.contract.differences import same
from gymbridge.contract.surroundings import CallHangs, global_generators, limited
from gymbridge.vector import AsyncVectorEnv


def the_fault(env: Any, **options: Any) -> Fault:
    (fault,) = check(env, **{"num_steps": 30, **options}).faults
    return fault


# ---------------------------------------------------------------- what is told


def test_an_item_is_named_with_its_worst_value() -> None:
    class Far(SoundEnv):
        observation_space = gym.spaces.Dict(arm=gym.spaces.Tuple([gym.spaces.Box(-1, 1, (2, 2), np.float32)]))

        def observe(self) -> Any:
            seen = np.zeros((2, 2), np.float32)
            seen[0, 0], seen[1, 0], seen[1, 1] = 2, -7, self.np_random.random()
            return {"arm": (seen,)}

    fault = the_fault(Far, workers=False)
    assert (fault.code, fault.key) == ("observation-domain", "arm.0")
    assert (fault.got, fault.expected) == ("-7.0 at [1, 0] (2 of 4 values wrong)", "-1.0 to 1.0")
    assert fault.where == "reset, step"


def test_the_first_difference_is_named() -> None:
    fault = the_fault(CountsEpisodes, workers=False)
    assert (fault.code, fault.key) == ("reset-carries-over", "reward")
    assert fault.got.endswith("in call 1")


def test_an_exception_is_told_with_its_place() -> None:
    fault = the_fault(FAULTY_ENVS["step-raises"]())
    assert fault.got.startswith("ArithmeticError: two is too much (faulty_envs.py:")
    assert fault.got.endswith(", in refuse_two)")
    assert fault.where == "step"


def test_an_exception_of_a_worker_is_told_with_its_place_there() -> None:
    fault = the_fault(FAULTY_ENVS["worker-raises"]())
    assert fault.got.startswith("FileNotFoundError: settings.toml (faulty_envs.py:")
    assert fault.got.endswith(", in raise_elsewhere)")
    assert fault.where == "worker, call 1"


def test_a_tensordict_entry_is_told_with_its_spec() -> None:
    fault = the_fault(FAULTY_TENSORDICT_ENVS["entry-domain"](), workers=False)
    assert (fault.key, fault.got) == ("y", "2.0 at [0] (1 wrong)")
    assert fault.expected == "low=-1.0 to high=1.0"


def test_faults_do_not_hide_one_another() -> None:
    class Many(UnseededEnv):
        def reward(self) -> Any:
            return [1.0]

        def ended(self) -> Any:
            return int(super().ended())

    report = check(Many, num_steps=30)
    assert [fault.code for fault in report.faults] == ["reward-array", "seed-not-repeatable", "flag-not-bool"]
    assert report.not_checked == ["worker processes, which would stop at reward-array"]


# ---------------------------------------------------------------- what is not looked at


@pytest.mark.parametrize("kind", [SoundEnv, SoundTensorDictEnv])
def test_an_env_that_is_made_is_looked_at_alone_and_stays_open(kind: Any) -> None:
    closed: list[Any] = []
    env = type("Closing", (kind,), {"close": lambda self, **options: closed.append(self)})()
    report = check(env, num_steps=30)
    assert report.faults == []
    assert closed == []
    assert [text.partition(":")[0] for text in report.not_checked] == [
        "other instances in this process",
        "close",
        "worker processes",
    ]


@pytest.mark.parametrize(
    ("faulty", "code"), [(UnseededEnv, "seed-not-repeatable"), (FAULTY_ENVS["seed-ignored"](), "seed-ignored")]
)
def test_seeds_of_an_env_that_is_made(faulty: Any, code: str) -> None:
    assert the_fault(faulty()).code == code


def test_an_env_that_is_declared_random_need_not_repeat_itself() -> None:
    env = UnseededEnv()
    env.spec = gym.envs.registration.EnvSpec("Random-v0", nondeterministic=True)
    report = check(env, num_steps=30)
    assert report.faults == []
    assert "seeds: its spec says that it is nondeterministic" in report.not_checked


class SlowToMake(SoundEnv):
    def __init__(self, process: int):
        super().__init__()
        if os.getpid() != process:
            threading.Event().wait()


def test_an_env_that_is_never_made_in_a_worker() -> None:
    fault = the_fault(partial(SlowToMake, os.getpid()), start_timeout=2.0)
    assert (fault.code, fault.where) == ("worker-hangs", "worker, start")


def test_a_batch_is_refused_with_what_to_give() -> None:
    with pytest.raises(TypeError, match="it is a batch already"):
        check(lambda: gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"))


def test_an_env_that_takes_long_to_make_is_made_again() -> None:
    """The limit of steps is none of the maker's."""

    def make() -> SoundEnv:
        first.clear() if first else threading.Event().wait(0.3)
        return SoundEnv()

    first = [True]
    assert check(make, num_steps=30, step_timeout=0.2, workers=False).faults == []


def test_the_first_env_is_made_in_time() -> None:
    with pytest.raises(TimeoutError, match=r"making it took longer than 0\.1 s"):
        check(threading.Event().wait, start_timeout=0.1)


def test_a_close_that_hangs_is_waited_for_within_its_limit() -> None:
    class HangsAtItsEnd(SoundEnv):
        def close(self) -> None:
            threading.Event().wait()

    assert the_fault(HangsAtItsEnd, start_timeout=0.1).code == "close-raises"


def test_a_thread_that_goes_on_keeps_a_worker_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(self: Any, **options: Any) -> None:
        closed(self, **options)
        warnings.warn("workers [0] did not close the envs [0] in time and were killed", stacklevel=1)

    closed = AsyncVectorEnv.close
    monkeypatch.setattr(AsyncVectorEnv, "close", close)
    fault = the_fault(SoundEnv)
    assert (fault.code, fault.where) == ("worker-hangs", "worker, close")


def test_a_machine_without_shared_memory_is_no_fault_of_the_env(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", full)
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    report = check(SoundEnv, num_steps=30)
    assert report.faults == []
    (text,) = report.not_checked
    assert "worker processes: this machine has none to give: OSError" in text
    assert "No space left on device" in text


class Thing:
    """Says nothing of when it is equal to another."""

    def __init__(self, value: Any):
        self.value = value


class ThingSpace(gym.spaces.Space[Thing]):
    def sample(self, mask: Any = None, probability: Any = None) -> Thing:
        return Thing(0)

    def contains(self, x: Any) -> bool:
        return isinstance(x, Thing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ThingSpace)


class ShowsThings(SoundEnv):
    observation_space = ThingSpace()
    numbers = False

    def observe(self) -> Any:
        return Thing({"seen": [np.random.rand() if self.numbers else self.np_random.random()]})  # noqa: NPY002


def test_objects_without_equality_are_compared_by_what_they_hold() -> None:
    assert {fault.code for fault in check(ShowsThings, num_steps=30).faults} == {"space-custom"}


def test_objects_without_equality_that_differ_are_seen() -> None:
    one, other = Thing({"seen": [1.0]}), Thing({"seen": [2.0]})
    assert same(one, Thing({"seen": [1.0]}))
    assert not same(one, other)
    assert not same(one, Thing({"seen": [1.0, 2.0]}))


@pytest.mark.parametrize("value", [10**30, np.array(10**30, object)])
def test_integers_that_no_dtype_holds_compare(value: Any) -> None:
    assert same(value, value + 0)
    assert not same(value, value + 1)


def test_an_env_that_exits_after_an_end_does_not_end_the_check() -> None:
    class Leaves(SoundEnv):
        def step(self, action: Any) -> Any:
            if self.t >= self.length:
                raise SystemExit(0)
            return super().step(action)

    report = check(Leaves, num_steps=30, workers=False)
    assert report.faults == []
    assert report.notes[0].startswith("a step after an episode's end raises SystemExit: 0")


def test_an_env_without_words_is_told_as_that() -> None:
    class Unnamed(SoundEnv):
        def __str__(self) -> str:
            raise LookupError("no name")

    assert check(Unnamed, num_steps=30, workers=False).env == "<Unnamed, of which str raises LookupError>"


class ToldLock:
    """A lock that tells when somebody comes to it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.arrivals: SimpleQueue[int] = SimpleQueue()

    def __enter__(self) -> None:
        self.arrivals.put(threading.get_ident())
        self.lock.acquire()

    def __exit__(self, *error: Any) -> None:
        self.lock.release()


def test_checks_in_several_threads_do_not_disturb_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sets the generators that all threads share, and looks whether they were drawn from."""
    lock = ToldLock()
    monkeypatch.setattr(checks, "_one_at_a_time", lock)
    inside, go_on, made = threading.Event(), threading.Event(), threading.Event()
    faults: list[Any] = []

    class Waits(SoundEnv):
        def reset(self, **options: Any) -> Any:
            inside.set()
            assert go_on.wait(60)
            return super().reset(**options)

    def make() -> SoundEnv:
        made.set()
        return SoundEnv()

    def look(env: Any) -> None:
        faults.append(check(env, num_steps=30, workers=False).faults)

    threads = [threading.Thread(target=look, args=(env,)) for env in (Waits, make)]
    threads[0].start()
    lock.arrivals.get(timeout=60)
    assert inside.wait(60)
    threads[1].start()
    lock.arrivals.get(timeout=60)
    assert not made.is_set()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert faults == [[], []]


def test_what_the_maker_raises_comes_through() -> None:
    with pytest.raises(LookupError, match="no map"):
        check(lambda: (_ for _ in ()).throw(LookupError("no map")))


@pytest.mark.parametrize("wrong", [{"num_steps": 0}, {"seed": -1}, {"step_timeout": 0}, {"start_timeout": -1}])
def test_options_without_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        check("CartPole-v1", **wrong)


# ---------------------------------------------------------------- what is left behind


@pytest.mark.parametrize("env", [FAULTY_ENVS["global-random"](), FAULTY_TENSORDICT_ENVS["torch-random"]()])
def test_the_shared_generators_are_as_they_were(env: Any) -> None:
    before = global_generators()
    check(env, num_steps=30)
    assert global_generators() == before
    assert set(before) == {"random", "np.random", "torch"}


def test_generators_that_are_drawn_from_are_seen() -> None:
    before = global_generators()
    draws = {"random": random.random, "np.random": np.random.rand, "torch": lambda: torch.rand(())}
    for name, draw in draws.items():
        draw()
        after = global_generators()
        assert {key for key in after if after[key] != before[key]} == {name}
        before = after


def test_a_limit_ends_a_wait_and_leaves_the_timer_of_others() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    left = signal.setitimer(signal.ITIMER_REAL, 1000.0)
    try:
        with pytest.raises(CallHangs), limited(0.05):
            threading.Event().wait()
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left)
    assert signal.getsignal(signal.SIGALRM) is handler


def test_elsewhere_than_in_the_main_thread_a_check_does_without_the_limit() -> None:
    codes: list[Any] = []
    thread = threading.Thread(target=lambda: codes.append(check(SoundEnv, num_steps=30, workers=False).faults))
    thread.start()
    thread.join(60)
    assert codes == [[]]
