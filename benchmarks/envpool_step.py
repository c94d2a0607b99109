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
import functools
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import envpool
import numpy as np
import torch
from vector_step import Candidate, measure, table, tell_the_rest

from gymbridge.benchmarking.drivers import NUM_ACTIONS, without_gradients
from gymbridge.benchmarking.machine import circumstances, installed
from gymbridge.benchmarking.rounds import Close, Run
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


def own_actions(env: Any, num_envs: int) -> list[np.ndarray]:
    """As EnvPool has them."""
    *_, array = env.spec.action_array_spec.values()
    space = env.spec.action_space
    return [np.array([space.sample() for _ in range(num_envs)], array.dtype) for _ in range(NUM_ACTIONS)]


def envpool_step(kind: str, num_envs: int, think_us: float) -> tuple[Run, Close]:
    env = envpool.make(kind, env_type="gymnasium", num_envs=num_envs, seed=0)
    env.reset()
    actions = own_actions(env, num_envs)
    return thinking(lambda i: env.step(actions[i]), think_us, env.close)


def envpool_async(kind: str, num_envs: int, think_us: float) -> tuple[Run, Close]:
    env = envpool.make(kind, env_type="gymnasium", num_envs=num_envs, batch_size=num_envs // 2, seed=0)
    env.async_reset()
    actions = own_actions(env, num_envs // 2)

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


def candidates(think_us: float) -> dict[str, Candidate]:
    rows = {
        "envpool": ("EnvPool, `step`", envpool_step, "envpool"),
        "gymbridge": ("**gymbridge `MultiThreadedEnv`**, `step_and_maybe_reset`", gymbridge_step, "envpool"),
        "gymbridge-vector": ("**gymbridge `TensorDictVectorEnv(MultiThreadedEnv(…))`**", gymbridge_vector, "envpool"),
        "envpool-async": ("EnvPool, half of them: `recv` and `send`", envpool_async, "envpool-async"),
        "gymbridge-async": (
            "**gymbridge**, half of them: `async_…_recv` and `…_send`",
            gymbridge_async,
            "envpool-async",
        ),
    }
    return {
        name: Candidate(title, functools.partial(build, think_us=think_us), against)
        for name, (title, build, against) in rows.items()
    }


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )

    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    def numbers(text: str) -> list[int]:
        return [int(number) for number in words(text)]

    parser.add_argument("--kinds", type=words, default="CartPole-v1,Pendulum-v1", help="names of EnvPool's")
    parser.add_argument("--num-envs", type=numbers, default="8")
    parser.add_argument("--thinks", type=numbers, default="0", help="microseconds between two steps")
    parser.add_argument("--peers", type=words, default=",".join(candidates(0)), help="which to time")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="for one candidate in one round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every round's figures there")
    options = parser.parse_args(argv)
    if unknown := set(options.peers) - set(candidates(0)):
        parser.error(f"unknown peers {', '.join(sorted(unknown))}; there are {', '.join(candidates(0))}")
    if options.rounds < 1 or options.seconds <= 0 or min(options.num_envs) < 2 or min(options.thinks) < 0:
        parser.error("--rounds and --seconds must be positive, --num-envs 2 or more, --thinks not negative")
    return options


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    wanted = {name for peer in options.peers for name in (peer, candidates(0)[peer].against)}
    names = [name for name in candidates(0) if name in wanted]
    about = {**circumstances(), "envpool": installed("envpool")}
    print("\n".join(f"- {what}: {value}" for what, value in about.items()), flush=True)
    columns = {}
    for kind in options.kinds:
        for num_envs in options.num_envs:
            for think_us in options.thinks:
                column = f"{kind} N={num_envs}" + (f", {think_us} us between" if think_us else "")
                print(f"timing {column} ...", file=sys.stderr, flush=True)
                cells = measure(names, kind, num_envs, options.rounds, options.seconds, candidates(think_us))
                columns[column] = {
                    name: type(cell)(tuple(time_us - think_us for time_us in cell.rounds), cell.failure)
                    for name, cell in cells.items()
                }
    told = table(names, columns, candidates(0)).replace("times gymbridge's", "times EnvPool's")
    print("\n" + told, flush=True)
    tell_the_rest(about, columns, options.json, candidates(0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
