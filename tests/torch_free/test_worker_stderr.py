"""What workers write to standard error: it comes out, and the end of it is told with a death."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import waiting_envs
from started_threads import have_ended, new_threads
from vector_classes import travels
from waiting_envs import acting
from worker_processes import PATIENCE, start_script, still_running, watch, worker

from gymbridge.engine.workers import WorkerSide, start_worker
from gymbridge.engine.workers.standard_error import TAIL_BYTES, StandardErrorPipe
from gymbridge.engine.workers.starter import has_starter
from gymbridge.errors import WorkerDiedError
from gymbridge.vector import AsyncVectorEnv

pytestmark = pytest.mark.skipif(not has_starter(), reason="tests the ends of workers as Linux has them")

cloudpickle.register_pickle_by_value(sys.modules[__name__])
travels(sys.modules[__name__], waiting_envs)

METHODS = ("starter", "exec", "fork", "spawn", "forkserver")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def to_standard_error(data: bytes) -> None:
    """Writes to descriptor 2: ``sys.stderr`` of a fork of a test is pytest's."""
    while data:
        data = data[os.write(2, data) :]


def line_from(descriptor: int) -> str:
    """The next line, which may come in parts."""
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([descriptor], [], [], PATIENCE)[0], line
        line += os.read(descriptor, 1)
    return line.decode()


# ---------------------------------------------------------------- each way to die, each way to start


DYING = """
import ctypes, os, signal, sys
from gymbridge.engine.workers import start_worker
from gymbridge.errors import exit_text

def read_address_zero(side):
    print("about to read", file=sys.stderr)
    ctypes.string_at(0)

def abort(side):
    print("about to abort", file=sys.stderr)
    os.abort()

def be_killed(side):
    print("about to be killed", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGKILL)

def leave(side):
    print("about to leave", file=sys.stderr)
    sys.exit(3)

def raise_an_error(side):
    print("about to raise", file=sys.stderr)
    raise ValueError("told")

if __name__ == "__main__":
    for job in (read_address_zero, abort, be_killed, leave, raise_an_error):
        worker = start_worker(job, method=METHOD)
        print("====", job.__name__, exit_text(worker.exit_status(60)))
        print(worker.stderr_tail)
        worker.close()
"""


@pytest.mark.parametrize("method", METHODS)
def test_the_end_of_a_worker_tells_what_it_wrote(method: str, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    with start_script(tmp_path, DYING.replace("METHOD", repr(method)), subprocess_env) as process:
        output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    ends = [part.partition("\n") for part in output.split("==== ")[1:]]
    told = {head.partition(" ")[0]: (head.partition(" ")[2], tail) for head, _, tail in ends}

    how, tail = told["read_address_zero"]
    assert how == "killed by SIGSEGV"
    assert tail.startswith("about to read\nFatal Python error: Segmentation fault\n")
    assert "most recent call first" in tail
    assert " in read_address_zero\n" in tail
    assert "Extension modules" not in tail

    how, tail = told["abort"]
    assert how == "killed by SIGABRT"
    assert tail.startswith("about to abort\nFatal Python error: Aborted\n")
    assert " in abort\n" in tail

    assert told["be_killed"] == ("killed by SIGKILL", "about to be killed\n\n")
    assert told["leave"] == ("exit code 3", "about to leave\n\n")

    how, tail = told["raise_an_error"]
    assert how == "exit code 1"
    assert tail.startswith("about to raise\nTraceback (most recent call last):\n")
    assert tail.endswith("ValueError: told\n\n")

    for what in ("read", "abort", "be killed", "leave", "raise"):
        assert errors.count(f"about to {what}\n") == 1
    assert errors.count("Segmentation fault") == errors.count("Aborted") == errors.count("ValueError: told") == 1


def test_the_error_of_an_engine_shows_the_end_and_keeps_it() -> None:
    def die(env: Any, _: Any) -> None:
        to_standard_error(b"last\xff words\n")
        ctypes.string_at(0)

    envs = AsyncVectorEnv([lambda: Deed(die)] * 2, num_workers=2)
    try:
        envs.reset(seed=0)
        with pytest.raises(WorkerDiedError, match=r"worker 0, .* has died: killed by SIGSEGV") as caught:
            envs.step([0, 0])
    finally:
        envs.close(terminate=True)
    error = caught.value
    assert error.stderr.startswith("last\ufffd words\nFatal Python error: Segmentation fault\n")
    assert " in die\n" in error.stderr
    assert "\n\nIts standard error ended with:\n  | last\ufffd words\n  | Fatal Python error" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (again.stderr, str(again), again.exit_code) == (error.stderr, str(error), -signal.SIGSEGV)


class Deed(waiting_envs.ActingEnv):
    """An env whose first step is a given deed."""

    def __init__(self, deed: Any):
        super().__init__()
        self.deed = deed

    def step(self, action: Any) -> Any:
        self.deed(self, action)
        return super().step(action)


def test_an_error_without_text_says_no_more_than_before() -> None:
    error = WorkerDiedError(1, [2, 3], 3)
    assert error.stderr == ""
    assert str(error) == "worker 1, which ran the envs [2, 3], has died: exit code 3"
    assert str(WorkerDiedError(1, [2, 3], 3, stderr="\n \n")) == str(error)


# ---------------------------------------------------------------- what is kept


def kept(*written: bytes) -> str:
    """What is told of bytes that went through a pipe."""
    pipe = StandardErrorPipe()
    pipe._kept = b"".join(written)
    try:
        return pipe.tail
    finally:
        pipe.close()


def test_of_much_the_last_is_told() -> None:
    assert kept(b"x" * TAIL_BYTES, b"y" * TAIL_BYTES) == "y" * TAIL_BYTES
    assert kept(b"a" * 10) == "a" * 10


def test_of_a_long_traceback_of_a_fatal_error_the_innermost_call_is_told() -> None:
    frames = [b'  File "a/path/to/some/module.py", line %d in frame_%d\n' % (number, number) for number in range(100)]
    modules = b"\nExtension modules: " + b", ".join([b"package.module"] * 100) + b" (total: 100)\n"
    tail = kept(b"x" * TAIL_BYTES, b"Fatal Python error: Aborted\n\n", *frames, modules)
    assert tail.startswith("Fatal Python error: Aborted\n\n")
    assert "in frame_0\n" in tail
    assert len(tail) <= TAIL_BYTES
    short = kept(b"before\n", b"Fatal Python error: Aborted\n\n", *frames[:2], modules)
    assert short == "before\nFatal Python error: Aborted\n\n" + b"".join(frames[:2]).decode()


# ---------------------------------------------------------------- what comes out


NOISY = """
import os, sys
from gymbridge.engine.workers import start_worker

def write_much(side):
    for number in range(100_000):
        print(number, file=sys.stderr)
    side.connection.send("written")
    side.wake.wait()

if __name__ == "__main__":
    worker = start_worker(write_much, method=METHOD)
    assert worker.connection.recv() == "written"
    worker.kill()
    worker.join()
    print(worker.stderr_tail[-6:], end="")
"""


@pytest.mark.parametrize("method", METHODS)
def test_much_comes_out_whole_and_in_order(method: str, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    """Half a MiB, many times what a pipe holds, of a worker that is killed after it."""
    with start_script(tmp_path, NOISY.replace("METHOD", repr(method)), subprocess_env) as process:
        output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert output == "99999\n"
    assert errors == "".join(f"{number}\n" for number in range(100_000))


@pytest.mark.parametrize("method", METHODS)
def test_it_is_there_once_the_worker_is_seen_dead(method: str, capfd: pytest.CaptureFixture[str]) -> None:
    with worker(lambda side: to_standard_error(b"from the worker\n"), method=method) as process:
        assert process.exit_status(PATIENCE) == 0
        assert capfd.readouterr().err == "from the worker\n"
        assert process.stderr_tail == "from the worker\n"


def test_it_comes_while_the_worker_lives() -> None:
    """Each line at once, into what standard error is then."""

    def job(side: WorkerSide) -> None:
        with contextlib.suppress(EOFError):
            while True:
                print(side.connection.recv(), file=sys.stderr)

    with worker(job) as process:
        for text in ("first", "second"):
            read, write = os.pipe()
            before = os.dup(2)
            os.dup2(write, 2)
            try:
                process.connection.send(text)
                assert line_from(read) == text + "\n"
            finally:
                os.dup2(before, 2)
                for descriptor in (read, write, before):
                    os.close(descriptor)


@pytest.mark.parametrize("how", ["closed", "broken", "full", "from the start"])
def test_a_standard_error_that_takes_nothing_holds_up_nobody(
    how: str, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    """The worker writes more than a pipe holds; where standard error is only full, it is killed in the middle."""
    script = """
import os, sys
from gymbridge.engine.workers import start_worker

def write(side):
    side.connection.send("about to write")
    for _ in range(1000):
        print("x" * 999, file=sys.stderr)
    print("the end", file=sys.stderr)
    side.connection.send("written")
    os.abort()

def main():
    how = sys.argv[1]
    if how == "closed":
        os.close(2)
    elif how != "from the start":
        read, write_end = os.pipe()
        os.dup2(write_end, 2)
        os.close(write_end)
        if how == "broken":
            os.close(read)
        else:
            os.set_blocking(2, False)
            try:
                while True:
                    os.write(2, b"x")
            except BlockingIOError:
                os.set_blocking(2, True)
    worker = start_worker(write)
    assert worker.connection.recv() == "about to write"
    if how == "full":
        worker.kill()
        print(worker.exit_status(60), set(worker.stderr_tail) <= set("x\\n"))
        worker.close()
        return
    assert worker.connection.recv() == "written"
    status = worker.exit_status(60)
    tail = worker.stderr_tail
    print(status, "the end" in tail and "Fatal Python error: Aborted" in tail)
    worker.close()

if __name__ == "__main__":
    main()
"""
    path = tmp_path / "script.py"
    path.write_text(script)
    command = [sys.executable, str(path), how]
    if how == "from the start":
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    done = subprocess.run(command, env=subprocess_env, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    expected = -signal.SIGKILL if how == "full" else -signal.SIGABRT
    assert done.stdout == f"{expected} True\n"
    assert done.returncode == 0


LAST_WORDS = """
import sys
from gymbridge.engine.workers import start_worker

def speak(side):
    print("last words" * 5000, file=sys.stderr)
    side.wake.wake()
    side.connection.recv()

if __name__ == "__main__":
    worker = start_worker(speak, method=METHOD)
    worker.wake.wait()
    worker.kill()
"""


@pytest.mark.parametrize("method", METHODS)
def test_what_was_written_before_this_process_ends_comes_out(
    method: str, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    """Though nobody has waited for the worker."""
    with start_script(tmp_path, LAST_WORDS.replace("METHOD", repr(method)), subprocess_env) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert errors == "last words" * 5000 + "\n"


# ---------------------------------------------------------------- what is left behind


def start_a_child(side: WorkerSide) -> None:
    """One that lives on, writes when it is told to and ends when nobody can tell it to any more."""
    read, write = os.pipe()
    to_standard_error(b"from the worker\n")
    program = "import os, sys; os.read(0, 1); print('from the child', file=sys.stderr)"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=read)
    side.connection.send(child.pid)
    side.connection.send_descriptors([write])
    side.wake.wait()


def test_a_child_that_outlives_the_worker_is_not_waited_for_and_may_write_on() -> None:
    with new_threads() as threads:
        out, write_end = os.pipe()
        before = os.dup(2)
        os.dup2(write_end, 2)
        try:
            process = start_worker(start_a_child)
            child = watch([process.connection.recv()])
            (tell,) = process.connection.recv_descriptors(1)
            process.kill()
            begin = time.perf_counter()
            assert process.exit_status(PATIENCE) == -signal.SIGKILL
            process.close()
            assert time.perf_counter() - begin < PATIENCE / 2
            assert process.stderr_tail == "from the worker\n"
            assert line_from(out) == "from the worker\n"
            os.write(tell, b"x")
            os.close(tell)
            assert line_from(out) == "from the child\n"
            assert not still_running(child)
        finally:
            os.dup2(before, 2)
            for descriptor in (out, write_end, before):
                os.close(descriptor)
        assert have_ended(threads)


def test_descriptors_and_threads_are_flat_over_many_engines() -> None:
    def one() -> None:
        envs = AsyncVectorEnv(acting(2), num_workers=2)
        envs.reset()
        envs.close()

    one()  # what stays for later workers comes with the first
    gc.collect()
    before = descriptors(), threading.active_count()
    for _ in range(20):
        one()
        assert (descriptors(), threading.active_count()) == before


def test_the_thread_ends_with_the_last_worker_though_that_is_only_dropped() -> None:
    with new_threads() as threads:
        process = start_worker(lambda side: side.wake.wait())
        del process
        gc.collect()
        assert [thread.name for thread in threads] == ["gymbridge-stderr"]
        assert have_ended(threads)


@pytest.mark.parametrize("method", METHODS)
def test_no_worker_has_the_pipe_of_another(method: str) -> None:
    """It has its own as descriptor 2 alone: what it held open otherwise would not end with its death."""

    def job(side: WorkerSide) -> None:
        pipes = {}
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # that of listdir itself
                pipes[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        side.connection.send(pipes)
        with contextlib.suppress(EOFError):
            side.wake.wait()

    with worker(job, method=method) as first:
        first_pipes = first.connection.recv()
        with worker(job, method=method) as second:
            second_pipes = second.connection.recv()
            assert first_pipes[2].startswith("pipe:")
            assert first_pipes[2] != second_pipes[2]
            assert first_pipes[2] not in second_pipes.values()
            assert [number for number, of in second_pipes.items() if of == second_pipes[2]] == [2]


FORKING = """
import os, sys, traceback, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of forks of processes with threads
from gymbridge.engine.workers import start_worker

def write(side):
    side.connection.send("ready")
    for _ in range(2):
        print(side.connection.recv(), file=sys.stderr)
    sys.exit(5)

def pipes():
    names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return {os.readlink(name) for name in names if os.path.lexists(name)}

worker = start_worker(write)
worker.connection.recv()
worker.connection.send("before the fork")
theirs = os.readlink(f"/proc/{worker.pid}/fd/2")
assert theirs in pipes()
assert theirs != os.readlink("/proc/self/fd/2")
pid = os.fork()
if pid == 0:
    code = 1
    try:
        assert theirs not in pipes()
        own = start_worker(write)
        own.connection.send("of the fork")
        own.connection.send("once more")
        assert own.exit_status(60) == 5
        assert own.stderr_tail.split("\\n") == ["of the fork", "once more", ""]
        own.close()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
_, status = os.waitpid(pid, 0)
worker.connection.send("after the fork")
print(os.waitstatus_to_exitcode(status), worker.exit_status(60), worker.stderr_tail.split("\\n"))
worker.close()
"""


def test_a_fork_of_this_process_reads_its_own_workers_alone(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    with start_script(tmp_path, FORKING, subprocess_env) as process:
        output, errors = process.communicate(timeout=PATIENCE)
    assert output == "0 5 ['before the fork', 'after the fork', '']\n", errors
    assert sorted(errors.splitlines()) == ["after the fork", "before the fork", "of the fork", "once more"]
