"""List the faults of an env that a run of many of it would meet, each with what to do."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from gymbridge.benchmarking.rounds import in_short
from gymbridge.cli import CommandError
from gymbridge.cli.env_argument import add_env_argument, env_called
from gymbridge.cli.option_values import natural_int, positive_int, positive_seconds, words
from gymbridge.cli.output import stdout_for_findings_only
from gymbridge.cli.progress import work_progress
from gymbridge.contract import CATALOGUE, Fault, Report, check

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["CLEAN", "FAULTY", "add_arguments", "run"]

CLEAN, FAULTY = 0, 1
"""Exit statuses; an env that could not be made is an error of the command."""

_NUM_STAGES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what it takes."""
    add_env_argument(parser)
    parser.add_argument("--steps", type=positive_int, default=1000, help="steps of the longest run (1000)")
    parser.add_argument("--seed", type=natural_int, default=0, help="of the first episode and of the actions (0)")
    parser.add_argument(
        "--step-timeout", type=positive_seconds, default=10.0, metavar="SECONDS", help="for a reset or a step (10)"
    )
    parser.add_argument(
        "--start-timeout",
        type=positive_seconds,
        default=60.0,
        metavar="SECONDS",
        help="in which an env is made, here or in a worker process, and in which it closes (60)",
    )
    parser.add_argument("--no-workers", action="store_true", help="leave out worker processes")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 for warnings too")
    parser.add_argument(
        "--ignore", type=_codes, default=frozenset(), metavar="CODE,…", help="faults to leave out, by their codes"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Checks it, and shows the faults; the exit status is 0 where there are none, else 1."""
    with stdout_for_findings_only(arguments.json):
        name, report = _checked(arguments)
    report = report.without(arguments.ignore)
    if arguments.json:
        print(json.dumps(report.as_dict(), indent=1))
    else:
        _show(console, name, report)
    return FAULTY if report.errors or (arguments.strict and report.warnings) else CLEAN


def _checked(arguments: argparse.Namespace) -> tuple[str, Report]:
    """The env's name, and what was found."""
    env = env_called(arguments.env)
    doing = ""

    def begin(stage: str) -> None:
        nonlocal doing
        doing = stage
        progress.turn(stage)

    with work_progress() as progress:
        progress.stage(f"checking {env.name}", _NUM_STAGES)
        try:
            report = check(
                env.create_env_fn,
                num_steps=arguments.steps,
                seed=arguments.seed,
                step_timeout=arguments.step_timeout,
                start_timeout=arguments.start_timeout,
                workers=not arguments.no_workers,
                progress=begin,
            )
        except (Exception, SystemExit) as error:  # what a check finds it tells: mostly, this is the first making
            where = "making the env" if doing == "making an env" else f"the env stopped the check ({doing}): it"
            raise CommandError(f"{env.name}: {where} raised {in_short(error)}") from error
    return env.name, report


def _codes(text: str) -> frozenset[str]:
    codes = frozenset(words(text))
    if unknown := sorted(codes - CATALOGUE.keys()):
        raise argparse.ArgumentTypeError(f"got {unknown}, expected some of {', '.join(CATALOGUE)}")
    return codes


def _show(console: Console, name: str, report: Report) -> None:
    from rich.text import Text

    from gymbridge.cli.paragraphs import print_paragraph

    for fault in report.faults:
        print_paragraph(console, _headline(fault))
        for what, text in (("got", fault.got), ("expected", fault.expected), ("do", fault.advice)):
            print_paragraph(console, text, f"  {what:10}", "dim")
    for text in report.notes:
        print_paragraph(console, text, "note: ")
    for text in report.not_checked:
        print_paragraph(console, text, "not looked at: ", "yellow")
    print_paragraph(console, Text(f"{name}: {_summary(report)}", style="bold"))


def _headline(fault: Fault) -> Any:
    from rich.text import Text

    style = "red" if fault.severity == "error" else "yellow"
    place = ": ".join(part for part in (fault.where, fault.key) if part)
    seen = f"  {fault.count} times" if fault.count > 1 else ""
    return Text.assemble((fault.severity, style), " ", (fault.code, "bold"), f"  {place}", (seen, "dim"))


def _summary(report: Report) -> str:
    """How many of each.

    Example:
        >>> _summary(Report("MyEnv"))
        'no faults'
    """
    counts = [(len(report.errors), "error"), (len(report.warnings), "warning")]
    told = [f"{count} {word}{'s' * (count > 1)}" for count, word in counts if count]
    return " and ".join(told) or "no faults"
