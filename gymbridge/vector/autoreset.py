"""What each autoreset mode asks of an env at its next step: the one place that knows.

==============  ======================  =====================================  ==================================
mode            an env in an episode    an env whose episode has ended         what the caller is given at the end
==============  ======================  =====================================  ==================================
``NEXT_STEP``   is stepped              is reset; its action is ignored        the final observation
``SAME_STEP``   is stepped and, if      cannot be met                          the first observation, and the final
                that ends it, reset                                            one in ``infos["final_obs"]``
``DISABLED``    is stepped              is refused by name                     the final observation
==============  ======================  =====================================  ==================================

The modes are ``gymnasium.vector.AutoresetMode``; see https://farama.org/Vector-Autoreset-Mode.
"""

from __future__ import annotations

from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.failures import why_not_stepped

__all__ = ["Autoreset"]

_BY_STATE = {
    AutoresetMode.NEXT_STEP: {RowState.RUNNING: Op.STEP, RowState.NEW: Op.STEP, RowState.ENDED: Op.RESET},
    AutoresetMode.SAME_STEP: {RowState.RUNNING: Op.STEP_MAYBE_RESET, RowState.NEW: Op.STEP_MAYBE_RESET},
    AutoresetMode.DISABLED: {RowState.RUNNING: Op.STEP, RowState.NEW: Op.STEP},
}

_REFUSED = 255


class Autoreset:
    """The ops of a step under a mode.

    Args:
        mode: an ``AutoresetMode`` or its value.

    Attributes:
        mode: the mode.
        is_same_step: it is ``SAME_STEP``, with which an env may be reset in the step that ended its episode.

    Raises:
        ValueError: not a mode.

    Example:
        >>> rule = Autoreset("NextStep")
        >>> rule.ops(bytes([RowState.RUNNING, RowState.ENDED])) == bytes([Op.STEP, Op.RESET])
        True
    """

    def __init__(self, mode: AutoresetMode | str):
        try:
            self.mode = AutoresetMode(mode)
        except ValueError:
            values = [one.value for one in AutoresetMode]
            raise ValueError(f"autoreset_mode: got {mode!r}, expected an AutoresetMode or one of {values}") from None
        self.is_same_step = self.mode is AutoresetMode.SAME_STEP
        ops = _BY_STATE[self.mode]
        self._table = bytes(ops.get(state, _REFUSED) for state in RowState) + bytes([_REFUSED]) * (256 - len(RowState))

    def refused(self, states: bytes) -> list[int]:
        """The rows that have to be reset before they are stepped, of which ``states`` has one each."""
        return [row for row, op in enumerate(states.translate(self._table)) if op == _REFUSED]

    def ops(self, states: bytes) -> bytes:
        """One op a row, from one :class:`~gymbridge.engine.codes.RowState` a row.

        Raises:
            gymnasium.error.ResetNeeded: a row has to be reset before it is stepped; the message names it.
        """
        ops = states.translate(self._table)
        if _REFUSED in ops:
            why = why_not_stepped(states, self.refused(states))
            raise ResetNeeded(
                f"{why}: reset them first, with reset(options={{'reset_mask': mask}}) or "
                f"reset(), since autoreset_mode is {self.mode.value!r}"
            )
        return ops
