"""A gymnasium vector env as a TensorDict env.

What an episode's end is to the TensorDict env depends on what the vector env does then:

=====================  ===============================  ===========================================================
vector env             at the end                       ``td_`` of :meth:`GymVectorEnv.step_and_maybe_reset`
=====================  ===============================  ===========================================================
honours reset masks    is told to reset by a mask       the first observation
``SAME_STEP``          has reset the env already        the first observation, which came with the step
``NEXT_STEP``, no      resets the env in place of the   the final observation and ``done``; the next step is dead:
masks                  next step                        its ``next`` has the first observation and ``valid`` False
``DISABLED``, no       waits                            an error, unless all ended, which are reset then
masks
=====================  ===============================  ===========================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from tensordict import TensorDict, TensorDictBase

from gymbridge.engine.calls import OneCallAtATime, exclusive
from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.failures import why_not_stepped
from gymbridge.engine.layout import Leaf
from gymbridge.engine.work_counts import EngineStats, Tally
from gymbridge.engine.workers.pickling import can_be_pickled
from gymbridge.envs.action_leaves import TensorDictActionLeaves
from gymbridge.envs.base import EnvBase
from gymbridge.envs.done_groups import FLAGS
from gymbridge.envs.env_specs import shown_leaves
from gymbridge.envs.gym_face import GymFaceOptions, batched_specs, object_entries
from gymbridge.envs.inputs import DeviceLike, as_seed
from gymbridge.envs.spec_keys import group_sizes
from gymbridge.envs.tensordicts import Assembler, entry, leaf_paths, picked_rows
from gymbridge.envs.transitions import put_next
from gymbridge.envs.vector_outputs import Columns, InfoColumns, ObservationColumns, flags_of, put_row, rewards_of
from gymbridge.errors import EnvOutputError, UnpicklableError
from gymbridge.spaces.naming import action_tree, observation_tree
from gymbridge.specs import Binary

__all__ = ["GymVectorEnv", "VectorEnvTraits"]

Mask: TypeAlias = npt.NDArray[np.bool_]
_Gave = TypeVar("_Gave")

_STEP, _RESET = int(Op.STEP), int(Op.RESET)
_RUNNING, _ENDED, _FAILED, _NEW = int(RowState.RUNNING), int(RowState.ENDED), int(RowState.FAILED), int(RowState.NEW)

_TAKEN_APART = frozenset(
    {
        "_observations",
        "_infos",
        "_objects",
        "_assemble_root",
        "_assemble_next",
        "_num_observations",
        "_action_tree",
        "_actions",
    }
)
"""What :meth:`GymVectorEnv._take_apart_spaces` sets."""


_COUNTED = frozenset({"_counts", "_tally"})
"""What counts the steps of this very env."""


class VectorEnvTraits(NamedTuple):
    """What there is to know of a vector env beside its spaces."""

    autoreset_mode: AutoresetMode
    takes_reset_mask: bool
    """``reset(options={"reset_mask": mask})`` resets these envs and no others, and they are then stepped as usual."""
    takes_seeds: bool = False
    """``reset`` takes a list of seeds, one an env."""
    gives_own: bool = False
    """What it returns is the caller's own where its attribute ``copy`` is true, which may be set at any time."""
    resets_again: bool = False
    """An env whose episode has ended is reset by the next step even after a ``reset`` of all."""
    entries_of_ends: frozenset[str] = frozenset()
    """Infos that a wrapper adds about the episode that has ended, also where the others are the next one's already."""
    counts: bool = False
    """What is in its wrappers has ``stats`` of its own, which are an engine's."""


class GymVectorEnv(OneCallAtATime, EnvBase):
    """A gymnasium vector env as a TensorDict env of batch size ``[N]``; made by ``from_vector_env``.

    Args:
        vector_env: the vector env.
        traits: what it does.
        device: see :func:`gymbridge.vector.from_vector_env`.
        options: how the envs look, as chosen.

    Attributes:
        env: the vector env. Its public attributes are attributes of this env too.
        autoreset_mode: what it does at an episode's end.
    """

    def __init__(
        self,
        vector_env: VectorEnv[Any, Any, Any],
        traits: VectorEnvTraits,
        *,
        device: DeviceLike | None = None,
        options: GymFaceOptions,
    ):
        self.env = vector_env
        self.autoreset_mode = traits.autoreset_mode
        self._traits = traits
        self._mode_of_env = getattr(vector_env.unwrapped, "autoreset_mode", None)
        self._options = options
        num_envs = vector_env.num_envs
        super().__init__(device=device, batch_size=(num_envs,))
        masks = traits.takes_reset_mask
        self._has_dead_steps = traits.autoreset_mode is AutoresetMode.NEXT_STEP and not masks
        self._resets_itself = traits.autoreset_mode is AutoresetMode.SAME_STEP
        self.partial_step = False
        self.partial_reset = masks or self._resets_itself

        spaces = vector_env.single_observation_space, vector_env.single_action_space
        specs = batched_specs(*spaces, self.batch_size, self.device, options)
        observations = specs["observation"]
        if self._has_dead_steps:
            observations.set("valid", Binary(1, (num_envs, 1), device=self.device, dtype=torch.bool))
        self.full_observation_spec = observations
        self.full_action_spec = specs["action"]
        self.full_reward_spec = specs["reward"]
        self._states = np.full(num_envs, _NEW, np.uint8)
        # which envs the vector env resets in its next step, though they may be stepped
        self._about_to_reset = np.zeros(num_envs, np.bool_)
        # first observations and infos of the envs that it reset in the step that ended their episodes
        self._begun: Columns = []
        self._columns_of_ends = [
            2 * at + part
            for at, leaf in enumerate(options.host.info_leaves)
            for part in (0, 1)  # the entry and its mask
            if leaf.key[0] in traits.entries_of_ends
        ]
        self._seeds: list[int | None] = [None] * num_envs
        self._take_apart_spaces()

    def _take_apart_spaces(self) -> None:
        """Sets what reads the vector env's outputs and makes its actions."""
        num_envs, infos_kept = self.numel(), self._options.host.info_leaves
        space, action_space = self.env.single_observation_space, self.env.single_action_space
        tree, observations = observation_tree(space), self.full_observation_spec
        self._observations = ObservationColumns(tree, num_envs)
        self._infos = InfoColumns(infos_kept, num_envs)
        infos = [Leaf(("info", *leaf.key), leaf.shape, leaf.dtype) for leaf in infos_kept]
        leaves = [Leaf(leaf.key, leaf.shape, leaf.dtype) for leaf in tree.leaves]
        for leaf in infos:
            leaves += [leaf, Leaf(("info", "_mask", *leaf.key[1:]), (), np.dtype(np.bool_))]
        keys = [leaf.key for leaf in leaves]
        self._objects = object_entries(space, leaves, keys, observations, self.batch_size, self.device)
        own = [("valid",)] if self._has_dead_steps else []
        outcome = [("reward",), *((name,) for name in FLAGS)]
        groups = group_sizes(observations)
        self._assemble_root = Assembler([*keys, *own], self.batch_size, None, groups)
        self._assemble_next = Assembler([*keys, *own, *outcome], self.batch_size, None, groups)
        self._num_observations = len(tree.leaves)

        self._action_tree = action_tree(action_space)
        self._actions = TensorDictActionLeaves(
            action_space,
            self.full_action_spec["action"],
            self.batch_size,
            self._options.categorical_action_encoding,
        )

    # ---------------------------------------------------------------- what is counted

    _tally: Tally | None = None

    def stats(self, *, reset: bool = False) -> dict[str, Any]:
        """What the vector env has done since this was first called, see :meth:`gymbridge.SerialEnv.stats`.

        A vector env of this package tells itself what its workers do. Of another there is one worker, the caller: its
        ``steps`` are those of all envs, dead ones apart, and ``step_s`` are the seconds in the vector env's ``step``
        and ``reset``.

        Args:
            reset: count from zero again.
        """
        if self._traits.counts:
            told: dict[str, Any] = self.env.unwrapped.stats(reset=reset)  # type: ignore[attr-defined]
            return told
        counts = self.__dict__.setdefault("_counts", EngineStats(1))
        counts.begin(self._begin_to_count)
        taken: dict[str, Any] = counts.taken(reset=reset)
        return taken

    def _begin_to_count(self) -> list[Tally]:
        self._tally = Tally()
        return [self._tally]

    def _round(self, call: Callable[[], _Gave]) -> _Gave:
        """Makes a call of this env, which is counted once somebody has asked for ``stats``."""
        tally = self._tally
        if tally is None:
            return call()
        tally.begin_round()
        try:
            return call()
        finally:
            tally.end_round()

    def _asked(self, call: Callable[[], Any], num_steps: int = 0) -> Any:
        """Makes a call of the vector env, which is counted as so many steps."""
        tally = self._tally
        if tally is None:
            return call()
        tally.steps += num_steps
        begun = perf_counter()
        try:
            return call()
        finally:
            tally.step_s += perf_counter() - begun

    # ---------------------------------------------------------------- reset

    @exclusive
    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """See :meth:`EnvBase.reset`; ``seed`` and ``options`` go to the vector env's reset.

        An env that the vector env has reset itself, as one of mode ``SAME_STEP`` does at an episode's end, is not reset
        once more where a mask picks it, or where a TensorDict is given and all have ended: it has begun already. One
        that the vector env is about to reset in its next step is left as it stands, where a mask picks it.
        """
        return self._round(partial(super().reset, tensordict, **kwargs))

    @exclusive
    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """See :meth:`EnvBase.step`."""
        return self._round(partial(super().step, tensordict))

    @exclusive
    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """See :meth:`EnvBase.step_and_maybe_reset`, and the table in this module for envs with dead steps."""
        return self._round(partial(super().step_and_maybe_reset, tensordict))

    def _first(
        self, tensordict: TensorDictBase | None, mask: torch.Tensor | None, kwargs: dict[str, Any]
    ) -> TensorDictBase:
        """See :class:`EnvBase`."""
        if mask is None and self._resets_itself and tensordict is not None:
            # a mask of all, or all have ended: the vector env may have begun their next episodes already
            if_begun = entry(tensordict, "_reset") is not None or bool((self._states == _ENDED).all())
            mask = torch.ones(self.batch_size, dtype=torch.bool) if if_begun else None
        if mask is not None and not self.partial_reset:
            if not mask.all():
                return self._left_waiting(tensordict, mask)
            mask = None
        return super()._first(tensordict, mask, kwargs)

    def _left_waiting(self, tensordict: TensorDictBase | None, mask: torch.Tensor) -> TensorDictBase:
        """Each env as it stands, if those to be reset are the ones that the vector env resets in its next step."""
        others = mask.numpy() & ~self._about_to_reset
        if others.any():
            self._refuse_mask(others, expected="a reset of all")
        return self._shown(tensordict)

    def _refuse_mask(self, mask: Mask, expected: str) -> NoReturn:
        rows = np.flatnonzero(mask).tolist()
        why = (
            "ignores masks and resets an env itself, in the step after its episode's end"
            if self._has_dead_steps
            else "is not known to honour masks"
        )
        raise ValueError(
            f"_reset: got envs {rows} to reset alone, expected {expected}: {self.env} {why}. If it honours "
            f"options['reset_mask'], from_vector_env(..., reset_mask=True) says so"
        )

    def _reset(  # type: ignore[override]  # other arguments are refused by the call
        self, tensordict: TensorDictBase | None, *, seed: Any = None, options: Mapping[str, Any] | None = None
    ) -> TensorDict:
        mask = None if tensordict is None else entry(tensordict, "_reset")
        picked = np.ones(self.numel(), np.bool_) if mask is None else mask.cpu().numpy()
        if options is not None and "reset_mask" in options:
            raise ValueError("options: got a 'reset_mask', expected the mask at '_reset' of the TensorDict")
        begun = np.zeros_like(picked)
        if mask is not None and self._resets_itself and seed is None and not options:
            begun = self._begun_already(picked)
        rest = picked & ~begun
        if not rest.any():
            columns = _copied(self._begun)  # what is returned is the caller's own
        else:
            columns = self._reset_now(rest, seed, options, by_mask=mask is not None)
            for row in np.flatnonzero(begun).tolist():
                put_row(columns, row, [column[row] for column in self._begun])
        self._states[picked] = _RUNNING
        own = [np.ones((self.numel(), 1), np.bool_)] if self._has_dead_steps else []
        return self._assemble_root([*self._entries(columns), *map(self._tensor, own)])

    def _begun_already(self, picked: Mask) -> Mask:
        """Which of the envs to be reset the vector env has reset itself, so that they need not be again."""
        begun: Mask = picked & (self._states == _ENDED)
        if self._traits.takes_reset_mask or picked.all():  # a seed can be given
            begun &= [seed is None for seed in self._seeds]
        if picked.all() and not (begun.all() or self._traits.takes_reset_mask):
            begun[:] = False
        return begun

    @property
    def _gives_own(self) -> bool:
        return self._traits.gives_own and bool(self.env.copy)  # type: ignore[attr-defined]  # which these envs have

    def _require_mode(self) -> None:
        """Refuses to go on where the vector env no longer does at an episode's end what it did."""
        mode = getattr(self.env.unwrapped, "autoreset_mode", None)
        if mode is not self._mode_of_env and mode != self._mode_of_env:
            raise ValueError(
                f"autoreset_mode: got {mode!r}, expected {self._mode_of_env!r}, which {self.env} had when "
                f"from_vector_env was called; make another env of it"
            )

    def _reset_now(self, picked: Mask, seed: Any, options: Mapping[str, Any] | None, by_mask: bool) -> Columns:
        """Has the vector env reset the envs; by a mask also where all of them ended at once."""
        self._require_mode()
        kwargs: dict[str, Any] = {} if options is None else {"options": dict(options)}
        if not picked.all():
            self._require_maskable(picked)
        if by_mask and self._traits.takes_reset_mask:
            kwargs["options"] = {**kwargs.get("options", {}), "reset_mask": picked.copy()}
        taken = self._take_seeds(picked)
        seed = taken if seed is None else seed
        if seed is not None:
            kwargs["seed"] = seed
        try:
            observation, infos = self._asked(partial(self.env.reset, **kwargs))
            columns = [*self._observations(observation, self._gives_own), *self._infos(infos)]
        except BaseException:
            self._states[:] = _FAILED
            raise
        if not self._traits.resets_again:
            self._about_to_reset[:] = False
        return columns

    def _require_maskable(self, picked: Mask) -> None:
        """Refuses a reset of some envs that cannot be had."""
        if not self._traits.takes_reset_mask:
            self._refuse_mask(picked, expected="envs whose episode ended in the step before, or all")
        left = np.flatnonzero(~picked & ((self._states == _NEW) | (self._states == _FAILED))).tolist()
        if left:
            why = why_not_stepped(self._states.tobytes(), left)
            raise ResetNeeded(f"_reset: got a mask that leaves out envs {left}: {why}; reset all")

    # ---------------------------------------------------------------- step

    def _advance(self, tensordict: TensorDictBase, mask: torch.Tensor | None) -> tuple[TensorDictBase, TensorDictBase]:
        """See :class:`EnvBase`."""
        tensordict = put_next(tensordict, self._next(tensordict, mask))
        root = self.step_mdp(tensordict)
        if self._states.any():
            self._put_first(root, torch.from_numpy(self._states == _ENDED))
        return tensordict, root

    def _put_first(self, root: TensorDictBase, ended: torch.Tensor) -> None:
        """Resets the envs that have ended in this step, and puts what they begin with into the next root."""
        if not self.partial_reset and not ended.all():
            self._refuse_mask(ended.numpy(), expected="a reset of all")
        first = self._spec_plan.groups.completed(self._reset(self._with_mask(root.copy(), "_reset", ended)))
        for key in leaf_paths(first):
            root.set(key, picked_rows(ended, first.get(key), root.get(key)))
        self._latest = root.select(*(key for key, _ in shown_leaves(self))).clone()

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        if self._states.any():
            states = self._states.tobytes()
            rows = [row for row, state in enumerate(states) if state]
            raise ResetNeeded(f"{why_not_stepped(states, rows)}: reset them before they are stepped")
        self._require_mode()
        dead = self._about_to_reset.copy()
        ops = np.where(dead, _RESET, _STEP).astype(np.uint8).tobytes()
        parts = [tuple(part) if part.dtype.hasobject else part for part in self._actions(tensordict, ops)]
        try:
            step = partial(self.env.step, self._action_tree.unflatten(parts))
            observation, reward, terminated, truncated, infos = self._asked(step, self.numel() - int(dead.sum()))
            rewards = rewards_of(reward, self.numel(), self._options.reward_dtype)
            terminations = flags_of("terminated", terminated, self.numel())
            truncations = flags_of("truncated", truncated, self.numel())
            ended = terminations | truncations
            columns = [*self._observations(observation, self._gives_own), *self._infos(infos)]
            if self._resets_itself and ended.any():
                self._begun = _copied(columns)
                self._put_finals(columns, infos, ended)
        except BaseException:  # what the envs did does not reach the caller
            self._states[:] = _FAILED
            raise
        if self._has_dead_steps:
            self._about_to_reset = ended
        else:
            self._states[ended] = _ENDED
        own = [~dead] if self._has_dead_steps else []
        flags = [mask[:, None] for mask in (*own, ended.copy(), terminations, truncations)]
        *valid, done, terminated, truncated = map(self._tensor, flags)
        return self._assemble_next(
            [*self._entries(columns), *valid, self._tensor(rewards), done, terminated, truncated]
        )

    def _put_finals(self, columns: Columns, infos: Any, ended: Mask) -> None:
        """Puts the final observations and infos of envs that were reset in the step where their first ones stand."""
        finals = _entry_of(infos, "final_obs")
        if finals is None:
            raise EnvOutputError(
                f"final_obs: missing in the infos of a step in which envs {np.flatnonzero(ended).tolist()} ended, "
                f"expected it from {self.env}, whose autoreset_mode is {self.autoreset_mode.value!r}"
            )
        observations, infos_of_ends = columns[: self._num_observations], columns[self._num_observations :]
        one_each = isinstance(finals, list) or (isinstance(finals, np.ndarray) and finals.dtype.hasobject)
        batch = None if one_each else self._observations(finals)
        final_infos = self._infos(_entry_of(infos, "final_info"))
        for at in self._columns_of_ends:
            final_infos[at] = infos_of_ends[at]
            self._begun[self._num_observations + at] = _nothing_like(infos_of_ends[at])
        for row in np.flatnonzero(ended).tolist():
            values = self._observations.row_of(finals[row]) if batch is None else [column[row] for column in batch]
            put_row(observations, row, values)
            put_row(infos_of_ends, row, [column[row] for column in final_infos])

    def _entries(self, columns: Columns) -> list[Any]:
        return [
            self._objects[at].entry(column)  # type: ignore[arg-type]
            if at in self._objects
            else self._tensor(column)
            for at, column in enumerate(columns)
        ]

    def _tensor(self, column: Any) -> torch.Tensor:
        tensor = column if isinstance(column, torch.Tensor) else torch.from_numpy(column)
        return tensor.cpu() if self._device is None else tensor.to(self._device)

    # ---------------------------------------------------------------- seeds

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """See :meth:`EnvBase.set_seed`; the seed is for the vector env's ``reset``, env ``i`` gets ``seed + i``.

        Raises:
            TypeError, ValueError: a seed that is no int, or a negative one; ``static_seed`` for a vector env that takes
                one seed for all its envs.
        """
        seed = as_seed(seed)
        if static_seed and seed is not None and not self._traits.takes_seeds:
            raise ValueError(f"static_seed: got True, expected False: {self.env} takes one seed for all its envs")
        following = super().set_seed(seed, static_seed)
        if static_seed:
            self._seeds = [seed] * self.numel()
        return following

    def _set_seed(self, seed: int | None) -> None:
        self._seeds = [None if seed is None else seed + row for row in range(self.numel())]

    def _take_seeds(self, picked: Mask) -> Any:
        """What ``reset`` is given as seed for the envs that are reset now, which have had it then."""
        given = [seed if picked[row] else None for row, seed in enumerate(self._seeds)]
        known = [(row, seed) for row, seed in enumerate(given) if seed is not None]
        if not known:
            return None
        row, seed = known[0]
        if not self._traits.takes_seeds:
            self._seeds = [None] * self.numel()
            return seed - row
        self._seeds = [None if picked[row] else seed for row, seed in enumerate(self._seeds)]
        in_order = given == [*range(seed, seed + self.numel())]
        return seed if in_order else given

    # ---------------------------------------------------------------- the vector env itself

    def __getattr__(self, name: str) -> Any:
        """Public attributes of the vector env: ``np_random``, ``render``, ``call``, ``spec`` and the like."""
        if name.startswith("_") or name == "env" or hasattr(type(self), name):
            return object.__getattribute__(self, name)  # which says what is missing
        try:
            return getattr(self.env, name)
        except AttributeError as error:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}, and {self.env} neither") from error

    def __getstate__(self) -> dict[str, Any]:
        if not can_be_pickled(self.env):
            raise UnpicklableError(
                f"{type(self).__name__}: {self.env} cannot be pickled; make the vector env and from_vector_env(...) of "
                f"it where they are needed"
            )
        return {name: value for name, value in self.__dict__.items() if name not in _TAKEN_APART | _COUNTED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._take_apart_spaces()

    def _inner_envs(self) -> Sequence[Any]:
        envs: Sequence[Any] = getattr(self.env.unwrapped, "envs", ())
        return [env for env in envs if isinstance(env, gym.Env)]

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes the vector env.

        Raises:
            RuntimeError: the env is closed already, unless ``raise_if_closed=False``.
        """
        was_closed = self.is_closed
        super().close(raise_if_closed=raise_if_closed)
        if not was_closed:
            if "_counts" in self.__dict__:
                self._counts.end()
            self.env.close()


def _copied(columns: Columns) -> Columns:
    return [column.clone() if isinstance(column, torch.Tensor) else column.copy() for column in columns]


def _nothing_like(column: Any) -> npt.NDArray[Any]:
    """A column of an entry that no env has."""
    return np.full_like(column, None if column.dtype.hasobject else 0)


def _entry_of(infos: Any, key: str) -> Any:
    """An entry of infos; where each env has a dict of its own, a list with that of each."""
    if isinstance(infos, Mapping):
        return infos.get(key)
    if infos is None:
        return None
    return [info.get(key) if isinstance(info, Mapping) else None for info in infos]
