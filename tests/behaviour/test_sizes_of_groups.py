"""Groups with a batch size of their own, ``[*B, num_agents]``, have it in all that is returned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict_engines import TensorDictEngine
from tensordict_zoo import EpisodicEnv

from gymbridge.envs import EnvBase, check_env_specs
from gymbridge.specs import Binary, Bounded, Composite, Unbounded


class Teams(EnvBase):
    """Two teams of three agents; a team ends together, the first after two steps, the second after four."""

    partial_step = partial_reset = True  # type: ignore[assignment]

    def __init__(self, index: int = 0):
        super().__init__(batch_size=(2,))
        flags = {name: Binary(1, (2, 3, 1), dtype=torch.bool) for name in ("done", "terminated", "truncated")}
        self.observation_spec = in_a_group({"seen": Unbounded((2, 3, 4))})
        self.action_spec = in_a_group({"action": Bounded(-1, 1, (2, 3, 1))})
        self.reward_spec = in_a_group({"reward": Unbounded((2, 3, 1))})
        self.done_spec = in_a_group(flags)
        self.t = torch.zeros(2)

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        self.t = torch.where(self._picked(tensordict, "_reset"), 0.0, self.t)
        return self._seen()

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.t = self.t + self._picked(tensordict, "_step")
        made = self._seen()
        made["agents", "reward"] = torch.ones(2, 3, 1)
        made["agents", "terminated"] = self._each(self.t >= torch.tensor([2, 4]), 1)
        return made

    def _picked(self, tensordict: TensorDictBase | None, name: str) -> torch.Tensor:
        mask = None if tensordict is None else tensordict.get(name, None)
        return torch.ones(2, dtype=torch.bool) if mask is None else mask

    def _seen(self) -> TensorDict:
        return TensorDict({"agents": TensorDict({"seen": self._each(self.t, 4)}, [2, 3])}, [2])

    def _each(self, value: torch.Tensor, size: int) -> torch.Tensor:
        return value.reshape(2, 1, 1).expand(2, 3, size).clone()

    def _set_seed(self, seed: int | None) -> None: ...


def in_a_group(leaves: dict[str, Any]) -> Composite:
    return Composite(agents=Composite(leaves, shape=torch.Size([2, 3])), shape=torch.Size([2]))


def sizes(td: TensorDictBase) -> list[torch.Size]:
    return [td["agents"].batch_size, *([td["next", "agents"].batch_size] if "next" in td.keys() else [])]


def test_it_is_right(td_engine: TensorDictEngine) -> None:
    check_env_specs(td_engine.make(Teams))
    env = td_engine.make(Teams)
    assert sizes(env.fake_tensordict()) == [(*env.batch_size, 3)] * 2


@pytest.mark.parametrize("masked", ["nothing", "_step", "_reset"])
def test_in_steps_and_resets_of_all_and_of_some(td_engine: TensorDictEngine, masked: str) -> None:
    env = td_engine.make(Teams)
    size = (*env.batch_size, 3)
    first = torch.zeros(env.batch_size, dtype=torch.bool)
    first[..., 0] = True
    root = env.reset()
    for _ in range(5):
        td = env.rand_action(root)
        if masked == "_step":
            td["_step"] = first
        td, root = env.step_and_maybe_reset(td)
        assert sizes(td) == [size] * 2
        assert sizes(root) == [size]
        assert td["next", "agents", "reward"].eq(1)[..., 0, 0].equal(first if masked == "_step" else ~first | first)
        if masked == "_reset":
            root = env.reset(root.set("_reset", first))
            assert sizes(root) == [size]
    again = env.reset(TensorDict({"_reset": first, "note": torch.zeros(env.batch_size)}, env.batch_size))
    assert sizes(again) == [size]


@pytest.mark.parametrize("told", [{}, {"break_when_any_done": False}, {"break_when_all_done": True}], ids=str)
def test_in_rollouts(td_engine: TensorDictEngine, told: dict[str, bool]) -> None:
    td = td_engine.make(Teams).rollout(6, **told)  # type: ignore[arg-type]
    assert sizes(td) == [(*td.batch_size, 3)] * 2
    steps = {"any": 2, "no": 6, "all": 4}["any" if not told else "no" if "break_when_any_done" in told else "all"]
    assert td.batch_size[-1] == steps


class OnlyActs(EpisodicEnv):
    """The action alone stands in a group, of three agents."""

    def __init__(self, index: int = 0):
        super().__init__(index)
        self.observation_spec = Composite(x=Unbounded((1,)))
        self.action_spec = Composite(agents=Composite(action=Bounded(-1, 1, (3, 1)), shape=torch.Size([3])))

    def action_of(self, tensordict: TensorDictBase) -> float:
        return float(tensordict["agents", "action"].sum())

    def observe(self, action: float) -> TensorDict:
        return TensorDict(x=torch.tensor([action]))


@pytest.mark.parametrize("maker", [lambda index: Teams(), OnlyActs], ids=["Teams", "OnlyActs"])
def test_with_a_key_of_the_users_beside_the_action(td_engine: TensorDictEngine, maker: Any) -> None:
    env = td_engine.make(maker)
    td = env.rand_action(env.reset())
    size = (*env.batch_size, 3)
    td["agents", "log_prob"] = torch.zeros(size)
    td, root = env.step_and_maybe_reset(td)
    for each in (root, env.step_mdp(td)):
        assert sizes(each) == [size]
        assert each["agents", "log_prob"].shape == size
        assert ("agents", "action") not in each.keys(True)
    again, _ = env.step_and_maybe_reset(env.rand_action(root.exclude("agents")))
    assert sizes(again.exclude("next")) == [size]
