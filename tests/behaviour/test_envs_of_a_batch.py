"""What reaches the envs of a batch one by one: keyword arguments of resets, attributes, states, makers' arguments."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
import torch
from engines import Engine
from gymnasium.wrappers import TimeLimit
from tensordict import TensorDict
from zoo import CountingEnv

from gymbridge import SerialEnv


class Colour:
    def __init__(self, name: str):
        self.name = name

    def shout(self, times: int = 1) -> str:
        return self.name.upper() * times


class Painted(CountingEnv):
    """Has attributes, methods, and a state that can be saved."""

    def __init__(self, name: str = "red", lengths: Any = (3, 1, 5)):
        super().__init__(lengths)
        self.colour = Colour(name)
        self.lock = threading.Lock()

    def paint(self, name: str) -> str:
        old, self.colour = self.colour.name, Colour(name)
        return old

    def get_state(self) -> Any:
        return {"t": self.t, "episode": self.episode, "lock": self.lock}

    def set_state(self, state: Any) -> None:
        self.t, self.episode = state["t"], state["episode"]
        assert state["lock"] is None


# ---------------------------------------------------------------- resets


def resets_of(env: SerialEnv) -> list[Any]:
    return [resets[-1] for resets in env.resets]


def test_each_env_gets_its_own_kwargs_and_those_for_all_win() -> None:
    env = SerialEnv(3, CountingEnv)
    env.set_seed(7)
    given = [{"options": {"x": 0}, "seed": 40}, {}, {"options": {"x": 2}}]
    before = pickle.dumps(given)
    env.reset(list_of_kwargs=given)
    assert resets_of(env) == [
        {"seed": 40, "options": {"x": 0}},
        {"seed": 8, "options": None},
        {"seed": 9, "options": {"x": 2}},
    ]
    env.reset(list_of_kwargs=given, options={"y": 1})
    assert [one["options"] for one in resets_of(env)] == [{"y": 1}] * 3
    assert pickle.dumps(given) == before


def test_kwargs_of_envs_that_are_not_reset_are_ignored() -> None:
    env = SerialEnv(2, CountingEnv)
    env.reset()
    td = TensorDict({"_reset": torch.tensor([False, True])}, [2])
    env.reset(td, list_of_kwargs=[{"no such argument": 1}, {"seed": 3}])
    assert [len(resets) for resets in env.resets] == [1, 2]
    assert resets_of(env)[1]["seed"] == 3


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([{}], ValueError, "list_of_kwargs: got a list of 1, expected a list of 2 dicts"),
        ({}, ValueError, r"list_of_kwargs: got \{\}, expected a list of 2 dicts"),
        ([{}, 3], TypeError, "list_of_kwargs: got 3 for env 1, expected a dict"),
    ],
    ids=str,
)
def test_a_wrong_list_of_kwargs_is_refused(given: Any, error: type, message: str) -> None:
    env = SerialEnv(2, CountingEnv)
    env.reset()
    with pytest.raises(error, match=message):
        env.reset(list_of_kwargs=given)
    assert [len(resets) for resets in env.resets] == [1, 1]


# ---------------------------------------------------------------- attributes


def test_attributes_and_methods_are_those_of_each_env() -> None:
    """Through wrappers, of attributes of attributes, and before the first use, which starts the envs."""
    env = SerialEnv(2, [lambda: TimeLimit(Painted("red"), 9), lambda: TimeLimit(Painted("blue"), 9)])
    assert env.colour.name == ["red", "blue"]
    assert env.colour.shout(times=2) == ["REDRED", "BLUEBLUE"]
    assert env.paint("green") == ["red", "blue"]
    assert env.colour.name == ["green", "green"]
    assert type(env.t) is not int
    assert len(env.lengths) == 2


def test_a_missing_attribute_is_named_with_its_env() -> None:
    env = SerialEnv(2, [lambda: Painted(), lambda: CountingEnv()])
    with pytest.raises(AttributeError, match="env 1 has no attribute 'colour'"):
        env.colour  # noqa: B018
    with pytest.raises(AttributeError, match="env 0 has no attribute 'nothing'"):
        env.nothing()
    painted = SerialEnv(2, Painted)
    with pytest.raises(AttributeError, match="env 0: 'Colour' object has no attribute 'shape'"):
        painted.colour.shape  # noqa: B018


def test_private_names_start_nothing() -> None:
    """A notebook asks an object for many of them to show it."""
    made: list[int] = []
    env = SerialEnv(2, lambda: made.append(1) or CountingEnv())
    for name in ("_repr_html_", "_ipython_display_", "__array__", "_x"):
        assert not hasattr(env, name)
    assert not made


def test_an_error_in_one_of_our_own_properties_is_not_hidden() -> None:
    class Broken(SerialEnv):
        @property
        def colour(self) -> Any:
            raise AttributeError("something of ours is missing")

    with pytest.raises(AttributeError, match="something of ours is missing"):
        Broken(2, Painted).colour  # noqa: B018


def test_set_attr_sets_one_for_all_or_one_each() -> None:
    env = SerialEnv(2, lambda: TimeLimit(Painted(), 9))
    env.set_attr("mood", "calm")
    assert env.mood == ["calm", "calm"]
    env.set_attr("mood", ["calm", "wild"])
    assert env.mood == ["calm", "wild"]
    with pytest.raises(ValueError, match="value: got a list of 3, expected 2"):
        env.set_attr("mood", (1, 2, 3))
    assert env.mood == ["calm", "wild"]


# ---------------------------------------------------------------- states


def test_a_state_put_back_gives_the_same_again(engine: Engine) -> None:
    env = engine.make(lambda: Painted(lengths=(4,)))
    env.set_seed(0)
    td = env.reset()
    td["action"] = torch.ones(engine.batch_size, dtype=torch.int64)
    env.step(td)
    state = pickle.loads(pickle.dumps(env.state_dict()))
    first = [env.step(td.exclude("next"))["next"].clone() for _ in range(3)]
    env.load_state_dict(state)
    again = [env.step(td.exclude("next"))["next"] for _ in range(3)]  # ended rows are in their episode again
    for one, other in zip(first, again, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in ("observation", "reward", "done"))


def test_a_batch_has_a_state_an_env_and_takes_one_for_all() -> None:
    env = SerialEnv(3, CountingEnv)
    env.set_seed(0)
    env.reset()
    state = env.state_dict()
    assert [*state] == ["worker0", "worker1", "worker2"]
    env.load_state_dict(state["worker1"])
    drawn = env.reset()["observation"][:, 3]
    assert drawn.eq(drawn[0]).all()
    for wrong, error in (({"worker0": {}}, KeyError), ({}, KeyError), (3, TypeError)):
        with pytest.raises(error, match="state"):
            env.load_state_dict(wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- makers


def test_kwargs_of_makers_change_between_starts() -> None:
    env = SerialEnv(2, Painted, create_env_kwargs={"name": "red"})
    assert env.colour.name == ["red", "red"]
    with pytest.raises(RuntimeError, match="update_kwargs: SerialEnv is running"):
        env.update_kwargs({"name": "blue"})
    env.close()
    env.update_kwargs({"name": "blue"})
    assert env.colour.name == ["blue", "blue"]
    env.close()
    env.update_kwargs([{"name": "green"}, {"lengths": (2,)}])
    assert env.colour.name == ["green", "blue"]
    assert env.lengths == [(3, 1, 5), (2,)]
    env.close()
    with pytest.raises(TypeError, match="kwargs: got 3 of type int, expected a dict"):
        env.update_kwargs([{}, 3])  # type: ignore[list-item]
