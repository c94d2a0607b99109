"""How soon the death of a worker is noticed, and how long it takes until the run goes on.

    python benchmarks/worker_death.py --rounds 20

Every env but one is in the middle of a long step when the worker of one is killed; what is timed begins with the kill
and ends when the caller has the error ("noticed"), or with ``on_worker_failure="restart"`` when it has the truncated
transition, and its new env is made and reset ("goes on"). Medians and longest of the rounds, in milliseconds.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from program_options import program_parser
from report import Candidate, begin, figures_of, measured_how, median_and_longest, report, table, tell_progress
from tensordict import TensorDict

from gymbridge import AsyncEnvPool, ParallelEnv
from gymbridge.benchmarking.rounds import Cell
from gymbridge.errors import WorkerDiedError
from gymbridge.vector import AsyncVectorEnv


class WaitingEnv(gym.Env[Any, Any]):
    """An env whose step waits for its end where it is told to."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        if action:
            threading.Event().wait()
        return np.zeros(4, np.float32), 0.0, False, False, {}

    def pid(self) -> int:
        return os.getpid()


MAKERS = [WaitingEnv] * 2
ACTIONS = [0, 1]
"""Env 1 waits for its end."""


def vector_env(**how: Any) -> tuple[Any, Callable[[], int], Callable[[], object]]:
    """An ``AsyncVectorEnv`` with a worker an env: the batch, the pid of env 1, and a step of all envs."""
    envs: Any = AsyncVectorEnv(MAKERS, num_workers=2, autoreset_mode="SameStep", **how)
    envs.reset()
    return envs, lambda: envs.call("pid")[1], lambda: envs.step(ACTIONS)


def parallel_env(**how: Any) -> tuple[Any, Callable[[], int], Callable[[], object]]:
    """The same of a ``ParallelEnv``."""
    env = ParallelEnv(2, MAKERS, num_workers=2, **how)
    td = env.reset()
    td["action"] = torch.tensor(ACTIONS)
    return env, lambda: env.pid()[1], lambda: env.step_and_maybe_reset(td.copy())


def pool(**how: Any) -> tuple[Any, Callable[[], int], Callable[[], object]]:
    """The same of an ``AsyncEnvPool`` of processes, whose env 1 alone is sent its step."""
    env = AsyncEnvPool(MAKERS, backend="multiprocessing", **how)
    td = env.reset()
    sent = TensorDict(observation=td["observation"][1:], action=torch.tensor(ACTIONS[1:]), batch_size=[1])

    def step() -> object:
        env.async_step_and_maybe_reset_send(sent.copy(), [1])
        return env.async_step_and_maybe_reset_recv()

    return env, lambda: env.pid()[1], step


FRONTS = {
    "vector": Candidate("`AsyncVectorEnv`", vector_env, "vector"),
    "parallel": Candidate("`ParallelEnv`", parallel_env, "parallel"),
    "pool": Candidate("`AsyncEnvPool`, processes", pool, "pool"),
}
CASES: dict[str, dict[str, str]] = {"noticed": {}, "goes on": {"on_worker_failure": "restart"}}
"""Case -> options of the batches."""


def seconds_from_death(front: Callable[..., Any], rounds: int, **how: Any) -> list[float]:
    """How long after a kill the step comes to its end, or raises, each in a batch of its own."""
    took = []
    for _ in range(rounds):
        env, pid, step = front(**how)
        number = pid()
        killed: list[float] = []

        def kill(number: int = number, killed: list[float] = killed) -> None:
            killed.append(perf_counter())
            os.kill(number, signal.SIGKILL)

        timer = threading.Timer(0.05, kill)  # the step is under way by then
        timer.start()
        with suppress(WorkerDiedError):
            step()
        took.append(perf_counter() - killed[0])
        timer.join()
        env.close()
    return took


def main(argv: list[str] | None = None) -> int:
    """Prints a table."""
    options = program_parser(__doc__, rounds=20, turn="of a worker to die").parse_args(argv)
    about = begin(("gymnasium", "torch", "tensordict"), **measured_how(options))
    columns = {}
    for case, how in CASES.items():
        tell_progress(case)
        columns[case] = {
            name: Cell(tuple(1e3 * took for took in seconds_from_death(front.build, options.rounds, **how)))
            for name, front in FRONTS.items()
        }
    figures = figures_of(columns, FRONTS)
    print("\n" + table(figures, "milliseconds, median (longest)", cell=median_and_longest), flush=True)
    report(about, "ms", figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
