"""What a transition costs over Ray, against worker processes of one machine, by the time that a step takes.

    python benchmarks/ray_pool.py --num-envs 8 --milliseconds 0,1,10,100

Each env sleeps in its step: it takes no core, as one that runs on another machine takes none of this one. The caller
receives the envs that are ready as one TensorDict and sends them their next step. Both pools are there all the time and
take turns in one process; the ratio is the median of the turns'. Beside the transitions a second the table has the time
of this process's cores that a transition took: however many machines there are, one caller has no more of them a second
than fit into that.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial
from time import perf_counter, process_time, sleep
from typing import Any, NamedTuple

import cloudpickle
import gymnasium as gym
import numpy as np
import ray
import torch
from program_options import program_parser
from report import Figure, Row, as_text, begin, figures_of, measured_how, report, table, tell_progress

from gymbridge import AsyncEnvPool
from gymbridge.benchmarking.rounds import Cell
from gymbridge.cli.option_values import positive_int, words

BACKENDS = {"multiprocessing": Row("processes", "multiprocessing"), "ray": Row("Ray", "multiprocessing")}


class SlowEnv(gym.Env[Any, Any]):
    """Its steps take a time.

    Args:
        seconds: of a step.
    """

    observation_space = gym.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.observation = np.zeros(8, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.observation, {}

    def step(self, action: Any) -> Any:
        if self.seconds:
            sleep(self.seconds)
        return self.observation, 1.0, False, False, {}


class Turn(NamedTuple):
    """Of one pool: transitions a second, and the time of the caller's cores that each took, in microseconds."""

    rate: float
    caller_us: float


def turn(pool: AsyncEnvPool, seconds: float) -> Turn:
    """Steps a pool for a time; what is under way at its end is counted too."""
    td = pool.reset()
    actions = torch.zeros(pool.num_envs, dtype=torch.int64)
    number, begun, cpu = 0, perf_counter(), process_time()
    pool.async_step_and_maybe_reset_send(td.set("action", actions))
    while perf_counter() < begun + seconds:
        _, td = pool.async_step_and_maybe_reset_recv()
        number += len(td)
        pool.async_step_and_maybe_reset_send(td.set("action", actions[: len(td)]))
    td, _ = pool.async_step_and_maybe_reset_recv(min_get=pool.num_envs)
    number += len(td)
    return Turn(number / (perf_counter() - begun), 1e6 * (process_time() - cpu) / number)


def turns(milliseconds: float, options: argparse.Namespace) -> dict[str, list[Turn]]:
    """Of both pools, timed in turn."""
    makers = [partial(SlowEnv, milliseconds / 1000)] * options.num_envs
    pools = {name: AsyncEnvPool(makers, backend=name, envs_per_worker=options.envs_per_worker) for name in BACKENDS}
    taken: dict[str, list[Turn]] = {name: [] for name in BACKENDS}
    try:
        for pool in pools.values():
            turn(pool, min(0.2, options.seconds))
        for _ in range(options.rounds):
            for name, pool in pools.items():
                taken[name].append(turn(pool, options.seconds))
    finally:
        for pool in pools.values():
            pool.shutdown()
    return taken


def with_callers_time(figure: Figure, taken: list[Turn]) -> Figure:
    """Beside the transitions a second, what each took of the caller's cores."""
    return {**figure, "caller_us": statistics.median(each.caller_us for each in taken)}


def rate_and_callers_time(figure: Figure) -> str:
    """A figure's cell."""
    return f"{as_text(figure['median'])} ({as_text(figure['caller_us'])} us)"


def numbers(text: str) -> list[float]:
    """Numbers of 0 or more with commas between them."""
    found = [float(word) for word in words(text)]
    if not all(number >= 0 for number in found):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected milliseconds, 0 or more")
    return found


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = program_parser(__doc__, rounds=5, seconds=1.0)
    parser.add_argument("--num-envs", type=positive_int, default=8)
    parser.add_argument("--envs-per-worker", type=positive_int, default=4)
    parser.add_argument("--milliseconds", type=numbers, default="0,1,10,100", help="that a step sleeps")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Prints a table."""
    options = arguments(argv)
    about = begin(
        ("gymnasium", "numpy", "torch", "tensordict", "ray"),
        **measured_how(options),
        num_envs=options.num_envs,
        envs_per_worker=options.envs_per_worker,
    )
    cloudpickle.register_pickle_by_value(sys.modules[SlowEnv.__module__])  # an actor has no such module
    ray.init(num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False, logging_level="ERROR")
    figures: list[Figure] = []
    for milliseconds in options.milliseconds:
        case = f"{milliseconds:g} ms"
        tell_progress(case)
        taken = turns(milliseconds, options)
        cells = {name: Cell(tuple(each.rate for each in own)) for name, own in taken.items()}
        figures += [with_callers_time(each, taken[each["candidate"]]) for each in figures_of({case: cells}, BACKENDS)]
    print("\n" + table(figures, "transitions a second (caller's time of each)", cell=rate_and_callers_time), flush=True)
    ray.shutdown()
    report(about, "transitions a second", figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
