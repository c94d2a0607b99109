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
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from vector_step import Candidate, make, measure, table, tell_the_rest

from gymbridge.benchmarking.drivers import NUM_ACTIONS
from gymbridge.benchmarking.machine import circumstances
from gymbridge.benchmarking.rounds import Close, Run
from gymbridge.interop.sb3 import VecEnv


def vec_env(load: Callable[[], Callable[[Any], Any]], kind: str, num_envs: int) -> tuple[Run, Close]:
    env = load()([functools.partial(make, kind)] * num_envs)
    env.seed(0)
    env.reset()
    actions = [np.array([env.action_space.sample() for _ in range(num_envs)]) for _ in range(NUM_ACTIONS)]

    def run(steps: int) -> None:
        for i in range(steps):
            env.step(actions[i % NUM_ACTIONS])

    return run, env.close


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )

    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    parser.add_argument("--kinds", type=words, default="null,CartPole-v1", help="as for vector_step.py")
    parser.add_argument("--num-envs", type=lambda text: [int(n) for n in text.split(",")], default="8")
    parser.add_argument("--peers", type=words, default=",".join(CANDIDATES), help=f"some of {', '.join(CANDIDATES)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="for one candidate in one round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every round's figures there")
    options = parser.parse_args(argv)
    if unknown := set(options.peers) - set(CANDIDATES):
        parser.error(f"unknown peers {', '.join(sorted(unknown))}; there are {', '.join(CANDIDATES)}")
    if options.rounds < 1 or options.seconds <= 0 or min(options.num_envs) < 1:
        parser.error("--rounds, --seconds and --num-envs must be positive")
    return options


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    warnings.filterwarnings("ignore")
    wanted = {name for peer in options.peers for name in (peer, CANDIDATES[peer].against)}
    names = [name for name in CANDIDATES if name in wanted]
    about = circumstances()
    print("\n".join(f"- {what}: {value}" for what, value in about.items()), flush=True)
    columns = {}
    for kind in options.kinds:
        for num_envs in options.num_envs:
            column = f"{kind} N={num_envs}"
            print(f"timing {column} ...", file=sys.stderr, flush=True)
            columns[column] = measure(names, kind, num_envs, options.rounds, options.seconds, CANDIDATES)
    print("\n" + table(names, columns, CANDIDATES), flush=True)
    tell_the_rest(about, columns, options.json, CANDIDATES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
