"""What every spec does, whatever its kind."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from spec_kinds import GROUPS, LEAVES, make, plain, same_value

from gymbridge.errors import SpecError
from gymbridge.specs import (
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    NonTensor,
    OneHot,
    Stacked,
    StackedComposite,
    TensorSpec,
    stack_specs,
)

ALL = LEAVES + GROUPS
DENSE = [name for name in ALL if "stack" not in name]


@pytest.fixture(params=ALL)
def spec(request: pytest.FixtureRequest) -> TensorSpec:
    return make(request.param)


@pytest.fixture(params=DENSE)
def dense(request: pytest.FixtureRequest) -> TensorSpec:
    return make(request.param)


@pytest.fixture(params=LEAVES)
def leaf(request: pytest.FixtureRequest) -> TensorSpec:
    return make(request.param)


def size_of(value: object) -> tuple[int, ...]:
    return tuple(value.shape)


@pytest.mark.parametrize("lead", [(), (5,), (0,), (2, 3)])
def test_draws_are_in_the_spec_and_have_its_shape(spec, lead):
    value = spec.rand(lead)
    assert spec.faults(value) == []
    assert [a for a, b in zip(value.shape, (*lead, *spec.shape), strict=True) if b not in (-1, a)] == []


@pytest.mark.parametrize("lead", [(), (3,)])
@pytest.mark.parametrize("fill", ["zero", "one"])
def test_fillers_have_the_form_of_a_value(spec, fill, lead):
    value = getattr(spec, fill)(lead)
    assert size_of(value) == size_of(spec.rand(lead))
    assert not [fault for fault in spec.faults(value) if "out of domain" not in fault]
    if isinstance(value, torch.Tensor):
        assert (value == {"zero": 0, "one": 1}[fill]).all()


def test_the_same_seed_draws_the_same(spec):
    torch.manual_seed(3)
    first = spec.rand((50,))
    torch.manual_seed(3)
    assert same_value(plain(first), plain(spec.rand((50,))))


@pytest.mark.parametrize("name", [n for n in LEAVES if "nontensor" not in n and "empty" not in n and "scalar" not in n])
def test_another_seed_draws_something_else(name):
    spec = make(name)
    torch.manual_seed(3)
    first = spec.rand((200,))
    torch.manual_seed(4)
    assert not torch.equal(first, spec.rand((200,)))


def test_copies_are_equal_and_independent(spec):
    for twin in (spec.clone(), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec)), copy.copy(spec)):
        assert twin == spec
        assert twin is not spec
        assert twin.is_in(spec.rand())
        assert repr(twin) == repr(spec)


def test_all_kinds_are_told_apart():
    specs = [make(name) for name in ALL]
    for i, one in enumerate(specs):
        assert [j for j, other in enumerate(specs) if one == other] == [i]
        assert one != "spec"


def test_specs_are_not_hashable(spec):
    with pytest.raises(TypeError):
        hash(spec)


def test_repr_has_several_lines_and_names_the_kind(spec):
    assert repr(spec).startswith(type(spec).__name__ + "(\n")
    assert f"shape={list(spec.shape)}" in repr(spec)


def test_round_trip_through_the_space(spec):
    value = spec.rand()
    back = spec.encode(spec.to_numpy(value))
    assert same_value(plain(back), plain(value))
    assert spec.is_in(back)


@pytest.mark.parametrize("name", [n for n in DENSE if "nontensor" not in n and n != "composite-all"])
def test_round_trip_through_the_space_with_leading_dims(name):
    spec = make(name)
    value = spec.rand((4,))
    assert same_value(plain(spec.encode(spec.to_numpy(value))), plain(value)) or name == "composite-empty"


def test_project_leaves_what_is_in_the_spec(spec):
    value = spec.rand((2,))
    assert same_value(plain(spec.project(value)), plain(value))


@pytest.mark.parametrize("name", [n for n in ALL if "nontensor" not in n and n != "composite-all"])
@pytest.mark.parametrize("fill", ["zero", "one"])
def test_project_brings_fillers_into_the_spec(name, fill):
    spec = make(name)
    assert spec.faults(spec.project(getattr(spec, fill)((2,)))) == []


def test_to_numpy_and_project_refuse_what_is_no_value(spec):
    for refuse in (spec.to_numpy, spec.project):
        with pytest.raises(SpecError, match="got str, expected"):
            refuse("nonsense")


def test_assert_is_in_raises_with_every_fault(spec):
    spec.assert_is_in(spec.rand())
    with pytest.raises(SpecError, match="got str, expected") as caught:
        spec.assert_is_in("nonsense")
    assert str(caught.value) == "\n".join(spec.faults("nonsense"))
    assert not spec.is_in("nonsense")


def test_expand_and_index_undo_each_other(spec):
    grown = spec.expand(3, *spec.shape)
    assert tuple(grown.shape) == (3, *spec.shape)
    assert grown.is_in(grown.rand())
    assert grown[1] == spec
    assert grown.unbind(0) == (spec,) * 3
    assert grown[:2] == spec.expand(2, *spec.shape)
    assert grown[torch.tensor([True, False, True])] == spec.expand(2, *spec.shape)
    assert grown[[2, 0]] == spec.expand(2, *spec.shape)
    assert grown[None] == spec.expand(1, 3, *spec.shape)
    assert grown[...] == grown


def test_unsqueeze_and_squeeze_undo_each_other(spec):
    single = spec.unsqueeze(0)
    assert tuple(single.shape) == (1, *spec.shape)
    assert single.squeeze(0) == spec
    assert single.is_in(single.rand((2,)))
    assert single == spec.expand(1, *spec.shape)
    assert single.squeeze() == spec.squeeze()
    after = len(spec._batch_shape)
    assert spec.unsqueeze(after).squeeze(after) == spec
    assert spec.unsqueeze(after).shape == (*spec._batch_shape, 1, *spec.shape[after:])
    for dim in [dim for dim, size in enumerate(spec._batch_shape) if size != 1]:
        assert spec.squeeze(dim) == spec


def test_rows_of_a_value_are_in_the_rows_of_the_spec(spec):
    grown = spec.expand(3, *spec.shape)
    value = grown.rand()
    for i in range(3):
        assert grown[i].faults(value[i]) == []


@pytest.mark.parametrize(
    "index", [0, -1, slice(1, None), (Ellipsis, -1), (None, 0), torch.tensor([1, 0, 1]), (slice(None), None)]
)
def test_indexing_matches_indexing_a_value(dense, index):
    if dense.ndim == 0 or 0 in dense.shape or not dense._batch_shape:
        dense = dense.expand(2, *dense.shape) if 0 not in dense.shape else make("bounded")
    part = dense[index]
    at = index
    if isinstance(index, tuple) and Ellipsis in index:  # batch dims alone are meant, events follow
        at = (*[slice(None)] * (len(dense._batch_shape) - 1), -1)
    value = dense.rand()[at]
    assert tuple(part.shape) == size_of(value)
    assert part.faults(value) == []


def test_reshape_flatten_unflatten(dense):
    grown = dense.expand(2, 3, *dense.shape)
    flat = grown.flatten(0, 1)
    assert tuple(flat.shape) == (6, *dense.shape)
    assert flat == dense.expand(6, *dense.shape)
    assert flat.unflatten(0, (2, -1)) == grown
    assert flat.reshape(3, 2, *dense.shape) == dense.expand(3, 2, *dense.shape) == flat.view(3, 2, *dense.shape)


def test_stacking_equal_specs_is_dense(spec):
    stacked = stack_specs([spec, spec.clone(), spec])
    assert type(stacked) is type(spec)
    assert stacked == spec.expand(3, *spec.shape)


def test_moving_to_where_it_is_changes_nothing(spec):
    assert spec.to("cpu").is_in(spec.rand())
    assert spec.to("cpu").to(torch.device("cpu")) == spec.to("cpu")


def test_a_device_moves_every_leaf(spec):
    moved = spec.to("meta")
    assert moved.device == torch.device("meta")
    leaves = moved.values(True, True) if isinstance(moved, Composite) else [moved]
    assert {str(part.device) for part in leaves} <= {"meta"}
    assert moved != spec


CHOICES = ("categorical", "onehot", "multicategorical", "multionehot")
DISCRETE = [name for name in ALL if name.partition("-")[0] in CHOICES]


@pytest.mark.parametrize("name", [name for name in DISCRETE if name != "categorical-huge"])
def test_masked_values_are_not_drawn_until_the_mask_is_lifted(name):
    """The mask leaves each slot its last value; what is drawn then is one value, in each form of the spec."""
    spec = make(name)
    spec.update_mask(None)
    counts = [spec.n] if isinstance(spec, (Categorical, OneHot)) else spec.nvec.flatten().tolist()
    spec.update_mask([i == count - 1 for count in counts for i in range(count)])
    other = spec.clone()
    other.update_mask(None)
    for form in (spec, spec.expand(3, *spec.shape), spec.clone(), pickle.loads(pickle.dumps(spec))):
        drawn = form.rand((20,))
        assert form.is_in(drawn)
        assert torch.equal(drawn, drawn[:1].expand_as(drawn))
        free = other.rand((200,))
        assert [spec.is_in(value) for value in free] == [torch.equal(value, spec.rand()) for value in free]
        assert spec.is_in(spec.project(free))
    assert other.is_in(other.rand((200,)))
    assert other != spec
    assert len({str(plain(value)) for value in other.rand((200,))}) > 1


@pytest.mark.parametrize("name", [name for name in ALL if name not in DISCRETE and name.partition("-")[0] != "stacked"])
def test_only_choices_have_masks(name):
    assert not hasattr(make(name), "update_mask")


@pytest.mark.parametrize("name", ["stacked-last", "stacked-nontensor"])
def test_a_stack_has_the_masks_of_its_specs_alone(name):
    with pytest.raises(TypeError, match="has no masks"):
        make(name).update_mask(None)


def test_a_value_has_the_dtype_and_the_device_of_its_spec(leaf):
    value = leaf.rand()
    if not isinstance(leaf, NonTensor):
        assert (value.dtype, value.device) == (leaf.dtype, leaf.device)
    assert leaf.device == torch.device("cpu")
    assert leaf.ndim == len(leaf.shape)


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_has_its_leaves_dtypes_and_devices(name):
    spec, value = make(name), make(name).rand()
    if isinstance(spec, Composite):
        assert spec.dtype is None
        assert value.batch_size == spec.batch_size == spec.shape
        assert value.device == spec.device
    else:
        assert (spec.dtype, spec.device) == (spec.specs[0].dtype, torch.device("cpu"))


def leaves_of(spec: TensorSpec) -> list[TensorSpec]:
    """The leaves of a spec, row by row where it is a lazy stack."""
    if isinstance(spec, (Stacked, StackedComposite)):
        return [leaf for row in spec.specs for leaf in leaves_of(row)]
    if isinstance(spec, Composite):
        return [leaf for part in spec.values() for leaf in leaves_of(part)]
    return [spec]


@pytest.mark.parametrize("name", [name for name in ALL if "64" not in name and name != "composite-all"])
def test_another_dtype_goes_to_each_leaf(name):
    spec = make(name)
    whole = [leaf for leaf in leaves_of(spec) if isinstance(leaf, (Bounded, Categorical, MultiCategorical))]
    dtype = torch.float64 if all(leaf.dtype.is_floating_point for leaf in whole) else torch.int64
    moved = spec.to(dtype)
    assert {leaf.dtype for leaf in leaves_of(moved) if not isinstance(leaf, NonTensor)} <= {dtype}
    assert moved.shape == spec.shape
    assert moved.is_in(moved.rand((50,)))
    assert moved.to(dtype) == moved
    if "composite" not in name:
        assert moved.cardinality() == spec.cardinality()


@pytest.mark.parametrize("name", [name for name in ALL if name != "nontensor-space"])  # which takes any datum
def test_encode_refuses_nonsense(name):
    with pytest.raises(SpecError, match="got"):
        make(name).encode("nonsense")


def test_a_dynamic_dim_is_drawn_with_size_1_and_takes_any_size(spec):
    dynamic = spec.expand(-1, *spec.shape)
    assert dynamic.is_dynamic
    assert not spec.is_dynamic
    assert dynamic.shape == (-1, *spec.shape)
    for lead in ((), (3,)):
        for fill in (dynamic.rand, dynamic.zero, dynamic.one):
            assert size_of(fill(lead)) == (*lead, 1, *size_of(spec.rand()))
    for size in (0, 1, 4):
        assert dynamic.is_in(spec.rand((size,)))
        assert spec.expand(size, *spec.shape).is_in(spec.rand((size,)))
    assert dynamic[0] == spec
    for twin in (dynamic.clone(), pickle.loads(pickle.dumps(dynamic)), dynamic.unsqueeze(0)[0]):
        assert twin == dynamic
    assert dynamic != spec.expand(1, *spec.shape)
    assert "-1" in repr(dynamic)


@pytest.mark.parametrize("name", [n for n in LEAVES if "nontensor" not in n and "empty" not in n])
def test_faults_say_shape_dtype_and_device(name):
    spec = make(name)
    good = spec.rand()
    short = torch.zeros((7, 7, *spec.shape[1:]) if spec.ndim else (), dtype=spec.dtype)
    if spec.ndim:
        (fault,) = spec.faults(short[..., :0], ("a", "b"))
        assert fault.startswith("('a', 'b'): shape: got [")
        assert f"{spec.shape[-1]}]" in fault
    (fault,) = spec.faults(good.to(torch.complex64), ("a",))
    assert fault == f"'a': dtype: got torch.complex64, expected {spec.dtype}"
    (fault,) = spec.faults(good.to("meta"))
    assert fault == "value: device: got meta, expected cpu"
    (fault,) = spec.faults(spec.rand((2,)), batch_dims=0)
    assert "shape" in fault
    assert spec.faults(spec.rand((2,)), batch_dims=1) == []
    assert len(spec.faults(good[None].to("meta", torch.complex64), batch_dims=0)) == 3


LISTED = {
    "bounded-bool": 2,
    "bounded-int16": 11,
    "categorical": 4,
    "categorical-start": 3,
    "categorical-masked": 4,
    "categorical-bool": 2,
    "categorical-uint64": 3,
    "onehot": 3,
    "onehot-start": 3,
    "onehot-masked": 3,
    "multicategorical": 6,
    "multicategorical-nd": 2 * 3 * 5,
    "multicategorical-masked": 6,
    "multicategorical-uint16": 6,
    "multionehot": 6,
    "multionehot-nd": 2 * 3 * 2,
    "multionehot-masked": 6,
    "binary": 2**3,
    "binary-nd": 2**6,
    "composite-empty": 1,
    "composite-nested": 3 * 2**4,
    "composite-tuple": 2**2 * 3,
    "stacked": 3 * 5,
    "stackedcomposite-last": 2**2 * 2**2,
}
"""How many values an element of the batch has, where that is few enough to list them."""

COUNTED = {
    "bounded-uint8": 256**6,
    "bounded-uint16": 59_998**2,
    "bounded-uint32": 2**64,
    "bounded-uint64-full": 2**128,
    "bounded-int64-full": 2**128,
    "categorical-huge": 2**62,
}


@pytest.mark.parametrize("name", ALL)
def test_cardinality(name):
    assert make(name).cardinality() == (LISTED | COUNTED).get(name, math.inf)


@pytest.mark.parametrize("name", LISTED)
def test_enumerate_lists_each_value_once(name):
    spec = make(name)
    values = spec.enumerate()
    assert tuple(values.shape) == (spec.cardinality(), *spec.shape)
    assert spec.is_in(values) == ("masked" not in name)
    rows = [str(plain(value)) for value in values.unbind(0)]
    assert len(set(rows)) == spec.cardinality()


@pytest.mark.parametrize("name", ["onehot-masked", "multicategorical-masked", "multionehot-masked"])
def test_enumerate_with_the_mask_lists_allowed_values(name):
    spec = make(name)
    values = spec.enumerate(use_mask=True)
    assert spec.is_in(values)
    assert len(values) == 2
    assert len(spec.enumerate()) == spec.cardinality() > 2


@pytest.mark.parametrize("name", [name for name in ALL if name not in LISTED])
def test_enumerate_refuses_what_cannot_be_listed(name):
    with pytest.raises(NotImplementedError, match="list"):
        make(name).enumerate()


def test_impossible_shapes_are_refused(leaf):
    with pytest.raises(ValueError, match="cannot expand"):
        leaf.expand(*[9] * (leaf.ndim + 1)) if leaf.ndim else leaf.unsqueeze(0).expand(())
    with pytest.raises(ValueError, match="cannot reshape"):
        leaf.reshape(*leaf.shape[:-1], 7, 7)
    with pytest.raises(IndexError, match=r"batch dim|batch shape"):
        leaf[(0,) * (leaf.ndim + 1)]
    with pytest.raises(IndexError):
        leaf.unsqueeze(leaf.ndim + 1)
    with pytest.raises(IndexError):
        leaf.squeeze(leaf.ndim)
    with pytest.raises(TypeError, match="cannot be indexed"):
        leaf[1.5]
