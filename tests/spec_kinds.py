"""One or more specs of each kind, which the behaviour suite goes through."""

from __future__ import annotations

from collections.abc import Callable

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


_LEAVES: dict[str, Callable[[], TensorSpec]] = {
    "bounded": lambda: Bounded(-1, 1, (2, 3)),
    "bounded-scalar": lambda: Bounded(-1, 1, ()),
    "bounded-empty": lambda: Bounded(0, 1, (2, 0)),
    "bounded-mixed-infinite": lambda: Bounded([-INF, -INF, 0.0, -2.0], [INF, 1.0, INF, 5.0]),
    "bounded-float64-full": lambda: Bounded(
        np.finfo(np.float64).min, np.finfo(np.float64).max, (2,), dtype=torch.float64
    ),
    "bounded-float16-full": lambda: Bounded(-65504, 65504, (2,), dtype=torch.float16),
    "bounded-bfloat16": lambda: Bounded(-1, 3, (2,), dtype=torch.bfloat16),
    "bounded-bool": lambda: Bounded([False, False], [False, True], dtype=torch.bool),
    "bounded-uint8": lambda: Bounded(0, 255, (2, 3), dtype=torch.uint8),
    "bounded-int16": lambda: Bounded([-5, 7], [5, 7], dtype=torch.int16),
    "bounded-uint16": lambda: Bounded(3, 60_000, (2,), dtype=torch.uint16),
    "bounded-uint32": lambda: Bounded(0, 2**32 - 1, (2,), dtype=torch.uint32),
    "bounded-uint64-full": lambda: Bounded(0, 2**64 - 1, (2,), dtype=torch.uint64),
    "bounded-int64-full": lambda: Bounded(-(2**63), 2**63 - 1, (2,), dtype=torch.int64),
    "unbounded": lambda: Unbounded((2, 3)),
    "unbounded-bool": lambda: Unbounded((2,), dtype=torch.bool),
    "unbounded-uint64": lambda: Unbounded((2,), dtype=torch.uint64),
    "unbounded-int8": lambda: Unbounded((), dtype=torch.int8),
    "categorical": lambda: Categorical(4),
    "categorical-start": lambda: Categorical(3, (2,), start=-1, dtype=torch.int32),
    "categorical-masked": lambda: Categorical(4, (2,), mask=[[True, False, True, False], [False, False, False, True]]),
    "categorical-bool": lambda: Categorical(2, (2, 1), dtype=torch.bool),
    "categorical-uint64": lambda: Categorical(3, (2,), start=2**64 - 3, dtype=torch.uint64),
    "categorical-huge": lambda: Categorical(2**62, (2,)),
    "onehot": lambda: OneHot(3),
    "onehot-start": lambda: OneHot(3, (2, 3), start=5, dtype=torch.uint16, categorical_dtype=torch.int8),
    "onehot-masked": lambda: OneHot(3, (2, 3), mask=[True, False, True], dtype=torch.float32),
    "multicategorical": lambda: MultiCategorical([2, 3]),
    "multicategorical-nd": lambda: MultiCategorical([[2, 3], [1, 5]], (2, 2, 2), start=[[0, -1], [10, 3]]),
    "multicategorical-masked": lambda: MultiCategorical([2, 3], (2, 2), mask=[True, False, True, False, True]),
    "multicategorical-uint16": lambda: MultiCategorical([2, 3], dtype=torch.uint16, start=65_533),
    "multionehot": lambda: MultiOneHot([2, 3], dtype=torch.int64),
    "multionehot-nd": lambda: MultiOneHot([[2, 3], [1, 2]], (2, 8), start=[[0, 1], [2, 3]]),
    "multionehot-masked": lambda: MultiOneHot([2, 3], (2, 5), mask=[True, False, True, False, True]),
    "binary": lambda: Binary(3),
    "binary-nd": lambda: Binary(shape=(2, 3), dtype=torch.uint32),
    "nontensor": lambda: NonTensor((2,), example_data="go"),
    "nontensor-space": lambda: NonTensor(example_data="ab", space=gym.spaces.Text(3)),
}
"""Makers of specs of one tensor, whose batch dims are all of size 2 where there are any."""


def _expanded(spec: TensorSpec) -> TensorSpec:
    return spec.expand(2, *spec.shape)


_GROUPS: dict[str, Callable[[], TensorSpec]] = {
    "composite-empty": lambda: Composite(shape=(2,)),
    "composite-all": lambda: Composite(
        {name: _expanded(leaf()) for name, leaf in _LEAVES.items()}, shape=(2,), device="cpu"
    ),
    "composite-nested": lambda: Composite(
        {("a", "b", "c"): Categorical(3, (2,)), "d": Composite(shape=(2, 1), e=Binary(2, (2, 1, 2)))}, shape=(2,)
    ),
    "composite-tuple": lambda: Composite({"0": Binary(1, (2, 1)), "1": OneHot(3, (2, 3))}, shape=(2,), kind="tuple"),
    "composite-leaf": lambda: Composite(observation=Bounded(0, 1, (2, 4)), shape=(2,), kind="leaf"),
    "stacked": lambda: Stacked(Categorical(3, (3,)), Categorical(5, (3,), start=2), dim=0),
    "stacked-last": lambda: Stacked(Bounded(0, 1, (2,)), Bounded(4, 5, (2,)), dim=1),
    "stacked-nontensor": lambda: Stacked(NonTensor(example_data="a"), NonTensor(example_data="b"), dim=0),
    "stackedcomposite": lambda: StackedComposite(
        Composite(a=Bounded(0, 1, (3,)), n=Composite(x=Binary(2))),
        Composite(a=Bounded(0, 1, (4,)), n=Composite(x=Binary(2), y=Unbounded(3)), b=OneHot(3)),
        dim=0,
    ),
    "stackedcomposite-last": lambda: StackedComposite(
        Composite(a=Binary(1, (2, 1)), shape=(2,)), Composite(b=Binary(1, (2, 1)), shape=(2,)), dim=1
    ),
    "composite-of-stacks": lambda: Composite(
        shape=(2,),
        s=Stacked(Categorical(3, (3,)), Categorical(5, (3,)), dim=0),
        c=StackedComposite(Composite(a=Unbounded(2)), Composite(b=Unbounded(1)), dim=0),
    ),
}
"""Makers of nested specs and stacks, with a leading batch dim of size 2."""


LEAVES = [*_LEAVES]
GROUPS = [*_GROUPS]


def make(name: str) -> TensorSpec:
    """A fresh spec by its name."""
    return (_LEAVES | _GROUPS)[name]()


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
