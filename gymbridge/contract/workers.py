"""The same two envs in this process and in two workers, which have to give the same."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from gymbridge.contract.calls import Options
from gymbridge.contract.differences import Record, first_difference
from gymbridge.contract.findings import Findings, told, told_from_worker
from gymbridge.contract.surroundings import same_generators
from gymbridge.engine.remote_errors import RemoteTraceback
from gymbridge.engine.workers.pickling import dumps
from gymbridge.errors import UnpicklableError, WorkerDiedError, WorkerStartError, WorkerTimeoutError

__all__ = ["NUM_ENVS", "Runs", "check_workers"]

NUM_ENVS = 2

_IN_THE_WAY = (
    *(
        "reset-raises",
        "reset-hangs",
        "reset-signature",
        "reset-result",
        "make-again-raises",
        "close-raises",
        "instances-differ",
    ),
    *(
        "step-raises",
        "step-hangs",
        "step-result",
        "metadata",
        "space-missing",
        "space-unsupported",
        "space-changes",
        "space-unequal",
    ),
    *("observation-items", "observation-type", "observation-shape", "observation-dtype"),
    *("reward-type", "reward-array", "flag-type", "info-type", "info-unpicklable"),
    *("spec-", "output-", "entry-", "input-", "flags-disagree", "done-after-reset", "refused"),
)
"""Faults that a batch would stop at; ``-`` at the end stands for all that begin so."""

_MAKE_RUNS_DIFFER = ("seed-not-repeatable", "instances-share-state", "global-random", "torch-random")
"""Faults of which two runs differ wherever they are."""


class Runs(NamedTuple):
    """Batches of :data:`NUM_ENVS` envs.

    Attributes:
        here: makes one in this process.
        there: makes one in workers, an env each.
        run: what a batch gives: a reset, then steps.
        close: closes a batch; it kills the workers where the second argument says so.
        takes_any_action: False for an env that draws its own random actions, by a mask perhaps, as no batch draws them.
    """

    here: Callable[[], Any]
    there: Callable[[], Any]
    run: Callable[[Any], Iterator[Record]]
    close: Callable[[Any, bool], object]
    takes_any_action: bool = True


def check_workers(findings: Findings, options: Options, maker: Any, sent_back: Any, runs: Callable[[], Runs]) -> None:
    """Runs two envs here and in workers.

    Args:
        findings: where faults go.
        options: how the env is checked.
        maker: makes one; None where there is nothing that does.
        sent_back: what a worker sends its caller when it starts.
        runs: the two ways to run them.
    """
    if not options.workers or sys.platform == "win32":
        why = "there are none on Windows" if options.workers else "as was asked for"
        findings.not_checked(f"worker processes: {why}")
        return
    if maker is None:
        findings.not_checked("worker processes: there is an env, but nothing that makes another")
        return
    for code, value, what in (
        ("maker-unpicklable", maker, "the maker"),
        ("spaces-unpicklable", sent_back, "what an env says of itself"),
    ):
        try:
            dumps(value, what)
        except UnpicklableError as error:
            findings.add(code, "worker", "", _reason(error), "what can be pickled")
    if findings.has("maker-unpicklable", "spaces-unpicklable"):
        return
    if in_the_way := [code for code in _IN_THE_WAY if findings.has(code)]:
        findings.not_checked(f"worker processes, which would stop at {', '.join(in_the_way)}")
        return
    batches = runs()
    shown = _run_here(findings, options, batches)
    if shown is not None:
        _run_there(findings, options, batches, shown)


def _run_here(findings: Findings, options: Options, runs: Runs) -> list[Record] | None:
    batch = None
    try:
        batch = runs.here()
        with same_generators(options.seed):
            shown = [*runs.run(batch)]
    except (Exception, SystemExit) as error:
        if not runs.takes_any_action:
            findings.not_checked(f"worker processes: to the batch's random actions the env says {told(error)}")
            return None
        findings.add("refused", "a batch in this process", "", told(error), "no exception")
        return None
    finally:
        if batch is not None:
            with suppress(Exception, SystemExit):  # an env's own close has been looked at
                runs.close(batch, False)
    return shown


def _run_there(findings: Findings, options: Options, runs: Runs, expected: list[Record]) -> None:
    batch, where = None, "start"
    shown: list[Record] = []
    try:
        batch = runs.there()
        with same_generators(options.seed):
            for record in runs.run(batch):
                where = f"call {len(shown) + 1}"
                shown.append(record)
        where = "close"
        ended, batch = batch, None
        _close(findings, ended, runs)
    except WorkerTimeoutError as error:
        findings.add("worker-hangs", f"worker, {where}", "", str(error), "a call that comes back")
    except WorkerDiedError as error:
        findings.add("worker-dies", f"worker, {where}", "", str(error), "a process that goes on")
    except WorkerStartError as error:
        code = "worker-hangs" if "timeout" in str(error) else "worker-raises"
        findings.add(code, f"worker, {where}", "", str(error), "envs that are made")
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error.__cause__, RemoteTraceback):
            # no shared memory, or no more processes: the env has not been asked
            findings.not_checked(f"worker processes: this machine has none to give: {told(error)}")
            return
        findings.add(
            "worker-raises", f"worker, {where}", "", told_from_worker(error), "no exception, as in this process"
        )
    finally:
        if batch is not None:
            with suppress(Exception):  # what went wrong first has been told
                runs.close(batch, True)
    if findings.has("worker-raises", "worker-dies", "worker-hangs"):
        return
    if findings.has(*_MAKE_RUNS_DIFFER):
        findings.not_checked("whether workers give the same: what an env gives here differs from time to time")
    elif (found := first_difference(expected, shown)) is not None:
        when = f"call {found.call}" if found.call else "the first reset"
        got = f"{found.other} in {when}, where this process gives {found.one}"
        findings.add("worker-differs", "worker", found.key, got, "the same as in this process")


def _close(findings: Findings, batch: Any, runs: Runs) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".* did not close the envs", UserWarning)
        try:
            runs.close(batch, False)
        except UserWarning as warning:
            findings.add("worker-hangs", "worker, close", "", str(warning), "processes that end")


def _reason(error: UnpicklableError) -> str:
    """Without what to do about it, which the catalogue says."""
    return str(error).partition(". Make it inside")[0]
