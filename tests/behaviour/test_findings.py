"""What users of an early version stumbled over, so that nobody does again."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from by_hand import assert_equal
from engines import Engine
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase
from zoo import CountingEnv

from gymbridge import SerialEnv
from gymbridge.envs import EnvBase, GymEnv, check_env_specs
from gymbridge.errors import EnvOutputError, EnvSpecError
from gymbridge.specs import Bounded, Composite, NonTensor, Unbounded


class Own(EnvBase):
    """An env that counts its steps; what it returns can be replaced."""

    def __init__(self, outcome: Callable[[int], dict[str, Any]] | None = None, **options: Any):
        super().__init__(**options)
        batch = self.batch_size
        self.observation_spec = Composite(x=Unbounded((*batch, 1)), shape=batch)
        self.action_spec = Unbounded((*batch, 1))
        self.reward_spec = Unbounded((*batch, 1))
        self.outcome = outcome or (lambda count: {"done": torch.zeros((*batch, 1), dtype=torch.bool)})
        self.count = 0

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        self.count = 0
        return TensorDict({"x": torch.zeros((*self.batch_size, 1))}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.count += 1
        base = {"x": torch.full((*self.batch_size, 1), float(self.count)), "reward": torch.ones((*self.batch_size, 1))}
        return TensorDict({**base, **self.outcome(self.count)}, self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        pass


# ---------------------------------------------------------------- rollouts


def zeroing(td: TensorDictBase) -> TensorDictBase:
    """A policy that changes what it reads in place."""
    td["observation"].mul_(0)
    return td.set("action", torch.zeros(td.batch_size, dtype=torch.int64))


@pytest.mark.parametrize("how", [{"break_when_any_done": False}, {"break_when_all_done": True}, {}])
def test_a_policy_that_changes_the_root_leaves_next_as_it_was(engine: Engine, how: dict[str, bool]) -> None:
    env = engine.make(lambda: CountingEnv([50]))
    steps = env.rollout(4, zeroing, **how)
    assert steps["next", "observation"][..., 1].reshape(-1, 4).tolist() == [[1, 2, 3, 4]] * engine.num_envs


def test_step_mdp_gives_tensors_of_its_own(contract: Engine) -> None:
    env = contract.make(CountingEnv)
    td = env.rand_step(env.reset())
    before = td.clone()
    root = env.step_mdp(td)
    for value in root.values(True, True):
        value.zero_()
    assert_equal(td, before)


def test_a_short_rollout_fills_the_first_part_of_out(engine: Engine) -> None:
    env = engine.make(lambda: CountingEnv([2, 9]))
    out = torch.zeros_like(env.rollout(5, break_when_any_done=False))
    got = engine.make(lambda: CountingEnv([2, 9])).rollout(5, out=out)
    assert got.batch_size[-1] == 2
    assert out["next", "observation"][..., 1].reshape(-1, 5).tolist() == [[1, 2, 0, 0, 0]] * engine.num_envs


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (lambda size: TensorDict({}, [*size, 10]), ValueError, "out: the keys .*observation.* are missing"),
        (lambda size: TensorDict({}, [*size, 2]), ValueError, r"out: got batch size .*, expected .*10\]"),
        (lambda size: {}, TypeError, "out: got dict, expected a TensorDict"),
    ],
)
def test_an_out_without_room_is_refused_before_a_step(engine: Engine, out: Any, error: type, message: str) -> None:
    env = engine.make(CountingEnv)
    with pytest.raises(error, match=message):
        env.rollout(10, out=out(engine.batch_size))
    with pytest.raises(Exception, match=r"reset|next"):
        env.step_mdp(TensorDict({}, engine.batch_size))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_steps": "3"}, "max_steps: got '3' of type str"),
        ({"max_steps": 2.5}, "max_steps: got 2.5 of type float"),
        ({"max_steps": 3, "policy": "abc"}, "policy: got 'abc', expected a callable"),
        ({"max_steps": 3, "callback": 5}, "callback: got 5, expected a callable"),
        ({"max_steps": 3, "policy": lambda td: td["observation"]}, "policy: got Tensor, expected the TensorDict"),
    ],
    ids=["text", "float", "policy", "callback", "tensor"],
)
def test_arguments_of_a_rollout_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        GymEnv(CountingEnv).rollout(**arguments)


def test_an_env_that_cannot_wait_refuses_to_before_a_step() -> None:
    env = Own(batch_size=(2,))
    with pytest.raises(ValueError, match="break_when_all_done: Own has partial_step=False"):
        env.rollout(3, break_when_all_done=True)
    assert env.count == 0


# ---------------------------------------------------------------- spaces and infos


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Dict()),
        spaces.Tuple([]),
        spaces.Tuple([spaces.Dict(), spaces.Tuple([]), spaces.Discrete(2)]),
        spaces.Dict(),
    ],
    ids=str,
)
def test_empty_groups_of_observations(engine: Engine, space: gym.Space) -> None:
    class Groups(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = space

        def _observation(self, action: float) -> Any:
            return space.sample()

    env = engine.make(Groups)
    check_env_specs(env)
    steps = env.rollout(4, break_when_any_done=False)
    assert steps.clone().batch_size == (*engine.batch_size, 4)
    td = env.rand_step(env.reset())
    root = env.step_mdp(td)
    assert set(env.fake_tensordict().keys()) == set(td.keys())
    assert set(root.keys()) == set(env.reset().keys())


@pytest.mark.parametrize("info", ["auto", Composite()])
def test_a_rollout_of_an_env_without_infos_may_ask_for_them(info: Any) -> None:
    steps = GymEnv("CartPole-v1", info=info).rollout(5)
    assert steps.to("cpu").batch_size[0] <= 5


def test_infos_may_have_bounds() -> None:
    env = GymEnv(CountingEnv, info=Composite(t=Bounded(0, 100, (), dtype=torch.int64)))
    assert env.rollout(3)["next", "info", "t"].tolist() == [1, 2, 3]


# ---------------------------------------------------------------- seeds


@pytest.mark.parametrize(
    ("seed", "error"), [(-1, ValueError), (1.5, TypeError), ("a", TypeError), (True, TypeError), ([1], TypeError)]
)
def test_a_seed_that_is_none_is_refused_at_once(contract: Engine, seed: Any, error: type) -> None:
    env = contract.make(CountingEnv)
    with pytest.raises(error, match="seed: got"):
        env.set_seed(seed)
    env.reset()


def test_seeds_of_numpy_and_large_ones(engine: Engine) -> None:
    env = engine.make(CountingEnv)
    assert env.set_seed(np.int64(3)) == 3 + engine.num_envs
    first = env.reset()
    env.set_seed(3)
    assert torch.equal(env.reset()["observation"][..., 3], first["observation"][..., 3])
    env.set_seed(2**64)
    env.reset()


# ---------------------------------------------------------------- envs that users write


def test_done_is_what_the_other_flags_say() -> None:
    """An env that forgets to set ``done`` beside ``terminated`` does not run past its end."""
    flags = {"done": torch.tensor([False])}
    env = Own(lambda count: {**flags, "terminated": torch.tensor([count >= 2])})
    assert env.rollout(6)["next", "done"].flatten().tolist() == [False, True]
    with pytest.raises(EnvSpecError, match=r"expected done to be terminated \| truncated"):
        check_env_specs(env)


def test_a_done_spec_of_one_flag_is_completed() -> None:
    env = Own()
    env.done_spec = Composite(done=env.full_done_spec["done"])
    assert sorted(env.full_done_spec.keys()) == ["done", "terminated", "truncated"]
    check_env_specs(env)
    with pytest.raises(ValueError, match=r"done_spec: got the keys \['over'\]"):
        env.done_spec = Composite(over=Unbounded((1,)))


def test_an_output_of_another_batch_size_is_named() -> None:
    class Wrong(Own):
        def _step(self, tensordict: TensorDictBase) -> TensorDict:
            return TensorDict({}, [3])

    env = Wrong()
    with pytest.raises(EnvOutputError, match=r"Wrong._step: got batch size \[3\], expected .* \[\]"):
        env.step(env.rand_action(env.reset()))
    with pytest.raises(EnvSpecError, match=r"_step: got batch size \[3\], expected \[\]"):
        check_env_specs(env)


def test_an_output_that_is_handed_out_again_is_a_fault() -> None:
    kept = torch.zeros(1)
    with pytest.raises(EnvSpecError, match="x: got the memory that an earlier output has"):
        check_env_specs(Own(lambda count: {"x": kept.add_(1)}))


def test_what_is_no_env_is_refused_by_the_check() -> None:
    with pytest.raises(TypeError, match="expected an EnvBase; GymEnv makes one"):
        check_env_specs(gym.make("CartPole-v1"))  # type: ignore[arg-type]


# ---------------------------------------------------------------- copies, and calls with the wrong thing


@pytest.mark.parametrize("again", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["copy", "pickle"])
@pytest.mark.parametrize("started", [False, True])
def test_a_copy_has_the_configuration_and_its_own_envs(again: Any, started: bool) -> None:
    env = SerialEnv(2, lambda: CountingEnv([3]))
    if started:
        env.reset()
    other = again(env)
    other.set_seed(1)
    env.set_seed(1)
    assert_equal(other.reset(), _seeded(1))
    assert env.reset()["observation"].shape == (2, 4)


def _seeded(seed: int) -> TensorDictBase:
    env = SerialEnv(2, lambda: CountingEnv([3]))
    env.set_seed(seed)
    return env.reset()


@pytest.mark.parametrize("given", [{}, "td", 3], ids=str)
def test_what_is_no_tensordict_is_named(contract: Engine, given: Any) -> None:
    env = contract.make(CountingEnv)
    env.reset()
    for call in (env.step, env.step_and_maybe_reset, env.reset, env.rand_action):
        with pytest.raises(TypeError, match="expected a TensorDict"):
            call(given)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_envs": "2"}, TypeError, "num_envs: got '2'"),
        ({"num_envs": 0}, ValueError, "num_envs: got 0"),
        ({"num_envs": 2, "create_env_kwargs": 5}, TypeError, "create_env_kwargs: got 5 of type int"),
        ({"num_envs": 2, "create_env_kwargs": []}, ValueError, "create_env_kwargs: got a list of 0, expected 2"),
    ],
    ids=str,
)
def test_arguments_of_a_batch_are_named(arguments: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        SerialEnv(**arguments, create_env_fn=CountingEnv)


def test_num_envs_may_be_numpys() -> None:
    assert SerialEnv(np.int64(2), CountingEnv).reset().batch_size == (2,)


class InfoEnv(CountingEnv):
    """Gives the infos of a list, in turn; the first at the reset."""

    infos: tuple[Any, ...] = ({},)

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0], self.infos[0]

    def step(self, action: Any) -> Any:
        outcome = super().step(action)
        return (*outcome[:4], self.infos[min(self.t, len(self.infos) - 1)])


@pytest.mark.parametrize(
    ("infos", "kept", "left_out"),
    [
        (({"x": 0}, {"x": 0.5}), {"x": torch.float64}, None),
        (({"x": None}, {"x": 1.0}), {"x": torch.float64}, None),
        (({"x": np.zeros(0)}, {"x": np.zeros(1)}), {"x": None}, None),
        (({"a": 1}, {"a": {"b": 2}}), {("a", "b"): torch.int64}, "a"),
        (({3: 1, "x": True}, {"x": False}), {"x": torch.bool}, "3"),
        (({"x": "text", "y": np.zeros(2, ">f4")}, {}), {"x": None, "y": None}, None),
        (({"x": [[1], [2, 3]], "y": np.float32(1)}, {}), {"x": None, "y": torch.float32}, None),
    ],
    ids=["widens", "none", "shape", "dict", "key", "dtype", "ragged"],
)
def test_info_auto_keeps_what_it_can(infos: tuple[Any, ...], kept: dict[Any, Any], left_out: str | None) -> None:
    class Env(InfoEnv):
        pass

    Env.infos = infos
    if left_out is None:
        env = GymEnv(Env, info="auto")
    else:
        with pytest.warns(UserWarning, match=rf"are left out: \['{left_out}'\]"):
            env = GymEnv(Env, info="auto")
    spec = env.full_observation_spec["info"]
    leaves = {key: leaf.dtype for key, leaf in spec.items(True, True) if "_mask" not in key}
    assert leaves == kept
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is known to be left out is not told again
        env.rollout(3)
    check_env_specs(env)


def test_infos_that_are_no_numbers(engine: Engine) -> None:
    class Env(InfoEnv):
        infos = ({"word": "begun"}, {}, {"word": "two", "list": [1, 2]})

    env = engine.make(lambda: Env([9]), info=Composite(word=NonTensor(()), list=NonTensor(())))
    td = env.reset()
    first, root = env.step_and_maybe_reset(env.rand_action(td))
    second = env.step(env.rand_action(root))
    words = [np.ravel(one["info"].get("word").tolist()) for one in (td, first["next"], second["next"])]
    assert [set(one) for one in words] == [{"begun"}, {None}, {"two"}]
    masks = [one["info", "_mask", "word"] for one in (td, first["next"], second["next"])]
    assert [mask.all().item() for mask in masks] == [True, False, True]
    lists = second["next", "info"].get("list").tolist()
    assert lists == ([[1, 2]] * engine.num_envs if engine.batch_size else [1, 2])


def test_an_info_that_its_spec_would_change_is_an_error() -> None:
    class Env(InfoEnv):
        infos = ({}, {"x": 300})

    env = GymEnv(Env, info=Composite(x=Unbounded((), dtype=torch.int8)))
    with pytest.raises(EnvOutputError, match=r"info\.x: got 300 of dtype int64, expected int8: the cast changes it"):
        env.rand_step(env.reset())


# ---------------------------------------------------------------- policies


class OnTensors(torch.nn.Module):
    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        assert isinstance(observation, torch.Tensor)
        return torch.zeros(observation.shape[:-1], dtype=torch.int64)


class OnTensorDicts(torch.nn.Module):
    def forward(self, td: Any) -> Any:
        return td.set("action", torch.ones(td.batch_size, dtype=torch.int64))


class Annotated(torch.nn.Module):
    def forward(self, data: TensorDictBase) -> TensorDictBase:
        return data.set("action", torch.ones(data.batch_size, dtype=torch.int64))


@pytest.mark.parametrize(("policy", "action"), [(OnTensors(), 0), (OnTensorDicts(), 1), (Annotated(), 1)])
@pytest.mark.parametrize("info", [None, "auto"])
def test_modules_read_what_they_look_like(policy: torch.nn.Module, action: int, info: Any) -> None:
    """Infos are nothing for a module that reads the observation's tensors."""
    env = SerialEnv(2, lambda: GymEnv(CountingEnv, info=info))
    assert env.rollout(3, policy)["action"].eq(action).all()


@pytest.mark.parametrize("set_it", ["class", "instance"])
def test_a_batched_env_says_that_it_honours_masks(set_it: str) -> None:
    class Partial(Own):
        if set_it == "class":
            partial_step = partial_reset = True  # type: ignore[assignment]

    env = Partial(batch_size=(2,))
    if set_it == "instance":
        env.partial_step = env.partial_reset = True
    td = env.rand_action(env.reset())
    td["_step"] = torch.tensor([True, False])
    assert env.step(td)["next", "reward"].flatten().tolist() == [1, 0]


def test_one_env_for_a_batch_is_refused() -> None:
    with pytest.raises(TypeError, match="create_env_fn: got one env for 3, expected an id, a callable"):
        SerialEnv(3, CountingEnv())  # type: ignore[arg-type]
    assert SerialEnv(1, CountingEnv()).reset().batch_size == (1,)  # type: ignore[arg-type]


def test_an_env_that_is_not_picked_keeps_its_state() -> None:
    """A state that stands in no observation is not lost for the envs that a mask leaves out."""

    class Stateful(EnvBase):
        partial_step = partial_reset = True  # type: ignore[assignment]

        def __init__(self) -> None:
            super().__init__(batch_size=(2,))
            self.observation_spec = Composite(x=Unbounded((2, 1)), shape=(2,))
            self.state_spec = Composite(energy=Unbounded((2, 1)), shape=(2,))
            self.action_spec = Unbounded((2, 1))
            self.reward_spec = Unbounded((2, 1))

        def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
            return TensorDict({"x": torch.zeros(2, 1), "energy": torch.full((2, 1), 10.0)}, [2])

        def _step(self, tensordict: TensorDictBase) -> TensorDict:
            energy = tensordict["energy"] - 1
            return TensorDict({"x": energy.clone(), "energy": energy, "reward": torch.ones(2, 1)}, [2])

        def _set_seed(self, seed: int | None) -> None:
            pass

    env = Stateful()
    td = env.rand_action(env.reset())
    td["_step"] = torch.tensor([True, False])
    td = env.step(td)
    assert td["next", "energy"].flatten().tolist() == [9, 10]
    root = env.step_mdp(td)
    root["_reset"] = torch.tensor([False, True])
    assert env.reset(root)["energy"].flatten().tolist() == [9, 10]
