"""``selected_keys`` and ``excluded_keys``: what is returned, in data, specs and fakes alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import is_lazy
from tensordict import TensorDict, TensorDictBase
from tensordict_oracle import leaves_of
from tensordict_zoo import CountingTensorDictEnv, MultiGroupEnv, NestedEnv, SeveralKeysEnv, TaskEnv
from zoo import CountingEnv, DictEnv

from gymbridge.envs import GymEnv, check_env_specs

Key = tuple[str, ...]

FLAGS = {("done",), ("terminated",), ("truncated",)}
ARM = {("arm", "angle"), ("arm", "on")}
PAIR = {("pair", "0"), ("pair", "1")}
DICT_ENV = {("count",), *ARM, *PAIR, ("_user", "reward")}
ACTIONS: dict[Any, set[Key]] = {
    DictEnv: {("action", "go"), ("action", "push")},
    NestedEnv: {("robot", "torque")},
    MultiGroupEnv: {("agents", "action")},
    SeveralKeysEnv: {("a", "action"), ("b", "action")},
    CountingTensorDictEnv: {("action",)},
}
GROUP_FLAGS = {("agents", *flag) for flag in FLAGS}

CASES: dict[str, tuple[Any, dict[str, list[Any]], set[Key], set[Key]]] = {
    # env, options, observations and flags that stay, rewards that stay
    "a leaf": (DictEnv, {"excluded_keys": ["count"]}, DICT_ENV - {("count",)} | FLAGS, {("reward",)}),
    "a whole group": (DictEnv, {"excluded_keys": ["arm"]}, DICT_ENV - ARM | FLAGS, {("reward",)}),
    "all of a group": (DictEnv, {"excluded_keys": [*ARM]}, DICT_ENV - ARM | FLAGS, {("reward",)}),
    "a leaf in a group": (
        DictEnv,
        {"excluded_keys": [("pair", "1"), "_user"]},
        {("count",), *ARM, ("pair", "0"), *FLAGS},
        {("reward",)},
    ),
    "the reward": (DictEnv, {"excluded_keys": ["reward"]}, DICT_ENV | FLAGS, set()),
    "select a group": (DictEnv, {"selected_keys": ["action", "arm"]}, ARM | FLAGS, set()),
    "select leaves": (
        DictEnv,
        {"selected_keys": [*ACTIONS[DictEnv], ("pair", "0"), "reward"]},
        {("pair", "0"), *FLAGS},
        {("reward",)},
    ),
    "select actions": (DictEnv, {"selected_keys": ["action"]}, FLAGS, set()),
    "own: a leaf": (CountingTensorDictEnv, {"excluded_keys": ["noise"]}, {("count",), *FLAGS}, {("reward",)}),
    "own: deep": (
        NestedEnv,
        {"excluded_keys": [("robot", "arm", "on"), "reward"]},
        {("robot", "arm", "angle"), ("clock",), *FLAGS},
        set(),
    ),
    "own: select deep": (
        NestedEnv,
        {"selected_keys": [("robot", "torque"), ("robot", "arm", "on")]},
        {("robot", "arm", "on"), *FLAGS},
        set(),
    ),
    "own: in a group of flags": (
        MultiGroupEnv,
        {"excluded_keys": [("agents", "seen"), ("agents", "reward")]},
        FLAGS | GROUP_FLAGS,
        {("reward",)},
    ),
    "own: one of two rewards": (
        SeveralKeysEnv,
        {"excluded_keys": ["bonus", ("a", "x")]},
        {("b", "x"), *FLAGS},
        {("reward",)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_data_specs_and_fakes_have_what_was_chosen(batched_env: Any, case: str) -> None:
    maker, options, shown, rewards = CASES[case]
    actions = ACTIONS[maker]
    env = batched_env(2, maker, **options)
    assert paths(env.full_observation_spec) | paths(env.full_done_spec) == shown
    assert paths(env.full_reward_spec) == rewards
    assert paths(env.full_action_spec) == actions
    stepped_keys = shown | actions | {("next", *key) for key in shown | rewards}
    assert {*leaves_of(env.fake_tensordict())} == stepped_keys
    root = env.reset()
    assert {*leaves_of(root)} == shown
    stepped, root = env.step_and_maybe_reset(env.rand_action(root))
    assert {*leaves_of(stepped)} == stepped_keys
    assert {*leaves_of(root)} == shown
    assert {*leaves_of(env.step_mdp(stepped))} == shown
    for how in ({"break_when_any_done": False}, {"break_when_all_done": True}, {}):
        assert {*leaves_of(env.rollout(7, **how))} == stepped_keys
    env.close()


def paths(spec: Any) -> set[Key]:
    return {(key,) if isinstance(key, str) else key for key in spec.keys(True, True)}


@pytest.mark.parametrize("case", [case for case in CASES if "deep" not in case and "rewards" not in case])
def test_the_check_passes(batched_env: Any, case: str) -> None:
    maker, options, _, _ = CASES[case]
    env = batched_env(2, maker, **options)
    check_env_specs(env, num_steps=8)
    env.close()


@pytest.mark.parametrize("case", CASES)
def test_masks_reach_envs_of_which_not_all_is_seen(batched_env: Any, case: str) -> None:
    """What a sleeping row shows has the chosen keys too, before its first step as after it."""
    maker, options, shown, rewards = CASES[case]
    env = batched_env(2, maker, **options)
    td = env.rand_action(env.reset()).set("_step", torch.tensor([True, False]))
    stepped, root = env.step_and_maybe_reset(td)
    assert {*leaves_of(stepped["next"])} == shown | rewards
    assert {*leaves_of(root)} == shown
    reset = env.reset(TensorDict({"_reset": torch.tensor([False, True])}, [2]))
    assert {*leaves_of(reset)} == shown
    env.close()


@pytest.mark.parametrize("fns", [CountingEnv, CountingTensorDictEnv], ids=["gymnasium", "own"])
def test_values_are_those_of_all_keys(batched_env: Any, fns: Any) -> None:
    everything, chosen = batched_env(2, fns), batched_env(2, fns, excluded_keys=["reward"])
    rollouts: list[TensorDictBase] = []
    for env in (everything, chosen):
        env.set_seed(0)
        rollouts.append(env.rollout(9, break_when_any_done=False))
        env.close()
    for key in leaves_of(rollouts[1]):
        assert rollouts[1][key].equal(rollouts[0][key]), key


def test_infos_can_be_left_out(batched_env: Any) -> None:
    env = batched_env(2, lambda: GymEnv(CountingEnv, info="auto"), excluded_keys=["info"])
    assert "info" not in env.full_observation_spec.keys()
    check_env_specs(env)
    assert "info" not in env.rollout(3)["next"].keys()
    env.close()


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"excluded_keys": [("info", "t"), ("info", "nested")]}, {("begun",), ("final",)}),
        ({"selected_keys": ["action", ("info", "nested", "half")]}, {("nested", "half")}),
        ({"excluded_keys": [("info", "final"), ("info", "_mask")]}, {("begun",), ("t",), ("nested", "half")}),
    ],
    ids=["two left out", "one kept", "a mask left out"],
)
def test_an_info_goes_with_its_mask(batched_env: Any, options: dict[str, Any], shown: set[Key]) -> None:
    env = batched_env(2, lambda: GymEnv(CountingEnv, info="auto"), **options)
    masks = set() if ("info", "_mask") in options.get("excluded_keys", ()) else {("_mask", *key) for key in shown}
    assert paths(env.full_observation_spec["info"]) == shown | masks
    check_env_specs(env)
    assert {*leaves_of(env.rollout(3)["next", "info"])} == shown | masks
    env.close()


def test_unlike_envs_leave_out_what_each_has(batched_env: Any) -> None:
    env = batched_env(2, [lambda: TaskEnv(0), lambda: TaskEnv(1)], excluded_keys=["of_task_1", "reward"])
    stepped = env.rand_step(env.reset())
    assert is_lazy(stepped)
    assert {*leaves_of(stepped[0]["next"])} == {("x",), ("of_task_0",), *FLAGS}
    assert {*leaves_of(stepped[1]["next"])} == {("x",), *FLAGS}
    assert {*leaves_of(env.fake_tensordict()[1])} == {*leaves_of(stepped[1])}
    env.close()


@pytest.mark.parametrize("maker", ACTIONS)
def test_an_action_that_is_left_out_is_refused_by_name(batched_env: Any, maker: Any) -> None:
    actions = [*ACTIONS[maker]]
    for options, argument in (
        ({"excluded_keys": actions[:1]}, "excluded_keys"),
        ({"excluded_keys": [actions[0][:1]]}, "excluded_keys"),
        ({"selected_keys": ["reward", *actions[1:]]}, "selected_keys"),
    ):
        env = batched_env(2, maker, **options)
        with pytest.raises(ValueError, match=rf"{argument}: the actions .*{actions[0][-1]}.* are left out") as caught:
            env.reset()
        assert "expected them to stay" in str(caught.value)


@pytest.mark.parametrize("name", ["selected_keys", "excluded_keys"])
def test_what_is_no_list_of_keys_is_refused(batched_env: Any, name: str) -> None:
    for given, told in (("action", "got 'action', expected a list"), ([3], "got 3"), ([("a", 1)], r"got \('a', 1\)")):
        with pytest.raises(TypeError, match=f"{name}: {told}"):
            batched_env(2, CountingEnv, **{name: given})
    with pytest.raises(ValueError, match="selected_keys and excluded_keys: got both"):
        batched_env(2, CountingEnv, selected_keys=["action"], excluded_keys=["reward"])
