"""``add_info`` against ``gymnasium.vector.VectorEnv._add_info``, and where it goes further."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from agreement import assert_same
from hypothesis import example, given
from hypothesis import strategies as st
from space_strategies import INFO_VALUES, Thing, info_sequences

from gymbridge.vector.infos import add_info


def ours(infos: list[dict[str, Any] | None]) -> dict[str, Any]:
    batch: dict[str, Any] = {}
    for index, info in enumerate(infos):
        if info is not None:
            add_info(batch, info, index, len(infos))
    return batch


def theirs(infos: list[dict[str, Any] | None]) -> dict[str, Any]:
    envs = gym.vector.VectorEnv()
    envs.num_envs = len(infos)
    batch: dict[str, Any] = {}
    for index, info in enumerate(infos):
        if info is not None:
            batch = envs._add_info(batch, info, index)
    return batch


@given(info_sequences(6, depth=3))
def test_entries_of_one_kind_are_gymnasiums(sequences: tuple[list[dict[str, Any]]]) -> None:
    """Any kind of value, nested, coming and going; and the infos themselves are left alone."""
    (infos,) = sequences
    before = copy.deepcopy(infos)
    assert_same(ours(list(infos)), theirs(copy.deepcopy(list(infos))))
    assert_same(infos, before)


@pytest.mark.parametrize("values", INFO_VALUES)
def test_each_kind_of_value_is_gymnasiums(values: st.SearchStrategy[Any]) -> None:
    @given(st.lists(values, min_size=1, max_size=4))
    def check(several: list[Any]) -> None:
        infos: list[Any] = [{"x": value, "inner": {"x": value}} for value in several]
        assert_same(ours([*infos, {}, None]), theirs([*infos, {}, None]))

    check()


NUMBERS = st.one_of(*(INFO_VALUES[kind] for kind in range(8)))


@given(st.lists(NUMBERS, min_size=1, max_size=5))
@example([1, 2.7])
@example([True, 2])
@example([2**63 - 1, 0.5])
@example([np.int8(1), 300])
@example([np.uint64(2**64 - 1), -1])
@example([2.5, 2**53 + 1])
@example([np.float16(1), 1e30])
def test_no_number_is_cut_off(values: list[Any]) -> None:
    """Numbers of any kinds under one key: no fraction, sign or size is lost; a float may be rounded to a short one."""
    batch = ours([{"x": value} for value in values])["x"]
    assert batch.shape == (len(values),)
    for got, value in zip(batch, values, strict=True):
        with np.errstate(over="ignore"):
            rounded = [np.float64(value), np.float16(value), np.float32(value)]
        allowed = [value, *(one for one in rounded if np.isinf(one) == np.isinf(rounded[0]))]
        assert any(np.array_equal(got, one, equal_nan=True) for one in allowed), (got, value, batch.dtype)


@given(st.lists(st.one_of(*INFO_VALUES), min_size=1, max_size=5))
def test_any_mixture_is_taken_and_each_entry_can_be_read_back(values: list[Any]) -> None:
    """Where gymnasium raises or loses the value, the batch has it."""
    batch = ours([{"x": value} for value in values])
    assert batch["_x"].tolist() == [True] * len(values)
    assert len(batch["x"]) == len(values)
    for got, value in zip(batch["x"], values, strict=True):
        if isinstance(value, (tuple, list)):  # where an array has its shape it stands in it, as gymnasium has it
            assert list(got) in (list(value), [str(part) for part in value])
        elif isinstance(value, (str, bytes, Thing)):
            assert got == value
        elif isinstance(value, np.ndarray):
            assert_same(np.asarray(got, value.dtype), value)


def test_final_obs_is_kept_as_it_is() -> None:
    """One object for each env, also where they could stand in one array."""
    batch = ours([{"final_obs": np.zeros(2)}, {}, {"final_obs": np.ones(2)}])
    assert_same(batch, theirs([{"final_obs": np.zeros(2)}, {}, {"final_obs": np.ones(2)}]))
    assert batch["final_obs"].dtype == object


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (np.zeros(2), np.zeros(3), [np.zeros(2), np.zeros(3)]),
        (np.zeros(2), 5, [np.zeros(2), 5]),  # gymnasium shows [5, 5]
        (5, np.zeros(2), [np.int64(5), np.zeros(2)]),
        (1.5, "2", [np.float64(1.5), "2"]),  # gymnasium reads the string
        (1, None, [np.int64(1), None]),
        ({"y": 1}, 2, [{"y": np.int64(1)}, 2]),
        (2, {"y": 1}, [np.int64(2), {"y": 1}]),
        (Thing("a"), {"y": 1}, [Thing("a"), {"y": 1}]),
        ({"y": {"z": 1}}, None, [{"y": {"z": np.int64(1)}}, None]),
    ],
    ids=repr,
)
def test_values_that_no_array_holds_together_become_objects(first: Any, second: Any, expected: list[Any]) -> None:
    batch = ours([{"x": first}, {}, {"x": second}])
    assert batch["x"].dtype == object
    assert batch["_x"].tolist() == [True, False, True]
    assert_same([batch["x"][0], batch["x"][2]], expected)
    assert batch["x"][1] is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.5, None], np.array([1.5, np.nan])),  # as gymnasium has it
        ([2**63, 1], np.array([2**63, 1], np.uint64)),
        (["a", "bcd"], np.array(["a", "bcd"], object)),
        ([np.array("a"), np.array("bcd")], np.array(["a", "bcd"])),
        ([2**70, 1], np.array([2**70, 1], object)),
        ([1, 2**70], np.array([1, 2**70], object)),
        ([np.float32(0.1), 0.1], np.array([0.1, 0.1], np.float32)),  # rounded, as gymnasium does
    ],
    ids=repr,
)
def test_the_dtype_of_a_batch(values: list[Any], expected: np.ndarray) -> None:
    batch = ours([{"x": value} for value in values])["x"]
    assert batch.dtype == expected.dtype
    assert np.array_equal(batch, expected, equal_nan=batch.dtype.kind == "f")


def test_a_complex_entry_widens_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(ours([{"x": 1.5}, {"x": np.complex64(2j)}])["x"], np.array([1.5, 2j]))


@pytest.mark.parametrize(
    "infos",
    [
        [{"a": 1, "_a": 2}, {"a": 3, "_a": 4}, {"a": 5, "_a": 6}],
        [{"_a": 2, "a": 1}, {"_a": 4, "a": 3}, {"_a": 6, "a": 5}],
        [{"_a": 2}, {"a": 3}, {"a": 5, "_a": 6}],
        [{"a": 1}, {"_a": 0}, {"a": 5, "_a": 0.5}],
        [{"a": {"b": 1, "_b": 2}}, {"a": {"b": 1, "_b": 2}, "_a": 3}],
    ],
    ids=repr,
)
def test_an_entry_that_has_the_name_of_a_mask(infos: list[Any]) -> None:
    """The two share one array, as in gymnasium."""
    assert_same(ours(infos), theirs(copy.deepcopy(infos)))


@pytest.mark.parametrize(
    ("in_the_masks_place", "first", "second"),
    [
        (np.ones((2, 3)), 1.5, "x"),
        (np.arange(4), np.zeros(2), np.zeros(3)),
        ({"c": 1}, 1, {"b": 2}),
        ({"c": 1}, {"b": 2}, 1),
        (np.zeros(2, [("a", "i4"), ("b", "f8")]), {"b": 2}, "x"),
        (np.array(1, "M8[s]"), np.zeros(2), 3),
    ],
    ids=repr,
)
def test_no_entry_in_a_masks_place_ends_a_run(in_the_masks_place: Any, first: Any, second: Any) -> None:
    """Nor costs it what other envs have under the key of the mask."""
    batch = ours([{"_a": in_the_masks_place}, {"a": first}, {"a": second}])["a"]
    assert batch.dtype == object
    assert [np.asarray(value).tolist() for value in batch[1:]] == [np.asarray(own).tolist() for own in (first, second)]
