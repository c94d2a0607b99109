"""What a step of an EnvPool costs: by its own API, and as a TensorDict env.

    python benchmarks/envpool_step.py --kinds CartPole-v1,Pendulum-v1 --num-envs 8 --thinks 0,100 --json figures.json

All are built first and timed in turn, as in ``vector_step.py``, whose rounds, medians and ratios these are. A ratio is
how many times a step by EnvPool's own API a step takes, of the same kind: of all environments, or of half of them,
whichever come first. EnvPool spends a step of each episode on its reset; the TensorDict env has the reset done in the
step before. ``--thinks`` are microseconds that a policy computes between two steps, which the figures do not contain:
EnvPool's threads fall asleep after about 15, and take longer to begin then.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import envpool
import torch
from program_options import add_names, program_parser
from report import Candidate, Columns, begin, figures_of, measured_how, report, table, time_cases, with_references

from gymbridge.benchmarking.drivers import NUM_ACTIONS, envpool_actions, without_gradients
from gymbridge.benchmarking.rounds import Cell, Close, Run
from gymbridge.cli.option_values import natural_int, positive_ints, words
from gymbridge.interop.envpool import MultiThreadedEnv, MultiThreadedEnvWrapper
from gymbridge.vector import TensorDictVectorEnv

Step = Callable[[int], None]
"""Makes a step with actions of this number."""


def thinking(step: Step, think_us: float, close: Close) -> tuple[Run, Close]:
    """Steps, with what a policy takes between two of them; the time that this takes is taken off again."""
    seconds = think_us * 1e-6

    def run(steps: int) -> None:
        for i in range(steps):
            step(i % NUM_ACTIONS)
            if seconds:
                end = time.perf_counter() + seconds
                while time.perf_counter() < end:
                    pass

    return run, close


def envpool_step(kind: str, num_envs: int, think_us: float) -> tuple[Run, Close]:
    env = envpool.make(kind, env_type="gymnasium", num_envs=num_envs, seed=0)
    env.reset()
    actions = envpool_actions(env, num_envs)
    return thinking(lambda i: env.step(actions[i]), think_us, env.close)


def envpool_async(kind: str, num_envs: int, think_us: float) -> tuple[Run, Close]:
    env = envpool.make(kind, env_type="gymnasium", num_envs=num_envs, batch_size=num_envs // 2, seed=0)
    env.async_reset()
    actions = envpool_actions(env, num_envs // 2)

    def step(i: int) -> None:
        *_, info = env.recv()
        env.send(actions[i], info["env_id"])

    return thinking(step, think_us, env.close)


def gymbridge_step(kind: str, num_envs: int, think_us: float) -> tuple[Run, Close]:
    env = MultiThreadedEnv(num_envs, kind, create_env_kwargs={"seed": 0})
    td = env.reset()
    actions = [env.rand_action()["action"] for _ in range(NUM_ACTIONS)]

    def step(i: int) -> None:
        nonlocal td
        td["action"] = actions[i]
        _, td = env.step_and_maybe_reset(td)

    run, close = thinking(step, think_us, env.close)
    return without_gradients(run), close


def gymbridge_async(kind: str, num_envs: int, think_us: float) -> tuple[Run, Close]:
    env = MultiThreadedEnv(num_envs, kind, create_env_kwargs={"seed": 0, "batch_size": num_envs // 2})
    actions = [env.rand_action()["action"] for _ in range(NUM_ACTIONS)]
    env.async_reset_send()
    for _ in range(2):
        td = env.async_reset_recv(min_get=num_envs // 2, max_get=num_envs // 2)
        env.async_step_and_maybe_reset_send(td.set("action", actions[0][: num_envs // 2]))

    def step(i: int) -> None:
        _, td = env.async_step_and_maybe_reset_recv()
        env.async_step_and_maybe_reset_send(td.set("action", actions[i][: len(td)]))

    run, close = thinking(step, think_us, env.close)
    return without_gradients(run), close


def gymbridge_vector(kind: str, num_envs: int, think_us: float) -> tuple[Run, Close]:
    pool = envpool.make(kind, env_type="gymnasium", num_envs=num_envs, seed=0)
    env = TensorDictVectorEnv(MultiThreadedEnvWrapper(pool), autoreset_mode="SameStep")
    env.reset()
    actions = [env.action_space.sample() for _ in range(NUM_ACTIONS)]
    return thinking(lambda i: env.step(actions[i]), think_us, env.close)


CANDIDATES = {
    "envpool": Candidate("EnvPool, `step`", envpool_step, "envpool"),
    "gymbridge": Candidate("**gymbridge `MultiThreadedEnv`**, `step_and_maybe_reset`", gymbridge_step, "envpool"),
    "gymbridge-vector": Candidate(
        "**gymbridge `TensorDictVectorEnv(MultiThreadedEnv(…))`**", gymbridge_vector, "envpool"
    ),
    "envpool-async": Candidate("EnvPool, half of them: `recv` and `send`", envpool_async, "envpool-async"),
    "gymbridge-async": Candidate(
        "**gymbridge**, half of them: `async_…_recv` and `…_send`", gymbridge_async, "envpool-async"
    ),
}


def microseconds(text: str) -> list[int]:
    """Numbers of 0 or more with commas between them."""
    return [natural_int(word) for word in words(text)]


def without_thinking(columns: Columns, cases: dict[str, tuple[str, int, int]]) -> Columns:
    """What is left of the figures when the policy's time is taken off."""
    return {
        case: {
            name: Cell(tuple(time_us - cases[case][2] for time_us in cell.rounds), cell.failure)
            for name, cell in cells.items()
        }
        for case, cells in columns.items()
    }


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = program_parser(__doc__, rounds=7, seconds=0.3)
    parser.add_argument("--kinds", type=words, default="CartPole-v1,Pendulum-v1", help="names of EnvPool's")
    parser.add_argument("--num-envs", type=positive_ints, default="8", help="2 or more")
    parser.add_argument("--thinks", type=microseconds, default="0", help="microseconds between two steps")
    add_names(parser, "--peers", CANDIDATES)
    options = parser.parse_args(argv)
    if min(options.num_envs) < 2:
        parser.error(f"--num-envs: got {min(options.num_envs)}, expected 2 or more")
    return options


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    torch.set_num_threads(1)
    about = begin(("numpy", "torch", "tensordict", "envpool"), **measured_how(options))
    names = with_references(CANDIDATES, options.peers)
    cases = {
        f"{kind} N={n}" + (f", {think_us} us between" if think_us else ""): (kind, n, think_us)
        for kind in options.kinds
        for n in options.num_envs
        for think_us in options.thinks
    }
    columns = time_cases(names, CANDIDATES, cases, options.rounds, options.seconds)
    figures = figures_of(without_thinking(columns, cases), CANDIDATES)
    print("\n" + table(figures, "us a step (times EnvPool's)"), flush=True)
    report(about, "us a step", figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
