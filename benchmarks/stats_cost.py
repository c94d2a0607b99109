"""What ``stats()`` costs once it has been asked for: each engine beside one that was never asked, timed in turn.

    python benchmarks/stats_cost.py --rounds 31

Microseconds for one step of all environments, in a pool for one transition: medians of the rounds. In brackets stands
the median of the rounds' ratios to the engine that was not asked, of the same kind and in the same run.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from program_options import add_names, program_parser
from report import Columns, Row, begin, figures_of, measured_how, report, table, tell_progress
from vector_step import make

from gymbridge import AsyncEnvPool, ParallelEnv, SerialEnv
from gymbridge.benchmarking.rounds import Cell, Run, timed
from gymbridge.cli.option_values import positive_int
from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv


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
    "sync-vector": ("`SyncVectorEnv`", functools.partial(vector_env, SyncVectorEnv)),
    "async-vector": ("`AsyncVectorEnv`", functools.partial(vector_env, AsyncVectorEnv)),
    "serial": ("`SerialEnv`", functools.partial(batch, SerialEnv)),
    "parallel": ("`ParallelEnv`", functools.partial(batch, ParallelEnv)),
    "threads": ("`AsyncEnvPool`, threads", functools.partial(pool, "threading")),
    "processes": ("`AsyncEnvPool`, processes", functools.partial(pool, "multiprocessing")),
}
"""Name -> its title in the table, and what builds it."""

ENVS = ("null", "CartPole-v1")


CANDIDATES = {
    f"{name}{suffix}": Row(title + said, name)
    for name, (title, _) in ENGINES.items()
    for suffix, said in (("", ""), ("-asked", ", once asked"))
}


def compared(
    build: Callable[..., tuple[Any, Run]], env: str, num_envs: int, rounds: int, seconds: float
) -> tuple[Cell, Cell]:
    """The figures of an engine that was not asked, and of one that was."""
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
    off_us, on_us = zip(*figures, strict=True)
    return Cell(off_us), Cell(on_us)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = program_parser(__doc__, rounds=15, seconds=0.05)
    parser.add_argument("--num-envs", type=positive_int, default=8)
    add_names(parser, "--engines", ENGINES)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Prints a table."""
    options = arguments(argv)
    torch.set_num_threads(1)
    about = begin(("gymnasium", "numpy", "torch", "tensordict"), **measured_how(options))
    columns: Columns = {}
    for env in ENVS:
        case = f"{env} N={options.num_envs}"
        tell_progress(case)
        columns[case] = {}
        for name in options.engines:
            build = ENGINES[name][1]
            off, on = compared(build, env, options.num_envs, options.rounds, options.seconds)
            columns[case] |= {name: off, f"{name}-asked": on}
    figures = figures_of(columns, CANDIDATES)
    print("\n" + table(figures, "us a step (times the same engine's that was not asked)"), flush=True)
    report(about, "us a step, in a pool: a transition", figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
