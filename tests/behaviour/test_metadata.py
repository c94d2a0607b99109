"""``EnvMetaData``, what is known of an env without one, and ``EnvCreator``, the maker that keeps it."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from engines import Engine
from tensordict import LazyStackedTensorDict, TensorDict
from tensordict_engines import TensorDictEngine
from tensordict_zoo import TENSORDICT_ENVS
from zoo import OBJECT_SPACES, CountingEnv, DictEnv, ObjectEnv

from gymbridge import SerialEnv
from gymbridge.envs import EnvBase, EnvCreator, EnvMetaData, GymEnv
from gymbridge.errors import UnsupportedSpaceError
from gymbridge.specs import Binary, Bounded, Composite, Unbounded, stack_specs
from gymbridge.vector import SyncVectorEnv

SPACES = {
    **OBJECT_SPACES,
    "box": gym.spaces.Box(-1, 1, (2, 3), np.float64),
    "discrete": gym.spaces.Discrete(3, start=-1),
    "multi_binary": gym.spaces.MultiBinary(3),
    "tuple": gym.spaces.Tuple([gym.spaces.Box(0, 255, (), np.uint8), gym.spaces.MultiDiscrete([3, 200])]),
    "empty_dict": gym.spaces.Dict(),
}


class Mixed(EnvBase):
    """Leaves on two devices, and a shape that may change; it takes any batch size."""

    def __init__(self, batch_size: Any = (), size: int = -1, broken: bool = False):
        super().__init__(batch_size=batch_size)
        shape = torch.Size(batch_size)
        self.observation_spec = Composite(
            {
                "points": Unbounded((*shape, size, 2), device="cpu"),
                ("camera", "image"): Unbounded((*shape, 3), device="meta", dtype=torch.uint8),
            },
            shape=shape,
        )
        if not broken:
            self.action_spec = Bounded(-1, 1, (*shape, 1))
        self.closed = 0

    batch_locked = False  # type: ignore[assignment]

    def _reset(self, tensordict: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    _step = _set_seed = _reset  # type: ignore[assignment]

    def close(self, *, raise_if_closed: bool = True) -> None:
        super().close(raise_if_closed=raise_if_closed)
        self.closed += 1


class Recorder:
    """A maker that keeps what it made, and what it was given."""

    def __init__(self, make: Callable[..., Any]):
        self.make = make
        self.made: list[Any] = []
        self.kwargs: list[dict[str, Any]] = []

    def __call__(self, **kwargs: Any) -> Any:
        self.kwargs.append(kwargs)
        self.made.append(self.make(**kwargs))
        return self.made[-1]


def form(tensordict: Any) -> Any:
    """Keys, shapes, dtypes and devices of a TensorDict, written otherwise than in the module under test."""
    keys = tensordict.keys(True, True, is_leaf=lambda kind: not issubclass(kind, TensorDict))
    values = {key: tensordict.get(key) for key in keys}
    return (
        tensordict.batch_size,
        tensordict.device,
        {key: (value.shape, getattr(value, "dtype", None), value.device) for key, value in values.items()},
    )


def same_but_for_words(one: EnvMetaData, other: EnvMetaData) -> bool:
    return (one.specs, one.batch_locked, form(one.tensordict)) == (
        other.specs,
        other.batch_locked,
        form(other.tensordict),
    )


@pytest.fixture(params=[*SPACES.values(), "zoo"], ids=[*SPACES, "zoo"])
def make(request: pytest.FixtureRequest) -> Callable[[], gym.Env]:
    """A maker of a gymnasium env, one for each kind of space."""
    return DictEnv if request.param == "zoo" else lambda: ObjectEnv(request.param)


# -------------------------------------------------------------------- what the metadata say


def test_metadata_say_what_the_env_says(contract: Engine) -> None:
    with contract.make(DictEnv) as env:
        data = EnvMetaData.metadata_from_env(env)
        assert data.specs == env.specs
        assert data.batch_size == env.batch_size == contract.batch_size
        assert data.device is None
        assert data.env_str == repr(env)
        assert data.batch_locked is True
        assert data.has_dynamic_specs is False
        assert form(data.tensordict) == form(env.fake_tensordict())
        assert not env.is_closed
        env.rand_step(env.reset())  # what was only described still runs


@pytest.mark.every(3, "td_engine", "kind", first=1)
@pytest.mark.parametrize("kind", TENSORDICT_ENVS)
def test_metadata_of_tensordict_envs(td_engine: TensorDictEngine, kind: str) -> None:
    """They are the env's, and pickle; those of one env, expanded, are those of a batch of such envs."""
    env = td_engine.make(TENSORDICT_ENVS[kind])
    data = EnvMetaData.metadata_from_env(env)
    assert (data.batch_size, data.device) == (env.batch_size, env.device)
    assert (data.batch_locked, data.has_dynamic_specs) == (env.batch_locked, env.has_dynamic_specs)
    assert data.specs == env.specs
    assert pickle.loads(pickle.dumps(data)) == data == data.clone()
    expanded = EnvMetaData.metadata_from_env(TENSORDICT_ENVS[kind](0)).expand(
        td_engine.num_envs or 1, *TENSORDICT_ENVS[kind](0).batch_size
    )
    if td_engine.batched and (kind != "tasks" or td_engine.num_envs == 1):
        assert expanded.specs == data.specs
    env.close()


def test_an_id_a_maker_and_an_env_are_described_alike(make: Callable[[], gym.Env]) -> None:
    env = make()
    data = EnvMetaData.metadata_from_env(GymEnv(make))
    assert data == EnvMetaData.metadata_from_env(env)
    assert data == EnvMetaData.metadata_from_env(make)
    assert data == EnvMetaData.metadata_from_env(lambda: GymEnv(make))
    assert data == EnvCreator(make).meta_data
    assert data != EnvMetaData.metadata_from_env("CartPole-v1")
    assert EnvMetaData.metadata_from_env("CartPole-v1") == EnvMetaData.metadata_from_env(GymEnv("CartPole-v1"))


def test_options_of_a_gym_env_are_seen() -> None:
    data = EnvMetaData.metadata_from_env(lambda: GymEnv("FrozenLake-v1", info="auto", reward_dtype=torch.float64))
    assert data.tensordict["next", "info", "prob"].shape == ()
    assert data.tensordict["next", "reward"].dtype is torch.float64


def test_envs_that_were_made_for_it_are_closed_and_no_others() -> None:
    maker = Recorder(CountingEnv)
    EnvMetaData.metadata_from_env(maker)
    assert [env.closed for env in maker.made] == [1]
    own = Recorder(Mixed)
    EnvMetaData.metadata_from_env(own)
    assert [env.closed for env in own.made] == [1]
    env = CountingEnv()
    EnvMetaData.metadata_from_env(env)
    EnvMetaData.metadata_from_env(GymEnv(env))
    assert env.closed == 0


def test_an_env_that_cannot_be_described_is_closed_too() -> None:
    class Odd(gym.Space):  # type: ignore[type-arg]
        pass

    class OddEnv(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = Odd()

    maker = Recorder(OddEnv)
    with pytest.raises(UnsupportedSpaceError, match="Odd"):
        EnvMetaData.metadata_from_env(maker)
    assert all(env.closed for env in maker.made)
    own = Recorder(Mixed)
    with pytest.raises(AttributeError, match="action_spec"):
        EnvMetaData.metadata_from_env(lambda: own(broken=True))
    assert [env.closed for env in own.made] == [1]


def test_what_goes_wrong_in_close_does_not_hide_what_went_wrong_first() -> None:
    class BadClose(Mixed):
        def close(self, *, raise_if_closed: bool = True) -> None:
            raise OSError("close")

    with pytest.raises(AttributeError, match="action_spec"):
        EnvMetaData.metadata_from_env(lambda: BadClose(broken=True))
    with pytest.raises(OSError, match="close"):
        EnvMetaData.metadata_from_env(BadClose)


@pytest.mark.parametrize("batch_size", [(), (2,)])
def test_leaves_on_several_devices_and_dynamic_shapes(batch_size: tuple[int, ...]) -> None:
    data = EnvMetaData.metadata_from_env(Mixed(batch_size))
    cpu, meta = torch.device("cpu"), torch.device("meta")
    assert data.device is None
    seen = {"points": cpu, ("camera", "image"): meta}
    flags = dict.fromkeys(("done", "terminated", "truncated"), cpu)
    following = {**seen, **flags, "reward": cpu}
    assert data.device_map == {
        **seen,
        **flags,
        "action": cpu,
        **{("next", *((key,) if isinstance(key, str) else key)): device for key, device in following.items()},
    }
    assert data.has_dynamic_specs is True
    assert data.batch_locked is False
    assert data.tensordict["points"].shape == (*batch_size, 1, 2)
    assert data == pickle.loads(pickle.dumps(data))
    assert EnvMetaData.metadata_from_env(Mixed(batch_size, size=4)).has_dynamic_specs is False


def test_device_map_has_a_device_for_every_leaf(make: Callable[[], gym.Env]) -> None:
    data = EnvMetaData.metadata_from_env(lambda: GymEnv(make, device="cpu"))
    assert data.device == torch.device("cpu")
    assert data.device_map.keys() == form(data.tensordict)[2].keys()
    assert set(data.device_map.values()) == {torch.device("cpu")}
    deviceless = EnvMetaData.metadata_from_env(make)
    assert deviceless.device_map.keys() == data.device_map.keys()
    holds_data = [key for key, device in deviceless.device_map.items() if device is None]
    assert all(not isinstance(deviceless.tensordict.get(key), torch.Tensor) for key in holds_data)


def test_metadata_do_not_follow_the_env() -> None:
    env = Mixed()
    data = EnvMetaData.metadata_from_env(env)
    before = data.clone()
    env.full_action_spec["action"] = Binary(3)
    env.full_observation_spec["points"] = Binary(3)
    env.full_done_spec.pop("truncated")
    env.to("cpu")
    assert data == before


def test_metadata_do_not_change() -> None:
    data = EnvMetaData.metadata_from_env("CartPole-v1")
    for each in (data, data.clone(), data.expand(2), data.to("cpu"), pickle.loads(pickle.dumps(data))):
        with pytest.raises(FrozenInstanceError):
            each.env_str = "another"  # type: ignore[misc]
        with pytest.raises(RuntimeError, match="locked"):
            each.specs["output_spec"].set("x", Binary(1))
        with pytest.raises(RuntimeError, match="lock"):
            each.tensordict["next", "x"] = torch.zeros(each.batch_size)
        each.tensordict.clone()["x"] = torch.zeros(each.batch_size)
        each.specs.clone().set("x", Composite(shape=each.batch_size))


def test_what_is_given_stays_as_it_is() -> None:
    env = GymEnv("CartPole-v1")
    fake, specs = env.fake_tensordict(), env.specs.clone()
    data = EnvMetaData(tensordict=fake, specs=specs, env_str="", batch_locked=True)
    assert not fake.is_locked
    assert not specs.is_locked
    fake["observation"] += 1
    fake["x"] = torch.zeros(())
    specs["x"] = Binary(1)
    assert "x" not in data.tensordict.keys()
    assert "x" not in data.specs
    assert (data.tensordict["observation"] == 0).all()


def test_repr_shows_what_matters() -> None:
    text = repr(EnvMetaData.metadata_from_env(Mixed((2,))))
    assert text.startswith(
        "EnvMetaData(\n    batch_size=[2],\n    device=None,\n    batch_locked=False,\n    has_dynamic_specs=True,\n"
    )
    assert "full_reward_spec" in text


# -------------------------------------------------------------------- equality


def test_equality_sees_every_part() -> None:
    data = EnvMetaData.metadata_from_env(Mixed((2,)))
    parts = {"tensordict": data.tensordict, "specs": data.specs, "env_str": data.env_str, "batch_locked": False}
    assert EnvMetaData(**parts) == data
    fake = data.tensordict
    other_specs = data.specs.clone()
    other_specs["output_spec", "full_reward_spec", "reward"] = Bounded(0, 1, (2, 1))
    changes: list[dict[str, Any]] = [
        {"env_str": ""},
        {"batch_locked": True},
        {"specs": other_specs},
        {"tensordict": fake.clone().set("x", torch.zeros(2))},
        {"tensordict": fake.exclude("action")},
        {"tensordict": fake.clone().set("action", torch.zeros(2, 1, dtype=torch.float64))},
        {"tensordict": fake.clone().set("action", torch.zeros(2, 2))},
        {"tensordict": fake.clone().set("action", torch.zeros(2, 1, device="meta"))},
        {"tensordict": fake.clone().set_non_tensor("action", "go")},
        {"tensordict": LazyStackedTensorDict.lazy_stack([*fake.unbind(0)])},
    ]
    for change in changes:
        assert EnvMetaData(**{**parts, **change}) != data, change
    zeros_or_not = fake.clone().set("action", torch.ones(2, 1))
    assert EnvMetaData(**{**parts, "tensordict": zeros_or_not}) == data
    assert data != "metadata"


def test_pickled_metadata_are_equal(make: Callable[[], gym.Env]) -> None:
    data = EnvMetaData.metadata_from_env(make)
    back = pickle.loads(pickle.dumps(data))
    assert back == data
    assert form(back.tensordict) == form(data.tensordict)
    assert back.device_map == data.device_map


# -------------------------------------------------------------------- expand, clone, to


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_expanded_metadata_are_those_of_a_batch(make: Callable[[], gym.Env], shape: tuple[int, ...]) -> None:
    data = EnvMetaData.metadata_from_env(make)
    expanded = data.expand(*shape)
    assert expanded == data.expand(shape)
    assert expanded.batch_size == expanded.tensordict.batch_size == shape
    assert expanded.env_str == data.env_str
    assert data.batch_size == ()
    if shape == (3,):
        with SerialEnv(3, make) as env:
            assert same_but_for_words(expanded, EnvMetaData.metadata_from_env(env))


def test_expand_of_a_batch_gives_the_whole_new_batch_size() -> None:
    data = EnvMetaData.metadata_from_env(Mixed((2,)))
    expected = EnvMetaData.metadata_from_env(Mixed((4, 2)))
    assert same_but_for_words(data.expand(4, 2), expected)
    assert data.expand(4, -1) == data.expand(4, 2)
    assert same_but_for_words(EnvMetaData.metadata_from_env(Mixed((4, 1))).expand(4, 2), expected)
    assert data.expand(4, 2).tensordict["action"].is_contiguous()  # each env has its own row


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (-1, 2), (2, -2), ("2",)])
def test_expand_refuses_what_does_not_end_in_the_batch_size(shape: tuple[Any, ...]) -> None:
    data = EnvMetaData.metadata_from_env(Mixed((2,)))
    with pytest.raises(ValueError, match=r"expand|a shape is made of ints"):
        data.expand(*shape)


def test_a_clone_has_tensors_of_its_own() -> None:
    data = EnvMetaData.metadata_from_env("CartPole-v1")
    twin = data.clone()
    assert twin == data
    twin.tensordict["observation"].fill_(1)
    assert (data.tensordict["observation"] == 0).all()
    assert twin.specs is not data.specs


def test_to_gives_the_metadata_of_the_env_on_that_device(make: Callable[[], gym.Env]) -> None:
    data = EnvMetaData.metadata_from_env(make)
    moved = data.to("cpu")
    assert same_but_for_words(moved, EnvMetaData.metadata_from_env(lambda: GymEnv(make, device="cpu")))
    assert moved.device == torch.device("cpu")
    assert set(moved.device_map.values()) == {torch.device("cpu")}
    assert data.device is None


def test_to_refuses_a_device_without_values() -> None:
    with pytest.raises(ValueError, match="device: got meta"):
        EnvMetaData.metadata_from_env("CartPole-v1").to("meta")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda() -> None:
    on_cuda = EnvMetaData.metadata_from_env(lambda: GymEnv(DictEnv, device="cuda"))
    device = torch.device("cuda", torch.cuda.current_device())
    assert on_cuda.device == device
    assert set(on_cuda.device_map.values()) == {device}
    assert pickle.loads(pickle.dumps(on_cuda)) == on_cuda
    assert same_but_for_words(EnvMetaData.metadata_from_env(DictEnv).to("cuda"), on_cuda)
    assert same_but_for_words(on_cuda.to("cpu"), EnvMetaData.metadata_from_env(lambda: GymEnv(DictEnv, device="cpu")))


def test_a_stack_of_envs_that_differ() -> None:
    each = [EnvMetaData.metadata_from_env(make) for make in (CountingEnv, DictEnv)]
    data = EnvMetaData(
        tensordict=LazyStackedTensorDict.lazy_stack([one.tensordict for one in each]),
        specs=stack_specs([one.specs for one in each]),
        env_str="",
        batch_locked=True,
    )
    assert data.batch_size == (2,)
    assert data.device_map.keys() == each[0].device_map.keys() | each[1].device_map.keys()
    assert pickle.loads(pickle.dumps(data)) == data == data.clone()
    assert data != each[0].expand(2)
    assert data.expand(3, 2).tensordict[0, 1]["arm", "angle"].shape == (2, 2)


# -------------------------------------------------------------------- EnvCreator


def test_a_creator_gives_what_the_maker_gives() -> None:
    assert isinstance(EnvCreator("CartPole-v1")(), gym.Env)
    assert isinstance(EnvCreator(CountingEnv)(), CountingEnv)
    assert isinstance(EnvCreator(lambda: GymEnv(CountingEnv))(), GymEnv)
    assert isinstance(EnvCreator(Mixed)(), Mixed)


def test_metadata_are_worked_out_once_when_they_are_asked_for() -> None:
    maker = Recorder(CountingEnv)
    creator = EnvCreator(maker)
    assert (maker.made, creator.initialized) == ([], False)
    data = creator.meta_data
    assert creator.initialized
    assert data is creator.meta_data
    assert data is creator.init_().meta_data
    assert data is EnvMetaData.metadata_from_env(creator)
    assert [env.closed for env in maker.made] == [1]
    assert creator().closed == 0
    assert len(maker.made) == 2


def test_init_works_them_out_now() -> None:
    maker = Recorder(CountingEnv)
    creator = EnvCreator(maker)
    assert creator.init_() is creator
    assert creator.initialized
    assert len(maker.made) == 1


def test_a_maker_that_failed_is_tried_again() -> None:
    maker = Recorder(CountingEnv)
    failures = [OSError("no server")]

    def flaky() -> gym.Env:
        if failures:
            raise failures.pop()
        return maker()

    creator = EnvCreator(flaky)
    with pytest.raises(OSError, match="no server"):
        _ = creator.meta_data
    assert not creator.initialized
    assert creator.meta_data == EnvMetaData.metadata_from_env(CountingEnv)


def test_keyword_arguments_are_merged_and_the_creators_own_win() -> None:
    maker = Recorder(lambda **kwargs: CountingEnv())
    given = {"a": 1}
    creator = EnvCreator(maker, given, b=2)
    creator(a=10, c=3)
    _ = creator.meta_data
    assert maker.kwargs == [{"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2}]
    assert given == {"a": 1}
    assert creator.create_env_fn is maker
    assert creator.create_env_kwargs == {"a": 1, "b": 2}
    creator.create_env_kwargs["a"] = 5
    assert creator.create_env_kwargs == {"a": 1, "b": 2}


def test_arguments_of_an_id_are_for_gymnasium() -> None:
    env = EnvCreator("CartPole-v1", max_episode_steps=7)()
    assert env.spec.max_episode_steps == 7


def test_a_creator_makes_the_envs_of_a_batch() -> None:
    maker = Recorder(CountingEnv)
    creator = EnvCreator(maker)
    expected = creator.meta_data.expand(3)
    with SerialEnv(3, creator) as env:
        assert same_but_for_words(EnvMetaData.metadata_from_env(env), expected)
        assert env.rollout(3, break_when_any_done=False).batch_size == (3, 3)
    envs = SyncVectorEnv([creator] * 2)
    assert envs.reset(seed=0)[0].shape == (2, 4)
    envs.close()
    assert len(maker.made) == 1 + 3 + 2


def test_a_creator_of_a_creator() -> None:
    inner = EnvCreator("CartPole-v1", max_episode_steps=7)
    outer = EnvCreator(inner)
    assert outer().spec.max_episode_steps == 7
    assert outer.meta_data == inner.meta_data


def test_repr_of_a_creator() -> None:
    creator = EnvCreator("CartPole-v1", {"max_episode_steps": 3}, render_mode="rgb_array")
    assert repr(creator) == "EnvCreator('CartPole-v1', max_episode_steps=3, render_mode='rgb_array')"


@pytest.mark.parametrize("make_source", [lambda: None, lambda: 3, lambda: GymEnv(CountingEnv), CountingEnv])
def test_what_makes_no_env_is_refused(make_source: Callable[[], Any]) -> None:
    source = make_source()
    kind = type(source).__name__
    with pytest.raises(
        TypeError, match=rf"(?s)create_env_fn: got .* of type {kind}, expected a registered id"
    ) as error:
        EnvCreator(source)
    assert len(str(error.value)) < 200  # and not all the specs of an env


def test_arguments_that_are_no_dict_or_given_twice_are_refused() -> None:
    with pytest.raises(TypeError, match=r"create_env_kwargs: got \[1\] of type list, expected a dict"):
        EnvCreator("CartPole-v1", [1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"create_env_kwargs: got \['a'\], which are given"):
        EnvCreator("CartPole-v1", {"a": 1, "b": 1}, a=2)


def test_a_maker_that_gives_no_env_is_named() -> None:
    creator = EnvCreator(lambda: "env")  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match=r"gave 'env' of type str, expected a gymnasium\.Env"):
        _ = creator.meta_data
    with pytest.raises(TypeError, match="env: got 3 of type int, expected an EnvBase"):
        EnvMetaData.metadata_from_env(3)  # type: ignore[arg-type]


# -------------------------------------------------------------------- pickled creators


def test_a_pickled_creator_makes_no_env_for_what_it_knows() -> None:
    makes = []  # what is pickled has a list of its own
    creator = EnvCreator(lambda: makes.append(1) or CountingEnv())
    before = pickle.loads(pickle.dumps(creator))
    assert not before.initialized
    data = creator.meta_data
    back = pickle.loads(pickle.dumps(creator))
    again = pickle.loads(pickle.dumps(back))  # before it was asked, and without looking into it
    for each in (back, again, copy.copy(creator), copy.deepcopy(creator)):
        assert each.initialized
        assert each.meta_data == data
        assert each.meta_data is each.meta_data
        assert each().closed == 0
    assert before.meta_data == data
    assert len(makes) == 2  # for the metadata, and by the shallow copy


def test_only_asking_for_the_metadata_unpickles_them() -> None:
    """They may have tensors on a GPU, which a process that only makes envs is not to touch."""
    creator = EnvCreator(CountingEnv).init_()
    state = creator.__getstate__()
    back = pickle.loads(pickle.dumps(creator))
    back.__dict__.update({**state, "_meta_data": b"no pickle"})
    assert isinstance(back(), CountingEnv)
    with pytest.raises(pickle.UnpicklingError):
        _ = back.meta_data


WRITER = """
import pickle
import sys

import gymnasium as gym
import numpy as np
from gymbridge.envs import EnvCreator


class Grid(gym.spaces.Text):
    pass


class Own(gym.Env):
    def __init__(self, size):
        self.observation_space = gym.spaces.Dict(box=gym.spaces.Box(-1, 1, (size,), np.float32), word=Grid(3))
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"box": np.zeros(self.observation_space["box"].shape, np.float32), "word": "abc"}, {}


size = 5
creator = EnvCreator(lambda: Own(size))
with open(sys.argv[1], "wb") as file:
    pickle.dump(creator.init_(), file)
with open(sys.argv[2], "wb") as file:
    pickle.dump(EnvCreator(lambda: Own(size)), file)
"""

READER = """
import pickle
import sys

for path in sys.argv[1:]:
    with open(path, "rb") as file:
        creator = pickle.load(file)
    print(creator.initialized, creator.meta_data.tensordict["box"].shape, creator().reset()[0]["box"].shape)
"""


def test_a_creator_goes_to_another_process(tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    """With what only the script that made it has: a lambda, a closure, an env class and a space class."""
    known, unknown = tmp_path / "known.pkl", tmp_path / "unknown.pkl"
    for script in (WRITER, READER):
        command = [sys.executable, "-c", script, known, unknown]
        done = subprocess.run(command, env=subprocess_env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True torch.Size([5]) (5,)", "False torch.Size([5]) (5,)"]
