"""Infos that go through the block: the same as those that ``add_info`` merges row by row, without a message."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import pytest
import waiting_envs
from agreement import arrays_in, assert_same
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from space_strategies import INFO_VALUES
from vector_classes import BOTH, travels, two_workers
from waiting_envs import Acting, await_entry, make_gates, release

from gymbridge.engine.info_records import InfoRecords
from gymbridge.engine.mailbox import Mailbox
from gymbridge.errors import CallTimeoutError, EnvOutputError, WorkerDiedError
from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv, info_reader

travels(sys.modules[__name__], waiting_envs)

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
no_workers_on_windows = pytest.mark.skipif(sys.platform == "win32", reason="there are no worker processes on Windows")


@dataclass(frozen=True)
class Script:
    """What a :class:`ScriptedEnv` does, each list in turn.

    Attributes:
        steps: the info of a step, and whether it ends the episode or raises: ``"goes on"``, ``"ends"``, ``"raises"``.
        resets: the info of a reset, and ``"goes on"`` or ``"raises"``; the first goes on.
    """

    steps: Sequence[tuple[Any, str]]
    resets: Sequence[tuple[Any, str]] = (({}, "goes on"),)


class ScriptedEnv(gym.Env[Any, Any]):
    """Spoils the info that it gave last, whatever it does next."""

    observation_space = gym.spaces.Box(0, 1000, (1,), np.int64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, script: Script):
        self.script = script
        self.turns = [0, 0]
        self.given: dict[str, Any] = {}

    def _next(self, which: int, lines: Sequence[tuple[Any, str]]) -> tuple[Any, str]:
        _spoil(self.given)
        info, deed = lines[self.turns[which] % len(lines)]
        self.turns[which] += 1
        if deed == "raises":
            raise LookupError(which)
        self.given = copy.deepcopy(info)
        return self.given, deed

    def _observation(self) -> np.ndarray:
        return np.array([sum(self.turns)])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        info, _ = self._next(1, self.script.resets)
        return self._observation(), info

    def step(self, action: Any) -> Any:
        info, deed = self._next(0, self.script.steps)
        return self._observation(), 1.0, deed == "ends", False, info


def _spoil(info: Any) -> None:
    for array in arrays_in(info):
        array.fill(1)
    if isinstance(info, dict):
        for value in info.values():
            _spoil(value)
        info["late"] = 1


def made(scripts: Sequence[Script]) -> list[Callable[[], ScriptedEnv]]:
    return [lambda script=script: ScriptedEnv(script) for script in scripts]  # type: ignore[misc]


def told(cls: Any, scripts: Sequence[Script], mode: AutoresetMode, calls: int) -> list[Any]:
    """What a vector env gives in some calls and resets by mask between them; the partial result where envs raise."""
    envs = cls(made(scripts), autoreset_mode=mode)
    results: list[Any] = []
    as_given: list[Any] = []

    def call(work: Callable[[], tuple[Any, ...]]) -> Any:
        try:
            result = work()
        except LookupError:
            result = envs.last_partial()
        results.append(result)
        as_given.append(copy.deepcopy(result))
        return result

    _, infos = call(envs.reset)
    ended = nobody = np.zeros(len(scripts), np.bool_)
    for number in range(calls):
        failed = infos.get("_failed", nobody)
        mask = failed | ended if mode is DISABLED else failed
        if mask.any() or number % 5 == 4:  # others are reset too, some of them in an episode
            mask = mask | (np.arange(len(scripts)) % 5 == number % 5)
            while mask.any():
                _, infos = call(lambda mask=mask: envs.reset(options={"reset_mask": mask}))
                mask = infos.get("_failed", nobody)
        _, _, terminated, truncated, infos = call(lambda: envs.step([0] * len(scripts)))
        ended = terminated | truncated
    assert_same(results, as_given, "results of earlier calls")
    envs.close()
    return results


def row_by_row(scripts: Sequence[Script], mode: AutoresetMode, calls: int) -> list[Any]:
    """What ``add_info`` makes of the infos: the same envs, none of whose infos has a form."""
    with patch.object(InfoRecords, "put", lambda *arguments: 0):
        return told(SyncVectorEnv, scripts, mode, calls)


KEYS = st.sampled_from(["a", "b", ""])
NUMERIC = st.one_of(*(INFO_VALUES[kind] for kind in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 18, 19, 20, 21)))


def infos_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    flat = st.dictionaries(KEYS, values, max_size=3)
    return st.one_of(flat, st.dictionaries(KEYS, st.one_of(values, flat), max_size=3))


@st.composite
def scripts(draw: st.DrawFn) -> list[Script]:
    """Of some envs whose infos are a few, so that rows often have the same entries, and often nearly so."""
    values = draw(st.sampled_from([NUMERIC, NUMERIC, st.one_of(*INFO_VALUES)]))
    infos = draw(st.lists(infos_of(values), min_size=1, max_size=3))
    info = st.sampled_from(infos)
    deeds = draw(st.sampled_from([["goes on"], ["goes on", "ends"], ["goes on", "goes on", "ends", "raises"]]))
    raises = ["goes on", "raises"] if "raises" in deeds else ["goes on"]
    lines = st.lists(st.tuples(info, st.sampled_from(deeds)), min_size=1, max_size=4)
    resets = st.lists(st.tuples(info, st.sampled_from(raises)), max_size=2)
    good = st.tuples(info, st.just("goes on"))
    return [
        Script(draw(lines), [draw(good), draw(good), *draw(resets), draw(good)]) for _ in range(draw(st.integers(1, 4)))
    ]


UNHURRIED = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(UNHURRIED, max_examples=200)
@given(scripts(), st.sampled_from(list(AutoresetMode)))
def test_infos_are_those_merged_row_by_row(several: list[Script], mode: AutoresetMode) -> None:
    assert_same(told(SyncVectorEnv, several, mode, 12), row_by_row(several, mode, 12))


@settings(UNHURRIED, max_examples=40)
@given(scripts(), st.sampled_from(list(AutoresetMode)))
def test_infos_of_workers_are_those_merged_row_by_row(several: list[Script], mode: AutoresetMode) -> None:
    """Two workers, with two rows each where there are four."""
    assert_same(told(two_workers, several, mode, 8), row_by_row(several, mode, 8))


ARRAY = np.arange(3, dtype=np.float32)
FIRST = {"x": 1.5, "lives": 3, "position": ARRAY, "inner": {"flag": np.True_, "deep": {"y": np.int16(2)}, "none": {}}}
OTHER = {"lives": 4, "speed": np.zeros(()), "inner": {"flag": np.False_, "more": True}}
NUMERIC_SCRIPTS = {
    "one form": [Script([(FIRST, "goes on")], [(FIRST, "goes on")])] * 4,
    "some rows have none": [Script([(FIRST, "goes on"), ({}, "goes on")]), Script([({}, "goes on"), (FIRST, "ends")])],
    "unlike envs": [Script([(FIRST, "ends")], [(OTHER, "goes on")]), Script([(OTHER, "goes on"), (FIRST, "ends")])] * 2,
    "episodes end": [Script([(FIRST, "goes on"), (OTHER, "ends")], [({"start": 1}, "goes on")])] * 3,
}


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", NUMERIC_SCRIPTS)
@BOTH
def test_numeric_infos_are_read_as_columns(
    cls: Any, name: str, mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is merged into the others, whatever rows have infos, of a step or a reset."""
    expected = row_by_row(NUMERIC_SCRIPTS[name], mode, 12)
    assert any(np.any(result[-1].get("_lives", False)) for result in expected)
    monkeypatch.setattr(info_reader, "add_info", lambda *arguments: pytest.fail("merged row by row"))
    assert_same(told(cls, NUMERIC_SCRIPTS[name], mode, 12), expected)


@pytest.mark.parametrize(
    ("infos", "dtype"),
    [
        ([{"x": 1}, {"x": 2.5}], np.float64),
        ([{"x": np.int8(1)}, {"x": 300}], np.int64),
        ([{"x": True}, {"x": np.True_}], np.bool_),
        ([{"x": np.True_}, {"x": True}], object),
        ([{"x": np.zeros(2)}, {"x": np.zeros(3)}], object),
        ([{"x": {"y": 1}}, {"x": 1}], object),
        ([{"x": 1}, {"x": 2**63}], np.uint64),
        ([{"x": 1}, {"x": "text"}], object),
        ([{"x": 1, "_x": 0}, {"x": 2}], np.int64),
        ([{"_x": 1}, {"x": 2}], np.int64),
        ([{"x": 1, "final_obs": 1}, {"x": 2, "final_info": {"y": 1}}], np.int64),
    ],
    ids=repr,
)
@BOTH
def test_unlike_entries_under_one_key(cls: Any, infos: list[Any], dtype: Any) -> None:
    several = [Script([(info, "goes on")]) for info in infos]
    ours = told(cls, several, NEXT_STEP, 3)
    assert_same(ours, row_by_row(several, NEXT_STEP, 3))
    if dtype is not np.uint64:  # numpy's own rules say what int64 and uint64 become
        assert ours[-1][-1]["x"].dtype == dtype


@BOTH
def test_keys_stand_in_the_order_in_which_the_rows_bring_them(cls: Any) -> None:
    infos: list[Any] = [{"b": 1}, {"a": 1, "b": 2}, {}, {"c": {"z": 1}, "a": 2}, {"c": {"y": 1, "z": 2}, "b": 3}]
    result = told(cls, [Script([(info, "goes on")]) for info in infos], NEXT_STEP, 1)[-1][-1]
    assert list(result) == ["b", "_b", "a", "_a", "c", "_c"]
    assert list(result["c"]) == ["z", "_z", "y", "_y"]
    assert result["b"].tolist() == [1, 2, 0, 0, 3]
    assert result["_c"].tolist() == [False, False, False, True, True]


@BOTH
def test_results_are_the_callers_own(cls: Any) -> None:
    """Written to or not, they have nothing to do with each other or with the next call."""
    envs = cls(made([Script([(FIRST, "goes on")])] * 3))
    envs.reset()
    expected = copy.deepcopy(envs.step([0, 0, 0])[-1])
    for _ in range(3):
        infos = envs.step([0, 0, 0])[-1]
        assert_same(infos, expected)
        arrays = [*arrays_in(infos)]
        assert all(array.flags.owndata and array.flags.writeable for array in arrays)
        assert not any(np.shares_memory(one, two) for one in arrays for two in arrays if one is not two)
        for array in arrays:
            array[...] = 0
        infos.clear()
    envs.close()


# ---------------------------------------------------------------- messages


class Messages:
    """Counts those that this process takes out of mailboxes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.number = 0
        take = Mailbox.take

        def counted(mailbox: Mailbox) -> Any:
            self.number += 1
            return take(mailbox)

        monkeypatch.setattr(Mailbox, "take", counted)


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
@no_workers_on_windows
def test_numeric_infos_need_no_message(mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """But once a form is new; those with a text need one each step."""
    deed = "goes on" if mode is DISABLED else "ends"
    numeric = Script([(FIRST, "goes on"), (OTHER, deed), ({}, "goes on")], [(FIRST, "goes on"), (OTHER, "goes on")])
    text = Script([({"name": "x"}, "goes on")])
    for several, expected in (([numeric] * 4, 0), ([text] * 4, 20), ([numeric] * 2 + [text] * 2, 10)):
        envs = AsyncVectorEnv(made(several), num_workers=2, autoreset_mode=mode)
        envs.reset()
        for _ in range(12):
            envs.step([0] * 4)
        messages = Messages(monkeypatch)
        for _ in range(10):
            infos = envs.step([0] * 4)[-1]
            assert set(infos) <= {*FIRST, *OTHER, *(f"_{key}" for key in (*FIRST, *OTHER))} | {
                *("final_obs", "_final_obs", "final_info", "_final_info", "name", "_name")
            }
        assert messages.number == expected
        envs.close()


# ---------------------------------------------------------------- rows that have nothing to tell


class TellingEnv(Acting, gym.Env[Any, Any]):
    """Tells the number of its steps in each info."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, index: int, folder: Path | None = None):
        self.index, self.folder, self.act = index, folder, ""
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.obey("reset")
        self.steps = 0
        return np.zeros(1, np.float32), {"resets": 1}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.obey("step")
        return np.zeros(1, np.float32), 0.0, False, False, {"steps": self.steps}

    def close(self) -> None:
        self.end()


def telling(num_envs: int, folder: Path | None = None, **kwargs: Any) -> AsyncVectorEnv:
    if folder is not None:
        make_gates(num_envs, folder)
    envs = [lambda index=index: TellingEnv(index, folder) for index in range(num_envs)]  # type: ignore[misc]
    return AsyncVectorEnv(envs, num_workers=2, **kwargs)


@no_workers_on_windows
def test_rows_of_a_worker_that_died_show_no_info() -> None:
    """One of them had its turn in the round, and wrote its info, before the other ended their process."""
    envs = telling(4)
    envs.reset()
    assert envs.step([0] * 4)[-1]["steps"].tolist() == [1, 1, 1, 1]
    envs.set_attr("act", ["", "kill", "", ""])
    with pytest.raises(WorkerDiedError):
        envs.step([0] * 4)
    partial = envs.last_partial()
    assert partial is not None
    infos = partial[-1]
    assert infos["_failed"].tolist() == [True, True, False, False]
    assert infos["_steps"].tolist() == [False, False, True, True]
    assert infos["steps"].tolist() == [0, 0, 2, 2]
    envs.close()


class NotHere:
    """Can be pickled, but unpickled only in the process that made it."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __setstate__(self, state: dict[str, int]) -> None:
        if state["pid"] != os.getpid():
            raise EnvOutputError("not here")


@no_workers_on_windows
def test_rows_that_had_no_turn_show_no_info() -> None:
    """A worker that cannot read what a round gives it asks none of its envs; what they told before is over."""
    envs = telling(4)
    envs.reset()
    assert envs.step([0] * 4)[-1]["steps"].tolist() == [1, 1, 1, 1]
    with pytest.raises(EnvOutputError, match="not here"):
        envs.reset(options={"x": NotHere()})
    partial = envs.last_partial()
    assert partial is not None
    assert set(partial[-1]) == {"_failed"}
    assert envs.reset()[1]["resets"].tolist() == [1, 1, 1, 1]
    envs.close()


@no_workers_on_windows
def test_a_form_that_a_given_up_call_brought_is_known_later(tmp_path: Path) -> None:
    """The round in which an info had its form for the first time was never received."""
    envs = telling(2, tmp_path)
    envs.reset()
    envs.set_attr("act", ["", "tell and wait"])
    envs.step_async([0, 0])
    await_entry(tmp_path, 1)
    with pytest.raises(CallTimeoutError):
        envs.step_wait(0)
    release(tmp_path, 1)
    envs.set_attr("act", "")
    mask = np.array([False, True])
    envs.reset(options={"reset_mask": np.array([True, True])})
    _, infos = envs.reset(options={"reset_mask": mask})
    assert_same(infos, {"resets": np.array([0, 1]), "_resets": mask})  # the other row's infos are of earlier calls
    assert envs.step([0, 0])[-1]["steps"].tolist() == [1, 1]
    envs.close()


@BOTH
def test_a_row_that_raises_shows_no_info_of_an_earlier_call(cls: Any) -> None:
    several = [Script([({"x": 1}, "goes on"), ({"x": 2}, "raises")]), Script([({"x": 3}, "goes on")])]
    for mode in AutoresetMode:
        partial = told(cls, several, mode, 2)[-1]
        assert partial[-1]["_failed"].tolist() == [True, False]
        assert partial[-1]["_x"].tolist() == [False, True]
        assert partial[-1]["x"].tolist() == [0, 3]


@BOTH
def test_a_first_step_that_raises_ends_no_episode(cls: Any) -> None:
    """The row's latest observation is still that of its reset, as it is after an episode's end."""
    several = [Script([({}, "raises")], [({"y": 1}, "goes on")]), Script([({"x": 3}, "ends")])]
    infos = told(cls, several, SAME_STEP, 1)[-1][-1]
    assert set(infos) == {"_failed", "final_obs", "_final_obs", "final_info", "_final_info"}
    assert infos["_final_obs"].tolist() == infos["_final_info"].tolist() == [False, True]


@BOTH
def test_a_whole_step_shows_its_info_where_the_reset_after_it_raised(cls: Any) -> None:
    raising = Script([({"x": 1}, "ends")], [({"y": 1}, "goes on"), ({"y": 2}, "raises")])
    several = [raising, Script([({"x": 3}, "ends")], [({"y": 3}, "goes on")])]
    partial = told(cls, several, SAME_STEP, 1)[-1]
    infos = partial[-1]
    assert infos["_failed"].tolist() == [True, False]
    assert infos["x"].tolist() == [1, 0]
    assert infos["final_info"]["x"].tolist() == [0, 3]
    assert infos["_y"].tolist() == [False, True]


def test_unlike_rounds_take_no_memory_for_ever() -> None:
    random = np.random.default_rng(5)
    lines = [({"x": 1} if each else {"y": 1}, "goes on") for each in random.integers(0, 2, 997)]
    several = [Script(lines[number:] + lines[:number]) for number in range(0, 970, 97)]
    envs = SyncVectorEnv(made(several))
    envs.reset()
    for _ in range(500):
        envs.step([0] * 10)
    assert len(envs._infos._plans) <= 100
    envs.close()
