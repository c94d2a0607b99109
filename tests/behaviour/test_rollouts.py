"""``rollout``: equal to a loop by hand, and each argument has its effect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from by_hand import assert_equal
from engines import Engine
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from zoo import CountingEnv, DictEnv

from gymbridge.envs import EnvBase


def lengths(index: int) -> CountingEnv:
    """Env 0 ends with its second step, the next with its fourth, and so on."""
    return CountingEnv([2 + 2 * index])


def make(contract: Engine, maker: Any = lengths) -> Any:
    env = contract.make(maker, indexed=True)
    env.set_seed(0)
    return env


def ones(td: TensorDictBase) -> TensorDictBase:
    """A policy: action 1."""
    return td.set("action", torch.ones(td.batch_size, dtype=torch.int64))


def by_hand(env: Any, steps: int, policy: Any = ones) -> TensorDictBase:
    root, made = env.reset(), []
    for _ in range(steps):
        td, root = env.step_and_maybe_reset(policy(root))
        made.append(td)
    return torch.stack(made, env.ndim)


@pytest.mark.parametrize("maker", [lengths, lambda index: DictEnv([2 + index])], ids=["CountingEnv", "DictEnv"])
def test_without_a_break_it_is_a_loop_by_hand(contract: Engine, maker: Any) -> None:
    one, other = make(contract, maker), make(contract, maker)
    torch.manual_seed(3)
    got = one.rollout(9, break_when_any_done=False)
    torch.manual_seed(3)
    assert_equal(got, by_hand(other, 9, other.rand_action))
    assert got.batch_size == (*contract.batch_size, 9)


def test_the_last_dim_is_time(contract: Engine) -> None:
    td = make(contract).rollout(3, break_when_any_done=False)
    assert td.names == [*[None] * len(contract.batch_size), "time"]


def test_it_stops_when_any_env_is_done(contract: Engine) -> None:
    for told in ({}, {"break_when_any_done": True}, {"break_when_all_done": False}):
        td = make(contract).rollout(20, ones, **told)
        assert td.shape[-1] == 2
        assert td["next", "done"][..., -1, :].any()
        assert not td["next", "done"][..., 0, :].any()


def test_it_goes_on_when_it_is_not_to_break(contract: Engine) -> None:
    td = make(contract).rollout(9, ones, break_when_any_done=False)
    assert td.shape[-1] == 9
    assert not td["done"].any()  # what was done has been reset


def test_max_steps_bounds_it(contract: Engine) -> None:
    assert make(contract).rollout(1, ones).shape[-1] == 1
    assert make(contract).rollout(3, ones, break_when_all_done=True).shape[-1] == min(3, 2 * contract.num_envs)
    with pytest.raises(ValueError, match="max_steps: got 0, expected at least 1"):
        make(contract).rollout(0)


def test_it_stops_when_all_envs_are_done(contract: Engine) -> None:
    """An env that is done before waits: it is not stepped, and its last step is repeated."""
    env = make(contract)
    td = env.rollout(50, ones, break_when_all_done=True)
    longest = 2 * contract.num_envs
    assert td.shape[-1] == longest
    assert td["next", "done"][..., -1, :].all()
    rows = td.reshape(contract.num_envs, longest)
    for row in range(contract.num_envs):
        own = 2 + 2 * row
        assert rows["next", "observation"][row, :, 1].tolist() == [min(t + 1, own) for t in range(longest)]
        for t in range(own, longest):
            assert_equal(rows[row, t], rows[row, own - 1], f"env {row}, step {t}")
    assert "_step" not in td.keys()
    assert env.reset()["observation"][..., 0].eq(1).all()  # nobody was reset on the way


def test_to_break_both_ways_is_refused(contract: Engine) -> None:
    with pytest.raises(ValueError, match="break_when_any_done and break_when_all_done: got True for both"):
        make(contract).rollout(3, break_when_any_done=True, break_when_all_done=True)


# ---------------------------------------------------------------- where it starts


def test_the_first_reset_is_given_the_tensordict(contract: Engine) -> None:
    given = TensorDict({"note": contract.rows(1, 2)}, contract.batch_size)
    td = make(contract).rollout(3, ones, tensordict=given, break_when_any_done=False)
    assert set(given.keys()) == {"note"}
    for t in range(3):
        assert td["note"][..., t].equal(given["note"])


def test_without_auto_reset_it_goes_on_where_another_ended(contract: Engine) -> None:
    """In two parts it gives what it gives in one; envs that are done are reset first."""
    one, other = make(contract), make(contract)
    whole = one.rollout(9, ones, break_when_any_done=False)
    first = other.rollout(4, ones, break_when_any_done=False)
    last = first[..., -1]
    before = last.clone()
    start = other.step_mdp(last)
    second = other.rollout(5, ones, auto_reset=False, tensordict=start, break_when_any_done=False)
    assert_equal(torch.cat([first, second], -1), whole)
    assert_equal(last, before, "the last step")


def test_without_auto_reset_the_tensordict_stays_as_it_was(contract: Engine) -> None:
    env = make(contract)
    start = env.reset()
    start["group", "x"] = contract.rows(1)
    before = start.clone()

    def policy(td: TensorDictBase) -> TensorDictBase:
        td["group", "y"] = torch.zeros(td.batch_size)
        return ones(td)

    env.rollout(2, policy, auto_reset=False, tensordict=start, break_when_any_done=False)
    assert_equal(start, before)


def test_without_auto_reset_it_needs_where_to_go_on(contract: Engine) -> None:
    with pytest.raises(ValueError, match="tensordict: got None with auto_reset=False"):
        make(contract).rollout(3, auto_reset=False)


# ---------------------------------------------------------------- policies


def test_a_policy_may_return_another_tensordict(contract: Engine) -> None:
    def policy(td: TensorDictBase) -> TensorDictBase:
        return TensorDict({"action": torch.full(td.batch_size, 2), "value": torch.ones(td.batch_size)}, td.batch_size)

    td = make(contract).rollout(3, policy, break_when_any_done=False)
    assert td["action"].eq(2).all()
    assert td["value"].eq(1).all()
    assert td["next", "observation"][..., 2].eq(2).all()


class Chooses(torch.nn.Module):
    """Observations to actions."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(1))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return (observation[..., 1] + 1).long() % 3


def test_a_module_of_tensors_is_called_with_the_observations(contract: Engine) -> None:
    td = make(contract).rollout(6, Chooses(), break_when_any_done=False)
    assert td["action"].equal((td["observation"][..., 1] + 1).long() % 3)


def test_a_module_of_several_observations_gets_them_in_the_order_of_their_keys(contract: Engine) -> None:
    env = make(contract, lambda index: DictEnv())
    seen: list[int] = []

    class Several(torch.nn.Module):
        def forward(self, *observations: torch.Tensor) -> Any:
            seen.append(len(observations))
            keys = [*env.full_observation_spec.keys(True, True)]
            count = observations[keys.index("count")]
            return count % 3, torch.zeros((*count.shape, 2))

    td = env.rollout(4, Several(), break_when_any_done=False)
    assert td["action", "go"].equal(td["count"] % 3)
    assert seen == [6] * 4


def test_a_tensordict_module_is_called_with_the_tensordict(contract: Engine) -> None:
    module = TensorDictModule(Chooses(), in_keys=["observation"], out_keys=["action"])
    td = make(contract).rollout(6, module, break_when_any_done=False)
    assert td["action"].equal((td["observation"][..., 1] + 1).long() % 3)


def test_a_trusted_module_is_called_with_the_tensordict(contract: Engine) -> None:
    class OnTensorDicts(torch.nn.Module):
        def forward(self, what_it_is_given):
            return ones(what_it_is_given)

    td = make(contract).rollout(2, OnTensorDicts(), trust_policy=True)
    assert td["action"].eq(1).all()
    with pytest.raises((AttributeError, TypeError, IndexError)):
        make(contract).rollout(2, OnTensorDicts())


def test_as_many_outputs_as_actions_are_wanted(contract: Engine) -> None:
    class Two(torch.nn.Module):
        def forward(self, observation: torch.Tensor) -> Any:
            return observation, observation

    with pytest.raises(ValueError, match=r"policy: got 2 outputs, expected 1"):
        make(contract).rollout(2, Two())


def test_recurrent_state_goes_from_step_to_step(contract: Engine) -> None:
    """What the policy writes under ``next`` is what it reads in the next step; a reset env keeps it."""

    def policy(td: TensorDictBase) -> TensorDictBase:
        hidden = td.get("hidden", None)
        hidden = torch.zeros(td.batch_size) if hidden is None else hidden
        td["hidden"] = hidden
        td["next", "hidden"] = hidden + 1
        return ones(td)

    for told in ({"break_when_any_done": False}, {"break_when_all_done": True}, {}):
        td = make(contract).rollout(6, policy, **told)
        rows = td.reshape(contract.num_envs, -1)
        steps = rows["hidden"].shape[-1]
        assert rows["hidden"][-1].tolist() == [float(t) for t in range(steps)]
        assert rows["next", "hidden"].equal(rows["hidden"] + 1)


# ---------------------------------------------------------------- what it gives


def test_it_is_dense_unless_a_lazy_stack_is_wanted(contract: Engine) -> None:
    dense = make(contract, lambda index: DictEnv()).rollout(4, break_when_any_done=False)
    env = make(contract, lambda index: DictEnv())
    lazy = env.rollout(4, break_when_any_done=False, return_contiguous=False)
    assert type(dense) is TensorDict
    assert isinstance(lazy, LazyStackedTensorDict)
    assert lazy.stack_dim == len(contract.batch_size)
    assert lazy.names == dense.names
    assert_equal(lazy.contiguous(), dense)


def test_a_policy_whose_keys_come_and_go_needs_a_lazy_stack(contract: Engine) -> None:
    """The error says which key is missing, and what to do."""
    steps = iter(range(100))

    def policy(td: TensorDictBase) -> TensorDictBase:
        if next(steps):
            td["later"] = torch.ones(td.batch_size)
        return ones(td)

    with pytest.raises(ValueError, match=r"step 1 .*later.*return_contiguous=False"):
        make(contract).rollout(3, policy, break_when_any_done=False)
    steps = iter(range(100))
    lazy = make(contract).rollout(3, policy, break_when_any_done=False, return_contiguous=False)
    assert "later" not in lazy[..., 0].keys()
    assert lazy[..., 1]["later"].eq(1).all()


def test_set_truncated_marks_the_last_step(contract: Engine) -> None:
    td = make(contract).rollout(3, ones, break_when_any_done=False, set_truncated=True)
    for key in ("truncated", "done"):
        assert td["next", key][..., -1, :].all()
        assert not td["next", key][..., 0, :].any()
    plain = make(contract).rollout(3, ones, break_when_any_done=False)
    assert td["next", "terminated"].equal(plain["next", "terminated"])


@pytest.mark.parametrize("contiguous", [True, False])
def test_out_takes_the_result(contract: Engine, contiguous: bool) -> None:
    expected = make(contract).rollout(4, ones, break_when_any_done=False)
    out = expected.clone().zero_()
    observation = out["next", "observation"]
    got = make(contract).rollout(4, ones, break_when_any_done=False, out=out, return_contiguous=contiguous)
    assert got is out
    assert_equal(got, expected)
    assert got["next", "observation"] is observation
    assert got.names[-1] == "time"


def test_storing_device_is_where_the_result_is(contract: Engine) -> None:
    td = make(contract).rollout(3, ones, break_when_any_done=False, storing_device="cpu")
    assert td.device == torch.device("cpu")
    meta = make(contract).rollout(3, ones, break_when_any_done=False, storing_device="meta")
    assert meta.device == torch.device("meta")
    assert all(leaf.device.type == "meta" for leaf in meta.values(True, True))
    assert make(contract).rollout(2, ones).device is None


def test_auto_cast_takes_td_to_the_policys_device_and_back(engine: Engine) -> None:
    """Seen without a second device by TensorDicts that have none, and policies that have one."""
    seen: list[Any] = []

    class Looks(torch.nn.Module):
        in_keys, out_keys = ["observation"], ["action"]

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, td: TensorDictBase) -> TensorDictBase:
            seen.append(td.device)
            return ones(td)

    env = engine.make(lengths, indexed=True)
    cast = env.rollout(2, Looks(), auto_cast_to_device=True)
    assert seen == [torch.device("cpu")] * 2
    assert cast.device is None
    seen.clear()
    env.rollout(2, Looks())
    assert seen == [None, None]


@pytest.mark.parametrize(
    "told", [{}, {"break_when_any_done": False}, {"break_when_all_done": True}], ids=["any", "no", "all"]
)
def test_callback_sees_each_step_but_the_last(contract: Engine, told: dict[str, bool]) -> None:
    """With the env and the step's TensorDict, ``next`` in it; what it writes there goes nowhere."""
    env = make(contract)
    seen: list[float] = []

    def callback(got: EnvBase, td: TensorDictBase) -> None:
        assert got is env
        seen.append(td["next", "observation"][..., 1].max().item())
        td["seen"] = torch.ones(td.batch_size)

    env.rollout(1, ones, callback, **told)
    assert seen == []
    td = env.rollout(2 * contract.num_envs, ones, callback, **told)
    steps = 2 if not told else 2 * contract.num_envs
    assert seen == [float(t) for t in range(1, steps)]
    assert "seen" not in td.keys()


def test_leaves_that_are_no_tensors_are_stacked_too(contract: Engine) -> None:
    def policy(td: TensorDictBase) -> TensorDictBase:
        td["text"] = NonTensorData("a", batch_size=td.batch_size)
        return ones(td)

    td = make(contract).rollout(3, policy, break_when_any_done=False)
    assert td.get("text").tolist() == np.full((*contract.batch_size, 3), "a").tolist()
