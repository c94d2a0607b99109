"""Specs of a batch of envs that are not alike: what a StackedComposite, and a Composite that has one, can do."""

from __future__ import annotations

import pickle

import cloudpickle
import pytest
import torch
from spec_kinds import plain, same_value
from tensordict import LazyStackedTensorDict, TensorDict

from gymbridge.errors import SpecError
from gymbridge.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    NonTensor,
    OneHot,
    Stacked,
    StackedComposite,
    Unbounded,
    stack_specs,
)


def make_pairs() -> dict[str, tuple[Composite, Composite, list[object]]]:
    """Specs of two envs, and the keys of the leaves that both have."""
    x, g, xy = Binary(1), {"x": Binary(1)}, {"x": Binary(1), "y": Binary(2)}
    few = stack_specs([Unbounded(1), Bounded(0, 1, 1)])
    return {
        "bounds": (Composite(a=Bounded(0, 1, 3)), Composite(a=Bounded(5, 6, 3)), ["a"]),
        "sizes": (Composite(a=Bounded(0, 1, 3)), Composite(a=Bounded(0, 1, 4)), ["a"]),
        "numbers-of-dims": (Composite(a=Categorical(3)), Composite(a=Bounded(0, 1, (2, 3))), ["a"]),
        "dtypes": (Composite(a=Unbounded(3)), Composite(a=Unbounded(3, dtype=torch.float64)), ["a"]),
        "keys": (Composite(a=Binary(1)), Composite(b=OneHot(3)), []),
        "group-in-one": (Composite(a=x), Composite(a=x, g=g), ["a"]),
        "groups-that-differ": (Composite(g=g, a=x), Composite(g=xy, a=x), [("g", "x"), "a"]),
        "leaf-and-group": (Composite(a=x, b=x), Composite(a=g, b=x), ["b"]),
        "batch-dims-of-groups": (Composite(g=g, a=x), Composite(g=Composite(shape=(2,)), a=x), ["a"]),
        "data": (Composite(a=NonTensor(example_data="x")), Composite(a=NonTensor(example_data=[1])), ["a"]),
        "data-and-tensor": (Composite(a=NonTensor(example_data="x"), b=x), Composite(a=x, b=x), ["b"]),
        "dynamic-dims": (Composite(a=Unbounded((-1, 2))), Composite(a=Unbounded((3, 2)), b=Unbounded(-1)), ["a"]),
        "a-stack-in-one": (Composite(a=Unbounded((2, 1))), Composite(a=few), ["a"]),
    }


PAIRS = list(make_pairs())


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> tuple[Composite, Composite]:
    return make_pairs()[request.param][:2]


@pytest.fixture
def stack(pair: tuple[Composite, Composite]) -> StackedComposite:
    return stack_specs(pair, 0)


@pytest.fixture
def group(stack: StackedComposite) -> Composite:
    """A Composite of the batch that has the stack among its entries."""
    return Composite(c=stack, x=Categorical(5, (2,)), shape=(2,))


def rows_of(value: LazyStackedTensorDict) -> list[object]:
    return [plain(row) for row in value.unbind(0)]


def with_rows(batch: LazyStackedTensorDict, spec: Composite) -> bool:
    """Whether each row of a batch has what its own spec says, no more and no less."""
    return [part.faults(row) for part, row in zip(spec.unbind(0), batch.unbind(0), strict=True)] == [[], []]


def test_the_stack_is_lazy_and_gives_the_members_back(pair, stack):
    assert type(stack) is StackedComposite
    assert stack.shape == (2,)
    assert (stack[0], stack[-1]) == stack.unbind(0) == pair
    assert stack[0] is pair[0]
    assert stack[::-1] == stack_specs(pair[::-1]) != stack
    assert stack[[1, 1]] == pair[1].expand(2)


@pytest.mark.parametrize("name", PAIRS)
def test_the_keys_are_what_all_have_in_common(name):
    one, other, shared = make_pairs()[name]
    stack = stack_specs([one, other])
    assert list(stack.keys(True, True)) == shared
    assert [key for key, _ in stack.items(True, True)] == shared
    assert [stack[key] for key in shared] == list(stack.values(True, True))
    assert all(key in stack for key in shared)
    for key in shared:
        assert stack[key].shape[0] == 2
        assert (stack[key][0], stack[key][1]) == (one[key], other[key])


@pytest.mark.parametrize("lead", [(), (3,), (2, 4)])
@pytest.mark.parametrize("fill", ["rand", "zero", "one"])
def test_the_rows_of_a_value_are_the_members_own(pair, stack, fill, lead):
    torch.manual_seed(1)
    value = getattr(stack, fill)(lead)
    torch.manual_seed(1)
    own = [getattr(spec, fill)(lead) for spec in pair]
    assert isinstance(value, LazyStackedTensorDict)
    assert value.batch_size == (*lead, 2)
    assert all(map(same_value, map(plain, value.unbind(len(lead))), map(plain, own)))
    assert not [fault for fault in stack.faults(value) if "out of domain" not in fault]
    assert stack.is_in(value) or fill != "rand"


def test_values_stacked_over_time_are_in_the_spec(stack, group):
    for spec in (stack, group):
        steps = LazyStackedTensorDict.lazy_stack([spec.rand() for _ in range(3)], 0)
        assert spec.faults(steps) == []
        assert spec.faults(steps, batch_dims=1) == []
        assert spec.faults(steps, batch_dims=0)


def test_faults_name_the_row_and_the_key(stack, group):
    value = group.rand()
    value["c"][1].set("extra", torch.zeros(3))
    (fault,) = group.faults(value)
    assert fault.startswith("row 1: ('c', 'extra'): extra, expected only [")
    (fault,) = stack.faults(value["c"])
    assert fault.startswith("row 1: 'extra': extra, expected only [")
    (fault,) = stack.faults(value["c"][:1])
    assert fault.startswith("value: shape: got [1], expected [2]")


@pytest.mark.parametrize("lead", [(), (3,)])
def test_project_mends_each_row_by_its_own_spec(stack, group, lead):
    for spec in (stack, group):
        assert spec.faults(spec.project(spec.zero(lead))) == []
        value = spec.rand(lead)
        assert same_value(plain(spec.project(value)), plain(value))


def test_copies_are_equal_and_independent(stack, group):
    for spec in (stack, group):
        for twin in (spec.clone(), pickle.loads(pickle.dumps(spec)), pickle.loads(cloudpickle.dumps(spec))):
            assert twin == spec
            assert repr(twin) == repr(spec)
            twin["new"] = Binary(1, (2, 1))
            assert twin != spec
            assert "new" not in spec


def test_round_trip_through_the_spaces_of_each_env(stack, group):
    for spec in (stack, group):
        value = spec.rand()
        assert same_value(plain(spec.encode(spec.to_numpy(value))), plain(value))


def test_changes_of_shape(stack, group):
    for spec in (stack, group):
        grown = spec.expand(3, 2)
        assert grown.shape == (3, 2)
        assert grown.is_in(grown.rand())
        assert grown[1] == spec
        assert grown[:, 0] == spec[0].expand(3)
        assert spec.unsqueeze(1).squeeze(1) == spec.unsqueeze(0).squeeze(0) == spec


def test_moves_reach_every_row(stack, group):
    for spec in (stack, group):
        moved = spec.to("meta")
        assert moved.device == torch.device("meta")
        assert {str(leaf.device) for row in moved.unbind(0) for leaf in row.values(True, True)} == {"meta"}
        assert spec.device is None
        assert moved != spec


def test_a_lock_reaches_every_row(group):
    group.lock_()
    assert group["c"].is_locked
    for row in group["c"].specs:
        with pytest.raises(RuntimeError, match="unlock_"):
            row["new"] = Binary(1)
    with pytest.raises(RuntimeError, match="unlock_"):
        group["c", "new"] = Binary(1, (2, 1))
    assert not group.clone()["c"].is_locked
    group.unlock_()
    group["c", "new"] = Binary(1, (2, 1))
    assert group["c"][1]["new"] == Binary(1)


def test_select_and_exclude_work_row_by_row(pair, stack):
    shared = list(stack.keys(True, True))
    assert list(stack.select(*shared).keys(True, True)) == shared
    assert stack.exclude("a").unbind(0) == tuple(spec.exclude("a") for spec in pair)
    own = [key for spec in pair for key in spec.keys(True, True)]
    assert stack.select(*own, strict=False).unbind(0) == tuple(spec.select(*own, strict=False) for spec in pair)


def test_selections_reach_entries_that_some_rows_have():
    one, other, _ = make_pairs()["groups-that-differ"]
    spec = Composite(c=stack_specs([one, other]), shape=(2,))
    assert spec.select(("c", "g", "y"), "z", strict=False)["c"][1] == other.select(("g", "y"))
    assert spec.exclude(("c", "g", "y"))["c"][1] == other.exclude(("g", "y"))
    with pytest.raises(KeyError, match=r"no entry .*'y'"):
        spec.select(("c", "g", "y"))
    with pytest.raises(KeyError, match=r"no entry .*'q'"):
        spec.select(("c", "q"))


def test_repr_shows_each_rows_own_entries():
    one, other, _ = make_pairs()["leaf-and-group"]
    lines = [line.strip() for line in repr(stack_specs([one, other])).split("\n")]
    assert "0 -> a: Binary(" in lines
    assert "1 -> a: Composite(" in lines
    assert "b: Binary(" in lines


def test_a_group_gives_its_stack_back(stack, group):
    assert group["c"] == group.get("c") == stack
    assert group.is_dynamic == stack.is_dynamic == any(spec.is_dynamic for spec in stack.specs)
    assert Composite(c=stack, shape=(2,)).update(group) == group
    assert group.clone().update(group) == group
    assert group.clone().update(group.select("x")) == group
    assert stack.clone().update(stack) == stack


@pytest.mark.parametrize("fill", ["rand", "zero"])
def test_values_of_a_group_have_rows_of_their_own(stack, group, fill):
    value = getattr(group, fill)()
    assert isinstance(value["c"], LazyStackedTensorDict)
    for spec, row in zip(stack.specs, value["c"].unbind(0), strict=True):
        assert sorted(row.keys()) == sorted(spec.keys())
    for i in range(2):
        assert not [fault for fault in group[i].faults(value[i]) if "out of domain" not in fault]


def test_an_entry_of_some_rows_is_refused_by_name():
    spec = Composite(c=unlike(), shape=(2,))
    with pytest.raises(KeyError, match=r"no entry \('c', 'b'\).* \['a', 'g'\], and in some rows only \{'b': \[1\]\}"):
        spec["c", "b"]
    assert spec.get(("c", "b"), None) is None


# -- updates of specs


def unlike() -> StackedComposite:
    return stack_specs(
        [
            Composite(a=Bounded(0, 1, 3), g={"x": Binary(1)}),
            Composite(a=Bounded(0, 1, 4), g={"x": Binary(1), "y": Binary(2)}, b=OneHot(3)),
        ]
    )


def test_an_update_with_a_stack_reaches_what_one_row_has():
    spec = unlike()
    spec.update(stack_specs([Composite(a=Binary(3)), Composite(b=OneHot(7), g={"y": Binary(5)})]))
    assert spec[0] == Composite(a=Binary(3), g={"x": Binary(1)})
    assert spec[1] == Composite(a=Bounded(0, 1, 4), g={"x": Binary(1), "y": Binary(5)}, b=OneHot(7))


def test_an_update_of_a_stack_with_a_mapping_goes_to_all_rows():
    spec = unlike().update({"g": {"x": Binary(5, (2, 5))}, ("q", "r"): Binary(1, (2, 1))})
    assert spec[0]["g", "x"] == spec[1]["g", "x"] == Binary(5)
    assert spec[1]["g", "y"] == Binary(2)
    assert spec[0]["q", "r"] == Binary(1)
    spec.update(Composite(b={"z": Binary(1, (2, 1))}, shape=(2,)))
    assert spec[0]["b"] == spec[1]["b"] == Composite(z=Binary(1))


def test_a_group_that_is_updated_with_a_stack_becomes_one():
    spec = Composite(o=Composite(a=Binary(1), z=Binary(1)).expand(2), shape=(2,))
    assert spec.update({"o": unlike()}) is spec
    assert isinstance(spec["o"], StackedComposite)
    for row, own in zip(spec["o"].specs, unlike().specs, strict=True):
        assert row == Composite(a=Binary(1), z=Binary(1)).update(own)
    assert spec.is_in(spec.rand())


def test_a_root_cannot_take_what_some_rows_have():
    """The root stays what it is, so that entries of single rows would be lost."""
    spec = Composite(shape=(2,))
    with pytest.raises(ValueError, match=r"cannot update Composite with StackedComposite: .*\{'b': \[1\]\}"):
        spec.update(unlike())
    assert spec.is_empty()
    assert spec.update(unlike().exclude("b"))["g"] == unlike()["g"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"a": Binary(1, (2, 1)), "g": 3}, TypeError, "'g': expected a spec, got int"),
        ({"a": Binary(1, (2, 1)), "g": {"x": Binary(3)}}, ValueError, "'x': got Binary"),
        (Composite(a=Binary(1)), ValueError, "'a': got Binary"),
        ({"a": {"deep": Binary(1, (3, 1))}}, ValueError, "'deep': got Binary"),
    ],
)
def test_a_refused_update_of_a_stack_changes_no_row(change, error, message):
    spec = unlike()
    with pytest.raises(error, match=message):
        spec.update(change)
    assert spec == unlike()


def test_an_update_with_other_rows_is_refused():
    few, many = unlike(), stack_specs([Composite(p=Binary(1)), Composite(q=Binary(1)), Composite()])
    with pytest.raises(ValueError, match=r"StackedComposite of shape \[2\] with StackedComposite of shape \[3\]"):
        few.update(many)
    for inner in (Composite(), Composite(shape=(2,))):
        spec = Composite(g=inner)
        with pytest.raises(ValueError, match=r"Composite of shape .* with StackedComposite of shape \[3\]"):
            spec.update({"g": many})
        assert spec == Composite(g=inner)


def test_stacks_along_a_later_dim(pair):
    spec = stack_specs([part.expand(2) for part in pair], 1)
    rows = stack_specs(pair)
    assert spec.shape == (2, 2)
    assert spec[0] == spec.unbind(0)[1] == rows
    assert spec.unbind(1) == tuple(part.expand(2) for part in pair)
    assert spec.is_in(spec.rand((3,)))
    assert spec.is_in(spec.project(spec.zero()))
    spec.update({"new": Binary(1, (2, 2, 1))})
    assert spec[0, 1]["new"] == Binary(1)
    dense = Composite(c=Composite(z=Binary(1, (2, 2, 1)), shape=(2, 2)), shape=(2,)).update({"c": spec})
    assert dense["c"][1, 0] == pair[0].clone().update({"z": Binary(1), "new": Binary(1)})
    assert dense.is_in(dense.rand())


def test_stacks_of_stacks(pair, stack):
    spec = stack_specs([stack, stack_specs(pair[::-1])])
    assert spec[0] == stack
    assert spec[1, 0] == pair[1]
    assert spec.is_in(spec.rand())
    assert spec.clone().update(spec) == spec


# -- leaves that no tensor holds


def test_leaves_of_other_numbers_of_dims_are_a_stack_without_values():
    spec = Stacked(Categorical(3), Bounded(0, 1, (2,)), OneHot(4), dim=0)
    assert spec.shape == (3,)
    assert spec.expand(5, 3).specs == [Categorical(3, (5,)), Bounded(0, 1, (5, 2)), OneHot(4, (5, 4))]
    assert spec.unsqueeze(0).squeeze(0) == spec
    assert spec[1:].shape == (2, -1)
    assert stack_specs([Categorical(3, (2,)), Bounded(0, 1, (2, 2))], -1).dim == 1
    for make in (spec.rand, spec.zero, spec.one):
        with pytest.raises(SpecError, match="differ in shape or dtype"):
            make()
    for value in (torch.zeros(3), torch.zeros(3, 2), torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64)):
        assert not spec.is_in(value)
        with pytest.raises(SpecError):
            spec.project(value)
        with pytest.raises(SpecError):
            spec.encode(value)
    with pytest.raises(SpecError, match=r"which no array holds, expected shape \[3\]"):
        spec.encode([1, [0.0, 1.0], 2])


def test_enumerate_lists_every_combination_of_rows():
    spec = stack_specs([Composite(a=Categorical(2)), Composite(a=Binary(2), b=Categorical(3))])
    values = spec.enumerate()
    assert spec.cardinality() == len(values) == 24
    assert spec.is_in(values)
    assert len({str(plain(value)) for value in values.unbind(0)}) == 24


def test_ragged_rows_along_a_dynamic_dim_are_projected_one_by_one():
    spec = Composite(a=Bounded(0, 1, (2, -1)), shape=(2,))
    value = LazyStackedTensorDict.lazy_stack([TensorDict(a=torch.full((size,), 4.0)) for size in (3, 5)], 0)
    for each in (spec, spec[0]):
        moved = each.project(value)
        assert [row["a"].tolist() for row in moved.unbind(0)] == [[1.0] * 3, [1.0] * 5]
    with pytest.raises(SpecError, match=r"batch size: got \[2\], expected \[3\]"):
        Composite(a=Unbounded((3, -1)), shape=(3,)).project(value)


# -- updates of TensorDicts, as an env's step makes them


@pytest.mark.parametrize("fill", ["rand", "zero"])
def test_a_lazy_tensordict_takes_lazy_values_row_by_row(stack, fill):
    batch = LazyStackedTensorDict.lazy_stack([TensorDict(obs=torch.zeros(3)), TensorDict(obs=torch.ones(5))], 0)
    value = getattr(stack, fill)()
    assert batch.update(value) is batch
    for row, own in zip(batch.unbind(0), value.unbind(0), strict=True):
        assert same_value(plain(row.exclude("obs")), plain(own))
        assert row["obs"].shape in ((3,), (5,))


def test_a_later_value_replaces_an_earlier_one(stack):
    batch, later = stack.rand(), stack.rand()
    batch.update(later)
    assert all(map(same_value, rows_of(batch), rows_of(later)))
    assert with_rows(batch, stack)


def test_a_dense_tensordict_takes_a_group_of_lazy_values(stack, group):
    batch = TensorDict(obs=torch.zeros(2, 3), batch_size=[2])
    for _ in range(2):
        value = group.rand()
        batch.update(value)
        assert group.is_in(batch.exclude("obs"))
        assert all(map(same_value, rows_of(batch["c"]), rows_of(value["c"])))
        assert with_rows(batch["c"], stack)
