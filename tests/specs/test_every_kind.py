"""What every spec does, whatever its kind."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

from gymbridge.errors import SpecError
from gymbridge.specs import Composite, TensorSpec, stack_specs

from .kinds import GROUPS, LEAVES, make, plain, same_value

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
    assert spec.squeeze(0) == spec or spec.shape[:1] == (1,) if spec._batch_shape else True


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


ENUMERABLE = [
    "bounded-bool",
    "bounded-int16",
    "categorical",
    "categorical-start",
    "categorical-bool",
    "categorical-uint64",
    "onehot",
    "onehot-start",
    "multicategorical",
    "multicategorical-nd",
    "multicategorical-uint16",
    "multionehot",
    "multionehot-nd",
    "binary",
    "binary-nd",
    "composite-empty",
    "composite-nested",
    "composite-tuple",
]


@pytest.mark.parametrize("name", ENUMERABLE)
def test_enumerate_lists_each_value_once(name):
    spec = make(name)
    values = spec.enumerate()
    assert tuple(values.shape) == (spec.cardinality(), *spec.shape)
    assert spec.is_in(values)
    rows = [str(plain(value)) for value in values]
    assert len(set(rows)) == spec.cardinality()


@pytest.mark.parametrize("name", ["onehot-masked", "multicategorical-masked", "multionehot-masked"])
def test_enumerate_with_the_mask_lists_allowed_values(name):
    spec = make(name)
    values = spec.enumerate(use_mask=True)
    assert spec.is_in(values)
    assert len(values) == 2
    assert len(spec.enumerate()) == spec.cardinality() > 2


@pytest.mark.parametrize(
    "name", ["bounded", "unbounded", "nontensor", "bounded-uint8", "categorical-huge", "composite-leaf"]
)
def test_enumerate_refuses_what_cannot_be_listed(name):
    with pytest.raises(NotImplementedError, match="list"):
        make(name).enumerate()


def test_cardinality_of_the_infinite():
    for name in ("bounded", "unbounded", "nontensor", "composite-leaf"):
        assert make(name).cardinality() == math.inf
    assert make("bounded-uint64-full").cardinality() == 2**128


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
