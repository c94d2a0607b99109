"""Whatever is asked of an engine, its envs give what the same gymnasium envs give when they are run one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest
import torch
from by_hand import FLAGS, ByHand, assert_equal
from engines import Engine
from fuzzing import given_over_engines
from generated_envs import PlannedEnv, plans
from gymnasium import spaces
from hypothesis import strategies as st
from space_strategies import any_spaces
from tensordict import TensorDict, TensorDictBase
from zoo import CountingEnv, DictEnv

from gymbridge.errors import UnsupportedSpaceError
from gymbridge.spaces import space_to_spec

ZOO: dict[str, Callable[[int], gym.Env]] = {
    "CountingEnv": lambda index: CountingEnv(((3, 1, 5), (1, 2), (2, 4, 1))[index]),
    "continuous": lambda index: CountingEnv(((2, 1), (3,), (1, 4))[index], continuous=True),
    "DictEnv": lambda index: DictEnv(((3, 1, 5), (1, 2), (2, 4, 1))[index]),
}


def translatable(space: spaces.Space) -> bool:
    """Whether torch has the dtypes of the space."""
    try:
        space_to_spec(space)
    except UnsupportedSpaceError:
        return False
    return True


@st.composite
def masks(draw: st.DrawFn, engine: Engine, may: list[bool]) -> tuple[torch.Tensor | None, list[bool]]:
    """A mask in one of its forms, which picks no env but those that may be; and the envs that it picks."""
    num_envs = len(may)
    picked = [draw(st.booleans()) and may[row] for row in range(num_envs)]
    form = draw(st.sampled_from(["flat", "with a last dim", *["none"] * all(may)]))
    if form == "none":
        return None, [True] * num_envs
    mask = torch.tensor(picked).reshape(engine.batch_size)
    return (mask.unsqueeze(-1) if form == "with a last dim" else mask), picked


def run_a_program(engine: Engine, make: Callable[[int], gym.Env], data: st.DataObject, rounds: int = 10) -> None:
    """Draws resets, steps and both together, each of any part of the batch, and compares after each."""
    env = engine.make(make, indexed=True)
    hand = ByHand([lambda index=index: make(index) for index in range(engine.num_envs)], engine.batch_size)
    torch.manual_seed(data.draw(st.integers(0, 1000), label="seed of the actions"))
    env.set_seed(7)
    seeds: list[dict[str, Any]] = [{"seed": 7 + row} for row in range(engine.num_envs)]
    first = env.reset()
    everything = [True] * engine.num_envs
    assert_equal(first, hand.reset(None, everything, seeds), "first reset")
    nothing: list[dict[str, Any]] = [{}] * engine.num_envs
    observed = [*first.keys(True, True)]

    def given_td() -> TensorDict:
        """What the caller hands in: all keys, some, or none, with values that are not the env's own."""
        td = TensorDict({}, engine.batch_size)
        kept = data.draw(st.sampled_from(["all", "none", "some"]), label="keys given")
        for key in observed:
            if kept == "all" or (kept == "some" and data.draw(st.booleans(), label=f"{key} given")):
                spec = env.full_done_spec[key] if key in FLAGS else env.full_observation_spec[key]
                td.set(key, spec.rand())
        return td

    for number in range(rounds):
        do = data.draw(st.sampled_from(["reset", "step", "step_and_maybe_reset"]), label=f"round {number}")
        td = given_td()
        if do == "reset":
            mask, picked = data.draw(masks(engine, everything), label="mask")
            if mask is not None:
                td["_reset"] = mask
            before = td.clone()
            got = env.reset(td)
            assert_equal(td, before, "what reset was given")
            assert_equal(got, hand.reset(td, picked, nothing), f"round {number}: reset")
            continue
        env.rand_action(td)
        mask, picked = data.draw(masks(engine, hand.running), label="mask")
        if mask is not None:
            td["_step"] = mask
        before = td.clone()
        if do == "step":
            got = env.step(td)
            expected_next = hand.step(before, picked)
        else:
            got, root = env.step_and_maybe_reset(td)
            expected_next, expected_root = hand.step_and_maybe_reset(before, picked, nothing)
            assert_equal(root, expected_root, f"round {number}: td_")
        assert got is td
        assert_equal(td["next"], expected_next, f"round {number}: next of {do}")
        assert_equal(td.exclude("next"), before.exclude("_step"), f"round {number}: root of {do}")
    env.close()


@pytest.mark.parametrize("kind", ZOO)
@given_over_engines(data=st.data())
def test_any_program_over_envs_of_the_zoo(contract: Engine, kind: str, data: st.DataObject) -> None:
    run_a_program(contract, ZOO[kind], data)


@given_over_engines(data=st.data())
def test_any_program_over_generated_envs(contract: Engine, data: st.DataObject) -> None:
    plan = data.draw(plans(any_spaces().filter(translatable)), label="plan")
    run_a_program(contract, lambda index: PlannedEnv(plan, index), data, rounds=5)


class Echo(gym.Env[Any, Any]):
    """Observes the action that it was given."""

    def __init__(self, space: spaces.Space):
        self.action_space = space
        self.observation_space = spaces.Dict(echo=space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return {"echo": self.action_space.sample()}, {}

    def step(self, action: Any) -> Any:
        assert action in self.action_space
        return {"echo": action}, 0.0, False, False, {}


@pytest.mark.filterwarnings("ignore:.*Casting input x")
@pytest.mark.parametrize("categorical", [True, False], ids=["categorical", "one-hot"])
@given_over_engines(space=any_spaces(min_items=1, max_leaves=4).filter(translatable))
def test_envs_are_given_actions_of_their_own_space(engine: Engine, categorical: bool, space: spaces.Space) -> None:
    """An element of the space: whatever the space, and however the actions are encoded."""
    env = engine.make(lambda: Echo(space), categorical_action_encoding=categorical)
    plain = engine.make(lambda: Echo(space))
    plain.reset()
    td = env.rand_action(env.reset())
    echoed = env.step(td)["next", "echo"]
    action = td.select("action")
    if not categorical:  # what was echoed is the categorical form of the action
        again = plain.step(TensorDict({"action": echoed}, engine.batch_size))["next", "echo"]
        same = TensorDict({"echo": again}, engine.batch_size)
        assert_equal(TensorDict({"echo": echoed}, engine.batch_size), same)
        return
    expected = TensorDict({"echo": action["action"]}, engine.batch_size)
    assert_equal(TensorDict({"echo": echoed}, engine.batch_size), expected)


@pytest.mark.parametrize("name", ["CartPole-v1", "MountainCarContinuous-v0", "Taxi-v4", "Blackjack-v1"])
def test_real_envs(engine: Engine, name: str) -> None:
    """Registered envs with their wrappers, across many episodes."""
    name = name if name != "Taxi-v4" or name in gym.registry else "Taxi-v3"
    env = engine.make(lambda: gym.make(name))
    hand = ByHand([lambda: gym.make(name)] * engine.num_envs, engine.batch_size)
    torch.manual_seed(0)
    env.set_seed(3)
    everything = [True] * engine.num_envs
    td: TensorDictBase = env.reset()
    assert_equal(td, hand.reset(None, everything, [{"seed": 3 + row} for row in range(engine.num_envs)]))
    for _ in range(60):
        stepped, root = env.step_and_maybe_reset(env.rand_action(td))
        following, first = hand.step_and_maybe_reset(stepped, everything, [{}] * engine.num_envs)
        assert_equal(stepped["next"], following)
        assert_equal(root, first)
        td = root
    env.close()
