"""Spaces, samples and actions come back from specs and tensors as they went in, for generated spaces of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fuzzing import examples
from gymnasium import Space, spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from space_strategies import BOX_DTYPES, SHAPES, any_spaces, samples, typed_discretes

from gymbridge.errors import SpecError
from gymbridge.spaces import (
    ActionCodec,
    from_tensordict,
    observation_spec,
    space_to_spec,
    spec_to_space,
    to_tensordict,
)
from gymbridge.spaces.naming import action_tree, observation_tree, space_tree
from gymbridge.specs import Composite

many = settings(max_examples=examples(300))


@st.composite
def extreme_boxes(draw: st.DrawFn) -> spaces.Box:
    """A ``Box`` with bounds at the ends of its dtype, infinite ones included: for specs, not for sampling."""
    dtype = draw(st.sampled_from(BOX_DTYPES))
    shape = draw(st.sampled_from(SHAPES))
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        lows = (-np.inf, float(limits.min), -float(limits.smallest_subnormal), -0.0, 0.0)
        highs = (np.inf, float(limits.max), float(limits.smallest_subnormal), 0.0)
    elif dtype.kind == "b":
        lows, highs = (0, 1), (1,)
    else:
        limits = np.iinfo(dtype)
        lows = (limits.min, limits.min + 1, 0, -np.inf) if dtype.kind == "i" else (0, 1)
        highs = (limits.max, limits.max - 1, *((0, np.inf) if dtype.kind == "i" else ()))
    if draw(st.booleans()):
        return spaces.Box(draw(st.sampled_from(lows)), draw(st.sampled_from(highs)), shape, dtype)
    size = int(np.prod(shape))
    finite = [[value for value in ends if dtype.kind == "f" or np.isfinite(value)] for ends in (lows, highs)]
    low, high = (
        np.array(draw(st.lists(st.sampled_from(ends), min_size=size, max_size=size)), dtype).reshape(shape)
        for ends in finite
    )
    return spaces.Box(low, high, shape, dtype)


def can_draw(space: Space) -> bool:
    """Whether gymnasium itself can draw from the space, and contains what it draws: not ``Box(0.0, -0.0)``, for one."""
    try:
        return space.contains(as_contained(space, space.sample()))
    except ValueError:
        return False


drawable_spaces = any_spaces().filter(can_draw)


def plain(value: Any) -> Any:
    """A value as something that ``==`` compares to the bit, types, dtypes and order of keys included."""
    if isinstance(value, dict):
        return ("dict", [(key, plain(part)) for key, part in value.items()])
    if isinstance(value, (tuple, list)):
        return (type(value), [plain(part) for part in value])
    if isinstance(value, (np.ndarray, np.generic)):
        return (type(value), value.dtype, value.shape, value.tobytes())
    if isinstance(value, torch.Tensor):
        return (torch.Tensor, plain(value.numpy()))
    return (type(value), value)


def plain_space(space: Space, ordered: bool = True) -> Any:
    """A space as something that ``==`` compares to the bit; gymnasium's own ``==`` takes close bounds for equal."""
    if isinstance(space, spaces.Box):
        return ("box", plain(space.low), plain(space.high))
    if isinstance(space, spaces.Discrete):
        return ("discrete", plain(space.n), plain(space.start), space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        return ("multi-discrete", plain(space.nvec), plain(space.start), space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return ("multi-binary", plain(space.n))
    if isinstance(space, spaces.Tuple):
        return ("tuple", [plain_space(part, ordered) for part in space.spaces])
    assert isinstance(space, spaces.Dict)
    items = [(key, plain_space(part, True)) for key, part in space.spaces.items()]
    return ("dict", items if ordered else sorted(items))


def as_contained(space: Space, sample: Any) -> Any:
    """A sample with an array where gymnasium draws a scalar that its own ``MultiDiscrete`` without dims refuses."""
    tree = space_tree(space)
    values = tree.flatten(sample)
    return tree.unflatten(
        value if isinstance(leaf.space, spaces.Discrete) else np.asarray(value)
        for leaf, value in zip(tree.leaves, values, strict=True)
    )


def contained_samples(space: Space) -> st.SearchStrategy[Any]:
    """Samples of a space that it contains: gymnasium draws others too, 1.1 from ``Box(126, 126, dtype=int8)`` say."""
    return samples(space).map(lambda sample: as_contained(space, sample)).filter(space.contains)


def stacked(space: Space, drawn: list[Any], shape: tuple[int, ...]) -> Any:
    """A batch of samples, as ``gymnasium.vector.utils.concatenate`` gives it, for batches of any dims."""
    tree = space_tree(space)
    columns = [[] for _ in tree.leaves]
    for sample in drawn:
        for column, value in zip(columns, tree.flatten(sample), strict=True):
            column.append(value)
    return tree.unflatten(
        np.array(column, leaf.dtype).reshape((*shape, *leaf.shape))
        for leaf, column in zip(tree.leaves, columns, strict=True)
    )


@many
@given(space=st.one_of(any_spaces(), extreme_boxes()), categorical=st.booleans())
def test_a_space_comes_back_from_its_spec(space: Space, categorical: bool) -> None:
    spec = space_to_spec(space, categorical_action_encoding=categorical)
    back = spec_to_space(spec)
    assert back == space
    assert plain_space(back) == plain_space(space)


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiBinary((3,)),
        spaces.MultiBinary(()),
        spaces.MultiDiscrete(np.array(3), start=np.array(-1)),
        spaces.MultiDiscrete(np.zeros((2, 0), np.int64)),
        *typed_discretes((127, -127, np.int8), (2**63 - 1, 0, np.uint64)),
        spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Dict([("z", spaces.Discrete(2)), ("y", spaces.Dict())]))]),
    ],
    ids=str,
)
def test_spaces_that_are_seldom_generated_come_back(space: Space) -> None:
    """``MultiBinary(3)`` and ``MultiBinary((3,))`` are not equal; the keys of a ``Dict`` have an order."""
    assert plain_space(spec_to_space(space_to_spec(space))) == plain_space(space)
    assert plain_space(spec_to_space(observation_spec(space))) == plain_space(space)
    one_hot = spec_to_space(space_to_spec(space, categorical_action_encoding=False))
    assert plain_space(one_hot) == plain_space(space)
    if isinstance(space, spaces.MultiDiscrete):
        sample = np.asarray(space.sample())
        assert plain(from_tensordict(space, to_tensordict(space, sample))) == plain(sample)
        codec = ActionCodec(space, categorical_action_encoding=False)
        assert plain(codec.decode(codec.encode([sample]))) == plain([sample])


@many
@given(space=st.one_of(any_spaces(), extreme_boxes()))
def test_a_space_comes_back_from_its_observation_spec(space: Space) -> None:
    spec = observation_spec(space)
    back = spec_to_space(spec)
    assert back == space
    assert plain_space(back, ordered=False) == plain_space(space, ordered=False)
    keys = [key if isinstance(key, tuple) else (key,) for key in spec.keys(include_nested=True, leaves_only=True)]
    assert sorted(keys) == sorted(leaf.key for leaf in observation_tree(space).leaves)


@many
@given(space=st.one_of(any_spaces(), extreme_boxes()), categorical=st.booleans())
def test_batch_dims_lead_every_leaf_of_a_spec(space: Space, categorical: bool) -> None:
    one = space_to_spec(space, categorical_action_encoding=categorical)
    batch = space_to_spec(space, batch_size=(2, 3), categorical_action_encoding=categorical)
    assert batch == one.expand(2, 3, *one.shape)
    assert batch[1, 2] == one
    assert observation_spec(space, batch_size=4)[0] == observation_spec(space)
    # The space of a batch is the leaves' arrays with more dims, without a change of dtype.
    leaves, more = space_tree(space).leaves, space_tree(spec_to_space(batch)).leaves
    assert [leaf.dtype for leaf in more] == [leaf.dtype for leaf in leaves]
    assert [leaf.shape for leaf in more] == [(2, 3, *leaf.shape) for leaf in leaves]


@many
@given(data=st.data(), space=drawable_spaces)
def test_a_sample_comes_back_from_its_tensordict(data: st.DataObject, space: Space) -> None:
    sample = data.draw(contained_samples(space))
    td = to_tensordict(space, sample)
    spec = observation_spec(space)
    spec.assert_is_in(td)
    back = from_tensordict(space, td)
    assert plain(back) == plain(sample)
    assert back in space
    # The spec itself encodes the same, and decodes it (to scalars where there are no dims).
    assert all(torch.equal(td[key], entry) for key, entry in spec.encode(sample).items(True, True))
    assert plain(to_tensordict(space, spec.to_numpy(td)).to_dict()) == plain(td.to_dict())


@many
@given(data=st.data(), space=drawable_spaces, batch=st.sampled_from([(1,), (3,), (2, 2), (0,)]))
def test_a_batch_of_samples_comes_back_from_its_tensordict(
    data: st.DataObject, space: Space, batch: tuple[int, ...]
) -> None:
    count = int(np.prod(batch))
    drawn = [data.draw(contained_samples(space)) for _ in range(count)]
    sample = stacked(space, drawn, batch)
    td = to_tensordict(space, sample, batch_size=batch)
    assert td.batch_size == torch.Size(batch)
    observation_spec(space, batch_size=batch).assert_is_in(td)
    assert plain(from_tensordict(space, td)) == plain(sample)
    for row, one in zip(np.ndindex(*batch), drawn, strict=True):
        assert plain(from_tensordict(space, td[row])) == plain(as_contained(space, one))


@many
@given(space=drawable_spaces, seed=st.integers(0, 2**31))
def test_what_a_spec_draws_is_in_the_space(space: Space, seed: int) -> None:
    torch.manual_seed(seed)
    assert space.contains(from_tensordict(space, observation_spec(space).rand()))


@many
@given(
    data=st.data(), space=drawable_spaces, categorical=st.booleans(), batch=st.sampled_from([(), (3,), (2, 2), (0,)])
)
def test_actions_come_back_from_their_tensors(
    data: st.DataObject, space: Space, categorical: bool, batch: tuple[int, ...]
) -> None:
    tree = action_tree(space)
    sample = stacked(space, [data.draw(contained_samples(space)) for _ in range(int(np.prod(batch)))], batch)
    arrays = [np.asarray(value) for value in tree.flatten(sample)]
    codec = ActionCodec(space, categorical_action_encoding=categorical)
    tensors = codec.encode(arrays)
    spec = Composite(
        action=space_to_spec(space, batch_size=batch, categorical_action_encoding=categorical), shape=batch
    )
    for leaf, tensor in zip(codec.leaves, tensors, strict=True):
        spec[leaf.key].assert_is_in(tensor)
    decoded = codec.decode(tensors)
    assert plain(decoded) == plain(arrays)
    assert all(type(array) is np.ndarray for array in decoded)


@many
@given(
    data=st.data(),
    space=st.one_of(
        st.builds(spaces.Discrete, st.integers(1, 4), start=st.integers(-3, 3)),
        st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 3), min_size=1, max_size=3)),
    ),
    rows=st.integers(1, 3),
)
def test_only_one_hot_bits_are_decoded(data: st.DataObject, space: Space, rows: int) -> None:
    """Near misses: draws that are one-hot but for a few bits, or that have the right number of bits in all."""
    spec = space_to_spec(space, categorical_action_encoding=False, batch_size=rows)
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    bits = spec.rand()
    flat = bits.view(-1)
    for place in data.draw(st.lists(st.integers(0, flat.numel() - 1), max_size=2)):
        flat[place] = ~flat[place]
    if data.draw(st.booleans()):
        bits = flat[torch.randperm(flat.numel())].view(bits.shape)
    codec = ActionCodec(space, categorical_action_encoding=False)
    if spec.is_in(bits):
        assert plain(codec.decode([bits])) == plain([spec.to_numpy(bits)])
    else:
        with pytest.raises(SpecError, match=r"^action\[\d\]: got \[.*\].*, expected exactly one True$"):
            codec.decode([bits])
