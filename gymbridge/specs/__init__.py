"""Specs: what a tensor, or a nested group of tensors, looks like. TorchRL's names and argument order."""

from gymbridge.specs._base import TensorSpec
from gymbridge.specs._composite import Composite
from gymbridge.specs._discrete import Categorical, MultiCategorical, MultiOneHot, OneHot
from gymbridge.specs._nontensor import NonTensor
from gymbridge.specs._numeric import Binary, Bounded, Unbounded
from gymbridge.specs._stacked import Stacked
from gymbridge.specs._stacked_composite import StackedComposite
from gymbridge.specs._stacking import stack_specs

__all__ = [
    "Binary",
    "Bounded",
    "Categorical",
    "Composite",
    "MultiCategorical",
    "MultiOneHot",
    "NonTensor",
    "OneHot",
    "Stacked",
    "StackedComposite",
    "TensorSpec",
    "Unbounded",
    "stack_specs",
]
