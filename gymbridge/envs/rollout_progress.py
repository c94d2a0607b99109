"""How far a rollout has come: figures after each step, and what shows them on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import nan
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

if TYPE_CHECKING:
    from gymbridge.envs.base import EnvBase

__all__ = ["RolloutProgress", "Show", "followed"]

Show = Callable[["RolloutProgress"], object]

_SECONDS_ON_TERMINAL = 0.1
_SECONDS_ELSEWHERE = 10.0
"""At most so often are the figures shown; elsewhere than on a terminal each time is a line more."""


class RolloutProgress(NamedTuple):
    """How far a rollout has come.

    Attributes:
        step: steps that have been made.
        max_steps: steps that are made at most.
        seconds: since the first of them began.
        steps_per_second: steps of envs: those of a batch count each.
        episodes: how many have ended.
        mean_return: the mean of their rewards' sums, in the rollout; NaN before the first has ended.

    Example:
        >>> str(RolloutProgress(50, 200, 0.5, 800.0, 16, 21.25))
        'rollout: step 50 of 200, 800 steps/s, 16 episodes, mean return 21.25'
    """

    step: int
    max_steps: int
    seconds: float
    steps_per_second: float
    episodes: int
    mean_return: float

    def __str__(self) -> str:
        """In a line."""
        returns = f", mean return {self.mean_return:.4g}" if self.episodes else ""
        rate = f"{self.steps_per_second:,.0f} steps/s"
        return f"rollout: step {self.step} of {self.max_steps}, {rate}, {self.episodes} episodes{returns}"


class _Follower:
    """Counts what the steps of a rollout give.

    Args:
        env: the env.
        max_steps: steps at most.
        once: an env that has ended makes no more steps: it waits for the others.
    """

    def __init__(self, env: EnvBase, max_steps: int, *, once: bool):
        self._env = env
        self._max_steps = max_steps
        self._once = once
        self._step = self._num_steps = self._episodes = 0
        self._sum_of_returns = 0.0
        self._returns: torch.Tensor | None = None
        self._waiting: torch.Tensor | None = None
        self._begun = perf_counter()

    def after(self, following: TensorDictBase) -> RolloutProgress:
        """The figures once a step has been made.

        Args:
            following: what stands under ``"next"``.
        """
        rewards = _rewards_of(self._env, following)
        stepped = torch.ones_like(rewards, dtype=torch.bool)
        valid = following.get("valid", None)
        if valid is not None:  # else a dead step: no env has been stepped
            stepped = valid.cpu().reshape(rewards.shape)
        ended = self._env._ended(following).cpu() & stepped
        if self._waiting is not None:
            stepped, ended = stepped & ~self._waiting, ended & ~self._waiting
        if self._once:
            self._waiting = ended if self._waiting is None else self._waiting | ended
        self._returns = torch.where(stepped, rewards, 0) + (0 if self._returns is None else self._returns)
        self._step += 1
        self._num_steps += int(stepped.sum())
        if ended.any():
            self._episodes += int(ended.sum())
            self._sum_of_returns += float(self._returns[ended].sum())
            self._returns = torch.where(ended, 0, self._returns)
        seconds = perf_counter() - self._begun
        mean_return = self._sum_of_returns / self._episodes if self._episodes else nan
        rate = self._num_steps / seconds if seconds else 0.0
        return RolloutProgress(self._step, self._max_steps, seconds, rate, self._episodes, mean_return)


def _rewards_of(env: EnvBase, following: TensorDictBase) -> torch.Tensor:
    """The sum of each env's rewards, ``[*B]`` on the CPU: of unlike envs and of groups too."""
    if isinstance(following, LazyStackedTensorDict) and following.stack_dim == 0:
        return torch.stack([_rewards_of(env, own) for own in following.tensordicts])
    total = torch.zeros(following.batch_size, dtype=torch.float64)
    for key in env.reward_keys:
        reward: Any = following.get(key, None)
        if reward is not None:
            total += reward.detach().cpu().double().reshape(*total.shape, -1).sum(-1)
    return total


@contextmanager
def followed(
    env: EnvBase, max_steps: int, progress: bool | Show, *, once: bool
) -> Iterator[Callable[[TensorDictBase], object]]:
    """A context of a rollout's steps; what it gives is to be called with what stands under ``"next"`` after each.

    Args:
        env, max_steps, once: see :class:`_Follower`.
        progress: True to show the figures on standard error, or a function that is called with them.
    """
    follower = _Follower(env, max_steps, once=once)
    if callable(progress):
        show = progress
        yield lambda following: show(follower.after(following))
        return
    bar = _RichBar.on_terminal(max_steps) or _Lines()
    shown_at = perf_counter()
    latest: RolloutProgress | None = None

    def note(following: TensorDictBase) -> None:
        nonlocal shown_at, latest
        latest = follower.after(following)
        now = perf_counter()
        if now - shown_at >= bar.seconds:
            shown_at = now
            bar.show(latest)

    try:
        yield note
    finally:
        bar.end(latest)


class _RichBar:
    """Rich's bar, on a terminal.

    Attributes:
        seconds: it is shown so often at most.
    """

    seconds = _SECONDS_ON_TERMINAL

    def __init__(self, bar: Any, max_steps: int):
        self._bar = bar
        self._bar.start()
        self._task = bar.add_task("rollout", total=max_steps, figures="")

    @classmethod
    def on_terminal(cls, max_steps: int) -> _RichBar | None:
        """The bar; None where rich is not installed, or standard error is no terminal that rich can draw on."""
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        except ImportError:
            return None
        console = Console(stderr=True)
        if sys.stderr is None or not console.is_terminal or console.is_jupyter or console.is_dumb_terminal:
            return None
        text = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[figures]}")
        return cls(Progress(*text, console=console), max_steps)

    def show(self, figures: RolloutProgress) -> None:
        """Shows figures."""
        words = str(figures).split(", ", 1)[1]
        self._bar.update(self._task, completed=figures.step, figures=words)

    def end(self, figures: RolloutProgress | None) -> None:
        """Shows the last figures, which stay, and lets go of the terminal."""
        try:
            if figures is not None:
                self.show(figures)
        finally:
            self._bar.stop()


class _Lines:
    """Plain text: on a terminal one line that is written over, elsewhere (a notebook, a pipe, a file) line by line."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._is_terminal = self._stream is not None and self._stream.isatty()
        self.seconds = _SECONDS_ON_TERMINAL if self._is_terminal else _SECONDS_ELSEWHERE
        self._width = 0

    def show(self, figures: RolloutProgress, end: str = "") -> None:
        """Shows figures."""
        if self._stream is None:  # a program without one
            return
        text = str(figures)
        if self._is_terminal:
            self._stream.write(f"\r{text:<{self._width}}{end}")
            self._width = len(text)
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def end(self, figures: RolloutProgress | None) -> None:
        """Shows the last figures, which stay."""
        if figures is not None:
            self.show(figures, end="\n")
