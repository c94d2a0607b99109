"""Specs describe all that an env returns, and ``check_env_specs`` finds what they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from by_hand import assert_equal
from engines import Engine
from fuzzing import given_over_engines
from generated_envs import PlannedEnv, plans
from gymnasium import spaces
from space_strategies import any_spaces
from tensordict import TensorDict, TensorDictBase
from tensordict_engines import TensorDictEngine
from tensordict_zoo import TENSORDICT_ENVS, EpisodicEnv, RecurrentEnv, StatefulEnv
from zoo import CountingEnv, DictEnv

from gymbridge import SerialEnv
from gymbridge.envs import EnvBase, GymEnv, check_env_specs
from gymbridge.errors import EnvSpecError, UnsupportedSpaceError
from gymbridge.spaces import space_to_spec
from gymbridge.specs import Binary, Bounded, Composite, Unbounded

INFOS = Composite(t=Unbounded((), dtype=torch.int64), nested=Composite(half=Unbounded((), dtype=torch.float64)))
ZOO = {"CountingEnv": CountingEnv, "DictEnv": DictEnv}


def translatable(space: spaces.Space) -> bool:
    try:
        space_to_spec(space)
    except UnsupportedSpaceError:
        return False
    return True


@pytest.mark.every(3, "engine", "maker", "options")
@pytest.mark.parametrize("maker", [*ZOO.values(), lambda: gym.make("CartPole-v1")], ids=[*ZOO, "CartPole-v1"])
@pytest.mark.parametrize(
    "options",
    [{}, {"categorical_action_encoding": False}, {"info": INFOS}, {"reward_dtype": torch.bfloat16}, {"device": "cpu"}],
    ids=["plain", "one-hot", "infos", "bfloat16", "cpu"],
)
def test_envs_that_are_right_pass(engine: Engine, maker: Any, options: dict[str, Any]) -> None:
    check_env_specs(engine.make(maker, **options))


@given_over_engines(plan=plans(any_spaces().filter(translatable), any_spaces(min_items=1).filter(translatable)))
def test_generated_envs_pass(engine: Engine, plan: Any) -> None:
    check_env_specs(engine.make(lambda: PlannedEnv(plan)), num_steps=4)


def test_the_check_leaves_torchs_generator_as_it_was(engine: Engine) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    check_env_specs(engine.make(CountingEnv))
    assert torch.equal(torch.get_rng_state(), before)


class Faulty(gym.Env[Any, Any]):
    """Wrong in a reset in three places, in a step in seven."""

    def __init__(self) -> None:
        box = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Dict(
            shape=box, dtype=box, domain=box, missing=box, kind=box, inner=spaces.Dict(count=spaces.Discrete(3))
        )
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        right = self._observation()
        return {**right, "shape": np.zeros(3, np.float32), "inner": 7}, None

    def step(self, action: Any) -> Any:
        return {**self._observation(), "more": 1}, "much", np.zeros(2, bool), None, {}

    def _observation(self) -> dict[str, Any]:
        box = np.zeros(2, np.float32)
        return {"shape": box, "dtype": np.zeros(2), "domain": box + 2, "kind": [0, 0], "inner": {"count": 3}}


def test_every_fault_of_a_gymnasium_env_is_told_at_once(engine: Engine) -> None:
    with pytest.raises(EnvSpecError) as caught:
        check_env_specs(engine.make(Faulty))
    told = "\n".join(caught.value.faults)
    for expected in (
        *("reset: shape: got shape (3,), expected (2,)", "reset: observation.inner: got 7 of type int"),
        *("reset: info: got None", "step: dtype: got dtype float64, expected float32", "step: domain: out of domain"),
        *(
            "step: kind: got [0, 0] of type list",
            "step: observation: got no item 'missing'",
            "got the items ['more']",
        ),
        *(
            "step: inner.count: out of domain",
            "step: reward: got 'much'",
            "step: terminated: got",
            "truncated: got None",
        ),
    ):
        assert expected in told, expected
    assert all(fault in str(caught.value) for fault in caught.value.faults)


def test_faults_of_some_envs_name_them(batch: Engine) -> None:
    """Each env has a fault of its own."""

    class Short(CountingEnv):
        def __init__(self, index: int):
            super().__init__()
            self.index = index

        def _observation(self, action: float) -> np.ndarray:
            return np.zeros(5 + self.index, np.float32)

    with pytest.raises(EnvSpecError) as caught:
        check_env_specs(batch.make(Short, indexed=True))
    for index in range(batch.num_envs):
        assert f"envs [{index}]: reset: observation: got shape ({5 + index},), expected (4,)" in caught.value.faults


def test_an_env_can_be_used_after_the_check(engine: Engine) -> None:
    env = engine.make(CountingEnv)
    check_env_specs(env)
    assert env.rollout(3, break_when_any_done=False).shape[-1] == 3


class Own(EnvBase):
    """A user's env, right unless told otherwise."""

    def __init__(self, **wrong: Any):
        super().__init__(batch_size=(2,))
        self.observation_spec = Composite(
            x=Bounded(-1, 1, (2, 3)), y=Unbounded((2,), dtype=torch.int64), shape=torch.Size([2])
        )
        self.action_spec = Binary(1, (2, 1))
        self.reward_spec = Unbounded((2, 1))
        self.wrong = wrong

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        made = {"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.int64), **self.wrong.get("reset", {})}
        return TensorDict({key: value for key, value in made.items() if value is not None}, [2])

    def _step(self, td: TensorDictBase) -> TensorDict:
        made = {
            "x": torch.zeros(2, 3),
            "y": torch.zeros(2, dtype=torch.int64),
            "reward": torch.zeros(2, 1),
            "terminated": torch.zeros(2, 1, dtype=torch.bool),
            **self.wrong.get("step", {}),
        }
        return TensorDict({key: value for key, value in made.items() if value is not None}, [2])

    def _set_seed(self, seed: int | None) -> None: ...


def test_a_users_own_env_that_is_right_passes() -> None:
    check_env_specs(Own())


class FiveFaults(EpisodicEnv):
    """Its steps are wrong in five ways, its resets in none."""

    def __init__(self, index: int = 0):
        super().__init__(index)
        arm = Composite(dtype=Unbounded((1,)), domain=Bounded(-1, 1, (1,)))
        self.observation_spec = Composite(size=Unbounded((2,)), missing=Unbounded((1,)), right=Unbounded(()), arm=arm)

    def observe(self, action: float) -> TensorDict:
        arm = {"dtype": torch.zeros(1), "domain": torch.zeros(1)}
        made = {"size": torch.zeros(2), "missing": torch.zeros(1), "right": torch.zeros(())}
        if action >= 0:
            arm |= {"dtype": torch.zeros(1, dtype=torch.float64), "domain": torch.full((1,), 2.0)}
            arm["extra"] = torch.zeros(1)
            made["size"] = torch.zeros(3)
            del made["missing"]
        return TensorDict({**made, "arm": TensorDict(arm)})


def test_five_faults_are_five_lines(td_engine: TensorDictEngine) -> None:
    """However many steps and envs have them."""
    with pytest.raises(EnvSpecError) as caught:
        check_env_specs(td_engine.make(FiveFaults), num_steps=20)
    whose = f"envs {[*range(td_engine.num_envs)]}: " if td_engine.num_envs else ""
    expected = [
        "'size': shape: got [3], expected [2]",
        "'missing': missing, expected Unbounded of shape [1]",
        "('arm', 'dtype'): dtype: got torch.float64, expected torch.float32",
        "('arm', 'domain'): out of domain: got 2.0 at [0] (1 wrong), expected low=-1.0 to high=1.0",
        "('arm', 'extra'): extra, expected only ['dtype', 'domain']",
    ]
    assert sorted(caught.value.faults) == sorted(f"{whose}_step: {fault}" for fault in expected)
    assert len(str(caught.value).splitlines()) == 1 + len(expected)


def test_a_leaf_on_another_device_is_a_fault(td_engine: TensorDictEngine) -> None:
    class Elsewhere(EpisodicEnv):
        def __init__(self, index: int = 0):
            super().__init__(index)
            self.observation_spec = Composite(x=Unbounded((1,), device="cpu"))

        def observe(self, action: float) -> TensorDict:
            return TensorDict(x=torch.zeros(1, device="meta"))

    with pytest.raises(EnvSpecError, match="_reset: 'x': device: got meta, expected cpu"):
        check_env_specs(td_engine.make(Elsewhere))


@pytest.mark.parametrize("kind", ["tasks", "forgets"])
def test_unlike_envs_and_states_that_a_reset_writes_are_no_faults(td_engine: TensorDictEngine, kind: str) -> None:
    check_env_specs(td_engine.make(TENSORDICT_ENVS[kind]), num_steps=20)


def test_unlike_envs_with_unlike_states_pass_the_check(td_three: TensorDictEngine) -> None:
    kinds: list[Callable[[int], EnvBase]] = [RecurrentEnv, StatefulEnv, lambda index: GymEnv(CountingEnv)]
    check_env_specs(td_three.make(lambda index: kinds[index](index)), num_steps=20)


def test_a_fault_of_one_of_unlike_envs_is_told(td_three: TensorDictEngine) -> None:
    kinds: list[Callable[[int], EnvBase]] = [RecurrentEnv, FiveFaults, StatefulEnv]
    with pytest.raises(EnvSpecError) as caught:
        check_env_specs(td_three.make(lambda index: kinds[index](index)))
    assert [fault[:16] for fault in caught.value.faults] == ["envs [1]: _step:"] * 5


def test_every_fault_of_a_users_own_env_is_told_at_once() -> None:
    env = Own(
        reset={"x": torch.zeros(2, 4), "y": None},
        step={
            "x": torch.full((2, 3), 2.0),
            "y": torch.zeros(2),
            "z": torch.zeros(2),
            "reward": None,
            "terminated": torch.zeros(2, 1),
        },
    )
    with pytest.raises(EnvSpecError) as caught:
        check_env_specs(env)
    told = "\n".join(caught.value.faults)
    for expected in (
        *("_reset: 'x': shape: got [2, 4]", "_reset: 'y': missing", "_step: 'x': out of domain"),
        *("_step: 'y': dtype: got", "_step: 'z': extra", "_step: 'reward': missing"),
        "_step: 'terminated': dtype: got torch.float32",
    ):
        assert expected in told, expected


@pytest.mark.parametrize(
    "flags",
    [
        {"terminated": [[True], [False]], "truncated": [[False], [False]], "done": [[False], [False]]},
        {"terminated": [[False], [False]], "truncated": [[False], [False]], "done": [[True], [False]]},
    ],
    ids=["done too few", "done too many"],
)
def test_done_that_is_not_terminated_or_truncated_is_a_fault(flags: dict[str, Any]) -> None:
    with pytest.raises(EnvSpecError, match="expected done to be terminated"):
        check_env_specs(Own(step={key: torch.tensor(value) for key, value in flags.items()}))


# ---------------------------------------------------------------- fakes and attributes


@pytest.mark.parametrize("maker", ZOO.values(), ids=ZOO)
@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("options", [{}, {"info": INFOS, "reward_dtype": torch.float64}], ids=["plain", "options"])
def test_fake_tensordict_looks_like_a_real_step(engine: Engine, maker: Any, device: Any, options: Any) -> None:
    env = engine.make(maker, device=device, **options)
    fake = env.fake_tensordict()
    real = env.rand_step(env.reset())
    assert_equal(fake, real.clone().zero_())
    assert fake.device == real.device == (None if device is None else torch.device(device))


def test_a_fake_takes_no_step(engine: Engine) -> None:
    env = engine.make(CountingEnv)
    env.fake_tensordict()
    assert env.reset()["observation"][..., 0].eq(0).all()  # the first episode


@pytest.mark.parametrize("maker", ZOO.values(), ids=ZOO)
def test_specs_describe_all_that_is_returned(engine: Engine, maker: Any) -> None:
    env = engine.make(maker, info=INFOS)
    td = env.reset()
    for _ in range(12):
        stepped, root = env.step_and_maybe_reset(env.rand_action(td))
        following = stepped["next"]
        for spec in (env.full_observation_spec, env.full_reward_spec, env.full_done_spec):
            assert spec.is_in(following.select(*spec.keys(True, True)))
        assert env.full_action_spec.is_in(stepped.select("action"))
        for spec in (env.full_observation_spec, env.full_done_spec):
            assert spec.is_in(root.select(*spec.keys(True, True)))
        written = {*env.full_observation_spec.keys(), *env.full_reward_spec.keys(), *env.full_done_spec.keys()}
        assert set(following.keys()) == written
        td = root


def test_keys_and_shapes_of_an_env_with_one_leaf_each(engine: Engine) -> None:
    env = engine.make(CountingEnv)
    lead = engine.batch_size
    assert env.batch_size == torch.Size(lead)
    assert env.ndim == len(lead)
    assert env.numel() == engine.num_envs
    assert env.batch_locked
    assert (env.action_key, env.reward_key) == ("action", "reward")
    assert (env.action_keys, env.reward_keys, env.reset_keys) == (["action"], ["reward"], ["_reset"])
    assert env.done_keys == ["done", "terminated", "truncated"]
    assert env.action_spec.shape == lead
    assert env.action_spec.dtype is torch.int64
    assert env.reward_spec.shape == (*lead, 1)
    assert all(env.full_done_spec[key].shape == (*lead, 1) for key in env.done_keys)
    assert env.done_spec == env.full_done_spec
    assert env.observation_spec == env.full_observation_spec
    assert env.full_action_spec["action"] == env.action_spec
    assert env.full_reward_spec["reward"] == env.reward_spec
    assert [*env.state_spec.keys()] == []


def test_keys_of_an_env_with_nested_spaces(engine: Engine) -> None:
    env = engine.make(DictEnv)
    assert env.action_keys == [("action", "go"), ("action", "push")]
    assert env.action_key == ("action", "go")
    assert set(env.full_observation_spec.keys(True, True)) == {
        "count",
        *[("arm", "angle"), ("arm", "on"), ("pair", "0"), ("pair", "1"), ("_user", "reward")],
    }


def test_input_and_output_specs_hold_the_full_ones(engine: Engine) -> None:
    env = engine.make(DictEnv)
    assert env.input_spec["full_action_spec"] == env.full_action_spec
    assert env.input_spec["full_state_spec"] == env.full_state_spec
    assert env.output_spec["full_observation_spec"] == env.full_observation_spec
    assert env.output_spec["full_reward_spec"] == env.full_reward_spec
    assert env.output_spec["full_done_spec"] == env.full_done_spec
    assert env.specs["input_spec"] == env.input_spec
    assert env.specs["output_spec"] == env.output_spec


def test_specs_are_locked_once_started_and_can_be_unlocked(engine: Engine) -> None:
    env = engine.make(CountingEnv)
    env.reset()
    assert env.is_spec_locked
    with pytest.raises(RuntimeError, match=r"reward_spec: .* locked"):
        env.reward_spec = Unbounded((*engine.batch_size, 1))
    with pytest.raises(RuntimeError, match="lock"):
        env.full_observation_spec.set("more", Unbounded(engine.batch_size))
    assert env.set_spec_lock_(False) is env
    assert not env.is_spec_locked
    env.reward_spec = Unbounded((*engine.batch_size, 1), dtype=torch.float64)
    assert env.reward_spec.dtype is torch.float64
    assert env.set_spec_lock_().is_spec_locked


def test_an_action_spec_can_be_set_to_itself(engine: Engine) -> None:
    for maker in ZOO.values():
        env = engine.make(maker)
        env.reset()
        env.set_spec_lock_(False)
        before = env.full_action_spec.clone()
        env.action_spec = env.action_spec
        assert env.full_action_spec == before


@pytest.mark.parametrize("kind", ["observation", "action", "reward", "done", "state"])
def test_a_spec_of_another_batch_size_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=rf"full_{kind}_spec: got batch shape \[3\], expected .* \[2\]"):
        setattr(Own(), f"full_{kind}_spec", Composite(shape=torch.Size([3])))
    if kind in ("action", "reward"):
        with pytest.raises(ValueError, match=rf"{kind}_spec: got shape \[3, 1\], expected .* \[2\]"):
            setattr(Own(), f"{kind}_spec", Unbounded((3, 1)))
    else:
        with pytest.raises(TypeError, match=rf"{kind}_spec: got Unbounded, expected a Composite"):
            setattr(Own(), f"{kind}_spec", Unbounded((2, 1)))


def test_repr_shows_batch_size_device_and_specs(engine: Engine) -> None:
    env = engine.make(CountingEnv, device="cpu")
    env.reset()
    shown = repr(env)
    assert shown.startswith(type(env).__name__)
    assert f"batch_size={[*engine.batch_size]}" in shown
    assert "device=cpu" in shown
    for kind in ("observation", "action", "reward", "done", "state"):
        assert f"{kind}_spec=" in shown


def test_repr_starts_nothing() -> None:
    made: list[gym.Env] = []

    def maker() -> gym.Env:
        made.append(CountingEnv())
        return made[-1]

    assert "SerialEnv" in repr(SerialEnv(2, maker))
    assert made == []


def test_the_device_of_a_batch_is_that_of_its_envs() -> None:
    env = SerialEnv(2, lambda: GymEnv(CountingEnv, device="cpu"))
    assert env.device == torch.device("cpu")
    assert env.full_done_spec.device == torch.device("cpu")
    assert env.reset().device == torch.device("cpu")
    assert SerialEnv(2, CountingEnv).device is None


def test_a_missing_spec_is_named() -> None:
    class Without(Own):
        def __init__(self) -> None:
            EnvBase.__init__(self)

    with pytest.raises(AttributeError, match="Without has no action_spec yet"):
        _ = Without().action_spec
