"""What a step of a Stable-Baselines3 ``VecEnv`` costs: gymbridge's beside ``SubprocVecEnv`` and ``DummyVecEnv``.

    python benchmarks/sb3_step.py --kinds null,CartPole-v1 --num-envs 8 --json figures.json

Environments, rounds, medians and ratios are those of ``vector_step.py``: all are built first and timed in turn. A ratio
says how many times the step of gymbridge's ``VecEnv`` over the same kind of engine a step takes: in worker processes
for ``SubprocVecEnv``, in this process for ``DummyVecEnv``.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

from program_options import add_names, program_parser
from report import Candidate, begin, figures_of, measured_how, report, table, time_cases, with_references
from vector_step import cases, make

from gymbridge.benchmarking.drivers import sb3_engine
from gymbridge.benchmarking.rounds import Close, Run
from gymbridge.cli.option_values import positive_ints, words
from gymbridge.interop.sb3 import VecEnv


def vec_env(load: Callable[[], Callable[[Any], Any]], kind: str, num_envs: int) -> tuple[Run, Close]:
    return sb3_engine(load()([functools.partial(make, kind)] * num_envs))


def subproc() -> Any:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return SubprocVecEnv


def dummy() -> Any:
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv


def in_workers() -> Any:
    return VecEnv


def in_process() -> Any:
    from gymbridge.vector import SyncVectorEnv

    return lambda makers: VecEnv(SyncVectorEnv(makers))


def over_parallel_env() -> Any:
    from gymbridge import ParallelEnv

    return lambda makers: VecEnv(ParallelEnv(len(makers), makers))


CANDIDATES = {
    "sb3-subproc": Candidate("Stable-Baselines3 `SubprocVecEnv`", functools.partial(vec_env, subproc), "gymbridge"),
    "gymbridge": Candidate(
        "**gymbridge `VecEnv(makers)`**, in workers", functools.partial(vec_env, in_workers), "gymbridge"
    ),
    "gymbridge-parallel": Candidate(
        "**gymbridge `VecEnv(ParallelEnv(…))`**", functools.partial(vec_env, over_parallel_env), "gymbridge"
    ),
    "sb3-dummy": Candidate("Stable-Baselines3 `DummyVecEnv`", functools.partial(vec_env, dummy), "gymbridge-sync"),
    "gymbridge-sync": Candidate(
        "**gymbridge `VecEnv(SyncVectorEnv(…))`**", functools.partial(vec_env, in_process), "gymbridge-sync"
    ),
}


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = program_parser(__doc__, rounds=7, seconds=0.3)
    parser.add_argument("--kinds", type=words, default="null,CartPole-v1", help="as for vector_step.py")
    parser.add_argument("--num-envs", type=positive_ints, default="8")
    add_names(parser, "--peers", CANDIDATES)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    about = begin(("gymnasium", "numpy", "torch", "tensordict", "stable-baselines3"), **measured_how(options))
    names = with_references(CANDIDATES, options.peers)
    given = cases(options.kinds, options.num_envs)
    figures = figures_of(time_cases(names, CANDIDATES, given, options.rounds, options.seconds), CANDIDATES)
    print("\n" + table(figures, "us a step (times gymbridge's)"), flush=True)
    report(about, "us a step", figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
