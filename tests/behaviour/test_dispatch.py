"""Attributes, methods and ``set_attr`` reach every env of a batch, whatever kind it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gymnasium.wrappers import TimeLimit
from tensordict_zoo import CountingTensorDictEnv
from zoo import CountingEnv

from gymbridge import SerialEnv
from gymbridge.envs import GymEnv


class Colour:
    def __init__(self, name: str):
        self.name = name

    def shout(self, times: int = 1) -> str:
        return self.name.upper() * times


class Painted(CountingEnv):
    """A gymnasium env with attributes and methods."""

    def __init__(self, name: str = "red"):
        super().__init__()
        self.colour = Colour(name)

    def paint(self, name: str, *, twice: bool = False) -> str:
        old, self.colour = self.colour.name, Colour(name * (1 + twice))
        return old


class OwnPainted(CountingTensorDictEnv):
    """A TensorDict env with the same."""

    def __init__(self, name: str = "red"):
        super().__init__(0)
        self.colour = Colour(name)

    paint = Painted.paint


KINDS: dict[str, list[Callable[..., Any]]] = {
    "gymnasium": [lambda: Painted("red"), lambda: Painted("blue")],
    "wrapped": [lambda: TimeLimit(Painted("red"), 9), lambda: TimeLimit(Painted("blue"), 9)],
    "GymEnv": [lambda: GymEnv(Painted, name="red"), lambda: GymEnv(Painted, name="blue")],
    "own": [lambda: OwnPainted("red"), lambda: OwnPainted("blue")],
    "unlike": [lambda: Painted("red"), lambda: OwnPainted("blue")],
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> list[Callable[..., Any]]:
    """Makers of two painted envs, of each kind."""
    return KINDS[request.param]


def test_each_env_answers_and_chains_go_on(batched_env: Any, kind: Any) -> None:
    """The first use starts the envs."""
    env = batched_env(2, kind)
    assert env.colour.name == ["red", "blue"]
    assert env.colour.shout(times=2) == ["REDRED", "BLUEBLUE"]
    assert env.paint("green", twice=True) == ["red", "blue"]
    assert env.colour.name == ["greengreen"] * 2
    assert isinstance(env.colour, list)
    assert len(env.colour) == 2
    env.close()


def test_what_is_missing_is_named_with_its_env(batched_env: Any, kind: Any) -> None:
    env = batched_env(2, kind)
    with pytest.raises(AttributeError, match="env 0 has no attribute 'nothing'"):
        env.nothing()
    with pytest.raises(AttributeError, match="env 0: 'Colour' object has no attribute 'shape'"):
        env.colour.shape  # noqa: B018
    env.set_attr("colour", [Colour("red"), "plain"])
    with pytest.raises(AttributeError, match="env 1: 'str' object has no attribute 'shout'"):
        env.colour.shout()
    assert not hasattr(env, "nothing")
    assert getattr(env, "nothing", 3) == 3
    env.close()


def test_set_attr_sets_one_for_all_or_one_each(batched_env: Any, kind: Any) -> None:
    env = batched_env(2, kind)
    env.set_attr("mood", "calm")
    assert env.mood == ["calm"] * 2
    env.set_attr("mood", ("calm", "wild"))
    assert env.mood == ["calm", "wild"]
    env.set_attr("mood", {"a": 1})
    assert env.mood == [{"a": 1}] * 2
    for wrong in ([1], (1, 2, 3), []):
        with pytest.raises(ValueError, match=f"value: got a list of {len(wrong)}, expected 2, one for each env"):
            env.set_attr("mood", wrong)
    assert env.mood == [{"a": 1}] * 2
    env.close()


def test_names_that_begin_with_an_underscore_start_nothing(batched_env: Any, kind: Any) -> None:
    env = batched_env(2, kind)
    for name in ("_repr_html_", "_ipython_display_", "_ipython_canary_method_should_not_exist_", "__array__", "_x"):
        assert not hasattr(env, name)
    with pytest.raises(AttributeError, match=rf"'{type(env).__name__}' object has no attribute '_colour'"):
        env._colour  # noqa: B018
    repr(env)
    assert env.start() is env  # which it could not if it ran
    with pytest.raises(AttributeError):
        env.colour._name  # noqa: B018
    env.close()


def test_an_attribute_error_in_a_property_of_the_batch_is_not_hidden(batched_env: Any) -> None:
    """Ours is told, not that an env lacks the name; though the envs have it."""

    class Broken(batched_env):  # type: ignore[misc]
        @property
        def colour(self) -> Any:
            return self.num_envs.nothing_of_this_name

    env = Broken(2, KINDS["gymnasium"])
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        env.colour  # noqa: B018
    env.close()


@pytest.mark.parametrize(
    "use",
    [
        lambda env: env.reset(),
        lambda env: env.observation_spec,
        lambda env: env.batch_size,
        lambda env: env.start(),
        lambda env: env.colour,
    ],
    ids=["reset", "observation_spec", "batch_size", "start", "an attribute"],
)
def test_an_attribute_error_of_a_maker_is_told_and_the_maker_called_once(use: Callable[[Any], Any]) -> None:
    calls: list[int] = []

    def make() -> Any:
        calls.append(1)
        raise AttributeError("module 'pygame' has no attribute 'init'")

    env = SerialEnv(2, make)
    for number in range(2):
        with pytest.raises(AttributeError, match="module 'pygame' has no attribute 'init'"):
            use(env)
        assert len(calls) == number + 1
    env.close()


def test_a_spec_that_an_env_never_set_is_told(batched_env: Any) -> None:
    class Unfinished(CountingTensorDictEnv):
        def __init__(self) -> None:
            super().__init__()
            del self._specs["observation"]

    with pytest.raises(AttributeError, match="Unfinished has no observation_spec yet: set it in __init__"):
        batched_env(2, Unfinished).reset()


def test_an_error_in_a_property_of_an_env_is_its_cause(batched_env: Any) -> None:
    class Torn(CountingEnv):
        @property
        def sail(self) -> Any:
            return self.mast

    env = batched_env(2, Torn)
    with pytest.raises(AttributeError, match="env 0 has no attribute 'sail'") as caught:
        env.sail  # noqa: B018
    assert "mast" in str(caught.value.__cause__)
    env.close()


def test_it_goes_on_in_the_envs_of_a_batch_of_batches() -> None:
    env = SerialEnv(2, lambda: SerialEnv(2, KINDS["own"]))
    assert env.paint("green") == [["red", "blue"]] * 2
    assert [*env.colour.name] == [["green"] * 2] * 2
    env.close()


class Asks(CountingEnv):
    """Calls ``hook`` in each step."""

    hook: Any = None

    def step(self, action: Any) -> Any:
        if self.hook is not None:
            self.hook()
        return super().step(action)


def test_an_attribute_is_refused_while_a_call_is_under_way() -> None:
    """To another thread, and to an env that asks its own batch."""
    env = SerialEnv(2, Asks)
    td = env.reset()
    td["action"] = torch.zeros(2, dtype=torch.int64)
    refused: list[RuntimeError] = []

    def ask() -> None:
        try:
            env.t  # noqa: B018
        except RuntimeError as error:
            refused.append(error)

    def from_another_thread() -> None:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    env.set_attr("hook", [ask, from_another_thread])
    env.step(td)
    assert len(refused) == 2
    assert all(str(error).startswith("t: refused while a call of step is under way") for error in refused)
    env.close()
