"""An engine of gymnasium envs seen as TensorDicts: its block's arrays on one side, the caller's tensors on the other.

All that depends on spaces, batch size and device alone is worked out when the face is made. On the way out each leaf is
copied once, so that what the caller gets is the caller's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.error import ResetNeeded
from tensordict import TensorDict, TensorDictBase

from gymbridge.engine.codes import Op, RowState, Source
from gymbridge.engine.failures import fail_rows, raise_env_error, why_not_stepped
from gymbridge.engine.gym_host import GymEnvDescription, GymHostOptions
from gymbridge.engine.host import NOTHING, Engine, Report
from gymbridge.engine.reader import BlockReader
from gymbridge.envs.action_rows import TensorDictActionRows
from gymbridge.envs.env_specs import FLAGS
from gymbridge.envs.info_specs import info_leaves
from gymbridge.envs.inputs import require_like
from gymbridge.envs.object_entries import ObjectEntries
from gymbridge.envs.tensordicts import Assembler, entry
from gymbridge.envs.transitions import put_first, put_next
from gymbridge.reward_dtypes import block_dtype_of_reward
from gymbridge.spaces.conversion import observation_spec, space_to_spec
from gymbridge.spaces.naming import SpaceLeaf, observation_tree
from gymbridge.specs import Composite, NonTensor, Unbounded

__all__ = ["EngineFace", "FaceOptions"]

Array: TypeAlias = npt.NDArray[Any]

_from_numpy = torch.from_numpy
Key: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class FaceOptions:
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


class EngineFace:
    """Reset and step of an engine, TensorDict in and out.

    Args:
        engine: the engine, with its block allocated.
        batch_size: ``[N]``, or ``[]`` for an engine of one env that is to look like one.
        device: where what is returned is to be; None for the CPU, without saying so.
        options: how the envs look; the engine's hosts run them with ``options.host``.
    """

    def __init__(
        self,
        engine: Engine[GymEnvDescription],
        batch_size: torch.Size,
        device: torch.device | None,
        options: FaceOptions,
    ):
        env = engine.descriptions[0]
        self.engine = engine
        self.batch_size = batch_size
        self._device = device
        self._options = options
        info_spec, reward_dtype = options.info_spec, options.reward_dtype
        self.observation_spec = observation_spec(env.observation_space, device=device, batch_size=batch_size)
        if info_spec is not None:
            self.observation_spec.set("info", _batched_info_spec(info_spec, batch_size, device))
        self.action_spec = space_to_spec(
            env.action_space,
            device=device,
            batch_size=batch_size,
            categorical_action_encoding=options.categorical_action_encoding,
        )
        self.reward_spec = Unbounded((*batch_size, 1), device=device, dtype=reward_dtype)
        self._action_rows = TensorDictActionRows(
            env.action_space, self.action_spec, batch_size, options.categorical_action_encoding
        )

        block = engine.block
        self._block = block
        self._keys = tuple(leaf.key for leaf in env.root_leaves)
        self._infos = tuple(i for i, key in enumerate(self._keys) if key[0] == "info")
        self._reader = BlockReader(block, self._keys, batch_size)
        self._next = self._reader.next
        self._reward = self._reader.reward[..., None]
        self._terminated = self._reader.terminated[..., None]
        self._truncated = self._reader.truncated[..., None]
        self._no_flag = np.zeros_like(self._terminated)
        flag_spec = Unbounded((*batch_size, 1), dtype=torch.bool)
        self._own = [*self.observation_spec.items(True, True), *((name, flag_spec) for name in FLAGS)]
        flags = [(name,) for name in FLAGS]
        groups = _groups(self.observation_spec)
        self._assemble_next = Assembler([*self._keys, ("reward",), *flags], batch_size, device, groups)
        self._assemble_root = Assembler([*self._keys, *flags], batch_size, device, groups)
        self._objects = _object_entries(env, self.observation_spec, batch_size, device)
        self._moves = device is not None and device.type != "cpu"
        self._reward_dtype = reward_dtype if reward_dtype is torch.bfloat16 else None

        num_rows = engine.num_envs
        self._reset_all = bytes([Op.RESET]) * num_rows
        self._step_all = bytes([Op.STEP]) * num_rows
        self._step_and_maybe_reset_all = bytes([Op.STEP_MAYBE_RESET]) * num_rows
        self._all_running = bytes([RowState.RUNNING]) * num_rows
        self._no_actions = [None] * num_rows
        self.partial: TensorDictBase | None = None
        """What the last call in which an env raised would have returned."""
        self._ops_run = b""

    def on(self, device: torch.device) -> EngineFace:
        """The same engine's face on another device."""
        return EngineFace(self.engine, self.batch_size, device, self._options)

    # ---------------------------------------------------------------- reset and step

    def reset(
        self,
        tensordict: TensorDictBase | None,
        mask: torch.Tensor | None,
        reset_kwargs: Sequence[Mapping[str, Any]],
    ) -> TensorDict:
        """Resets the rows that the mask picks: observation, infos and flags of all rows."""
        ops, idle = _picked(self._reset_all, mask)
        if idle is not None:
            self._require_own(tensordict)
            self._require_observations(tensordict, ops)
        self._ops_run = ops
        report = self.engine.run(ops, self._no_actions, reset_kwargs)
        try:
            first = self._root_of(tensordict, self._untouched(idle, report))
        except BaseException:  # an interrupt or no memory: the caller does not see what the envs did
            fail_rows(self._block.state, ops)
            raise
        if report.errors:
            self._fail(first if tensordict is None else put_first(tensordict, first), report)
        return first

    def step(self, tensordict: TensorDictBase, mask: torch.Tensor | None) -> TensorDict:
        """Steps the rows that the mask picks: what stands under ``"next"``."""
        ops, idle = _picked(self._step_all, mask)
        if idle is not None:
            self._require_own(tensordict)
        report = self._run(tensordict, ops)
        try:
            following = self._next_of(tensordict, self._untouched(idle, report))
        except BaseException:
            fail_rows(self._block.state, ops)
            raise
        if report.errors:
            self._fail(put_next(tensordict.copy(), following, entry(tensordict, "next")), report)
        return following

    def step_and_maybe_reset(
        self,
        tensordict: TensorDictBase,
        mask: torch.Tensor | None,
        reset_kwargs: Sequence[Mapping[str, Any]] | None,
    ) -> tuple[TensorDict, TensorDict]:
        """Steps the rows that the mask picks and resets those that ended: ``next``, and the root after it."""
        ops, idle = _picked(self._step_and_maybe_reset_all, mask)
        if idle is not None:
            self._require_own(tensordict)
        report = self._run(tensordict, ops, reset_kwargs)
        try:
            untouched = self._untouched(idle, report)
            following = self._next_of(tensordict, untouched)
            root = self._root_of(tensordict, untouched)
        except BaseException:
            fail_rows(self._block.state, ops)
            raise
        if report.errors:
            self._fail(put_next(tensordict.copy(), following, entry(tensordict, "next")), report)
        return following, root

    def step_or_reset(
        self, tensordict: TensorDictBase, resets: torch.Tensor, reset_kwargs: Sequence[Mapping[str, Any]]
    ) -> TensorDict:
        """Resets the rows that ``resets`` picks and steps the others, in one round: what each row shows then."""
        ops = np.where(resets.numpy().ravel(), np.uint8(Op.RESET), np.uint8(Op.STEP)).tobytes()
        report = self._run(tensordict, ops, reset_kwargs)
        try:
            shown = self._next_of(tensordict, self._untouched(None, report), self._reader.latest())
        except BaseException:
            fail_rows(self._block.state, ops)
            raise
        if report.errors:
            self._fail(put_next(tensordict.copy(), shown, entry(tensordict, "next")), report)
        return shown

    def _run(
        self, tensordict: TensorDictBase, ops: bytes, reset_kwargs: Sequence[Mapping[str, Any]] | None = None
    ) -> Report:
        states = bytes(self._block.state)
        if states != self._all_running:
            _require_running(ops, states)
        if not any(ops):
            return NOTHING
        actions = self._action_rows(tensordict, ops)
        self._ops_run = ops
        return self.engine.run(ops, actions, reset_kwargs)

    def take_rows_reset(self) -> list[int]:
        """The rows that the last round has reset; none when asked again."""
        ops, self._ops_run = self._ops_run, b""
        state, source = self._block.state, self._block.source
        return [
            row for row, op in enumerate(ops) if op and state[row] == RowState.RUNNING and source[row] == Source.ROOT
        ]

    def _untouched(self, idle: Array | None, report: Report) -> Array | None:
        """The rows that show what they showed before: the idle ones, and those that raised."""
        if not report.errors:
            return idle
        untouched = self._reader.failed(report)
        return untouched if idle is None else untouched | idle

    def _fail(self, result: TensorDictBase, report: Report) -> None:
        """Keeps what the other envs gave and raises what an env raised."""
        self.partial = result.set("_failed", torch.from_numpy(self._reader.failed(report)))
        raise_env_error(report.errors)

    # ---------------------------------------------------------------- from the block to tensors

    def _next_of(
        self, tensordict: TensorDictBase, untouched: Array | None, arrays: list[Array] | None = None
    ) -> TensorDict:
        """Observation and infos, those of the step unless other arrays are given, with reward and flags."""
        arrays = [array.copy() for array in self._next] if arrays is None else arrays
        reward, terminated, truncated = self._reward.copy(), self._terminated.copy(), self._truncated.copy()
        done = terminated | truncated
        if untouched is not None:
            self._put_own(arrays, tensordict, untouched)
            for position in self._infos:
                arrays[position][untouched] = None if arrays[position].dtype.hasobject else 0
            reward[untouched] = 0
            self._put_own_flags((done, terminated, truncated), tensordict, untouched)
        tensors = self._tensors([*arrays, reward, done, terminated, truncated])
        if self._reward_dtype is not None:
            tensors[-4] = tensors[-4].to(self._reward_dtype)
        return self._assemble_next(tensors)

    def _root_of(self, tensordict: TensorDictBase | None, untouched: Array | None) -> TensorDict:
        arrays = self._reader.latest()
        flags = [self._no_flag.copy() for _ in FLAGS]
        if untouched is not None:
            self._put_own(arrays, tensordict, untouched)
            self._put_own_flags(flags, tensordict, untouched)
        return self._assemble_root(self._tensors([*arrays, *flags]))

    def _require_own(self, tensordict: TensorDictBase | None) -> None:
        """Refuses observations and flags that rows which are not picked could not keep."""
        if tensordict is not None:
            for key, spec in self._own:
                value = tensordict.get(key, None)
                if value is not None:
                    require_like(key, value, spec, tensordict)

    def _require_observations(self, tensordict: TensorDictBase | None, ops: bytes) -> None:
        """Refuses to show an env that has never been reset and of which td shows nothing."""
        new = [row for row, state in enumerate(bytes(self._block.state)) if state == RowState.NEW and not ops[row]]
        given = tensordict is not None and all(tensordict.get(key, None) is not None for key in self._keys)
        if new and not given:
            raise ResetNeeded(f"_reset leaves out envs {new}, which have never been reset: reset them too")

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
        if self._objects:
            return [
                self._objects[position].entry(array)
                if position in self._objects
                else _from_numpy(array).to(self._device or "cpu")
                for position, array in enumerate(arrays)
            ]
        return [_from_numpy(array).to(self._device) for array in arrays]


def _object_entries(
    env: GymEnvDescription, batched: Composite, batch_size: torch.Size, device: torch.device | None
) -> dict[int, ObjectEntries]:
    """Position of a leaf of objects among the env's leaves -> what turns them into entries."""
    spaces = {leaf.key: leaf for leaf in observation_tree(env.observation_space).leaves}
    single = observation_spec(env.observation_space, device=device)
    entries = {}
    for position, leaf in enumerate(env.root_leaves):
        if leaf.dtype.hasobject:
            info = SpaceLeaf(leaf.key, gym.Space(), is_array=False)
            one = single[leaf.key] if leaf.key in spaces else NonTensor(())
            entries[position] = ObjectEntries(spaces.get(leaf.key, info), one, batched[leaf.key], batch_size)
    return entries


def _groups(spec: Composite) -> list[Key]:
    """The keys of a spec's nested groups, empty ones too."""
    keys = [(key,) if isinstance(key, str) else key for key in spec.keys(include_nested=True)]
    return [key for key in keys if isinstance(spec[key], Composite)]


def _batched_info_spec(info_spec: Composite, batch_size: torch.Size, device: torch.device | None) -> Composite:
    """The infos' spec for a batch with, under ``"_mask"``, whether each was present."""
    spec = Composite(shape=batch_size, device=device)
    for key, leaf in info_spec.items(True, True):
        path = (key,) if isinstance(key, str) else key
        spec.set(path, leaf.expand((*batch_size, *leaf.shape)).to(device or "cpu"))
        spec.set(("_mask", *path), Unbounded(batch_size, device=device, dtype=torch.bool))
    return spec


def _picked(ops: bytes, mask: torch.Tensor | None) -> tuple[bytes, Array | None]:
    """The ops of the rows that the mask picks, ``IDLE`` for the others; and which the others are."""
    if mask is None:
        return ops, None
    picked = mask.numpy()
    return (np.frombuffer(ops, np.uint8) * picked.ravel()).tobytes(), ~picked


def _require_running(ops: bytes, states: bytes) -> None:
    """Refuses to step an env that is not in an episode.

    Raises:
        ResetNeeded: naming the envs and why each needs a reset.
    """
    refused = [row for row, op in enumerate(ops) if op >= Op.STEP and states[row] != RowState.RUNNING]
    if refused:
        raise ResetNeeded(f"{why_not_stepped(states, refused)}: reset them before they are stepped")
