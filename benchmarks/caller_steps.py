"""What it brings that the caller steps a share of the envs itself: ``ParallelEnv`` both ways, timed in turn.

    python benchmarks/caller_steps.py --kinds null,CartPole-v1,busy --num-envs 2,8,64

Microseconds for one step of all environments: medians of the rounds. In brackets stands the median of the rounds'
ratios to ``ParallelEnv`` as it is unless told, in the same run. "busy" are environments that compute for 100 us a step.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from program_options import add_names, program_parser
from report import Candidate, begin, figures_of, measured_how, report, table, time_cases
from vector_step import BlankEnv, make

from gymbridge import ParallelEnv, SerialEnv
from gymbridge.benchmarking.drivers import tensordict_engine
from gymbridge.benchmarking.rounds import Close, Run
from gymbridge.cli.option_values import positive_ints

BUSY_SECONDS = 100e-6


class BusyEnv(BlankEnv):
    """Computes for a while in each step."""

    def step(self, action: np.integer) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        end = time.perf_counter() + BUSY_SECONDS
        while time.perf_counter() < end:
            pass
        return super().step(action)


def make_kind(kind: str) -> gym.Env:
    return BusyEnv(gym.spaces.Box(-1, 1, (4,), np.float32), 200) if kind == "busy" else make(kind)


def batch(kind: str, num_envs: int, **options: Any) -> tuple[Run, Close]:
    return tensordict_engine(ParallelEnv(num_envs, functools.partial(make_kind, kind), **options))


def serial(kind: str, num_envs: int) -> tuple[Run, Close]:
    return tensordict_engine(SerialEnv(num_envs, functools.partial(make_kind, kind)))


CANDIDATES = {
    "parallel": Candidate("`ParallelEnv(N, …)`", batch, "parallel"),
    "caller": Candidate("with `caller_steps=True`", functools.partial(batch, caller_steps=True), "parallel"),
    "one-worker": Candidate("with `num_workers=1`", functools.partial(batch, num_workers=1), "parallel"),
    "serial": Candidate("`SerialEnv(N, …)`", serial, "parallel"),
}

KINDS = ("null", "CartPole-v1", "busy")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = program_parser(__doc__, rounds=15, seconds=0.1)
    add_names(parser, "--kinds", KINDS)
    parser.add_argument("--num-envs", type=positive_ints, default=[2, 8, 64], metavar="N,…")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Prints a table."""
    options = arguments(argv)
    about = begin(("gymnasium", "numpy", "torch", "tensordict"), **measured_how(options))
    cases = {f"{kind} N={n}": (kind, n) for kind in options.kinds for n in options.num_envs}
    columns = time_cases(CANDIDATES, CANDIDATES, cases, options.rounds, options.seconds)
    figures = figures_of(columns, CANDIDATES)
    print("\n" + table(figures, "us a step"), flush=True)
    report(about, "us a step", figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
