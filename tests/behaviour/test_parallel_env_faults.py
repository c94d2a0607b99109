"""What goes wrong in ``ParallelEnv``: it is told, costs the other envs nothing, and leaves nothing behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import tensordict_waiting_envs
import torch
import waiting_envs
from fuzzing import examples
from gymnasium.error import ResetNeeded
from interrupts import interrupted
from tensordict import TensorDict
from tensordict_waiting_envs import ActingTensorDictEnv
from waiting_envs import ActingEnv, await_entry, closed_envs, make_gates, release
from worker_processes import PATIENCE, descendants, start_script, still_running, watch

from gymbridge import ParallelEnv
from gymbridge.engine.remote_errors import RemoteTraceback
from gymbridge.errors import RemoteEnvError, WorkerDiedError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux has them")

for module in (sys.modules[__name__], waiting_envs, tensordict_waiting_envs):
    cloudpickle.register_pickle_by_value(module)

KINDS: dict[str, Any] = {"gymnasium": ActingEnv, "TensorDict": ActingTensorDictEnv}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    """The class of acting envs of each kind."""
    return KINDS[request.param]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With gates for the envs that wait."""
    make_gates(4, tmp_path)
    return tmp_path


@pytest.fixture
def four(kind: Any, folder: Path) -> Iterator[Any]:
    """Four envs in two workers, after a reset."""
    env = batch(kind, 4, folder, num_workers=2)
    env.reset()
    yield env
    env.close(raise_if_closed=False)


def batch(kind: Any, num_envs: int, folder: Path | None = None, acts: Any = (), **options: Any) -> Any:
    """A batch of acting envs; ``acts`` are what the first of them do from the beginning."""
    acts = [*acts, *[""] * (num_envs - len(acts))]
    return ParallelEnv(
        num_envs,
        [lambda args=args: kind(*args) for args in zip(range(num_envs), [folder] * num_envs, acts, strict=True)],
        **options,
    )


def acting(td: Any, *actions: int) -> Any:
    """td with these actions."""
    return td.set("action", torch.tensor(actions))


def mask(*picked: int) -> torch.Tensor:
    return torch.tensor(picked, dtype=torch.bool)


def workers_of(env: Any) -> list[int]:
    return list(dict.fromkeys(env.pid()))


def steps_of(td: Any) -> list[int]:
    """How many steps each env has done, as it shows; and each row is that of its env."""
    assert td["observation"][:, 0].tolist() == [*range(len(td))]
    return [int(steps) for steps in td["observation"][:, 1]]


RANDOM_STATE = np.random.default_rng(0).bit_generator.state

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "step": lambda env, td: env.step(td),
    "step_and_maybe_reset": lambda env, td: env.step_and_maybe_reset(td),
    "reset": lambda env, td: env.reset(),
    "set_seed": lambda env, td: env.set_seed(0),
    "set_attr": lambda env, td: env.set_attr("act", ""),
    "state_dict": lambda env, td: env.state_dict(),
    "load_state_dict": lambda env, td: env.load_state_dict({"np_random": RANDOM_STATE}),
    "pid": lambda env, td: env.pid(),
}
ALL_CALLS: dict[str, Callable[[Any, Any], Any]] = {
    **CALLS,
    "act_now": lambda env, td: env.act_now(),
    "close": lambda env, td: env.close(),
    "rollout": lambda env, td: env.rollout(2),
    "start": lambda env, td: env.start(),
    "to": lambda env, td: env.to("cpu"),
    "step_or_reset": lambda env, td: env.step_or_reset(td, mask(1, 1, 1, 1)),
    "seed_rows": lambda env, td: env.seed_rows([1, 2, 3, 4]),
}


# ---------------------------------------------------------------- workers that die


@pytest.mark.parametrize(
    ("deed", "code", "how"), [("kill", -9, "killed by SIGKILL"), ("exit at once", 3, "exit code 3")]
)
@pytest.mark.parametrize("call", ["step", "step_and_maybe_reset"])
def test_a_worker_that_dies_in_a_step(four: Any, call: str, deed: str, code: int, how: str) -> None:
    watched = watch(workers_of(four))
    td = acting(four.reset(), 1, 2, 3, 4)
    four.set_attr("act", ["", "", deed, ""])
    with pytest.raises(WorkerDiedError, match=rf"^worker 1, which ran the envs \[2, 3\], has died: {how}") as raised:
        CALLS[call](four, td)
    assert (raised.value.worker, raised.value.env_indices, raised.value.exit_code) == (1, (2, 3), code)
    assert "next" not in td.keys()
    partial = four.last_partial()
    assert partial["_failed"].tolist() == [False, False, True, True]
    assert partial["next", "reward"].tolist() == [[1], [2], [0], [0]]
    assert steps_of(partial["next"]) == [1, 1, 0, 0]
    refuses_the_dead(four, raised.value)
    stepped = four.step(acting(partial["next"].exclude("_failed"), 4, 4, 4, 4).set("_step", mask(1, 1, 0, 0)))
    assert steps_of(stepped["next"]) == [2, 2, 0, 0]
    assert stepped["next", "reward"].tolist() == [[4], [4], [0], [0]]
    root = four.reset(stepped["next"].set("_reset", mask(0, 1, 0, 0)))
    assert steps_of(root) == [2, 0, 0, 0]
    four.close()
    assert not still_running(watched, patience=0.1)


def refuses_the_dead(env: Any, error: WorkerDiedError) -> None:
    """Whatever needs the dead worker tells of the same death, and does nothing."""
    for call in CALLS.values():
        with pytest.raises(WorkerDiedError) as again:
            call(env, acting(TensorDict({}, [4]), 1, 1, 1, 1))
        assert again.value.args == error.args
    for part in (mask(0, 0, 1, 0), mask(1, 0, 0, 1)):
        for call, name in ((env.step, "_step"), (env.step_and_maybe_reset, "_step"), (env.reset, "_reset")):
            with pytest.raises(WorkerDiedError) as again:
                call(acting(env.last_partial().exclude("next", "_failed"), 1, 1, 1, 1).set(name, part))
            assert again.value.args == error.args


def test_a_worker_that_dies_in_a_reset(four: Any) -> None:
    watched = watch(workers_of(four))
    root = four.step(acting(four.reset(), 1, 1, 1, 1))
    four.set_attr("act", ["", "", "kill in reset", ""])
    with pytest.raises(WorkerDiedError, match=r"^worker 1, which ran the envs \[2, 3\], has died: killed") as raised:
        four.reset()
    partial = four.last_partial()
    assert partial["_failed"].tolist() == [False, False, True, True]
    assert steps_of(partial) == [0, 0, 1, 1]  # what those showed last
    refuses_the_dead(four, raised.value)
    root = four.step(acting(partial.exclude("_failed"), 1, 1, 1, 1).set("_step", mask(1, 1, 0, 0)))
    assert steps_of(root["next"]) == [1, 1, 1, 1]
    four.close()
    assert not still_running(watched, patience=0.1)


def test_a_worker_that_dies_in_a_partial_reset_costs_nobody_who_was_not_picked(four: Any) -> None:
    td = four.step(acting(four.reset(), 1, 1, 1, 1))["next"]
    four.set_attr("act", ["", "", "", "kill in reset"])
    with pytest.raises(WorkerDiedError):
        four.reset(td.clone().set("_reset", mask(0, 0, 0, 1)))
    assert four.last_partial()["_failed"].tolist() == [False, False, False, True]
    stepped = four.step(acting(td, 1, 1, 1, 1).set("_step", mask(1, 1, 0, 0)))
    assert steps_of(stepped["next"]) == [2, 2, 1, 1]


@pytest.mark.parametrize("call", CALLS)
def test_a_worker_killed_between_two_calls_is_told_by_the_next(four: Any, call: str) -> None:
    td = acting(four.reset(), 1, 1, 1, 1)
    first, second = workers_of(four)
    watched, rest = watch([second]), watch([first])
    os.kill(second, signal.SIGKILL)
    assert not still_running(watched)
    with pytest.raises(WorkerDiedError, match=r"worker 1, which ran the envs \[2, 3\], has died: killed by SIGKILL"):
        CALLS[call](four, td)
    four.close()
    assert not still_running(rest, patience=0.1)
    assert steps_of(four.reset()) == [0] * 4  # by other workers


def test_all_workers_killed(four: Any) -> None:
    watched = watch(workers_of(four))
    four.set_attr("act", "kill")
    with pytest.raises(WorkerDiedError, match="worker 0") as raised:
        four.step(acting(four.reset(), 1, 1, 1, 1))
    if hasattr(raised.value, "__notes__"):
        assert raised.value.__notes__ == ["raised by env 0; envs [1, 2, 3] failed in the same call"]
    assert four.last_partial()["_failed"].all()
    four.close()
    assert not still_running(watched, patience=0.1)


def test_a_worker_that_dies_in_close_ends_as_the_others(four: Any, folder: Path) -> None:
    watched = watch(workers_of(four))
    four.set_attr("act", ["", "", "kill in close", ""])
    four.close()
    assert not still_running(watched, patience=0.1)
    assert closed_envs(folder) == {0, 1}


def test_a_worker_that_is_killed_does_not_hold_up_close(four: Any) -> None:
    pids = workers_of(four)
    watched = watch(pids)
    os.kill(pids[0], signal.SIGKILL)
    four.close()
    assert not still_running(watched, patience=0.1)


@pytest.mark.parametrize(("deed", "how"), [("kill", "killed by SIGKILL"), ("exit at once", "exit code 3")])
def test_a_worker_that_dies_while_it_makes_its_envs(kind: Any, folder: Path, deed: str, how: str) -> None:
    batch(kind, 4, num_workers=2).start().close()  # the starter is there from now on
    before = left_behind()
    env = batch(kind, 4, folder, ["", "", "", f"{deed} in init"], num_workers=2)
    for _ in range(2):  # the next use tries again
        with pytest.raises(WorkerDiedError, match=rf"worker 1, which ran the envs \[2, 3\], has died: {how}"):
            env.reset()
        assert closed_envs(folder) == {0, 1}
    assert left_behind() == before
    env.close(raise_if_closed=False)


# ---------------------------------------------------------------- envs that raise


@pytest.mark.parametrize("call", ["step", "step_and_maybe_reset"])
def test_an_exception_in_a_step_has_its_type_its_message_and_the_remote_traceback(four: Any, call: str) -> None:
    td = acting(four.reset(), 1, 2, 3, 4)
    four.set_attr("act", ["", "", "", "raise"])
    with pytest.raises(LookupError) as raised:
        CALLS[call](four, td)
    assert_told(raised.value, 3, ("broken", 3), "step")
    partial = four.last_partial()
    assert partial["_failed"].tolist() == [False, False, False, True]
    assert partial["next", "reward"].tolist() == [[1], [2], [3], [0]]
    assert steps_of(partial["next"]) == [1, 1, 1, 0]
    four.set_attr("act", "")
    with pytest.raises(ResetNeeded, match=r"envs \[3\] raised an error"):
        four.step(td)
    root = four.reset(partial["next"].set("_reset", partial["_failed"]))
    assert steps_of(root) == [1, 1, 1, 0]
    assert steps_of(four.step(acting(root, 1, 1, 1, 1))["next"]) == [2, 2, 2, 1]


def assert_told(error: Exception, env_index: int, args: tuple[Any, ...], where: str) -> None:
    assert error.args == args
    assert error.env_index == env_index  # type: ignore[attr-defined]
    assert isinstance(error.__cause__, RemoteTraceback)
    assert re.search(rf"in _?{where}\n", str(error.__cause__))
    assert f"{type(error).__name__}: " in str(error.__cause__)
    if hasattr(error, "__notes__"):
        assert error.__notes__ == [
            f"raised while env {env_index} was made" if where == "__init__" else f"raised by env {env_index}"
        ]


def test_an_exception_in_a_reset(four: Any) -> None:
    four.step(acting(four.reset(), 1, 1, 1, 1))
    four.set_attr("act", ["", "raise in reset", "", ""])
    with pytest.raises(LookupError) as raised:
        four.reset()
    assert_told(raised.value, 1, ("no reset",), "reset")
    partial = four.last_partial()
    assert partial["_failed"].tolist() == [False, True, False, False]
    assert steps_of(partial) == [0, 1, 0, 0]
    four.set_attr("act", "")
    root = four.reset(partial.exclude("_failed").set("_reset", partial["_failed"]))
    assert steps_of(four.step(acting(root, 1, 1, 1, 1))["next"]) == [1] * 4


def test_an_exception_while_an_env_is_made(kind: Any, folder: Path) -> None:
    batch(kind, 4, num_workers=2).start().close()
    before = left_behind()
    env = batch(kind, 4, folder, ["", "", "", "raise in init"], num_workers=2)
    with pytest.raises(LookupError) as raised:
        env.reset()
    assert_told(raised.value, 3, ("broken", 3), "__init__")
    assert closed_envs(folder) == {0, 1, 2}
    env.close(raise_if_closed=False)
    del raised
    gc.collect()
    assert left_behind() == before


def test_an_exception_in_close_comes_out_once_all_are_closed(kind: Any, folder: Path) -> None:
    threads = torch.get_num_threads()
    env = batch(kind, 4, folder, num_workers=2, num_threads=threads + 1)
    watched = watch(workers_of(env))
    assert torch.get_num_threads() == threads + 1
    env.set_attr("act", ["", "raise in close", "", ""])
    with pytest.raises(OSError, match="cannot close") as raised:
        env.close()
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    assert raised.value.env_index == 1  # type: ignore[attr-defined]
    if hasattr(raised.value, "__notes__"):
        assert raised.value.__notes__ == ["raised by env 1"]
    assert closed_envs(folder) == {0, 2, 3}
    assert not still_running(watched, patience=0.1)
    assert env.is_closed
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("deed", ["raise nameless", "raise nameless in reset"])
def test_an_exception_that_cannot_be_rebuilt_is_named(four: Any, deed: str) -> None:
    td = acting(four.reset(), 1, 1, 1, 1)
    four.set_attr("act", ["", "", deed, ""])
    with pytest.raises(RemoteEnvError, match=r"waiting_envs\.Nameless: only here") as raised:
        CALLS["reset" if "reset" in deed else "step"](four, td)
    assert raised.value.type_name.endswith("waiting_envs.Nameless")
    assert raised.value.env_message == "only here"
    assert raised.value.env_index == 2  # type: ignore[attr-defined]
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    assert four.last_partial()["_failed"].tolist() == [False, False, True, False]
    four.set_attr("act", "")
    assert steps_of(four.step(acting(four.reset(), 1, 1, 1, 1))["next"]) == [1] * 4


def test_an_exception_that_keeps_other_arguments_than_it_takes(four: Any) -> None:
    four.set_attr("act", ["", "raise two", "", ""])
    with pytest.raises(waiting_envs.TwoArguments, match=r"^broken at 3"):
        four.step(acting(four.reset(), 1, 1, 1, 1))


def test_an_exception_and_a_death_in_one_call_are_both_told(four: Any) -> None:
    td = acting(four.reset(), 1, 2, 3, 4)
    four.set_attr("act", ["", "raise", "kill", ""])
    with pytest.raises(LookupError) as raised:
        four.step(td)
    if hasattr(raised.value, "__notes__"):
        assert raised.value.__notes__ == ["raised by env 1; envs [2, 3] failed in the same call"]
    partial = four.last_partial()
    assert partial["_failed"].tolist() == [False, True, True, True]
    assert partial["next", "reward"].tolist() == [[1], [0], [0], [0]]
    with pytest.raises(WorkerDiedError, match="worker 1"):
        four.step(td)


# ---------------------------------------------------------------- interrupts


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Has SIGINT raise KeyboardInterrupt in the calling thread, whatever runs the tests has made of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def interrupted_once_entered(folder: Path, index: int) -> Iterator[None]:
    """Interrupts what is done here once an env that tells and waits has told; that ends with the interrupt."""
    caller = threading.get_ident()

    def interrupt() -> None:
        await_entry(folder, index)
        signal.pthread_kill(caller, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    thread.join()


@pytest.mark.parametrize("call", ["step", "step_and_maybe_reset", "reset", "act_now"])
def test_an_interrupt_while_workers_are_at_work(four: Any, folder: Path, interruptible: None, call: str) -> None:
    """What the envs were at is dropped, and never taken for what they give later."""
    td = acting(four.reset(), 1, 1, 1, 1)
    watched = watch(workers_of(four))
    four.set_attr("act", ["", "", "", "tell and wait in reset" if call == "reset" else "tell and wait"])
    with interrupted_once_entered(folder, 3):
        ALL_CALLS[call](four, td)
    assert "next" not in td.keys()
    release(folder, 3)  # only now does that env give what it was asked for
    four.set_attr("act", "")
    if call != "act_now":
        with pytest.raises(ResetNeeded, match=r"envs \[0, 1, 2, 3\] raised an error .* or were interrupted in it"):
            four.step(td)
    root = four.reset()
    assert steps_of(root) == [0] * 4
    stepped = four.step(acting(root, 2, 3, 4, 0))["next"]
    assert steps_of(stepped) == [1] * 4
    assert stepped["reward"].tolist() == [[2], [3], [4], [0]]
    four.close()
    assert not still_running(watched, patience=0.1)


def test_close_after_an_interrupt_ends_the_workers(four: Any, folder: Path, interruptible: None) -> None:
    """Also the one that never comes to an end."""
    td = acting(four.reset(), 1, 1, 1, 1)
    watched = watch(workers_of(four))
    four.set_attr("act", ["", "", "", "tell and wait"])
    with interrupted_once_entered(folder, 3):
        four.step(td)
    four.engine.shutdown_timeout = 3.0
    with pytest.warns(UserWarning, match=r"workers \[1\] did not close the envs \[2, 3\] in time and were killed"):
        four.close()
    assert not still_running(watched, patience=0.1)
    assert closed_envs(folder) == {0, 1}


@pytest.mark.parametrize("call", ["start", "close"])
def test_an_interrupt_of_a_start_or_a_close_that_does_not_come_to_an_end(
    kind: Any, folder: Path, interruptible: None, call: str
) -> None:
    """Whoever interrupts that does not want the workers any more."""
    batch(kind, 2, num_workers=2).start().close()
    before = left_behind()
    env = batch(kind, 2, folder, ["", f"tell and wait in {'init' if call == 'start' else 'close'}"], num_workers=2)
    if call == "close":
        env.start()
    with interrupted_once_entered(folder, 1):
        ALL_CALLS[call](env, None)
    gc.collect()
    for pid in descendants() - before["processes"]:
        with suppress(ProcessLookupError):
            assert not still_running(watch([pid]))
    assert left_behind() == before
    env.configure_parallel(num_threads=1)  # it does not run


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", CALLS)
def test_an_interrupt_wherever_it_comes(kind: Any, call: str) -> None:
    """No answer of the interrupted call is taken for one of a later call, and no call is refused for ever."""
    env = batch(kind, 2, num_workers=2)
    pids = env.pid()
    at, hits = 0, 0
    came_so_far = True
    while came_so_far:
        at += 1 + at // 20
        td = acting(env.reset(), 1, 1)
        came_so_far, came_out = interrupted(lambda td=td: CALLS[call](env, td), at)  # type: ignore[misc]
        hits += came_out
        root = env.fake_tensordict()
        try:
            stepped = env.step(acting(root, 2, 3))["next"]
        except ResetNeeded:
            root = env.reset()
            assert steps_of(root) == [0, 0], at
            stepped = env.step(acting(root, 2, 3))["next"]
        assert stepped["reward"].tolist() == [[2], [3]], at
        assert len(set(steps_of(stepped))) == 1, at
        assert env.pid() == pids, at
    assert hits > 10
    env.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("call", ["start", "close"])
def test_an_interrupt_of_a_start_or_a_close_wherever_it_comes(kind: Any, call: str) -> None:
    """It leaves nothing behind, and the next use starts anew."""
    batch(kind, 2, num_workers=2).start().close()
    before = left_behind()
    at, hits = 0, 0
    came_so_far = True
    while came_so_far:
        at += 1 + at
        env = batch(kind, 2, num_workers=2)
        if call == "close":
            env.start()
        came_so_far, came_out = interrupted(lambda env=env: ALL_CALLS[call](env, None), at)  # type: ignore[misc]
        hits += came_out
        assert steps_of(env.reset()) == [0, 0]
        env.close()
    del env
    gc.collect()
    for pid in descendants() - before["processes"]:  # those of an interrupted close end by themselves
        with suppress(ProcessLookupError):
            assert not still_running(watch([pid]))
    assert left_behind() == before
    assert hits > 5


SCRIPT = """
import ctypes, multiprocessing, os, signal, sys

from gymbridge import ParallelEnv
from tensordict_waiting_envs import ActingTensorDictEnv
from waiting_envs import ActingEnv

print("begun", flush=True)
kind = {kind}
env = ParallelEnv(2, [lambda index=index: kind(index) for index in range(2)], num_workers=2)
td = env.reset()
print(*env.pid(), flush=True)
{rest}
"""


def started(folder: Path, kind: Any, rest: str, subprocess_env: dict[str, str]) -> Any:
    """A running script with a batch of two envs in two workers, and the workers' ids."""
    tests = Path(__file__).parents[1]
    env = {**subprocess_env, "PYTHONPATH": os.pathsep.join([str(tests), subprocess_env["PYTHONPATH"]])}
    script = start_script(folder, SCRIPT.format(kind=kind.__name__, rest=rest), env)
    assert script.stdout is not None
    assert script.stdout.readline() == "begun\n"
    return script, watch(map(int, script.stdout.readline().split()))


HOLD = """
env.set_attr("act", "print and hold")
env.step(td.set("action", env.full_action_spec.zero()["action"]))
"""


@pytest.mark.parametrize(
    ("kind", "rest"), [(ActingEnv, "input()"), (ActingTensorDictEnv, HOLD)], ids=["idle", "in a step"]
)
def test_ctrl_c_ends_everything_once_and_quietly(
    tmp_path: Path, kind: Any, rest: str, subprocess_env: dict[str, str]
) -> None:
    """As a terminal gives it to all processes of the group: the script's own traceback is all that is said."""
    script, watched = started(tmp_path, kind, rest, subprocess_env)
    with script:
        if rest == HOLD:
            assert {script.stdout.readline() for _ in range(2)} == {"holding\n"}
        os.killpg(script.pid, signal.SIGINT)
        output, errors = script.communicate(timeout=PATIENCE)
    assert not still_running(watched)
    assert script.returncode == -signal.SIGINT
    assert output == ""
    assert errors.count("Traceback (most recent call last)") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_a_killed_caller_leaves_nothing_even_in_the_middle_of_c_code(
    tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    script, watched = started(tmp_path, ActingTensorDictEnv, HOLD, subprocess_env)
    with script:
        assert {script.stdout.readline() for _ in range(2)} == {"holding\n"}
        script.kill()
        script.wait(PATIENCE)
    assert not still_running(watched)


def test_ending_without_close_leaves_nothing(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    script, watched = started(tmp_path, ActingEnv, "input()", subprocess_env)
    _, errors = script.communicate("\n", timeout=PATIENCE)
    assert script.returncode == 0
    assert not errors
    assert not still_running(watched)


# ---------------------------------------------------------------- a second thread


@pytest.mark.parametrize("call", ["step", "step_and_maybe_reset", "reset", "act_now", "close"])
def test_a_second_thread_is_refused_and_the_first_gets_its_own(four: Any, folder: Path, call: str) -> None:
    mine = acting(four.reset(), 1, 2, 3, 4)
    theirs = acting(mine.clone(), 4, 4, 4, 4)
    before = theirs.clone()
    place = call if call in ("reset", "close") else "step"
    four.set_attr("act", ["", "", "", f"tell and wait in {place}"])
    results: list[Any] = []
    first = threading.Thread(target=lambda: results.append(ALL_CALLS[call](four, mine)))
    first.start()
    try:
        await_entry(folder, 3)
        for name, other in ALL_CALLS.items():
            told = "reset" if name == "rollout" else name
            with pytest.raises(RuntimeError, match=rf"^{told}: refused while a call of {call} is under way"):
                other(four, theirs)
    finally:
        release(folder, 3)
        first.join()
    assert len(results) == 1
    assert list(theirs.keys()) == list(before.keys())
    if call == "close":
        assert closed_envs(folder) == {0, 1, 2, 3}
        return
    if "step" in call:
        assert mine["next", "reward"].tolist() == [[1], [2], [3], [4]]
        assert steps_of(mine["next"]) == [1] * 4
    elif call == "reset":
        assert steps_of(results[0]) == [0] * 4
    four.set_attr("act", "")
    stepped = four.step(acting(four.reset(), 4, 3, 2, 1))["next"]
    assert stepped["reward"].tolist() == [[4], [3], [2], [1]]
    assert steps_of(stepped) == [1] * 4


def test_a_second_thread_is_refused_while_the_first_starts_the_workers(kind: Any, folder: Path) -> None:
    env = batch(kind, 2, folder, ["", "tell and wait in init"], num_workers=2)
    results: list[Any] = []
    first = threading.Thread(target=lambda: results.append(env.reset()))
    first.start()
    try:
        await_entry(folder, 1)
        for use in (lambda: env.observation_spec, lambda: env.batch_size, env.rand_action, lambda: env.engine):
            with pytest.raises(RuntimeError, match=r"^start: refused while a start is under way"):
                use()
        for call in (env.reset, env.start, env.set_seed, env.close):
            with pytest.raises(RuntimeError, match=r"refused while a call of reset is under way"):
                call()
    finally:
        release(folder, 1)
        first.join()
    assert steps_of(results[0]) == [0, 0]
    assert len(workers_of(env)) == 2
    env.close()


# ---------------------------------------------------------------- what is left behind


def left_behind() -> dict[str, Any]:
    """What this process has that engines come and go with."""
    gc.collect()
    multiprocessing.active_children()  # reaps those of its own that have ended
    return {
        "processes": descendants(),
        "descriptors": {name: os.readlink(f"/proc/self/fd/{name}") for name in open_descriptors()},
        "mappings": Path("/proc/self/maps").read_text().count("gymbridge"),
        "threads of torch": torch.get_num_threads(),
        "threads": threading.active_count(),
    }


def open_descriptors() -> list[str]:
    names = os.listdir("/proc/self/fd")
    return [name for name in names if os.path.lexists(f"/proc/self/fd/{name}")]  # not that of the list itself


CYCLES = {ActingEnv: (examples(50), examples(15)), ActingTensorDictEnv: (examples(10), examples(5))}
"""How many are closed and how many dropped; workers that import torch are slower to start."""


def test_many_that_are_closed_or_dropped_leave_nothing(kind: Any) -> None:
    closed, dropped = CYCLES[kind]

    def one() -> Any:
        env = batch(kind, 1, num_workers=1, num_threads=3)
        env.step(acting(env.reset(), 1))
        return env

    one().close()
    before, processes = left_behind(), descendants(dead=True)
    for _ in range(closed):
        one().close()
    assert left_behind() == before
    assert descendants(dead=True) == processes
    watched: dict[int, int] = {}
    envs = [one() for _ in range(dropped)]
    for env in envs:
        watched |= watch(env.pid())
    del envs, env
    gc.collect()
    assert not still_running(watched)
    assert left_behind() == before


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ActingEnv, {"memmap": True}),
        (ActingEnv, {"use_buffers": False}),
        (ActingEnv, {"mp_start_method": "exec"}),
        (ActingEnv, {"mp_start_method": "fork"}),
        (ActingTensorDictEnv, {"memmap": True}),
        (ActingTensorDictEnv, {"mp_start_method": "fork"}),
    ],
    ids=str,
)
def test_other_ways_leave_nothing_either(
    kind: Any, folder: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is dropped while its envs are idle has them closed."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    def one() -> Any:
        env = batch(kind, 2, folder, num_workers=2, **options)
        env.step(acting(env.reset(), 1, 1))
        return env

    one().close()
    before = left_behind()
    for _ in range(3):
        one().close()
    assert closed_envs(folder) == {0, 1}
    for note in folder.glob("closed-*"):
        note.unlink()
    env = one()
    watched = watch(env.pid())
    del env
    gc.collect()
    assert not still_running(watched)
    assert closed_envs(folder) == {0, 1}
    if options.get("mp_start_method"):  # what is left of dropped workers of these ways goes with the next start
        one().close()
    assert left_behind() == before
    assert not [*folder.glob("gymbridge-*")]


@pytest.mark.parametrize("deed", ["kill", "raise", "exit at once"])
def test_faults_leave_nothing_behind(kind: Any, deed: str) -> None:
    def one(closes: bool) -> dict[int, int]:
        env = batch(kind, 2, num_workers=2)
        td = acting(env.reset(), 1, 1)
        watched = watch(workers_of(env))
        env.set_attr("act", ["", deed])
        with pytest.raises((LookupError, WorkerDiedError)):
            env.step(td)
        if closes:
            env.close()
        del env
        gc.collect()  # what was raised has the frames of the call
        return watched

    assert not still_running(one(True))
    before = left_behind()
    for closes in (True, False):
        assert not still_running(one(closes))
    assert left_behind() == before


@pytest.mark.parametrize("deed", ["hold the gil", "wait"])
def test_dropping_it_in_the_middle_of_a_call_ends_the_workers(
    kind: Any, folder: Path, interruptible: None, deed: str
) -> None:
    """An interrupted call has left them at work: they are killed."""
    batch(kind, 2, num_workers=2).start().close()
    before = left_behind()
    env = batch(kind, 2, folder, num_workers=2)
    td = acting(env.reset(), 1, 1)
    watched = watch(workers_of(env))
    env.set_attr("act", ["tell and wait", deed])
    with interrupted_once_entered(folder, 0):
        env.step(td)
    del env
    gc.collect()
    assert not still_running(watched)
    assert left_behind() == before


# ---------------------------------------------------------------- copies, restarts and processes of the envs' own


def test_a_copy_of_a_running_one_has_workers_of_its_own(four: Any) -> None:
    stepped = four.step(acting(four.reset(), 1, 1, 1, 1))["next"]
    copy = pickle.loads(pickle.dumps(four))
    assert set(workers_of(copy)).isdisjoint(workers_of(four))
    assert steps_of(copy.reset()) == [0] * 4
    assert steps_of(four.step(acting(stepped, 1, 1, 1, 1))["next"]) == [2] * 4
    copy.close()
    assert steps_of(four.step(acting(stepped, 1, 1, 1, 1))["next"]) == [3] * 4


def test_a_copy_of_one_whose_worker_has_died_is_a_new_start(four: Any) -> None:
    four.set_attr("act", ["kill", "", "", ""])
    with pytest.raises(WorkerDiedError):
        four.step(acting(four.reset(), 1, 1, 1, 1))
    copy = pickle.loads(pickle.dumps(four))
    assert steps_of(copy.reset()) == [0] * 4
    assert copy.last_partial() is None
    copy.close()


def test_it_starts_again_after_it_was_closed(four: Any, kind: Any, folder: Path) -> None:
    seen = {*workers_of(four)}
    for _ in range(3):
        four.step(acting(four.reset(), 1, 1, 1, 1))
        four.close()
        assert closed_envs(folder) == {0, 1, 2, 3}
        if kind is ActingEnv:  # a TensorDict env says itself what it does before its first reset
            with pytest.raises(ResetNeeded, match=r"envs \[0, 1, 2, 3\] have not been reset yet"):
                four.step(acting(TensorDict({}, [4]), 1, 1, 1, 1))
        assert seen.isdisjoint(workers_of(four))
        seen |= {*workers_of(four)}
    assert four.last_partial() is None


class WithAProcess:
    """Mixed into an env: each has a ``multiprocessing`` process of its own, which it asks in each step."""

    def obey(self, place: str) -> None:
        if place == "init":
            import multiprocessing

            context = multiprocessing.get_context("fork")
            self.ours, theirs = context.Pipe()
            self.child = context.Process(target=answer, args=(theirs, self.ours))
            self.child.start()
            theirs.close()
        elif place == "step":
            self.ours.send(20)
            assert self.ours.recv() == 21
        elif place == "close":
            self.ours.close()
            self.child.join()

    def child_pid(self) -> int:
        return int(self.child.pid or 0)


def answer(connection: Any, other: Any) -> None:
    other.close()
    while True:
        try:
            connection.send(connection.recv() + 1)
        except EOFError:
            return


class EnvWithAProcess(WithAProcess, ActingEnv):
    pass


class TensorDictEnvWithAProcess(WithAProcess, ActingTensorDictEnv):
    pass


@pytest.mark.parametrize("method", [None, "fork"])
@pytest.mark.parametrize("with_process", [EnvWithAProcess, TensorDictEnvWithAProcess])
def test_an_env_may_have_a_process_of_its_own(with_process: Any, method: Any) -> None:
    env = batch(with_process, 2, num_workers=2, daemon=False, mp_start_method=method)
    watched = watch([*env.pid(), *env.child_pid()])
    assert len(watched) == 4
    assert steps_of(env.step(acting(env.reset(), 1, 1))["next"]) == [1, 1]
    env.close()
    assert not still_running(watched, patience=1.0)


@pytest.mark.parametrize("with_process", [EnvWithAProcess, TensorDictEnvWithAProcess])
def test_the_death_of_a_worker_whose_process_lives_on_is_told(with_process: Any) -> None:
    """Though that process has what it inherited."""
    env = batch(with_process, 2, num_workers=2)
    td = acting(env.reset(), 1, 1)
    pids, children = env.pid(), watch(env.child_pid())
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="worker 1"):
        env.step(td)
    env.close()
    assert not still_running(children)  # the other end of their pipe is gone


@pytest.mark.parametrize("with_process", [EnvWithAProcess, TensorDictEnvWithAProcess])
def test_a_daemon_may_have_no_process_of_its_own(with_process: Any) -> None:
    env = batch(with_process, 2, num_workers=2, daemon=True, mp_start_method="fork")
    with pytest.raises(AssertionError, match="daemonic processes are not allowed to have children"):
        env.reset()
