"""``step_mdp`` of what a pool gave: of part of its envs, and of one in a lane."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict_zoo import CountingTensorDictEnv, NestedEnv

from gymbridge import AsyncEnvPool


@pytest.mark.parametrize("stack", ["dense", "lazy"])
def test_the_next_root_is_that_of_the_envs_that_were_received(stack: Any) -> None:
    pool = AsyncEnvPool([lambda index=index: CountingTensorDictEnv(index) for index in range(3)], stack=stack)
    pool.set_seed(0)
    td = pool.rand_action(pool.reset())
    pool.async_step_send(td[torch.tensor([0, 2])], [0, 2])
    step = pool.async_step_recv(min_get=2)
    root = pool.step_mdp(step)
    assert root["env_index"].tolist() == [0, 2]
    shown = [*pool.full_observation_spec.keys(True, True), "done"]
    for key in shown:
        assert torch.equal(root[key], step["next"][key])
    assert "action" not in root.keys()
    assert "reward" not in root.keys()
    pool.shutdown()


def test_each_env_has_its_own_keys() -> None:
    """Of envs that do not agree, those of the env that was received, in a batch or a lane."""
    pool = AsyncEnvPool([CountingTensorDictEnv, NestedEnv], stack="lazy")
    td = pool.rand_action(pool.reset())
    own = td[1].clone()
    pool.async_step_send(td[1:], [1])
    (batch,) = pool.step_mdp(pool.async_step_recv()).unbind(0)
    pool.async_step_send(own, env_index=1)
    lane = pool.step_mdp(pool.async_step_recv(env_index=1))
    expected = {*pool.full_observation_spec[1].keys(True, True)} | {"done", "terminated", "truncated", "env_index"}
    assert {*batch.keys(True, True)} == {*lane.keys(True, True)} == expected
    assert expected != {*pool.full_observation_spec[0].keys(True, True)} | {"done", "terminated", "truncated"}
    assert int(lane["env_index"]) == 1
    pool.shutdown()
