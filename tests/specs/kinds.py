"""One or more specs of each kind, which the behaviour suite goes through."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch

from gymbridge.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Stacked,
    StackedComposite,
    TensorSpec,
    Unbounded,
)

INF = float("inf")


def make_leaves() -> dict[str, TensorSpec]:
    """Specs of one tensor, whose batch dims are all of size 2 where there are any."""
    return {
        "bounded": Bounded(-1, 1, (2, 3)),
        "bounded-scalar": Bounded(-1, 1, ()),
        "bounded-empty": Bounded(0, 1, (2, 0)),
        "bounded-mixed-infinite": Bounded([-INF, -INF, 0.0, -2.0], [INF, 1.0, INF, 5.0]),
        "bounded-float64-full": Bounded(np.finfo(np.float64).min, np.finfo(np.float64).max, (2,), dtype=torch.float64),
        "bounded-float16-full": Bounded(-65504, 65504, (2,), dtype=torch.float16),
        "bounded-bfloat16": Bounded(-1, 3, (2,), dtype=torch.bfloat16),
        "bounded-bool": Bounded([False, False], [False, True], dtype=torch.bool),
        "bounded-uint8": Bounded(0, 255, (2, 3), dtype=torch.uint8),
        "bounded-int16": Bounded([-5, 7], [5, 7], dtype=torch.int16),
        "bounded-uint16": Bounded(3, 60_000, (2,), dtype=torch.uint16),
        "bounded-uint32": Bounded(0, 2**32 - 1, (2,), dtype=torch.uint32),
        "bounded-uint64-full": Bounded(0, 2**64 - 1, (2,), dtype=torch.uint64),
        "bounded-int64-full": Bounded(-(2**63), 2**63 - 1, (2,), dtype=torch.int64),
        "unbounded": Unbounded((2, 3)),
        "unbounded-bool": Unbounded((2,), dtype=torch.bool),
        "unbounded-uint64": Unbounded((2,), dtype=torch.uint64),
        "unbounded-int8": Unbounded((), dtype=torch.int8),
        "categorical": Categorical(4),
        "categorical-start": Categorical(3, (2,), start=-1, dtype=torch.int32),
        "categorical-masked": Categorical(4, (2,), mask=[[True, False, True, False], [False, False, False, True]]),
        "categorical-bool": Categorical(2, (2, 1), dtype=torch.bool),
        "categorical-uint64": Categorical(3, (2,), start=2**64 - 3, dtype=torch.uint64),
        "categorical-huge": Categorical(2**62, (2,)),
        "onehot": OneHot(3),
        "onehot-start": OneHot(3, (2, 3), start=5, dtype=torch.uint16, categorical_dtype=torch.int8),
        "onehot-masked": OneHot(3, (2, 3), mask=[True, False, True], dtype=torch.float32),
        "multicategorical": MultiCategorical([2, 3]),
        "multicategorical-nd": MultiCategorical([[2, 3], [1, 5]], (2, 2, 2), start=[[0, -1], [10, 3]]),
        "multicategorical-masked": MultiCategorical([2, 3], (2, 2), mask=[True, False, True, False, True]),
        "multicategorical-uint16": MultiCategorical([2, 3], dtype=torch.uint16, start=65_533),
        "multionehot": MultiOneHot([2, 3], dtype=torch.int64),
        "multionehot-nd": MultiOneHot([[2, 3], [1, 2]], (2, 8), start=[[0, 1], [2, 3]]),
        "multionehot-masked": MultiOneHot([2, 3], (2, 5), mask=[True, False, True, False, True]),
        "binary": Binary(3),
        "binary-nd": Binary(shape=(2, 3), dtype=torch.uint32),
        "nontensor": NonTensor((2,), example_data="go"),
        "nontensor-space": NonTensor(example_data="ab", space=gym.spaces.Text(3)),
    }


def make_groups() -> dict[str, TensorSpec]:
    """Nested specs and stacks, with a leading batch dim of size 2."""
    leaves = make_leaves()
    return {
        "composite-empty": Composite(shape=(2,)),
        "composite-all": Composite(
            {name: spec.expand(2, *spec.shape) for name, spec in leaves.items()}, shape=(2,), device="cpu"
        ),
        "composite-nested": Composite(
            {("a", "b", "c"): Categorical(3, (2,)), "d": Composite(shape=(2, 1), e=Binary(2, (2, 1, 2)))}, shape=(2,)
        ),
        "composite-tuple": Composite({"0": Binary(1, (2, 1)), "1": OneHot(3, (2, 3))}, shape=(2,), kind="tuple"),
        "composite-leaf": Composite(observation=Bounded(0, 1, (2, 4)), shape=(2,), kind="leaf"),
        "stacked": Stacked(Categorical(3, (3,)), Categorical(5, (3,), start=2), dim=0),
        "stacked-last": Stacked(Bounded(0, 1, (2,)), Bounded(4, 5, (2,)), dim=1),
        "stacked-nontensor": Stacked(NonTensor(example_data="a"), NonTensor(example_data="b"), dim=0),
        "stackedcomposite": StackedComposite(
            Composite(a=Bounded(0, 1, (3,)), n=Composite(x=Binary(2))),
            Composite(a=Bounded(0, 1, (4,)), n=Composite(x=Binary(2), y=Unbounded(3)), b=OneHot(3)),
            dim=0,
        ),
        "stackedcomposite-last": StackedComposite(
            Composite(a=Binary(1, (2, 1)), shape=(2,)), Composite(b=Binary(1, (2, 1)), shape=(2,)), dim=1
        ),
        "composite-of-stacks": Composite(
            shape=(2,),
            s=Stacked(Categorical(3, (3,)), Categorical(5, (3,)), dim=0),
            c=StackedComposite(Composite(a=Unbounded(2)), Composite(b=Unbounded(1)), dim=0),
        ),
    }


LEAVES = list(make_leaves())
GROUPS = list(make_groups())


def make(name: str) -> TensorSpec:
    """A fresh spec by its name."""
    return (make_leaves() | make_groups())[name]


def same_value(one: object, other: object) -> bool:
    """Whether two values (arrays, tensors, dicts, lists, TensorDicts) are equal, dtype included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same_value(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if hasattr(one, "batch_dims"):
        return one.batch_size == other.batch_size and same_value(plain(one), plain(other))
    return one == other


def plain(value: object) -> object:
    """A TensorDict as nested dicts of its tensors, a lazy stack as the list of its rows."""
    if hasattr(value, "tolist") and not isinstance(value, torch.Tensor) and not hasattr(value, "keys"):
        return value.tolist()
    if type(value).__name__ in ("NonTensorData", "NonTensorStack"):
        return value.tolist() if value.batch_dims else value.data
    if type(value).__name__ == "LazyStackedTensorDict":
        return [plain(row) for row in value.unbind(value.stack_dim)]
    if hasattr(value, "batch_dims"):
        return {key: plain(value.get(key)) for key in sorted(value.keys())}
    return value
