"""What a transition of an asynchronous pool costs, beside TorchRL's pool: the same code for both.

    python benchmarks/async_pool.py --json figures.json

- ``dispatch``: envs that cost nothing; a receive waits for one of them (``min_get=1``), and all that it gets are sent
  their next step. Microseconds a transition.
- ``synchronous``: the same envs, ``step_and_maybe_reset`` of all. Microseconds a step of all.
- ``slow-resets``: envs that sleep 1 ms in a step, end after 200 and sleep 200 ms in a reset, dispatched as above.
  "The envs alone" is what they supply: each in a loop in a thread of its own, which nothing else shares.

Rounds, medians and ratios are those of ``vector_step.py``. Nothing is differentiated, and torch has one thread.
"""

from __future__ import annotations

import argparse
import functools
import sys
import threading
import time
from typing import Any

import gymnasium as gym
import numpy as np
from program_options import add_names, program_parser
from report import Candidate, begin, figures_of, measured_how, report, table, time_cases, with_references
from vector_step import make

from gymbridge.benchmarking.drivers import dispatched, tensordict_engine
from gymbridge.benchmarking.rounds import Close, Run
from gymbridge.cli.option_values import positive_int

CASES = {"dispatch": "null", "synchronous": "null", "slow-resets": "slow"}
"""Case -> kind of env."""

STEP_SECONDS, RESET_SECONDS, LENGTH = 1e-3, 0.2, 200


class SlowResets(gym.Env[Any, Any]):
    """Sleeps in its steps and longer in its resets; the first episode is shorter, so that envs end one by one."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, first_length: int):
        self.left = first_length
        self.blank = np.zeros(4, np.float32)
        self.starts = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if not self.starts:
            time.sleep(RESET_SECONDS)
            self.left = LENGTH
        self.starts = False
        return self.blank.copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(STEP_SECONDS)
        self.left -= 1
        return self.blank.copy(), 1.0, self.left <= 0, False, {}


def make_env(kind: str, index: int, num_envs: int) -> gym.Env[Any, Any]:
    return make(kind) if kind != "slow" else SlowResets(1 + index * LENGTH // num_envs)


def makers(case: str, num_envs: int) -> list[Any]:
    return [functools.partial(make_env, CASES[case], index, num_envs) for index in range(num_envs)]


# --- candidates ---


def used_as(case: str, pool: Any) -> tuple[Run, Close]:
    if case == "synchronous":
        import torch

        torch.set_num_threads(1)
        return tensordict_engine(pool)
    return dispatched(pool)


def torchrl_pool(case: str, num_envs: int, **options: Any) -> tuple[Run, Close]:
    from torchrl.envs import AsyncEnvPool

    fns = [functools.partial(wrapped, maker) for maker in makers(case, num_envs)]
    return used_as(case, AsyncEnvPool(fns, **options))


def wrapped(maker: Any) -> Any:
    from torchrl.envs import GymWrapper

    return GymWrapper(maker())


def gymbridge_pool(case: str, num_envs: int, **options: Any) -> tuple[Run, Close]:
    from gymbridge import AsyncEnvPool

    return used_as(case, AsyncEnvPool(makers(case, num_envs), **options))


def alone(case: str, num_envs: int) -> tuple[Run, Close]:
    """Each env in a loop: in turn where they cost nothing, in a thread each where they sleep."""
    envs = [maker() for maker in makers(case, num_envs)]
    for env in envs:
        env.reset()

    def steps_of(env: gym.Env[Any, Any], steps: int) -> None:
        for _ in range(steps):
            if env.step(0)[2]:
                env.reset()

    def run(steps: int) -> None:
        if case != "slow-resets":
            for _ in range(steps if case == "synchronous" else max(1, steps // num_envs)):
                for env in envs:
                    steps_of(env, 1)
            return
        threads = [threading.Thread(target=steps_of, args=(env, max(1, steps // num_envs))) for env in envs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run, lambda: None


_PROCESSES = "gymbridge-processes"
_THREADS = "gymbridge-threads"

CANDIDATES = {
    "alone": Candidate("the envs alone", alone, _PROCESSES),
    "torchrl-shm": Candidate(
        "TorchRL, multiprocessing, shm",
        functools.partial(torchrl_pool, backend="multiprocessing", exchange="shm"),
        _PROCESSES,
    ),
    _PROCESSES: Candidate(
        "**gymbridge, multiprocessing, shm**", functools.partial(gymbridge_pool, backend="multiprocessing"), _PROCESSES
    ),
    "gymbridge-shared": Candidate(
        "gymbridge, multiprocessing, shm, 4 envs a process",
        functools.partial(gymbridge_pool, backend="multiprocessing", envs_per_worker=4),
        _PROCESSES,
    ),
    "torchrl-threads": Candidate("TorchRL, threading", functools.partial(torchrl_pool, backend="threading"), _THREADS),
    _THREADS: Candidate("**gymbridge, threading**", functools.partial(gymbridge_pool, backend="threading"), _THREADS),
}


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = program_parser(__doc__, rounds=5, seconds=1.0)
    add_names(parser, "--cases", CASES)
    parser.add_argument("--num-envs", type=positive_int, default=8, help="of envs that cost nothing (8)")
    parser.add_argument("--slow-envs", type=positive_int, default=32, help="of envs that sleep (32)")
    add_names(parser, "--peers", CANDIDATES)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    about = begin(("gymnasium", "numpy", "torch", "tensordict", "torchrl"), **measured_how(options))
    names = with_references(CANDIDATES, options.peers)
    numbers = {case: options.slow_envs if case == "slow-resets" else options.num_envs for case in options.cases}
    cases = {f"{case} N={number}": (case, number) for case, number in numbers.items()}
    figures = figures_of(time_cases(names, CANDIDATES, cases, options.rounds, options.seconds), CANDIDATES)
    print("\n" + table(figures, "us (times gymbridge's)"), flush=True)
    report(about, "us a transition, synchronous: a step", figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
