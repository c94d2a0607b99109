"""Time every engine here, and the peers that are installed, with an env of yours."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymbridge.benchmarking.machine import PACKAGES, circumstances
from gymbridge.benchmarking.rounds import Cell, closed, in_short, measure
from gymbridge.cli import CommandError, own_console
from gymbridge.cli.bench_engines import ALONE, ENGINES, EnvTraits
from gymbridge.cli.child_interrupts import children_without_interrupts
from gymbridge.cli.env_argument import NamedEnv, add_env_argument, env_called, kind_of
from gymbridge.cli.option_values import positive_int, positive_ints, positive_seconds, words
from gymbridge.cli.output import stdout_for_findings_only
from gymbridge.cli.progress import WorkProgress, work_progress
from gymbridge.engine.env_calls import is_coroutine_env

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["add_arguments", "run"]

Columns = dict[int, dict[str, Cell]]
"""Number of envs -> engine -> figures."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what it takes."""
    add_env_argument(parser)
    parser.add_argument(
        "-n", "--num-envs", type=positive_ints, default=[2, 8], metavar="N,…", help="numbers of envs (2,8)"
    )
    parser.add_argument(
        "--engines",
        type=words,
        metavar="NAME,…",
        help=f"which to time, * stands for anything; there are {', '.join(ENGINES)}",
    )
    parser.add_argument(
        "--baseline", metavar="NAME", help="the engine whose cost the ratios are to (the best of each column)"
    )
    parser.add_argument("--rounds", type=positive_int, default=5, help="turns of each engine (5)")
    parser.add_argument("--seconds", type=positive_seconds, default=0.2, help="how long a turn takes (0.2)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the costs, to a .png, .svg or .pdf")
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write every round's figures, the machine and the versions; - for standard output",
    )


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Times them, and shows the figures."""
    with stdout_for_findings_only(arguments.json == "-"):
        env, columns, left_out = _measured(arguments)
    about = {"env": env.name, **circumstances((*PACKAGES, "envpool")), "rounds": str(arguments.rounds)}
    text = json.dumps({"about": about, "figures": _as_json(columns, arguments.baseline)}, indent=1) + "\n"
    if arguments.json == "-":
        print(text, end="")
    else:
        _show(console, env, columns, arguments.baseline, about)
    _tell_what_is_not_timed(columns, left_out)
    if arguments.json not in (None, "-"):
        _write(Path(arguments.json), "--json", lambda file: file.write_text(text))
    if arguments.plot is not None:
        _write(arguments.plot, "--plot", lambda file: _draw(file, env, columns, about))
    if not any(cell.rounds for cells in columns.values() for cell in cells.values()):
        raise CommandError(f"{env.name}: no engine could be timed")
    return 0


def _measured(arguments: argparse.Namespace) -> tuple[NamedEnv, Columns, dict[str, str]]:
    """The env, its figures, and which engines were not asked, with the reason."""
    env = env_called(arguments.env)
    wanted, baseline = _engines_called(arguments.engines, arguments.baseline), arguments.baseline
    if arguments.plot is not None:
        _require_writable(arguments.plot)
    if arguments.json not in (None, "-"):
        _require_writable(Path(arguments.json))
    if arguments.plot is not None:
        _require_picture(arguments.plot)
    traits = _traits(env)
    timed, left_out = _choice(wanted, traits, named=arguments.engines is not None)
    if baseline is not None and baseline not in timed:
        raise CommandError(f"--baseline: {baseline} {ENGINES[baseline].why_not(traits)}")
    if not timed:
        raise CommandError(f"{env.name}: no engine to time: " + "; ".join(f"{n}: {why}" for n, why in left_out.items()))

    warnings.filterwarnings("ignore")  # of envs, which are many here
    columns: Columns = {}
    with work_progress() as progress:
        for num_envs in arguments.num_envs:
            columns[num_envs] = _timed(env, num_envs, timed, arguments, progress)
    return env, columns, left_out


# ---------------------------------------------------------------- what is timed


def _engines_called(patterns: Sequence[str] | None, baseline: str | None) -> list[str]:
    """The engines that are named, or those that are timed unless told, and the baseline, in the table's order."""
    found: set[str] = set()
    if patterns is None:
        found = {name for name, engine in ENGINES.items() if engine.by_default}
    for pattern in patterns or ():
        matching = {name for name in ENGINES if fnmatchcase(name, pattern)}
        if not matching:
            raise CommandError(f"got the engine {pattern!r}, expected some of {', '.join(ENGINES)}")
        found |= matching
    if baseline is not None:
        if baseline not in ENGINES:
            raise CommandError(f"--baseline: got {baseline!r}, expected one of {', '.join(ENGINES)}")
        found.add(baseline)
    return [name for name in ENGINES if name in found]


def _traits(env: NamedEnv) -> EnvTraits:
    made = env.made()
    traits = EnvTraits(kind_of(made, env.name), is_coroutine_env(made))
    if not traits.awaited:  # its close may be a coroutine too
        closed(made.close)
    return traits


def _choice(wanted: Sequence[str], traits: EnvTraits, *, named: bool) -> tuple[list[str], dict[str, str]]:
    """Which can be timed, and why not the others; what does not fit the env is told only where it was named."""
    timed, left_out = [], {}
    for name in wanted:
        reason = ENGINES[name].why_not(traits)
        if not reason:
            timed.append(name)
        elif named or reason.endswith("not installed"):
            left_out[name] = reason
    return timed, left_out


def _timed(
    env: NamedEnv, num_envs: int, names: Sequence[str], arguments: argparse.Namespace, progress: WorkProgress
) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for name in names:
        most = ENGINES[name].most_envs
        if most is not None and num_envs > most and arguments.engines is None:
            cells[name] = Cell(
                failure=f"would start {num_envs} processes that import torch; --engines {name} has them started"
            )
    builds = {name: partial(ENGINES[name].build, env, num_envs) for name in names if name not in cells}
    progress.stage(f"timing {env.name}, N={num_envs}", len(builds) * (2 + arguments.rounds))
    with children_without_interrupts() as end_children:

        def end_at_once() -> None:
            end_children()
            sys.unraisablehook = lambda _: None  # this program ends; what they belonged to complains when collected

        cells |= measure(builds, arguments.rounds, arguments.seconds, turn=progress.turn, interrupted=end_at_once)
    return {name: cells[name] for name in names}


# ---------------------------------------------------------------- what is shown


def _reference(cells: Mapping[str, Cell], baseline: str | None) -> str | None:
    """The engine whose cost the ratios of a column are to."""
    if baseline is not None:
        return baseline if cells.get(baseline, Cell()).rounds else None
    with_figures = [name for name, cell in cells.items() if cell.rounds and name != ALONE]
    return min(with_figures, key=lambda name: cells[name].median, default=None)


def _show(console: Console, env: NamedEnv, columns: Columns, baseline: str | None, about: Mapping[str, str]) -> None:
    from rich.table import Table
    from rich.text import Text

    from gymbridge.cli.paragraphs import print_paragraph

    to = "the best of the column" if baseline is None else baseline
    print_paragraph(console, Text(f"{env.name}: microseconds for a step of all N envs (times {to})", "bold"))
    table = Table()
    table.add_column("engine")
    table.add_column("results")
    for num_envs in columns:
        table.add_column(f"N={num_envs}", justify="right")
    references = {num_envs: _reference(cells, baseline) for num_envs, cells in columns.items()}
    for name in next(iter(columns.values())):
        row = []
        for num_envs, cells in columns.items():
            cell, reference = cells[name], references[num_envs]
            text = "-" if not cell.rounds else _figure(cell.median)
            if cell.rounds and reference is not None:
                text += f" ({cell.ratio(cells[reference]):.2f})"
            row.append(Text(text, "bold green" if name == reference else ""))
        style = "bold" if name.startswith("gymbridge") else ""
        table.add_row(Text(ENGINES[name].title, style), ENGINES[name].gives, *row)
    console.print(table)
    for num_envs, cells in columns.items():
        best = _reference(cells, None)
        if best is not None:
            rate = num_envs / cells[best].median * 1e6
            text = f"N={num_envs}: {ENGINES[best].title} makes the most steps of envs a second, {rate:,.0f}"
            print_paragraph(console, text)
    versions = ", ".join(f"{what} {about[what]}" for what in ("python", "gymbridge", "gymnasium", "torch"))
    told = f"{about['date']}, {about['machine']}; {versions}; medians of {about['rounds']} rounds, of ratios too"
    print_paragraph(console, Text(told, "dim"))


def _figure(microseconds: float) -> str:
    """Three digits, at least.

    Example:
        >>> _figure(4.567), _figure(45678.9)
        ('4.57', '45679')
    """
    return f"{microseconds:.0f}" if microseconds >= 100 else f"{microseconds:.3g}"


def _tell_what_is_not_timed(columns: Columns, left_out: Mapping[str, str]) -> None:
    """A line for each engine and reason, on standard error."""
    from gymbridge.cli.paragraphs import print_paragraph

    reasons: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        reasons.setdefault(reason, []).append(name)
    for num_envs, cells in columns.items():
        for name, cell in cells.items():
            if cell.failure:
                reasons.setdefault(cell.failure, []).append(f"{name} (N={num_envs})")
    for reason, names in reasons.items():
        print_paragraph(own_console(stderr=True), f"{', '.join(names)}: {reason}", "not timed: ")


def _require_writable(file: Path) -> None:
    """Refuses, before anything is timed, a file that could not be written."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise CommandError(f"{file}: there is no folder {folder}")
    if file.is_dir():
        raise CommandError(f"{file}: is a folder, expected a file")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise CommandError(f"{file}: may not be written")


def _write(file: Path, option: str, write: Callable[[Path], object]) -> None:
    """Writes what has been found, which a full disk or a format may prevent."""
    try:
        write(file)
    except Exception as error:
        raise CommandError(f"{option}: writing {file} raised {in_short(error)}") from error


def _as_json(columns: Columns, baseline: str | None) -> list[dict[str, Any]]:
    figures = []
    for num_envs, cells in columns.items():
        against = _reference(cells, baseline)
        for name, cell in cells.items():
            ratio = cell.ratio(cells[against]) if cell.rounds and against is not None else None
            figures.append(
                {
                    "num_envs": num_envs,
                    "engine": name,
                    "failure": cell.failure or None,
                    "us_per_step": cell.median if cell.rounds else None,
                    "us_per_step_rounds": cell.rounds,
                    "env_steps_per_second": num_envs / cell.median * 1e6 if cell.rounds else None,
                    "ratio": ratio,
                    "against": against,
                }
            )
    return figures


# ---------------------------------------------------------------- the picture


def _require_picture(file: Path) -> None:
    """Refuses, before anything is timed, a picture that could not be drawn."""
    from gymbridge.benchmarking.plots import picture_formats

    try:
        formats = picture_formats()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise CommandError("--plot needs matplotlib, which is not installed: pip install 'gymbridge[cli]'") from error
    if file.suffix.removeprefix(".").lower() not in formats:
        raise CommandError(f"--plot: got {str(file)!r}, expected a file that ends in one of {', '.join(formats)}")


def _draw(file: Path, env: NamedEnv, columns: Columns, about: Mapping[str, str]) -> None:
    from gymbridge.benchmarking.plots import plot_costs

    names = list(next(iter(columns.values())))
    costs = {
        ENGINES[name].title: [cells[name].median if cells[name].rounds else None for cells in columns.values()]
        for name in names
    }
    title = f"{env.name} ({about['date']}, {about['machine']})"
    plot_costs(file, title, list(columns), costs, emphasised="gymbridge")
