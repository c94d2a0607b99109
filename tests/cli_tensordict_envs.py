"""A TensorDict env that tests of the command line name."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from gymbridge.envs import EnvBase
from gymbridge.specs import Categorical, Composite, Unbounded


class Counting(EnvBase):
    """Observes how many steps it has made; an episode has five."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(count=Unbounded((1,), dtype=torch.int64))
        self.action_spec = Categorical(2)
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: Any, **kwargs: Any) -> TensorDict:
        self.count = torch.zeros(1, dtype=torch.int64)
        return TensorDict({"count": self.count, "terminated": self.count < 0}, batch_size=[])

    def _step(self, tensordict: Any) -> TensorDict:
        self.count = self.count + 1
        return TensorDict({"count": self.count, "reward": torch.ones(1), "terminated": self.count >= 5}, batch_size=[])

    def _set_seed(self, seed: int | None) -> None:
        pass
