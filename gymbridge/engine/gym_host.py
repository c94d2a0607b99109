"""Runs gymnasium envs: numpy in, numpy out, straight into the rows of the block."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from gymbridge.engine.block import Block
from gymbridge.engine.codes import AtWork, Op, RowState, Source
from gymbridge.engine.conform import Conform, casting, exact, flag
from gymbridge.engine.contract import env_faults
from gymbridge.engine.copies import copied
from gymbridge.engine.dispatch import FollowsPaths
from gymbridge.engine.env_calls import GymCall, TimedGymCall
from gymbridge.engine.env_state import env_state, load_env_state
from gymbridge.engine.failures import fail_rows
from gymbridge.engine.gym_inputs import GymInputs
from gymbridge.engine.host import IN_BLOCK, NOTHING, Report
from gymbridge.engine.info_forms import InfoForm
from gymbridge.engine.info_records import INFO_LEAVES, OF_RESET, OF_STEP, InfoRecords
from gymbridge.engine.layout import Leaf
from gymbridge.engine.rows import NumbersOnly, SectionRows, info_entries, row_views, snapshot
from gymbridge.engine.work_counts import Tally, counted
from gymbridge.errors import EnvOutputError
from gymbridge.spaces.naming import action_tree, observation_tree, outline

__all__ = ["GymEnvDescription", "GymHost", "GymHostOptions", "close_all"]

_RESET, _STEP_MAYBE_RESET = int(Op.RESET), int(Op.STEP_MAYBE_RESET)
_RESETTING = (_RESET, _STEP_MAYBE_RESET)
_RUNNING, _ENDED, _FAILED = int(RowState.RUNNING), int(RowState.ENDED), int(RowState.FAILED)
_IN_NEXT, _IN_ROOT = int(Source.NEXT), int(Source.ROOT)
_AT_RESET = int(AtWork.RESET)
_Array = np.ndarray

Key = tuple[str, ...]


@dataclass(frozen=True)
class GymHostOptions:
    """How a front wants gymnasium envs to be run.

    Attributes:
        conform: what happens to an observation that is not what its space says.
        reward_dtype: dtype of the rewards in the block.
        collect_infos: hand the infos over as they are: those of numbers alone as records in the block, see
            :mod:`~gymbridge.engine.info_records`, the others in the report.
        info_leaves: entries of the infos that become leaves of the block, keyed by their path in the info.
        warn_of_unknown_infos: warn once of an entry that is none of ``info_leaves`` and not in ``left_out_infos``.
        left_out_infos: paths of entries that are known and left out.
    """

    conform: Conform = exact
    reward_dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float64))
    collect_infos: bool = False
    info_leaves: tuple[Leaf, ...] = ()
    warn_of_unknown_infos: bool = False
    left_out_infos: frozenset[tuple[Any, ...]] = frozenset()

    def describe(self, env: gym.Env[Any, Any]) -> GymEnvDescription:
        """What an env says of itself."""
        return GymEnvDescription.of(env, self)

    @property
    def kinds(self) -> tuple[type, ...]:
        """What the makers may give."""
        return (gym.Env,)

    def host(self, envs: Sequence[gym.Env[Any, Any]], block: Block) -> GymHost:
        """The host that runs the envs over a block."""
        return GymHost(envs, self, block)

    def inputs(self, descriptions: Sequence[GymEnvDescription], block: Block) -> GymInputs:
        """How actions reach a host in another process."""
        return GymInputs(descriptions[0].input_leaves, block)

    @classmethod
    def for_gymnasium(cls, reward_dtype: np.dtype[Any]) -> GymHostOptions:
        """As gymnasium's vector envs run them: observations cast, every info kept."""
        return cls(conform=casting, reward_dtype=reward_dtype, collect_infos=True)


@dataclass(frozen=True)
class GymEnvDescription:
    """Spaces and facts of one gymnasium env, and the leaves that follow from them."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None
    options: GymHostOptions

    @classmethod
    def of(cls, env: gym.Env[Any, Any], options: GymHostOptions) -> GymEnvDescription:
        """What an env says of itself."""
        return cls(env.observation_space, env.action_space, dict(env.metadata), env.render_mode, options)

    @property
    def input_leaves(self) -> tuple[Leaf, ...]:
        """The action."""
        tree = action_tree(self.action_space)
        return tuple(Leaf(leaf.key, leaf.shape, leaf.dtype) for leaf in tree.leaves)

    @property
    def root_leaves(self) -> tuple[Leaf, ...]:
        """The observation and, if they are to be leaves, the infos with a mask of those present."""
        tree = observation_tree(self.observation_space)
        observation = [Leaf(leaf.key, leaf.shape, leaf.dtype) for leaf in tree.leaves]
        infos = [
            part
            for leaf in self.options.info_leaves
            for part in (
                Leaf(("info", *leaf.key), leaf.shape, leaf.dtype),
                Leaf(("info", "_mask", *leaf.key), (), np.dtype(np.bool_)),
            )
        ]
        return (*observation, *infos)

    @property
    def next_leaves(self) -> tuple[Leaf, ...]:
        """What the root has, with reward and end-of-episode flags, and the records of infos that are collected."""
        flag = np.dtype(np.bool_)
        return (
            *self.root_leaves,
            *(INFO_LEAVES if self.options.collect_infos else ()),
            Leaf(("reward",), (), self.options.reward_dtype),
            Leaf(("terminated",), (), flag),
            Leaf(("truncated",), (), flag),
        )


class GymHost(FollowsPaths):
    """Runs gymnasium envs, one a row.

    Args:
        envs: the envs, as many as the block has rows; they are closed by ``close``.
        options: how to run them.
        block: the memory; every row is new, and its first observation will be in ``root``.

    Example:
        >>> from gymbridge.engine.codes import Op
        >>> from gymbridge.engine.layout import Layout
        >>> envs, options = [gym.make("CartPole-v1") for _ in range(2)], GymHostOptions()
        >>> env = GymEnvDescription.of(envs[0], options)
        >>> block = Block(Layout(2, input=env.input_leaves, next=env.next_leaves, root=env.root_leaves))
        >>> host = GymHost(envs, options, block)
        >>> _ = host.run(bytes([Op.RESET, Op.RESET]), None, [{"seed": 0}, {"seed": 1}])
        >>> _ = host.run(bytes([Op.IDLE, Op.STEP]), [np.array([0, 1])])
        >>> block.next["reward",]
        array([0., 1.])
        >>> host.close()
    """

    def __init__(self, envs: Sequence[gym.Env[Any, Any]], options: GymHostOptions, block: Block):
        self.envs = envs
        self._options = options
        groups = {leaf.key[:length] for leaf in options.info_leaves for length in range(1, len(leaf.key) + 1)}
        self._known_infos = groups | options.left_out_infos
        self._warn_of_unknown_infos = options.warn_of_unknown_infos

        self._records = InfoRecords(block) if options.collect_infos else None

        self._called: Sequence[Any] = envs
        """What is called in the rounds of all rows: the envs, or what counts what they do."""
        num_rows = len(self.envs)
        self._first_row = block.layout.first_row
        self._actions = action_tree(self.envs[0].action_space)
        self._one_action = self._actions.is_leaf
        self._no_actions = [None] * num_rows
        self._all_rows = range(num_rows)
        tree = observation_tree(self.envs[0].observation_space)
        self._root = SectionRows(block.root, tree, options.conform, options.info_leaves)
        self._next = SectionRows(block.next, tree, options.conform, options.info_leaves)
        # setting an item of a memoryview costs less than one of an array, and a string is no number to it
        rewards = block.next["reward",]
        self._reward: Any = memoryview(rewards.data) if rewards.dtype.char in "fd" else NumbersOnly(rewards)
        self._terminated = memoryview(block.next["terminated",].data)
        self._truncated = memoryview(block.next["truncated",].data)
        self._no_flags = memoryview(np.zeros(num_rows, np.bool_).data)
        self._state = block.state
        self._source = block.source
        self._at_work = block.at_work
        self._seeds: list[int | None] = [None] * num_rows
        if not block.in_use:
            self._state[:] = bytes([RowState.NEW]) * num_rows
            self._source[:] = bytes([Source.ROOT]) * num_rows
        self._all_in_next = bytes([Source.NEXT]) * num_rows
        self._whole_steps = {bytes([op]) * num_rows for op in (Op.STEP, Op.STEP_MAYBE_RESET)}
        # one array is by far the most common observation: it has a short way of its own
        self._array_shape: tuple[int, ...] = ()
        self._array_dtype: np.dtype[Any] | None = None
        self._array_rows = [np.empty(0)] * num_rows
        if tree.is_leaf and tree.leaves[0].is_array:
            leaf = tree.leaves[0]
            self._array_shape, self._array_dtype = leaf.shape, leaf.dtype
            self._array_rows = row_views(block.next[leaf.key])

    def run(
        self,
        ops: bytes,
        inputs: Sequence[Any] | None,
        reset_kwargs: Sequence[Mapping[str, Any]] | None = None,
        rows: Sequence[int] | None = None,
        envs: Sequence[Any] | None = None,
    ) -> Report:
        """See :class:`~gymbridge.engine.host.Host`.

        Args:
            ops: one op a row.
            inputs: the actions: for each leaf of the action space an array or a list with one item a row, of which
                those of rows that do not step are ignored; None where no row steps.
            reset_kwargs: keyword arguments of each row's reset.
            rows, envs: the rows that have an op, and what is run in place of the env of each; all rows and their own
                envs unless given. There are neither actions nor keyword arguments for them then.
        """
        report = NOTHING
        actions = self._row_actions(inputs, len(self._no_actions))
        rewards, terminations, truncations, source = self._reward, self._terminated, self._truncated, self._source
        array_shape, array_dtype, array_rows = self._array_shape, self._array_dtype, self._array_rows
        info_leaves, records, at_work = bool(self._options.info_leaves), self._records, self._at_work
        if records is not None and records.used:
            records.clear(ops, rows)
        # the usual round: all rows step, and all did in the last; what it has in common is written once
        usual = ops in self._whole_steps and source.tobytes() == self._all_in_next
        if usual:
            terminations[:] = self._no_flags
            truncations[:] = self._no_flags
        row = -1
        try:
            each = zip(rows or self._all_rows, ops, actions, envs or self._called, strict=False)
            for row, op, action, env in each:
                if not op:
                    continue
                try:
                    if not usual:
                        terminations[row] = truncations[row] = False
                        if op == _RESET:
                            rewards[row] = 0
                            self._next.no_info(row)
                            report = self._reset(row, env, reset_kwargs[row] if reset_kwargs else {}, report)
                            continue
                    at_work[0] = row
                    result = env.step(action)  # looked up now: users put wrappers and methods in place

                    # all checks come before the first write
                    try:
                        observation, reward, terminated, truncated, info = result
                    except (TypeError, ValueError) as error:
                        raise EnvOutputError(
                            f"step: got {outline(result)}, expected (observation, reward, terminated, truncated, info)"
                        ) from error
                    goes_on = terminated is False and truncated is False
                    if not goes_on:
                        terminated, truncated = flag("terminated", terminated), flag("truncated", truncated)
                        goes_on = not (terminated or truncated)
                    as_array = (
                        type(observation) is _Array
                        and observation.dtype is array_dtype
                        and observation.shape == array_shape
                    )
                    values = None if as_array else self._next.checked(observation)
                    if info_leaves:
                        entries = self._next.checked_info(info)
                        if self._warn_of_unknown_infos:  # where warnings are errors, this is a check too
                            self._warn_of_unknown(row, info)
                    elif records is not None and (type(info) is not dict or info):
                        form = records.put(row, OF_STEP, info)
                        if not form:
                            info = snapshot(info)
                    try:
                        rewards[row] = reward
                    except (TypeError, ValueError, OverflowError) as error:
                        raise EnvOutputError(f"reward: got {reward!r}, expected a number") from error

                    if values is None:
                        array_rows[row][...] = observation
                    else:
                        self._next.write(row, values)
                    if not usual:
                        source[row] = _IN_NEXT
                        self._state[row] = _RUNNING
                    if info_leaves:
                        self._next.write_info(row, entries)
                    elif records is not None and info:
                        if form:
                            records.numbers[2 * row + OF_STEP] = form
                        else:
                            report = _own(report)
                            report.steps[row] = info
                    if not goes_on:
                        terminations[row] = terminated
                        truncations[row] = truncated
                        self._state[row] = _ENDED
                        if op == _STEP_MAYBE_RESET:
                            report = self._reset(row, env, reset_kwargs[row] if reset_kwargs else {}, report)
                except Exception as error:
                    report = _own(report)
                    report.errors[row] = error
                    self._state[row] = _FAILED
                    if not (terminations[row] or truncations[row]):  # else the step is whole, and it was the reset
                        rewards[row] = 0
                        self._next.no_info(row)
        except BaseException:  # an interrupt: the caller will not see what the rows up to here did
            if rows is None:
                fail_rows(self._state, ops[: row + 1])
            for each_row in rows or ():
                self._state[each_row] = _FAILED
            raise
        return IN_BLOCK if report is NOTHING and records is not None and records.used else report

    def count(self, tally: Tally) -> None:
        """See :class:`~gymbridge.engine.host.EnvHost`."""
        self._called = counted(self.envs, tally)

    def _row_actions(self, inputs: Sequence[Any] | None, num_rows: int) -> Iterable[Any]:
        """The action of each row."""
        if inputs is None:
            return self._no_actions
        actions: Iterable[Any] = inputs[0] if self._one_action else self._actions.rows(inputs, num_rows)
        return actions

    def _reset(self, row: int, env: Any, kwargs: Mapping[str, Any], report: Report) -> Report:
        self._at_work[0] = _AT_RESET | row
        result = env.reset(**self._with_seed(row, kwargs))
        try:
            if type(result) is not tuple and isinstance(result, (Mapping, np.ndarray, str)):
                raise TypeError("an observation alone, which unpacks too where it has two items")
            observation, info = result
        except (TypeError, ValueError) as error:
            raise EnvOutputError(f"reset: got {outline(result)}, expected (observation, info)") from error
        values = self._root.checked(observation)
        if self._options.info_leaves:
            entries = self._root.checked_info(info)
            if self._warn_of_unknown_infos:
                self._warn_of_unknown(row, info)
            self._root.write_info(row, entries)
        elif self._records is not None and (type(info) is not dict or info):
            form = self._records.put(row, OF_RESET, info)
            if form:
                self._records.numbers[2 * row + OF_RESET] = form
            else:
                info = snapshot(info)
                report = _own(report)
                report.resets[row] = info
        self._root.write(row, values)
        self._source[row] = _IN_ROOT
        self._state[row] = _RUNNING
        self._seeds[row] = None  # a seed is for one reset
        return report

    def _with_seed(self, row: int, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Keyword arguments of a row's reset, with the seed that waits for it."""
        seed = self._seeds[row]
        return kwargs if seed is None else {"seed": seed, **kwargs}

    # ---------------------------------------------------------------- envs that are called by others

    _call_kind = GymCall

    def time_calls(self) -> None:
        """See :class:`~gymbridge.engine.env_calls.CallingHost`."""
        self._call_kind = TimedGymCall

    def prepare_thread(self) -> None:
        """See :class:`~gymbridge.engine.env_calls.CallingHost`."""

    def calls(
        self,
        rows: Sequence[int],
        ops: bytes,
        inputs: Sequence[Any] | None,
        reset_kwargs: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[GymCall]:
        """See :class:`~gymbridge.engine.env_calls.CallingHost`."""
        actions = self._row_actions(copied(inputs), len(rows))
        made = []
        for index, (row, op, action) in enumerate(zip(rows, ops, actions, strict=False)):
            kwargs: Mapping[str, Any] = {}
            if op in _RESETTING:
                kwargs = self._with_seed(row, copied(dict(reset_kwargs[index])) if reset_kwargs else {})
            if op:
                made.append(self._call_kind(row, op, self.envs[row], action, kwargs))
        return made

    def finish(self, calls: Sequence[GymCall], *, by_row: bool = False) -> Report:
        """See :class:`~gymbridge.engine.env_calls.CallingHost`."""
        rows = [call.row for call in calls]
        report = self.run(bytes([call.op for call in calls]), None, None, rows, calls)
        if by_row or report is NOTHING or report is IN_BLOCK:
            return report
        index = {row: at for at, row in enumerate(rows)}
        own = Report()
        for name in ("steps", "resets", "errors"):
            setattr(own, name, {index[row]: value for row, value in getattr(report, name).items()})
        return own

    # ---------------------------------------------------------------- the envs themselves

    def _warn_of_unknown(self, row: int, info: Mapping[str, Any]) -> None:
        unknown = sorted(".".join(map(str, key)) for key, _ in info_entries(info) if key not in self._known_infos)
        if unknown:
            self._warn_of_unknown_infos = False
            warnings.warn(
                f"env {self._first_row + row}: info entries that were not there when the env was looked at are left "
                f"out: {unknown}. Name them with info=Composite(...) to keep them.",
                stacklevel=2,
            )

    def info_form(self, row: int, number: int) -> InfoForm:
        """The form of a number that the block has for a row's info."""
        assert self._records is not None
        return self._records.form(number)

    def attribute(self, row: int, name: str) -> Any:
        """See :class:`~gymbridge.engine.host.Host`; an attribute is found through wrappers."""
        return self.envs[row].get_wrapper_attr(name)

    def wrappers(self, row: int) -> list[list[tuple[str, str]]]:
        """The wrappers of a row's env, from the outermost: module and qualified name of each one's class and its bases.

        Names, since a class may cost its importer much, or be none that another process can import.
        """
        env, wrappers = self.envs[row], []
        while isinstance(env, gym.Wrapper):
            wrappers.append([(kind.__module__, kind.__qualname__) for kind in type(env).__mro__])
            env = env.env
        return wrappers

    def set_attribute(self, row: int, name: str, value: Any) -> None:
        """See :class:`~gymbridge.engine.host.Host`; set where a wrapper or the env has it, else on the outermost."""
        self.envs[row].set_wrapper_attr(name, value)

    def call(self, row: int, name: str, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """See :class:`~gymbridge.engine.host.Host`."""
        value = self.attribute(row, name)
        return value(*args, **(kwargs or {})) if callable(value) else value

    def seed(self, row: int, seed: int | None, static_seed: bool) -> None:
        """See :class:`~gymbridge.engine.host.Host`; it waits for the reset, whose own ``seed`` wins over it."""
        self._seeds[row] = seed

    def faults(self, row: int, num_steps: int, seed: int | None) -> list[str]:
        """See :class:`~gymbridge.engine.host.Host`."""
        self._state[row] = RowState.NEW
        return env_faults(self.envs[row], num_steps, seed)

    def state(self, row: int) -> dict[str, Any]:
        """See :class:`~gymbridge.engine.host.Host`."""
        return {**env_state(self.envs[row]), "row": self._state[row]}

    def load_state(self, row: int, state: Mapping[str, Any]) -> None:
        """See :class:`~gymbridge.engine.host.Host`; an env without ``set_state`` stays in its episode."""
        load_env_state(self.envs[row], state)
        if "state" in state and "row" in state:
            self._state[row] = state["row"]

    def close(self) -> None:
        """See :class:`~gymbridge.engine.host.Host`."""
        close_all(self.envs)


def close_all(envs: Iterable[Any]) -> None:
    """Closes each of ``envs``, also where another's ``close`` raises; raises the first error at the end.

    The error gets ``env_index``, its env's place among these.
    """
    errors = []
    for index, env in enumerate(envs):
        try:
            env.close()
        except Exception as error:
            with suppress(Exception):  # whatever its type does to those who set an attribute
                error.env_index = index  # type: ignore[attr-defined]
            errors.append(error)
    if errors:
        raise errors[0]


def _own(report: Report) -> Report:
    return Report() if report is NOTHING else report
