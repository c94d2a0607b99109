"""The ways to run TensorDict envs that the zoo's tests run over: what later ones add is one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from engines import EVERY_ENGINE, ON_RAY, WITH_WORKERS

from gymbridge import AsyncEnvPool, ParallelEnv, SerialEnv
from gymbridge.envs import EnvBase

__all__ = ["ALONE", "BATCHES", "TensorDictEngine", "serial"]

Maker = Callable[[], EnvBase]


@dataclass(frozen=True)
class TensorDictEngine:
    """One way to run TensorDict envs.

    Attributes:
        name: as it shows in the test's id.
        num_envs: number of envs; None for one that is in no batch.
        build: makers of the envs and options of the batch -> env.
        lazy: whether results are lazy stacks even of envs that agree.
        in_process: the envs are objects of this process, which a test may look at.
    """

    name: str
    num_envs: int | None
    build: Callable[..., EnvBase]
    lazy: bool = False
    in_process: bool = True

    @property
    def batched(self) -> bool:
        return self.num_envs is not None

    def make(self, maker: Callable[[int], EnvBase], first: int = 0, **options: object) -> EnvBase:
        """The env, whose envs have the indices from ``first`` on."""
        indices = range(first, first + (self.num_envs or 1))
        return self.build([lambda index=index: maker(index) for index in indices], **options)

    def one_by_one(self, maker: Callable[[int], EnvBase], first: int = 0) -> list[EnvBase]:
        """The same envs for the oracle."""
        return [maker(index) for index in range(first, first + (self.num_envs or 1))]

    def __str__(self) -> str:
        return self.name


def serial(makers: Sequence[Maker], **options: object) -> EnvBase:
    return SerialEnv(len(makers), [*makers], **options)  # type: ignore[arg-type]


def parallel(makers: Sequence[Maker], **options: object) -> EnvBase:
    return ParallelEnv(len(makers), [*makers], **options)  # type: ignore[arg-type]


def pool(makers: Sequence[Maker], **options: object) -> EnvBase:
    """Used synchronously; envs that do not agree are a lazy stack."""
    return AsyncEnvPool([*makers], **{"stack": "maybe_dense", **options})  # type: ignore[arg-type]


ALONE = TensorDictEngine("alone", None, lambda makers: makers[0]())

BATCHES: tuple[TensorDictEngine, ...] = (
    TensorDictEngine("SerialEnv-1", 1, serial),
    TensorDictEngine("SerialEnv-3", 3, serial),
    TensorDictEngine("SerialEnv-3-lazy", 3, partial(serial, share_individual_td=True), lazy=True),
    *(
        [
            TensorDictEngine("pool-asyncio-3", 3, partial(pool, backend="asyncio"), in_process=False),
            TensorDictEngine("pool-threading-3", 3, partial(pool, backend="threading"), in_process=False),
        ]
        if WITH_WORKERS
        else []
    ),
    *(
        [TensorDictEngine("ParallelEnv-3", 3, partial(parallel, num_workers=2), in_process=False)]
        if WITH_WORKERS
        else []
    ),
    *(
        [
            TensorDictEngine("ParallelEnv-1", 1, parallel, in_process=False),
            TensorDictEngine("ParallelEnv-3-and-caller", 3, partial(parallel, caller_steps=True), in_process=False),
            TensorDictEngine(
                "ParallelEnv-3-pipes-and-caller",
                3,
                partial(parallel, use_buffers=False, caller_steps=True),
                in_process=False,
            ),
            TensorDictEngine("pool-processes-3", 3, partial(pool, backend="multiprocessing"), in_process=False),
            TensorDictEngine(
                "pool-processes-3-lazy", 3, partial(pool, backend="multiprocessing", stack="lazy"), True, False
            ),
            TensorDictEngine("ParallelEnv-3-pipes", 3, partial(parallel, use_buffers=False), in_process=False),
            TensorDictEngine("ParallelEnv-3-memmap", 3, partial(parallel, memmap=True), in_process=False),
            TensorDictEngine(
                "ParallelEnv-3-lazy", 3, partial(parallel, share_individual_td=True), lazy=True, in_process=False
            ),
        ]
        if EVERY_ENGINE
        else []
    ),
)

if ON_RAY:
    BATCHES = (TensorDictEngine("pool-ray-3", 3, partial(pool, backend="ray", envs_per_worker=2), in_process=False),)
