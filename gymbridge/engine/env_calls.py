"""One call of one env, to be made by whoever runs the env: on an event loop, where it is awaited, or in a thread.

A host that has its envs called so says what each is to be asked for (``calls``) and takes later what they gave
(``finish``): checks it and writes it into the block. In between it does nothing, and knows of no thread.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from types import CoroutineType
from typing import Any, Protocol

import gymnasium as gym

from gymbridge.engine.arrivals import Arrivals
from gymbridge.engine.codes import AtWork, Op
from gymbridge.engine.conform import flag
from gymbridge.engine.host import EnvHost, Report
from gymbridge.engine.rows import snapshot
from gymbridge.errors import EnvOutputError

__all__ = [
    "Await",
    "CallingHost",
    "EnvCall",
    "GymCall",
    "RowCall",
    "TimedCall",
    "TimedGymCall",
    "VerbCall",
    "bridged",
    "is_awaitable",
    "is_coroutine_env",
    "wrapper_that_does_not_await",
]

_RESET, _STEP_MAYBE_RESET = int(Op.RESET), int(Op.STEP_MAYBE_RESET)

Await = Callable[[Any], Any]
"""Has an awaitable awaited, elsewhere, and waits for what it gives."""


class EnvCall:
    """A call of a row's env.

    Attributes:
        row: the row.
        arrivals: where it is told that the call has been made; set by who has it made, before that.
        is_done: it has been made.
        done_at: when it had been, on ``time.perf_counter``'s clock.
        error: what it raised; of what is no ``Exception``, what its row's death is told with.
        begun_at: when what may take only so long was begun, on that clock; set where calls are watched, and by the call
            itself where it comes to its next part.
    """

    __slots__ = ("arrivals", "begun_at", "done_at", "error", "is_done", "row")

    arrivals: Arrivals
    begun_at: float

    def __init__(self, row: int):
        self.row = row
        self.is_done = False
        self.done_at = 0.0
        self.error: Any = None

    async def on_loop(self) -> None:
        """Makes the call on an event loop and keeps what it gives; what it raises, its maker keeps in ``error``."""
        raise NotImplementedError

    def in_thread(self, awaited: Await) -> None:
        """Makes the call in this thread and keeps what it gives; what it raises, its maker keeps in ``error``.

        Args:
            awaited: for what can only be awaited.
        """
        raise NotImplementedError


class RowCall(EnvCall):
    """A reset or a step.

    Attributes:
        op: the :class:`~gymbridge.engine.codes.Op`.
        instead: what was done in place of this, where the env was made anew meanwhile, None for nothing; it is not set
            where nothing of the kind has happened.
    """

    __slots__ = ("instead", "op")

    instead: RowCall | None

    def __init__(self, row: int, op: int):
        super().__init__(row)
        self.op = op

    @property
    def doing(self) -> str:
        """What it is at, in words."""
        return AtWork.text(AtWork.RESET if self.op == _RESET else AtWork.STEP, self.row)

    def again(self, env: Any, seed: int | None) -> RowCall:
        """The reset in this call, to be made of another env.

        Args:
            env: that one, as the host has it.
            seed: in place of the one that waited for the reset of the env before; None to leave that.
        """
        raise NotImplementedError


class TimedCall(RowCall):
    """A reset or a step that knows how long its env has taken; mixed in before a kind of call.

    Attributes:
        started_at: when its env was asked, on ``time.perf_counter``'s clock; not set before.
        env_s: seconds from then until the env had done; not set before.
    """

    started_at: float
    env_s: float

    async def on_loop(self) -> None:
        """See :class:`EnvCall`."""
        self.started_at = perf_counter()
        try:
            await super().on_loop()
        finally:
            self.env_s = perf_counter() - self.started_at

    def in_thread(self, awaited: Await) -> None:
        """See :class:`EnvCall`."""
        self.started_at = perf_counter()
        try:
            super().in_thread(awaited)
        finally:
            self.env_s = perf_counter() - self.started_at


class CallingHost(EnvHost, Protocol):
    """A host whose envs are called by others.

    Attributes:
        envs: the envs, one a row.
    """

    envs: Sequence[Any]

    def time_calls(self) -> None:
        """Has ``calls`` give those that are :class:`TimedCall` from now on."""

    def prepare_thread(self) -> None:
        """Called once in each thread in which envs are to be called."""

    def calls(
        self, rows: Sequence[int], ops: bytes, inputs: Any, reset_kwargs: Sequence[Mapping[str, Any]] | None = None
    ) -> list[Any]:
        """What the envs of rows are to be asked for: a :class:`RowCall` each, but for rows that do nothing.

        What the caller does later with what it gave here, no env sees.

        Args:
            rows: the rows.
            ops, inputs, reset_kwargs: see :meth:`Host.run`, of these rows, in this order.
        """

    def finish(self, calls: Sequence[Any], *, by_row: bool = False) -> Report:
        """Takes what calls gave that have been made: as ``run`` would.

        It may be done again with the same calls as long as their envs are not called anew.

        Args:
            calls: of a row each, in any order.
            by_row: the report's rows are the calls'; if not, its row ``i`` is that of ``calls[i]``.
        """


class GymCall(RowCall):
    """A reset or a step of a gymnasium env.

    The host that takes what it gave runs it in place of the env: its ``step`` and ``reset`` give what the env's gave.

    Args:
        row, op: see :class:`RowCall`.
        env: the env.
        action: of a step.
        kwargs: of a reset.

    Example:
        >>> call = GymCall(0, Op.RESET, gym.make("CartPole-v1"), None, {"seed": 0})
        >>> call.in_thread(lambda awaitable: None)
        >>> observation, info = call.reset()
        >>> observation.shape
        (4,)
    """

    __slots__ = ("_action", "_env", "_first", "_is_resetting", "_kwargs", "_reset_error", "_stepped")

    def __init__(self, row: int, op: int, env: Any, action: Any, kwargs: Mapping[str, Any]):
        self.row = row
        self.op = op
        self.is_done = False
        self.error = None
        self._reset_error: Exception | None = None
        self._env = env
        self._action = action
        self._kwargs = kwargs
        self._stepped: Any = None
        self._first: Any = None

    async def on_loop(self) -> None:
        """See :class:`EnvCall`."""
        if self.op == _RESET:
            self._first = await _value_of(self._env.reset(**self._kwargs))
            return
        stepped = self._env.step(self._action)
        self._stepped = await stepped if is_awaitable(stepped) else stepped
        if self.op == _STEP_MAYBE_RESET and _has_ended(self._stepped):
            self._stepped = _detached(self._stepped)
            self._begin_reset()
            try:
                self._first = await _value_of(self._env.reset(**self._kwargs))
            except Exception as error:
                self._reset_error = error

    def in_thread(self, awaited: Await) -> None:
        """See :class:`EnvCall`."""
        if self.op == _RESET:
            self._first = self._reset(awaited)
            return
        stepped = self._env.step(self._action)
        self._stepped = awaited(stepped) if is_awaitable(stepped) else stepped
        if self.op == _STEP_MAYBE_RESET and _has_ended(self._stepped):
            self._stepped = _detached(self._stepped)
            self._begin_reset()
            try:
                self._first = self._reset(awaited)
            except Exception as error:
                self._reset_error = error

    def _begin_reset(self) -> None:
        """The reset after a step may take its own time."""
        self._is_resetting = True
        self.begun_at = perf_counter()

    @property
    def doing(self) -> str:
        """See :class:`RowCall`."""
        is_resetting = self.op == _RESET or getattr(self, "_is_resetting", False)
        return AtWork.text(AtWork.RESET if is_resetting else AtWork.STEP, self.row)

    def again(self, env: Any, seed: int | None) -> GymCall:
        """See :class:`RowCall`."""
        kwargs = self._kwargs if seed is None else {**self._kwargs, "seed": seed}
        return type(self)(self.row, _RESET, env, None, kwargs)

    def _reset(self, awaited: Await) -> Any:
        first = self._env.reset(**self._kwargs)
        return awaited(first) if is_awaitable(first) else first

    def step(self, action: Any) -> Any:
        """What the env's step gave."""
        if self.error is not None:
            raise self.error
        return self._stepped

    def reset(self, **kwargs: Any) -> Any:
        """What the env's reset gave."""
        error = self._reset_error if self.error is None else self.error
        if error is not None:
            raise error
        return self._first


class TimedGymCall(TimedCall, GymCall):
    """A reset or a step of a gymnasium env that is timed."""


class VerbCall(EnvCall):
    """Any other call that concerns a row's env; what it gives may have to be awaited.

    Attributes:
        result: what it gave.
    """

    __slots__ = ("_call", "result")

    def __init__(self, row: int, call: Callable[[], Any]):
        super().__init__(row)
        self._call = call
        self.result: Any = None

    async def on_loop(self) -> None:
        """See :class:`EnvCall`."""
        self.result = await _value_of(self._call())

    def in_thread(self, awaited: Await) -> None:
        """See :class:`EnvCall`."""
        result = self._call()
        self.result = awaited(result) if is_awaitable(result) else result


def bridged(env: Any, awaited: Await) -> Callable[[], None]:
    """Has those who call an env's coroutines from another thread than the loop's get what they give.

    Args:
        env: the env, a gymnasium env or an ``EnvBase``.
        awaited: waits for what an awaitable gives; on the loop it gives the awaitable itself.

    Returns:
        What undoes it.
    """
    own = vars(env)
    names = ("step", "reset", "close") if isinstance(env, gym.Env) else ("_step", "_reset", "close")
    before = {name: own[name] for name in names if name in own}
    for name in names:
        own[name] = _Bridged(getattr(env, name), awaited)

    def undo() -> None:
        for name in names:
            del own[name]
        own.update(before)

    return undo


class _Bridged:
    def __init__(self, method: Callable[..., Any], awaited: Await):
        self._method = method
        self._awaited = awaited

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._awaited(self._method(*arguments, **named))


def is_coroutine_env(env: Any) -> bool:
    """Whether an env's steps or resets are coroutines.

    Example:
        >>> is_coroutine_env(gym.make("CartPole-v1"))
        False
    """
    names = ("step", "reset") if isinstance(env, gym.Env) else ("_step", "_reset")
    return any(inspect.iscoroutinefunction(_passed_on(env, name)) for name in names if hasattr(env, name))


def _passed_on(env: Any, name: str) -> Any:
    """A method of an env, or that of the env in wrappers which hand on what that gives, whatever it is."""
    while isinstance(env, gym.Wrapper) and getattr(type(env), name) in _HANDING_ON:
        env = env.env
    return getattr(env, name)


_HANDING_ON = frozenset(
    {
        gym.Wrapper.step,
        gym.Wrapper.reset,
        gym.ActionWrapper.step,
        gym.wrappers.OrderEnforcing.step,
        gym.wrappers.OrderEnforcing.reset,
    }
)
"""Methods that do no more with what their env gives than to return it."""


def wrapper_that_does_not_await(env: Any) -> Any:
    """A wrapper of a gymnasium env that takes what is a coroutine for a result; None where there is none."""
    for name in ("step", "reset"):
        suspect, inner = None, env
        while True:
            is_coroutine = inspect.iscoroutinefunction(getattr(inner, name))
            if is_coroutine and suspect is not None:
                return suspect
            if not isinstance(inner, gym.Wrapper):
                break
            if not is_coroutine and getattr(type(inner), name) not in _HANDING_ON:
                suspect = suspect or inner
            inner = inner.env
    return None


def is_awaitable(value: Any) -> bool:
    """Whether a value has to be awaited; what envs give most is told first."""
    kind = type(value)
    return kind is CoroutineType or (kind is not tuple and inspect.isawaitable(value))


async def _value_of(value: Any) -> Any:
    return await value if is_awaitable(value) else value


def _has_ended(stepped: Any) -> bool:
    """Whether the host will find that a step has ended the episode."""
    try:
        _, _, terminated, truncated, _ = stepped
        if terminated is False and truncated is False:
            return False
        terminated, truncated = flag("terminated", terminated), flag("truncated", truncated)
    except (TypeError, ValueError, EnvOutputError):  # the host will say so
        return False
    return terminated or truncated


def _detached(stepped: Any) -> Any:
    """What a step gave, as it is before the reset, which may write into the same arrays."""
    observation, reward, terminated, truncated, info = stepped
    with suppress(Exception):  # what cannot be copied is shared
        observation = copy.deepcopy(observation)
    with suppress(EnvOutputError):  # the host will say so
        info = snapshot(info)
    return observation, reward, terminated, truncated, info
