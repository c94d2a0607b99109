"""The table of autoreset modes."""

from __future__ import annotations

import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from gymbridge.engine.codes import Op, RowState
from gymbridge.vector.autoreset import Autoreset

RUNNING, ENDED, FAILED, NEW = RowState.RUNNING, RowState.ENDED, RowState.FAILED, RowState.NEW


@pytest.mark.parametrize(
    ("mode", "states", "ops"),
    [
        (AutoresetMode.NEXT_STEP, [RUNNING, ENDED, NEW], [Op.STEP, Op.RESET, Op.STEP]),
        (AutoresetMode.SAME_STEP, [RUNNING, NEW], [Op.STEP_MAYBE_RESET, Op.STEP_MAYBE_RESET]),
        (AutoresetMode.DISABLED, [RUNNING, NEW], [Op.STEP, Op.STEP]),
    ],
)
def test_ops(mode: AutoresetMode, states: list[RowState], ops: list[Op]) -> None:
    for given_mode in (mode, mode.value):
        assert list(Autoreset(given_mode).ops(bytes(states))) == ops


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_failed_env_needs_a_reset_in_each_mode(mode: AutoresetMode) -> None:
    with pytest.raises(
        ResetNeeded,
        match=r"^envs \[1, 2\] raised an error in an earlier call or were interrupted in it: reset them first",
    ):
        Autoreset(mode).ops(bytes([RUNNING, FAILED, FAILED]))


def test_ended_and_failed_envs_are_named_apart() -> None:
    ended, failed = r"^envs \[0\] ended their episode", r"envs \[2\] raised an error .*autoreset_mode is 'Disabled'"
    with pytest.raises(ResetNeeded, match=f"{ended}; {failed}"):
        Autoreset("Disabled").ops(bytes([ENDED, RUNNING, FAILED]))


def test_a_state_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ResetNeeded):
        Autoreset("NextStep").ops(bytes([17]))


@pytest.mark.parametrize("mode", ["next_step", None, 0])
def test_what_is_no_mode(mode: object) -> None:
    with pytest.raises(ValueError, match="expected an AutoresetMode or one of"):
        Autoreset(mode)  # type: ignore[arg-type]
