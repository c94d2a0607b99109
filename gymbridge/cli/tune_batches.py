"""The ways to run a batch of an env that ``gymbridge tune`` chooses from, each as the text of a program."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from gymbridge.benchmarking.drivers import dispatched, tensordict_engine, vector_engine, without_gradients
from gymbridge.benchmarking.rounds import Close, Run
from gymbridge.cli.env_argument import NamedEnv
from gymbridge.cli.env_profile import EnvProfile

__all__ = ["Api", "BatchCall", "Use", "batch_calls", "worker_numbers"]

Api = Literal["native", "gymnasium", "pool"]
"""What the user's program is written for."""
Use = Literal["step", "vector", "dispatch"]
"""How a batch is used: ``step_and_maybe_reset`` of all, a vector env's ``step``, or sends and receives."""

_MOST_WAITING_WORKERS = 64
"""Processes for envs that wait, where that is more than the cores."""

_LINE_LENGTH = 80
"""Columns of a terminal, from which a program is copied."""

_LOOPS: dict[Use, str] = {
    "step": """\
td = env.reset()
for _ in range(100):
    td = env.rand_action(td)  # or your policy: td = policy(td)
    transition, td = env.step_and_maybe_reset(td)
env.close()
""",
    "vector": """\
observations, infos = env.reset(seed=0)
for _ in range(100):
    actions = env.action_space.sample()  # or your policy
    observations, rewards, terminations, truncations, infos = env.step(actions)
env.close()
""",
    "dispatch": """\
env.async_reset_send()
td = env.async_reset_recv(min_get=env.num_envs)
for _ in range(100):
    td.update(env.full_action_spec.rand()[: len(td)])  # or td = policy(td)
    env.async_step_and_maybe_reset_send(td)
    # of one env, and of all others that are ready
    transition, td = env.async_step_and_maybe_reset_recv()
env.close()
""",
}
"""What a program does with ``env``."""


def _broken(line: str) -> str:
    """A line that ends with a call, over several lines where it is too long.

    Example:
        >>> print(_broken('env = Pool([make] * 64, backend="multiprocessing", envs_per_worker=32, exchange="shm")'))
        env = Pool(
            [make] * 64, backend="multiprocessing", envs_per_worker=32, exchange="shm"
        )
    """
    if len(line) <= _LINE_LENGTH:
        return line
    name, _, arguments = line.removesuffix(")").partition("(")
    if len(f"    {arguments}") > _LINE_LENGTH:
        arguments = re.sub(r", (?![^()\[\]{}]*[)\]}])", ",\n    ", arguments) + ","  # those of the outer call
    return f"{name}(\n    {arguments}\n)"


@dataclass(frozen=True)
class BatchCall:
    """A call that makes a batch, which is what is timed too.

    Attributes:
        expression: the call, with the names that ``imports`` brings.
        imports: lines of a program.
        use: how the batch is used.
        processes: worker processes; 0 for this process.
        least_us: what a step of all envs takes at least, by the envs' own time.
        in_turn: how many envs are stepped one after the other.
        overhead: what the rest of a step's time goes to, in words.
    """

    expression: str
    imports: tuple[str, ...]
    use: Use
    processes: int
    least_us: float
    in_turn: int
    overhead: str

    @property
    def title(self) -> str:
        """The call, and how the batch is used where that is not the usual way."""
        used_otherwise = self.use == "step" and self.expression.startswith("AsyncEnvPool")
        return f"{self.expression}, all together" if used_otherwise else self.expression

    @property
    def needs_torch(self) -> bool:
        """Torch is imported for it."""
        return any(line.startswith("from gymbridge import") for line in self.imports)

    @property
    def call(self) -> str:
        """The call, ready to be pasted."""
        return "\n".join(self.imports) + f"\n\n{_broken(f'env = {self.expression}')}\n"

    @property
    def program(self) -> str:
        """A program that makes the batch and steps it a little."""
        return f"{self.call}{_LOOPS[self.use]}"

    def build(self) -> tuple[Run, Close]:
        """The batch that the call makes, and how it is stepped."""
        names: dict[str, Any] = {}
        exec(self.call, names)  # the very text that is printed, so that what was measured is what is pasted
        env = names["env"]
        try:
            return self._driven(env)
        except BaseException:
            env.close()
            raise

    def _driven(self, env: Any) -> tuple[Run, Close]:
        if self.use == "step":
            return tensordict_engine(env)
        if self.use == "dispatch":
            run, close = dispatched(env)
            return lambda steps: run(steps * env.num_envs), close
        run, close = vector_engine(env)
        return (without_gradients(run) if self.needs_torch else run), close


def worker_numbers(num_envs: int, cores: int, *, waits: bool) -> list[int]:
    """Numbers of worker processes that are worth trying: powers of two, and the most that there can be.

    Example:
        >>> worker_numbers(96, 64, waits=False)
        [1, 2, 4, 8, 16, 32, 64]
        >>> worker_numbers(24, 2, waits=True)
        [1, 2, 4, 8, 16, 24]
    """
    most = min(num_envs, max(cores, _MOST_WAITING_WORKERS) if waits else cores)
    return sorted({2**power for power in range(most.bit_length())} | {most})


def batch_calls(env: NamedEnv, num_envs: int, api: Api, profile: EnvProfile, cores: int) -> list[BatchCall]:
    """All that are to be tried, the most promising first.

    Args:
        env: the env.
        num_envs: how many of them.
        api: what the program is written for.
        profile: of the env.
        cores: how many processes can compute at a time.
    """
    writer = _Writer(env, num_envs, profile, cores)
    if profile.awaited:
        calls = [writer.pool("dispatch" if api == "pool" else "step", "asyncio")]
    elif api == "pool":
        calls = list(writer.pools())
    else:
        calls = [writer.serial(), *writer.parallels()]
        if profile.waits:
            calls.append(writer.pool("step", "threading"))
    if api == "native" and not profile.awaited and not profile.waits:
        calls += writer.parallels_with_caller()
    if api == "gymnasium":
        calls = [writer.as_vector_env(call) for call in calls]
    if api == "native" and profile.varies and not profile.awaited:
        calls += writer.pools()
    return sorted(calls, key=lambda call: call.least_us + 50.0 * call.processes**0.5)


@dataclass(frozen=True)
class _Writer:
    """Writes calls for an env."""

    env: NamedEnv
    num_envs: int
    profile: EnvProfile
    cores: int

    def serial(self) -> BatchCall:
        arguments = f"{self.num_envs}, {self.env.expression}"
        return self._call("SerialEnv", arguments, "step", 0, self.num_envs, "making the results")

    def parallels(self) -> Iterable[BatchCall]:
        for workers in worker_numbers(self.num_envs, self.cores, waits=self.profile.waits):
            arguments = f"{self.num_envs}, {self.env.expression}, num_workers={workers}"
            in_turn = math.ceil(self.num_envs / workers)
            yield self._call("ParallelEnv", arguments, "step", workers, in_turn, _waking(workers))

    def parallels_with_caller(self) -> Iterable[BatchCall]:
        """Where the caller steps a share too, on a core that no worker has."""
        if min(self.num_envs, self.cores) < 2:
            return
        for workers in worker_numbers(self.num_envs - 1, self.cores - 1, waits=False):
            arguments = f"{self.num_envs}, {self.env.expression}, num_workers={workers}, caller_steps=True"
            in_turn = math.ceil(self.num_envs / (workers + 1))
            yield self._call("ParallelEnv", arguments, "step", workers, in_turn, _waking(workers), at_once=workers + 1)

    def pools(self) -> Iterable[BatchCall]:
        """In threads, and in processes that each run several, over shared memory and by message."""
        yield self.pool("dispatch", "threading")
        tried = set()
        for workers in worker_numbers(self.num_envs, self.cores, waits=self.profile.waits or self.profile.varies):
            per_worker = math.ceil(self.num_envs / workers)
            if per_worker not in tried:
                tried.add(per_worker)
                yield self.pool("dispatch", "multiprocessing", envs_per_worker=per_worker, exchange="shm")
        yield self.pool("dispatch", "multiprocessing", envs_per_worker=min(tried), exchange="queue")

    def pool(self, use: Use, backend: str, **options: Any) -> BatchCall:
        told = ", ".join([f'backend="{backend}"', *(f"{k}={_literal(v)}" for k, v in options.items())])
        arguments = f"[{self.env.expression}] * {self.num_envs}, {told}"
        processes, overhead = 0, "handing over between threads"
        if backend == "multiprocessing":
            processes = math.ceil(self.num_envs / options["envs_per_worker"])
            overhead = "messages" if options["exchange"] == "queue" else _waking(processes)
        return self._call("AsyncEnvPool", arguments, use, processes, 1, overhead)

    def as_vector_env(self, call: BatchCall) -> BatchCall:
        """The same for a program that is written for gymnasium."""
        expression, home = f"TensorDictVectorEnv({call.expression})", "TensorDictVectorEnv"
        imports = call.imports
        if self.profile.kind == "gymnasium" and not call.expression.startswith("AsyncEnvPool"):
            imports = tuple(line for line in imports if not line.startswith("from gymbridge "))
            expression, home = self._own_vector_env(call.processes)
        imports = (*imports, f"from gymbridge.vector import {home}")
        return replace(call, expression=expression, imports=imports, use="vector")

    def _own_vector_env(self, workers: int) -> tuple[str, str]:
        """Over the engine itself; and the name to import."""
        if isinstance(self.env.create_env_fn, str):
            how = f'vector_kwargs={{"num_workers": {workers}}}' if workers else 'vectorization_mode="sync"'
            return f"make_vec({self.env.expression}, num_envs={self.num_envs}, {how})", "make_vec"
        name, options = ("AsyncVectorEnv", f", num_workers={workers}") if workers else ("SyncVectorEnv", "")
        return f"{name}([{self.env.expression}] * {self.num_envs}{options})", name

    def _call(
        self,
        name: str,
        arguments: str,
        use: Use,
        processes: int,
        in_turn: int,
        overhead: str,
        at_once: int | None = None,
    ) -> BatchCall:
        """A call whose envs are stepped in so many processes, of which this one may be one more."""
        work, stepping = self.profile.work_us, at_once or processes or self.cores
        computing = self.num_envs * work * self.profile.busy / max(1, min(self.cores, stepping))
        imports = tuple(filter(None, (self.env.import_line, f"from gymbridge import {name}")))
        least_us = max(in_turn * work, computing)
        return BatchCall(f"{name}({arguments})", imports, use, processes, least_us, in_turn, overhead)


def _waking(processes: int) -> str:
    return f"waking {processes} worker{'s' if processes > 1 else ''} and copying"


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)
