"""Values, masks and encodings of Categorical, MultiCategorical, OneHot and MultiOneHot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gymbridge.errors import SpecError
from gymbridge.specs import Categorical, MultiCategorical, MultiOneHot, OneHot, Stacked


@st.composite
def choices(draw):
    """A shape for nvec, nvec, start, a batch shape and a mask in which each slot keeps one value at least."""
    event = draw(st.lists(st.integers(1, 3), max_size=3))
    size = int(np.prod(event))
    nvec = np.array(draw(st.lists(st.integers(1, 4), min_size=size, max_size=size))).reshape(event)
    start = np.array(draw(st.lists(st.integers(-9, 9), min_size=size, max_size=size))).reshape(event)
    batch = draw(st.sampled_from([(), (2,), (2, 1)]))
    total = int(nvec.sum())
    bits = np.array(draw(st.lists(st.booleans(), min_size=total * int(np.prod(batch)), max_size=total * 2)))
    mask = np.resize(bits, (*batch, total))
    for first in np.cumsum(nvec) - nvec.ravel():
        mask[..., first] = True
    return nvec, start, batch, mask


def allowed_values(nvec, start, mask):
    """The values that a mask leaves to each slot, one batch element."""
    ends = np.cumsum(nvec)
    return [
        {int(a) + i for i, bit in enumerate(mask[end - n : end]) if bit}
        for a, n, end in zip(start.ravel(), nvec.ravel(), ends, strict=True)
    ]


@given(choices(), st.integers(0, 2**32))
def test_masked_values_are_never_drawn_and_all_others_are_in(choice, seed):
    nvec, start, batch, mask = choice
    spec = MultiCategorical(nvec, (*batch, *nvec.shape), mask=mask, start=start)
    hot = MultiOneHot(nvec, (*batch, int(nvec.sum())), mask=mask, start=start)
    assert spec.to_one_hot_spec() == hot
    assert hot.to_categorical_spec() == spec
    torch.manual_seed(seed)
    for values in (spec.rand((20,)).numpy(), hot.to_numpy(hot.rand((20,)))):
        for place in np.ndindex(*batch):
            rows = values[(slice(None), *place)].reshape(20, -1)
            for slot, allowed in enumerate(allowed_values(nvec, start, mask[place])):
                assert set(rows[:, slot].tolist()) <= allowed
    free = MultiCategorical(nvec, (*batch, *nvec.shape), start=start).rand((20,))
    expected = [
        all(
            int(v) in allowed
            for place in np.ndindex(*batch)
            for v, allowed in zip(row[place].ravel(), allowed_values(nvec, start, mask[place]), strict=True)
        )
        for row in free.numpy()
    ]
    assert [spec.is_in(row) for row in free] == expected
    assert [hot.is_in(hot.encode(row)) for row in free.numpy()] == expected
    assert spec.is_in(spec.project(free))
    assert torch.equal(spec.mask, torch.as_tensor(mask))


@given(choices(), st.integers(0, 2**32))
def test_one_hot_bits_stand_for_the_values(choice, seed):
    """Slot by slot, the set bit is the value's place in its range."""
    nvec, start, batch, _ = choice
    spec = MultiOneHot(nvec, (*batch, int(nvec.sum())), start=start)
    torch.manual_seed(seed)
    hot = spec.rand()
    bits = hot.reshape(-1, int(nvec.sum()))
    groups = [group.nonzero()[:, 1] for group in bits.split(nvec.ravel().tolist(), -1)]
    decoded = torch.stack(groups, -1).reshape((*batch, *nvec.shape)) + torch.as_tensor(start)
    assert torch.equal(spec.encode(decoded.numpy()), hot)
    assert np.array_equal(spec.to_numpy(hot), decoded.numpy())


@pytest.mark.parametrize("value", [-2, 2, 2**40])
def test_values_beyond_the_range_are_outside(value):
    spec = Categorical(3, start=-1)
    assert not spec.is_in(torch.tensor(value))
    assert spec.faults(torch.tensor(value), ("a",)) == [
        f"'a': out of domain: got {value} at [] (1 wrong), expected -1 to 1"
    ]
    assert int(spec.project(torch.tensor(value))) == min(max(value, -1), 1)


def test_each_value_is_drawn():
    torch.manual_seed(0)
    assert Categorical(4, start=3).rand((200,)).unique().tolist() == [3, 4, 5, 6]
    assert OneHot(4).rand((200,)).int().argmax(-1).unique().tolist() == [0, 1, 2, 3]
    assert MultiCategorical([1, 3], start=[9, 0]).rand((200,)).unique(dim=0).tolist() == [[9, 0], [9, 1], [9, 2]]
    masked = Categorical(4, mask=[True, False, True, True]).rand((3000,)).bincount().tolist()
    assert masked[1] == 0
    assert min(masked[0], masked[2], masked[3]) > 850


def test_update_mask():
    spec = Categorical(3, (2,))
    twin = spec.clone()
    spec.update_mask([[True, False, False], [False, False, True]])
    assert spec.rand().tolist() == [0, 2]
    assert spec != twin
    assert twin.mask is None
    assert spec[1].rand().item() == 2
    assert spec.expand(2, 2).rand().tolist() == [[0, 2], [0, 2]]
    spec.update_mask(None)
    assert spec == twin
    hot = OneHot(3)
    hot_twin = hot.clone()
    hot.update_mask(torch.tensor([False, True, False]))
    assert hot.rand().tolist() == [False, True, False]
    assert hot_twin.mask is None
    assert "mask=[False True False]" in repr(hot)


@pytest.mark.parametrize("spec", [Categorical(3), OneHot(3), MultiCategorical([3]), MultiOneHot([1, 2])])
def test_bad_masks_are_refused(spec):
    with pytest.raises(ValueError, match=r"mask: got shape \[2\], expected \[3\]"):
        spec.update_mask([True, False])
    with pytest.raises(ValueError, match="without any value"):
        spec.update_mask([False, False, False])
    assert spec.mask is None


def test_project_prefers_the_nearest_allowed_value():
    spec = Categorical(6, (3,), mask=[True, False, False, False, True, False], start=10)
    assert spec.project(torch.tensor([11, 13, 99])).tolist() == [10, 14, 14]
    hot = OneHot(3, mask=[True, True, False], dtype=torch.float32)
    assert hot.project(torch.tensor([0.2, 0.7, 9.0])).tolist() == [0, 1, 0]
    assert hot.project(torch.full((3,), float("nan"))).tolist() == [1, 0, 0]
    multi = MultiOneHot([2, 2], dtype=torch.int64)
    assert multi.project(torch.tensor([1, 1, 0, 0])).tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("bits", [[0, 0, 0], [1, 1, 0], [2, 0, 0], [0, 0, -1]])
def test_what_is_not_one_hot_is_outside(bits):
    spec = OneHot(3, dtype=torch.int64)
    assert not spec.is_in(torch.tensor(bits))
    with pytest.raises(SpecError, match="exactly one bit"):
        spec.to_numpy(torch.tensor(bits))


def test_one_hot_values_are_the_spaces():
    spec = OneHot(3, start=5, categorical_dtype=torch.int16)
    value = spec.to_numpy(spec.encode(7))
    assert value == 7
    assert value.dtype == np.int16
    assert spec.encode([5, 6]).int().tolist() == [[1, 0, 0], [0, 1, 0]]
    for wrong in (4, 8):
        with pytest.raises(SpecError, match="expected 5 to 7"):
            spec.encode(wrong)
    with pytest.raises(SpecError, match=r"shape: got \[\], expected \[..., 2\]"):
        MultiOneHot([2, 3]).encode(1)
    assert spec.to_categorical_spec() == Categorical(3, start=5, dtype=torch.int16)
    assert Categorical(3, (2,), start=5).to_one_hot_spec() == OneHot(3, (2, 3), start=5)
    assert Categorical(3, start=5).to_one_hot(torch.tensor([6])).tolist() == [[False, True, False]]
    assert spec.to_categorical(torch.tensor([False, True, False])).item() == 6


def test_masked_values_can_still_be_decoded():
    """A value that was drawn before the mask changed keeps its meaning, in either encoding."""
    for spec in (OneHot(3), Categorical(3), MultiOneHot([3])):
        value = spec.encode(np.full(spec.to_categorical_spec().shape, 2))
        spec.update_mask([True, False, False])
        assert not spec.is_in(value)
        assert np.all(spec.to_numpy(value) == 2)


def test_discrete_scalars_come_back_as_scalars():
    assert isinstance(Categorical(3).to_numpy(torch.tensor(2)), np.int64)
    assert isinstance(Categorical(3, dtype=torch.uint8).to_numpy(torch.tensor(2, dtype=torch.uint8)), np.uint8)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Categorical(0), ValueError, "positive"),
        (lambda: Categorical(2.5), ValueError, "positive"),
        (lambda: Categorical([2, 3]), ValueError, "one integer"),
        (lambda: Categorical(257, dtype=torch.uint8), ValueError, "cannot hold 257"),
        (lambda: Categorical(3, dtype=torch.uint8, start=254), ValueError, "from 254 on"),
        (lambda: Categorical(3, dtype=torch.uint8, start=-1), ValueError, "from -1 on"),
        (lambda: Categorical(3, dtype=torch.bool), ValueError, "cannot hold 3"),
        (lambda: Categorical(3, dtype=torch.float32), TypeError, "integer or bool dtype"),
        (lambda: Categorical(3, start=0.5), TypeError, "start must be an integer"),
        (lambda: MultiCategorical([2, 3], start=[1, 2, 3]), ValueError, "start: got shape"),
        (lambda: MultiCategorical([2, 3], (2, 3)), ValueError, r"ends with \[2\]"),
        (lambda: MultiCategorical([2, 0]), ValueError, "positive"),
        (lambda: OneHot(3, (4,)), ValueError, r"ends with \[3\]"),
        (lambda: MultiOneHot([2, 3], (2,)), ValueError, r"ends with \[5\]"),
    ],
)
def test_impossible_choices_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("spec", [OneHot(3, (2, 3)), MultiCategorical([[2, 3]], (2, 1, 2)), MultiOneHot([2], (2, 2))])
def test_event_dims_are_not_batch_dims(spec):
    with pytest.raises(IndexError, match="batch dims"):
        spec[0, 0]
    with pytest.raises(IndexError, match="batch dim"):
        spec.squeeze(-1)
    with pytest.raises(IndexError, match="batch dims"):
        spec.unsqueeze(-1)
    with pytest.raises(ValueError, match="cannot reshape"):
        spec.reshape(-1)


def test_enumerate_with_masks_that_differ_is_refused():
    spec = Categorical(2, (2,), mask=[[True, False], [False, True]])
    with pytest.raises(ValueError, match="one mask"):
        spec.enumerate(use_mask=True)


def test_a_stack_gives_each_spec_its_mask():
    spec = Stacked(Categorical(2), Categorical(3), dim=0)
    spec.update_mask([[False, True], [False, False, True]])
    assert spec.rand((4,)).tolist() == [[1, 2]] * 4
    with pytest.raises(ValueError, match="got 1"):
        spec.update_mask([[True, True]])
