"""Entries, locks, faults and values of Composite."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import LazyStackedTensorDict, TensorDict

from gymbridge.errors import SpecError
from gymbridge.specs import Binary, Bounded, Categorical, Composite, NonTensor, OneHot, Unbounded, stack_specs


def nested() -> Composite:
    return Composite(a=Binary(1), b={"c": Categorical(3), "d": {"e": OneHot(2)}}, f=Composite())


def test_keys_items_and_values_agree():
    spec = nested()
    assert list(spec) == list(spec.keys()) == ["a", "b", "f"]
    assert list(spec.keys(leaves_only=True)) == ["a"]
    assert list(spec.keys(True)) == ["a", "b", ("b", "c"), ("b", "d"), ("b", "d", "e"), "f"]
    assert list(spec.keys(True, True)) == ["a", ("b", "c"), ("b", "d", "e")]
    for flags in ((False, False), (False, True), (True, False), (True, True)):
        keys, items, values = spec.keys(*flags), dict(spec.items(*flags)), list(spec.values(*flags))
        assert list(keys) == list(items)
        assert list(items.values()) == values == [spec[key] for key in keys]
        assert len(keys) == len(values)
        assert all(key in keys for key in items)
    assert ("b", "c") not in spec.keys()
    assert "b" not in spec.keys(True, True)
    assert "z" not in spec.keys(True)
    assert repr(spec.keys()) == "keys(['a', 'b', 'f'])"


def test_get_set_pop_and_delete():
    spec = nested()
    assert spec["b", "c"] == spec["b"]["c"] == spec.get(("b", "c")) == Categorical(3)
    assert spec.get("z", None) is spec.get(("a", "z"), None) is None
    spec["new", "deep"] = Binary(2)
    assert spec["new"] == Composite(deep=Binary(2))
    spec["b", "d"] = {"e": Binary(4)}
    assert spec["b", "d"] == Composite(e=Binary(4))
    assert spec.pop(("b", "c")) == Categorical(3)
    assert ("b", "c") not in spec
    assert spec.pop("z", 7) == 7
    del spec["b", "d"]
    assert spec["b"].is_empty()
    assert ("a",) in spec
    assert len(spec) == 4


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda spec: spec["z"], KeyError, "no entry 'z'.*'a', 'b'"),
        (lambda spec: spec["b", "z"], KeyError, "'b' has .*'c', 'd'"),
        (lambda spec: spec["a", "z"], KeyError, "'a' has Binary, which is a leaf"),
        (lambda spec: spec.pop("z"), KeyError, "no entry 'z'"),
        (lambda spec: spec.__delitem__(("b", "z")), KeyError, "no entry"),
        (lambda spec: spec.set(("a", "z"), Binary(1)), KeyError, "'a' is a leaf"),
        (lambda spec: spec.set(3, Binary(1)), TypeError, "got 3"),
        (lambda spec: spec.set((), Binary(1)), TypeError, r"got \(\)"),
        (lambda spec: spec.set(("a", 3), Binary(1)), TypeError, r"got \('a', 3\)"),
        (lambda spec: spec.get(3), TypeError, "got 3"),
        (lambda spec: spec.set("z", None), TypeError, "'z': expected a spec, got NoneType"),
        (lambda spec: spec.set("z", 3.0), TypeError, "'z': expected a spec, got float"),
        (lambda spec: Composite({5: Binary(1)}), TypeError, "got 5"),
        (lambda spec: Composite({}, {}), TypeError, "one mapping at most"),
        (lambda spec: Composite(kind="list"), ValueError, "kind: got 'list'"),
        (lambda spec: Composite(x=Binary(3), shape=(2,)), ValueError, "'x': got Binary of shape"),
        (lambda spec: Composite(x=OneHot(2), shape=(2,)), ValueError, r"batch dims \[\], expected .* \[2\]"),
        (lambda spec: Composite(x={"y": Binary(3)}, shape=(2,)), ValueError, "'y': got Binary of shape"),
        (lambda spec: Composite(x=Composite(), shape=(2,)), ValueError, "'x': got Composite of shape"),
        (lambda spec: spec.select("z"), KeyError, "no entry 'z'"),
    ],
)
def test_impossible_entries_are_refused_by_name(change, error, message):
    with pytest.raises(error, match=message):
        change(nested())


def test_a_refused_entry_changes_nothing():
    spec = nested()
    with pytest.raises(TypeError):
        spec.set("a", None)
    assert spec == nested()


def test_update_merges_nested_entries():
    spec = nested()
    assert spec.update({"b": {"c": Binary(9)}, "g": Binary(1), ("h", "i"): Binary(2)}) is spec
    assert spec["b", "c"] == Binary(9)
    assert ("b", "d", "e") in spec
    assert spec["g"] == Binary(1)
    assert spec["h", "i"] == Binary(2)
    spec.update(Composite(a=Composite(x=Binary(1))))
    assert spec["a", "x"] == Binary(1)


def test_a_refused_update_changes_nothing():
    spec = nested()
    for bad in (
        {"z": Binary(1), "y": None},
        {"b": {"c": Binary(1)}, ("a", "x"): Binary(1)},
        {"z": Binary(1), 3: Binary(1)},
    ):
        with pytest.raises((TypeError, KeyError)):
            spec.update(bad)
        assert spec == nested()
    with pytest.raises(RuntimeError, match=r"cannot update.*unlock_"):
        spec.lock_().update({})


def test_selections_are_copies():
    spec = nested()
    for part in (spec.select("b"), spec.exclude("a")):
        part["b"].set("z", Binary(1))
        part["b", "c"].update_mask([True, False, False])
    assert spec == nested()


def test_select_and_exclude():
    spec = nested()
    assert list(spec.select(("b", "c"), "a").keys(True, True)) == ["a", ("b", "c")]
    assert spec.select("b", ("b", "c")) == Composite(b=spec["b"])
    assert list(spec.exclude(("b", "d"), "a", "zzz").keys(True)) == ["b", ("b", "c"), "f"]
    assert spec.select("a", "z", strict=False) == Composite(a=Binary(1))
    assert spec == nested()


def test_emptiness():
    assert Composite().is_empty()
    assert not Composite(a=Composite()).is_empty()
    assert Composite(a=Composite()).is_empty(recurse=True)
    assert not nested().is_empty(recurse=True)
    spec = Composite(a=Binary(1, (2, 1)), shape=(2,), device="cpu", kind="tuple")
    assert spec.empty() == Composite(shape=(2,), device="cpu", kind="tuple")


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.set("z", Binary(1)),
        lambda spec: spec.set(("b", "z"), Binary(1)),
        lambda spec: spec["b"].set("z", Binary(1)),
        lambda spec: spec["b", "d"].set("z", Binary(1)),
        lambda spec: spec.update({"b": {"z": Binary(1)}}),
        lambda spec: spec["f"].update({"z": Binary(1)}),
    ],
)
def test_a_lock_covers_nested_specs_and_says_how_to_unlock(change):
    spec = nested().lock_()
    assert spec.is_locked
    assert spec["b", "d"].is_locked
    with pytest.raises(RuntimeError, match=r"cannot (set .*'z'|update).*unlock_"):
        change(spec)
    assert spec == nested()
    assert pickle.loads(pickle.dumps(spec)).is_locked
    for free in (spec.clone(), spec.expand(2), spec.to("cpu"), spec.select("a", "b")):
        assert not free.is_locked
    spec.unlock_()
    assert not spec["b", "d"].is_locked
    change(spec)


@pytest.mark.parametrize("part", ["b", ("b", "d"), "s"])
def test_a_lock_of_a_part_refuses_the_whole_change(part):
    stack = [Composite(x=Binary(1)), Composite(y=Binary(1))]
    spec = Composite(a=Binary(1), b={"c": Categorical(3), "d": {"e": OneHot(2)}}).expand(2)
    spec["s"] = stack_specs(stack)
    spec[part].lock_()
    before = spec.clone()
    for change in ({"a": Binary(9, (2, 9)), part: {"z": Binary(1, (2, 1))}}, {part: stack_specs(stack)}):
        with pytest.raises(RuntimeError, match=r"cannot (set|update).*unlock_"):
            spec.update(change)
        assert spec == before
    spec.unlock_().update({part: stack_specs(stack)})
    assert spec[part][1]["y"] == Binary(1)


def test_a_row_that_is_locked_refuses_the_whole_change():
    spec = stack_specs([Composite(x=Binary(1)), Composite(y=Binary(1))])
    spec.specs[1].lock_()
    with pytest.raises(RuntimeError, match="unlock_"):
        spec["z"] = Binary(1, (2, 1))
    assert "z" not in spec.specs[0]


def test_removals_need_an_unlocked_spec():
    spec = nested().lock_()
    with pytest.raises(RuntimeError, match="cannot delete 'a'"):
        del spec["a"]
    with pytest.raises(RuntimeError, match="cannot pop 'a'"):
        spec.pop("a")
    with pytest.raises(RuntimeError, match="cannot pop 'zz'"):
        spec.pop("zz", None)


def test_a_clone_is_independent_to_the_last_leaf():
    spec = nested()
    twin = spec.clone()
    twin["b", "c"].update_mask([True, False, False])
    twin["b", "z"] = Binary(1)
    assert spec == nested()


def test_the_device_is_that_of_every_leaf_or_nobodys():
    loose = Composite(a=Binary(1), b=Binary(1, device="meta"))
    assert loose.device is None
    assert loose.rand().device is None
    assert [str(spec.device) for spec in loose.values()] == ["cpu", "meta"]
    fixed = Composite(a=Binary(1, device="meta"), b={"c": Binary(1)}, device="cpu")
    assert fixed["b"].device == fixed["a"].device == fixed.rand().device == torch.device("cpu")
    fixed["d"] = Composite(e=Binary(1, device="meta"))
    assert fixed["d", "e"].device == torch.device("cpu")
    fixed["f", "g"] = Binary(1, device="meta")
    assert fixed["f"].device == torch.device("cpu")
    assert loose.to("cpu").device == torch.device("cpu")


def test_another_dtype_goes_to_each_leaf():
    spec = Composite(a=Unbounded(2), b={"c": Binary(1)}).to(torch.float64)
    assert {part.dtype for part in spec.values(True, True)} == {torch.float64}
    assert spec.dtype is None


def test_the_kind_is_kept():
    spec = Composite({"0": Binary(1, (2, 1))}, shape=(2,), kind="tuple")
    for other in (
        spec.clone(),
        spec[0],
        spec.expand(3, 2),
        spec.to("cpu"),
        spec.unsqueeze(0),
        spec.flatten(),
        spec.select("0"),
        spec.exclude("0"),
        spec.empty(),
        pickle.loads(pickle.dumps(spec)),
    ):
        assert other.kind == "tuple"
    assert spec != Composite({"0": Binary(1, (2, 1))}, shape=(2,))


def test_values_of_each_kind_of_space():
    spec = Composite(
        x=Composite({"0": Binary(2), "1": Composite(v=OneHot(3, start=1))}, kind="tuple"),
        y=Composite(observation=Bounded(0, 9, 2), kind="leaf"),
    )
    value = {"x": (np.array([0, 1], np.int8), {"v": 3}), "y": np.array([4.0, 5.0], np.float32)}
    td = spec.encode(value)
    assert td["x", "1", "v"].tolist() == [False, False, True]
    assert td["y", "observation"].tolist() == [4.0, 5.0]
    back = spec.to_numpy(td)
    assert isinstance(back["x"], tuple)
    assert back["x"][1] == {"v": 3}
    assert back["y"].tolist() == [4.0, 5.0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1]}, r"missing \['b'\]"),
        ({"a": [1], "b": {"c": 1}, "z": 0}, r"extra \['z'\]"),
        ({"a": [1, 1], "b": {"c": 1}}, r"'a': value: shape: got \[2\]"),
        ({"a": [1], "b": {"c": 0.5}}, "'b': 'c': got .*0.5"),
        ({"a": [1], "b": 3}, "'b': value: got int, expected a dict"),
        ({"a": [[1], [0]], "b": {"c": 1}}, "leading dims differ"),
        ([1, 2], "got list, expected a dict"),
    ],
)
def test_encode_says_which_key_is_wrong(value, message):
    with pytest.raises(SpecError, match=message):
        Composite(a=Binary(1), b={"c": Categorical(3)}).encode(value)


def test_faults_are_listed_one_by_one():
    spec = Composite(
        a=Bounded(0, 1, (2, 3)), b={"c": Categorical(3, (2,)), "d": Binary(1, (2, 1))}, e=OneHot(2, (2, 2)), shape=(2,)
    )
    value = TensorDict(
        a=torch.zeros(2, 4, dtype=torch.float64),
        b=TensorDict(c=torch.tensor([0, 5]), x=torch.zeros(2), batch_size=[2]),
        e=torch.zeros(2, 2),
        y=torch.zeros(2),
        batch_size=[2],
    )
    assert spec.faults(value) == [
        "'a': shape: got [2, 4], expected [2, 3]",
        "'a': dtype: got torch.float64, expected torch.float32",
        "('b', 'c'): out of domain: got 5 at [1] (1 wrong), expected 0 to 2",
        "('b', 'd'): missing, expected Binary of shape [2, 1]",
        "('b', 'x'): extra, expected only ['c', 'd']",
        "'e': dtype: got torch.float32, expected torch.bool",
        "'y': extra, expected only ['a', 'b', 'e']",
    ]
    assert not spec.is_in(value)
    with pytest.raises(SpecError, match="missing"):
        spec.assert_is_in(value)


def test_a_leaf_with_an_extra_dim_is_a_fault_inside_a_group():
    """A leaf alone may have leading dims; in a TensorDict they are those of the batch and no others."""
    spec = Composite(a=Unbounded(3))
    value = TensorDict(a=torch.zeros(1, 3), batch_size=[])
    assert spec.faults(value) == ["'a': shape: got [1, 3], expected [3]"]
    assert spec.is_in(TensorDict(a=torch.zeros(1, 3), batch_size=[1]))


def test_faults_of_the_batch_size():
    spec = Composite(a=Unbounded((2, 3)), shape=(2,))
    assert spec.faults(spec.rand((4,)), ("x",), batch_dims=0) == [
        "'x': batch size: got [4, 2], expected [2] after 0 batch dims"
    ]
    assert spec.faults(TensorDict(a=torch.zeros(2, 3))) == ["value: batch size: got [], expected [2]"]
    assert Composite(b=spec, shape=(2,)).faults(
        TensorDict(b=TensorDict(a=torch.zeros(2, 3, 1), batch_size=[2, 3]), batch_size=[2])
    ) == ["'b': batch size: got [2, 3], expected [2] after 0 batch dims"]


def test_lazy_stacks_are_checked_row_by_row():
    """Rows of a lazy stack may differ in size along a dynamic dim, and each row's own keys count."""
    spec = Composite(a=Unbounded((2, -1)), shape=(2,))
    rows = [TensorDict(a=torch.zeros(3)), TensorDict(a=torch.zeros(4))]
    assert spec.is_in(LazyStackedTensorDict.lazy_stack(rows, 0))
    assert spec.expand(2, 2, -1).is_in(LazyStackedTensorDict.lazy_stack([spec.rand(), spec.rand()], 0)) is False
    rows[1]["z"] = torch.zeros(1)
    value = LazyStackedTensorDict.lazy_stack(rows, 0)
    assert spec.faults(value) == ["row 1: 'z': extra, expected only ['a']"]
    assert spec[0].faults(value) == ["row 1: 'z': extra, expected only ['a']"]


def test_project_mends_leaves_and_leaves_the_original():
    spec = Composite(a=Bounded(0, 1, 2), b={"c": Categorical(3)})
    value = TensorDict(a=torch.tensor([5.0, 0.5]), b=TensorDict(c=torch.tensor(-4)))
    moved = spec.project(value)
    assert moved["a"].tolist() == [1.0, 0.5]
    assert moved["b", "c"].item() == 0
    assert value["b", "c"].item() == -4
    assert value["a"].tolist() == [5.0, 0.5]
    with pytest.raises(SpecError, match="'b': value: keys"):
        spec.project(TensorDict(a=torch.zeros(2), b=TensorDict()))
    with pytest.raises(SpecError, match="'b': 'c': value: dtype"):
        spec.project(TensorDict(a=torch.zeros(2), b=TensorDict(c=torch.tensor(0.5))))


def test_enumerate_is_the_product_of_the_entries():
    spec = Composite(a=Categorical(2), b={"c": Categorical(3, mask=[True, False, True])})
    values = spec.enumerate(use_mask=True)
    assert list(zip(values["a"].tolist(), values["b", "c"].tolist(), strict=True)) == [(0, 0), (0, 2), (1, 0), (1, 2)]
    assert spec.cardinality() == 6


def test_dynamic_batches():
    spec = Composite(a=Unbounded((-1, 3)), b={"c": Binary(1, (-1, 1))}, shape=(-1,))
    assert spec.is_dynamic
    assert spec.rand().batch_size == (1,)
    assert spec.is_in(
        TensorDict(a=torch.zeros(5, 3), b=TensorDict(c=torch.zeros(5, 1).char(), batch_size=[5]), batch_size=[5])
    )
    assert not spec[0].is_dynamic
    assert spec.encode({"a": np.zeros((4, 3)), "b": {"c": [[1]] * 4}}).batch_size == (4,)
    assert Composite(a=Unbounded((2, -1))).is_dynamic
    assert not Composite(a=Unbounded(2)).is_dynamic


def test_non_tensor_entries_travel():
    spec = Composite(text=NonTensor((2,), example_data="hi"), x=Unbounded((2, 1)), shape=(2,))
    value = spec.rand()
    assert spec.is_in(value)
    assert spec.to_numpy(value)["text"] == ["hi", "hi"]
    assert spec[0].to_numpy(value[0])["text"] == "hi"
    assert spec.faults(value.exclude("text")) == ["'text': missing, expected NonTensor of shape [2]"]


names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=3)
trees = st.recursive(
    st.sampled_from([Binary(2), Categorical(3, start=1), OneHot(3), Bounded(0, 1, (2, 2)), Unbounded(())]),
    lambda inner: st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(names, trees, max_size=4), st.sampled_from([(), (2,), (2, 3)]))
def test_any_tree_of_entries_round_trips(tree, batch):
    """Draws are in the spec, and survive the way to numpy and back, at any nesting and batch shape."""
    spec = Composite(tree).expand(*batch) if batch else Composite(tree)
    value = spec.rand()
    assert spec.faults(value) == []
    back = spec.encode(spec.to_numpy(value))
    assert spec.is_in(back)
    assert (back == value).all()
    assert set(spec.keys(True, True)) == {
        key for key in value.keys(True, True) if not hasattr(value.get(key), "batch_dims")
    }
    assert spec == Composite(dict(spec.items(True, True)), shape=batch).update(spec)
