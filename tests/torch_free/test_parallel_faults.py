"""What goes wrong in workers: it is told, costs the other envs nothing, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import waiting_envs
from agreement import assert_same
from fuzzing import examples
from gymnasium.error import ResetNeeded
from vector_classes import travels
from waiting_envs import ActingEnv, acting, closed_envs
from worker_processes import PATIENCE, descendants, run_script, start_script, still_running, watch

from gymbridge.engine.remote_errors import RemoteTraceback
from gymbridge.errors import RemoteEnvError, UnpicklableError, WorkerDiedError, WorkerStartError
from gymbridge.vector import AsyncVectorEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tests the ends of workers as Linux has them")

travels(sys.modules[__name__], waiting_envs)


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def workers_of(envs: AsyncVectorEnv) -> list[int]:
    return sorted(set(envs.call("pid")))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    gc.collect()


@pytest.fixture
def four(folder: Path) -> Iterator[AsyncVectorEnv]:
    """Four envs in two workers, after a reset."""
    envs = AsyncVectorEnv(acting(4, folder), num_workers=2)
    envs.reset(seed=0)
    yield envs
    envs.close(terminate=True)


# ---------------------------------------------------------------- an env that raises


def test_an_exception_has_its_type_its_message_and_the_remote_traceback(four: AsyncVectorEnv) -> None:
    four.set_attr("act", ["", "", "", "raise"])
    with pytest.raises(LookupError) as raised:
        four.step([1, 2, 3, 4])
    assert raised.value.args == ("broken", 3)
    assert raised.value.env_index == 3  # type: ignore[attr-defined]
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    remote = str(raised.value.__cause__)  # with the source lines, where they are to be found
    assert "in step\n" in remote
    assert remote.rstrip('\n"').endswith("LookupError: ('broken', 3)")
    if hasattr(raised.value, "__notes__"):
        assert raised.value.__notes__ == ["raised by env 3"]
    observations, rewards, *_, infos = four.last_partial()  # type: ignore[misc]
    assert rewards.tolist() == [1, 2, 3, 0]
    assert observations[:, 1].tolist() == [1, 1, 1, 0]
    assert infos["_failed"].tolist() == [False, False, False, True]
    four.set_attr("act", "")
    with pytest.raises(ResetNeeded, match=r"envs \[3\] raised an error"):
        four.step([0] * 4)
    four.reset(options={"reset_mask": infos["_failed"]})
    assert four.step([0] * 4)[0][:, 1].tolist() == [2, 2, 2, 1]


def test_an_exception_that_keeps_other_arguments_than_it_takes(four: AsyncVectorEnv) -> None:
    four.set_attr("act", ["", "raise two", "", ""])
    with pytest.raises(waiting_envs.TwoArguments, match=r"^broken at 3"):
        four.step([0] * 4)


def test_an_exception_that_cannot_be_rebuilt_is_named(four: AsyncVectorEnv) -> None:
    four.set_attr("act", ["", "", "raise nameless", ""])
    with pytest.raises(RemoteEnvError, match=r"waiting_envs\.Nameless: only here") as raised:
        four.step([0] * 4)
    assert raised.value.type_name.endswith("waiting_envs.Nameless")
    assert raised.value.env_message == "only here"
    assert raised.value.env_index == 2  # type: ignore[attr-defined]


def test_an_exception_in_reset_and_in_a_call(four: AsyncVectorEnv) -> None:
    four.set_attr("act", ["", "raise in reset", "", ""])
    with pytest.raises(LookupError, match="no reset") as raised:
        four.reset()
    assert raised.value.env_index == 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="nowhere"):
        four.get_attr("nowhere")
    assert four.call("variable", "NO_SUCH_VARIABLE") == (None,) * 4


def test_a_result_that_cannot_be_pickled_is_named(four: AsyncVectorEnv) -> None:
    with pytest.raises(UnpicklableError, match=r"what 'call' of env 0 gave cannot be sent from its worker process"):
        four.call("unpicklable")
    with pytest.raises(UnpicklableError, match=r"what 'set_attribute' of the envs \[0, 1\] is given cannot be sent"):
        four.set_attr("lock", threading.Lock())
    four.step([0] * 4)


def test_an_info_that_cannot_be_pickled_fails_its_env_alone(four: AsyncVectorEnv) -> None:
    four.set_attr("act", ["", "lock in info", "", "huge info"])
    with pytest.raises(UnpicklableError, match=r"what env 1 gave cannot be sent .*its item 'lock' is of type lock"):
        four.step([1] * 4)
    infos = four.last_partial()[-1]  # type: ignore[index]
    assert infos["_failed"].tolist() == [False, True, False, False]
    assert infos["_huge"].tolist() == [False, False, False, True]


class _GivesALock(gym.Env[Any, Any]):
    """Ends in each step; the info of the step, or of the resets after the first, is what fails or has a lock in it."""

    observation_space, action_space = gym.spaces.Box(0, 9, (1,)), gym.spaces.Discrete(2)

    def __init__(self, where: str, raises: bool):
        self.where, self.raises = where, raises
        self.num_resets = 0

    def info(self, where: str) -> dict[str, Any]:
        if where == self.where and self.raises:
            raise LookupError("broken")
        return {"lock": threading.Lock()} if where == self.where else {where: 1}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.num_resets += 1
        return np.zeros(1, np.float32), self.info("reset") if self.num_resets > 1 else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.ones(1, np.float32), 2.0, True, False, self.info("step")


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("where", ["step", "reset"])
def test_what_cannot_be_pickled_leaves_of_its_env_what_an_error_does(where: str, mode: str) -> None:
    """No reward and no flag of a step that is lost; the step's where it is the reset after it."""
    shown = []
    for raises in (False, True):
        envs = AsyncVectorEnv([partial(_GivesALock, each, raises) for each in (where, "nowhere")], autoreset_mode=mode)
        envs.reset()
        try:
            if (where, mode) == ("reset", "NextStep"):
                envs.step([0, 0])  # the next step resets
            with pytest.raises(LookupError if raises else UnpicklableError):
                envs.step([0, 0])
            assert envs.last_partial() is not None
            shown.append(envs.last_partial())
        finally:
            envs.close()
    assert shown[0][-1]["_failed"].tolist() == [True, False]  # type: ignore[index]
    if where == "step" or mode == "NextStep":  # the env did give an observation here, and where it raised it gave none
        shown = [(observations[1:], *others) for observations, *others in shown]  # type: ignore[misc]
    assert_same(*shown)


def test_messages_far_larger_than_a_pipe_holds(four: AsyncVectorEnv) -> None:
    """Both ways at once, from all workers."""
    big = np.arange(2_000_000)
    _, infos = four.reset(options={"big": big})
    assert infos["options"]["big"].shape == (4, len(big))
    assert np.array_equal(infos["options"]["big"][3], big)
    four.set_attr("act", "huge info")
    infos = four.step([0] * 4)[-1]
    assert [row[0] for row in infos["huge"]] == [0, 1, 2, 3]
    assert infos["huge"].shape == (4, 3_000_000)


# ---------------------------------------------------------------- makers


def test_a_maker_that_raises_is_named_and_all_workers_are_gone(folder: Path) -> None:
    AsyncVectorEnv(acting(1), num_workers=1).close()  # what stays for later workers comes with the first
    gc.collect()
    before = descriptors()

    def fail() -> gym.Env:
        raise LookupError("no such game")

    with pytest.raises(LookupError, match="no such game") as raised:
        AsyncVectorEnv([*acting(3, folder), fail], num_workers=2)
    assert raised.value.env_index == 3  # type: ignore[attr-defined]
    if hasattr(raised.value, "__notes__"):
        assert raised.value.__notes__ == ["raised while env 3 was made"]
    assert "no such game" in str(raised.value.__cause__)
    assert closed_envs(folder) >= {2}
    del raised
    gc.collect()
    assert descriptors() == before


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("end", "code"), [(kill_itself, -9), (lambda: sys.exit(3), 3)], ids=["kill", "exit"])
def test_a_maker_that_ends_its_worker(end: Any, code: int) -> None:
    with pytest.raises(WorkerDiedError) as raised:
        AsyncVectorEnv([*acting(2), end, end], num_workers=2)
    assert (raised.value.worker, raised.value.env_indices, raised.value.exit_code) == (1, (2, 3), code)


def test_a_maker_that_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    def make() -> gym.Env:
        return ActingEnv(int(lock.locked()))

    with pytest.raises(UnpicklableError, match=r"the maker of env 1 .*closure variable 'lock'.*context=\"fork\""):
        AsyncVectorEnv([*acting(1), make], num_workers=1)
    envs = AsyncVectorEnv([*acting(1), make], num_workers=1, context="fork")
    assert envs.reset()[0][:, 0].tolist() == [0, 0]
    envs.close()


def test_an_open_file_in_a_maker_is_named(folder: Path) -> None:
    with (folder / "log").open("w") as log:

        def make() -> gym.Env:
            log.write("made")
            log.flush()
            return ActingEnv()

        with pytest.raises(UnpicklableError, match=r"the maker of env 0 .*closure variable 'log'.*context=\"fork\""):
            AsyncVectorEnv([make])
        AsyncVectorEnv([make], context="fork").close()
    assert (folder / "log").read_text() == "made"


class OnlyHere:
    """A maker that pickles, and cannot be unpickled in a worker."""

    def __call__(self) -> gym.Env:
        raise AssertionError("never called")

    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_a_maker_that_cannot_be_unpickled() -> None:
    with pytest.raises(WorkerStartError, match=r"could not read what it is to run: ValueError: .*no number"):
        AsyncVectorEnv([*acting(2), OnlyHere()], num_workers=2)


def test_a_maker_that_takes_too_long(folder: Path) -> None:
    def wait() -> gym.Env:
        ActingEnv(0, folder).wait()
        raise AssertionError

    acting(1, folder)
    with pytest.raises(WorkerStartError, match=r"the envs \[0\] were not made within the start timeout"):
        AsyncVectorEnv([wait], start_timeout=0.5)


def test_envs_that_do_not_fit_together_are_closed(folder: Path) -> None:
    def other() -> gym.Env:
        return gym.make("CartPole-v1")

    with pytest.raises(RuntimeError, match="env 2: got the observation space"):
        AsyncVectorEnv([*acting(2, folder), other], num_workers=2)
    assert closed_envs(folder) == {0, 1}


# ---------------------------------------------------------------- workers that die


@pytest.mark.parametrize(("act", "code", "how"), [("kill", -9, "killed by SIGKILL"), ("exit", 3, "exit code 3")])
def test_a_worker_that_dies_in_a_step(four: AsyncVectorEnv, act: str, code: int, how: str) -> None:
    four.set_attr("act", ["", "", act, ""])
    with pytest.raises(WorkerDiedError, match=rf"worker 1, which ran the envs \[2, 3\], has died: {how}") as raised:
        four.step([1] * 4)
    assert (raised.value.worker, raised.value.env_indices, raised.value.exit_code) == (1, (2, 3), code)
    observations, rewards, *_, infos = four.last_partial()  # type: ignore[misc]
    assert rewards[:2].tolist() == [1, 1]
    assert observations[:2, 1].tolist() == [1, 1]
    assert infos["_failed"].tolist() == [False, False, True, True]
    for call in (
        lambda: four.step([1] * 4),
        lambda: four.reset(),
        lambda: four.reset(options={"reset_mask": np.array([True, False, True, False])}),
        lambda: four.call("pid"),
    ):
        with pytest.raises(WorkerDiedError) as again:
            call()
        assert again.value.args == raised.value.args
    four.reset(options={"reset_mask": np.array([True, True, False, False])})
    four.close()


def test_a_worker_that_is_killed_while_idle(four: AsyncVectorEnv) -> None:
    first, second = ((pid, watch([pid])) for pid in workers_of(four))
    os.kill(second[0], signal.SIGKILL)
    assert not still_running(second[1])
    with pytest.raises(WorkerDiedError, match="killed by SIGKILL"):
        four.step([0] * 4)
    with pytest.raises(WorkerDiedError):
        four.get_attr("index")
    four.close()
    assert not still_running(first[1])


def test_a_worker_that_dies_while_idle_does_not_hold_up_close(four: AsyncVectorEnv) -> None:
    pids = workers_of(four)
    watched = watch(pids)
    os.kill(pids[0], signal.SIGKILL)
    four.close()
    assert not still_running(watched)


# ---------------------------------------------------------------- the end


def test_close_closes_the_envs_and_ends_the_workers(four: AsyncVectorEnv, folder: Path) -> None:
    watched = watch(workers_of(four))
    four.close()
    assert not still_running(watched, patience=0.1)
    assert closed_envs(folder) == {0, 1, 2, 3}
    four.close()


def test_an_error_in_close_comes_out_once_all_are_closed(four: AsyncVectorEnv, folder: Path) -> None:
    watched = watch(workers_of(four))
    four.set_attr("act", ["", "raise in close", "", ""])
    with pytest.raises(OSError, match="cannot close"):
        four.close()
    assert closed_envs(folder) == {0, 2, 3}
    assert not still_running(watched, patience=0.1)
    four.close()


@pytest.mark.filterwarnings("ignore:.*while waiting for a pending call")
def test_close_waits_for_what_is_pending(four: AsyncVectorEnv, folder: Path) -> None:
    four.step_async([0] * 4)
    four.close()
    assert closed_envs(folder) == {0, 1, 2, 3}


@pytest.mark.parametrize("act", ["wait", "wait in close", "hold the gil"])
@pytest.mark.filterwarnings("ignore:.*while waiting for a pending call")
def test_close_kills_what_does_not_come_to_an_end(four: AsyncVectorEnv, folder: Path, act: str) -> None:
    watched = watch(workers_of(four))
    four.set_attr("act", ["", "", "", act])
    if act != "wait in close":
        four.step_async([0] * 4)
    with pytest.warns(UserWarning, match=r"workers \[1\] did not close the envs \[2, 3\] in time and were killed"):
        four.close(timeout=0.2)
    assert not still_running(watched, patience=0.1)
    assert closed_envs(folder) >= {0, 1}


@pytest.mark.filterwarnings("ignore:.*while waiting for a pending call")
def test_terminate_kills_at_once(four: AsyncVectorEnv, folder: Path) -> None:
    watched = watch(workers_of(four))
    four.set_attr("act", ["", "", "", "hold the gil"])
    four.step_async([0] * 4)
    four.close(terminate=True)
    assert not still_running(watched, patience=0.1)
    assert closed_envs(folder) == set()


@pytest.mark.parametrize("act", ["", "hold the gil"])
def test_dropping_it_unclosed_ends_everything(folder: Path, act: str) -> None:
    AsyncVectorEnv(acting(1), num_workers=1).close()  # what stays for later workers comes with the first
    gc.collect()
    before = descriptors()
    envs = AsyncVectorEnv(acting(2, folder), num_workers=2)
    envs.reset()
    watched = watch(workers_of(envs))
    memory = weakref.ref(envs._engine._memory)
    if act:
        envs.set_attr("act", act)
        envs.step_async([0, 0])
    del envs
    gc.collect()
    assert not still_running(watched)
    assert memory() is None
    assert closed_envs(folder) == (set() if act else {0, 1})
    assert descriptors() == before


def test_nothing_is_left_after_many(folder: Path) -> None:
    """No descriptor, process, mapping or file of shared memory, after many that were closed and many that were dropped.

    200 and 50 with ``GYMBRIDGE_EXAMPLES=5``.
    """

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("gymbridge")

    def named() -> list[str]:
        return [name for name in os.listdir("/dev/shm") if str(os.getpid()) in name]

    watched: dict[int, int] = {}

    def one() -> AsyncVectorEnv:
        envs = AsyncVectorEnv(acting(1), num_workers=1)
        envs.reset()
        envs.step([0])
        return envs

    one().close()
    before, processes = (descriptors(), mappings(), named()), descendants(dead=True)
    for _ in range(examples(40)):
        envs = one()
        envs.close()
        assert mappings() == before[1]
    assert (descriptors(), mappings(), named()) == before
    assert descendants(dead=True) <= processes
    for _ in range(examples(10)):
        envs = one()
        watched |= watch(workers_of(envs))
    del envs
    gc.collect()
    assert not still_running(watched)
    assert (descriptors(), mappings(), named()) == before
    one().close()  # by then the starter has waited for those before
    assert descendants(dead=True) <= processes


SCRIPT = """
import ctypes, gc, os, signal, sys

import gymnasium as gym
import numpy as np
from gymbridge.vector import AsyncVectorEnv


class Own(gym.Env):
    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, index):
        self.index, self.steps, self.act, self.caller = index, 0, "", None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {{}}

    def step(self, action):
        self.steps += 1
        if self.act == "interrupt" and self.index == 1:
            os.kill(self.caller, signal.SIGINT)
        if self.act == "hold":
            os.write(1, b"%d\\n" % os.getpid())
            ctypes.PyDLL(None).pause()
        return np.full(1, self.steps, np.float32), 1.0, False, False, {{}}

    def pid(self):
        return os.getpid()


print("begun", flush=True)
envs = AsyncVectorEnv([lambda index=index: Own(index) for index in range(2)], num_workers=2)
envs.reset(seed=0)
{rest}
"""


def test_a_script_runs_once_and_needs_no_guard(folder: Path, subprocess_env: dict[str, str]) -> None:
    rest = "print(envs.step([0, 1])[0].ravel().tolist()); envs.close()"
    assert run_script(folder, SCRIPT.format(rest=rest), subprocess_env).splitlines() == ["begun", "[1.0, 1.0]"]


NOTEBOOK = """
import gymnasium as gym
import numpy as np
from gymbridge.vector import make_vec

cells = [
    '''
print("begun")

class Cell(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, False, False, {}
    ''',
    'gym.register("own/Cell-v0", entry_point=Cell)',
    'envs = make_vec("own/Cell-v0", 2); envs.reset(seed=0)',
    'print(envs.step([0, 1])[0].ravel().tolist()); envs.close()',
]
for cell in cells:
    exec(compile(cell, "<cell>", "exec"), globals())
"""


def test_a_notebooks_cells_run_once(folder: Path, subprocess_env: dict[str, str]) -> None:
    """With an env class and an id of their own."""
    assert run_script(folder, NOTEBOOK, subprocess_env).splitlines() == ["begun", "[1.0, 1.0]"]


def test_ending_without_close_leaves_nothing(folder: Path, subprocess_env: dict[str, str]) -> None:
    script = start_script(folder, SCRIPT.format(rest="print(*envs.call('pid'), flush=True); input()"), subprocess_env)
    assert script.stdout is not None
    assert script.stdout.readline() == "begun\n"
    watched = watch(map(int, script.stdout.readline().split()))
    _, errors = script.communicate("\n", timeout=PATIENCE)
    assert not errors
    assert not still_running(watched)


def test_a_killed_caller_leaves_nothing_even_in_the_middle_of_c_code(
    folder: Path, subprocess_env: dict[str, str]
) -> None:
    script = start_script(folder, SCRIPT.format(rest="envs.set_attr('act', 'hold'); envs.step([0, 0])"), subprocess_env)
    try:
        assert script.stdout is not None
        assert script.stdout.readline() == "begun\n"
        watched = watch(int(script.stdout.readline()) for _ in range(2))
    finally:
        script.kill()
    script.wait(PATIENCE)
    assert not still_running(watched)
    script.communicate()


INTERRUPT = """
envs.set_attr("caller", os.getpid())
envs.step([0, 0])
for _ in range(20):
    envs.set_attr("act", "interrupt")
    try:
        envs.step([0, 0])
        for _ in range(10**9):  # the signal may come a little after the answer
            pass
    except KeyboardInterrupt:
        pass
    envs.set_attr("act", "")
    try:
        envs.step([0, 0])
    except gym.error.ResetNeeded:
        envs.reset()
        assert envs.step([1, 1])[0].ravel().tolist() == [1, 1]
    assert len(set(envs.step([1, 1])[0].ravel().tolist())) == 1
    assert envs.call("pid") == envs.call("pid")
print("done")
envs.close()
"""


def test_an_interrupt_in_the_middle_of_a_round(folder: Path, subprocess_env: dict[str, str]) -> None:
    """Whenever it comes: nothing hangs, no answer of the interrupted round is taken for one of a later round."""
    assert run_script(folder, SCRIPT.format(rest=INTERRUPT), subprocess_env).splitlines() == ["begun", "done"]


FORK = """
import warnings
sys.stdout.flush()
warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, where numpy has threads
child = os.fork()
if child == 0:
    try:
        envs.step([0, 0])
    except RuntimeError as error:
        print(error, flush=True)
    envs.close()
    sys.exit(0)
os.waitpid(child, 0)
print(envs.step([0, 0])[0].ravel().tolist())
envs.close()
"""


def test_a_fork_of_the_callers_process_leaves_the_workers_alone(folder: Path, subprocess_env: dict[str, str]) -> None:
    lines = run_script(folder, SCRIPT.format(rest=FORK), subprocess_env).splitlines()
    assert lines[1].startswith("the workers belong to the process that started them")
    assert lines[2:] == ["[1.0, 1.0]"]
