"""A policy given as ``policy_proof``: what it writes has a place from the first reset on."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from by_hand import assert_equal, is_lazy
from tensordict import TensorDict, TensorDictBase
from tensordict_oracle import leaves_of
from tensordict_zoo import CountingTensorDictEnv, TaskEnv
from zoo import CountingEnv

from gymbridge.envs import EnvBase


def with_zero_actions(env: EnvBase) -> Callable[[TensorDictBase], TensorDictBase]:
    """A policy whose actions are zero, that counts in a hidden state and writes logits that no spec knows."""

    def policy(td: TensorDictBase) -> TensorDictBase:
        td.update(env.full_action_spec.zero())
        for part in td.unbind(0) if is_lazy(td) else [td]:
            hidden = part.get("hidden", None)
            part["logits"] = torch.ones(*part.batch_size, 2)
            part["next", "hidden"] = torch.ones(*part.batch_size, 3) if hidden is None else hidden + 1
        return td

    return policy


FNS: dict[str, Any] = {
    "gymnasium": lambda: CountingEnv([3]),
    "own": CountingTensorDictEnv,
    "unlike": [lambda: TaskEnv(0), lambda: TaskEnv(1)],
}


@pytest.fixture(params=FNS)
def fns(request: pytest.FixtureRequest) -> Any:
    """Gymnasium envs, TensorDict envs, unlike ones."""
    return FNS[request.param]


def proven(batched_env: Any, fns: Any) -> tuple[Any, Any]:
    """A batch and its policy."""
    policy = with_zero_actions(batched_env(2, fns))
    return batched_env(2, fns, policy_proof=policy), policy


def test_the_first_reset_has_the_states_as_zeros(batched_env: Any, fns: Any) -> None:
    env, _ = proven(batched_env, fns)
    td = env.reset()
    assert td["hidden"].equal(torch.zeros(2, 3))
    assert "logits" not in td.keys()
    given = env.reset(td.set("hidden", torch.ones(2, 3)))
    assert given["hidden"].equal(torch.ones(2, 3))
    env.close()


@pytest.mark.parametrize("how", [{"break_when_any_done": False}, {"break_when_all_done": True}, {}], ids=str)
def test_a_rollout_is_dense_where_it_would_not_be_without(batched_env: Any, how: dict[str, bool]) -> None:
    """Without, the first step has no hidden state and the second one has."""
    policy = with_zero_actions(batched_env(2, FNS["gymnasium"]))
    with pytest.raises(ValueError, match="return_contiguous=False"):
        batched_env(2, FNS["gymnasium"]).rollout(3, policy)
    env = batched_env(2, FNS["gymnasium"], policy_proof=policy)
    td = env.rollout(3, policy, **how)
    assert type(td) is TensorDict
    assert td["hidden"][..., 0].tolist() == [[0, 1, 2]] * 2
    assert td["next", "hidden"][..., 0].tolist() == [[1, 2, 3]] * 2
    env.close()


def test_a_rollout_has_the_keys_of_the_fake(batched_env: Any, fns: Any) -> None:
    env, policy = proven(batched_env, fns)
    td = env.rollout(4, policy, break_when_any_done=False)
    fake = env.fake_tensordict()
    for row in range(2):
        assert {*leaves_of(td[row])} == {*leaves_of(fake[row])}
        assert fake[row]["logits"].shape == (2,)
        assert fake[row]["next", "hidden"].shape == (3,)
    env.close()


def test_a_policy_that_draws_changes_no_random_number_of_the_callers(batched_env: Any) -> None:
    def draws(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", torch.randint(3, td.batch_size))

    plain = batched_env(2, CountingEnv)
    env = batched_env(2, CountingEnv, policy_proof=draws)
    rollouts = []
    for each in (plain, env):
        each.set_seed(0)
        rollouts.append(each.rollout(6, draws, break_when_any_done=False))
        each.close()
    assert_equal(rollouts[1], rollouts[0])


def test_it_is_asked_again_when_other_envs_start(batched_env: Any) -> None:
    def policy(td: TensorDictBase) -> TensorDictBase:
        td["action"] = torch.zeros_like(td["x"])
        td["next", "hidden"] = torch.zeros_like(td["x"])
        return td

    env = batched_env(1, TaskEnv, create_env_kwargs={"index": 0}, policy_proof=policy)
    assert env.reset()["hidden"].shape == (1, 1)
    env.close()
    env.update_kwargs({"index": 2})
    assert env.reset()["hidden"].shape == (1, 3)
    env.close()


def test_it_is_pickled_whatever_it_is(batched_env: Any) -> None:
    def policy(td: TensorDictBase) -> TensorDictBase:
        td["action"] = torch.zeros(td.batch_size, dtype=torch.int64)
        return td.set("next", TensorDict({"hidden": torch.zeros(*td.batch_size, 3)}, td.batch_size))

    env = pickle.loads(pickle.dumps(batched_env(2, CountingEnv, policy_proof=policy)))
    assert env.reset()["hidden"].shape == (2, 3)
    env.close()


@pytest.mark.parametrize(
    ("policy", "message"),
    [(7, "policy_proof: got 7, expected a policy"), (lambda td: td["observation"], "policy_proof: got Tensor")],
    ids=["a number", "of tensors"],
)
def test_what_is_no_policy_is_named(batched_env: Any, policy: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        batched_env(2, CountingEnv, policy_proof=policy).reset()
