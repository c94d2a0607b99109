"""One gymnasium env as a TensorDict env."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import gymnasium as gym
import torch

from gymbridge.engine.gym_host import GymEnvDescription, close_all
from gymbridge.engine.local import LocalEngine
from gymbridge.engine.makers import EnvMaker, make_all
from gymbridge.envs.engine_env import EngineEnv
from gymbridge.envs.engine_face import EngineFace
from gymbridge.envs.env_kind import EnvKind
from gymbridge.envs.gym_face import GymFace, GymFaceOptions
from gymbridge.envs.info_specs import discover_infos
from gymbridge.envs.inputs import DeviceLike
from gymbridge.specs import Composite

__all__ = ["GymEnv"]


class GymEnv(EngineEnv):
    """One ``gymnasium.Env`` as a TensorDict env without a batch size.

    Args:
        env_or_id_or_maker: the env, a registered id, or a callable that makes the env.
        device: device of what is returned; None for the CPU, without a device on the TensorDicts.
        categorical_action_encoding: discrete actions are int64 numbers; with False, one-hot vectors.
        info: None drops the infos. A ``Composite`` of specs without a batch names those to keep, ``"auto"`` finds them
            by random steps of a separate env, until an episode ends or for 1,000 steps. They are leaves under
            ``"info"``, what is no number or array non-tensor data; ``("info", "_mask", key)``, a bool ``[]``, says
            whether an entry was there, and one that was not reads zero, or None.
        reward_dtype: dtype of the reward ``[1]``.
        **make_kwargs: for ``gymnasium.make`` or the maker.

    Attributes:
        env: the gymnasium env.
        options: how the env looks, as chosen.

    Raises:
        TypeError: ``make_kwargs`` or ``info="auto"`` with an env that is made already.
        UnsupportedSpaceError: a space without a translation.

    Example:
        >>> env = GymEnv("CartPole-v1")
        >>> td = env.rand_action(env.reset())
        >>> td = env.step(td)
        >>> td["next", "observation"].shape, td["next", "reward"]
        (torch.Size([4]), tensor([1.]))
        >>> env.close()
    """

    def __init__(
        self,
        env_or_id_or_maker: gym.Env[Any, Any] | str | Callable[..., gym.Env[Any, Any]],
        *,
        device: DeviceLike | None = None,
        categorical_action_encoding: bool = True,
        info: Composite | Literal["auto"] | None = None,
        reward_dtype: torch.dtype = torch.float32,
        **make_kwargs: Any,
    ):
        super().__init__(device=device)
        self._make = EnvMaker(env_or_id_or_maker, make_kwargs, remakes=info == "auto")
        info_spec, left_out = discover_infos(self._make) if info == "auto" else (info, frozenset())
        self.options = GymFaceOptions(
            categorical_action_encoding=categorical_action_encoding,
            info_spec=info_spec,
            reward_dtype=reward_dtype,
            warn_of_unknown_infos=info == "auto",
            left_out_infos=left_out,
        )
        _ = self._face

    def _make_face(self) -> EngineFace:
        made = make_all([self._make], gym.Env)
        try:
            engine: LocalEngine[gym.Env[Any, Any], GymEnvDescription] = LocalEngine(made, self.options.host)
            engine.allocate()
            return GymFace(engine, self.batch_size, self.device, self.options)
        except BaseException:
            close_all(made)
            raise

    def _engine_description(self) -> EnvKind:
        kind = super()._engine_description()
        return kind._replace(options=self.options, gym_env=self.options.host.describe(self.env))

    @property
    def env(self) -> gym.Env[Any, Any]:
        """The gymnasium env."""
        engine = cast("LocalEngine[gym.Env[Any, Any], GymEnvDescription]", self._face.engine)
        return engine.envs[0]
