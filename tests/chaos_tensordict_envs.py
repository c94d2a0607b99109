"""The env of ``chaos_envs`` as a TensorDict env; apart, since workers of gymnasium envs import no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from chaos_envs import Chaos, Deed
from tensordict import TensorDict, TensorDictBase

from gymbridge.envs import EnvBase
from gymbridge.specs import Categorical, Composite, Unbounded

__all__ = ["ChaosTensorDictEnv"]


class ChaosTensorDictEnv(Chaos, EnvBase):
    """The same as a TensorDict env, which has no infos: what would be in them is left out."""

    def __init__(self, index: int, folder: Path):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((5,), dtype=torch.float64))
        self.action_spec = Categorical(len(Deed))
        self.reward_spec = Unbounded((1,))
        self.begin(index, folder)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        self.begin_episode()
        return TensorDict(observation=torch.tensor(self.shown(), dtype=torch.float64))

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        deed = Deed(int(tensordict["action"]))
        self.act(deed)
        observation = torch.tensor(self.shown(deed), dtype=torch.float64)
        if deed == Deed.WRONG_SHAPE:
            observation = observation[:3]
        elif deed == Deed.WRONG_DTYPE:
            observation = observation.nan_to_num().to(torch.int32)
        return TensorDict(
            observation=observation,
            reward=torch.tensor([self.reward]),
            terminated=torch.tensor([self.is_at_end]),
        )

    def _set_seed(self, seed: int | None) -> None:
        pass

    def close(self, *, raise_if_closed: bool = True) -> None:
        super().close(raise_if_closed=raise_if_closed)
        self.end()
