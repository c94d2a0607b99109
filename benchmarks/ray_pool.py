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
import json
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any, NamedTuple

import cloudpickle
import gymnasium as gym
import numpy as np
import ray
import torch

from gymbridge import AsyncEnvPool

BACKENDS = ("multiprocessing", "ray")


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


def measured(milliseconds: float, num_envs: int, envs_per_worker: int, turns: int, seconds: float) -> dict[str, Any]:
    """The medians of both, timed in turn."""
    makers = [partial(SlowEnv, milliseconds / 1000)] * num_envs
    pools = [AsyncEnvPool(makers, backend=backend, envs_per_worker=envs_per_worker) for backend in BACKENDS]
    taken: list[list[Turn]] = [[], []]
    try:
        for pool in pools:
            turn(pool, 0.2)
        for _ in range(turns):
            for own, pool in zip(taken, pools, strict=True):
                own.append(turn(pool, seconds))
    finally:
        for pool in pools:
            pool.shutdown()
    figures: dict[str, Any] = {"milliseconds": milliseconds}
    for backend, own in zip(BACKENDS, taken, strict=True):
        figures[backend] = statistics.median(each.rate for each in own)
        figures[f"{backend}_caller_us"] = statistics.median(each.caller_us for each in own)
    figures["ratio"] = statistics.median(other.rate / own.rate for own, other in zip(*taken, strict=True))
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a line for each time of a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--envs-per-worker", type=int, default=4)
    parser.add_argument(
        "--milliseconds", type=lambda text: [float(word) for word in text.split(",")], default="0,1,10,100"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="of one turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args(argv)
    cloudpickle.register_pickle_by_value(sys.modules[SlowEnv.__module__])  # an actor has no such module
    ray.init(num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False, logging_level="ERROR")
    print("| a step, ms | processes, transitions a second | Ray | ratio | caller's us a transition: processes | Ray |")
    print("| --- | --- | --- | --- | --- | --- |")
    found = []
    for milliseconds in options.milliseconds:
        own = measured(milliseconds, options.num_envs, options.envs_per_worker, options.turns, options.seconds)
        found.append(own)
        print(
            f"| {milliseconds:g} | {own['multiprocessing']:,.0f} | {own['ray']:,.0f} | {own['ratio']:.2f} | "
            f"{own['multiprocessing_caller_us']:.0f} | {own['ray_caller_us']:.0f} |",
            flush=True,
        )
    ray.shutdown()
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
