"""Spaces and specs: what turns into what, and what is refused, by name."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from space_strategies import typed_discretes

from gymbridge.errors import UnsupportedSpaceError
from gymbridge.spaces import observation_spec, space_to_spec, spec_to_space
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
    Unbounded,
)

INF = np.inf
DATA_SPACES = [
    spaces.Text(5),
    spaces.Text(3, min_length=0, charset="ab"),
    spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    spaces.Graph(spaces.Box(0, 1, (2,)), None),
    spaces.Sequence(spaces.Box(0, 1, (2,))),
    spaces.Sequence(spaces.Discrete(3), stack=True),
    spaces.OneOf([spaces.Discrete(3), spaces.Text(4)]),
]
"""One of each kind whose samples are no arrays."""


def test_naming_and_the_package_import_no_torch() -> None:
    """Workers import them: torch would cost each of them seconds and 100 MiB."""
    code = "import sys, gymbridge.spaces, gymbridge.spaces.naming; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Box(-1, 1, (2,)), Bounded(-1, 1, (2,))),
        (spaces.Box(-INF, 1, (2,)), Bounded(-INF, 1, (2,))),
        (spaces.Box(-INF, INF, (2,)), Unbounded((2,))),
        (spaces.Box(0, 255, (2, 3), np.uint8), Bounded(0, 255, (2, 3), dtype=torch.uint8)),
        (spaces.Box(-INF, INF, (), np.int16), Unbounded((), dtype=torch.int16)),
        (spaces.Box(0, INF, (), np.int16), Bounded(0, 32767, (), dtype=torch.int16)),
        (spaces.Box(0, 1, (0,), bool), Unbounded((0,), dtype=torch.bool)),
        (spaces.Box(0, 1, (1,), bool), Bounded(0, 1, (1,), dtype=torch.bool)),
        (spaces.Discrete(3, start=-1), Categorical(3, start=-1)),
        *[(space, Categorical(3, dtype=torch.int8, start=-1)) for space in typed_discretes((3, -1, np.int8))],
        (
            spaces.MultiDiscrete([[2, 3]], dtype=np.uint8, start=[[0, 4]]),
            MultiCategorical([[2, 3]], dtype=torch.uint8, start=[[0, 4]]),
        ),
        (spaces.MultiBinary((2, 3)), Binary(shape=(2, 3))),
        (spaces.Dict(), Composite()),
        (spaces.Tuple([]), Composite(kind="tuple")),
        (spaces.Tuple([spaces.Discrete(2)]), Composite({"0": Categorical(2)}, kind="tuple")),
        (
            spaces.Dict(reward=spaces.Dict(_x=spaces.Discrete(2))),
            Composite(reward=Composite(_x=Categorical(2))),
        ),
    ],
    ids=str,
)
def test_what_a_space_turns_into(space: Space, spec: Any) -> None:
    assert space_to_spec(space) == spec


def test_one_hot_specs_keep_the_dtype_and_start_of_the_space() -> None:
    for space in typed_discretes((3, -1, np.int8)):
        one = space_to_spec(space, categorical_action_encoding=False)
        assert one == OneHot(3, start=-1, categorical_dtype=torch.int8)
    many = space_to_spec(spaces.MultiDiscrete([2, 3], np.uint8, start=[0, 4]), categorical_action_encoding=False)
    assert many == MultiOneHot([2, 3], start=[0, 4], categorical_dtype=torch.uint8)


def test_no_bits_stand_for_box_and_binary_values() -> None:
    space = spaces.Dict(a=spaces.Box(-1, 1), b=spaces.MultiBinary(2), c=spaces.Tuple([spaces.Discrete(2)]))
    spec = space_to_spec(space, categorical_action_encoding=False)
    assert isinstance(spec, Composite)
    assert [type(leaf) for leaf in spec.values(True, True)] == [Bounded, Binary, OneHot]


def test_keys_at_the_root_of_an_observation() -> None:
    x = spaces.Discrete(2)
    space = spaces.Dict([("reward", x), ("b", spaces.Dict(done=x)), ("_user", spaces.Dict(valid=x)), ("a", x)])
    spec = observation_spec(space)
    assert list(spec.keys(include_nested=True, leaves_only=True)) == [
        ("b", "done"),
        "a",
        ("_user", "reward"),
        ("_user", "_user", "valid"),
    ]
    assert spec_to_space(spec) == space
    # The same specs under the same keys, but from a Dict that has a key "_user" itself.
    plain = spaces.Dict(_user=spaces.Dict(reward=x))
    assert list(observation_spec(spaces.Dict(reward=x)).keys(True, True)) == list(space_to_spec(plain).keys(True, True))
    assert spec_to_space(space_to_spec(plain)) == plain


@pytest.mark.parametrize(
    ("space", "kind", "key"),
    [
        (spaces.Discrete(2), "leaf", "observation"),
        (spaces.Tuple([spaces.Discrete(2)]), "leaf", ("observation", "0")),
        (spaces.Dict(x=spaces.Discrete(2)), "dict", "x"),
        (spaces.Text(3), "leaf", "observation"),
    ],
    ids=str,
)
def test_an_observation_spec_remembers_its_kind_of_space(space: Space, kind: str, key: Any) -> None:
    spec = observation_spec(space, device="cpu", batch_size=(2,))
    assert spec.kind == kind
    assert list(spec.keys(include_nested=True, leaves_only=True)) == [key]
    assert spec.device == torch.device("cpu")
    for changed in (observation_spec(space), spec[0], spec.clone()[1], pickle.loads(pickle.dumps(spec))[0]):
        assert spec_to_space(changed) == space


def test_specs_take_their_device() -> None:
    spec = space_to_spec(spaces.Dict(a=spaces.Discrete(2), b=spaces.Text(2)), device="meta")
    assert spec.device == torch.device("meta")
    assert {leaf.device for leaf in spec.values(True, True)} == {torch.device("meta")}


@pytest.mark.parametrize("space", DATA_SPACES, ids=str)
def test_spaces_without_arrays_are_nontensor_leaves(space: Space) -> None:
    space.seed(3)
    before = repr(space.np_random.bit_generator.state)
    spec = space_to_spec(space)
    assert repr(space.np_random.bit_generator.state) == before, "the space's own random numbers were used"
    assert isinstance(spec, NonTensor)
    assert spec.is_in(spec.rand())
    assert spec == space_to_spec(space)
    assert spec_to_space(spec) == space
    assert spec_to_space(space_to_spec(space, batch_size=(2,))) == spaces.Tuple([space, space])


@pytest.mark.parametrize(
    ("spec", "space"),
    [
        (Categorical(3, (2,), start=1), spaces.MultiDiscrete([3, 3], start=[1, 1])),
        (Categorical(3, (), mask=[True, False, True]), spaces.Discrete(3)),
        (Categorical(2, dtype=torch.bool), spaces.Box(0, 1, (), bool)),
        (Categorical(1, (2,), dtype=torch.bool, start=1), spaces.Box(1, 1, (2,), bool)),
        (Categorical(256, dtype=torch.uint8), spaces.Box(0, 255, (), np.uint8)),
        (MultiCategorical([2, 256], dtype=torch.uint8), spaces.Box(0, np.array([1, 255]), (2,), np.uint8)),
        (MultiCategorical([2, 3], (2, 2)), spaces.MultiDiscrete([[2, 3], [2, 3]])),
        (OneHot(3, (2, 3)), spaces.MultiDiscrete([3, 3])),
        (MultiOneHot([2, 3], (2, 5)), spaces.MultiDiscrete([[2, 3], [2, 3]])),
        (Binary(3), spaces.MultiBinary(3)),
        (Binary(3, (2, 3)), spaces.MultiBinary((2, 3))),
        (Binary(3, dtype=torch.bool), spaces.Box(0, 1, (3,), bool)),
        (Binary(shape=(0, 2)), spaces.Box(0, 1, (0, 2), np.int8)),
        (Unbounded((2,), dtype=torch.bool), spaces.Box(0, 1, (2,), bool)),
        (Unbounded((2,), dtype=torch.uint64), spaces.Box(0, 2**64 - 1, (2,), np.uint64)),
        (Unbounded((2,), dtype=torch.bfloat16), spaces.Box(-INF, INF, (2,), np.float32)),
        (Bounded(-1, 1, (2,), dtype=torch.bfloat16), spaces.Box(-1, 1, (2,), np.float32)),
        (Composite({"1": Binary(1), "0": Binary(2)}, kind="tuple"), spaces.Tuple([*map(spaces.MultiBinary, (2, 1))])),
        (Composite(x=Binary(1), kind="leaf"), spaces.MultiBinary(1)),
    ],
    ids=lambda value: str(value) if isinstance(value, Space) else "",
)
def test_what_a_spec_turns_into(spec: Any, space: Space) -> None:
    assert spec_to_space(spec) == space
    assert type(spec_to_space(spec)) is type(space)
    torch.manual_seed(0)
    value = spec.to_numpy(spec.rand())
    assert (np.asarray(value) if isinstance(space, spaces.Box) else value) in space


@pytest.mark.parametrize(
    "spec",
    [
        Unbounded((-1,)),
        NonTensor(),
        Stacked(Unbounded((2,)), Unbounded((3,)), dim=0),
        StackedComposite(Composite(a=Unbounded(2)), Composite(a=Unbounded(3)), dim=0),
        Composite(x=Unbounded(1), kind="tuple"),
        Composite(x=Unbounded(1), y=Unbounded(1), kind="leaf"),
    ],
    ids=lambda spec: type(spec).__name__,
)
def test_specs_without_a_space_are_refused_by_key(spec: Any) -> None:
    with pytest.raises(UnsupportedSpaceError, match=r"^outer\.inner: "):
        spec_to_space(Composite(outer=Composite(inner=spec)))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 1, (2,), np.longdouble),
        spaces.Box(0, 1, (2,), ">f4"),
        spaces.Box(0, 1, (2,), ">i8"),
        spaces.Box(-INF, -INF, (2,)),
        *typed_discretes((100, 100, np.int8), (2**63, 0, np.uint64)),
        spaces.MultiDiscrete([3, 100], np.int8, start=[0, 100]),
    ],
    ids=str,
)
@pytest.mark.parametrize("convert", [space_to_spec, observation_spec])
def test_values_that_no_tensor_holds_are_refused_by_key(space: Space, convert: Any) -> None:
    with pytest.raises(UnsupportedSpaceError, match=r"^outer\.1: .* has no spec: "):
        convert(spaces.Dict(outer=spaces.Tuple([spaces.Discrete(2), space])))


def test_a_discrete_may_go_up_to_the_end_of_uint64() -> None:
    for space in typed_discretes((3, 2**64 - 3, np.uint64)):
        spec = space_to_spec(space)
        assert spec_to_space(spec) == space
        assert int(spec.to_numpy(spec.encode(np.uint64(2**64 - 1)))) == 2**64 - 1


class _Custom(Space):
    pass


@pytest.mark.parametrize("convert", [space_to_spec, observation_spec])
def test_an_unknown_space_is_refused_with_its_place_and_what_to_do(convert: Any) -> None:
    with pytest.raises(UnsupportedSpaceError, match=r"^a\.0: .*_Custom.*register_space\(_Custom, to_spec"):
        convert(spaces.Dict(a=spaces.Tuple([_Custom()])))


@pytest.mark.parametrize("convert", [space_to_spec, observation_spec])
def test_a_key_that_is_no_string_is_refused_by_name(convert: Any) -> None:
    with pytest.raises(TypeError, match=r"^a: got the Dict key 3, expected a string"):
        convert(spaces.Dict(a=spaces.Dict({3: spaces.Discrete(2)})))
    with pytest.raises(TypeError, match=r"^the root: got the Dict key 3"):
        convert(spaces.Dict({3: spaces.Discrete(2)}))


@pytest.mark.parametrize("convert", [space_to_spec, observation_spec, spec_to_space])
def test_what_is_neither_space_nor_spec_is_refused(convert: Any) -> None:
    with pytest.raises(TypeError, match="got 3, expected a"):
        convert(3)
