"""Envs for the tests against Stable-Baselines3; nothing of it is imported here."""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

__all__ = ["EnvWithEverything", "ModulesEnv", "OuterWrapper", "PlainWrapper", "RaisingEnv", "wrapped"]


class EnvWithEverything(gym.Env[Any, Any]):
    """Random observations of any space; episodes end by termination, truncation and both, in turn; infos of many kinds.

    Args:
        observation_space, action_space: its spaces.
        index: env's own number; the lengths of its episodes follow from it.
        render_mode: ``"rgb_array"`` shows the number of steps as grey.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012 - as gymnasium declares it

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        index: int = 0,
        render_mode: str | None = None,
    ):
        self.observation_space = copy.deepcopy(observation_space)
        self.action_space = action_space
        self.index = index
        self.render_mode = render_mode
        self.resets: list[tuple[int | None, Any]] = []
        self.actions: list[Any] = []
        self.unpicklable = threading.Lock()
        self.label = f"env {index}"
        self.episode = 0
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.resets.append((seed, options))
        self.episode += 1
        self.t = 0
        return self.observation_space.sample(), {"episode_number": self.episode, "why": "reset"}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(copy.deepcopy(action))
        self.t += 1
        kind = (self.episode + self.index) % 3
        ended = self.t >= 2 + kind
        info: dict[str, Any] = {
            "t": self.t,
            "half": self.t / 2,
            "even": self.t % 2 == 0,
            "name": f"{self.index}/{self.t}",
            "list": [self.t, None],
            "nested": {"position": np.arange(self.t), "deep": {"x": None}},
        }
        if ended:
            info["score"] = np.float32(self.np_random.random())
        if self.index == 1 and not ended:
            info = {} if self.t == 1 else {"lives": 3 - self.t}
        reward = float(self.np_random.normal())
        return self.observation_space.sample(), reward, ended and kind != 0, ended and kind != 1, info

    def render(self) -> Any:
        return np.full((4, 6, 3), 10 * self.t + self.index, np.uint8)

    def action_masks(self) -> np.ndarray:
        return np.array([True, self.t % 2 == 0, self.index == 0])

    def history(self) -> tuple[list[Any], list[Any]]:
        return self.resets, self.actions

    def pid(self) -> int:
        return os.getpid()

    def add(self, one: int, other: int = 0) -> int:
        return one + other + self.index


class PlainWrapper(gym.Wrapper[Any, Any, Any, Any]):
    pass


class OuterWrapper(PlainWrapper):
    pass


def wrapped(make: Callable[[], gym.Env[Any, Any]], *wrappers: Callable[[Any], Any]) -> Any:
    """What ``make`` makes, in wrappers, the outermost last."""
    env: Any = make()
    for wrapper in wrappers:
        env = wrapper(env)
    return env


class RaisingEnv(EnvWithEverything):
    """Raises a ``ZeroDivisionError`` at a step, and ends its process at another."""

    def __init__(self, index: int, raises_at: int = 0, dies_at: int = 0):
        super().__init__(spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3), index)
        self.raises_at = raises_at
        self.dies_at = dies_at
        self.steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == self.raises_at:
            raise ZeroDivisionError(f"at step {self.steps}")
        if self.steps == self.dies_at:
            os._exit(7)
        return super().step(action)


class ModulesEnv(gym.Env[Any, Any]):
    """Tells what its process has imported."""

    observation_space = action_space = spaces.Discrete(2)

    def has_module(self, name: str) -> bool:
        return name in sys.modules
