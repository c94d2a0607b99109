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

Load = Callable[[], Callable[[str, int], Any]]
"""Imports a library and gives what starts an engine, from an id and a number of workers; it is reset then."""


def _gymnasium(context: str) -> Callable[[str, int], Any]:
    def start(env: str, num_workers: int) -> Any:
        envs = gym.vector.AsyncVectorEnv([functools.partial(gym.make, env)] * num_workers, context=context)
        envs.reset(seed=0)
        return envs

    return start


def _gymbridge_async() -> Callable[[str, int], Any]:
    from gymbridge.vector import AsyncVectorEnv

    def start(env: str, num_workers: int) -> Any:
        envs = AsyncVectorEnv([functools.partial(gym.make, env)] * num_workers, num_workers=num_workers)
        envs.reset(seed=0)
        return envs

    return start


def _gymbridge_parallel() -> Callable[[str, int], Any]:
    from gymbridge import ParallelEnv

    def start(env: str, num_workers: int) -> Any:
        envs = ParallelEnv(num_workers, env, num_workers=num_workers)
        envs.reset()
        return envs

    return start


def _torchrl_env(env: str) -> Any:
    from torchrl.envs import GymWrapper

    return GymWrapper(gym.make(env), categorical_action_encoding=True)


def _torchrl_parallel() -> Callable[[str, int], Any]:
    from torchrl.envs import ParallelEnv

    def start(env: str, num_workers: int) -> Any:
        envs = ParallelEnv(num_workers, functools.partial(_torchrl_env, env))
        envs.reset()
        return envs

    return start


REFERENCE = "gymbridge-async"
CANDIDATES: dict[str, tuple[str, Load]] = {
    REFERENCE: ("**gymbridge `AsyncVectorEnv`**", _gymbridge_async),
    "gymbridge-parallel": ("**gymbridge `ParallelEnv`**", _gymbridge_parallel),
    "gymnasium-spawn": ('gymnasium `AsyncVectorEnv`, `context="spawn"`', lambda: _gymnasium("spawn")),
    "gymnasium-fork": ('gymnasium `AsyncVectorEnv`, `context="fork"`', lambda: _gymnasium("fork")),
    "torchrl-parallel": ("TorchRL `ParallelEnv`", _torchrl_parallel),
}


def measure_here(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds: ``"cold"`` and ``"warm"``."""
    start_engine = CANDIDATES[name][1]()
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


def table(turns: dict[str, list[dict[str, float]]]) -> str:
    """A markdown table: a row an engine, ``median (ratio)`` in the cells."""
    lines = ["| ms to start (times gymbridge's) | cold | warm |", "| --- | --- | --- |"]
    reference = turns.get(REFERENCE, [])
    for name, figures in turns.items():
        cells = []
        for column in ("cold", "warm"):
            text = f"{statistics.median(each[column] for each in figures):.0f}" if figures else "-"
            if figures and reference and name != REFERENCE:
                ratios = [mine[column] / theirs[column] for mine, theirs in zip(figures, reference, strict=True)]
                text += f" ({statistics.median(ratios):.2f})"
            cells.append(text)
        lines.append(f"| {CANDIDATES[name][0]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=8)
    parser.add_argument("--env", default="CartPole-v1", help="a gymnasium id")
    parser.add_argument("--engines", type=lambda text: text.split(","), default=list(CANDIDATES))
    parser.add_argument("--rounds", type=int, default=3, help="warm starts of a program")
    parser.add_argument("--programs", type=int, default=3, help="for each engine")
    parser.add_argument("--here", choices=CANDIDATES, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if unknown := set(options.engines) - set(CANDIDATES):
        parser.error(f"unknown engines {', '.join(sorted(unknown))}; there are {', '.join(CANDIDATES)}")
    if min(options.num_workers, options.rounds, options.programs) < 1:
        parser.error("--num-workers, --rounds and --programs must be positive")
    if options.here:
        warnings.filterwarnings("ignore")
        print(json.dumps(measure_here(options.here, options)))
        return 0
    names = [name for name in CANDIDATES if name in options.engines or name == REFERENCE]
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    failures: dict[str, str] = {}
    for _ in range(options.programs):
        for name in names:
            outcome = measure(name, argv) if name not in failures else failures[name]
            if isinstance(outcome, str):
                failures[name] = outcome
                turns[name] = []
            else:
                turns[name].append(outcome)
    print(table(turns))
    if failures:
        print("\nNot timed:\n\n" + "\n".join(f"- {name}: {why}" for name, why in failures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
