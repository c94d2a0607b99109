"""What reaches envs in workers, and what becomes of what cannot be sent: it costs the row whose it is, and no other."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

import gymnasium as gym
import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from tensordict_zoo import CountingTensorDictEnv
from zoo import CountingEnv

from gymbridge import ParallelEnv
from gymbridge.engine.host import NOTHING
from gymbridge.envs import EnvBase, GymEnv
from gymbridge.errors import UnpicklableError
from gymbridge.specs import Composite, Unbounded


class Task(EnvBase):
    """Ends at once; what ``task`` its reset is given it shows, and which keys it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(x=Unbounded((1,)))
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((1,))
        self.given: list[list[str]] = []

    def _reset(self, tensordict: TensorDict | None, **kwargs: Any) -> TensorDict:
        self.given.append([] if tensordict is None else sorted(tensordict.keys()))
        x = torch.zeros(1) if tensordict is None or "task" not in tensordict.keys() else tensordict["task"].clone()
        return TensorDict({"x": x})

    def _step(self, tensordict: TensorDict) -> TensorDict:
        self.given.append(sorted(tensordict.keys()))
        return TensorDict({"x": torch.ones(1), "reward": torch.ones(1), "terminated": torch.tensor([True])})

    def _set_seed(self, seed: int | None) -> None:
        pass


def rooted(env: Any) -> Any:
    td = env.reset()
    td["action"] = torch.zeros(2, 1)
    td["task"] = torch.tensor([[3.0], [4.0]])
    return td


def test_a_reset_after_an_end_is_given_all_that_the_caller_has() -> None:
    """A key that no spec has too; the steps are given what the specs have alone."""
    with ParallelEnv(2, Task, num_workers=1) as env:
        _, root = env.step_and_maybe_reset(rooted(env))
        assert root["x"].tolist() == [[3], [4]]
        assert [own[-2:] for own in env.given] == [[["action"], ["done", "task", "terminated", "truncated", "x"]]] * 2


def test_what_cannot_be_sent_to_a_reset_after_an_end_costs_its_row_alone() -> None:
    with ParallelEnv(2, Task) as env:
        td = rooted(env)
        td["lock"] = NonTensorStack(threading.Lock(), "none")
        with pytest.raises(UnpicklableError, match="lock: a lock cannot be sent") as raised:
            env.step_and_maybe_reset(td)
        assert raised.value.env_index == 0  # type: ignore[attr-defined]
        partial = env.last_partial()
        assert partial["_failed"].tolist() == [True, False]
        assert partial["next", "x"][1].tolist() == [1]
        td = env.reset(TensorDict({"_reset": torch.tensor([True, False]), "x": torch.zeros(2, 1)}, [2]))
        td["action"] = torch.zeros(2, 1)
        env.step(td)


def test_a_reset_with_a_mask_sends_the_rows_that_it_picks_alone() -> None:
    with ParallelEnv(2, Task, num_workers=1) as env:
        td = rooted(env)
        td["lock"] = NonTensorStack("none", threading.Lock())
        td["_reset"] = torch.tensor([True, False])
        assert env.reset(td)["x"].tolist() == [[3], [0]]
        assert len(env.given[1]) == 1


@pytest.mark.parametrize("maker", [CountingEnv, lambda: GymEnv(CountingEnv), Task], ids=["gymnasium", "GymEnv", "own"])
def test_what_a_worker_cannot_unpickle_is_an_error_and_no_death(maker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = ModuleType("found_nowhere_else")
    exec("class Thing:\n    pass", vars(nowhere))
    monkeypatch.setitem(sys.modules, "found_nowhere_else", nowhere)
    with ParallelEnv(2, maker, num_workers=1) as env:
        env.reset()
        with pytest.raises(ModuleNotFoundError, match="found_nowhere_else"):
            env.reset(options=nowhere.Thing())
        assert env.reset().batch_size == (2,)


class Follows(Task):
    """Its tensors follow torch's default dtype."""

    def _step(self, tensordict: TensorDict) -> TensorDict:
        return TensorDict({"x": torch.ones(1), "reward": torch.ones(1), "terminated": torch.tensor([False])})


def test_torchs_default_dtype_is_that_of_the_caller() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with ParallelEnv(2, Follows) as env:
            td = env.reset()
            td["action"] = torch.zeros(2, 1)
            assert env.step(td)["next", "x"].dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_action_of_an_env_that_is_reset_may_be_anything(batched_env: Any) -> None:
    fn = [lambda: GymEnv(CountingEnv, categorical_action_encoding=False) for _ in range(2)]
    env = batched_env(2, fn, share_individual_td=False)
    td = env.rand_action(env.reset())
    td["action"][0] = False
    following = env.step_or_reset(td, torch.tensor([True, False]))
    assert following["reward"][0] == 0
    env.close()


def test_the_report_of_a_round_that_leaves_nothing_cannot_be_written_to() -> None:
    """It is shared by all engines of the process."""
    for part in (NOTHING.steps, NOTHING.resets, NOTHING.errors):
        with pytest.raises(TypeError):
            part[0] = ValueError


class RaisesInItsReset(CountingTensorDictEnv):
    def _reset(self, tensordict: Any, **kwargs: Any) -> Any:
        if getattr(self, "was_reset", False):
            raise LookupError("no second reset")
        self.was_reset = True
        return super()._reset(tensordict, **kwargs)


def test_an_error_in_a_reset_after_an_end_is_no_other_engines() -> None:
    with ParallelEnv(2, lambda: RaisesInItsReset(0)) as env, ParallelEnv(1, lambda: gym.make("CartPole-v1")) as other:
        td = env.reset()
        with pytest.raises(LookupError, match="no second reset"):
            env.rollout(50, break_when_any_done=False, tensordict=td, auto_reset=False)
        assert other.rollout(3, break_when_any_done=False).batch_size == (1, 3)
