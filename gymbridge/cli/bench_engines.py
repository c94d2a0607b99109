"""What ``gymbridge bench`` times: gymbridge's engines and their peers, each over whichever env the user named."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

import gymnasium as gym

from gymbridge.benchmarking.drivers import (
    dispatched,
    envpool_actions,
    gym_envs_in_turn,
    numpy_engine,
    sb3_engine,
    tensordict_engine,
    vector_engine,
    without_gradients,
)
from gymbridge.benchmarking.rounds import Close, Run
from gymbridge.cli.env_argument import NamedEnv

__all__ = ["ALONE", "ENGINES", "BenchEngine", "EnvTraits"]

ALONE = "alone"
"""The name of the envs themselves, without an engine."""

_MOST_PROCESSES_WITH_TORCH = 16
"""More of them take more memory than many machines have; who names the engine gets them."""


@dataclass(frozen=True)
class EnvTraits:
    """What decides which engines can run an env.

    Attributes:
        kind: ``"gymnasium"`` or ``"TensorDict"``.
        awaited: its steps are coroutines.
    """

    kind: str
    awaited: bool


@dataclass(frozen=True)
class BenchEngine:
    """A row of the table.

    Attributes:
        title: its name there.
        gives: the kind of its results.
        build: from the env and a number of envs.
        needs: package -> the module that is looked for.
        takes: the kinds of env.
        awaits: it runs envs whose steps are coroutines; the others do not.
        by_default: it is timed unless others are named.
        most_envs: it is timed with more than so many only where it is named.
    """

    title: str
    gives: str
    build: Callable[[NamedEnv, int], tuple[Run, Close]]
    needs: tuple[str, str] | None = None
    takes: tuple[str, ...] = ("gymnasium",)
    awaits: bool = False
    by_default: bool = True
    most_envs: int | None = None

    def why_not(self, traits: EnvTraits) -> str:
        """Why it cannot be timed with an env; empty where it can, as far as can be told without trying."""
        if traits.kind not in self.takes:
            return f"takes no {traits.kind} env"
        if traits.awaited and not self.awaits:
            return "does not await coroutines"
        if self.awaits and not traits.awaited:
            return "is for envs whose steps are coroutines"
        if self.needs is not None and find_spec(self.needs[1]) is None:
            return f"needs {self.needs[0]}, which is not installed"
        return ""


# ---------------------------------------------------------------- one function a kind of engine


def _alone(env: NamedEnv, num_envs: int) -> tuple[Run, Close]:
    envs = [env.maker() for _ in range(num_envs)]
    if isinstance(envs[0], gym.Env):
        return gym_envs_in_turn(envs)
    chains = [tensordict_engine(each) for each in envs]

    def run(steps: int) -> None:
        for _ in range(steps):
            for run_one, _ in chains:
                run_one(1)

    def close() -> None:
        for _, close_one in chains:
            close_one()

    return run, close


def _vector_env(cls: str, env: NamedEnv, num_envs: int) -> tuple[Run, Close]:
    envs = resolve_name(cls)([env.maker] * num_envs)
    return _closing(envs, lambda: vector_engine(envs))


def _batch(name: str, env: NamedEnv, num_envs: int) -> tuple[Run, Close]:
    import gymbridge

    batch = getattr(gymbridge, name)(num_envs, env.create_env_fn)
    return _closing(batch, lambda: tensordict_engine(batch))


def _tensordict_vector(name: str, env: NamedEnv, num_envs: int) -> tuple[Run, Close]:
    import gymbridge
    from gymbridge.vector import TensorDictVectorEnv

    batch = getattr(gymbridge, name)(num_envs, env.create_env_fn)

    def driven() -> tuple[Run, Close]:
        run, _ = vector_engine(TensorDictVectorEnv(batch))
        return without_gradients(run), batch.close

    return _closing(batch, driven)


def _pool(backend: str, env: NamedEnv, num_envs: int) -> tuple[Run, Close]:
    from gymbridge import AsyncEnvPool

    pool = AsyncEnvPool([env.create_env_fn] * num_envs, backend=backend)

    def driven() -> tuple[Run, Close]:
        run, close = dispatched(pool)
        return lambda steps: run(steps * num_envs), close

    return _closing(pool, driven)


def _sb3(cls: str, env: NamedEnv, num_envs: int) -> tuple[Run, Close]:
    envs = resolve_name(cls)([env.maker] * num_envs)
    return _closing(envs, lambda: sb3_engine(envs))


def _torchrl(name: str, env: NamedEnv, num_envs: int) -> tuple[Run, Close]:
    from torchrl import envs as torchrl_envs

    batch = getattr(torchrl_envs, name)(num_envs, functools.partial(_wrapped_for_torchrl, env.maker))
    return _closing(batch, lambda: tensordict_engine(batch))


def _wrapped_for_torchrl(maker: Callable[[], Any]) -> Any:
    from torchrl.envs import GymWrapper

    return GymWrapper(maker(), categorical_action_encoding=True)


def _envpool(env: NamedEnv, num_envs: int) -> tuple[Run, Close]:
    import envpool

    if env.create_env_fn not in envpool.list_all_envs():
        raise LookupError(f"EnvPool has no {env.name}")
    envs = envpool.make(env.create_env_fn, env_type="gymnasium", num_envs=num_envs, seed=0)
    envs.reset()
    return numpy_engine(envs, envpool_actions(envs, num_envs))


def _closing(engine: Any, driven: Callable[[], tuple[Run, Close]]) -> tuple[Run, Close]:
    """How an engine is driven; it is closed where it cannot be, unless that is interrupted: some would wait."""
    try:
        return driven()
    except Exception:
        engine.close()
        raise


_BOTH = ("gymnasium", "TensorDict")
_SB3 = ("stable-baselines3", "stable_baselines3")
_TORCHRL = ("torchrl", "torchrl")


ENGINES = {
    ALONE: BenchEngine("the envs alone, in a loop", "", _alone, takes=_BOTH),
    "gymbridge-sync": BenchEngine(
        "gymbridge SyncVectorEnv", "numpy", functools.partial(_vector_env, "gymbridge.vector:SyncVectorEnv")
    ),
    "gymbridge-async": BenchEngine(
        "gymbridge AsyncVectorEnv", "numpy", functools.partial(_vector_env, "gymbridge.vector:AsyncVectorEnv")
    ),
    "gymbridge-serial": BenchEngine(
        "gymbridge SerialEnv", "TensorDict", functools.partial(_batch, "SerialEnv"), takes=_BOTH
    ),
    "gymbridge-parallel": BenchEngine(
        "gymbridge ParallelEnv", "TensorDict", functools.partial(_batch, "ParallelEnv"), takes=_BOTH
    ),
    "gymbridge-tensordict-vector": BenchEngine(
        "gymbridge TensorDictVectorEnv(SerialEnv)",
        "numpy",
        functools.partial(_tensordict_vector, "SerialEnv"),
        takes=_BOTH,
    ),
    "gymbridge-tensordict-vector-parallel": BenchEngine(
        "gymbridge TensorDictVectorEnv(ParallelEnv)",
        "numpy",
        functools.partial(_tensordict_vector, "ParallelEnv"),
        takes=_BOTH,
    ),
    "gymbridge-pool-threads": BenchEngine(
        "gymbridge AsyncEnvPool, threads", "TensorDict", functools.partial(_pool, "threading"), takes=_BOTH
    ),
    "gymbridge-pool-processes": BenchEngine(
        "gymbridge AsyncEnvPool, processes", "TensorDict", functools.partial(_pool, "multiprocessing"), takes=_BOTH
    ),
    "gymbridge-pool-asyncio": BenchEngine(
        "gymbridge AsyncEnvPool, asyncio",
        "TensorDict",
        functools.partial(_pool, "asyncio"),
        takes=_BOTH,
        awaits=True,
    ),
    "gymbridge-pool-ray": BenchEngine(
        "gymbridge AsyncEnvPool, Ray",
        "TensorDict",
        functools.partial(_pool, "ray"),
        needs=("ray", "ray"),
        takes=_BOTH,
        by_default=False,
    ),
    "gymbridge-sb3": BenchEngine(
        "gymbridge interop.sb3.VecEnv", "numpy", functools.partial(_sb3, "gymbridge.interop.sb3:VecEnv"), needs=_SB3
    ),
    "gymnasium-sync": BenchEngine(
        "gymnasium SyncVectorEnv", "numpy", functools.partial(_vector_env, "gymnasium.vector:SyncVectorEnv")
    ),
    "gymnasium-async": BenchEngine(
        "gymnasium AsyncVectorEnv", "numpy", functools.partial(_vector_env, "gymnasium.vector:AsyncVectorEnv")
    ),
    "sb3-dummy": BenchEngine(
        "Stable-Baselines3 DummyVecEnv",
        "numpy",
        functools.partial(_sb3, "stable_baselines3.common.vec_env:DummyVecEnv"),
        needs=_SB3,
    ),
    "sb3-subproc": BenchEngine(
        "Stable-Baselines3 SubprocVecEnv",
        "numpy",
        functools.partial(_sb3, "stable_baselines3.common.vec_env:SubprocVecEnv"),
        needs=_SB3,
        most_envs=_MOST_PROCESSES_WITH_TORCH,
    ),
    "torchrl-serial": BenchEngine(
        "TorchRL SerialEnv", "TensorDict", functools.partial(_torchrl, "SerialEnv"), needs=_TORCHRL
    ),
    "torchrl-parallel": BenchEngine(
        "TorchRL ParallelEnv",
        "TensorDict",
        functools.partial(_torchrl, "ParallelEnv"),
        needs=_TORCHRL,
        most_envs=_MOST_PROCESSES_WITH_TORCH,
    ),
    "envpool": BenchEngine("EnvPool", "numpy", _envpool, needs=("envpool", "envpool")),
}
"""Name -> engine, in the order of the table."""
