"""A batch of TensorDict envs gives what its envs give when they are run one by one, whatever is asked of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import assert_equal, is_lazy
from fuzzing import given_over_engines
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictBase
from tensordict_engines import BATCHES, TensorDictEngine
from tensordict_oracle import OneByOne, leaves_of
from tensordict_programs import random_inputs, run_a_program
from tensordict_zoo import (
    TENSORDICT_ENVS,
    BatchedEnv,
    BatchUnlockedEnv,
    CountingTensorDictEnv,
    DifferentiableEnv,
    DynamicShapeEnv,
    MultiGroupEnv,
    RaisingTensorDictEnv,
    TaskEnv,
)

from gymbridge.envs import check_env_specs


@pytest.fixture(params=BATCHES, ids=str)
def engine(request: pytest.FixtureRequest) -> TensorDictEngine:
    """Each engine in turn."""
    engine: TensorDictEngine = request.param
    return engine


@pytest.fixture(params=[batch for batch in BATCHES if batch.num_envs == 3], ids=str)
def three(request: pytest.FixtureRequest) -> TensorDictEngine:
    """Each engine of three envs."""
    engine: TensorDictEngine = request.param
    return engine


@pytest.mark.every(3, "engine", "kind")
@pytest.mark.parametrize("kind", TENSORDICT_ENVS)
@given_over_engines(data=st.data())
def test_any_program(engine: TensorDictEngine, kind: str, data: st.DataObject) -> None:
    run_a_program(engine, TENSORDICT_ENVS[kind], data)


ALIKE = [kind for kind in TENSORDICT_ENVS if kind != "tasks"]


@pytest.mark.every(3, "engine", "kind", first=1)
@pytest.mark.parametrize("kind", ALIKE)
def test_its_outputs_are_as_its_specs_say(engine: TensorDictEngine, kind: str) -> None:
    env = engine.make(TENSORDICT_ENVS[kind])
    one = TENSORDICT_ENVS[kind](0)
    assert env.batch_size == (engine.num_envs, *one.batch_size)
    assert {*env.full_observation_spec.keys(True, True)} == {*one.full_observation_spec.keys(True, True)}
    assert {*env.done_keys} == {*one.done_keys}
    assert {*env.reward_keys} == {*one.reward_keys}
    assert {*env.action_keys} == {*one.action_keys}
    check_env_specs(env, num_steps=20)
    env.close()


@pytest.mark.parametrize("kind", ["counting", "nested", "strings", "stateful", "groups and root"])
def test_rollouts(three: TensorDictEngine, kind: str) -> None:
    """A rollout across episodes is the envs' steps one after the other."""
    env = three.make(TENSORDICT_ENVS[kind])
    oracle = OneByOne(three.one_by_one(TENSORDICT_ENVS[kind]), batched=True)
    env.set_seed(5)
    oracle.set_seed(5)
    td = env.rollout(12, break_when_any_done=False, return_contiguous=False)
    assert td.batch_size == (3, 12)
    root = oracle.reset()
    for step, taken in enumerate(td.unbind(-1)):
        assert_equal(taken.select(*leaves_of(root)), root, f"step {step}: root")
        following, root = oracle.step_and_maybe_reset(taken.exclude("next"))
        assert_equal(taken["next"], following, f"step {step}: next")
    env.close()


# ---------------------------------------------------------------- seeds, keyword arguments, attributes


def test_seeds_are_counted_through_the_rows_of_the_envs(three: TensorDictEngine) -> None:
    env = three.make(lambda index: BatchedEnv(0))
    assert env.set_seed(10) == 16
    seen = env.reset()["x"][..., 1].flatten().tolist()
    expected = [torch.rand(1, generator=torch.Generator().manual_seed(10 + row)).item() for row in range(6)]
    assert seen == expected
    assert env.set_seed(10, static_seed=True) == 10
    env.close()


def test_each_env_has_its_own_keyword_arguments_of_a_reset(three: TensorDictEngine) -> None:
    env = three.make(CountingTensorDictEnv)
    each = [{"start": 10}, {"start": 20}, {}]
    assert env.reset(list_of_kwargs=each)["count"].tolist() == [[10], [20], [0]]
    assert each == [{"start": 10}, {"start": 20}, {}]
    assert env.reset(list_of_kwargs=each, start=5)["count"].tolist() == [[5], [5], [5]]
    masked = TensorDict({"_reset": torch.tensor([True, False, True])}, [3])
    assert env.reset(masked, list_of_kwargs=[{"start": 1}, {"start": 2}, {"start": 3}])["count"].tolist() == [
        [1],
        [5],
        [3],
    ]
    with pytest.raises(ValueError, match=r"list_of_kwargs"):
        env.reset(list_of_kwargs=each[:2])
    env.close()


def test_attributes_and_methods_of_the_envs(three: TensorDictEngine) -> None:
    env: Any = three.make(CountingTensorDictEnv)
    env.reset()
    assert [*env.index] == [0, 1, 2]
    assert [*env.ends()] == [(False, False)] * 3
    env.set_attr("begins_at", [7, 8, 9])
    assert [*env.begins_at] == [7, 8, 9]
    env.close()


# ---------------------------------------------------------------- batches of batches, of groups, of unlike envs


def test_only_the_rows_that_are_picked_are_asked_for(three: TensorDictEngine) -> None:
    """An env with a batch of its own is given its own part of the mask, and one with no row in it sleeps."""
    env: Any = three.make(BatchedEnv)
    td = env.reset()
    mask = torch.tensor([[True, True], [False, True], [False, False]])
    env.step(env.rand_action(td).set("_step", mask))
    all_of_it, asleep = [True, True], ("_reset", [True, True])
    assert [*env.asked] == [[asleep, ("_step", all_of_it)], [asleep, ("_step", [False, True])], [asleep]]
    env.close()


@pytest.mark.parametrize("name", ["_reset", "_step"])
def test_a_part_of_an_env_that_knows_no_masks_is_refused_by_name(three: TensorDictEngine, name: str) -> None:
    env = three.make(TENSORDICT_ENVS["batched whole"])
    td = env.rand_action(env.reset())
    td[name] = torch.tensor([[True, True], [False, True], [False, False]])
    with pytest.raises(ValueError, match=rf"{name}.*partial{name}=False"):
        _ = env.reset(td) if name == "_reset" else env.step(td)
    env.close()


@pytest.mark.parametrize("name", ["_reset", "_step"])
def test_masks_of_some_groups_but_not_all_are_refused_by_name(three: TensorDictEngine, name: str) -> None:
    env = three.make(MultiGroupEnv)
    td = env.rand_action(env.reset())
    td["agents", name] = torch.ones((3, 2, 1), dtype=torch.bool)
    with pytest.raises(ValueError, match=name):
        _ = env.reset(td) if name == "_reset" else env.step(td)
    env.close()


def test_keys_of_the_masks_of_groups(three: TensorDictEngine) -> None:
    for kind in ("groups and root", "groups alone"):
        env = three.make(TENSORDICT_ENVS[kind])
        assert set(env.reset_keys) == {
            (*done[:-1], "_reset") if isinstance(done, tuple) else "_reset" for done in env.done_keys
        }
        env.close()


def test_unlike_envs_give_a_lazy_stack_whose_rows_keep_their_keys(three: TensorDictEngine) -> None:
    env = three.make(TaskEnv)
    td = env.reset()
    assert is_lazy(td)
    for index, row in enumerate(td.unbind(0)):
        assert {*row.keys()} == {"x", f"of_task_{index}", "done", "terminated", "truncated"}
        assert row["x"].shape == (index + 1,)
    env.close()


def test_shapes_that_change_are_shown_by_the_specs(three: TensorDictEngine) -> None:
    env: Any = three.make(DynamicShapeEnv)
    assert env.has_dynamic_specs
    assert not three.make(CountingTensorDictEnv).has_dynamic_specs  # type: ignore[attr-defined]
    assert env.full_observation_spec["points"].shape == (3, -1, 3)
    env.close()


def test_envs_of_any_batch_size_have_that_of_the_batch_here(three: TensorDictEngine) -> None:
    env = three.make(BatchUnlockedEnv)
    assert env.batch_locked
    assert env.reset()["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    env.close()


# ---------------------------------------------------------------- what is returned is the caller's


@pytest.mark.parametrize("kind", ["counting", "nested", "batched", "strings", "dynamic shape", "differentiable"])
def test_what_was_returned_does_not_change(three: TensorDictEngine, kind: str) -> None:
    env = three.make(TENSORDICT_ENVS[kind])
    returned: list[tuple[TensorDictBase, TensorDictBase]] = []
    with torch.no_grad():
        root = env.reset()
        for _ in range(4):
            returned.append((root, root.clone()))
            stepped, root = env.step_and_maybe_reset(env.rand_action(root.copy()))
            returned.append((stepped, stepped.clone()))
    for number, (now, then) in enumerate(returned):
        assert_equal(now, then, f"result {number}")
    env.close()


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("option", [{"share_individual_td": True}, {"use_buffers": False}], ids=str)
def test_gradients_flow_through_the_envs(option: dict[str, bool]) -> None:
    from gymbridge import SerialEnv

    envs = [DifferentiableEnv(index) for index in range(3)]
    others = [DifferentiableEnv(index) for index in range(3)]
    env = SerialEnv(3, [lambda index=index: envs[index] for index in range(3)], **option)  # type: ignore[arg-type]
    oracle = OneByOne(others, batched=True)
    actions = torch.linspace(-1, 1, 18).reshape(3, 3, 2)
    mine, theirs = actions.clone().requires_grad_(), actions.clone().requires_grad_()
    td, root = env.reset(), oracle.reset()
    total, expected = torch.zeros(()), torch.zeros(())
    for step in range(3):
        td["action"], root["action"] = mine[step], theirs[step]
        td, following = env.step(td), oracle.step(root)
        total, expected = total + td["next", "reward"].sum(), expected + following["reward"].sum()
        td, root = env.step_mdp(td), following.exclude("reward")
    total.backward()
    expected.backward()
    assert mine.grad is not None
    assert theirs.grad is not None
    assert theirs.grad.abs().min() > 0
    assert mine.grad.equal(theirs.grad)
    for one, other in zip(envs, others, strict=True):
        assert one.weight.grad is not None
        assert other.weight.grad is not None
        assert one.weight.grad.equal(other.weight.grad)
    env.close()


def test_gradients_without_the_option_for_them_are_an_error_that_names_it() -> None:
    from gymbridge import SerialEnv

    env = SerialEnv(2, [lambda: DifferentiableEnv(0), lambda: DifferentiableEnv(1)])
    td = TensorDict({"x": torch.ones(2, 2), "clock": torch.zeros(2, 1)}, [2])
    td["action"] = torch.zeros(2, 2, requires_grad=True)
    with torch.no_grad():
        env.reset()
    with pytest.raises(RuntimeError, match=r"share_individual_td|use_buffers"):
        env.step(td)
    env.close()


# ---------------------------------------------------------------- envs that raise


@pytest.mark.parametrize("call", ["step", "step_and_maybe_reset"])
def test_one_that_raises_in_a_step_leaves_the_others_transitions(three: TensorDictEngine, call: str) -> None:
    env: Any = three.make(RaisingTensorDictEnv)
    td = env.rand_action(env.reset())
    env.set_attr("raise_in_step", [None, KeyError("no such joint"), None])
    with pytest.raises(KeyError, match="no such joint") as caught:
        getattr(env, call)(td)
    assert caught.value.env_index == 1  # type: ignore[attr-defined]
    partial = env.last_partial()
    assert partial["_failed"].flatten().tolist() == [False, True, False]
    assert partial["next", "count"][[0, 2]].tolist() == [[1], [1]]
    env.set_attr("raise_in_step", [None, None, None])
    root = env.reset(TensorDict({"_reset": torch.tensor([False, True, False])}, [3]))
    assert root["count"][1].tolist() == [0]
    env.step(env.rand_action(root).set("_step", torch.tensor([False, True, False])))
    env.close()


def test_one_that_raises_in_a_reset_is_named(three: TensorDictEngine) -> None:
    env: Any = three.make(RaisingTensorDictEnv)
    env.reset()
    env.set_attr("raise_in_reset", [None, None, ValueError("no level to load")])
    with pytest.raises(ValueError, match="no level to load") as caught:
        env.reset()
    assert caught.value.env_index == 2  # type: ignore[attr-defined]
    env.close()


def test_one_that_sleeps_is_not_asked_and_its_action_is_not_validated(three: TensorDictEngine) -> None:
    env: Any = three.make(RaisingTensorDictEnv)
    td = env.reset()
    env.set_attr("raise_in_step", [None, None, ValueError("asleep")])
    td = env.rand_action(td).set("_step", torch.tensor([True, True, False]))
    td["action"][2] = 111
    assert env.step(td)["next", "count"].tolist() == [[1], [1], [0]]
    env.close()


def test_a_missing_or_wrong_action_or_state_is_refused_before_any_env_is_asked(three: TensorDictEngine) -> None:
    env: Any = three.make(CountingTensorDictEnv)
    td = env.reset()
    with pytest.raises(KeyError, match="action"):
        env.step(td.clone())
    with pytest.raises(ValueError, match=r"action: got shape \[(3, )?2\], expected \[(3, )?1\]"):
        env.step(td.clone().set("action", torch.zeros((3, 2), dtype=torch.int8)))
    with pytest.raises(ValueError, match=r"action: got dtype torch.float32, expected torch.int8"):
        env.step(td.clone().set("action", torch.zeros((3, 1))))
    assert [*env.t] == [0, 0, 0]
    stateful = three.make(TENSORDICT_ENVS["stateful"])
    root = stateful.reset()
    with pytest.raises(KeyError, match="velocity"):
        stateful.step(stateful.rand_action(root).exclude("velocity"))
    env.close()
    stateful.close()


def test_random_inputs_fit_the_batch(engine: TensorDictEngine) -> None:
    """What the tests feed is what the batch's own specs allow."""
    env = engine.make(TENSORDICT_ENVS["stateful"])
    oracle = OneByOne(engine.one_by_one(TENSORDICT_ENVS["stateful"]), batched=True)
    inputs = oracle.joined([random_inputs(one) for one in oracle.envs])
    assert env.full_action_spec.is_in(inputs.select(*env.full_action_spec.keys(True, True)))
    assert env.full_state_spec.is_in(inputs.select(*env.full_state_spec.keys(True, True)))
    env.close()


def test_the_benchmark_times_it(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    program, file = Path(__file__).parents[2] / "benchmarks" / "tensordict_step.py", tmp_path / "figures.json"
    options = ["--num-envs=2", "--rounds=1", "--seconds=0.001", "--peers=gymbridge-serial", f"--json={file}"]
    done = subprocess.run([sys.executable, program, *options], env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())["figures"]
    assert [figure["failure"] for figure in figures] == [None, None]
