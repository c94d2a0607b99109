"""The row of a sleeping env in the next root is its own row of what was given: states and infos, too."""

from __future__ import annotations

import pytest
import torch
from fuzzing import given_over_engines
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict_engines import ALONE
from tensordict_programs import run_a_program
from tensordict_zoo import TENSORDICT_ENVS, WITH_STATES_OR_INFOS, InfoEnv, RecurrentEnv


@pytest.mark.parametrize("kind", WITH_STATES_OR_INFOS)
@given_over_engines(data=st.data())
def test_any_program(kind: str, data: st.DataObject) -> None:
    run_a_program(ALONE, TENSORDICT_ENVS[kind], data)


def test_its_infos_are_zero_in_next_and_its_own_in_the_root() -> None:
    env = InfoEnv()
    td = env.step_mdp(env.rand_step(env.reset()))
    stepped, root = env.step_and_maybe_reset(env.rand_action(td.clone()).set("_step", torch.tensor(False)))
    assert stepped["next", "info", "t"] == 0
    assert root["info", "t"] == td["info", "t"] == 101


def test_its_state_in_the_root_is_not_the_one_that_a_policy_wrote_for_the_next_step() -> None:
    env = RecurrentEnv()
    td = env.rand_action(env.reset()).set("hidden", torch.ones(2)).set("_step", torch.tensor(False))
    td["next"] = TensorDict(hidden=torch.full((2,), 5.0))
    stepped, root = env.step_and_maybe_reset(td)
    assert stepped["next", "hidden"].tolist() == [5, 5]
    assert root["hidden"].tolist() == [1, 1]
