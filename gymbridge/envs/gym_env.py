"""One gymnasium env as a TensorDict env."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import cloudpickle
import gymnasium as gym
import torch

from gymbridge.engine.local import LocalEngine, make_all
from gymbridge.envs.engine_env import EngineEnv
from gymbridge.envs.engine_face import EngineFace, FaceOptions
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
        self.options = FaceOptions(
            categorical_action_encoding=categorical_action_encoding,
            info_spec=info_spec,
            reward_dtype=reward_dtype,
            warn_of_unknown_infos=info == "auto",
            left_out_infos=left_out,
        )
        _ = self._face

    def _make_face(self) -> EngineFace:
        engine = LocalEngine(make_all([self._make], gym.Env), self.options.host)
        try:
            engine.allocate()
            return EngineFace(engine, self.batch_size, self.device, self.options)
        except BaseException:
            engine.close()
            raise

    @property
    def env(self) -> gym.Env[Any, Any]:
        """The gymnasium env."""
        return cast(LocalEngine, self._face.engine).envs[0]


class EnvMaker:
    """Makes a gymnasium env, from whatever a user gives to make one; it pickles wherever that does with cloudpickle.

    Args:
        source: a gymnasium env, a registered id, or a callable.
        kwargs: for ``gymnasium.make`` or the callable.
        remakes: it will be called more than once.

    Raises:
        TypeError: none of the three, or an env that is made already where kwargs are given or more are to be made.

    Example:
        >>> EnvMaker("CartPole-v1", {"max_episode_steps": 10})().spec.max_episode_steps
        10
    """

    def __init__(self, source: Any, kwargs: Mapping[str, Any], *, remakes: bool = False):
        if not isinstance(source, (str, gym.Env)) and not callable(source):
            raise TypeError(
                f"got {source!r} of type {type(source).__name__}, "
                f"expected a gymnasium.Env, a registered id or a callable that makes an env"
            )
        if isinstance(source, gym.Env) and kwargs:
            raise TypeError(f"make_kwargs: got {sorted(kwargs)} with an env that is made already, expected none")
        if isinstance(source, gym.Env) and remakes:
            raise TypeError("info='auto' looks at a separate env: give an id or a maker instead of an env")
        self.source = source
        self.kwargs = dict(kwargs)

    def __call__(self) -> Any:
        """An env; the same one each time where that is what was given."""
        if isinstance(self.source, gym.Env):
            return self.source
        if isinstance(self.source, str):
            return gym.make(self.source, **self.kwargs)
        return self.source(**self.kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _maker_of, (cloudpickle.dumps((self.source, self.kwargs)),)


def _maker_of(pickled: bytes) -> EnvMaker:
    return EnvMaker(*cloudpickle.loads(pickled))
