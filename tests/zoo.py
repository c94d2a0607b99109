"""Environments whose every output can be told beforehand, for tests of either face."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

__all__ = ["OBJECT_SPACES", "CountingEnv", "DictEnv", "ObjectEnv", "RaisingEnv"]


class CountingEnv(gym.Env):
    """Shows episode, step, last action and a random number; ends terminated and truncated in turn.

    Args:
        lengths: of the episodes, over and over.
        continuous: actions are ``Box`` instead of ``Discrete``.
    """

    def __init__(self, lengths: Sequence[int] = (3, 1, 5), continuous: bool = False):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (2,), np.float32) if continuous else gym.spaces.Discrete(3)
        self.lengths = lengths
        self.episode = -1
        self.t = 0
        self.actions: list[Any] = []
        self.resets: list[dict[str, Any]] = []
        self.closed = 0

    def _observation(self, action: float) -> np.ndarray:
        return np.array([self.episode, self.t, action, self.np_random.random()], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.resets.append({"seed": seed, "options": options})
        self.episode += 1
        self.t = 0
        return self._observation(-1), {"begun": self.episode}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        self.t += 1
        ended = self.t >= self.lengths[self.episode % len(self.lengths)]
        terminated = ended and self.episode % 2 == 0
        info: dict[str, Any] = {"t": self.t, "nested": {"half": self.t / 2}}
        if ended:
            info["final"] = np.array([self.episode, self.t])
        observation = self._observation(float(np.sum(action)))
        return observation, 10.0 * self.episode + self.t, terminated, ended and not terminated, info

    def close(self) -> None:
        self.closed += 1


class DictEnv(CountingEnv):
    """The same with nested observations, a reserved key among them, and nested actions."""

    def __init__(self, lengths: Sequence[int] = (3, 1, 5)):
        super().__init__(lengths)
        spaces = gym.spaces
        self.observation_space = spaces.Dict(
            {
                "count": spaces.Discrete(100, start=-1),
                "arm": spaces.Dict(angle=spaces.Box(-9, 9, (2, 2), np.float64), on=spaces.MultiBinary(3)),
                "pair": spaces.Tuple([spaces.Box(0, 255, (), np.uint8), spaces.MultiDiscrete([3, 200])]),
                "reward": spaces.Box(-1e6, 1e6, (1,), np.float32),
            }
        )
        self.action_space = spaces.Dict(go=spaces.Discrete(3), push=spaces.Box(-1, 1, (2,), np.float32))

    def _observation(self, action: float) -> Any:
        return {
            "count": self.t,
            "arm": {"angle": np.full((2, 2), self.t / 2), "on": np.array([1, 0, self.t % 2], np.int8)},
            "pair": (np.array(self.t, np.uint8), np.array([self.t % 3, self.episode])),
            "reward": np.array([action + self.np_random.random()], np.float32),
        }

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        outcome = super().step(int(action["go"]) + float(np.sum(action["push"])))
        self.actions[-1] = action
        return outcome


class RaisingEnv(CountingEnv):
    """Raises in a step or in a reset, when its attributes say so."""

    raise_in_step: Exception | None = None
    raise_in_reset: Exception | None = None

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        if self.raise_in_reset is not None:
            raise self.raise_in_reset
        return super().reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.raise_in_step is not None:
            raise self.raise_in_step
        return super().step(action)


BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
OBJECT_SPACES = {
    "text": gym.spaces.Text(5),
    "graph": gym.spaces.Graph(BOX, gym.spaces.Discrete(3)),
    "sequence": gym.spaces.Sequence(BOX),
    "stacked_sequence": gym.spaces.Sequence(gym.spaces.Discrete(3), stack=True),
    "one_of": gym.spaces.OneOf([gym.spaces.Discrete(3), gym.spaces.Text(3)]),
    "nested": gym.spaces.Dict(
        a=gym.spaces.Text(3),
        b=BOX,
        c=gym.spaces.Tuple([gym.spaces.Sequence(gym.spaces.Discrete(4)), gym.spaces.Discrete(2)]),
    ),
}
"""Spaces whose samples are no arrays, or have parts that are none."""


class ObjectEnv(gym.Env):
    """Observations drawn from a space with the env's own random numbers; episodes of three steps."""

    def __init__(self, space: gym.Space):
        self.observation_space = copy.deepcopy(space)
        self.action_space = copy.deepcopy(space)
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        self.observation_space.seed(int(self.np_random.integers(1000)))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.actions.append(action)
        return self.observation_space.sample(), float(self.t), self.t >= 3, False, {}
