"""Each fault of a TensorDict env is told, by its own code, and alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from faulty_tensordict_envs import FAULTY_TENSORDICT_ENVS, SOUND_TENSORDICT_ENVS, SoundTensorDictEnv
from tensordict import TensorDictBase

from gymbridge.contract import check, find_faults

STEP_TIMEOUTS = {"reset-hangs": 0.2, "step-hangs": 0.2, "worker-hangs": 2.0}
"""Seconds, where they are waited for; what does not hang has the usual ten."""


def codes(env: Any, **options: Any) -> set[str]:
    return {fault.code for fault in find_faults(env, **{"num_steps": 40, **options})}


@pytest.mark.parametrize("kind", SOUND_TENSORDICT_ENVS)
def test_a_sound_env_has_no_fault(kind: Any) -> None:
    report = check(kind, num_steps=40)
    assert (report.faults, report.not_checked) == ([], [])


@pytest.mark.parametrize("case", FAULTY_TENSORDICT_ENVS)
def test_an_env_with_one_fault(case: str) -> None:
    code = case.partition(":")[0]
    assert codes(FAULTY_TENSORDICT_ENVS[case](), step_timeout=STEP_TIMEOUTS.get(code, 10.0)) == {code}


def test_no_run_of_the_env_itself_is_differentiated() -> None:
    """An env that refuses gradients steps without fault, alone and beside another; a rollout, which has them, fails."""

    class WithoutGradients(SoundTensorDictEnv):
        def _step(self, tensordict: TensorDictBase) -> Any:
            if torch.is_grad_enabled():
                raise ArithmeticError("no gradients here")
            return super()._step(tensordict)

    (fault,) = find_faults(WithoutGradients, num_steps=40, workers=False)
    assert (fault.code, fault.where) == ("refused", "reset, step or rollout")
