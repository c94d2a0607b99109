"""Envs as a user of ``EnvBase`` writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import torch
from by_hand import action_of_row, observation_leaves, zeros
from tensordict import TensorDict, TensorDictBase

from gymbridge.envs import EnvBase
from gymbridge.spaces import space_to_spec
from gymbridge.spaces.conversion import observation_spec
from gymbridge.specs import Composite, Unbounded

__all__ = ["OwnBatch"]


class OwnBatch(EnvBase):
    """Gymnasium envs run by hand inside an ``EnvBase`` that honours masks; rows that a mask leaves out are garbage."""

    def __init__(self, makers: Sequence[Callable[[], gym.Env]]):
        batch_size = (len(makers),)
        super().__init__(batch_size=batch_size)
        self.envs = [make() for make in makers]
        self.space = self.envs[0].observation_space
        self.observation_spec = observation_spec(self.space, batch_size=batch_size)
        actions = space_to_spec(self.envs[0].action_space, batch_size=batch_size)
        self.full_action_spec = Composite({"action": actions}, shape=torch.Size(batch_size))
        self.reward_spec = Unbounded((*batch_size, 1))
        self.seeds: list[int | None] = [None] * len(makers)

    @property
    def partial_step(self) -> bool:
        return True

    @property
    def partial_reset(self) -> bool:
        return True

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        rows = []
        for row, env in enumerate(self.envs):
            if tensordict is None or "_reset" not in tensordict.keys() or tensordict["_reset"][row]:
                observation, _ = env.reset(seed=self.seeds[row], **kwargs)
                self.seeds[row] = None
            else:
                observation = zeros(self.space)
            rows.append(self._row(observation))
        return torch.stack(rows)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        rows = []
        for row, env in enumerate(self.envs):
            if "_step" not in tensordict.keys() or tensordict["_step"][row]:
                action = action_of_row(env.action_space, tensordict, (row,))
                observation, reward, terminated, truncated, _ = env.step(action)
            else:
                observation, reward, terminated, truncated = zeros(self.space), 99.0, True, True
            made = self._row(observation)
            made["reward"] = torch.tensor([float(reward)])
            made["terminated"] = torch.tensor([bool(terminated)])
            made["truncated"] = torch.tensor([bool(truncated)])
            rows.append(made)
        return torch.stack(rows)

    def _row(self, observation: Any) -> TensorDict:
        made = TensorDict({}, [])
        for key, value in observation_leaves(self.space, observation).items():
            made.set(key, torch.from_numpy(value))
        return made

    def _set_seed(self, seed: int | None) -> None:
        self.seeds = [None if seed is None else seed + row for row in range(len(self.envs))]
