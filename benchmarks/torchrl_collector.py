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
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("RL_WARNINGS", "0")

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl import envs
from torchrl.collectors import Collector
from torchrl.modules import ProbabilisticActor

import gymbridge
from gymbridge.benchmarking.machine import circumstances
from gymbridge.interop.torchrl import to_torchrl

STEPS = 50
"""Steps of a batch that a collector hands out."""


@dataclass(frozen=True)
class Candidate:
    """A batch of environments, and the one that it is compared with."""

    title: str
    build: Callable[[str, int], Any]
    against: str


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


def measure(
    names: list[str], case: str, env: str, num_envs: int, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """The candidates' figures of each round."""
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
    return figures


def ratio(reference: list[float], own: list[float]) -> float:
    """How many times ``own`` the reference gathers."""
    return statistics.median(theirs / mine for theirs, mine in zip(reference, own, strict=True))


def table(names: list[str], columns: dict[str, dict[str, list[float]]]) -> str:
    lines = ["| frames a second (gymbridge's, times) | " + " | ".join(columns) + " |"]
    lines.append("| --- |" + " --- |" * len(columns))
    for name in names:
        against = CANDIDATES[name].against
        cells = []
        for figures in columns.values():
            text = f"{statistics.median(figures[name]):,.0f}"
            cells.append(text if name == against else f"{text} ({ratio(figures[against], figures[name]):.1f})")
        lines.append(f"| {CANDIDATES[name].title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )

    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    parser.add_argument("--env", default="CartPole-v1", help="a gymnasium id, of flat observations, discrete actions")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--cases", type=words, default=",".join(CASES), help=f"some of {', '.join(CASES)}")
    parser.add_argument("--peers", type=words, default=",".join(CANDIDATES), help=f"some of {', '.join(CANDIDATES)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="for one candidate in one round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every round's figures there")
    options = parser.parse_args(argv)
    for name, known in (("peers", CANDIDATES), ("cases", CASES)):
        if unknown := set(getattr(options, name)) - set(known):
            parser.error(f"unknown {name} {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if options.rounds < 1 or options.seconds <= 0 or options.num_envs < 1:
        parser.error("--rounds, --seconds and --num-envs must be positive")
    return options


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    wanted = {name for peer in options.peers for name in (peer, CANDIDATES[peer].against)}
    names = [name for name in CANDIDATES if name in wanted]
    about = circumstances()
    print("\n".join(f"- {what}: {value}" for what, value in about.items()), flush=True)
    columns = {}
    for case in options.cases:
        column = f"{case}, N={options.num_envs}"
        print(f"timing {column} ...", file=sys.stderr, flush=True)
        columns[column] = measure(names, case, options.env, options.num_envs, options.rounds, options.seconds)
    print("\n" + table(names, columns), flush=True)
    if options.json:
        figures = [
            {
                "case": column,
                "candidate": name,
                "frames_a_second": statistics.median(rounds),
                "rounds": rounds,
                "against": CANDIDATES[name].against,
                "ratio": ratio(measured[CANDIDATES[name].against], rounds),
            }
            for column, measured in columns.items()
            for name, rounds in measured.items()
        ]
        options.json.write_text(json.dumps({"about": about, "figures": figures}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
