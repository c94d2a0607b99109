"""The oracle: gymnasium envs reset and stepped one by one, and what a TensorDict env has to make of that.

It shares no code with what it checks: keys, masks and flags follow the rules as they are written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, is_leaf_nontensor, is_non_tensor

Leaves = dict[tuple[str, ...], np.ndarray]

FLAGS = ("done", "terminated", "truncated")
RESERVED = {"reward", "done", "terminated", "truncated", "action", "next", "info", "env_index", "valid"}


def observation_leaves(space: spaces.Space, observation: Any) -> Leaves:
    """The leaves of an observation, by their keys in a TensorDict."""
    if not isinstance(space, spaces.Dict):
        return leaves(space, observation, ("observation",))
    found: Leaves = {}
    for name, part in space.spaces.items():
        key = ("_user", name) if name in RESERVED or name.startswith("_") else (name,)
        found |= leaves(part, observation[name], key)
    return found


def leaves(space: spaces.Space, sample: Any, key: tuple[str, ...]) -> Leaves:
    """The leaves of a sample that stands under a key."""
    if isinstance(space, spaces.Dict):
        parts = [(name, part, sample[name]) for name, part in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        parts = [(str(i), *pair) for i, pair in enumerate(zip(space.spaces, sample, strict=True))]
    else:
        return {key: np.array(sample, space.dtype)}
    found: Leaves = {}
    for name, part, value in parts:
        found |= leaves(part, value, (*key, name))
    return found


def action_of_row(space: spaces.Space, tensordict: TensorDictBase, row: tuple[int, ...], key: Any = "action") -> Any:
    """One env's action, as gymnasium knows it."""
    if isinstance(space, spaces.Dict):
        return {name: action_of_row(part, tensordict[key], row, name) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(action_of_row(part, tensordict[key], row, str(i)) for i, part in enumerate(space.spaces))
    return tensordict[key][row].numpy().astype(space.dtype)[()]


class ByHand:
    """Envs reset and stepped one by one.

    Args:
        makers: of the envs.
        batch_size: of the TensorDicts to compare with.

    Attributes:
        running: row -> whether the env is in an episode.
    """

    def __init__(self, makers: Sequence[Callable[[], gym.Env]], batch_size: Sequence[int]):
        self.envs = [make() for make in makers]
        self.batch_size = torch.Size(batch_size)
        self.space = self.envs[0].observation_space
        self.running = [False] * len(self.envs)
        nothing = observation_leaves(self.space, zeros(self.space))
        self.latest = [dict(nothing) for _ in self.envs]
        self.flags = [(False, False) for _ in self.envs]

    def reset(
        self, tensordict: TensorDictBase | None, picked: Sequence[bool], kwargs: Sequence[Mapping[str, Any]]
    ) -> TensorDict:
        """Observations and flags after a reset of the picked envs."""
        for row, env in enumerate(self.envs):
            if picked[row]:
                observation, _ = env.reset(**kwargs[row])
                self.latest[row] = observation_leaves(self.space, observation)
                self.flags[row] = (False, False)
                self.running[row] = True
        return self._result(tensordict, picked, self.latest, self.flags)

    def step(self, tensordict: TensorDictBase, picked: Sequence[bool]) -> TensorDict:
        """What stands under ``"next"`` after a step of the picked envs."""
        rewards = np.zeros(len(self.envs))
        for row, env in enumerate(self.envs):
            if picked[row]:
                index = tuple(np.unravel_index(row, self.batch_size)) if self.batch_size else ()
                action = action_of_row(env.action_space, tensordict, index)
                observation, reward, terminated, truncated, _ = env.step(action)
                self.latest[row] = observation_leaves(self.space, observation)
                self.flags[row] = (bool(terminated), bool(truncated))
                self.running[row] = not (terminated or truncated)
                rewards[row] = reward
        result = self._result(tensordict, picked, self.latest, self.flags)
        return result.set("reward", torch.tensor(rewards, dtype=torch.float32).reshape((*self.batch_size, 1)))

    def step_and_maybe_reset(
        self, tensordict: TensorDictBase, picked: Sequence[bool], kwargs: Sequence[Mapping[str, Any]]
    ) -> tuple[TensorDict, TensorDict]:
        """What stands under ``"next"``, and the next root."""
        following = self.step(tensordict, picked)
        ended = [chosen and not running for chosen, running in zip(picked, self.running, strict=True)]
        return following, self.reset(following.exclude("reward"), ended, kwargs)

    def _result(
        self, tensordict: TensorDictBase | None, picked: Sequence[bool], rows: list[Leaves], flags: list[Any]
    ) -> TensorDict:
        """The picked rows; where the others have nothing in the TensorDict, their latest."""
        result = TensorDict({}, self.batch_size)
        mask = np.reshape(picked, self.batch_size)
        ends = np.array([[terminated or truncated, terminated, truncated] for terminated, truncated in flags])
        given = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
        for key, values in {**given, **{(name,): ends[:, [i]] for i, name in enumerate(FLAGS)}}.items():
            values = values.reshape((*self.batch_size, *values.shape[1:]))
            own = None if tensordict is None else tensordict.get(key, None)
            if own is not None:
                values[~mask] = own.numpy()[~mask]
            result.set(key, torch.from_numpy(values))
        return result


def zeros(space: spaces.Space) -> Any:
    """A value of the space's structure with zeros in it."""
    if isinstance(space, spaces.Dict):
        return {name: zeros(part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(zeros(part) for part in space.spaces)
    return np.zeros(space.shape or (), space.dtype)


def assert_equal(got: TensorDictBase, expected: TensorDictBase, where: str = "td") -> None:
    """Same keys, batch size, devices, shapes, dtypes, bits and data; NaN equals NaN.

    Where one of the two is a lazy stack, the rows are compared.
    """
    assert got.batch_size == expected.batch_size, f"{where}: batch size {got.batch_size}, not {expected.batch_size}"
    assert got.device == expected.device, f"{where}: device {got.device}, expected {expected.device}"
    if is_lazy(got) or is_lazy(expected):
        for row, (mine, theirs) in enumerate(zip(got.unbind(0), expected.unbind(0), strict=True)):
            assert_equal(mine, theirs, f"{where}[{row}]")
        return
    assert filled(got) == filled(expected), f"{where}: {sorted(filled(got))}, expected {sorted(filled(expected))}"
    for name in filled(expected):
        mine, theirs = got.get(name), expected.get(name)
        if is_non_tensor(theirs):
            assert is_non_tensor(mine), f"{where}.{name}: {mine}, expected data that are no tensor"
            assert mine.batch_size == theirs.batch_size, f"{where}.{name}: {mine.batch_size}"
            assert mine.tolist() == theirs.tolist(), f"{where}.{name}: {mine.tolist()}, expected {theirs.tolist()}"
            continue
        if isinstance(theirs, TensorDictBase):
            assert isinstance(mine, TensorDictBase), f"{where}.{name}: {mine}, expected a group"
            assert_equal(mine, theirs, f"{where}.{name}")
            continue
        assert mine.dtype is theirs.dtype, f"{where}.{name}: {mine.dtype}, expected {theirs.dtype}"
        assert mine.shape == theirs.shape, f"{where}.{name}: {mine.shape}, expected {theirs.shape}"
        assert bits(mine) == bits(theirs), f"{where}.{name}: {mine}, expected {theirs}"


def is_lazy(tensordict: Any) -> bool:
    """Whether it is a lazy stack of TensorDicts."""
    return isinstance(tensordict, LazyStackedTensorDict) and not is_non_tensor(tensordict)


def filled(tensordict: TensorDictBase) -> set[str]:
    """The names in a TensorDict but those of groups without leaves, which envs run by hand do not have."""
    keys = tensordict.keys(True, True, is_leaf=is_leaf_nontensor)
    return {key if isinstance(key, str) else key[0] for key in keys}


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's values."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy().tobytes()
