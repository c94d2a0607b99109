"""Pools of envs in actors on a Ray cluster; needs the extra ``gymbridge[ray]``.

``AsyncEnvPool(..., backend="ray")`` is a :class:`RayAsyncEnvPool`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeVar

try:
    import ray
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "ray":
        raise
    raise ImportError("backend='ray' needs Ray, which is not installed: pip install 'gymbridge[ray]'") from error


from gymbridge.async_env_pool import AsyncEnvPool
from gymbridge.engine.any_env import AnyEnvOptions
from gymbridge.engine.codes import AtWork
from gymbridge.engine.hangs import HangWatch
from gymbridge.engine.host import EnvDescription, RemoteHostOptions
from gymbridge.engine.pool import PoolEngine
from gymbridge.engine.worker_kinds import ProcessWorkers
from gymbridge.errors import WorkerStartError
from gymbridge.interop.ray_actor import EnvActor
from gymbridge.interop.ray_rows import RowBytes
from gymbridge.interop.ray_session import join_session
from gymbridge.interop.ray_workers import RayWorkers

__all__ = ["RayAsyncEnvPool", "RayPoolEngine"]

Description = TypeVar("Description", bound=EnvDescription)

_SECONDS_TO_SAY = 0.5
"""That an actor has to say where an env is that seems to hang."""

_OURS = frozenset(
    {
        *("concurrency_groups", "max_concurrency", "max_restarts", "max_task_retries", "max_pending_calls"),
        *("name", "namespace", "lifetime", "get_if_exists", "allow_out_of_order_execution"),
    }
)
"""Options of actors that a pool sees to itself."""


class RayPoolEngine(PoolEngine[Description]):
    """A pool whose workers are actors on a Ray cluster.

    What envs are given and what they give goes by message, from and to this process's own block. A program's own
    session with Ray is used; where there is none, ``ray.init()`` makes one, which ends with the last pool that uses it.

    Args:
        makers, options: see :class:`~gymbridge.engine.parallel.ParallelEngine`.
        actor_options: of each actor, as Ray's ``options`` takes them.
        envs_per_worker: envs an actor.
        **how: see :class:`~gymbridge.engine.pool.PoolEngine`.

    Raises:
        WorkerStartError: the actors could not be started, or Ray had no room for them in time.

    Otherwise it raises what ``PoolEngine`` does.
    """

    def __init__(
        self,
        makers: Iterable[Callable[[], Any]],
        options: RemoteHostOptions[Description],
        *,
        actor_options: Mapping[str, Any] | None = None,
        **how: Any,
    ):
        self._actor_options = dict(actor_options or {})
        self._session = join_session()
        self._leave = weakref.finalize(self, self._session.leave, closed=False)
        self._leave.atexit = False  # Ray ends what is there at exit
        try:
            super().__init__(makers, options, **how)
        except WorkerStartError as error:
            told = self._told_of_room()
            self._leave_session()
            raise WorkerStartError(f"{error}{told}") from error
        except BaseException:
            self._leave_session()
            raise

    def _told_of_room(self) -> str:
        """What the cluster has, and what is asked of it, in words; nothing where that cannot be told."""
        free = self._session.free_resources()
        if free is None:
            return ""
        return f"; each actor was asked for with {self._actor_options or 'no options'}, and the cluster has {free} free"

    def _processes(self, **how: Any) -> ProcessWorkers:
        return RayWorkers(self.envs_per_worker, self._session, self._actor_options, **how)

    def allocate(self) -> None:
        """See :class:`~gymbridge.engine.pool.PoolEngine`."""
        super().allocate()
        if self._hangs is not None:
            at_work: Any = self.block.at_work
            self._hangs = _ActorHangWatch(self._hangs.seconds, lambda worker: at_work[worker], self._crew.ends)

    def _hand_over_block(self, worker: int, in_use: bool = True) -> None:
        part, end = self._crew.parts[worker], self._crew.ends[worker]
        end.row = RowBytes(self.block.layout.rows(part.start, part.stop), self._memory.array)  # type: ignore[attr-defined]
        super()._hand_over_block(worker, in_use)
        self.block.at_work[part.start] = AtWork.NOTHING

    def close(self, timeout: float | None = None, terminate: bool = False) -> None:
        """See :class:`~gymbridge.engine.pool.PoolEngine`."""
        try:
            super().close(timeout, terminate)
        finally:
            self._leave_session()

    def _leave_session(self) -> None:
        if self._leave.detach() is not None:
            self._session.leave(closed=True)


class _ActorHangWatch(HangWatch):
    """Watches actors, of which the block says only what they were given to do: where they are is asked of them.

    Args:
        seconds, at_work: see :class:`~gymbridge.engine.hangs.HangWatch`.
        ends: of the workers, as the crew has them.
    """

    def __init__(self, seconds: float, at_work: Callable[[int], int | None], ends: Sequence[Any]):
        super().__init__(seconds, at_work)
        self._ends = ends
        self._asked_at: dict[int, float] = {}

    def begin(self, workers: Iterable[int]) -> None:
        """See :class:`~gymbridge.engine.hangs.HangWatch`."""
        workers = [*workers]
        for worker in workers:
            self._asked_at.pop(worker, None)
        super().begin(workers)

    def hung(self, workers: Iterable[int]) -> list[int]:
        """See :class:`~gymbridge.engine.hangs.HangWatch`: a reset that follows a step has a time of its own."""
        workers = [*workers]
        found, now = super().hung(workers), perf_counter()
        for worker in workers:
            if worker not in found:
                self._asked_at.pop(worker, None)
            elif worker not in self._asked_at:
                self._asked_at[worker] = now
                self._ends[worker].ask_at_work()
        return [worker for worker in found if now - self._asked_at.get(worker, now) >= _SECONDS_TO_SAY]


class RayAsyncEnvPool(AsyncEnvPool):
    """A pool whose envs run in actors on a Ray cluster, on whichever of its machines.

    Args:
        env_makers: see :class:`~gymbridge.AsyncEnvPool`.
        **options: see the same. ``envs_per_worker`` envs share an actor, in a thread each; ``actor_options`` are what
            Ray's ``options`` takes for an actor: ``num_cpus``, ``num_gpus``, ``memory``, ``resources``,
            ``scheduling_strategy``, ``runtime_env`` and so on.

    Raises:
        ValueError: an option that Ray does not have, that the pool sees to itself, or that ends Ray's own process.

    A program that has called ``ray.init`` goes on with that cluster. For one that has not the first pool calls it, and
    the close of the last one calls ``ray.shutdown``.

    Example:
        >>> import ray
        >>> _ = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        >>> pool = RayAsyncEnvPool(["CartPole-v1"] * 4, envs_per_worker=2)
        >>> pool.rollout(3, break_when_any_done=False).batch_size
        torch.Size([4, 3])
        >>> pool.shutdown()
        >>> ray.shutdown()
    """

    _backend = "ray"
    _is_in_process = False

    def _require_options(self) -> None:
        """See :class:`~gymbridge.AsyncEnvPool`."""
        if self._exchange == "shm":
            raise ValueError(
                "exchange: got 'shm' with backend='ray', expected 'auto' or 'queue': no memory is shared with actors"
            )
        if self._worker_affinity is not None:
            raise ValueError(
                f"worker_affinity: got {self._worker_affinity!r} with backend='ray', expected None: actor_options say "
                f"where actors run"
            )
        options = self._actor_options
        if options is None:
            return
        if not isinstance(options, Mapping):
            raise TypeError(f"actor_options: got {options!r} of type {type(options).__name__}, expected a dict")
        if ours := sorted(_OURS & options.keys()):
            raise ValueError(f"actor_options: got {ours}, expected options that the pool does not see to itself")
        if options.get("object_store_memory") is not None:
            raise ValueError(
                "actor_options: got 'object_store_memory', expected none: where an actor that has it ends, Ray's "
                "process of that machine crashes"
            )
        try:
            ray.remote(EnvActor).options(**options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"actor_options: {error}") from None

    def _start_engine(self, preload: Sequence[str]) -> Any:
        return RayPoolEngine(
            self._makers,
            AnyEnvOptions(),
            actor_options=self._actor_options,
            **self._worker_options(),
        )
