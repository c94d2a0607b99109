"""``gymbridge.interop.envpool`` against EnvPool itself: each env is compared with an EnvPool of that env alone."""

from __future__ import annotations

import copy
import doctest
import gc
import importlib.util
import inspect
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("envpool")

import envpool
import numpy as np
import torch
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode
from interrupts import interrupted
from tensordict import TensorDict

import gymbridge.interop.envpool as module
from gymbridge import ParallelEnv, SerialEnv, interop
from gymbridge.envs import EnvBase, check_env_specs
from gymbridge.errors import UnpicklableError, UnsupportedSpaceError
from gymbridge.interop import envpool_calls, envpool_layout
from gymbridge.interop.envpool import MultiThreadedEnv, MultiThreadedEnvWrapper
from gymbridge.specs import Bounded, Categorical, Composite, OneHot, Unbounded
from gymbridge.vector import TensorDictVectorEnv

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning"),
]

SHORT = {"max_episode_steps": 4}
SINGLE_PLAYER = {
    "CartPole-v1": SHORT,
    "Pendulum-v1": SHORT,
    "FrozenLake-v1": {},
    "MiniGrid-Empty-5x5-v0": SHORT,
    "BinPack-v2": {},
    "WalkerWalk-v1": SHORT,
    "Catch-v0": {},
}
SEVERAL_PLAYERS = {"IntersectionMultiAgent-v0": SHORT, "TicTacToe-v1": {}, "SparrowMahjong-v1": {}}
EVERY_ENV = SINGLE_PLAYER | SEVERAL_PLAYERS


def new_seed() -> int:
    seed = random.randrange(2**20)
    print(f"seed {seed}")
    return seed


@pytest.fixture
def make() -> Iterator[Callable[..., MultiThreadedEnv]]:
    """Makes envs, which are closed at the end."""
    envs: list[MultiThreadedEnv] = []

    def made(num_workers: int, env_name: str, *, options: Any = None, **kwargs: Any) -> MultiThreadedEnv:
        own = {**EVERY_ENV.get(env_name, {}), **kwargs}
        envs.append(MultiThreadedEnv(num_workers, env_name, create_env_kwargs=own, **(options or {})))
        return envs[-1]

    yield made
    for env in envs:
        env.close(raise_if_closed=False)


class Alone:
    """One env in an EnvPool of its own, driven by EnvPool's own API: what a row of a batch is to be."""

    def __init__(self, env_name: str, seed: int):
        self.env = envpool.make(env_name, env_type="gymnasium", num_envs=1, seed=seed, **EVERY_ENV.get(env_name, {}))
        self.num_players = self.env.config["max_num_players"]
        self.ended = False

    def reset(self) -> dict[tuple[str, ...], Any]:
        observation, info = self.env.reset()
        self.ended = False
        return self._leaves(observation, info)

    def autoreset(self) -> dict[tuple[str, ...], Any]:
        """What EnvPool gives in the step after an episode's end, the action of which it ignores."""
        assert self.ended
        action = np.zeros((self._num_actions(), *(self.env.action_space.shape or ())), self._action_dtype())
        observation, _, terminated, truncated, info = self.env.step(action)
        assert not np.any([terminated, truncated])
        self.ended = False
        return self._leaves(observation, info)

    def step(self, action: torch.Tensor) -> dict[tuple[str, ...], Any]:
        assert not self.ended
        action = action.numpy().astype(self._action_dtype()).reshape((self._num_actions(), *action.shape[self._acts :]))
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.ended = bool(terminated[0] | truncated[0])
        leaves = self._leaves(observation, info)
        name = ("players", "reward") if self.num_players > 1 else ("reward",)
        leaves[name] = reward[:, None] if self.num_players > 1 else reward
        leaves[("done",)] = terminated | truncated
        leaves[("terminated",)], leaves[("truncated",)] = terminated, truncated
        return leaves

    @property
    def _acts(self) -> bool:
        """Whether each player acts in a step."""
        return "players.action" in self.env.spec.action_array_spec

    def _num_actions(self) -> int:
        return self.num_players if self._acts else 1

    def _action_dtype(self) -> Any:
        return [*self.env.spec.action_array_spec.values()][-1].dtype

    def _leaves(self, observation: Any, info: Any) -> dict[tuple[str, ...], Any]:
        """The leaves of one env without the numbers of the envs, which are others here."""
        several = self.num_players > 1
        leaves = dict(_leaves(observation, ())) if isinstance(observation, dict) else {("observation",): observation}
        made = {}
        for path, value in leaves.items():
            made[("players", *path) if several else path] = value if several else value[0]
        for path, value in _leaves(info, ("info",)):
            if path[-1] != "env_id":
                made[path] = value if several and "players" in path else value[0]
        return made


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _leaves(part, (*path, name))
    else:
        yield path, value


def alone(env_name: str, num_envs: int, seed: int) -> list[Alone]:
    return [Alone(env_name, seed + row) for row in range(num_envs)]


def require_row(got: Any, row: int, expected: dict[tuple[str, ...], Any], where: str) -> None:
    """That a row of a TensorDict has these leaves, all of them."""
    assert expected, where
    for path, value in expected.items():
        own = got.get(path)
        assert own is not None, f"{where}: {path} is missing"
        np.testing.assert_array_equal(own[row].numpy(), np.asarray(value), f"{where}: env {row}: {path}")


def action_of(env: EnvBase, td: Any, row: int) -> torch.Tensor:
    return td.get(env.action_key)[row]


def acting(env: MultiThreadedEnv, td: Any) -> Any:
    """What was received of some envs, with random actions."""
    return td.update(env.rand_action()[: len(td)])


# ---------------------------------------------------------------- the same results


@pytest.mark.parametrize("env_name", EVERY_ENV)
def test_trajectories_are_envpools_own(env_name: str, make: Any) -> None:
    """Observations, rewards, flags and infos, over episodes; the first observation of each is in the next root."""
    seed, num_envs = new_seed(), 3
    env = make(num_envs, env_name, options={"info": "auto"})
    env.set_seed(seed)
    references = alone(env_name, num_envs, seed)
    td = env.reset()
    for row, reference in enumerate(references):
        require_row(td, row, reference.reset(), "reset")
    num_ended = 0
    for step in range(40):
        td = env.rand_action(td)
        td, td_ = env.step_and_maybe_reset(td)
        for row, reference in enumerate(references):
            expected = reference.step(action_of(env, td, row))
            require_row(td["next"], row, expected, f"step {step}")
            if reference.ended:
                expected = reference.autoreset()
                num_ended += 1
            shown = {key: value for key, value in expected.items() if key in {("info", *key[1:]), *_shown(env)}}
            require_row(td_, row, shown, f"step {step}: root")
            assert not td_["done"][row]
        td = td_
    assert num_ended


def _shown(env: EnvBase) -> set[tuple[str, ...]]:
    return {(key,) if isinstance(key, str) else key for key in env.full_observation_spec.keys(True, True)}


@pytest.mark.parametrize("env_name", ["CartPole-v1", "Pendulum-v1", "MiniGrid-Empty-5x5-v0", "TicTacToe-v1"])
def test_any_mix_of_masks_gives_what_each_env_gives_alone(env_name: str, make: Any) -> None:
    """Steps and resets of some envs, in the middle of episodes too: rows that are left out stay as they are."""
    seed, num_envs = new_seed(), 4
    draw = random.Random(seed)
    env = make(num_envs, env_name)
    assert env.partial_step
    assert env.partial_reset
    env.set_seed(seed)
    references = alone(env_name, num_envs, seed)
    td = env.reset()
    latest = [reference.reset() for reference in references]
    done_before = [False] * num_envs
    num_left_out = num_ended = 0
    for step in range(60):
        where = f"step {step}"
        call = draw.choice(["reset", *["step", "step_and_maybe_reset"] * 3])
        picked = [draw.random() < (0.2 if call == "reset" else 0.7) for _ in range(num_envs)]
        if call == "reset":
            picked = [one or done for one, done in zip(picked, done_before, strict=True)]
            td = env.reset(TensorDict({"_reset": torch.tensor(picked)}, [num_envs]))
        else:
            picked = [one and not done for one, done in zip(picked, done_before, strict=True)]
            given = env.rand_action(TensorDict({}, [num_envs]))
            actions = [action_of(env, given, row) for row in range(num_envs)]
            given["_step"] = torch.tensor(picked)
            td_ = None
            if call == "step":
                td = env.step(given)["next"]
            else:
                stepped, td_ = env.step_and_maybe_reset(given)
                td = stepped["next"]
        for row, reference in enumerate(references):
            if not picked[row]:
                num_left_out += 1
                shown = {key: value for key, value in latest[row].items() if key in _shown(env)}
                require_row(td, row, shown, where)
                assert bool(td["done"][row]) is done_before[row], where
            elif call == "reset":
                latest[row] = reference.reset()
                require_row(td, row, {key: latest[row][key] for key in _shown(env)}, where)
                done_before[row] = False
            else:
                expected = reference.step(actions[row])
                require_row(td, row, {key: value for key, value in expected.items() if key[0] != "info"}, where)
                latest[row], done_before[row] = expected, reference.ended
                num_ended += reference.ended
                if reference.ended and td_ is not None:
                    latest[row], done_before[row] = reference.autoreset(), False
            if call == "step_and_maybe_reset":
                require_row(td_, row, {key: latest[row][key] for key in _shown(env)}, where)
                assert bool(td_["done"][row]) is done_before[row], where
    assert num_left_out > 10
    assert num_ended > 0


@pytest.mark.parametrize("batch_size", [1, 2, 3])
@pytest.mark.parametrize("env_name", ["CartPole-v1", "Pendulum-v1", "IntersectionMultiAgent-v0"])
def test_sends_and_receives_give_what_each_env_gives_alone(env_name: str, batch_size: int, make: Any) -> None:
    """Whatever comes first, each env's next is that of its own actions, and its root the next episode's at an end."""
    seed, num_envs = new_seed(), 5
    env = make(num_envs, env_name, batch_size=batch_size)
    env.set_seed(seed)
    references = alone(env_name, num_envs, seed)
    env.async_reset_send()
    num_received, num_ended = [0] * num_envs, 0
    while sum(num_received) < num_envs - batch_size + 1:
        td = env.async_reset_recv()
        for at, row in enumerate(td["env_index"].tolist()):
            require_row(td, at, {key: references[row].reset()[key] for key in _shown(env)}, "reset")
            num_received[row] += 1
        env.async_step_and_maybe_reset_send(acting(env, td))
    for _ in range(40):
        td, td_ = env.async_step_and_maybe_reset_recv(max_get=2)
        assert len(td) <= 2
        index = td["env_index"].tolist()
        assert index == sorted({*index}) == td_["env_index"].tolist()
        for at, row in enumerate(index):
            if not num_received[row]:
                references[row].reset()
            num_received[row] += 1
            expected = references[row].step(action_of(env, td, at))
            require_row(td["next"], at, {key: expected[key] for key in expected if key[0] != "info"}, "step")
            if references[row].ended:
                expected = references[row].autoreset()
                num_ended += 1
            require_row(td_, at, {key: expected[key] for key in _shown(env)}, "root")
            assert not td_["done"][at]
        env.async_step_and_maybe_reset_send(acting(env, td_))
    assert num_ended > 2


@pytest.mark.parametrize("env_name", ["CartPole-v1", "FrozenLake-v1", "TicTacToe-v1"])
def test_steps_and_resets_are_received_apart(env_name: str, make: Any) -> None:
    """A receive has what was sent its own kind of work; an env that ended is to be reset before it steps again."""
    seed, num_envs = new_seed(), 3
    env = make(num_envs, env_name, batch_size=1)
    env.set_seed(seed)
    references = alone(env_name, num_envs, seed)
    env.async_reset_send()
    td = env.async_reset_recv(min_get=3)
    for row, reference in enumerate(references):
        require_row(td, row, {key: value for key, value in reference.reset().items() if key in _shown(env)}, "reset")
    num_ended = 0
    for step in range(20):
        env.async_step_send(acting(env, td))
        td = env.async_step_recv(min_get=3)
        td["mine"] = torch.arange(3)
        for row, reference in enumerate(references):
            expected = reference.step(action_of(env, td, row))
            require_row(td["next"], row, {key: expected[key] for key in expected if key[0] != "info"}, f"step {step}")
        done = td["next", "done"].squeeze(-1)
        td = env.step_mdp(td)
        if not done.any():
            continue
        num_ended += 1
        with pytest.raises(ResetNeeded, match=rf"async_step_send: envs \[{int(done.nonzero()[0])}"):
            env.async_step_send(acting(env, td))
        ended, going_on = td[done], td[~done]
        if len(going_on):
            env.async_step_send(acting(env, going_on))
        env.async_reset_send(ended)
        first = env.async_reset_recv(min_get=len(ended))
        assert first["mine"].tolist() == first["env_index"].tolist() == done.nonzero().squeeze(-1).tolist()
        td = TensorDict({key: td.get(key).clone() for key in (*_shown(env), "env_index")}, [3])
        for at, row in enumerate(first["env_index"].tolist()):
            expected = references[row].reset()
            require_row(first, at, {key: expected[key] for key in _shown(env)}, f"reset {step}")
        if len(going_on):
            stepped = env.async_step_recv(min_get=len(going_on))
            for at, row in enumerate(stepped["env_index"].tolist()):
                expected = references[row].step(action_of(env, stepped, at))
                require_row(stepped["next"], at, {key: expected[key] for key in _shown(env)}, f"step {step}")
                if references[row].ended:
                    env.async_reset_send(env_index=[row])
                    require_row(
                        env.async_reset_recv(), 0, {key: references[row].reset()[key] for key in _shown(env)}, "again"
                    )
    assert num_ended


@pytest.mark.parametrize("env_type", ["gymnasium", "dm"])
def test_an_env_that_is_there_gives_the_same(env_type: str, make: Any) -> None:
    """Whichever of EnvPool's two APIs it was made for; with the seed that it was made with."""
    env = MultiThreadedEnvWrapper(envpool.make("CartPole-v1", env_type=env_type, num_envs=3, seed=7))
    other = make(3, "CartPole-v1", seed=7, max_episode_steps=500)
    torch.manual_seed(0)
    got = env.rollout(40, break_when_any_done=False)
    torch.manual_seed(0)
    expected = other.rollout(40, break_when_any_done=False)
    assert (got == expected).all()
    assert got["next", "done"].any()
    env.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_gymnasium_face_gives_what_envpool_gives(mode: AutoresetMode, make: Any) -> None:
    """EnvPool's own mode to the bit; of the others what EnvPool shows at other times."""
    seed, num_envs = new_seed(), 3
    env = TensorDictVectorEnv(make(num_envs, "CartPole-v1"), autoreset_mode=mode)
    reference = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs, seed=seed, **SHORT)
    observation, _ = env.reset(seed=seed)
    np.testing.assert_array_equal(observation, reference.reset()[0])
    assert env.single_action_space == reference.action_space
    draw = np.random.default_rng(seed)
    num_ended = 0
    for _ in range(20):
        actions = draw.integers(0, 2, num_envs)
        observation, rewards, terminated, truncated, infos = env.step(actions)
        expected = reference.step(actions)
        ended = expected[2] | expected[3]
        shown = observation
        if mode is AutoresetMode.SAME_STEP and ended.any():
            shown = np.array([infos["final_obs"][row] if ended[row] else observation[row] for row in range(num_envs)])
        np.testing.assert_array_equal(shown, expected[0])
        for own, other in zip((rewards, terminated, truncated), expected[1:4], strict=True):
            np.testing.assert_array_equal(own, other)
        if not ended.any():
            continue
        num_ended += 1
        if mode is not AutoresetMode.NEXT_STEP:
            if mode is AutoresetMode.DISABLED:
                observation, _ = env.reset(options={"reset_mask": ended})
            first, _ = reference.reset(np.flatnonzero(ended).astype(np.int32))
            np.testing.assert_array_equal(observation[ended], first)
    assert num_ended
    env.close()


# ---------------------------------------------------------------- the contract of a TensorDict env


@pytest.mark.parametrize("info", [None, "auto"])
@pytest.mark.parametrize("env_name", [*EVERY_ENV, "BipedalWalker-v3", "CliffWalking-v0", "FetchReach-v1"])
def test_specs_say_what_it_gives(env_name: str, info: Any, make: Any) -> None:
    """Also where EnvPool's bounds say that all numbers are positive, by which it means that there are none."""
    check_env_specs(make(2, env_name, options={"info": info}), num_steps=6)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_an_asynchronous_one_is_used_like_another_env(batch_size: int, make: Any) -> None:
    seed = new_seed()
    env, other = make(4, "CartPole-v1", batch_size=batch_size), make(4, "CartPole-v1")
    rollouts = []
    for each in (env, other):
        each.set_seed(seed)
        rollouts.append(each.rollout(9, break_when_any_done=False))
    assert (rollouts[0] == rollouts[1]).all()
    assert rollouts[0]["next", "truncated"].sum() >= 4


def test_specs_are_those_of_the_spaces(make: Any) -> None:
    env = make(2, "CartPole-v1", options={"info": "auto", "reward_dtype": torch.float64, "device": "cpu"})
    assert isinstance(env.action_spec, Categorical)
    assert env.action_spec.shape == (2,)
    assert isinstance(env.observation_spec["observation"], Bounded)
    assert env.reward_spec.dtype is torch.float64
    assert {*env.full_observation_spec["info"].keys(True, True)} == {
        *("env_id", ("players", "env_id"), "elapsed_step"),
        *(("_mask", "env_id"), ("_mask", "players", "env_id"), ("_mask", "elapsed_step")),
    }
    td = env.rollout(3)
    assert td["next", "reward"].dtype is torch.float64
    assert (td["next", "reward"] == 1).all()
    assert td.device == torch.device("cpu")
    assert td["next", "info", "elapsed_step"].tolist() == [[1, 2, 3]] * 2
    assert td["next", "info", "elapsed_step"].dtype is torch.int32
    assert td["next", "info", "_mask", "elapsed_step"].all()


def test_players_have_what_is_theirs(make: Any) -> None:
    """All act, or one of them does; each has rewards and observations."""
    env = make(3, "IntersectionMultiAgent-v0", options={"info": "auto"})
    assert env.action_keys == [("players", "action")]
    assert env.full_action_spec["players", "action"].shape == (3, 2)
    assert env.reward_keys == [("players", "reward")]
    td = env.rollout(4, break_when_any_done=False)
    assert td["players", "observation"].shape == (3, 4, 2, 5, 5)
    assert td["players"].batch_size == (3, 4, 2)
    assert td["next", "players", "reward"].shape == (3, 4, 2, 1)
    assert td["next", "done"].shape == (3, 4, 1)
    assert td["next", "info", "players", "speed"].shape == (3, 4, 2)
    other = make(3, "TicTacToe-v1")
    assert other.action_keys == ["action"]
    assert other.full_action_spec["action"].shape == (3,)
    assert other.full_reward_spec["players", "reward"].shape == (3, 2, 1)


def test_infos_are_kept_as_chosen(make: Any) -> None:
    kept = Composite(elapsed_step=Unbounded((), dtype=torch.int64))
    env = make(2, "CartPole-v1", options={"info": kept})
    td = env.rollout(2)
    assert td["next", "info", "elapsed_step"].dtype is torch.int64
    assert "env_id" not in td["next", "info"].keys()
    with pytest.raises(ValueError, match=r"info: got 'lives', expected some of \['elapsed_step', 'env_id', 'players"):
        make(2, "CartPole-v1", options={"info": Composite(lives=Unbounded(()))})
    with pytest.raises(ValueError, match=r"info.elapsed_step: got shape \(2,\) and dtype int32, expected \(\)"):
        make(2, "CartPole-v1", options={"info": Composite(elapsed_step=Unbounded((2,), dtype=torch.int32))})


def test_a_row_that_is_not_stepped_has_no_infos(make: Any) -> None:
    env = make(2, "CartPole-v1", options={"info": "auto"})
    td = env.rand_action(env.reset())
    td["_step"] = torch.tensor([True, False])
    td = env.step(td)
    assert td["next", "info", "elapsed_step"].tolist() == [1, 0]
    assert td["next", "info", "_mask", "elapsed_step"].tolist() == [True, False]


@pytest.mark.parametrize("env_name", ["CartPole-v1", "TicTacToe-v1"])
def test_one_hot_actions_do_the_same(env_name: str, make: Any) -> None:
    env, other = make(3, env_name, options={"categorical_action_encoding": False}), make(3, env_name)
    assert isinstance(env.action_spec, OneHot)
    for each in (env, other):
        each.set_seed(3)
    td, expected = env.reset(), other.reset()
    for _ in range(6):
        td = env.rand_action(td)
        expected["action"] = td["action"].int().argmax(-1)
        td, expected = env.step_and_maybe_reset(td)[1], other.step_and_maybe_reset(expected)[1]
        assert (td == expected).all()
    td = env.rand_action(td)
    td["action"][1] = False
    td["_step"] = torch.tensor([True, False, True])
    env.step(td)  # an action that nobody does is not looked at


@pytest.mark.parametrize("engine", [SerialEnv, ParallelEnv])
def test_engines_run_it_like_another_env(engine: Any, make: Any) -> None:
    """In this process or in workers, as a batch of batches; seeds are counted through."""
    other = make(6, "CartPole-v1")
    batch = engine(2, lambda: MultiThreadedEnv(3, "CartPole-v1", create_env_kwargs={"max_episode_steps": 4}))
    for env in (batch, other):
        env.set_seed(2)
    assert batch.batch_size == (2, 3)
    td, expected = batch.reset(), other.reset()
    for _ in range(9):
        td, expected = batch.rand_action(td), expected.set("action", td["action"].reshape(6))
        td, expected = batch.step_and_maybe_reset(td)[1], other.step_and_maybe_reset(expected)[1]
        assert (td["observation"].reshape(6, 4) == expected["observation"]).all()
    batch.close()


def test_a_rollout_waits_until_all_are_done(make: Any) -> None:
    env = make(4, "CartPole-v1", max_episode_steps=30)
    env.set_seed(1)
    td = env.rollout(40, break_when_all_done=True)
    ends = td["next", "done"].squeeze(-1).int().argmax(-1)
    assert len({*ends.tolist()}) > 1
    assert td["next", "done"][:, -1].all()
    assert td.shape[1] == int(ends.max()) + 1


def test_what_a_policy_writes_goes_along(make: Any) -> None:
    """State at the root, and under ``next``, which becomes that of the next step."""
    env = make(2, "CartPole-v1")

    def policy(td: Any) -> Any:
        td = env.rand_action(td)
        td["note"] = td.get("hidden", torch.zeros(2, 1)).clone()
        td["next", "hidden"] = td["note"] + 1
        return td

    td = env.rollout(6, policy, tensordict=TensorDict({"hidden": torch.zeros(2, 1)}, [2]), break_when_any_done=False)
    assert td["hidden"].squeeze(-1).tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    assert td["next", "done"].any()


def test_results_are_the_callers_own(make: Any) -> None:
    """Nothing that was handed out changes, or is shared with another, whatever the caller writes into it."""
    env = make(3, "CartPole-v1")
    td = env.rand_action(env.reset())
    held = []
    for _ in range(12):
        td, td_ = env.step_and_maybe_reset(td)
        held.append((td, td.clone(), td_, td_.clone()))
        td = env.rand_action(td_.clone())
    for td, was, td_, root_was in held:
        assert (td == was).all()
        assert (td_ == root_was).all()
    td, td_ = env.step_and_maybe_reset(env.rand_action(td_.clone()))
    expected = td_["observation"].clone()
    td["next", "observation"].zero_()
    assert (td_["observation"] == expected).all()
    td_["observation"].zero_()
    left_out = env.reset(TensorDict({"_reset": torch.zeros(3, dtype=torch.bool)}, [3]))
    assert (left_out["observation"] == expected).all()


def test_a_move_to_another_device_changes_the_tensordicts(make: Any) -> None:
    env = make(2, "CartPole-v1")
    assert env.reset().device is None
    assert env.to("cpu") is env
    assert env.rand_action(env.reset()).device == torch.device("cpu")
    td, td_ = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert td["next"].device == td_.device == torch.device("cpu")
    check_env_specs(env)


def test_what_moves_to_another_device_is_the_same(make: Any) -> None:
    """The way by which results go to a GPU, taken to the CPU."""
    env, other = make(3, "CartPole-v1", options={"device": "cpu"}), make(3, "CartPole-v1", options={"device": "cpu"})
    env._form.is_on_cpu = env._is_quick = False
    rollouts = []
    for each in (env, other):
        each.set_seed(5)
        rollouts.append(each.rollout(9, break_when_any_done=False))
    assert (rollouts[0] == rollouts[1]).all()


# ---------------------------------------------------------------- seeds


def test_seeds_are_envpools(make: Any) -> None:
    """Env i has seed + i, at the next reset of all; a static seed is for each."""
    env = make(3, "CartPole-v1", seed=5)
    first = env.reset()["observation"]
    assert (first == torch.from_numpy(envpool.make("CartPole-v1", "gymnasium", num_envs=3, seed=5).reset()[0])).all()
    assert env.set_seed(6) == 9
    some = env.reset(TensorDict({"_reset": torch.tensor([True, False, False])}, [3]))["observation"]
    assert (some[1:] == first[1:]).all()
    assert not (some[0] == first[1]).all(), "the seed waits for a reset of all"
    again = env.reset()["observation"]
    assert (again[:2] == first[1:]).all()
    assert not (env.reset()["observation"] == again).any(), "a seed is used once"
    assert env.set_seed(6, static_seed=True) == 6
    assert (env.reset()["observation"] == first[1]).all()
    assert (env.reset(seed=5)["observation"] == first).all()
    env.set_seed(5)
    env.set_seed(None)
    assert not (env.reset()["observation"] == first).any(), "None takes a seed back"


def test_seeds_that_envpool_cannot_have_are_refused(make: Any) -> None:
    env = make(3, "CartPole-v1")
    with pytest.raises(ValueError, match=r"seed: got 2147483646 for 3 envs, expected seeds below 2\*\*31"):
        env.set_seed(2**31 - 2)
    with pytest.raises(ValueError, match=r"seed: got 3 for envs \[1\], expected a reset of all"):
        env.reset(TensorDict({"_reset": torch.tensor([False, True, False])}, [3]), seed=3)


# ---------------------------------------------------------------- what is refused


def test_what_is_no_env_of_envpool_is_refused() -> None:
    with pytest.raises(ValueError, match="env_name: got 'Nothing-v0'"):
        MultiThreadedEnv(2, "Nothing-v0")
    with pytest.raises(ValueError, match="num_workers: got 0"):
        MultiThreadedEnv(0, "CartPole-v1")
    with pytest.raises(TypeError, match=r"create_env_kwargs: got \['num_envs'\]"):
        MultiThreadedEnv(2, "CartPole-v1", create_env_kwargs={"num_envs": 3})
    with pytest.raises(ValueError, match="create_env_kwargs: got batch_size=3, expected 1 to 2"):
        MultiThreadedEnv(2, "CartPole-v1", create_env_kwargs={"batch_size": 3})
    with pytest.raises(TypeError, match="env_name: got 3 of type int, expected a str"):
        MultiThreadedEnv(2, 3)  # type: ignore[arg-type]
    for name, number in (("batch_size", "2"), ("batch_size", 1.0), ("batch_size", None), ("num_threads", "2")):
        with pytest.raises(TypeError, match=f"create_env_kwargs: got {name}={number!r}, expected"):
            MultiThreadedEnv(2, "CartPole-v1", create_env_kwargs={name: number})
    with pytest.raises(ValueError, match="create_env_kwargs: got num_threads=-1, expected an int that is not negative"):
        MultiThreadedEnv(2, "CartPole-v1", create_env_kwargs={"num_threads": -1})  # EnvPool would end the interpreter
    with pytest.raises(TypeError, match="env: got 'CartPole-v1' of type str, expected what envpool"):
        MultiThreadedEnvWrapper("CartPole-v1")


def test_an_env_that_ended_or_never_began_is_not_stepped(make: Any) -> None:
    env = make(2, "CartPole-v1")
    with pytest.raises(ResetNeeded, match=r"step: envs \[0, 1\] have not been reset yet"):
        env.step(env.rand_action())
    td = env.reset()
    for _ in range(4):
        td = env.step_mdp(env.step(env.rand_action(td)))
    with pytest.raises(ResetNeeded, match=r"step: envs \[0, 1\] ended their episode"):
        env.step(env.rand_action(td))
    td["_reset"] = torch.tensor([True, False])
    td = env.rand_action(env.reset(td))
    with pytest.raises(ResetNeeded, match=r"step: envs \[1\] ended their episode"):
        env.step(td)
    td["_step"] = torch.tensor([True, False])
    assert env.step(td)["next", "done"].squeeze(-1).tolist() == [False, True]


def test_actions_that_do_not_fit_are_refused_by_name(make: Any) -> None:
    env = make(2, "CartPole-v1")
    td = env.reset()
    for action, error, told in (
        (None, KeyError, "action: missing"),
        (torch.zeros(2), ValueError, "action: got dtype torch.float32, expected torch.int64"),
        (torch.zeros(2, 1, dtype=torch.int64), ValueError, r"action: got shape \[2, 1\], expected \[2\]"),
    ):
        given = td.copy()
        if action is not None:
            given["action"] = action
        for call in (env.step, env.step_and_maybe_reset):
            with pytest.raises(error, match=told):
                call(given.copy())
    env.step(env.rand_action(td))
    env = make(2, "IntersectionMultiAgent-v0")
    td = env.reset()
    with pytest.raises(KeyError, match=r"players\.action: missing, expected shape \[2, 2\]"):
        env.step(td.clone())
    td["players", "action"] = torch.zeros(2, 2, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"players\.action: got shape \[2, 2, 1\], expected \[2, 2\]"):
        env.step(td)


def test_a_part_that_envpool_cannot_do_is_refused(make: Any) -> None:
    """A batch_size of its own: it would wait for ever until so many envs are done."""
    env = make(4, "CartPole-v1", batch_size=2)
    td = env.rand_action(env.reset())
    with pytest.raises(ValueError, match="partial_step=False"):
        env.step(td.copy().set("_step", torch.tensor([True, False, False, False])))
    with pytest.raises(ValueError, match="partial_reset=False"):
        env.reset(td.copy().set("_reset", torch.tensor([True, False, False, False])))
    env = make(4, "CartPole-v1", batch_size=3)
    with pytest.raises(
        ValueError, match="reset: got 4 envs, expected a multiple of 3: this EnvPool has the batch_size 3"
    ):
        env.reset()
    env = MultiThreadedEnvWrapper(envpool.make("TicTacToe-v1", "gymnasium", num_envs=2))
    assert not env.partial_step
    check_env_specs(env)
    env.close()


def test_a_reset_that_is_refused_leaves_the_step(make: Any) -> None:
    """It is in the TensorDict; the envs that go on may be stepped, whichever ended."""
    env = make(4, "CartPole-v1", batch_size=2, max_episode_steps=500)
    td = env.reset()
    given = td

    def step_on() -> None:
        nonlocal given, td
        while True:
            given = env.rand_action(td)
            _, td = env.step_and_maybe_reset(given)

    with pytest.raises(ValueError, match="partial_reset=False"):
        step_on()
    running = ~given["next", "done"].squeeze(-1)
    assert running.any()
    td = env.rand_action(given["next"].select("observation"))[running]
    env.async_step_send(td, env_index=running.nonzero().squeeze(-1))


def test_more_than_is_under_way_is_an_error_and_no_hang(make: Any) -> None:
    env = make(4, "CartPole-v1", batch_size=3)
    with pytest.raises(RuntimeError, match="async_reset_recv: got min_get=1, expected at most 0"):
        env.async_reset_recv()
    env.async_reset_send()
    with pytest.raises(RuntimeError, match="got min_get=5, expected at most 4, the envs that were sent a reset"):
        env.async_reset_recv(min_get=5)
    with pytest.raises(
        RuntimeError, match=r"expected at most 3, which are there: 1 more envs are at work, and this Env"
    ):
        env.async_reset_recv(min_get=4)
    td = env.async_reset_recv(min_get=3)
    assert len(td) == 3
    with pytest.raises(RuntimeError, match=r"reset: refused while envs \[\d\] have work under way"):
        env.reset()
    with pytest.raises(
        RuntimeError, match=r"async_reset_send: envs \[\d\] have work under way, or results that were n"
    ):
        env.async_reset_send()
    env.async_step_send(acting(env, td))
    assert len(env.async_step_recv(min_get=2, max_get=2)) == 2, "the fourth came with two of them"


def test_sends_that_do_not_fit_are_refused(make: Any) -> None:
    env = make(4, "CartPole-v1", batch_size=2)
    env.async_reset_send(env_index=[0, 1])
    td = env.async_reset_recv(min_get=2)
    with pytest.raises(TypeError, match="async_step_send: got None"):
        env.async_step_send(None, env_index=[0])
    with pytest.raises(TypeError, match="env_index 1, expected the ints of some envs: there are no lanes here"):
        env.async_reset_send(env_index=1)
    with pytest.raises(ValueError, match="got no env_index, expected that of one env or more"):
        env.async_reset_send(env_index=[])
    with pytest.raises(IndexError, match=r"env_index \[0, 4\], expected some of 0 to 3"):
        env.async_reset_send(env_index=[0, 4])
    with pytest.raises(ValueError, match=r"env_index \[1, 1\], expected each env once"):
        env.async_reset_send(env_index=torch.tensor([1, 1]))
    with pytest.raises(ValueError, match=r"batch size \[2\], expected \[1\], that of envs \[0\]"):
        env.async_step_send(acting(env, td), env_index=[0])
    with pytest.raises(ValueError, match="got a mask at '_step', expected none"):
        env.async_step_send(acting(env, td.copy()).set("_step", torch.tensor([True, False])))
    with pytest.raises(KeyError, match="action: missing"):
        env.async_step_send(td.exclude("action"))
    with pytest.raises(ResetNeeded, match=r"async_step_send: envs \[2, 3\] have not been reset yet"):
        env.async_step_send(acting(env, td), env_index=[2, 3])
    env.async_step_send(acting(env, td))
    with pytest.raises(ValueError, match="min_get: got 0"):
        env.async_step_recv(min_get=0)
    assert len(env.async_step_recv(min_get=2)) == 2
    with pytest.raises(RuntimeError, match="async_reset_send: got an EnvPool whose batch_size is its num_envs, 3"):
        make(3, "CartPole-v1").async_reset_send()


def test_actions_may_be_changed_once_they_are_sent(make: Any) -> None:
    """They are the pool's own until they come back, as they were."""
    env = make(2, "Pendulum-v1", batch_size=1)
    env.async_reset_send()
    td = acting(env, env.async_reset_recv(min_get=2))
    sent = td["action"].clone()
    env.async_step_send(td)
    td["action"].fill_(9)
    td = env.async_step_recv(min_get=2)
    assert (td["action"] == sent).all()


def test_a_call_in_another_thread_is_refused(make: Any) -> None:
    env = make(2, "CartPole-v1", batch_size=1)
    env.async_reset_send()
    env.async_reset_recv(min_get=2)
    begun, may_end = threading.Event(), threading.Event()
    pool = env._pool

    class Waiting:
        def __getattr__(self, name: str) -> Any:
            return getattr(pool, name)

        def _recv(self) -> Any:
            begun.set()
            assert may_end.wait(30)
            return pool._recv()

    env._pool = Waiting()
    env.async_step_send(env.rand_action())
    received: list[Any] = []
    thread = threading.Thread(target=lambda: received.append(env.async_step_recv(min_get=2)))
    thread.start()
    assert begun.wait(30)
    for call in (env.async_step_recv, env.async_reset_send, env.reset, env.rand_step):
        with pytest.raises(RuntimeError, match="refused while a call of async_step_recv is under way"):
            call()
    may_end.set()
    thread.join(30)
    assert len(received[0]) == 2


@pytest.mark.parametrize("call", ["step", "step_and_maybe_reset", "reset", "async_step_recv"])
def test_an_interrupt_leaves_an_env_that_is_to_be_reset(call: str, make: Any) -> None:
    """Nobody knows then what EnvPool still has to give: what comes next is none of that."""
    env = make(2, "CartPole-v1", **({"batch_size": 1} if call.startswith("async") else {}))
    env.set_seed(3)
    td = env.reset()
    expected = td["observation"].clone()
    td = env.rand_action(td)
    if call.startswith("async"):
        env.async_step_send(td)
    pool = env._pool

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            return getattr(pool, name)

        def _recv(self) -> Any:
            raise KeyboardInterrupt

    env._pool = Interrupted()
    given = td.copy()
    with pytest.raises(KeyboardInterrupt):
        getattr(env, call)(*(() if call in ("reset", "async_step_recv") else (given,)))
    assert "next" not in given.keys()
    env._pool = pool
    with pytest.raises(
        ResetNeeded, match=r"envs \[0, 1\] raised an error in an earlier call or were interrupted in it"
    ):
        env.step(td)
    with pytest.raises(ResetNeeded, match=r"reset: got envs \[0\], expected all"):
        env.reset(TensorDict({"_reset": torch.tensor([True, False])}, [2]))
    assert (env.reset()["observation"] == expected).all()
    env.rollout(5, break_when_any_done=False)


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("call", "batch_size"),
    [
        ("step", 2),
        ("masked step", 1),
        ("step_and_maybe_reset", 1),
        ("step_and_maybe_reset", 2),
        ("reset", 2),
        ("masked reset", 1),
    ],
)
def test_an_interrupt_anywhere_costs_no_transition_unseen(call: str, batch_size: int, make: Any) -> None:
    """Either the envs stand where the caller knows them to stand, or those that do not are to be reset."""
    env = make(2, "Pendulum-v1", batch_size=batch_size, options={"info": "auto"})
    at, is_through, times_noticed, times_undone = 0, False, 0, 0
    while not is_through:
        at += 1
        _, td = env.step_and_maybe_reset(env.rand_action(env.reset()))
        td = env.rand_action(td)
        given = td.copy()
        if call.startswith("masked"):
            given["_step" if "step" in call else "_reset"] = torch.tensor([True, False])
        reached, raised = interrupted(lambda: getattr(env, call.rpartition(" ")[2])(given), at)  # noqa: B023
        is_through = not reached
        if not raised:
            continue
        try:
            steps = env.step(td)["next", "info", "elapsed_step"].tolist()
            assert steps == [2, 2], f"interrupted at call {at}"
            times_undone += 1
        except ResetNeeded:
            times_noticed += 1
    assert times_noticed
    assert times_undone


def test_copies_and_pickles_are_refused(make: Any) -> None:
    env = make(2, "CartPole-v1")
    for copying in (copy.deepcopy, pickle.dumps):
        with pytest.raises(UnpicklableError, match="MultiThreadedEnv: an EnvPool cannot be pickled or copied"):
            copying(env)


def test_an_env_with_several_arrays_of_actions_is_refused() -> None:
    spec = SimpleNamespace(action_array_spec=dict.fromkeys(["env_id", "players.env_id", "turn", "push"]))
    with pytest.raises(UnsupportedSpaceError, match=r"action: got the arrays \['turn', 'push'\], expected one"):
        envpool_layout._action_of(spec)


# ---------------------------------------------------------------- the EnvPool itself


def test_attributes_are_envpools(make: Any) -> None:
    env = make(2, "CartPole-v1", seed=11, render_mode="rgb_array")
    assert env.config["seed"] == 11
    env.set_seed(12)
    env.reset()
    assert env.config["seed"] == 12
    assert env.env.config["max_episode_steps"] == 4
    assert env.render_mode == "rgb_array", "the EnvPool that was made anew has it too"
    assert env.num_workers == env.num_envs == 2
    assert env.env_name == "CartPole-v1"
    assert env.create_env_kwargs["seed"] == 11
    with pytest.raises(AttributeError, match="MultiThreadedEnv has no attribute 'nothing', and its EnvPool neither"):
        _ = env.nothing
    assert "observation_spec" in repr(env)


def test_names_are_as_torchrl_has_them(make: Any) -> None:
    parameters = [*inspect.signature(MultiThreadedEnv.__init__).parameters]
    assert parameters[1:4] == ["num_workers", "env_name", "create_env_kwargs"]
    assert [*inspect.signature(MultiThreadedEnvWrapper.__init__).parameters][1] == "env"
    assert make(2, "ALE/CartPole-v1").env_name == "CartPole-v1"


@pytest.mark.parametrize("closes", [True, False])
def test_threads_end_with_an_env_that_is_closed_or_dropped(closes: bool) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    gc.collect()
    before = threads()
    env = MultiThreadedEnv(3, "CartPole-v1", create_env_kwargs={"num_threads": 3, "batch_size": 2})
    env.async_reset_send()
    assert threads() >= before + 3
    if closes:
        env.close()
        with pytest.raises(ClosedEnvironmentError, match="reset: MultiThreadedEnv is closed"):
            env.reset()
        with pytest.raises(ClosedEnvironmentError, match="async_reset_send: MultiThreadedEnv is closed"):
            env.async_reset_send()
        with pytest.raises(ClosedEnvironmentError):
            _ = env.env
        with pytest.raises(ClosedEnvironmentError, match="set_seed: MultiThreadedEnv is closed"):
            env.set_seed(0)
        with pytest.raises(AttributeError, match="'config', and its EnvPool is closed"):
            _ = env.config
        assert not hasattr(env, "nothing")
        with pytest.raises(RuntimeError, match="is closed already"):
            env.close()
        env.close(raise_if_closed=False)
    del env
    gc.collect()
    assert threads() <= before


FORKS = {
    "reset": lambda env: env.reset(),
    "step": lambda env: env.step(env.rand_action()),
    "step_and_maybe_reset": lambda env: env.step_and_maybe_reset(env.rand_action()),
    "set_seed": lambda env: env.set_seed(0),
    "config": lambda env: env.config,
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("call", FORKS)
def test_a_fork_is_refused_what_only_the_process_that_made_it_can_do(call: str, make: Any) -> None:
    """The threads are not in the fork, where EnvPool would wait for ever; the process itself goes on."""
    env = make(2, "CartPole-v1")
    env.reset()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # where it waits
        try:
            FORKS[call](env)
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    with open(read) as told:
        assert "EnvPool's threads belong to the process that made it" in told.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert env.rollout(3).batch_size == (2, 3)


@pytest.mark.parametrize("end", ["env.close()", "del env", "pass"])
def test_a_fork_ends_with_an_env_of_the_process_that_made_it(end: str) -> None:
    """Closed, dropped, or there until the interpreter's end: nothing waits for threads that are not there."""
    program = f"""
import os, signal, warnings
warnings.simplefilter("ignore")
from gymbridge.interop.envpool import MultiThreadedEnv
env = MultiThreadedEnv(2, "CartPole-v1")
env.reset()
child = os.fork()
if child == 0:
    signal.alarm(30)
    {end}
else:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    env.close()
    raise SystemExit(code != 0 and f"the fork ended with {{code}}")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- training


@pytest.mark.skipif(
    os.environ.get("GYMBRIDGE_TRAININGS") != "1", reason="takes a minute or more; GYMBRIDGE_TRAININGS=1 runs it"
)
@pytest.mark.timeout(1800)
def test_ppo_learns_cartpole() -> None:
    """The example's program, with EnvPool as its engine."""
    path = Path(__file__).parents[2] / "examples" / "ppo_tensordict.py"
    spec = importlib.util.spec_from_file_location("ppo_tensordict", path)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    program.ENGINES["envpool"] = MultiThreadedEnv
    assert program.main(["--engine=envpool", "--plot=", "--target-return=300"]) > 300


# ---------------------------------------------------------------- its docstrings


@pytest.mark.parametrize("part", [module, envpool_calls, envpool_layout], ids=lambda part: part.__name__)
def test_examples_of_the_module_run(part: Any) -> None:
    runner = doctest.DocTestRunner()
    told: list[str] = []
    for example in doctest.DocTestFinder().find(part, part.__name__):
        runner.run(example, out=told.append)
    assert runner.tries > 0 or part is envpool_calls
    assert not runner.failures, "".join(told)


@pytest.mark.parametrize("cls", [MultiThreadedEnv, MultiThreadedEnvWrapper])
def test_public_methods_are_documented(cls: type) -> None:
    own = [name for name, value in vars(cls).items() if not name.startswith("_") and callable(value)]
    assert own or cls is MultiThreadedEnv
    assert not [name for name in own if not vars(cls)[name].__doc__]
    assert interop.__doc__
