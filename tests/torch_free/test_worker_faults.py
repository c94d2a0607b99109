"""Workers, their starter and the process that they work for, killed and interrupted; nothing is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from worker_processes import PATIENCE, descendants, run_script, start_script, still_running, watch, worker

from gymbridge.engine.workers import WorkerProcess, WorkerSide, start_worker
from gymbridge.engine.workers.parent_death import die_with_lifeline
from gymbridge.engine.workers.starter import has_starter, running_starter
from gymbridge.errors import exit_text

pytestmark = pytest.mark.skipif(not has_starter(), reason="tests the ends of workers as Linux has them")

cloudpickle.register_pickle_by_value(sys.modules[__name__])

METHODS = ("starter", "exec", "fork", "spawn", "forkserver")


def serve(side: WorkerSide) -> None:
    """Answers until there is nobody to answer to."""
    with contextlib.suppress(EOFError):
        while True:
            side.connection.send(side.connection.recv())


def hold_the_gil(side: WorkerSide) -> None:
    side.connection.send("holding it from now on")
    ctypes.PyDLL(None).pause()


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_worker_is_noticed_and_its_signal_told(method: str) -> None:
    with worker(serve, method=method) as process:
        process.connection.send("ready?")
        process.connection.recv()
        os.kill(process.pid, signal.SIGUSR2)  # which no handler of the parent catches, as faulthandler does a SIGSEGV
        with pytest.raises(EOFError):
            process.wake.wait(PATIENCE)
        with pytest.raises(EOFError):
            process.connection.recv()
        status = process.exit_status(PATIENCE)
        assert status is not None
        assert exit_text(status) == "killed by SIGUSR2"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("code", [0, 3, None, "because"])
def test_the_exit_code_is_told(method: str, code: int | str | None) -> None:
    with worker(lambda side: sys.exit(code), method=method) as process:
        assert process.exit_status(PATIENCE) == (code if isinstance(code, int) else int(code is not None))


@pytest.mark.parametrize("method", METHODS)
def test_an_exception_of_the_job_is_printed(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    with worker(lambda side: 1 / 0, method=method) as process:
        assert process.exit_status(PATIENCE) == 1
    assert method == "forkserver" or "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize("method", METHODS)
def test_terminate_kill_and_exit_status(method: str) -> None:
    for end, number in ((WorkerProcess.terminate, signal.SIGTERM), (WorkerProcess.kill, signal.SIGKILL)):
        with worker(serve, method=method) as process:
            process.connection.send("ready?")
            process.connection.recv()
            assert process.is_alive
            assert not process.join(timeout=0)
            end(process)
            assert process.exit_status(PATIENCE) == -number
            end(process)  # does nothing now


@pytest.mark.parametrize("method", METHODS)
def test_closing_ends_a_worker_that_waits(method: str) -> None:
    process = start_worker(serve, method=method)
    watched = watch([process.pid])
    process.close()
    process.close()
    assert not still_running(watched)
    with pytest.raises(ValueError, match=rf"worker process {process.pid} has been closed"):
        process.exit_status()
    with pytest.raises(OSError, match="closed"):
        process.connection.recv()


@pytest.mark.parametrize("method", METHODS)
def test_dropping_the_last_reference_ends_a_worker_that_waits(method: str) -> None:
    process = start_worker(serve, method=method)
    watched = watch([process.pid])
    del process
    gc.collect()
    assert not still_running(watched)


def descriptors(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def descriptors_at_rest(pid: int) -> int:
    """Those of the starter, which lets go of a worker's a moment after that is seen to have ended: the fewest."""
    end = time.monotonic() + 0.5
    fewest = descriptors(pid)
    while time.monotonic() < end:
        os.sched_yield()
        fewest = min(fewest, descriptors(pid))
    return fewest


@pytest.mark.parametrize("method", METHODS)
def test_no_descriptor_and_no_process_is_left_behind(method: str) -> None:
    def start_and_stop() -> None:
        with worker(serve, method=method):
            pass

    starter = running_starter(PATIENCE).pid
    start_and_stop()  # what stays for later workers comes with the first
    gc.collect()
    before = descriptors(), descriptors_at_rest(starter), descendants(dead=True)
    for _ in range(20):
        start_and_stop()
    gc.collect()
    assert (descriptors(), descriptors_at_rest(starter), descendants(dead=True)) == before


def test_a_start_that_fails_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(serve):
        pass
    gc.collect()
    before = descriptors()

    def no_pipe() -> tuple[int, int]:
        raise OSError("too many")

    monkeypatch.setattr(os, "pipe", no_pipe)
    with pytest.raises(OSError, match="too many"):
        start_worker(serve)
    monkeypatch.undo()
    gc.collect()
    assert descriptors() == before


def test_a_killed_starter_is_replaced_and_its_workers_are_noticed() -> None:
    with worker(hold_the_gil) as process:
        process.connection.recv()
        starter = running_starter(PATIENCE).pid
        os.kill(starter, signal.SIGKILL)
        with pytest.raises(EOFError):
            process.wake.wait(PATIENCE)
        assert process.exit_status(PATIENCE) == -signal.SIGKILL
        with worker(serve) as other:
            other.connection.send(5)
            assert other.connection.recv() == 5
            assert running_starter(PATIENCE).pid != starter


def test_a_stopped_starter_is_not_waited_for_for_ever() -> None:
    starter = running_starter(PATIENCE).pid
    os.kill(starter, signal.SIGSTOP)
    try:
        with pytest.raises(Exception, match=rf"starter process {starter} did not answer within 0\.01 s"):
            start_worker(serve, timeout=0.01)
    finally:
        os.kill(starter, signal.SIGCONT)
    with worker(serve) as process:
        process.connection.send(5)
        assert process.connection.recv() == 5


def fork_a_child_in_c(side: WorkerSide) -> None:
    pid = ctypes.CDLL(None).fork()  # no hook of Python's runs: the child keeps every descriptor of ours
    if pid == 0:
        ctypes.CDLL(None).pause()
    side.connection.send(pid)
    ctypes.CDLL(None).pause()


def fork_a_child(side: WorkerSide) -> None:
    pid = os.fork()
    if pid == 0:
        os.execlp("sleep", "sleep", "1000")
    side.connection.send(pid)
    side.wake.wait()


@pytest.mark.parametrize("job", [fork_a_child, fork_a_child_in_c])
@pytest.mark.parametrize("method", ["starter", "exec"])
def test_the_death_of_a_worker_whose_child_lives_on_is_noticed(method: str, job: Any) -> None:
    with worker(job, method=method) as process:
        child = process.connection.recv()
        try:
            process.kill()
            with pytest.raises(EOFError):
                process.wake.wait(PATIENCE)
            assert process.exit_status(PATIENCE) == -signal.SIGKILL
            os.kill(child, 0)  # it does live on
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_process_that_a_worker_forks_has_none_of_our_descriptors() -> None:
    def job(side: WorkerSide) -> None:
        import multiprocessing

        there, here = multiprocessing.Pipe()

        def tell() -> None:
            there.send([fd for fd in (ours, *side.descriptors) if os.path.exists(f"/proc/self/fd/{fd}")])

        ours = side.connection.fileno()
        multiprocessing.get_context("fork").Process(target=tell).start()
        side.connection.send((ours, here.recv()))

    with worker(job) as process:
        ours, open_in_child = process.connection.recv()
        assert ours >= 0
        assert open_in_child == []


KILLED = """
import ctypes, json, threading
from gymbridge.engine.workers import start_worker
from gymbridge.engine.workers.starter import running_starter

def wait(side):
    side.connection.send("waiting")
    side.wake.wait()

def hold_the_gil(side):
    side.connection.send("holding it from now on")
    ctypes.PyDLL(None).pause()

if __name__ == "__main__":
    workers = []
    def start():
        workers.extend(start_worker(job, method=METHOD) for job in (wait, hold_the_gil))
        for worker in workers:
            worker.connection.recv()
    thread = threading.Thread(target=start)  # whose end is not that of the process, and ends no worker
    thread.start()
    thread.join()
    starter = [running_starter(60).pid] if METHOD == "starter" else []
    alive = [worker.exit_status(0.1) is None for worker in workers]
    print(json.dumps([alive, [worker.pid for worker in workers] + starter]), flush=True)
    input()
"""


@pytest.mark.parametrize("method", METHODS)
def test_nothing_outlives_a_killed_parent(method: str, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    import json

    process = start_script(tmp_path, KILLED.replace("METHOD", repr(method)), subprocess_env)
    with process:
        assert process.stdout is not None
        alive, pids = json.loads(process.stdout.readline())
        watched = watch(pids)
        process.kill()
        assert not still_running(watched)
        assert alive == [True, True]


def test_a_lifeline_watched_by_a_thread_ends_the_process() -> None:
    """As on macOS, whose kernel signals nobody."""

    def job(side: WorkerSide) -> None:
        (lifeline,) = side.descriptors
        die_with_lifeline(lifeline, by_thread=True)
        side.connection.send("watched")
        side.wake.wait()

    ours, theirs = socket.socketpair()
    with worker(job, pass_descriptors=[theirs.fileno()]) as process:
        theirs.close()
        process.connection.recv()
        assert process.is_alive
        ours.close()
        assert process.exit_status(PATIENCE) == -signal.SIGKILL


INTERRUPTED = """
import threading
from gymbridge.engine.workers import start_worker

def serve(side):
    import subprocess
    child = subprocess.Popen(["sleep", "1000"])  # what an env has started is not to be interrupted either
    side.connection.send("ready")
    side.connection.recv()
    side.connection.send(child.poll())
    child.kill()

if __name__ == "__main__":
    worker = start_worker(serve, method=METHOD)
    worker.connection.recv()
    try:
        print("ready", flush=True)
        worker.wake.wait(60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    worker.connection.send("go on")
    print(worker.connection.recv(), worker.exit_status(60))
"""


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_is_for_the_parent_alone(method: str, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    process = start_script(tmp_path, INTERRUPTED.replace("METHOD", repr(method)), subprocess_env)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
    assert output.splitlines() == ["interrupted", "None 0"]
    assert not errors


IGNORING = """
import os, signal
for number in (signal.SIGCHLD, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
from gymbridge.engine.workers import start_worker

def job(side):
    import subprocess, sys
    side.connection.send(subprocess.run([sys.executable, "-c", "raise SystemExit(3)"]).returncode)
    side.wake.wait()

worker = start_worker(job, method=METHOD)
print(worker.connection.recv())
worker.terminate()
print(worker.exit_status(60))
"""


@pytest.mark.parametrize("method", ["starter", "exec"])
def test_signals_that_the_parent_ignores_are_not_ignored(
    method: str, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    output = run_script(tmp_path, IGNORING.replace("METHOD", repr(method)), subprocess_env)
    # the parent that ignores SIGCHLD is told no exit codes of its own children, only the starter's word
    assert output.splitlines() == ["3", "-15" if method == "starter" else "0"]


FORKED = """
import gc, os, sys, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of forks of processes with threads, as numpy has
from gymbridge.engine.workers import start_worker
from gymbridge.engine.workers.starter import running_starter

def serve(side):
    try:
        while True:
            side.connection.send(side.connection.recv())
    except EOFError:
        pass

def works(worker):
    worker.connection.send(5)
    return worker.connection.recv() == 5

workers = [start_worker(serve, method=method) for method in ("starter", "exec")]
starter = running_starter(60).pid
pid = os.fork()
if pid == 0:
    code = 1
    try:
        for worker in workers:
            try:
                worker.exit_status(0)
            except ValueError as error:
                assert "started by another process" in str(error), error
            else:
                raise AssertionError("a worker of the parent's was used")
        del worker
        workers.clear()
        gc.collect()
        own = start_worker(serve)
        assert works(own)
        assert running_starter(60).pid != starter
        own.close()
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status), all(map(works, workers)), running_starter(60).pid == starter)
for worker in workers:
    worker.close()
"""


def test_a_fork_of_this_process_leaves_its_workers_alone_and_starts_its_own(
    tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    assert run_script(tmp_path, FORKED, subprocess_env) == "0 True True\n"


EXITING = """
from gymbridge.engine.workers import start_worker

if __name__ == "__main__":
    worker = start_worker(lambda side: side.wake.wait(), method=METHOD)
    print(worker.pid, flush=True)
    input()
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_script_that_ends_with_a_worker_open_ends_it_quietly(
    method: str, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    process = start_script(tmp_path, EXITING.replace("METHOD", repr(method)), subprocess_env)
    with process:
        assert process.stdout is not None
        watched = watch([int(process.stdout.readline())])
        _, errors = process.communicate("\n", timeout=PATIENCE)
        assert not still_running(watched)
    assert process.returncode == 0
    assert "EOFError" in errors or not errors  # of the job, which does not catch it


def test_a_broken_starter_says_so(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    script = """
import sys
from gymbridge.engine.workers import start_worker
sys.path.insert(0, "broken")
try:
    start_worker(print)
except Exception as error:
    print(type(error).__name__, error)
sys.path.remove("broken")
worker = start_worker(lambda side: None)
print(worker.exit_status(60))
"""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "gymnasium.py").write_text("raise ImportError('broken on purpose')")
    process = start_script(tmp_path, script, subprocess_env)
    output, errors = process.communicate(timeout=PATIENCE)
    first, last = output.splitlines()
    assert first.startswith("WorkerStartError the starter process of the workers ended with exit code 1 before it was")
    assert last == "0"
    assert "broken on purpose" in errors


def test_starting_from_a_thread_that_ends_keeps_the_worker() -> None:
    """A death signal of the parent comes when the thread that started a process ends; the starter has but one."""
    started: list[WorkerProcess] = []
    thread = threading.Thread(target=lambda: started.append(start_worker(serve)))
    thread.start()
    thread.join()
    (process,) = started
    process.connection.send(5)
    assert process.connection.recv() == 5
    process.kill()
    assert process.join(PATIENCE)
    process.close()
