"""Makes all tables and pictures of benchmarks that README.md and docs/ show.

    python benchmarks/all.py --full      # measures all that can be measured here, stores it, and renders
    python benchmarks/all.py             # renders again what is stored
    python benchmarks/all.py --quick     # a rehearsal: measures briefly, shows it, stores and renders nothing

Results are stored in ``benchmarks/results``, a file a measurement, with the machine, the versions and the date. Each
benchmark runs in the first of ``--pythons`` that has the libraries which it compares. Where none has them, and where a
benchmark fails, that is told, and the results and tables that there are stay.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from program_options import add_names
from published import BLOCKS, draw, pages
from report import failures, write

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "benchmarks"

TIME_LIMIT = 600
"""Seconds that a benchmark may take, after which it is ended."""


@dataclass(frozen=True)
class Measurement:
    """A run of a benchmark.

    Attributes:
        program: in ``benchmarks/``.
        needs: modules that it wants to import.
        cases: what is measured.
        full: how long, for figures worth showing.
        quick: how long in a rehearsal.
    """

    program: str
    needs: tuple[str, ...]
    cases: tuple[str, ...]
    full: tuple[str, ...]
    quick: tuple[str, ...] = ("--rounds=1", "--seconds=0.01")


MEASUREMENTS = {
    "steps_in_process": Measurement(
        "vector_step.py",
        ("torchrl", "stable_baselines3"),
        ("--kinds=null,CartPole-v1,image@8", "--num-envs=2,8,32,64"),
        ("--rounds=9", "--seconds=0.1"),
    ),
    "steps_in_workers": Measurement(
        "vector_step.py",
        ("torchrl", "stable_baselines3"),
        (
            "--kinds=null@2,null@4,null@8,CartPole-v1@2,CartPole-v1@8,image@8",
            "--single=",
            "--peers=gymnasium-async,sb3-subproc,torchrl-parallel",
        ),
        ("--rounds=7", "--seconds=0.15"),
    ),
    "rollouts": Measurement(
        "vector_step.py",
        ("torchrl",),
        ("--kinds=null,CartPole-v1", "--num-envs=8", "--single=", "--peers=torchrl-parallel-rollout"),
        ("--rounds=7", "--seconds=0.2"),
    ),
    "starts": Measurement(
        "engine_start.py", ("torchrl",), (), ("--programs=2", "--rounds=1"), ("--programs=1", "--rounds=1")
    ),
    "pools": Measurement("async_pool.py", ("torchrl",), ("--slow-envs=8",), ("--rounds=5", "--seconds=0.3")),
    "event_loop": Measurement("asyncio_pool.py", (), (), ("--rounds=5", "--seconds=0.8")),
    "deaths": Measurement("worker_death.py", (), (), ("--rounds=20",), ("--rounds=1",)),
    "sb3": Measurement(
        "sb3_step.py",
        ("stable_baselines3",),
        ("--kinds=null,infos,CartPole-v1,image",),
        ("--rounds=9", "--seconds=0.1"),
    ),
    "collectors": Measurement("torchrl_collector.py", ("torchrl",), ("--num-envs=8",), ("--rounds=5", "--seconds=0.3")),
    "from_torchrl": Measurement("from_torchrl.py", ("torchrl",), ("--num-envs=8",), ("--rounds=7", "--seconds=0.1")),
    "envpool": Measurement(
        "envpool_step.py",
        ("envpool",),
        ("--kinds=CartPole-v1,Pendulum-v1,HalfCheetah-v4,Pong-v5",),
        ("--rounds=25", "--seconds=0.06"),
    ),
    "ray": Measurement("ray_pool.py", ("ray",), (), ("--rounds=5", "--seconds=0.8")),
    "stats": Measurement(
        "stats_cost.py", (), ("--engines=sync-vector,serial,threads",), ("--rounds=41", "--seconds=0.04")
    ),
    "caller_steps": Measurement("caller_steps.py", (), (), ("--rounds=15", "--seconds=0.1")),
}
"""Name -> what is run. A block of ``published.py`` shows the results of that name."""


# --- measuring ---


def modules_in(python: Path, modules: Collection[str]) -> set[str]:
    """Which of these modules an interpreter can import.

    Raises:
        RuntimeError: it is none, or has no gymbridge.
    """
    look = (
        "import sys; from importlib.util import find_spec; import gymbridge.benchmarking.rounds\n"
        "print(*(name for name in sys.argv[1:] if find_spec(name)))"
    )
    try:
        done = subprocess.run(
            [python, "-c", look, *modules], env=environment(), capture_output=True, text=True, timeout=120
        )
    except OSError as error:
        raise RuntimeError(f"{python}: {error.strerror}") from error
    if done.returncode:
        raise RuntimeError(f"{python}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
    return set(done.stdout.split())


def environment() -> dict[str, str]:
    """The variables with which a program imports the gymbridge of this tree."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def choose_pythons(
    names: Iterable[str], measurements: Mapping[str, Measurement], pythons: Sequence[Path]
) -> tuple[dict[str, Path], dict[str, str]]:
    """The first interpreter for each measurement that has what it needs, and why others have none."""
    wanted = sorted({module for name in names for module in measurements[name].needs})
    found = {python: modules_in(python, wanted) for python in pythons}
    chosen, missing = {}, {}
    for name in names:
        needs = measurements[name].needs
        fitting = [python for python in pythons if found[python].issuperset(needs)]
        if fitting:
            chosen[name] = fitting[0]
        else:
            missing[name] = f"no interpreter has {' and '.join(needs)}"
    return chosen, missing


def measured(measurement: Measurement, python: Path, *, full: bool, time_limit: float = TIME_LIMIT) -> Any:
    """The results of a run.

    Raises:
        RuntimeError: it fails, takes too long, or could not time a candidate.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        how = measurement.full if full else measurement.quick
        command = [python, PROGRAMS / measurement.program, *measurement.cases, *how, f"--json={file}"]
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            status = process.wait(time_limit)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"took longer than {time_limit:g} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status:
            raise RuntimeError(f"ended with status {status}")
        results = json.loads(file.read_text(encoding="utf-8"))
    if failed := failures(results["figures"]):
        raise RuntimeError("could not time all: " + "; ".join(line.removeprefix("- ") for line in failed))
    return results


# --- stored results ---


def stored(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """The results of these names that a folder has."""
    files = {name: folder / f"{name}.json" for name in names}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}


def render(root: Path, results: Mapping[str, Any]) -> None:
    """Writes what the pages show of these results, and says which pages changed."""
    for page, text in pages(root, results).items():
        changed = page.read_text(encoding="utf-8") != text
        page.write_text(text, encoding="utf-8")
        print(f"{page.relative_to(root)}: {'rendered anew' if changed else 'as before'}")
    for file in draw(root, results):
        print(f"{file.relative_to(root)}: drawn")


# --- the program ---


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--full", action="store_true", help="measure for figures worth showing")
    how.add_argument("--quick", action="store_true", help="measure briefly, to see that all of it works")
    add_names(parser, "--only", MEASUREMENTS)
    parser.add_argument(
        "--pythons",
        type=lambda text: [Path(word) for word in text.split(",") if word],
        default=[Path(sys.executable)],
        metavar="FILE,…",
        help="interpreters that benchmarks may run in (the one that runs this)",
    )
    parser.add_argument(
        "--results", type=Path, default=PROGRAMS / "results", metavar="FOLDER", help="of what is stored"
    )
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER", help="where README.md and docs/ are")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    if not options.quick and find_spec("matplotlib") is None:
        print("the pictures need matplotlib, which is not installed: pip install 'gymbridge[cli]'", file=sys.stderr)
        return 2
    status = 0
    if options.full or options.quick:
        chosen, problems = choose_pythons(options.only, MEASUREMENTS, options.pythons)
        for number, (name, python) in enumerate(chosen.items(), 1):
            print(f"{number} of {len(chosen)}: {name}, in {python}", file=sys.stderr, flush=True)
            begun = time.perf_counter()
            try:
                results = measured(MEASUREMENTS[name], python, full=options.full)
            except RuntimeError as error:
                problems[name] = str(error)
                continue
            print(f"{name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
            if options.full:
                options.results.mkdir(parents=True, exist_ok=True)
                write(options.results / f"{name}.json", results)
            else:
                shown = [block.text(results) for block in BLOCKS.values() if block.results == name]
                print(f"\n## {name}\n\n" + "\n\n".join(shown), flush=True)
        for name, why in problems.items():
            print(f"not measured, stays as it is: {name}: {why}", file=sys.stderr)
            status = 1
    if not options.quick:
        render(options.root, stored(options.results, options.only))
    return status


if __name__ == "__main__":
    sys.exit(main())
