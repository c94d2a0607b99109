"""A batch of envs that run in worker processes."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, get_args

import torch

from gymbridge.batched import BatchedEnvBase, Maker, SerialEnv
from gymbridge.engine.any_env import AnyEnvOptions
from gymbridge.engine.parallel import (
    Affinity,
    ParallelEngine,
    number_of_workers,
    require_no_step_timeout,
    usable_cores,
)
from gymbridge.engine.restarts import OnWorkerFailure, RestartLimit, restart_limit
from gymbridge.engine.time_limits import positive_time_limit, time_limit
from gymbridge.engine.workers import StartMethod
from gymbridge.envs.engine_face import EngineFace
from gymbridge.envs.remote_host import RemoteTensorDictOptions
from gymbridge.thread_limits import thread_limits
from gymbridge.worker_batch import WorkerBatch

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ParallelEnv"]

_numbers = count()


class ParallelEnv(WorkerBatch):
    """``N`` envs in worker processes, each of which runs a contiguous run of them in turn.

    No env is made in this process, but with ``caller_steps``, and gradients do not flow through the envs. The default
    way to start workers needs no ``if __name__ == "__main__":``, does not run the user's script again, and takes
    lambdas and classes of it; a worker of gymnasium envs does not import torch.

    Args:
        num_envs: ``N``.
        create_env_fn: a gymnasium id, a callable that makes a ``gymnasium.Env`` or an ``EnvBase``, or a list of ``N``
            of these.
        num_workers: worker processes; ``min(N, usable cores)`` unless told. Given without ``num_envs`` it is that too:
            so many envs, with a process each.
        use_buffers: False has everything travel beside the shared memory, by message. So it does where a TensorDict env
            has dynamic specs; True warns of that.
        shared_memory, memmap: one or the other: what lies between the processes is shared memory, unless told, or a
            memory-mapped file.
        consolidate: what travels by message is packed into one piece of memory; without, each tensor is one.
        num_threads: torch's threads in this process until ``close``; ``max(1, current - num_workers)`` unless told.
        num_sub_threads: threads of torch and of numerical libraries in each worker.
        mp_start_method: ``"fork"``, ``"spawn"`` or ``"forkserver"`` as ``multiprocessing`` does it; None for the
            default.
        daemon: with ``mp_start_method``: workers may not start ``multiprocessing`` processes of their own.
        worker_affinity: the cores of each worker, a sequence with one entry a worker or a function of its number.
        serial_for_single: with one env, give a :class:`~gymbridge.SerialEnv`, to which what is said of workers, memory
            and threads does not apply.
        start_timeout: seconds until all envs are made.
        step_timeout: seconds that a step or a reset of one env may take; its worker is ended then, and dead. None for
            no limit.
        shutdown_timeout: seconds that ``close`` gives the workers, which are then killed, with a warning.
        on_worker_failure: ``"raise"``, or ``"restart"`` to replace a worker that has died: its envs are made anew, and
            their episodes end with the latest observation, a reward of zero and ``truncated``, of which
            ``("info", "worker_restarted")``, a leaf that is there then, tells.
        max_restarts: so many in so many seconds, after which the death is raised.
        caller_steps: the last of the envs, as many as a worker has or one less, are made here, and stepped by the
            thread that steps the batch, which would wait else. Unless told, ``num_workers`` leaves it a core then. No
            time limit holds for them, what ends the process in them ends this one, and they share this process's
            torch generator and whatever else is global in it.
        **options: those of :class:`~gymbridge.BatchedEnvBase`.

    Raises:
        ValueError: fewer than one env or worker, more workers than envs, a list of another length, both or neither of
            ``shared_memory`` and ``memmap``, ``step_timeout`` with ``caller_steps``, or at the first use an option that
            cannot be had with these envs.
        TypeError: something that makes no env.
        UnpicklableError: a maker that cannot be sent to a worker; the message names the env (at the first use).
        WorkerDiedError: a worker has died (at the next use).

    Example:
        >>> from gymbridge import ParallelEnv
        >>> env = ParallelEnv(3, "CartPole-v1")
        >>> _ = env.set_seed(0)
        >>> td = env.rand_action(env.reset())
        >>> td, td_ = env.step_and_maybe_reset(td)
        >>> td["next", "reward"].shape, td_["observation"].shape
        (torch.Size([3, 1]), torch.Size([3, 4]))
        >>> env.close()
    """

    def __new__(cls, num_envs: Any = None, create_env_fn: Any = None, **options: Any) -> Self:
        """A ``SerialEnv`` where there is one env and that is asked for."""
        given = options.get("num_workers") if num_envs is None else num_envs
        if options.get("serial_for_single") and given == 1:
            of_workers = {*_CONFIGURABLE, "use_buffers", "num_workers", "serial_for_single", "caller_steps"}
            left = {key: own for key, own in options.items() if key not in of_workers}
            return SerialEnv(1, create_env_fn, **left)  # type: ignore[return-value]  # Any would be what editors see
        return super().__new__(cls)

    def __init__(
        self,
        num_envs: int | None = None,
        create_env_fn: str | Maker | Sequence[str | Maker] | None = None,
        *,
        num_workers: int | None = None,
        use_buffers: bool | None = None,
        shared_memory: bool | None = None,
        memmap: bool | None = None,
        consolidate: bool = True,
        num_threads: int | None = None,
        num_sub_threads: int | None = 1,
        mp_start_method: StartMethod | None = None,
        daemon: bool = False,
        worker_affinity: Affinity | None = None,
        serial_for_single: bool = False,
        start_timeout: float | None = 60.0,
        step_timeout: float | None = None,
        shutdown_timeout: float | None = 10.0,
        on_worker_failure: OnWorkerFailure = "raise",
        max_restarts: RestartLimit = (10, 60.0),
        caller_steps: bool = False,
        **options: Any,
    ):
        if unknown := sorted(options.keys() - _OF_EVERY_BATCH):
            raise TypeError(
                f"{type(self).__name__}: got the unknown options {unknown}, expected some of "
                f"{sorted({*_CONFIGURABLE, *_OF_EVERY_BATCH, 'serial_for_single', 'caller_steps'})}"
            )
        if not isinstance(caller_steps, bool):
            raise TypeError(f"caller_steps: got {caller_steps!r}, expected True or False")
        self._caller_steps = caller_steps
        super().__init__(num_envs, create_env_fn, num_workers=num_workers, use_buffers=use_buffers, **options)
        self.num_workers = number_of_workers(num_workers, self.num_envs, len(usable_cores()), caller_steps)
        self._configuration: dict[str, Any] = {}
        self._release: Callable[[], object] | None = None
        self.configure_parallel(
            shared_memory=shared_memory,
            memmap=memmap,
            consolidate=consolidate,
            num_threads=num_threads,
            num_sub_threads=num_sub_threads,
            mp_start_method=mp_start_method,
            daemon=daemon,
            worker_affinity=worker_affinity,
            start_timeout=start_timeout,
            step_timeout=step_timeout,
            shutdown_timeout=shutdown_timeout,
            on_worker_failure=on_worker_failure,
            max_restarts=max_restarts,
        )

    @classmethod
    def make_parallel(cls, *args: Any, num_envs: int | None = None, **options: Any) -> Self:
        """A batch, from ``(create_env_fn, num_envs=N)`` or ``(N, create_env_fn)``; the options are the class's.

        Raises:
            TypeError: neither of the two.

        Example:
            >>> ParallelEnv.make_parallel("CartPole-v1", num_envs=2).num_envs
            2
        """
        if len(args) == 1 and (num_envs is not None or "num_workers" in options):
            return cls(num_envs, *args, **options)
        if len(args) == 2 and num_envs is None:
            return cls(*args, **options)
        raise TypeError(
            f"make_parallel: got {len(args)} arguments and num_envs={num_envs}, expected (create_env_fn, num_envs=N) "
            f"or (N, create_env_fn)"
        )

    def configure_parallel(self, **options: Any) -> Self:
        """Sets how the workers are run, before they start; returns the env.

        Args:
            **options: ``use_buffers``, ``shared_memory``, ``memmap``, ``consolidate``, ``num_threads``,
                ``num_sub_threads``, ``mp_start_method``, ``daemon``, ``worker_affinity``, ``start_timeout``,
                ``step_timeout``, ``shutdown_timeout``, ``on_worker_failure`` or ``max_restarts``, see the class.

        Raises:
            RuntimeError: they run already; close first.
            TypeError, ValueError: another option, or a value that it does not have.
        """
        if self._engine_face is not None:
            raise RuntimeError(
                f"configure_parallel: too late for {sorted(options)}, {type(self).__name__} is running; close it first"
            )
        unknown = sorted(set(options) - _CONFIGURABLE - {"use_buffers"})
        if unknown:
            raise TypeError(
                f"configure_parallel: got {unknown}, expected some of {sorted({*_CONFIGURABLE, 'use_buffers'})}"
            )
        merged = {**self._configuration, **options}
        if "shared_memory" in options and "memmap" not in options and options["shared_memory"] is not None:
            merged["memmap"] = None  # one or the other: what is said last holds
        if "memmap" in options and "shared_memory" not in options and options["memmap"] is not None:
            merged["shared_memory"] = None
        _require_configuration(merged)
        if self._caller_steps:
            require_no_step_timeout(merged["step_timeout"])
        if "use_buffers" in merged:
            self._use_buffers = merged.pop("use_buffers")
        self._configuration = merged
        return self

    # ---------------------------------------------------------------- start

    def _start_engine(self, preload: Sequence[str]) -> ParallelEngine[Any]:
        own = self._configuration
        return ParallelEngine(
            self._makers,
            AnyEnvOptions(),
            num_workers=self.num_workers,
            method=own["mp_start_method"],
            memory="file" if own["memmap"] or own["shared_memory"] is False else None,
            daemon=own["daemon"],
            worker_affinity=own["worker_affinity"],
            num_sub_threads=own["num_sub_threads"],
            torch_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
            start_timeout=time_limit("start_timeout", own["start_timeout"]),
            shutdown_timeout=time_limit("shutdown_timeout", own["shutdown_timeout"]),
            step_timeout=positive_time_limit("step_timeout", own["step_timeout"]),
            max_restarts=restart_limit(own["on_worker_failure"], own["max_restarts"]),
            preload=preload,
            caller_steps=self._caller_steps,
        )

    @property
    def _num_counted(self) -> int:
        return self.num_workers + self._caller_steps

    def _tensordict_options(self, *, buffers: bool) -> RemoteTensorDictOptions:
        options = super()._tensordict_options(buffers=buffers)
        return replace(options, consolidate=self._configuration["consolidate"])

    def _make_face(self) -> EngineFace:
        face = super()._make_face()
        self._limit_threads(self._configuration["num_threads"])
        return face

    def _limit_threads(self, num_threads: int | None) -> None:
        """Limits torch's threads in this process until the engine is closed or dropped."""
        number = next(_numbers)
        limit = max(1, torch.get_num_threads() - self.num_workers) if num_threads is None else num_threads
        thread_limits.begin(number, limit)
        self._release = weakref.finalize(self, thread_limits.end, number)

    def close(self, *, raise_if_closed: bool = True) -> None:
        """See :meth:`EngineEnv.close`; the workers end, and torch's threads here are as they were."""
        try:
            super().close(raise_if_closed=raise_if_closed)
        finally:
            if self._engine_face is None and self._release is not None:
                self._release()
                self._release = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_release": None}


_CONFIGURABLE = frozenset(
    {
        "shared_memory",
        "memmap",
        "consolidate",
        "num_threads",
        "num_sub_threads",
        "mp_start_method",
        "daemon",
        "worker_affinity",
        "start_timeout",
        "step_timeout",
        "shutdown_timeout",
        "on_worker_failure",
        "max_restarts",
    }
)


_OF_EVERY_BATCH = frozenset(inspect.signature(BatchedEnvBase.__init__).parameters) - {"self"}


def _require_configuration(options: Mapping[str, Any]) -> None:
    """Refuses values that an option does not have."""
    for name in ("shared_memory", "memmap", "use_buffers"):
        if options.get(name) not in (None, True, False):
            raise TypeError(f"{name}: got {options[name]!r}, expected True, False or None")
    for name in ("consolidate", "daemon"):
        if options.get(name) not in (True, False):
            raise TypeError(f"{name}: got {options[name]!r}, expected True or False")
    shared, mapped = options.get("shared_memory"), options.get("memmap")
    if shared is not None and mapped is not None and bool(shared) == bool(mapped):
        raise ValueError(f"shared_memory and memmap: got {shared} for both, expected one or the other")
    for name in ("num_threads", "num_sub_threads"):
        given = options.get(name)
        if given is not None and (isinstance(given, bool) or not isinstance(given, int)):
            raise TypeError(f"{name}: got {given!r}, expected None or an int")
        if given is not None and given < 1:
            raise ValueError(f"{name}: got {given}, expected at least 1")
    for name in ("start_timeout", "shutdown_timeout"):
        time_limit(name, options.get(name))
    positive_time_limit("step_timeout", options.get("step_timeout"))
    restart_limit(options.get("on_worker_failure"), options.get("max_restarts"))
    methods = get_args(StartMethod)
    if options.get("mp_start_method") not in (None, *methods):
        raise ValueError(
            f"mp_start_method: got {options['mp_start_method']!r}, expected None or one of {', '.join(methods)}"
        )
