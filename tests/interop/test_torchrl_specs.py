"""``spec_to_torchrl`` and ``spec_from_torchrl`` against TorchRL's own specs."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torchrl")

import spec_kinds
import torch
from tensordict import NonTensorData
from torchrl import data as theirs

from gymbridge import specs as own
from gymbridge.interop.torchrl_specs import ChosenData, UnsupportedSpecError, spec_from_torchrl, spec_to_torchrl

pytestmark = pytest.mark.timeout(300)

WIDE = (torch.uint16, torch.uint32, torch.uint64)
"""dtypes that torch cannot compare, and TorchRL's domain checks not either."""

COMES_BACK_AS = {
    "categorical-start": own.Bounded(-1, 1, (2,), dtype=torch.int32),
    "categorical-uint64": own.Bounded(2**64 - 3, 2**64 - 1, (2,), dtype=torch.uint64),
    "multicategorical-nd": own.Bounded([[0, -1], [10, 3]], [[1, 1], [10, 7]], (2, 2, 2), dtype=torch.int64),
    "multicategorical-uint16": own.Bounded([65_533, 65_533], [65_534, 65_535], dtype=torch.uint16),
    "onehot-start": own.OneHot(3, (2, 3), dtype=torch.uint16),
    "multionehot-nd": own.MultiOneHot([2, 3, 1, 2], (2, 8)),
    "nontensor-space": own.NonTensor(example_data="ab"),
    "composite-tuple": own.Composite({"0": own.Binary(1, (2, 1)), "1": own.OneHot(3, (2, 3))}, shape=(2,)),
    "composite-leaf": own.Composite(observation=own.Bounded(0, 1, (2, 4)), shape=(2,)),
    "stacked": own.Stacked(own.Categorical(3, (3,)), own.Bounded(2, 6, (3,), dtype=torch.int64), dim=0),
}
"""Specs with a part that TorchRL has no place for, and what is left of them."""


def back_and_forth(spec: own.TensorSpec) -> own.TensorSpec:
    return spec_from_torchrl(spec_to_torchrl(spec))


def forth_and_back(spec: Any) -> Any:
    return spec_to_torchrl(spec_from_torchrl(spec))


def new_seed() -> int:
    seed = int(os.environ.get("GYMBRIDGE_SEED", random.randrange(2**31)))
    print(f"seed {seed}")
    torch.manual_seed(seed)
    return seed


@pytest.mark.parametrize("name", [name for name in spec_kinds.LEAVES + spec_kinds.GROUPS if name != "composite-all"])
def test_every_kind_comes_back(name: str) -> None:
    spec = spec_kinds.make(name)
    assert back_and_forth(spec) == COMES_BACK_AS.get(name, spec)


def test_kinds_come_back_as_entries_too() -> None:
    spec = spec_kinds.make("composite-all")
    assert isinstance(spec, own.Composite)
    back = back_and_forth(spec)
    assert isinstance(back, own.Composite)
    assert back.device == torch.device("cpu")
    for name, entry in spec.items():
        expected = COMES_BACK_AS[name].expand(entry.shape) if name in COMES_BACK_AS else entry
        assert back[name] == expected, name


THEIRS: dict[str, Callable[[], Any]] = {
    "bounded": lambda: theirs.Bounded(-1, 1, (2, 3)),
    "bounded elementwise": lambda: theirs.Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 5.0])),
    "bounded integers": lambda: theirs.Bounded(0, 255, (2, 3), dtype=torch.uint8),
    "bounded dynamic": lambda: theirs.Bounded(-1, 1, (-1, 3)),
    "unbounded": lambda: theirs.Unbounded((2,), dtype=torch.float64),
    "unbounded integers": lambda: theirs.Unbounded((2,), dtype=torch.int32),
    "unbounded scalar": lambda: theirs.Unbounded(()),
    "unbounded dynamic": lambda: theirs.Unbounded((2, -1)),
    "categorical": lambda: theirs.Categorical(4, (2,)),
    "categorical bools": lambda: theirs.Categorical(2, (2, 1), dtype=torch.bool),
    "categorical masked": lambda: theirs.Categorical(3, (2,), mask=torch.tensor([True, False, True])),
    "one-hot": lambda: theirs.OneHot(3, (2, 3)),
    "one-hot masked": lambda: theirs.OneHot(3, (2, 3), dtype=torch.int64, mask=torch.tensor([True, False, True])),
    "multi-categorical": lambda: theirs.MultiCategorical((2, 3), (4, 2)),
    "multi-categorical of two dims": lambda: theirs.MultiCategorical(torch.tensor([[2, 3], [4, 5]]), (3, 2, 2)),
    "multi-categorical masked": lambda: theirs.MultiCategorical(
        (2, 3), (4, 2), mask=torch.tensor([True, False, True, True, False])
    ),
    "multi-one-hot": lambda: theirs.MultiOneHot((2, 3), (4, 5)),
    "multi-one-hot masked": lambda: theirs.MultiOneHot((2, 3), mask=torch.tensor([True, False, True, True, False])),
    "binary": lambda: theirs.Binary(3, (2, 3)),
    "binary scalar": lambda: theirs.Binary(shape=()),
    "non-tensor": lambda: theirs.NonTensor((2,), device="cpu", example_data="go"),
    "choice": lambda: theirs.Choice([NonTensorData(word, batch_size=(2,), device="cpu") for word in ("a", "b")]),
    "composite": lambda: theirs.Composite(
        {("a", "b"): theirs.Bounded(0, 1, (2, 3)), "c": theirs.Binary(1, (2, 1))}, shape=(2,), device="cpu"
    ),
    "composite without device": lambda: theirs.Composite(a=theirs.Unbounded((2,)), shape=()),
    "composite empty": lambda: theirs.Composite(shape=(2,)),
    "stacked": lambda: theirs.Stacked(theirs.Categorical(2, (3,)), theirs.Categorical(3, (3,)), dim=1),
    "stacked of other shapes": lambda: theirs.Stacked(theirs.Bounded(0, 1, (3,)), theirs.Bounded(0, 1, (4,)), dim=0),
    "stacked composite": lambda: theirs.StackedComposite(
        theirs.Composite(a=theirs.Bounded(0, 1, (3,)), n=theirs.Composite(x=theirs.Binary(2))),
        theirs.Composite(a=theirs.Bounded(0, 1, (4,)), b=theirs.OneHot(3)),
        dim=0,
    ),
}


@pytest.mark.parametrize("name", THEIRS)
def test_every_kind_of_torchrl_comes_back(name: str) -> None:
    spec = THEIRS[name]()
    converted = spec_from_torchrl(spec)
    assert isinstance(converted, own.TensorSpec)
    assert converted.shape == spec.shape
    assert type(converted).__name__ in (type(spec).__name__, type(spec).__mro__[1].__name__, "NonTensor")
    back = spec_to_torchrl(converted)
    assert type(back) is type(spec)
    assert back == spec


@pytest.mark.parametrize("name", spec_kinds.LEAVES)
def test_values_of_one_are_values_of_the_other(name: str) -> None:
    new_seed()
    spec = spec_kinds.make(name)
    converted = spec_to_torchrl(spec)
    if spec.dtype in WIDE or name == "onehot-masked":  # of floats, for which TorchRL's check has no `&`
        assert converted.zero().shape == spec.zero().shape
        assert converted.zero().dtype == spec.dtype
        return
    for _ in range(20):
        assert converted.is_in(spec.rand())
        if name != "bounded-mixed-infinite":  # TorchRL draws NaN between infinite bounds
            spec.assert_is_in(converted.rand())


@pytest.mark.parametrize("name", [name for name in THEIRS if not name.startswith("stacked")])
def test_values_of_torchrls_are_values_of_ours(name: str) -> None:
    new_seed()
    spec = THEIRS[name]()
    converted = spec_from_torchrl(spec)
    for _ in range(20):
        if "dynamic" not in name and name != "choice":  # of which TorchRL asks whether two objects are one
            assert spec.is_in(converted.rand())
        converted.assert_is_in(spec.rand())


def random_leaf(draw: random.Random, batch: tuple[int, ...]) -> own.TensorSpec:
    """A spec that TorchRL has an equal of."""
    shape = (*batch, *(draw.randint(1, 3) for _ in range(draw.randint(0, 2))))
    floats, integers = (
        (torch.float16, torch.float32, torch.float64),
        (torch.int8, torch.int32, torch.int64, torch.uint8),
    )
    n, nvec = draw.randint(1, 6), [draw.randint(1, 4) for _ in range(draw.randint(2, 3))]
    low = torch.randint(0, 50, shape)
    kind = draw.randrange(10)
    if kind == 0:
        return own.Bounded(low, low + draw.randint(0, 50), shape, dtype=draw.choice(integers))
    if kind == 1:
        return own.Bounded(low - 20, low + draw.randint(0, 50), shape, dtype=draw.choice(floats))
    if kind == 2:
        return own.Unbounded(shape, dtype=draw.choice(floats + integers))
    if kind == 3:
        return own.Binary(shape=(*shape, draw.randint(1, 3)), dtype=draw.choice((torch.bool, *integers)))
    if kind == 4:
        return own.NonTensor(shape, example_data=draw.choice(["go", 3, (1, 2), None]))
    if kind == 5:
        return own.NonTensor(shape, example_data="a", space=ChosenData(("a", "b")))
    spec: own.TensorSpec
    if kind == 6:
        spec, total = own.Categorical(n, shape, dtype=draw.choice(integers)), n
    elif kind == 7:
        spec, total = own.OneHot(n, (*shape, n), dtype=draw.choice((torch.bool, *integers))), n
    elif kind == 8:
        spec, total = own.MultiCategorical(nvec, (*shape, len(nvec)), dtype=draw.choice(integers)), sum(nvec)
    else:
        spec, total = own.MultiOneHot(nvec, (*shape, sum(nvec))), sum(nvec)
    if draw.random() < 0.4 and kind != 8:  # TorchRL cannot expand a masked MultiCategorical, as its stacks do
        mask = torch.rand(*shape, total) < 0.5
        mask |= one_of_each(spec, mask.shape)
        spec.update_mask(mask)
    return spec


def one_of_each(spec: Any, shape: torch.Size) -> torch.Tensor:
    """Bits, one set at least for each choice, so that a mask with them leaves something."""
    free = spec.to_one_hot_spec()
    free.update_mask(None)
    return free.rand().bool().expand(shape)


def random_spec(draw: random.Random, batch: tuple[int, ...], depth: int) -> own.TensorSpec:
    kind = draw.random()
    if depth == 0 or kind < 0.4:
        return random_leaf(draw, batch)
    if kind < 0.5 and batch:
        dim = draw.randrange(len(batch))
        rest = (*batch[:dim], *batch[dim + 1 :])
        shared = random_group(draw, rest, depth - 1)
        # What all rows have is of one kind in all: TorchRL does not show a key whose specs are of several.
        rows = [
            own.Composite({**dict(shared.clone().items()), f"row{row}": random_leaf(draw, rest)}, shape=rest)
            for row in range(batch[dim])
        ]
        return own.StackedComposite(*rows, dim=dim)
    return random_group(draw, (*batch, *(draw.randint(1, 3) for _ in range(draw.randint(0, 1)))), depth - 1)


def random_group(draw: random.Random, batch: tuple[int, ...], depth: int) -> own.Composite:
    names = [f"k{i}" for i in range(draw.randint(0, 4))]
    entries = {name: random_spec(draw, batch, depth) for name in names}
    device = draw.choice([None, "cpu"])
    group = own.Composite(entries, shape=batch, device=device)
    return group.lock_() if draw.random() < 0.2 else group


def locks(spec: Any) -> list[bool]:
    """Which Composites are locked, top to bottom; of a stack those that it is made of."""
    if hasattr(spec, "stack_dim"):
        return [locked for row in spec.unbind(spec.stack_dim) for locked in locks(row)]
    if not hasattr(spec, "items"):
        return []
    return [spec.is_locked, *(locked for _, entry in spec.items() for locked in locks(entry))]


@pytest.mark.parametrize("_", range(30))
def test_random_specs_come_back(_: int) -> None:
    draw = random.Random(new_seed())
    spec = random_group(draw, tuple(draw.randint(1, 3) for _ in range(draw.randint(0, 2))), 3)
    converted = spec_to_torchrl(spec)
    back = spec_from_torchrl(converted)
    assert back == spec, f"{back}\n{spec}"
    assert locks(back) == locks(converted) == locks(spec)
    again = spec_to_torchrl(back)
    assert again == converted
    assert [*again.keys(True, True)] == [*converted.keys(True, True)]


def test_nothing_is_shared() -> None:
    spec = own.Composite(a=own.OneHot(3, mask=[True, False, True]), b=own.Bounded(0, 1, (2,)))
    converted = spec_to_torchrl(spec)
    back = spec_from_torchrl(converted)
    converted["a"].mask.fill_(True)
    converted["b"].space.low = torch.full((2,), -5.0)
    converted["c"] = theirs.Binary(1)
    for kept in (spec, back):
        assert isinstance(kept, own.Composite)
        assert [*kept.keys()] == ["a", "b"]
        assert kept["a"].mask.tolist() == [True, False, True]
        assert kept["b"].low.tolist() == [0, 0]


def test_a_masks_values_alone_are_drawn() -> None:
    new_seed()
    mask = [[True, False, False], [False, True, True]]
    for spec in (own.Categorical(3, (2,), mask=mask), own.OneHot(3, (2, 3), mask=mask)):
        converted = spec_to_torchrl(spec)
        for _ in range(30):
            spec.assert_is_in(converted.rand())
    converted = theirs.Categorical(3, (2,), mask=torch.tensor(mask))
    for _ in range(30):
        assert converted.is_in(spec_from_torchrl(converted).rand())


def test_a_start_becomes_a_range() -> None:
    new_seed()
    for spec in (own.Categorical(3, (4,), start=5), own.MultiCategorical([2, 3], (4, 2), start=[-7, 1])):
        converted = spec_to_torchrl(spec)
        assert type(converted).__name__ == "BoundedDiscrete"
        for value in spec.enumerate():
            assert converted.is_in(value)
        for _ in range(30):
            spec.assert_is_in(converted.rand())


def test_a_multi_categorical_of_one_choice_is_drawn_with_its_dim() -> None:
    """TorchRL draws values of shape [] from its MultiCategorical of shape [1]."""
    new_seed()
    mask = [[True, False, True], [False, True, True]]
    for spec in (
        own.MultiCategorical([3]),
        own.MultiCategorical([3], mask=[True, False, True]),
        own.MultiCategorical([3], (2, 1), mask=mask),
    ):
        converted = spec_to_torchrl(spec)
        for _ in range(30):
            value = converted.clone().rand()  # as transforms have it
            assert value.shape == spec.shape
            spec.assert_is_in(value)
            assert converted.is_in(spec.rand())


@pytest.mark.parametrize("n", [255, 256])
def test_as_many_values_as_a_dtype_holds(n: int) -> None:
    """TorchRL compares values with n in their own dtype."""
    for spec in (
        own.Categorical(n, (4,), dtype=torch.uint8),
        own.Categorical(n - 128, (4,), dtype=torch.int8),
        own.Categorical(n, dtype=torch.uint8, mask=[True] * n),
        own.MultiCategorical([n], dtype=torch.uint8),
        own.MultiCategorical([n, 3], dtype=torch.uint8),
    ):
        converted = spec_to_torchrl(spec)
        for value in (*spec.enumerate()[[0, -1]], spec.rand(), converted.rand()):
            assert converted.is_in(value)
            spec.assert_is_in(value)


def test_a_multi_categorical_of_no_values() -> None:
    """TorchRL spreads nvec over the shape: nothing of it is left in a batch of none."""
    for spec in (own.MultiCategorical([2, 3], (0, 2)), own.MultiCategorical([[2], [3]], (0, 2, 1))):
        converted = spec_to_torchrl(spec)
        assert converted.rand().shape == converted.zero().shape == spec.shape
        assert back_and_forth(spec) == own.Bounded(0, 0, spec.shape, dtype=torch.int64)
    assert spec_from_torchrl(theirs.MultiCategorical((2, 3), (0, 2))).shape == (0, 2)


def test_an_unknown_number_of_values() -> None:
    spec = theirs.Categorical(-1, (2,))
    assert spec_from_torchrl(spec) == own.Bounded(0, float("inf"), (2,), dtype=torch.int64)
    spec.set_provisional_n(5)
    assert spec_from_torchrl(spec) == own.Categorical(5, (2,))


def test_locks_are_kept() -> None:
    spec = own.Composite(a=own.Composite(b=own.Binary(1))).lock_()
    converted = spec_to_torchrl(spec)
    with pytest.raises(RuntimeError, match="locked"):
        converted["a"]["c"] = theirs.Binary(1)
    with pytest.raises(RuntimeError, match="locked"):
        spec_from_torchrl(converted)["a"].set("c", own.Binary(1))  # type: ignore[attr-defined]
    stacked = own.StackedComposite(own.Composite(a=own.Binary(1)), own.Composite(b=own.Binary(1)), dim=0)
    with pytest.raises(RuntimeError, match="locked"):
        spec_to_torchrl(stacked.lock_())["c"] = theirs.Binary(1, (2, 1))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a mask beside a start": (
        lambda: spec_to_torchrl(own.Composite(a={"b": own.Categorical(3, start=2, mask=[True, False, True])})),
        r"entry \('a', 'b'\): got a mask for Categorical with start=2",
    ),
    "a mask beside an nvec of two dims": (
        lambda: spec_to_torchrl(own.MultiCategorical([[2, 3], [2, 3]], mask=[True] * 10)),
        r"nvec of shape \[2, 2\]",
    ),
    "a name of Composite's own": (
        lambda: spec_to_torchrl(own.Composite(a={"shape": own.Binary(1)})),
        r"entry \('a', 'shape'\): got a name that TorchRL's Composite keeps for itself",
    ),
    "a choice of specs": (
        lambda: spec_from_torchrl(
            theirs.Composite(a=theirs.Choice([theirs.Bounded(0, 1, (1,)), theirs.Bounded(5, 6, (1,))]))
        ),
        "entry 'a': got a Choice of BoundedContinuous, expected a Choice of NonTensorData",
    ),
    "no spec in a Composite": (
        lambda: spec_from_torchrl(theirs.Composite(a=None)),
        "entry 'a': got None, expected a spec of torchrl.data",
    ),
    "something else": (lambda: spec_from_torchrl(3), "got int, expected a spec of torchrl.data"),
    "TorchRL's spec as one of ours": (
        lambda: spec_to_torchrl(theirs.Binary(1)),
        "got Binary, expected a spec of gymbridge.specs",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_equal_is_refused_by_name(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(UnsupportedSpecError, match=message):
        call()
