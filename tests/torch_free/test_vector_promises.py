"""What users of ``gymnasium.vector`` rely on, ours and gymnasium's own class side by side; docs/gymnasium.md lists it.

Results of long runs are compared in ``test_vector_against_gymnasium.py`` and ``test_async_vector_env.py``; here is what
they leave out.
"""

from __future__ import annotations

import copy
import doctest
import inspect
import multiprocessing
import pickle
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import cloudpickle
import custom_spaces
import gymnasium as gym
import numpy as np
import pytest
import waiting_envs
from agreement import assert_same, with_final_obs_in_space
from custom_spaces import Unheard
from generated_envs import Plan, PlannedEnv, makers
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode
from vector_classes import travels
from waiting_envs import acting

import gymbridge.vector
from gymbridge.errors import EnvOutputError
from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv, make_vec

pytestmark = pytest.mark.filterwarnings("ignore:.*ERROR")  # as which gymnasium tells what its workers raise

travels(sys.modules[__name__], waiting_envs, custom_spaces)

BOX = spaces.Box(0, 255, (2,), np.uint8)
MODES = tuple(AutoresetMode)
NO_WORKERS = pytest.mark.skipif(sys.platform == "win32", reason="there are no worker processes on Windows")
SYNC = (SyncVectorEnv, gym.vector.SyncVectorEnv)
ASYNC = (AsyncVectorEnv, gym.vector.AsyncVectorEnv)
PAIRS = pytest.mark.parametrize(
    "classes", [pytest.param(SYNC, id="sync"), pytest.param(ASYNC, id="async", marks=NO_WORKERS)]
)


def close(*each: Any) -> None:
    """Also where an env raised, after which gymnasium's workers do not answer."""
    for envs in each:
        envs.close(**({"terminate": True} if isinstance(envs, ASYNC) else {}))


def both(classes: Any, env_fns: Any, **kwargs: Any) -> tuple[Any, Any]:
    ours, theirs = classes
    return ours(env_fns, **kwargs), theirs(env_fns, **kwargs)


def outcome_of(call: Callable[[], Any]) -> Any:
    """What a call returns, or the type that it raises."""
    try:
        return call()
    except Exception as error:
        return type(error)


def told(call: Callable[[], Any]) -> list[str]:
    """What a call warns of, each once; not of a fork, which is how gymnasium starts processes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [text for text in dict.fromkeys(str(each.message) for each in caught) if "use of fork()" not in text]


# ---------------------------------------------------------------- names


def test_all_that_gymnasium_vector_has_is_here() -> None:
    """So that one import is all that a program changes."""
    for name in gym.vector.__all__:
        assert name in gymbridge.vector.__all__
        assert name in dir(gymbridge.vector)
        own = name in ("SyncVectorEnv", "AsyncVectorEnv")
        assert (getattr(gymbridge.vector, name) is getattr(gym.vector, name)) != own, name


@pytest.mark.parametrize("cls", [SyncVectorEnv, AsyncVectorEnv])
def test_a_class_is_a_vector_env_of_gymnasium(cls: type) -> None:
    assert issubclass(cls, gym.vector.VectorEnv)
    assert not issubclass(cls, getattr(gym.vector, cls.__name__))


@pytest.mark.newest_gymnasium
@PAIRS
def test_a_class_takes_the_types_of_observations_and_actions(classes: Any) -> None:
    ours, theirs = (cls[np.ndarray, int] for cls in classes)
    assert ours.__args__ == theirs.__args__ == (np.ndarray, int)
    envs = ours(makers(Plan(BOX), 2))
    assert type(envs) is classes[0]
    envs.close()


@pytest.mark.parametrize("name", ["SyncVectorEnv", "AsyncVectorEnv"])
def test_classes_stand_in_modules_of_the_same_names(name: str) -> None:
    for package in ("gymnasium.vector", "gymbridge.vector"):
        module = {"SyncVectorEnv": "sync_vector_env", "AsyncVectorEnv": "async_vector_env"}[name]
        assert getattr(sys.modules[f"{package}.{module}"], name) is getattr(sys.modules[package], name)


EXAMPLES: dict[str, Any] = {
    "VectorEnv": gym.vector.VectorEnv,
    "VectorEnv.reset": gym.vector.VectorEnv.reset,
    "VectorEnv.step": gym.vector.VectorEnv.step,
    "SyncVectorEnv": gym.vector.SyncVectorEnv,
    "AsyncVectorEnv": gym.vector.AsyncVectorEnv,
    "FilterObservation": gym.wrappers.vector.FilterObservation,
    "RecordEpisodeStatistics": gym.wrappers.vector.RecordEpisodeStatistics,
}


def failures_of(text: str) -> str:
    """What the examples in a docstring print instead of what they say."""
    test = doctest.DocTestParser().get_doctest(text, {"gymbridge": gymbridge}, "example", None, 0)
    printed: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert runner.run(test, out=printed.append).attempted
    return "".join(printed)


@NO_WORKERS
@pytest.mark.newest_gymnasium
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_gymnasiums_documentation_print_what_they_say(name: str) -> None:
    """Of those that need no further package."""
    text = inspect.getdoc(EXAMPLES[name]) or ""
    changed = text.replace("gym.vector.", "gymbridge.vector.").replace("gym.make_vec(", "gymbridge.vector.make_vec(")
    assert changed != text
    if failures_of(text):
        pytest.skip("with these versions gymnasium's own example prints something else")
    assert not failures_of(changed)


# ---------------------------------------------------------------- what an object is


@PAIRS
def test_a_name_of_its_own_for_a_subclass(classes: Any) -> None:
    texts = []
    for cls in classes:
        mine = type("Mine", (cls,), {})(makers(Plan(BOX), 3))
        texts.append((repr(mine), str(mine)))
        mine.spec = gym.spec("CartPole-v1")
        texts[-1] += (repr(mine), str(mine))
        mine.close()
    assert texts[0] == texts[1] == (*["Mine(num_envs=3)"] * 2, *["Mine(CartPole-v1, num_envs=3)"] * 2)


HALVES = [f"{name}_{half}" for name in ("reset", "step", "call") for half in ("async", "wait")]


def heard(cls: Any, names: list[str], log: list[Any]) -> Any:
    """A subclass that writes down which of its methods are called."""

    def method_of(name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            log.append(name)
            return getattr(cls, name)(self, *args, **kwargs)

        return method

    return type("Heard", (cls,), {name: method_of(name) for name in names})


@pytest.mark.parametrize(
    "names",
    [*([name] for name in HALVES), HALVES, ["step", "step_async"], ["reset", "call", "call_wait"]],
    ids="-".join,
)
@NO_WORKERS
def test_a_subclass_may_change_one_half_of_a_call(names: list[str]) -> None:
    """gymnasium's whole calls are made of the two halves, so a subclass's half is heard of all of them."""
    logs = []
    for cls in ASYNC:
        log: list[Any] = []
        envs = heard(heard(cls, names, log), ["close"], log)(makers(Plan(BOX), 2, render_mode="ansi"))
        envs.reset(seed=0)
        log.append(envs.step([0, 1])[1].tolist())
        log.append(envs.call("add", 2, twice=True))
        log.append(envs.get_attr("label"))
        log.append(envs.render())
        envs.close()
        logs.append(log)
    assert logs[0] == logs[1]
    assert {entry for entry in logs[0] if isinstance(entry, str)} == {*names, "close"}


@PAIRS
def test_what_can_be_set_and_what_cannot(classes: Any) -> None:
    for envs in both(classes, makers(Plan(BOX), 2)):
        for name in ("spec", "metadata", "render_mode", "single_observation_space", "observation_space", "closed"):
            value = getattr(envs, name)
            setattr(envs, name, value)
            assert getattr(envs, name) is value
        for target in (envs, gym.vector.VectorWrapper(envs)):
            with pytest.raises(AttributeError):
                target.np_random = np.random.default_rng(0)
            with pytest.raises(AttributeError):
                target.np_random_seed = 0
        envs.close()


@PAIRS
def test_copy_may_be_set_later(classes: Any) -> None:
    ours, theirs = both(classes, makers(Plan(BOX), 2))
    handed_out = []
    for envs in (ours, theirs):
        kept = [envs.reset(seed=0)[0]]
        for value in (False, False, True, True, False):
            envs.copy = value
            assert envs.copy is value
            kept.append(envs.step([0, 1])[0])
        handed_out.append((copy.deepcopy(kept), [[one is other for other in kept] for one in kept]))
    assert_same(*handed_out)
    assert handed_out[0][1][1] == [False, True, True, False, False, True]
    close(ours, theirs)
    ours, theirs = both(classes, makers(Plan(BOX), 2))
    close(ours, theirs)
    for envs in (ours, theirs):
        envs.copy = False
        assert envs.copy is False


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_the_autoreset_mode_may_be_set_later(mode: AutoresetMode) -> None:
    ours, theirs = both(SYNC, makers(Plan(BOX, lengths=(2, 3)), 2))
    assert_same(ours.reset(seed=0), theirs.reset(seed=0))
    assert_same(ours.step([0, 0]), theirs.step([0, 0]))
    ours.autoreset_mode = theirs.autoreset_mode = mode
    assert ours.autoreset_mode is mode
    assert ours.metadata["autoreset_mode"] is mode
    ended = False
    for _ in range(2 if mode is AutoresetMode.DISABLED else 7):
        if ended and mode is AutoresetMode.DISABLED:
            break
        *their, infos = theirs.step([0, 0])
        our = ours.step([0, 0])
        assert_same(our, (*their, with_final_obs_in_space(infos, BOX)))
        ended = bool((our[2] | our[3]).any())
    with pytest.raises(ValueError, match="autoreset_mode: got 'never'"):
        ours.autoreset_mode = "never"


@NO_WORKERS
def test_the_autoreset_mode_of_workers_may_be_set_later() -> None:
    """gymnasium's takes the value and goes on as before."""
    ours, local = (cls(makers(Plan(BOX, lengths=(1,)), 2)) for cls in (AsyncVectorEnv, SyncVectorEnv))
    for envs in (ours, local):
        envs.reset(seed=0)
        envs.autoreset_mode = AutoresetMode.SAME_STEP
    assert_same(ours.step([0, 0]), local.step([0, 0]))
    assert "final_obs" in ours.step([0, 0])[-1]
    ours.close()


DUPLICATE: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda envs: pickle.loads(cloudpickle.dumps(envs)),
}


@pytest.mark.parametrize("how", DUPLICATE)
@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: mode.value)
def test_a_sync_vector_env_can_be_copied(how: str, copied: bool, mode: AutoresetMode) -> None:
    """In the middle of a run; the copy and the original then go their own ways, each as gymnasium's."""
    space = spaces.Dict(box=BOX, text=spaces.Text(4))
    pair = both(SYNC, makers(Plan(space, lengths=(2, 3)), 3), copy=copied, autoreset_mode=mode)
    for envs in pair:
        envs.mark = ["a user's own"]
        envs.reset(seed=0)
        envs.step([0, 1, 2])
    copies = [DUPLICATE[how](envs) for envs in pair]
    for envs in copies:
        assert type(envs) in SYNC
        assert envs.mark == ["a user's own"]
        assert envs.single_action_space is envs.envs[0].action_space
        assert envs.metadata == pair[0].metadata
    for (ours, theirs), action in ((pair, 0), (copies, 1)):
        for _ in range(7):
            *their, infos = theirs.step([action] * 3)
            infos.pop("final_obs", None)
            *our, our_infos = ours.step([action] * 3)
            our_infos.pop("final_obs", None)
            assert_same((*our, our_infos), (*their, infos))
        assert_same(ours.get_attr("calls"), theirs.get_attr("calls"))
    copies[0].close()
    assert copies[0].get_attr  # closed, and still there
    assert not pair[0].closed
    assert [env.times_closed for env in pair[0].envs] == [0, 0, 0]


class _GivesItsActionAsInfo(gym.Env[Any, Any]):
    """An action of 0 gives no info, one from 8 on ends the episode."""

    observation_space, action_space = BOX, spaces.Discrete(10)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        info: dict[str, Any] = {"action": int(action)} if action else {}
        return np.zeros(2, np.uint8), 0.0, bool(action >= 8), False, info


@pytest.mark.parametrize("how", DUPLICATE)
@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: mode.value)
@pytest.mark.parametrize("following", [[0, 3], [8, 0], [0, 0]], ids=str)
def test_a_copy_shows_no_info_of_the_step_before_it(how: str, mode: AutoresetMode, following: list[int]) -> None:
    """Infos of numbers stay in the block until the next step; what reads them in the copy is new."""
    envs = SyncVectorEnv([_GivesItsActionAsInfo] * 2, autoreset_mode=mode)
    envs.reset()
    assert envs.step([1, 2])[-1]["action"].tolist() == [1, 2]
    again = DUPLICATE[how](envs)
    assert_same(again.step(following), envs.step(following))
    assert_same(again.step([0, 8]), envs.step([0, 8]))


def test_a_copy_of_a_closed_vector_env_is_closed() -> None:
    envs = SyncVectorEnv(makers(Plan(BOX), 2))
    envs.close()
    again = copy.deepcopy(envs)
    assert again.closed
    with pytest.raises(ClosedEnvironmentError):
        again.reset()


@NO_WORKERS
def test_a_vector_env_of_workers_cannot_be_copied() -> None:
    envs = AsyncVectorEnv(makers(Plan(BOX), 2))
    for duplicate in DUPLICATE.values():
        with pytest.raises(TypeError, match="AsyncVectorEnv cannot be copied or pickled"):
            duplicate(envs)
    envs.reset()
    envs.close()


def test_makers_may_come_from_an_iterator() -> None:
    ours, theirs = (cls(iter(makers(Plan(BOX), 3))) for cls in SYNC)  # type: ignore[arg-type]
    assert ours.num_envs == theirs.num_envs == 3
    assert_same(ours.reset(seed=0), theirs.reset(seed=0))


# ---------------------------------------------------------------- reset


@PAIRS
def test_seeds_of_each_kind(classes: Any) -> None:
    ours, theirs = both(classes, makers(Plan(BOX), 3))
    for seed in (3, 0, True, [1, 2, 3], (1, None, 3), range(3), [None] * 3, None, 2**40):
        before = ours.np_random_seed
        for_all = [envs.reset(seed=seed) for envs in (ours, theirs)]
        seeds = ours.np_random_seed, theirs.np_random_seed
        if seed is not None and None not in (seed if isinstance(seed, (list, tuple)) else ()):
            assert_same(*for_all, f"seed {seed!r}")
        if before[0] == seeds[0][0]:
            assert_same(*seeds)
    assert_same(ours.reset(seed=9), theirs.reset(seed=9))
    assert_same(
        [call[1] for calls in ours.get_attr("calls") for call in calls],
        [call[1] for calls in theirs.get_attr("calls") for call in calls],
    )
    close(ours, theirs)


@PAIRS
def test_options_reach_each_env_without_the_mask(classes: Any) -> None:
    ours, theirs = both(classes, makers(Plan(BOX), 3))
    mask = np.array([False, True, True])
    for options in (None, {}, {"level": 3}, {"level": [1]}, {"reset_mask": mask}, {"reset_mask": mask, "level": 4}):
        for envs in (ours, theirs):
            envs.reset(seed=1, options=copy.copy(options))
    expected = [None, {}, {"level": 3}, {"level": [1]}, {}, {"level": 4}]
    assert [call[2] for call in ours.get_attr("calls")[1]] == expected
    assert_same(ours.get_attr("calls"), theirs.get_attr("calls"))
    close(ours, theirs)


# ---------------------------------------------------------------- actions

PAIR_OF_ACTIONS = spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (2,), np.float32))
TWO = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])
ACTIONS: dict[str, tuple[spaces.Space, Any]] = {
    "a list of ints": (spaces.Discrete(3), [0, 1]),
    "a tuple of ints": (spaces.Discrete(3), (0, 1)),
    "a range": (spaces.Discrete(3), range(2)),
    "an array": (spaces.Discrete(3), np.array([0, 1])),
    "an array of another dtype": (spaces.Discrete(3), np.array([0, 1], np.int8)),
    "a list of numpy integers": (spaces.Discrete(3), [np.int64(0), np.int32(1)]),
    "a list of arrays without dimensions": (spaces.Discrete(3), [np.array(0), np.array(1)]),
    "bools": (spaces.Discrete(3), [True, False]),
    "ints outside the space": (spaces.Discrete(3), [7, -1]),
    "tuples for a MultiDiscrete": (spaces.MultiDiscrete([2, 3]), ((0, 1), (1, 2))),
    "lists for a MultiDiscrete": (spaces.MultiDiscrete([2, 3]), [[0, 1], [1, 2]]),
    "an array for a MultiDiscrete of int8": (spaces.MultiDiscrete([2, 3], dtype=np.int8), np.array([[0, 1], [1, 2]])),
    "lists for a Box": (spaces.Box(-1, 1, (2,)), [[0.5, 1], [1, 0]]),
    "a list of arrays for a Box": (spaces.Box(-1, 1, (2,)), [np.zeros(2, np.float32), np.ones(2)]),
    "float64 for a Box of float32": (spaces.Box(-1, 1, (2,)), np.array([[0.1, 1], [1, 0]])),
    "ints for a Box": (spaces.Box(-1, 1, (2,)), np.array([[0, 1], [1, 0]])),
    "values outside a Box": (spaces.Box(-1, 1, (2,)), np.array([[9, 1], [1, np.nan]], np.float32)),
    "an array in Fortran's order": (spaces.Box(-1, 1, (2, 3)), np.asfortranarray(np.ones((2, 2, 3), np.float32))),
    "bools for a MultiBinary": (spaces.MultiBinary(2), np.array([[True, False]] * 2)),
    "lists for a MultiBinary": (spaces.MultiBinary(2), [[1, 0], [0, 1]]),
    "a dict with more than it needs": (PAIR_OF_ACTIONS, {"b": np.zeros((2, 2)), "a": [0, 1], "c": 3}),
    "a list for a Tuple": (TWO, [[0, 1], [1, 1]]),
    "an array for a Tuple": (TWO, np.array([[0, 1], [1, 1]])),
    "strings": (spaces.Text(3), ["a", "b"]),
    "sequences": (spaces.Sequence(spaces.Discrete(3)), [(1,), (2, 0)]),
}


@pytest.mark.parametrize("name", ACTIONS)
@PAIRS
def test_actions_of_each_form_reach_the_envs_as_they_are(classes: Any, name: str) -> None:
    """Of the same type and dtype: a list's row is a list, a float64 is not cast."""
    space, actions = ACTIONS[name]
    ours, theirs = both(classes, makers(Plan(BOX, space), 2))
    for envs in (ours, theirs):
        envs.reset(seed=0)
        envs.step(copy.deepcopy(actions))
    assert_same(ours.get_attr("calls"), theirs.get_attr("calls"))
    close(ours, theirs)


@PAIRS
def test_actions_may_come_from_an_iterator(classes: Any) -> None:
    ours, theirs = both(classes, makers(Plan(BOX), 2))
    for envs in (ours, theirs):
        envs.reset(seed=0)
        envs.step(iter([2, 1]))
    assert_same(ours.get_attr("calls"), theirs.get_attr("calls"))
    close(ours, theirs)


# ---------------------------------------------------------------- what envs give

ONES = np.ones(2, np.float32)
REAL = spaces.Box(-10, 10, (2,), np.float32)
GROUP = spaces.Dict(a=REAL, b=spaces.Discrete(5))
GIVEN: dict[str, tuple[spaces.Space, Any, Any, Any, dict[Any, Any]]] = {
    "a list": (REAL, [1.0, 2.0], 1.0, False, {}),
    "float64 for float32": (REAL, np.array([0.1, 0.2]), 1.0, False, {}),
    "an array with gaps": (REAL, np.arange(8, dtype=np.float32)[::4], 1.0, False, {}),
    "a masked array": (REAL, ONES.view(np.ma.MaskedArray), 1.0, False, {}),
    "values outside the space": (REAL, np.array([np.nan, 99], np.float32), 1.0, False, {}),
    "an ordered dict": (GROUP, OrderedDict([("b", 2), ("a", ONES)]), 1.0, False, {}),
    "a dict with more than its space has": (GROUP, {"a": ONES, "b": np.int64(2), "c": 1}, 1.0, False, {}),
    "a list for a Tuple": (spaces.Tuple([REAL, spaces.Discrete(5)]), [ONES, 2], 1.0, False, {}),
    "bools for a MultiBinary": (spaces.MultiBinary(2), np.array([True, False]), 1.0, False, {}),
    "a list for a MultiBinary": (spaces.MultiBinary(2), [1, 0], 1.0, False, {}),
    "a list for a MultiDiscrete": (spaces.MultiDiscrete([3, 4]), [1, 2], 1.0, False, {}),
    "an array without dimensions for a Discrete": (spaces.Discrete(5), np.array(3), 1.0, False, {}),
    "int32 for a Discrete": (spaces.Discrete(5), np.int32(3), 1.0, False, {}),
    "a bool for a Discrete": (spaces.Discrete(5), True, 1.0, False, {}),
    "a float for a Box without dimensions": (spaces.Box(-1, 1, (), np.float32), 0.25, 1.0, False, {}),
    "an int as reward": (REAL, ONES, 3, False, {}),
    "a bool as reward": (REAL, ONES, True, False, {}),
    "a float32 as reward": (REAL, ONES, np.float32(0.1), False, {}),
    "a fraction as reward": (REAL, ONES, Fraction(1, 3), False, {}),
    "an array without dimensions as reward": (REAL, ONES, np.array(1.5), False, {}),
    "an int as flag": (REAL, ONES, 1.0, 1, {}),
    "a numpy bool as flag": (REAL, ONES, 1.0, np.True_, {}),
    "infos of each kind": (REAL, ONES, 1.0, False, {"a": (1, 2), "b": None, "c": np.float32(2), "d": "x", "e": [1]}),
    "nested infos": (REAL, ONES, 1.0, False, {"a": {}, "b": {"c": {"d": 1.5}, "e": np.zeros((2, 2), bool)}}),
    "infos under keys that are no strings": (REAL, ONES, 1.0, False, {1: 2, (1, 2): 3}),
}


class Giving(gym.Env):
    """Gives one and the same in each step."""

    action_space = spaces.Discrete(2)

    def __init__(self, given: Any):
        self.observation_space, self.observation, *self.rest = given

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation, dict(self.rest[-1])

    def step(self, action: Any) -> Any:
        reward, flag, info = self.rest
        return self.observation, reward, flag, flag, dict(info)


@pytest.mark.parametrize("name", GIVEN)
@PAIRS
def test_what_envs_give_in_each_form(classes: Any, name: str) -> None:
    given = GIVEN[name]
    ours, theirs = both(classes, [lambda: Giving(given)] * 2)
    assert_same(ours.reset(seed=0), theirs.reset(seed=0))
    for _ in range(2):
        assert_same(ours.step([0, 1]), theirs.step([0, 1]))
    close(ours, theirs)


@pytest.mark.parametrize("cls", [SyncVectorEnv, pytest.param(AsyncVectorEnv, marks=NO_WORKERS)])
@pytest.mark.filterwarnings("ignore:Conversion of an array")
def test_rewards_have_one_dimension(cls: Any) -> None:
    """Also where an env gives an array of one number: versions of numpy differ in whether that is a number."""
    envs = cls([lambda: Giving((REAL, ONES, np.array([1.5]), False, {}))] * 2)
    envs.reset(seed=0)
    result = outcome_of(lambda: envs.step([0, 1]))
    if result is not EnvOutputError:
        assert result[1].tolist() == [1.5, 1.5]
    envs.close()


# ---------------------------------------------------------------- the envs' attributes and methods


class Drawn(PlannedEnv):
    """Renders in each of gymnasium's ways."""

    metadata = {"render_modes": ["ansi", "rgb_array", "human"], "render_fps": 7}  # noqa: RUF012 - as gymnasium does

    def render(self) -> Any:
        if self.render_mode == "rgb_array":
            return np.full((2, 2, 3), 10 * self.index + self._step, np.uint8)
        return f"{self.index}: step {self._step}" if self.render_mode == "ansi" else None


def drawn(mode: str | None, index: int) -> gym.Env:
    if mode == "rgb_array_list":
        return gym.wrappers.RenderCollection(Drawn(Plan(BOX), index, "rgb_array"))
    return Drawn(Plan(BOX), index, mode)


@pytest.mark.parametrize("mode", [None, "ansi", "rgb_array", "rgb_array_list", "human"])
@PAIRS
def test_each_render_mode(classes: Any, mode: str | None) -> None:
    ours, theirs = both(classes, [lambda index=index: drawn(mode, index) for index in range(2)])
    assert ours.render_mode == theirs.render_mode == mode
    for envs in (ours, theirs):
        envs.reset(seed=0)
        envs.step([0, 0])
    frames = ours.render()
    assert_same(frames, theirs.render())
    assert len(frames) == 2
    assert (frames[1] is None) == (mode in (None, "human"))
    if mode == "rgb_array_list":
        assert [len(frame) for frame in frames] == [2, 2]
        assert_same(ours.render(), theirs.render())
    close(ours, theirs)


@PAIRS
def test_calls_and_attributes_go_through_wrappers(classes: Any) -> None:
    fns = [lambda: gym.make("CartPole-v1", max_episode_steps=9)] * 2
    ours, theirs = both(classes, fns)
    for call in (
        lambda envs: envs.reset(seed=0) and None,
        lambda envs: envs.get_attr("gravity"),
        lambda envs: envs.call("get_wrapper_attr", "gravity"),
        lambda envs: envs.call("has_wrapper_attr", "gravity"),
        lambda envs: envs.call("has_wrapper_attr", "nothing"),
        lambda envs: envs.call("set_wrapper_attr", "gravity", 3.0),
        lambda envs: envs.get_attr("gravity"),
        lambda envs: envs.set_attr("gravity", [1.0, 2.0]),
        lambda envs: envs.get_attr("gravity"),
        lambda envs: envs.set_attr("user_made", {"a": 1}),
        lambda envs: envs.get_attr("user_made"),
        lambda envs: [spec.id for spec in envs.get_attr("spec")],
        lambda envs: [str(env) for env in envs.get_attr("unwrapped")],
        lambda envs: envs.get_attr("_max_episode_steps"),
        lambda envs: envs.call("render_mode"),
        lambda envs: envs.np_random_seed,
        lambda envs: [random.random() for random in envs.np_random],
        lambda envs: [random.random() for random in envs.get_attr("np_random")],
    ):
        for_both = [call(envs) for envs in (ours, theirs)]
        if isinstance(ours, SyncVectorEnv) or for_both[0] is None or not isinstance(for_both[0], list):
            assert_same(*for_both)
        else:
            assert for_both[0] == for_both[1]
    close(ours, theirs)


def test_one_value_for_all_is_one_object() -> None:
    for envs in both(SYNC, makers(Plan(BOX), 2)):
        value: dict[str, int] = {}
        envs.set_attr("label", value)
        assert all(one is value for one in envs.get_attr("label"))
        assert all(env.label is value for env in envs.envs)


def test_a_sync_vector_envs_envs_are_at_hand() -> None:
    """And share their spaces with it, as gymnasium's do."""
    for envs in both(SYNC, makers(Plan(BOX), 2)):
        assert isinstance(envs.envs, list)
        assert [type(env) for env in envs.envs] == [PlannedEnv, PlannedEnv]
        assert envs.single_observation_space is envs.envs[0].observation_space
        assert envs.single_action_space is envs.envs[0].action_space
        envs.call("reset", seed=5)
        assert envs.np_random_seed == (5, 5)
        envs.close()
        assert len(envs.envs) == 2
        assert repr(envs) == "SyncVectorEnv(num_envs=2)"


# ---------------------------------------------------------------- wrappers


class Doubled(gym.vector.VectorRewardWrapper):
    def rewards(self, rewards: Any) -> Any:
        return 2 * rewards


class Turned(gym.vector.VectorActionWrapper):
    def actions(self, actions: Any) -> Any:
        return 1 - np.asarray(actions)


class Halved(gym.vector.VectorObservationWrapper):
    def observations(self, observations: Any) -> Any:
        return observations // 2


@PAIRS
def test_a_users_wrappers_work_over_it(classes: Any) -> None:
    pair = both(classes, makers(Plan(BOX, lengths=(3,)), 2, render_mode="ansi"))
    wrapped = [Halved(Turned(Doubled(gym.vector.VectorWrapper(envs)))) for envs in pair]
    ours, theirs = wrapped
    assert repr(ours) == repr(theirs)
    for name in ("num_envs", "render_mode", "spec", "metadata", "closed", "observation_space", "single_action_space"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for envs, base in zip(wrapped, pair, strict=True):
        assert envs.unwrapped is base
    assert_same(ours.reset(seed=4), theirs.reset(seed=4))
    for actions in ([0, 1], [1, 0], [0, 0], [1, 1], [1, 1]):
        assert_same(ours.step(actions), theirs.step(actions))
    assert_same(ours.render(), theirs.render())
    assert_same(ours.np_random_seed, theirs.np_random_seed)
    for envs, base in zip(wrapped, pair, strict=True):
        envs.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "mine": 1}
        assert envs.metadata["mine"] == 1
        assert "mine" not in base.metadata
        envs.observation_space = spaces.Discrete(2)
        assert envs.observation_space == spaces.Discrete(2)
        assert base.observation_space != spaces.Discrete(2)
        envs.close()
        assert envs.closed
        assert base.closed


@PAIRS
def test_observation_wrappers_look_at_the_autoreset_mode(classes: Any) -> None:
    errors = []
    for envs in both(classes, makers(Plan(BOX), 2), autoreset_mode="SameStep"):
        with pytest.raises((ValueError, AssertionError)) as raised:  # the latter before gymnasium 1.4
            Halved(envs)
        errors.append((raised.type, str(raised.value)))
        envs.close()
    assert errors[0] == errors[1]


# ---------------------------------------------------------------- errors, and the words of them


CALLS: dict[str, Callable[[Any], Any]] = {
    "reset": lambda envs: envs.reset(),
    "step": lambda envs: envs.step([0, 1]),
    "call": lambda envs: envs.call("add", 1),
    "get_attr": lambda envs: envs.get_attr("label"),
    "set_attr": lambda envs: envs.set_attr("label", "x"),
    "render": lambda envs: envs.render(),
    "reset_async": lambda envs: envs.reset_async(),
    "step_async": lambda envs: envs.step_async([0, 1]),
    "call_async": lambda envs: envs.call_async("add", 1),
    "reset_wait": lambda envs: envs.reset_wait(),
    "step_wait": lambda envs: envs.step_wait(),
    "call_wait": lambda envs: envs.call_wait(),
}


@pytest.fixture
def pair_of_async() -> Iterator[tuple[Any, Any]]:
    """Ours and gymnasium's, two envs each, reset."""
    if sys.platform == "win32":
        pytest.skip("there are no worker processes on Windows")
    pair = both(ASYNC, makers(Plan(BOX), 2))
    for envs in pair:
        envs.reset(seed=0)
    yield pair
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        close(*pair)


@pytest.mark.newest_gymnasium
@pytest.mark.parametrize("pending", ["reset", "step", "call"])
def test_the_words_of_a_call_that_comes_too_early(pair_of_async: Any, pending: str) -> None:
    for envs in pair_of_async:
        CALLS[f"{pending}_async"](envs)
    for name, call in CALLS.items():
        if name == f"{pending}_wait":
            continue
        texts = []
        for envs in pair_of_async:
            with pytest.raises((AlreadyPendingCallError, NoAsyncCallError)) as raised:
                call(envs)
            texts.append((raised.type, str(raised.value).rstrip("."), raised.value.name))
        assert texts[0] == texts[1], name
    for envs in pair_of_async:
        CALLS[f"{pending}_wait"](envs)


@pytest.mark.parametrize("name", CALLS)
def test_the_words_of_a_call_after_close(pair_of_async: Any, name: str) -> None:
    texts = []
    for envs in pair_of_async:
        envs.close()
        with pytest.raises(ClosedEnvironmentError) as raised:
            CALLS[name](envs)
        texts.append(str(raised.value))
    assert texts[0].endswith(texts[1])


@pytest.mark.parametrize("name", ["reset", "step", "close"])
def test_the_words_of_what_call_does_not_reach(pair_of_async: Any, name: str) -> None:
    texts = []
    for envs in pair_of_async:
        with pytest.raises(ValueError, match="Trying to call function") as raised:
            envs.call(name)
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("pending", ["reset", "step", "call"])
def test_the_words_of_a_wait_that_takes_too_long(pending: str, tmp_path: Any) -> None:
    if sys.platform == "win32":
        pytest.skip("there are no worker processes on Windows")
    texts = []
    for envs in both(ASYNC, acting(2, tmp_path)):
        envs.reset(seed=0)
        envs.set_attr("act", {"reset": "wait in reset", "step": "wait", "call": ""}[pending])
        envs.call_async("wait") if pending == "call" else CALLS[f"{pending}_async"](envs)
        with pytest.raises(multiprocessing.TimeoutError) as raised:
            getattr(envs, f"{pending}_wait")(timeout=0)
        texts.append(str(raised.value))
        close(envs)
    assert texts[0].startswith(texts[1])


@pytest.mark.parametrize("pending", ["reset", "step", "call"])
def test_close_warns_of_a_pending_call(pair_of_async: Any, pending: str) -> None:
    warned = []
    for envs in pair_of_async:
        CALLS[f"{pending}_async"](envs)
        warned.append(told(envs.close))
        assert envs.closed
        assert told(envs.close) == []
    assert warned[0] == warned[1]
    assert len(warned[0]) == 1
    assert f"Calling `close` while waiting for a pending call to `{pending}` to complete." in warned[0][0]


@pytest.mark.parametrize("kwargs", [{}, {"timeout": None}, {"timeout": 20}, {"terminate": True}, {"terminate": False}])
def test_close_takes_its_arguments(pair_of_async: Any, kwargs: dict[str, Any]) -> None:
    assert [told(lambda envs=envs: envs.close(**kwargs)) for envs in pair_of_async] == [[], []]
    assert [envs.closed for envs in pair_of_async] == [True, True]


@pytest.mark.parametrize("kwargs", [{}, {"timeout": 1}, {"terminate": True}, {"whatever": 1}])
def test_close_of_a_sync_vector_env_takes_any_argument(kwargs: dict[str, Any]) -> None:
    for envs in both(SYNC, makers(Plan(BOX), 2)):
        assert told(lambda envs=envs: envs.close(**kwargs)) == []
        assert envs.closed
        assert [env.times_closed for env in envs.envs] == [1, 1]


@NO_WORKERS
@pytest.mark.newest_gymnasium
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", np.int64(0), np.float64(2)], ids=repr)
def test_a_max_concurrency_that_is_none(value: Any) -> None:
    for cls in ASYNC:
        with pytest.raises(ValueError, match="max_concurrency"):
            cls(makers(Plan(BOX), 2), max_concurrency=value)


@NO_WORKERS
@pytest.mark.newest_gymnasium
@pytest.mark.parametrize("value", [None, 1, 2, 7, np.int64(2)], ids=repr)
def test_max_concurrency_changes_no_result(value: Any) -> None:
    ours, theirs = both(ASYNC, makers(Plan(BOX, lengths=(2,)), 3), max_concurrency=value)
    assert ours.max_concurrency is theirs.max_concurrency is value
    assert_same(ours.reset(seed=0), theirs.reset(seed=0))
    for _ in range(4):
        assert_same(ours.step([0, 1, 2]), theirs.step([0, 1, 2]))
    assert_same(ours.call("add", 2), theirs.call("add", 2))
    close(ours, theirs)


# ---------------------------------------------------------------- spaces that differ


class Ragged(gym.Env):
    """Its observations are samples of its own space."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space):
        self.observation_space = copy.deepcopy(space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1000)))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, bool(self.np_random.random() < 0.3), False, {}


DIFFERING: dict[str, tuple[spaces.Space, spaces.Space]] = {
    "box": (spaces.Box(-1, 1, (2,)), spaces.Box(-3, 5, (2,))),
    "box of other dtype": (spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,), np.float64)),
    "box of other shape": (spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (3,))),
    "discrete": (spaces.Discrete(2), spaces.Discrete(5, start=-2)),
    "multi_discrete": (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([4, 1])),
    "multi_discrete of other shape": (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([4])),
    "multi_binary": (spaces.MultiBinary(3), spaces.MultiBinary(3)),
    "multi_binary of other shape": (spaces.MultiBinary(3), spaces.MultiBinary(2)),
    "dict": (
        spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3)),
        spaces.Dict(a=spaces.Box(-2, 1, (2,)), b=spaces.Discrete(2)),
    ),
    "dict of other keys": (spaces.Dict(a=spaces.Discrete(3)), spaces.Dict(b=spaces.Discrete(3))),
    "tuple": (
        spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3)]),
        spaces.Tuple([spaces.Box(-1, 2, (2,)), spaces.Discrete(2)]),
    ),
    "text": (spaces.Text(3), spaces.Text(5)),
    "sequence": (spaces.Sequence(spaces.Discrete(3)), spaces.Sequence(spaces.Discrete(2))),
    "graph": (
        spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(2)),
        spaces.Graph(spaces.Box(-1, 3, (2,)), spaces.Discrete(3)),
    ),
    "one_of": (
        spaces.OneOf([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]),
        spaces.OneOf([spaces.Discrete(2), spaces.Box(-1, 2, (2,))]),
    ),
    "of other kinds": (spaces.Discrete(3), spaces.Box(-1, 1, (2,))),
    "custom": (Unheard(), Unheard()),
}


@pytest.mark.newest_gymnasium
@pytest.mark.parametrize("how", ["different", "pair", "same"])
@pytest.mark.parametrize("name", DIFFERING)
@pytest.mark.parametrize("cls", [SyncVectorEnv, pytest.param(AsyncVectorEnv, marks=NO_WORKERS)])
def test_observation_modes_over_each_kind_of_space(cls: Any, name: str, how: str) -> None:
    """The spaces, the observations, or the type of the error are those of gymnasium's ``SyncVectorEnv``."""
    first, second = DIFFERING[name]
    fns = [lambda: Ragged(first), lambda: Ragged(second), lambda: Ragged(first)]
    mode: Any = (gym.vector.utils.batch_space(first, 3), first) if how == "pair" else how
    theirs: Any = outcome_of(lambda: gym.vector.SyncVectorEnv(fns, observation_mode=mode))
    ours: Any = outcome_of(lambda: cls(fns, observation_mode=mode))
    if isinstance(theirs, type):
        assert ours is theirs
        return
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.observation_space == theirs.observation_space
    assert_same(ours.reset(seed=3), theirs.reset(seed=3))
    for step in range(8):
        assert_same(ours.step([0, 0, 0]), theirs.step([0, 0, 0]), f"step {step}")
    ours.close(), theirs.close()


# ---------------------------------------------------------------- make_vec


def test_make_vec_takes_gymnasiums_arguments() -> None:
    ours, theirs = (inspect.signature(make).parameters.values() for make in (make_vec, gym.make_vec))
    assert [(one.name, one.kind) for one in ours] == [(one.name, one.kind) for one in theirs]
    assert [one.default for one in ours if one.name != "vectorization_mode"] == [
        one.default for one in theirs if one.name != "vectorization_mode"
    ]


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=NO_WORKERS), "vector_entry_point"])
@pytest.mark.parametrize("id", ["CartPole-v0", "CartPole"])
def test_make_vec_warns_of_an_old_id_as_gymnasium_does(id: str, mode: str) -> None:
    def making(make: Any) -> Callable[[], None]:
        return lambda: make(id, 2, vectorization_mode=mode).close()

    ours, theirs = told(making(make_vec)), told(making(gym.make_vec))
    assert set(theirs) <= set(ours)
    assert set(ours) == set(theirs)
    assert any("CartPole" in text for text in ours)
