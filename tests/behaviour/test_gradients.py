"""Gradients flow through the envs of a batch in this process, as through each env alone, where that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from by_hand import is_lazy
from tensordict import TensorDictBase
from tensordict_zoo import DifferentiableEnv, TaskEnv

from gymbridge import SerialEnv
from gymbridge.envs import EnvBase

OPTIONS: tuple[dict[str, bool], ...] = ({"share_individual_td": True}, {"use_buffers": False})
STEPS = 5


class Linear(torch.nn.Module):
    """A policy with one weight, which counts its steps to scale them."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor([0.3, -0.2]))

    def forward(self, td: TensorDictBase) -> TensorDictBase:
        return td.set("action", (self.gain * td["x"]).clamp(-1, 1))


def long_envs() -> list[DifferentiableEnv]:
    return [DifferentiableEnv(index, length=STEPS + 2) for index in range(2)]


def batch(envs: Sequence[EnvBase], **options: Any) -> SerialEnv:
    return SerialEnv(len(envs), [lambda env=env: env for env in envs], **options)


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_a_rollout_has_the_gradients_of_each_env_alone(option: dict[str, bool]) -> None:
    """By the policy's weight, which acts in every step, and by the weights of the envs."""
    envs, others = long_envs(), long_envs()
    policy, alone = Linear(), Linear()
    env = batch(envs, **option)
    td = env.rollout(STEPS, policy)
    assert td.batch_size == (2, STEPS)
    total = torch.stack([row.sum() for row in td["next"].get("reward").unbind(0)]).sum()
    total.backward()
    expected = torch.stack([other.rollout(STEPS, alone)["next", "reward"].sum() for other in others]).sum()
    expected.backward()
    assert total.equal(expected)
    assert alone.gain.grad is not None
    assert alone.gain.grad.abs().min() > 0
    torch.testing.assert_close(policy.gain.grad, alone.gain.grad)
    for one, other in zip(envs, others, strict=True):
        assert other.weight.grad is not None
        torch.testing.assert_close(one.weight.grad, other.weight.grad)
    env.close()


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_actions_have_gradients_over_several_steps(option: dict[str, bool]) -> None:
    """That of the first action goes through all steps after it."""
    actions = [torch.full((2, 2), 0.1, requires_grad=True) for _ in range(STEPS)]
    env = batch(long_envs(), **option)
    td = env.reset()
    for action in actions:
        stepped, td = env.step_and_maybe_reset(td.set("action", action))
    stepped["next"].get("reward").sum().backward()
    assert all(action.grad is not None and action.grad.abs().min() > 0 for action in actions)
    env.close()


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_an_env_that_sleeps_passes_on_its_own_observation(option: dict[str, bool]) -> None:
    env = batch(long_envs(), **option)
    td = env.reset().detach()
    action = torch.full((2, 2), 0.1, requires_grad=True)
    td = env.step(td.set("action", action).set("_step", torch.tensor([True, False])))
    td["next"].get("reward").sum().backward()
    assert action.grad is not None
    assert action.grad[0].abs().min() > 0
    assert not action.grad[1].any()
    env.close()


CALLS: dict[str, Callable[[EnvBase, TensorDictBase], Any]] = {
    "reset": lambda env, td: env.reset(),
    "step": lambda env, td: env.step(td),
    "step_and_maybe_reset": lambda env, td: env.step_and_maybe_reset(td),
    "rollout": lambda env, td: env.rollout(3),
}


@pytest.mark.parametrize("call", CALLS)
def test_without_the_option_the_error_names_it(call: str) -> None:
    env = batch(long_envs())
    with torch.no_grad():
        td = env.rand_action(env.reset())
    with pytest.raises(RuntimeError, match=r"requires a gradient.*share_individual_td=True or use_buffers=False"):
        CALLS[call](env, td)
    env.close()


@pytest.mark.parametrize("option", [{}, {"share_individual_td": False}, {"use_buffers": True}, *OPTIONS], ids=str)
def test_without_gradients_no_option_is_needed(option: dict[str, bool]) -> None:
    env = batch(long_envs(), **option)
    with torch.no_grad():
        td = env.rollout(STEPS, Linear())
    assert not any(value.requires_grad for row in td.unbind(0) for value in row.values(True, True))
    env.close()


def test_rows_of_unlike_envs_have_gradients_of_their_own() -> None:
    env = SerialEnv(2, [lambda: DifferentiableEnv(0), lambda: TaskEnv(0)], use_buffers=False)
    td = env.rand_action(env.reset())
    assert is_lazy(td)
    action = torch.zeros(2, requires_grad=True)
    td[0].set("action", action)
    env.step(td)["next"][0]["reward"].sum().backward()
    assert action.grad is not None
    assert action.grad.abs().min() > 0
    env.close()


def test_actions_with_gradients_are_taken_by_envs_without() -> None:
    """Nothing comes back through a gymnasium env, and nothing is refused."""
    env = SerialEnv(2, "Pendulum-v1")
    td = env.reset()
    td["action"] = torch.zeros(2, 1, requires_grad=True)
    assert not env.step(td)["next", "reward"].requires_grad
    env.close()
