"""Rounds of a TensorDict batch, env by env; see :mod:`gymbridge.interop.row_rounds`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gymbridge.batched import BatchedEnvBase
from gymbridge.engine.host import Engine
from gymbridge.interop.row_rounds import Info, Stepped, infos_by_row, refuse_to_step
from gymbridge.vector.autoreset import Autoreset
from gymbridge.vector.tensordict_vector_env import TensorDictVectorEnv

__all__ = ["TensorDictRounds"]


class TensorDictRounds:
    """The rounds of a :class:`~gymbridge.SerialEnv`, a :class:`~gymbridge.ParallelEnv` or a pool.

    A step is made when it is ended, and infos are those that the batch keeps.

    Args:
        env: the batch.

    Raises:
        ValueError: a batch of envs that differ, or that are batches themselves.

    Example:
        >>> from gymbridge import SerialEnv
        >>> rounds = TensorDictRounds(SerialEnv(2, "CartPole-v1"))
        >>> observations, infos = rounds.reset([0, 1], [{}, {}])
        >>> rounds.begin_step([0, 1])
        >>> rounds.end_step().rewards
        array([1., 1.])
        >>> rounds.envs.close()
    """

    def __init__(self, env: BatchedEnvBase):
        self.envs = TensorDictVectorEnv(env, autoreset_mode="SameStep")
        self._env = env
        self._autoreset = Autoreset("SameStep")
        self._actions: Any = None

    @property
    def engine(self) -> Engine[Any]:
        """See :class:`~gymbridge.interop.row_rounds.RowRounds`."""
        return self._env.engine

    def reset(self, seeds: Sequence[int | None], options: Sequence[Info]) -> tuple[Any, list[Info]]:
        """See :class:`~gymbridge.interop.row_rounds.RowRounds`.

        Raises:
            ValueError: options that differ from env to env.
        """
        if any(given != options[0] for given in options):
            raise ValueError(
                f"options: got {[*options]}, expected the same for each env: a {type(self._env).__name__} is reset "
                f"with one dict for all"
            )
        seed = None if all(seed is None for seed in seeds) else [*seeds]
        observations, infos = self.envs.reset(seed=seed, options=options[0] or None)
        return observations, infos_by_row(infos, self.envs.num_envs)

    def begin_step(self, actions: Any) -> None:
        """See :class:`~gymbridge.interop.row_rounds.RowRounds`."""
        states = self.engine.block.state.tobytes()
        refused = self._autoreset.refused(states)
        if refused:
            self.engine.require_workers()
            refuse_to_step(states, refused)
        space = self.envs.single_action_space
        if (
            isinstance(actions, np.ndarray)
            and space.dtype is not None
            and space.dtype.kind == "i" != actions.dtype.kind
        ):
            whole = actions.astype(space.dtype)  # a policy over a Bernoulli distribution gives floats
            actions = whole if np.array_equal(whole, actions) else actions
        self._actions = actions

    def end_step(self) -> Stepped:
        """See :class:`~gymbridge.interop.row_rounds.RowRounds`."""
        actions, self._actions = self._actions, None
        observations, rewards, terminated, truncated, infos = self.envs.step(actions)
        num_envs = self.envs.num_envs
        others = infos_by_row(infos, num_envs)
        final: dict[int, Any] = {}
        reset_infos: dict[int, Info] = {}
        if "final_obs" in infos:
            final_infos = infos_by_row(infos["final_info"], num_envs)
            for row in np.flatnonzero(infos["_final_obs"]).tolist():
                final[row] = infos["final_obs"][row]
                reset_infos[row] = {key: value for key, value in others[row].items() if not key.startswith("final_")}
                others[row] = final_infos[row]
        return Stepped(observations, rewards, terminated, truncated, others, final, reset_infos)

    def drop_step(self) -> None:
        """See :class:`~gymbridge.interop.row_rounds.RowRounds`."""
        self._actions = None

    def last_partial(self) -> Stepped | None:
        """See :class:`~gymbridge.interop.row_rounds.RowRounds`; the batch's own ``last_partial()`` has it."""
        return None
