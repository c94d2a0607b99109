"""TensorDict envs that do what a test tells them to, in whichever process they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from waiting_envs import Acting

from gymbridge.envs import EnvBase
from gymbridge.specs import Bounded, Categorical, Composite, Unbounded

__all__ = ["ActingTensorDictEnv"]


class ActingTensorDictEnv(Acting, EnvBase):
    """The TensorDict env that shows what a ``waiting_envs.ActingEnv`` in a ``GymEnv`` does."""

    def __init__(self, index: int = 0, folder: Path | None = None, act: str = ""):
        super().__init__()
        self.index = index
        self.folder = folder
        self.act = act
        self.steps = 0
        self.observation_spec = Composite(observation=Bounded(0, 100, (2,)))
        self.action_spec = Categorical(5)
        self.reward_spec = Unbounded((1,))
        self.obey("init")

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        self.steps = 0
        self.obey("reset")
        return TensorDict(observation=self._observation())

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.steps += 1
        self.obey("step")
        reward = tensordict["action"].to(torch.float32).reshape(1)
        return TensorDict(observation=self._observation(), reward=reward, terminated=torch.tensor([self.act == "end"]))

    def _set_seed(self, seed: int | None) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"np_random": None}

    def load_state_dict(self, state_dict: Any) -> None:
        assert [*state_dict] == ["np_random"]

    def close(self, *, raise_if_closed: bool = True) -> None:
        super().close(raise_if_closed=raise_if_closed)
        self.end()

    def _observation(self) -> torch.Tensor:
        return torch.tensor([self.index, self.steps], dtype=torch.float32)
