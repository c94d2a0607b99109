"""Envs and makers that tests of the command line name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

not_callable = 3


class Counting(gym.Env[Any, Any]):
    """Observes how many steps it has made; an episode has five."""

    observation_space = gym.spaces.Dict({"count": gym.spaces.Box(0, 100, (2,), np.float32)})
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self.observation(), float(action), self.count == 5, False, {}

    def observation(self) -> dict[str, Any]:
        return {"count": np.full(2, self.count, np.float32)}


class Sized(Counting):
    """Cannot be made without being told its size."""

    def __init__(self, size: int) -> None:
        self.size = size


class Awaited(Counting):
    """Its steps and resets are coroutines."""

    async def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        return Counting.reset(self, **kwargs)

    async def step(self, action: Any) -> Any:
        return Counting.step(self, action)


class Unmade(Counting):
    """Cannot be made."""

    def __init__(self) -> None:
        raise LookupError("no such map: [moon]\nand a second line")


class Leaving(Counting):
    """Ends the program instead of being made."""

    def __init__(self) -> None:
        raise SystemExit(0)


class LeavingInSteps(Counting):
    """Ends the program in its first step."""

    def step(self, action: Any) -> Any:
        raise SystemExit(0)


class Raising(Counting):
    """Raises in its first step."""

    def step(self, action: Any) -> Any:
        raise ArithmeticError("stepped too far")


class RaisingInWorkers(Counting):
    """Raises in its first step where that is in another process than it was imported in first."""

    def step(self, action: Any) -> Any:
        if os.environ["CLI_ENVS_PID"] != str(os.getpid()):
            raise ArithmeticError("stepped elsewhere")
        return super().step(action)


class Telling(Counting):
    """Writes its process id to a pipe that the environment names, once a process."""

    _told = 0

    def step(self, action: Any) -> Any:
        if Telling._told != os.getpid():
            Telling._told = os.getpid()
            with Path(os.environ["CLI_ENVS_PIPE"]).open("a") as pipe:
                pipe.write(f"{os.getpid()}\n")
        return super().step(action)


class Holder:
    """Has a maker."""

    @staticmethod
    def make() -> Counting:
        return Counting()


def no_env() -> object:
    return object()


def vector_env() -> Any:
    return gym.vector.SyncVectorEnv([Counting])


if "CLI-Registered-v0" not in gym.registry:
    gym.register("CLI-Registered-v0", Counting)
