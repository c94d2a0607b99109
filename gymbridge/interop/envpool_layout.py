"""Where everything of an EnvPool env stands: in the arrays that EnvPool gives and takes, and in a TensorDict.

Nothing here needs EnvPool itself: what it says of an env is read, and its arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase

from gymbridge.engine.codes import Op
from gymbridge.engine.layout import Leaf
from gymbridge.envs.action_leaves import TensorDictActionLeaves
from gymbridge.envs.done_groups import FLAGS
from gymbridge.envs.gym_face import GymFaceOptions, batched_specs
from gymbridge.envs.inputs import require_like
from gymbridge.envs.spec_keys import group_sizes
from gymbridge.envs.tensordicts import Assembler, entry, leaf_paths
from gymbridge.errors import EnvOutputError, UnsupportedSpaceError
from gymbridge.spaces.naming import observation_tree
from gymbridge.specs import Composite, Unbounded

__all__ = ["Chunk", "EnvPoolLayout", "Part", "gathered", "put_rows"]

Array: TypeAlias = npt.NDArray[Any]
Ids: TypeAlias = npt.NDArray[np.int32]
Key: TypeAlias = tuple[str, ...]

PLAYERS = "players"
"""The group of what each player of an env has, where there are several."""

_STEP = int(Op.STEP)
_TRUE = b"\x01"


class Chunk(NamedTuple):
    """What EnvPool gave of some envs: arrays with a row an env.

    Attributes:
        ids: the envs.
        shown: observations and infos, a column a leaf.
        rewards: of each env, or each of its players.
        done: which ended their episode.
        truncated: which of these were cut off.
        any_done: whether one ended.
    """

    ids: Ids
    shown: list[Array]
    rewards: Array
    done: Array
    truncated: Array
    any_done: bool

    @classmethod
    def of(cls, ids: Ids, columns: list[Array]) -> Chunk:
        """Of the columns, the last three of which are rewards, EnvPool's ``done`` and ``trunc``."""
        *shown, rewards, done, truncated = columns
        ended = done | truncated
        return cls(ids, shown, rewards, ended, truncated, _TRUE in ended.tobytes())  # a tenth of what any() takes

    @property
    def columns(self) -> list[Array]:
        """All of them."""
        return [*self.shown, self.rewards, self.done, self.truncated]

    def copied(self) -> Chunk:
        """With ``shown`` of its own."""
        return self._replace(shown=[column.copy() for column in self.shown])

    def with_begun(self, begun: Chunk) -> Chunk:
        """With what envs began with that were reset; ``shown`` is changed in place."""
        for whole, column in zip(self.shown, begun.shown, strict=True):
            whole[begun.ids] = column
        done, truncated = self.done.copy(), self.truncated.copy()
        done[begun.ids] = truncated[begun.ids] = False
        return self._replace(done=done, truncated=truncated)


Part: TypeAlias = tuple[Chunk, int]
"""A row of a chunk."""


class _State(NamedTuple):
    """One of EnvPool's arrays, and what is made of it.

    Attributes:
        at: its position among them.
        key: of the leaf.
        shape: of a row of it, or of a player's.
        dtype: what it is cast to; None to leave it.
        has_players: it has a row a player.
    """

    at: int
    key: Key
    shape: tuple[int, ...]
    dtype: Any
    has_players: bool


class EnvPoolLayout:
    """What an EnvPool env looks like as a TensorDict env, and what turns the one into the other.

    Args:
        spec: what EnvPool says of the env: its ``env.spec``.
        device: of the specs, and of what is made; None for the CPU, without saying so.
        categorical_action_encoding, reward_dtype: see :class:`~gymbridge.envs.GymEnv`.
        info: None, ``"auto"`` for all infos, or a ``Composite`` of those to keep.

    Attributes:
        num_envs: ``N``.
        device: as it was given.
        num_players: players of an env; more than 1 have their own observations and rewards, under ``"players"``.
        specs: the specs of the batch, of each kind one.

    Raises:
        UnsupportedSpaceError: an env whose actions are several arrays.
        ValueError, TypeError: an ``info`` that the env has not, or a ``reward_dtype`` that is none.
    """

    def __init__(
        self,
        spec: Any,
        *,
        device: torch.device | None = None,
        categorical_action_encoding: bool = True,
        info: Composite | Literal["auto"] | None = None,
        reward_dtype: torch.dtype = torch.float32,
    ):
        self.num_envs = int(spec.config.num_envs)
        self.num_players = int(spec.config.max_num_players)
        states: dict[str, Any] = spec.state_array_spec
        names = [*states]
        self._ids, self._player_ids = names.index("info:env_id"), names.index("info:players.env_id")
        infos = _infos(names, states)
        options = GymFaceOptions(
            categorical_action_encoding=categorical_action_encoding,
            info_spec=_all_infos(infos, self.num_players) if isinstance(info, str) and info == "auto" else info,
            reward_dtype=reward_dtype,
        )
        self._options, self.device = options, device
        self._observation_space = _with_true_bounds(spec.observation_space)
        self._action_name, self._action_space, action = _action_of(spec)
        order = [("env_id", "players.env_id", self._action_name).index(name) for name in spec.action_array_spec]
        self._order = None if order == [0, 1, 2] else order
        self._action_dtype = np.dtype(action.dtype)
        self._acts_by_player = self.num_players > 1 and self._action_name.startswith(f"{PLAYERS}.")

        self._states = self._observation_states(names, states)
        self._states += [_info_state(leaf, infos, self.num_players) for leaf in options.host.info_leaves]
        self._num_shown = len(self._states)
        for name in ("reward", "done", "trunc"):
            shape = tuple(states[name].shape)
            self._states.append(_State(names.index(name), (name,), (), None, shape[:1] == (-1,)))
        given = [*states.values()]
        self._dtypes = [np.dtype(given[each.at].dtype if each.dtype is None else each.dtype) for each in self._states]
        self._given_shapes = [tuple(size for size in given[each.at].shape if size != -1) for each in self._states]
        self._plain = None if self.num_players > 1 else self._plain_picks()
        self.specs = self._make_specs((self.num_envs,))
        self._forms: dict[int, _Form] = {}

    # ---------------------------------------------------------------- what there is

    def _observation_states(self, names: Sequence[str], states: Mapping[str, Any]) -> list[_State]:
        tree = observation_tree(self._observation_space)
        own = [at for at, name in enumerate(names) if name.partition(":")[0] == "obs"]
        if tree.is_leaf:
            positions: list[Any] = own
        else:
            positions = tree.flatten(_nested({_path(names[at])[1:]: at for at in own}))
        made = []
        for leaf, at in zip(tree.leaves, positions, strict=True):
            given = states[names[at]]
            has_players = tuple(given.shape)[:1] == (-1,)
            key = (PLAYERS, *leaf.key) if has_players and self.num_players > 1 else leaf.key
            cast = None if leaf.dtype == given.dtype else leaf.dtype
            made.append(_State(at, key, tuple(leaf.shape), cast, has_players))
        return made

    def _plain_picks(self) -> list[tuple[int, tuple[int, ...] | None, Any]]:
        """Position, shape of a row where EnvPool's is another, and dtype where it is another."""
        return [
            (state.at, None if shape == state.shape else state.shape, state.dtype)
            for state, shape in zip(self._states, self._given_shapes, strict=True)
        ]

    def _make_specs(self, size: tuple[int, ...]) -> dict[str, Composite]:
        """The specs of a batch of this size."""
        batch_size, device = torch.Size(size), self.device
        if self.num_players == 1:
            spaces = self._observation_space, self._action_space
            return batched_specs(*spaces, batch_size, device, self._options)
        # of each player, and without infos, which keep the env's batch size
        one_each = replace(self._options, info_spec=None)
        of_players = batched_specs(
            self._observation_space, self._action_space, torch.Size((*size, self.num_players)), device, one_each
        )
        of_envs = batched_specs(self._observation_space, self._action_space, batch_size, device, self._options)
        shown, own = of_players["observation"], of_envs["observation"]
        group = Composite(shape=(*size, self.num_players), device=device)
        observations = Composite(shape=batch_size, device=device)
        for state in self._states[: self._num_shown]:
            if state.key[0] == PLAYERS:
                group.set(state.key[1:], shown[state.key[1:]])
            elif state.key[0] != "info":
                observations.set(state.key, own[state.key])
        observations.set(PLAYERS, group)
        if "info" in own.keys():
            observations.set("info", own["info"])
        reward = Unbounded((*size, self.num_players, 1), device=device, dtype=self._options.reward_dtype)
        return {
            "observation": observations,
            "action": _in_group(of_players["action"], batch_size, device)
            if self._acts_by_player
            else of_envs["action"],
            "reward": _in_group(
                Composite(reward=reward, shape=(*size, self.num_players), device=device), batch_size, device
            ),
            "done": of_envs["done"],
            "state": of_envs["state"],
        }

    # ---------------------------------------------------------------- what EnvPool gave

    def chunk(self, states: Sequence[Array], *, ordered: bool) -> Chunk:
        """What EnvPool gave, a row an env.

        Args:
            states: EnvPool's arrays.
            ordered: the rows are in the order of what was sent, and may stay so; else they are put in that of the envs.

        Raises:
            EnvOutputError: an env with another number of players than it is to have.
        """
        ids = states[self._ids]
        if self._plain is None:
            return self._chunk_of_players(ids, states)
        columns = []
        for at, shape, dtype in self._plain:
            array = states[at]
            if shape is not None:
                array = array.reshape((len(array), *shape))
            columns.append(array if dtype is None else array.astype(dtype))
        if ordered or _are_sorted(ids.tolist()):
            return Chunk.of(ids, columns)
        order = np.argsort(ids)
        return Chunk.of(ids[order], [column[order] for column in columns])

    def _chunk_of_players(self, ids: Ids, states: Sequence[Array]) -> Chunk:
        owners, num_envs = states[self._player_ids], len(ids)
        by_env, by_player = np.argsort(ids), np.argsort(owners, kind="stable")
        if not np.array_equal(owners[by_player], np.repeat(ids[by_env], self.num_players)):
            raise EnvOutputError(
                f"players: got the players of envs {owners.tolist()}, expected {self.num_players} of each of "
                f"{ids.tolist()}"
            )
        columns = []
        for state in self._states:
            array = states[state.at]
            if state.has_players:
                array = array[by_player].reshape((num_envs, self.num_players, *state.shape))
            else:
                array = array[by_env].reshape((num_envs, *state.shape))
            columns.append(array if state.dtype is None else array.astype(state.dtype))
        return Chunk.of(ids[by_env], columns)

    def columns(self, num_rows: int) -> list[tuple[tuple[int, ...], Any]]:
        """Shape and dtype of the column of each leaf that so many envs show, and of the rewards."""
        made = []
        for state, dtype in zip(self._states[:-2], self._dtypes, strict=False):
            players = (self.num_players,) if state.has_players and self.num_players > 1 else ()
            made.append(((num_rows, *players, *state.shape), dtype))
        return made

    def places(self, num_rows: int) -> list[tuple[tuple[int, ...] | None, int]]:
        """The shape of these columns where EnvPool's is another, and their position among its arrays."""
        made: list[tuple[tuple[int, ...] | None, int]] = []
        for state, given in zip(self._states[:-2], self._given_shapes, strict=False):
            made.append((None if given == state.shape else (num_rows, *state.shape), state.at))
        return made

    def ends(self, states: Sequence[Array]) -> tuple[Array, Array] | None:
        """EnvPool's ``done``, of whatever kind, and ``trunc``; None where no env ended its episode."""
        done, truncated = states[self._states[-2].at], states[self._states[-1].at]
        if _TRUE in done.tobytes() or _TRUE in truncated.tobytes():  # a tenth of what any() takes
            return done | truncated, truncated
        return None

    def form(self, num_rows: int) -> _Form:
        """What makes the TensorDicts of so many envs, and takes their actions."""
        if num_rows not in self._forms:
            self._forms[num_rows] = _Form(self, num_rows)
        return self._forms[num_rows]

    def sent(self, ids: Ids, actions: Array) -> list[Array]:
        """What EnvPool is sent, to step envs with these actions."""
        players = np.repeat(ids, self.num_players) if self._acts_by_player else ids
        arrays = [ids, players, actions]
        return arrays if self._order is None else [arrays[at] for at in self._order]

    def to(self, device: torch.device | None) -> None:
        """Has what is made from now on be on a device; the specs stay where they are."""
        self.device = device
        self._forms.clear()

    def spread(self, chunk: Chunk) -> Chunk:
        """The columns of all envs, zeros where the chunk has none."""
        columns = [np.zeros((self.num_envs, *column.shape[1:]), column.dtype) for column in chunk.columns]
        for whole, column in zip(columns, chunk.columns, strict=True):
            whole[chunk.ids] = column
        return Chunk.of(np.arange(self.num_envs, dtype=np.int32), columns)


class _Form:
    """The TensorDicts of so many envs of one layout.

    Attributes:
        keys: of the leaves that an env shows: observations and infos.
        places: for each of these columns twice, and the rewards once, the shape that it has here where EnvPool's is
            another, and its position among EnvPool's arrays.
        columns: shape and dtype of the column of each leaf that an env shows, and of the rewards.
        reward_dtype: that of the rewards, None where it is EnvPool's.
        is_on_cpu: they are made on the CPU, and not moved.
    """

    def __init__(self, layout: EnvPoolLayout, num_rows: int):
        self._layout = layout
        specs = layout._make_specs((num_rows,))
        batch_size = torch.Size((num_rows,))
        self.keys: list[Key] = []
        self._has_masks: list[bool] = []
        for state in layout._states[: layout._num_shown]:
            self.keys.append(state.key)
            self._has_masks.append(state.key[0] == "info")
            if state.key[0] == "info":
                self.keys.append(("info", "_mask", *state.key[1:]))
        self.columns = layout.columns(num_rows)
        shown = layout.places(num_rows)
        self.places = [*shown[:-1], *shown]
        self._any_masks = any(self._has_masks)
        self._num_rows = num_rows
        self._flag_shape = (num_rows, 1)
        self.reward_dtype = None if layout._options.reward_dtype is torch.float32 else layout._options.reward_dtype
        reward = (PLAYERS, "reward") if layout.num_players > 1 else ("reward",)
        groups = group_sizes(specs["observation"]) | group_sizes(specs["reward"])
        device = layout.device
        self.is_on_cpu = device is None or device.type == "cpu"
        made_on = device if self.is_on_cpu else None
        self._root = Assembler([*self.keys, *((name,) for name in FLAGS)], batch_size, made_on, groups)
        self._next = Assembler([*self.keys, reward, *((name,) for name in FLAGS)], batch_size, made_on, groups)
        rows = torch.Size((num_rows, layout.num_players)) if layout._acts_by_player else batch_size
        action = specs["action"][PLAYERS, "action"] if layout._acts_by_player else specs["action"]["action"]
        self._action_spec = action
        self._actions = TensorDictActionLeaves(
            layout._action_space, action, rows, layout._options.categorical_action_encoding
        )
        one_hot = not layout._options.categorical_action_encoding
        self._plain_action = None if layout._acts_by_player or one_hot else (action.shape, action.dtype)
        self._steps = bytes([_STEP]) * rows.numel()

    def actions(self, tensordict: TensorDictBase, rows: Ids | None = None) -> Array:
        """The actions as EnvPool takes them, of all rows or of these.

        Raises:
            KeyError, ValueError, TypeError, SpecError: see :class:`TensorDictActionLeaves`.
        """
        layout, ops = self._layout, self._steps
        if self._plain_action is not None and rows is None:  # the usual case
            value = entry(tensordict, "action")
            shape, dtype = self._plain_action
            if type(value) is torch.Tensor and value.shape == shape and value.dtype is dtype and not value.is_cuda:
                value = value.detach() if value.requires_grad else value
                return np.ascontiguousarray(value.numpy(), layout._action_dtype)
        given: Any = tensordict
        if layout._acts_by_player:
            given = entry(tensordict, PLAYERS)
            if given is None:
                raise KeyError(f"{PLAYERS}.action: missing, expected an action of each player")
            require_like((PLAYERS, "action"), entry(given, "action"), self._action_spec, given)
        if rows is not None:
            stepped = np.zeros((self._num_rows, layout.num_players if layout._acts_by_player else 1), np.uint8)
            stepped[rows] = _STEP
            ops = stepped.tobytes()
        [actions] = self._actions(given, ops)
        if layout._acts_by_player:
            actions = actions.reshape((self._num_rows, layout.num_players, *actions.shape[1:]))
        if rows is not None:
            actions = actions[rows]
        if layout._acts_by_player:
            actions = actions.reshape((-1, *actions.shape[2:]))
        return np.ascontiguousarray(actions, layout._action_dtype)

    def root(self, chunk: Chunk) -> TensorDict:
        """What a reset gave, or what stands in the root after a step where no env is done."""
        return self.moved(self.root_of(chunk.shown, self.no_flags()))

    def following(self, chunk: Chunk) -> TensorDict:
        """What stands under ``"next"`` after a step."""
        reward = torch.from_numpy(chunk.rewards[..., None])
        reward = reward if self.reward_dtype is None else reward.to(self.reward_dtype)
        made = self.next_of(chunk.shown, reward, self.no_flags())
        if chunk.any_done:
            for name, flag in zip(FLAGS, (chunk.done, chunk.done & ~chunk.truncated, chunk.truncated), strict=True):
                entry(made, name).numpy()[:, 0] = flag
        return self.moved(made)

    def root_of(self, shown: Sequence[Array], flags: Sequence[torch.Tensor]) -> TensorDict:
        """A root over these columns and flags, on the CPU."""
        return self._root([*self._shown(shown), *flags])

    def next_of(self, shown: Sequence[Array], reward: torch.Tensor, flags: Sequence[torch.Tensor]) -> TensorDict:
        """The same with the reward."""
        return self._next([*self._shown(shown), reward, *flags])

    def no_flags(self, num_sets: int = 1) -> list[torch.Tensor]:
        """The three flags, all False, so many times.

        They are no views of one tensor: autograd would take a change of one for a change of all.
        """
        return [*map(torch.from_numpy, self.flag_arrays(num_sets))]

    def flag_arrays(self, num_sets: int) -> Array:
        """The same as one array."""
        return np.zeros((num_sets * len(FLAGS), *self._flag_shape), np.bool_)

    def moved(self, made: TensorDict) -> TensorDict:
        """On the device where it is to be."""
        return made if self.is_on_cpu else made.to(self._layout.device)

    def _shown(self, columns: Sequence[Array]) -> list[torch.Tensor]:
        """Observations and infos, a tensor a key."""
        if not self._any_masks:
            return [torch.from_numpy(column) for column in columns]
        tensors = []
        for column, has_mask in zip(columns, self._has_masks, strict=True):
            tensors.append(torch.from_numpy(column))
            if has_mask:  # EnvPool gives every info with every state
                tensors.append(torch.ones(self._num_rows, dtype=torch.bool))
        return tensors


class Blank:
    """What a step of all envs gives, over arrays that are still to be filled; for envs of one player.

    Between the end of a step and the beginning of the next one EnvPool's threads go to sleep soon, and to wake them
    takes longer than all that is done here. So this is made while EnvPool is at work, and as little as can be is left
    to be done afterwards.

    Attributes:
        following: what stands under ``"next"``.
        root: the root after the step.
    """

    def __init__(self, form: _Form):
        self._form = form
        *kinds, (reward_shape, reward_dtype) = form.columns
        columns = [np.empty(shape, dtype) for shape, dtype in kinds]
        self._root = [np.empty(shape, dtype) for shape, dtype in kinds]
        rewards = np.empty(reward_shape, reward_dtype)
        reward = self._rewards = torch.from_numpy(rewards[..., None])
        if form.reward_dtype is not None:
            reward = torch.empty(reward.shape, dtype=form.reward_dtype)
        self._cast = reward
        self._flags = form.flag_arrays(2)
        flags = [*map(torch.from_numpy, self._flags)]
        self.following = form.next_of(columns, reward, flags[:3])
        self.root = form.root_of(self._root, flags[3:])
        self._arrays = [*columns, *self._root, rewards]

    def fill(self, states: Sequence[Array]) -> None:
        """Writes what EnvPool gave, but for the flags."""
        for array, (shape, at) in zip(self._arrays, self._form.places, strict=True):
            array[...] = states[at] if shape is None else states[at].reshape(shape)
        if self._cast is not self._rewards:
            self._cast.copy_(self._rewards)

    def end(self, done: Array, truncated: Array) -> None:
        """Writes the flags of a step in which envs ended their episode."""
        flags = self._flags
        flags[0, :, 0], flags[1, :, 0], flags[2, :, 0] = done, done & ~truncated, truncated

    def begin(self, ids: Ids, states: Sequence[Array]) -> None:
        """Writes what envs that were reset begin with, as EnvPool gave it, into their rows of the root."""
        for whole, (shape, at) in zip(self._root, self._form.places, strict=False):
            whole[ids] = states[at] if shape is None else states[at].reshape((len(ids), *shape[1:]))


def gathered(parts: Sequence[Part]) -> Chunk:
    """Rows of chunks, as one in this order.

    Example:
        >>> done = np.array([False, False])
        >>> first = Chunk.of(np.array([0, 2], np.int32), [np.array([1.0, 2.0]), np.array([0.0, 0.0]), done, done])
        >>> other = Chunk.of(np.array([1], np.int32), [np.array([3.0]), np.array([0.0]), done[:1], done[:1]])
        >>> gathered([(first, 0), (other, 0), (first, 1)]).shown
        [array([1., 3., 2.])]
    """
    first = parts[0][0]
    chunks = {id(chunk): chunk for chunk, _ in parts}
    if len(chunks) == 1:
        positions = [at for _, at in parts]
        if positions == [*range(len(first.ids))]:
            return first
        return Chunk.of(first.ids[positions], [column[positions] for column in first.columns])
    ids = np.empty(len(parts), np.int32)
    columns = [np.empty((len(parts), *column.shape[1:]), column.dtype) for column in first.columns]
    for number, chunk in chunks.items():
        rows = [row for row, (own, _) in enumerate(parts) if id(own) == number]
        positions = [parts[row][1] for row in rows]
        ids[rows] = chunk.ids[positions]
        for whole, column in zip(columns, chunk.columns, strict=True):
            whole[rows] = column[positions]
    return Chunk.of(ids, columns)


def _are_sorted(ids: list[int]) -> bool:
    return ids == sorted(ids)


def put_rows(tensordict: TensorDictBase, rows: Sequence[int] | Ids, begun: TensorDictBase) -> None:
    """Writes what some envs began with into their rows, in place.

    Example:
        >>> td = TensorDict(x=torch.zeros(3), batch_size=[3])
        >>> put_rows(td, [2], TensorDict(x=torch.ones(1), batch_size=[1]))
        >>> td["x"]
        tensor([0., 0., 1.])
    """
    index = torch.as_tensor(rows, dtype=torch.int64)
    for key in leaf_paths(begun):
        whole = tensordict.get(key)
        whole[index.to(whole.device)] = begun.get(key)


class _Info(NamedTuple):
    """An info that EnvPool gives: where, the shape of an array's rows, whether a row is a player's, and its dtype."""

    at: int
    shape: tuple[int, ...]
    has_players: bool
    dtype: Any

    def shape_in(self, num_players: int) -> tuple[int, ...]:
        """The shape that it has in an env."""
        return (num_players, *self.shape) if self.has_players and num_players > 1 else self.shape


def _infos(names: Sequence[str], states: Mapping[str, Any]) -> dict[Key, _Info]:
    """The infos that EnvPool's gymnasium API has, by their path."""
    found = {}
    for at, name in enumerate(names):
        if name != "elapsed_step" and name.partition(":")[0] != "info":
            continue
        path = (name,) if name == "elapsed_step" else _path(name)[1:]
        shape = tuple(states[name].shape)
        has_players = shape[:1] == (-1,)
        found[path] = _Info(at, shape[1:] if has_players else shape, has_players, np.dtype(states[name].dtype))
    return found


def _all_infos(infos: Mapping[Key, _Info], num_players: int) -> Composite:
    """The specs of all infos of an env."""
    spec = Composite()
    for path, info in infos.items():
        spec.set(path, Unbounded(info.shape_in(num_players), dtype=torch.from_numpy(np.empty(0, info.dtype)).dtype))
    return spec


def _info_state(leaf: Leaf, infos: Mapping[Key, _Info], num_players: int) -> _State:
    """What is made of an info that is kept.

    Raises:
        ValueError: EnvPool has none of this name, or of another shape, or of a dtype that this one cannot hold.
    """
    name, info = ".".join(leaf.key), infos.get(leaf.key)
    if info is None:
        known = sorted(map(".".join, infos))
        raise ValueError(f"info: got {name!r}, expected some of {known}")
    shape = info.shape_in(num_players)
    if leaf.shape != shape or not np.can_cast(info.dtype, leaf.dtype, "same_kind"):
        raise ValueError(
            f"info.{name}: got shape {leaf.shape} and dtype {leaf.dtype}, expected {shape} and {info.dtype}"
        )
    cast = None if leaf.dtype == info.dtype else leaf.dtype
    return _State(info.at, ("info", *leaf.key), info.shape, cast, info.has_players)


def _path(name: str) -> Key:
    """``"obs:arm.angle"`` -> ``("obs", "arm", "angle")``."""
    return tuple(name.replace(":", ".").split("."))


def _nested(leaves: Mapping[Key, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for path, value in leaves.items():
        group = made
        for part in path[:-1]:
            group = group.setdefault(part, {})
        group[path[-1]] = value
    return made


def _with_true_bounds(space: gym.Space[Any]) -> gym.Space[Any]:
    """The space without bounds that EnvPool did not mean.

    Where an env says none, EnvPool has the smallest positive number of the dtype as the lower one.
    """
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({key: _with_true_bounds(part) for key, part in space.spaces.items()})
    if not isinstance(space, gym.spaces.Box) or space.dtype.kind != "f":
        return space
    limits = np.finfo(space.dtype)
    unbounded = (space.low == limits.tiny) & (space.high == limits.max)
    if not unbounded.any():
        return space
    low, high = np.where(unbounded, -np.inf, space.low), np.where(unbounded, np.inf, space.high)
    return gym.spaces.Box(low.astype(space.dtype), high.astype(space.dtype), space.shape, space.dtype.type)


def _action_of(spec: Any) -> tuple[str, gym.Space[Any], Any]:
    """Name, space of one env or player, and array of the actions."""
    actions = {name: given for name, given in spec.action_array_spec.items() if not name.endswith("env_id")}
    if len(actions) != 1:
        raise UnsupportedSpaceError(f"action: got the arrays {[*actions]}, expected one")
    [(name, given)] = actions.items()
    return name, _with_true_bounds(spec.action_space), given


def _in_group(own: Composite, batch_size: torch.Size, device: torch.device | None) -> Composite:
    """The specs of players, in the group that they have in the env's."""
    return Composite({PLAYERS: own}, shape=batch_size, device=device)
