"""Batches of envs as one TensorDict env."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch

from gymbridge.engine.calls import exclusive
from gymbridge.engine.gym_host import GymEnvDescription, close_all
from gymbridge.engine.host import Engine
from gymbridge.engine.local import LocalEngine, make_all
from gymbridge.envs.engine_env import EngineEnv
from gymbridge.envs.engine_face import EngineFace, FaceOptions
from gymbridge.envs.gym_env import EnvMaker, GymEnv
from gymbridge.envs.inputs import DeviceLike
from gymbridge.envs.per_env import PerEnv

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["BatchedEnvBase", "SerialEnv"]

Maker = Callable[..., Any]


class BatchedEnvBase(EngineEnv):
    """``N`` envs as one TensorDict env of batch size ``[N]``: what the batched envs share.

    Nothing starts before the first use; reading a spec is one. A use after ``close`` starts the envs again.

    Args:
        num_envs: ``N``.
        create_env_fn: a gymnasium id, a callable that makes an env, or a list of ``N`` of these.
        create_env_kwargs: keyword arguments of the makers: a dict, of which each env gets a copy, or one dict an env.
        device: device of what is returned; unless told, that of the envs.

    Raises:
        ValueError: fewer than one env, or a list of another length.
        TypeError: something that makes no env.

    Example:
        >>> from gymbridge import BatchedEnvBase, SerialEnv
        >>> isinstance(SerialEnv(2, "CartPole-v1"), BatchedEnvBase)
        True
    """

    def __init__(
        self,
        num_envs: int,
        create_env_fn: str | Maker | Sequence[str | Maker],
        *,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        device: DeviceLike | None = None,
    ):
        if isinstance(num_envs, bool) or not isinstance(num_envs, (int, np.integer)):
            raise TypeError(f"num_envs: got {num_envs!r}, expected an int")
        num_envs = int(num_envs)
        if num_envs < 1:
            raise ValueError(f"num_envs: got {num_envs}, expected at least 1")
        super().__init__(device=device, batch_size=(num_envs,))
        self.num_envs = num_envs
        if isinstance(create_env_fn, gym.Env) and num_envs > 1:
            raise TypeError(
                f"create_env_fn: got one env for {num_envs}, expected an id, a callable that makes an env, or a list"
            )
        created = _one_each("create_env_fn", create_env_fn, num_envs)
        kwargs = _one_each("create_env_kwargs", {} if create_env_kwargs is None else create_env_kwargs, num_envs)
        _require_dicts("create_env_kwargs", kwargs)
        self._makers = [EnvMaker(fn, copy.deepcopy(dict(own))) for fn, own in zip(created, kwargs, strict=True)]

    @property
    def device(self) -> torch.device | None:
        """Device of all that the env returns; that of the envs unless told, which starts them if they never ran."""
        if self._device is None and "observation" not in self._specs:
            _ = self._face
        return self._device

    @exclusive
    def start(self) -> Self:
        """Starts the envs now instead of at the first use; returns the env.

        Raises:
            RuntimeError: they run already.
        """
        if self._engine_face is not None:
            raise RuntimeError(f"start: {type(self).__name__} is running already")
        _ = self._face
        return self

    def _require_open(self, call: str) -> None:
        """A batch that is closed starts again."""
        self.is_closed = False

    def update_kwargs(self, kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Merges keyword arguments into those of the makers, for all or one dict an env, from the next start on.

        Raises:
            RuntimeError: the envs run; close first.
            ValueError, TypeError: a list of another length, or something that is no dict.
        """
        if self._engine_face is not None:
            raise RuntimeError(f"update_kwargs: {type(self).__name__} is running, close it first")
        each = _one_each("kwargs", kwargs, self.num_envs)
        _require_dicts("kwargs", each)
        self._makers = [
            EnvMaker(maker.source, {**maker.kwargs, **copy.deepcopy(dict(own))})
            for maker, own in zip(self._makers, each, strict=True)
        ]

    # ---------------------------------------------------------------- the envs themselves

    def __getattr__(self, name: str) -> PerEnv:
        """An attribute of all envs, found through their wrappers: a list of N, which is called and looked into alike.

        Raises:
            AttributeError: an env lacks it, or its name begins with ``_``.
        """
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if hasattr(type(self), name):  # one of our own properties raised: its error, not ours
            object.__getattribute__(self, name)
        call = self._face.engine.call
        return PerEnv(_of_env(call, row, name) for row in range(self.num_envs))

    @exclusive
    def set_attr(self, name: str, value: Any) -> None:
        """Sets an attribute of each env; a list or tuple has one value an env, anything else is for all.

        Raises:
            ValueError: a list or tuple of another length.
        """
        for row, own in enumerate(_one_each("value", value, self.num_envs)):
            self._face.engine.call(row, "set_wrapper_attr", (name, own))


def _of_env(call: Callable[..., Any], row: int, name: str) -> Any:
    try:
        return call(row, "get_wrapper_attr", (name,))
    except AttributeError as error:
        raise AttributeError(f"env {row} has no attribute {name!r}") from error


def _require_dicts(name: str, each: Sequence[Any]) -> None:
    for own in each:
        if not isinstance(own, Mapping):
            raise TypeError(f"{name}: got {own!r} of type {type(own).__name__}, expected a dict")


def _one_each(name: str, given: Any, num_envs: int) -> list[Any]:
    """A list with one entry an env from a list of them, or from one for all."""
    if not isinstance(given, (list, tuple)):
        return [given] * num_envs
    if len(given) != num_envs:
        raise ValueError(f"{name}: got a list of {len(given)}, expected {num_envs}, one for each env")
    return list(given)


class SerialEnv(BatchedEnvBase):
    """``N`` gymnasium envs of one kind, stepped one after the other in this process.

    Args:
        num_envs: ``N``.
        create_env_fn: a gymnasium id, a callable that makes a ``gymnasium.Env`` or a :class:`~gymbridge.envs.GymEnv`
            (whose options then hold for the batch), or a list of ``N`` of these.
        create_env_kwargs: keyword arguments of the makers: a dict, of which each env gets a copy, or one dict an env.
        device: device of what is returned; unless told, that of the envs.

    Raises:
        ValueError: fewer than one env, a list of another length, envs that differ in spaces or options (at the first
            use; the message names the env), or one env object from two makers.
        TypeError: something that makes no gymnasium env.

    Example:
        >>> env = SerialEnv(3, "CartPole-v1")
        >>> _ = env.set_seed(0)
        >>> td = env.rand_action(env.reset())
        >>> td, td_ = env.step_and_maybe_reset(td)
        >>> td["next", "reward"].shape, td_["observation"].shape
        (torch.Size([3, 1]), torch.Size([3, 4]))
        >>> env.rollout(20, break_when_any_done=False).batch_size
        torch.Size([3, 20])
        >>> env.close()
    """

    def _make_face(self) -> EngineFace:
        made = make_all(self._makers, gym.Env, GymEnv)
        try:
            envs, options = self._unwrapped(made)
            engine = LocalEngine(envs, options.host)
            _require_one_kind(engine)
            engine.allocate()
            return EngineFace(engine, self.batch_size, self._device, options)
        except BaseException:
            with suppress(Exception):  # what went wrong first is what the caller is to see
                close_all(made)
            raise

    def _unwrapped(self, made: list[Any]) -> tuple[list[gym.Env[Any, Any]], FaceOptions]:
        """The gymnasium envs, and how they look; takes over the device of ``GymEnv`` objects if none was given."""
        envs = [env.env if isinstance(env, GymEnv) else env for env in made]
        for index, env in enumerate(envs):
            same = [other for other in range(index) if envs[other].unwrapped is env.unwrapped]
            if same:
                raise ValueError(
                    f"the makers of envs {same[0]} and {index} gave one and the same env: {env.unwrapped!r}"
                )
        options = [env.options if isinstance(env, GymEnv) else None for env in made]
        for index, own in enumerate(options):
            if own != options[0]:
                raise ValueError(
                    f"env {index} is {_kind(made[index])}, and env 0 is {_kind(made[0])}: a batch has envs of one kind"
                )
        if options[0] is None:
            return envs, FaceOptions()
        devices = {env.device for env in made}
        if self._device is None:
            if len(devices) > 1:
                raise ValueError(f"device: the envs have the devices {devices}: say which one the batch is to have")
            self._device = made[0].device
        return envs, options[0]


def _kind(env: Any) -> str:
    return f"a GymEnv with {env.options}" if isinstance(env, GymEnv) else f"a {type(env).__name__}"


def _require_one_kind(engine: Engine[GymEnvDescription]) -> None:
    """Refuses envs whose spaces are not those of env 0."""
    first = engine.descriptions[0]
    for index, env in enumerate(engine.descriptions):
        for name in ("observation_space", "action_space"):
            got, expected = getattr(env, name), getattr(first, name)
            if got != expected:
                raise ValueError(f"env {index}: got the {name} {got}, expected {expected} as env 0 has it")
