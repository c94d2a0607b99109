"""Batches of envs as one TensorDict env."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import cloudpickle
import gymnasium as gym
import torch
from tensordict import TensorDictBase

from gymbridge.engine.any_env import core_objects
from gymbridge.engine.calls import exclusive
from gymbridge.engine.counts import count_of
from gymbridge.engine.gym_host import GymEnvDescription, close_all
from gymbridge.engine.host import Engine
from gymbridge.engine.local import LocalEngine
from gymbridge.engine.makers import EnvMaker, make_all
from gymbridge.envs.base import EnvBase
from gymbridge.envs.engine_env import EngineEnv, kept_generator
from gymbridge.envs.engine_face import EngineFace
from gymbridge.envs.env_kind import require_like_envs
from gymbridge.envs.gym_env import GymEnv
from gymbridge.envs.gym_face import GymFace, GymFaceOptions
from gymbridge.envs.inputs import DeviceLike, NestedKey
from gymbridge.envs.per_env import PerEnv
from gymbridge.envs.selection import Selection
from gymbridge.envs.tensordict_face import TensorDictFace
from gymbridge.envs.tensordict_host import TensorDictEnvDescription, TensorDictHostOptions
from gymbridge.envs.tensordicts import cloned, fill, leaf_paths

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["BatchedEnvBase", "SerialEnv"]

Maker = Callable[..., Any]
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _declared_as(declared: _Method) -> Callable[[Callable[..., Any]], _Method]:
    """Gives a method that passes its arguments on the signature of another, for type checkers too."""
    return lambda method: cast(_Method, wraps(declared)(method))


class BatchedEnvBase(EngineEnv):
    """``N`` envs as one TensorDict env of batch size ``[N, *B]``, ``B`` that of an env: what the batched envs share.

    Nothing starts before the first use; reading a spec is one. A use after ``close`` starts the envs again.

    Args:
        num_envs: ``N``.
        create_env_fn: a gymnasium id, a callable that makes an env, or a list of ``N`` of these.
        create_env_kwargs: keyword arguments of the makers: a dict, of which each env gets a copy, or one dict an env.
        num_workers: taken as ``num_envs`` where that is not given, as TorchRL's callers mean it; the attribute of that
            name reads it, or else ``N``. In this process there are no workers whatever it is.
        device: device of what is returned; unless told, that of the envs.
        share_individual_td: True for lazy stacks, in which each env has a TensorDict of its own; False for dense
            results; None for these where keys, shapes and dtypes of the envs agree, else lazy stacks.
        use_buffers: None or True for what leaves no trace in a graph; False lets gradients flow through the envs.
        policy_proof: a policy, of which the keys that it writes get a place in ``fake_tensordict()`` and, where it
            writes them under ``"next"`` (recurrent states), in what ``reset`` returns: zeros.
        selected_keys, excluded_keys: observations and rewards that alone are returned, or that are not; flags always
            are. The key of a group stands for all in it.
        copy: what is returned stays as it is. With False, results of gymnasium envs are views, valid until the next
            call, but for those of ``rollout``; those of TensorDict envs are the caller's own either way.
        non_blocking: what is returned on a CUDA device is moved there in one copy a call, from pinned memory, for which
            this process does not wait: read it on the stream that was current. Elsewhere, and for lazy stacks, a move
            is waited for either way.
        auto_wrap_envs: here for TorchRL's callers; makers of any kind work, lambdas included.

    Raises:
        ValueError: fewer than one env, a list of another length, or both ``selected_keys`` and ``excluded_keys``.
        TypeError: something that makes no env.

    Example:
        >>> from gymbridge import BatchedEnvBase, SerialEnv
        >>> isinstance(SerialEnv(2, "CartPole-v1"), BatchedEnvBase)
        True
    """

    def __init__(
        self,
        num_envs: int | None = None,
        create_env_fn: str | Maker | Sequence[str | Maker] | None = None,
        *,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        num_workers: int | None = None,
        device: DeviceLike | None = None,
        share_individual_td: bool | None = None,
        use_buffers: bool | None = None,
        policy_proof: Callable[[TensorDictBase], TensorDictBase] | None = None,
        selected_keys: Sequence[NestedKey] | None = None,
        excluded_keys: Sequence[NestedKey] | None = None,
        copy: bool = True,
        non_blocking: bool = False,
        auto_wrap_envs: bool = True,
    ):
        if num_workers is not None:
            num_workers = count_of("num_workers", num_workers)
        num_envs = count_of("num_envs", num_workers if num_envs is None else num_envs)
        super().__init__(device=device, batch_size=(num_envs,))
        self.num_envs = num_envs
        self.num_workers = num_envs if num_workers is None else num_workers
        if hasattr(create_env_fn, "step") and not isinstance(create_env_fn, type) and num_envs > 1:
            raise TypeError(
                f"create_env_fn: got one env for {num_envs}, expected an id, a callable that makes an env, or a list"
            )
        created = _one_each("create_env_fn", create_env_fn, num_envs)
        kwargs = _one_each("create_env_kwargs", {} if create_env_kwargs is None else create_env_kwargs, num_envs)
        _require_dicts("create_env_kwargs", kwargs)
        self._makers = [EnvMaker(fn, deepcopy(dict(own))) for fn, own in zip(created, kwargs, strict=True)]
        for name, option in (("share_individual_td", share_individual_td), ("use_buffers", use_buffers)):
            if option not in (None, True, False):
                raise TypeError(f"{name}: got {option!r}, expected True, False or None")
        if policy_proof is not None and not callable(policy_proof):
            raise TypeError(f"policy_proof: got {policy_proof!r}, expected a policy")
        self._share_individual_td = share_individual_td
        self._use_buffers = use_buffers
        self._policy_proof = policy_proof
        self._policy_outputs: TensorDictBase | None = None
        self._selection = Selection(selected_keys, excluded_keys)
        self._copy = copy
        self._non_blocking = non_blocking

    @property
    def device(self) -> torch.device | None:
        """Device of all that the env returns; that of the envs unless told, which starts them if they never ran."""
        if self._device is None and not self._has_specs:
            _ = self._face
        return self._device

    @property
    def batch_size(self) -> torch.Size:
        """``[N, *B]``; ``B`` is that of an env, which starts them if they never ran."""
        if not self._has_specs:
            _ = self._face
        return self._batch_size

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

    def _face_of_gym_envs(self, engine: Engine[GymEnvDescription], options: GymFaceOptions) -> GymFace:
        """The face of an engine that runs gymnasium envs of one kind, under this batch's own options."""
        batch_size = torch.Size([self.num_envs])
        return GymFace(engine, batch_size, self._device, options, self._selection, self._copy, self._non_blocking)

    def _take_common_device(self, devices: set[torch.device | None]) -> None:
        """Takes over the device of the envs if none was given."""
        if self._device is None and devices:
            if len(devices) > 1:
                raise ValueError(f"device: the envs have the devices {devices}: say which one the batch is to have")
            self._device = devices.pop()

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
            EnvMaker(maker.source, {**maker.kwargs, **deepcopy(dict(own))})
            for maker, own in zip(self._makers, each, strict=True)
        ]
        self._specs = {}  # other envs may have others

    def add_truncated_keys(self) -> Self:
        """Refused: flags are the envs' own.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"add_truncated_keys: call it on the envs that {type(self).__name__} runs, in their maker")

    @_declared_as(EnvBase.rollout)
    def rollout(self, *args: Any, **kwargs: Any) -> TensorDictBase:
        """See :meth:`EnvBase.rollout`; its steps are copies whatever ``copy`` says."""
        if self._copy:  # else each step would be a view of the last one
            return super().rollout(*args, **kwargs)
        with self._face.copying():
            return super().rollout(*args, **kwargs)

    # ---------------------------------------------------------------- what a policy writes

    def _take_specs(self, face: EngineFace) -> None:
        super()._take_specs(face)
        self._policy_outputs = None

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """See :meth:`EngineEnv.reset`; with a ``policy_proof``, the policy's recurrent states are there as zeros."""
        root = super().reset(tensordict, **kwargs)
        outputs = self._outputs_of_policy()
        states = None if outputs is None else outputs.get("next", None)
        if states is not None:
            fill(root, cloned(states))
        return root

    def fake_tensordict(self) -> TensorDictBase:
        """See :meth:`EnvBase.fake_tensordict`; with a ``policy_proof``, what the policy writes has a place in it."""
        fake = super().fake_tensordict()
        outputs = self._outputs_of_policy()
        if outputs is not None:
            fill(fake, cloned(outputs))
            states = outputs.get("next", None)
            if states is not None:
                fill(fake, cloned(states))
        return fake

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_policy_proof": cloudpickle.dumps(self._policy_proof)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _policy_proof=cloudpickle.loads(state["_policy_proof"]))

    def _outputs_of_policy(self) -> TensorDictBase | None:
        """Zeros at the keys that the policy writes and no spec has, found by one call with a fake TensorDict.

        None without a policy.
        """
        if self._policy_outputs is None and self._policy_proof is not None:
            fake = super().fake_tensordict()
            known = set(leaf_paths(fake))
            given = fake.exclude("next")
            with torch.no_grad(), kept_generator():  # what it draws is not missed by who seeded torch
                written = self._policy_proof(given)
            if not isinstance(written, TensorDictBase):
                raise TypeError(f"policy_proof: got {type(written).__name__}, expected the TensorDict with the action")
            new = [path for path in leaf_paths(written) if path not in known]
            self._policy_outputs = torch.zeros_like(written.select(*new))  # type: ignore[assignment]
        return self._policy_outputs

    # ---------------------------------------------------------------- the envs themselves

    def __getattr__(self, name: str) -> Any:
        """An attribute of all envs, found through their wrappers: a list of N, which is called and looked into alike.

        Raises:
            AttributeError: an env lacks it, or its name begins with ``_``.
            RuntimeError: a call is under way, in this thread or another.
        """
        if hasattr(type(self), name):  # one of our own properties raised: its error, not ours
            if self._start_error is not None and self._engine_face is None:
                raise self._start_error  # not by another look, which would call the makers again
            return object.__getattribute__(self, name)
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._require_no_call(name)
        return self._of_each_env(name)

    def _require_no_call(self, name: str) -> None:
        if self._call_under_way is not None:
            raise RuntimeError(
                f"{name}: refused while a call of {self._call_under_way} is under way, in this thread or another"
            )

    def _of_each_env(self, name: str) -> PerEnv:
        engine = self._face.engine
        return PerEnv(_of_env(engine, row, name) for row in range(self.num_envs))

    @exclusive
    def set_attr(self, name: str, value: Any) -> None:
        """Sets an attribute of each env; a list or tuple has one value an env, anything else is for all.

        Raises:
            ValueError: a list or tuple of another length.
        """
        each = _one_each("value", value, self.num_envs)
        self._face.engine.each("set_attribute", [(name, own) for own in each])


def _of_env(engine: Engine[Any], row: int, name: str) -> Any:
    try:
        return engine.attribute(row, name)
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
    """``N`` envs, stepped one after the other in this process.

    The envs are gymnasium envs, of which those of one kind are run straight into the batch, or TensorDict envs
    (:class:`~gymbridge.envs.EnvBase`), or some of each. Envs that differ in spaces or specs are a multi-task batch: its
    results are lazy stacks, in which each env has its own keys and shapes.

    Args:
        num_envs: ``N``.
        create_env_fn: a gymnasium id, a callable that makes a ``gymnasium.Env`` or an ``EnvBase`` (the options of a
            :class:`~gymbridge.envs.GymEnv` then hold for the batch), or a list of ``N`` of these.
        **options: see :class:`BatchedEnvBase`.

    Raises:
        ValueError: fewer than one env, a list of another length, one env object from two makers, envs of differing
            batch sizes, or an option that cannot be had with these envs (at the first use).
        TypeError: something that makes no env.

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
        >>> two_tasks = SerialEnv(2, ["CartPole-v1", "Pendulum-v1"])
        >>> [observation.shape for observation in two_tasks.reset().get("observation", as_list=True)]
        [torch.Size([4]), torch.Size([3])]
        >>> two_tasks.close()
    """

    def _make_face(self) -> EngineFace:
        made = make_all(self._makers, gym.Env, EnvBase)
        try:
            _require_distinct(made)
            return self._gym_face(made) or self._tensordict_face(made)
        except BaseException:
            with suppress(Exception):  # what went wrong first is what the caller is to see
                close_all(made)
            raise

    def _gym_face(self, made: list[Any]) -> EngineFace | None:
        """The face of gymnasium envs of one kind; None where the envs are anything else."""
        options = [env.options if isinstance(env, GymEnv) else None for env in made]
        of_one_kind = all(isinstance(env, (gym.Env, GymEnv)) for env in made) and all(o == options[0] for o in options)
        if not of_one_kind or self._share_individual_td:
            return None
        envs = [env.env if isinstance(env, GymEnv) else env for env in made]
        if any(
            getattr(env, name) != getattr(envs[0], name)
            for env in envs
            for name in ("observation_space", "action_space")
        ):
            return None
        self._take_device([env for env in made if isinstance(env, GymEnv)])
        face_options = options[0] or GymFaceOptions()
        engine: LocalEngine[Any, GymEnvDescription] = LocalEngine(envs, face_options.host)
        engine.allocate()
        return self._face_of_gym_envs(engine, face_options)

    def _tensordict_face(self, made: list[Any]) -> EngineFace:
        envs = [env if isinstance(env, EnvBase) else GymEnv(env) for env in made]
        for row, env in enumerate(envs):
            if isinstance(env, EngineEnv):
                require_like_envs(row, env._face.difference())
        self._take_device(envs)
        if self._use_buffers and any(env.has_dynamic_specs for env in envs):
            warnings.warn("use_buffers: got True with an env of dynamic specs, which go without", stacklevel=2)
        gradients = self._share_individual_td is True or self._use_buffers is False
        options = TensorDictHostOptions(gradients, stacks=not self._share_individual_td)
        engine: LocalEngine[EnvBase, TensorDictEnvDescription] = LocalEngine(envs, options)
        engine.allocate()
        return TensorDictFace(engine, self._device, self._selection, self._share_individual_td, self._non_blocking)

    def _take_device(self, envs: list[EnvBase]) -> None:
        self._take_common_device({env.device for env in envs})


def _require_distinct(made: list[Any]) -> None:
    """Refuses one env object from two makers, alone, in wrappers or in batches of their own."""
    found: dict[int, int] = {}
    for index, env in enumerate(made):
        for core in core_objects(env):
            other = found.setdefault(id(core), index)
            if other != index:
                raise ValueError(
                    f"the makers of envs {other} and {index} gave one and the same env: {reprlib.repr(core)}"
                )
