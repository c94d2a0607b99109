"""The TensorDict contract of an environment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from gymnasium.error import ClosedEnvironmentError
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from gymbridge.envs.checking import output_faults
from gymbridge.envs.done_groups import DoneGroups
from gymbridge.envs.env_kind import EnvKind
from gymbridge.envs.env_specs import KINDS, EnvSpecs, fake_tensordict, nothing_gained, shown_before
from gymbridge.envs.inputs import DeviceLike, as_seed, env_device
from gymbridge.envs.rollouts import rollout
from gymbridge.envs.tensordicts import cloned, entry, leaf_paths, picked_rows, put_entry, with_entries
from gymbridge.envs.transitions import keep_asleep, put_first, put_next
from gymbridge.errors import EnvOutputError
from gymbridge.spaces.naming import kind_of

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["EnvBase"]


class EnvBase(EnvSpecs, ABC):
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

    Flags may stand in groups too, ``("agents", "done")`` say, with the shape of the group. Those at the root speak for
    the env; an env without any at the root ends where a flag of any group is True. A group with more than one flag an
    env, ``[*B, num_agents, 1]``, may end in part.

    Masks pick envs of a batch: ``"_reset"`` in what ``reset`` is given, ``"_step"`` in what ``step`` is given; bool,
    ``[*B]`` or ``[*B, 1]``, a scalar for all; at the root, or in every group in the shape of its flags. An env not
    picked is not touched: its row has td's own observation and flags, or the env's latest where td has none, and in
    ``next`` a reward of zero. Masks are consumed. A batched env of your own that honours them says so with
    ``partial_step = True`` and ``partial_reset = True``, as attributes of the class or set in ``__init__``; to others
    they are refused.

    A subclass sets its specs in ``__init__`` (``observation_spec`` and ``action_spec``; ``reward_spec``, ``done_spec``
    and ``state_spec`` if they are not the usual ones: one unbounded reward, ``[*B, 1]``, and no state) and writes three
    methods:

    - ``_reset(td, **kwargs)``: observation (and done flags, if any can be True) as a TensorDict ``[*B]``. ``td`` is
      None or what the caller gave; where it has ``"_reset"``, bool ``[*B]``, only these envs are to be reset, and of
      a group only what the mask in it picks, ``("agents", "_reset")`` say, in the shape of the group's flags;
    - ``_step(td)``: observation, reward and done flags as a TensorDict ``[*B]``; missing flags are completed. ``td``
      has the keys of the action and state specs and, under ``"next"``, what the caller put there for keys of the
      specs; where it has ``"_step"``, bool ``[*B]``, only these envs are to be stepped;
    - ``_set_seed(seed)``: seeds the env's random generator.

    ``state_dict`` and ``load_state_dict`` are for an env that can tell its state and put it back.

    Args:
        device: device of all that the env returns, and of its specs; None leaves each leaf where it is.
        batch_size: ``B``.

    Raises:
        ValueError: the device ``"meta"``.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from gymbridge.envs import EnvBase
        >>> from gymbridge.specs import Binary, Composite, Unbounded
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

    _partial_step: bool | None = None
    _partial_reset: bool | None = None

    def __init__(self, *, device: DeviceLike | None = None, batch_size: Any = ()):
        super().__init__(device, batch_size)
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
        """Whether the env honours a ``"_step"`` mask: unless told, an env without a batch does, and no other."""
        return not self.batch_size if self._partial_step is None else self._partial_step

    @partial_step.setter
    def partial_step(self, honoured: bool) -> None:
        self._partial_step = honoured

    @property
    def partial_reset(self) -> bool:
        """Whether the env honours a ``"_reset"`` mask: unless told, an env without a batch does, and no other."""
        return not self.batch_size if self._partial_reset is None else self._partial_reset

    @partial_reset.setter
    def partial_reset(self, honoured: bool) -> None:
        self._partial_reset = honoured

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
        mask = self._mask(tensordict, "_reset")
        first = self._first(tensordict, mask, kwargs)
        return first if tensordict is None else put_first(tensordict, first, self._spec_plan.groups.mask_keys("_reset"))

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
            ResetNeeded: a gymnasium env that ended has not been reset; a TensorDict env of your own may be stepped on.
            RuntimeError: the TensorDict is locked.
            ClosedEnvironmentError: the env is closed.
        """
        self._require_ready("step", tensordict)
        following = self._next(tensordict, self._mask(tensordict, "_step"))
        return put_next(tensordict, following, self._spec_plan.groups.nested)

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
        self._require_ready("step_and_maybe_reset", tensordict)
        return self._advance(tensordict, self._mask(tensordict, "_step"))

    # ---------------------------------------------------------------- the three rounds, their arguments checked

    def _first(
        self, tensordict: TensorDictBase | None, mask: torch.Tensor | None, kwargs: dict[str, Any]
    ) -> TensorDictBase:
        """Observation and flags after a reset of the envs that the mask picks."""
        self._require_partial_reset(mask)
        if mask is not None and not mask.any():
            return self._shown(tensordict)
        given = self._given_to_reset(tensordict, mask)
        return self._first_of(self._reset(given, **kwargs), given, tensordict, mask)

    def _require_partial_reset(self, mask: torch.Tensor | None) -> None:
        if mask is not None and not self.partial_reset:
            raise ValueError(
                f"_reset: {type(self).__name__} has partial_reset=False and is reset whole only; got the mask {mask}. "
                f"An env whose _reset honours '_reset' says so with partial_reset = True; without, a rollout ends "
                f"when any env is done"
            )

    def _given_to_reset(self, tensordict: TensorDictBase | None, mask: torch.Tensor | None) -> TensorDictBase | None:
        """What ``_reset`` is given."""
        return None if tensordict is None else self._with_mask(tensordict.copy(), "_reset", mask)

    def _first_of(
        self,
        made: TensorDictBase,
        given: TensorDictBase | None,
        tensordict: TensorDictBase | None,
        mask: torch.Tensor | None,
    ) -> TensorDictBase:
        """Observation and flags after a reset that was ``given`` so and ``made`` this."""
        self._require_new("_reset", made, given)
        first = self._completed("_reset", made, tensordict)
        rewards = [key for key in self.reward_keys if first.get(key, None) is not None]
        if rewards:  # a root has none
            first = first.exclude(*rewards)
        still_done = self._spec_plan.groups.still_done(first, mask, tensordict)
        if still_done.any():
            which, whose = (f": envs {_where(still_done)} are", "their") if still_done.ndim else (" is", "its")
            raise RuntimeError(f"{type(self).__name__}{which} still done after {whose} reset")
        if mask is None:
            self._latest = cloned(first) if self.ndim else with_entries(first, {})  # what is returned is the caller's
            return first
        return self._merged(mask, first, tensordict, {})

    def _next(self, tensordict: TensorDictBase, mask: torch.Tensor | None) -> TensorDictBase:
        """What stands under ``"next"`` after a step of the envs that the mask picks."""
        self._require_partial_step(mask)
        if mask is not None and not mask.any():
            return self._shown(tensordict).update(self._zeros(tensordict))
        given = self._given_to_step(tensordict, mask)
        return self._next_of(self._step(given), given, tensordict, mask)

    def _require_partial_step(self, mask: torch.Tensor | None) -> None:
        if mask is not None and not self.partial_step:
            raise ValueError(
                f"_step: {type(self).__name__} has partial_step=False and is stepped whole only; got the mask {mask}"
            )

    def _given_to_step(self, tensordict: TensorDictBase, mask: torch.Tensor | None) -> TensorDictBase:
        """What ``_step`` is given."""
        self._spec_plan.require_inputs(tensordict, self._lead(tensordict))
        return self._with_mask(self._spec_plan.inputs_of(tensordict), "_step", mask)

    def _next_of(
        self, made: TensorDictBase, given: TensorDictBase, tensordict: TensorDictBase, mask: torch.Tensor | None
    ) -> TensorDictBase:
        """What stands under ``"next"`` after a step that was ``given`` so and ``made`` this."""
        self._require_new("_step", made, given)
        following = self._completed("_step", made, tensordict)
        if mask is None:
            self._latest = cloned(following) if self.ndim else with_entries(following, {})
            return following
        return self._merged(mask, following, tensordict, self._zeros(tensordict))

    def _advance(self, tensordict: TensorDictBase, mask: torch.Tensor | None) -> tuple[TensorDictBase, TensorDictBase]:
        """A step of the envs that the mask picks, and a reset of those that ended in it."""
        groups = self._spec_plan.groups
        following = self._next(tensordict, mask)
        tensordict = put_next(tensordict, following, groups.nested)
        root = self.step_mdp(tensordict)
        ended = groups.ended(following)
        if mask is not None:
            keep_asleep(root, tensordict, mask, self._shown(tensordict))
            ended = ended & mask.to(ended.device)
        if ended.any():
            groups.put_resets(root, ended)
            root = self.reset(root)
        return tensordict, root

    # ---------------------------------------------------------------- what reaches the env, and what it gave

    def _mask(self, tensordict: TensorDictBase | None, name: str) -> torch.Tensor | None:
        """One bool an env of what the caller gave; None where every env is picked."""
        if tensordict is None:
            return None
        groups = self._spec_plan.groups
        if isinstance(tensordict, LazyStackedTensorDict):
            groups.require_masks_in_every_row(tensordict, name)
        elif entry(tensordict, name) is None and not groups.nested:
            return None
        return groups.mask(tensordict, name, tensordict.batch_size)

    def _lead(self, tensordict: TensorDictBase | None) -> torch.Size:
        """The dims that a TensorDict has before the env's own batch size; there are some where that is not locked."""
        return torch.Size() if tensordict is None else tensordict.batch_size[: tensordict.ndim - self.ndim]

    def _zeros(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Reward and infos of an env that was not stepped."""
        return nothing_gained(self, self._lead(tensordict))

    def _with_mask(self, given: TensorDictBase, name: str, mask: torch.Tensor | None) -> TensorDictBase:
        """What an env is given, with its mask ``[*B]``; without one, where every env is picked."""
        if mask is not None:
            given.set(name, mask.to(self.device) if self.device is not None else mask)
        elif entry(given, name) is not None:
            del given[name]
        return given

    def _merged(
        self, mask: torch.Tensor, made: TensorDictBase, tensordict: TensorDictBase | None, zero: Any
    ) -> TensorDictBase:
        """What the env made, for the envs that the mask picks; for the others what they show."""
        shown = self._chosen(mask, made, self._shown(tensordict).update(zero), tensordict)
        self._latest = self._chosen(mask, made, self._shown(None, self._lead(tensordict)).update(zero), self._latest)
        return shown

    def _shown(self, tensordict: TensorDictBase | None, lead: torch.Size | None = None) -> TensorDict:
        """Each env's observation and flags: td's where it has them, else the env's latest."""
        lead = self._lead(tensordict) if lead is None else lead
        latest = self._latest
        if latest is not None and latest.batch_size != (*lead, *self.batch_size):  # of another call's dims
            latest = None
        return shown_before(self, tensordict, latest, lead)

    def _chosen(
        self, mask: torch.Tensor, picked: TensorDictBase, others: TensorDictBase, before: TensorDictBase | None
    ) -> TensorDictBase:
        """Rows of ``picked`` where the mask is True, of ``others`` elsewhere.

        A key that ``others`` lacks, a state say, has there what stood ``before``, or zeros where nothing did.
        """
        chosen = picked.copy()  # groups keep their batch sizes
        for key in leaf_paths(picked):
            value, other = picked.get(key), others.get(key, None)
            if other is None and before is not None:
                other = before.get(key, None)
                other = other if other is not None and other.shape == value.shape else None
            chosen.set(key, picked_rows(mask, value, other))
        return chosen

    def _require_new(self, method: str, made: object, given: object) -> None:
        if made is given and made is not None:
            raise EnvOutputError(
                f"{type(self).__name__}.{method}: got the TensorDict that it was given, expected a new one"
            )

    def _completed(self, method: str, out: TensorDictBase, given: TensorDictBase | None) -> TensorDictBase:
        """The env's output with every done flag, and ``done`` what the other two say."""
        batch_size = self._batch_size if given is None else given.batch_size
        if not isinstance(out, TensorDictBase) or out.batch_size != batch_size:
            got = f"batch size {[*out.batch_size]}" if isinstance(out, TensorDictBase) else kind_of(out)
            raise EnvOutputError(
                f"{type(self).__name__}.{method}: got {got}, expected a TensorDict of batch size {[*batch_size]}"
            )
        if self._device is not None and out.device != self._device:
            out = out.to(self._device)
        return self._spec_plan.groups.completed(out)

    def step_mdp(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """The root of the next step from what :meth:`step` returned.

        Returns:
            What stands under ``"next"``, as tensors of its own, without the reward; and the keys of the root that the
            env has nothing to say about. See :func:`gymbridge.envs.step_mdp` for more choice.
        """
        return self._spec_plan.next_root(next_tensordict)

    # ---------------------------------------------------------------- what a caller must not do

    def _require_open(self, call: str) -> None:
        if self.is_closed:
            raise ClosedEnvironmentError(f"{call}: {type(self).__name__} is closed")

    def _require_ready(self, call: str, tensordict: TensorDictBase) -> None:
        """Refuses a step of an env that is closed, or with a TensorDict that no step can be written into."""
        self._require_open(call)
        if tensordict is None:
            raise TypeError(f"{call}: got None, expected a TensorDict with the action")
        self._require_batch_size(call, tensordict)
        rows = tensordict.tensordicts if isinstance(tensordict, LazyStackedTensorDict) else (tensordict,)
        if any(row.is_locked for row in rows):
            raise RuntimeError(f"{call}: got a locked TensorDict, expected one that 'next' can be written into")

    def _require_batch_size(self, call: str, tensordict: TensorDictBase | None) -> None:
        if tensordict is None:
            return
        if not isinstance(tensordict, TensorDictBase):
            raise TypeError(f"{call}: got {tensordict!r} of type {type(tensordict).__name__}, expected a TensorDict")
        if isinstance(tensordict, LazyStackedTensorDict) and tensordict.stack_dim:
            raise ValueError(f"{call}: got a lazy stack along dim {tensordict.stack_dim}, expected along the first")
        batch_size = tensordict.batch_size
        if batch_size == self._batch_size:
            return
        ends_alike = not self.ndim or (len(batch_size) > self.ndim and batch_size[-self.ndim :] == self._batch_size)
        if self.batch_locked or not ends_alike:
            end = "" if self.batch_locked else ", alone or after other dims"
            raise ValueError(
                f"{call}: got a TensorDict of batch size {[*batch_size]}, expected {[*self.batch_size]}{end}"
            )

    # ---------------------------------------------------------------- random steps and rollouts

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Writes a random action into the TensorDict, or into a new one ``[*B]``, and returns it."""
        self._require_batch_size("rand_action", tensordict)
        lead = self._lead(tensordict)
        leaves = self._spec_plan.root_actions
        if tensordict is None or leaves is None or type(tensordict) is not TensorDict:
            action = self.full_action_spec.rand(lead)
            return action if tensordict is None else tensordict.update(action)
        for name, spec in leaves:
            put_entry(tensordict, name, spec.rand(lead))
        return tensordict

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """:meth:`step` with a random action."""
        return self.step(self.rand_action(tensordict))

    rollout = rollout

    def ended(self, tensordict: TensorDictBase) -> torch.Tensor:
        """Which envs have ended, bool ``[*B]``: by the flags at the root, else by those of any group.

        Args:
            tensordict: what stands under ``"next"`` after a step, or a root.
        """
        return self._ended(tensordict)

    def _row_groups(self, tensordict: TensorDictBase) -> list[tuple[TensorDictBase, DoneGroups]]:
        """The parts of a TensorDict in which flags stand in groups of their own, and these."""
        return [(tensordict, self._spec_plan.groups)]

    def _ended(self, tensordict: TensorDictBase) -> torch.Tensor:
        """What :meth:`ended` says, under a name that a user's env leaves alone."""
        return self._spec_plan.groups.ended(tensordict)

    def fake_tensordict(self) -> TensorDictBase:
        """A stepped TensorDict of zeros with the right keys, shapes, dtypes and devices; no step is taken.

        Example:
            >>> from gymbridge.envs import GymEnv
            >>> fake = GymEnv("CartPole-v1").fake_tensordict()
            >>> fake["next", "observation"].shape
            torch.Size([4])
        """
        specs = {kind: self._spec_of(kind) for kind in KINDS}
        return fake_tensordict(specs, self.batch_size, self.device)

    def _output_faults(self, num_steps: int, seed: int | None) -> list[str]:
        """What ``_reset`` and ``_step`` return against the specs, a line each."""
        return output_faults(self, num_steps)

    def _engine_description(self) -> EnvKind:
        """What the env says of itself to a batch in another process."""
        return EnvKind(self.device, self.has_dynamic_specs)

    def _inner_envs(self) -> Sequence[Any]:
        """The envs in this process that the env runs."""
        return ()

    # ---------------------------------------------------------------- seeds, devices, the end

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seeds the env, from its next reset on, and torch's global generator, which random actions come from.

        Args:
            seed: env ``i`` of a batch gets ``seed + i``; None takes a seed given before back.
            static_seed: every env gets ``seed`` itself.

        Returns:
            The next seed that is free: ``seed`` plus the number of envs, or ``seed`` with ``static_seed``.

        Raises:
            TypeError, ValueError: a seed that is no int, or a negative one.
        """
        seed = as_seed(seed)
        if seed is not None:
            torch.manual_seed(seed % 2**64)
        self._set_seed(seed)
        return seed if seed is None or static_seed else seed + self.numel()

    def state_dict(self) -> dict[str, Any]:
        """The state of the env, as far as it defines one: nothing unless a subclass says otherwise."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Puts back what :meth:`state_dict` gave.

        Raises:
            KeyError: a state for an env that defines none.
        """
        if state_dict:
            raise KeyError(
                f"state_dict: got the keys {[*state_dict]}, expected none: {type(self).__name__} has no load_state_dict"
            )

    def add_truncated_keys(self) -> Self:
        """The env: each of its groups of flags has ``truncated`` already. It is here for TorchRL's callers."""
        return self

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
        lines = [f"batch_size={[*self._batch_size]}", f"device={self._device}"]
        lines += [f"{kind}_spec={spec}" for kind, spec in self._specs.items()]
        return f"{type(self).__name__}(\n" + ",\n".join(f"    {line}".replace("\n", "\n    ") for line in lines) + ")"


def _where(mask: torch.Tensor) -> list[Any]:
    """Indices of the envs that a mask picks."""
    indices = mask.nonzero()
    return [int(index) if index.numel() == 1 else tuple(index.tolist()) for index in indices]
