"""What it costs to start workers: milliseconds until each has made its env and reset it, and memory of a worker.

    python benchmarks/worker_start.py --num-workers 8 --env CartPole-v1 --import torch

Each start method is timed in programs of its own: cold is the first start of a program, warm are the later ones. USS is
what a worker has for itself, the median over the workers of a start; what the starter process has comes once.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
from program_options import add_names, program_parser
from report import Row, begin, figures_of, measured_how, report, table, tell_progress

from gymbridge.benchmarking.rounds import Cell
from gymbridge.cli.option_values import positive_int
from gymbridge.engine.workers import Surroundings, WorkerSide, start_worker
from gymbridge.engine.workers.starter import running_starter

METHODS = ("starter", "exec", "fork", "spawn", "forkserver")


class Run:
    """A worker's job: makes an env, resets it, says so, and waits to be told to end."""

    def __init__(self, env: str):
        self.env = env

    def __call__(self, side: WorkerSide) -> None:
        env = gym.make(self.env)
        env.reset(seed=0)
        side.connection.send("ready")
        side.wake.wait()
        env.close()


def own_mib(pid: int) -> float:
    """Memory that this process alone has (USS), in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def start_once(method: str, num_workers: int, env: str) -> tuple[float, float, float]:
    """Milliseconds to start, to stop, and MiB of a worker."""
    begin = time.perf_counter()
    surroundings = Surroundings.now()
    workers = [start_worker(Run(env), method=method, surroundings=surroundings) for _ in range(num_workers)]
    for worker in workers:
        worker.connection.recv()
    ready = time.perf_counter()
    memory = statistics.median(own_mib(worker.pid) for worker in workers)
    measured = time.perf_counter()
    for worker in workers:
        worker.wake.wake()
    for worker in workers:
        worker.join()
        worker.close()
    return (ready - begin) * 1e3, (time.perf_counter() - measured) * 1e3, memory


def measure_here(method: str, options: argparse.Namespace) -> dict[str, float]:
    for module in options.imports:
        importlib.import_module(module)
    cold, _, _ = start_once(method, options.num_workers, options.env)
    runs = [start_once(method, options.num_workers, options.env) for _ in range(options.rounds)]
    warm, stop, memory = (statistics.median(column) for column in zip(*runs, strict=True))
    figures = {"cold": cold, "warm": warm, "stop": stop, "uss": memory}
    if method == "starter":
        figures["starter_uss"] = own_mib(running_starter(60).pid)
    return figures


def measure(method: str, argv: list[str]) -> dict[str, float]:
    """The figures of one program."""
    command = [sys.executable, __file__, *argv, "--here", method]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


CASES = {
    "cold": "cold ms",
    "warm": "warm ms",
    "stop": "stop ms",
    "uss": "USS of a worker, MiB",
    "starter_uss": "USS of the starter, MiB",
}
"""Figure of a program -> its column."""


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = program_parser(__doc__, rounds=5, turn="of workers to start warm in a program")
    parser.add_argument("--num-workers", type=positive_int, default=8)
    parser.add_argument("--env", default="CartPole-v1", help="a gymnasium id")
    add_names(parser, "--methods", METHODS)
    parser.add_argument("--import", dest="imports", nargs="*", default=[], help="modules that the program has imported")
    parser.add_argument("--programs", type=positive_int, default=3, help="for each method (3)")
    parser.add_argument("--here", choices=METHODS, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = arguments(argv)
    if options.here:
        print(json.dumps(measure_here(options.here, options)))
        return 0
    about = begin(("gymnasium", "numpy"), **measured_how(options), programs=options.programs)
    columns: dict[str, dict[str, Cell]] = {case: {} for case in CASES.values()}
    for method in options.methods:
        tell_progress(method)
        turns = [measure(method, argv) for _ in range(options.programs)]
        for name in turns[0]:
            columns[CASES[name]][method] = Cell(tuple(each[name] for each in turns))
    figures = figures_of(columns, {method: Row(method, method) for method in METHODS})
    print("\n" + table(figures, "start method", rows=options.methods), flush=True)
    report(about, "ms and MiB", figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
