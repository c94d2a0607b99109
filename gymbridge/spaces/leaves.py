"""Leaf by leaf: the spec of a space that has no parts, and the space of such a spec."""

from __future__ import annotations

import copy
import inspect
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from gymbridge.errors import UnsupportedSpaceError
from gymbridge.spaces.naming import no_translation, place_name
from gymbridge.spaces.translation import translation_for, translation_of
from gymbridge.specs import (
    Binary,
    Bounded,
    Categorical,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
)
from gymbridge.specs._bridge import array_of, as_numpy_dtype
from gymbridge.specs._leaf import LeafSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gymbridge.spaces.naming import Key
    from gymbridge.specs._bridge import DeviceLike

__all__ = ["leaf_space", "leaf_spec"]


def leaf_spec(space: Space[Any], key: Key, device: DeviceLike, categorical: bool) -> LeafSpec:
    """The spec, without batch dims, of a space that has no parts.

    Raises:
        UnsupportedSpaceError: there is no translation, or no tensor can hold the samples.
    """
    translation = translation_of(space)
    if translation is not None:
        spec = translation.to_spec(space)
        if not isinstance(spec, LeafSpec):
            raise TypeError(f"{place_name(key)}: to_spec gave {spec!r} for {space}, expected the spec of one leaf")
        spec = spec.clone() if device is None else spec.to(device).clone()
        spec.space_type = type(space)
        return spec
    try:
        found = _spec_of(space, device, categorical)
    except (TypeError, ValueError) as error:
        raise UnsupportedSpaceError(f"{place_name(key)}: {space} has no spec: {error}") from error
    if found is None:
        raise no_translation(space, key)
    return found


@singledispatch
def _spec_of(space: object, device: DeviceLike, categorical: bool) -> LeafSpec | None:
    return None


@_spec_of.register(spaces.Box)
def _(space: Any, device: DeviceLike, categorical: bool) -> LeafSpec:
    if not (space.bounded_below.any() or space.bounded_above.any()):
        return Unbounded(space.shape, device, space.dtype)
    return Bounded(space.low, space.high, space.shape, device, space.dtype)


@_spec_of.register(spaces.Discrete)
def _(space: Any, device: DeviceLike, categorical: bool) -> LeafSpec:
    n, start = int(space.n), int(space.start)
    if categorical:
        return Categorical(n, (), device, space.dtype, start=start)
    return OneHot(n, device=device, start=start, categorical_dtype=space.dtype)


@_spec_of.register(spaces.MultiDiscrete)
def _(space: Any, device: DeviceLike, categorical: bool) -> LeafSpec:
    if categorical:
        return MultiCategorical(space.nvec, None, device, space.dtype, start=space.start)
    return MultiOneHot(space.nvec, device=device, start=space.start, categorical_dtype=space.dtype)


@_spec_of.register(spaces.MultiBinary)
def _(space: Any, device: DeviceLike, categorical: bool) -> LeafSpec:
    n = space.n if isinstance(space.n, int) else None  # MultiBinary(3) and MultiBinary((3,)) are not equal
    return Binary(n, space.shape, device, space.dtype)


@_spec_of.register(spaces.Text)
@_spec_of.register(spaces.Graph)
@_spec_of.register(spaces.Sequence)
@_spec_of.register(spaces.OneOf)
def _(space: Space[Any], device: DeviceLike, categorical: bool) -> LeafSpec:
    drawn = copy.deepcopy(space)  # not from the space itself, whose random numbers are the user's
    drawn.seed(0)
    return NonTensor((), device, example_data=drawn.sample(), space=space)


def leaf_space(spec: TensorSpec, key: Key) -> Space[Any]:
    """The space of the values that ``spec.to_numpy`` gives; batch dims become leading dims.

    Raises:
        UnsupportedSpaceError: there is no such space.
    """
    space_type = spec.space_type if isinstance(spec, LeafSpec) else None
    translation = translation_for(space_type) if space_type is not None else None
    if translation is not None:
        return translation.to_space(spec)
    if -1 in spec.shape:
        raise UnsupportedSpaceError(
            f"{place_name(key)}: got shape {list(spec.shape)}, expected sizes: a space has no dim of any size"
        )
    space = _space_of(spec)
    if space is None:
        raise UnsupportedSpaceError(f"{place_name(key)}: no space for {spec!r}")
    return space


_DISCRETE_HAS_DTYPE = "dtype" in inspect.signature(spaces.Discrete.__init__).parameters
"""gymnasium before 1.2 counts in int64 only; a ``Box`` stands in for the others."""


@singledispatch
def _space_of(spec: object) -> Space[Any] | None:
    return None


def _box(low: Any, high: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> Space[Any]:
    return spaces.Box(low, high, tuple(shape), dtype)


@_space_of.register
def _(spec: Unbounded) -> Space[Any]:
    dtype = as_numpy_dtype(spec.dtype)
    low, high = (-np.inf, np.inf) if dtype.kind in "if" else (0, 1 if dtype.kind == "b" else np.iinfo(dtype).max)
    return _box(low, high, spec.shape, dtype)


@_space_of.register
def _(spec: Bounded) -> Space[Any]:
    low, high = (np.array(array_of(bound)) for bound in (spec.low, spec.high))
    return _box(low, high, spec.shape, low.dtype)


@_space_of.register
def _(spec: Binary) -> Space[Any]:
    shape, dtype = tuple(spec.shape), as_numpy_dtype(spec.dtype)
    if dtype != np.int8 or 0 in shape:  # what MultiBinary cannot be
        return _box(0, 1, shape, dtype)
    return spaces.MultiBinary(spec.n if spec.n is not None and shape == (spec.n,) else shape)


@_space_of.register
def _(spec: Categorical) -> Space[Any]:
    return _choice_space(spec, np.asarray(spec.n), np.asarray(spec.start))


@_space_of.register
def _(spec: MultiCategorical) -> Space[Any]:
    return _choice_space(spec, array_of(spec.nvec), array_of(spec.start))


def _choice_space(spec: Categorical | MultiCategorical, nvec: NDArray[Any], start: NDArray[Any]) -> Space[Any]:
    shape, dtype = tuple(spec.shape), as_numpy_dtype(spec.dtype)
    start = start.astype(dtype)
    if dtype.kind == "b" or (nvec > np.iinfo(dtype).max).any():
        # Discrete and MultiDiscrete take no bools, and count their values in the dtype of the values.
        last = (start.astype(np.int64) + nvec - 1).astype(dtype)  # right modulo 2**64
        return _box(np.broadcast_to(start, shape).copy(), np.broadcast_to(last, shape).copy(), shape, dtype)
    if not shape and isinstance(spec, Categorical):
        if _DISCRETE_HAS_DTYPE:
            return spaces.Discrete(int(nvec), start=int(start), dtype=dtype)
        if dtype == np.int64:
            return spaces.Discrete(int(nvec), start=int(start))
        return _box(start, start + dtype.type(nvec - 1), (), dtype)
    return spaces.MultiDiscrete(np.broadcast_to(nvec, shape), dtype, start=np.broadcast_to(start, shape))


@_space_of.register(OneHot)
@_space_of.register(MultiOneHot)
def _(spec: OneHot | MultiOneHot) -> Space[Any] | None:
    return _space_of(spec.to_categorical_spec())


@_space_of.register
def _(spec: NonTensor) -> Space[Any] | None:
    return _repeated(spec.space, spec.shape) if isinstance(spec.space, Space) else None


def _repeated(space: Space[Any], shape: Sequence[int]) -> Space[Any]:
    """Nested tuples of copies of a space, whose samples are no arrays that could be stacked."""
    if not shape:
        return copy.deepcopy(space)
    return spaces.Tuple([_repeated(space, shape[1:]) for _ in range(shape[0])])
