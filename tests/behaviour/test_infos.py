"""Infos as leaves: which are kept, what they look like, and where they are absent."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from engines import Engine
from tensordict import TensorDict
from zoo import CountingEnv

from gymbridge.envs import GymEnv, check_env_specs
from gymbridge.errors import EnvOutputError
from gymbridge.specs import Composite, NonTensor, Unbounded

INFOS = Composite(
    t=Unbounded((), dtype=torch.int64),
    final=Unbounded((2,), dtype=torch.int64),
    begun=Unbounded((), dtype=torch.int64),
    nested=Composite(half=Unbounded((), dtype=torch.float64)),
)


def test_without_a_word_they_are_dropped(engine: Engine) -> None:
    env = engine.make(CountingEnv)
    td = env.rand_step(env.reset())
    assert "info" not in td.keys()
    assert "info" not in td["next"].keys()


def test_those_named_are_leaves_with_a_mask(engine: Engine) -> None:
    """``final`` appears at an episode's end only, ``begun`` in resets only."""
    env = engine.make(lambda: CountingEnv([2]), info=INFOS)
    lead = engine.batch_size
    td = env.reset()
    info = td["info"]
    assert info["begun"].eq(0).all()
    assert info["_mask", "begun"].all()
    assert not info["_mask", "t"].any()
    assert not info["_mask", "nested", "half"].any()
    stepped, td = env.step_and_maybe_reset(env.rand_action(td))
    info = stepped["next", "info"]
    assert (info["t"].dtype, info["nested", "half"].dtype) == (torch.int64, torch.float64)
    assert (info["t"].shape, info["final"].shape) == (lead, (*lead, 2))
    assert info["_mask", "final"].shape == lead
    assert info["_mask", "final"].dtype is torch.bool
    assert info["t"].eq(1).all()
    assert info["nested", "half"].eq(0.5).all()
    assert info["_mask", "t"].all()
    assert info["_mask", "nested", "half"].all()
    assert not info["_mask", "final"].any()
    assert info["final"].eq(0).all()
    stepped, td = env.step_and_maybe_reset(env.rand_action(td))
    info = stepped["next", "info"]
    assert info["_mask", "final"].all()
    assert info["final"].reshape(-1, 2).tolist() == [[0, 2]] * engine.num_envs
    root = td["info"]  # those of the reset
    assert root["begun"].eq(1).all()
    assert root["_mask", "begun"].all()
    assert not root["_mask", "final"].any()
    assert root["final"].eq(0).all()
    stepped, td = env.step_and_maybe_reset(env.rand_action(td))
    assert stepped["next", "info", "final"].eq(0).all()  # what was there before is not shown again
    assert not stepped["next", "info", "_mask", "begun"].any()


def test_those_that_are_not_named_are_left_out(engine: Engine) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = engine.make(CountingEnv, info=Composite(t=Unbounded((), dtype=torch.int64)))
        td = env.rand_step(env.reset())
    assert set(td["next", "info"].keys(True, True)) == {"t", ("_mask", "t")}


def test_the_spec_of_what_an_env_returns_names_the_same_entries(engine: Engine) -> None:
    """With its masks, as it stands in the env's observation spec."""
    spec = GymEnv(CountingEnv, info=INFOS).observation_spec["info"]
    env = engine.make(CountingEnv, info=spec)
    row = env.full_observation_spec["info"]
    assert (row[0] if env.batch_size else row) == spec
    td = env.rand_step(env.reset())
    assert td["next", "info", "_mask", "t"].all()
    check_env_specs(env)


def test_auto_finds_those_of_an_episodes_end_too(engine: Engine) -> None:
    env = engine.make(lambda: CountingEnv([3]), info="auto")
    spec = env.full_observation_spec["info"]
    assert set(spec.keys(True, True)) == {
        *("begun", "t", "final", ("nested", "half")),
        *[("_mask", "begun"), ("_mask", "t"), ("_mask", "final"), ("_mask", "nested", "half")],
    }
    assert spec["final"].shape == (*engine.batch_size, 2)
    assert spec["nested", "half"].dtype is torch.float64
    td = env.rollout(3, break_when_any_done=False)
    assert td["next", "info", "t"].reshape(-1, 3).tolist() == [[1, 2, 3]] * engine.num_envs
    assert td["next", "info", "_mask", "final"].reshape(-1, 3).tolist() == [[False, False, True]] * engine.num_envs


def test_auto_looks_at_an_env_of_its_own(engine: Engine) -> None:
    env = engine.make(CountingEnv, info="auto")
    assert env.reset()["info", "begun"].eq(0).all()  # its first episode


def test_auto_needs_an_env_that_it_can_make(engine: Engine) -> None:
    with pytest.raises(TypeError, match="info='auto' looks at a separate env"):
        GymEnv(CountingEnv(), info="auto")


@pytest.mark.usefixtures("in_process")
def test_unknown_entries_that_come_later_are_warned_of_once(engine: Engine) -> None:
    class Later(CountingEnv):
        def step(self, action: Any) -> Any:
            *outcome, info = super().step(action)
            if self.episode > 1:
                info["late"] = 1
                info["group"] = {"later": 2}
            return (*outcome, info)

    env = engine.make(lambda: Later([1]), info="auto")
    with pytest.warns(UserWarning, match=r"left out: \['group.later', 'late'\]") as caught:
        td = env.rollout(8, break_when_any_done=False)
    assert len(caught) <= engine.num_envs
    assert "late" not in td["next", "info"].keys()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.rollout(8, break_when_any_done=False)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int32, np.uint16, np.float16, np.float32])
def test_each_keeps_its_own_dtype(engine: Engine, dtype: Any) -> None:
    class Typed(CountingEnv):
        def step(self, action: Any) -> Any:
            return (*super().step(action)[:4], {"scalar": dtype(1), "array": np.ones((2, 1), dtype)})

    expected = torch.from_numpy(np.ones(1, dtype)).dtype
    env = engine.make(lambda: Typed([1]), info="auto")
    info = env.rand_step(env.reset())["next", "info"]
    for key, shape in (("scalar", ()), ("array", (2, 1))):
        assert info[key].dtype is expected
        assert info[key].shape == (*engine.batch_size, *shape)
        assert info[key].to(torch.float64).eq(1).all()


def test_those_of_sleeping_envs_are_zero_in_next_and_their_own_in_the_root(batch: Engine) -> None:
    env = batch.make(CountingEnv, info=INFOS)
    td = env.step_mdp(env.rand_step(env.reset()))
    mask = torch.arange(batch.num_envs) == 0
    before = td.clone()
    stepped, root = env.step_and_maybe_reset(env.rand_action(td).set("_step", mask))
    others = ~mask
    assert stepped["next", "info", "t"].tolist() == [2] + [0] * (batch.num_envs - 1)
    assert stepped["next", "info", "_mask", "t"].tolist() == mask.tolist()
    assert root["info", "t"][others].equal(before["info", "t"][others])
    assert root["info", "_mask", "t"].all()
    bare = env.reset(TensorDict({"_reset": mask}, batch.batch_size))
    assert bare["info", "t"].tolist() == [0] + [1] * (batch.num_envs - 1)
    assert bare["info", "_mask", "t"].tolist() == others.tolist()


def test_an_entry_that_does_not_fit_names_env_key_got_and_expected(engine: Engine) -> None:
    class Wrong(CountingEnv):
        def step(self, action: Any) -> Any:
            return (*super().step(action)[:4], {"t": np.zeros(3)})

    env = engine.make(Wrong, info=INFOS)
    td = env.rand_action(env.reset())
    with pytest.raises(EnvOutputError, match=r"env 0: info.t: got shape \(3,\) and dtype float64, expected \(\) and"):
        env.step(td)


@pytest.mark.parametrize(
    ("info", "error", "told"),
    [
        (7, TypeError, "info: got 7, expected None, 'auto' or a Composite"),
        ("all", TypeError, "info: got 'all', expected None, 'auto' or a Composite"),
        (Composite(shape=torch.Size([2])), ValueError, r"info: got batch shape \[2\]"),
        (Composite(_mask=Unbounded(())), ValueError, "info: got the key '_mask'"),
        (
            Composite(t=Unbounded(()), _mask=Composite(u=Unbounded((), dtype=torch.bool))),
            ValueError,
            "info: got the key '_mask'",
        ),
        (Composite(x=NonTensor((2,))), ValueError, r"info: x has the batch shape \[2\]"),
        (Composite(x=Unbounded((), dtype=torch.bfloat16)), TypeError, "info: x has dtype torch.bfloat16"),
    ],
    ids=["a number", "a word", "a batch", "_mask", "_mask of others", "non-tensor", "bfloat16"],
)
def test_what_is_no_spec_of_infos_is_refused(engine: Engine, info: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        engine.make(CountingEnv, info=info).reset()


def test_an_env_of_few_infos_has_the_group_all_the_same(engine: Engine) -> None:
    class Silent(CountingEnv):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], {}

        def step(self, action: Any) -> Any:
            return (*super().step(action)[:4], {})

    env = engine.make(Silent, info="auto")
    td = env.rand_step(env.reset())
    assert env.full_observation_spec["info"].is_empty()
    assert td["next", "info"].is_empty() if "info" in td["next"].keys() else True
