"""The codec of actions: memory, gradients, devices, messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from space_strategies import typed_discretes
from tensordict import NonTensorData, NonTensorStack

from gymbridge.errors import SpecError, UnsupportedSpaceError
from gymbridge.spaces import ActionCodec

SPACE = spaces.Dict(
    grip=next(iter(typed_discretes((3, -1, np.int8))), spaces.Discrete(3, start=-1)),
    pads=spaces.MultiDiscrete([[2, 3], [1, 4]], np.uint8, start=[[5, 0], [0, 1]]),
    turn=spaces.Box(-1, 1, (2,)),
)


def test_categorical_actions_share_the_memory_of_a_cpu_tensor() -> None:
    """The hot path copies nothing."""
    action = torch.zeros(4, dtype=torch.int64)
    [array] = ActionCodec(spaces.Discrete(3)).decode([action])
    action[2] = 1
    assert array.tolist() == [0, 0, 1, 0]


def test_actions_may_require_grad() -> None:
    action = torch.ones(4, 2, requires_grad=True)
    [array] = ActionCodec(spaces.Box(-1, 1, (2,))).decode([action])
    assert array.tolist() == [[1, 1]] * 4


@pytest.mark.cuda
@pytest.mark.parametrize("categorical", [True, False])
def test_actions_on_a_gpu_come_back(categorical: bool) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    codec = ActionCodec(SPACE, device="cuda", categorical_action_encoding=categorical)
    SPACE.seed(0)
    sample = SPACE.sample()
    tensors = codec.encode([sample[key] for key in ("grip", "pads", "turn")])
    assert {tensor.device.type for tensor in tensors} == {"cuda"}
    for key, array in zip(("grip", "pads", "turn"), codec.decode(tensors), strict=True):
        np.testing.assert_array_equal(array, sample[key])


def test_leaves_come_in_the_order_of_the_action_tree() -> None:
    codec = ActionCodec(SPACE, categorical_action_encoding=False)
    assert [leaf.name for leaf in codec.leaves] == ["action.grip", "action.pads", "action.turn"]
    bits = torch.tensor([0, 1, 0, 0, 1, 1, 0, 0, 0, 1], dtype=torch.bool)
    grip, pads, turn = codec.decode([torch.tensor([True, False, False]), bits, torch.ones(2)])
    assert (grip.dtype, grip.shape, grip.tolist()) == (SPACE["grip"].dtype, (), -1)
    assert (pads.dtype, pads.tolist()) == (np.uint8, [[6, 2], [0, 4]])
    assert turn.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("space", "bits", "message"),
    [
        (spaces.Discrete(2), [False, False], r"^action: got \[False, False\], expected exactly one True$"),
        (spaces.Discrete(2), [[False, True], [True, True]], r"^action\[1\]: got \[True, True\]"),
        (spaces.Discrete(2), [[False, False], [True, True]], r"^action\[0\]: got \[False, False\]"),
        (spaces.Discrete(2), [[[False, True], [True, True]]], r"^action\[0, 1\]: got \[True, True\]"),
        (spaces.MultiDiscrete([1, 2]), [True, True, True], r"^action: got \[True, True\] for choice 1"),
        (spaces.MultiDiscrete([2, 2]), [True, True, False, False], r"^action: got \[True, True\] for choice 0"),
    ],
)
def test_what_is_not_one_hot_is_refused_by_name(space: spaces.Space, bits: list, message: str) -> None:
    codec = ActionCodec(space, categorical_action_encoding=False)
    with pytest.raises(SpecError, match=message):
        codec.decode([torch.tensor(bits)])


def test_a_wrong_number_of_tensors_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        ActionCodec(SPACE).decode([torch.zeros(1)])


def test_actions_that_do_not_fit_are_refused_by_name() -> None:
    codec = ActionCodec(SPACE, categorical_action_encoding=False)
    with pytest.raises(SpecError, match=r"^action\.grip: .*out of domain"):
        codec.encode([np.array(2), np.array([[5, 0], [0, 1]]), np.zeros(2)])
    with pytest.raises(SpecError, match=r"^action\.turn: .*shape"):
        codec.encode([np.array(1), np.array([[5, 0], [0, 1]]), np.zeros(3)])


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(0, 1, (1,), ">f4"), r"^action: "),
        (spaces.Tuple([spaces.Box(0, 1, (1,), np.longdouble)]), r"^action\.0: "),
    ],
)
def test_spaces_without_action_tensors_are_refused_by_name(space: spaces.Space, message: str) -> None:
    with pytest.raises(UnsupportedSpaceError, match=message):
        ActionCodec(space)


def test_actions_that_are_no_arrays_become_arrays_of_objects() -> None:
    codec = ActionCodec(spaces.Dict(say=spaces.Text(3), turn=spaces.Box(-1, 1, (2,))))
    say, turn = codec.decode([NonTensorStack("a", "bc"), torch.zeros(2, 2)])
    assert say.dtype == object
    assert say.tolist() == ["a", "bc"]
    assert turn.shape == (2, 2)
    [one] = ActionCodec(spaces.Sequence(spaces.Discrete(3), stack=True)).decode([NonTensorData(np.array([0, 1]))])
    assert one.shape == ()
    assert one[()].tolist() == [0, 1]
