"""Envs of this process that are made anew in the place of those that died, and what the caller sees of their rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.env_calls import Await, CallingHost, EnvCall, RowCall
from gymbridge.engine.host import IN_BLOCK, NOTHING, RemoteHostOptions, Report
from gymbridge.engine.info_records import forget_infos
from gymbridge.engine.layout import Layout
from gymbridge.engine.lost_rows import LostRows
from gymbridge.engine.makers import require_env
from gymbridge.engine.restarts import Restarts, require_same_leaves
from gymbridge.errors import WorkerStartError

__all__ = ["LostStep", "RemadeRows", "Remake", "close_quietly"]

_logger = logging.getLogger(__name__)


class Remake(EnvCall):
    """The making of a row's env in the place of one that died, by whatever makes and calls envs.

    Attributes:
        made: what the maker gave, to be closed where it is not taken up.
        env: that, as the host has it.
    """

    __slots__ = ("env", "made")

    def __init__(self, row: int):
        super().__init__(row)
        self.made: Any = None
        self.env: Any = None


class LostStep(RowCall):
    """A step of a row whose episode is lost: it reaches no env; but for the reset in its place, where there is one.

    Args:
        row, op: of the step.
        instead: the reset.
    """

    __slots__ = ()

    def __init__(self, row: int, op: int, instead: RowCall | None):
        super().__init__(row, op)
        self.instead = instead

    @property
    def doing(self) -> str:
        """See :class:`~gymbridge.engine.env_calls.RowCall`."""
        return super().doing if self.instead is None else self.instead.doing

    async def on_loop(self) -> None:
        """See :class:`~gymbridge.engine.env_calls.EnvCall`; the reset keeps what it raises."""
        if self.instead is not None:
            try:
                await self.instead.on_loop()
            except Exception as error:
                self.instead.error = error

    def in_thread(self, awaited: Await) -> None:
        """See :class:`~gymbridge.engine.env_calls.EnvCall`; the reset keeps what it raises."""
        if self.instead is not None:
            try:
                self.instead.in_thread(awaited)
            except Exception as error:
                self.instead.error = error


class RemadeRows:
    """Takes envs that are made anew in, and shows the caller what was lost.

    Args:
        made: what the makers gave, one a row.
        options: how the envs are run.
        host: runs them.
        block: of all rows.
        descriptions: what each row's env said of itself.
        restarts: has the seeds.

    Attributes:
        lost: the rows whose episode ended so, until the caller is told.
    """

    def __init__(
        self,
        made: Sequence[Any],
        options: RemoteHostOptions[Any],
        host: CallingHost,
        block: Block,
        descriptions: Sequence[Any],
        restarts: Restarts,
    ):
        self.lost = LostRows(block)
        self._made = [*made]
        self._options = options
        self._host = host
        self._block = block
        self._descriptions = descriptions
        self._restarts = restarts
        self._with_own_seed: set[int] = set()
        """Rows whose latest reset was given a seed by the caller."""

    # ---------------------------------------------------------------- where the envs are made

    def accept(self, remake: Remake, made: Any) -> None:
        """Takes what a maker gave; called where the env is called.

        Raises:
            TypeError: it is no env.
            WorkerStartError: it is the env that died, or another kind of env than that.

        What the env raises comes through.
        """
        row = remake.row
        if made is self._made[row]:
            raise WorkerStartError(
                f"env {row}: its maker gave the very env that it gave before, expected a new one in its place"
            )
        if hasattr(made, "close"):  # first: also what is no env may be closed
            remake.made = made
        require_env(row, made, self._options.kinds)
        description = self._described(row, made)
        require_same_leaves(row, description, self._descriptions[row])
        host: Any = self._options.host([made], Block(Layout.of([description])))
        remake.env = self._as_called(host.envs[0])

    def _described(self, row: int, env: Any) -> Any:
        return self._options.describe(env)

    def _as_called(self, env: Any) -> Any:
        return env

    def take_up(self, remake: Remake, call: EnvCall) -> RowCall | None:
        """Has the host run an env that was accepted, seeded anew.

        Args:
            call: the one in which the env before died.

        Returns:
            What is left of that: its reset; None for nothing.
        """
        row, host, block = remake.row, self._host, self._block
        envs: Any = host.envs
        envs[row] = remake.env
        self._made[row] = remake.made
        op = call.op if isinstance(call, RowCall) else Op.IDLE
        if self.lost.is_lost_in(row, op):
            if row not in self.lost.rows:  # else the block may show more than the caller has seen
                self.lost.keep_known([row])
            self.lost.rows.add(row)
        forget_infos(block, [row])
        seed = self._restarts.next_seed(row)
        if seed is not None:
            host.seed(row, seed, False)
        if not isinstance(call, RowCall):
            return None
        begun = getattr(call, "instead", call)
        if begun is None or begun.op == Op.STEP:
            call.instead = None
            return None
        return begun.again(remake.env, None if row in self._with_own_seed else seed)

    # ---------------------------------------------------------------- the caller's side

    def calls(
        self, rows: Sequence[int], ops: bytes, inputs: Any, reset_kwargs: Sequence[Mapping[str, Any]] | None
    ) -> list[Any]:
        """See :class:`~gymbridge.engine.env_calls.CallingHost`; the steps of rows that are lost reach no env."""
        self._keep_seeds(rows, ops, reset_kwargs)
        lost = self.lost.rows
        if lost.isdisjoint(rows):
            return self._host.calls(rows, ops, inputs, reset_kwargs)
        made = self._host.calls(rows, self.lost.ops(ops, rows), inputs, reset_kwargs)
        made_of = {call.row: call for call in made}
        return [
            LostStep(row, op, made_of.get(row)) if row in lost and op >= Op.STEP else made_of[row]
            for row, op in zip(rows, ops, strict=True)
            if op
        ]

    def _keep_seeds(self, rows: Sequence[int], ops: bytes, reset_kwargs: Sequence[Mapping[str, Any]] | None) -> None:
        own = self._with_own_seed
        if reset_kwargs is None:
            if own:
                own.difference_update(row for row, op in zip(rows, ops, strict=True) if op)
            return
        for row, op, kwargs in zip(rows, ops, reset_kwargs, strict=True):
            if op and op != Op.STEP:
                self._restarts.take_seed(row, kwargs.get("seed"))
                (own.add if "seed" in kwargs else own.discard)(row)

    def finish(self, calls: Sequence[Any], *, by_row: bool = False) -> Report:
        """See :class:`~gymbridge.engine.env_calls.CallingHost`; rows that are lost are shown so.

        Where one raised and the rows are not the calls', they are not: none but that is taken then.
        """
        rows = [call.row for call in calls]
        if self.lost.rows.isdisjoint(rows) and all(getattr(call, "instead", call) is call for call in calls):
            return self._host.finish(calls, by_row=by_row)
        made = [part for call in calls if (part := _part_of(call)) is not None]
        report = self._host.finish(made, by_row=True) if made else NOTHING
        for call in calls:
            if call.error is not None and isinstance(call, LostStep):
                report = Report() if report is NOTHING or report is IN_BLOCK else report
                report.errors[call.row] = call.error
                self._block.state[call.row] = RowState.FAILED
        if by_row or not report.errors:
            report = self.lost.shown(bytes(call.op for call in calls), report, rows)
        return report if by_row else _by_position(report, rows)

    def take_error(self, row: int) -> None:
        """The caller is told of what a row raised."""
        self.lost.rows.discard(row)


def _part_of(call: RowCall) -> RowCall | None:
    """What has what a call gave, for the host."""
    if call.error is not None:
        return None if isinstance(call, LostStep) else call
    return getattr(call, "instead", call)


def _by_position(report: Report, rows: Sequence[int]) -> Report:
    """A report of rows as one of their positions among these."""
    if report is NOTHING or report is IN_BLOCK:
        return report
    position = {row: at for at, row in enumerate(rows)}
    own = Report()
    for name in ("steps", "resets", "errors"):
        setattr(own, name, {position[row]: value for row, value in getattr(report, name).items()})
    own.lost = {position[row] for row in report.lost}
    return own


def close_quietly(row: int, env: Any) -> None:
    """Closes an env of which nobody is told how that goes."""
    try:
        env.close()
    except BaseException as error:
        _logger.warning("env %d, in whose place another was made: its close raised %s", row, repr(error))
