"""What a TorchRL collector gathers: frames a second over gymbridge's batches beside TorchRL's own.

    python benchmarks/torchrl_collector.py --num-envs 8 --json figures.json

Each candidate is a ``Collector`` that has been built before any is timed; then each gets its turn in every round. A
figure is the median over the rounds, in frames a second, policy, storage and episodes' ends included. Beside it stands
how many times that the gymbridge batch of the same kind gathers: the median of the rounds' ratios. The policies are the
same everywhere: random actions, or a small network whose distribution they are drawn from, the second also with the
transforms ``RewardSum`` and ``StepCounter`` around the batch.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("RL_WARNINGS", "0")

import torch
from program_options import add_names, program_parser
from report import Candidate, begin, figures_of, measured_how, report, table, tell_progress, with_references
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl import envs
from torchrl.collectors import Collector
from torchrl.modules import ProbabilisticActor

import gymbridge
from gymbridge.benchmarking.rounds import Cell
from gymbridge.cli.option_values import positive_int
from gymbridge.interop.torchrl import to_torchrl

STEPS = 50
"""Steps of a batch that a collector hands out."""


def torchrl_batch(kind: Any, env: str, num_envs: int) -> Any:
    return kind(num_envs, envs.EnvCreator(lambda: envs.GymEnv(env, categorical_action_encoding=True)))


CANDIDATES = {
    "torchrl-parallel": Candidate(
        "TorchRL `ParallelEnv`", lambda env, n: torchrl_batch(envs.ParallelEnv, env, n), "gymbridge-parallel"
    ),
    "gymbridge-parallel": Candidate(
        "**gymbridge `ParallelEnv`**", lambda env, n: to_torchrl(gymbridge.ParallelEnv(n, env)), "gymbridge-parallel"
    ),
    "torchrl-serial": Candidate(
        "TorchRL `SerialEnv`", lambda env, n: torchrl_batch(envs.SerialEnv, env, n), "gymbridge-serial"
    ),
    "gymbridge-serial": Candidate(
        "**gymbridge `SerialEnv`**", lambda env, n: to_torchrl(gymbridge.SerialEnv(n, env)), "gymbridge-serial"
    ),
}


def network(env: Any) -> Any:
    """A policy for flat observations and discrete actions."""
    layers = nn.Sequential(
        nn.Linear(env.observation_spec["observation"].shape[-1], 64), nn.Tanh(), nn.Linear(64, env.action_spec.n)
    )
    module = TensorDictModule(layers, in_keys=["observation"], out_keys=["logits"])
    return ProbabilisticActor(module, in_keys=["logits"], distribution_class=torch.distributions.Categorical)


def random_policy(env: Any) -> Any:
    return None


def transformed(env: Any) -> Any:
    return envs.TransformedEnv(env, envs.Compose(envs.RewardSum(), envs.StepCounter()))


def plain(env: Any) -> Any:
    return env


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "random": (plain, random_policy),
    "network": (plain, network),
    "transformed": (transformed, network),
}
"""Name -> what is put around a batch, and what makes its policy."""


def collector(candidate: Candidate, case: str, env: str, num_envs: int) -> Any:
    wrap, policy = CASES[case]
    batch = wrap(candidate.build(env, num_envs))
    made = Collector(
        batch,
        policy(batch),
        frames_per_batch=STEPS * num_envs,
        total_frames=-1,
        auto_register_policy_transforms=False,
    )
    next(iter(made))
    return made


def frames_a_second(batches: Any, seconds: float) -> float:
    frames, start, elapsed = 0, time.perf_counter(), 0.0
    while elapsed < seconds:
        frames += next(batches).numel()
        elapsed = time.perf_counter() - start
    return frames / elapsed


def measure(names: list[str], case: str, env: str, num_envs: int, rounds: int, seconds: float) -> dict[str, Cell]:
    """The candidates' frames a second in each round."""
    running = {name: collector(CANDIDATES[name], case, env, num_envs) for name in names}
    try:
        batches = {name: iter(made) for name, made in running.items()}
        figures: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in names:
                figures[name].append(frames_a_second(batches[name], seconds))
    finally:
        for made in running.values():
            made.shutdown()
    return {name: Cell(tuple(rates)) for name, rates in figures.items()}


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = program_parser(__doc__, rounds=5, seconds=1.0)
    parser.add_argument("--env", default="CartPole-v1", help="a gymnasium id, of flat observations, discrete actions")
    parser.add_argument("--num-envs", type=positive_int, default=8)
    add_names(parser, "--cases", CASES)
    add_names(parser, "--peers", CANDIDATES)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    torch.set_num_threads(1)
    about = begin(("gymnasium", "torch", "tensordict", "torchrl"), **measured_how(options))
    names = with_references(CANDIDATES, options.peers)
    columns = {}
    for case in options.cases:
        column = f"{case} N={options.num_envs}"
        tell_progress(column)
        columns[column] = measure(names, case, options.env, options.num_envs, options.rounds, options.seconds)
    figures = figures_of(columns, CANDIDATES, are_rates=True)
    print("\n" + table(figures, "frames a second (gymbridge's, times)"), flush=True)
    report(about, "frames a second", figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
