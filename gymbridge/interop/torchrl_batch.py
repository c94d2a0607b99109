"""A gymbridge engine as a TorchRL env; needs the extra ``gymbridge[torchrl]``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium as gym
import torch
from tensordict import TensorDictBase

from gymbridge.envs.base import EnvBase
from gymbridge.envs.engine_env import kept_generator
from gymbridge.interop.torchrl_specs import UnsupportedSpecError, spec_to_torchrl  # says which extra is missing
from gymbridge.specs import Composite, MultiOneHot, OneHot, Stacked, TensorSpec

# isort: split
from torchrl import envs as torchrl_envs

if TYPE_CHECKING:
    from typing_extensions import Self

    from gymbridge.envs.inputs import DeviceLike

__all__ = ["GymbridgeEnv", "to_torchrl"]

Gave = TypeVar("Gave")


class GymbridgeEnv(torchrl_envs.EnvBase):
    """TorchRL's ``EnvBase`` over a gymbridge env; :func:`to_torchrl` makes it.

    What a step and a reset give is what the engine gives; :meth:`step_and_maybe_reset` is one round of it. Attributes
    and methods that TorchRL has not got are those of the engine, which has those of its envs: ``env.num_envs``,
    ``env.last_partial()``, ``env.custom()`` of every env.

    Attributes:
        engine: what was given.

    Raises:
        TypeError, ValueError, UnsupportedSpecError: as :func:`to_torchrl`.

    Example:
        >>> from gymbridge import SerialEnv
        >>> env = GymbridgeEnv(SerialEnv(2, "CartPole-v1"))
        >>> env.rollout(5, break_when_any_done=False)["next", "observation"].shape
        torch.Size([2, 5, 4])
        >>> env.close()
    """

    def __init__(self, engine: EnvBase):
        _require_engine(engine)
        super().__init__(device=engine.device, batch_size=engine.batch_size)
        self.engine = engine
        self.__dict__["_batch_locked"] = engine.batch_locked  # TorchRL writes it to the class, where the last env wins
        self.observation_spec = _converted("observation", engine.full_observation_spec)
        actions, self._one_hot = _with_integer_one_hots(engine.full_action_spec)
        self.action_spec = _converted("action", actions)
        self.reward_spec = _converted("reward", engine.full_reward_spec)
        self.done_spec = _converted("done", engine.full_done_spec)
        self.state_spec = _converted("state", engine.full_state_spec)
        inputs = {*engine.full_action_spec.keys(True, True), *engine.full_state_spec.keys(True, True)}
        shown = (*engine.full_observation_spec.keys(True, True), *engine.full_done_spec.keys(True, True))
        self._shown = [key for key in shown if key not in inputs]
        self._declared = {*inputs, *shown, *engine.full_reward_spec.keys(True, True)}

    # ---------------------------------------------------------------- reset and step

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        return self.engine.reset(tensordict, **kwargs)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """A step for a ``TransformedEnv``, in whose root observations need not be those of the engine any more.

        An env that a mask leaves out shows what the engine has of it, which the transforms then work on.
        """
        if tensordict.get("_step", None) is not None:
            tensordict = tensordict.exclude(*self._shown)
        following: TensorDictBase = self._stepped(self.engine.step, tensordict).get("next")
        return following

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """A step, in one round of the engine: :meth:`gymbridge.envs.EnvBase.step`.

        Args:
            tensordict: ``[*B]`` with the action, and the state if the env has any; a mask at ``"_step"`` picks envs.

        Returns:
            The same TensorDict with ``("next", …)``. An env that was not picked has its own observation and flags
            there, and a reward of zero.
        """
        return self._stepped(self.engine.step, tensordict)

    def _stepped(self, step: Callable[[TensorDictBase], Gave], tensordict: TensorDictBase) -> Gave:
        """What a step of the engine gives, which takes one-hot actions as bools; the caller's stay where they are."""
        if not self._one_hot or not isinstance(tensordict, TensorDictBase):
            return step(tensordict)
        actions = {key: tensordict.get(key, None) for key in self._one_hot}
        integers = {key: action for key, action in actions.items() if isinstance(action, torch.Tensor)}
        for key, action in integers.items():
            tensordict.set(key, action.bool())
        try:
            return step(tensordict)
        finally:
            tensordict.update(integers)

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """A step, and a reset of the envs whose episode ended in it, in one round of the engine.

        Args:
            tensordict: ``[*B]`` with the action, and the state if the env has any; a mask at ``"_step"`` picks envs.

        Returns:
            The TensorDict with ``("next", …)``, where final observations stand, and the root of the next step. As of
            any env of TorchRL, it has no keys of ``"next"`` that no spec has: a ``TensorDictPrimer`` makes them known.
        """
        if self.__dict__.get("_compiled_step_and_maybe_reset") is not None:
            both: tuple[TensorDictBase, TensorDictBase] = super().step_and_maybe_reset(tensordict)
            return both
        if not isinstance(tensordict, TensorDictBase):
            return self.engine.step_and_maybe_reset(tensordict)  # which says what it expects
        if self.device is not None and tensordict.device != self.device:
            tensordict = tensordict.to(self.device)
        preset = tensordict.get("next", None)
        if preset is None:
            return self._stepped(self.engine.step_and_maybe_reset, tensordict)
        tensordict.set("next", preset.select(*self._declared, strict=False))
        try:
            stepped, root = self._stepped(self.engine.step_and_maybe_reset, tensordict)
        except BaseException:
            tensordict.set("next", preset)
            raise
        stepped.get("next").update(preset.exclude(*self._declared))
        return stepped, root

    # ---------------------------------------------------------------- seeds, states, devices, the end

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seeds the envs, from their next reset on; torch's global generator stays as it is, as TorchRL has it.

        Args:
            seed: env ``i`` of a batch gets ``seed + i``; None takes a seed given before back.
            static_seed: every env gets ``seed`` itself.

        Returns:
            The next seed that is free: ``seed`` plus the number of envs, or ``seed`` with ``static_seed``.
        """
        with kept_generator():
            return self.engine.set_seed(seed, static_seed)

    def _set_seed(self, seed: int | None) -> None:
        self.set_seed(seed)

    def state_dict(self, *args: Any, **kwargs: Any) -> OrderedDict[str, Any]:
        """The state of the envs, as of TorchRL's batched envs: that of :meth:`gymbridge.envs.EnvBase.state_dict`."""
        return OrderedDict(self.engine.state_dict())

    def load_state_dict(self, state_dict: OrderedDict[str, Any], **kwargs: Any) -> None:
        """Puts back what :meth:`state_dict` gave."""
        self.engine.load_state_dict(state_dict)

    def to(self, device: DeviceLike) -> Self:
        """Has the env return everything on a device; returns the env. The engine moves with it."""
        self.engine.to(device)
        moved: Self = super().to(device)
        return moved

    @property
    def is_closed(self) -> bool:
        """Whether the engine is closed; a batch starts again at its next use."""
        return self.engine.is_closed

    @is_closed.setter
    def is_closed(self, closed: bool) -> None:
        """Nothing: TorchRL sets it after a close, of which the engine knows."""

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the engine.

        Raises:
            RuntimeError: it is closed already, unless ``raise_if_closed=False``.
        """
        self.engine.close(raise_if_closed=raise_if_closed)

    def __del__(self) -> None:
        """Nothing: the engine ends with its own last reference, which need not be this one."""

    # ---------------------------------------------------------------- copies, attributes, words

    def __reduce__(self) -> tuple[Callable[[EnvBase], GymbridgeEnv], tuple[EnvBase]]:
        """The engine's configuration; what is unpickled starts an engine of its own."""
        return type(self), (self.engine,)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            engine = self.__dict__.get("engine")
            if engine is None or name.startswith("_"):
                raise
        return getattr(engine, name)

    def __repr__(self) -> str:
        engine = type(self.engine).__name__
        return f"{type(self).__name__}(engine={engine}, batch_size={[*self.batch_size]}, device={self.device})"


def to_torchrl(engine: EnvBase) -> GymbridgeEnv:
    """A gymbridge env as a ``torchrl.envs.EnvBase``, for TorchRL's transforms, collectors and losses.

    Args:
        engine: any env of this package: a :class:`~gymbridge.ParallelEnv`, a :class:`~gymbridge.SerialEnv`, a
            :class:`~gymbridge.AsyncEnvPool`, a :class:`~gymbridge.envs.GymEnv`, what ``from_vector_env`` gives, or an
            :class:`~gymbridge.envs.EnvBase` of your own. It is closed with the env that is returned, and it is started
            if its specs are not known yet.

    Returns:
        An env with the engine's batch size, device, keys and specs (see :func:`spec_to_torchrl`). One-hot actions are
        int64, as of TorchRL's own envs; the engine is given bools. It can be pickled as far as the engine can: what is
        unpickled is another one of the same configuration.

    Raises:
        TypeError: no env of this package; the message says what to make of it.
        ValueError: a batch with ``copy=False``.
        UnsupportedSpecError: a spec that TorchRL has no equal of, or envs of several tasks whose specs at a key it
            cannot stack (actions of several kinds, say); the message has the key.

    Example:
        >>> from gymbridge import ParallelEnv
        >>> env = to_torchrl(ParallelEnv(2, "CartPole-v1"))
        >>> td, td_ = env.step_and_maybe_reset(env.rand_action(env.reset()))
        >>> td["next", "reward"].shape, td_["observation"].shape
        (torch.Size([2, 1]), torch.Size([2, 4]))
        >>> env.close()
    """
    return GymbridgeEnv(engine)


def _require_engine(engine: object) -> None:
    """Refuses what is no env of this package, and a batch whose results change under a collector."""
    if not isinstance(engine, EnvBase):
        got = engine.__name__ if isinstance(engine, type) else type(engine).__name__
        raise TypeError(f"engine: got {got}, expected an env of gymbridge: {_advice(engine)}")
    if not getattr(engine, "_copy", True):
        raise ValueError(
            "engine: got a batch with copy=False, whose results change at its next step, and TorchRL keeps them: "
            "leave copy out"
        )


def _with_integer_one_hots(actions: Composite) -> tuple[Composite, list[Any]]:
    """The specs with one-hot actions as TorchRL's policies give them, int64, and the keys of these."""
    keys = [key for key in actions.keys(True, True) if isinstance(actions[key], OneHot | MultiOneHot)]
    keys = [key for key in keys if actions[key].dtype is torch.bool]
    if keys:
        actions = actions.clone().unlock_()
        actions.update({key: actions[key].to(torch.int64) for key in keys})
    return actions, keys


def _converted(kind: str, spec: Composite) -> Any:
    """TorchRL's spec for the entries of one kind.

    Raises:
        UnsupportedSpecError: envs of several tasks have specs at a key that TorchRL cannot stack.
    """
    converted = spec_to_torchrl(spec)
    for key in spec.keys(True, True):
        try:
            converted[key]
        except RuntimeError as error:
            raise UnsupportedSpecError(
                f"{kind}_spec: the envs differ at {key!r} in a way that TorchRL has no stack for, got "
                f"{_kinds(spec[key])}, expected one kind, dtype and number of dims"
            ) from error
    return converted


def _kinds(spec: TensorSpec) -> str:
    members = spec.unbind(spec.dim) if isinstance(spec, Stacked) else (spec,)
    return ", ".join(f"{type(member).__name__} of shape {[*member.shape]} and {member.dtype}" for member in members)


def _advice(given: Any) -> str:
    """How an engine is made of what is none."""
    if isinstance(given, torchrl_envs.EnvBase):
        return "TorchRL's own env is one already"
    if isinstance(given, gym.vector.VectorEnv):
        return "gymbridge.vector.from_vector_env makes one of a vector env"
    if isinstance(given, gym.Env):
        return "gymbridge.envs.GymEnv makes one of a gymnasium.Env"
    return "gymbridge.ParallelEnv(num_envs, create_env_fn) makes one of an id, a callable, or a list of these"
