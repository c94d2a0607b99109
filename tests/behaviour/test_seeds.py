"""``set_seed`` gives the episodes that gymnasium's vector envs give, from the next reset on."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from by_hand import assert_equal
from engines import WITH_WORKERS, Engine
from tensordict import TensorDict
from tensordict_zoo import CountingTensorDictEnv
from zoo import CountingEnv

import gymbridge.vector
from gymbridge import AsyncEnvPool, ParallelEnv, SerialEnv
from gymbridge.envs.seed_chain import SeedChain

needs_workers = pytest.mark.skipif(not WITH_WORKERS, reason="about worker processes")


class Draws(CountingEnv):
    """Observes the seed that its reset was given (-1 for none), and random numbers."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed)
        observation[1] = -1 if seed is None else seed
        return observation, info


def seeds_seen(engine: Engine, td: Any) -> list[int]:
    return [int(seed) for seed in td["observation"].reshape(engine.num_envs, 4)[:, 1]]


def nothing(engine: Engine) -> list[int]:
    return [-1] * engine.num_envs


@pytest.mark.parametrize("vector", [gym.vector.SyncVectorEnv, gymbridge.vector.SyncVectorEnv])
def test_a_seeded_reset_is_that_of_a_vector_env(contract: Engine, vector: Any) -> None:
    envs = vector([lambda: gym.make("CartPole-v1")] * contract.num_envs)
    expected, _ = envs.reset(seed=11)
    env = contract.make(lambda: gym.make("CartPole-v1"))
    env.set_seed(11)
    got = env.reset()["observation"]
    assert np.array_equal(got.numpy().reshape(expected.shape), expected)
    envs.close()


def test_it_returns_the_next_seed_that_is_free(contract: Engine) -> None:
    env = contract.make(Draws)
    assert env.set_seed(5) == 5 + contract.num_envs
    assert env.set_seed(5, static_seed=True) == 5
    assert env.set_seed(0) == contract.num_envs


def test_env_i_gets_seed_plus_i(contract: Engine) -> None:
    env = contract.make(Draws)
    env.set_seed(5)
    assert seeds_seen(contract, env.reset()) == [5 + row for row in range(contract.num_envs)]


def test_a_static_seed_goes_to_every_env(engine: Engine) -> None:
    env = engine.make(Draws)
    env.set_seed(5, static_seed=True)
    td = env.reset()
    assert seeds_seen(engine, td) == [5] * engine.num_envs
    assert len(set(td["observation"].reshape(engine.num_envs, 4)[:, 3].tolist())) == 1


def test_a_seed_is_for_one_reset(contract: Engine) -> None:
    env = contract.make(Draws)
    env.set_seed(5)
    env.reset()
    assert seeds_seen(contract, env.reset()) == nothing(contract)


def test_it_takes_effect_at_the_next_reset_only(contract: Engine) -> None:
    """Steps before it go on with the generators as they were."""
    env, twin = contract.make(Draws), contract.make(Draws)
    for each in (env, twin):
        each.set_seed(0)
    td, other = env.reset(), twin.reset()
    env.set_seed(99)
    action = env.rand_action()
    assert_equal(env.step(td.update(action)), twin.step(other.update(action)))


def test_the_next_reset_may_be_one_inside_step_and_maybe_reset(contract: Engine) -> None:
    env = contract.make(lambda: Draws([1]))
    td = env.reset()
    env.set_seed(5)
    _, td = env.step_and_maybe_reset(env.rand_action(td))
    assert seeds_seen(contract, td) == [5 + row for row in range(contract.num_envs)]
    _, td = env.step_and_maybe_reset(env.rand_action(td))
    assert seeds_seen(contract, td) == nothing(contract)


def test_a_step_that_resets_nobody_takes_no_seed(contract: Engine) -> None:
    env = contract.make(lambda: Draws([9]))
    td = env.reset()
    env.set_seed(5)
    _, td = env.step_and_maybe_reset(env.rand_action(td))
    td = env.step_mdp(env.rand_step(td))
    assert seeds_seen(contract, env.reset()) == [5 + row for row in range(contract.num_envs)]


def test_each_env_takes_its_seed_when_it_is_reset(batch: Engine) -> None:
    """Some by mask, the others later, each once; a sleeping env that is done loses none."""
    env = batch.make(lambda: Draws([1]))
    td = env.step_mdp(env.step(env.rand_action(env.reset())))
    env.set_seed(5)
    mask = torch.arange(batch.num_envs) == batch.num_envs - 1
    first = env.reset(td.set("_reset", mask))
    assert seeds_seen(batch, first)[-1] == 5 + batch.num_envs - 1
    stepped, root = env.step_and_maybe_reset(env.rand_action(first).set("_step", mask))
    assert seeds_seen(batch, root)[-1] == -1
    assert stepped["next", "done"].all()
    rest = env.reset()
    assert seeds_seen(batch, rest) == [5 + row for row in range(batch.num_envs - 1)] + [-1]


def test_the_last_seed_given_counts_and_none_takes_it_back(engine: Engine) -> None:
    env = engine.make(Draws)
    env.set_seed(5)
    env.set_seed(8)
    assert seeds_seen(engine, env.reset()) == [8 + row for row in range(engine.num_envs)]
    env.set_seed(5)
    assert env.set_seed(None) is None
    assert seeds_seen(engine, env.reset()) == nothing(engine)


def test_a_seed_in_the_call_wins(engine: Engine) -> None:
    env = engine.make(Draws)
    env.set_seed(5)
    if engine.num_envs == 1:
        assert seeds_seen(engine, env.reset(seed=3)) == [3]
    else:  # the envs would all be the same
        with pytest.raises(ValueError, match=r"seed: got 3 for a batch.*set_seed\(seed\)"):
            env.reset(seed=3)
        assert seeds_seen(engine, env.reset()) == [5 + row for row in range(engine.num_envs)]


def test_a_call_that_is_refused_takes_no_seed(engine: Engine) -> None:
    env = engine.make(lambda: Draws([1]))
    td = env.reset()
    env.set_seed(5)
    with pytest.raises(KeyError):
        env.step_and_maybe_reset(td.copy())
    with pytest.raises(TypeError):
        env.reset(TensorDict({"_reset": torch.ones(engine.batch_size)}, engine.batch_size))
    assert seeds_seen(engine, env.reset()) == [5 + row for row in range(engine.num_envs)]


def test_a_failing_env_does_not_make_the_others_use_a_seed_twice(batch: Engine) -> None:
    class Fails(Draws):
        def __init__(self, index: int):
            super().__init__([1])
            self.index = index

        def step(self, action: Any) -> Any:
            if self.index == 0 and self.episode == 0:
                raise OSError("no")
            return super().step(action)

    env = batch.make(Fails, indexed=True)
    td = env.reset()
    env.set_seed(5)
    with pytest.raises(OSError, match="no"):
        env.step_and_maybe_reset(env.rand_action(td))
    later = env.reset()
    assert seeds_seen(batch, later) == [5] + [-1] * (batch.num_envs - 1)


def test_torchs_generator_is_seeded_too(contract: Engine) -> None:
    """So that random actions repeat, as TorchRL's users expect."""
    env = contract.make(CountingEnv)
    env.set_seed(5)
    first = [env.rand_action()["action"].clone() for _ in range(5)]
    env.set_seed(5)
    assert all(env.rand_action()["action"].equal(action) for action in first)


def test_equal_seeds_give_equal_rollouts(contract: Engine) -> None:
    env, twin = contract.make(CountingEnv), contract.make(CountingEnv)
    env.set_seed(1)
    one = env.rollout(10, break_when_any_done=False)
    twin.set_seed(1)
    assert_equal(twin.rollout(10, break_when_any_done=False), one)


@pytest.mark.parametrize(
    "fns", [CountingEnv, CountingTensorDictEnv, [CountingEnv, CountingTensorDictEnv]], ids=["gymnasium", "own", "both"]
)
def test_seeds_that_wait_for_the_start_leave_torchs_generator_to_the_batch(batched_env: Any, fns: Any) -> None:
    """Envs that seed torch themselves do not undo what the caller seeded, whenever they start."""
    drawn = []
    env = batched_env(2, fns)
    for _ in range(2):
        env.set_seed(3)
        env.reset()
        drawn.append(torch.rand(2))
        env.close()
    assert drawn[0].equal(drawn[1])
    env.start()
    torch.manual_seed(0)
    env.seed_rows([1, 2])
    assert torch.rand(2).equal(torch.rand(2, generator=torch.Generator().manual_seed(0)))
    env.close()


def doubled(seed: int) -> int:
    return 2 * seed


class Chained(CountingTensorDictEnv):
    """Of a library whose next seed is twice the last."""

    seed_chain = SeedChain("doubled", doubled)

    def _set_seed(self, seed: int | None) -> None:
        self.seed_given = seed


@pytest.mark.parametrize(
    "make",
    [
        lambda: SerialEnv(4, Chained),
        lambda: SerialEnv(2, lambda: SerialEnv(2, Chained)),
        pytest.param(lambda: ParallelEnv(4, Chained), marks=needs_workers),
        pytest.param(lambda: ParallelEnv(2, lambda: SerialEnv(2, Chained)), marks=needs_workers),
        pytest.param(lambda: AsyncEnvPool([Chained] * 4), marks=needs_workers),
    ],
    ids=["SerialEnv", "batches in a batch", "ParallelEnv", "batches in workers", "pool"],
)
def test_envs_with_a_chain_of_their_own_get_its_seeds(make: Any) -> None:
    env = make()
    assert env.set_seed(3) == 48
    assert np.ravel(env.seed_given).tolist() == [3, 6, 12, 24]
    assert env.set_seed(3, static_seed=True) == 3
    assert np.ravel(env.seed_given).tolist() == [3] * 4
    env.close()


def test_envs_of_which_some_have_another_chain_get_seed_plus_i() -> None:
    env = SerialEnv(3, [Chained, CountingTensorDictEnv, Chained])
    assert env.set_seed(3) == 6
    assert [own.seed_given for own in (env.engine.envs[0], env.engine.envs[2])] == [3, 5]
