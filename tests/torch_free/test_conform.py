"""The two policies for what an env returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import assert_same
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from space_strategies import BOX_DTYPES, HAS_DISCRETE_DTYPE, boxes, leaf_spaces, sample_of

from gymbridge.engine.conform import Conform, casting, exact
from gymbridge.errors import EnvOutputError
from gymbridge.spaces.naming import SpaceLeaf

POLICIES = pytest.mark.parametrize("policy", [casting, exact], ids=["casting", "exact"])


def leaf(space: spaces.Space) -> SpaceLeaf:
    return SpaceLeaf(("x",), space)


def stored(policy: Conform, space: spaces.Space, value: Any) -> np.ndarray:
    row = np.zeros(space.shape or (), space.dtype)
    row[...] = policy(leaf(space))(value)
    return row


@POLICIES
@given(leaf_spaces(), st.integers(0, 1000))
def test_samples_of_the_space_pass_unchanged(policy: Conform, space: spaces.Space, seed: int) -> None:
    sample = sample_of(space, seed)
    assert_same(stored(policy, space, sample), np.asarray(sample))


@given(boxes(dtypes=BOX_DTYPES), st.sampled_from(BOX_DTYPES), st.integers(0, 1000))
def test_casting_is_numpys_same_kind_or_exact(space: spaces.Box, dtype: np.dtype, seed: int) -> None:
    with np.errstate(all="ignore"):
        value = np.asarray(sample_of(space, seed)).astype(dtype)
        numpys = value.astype(space.dtype)
        exact_cast = np.array_equal(numpys.astype(object), value.astype(object))
        if np.can_cast(dtype, space.dtype, "same_kind"):
            assert_same(stored(casting, space, value), numpys)
        elif exact_cast:
            assert np.array_equal(stored(casting, space, value), value)
        else:
            with pytest.raises(EnvOutputError, match=r"^x: got "):
                casting(leaf(space))(value)


@given(boxes(), st.sampled_from(BOX_DTYPES))
def test_exact_takes_no_other_dtype(space: spaces.Box, dtype: np.dtype) -> None:
    value = np.zeros(space.shape, dtype)
    if dtype == space.dtype:
        assert exact(leaf(space))(value) is value
    else:
        with pytest.raises(EnvOutputError, match=rf"^x: got dtype {dtype}, expected {space.dtype}$"):
            exact(leaf(space))(value)


@POLICIES
@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 2), (2, 1)])
def test_no_other_shape_passes(policy: Conform, shape: tuple[int, ...]) -> None:
    space = spaces.Box(-1, 1, (2,), np.float32)
    with pytest.raises(EnvOutputError, match=r"^x: got shape \(.*\), expected \(2,\)$"):
        policy(leaf(space))(np.zeros(shape, np.float32))


@pytest.mark.parametrize("value", [1.0, [0.0, 0.0], None, "x"])
def test_exact_takes_arrays_only(value: Any) -> None:
    with pytest.raises(EnvOutputError, match=r"^x: got .*, expected an array of shape"):
        exact(leaf(spaces.Box(-1, 1, (2,), np.float32)))(value)


@POLICIES
@pytest.mark.parametrize("value", [2, np.int8(2), np.uint64(2), np.array(2), True])
def test_a_discrete_takes_any_integer(policy: Conform, value: Any) -> None:
    assert stored(policy, spaces.Discrete(3), value) == int(value)


@POLICIES
@pytest.mark.parametrize("value", [1.5, None, "1", np.array([1]), [1], np.nan, 2**70])
def test_a_discrete_takes_nothing_else(policy: Conform, value: Any) -> None:
    with pytest.raises(EnvOutputError, match=r"^x: got "):
        policy(leaf(spaces.Discrete(3)))(value)


@POLICIES
@pytest.mark.skipif(not HAS_DISCRETE_DTYPE, reason="Discrete has int64 only before gymnasium 1.2")
@pytest.mark.parametrize("value", [256, -1, np.int64(300)])
def test_an_integer_that_the_dtype_does_not_hold(policy: Conform, value: Any) -> None:
    with pytest.raises(EnvOutputError, match=r"^x: got .*, expected uint8: the cast changes it"):
        policy(leaf(spaces.Discrete(3, dtype=np.uint8)))(value)
