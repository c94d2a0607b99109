"""Whatever is asked of a TensorDict env, it gives what its own ``_reset`` and ``_step`` give, by the rules."""

from __future__ import annotations

import pytest
import torch
from by_hand import assert_equal
from fuzzing import given_over_engines
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict_engines import ALONE
from tensordict_oracle import OneByOne, leaves_of
from tensordict_programs import run_a_program
from tensordict_zoo import (
    GROUPED,
    TENSORDICT_ENVS,
    WITH_STATES_OR_INFOS,
    DifferentiableEnv,
    RaisingTensorDictEnv,
    StatefulEnv,
)

from gymbridge.envs import check_env_specs

FLAT = [kind for kind in TENSORDICT_ENVS if kind not in GROUPED]
"""Those whose rewards and flags stand at the root."""


@pytest.mark.parametrize("kind", [kind for kind in FLAT if kind not in WITH_STATES_OR_INFOS])
@given_over_engines(data=st.data())
def test_any_program(kind: str, data: st.DataObject) -> None:
    run_a_program(ALONE, TENSORDICT_ENVS[kind], data)


@pytest.mark.parametrize("kind", FLAT)
def test_its_outputs_are_as_its_specs_say(kind: str) -> None:
    for index in range(3):
        check_env_specs(TENSORDICT_ENVS[kind](index), num_steps=20)


@pytest.mark.parametrize("kind", [kind for kind in FLAT if kind not in ("recurrent", "forgets")])  # want a policy
def test_rollouts(kind: str) -> None:
    """A rollout across episodes is the env's steps one after the other."""
    env, one = TENSORDICT_ENVS[kind](1), TENSORDICT_ENVS[kind](1)
    oracle = OneByOne([one], batched=False)
    env.set_seed(5)
    oracle.set_seed(5)
    with torch.no_grad():
        td = env.rollout(12, break_when_any_done=False, return_contiguous=False)
        root = oracle.reset()
        assert td.batch_size == (*one.batch_size, 12)
        for number, taken in enumerate(td.unbind(-1)):
            assert_equal(taken.select(*leaves_of(root)), root, f"step {number}: root")
            following, root = oracle.step_and_maybe_reset(taken.exclude("next"))
            assert_equal(taken["next"], following, f"step {number}: next")


def test_params_in_the_tensordict_steer_a_reset() -> None:
    env = StatefulEnv(0)
    params = TensorDict(stiffness=torch.tensor(3.0), max_steps=torch.tensor(1))
    td = env.reset(TensorDict(params=params))
    assert td["position"].tolist() == [1.5]
    td["action"] = torch.zeros(1)
    stepped, root = env.step_and_maybe_reset(td)
    assert stepped["next", "truncated"].tolist() == [True]
    assert root["params", "stiffness"] == 3.0
    assert env.reset()["params", "stiffness"] == 0.0


def test_gradients_flow_through_action_state_and_weight() -> None:
    env = DifferentiableEnv(1)
    actions = torch.linspace(-0.5, 0.5, 6).reshape(3, 2).requires_grad_()
    td = env.reset()
    total = torch.zeros(())
    for action in actions:
        td = env.step(td.set("action", action))
        total = total + td["next", "reward"].sum()
        td = env.step_mdp(td)
    total.backward()

    weight, x, expected = env.weight.detach().clone().requires_grad_(), None, torch.zeros(())
    others = actions.detach().clone().requires_grad_()
    x = weight * 2
    for action in others:
        x = torch.tanh(weight * x) + action
        expected = expected - x.square().sum()
    expected.backward()
    assert actions.grad is not None
    assert others.grad is not None
    assert env.weight.grad is not None
    assert weight.grad is not None
    assert actions.grad.equal(others.grad)
    assert env.weight.grad.equal(weight.grad)


def test_what_an_env_raises_reaches_the_caller_and_the_run_goes_on() -> None:
    env = RaisingTensorDictEnv(0)
    td = env.rand_action(env.reset())
    env.raise_in_step = error = KeyError("no such joint")
    with pytest.raises(KeyError) as caught:
        env.step(td)
    assert caught.value is error
    env.raise_in_step = None
    env.raise_in_reset = ValueError("no level to load")
    with pytest.raises(ValueError, match="no level to load"):
        env.reset()
    env.raise_in_reset = None
    assert env.step(env.rand_action(env.reset()))["next", "count"].tolist() == [1]
