"""Observations and actions that are no arrays: texts, graphs, sequences and the like, as non-tensor data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from agreement import assert_same
from engines import Engine
from tensordict import TensorDictBase
from zoo import OBJECT_SPACES, ObjectEnv

from gymbridge.envs import check_env_specs
from gymbridge.spaces import from_tensordict


def rows_of(engine: Engine, td: TensorDictBase) -> list[TensorDictBase]:
    return [td] if not engine.batch_size else [td[row] for row in range(engine.num_envs)]


@pytest.mark.parametrize("name", OBJECT_SPACES)
def test_objects_are_those_of_envs_run_by_hand(engine: Engine, name: str) -> None:
    """Observations of steps and resets, with an env of a batch asleep now and then; actions as the envs get them."""
    space = OBJECT_SPACES[name]
    made: list[ObjectEnv] = []

    def make() -> ObjectEnv:
        made.append(ObjectEnv(space))
        return made[-1]

    env = engine.make(make)
    env.set_seed(0)
    hand = [ObjectEnv(space) for _ in range(engine.num_envs)]
    latest = [one.reset(seed=row)[0] for row, one in enumerate(hand)]
    td = env.reset()
    assert_same([from_tensordict(space, row) for row in rows_of(engine, td)], latest)
    for index in range(7):
        picked = [index % 3 != 1 or row == 0 for row in range(engine.num_envs)]
        td = env.rand_action(td)
        if not all(picked):
            td["_step"] = engine.rows(*picked)
        stepped, td = env.step_and_maybe_reset(td)
        for row, one in enumerate(hand):
            if picked[row]:
                latest[row], _, ended, _, _ = one.step(None)
                final = latest[row]
                if ended:
                    latest[row] = one.reset()[0]
            else:
                final = latest[row]
            assert_same(from_tensordict(space, rows_of(engine, stepped["next"])[row]), final)
        assert_same([from_tensordict(space, row) for row in rows_of(engine, td)], latest)
    assert all(space.contains(action) for one in made[-engine.num_envs :] for action in one.actions)
    check_env_specs(env)


def test_an_object_handed_out_is_the_callers(engine: Engine) -> None:
    """What the env does to it later is not seen, and neither do ``next`` and the next root share it."""

    class Growing(ObjectEnv):
        def reset(self, **kwargs: Any) -> Any:
            super().reset(**kwargs)
            self.shown = (np.zeros(2, np.float32),)
            return self.shown, {}

        def step(self, action: Any) -> Any:
            self.shown[0][:] += 1
            return self.shown, 1.0, False, False, {}

    env = engine.make(lambda: Growing(OBJECT_SPACES["sequence"]))
    first = env.reset()
    stepped, root = env.step_and_maybe_reset(env.rand_action(first.copy()))
    one = rows_of(engine, stepped["next"])[0].get("observation").data
    other = rows_of(engine, root)[0].get("observation").data
    assert rows_of(engine, first)[0].get("observation").data[0].tolist() == [0, 0]
    one[0][:] = 9
    assert other[0].tolist() == [1, 1]


def test_rollouts_stack_objects(engine: Engine) -> None:
    env = engine.make(lambda: ObjectEnv(OBJECT_SPACES["text"]))
    env.set_seed(1)
    steps = env.rollout(4, break_when_any_done=False)
    texts = torch.tensor([len(text) for text in np.ravel(steps["next"].get("observation").tolist())])
    assert texts.numel() == 4 * engine.num_envs
    assert texts.gt(0).all()


def test_a_missing_or_wrong_object_action_is_named(engine: Engine) -> None:
    env = engine.make(lambda: ObjectEnv(OBJECT_SPACES["text"]))
    td = env.reset()
    with pytest.raises(KeyError, match="action: missing"):
        env.step(td)
    td["action"] = torch.zeros(engine.batch_size)
    with pytest.raises((ValueError, TypeError), match="action"):
        env.step(td)
