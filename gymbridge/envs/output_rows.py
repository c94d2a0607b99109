"""What one env of a batch gave, taken apart and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict, TensorDictBase

from gymbridge.envs.done_groups import FLAGS, DoneGroups, completed_flags
from gymbridge.envs.env_specs import EnvSpecs
from gymbridge.envs.inputs import fits
from gymbridge.envs.spec_keys import group_sizes, leaf_keys
from gymbridge.envs.tensordicts import Assembler, flattened
from gymbridge.errors import EnvOutputError
from gymbridge.spaces.naming import kind_of
from gymbridge.specs import TensorSpec

__all__ = ["OneOfRows", "OutputReader", "OutputRow", "OutputRows", "RowLayout"]

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
        done_positions: of the ``done`` flags among them, where they are what the other flags say.
        flags: positions of ``done``, ``terminated`` and ``truncated``, a group each; None for one that is missing, and
            for ``done`` where the other two, which say what it has to be, are there.
        given_flags: the positions in ``flags``.
        others: positions of what is no flag.
    """

    def __init__(self, reader: OutputReader, keys: Sequence[Key]):
        self.reader = reader
        self.keys = tuple(keys)
        self.position = {key: position for position, key in enumerate(keys)}
        self.has_extras = any(key not in reader.leaves for key in keys)
        self.end_positions = [self.position[key] for key in reader.groups.keys_of_the_end(self.position)]
        done = [(*path, "done") for path in reader.groups.decisive]
        self.done_positions = [self.position[key] for key in done if key in self.position]
        leaves = [reader.leaves.get(key) for key in keys]
        self.dtypes = [None if leaf is None else leaf.spec.dtype for leaf in leaves]
        self.shapes = [None if leaf is None else leaf.spec.shape for leaf in leaves]
        flags = [[self.position.get((*path, name)) for name in FLAGS] for path in reader.groups.paths]
        self.flags = [group if None in group else [None, *group[1:]] for group in flags]
        self.given_flags = [position for group in self.flags for position in group if position is not None]
        in_groups = {position for group in flags for position in group}
        self.others = [position for position in range(len(self.keys)) if position not in in_groups]
        self.assemble = reader.assembler(keys)
        self._completed: RowLayout | None = None

    @property
    def completed(self) -> RowLayout:
        """The layout of the same leaves with every flag, these last."""
        if self._completed is None:
            flags = [(*path, name) for path in self.reader.groups.paths for name in FLAGS]
            self._completed = RowLayout(self.reader, [*(self.keys[position] for position in self.others), *flags])
        return self._completed


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

    def copied(self) -> OutputRow:
        """The same in tensors that the env does not have."""
        values = [value.clone() if isinstance(value, torch.Tensor) else value for value in self.values]
        return self._replace(values=values)

    def with_every_flag(self) -> OutputRow:
        """The same with every flag, leaf by leaf."""
        if self.is_complete:
            return self
        layout = self.layout
        values = [self.values[position] for position in layout.others]
        values += layout.reader.completed(layout, [*self.values], ())
        return OutputRow(layout.completed, values, True)


class OutputRows:
    """What the envs of a round gave, each row its own or, where all gave like leaves, stacked.

    Args:
        layout: which leaves the rows gave, if they are stacked; every flag is among them.
        columns: one stack a leaf, ``[num_rows, *B, …]``.
        made: what the envs gave, if it is stacked, as they gave it.

    Example:
        >>> rows = OutputRows()
        >>> len(rows), 0 in rows
        (0, False)
    """

    __slots__ = ("_made", "_rows", "columns", "layout")

    def __init__(
        self, layout: RowLayout | None = None, columns: Sequence[Any] = (), made: Sequence[TensorDictBase] = ()
    ):
        self._rows: dict[int, OutputRow] = {}
        self._made = made
        self.layout = layout
        self.columns = columns

    def __setitem__(self, row: int, output: OutputRow) -> None:
        self._rows[row] = output

    def __getitem__(self, row: int) -> OutputRow:
        if self.layout is None:
            return self._rows[row]
        return OutputRow(self.layout, [column[row] for column in self.columns], True)

    def as_given(self, row: int) -> OutputRow:
        """What a row gave in the env's own tensors: the stacks are handed out, and may have been changed since."""
        return self.layout.reader(self._made[row]) if self.layout is not None and self._made else self[row]

    def copied(self) -> OutputRows:
        """The same, of stacked rows, in stacks of its own."""
        columns = [column.clone() if isinstance(column, torch.Tensor) else column for column in self.columns]
        return OutputRows(self.layout, columns)

    def __len__(self) -> int:
        return len(self._rows) if self.layout is None else len(self.columns[0])

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows if self.layout is None else range(len(self)))

    def __contains__(self, row: int) -> bool:
        return row in self._rows if self.layout is None else 0 <= row < len(self)

    def items(self) -> Iterator[tuple[int, OutputRow]]:
        """The rows, and what each gave."""
        return ((row, self[row]) for row in self)

    def ended(self) -> list[int]:
        """The rows in which an env has ended; one look at all flags together where none has."""
        if self.layout is not None:  # every flag is there
            done = [self.columns[position] for position in self.layout.done_positions]
            if not any(flags.any() for flags in done):
                return []
            rows = torch.cat([flags.reshape(len(self), -1) for flags in done], 1).any(1)
            ended: list[int] = rows.nonzero().reshape(-1).tolist()
            return ended
        flags = [out.values[position] for out in self._rows.values() for position in out.layout.end_positions]
        if not flags or not torch.cat([flag if flag.ndim == 1 else flag.reshape(-1) for flag in flags]).any():
            return []
        return [row for row, out in self.items() if out.layout.reader.groups.ended(out.completed()).any()]


class OneOfRows(NamedTuple):
    """A row of what several gave, not yet taken out.

    Attributes:
        outputs: what they gave.
        position: the row's.
    """

    outputs: OutputRows
    position: int

    def completed(self) -> TensorDictBase:
        """See :class:`OutputRow`."""
        return self.outputs[self.position].completed()


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
        self._flag_shapes = [specs.full_done_spec[(*path, "done")].shape for path in self.groups.paths]
        self._layouts: dict[Any, RowLayout] = {}

    def __call__(self, made: object, *, is_complete: bool = False) -> OutputRow:
        """What an env gave, leaf by leaf.

        Args:
            made: what it gave.
            is_complete: its flags need no completion.

        Raises:
            EnvOutputError: no TensorDict, another batch size, a leaf that is missing or has another shape or dtype.
        """
        if not isinstance(made, TensorDictBase):
            raise EnvOutputError(f"got {kind_of(made)}, expected a TensorDict")
        keys, values = flattened(made)
        layout = self._layouts.get(keys)
        if layout is None:
            layout = self._new_layout(keys)
        if made.batch_size != self.batch_size:
            raise EnvOutputError(f"got batch size {[*made.batch_size]}, expected {[*self.batch_size]}")
        position = -1
        for value, dtype, shape in zip(values, layout.dtypes, layout.shapes, strict=True):
            position += 1
            if not (type(value) is _Tensor and value.dtype is dtype and value.shape == shape):
                values[position] = self._unusual(layout.keys[position], value)
        return OutputRow(layout, values, is_complete)

    def layout_of(self, keys: tuple[Key, ...]) -> RowLayout:
        """The layout of leaves that another reader of the same specs has found to be as they should."""
        found = self._layouts.get(keys)
        if found is None:
            found = self._layouts[keys] = RowLayout(self, keys)
        return found

    def stacked(self, made: Sequence[Any]) -> OutputRows | None:
        """What all envs of a batch gave, a leaf at a time; None where an output has to be looked at by itself."""
        values = []
        found: Any = None
        for out in made:
            if not (type(out) is TensorDict or isinstance(out, TensorDictBase)) or out.batch_size != self.batch_size:
                return None
            keys, own = flattened(out)
            if found is None:
                found = keys
            elif keys != found:
                return None
            values.append(own)
        layout = self._layouts.get(found)
        if layout is None:  # the first output of its kind
            return None
        columns = [*zip(*values, strict=True)]
        stacks: list[torch.Tensor] = []
        for position in layout.others:
            stack = self._stack(columns[position], layout, position)
            if stack is None:
                return None
            stacks.append(stack)
        flags: dict[int, torch.Tensor] = {}
        for position in layout.given_flags:
            stack = self._stack(columns[position], layout, position)
            if stack is None:
                return None
            flags[position] = stack
        stacks += self.completed(layout, flags, (len(values),))
        return OutputRows(layout.completed, stacks, made)

    def completed(
        self, layout: RowLayout, values: Mapping[int, Any] | Sequence[Any], lead: tuple[int, ...]
    ) -> list[torch.Tensor]:
        """Every flag, a group after the other.

        Args:
            values: position -> value of what is there; flags need no last dim.
            lead: dims before those of an env.
        """
        completed: list[torch.Tensor] = []
        for flags, shape in zip(layout.flags, self._flag_shapes, strict=True):
            given = [None if at is None else values[at] for at in flags]
            completed += completed_flags(*given, shape=(*lead, *shape), device=self.device)
        return completed

    def _stack(self, column: Sequence[Any], layout: RowLayout, position: int) -> torch.Tensor | None:
        """The stack of a leaf; None where a value has to be looked at by itself."""
        dtype = layout.dtypes[position]
        for value in column:
            if type(value) is not _Tensor or value.dtype is not dtype:
                return None
        try:
            stack = torch.stack(column)  # type: ignore[arg-type]
        except RuntimeError:  # shapes that differ
            return None
        return stack if stack.shape[1:] == layout.shapes[position] else None

    def _new_layout(self, found: tuple[Any, ...]) -> RowLayout:
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

    def assembler(self, keys: Iterable[Key]) -> Assembler:
        """What builds TensorDicts ``[*B]`` of these leaves."""
        return Assembler(keys, self.batch_size, self.device, self._group_sizes)
