"""How a batch of envs is stepped while it is timed: the same code for gymbridge and its peers.

Actions are drawn beforehand and used in turn. Episodes go on as they end: their resets are in the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gymbridge.benchmarking.rounds import Close, Run

__all__ = [
    "NUM_ACTIONS",
    "dispatched",
    "envpool_actions",
    "gym_envs_in_turn",
    "numpy_engine",
    "sb3_engine",
    "tensordict_engine",
    "vector_engine",
    "without_gradients",
]

NUM_ACTIONS = 16
"""Batches of actions that are drawn beforehand."""


def gym_envs_in_turn(envs: Sequence[Any]) -> tuple[Run, Close]:
    """Gymnasium envs alone, in a loop: what no batch in one process can go below."""
    for env in envs:
        env.reset(seed=0)
    actions = [envs[0].action_space.sample() for _ in range(NUM_ACTIONS)]

    def run(steps: int) -> None:
        for i in range(steps):
            action = actions[i % NUM_ACTIONS]
            for env in envs:
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()

    def close() -> None:
        for env in envs:
            env.close()

    return run, close


def numpy_engine(envs: Any, actions: Sequence[Any]) -> tuple[Run, Close]:
    """``step`` of a vector env that has been reset."""

    def run(steps: int) -> None:
        for i in range(steps):
            envs.step(actions[i % NUM_ACTIONS])

    return run, envs.close


def vector_engine(envs: Any) -> tuple[Run, Close]:
    """A vector env of gymnasium's kind, whoever has made it."""
    envs.reset(seed=0)
    return numpy_engine(envs, [envs.action_space.sample() for _ in range(NUM_ACTIONS)])


def sb3_engine(envs: Any) -> tuple[Run, Close]:
    """A ``VecEnv`` of Stable-Baselines3's kind, whoever has made it."""
    envs.seed(0)
    envs.reset()
    actions = [np.array([envs.action_space.sample() for _ in range(envs.num_envs)]) for _ in range(NUM_ACTIONS)]
    return numpy_engine(envs, actions)


def envpool_actions(envs: Any, num_envs: int) -> list[Any]:
    """Actions of so many envs, as EnvPool's own API takes them."""
    *_, array = envs.spec.action_array_spec.values()
    space = envs.spec.action_space
    return [np.array([space.sample() for _ in range(num_envs)], array.dtype) for _ in range(NUM_ACTIONS)]


def tensordict_engine(env: Any) -> tuple[Run, Close]:
    """``step_and_maybe_reset`` in a chain, for gymbridge's and TorchRL's envs alike."""
    td = env.reset()
    actions = [env.rand_action(td)["action"].clone() for _ in range(NUM_ACTIONS)]

    def run(steps: int) -> None:
        nonlocal td
        for i in range(steps):
            td["action"] = actions[i % NUM_ACTIONS]
            _, td = env.step_and_maybe_reset(td)

    return without_gradients(run), env.close


def dispatched(pool: Any) -> tuple[Run, Close]:
    """Sends each env of a pool its next step once it is heard; a step is one of one env.

    For gymbridge's and TorchRL's pools alike.
    """
    import torch

    torch.set_num_threads(1)
    td = pool.reset()
    actions = pool.rand_action(td)["action"].clone()
    td["action"] = actions
    td["env_index"] = torch.arange(pool.num_envs)
    pool.async_step_and_maybe_reset_send(td)

    def run(steps: int) -> None:
        left = steps
        while left > 0:
            _, td = pool.async_step_and_maybe_reset_recv(min_get=1)
            num_rows = td.shape[0]
            td["action"] = actions[:num_rows]
            pool.async_step_and_maybe_reset_send(td)
            left -= num_rows

    return without_gradients(run), pool.close


def without_gradients(run: Run) -> Callable[[int], None]:
    """The same with nothing to differentiate, and one torch thread."""
    import torch

    torch.set_num_threads(1)

    def run_without(steps: int) -> None:
        with torch.no_grad():
            run(steps)

    return run_without
