"""Batches of envs that differ: each row keeps its own keys, shapes and options, whatever is asked of the batch."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from by_hand import assert_equal, is_lazy
from fuzzing import given_over_engines
from gymnasium.error import ResetNeeded
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from tensordict_engines import BATCHES, TensorDictEngine
from tensordict_oracle import leaves_of
from tensordict_programs import run_a_program
from tensordict_zoo import CountingTensorDictEnv, DynamicShapeEnv, NestedEnv, OnlyGroupsEnv, StringsEnv, TaskEnv
from zoo import CountingEnv, DictEnv

from gymbridge.envs import EnvBase, GymEnv, check_env_specs, step_mdp
from gymbridge.errors import EnvOutputError, SpecError

Makers = Sequence[Callable[[], EnvBase]]

UNLIKE: dict[str, Makers] = {
    "spaces": [lambda: GymEnv("CartPole-v1"), lambda: GymEnv("Pendulum-v1")],
    "structures": [
        lambda: GymEnv(CountingEnv),
        lambda: GymEnv(DictEnv, lengths=[2]),
        lambda: GymEnv(CountingEnv, lengths=[1]),
    ],
    "options": [
        lambda: GymEnv(CountingEnv),
        lambda: GymEnv(CountingEnv, categorical_action_encoding=False, reward_dtype=torch.float64, lengths=[2]),
    ],
    "tasks": [lambda: TaskEnv(0), lambda: TaskEnv(1), lambda: TaskEnv(2)],
    "kinds": [lambda: CountingTensorDictEnv(0), lambda: NestedEnv(1), lambda: StringsEnv(2)],
    "gymnasium and own": [lambda: CountingTensorDictEnv(0), lambda: GymEnv(CountingEnv), lambda: TaskEnv(1)],
}
KEYS_AGREE = ("spaces", "options")
"""Those whose rows have the same keys."""


@pytest.fixture(params=UNLIKE)
def makers(request: pytest.FixtureRequest) -> Makers:
    """Makers of unlike envs, each kind of difference in turn."""
    return UNLIKE[request.param]


def mask(num_envs: int, *rows: int) -> torch.Tensor:
    return torch.tensor([row in rows for row in range(num_envs)])


# ---------------------------------------------------------------- what each row is


@pytest.mark.every(2, "engine", "kind")
@pytest.mark.parametrize("engine", [batch for batch in BATCHES if batch.num_envs == 3 and not batch.lazy], ids=str)
@pytest.mark.parametrize("kind", UNLIKE)
@given_over_engines(data=st.data())
def test_any_program(engine: TensorDictEngine, kind: str, data: st.DataObject) -> None:
    """Masks, mixed rounds, seeds: as the envs one by one."""
    each = UNLIKE[kind]
    run_a_program(replace(engine, lazy=True), lambda index: each[index % len(each)](), data)


def test_each_row_has_the_specs_of_its_env(batched_env: Any, makers: Makers) -> None:
    env = batched_env(len(makers), [*makers])
    for row, maker in enumerate(makers):
        alone = maker()
        for name in ("observation", "action", "reward", "done", "state"):
            assert getattr(env, f"full_{name}_spec")[row] == getattr(alone, f"full_{name}_spec"), name
    env.close()


def test_each_row_has_the_keys_shapes_and_dtypes_of_its_env(batched_env: Any, makers: Makers) -> None:
    env = batched_env(len(makers), [*makers])
    reset = env.reset()
    stepped, following = env.step_and_maybe_reset(env.rand_action(reset.copy()))
    assert is_lazy(reset)
    assert is_lazy(stepped)
    assert is_lazy(following)
    for row, maker in enumerate(makers):
        alone = maker()
        assert looks(reset[row]) == looks(alone.reset())
        mine, after = alone.step_and_maybe_reset(alone.rand_action(alone.reset()))
        assert looks(stepped[row]) == looks(mine)
        assert looks(following[row]) == looks(after)
    env.close()


def looks(td: TensorDictBase) -> dict[Any, Any]:
    """Shape and dtype of each leaf; the type of what is no tensor."""
    values = {key: td.get(key) for key in leaves_of(td)}
    return {
        key: (value.shape, value.dtype) if isinstance(value, torch.Tensor) else value.batch_size
        for key, value in values.items()
    }


def test_a_fake_has_each_rows_keys(batched_env: Any, makers: Makers) -> None:
    env = batched_env(len(makers), [*makers])
    fake, stepped = env.fake_tensordict(), env.rand_step(env.reset())
    for row in range(len(makers)):
        assert looks(fake[row]) == looks(stepped[row])
    env.close()


@pytest.mark.parametrize("kind", KEYS_AGREE)
def test_the_check_passes(batched_env: Any, kind: str) -> None:
    env = batched_env(len(UNLIKE[kind]), [*UNLIKE[kind]])
    check_env_specs(env)
    env.close()


def test_random_actions_are_each_rows_own(batched_env: Any, makers: Makers) -> None:
    env = batched_env(len(makers), [*makers])
    for td in (env.rand_action(), env.rand_action(env.reset())):
        for row, maker in enumerate(makers):
            spec = maker().full_action_spec
            assert spec.is_in(td[row].select(*spec.keys(True, True)))
    env.close()


# ---------------------------------------------------------------- steps


def test_a_mask_picks_rows_that_differ(batched_env: Any, makers: Makers) -> None:
    """The other rows keep their observation, have a reward of zero, and their actions are not looked at."""
    num_envs = len(makers)
    env = batched_env(num_envs, [*makers])
    td = env.reset()
    before = td.clone()
    env.rand_action(td)
    td[0].set("action", torch.full((7,), 9.0))
    td.set("_step", mask(num_envs, 1))
    following = env.step(td)["next"]
    assert "_step" not in td.keys()
    assert not following[0]["reward"].any()
    shown = [key for key in leaves_of(before[0]) if key[-1] not in ("done", "terminated", "truncated")]
    assert_equal(following[0].select(*shown), before[0].select(*shown))
    reset = env.reset(TensorDict({"_reset": mask(num_envs, 0)}, [num_envs]))
    latest = following[1].select(*leaves_of(reset[1]))
    assert_equal(reset[1], latest)
    env.close()


def test_step_mdp_is_that_of_each_env(batched_env: Any, makers: Makers) -> None:
    env = batched_env(len(makers), [*makers])
    td = env.rand_step(env.reset())
    root = env.step_mdp(td)
    for row, maker in enumerate(makers):
        alone = maker()
        keys = {"reward_keys": alone.reward_keys, "action_keys": alone.action_keys}
        assert_equal(root[row], step_mdp(td[row], **keys))
    env.close()


@pytest.mark.parametrize("call", ["step", "step_and_maybe_reset"])
def test_a_dense_tensordict_is_taken_where_the_actions_agree(batched_env: Any, call: str) -> None:
    """What is handed in need not be a lazy stack, what comes back under ``next`` is one."""
    env = batched_env(2, [lambda: GymEnv(CountingEnv, reward_dtype=torch.float64), CountingEnv])
    env.reset()
    td = TensorDict({"action": torch.tensor([1, 2])}, [2])
    got = getattr(env, call)(td)
    assert (got if call == "step" else got[0]) is td
    assert [row["observation"][2].item() for row in td["next"].unbind(0)] == [1, 2]
    env.close()


def test_an_action_that_does_not_fit_names_its_row(batched_env: Any, makers: Makers) -> None:
    env = batched_env(len(makers), [*makers])
    td = env.reset()
    with pytest.raises(KeyError, match=r"env 0: .*missing"):
        env.step(td.copy())
    td = env.rand_action(td)
    right = td.clone()
    td[1].set(next(iter(makers[1]().action_keys)), torch.zeros((7, 7)))
    with pytest.raises(ValueError, match=r"env 1: .*got shape \[7, 7\], expected"):
        env.step(td)
    env.step(right)  # nothing was done
    env.close()


# ---------------------------------------------------------------- rollouts


@pytest.mark.every(3, "batched_env", "makers", "how", "contiguous")
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("how", [{"break_when_any_done": False}, {"break_when_all_done": True}, {}], ids=str)
def test_rollouts_are_each_envs_own(batched_env: Any, makers: Makers, how: dict[str, bool], contiguous: bool) -> None:
    num_envs = len(makers)
    env = batched_env(num_envs, [*makers])
    env.set_seed(3)
    td = env.rollout(6, return_contiguous=contiguous, **how)
    assert td.batch_size[0] == num_envs
    assert td.batch_size[1] <= 6
    assert td.names == [None, "time"]
    for row, maker in enumerate(makers):
        alone = maker()
        alone.set_seed(3 + row)
        root = alone.reset()
        for step, taken in enumerate(td[row].unbind(0)):
            if root["done"].any():
                break  # it waits for the others
            assert_equal(taken.select(*leaves_of(root)), root, f"row {row}, step {step}: root")
            mine, after = alone.step_and_maybe_reset(taken.exclude("next"))
            assert_equal(taken["next"], mine["next"], f"row {row}, step {step}: next")
            root = after if "break_when_any_done" in how else alone.step_mdp(mine)
    env.close()


def test_a_policy_sees_the_rows(batched_env: Any) -> None:
    def policy(td: TensorDictBase) -> TensorDictBase:
        assert is_lazy(td)
        for row in td.unbind(0):
            row["action"] = torch.full((row["x"].shape[-1],), 0.5)
        return td

    env = batched_env(2, [lambda: TaskEnv(0), lambda: TaskEnv(1)])
    td = env.rollout(4, policy, break_when_any_done=False)
    assert td[0]["action"].eq(0.5).all()
    assert td[1]["action"].shape == (4, 2)
    env.close()


# ---------------------------------------------------------------- seeds and states


def test_seeds_and_states(batched_env: Any, makers: Makers) -> None:
    num_envs = len(makers)
    env = batched_env(num_envs, [*makers])
    assert env.set_seed(5) == 5 + num_envs
    first = env.reset()
    for row, maker in enumerate(makers):
        alone = maker()
        alone.set_seed(5 + row)
        assert_equal(first[row], alone.reset())
    assert env.set_seed(5, static_seed=True) == 5
    assert_equal(env.reset()[1], seeded(makers[1], 5, after=1))
    assert [*env.state_dict()] == [f"worker{row}" for row in range(num_envs)]
    env.load_state_dict(env.state_dict())
    env.close()


def seeded(maker: Callable[[], EnvBase], seed: int, after: int) -> TensorDictBase:
    """A reset with a seed, after some others."""
    env = maker()
    for _ in range(after):
        env.reset()
    env.set_seed(seed)
    return env.reset()


def test_a_state_put_back_gives_the_same_again(batched_env: Any) -> None:
    env = batched_env(2, ["CartPole-v1", "Pendulum-v1"])
    env.set_seed(0)
    env.reset()
    state = env.state_dict()
    first = env.reset()
    env.load_state_dict(state)
    assert_equal(env.reset(), first)
    env.close()


# ---------------------------------------------------------------- one task, or several


def test_the_same_maker_n_times_is_one_task(batched_env: Any) -> None:
    for fns in ("CartPole-v1", ["CartPole-v1"] * 3, [CountingTensorDictEnv] * 3, CountingTensorDictEnv):
        env = batched_env(3, fns)
        assert type(env.reset()) is TensorDict
        assert type(env.fake_tensordict()) is TensorDict
        env.close()


class Bounded(CountingEnv):
    """Has bounds of its own."""

    def __init__(self, bound: float = 100.0):
        super().__init__()
        self.observation_space = gym.spaces.Box(-bound, bound, (4,), np.float32)


def test_other_bounds_alone_give_dense_data_and_stacked_specs(batched_env: Any) -> None:
    env = batched_env(2, Bounded, create_env_kwargs=[{"bound": 100.0}, {"bound": 200.0}])
    check_env_specs(env)
    assert type(env.reset()) is TensorDict
    assert type(env.rollout(3)) is TensorDict
    spec = env.full_observation_spec["observation"]
    assert [spec[row].high.max().item() for row in range(2)] == [100, 200]
    env.close()


@pytest.mark.parametrize("fns", ["CartPole-v1", CountingTensorDictEnv], ids=["gymnasium", "own"])
def test_share_individual_td_says_whether_stacks_are_lazy(batched_env: Any, fns: Any) -> None:
    for share, lazy in ((None, False), (False, False), (True, True)):
        env = batched_env(2, fns, share_individual_td=share)
        td = env.reset()
        stepped, root = env.step_and_maybe_reset(env.rand_action(td.copy()))
        for each in (td, stepped, stepped["next"], root, env.step_mdp(stepped), env.fake_tensordict()):
            assert is_lazy(each) is lazy, share
        env.close()


def test_dense_results_of_unlike_envs_are_refused_with_how_they_differ(batched_env: Any) -> None:
    for fns, told in (
        (["CartPole-v1", "Pendulum-v1"], r"env 1 has observation.* of shape \[3\]"),
        ([lambda: TaskEnv(0), lambda: TaskEnv(1)], "env 1 "),
        ([CountingTensorDictEnv, DynamicShapeEnv], "env 1 "),
    ):
        env = batched_env(2, fns, share_individual_td=False)
        with pytest.raises(ValueError, match=f"share_individual_td: got False, expected envs that agree: {told}"):
            env.reset()


@pytest.mark.parametrize("use_buffers", [None, True, False])
@pytest.mark.parametrize(
    ("fns", "dynamic"),
    [("CartPole-v1", False), (CountingTensorDictEnv, False), (DynamicShapeEnv, True)],
    ids=["gymnasium", "own", "dynamic"],
)
def test_buffers_change_no_value_and_warn_where_there_can_be_none(
    batched_env: Any, fns: Any, dynamic: bool, use_buffers: bool | None
) -> None:
    plain, env = batched_env(2, fns), batched_env(2, fns, use_buffers=use_buffers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env.start()
    told = [str(warning.message) for warning in caught if "use_buffers" in str(warning.message)]
    assert len(told) == (1 if dynamic and use_buffers else 0)
    results = []
    for each in (plain, env):
        each.set_seed(1)
        results.append(each.rollout(7, break_when_any_done=False, return_contiguous=False))
        each.close()
    assert_equal(results[1][:, 0], results[0][:, 0])
    assert_equal(results[1][:, -1], results[0][:, -1])


# ---------------------------------------------------------------- gymnasium envs among others


def test_a_gymnasium_env_that_ended_is_named_before_any_env_is_stepped(batched_env: Any) -> None:
    env = batched_env(2, [lambda: CountingTensorDictEnv(0), lambda: GymEnv(CountingEnv, lengths=[1])])
    td = env.step_mdp(env.rand_step(env.reset()))
    count = env.engine.attribute(0, "t")
    with pytest.raises(ResetNeeded, match=r"envs \[1\] ended their episode"):
        env.step(env.rand_action(td))
    assert env.engine.attribute(0, "t") == count
    env.step(env.rand_action(env.reset(td.set("_reset", mask(2, 1)))))
    env.close()


def test_a_one_hot_action_without_a_choice_is_named_before_any_env_is_stepped(batched_env: Any) -> None:
    env = batched_env(2, UNLIKE["options"])
    td = env.rand_action(env.reset())
    rows = [*td.unbind(0)]
    rows[1]["action"] = torch.zeros(3, dtype=torch.bool)
    with pytest.raises(SpecError, match=r"env 1: 'action': .*exactly one"):
        env.step(LazyStackedTensorDict(*rows, stack_dim=0))
    env.step(env.rand_action(td))  # no env has failed
    env.close()


def test_an_error_of_a_gymnasium_env_has_the_marks_of_its_row_alone(batched_env: Any) -> None:
    class Wrong(CountingEnv):
        def step(self, action: Any) -> Any:
            return self._observation(0).astype("float64"), 0.0, False, False, {}

    env = batched_env(2, [lambda: CountingTensorDictEnv(0), Wrong])
    with pytest.raises(EnvOutputError) as raised:
        env.rand_step(env.reset())
    assert str(raised.value).startswith("env 1: observation")
    assert raised.value.env_index == 1  # type: ignore[attr-defined]
    if sys.version_info >= (3, 11):
        assert raised.value.__notes__ == ["raised by env 1"]
    env.close()


def test_flags_at_the_root_stand_beside_flags_in_groups(batched_env: Any) -> None:
    env = batched_env(2, [lambda: CountingTensorDictEnv(0), lambda: OnlyGroupsEnv(1)])
    check_env_specs(env)
    td, root = env.reset(), None
    for _ in range(6):
        td, root = env.step_and_maybe_reset(env.rand_action(td if root is None else root))
    rows = root.unbind(0)
    assert not rows[0]["done"].any()
    assert not rows[1]["agents", "done"].any()
    assert env.rollout(4, break_when_any_done=False).batch_size == (2, 4)
    assert env.rollout(9).shape[-1] < 9  # a flag of either ends it
    env.close()


def test_a_group_of_which_nothing_is_selected_is_gone(batched_env: Any) -> None:
    env = batched_env(2, NestedEnv, selected_keys=[("robot", "torque"), "clock"])
    check_env_specs(env)
    assert "robot" not in env.rand_step(env.reset())["next"].keys()
    env.close()


def test_specs_given_to_two_envs_are_each_ones_own() -> None:
    first, second = CountingTensorDictEnv(0), CountingTensorDictEnv(1)
    second.observation_spec = first.observation_spec
    first.set_spec_lock_()
    assert not second.observation_spec.is_locked
