"""An engine of gymnasium envs seen as TensorDicts: its block's arrays on one side, the caller's tensors on the other.

All that depends on spaces, batch size and device alone is worked out when the face is made. On the way out each leaf is
copied once, so that what the caller gets is the caller's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase

from gymbridge.engine.gym_host import GymEnvDescription, GymHostOptions
from gymbridge.engine.host import Engine, Report
from gymbridge.engine.layout import Leaf
from gymbridge.engine.reader import BlockReader
from gymbridge.envs.action_leaves import TensorDictActionLeaves
from gymbridge.envs.device_moves import move_to
from gymbridge.envs.done_groups import FLAGS
from gymbridge.envs.engine_face import EngineFace, Rows
from gymbridge.envs.info_specs import entries_alone, info_leaves
from gymbridge.envs.object_entries import ObjectEntries
from gymbridge.envs.restart_marks import with_mark
from gymbridge.envs.selection import ALL_KEYS, Selection
from gymbridge.envs.spec_keys import group_sizes, leaf_keys
from gymbridge.envs.tensordicts import Assembler, entry
from gymbridge.reward_dtypes import block_dtype_of_reward
from gymbridge.spaces.conversion import observation_spec, space_to_spec
from gymbridge.spaces.naming import SpaceLeaf, observation_tree
from gymbridge.specs import Binary, Composite, NonTensor, Unbounded

__all__ = ["GymFace", "GymFaceOptions", "batched_specs", "object_entries"]

Array: TypeAlias = npt.NDArray[Any]

_from_numpy = torch.from_numpy
Key: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class GymFaceOptions:
    """What a user may choose about how a gymnasium env looks as a TensorDict env.

    Attributes:
        categorical_action_encoding: discrete actions as integers; if not, one-hot.
        info_spec: infos that are kept, for one env; None for none.
        reward_dtype: dtype of the rewards.
        warn_of_unknown_infos: warn once of an info entry that ``info_spec`` does not have.
        left_out_infos: paths of entries that it does not warn of.

    Raises:
        TypeError: a ``reward_dtype`` that is no floating dtype, or an ``info_spec`` that is no Composite of tensors.
        ValueError: an ``info_spec`` with a batch shape.
    """

    categorical_action_encoding: bool = True
    info_spec: Composite | None = None
    reward_dtype: torch.dtype = torch.float32
    warn_of_unknown_infos: bool = False
    left_out_infos: frozenset[tuple[Any, ...]] = frozenset()
    host: GymHostOptions = field(init=False)

    def __post_init__(self) -> None:
        host = GymHostOptions(
            reward_dtype=block_dtype_of_reward(self.reward_dtype),
            info_leaves=info_leaves(self.info_spec),
            warn_of_unknown_infos=self.warn_of_unknown_infos,
            left_out_infos=self.left_out_infos,
        )
        object.__setattr__(self, "host", host)


class GymFace(EngineFace):
    """Reset and step of an engine of gymnasium envs, TensorDict in and out.

    Args:
        engine: the engine, with its block allocated.
        batch_size: ``[N]``, or ``[]`` for an engine of one env that is to look like one.
        device: where what is returned is to be; None for the CPU, without saying so.
        options: how the envs look; the engine's hosts run them with ``options.host``.
        selection: which keys are returned.
        copy: whether what is returned is the caller's own; if not, it may change in the next call.
        non_blocking: see :func:`~gymbridge.envs.device_moves.move_to`.
    """

    def __init__(
        self,
        engine: Engine[GymEnvDescription],
        batch_size: torch.Size,
        device: torch.device | None,
        options: GymFaceOptions,
        selection: Selection = ALL_KEYS,
        copy: bool = True,
        non_blocking: bool = False,
    ):
        super().__init__(engine, batch_size, device)
        env = engine.descriptions[0]
        self._options = options
        self._selection = selection
        self._copy = copy
        self._non_blocking = non_blocking
        self._move = move_to(device or torch.device("cpu"), non_blocking=non_blocking)
        specs = batched_specs(env.observation_space, env.action_space, batch_size, device, options, selection)
        observations = specs["observation"]
        if self._marks is not None:
            specs["observation"] = with_mark(observations)
        self._take_specs(specs)
        self._action_leaves = TensorDictActionLeaves(
            env.action_space, specs["action"]["action"], batch_size, options.categorical_action_encoding
        )

        kept = set(leaf_keys(observations))
        self._keys = tuple(leaf.key for leaf in env.root_leaves if leaf.key in kept)
        self._infos = tuple(i for i, key in enumerate(self._keys) if key[0] == "info")
        self._reader = BlockReader(self._block, self._keys, batch_size)
        self._next = self._reader.next
        self._reward = self._reader.reward[..., None]
        self._has_reward = "reward" in specs["reward"].keys()
        self._terminated = self._reader.terminated[..., None]
        self._truncated = self._reader.truncated[..., None]
        self._no_flag = np.zeros_like(self._terminated)
        flags = [(name,) for name in FLAGS]
        rewards = [("reward",)] if self._has_reward else []
        groups = group_sizes(observations)
        self._assemble_next = Assembler([*self._keys, *rewards, *flags], batch_size, device, groups)
        self._assemble_root = Assembler([*self._keys, *flags], batch_size, device, groups)
        self._objects = object_entries(
            env.observation_space, env.root_leaves, self._keys, observations, batch_size, device
        )
        self._moves = device is not None and device.type != "cpu"
        self._reward_dtype = options.reward_dtype if options.reward_dtype is torch.bfloat16 else None
        self._latest = [np.empty_like(array) for array in self._next]
        plain = not (self._objects or self._reward_dtype or self._marks)
        self._overlaps = getattr(engine, "overlaps", False) and plain
        self._blank: _Blank | None = None

    def on(self, device: torch.device) -> GymFace:
        """The same engine's face on another device."""
        return GymFace(self.engine, self.batch_size, device, *self.choices)

    @property
    def choices(self) -> tuple[GymFaceOptions, Selection, bool, bool]:
        """What it was made with beside engine, batch size and device."""
        return self._options, self._selection, self._copy, self._non_blocking

    @contextmanager
    def copying(self) -> Iterator[None]:
        """See :class:`EngineFace`."""
        before, self._copy = self._copy, True
        try:
            yield
        finally:
            self._copy = before

    def _reset_inputs(self, tensordict: TensorDictBase | None, mask: torch.Tensor | None) -> Any:
        return None

    def _step_inputs(self, tensordict: TensorDictBase, mask: torch.Tensor | None, ops: bytes) -> Any:
        return self._action_leaves(tensordict, ops)

    # ---------------------------------------------------------------- what is made while the envs are at work

    def step_and_maybe_reset(
        self, tensordict: TensorDictBase, mask: torch.Tensor | None
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """See :class:`EngineFace`; of workers, what they are to fill is made while they are at work."""
        try:
            return super().step_and_maybe_reset(tensordict, mask)
        finally:
            self._blank = None

    def _round(self, ops: bytes, inputs: Any, reset_kwargs: Sequence[Mapping[str, Any]] | None) -> Report:
        if ops == self._step_and_maybe_reset_all and self._overlaps and self._copy and not self._moves:
            engine: Any = self.engine
            report: Report = engine.run(ops, inputs, reset_kwargs, self._make_blank)
            return report
        return self.engine.run(ops, inputs, reset_kwargs)

    def _make_blank(self) -> None:
        self._blank = _Blank(self)

    def _step_and_root(self, tensordict: TensorDictBase, report: Report) -> tuple[TensorDictBase, TensorDictBase]:
        if self._blank is None:
            return super()._step_and_root(tensordict, report)
        blank = self._blank
        for own, array in zip(blank.next_arrays, self._next, strict=True):
            own[...] = array
        blank.reward[...] = self._reward
        blank.terminated[...] = self._terminated
        blank.truncated[...] = self._truncated
        np.logical_or(blank.terminated, blank.truncated, out=blank.done)
        self._reader.latest(blank.root_arrays)
        return blank.following, blank.root

    # ---------------------------------------------------------------- from the block to tensors

    def _next_of(self, tensordict: TensorDictBase, untouched: Rows | None, report: Report) -> TensorDict:
        """Observation and infos of the step, with reward and flags."""
        copied = (self._copy and not self._moves) or untouched is not None  # a move is a copy
        return self._outcome([array.copy() for array in self._next] if copied else self._next, tensordict, untouched)

    def _latest_of(self, tensordict: TensorDictBase, untouched: Rows | None, report: Report) -> TensorDict:
        return self._outcome(self._reader.latest(), tensordict, untouched)

    def _outcome(self, arrays: list[Array], tensordict: TensorDictBase, untouched: Rows | None) -> TensorDict:
        reward, terminated, truncated = self._reward.copy(), self._terminated.copy(), self._truncated.copy()
        if untouched is None:
            return self._assembled_next(arrays, reward, terminated, truncated)
        done = terminated | truncated
        rows = untouched.reshape(self.batch_size)
        self._put_own(arrays, tensordict, rows)
        for position in self._infos:
            arrays[position][rows] = None if arrays[position].dtype.hasobject else 0
        reward[rows] = 0
        self._put_own_flags((done, terminated, truncated), tensordict, rows)
        return self._assembled_next(arrays, reward, terminated, truncated, done)

    def _assembled_next(
        self, arrays: Sequence[Array], reward: Array, terminated: Array, truncated: Array, done: Array | None = None
    ) -> TensorDict:
        """What stands under ``"next"``, of arrays that are the caller's own; ``done`` follows from the other flags."""
        done = terminated | truncated if done is None else done
        rewards = [reward] if self._has_reward else []
        tensors = self._tensors([*arrays, *rewards, done, terminated, truncated])
        if self._reward_dtype is not None and self._has_reward:
            tensors[-4] = tensors[-4].to(self._reward_dtype)
        return self._assemble_next(tensors)

    def _root_of(
        self,
        tensordict: TensorDictBase | None,
        untouched: Rows | None,
        report: Report,
        following: TensorDictBase | None = None,
    ) -> TensorDict:
        arrays = self._reader.latest(None if self._copy else self._latest)
        flags = [self._no_flag.copy() for _ in FLAGS]
        if untouched is not None:
            rows = untouched.reshape(self.batch_size)
            self._put_own(arrays, tensordict, rows)
            self._put_own_flags(flags, tensordict, rows)
        return self._assemble_root(self._tensors([*arrays, *flags]))

    def _shows_all(self, tensordict: TensorDictBase) -> bool:
        return all(tensordict.get(key, None) is not None for key in self._keys)

    def _put_own(self, arrays: Sequence[Array], tensordict: TensorDictBase | None, rows: Array) -> None:
        """Puts into rows what td has for them, or their latest where it has nothing."""
        latest: list[Array] | None = None
        for position, key in enumerate(self._keys):
            own = None if tensordict is None else tensordict.get(key, None)
            if own is not None and position in self._objects:
                arrays[position][rows] = self._objects[position].array(own)[rows]
            elif own is None or own.shape != arrays[position].shape:
                latest = latest or self._reader.latest()
                arrays[position][rows] = latest[position][rows]
            else:
                arrays[position][rows] = own.detach().cpu().numpy()[rows]

    def _put_own_flags(self, flags: Sequence[Array], tensordict: TensorDictBase | None, rows: Array) -> None:
        """The same for ``done``, ``terminated`` and ``truncated``; an env's latest are those of its last step."""
        stepped = ~self._reader.in_root()[..., None]
        latest = {"terminated": self._terminated & stepped, "truncated": self._truncated & stepped}
        latest["done"] = latest["terminated"] | latest["truncated"]
        for name, flag in zip(FLAGS, flags, strict=True):
            own = None if tensordict is None else entry(tensordict, name)
            if own is None or own.shape != flag.shape:
                flag[rows] = latest[name][rows]
            else:
                flag[rows] = own.detach().cpu().numpy()[rows]

    def _tensors(self, arrays: Sequence[Array]) -> list[Any]:
        if not self._objects and not self._moves:  # the usual case
            return [_from_numpy(array) for array in arrays]
        plain = {at: _from_numpy(array) for at, array in enumerate(arrays) if at not in self._objects}
        moved: dict[int, Any] = dict(zip(plain, self._move([*plain.values()]), strict=True))
        return [moved[at] if at in moved else self._objects[at].entry(array) for at, array in enumerate(arrays)]


class _Blank:
    """What a step gives and the root after it, over arrays that are still to be filled."""

    def __init__(self, face: GymFace):
        self.next_arrays = [np.empty_like(array) for array in face._next]
        self.root_arrays = [np.empty_like(array) for array in face._next]
        self.reward = np.empty_like(face._reward)
        self.done, self.terminated, self.truncated = (np.empty_like(face._no_flag) for _ in FLAGS)
        rewards = [self.reward] if face._has_reward else []
        tensors = face._tensors([*self.next_arrays, *rewards, self.done, self.terminated, self.truncated])
        self.following = face._assemble_next(tensors)
        self.root = face._assemble_root(face._tensors([*self.root_arrays, *(face._no_flag.copy() for _ in FLAGS)]))


def batched_specs(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    batch_size: torch.Size,
    device: torch.device | None,
    options: GymFaceOptions,
    selection: Selection = ALL_KEYS,
) -> dict[str, Composite]:
    """The specs of a batch of envs of one kind, of each kind of spec one."""
    observations = observation_spec(observation_space, device=device, batch_size=batch_size)
    if options.info_spec is not None:
        observations.set("info", _batched_info_spec(options.info_spec, batch_size, device))
    action = space_to_spec(
        action_space,
        device=device,
        batch_size=batch_size,
        categorical_action_encoding=options.categorical_action_encoding,
    )
    actions = Composite({"action": action}, shape=batch_size, device=device)
    selection.require(actions)
    selection.require_known([*leaf_keys(actions), *leaf_keys(observations), ("reward",)])
    reward = Unbounded((*batch_size, 1), device=device, dtype=options.reward_dtype)
    flag = Binary(1, (*batch_size, 1), device=device, dtype=torch.bool)
    return {
        "observation": selection.of(observations),
        "action": actions,
        "reward": selection.of(Composite(reward=reward, shape=batch_size, device=device)),
        "done": Composite({name: flag.clone() for name in FLAGS}, shape=batch_size, device=device),
        "state": Composite(shape=batch_size, device=device),
    }


def object_entries(
    observation_space: gym.Space[Any],
    leaves: Sequence[Leaf],
    keys: Sequence[Key],
    batched: Composite,
    batch_size: torch.Size,
    device: torch.device | None,
) -> dict[int, ObjectEntries]:
    """Position of a leaf of objects among the keys -> what turns it into entries."""
    spaces = {leaf.key: leaf for leaf in observation_tree(observation_space).leaves}
    single = observation_spec(observation_space, device=device)
    entries = {}
    for leaf in leaves:
        if leaf.dtype.hasobject and leaf.key in keys:
            info = SpaceLeaf(leaf.key, gym.Space(), is_array=False)
            one = single[leaf.key] if leaf.key in spaces else NonTensor(())
            entries[keys.index(leaf.key)] = ObjectEntries(
                spaces.get(leaf.key, info), one, batched[leaf.key], batch_size
            )
    return entries


def _batched_info_spec(info_spec: Composite, batch_size: torch.Size, device: torch.device | None) -> Composite:
    """The infos' spec for a batch with, under ``"_mask"``, whether each was present."""
    spec = Composite(shape=batch_size, device=device)
    for key, leaf in entries_alone(info_spec).items(True, True):
        path = (key,) if isinstance(key, str) else key
        spec.set(path, leaf.expand((*batch_size, *leaf.shape)).to(device or "cpu"))
        spec.set(("_mask", *path), Unbounded(batch_size, device=device, dtype=torch.bool))
    return spec
