"""The TensorDict contract of an environment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from gymnasium.error import ClosedEnvironmentError
from tensordict import TensorDict, TensorDictBase

from gymbridge.envs.checking import output_faults
from gymbridge.envs.masks import read_mask
from gymbridge.envs.rollouts import rollout
from gymbridge.envs.spec_access import FullSpec, LeafSpec
from gymbridge.envs.tensordicts import entry, leaf_paths
from gymbridge.envs.transitions import put_first, put_next, step_mdp
from gymbridge.specs import Binary, Composite, TensorSpec

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EnvBase"]

NestedKey: TypeAlias = str | tuple[str, ...]
DeviceLike: TypeAlias = torch.device | str | int

FLAGS = ("done", "terminated", "truncated")


class EnvBase(ABC):
    """An environment, or a batch of them, that reads and writes TensorDicts.

    What comes back, and when:

    ====================================  =============================================================================
    ``reset(td)``                         a TensorDict ``[*B]`` with the first observation and the done flags, all False
    ``step(td)``                          the same td, with ``("next", …)``: observation, reward, done flags
    ``step_and_maybe_reset(td)``          ``(td, td_)``: the stepped td, and the root of the next step, in which envs
                                          whose episode ended hold their first observation
    ``rollout(n)``                        ``n`` steps as one TensorDict ``[*B, n]``
    ====================================  =============================================================================

    ``B`` is the env's ``batch_size``. Reward and flags have a trailing dim, ``[*B, 1]``. ``done`` is
    ``terminated | truncated``. After an episode's end the env is reset before it is stepped again.

    Masks pick envs of a batch: ``"_reset"`` in what ``reset`` is given, ``"_step"`` in what ``step`` is given; bool,
    ``[*B]`` or ``[*B, 1]``, a scalar for all. An env not picked is not touched: its row has td's own observation and
    flags, or the env's latest where td has none, and in ``next`` a reward of zero. Masks are consumed.

    A subclass sets its specs in ``__init__`` (``observation_spec``, ``action_spec``, ``reward_spec``; ``done_spec`` and
    ``state_spec`` if they are not the usual ones) and writes three methods:

    - ``_reset(td, **kwargs)``: observation (and done flags, if any can be True) as a TensorDict ``[*B]``. ``td`` is
      None or what the caller gave; where it has ``"_reset"``, bool ``[*B]``, only these envs are to be reset;
    - ``_step(td)``: observation, reward and done flags as a TensorDict ``[*B]``; missing flags are completed. ``td``
      has the keys of the action and state specs and, under ``"next"``, what the caller put there for keys of the
      specs; where it has ``"_step"``, bool ``[*B]``, only these envs are to be stepped;
    - ``_set_seed(seed)``: seeds the env's random generator.

    Args:
        device: device of all that the env returns, and of its specs; None leaves each leaf where it is.
        batch_size: ``B``.

    Raises:
        ValueError: the device ``"meta"``.

    Example:
        >>> from gymbridge.specs import Binary, Unbounded
        >>> class Counting(EnvBase):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.observation_spec = Composite(count=Unbounded((1,), dtype=torch.int64))
        ...         self.action_spec = Binary(1)
        ...         self.reward_spec = Unbounded((1,))
        ...         self.count = 0
        ...
        ...     def _reset(self, td, **kwargs):
        ...         self.count = 0
        ...         return TensorDict({"count": torch.tensor([0])})
        ...
        ...     def _step(self, td):
        ...         self.count += int(td["action"])
        ...         return TensorDict({
        ...             "count": torch.tensor([self.count]),
        ...             "reward": torch.ones(1),
        ...             "terminated": torch.tensor([self.count >= 3]),
        ...         })
        ...
        ...     def _set_seed(self, seed):
        ...         pass
        >>> td = Counting().reset()
        >>> td["action"] = torch.ones(1, dtype=torch.int8)
        >>> td = Counting().step(td)
        >>> td["next", "count"], td["next", "done"]
        (tensor([1]), tensor([False]))
    """

    batch_locked = True
    """Whether the env takes TensorDicts of its own batch size only."""

    def __init__(self, *, device: DeviceLike | None = None, batch_size: Any = ()):
        self._device = None if device is None else env_device(device)
        self._batch_size = torch.Size(batch_size)
        flag = Binary(1, (*self._batch_size, 1), device=self._device, dtype=torch.bool)
        self._specs: dict[str, Composite] = {
            "done": Composite({name: flag.clone() for name in FLAGS}, shape=self._batch_size, device=self._device),
            "state": Composite(shape=self._batch_size, device=self._device),
        }
        self._specs_locked = False
        self._latest: TensorDictBase | None = None
        self.is_closed = False

    # ---------------------------------------------------------------- to be written by a subclass

    @abstractmethod
    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        """Resets and returns the first observation."""

    @abstractmethod
    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Steps and returns observation, reward and done flags."""

    @abstractmethod
    def _set_seed(self, seed: int | None) -> None:
        """Seeds the env."""

    @property
    def partial_step(self) -> bool:
        """Whether the env honours a ``"_step"`` mask: as it stands, an env without a batch does."""
        return not self.batch_size

    @property
    def partial_reset(self) -> bool:
        """Whether the env honours a ``"_reset"`` mask: as it stands, an env without a batch does."""
        return not self.batch_size

    # ---------------------------------------------------------------- what the env is

    @property
    def batch_size(self) -> torch.Size:
        """``B``: the leading dims of all that the env returns."""
        return self._batch_size

    @property
    def device(self) -> torch.device | None:
        """Device of all that the env returns; None where each leaf has its own."""
        return self._device

    @property
    def ndim(self) -> int:
        """Number of batch dims."""
        return len(self.batch_size)

    def numel(self) -> int:
        """Number of envs."""
        return self.batch_size.numel()

    full_observation_spec = FullSpec("observation")
    full_action_spec = FullSpec("action")
    full_reward_spec = FullSpec("reward")
    full_done_spec = FullSpec("done")
    full_state_spec = FullSpec("state")
    observation_spec = FullSpec("observation")
    action_spec = LeafSpec("action")
    reward_spec = LeafSpec("reward")
    done_spec = FullSpec("done")
    state_spec = FullSpec("state")

    def _spec_of(self, kind: str) -> Composite:
        try:
            return self._specs[kind]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {kind}_spec yet: set it in __init__") from None

    def _store_spec(self, kind: str, spec: Composite) -> None:
        if self._specs_locked:
            raise RuntimeError(
                f"{kind}_spec: the specs of {type(self).__name__} are locked; set_spec_lock_(False) first"
            )
        nested = (
            [key for key in spec.keys(True, True) if not isinstance(key, str)] if kind in ("reward", "done") else []
        )
        if nested:
            raise ValueError(f"{kind}_spec: got the nested keys {nested}, expected keys at the root")
        self._specs[kind] = spec if self._device is None else spec.to(self._device)

    @property
    def input_spec(self) -> Composite:
        """What the env reads: ``full_action_spec`` and ``full_state_spec``."""
        return Composite(
            {"full_action_spec": self.full_action_spec, "full_state_spec": self.full_state_spec},
            shape=self.batch_size,
            device=self._device,
        )

    @property
    def output_spec(self) -> Composite:
        """What the env writes: ``full_observation_spec``, ``full_reward_spec`` and ``full_done_spec``."""
        return Composite(
            {
                "full_observation_spec": self.full_observation_spec,
                "full_reward_spec": self.full_reward_spec,
                "full_done_spec": self.full_done_spec,
            },
            shape=self.batch_size,
            device=self._device,
        )

    @property
    def specs(self) -> Composite:
        """``input_spec`` and ``output_spec``."""
        both = {"input_spec": self.input_spec, "output_spec": self.output_spec}
        return Composite(both, shape=self.batch_size, device=self._device)

    def set_spec_lock_(self, mode: bool = True) -> Self:
        """Locks the specs, or unlocks them with ``False``; returns the env."""
        self._specs_locked = mode
        for spec in self._specs.values():
            _ = spec.lock_() if mode else spec.unlock_()
        return self

    @property
    def is_spec_locked(self) -> bool:
        """Whether the specs are locked."""
        return self._specs_locked

    @property
    def action_keys(self) -> list[NestedKey]:
        """Keys of the actions."""
        return [*self.full_action_spec.keys(True, True)]

    @property
    def action_key(self) -> NestedKey:
        """Key of the first action."""
        return self.action_keys[0]

    @property
    def reward_keys(self) -> list[NestedKey]:
        """Keys of the rewards."""
        return [*self.full_reward_spec.keys(True, True)]

    @property
    def reward_key(self) -> NestedKey:
        """Key of the first reward."""
        return self.reward_keys[0]

    @property
    def done_keys(self) -> list[NestedKey]:
        """Keys of the end-of-episode flags."""
        return [*self.full_done_spec.keys(True, True)]

    @property
    def reset_keys(self) -> list[NestedKey]:
        """Keys of the masks that ``reset`` reads."""
        return ["_reset"]

    # ---------------------------------------------------------------- reset and step

    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """Resets the env, or those envs of a batch that ``"_reset"`` picks.

        Args:
            tensordict: None, or a TensorDict ``[*B]``; a mask at ``"_reset"`` picks envs. It stays as it is.
            **kwargs: for the env's own reset.

        Returns:
            A TensorDict ``[*B]``: what was given, without the mask, with observation and done flags. An env that was
            not picked keeps what was given, or has its latest where nothing was.

        Raises:
            RuntimeError: the env is still done after its reset.
            ValueError, TypeError: a mask of another shape or dtype, or a mask for an env that cannot do a part.
            ClosedEnvironmentError: the env is closed.
        """
        self._require_open("reset")
        self._require_batch_size("reset", tensordict)
        mask = read_mask(tensordict, "_reset", self.batch_size)
        if mask is not None and not self.partial_reset:
            raise ValueError(
                f"_reset: {type(self).__name__} has partial_reset=False and is reset whole only; got the mask {mask}"
            )
        first = self._first(tensordict, mask, kwargs)
        return first if tensordict is None else put_first(tensordict, first)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Steps the env, or those envs of a batch that ``"_step"`` picks.

        Args:
            tensordict: a TensorDict ``[*B]`` with the action, and the state if the env has any; a mask at ``"_step"``
                picks envs. What else is in it stays there untouched.

        Returns:
            The same TensorDict without the mask, with ``("next", …)``: observation, reward and done flags. An env that
            was not picked has in ``next`` its own observation and flags, a reward of zero and infos of zero. What else
            was under ``"next"`` stays there.

        Raises:
            KeyError: an action or a state is missing.
            ValueError, TypeError: an action of another shape or dtype than its spec; a mask of another shape or dtype,
                or a mask for an env that cannot do a part.
            ResetNeeded: an env that ended has not been reset.
            ClosedEnvironmentError: the env is closed.
        """
        self._require_open("step")
        self._require_batch_size("step", tensordict)
        mask = read_mask(tensordict, "_step", self.batch_size)
        following = self._next(tensordict, mask)
        return put_next(tensordict, following, entry(tensordict, "next"))

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Steps the env and resets those envs of a batch whose episode ended in this step.

        Args:
            tensordict: as for :meth:`step`.

        Returns:
            The same TensorDict as :meth:`step` leaves it, where ``next`` has the true final observation, and the root
            of the next step: first observation where an env was reset, ``next``'s elsewhere, with all flags False. An
            env that ``"_step"`` did not pick is neither stepped nor reset: it keeps its row.

        Raises:
            ValueError: only a part of the batch ended, and the env has ``partial_reset=False``.

        and what :meth:`step` raises.
        """
        self._require_open("step_and_maybe_reset")
        self._require_batch_size("step_and_maybe_reset", tensordict)
        mask = read_mask(tensordict, "_step", self.batch_size)
        following = self._next(tensordict, mask)
        tensordict = put_next(tensordict, following, entry(tensordict, "next"))
        root = self.step_mdp(tensordict)
        ended = _per_env(tensordict["next", "done"], self.ndim)
        if mask is not None:
            ended = ended & mask.to(ended.device)
        if ended.any():
            if not ended.all():
                root.set("_reset", ended)
            root = self.reset(root)
        return tensordict, root

    def _first(
        self, tensordict: TensorDictBase | None, mask: torch.Tensor | None, kwargs: dict[str, Any]
    ) -> TensorDictBase:
        """Observation and flags after a reset of the envs that the mask picks."""
        if mask is not None and not mask.any():
            return self._shown(tensordict, {})
        given = None if tensordict is None else self._with_mask(tensordict.copy(), "_reset", mask)
        first = self._with_flags(self._reset(given, **kwargs))
        done = _per_env(first["done"], self.ndim)
        done = done if mask is None else done & mask.to(done.device)
        if done.any():
            raise RuntimeError(f"{type(self).__name__}: envs {_where(done)} are still done after their reset")
        return self._merged(mask, first, tensordict, {})

    def _next(self, tensordict: TensorDictBase, mask: torch.Tensor | None) -> TensorDictBase:
        """What stands under ``"next"`` after a step of the envs that the mask picks."""
        if mask is not None and not self.partial_step:
            raise ValueError(
                f"_step: {type(self).__name__} has partial_step=False and is stepped whole only; got the mask {mask}"
            )
        zero = self.full_reward_spec.zero()
        if "info" in self.full_observation_spec.keys():
            zero["info"] = self.full_observation_spec["info"].zero()
        if mask is not None and not mask.any():
            return self._shown(tensordict, zero)
        self._require_inputs(tensordict)
        following = self._with_flags(self._step(self._inputs(tensordict, mask)))
        return self._merged(mask, following, tensordict, zero)

    def _inputs(self, tensordict: TensorDictBase, mask: torch.Tensor | None) -> TensorDictBase:
        """What reaches the env: actions, states, what stands under ``"next"`` at a key of the specs, and the mask."""
        preset = [
            ("next", *((key,) if isinstance(key, str) else key))
            for spec in (self.full_observation_spec, self.full_reward_spec, self.full_done_spec, self.full_state_spec)
            for key in spec.keys(True, True)
        ]
        states = self.full_state_spec.keys(True, True)
        given: TensorDictBase = tensordict.select(*self.action_keys, *states, *preset, strict=False)
        return self._with_mask(given, "_step", mask)

    def _with_mask(self, given: TensorDictBase, name: str, mask: torch.Tensor | None) -> TensorDictBase:
        """What an env is given, with its mask ``[*B]``; without one, where every env is picked."""
        if mask is not None:
            given.set(name, mask.to(self.device) if self.device is not None else mask)
        elif entry(given, name) is not None:
            del given[name]
        return given

    def _merged(
        self, mask: torch.Tensor | None, made: TensorDictBase, tensordict: TensorDictBase | None, zero: Any
    ) -> TensorDictBase:
        """What the env made, for the envs that the mask picks; for the others what they show."""
        if mask is None:
            self._latest = made.copy()
            return made
        shown = self._chosen(mask, made, self._shown(tensordict, zero))
        self._latest = self._chosen(mask, made, self._shown(None, zero))
        return shown

    def _shown(self, tensordict: TensorDictBase | None, zero: Any) -> TensorDictBase:
        """Each env's observation and flags: td's where it has them, else the env's latest; ``zero`` as it is."""
        shown = TensorDict({}, self.batch_size, device=self.device)
        for spec in (self.full_observation_spec, self.full_done_spec):
            for key in spec.keys(True, True):
                value = None if tensordict is None else tensordict.get(key, None)
                if value is None and self._latest is not None:
                    value = self._latest.get(key, None)
                shown.set(key, spec[key].zero() if value is None else value.clone())
        return shown.update(zero)

    def _chosen(self, mask: torch.Tensor, picked: TensorDictBase, others: TensorDictBase) -> TensorDictBase:
        """Rows of ``picked`` where the mask is True, of ``others`` elsewhere; zeros where these have none."""
        chosen = picked.empty()
        for key in leaf_paths(picked):
            value, other = picked.get(key), others.get(key, None)
            rows = mask.to(value.device).reshape(*mask.shape, *[1] * (value.ndim - mask.ndim))
            chosen.set(key, torch.where(rows, value, torch.zeros_like(value) if other is None else other))
        return chosen

    def _with_flags(self, out: TensorDictBase) -> TensorDictBase:
        """The env's output with all three done flags, each ``[*B, 1]``."""
        flags = {}
        for name in FLAGS:
            flag = out.get(name, None)
            if flag is not None:
                flags[name] = flag.unsqueeze(-1) if flag.shape == self.batch_size else flag
        if "terminated" not in flags:
            done = flags.get("done")
            truncated = flags.get("truncated")
            if done is None:
                done = torch.zeros((*self.batch_size, 1), dtype=torch.bool, device=self.device)
                done = done if truncated is None else torch.zeros_like(truncated)
            flags["terminated"] = done if truncated is None else done & ~truncated
        if "truncated" not in flags:
            done = flags.get("done")
            terminated = flags["terminated"]
            flags["truncated"] = torch.zeros_like(terminated) if done is None else done & ~terminated
        if "done" not in flags:
            flags["done"] = flags["terminated"] | flags["truncated"]
        out = out.copy()
        for name in FLAGS:
            out.set(name, flags[name])
        return out

    def step_mdp(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """The root of the next step from what :meth:`step` returned; see :func:`gymbridge.envs.step_mdp`."""
        return step_mdp(
            next_tensordict, reward_keys=self.reward_keys, done_keys=self.done_keys, action_keys=self.action_keys
        )

    # ---------------------------------------------------------------- what a caller must not do

    def _require_open(self, call: str) -> None:
        if self.is_closed:
            raise ClosedEnvironmentError(f"{call}: {type(self).__name__} is closed")

    def _require_batch_size(self, call: str, tensordict: TensorDictBase | None) -> None:
        if tensordict is not None and self.batch_locked and tensordict.batch_size != self.batch_size:
            raise ValueError(
                f"{call}: got a TensorDict of batch size {[*tensordict.batch_size]}, expected {[*self.batch_size]}"
            )

    def _require_inputs(self, tensordict: TensorDictBase) -> None:
        """Refuses an action or a state that is missing or has another shape or dtype than its spec."""
        for spec in (self.full_action_spec, self.full_state_spec):
            for key, leaf in spec.items(True, True):
                require_like(key, tensordict.get(key, None), leaf, tensordict)

    # ---------------------------------------------------------------- random steps and rollouts

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Writes a random action into the TensorDict, or into a new one ``[*B]``, and returns it."""
        self._require_batch_size("rand_action", tensordict)
        action = self.full_action_spec.rand()
        return action if tensordict is None else tensordict.update(action)

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """:meth:`step` with a random action."""
        return self.step(self.rand_action(tensordict))

    def rollout(
        self,
        max_steps: int,
        policy: Callable[..., Any] | None = None,
        callback: Callable[[EnvBase, TensorDictBase], Any] | None = None,
        *,
        auto_reset: bool = True,
        auto_cast_to_device: bool = False,
        break_when_any_done: bool | None = None,
        break_when_all_done: bool | None = None,
        return_contiguous: bool = True,
        tensordict: TensorDictBase | None = None,
        set_truncated: bool = False,
        out: TensorDictBase | None = None,
        trust_policy: bool = False,
        storing_device: DeviceLike | None = None,
        progress: bool = False,
    ) -> TensorDictBase:
        """Runs the env for some steps; see :func:`gymbridge.envs.rollouts.rollout` for the arguments.

        Returns:
            A TensorDict ``[*B, T]`` with at most ``max_steps`` steps, its last dim named ``"time"``.
        """
        return rollout(
            self,
            max_steps,
            policy,
            callback,
            auto_reset=auto_reset,
            auto_cast_to_device=auto_cast_to_device,
            break_when_any_done=break_when_any_done,
            break_when_all_done=break_when_all_done,
            return_contiguous=return_contiguous,
            tensordict=tensordict,
            set_truncated=set_truncated,
            out=out,
            trust_policy=trust_policy,
            storing_device=storing_device,
            progress=progress,
        )

    def fake_tensordict(self) -> TensorDict:
        """A stepped TensorDict of zeros with the right keys, shapes, dtypes and devices; no step is taken.

        Example:
            >>> from gymbridge.envs import GymEnv
            >>> fake = GymEnv("CartPole-v1").fake_tensordict()
            >>> fake["next", "observation"].shape
            torch.Size([4])
        """
        fake = TensorDict({}, self.batch_size, device=self.device)
        for spec in (self.full_state_spec, self.full_observation_spec, self.full_done_spec, self.full_action_spec):
            fake.update(spec.zero())
        following = TensorDict({}, self.batch_size, device=self.device)
        for spec in (self.full_observation_spec, self.full_reward_spec, self.full_done_spec):
            following.update(spec.zero())
        return fake.set("next", following)

    def _output_faults(self, num_steps: int, seed: int | None) -> list[str]:
        """What ``_reset`` and ``_step`` return against the specs, a line each."""
        return output_faults(self, num_steps)

    # ---------------------------------------------------------------- seeds, devices, the end

    def set_seed(self, seed: int | None, static_seed: bool = False) -> int | None:
        """Seeds the env, from its next reset on.

        Args:
            seed: env ``i`` of a batch gets ``seed + i``; None takes a seed given before back.
            static_seed: every env gets ``seed`` itself.

        Returns:
            The next seed that is free: ``seed`` plus the number of envs, or ``seed`` with ``static_seed``.
        """
        if seed is not None:
            torch.manual_seed(seed)
        self._set_seed(seed)
        return seed if seed is None or static_seed else seed + self.numel()

    def to(self, device: DeviceLike) -> Self:
        """Has the env return everything on a device; returns the env."""
        self._device = env_device(device)
        self._specs = {kind: spec.to(self._device) for kind, spec in self._specs.items()}
        self.set_spec_lock_(self._specs_locked)
        if self._latest is not None:
            self._latest = self._latest.to(self._device)
        return self

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the env.

        Raises:
            RuntimeError: the env is closed already, unless ``raise_if_closed=False``.
        """
        if self.is_closed:
            if raise_if_closed:
                raise RuntimeError(f"close: {type(self).__name__} is closed already")
            return
        self.is_closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(raise_if_closed=False)

    def __repr__(self) -> str:
        lines = [f"batch_size={[*self.batch_size]}", f"device={self._device}"]
        lines += [f"{kind}_spec={spec}" for kind, spec in self._specs.items()]
        return f"{type(self).__name__}(\n" + ",\n".join(f"    {line}".replace("\n", "\n    ") for line in lines) + ")"


def env_device(device: DeviceLike) -> torch.device:
    """The device with its index: ``"cuda"`` means the current one.

    Raises:
        ValueError: the device ``"meta"``, which holds no values.
    """
    device = torch.device(device)
    if device.type == "meta":
        raise ValueError("device: got meta, expected one that holds values")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def require_like(key: NestedKey, value: Any, spec: TensorSpec, tensordict: TensorDictBase) -> None:
    """Refuses an input that is missing or has another shape or dtype than its spec."""
    name = key if isinstance(key, str) else ".".join(key)
    if value is None:
        raise KeyError(
            f"{name}: missing, expected shape {[*spec.shape]} and {spec.dtype}; got keys {[*tensordict.keys()]}"
        )
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{name}: got {type(value).__name__}, expected a tensor of shape {[*spec.shape]} and {spec.dtype}"
        )
    if value.shape != spec.shape:
        raise ValueError(f"{name}: got shape {[*value.shape]}, expected {[*spec.shape]}")
    if value.dtype is not spec.dtype:
        raise ValueError(f"{name}: got dtype {value.dtype}, expected {spec.dtype}")


def _per_env(flags: torch.Tensor, ndim: int) -> torch.Tensor:
    return flags.flatten(ndim).any(-1) if flags.ndim > ndim else flags


def _where(mask: torch.Tensor) -> list[Any]:
    """Indices of the envs that a mask picks."""
    indices = mask.nonzero()
    return [int(index) if index.numel() == 1 else tuple(index.tolist()) for index in indices]
