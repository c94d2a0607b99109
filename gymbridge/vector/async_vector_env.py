"""``gymnasium.vector.AsyncVectorEnv`` over gymbridge's engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium import logger
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from gymbridge.engine.calls import exclusive
from gymbridge.engine.gym_host import GymEnvDescription
from gymbridge.engine.makers import as_env_fns
from gymbridge.engine.parallel import ParallelEngine, usable_cores
from gymbridge.engine.restarts import OnWorkerFailure, RestartLimit, restart_limit
from gymbridge.engine.time_limits import positive_time_limit
from gymbridge.engine.workers import StartMethod
from gymbridge.errors import CallTimeoutError
from gymbridge.vector.engine_vector_env import ActType, EngineVectorEnv, ObservationMode, ObsType
from gymbridge.vector.output import make_output

if TYPE_CHECKING:
    import torch

__all__ = ["AsyncVectorEnv"]

_NOT_BY_CALL = ("reset", "step", "close")
_BEGUN_BY = {"reset": "reset_async", "step": "step_async", "call": "call_async", "render": "call_async"}
"""Call -> what gymnasium's own begins it with, and names in its errors."""


class AsyncVectorEnv(EngineVectorEnv[ParallelEngine[GymEnvDescription], ObsType, ActType], Generic[ObsType, ActType]):
    """Steps ``N`` gymnasium envs in worker processes, with the results of gymnasium's own class.

    There are as many workers as cores, unless told otherwise, and each runs a contiguous run of the envs in turn. No
    env is made in this process. The default way to start workers needs no ``if __name__ == "__main__":`` and does not
    run the user's script again.

    Args:
        env_fns: one callable an env that makes a ``gymnasium.Env``.
        shared_memory: with False, observations travel in a mapped temporary file instead of in shared memory; results
            and speed are the same. Spaces of any kind work with either.
        copy: hand out observations that stay as they are; if not, they are valid until the next call.
        context: how workers are started: ``"fork"``, ``"spawn"`` or ``"forkserver"`` as ``multiprocessing`` does it;
            None for the default.
        daemon: with ``context``: workers may not start ``multiprocessing`` processes of their own. By default they may.
        observation_mode: ``"same"`` for equal observation spaces, ``"different"`` for spaces of equal shape and dtype
            with other bounds, or a tuple of the batched space and the space of one env.
        autoreset_mode: ``NEXT_STEP``, ``SAME_STEP`` or ``DISABLED``, see :mod:`gymbridge.vector.autoreset`.
        max_concurrency: at most so many envs run at any one time: there are no more workers than this.
        num_workers: worker processes; ``min(N, usable cores)`` unless told, and ``N`` for a process an env.
        output: ``"numpy"``, which gymnasium's own vector wrappers want, or ``"torch"``. Torch is imported for the
            second only, and not in the workers.
        device: where tensors are to be, with ``output="torch"``.
        reward_dtype: dtype of the rewards: a numpy dtype, float64 unless told, or with ``output="torch"`` a torch
            dtype, float32 unless told.
        worker_affinity: the cores of each worker, a sequence with one entry a worker or a function of its number.
        start_timeout: seconds until all envs are made.
        step_timeout: seconds that a step or a reset of one env may take; its worker is ended then. None for no limit.
        shutdown_timeout: seconds that ``close`` gives the workers unless it is told otherwise.
        on_worker_failure: ``"raise"``, or ``"restart"`` to replace a worker that has died: its envs are made anew,
            and their episodes end with the latest observation, a reward of zero and ``truncated``, of which
            ``infos["worker_restarted"]`` tells.
        max_restarts: so many in so many seconds, after which the death is raised.

    Raises:
        RuntimeError: spaces that do not fit together; the message names the env.
        UnsupportedSpaceError: a space without a translation.
        UnpicklableError: a maker that cannot be sent to a worker; the message names the env.
        WorkerStartError: the envs were not made in time.
        ValueError: no env, or an option with a value that it does not have.

    What a maker raises comes through, marked with its env.

    Example:
        >>> import gymnasium as gym
        >>> envs = AsyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3)
        >>> observations, infos = envs.reset(seed=42)
        >>> envs.step_async([0, 1, 1])
        >>> observations, rewards, terminations, truncations, infos = envs.step_wait()
        >>> observations.shape, rewards
        ((3, 4), array([1., 1., 1.]))
        >>> envs.close()
    """

    _of_halves: frozenset[str] = frozenset()

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        observation_mode: ObservationMode = "same",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        *,
        num_workers: int | None = None,
        output: Literal["numpy", "torch"] = "numpy",
        device: torch.device | str | int | None = None,
        reward_dtype: Any = None,
        worker_affinity: Sequence[Iterable[int]] | Callable[[int], Iterable[int]] | None = None,
        start_timeout: float | None = 60.0,
        step_timeout: float | None = None,
        shutdown_timeout: float | None = 10.0,
        on_worker_failure: OnWorkerFailure = "raise",
        max_restarts: RestartLimit = (10, 60.0),
    ):
        self.closed = True  # nothing to close yet: some versions of gymnasium close in __del__
        self._pending = AsyncState.DEFAULT
        self._sent = b""  # the ops of the round under way
        self.env_fns = env_fns
        self.shared_memory = shared_memory
        self.context = context
        self.daemon = daemon
        self.max_concurrency = max_concurrency
        method = _start_method(context)
        limit = restart_limit(on_worker_failure, max_restarts)
        step_timeout = positive_time_limit("step_timeout", step_timeout)
        num_workers = _number_of_workers(num_workers, max_concurrency, len(as_env_fns(env_fns)))
        super().__init__(
            lambda options: ParallelEngine(
                env_fns,
                options,
                num_workers=num_workers,
                method=method,
                memory=None if shared_memory else "file",
                daemon=daemon,
                worker_affinity=worker_affinity,
                start_timeout=start_timeout,
                shutdown_timeout=shutdown_timeout,
                step_timeout=step_timeout,
                max_restarts=limit,
            ),
            copy=copy,
            observation_mode=observation_mode,
            autoreset_mode=autoreset_mode,
            output=make_output(output, device, reward_dtype),
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Makes a call of its two halves where a subclass changes one of these, as gymnasium's calls all are."""
        super().__init_subclass__(**kwargs)
        cls._of_halves = frozenset(
            name
            for name in ("reset", "step", "call")
            for half in (f"{name}_async", f"{name}_wait")
            if getattr(cls, half) is not getattr(AsyncVectorEnv, half)
        )

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return self._engine.num_workers

    # ---------------------------------------------------------------- what is pending

    def _require_open(self, call: str) -> None:
        super()._require_open(call)
        if self._pending is not AsyncState.DEFAULT:
            pending = self._pending.value
            raise AlreadyPendingCallError(
                f"Calling `{_BEGUN_BY.get(call, call)}` while waiting for a pending call to `{pending}` to complete.",
                pending,
            )

    @contextmanager
    def _becoming(self, state: AsyncState) -> Iterator[None]:
        """Makes a call pending, unless what begins it raises."""
        self._pending = state  # before it has begun: an interrupt right after would else leave it unseen
        try:
            yield
        except BaseException:
            self._pending = AsyncState.DEFAULT
            raise

    def _taken_up(self, state: AsyncState, call: str) -> None:
        """Ends what is pending, whatever comes of it; refuses where something else is."""
        super()._require_open(call)
        if self._pending is not state:
            raise NoAsyncCallError(f"Calling `{call}` without any prior call to `{state.value}_async`.", state.value)
        self._pending = AsyncState.DEFAULT

    @contextmanager
    def _within(self, timeout: float | None, call: str) -> Iterator[None]:
        """Says of a wait that took too long which it was."""
        try:
            yield
        except CallTimeoutError as error:
            message = f"The call to `{call}` has timed out after {timeout} second(s). ({error})"
            raise CallTimeoutError(message) from None

    @exclusive
    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begins a :meth:`reset`, which :meth:`reset_wait` ends.

        Raises:
            AlreadyPendingCallError: another call is pending.
            Exception: what :meth:`reset` raises for its arguments.
        """
        self._require_open("reset_async")
        ops, kwargs = self._reset_round(seed, options)
        with self._becoming(AsyncState.WAITING_RESET):
            self._sent = ops
            self._engine.send(ops, None, kwargs)

    @exclusive
    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """What the reset gave that :meth:`reset_async` has begun.

        Args:
            timeout: seconds; None to wait for ever.

        Raises:
            NoAsyncCallError: no reset is pending.
            CallTimeoutError: it took longer, a ``TimeoutError``; the envs are to be reset again.
        """
        self._taken_up(AsyncState.WAITING_RESET, "reset_wait")
        with self._within(timeout, "reset_wait"):
            report = self._engine.receive(timeout)
        return self._after_reset(self._sent, report)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """See :meth:`gymbridge.vector.SyncVectorEnv.reset`."""
        if "reset" in self._of_halves:
            self.reset_async(seed=seed, options=options)
            return self.reset_wait()
        return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """See :meth:`gymbridge.vector.SyncVectorEnv.step`."""
        if self._of_halves and "step" in self._of_halves:
            self.step_async(actions)
            return self.step_wait()
        if self._pending is not AsyncState.DEFAULT:
            self._require_open("step")
        return super().step(actions)

    @exclusive
    def step_async(self, actions: Any) -> None:
        """Begins a :meth:`step`, which :meth:`step_wait` ends.

        Raises:
            AlreadyPendingCallError: another call is pending.
            Exception: what :meth:`step` raises for its arguments.
        """
        self._require_open("step_async")
        leaves = self._action_leaves(actions)
        ops = self._step_ops()
        with self._becoming(AsyncState.WAITING_STEP):
            self._sent = ops
            self._engine.send(ops, leaves)

    @exclusive
    def step_wait(self, timeout: float | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """What the step gave that :meth:`step_async` has begun.

        Args:
            timeout: seconds; None to wait for ever.

        Raises:
            NoAsyncCallError: no step is pending.
            CallTimeoutError: it took longer, a ``TimeoutError``; the envs are to be reset before the next step.
            Exception: what :meth:`step` raises.
        """
        self._taken_up(AsyncState.WAITING_STEP, "step_wait")
        with self._within(timeout, "step_wait"):
            report = self._engine.receive(timeout)
        return self._after_step(self._sent, report)

    @exclusive
    def call_async(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        """Begins a :meth:`call`, which :meth:`call_wait` ends.

        Raises:
            AlreadyPendingCallError: another call is pending.
            ValueError: ``name`` is ``"reset"``, ``"step"`` or ``"close"``, which the vector env does itself.
        """
        self._require_open("call_async")
        _require_callable(name)
        with self._becoming(AsyncState.WAITING_CALL):
            self._engine.send_calls("call", dict.fromkeys(range(self.num_envs), (name, args, kwargs)))

    @exclusive
    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """What the envs gave in the call that :meth:`call_async` has begun.

        Args:
            timeout: seconds; None to wait for ever.

        Raises:
            NoAsyncCallError: no call is pending.
            CallTimeoutError: it took longer, a ``TimeoutError``.
        """
        self._taken_up(AsyncState.WAITING_CALL, "call_wait")
        with self._within(timeout, "call_wait"):
            results = self._engine.receive_calls(timeout)
        return tuple(results[row] for row in range(self.num_envs))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Attribute ``name`` of each env, called with the arguments where it is callable; in all envs at once.

        Raises:
            ValueError: ``name`` is ``"reset"``, ``"step"`` or ``"close"``, which the vector env does itself.
        """
        if "call" in self._of_halves:
            self.call_async(name, *args, **kwargs)
            return self.call_wait()
        self._require_open("call")
        _require_callable(name)
        return super().call(name, *args, **kwargs)

    def render(self) -> tuple[Any, ...]:
        """What each env renders."""
        return self.call("render")

    # ---------------------------------------------------------------- the end

    def close_extras(  # type: ignore[override]  # gymnasium names its arguments
        self, timeout: float | None = None, terminate: bool = False
    ) -> None:
        """Closes the envs and ends the workers; raises the first error of an env's ``close`` at the end.

        Args:
            timeout: seconds after which the workers left are killed, with a warning; ``shutdown_timeout`` unless told.
            terminate: kill them at once; the envs are not closed.
        """
        if self._pending is not AsyncState.DEFAULT:
            logger.warn(f"Calling `close` while waiting for a pending call to `{self._pending.value}` to complete.")
            self._pending = AsyncState.DEFAULT
        self.closed = True  # before the envs are: one that raises is not to be closed twice
        try:
            self._engine.close(timeout, terminate)
        finally:
            self._forget_block()

    def __getstate__(self) -> Any:
        raise TypeError(f"{type(self).__name__} cannot be copied or pickled: its envs run in worker processes")

    def __del__(self) -> None:
        """Leaves the end to the engine, which does not wait for envs: some versions of gymnasium close here."""


def _require_callable(name: str) -> None:
    if name in _NOT_BY_CALL:
        raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")


def _start_method(context: str | None) -> StartMethod | None:
    methods = get_args(StartMethod)
    if context is None:
        return None
    if context not in methods:
        raise ValueError(f"context: got {context!r}, expected None or one of {', '.join(methods)}")
    method: StartMethod = context  # type: ignore[assignment]
    return method


def _number_of_workers(num_workers: int | None, max_concurrency: Any, num_envs: int) -> int | None:
    """How many workers there are to be: each runs one env at a time."""
    if max_concurrency is None:
        return num_workers
    if not isinstance(max_concurrency, (int, np.integer)) or max_concurrency < 1:
        raise ValueError(f"max_concurrency: got {max_concurrency!r}, expected None or an int of 1 or more")
    if num_workers is None:
        return min(num_envs, len(usable_cores()), int(max_concurrency)) or None
    if num_workers > max_concurrency:
        raise ValueError(
            f"num_workers: got {num_workers}, expected at most max_concurrency, {max_concurrency}, since each runs one "
            f"env at a time"
        )
    return num_workers
