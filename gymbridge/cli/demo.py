"""Watch many CartPoles, a worker that is killed and replaced, and a pool, for some seconds."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from gymbridge.cli.option_values import positive_seconds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

__all__ = ["add_arguments", "run"]

_NUM_CARTS = 32
_CARTS_A_LINE = 8
_CART_COLUMNS = 9
_BURST_SECONDS = 0.03
_FRAME_SECONDS = 0.1
_BALANCE = np.array([0.05, 0.2, 1.0, 0.6])
"""Weights of a cart's position and speed and of its pole's: their sum says where to push."""
_BAR_COLUMNS = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what it takes."""
    parser.add_argument("--seconds", type=positive_seconds, default=15.0, help="how long it takes, about (15)")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Shows three scenes, and ends."""
    warnings.filterwarnings("ignore")
    scenes = [_engines, _killed_worker, _pool]
    if sys.platform == "win32":  # which has no worker processes
        scenes.remove(_killed_worker)
    for scene in scenes:
        scene(console, arguments.seconds / len(scenes))
    return 0


class _Screen:
    """A picture that changes, in a terminal; elsewhere only the last one is printed."""

    def __init__(self, live: Live | None):
        self._live = live
        self._next = 0.0

    def frame(self, draw: Callable[[], RenderableType]) -> None:
        """Draws anew, if it is time."""
        if self._live is not None and time.perf_counter() >= self._next:
            self._live.update(draw(), refresh=True)
            self._next = time.perf_counter() + _FRAME_SECONDS


@contextmanager
def _screen(console: Console, heading: str, last: Callable[[], RenderableType]) -> Iterator[_Screen]:
    """A screen under a heading; what ``last`` draws stays."""
    from rich.live import Live
    from rich.text import Text

    from gymbridge.cli.paragraphs import print_paragraph

    console.print()
    print_paragraph(console, Text(heading, "bold"))
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield _Screen(live)
            live.update(last(), refresh=True)
    else:
        yield _Screen(None)
        console.print(last())


# ---------------------------------------------------------------- many CartPoles


class _Engine:
    """An engine that balances poles, and how fast that went.

    Args:
        name: as it is shown.
        latest: what it gave last: observations, or a TensorDict with them.
        step: makes a step from that, and gives what comes next.
        close: ends it.
    """

    def __init__(self, name: str, latest: Any, step: Callable[[Any], Any], close: Callable[[], object]):
        self.name = name
        self.latest = latest
        self.close = close
        self._step = step
        self.env_steps = 0
        self.seconds = 0.0

    def burst(self) -> None:
        """Steps for a moment, once at least."""
        begun = time.perf_counter()
        while True:
            self.latest = self._step(self.latest)
            self.env_steps += _NUM_CARTS
            elapsed = time.perf_counter() - begun
            if elapsed >= _BURST_SECONDS:
                self.seconds += elapsed
                return

    @property
    def rate(self) -> float:
        """Steps of envs a second."""
        return self.env_steps / self.seconds if self.seconds else 0.0


def _make_cart() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1")


def _pushes(observations: Any) -> Any:
    return (observations @ _BALANCE > 0).astype(np.int64)


def _vector_engine(name: str, envs: Any) -> _Engine:
    observations, _ = envs.reset(seed=0)
    return _Engine(name, observations, lambda latest: envs.step(_pushes(latest))[0], envs.close)


def _tensordict_engine(name: str, env: Any) -> _Engine:
    import torch

    weights = torch.as_tensor(_BALANCE, dtype=torch.float32)

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def step(td: Any) -> Any:
        td["action"] = (td["observation"] @ weights > 0).long()
        _, td = env.step_and_maybe_reset(td)
        return td

    return _Engine(name, env.reset(), step, env.close)


def _started_engines() -> Iterator[_Engine]:
    from gymbridge import ParallelEnv, SerialEnv, vector

    makers = [_make_cart] * _NUM_CARTS
    yield _vector_engine("gymbridge SyncVectorEnv", vector.SyncVectorEnv(makers))
    yield _vector_engine("gymnasium SyncVectorEnv", gym.vector.SyncVectorEnv(makers))
    yield _tensordict_engine("gymbridge SerialEnv", SerialEnv(_NUM_CARTS, _make_cart))
    if sys.platform != "win32":
        yield _vector_engine("gymbridge AsyncVectorEnv", vector.AsyncVectorEnv(makers))
        yield _tensordict_engine("gymbridge ParallelEnv", ParallelEnv(_NUM_CARTS, _make_cart))


def _engines(console: Console, seconds: float) -> None:
    from rich.console import Group
    from rich.text import Text

    engines: list[_Engine] = []

    def draw() -> RenderableType:
        rates = _bars([(engine.name, engine.rate, f"{engine.rate:,.0f} steps a second") for engine in engines])
        return Group(Text(carts(engines[0].latest)), rates)

    with _screen(console, f"{_NUM_CARTS} CartPoles in one call, in every engine", draw) as screen:
        try:
            engines.extend(_started_engines())
            end = time.perf_counter() + seconds
            while True:
                for engine in engines:
                    engine.burst()
                    screen.frame(draw)
                if time.perf_counter() >= end:
                    break
        finally:
            for engine in engines:
                engine.close()


def carts(observations: Any) -> str:
    """The carts on their tracks, each with its pole.

    Example:
        >>> print(carts(np.array([[0.0, 0.0, 0.0, 0.0], [2.4, 0.0, 0.2, 0.0]])))
            │            /
        ────▀────────────▀
    """
    lines = []
    for first in range(0, len(observations), _CARTS_A_LINE):
        poles, tracks = [], []
        for position, _, angle, _ in observations[first : first + _CARTS_A_LINE]:
            column = round((min(max(position, -2.4), 2.4) + 2.4) / 4.8 * (_CART_COLUMNS - 1))
            pole = "│" if abs(angle) < 0.04 else "/" if angle > 0 else "\\"
            poles.append(f"{'':{column}}{pole}{'':{_CART_COLUMNS - column - 1}}")
            tracks.append(f"{'':─<{column}}▀{'':─<{_CART_COLUMNS - column - 1}}")
        lines += ["".join(poles).rstrip(), "".join(tracks)]
    return "\n".join(lines)


def _bars(rows: list[tuple[str, float, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    longest = max((value for _, value, _ in rows), default=0.0) or 1.0
    for name, value, told in rows:
        bar = "█" * round(_BAR_COLUMNS * value / longest)
        style = "dim" if name.startswith("gymnasium") else "cyan"
        table.add_row(Text(name), Text(f"{bar:{_BAR_COLUMNS}}", style), Text(told))
    return table


# ---------------------------------------------------------------- a worker that is killed


class _WithPid(gym.Wrapper[Any, Any, Any, Any]):
    """Tells in which process it runs."""

    def pid(self) -> int:
        return os.getpid()


def _make_cart_with_pid() -> gym.Env[Any, Any]:
    return _WithPid(_make_cart())


def _killed_worker(console: Console, seconds: float) -> None:
    from rich.text import Text

    from gymbridge.vector import AsyncVectorEnv

    num_envs, num_workers = 16, 4
    num_steps = 0
    events: list[str] = []

    def draw() -> RenderableType:
        counted = f"{num_steps:,} steps of {num_envs} envs in {num_workers} worker processes"
        return Text("\n".join([carts(observations), counted, *events]))

    heading = 'A worker is killed, and the run goes on: AsyncVectorEnv(..., on_worker_failure="restart")'
    with _screen(console, heading, draw) as screen:
        envs = AsyncVectorEnv([_make_cart_with_pid] * num_envs, num_workers=num_workers, on_worker_failure="restart")
        with closing(envs):
            observations, _ = envs.reset(seed=0)

            def step() -> dict[str, Any]:
                nonlocal observations, num_steps
                observations, _, _, _, infos = envs.step(_pushes(observations))
                num_steps += 1
                screen.frame(draw)
                return infos

            begun = time.perf_counter()
            for part in (1, 2):
                step()
                while time.perf_counter() < begun + seconds * part / 3:
                    step()
                events.append(_kill_one(envs, part, step))
            while time.perf_counter() < begun + seconds:
                step()


def _kill_one(envs: Any, which: int, step: Callable[[], dict[str, Any]]) -> str:
    """Kills a worker, steps until its envs have been made anew, and tells of it."""
    pids = envs.call("pid")
    pid = list(dict.fromkeys(pids))[which]
    killed = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    restarted = step().get("worker_restarted")
    while restarted is None:
        restarted = step().get("worker_restarted")
    elapsed_ms = (time.perf_counter() - killed) * 1e3
    rows = [row for row, flag in enumerate(restarted) if flag]
    new_pid = envs.call("pid")[rows[0]]
    return (
        f"process {pid} was killed; {elapsed_ms:.0f} ms later process {new_pid} had replaced it: envs {rows[0]} to "
        f"{rows[-1]} were truncated and reset, the others went on"
    )


# ---------------------------------------------------------------- a pool


class _SleepyEnv(gym.Env[Any, Any]):
    """Takes a random time for a step, as a simulator elsewhere does."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, mean_seconds: float):
        self._mean = mean_seconds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.np_random.uniform(0, 2 * self._mean))
        return np.zeros(4, np.float32), 1.0, False, False, {}


def _pool(console: Console, seconds: float) -> None:
    from functools import partial

    from rich.console import Group
    from rich.text import Text

    from gymbridge import AsyncEnvPool

    means_ms = [2, 4, 6, 8, 12, 16, 24, 32]
    counts = [0] * len(means_ms)
    begun = time.perf_counter()

    def draw() -> RenderableType:
        elapsed = time.perf_counter() - begun
        rows = [
            (f"env {i}, {ms} ms a step", float(count), f"{count:,} steps")
            for i, (ms, count) in enumerate(zip(means_ms, counts, strict=True))
        ]
        rate, rate_together = sum(counts) / elapsed, len(means_ms) / (max(means_ms) * 1e-3)
        told = f"all {sum(counts):,} steps, {rate:,.0f} a second (at the pace of the slowest: {rate_together:,.0f})"
        return Group(_bars(rows), Text(told))

    heading = "A pool serves whoever is ready: AsyncEnvPool(...)"
    with _screen(console, heading, draw) as screen:
        pool = AsyncEnvPool([partial(_SleepyEnv, ms * 1e-3) for ms in means_ms])
        with closing(pool):
            pool.async_reset_send()
            td = pool.async_reset_recv(min_get=len(means_ms))
            begun = time.perf_counter()
            while time.perf_counter() < begun + seconds or not any(counts):
                td.update(pool.full_action_spec.rand()[: len(td)])
                pool.async_step_and_maybe_reset_send(td)
                _, td = pool.async_step_and_maybe_reset_recv()
                for index in td["env_index"].tolist():
                    counts[index] += 1
                screen.frame(draw)
