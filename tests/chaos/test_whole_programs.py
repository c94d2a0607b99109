"""Faults of a whole program: interrupts, signals, the caller killed, no descriptors and no room; nothing is left.

Each runs a script of its own, over several fronts, as a user runs it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from worker_processes import PATIENCE, names_of_memory, run_script, start_script, still_running, watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux has them")

BEGIN = """
import ctypes, os, resource, signal, sys

import gymnasium as gym
import numpy as np


class Own(gym.Env):
    observation_space = gym.spaces.Box(0, 10**9, (3,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, index):
        self.index, self.count = index, 0

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.shown(), {}

    def step(self, action):
        self.count += 1
        if action:
            os.write(1, b"hanging\\n")
            ctypes.PyDLL(None).pause()  # in C code, where it holds the interpreter's lock
        return self.shown(), 1.0, False, False, {}

    def shown(self):
        return np.array([self.index, os.getpid(), self.count], np.float64)


makers = [lambda index=index: Own(index) for index in range(3)]
"""

FRONTS = {
    "ParallelEnv": """
import torch
from gymbridge import ParallelEnv
envs = ParallelEnv(3, makers, num_workers=2)
root = envs.reset()
pids = {int(pid) for pid in root["observation"][:, 1]}

def step(action):
    td = envs.step(envs.reset().set("action", torch.full((3,), action)))
    return td["next", "observation"][:, 2].tolist()
""",
    "AsyncVectorEnv": """
from gymbridge.vector import AsyncVectorEnv
envs = AsyncVectorEnv(makers, num_workers=2)
root, _ = envs.reset()
pids = {int(pid) for pid in root[:, 1]}

def step(action):
    envs.reset()
    return envs.step([action] * 3)[0][:, 2].tolist()
""",
    "AsyncEnvPool": """
import torch
from gymbridge import AsyncEnvPool
envs = AsyncEnvPool(makers, backend="multiprocessing", envs_per_worker=2)
root = envs.reset()
pids = {int(pid) for pid in root["observation"][:, 1]}

def step(action):
    envs.reset()
    td = root.clone().set("action", torch.full((3,), action))
    envs.async_step_send(td)
    return envs.async_step_recv(min_get=3)["next", "observation"][:, 2].tolist()
""",
    "PoolVectorEnv": """
from gymbridge import AsyncEnvPool
from gymbridge.vector import PoolVectorEnv
envs = PoolVectorEnv(AsyncEnvPool(makers, backend="multiprocessing"), batch_size=3)
root, _ = envs.reset()
pids = {int(pid) for pid in root[:, 1]}

def step(action):
    envs.reset()
    return envs.step(np.full(3, action))[0][:, 2].tolist()
""",
}

STEPPING = """
assert step(0) == [1, 1, 1]
print(*pids, flush=True)
if {handles}:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
try:
    step(1)
except KeyboardInterrupt:
    sys.exit(8)
"""

ENDS = {
    "Ctrl-C": (signal.SIGINT, 8),
    "SIGTERM": (signal.SIGTERM, -signal.SIGTERM),
    "SIGTERM with a handler": (signal.SIGTERM, 7),
    "SIGKILL": (signal.SIGKILL, -signal.SIGKILL),
}


OF_POOLS = [("AsyncEnvPool", "Ctrl-C"), ("AsyncEnvPool", "SIGKILL"), ("PoolVectorEnv", "SIGTERM")]


@pytest.mark.parametrize(
    ("front", "end"), [*((front, end) for front in ("ParallelEnv", "AsyncVectorEnv") for end in ENDS), *OF_POOLS]
)
def test_whatever_ends_a_program_in_the_middle_of_a_step_leaves_no_process(
    front: str, end: str, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    """Ctrl-C goes to all processes of a terminal, the others to the program alone."""
    number, code = ENDS[end]
    names = names_of_memory(patience=0)
    script = start_script(tmp_path, BEGIN + FRONTS[front] + STEPPING.format(handles=code == 7), subprocess_env)
    try:
        assert script.stdout is not None
        line = script.stdout.readline()
        pids = [*map(int, line.split())]
        assert pids, script.communicate()
        watched = watch(pids)
        assert script.stdout.readline() == "hanging\n"
        if number == signal.SIGINT:
            os.killpg(script.pid, number)
        else:
            script.send_signal(number)
        assert script.wait(PATIENCE) == code
        assert not still_running(watched)
    finally:
        if script.poll() is None:
            script.kill()
        _, errors = script.communicate(timeout=PATIENCE)
    assert not errors  # quietly
    assert names_of_memory(names) <= names


NO_DESCRIPTORS = """
def others():
    return {int(name) for name in os.listdir("/proc/self/fd")}

import errno
from gymbridge.vector import AsyncVectorEnv
AsyncVectorEnv(makers, num_workers=1).close()  # what stays is there from now on
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
before, tried, refused = others(), 0, 0
while True:
    tried += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before) + 2 + tried, hard))
    try:
        envs = AsyncVectorEnv(makers, num_workers=2)
    except Exception as error:
        told = repr(error) + repr(error.__cause__)
        assert "descriptors" in told or "Too many open files" in told, told
        refused += 1
        del error
    else:
        break
    assert others() == before, (tried, others() - before)
assert envs.reset()[0][:, 2].tolist() == [0, 0, 0]
assert envs.step([0, 0, 0])[0][:, 2].tolist() == [1, 1, 1]
envs.close()
assert others() == before
print("refused" if refused > 5 else refused)
"""


def test_whichever_descriptor_is_one_too_many_is_told_and_leaves_none(
    tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    """The limit is raised by one until the envs can be started."""
    assert run_script(tmp_path, BEGIN + NO_DESCRIPTORS, subprocess_env) == "refused\n"


NO_ROOM = """
import errno

soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
class Large(Own):
    def step(self, action):
        observation, *others, info = super().step(0)
        return observation, *others, {"large": b"x" * 10**7} if action else {}

makers = [lambda index=index: Large(index) for index in range(3)]
from gymbridge.vector import AsyncVectorEnv
resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, hard))
envs = AsyncVectorEnv(makers, num_workers=3)
envs.reset()
assert envs.step([0, 0, 0])[0][:, 2].tolist() == [1, 1, 1]
try:
    envs.step([0, 1, 0])
except OSError as error:
    assert "no room for 100" in str(error) and error.env_index == 1, error
    print("told", flush=True)
observations, *_, infos = envs.last_partial()
assert infos["_failed"].tolist() == [False, True, False]
assert observations[[0, 2], 2].tolist() == [2, 2]
envs.close()
"""


def test_a_message_for_which_there_is_no_room_costs_its_env_alone(
    tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    script = start_script(tmp_path, BEGIN + NO_ROOM, subprocess_env)
    output, errors = script.communicate(timeout=PATIENCE)
    assert (script.returncode, output) == (0, "told\n"), errors
