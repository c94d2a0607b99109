"""How long an env takes by itself: what decides how a batch of it is run best."""

from __future__ import annotations

import math
import pickle
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym

from gymbridge.cli.env_argument import EnvKind, NamedEnv, kind_of
from gymbridge.engine.env_calls import is_coroutine_env

__all__ = ["EnvProfile", "profile_of"]

_NOTEWORTHY_US = 200.0
"""A difference below this is rather the machine's than the env's, and less than a pool costs."""
_RUN_DELAY = Path("/proc/thread-self/schedstat")
"""On Linux, what a thread has waited for a core, in nanoseconds, is the second number there."""


@dataclass(frozen=True)
class EnvProfile:
    """What was measured of one env, alone in this process and with random actions. Times are microseconds.

    Attributes:
        kind: ``"gymnasium"`` or ``"TensorDict"``.
        awaited: its steps are coroutines; they were awaited by a pool of one env, whose own time is in the figures.
        make_us: making the env.
        steps: how many steps the figures are of.
        step_us, step_us_median, step_us_99, step_us_longest: a step: mean, median, 99th percentile, longest.
        resets: how many resets the figures are of, the first among them.
        reset_us: median of a reset.
        episode_steps: mean length of the episodes that ended; None if none did.
        observation_bytes: of one observation.
        busy: share of the time that this process computed: low where the env waits for something else.
        work_us: a step with its share of the resets, without the longest hundredth of the steps, which may be the
            machine's doing.
    """

    kind: EnvKind
    awaited: bool
    make_us: float
    steps: int
    step_us: float
    step_us_median: float
    step_us_99: float
    step_us_longest: float
    resets: int
    reset_us: float
    episode_steps: float | None
    observation_bytes: int
    busy: float
    work_us: float

    @property
    def waits(self) -> bool:
        """It mostly waits, so that more of them can be under way than there are cores."""
        return self.busy < 0.5

    @property
    def varies(self) -> bool:
        """Some steps take much longer than others, resets included: all wait for the slowest, or a pool is used."""
        least = max(1.5 * self.step_us_median, self.step_us_median + _NOTEWORTHY_US)
        return self.step_us_99 > least or self.reset_us > 5 * least


class _Stepper(Protocol):
    """One env, stepped with actions that are drawn outside of what is timed."""

    def reset(self) -> None: ...

    def draw(self) -> None: ...

    def step(self) -> bool:
        """Whether the episode has ended."""

    def observation_bytes(self) -> int: ...

    def close(self) -> None: ...


class _GymStepper:
    def __init__(self, env: gym.Env[Any, Any]):
        self._env = env
        self._observation: Any = None
        self._action: Any = None

    def reset(self) -> None:
        self._observation, _ = self._env.reset()

    def draw(self) -> None:
        self._action = self._env.action_space.sample()

    def step(self) -> bool:
        self._observation, _, terminated, truncated, _ = self._env.step(self._action)
        return bool(terminated or truncated)

    def observation_bytes(self) -> int:
        return _num_bytes(self._observation)

    def close(self) -> None:
        self._env.close()


class _TensorDictStepper:
    def __init__(self, env: Any):
        self._env = env
        self._root: Any = None
        self._is_batch = bool(env.batch_size)  # whose envs end one by one

    def reset(self) -> None:
        self._root = self._env.reset()

    def draw(self) -> None:
        self._root = self._env.rand_action(self._root)

    def step(self) -> bool:
        if self._is_batch:
            _, self._root = self._env.step_and_maybe_reset(self._root)
            return False
        transition = self._env.step(self._root)
        self._root = self._env.step_mdp(transition)
        return any(bool(transition["next"].get(key).any()) for key in self._env.done_keys)

    def observation_bytes(self) -> int:
        keys = list(self._env.observation_spec.keys(include_nested=True, leaves_only=True))
        return int(self._root.select(*keys, strict=False).bytes())

    def close(self) -> None:
        self._env.close()


def profile_of(env: NamedEnv, seconds: float) -> EnvProfile:
    """Makes an env, and steps it for about so long, until it has made one step at least."""
    begun = time.perf_counter()
    made = env.made()
    make_us = (time.perf_counter() - begun) * 1e6
    kind, awaited = kind_of(made, env.name), is_coroutine_env(made)
    stepper: _Stepper
    if awaited:
        from gymbridge import AsyncEnvPool

        stepper = _TensorDictStepper(AsyncEnvPool([env.create_env_fn], backend="asyncio"))
    else:
        stepper = _GymStepper(made) if kind == "gymnasium" else _TensorDictStepper(made)
    try:
        return _measured(stepper, kind, awaited, make_us, seconds)
    finally:
        stepper.close()


def _measured(stepper: _Stepper, kind: EnvKind, awaited: bool, make_us: float, seconds: float) -> EnvProfile:
    steps: list[float] = []
    resets: list[float] = []
    lengths: list[int] = []
    length = 0

    def took(call: Callable[[], Any], times: list[float]) -> Any:
        begun = time.perf_counter()
        given = call()
        times.append((time.perf_counter() - begun) * 1e6)
        return given

    stepper.reset()  # the first of a process loads and compiles things
    stepper.draw()
    stepper.step()
    begun, computed = time.perf_counter(), _computed_seconds()
    took(stepper.reset, resets)
    while not steps or time.perf_counter() < begun + seconds:
        stepper.draw()
        length += 1
        if took(stepper.step, steps):
            lengths.append(length)
            length = 0
            took(stepper.reset, resets)
    busy = (_computed_seconds() - computed) / (time.perf_counter() - begun)
    ranked = sorted(steps)
    usual = ranked[: math.ceil(0.99 * len(ranked))]
    episode_steps = statistics.fmean(lengths) if lengths else None
    reset_us = statistics.median(resets)
    return EnvProfile(
        kind=kind,
        awaited=awaited,
        make_us=make_us,
        steps=len(steps),
        step_us=statistics.fmean(steps),
        step_us_median=statistics.median(steps),
        step_us_99=usual[-1],
        step_us_longest=ranked[-1],
        resets=len(resets),
        reset_us=reset_us,
        episode_steps=episode_steps,
        observation_bytes=stepper.observation_bytes(),
        busy=min(1.0, busy),
        work_us=statistics.fmean(usual) + (reset_us / episode_steps if episode_steps else 0.0),
    )


def _computed_seconds() -> float:
    """How long this process has computed; where that is known, this thread's waits for a core count as that too."""
    try:
        delay_ns = int(_RUN_DELAY.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        delay_ns = 0
    return time.process_time() + delay_ns * 1e-9


def _num_bytes(value: Any) -> int:
    """Of an observation, however nested."""
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, dict):
        return sum(map(_num_bytes, value.values()))
    if isinstance(value, (tuple, list)):
        return sum(map(_num_bytes, value))
    return len(pickle.dumps(value))
