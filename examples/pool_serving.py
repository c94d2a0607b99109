"""Envs that take different times to step, and a policy that serves whichever is ready: a pool, used in two ways.

Each env sleeps for a random time in each step, as a simulator elsewhere does. `gymbridge.AsyncEnvPool` hands the policy
batches of those that are ready, and `ParallelEnv` waits for the slowest. The table says how many transitions a second
each gave.

python examples/pool_serving.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from gymbridge import AsyncEnvPool, ParallelEnv
from gymbridge.envs import EnvBase
from gymbridge.vector import PoolVectorEnv

SLOWEST = 0.02  # seconds a step; the mean is half of it


class WaitingEnv(gym.Env[Any, Any]):
    """Observes eight random numbers, after a random time; an episode has 50 steps."""

    observation_space = gym.spaces.Box(-10, 10, (8,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.np_random.uniform(0, SLOWEST))
        self.steps += 1
        return self.observation(), float(action), False, self.steps == 50, {}

    def observation(self) -> Any:
        return self.np_random.normal(size=8).clip(-10, 10).astype(np.float32)


Policy = Callable[[torch.Tensor], torch.Tensor]


def make_policy() -> Policy:
    net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 4))

    @torch.no_grad()
    def policy(observations: torch.Tensor) -> torch.Tensor:
        actions: torch.Tensor = net(observations).argmax(-1)
        return actions

    return policy


def batches_as_they_come(num_envs: int, batch_size: int, seconds: float, policy: Policy) -> tuple[float, float]:
    """Transitions a second, and envs in a batch: a receive has those that are ready, `batch_size` at least."""
    with AsyncEnvPool([WaitingEnv] * num_envs) as pool:
        pool.set_seed(0)
        pool.async_reset_send()
        td = pool.async_reset_recv(min_get=num_envs)
        pool.stats(reset=True)
        start, transitions = time.perf_counter(), 0
        while time.perf_counter() < start + seconds:
            td["action"] = policy(td["observation"])
            pool.async_step_and_maybe_reset_send(td)
            td, root = pool.async_step_and_maybe_reset_recv(min_get=batch_size)
            transitions += len(td)  # td["next"] has the transitions' ends, for a replay buffer say
            td = root
        elapsed = time.perf_counter() - start
        size = pool.stats()["exchange"]["avg_batch_size"]
    return transitions / elapsed, size


def batches_of_a_size(num_envs: int, batch_size: int, seconds: float, policy: Policy) -> tuple[float, float]:
    """The same through gymnasium's words: a receive has the first `batch_size` that are ready."""
    pool = AsyncEnvPool([WaitingEnv] * num_envs)
    with PoolVectorEnv(pool, batch_size, autoreset_mode="SameStep", output="torch") as envs:
        envs.async_reset(seed=0)
        observations, *_, infos = envs.recv()
        start, transitions = time.perf_counter(), 0
        while time.perf_counter() < start + seconds:
            envs.send(policy(observations), infos["env_id"])
            observations, _, _, _, infos = envs.recv()
            transitions += batch_size
        return transitions / (time.perf_counter() - start), batch_size


def all_at_once(env: EnvBase, seconds: float, policy: Policy) -> tuple[float, float]:
    """All envs step, and the slowest is waited for."""
    with env:
        env.set_seed(0)
        td = env.reset()
        start, transitions = time.perf_counter(), 0
        while time.perf_counter() < start + seconds:
            td["action"] = policy(td["observation"])
            _, td = env.step_and_maybe_reset(td)
            transitions += len(td)
        elapsed = time.perf_counter() - start
    return transitions / elapsed, len(td)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="A pool that serves whoever is ready, used in two ways.")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16, help="how many results a receive waits for")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each row of the table takes")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy, num_envs, seconds = make_policy(), args.num_envs, args.seconds
    batch_size = min(args.batch_size, num_envs)
    rows = {
        f"AsyncEnvPool, at least {batch_size}": lambda: batches_as_they_come(num_envs, batch_size, seconds, policy),
        f"PoolVectorEnv, {batch_size}": lambda: batches_of_a_size(num_envs, batch_size, seconds, policy),
        "AsyncEnvPool, all": lambda: all_at_once(AsyncEnvPool([WaitingEnv] * num_envs), seconds, policy),
        "ParallelEnv": lambda: all_at_once(ParallelEnv(num_envs, WaitingEnv, num_workers=num_envs), seconds, policy),
    }
    print(f"{num_envs} envs, steps of 0 to {SLOWEST * 1e3:.0f} ms")
    print(f"{'':28}{'transitions a second':>22}{'envs in a batch':>18}")
    results = {}
    for name, run in rows.items():
        results[name], size = run()
        print(f"{name:28}{results[name]:>22,.0f}{size:>18.1f}", flush=True)
    as_they_come, *_, together = results.values()
    print(f"serving those that are ready gives {as_they_come / together:.1f} times what stepping all together gives")
    return results


if __name__ == "__main__":
    main()
