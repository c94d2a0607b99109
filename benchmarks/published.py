"""What README.md and docs/ show of results: tables between marks, and pictures.

Results are what the benchmarks write (``report.py``), by the name of the measurement that they come from (``all.py``).
Between ``<!-- measured: NAME -->`` and ``<!-- end: NAME -->`` a page has what a function of this module makes of them;
nobody writes there by hand. Where there are no results, what stands there stays.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from report import Figure, as_text, median_and_longest, ratio_as_text, table

from gymbridge.benchmarking.plots import plot_costs

__all__ = ["BLOCKS", "PICTURES", "Block", "Picture", "draw", "pages", "with_block"]

Results = Mapping[str, Any]

PACKAGES = ("gymnasium", "numpy", "torch", "tensordict", "torchrl", "stable-baselines3", "envpool", "ray")
"""Whose versions are told, where a benchmark has noted them."""

KINDS = {
    "null": "environments that cost nothing",
    "CartPole-v1": "CartPoles",
}


@dataclass(frozen=True)
class Block:
    """A part of a page: of which results, and what is made of them."""

    page: str
    results: str
    text: Callable[[Results], str]


@dataclass(frozen=True)
class Picture:
    """The cost of a step over the number of environments, of one kind of them."""

    results: str
    kind: str
    where: str


# --- what is said of any results ---


def circumstances(results: Results, measured: str) -> str:
    """When and on what, and how it was measured."""
    about = results["about"]
    day = date.fromisoformat(about["date"])
    versions = [f"{name} {about[name]}" for name in PACKAGES if about.get(name, "not installed") != "not installed"]
    parts = [f"{day.day} {day:%B %Y}", about["machine"], f"Python {about['python']}", *versions]
    return paragraph(f"{', '.join(parts)}; {measured}.")


def in_turn(results: Results, program: str) -> str:
    """How most benchmarks measure."""
    rounds, seconds = results["about"]["rounds"], results["about"]["seconds"]
    return f"medians of {rounds} rounds of {seconds:g} s, all timed in turn in one run of `benchmarks/{program}`"


def paragraph(text: str) -> str:
    """In lines of the pages' length."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def table_in_turn(
    program: str, columns: Mapping[str, str], rows: Sequence[str], corner: str = ""
) -> Callable[[Results], str]:
    """What makes the circumstances and a table of results that were timed in turn.

    Args:
        program: in ``benchmarks/``.
        columns: case -> the column's title.
        rows: candidates.
        corner: over the rows' titles.
    """

    def text(results: Results) -> str:
        shown = table(results["figures"], corner, columns, rows)
        return f"{circumstances(results, in_turn(results, program))}\n\n{shown}"

    return text


def figure_of(results: Results, case: str, candidate: str) -> Figure:
    """The one of a candidate in a case."""
    (found,) = [each for each in results["figures"] if (each["case"], each["candidate"]) == (case, candidate)]
    return found


# --- blocks with a form of their own ---


def steps_in_process(results: Results) -> str:
    """The table of batches in this process, and one environment natively."""
    columns = {f"{kind} N={n}": f"{kind.removesuffix('-v1')} N={n}" for kind, n in IN_PROCESS_COLUMNS}
    rows = ("raw", "gymbridge-sync", "gymnasium-sync", "sb3-dummy", "gymbridge-serial", "torchrl-serial")
    own, peer = (figure_of(results, "single CartPole-v1", name) for name in ("gymbridge-step", "torchrl-step"))
    single = (
        f"One CartPole, natively: `GymEnv.step` {as_text(own['median'])}, TorchRL's {as_text(peer['median'])} "
        f"({ratio_as_text(peer['ratio'])})."
    )
    return f"{table_in_turn('vector_step.py', columns, rows)(results)}\n\n{single}"


def pools(results: Results) -> str:
    """The table of pools, and what the slow environments supply."""
    columns = {case: case.replace("slow-resets", "slow resets") for case in POOL_COLUMNS}
    rows = ("gymbridge-processes", "gymbridge-shared", "torchrl-shm", "gymbridge-threads", "torchrl-threads")
    alone = figure_of(results, POOL_COLUMNS[-1], "alone")["median"]
    shown = table_in_turn("async_pool.py", columns, rows)(results)
    return (
        f"{shown}\n\nThe environments with slow resets alone supply a transition every {as_text(alone)} microseconds."
    )


def event_loop(results: Results) -> str:
    """A sentence of the pool on an event loop."""
    about, own = results["about"], figure_of(results, "gymnasium", "pool")
    return paragraph(
        f"{about['num_envs']} environments whose steps await {about['milliseconds']:g} ms on an event loop: "
        f"{as_text(own['median'])} transitions a second, {ratio_as_text(own['ratio'])} of what a bare loop makes that "
        f"awaits the same. {circumstances(results, in_turn(results, 'asyncio_pool.py'))}"
    )


def starts(results: Results) -> str:
    """The table of engines' starts."""
    rows = ("gymbridge-async", "gymbridge-parallel", "gymnasium-spawn", "gymnasium-fork", "torchrl-parallel")
    shown = table(results["figures"], "", {"cold": "first", "warm": "later"}, rows)
    number = results["about"]["programs"]
    how = f"medians of {number} programs of each, taken in turn by `benchmarks/engine_start.py`"
    return f"{circumstances(results, how)}\n\n{shown}"


def deaths(results: Results) -> str:
    """The table of workers that die."""
    columns = {"noticed": "the error", "goes on": "the run goes on"}
    shown = table(results["figures"], "", columns, cell=median_and_longest)
    how = f"medians (and longest) of {results['about']['rounds']} deaths each, by `benchmarks/worker_death.py`"
    return f"{circumstances(results, how)}\n\n{shown}"


def over_ray(results: Results) -> str:
    """The table of Ray beside processes, and what follows for clusters."""
    lines = [
        "| a step | processes, a second | Ray, a second | ratio | caller's time, processes | caller's time, Ray |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for case in dict.fromkeys(figure["case"] for figure in results["figures"]):
        own, ray = (figure_of(results, case, name) for name in ("multiprocessing", "ray"))
        lines.append(
            f"| {'nothing' if case == '0 ms' else case} | {own['median']:,.0f} | {ray['median']:,.0f} | "
            f"{ratio_as_text(ray['ratio'])} | {own['caller_us']:,.0f} us | {ray['caller_us']:,.0f} us |"
        )
    caller_ms = figure_of(results, "10 ms", "ray")["caller_us"] / 1000
    reckoned = paragraph(
        f"Reckoned from that, not measured on more machines than one: at {caller_ms:.2g} ms of the caller's time a "
        f"transition, one caller has at most {1000 / caller_ms:,.0f} transitions a second from any cluster. A machine "
        "with C cores makes C / t of them a second from steps that take a time t of a core. So a second machine is of "
        "use where C / t is less than that:"
    )
    of_use = ["| cores of the machine | Ray can be of use for steps of more than |", "| --- | --- |"]
    of_use += [f"| {cores} | {cores * caller_ms:.0f} ms |" for cores in (2, 8, 16, 64)]
    how = f"{in_turn(results, 'ray_pool.py')}. Actors and caller share the cores here"
    return "\n\n".join(["\n".join(lines), circumstances(results, how), reckoned, "\n".join(of_use)])


def pictures_of(results_name: str, heading: str) -> Callable[[Results], str]:
    """What makes a section that shows the pictures of these results."""

    def text(results: Results) -> str:
        shown = [
            f"![{alt_text(picture, results)}](figures/{name}.svg)"
            for name, picture in PICTURES.items()
            if picture.results == results_name
        ]
        return "\n\n".join([f"## {heading}", circumstances(results, in_turn(results, "vector_step.py")), *shown])

    return text


# --- pictures ---


def costs(picture: Picture, results: Results) -> tuple[list[int], dict[str, list[float | None]]]:
    """The numbers of environments, and the candidates' medians for each."""
    medians: dict[str, dict[int, float | None]] = {}
    for figure in results["figures"]:
        kind, _, number = figure["case"].partition(" N=")
        if kind == picture.kind and number:
            medians.setdefault(_plain(figure["title"]), {})[int(number)] = figure["median"]
    numbers = sorted({number for own in medians.values() for number in own})
    return numbers, {name: [own.get(number) for number in numbers] for name, own in medians.items()}


def alt_text(picture: Picture, results: Results) -> str:
    """The picture in words: each line's ends."""
    numbers, lines = costs(picture, results)
    ends = "; ".join(
        f"{name} {as_text(own[0])} to {as_text(own[-1])}" for name, own in lines.items() if own[0] and own[-1]
    )
    return (
        f"Microseconds for a step of all N {KINDS[picture.kind]} {picture.where}, on logarithmic axes, from "
        f"N={numbers[0]} to N={numbers[-1]}: {ends}."
    )


def _plain(title: str) -> str:
    """A row's title without markdown."""
    return re.sub(r"\*\*|`", "", title)


def draw(root: Path, results: Mapping[str, Results]) -> list[Path]:
    """Draws the pictures of these results into ``docs/figures`` under ``root``."""
    files = []
    for name, picture in PICTURES.items():
        if picture.results in results:
            files.append(root / "docs" / "figures" / f"{name}.svg")
            numbers, lines = costs(picture, results[picture.results])
            title = f"A step of {KINDS[picture.kind]} {picture.where}"
            plot_costs(files[-1], title, numbers, lines, emphasised="gymbridge")
    return files


# --- pages ---


def pages(root: Path, results: Mapping[str, Results]) -> dict[Path, str]:
    """The pages under ``root`` with what they show of these results; what has none stays as it is."""
    texts: dict[Path, str] = {}
    for name, block in BLOCKS.items():
        if block.results in results:
            page = root / block.page
            before = texts[page] if page in texts else page.read_text(encoding="utf-8")
            texts[page] = with_block(before, name, block.text(results[block.results]), block.page)
    return texts


def with_block(page: str, name: str, text: str, called: str = "the page") -> str:
    """A page with this text between the marks of this name.

    Raises:
        ValueError: the page does not have both marks once.

    Example:
        >>> with_block("a\\n<!-- measured: x -->\\nold\\n<!-- end: x -->\\nb", "x", "new")
        'a\\n<!-- measured: x -->\\nnew\\n<!-- end: x -->\\nb'
    """
    begin, end = f"<!-- measured: {name} -->\n", f"<!-- end: {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"{called}: expected {begin.strip()} and {end} once, in lines of their own")
    before, _, rest = page.partition(begin)
    return f"{before}{begin}{text}\n{end}{rest.partition(end)[2]}"


IN_PROCESS_COLUMNS = (("null", 2), ("null", 8), ("null", 64), ("CartPole-v1", 8), ("CartPole-v1", 64), ("image", 8))
WORKER_COLUMNS = (("null", 2), ("null", 8), ("CartPole-v1", 2), ("CartPole-v1", 8), ("image", 8))
POOL_COLUMNS = ("dispatch N=8", "synchronous N=8", "slow-resets N=8")

BLOCKS = {
    "steps_in_process": Block("README.md", "steps_in_process", steps_in_process),
    "steps_in_workers": Block(
        "README.md",
        "steps_in_workers",
        table_in_turn(
            "vector_step.py",
            {f"{kind} N={n}": f"{kind.removesuffix('-v1')} N={n}" for kind, n in WORKER_COLUMNS},
            (
                "gymbridge-async",
                "gymnasium-async",
                "sb3-subproc",
                "gymbridge-parallel",
                "torchrl-parallel",
            ),
        ),
    ),
    "rollouts": Block(
        "README.md",
        "rollouts",
        table_in_turn(
            "vector_step.py",
            {"null N=8": "null N=8", "CartPole-v1 N=8": "CartPole N=8"},
            ("gymbridge-parallel-rollout", "torchrl-parallel-rollout"),
        ),
    ),
    "starts": Block("README.md", "starts", starts),
    "pools": Block("README.md", "pools", pools),
    "event_loop": Block("README.md", "event_loop", event_loop),
    "deaths": Block("README.md", "deaths", deaths),
    "sb3": Block(
        "docs/sb3.md",
        "sb3",
        table_in_turn(
            "sb3_step.py",
            {"null N=8": "null", "infos N=8": "infos", "CartPole-v1 N=8": "CartPole", "image N=8": "image"},
            ("gymbridge", "sb3-subproc", "gymbridge-parallel", "gymbridge-sync", "sb3-dummy"),
        ),
    ),
    "collectors": Block(
        "docs/torchrl.md",
        "collectors",
        table_in_turn(
            "torchrl_collector.py",
            {f"{case} N=8": f"{case} N=8" for case in ("random", "network", "transformed")},
            ("gymbridge-parallel", "torchrl-parallel", "gymbridge-serial", "torchrl-serial"),
        ),
    ),
    "from_torchrl": Block(
        "docs/torchrl.md",
        "from_torchrl",
        table_in_turn(
            "from_torchrl.py",
            {f"{case} N=8": f"{case} N=8" for case in ("counting", "transformed", "CartPole")},
            (
                "torchrl-parallel",
                "gymbridge-parallel",
                "gymbridge-processes",
                "torchrl-serial",
                "gymbridge-serial",
                "torchrl-alone",
            ),
        ),
    ),
    "envpool": Block(
        "docs/envpool.md",
        "envpool",
        table_in_turn(
            "envpool_step.py",
            {
                f"{kind} N=8": kind.removesuffix("-v1")
                for kind in ("CartPole-v1", "Pendulum-v1", "HalfCheetah-v4", "Pong-v5")
            },
            ("envpool", "gymbridge", "gymbridge-vector", "envpool-async", "gymbridge-async"),
        ),
    ),
    "ray": Block("docs/ray.md", "ray", over_ray),
    "stats": Block(
        "docs/stats.md",
        "stats",
        table_in_turn(
            "stats_cost.py",
            {"null N=8": "null", "CartPole-v1 N=8": "CartPole"},
            ("sync-vector", "sync-vector-asked", "serial", "serial-asked", "threads", "threads-asked"),
        ),
    ),
    "caller_steps": Block(
        "docs/workers.md",
        "caller_steps",
        table_in_turn(
            "caller_steps.py",
            {
                f"{kind} N={n}": f"{title} N={n}"
                for kind, title in (("null", "null"), ("CartPole-v1", "CartPole"), ("busy", "100 us"))
                for n in (2, 8, 64)
            },
            ("parallel", "caller", "one-worker", "serial"),
        ),
    ),
    "pictures_in_process": Block(
        "docs/benchmarks.md",
        "steps_in_process",
        pictures_of("steps_in_process", "Steps in the calling process, by the number of environments"),
    ),
    "pictures_in_workers": Block(
        "docs/benchmarks.md",
        "steps_in_workers",
        pictures_of("steps_in_workers", "Steps in worker processes, by the number of environments"),
    ),
}
"""Name -> what stands between the marks of that name."""

PICTURES = {
    "cost_null_in_process": Picture("steps_in_process", "null", "in the calling process"),
    "cost_cartpole_in_process": Picture("steps_in_process", "CartPole-v1", "in the calling process"),
    "cost_null_in_workers": Picture("steps_in_workers", "null", "in worker processes"),
    "cost_cartpole_in_workers": Picture("steps_in_workers", "CartPole-v1", "in worker processes"),
}
"""File, without its suffix -> what it shows."""
