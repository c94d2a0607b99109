"""One gymnasium env as a TensorDict env."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import gymnasium as gym
import torch

from gymbridge.engine.local import LocalEngine, make_all
from gymbridge.envs.base import DeviceLike
from gymbridge.envs.engine_env import EngineEnv
from gymbridge.envs.engine_face import EngineFace, FaceOptions
from gymbridge.envs.info_specs import discover_infos
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
            ``"info"``; ``("info", "_mask", key)``, a bool ``[]``, says whether an entry was there, and one that was not
            reads zero.
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
        self._make = env_maker(env_or_id_or_maker, make_kwargs, remakes=info == "auto")
        self.options = FaceOptions(
            categorical_action_encoding=categorical_action_encoding,
            info_spec=discover_infos(self._make) if info == "auto" else info,
            reward_dtype=reward_dtype,
            warn_of_unknown_infos=info == "auto",
        )
        _ = self._face

    def _make_face(self) -> EngineFace:
        engine = LocalEngine(make_all([self._make], gym.Env), self.options.host)
        try:
            engine.allocate()
            face = EngineFace(engine, self.batch_size, self.device, self.options)
        except BaseException:
            engine.close()
            raise
        self._envs = engine.envs
        return face

    @property
    def env(self) -> gym.Env[Any, Any]:
        """The gymnasium env."""
        _ = self._face
        return self._envs[0]


def env_maker(env_or_id_or_maker: Any, kwargs: dict[str, Any], *, remakes: bool = False) -> Callable[[], Any]:
    """A callable without arguments that makes the env.

    Args:
        env_or_id_or_maker: a gymnasium env, a registered id, or a callable.
        kwargs: for ``gymnasium.make`` or the callable.
        remakes: it will be called more than once.

    Raises:
        TypeError: none of the three, or an env that is made already where kwargs are given or more are to be made.
    """
    if isinstance(env_or_id_or_maker, str):
        return lambda: gym.make(env_or_id_or_maker, **kwargs)
    if isinstance(env_or_id_or_maker, gym.Env):
        if kwargs:
            raise TypeError(f"make_kwargs: got {sorted(kwargs)} with an env that is made already, expected none")
        if remakes:
            raise TypeError("info='auto' looks at a separate env: give an id or a maker instead of an env")
        return lambda: env_or_id_or_maker
    if callable(env_or_id_or_maker):
        return lambda: env_or_id_or_maker(**kwargs)
    raise TypeError(
        f"got {env_or_id_or_maker!r} of type {type(env_or_id_or_maker).__name__}, "
        f"expected a gymnasium.Env, a registered id or a callable that makes an env"
    )
