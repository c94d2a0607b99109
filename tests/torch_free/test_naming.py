"""Keys of a space's leaves, and samples taken apart and put together."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from agreement import assert_same
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from hypothesis import given
from hypothesis import strategies as st
from space_strategies import DICT_KEYS, any_spaces, batchable, sample_of

from gymbridge.spaces.naming import RESERVED_KEYS, action_tree, observation_tree, root_key, space_tree

A, B = spaces.Discrete(2), spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("space", "observation", "action"),
    [
        (A, [("observation",)], [("action",)]),
        (spaces.Dict(x=A, y=B), [("x",), ("y",)], [("action", "x"), ("action", "y")]),
        (spaces.Tuple([A, B]), [("observation", "0"), ("observation", "1")], [("action", "0"), ("action", "1")]),
        (spaces.Dict(x=spaces.Dict(y=A)), [("x", "y")], [("action", "x", "y")]),
        (spaces.Dict(x=spaces.Tuple([A, spaces.Dict(y=B)])), [("x", "0"), ("x", "1", "y")], None),
        (spaces.Dict(reward=A, _x=B), [("_user", "_x"), ("_user", "reward")], [("action", "_x"), ("action", "reward")]),
        (spaces.Dict(done=spaces.Dict(done=A)), [("_user", "done", "done")], [("action", "done", "done")]),
        (spaces.Dict(x=spaces.Dict(reward=A)), [("x", "reward")], None),
        (spaces.Dict({"a.b": A, "": B}), [("",), ("a.b",)], None),
        (spaces.Dict(), [], []),
        (spaces.Tuple([]), [], []),
        (spaces.Dict(x=spaces.Dict(), y=A), [("y",)], [("action", "y")]),
    ],
    ids=str,
)
def test_keys(space: spaces.Space, observation: list[Any], action: list[Any] | None) -> None:
    assert sorted(leaf.key for leaf in observation_tree(space).leaves) == observation
    if action is not None:
        assert sorted(leaf.key for leaf in action_tree(space).leaves) == action


def test_the_reserved_keys() -> None:
    reserved = "reward done terminated truncated action next info env_index valid".split()  # noqa: SIM905
    assert set(reserved) == RESERVED_KEYS
    for key in (*reserved, "_", "_reset", "_user"):
        assert root_key(key) == ("_user", key)
    for key in ("observation", "rewards", "", "x_", "0"):
        assert root_key(key) == (key,)


@given(any_spaces(), st.integers(0, 1000))
def test_a_sample_taken_apart_goes_together_again(space: spaces.Space, seed: int) -> None:
    sample = sample_of(space, seed)
    for tree in (observation_tree(space), action_tree(space), space_tree(space, ("x",))):
        values = tree.flatten(sample)
        assert len(values) == len(tree.leaves)
        assert len({leaf.key for leaf in tree.leaves}) == len(tree.leaves)
        for leaf, value in zip(tree.leaves, values, strict=True):
            assert leaf.space.contains(value)
            assert leaf.shape == np.shape(value)
            assert leaf.dtype == np.asarray(value).dtype
        together = tree.unflatten(values)
        assert_same(together, _plain(sample))


def _plain(sample: Any) -> Any:
    """Dicts and tuples of the plain types, down to the leaves."""
    if isinstance(sample, dict):
        return {key: _plain(value) for key, value in sample.items()}
    return tuple(_plain(value) for value in sample) if isinstance(sample, tuple) else sample


@given(any_spaces(min_items=1).filter(batchable), st.integers(0, 1000))
def test_rows_are_what_gymnasium_iterates_over(space: spaces.Space, seed: int) -> None:
    num_rows = 3
    batched = gym.vector.utils.batch_space(space, num_rows)
    batch = sample_of(batched, seed)
    tree = space_tree(space)
    rows = list(tree.rows(tree.flatten(batch), num_rows))
    assert_same(rows, list(iterate(batched, batch)))
    together = concatenate(space, rows, create_empty_array(space, num_rows))
    assert_same(tree.unflatten(tree.flatten(together)), together)


@pytest.mark.parametrize("space", [spaces.Dict(), spaces.Tuple([]), spaces.Dict(x=spaces.Tuple([]))], ids=str)
def test_rows_of_a_space_without_leaves(space: spaces.Space) -> None:
    sample = space.sample()
    assert_same(list(space_tree(space).rows([], 2)), [sample, sample])


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"x": 1}, "the root lacks the item 'y': got a dict with keys ['x'], expected items ['x', 'y']"),
        ({"x": 1, "y": (2,)}, "y lacks the item 1: got a tuple of length 1, expected items [0, 1]"),
        ({"x": 1, "y": 3}, "y lacks the item 0: got 3, expected items [0, 1]"),
        ([1, 2], "the root lacks the item 'x': got a list of length 2, expected items ['x', 'y']"),
        (np.zeros(2), "the root lacks the item 'x': got an array of shape (2,) and dtype float64, expected items"),
    ],
    ids=repr,
)
def test_a_missing_item_is_named(sample: Any, message: str) -> None:
    with pytest.raises(KeyError) as raised:
        observation_tree(spaces.Dict(x=A, y=spaces.Tuple([A, A]))).flatten(sample)
    assert raised.value.args[0].startswith(message)


def test_items_that_the_space_lacks_are_left_out() -> None:
    assert observation_tree(spaces.Dict(x=A)).flatten({"x": 1, "more": 2}) == [1]


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (spaces.Text(3), "observation"),
        (spaces.Dict(x=spaces.Sequence(A)), "x"),
        (spaces.Tuple([spaces.Graph(B, None)]), "observation.0"),
    ],
    ids=str,
)
def test_a_space_without_arrays_is_a_leaf_of_objects(space: spaces.Space, name: str) -> None:
    [leaf] = observation_tree(space).leaves
    assert (leaf.name, leaf.is_array, leaf.shape, leaf.dtype) == (name, False, (), np.dtype(object))


def test_a_custom_space_is_a_leaf_of_objects_and_a_subclass_of_a_known_one_is_known() -> None:
    class Custom(spaces.Space):  # type: ignore[type-arg]
        pass

    class Special(spaces.Box):
        pass

    assert not observation_tree(Custom()).leaves[0].is_array
    assert observation_tree(Special(-1, 1, (2,))).leaves[0].shape == (2,)


def test_what_is_no_space_or_no_key() -> None:
    with pytest.raises(TypeError, match="the root: got 3, expected a gymnasium Space"):
        observation_tree(3)  # type: ignore[arg-type]
    space = spaces.Dict(x=A)
    space.spaces[4] = A  # type: ignore[index]
    with pytest.raises(TypeError, match="the root: got the Dict key 4, expected a string"):
        observation_tree(space)
    with pytest.raises(TypeError, match="action: got the Dict key 4, expected a string"):
        action_tree(space)


@given(st.permutations(DICT_KEYS))
def test_no_two_keys_of_a_dict_collide(keys: list[str]) -> None:
    space = spaces.Dict([(key, A) for key in keys])
    assert len({leaf.key for leaf in observation_tree(space).leaves}) == len(keys)
