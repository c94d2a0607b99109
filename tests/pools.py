"""The backends of pools that the pool tests run over: what later ones add is one line."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
from engines import EVERY_ENGINE, ON_RAY, WITH_WORKERS
from tensordict import TensorDictBase
from tensordict_waiting_envs import ActingTensorDictEnv
from waiting_envs import ActingEnv

from gymbridge import AsyncEnvPool
from gymbridge.envs import EnvBase

__all__ = ["ACTING", "ALL_BACKENDS", "BACKENDS", "STEP_VERBS", "VERBS", "Backend", "Verb", "acting_pool"]


@dataclass(frozen=True)
class Backend:
    """One way to run the envs of a pool.

    Attributes:
        name: as it shows in the test's id.
        options: of the pool.
        in_process: the envs are objects of this process.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    in_process: bool = True

    def make(self, makers: Any, **options: Any) -> AsyncEnvPool:
        """A pool of envs; on an event loop, of envs that are awaited."""
        if self.options.get("backend") == "asyncio":
            makers = [awaiting(one) for one in (makers if isinstance(makers, list) else [makers])]
        return AsyncEnvPool(makers, **{**self.options, **options})

    def __str__(self) -> str:
        return self.name


def awaiting(maker: Any) -> Callable[..., Any]:
    """A maker of the same env, whose ``reset`` and ``step`` are coroutines that have a thread do them."""

    def make(**kwargs: Any) -> Any:
        env = gym.make(maker, **kwargs) if isinstance(maker, str) else maker(**kwargs) if callable(maker) else maker
        cls: Any = type(env)
        names = ("_reset", "_step") if isinstance(env, EnvBase) else ("reset", "step")
        env.__class__ = type(cls.__name__, (cls,), {name: _in_thread(getattr(cls, name)) for name in names})
        return env

    return make


def _in_thread(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):  # of an env that has been made before
        return method

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(method, *args, **kwargs)

    return awaited


ALL_BACKENDS = (
    Backend("threading", {"backend": "threading"}),
    Backend("asyncio", {"backend": "asyncio"}),
    *([Backend("processes", {"backend": "multiprocessing"}, False)] if WITH_WORKERS else []),
    *(
        [Backend("processes-shared", {"backend": "multiprocessing", "envs_per_worker": 2}, False)]
        if WITH_WORKERS
        else []
    ),
    *([Backend("processes-queue", {"backend": "multiprocessing", "exchange": "queue"}, False)] if WITH_WORKERS else []),
)
"""Each backend, and each option of one that changes how its envs are run."""

ON_CLUSTER = (
    Backend("ray", {"backend": "ray"}, False),
    Backend("ray-shared", {"backend": "ray", "envs_per_worker": 2}, False),
)
"""Those that need a Ray cluster: they are run alone."""

if ON_RAY:
    ALL_BACKENDS = (ALL_BACKENDS[0], *ON_CLUSTER)

BACKENDS = ON_CLUSTER if ON_RAY else ALL_BACKENDS if EVERY_ENGINE else ALL_BACKENDS[:3]
"""Those that every test runs over."""

ACTING: dict[str, Any] = {"gymnasium": ActingEnv, "TensorDict": ActingTensorDictEnv}
"""The envs that do what a test tells them to, of each kind."""


def acting_pool(
    backend: Backend, kind: str, num_envs: int, folder: Path | None = None, acts: Sequence[str] = (), **options: Any
) -> Any:
    """A pool of such envs; ``acts`` are what the first of them do from the beginning."""
    acts = [*acts, *[""] * (num_envs - len(acts))]
    env = ACTING[kind]
    makers: list[Callable[[], Any]] = [
        lambda args=args: env(*args) for args in zip(range(num_envs), [folder] * num_envs, acts, strict=True)
    ]
    return backend.make(makers, **options)


@dataclass(frozen=True)
class Verb:
    """One of the three things that envs are sent.

    Attributes:
        name: as in the names of the pool's methods.
    """

    name: str

    def send(self, pool: Any, *args: Any, **kwargs: Any) -> None:
        """Gives envs work."""
        getattr(pool, f"async_{self.name}_send")(*args, **kwargs)

    def recv(self, pool: Any, *args: Any, **kwargs: Any) -> TensorDictBase:
        """What they gave; of ``step_and_maybe_reset`` the first TensorDict."""
        made = getattr(pool, f"async_{self.name}_recv")(*args, **kwargs)
        return made[0] if isinstance(made, tuple) else made

    def outputs(self, td: TensorDictBase) -> TensorDictBase:
        """Where observation and flags are in what it gives."""
        return td if self.name == "reset" else td["next"]

    def __str__(self) -> str:
        return self.name


VERBS = (Verb("reset"), Verb("step"), Verb("step_and_maybe_reset"))
STEP_VERBS = VERBS[1:]
