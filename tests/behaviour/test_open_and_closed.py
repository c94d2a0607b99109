"""TensorDict envs: closing, context managers, what ``repr`` shows, and random actions that repeat."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import assert_equal
from tensordict_engines import TensorDictEngine
from tensordict_zoo import TENSORDICT_ENVS, CountingTensorDictEnv

from gymbridge.envs import EnvBase


class Closes(CountingTensorDictEnv):
    """Notes in a list of the class that it was closed."""

    closed: list[int]

    def close(self, *, raise_if_closed: bool = True) -> None:
        super().close(raise_if_closed=raise_if_closed)
        self.closed.append(self.index)


def closing(engine: TensorDictEngine) -> tuple[EnvBase, list[int]]:
    noted: list[int] = []
    kind: Any = type("Closes", (Closes,), {"closed": noted})
    return engine.make(kind), noted


@pytest.mark.usefixtures("in_process")
def test_each_env_is_closed_once(td_engine: TensorDictEngine) -> None:
    env, noted = closing(td_engine)
    env.rollout(2)
    assert not env.is_closed
    assert noted == []
    env.close()
    assert env.is_closed
    assert sorted(noted) == [*range(td_engine.num_envs or 1)]
    with pytest.raises(RuntimeError, match=r"close: .* is closed already"):
        env.close()
    if td_engine.batched:
        env.close(raise_if_closed=False)
        assert len(noted) == td_engine.num_envs


@pytest.mark.usefixtures("in_process")
def test_a_context_manager_closes_after_an_error_too(td_engine: TensorDictEngine) -> None:
    env, noted = closing(td_engine)
    env.reset()
    with pytest.raises(ZeroDivisionError), env:
        _ = 1 / 0
    assert env.is_closed
    assert len(noted) == (td_engine.num_envs or 1)


@pytest.mark.parametrize("kind", ["counting", "groups alone", "stateful", "strings", "tasks"])
def test_repr_shows_batch_size_device_and_specs(td_engine: TensorDictEngine, kind: str) -> None:
    env = td_engine.make(TENSORDICT_ENVS[kind])
    env.reset()
    shown = repr(env)
    assert shown.startswith(type(env).__name__)
    assert f"batch_size={[*env.batch_size]}" in shown
    assert "device=None" in shown
    for name in ("observation", "action", "reward", "done", "state"):
        assert f"{name}_spec=" in shown
    for key in env.full_observation_spec.keys(True, True):
        assert f"{key if isinstance(key, str) else key[-1]}: " in shown
    env.close()


@pytest.mark.parametrize("kind", ["counting", "nested", "several keys", "groups alone", "batched", "tasks"])
def test_random_actions_repeat_with_the_seed_of_torch(td_engine: TensorDictEngine, kind: str) -> None:
    env = td_engine.make(TENSORDICT_ENVS[kind])
    env.reset()
    torch.manual_seed(3)
    first = env.rand_action()
    torch.manual_seed(3)
    assert_equal(env.rand_action(), first)
    assert env.full_action_spec.is_in(first)
    td = env.reset()
    assert env.rand_action(td) is td
    assert env.rand_step(td) is td
    assert "next" in td.keys()
    env.close()
