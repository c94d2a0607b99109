"""Many envs that take random times, many threads: every transition is received once, in order, by whom it is for."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, sleep
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch
from pools import ALL_BACKENDS, Backend
from tensordict import TensorDict

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SECONDS = float(os.environ.get("GYMBRIDGE_POOL_SECONDS", "5"))
"""How long all of this goes on, the kinds of pools together; give it 600 and --timeout 3600 to look harder."""

SEED = int(os.environ.get("GYMBRIDGE_POOL_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)

NUM_ENVS = 32
LANES = [*range(0, NUM_ENVS, 2)]
"""These are in lanes, two to a thread; the others in batches."""

NUM_LANE_THREADS = 8

WAIT = 120.0
"""Seconds after which a result that should come in milliseconds has been lost."""


class DelayingEnv(gym.Env[Any, Any]):
    """Shows its number, its episode, its step in that, how often it was stepped, and the last action.

    It takes up to 2 ms, which it draws; episodes have as many steps as its number says.
    """

    observation_space = gym.spaces.Box(-1, np.inf, (5,), np.float64)
    action_space = gym.spaces.Discrete(1000)

    def __init__(self, index: int, seed: int):
        self.index = index
        self.random = random.Random(f"{seed} {index}")
        self.length = 3 + index % 7
        self.episode, self.t, self.total = -1, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode += 1
        self.t = 0
        return self._observation(-1), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.total += 1
        delay = self.random.random() * 0.004 - 0.002  # half of the steps take no time at all
        if delay > 0:
            sleep(delay)
        return self._observation(int(action)), float(self.total), self.t >= self.length, False, {}

    def _observation(self, action: int) -> np.ndarray:
        return np.array([self.index, self.episode, self.t, self.total, action], np.float64)


class Followed:
    """What is to come of one env, counted beside it.

    Attributes:
        received: how many transitions have come.
    """

    def __init__(self, index: int):
        self.index = index
        self.length = 3 + index % 7
        self.received = 0

    @property
    def action(self) -> int:
        """Of the next step."""
        return (self.received * 7 + self.index) % 1000

    def check(self, td: Any, td_: Any) -> None:
        """Refuses what is not the next transition of this env."""
        action = self.action
        self.received += 1
        episode, t = divmod(self.received - 1, self.length)
        expected = [self.index, episode, t + 1, self.received, action]
        ended = t + 1 == self.length
        assert td["env_index"].item() == self.index
        assert td["next", "observation"].tolist() == expected, (td["next", "observation"].tolist(), expected)
        assert td["next", "reward"].item() == self.received
        assert td["next", "done"].item() == ended
        assert td["action"].item() == action
        assert td["turn"].item() == self.received - 1
        root = [self.index, episode + 1, 0, self.received, -1] if ended else expected
        assert td_["observation"].tolist() == root, (td_["observation"].tolist(), root)
        assert not td_["done"].item()


def run_lanes(pool: Any, followed: list[Followed], seed: str, is_over: Callable[[], bool]) -> int:
    """Steps some envs, each in its lane, and receives them in any order."""
    draw = random.Random(seed)
    under_way: list[Followed] = []
    idle = [*followed]
    while idle or under_way:
        if idle and (not under_way or draw.random() < 0.6):
            own = idle.pop(draw.randrange(len(idle)))
            if not is_over():
                work = TensorDict(action=torch.tensor(own.action), turn=torch.tensor(own.received))
                pool.async_step_and_maybe_reset_send(work, own.index)
                under_way.append(own)
            continue
        own = under_way[draw.randrange(len(under_way))]
        try:
            td, td_ = pool.async_step_and_maybe_reset_recv(
                env_index=own.index, timeout=WAIT if draw.random() < 0.8 else 0
            )
        except TimeoutError:
            continue
        under_way.remove(own)
        idle.append(own)
        own.check(td, td_)
    return sum(own.received for own in followed)


def run_batches(pool: Any, followed: list[Followed], seed: str, is_over: Callable[[], bool]) -> int:
    """Steps some envs in batches of random sizes."""
    draw = random.Random(seed)
    by_index = {own.index: own for own in followed}
    idle = [*followed]
    under_way = 0
    while True:
        if idle and not is_over():
            draw.shuffle(idle)
            number = draw.randrange(1, len(idle) + 1)
            sent, idle = idle[:number], idle[number:]
            work = TensorDict(
                action=torch.tensor([own.action for own in sent]),
                turn=torch.tensor([own.received for own in sent]),
                env_index=torch.tensor([own.index for own in sent]),
                batch_size=[len(sent)],
            )
            pool.async_step_and_maybe_reset_send(work)
            under_way += len(sent)
        if not under_way:
            return sum(own.received for own in followed)
        least = draw.randrange(1, under_way + 1)
        most = draw.choice([None, least, least + 2])
        timeout = draw.choice([None, 0, 0.001, WAIT])
        if timeout == WAIT:
            least = under_way  # else it would collect until then
        try:
            parts = pool.async_step_and_maybe_reset_recv(
                least, max_get=None if timeout == WAIT else most, timeout=timeout
            )
        except TimeoutError:
            continue
        rows = parts[0]["env_index"].tolist()
        assert rows == sorted({*rows})
        for row, *own in zip(rows, *(part.unbind(0) for part in parts), strict=True):
            by_index[row].check(*own)
            idle.append(by_index[row])
        under_way -= len(rows)


KINDS: list[tuple[Backend, dict[str, Any]]] = [
    (backend, options)
    for backend in ALL_BACKENDS
    if not {"envs_per_worker", "exchange"} & {*backend.options}
    for options in ([{}] if backend.in_process else [{"envs_per_worker": 1}, {"envs_per_worker": 4}])
]


@pytest.mark.parametrize(
    ("backend", "options"),
    KINDS,
    ids=lambda own: str(own) if isinstance(own, Backend) else "-".join(map(str, own.values())),
)
def test_every_transition_comes_once_and_in_order(backend: Backend, options: dict[str, Any]) -> None:
    """Eight threads with lanes, one with batches, and envs of which none knows of another."""
    print(f"GYMBRIDGE_POOL_SEED={SEED}")
    pool = backend.make([lambda index=index: DelayingEnv(index, SEED) for index in range(NUM_ENVS)], **options)
    pool.reset()
    followed = [Followed(index) for index in range(NUM_ENVS)]
    lanes = [followed[index] for index in LANES]
    batches = [followed[index] for index in range(NUM_ENVS) if index not in LANES]
    failed = threading.Event()
    deadline = perf_counter() + SECONDS / len(KINDS)

    def is_over() -> bool:
        return failed.is_set() or perf_counter() >= deadline

    def run(job: Callable[..., int], own: list[Followed], name: str) -> int:
        try:
            return job(pool, own, f"{SEED} {name}", is_over)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(NUM_LANE_THREADS + 1) as threads:
        jobs = [
            threads.submit(run, run_lanes, lanes[number::NUM_LANE_THREADS], f"lane {number}")
            for number in range(NUM_LANE_THREADS)
        ]
        jobs.append(threads.submit(run, run_batches, batches, "batches"))
        counts = [job.result() for job in jobs]
    assert all(count > 0 for count in counts)
    assert not pool._calls.busy
    assert pool.total == [own.received for own in followed]
    assert pool.stats()["exchange"]["items"] == counts[-1]
    pool.shutdown(timeout=WAIT)
