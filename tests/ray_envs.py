"""Envs for tests of pools on Ray; they go to actors by value, which have no such module."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np

GO, KILL, EXIT, LEAVE, HANG, RAISE, END = range(7)


class DeedEnv(gym.Env[Any, Any]):
    """Observes its index, its steps since the reset and its first random number; does in a step what its action says.

    Args:
        index: of the env.
        size: of an image beside that; 0 for none.
    """

    def __init__(self, index: int = 0, size: int = 0):
        self.index, self.steps, self.first, self.gravity = index, 0, 0.0, 9.8
        numbers = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        image = gym.spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.observation_space = gym.spaces.Dict({"numbers": numbers, "image": image}) if size else numbers
        self.action_space = gym.spaces.Discrete(7)
        self.thread = threading.get_ident()

    def _observation(self) -> Any:
        numbers = np.array([self.index, self.steps, self.first], np.float64)
        if not isinstance(self.observation_space, gym.spaces.Dict):
            return numbers
        image = self.observation_space["image"]
        return {"numbers": numbers, "image": np.full(image.shape, self.index + self.steps, np.uint8)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.first = 0, float(self.np_random.random())
        if options and options.get("hang"):
            threading.Event().wait()
        return self._observation(), {"options": str(options)}

    def step(self, action: Any) -> Any:
        if action == KILL:
            os.kill(os.getpid(), 9)
        elif action == EXIT:
            sys.exit(3)
        elif action == LEAVE:
            os._exit(4)
        elif action == HANG:
            threading.Event().wait()
        elif action == RAISE:
            raise DeedError("broken", self.index)
        self.steps += 1
        return self._observation(), float(self.steps), action == END, False, {"steps": self.steps}

    def get_state(self) -> Any:
        return self.steps, self.first

    def set_state(self, state: Any) -> None:
        self.steps, self.first = state

    def pid(self) -> int:
        return os.getpid()

    def is_in_its_thread(self) -> bool:
        return threading.get_ident() == self.thread

    def node(self) -> str:
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        return node

    def modules(self) -> list[str]:
        return sorted({"torch", "tensordict", "gymbridge.envs"} & set(sys.modules))


class DeedError(Exception):
    """What it is made from is not what it keeps."""

    def __init__(self, what: str, index: int):
        super().__init__(f"{what} at {index}")
        self.index = index


cloudpickle.register_pickle_by_value(sys.modules[__name__])


def deeds(num_envs: int, **kwargs: Any) -> list[Callable[[], Any]]:
    """A maker for each env."""
    return [lambda index=index: DeedEnv(index, **kwargs) for index in range(num_envs)]
