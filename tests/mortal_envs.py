"""Envs whose workers die of an action, and batches of them whose workers are replaced."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np

GO, KILL, EXIT, HANG, RAISE = range(5)
DEATHS = {"kill": KILL, "exit": EXIT, "hang": HANG}
STEP_TIMEOUT = 2.0
"""Of tests with envs that hang: all others take far less."""


class MortalEnv(gym.Env[Any, Any]):
    """Observes its index, its steps since the reset and its first random number; its reward is its steps.

    Args:
        index: of the env.
        folder: where it keeps whether it has died of what it is to die of once.
        once: where it dies the first time that it comes there: ``"init"`` (an error), ``"reset"`` or ``"close"``.
        width: of the observation, from the second time on that it is made.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, index: int = 0, folder: Path | None = None, once: str = "", width: int = 3):
        self.index, self.folder, self.once, self.steps = index, folder, once, 0
        if width != 3 and not self._first_time("made"):
            self.observation_space = gym.spaces.Box(-np.inf, np.inf, (width,), np.float64)
        if once == "init" and not self._first_time("made") and self._first_time("init"):
            raise LookupError("not now")

    def _first_time(self, what: str) -> bool:
        assert self.folder is not None
        path = self.folder / f"{what}-{self.index}"
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _observation(self) -> Any:
        return np.array([self.index, self.steps, self.first], np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.first = 0, float(self.np_random.random())
        if self.once == "reset" and self._first_time("reset"):
            os.kill(os.getpid(), signal.SIGKILL)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        if action == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == EXIT:
            os._exit(3)
        elif action == HANG:
            threading.Event().wait()
        elif action == RAISE:
            raise LookupError("broken", self.index)
        self.steps += 1
        return self._observation(), float(self.steps), False, False, {"steps": self.steps}

    def get_state(self) -> Any:
        return self.steps, self.first

    def set_state(self, state: Any) -> None:
        self.steps, self.first = state

    def pid(self) -> int:
        return os.getpid()


cloudpickle.register_pickle_by_value(sys.modules[__name__])


def mortal(
    num_envs: int, folder: Path | None = None, once: Sequence[str] = (), **kwargs: Any
) -> list[Callable[[], Any]]:
    """A maker for each env; ``once`` says where each dies once."""

    def maker(index: int) -> Callable[[], Any]:
        place = once[index] if index < len(once) else ""
        return lambda: MortalEnv(index, folder, place, **kwargs)

    return [maker(index) for index in range(num_envs)]
