"""Stacked, StackedComposite, stack_specs and NonTensor."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict

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


def pair() -> StackedComposite:
    return StackedComposite(
        Composite(a=Bounded(0, 1, 3), n=Composite(x=Binary(2))),
        Composite(a=Bounded(0, 1, 4), n=Composite(x=Binary(2), y=Unbounded(3)), b=OneHot(3)),
        dim=0,
    )


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_stacks_are_dense_where_equal_and_lazy_where_not(dim):
    one, other = Bounded(0, 1, (3,)), Bounded(0, 2, (3,))
    dense = stack_specs([one, one.clone(), one], dim)
    assert dense == Bounded(0, 1, (3, 3))
    lazy = stack_specs([one, other], dim)
    assert isinstance(lazy, Stacked)
    assert lazy.dim == dim % 2
    assert lazy.shape == ((2, 3) if dim == 0 else (3, 2))
    assert lazy != stack_specs([other, one], dim)
    assert isinstance(stack_specs([Composite(a=one), Composite(a=other)]), StackedComposite)
    assert stack_specs([Composite(a=one, kind="leaf")] * 2).kind == "leaf"


def test_masks_make_specs_differ():
    assert isinstance(stack_specs([Categorical(2), Categorical(2, mask=[True, False])]), Stacked)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: stack_specs([]), "one spec at least"),
        (lambda: stack_specs([Binary(1), 3]), "got int"),
        (
            lambda: stack_specs([Binary(1), Composite()]),
            r"spec 1, Composite of shape \[\], with spec 0, Binary",
        ),
        (lambda: stack_specs([Binary(1), NonTensor((1,))]), "cannot stack spec 1, NonTensor"),
        (lambda: stack_specs([Composite(), Composite(shape=(2,))]), r"spec 1, Composite of shape \[2\], with spec 0"),
        (lambda: stack_specs([NonTensor(), NonTensor((2,))]), r"spec 1, NonTensor of shape \[2\], with spec 0"),
        (lambda: stack_specs([Binary(1), Binary(2)], 2), "dim 2 is out of range"),
        (lambda: Stacked(OneHot(2), OneHot(3), dim=1), "not among the batch dims"),
        (lambda: Stacked(Composite(), Composite(), dim=0), "use StackedComposite"),
        (lambda: StackedComposite(Binary(1), Binary(2), dim=0), "use Stacked"),
    ],
)
def test_what_cannot_stand_in_one_stack_is_refused(make, message):
    with pytest.raises((ValueError, TypeError, IndexError), match=message):
        make()


def test_a_dim_that_differs_is_dynamic_in_the_shape_only():
    spec = Stacked(Unbounded((3, 2)), Unbounded((4, 2)), dim=0)
    assert spec.shape == (2, -1, 2)
    assert not spec.is_dynamic
    assert Stacked(Unbounded((3, 2)), Unbounded((-1, 2)), dim=0).is_dynamic
    with pytest.raises(SpecError, match="differ in shape or dtype"):
        spec.rand()
    mixed = Stacked(Categorical(3, (2,)), Bounded(0, 1, (2,)), dim=0)
    assert mixed.dtype is None
    with pytest.raises(SpecError, match="differ in shape or dtype"):
        mixed.zero()
    assert mixed.device == torch.device("cpu")
    assert Stacked(Unbounded(1), Unbounded(1, device="meta"), dim=0).device is None


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        slice(1, None),
        slice(None),
        (slice(None), 0),
        (slice(None), slice(None), 1),
        (0, 0, 1),
        (None, 0),
        (Ellipsis, 1),
        (Ellipsis, None),
        (0, Ellipsis, 0),
        (None, slice(None), None, slice(0, 1), None),
        torch.tensor([1, 0, 1]),
        torch.tensor([[0, 1], [1, 1]]),
        torch.tensor([False, True]),
        (slice(None), torch.tensor([1, 0])),
        (Ellipsis, torch.tensor([[1, 0]])),
        (slice(None), slice(None), torch.tensor(1)),
    ],
)
def test_indexing_a_stack_matches_indexing_its_values(dim, index):
    """Ranges that overlap nowhere tell which spec stands where after any index."""
    shape = [(2, 2), (2, 2)]
    spec = Stacked(Bounded(0, 1, shape[0]), Bounded(5, 6, shape[1]), dim=dim)
    part, value = spec[index], spec.rand((3,))
    lead = index if isinstance(index, tuple) else (index,)
    rows = torch.stack([row[lead] for row in value])
    assert part.shape == rows.shape[1:]
    assert part.faults(rows) == []
    assert torch.equal(part.to_numpy(rows) > 3 if isinstance(rows, np.ndarray) else rows > 3, part.rand((3,)) > 3)


def test_two_index_tensors_are_refused_where_one_is_for_the_stack():
    spec = Stacked(Unbounded((2, 2)), Bounded(0, 1, (2, 2)), dim=0)
    with pytest.raises(NotImplementedError, match="only one"):
        spec[torch.tensor([0, 1]), torch.tensor([0, 1])]
    with pytest.raises(IndexError, match="no spec"):
        spec[2:]
    with pytest.raises(IndexError):
        spec[2]


def test_changes_of_shape():
    one, other = Bounded(0, 1, (3,)), Bounded(5, 6, (3,))
    spec = Stacked(one, other, dim=0)
    assert spec.expand(4, 2, 3)[2] == spec
    assert spec.expand(-1, -1) == spec
    assert spec.unsqueeze(1) == Stacked(one.unsqueeze(0), other.unsqueeze(0), dim=0)
    assert spec.unsqueeze(0).squeeze() == spec
    assert spec.unsqueeze(-1).squeeze(-1) == spec
    assert Stacked(one, dim=0).squeeze(0) == one
    assert Stacked(one, dim=0).expand(2, 3) == Stacked(one, one, dim=0)
    assert spec.unbind(0) == (one, other)
    assert spec.unbind(1) == (stack_specs([Bounded(0, 1, ()), Bounded(5, 6, ())]),) * 3
    with pytest.raises(ValueError, match="cannot expand"):
        spec.expand(3, 3)
    with pytest.raises(NotImplementedError, match="specs differ"):
        spec.flatten()


def test_ragged_stacks_expand():
    spec = Stacked(Unbounded((3, 1)), Unbounded((4, 1)), dim=0)
    grown = spec.expand(5, 2, -1, 2)
    assert grown.shape == (5, 2, -1, 2)
    assert grown.specs == [Unbounded((5, 3, 2)), Unbounded((5, 4, 2))]


def test_faults_name_the_row():
    spec = Stacked(Categorical(2), Categorical(5), dim=0)
    assert spec.faults(torch.tensor([4, 4]), ("a",)) == [
        "row 0: 'a': out of domain: got 4 at [] (1 wrong), expected 0 to 1"
    ]
    assert spec.faults(torch.zeros(3, dtype=torch.int64)) == ["value: shape: got [3], expected [2]"]
    assert spec.project(torch.tensor([4, 9])).tolist() == [1, 4]
    with pytest.raises(SpecError, match="shape"):
        spec.project(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(SpecError, match="got int"):
        spec.project(3)


def test_encode_and_enumerate():
    spec = Stacked(OneHot(3), OneHot(3, start=7), dim=0)
    bits = spec.encode([2, 7])
    assert bits.int().tolist() == [[0, 0, 1], [1, 0, 0]]
    assert spec.to_numpy(bits).tolist() == [2, 7]
    assert spec.encode(torch.tensor([[2, 7], [0, 9]])).shape == (2, 2, 3)
    with pytest.raises(SpecError, match=r"got shape \[3\]"):
        spec.encode([1, 2, 3])
    assert spec.cardinality() == 9
    assert len(spec.enumerate()) == 9
    assert spec.is_in(spec.enumerate())
    with pytest.raises(TypeError, match="Bounded has no masks"):
        Stacked(Categorical(2), Bounded(0, 1, ()), dim=0).update_mask([[True, True], None])


def test_a_stack_of_groups_has_the_shared_keys():
    spec = pair()
    assert list(spec.keys()) == ["a", "n"]
    assert list(spec.keys(True, True)) == ["a", ("n", "x")]
    assert spec["a"].shape == (2, -1)
    assert spec["n", "x"] == Binary(2, (2, 2))
    assert "b" not in spec
    assert spec[1]["b"] == OneHot(3)
    assert isinstance(spec, Composite)
    assert "1 -> b: OneHot(" in repr(spec)
    value = spec.rand()
    assert isinstance(value, LazyStackedTensorDict)
    assert set(value.keys()) == {"a", "n"}
    assert value[1]["b"].shape == (3,)
    assert spec.rand((4,)).batch_size == (4, 2)


def test_values_of_a_stack_of_groups():
    spec = pair()
    value = spec.rand()
    back = spec.encode(spec.to_numpy(value))
    assert spec.is_in(back)
    assert torch.equal(back[1]["b"], value[1]["b"])
    with pytest.raises(SpecError, match="got 1 values"):
        spec.encode([{}])
    with pytest.raises(SpecError, match="got dict"):
        spec.encode({})
    del value[1]["b"]
    assert spec.faults(value) == ["row 1: 'b': missing, expected OneHot of shape [3]"]
    assert spec.faults(torch.zeros(2)) == ["value: got Tensor, expected a TensorDict"]
    dense = StackedComposite(Composite(a=Categorical(2)), Composite(a=Categorical(5)), dim=0)
    assert dense.is_in(TensorDict(a=torch.tensor([1, 4]), batch_size=[2]))
    assert dense.faults(TensorDict(a=torch.tensor([4, 1]), batch_size=[2]))[0].startswith("row 0: 'a'")
    assert len(dense.enumerate()) == dense.cardinality() == 10


def test_changes_reach_every_member():
    spec = pair()
    spec["new"] = Binary(1, (2, 1))
    spec["n", "z"] = stack_specs([Categorical(2), Categorical(3)])
    spec["n"].set("w", Binary(1, (2, 1)))
    spec["m"] = {"q": Binary(1, (2, 1))}
    assert spec[0]["new"] == spec[1]["n", "w"] == spec[0]["m", "q"] == Binary(1)
    assert [member["n", "z"].n for member in spec.specs] == [2, 3]
    assert spec.pop("new") == Binary(1, (2, 1))
    del spec["n", "z"]
    assert "new" not in spec[1]
    assert ("n", "z") not in spec[1]
    with pytest.raises(KeyError):
        del spec["b"]
    with pytest.raises(ValueError, match="'v': got Binary"):
        spec["v"] = Binary(1)
    assert list(spec.select("n").keys()) == ["n"]
    assert list(spec.exclude("n", "m")[1].keys()) == ["a", "b"]
    assert spec.empty().is_empty()


def test_indexing_gives_the_member_itself():
    spec = pair()
    spec[1]["b"] = Binary(1)
    assert spec[1]["b"] == spec.unbind(0)[1]["b"] == Binary(1)
    assert spec[::-1] == StackedComposite(spec[1], spec[0], dim=0)


def test_a_refused_entry_changes_no_member():
    spec = StackedComposite(Composite(a=Composite()), Composite(a=Binary(1)), dim=0)
    with pytest.raises(KeyError, match="is a leaf"):
        spec["a", "x"] = Binary(1, (2, 1))
    assert spec[0] == Composite(a=Composite())


def test_a_lock_reaches_every_member():
    spec = pair().lock_()
    assert spec.is_locked
    for change in (
        lambda: spec.set("z", Binary(1, (2, 1))),
        lambda: spec[1]["n"].set("z", Binary(1)),
        lambda: spec.pop("a"),
    ):
        with pytest.raises(RuntimeError, match="unlock_"):
            change()
    assert not spec.unlock_().is_locked


def test_kinds_of_members():
    one, other = Composite(a=Binary(1), kind="leaf"), Composite(a=Binary(2), kind="leaf")
    assert stack_specs([one, other]).kind == "leaf"
    assert stack_specs([one, Composite(a=Binary(1), kind="tuple")]).kind == "dict"


# -- NonTensor


def test_non_tensor_draws_are_its_example():
    spec = NonTensor((2,), example_data="x")
    for value in (spec.rand(), spec.zero(), spec.one()):
        assert isinstance(value, NonTensorStack)
        assert value.tolist() == ["x", "x"]
    assert spec.rand((3,)).tolist() == [["x", "x"]] * 3
    assert isinstance(NonTensor(example_data="x").rand(), NonTensorData)
    assert NonTensor((0,), example_data="x").rand().batch_size == (0,)


def test_non_tensor_domain():
    spec = NonTensor((2,), example_data="ab", space=gym.spaces.Text(3))
    assert spec.is_in(NonTensorData("abc", batch_size=[2]))
    assert spec.is_in(NonTensorStack("a", "abc"))
    assert "got 'abcd', expected one of Text" in spec.faults(NonTensorStack("a", "abcd"), ("t",))[0]
    assert spec.faults(NonTensorData("a", batch_size=[3])) == ["value: shape: got [3], expected [2]"]
    assert spec.faults(spec.rand((4,)), batch_dims=0) == ["value: shape: got [4, 2], expected [2] after 0 batch dims"]
    assert not spec.is_in("ab")
    with pytest.raises(SpecError, match="out of domain"):
        spec.project(NonTensorStack("a", "abcd"))


def test_non_tensor_wraps_and_unwraps():
    for datum in ("go", None, {"a": [1, 2]}, [1, 2], np.arange(3)):
        spec = NonTensor()
        assert spec.to_numpy(spec.encode(datum)) is datum
    spec = NonTensor((2, 1))
    assert spec.to_numpy(spec.encode([["a"], ["b"]])) == [["a"], ["b"]]
    assert spec.to_numpy(NonTensorData("a", batch_size=[2, 1])) == [["a"], ["a"]]
    assert NonTensor((0, 2)).encode([]).batch_size == (0, 2)
    for wrong in (["a", "b"], [["a"]], "ab"):
        with pytest.raises(SpecError, match="expected a sequence"):
            spec.encode(wrong)


def test_non_tensor_equality():
    assert NonTensor(example_data=np.arange(3)) == NonTensor(example_data=np.arange(3))
    assert NonTensor(example_data=np.arange(3)) != NonTensor(example_data=np.arange(4))
    assert NonTensor(example_data="a") != NonTensor(example_data="b")
    assert NonTensor(space=gym.spaces.Text(3)) != NonTensor(space=gym.spaces.Text(4))
    assert NonTensor(space=gym.spaces.Text(3)) == NonTensor(space=gym.spaces.Text(3))
    nested = {"a": [np.arange(2), 1]}
    assert NonTensor(example_data=nested) == NonTensor(example_data={"a": [np.arange(2), 1]})
    assert NonTensor(example_data=nested) != NonTensor(example_data={"a": [np.arange(2) + 1, 1]})
    assert NonTensor().dtype is None
    assert NonTensor(dtype=torch.int8).dtype == torch.int8 != NonTensor().dtype
    assert NonTensor().to(torch.float32) == NonTensor()
