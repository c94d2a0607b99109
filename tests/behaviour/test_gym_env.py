"""``GymEnv``: from an env, an id or a maker; its defaults; how far it looks for infos."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest
import torch
from by_hand import assert_equal
from zoo import CountingEnv

from gymbridge.envs import GymEnv


@pytest.mark.parametrize(
    "make",
    [
        lambda: gym.make("CartPole-v1", max_episode_steps=3),
        lambda: GymEnv("CartPole-v1", max_episode_steps=3),
        lambda: GymEnv(gym.make, id="CartPole-v1", max_episode_steps=3),
    ],
    ids=["env", "id", "maker"],
)
def test_an_env_an_id_and_a_maker_give_the_same(make: Callable[[], Any]) -> None:
    made, other = make(), gym.make("CartPole-v1", max_episode_steps=3)
    env, twin = made if isinstance(made, GymEnv) else GymEnv(made), GymEnv(other)
    assert isinstance(env.env, gym.Env)
    assert env.env.spec == other.spec
    for each in (env, twin):
        each.set_seed(0)
    assert_equal(env.rollout(9), twin.rollout(9))
    env.close()
    twin.close()


def test_its_env_is_the_one_that_it_was_given() -> None:
    one = CountingEnv()
    env = GymEnv(one)
    assert env.env is one
    env.rollout(2)
    assert one.t == 2
    env.close()
    assert one.closed == 1


def test_what_it_is_unless_told() -> None:
    env = GymEnv(CountingEnv)
    td = env.rand_step(env.reset())
    assert env.device is None
    assert td["action"].dtype is torch.int64
    assert td["action"].shape == ()
    assert td["next", "reward"].dtype is torch.float32
    assert "info" not in td["next"].keys()


@pytest.mark.parametrize(("first_seen", "found"), [(1_000, True), (1_001, False)])
def test_infos_are_looked_for_in_a_thousand_steps_at_most(first_seen: int, found: bool) -> None:
    class Late(CountingEnv):
        def __init__(self) -> None:
            super().__init__([5_000])

        def step(self, action: Any) -> Any:
            *outcome, _ = super().step(action)
            return (*outcome, {"late": 1.0} if self.t >= first_seen else {})

    spec = GymEnv(Late, info="auto").full_observation_spec
    assert (("info", "late") in spec.keys(True, True)) is found
