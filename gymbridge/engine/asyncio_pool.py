"""The engine of a pool whose envs' resets and steps are coroutines, all on one event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import gymnasium as gym

from gymbridge.engine.any_env import EnvBase
from gymbridge.engine.arrivals import Arrivals
from gymbridge.engine.call_pool import CallPoolEngine
from gymbridge.engine.env_calls import (
    Await,
    CallingHost,
    VerbCall,
    bridged,
    is_coroutine_env,
    wrapper_that_does_not_await,
)
from gymbridge.engine.host import EnvDescription, RemoteHostOptions
from gymbridge.engine.loop_crew import LoopCrew
from gymbridge.engine.makers import listed
from gymbridge.engine.remade_rows import RemadeRows
from gymbridge.engine.restarts import RestartLimit, Restarts

__all__ = ["AsyncioPoolEngine"]

Description = TypeVar("Description", bound=EnvDescription)


class AsyncioPoolEngine(CallPoolEngine[Description]):
    """A pool of envs on one event loop, which runs in a thread of this process.

    Of a gymnasium env ``reset``, ``step`` and ``close`` may be coroutines, of an ``EnvBase`` ``_reset``, ``_step`` and
    ``close``. A plain env has a thread of its own, in which it is reset and stepped. Makers are called on the loop, so
    that what an env makes may belong to it; what a maker gives may be awaitable. Beside this it is a pool like
    :class:`~gymbridge.engine.thread_pool.ThreadPoolEngine`: nothing is pickled, what is given in arrays, dicts, lists
    and tuples is copied, and what an env gives, exceptions included, is had as the very object. Calls of attributes may
    be coroutines too.

    What blocks in a coroutine, or in a maker, blocks all envs on the loop.

    An env that raises what would end a program, or ``CancelledError``, is dead for good, with a ``WorkerDiedError``
    whose cause is what it raised. One that takes too long is as dead (``WorkerTimeoutError``): what awaits it is
    cancelled and, where that does not help, left behind, as the thread of a plain env is; it is closed once that comes
    back. Of a loop that a coroutine blocks all envs that have work under way take too long.

    Args:
        makers: one callable an env.
        options: how the envs are run.
        start_timeout: seconds until all envs are made; and until one is that is made anew.
        shutdown_timeout: seconds that ``close`` gives the envs unless it is told otherwise.
        step_timeout: seconds that a step or a reset of an env may take; its coroutine is cancelled then, or left
            behind. None for no limit.
        max_restarts: make an env that died anew, so often in so many seconds; None to raise at once. See
            :class:`~gymbridge.engine.lost_rows.LostRows` for what becomes of its row.

    Attributes:
        num_envs: number of envs.
        descriptions: what each env says of itself.
        block: the memory, once ``allocate`` has made it.
        shutdown_timeout: as it was given; it may be set.
        restarts: which envs have been made anew.

    Raises:
        WorkerDiedError: a maker raised what would end a program.
        WorkerStartError: a thread could not be started, or the envs were not made in time.
        TypeError: a wrapper around coroutines that does not await them.
        ValueError: no maker.

    What a maker raises comes through, marked with its env; the other envs are closed then.

    Example:
        >>> import asyncio
        >>> import gymnasium as gym
        >>> from gymbridge.engine.block import Block
        >>> from gymbridge.engine.codes import Op
        >>> from gymbridge.engine.gym_host import GymHostOptions
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
        >>> engine = AsyncioPoolEngine([Remote] * 3, GymHostOptions())
        >>> engine.allocate()
        >>> engine.submit([2, 0], bytes([Op.RESET, Op.RESET]), None)
        >>> sorted(engine.wait(2))
        [0, 2]
        >>> rows = Block(engine.block.layout.rows(0, 2))
        >>> dict(engine.take([2, 0], rows).errors), rows.root["observation",].tolist()
        ({}, [0, 0])
        >>> engine.close()
    """

    _crew: LoopCrew

    def __init__(
        self,
        makers: Iterable[Callable[[], Any]],
        options: RemoteHostOptions[Description],
        *,
        start_timeout: float | None = 60.0,
        shutdown_timeout: float | None = 10.0,
        step_timeout: float | None = None,
        max_restarts: RestartLimit | None = None,
    ):
        restarts = Restarts(max_restarts)
        crew = LoopCrew(listed(makers), options.kinds, start_timeout, step_timeout, restarts)
        super().__init__(crew, options, shutdown_timeout, restarts)

    def _description_of(self, row: int, env: Any) -> Any:
        _require_awaiting_all(row, env)
        return super()._description_of(row, env)

    def _made_host(self) -> CallingHost:
        return self._crew.on_loop(self._host_on_loop())  # type: ignore[no-any-return]

    async def _host_on_loop(self) -> CallingHost:
        host = super()._made_host()
        for env in host.envs:
            _bridge_inner(env, self._crew.await_anywhere)
        return host

    def _remade_rows(self, made: Sequence[Any]) -> RemadeRows:
        rows = _RemadeAwaitedRows(made, self._options, self._host, self.block, self.descriptions, self.restarts)
        rows.awaited = self._crew.await_anywhere
        return rows

    def _perform_verb(self, verb: str, calls: Sequence[VerbCall]) -> None:
        if verb == "faults":
            self._look_for_faults(calls)
        else:
            super()._perform_verb(verb, calls)

    def _look_for_faults(self, calls: Sequence[VerbCall]) -> None:
        """Has envs looked at by what knows of no coroutines, in threads that may wait for the loop."""
        crew = self._crew
        arrivals = Arrivals()
        undo = []
        try:
            for call in calls:
                call.arrivals = arrivals
                if crew.is_on_loop(call.row):
                    undo.append(bridged(self._host.envs[call.row], crew.awaited))
                    crew.beside(call)
                else:
                    crew.start([call])
            arrivals.wait(len(calls), None)
        finally:
            for each in undo:
                each()


class _RemadeAwaitedRows(RemadeRows):
    """Rows whose envs may be coroutines.

    Attributes:
        awaited: has an awaitable awaited on the loop.
    """

    awaited: Await

    def _described(self, row: int, env: Any) -> Any:
        _require_awaiting_all(row, env)
        return super()._described(row, env)

    def _as_called(self, env: Any) -> Any:
        _bridge_inner(env, self.awaited)
        return env


def _bridge_inner(env: Any, awaited: Await) -> None:
    """Has the coroutines of the envs in an ``EnvBase`` called, which is no coroutine itself."""
    if isinstance(env, EnvBase):
        for inner in _inner_envs(env):
            if is_coroutine_env(inner):
                bridged(inner, awaited)


def _require_awaiting_all(row: int, env: Any) -> None:
    for inner in (env, *_inner_envs(env)):
        _require_awaiting(row, inner)


def _require_awaiting(row: int, env: Any) -> None:
    """Refuses a wrapper around coroutines that does not await them.

    Raises:
        TypeError: naming env and wrapper.
    """
    wrapper = wrapper_that_does_not_await(env) if isinstance(env, gym.Env) else None
    if wrapper is not None:
        raise TypeError(
            f"env {row}: the wrapper {type(wrapper).__name__} does not await the coroutines of "
            f"{type(env.unwrapped).__name__}; leave it out, or write one whose step and reset are async too"
        )


def _inner_envs(env: Any) -> list[Any]:
    """The envs in an ``EnvBase``, however deep."""
    if not isinstance(env, EnvBase) or isinstance(env, gym.Env):
        return []
    inner: Any = env
    return [each for own in inner._inner_envs() for each in (own, *_inner_envs(own))]
