"""What ``stats()`` costs once it has been asked for: each engine beside one that was never asked, timed in turn.

    python benchmarks/stats_cost.py --rounds 31

Microseconds for one step of all environments, in a pool for one transition: medians of the rounds. In brackets stands
the median of the rounds' ratios to the engine that was not asked, of the same kind and in the same run.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch
from vector_step import make

from gymbridge import AsyncEnvPool, ParallelEnv, SerialEnv
from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv

Run = Callable[[int], None]
"""Makes so many steps."""


def vector_env(kind: Any, env: str, num_envs: int) -> tuple[Any, Run]:
    """A vector env, reset."""
    envs = kind([functools.partial(make, env)] * num_envs)
    envs.reset(seed=0)
    actions = np.zeros(num_envs, np.int64)

    def run(steps: int) -> None:
        for _ in range(steps):
            envs.step(actions)

    return envs, run


def batch(kind: Any, env: str, num_envs: int) -> tuple[Any, Run]:
    """A TensorDict batch, reset."""
    engine = kind(num_envs, functools.partial(make, env))
    roots, actions = [engine.reset()], torch.zeros(num_envs, dtype=torch.int64)

    def run(steps: int) -> None:
        for _ in range(steps):
            roots[0] = engine.step_and_maybe_reset(roots[0].set("action", actions))[1]

    return engine, run


def pool(backend: str, env: str, num_envs: int) -> tuple[Any, Run]:
    """A pool all of whose environments have a step to do."""
    engine = AsyncEnvPool([functools.partial(make, env)] * num_envs, backend=backend)
    root = engine.reset()
    engine.async_step_and_maybe_reset_send(root.set("action", torch.zeros(num_envs, dtype=torch.int64)))

    def run(transitions: int) -> None:
        left = transitions
        while left > 0:
            _, ready = engine.async_step_and_maybe_reset_recv()
            left -= len(ready)
            ready["action"] = torch.zeros(len(ready), dtype=torch.int64)
            engine.async_step_and_maybe_reset_send(ready)

    return engine, run


ENGINES = {
    "`SyncVectorEnv`": functools.partial(vector_env, SyncVectorEnv),
    "`AsyncVectorEnv`": functools.partial(vector_env, AsyncVectorEnv),
    "`SerialEnv`": functools.partial(batch, SerialEnv),
    "`ParallelEnv`": functools.partial(batch, ParallelEnv),
    "`AsyncEnvPool`, threads": functools.partial(pool, "threading"),
    "`AsyncEnvPool`, processes": functools.partial(pool, "multiprocessing"),
}


def timed(run: Run, steps: int) -> float:
    """Microseconds a step."""
    begun = perf_counter()
    run(steps)
    return 1e6 * (perf_counter() - begun) / steps


def compared(build: Callable[..., tuple[Any, Run]], env: str, num_envs: int, rounds: int, seconds: float) -> str:
    """A cell of the table."""
    (off, run_off), (on, run_on) = build(env, num_envs), build(env, num_envs)
    try:
        on.stats()
        steps = max(1, int(1e6 * seconds / timed(run_off, 20)))
        timed(run_on, 20)
        figures = []
        for number in range(rounds):
            order = [run_off, run_on] if number % 2 else [run_on, run_off]
            took = {run: timed(run, steps) for run in order}
            figures.append((took[run_off], took[run_on]))
    finally:
        off.close()
        on.close()
    off_us, on_us = (statistics.median(column) for column in zip(*figures, strict=True))
    return f"{off_us:.3g} | {on_us:.3g} ({statistics.median(b / a for a, b in figures):.2f})"


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description="What stats() costs once it has been asked for.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.05, help="for one engine in one round")
    parser.add_argument("--num-envs", type=int, default=8)
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error(f"--rounds: got {given.rounds}, expected 1 or more")
    torch.set_num_threads(1)
    print(f"| N={given.num_envs} | null: off | on | CartPole: off | on |\n| --- | --- | --- | --- | --- |")
    for name, build in ENGINES.items():
        cells = [compared(build, env, given.num_envs, given.rounds, given.seconds) for env in ("null", "CartPole-v1")]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
