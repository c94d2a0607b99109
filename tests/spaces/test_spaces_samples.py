"""Samples and TensorDicts: custom and array-less spaces, and what is refused, by name."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from tensordict import TensorDict

from gymbridge import SerialEnv
from gymbridge.envs import GymEnv, check_env_specs
from gymbridge.errors import SpecError, UnsupportedSpaceError
from gymbridge.spaces import (
    from_tensordict,
    observation_spec,
    register_space,
    space_to_spec,
    spec_to_space,
    to_tensordict,
)
from gymbridge.specs import Bounded, Composite, NonTensor, Unbounded
from gymbridge.vector import SyncVectorEnv


class Angle(Space):
    """Angles as strings of degrees, which travel as radians."""

    def sample(self, **kwargs: Any) -> str:
        return f"{self.np_random.integers(360)}deg"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and x.endswith("deg")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Angle)


class Word(Space):
    """Objects, which travel as they are."""

    def __init__(self, words: tuple[str, ...]):
        super().__init__()
        self.words = words

    def contains(self, x: Any) -> bool:
        return x in self.words

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Word) and other.words == self.words


class Wheel(spaces.Box):
    """A box with a translation of its own: twice the value."""


class Pair(spaces.Dict):
    """A dict that travels as one tensor."""


register_space(
    Angle,
    to_spec=lambda space: Bounded(0, 7, (1,), dtype=torch.float64),
    to_space=lambda spec: Angle(),
    to_tensor=lambda space, sample: torch.tensor([np.deg2rad(float(sample[:-3]))], dtype=torch.float64),
    from_tensor=lambda space, tensor: f"{np.rad2deg(float(tensor)):.0f}deg",
)
register_space(
    Word,
    to_spec=lambda space: NonTensor(example_data=space.words[0], space=space),
    to_space=lambda spec: Word(spec.space.words),
    to_tensor=lambda space, sample: sample.upper(),
    from_tensor=lambda space, datum: datum.lower(),
)
register_space(
    Wheel,
    to_spec=lambda space: Bounded(2 * space.low, 2 * space.high),
    to_space=lambda spec: Wheel(spec.low.numpy() / 2, spec.high.numpy() / 2),
)
register_space(
    Pair,
    to_spec=lambda space: Unbounded((2,)),
    to_space=lambda spec: Pair(a=spaces.Box(-np.inf, np.inf, ()), b=spaces.Box(-np.inf, np.inf, ())),
    to_tensor=lambda space, sample: torch.stack([torch.as_tensor(sample["a"]), torch.as_tensor(sample["b"])]),
    from_tensor=lambda space, tensor: {"a": tensor[0].numpy(), "b": tensor[1].numpy()},
)


def test_a_custom_space_travels_as_numbers() -> None:
    space = spaces.Dict(heading=Angle(), reward=spaces.Tuple([Angle()]))
    spec = observation_spec(space, device="cpu")
    assert spec_to_space(spec) == spec_to_space(pickle.loads(pickle.dumps(spec))) == space
    sample = {"heading": "180deg", "reward": ("90deg",)}
    td = to_tensordict(space, sample)
    torch.testing.assert_close(td["heading"], torch.tensor([torch.pi], dtype=torch.float64))
    spec.assert_is_in(td)
    assert from_tensordict(space, td) == sample


def test_a_batch_of_a_custom_space() -> None:
    sample = [["0deg", "10deg"], ["20deg", "30deg"]]
    td = to_tensordict(Angle(), sample, batch_size=(2, 2))
    assert td["observation"].shape == (2, 2, 1)
    assert from_tensordict(Angle(), td) == (("0deg", "10deg"), ("20deg", "30deg"))
    assert from_tensordict(Angle(), td[1, 0]) == "20deg"
    none = to_tensordict(Angle(), [], batch_size=(0,))
    assert none["observation"].shape == (0, 1)
    assert from_tensordict(Angle(), none) == ()


def test_a_custom_space_travels_as_data() -> None:
    space = spaces.Tuple([Word(("go", "stay")), Word(("a",))])
    assert spec_to_space(observation_spec(space)) == space
    td = to_tensordict(space, ("stay", "a"))
    assert td["observation", "0"] == "STAY"
    assert from_tensordict(space, td) == ("stay", "a")
    td = to_tensordict(space, (["go", "stay"], ["a", "a"]), batch_size=[2])
    assert td[1]["observation", "0"] == "STAY"
    assert from_tensordict(space, td) == (("go", "stay"), ("a", "a"))


def test_a_registration_wins_over_that_of_a_base() -> None:
    wheel = Wheel(-1, 1, (2,))
    spec = space_to_spec(wheel, batch_size=(3,))
    assert spec == Bounded(-2, 2, (3, 2))
    assert type(spec_to_space(spec)) is Wheel
    assert space_to_spec(spaces.Box(-1, 1, (2,))) == Bounded(-1, 1, (2,))
    # Without to_tensor and from_tensor the spec itself encodes and decodes.
    td = to_tensordict(wheel, np.array([0.5, 1], np.float32))
    assert td["observation"].tolist() == [0.5, 1]
    np.testing.assert_array_equal(from_tensordict(wheel, td), np.array([0.5, 1], np.float32))

    pair = Pair(a=spaces.Box(-np.inf, np.inf, ()), b=spaces.Box(-np.inf, np.inf, ()))
    sample = {"a": 1.0, "b": 2.0}
    for space, value, key in [(pair, sample, "observation"), (spaces.Tuple([pair]), (sample,), ("observation", "0"))]:
        assert spec_to_space(observation_spec(space)) == space
        td = to_tensordict(space, value)
        assert list(td.keys(True, True)) == [key]
        assert from_tensordict(space, td) == value


def test_a_later_registration_replaces_an_earlier_one() -> None:
    class Twice(Angle):
        pass

    assert space_to_spec(Twice()).dtype == torch.float64, "that of its base"
    register_space(Twice, to_spec=lambda space: Unbounded((2,)), to_space=lambda spec: Twice())
    register_space(Twice, to_spec=lambda space: Unbounded((3,)), to_space=lambda spec: Twice())
    assert space_to_spec(Twice()).shape == (3,)


def test_envs_with_registered_spaces_run_on_both_faces() -> None:
    """The engine carries their samples as objects; natively they become what the translation says."""

    class Compass(gym.Env):
        observation_space = spaces.Dict(heading=Angle())
        action_space = spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return {"heading": Angle().sample()}, {}

        def step(self, action: Any) -> Any:
            return {"heading": Angle().sample()}, 1.0, False, False, {}

    env = SerialEnv(2, Compass)
    steps = env.rollout(3)
    check_env_specs(env)
    assert steps["next", "heading"].shape[:2] == (2, 3)
    td = env.rand_action(env.reset())
    td["_step"] = torch.tensor([True, False])
    assert torch.equal(env.step(td)["next", "heading"][1], td["heading"][1])
    observations, _ = SyncVectorEnv([Compass] * 2).reset(seed=0)
    assert [Angle().contains(one) for one in observations["heading"]] == [True, True]


def test_envs_with_spaces_that_nobody_knows_are_refused_natively_by_name() -> None:
    class Unknown(Space):
        def sample(self, mask: Any = None, probability: Any = None) -> Any:
            return 0

    class Env(gym.Env):
        observation_space = spaces.Dict(odd=Unknown())
        action_space = spaces.Discrete(2)

    with pytest.raises(UnsupportedSpaceError, match=r"^odd: no translation for .*register_space"):
        GymEnv(Env)


@pytest.mark.parametrize(
    ("space_type", "error"), [(int, TypeError), ("Box", TypeError), (spaces.Box, ValueError), (Space, ValueError)]
)
def test_what_cannot_be_registered(space_type: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="register_space"):
        register_space(space_type, to_spec=lambda space: Unbounded(1), to_space=lambda spec: spaces.Discrete(2))
    assert space_to_spec(spaces.Box(0, 1, (1,))) == Bounded(0, 1, (1,))


@pytest.mark.parametrize("given", [Composite(), 3])
def test_a_to_spec_that_gives_no_leaf_is_refused(given: Any) -> None:
    class Bad(Space):
        pass

    register_space(Bad, to_spec=lambda space: given, to_space=lambda spec: Bad())
    with pytest.raises(TypeError, match=r"^x: to_spec gave (.|\n)*, expected the spec of one leaf"):
        observation_spec(spaces.Dict(x=Bad()))


@pytest.mark.parametrize(
    "given", [torch.zeros(2), torch.zeros(()), torch.zeros(1, dtype=torch.float64), np.zeros(1, np.float32)]
)
def test_a_to_tensor_that_gives_another_tensor_than_its_spec_is_refused(given: Any) -> None:
    class Bad(Space):
        pass

    register_space(
        Bad, to_spec=lambda space: Unbounded((1,)), to_space=lambda spec: Bad(), to_tensor=lambda space, x: given
    )
    for sample, batch in [(None, ()), ([None], (1,))]:
        with pytest.raises(SpecError, match=r"^_user\.reward: to_tensor gave .*, expected"):
            to_tensordict(spaces.Dict(reward=Bad()), {"reward": sample}, batch_size=batch)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
        spaces.Sequence(spaces.Box(0, 1, (2,))),
        spaces.Sequence(spaces.Discrete(3), stack=True),
        spaces.OneOf([spaces.Discrete(3), spaces.Text(4)]),
    ],
    ids=str,
)
def test_data_comes_back_from_its_tensordict(space: Space) -> None:
    space.seed(0)
    nested = spaces.Dict(done=spaces.Tuple([space, spaces.Discrete(2)]))
    rows = [space.sample() for _ in range(3)]
    kept = copy.deepcopy(rows)
    one = to_tensordict(nested, {"done": (rows[0], 1)})
    batch = to_tensordict(nested, {"done": (rows, [0, 1, 0])}, batch_size=[3])
    observation_spec(nested).assert_is_in(one)
    observation_spec(nested, batch_size=3).assert_is_in(batch)
    back, discrete = from_tensordict(nested, one)["done"]
    assert type(back) is type(rows[0])
    assert repr(back) == repr(kept[0])
    assert type(discrete) is np.int64
    assert repr(from_tensordict(nested, batch)["done"][0]) == repr(tuple(kept))
    assert repr(from_tensordict(nested, batch[2])["done"][0]) == repr(kept[2])


def test_the_tensordict_is_new_memory_and_so_is_the_sample() -> None:
    space = spaces.Box(-1, 1, (2,))
    sample = np.zeros(2, np.float32)
    td = to_tensordict(space, sample)
    sample += 1
    assert td["observation"].tolist() == [0, 0]
    back = from_tensordict(space, td)
    td["observation"] += 1
    assert back.tolist() == [0, 0]


def test_groups_without_leaves_are_there() -> None:
    space = spaces.Dict(a=spaces.Dict(), valid=spaces.Tuple([]))
    td = to_tensordict(space, {"a": {}, "valid": ()}, batch_size=[2])
    assert set(td.keys(True)) == {"a", "_user", ("_user", "valid")}
    assert td["_user", "valid"].batch_size == torch.Size([2])
    assert from_tensordict(space, td) == {"a": {}, "valid": ()}


def test_device_of_the_tensordict() -> None:
    assert to_tensordict(spaces.Discrete(2), 1).device is None
    td = to_tensordict(spaces.Dict(a=spaces.Tuple([spaces.Discrete(2)])), {"a": (1,)}, device="cpu")
    assert td.device == td["a"].device == torch.device("cpu")


SPACE = spaces.Dict(a=spaces.Tuple([spaces.Box(0, 255, (2,), np.uint8)]), reward=spaces.Discrete(3))


@pytest.mark.parametrize(
    ("sample", "batch", "error", "message"),
    [
        ({"a": (np.zeros(3, np.uint8),), "reward": 0}, (), SpecError, r"a\.0: .*shape: got \[3\]"),
        ({"a": (np.zeros((4, 2), np.uint8),), "reward": 0}, (), SpecError, r"a\.0: shape: got \[4, 2\]"),
        ({"a": (np.zeros((4, 2)),), "reward": [0] * 3}, (4,), SpecError, r"_user\.reward: .*shape: got \[3\]"),
        ({"a": (np.array([0, 256]),), "reward": 0}, (), SpecError, r"a\.0: .*256"),
        ({"a": ("no",), "reward": 0}, (), SpecError, r"a\.0: "),
        ({"a": (), "reward": 0}, (), KeyError, r"a lacks the item 0"),
        ({"a": (np.zeros(2),)}, (), KeyError, r"lacks the item 'reward'"),
        ({"a": (np.zeros(2),), "reward": 0}, (-1,), ValueError, r"batch_size: got \[-1\]"),
    ],
)
def test_samples_that_do_not_fit_are_refused_by_name(
    sample: Any, batch: tuple[int, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        to_tensordict(SPACE, sample, batch_size=batch)


@pytest.mark.parametrize(
    ("entries", "error", "message"),
    [
        ({"a": {"0": torch.zeros(2, dtype=torch.uint8)}}, KeyError, r"_user\.reward: missing"),
        ({"a": {"0": torch.zeros(2)}}, SpecError, r"a\.0: dtype: got torch.float32, expected torch.uint8"),
        ({"a": {"0": torch.zeros(1, 2, dtype=torch.uint8)}}, SpecError, r"a\.0: shape: got \[1, 2\], expected \[2\]"),
    ],
)
def test_tensordicts_that_do_not_fit_are_refused_by_name(entries: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        from_tensordict(SPACE, TensorDict(entries))


def test_other_entries_of_a_tensordict_are_left_out() -> None:
    td = to_tensordict(SPACE, {"a": (np.ones(2, np.uint8),), "reward": 2})
    td["reward"] = torch.ones(1)
    td["next"] = td.clone()
    back = from_tensordict(SPACE, td)
    assert list(back) == ["a", "reward"]
    assert back["reward"] == 2
