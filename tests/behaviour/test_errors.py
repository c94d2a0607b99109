"""What a caller must not do is refused by name before anything is done, and what an env does wrong is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from by_hand import assert_equal
from engines import Engine
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from tensordict import TensorDict, TensorDictBase
from zoo import CountingEnv, DictEnv

from gymbridge import SerialEnv
from gymbridge.envs import GymEnv
from gymbridge.errors import EnvOutputError

CALLS = ("step", "step_and_maybe_reset")


def picks(batch: Engine, *rows: int) -> torch.Tensor:
    return torch.tensor([row in rows for row in range(batch.num_envs)])


# ---------------------------------------------------------------- inputs


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("spoil", "error", "told"),
    [
        (lambda td: td.pop("action"), KeyError, r"action: missing, expected shape \[.*\] and torch.int64; got keys"),
        (lambda td: td.set("action", td["action"].float()), ValueError, "action: got dtype torch.float32, expected"),
        (lambda td: td.set("action", td["action"].int()), ValueError, "action: got dtype torch.int32, expected"),
        (lambda td: td.set("action", td["action"][..., None]), ValueError, r"action: got shape \[.*1\], expected"),
        (lambda td: td.set_non_tensor("action", "left"), TypeError, "action: got .*, expected a tensor of shape"),
        (lambda td: td.set_non_tensor("action", None), TypeError, "action: got .*, expected a tensor of shape"),
    ],
    ids=["missing", "float32", "int32", "shape", "a word", "None"],
)
def test_actions_that_do_not_fit_their_spec(
    contract: Engine, call: str, spoil: Callable[[TensorDictBase], Any], error: type[Exception], told: str
) -> None:
    """Nothing is done: td has no ``next``, and the env's next step is its first."""
    env = contract.make(CountingEnv)
    td = env.rand_action(env.reset())
    right = td.clone()
    spoil(td)
    with pytest.raises(error, match=told):
        getattr(env, call)(td)
    assert "next" not in td.keys()
    assert env.step(right)["next", "observation"][..., 1].eq(1).all()


def test_a_missing_part_of_an_action_is_named(contract: Engine) -> None:
    env = contract.make(DictEnv)
    td = env.rand_action(env.reset())
    del td["action", "push"]
    with pytest.raises(KeyError, match=r"action.push: missing"):
        env.step(td)


@pytest.mark.parametrize("call", [*CALLS, "reset", "rand_action"])
def test_a_td_of_another_batch_size(contract: Engine, call: str) -> None:
    env = contract.make(CountingEnv)
    td = TensorDict({}, [*contract.batch_size, 7])
    expected = (
        rf"{call}: got a TensorDict of batch size \[.*7\], expected \[{', '.join(map(str, contract.batch_size))}\]"
    )
    with pytest.raises(ValueError, match=expected):
        getattr(env, call)(td)


@pytest.mark.parametrize(("call", "name"), [("reset", "_reset"), ("step", "_step"), ("step_and_maybe_reset", "_step")])
def test_masks_that_are_none(contract: Engine, call: str, name: str) -> None:
    env = contract.make(CountingEnv)
    td = env.rand_action(env.reset())
    for wrong in (torch.ones(contract.batch_size), torch.ones(contract.batch_size, dtype=torch.int64)):
        with pytest.raises(TypeError, match=rf"{name}: got torch\..*, expected a bool tensor of shape"):
            getattr(env, call)(td.clone().set(name, wrong))
    with pytest.raises(TypeError, match=rf"{name}: got .*, expected a bool tensor"):
        getattr(env, call)(td.clone().set_non_tensor(name, "all"))
    assert env.step(td)["next", "observation"][..., 1].eq(1).all()  # nothing was done


@pytest.mark.parametrize("call", [*CALLS, "reset"])
def test_own_values_that_a_sleeping_env_cannot_keep(batch: Engine, call: str) -> None:
    env = batch.make(CountingEnv)
    td = env.rand_action(env.reset())
    name = "_reset" if call == "reset" else "_step"
    spoilt: list[tuple[str, torch.Tensor, str]] = [
        ("observation", torch.zeros(batch.num_envs, 5), r"observation: got shape \[(\d, )?5\], expected \[(\d, )?4\]"),
        ("observation", torch.zeros(batch.num_envs, 4).double(), "observation: got dtype torch.float64, expected"),
        ("done", torch.zeros(batch.num_envs, 1), "done: got dtype torch.float32, expected torch.bool"),
        ("truncated", torch.zeros(batch.num_envs).bool(), r"truncated: got shape \[(\d)?\], expected \[(\d, )?1\]"),
    ]
    for key, wrong, told in spoilt:
        nobody = torch.zeros(batch.num_envs, dtype=torch.bool)
        with pytest.raises(ValueError, match=told):
            getattr(env, call)(td.clone().set(key, wrong).set(name, nobody))
    assert env.step(td)["next", "observation"][..., 1].eq(1).all()


def test_a_locked_td_is_refused_before_the_step(contract: Engine) -> None:
    env = contract.make(CountingEnv)
    td = env.rand_action(env.reset())
    for call in CALLS:
        with pytest.raises(RuntimeError, match="lock"):
            getattr(env, call)(td.clone().lock_())
    assert env.step(td)["next", "observation"][..., 1].eq(1).all()


# ---------------------------------------------------------------- out of turn


@pytest.mark.parametrize("call", CALLS)
def test_a_step_before_the_first_reset(engine: Engine, call: str) -> None:
    env = engine.make(CountingEnv)
    with pytest.raises(ResetNeeded, match=r"envs \[0.*\] have not been reset yet: reset them"):
        getattr(env, call)(env.rand_action())


@pytest.mark.parametrize("call", CALLS)
def test_a_step_after_the_end(engine: Engine, call: str) -> None:
    """The error names the envs; nothing is stepped; after their reset it goes on."""
    env = engine.make(lambda index: CountingEnv([1 if index == engine.num_envs - 1 else 9]), indexed=True)
    td = env.step_mdp(env.rand_step(env.reset()))
    with pytest.raises(ResetNeeded, match=rf"envs \[{engine.num_envs - 1}\] ended their episode: reset them"):
        getattr(env, call)(env.rand_action(td.clone()))
    td = env.reset(td.set("_reset", td["done"]))
    stepped = env.rand_step(td)
    times = stepped["next", "observation"].reshape(-1, 4)[:, 1].tolist()
    assert times == [2.0] * (engine.num_envs - 1) + [1.0]


@pytest.mark.usefixtures("in_process")
def test_use_after_close(engine: Engine) -> None:
    """A ``GymEnv`` stays closed, a batch starts again with new envs."""
    made: list[CountingEnv] = []

    def maker() -> CountingEnv:
        made.append(CountingEnv())
        return made[-1]

    env = engine.make(maker)
    env.rollout(2)
    assert not env.is_closed
    env.close()
    assert env.is_closed
    assert [one.closed for one in made] == [1] * engine.num_envs
    if not engine.batch_size:
        for call in (env.reset, lambda: env.step(env.rand_action()), lambda: env.rollout(2), lambda: env.env):
            with pytest.raises(ClosedEnvironmentError, match=r"GymEnv is closed"):
                call()
        with pytest.raises(ClosedEnvironmentError, match="step_and_maybe_reset: GymEnv is closed"):
            env.step_and_maybe_reset(env.rand_action())
        return
    with pytest.raises(ResetNeeded, match="have not been reset yet"):
        env.step(env.rand_action())
    assert not env.is_closed
    assert env.reset()["observation"][..., 0].eq(0).all()
    assert len(made) == 2 * engine.num_envs
    env.close()


def test_closing_twice(contract: Engine) -> None:
    env = contract.make(CountingEnv)
    env.reset()
    env.close()
    with pytest.raises(RuntimeError, match=rf"close: {type(env).__name__} is closed already"):
        env.close()
    env.close(raise_if_closed=False)


def test_a_context_manager_closes(contract: Engine) -> None:
    with contract.make(CountingEnv) as env:
        env.reset()
    assert env.is_closed
    with pytest.raises(Boom, match="inside"), contract.make(CountingEnv) as env:
        raise Boom("inside")
    assert env.is_closed
    with contract.make(CountingEnv) as env:
        env.close()  # once more at the end is no error


@pytest.mark.usefixtures("in_process")
def test_every_env_is_closed_though_one_raises(engine: Engine) -> None:
    closed: list[int] = []

    class Stuck(CountingEnv):
        def __init__(self, index: int):
            super().__init__()
            self.index = index

        def close(self) -> None:
            closed.append(self.index)
            if self.index == 0:
                raise OSError("stuck")

    env = engine.make(Stuck, indexed=True)
    env.reset()
    with pytest.raises(OSError, match="stuck"):
        env.close()
    assert closed == list(range(engine.num_envs))
    assert env.is_closed


# ---------------------------------------------------------------- makers


def test_a_maker_that_raises_closes_the_envs_made_before() -> None:
    for wrapped in (False, True):
        made: list[CountingEnv] = []

        def maker(made: list[CountingEnv] = made) -> CountingEnv:
            if len(made) == 2:
                raise OSError("no third env")
            made.append(CountingEnv())
            return made[-1]

        env = SerialEnv(3, (lambda maker=maker: GymEnv(maker)) if wrapped else maker)
        with pytest.raises(OSError, match="no third env"):
            env.reset()
        assert [one.closed for one in made] == [1, 1]


def test_one_env_object_twice_is_refused() -> None:
    shared = CountingEnv()
    for maker in (lambda: shared, lambda: GymEnv(shared), lambda: gym.wrappers.TimeLimit(shared, 100)):
        with pytest.raises(ValueError, match="the makers of envs 0 and 1 gave one and the same env"):
            SerialEnv(2, maker).reset()
    wrapper = GymEnv(CountingEnv)
    with pytest.raises(ValueError, match="the makers of envs 0 and 1 gave one and the same env"):
        SerialEnv(2, lambda: wrapper).reset()


@pytest.mark.parametrize("made", [None, 7, object()], ids=["None", "7", "object"])
def test_a_maker_of_something_else_is_named(engine: Engine, made: Any) -> None:
    with pytest.raises(TypeError, match=r"the maker of env [012] gave .*, expected a gymnasium\.Env"):  # 1 in a worker
        engine.make(lambda: made).reset()


def test_an_id_that_is_not_registered(engine: Engine) -> None:
    with pytest.raises(gym.error.NameNotFound, match="NoSuchEnv"):
        engine.make(lambda: gym.make("NoSuchEnv-v0")).reset()


@pytest.mark.parametrize("fn", [7, None, CountingEnv().reset, object()], ids=["7", "None", "a method", "object"])
def test_what_makes_no_env_is_refused(fn: Any) -> None:
    if callable(fn):  # it is called, and gives something else
        with pytest.raises(TypeError, match=r"gave .*, expected"):
            SerialEnv(2, fn).reset()
        return
    for make in (lambda: SerialEnv(2, fn), lambda: GymEnv(fn)):
        with pytest.raises(TypeError, match=r"expected an env, a registered id or a callable"):
            make()


def test_lists_of_another_length() -> None:
    with pytest.raises(ValueError, match="create_env_fn: got a list of 2, expected 3"):
        SerialEnv(3, [CountingEnv] * 2)
    with pytest.raises(ValueError, match="create_env_kwargs: got a list of 1, expected 3"):
        SerialEnv(3, CountingEnv, create_env_kwargs=[{}])


@pytest.mark.parametrize(
    ("num_envs", "error"), [(0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError)]
)
def test_num_envs_is_a_positive_int(num_envs: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"num_envs: got {num_envs}"):
        SerialEnv(num_envs, CountingEnv)


def test_keyword_arguments_reach_the_makers() -> None:
    given = {"lengths": [1]}
    env = SerialEnv(2, CountingEnv, create_env_kwargs=given)
    given["lengths"][0] = 9  # each env has a copy
    assert env.rollout(5).shape[-1] == 1
    env = SerialEnv(2, CountingEnv, create_env_kwargs=[{"lengths": [3]}, {"lengths": [2]}])
    assert env.rollout(5)["next", "done"][:, -1, 0].tolist() == [False, True]
    assert GymEnv(CountingEnv, lengths=[2]).rollout(5).shape[-1] == 2
    assert GymEnv("CartPole-v1", max_episode_steps=3).rollout(9).shape[-1] == 3
    env = SerialEnv(2, "CartPole-v1", create_env_kwargs={"max_episode_steps": 3})
    assert env.rollout(9).shape[-1] == 3
    with pytest.raises(TypeError, match=r"make_kwargs: got \['lengths'\] with an env that is made already"):
        GymEnv(CountingEnv(), lengths=[2])


def test_the_ways_to_say_which_envs(batch: Engine) -> None:
    """An id, a maker, a list of either: the same envs."""
    ways: list[Any] = [
        "CartPole-v1",
        lambda: gym.make("CartPole-v1"),
        ["CartPole-v1"] * 3,
        [lambda: gym.make("CartPole-v1")] * 3,
    ]
    ways += [
        lambda: GymEnv("CartPole-v1"),
        [lambda: GymEnv("CartPole-v1"), lambda: GymEnv(gym.make("CartPole-v1"))] * 1 + [lambda: GymEnv("CartPole-v1")],
    ]
    expected = None
    for way in ways:
        with SerialEnv(3, way) as env:
            env.set_seed(0)
            got = env.rollout(20, break_when_any_done=False)
        expected = got if expected is None else expected
        assert_equal(got, expected)


def test_starting_is_lazy_and_once() -> None:
    made: list[CountingEnv] = []

    def maker() -> CountingEnv:
        made.append(CountingEnv())
        return made[-1]

    env = SerialEnv(2, maker)
    assert env.num_envs == 2
    assert made == []
    assert env.start() is env
    assert len(made) == 2
    with pytest.raises(RuntimeError, match="start: SerialEnv is running already"):
        env.start()
    env.close()
    env.start()
    assert len(made) == 4
    by_spec = SerialEnv(2, maker)
    _ = by_spec.observation_spec
    assert len(made) == 6
    SerialEnv(2, maker).close()  # which never started
    assert len(made) == 6


# ---------------------------------------------------------------- what an env does wrong


class Misfit(gym.Env[Any, Any]):
    """Gives one wrong observation: in its second step, or in its second reset; all envs but the last are right."""

    action_space = spaces.Discrete(2)

    def __init__(self, index: int, last: int, space: spaces.Space, right: Any, wrong: Any, at: str):
        self.observation_space = space
        self.right, self.wrong, self.at = right, wrong, at if index == last else ""
        self.episode = self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episode += 1
        self.t = 0
        return self.wrong if self.at == "reset" and self.episode == 2 else self.right, {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.wrong if self.at == "step" and self.t == 2 else self.right, 0.0, False, False, {}


BOX = spaces.Box(-1, 1, (2,), np.float32)
ZEROS = np.zeros(2, np.float32)


@pytest.mark.parametrize("at", ["reset", "step"])
@pytest.mark.parametrize(
    ("space", "right", "wrong", "told"),
    [
        (BOX, ZEROS, np.zeros(2), "observation: got dtype float64, expected float32"),
        (BOX, ZEROS, np.zeros(2, np.int64), "observation: got dtype int64, expected float32"),
        (BOX, ZEROS, np.zeros(3, np.float32), r"observation: got shape \(3,\), expected \(2,\)"),
        (BOX, ZEROS, np.zeros((1, 2), np.float32), r"observation: got shape \(1, 2\), expected \(2,\)"),
        (BOX, ZEROS, [0.0, 0.0], r"observation: got \[0.0, 0.0\] of type list, expected an array"),
        (BOX, ZEROS, None, "observation: got None of type NoneType, expected an array"),
        (spaces.Discrete(3), 1, 1.5, "observation: got 1.5, expected an integer"),
        (spaces.Discrete(3), 1, np.array([1]), r"observation: got array\(\[1\]\), expected an integer"),
        (
            spaces.Dict(x=BOX),
            {"x": ZEROS},
            {"y": ZEROS},
            r"the root lacks the item 'x'.*\['y'\].*expected items \['x'\]",
        ),
        (spaces.Dict(x=BOX), {"x": ZEROS}, {"x": np.zeros(2)}, "x: got dtype float64, expected float32"),
        (spaces.Tuple([BOX]), (ZEROS,), (), "observation lacks the item 0"),
    ],
    ids=[
        "float64",
        "int64",
        "shape",
        "dims",
        "list",
        "None",
        "float",
        "array",
        "other key",
        "in a dict",
        "short tuple",
    ],
)
def test_observations_that_do_not_fit_name_env_key_got_and_expected(
    engine: Engine, at: str, space: spaces.Space, right: Any, wrong: Any, told: str
) -> None:
    last = engine.num_envs - 1
    env = engine.make(lambda index: Misfit(index, last, space, right, wrong, at), indexed=True)
    td = env.reset()
    env.rand_step(td)
    with pytest.raises(EnvOutputError, match=rf"env {last}: .*{told}") as caught:
        env.reset() if at == "reset" else env.rand_step(td)
    assert caught.value.env_index == last  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2)), r"a dict with keys \['a', 'b'\]"),
        (spaces.Box(0, 1, (2,)), r"array|shape \(2,\)"),
        (spaces.Box(0, 1, (3,)), r"array|shape \(3,\)"),
        (spaces.Text(2, min_length=2), "'"),
    ],
    ids=["dict", "two numbers", "three numbers", "text"],
)
def test_a_reset_without_an_info_is_told_so(engine: Engine, space: spaces.Space, told: str) -> None:
    """As of gym before 0.26: an observation of two items can be unpacked, and is no pair for that."""

    class Old(gym.Env[Any, Any]):
        observation_space = space
        action_space = spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return space.sample()

        def step(self, action: Any) -> Any:
            return space.sample(), 0.0, False, False, {}

    env = engine.make(Old)
    with pytest.raises(EnvOutputError, match=rf"env \d: reset: got .*(?:{told}).*, expected \(observation, info\)"):
        env.reset()


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (
            (0, 0.0, False, {}),
            r"step: got a tuple of length 4, expected \(observation, reward, terminated, truncated, info\)",
        ),
        (7, "step: got 7, expected"),
        ((0, "much", False, False, {}), "reward: got 'much', expected a number"),
        ((0, None, False, False, {}), "reward: got None, expected a number"),
        (
            (0, 0.0, np.zeros(2, bool), False, {}),
            r"terminated: got array\(\[False, False\]\) of type ndarray, expected a bool",
        ),
    ],
    ids=["four", "a number", "a word", "None", "flags"],
)
def test_outcomes_that_are_none(engine: Engine, outcome: Any, told: str) -> None:
    class Odd(gym.Env[Any, Any]):
        observation_space = action_space = spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return 0, {}

        def step(self, action: Any) -> Any:
            return outcome

    env = engine.make(Odd)
    with pytest.raises(EnvOutputError, match=f"env 0: {told}"):
        env.rand_step(env.reset())


# ---------------------------------------------------------------- envs that raise


class Boom(Exception):
    """An error of the env's own."""


class Raises(CountingEnv):
    """Raises where its index and its count of resets and steps say so."""

    def __init__(self, index: int, rows: tuple[int, ...], at: str):
        super().__init__([3])
        self.rows, self.index, self.at = rows, index, at
        self.spent = False

    def _maybe(self, at: str) -> None:
        if at == self.at and self.index in self.rows and not self.spent:
            self.spent = True
            raise Boom(f"in {at}")

    def reset(self, **kwargs: Any) -> Any:
        if self.episode == 0:
            self._maybe("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> Any:
        if self.t == 1:
            self._maybe("step")
        return super().step(action)


@pytest.mark.parametrize("call", CALLS)
def test_an_env_that_raises_in_a_step_leaves_the_others_steps(batch: Engine, call: str) -> None:
    last = batch.num_envs - 1
    env = batch.make(lambda index: Raises(index, (last,), "step"), indexed=True)
    assert env.last_partial() is None
    td = env.step_mdp(env.rand_step(env.reset()))
    env.rand_action(td)
    td["note"] = batch.rows(1, 2)
    td["next", "hidden"] = batch.rows(3)
    td["_step"] = torch.ones(batch.num_envs, dtype=torch.bool)
    before = td.clone()
    with pytest.raises(Boom, match="in step") as caught:
        getattr(env, call)(td)
    assert caught.value.env_index == last  # type: ignore[attr-defined]
    assert_equal(td, before, "the td of the call that failed")
    partial = env.last_partial()
    assert set(partial.keys()) == {*before.keys(), "_failed"} - {"_step"}
    assert partial["_failed"].tolist() == picks(batch, last).tolist()
    others = ~partial["_failed"]
    following = partial["next"]
    assert following["observation"][others][:, 1].eq(2).all()
    assert following["reward"][others].eq(2).all()
    assert following["hidden"].equal(batch.rows(3))
    assert following["reward"][last].item() == 0
    assert following["observation"][last].equal(before["observation"][last])
    assert not following["done"].any()
    assert partial["note"].equal(before["note"])


@pytest.mark.parametrize("call", CALLS)
def test_the_run_goes_on_after_the_failed_env_is_reset(batch: Engine, call: str) -> None:
    last = batch.num_envs - 1
    env = batch.make(lambda index: Raises(index, (last,), "step"), indexed=True)
    td = env.step_mdp(env.rand_step(env.reset()))
    with pytest.raises(Boom):
        getattr(env, call)(env.rand_action(td))
    with pytest.raises(ResetNeeded, match=rf"envs \[{last}\] raised an error in an earlier call or were"):
        env.step(env.rand_action(td.clone()))
    partial = env.last_partial()
    root = env.reset(env.step_mdp(partial).set("_reset", partial["_failed"]))
    assert root["observation"][:, 1].tolist() == [2.0] * last + [0.0]
    stepped = env.rand_step(root)
    assert stepped["next", "observation"][:, 1].tolist() == [3.0] * last + [1.0]
    assert stepped["next", "done"][:, 0].tolist() == [True] * last + [False]


def test_an_env_that_raises_in_a_reset_leaves_the_others_resets(batch: Engine) -> None:
    last = batch.num_envs - 1
    env = batch.make(lambda index: Raises(index, (last,), "reset"), indexed=True)
    env.rand_step(env.reset())
    given = TensorDict({"note": batch.rows(1, 2)}, batch.batch_size)
    with pytest.raises(Boom, match="in reset") as caught:
        env.reset(given)
    assert caught.value.env_index == last  # type: ignore[attr-defined]
    partial = env.last_partial()
    assert set(partial.keys()) == {"note", "observation", "done", "terminated", "truncated", "_failed"}
    assert partial["observation"][:, 0].tolist() == [1.0] * last + [0.0]
    root = env.reset(partial.set("_reset", partial.pop("_failed")))
    assert root["observation"][:, 0].tolist() == [1.0] * batch.num_envs
    assert env.rand_step(root)["next", "observation"][:, 1].eq(1).all()


def test_an_env_that_raises_in_the_reset_after_its_end(batch: Engine) -> None:
    """The others' steps are kept, and their own resets have taken place."""
    last = batch.num_envs - 1
    env = batch.make(lambda index: Raises(index, (last,), "reset"), indexed=True)
    td = env.reset()
    for _ in range(2):
        _, td = env.step_and_maybe_reset(env.rand_action(td))
    with pytest.raises(Boom):
        env.step_and_maybe_reset(env.rand_action(td))
    partial = env.last_partial()
    assert partial["next", "observation"][:last, 1].eq(3).all()
    assert partial["next", "done"][:last].all()
    root = env.reset(TensorDict({"_reset": partial["_failed"]}, batch.batch_size))
    assert root["observation"][:, 0].eq(1).all()
    assert root["observation"][:, 1].eq(0).all()
    assert not root["done"].any()


def test_the_error_of_the_first_env_names_the_others(batch: Engine) -> None:
    if batch.num_envs == 1:
        pytest.skip("one env only")
    env = batch.make(lambda index: Raises(index, (0, batch.num_envs - 1), "step"), indexed=True)
    td = env.step_mdp(env.rand_step(env.reset()))
    with pytest.raises(Boom) as caught:
        env.rand_step(td)
    assert caught.value.env_index == 0  # type: ignore[attr-defined]
    notes = getattr(caught.value, "__notes__", None)
    if notes is not None:
        assert notes == [f"raised by env 0; envs [{batch.num_envs - 1}] failed in the same call"]
    assert env.last_partial()["_failed"].equal(picks(batch, 0, batch.num_envs - 1))


def test_a_gym_env_that_raises_can_be_reset(engine: Engine) -> None:
    env = engine.make(lambda index: Raises(index, (0,), "step"), indexed=True)
    td = env.step_mdp(env.rand_step(env.reset()))
    with pytest.raises(Boom):
        env.rand_step(td)
    assert env.last_partial()["_failed"].reshape(-1)[0]
    assert env.rollout(2).shape[-1] == 2
    env.close()


@pytest.mark.usefixtures("in_process")
def test_what_is_no_exception_stops_at_once(engine: Engine) -> None:
    """Ctrl-C in an env is not taken for a failure of that env."""

    class Stops(CountingEnv):
        def step(self, action: Any) -> Any:
            raise KeyboardInterrupt

    env = engine.make(Stops)
    td = env.reset()
    with pytest.raises(KeyboardInterrupt):
        env.rand_step(td)
    env.close()


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("call", CALLS)
def test_an_interrupted_env_and_those_before_it_are_to_be_reset(batch: Engine, call: str) -> None:
    """Ctrl-C in a step: no later step builds on what was never handed out; the others go on."""
    last = batch.num_envs - 1

    class Interrupts(CountingEnv):
        on = False

        def step(self, action: Any) -> Any:
            if self.on:
                raise KeyboardInterrupt
            return super().step(action)

    made: list[Interrupts] = []

    def make() -> Interrupts:
        made.append(Interrupts())
        return made[-1]

    env = batch.make(make)
    td = env.rand_action(env.reset())
    made[last].on = True
    with pytest.raises(KeyboardInterrupt):
        getattr(env, call)(td.clone())
    made[last].on = False
    with pytest.raises(ResetNeeded, match=rf"envs \[.*{last}\] raised an error in an earlier call or"):
        env.step(td.clone())
    stepped = env.step(env.rand_action(env.reset()))
    assert stepped["next", "observation"][:, 1].eq(1).all()


# ---------------------------------------------------------------- one call at a time

OTHER_CALLS: dict[str, Callable[[Any, TensorDictBase], Any]] = {
    "reset": lambda env, td: env.reset(),
    "step": lambda env, td: env.step(td),
    "step_and_maybe_reset": lambda env, td: env.step_and_maybe_reset(td),
    "set_seed": lambda env, td: env.set_seed(0),
    "to": lambda env, td: env.to("cpu"),
    "close": lambda env, td: env.close(),
}


class CallsBack(CountingEnv):
    """Calls ``hook`` in each step."""

    hook: Callable[[], Any] | None = None

    def step(self, action: Any) -> Any:
        if self.hook is not None:
            self.hook()
        return super().step(action)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("other", OTHER_CALLS)
@pytest.mark.parametrize("call", CALLS)
def test_a_second_thread_is_refused_and_the_first_gets_its_own(engine: Engine, call: str, other: str) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert go_on.wait(30)

    made: list[CallsBack] = []

    def make() -> CallsBack:
        made.append(CallsBack())
        return made[-1]

    env = engine.make(make)
    td = env.rand_action(env.reset())
    mine, theirs = td.clone(), td.clone()
    made[-1].hook = hold
    first = threading.Thread(target=lambda: getattr(env, call)(mine))
    first.start()
    try:
        assert entered.wait(30)
        with pytest.raises(RuntimeError, match=rf"^{other}: refused while a call of {call} is under way"):
            OTHER_CALLS[other](env, theirs)
    finally:
        go_on.set()
        first.join()
    assert "next" not in theirs.keys()
    assert mine["next", "observation"][..., 1].eq(1).all()


@pytest.mark.usefixtures("in_process")
def test_an_env_that_calls_its_own_batch_is_refused(batch: Engine) -> None:
    class Steps(CallsBack):
        pass

    env = batch.make(Steps)
    td = env.rand_action(env.reset())
    Steps.hook = lambda self: env.reset()
    with pytest.raises(RuntimeError, match=r"^reset: refused while a call of step is under way"):
        env.step(td)
