"""Envs with rewards and done flags in groups: each group ends, and is reset, by its own flags."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fuzzing import given_over_engines
from hypothesis import strategies as st
from tensordict_engines import ALONE
from tensordict_programs import run_a_program
from tensordict_zoo import GROUPED, TENSORDICT_ENVS, MultiGroupEnv, OnlyGroupsEnv

from gymbridge.envs import check_env_specs


@pytest.mark.parametrize("kind", GROUPED)
@given_over_engines(data=st.data())
def test_any_program(kind: str, data: st.DataObject) -> None:
    run_a_program(ALONE, TENSORDICT_ENVS[kind], data)


@pytest.mark.parametrize("kind", GROUPED)
def test_its_outputs_are_as_its_specs_say(kind: str) -> None:
    for index in range(3):
        check_env_specs(TENSORDICT_ENVS[kind](index), num_steps=20)


@pytest.mark.parametrize(
    ("kind", "groups"), [("groups and root", {"_reset", ("agents", "_reset")}),
    ("groups alone", {("agents", "_reset"), ("referee", "_reset")}), ("rewards in groups", {"_reset"})],
)  # fmt: skip
def test_there_is_a_reset_key_for_each_group_of_flags(kind: str, groups: set[Any]) -> None:
    env = TENSORDICT_ENVS[kind](0)
    assert set(env.reset_keys) == groups
    assert len(env.done_keys) == 3 * len(groups)


def test_missing_flags_of_a_group_are_completed_in_its_own_shape() -> None:
    env = OnlyGroupsEnv()
    following = env.rand_step(env.reset())["next"]
    for name in ("done", "terminated", "truncated"):
        assert following["agents", name].shape == (2, 1)
        assert following["referee", name].shape == (1,)
    assert "done" not in following.keys()


def test_where_the_root_has_flags_they_say_when_the_env_is_reset() -> None:
    """One agent of two that is done waits for the other."""
    env = MultiGroupEnv(lengths=(1, 2))
    root = env.reset()
    stepped, root = env.step_and_maybe_reset(env.rand_action(root))
    assert stepped["next", "agents", "done"].tolist() == root["agents", "done"].tolist() == [[True], [False]]
    assert stepped["next", "done"].tolist() == root["done"].tolist() == [False]
    stepped, root = env.step_and_maybe_reset(env.rand_action(root))
    assert stepped["next", "agents", "done"].all()
    assert stepped["next", "agents", "reward"][0].tolist() == [0]
    assert stepped["next", "done"].tolist() == [True]
    assert not root["agents", "done"].any()
    assert root["agents", "seen"][:, 0].tolist() == [1, 1]


def test_where_the_root_has_none_each_group_is_reset_by_its_own() -> None:
    """Only who is done starts anew; the others go on."""
    env = OnlyGroupsEnv(lengths=(1, 2, 3))
    root = env.reset()
    stepped, root = env.step_and_maybe_reset(env.rand_action(root))
    assert stepped["next", "agents", "done"].tolist() == [[True], [False]]
    assert root["agents", "seen"][:, :2].tolist() == [[1, 0], [0, 1]]  # episode and clock of each
    assert root["referee", "clock"].tolist() == [1]
    assert not root["agents", "done"].any()


@pytest.mark.parametrize(
    ("masks", "episodes"),
    [
        ({("agents",): [[True], [False]], ("referee",): [False]}, [1, 0, 0]),
        ({("agents",): [[False], [False]], ("referee",): [True]}, [0, 0, 1]),
        ({("agents",): [[False], [False]], ("referee",): [False]}, [0, 0, 0]),
        ({("agents",): [[True], [True]], ("referee",): [True]}, [1, 1, 1]),
        ({(): True}, [1, 1, 1]),
        ({(): [False]}, [0, 0, 0]),
    ],
)
def test_masks_reach_their_groups(masks: dict[tuple[str, ...], Any], episodes: list[int]) -> None:
    env = OnlyGroupsEnv()
    td = env.reset()
    for group, mask in masks.items():
        td[(*group, "_reset")] = torch.tensor(mask)
    root = env.reset(td)
    assert env.episodes == episodes
    assert root["agents", "seen"][:, 0].tolist() == episodes[:2]
    assert not [key for key in root.keys(True, True) if "_reset" in key]


@pytest.mark.parametrize("name", ["_reset", "_step"])
@pytest.mark.parametrize(("kind", "given_of"), [("groups and root", "agents"), ("groups alone", "agents"),
                                                ("groups alone", "referee")])  # fmt: skip
def test_masks_of_some_groups_but_not_all_are_refused_by_name(kind: str, given_of: str, name: str) -> None:
    env = TENSORDICT_ENVS[kind](0)
    td = env.rand_action(env.reset())
    shape = env.full_done_spec[given_of, "done"].shape
    td[given_of, name] = torch.ones(shape, dtype=torch.bool)
    with pytest.raises(ValueError, match=name):
        _ = env.reset(td) if name == "_reset" else env.step(td)


def test_a_member_that_a_mask_leaves_out_may_still_be_done() -> None:
    env = OnlyGroupsEnv(lengths=(1, 2, 3))
    td = env.step_mdp(env.rand_step(env.reset()))
    assert td["agents", "done"].tolist() == [[True], [False]]
    td["agents", "_reset"] = torch.tensor([[False], [True]])
    td["referee", "_reset"] = torch.tensor([False])
    root = env.reset(td)
    assert root["agents", "done"].tolist() == [[True], [False]]
    assert env.episodes == [0, 1, 0]
