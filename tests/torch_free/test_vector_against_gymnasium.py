"""Our vector envs give what ``gymnasium.vector.SyncVectorEnv`` gives, to the bit, over gymnasium's own envs."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from agreement import arrays_in, assert_same, with_final_obs_in_space
from fuzzing import examples
from generated_envs import Plan, PlannedEnv, makers
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from vector_classes import BOTH, travels

from gymbridge.vector import SyncVectorEnv

travels(sys.modules[__name__])

FAMILIES = (
    *("CartPole", "MountainCar", "MountainCarContinuous", "Acrobot", "Pendulum"),
    *("Blackjack", "FrozenLake", "Taxi", "CliffWalking"),
)
MODES = tuple(AutoresetMode)
STEPS = examples(1000)
BOX = spaces.Box(0, 255, (2,), np.uint8)


def newest(family: str) -> str:
    """The id of the newest version that the installed gymnasium has."""
    return max((id for id in gym.registry if id.split("-v")[0] == family), key=lambda id: int(id.split("-v")[1]))


def pair(cls: Any, makers: list[Callable[[], gym.Env]], **kwargs: Any) -> tuple[Any, gym.vector.SyncVectorEnv]:
    return cls(makers, **kwargs), gym.vector.SyncVectorEnv(makers, **kwargs)


class Twins:
    """Ours and gymnasium's, driven together and compared call by call."""

    def __init__(self, cls: Any, makers: list[Callable[[], gym.Env]], **kwargs: Any):
        self.ours, self.theirs = pair(cls, makers, **kwargs)
        assert_same(self.ours.metadata, self.theirs.metadata)
        self.ended = np.zeros(len(makers), np.bool_)
        self.ends = 0
        self.ours.action_space.seed(5)

    def reset(self, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        # gymnasium takes the mask out of the dict that it is given
        ours = self.ours.reset(seed=seed, options=options)
        theirs = self.theirs.reset(seed=seed, options=copy.copy(options))
        assert_same(ours, theirs, "reset")
        self.ended = self.ended & ~options["reset_mask"] if options and "reset_mask" in options else self.ended & False
        return ours

    def step(self, actions: Any = None) -> Any:
        if actions is None:
            actions = self.ours.action_space.sample()
        ours = self.ours.step(actions)
        *theirs, infos = self.theirs.step(actions)
        assert_same(ours, (*theirs, with_final_obs_in_space(infos, self.theirs.single_observation_space)), "step")
        self.ended = ours[2] | ours[3]
        self.ends += int(self.ended.sum())
        return ours

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def makers_of(family: str, num_envs: int) -> list[Callable[[], gym.Env]]:
    # a slippery lake's infos have an int from a reset and a fraction from a step: there we deviate, see the deviations
    kwargs = {"is_slippery": False} if family == "FrozenLake" else {}
    # other lengths, so that some envs are reset while others step
    return [
        lambda steps=steps: gym.make(newest(family), max_episode_steps=steps, **kwargs)
        for steps in range(5, 5 + num_envs)
    ]


@pytest.mark.every(2, "cls", "family", "mode")
@BOTH
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_run(cls: Any, family: str, mode: AutoresetMode) -> None:
    """Resets with each kind of seed and with masks, in the middle of the run too."""
    twins = Twins(cls, makers_of(family, 3), autoreset_mode=mode)
    random = np.random.default_rng(11)
    twins.reset(seed=3)
    for step in range(STEPS):
        if mode is AutoresetMode.DISABLED and twins.ended.any():
            twins.reset(options={"reset_mask": twins.ended.copy()})
        if step % 97 == 96:
            mask = random.random(3) < 0.5
            mask[random.integers(3)] = True
            twins.reset(seed=[4, None, step], options={"reset_mask": mask | (twins.ended & (mode is MODES[2]))})
        if step % 397 == 396:
            twins.reset(seed=[None, step, 1], options={})
        if step % 499 == 498:
            twins.reset()
        twins.step()
    assert twins.ends > STEPS // 4
    twins.close()


@BOTH
@pytest.mark.parametrize("family", FAMILIES)
def test_actions_as_lists(cls: Any, family: str) -> None:
    twins = Twins(cls, makers_of(family, 2))
    twins.reset(seed=0)
    for _ in range(20):
        twins.step(list(twins.ours.action_space.sample()))
    twins.close()


@BOTH
@pytest.mark.parametrize("family", ["CartPole", "Blackjack"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_results_belong_to_the_caller(cls: Any, family: str, mode: AutoresetMode) -> None:
    """With ``copy=True`` nothing that was handed out changes later, and no two results share memory."""
    envs = cls(makers_of(family, 3), autoreset_mode=mode)
    results: list[Any] = [envs.reset(seed=0)]
    copies = copy.deepcopy(results)
    for _ in range(30):
        if mode is AutoresetMode.DISABLED:
            results.append(envs.reset())
            copies.append(copy.deepcopy(results[-1]))
        results.append(envs.step(envs.action_space.sample()))
        copies.append(copy.deepcopy(results[-1]))
    assert_same(results, copies)
    arrays = [array for array in arrays_in(results) if array.nbytes]
    assert len({array.__array_interface__["data"][0] for array in arrays}) == len(arrays)


@BOTH
@pytest.mark.parametrize("family", ["CartPole", "Blackjack"])
@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: mode.value)
def test_one_buffer_without_copy(cls: Any, family: str, mode: AutoresetMode) -> None:
    """With ``copy=False`` observations are the same arrays in each call, as gymnasium's; all else is the caller's."""
    twins = Twins(cls, makers_of(family, 3), autoreset_mode=mode, copy=False)

    def buffers(observation: Any) -> list[int]:
        return [id(array) for array in arrays_in(observation)]

    first = buffers(twins.reset(seed=0)[0])
    rest = []
    for _ in range(30):
        observation, *others = twins.step()
        assert buffers(observation) == first
        rest.append((others, copy.deepcopy(others)))
    for kept, as_it_was in rest:
        assert_same(kept, as_it_was)
    twins.close()


def spaces_of_other_bounds() -> list[Callable[[], gym.Env]]:
    def make(scale: float) -> gym.Env:
        env = gym.make("CartPole-v1", max_episode_steps=6)
        box = env.observation_space
        env.observation_space = gym.spaces.Box(box.low * scale, box.high * scale, dtype=np.float32)  # type: ignore[attr-defined]
        return env

    with np.errstate(all="ignore"):
        return [lambda scale=scale: make(scale) for scale in (1.0, 0.75, 0.5)]


@BOTH
def test_observation_mode_different(cls: Any) -> None:
    with np.errstate(all="ignore"):
        twins = Twins(cls, spaces_of_other_bounds(), observation_mode="different")
    assert twins.ours.observation_space == twins.theirs.observation_space
    assert twins.ours.single_observation_space == twins.theirs.single_observation_space
    twins.reset(seed=1)
    for _ in range(50):
        twins.step()
    twins.close()


@BOTH
def test_observation_mode_pair(cls: Any) -> None:
    single = gym.spaces.Box(-1, 1, (4,), np.float32)
    batched = gym.spaces.Box(-1, 1, (3, 4), np.float32)
    with np.errstate(all="ignore"):
        twins = Twins(cls, spaces_of_other_bounds(), observation_mode=(batched, single))
    assert twins.ours.observation_space is batched
    assert twins.ours.single_observation_space is single
    twins.reset(seed=1)
    for _ in range(50):
        twins.step()
    twins.close()


@BOTH
def test_spaces_and_facts(cls: Any) -> None:
    for family in FAMILIES:
        ours, theirs = pair(cls, makers_of(family, 3))
        for name in ("observation_space", "single_observation_space", "action_space", "single_action_space"):
            our, their = getattr(ours, name), getattr(theirs, name)
            assert our == their, name
            our.seed(0), their.seed(0)
            assert_same(our.sample(), their.sample(), name)
        for name in ("num_envs", "render_mode", "metadata", "spec", "copy", "observation_mode", "autoreset_mode"):
            assert_same(getattr(ours, name), getattr(theirs, name), name)
        assert repr(ours) == f"{type(ours).__name__}(num_envs=3)"
        assert ours.unwrapped is ours
        ours.close(), theirs.close()


@pytest.mark.parametrize("how", ["an item of envs", "envs", "set_attr", "patch"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_what_users_put_in_an_envs_place_is_what_runs(how: str, mode: AutoresetMode) -> None:
    """A wrapper, a method set from outside: from the next call on, in ``step`` as in ``reset``."""
    results = []
    for cls in (SyncVectorEnv, gym.vector.SyncVectorEnv):
        envs: Any = cls(makers(Plan(BOX, lengths=(9,)), 2), autoreset_mode=mode)
        envs.reset(seed=0)
        envs.step(np.array([0, 0]))
        first = envs.envs[0]

        def better(action: Any, step: Any = first.step) -> Any:
            observation, _, *rest = step(action)
            return (observation, 1000.0, *rest)

        if how == "an item of envs":
            envs.envs[0] = gym.wrappers.TransformReward(first, lambda reward: 1000.0)
        elif how == "envs":
            envs.envs = [gym.wrappers.TransformReward(first, lambda reward: 1000.0), envs.envs[1]]
        elif how == "set_attr":
            envs.set_attr("step", [better, envs.envs[1].step])
        else:
            first.step = better
        results.append(envs.step(np.array([0, 0])))
        assert results[-1][1][0] == 1000
    assert_same(*results)


def test_a_list_of_other_length_cannot_be_put_in_the_envs_place() -> None:
    envs = SyncVectorEnv(makers(Plan(BOX), 2))
    with pytest.raises(ValueError, match="envs: got 1 envs, expected 2"):
        envs.envs = envs.envs[:1]


@BOTH
def test_longdouble_observations(cls: Any) -> None:
    """A dtype that gymnasium takes but cannot sample."""
    space = spaces.Box(-np.inf, np.inf, (2,), np.longdouble)
    observations = [np.array([1, np.nan], np.longdouble) / 3, np.array([-0.0, np.inf], np.longdouble)]

    class Shows(PlannedEnv):
        def __init__(self, index: int):
            super().__init__(Plan(BOX), index)
            self.observation_space = space

        def _observation(self) -> Any:
            return observations[self.index]

    fns = [lambda index=index: Shows(index) for index in range(2)]  # type: ignore[misc]
    assert_same(cls(fns).reset(), gym.vector.SyncVectorEnv(fns).reset())
