"""What the benchmarks tell: candidates timed in turn, a table of them, and a file of all figures.

A file has ``about`` (the date, the machine, the versions, how it was measured), the ``unit`` of the figures, and
``figures``, each of a candidate in a case: ``median`` and ``rounds`` in that unit, and ``ratio``, how many times the
figure ``against`` another candidate's that is, the median of the rounds' ratios. Where there is no figure, ``failure``
says why.
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymbridge.benchmarking import rounds as timing
from gymbridge.benchmarking.machine import PACKAGES, circumstances
from gymbridge.benchmarking.rounds import Cell

__all__ = [
    "Candidate",
    "Columns",
    "Figure",
    "Row",
    "as_text",
    "begin",
    "failures",
    "figures_of",
    "measured_how",
    "median_and_longest",
    "ratio_as_text",
    "report",
    "table",
    "tell_progress",
    "time_cases",
    "with_references",
    "write",
]

Columns = dict[str, dict[str, Cell]]
"""Case -> candidate -> what it cost."""
Figure = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """What a table has a row of: its name there, and the candidate that it is compared with."""

    title: str
    against: str


@dataclass(frozen=True)
class Candidate:
    """What is built and timed: its name in the table, and the candidate that it is compared with.

    What ``build`` is given and gives is the benchmark's own; :func:`time_cases` has it give how to step and to close.
    """

    title: str
    build: Callable[..., Any]
    against: str
    by_default: bool = True


def with_references(candidates: Mapping[str, Any], peers: Iterable[str]) -> list[str]:
    """These candidates and those that they are compared with, in the table's order."""
    wanted = {name for peer in peers for name in (peer, candidates[peer].against)}
    return [name for name in candidates if name in wanted]


# --- measuring ---


def begin(packages: Iterable[str] = PACKAGES, **how: Any) -> dict[str, Any]:
    """Says on what it will be measured, and silences the warnings of envs, which are many here.

    Args:
        packages: whose versions matter.
        how: what else is to be known about the figures: rounds, seconds.
    """
    warnings.filterwarnings("ignore")
    about = {**circumstances(packages), **how}
    print("\n".join(f"- {what}: {value}" for what, value in about.items()), flush=True)
    return about


def measured_how(options: Any) -> dict[str, Any]:
    """The rounds and seconds of a program's options."""
    return {name: value for name in ("rounds", "seconds") if (value := getattr(options, name, None)) is not None}


def time_cases(
    names: Iterable[str],
    candidates: Mapping[str, Candidate],
    cases: Mapping[str, Sequence[Any]],
    rounds: int,
    seconds: float,
) -> Columns:
    """Times the candidates in turn, case by case.

    Args:
        names: the candidates that are timed.
        candidates: where they are.
        cases: case -> what their ``build`` is given.
        rounds: how often each gets its turn.
        seconds: how long a turn takes, about.
    """
    names, columns = list(names), {}
    for case, given in cases.items():
        tell_progress(case)
        builds = {name: functools.partial(candidates[name].build, *given) for name in names}
        columns[case] = timing.measure(builds, rounds, seconds)
    return columns


def tell_progress(case: str) -> None:
    """Says what is timed now."""
    print(f"timing {case} ...", file=sys.stderr, flush=True)


# --- reporting ---


def figures_of(columns: Columns, candidates: Mapping[str, Any], *, are_rates: bool = False) -> list[Figure]:
    """What a file has of them.

    Args:
        columns: what was measured.
        candidates: their titles, and what they are compared with.
        are_rates: more is better, and a ratio says how many times this candidate's figure the other's is.
    """
    figures = []
    for case, cells in columns.items():
        for name, cell in cells.items():
            reference = cells.get(candidates[name].against, Cell())
            ratio = None
            if cell.rounds and reference.rounds:
                ratio = reference.ratio(cell) if are_rates else cell.ratio(reference)
            figures.append(
                {
                    "case": case,
                    "candidate": name,
                    "title": candidates[name].title,
                    "against": candidates[name].against,
                    "failure": cell.failure or None,
                    "median": cell.median if cell.rounds else None,
                    "ratio": ratio,
                    "rounds": list(cell.rounds),
                }
            )
    return figures


def as_text(figure: float) -> str:
    """A figure for a table: two digits, or more before the point.

    Example:
        >>> [as_text(figure) for figure in (0.637, 9.97, 48.2, 18132.6)]
        ['0.64', '10', '48', '18,133']
    """
    if figure >= 10_000:
        return f"{figure:,.0f}"
    return f"{figure:.0f}" if figure >= 10 else f"{figure:.2g}"


def ratio_as_text(ratio: float) -> str:
    """A ratio for a table, with more digits the nearer it is to 1.

    Example:
        >>> [ratio_as_text(ratio) for ratio in (0.0042, 0.954, 1.02, 2.31, 14.4)]
        ['0.004', '0.95', '1.02', '2.3', '14']
    """
    if ratio < 0.1:
        return f"{ratio:.1g}"
    return f"{ratio:.2f}" if ratio < 2 else f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def median_and_ratio(figure: Figure) -> str:
    """A figure's cell: bold where its row is, and the ratio where it is to another's."""
    text = as_text(figure["median"])
    if figure["title"].startswith("**"):
        text = f"**{text}**"
    if figure["ratio"] is not None and figure["candidate"] != figure["against"]:
        text += f" ({ratio_as_text(figure['ratio'])})"
    return text


def median_and_longest(figure: Figure) -> str:
    """A figure's cell where the worst matters too."""
    return f"{figure['median']:.1f} ({max(figure['rounds']):.1f})"


def table(
    figures: Sequence[Figure],
    corner: str = "",
    columns: Mapping[str, str] | None = None,
    rows: Iterable[str] | None = None,
    cell: Callable[[Figure], str] = median_and_ratio,
) -> str:
    """A markdown table: a row a candidate, a column a case.

    Args:
        figures: what is in it.
        corner: over the rows' titles.
        columns: case -> its title, of those that are shown; all of them unless told.
        rows: candidates, in their order; all of them unless told.
        cell: what is said of a figure.
    """
    if columns is None:
        columns = {figure["case"]: figure["case"] for figure in figures}
    if rows is None:
        rows = dict.fromkeys(figure["candidate"] for figure in figures)
    cells = {(figure["case"], figure["candidate"]): cell(figure) for figure in figures if figure["rounds"]}
    titles = {figure["candidate"]: figure["title"] for figure in figures}
    lines = [_row(corner, columns.values()), _row("---", ["---"] * len(columns))]
    lines += [_row(titles[name], [cells.get((case, name), "-") for case in columns]) for name in rows]
    return "\n".join(lines)


def _row(title: str, cells: Iterable[str]) -> str:
    return " ".join(["|", *([title] if title else []), "|", " | ".join(cells), "|"])


def failures(figures: Iterable[Figure]) -> list[str]:
    """A line for each candidate and reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for figure in figures:
        if figure["failure"]:
            found.setdefault((figure["candidate"], figure["failure"]), []).append(figure["case"])
    return [f"- {name}, {', '.join(cases)}: {why}" for (name, why), cases in found.items()]


def report(about: Mapping[str, Any], unit: str, figures: Sequence[Figure], file: Path | None) -> None:
    """Says what could not be timed, and writes all figures to a file, if there is to be one."""
    if missing := failures(figures):
        print("\nNot timed:\n\n" + "\n".join(missing))
    if file is not None:
        write(file, {"about": about, "unit": unit, "figures": figures})


def write(file: Path, results: Mapping[str, Any]) -> None:
    """Writes results, a line a figure, so that what changes from run to run can be read line by line."""
    about = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in results["about"].items())
    figures = ",\n".join("  " + json.dumps(_rounded(figure), ensure_ascii=False) for figure in results["figures"])
    unit = json.dumps(results["unit"])
    file.write_text(f'{{\n "about": {{\n{about}\n }},\n "unit": {unit},\n "figures": [\n{figures}\n ]\n}}\n')


def _rounded(value: Any) -> Any:
    """With five digits, which is more than any clock here has."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
