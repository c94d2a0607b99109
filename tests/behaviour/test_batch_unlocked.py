"""Envs that take TensorDicts of any batch size, and envs whose leaves change their shapes."""

from __future__ import annotations

import pytest
import torch
from by_hand import assert_equal
from tensordict import TensorDict, TensorDictBase
from tensordict_zoo import BatchUnlockedEnv, CountingTensorDictEnv, DynamicShapeEnv

SIZES = [(), (1,), (4,), (2, 3)]


@pytest.mark.parametrize("size", SIZES)
def test_any_batch_size(size: tuple[int, ...]) -> None:
    env = BatchUnlockedEnv(1)
    assert not env.batch_locked
    assert CountingTensorDictEnv().batch_locked
    td = env.reset(TensorDict({}, size))
    assert td.batch_size == size
    assert td["done"].shape == (*size, 1)
    td["action"] = torch.full((*size, 2), 0.5)
    td, root = env.step_and_maybe_reset(td)
    assert td["next"].batch_size == root.batch_size == size
    assert td["next", "x"].eq(1).all()
    assert td["next", "reward"].eq(2).all()
    assert env.batch_size == ()


def test_masks_have_the_batch_size_of_the_tensordict() -> None:
    env = BatchUnlockedEnv(0)
    td = env.reset(TensorDict({}, [3]))
    td["action"] = torch.ones(3, 2)
    td["_step"] = torch.tensor([True, False, True])
    td = env.step(td)
    assert td["next", "clock"].tolist() == [[1], [0], [1]]
    root = env.step_mdp(td)
    root["_reset"] = torch.tensor([[True], [False], [False]])
    assert env.reset(root)["clock"].tolist() == [[0], [0], [1]]


def test_rows_that_ended_are_reset_alone() -> None:
    env = BatchUnlockedEnv(0, length=2)
    td = env.reset(TensorDict({}, [2]))
    td["clock"] = torch.tensor([[1], [0]])
    td["action"] = torch.ones(2, 2)
    stepped, root = env.step_and_maybe_reset(td)
    assert stepped["next", "done"].tolist() == [[True], [False]]
    assert root["clock"].tolist() == [[0], [1]]


def test_an_action_of_another_batch_size_is_refused() -> None:
    env = BatchUnlockedEnv(0)
    td = env.reset(TensorDict({}, [3]))
    td["action"] = torch.ones(3, 5)
    with pytest.raises(ValueError, match="action"):
        env.step(td)


def test_dynamic_specs_are_told() -> None:
    assert DynamicShapeEnv().has_dynamic_specs  # type: ignore[attr-defined]
    assert not CountingTensorDictEnv().has_dynamic_specs  # type: ignore[attr-defined]


@pytest.mark.parametrize("contiguous", [False, None])
def test_rollouts_of_shapes_that_change_are_a_lazy_stack(contiguous: bool | None) -> None:
    env = DynamicShapeEnv()
    options = {} if contiguous is None else {"return_contiguous": contiguous}
    td = env.rollout(5, break_when_any_done=False, **options)  # type: ignore[arg-type]
    assert td.batch_size == (5,)
    assert [len(row["next", "points"]) for row in td.unbind(0)] == [2, 3, 1, 3, 1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("told", [{}, {"break_when_any_done": False}, {"break_when_all_done": True}], ids=str)
def test_rollouts_have_the_batch_size_of_the_tensordict(size: tuple[int, ...], told: dict[str, bool]) -> None:
    def steps(**more: object) -> TensorDictBase:
        torch.manual_seed(0)
        env = BatchUnlockedEnv(0, length=3)
        td: TensorDictBase = env.rollout(5, tensordict=TensorDict({}, size), **told, **more)  # type: ignore[arg-type]
        return td

    td = steps()
    assert td.batch_size == (*size, 5 if "break_when_any_done" in told else 3)
    assert td.names == [*[None] * len(size), "time"]
    assert td["next", "clock"][..., :3, 0].eq(torch.tensor([1, 2, 3])).all()
    assert td["next", "done"][..., 2, :].all()
    out = torch.zeros_like(td)
    if "break_when_any_done" in told:
        assert steps(out=out) is out
        assert_equal(out, td)
    else:
        with pytest.raises(ValueError, match=r"out: got batch size \[.*3\], expected \[.*5\]"):
            steps(out=out)


def test_rows_of_a_rollout_wait_for_one_another() -> None:
    env = BatchUnlockedEnv(0, length=3)
    start = env.reset(TensorDict({}, [2]))
    start["clock"] = torch.tensor([[0], [2]])
    td = env.rollout(9, auto_reset=False, tensordict=start, break_when_all_done=True)
    assert td["next", "clock"].squeeze(-1).tolist() == [[1, 2, 3], [3, 3, 3]]
