"""Masks over TensorDict envs: their forms, that they are consumed, and that rows which they leave out sleep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from by_hand import assert_equal
from tensordict import TensorDict, TensorDictBase
from tensordict_engines import TensorDictEngine
from tensordict_zoo import TENSORDICT_ENVS, BatchedEnv, CountingTensorDictEnv, EpisodicEnv, InfoEnv, OnlyGroupsEnv

from gymbridge.envs import EnvBase
from gymbridge.specs import Bounded, Composite, Unbounded

Form = Callable[[torch.Tensor], torch.Tensor]

FORMS: dict[str, Form] = {
    "[*B]": lambda picked: picked,
    "[*B, 1]": lambda picked: picked.unsqueeze(-1),
}
CALLS = ("step", "step_and_maybe_reset", "reset")


def called(env: EnvBase, call: str, td: TensorDictBase) -> tuple[TensorDictBase, ...]:
    """All that the call returns."""
    made = getattr(env, call)(td)
    return made if isinstance(made, tuple) else (made,)


def masks_in(*tensordicts: TensorDictBase) -> list[Any]:
    return [key for td in tensordicts for key in td.keys(True, True) if {"_step", "_reset"} & {*key, key}]


def some(env: EnvBase) -> torch.Tensor:
    """A mask ``[*B]`` of each second env."""
    return (torch.arange(env.numel()) % 2 == 0).reshape(env.batch_size)


@pytest.mark.every(3, "td_engine", "kind", "call", "form")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["counting", "batched"])
def test_every_form_picks_the_same_envs_and_is_consumed(
    td_engine: TensorDictEngine, kind: str, call: str, form: str
) -> None:
    """Equal to the plain form, on an env that has seen the same."""
    one, other = td_engine.make(TENSORDICT_ENVS[kind]), td_engine.make(TENSORDICT_ENVS[kind])
    name = "_reset" if call == "reset" else "_step"
    results = []
    for env, shape in ((one, FORMS[form]), (other, FORMS["[*B]"])):
        env.set_seed(3)
        td = env.rand_action(env.reset())
        td[name] = shape(some(env))
        results.append(called(env, call, td))
    for got, expected in zip(*results, strict=True):
        assert_equal(got, expected)
        assert masks_in(got) == []


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["groups and root", "groups alone"])
def test_masks_of_groups_are_consumed_and_a_tensordict_given_to_reset_stays(
    td_engine: TensorDictEngine, kind: str, call: str
) -> None:
    env = td_engine.make(TENSORDICT_ENVS[kind])
    td = env.rand_action(env.reset())
    name = "_reset" if call == "reset" else "_step"
    for key in env.reset_keys:
        group = key[:-1] if isinstance(key, tuple) else ()
        mask = torch.zeros(env.full_done_spec[(*group, "done")].shape, dtype=torch.bool)
        mask.view(-1)[0] = True
        td[(*group, name)] = mask
    before = td.clone()
    made = called(env, call, td)
    assert masks_in(*made) == []
    if call == "reset":
        assert made[0] is not td
        assert_equal(td, before)
    else:
        assert made[0] is td


@pytest.mark.parametrize("name", ["_reset", "_step"])
def test_masks_of_some_groups_are_refused_by_name_before_any_env_is_asked(
    td_engine: TensorDictEngine, name: str
) -> None:
    for kind, group in (("groups and root", "agents"), ("groups alone", "agents"), ("groups alone", "referee")):
        env = td_engine.make(TENSORDICT_ENVS[kind])
        td = env.rand_action(env.reset())
        td[group, name] = torch.ones(env.full_done_spec[group, "done"].shape, dtype=torch.bool)
        before = td.clone()
        with pytest.raises(ValueError, match=rf"{name}: got masks at .*{group}.* and none at"):
            _ = env.reset(td) if name == "_reset" else env.step_and_maybe_reset(td)
        assert_equal(td, before)
        env.close()


@pytest.mark.parametrize("name", ["_reset", "_step"])
def test_masks_of_another_shape_or_dtype_are_refused_by_name(td_engine: TensorDictEngine, name: str) -> None:
    env = td_engine.make(BatchedEnv)
    td = env.rand_action(env.reset())
    call = env.reset if name == "_reset" else env.step
    with pytest.raises(TypeError, match=rf"{name}: got torch.int64, expected a bool tensor"):
        call(td.clone().set(name, torch.ones(env.batch_size, dtype=torch.int64)))
    groups = td_engine.make(OnlyGroupsEnv)
    td = groups.rand_action(groups.reset())
    for group in ("agents", "referee"):
        td[group, name] = torch.ones((*groups.batch_size, 1), dtype=torch.float32)
    with pytest.raises(TypeError, match=rf"agents.{name}: got torch.float32, expected a bool tensor"):
        _ = groups.reset(td) if name == "_reset" else groups.step(td)


@pytest.mark.parametrize("kind", ["counting", "nested", "strings", "dtypes", "groups and root", "batched", "tasks"])
def test_no_mask_is_all_and_a_mask_of_none_wakes_nobody(td_engine: TensorDictEngine, kind: str) -> None:
    env = td_engine.make(TENSORDICT_ENVS[kind])
    td = env.rand_action(env.reset())
    before = td.clone()
    nobody = torch.zeros(env.batch_size, dtype=torch.bool)
    stepped, root = env.step_and_maybe_reset(td.set("_step", nobody))
    assert_equal(root, before.exclude(*env.action_keys))
    rewards = [key for key in env.reward_keys if key[0] != "info"]
    assert_equal(stepped["next"].exclude(*rewards), before.exclude(*env.action_keys))
    for row in stepped.unbind(0) if td_engine.batched else [stepped]:
        assert all(row["next"][key].eq(0).all() for key in rewards)
    assert_equal(env.reset(before.clone().set("_reset", nobody)), before)
    env.close()


def test_sleeping_rows_have_tds_own_values_else_the_envs_latest(td_three: TensorDictEngine) -> None:
    env = td_three.make(CountingTensorDictEnv)
    env.reset()
    mask = torch.tensor([True, False, True])
    made_up = {"count": torch.full((3, 1), 50), "done": torch.ones((3, 1), dtype=torch.bool)}
    td = TensorDict({**made_up, "_step": mask}, [3])
    following = env.step(env.rand_action(td))["next"]
    assert following["count"].tolist() == [[1], [50], [1]]
    assert following["done"].tolist() == [[False], [True], [False]]
    assert env.rand_step(TensorDict({}, [3]))["next", "done"].tolist() == [[False], [True], [False]]
    bare = env.rand_step(TensorDict({"_step": torch.tensor([True, False, False])}, [3]))["next"]
    assert bare["count"].tolist() == [[3], [1], [2]]
    assert bare["done"].tolist() == [[True], [True], [False]]
    env.close()


def test_sleeping_rows_gain_nothing(td_three: TensorDictEngine) -> None:
    """Rewards of every group and infos of every depth are zero in ``next``."""
    for maker in (InfoEnv, TENSORDICT_ENVS["groups and root"], TENSORDICT_ENVS["several keys"]):
        env = td_three.make(maker)
        td = env.step_mdp(env.rand_step(env.reset()))
        td = env.rand_action(td).set("_step", torch.tensor([False, True, False]))
        following = env.step(td)["next"]
        gained = [following[key] for key in env.reward_keys]
        if "info" in following.keys():
            gained += [*following["info"].values(True, True)]
            assert following["info", "t"][1] == 102
        for leaf in gained:
            assert leaf[[0, 2]].eq(0).all()
        env.close()


class Picky(EpisodicEnv):
    """Fails on an action that its spec does not have."""

    def __init__(self, index: int = 0):
        super().__init__(index, (9,))
        self.observation_spec = Composite(x=Unbounded((1,)))
        self.action_spec = Bounded(-1, 1, (1,))

    def observe(self, action: float) -> TensorDict:
        assert -1 <= action <= 1, action
        return TensorDict(x=torch.tensor([action]))


@pytest.mark.parametrize("call", ["step", "step_and_maybe_reset"])
def test_the_action_of_a_row_that_is_not_stepped_may_be_anything(td_three: TensorDictEngine, call: str) -> None:
    env = td_three.make(Picky)
    td = env.rand_action(env.reset())
    td["action"][1] = float("nan")
    td["action"][2] = 99.0
    td["_step"] = torch.tensor([True, False, False])
    called(env, call, td)
    assert td["next", "x"][0].equal(td["action"][0])
    assert td["next", "x"][1:].eq(-1).all()
    env.close()


@pytest.mark.parametrize("kind", ["counting", "nested", "infos", "dtypes", "tasks"])
def test_what_the_envs_have_nothing_to_say_about_stays_untouched(td_engine: TensorDictEngine, kind: str) -> None:
    env = td_engine.make(TENSORDICT_ENVS[kind])
    td = env.rand_action(env.reset())
    td["note"] = torch.rand((*env.batch_size, 2))
    td["of", "the", "caller"] = torch.rand(env.batch_size)
    before = td.clone()
    stepped = env.step(td)
    assert stepped is td
    assert_equal(td.exclude("next"), before)
    again = td.exclude("next")
    stepped, root = env.step_and_maybe_reset(again)
    assert stepped is again
    for each in (again, root):
        for row, kept in zip(rows(each, td_engine), rows(before, td_engine), strict=True):
            assert row["note"].equal(kept["note"])
            assert row["of", "the", "caller"].equal(kept["of", "the", "caller"])
    env.close()


def rows(td: TensorDictBase, engine: TensorDictEngine) -> list[TensorDictBase]:
    return [*td.unbind(0)] if engine.batched else [td]


@pytest.mark.parametrize("kind", ["counting", "groups and root"])
def test_a_sleeping_row_that_is_done_is_neither_stepped_nor_reset(td_three: TensorDictEngine, kind: str) -> None:
    env = td_three.make(TENSORDICT_ENVS[kind])
    td = env.reset()
    td = env.step(env.rand_action(td))
    for _ in range(5):  # each to its end; who is there waits
        root = env.step_mdp(td)
        running = ~root["done"].squeeze(-1)
        td = env.step(env.rand_action(root).set("_step", running))
    root = env.step_mdp(td)
    assert root["done"].all()
    before = root.clone()
    stepped, after = env.step_and_maybe_reset(env.rand_action(root).set("_step", torch.zeros(3, dtype=torch.bool)))
    assert stepped["next", "done"].all()
    assert_equal(after, before)
    env.close()
