"""What was once got wrong, or half done, by batches of TensorDict envs: each test is one way to use them oddly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium.error import ResetNeeded
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, TensorDictBase
from tensordict_zoo import BatchedEnv, BatchedWholeEnv, CountingTensorDictEnv, OnlyGroupsEnv, StatefulEnv
from zoo import CountingEnv

from gymbridge import SerialEnv
from gymbridge.envs import EnvBase, GymEnv, check_env_specs
from gymbridge.errors import EnvOutputError, SpecError
from gymbridge.specs import Composite, OneHot, Unbounded


class Walk(EnvBase):
    """Adds its action up, from 0 on, and never ends."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(x=Unbounded((1,)))
        self.action_spec = Unbounded((1,))
        self.x = torch.zeros(1)
        self.calls: list[str] = []

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        self.calls.append("reset")
        self.x = torch.zeros(1)
        return TensorDict(x=self.x)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.calls.append("step")
        self.x = self.x + tensordict["action"]
        return TensorDict(x=self.x, reward=torch.ones(1))

    def _set_seed(self, seed: int | None) -> None:
        pass


class InPlace(Walk):
    """Hands the same tensor out over and over."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.x += 1
        return TensorDict(x=self.x, reward=torch.ones(1))


LAZY = [False, True]


# ---------------------------------------------------------------- what is refused before any env has done anything


def test_a_lazy_stack_along_another_dim_is_refused(batched_env: Any) -> None:
    env = batched_env(2, BatchedEnv)
    td = env.rand_action(env.reset())
    across = LazyStackedTensorDict(*td.unbind(1), stack_dim=1)
    for call in (env.step, env.step_and_maybe_reset, env.reset):
        with pytest.raises(ValueError, match="lazy stack along dim 1, expected along the first"):
            call(across)
    env.close()


@pytest.mark.parametrize("name", ["_step", "_reset"])
@pytest.mark.parametrize("lazy", LAZY)
def test_a_mask_in_some_rows_of_a_lazy_stack_is_refused(batched_env: Any, lazy: bool, name: str) -> None:
    env = batched_env(2, Walk, share_individual_td=lazy)
    td = LazyStackedTensorDict(*env.rand_action(env.reset()).unbind(0), stack_dim=0)
    td.tensordicts[0][name] = torch.tensor(False)
    with pytest.raises(ValueError, match=rf"{name}: env 1 has masks at \[\], env 0 at"):
        _ = env.step(td) if name == "_step" else env.reset(td)
    env.close()


def test_a_mask_of_groups_that_the_batch_does_not_have_is_refused(batched_env: Any) -> None:
    env = batched_env(2, [lambda: OnlyGroupsEnv(0), lambda: CountingTensorDictEnv(1)])
    td = env.rand_action(env.reset())
    for row in td.tensordicts:
        row["agents", "_step"] = torch.zeros(2, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"_step: env 0 has masks at \[\('agents', '_step'\)\], expected"):
        env.step(td)
    env.close()


def test_a_locked_row_is_refused(batched_env: Any) -> None:
    env = batched_env(2, Walk, share_individual_td=True)
    td = env.rand_action(env.reset())
    td.tensordicts[1].lock_()
    with pytest.raises(RuntimeError, match="step: got a locked TensorDict"):
        env.step(td)
    assert [*env.calls] == [["reset"], ["reset"]]
    env.close()


def test_batches_of_their_own_are_asked_before_any_env_is_stepped(batched_env: Any) -> None:
    inner = [lambda: SerialEnv(2, lambda: CountingEnv([9])), lambda: SerialEnv(2, lambda: CountingEnv([1]))]
    env = batched_env(2, inner)
    td = env.step_mdp(env.rand_step(env.reset()))
    before = [[*own] for own in env.t]
    with pytest.raises(ResetNeeded, match=r"env 1: envs \[0, 1\] ended their episode"):
        env.step(env.rand_action(td))
    assert [[*own] for own in env.t] == before
    td["_step"] = torch.tensor([[True, True], [False, False]])
    env.step(td)  # none has failed
    env.close()


@pytest.mark.parametrize("name", ["_step", "_reset"])
def test_a_part_of_a_batch_that_is_one_whole_is_refused_before_any_env_has_done_anything(
    batched_env: Any, name: str
) -> None:
    env = batched_env(2, BatchedWholeEnv)
    td = env.rand_action(env.reset())
    before = env.state_dict(), env.step(td.clone())["next"]
    td[name] = torch.tensor([[True, True], [True, False]])
    with pytest.raises(ValueError, match=rf"env 1: {name}: BatchedWholeEnv has partial_{name[1:]}=False"):
        _ = env.step(td) if name == "_step" else env.reset(td)
    assert before[1].batch_size == (2, 2)
    env.close()


@pytest.mark.parametrize("keys", [["obsrvation"], ["done"], [("next", "reward")]])
def test_excluded_keys_that_name_nothing_are_refused(batched_env: Any, keys: list[Any]) -> None:
    for maker in (Walk, CountingEnv):
        env = batched_env(2, maker, excluded_keys=keys)
        with pytest.raises(ValueError, match="excluded_keys: "):
            env.reset()


def test_a_state_that_is_observed_has_to_stay(batched_env: Any) -> None:
    env = batched_env(2, StatefulEnv, excluded_keys=["velocity"])
    with pytest.raises(ValueError, match=r"excluded_keys: the actions or states \['velocity'\] are left out"):
        env.reset()


def test_a_batch_of_batches_of_unlike_envs_is_refused(batched_env: Any) -> None:
    env = batched_env(2, lambda: SerialEnv(2, ["CartPole-v1", "Pendulum-v1"]))
    with pytest.raises(ValueError, match=r"env 0: got a batch of envs that differ .*give all envs to one batch"):
        env.reset()


@pytest.mark.parametrize("method", ["_reset", "_step"])
def test_what_was_given_is_no_output(method: str) -> None:
    def same(self: Any, tensordict: Any, **kwargs: Any) -> Any:
        return tensordict.update(TensorDict(x=torch.zeros(1), reward=torch.ones(1)))

    kind = type("Same", (Walk,), {method: same})
    given = TensorDict(action=torch.zeros(1))
    for env, td in ((kind(), given), (SerialEnv(2, kind), torch.stack([given, given]))):
        with pytest.raises(EnvOutputError, match=rf"Same.{method}: got the TensorDict that it was given"):
            _ = env.reset(td) if method == "_reset" else env.step(env.reset().update(td))


# ---------------------------------------------------------------- what is the caller's, and what the envs'


@pytest.mark.parametrize("lazy", LAZY)
def test_an_env_that_writes_in_place_changes_nothing_that_was_returned(batched_env: Any, lazy: bool) -> None:
    env = batched_env(2, InPlace, share_individual_td=lazy)
    td = env.rollout(4, break_when_any_done=False)
    assert td["next", "x"][..., 0].tolist() == [[1, 2, 3, 4]] * 2
    env.close()


@pytest.mark.parametrize("kind", ["dense", "lazy", "own"])
def test_what_an_env_shows_later_is_not_what_the_caller_made_of_it(kind: str) -> None:
    env: Any = BatchedEnv() if kind == "own" else SerialEnv(2, Walk, share_individual_td=kind == "lazy")
    td = env.rand_step(env.reset())
    seen = {key: td["next", key].clone() for key in env.full_observation_spec.keys(True, True)}
    for key in seen:
        td["next", key].fill_(1)
    asleep = env.rand_action().set("_step", torch.tensor([False, False]))
    following = env.step(asleep)["next"]
    assert all(following[key].equal(value) for key, value in seen.items())


def test_an_action_that_an_env_changes_in_place_is_its_own(batched_env: Any) -> None:
    class Clamps(Walk):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            tensordict["action"].clamp_(-1, 1)
            return super()._step(tensordict)

    env = batched_env(2, Clamps)
    td = env.reset().set("action", torch.full((2, 1), 5.0))
    assert env.step(td)["next", "x"].eq(1).all()
    assert td["action"].eq(5).all()
    env.close()


def test_data_that_one_env_gives_are_not_the_others(batched_env: Any) -> None:
    class Talks(Walk):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            return super()._step(tensordict).set("said", NonTensorData("hi"))

    env = batched_env(2, [Talks, Walk])
    assert env.rand_step(env.reset())["next"].get("said").tolist() == ["hi", None]
    env.close()


def test_a_reward_of_a_reset_is_no_part_of_a_root() -> None:
    class Rewards(Walk):
        def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
            return super()._reset(tensordict).set("reward", torch.ones(1))

    for env in (Rewards(), SerialEnv(2, Rewards), SerialEnv(2, Rewards, share_individual_td=True)):
        assert "reward" not in env.reset().keys()
        env.rollout(4, break_when_any_done=False)


def test_options_of_a_reset_are_each_envs_own_to_the_bottom() -> None:
    class Counts(CountingEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.seen = options["deep"].pop("n")
            return super().reset(seed=seed, options=options)

    env: Any = SerialEnv(3, Counts)
    options = {"deep": {"n": 7}}
    env.reset(options=options)
    assert [*env.seen] == [7, 7, 7]
    assert options == {"deep": {"n": 7}}
    td = env.reset(options=options).set("_reset", torch.tensor([True, False, False]))
    env.reset(td, list_of_kwargs=[{"options": options}, None, None])


def test_set_attr_of_a_batch_of_batches_reaches_the_envs() -> None:
    env: Any = SerialEnv(2, lambda: SerialEnv(2, CountingEnv))
    env.reset()
    env.set_attr("mark", 7)
    assert [one.mark for batch in env.engine.envs for one in batch.engine.envs] == [7] * 4


# ---------------------------------------------------------------- rollouts and checks


def test_keys_that_are_left_out_of_lazy_rows_are_missed_by_nobody(batched_env: Any) -> None:
    env = batched_env(2, Walk, excluded_keys=["x"], share_individual_td=True)
    for told in ({"break_when_any_done": False}, {"break_when_all_done": True}, {}):
        assert "x" not in env.rollout(3, **told)["next"].keys()
    env.close()


def test_the_last_step_of_envs_with_flags_in_different_groups_is_truncated(batched_env: Any) -> None:
    env = batched_env(2, [lambda: OnlyGroupsEnv(0), Walk])
    td = env.rollout(1, set_truncated=True)
    first, second = td.unbind(0)
    assert first["next", "agents", "truncated"].all()
    assert first["next", "referee", "truncated"].all()
    assert second["next", "truncated"].all()
    env.close()


def test_a_rollout_that_goes_on_resets_only_what_is_done(batched_env: Any) -> None:
    env = batched_env(3, [lambda: OnlyGroupsEnv(0), Walk, Walk])
    td = env.step_mdp(env.rand_step(env.reset()))
    td.tensordicts[1]["done"] = td.tensordicts[1]["terminated"] = torch.tensor([True])
    env.rollout(1, auto_reset=False, tensordict=td)
    assert [env.engine.attribute(row, "calls").count("reset") for row in (1, 2)] == [2, 1]
    env.close()


@pytest.mark.parametrize(("shape", "dtype"), [((2, 3, 5), torch.float32), ((2, 3, 1), torch.int64)])
def test_an_out_of_another_shape_or_dtype_is_refused(
    batched_env: Any, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    env = batched_env(2, Walk)
    out = env.rollout(3, break_when_any_done=False)
    out["next", "x"] = torch.zeros(shape, dtype=dtype)
    with pytest.raises(ValueError, match=r"out: next.x has shape .* expected \[2, 3, 1\] and torch.float32"):
        env.rollout(3, break_when_any_done=False, out=out)
    env.close()


def test_the_check_takes_a_batch_that_is_reset_whole() -> None:
    check_env_specs(BatchedWholeEnv(), num_steps=30)
    check_env_specs(SerialEnv(2, BatchedWholeEnv), num_steps=5)


def test_a_lone_reward_is_the_usual_one_unless_told() -> None:
    assert Walk().full_reward_spec["reward"].shape == (1,)
    check_env_specs(Walk())


def test_what_an_env_with_a_device_returns_is_on_it() -> None:
    env = Walk()
    env.to("cpu")
    assert env.reset().device == torch.device("cpu")
    assert env.rand_step(env.reset())["next"].device == torch.device("cpu")


def test_one_env_of_a_gym_env_batch_may_be_left_out_with_an_action_that_is_no_choice() -> None:
    make = lambda: SerialEnv(2, lambda: GymEnv(CountingEnv, categorical_action_encoding=False))  # noqa: E731
    env = SerialEnv(2, make)
    td = env.rand_action(env.reset())
    td["action"][0, 1] = False
    td["_step"] = torch.tensor([[True, False], [True, True]])
    env.step(td)


# ---------------------------------------------------------------- what one row does to what is handed out


class EndsAt2(InPlace):
    """Ends at 2, and zeroes in its reset the tensor that it handed out."""

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        self.x.zero_()
        return TensorDict(x=self.x)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(tensordict).set("terminated", self.x == 2)


@pytest.mark.parametrize("lazy", LAZY)
@pytest.mark.parametrize("mask", [[True, True], [True, False]])
def test_a_final_observation_outlives_the_reset_in_the_same_tensor(batched_env: Any, lazy: bool, mask: Any) -> None:
    env = batched_env(2, EndsAt2, share_individual_td=lazy)
    _, td = env.step_and_maybe_reset(env.rand_action(env.reset()))
    td = env.rand_action(td).set("_step", torch.tensor(mask))
    td, root = env.step_and_maybe_reset(td)
    assert td["next", "x"][0].tolist() == [2.0]
    assert root["x"][0].tolist() == [0.0]


class OneOfThree(Walk):
    """Chooses one of three."""

    def __init__(self) -> None:
        super().__init__()
        self.action_spec = OneHot(3, dtype=torch.float32)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return TensorDict(x=tensordict["action"].sum(-1, keepdim=True), reward=torch.ones(1))


@pytest.mark.parametrize("action", [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
def test_a_one_hot_action_that_is_none_is_refused(batched_env: Any, action: list[float]) -> None:
    env = batched_env(2, OneOfThree)
    td = env.rand_action(env.reset())
    td["action"][1] = torch.tensor(action)
    with pytest.raises(SpecError, match=r"env 1: 'action': out of domain"):
        env.step(td)


class Grows(Walk):
    """Gives more and more that is in no spec, and raises at 2 if it is told to."""

    raises = False

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        stepped = super()._step(tensordict)
        if self.raises:
            raise ZeroDivisionError("the env's own")
        return stepped.set("extra", torch.ones(len(self.calls)))


def test_the_error_of_an_env_comes_before_that_of_rows_that_do_not_fit(batched_env: Any) -> None:
    env = batched_env(3, Grows)
    td = env.rand_action(env.reset())
    td = env.step(td)
    td["_reset"] = torch.tensor([True, False, False])
    td = env.rand_action(env.reset(td).exclude("next"))
    env.set_attr("raises", [False, True, False])
    with pytest.raises(ZeroDivisionError, match="the env's own"):
        env.step(td)
