"""Workers that died are replaced, and their rows taken up where the caller can go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gymbridge.engine.block import Block
from gymbridge.engine.failures import raise_env_error
from gymbridge.engine.lost_rows import LostRows
from gymbridge.engine.mailbox import packed_for_worker
from gymbridge.engine.protocol import Call, Command
from gymbridge.engine.restarts import Restarts, require_same_leaves
from gymbridge.engine.supervision import Crew
from gymbridge.errors import WorkerDiedError

__all__ = ["Replacing"]

_logger = logging.getLogger(__name__)


class Replacing:
    """Puts new workers in the place of dead ones, as often as it may.

    Args:
        crew: the workers, which have their block.
        restarts: counts, and knows the limit.
        block: of all rows.
        descriptions: what each row's env said of itself.
        hand_over: gives a worker its part of the block, before it is told to allocate.

    Attributes:
        lost: the rows whose episode ended so, until the caller is told.
    """

    def __init__(
        self,
        crew: Crew,
        restarts: Restarts,
        block: Block,
        descriptions: Sequence[Any],
        hand_over: Callable[[int], None],
    ):
        self.lost = LostRows(block)
        self._crew = crew
        self._restarts = restarts
        self._descriptions = descriptions
        self._hand_over = hand_over

    def replace(self, workers: Iterable[int], ops: bytes) -> dict[int, Exception]:
        """Replaces dead workers, with all that are one process with them: those that stay dead -> why they do.

        What stays dead costs the others nothing: one that died once too often, one that cannot be started, is not
        there in time or has other envs than before (``WorkerStartError``), one whose maker raises.

        Args:
            workers: their numbers.
            ops: those of the round in which they died, of all rows: of rows that step, the step is lost. Of a row that
                has no part in it, its episode is, and what it gave before stays.
        """
        crew = self._crew
        failed: dict[int, Exception] = {}
        for worker in workers:
            while worker in crew.dead and worker not in failed:
                if not self._restarts.allow(crew.number(worker)):
                    failed[worker] = crew.dead[worker].again()
                    break
                process = crew.same_process(worker)
                try:
                    self._replace_process(worker, process, ops)
                except Exception as error:
                    failed.update(dict.fromkeys(process, error))
        return failed

    def _replace_process(self, worker: int, workers: Sequence[int], ops: bytes) -> None:
        crew = self._crew
        death = crew.dead[worker]
        _logger.warning("%s; it is replaced", death)
        rows = [row for other in workers for row in crew.parts[other]]
        try:
            for other, told in crew.replace(worker).items():
                for row, description in zip(crew.parts[other], told, strict=True):
                    require_same_leaves(row, description, self._descriptions[row])
            for other in workers:
                self._hand_over(other)
                crew.ask(other, Command.ALLOCATE)
                self._seed_anew(other)
        except WorkerDiedError:  # it has died again: one more try, if there may be one
            crew.end(workers)
        except BaseException:
            crew.end(workers)
            raise
        finally:
            for row in rows:
                if self.lost.is_lost_in(row, ops[row]):
                    self.lost.rows.add(row)

    def _seed_anew(self, worker: int) -> None:
        """Gives new envs seeds of their own, for their next reset, where those before were given some."""
        seeds = {row: self._restarts.next_seed(row) for row in self._crew.parts[worker]}
        calls = [Call("seed", row, (seed, False)) for row, seed in seeds.items() if seed is not None]
        if calls:
            _, errors = self._crew.ask(worker, Command.CALL, packed_for_worker(calls, "the seeds"))
            if errors:
                raise_env_error({row: each.rebuilt() for row, each in errors.items()})
