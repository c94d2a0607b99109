"""Dtypes of rewards, encodings of actions, and where all of it lies."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from by_hand import assert_equal
from engines import Engine
from tensordict import TensorDictBase
from zoo import CountingEnv, DictEnv

from gymbridge import SerialEnv
from gymbridge.envs import EnvMetaData, GymEnv, check_env_specs

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def devices_of(td: TensorDictBase) -> set[torch.device]:
    """Of every leaf and every group."""
    groups = [value for value in td.values(True) if isinstance(value, TensorDictBase)]
    return {leaf.device for leaf in td.values(True, True)} | {group.device for group in (td, *groups)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_rewards_have_the_dtype_that_was_asked_for(engine: Engine, dtype: torch.dtype) -> None:
    env = engine.make(CountingEnv, reward_dtype=dtype)
    assert env.reward_spec.dtype is dtype
    td = env.rollout(3, break_when_any_done=False)
    assert td["next", "reward"].dtype is dtype
    assert td["next", "reward"].reshape(-1, 3).tolist() == [[1, 2, 3]] * engine.num_envs


def test_float64_rewards_lose_nothing(engine: Engine) -> None:
    class Fine(CountingEnv):
        def step(self, action: Any) -> Any:
            outcome = super().step(action)
            return outcome[0], 1 / 3, *outcome[2:]

    env = engine.make(Fine, reward_dtype=torch.float64)
    assert env.rand_step(env.reset())["next", "reward"].flatten().tolist() == [1 / 3] * engine.num_envs
    plain = engine.make(Fine)
    assert plain.rand_step(plain.reset())["next", "reward"].dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, float, "float32"], ids=str)
def test_another_dtype_of_rewards_is_refused(engine: Engine, dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"reward_dtype: got .*, expected one of"):
        engine.make(CountingEnv, reward_dtype=dtype).reset()


def test_one_hot_actions_choose_as_their_numbers_do(engine: Engine) -> None:
    env, twin = engine.make(CountingEnv, categorical_action_encoding=False), engine.make(CountingEnv)
    assert env.action_spec.shape == (*engine.batch_size, 3)
    assert env.action_spec.dtype is torch.bool
    for each in (env, twin):
        each.set_seed(0)
    td, other = env.reset(), twin.reset()
    for choice in (0, 2, 1, 2):
        td["action"] = torch.nn.functional.one_hot(engine.rows(choice, (choice + 1) % 3), 3).bool()
        other["action"] = engine.rows(choice, (choice + 1) % 3)
        stepped, td = env.step_and_maybe_reset(td)
        other_stepped, other = twin.step_and_maybe_reset(other)
        assert_equal(stepped["next"], other_stepped["next"])


def test_an_action_with_no_or_two_choices_is_refused(engine: Engine) -> None:
    env = engine.make(CountingEnv, categorical_action_encoding=False)
    td = env.reset()
    for wrong in (torch.zeros, torch.ones):
        td["action"] = wrong((*engine.batch_size, 3), dtype=torch.bool)
        with pytest.raises(ValueError, match=r"action.*expected exactly one (True|bit)"):
            env.step(td)


# ---------------------------------------------------------------- devices


def test_without_a_device_tensordicts_have_none(engine: Engine) -> None:
    env = engine.make(DictEnv)
    assert env.device is None
    td, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    for each in (env.reset(), td, root, env.fake_tensordict(), env.rand_action(), env.rollout(2)):
        assert each.device is None
        assert devices_of(each) == {None, torch.device("cpu")}


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")], ids=["str", "torch.device"])
def test_with_a_device_tensordicts_have_it(engine: Engine, device: Any) -> None:
    env = engine.make(DictEnv, device=device)
    check_on(env, torch.device("cpu"))


def check_on(env: Any, device: torch.device) -> None:
    """All that comes from the env is there, and so are the specs."""
    assert env.device == device
    td, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    for each in (env.reset(), td, root, env.fake_tensordict(), env.rand_action(), env.rollout(2)):
        assert devices_of(each) == {device}
    for name in ("observation", "action", "reward", "done", "state"):
        assert getattr(env, f"full_{name}_spec").device == device
    assert all(spec.device == device for spec in env.specs.values(True, True))
    check_env_specs(env)


class EveryBitEnv(gym.Env[Any, Any]):
    """Shows numbers of which torch's arithmetic knows nothing, or changes the sign, in groups too."""

    def __init__(self) -> None:
        box = gym.spaces.Box(-1, 1, (2,), np.float32)
        wide = gym.spaces.Box(0, 2**16 - 1, (2,), np.uint16)
        self.observation_space = gym.spaces.Dict(x=box, arm=gym.spaces.Dict(x=box, wide=wide), wide=wide)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.shown(), {}

    def step(self, action: Any) -> Any:
        return self.shown(), -0.0, False, False, {}

    def shown(self) -> Any:
        zero, wide = np.full(2, -0.0, np.float32), np.full(2, 2**16 - 1, np.uint16)
        return {"x": zero, "arm": {"x": zero, "wide": wide}, "wide": wide}


@pytest.mark.parametrize("device", [None, "cpu"])
def test_no_bit_is_lost_on_the_way_to_the_next_root(engine: Engine, device: Any) -> None:
    """tensordict copies by adding zero where there is a device."""
    env = engine.make(EveryBitEnv, device=device)
    stepped, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    lists = env.rollout(3, return_contiguous=False).exclude("action")
    for td in (stepped["next"], root, env.step_mdp(stepped), lists, lists["next"]):
        for key in ("x", ("arm", "x")):
            assert torch.signbit(td.get(key)).all(), key
        for key in ("wide", ("arm", "wide")):
            assert (td.get(key).int() == 2**16 - 1).all(), key
    assert EnvMetaData.metadata_from_env(env).tensordict["arm", "wide"].dtype is torch.uint16


@pytest.mark.parametrize("started", [False, True], ids=["before the start", "after it"])
def test_to_moves_what_is_returned_from_then_on(engine: Engine, started: bool) -> None:
    env = engine.make(DictEnv)
    if started:
        env.rand_step(env.reset())
    assert env.to("cpu") is env
    check_on(env, torch.device("cpu"))
    assert env.is_spec_locked


def test_to_keeps_the_envs_and_seeds_given_before(engine: Engine) -> None:
    env, twin = engine.make(CountingEnv), engine.make(CountingEnv)
    for each in (env, twin):
        each.set_seed(3)
    env.to("cpu")
    td, other = env.reset(), twin.reset()
    assert td["observation"].equal(other["observation"])
    env.to("cpu")
    action = env.rand_action()["action"]
    got = env.step(td.set("action", action))["next", "observation"]
    assert got.equal(twin.step(other.set("action", action))["next", "observation"])


def test_a_td_with_a_device_and_an_env_without_one(engine: Engine) -> None:
    """The td keeps its device, the env's own results have none."""
    env = engine.make(CountingEnv)
    td = env.rand_action(env.reset()).to("cpu")
    stepped, root = env.step_and_maybe_reset(td)
    assert stepped is td
    assert root.device is None
    assert td.device == torch.device("cpu")
    assert td["next"].device == torch.device("cpu")


@pytest.mark.parametrize(
    "make", [lambda device: GymEnv(CountingEnv, device=device), lambda d: GymEnv(CountingEnv).to(d)]
)
def test_the_meta_device_is_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="device: got meta"):
        make("meta")


def test_the_meta_device_is_refused_for_batches() -> None:
    with pytest.raises(ValueError, match="device: got meta"):
        SerialEnv(2, CountingEnv, device="meta")


def test_envs_on_different_devices_need_a_word() -> None:
    fns = [lambda: GymEnv(CountingEnv), lambda: GymEnv(CountingEnv, device="cpu")]
    with pytest.raises(ValueError, match="device: the envs have the devices"):
        SerialEnv(2, fns).reset()
    assert SerialEnv(2, fns, device="cpu").reset().device == torch.device("cpu")


@pytest.mark.cuda
@needs_cuda
def test_everything_is_on_the_gpu(engine: Engine) -> None:
    here = torch.device("cuda", torch.cuda.current_device())
    check_on(engine.make(DictEnv, device="cuda"), here)
    env = engine.make(DictEnv)
    env.reset()
    check_on(env.to("cuda"), here)


@pytest.mark.cuda
@needs_cuda
@pytest.mark.parametrize("maker", [CountingEnv, DictEnv])
def test_a_gpu_changes_no_value(engine: Engine, maker: Any) -> None:
    """Masks, actions and own rows on the GPU too."""
    env, twin = engine.make(maker, device="cuda"), engine.make(maker)
    for each in (env, twin):
        each.set_seed(0)
    td, other = env.reset(), twin.reset()
    for number in range(10):
        action = twin.rand_action()
        td.update(action.to("cuda"))
        other.update(action)
        if number % 3 == 1:
            mask = torch.arange(engine.num_envs).reshape(engine.batch_size) % 2 == 0
            td["_step"], other["_step"] = mask.cuda(), mask
        stepped, td = env.step_and_maybe_reset(td)
        twin_stepped, other = twin.step_and_maybe_reset(other)
        assert_equal(stepped.cpu().clear_device_(), twin_stepped)
        assert_equal(td.cpu().clear_device_(), other)
