"""A gymbridge engine as a Stable-Baselines3 ``VecEnv``; needs the extra ``gymbridge[sb3]``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError

try:
    from stable_baselines3.common.vec_env import base_vec_env
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "stable_baselines3":
        raise
    raise ImportError(
        "gymbridge.interop.sb3 needs Stable-Baselines3, which is not installed: pip install 'gymbridge[sb3]'"
    ) from error

from gymbridge.engine.calls import OneCallAtATime, exclusive
from gymbridge.engine.gym_host import GymEnvDescription
from gymbridge.interop.row_rounds import GymRounds, RowRounds, Stepped, actions_by_leaf
from gymbridge.vector.async_vector_env import AsyncVectorEnv
from gymbridge.vector.engine_vector_env import EngineVectorEnv

if TYPE_CHECKING:
    from gymbridge.batched import BatchedEnvBase

__all__ = ["VecEnv"]

Indices = int | Iterable[int] | None
Transition = tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]

_OPTIONS = frozenset(
    {
        *(
            "shared_memory",
            "daemon",
            "observation_mode",
            "max_concurrency",
            "num_workers",
            "reward_dtype",
            "worker_affinity",
        ),
        *("start_timeout", "step_timeout", "shutdown_timeout", "on_worker_failure", "max_restarts"),
    }
)
"""Arguments of :class:`~gymbridge.vector.AsyncVectorEnv` that are taken with makers of envs."""


class VecEnv(OneCallAtATime, base_vec_env.VecEnv):
    """Stable-Baselines3's ``VecEnv`` over a gymbridge engine, with the results of ``SubprocVecEnv``.

    Where an episode ends, the env is reset in the same step: the observation is the first of the next episode, the last
    one is in ``info["terminal_observation"]``, and ``info["TimeLimit.truncated"]`` says whether the episode was cut
    off. Everything else of an info is what the env gave. Seeds and options wait for the next :meth:`reset`, after which
    they are used up.

    Args:
        engine: makers of gymnasium envs, one callable each, which run in worker processes as those of a
            :class:`~gymbridge.vector.AsyncVectorEnv` do; or an engine that is there already: a
            :class:`~gymbridge.vector.AsyncVectorEnv`, a :class:`~gymbridge.vector.SyncVectorEnv` (the envs run in this
            process, as those of ``DummyVecEnv``), a :class:`~gymbridge.ParallelEnv` or another batch. It is closed with
            this env. A vector env's own autoreset mode plays no part.
        start_method: how workers are started, as for ``SubprocVecEnv``: ``"fork"``, ``"spawn"`` or ``"forkserver"``;
            None for the default, which needs no ``if __name__ == "__main__":``. For makers only.
        options: for makers only, see :class:`~gymbridge.vector.AsyncVectorEnv`: ``num_workers``, ``worker_affinity``,
            ``start_timeout``, ``step_timeout``, ``shutdown_timeout``, ``on_worker_failure``, ``max_restarts``,
            ``max_concurrency``, ``shared_memory``, ``daemon``, ``observation_mode``, ``reward_dtype``.

    Attributes:
        num_envs, observation_space, action_space, render_mode, reset_infos: see Stable-Baselines3.
        metadata: that of the first env.
        engine: what has been made of the makers, or what was given.

    Raises:
        TypeError: no engine, or an option that there is not.
        RuntimeError: envs whose spaces differ; the message names one.
        ValueError: an engine that hands out torch tensors or views, or that has one env object twice.

    What a maker raises comes through, marked with its env.

    Example:
        >>> import gymnasium as gym
        >>> import numpy as np
        >>> env = VecEnv([lambda: gym.make("CartPole-v1")] * 3)
        >>> env.seed(42)
        [42, 43, 44]
        >>> env.reset().shape
        (3, 4)
        >>> observations, rewards, dones, infos = env.step(np.array([0, 1, 1]))
        >>> rewards, infos[0]
        (array([1., 1., 1.]), {'TimeLimit.truncated': False})
        >>> env.close()
    """

    def __init__(
        self,
        engine: Sequence[Callable[[], gym.Env[Any, Any]]] | EngineVectorEnv[Any] | BatchedEnvBase,
        start_method: str | None = None,
        **options: Any,
    ):
        self.closed = True  # nothing to close yet
        self.waiting = False
        self.engine: Any = _engine(engine, start_method, options)
        try:
            self._rounds = _rounds(self.engine)
            envs = self._rounds.envs
            self.closed = False
            super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        except BaseException:
            self.closed = True
            if self.engine is not engine:  # made here
                self.engine.close()
            raise
        metadata = envs.metadata
        self.metadata = {key: value for key, value in metadata.items() if key != "autoreset_mode"}

    # ---------------------------------------------------------------- reset and step

    @exclusive
    def reset(self) -> Any:
        """Resets all envs, with the seeds and options that wait; a step under way is waited for and dropped.

        Returns:
            Observations: an array ``[num_envs, ...]``, or a dict or tuple of these. The infos are in ``reset_infos``.

        Raises:
            ClosedEnvironmentError: the env is closed.

        What an env raises comes through.
        """
        self._require_open("reset")
        if self.waiting:
            self.waiting = False
            self._rounds.drop_step()
        observations, self.reset_infos = self._rounds.reset(self._seeds, self._options)
        self._reset_seeds()
        self._reset_options()
        return observations

    @exclusive
    def step_async(self, actions: Any) -> None:
        """Has the envs begin a step, which :meth:`step_wait` ends.

        Args:
            actions: an action an env: an array ``[num_envs, ...]`` or a list; a list of dicts or tuples where the space
                is one.

        Raises:
            ClosedEnvironmentError: the env is closed.
            AlreadyPendingCallError: a step is under way.
            ResetNeeded: an env has raised since the last :meth:`reset`.
            ValueError, TypeError, KeyError: actions that do not fit the action space; no env has been stepped then.
        """
        if self.closed or self.waiting:
            self._require_idle("step_async")
        self.waiting = True  # before it has begun: an interrupt right after would else leave it unseen
        try:
            self._rounds.begin_step(actions_by_leaf(self.action_space, actions, self.num_envs))
        except BaseException:
            self.waiting = False
            raise

    @exclusive
    def step_wait(self) -> Transition:
        """What the step gave that :meth:`step_async` has begun.

        Returns:
            observations; rewards ``[num_envs]``, float64 unless the engine has another dtype; dones ``[num_envs]``,
            bool; infos, a list with each env's own dict.

        Raises:
            ClosedEnvironmentError: the env is closed.
            NoAsyncCallError: no step is under way.

        What an env raises comes through; :meth:`last_partial` then has what the others gave.
        """
        self._require_open("step_wait")
        if not self.waiting:
            raise NoAsyncCallError("step_wait: no step is under way, expected a call of step_async first", "step")
        self.waiting = False
        stepped = self._rounds.end_step()
        for row, info in stepped.reset_infos.items():
            self.reset_infos[row] = info
        return _transition(stepped)

    def last_partial(self) -> Transition | None:
        """What the other envs gave in the last step in which an env raised; None if none ever did.

        The envs that raised have their latest observation, reward zero and an empty info. Of a batch
        (:class:`~gymbridge.ParallelEnv` and the like), ``engine.last_partial()`` has it as a TensorDict instead.
        """
        stepped = self._rounds.last_partial()
        return None if stepped is None else _transition(stepped)

    def set_options(self, options: list[dict[str, Any]] | dict[str, Any] | None = None) -> None:
        """Gives the envs options for their next reset.

        Args:
            options: a dict for all, of which each gets a copy, or a list with one each.

        Raises:
            ValueError: a list of another length than there are envs.
        """
        if options is not None and not isinstance(options, Mapping) and len(options) != self.num_envs:
            raise ValueError(f"options: got {len(options)} dicts, expected {self.num_envs}, one for each env")
        super().set_options(options)

    # ---------------------------------------------------------------- the envs themselves

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Attribute ``attr_name`` of each env that ``indices`` names, of all unless given; wrappers are looked through.

        Raises:
            AttributeError: an env has none of this name.
        """
        return self._ask("get_attr", "attribute", (attr_name,), indices)

    def has_attr(self, attr_name: str) -> bool:
        """Whether every env has an attribute; what it is does not matter, also where it could not be pickled."""
        if self._of_gymnasium:
            return all(self._ask("has_attr", "call", ("has_wrapper_attr", (attr_name,)), None))
        try:
            self._ask("has_attr", "attribute", (attr_name,), None)
        except AttributeError:
            return False
        return True

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Sets an attribute of the envs that ``indices`` names, of their outermost wrapper as ``setattr`` would.

        ``env_method("set_wrapper_attr", attr_name, value)`` sets it where a wrapper or the env has it.
        """
        if self._of_gymnasium:
            self._ask("set_attr", "call", ("__setattr__", (attr_name, value)), indices)
        else:
            self._ask("set_attr", "set_attribute", (attr_name, value), indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """What method ``method_name`` gives, called with the arguments, of each env that ``indices`` names.

        Raises:
            AttributeError: an env has none of this name.
            TypeError: it is nothing that can be called.
        """
        return self._ask("env_method", "follow", ([method_name], (method_args, method_kwargs)), indices)

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        """Whether a wrapper of each env that ``indices`` names is of this class, or of one derived from it.

        Classes are told by module and name; no worker imports one for this.

        Raises:
            TypeError: no class.
        """
        if not isinstance(wrapper_class, type):
            raise TypeError(f"wrapper_class: got {wrapper_class!r}, expected a class")
        if not self._of_gymnasium:
            return [False for _ in self._rows(indices)]
        name = wrapper_class.__module__, wrapper_class.__qualname__
        return [
            any(name in bases for bases in wrappers)
            for wrappers in self._ask("env_is_wrapped", "wrappers", (), indices)
        ]

    def get_images(self) -> Sequence[np.ndarray | None]:
        """What each env renders where the render mode is ``"rgb_array"``; else None for each, with a warning."""
        if self.render_mode != "rgb_array":
            gym.logger.warn(f"get_images: render_mode is {self.render_mode!r}, and only 'rgb_array' gives images")
            return [None] * self.num_envs
        return self.env_method("render")

    @exclusive
    def _ask(self, call: str, verb: str, arguments: tuple[Any, ...], indices: Indices) -> list[Any]:
        """A verb of the host for some envs; ``call`` is what the user called."""
        self._require_idle(call)
        engine = self._rounds.engine
        if indices is None:
            return engine.each(verb, [arguments] * self.num_envs)
        return [engine.ask(verb, row, *arguments) for row in self._rows(indices)]

    def _rows(self, indices: Indices) -> list[int]:
        """Numbers of the envs that are meant; negative ones count from the end."""
        if indices is None:
            return [*range(self.num_envs)]
        given = [indices] if isinstance(indices, (int, np.integer)) else [*indices]
        for index in given:
            if not -self.num_envs <= index < self.num_envs:
                raise IndexError(f"indices: got {index}, expected numbers of {self.num_envs} envs")
        return [int(index) % self.num_envs for index in given]

    @property
    def _of_gymnasium(self) -> bool:
        """Whether the envs are gymnasium's, not TensorDict envs."""
        return isinstance(self._rounds.engine.descriptions[0], GymEnvDescription)

    def stats(self, *, reset: bool = False) -> dict[str, Any]:
        """What the engine's workers have done, see :meth:`gymbridge.SerialEnv.stats`."""
        counts: dict[str, Any] = self.engine.stats(reset=reset)
        return counts

    # ---------------------------------------------------------------- open, closed, copied

    def _require_open(self, call: str) -> None:
        if self.closed or self._rounds.envs.closed:
            raise ClosedEnvironmentError(f"{call}: the VecEnv is closed")

    def _require_idle(self, call: str) -> None:
        self._require_open(call)
        if self.waiting:
            raise AlreadyPendingCallError(f"{call}: a step is under way, expected a call of step_wait first", "step")

    @exclusive
    def close(self) -> None:
        """Closes the engine, once; a step under way is waited for. Raises the first error of an env's ``close``."""
        if self.closed:
            return
        self.closed = True
        self.waiting = False
        self._rounds.envs.close()


def _engine(engine: Any, start_method: str | None, options: dict[str, Any]) -> Any:
    """The engine that was given, or the one that is made of makers."""
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise TypeError(f"VecEnv: got the options {sorted(unknown)}, expected some of {sorted(_OPTIONS)}")
    if isinstance(engine, Iterable) and not isinstance(engine, (str, Mapping)) and not hasattr(engine, "step"):
        return AsyncVectorEnv([*engine], context=start_method, **options)
    given = [*options] + ["start_method"] * (start_method is not None)
    if given:
        raise TypeError(f"VecEnv: got {given} with a {type(engine).__name__}, expected them with makers of envs only")
    return engine


def _rounds(engine: Any) -> RowRounds:
    """The rounds of an engine.

    Raises:
        TypeError: no engine.
    """
    if isinstance(engine, EngineVectorEnv):
        return GymRounds(engine)
    if hasattr(engine, "batch_size"):
        from gymbridge.batched import BatchedEnvBase
        from gymbridge.interop.tensordict_rounds import TensorDictRounds

        if isinstance(engine, BatchedEnvBase):
            return TensorDictRounds(engine)
    raise TypeError(
        f"engine: got {engine!r} of type {type(engine).__name__}, expected a list of callables that make gymnasium "
        f"envs, a gymbridge.vector.AsyncVectorEnv or SyncVectorEnv, or a gymbridge.ParallelEnv or SerialEnv"
    )


def _transition(stepped: Stepped) -> Transition:
    """A step as Stable-Baselines3 has it; the infos get what it adds."""
    dones = stepped.terminated | stepped.truncated
    infos = stepped.infos
    if dones.any():
        cut_off = (stepped.truncated & ~stepped.terminated).tolist()
        for info, is_cut_off in zip(infos, cut_off, strict=True):
            info["TimeLimit.truncated"] = is_cut_off
        for row, observation in stepped.final.items():
            infos[row]["terminal_observation"] = observation
    else:
        for info in infos:
            info["TimeLimit.truncated"] = False
    return stepped.observations, stepped.rewards, dones, infos
