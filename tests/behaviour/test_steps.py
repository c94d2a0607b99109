"""Resets, steps and both together: what goes in, what comes back, and that nothing of it changes afterwards."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from by_hand import assert_equal
from engines import Engine
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from tensordict import NonTensorData, TensorDict, TensorDictBase
from zoo import CountingEnv, DictEnv

from gymbridge.envs import GymEnv, step_mdp
from gymbridge.envs.done_groups import DoneGroups
from gymbridge.specs import Binary, Composite

ZOO = {"CountingEnv": CountingEnv, "DictEnv": DictEnv}


def lengths(index: int) -> CountingEnv:
    """Env 0 ends with its second step, the others later."""
    return CountingEnv([2 + 2 * index])


def dict_lengths(index: int) -> DictEnv:
    return DictEnv([2 + 2 * index])


def first_row(engine: Engine) -> torch.Tensor:
    """A mask ``[*B]`` of the first env."""
    return engine.rows(True, *[False] * (engine.num_envs - 1))


# ---------------------------------------------------------------- what a reset and a step give back


def test_a_first_reset_gives_observation_and_flags_that_are_all_false(contract: Engine) -> None:
    td = contract.make(CountingEnv).reset()
    assert set(td.keys()) == {"observation", "done", "terminated", "truncated"}
    assert td.batch_size == contract.batch_size
    for name in ("done", "terminated", "truncated"):
        assert td[name].shape == (*contract.batch_size, 1)
        assert td[name].dtype is torch.bool
        assert not td[name].any()


def test_reset_passes_its_keyword_arguments_to_every_env(contract: Engine) -> None:
    class Level(CountingEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            observation, info = super().reset(seed=seed)
            observation[0] = (options or {}).get("level", 0)
            return observation, info

    env = contract.make(Level)
    assert env.reset(options={"level": 7})["observation"][..., 0].eq(7).all()
    assert env.reset()["observation"][..., 0].eq(0).all()


def test_reset_gives_back_what_else_it_was_given_but_mask_and_next(contract: Engine) -> None:
    env = contract.make(DictEnv)
    env.reset()
    given = TensorDict({}, contract.batch_size)
    given["level"] = contract.rows(5, 6)
    given["arm", "name"] = contract.rows(1, 2)
    given["_reset"] = torch.ones(contract.batch_size, dtype=torch.bool)
    given["next", "old"] = contract.rows(1, 2)
    before = given.clone()
    td = env.reset(given)
    assert td is not given
    assert_equal(given, before, "what reset was given")
    assert td["level"].equal(given["level"])
    assert td["arm", "name"].equal(given["arm", "name"])
    assert "_reset" not in td.keys()
    assert "next" not in td.keys()
    td["arm", "name"].zero_()
    td["arm", "more"] = contract.rows(3)
    assert set(given["arm"].keys()) == {"name"}


def test_step_returns_the_td_that_it_was_given(contract: Engine) -> None:
    env = contract.make(CountingEnv)
    td = env.rand_action(env.reset())
    td["note"] = contract.rows(1, 2)
    root = td.clone()
    stepped = env.step(td)
    assert stepped is td
    assert_equal(td.exclude("next"), root, "root")
    assert set(td["next"].keys()) == {"observation", "reward", "done", "terminated", "truncated"}
    assert td["next", "reward"].shape == (*contract.batch_size, 1)
    assert step_and_maybe_reset_returns_it_too(env, td)


def step_and_maybe_reset_returns_it_too(env: Any, td: TensorDictBase) -> bool:
    again = td.exclude("next")
    return env.step_and_maybe_reset(again)[0] is again


def test_terminated_and_truncated_come_through_and_done_is_either(contract: Engine) -> None:
    """CountingEnv's episodes end terminated and truncated in turn."""
    env = contract.make(lambda: CountingEnv([1]))
    td = env.reset()
    for episode in range(4):
        stepped, td = env.step_and_maybe_reset(env.rand_action(td))
        following = stepped["next"]
        assert following["terminated"].eq(episode % 2 == 0).all()
        assert following["truncated"].eq(episode % 2 == 1).all()
        assert following["done"].all()
        assert not td["done"].any()


def test_rand_action_and_rand_step(contract: Engine) -> None:
    env = contract.make(DictEnv)
    assert env.full_action_spec.is_in(env.rand_action())
    td = env.reset()
    assert env.rand_action(td) is td
    assert env.rand_step(td) is td
    assert "next" in td.keys()
    torch.manual_seed(3)
    first = env.rand_action()
    torch.manual_seed(3)
    assert_equal(env.rand_action(), first, "the same seed of torch")


# ---------------------------------------------------------------- masks


@pytest.mark.parametrize("form", ["[*B]", "[*B, 1]", "[*B, 2, 2]"])
@pytest.mark.parametrize("call", ["step", "step_and_maybe_reset", "reset"])
def test_masks_of_every_form_pick_the_same_envs(contract: Engine, form: str, call: str) -> None:
    """Trailing dims are OR-ed, and the mask is consumed."""
    env = contract.make(CountingEnv)
    td = env.rand_action(env.reset())
    picked = first_row(contract)
    mask = picked
    if form == "[*B, 1]":
        mask = picked.unsqueeze(-1)
    elif form == "[*B, 2, 2]":
        mask = picked.reshape(*contract.batch_size, 1, 1) & torch.eye(2, dtype=torch.bool)
    if call == "reset":
        out = env.reset(td.set("_reset", mask))
        assert out["observation"][..., 0].eq(1).equal(picked)  # the second episode
        assert "_reset" not in out.keys()
        return
    out = env.step(td.set("_step", mask))
    assert out["next", "observation"][..., 1].eq(1).equal(picked)
    assert "_step" not in out.keys()


def test_a_scalar_mask_is_for_every_env() -> None:
    """In a TensorDict without batch dims, which an env of any batch size may take."""
    groups = DoneGroups(Composite(done=Binary(1, (3, 1), dtype=torch.bool), shape=(3,)))
    assert groups.mask(TensorDict({"_step": torch.tensor(True)}), "_step", torch.Size([3])) is None
    none = groups.mask(TensorDict({"_step": torch.tensor(False)}), "_step", torch.Size([3]))
    assert none is not None
    assert none.tolist() == [False] * 3


def test_a_mask_without_any_env_wakes_nobody(contract: Engine) -> None:
    env = contract.make(CountingEnv)
    td = env.rand_action(env.reset())
    before = td.clone()
    nobody = torch.zeros(contract.batch_size, dtype=torch.bool)
    stepped, root = env.step_and_maybe_reset(td.set("_step", nobody))
    assert_equal(root, before.exclude("action"), "td_")
    assert_equal(stepped["next"].exclude("reward"), before.exclude("action"), "next")
    assert stepped["next", "reward"].eq(0).all()
    assert_equal(env.reset(before.clone().set("_reset", nobody)), before, "reset")
    assert env.step(before.clone())["next", "observation"][..., 1].eq(1).all()  # the first step still


def test_a_reset_of_some_before_the_first_of_all(engine: Engine) -> None:
    """An env that was never reset has nothing to show but what td has."""
    env = engine.make(CountingEnv)
    mask = first_row(engine)
    if mask.all():
        pytest.skip("no other env")
    with pytest.raises(ResetNeeded, match=r"_reset leaves out envs \[.*\], which have never been reset"):
        env.reset(TensorDict({"_reset": mask}, engine.batch_size))
    shown = torch.full((*engine.batch_size, 4), 5.0)
    td = env.reset(TensorDict({"_reset": mask, "observation": shown}, engine.batch_size))
    assert td["observation"][~mask].eq(5).all()
    assert td["observation"][mask][..., 2].eq(-1).all()


def test_an_env_that_is_not_picked_has_no_reward_and_its_own_observation(batch: Engine) -> None:
    env = batch.make(CountingEnv)
    td = env.rand_action(env.reset())
    td["observation"] = torch.full_like(td["observation"], 5.0)
    td["done"] = torch.ones_like(td["done"])
    td["_step"] = first_row(batch)
    following = env.step(td)["next"]
    others = ~first_row(batch)
    assert following["observation"][others].eq(5).all()
    assert following["done"][others].all()
    assert following["reward"][others].eq(0).all()
    assert not following["done"][0].any()


def test_an_env_that_is_not_picked_is_neither_stepped_nor_reset_though_it_is_done(contract: Engine) -> None:
    env = contract.make(lambda: CountingEnv([1]))
    td = env.step(env.rand_action(env.reset()))  # all are done
    root = env.step_mdp(td)
    env.reset(root.clone().set("_reset", first_row(contract)))
    td = env.rand_action(root.clone()).set("_step", first_row(contract))
    before = td.clone()
    stepped, after = env.step_and_maybe_reset(td)
    others = ~first_row(contract)
    assert_equal(after[others], before.exclude("action", "_step")[others], "td_ of the others")
    assert stepped["next", "done"].all()
    assert after["observation"][first_row(contract)][..., 0].eq(2).all()  # its third episode


def test_the_action_of_an_env_that_is_not_stepped_may_be_anything(engine: Engine) -> None:
    """One-hot actions too, of which no choice is made."""
    for options in ({}, {"categorical_action_encoding": False}):
        env = engine.make(CountingEnv, **options)
        td = env.rand_action(env.reset())
        others = ~first_row(engine)
        td["action"] = td["action"].masked_fill(
            others.reshape(others.shape + (1,) * (td["action"].ndim - others.ndim)), True if options else 1000
        )
        stepped = env.step(td.set("_step", first_row(engine)))
        assert stepped["next", "reward"].ne(0).reshape(engine.batch_size).equal(first_row(engine))


# ---------------------------------------------------------------- step_and_maybe_reset


@pytest.mark.parametrize("maker", [lengths, dict_lengths], ids=ZOO)
def test_step_and_maybe_reset_is_a_step_then_a_reset_of_those_that_ended(contract: Engine, maker: Any) -> None:
    """With keys of the user's at the root, among the env's groups and under ``next``."""
    one, other = contract.make(maker, indexed=True), contract.make(maker, indexed=True)
    for env in (one, other):
        env.set_seed(1)
    root, other_root = one.reset(), other.reset()
    torch.manual_seed(0)
    for number in range(12):
        td = one.rand_action(root)
        td["step"] = contract.rows(number)
        td["memory", "h"] = contract.rows(number, -number)
        td["next", "state", "h"] = contract.rows(number + 0.5)
        td["next", "observation_embedding"] = contract.rows(number + 0.25)
        if maker is dict_lengths:
            td["arm", "note"] = contract.rows(number)
            td["action", "log_prob"] = contract.rows(0.5)
            td["next", "arm", "plan"] = contract.rows(number)
        twin = other_root.copy().update(td.clone())
        stepped, root = one.step_and_maybe_reset(td)
        twin = other.step(twin)
        other_root = other.step_mdp(twin)
        done = twin["next", "done"]
        if done.any():
            other_root = other.reset(other_root.set("_reset", done))
        assert_equal(stepped, twin, f"td of step {number}")
        assert_equal(root, other_root, f"td_ of step {number}")
        assert root["step"].eq(number).all()
        assert root["state", "h"].eq(number + 0.5).all()
        assert "action" not in root.keys() or set(root["action"].keys()) == {"log_prob"}
        assert "next" not in root.keys()
        assert "reward" not in root.keys()


def test_next_has_the_true_final_observation_and_td_the_first_one(contract: Engine) -> None:
    env = contract.make(lengths, indexed=True)
    td = env.reset()
    for _ in range(2):
        stepped, td = env.step_and_maybe_reset(env.rand_action(td))
    ended = first_row(contract)
    assert stepped["next", "done"][..., 0].equal(ended)
    assert stepped["next", "observation"][..., 1].eq(2).all()
    assert stepped["next", "observation"][..., 0].eq(0).all()
    assert td["observation"][..., 1].eq(0).equal(ended)
    assert td["observation"][..., 0].eq(1).equal(ended)
    assert not td["done"].any()


def test_what_a_policy_wrote_under_next_stays_unless_the_env_has_it(contract: Engine) -> None:
    """The env's own outputs win over what was preset."""
    env = contract.make(CountingEnv)
    td = env.rand_action(env.reset())
    td["next", "hidden"] = contract.rows(1, 2)
    td["next", "observation"] = torch.full((*contract.batch_size, 4), -7.0)
    td["next", "reward"] = torch.full((*contract.batch_size, 1), -7.0)
    stepped, root = env.step_and_maybe_reset(td)
    assert stepped["next", "hidden"].equal(contract.rows(1, 2))
    assert root["hidden"].equal(contract.rows(1, 2))
    assert stepped["next", "observation"].ne(-7).all()
    assert stepped["next", "reward"].ne(-7).all()


def test_state_under_next_wins_over_the_same_key_of_the_root(contract: Engine) -> None:
    env = contract.make(CountingEnv)
    td = env.rand_action(env.reset())
    td["hidden"], td["next", "hidden"] = contract.rows(1), contract.rows(2)
    _, root = env.step_and_maybe_reset(td)
    assert root["hidden"].equal(contract.rows(2))


def test_leaves_that_are_no_tensors_pass_through(contract: Engine) -> None:
    env = contract.make(DictEnv)
    td = env.rand_action(env.reset())
    td["text"] = NonTensorData("a", batch_size=contract.batch_size)
    td["arm", "text"] = NonTensorData("b", batch_size=contract.batch_size)
    td["next", "later"] = NonTensorData("c", batch_size=contract.batch_size)
    stepped, root = env.step_and_maybe_reset(td.clone())
    again = env.step_mdp(stepped)
    for got in (root, again, env.reset(again.clone())):
        for key, told in (("text", "a"), (("arm", "text"), "b"), ("later", "c")):
            texts = got[key]  # of a lazy stack one a row
            assert {texts} == {told} if isinstance(texts, str) else {*texts} == {told}


def test_the_users_groups_are_not_shared_between_steps(contract: Engine) -> None:
    """Recurrent state that is kept in a group: writing the next one leaves the earlier steps as they were."""
    env = contract.make(DictEnv)
    for advance in (env.step_and_maybe_reset, lambda td: (env.step(td), env.step_mdp(td))):
        td = env.rand_action(env.reset())
        td["memory", "h"] = contract.rows(1)
        td["arm", "note"] = contract.rows(1)
        td["next", "state", "h"] = contract.rows(1)
        stepped, root = advance(td)
        before = stepped.clone()
        for group in ("memory", "arm", "state"):
            root[group, "new"] = contract.rows(2)
            root[group, "h"] = contract.rows(2)
        root["arm", "angle"] = torch.zeros_like(root["arm", "angle"])
        assert_equal(stepped, before, "td of the step before")


def test_step_mdp_of_the_env_is_the_functions(contract: Engine) -> None:
    env = contract.make(DictEnv)
    td = env.rand_action(env.reset())
    td["note"] = contract.rows(1)
    td["next", "hidden"] = contract.rows(1)
    td = env.step(td)
    expected = step_mdp(td, reward_keys=env.reward_keys, done_keys=env.done_keys, action_keys=env.action_keys)
    before = td.clone()
    assert_equal(env.step_mdp(td), expected, "td_")
    assert_equal(td, before, "td")


# ---------------------------------------------------------------- nothing aliases


@pytest.mark.parametrize("maker", ZOO.values(), ids=ZOO)
def test_what_was_returned_does_not_change_later(engine: Engine, maker: Any) -> None:
    env = engine.make(maker)
    returned: list[TensorDictBase] = [env.reset()]
    kept = [returned[0].clone()]

    def keep(*tds: TensorDictBase) -> None:
        returned.extend(tds)
        kept.extend(td.clone() for td in tds)

    root = returned[0].clone()
    for number in range(8):
        stepped, root = env.step_and_maybe_reset(env.rand_action(root.copy()))
        keep(stepped, root)
        if number % 3 == 2:
            mask = torch.ones(engine.batch_size, dtype=torch.bool)
            keep(env.reset(TensorDict({"_reset": mask}, engine.batch_size)))
            root = returned[-1]
        nobody = torch.zeros(engine.batch_size, dtype=torch.bool)
        keep(env.step(env.rand_action(root.copy()).set("_step", nobody)))
    for index, (was, now) in enumerate(zip(kept, returned, strict=True)):
        assert_equal(now, was, f"returned {index}")


@pytest.mark.parametrize("maker", ZOO.values(), ids=ZOO)
def test_next_root_and_next_root_share_no_memory(engine: Engine, maker: Any) -> None:
    """A change in place of one of them is seen in no other; nor does it reach the env."""
    env, twin = engine.make(maker), engine.make(maker)
    for each in (env, twin):
        each.set_seed(0)
    root, other = env.reset(), twin.reset()
    for _ in range(5):
        action = env.rand_action()
        stepped, root = env.step_and_maybe_reset(root.update(action.clone()))
        other_stepped, other = twin.step_and_maybe_reset(other.update(action.clone()))
        before = stepped.clone()
        root.apply_(lambda tensor: tensor.zero_())
        assert_equal(stepped, before, "td after a change of td_")
        stepped["next"].apply_(lambda tensor: tensor.zero_())
        assert_equal(stepped.exclude("next"), before.exclude("next"), "root after a change of next")
        root = other.clone()
        assert_equal(before, other_stepped, "the env after changes of what it gave")


def test_an_env_that_changes_its_action_changes_nothing_of_the_callers(engine: Engine) -> None:
    class Greedy(gym.Env[Any, Any]):
        """Keeps every action, and writes into it, at once and later."""

        observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        action_space = spaces.Dict(push=spaces.Box(-1, 1, (2,), np.float32))

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            self.kept: list[np.ndarray] = []
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            self.kept.append(action["push"])
            given = action["push"].copy()
            for array in self.kept:
                array[:] = 99
            return given, 0.0, False, False, {}

    env = engine.make(Greedy)
    td = env.reset()
    for _ in range(3):
        td = env.rand_action(td)
        before = td["action", "push"].clone()
        stepped, td = env.step_and_maybe_reset(td)
        assert stepped["action", "push"].equal(before)
        assert stepped["next", "observation"].equal(before)


def test_an_env_that_keeps_its_observation_changes_nothing_of_what_it_gave(engine: Engine) -> None:
    class InPlace(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.array = np.zeros(4, np.float32)

        def _observation(self, action: float) -> np.ndarray:
            self.array[:] = super()._observation(action)
            return self.array

    env = engine.make(InPlace)
    first = env.reset()
    before = first.clone()
    td, _ = env.step_and_maybe_reset(env.rand_action(first.copy()))
    stepped = td.clone()
    env.step(env.rand_action(first.copy()))
    assert_equal(first, before, "first")
    assert_equal(td, stepped, "td")


def test_an_action_that_requires_grad_is_taken(engine: Engine) -> None:
    env = engine.make(lambda: CountingEnv(continuous=True))
    td = env.reset()
    td["action"] = torch.zeros((*engine.batch_size, 2), requires_grad=True)
    assert env.step(td)["next", "reward"].eq(1).all()
    assert td["action"].requires_grad


# ---------------------------------------------------------------- batches made of one


def test_a_batch_of_gym_envs_gives_what_each_of_them_gives(batch: Engine) -> None:
    together = batch.make(lengths, indexed=True)
    alone = [GymEnv(lambda index=index: lengths(index)) for index in range(batch.num_envs)]
    together.set_seed(4)
    for index, env in enumerate(alone):
        env.set_seed(4 + index)
    td = together.reset()
    rows = [env.reset() for env in alone]
    for _ in range(10):
        together.rand_action(td)
        stepped, td = together.step_and_maybe_reset(td)
        both = [
            env.step_and_maybe_reset(row.set("action", stepped["action"][index].clone()))
            for index, (env, row) in enumerate(zip(alone, rows, strict=True))
        ]
        rows = [row for _, row in both]
        assert_equal(stepped, torch.stack([row for row, _ in both]), "td")
        assert_equal(td, torch.stack(rows), "td_")
