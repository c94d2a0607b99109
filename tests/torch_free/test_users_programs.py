"""Programs as users write and run them: what their workers take over from them, and that nothing outlives them."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from worker_processes import PATIENCE, run_script, start_script, still_running, watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux has them")

ENV = """
import os, sys
import gymnasium as gym
import numpy as np
from gymbridge.vector import AsyncVectorEnv, make_vec

os.write(1, b"begun\\n")


class Own(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, False, False, {}

    def pid(self):
        return os.getpid()
"""

USE = """
gym.register("Own-v0", entry_point=Own)
gym.register("Other-v0", entry_point="__main__:Own" if __name__ == "__main__" else Own)
for envs in (
    AsyncVectorEnv([Own] * 2, **options),
    AsyncVectorEnv([lambda: gym.make("Own-v0")] * 2, **options),
    make_vec("Other-v0", 2, vector_kwargs=options),
):
    envs.reset(seed=0)
    print(envs.step([0, 1])[0].ravel().tolist(), flush=True)
    envs.close()
"""

PROGRAM = f"{ENV}\noptions = {{}}\n{USE}"
STEPPED = ["[1.0, 1.0]"] * 3


def output_of(arguments: list[str], folder: Path, env: dict[str, str], given: str = "") -> list[str]:
    """The lines that an interpreter with these arguments prints; it prints no error."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**env, "PYTHONPATH": os.pathsep.join([str(folder), env["PYTHONPATH"]])},
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.splitlines()


# ---------------------------------------------------------------- no guard


@pytest.mark.parametrize(
    "arguments",
    [
        ["program.py"],
        ["-m", "program"],
        ["-c", PROGRAM],
        ["-"],
        ["-O", "program.py"],
        ["-W", "error::UserWarning", "program.py"],
    ],
    ids=["file", "module", "command", "standard input", "optimised", "warnings as errors"],
)
def test_a_program_runs_once_however_it_is_started(
    arguments: list[str], tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    assert output_of(arguments, tmp_path, subprocess_env, PROGRAM) == ["begun", *STEPPED]


@pytest.mark.parametrize("names", ["{}", "{'__name__': 'cell'}", "{'__name__': '__main__'}", "globals()"])
def test_what_is_executed_in_names_of_its_own_runs_once(
    names: str, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    """As notebooks and consoles run cells; the class then belongs to no module that could be imported."""
    program = PROGRAM.replace('"__main__:Own" if __name__ == "__main__" else Own', "Own")
    script = f"exec(compile({program!r}, '<cell>', 'exec'), {names})"
    assert run_script(tmp_path, script, subprocess_env).splitlines() == ["begun", *STEPPED]


OF_MAIN = (
    ENV
    + """
class Told(Exception):
    instances = []

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.instances.append(self)

    def seen(self):
        global count
        count += 1


count = 0


class Telling(Own):
    def step(self, action):
        if action:
            raise Told("broken")
        *outputs, info = super().step(action)
        return *outputs, {**info, "told": Told("fine")}


instances, seen = Told.instances, Told.seen
envs = AsyncVectorEnv([Telling] * 2, num_workers=1)
envs.reset(seed=0)
told = [envs.step([0, 0])[4]["told"][0]]
try:
    envs.step([0, 1])
except Told as error:
    told.append(error)
envs.close()
for each in told:
    each.seen()
print([type(each) is Told for each in told], count, Told.instances is instances, Told.seen is seen, flush=True)
"""
)


def test_a_class_of_the_program_stays_as_it_is_when_a_worker_sends_one(
    tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    """In infos and as an exception; methods that a worker sends along would see globals of their own."""
    assert run_script(tmp_path, OF_MAIN, subprocess_env).splitlines() == ["begun", "[True, True] 2 True True"]


MODULE = f"{ENV}\ngym.register('games/Own-v0', entry_point='games:Own')"
BY_ID = """
import games

envs = games.make_vec("games/Own-v0", 2, vector_kwargs={"num_workers": 1, "context": CONTEXT})
envs.close()
"""
BY_MAKERS_THAT_REGISTER = """
import games

def make():
    games.gym.register("games/Late-v0", entry_point=games.Own)
    return games.gym.make("games/Late-v0")

games.AsyncVectorEnv([make] * 2, num_workers=1, context=CONTEXT).close()
"""


@pytest.mark.parametrize("context", [None, "exec", "fork"])
@pytest.mark.parametrize("script", [BY_ID, BY_MAKERS_THAT_REGISTER], ids=["module", "maker"])
def test_an_id_that_is_registered_again_in_a_worker_is_no_news(
    script: str, context: str | None, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    """By its module, imported there once the id is known, or by makers that share a worker: nothing is warned of."""
    (tmp_path / "games.py").write_text(MODULE)
    lines = run_script(tmp_path, script.replace("CONTEXT", repr(context)), subprocess_env).splitlines()
    assert lines == ["begun"] * (1 if context == "fork" else 2)  # the module, here and in the worker


CHANGED = """
import gymnasium as gym
import games

games.gym.spec("games/Own-v0").max_episode_steps = 1
for context in (None, "exec", "fork"):
    envs = games.AsyncVectorEnv([lambda: gym.make("games/Own-v0")] * 3, num_workers=1, context=context)
    envs.reset()
    print(envs.step([0] * 3)[3].tolist())
    envs.close()
"""


def test_an_id_that_the_program_changed_is_changed_for_all_envs(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    """Though the first env imports the module, which registers the id as it was."""
    (tmp_path / "games.py").write_text(MODULE)
    lines = run_script(tmp_path, CHANGED, subprocess_env).splitlines()
    assert [line for line in lines if line != "begun"] == ["[True, True, True]"] * 3


GLOBALS = """
import settings
import gymnasium as gym
from gymbridge.vector import AsyncVectorEnv

class Tells(gym.Wrapper):
    def told(self):
        return settings.value, value

def make():
    return Tells(gym.make("CartPole-v1"))

value = settings.value = "changed"
for context in (None, "exec", "fork"):
    envs = AsyncVectorEnv([make], context=context)
    print(*envs.call("told")[0])
    envs.close()
"""


def test_globals_of_modules_are_those_of_a_new_import_but_for_forks(
    tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    """Those of the program itself go to workers as they are when these start."""
    (tmp_path / "settings.py").write_text("value = 'as written'")
    lines = run_script(tmp_path, GLOBALS, subprocess_env).splitlines()
    assert lines == ["as written changed", "as written changed", "changed changed"]


def test_a_module_that_no_worker_can_import_is_told(tmp_path: Path) -> None:
    """One that is in ``sys.modules`` here, and of which the import system knows nothing."""
    (tmp_path / "program.py").write_text(f"{ENV}\nAsyncVectorEnv([Own], num_workers=1)")
    with pytest.raises(Exception, match="ModuleNotFoundError: No module named 'nowhere_to_be_found'"):
        runpy.run_path(str(tmp_path / "program.py"), run_name="nowhere_to_be_found")


# ---------------------------------------------------------------- multiprocessing's ways to start


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_with_a_guard_the_program_works_by_each_start_method(
    method: str, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    """What is under the guard runs once; what stands above it runs in each worker too, but for a fork."""
    guarded = "".join(f"    {line}\n" for line in USE.splitlines())
    script = f"{ENV}\nif __name__ == '__main__':\n    options = {{'context': {method!r}, 'num_workers': 2}}\n{guarded}"
    lines = run_script(tmp_path, script, subprocess_env).splitlines()
    assert [line for line in lines if line != "begun"] == STEPPED
    assert lines.count("begun") == (1 if method == "fork" else 7)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_without_a_guard_these_two_fail_and_say_why(
    method: str, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    """``multiprocessing`` runs the program again, which then cannot start workers; nothing waits for ever."""
    script = f"{ENV}\nAsyncVectorEnv([Own] * 2, context={method!r}, num_workers=1)"
    with start_script(tmp_path, script, subprocess_env) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert 'if __name__ == "__main__":' in errors or "if __name__ == '__main__':" in errors
    assert "WorkerDiedError: worker 0, which ran the envs [0, 1], has died: exit code 1" in errors


# ---------------------------------------------------------------- what outlives it


@pytest.mark.parametrize("context", [None, "exec", "fork"])
@pytest.mark.parametrize("where", ["making envs", "stepping"])
def test_ctrl_c_ends_everything_once_and_quietly(
    where: str, context: str | None, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    """It reaches the whole group, as from a terminal; the program's own traceback is all that is printed."""
    script = f"""{ENV}
import time

class Slow(Own):
    def __init__(self):
        os.write(1, b"%d\\n" % os.getpid())
        if {where == "making envs"}:
            time.sleep(1000)

    def step(self, action):
        os.write(1, b"stepping\\n")
        time.sleep(1000)

envs = AsyncVectorEnv([Slow] * 2, context={context!r}, num_workers=2)
envs.reset()
envs.step([0, 0])
"""
    with start_script(tmp_path, script, subprocess_env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        watched = watch(int(process.stdout.readline()) for _ in range(2))
        if where == "stepping":
            assert [process.stdout.readline() for _ in range(2)] == ["stepping\n"] * 2
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
        assert not still_running(watched)
    assert process.returncode == -signal.SIGINT
    assert not output
    assert errors.count("Traceback") == 1
    assert errors.endswith("KeyboardInterrupt\n")


NESTED = f"""{ENV}

class Outer(Own):
    def __init__(self):
        self.inner = AsyncVectorEnv([Own] * 2, num_workers=2)

    def reset(self, *, seed=None, options=None):
        self.inner.reset(seed=seed)
        return super().reset(seed=seed)

    def step(self, action):
        return self.inner.step([action] * 2)[0][0], 1.0, False, False, {{}}

    def pids(self):
        return os.getpid(), *self.inner.call("pid")

    def close(self):
        self.inner.close()

if __name__ == "__main__":
    envs = AsyncVectorEnv([Outer] * 2, num_workers=2, context=CONTEXT, daemon=False)
    envs.reset(seed=0)
    assert envs.step([0, 1])[0].ravel().tolist() == [1, 1]
    pids = [pid for own in envs.call("pids") for pid in own]
    assert len(set(pids)) == 6
    print(*pids, flush=True)
    input()
    END
    input()
"""


@pytest.mark.parametrize("context", [None, "exec", "fork", "spawn"])
@pytest.mark.parametrize(
    "end", ["envs.close()", "envs.close(terminate=True)", "del envs", "os.kill(os.getpid(), 9)"], ids=str
)
def test_workers_of_an_env_end_with_it(
    end: str, context: str | None, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    """However it ends: an env may run a vector env of its own, whose workers are processes of its worker's."""
    script = NESTED.replace("CONTEXT", repr(context)).replace("END", end)
    with start_script(tmp_path, script, subprocess_env) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        watched = watch(map(int, next(line for line in lines if line != "begun\n").split()))
        process.stdin.write("\n")
        process.stdin.flush()
        assert not still_running(watched)
        _, errors = process.communicate("\n", timeout=PATIENCE)
    assert not errors
    assert process.returncode == (-signal.SIGKILL if "kill" in end else 0)


# ---------------------------------------------------------------- what a worker costs

COST = """
import sys
import torch  # a stand-in, which lies beside this script
import gymnasium as gym
from gymbridge.vector import AsyncVectorEnv

class Measured(gym.Wrapper):
    def own_mib(self):
        lines = open("/proc/self/smaps_rollup").read().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024

    def has_torch(self):
        return "torch" in sys.modules

envs = AsyncVectorEnv([lambda: Measured(gym.make("CartPole-v1"))] * 8, num_workers=8)
envs.reset(seed=0)
envs.step([0] * 8)
print(max(envs.call("own_mib")), any(envs.call("has_torch")), "torch" in sys.modules)
envs.close()
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="asks the kernel")
def test_a_worker_has_little_memory_of_its_own_and_no_torch(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    """Whatever the program has imported."""
    (tmp_path / "torch.py").write_text("ballast = bytearray(100 * 2**20)")
    mib, *imported = run_script(tmp_path, COST, subprocess_env).split()
    assert float(mib) <= 15
    assert imported == ["False", "True"]
