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
from gymbridge.envs.tensordicts import Assembler, flattened
from gymbridge.errors import EnvOutputError
from gymbridge.specs import TensorSpec

__all__ = ["OutputReader", "OutputRow", "RowLayout", "ended_rows"]

Key = tuple[str, ...]

_Tensor = torch.Tensor


class RowLayout:
    """Which leaves an env gave, in its own order; there is one object for all outputs that are alike.

    Attributes:
        reader: the reader that made it.
        keys: the leaves' keys.
        position: key -> where its value is.
        has_extras: there are leaves that no spec has, a state say.
        end_positions: of the flags that say whether the env has ended.
    """

    def __init__(self, reader: OutputReader, keys: Sequence[Key]):
        self.reader = reader
        self.keys = tuple(keys)
        self.position = {key: position for position, key in enumerate(keys)}
        self.has_extras = any(key not in reader.leaves for key in keys)
        self.end_positions = [self.position[key] for key in reader.groups.keys_of_the_end(self.position)]
        leaves = [reader.leaves.get(key) for key in keys]
        self.dtypes = [None if leaf is None else leaf.spec.dtype for leaf in leaves]
        self.shapes = [None if leaf is None else leaf.spec.shape for leaf in leaves]
        self.assemble = reader.assembler(keys, reader.batch_size, reader.device)


class OutputRow(NamedTuple):
    """What an env gave.

    Attributes:
        layout: which leaves it gave.
        values: one a leaf.
        is_complete: every flag is there, and ``done`` is what it has to be.
    """

    layout: RowLayout
    values: list[Any]
    is_complete: bool

    def completed(self) -> TensorDictBase:
        """The same as a TensorDict ``[*B]`` with every flag."""
        made: TensorDictBase = self.layout.assemble(self.values)
        return made if self.is_complete else self.layout.reader.groups.completed(made)


class _Leaf(NamedTuple):
    spec: TensorSpec
    is_flag: bool


class OutputReader:
    """Reads and checks what an env of some specs gives.

    Args:
        specs: of the env.
        with_rewards: what a step gives; without, what a reset gives.

    Attributes:
        leaves: what the env has to give, by key; flags may be missing.
        batch_size, device: those of the env.
        groups: the env's groups of end-of-episode flags.

    Example:
        >>> from tensordict import TensorDict
        >>> from gymbridge.specs import Composite, Unbounded
        >>> specs = EnvSpecs(None, ())
        >>> specs.observation_spec, specs.reward_spec = Composite(x=Unbounded((2,))), Unbounded((1,))
        >>> specs.action_spec = Unbounded((1,))
        >>> read = OutputReader(specs, with_rewards=True)
        >>> row = read(TensorDict(x=torch.zeros(2), reward=torch.ones(1), done=torch.tensor([False])))
        >>> row.layout.keys, row.completed()["terminated"]
        ((('x',), ('reward',), ('done',)), tensor([False]))
    """

    def __init__(self, specs: EnvSpecs, *, with_rewards: bool):
        self.batch_size = specs.batch_size
        self.device = specs.device
        self.groups: DoneGroups = specs._spec_plan.groups
        self.leaves: dict[Key, _Leaf] = {}
        self._group_sizes: dict[Key, torch.Size] = {}
        rewards = [specs.full_reward_spec] if with_rewards else []
        for part in (specs.full_observation_spec, *rewards, specs.full_done_spec):
            self.leaves |= {key: _Leaf(part[key], part is specs.full_done_spec) for key in leaf_keys(part)}
            self._group_sizes |= group_sizes(part)
        self.keys = [*self.leaves]
        self._layouts: dict[Any, RowLayout] = {}

    def __call__(self, made: object, *, is_complete: bool = False) -> OutputRow:
        """What an env gave, leaf by leaf.

        Args:
            made: what it gave.
            is_complete: its flags need no completion.

        Raises:
            EnvOutputError: no TensorDict, another batch size, a leaf that is missing or has another shape or dtype.
        """
        keys, values = flattened(made) if isinstance(made, TensorDictBase) else (None, [])
        layout = self._layouts.get(keys)
        if layout is None:
            layout = self._new_layout(made, keys)
        if made.batch_size != self.batch_size:  # type: ignore[attr-defined]
            raise EnvOutputError(f"got batch size {[*made.batch_size]}, expected {[*self.batch_size]}")  # type: ignore[attr-defined]
        position = -1
        for value, dtype, shape in zip(values, layout.dtypes, layout.shapes, strict=True):
            position += 1
            if not (type(value) is _Tensor and value.dtype is dtype and value.shape == shape):
                values[position] = self._unusual(layout.keys[position], value)
        return OutputRow(layout, values, is_complete)

    def _new_layout(self, made: object, found: Any) -> RowLayout:
        if not isinstance(made, TensorDictBase):
            raise EnvOutputError(f"got {type(made).__name__}, expected a TensorDict")
        keys = [(key,) if isinstance(key, str) else key for key in found]
        for key, leaf in self.leaves.items():
            if key not in keys and not leaf.is_flag:
                raise EnvOutputError(
                    f"{'.'.join(key)}: missing, expected shape {[*leaf.spec.shape]} and {leaf.spec.dtype}; got {keys}"
                )
        layout = self._layouts[found] = RowLayout(self, keys)
        return layout

    def _unusual(self, key: Key, value: Any) -> Any:
        """A leaf that is not a plain tensor just like its spec: what passes all the same."""
        leaf = self.leaves.get(key)
        if leaf is None:  # no spec has it
            return value
        name, spec = ".".join(key), leaf.spec
        if spec.dtype is None:
            if faults := spec.faults(value, key, 0):
                raise EnvOutputError("; ".join(faults))
            return value
        if not isinstance(value, torch.Tensor):
            raise EnvOutputError(f"{name}: got {type(value).__name__}, expected a tensor of {spec.dtype}")
        if leaf.is_flag and value.ndim == len(spec.shape) - 1:
            value = value.unsqueeze(-1)
        if value.shape != spec.shape and not (spec.is_dynamic and fits(value.shape, spec.shape)):
            raise EnvOutputError(f"{name}: got shape {[*value.shape]}, expected {[*spec.shape]}")
        if value.dtype is not spec.dtype:
            raise EnvOutputError(f"{name}: got dtype {value.dtype}, expected {spec.dtype}")
        return value

    def assembler(self, keys: Iterable[Key], batch_size: torch.Size, device: torch.device | None) -> Assembler:
        """Builds TensorDicts ``[*lead, *B]`` of leaves."""
        lead = batch_size[: len(batch_size) - len(self.batch_size)]
        groups = {key: torch.Size((*lead, *size)) for key, size in self._group_sizes.items()}
        return Assembler(keys, batch_size, device, groups)


def ended_rows(outputs: dict[int, OutputRow]) -> list[int]:
    """The rows in which an env has ended; one look at all flags together where none has.

    Args:
        outputs: row -> what its step gave.
    """
    flags = [out.values[position] for out in outputs.values() for position in out.layout.end_positions]
    if not flags or not torch.cat([flag if flag.ndim == 1 else flag.reshape(-1) for flag in flags]).any():
        return []
    return [row for row, out in outputs.items() if out.layout.reader.groups.ended(out.completed()).any()]
