"""What a gymnasium vector env returns, as columns of a batch: for each leaf an array, of objects too, or a tensor.

Columns are the caller's own. Vector envs may reuse the memory of what they return, and hand out numpy arrays, torch
tensors or anything that numpy reads.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from gymbridge.engine.conform import as_array, casting
from gymbridge.engine.layout import Leaf
from gymbridge.errors import EnvOutputError
from gymbridge.reward_dtypes import block_dtype_of_reward
from gymbridge.spaces.naming import SpaceLeaf, SpaceTree
from gymbridge.specs._bridge import array_of, as_torch_dtype

__all__ = ["Columns", "InfoColumns", "ObservationColumns", "flags_of", "put_row", "rewards_of"]

Array: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]
Column: TypeAlias = "Array | torch.Tensor"
Columns: TypeAlias = "list[Column]"


class ObservationColumns:
    """Reads batched observations: a column ``[N, *leaf.shape]`` of the leaf's dtype, or ``[N]`` of objects, a leaf.

    Args:
        tree: the observation space of one env.
        num_envs: ``N``.

    Example:
        >>> from gymnasium.spaces import Box
        >>> from gymbridge.spaces.naming import observation_tree
        >>> columns = ObservationColumns(observation_tree(Box(-1, 1, (1,))), 2)
        >>> columns(np.zeros((2, 1)))
        [array([[0.],
               [0.]], dtype=float32)]
        >>> columns(np.zeros((3, 1)))
        Traceback (most recent call last):
        gymbridge.errors.EnvOutputError: observation: got shape (3, 1), expected (2, 1)
    """

    def __init__(self, tree: SpaceTree, num_envs: int):
        self._tree = tree
        self._num_envs = num_envs
        self._batches = [_batch_of(leaf, num_envs) for leaf in tree.leaves]
        self._checks = [casting(leaf) for leaf in self._batches]
        self._row_checks = [casting(leaf) for leaf in tree.leaves]

    def __call__(self, observation: Any, are_own: bool = False) -> Columns:
        """The columns of a batch.

        Args:
            observation: of the batch.
            are_own: its arrays are the caller's own, and need not be copied.

        Raises:
            EnvOutputError: an item is missing, or a leaf has another shape, or a dtype that its own cannot hold.
        """
        parts = self._flatten(observation)
        return [self._column(at, part, are_own) for at, part in enumerate(parts)]

    def row_of(self, observation: Any) -> list[Any]:
        """The leaves of one env's observation, as :func:`put_row` takes them."""
        parts = self._flatten(observation)
        arrays = [
            _array_of(leaf.name, part) if isinstance(part, torch.Tensor) and leaf.is_array else part
            for leaf, part in zip(self._batches, parts, strict=True)
        ]
        return [check(array) for check, array in zip(self._row_checks, arrays, strict=True)]

    def _flatten(self, observation: Any) -> list[Any]:
        try:
            return self._tree.flatten(observation)
        except KeyError as error:
            told = error.args[0]
            raise EnvOutputError(told if told.startswith("observation") else f"observation: {told}") from error

    def _column(self, at: int, part: Any, are_own: bool) -> Column:
        leaf = self._batches[at]
        if not leaf.is_array:
            return self._objects(leaf, part)
        if isinstance(part, torch.Tensor):
            _require_data(leaf.name, part)
            if part.shape == leaf.shape and part.dtype is as_torch_dtype(leaf.dtype):
                return part.detach() if are_own else part.detach().clone()
            part = array_of(part)
        if are_own and type(part) is np.ndarray and part.dtype == leaf.dtype and part.shape == leaf.shape:
            return part if part.flags.writeable else part.copy()
        if not isinstance(part, np.ndarray) and hasattr(part, "__array__"):  # an array of another library
            part = np.asarray(part)
        column: Array = np.array(self._checks[at](part))  # a copy, whatever the check did
        return column

    def _objects(self, leaf: SpaceLeaf, part: Any) -> Array:
        if not isinstance(part, (Sequence, np.ndarray)) or isinstance(part, str) or len(part) != self._num_envs:
            raise EnvOutputError(f"{leaf.name}: got {reprlib.repr(part)}, expected one for each of {self._num_envs}")
        objects = np.empty(self._num_envs, object)
        for row, value in enumerate(part):
            objects[row] = value
        return objects


def _batch_of(leaf: SpaceLeaf, num_envs: int) -> SpaceLeaf:
    """The leaf of a batch, whose samples are ``[N, *leaf.shape]``."""
    batch = SpaceLeaf(leaf.key, leaf.space, leaf.is_array)
    if leaf.is_array:
        batch.shape = (num_envs, *leaf.shape)
    return batch


def _require_data(name: str, tensor: torch.Tensor) -> None:
    """Refuses a tensor whose numbers do not lie in memory one after the other."""
    if tensor.is_meta or tensor.layout is not torch.strided:
        raise EnvOutputError(
            f"{name}: got a tensor of {tensor.layout} on device {str(tensor.device)!r}, expected a dense one with data"
        )


def _array_of(name: str, tensor: torch.Tensor) -> Array:
    _require_data(name, tensor)
    return array_of(tensor)


def put_row(columns: Columns, row: int, values: Sequence[Any]) -> None:
    """Writes one env's values, or another batch's row of them, into columns.

    Example:
        >>> columns = [np.zeros((2, 1)), torch.zeros(2)]
        >>> put_row(columns, 1, [[5.0], 7.0])
        >>> columns
        [array([[0.],
               [5.]]), tensor([0., 7.])]
    """
    for column, value in zip(columns, values, strict=True):
        column[row] = torch.as_tensor(value) if isinstance(column, torch.Tensor) else value


def rewards_of(value: Any, num_envs: int, dtype: torch.dtype) -> torch.Tensor:
    """A batch of rewards as a tensor ``[N, 1]`` of its own.

    Raises:
        EnvOutputError: another shape, or no numbers.

    Example:
        >>> rewards_of(np.array([1.0, 2.5]), 2, torch.float32)
        tensor([[1.0000],
                [2.5000]])
    """
    given = value
    if not isinstance(value, torch.Tensor):
        array = as_array("reward", value if not hasattr(value, "__array__") else np.asarray(value), "numbers")
        if array.dtype.kind not in "biuf":
            raise EnvOutputError(f"reward: got dtype {array.dtype}, expected numbers")
        with np.errstate(over="ignore"):  # a reward that is too large is inf, as natively
            value = torch.from_numpy(array.astype(block_dtype_of_reward(dtype)))
    _require_data("reward", value)
    if value.is_complex():
        raise EnvOutputError(f"reward: got dtype {value.dtype}, expected numbers without an imaginary part")
    if value.shape != (num_envs,):
        raise EnvOutputError(f"reward: got shape {tuple(value.shape)}, expected ({num_envs},)")
    rewards: torch.Tensor = value.detach().to(dtype, copy=given is value)
    return rewards.unsqueeze(-1)


def flags_of(name: str, value: Any, num_envs: int) -> Mask:
    """A batch of end-of-episode flags as an array ``[N]`` of its own.

    Raises:
        EnvOutputError: another shape, or neither bools nor integers.

    Example:
        >>> flags_of("terminated", [0, 1], 2)
        array([False,  True])
    """
    array = _array_of(name, value) if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.shape != (num_envs,) or array.dtype.kind not in "biu":
        raise EnvOutputError(f"{name}: got shape {array.shape} and {array.dtype}, expected ({num_envs},) and bool")
    return array.astype(np.bool_)


class InfoColumns:
    """Reads batched infos: for each leaf a column and, after it, a mask ``[N]`` of the envs that have the entry.

    An entry stands beside its mask, ``"_lives"`` beside ``"lives"``; without one all envs have it. Infos may also be
    one dict an env. An entry that an env does not have reads zero, or None where it is no array.

    Args:
        leaves: the entries.
        num_envs: ``N``.

    Example:
        >>> columns = InfoColumns([Leaf(("lives",), (), np.dtype(np.int64))], 2)
        >>> columns({"lives": np.array([3, 0]), "_lives": np.array([True, False]), "other": 1})
        [array([3, 0]), array([ True, False])]
    """

    def __init__(self, leaves: Sequence[Leaf], num_envs: int):
        self._leaves = leaves
        self._num_envs = num_envs

    def __call__(self, infos: Any) -> Columns:
        """The columns of a batch; None has no entries.

        Raises:
            EnvOutputError: an entry has another shape than its leaf, or a dtype that the leaf's cannot hold; a mask has
                another shape; or infos are neither a mapping nor one an env.
        """
        columns: Columns = []
        for leaf in self._leaves:
            column = np.zeros((self._num_envs, *leaf.shape), leaf.dtype)
            if leaf.dtype.hasobject:
                column[:] = None
            mask = np.zeros(self._num_envs, np.bool_)
            value, present = self._find(infos, leaf.key)
            if type(value) is np.ndarray and value.dtype == column.dtype != object and value.shape == column.shape:
                column[present] = value[present]
                columns += [column, present.copy()]
                continue
            for row in np.flatnonzero(present):
                entry = value[row]
                if entry is not None:
                    column[row] = _as_entry(leaf, entry)
                    mask[row] = True
            columns += [column, mask]
        return columns

    def _find(self, infos: Any, key: Sequence[str]) -> tuple[Any, Mask]:
        """One value an env at a key, and which envs have one."""
        present = np.ones(self._num_envs, np.bool_)
        value = infos
        for depth, part in enumerate(key):
            if not isinstance(value, Mapping):
                if value is None:
                    return None, np.zeros(self._num_envs, np.bool_)
                return self._find_in_rows(".".join(("info", *key[:depth])), value, key[depth:], present)
            mask = value.get(f"_{part}")
            if part not in value:
                return None, np.zeros(self._num_envs, np.bool_)
            if mask is not None:
                given = np.asarray(mask, np.bool_)
                if given.shape not in ((), present.shape):
                    name = ".".join(("info", *key[:depth], f"_{part}"))
                    raise EnvOutputError(f"{name}: got shape {given.shape}, expected {present.shape}")
                present = present & given
            value = value[part]
        if not hasattr(value, "__len__") or isinstance(value, (Mapping, str)) or len(value) != self._num_envs:
            raise EnvOutputError(
                f"info.{'.'.join(key)}: got {reprlib.repr(value)}, expected one for each of {self._num_envs}"
            )
        return value, present

    def _find_in_rows(self, name: str, infos: Any, key: Sequence[str], present: Mask) -> tuple[list[Any], Mask]:
        """The same where each env has a dict of its own."""
        is_one_each = isinstance(infos, Sequence) or (isinstance(infos, np.ndarray) and infos.ndim > 0)
        if not is_one_each or isinstance(infos, str) or len(infos) != self._num_envs:
            raise EnvOutputError(
                f"{name}: got {reprlib.repr(infos)}, expected a dict, or one for each of {self._num_envs}"
            )
        rows = [_inside(info, key) for info in infos]
        return rows, present & np.array([row is not None for row in rows], np.bool_)


def _inside(info: Any, key: Sequence[str]) -> Any:
    for part in key:
        info = info.get(part) if isinstance(info, Mapping) else None
    return info


def _as_entry(leaf: Leaf, value: Any) -> Any:
    """One env's entry, as the leaf's column takes it."""
    if leaf.dtype.hasobject:
        return value.copy() if isinstance(value, np.ndarray) else value
    name = f"info.{'.'.join(leaf.key)}"
    given = _array_of(name, value) if isinstance(value, torch.Tensor) else as_array(name, value, f"shape {leaf.shape}")
    if given.shape != leaf.shape or not np.can_cast(given.dtype, leaf.dtype, "same_kind"):
        raise EnvOutputError(
            f"{name}: got shape {given.shape} and dtype {given.dtype}, expected {leaf.shape} and {leaf.dtype}"
        )
    cast = given.astype(leaf.dtype)
    if cast.dtype.kind in "iu" and not np.array_equal(cast, given):
        raise EnvOutputError(
            f"{name}: got {value!r} of dtype {given.dtype}, expected {leaf.dtype}: the cast changes it"
        )
    return cast
