"""``GymHost``: what each op does to a row, and what it leaves alone."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from agreement import assert_same
from generated_envs import Plan, PlannedEnv
from gymnasium import spaces

from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op, RowState, Source
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.host import NOTHING
from gymbridge.engine.layout import Leaf
from gymbridge.engine.local import LocalEngine
from gymbridge.engine.rows import snapshot
from gymbridge.errors import EnvOutputError

BOX = spaces.Box(0, 255, (2,), np.uint8)
IDLE, RESET, STEP, BOTH = Op.IDLE, Op.RESET, Op.STEP, Op.STEP_MAYBE_RESET


def engine_of(*plans: Plan, options: GymHostOptions | None = None) -> LocalEngine:
    engine = LocalEngine(
        [PlannedEnv(plan, index) for index, plan in enumerate(plans)],
        options or GymHostOptions(),
    )
    engine.allocate()
    return engine


def run(engine: LocalEngine, *ops: Op) -> Any:
    return engine.run(bytes(ops), [[0] * len(ops)], [{"seed": 7 + row} for row in range(len(ops))])


def contents(block: Block, row: int) -> list[Any]:
    arrays = [*block.next.values(), *block.root.values()]
    return [*(array[row].copy() for array in arrays), block.state[row], block.source[row]]


def test_a_new_row_waits_for_its_first_observation_in_root() -> None:
    block = engine_of(Plan(BOX), Plan(BOX)).block
    assert list(block.state) == [RowState.NEW] * 2
    assert list(block.source) == [Source.ROOT] * 2


def test_wrappers_are_told_by_the_names_of_their_classes_from_the_outermost() -> None:
    env = gym.wrappers.ClipReward(gym.wrappers.TimeLimit(PlannedEnv(Plan(spaces.Discrete(2))), 5), 0, 1)
    engine = LocalEngine([env], GymHostOptions())
    engine.allocate()
    clip, limit = engine.ask("wrappers", 0)
    assert [clip[0][1], limit[0][1]] == ["ClipReward", "TimeLimit"]
    assert ("gymnasium.core", "RewardWrapper") in clip
    assert ("gymnasium.core", "RewardWrapper") not in limit
    engine.close()


def test_an_idle_row_is_not_touched() -> None:
    engine = engine_of(*[Plan(BOX, lengths=(2,))] * 3)
    run(engine, RESET, RESET, RESET)
    run(engine, STEP, STEP, STEP)
    before = [contents(engine.block, row) for row in range(3)]
    assert run(engine, STEP, IDLE, RESET) is NOTHING
    assert_same(contents(engine.block, 1), before[1])
    assert list(engine.block.state) == [RowState.ENDED, RowState.RUNNING, RowState.RUNNING]
    assert list(engine.block.source) == [Source.NEXT, Source.NEXT, Source.ROOT]
    assert engine.block.next["terminated",].tolist() == [True, False, False]
    assert [len(env.calls) for env in engine.envs] == [3, 2, 3]  # type: ignore[attr-defined]


def test_step_maybe_reset_has_the_end_in_next_and_the_start_in_root() -> None:
    plan = Plan(BOX, lengths=(1,), step_infos=({"x": "1"},), reset_infos=({"y": "2"},))
    options = GymHostOptions.for_gymnasium(np.dtype(np.float64))
    one, other = engine_of(plan, options=options), engine_of(plan, options=options)
    for engine in (one, other):
        run(engine, RESET)
    kwargs = [{"seed": 3, "options": {"x": 1}}]
    report = one.run(bytes([BOTH]), [[0]], kwargs)
    step_report, reset_report = other.run(bytes([STEP]), [[0]]), other.run(bytes([RESET]), None, kwargs)
    assert report.steps == step_report.steps == {0: {"x": "1"}}
    assert report.resets == reset_report.resets == {0: {"y": "2"}}
    assert_same(one.block.root["observation",], other.block.root["observation",])
    assert_same(one.block.next["observation",], other.block.next["observation",])
    assert one.block.next["terminated",].all()
    assert one.block.next["reward",].any()
    assert one.block.state[0] == RowState.RUNNING
    assert one.block.source[0] == Source.ROOT


INFO_LEAVES = (Leaf(("x",), (), np.dtype(np.float64)), Leaf(("a", "b"), (2,), np.dtype(np.int64)))


def test_infos_as_leaves() -> None:
    """Present entries with their masks, absent ones zero; of a step in ``next``, of a reset in ``root``."""
    b = np.array([3, 4])
    plan = Plan(BOX, lengths=(9,), step_infos=({"x": 1.5}, {"a": {"b": b}}, {}), reset_infos=({"x": 7, "a": {"b": b}},))
    engine = engine_of(plan, options=GymHostOptions(info_leaves=INFO_LEAVES))
    block = engine.block

    def infos(section: dict[tuple[str, ...], np.ndarray]) -> list[Any]:
        keys = [("info", "x"), ("info", "_mask", "x"), ("info", "a", "b"), ("info", "_mask", "a", "b")]
        return [section[key][0].tolist() for key in keys]

    run(engine, RESET)
    assert infos(block.root) == [7, True, [3, 4], True]
    assert infos(block.next) == [0, False, [0, 0], False]
    for expected in ([1.5, True, [0, 0], False], [0, False, [3, 4], True], [0, False, [0, 0], False]):
        run(engine, STEP)
        assert infos(block.next) == expected
    run(engine, STEP)
    run(engine, RESET)
    assert infos(block.next) == [0, False, [0, 0], False]


def test_a_bad_info_leaf_leaves_the_row_as_it_was() -> None:
    plan = Plan(BOX, lengths=(9,), step_infos=({"x": 1.5}, {"x": "text"}))
    engine = engine_of(plan, options=GymHostOptions(info_leaves=INFO_LEAVES))
    run(engine, RESET)
    run(engine, STEP)
    before = engine.block.next["observation",].copy()
    report = run(engine, STEP)
    assert isinstance(report.errors[0], EnvOutputError)
    assert str(report.errors[0]).startswith("info.x: got 'text' of type str, expected shape () and dtype float64")
    assert_same(engine.block.next["observation",], before)
    assert not engine.block.next["reward",].any()
    assert not engine.block.next["info", "_mask", "x"].any()
    assert engine.block.state[0] == RowState.FAILED


@pytest.mark.parametrize("info", [None, [], [1], np.zeros(0), np.zeros(2), "x"], ids=repr)
def test_an_info_that_is_no_dict_is_told_as_such(info: Any) -> None:
    """In a step and in a reset, also one that has no truth value."""
    options = GymHostOptions.for_gymnasium(np.dtype(np.float64))
    engine = engine_of(Plan(BOX, lengths=(1,), reset_infos=({}, {})), options=options)
    told = f"info: got {info!r} of type {type(info).__name__}, expected a dict"
    for method, op in (("step", STEP), ("reset", RESET)):
        run(engine, RESET)
        env = engine.envs[0]
        given = getattr(env, method)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(env, method, lambda *args, given=given, **kwargs: (*given(*args, **kwargs)[:-1], info))
            report = run(engine, op)
        assert isinstance(report.errors[0], EnvOutputError)
        assert str(report.errors[0]) == told
        assert engine.block.state[0] == RowState.FAILED


def test_an_unknown_info_entry_is_warned_of_once() -> None:
    plan = Plan(BOX, lengths=(9,), step_infos=({"x": 1.5, "a": {"b": np.zeros(2, int), "c": 1}, "new": 2},))
    options = GymHostOptions(info_leaves=INFO_LEAVES, warn_of_unknown_infos=True)
    engine = engine_of(plan, options=options)
    run(engine, RESET)
    with pytest.warns(UserWarning, match=r"env 0: info entries .* are left out: \['a.c', 'new'\]"):
        run(engine, STEP)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(engine, STEP)


def test_a_snapshot_holds_what_the_env_changes_later() -> None:
    array, thing = np.zeros(2), object()
    info = {"array": array, "inner": {"array": array, "more": {"x": 1}}, "thing": thing}
    taken = snapshot(info)
    array += 1
    info["inner"]["more"]["x"] = 2  # type: ignore[index]
    info["late"] = 3
    assert taken["thing"] is thing
    assert_same(
        {key: taken[key] for key in ("array", "inner")},
        {"array": np.zeros(2), "inner": {"array": np.zeros(2), "more": {"x": 1}}},
    )
    assert "late" not in taken


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("op", [RESET, STEP, BOTH])
def test_an_interrupt_fails_the_rows_that_the_round_had_touched(interrupt: type[BaseException], op: Op) -> None:
    """Ctrl-C in the middle of a round: what those rows did is never handed out; the others are as they were."""

    class Interrupts(PlannedEnv):
        on = False

        def step(self, action: Any) -> Any:
            if self.on:
                raise interrupt
            return super().step(action)

        def reset(self, **kwargs: Any) -> Any:
            if self.on:
                raise interrupt
            return super().reset(**kwargs)

    engine = LocalEngine([Interrupts(Plan(BOX), index) for index in range(4)], GymHostOptions())
    engine.allocate()
    run(engine, RESET, RESET, RESET, RESET)
    engine.envs[2].on = True  # type: ignore[attr-defined]
    untouched = [contents(engine.block, row) for row in (1, 3)]
    with pytest.raises(interrupt):
        run(engine, op, IDLE, op, op)
    failed, running = RowState.FAILED, RowState.RUNNING
    assert list(engine.block.state) == [failed, running, failed, running]
    assert_same([contents(engine.block, row) for row in (1, 3)], untouched)
