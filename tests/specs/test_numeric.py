"""Domains and draws of Bounded, Unbounded and Binary; the conversions beneath them."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given
from hypothesis import strategies as st

from gymbridge.errors import SpecError
from gymbridge.specs import Binary, Bounded, Unbounded
from gymbridge.specs._bridge import IntegerRange, as_torch_dtype, tensor_of

INF = math.inf
INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
CPU = torch.device("cpu")


@st.composite
def integer_ranges(draw):
    dtype = draw(st.sampled_from(INTEGERS))
    info = np.iinfo(dtype)
    ends = st.integers(int(info.min), int(info.max)) | st.sampled_from([int(info.min), int(info.max)])
    low, high = sorted([draw(ends), draw(ends)])
    return dtype, low, high


@given(integer_ranges(), st.integers(0, 2**32))
def test_integers_are_drawn_inside_and_checked_exactly(bounds, seed):
    """The whole range of each dtype, 64 bits included, without overflow; one step beyond a bound is outside."""
    dtype, low, high = bounds
    spec = Bounded(low, high, (64,), dtype=dtype)
    torch.manual_seed(seed)
    drawn = spec.rand().tolist()
    assert all(low <= value <= high for value in drawn)
    info = np.iinfo(dtype)
    for beyond in (low - 1, high + 1):
        if info.min <= beyond <= info.max:
            value = spec.encode(np.full(64, beyond, dtype=dtype))
            assert not spec.is_in(value)
            assert spec.project(value).tolist() == [min(max(beyond, low), high)] * 64


@pytest.mark.parametrize("dtype", INTEGERS)
def test_full_ranges_are_drawn_from_end_to_end(dtype):
    """Both halves of a dtype's range are drawn about as often: nothing wraps and nothing is lopsided."""
    info = np.iinfo(dtype)
    middle = (int(info.min) + int(info.max)) // 2
    torch.manual_seed(0)
    for spec in (Bounded(info.min, info.max, (4000,), dtype=dtype), Unbounded((4000,), dtype=dtype)):
        upper = sum(value > middle for value in spec.rand().tolist())
        assert 1800 < upper < 2200


def test_wide_ranges_have_no_modulo_bias():
    """Three quarters of 2**64: bits modulo the count would make the lowest quarter twice as frequent as the others."""
    torch.manual_seed(0)
    quarter = 2**62
    spec = Bounded(0, 3 * quarter - 1, (6000,), dtype=torch.uint64)
    counts = np.bincount([value // quarter for value in spec.rand().tolist()], minlength=3)
    assert counts.min() > 1800


def test_each_element_has_its_own_range():
    low, high = torch.tensor([[0], [10]]), torch.tensor([0, 5, 2**40])
    spec = Bounded(low.expand(2, 3), torch.stack([high, high + 10]), dtype=torch.int64)
    values = spec.rand((1000,))
    assert (values >= spec.low).all()
    assert (values <= spec.high).all()
    assert values[:, 0, 0].unique().tolist() == [0]
    assert values[:, 1, 1].unique().tolist() == list(range(10, 16))


@st.composite
def float_bounds(draw):
    dtype = draw(st.sampled_from(["float16", "float32", "float64"]))
    width = int(dtype[-2:])
    ends = st.floats(width=width, allow_nan=False, allow_infinity=False)
    low, high = sorted([draw(ends), draw(ends)])
    return dtype, draw(st.sampled_from([low, -INF])), draw(st.sampled_from([high, INF]))


@given(float_bounds(), st.integers(0, 2**32))
def test_floats_are_drawn_inside_and_checked(bounds, seed):
    """Each combination of finite and infinite bounds, up to the dtype's extremes, gives numbers and not NaN."""
    dtype, low, high = bounds
    spec = Bounded(low, high, (64,), dtype=dtype)
    torch.manual_seed(seed)
    drawn = spec.rand()
    assert ((drawn >= low) & (drawn <= high)).all()
    number = np.dtype(dtype).type
    with np.errstate(over="ignore"):
        beyond = [float(np.nextafter(number(low), number(-INF))), float(np.nextafter(number(high), number(INF)))]
    for value in beyond:
        assert spec.is_in(torch.full((64,), value, dtype=spec.dtype)) == (low <= value <= high)


@pytest.mark.parametrize(("low", "high"), [(-INF, INF), (2.0, INF), (-INF, -3.0), (-1.0, 4.0)])
def test_distribution_is_gymnasiums(low, high):
    """Mean and spread of normal, exponential and uniform draws agree with those of Box.sample."""
    torch.manual_seed(0)
    ours = Bounded(low, high, (20_000,)).rand().numpy()
    theirs = Box(low, high, (20_000,), seed=0).sample()
    assert abs(ours.mean() - theirs.mean()) < 0.1
    assert abs(ours.std() - theirs.std()) < 0.1


def test_nan_is_outside_of_bounds_and_inside_of_none():
    nan = torch.tensor([math.nan])
    assert not Bounded(-INF, INF, (1,)).is_in(nan)
    assert Unbounded(1).is_in(nan)
    assert Bounded(2, 3, (1,)).project(nan).tolist() == [2.0]


def test_project_clamps_where_it_must():
    spec = Bounded([0.0, -1.0], [1.0, INF])
    value = torch.tensor([[7.0, -7.0], [0.5, 7.0]], requires_grad=True)
    moved = spec.project(value)
    assert moved.tolist() == [[1.0, -1.0], [0.5, 7.0]]
    assert moved.requires_grad
    with pytest.raises(SpecError, match=r"dtype: got torch.float64, expected torch.float32"):
        spec.project(value.double())


def test_project_of_binary_rounds():
    assert Binary(4, dtype=torch.float32).project(torch.tensor([0.2, 0.7, 9.0, -3.0])).tolist() == [0, 1, 1, 0]
    assert Binary(2, dtype=torch.uint16).project(torch.tensor([1, 9], dtype=torch.uint16)).tolist() == [1, 1]


@pytest.mark.parametrize(
    "dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int64", "float16", "float32", "bool"]
)
def test_bounds_keep_every_bit_of_a_box(dtype):
    """What a Box needs to be made again is in the spec exactly."""
    rng = np.random.default_rng(0)
    if dtype == "bool":
        low, high = np.array([False, False, True]), np.array([True, False, True])
    elif dtype.startswith("f"):
        low = rng.normal(size=(2, 3)).astype(dtype)
        high = low + np.float32(1).astype(dtype)
    else:
        info = np.iinfo(dtype)
        low, high = np.array([info.min, 3], dtype), np.array([info.max, 100], dtype)
    spec = Bounded(low, high, dtype=dtype)
    assert spec.low.numpy().dtype == low.dtype
    assert np.array_equal(spec.low.numpy(), low)
    assert np.array_equal(spec.high.numpy(), high)


def test_infinite_integer_bounds_are_the_dtypes_extremes():
    spec = Bounded(-INF, [INF, 7.0], dtype=torch.int16)
    assert (spec.low.tolist(), spec.high.tolist()) == ([-(2**15)] * 2, [2**15 - 1, 7])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": 0, "high": 1}, "needs a shape"),
        ({"low": 1, "high": 0, "shape": 2}, "low > high"),
        ({"low": math.nan, "high": 0, "shape": 2}, "low must be numbers"),
        ({"low": INF, "high": INF, "shape": 2}, "leaves no"),
        ({"low": 0, "high": -INF, "shape": 2}, "leaves no"),
        ({"low": 0, "high": 1e300, "shape": 2}, "does not fit"),
        ({"low": 0, "high": 256, "shape": 2, "dtype": torch.uint8}, "does not fit"),
        ({"low": -1, "high": 6, "shape": 2, "dtype": torch.uint64}, "does not fit"),
        ({"low": 0.5, "high": 6, "shape": 2, "dtype": torch.int32}, "does not fit"),
        ({"low": [0, 0, 0], "high": 1, "shape": 2}, "do not fit shape"),
        ({"low": "a", "high": 1, "shape": 2}, "must be numbers"),
        ({"low": 0, "high": 1, "shape": (-2,)}, "ints >= -1"),
        ({"low": 0, "high": 1, "shape": (True,)}, "ints >= -1"),
        ({"low": 0, "high": 1, "shape": 2, "dtype": torch.complex64}, "cannot have dtype"),
        ({"low": 0, "high": 1, "shape": 2, "dtype": np.complex128}, "no torch dtype"),
    ],
)
def test_impossible_bounds_are_refused(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Bounded(**arguments)


def test_binary_says_what_it_was_made_from():
    """MultiBinary(3) and MultiBinary((3,)) are different spaces of one spec."""
    assert (Binary(3).n, Binary(shape=3).n) == (3, None)
    assert Binary(3) == Binary(shape=3)
    with pytest.raises(TypeError, match="n or a shape"):
        Binary()
    for n, shape in ((3, (2,)), (3, ())):
        with pytest.raises(ValueError, match="n=3"):
            Binary(n, shape)


def test_binary_domain():
    spec = Binary(2)
    assert not spec.is_in(torch.tensor([0, 2], dtype=torch.int8))
    assert not spec.is_in(torch.tensor([0, -1], dtype=torch.int8))
    assert spec.rand((100,)).unique().tolist() == [0, 1]


def test_another_dtype_keeps_the_domain():
    assert Bounded(-1.5, 1.5, (2,)).to(torch.int8) == Bounded(-1, 1, (2,), dtype=torch.int8)
    assert Bounded(0, 255, (2,), dtype=torch.uint8).to(torch.float32) == Bounded(0, 255, (2,))
    assert Unbounded(2).to(torch.int8) == Unbounded(2, dtype=torch.int8)
    assert Binary(2).to(torch.bool) == Binary(2, dtype=torch.bool)
    with pytest.raises(ValueError, match="does not fit"):
        Bounded(0, 255, (2,), dtype=torch.uint8).to(torch.int8)


def test_default_dtype_is_torchs():
    try:
        torch.set_default_dtype(torch.float64)
        assert Bounded(0, 1, 2).dtype == Unbounded(2).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_default_device_is_torchs():
    with torch.device("meta"):
        assert Unbounded(2).device == Bounded(0, 1, 2).device == torch.device("meta")
    assert Unbounded(2).device == torch.device("cpu")


def test_faults_say_where_and_how_many():
    spec = Bounded(0, 1, (2, 2))
    (fault,) = spec.faults(torch.tensor([[0.0, 3.0], [1.0, -3.0]]), ("agents", "pos"))
    assert fault == "('agents', 'pos'): out of domain: got 3.0 at [0, 1] (2 wrong), expected low=0.0 to high=1.0"


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        ([0.5], torch.int64, "0.5"),
        ([300], torch.uint8, "300"),
        ([-1], torch.uint64, "-1"),
        ([math.nan], torch.int32, "nan"),
        ([2], torch.bool, "2"),
        (torch.tensor([300]), torch.int8, "300"),
        ([[1, 2], [3]], torch.int64, "not a regular array"),
        (["a"], torch.float32, "expected numbers"),
        (None, torch.float32, "expected numbers"),
    ],
)
def test_encode_refuses_what_the_dtype_cannot_hold(value, dtype, message):
    with pytest.raises(SpecError, match=message):
        Unbounded(1, dtype=dtype).encode(value)


@given(integer_ranges())
def test_tensors_hold_each_integer_exactly(bounds):
    dtype, low, high = bounds
    assert tensor_of([low, high], as_torch_dtype(dtype), CPU).tolist() == [low, high]


def test_encode_copies_and_casts():
    array = np.array([1.0, 2.0])
    spec = Unbounded(2)
    encoded = spec.encode(array)
    array[0] = 7
    assert encoded.tolist() == [1.0, 2.0]
    assert encoded.dtype == torch.float32
    given_ = torch.tensor([1.0, 2.0])
    encoded = spec.encode(given_)
    given_[0] = 7
    assert encoded.tolist() == [1.0, 2.0]
    back = spec.to_numpy(encoded)
    encoded[0] = 9
    assert back.tolist() == [1.0, 2.0]
    assert spec.encode(np.array([3, 4], dtype=">i2")[::-1]).tolist() == [4.0, 3.0]


def test_encode_names_a_wrong_shape():
    with pytest.raises(SpecError, match=r"shape: got \[3\], expected \[..., 2\]"):
        Unbounded(2).encode([1, 2, 3])
    with pytest.raises(SpecError, match=r"shape: got \[3\], expected \[..., 2\]"):
        Unbounded(2).to_numpy(torch.zeros(3))


def test_integer_range_of_one_value():
    seven = torch.tensor(7, dtype=torch.uint32)
    assert IntegerRange(seven, seven).draw(torch.Size([3])).tolist() == [7, 7, 7]


def test_dynamic_dims():
    spec = Bounded([[0.0], [1.0]], 2, (2, -1))
    assert spec.is_dynamic
    assert not spec[:, 0].is_dynamic
    assert spec.rand().shape == spec.zero().shape == (2, 1)
    assert spec.rand((3,)).shape == (3, 2, 1)
    assert spec.is_in(torch.ones(2, 9))
    assert spec.is_in(torch.ones(2, 0))
    assert not spec.is_in(torch.zeros(2, 9))
    assert not spec.is_in(torch.ones(3, 9))
    assert spec[1] == Bounded(1, 2, (-1,))
    assert spec[:, 5] == Bounded([0.0, 1.0], 2)
    assert spec[:, 2:4] == Bounded([[0.0], [1.0]], 2, (2, 2))
    assert spec[:, None, 2:].shape == (2, 1, -1)
    assert spec.expand(-1, 2, -1).shape == (-1, 2, -1)
    assert spec.expand(-1, 2, -1)[0] == spec
    assert spec.unsqueeze(1).shape == (2, 1, -1)
    assert spec.encode([[1, 2, 3], [4, 5, 6]]).shape == (2, 3)
    for refused in (lambda: spec.flatten(), lambda: spec.reshape(-1), lambda: spec.unbind(1)):
        with pytest.raises(ValueError, match="dynamic"):
            refused()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32])
def test_an_expanded_spec_is_pickled_once(dtype):
    """Specs go to every worker: bounds that are one number, or the same for each env, travel as such."""
    small, large = Bounded(0, 255, (2, 3), dtype=dtype), Bounded(0, 255, (4, 84, 84), dtype=dtype).expand(8, 4, 84, 84)
    assert len(pickle.dumps(large)) < len(pickle.dumps(small)) + 100
    assert pickle.loads(pickle.dumps(large)) == large


@pytest.mark.parametrize("change", ["expand", "reshape"])
def test_a_spec_without_dims_keeps_its_shape(change: str) -> None:
    for spec in (Bounded(-1, 1, ()), Unbounded(())):
        assert getattr(spec, change)(()) == spec
        assert getattr(spec, change)() == spec


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("end", ["lowest", "highest"])
def test_integers_are_drawn_up_to_the_ends_of_their_dtype(dtype: torch.dtype, end: str) -> None:
    limits = torch.iinfo(dtype)
    low, high = (limits.min, limits.min + 1) if end == "lowest" else (limits.max - 1, limits.max)
    spec = Bounded(low, high, (64,), dtype=dtype)
    torch.manual_seed(0)
    assert sorted(set(spec.rand().tolist())) == [low, high]
    assert sorted(set(spec.to("cpu")[:8].rand((16,)).flatten().tolist())) == [low, high]
