"""What one env of a batch gave, taken apart and checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase

from gymbridge.envs.done_groups import DoneGroups
from gymbridge.envs.env_specs import EnvSpecs
from gymbridge.envs.inputs import fits
from gymbridge.envs.spec_keys import group_sizes, leaf_keys
from gymbridge.envs.tensordicts import Assembler, entry, leaf_paths, num_leaves
from gymbridge.errors import EnvOutputError
from gymbridge.specs import TensorSpec

__all__ = ["OutputReader", "OutputRow"]

Key = tuple[str, ...]


class OutputRow(NamedTuple):
    """What an env gave: one value a leaf, in its reader's order.

    Attributes:
        values: of the observations, rewards and flags; None for a flag that is missing.
        absent: positions of the flags that are missing.
        extras: what no spec has, a state say; None for nothing.
        is_complete: every flag is there, and ``done`` is what it has to be.
    """

    values: list[Any]
    absent: tuple[int, ...]
    extras: TensorDictBase | None
    is_complete: bool


class _Leaf(NamedTuple):
    key: Key
    root_name: str | None
    shape: torch.Size
    dtype: torch.dtype | None
    spec: TensorSpec
    is_flag: bool


class OutputReader:
    """Reads and checks what an env of some specs gives.

    Args:
        specs: of the env.
        with_rewards: what a step gives; without, what a reset gives.

    Attributes:
        keys: the leaves' keys: observations, then rewards, then flags.
        batch_size: that of the env.
        groups: the env's groups of end-of-episode flags.

    Example:
        >>> from tensordict import TensorDict
        >>> from gymbridge.specs import Composite, Unbounded
        >>> specs = EnvSpecs(None, ())
        >>> specs.observation_spec, specs.reward_spec = Composite(x=Unbounded((2,))), Unbounded((1,))
        >>> specs.action_spec = Unbounded((1,))
        >>> read = OutputReader(specs, with_rewards=True)
        >>> row = read(TensorDict(x=torch.zeros(2), reward=torch.ones(1), done=torch.tensor([False])))
        >>> row.absent, read.completed(row)["terminated"]
        ((3, 4), tensor([False]))
    """

    def __init__(self, specs: EnvSpecs, *, with_rewards: bool):
        self.batch_size = specs.batch_size
        self._device = specs.device
        self.groups: DoneGroups = specs._spec_plan.groups
        rewards = [specs.full_reward_spec] if with_rewards else []
        self._leaves: list[_Leaf] = []
        self._groups: dict[Key, torch.Size] = {}
        for part in (specs.full_observation_spec, *rewards, specs.full_done_spec):
            for key in leaf_keys(part):
                leaf, name = part[key], key[0] if len(key) == 1 else None
                is_flag = part is specs.full_done_spec
                self._leaves.append(_Leaf(key, name, leaf.shape, leaf.dtype, leaf, is_flag))
            self._groups |= group_sizes(part)
        self.keys = [leaf.key for leaf in self._leaves]
        self._flat = all(leaf.root_name is not None for leaf in self._leaves)
        self._assemblers: dict[tuple[int, ...], Assembler] = {}
        self.flag_positions = [position for position, leaf in enumerate(self._leaves) if leaf.is_flag]
        self.flag_keys = {self.keys[position] for position in self.flag_positions}

    def __call__(self, made: object, *, is_complete: bool = False) -> OutputRow:
        """What an env gave, leaf by leaf.

        Args:
            made: what it gave.
            is_complete: its flags need no completion.

        Raises:
            EnvOutputError: no TensorDict, another batch size, a leaf that is missing or has another shape or dtype.
        """
        if not isinstance(made, TensorDictBase):
            raise EnvOutputError(f"got {type(made).__name__}, expected a TensorDict")
        if made.batch_size != self.batch_size:
            raise EnvOutputError(f"got batch size {[*made.batch_size]}, expected {[*self.batch_size]}")
        values: list[Any] = []
        absent: tuple[int, ...] = ()
        for key, name, shape, dtype, _, is_flag in self._leaves:
            value = entry(made, name) if name is not None else made.get(key, None)
            if not (type(value) is torch.Tensor and value.dtype is dtype and value.shape == shape):
                if value is None and is_flag:
                    absent = (*absent, len(values))
                else:
                    value = self._unusual(made, self._leaves[len(values)], value)
            values.append(value)
        extras = None
        found = len(values) - len(absent)
        if (len(made.keys()) if self._flat else num_leaves(made)) > found:
            paths = [path for path in leaf_paths(made) if path not in self.keys]
            extras = made.select(*paths) if paths else None
        return OutputRow(values, absent, extras, is_complete)

    def _unusual(self, made: TensorDictBase, leaf: _Leaf, value: Any) -> Any:
        """A leaf that is not a plain tensor just like its spec: what passes all the same."""
        name = ".".join(leaf.key)
        if value is None:
            raise EnvOutputError(
                f"{name}: missing, expected shape {[*leaf.shape]} and {leaf.dtype}; got {leaf_paths(made)}"
            )
        if leaf.dtype is None:
            if faults := leaf.spec.faults(value, leaf.key, 0):
                raise EnvOutputError("; ".join(faults))
            return value
        if not isinstance(value, torch.Tensor):
            raise EnvOutputError(f"{name}: got {type(value).__name__}, expected a tensor of {leaf.dtype}")
        if leaf.is_flag and value.ndim == len(leaf.shape) - 1:
            value = value.unsqueeze(-1)
        if value.shape != leaf.shape and not (leaf.spec.is_dynamic and fits(value.shape, leaf.shape)):
            raise EnvOutputError(f"{name}: got shape {[*value.shape]}, expected {[*leaf.shape]}")
        if value.dtype is not leaf.dtype:
            raise EnvOutputError(f"{name}: got dtype {value.dtype}, expected {leaf.dtype}")
        return value

    # ---------------------------------------------------------------- and put together again

    def assembler(self, positions: Iterable[int], batch_size: torch.Size, device: torch.device | None) -> Assembler:
        """Builds TensorDicts ``[*lead, *B]`` of the leaves at some positions."""
        keys = [self.keys[position] for position in positions]
        lead = batch_size[: len(batch_size) - len(self.batch_size)]
        groups = {key: torch.Size((*lead, *size)) for key, size in self._groups.items()}
        return Assembler(keys, batch_size, device, groups)

    def completed(self, row: OutputRow) -> TensorDictBase:
        """What an env gave as a TensorDict ``[*B]`` with every flag."""
        assemble = self._assemblers.get(row.absent)
        if assemble is None:
            given = [position for position in range(len(self.keys)) if position not in row.absent]
            assemble = self._assemblers[row.absent] = self.assembler(given, self.batch_size, self._device)
        made: TensorDictBase = assemble([value for value in row.values if value is not None])
        if not row.is_complete:
            made = self.groups.completed(made)
        if row.extras is not None:
            made.update(row.extras)
        return made

    def ended(self, rows: Sequence[OutputRow]) -> list[int]:
        """Positions of the rows in which an env ended; one look at all flags where none did."""
        flags = [row.values[position] for row in rows for position in self.flag_positions]
        given = [flag if flag.ndim == 1 else flag.reshape(-1) for flag in flags if flag is not None]
        if not given or not torch.cat(given).any():
            return []
        return [index for index, row in enumerate(rows) if self.groups.ended(self.completed(row)).any()]
