"""Envs that do what a test tells them to, in whichever process they are."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


class TwoArguments(Exception):
    """Its pickle does not give it back: what it keeps is not what it is made from."""

    def __init__(self, level: int, name: str):
        super().__init__(f"{name} at {level}")


class Nameless(Exception):
    """Cannot be made in another process than the env's."""

    def __new__(cls, *args: Any) -> Nameless:
        if "ACTING_ENV_RAISES" not in os.environ:
            raise TypeError("not here")
        return super().__new__(cls, *args)

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


class Acting:
    """Mixed into an env: does what its ``act`` says, a deed in a step, or "deed in reset" and the like elsewhere.

    The deeds are ``"kill"``, ``"exit"``, ``"exit at once"``, ``"wait"``, ``"tell and wait"``, ``"hold the gil"``,
    ``"print and hold"``, ``"raise"``, ``"raise two"`` and ``"raise nameless"``; ``"end"`` has each
    step end an episode.

    Args:
        index: of the env among those that the test makes.
        folder: has the gates, for the deeds that wait; and ``close`` leaves a note there.
    """

    index: int
    folder: Path | None
    act: str

    def obey(self, place: str) -> None:
        """Does what the env is told to do in ``"step"``, ``"reset"``, ``"close"`` or another place."""
        deed, _, where = self.act.partition(" in ")
        if (where or "step") != place:
            return
        if deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif deed == "exit":
            sys.exit(3)
        elif deed == "exit at once":
            os._exit(3)
        elif deed == "wait":
            self.wait()
        elif deed == "tell and wait":
            assert self.folder is not None
            (self.folder / f"entered-{self.index}").write_bytes(b"")
            self.wait()
        elif deed == "print and hold":
            os.write(1, b"holding\n")
            ctypes.PyDLL(None).pause()
        elif deed == "hold the gil":
            ctypes.PyDLL(None).pause()
        elif deed == "raise":
            raise {"reset": LookupError("no reset"), "close": OSError("cannot close")}.get(
                place, LookupError("broken", self.index)
            )
        elif deed == "raise two":
            raise TwoArguments(3, "broken")
        elif deed == "raise nameless":
            os.environ["ACTING_ENV_RAISES"] = "1"
            raise Nameless("only here")

    def wait(self) -> str:
        """Blocks until the test lets it go on."""
        assert self.folder is not None
        (self.folder / f"gate-{self.index}").read_bytes()
        return "waited"

    def end(self) -> None:
        """What ``close`` does."""
        self.obey("close")
        if self.folder is not None:
            (self.folder / f"closed-{self.index}").touch()

    def act_now(self) -> None:
        """Does in a call what it is told to do in a step."""
        self.obey("step")

    def pid(self) -> int:
        return os.getpid()


class ActingEnv(Acting, gym.Env[Any, Any]):
    """Observes its index and its steps; its reward is the action."""

    observation_space = gym.spaces.Box(0, 100, (2,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, index: int = 0, folder: Path | None = None, act: str = ""):
        self.index = index
        self.folder = folder
        self.act = act
        self.steps = 0
        self.obey("init")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.obey("reset")
        return self._observation(), {"options": options} if options else {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        info: dict[str, Any] = {}
        self.obey("step")
        if self.act == "huge info":
            info["huge"] = np.full(3_000_000, self.index, np.uint8)
        elif self.act == "lock in info":
            info["lock"] = threading.Lock()
        return self._observation(), float(action), self.act == "end", False, info

    def close(self) -> None:
        self.end()

    def modules(self) -> list[str]:
        return sorted({"torch", "tensordict", "gymbridge.envs"} & set(sys.modules))

    def unpicklable(self) -> Any:
        return threading.Lock()

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def cores(self) -> set[int]:
        return os.sched_getaffinity(0)

    def draws(self) -> tuple[float, float]:
        """Of the random states that are global in its process."""
        return random.random(), np.random.random()  # noqa: NPY002

    def warn(self, text: str) -> str:
        """What becomes of a warning."""
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.warn(text, stacklevel=1)
        except UserWarning:
            return "raised"
        return "seen" if seen else "ignored"

    def process(self) -> int | None:
        """The exit code of a process that it starts, 5."""
        process = multiprocessing.get_context("fork").Process(target=sys.exit, args=(5,))
        process.start()
        process.join()
        return process.exitcode

    def _observation(self) -> np.ndarray:
        return np.array([self.index, self.steps], np.float32)


def acting(num_envs: int, folder: Path | None = None) -> list[Any]:
    """Makers of such envs; in a folder each has a gate."""
    if folder is not None:
        make_gates(num_envs, folder)
    return [lambda index=index: ActingEnv(index, folder) for index in range(num_envs)]  # type: ignore[misc]


def make_gates(num_envs: int, folder: Path) -> None:
    """Makes what the envs that wait in a folder wait at."""
    for index in range(num_envs):
        os.mkfifo(folder / f"gate-{index}")
        os.mkfifo(folder / f"entered-{index}")


def await_entry(folder: Path, index: int) -> None:
    """Returns once an env that is to tell and wait has told."""
    (folder / f"entered-{index}").read_bytes()


def release(folder: Path, index: int) -> None:
    """Lets an env go on that waits, or is about to."""
    (folder / f"gate-{index}").write_bytes(b"")


def closed_envs(folder: Path) -> set[int]:
    """The envs that have been closed."""
    return {int(path.name.partition("-")[2]) for path in folder.glob("closed-*")}
