"""What the gymnasium vector envs share: a ``gymnasium.vector.VectorEnv`` over an engine's block.

A subclass says where the envs run by making the engine; all else, from the check of the actions to the infos, is here
and therefore the same for each of them. Nothing here goes through TensorDict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space
from typing_extensions import TypeVar

from gymbridge.engine.calls import OneCallAtATime, exclusive
from gymbridge.engine.codes import Op
from gymbridge.engine.conform import snapshot_of_object
from gymbridge.engine.failures import fail_rows, raise_env_error
from gymbridge.engine.gym_host import GymEnvDescription, GymHostOptions
from gymbridge.engine.host import NOTHING, Engine, Report
from gymbridge.engine.lost_rows import RESTARTED
from gymbridge.engine.reader import BlockReader
from gymbridge.spaces.naming import SpaceLeaf, SpaceTree, action_tree, observation_tree
from gymbridge.vector.actions import ActionLeaves
from gymbridge.vector.autoreset import Autoreset
from gymbridge.vector.custom_spaces import JoinedSamples
from gymbridge.vector.info_reader import InfoReader
from gymbridge.vector.output import NumpyOutput, Output
from gymbridge.vector.reset_arguments import require_observed, row_seeds, split_reset_mask

__all__ = ["OF_THE_BLOCK", "EngineVectorEnv", "ObservationMode"]

EngineType = TypeVar("EngineType", bound=Engine[GymEnvDescription])
ObsType = TypeVar("ObsType", default=Any)
ActType = TypeVar("ActType", default=Any)
_Result = TypeVar("_Result", bound=tuple[Any, ...])

ObservationMode = str | tuple[gym.Space[Any], gym.Space[Any]]


OF_THE_BLOCK = (
    *("_state", "_source", "_reader", "_all_in_next", "_infos", "_reward", "_terminated", "_truncated"),
    "_buffers",
)
"""Attributes of an :class:`EngineVectorEnv` that follow from its engine's block."""


class EngineVectorEnv(OneCallAtATime, VectorEnv[ObsType, ActType, Any], Generic[EngineType, ObsType, ActType]):
    """A ``gymnasium.vector.VectorEnv`` over an engine; made by its subclasses.

    Args:
        make_engine: makes the engine, with its envs; called once the other arguments are seen to be sound.
        copy, observation_mode, autoreset_mode, output: see :class:`~gymbridge.vector.SyncVectorEnv`.

    Attributes:
        copy: whether observations are the caller's own; may be set, for the calls that follow.
    """

    def __init__(
        self,
        make_engine: Callable[[GymHostOptions], EngineType],
        *,
        copy: bool,
        observation_mode: ObservationMode,
        autoreset_mode: AutoresetMode | str,
        output: Output,
    ):
        self.closed = True  # nothing to close yet: some versions of gymnasium close in __del__
        self.copy = copy
        self.observation_mode = observation_mode
        _require_observation_mode(observation_mode)
        self._autoreset = Autoreset(autoreset_mode)
        self._output = output
        self._partial: tuple[Any, ...] | None = None

        self._options = GymHostOptions.for_gymnasium(output.reward_dtype)
        self._engine = make_engine(self._options)
        try:
            self._read_spaces()
            self._allocate()
        except BaseException:
            with suppress(Exception):  # what went wrong first is what the caller is to see
                self._engine.close()
            raise
        self.closed = False

    def _read_spaces(self) -> None:
        """Sets what follows from what the envs say of themselves."""
        first = self._engine.descriptions[0]
        self.num_envs = self._engine.num_envs
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self.single_action_space = first.action_space
        self.action_space = batch_space(first.action_space, self.num_envs)
        self.observation_space, self.single_observation_space = self._observation_spaces()
        self._require_equal_spaces()
        self._tree = observation_tree(self.single_observation_space)
        self._objects = [
            (position, JoinedSamples.of(leaf.space, self.num_envs))
            for position, leaf in enumerate(self._tree.leaves)
            if not leaf.is_array
        ]
        self._output.require(self._tree)
        self._action_leaves = ActionLeaves(action_tree(self.single_action_space), self.num_envs)

    def _allocate(self) -> None:
        """Makes the block and what reads it."""
        self._engine.allocate()
        block = self._engine.block
        self._state, self._source = block.state, block.source
        self._reader = BlockReader(block, [leaf.key for leaf in self._tree.leaves])
        self._all_in_next = self._reader.all_in_next
        final = [*zip(self._reader.next, self._tree.leaves, strict=True)]
        self._infos = InfoReader(self._engine, partial(_final_observation, final, self._tree, self._output))
        self._reward = self._reader.reward
        self._terminated, self._truncated = self._reader.terminated, self._reader.truncated
        self._buffers: list[Any] | None = None
        self._reset_all = bytes([Op.RESET]) * self.num_envs

    def _forget_block(self) -> None:
        """Lets go of the memory, which is no use to anyone once the engine is closed."""
        for name in OF_THE_BLOCK:
            delattr(self, name)

    @property
    def autoreset_mode(self) -> AutoresetMode:
        """What happens at the end of an episode; may be set, for the steps that follow."""
        return self._autoreset.mode

    @autoreset_mode.setter
    def autoreset_mode(self, mode: AutoresetMode | str) -> None:
        self._autoreset = Autoreset(mode)
        self.metadata["autoreset_mode"] = self.autoreset_mode

    @property
    def gives_numpy(self) -> bool:
        """Whether what is handed out is numpy, not torch."""
        return isinstance(self._output, NumpyOutput)

    def stats(self, *, reset: bool = False) -> dict[str, Any]:
        """What the envs' workers have done, and where their time has gone, since this was first called.

        It may be called in any thread, while steps are under way too; after ``close`` it gives what was counted last.

        Args:
            reset: count from zero again. What is under way then counts where it ends.

        Returns:
            ``"workers"``, a list with a dict for each worker process, of an env in this process for the caller alone:
            ``steps``, ``wait_s``, ``step_s`` and ``copy_s``; ``"seconds"``, ``"restarts"``, ``"restarts_of"`` and
            ``"timeouts"``. :meth:`gymbridge.SerialEnv.stats` says what each is.

        Example:
            >>> import gymnasium as gym
            >>> from gymbridge.vector import SyncVectorEnv
            >>> envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3)
            >>> _ = envs.stats()
            >>> _ = envs.reset(), envs.step([0, 1, 1])
            >>> (caller,) = envs.stats()["workers"]
            >>> caller["steps"], [*caller]
            (3, ['steps', 'wait_s', 'step_s', 'copy_s'])
            >>> envs.close()
        """
        return self._engine.stats(reset=reset)

    # ---------------------------------------------------------------- spaces

    def _observation_spaces(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """The batched space and the single one."""
        mode = self.observation_mode
        envs_spaces = [env.observation_space for env in self._engine.descriptions]
        if isinstance(mode, tuple):
            return mode
        if mode == "same":
            return batch_space(envs_spaces[0], self.num_envs), envs_spaces[0]
        for index, space in enumerate(envs_spaces):
            if type(space) is not type(envs_spaces[0]):
                raise TypeError(
                    f"env {index}: got the observation space {space}, expected a {type(envs_spaces[0]).__name__} "
                    f"as env 0 has it"
                )
        try:
            return batch_differing_spaces(envs_spaces), envs_spaces[0]
        except AssertionError as error:  # gymnasium before 1.4
            unknown = type(envs_spaces[0]) not in batch_differing_spaces.registry
            raise (TypeError if unknown else ValueError)(f"observation_mode='different': {error}") from error

    def _require_equal_spaces(self) -> None:
        same = self.observation_mode == "same"
        for index, env in enumerate(self._engine.descriptions):
            got, expected = env.observation_space, self.single_observation_space
            if same and got != expected:
                raise RuntimeError(
                    f"env {index}: got the observation space {got}, expected {expected} as env 0 has it; "
                    f"if they are meant to differ, use observation_mode='different'"
                )
            if not same and not is_space_dtype_shape_equiv(got, expected):
                raise RuntimeError(
                    f"env {index}: got the observation space {got}, expected one of the shape and dtype of {expected}"
                )
            if env.action_space != self.single_action_space:
                raise RuntimeError(
                    f"env {index}: got the action space {env.action_space}, expected {self.single_action_space} "
                    f"as env 0 has it"
                )

    # ---------------------------------------------------------------- reset and step

    @exclusive
    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets all envs, or those that ``options["reset_mask"]`` names.

        Args:
            seed: one int (env ``i`` gets ``seed + i``), a list with a seed or None for each env, or None.
            options: handed to each env; a ``"reset_mask"`` in it, a bool array ``[num_envs]``, is not, and the dict
                itself stays as it is.

        Returns:
            Observations of all envs, those not reset having their latest, and the infos of the envs that were reset.

        Raises:
            ClosedEnvironmentError: the vector env is closed.
            gymnasium.error.Error: a negative seed.
            ValueError, TypeError: what is no seed, a wrong number of them, or a mask of another type, shape or dtype
                or without a True.
        """
        self._require_open("reset")
        ops, kwargs = self._reset_round(seed, options)
        return self._after_reset(ops, self._engine.run(ops, None, kwargs))

    def _reset_round(self, seed: Any, options: dict[str, Any] | None) -> tuple[bytes, list[dict[str, Any]]]:
        """The ops of a reset, and what each env's ``reset`` is given."""
        seeds = row_seeds(seed, self.num_envs)
        ops, options = self._reset_ops(options)
        return ops, [{"seed": seed, "options": options} for seed in seeds]

    def _after_reset(self, ops: bytes, report: Report) -> tuple[Any, dict[str, Any]]:
        """What a reset returns, once the envs are done."""
        try:
            infos = {} if report is NOTHING else self._infos.read(ops, report)
            result = (self._observations(), infos)
        except BaseException:
            fail_rows(self._state, ops)
            raise
        return result if report is NOTHING else self._finish(result, report)

    @exclusive
    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the envs; those whose episode ended are treated as the autoreset mode says.

        Args:
            actions: a batch of ``action_space``: numpy, torch on any device, a list, or a dict or tuple of these.

        Returns:
            observations, rewards ``[num_envs]``, terminations and truncations ``[num_envs]`` bool, infos.

        Raises:
            ClosedEnvironmentError: the vector env is closed.
            ResetNeeded: an env has to be reset before it can be stepped.
            ValueError, TypeError, KeyError: actions that do not fit the action space; no env has been stepped then.
            EnvOutputError: an env returned what its spaces do not allow.

        What an env raises comes through; :meth:`last_partial` then has what the others gave.
        """
        if self.closed:
            self._require_open("step")
        leaves = self._action_leaves(actions)
        ops = self._step_ops()
        return self._after_step(ops, self._engine.run(ops, leaves))

    def _step_ops(self) -> bytes:
        """The op of each row."""
        engine = self._engine
        if engine.unsettled:
            engine.settle()
        try:
            return self._autoreset.ops(self._state.tobytes())
        except ResetNeeded:
            engine.require_workers()  # no reset helps where a worker is dead
            raise

    def _after_step(self, ops: bytes, report: Report) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """What a step returns, once the envs are done."""
        try:
            infos: dict[str, Any] = {}
            ended = self._source.tobytes() if self._autoreset.is_same_step else None
            if report is not NOTHING or not (ended is None or ended == self._all_in_next):
                infos = self._infos.read(ops, report, ended)
            result = (
                self._observations(),
                *self._output.outcome(self._reward, self._terminated, self._truncated),
                infos,
            )
            if report.lost:
                infos[RESTARTED] = self._reader.picked(report.lost)
                infos[f"_{RESTARTED}"] = self._reader.picked(report.lost)
        except BaseException:  # an interrupt or no memory: the caller does not see what the envs did
            fail_rows(self._state, ops)
            raise
        return result if report is NOTHING else self._finish(result, report)

    def last_partial(self) -> tuple[Any, ...] | None:
        """What the other envs gave in the last call in which an env raised; None if none ever did.

        Returns:
            What that call would have returned, with ``infos["_failed"]``, bool ``[num_envs]``, true for the envs that
            raised: their rows have the latest observation, reward zero and no flag. A row whose step went well and
            whose reset right after it raised has what the step gave.
        """
        return self._partial

    def _finish(self, result: _Result, report: Report) -> _Result:
        """Hands the result out, or keeps it and raises what an env raised."""
        if not report.errors:
            return result
        result[-1]["_failed"] = self._reader.picked(report.errors)
        self._partial = result
        raise_env_error(report.errors)

    def _require_open(self, call: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError(
                f"{call}: Trying to operate on `{type(self).__name__}`, after a call to `close()`."
            )

    # ---------------------------------------------------------------- what goes in

    def _reset_ops(self, options: dict[str, Any] | None) -> tuple[bytes, dict[str, Any] | None]:
        """The op of each row, and the options that the envs are to see."""
        mask, options = split_reset_mask(options, self.num_envs)
        if mask is None:
            return self._reset_all, options
        if self._engine.unsettled:
            self._engine.settle()
        require_observed(self._state.tobytes(), mask)
        ops = mask.astype(np.uint8).tobytes()  # False is IDLE, True is RESET
        return ops, options

    # ---------------------------------------------------------------- what comes out

    def _observations(self) -> Any:
        """Each row's latest observation, the caller's own unless ``copy=False``."""
        if not self.copy and self._buffers is None:
            self._buffers = [np.zeros_like(array) for array in self._reader.next]
        results: list[Any] = self._reader.latest(None if self.copy else self._buffers)
        if self._objects:
            results = self._with_objects_joined(results)
        parts = self._output.observation(results)
        return parts[0] if self._tree.is_leaf else self._tree.unflatten(parts)

    def _with_objects_joined(self, arrays: Sequence[Any]) -> list[Any]:
        """The arrays, and in place of one of objects a batch, a tuple as a rule, of copies unless ``copy=False``."""
        results = list(arrays)
        for position, samples in self._objects:
            objects = tuple(map(snapshot_of_object, results[position]) if self.copy else results[position])
            results[position] = objects if samples is None else samples.joined(objects, self.copy)
        return results

    # ---------------------------------------------------------------- the envs themselves

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The random generator of each env."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each env's random generator."""
        return self.get_attr("np_random_seed")

    @exclusive
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Attribute ``name`` of each env, called with the arguments where it is callable."""
        self._require_open("call")
        return tuple(self._engine.each("call", [(name, args, kwargs)] * self.num_envs))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Attribute ``name`` of each env."""
        return self.call(name)

    @exclusive
    def set_attr(self, name: str, values: list[Any] | tuple[Any, ...] | Any) -> None:
        """Sets an attribute of each env.

        Args:
            name: the attribute.
            values: a list or tuple has one value for each env; anything else is the value for all.

        Raises:
            ValueError: a list or tuple of another length.
        """
        self._require_open("set_attr")
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"values: got {len(values)} values, expected {self.num_envs}, one for each env")
        self._engine.each("set_attribute", [(name, value) for value in values])

    @exclusive
    def render(self) -> tuple[Any, ...]:
        """What each env renders."""
        self._require_open("render")
        return tuple(self._engine.each("call", [("render",)] * self.num_envs))

    @exclusive
    def close(self, **kwargs: Any) -> None:
        """Closes the envs, once; see :meth:`close_extras`."""
        super().close(**kwargs)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the envs, each of them even if another's ``close`` raises; raises the first error at the end."""
        self.closed = True  # before the envs are: one that raises is not to be closed twice
        self._engine.close()


def _final_observation(final: Sequence[tuple[Any, SpaceLeaf]], tree: SpaceTree, output: Output, row: int) -> Any:
    """The observation that ended a row's episode, as one env of the space has it.

    Args:
        final: arrays of the block's ``next``, with the leaves of the space.
        tree, output: the space, and what the caller is given for arrays.
        row: the row.
    """
    values = [array[row].copy() if leaf.is_array else snapshot_of_object(array[row]) for array, leaf in final]
    return tree.unflatten(output.observation(values))


def _require_observation_mode(mode: Any) -> None:
    """Refuses what is no observation mode."""
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, gym.Space) for space in mode):
            raise TypeError(
                f"observation_mode: got {type(mode[0])} and {type(mode[1])}, "
                f"expected two gymnasium Spaces: the batched one, then that of one env"
            )
    elif not (isinstance(mode, str) and mode in ("same", "different")):
        raise ValueError(
            f"observation_mode: got {mode!r}, expected 'same', 'different' or a tuple of the batched and the single "
            f"space"
        )
