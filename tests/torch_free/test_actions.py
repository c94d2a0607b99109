"""Actions as users give them, handed out env by env as gymnasium does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import assert_same
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from hypothesis import given
from hypothesis import strategies as st
from space_strategies import any_spaces, batchable, sample_of

from gymbridge.spaces.naming import action_tree
from gymbridge.vector.actions import ActionLeaves


def rows(space: spaces.Space, actions: Any, num_envs: int) -> list[Any]:
    """One action an env, as a host hands them out."""
    tree = action_tree(space)
    return list(tree.rows(ActionLeaves(tree, num_envs)(actions), num_envs))


@given(any_spaces(min_items=1).filter(batchable), st.integers(0, 1000))
def test_a_sample_is_handed_out_as_gymnasium_does(space: spaces.Space, seed: int) -> None:
    batched = batch_space(space, 3)
    actions = sample_of(batched, seed)
    assert_same(rows(space, actions, 3), list(iterate(batched, actions)))


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Discrete(3), [0, 2]),
        (spaces.Discrete(3), (np.int8(0), np.uint16(2))),
        (spaces.Discrete(3), np.array([0, 2], np.int32)),
        (spaces.Discrete(3), np.array([0, 5, 2, 5])[::2]),
        (spaces.Discrete(3), [True, False]),
        (spaces.Box(-1, 1, (2,)), [[0, 1], (0.5, 1)]),
        (spaces.Box(-1, 1, (2,)), [np.zeros(2), np.ones(2, np.float32)]),
        (spaces.Box(-1, 1, (2,)), np.zeros((2, 2), np.float64)),
        (spaces.Box(-1, 1, (2,)), np.ones((2, 2), np.int64)),
        (spaces.MultiBinary(2), [[True, False], [False, True]]),
        (spaces.Dict(a=spaces.Discrete(3)), {"a": [1, 2], "more": 5}),
        (spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(1)]), [[1, 2], [[0], [1]]]),
    ],
    ids=repr,
)
def test_actions_keep_their_types(space: spaces.Space, actions: Any) -> None:
    """Each env gets its item as it is: a Python int stays one, a float64 row is not cast."""
    ours = rows(space, actions, 2)
    assert_same(ours, list(iterate(batch_space(space, 2), actions)))


def test_the_rows_of_an_array_are_views_of_it() -> None:
    actions = np.zeros((2, 3), np.float32)
    for row in rows(spaces.Box(-1, 1, (3,)), actions, 2):
        assert np.shares_memory(row, actions)


def test_an_iterator_is_taken_once() -> None:
    assert rows(spaces.Discrete(3), iter([1, 2]), 2) == [1, 2]
