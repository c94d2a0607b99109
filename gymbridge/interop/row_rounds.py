"""Rounds of an engine env by env: what each env gave, its infos as its own dict, and its reset where its episode ended.

Libraries that know no autoreset modes and no batches of infos (Stable-Baselines3) take them so. All of it is
``SAME_STEP``: an env whose episode ends is reset in the same round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium.error import ResetNeeded
from gymnasium.spaces import MultiBinary

from gymbridge.engine.codes import Op
from gymbridge.engine.failures import fail_rows, raise_env_error, why_not_stepped
from gymbridge.engine.host import NOTHING, Engine, Report
from gymbridge.engine.lost_rows import RESTARTED
from gymbridge.engine.parallel import ParallelEngine
from gymbridge.spaces.naming import action_tree
from gymbridge.vector.autoreset import Autoreset
from gymbridge.vector.engine_vector_env import EngineVectorEnv
from gymbridge.vector.sync_vector_env import SyncVectorEnv

__all__ = ["GymRounds", "RowRounds", "Stepped", "actions_by_leaf", "infos_by_row", "refuse_to_step"]

Info = dict[str, Any]


class Stepped(NamedTuple):
    """What a step gave.

    Attributes:
        observations: each env's latest, a batch: the first of the new episode where one has ended.
        rewards, terminated, truncated: ``[num_envs]``.
        infos: those of each env's step.
        final: env -> the observation that ended its episode.
        reset_infos: env -> those of its reset, for the same envs.
    """

    observations: Any
    rewards: npt.NDArray[np.floating[Any]]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    infos: list[Info]
    final: dict[int, Any]
    reset_infos: dict[int, Info]


class RowRounds(Protocol):
    """The rounds of a vector env's engine.

    Attributes:
        envs: the vector env.
    """

    envs: Any

    @property
    def engine(self) -> Engine[Any]:
        """The engine."""

    def reset(self, seeds: Sequence[int | None], options: Sequence[Info]) -> tuple[Any, list[Info]]:
        """Resets all envs.

        Args:
            seeds: one an env.
            options: one dict an env; an env whose dict is empty is given none.

        Returns:
            A batch of observations, and each env's infos.
        """

    def begin_step(self, actions: Any) -> None:
        """Has the envs begin a step, which ``end_step`` ends; ``actions`` as the vector env takes them."""

    def end_step(self) -> Stepped:
        """Ends the step."""

    def drop_step(self) -> None:
        """Ends the step, whose results nobody wants."""

    def last_partial(self) -> Stepped | None:
        """What the other envs gave in the last step in which an env raised, as far as it is known."""


class GymRounds:
    """The rounds of a :class:`~gymbridge.vector.SyncVectorEnv` or :class:`~gymbridge.vector.AsyncVectorEnv`.

    The vector env's own autoreset mode plays no part, and its own ``reset`` and ``step`` may be used in between.

    Args:
        envs: the vector env.

    Raises:
        ValueError: one that does not hand out numpy arrays which are the caller's own, or has one env twice.

    Example:
        >>> import gymnasium as gym
        >>> from gymbridge.vector import SyncVectorEnv
        >>> rounds = GymRounds(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2))
        >>> observations, infos = rounds.reset([0, 1], [{}, {}])
        >>> rounds.begin_step([0, 1])
        >>> rounds.end_step().infos
        [{}, {}]
        >>> rounds.envs.close()
    """

    def __init__(self, envs: EngineVectorEnv[Any]):
        name = type(envs).__name__
        if not envs.copy:
            raise ValueError(f"engine: got {name}(copy=False), expected copy=True: observations are kept across steps")
        if not envs.gives_numpy:
            raise ValueError(f"engine: got {name}(output='torch'), expected output='numpy'")
        if isinstance(envs, SyncVectorEnv):
            _require_own_envs(envs)
        self.envs = envs
        self._autoreset = Autoreset("SameStep")
        self._ops = b""
        self._leaves: list[Any] = []
        self._partial: Stepped | None = None

    @property
    def engine(self) -> Engine[Any]:
        """See :class:`RowRounds`."""
        engine: Engine[Any] = self.envs._engine
        return engine

    def reset(self, seeds: Sequence[int | None], options: Sequence[Info]) -> tuple[Any, list[Info]]:
        """See :class:`RowRounds`."""
        envs = self.envs
        ops = bytes([Op.RESET]) * envs.num_envs
        own = [{"options": given} if given else {} for given in options]
        report = self.engine.run(ops, None, [{"seed": seed, **rest} for seed, rest in zip(seeds, own, strict=True)])
        try:
            _, resets = envs._infos.each(ops, report)
            result = envs._observations(), [resets.get(row, {}) for row in range(envs.num_envs)]
        except BaseException:  # the caller does not see what the envs did
            fail_rows(envs._state, ops)
            raise
        if report.errors:
            raise_env_error(report.errors)
        return result

    def begin_step(self, actions: Any) -> None:
        """See :class:`RowRounds`; envs of this process are stepped by ``end_step``."""
        leaves = self._action_leaves(actions)
        self._ops = self._step_ops()
        if isinstance(self.engine, ParallelEngine):
            self.engine.send(self._ops, leaves)
        else:
            self._leaves = leaves

    def _action_leaves(self, actions: Any) -> list[Any]:
        envs = self.envs
        space = envs.single_action_space
        if (
            type(space) is MultiBinary
            and isinstance(actions, np.ndarray)
            and actions.dtype.kind == "f"
            and actions.shape == envs.action_space.shape
        ):
            return [actions]  # what a policy over a Bernoulli distribution gives; the env gets it as it is
        leaves: list[Any] = envs._action_leaves(actions)
        return leaves

    def _step_ops(self) -> bytes:
        envs, engine = self.envs, self.engine
        if engine.unsettled:
            engine.settle()
        states = envs._state.tobytes()
        try:
            return self._autoreset.ops(states)
        except ResetNeeded:
            engine.require_workers()  # no reset helps where a worker is dead
            refuse_to_step(states, self._autoreset.refused(states))

    def end_step(self) -> Stepped:
        """See :class:`RowRounds`."""
        report = self._ended()
        try:
            stepped = self._read(report)
            if report.errors:
                self._partial = stepped
        except BaseException:  # an interrupt or no memory: the caller does not see what the envs did
            fail_rows(self.envs._state, self._ops)
            raise
        if report.errors:
            raise_env_error(report.errors)
        return stepped

    def _ended(self) -> Report:
        engine = self.engine
        if isinstance(engine, ParallelEngine):
            return engine.receive()
        leaves, self._leaves = self._leaves, []
        return engine.run(self._ops, leaves)

    def _read(self, report: Report) -> Stepped:
        envs = self.envs
        rows = range(envs.num_envs)
        ended = envs._source.tobytes()  # where a row shows its first observation, its episode has ended in this step
        final: dict[int, Any] = {}
        reset_infos: dict[int, Info] = {}
        if report is NOTHING and ended == envs._all_in_next:
            infos: list[Info] = [{} for _ in rows]
        else:
            steps, resets = envs._infos.each(self._ops, report)
            infos = [steps.get(row, {}) for row in rows]
            for row in rows:
                if ended[row] and row not in report.errors:
                    final[row] = envs._infos.final_observation(row)
                    reset_infos[row] = resets.get(row, {})
            for row in report.lost:
                infos[row][RESTARTED] = True
        rewards, terminated, truncated = envs._output.outcome(envs._reward, envs._terminated, envs._truncated)
        return Stepped(envs._observations(), rewards, terminated, truncated, infos, final, reset_infos)

    def drop_step(self) -> None:
        """See :class:`RowRounds`."""
        if isinstance(self.engine, ParallelEngine):
            self.engine.receive()
        self._leaves = []

    def last_partial(self) -> Stepped | None:
        """See :class:`RowRounds`."""
        return self._partial


def _require_own_envs(envs: SyncVectorEnv) -> None:
    seen: dict[int, int] = {}
    for index, env in enumerate(envs.envs):
        first = seen.setdefault(id(env.unwrapped), index)
        if first != index:
            raise ValueError(f"engine: env {index} is env {first} again, expected makers that make a new env each")


def refuse_to_step(states: bytes, rows: Sequence[int]) -> NoReturn:
    """Says why envs are not stepped.

    Raises:
        ResetNeeded: always.
    """
    raise ResetNeeded(f"{why_not_stepped(states, rows)}: call reset() first")


def actions_by_leaf(space: Any, actions: Any, num_envs: int) -> Any:
    """A batch of actions as a vector env takes it, of one action an env.

    The two differ for ``Dict`` and ``Tuple`` spaces alone: a list of dicts becomes a dict of lists.

    Raises:
        ValueError: another number of actions than envs.

    Example:
        >>> from gymnasium.spaces import Dict, Discrete
        >>> actions_by_leaf(Dict(left=Discrete(2), right=Discrete(2)), [{"left": 0, "right": 1}] * 2, 2)
        {'left': [0, 0], 'right': [1, 1]}
    """
    tree = action_tree(space)
    if tree.is_leaf or isinstance(actions, Mapping):
        return actions
    if len(actions) != num_envs:
        raise ValueError(f"actions: got {len(actions)} actions, expected {num_envs}, one for each env")
    return tree.unflatten([[*leaf] for leaf in zip(*map(tree.flatten, actions), strict=True)])


def infos_by_row(infos: Mapping[str, Any], num_envs: int) -> list[Info]:
    """The infos of a gymnasium vector env, arrays with masks, as a dict for each env.

    Example:
        >>> lives, mask = np.array([3, 0]), np.array([True, False])
        >>> infos_by_row({"lives": lives, "_lives": mask}, 2)
        [{'lives': 3}, {}]
    """
    return [_info_of(infos, row) for row in range(num_envs)]


def _info_of(infos: Mapping[str, Any], row: int) -> Info:
    own: Info = {}
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None or not mask[row]:
            continue
        if isinstance(value, Mapping):
            own[key] = _info_of(value, row)
        else:
            item = value[row]
            own[key] = item.item() if isinstance(item, np.generic) else item
    return own
