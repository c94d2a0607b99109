"""What a policy writes under ``next``: shown to the env, overruled by it, put back, and carried to the next root."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engines import Engine
from tensordict import TensorDict, TensorDictBase
from tensordict_engines import TensorDictEngine
from tensordict_zoo import TENSORDICT_ENVS, EpisodicEnv, RecurrentEnv
from zoo import CountingEnv

from gymbridge.specs import Composite, Unbounded


class Remembers(EpisodicEnv):
    """Keeps the keys that its steps were given; episodes of one step, unless told."""

    def __init__(self, index: int = 0, lengths: tuple[int, ...] = (1,)):
        super().__init__(index, lengths)
        self.observation_spec = Composite(x=Unbounded((1,)), arm=Composite(seen=Unbounded((1,))))
        self.state_spec = Composite(hidden=Unbounded((2,)), lstm=Composite(cell=Unbounded((2,))))
        self.given: list[set[Any]] = []

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.given.append({*tensordict.keys(True, True)})
        return super()._step(tensordict)

    def observe(self, action: float) -> TensorDict:
        return TensorDict(x=torch.tensor([action]), arm=TensorDict(seen=torch.tensor([action])))


class Continues(Remembers):
    """Goes on from what it is shown under ``next``, in a group of its own; else sees its action."""

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        made = super()._step(tensordict)
        shown = tensordict.get(("next", "arm", "seen"), None)
        return made if shown is None else made.set(("arm", "seen"), shown + 1)


def with_states(env: Any, td: TensorDictBase) -> TensorDictBase:
    """With states at the root and, larger by one, under ``next``; and what no spec has beside them."""
    for key, spec in env.full_state_spec.items(True, True):
        path = (key,) if isinstance(key, str) else key
        td[key] = torch.full(spec.shape, 3.0)
        td[("next", *path)] = torch.full(spec.shape, 4.0)
    td["next", "mine"] = torch.full((*env.batch_size, 1), 5.0)
    td["next", "of", "mine"] = torch.full((*env.batch_size, 1), 6.0)
    return env.rand_action(td)


def test_those_of_the_specs_reach_the_env_and_no_others(td_engine: TensorDictEngine) -> None:
    env: Any = td_engine.make(Remembers)
    td = with_states(env, env.reset())
    td["next", "x"] = torch.full((*env.batch_size, 1), 7.0)
    td["note"] = torch.zeros(env.batch_size)
    env.step(td)
    expected = {"action", "hidden", ("lstm", "cell"), ("next", "hidden"), ("next", "lstm", "cell"), ("next", "x")}
    given = [each[-1] for each in env.given] if td_engine.batched else [env.given[-1]]
    assert given == [expected] * (td_engine.num_envs or 1)


def test_the_envs_outputs_win_and_the_others_are_put_back(td_engine: TensorDictEngine) -> None:
    env: Any = td_engine.make(Remembers)
    td = with_states(env, env.reset())
    wrong = {"x": -7.0, "reward": -7.0}
    for key, value in wrong.items():
        td["next", key] = torch.full((*env.batch_size, 1), value)
    td["next", "arm", "seen"] = torch.full((*env.batch_size, 1), -7.0)
    following = env.step(td)["next"]
    for key in ("x", "reward", ("arm", "seen")):
        assert following[key].ne(-7).all()
    assert following["hidden"].eq(4).all()
    assert following["lstm", "cell"].eq(4).all()
    assert following["mine"].eq(5).all()
    assert following["of", "mine"].eq(6).all()


def test_the_next_root_has_them_and_a_reset_row_keeps_them(td_engine: TensorDictEngine) -> None:
    """Each episode ends with its only step, so that every row of the next root is one of a reset."""
    env: Any = td_engine.make(Remembers)
    stepped, root = env.step_and_maybe_reset(with_states(env, env.reset()))
    assert stepped["next", "done"].all()
    assert not root["done"].any()
    assert root["hidden"].eq(4).all()
    assert root["lstm", "cell"].eq(4).all()
    assert root["mine"].eq(5).all()
    assert root["of", "mine"].eq(6).all()
    assert stepped["hidden"].eq(3).all()  # the root of the step before stays


def test_they_are_kept_unless_the_envs_reset_writes_them(td_engine: TensorDictEngine) -> None:
    env: Any = td_engine.make(lambda index: RecurrentEnv(index, (1, 9), forgets=True))
    root = env.reset()
    stepped, root = env.step_and_maybe_reset(with_states(env, root))
    ended = stepped["next", "done"].expand(root["hidden"].shape)
    assert ended.any()
    assert root["hidden"].equal(torch.where(ended, 0.0, 4.0))
    assert stepped["next", "hidden"].eq(4).all()


def test_rows_that_sleep_keep_their_own(td_three: TensorDictEngine) -> None:
    env: Any = td_three.make(Remembers)
    td = with_states(env, env.reset()).set("_step", torch.tensor([True, False, True]))
    stepped, root = env.step_and_maybe_reset(td)
    assert root["hidden"][:, 0].tolist() == [4, 3, 4]
    assert root["lstm", "cell"][:, 0].tolist() == [4, 3, 4]
    assert stepped["next", "hidden"].eq(4).all()


@pytest.mark.parametrize("write", ["a new tensor", "into the one that is there"])
def test_a_td_is_stepped_again_with_its_next_and_what_was_written_there(
    td_engine: TensorDictEngine, write: str
) -> None:
    """Also in a group; what the last step gave, untouched, is no word of the policy's."""
    env: Any = td_engine.make(lambda index: Continues(index, (9,)))
    td = env.rand_action(env.reset())
    td["hidden"], td["lstm", "cell"] = torch.zeros((2, *env.batch_size, 2))
    env.step(td)
    assert td["next", "arm", "seen"].equal(td["action"])
    env.step(td)
    put = td.set if write == "a new tensor" else td.set_
    put(("next", "arm", "seen"), torch.full_like(td["next", "arm", "seen"], 9.0))
    env.step(td)
    assert td["next", "arm", "seen"].eq(10.0).all()


def test_they_go_through_gymnasium_envs_too(contract: Engine) -> None:
    env = contract.make(lambda: CountingEnv([1]))
    td = env.rand_action(env.reset())
    td["lstm", "cell"] = contract.rows(1.0, 2.0)
    td["next", "lstm", "cell"] = contract.rows(3.0, 4.0)
    stepped, root = env.step_and_maybe_reset(td)
    assert stepped["next", "done"].all()
    for each in (stepped["next"], root):
        assert each["lstm", "cell"].equal(contract.rows(3.0, 4.0))
    assert stepped["lstm", "cell"].equal(contract.rows(1.0, 2.0))


@pytest.mark.parametrize("kind", ["recurrent", "forgets"])
def test_a_policy_with_a_state_runs_through_a_rollout(td_engine: TensorDictEngine, kind: str) -> None:
    """What it wrote for the next step is what it reads there, and what the env sees."""
    env: Any = td_engine.make(TENSORDICT_ENVS[kind])

    def policy(td: TensorDictBase) -> TensorDictBase:
        hidden = td.get("hidden", None)
        hidden = torch.zeros((*env.batch_size, 2)) if hidden is None else hidden
        td["hidden"] = hidden
        td["next", "hidden"] = hidden + 1
        return env.rand_action(td)

    steps = env.rollout(9, policy, break_when_any_done=False)
    assert steps["next", "hidden"].equal(steps["hidden"] + 1)
    assert steps["next", "before"].equal(steps["hidden"])
    assert steps["next", "seen"].equal(steps["next", "hidden"])
    kept = steps["next", "hidden"][..., :-1, :]
    if kind == "forgets":
        kept = torch.where(steps["next", "done"][..., :-1, :], 0.0, kept)
    assert steps["hidden"][..., 1:, :].equal(kept)
