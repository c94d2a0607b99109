"""What it costs to start an engine: milliseconds until its workers have made their envs and the first reset is done.

    python benchmarks/engine_start.py --num-workers 8 --env CartPole-v1

There is a process an env. Each engine is timed in programs of its own, which have imported its library by then; the
programs of all engines take turns. Cold is the first engine of a program, warm are the later ones. Beside a figure
stands how many times that of gymbridge's `AsyncVectorEnv` it is: the median of the turns' ratios. What memory a worker
has is in ``worker_start.py``.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("RL_WARNINGS", "0")

import gymnasium as gym
from program_options import add_names, program_parser
from report import Candidate, begin, figures_of, measured_how, report, table, tell_progress, with_references

from gymbridge.benchmarking.rounds import Cell
from gymbridge.cli.option_values import positive_int

Start = Callable[[str, int], Any]
"""Starts an engine, from an id and a number of workers, and resets it."""


def _gymnasium(context: str) -> Start:
    def start(env: str, num_workers: int) -> Any:
        envs = gym.vector.AsyncVectorEnv([functools.partial(gym.make, env)] * num_workers, context=context)
        envs.reset(seed=0)
        return envs

    return start


def _gymbridge_async() -> Start:
    from gymbridge.vector import AsyncVectorEnv

    def start(env: str, num_workers: int) -> Any:
        envs = AsyncVectorEnv([functools.partial(gym.make, env)] * num_workers, num_workers=num_workers)
        envs.reset(seed=0)
        return envs

    return start


def _gymbridge_parallel() -> Start:
    from gymbridge import ParallelEnv

    def start(env: str, num_workers: int) -> Any:
        envs = ParallelEnv(num_workers, env, num_workers=num_workers)
        envs.reset()
        return envs

    return start


def _torchrl_env(env: str) -> Any:
    from torchrl.envs import GymWrapper

    return GymWrapper(gym.make(env), categorical_action_encoding=True)


def _torchrl_parallel() -> Start:
    from torchrl.envs import ParallelEnv

    def start(env: str, num_workers: int) -> Any:
        envs = ParallelEnv(num_workers, functools.partial(_torchrl_env, env))
        envs.reset()
        return envs

    return start


REFERENCE = "gymbridge-async"

CANDIDATES = {
    REFERENCE: Candidate("**gymbridge `AsyncVectorEnv`**", _gymbridge_async, REFERENCE),
    "gymbridge-parallel": Candidate("**gymbridge `ParallelEnv`**", _gymbridge_parallel, REFERENCE),
    "gymnasium-spawn": Candidate(
        'gymnasium `AsyncVectorEnv`, `context="spawn"`', lambda: _gymnasium("spawn"), REFERENCE
    ),
    "gymnasium-fork": Candidate('gymnasium `AsyncVectorEnv`, `context="fork"`', lambda: _gymnasium("fork"), REFERENCE),
    "torchrl-parallel": Candidate("TorchRL `ParallelEnv`", _torchrl_parallel, REFERENCE),
}


def measure_here(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds: ``"cold"`` and ``"warm"``."""
    start_engine = CANDIDATES[name].build()
    times = []
    for _ in range(1 + options.rounds):
        begin = time.perf_counter()
        envs = start_engine(options.env, options.num_workers)
        times.append((time.perf_counter() - begin) * 1e3)
        envs.close()
    return {"cold": times[0], "warm": statistics.median(times[1:])}


def measure(name: str, argv: list[str]) -> dict[str, float] | str:
    """The figures of one program, or the last line of its error."""
    done = subprocess.run([sys.executable, __file__, *argv, "--here", name], capture_output=True, text=True)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = program_parser(__doc__, rounds=3, turn="of an engine to start warm in a program")
    parser.add_argument("--num-workers", type=positive_int, default=8)
    parser.add_argument("--env", default="CartPole-v1", help="a gymnasium id")
    parser.add_argument("--programs", type=positive_int, default=3, help="for each engine (3)")
    add_names(parser, "--peers", CANDIDATES)
    parser.add_argument("--here", choices=CANDIDATES, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    if options.here:
        warnings.filterwarnings("ignore")
        print(json.dumps(measure_here(options.here, options)))
        return 0
    about = begin(("gymnasium", "torch", "tensordict", "torchrl"), **measured_how(options), programs=options.programs)
    names = with_references(CANDIDATES, options.peers)
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    failed: dict[str, str] = {}
    for number in range(options.programs):
        tell_progress(f"programs, {number + 1} of {options.programs} of each engine")
        for name in names:
            outcome = measure(name, argv) if name not in failed else failed[name]
            if isinstance(outcome, str):
                failed[name] = outcome
            else:
                turns[name].append(outcome)
    columns = {
        case: {
            name: Cell(failure=failed[name]) if name in failed else Cell(tuple(each[case] for each in turns[name]))
            for name in names
        }
        for case in ("cold", "warm")
    }
    figures = figures_of(columns, CANDIDATES)
    print("\n" + table(figures, "ms to start (times gymbridge's)"))
    report(about, "ms", figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
