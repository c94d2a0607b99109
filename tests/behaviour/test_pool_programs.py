"""Random programs over pools: whatever is sent and received, each transition is that of an env run alone."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import gymnasium as gym
import pytest
import tensordict_zoo
import zoo
from engines import EVERY_ENGINE, WITH_WORKERS
from fuzzing import quick
from hypothesis import given
from hypothesis import strategies as st
from pool_programs import run_a_pool_program
from pools import ALL_BACKENDS, BACKENDS, Backend
from tensordict_zoo import TENSORDICT_ENVS
from zoo import CountingEnv, DictEnv

for module in (sys.modules[__name__], tensordict_zoo, zoo):
    cloudpickle.register_pickle_by_value(module)

THREADS = BACKENDS[0]
PROCESSES = [backend for backend in (ALL_BACKENDS if EVERY_ENGINE else BACKENDS) if not backend.in_process]
IN_PROCESSES = sorted(TENSORDICT_ENVS) if EVERY_ENGINE else ["batched", "recurrent", "strings"]

GYM_ENVS: dict[str, Callable[[int], gym.Env]] = {
    "counting": lambda index: CountingEnv((2, 1, 3)),
    "nested": lambda index: DictEnv((2, 1, 3)),
    "CartPole": lambda index: gym.make("CartPole-v1", max_episode_steps=3),
}


def one_or_none(name: str, draw: random.Random) -> dict[str, Any]:
    """A keyword argument, if any."""
    return {name: draw.randint(0, 9)} if draw.random() < 0.5 else {}


@pytest.mark.parametrize("name", TENSORDICT_ENVS)
@quick(3)
@given(seed=st.integers(0, 10**9))
def test_any_program_over_threads(name: str, seed: int) -> None:
    run_a_pool_program(THREADS, TENSORDICT_ENVS[name], seed, stack="maybe_dense")


@pytest.mark.parametrize("name", ["counting", "batched", "infos", "recurrent"])
@quick(3)
@given(seed=st.integers(0, 10**9))
def test_any_program_over_threads_with_lazy_stacks(name: str, seed: int) -> None:
    run_a_pool_program(THREADS, TENSORDICT_ENVS[name], seed, stack="lazy")


@quick(5)
@given(seed=st.integers(0, 10**9))
def test_any_program_with_kwargs(seed: int) -> None:
    run_a_pool_program(THREADS, TENSORDICT_ENVS["counting"], seed, kwargs=partial(one_or_none, "start"))


@pytest.mark.skipif(not WITH_WORKERS, reason="about worker processes")
@pytest.mark.parametrize("backend", PROCESSES, ids=str)
@pytest.mark.parametrize("name", IN_PROCESSES)
@quick(2)
@given(seed=st.integers(0, 10**9))
def test_any_program_over_processes(backend: Backend, name: str, seed: int) -> None:
    run_a_pool_program(backend, TENSORDICT_ENVS[name], seed, stack="maybe_dense", rounds=24)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("name", GYM_ENVS)
@quick(4)
@given(seed=st.integers(0, 10**9))
def test_any_program_over_gymnasium_envs(backend: Backend, name: str, seed: int) -> None:
    run_a_pool_program(backend, GYM_ENVS[name], seed, kwargs=partial(one_or_none, "seed"))
