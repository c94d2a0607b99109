"""What a TensorDict env says of itself: keys at any depth and in several groups, locks, batch sizes it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict_engines import TensorDictEngine
from tensordict_zoo import TENSORDICT_ENVS, BatchUnlockedEnv, CountingTensorDictEnv, DynamicShapeEnv, StatefulEnv

from gymbridge.specs import Composite, Unbounded

FLAGS = ("done", "terminated", "truncated")
ROOT = [*FLAGS]


def of(*groups: str) -> list[Any]:
    return [(group, name) for group in groups for name in FLAGS]


@pytest.mark.parametrize(
    ("kind", "actions", "rewards", "flags", "masks"),
    [
        ("counting", ["action"], ["reward"], ROOT, ["_reset"]),
        ("nested", [("robot", "torque")], ["reward"], ROOT, ["_reset"]),
        ("several keys", [("a", "action"), ("b", "action")], ["reward", "bonus"], ROOT, ["_reset"]),
        (
            "rewards in groups",
            [("a", "action"), ("b", "action")],
            [("a", "reward"), ("b", "reward")],
            ROOT,
            ["_reset"],
        ),
        (
            "groups and root",
            [("agents", "action")],
            ["reward", ("agents", "reward")],
            [*ROOT, *of("agents")],
            ["_reset", ("agents", "_reset")],
        ),
        (
            "groups alone",
            [("agents", "action")],
            [("agents", "reward"), ("referee", "reward")],
            of("agents", "referee"),
            [("agents", "_reset"), ("referee", "_reset")],
        ),
    ],
)
def test_keys_are_told_at_any_depth(
    td_engine: TensorDictEngine, kind: str, actions: Any, rewards: Any, flags: Any, masks: Any
) -> None:
    env = td_engine.make(TENSORDICT_ENVS[kind])
    assert (env.action_keys, env.action_key) == (actions, actions[0])
    assert (env.reward_keys, env.reward_key) == (rewards, rewards[0])
    assert sorted(env.done_keys, key=str) == sorted(flags, key=str)
    assert env.reset_keys == masks
    for key in (*rewards, *flags):
        spec = env.full_reward_spec if key in rewards else env.full_done_spec
        assert spec[key].shape[: env.ndim] == env.batch_size
        assert spec[key].shape[-1] == 1
    env.close()


@pytest.mark.parametrize("kind", ["counting", "nested", "groups alone", "stateful", "tasks"])
def test_input_and_output_specs_hold_the_full_ones(td_engine: TensorDictEngine, kind: str) -> None:
    env = td_engine.make(TENSORDICT_ENVS[kind])
    assert {*env.input_spec.keys()} == {"full_action_spec", "full_state_spec"}
    assert {*env.output_spec.keys()} == {"full_observation_spec", "full_reward_spec", "full_done_spec"}
    for name in ("observation", "action", "reward", "done", "state"):
        full = getattr(env, f"full_{name}_spec")
        half = "input_spec" if name in ("action", "state") else "output_spec"
        assert env.specs[half, f"full_{name}_spec"] == full
        assert full.shape == env.batch_size
    assert env.observation_spec == env.full_observation_spec
    assert env.state_spec == env.full_state_spec
    assert env.done_spec == env.full_done_spec
    env.close()


def test_locked_specs_are_neither_replaced_nor_changed(td_engine: TensorDictEngine) -> None:
    env = td_engine.make(StatefulEnv)
    assert env.set_spec_lock_() is env
    assert env.is_spec_locked
    for kind in ("observation", "action", "reward", "done", "state"):
        name = f"full_{kind}_spec"
        spec = getattr(env, name)
        assert spec.is_locked
        with pytest.raises(RuntimeError, match=rf"{kind}_spec: the specs of .* are locked; set_spec_lock_\(False\)"):
            setattr(env, name, spec.clone())
        with pytest.raises(RuntimeError, match="lock"):
            spec.set("more", Unbounded((*env.batch_size, 1)))
    with pytest.raises(RuntimeError, match="lock"):
        env.full_observation_spec["params"].set("more", Unbounded(env.batch_size))
    env.rollout(3, break_when_any_done=False)
    env.close()


def test_unlocked_specs_can_be_replaced(td_engine: TensorDictEngine) -> None:
    env = td_engine.make(CountingTensorDictEnv)
    env.reset()
    env.set_spec_lock_()
    assert env.set_spec_lock_(False) is env
    assert not env.is_spec_locked
    assert not env.full_observation_spec.is_locked
    env.observation_spec = Composite(other=Unbounded((*env.batch_size, 2)), shape=env.batch_size)
    assert [*env.full_observation_spec.keys()] == ["other"]
    env.close()


def test_a_spec_that_is_replaced_changes_the_steps_after_it() -> None:
    """What had been worked out from the spec before does not linger."""
    env = CountingTensorDictEnv()
    env.rand_step(env.reset())
    env.action_spec = Unbounded((1,))
    td = env.reset()
    with pytest.raises(ValueError, match=r"action: got dtype torch.int8, expected torch.float32"):
        env.step(td.clone().set("action", torch.ones(1, dtype=torch.int8)))
    assert env.step(td.set("action", torch.ones(1)))["next", "count"].tolist() == [1]


def test_a_locked_batch_size_is_the_only_one_that_is_taken(td_engine: TensorDictEngine) -> None:
    env = td_engine.make(CountingTensorDictEnv)
    assert env.batch_locked
    other = TensorDict({}, [7, *env.batch_size])
    for call in (env.reset, env.step, env.step_and_maybe_reset, env.rand_action):
        with pytest.raises(ValueError, match=r"got a TensorDict of batch size \[7.*\], expected"):
            call(other)
    env.close()


def test_an_env_says_whether_its_batch_size_is_locked_and_its_specs_dynamic(td_engine: TensorDictEngine) -> None:
    alone = not td_engine.batched
    assert td_engine.make(BatchUnlockedEnv).batch_locked is not alone
    assert td_engine.make(DynamicShapeEnv).has_dynamic_specs
    assert not td_engine.make(StatefulEnv).has_dynamic_specs


@pytest.mark.every(3, "td_engine", "kind", first=2)
@pytest.mark.parametrize("kind", TENSORDICT_ENVS)
def test_rewards_and_flags_have_a_last_dim_and_done_is_either(td_engine: TensorDictEngine, kind: str) -> None:
    env = td_engine.make(TENSORDICT_ENVS[kind])
    with torch.no_grad():
        root = env.reset()
        for _ in range(6):
            for key, spec in env.full_state_spec.items(True, True):
                if root.get(key, None) is None:
                    root.set(key, spec.rand())
            stepped, root = env.step_and_maybe_reset(env.rand_action(root))
            for row in stepped.unbind(0) if td_engine.batched else [stepped]:
                following = row["next"]
                for key in (*env.reward_keys, *env.done_keys):
                    assert following[key].shape == _shape_of(env, key, td_engine.batched)
                for key in env.done_keys:
                    assert following[key].dtype is torch.bool
                groups = {key[:-1] if isinstance(key, tuple) else () for key in env.done_keys}
                for group in groups:
                    done, terminated, truncated = (following[(*group, name)] for name in FLAGS)
                    assert done.equal(terminated | truncated)
    env.close()


def _shape_of(env: Any, key: Any, batched: bool) -> torch.Size:
    spec = env.full_reward_spec if key in env.reward_keys else env.full_done_spec
    return spec[key].shape[1:] if batched else spec[key].shape
