"""The engines that the behaviour suite runs over: what later ones add is one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from own_envs import OwnBatch

from gymbridge import AsyncEnvPool, ParallelEnv, SerialEnv
from gymbridge.envs import EnvBase, GymEnv

Maker = Callable[[], gym.Env]

_CHOICE = os.environ.get("GYMBRIDGE_ENGINES", "some")
if _CHOICE not in ("in-process", "some", "all", "ray"):
    raise ValueError(f"GYMBRIDGE_ENGINES: got {_CHOICE!r}, expected 'in-process', 'some', 'all' or 'ray'")

ON_RAY = _CHOICE == "ray"
"""Whether there is but one engine: a pool of actors on a Ray cluster."""

WITH_WORKERS = _CHOICE in ("some", "all")
"""Whether there are engines whose envs run in processes or threads of their own."""

EVERY_ENGINE = _CHOICE == "all"
"""Whether the engines that differ from another in one option alone are there too: each takes minutes."""


def serial_of_gym_envs(makers: Sequence[Maker], device: Any, options: dict[str, Any]) -> EnvBase:
    fns = [lambda maker=maker: GymEnv(maker, **options) for maker in makers]
    return SerialEnv(len(makers), fns, device=device)


def serial(makers: Sequence[Maker], device: Any, options: dict[str, Any]) -> EnvBase:
    """Of the gymnasium envs themselves, unless there are options, which only ``GymEnv`` takes."""
    if options:
        return serial_of_gym_envs(makers, device, options)
    return SerialEnv(len(makers), list(makers), device=device)


def serial_lazy(makers: Sequence[Maker], device: Any, options: dict[str, Any]) -> EnvBase:
    """Each env with a TensorDict of its own."""
    fns = [lambda maker=maker: GymEnv(maker, **options) for maker in makers]
    return SerialEnv(len(makers), fns, device=device, share_individual_td=True)


def parallel_of_gym_envs(makers: Sequence[Maker], device: Any, options: dict[str, Any], **others: Any) -> EnvBase:
    fns = [lambda maker=maker: GymEnv(maker, **options) for maker in makers]
    return ParallelEnv(len(makers), fns, device=device, **others)


def parallel(makers: Sequence[Maker], device: Any, options: dict[str, Any], **others: Any) -> EnvBase:
    """Of the gymnasium envs themselves, unless there are options, which only ``GymEnv`` takes."""
    if options:
        return parallel_of_gym_envs(makers, device, options, **others)
    return ParallelEnv(len(makers), list(makers), device=device, **others)


def pool_of_gym_envs(makers: Sequence[Maker], device: Any, options: dict[str, Any], **others: Any) -> EnvBase:
    fns = [lambda maker=maker: GymEnv(maker, **options) for maker in makers]
    return AsyncEnvPool(fns, device=device, **others)


def pool(makers: Sequence[Maker], device: Any, options: dict[str, Any], **others: Any) -> EnvBase:
    """Used synchronously; of the gymnasium envs themselves, unless there are options, which only ``GymEnv`` takes."""
    if options:
        return pool_of_gym_envs(makers, device, options, **others)
    return AsyncEnvPool(list(makers), device=device, **others)


def own(makers: Sequence[Maker], device: Any, options: dict[str, Any]) -> EnvBase:
    if options or device is not None:
        raise ValueError(f"got {options} on {device}: none of that is for an env that a user writes")
    return OwnBatch(makers)


@dataclass(frozen=True)
class Engine:
    """One way to run gymnasium envs behind the TensorDict face.

    Attributes:
        name: as it shows in the test's id.
        batch_size: that of the env.
        build: makers of gymnasium envs, device and the options of ``GymEnv`` -> env.
        in_process: the envs are objects of this process, which a test may look at.
    """

    name: str
    batch_size: tuple[int, ...]
    build: Callable[[Sequence[Maker], Any, dict[str, Any]], EnvBase]
    in_process: bool = True

    @property
    def num_envs(self) -> int:
        return torch.Size(self.batch_size).numel()

    def make(self, maker: Callable[..., gym.Env], *, indexed: bool = False, device: Any = None, **options: Any) -> Any:
        """The env.

        Args:
            maker: makes one gymnasium env.
            indexed: the maker is given the index of the env.
            device: of what is returned.
            **options: those of ``GymEnv``.
        """
        makers = [(lambda index=index: maker(index)) if indexed else maker for index in range(self.num_envs)]
        return self.build(makers, device, options)

    def rows(self, *values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A tensor with a value an env, as many as the engine has; the values repeat."""
        shape = (*self.batch_size, *torch.as_tensor(values[0]).shape)
        return torch.tensor([values[row % len(values)] for row in range(self.num_envs)], dtype=dtype).reshape(shape)

    def __str__(self) -> str:
        return self.name


ENGINES: tuple[Engine, ...] = (
    Engine("GymEnv", (), lambda makers, device, options: GymEnv(makers[0], device=device, **options)),
    Engine("SerialEnv-1", (1,), serial),
    Engine("SerialEnv-3", (3,), serial),
    Engine("SerialEnv-2-of-GymEnv", (2,), serial_of_gym_envs),
    Engine("SerialEnv-2-lazy", (2,), serial_lazy),
    *(
        [
            Engine("pool-asyncio-3", (3,), partial(pool, backend="asyncio"), in_process=False),
            Engine("pool-threading-3", (3,), partial(pool, backend="threading"), in_process=False),
        ]
        if WITH_WORKERS
        else []
    ),
    *([Engine("ParallelEnv-3", (3,), partial(parallel, num_workers=2), in_process=False)] if WITH_WORKERS else []),
    *(
        [
            Engine(
                "ParallelEnv-2-pipes",
                (2,),
                partial(parallel_of_gym_envs, num_workers=1, use_buffers=False),
                in_process=False,
            ),
            Engine("ParallelEnv-1", (1,), parallel, in_process=False),
            Engine(
                "ParallelEnv-3-and-caller",
                (3,),
                partial(parallel, num_workers=2, caller_steps=True),
                in_process=False,
            ),
            Engine(
                "ParallelEnv-2-of-GymEnv-and-caller",
                (2,),
                partial(parallel_of_gym_envs, use_buffers=False, caller_steps=True),
                in_process=False,
            ),
            Engine("pool-processes-3", (3,), partial(pool, backend="multiprocessing"), in_process=False),
            Engine(
                "pool-processes-3-shared",
                (3,),
                partial(pool_of_gym_envs, backend="multiprocessing", envs_per_worker=2),
                in_process=False,
            ),
            Engine(
                "pool-processes-3-queue",
                (3,),
                partial(pool, backend="multiprocessing", exchange="queue"),
                in_process=False,
            ),
            Engine("ParallelEnv-3-memmap", (3,), partial(parallel, num_workers=3, memmap=True), in_process=False),
            Engine("ParallelEnv-2-of-GymEnv", (2,), partial(parallel_of_gym_envs, num_workers=1), in_process=False),
            Engine("ParallelEnv-3-pipes", (3,), partial(parallel, num_workers=2, use_buffers=False), in_process=False),
            Engine(
                "ParallelEnv-2-lazy", (2,), partial(parallel_of_gym_envs, share_individual_td=True), in_process=False
            ),
        ]
        if EVERY_ENGINE
        else []
    ),
)

if ON_RAY:
    ENGINES = (Engine("pool-ray-3", (3,), partial(pool, backend="ray", envs_per_worker=2), in_process=False),)

OWN = Engine("own-EnvBase-3", (3,), own)
"""No engine, but an env that keeps the same contract."""

BATCHED_ENVS = (SerialEnv, ParallelEnv) if WITH_WORKERS else (SerialEnv,)
"""The classes of batches: what later ones add is one line."""
