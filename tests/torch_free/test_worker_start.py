"""How workers are started: what they take over from the process that starts them, and what they do not."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from worker_processes import PATIENCE, run_script, worker

from gymbridge.engine.workers import Surroundings, WorkerSide, default_method, start_worker
from gymbridge.engine.workers.starter import has_starter
from gymbridge.errors import UnpicklableError, WorkerStartError

pytestmark = pytest.mark.skipif(not has_starter(), reason="tests the start of workers as Linux has it")

# how pytest imports this module, no worker can: what stands in it goes by value
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SENT = ("starter", "exec", "spawn", "forkserver")
"""The methods that send the job and the surroundings; ``"fork"`` inherits them."""
METHODS = (*SENT, "fork")


def ask(question: Any, **options: Any) -> Any:
    """What ``question()`` returns in a worker, which then ends with exit code 0."""

    def job(side: WorkerSide) -> None:
        side.connection.send(question())

    with worker(job, **options) as process:
        answer = process.connection.recv()
        assert process.exit_status(PATIENCE) == 0
    return answer


class Point:
    """Pickled by value, as a class of ``__main__`` is."""

    def __init__(self, x: int):
        self.x = x


@pytest.mark.parametrize("method", METHODS)
def test_objects_of_classes_without_a_module_go_there_and_back(method: str) -> None:
    point = Point(3)
    answer = ask(lambda: Point(point.x + 1), method=method)
    assert type(answer) is Point
    assert answer.x == 4


@pytest.mark.parametrize("method", METHODS)
def test_each_side_wakes_the_other(method: str) -> None:
    def job(side: WorkerSide) -> None:
        while (byte := side.wake.wait()) != 0:
            side.wake.wake(byte + 1)

    with worker(job, method=method) as process:
        process.wake.wake(7)
        assert process.wake.wait(PATIENCE) == 8
        process.wake.wake(0)
        assert process.exit_status(PATIENCE) == 0
        with pytest.raises(EOFError):
            process.wake.wait(PATIENCE)


@pytest.mark.parametrize("method", METHODS)
def test_descriptors_are_passed_and_no_others(method: str, tmp_path: Path) -> None:
    def job(side: WorkerSide) -> None:
        (passed,) = side.descriptors
        os.pwrite(passed, b"written", 0)
        open_ones = {}
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # that of listdir itself
                open_ones[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        side.connection.send((passed, os.get_inheritable(passed), open_ones))

    with (tmp_path / "passed").open("wb") as passed, (tmp_path / "other").open("wb") as other:
        os.set_inheritable(other.fileno(), True)
        with worker(job, method=method, pass_descriptors=[passed.fileno()]) as process:
            number, inheritable, open_ones = process.connection.recv()
    assert (tmp_path / "passed").read_bytes() == b"written"
    assert method == "fork" or not inheritable
    assert open_ones[number] == str(tmp_path / "passed")
    if method in ("starter", "exec"):
        assert str(tmp_path / "other") not in open_ones.values()
        ours = [target for number, target in open_ones.items() if number > 2]
        sockets = sum(target.startswith("socket:") for target in ours)
        pipes = sum(target.startswith("pipe:") for target in ours)
        assert sockets == (1 if method == "starter" else 2)  # the connection, and the lifeline of one without a starter
        assert pipes == 2
        assert len(ours) == sockets + pipes + 1


@pytest.mark.parametrize("method", METHODS)
def test_random_states_differ(method: str) -> None:
    draws = [ask(lambda: (random.random(), np.random.random()), method=method) for _ in range(2)]  # noqa: NPY002
    assert len({draw for pair in draws for draw in pair}) == 4


@pytest.mark.parametrize("method", METHODS)
def test_mpi_variables_are_kept_from_workers_and_others_are_not(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID", "KEPT_A", "KEPT_B"):
        monkeypatch.setenv(name, "3")
    surroundings = Surroundings.now({"KEPT_B": None, "KEPT_C": "4"})
    environ = ask(lambda: dict(os.environ), method=method, surroundings=surroundings)
    assert {name: value for name, value in environ.items() if name.startswith(("OMPI_", "PMI", "MPI_"))} == {}
    assert {name: value for name, value in environ.items() if name.startswith("KEPT_")} == {
        "KEPT_A": "3",
        "KEPT_C": "4",
    }
    assert os.environ["OMPI_COMM_WORLD_RANK"] == "3"


@pytest.mark.parametrize("method", ["starter", "exec"])
def test_threads_of_numeric_libraries_are_the_users_choice(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The starter's own variables, under which it imports numpy, do not reach workers."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    assert ask(lambda: [os.environ.get(name) for name in names], method=method) == ["3", None]


@pytest.mark.parametrize("method", SENT)
def test_paths_and_arguments_are_those_of_now(method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "written_just_now.py").write_text("value = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program", "--option"])
    monkeypatch.syspath_prepend(str(tmp_path))
    answer = ask(lambda: (os.getcwd(), sys.argv, __import__("written_just_now").value), method=method)
    assert answer == (str(tmp_path), ["program", "--option"], 5)


@pytest.mark.parametrize("method", METHODS)
def test_warnings_filters_set_here_apply_there(method: str) -> None:
    def question() -> list[str]:
        outcomes = []
        for text, category in (("bad news", RuntimeWarning), ("news", RuntimeWarning), ("old", DeprecationWarning)):
            try:
                with warnings.catch_warnings(record=True) as seen:
                    warnings.warn(text, category, stacklevel=1)
                outcomes.append("seen" if seen else "ignored")
            except category:
                outcomes.append("raised")
        return outcomes

    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("error", message="bad")
        assert ask(question, method=method) == ["raised", "seen", "ignored"]


@pytest.fixture
def registrations() -> Iterator[None]:
    before = dict(gym.registry)
    yield
    gym.registry.clear()
    gym.registry.update(before)


class OwnEnv(gym.Env[Any, Any]):
    observation_space = action_space = gym.spaces.Discrete(2)

    def __init__(self, size: int = 1, lock: Any = None):
        self.size = size


@pytest.mark.parametrize("method", SENT)
def test_ids_that_only_this_process_registered_work_there(method: str, registrations: None) -> None:
    gym.register("gymbridge/Own-v0", entry_point=OwnEnv, kwargs={"size": 4})
    gym.register("gymbridge/Bad-v0", entry_point=OwnEnv, kwargs={"lock": threading.Lock()})
    gym.register("gymbridge/Late-v0", entry_point=OwnEnv, kwargs={"size": 6})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an id that is taken
        gym.register("CartPole-v1", entry_point=OwnEnv, kwargs={"size": 5})

    def question() -> tuple[list[int], str]:
        sizes = [gym.make(id_).unwrapped.size for id_ in ("gymbridge/Own-v0", "CartPole-v1", "gymbridge/Late-v0")]
        try:
            gym.make("gymbridge/Bad-v0")
        except Exception as error:
            return sizes, f"{type(error).__name__}: {error}"
        return sizes, ""

    sizes, why = ask(question, method=method)
    assert sizes == [4, 5, 6]
    assert why.startswith("UnpicklableError: the registration of 'gymbridge/Bad-v0' cannot be sent")
    assert "its item 'lock'" in why


LOCK = threading.Lock()


def maker_that_closes_over(thing: Any) -> Any:
    return lambda side: thing


class Holder:
    def __init__(self) -> None:
        self.fine = 1
        self.makers = [len, functools.partial(print, LOCK)]

    def __call__(self, side: WorkerSide) -> None: ...


@pytest.mark.parametrize(
    ("job", "part", "of_type"),
    [
        (maker_that_closes_over(threading.Lock()), "its closure variable 'thing' is <unlocked", "lock"),
        (lambda side: LOCK, "its global variable 'LOCK' is <unlocked", "lock"),
        (Holder(), "its attribute 'makers', its item 1, its argument 0 is <unlocked", "lock"),
        (functools.partial(print, open=threading.Lock()), "its argument 'open' is <unlocked", "lock"),
    ],
    ids=["closure", "global", "attribute", "argument"],
)
@pytest.mark.parametrize("method", SENT)
def test_a_job_that_cannot_be_pickled_says_which_part_cannot(method: str, job: Any, part: str, of_type: str) -> None:
    with pytest.raises(UnpicklableError) as caught:
        start_worker(job, method=method, what="the maker of env 2")
    assert str(caught.value).startswith(f"the maker of env 2 cannot be sent to a worker process: {part}")
    assert f"of type {of_type}, which cannot be pickled" in str(caught.value)
    assert 'mp_start_method="fork"' in str(caught.value)
    assert 'context="fork"' in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_fork_takes_what_cannot_be_pickled() -> None:
    lock = threading.Lock()
    lock.acquire()
    assert ask(lambda: lock.locked(), method="fork") is True


class ReadsBadly:
    def __reduce__(self) -> Any:
        return __import__, ("no_such_module_anywhere",)

    def __call__(self, side: WorkerSide) -> None: ...


@pytest.mark.parametrize("method", SENT)
def test_a_job_that_the_worker_cannot_read_is_told_to_the_reader(method: str) -> None:
    with worker(ReadsBadly(), method=method) as process:
        with pytest.raises(WorkerStartError, match="no_such_module_anywhere") as caught:
            process.connection.recv()
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)
        assert "Traceback" in str(caught.value)
        assert process.exit_status(PATIENCE) == 1


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="method: got 'thread', expected None or one of starter, exec, fork"):
        start_worker(print, method="thread")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="job: got int, expected a callable"):
        start_worker(3)  # type: ignore[arg-type]
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    with pytest.raises(OSError, match="Bad file descriptor"):
        start_worker(print, pass_descriptors=[writer])


def test_windows_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(NotImplementedError, match="no worker processes on Windows: use SerialEnv"):
        start_worker(print)


def test_without_pidfds_workers_are_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.delattr(os, "memfd_create")
    assert default_method() == "exec"
    with pytest.raises(NotImplementedError, match=r"needs Linux 5\.4"):
        start_worker(print, method="starter")
    assert ask(lambda: 5) == 5
    with worker(lambda side: side.wake.wait()) as process:
        assert process.exit_status(0) is None
        process.terminate()
        assert process.exit_status(PATIENCE) == -15
        with pytest.raises(EOFError):
            process.wake.wait(PATIENCE)


def test_workers_start_from_many_threads_at_once() -> None:
    with ThreadPoolExecutor(8) as threads:
        pids = list(threads.map(lambda _: ask(os.getpid), range(24)))
    assert len(set(pids)) == 24


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_may_start_processes_unless_daemonic(method: str) -> None:
    def question() -> int | None:
        import multiprocessing

        process = multiprocessing.get_context("fork").Process(target=sys.exit, args=(5,))
        process.start()
        process.join()
        return process.exitcode

    assert ask(question, method=method) == 5
    if method in ("fork", "spawn", "forkserver"):
        with worker(lambda side: side.connection.send(question()), method=method, daemon=True) as process:
            assert process.exit_status(PATIENCE) == 1  # multiprocessing's own AssertionError


def test_a_worker_may_start_workers() -> None:
    assert ask(lambda: ask(lambda: 3) + 1) == 4


@pytest.mark.parametrize("method", ["starter", "exec"])
def test_what_a_job_prints_goes_where_standard_output_goes_now(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    ask(functools.partial(print, "from", "the worker"), method=method)
    assert capfd.readouterr().out == "from the worker\n"


def test_exit_handlers_and_threads_of_a_worker_are_ended_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    def question() -> None:
        import atexit

        atexit.register(print, "last")
        threads = ThreadPoolExecutor(1)  # its thread ends at the interpreter's end, and is waited for
        threads.submit(print, "first")

    ask(question)
    assert capfd.readouterr().out == "first\nlast\n"


SCRIPT = """
import sys
import warnings
import torch  # a stand-in, which lies beside this script
import gymnasium as gym
from gymbridge.engine.workers import start_worker

with open("runs", "a") as runs:
    runs.write("the script ran\\n")

class OwnWarning(Warning): ...

class Size(gym.Wrapper):
    @property
    def size(self):
        return 10 * self.env.unwrapped.size

class Own(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(2)
    size = 3

gym.register("Own-v0", entry_point="__main__:Own")
gym.register("Wrapped-v0", entry_point="__main__:Own", additional_wrappers=(Size.wrapper_spec(),))
offset = 100
warnings.simplefilter("error", torch.TracerWarning)  # names torch, but is no reason to import it
warnings.simplefilter("error", OwnWarning)
warnings.simplefilter("ignore", UserWarning)

def job(side):
    own, wrapped = gym.make("Own-v0"), gym.make("Wrapped-v0")
    answer = offset + own.unwrapped.size, wrapped.get_wrapper_attr("size"), own.spec.entry_point
    has_torch = "torch" in sys.modules
    from torch import TracerWarning
    raised = []
    for category in (TracerWarning, OwnWarning, UserWarning):
        try:
            warnings.warn("-", category)
        except Warning:
            raised.append(category.__name__)
    side.connection.send((answer, own.unwrapped, has_torch, raised))

workers = [start_worker(lambda side: job(side), method=METHOD) for _ in range(3)]
for worker in workers:
    answer, env, has_torch, raised = worker.connection.recv()
    print(answer, type(env) is Own, has_torch, *raised, worker.exit_status(60))
"""


@pytest.mark.parametrize("method", ["starter", "exec"])
@pytest.mark.parametrize("how", ["script", "exec"])
def test_a_script_needs_no_guard_and_runs_once(
    method: str, how: str, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    """Classes, ids and functions of the script work in workers, which import only what these need."""
    (tmp_path / "torch.py").write_text("class TracerWarning(Warning): ...")
    script = SCRIPT.replace("METHOD", repr(method)).replace("Size.wrapper_spec()", WRAPPER_SPEC)
    if how == "exec":  # as notebooks run their cells
        script = f"exec(compile({script!r}, '<cell>', 'exec'), vars(__import__('__main__')))"
    output = run_script(tmp_path, script, subprocess_env)
    assert output.splitlines() == ["(103, 30, '__main__:Own') True False TracerWarning OwnWarning 0"] * 3
    assert (tmp_path / "runs").read_text() == "the script ran\n"


WRAPPER_SPEC = "gym.envs.registration.WrapperSpec('Size', '__main__:Size', {})"


def test_what_the_starter_imported_is_not_taken_apart_by_each_worker() -> None:
    """What the worker registers for its own end runs; torch's finalizers would cost more than the rest of a worker."""

    def job(side: WorkerSide) -> None:
        inherited = [finalizer.atexit for finalizer in weakref.finalize._registry]  # type: ignore[attr-defined]
        point = Point(1)
        descriptor = os.dup(side.connection.fileno())
        weakref.finalize(point, os.write, descriptor, len(b"end").to_bytes(4, "big") + b"end")
        sys.kept = point  # type: ignore[attr-defined]
        side.connection.send(inherited)

    with worker(job, preload=("gymbridge.envs.remote_host",) if find_spec("torch") else ()) as process:
        inherited = process.connection.recv()
        assert inherited or not find_spec("torch")
        assert not any(inherited)
        assert process.connection.recv_bytes() == b"end"
        assert process.exit_status(PATIENCE) == 0
