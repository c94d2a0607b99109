"""``gymnasium.vector.SyncVectorEnv`` over gymbridge's engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from gymbridge.engine.gym_host import GymEnvDescription
from gymbridge.engine.info_records import forget_infos
from gymbridge.engine.local import LocalEngine
from gymbridge.engine.makers import as_env_fns, make_all
from gymbridge.vector.engine_vector_env import OF_THE_BLOCK, ActType, EngineVectorEnv, ObservationMode, ObsType
from gymbridge.vector.output import make_output

if TYPE_CHECKING:
    import torch

__all__ = ["SyncVectorEnv"]

_NOT_COPIED = frozenset({"_engine", "_call_under_way", *OF_THE_BLOCK})
"""Attributes that a copy makes anew, and the call that it was made in."""


class SyncVectorEnv(
    EngineVectorEnv[LocalEngine[gym.Env[Any, Any], GymEnvDescription], ObsType, ActType], Generic[ObsType, ActType]
):
    """Steps ``N`` gymnasium envs one after the other in this process, with the results of gymnasium's own class.

    Args:
        env_fns: one callable an env that makes a ``gymnasium.Env``.
        copy: hand out observations that stay as they are; if not, they are valid until the next call.
        observation_mode: ``"same"`` for equal observation spaces, ``"different"`` for spaces of equal shape and dtype
            with other bounds, or a tuple of the batched space and the space of one env.
        autoreset_mode: ``NEXT_STEP``, ``SAME_STEP`` or ``DISABLED``, see :mod:`gymbridge.vector.autoreset`.
        output: ``"numpy"``, which gymnasium's own vector wrappers want, or ``"torch"``. Torch is imported for the
            second only.
        device: where tensors are to be, with ``output="torch"``.
        reward_dtype: dtype of the rewards: a numpy dtype, float64 unless told, or with ``output="torch"`` a torch
            dtype, float32 unless told.

    Attributes:
        envs: the envs, a list whose items may be replaced, by wrapped ones for example.

    Raises:
        RuntimeError: spaces that do not fit together; the message names the env.
        UnsupportedSpaceError: a space without a translation.
        ValueError: no env, or an option with a value that it does not have.

    Example:
        >>> import gymnasium as gym
        >>> envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3)
        >>> observations, infos = envs.reset(seed=42)
        >>> observations, rewards, terminations, truncations, infos = envs.step([0, 1, 1])
        >>> observations.shape, rewards
        ((3, 4), array([1., 1., 1.]))
        >>> envs.close()
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        copy: bool = True,
        observation_mode: ObservationMode = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        *,
        output: Literal["numpy", "torch"] = "numpy",
        device: torch.device | str | int | None = None,
        reward_dtype: Any = None,
    ):
        self.env_fns = env_fns
        super().__init__(
            lambda options: LocalEngine(make_all(as_env_fns(env_fns), gym.Env), options),
            copy=copy,
            observation_mode=observation_mode,
            autoreset_mode=autoreset_mode,
            output=make_output(output, device, reward_dtype),
        )

    @property
    def envs(self) -> list[gym.Env[Any, Any]]:
        """The envs; one that is put in another's place, or a list that is put in this one's, is what runs then."""
        return self._engine.envs

    @envs.setter
    def envs(self, envs: Sequence[gym.Env[Any, Any]]) -> None:
        if len(envs) != self.num_envs:
            raise ValueError(f"envs: got {len(envs)} envs, expected {self.num_envs}")
        self._engine.envs[:] = envs

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: the envs, and what the block has, which is itself not copied but made anew."""
        block = self._engine.block
        kept = {name: value for name, value in self.__dict__.items() if name not in _NOT_COPIED}
        return {
            **kept,
            "_envs": (self._engine.envs, self._engine.descriptions),
            "_rows": (block.next, block.root, bytes(block.state), bytes(block.source)),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        (envs, descriptions), (next_rows, root_rows, states, sources) = state.pop("_envs"), state.pop("_rows")
        self.__dict__.update(state)
        self._engine = LocalEngine(envs, self._options)
        self._engine.descriptions = descriptions
        self._allocate()
        block = self._engine.block
        for section, rows in ((block.next, next_rows), (block.root, root_rows)):
            for key, array in rows.items():
                section[key][...] = array
        block.state[:], block.source[:] = states, sources
        forget_infos(block, range(self.num_envs))  # their forms are known to the host of the one copied
