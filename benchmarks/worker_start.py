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


def measure(method: str, argv: list[str], programs: int) -> dict[str, float]:
    """Medians over so many programs."""
    command = [sys.executable, __file__, *argv, "--here", method]
    outputs = [subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout for _ in range(programs)]
    figures = [json.loads(output) for output in outputs]
    return {name: statistics.median(each[name] for each in figures) for name in figures[0]}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=8)
    parser.add_argument("--env", default="CartPole-v1", help="a gymnasium id")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--import", dest="imports", nargs="*", default=[], help="modules that the program has imported")
    parser.add_argument("--rounds", type=int, default=5, help="warm starts of a program")
    parser.add_argument("--programs", type=int, default=3, help="for each method")
    parser.add_argument("--here", choices=METHODS, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.here:
        print(json.dumps(measure_here(options.here, options)))
        return 0
    print("| start method | cold ms | warm ms | stop ms | USS of a worker, MiB |\n| --- | --- | --- | --- | --- |")
    for method in options.methods:
        figures = measure(method, argv, options.programs)
        once = f" (+{figures['starter_uss']:.0f} once)" if "starter_uss" in figures else ""
        times = " | ".join(f"{figures[name]:.0f}" for name in ("cold", "warm", "stop"))
        print(f"| {method} | {times} | {figures['uss']:.1f}{once} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
