"""Which envs can be stepped and reset in part."""

from __future__ import annotations

import pytest
import torch
from by_hand import assert_equal
from engines import Engine
from tensordict import TensorDict
from tensordict_engines import TensorDictEngine
from tensordict_zoo import TENSORDICT_ENVS, BatchedWholeEnv, CountingTensorDictEnv
from zoo import CountingEnv

from gymbridge.envs import EnvBase


class TwoInOne(CountingTensorDictEnv):
    """A batch of two, as a user writes it who says nothing of masks."""

    def __init__(self, index: int = 0):
        EnvBase.__init__(self, batch_size=(2,))


def test_who_honours_masks_unless_told(td_engine: TensorDictEngine, engine: Engine) -> None:
    """Ours and those without a batch; not a user's batch."""
    alone = not td_engine.batched
    for env in (engine.make(CountingEnv), td_engine.make(CountingTensorDictEnv)):
        assert (env.partial_step, env.partial_reset) == (True, True)
    assert (TwoInOne().partial_step, TwoInOne().partial_reset) == (False, False)
    whole = td_engine.make(BatchedWholeEnv)
    assert (whole.partial_step, whole.partial_reset) == (not alone, not alone)


def test_a_batch_leaves_out_whole_envs_that_know_no_masks(td_three: TensorDictEngine) -> None:
    env = td_three.make(BatchedWholeEnv)
    td = env.rand_action(env.reset())
    td["_step"] = torch.tensor([[True, True], [False, False], [True, True]])
    stepped, root = env.step_and_maybe_reset(td)
    assert stepped["next", "reward"].ne(0)[..., 0].tolist() == [[True] * 2, [False] * 2, [True] * 2]
    again = env.reset(TensorDict({"_reset": torch.tensor([False, True, False]).unsqueeze(-1).expand(3, 2)}, [3, 2]))
    assert_equal(again[[0, 2]].select("x", "small"), root[[0, 2]].select("x", "small"))
    env.close()


@pytest.mark.parametrize("name", ["_step", "_reset"])
def test_the_refusal_names_the_env_and_nothing_was_done(td_engine: TensorDictEngine, name: str) -> None:
    env = td_engine.make(TENSORDICT_ENVS["batched whole"])
    td = env.rand_action(env.reset())
    td[name] = torch.tensor([True, False]).expand(env.batch_size).clone()
    before = td.clone()
    with pytest.raises(ValueError, match=rf"{name}: BatchedWholeEnv has partial{name}=False"):
        _ = env.reset(td) if name == "_reset" else env.step(td)
    assert_equal(td, before)
    env.close()
