"""Pools of envs that are given work and heard in any order, as TensorDict envs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from gymbridge.batched import Maker
from gymbridge.engine.any_env import AnyEnvOptions
from gymbridge.engine.asyncio_pool import AsyncioPoolEngine
from gymbridge.engine.calls import OneCallAtATime, exclusive
from gymbridge.engine.codes import Op
from gymbridge.engine.counts import count_of
from gymbridge.engine.parallel import Affinity, ParallelEngine
from gymbridge.engine.pool import PoolEngine
from gymbridge.engine.restarts import OnWorkerFailure, RestartLimit, restart_limit
from gymbridge.engine.thread_pool import ThreadPoolEngine
from gymbridge.engine.time_limits import positive_time_limit, time_limit
from gymbridge.envs.engine_face import EngineFace
from gymbridge.envs.env_specs import UnlikeEnvs
from gymbridge.envs.inputs import DeviceLike, NestedKey
from gymbridge.envs.pool_calls import PoolCalls, Wanted, deadline_of
from gymbridge.envs.pool_faces import pool_face
from gymbridge.envs.pool_stats import ExchangeStats
from gymbridge.envs.remote_host import RemoteTensorDictOptions
from gymbridge.envs.spec_keys import leaf_keys
from gymbridge.envs.tensordicts import entry, row_of
from gymbridge.worker_batch import WorkerBatch

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AsyncEnvPool", "AsyncioAsyncEnvPool", "ProcessorAsyncEnvPool", "ThreadingAsyncEnvPool"]

Stack = Literal["dense", "maybe_dense", "lazy"]
Exchange = Literal["auto", "shm", "queue"]
EnvIndex = int | Sequence[int] | npt.NDArray[Any] | torch.Tensor

_log = logging.getLogger("gymbridge")

_INTS = {int}
_RECEIVES = frozenset({"async_step_recv", "async_reset_recv", "async_step_and_maybe_reset_recv", "_receive_any"})

_SECONDS_TO_END = 1.0
"""That a receive in another thread may take to end once the pool is to be closed."""

_SHARES = {"dense": False, "maybe_dense": None, "lazy": True}


class AsyncEnvPool(WorkerBatch):
    """``N`` envs that run at the same time; each is given work and heard for itself.

    ``async_step_and_maybe_reset_send`` gives some envs an action each, and ``async_step_and_maybe_reset_recv`` has what
    those give that have come to an end, however long the others take. Used as any other batch (``reset``, ``step``,
    ``rollout``), it waits for all of them.

    Args:
        env_makers: an id, a maker or an env, or a list of these, one for each env; see
            :class:`~gymbridge.BatchedEnvBase`.
        backend: where the envs run, each for itself: ``"threading"``, in threads of this process;
            ``"multiprocessing"``, in a worker process; ``"asyncio"``, on an event loop in a thread of this process, for
            envs whose ``reset`` and ``step`` are coroutines, and in a thread for others; ``"ray"``, in an actor on a
            Ray cluster, see :class:`gymbridge.interop.ray.RayAsyncEnvPool`.
        stack: what results are: ``"dense"``, of envs that agree in keys, shapes and dtypes; ``"lazy"``, stacks in which
            each env has its own TensorDict; ``"maybe_dense"``, dense if the envs agree, else lazy.
        exchange: of ``"multiprocessing"``, how what envs are given and what they give travels: ``"shm"``, tensors of
            fixed shape through shared memory and nothing else; ``"queue"``, everything by message; ``"auto"``, the
            first where the envs allow that.
        worker_affinity: of ``"multiprocessing"`` and ``"threading"``: the cores of each worker, a sequence with one
            entry a worker or a function of its number.
        envs_per_worker: of ``"multiprocessing"`` and ``"ray"``: so many envs share a process, in a thread each.
        create_env_kwargs: keyword arguments of the makers, a dict for all or one for each.
        device: of what is returned; unless told that of the envs.
        start_timeout: seconds until all envs are made.
        step_timeout: seconds that a step or a reset of an env may take, while somebody receives; its worker is ended
            then, and dead (a thread of this process, which cannot be ended, is left behind). None for no limit.
        shutdown_timeout: seconds that ``close`` gives the envs.
        on_worker_failure: ``"raise"``, or ``"restart"`` to replace a worker that has died: its envs are made anew, and
            their episodes end with the latest observation, a reward of zero and ``truncated``, of which
            ``("info", "worker_restarted")``, a leaf that is there then, tells.
        max_restarts: so many in so many seconds, after which the death is raised.
        actor_options: of ``"ray"``: options of each actor, such as ``num_cpus``, ``num_gpus`` and ``resources``.

    Attributes:
        num_envs: ``N``.
        env_makers: as they were given, one for each env.
        backend, stack, envs_per_worker: as they were given.
        min_get: how many results a receive waits for unless told; 1, and it may be set.

    Raises:
        ValueError, TypeError: an option that there is not, or that this backend does not have; with ``stack="dense"``
            at the first use, envs that do not agree, whose keys are named.

    Example:
        >>> import torch
        >>> from gymbridge import AsyncEnvPool
        >>> pool = AsyncEnvPool(["CartPole-v1"] * 4)
        >>> _ = pool.set_seed(0)
        >>> pool.async_reset_send()
        >>> td = pool.async_reset_recv(min_get=2, max_get=2)
        >>> td["observation"].shape, td["env_index"].shape
        (torch.Size([2, 4]), torch.Size([2]))
        >>> td["action"] = torch.ones(2, dtype=torch.int64)
        >>> pool.async_step_and_maybe_reset_send(td)
        >>> td, td_ = pool.async_step_and_maybe_reset_recv(min_get=2)
        >>> td["next", "reward"].squeeze(-1), td_["observation"].shape
        (tensor([1., 1.]), torch.Size([2, 4]))
        >>> pool.shutdown()
    """

    _backend: ClassVar[str | None] = None
    """That of a subclass."""
    _is_in_process: ClassVar[bool] = True
    """The envs run in this process."""

    def __new__(cls, env_makers: Any = None, *, backend: str | None = None, **options: Any) -> Self:
        """A pool of the class that the backend has."""
        backends = [own._backend for own in _CLASSES] + ["ray"]
        if cls._backend is not None:
            if backend not in (None, cls._backend):
                raise ValueError(f"backend: got {backend!r}, expected {cls._backend!r}, that of {cls.__name__}")
            return super().__new__(cls)
        backend = "threading" if backend is None else backend
        if backend not in backends:
            raise ValueError(f"backend: got {backend!r}, expected one of {', '.join(map(repr, backends))}")
        return super().__new__(_class_of(backend))  # type: ignore[return-value]

    def __init__(
        self,
        env_makers: str | Maker | Sequence[str | Maker],
        *,
        backend: str | None = None,
        stack: Stack = "dense",
        exchange: Exchange = "auto",
        worker_affinity: Affinity | None = None,
        envs_per_worker: int = 1,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        device: DeviceLike | None = None,
        start_timeout: float | None = 60.0,
        step_timeout: float | None = None,
        shutdown_timeout: float | None = 10.0,
        on_worker_failure: OnWorkerFailure = "raise",
        max_restarts: RestartLimit = (10, 60.0),
        actor_options: Mapping[str, Any] | None = None,
    ):
        makers: list[Any] = [*env_makers] if isinstance(env_makers, (list, tuple)) else [env_makers]
        if not makers:
            raise ValueError("env_makers: got an empty list, expected a maker for each env")
        for name, given, allowed in (("stack", stack, get_args(Stack)), ("exchange", exchange, get_args(Exchange))):
            if given not in allowed:
                raise ValueError(f"{name}: got {given!r}, expected one of {', '.join(map(repr, allowed))}")
        super().__init__(
            len(makers),
            makers,
            create_env_kwargs=create_env_kwargs,
            device=device,
            share_individual_td=_SHARES[stack],
        )
        self.env_makers = makers
        self.backend = self._backend
        self.stack = stack
        self.envs_per_worker = count_of("envs_per_worker", envs_per_worker)
        self.min_get = 1
        self._exchange = exchange
        self._worker_affinity = worker_affinity
        self._actor_options = actor_options
        self._start_timeout = time_limit("start_timeout", start_timeout)
        self._step_timeout = positive_time_limit("step_timeout", step_timeout)
        self._shutdown_timeout = time_limit("shutdown_timeout", shutdown_timeout)
        self.on_worker_failure = on_worker_failure
        self._max_restarts = restart_limit(on_worker_failure, max_restarts)
        self._pool_calls: PoolCalls | None = None
        self._stats = ExchangeStats(self.num_envs)
        self._start_lock = threading.RLock()
        self._awaiting: asyncio.AbstractEventLoop | None = None
        """The event loop on which a receive of batches is awaited: others are refused meanwhile, and sends are not."""
        self._require_options()

    def _require_options(self) -> None:
        """Refuses options that the backend does not have."""
        if self._exchange == "shm":
            raise ValueError(
                f"exchange: got 'shm' with backend={self.backend!r}, expected 'auto' or 'queue': that is for "
                f"'multiprocessing'"
            )
        if self.envs_per_worker != 1:
            raise ValueError(
                f"envs_per_worker: got {self.envs_per_worker} with backend={self.backend!r}, expected 1: more are for "
                f"'multiprocessing' and 'ray'"
            )
        self._require_no_actors()

    def _require_no_actors(self) -> None:
        if self._actor_options is not None:
            raise ValueError(
                f"actor_options: got {self._actor_options!r} with backend={self.backend!r}, expected None: that is for "
                f"'ray'"
            )

    def _worker_options(self) -> dict[str, Any]:
        """What an engine of workers is told, processes or actors."""
        return {
            "envs_per_worker": self.envs_per_worker,
            "num_sub_threads": 1,
            "torch_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
            "start_timeout": self._start_timeout,
            "shutdown_timeout": self._shutdown_timeout,
            "step_timeout": self._step_timeout,
            "max_restarts": self._max_restarts,
        }

    # ---------------------------------------------------------------- start and end

    def _start_engine(self, preload: Sequence[str]) -> Any:
        """Each backend's class has its own; this one is not abstract, since it is what users call."""
        raise NotImplementedError

    def _tensordict_options(self, *, buffers: bool) -> RemoteTensorDictOptions:
        """See :class:`WorkerBatch`; between threads of this process nothing is pickled."""
        return replace(super()._tensordict_options(buffers=buffers), in_process=self._is_in_process)

    @property
    def _face(self) -> EngineFace:
        """See :class:`EngineEnv`; of several threads whose lanes are the first use, one starts the envs."""
        if self._engine_face is None:
            with self._start_lock:
                return super()._face
        return self._engine_face

    def _make_face(self) -> EngineFace:
        try:
            return super()._make_face()
        except UnlikeEnvs as error:
            raise ValueError(
                f"stack: got 'dense', expected 'maybe_dense' or 'lazy' for envs that do not agree: {error.difference}"
            ) from None

    def _take_specs(self, face: EngineFace) -> None:
        super()._take_specs(face)
        self._row_batch_size = face.batch_size[1:]
        inputs = [*leaf_keys(face.specs["action"]), *leaf_keys(face.specs["state"])]
        self._pool_calls = PoolCalls(
            pool_face(face.engine, face),  # type: ignore[arg-type]
            inputs,
            self._row_batch_size,
            dense=face.is_dense,
            stats=self._stats,
        )

    @property
    def _calls(self) -> PoolCalls:
        if self._engine_face is None:
            _ = self._face
        assert self._pool_calls is not None
        return self._pool_calls

    def __getattr__(self, name: str) -> Any:
        """See :class:`~gymbridge.BatchedEnvBase`; what another backend has is not looked for in the envs."""
        if name in vars(AsyncioAsyncEnvPool) and name.startswith("async_"):
            raise AttributeError(
                f"{type(self).__name__} has no {name}: results can be awaited with backend='asyncio'",
                name=name,
                obj=self,
            )
        return super().__getattr__(name)

    def _require_movable(self) -> None:
        if self._pool_calls is not None and self._pool_calls.busy:
            raise RuntimeError(
                f"to: refused while envs {self._pool_calls.busy} have work under way, or results that were not "
                f"received: receive these first"
            )

    def close(self, *, raise_if_closed: bool = True) -> None:
        """See :meth:`EngineEnv.close`; what is under way, or was not received, is dropped.

        Receives that wait in other threads have a ``RuntimeError``.
        """
        self._end_receives()
        super().close(raise_if_closed=raise_if_closed)
        if self._engine_face is None:
            self._pool_calls = self._awaiting = None

    def _end_receives(self, of: OneCallAtATime | None = None) -> None:
        """Has a receive that waits in another thread end, which may be one of an env that hangs.

        Args:
            of: what it is a call of; this pool unless given.
        """
        caller = self if of is None else of
        face: Any = self._engine_face
        if face is not None and self._call_under_way in _RECEIVES:
            face.engine.end_waits()
            deadline = perf_counter() + _SECONDS_TO_END
            while caller._call_under_way is not None and perf_counter() < deadline:
                sleep(0.001)

    def shutdown(self, timeout: float | None = 10.0) -> None:
        """Ends the envs within a time, whatever is under way; a pool that is not running is left alone.

        Receives that wait in other threads have a ``RuntimeError``.

        Args:
            timeout: seconds; envs that have not ended by then are killed, with a warning (those in a thread of this
                process, which cannot be killed, are left behind).

        Raises:
            RuntimeError: a call of all envs is under way in another thread.
            ValueError, TypeError: a negative time, or something that is none.
        """
        limit = time_limit("timeout", timeout)
        self._end_receives()
        self._require_no_call("shutdown")
        if self._engine_face is not None:
            engine: Any = self._engine_face.engine
            engine.shutdown_timeout = limit
        self.close(raise_if_closed=False)

    def __getstate__(self) -> dict[str, Any]:
        state = {**super().__getstate__(), "_pool_calls": None, "_awaiting": None}
        del state["_start_lock"]
        return {**state, "_stats": ExchangeStats(self.num_envs)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._start_lock = threading.RLock()

    # ---------------------------------------------------------------- what it is

    @property
    def env_batch_sizes(self) -> list[torch.Size]:
        """The batch size of each env."""
        return [self.batch_size[1:]] * self.num_envs

    @property
    def resolved_exchange(self) -> Literal["shm", "queue"]:
        """How what envs are given and what they give travels; ``"queue"`` where they run in this process."""
        return "queue"

    @property
    def exchange_keys(self) -> tuple[NestedKey, ...]:
        """The keys of what envs are given that travels through shared memory."""
        return ()

    def stats(self, *, reset: bool = False) -> dict[str, Any]:
        """What the envs have done, see :meth:`gymbridge.SerialEnv.stats`, and what has gone through the pool.

        Args:
            reset: count from zero again.

        Returns:
            What any batch counts: each env is a worker; and ``"exchange"``, counted from the start on: ``batches`` and
            ``items`` (envs) received, ``avg_batch_size``, ``batch_fill_ratio`` (items of those that would have fitted:
            ``max_get``, or all envs), ``partial_batch_fraction`` (batches that were not full),
            ``avg_observation_to_batch_ms`` (from an env's end of work to its receive), ``avg_batch_to_action_ms`` (from
            the receive to its next work), ``consumer_busy_fraction`` (of the time since the first receive, that outside
            of receives). Lanes are not counted.

        Example:
            >>> pool = AsyncEnvPool(["CartPole-v1"] * 2)
            >>> pool.async_reset_send()
            >>> _ = pool.async_reset_recv(min_get=2)
            >>> pool.stats()["exchange"]["items"]
            2
            >>> pool.shutdown()
        """
        return {**super().stats(reset=reset), "exchange": self._stats.taken(reset=reset)}

    # ---------------------------------------------------------------- work handed out

    def async_step_send(self, tensordict: TensorDictBase, env_index: EnvIndex | None = None) -> None:
        """Gives envs a step to do; ``async_step_recv`` has what they give.

        Args:
            tensordict: ``[n, *B]``, with the actions of ``n`` envs; for one env in a lane ``[*B]``. It stays as it is.
            env_index: which envs these are: ints, or a tensor or array of them; unless given, what stands at
                ``"env_index"``, or else all envs in order. An int is a lane: only a receive with that ``env_index``
                gets the env's result, and threads may have a lane each at the same time.

        Raises:
            RuntimeError: an env has work under way already, or results that were not received; the message names it.
            ValueError, TypeError, IndexError: an index that no env has, or two of one; a TensorDict of another size;
                an action that does not fit.
            ResetNeeded: a gymnasium env that ended has not been reset.
            WorkerDiedError: the worker of an env is dead.
        """
        self._send(Op.STEP, "async_step_send", tensordict, env_index, {})

    def async_step_and_maybe_reset_send(self, tensordict: TensorDictBase, env_index: EnvIndex | None = None) -> None:
        """Gives envs a step to do, and a reset where that ends their episode; see :meth:`async_step_send`."""
        self._send(Op.STEP_MAYBE_RESET, "async_step_and_maybe_reset_send", tensordict, env_index, {})

    def async_reset_send(
        self, tensordict: TensorDictBase | None = None, env_index: EnvIndex | None = None, **reset_kwargs: Any
    ) -> None:
        """Gives envs a reset to do; see :meth:`async_step_send`.

        Args:
            tensordict: what the resets are given, or None.
            env_index: see there; with neither, all envs are reset.
            **reset_kwargs: for the reset of each env; ``list_of_kwargs`` has one dict for each of these envs.

        Raises:
            ValueError: a ``seed`` for several envs, which would all be the same.

        Otherwise it raises what :meth:`async_step_send` does.
        """
        self._send(Op.RESET, "async_reset_send", tensordict, env_index, reset_kwargs)

    def async_step_recv(
        self,
        min_get: int | None = None,
        env_index: int | None = None,
        *,
        max_get: int | None = None,
        timeout: float | None = None,
    ) -> TensorDictBase:
        """What envs give that were sent a step.

        It waits for ``min_get`` of them. Without a ``timeout`` it then takes those too that are ready now; with one it
        goes on collecting until the time is over, there are ``max_get``, or nothing is under way.

        Args:
            min_get: how many envs to wait for; the pool's ``min_get`` unless given.
            env_index: one env, whose lane is received instead.
            max_get: take no more than these.
            timeout: seconds that the whole call may take; 0 to take what is ready. What has come by then stays there if
                it is too little.

        Returns:
            A TensorDict ``[n, *B]``, the caller's own: what was sent, with ``next`` and, as int64 ``[n, *B]``,
            ``"env_index"``, in whose order the rows are. Of a lane ``[*B]``.

        Raises:
            RuntimeError: less is under way than is waited for; or another thread receives.
            TimeoutError: too little came in time; nothing is lost.
            ValueError, TypeError: ``min_get`` less than 1, ``max_get`` less than that, a negative ``timeout``.
            WorkerDiedError: the worker of an env is dead.

        What an env raises comes through, one error a call; what the others gave is there for the next call.
        """
        return self._receive(Op.STEP, "async_step_recv", min_get, env_index, max_get, timeout)  # type: ignore[no-any-return]

    def async_step_and_maybe_reset_recv(
        self,
        min_get: int | None = None,
        env_index: int | None = None,
        *,
        max_get: int | None = None,
        timeout: float | None = None,
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """The same of envs that were sent ``step_and_maybe_reset``: what was sent with ``next``, and the next root."""
        return self._receive(  # type: ignore[no-any-return]
            Op.STEP_MAYBE_RESET, "async_step_and_maybe_reset_recv", min_get, env_index, max_get, timeout
        )

    def async_reset_recv(
        self,
        min_get: int | None = None,
        env_index: int | None = None,
        *,
        max_get: int | None = None,
        timeout: float | None = None,
    ) -> TensorDictBase:
        """The same of envs that were sent a reset: what was sent, with observations and flags."""
        return self._receive(Op.RESET, "async_reset_recv", min_get, env_index, max_get, timeout)  # type: ignore[no-any-return]

    def step_mdp(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """See :meth:`EnvBase.step_mdp`; also of what was received, of whichever envs, lanes too."""
        index, face = next_tensordict.get("env_index", None), self._face
        if index is None or face.is_dense:
            return super().step_mdp(next_tensordict)
        if next_tensordict.batch_size == self.batch_size[1:]:
            return face.row_plan(_as_ints("step_mdp", [index])[0]).next_root(next_tensordict)
        rows = enumerate(_as_ints("step_mdp", index))
        each = [face.row_plan(row).next_root(row_of(next_tensordict, position)) for position, row in rows]
        return LazyStackedTensorDict(*each, stack_dim=0)

    # ---------------------------------------------------------------- the three verbs, written once

    def _send(
        self,
        op: Op,
        call: str,
        tensordict: TensorDictBase | None,
        env_index: EnvIndex | None,
        reset_kwargs: dict[str, Any],
    ) -> None:
        calls = self._calls
        if tensordict is not None and not isinstance(tensordict, TensorDictBase):
            raise TypeError(f"{call}: got {type(tensordict).__name__}, expected a TensorDict")
        if _is_int(env_index):
            (row,) = self._rows(call, [env_index])
            self._require_size(call, tensordict, self._row_batch_size, "that of the env of a lane")
            calls.send_lane(op, row, tensordict, self._kwargs_of(call, reset_kwargs, 1))
            return
        self._only_call(call, partial(self._send_batch, op, call, tensordict, env_index, reset_kwargs))

    def _send_batch(
        self,
        op: Op,
        call: str,
        tensordict: TensorDictBase | None,
        env_index: Any,
        reset_kwargs: dict[str, Any],
    ) -> None:
        row_batch_size = self._row_batch_size
        if env_index is None and tensordict is not None:
            env_index = entry(tensordict, "env_index")
            if env_index is not None and tensordict.batch_size == row_batch_size:
                tensordict, env_index = tensordict.unsqueeze(0), [env_index]  # no dim for envs: a batch of one
        rows = self._rows(call, range(self.num_envs) if env_index is None else _as_ints(call, env_index))
        whose = "that of all envs, or an env_index" if env_index is None else f"that of envs {rows}"
        self._require_size(call, tensordict, (len(rows), *row_batch_size), whose)
        self._calls.send(op, rows, tensordict, self._kwargs_of(call, reset_kwargs, len(rows)))

    def _rows(self, call: str, indices: Iterable[Any]) -> list[int]:
        rows = [*map(int, indices)]
        num_envs = self.num_envs
        if not rows:
            raise ValueError(f"{call}: got no env_index, expected that of one env or more")
        if min(rows) < 0 or max(rows) >= num_envs:
            raise IndexError(f"{call}: got env_index {rows}, expected some of 0 to {num_envs - 1}")
        if len({*rows}) < len(rows):
            raise ValueError(f"{call}: got env_index {rows}, expected each env once")
        return rows

    def _require_size(
        self, call: str, tensordict: TensorDictBase | None, expected: tuple[int, ...], whose: str
    ) -> None:
        if tensordict is not None and tensordict.batch_size != expected:
            raise ValueError(
                f"{call}: got a TensorDict of batch size {[*tensordict.batch_size]}, expected {[*expected]}, {whose}"
            )

    def _kwargs_of(self, call: str, kwargs: dict[str, Any], num_rows: int) -> list[Mapping[str, Any]] | None:
        if not kwargs:
            return None
        if kwargs.get("seed") is not None and num_rows * self._row_batch_size.numel() > 1:
            raise ValueError(
                f"{call}: got seed {kwargs['seed']!r} for {num_rows} envs, which would all be the same; call "
                f"set_seed(seed), which gives env i the seed seed + i, or send list_of_kwargs"
            )
        return self._kwargs_for_rows(kwargs, num_rows)

    def _receive(
        self,
        op: Op,
        call: str,
        min_get: int | None,
        env_index: int | None,
        max_get: int | None,
        timeout: float | None,
    ) -> Any:
        if env_index is not None:
            return self._calls.receive_lane(op, self._lane(call, env_index), deadline_of(timeout))
        wanted = Wanted.of(self.min_get if min_get is None else min_get, max_get, timeout)
        return self._only_call(call, partial(self._receive_batch, call, op, wanted))

    def _receive_batch(self, call: str, op: Op, wanted: Wanted) -> Any:
        self._require_none_awaited(call)
        return self._calls.receive(op, wanted)

    def _require_none_awaited(self, call: str) -> None:
        """Refuses what would take from an awaited receive what it waits for."""
        if self._awaiting is not None and not self._awaiting.is_closed():  # a loop that is closed goes on with nothing
            raise RuntimeError(f"{call}: refused while another receive of batches is awaited")

    @exclusive
    def _receive_any(self, wanted: Wanted, into: list[tuple[Op, Any]]) -> None:
        """Adds what envs give that were sent whichever work, what those gave that had the same together."""
        self._require_none_awaited("recv")
        self._calls.receive_any(wanted, into)

    @exclusive
    def _drop(self) -> None:
        """What is under way, or was not received, lanes apart, is not to be seen: those envs are to be reset."""
        self._require_none_awaited("reset")
        self._calls.drop()

    def _lane(self, call: str, env_index: Any) -> int:
        if not _is_int(env_index):
            raise TypeError(f"{call}: got env_index {env_index!r}, expected an int, the env of a lane")
        (row,) = self._rows(call, [env_index])
        return row


class ThreadingAsyncEnvPool(AsyncEnvPool):
    """A pool whose envs run in threads of this process: for envs that wait, or leave the interpreter alone.

    There are as many threads as envs, and whichever is free takes what is to be done: an env is not always called in
    the same one. Nothing is pickled: what an env gives, exceptions included, is had as the very object.

    Args:
        env_makers: see :class:`AsyncEnvPool`.
        **options: see the same.

    Example:
        >>> pool = ThreadingAsyncEnvPool(["CartPole-v1"] * 2)
        >>> pool.rollout(3, break_when_any_done=False).batch_size
        torch.Size([2, 3])
        >>> pool.shutdown()
    """

    _backend = "threading"

    def _start_engine(self, preload: Sequence[str]) -> Any:
        return ThreadPoolEngine(
            self._makers,
            AnyEnvOptions(),
            worker_affinity=self._worker_affinity,
            start_timeout=self._start_timeout,
            shutdown_timeout=self._shutdown_timeout,
            step_timeout=self._step_timeout,
            max_restarts=self._max_restarts,
        )


class ProcessorAsyncEnvPool(AsyncEnvPool):
    """A pool whose envs run in worker processes.

    Args:
        env_makers: see :class:`AsyncEnvPool`.
        **options: see the same.

    Example:
        >>> pool = ProcessorAsyncEnvPool(["CartPole-v1"] * 2)
        >>> pool.resolved_exchange, pool.exchange_keys
        ('shm', ('action',))
        >>> pool.shutdown()
    """

    _backend = "multiprocessing"
    _is_in_process = False
    _resolved: Literal["shm", "queue"] | None = None

    def _require_options(self) -> None:
        """See :class:`AsyncEnvPool`; it has those of processes."""
        self._require_no_actors()

    def _start_engine(self, preload: Sequence[str]) -> Any:
        return PoolEngine(
            self._makers,
            AnyEnvOptions(),
            worker_affinity=self._worker_affinity,
            preload=preload,
            **self._worker_options(),
        )

    def _make_face(self) -> EngineFace:
        self._use_buffers = False if self._exchange == "queue" else None
        face = super()._make_face()
        self._resolved = "queue" if self._use_buffers is False else "shm"
        return face

    def _gym_face(self, engine: ParallelEngine[Any], kinds: list[Any]) -> EngineFace | None:
        for row, kind in enumerate(kinds):
            env = getattr(kind, "gym_env", kind)
            if env is not None:
                objects = [leaf.key for leaf in (*env.root_leaves, *env.input_leaves) if leaf.dtype.hasobject]
                self._require_placed(row, objects)
        return super()._gym_face(engine, kinds)

    def _describe_tensordict_envs(self, engine: ParallelEngine[Any], kinds: list[Any]) -> None:
        if self._use_buffers is None:
            engine.describe(self._tensordict_options(buffers=True))
            for row, env in enumerate(engine.descriptions):
                self._require_placed(row, env.without_place)
        if self._use_buffers is False:
            super()._describe_tensordict_envs(engine, kinds)

    def _require_placed(self, row: int, keys: Sequence[tuple[str, ...]]) -> None:
        """Goes by message where leaves cannot go through shared memory, or refuses that.

        Raises:
            ValueError: naming env and keys.
        """
        if not keys or self._use_buffers is False:
            return
        named = [".".join(key) for key in keys]
        why = f"env {row}: {named} are no tensors of fixed shape on the CPU"
        if self._exchange == "shm":
            raise ValueError(f"exchange: got 'shm', expected 'queue' or 'auto': {why}")
        _log.info("exchange='auto' is 'queue': %s", why)
        self._use_buffers = False

    @property
    def resolved_exchange(self) -> Literal["shm", "queue"]:
        """See :class:`AsyncEnvPool`; starts the envs if they never ran."""
        if self._resolved is None:
            _ = self._face
        assert self._resolved is not None
        return self._resolved

    @property
    def exchange_keys(self) -> tuple[NestedKey, ...]:
        """See :class:`AsyncEnvPool`; starts the envs if they never ran."""
        if self.resolved_exchange == "queue":
            return ()
        keys = dict.fromkeys([*leaf_keys(self.full_action_spec), *leaf_keys(self.full_state_spec)])
        return tuple(key[0] if len(key) == 1 else key for key in keys)


class AsyncioAsyncEnvPool(AsyncEnvPool):
    """A pool whose envs' ``reset`` and ``step`` are coroutines, all on one event loop in a thread of this process.

    Of an ``EnvBase`` these are ``_reset`` and ``_step``. An env without coroutines has a thread of its own. What blocks
    in a coroutine, or in a maker, blocks all envs. Results can be awaited, on the caller's own event loop.

    Args:
        env_makers: see :class:`AsyncEnvPool`; what a maker gives may be awaitable.
        **options: see the same.

    Example:
        >>> import asyncio
        >>> import gymnasium as gym
        >>> class Remote(gym.Env):
        ...     observation_space = gym.spaces.Discrete(10)
        ...     action_space = gym.spaces.Discrete(10)
        ...
        ...     async def reset(self, *, seed=None, options=None):
        ...         await asyncio.sleep(0.001)
        ...         return 0, {}
        ...
        ...     async def step(self, action):
        ...         await asyncio.sleep(0.001)
        ...         return action, 1.0, False, False, {}
        >>> pool = AsyncioAsyncEnvPool([Remote] * 100)
        >>> async def first_observations():
        ...     pool.async_reset_send()
        ...     return await pool.async_reset_recv_async(min_get=100)
        >>> asyncio.run(first_observations())["observation"].shape
        torch.Size([100])
        >>> pool.shutdown()
    """

    _backend = "asyncio"

    def _require_options(self) -> None:
        """See :class:`AsyncEnvPool`."""
        super()._require_options()
        if self._worker_affinity is not None:
            raise ValueError(
                f"worker_affinity: got {self._worker_affinity!r} with backend='asyncio', expected None: its envs share "
                f"a thread"
            )

    def _start_engine(self, preload: Sequence[str]) -> Any:
        return AsyncioPoolEngine(
            self._makers,
            AnyEnvOptions(),
            start_timeout=self._start_timeout,
            shutdown_timeout=self._shutdown_timeout,
            step_timeout=self._step_timeout,
            max_restarts=self._max_restarts,
        )

    async def async_step_recv_async(
        self,
        min_get: int | None = None,
        env_index: int | None = None,
        *,
        max_get: int | None = None,
        timeout: float | None = None,
    ) -> TensorDictBase:
        """:meth:`async_step_recv`, to be awaited: other coroutines of the caller's event loop go on meanwhile.

        A wait that is cancelled loses nothing. While batches are awaited others may be sent, by the same thread, and
        none received.
        """
        received: TensorDictBase = await self._receive_async(
            Op.STEP, "async_step_recv_async", min_get, env_index, max_get, timeout
        )
        return received

    async def async_step_and_maybe_reset_recv_async(
        self,
        min_get: int | None = None,
        env_index: int | None = None,
        *,
        max_get: int | None = None,
        timeout: float | None = None,
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """:meth:`async_step_and_maybe_reset_recv`, to be awaited; see :meth:`async_step_recv_async`."""
        received: tuple[TensorDictBase, TensorDictBase] = await self._receive_async(
            Op.STEP_MAYBE_RESET, "async_step_and_maybe_reset_recv_async", min_get, env_index, max_get, timeout
        )
        return received

    async def async_reset_recv_async(
        self,
        min_get: int | None = None,
        env_index: int | None = None,
        *,
        max_get: int | None = None,
        timeout: float | None = None,
    ) -> TensorDictBase:
        """:meth:`async_reset_recv`, to be awaited; see :meth:`async_step_recv_async`."""
        received: TensorDictBase = await self._receive_async(
            Op.RESET, "async_reset_recv_async", min_get, env_index, max_get, timeout
        )
        return received

    async def _receive_async(
        self,
        op: Op,
        call: str,
        min_get: int | None,
        env_index: int | None,
        max_get: int | None,
        timeout: float | None,
    ) -> Any:
        calls = self._calls
        if env_index is not None:
            return await calls.receive_lane_async(op, self._lane(call, env_index), deadline_of(timeout))
        wanted = Wanted.of(self.min_get if min_get is None else min_get, max_get, timeout)
        self._require_none_awaited(call)
        loop = self._awaiting = asyncio.get_running_loop()  # before the look at other calls, which look at this
        try:
            self._require_no_call(call)
            return await calls.receive_async(op, wanted)
        finally:
            if self._awaiting is loop and self._pool_calls is calls:  # not another's, of one that came later
                self._awaiting = None


_CLASSES: tuple[type[AsyncEnvPool], ...] = (ThreadingAsyncEnvPool, ProcessorAsyncEnvPool, AsyncioAsyncEnvPool)


def _class_of(backend: str) -> type[AsyncEnvPool]:
    """The class of a backend.

    Raises:
        ImportError: it needs Ray, which is not installed.
    """
    if backend == "ray":
        from gymbridge.interop.ray import RayAsyncEnvPool

        return RayAsyncEnvPool
    return next(own for own in _CLASSES if own._backend == backend)


def _is_int(index: Any) -> bool:
    return isinstance(index, (int, np.integer)) and not isinstance(index, bool)


def _as_ints(call: str, given: Any) -> list[Any]:
    """The indices of envs in whatever holds them; of an env that is a batch of its own in each of its rows."""
    if hasattr(given, "tolist"):  # a tensor, an array or data that are none of both
        given = given.tolist()
        if type(given) is list and {*map(type, given)} == _INTS:
            return given
    if _is_int(given):
        return [given]
    if not isinstance(given, (list, tuple, range)):
        raise TypeError(f"{call}: got env_index {given!r} of type {type(given).__name__}, expected ints")
    indices = []
    for one in given:
        if hasattr(one, "tolist"):
            one = one.tolist()
        while isinstance(one, (list, tuple)) and one:
            if any(other != one[0] for other in one[1:]):
                raise ValueError(f"{call}: got env_index {given!r}, expected the same one in all rows of an env")
            one = one[0]
        if not _is_int(one):
            raise TypeError(f"{call}: got env_index {given!r}, expected ints")
        indices.append(one)
    return indices
