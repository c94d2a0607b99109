"""``gymbridge.interop.sb3.VecEnv`` against Stable-Baselines3 itself: its own vec envs are what it is compared with."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import functools
import gc
import os
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym
import numpy as np
from agreement import as_in_space, assert_same
from fuzzing import quick
from generated_envs import Plan, makers, plans
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from hypothesis import given
from hypothesis import strategies as st
from sb3_envs import EnvWithEverything, ModulesEnv, OuterWrapper, PlainWrapper, RaisingEnv, wrapped
from space_strategies import leaf_spaces
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    VecVideoRecorder,
)
from stable_baselines3.common.vec_env import VecEnv as SB3VecEnv
from worker_processes import still_running, watch

import gymbridge.interop.sb3 as module
from gymbridge import AsyncEnvPool, ParallelEnv, SerialEnv
from gymbridge.errors import WorkerDiedError
from gymbridge.interop.sb3 import VecEnv
from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv

NUM_ENVS = 3
Makers = list[Callable[[], gym.Env]]

BOX = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (12, 10, 3), np.uint8)
OBSERVATION_SPACES = {
    "box": BOX,
    "box of doubles": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    "image": IMAGE,
    "discrete": spaces.Discrete(5, start=2),
    "multi-discrete": spaces.MultiDiscrete([3, 4, 2]),
    "multi-binary": spaces.MultiBinary(4),
    "dict": spaces.Dict(view=IMAGE, position=BOX, lives=spaces.Discrete(4)),
    "tuple": spaces.Tuple((BOX, spaces.Discrete(3), spaces.MultiBinary(2))),
}
ACTION_SPACES = {
    "discrete": spaces.Discrete(4),
    "box": spaces.Box(-2, 2, (2,), np.float32),
    "multi-discrete": spaces.MultiDiscrete([3, 2]),
    "multi-binary": spaces.MultiBinary(3),
    "dict": spaces.Dict(turn=spaces.Discrete(3), push=spaces.Box(0, 1, (2,), np.float32)),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,), np.float32))),
}

ENGINES: dict[str, Callable[[Makers], VecEnv]] = {
    "makers": VecEnv,
    "a process an env": lambda makers: VecEnv(makers, num_workers=len(makers)),
    "async": lambda makers: VecEnv(AsyncVectorEnv(makers, num_workers=1)),
    "sync": lambda makers: VecEnv(SyncVectorEnv(makers)),
}
BATCHES: dict[str, Callable[[Makers], VecEnv]] = {
    "parallel batch": lambda makers: VecEnv(ParallelEnv(len(makers), makers)),
    "serial batch": lambda makers: VecEnv(SerialEnv(len(makers), makers)),
    "pool of threads": lambda makers: VecEnv(AsyncEnvPool(makers)),
    "pool of processes": lambda makers: VecEnv(AsyncEnvPool(makers, backend="multiprocessing")),
}


def subproc(makers: Makers) -> SB3VecEnv:
    return SubprocVecEnv(makers, start_method="fork")


def makers_of(observation_space: spaces.Space = BOX, action_space: spaces.Space | None = None, **kwargs: Any) -> Makers:
    action_space = ACTION_SPACES["discrete"] if action_space is None else action_space
    return [
        functools.partial(EnvWithEverything, observation_space, action_space, index, **kwargs)
        for index in range(NUM_ENVS)
    ]


def new_seed() -> int:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    return seed


@pytest.fixture
def opened() -> Iterator[Callable[[SB3VecEnv], Any]]:
    """Takes envs, which are closed at the end."""
    envs: list[SB3VecEnv] = []

    def keep(env: SB3VecEnv) -> SB3VecEnv:
        envs.append(env)
        return env

    yield keep
    for env in envs:
        env.close()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Callable[[Makers], VecEnv]:
    return ENGINES[request.param]


@pytest.fixture(params=ENGINES | BATCHES)
def any_engine(request: pytest.FixtureRequest) -> Callable[[Makers], VecEnv]:
    return (ENGINES | BATCHES)[request.param]


def require_equal(got: Any, expected: Any, where: str = "") -> None:
    """Equal values in the same structure; dtypes too where they are arrays."""
    if isinstance(expected, dict):
        assert isinstance(got, dict), where
        assert set(got) == set(expected), where
        for key in expected:
            require_equal(got[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert type(got) is type(expected), where
        assert len(got) == len(expected), where
        for position, (own, other) in enumerate(zip(got, expected, strict=True)):
            require_equal(own, other, f"{where}[{position}]")
    elif isinstance(expected, np.ndarray):
        assert isinstance(got, np.ndarray), where
        assert got.dtype == expected.dtype, where
        np.testing.assert_array_equal(got, expected, where)
    else:
        assert got == expected, where


def without_times(infos: Any) -> list[dict[str, Any]]:
    """Infos as a list, without the wall-clock time that a Monitor adds."""
    infos = copy.deepcopy(list(infos))
    for info in infos:
        if "episode" in info:
            del info["episode"]["t"]
    return infos


def compare(
    ours: SB3VecEnv, theirs: SB3VecEnv, steps: int, *, seed: int, infos: bool = True, reward_dtype: Any = None
) -> int:
    """Resets and steps both with the same seeds and actions; the number of episodes that ended."""
    assert ours.seed(seed) == theirs.seed(seed)
    require_equal(ours.reset(), theirs.reset(), "reset")
    if infos:
        require_equal(list(ours.reset_infos), list(theirs.reset_infos), "reset_infos")
    theirs.action_space.seed(seed)
    num_ended = 0
    for step in range(steps):
        actions: Any = [theirs.action_space.sample() for _ in range(theirs.num_envs)]
        if not isinstance(theirs.action_space, (spaces.Dict, spaces.Tuple)):
            actions = np.array(actions)
        got, expected = ours.step(actions), theirs.step(actions)
        require_equal(got[0], expected[0], f"step {step}: observations")
        dtype = expected[1].dtype if reward_dtype is None else reward_dtype
        require_equal(got[1].astype(dtype), expected[1].astype(dtype), f"step {step}: rewards")
        require_equal(got[2], np.asarray(expected[2]), f"step {step}: dones")
        assert type(got[3]) is list
        own, other = without_times(got[3]), without_times(expected[3])
        if not infos:
            kept = {"TimeLimit.truncated", "terminal_observation"}
            own, other = ([{key: info[key] for key in kept & info.keys()} for info in each] for each in (own, other))
        require_equal(own, other, f"step {step}: infos")
        if infos:
            require_equal(list(ours.reset_infos), list(theirs.reset_infos), f"step {step}: reset_infos")
        num_ended += int(np.sum(got[2]))
    return num_ended


# ---------------------------------------------------------------- the same results


@pytest.mark.parametrize("name", OBSERVATION_SPACES)
def test_results_are_those_of_subproc_vec_env(name: str, opened: Any) -> None:
    makers = makers_of(OBSERVATION_SPACES[name])
    assert compare(opened(VecEnv(makers)), opened(subproc(makers)), 12, seed=new_seed()) > 6


@pytest.mark.parametrize("name", OBSERVATION_SPACES)
def test_results_are_those_of_dummy_vec_env(name: str, any_engine: Any, opened: Any) -> None:
    """On every engine; a batch of TensorDict rows keeps infos only where it is told to."""
    makers = makers_of(OBSERVATION_SPACES[name])
    ours, theirs = opened(any_engine(makers)), opened(DummyVecEnv(makers))
    is_batch = any_engine in BATCHES.values()
    assert compare(ours, theirs, 12, seed=new_seed(), infos=not is_batch, reward_dtype=np.float32) > 6


def flat_spaces() -> st.SearchStrategy[spaces.Space]:
    """Spaces as Stable-Baselines3 knows them: arrays, and one level of dicts and tuples of these."""
    parts = leaf_spaces()
    dicts = st.dictionaries(st.sampled_from(["b", "a", "c"]), parts, min_size=1).map(spaces.Dict)
    tuples = st.lists(parts, min_size=1, max_size=3).map(lambda items: spaces.Tuple(tuple(items)))
    return parts | dicts | tuples


def as_vec_env_gives(space: spaces.Space, infos: Any) -> list[dict[str, Any]]:
    """Infos of ``DummyVecEnv``, with the final observation in its space's dtype and the mark a bool."""
    infos = list(infos)
    for info in infos:
        info["TimeLimit.truncated"] = bool(info["TimeLimit.truncated"])
        if "terminal_observation" in info:
            info["terminal_observation"] = as_in_space(space, info["terminal_observation"])
    return infos


@pytest.mark.parametrize("engine_name", ["makers", "sync"])
def test_generated_envs_give_what_they_give_in_dummy_vec_env(engine_name: str) -> None:
    """Any kind of space, reward, flag and info, to the bit."""

    @quick(10 if engine_name == "makers" else 60)
    @given(plan=plans(flat_spaces(), mixed_infos=True), seed=st.integers(0, 2**31))
    def compare_plan(plan: Plan, seed: int) -> None:
        plan = dataclasses.replace(plan, own_arrays=False)
        ours, theirs = ENGINES[engine_name](makers(plan, 2)), DummyVecEnv(makers(plan, 2))
        try:
            for env in (ours, theirs):
                env.seed(seed)
            first, expected = ours.reset(), theirs.reset()
            assert_same(first, dict(expected) if isinstance(expected, dict) else expected, "reset")
            assert_same(list(ours.reset_infos), theirs.reset_infos, "reset_infos")
            for step in range(6):
                got, reference = ours.step(np.array([0, 1])), theirs.step(np.array([0, 1]))
                expected = reference[0]
                assert_same(got[0], dict(expected) if isinstance(expected, dict) else expected, f"step {step}")
                assert_same(got[1].astype(np.float32), reference[1], "rewards")
                assert_same(got[2], reference[2], "dones")
                assert_same(got[3], as_vec_env_gives(plan.observation_space, reference[3]), f"infos {step}")
                assert_same(list(ours.reset_infos), theirs.reset_infos, f"reset_infos {step}")
        finally:
            ours.close()

    compare_plan()


def test_a_final_observation_is_no_array_that_the_reset_writes_into(engine: Any, opened: Any) -> None:
    """Both of Stable-Baselines3's vec envs show the first observation of the next episode there."""
    plan = Plan(BOX, lengths=(2,), own_arrays=True)
    env, reference = (
        opened(engine(makers(plan, 2))),
        DummyVecEnv(makers(dataclasses.replace(plan, own_arrays=False), 2)),
    )
    for each in (env, reference):
        each.seed(3)
        each.reset()
        each.step(np.zeros(2, np.int64))
    got, expected = env.step(np.zeros(2, np.int64)), reference.step(np.zeros(2, np.int64))
    for row in range(2):
        assert_same(got[3][row]["terminal_observation"], expected[3][row]["terminal_observation"])
    assert not np.array_equal(got[0][0], got[3][0]["terminal_observation"])


@pytest.mark.parametrize("name", ACTION_SPACES)
def test_actions_reach_the_envs_as_with_subproc_vec_env(name: str, engine: Any, opened: Any) -> None:
    makers = makers_of(action_space=ACTION_SPACES[name])
    ours, theirs = opened(engine(makers)), opened(subproc(makers))
    compare(ours, theirs, 5, seed=new_seed())
    for got, expected in zip(ours.env_method("history"), theirs.env_method("history"), strict=True):
        require_equal(got, expected)


def test_a_policys_floats_reach_multi_binary_envs(any_engine: Any, opened: Any) -> None:
    """Stable-Baselines3's Bernoulli distribution gives floats."""
    makers = makers_of(action_space=spaces.MultiBinary(2))
    actions = np.array([[0, 1], [1, 1], [1, 0]], np.float32)
    ours, theirs = opened(any_engine(makers)), opened(DummyVecEnv(makers))
    for env in (ours, theirs):
        env.seed(1)
        env.reset()
        env.step(actions)
    got = [np.asarray(history[1]) for history in ours.env_method("history")]
    np.testing.assert_array_equal(got, [history[1] for history in theirs.env_method("history")])


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Acrobot-v1"])
def test_envs_of_gymnasium_in_monitors_give_what_subproc_vec_env_gives(name: str, opened: Any) -> None:
    seed = new_seed()
    kwargs = {"n_envs": NUM_ENVS, "seed": seed, "env_kwargs": {"max_episode_steps": 15}}
    ours = opened(make_vec_env(name, vec_env_cls=VecEnv, **kwargs))
    theirs = opened(make_vec_env(name, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"}, **kwargs))
    reward_dtype = np.float64 if name == "FrozenLake-v1" else None  # integers, which gymbridge hands out as floats
    assert compare(ours, theirs, 40, seed=seed, reward_dtype=reward_dtype) >= 2 * NUM_ENVS


def test_a_seed_and_options_are_used_once(engine: Any, opened: Any) -> None:
    makers = makers_of()
    ours, theirs = opened(engine(makers)), opened(DummyVecEnv(makers))
    for env in (ours, theirs):
        env.seed(5)
        env.set_options([{"level": 1}, {}, {"level": 3}])
        env.reset()
        env.set_options({"all": [1]})
        env.reset()
        env.seed(9)
        env.reset()
        for _ in range(5):
            env.step(np.zeros(NUM_ENVS, np.int64))
    resets = [history[0] for history in ours.env_method("history")]
    assert resets == [history[0] for history in theirs.env_method("history")]
    assert resets[0][:3] == [(5, {"level": 1}), (None, {"all": [1]}), (9, None)]
    assert len(resets[0]) > 3, "no episode ended"


def test_a_batch_takes_seeds_and_one_dict_of_options(opened: Any) -> None:
    env = opened(VecEnv(SerialEnv(NUM_ENVS, makers_of())))
    env.seed(5)
    env.set_options({"level": 1})
    env.reset()
    env.reset()
    assert [history[0] for history in env.env_method("history")] == [
        [(seed, {"level": 1}), (None, None)] for seed in (5, 6, 7)
    ]
    env.set_options([{"level": 1}, {}, {}])
    with pytest.raises(ValueError, match=r"options: got .* expected the same for each env: a SerialEnv"):
        env.reset()


def test_without_a_seed_the_envs_differ(opened: Any) -> None:
    env = opened(VecEnv([functools.partial(gym.make, "CartPole-v1")] * 3))
    assert len(set(env.reset()[:, 0])) == 3
    seeds = env.seed()
    assert seeds == [seeds[0], seeds[0] + 1, seeds[0] + 2]


def test_results_are_the_callers_own(engine: Any, opened: Any) -> None:
    """Neither the next step nor a write into a result changes another result."""
    env = opened(engine(makers_of()))
    env.seed(0)
    first = env.reset()
    kept = [copy.deepcopy(first)]
    given = [first]
    for _ in range(6):
        result = env.step(np.zeros(NUM_ENVS, np.int64))
        given.append(result)
        kept.append(copy.deepcopy(result))
    for own, copied in zip(given, kept, strict=True):
        require_equal(own, copied)


# ---------------------------------------------------------------- the wrappers

WRAPPERS: dict[str, tuple[spaces.Space, Callable[[SB3VecEnv], SB3VecEnv]]] = {
    "VecNormalize": (BOX, lambda env: VecNormalize(env, clip_obs=0.8)),
    "VecNormalize of dicts": (
        OBSERVATION_SPACES["dict"],
        lambda env: VecNormalize(env, norm_obs_keys=["position"]),
    ),
    "VecMonitor": (BOX, VecMonitor),
    "VecFrameStack": (IMAGE, lambda env: VecFrameStack(env, 3)),
    "VecTransposeImage": (IMAGE, VecTransposeImage),
    "VecExtractDictObs": (OBSERVATION_SPACES["dict"], lambda env: VecExtractDictObs(env, "position")),
    "VecCheckNan": (BOX, VecCheckNan),
    "all at once": (IMAGE, lambda env: VecMonitor(VecNormalize(VecTransposeImage(VecFrameStack(env, 2))))),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrappers_give_the_same_over_it(name: str, any_engine: Any, opened: Any) -> None:
    space, wrapper = WRAPPERS[name]
    makers = makers_of(space)
    is_batch = any_engine in BATCHES.values()
    # what they compute with is to have the same precision
    reference = BATCHES["serial batch"](makers) if is_batch else subproc(makers)
    ours, theirs = opened(wrapper(any_engine(makers))), opened(wrapper(reference))
    assert compare(ours, theirs, 12, seed=new_seed(), infos=not is_batch) > 6


def test_vec_video_recorder_records(tmp_path: Any, opened: Any) -> None:
    pytest.importorskip("moviepy")
    makers = makers_of(render_mode="rgb_array")
    env = opened(VecVideoRecorder(VecEnv(makers), str(tmp_path), lambda step: step == 0, video_length=4))
    assert env.frames_per_sec == 7
    env.reset()
    for _ in range(6):
        env.step(np.zeros(NUM_ENVS, np.int64))
    videos = [*tmp_path.glob("*.mp4")]
    assert len(videos) == 1
    assert videos[0].stat().st_size > 0


# ---------------------------------------------------------------- the envs themselves


def test_attributes_and_methods_are_as_with_dummy_vec_env(any_engine: Any, opened: Any) -> None:
    makers = [functools.partial(wrapped, make, PlainWrapper) for make in makers_of()]
    results = []
    for env in (opened(any_engine(makers)), opened(DummyVecEnv(makers))):
        env.seed(1)
        env.reset()
        env.step(np.zeros(NUM_ENVS, np.int64))
        told = [
            env.get_attr("index"),
            env.get_attr("label", indices=1),
            env.get_attr("label", indices=[2, 0, 2]),
            env.get_attr("label", indices=-1),
            env.env_method("add", 1),
            env.env_method("add", 1, other=5, indices=[0, 2]),
            env.env_method("action_masks"),
            env.has_attr("action_masks"),
            env.has_attr("label"),
            env.has_attr("unpicklable"),
            env.has_attr("missing"),
        ]
        env.set_attr("label", "new", indices=[0, 2])
        told.append(env.get_attr("label"))
        env.set_attr("made_up", [1, 2])
        told.append(env.get_attr("made_up"))
        results.append(told)
    require_equal(*results)


def test_an_attribute_is_set_where_sb3_sets_it(engine: Any, opened: Any) -> None:
    """On the outermost wrapper; gymnasium's ``set_wrapper_attr`` reaches the env."""
    makers = [functools.partial(wrapped, make, PlainWrapper) for make in makers_of()]
    for env in (opened(engine(makers)), opened(DummyVecEnv(makers))):
        env.set_attr("index", 10)
        assert env.get_attr("index") == [10] * NUM_ENVS
        assert env.env_method("add", 0) == [0, 1, 2]
        env.env_method("set_wrapper_attr", "label", "new")
        assert env.get_attr("label") == ["new"] * NUM_ENVS


def test_missing_attributes_are_attribute_errors(any_engine: Any, opened: Any) -> None:
    env = opened(any_engine(makers_of()))
    with pytest.raises(AttributeError, match="missing"):
        env.get_attr("missing")
    with pytest.raises(AttributeError, match="missing"):
        env.env_method("missing", indices=0)
    with pytest.raises(IndexError, match="indices: got 3, expected numbers of 3 envs"):
        env.get_attr("label", indices=[0, 3])
    assert env.get_attr("label", indices=[]) == []
    with pytest.raises(TypeError, match="not callable"):
        env.env_method("label")


@pytest.mark.parametrize("name", ["makers", "sync", "serial batch"])
def test_wrappers_of_envs_are_told_by_class_and_base(name: str, opened: Any) -> None:
    plain = makers_of()
    makers: Makers = [
        functools.partial(wrapped, plain[0], Monitor, OuterWrapper),
        functools.partial(wrapped, plain[1], PlainWrapper),
        plain[2],
    ]
    env = opened((ENGINES | BATCHES)[name](makers))
    reference = opened(DummyVecEnv(makers))
    for kind in (Monitor, PlainWrapper, OuterWrapper, gym.Wrapper, gym.wrappers.TimeLimit):
        assert env.env_is_wrapped(kind) == reference.env_is_wrapped(kind), kind
    assert env.env_is_wrapped(PlainWrapper, indices=[2, 1]) == [False, True]
    assert env.env_is_wrapped(PlainWrapper, indices=0) == [True]
    with pytest.raises(TypeError, match="wrapper_class: got 'Monitor', expected a class"):
        env.env_is_wrapped("Monitor")


def test_asking_for_a_wrapper_imports_nothing_in_the_workers(opened: Any) -> None:
    """``evaluate_policy`` asks for a Monitor, whose module imports torch."""
    env = opened(VecEnv([ModulesEnv] * 2))
    assert env.env_is_wrapped(Monitor) == [False, False]
    assert env.env_method("has_module", "torch") == [False, False]
    assert env.env_method("has_module", "gymnasium") == [True, True]


# ---------------------------------------------------------------- rendering


def test_images_are_tiled_as_sb3_does(any_engine: Any, opened: Any) -> None:
    makers = makers_of(render_mode="rgb_array")
    ours, theirs = opened(any_engine(makers)), opened(DummyVecEnv(makers))
    assert ours.render_mode == theirs.render_mode == "rgb_array"
    assert ours.metadata == theirs.metadata
    for env in (ours, theirs):
        env.reset()
        env.step(np.zeros(NUM_ENVS, np.int64))
    require_equal(list(ours.get_images()), list(theirs.get_images()))
    require_equal(ours.render(), theirs.render())
    require_equal(ours.render("rgb_array"), theirs.render("rgb_array"))
    with pytest.warns(UserWarning, match="ansi"):
        assert ours.render("ansi") is None


def test_without_a_render_mode_there_are_no_images(opened: Any) -> None:
    env = opened(VecEnv(SyncVectorEnv(makers_of())))
    with pytest.warns(UserWarning, match="no `render_mode`"):
        assert env.render() is None
    with pytest.warns(UserWarning, match="render_mode is None"):
        assert env.get_images() == [None] * NUM_ENVS


def test_render_modes_that_differ_are_refused() -> None:
    makers = [*makers_of()[:1], *makers_of(render_mode="rgb_array")[1:]]
    with pytest.raises(AssertionError, match="same for all"):
        VecEnv(makers)


# ---------------------------------------------------------------- the two halves of a step, the end, wrong use


def test_halves_of_a_step_out_of_turn_are_named(any_engine: Any) -> None:
    env = any_engine(makers_of())
    env.seed(2)
    env.reset()
    actions = np.zeros(NUM_ENVS, np.int64)
    with pytest.raises(NoAsyncCallError, match="step_wait: no step is under way"):
        env.step_wait()
    env.step_async(actions)
    with pytest.raises(AlreadyPendingCallError, match="step_async: a step is under way"):
        env.step_async(actions)
    with pytest.raises(AlreadyPendingCallError, match="get_attr: a step is under way"):
        env.get_attr("label")
    assert len(env.step_wait()) == 4
    env.step_async(actions)
    env.close()
    env.close()
    for name, call in {
        "reset": env.reset,
        "step_async": lambda: env.step(actions),
        "step_wait": env.step_wait,
        "env_method": lambda: env.env_method("add", 1),
    }.items():
        with pytest.raises(ClosedEnvironmentError, match=f"{name}: the VecEnv is closed"):
            call()


def test_a_reset_drops_the_step_under_way(any_engine: Any, opened: Any) -> None:
    env, other = opened(any_engine(makers_of())), opened(any_engine(makers_of()))
    for each in (env, other):
        each.seed(4)
        each.reset()
    env.step_async(np.zeros(NUM_ENVS, np.int64))
    for each in (env, other):
        each.seed(4)
    require_equal(env.reset(), other.reset())
    with pytest.raises(NoAsyncCallError):
        env.step_wait()
    require_equal(env.step([0, 1, 2])[0], other.step([0, 1, 2])[0])


@pytest.mark.parametrize("name", ENGINES | BATCHES)
def test_actions_that_do_not_fit_are_named_and_step_nobody(name: str, opened: Any) -> None:
    env = opened((ENGINES | BATCHES)[name](makers_of()))
    env.reset()
    for actions in (np.zeros(2, np.int64), np.zeros((NUM_ENVS, 2), np.int64), np.full(NUM_ENVS, 0.5), None):
        with pytest.raises((ValueError, TypeError), match="action"):
            env.step(actions)
    assert env.env_method("history", indices=0)[0][1] == []
    env.step(np.zeros(NUM_ENVS, np.int64))


def test_what_is_no_engine_is_named() -> None:
    for wrong in (3, "CartPole-v1", gym.make("CartPole-v1"), None, gym.make_vec("CartPole-v1", 2)):
        with pytest.raises(TypeError, match=r"engine: got .* expected a list of callables"):
            VecEnv(wrong)
    with pytest.raises(TypeError, match=r"got the options \['num_worker'\], expected some of"):
        VecEnv(makers_of(), num_worker=2)
    with pytest.raises(ValueError, match="context: got 'threads'"):
        VecEnv(makers_of(), start_method="threads")
    with pytest.raises(ValueError, match="got no maker"):
        VecEnv([])
    with pytest.raises(TypeError, match="the maker of env 1"):
        VecEnv([makers_of()[0], EnvWithEverything(BOX, BOX)])
    envs = SyncVectorEnv(makers_of())
    with pytest.raises(TypeError, match=r"got \['num_workers'\] with a SyncVectorEnv, expected them with makers"):
        VecEnv(envs, num_workers=2)
    envs.copy = False
    with pytest.raises(ValueError, match=r"SyncVectorEnv\(copy=False\)"):
        VecEnv(envs)
    with pytest.raises(ValueError, match=r"SyncVectorEnv\(output='torch'\)"):
        VecEnv(SyncVectorEnv(makers_of(), output="torch"))


def test_one_env_in_two_places_is_refused() -> None:
    env = makers_of()[0]()
    with pytest.raises(ValueError, match="env 1 is env 0 again"):
        VecEnv(SyncVectorEnv([lambda: env, lambda: PlainWrapper(env)]))


def test_envs_whose_spaces_differ_are_named(opened: Any) -> None:
    wider = spaces.Box(-2, 2, (3,), np.float32)
    makers = [*makers_of()[:2], *makers_of(wider)[2:]]
    with pytest.raises(RuntimeError, match="env 2: got the observation space"):
        VecEnv(makers)
    env = opened(VecEnv(makers, observation_mode="different"))
    assert env.observation_space == BOX
    assert env.reset().shape == (NUM_ENVS, 3)


def test_options_of_another_number_are_refused(opened: Any) -> None:
    env = opened(VecEnv(SyncVectorEnv(makers_of())))
    with pytest.raises(ValueError, match=r"options: got 2 dicts, expected 3"):
        env.set_options([{}, {}])


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_are_started_as_asked(method: str, opened: Any) -> None:
    env = opened(VecEnv(makers_of(), method))
    assert env.engine.context == method
    assert env.reset().shape == (NUM_ENVS, 3)


def test_only_an_env_in_this_process_is_copied(opened: Any) -> None:
    env = opened(VecEnv(SyncVectorEnv([functools.partial(gym.make, "CartPole-v1")] * NUM_ENVS)))
    env.seed(3)
    env.reset()
    other = opened(copy.deepcopy(env))
    actions = np.zeros(NUM_ENVS, np.int64)
    for _ in range(15):
        require_equal(env.step(actions)[0], other.step(actions)[0])
    workers = opened(VecEnv(makers_of()))
    for copying in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled: its envs run in worker processes"):
            copying(workers)
    assert workers.reset().shape == (NUM_ENVS, 3)


def test_an_env_in_this_process_may_have_been_in_use(opened: Any) -> None:
    """The vector env's own mode and calls do not disturb it."""
    makers: Makers = [functools.partial(gym.make, "CartPole-v1")] * NUM_ENVS
    envs = SyncVectorEnv(makers, autoreset_mode="NextStep")
    envs.reset(seed=1)
    while not (outcome := envs.step(np.zeros(NUM_ENVS, np.int64)))[2].any() and not outcome[3].any():
        pass
    env = opened(VecEnv(envs))
    with pytest.raises(ResetNeeded, match=r"envs \[.*\] ended their episode: call reset\(\) first"):
        env.step(np.zeros(NUM_ENVS, np.int64))
    assert compare(env, opened(DummyVecEnv(makers)), 60, seed=3, reward_dtype=np.float32) > 2


# ---------------------------------------------------------------- faults


def test_what_an_env_raises_comes_through_and_a_reset_goes_on(engine: Any, opened: Any) -> None:
    makers: Makers = [functools.partial(RaisingEnv, index, raises_at=3 * (index == 1)) for index in range(NUM_ENVS)]
    env = opened(engine(makers))
    reference = opened(DummyVecEnv([functools.partial(RaisingEnv, index) for index in range(NUM_ENVS)]))
    actions = np.zeros(NUM_ENVS, np.int64)
    for each in (env, reference):
        each.seed(1)
        each.reset()
        each.step(actions)
        each.step(actions)
    assert env.last_partial() is None
    with pytest.raises(ZeroDivisionError, match="at step 3") as caught:
        env.step(actions)
    assert caught.value.env_index == 1
    observations, rewards, dones, infos = env.last_partial()
    expected = reference.step(actions)
    for row in (0, 2):
        np.testing.assert_array_equal(observations[row], expected[0][row])
        assert np.float32(rewards[row]) == expected[1][row]
        assert dones[row] == expected[2][row]
        require_equal(infos[row], expected[3][row])
    assert rewards[1] == 0
    with pytest.raises(ResetNeeded, match=r"envs \[1\] raised an error .*: call reset\(\) first"):
        env.step(actions)
    env.reset()
    assert len(env.step(actions)) == 4


def test_a_worker_that_dies_is_named() -> None:
    makers: Makers = [functools.partial(RaisingEnv, index, dies_at=3 * (index == 1)) for index in range(NUM_ENVS)]
    env = VecEnv(makers, num_workers=NUM_ENVS)
    env.reset()
    actions = np.zeros(NUM_ENVS, np.int64)
    env.step(actions)
    env.step(actions)
    with pytest.raises(WorkerDiedError, match="exit code 7"):
        env.step(actions)
    with pytest.raises(WorkerDiedError):
        env.reset()
    env.close()


def test_a_worker_that_dies_is_replaced_if_asked(opened: Any) -> None:
    makers: Makers = [functools.partial(RaisingEnv, index, dies_at=2 * (index == 1)) for index in range(NUM_ENVS)]
    env = opened(VecEnv(makers, num_workers=NUM_ENVS, on_worker_failure="restart"))
    env.seed(0)
    env.reset()
    actions = np.zeros(NUM_ENVS, np.int64)
    before = env.step(actions)[0]
    observations, rewards, dones, infos = env.step(actions)
    assert infos[1]["worker_restarted"]
    assert infos[1]["TimeLimit.truncated"]
    assert dones[1]
    assert rewards[1] == 0
    np.testing.assert_array_equal(infos[1]["terminal_observation"], before[1])
    assert not np.array_equal(observations[1], before[1])
    assert not any("worker_restarted" in infos[row] for row in (0, 2))
    assert len(env.step(actions)) == 4


def test_a_call_from_within_a_call_is_refused(opened: Any) -> None:
    """As one from another thread is: both would write and read the same rows."""
    envs = SyncVectorEnv([functools.partial(gym.make, "CartPole-v1")] * 2)
    env = opened(VecEnv(envs))
    env.reset()
    envs.envs[1].unwrapped.step = lambda action: env.reset()
    with pytest.raises(RuntimeError, match="reset: refused while a call of step_wait is under way"):
        env.step([0, 0])


@pytest.mark.parametrize("closes", [True, False])
def test_workers_end_with_an_env_that_is_closed_or_dropped(closes: bool) -> None:
    env = VecEnv(makers_of(), num_workers=NUM_ENVS)
    env.reset()
    workers = watch(env.env_method("pid"))
    assert len(workers) == NUM_ENVS
    assert os.getpid() not in workers
    if closes:
        env.close()
    del env
    gc.collect()
    assert not still_running(workers)


# ---------------------------------------------------------------- algorithms


@pytest.mark.parametrize(
    ("algorithm", "policy", "observation", "action", "kwargs"),
    [
        (PPO, "MlpPolicy", "box", "discrete", {"n_steps": 8, "batch_size": 12}),
        (PPO, "MlpPolicy", "multi-discrete", "multi-binary", {"n_steps": 8, "batch_size": 12}),
        (PPO, "MultiInputPolicy", "dict of vectors", "multi-discrete", {"n_steps": 8, "batch_size": 12}),
        (A2C, "MlpPolicy", "multi-discrete", "box", {}),
        (DQN, "MlpPolicy", "multi-binary", "discrete", {"learning_starts": 10}),
        (SAC, "MlpPolicy", "box", "box", {"learning_starts": 10}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_algorithms_learn_the_same_over_it(
    algorithm: Any, policy: str, observation: str, action: str, kwargs: dict[str, Any], opened: Any
) -> None:
    """The same weights to the bit as over ``SubprocVecEnv``, which gives rewards of the same precision."""
    seed = new_seed()
    space = {**OBSERVATION_SPACES, "dict of vectors": spaces.Dict(a=BOX, b=spaces.Discrete(3))}[observation]
    makers = makers_of(space, ACTION_SPACES[action])
    weights = []
    for vec_env in (VecEnv, subproc):
        env = opened(VecMonitor(vec_env(makers)))
        model = algorithm(policy, env, seed=seed, device="cpu", policy_kwargs={"net_arch": [8]}, **kwargs)
        model.learn(60)
        assert len(model.ep_info_buffer) > 5
        weights.append({name: value.numpy() for name, value in model.policy.state_dict().items()})
    require_equal(*weights)


def test_stats_are_those_of_the_engine(engine: Callable[[Makers], VecEnv], opened: Any) -> None:
    env = opened(engine([lambda: gym.make("CartPole-v1")] * 4))
    env.stats()
    env.reset()
    for _ in range(5):
        env.step(np.zeros(4, np.int64))
    workers = env.stats(reset=True)["workers"]
    assert sum(worker["steps"] for worker in workers) == 20
    assert min(worker["step_s"] for worker in workers) > 0
    assert sum(worker["steps"] for worker in env.engine.stats()["workers"]) == 0


def test_a_policy_is_evaluated_saved_and_loaded(tmp_path: Any, opened: Any) -> None:
    env = opened(make_vec_env("CartPole-v1", 2, seed=1, vec_env_cls=VecEnv))
    model = PPO("MlpPolicy", env, n_steps=16, batch_size=16, device="cpu").learn(64)
    model.save(tmp_path / "model")
    mean, _ = evaluate_policy(model, env, n_eval_episodes=3)
    assert mean >= 1
    loaded = PPO.load(tmp_path / "model", env=env, device="cpu")
    loaded.learn(32)
    assert loaded.num_timesteps == 32


trainings = pytest.mark.skipif(
    os.environ.get("GYMBRIDGE_TRAININGS") != "1", reason="takes minutes; GYMBRIDGE_TRAININGS=1 runs it"
)


@trainings
@pytest.mark.timeout(1800)
def test_ppo_solves_cartpole(opened: Any) -> None:
    env = opened(make_vec_env("CartPole-v1", 8, seed=0, vec_env_cls=VecEnv))
    model = PPO(
        "MlpPolicy", env, n_steps=32, batch_size=256, gae_lambda=0.8, gamma=0.98, n_epochs=20, ent_coef=0.0,
        learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: 0.2 * left, seed=0, device="cpu",
    )  # fmt: skip
    model.learn(100_000)
    mean, deviation = evaluate_policy(model, env, n_eval_episodes=40)
    print(f"mean return {mean:.1f} +- {deviation:.1f}")
    assert mean > 300


@trainings
@pytest.mark.timeout(1800)
def test_sac_trains_on_pendulum(opened: Any) -> None:
    env = opened(make_vec_env("Pendulum-v1", 4, seed=0, vec_env_cls=VecEnv))
    model = SAC("MlpPolicy", env, learning_rate=1e-3, gradient_steps=4, seed=0, device="cpu")
    before, _ = evaluate_policy(model, env, n_eval_episodes=8)
    model.learn(10_000)
    mean, deviation = evaluate_policy(model, env, n_eval_episodes=20)
    print(f"mean return {before:.1f} before, {mean:.1f} +- {deviation:.1f} after")
    assert mean > -300


# ---------------------------------------------------------------- its docstrings


def test_examples_of_the_module_run() -> None:
    finder = doctest.DocTestFinder()
    runner = doctest.DocTestRunner()
    told: list[str] = []
    for example in finder.find(module, module.__name__):
        runner.run(example, out=told.append)
    assert runner.tries > 0
    assert not runner.failures, "".join(told)


def test_public_methods_are_documented() -> None:
    own = [name for name, value in vars(VecEnv).items() if not name.startswith("_") and callable(value)]
    assert own
    assert not [name for name in own if not vars(VecEnv)[name].__doc__]
