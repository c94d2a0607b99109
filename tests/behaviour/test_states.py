"""``state_dict`` and ``load_state_dict``: what is put back goes on as it went on before."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from by_hand import assert_equal
from engines import Engine
from tensordict_engines import TensorDictEngine
from tensordict_zoo import CountingTensorDictEnv
from zoo import CountingEnv

from gymbridge import SerialEnv
from gymbridge.envs import EnvBase


class WithState(CountingEnv):
    """Tells where it is, and can be put there."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.lock = threading.Lock()

    def get_state(self) -> Any:
        return {"t": self.t, "episode": self.episode, "lock": self.lock}

    def set_state(self, state: Any) -> None:
        assert state["lock"] is None
        self.t, self.episode = state["t"], state["episode"]


def each_state(engine: Any, state: dict[str, Any]) -> list[dict[str, Any]]:
    """The state of each env."""
    batched = engine.batch_size if isinstance(engine, Engine) else engine.batched
    if not batched:
        return [state]
    assert [*state] == [f"worker{row}" for row in range(engine.num_envs)]
    return [*state.values()]


def test_the_random_numbers_of_a_gymnasium_env_are_put_back(engine: Engine) -> None:
    """Without ``get_state`` it is they alone: steps and episodes go on where they are."""
    env = engine.make(lambda: CountingEnv([50]))
    env.set_seed(0)
    td = env.rand_action(env.reset())
    state = env.state_dict()
    assert all("np_random" in one and "state" not in one for one in each_state(engine, state))
    first = env.step(td.clone())["next", "observation"]
    env.load_state_dict(state)
    second = env.step(td.clone())["next", "observation"]
    assert second[..., 3].equal(first[..., 3])
    assert second[..., 1].eq(first[..., 1] + 1).all()


def test_the_state_of_a_gymnasium_env_is_put_back_where_it_can_be_told(engine: Engine) -> None:
    env = engine.make(lambda: WithState([50]))
    env.set_seed(0)
    td = env.rand_action(env.reset())
    state = pickle.loads(pickle.dumps(env.state_dict()))
    assert all({*one} >= {"np_random", "state"} for one in each_state(engine, state))
    assert all(one["state"]["lock"] is None for one in each_state(engine, state))
    first = env.step(td.clone())
    env.load_state_dict(state)
    assert_equal(env.step(td.clone()), first)


def test_a_state_goes_to_another_env(engine: Engine) -> None:
    env, other = engine.make(lambda: WithState([50])), engine.make(lambda: WithState([50]))
    env.set_seed(0)
    td = env.rand_action(env.rand_step(env.reset()).exclude("next"))
    other.reset()
    other.load_state_dict(env.state_dict())
    assert_equal(other.step(td.clone()), env.step(td.clone()))


@pytest.mark.parametrize(("wrong", "error"), [({}, KeyError), ({"np_random": 3}, TypeError), (3, TypeError)], ids=str)
def test_what_is_no_state_is_refused(engine: Engine, wrong: Any, error: type[Exception]) -> None:
    env = engine.make(WithState)
    env.reset()
    if wrong == {"np_random": 3}:
        wrong, error = {"np_random": 3, "more": 4}, KeyError  # lacks "state"
    with pytest.raises(error, match="state"):
        env.load_state_dict(wrong)


class Own(CountingTensorDictEnv):
    """A user's env that defines its state, a lock in it."""

    def state_dict(self) -> dict[str, Any]:
        return {"t": self.t, "episode": self.episode, "noise": self.generator.get_state(), "lock": threading.Lock()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.t, self.episode = state_dict["t"], state_dict["episode"]
        self.generator.set_state(state_dict["noise"])


def test_an_env_of_ones_own_has_the_state_that_it_defines(td_engine: TensorDictEngine) -> None:
    env: Any = td_engine.make(lambda index: Own(index, (50,)))
    td = env.rand_action(env.reset())
    state = env.state_dict()
    for one in each_state(td_engine, state):
        assert {*one} == {"t", "episode", "noise", "lock"}
        assert one["lock"] is None or not td_engine.batched
    first = [env.step(td.clone()) for _ in range(3)]
    env.load_state_dict(state)
    for one in first:
        assert_equal(env.step(td.clone()), one)


def test_an_env_that_defines_no_state_has_none(td_engine: TensorDictEngine) -> None:
    env: Any = td_engine.make(CountingTensorDictEnv)
    env.reset()
    assert each_state(td_engine, env.state_dict()) == [{}] * (td_engine.num_envs or 1)
    env.load_state_dict(env.state_dict())
    with pytest.raises(KeyError, match=r"state_dict: got the keys \['t'\], expected none: CountingTensorDictEnv"):
        env.load_state_dict({"t": 3})


def test_batches_of_batches_have_a_state_of_states() -> None:
    def two(first: int) -> EnvBase:
        return SerialEnv(2, [lambda row=row: Own(first + row, (50,)) for row in range(2)])

    env: Any = SerialEnv(2, [lambda: two(0), lambda: two(2)])
    td = env.rand_action(env.reset())
    state = env.state_dict()
    assert [*state] == [*state["worker0"]] == [*state["worker1"]] == ["worker0", "worker1"]
    first = env.step(td.clone())
    env.load_state_dict(state)
    assert_equal(env.step(td.clone()), first)
