"""``valid_transitions`` leaves out dead steps, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict, TensorDictBase

from gymbridge import valid_transitions


def steps(*batch_size: int, valid: Any = None) -> TensorDictBase:
    """Transitions that are numbered in the order of their places."""
    number = torch.arange(torch.Size(batch_size).numel()).reshape(batch_size)
    td = TensorDict({"number": number, "arm": {"angle": number.unsqueeze(-1) / 2}}, batch_size)
    td["next"] = TensorDict({"number": number + 1}, batch_size)
    if valid is not None:
        td["next", "valid"] = valid
    return td


@pytest.mark.parametrize("batch_size", [(6,), (2, 3), (2, 3, 4), (1, 5)])
@pytest.mark.parametrize("has_last_dim", [True, False])
def test_the_valid_ones_in_order(batch_size: tuple[int, ...], has_last_dim: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(batch_size, generator=generator) < 0.6
    assert 0 < mask.sum() < mask.numel()
    td = steps(*batch_size, valid=mask.unsqueeze(-1) if has_last_dim else mask)
    picked = valid_transitions(td)
    expected = [number for number, valid in enumerate(mask.flatten().tolist()) if valid]
    assert picked.batch_size == (len(expected),)
    assert picked["number"].tolist() == expected
    assert picked["arm", "angle"].tolist() == [[number / 2] for number in expected]
    assert picked["next", "number"].tolist() == [number + 1 for number in expected]
    assert picked["next", "valid"].all()


def test_all_or_none_of_them() -> None:
    assert valid_transitions(steps(2, 3, valid=torch.ones(2, 3, 1, dtype=torch.bool))).batch_size == (6,)
    assert valid_transitions(steps(2, 3, valid=torch.zeros(2, 3, 1, dtype=torch.bool))).batch_size == (0,)


def test_without_the_leaf_all_are_valid() -> None:
    picked = valid_transitions(steps(2, 3))
    assert picked.batch_size == (6,)
    assert picked["number"].tolist() == [*range(6)]


def test_one_transition_without_a_batch() -> None:
    assert valid_transitions(steps(valid=torch.tensor([True]))).batch_size == (1,)
    assert valid_transitions(steps(valid=torch.tensor([False]))).batch_size == (0,)
    assert valid_transitions(steps()).batch_size == (1,)


def test_what_is_returned_is_a_copy() -> None:
    td = steps(2, 2, valid=torch.ones(2, 2, 1, dtype=torch.bool))
    valid_transitions(td)["number"].fill_(9)
    assert td["number"].flatten().tolist() == [0, 1, 2, 3]


def test_data_that_are_no_tensors_and_names_of_dims() -> None:
    td = steps(2, 2, valid=torch.tensor([[True, False], [False, True]]))
    rows = [NonTensorStack("a", "b"), NonTensorStack("c", "d")]
    td["word"] = NonTensorStack(*rows)
    td.names = [None, "time"]
    picked = valid_transitions(td)
    assert picked.get("word").tolist() == ["a", "d"]
    assert picked["number"].tolist() == [0, 3]


def test_lazy_stacks() -> None:
    parts = [steps(3, valid=torch.tensor([[True], [False], [True]])), steps(3, valid=torch.zeros(3, 1) > 1)]
    for dim, expected in ((0, [0, 2]), (1, [0, 2])):
        lazy = LazyStackedTensorDict(*parts, stack_dim=dim)
        assert valid_transitions(lazy)["number"].tolist() == expected


def test_lazy_stacks_of_which_some_have_the_leaf() -> None:
    """As of rollouts of two envs, one of them with dead steps: a stack does not show what not all have."""
    parts = [steps(2, valid=torch.tensor([True, False])), steps(2)]
    for stack_dim in (0, 1):
        lazy = LazyStackedTensorDict(*parts, stack_dim=stack_dim)
        assert valid_transitions(lazy)["number"].tolist() == [0, 0, 1]
    apart = TensorDict({"next": LazyStackedTensorDict(*(part["next"] for part in parts), stack_dim=0)}, [2, 2])
    assert valid_transitions(apart)["next", "number"].tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        ("td", TypeError, "got 'td' of type str, expected a TensorDict"),
        (
            TensorDict({"x": torch.zeros(2)}, [2]),
            KeyError,
            r"next: missing, expected what a step returned; got .*\['x'\]",
        ),
        (steps(2, valid=torch.ones(2, 1)), ValueError, r"next.valid: got \[2, 1\] and torch.float32, expected bool"),
        (
            steps(2, valid=torch.ones(2, 3) > 0),
            ValueError,
            r"next.valid: got \[2, 3\] .*expected bool of shape \[2, 1\]",
        ),
    ],
)
def test_misuse(wrong: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        valid_transitions(wrong)
