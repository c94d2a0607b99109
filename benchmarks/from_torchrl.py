"""What a step of TorchRL envs costs in gymbridge's batches, beside TorchRL's batches over the same envs.

    python benchmarks/from_torchrl.py --cases counting,transformed,CartPole --num-envs 8 --json figures.json

"counting" is an env that counts and does nothing else, "transformed" the same in ``StepCounter``, ``InitTracker`` and
``RewardSum``, "CartPole" TorchRL's ``GymEnv``; an episode of the first two has 200 steps. A step is a
``step_and_maybe_reset``. "the envs alone" are TorchRL's own ``step_and_maybe_reset`` of one after the other.

Rounds, medians and ratios are those of ``vector_step.py``: all are built first and timed in turn. A ratio says how many
times the step of gymbridge's batch of the same kind a step takes: in worker processes, or in this process.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

from program_options import add_names, program_parser
from report import Candidate, begin, figures_of, measured_how, report, table, time_cases, with_references
from tensordict_step import torchrl_env

from gymbridge.benchmarking.drivers import NUM_ACTIONS, tensordict_engine, without_gradients
from gymbridge.benchmarking.rounds import Close, Run
from gymbridge.cli.option_values import positive_ints
from gymbridge.interop.torchrl_env import from_torchrl

LENGTH = 200
"""Steps of an episode."""


def counting() -> Any:
    return torchrl_env(LENGTH)


def transformed() -> Any:
    from torchrl.envs import Compose, InitTracker, RewardSum, StepCounter, TransformedEnv

    return TransformedEnv(counting(), Compose(StepCounter(), InitTracker(), RewardSum()))


def cart_pole() -> Any:
    from torchrl.envs import GymEnv

    return GymEnv("CartPole-v1", categorical_action_encoding=True)


CASES = {"counting": counting, "transformed": transformed, "CartPole": cart_pole}
"""Case -> maker of its envs."""


def alone(case: str, num_envs: int) -> tuple[Run, Close]:
    envs = [CASES[case]() for _ in range(num_envs)]
    roots = [env.reset() for env in envs]
    actions = [envs[0].full_action_spec.rand()["action"] for _ in range(NUM_ACTIONS)]

    def run(steps: int) -> None:
        for i in range(steps):
            action = actions[i % NUM_ACTIONS]
            for row, env in enumerate(envs):
                _, roots[row] = env.step_and_maybe_reset(roots[row].set("action", action))

    return without_gradients(run), lambda: None


def torchrl_batch(name: str, case: str, num_envs: int) -> tuple[Run, Close]:
    import torchrl.envs

    return tensordict_engine(getattr(torchrl.envs, name)(num_envs, CASES[case]))


def gymbridge_batch(name: str, case: str, num_envs: int, **options: Any) -> tuple[Run, Close]:
    import gymbridge

    return tensordict_engine(getattr(gymbridge, name)(num_envs, from_torchrl(CASES[case]), **options))


def each_in_a_process(case: str, num_envs: int) -> tuple[Run, Close]:
    return gymbridge_batch("ParallelEnv", case, num_envs, num_workers=num_envs)


Build = Callable[[str, int], tuple[Run, Close]]


def _of(build: Callable[..., Any], name: str) -> Build:
    return functools.partial(build, name)


CANDIDATES = {
    "torchrl-parallel": Candidate("TorchRL `ParallelEnv`", _of(torchrl_batch, "ParallelEnv"), "gymbridge-parallel"),
    "gymbridge-parallel": Candidate(
        "**gymbridge `ParallelEnv(N, from_torchrl(…))`**", _of(gymbridge_batch, "ParallelEnv"), "gymbridge-parallel"
    ),
    "gymbridge-processes": Candidate(
        "the same with `num_workers=N`, a process for each env", each_in_a_process, "gymbridge-parallel"
    ),
    "torchrl-serial": Candidate("TorchRL `SerialEnv`", _of(torchrl_batch, "SerialEnv"), "gymbridge-serial"),
    "gymbridge-serial": Candidate(
        "**gymbridge `SerialEnv(N, from_torchrl(…))`**", _of(gymbridge_batch, "SerialEnv"), "gymbridge-serial"
    ),
    "torchrl-alone": Candidate("the TorchRL envs alone, in a loop", alone, "gymbridge-serial"),
}


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = program_parser(__doc__, rounds=7, seconds=0.3)
    add_names(parser, "--cases", CASES)
    parser.add_argument("--num-envs", type=positive_ints, default="8")
    add_names(parser, "--peers", CANDIDATES)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    about = begin(("gymnasium", "torch", "tensordict", "torchrl"), **measured_how(options))
    names = with_references(CANDIDATES, options.peers)
    cases = {f"{case} N={n}": (case, n) for case in options.cases for n in options.num_envs}
    figures = figures_of(time_cases(names, CANDIDATES, cases, options.rounds, options.seconds), CANDIDATES)
    print("\n" + table(figures, "us a step (times gymbridge's)"), flush=True)
    report(about, "us a step", figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
