"""What a gymnasium env returns, read call by call."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from gymbridge.contract.differences import changed
from gymbridge.contract.findings import Findings, shown
from gymbridge.engine.conform import flag
from gymbridge.engine.contract import has_ended, observation_mismatches
from gymbridge.engine.copies import copied
from gymbridge.engine.workers.pickling import can_be_pickled, what_cannot_be_pickled
from gymbridge.errors import EnvOutputError
from gymbridge.spaces.naming import outline

__all__ = ["OutputReader"]

_RESERVED = ("final_obs", "final_info", "worker_restarted", "env_id")
"""Keys that vector envs and pools put into infos themselves."""


class OutputReader:
    """Notes all that is wrong with what an env returns.

    Args:
        env: the env.
        findings: where faults go.
    """

    def __init__(self, env: gym.Env[Any, Any], findings: Findings):
        self._env = env
        self._findings = findings
        self._spaces = {name: copied_space(getattr(env, name)) for name in ("observation_space", "action_space")}
        self._handed_out: list[tuple[str, str, Any, Any]] = []
        self._infos = _InfoEntries(findings)
        self.num_ends = 0

    def read_reset(self, where: str, result: Any) -> None:
        """Reads what ``reset`` returned."""
        for name, space in self._spaces.items():
            now = getattr(self._env, name, None)
            if now is not space and now != space:
                got, expected = f"{shown(now, str)} after a reset", f"{shown(space, str)}, as before it"
                self._findings.add("space-changes", where, name, got, expected)
                self._spaces[name] = copied_space(now)
        if not (isinstance(result, tuple) and len(result) == 2):
            self._findings.add("reset-result", where, "", outline(result), "(observation, info)")
            return
        observation, info = result
        self._read_observation(where, observation)
        self._read_info(where, info)
        self._look_back(where, observation, info)

    def read_step(self, outcome: Any) -> None:
        """Reads what ``step`` returned."""
        ended = has_ended(outcome)
        self.num_ends += ended
        if not (isinstance(outcome, tuple) and len(outcome) == 5):
            expected = "(observation, reward, terminated, truncated, info)"
            self._findings.add("step-result", "step", "", outline(outcome), expected)
            return
        observation, reward, terminated, truncated, info = outcome
        self._read_observation("step", observation)
        self._read_reward(reward)
        self._read_flag("terminated", terminated)
        self._read_flag("truncated", truncated)
        self._read_info("step", info)
        self._look_back("step", observation, info)
        if isinstance(info, Mapping) and not ended:
            self._infos.read(info)

    def finish(self) -> None:
        """Notes what shows after the last call only."""
        self._infos.finish()

    # ---------------------------------------------------------------- the parts

    def _read_observation(self, where: str, observation: Any) -> None:
        for mismatch in observation_mismatches(self._env.observation_space, observation):
            code = f"observation-{mismatch.kind}"
            self._findings.add(code, where, mismatch.key, mismatch.got, mismatch.expected)
        for key, value in _infinite(observation, "observation", self._env.observation_space):
            self._findings.add("observation-infinite", where, key, value, "finite numbers")

    def _read_reward(self, reward: Any) -> None:
        kind, dtype, ndim = _number(reward)
        if not kind:
            self._findings.add("reward-type", "step", "reward", f"{shown(reward)} of type {dtype}", "a real number")
        elif ndim:
            self._findings.add("reward-array", "step", "reward", outline(reward), "a number")
        elif not math.isfinite(float(np.asarray(reward))):
            self._findings.add(
                "reward-not-finite", "step", "reward", repr(float(np.asarray(reward))), "a finite number"
            )

    def _read_flag(self, name: str, value: Any) -> None:
        if isinstance(value, (bool, np.bool_)):
            return
        code = "flag-not-bool"
        try:
            flag(name, value)
        except EnvOutputError:
            code = "flag-type"
        self._findings.add(code, "step", name, f"{shown(value)} of type {type(value).__name__}", "a bool")

    def _read_info(self, where: str, info: Any) -> None:
        if not isinstance(info, Mapping):
            self._findings.add("info-type", where, "info", f"{shown(info)} of type {type(info).__name__}", "a dict")
            return
        for key in info:
            if key in _RESERVED or (isinstance(key, str) and key[:1] == "_"):
                self._findings.add("info-reserved-key", where, f"info.{key}", f"the key {shown(key)}", "another")
        if not can_be_pickled(info):
            path, culprit = what_cannot_be_pickled(dict(info))
            got = f"{', '.join(path)}, a {type(culprit).__name__}, which cannot be pickled"
            self._findings.add("info-unpicklable", where, "info", got, "what can be pickled")

    def _look_back(self, where: str, observation: Any, info: Any) -> None:
        """Whether what was handed out before is still as it was, and keeps a copy of what is handed out now."""
        for code, name, given, as_it_was in self._handed_out:
            if (key := changed(given, as_it_was, name)) is not None:
                self._findings.add(
                    code, where, key, "memory that was handed out before, with new values", "a new object"
                )
        self._handed_out = [
            ("observation-reused", "observation", observation, copied(observation)),
            ("info-reused", "info", info, copied(info)),
        ]


def copied_space(space: Any) -> Any:
    """A space as it is now, for comparisons; the very space where no copy would be equal to it."""
    try:
        own = copy.deepcopy(space)
        return own if own == space else space
    except Exception:  # a custom one
        return space


def _number(value: Any) -> tuple[bool, str, int]:
    """Whether a value is real numbers, of which type, and its dimensions."""
    if value is None or isinstance(value, (str, bytes)):
        return False, type(value).__name__, 0
    try:
        array = np.asarray(value)
    except Exception:  # a ragged list, a tensor with a gradient
        return False, type(value).__name__, 0
    return array.dtype.kind in "biuf", type(value).__name__, array.ndim


def _infinite(value: Any, name: str, space: Any) -> Iterator[tuple[str, str]]:
    """The entries of an observation that have infinite values which their space allows."""
    if isinstance(space, gym.spaces.Dict) and isinstance(value, Mapping):
        for key, part in space.spaces.items():
            yield from _infinite(value.get(key), f"{name}.{key}", part)
    elif isinstance(space, gym.spaces.Tuple) and isinstance(value, (tuple, list)):
        for index, (part, own) in enumerate(zip(value, space.spaces, strict=False)):
            yield from _infinite(part, f"{name}.{index}", own)
    elif isinstance(space, gym.spaces.Box) and isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind == "f":
        wrong = np.isinf(value)
        if wrong.any() and space.contains(np.asarray(value)):
            yield name, f"{int(wrong.sum())} infinite of {value.size} values"


class _InfoEntries:
    """How the entries of infos change from step to step; those of ends are no matter."""

    def __init__(self, findings: Findings):
        self._findings = findings
        self._num_infos = 0
        self._seen: dict[str, int] = {}
        self._forms: dict[str, str] = {}

    def read(self, info: Mapping[Any, Any]) -> None:
        """Reads the info of a step that does not end an episode."""
        self._num_infos += 1
        for key, value in _entries(info, "info"):
            self._seen[key] = self._seen.get(key, 0) + 1
            form = _form(value)
            before = self._forms.setdefault(key, form)
            if form != before:
                self._findings.add("info-entry-changes", "step", key, f"{form}, after {before}", "the same each time")
                self._forms[key] = form

    def finish(self) -> None:
        """Notes the keys that some steps lack."""
        for key, count in self._seen.items():
            if count < self._num_infos:
                got = f"it in {count} of {self._num_infos} steps"
                self._findings.add("info-keys-change", "step", key, got, "it in all steps, or at ends alone")


def _entries(info: Mapping[Any, Any], name: str) -> Iterator[tuple[str, Any]]:
    """The entries of nested infos; lists and tuples are entries."""
    for key, value in info.items():
        if isinstance(value, Mapping):
            yield from _entries(value, f"{name}.{key}")
        else:
            yield f"{name}.{key}", value


def _form(value: Any) -> str:
    """What decides whether entries of many infos are one array."""
    kind, name, ndim = _number(value)
    if kind and not ndim:
        return "a number"
    return f"an array of shape {np.shape(value)}" if kind else f"a {name}"
