"""A deterministic gymnasium env made to a plan, and strategies of plans. No torch here."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st
from space_strategies import info_sequences

REWARDS: dict[str, Callable[[float], Any]] = {
    "float": float,
    "int": int,
    "bool": lambda value: value > 0,
    "np.float32": np.float32,
    "np.float64": np.float64,
    "np.int16": lambda value: np.int16(int(value)),
    "np.bool": lambda value: np.bool_(value > 0),
    "0-d array": lambda value: np.array(value, np.float32),
}
FLAGS: dict[str, Callable[[bool], Any]] = {"bool": bool, "np.bool": np.bool_, "int": int}


@dataclass(frozen=True)
class Plan:
    """What a :class:`PlannedEnv` does.

    Attributes:
        observation_space, action_space: its spaces.
        lengths: steps of each episode, in turn.
        ends: ``(terminated, truncated)`` at the end of each episode, in turn.
        step_infos, reset_infos: the infos, in turn.
        reward: kind of the rewards, a key of ``REWARDS``.
        flag: kind of the flags, a key of ``FLAGS``.
        own_arrays: observations and infos are the env's own arrays, which it changes later.
    """

    observation_space: spaces.Space
    action_space: spaces.Space = field(default_factory=lambda: spaces.Discrete(3))
    lengths: Sequence[int] = (3,)
    ends: Sequence[tuple[bool, bool]] = ((True, False),)
    step_infos: Sequence[dict[str, Any]] = ({},)
    reset_infos: Sequence[dict[str, Any]] = ({},)
    reward: str = "float"
    flag: str = "bool"
    own_arrays: bool = False


class PlannedEnv(gym.Env[Any, Any]):
    """Does what its plan says; observations and rewards come from its seeded generator.

    Attributes:
        calls: what was asked of it: ``("reset", seed, options)`` and ``("step", action)``.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 7}  # noqa: RUF012 - as gymnasium declares it

    def __init__(self, plan: Plan, index: int = 0, render_mode: str | None = None):
        self.plan = plan
        self.index = index
        self.render_mode = render_mode
        self.observation_space = plan.observation_space
        self.action_space = plan.action_space
        self.label = "planned"
        self.calls: list[tuple[Any, ...]] = []
        self.times_closed = 0
        self._source = copy.deepcopy(plan.observation_space)
        self._own = copy.deepcopy(self._source.sample()) if plan.own_arrays else None
        self._own_infos: dict[str, Any] = {}
        self._episode = -1
        self._step = 0
        self._infos = [index, index]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.calls.append(("reset", seed, copy.deepcopy(options)))
        if seed is not None:
            self._source.seed(int(self.np_random.integers(2**31)))
        self._episode += 1
        self._step = 0
        return self._observation(), self._info(0, self.plan.reset_infos)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.calls.append(("step", copy.deepcopy(action)))
        plan = self.plan
        self._step += 1
        episode = self._episode + self.index
        ended = self._step >= plan.lengths[episode % len(plan.lengths)]
        terminated, truncated = plan.ends[episode % len(plan.ends)] if ended else (False, False)
        flag = FLAGS[plan.flag]
        reward = REWARDS[plan.reward](float(self.np_random.integers(-100, 100)) / 8)
        return self._observation(), reward, flag(terminated), flag(truncated), self._info(1, plan.step_infos)

    def render(self) -> Any:
        return f"{self.index}: step {self._step}"

    def close(self) -> None:
        self.times_closed += 1

    def add(self, number: int, *, twice: bool = False) -> int:
        """A method for ``call``."""
        return self.index + number * (2 if twice else 1)

    def _observation(self) -> Any:
        observation = self._source.sample()
        if self._own is None:
            return observation
        self._own = _overwritten(self._own, observation)
        return self._own

    def _info(self, kind: int, infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
        info = infos[self._infos[kind] % len(infos)]
        self._infos[kind] += 1
        if self._own is None:
            return copy.deepcopy(info)
        # one dict and, as long as their shapes stay, the same arrays for the whole life of the env
        new = {key: _overwritten(self._own_infos.get(key), value) for key, value in copy.deepcopy(info).items()}
        self._own_infos.clear()
        self._own_infos.update(new)
        return self._own_infos


def _overwritten(old: Any, new: Any) -> Any:
    """``new``, in the arrays and dicts of ``old`` where they fit."""
    if isinstance(new, np.ndarray) and isinstance(old, np.ndarray):
        if old.shape == new.shape and old.dtype == new.dtype:
            old[...] = new
            return old
    elif isinstance(new, dict) and isinstance(old, dict):
        parts = {key: _overwritten(old.get(key), value) for key, value in new.items()}
        old.clear()
        old.update(parts)
        return old
    elif isinstance(new, tuple) and isinstance(old, tuple) and len(new) == len(old):
        parts = [_overwritten(*pair) for pair in zip(old, new, strict=True)]
        return type(new)(*parts) if hasattr(new, "_fields") else tuple(parts)
    return new


def makers(plan: Plan, num_envs: int, **kwargs: Any) -> list[Callable[[], PlannedEnv]]:
    """Makers of envs with the same plan that are at different places in it."""
    return [lambda index=index: PlannedEnv(plan, index, **kwargs) for index in range(num_envs)]  # type: ignore[misc]


@st.composite
def plans(
    draw: st.DrawFn,
    observation_spaces: st.SearchStrategy[spaces.Space],
    action_spaces: st.SearchStrategy[spaces.Space] | None = None,
    *,
    mixed_infos: bool = False,
) -> Plan:
    """Plans over the given spaces; with ``mixed_infos``, an info entry may be of one kind here and of another there."""
    step_infos, reset_infos = draw(info_sequences(5, 3, mixed=mixed_infos))
    ends = st.sampled_from(((True, False), (False, True), (True, True)))
    return Plan(
        observation_space=draw(observation_spaces),
        action_space=draw(action_spaces) if action_spaces is not None else spaces.Discrete(3),
        lengths=draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)),
        ends=draw(st.lists(ends, min_size=1, max_size=3)),
        step_infos=step_infos,
        reset_infos=reset_infos,
        reward=draw(st.sampled_from(sorted(REWARDS))),
        flag=draw(st.sampled_from(sorted(FLAGS))),
        own_arrays=draw(st.booleans()),
    )
