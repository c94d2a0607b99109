"""What our vector envs refuse, and the calls that reach the envs beside ``reset`` and ``step``."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from agreement import assert_same
from generated_envs import Plan, PlannedEnv, makers
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode
from vector_classes import BOTH, CLASSES, travels

from gymbridge.errors import EnvOutputError
from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv

travels(sys.modules[__name__])

BOX = spaces.Box(0, 255, (2,), np.uint8)
LONG = spaces.Box(0, 255, (3,), np.uint8)


def envs_acting_in(cls: Any, space: spaces.Space, num_envs: int = 2) -> Any:
    envs = cls(makers(Plan(BOX, space), num_envs))
    envs.reset(seed=0)
    return envs


PAIR = spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2,), np.float32))


@pytest.mark.parametrize(
    ("space", "actions", "error", "message"),
    [
        (spaces.Discrete(3), [0], ValueError, "action: got 1 actions, expected 2, one for each env"),
        (spaces.Discrete(3), [0, 1, 2], ValueError, "action: got 3 actions, expected 2, one for each env"),
        (spaces.Discrete(3), [], ValueError, "action: got 0 actions, expected 2"),
        (spaces.Discrete(3), 1, TypeError, "action: got 1 of type int, expected one action for each env"),
        (spaces.Discrete(3), None, TypeError, "action: got None of type NoneType"),
        (spaces.Discrete(3), "01", TypeError, "action: got '01' of type str"),
        (spaces.Discrete(3), np.int64(1), TypeError, "action: got .* of type int64"),
        (spaces.Discrete(3), np.array(1), TypeError, "action: got .* of type ndarray"),
        (spaces.Discrete(3), np.zeros((2, 1), int), ValueError, r"actions of shape \(1,\), expected \(\) each"),
        (spaces.Discrete(3), [0.0, 1.0], ValueError, "action: got actions of dtype float64, expected int64"),
        (spaces.Discrete(3), [None, 1], ValueError, "action: got actions of dtype object, expected int64"),
        (spaces.Discrete(3), {"a": 1, "b": 2}, TypeError, "action: got {.*} of type dict"),
        (spaces.Box(-1, 1, (2,)), np.zeros((2, 3), np.float32), ValueError, r"shape \(3,\), expected \(2,\) each"),
        (spaces.Box(-1, 1, (2,)), np.zeros(2, np.float32), ValueError, r"shape \(\), expected \(2,\) each"),
        (spaces.Box(-1, 1, (2,)), [[0.0, 1.0], [1.0]], ValueError, r"of the shapes \[\(2,\), \(1,\)\]"),
        (spaces.Box(-1, 1, (2,)), np.zeros((2, 2), complex), ValueError, "dtype complex128, expected float32"),
        (spaces.Box(-1, 1, (2,)), [["a", "b"]] * 2, ValueError, "dtype <U1, expected float32"),
        (PAIR, {"a": [0, 1]}, KeyError, "action lacks the item 'b': got a dict with keys"),
        (PAIR, [{"a": 0, "b": [0, 0]}] * 2, KeyError, "action lacks the item 'a': got a list of length 2"),
        (PAIR, {"a": [0, 1, 2], "b": np.zeros((2, 2))}, ValueError, "action.a: got 3 actions, expected 2"),
        (PAIR, {"a": [0, 1], "b": np.zeros((2, 3))}, ValueError, r"action.b: got actions of shape \(3,\)"),
        (spaces.Tuple([PAIR]), ([0, 1],), KeyError, r"\"action.0 lacks the item 'a'"),
    ],
    ids=repr,
)
@BOTH
def test_bad_actions_are_refused_before_any_env_is_stepped(
    cls: Any, space: spaces.Space, actions: Any, error: type[Exception], message: str
) -> None:
    envs = envs_acting_in(cls, space)
    before = copy.deepcopy(envs.get_attr("calls"))
    with pytest.raises(error, match=message):
        envs.step(actions)
    assert envs.get_attr("calls") == before
    envs.step(envs.action_space.sample())


OURS_AND_THEIRS = pytest.mark.parametrize(
    "cls",
    [
        *CLASSES,
        pytest.param(gym.vector.SyncVectorEnv, marks=pytest.mark.newest_gymnasium),
        pytest.param(
            gym.vector.AsyncVectorEnv,
            marks=[
                pytest.mark.newest_gymnasium,
                pytest.mark.skipif(sys.platform == "win32", reason="there are no worker processes on Windows"),
            ],
        ),
    ],
)


@OURS_AND_THEIRS
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda envs: envs.step([0]), ValueError),
        (lambda envs: envs.step([0, 1, 2]), ValueError),
        (lambda envs: envs.step(1), TypeError),
        (lambda envs: envs.reset(seed=[1]), ValueError),
        (lambda envs: envs.reset(seed=1.5), TypeError),
        (lambda envs: envs.reset(seed=-1), gym.error.Error),
        (lambda envs: envs.reset(options={"reset_mask": [True, False]}), TypeError),
        (lambda envs: envs.reset(options={"reset_mask": np.array([True])}), ValueError),
        (lambda envs: envs.reset(options={"reset_mask": np.array([1, 0])}), TypeError),
        (lambda envs: envs.reset(options={"reset_mask": np.array([False, False])}), ValueError),
        (lambda envs: envs.set_attr("label", [1]), ValueError),
        (lambda envs: envs.set_attr("label", (1, 2, 3)), ValueError),
        (lambda envs: envs.set_attr("label", ()), ValueError),
        (lambda envs: envs.get_attr("nowhere"), AttributeError),
        (lambda envs: envs.call("nowhere"), AttributeError),
        (lambda envs: envs.call("add"), TypeError),
        (lambda envs: envs.nowhere, AttributeError),
    ],
)
@pytest.mark.filterwarnings("ignore:.*ERROR")  # as which gymnasium tells what its workers raise
def test_errors_are_of_gymnasiums_types(cls: Any, call: Callable[[Any], Any], error: type[Exception]) -> None:
    envs = cls(makers(Plan(BOX), 2))
    envs.reset(seed=0)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whose type is looked at
        call(envs)
    assert type(raised.value) is error
    envs.close()


@OURS_AND_THEIRS
@pytest.mark.parametrize(
    ("spaces_of_two", "kwargs", "error"),
    [
        ((BOX, spaces.Box(0, 9, (2,), np.uint8)), {}, RuntimeError),
        ((BOX, LONG), {"observation_mode": (spaces.Box(0, 9, (2, 2), np.uint8), BOX)}, RuntimeError),
        ((BOX, LONG), {"observation_mode": "different"}, ValueError),
        ((BOX, spaces.Discrete(3)), {"observation_mode": "different"}, TypeError),
        ((BOX, BOX), {"observation_mode": "other"}, ValueError),
        ((BOX, BOX), {"observation_mode": (BOX, 3)}, TypeError),
        ((BOX, BOX), {"observation_mode": (BOX,)}, ValueError),
        ((BOX, BOX), {"autoreset_mode": "other"}, ValueError),
    ],
)
def test_spaces_that_do_not_fit_together(
    cls: Any, spaces_of_two: Any, kwargs: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        cls([lambda space=space: PlannedEnv(Plan(space)) for space in spaces_of_two], **kwargs)


def test_the_env_that_does_not_fit_is_named_and_all_are_closed() -> None:
    made: list[PlannedEnv] = []

    def maker(plan: Plan) -> Callable[[], PlannedEnv]:
        def make() -> PlannedEnv:
            made.append(PlannedEnv(plan))
            return made[-1]

        return make

    with pytest.raises(RuntimeError, match=r"env 1: got the observation space .* as env 0 has it"):
        SyncVectorEnv([maker(Plan(BOX)), maker(Plan(spaces.Discrete(2)))])
    with pytest.raises(RuntimeError, match=r"env 1: got the action space Discrete\(4\), expected Discrete\(3\)"):
        SyncVectorEnv([maker(Plan(BOX)), maker(Plan(BOX, spaces.Discrete(4)))])
    assert [env.times_closed for env in made] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        (
            {"autoreset_mode": "sometimes"},
            ValueError,
            "autoreset_mode: got 'sometimes', expected an AutoresetMode or one of",
        ),
        ({"observation_mode": "unlike"}, ValueError, "observation_mode: got 'unlike'"),
        ({"observation_mode": ["same"]}, ValueError, "observation_mode: got "),
        ({"output": "jax"}, ValueError, "output: got 'jax', expected 'numpy' or 'torch'"),
        ({"device": "cpu"}, ValueError, "device: got 'cpu' with output='numpy'"),
        ({"reward_dtype": np.int64}, TypeError, "reward_dtype: got .*int64.*, expected a floating dtype"),
        ({"worker": None}, TypeError, "worker"),
    ],
)
@BOTH
def test_bad_arguments_are_refused_before_an_env_is_made(
    cls: Any, kwargs: dict[str, Any], error: type[Exception], message: str
) -> None:
    def never() -> gym.Env:
        raise AssertionError("an env was made")

    with pytest.raises(error, match=message):
        cls([never], **kwargs)


@BOTH
def test_no_env_at_all(cls: Any) -> None:
    with pytest.raises(ValueError, match="got no maker of an env"):
        cls([])


def test_a_maker_that_raises_closes_the_envs_made_before() -> None:
    """And its own error is what comes out, even where a ``close`` raises too."""
    made = []

    class Stubborn(PlannedEnv):
        def close(self) -> None:
            super().close()
            raise OSError("cannot close")

    def make() -> gym.Env:
        made.append(Stubborn(Plan(BOX)))
        return made[-1]

    def fail() -> gym.Env:
        raise LookupError("no such game")

    with pytest.raises(LookupError, match="no such game"):
        SyncVectorEnv([make, make, fail, make])
    assert [env.times_closed for env in made] == [1, 1]


@BOTH
def test_a_maker_of_something_else(cls: Any) -> None:
    with pytest.raises(TypeError, match=r"the maker of env 1 gave 3 of type int, expected a gymnasium.Env"):
        cls([*makers(Plan(BOX), 1), lambda: 3])  # type: ignore[list-item, return-value]


@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [
        ([1, 2, 3], ValueError, "seed: got a list of 3, expected 2"),
        ([], ValueError, "seed: got a list of 0, expected 2"),
        ([1, "x"], TypeError, "seed: got 'x' of type str for env 1"),
        ([1.0, 2], TypeError, "seed: got 1.0 of type float for env 0"),
        ("ab", TypeError, "seed: got 'a' of type str for env 0"),
        (1.5, TypeError, "seed: got 1.5 of type float, expected an int"),
        (np.bool_(True), TypeError, "seed: got .* of type bool"),
        (np.array(1.5), TypeError, "seed: got .* of type ndarray"),
        ({1, 2}, TypeError, "seed: got {1, 2} of type set"),
        ([np.bool_(True), 1], TypeError, "seed: got .* of type bool.* for env 0"),
        (-1, gym.error.Error, "seed: got -1, expected 0 or greater"),
        ([0, -2], gym.error.Error, "seed: got -2 for env 1, expected 0 or greater"),
    ],
)
@BOTH
def test_bad_seeds_are_refused_before_any_env_is_reset(
    cls: Any, seed: Any, error: type[Exception], message: str
) -> None:
    envs = cls(makers(Plan(BOX), 2))
    with pytest.raises(error, match=message):
        envs.reset(seed=seed)
    assert envs.get_attr("calls") == ([], [])


@BOTH
def test_numpy_integers_are_seeds(cls: Any) -> None:
    """Also in a list or an array, which gymnasium's envs refuse."""
    envs = cls(makers(Plan(BOX), 2))
    expected = envs.reset(seed=4)
    for seed in (np.int64(4), [np.int32(4), 5], np.array([4, 5]), (4, 5)):
        assert_same(envs.reset(seed=seed), expected)  # type: ignore[arg-type]


@BOTH
def test_a_mask_cannot_leave_out_an_env_that_was_never_reset(cls: Any) -> None:
    envs = cls(makers(Plan(BOX), 3))
    with pytest.raises(ResetNeeded, match=r"leaves out envs \[0, 2\], which have never been reset"):
        envs.reset(options={"reset_mask": np.array([False, True, False])})
    envs.step([0, 0, 0])  # these envs can do without a reset, and have observations then
    envs.reset(options={"reset_mask": np.array([False, True, False])})


@BOTH
def test_an_env_that_was_never_reset_raises_what_it_raises(cls: Any) -> None:
    envs = cls([lambda: gym.make("CartPole-v1")] * 2)
    with pytest.raises(ResetNeeded) as raised:
        envs.step([0, 0])
    assert raised.value.env_index == 0  # type: ignore[attr-defined]


# ---------------------------------------------------------------- close


@pytest.mark.parametrize(
    "call",
    [
        lambda envs: envs.reset(),
        lambda envs: envs.step([0, 0]),
        lambda envs: envs.call("add", 1),
        lambda envs: envs.get_attr("label"),
        lambda envs: envs.set_attr("label", "x"),
        lambda envs: envs.render(),
        lambda envs: envs.np_random,
        lambda envs: envs.np_random_seed,
    ],
)
@BOTH
def test_calls_after_close(cls: Any, call: Callable[[Any], Any]) -> None:
    envs = cls(makers(Plan(BOX), 2))
    envs.reset(seed=0)
    assert envs.closed is False
    envs.close()
    envs.close()
    assert envs.closed is True
    with pytest.raises(ClosedEnvironmentError, match=r"after a call to `close\(\)`"):
        call(envs)


def test_close_closes_each_env_once() -> None:
    envs = SyncVectorEnv(makers(Plan(BOX), 2))
    envs.close()
    envs.close()
    assert [env.times_closed for env in envs.envs] == [1, 1]  # type: ignore[attr-defined]


def test_close_closes_all_where_one_raises() -> None:
    class Stubborn(PlannedEnv):
        def close(self) -> None:
            super().close()
            if self.index == 0:
                raise OSError("cannot close")

    envs = SyncVectorEnv([lambda index=index: Stubborn(Plan(BOX), index) for index in range(3)])  # type: ignore[misc]
    with pytest.raises(OSError, match="cannot close"):
        envs.close()
    envs.close()
    assert [env.times_closed for env in envs.envs] == [1, 1, 1]


# ---------------------------------------------------------------- the envs themselves


@BOTH
def test_calls_and_attributes_are_gymnasiums(cls: Any) -> None:
    ours, theirs = cls(makers(Plan(BOX), 3)), gym.vector.SyncVectorEnv(makers(Plan(BOX), 3))
    for envs in (ours, theirs):
        envs.reset(seed=[4, None, 6])
        envs.reset(seed=[None, 5, None], options={"reset_mask": np.array([False, True, False])})
    for call in (
        lambda envs: envs.call("add", 3, twice=True),
        lambda envs: envs.call("label"),
        lambda envs: envs.get_attr("index"),
        lambda envs: envs.set_attr("label", "one for all"),
        lambda envs: envs.get_attr("label"),
        lambda envs: envs.set_attr("label", ["a", "b", "c"]),
        lambda envs: envs.get_attr("label"),
        lambda envs: envs.set_attr("label", ([1], [2], [3])),
        lambda envs: envs.get_attr("label"),
        lambda envs: envs.set_attr("label", np.arange(5)),
        lambda envs: envs.get_attr("label"),
        lambda envs: envs.render(),
        lambda envs: envs.np_random_seed,
        lambda envs: tuple(random.random() for random in envs.np_random),
    ):
        assert_same(call(ours), call(theirs))


@BOTH
def test_attributes_are_set_where_gymnasium_sets_them(cls: Any) -> None:
    """Through wrappers: on the wrapper that has the attribute."""
    fns = [lambda: gym.make("CartPole-v1")] * 2
    ours, theirs = cls(fns), gym.vector.SyncVectorEnv(fns)
    for envs in (ours, theirs):
        envs.set_attr("gravity", [1.0, 2.0])
        envs.set_attr("brand_new", 7)
    assert ours.get_attr("gravity") == theirs.get_attr("gravity") == (1.0, 2.0)
    assert [env.gravity for env in ours.get_attr("unwrapped")] == [1.0, 2.0]
    assert ours.get_attr("brand_new") == theirs.get_attr("brand_new") == (7, 7)


@BOTH
def test_render_mode_and_metadata(cls: Any) -> None:
    class Declares(PlannedEnv):
        metadata = {"render_modes": ["ansi"], "render_fps": 3}  # noqa: RUF012 - as gymnasium declares it

    envs = cls([lambda: Declares(Plan(BOX), render_mode="ansi")] * 2, autoreset_mode="SameStep")
    assert envs.render_mode == "ansi"
    assert envs.render() == ("0: step 0", "0: step 0")
    assert envs.metadata == {**Declares.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
    assert Declares.metadata == {"render_modes": ["ansi"], "render_fps": 3}
    assert envs.autoreset_mode is AutoresetMode.SAME_STEP


@BOTH
def test_reward_dtype(cls: Any) -> None:
    for dtype in (np.float32, "float16", np.longdouble):
        envs = cls(makers(Plan(BOX, reward="np.float64"), 2), reward_dtype=dtype)
        envs.reset(seed=0)
        wide = cls(makers(Plan(BOX, reward="np.float64"), 2))
        wide.reset(seed=0)
        rewards = envs.step([0, 0])[1]
        assert rewards.any()
        assert_same(rewards, wide.step([0, 0])[1].astype(dtype))


@pytest.mark.parametrize(
    ("dtype", "reward"),
    [
        *(
            (dtype, reward)
            for dtype in ("float16", "float32", "float64", "longdouble")
            for reward in ("1", None, [1.0])
        ),
        *((dtype, 10**400) for dtype in ("float16", "float32", "float64")),
    ],
    ids=lambda value: str(value)[:12],
)
@BOTH
def test_a_reward_that_is_no_number(cls: Any, dtype: str, reward: Any) -> None:
    """gymnasium takes None for NaN, and reads numbers from strings."""

    class Misbehaves(PlannedEnv):
        def step(self, action: Any) -> Any:
            return BOX.sample(), reward, False, False, {}

    envs = cls([lambda: Misbehaves(Plan(BOX))], reward_dtype=dtype)
    envs.reset(seed=0)
    with pytest.raises(EnvOutputError, match=r"^env 0: reward: got "):
        envs.step([0])


@pytest.mark.parametrize("call", ["reset", "step"])
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
@BOTH
def test_an_interrupt_after_the_envs_were_run_asks_for_a_reset(cls: Any, mode: AutoresetMode, call: str) -> None:
    """What the envs did is never handed out, so no step may build on it."""

    class Interrupts:
        def __array__(self, *args: Any, **kwargs: Any) -> Any:
            raise KeyboardInterrupt

    class Tells(PlannedEnv):
        on = False

        def _info(self, kind: int, infos: Any) -> dict[str, Any]:
            return {"x": Interrupts() if self.on and self.index == 1 else 1}

    envs = cls([lambda index=index: Tells(Plan(BOX), index) for index in range(3)], autoreset_mode=mode)  # type: ignore[misc]
    envs.reset(seed=0)
    envs.set_attr("on", True)
    with pytest.raises(KeyboardInterrupt):
        envs.step([0, 0, 0]) if call == "step" else envs.reset(options={"reset_mask": np.array([True, True, False])})
    rows = r"\[0, 1, 2\]" if call == "step" else r"\[0, 1\]"
    with pytest.raises(ResetNeeded, match=f"envs {rows} "):
        envs.step([0, 0, 0])
    envs.set_attr("on", False)
    envs.reset(seed=0)
    envs.step([0, 0, 0])


class CachedError(PlannedEnv):
    """Raises one and the same exception object in each step."""

    error: Exception = RuntimeError("broken")

    def step(self, action: Any) -> Any:
        raise self.error


def raised_by(error: Exception, times: int) -> Exception:
    class Raises(CachedError):
        pass

    Raises.error = error
    envs = SyncVectorEnv([lambda: Raises(Plan(BOX))])
    for _ in range(times):
        envs.reset(seed=0)
        with pytest.raises(Exception) as raised:  # noqa: PT011 - the type is the caller's
            envs.step([0])
        assert raised.value is error
    return error


@pytest.mark.skipif(not hasattr(BaseException, "add_note"), reason="notes came with Python 3.11")
def test_an_exception_that_is_raised_again_gets_its_note_once() -> None:
    assert raised_by(RuntimeError("broken"), 3).__notes__ == ["raised by env 0"]


def test_a_cached_output_error_is_told_with_its_env_once() -> None:
    assert str(raised_by(EnvOutputError("reward: got None"), 3)) == "env 0: reward: got None"


def test_an_exception_that_refuses_attributes_in_its_own_way_still_comes_out() -> None:
    class Closed(RuntimeError):
        def __setattr__(self, name: str, value: Any) -> None:
            raise LookupError(name)

    raised_by(Closed("broken"), 1)


@pytest.mark.parametrize("cls", [SyncVectorEnv, AsyncVectorEnv])
def test_one_maker_in_place_of_a_list(cls: Any) -> None:
    with pytest.raises(TypeError, match=r"env_fns: got <.*, expected a list of callables, one for each env"):
        cls(lambda: PlannedEnv(Plan(BOX)))


@pytest.mark.parametrize("maker", ["CartPole-v1", 3, None], ids=str)
def test_a_maker_that_is_none_is_named(maker: Any) -> None:
    with pytest.raises(TypeError, match=rf"the maker of env 1: got {maker!r} of type .*, expected a callable"):
        SyncVectorEnv([lambda: PlannedEnv(Plan(BOX)), maker])
