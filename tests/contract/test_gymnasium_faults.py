"""Each fault of a gymnasium env is told, by its own code, and alone."""

from __future__ import annotations

from typing import Any

import pytest
from faulty_envs import FAULTY_ENVS, SoundEnv

from gymbridge.contract import check, find_faults

STEP_TIMEOUTS = {"reset-hangs": 0.2, "step-hangs": 0.2, "worker-hangs": 2.0}
"""Seconds, where they are waited for; what does not hang has the usual ten."""


def codes(env: Any, **options: Any) -> set[str]:
    return {fault.code for fault in find_faults(env, **{"num_steps": 60, **options})}


def test_a_sound_env_has_no_fault() -> None:
    report = check(SoundEnv, num_steps=60)
    assert (report.faults, report.not_checked) == ([], [])


@pytest.mark.parametrize("case", FAULTY_ENVS)
def test_an_env_with_one_fault(case: str) -> None:
    code = case.partition(":")[0]
    assert codes(FAULTY_ENVS[case](), step_timeout=STEP_TIMEOUTS.get(code, 10.0)) == {code}
