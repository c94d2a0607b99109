"""Envs and a policy for the tests against TorchRL, whose processes import them; nothing of it is imported here."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from tensordict import TensorDictBase

__all__ = ["ImageEnv", "MaskedEnv", "act_by_sign", "short_cartpole"]


def act_by_sign(td: TensorDictBase) -> TensorDictBase:
    """A policy that the observation alone decides."""
    return td.set("action", (td["observation"][..., 2] > 0).long())


def short_cartpole() -> gym.Env[Any, Any]:
    """CartPole whose episodes end terminated or, after 12 steps, truncated."""
    return gym.make("CartPole-v1", max_episode_steps=12)


class ImageEnv(gym.Env[Any, Any]):
    """Random pixels, ``[12, 10, 3]``, and a position in doubles; episodes of one to five steps."""

    observation_space = spaces.Dict(
        pixels=spaces.Box(0, 255, (12, 10, 3), np.uint8), position=spaces.Box(-1, 1, (2,), np.float64)
    )
    action_space = spaces.Box(-1, 1, (2,), np.float64)

    def _observation(self) -> dict[str, Any]:
        return {
            "pixels": self.np_random.integers(0, 256, (12, 10, 3), np.uint8),
            "position": self.np_random.uniform(-1, 1, 2),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 6))
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self._observation(), float(action.sum()), self.left == 0, False, {}


class MaskedEnv(gym.Env[Any, Any]):
    """Has a mask of the actions that are allowed, others than in the step before, and refuses the rest."""

    observation_space = spaces.Dict(action_mask=spaces.MultiBinary(4), count=spaces.Box(0, 100, (1,), np.float32))
    action_space = spaces.Discrete(4)

    def _observation(self) -> dict[str, Any]:
        self.allowed = self.np_random.permutation([1, 1, 0, 0]).astype(np.int8)
        return {"action_mask": self.allowed, "count": np.array([self.t], np.float32)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.allowed[action]:
            raise ValueError(f"action {action} is masked")
        self.t += 1
        return self._observation(), 1.0, self.t == 3, False, {}
