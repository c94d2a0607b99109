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


class ActingEnv(gym.Env[Any, Any]):
    """In each step does what its ``act`` says, one of the names below, or nothing.

    Args:
        index: shown in its observations.
        folder: for ``"wait"``, which blocks until :func:`release` is called, and for the notes that ``close`` leaves.
    """

    observation_space = gym.spaces.Box(0, 100, (2,), np.float32)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, index: int = 0, folder: Path | None = None):
        self.index = index
        self.folder = folder
        self.act = ""
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        if self.act == "raise in reset":
            raise LookupError("no reset")
        if self.act == "wait in reset":
            self.wait()
        return self._observation(), {"options": options} if options else {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        info: dict[str, Any] = {}
        if self.act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.act == "exit":
            sys.exit(3)
        elif self.act == "wait":
            self.wait()
        elif self.act == "hold the gil":
            ctypes.PyDLL(None).pause()
        elif self.act == "raise":
            raise LookupError("broken", self.index)
        elif self.act == "raise two":
            raise TwoArguments(3, "broken")
        elif self.act == "raise nameless":
            os.environ["ACTING_ENV_RAISES"] = "1"
            raise Nameless("only here")
        elif self.act == "huge info":
            info["huge"] = np.full(3_000_000, self.index, np.uint8)
        elif self.act == "lock in info":
            info["lock"] = threading.Lock()
        return self._observation(), float(action), False, False, info

    def wait(self) -> str:
        """Blocks until the test lets it go on."""
        assert self.folder is not None
        (self.folder / f"gate-{self.index}").read_bytes()
        return "waited"

    def close(self) -> None:
        if self.act == "raise in close":
            raise OSError("cannot close")
        if self.act == "wait in close":
            self.wait()
        if self.folder is not None:
            (self.folder / f"closed-{self.index}").touch()

    def pid(self) -> int:
        return os.getpid()

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
        for index in range(num_envs):
            os.mkfifo(folder / f"gate-{index}")
    return [lambda index=index: ActingEnv(index, folder) for index in range(num_envs)]  # type: ignore[misc]


def release(folder: Path, index: int) -> None:
    """Lets an env go on that waits, or is about to."""
    (folder / f"gate-{index}").write_bytes(b"")


def closed_envs(folder: Path) -> set[int]:
    """The envs that have been closed."""
    return {int(path.name.partition("-")[2]) for path in folder.glob("closed-*")}
