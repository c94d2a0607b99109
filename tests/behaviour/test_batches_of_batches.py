"""A batch whose envs are batches themselves: seeds are counted through, and each gets its own rows."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest
import torch
from by_hand import assert_equal
from engines import EVERY_ENGINE
from tensordict import TensorDict
from tensordict_engines import TensorDictEngine, serial
from tensordict_zoo import TENSORDICT_ENVS, CountingTensorDictEnv
from zoo import CountingEnv

from gymbridge.envs import EnvBase, check_env_specs


def outer(engine: TensorDictEngine, maker: Callable[[int], object], inner: int = 2) -> EnvBase:
    """A batch of batches ``[3, inner]``, whose envs have the indices from 0 on."""
    build = engine.build if engine.in_process or EVERY_ENGINE else serial  # workers of workers take seconds to start
    one = type(engine)(engine.name, inner, build)
    return engine.make(lambda row: one.make(maker, row * inner))  # type: ignore[arg-type]


@pytest.mark.every(2, "td_three", "kind")
@pytest.mark.parametrize("kind", ["counting", "nested", "strings", "groups and root", "infos"])
def test_it_keeps_the_contract(td_three: TensorDictEngine, kind: str) -> None:
    env = outer(td_three, TENSORDICT_ENVS[kind])
    assert env.batch_size == (3, 2)
    check_env_specs(env)
    assert env.rollout(7, break_when_any_done=False).batch_size == (3, 2, 7)
    assert env.rollout(20, break_when_all_done=True)["next"].batch_size[:2] == (3, 2)
    env.close()


def test_it_gives_what_its_envs_give_one_by_one(td_three: TensorDictEngine) -> None:
    env = outer(td_three, CountingTensorDictEnv)
    flat = type(td_three)(td_three.name, 6, td_three.build).make(CountingTensorDictEnv)
    for each in (env, flat):
        assert each.set_seed(4) == 10
    root, other = env.reset(), flat.reset()
    for number in range(8):
        td, twin = env.rand_action(root), other
        twin["action"] = td["action"].reshape(6, 1)
        if number % 3 == 1:
            mask = torch.tensor([[True, False], [True, True], [False, False]])
            td["_step"], twin["_step"] = mask, mask.reshape(6)
        td, root = env.step_and_maybe_reset(td)
        twin, other = flat.step_and_maybe_reset(twin)
        assert_equal(td.reshape(6), twin, f"step {number}")
        assert_equal(root.reshape(6), other, f"root {number}")
    env.close()
    flat.close()


def test_seeds_are_counted_through(td_three: TensorDictEngine) -> None:
    env = outer(td_three, CountingTensorDictEnv)
    assert env.set_seed(10) == 16
    expected = [torch.rand(1, generator=torch.Generator().manual_seed(10 + row)).item() for row in range(6)]
    assert env.reset()["noise"].flatten().tolist() == expected
    assert env.set_seed(10, static_seed=True) == 10
    assert env.reset()["noise"].flatten().tolist() == expected[:1] * 6
    env.close()


def test_its_gymnasium_envs_are_seeded_as_those_of_a_vector_env(td_three: TensorDictEngine) -> None:
    vector = gym.vector.SyncVectorEnv([CountingEnv] * 6)
    expected, _ = vector.reset(seed=11)
    env = outer(td_three, lambda row: CountingEnv())
    assert env.set_seed(11) == 17
    assert np.array_equal(env.reset()["observation"].reshape(6, 4).numpy(), expected)
    env.set_seed(11, static_seed=True)
    noise = env.reset()["observation"][..., 3]
    assert noise.eq(float(expected[0, 3])).all()
    vector.close()
    env.close()


def test_seeds_take_effect_at_the_next_reset(td_three: TensorDictEngine) -> None:
    env, twin = outer(td_three, lambda row: CountingEnv()), outer(td_three, lambda row: CountingEnv())
    for each in (env, twin):
        each.set_seed(1)
    td, other = env.reset(), twin.reset()
    env.set_seed(99)
    action = env.rand_action()
    assert_equal(env.step(td.update(action)), twin.step(other.update(action)))
    env.close()
    twin.close()


@pytest.mark.parametrize("static_seed", [False, True])
def test_torch_is_seeded_with_the_seed_itself(td_engine: TensorDictEngine, static_seed: bool) -> None:
    """However many envs are seeded after it."""
    env = td_engine.make(CountingTensorDictEnv)
    env.set_seed(5, static_seed=static_seed)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert drawn.equal(torch.rand(3))
    env.close()


def test_masks_reach_the_rows_that_they_pick(td_three: TensorDictEngine) -> None:
    env = outer(td_three, CountingTensorDictEnv)
    td = env.rand_action(env.reset())
    mask = torch.tensor([[True, True], [False, True], [False, False]])
    following = env.step(td.set("_step", mask))["next"]
    assert following["count"].squeeze(-1).equal(mask.to(torch.int64))
    root = env.reset(TensorDict({"_reset": ~mask.unsqueeze(-1)}, [3, 2]))
    assert root["count"].squeeze(-1).equal(mask.to(torch.int64))
    env.close()
