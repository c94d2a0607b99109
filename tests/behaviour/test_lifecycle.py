"""The life of a batch: start, move, copy, close and start again; and one call at a time."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest
import torch
from by_hand import assert_equal
from tensordict import TensorDict, TensorDictBase
from tensordict_zoo import CountingTensorDictEnv, TaskEnv
from zoo import CountingEnv

from gymbridge import SerialEnv
from gymbridge.envs import EnvBase, EnvCreator, GymEnv

KINDS: dict[str, Any] = {
    "gymnasium": [CountingEnv] * 2,
    "own": [lambda: CountingTensorDictEnv(0), lambda: CountingTensorDictEnv(1)],
    "unlike": [CountingEnv, lambda: TaskEnv(1)],
}


@pytest.fixture(params=KINDS)
def makers(request: pytest.FixtureRequest) -> Any:
    """Makers of two envs: gymnasium's, TensorDict envs, some of each."""
    return KINDS[request.param]


def counted(fns: Any) -> tuple[list[Any], list[int]]:
    """Makers that count what they make."""
    made: list[int] = []

    def counting(fn: Callable[[], Any]) -> Callable[[], Any]:
        def make() -> Any:
            made.append(1)
            return fn()

        return make

    return [counting(fn) for fn in fns], made


# ---------------------------------------------------------------- start and close

USES: dict[str, Callable[[Any], Any]] = {
    "reset": lambda env: env.reset(),
    "rollout": lambda env: env.rollout(2),
    "batch_size": lambda env: env.batch_size,
    "observation_spec": lambda env: env.observation_spec,
    "full_action_spec": lambda env: env.full_action_spec,
    "specs": lambda env: env.specs,
    "action_keys": lambda env: env.action_keys,
    "has_dynamic_specs": lambda env: env.has_dynamic_specs,
    "fake_tensordict": lambda env: env.fake_tensordict(),
    "rand_action": lambda env: env.rand_action(),
    "state_dict": lambda env: env.state_dict(),
    "set_attr": lambda env: env.set_attr("x", 1),
    "an attribute": lambda env: env.t,
    "start": lambda env: env.start(),
}


@pytest.mark.parametrize("use", USES)
def test_it_starts_at_the_first_use(makers: Any, use: str) -> None:
    fns, made = counted(makers)
    env = SerialEnv(2, fns)
    assert repr(env)
    assert env.num_envs == 2
    assert env.last_partial() is None
    assert not env.is_closed
    assert made == []
    USES[use](env)
    assert len(made) == 2
    env.reset()
    assert len(made) == 2
    env.close()


def test_a_start_is_once(batched_env: Any, makers: Any) -> None:
    env = batched_env(2, makers)
    assert env.start() is env
    with pytest.raises(RuntimeError, match=f"start: {batched_env.__name__} is running already"):
        env.start()
    assert env.is_spec_locked
    with pytest.raises(RuntimeError, match="locked"):
        env.reward_spec = env.reward_spec
    env.close()


def test_closed_envs_start_again(batched_env: Any, makers: Any) -> None:
    """As new ones: their episodes are the first, and seeds given in between are theirs."""
    env = batched_env(2, makers)
    env.set_seed(3)
    first = env.rollout(2)
    env.close()
    assert env.is_closed
    with pytest.raises(RuntimeError, match="is closed already"):
        env.close()
    env.close(raise_if_closed=False)
    env.set_seed(3)
    assert_equal(env.rollout(2), first)
    assert not env.is_closed
    env.close()
    assert env.start() is env
    with env:
        env.reset()
    assert env.is_closed


def test_a_step_after_a_restart_is_refused_until_a_reset(batched_env: Any) -> None:
    env = batched_env(2, CountingEnv)
    td = env.rand_action(env.reset())
    env.close()
    with pytest.raises(gym.error.ResetNeeded, match=r"envs \[0, 1\] have not been reset yet"):
        env.step(td)
    env.close()


def test_specs_are_those_of_the_envs_that_start_next(batched_env: Any) -> None:
    """What ``update_kwargs`` changes is not described by what was there before."""
    env = batched_env(2, CountingEnv)
    assert env.action_spec.dtype == torch.int64
    with pytest.raises(RuntimeError, match=f"update_kwargs: {batched_env.__name__} is running, close it first"):
        env.update_kwargs({"continuous": True})
    env.close()
    env.update_kwargs({"continuous": True})
    assert env.action_spec.shape == (2, 2)
    assert env.action_spec.dtype == torch.float32
    env.close()
    env.update_kwargs([{"lengths": (1,)}, {"lengths": (2,)}])
    assert env.lengths == [(1,), (2,)]
    assert env.action_spec.dtype == torch.float32  # merged, not replaced
    env.close()
    for wrong, told in (
        ([{}], "kwargs: got a list of 1, expected 2"),
        (3, "kwargs: got 3"),
        ([{}, 3], "kwargs: got 3"),
    ):
        with pytest.raises((TypeError, ValueError), match=told):
            env.update_kwargs(wrong)


def test_a_maker_that_fails_can_be_tried_again() -> None:
    broken = [True]

    def make() -> gym.Env:
        if broken[0]:
            raise OSError("no display")
        return CountingEnv()

    env = SerialEnv(2, make)
    for _ in range(2):
        with pytest.raises(OSError, match="no display"):
            env.reset()
    broken[0] = False
    assert env.reset().batch_size == (2,)
    env.close()


# ---------------------------------------------------------------- arguments


def test_num_workers_alone_is_the_number_of_envs(batched_env: Any) -> None:
    env = batched_env(num_workers=3, create_env_fn=CountingEnv)
    assert env.num_envs == 3
    assert env.num_workers == 3
    assert env.reset().batch_size == (3,)
    env.close()
    for wrong, error in ((0, ValueError), ("3", TypeError), (True, TypeError)):
        with pytest.raises(error, match=f"num_workers: got {wrong!r}"):
            batched_env(num_workers=wrong, create_env_fn=CountingEnv)
        with pytest.raises(error, match=f"num_workers: got {wrong!r}"):
            batched_env(2, CountingEnv, num_workers=wrong)
    with pytest.raises(TypeError, match="num_envs: got None"):
        batched_env(create_env_fn=CountingEnv)


@pytest.mark.parametrize("name", ["pin_memory", "allow_step_when_done", "metadata_from_workers"])
def test_options_that_mean_nothing_here_are_not_taken(batched_env: Any, name: str) -> None:
    with pytest.raises(TypeError, match=name):
        batched_env(2, CountingEnv, **{name: True})


def test_auto_wrap_envs_is_taken_and_lambdas_work_either_way(batched_env: Any) -> None:
    for wrap in (True, False):
        env = pickle.loads(pickle.dumps(batched_env(2, lambda: CountingEnv([4]), auto_wrap_envs=wrap)))
        assert env.lengths == [[4], [4]]
        env.close()


@pytest.mark.parametrize("name", ["share_individual_td", "use_buffers"])
def test_options_of_three_values_refuse_others(batched_env: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}: got 'yes', expected True, False or None"):
        batched_env(2, CountingEnv, **{name: "yes"})


def test_each_env_gets_a_copy_of_the_kwargs(batched_env: Any) -> None:
    """Also of what is in them: an env that changes its own changes no other's."""
    given = {"lengths": [5]}
    env = batched_env(2, CountingEnv, create_env_kwargs=given)
    given["lengths"].append(6)
    assert env.lengths == [[5], [5]]
    env.close()
    for wrong, told in (([{}], "got a list of 1, expected 2"), (3, "got 3"), ([{}, "x"], "got 'x'")):
        with pytest.raises((TypeError, ValueError), match=f"create_env_kwargs: {told}"):
            batched_env(2, CountingEnv, create_env_kwargs=wrong)


def test_add_truncated_keys_is_refused_with_where_to_call_it(batched_env: Any) -> None:
    with pytest.raises(RuntimeError, match=r"add_truncated_keys: call it on the envs that .* runs"):
        batched_env(2, CountingEnv).add_truncated_keys()


def test_sub_envs_of_differing_batch_sizes_are_refused() -> None:
    fns = [lambda: SerialEnv(1, CountingEnv), lambda: SerialEnv(2, CountingEnv)]
    with pytest.raises(ValueError, match=r"env 1: got batch size \[2\], expected \[1\] as env 0 has it"):
        SerialEnv(2, fns).reset()


def own_object() -> Callable[[], Any]:
    env = CountingTensorDictEnv(0)
    return lambda: env


def gym_object() -> Callable[[], Any]:
    env = CountingEnv()
    return lambda: env


def wrapped(make: Callable[[], Any], around: Callable[[Any], Any]) -> Callable[[], Any]:
    """A maker whose envs differ, and what they wrap does not."""
    return lambda: around(make)


TWICE: dict[str, Callable[[], Any]] = {
    "a gymnasium env": gym_object,
    "in wrappers": lambda: wrapped(gym_object(), lambda make: gym.wrappers.TimeLimit(make(), 9)),
    "in a GymEnv": lambda: wrapped(gym_object(), lambda make: GymEnv(make())),
    "a TensorDict env": own_object,
    "in batches of their own": lambda: wrapped(gym_object(), lambda make: SerialEnv(1, make)),
    "a TensorDict env in batches": lambda: wrapped(own_object(), lambda make: SerialEnv(1, make)),
}


@pytest.mark.parametrize("case", TWICE)
def test_one_env_object_twice_is_refused(case: str) -> None:
    with pytest.raises(ValueError, match="the makers of envs 0 and 1 gave one and the same env: ") as caught:
        SerialEnv(2, TWICE[case]()).reset()
    assert len(str(caught.value)) < 200


def test_one_env_object_among_others_is_refused() -> None:
    twice = gym_object()
    with pytest.raises(ValueError, match="the makers of envs 0 and 2 gave one and the same env"):
        SerialEnv(3, [twice, CountingTensorDictEnv, lambda: GymEnv(twice())]).reset()


# ---------------------------------------------------------------- devices


def test_it_moves_before_the_start(batched_env: Any, makers: Any) -> None:
    """A batch that closed has seeds wait for its start; a move does not lose them."""
    env, other = batched_env(2, makers), batched_env(2, makers)
    env.start()
    env.close()
    env.set_seed(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert env.to("cpu") is env
    other.set_seed(4)
    td = env.reset()
    assert td.device == torch.device("cpu")
    assert_equal(td, other.reset().to("cpu"))
    for each in (env, other):
        each.close()


def test_a_move_gives_seeds_again_with_a_warning(batched_env: Any, makers: Any) -> None:
    """And keeps the envs: their counts of episodes go on."""
    env = batched_env(2, makers)
    env.set_seed(4)
    env.reset()
    before = env.episode
    with pytest.warns(UserWarning, match=r"to: .* moves to cpu; the seeds \[4, 5\] are given again"):
        env.to("cpu")
    assert env.episode == before
    assert env.device == torch.device("cpu")
    env.reset()
    assert env.episode == [episode + 1 for episode in before]
    env.close()


def test_the_seeds_after_a_move_are_the_first_ones(batched_env: Any) -> None:
    env = batched_env(2, CountingEnv)
    env.set_seed(4)
    drawn = env.reset()["observation"][:, 3]
    with pytest.warns(UserWarning, match="given again"):
        env.to("cpu")
    assert env.reset()["observation"][:, 3].equal(drawn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.to("cpu")  # where it is already
    assert not env.reset()["observation"][:, 3].equal(drawn)
    env.close()


def test_a_move_without_seeds_warns_of_nothing(batched_env: Any, makers: Any) -> None:
    env = batched_env(2, makers)
    env.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        td = env.to("cpu").rand_step(env.reset())
    assert td["next"].device == torch.device("cpu")
    env.close()


# ---------------------------------------------------------------- pickles


@pytest.mark.parametrize("again", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["copy", "pickle"])
@pytest.mark.parametrize("state", ["new", "running", "closed"])
def test_a_copy_has_the_configuration_and_the_engine_goes_on(
    batched_env: Any, makers: Any, again: Any, state: str
) -> None:
    env = batched_env(2, makers, excluded_keys=["reward"])
    td = None
    if state != "new":
        td = env.rand_action(env.reset())
    if state == "closed":
        env.close()
    other = again(env)
    assert other.is_closed == env.is_closed
    other.set_seed(2)
    assert other.reset().batch_size == (2,)
    assert "reward" not in other.full_reward_spec.keys()
    if state == "running":
        assert env.step(td).batch_size == (2,)  # in the episode that it was in
        assert env.t == [1, 1]
        assert other.t == [0, 0]
    env.close(raise_if_closed=False)
    other.close()


def test_what_a_creator_and_an_id_make_is_pickled(batched_env: Any) -> None:
    for fns in ("CartPole-v1", EnvCreator(lambda: GymEnv(CountingEnv)), ["CartPole-v1", "Pendulum-v1"]):
        env = pickle.loads(pickle.dumps(batched_env(2, fns)))
        assert env.reset().batch_size == (2,)
        env.close()


# ---------------------------------------------------------------- one call at a time

CALLS: dict[str, Callable[[Any, TensorDictBase], Any]] = {
    "reset": lambda env, td: env.reset(),
    "step": lambda env, td: env.step(td),
    "step_and_maybe_reset": lambda env, td: env.step_and_maybe_reset(td),
    "set_seed": lambda env, td: env.set_seed(0),
    "state_dict": lambda env, td: env.state_dict(),
    "load_state_dict": lambda env, td: env.load_state_dict({}),
    "set_attr": lambda env, td: env.set_attr("x", 1),
    "to": lambda env, td: env.to("cpu"),
    "close": lambda env, td: env.close(),
}


class Hooked(CountingTensorDictEnv):
    """Calls ``hook`` in each step and reset."""

    hook: Callable[[], Any] | None = None

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        if self.hook is not None:
            self.hook()
        return super()._step(tensordict)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        if self.hook is not None:
            self.hook()
        return super()._reset(tensordict, **kwargs)


@pytest.mark.parametrize("other", CALLS)
@pytest.mark.parametrize("call", ["reset", "step", "step_and_maybe_reset"])
def test_a_second_thread_is_refused_and_the_first_gets_its_own(call: str, other: str) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert go_on.wait(30)

    env = SerialEnv(2, Hooked)
    mine = env.rand_action(env.reset())
    theirs = mine.clone()
    env.set_attr("hook", [None, hold])
    results: list[Any] = []
    first = threading.Thread(target=lambda: results.append(CALLS[call](env, mine)))
    first.start()
    try:
        assert entered.wait(30)
        with pytest.raises(RuntimeError, match=rf"^{other}: refused while a call of {call} is under way"):
            CALLS[other](env, theirs)
    finally:
        go_on.set()
        first.join()
    assert len(results) == 1
    assert "next" not in theirs.keys()
    if call != "reset":
        assert mine["next", "count"].eq(1).all()
    env.close()


@pytest.mark.parametrize("other", CALLS)
def test_an_env_that_calls_its_own_batch_is_refused(other: str) -> None:
    env: Any = SerialEnv(2, Hooked)
    td = env.rand_action(env.reset())
    theirs = td.clone()
    env.set_attr("hook", [None, lambda: CALLS[other](env, theirs)])
    with pytest.raises(RuntimeError, match=rf"^{other}: refused while a call of step is under way"):
        env.step(td)
    env.set_attr("hook", None)
    assert env.reset()["count"].eq(0).all()  # it is not stuck
    env.close()


def test_a_second_thread_starts_nothing_twice() -> None:
    """Nor does a maker that asks the batch that it makes an env for."""
    entered, go_on = threading.Event(), threading.Event()
    made: list[int] = []

    def make() -> EnvBase:
        made.append(1)
        entered.set()
        assert go_on.wait(30)
        return CountingTensorDictEnv()

    env = SerialEnv(2, make)
    first = threading.Thread(target=lambda: env.observation_spec)
    first.start()
    try:
        assert entered.wait(30)
        for use in (lambda: env.observation_spec, env.reset, lambda: env.batch_size):
            with pytest.raises(RuntimeError, match=r"^start: refused while a start is under way"):
                use()
    finally:
        go_on.set()
        first.join()
    assert len(made) == 2
    assert env.reset().batch_size == (2,)
    env.close()

    asking: Any = SerialEnv(1, lambda: asking.observation_spec)
    with pytest.raises(RuntimeError, match=r"^start: refused while a start is under way"):
        asking.reset()


# ---------------------------------------------------------------- states


class Saves(CountingTensorDictEnv):
    """Tells its state, a lock in it."""

    def state_dict(self) -> dict[str, Any]:
        return {"t": self.t, "deep": {"lock": threading.Lock()}}

    def load_state_dict(self, state_dict: Any) -> None:
        assert state_dict["deep"]["lock"] is None
        self.t = state_dict["t"]


def test_states_of_tensordict_envs_go_through_without_their_locks(batched_env: Any) -> None:
    """One an env, or one for all."""
    env = batched_env(2, [lambda: Saves(0, (9,)), lambda: Saves(1, (9,))])
    td = env.rand_action(env.reset()).set("_step", torch.tensor([True, False]))
    env.step(td)
    state = pickle.loads(pickle.dumps(env.state_dict()))
    assert state == {f"worker{row}": {"t": 1 - row, "deep": {"lock": None}} for row in range(2)}
    env.reset()
    assert env.t == [0, 0]
    env.load_state_dict(state)
    assert env.t == [1, 0]
    env.load_state_dict(state["worker0"])
    assert env.t == [1, 1]
    env.load_state_dict({"worker1": state["worker1"]})  # a part: the others stay
    assert env.t == [1, 0]
    for wrong, error in (({"worker2": {}}, KeyError), ({**state, "worker2": {}}, KeyError), (3, TypeError)):
        with pytest.raises(error, match="state_dict: got"):
            env.load_state_dict(wrong)
    env.close()
