"""``ParallelEngine``: rounds that reach only whom they concern, whatever the memory lies in."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import waiting_envs
from agreement import assert_same
from generated_envs import Plan, PlannedEnv, makers
from gymnasium import spaces
from vector_classes import travels
from waiting_envs import ActingEnv, acting, release

from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op, RowState, Source
from gymbridge.engine.gym_host import GymHostOptions
from gymbridge.engine.gym_inputs import GymInputs
from gymbridge.engine.host import NOTHING, Report
from gymbridge.engine.layout import Layout, Leaf
from gymbridge.engine.local import LocalEngine
from gymbridge.engine.makers import EnvMaker
from gymbridge.engine.parallel import ParallelEngine
from gymbridge.errors import CallTimeoutError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no worker processes on Windows")

travels(sys.modules[__name__], waiting_envs)

BOX = spaces.Box(0, 255, (2,), np.uint8)
IDLE, RESET, STEP, BOTH = Op.IDLE, Op.RESET, Op.STEP, Op.STEP_MAYBE_RESET
INFOS = GymHostOptions.for_gymnasium(np.dtype(np.float64))


def parallel(plan: Plan, num_envs: int, **kwargs: Any) -> ParallelEngine[Any]:
    engine: ParallelEngine[Any] = ParallelEngine(makers(plan, num_envs), INFOS, **{"num_workers": 2, **kwargs})
    engine.allocate()
    return engine


def local(plan: Plan, num_envs: int) -> LocalEngine[Any, Any]:
    engine: LocalEngine[Any, Any] = LocalEngine([make() for make in makers(plan, num_envs)], INFOS)
    engine.allocate()
    return engine


def contents(engine: Any) -> list[Any]:
    block = engine.block
    return [block.next, block.root, bytes(block.state), bytes(block.source)]


def said(report: Any) -> Any:
    return [dict(report.steps), dict(report.resets), {row: str(error) for row, error in report.errors.items()}]


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[ParallelEngine[Any]]:
    """Two envs in two workers; a step of the second waits for its gate."""
    engine: ParallelEngine[Any] = ParallelEngine(acting(2, tmp_path), INFOS, num_workers=2)
    engine.allocate()
    engine.run(bytes([RESET] * 2), None)
    engine.set_attribute(1, "act", "wait")
    yield engine
    engine.close(terminate=True)


# ---------------------------------------------------------------- rounds


@pytest.mark.parametrize("memory", ["anonymous", "file", "named"])
def test_rounds_are_those_of_a_local_engine(memory: Any) -> None:
    """All ops mixed, over each kind of memory; rows that are left out stay as they are."""
    plan = Plan(
        spaces.Dict(box=BOX, text=spaces.Text(5)),
        lengths=(2, 1, 3),
        step_infos=({"x": 1}, {}),
        reset_infos=({}, {"y": 2}),
    )
    ours, theirs = parallel(plan, 5, memory=memory), local(plan, 5)
    random = np.random.default_rng(3)
    for number in range(40):
        ops = bytes([RESET] * 5) if number == 0 else random.integers(0, 4, 5, np.uint8).tobytes()
        actions = random.integers(0, 3, 5)
        kwargs = [{"seed": int(seed)} for seed in random.integers(0, 99, 5)] if number % 3 == 0 else None
        reports = [engine.run(ops, [actions], kwargs) for engine in (ours, theirs)]
        assert_same(said(reports[0]), said(reports[1]), f"report {number}")
        assert_same(contents(ours), contents(theirs), f"block {number}")
    assert_same(ours.each("attribute", [("calls",)] * 5), theirs.each("attribute", [("calls",)] * 5))
    ours.close()


def test_a_round_without_news_needs_no_message() -> None:
    engine = parallel(Plan(BOX, lengths=(9,)), 2)
    engine.run(bytes([RESET] * 2), None)
    assert engine.run(bytes([STEP] * 2), [np.array([0, 1])]) is NOTHING
    assert engine.run(bytes([IDLE] * 2), None) is NOTHING
    engine.close()


def test_only_workers_with_work_are_woken(waiting: ParallelEngine[Any]) -> None:
    """A worker that is stopped holds up no round that does not concern it."""
    pid = waiting.call(1, "pid")
    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(3):
            assert waiting.run(bytes([STEP, IDLE]), [np.array([1, 1])]) is NOTHING
        assert waiting.block.next["reward",].tolist() == [1, 0]
    finally:
        os.kill(pid, signal.SIGCONT)


def test_send_and_receive(waiting: ParallelEngine[Any], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="receive: no round is under way"):
        waiting.receive()
    with pytest.raises(RuntimeError, match="receive_calls: no call is under way"):
        waiting.receive_calls()
    waiting.send(bytes([STEP, STEP]), [np.array([1, 2])])
    with pytest.raises(RuntimeError, match="send: refused while a round or a call is under way"):
        waiting.send(bytes([STEP, STEP]), [np.array([1, 2])])
    with pytest.raises(RuntimeError, match="attribute: refused while a round or a call is under way"):
        waiting.attribute(0, "index")
    release(tmp_path, 1)
    assert waiting.receive() is NOTHING
    assert waiting.block.next["reward",].tolist() == [1, 2]


def test_a_round_that_was_given_up_is_settled_before_the_next(waiting: ParallelEngine[Any], tmp_path: Path) -> None:
    waiting.send(bytes([STEP, STEP]), [np.array([1, 2])])
    with pytest.raises(CallTimeoutError):
        waiting.receive(timeout=0)
    assert waiting.unsettled  # the workers may still write their rows
    release(tmp_path, 1)
    waiting.settle()
    assert not waiting.unsettled
    assert list(waiting.block.state) == [RowState.FAILED] * 2
    waiting.set_attribute(1, "act", "")
    waiting.run(bytes([RESET, RESET]), None)
    waiting.run(bytes([STEP, STEP]), [np.array([3, 4])])
    assert waiting.block.next["reward",].tolist() == [3, 4]


def test_actions_arrive_as_they_were_given() -> None:
    """An array of the space's dtype is an array of it; what differs, a float64 or a Python int, stays what it is."""
    box, choice = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)
    space = spaces.Dict(box=box, choice=choice, text=spaces.Text(4))
    engine = parallel(Plan(BOX, space, lengths=(9,)), 3)
    engine.run(bytes([RESET] * 3), None)
    batches = [
        [np.ones((3, 2), np.float32), np.array([0, 1, 2]), ["a", "b", "c"]],
        [np.full((3, 2), 0.1), [0, 1, 2], ["a", "b", "c"]],
    ]
    for leaves in batches:
        engine.run(bytes([STEP] * 3), leaves)
        boxes, choices, texts = leaves
        for row, calls in enumerate(engine.each("attribute", [("calls",)] * 3)):
            assert_same(calls[-1][1], {"box": boxes[row], "choice": choices[row], "text": texts[row]})
    engine.close()


def test_an_env_may_keep_its_action() -> None:
    class Keeps(PlannedEnv):
        def step(self, action: Any) -> Any:
            self.kept = [*getattr(self, "kept", []), action]
            return super().step(action)

    plan = Plan(BOX, spaces.Box(-9, 9, (2,), np.float32), lengths=(9,))
    engine: ParallelEngine[Any] = ParallelEngine([lambda: Keeps(plan)], INFOS)
    engine.allocate()
    engine.run(bytes([RESET]), None)
    for number in range(3):
        engine.run(bytes([STEP]), [np.full((1, 2), number, np.float32)])
    assert [action.tolist() for action in engine.attribute(0, "kept")] == [[0, 0], [1, 1], [2, 2]]
    engine.close()


# ---------------------------------------------------------------- verbs


def test_verbs_of_rows() -> None:
    plan = Plan(BOX, lengths=(9,))
    engine, theirs = parallel(plan, 3), local(plan, 3)
    for each in (engine, theirs):
        each.seed(2, 7, False)
        each.run(bytes([RESET] * 3), None, [{"seed": 1}, {"seed": 2}, {}])
        each.set_attribute(1, "label", "x")
    assert [engine.attribute(row, "label") for row in range(3)] == ["planned", "x", "planned"]
    assert [engine.call(row, "add", (1,), {"twice": True}) for row in range(3)] == [2, 3, 4]
    assert engine.each("call", [("add", (row,)) for row in range(3)]) == [0, 2, 4]
    assert_same(engine.block.root, theirs.block.root)
    state = engine.state(2)
    assert_same(state, theirs.state(2))
    engine.load_state(0, state)
    assert engine.state(0) == state
    assert engine.faults(0, 3, 0) == theirs.faults(0, 3, 0)
    assert engine.block.state[0] == RowState.NEW
    engine.close()
    with pytest.raises(RuntimeError, match="the workers are closed"):
        engine.call(0, "add", (1,))


# ---------------------------------------------------------------- how it is set up


def test_options_can_be_chosen_once_the_envs_are_known() -> None:
    engine: ParallelEngine[Any] = ParallelEngine(makers(Plan(BOX), 3), INFOS, num_workers=2)
    assert [description.options.reward_dtype for description in engine.descriptions] == [np.float64] * 3
    engine.describe(GymHostOptions.for_gymnasium(np.dtype(np.float32)))
    assert [description.options.reward_dtype for description in engine.descriptions] == [np.float32] * 3
    engine.allocate()
    engine.run(bytes([RESET] * 3), None)
    engine.run(bytes([STEP] * 3), [np.zeros(3, np.int64)])
    assert engine.block.next["reward",].dtype == np.float32
    engine.close()


def test_makers_by_id() -> None:
    engine: ParallelEngine[Any] = ParallelEngine([EnvMaker("CartPole-v1", {"max_episode_steps": 2})] * 2, INFOS)
    engine.allocate()
    engine.run(bytes([RESET] * 2), None)
    for ended in (False, True):
        engine.run(bytes([STEP] * 2), [np.array([0, 1])])
        assert engine.block.next["truncated",].tolist() == [ended] * 2
    engine.close()


def test_workers_have_contiguous_envs_threads_and_cores_as_asked() -> None:
    core = min(os.sched_getaffinity(0))
    engine: ParallelEngine[Any] = ParallelEngine(
        acting(5), INFOS, num_workers=2, num_sub_threads=3, worker_affinity=lambda worker: [core]
    )
    engine.allocate()
    pids = engine.each("call", [("pid",)] * 5)
    assert [pids.index(pid) for pid in pids] == [0, 0, 2, 2, 2]
    assert engine.each("call", [("variable", ("OMP_NUM_THREADS",))] * 5) == ["3"] * 5
    assert engine.each("call", [("cores",)] * 5) == [{core}] * 5
    engine.close()


class Tally:
    """No gymnasium env: adds what it is given to its total."""

    def __init__(self, start: int):
        self.total = start


class TallyInputs:
    """Numbers through the block, words beside it."""

    def __init__(self, block: Block):
        self.numbers = block.input["number",]

    def write(self, inputs: Any) -> Any:
        numbers, words = inputs
        self.numbers[:] = numbers
        return words if any(words) else None

    def part(self, beside: Any, start: int, stop: int) -> Any:
        return beside[start:stop]

    def read(self, beside: Any) -> Any:
        return self.numbers.copy(), [""] * len(self.numbers) if beside is None else beside


class TallyHost:
    def __init__(self, envs: Any, block: Block):
        self.envs, self.block = envs, block
        block.state[:] = bytes([RowState.NEW]) * len(envs)

    def run(self, ops: bytes, inputs: Any, reset_kwargs: Any = None) -> Report:
        report = Report()
        for row, (op, number, word) in enumerate(zip(ops, *inputs, strict=True)):
            if op:
                self.envs[row].total += int(number)
                self.block.next["total",][row] = self.envs[row].total
                self.block.state[row] = RowState.RUNNING
                if word:
                    report.steps[row] = word.upper()
        return report

    def attribute(self, row: int, name: str) -> Any:
        return getattr(self.envs[row], name)

    def close(self) -> None:
        raise OSError(f"closed with {[env.total for env in self.envs]}")


@dataclass(frozen=True)
class TallyDescription:
    start: int
    input_leaves: tuple[Leaf, ...] = (Leaf(("number",), (), np.dtype(np.int64)),)
    next_leaves: tuple[Leaf, ...] = (Leaf(("total",), (), np.dtype(np.int64)),)
    root_leaves: tuple[Leaf, ...] = ()


class TallyOptions:
    kinds = (Tally,)

    def describe(self, env: Tally) -> TallyDescription:
        return TallyDescription(env.total)

    def host(self, envs: Any, block: Block) -> Any:
        return TallyHost(envs, block)

    def inputs(self, description: TallyDescription, block: Block) -> TallyInputs:
        return TallyInputs(block)


def test_hosts_of_any_kind_run_in_workers() -> None:
    """What a host, its inputs and its options are is theirs to say: the engine moves rows."""
    engine: ParallelEngine[Any] = ParallelEngine(
        [lambda start=start: Tally(start) for start in (10, 20, 30)],  # type: ignore[misc]
        TallyOptions(),
        num_workers=2,
    )
    assert [description.start for description in engine.descriptions] == [10, 20, 30]
    engine.allocate()
    assert engine.run(bytes([STEP] * 3), ([1, 2, 3], ["", "", ""])).steps == {}
    assert engine.block.next["total",].tolist() == [11, 22, 33]
    assert engine.run(bytes([STEP, IDLE, STEP]), ([1, 1, 1], ["a", "b", "c"])).steps == {0: "A", 2: "C"}
    assert engine.each("attribute", [("total",)] * 3) == [12, 22, 34]
    assert list(engine.block.state) == [RowState.RUNNING] * 3
    with pytest.raises(OSError, match=r"closed with \[12\]"):
        engine.close()
    with pytest.raises(TypeError, match=r"the maker of env 1 gave .*, expected a gymnasium.Tally"):
        ParallelEngine([lambda: Tally(1), lambda: 3], TallyOptions(), num_workers=2)


def test_no_maker() -> None:
    with pytest.raises(ValueError, match="got no maker of an env"):
        ParallelEngine([], INFOS)


def test_some_rows_of_a_block_are_a_block() -> None:
    leaves = [
        Leaf(("x",), (2,), np.dtype(np.int16)),
        Leaf(("o",), (), np.dtype(object)),
        Leaf(("y",), (), np.dtype("g")),
    ]
    whole = Block(Layout(5, input=leaves, next=leaves, root=[]))
    memory = whole._memory
    part = Block(whole.layout.rows(2, 4), memory)
    part.next["x",][:] = [[1, 2], [3, 4]]
    part.next["y",][1] = 7
    part.state[1] = RowState.ENDED
    part.source[0] = Source.ROOT
    assert whole.next["x",].tolist() == [[0, 0], [0, 0], [1, 2], [3, 4], [0, 0]]
    assert whole.next["y",].tolist() == [0, 0, 0, 7, 0]
    assert list(whole.state) == [0, 0, 0, RowState.ENDED, 0]
    assert part.layout.rows(1, 2).first_row == 3
    assert list(whole.source) == [0, 0, Source.ROOT, 0, 0]
    assert part.layout.num_rows == 2
    assert part.next["o",].shape == (2,)


def test_inputs_of_rows_are_read_where_they_were_written() -> None:
    leaves = [Leaf(("action", "0"), (), np.dtype(np.int64)), Leaf(("action", "1"), (2,), np.dtype(np.float32))]
    whole = Block(Layout(4, input=leaves, next=[], root=[]))
    caller = GymInputs(leaves, whole)
    host = GymInputs(leaves, Block(whole.layout.rows(1, 3), whole._memory))
    beside = caller.write([np.arange(4), np.zeros((4, 2))])
    assert list(beside) == [1]  # type: ignore[arg-type]
    first, second = host.read(caller.part(beside, 1, 3))  # type: ignore[arg-type]
    assert first.tolist() == [1, 2]
    assert second.dtype == np.float64
    assert caller.write(None) is None


def test_a_warning_of_some_rows_has_the_number_that_the_caller_knows() -> None:
    class Talks(ActingEnv):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], {"seen": 1.0, "late": 2.0} if self.index else {"seen": 1.0}

    seen = Leaf(("seen",), (), np.dtype("f8"))
    options = GymHostOptions(info_leaves=(seen,), warn_of_unknown_infos=True)
    envs = [Talks(index) for index in range(2)]
    layout = Layout.of([options.describe(env) for env in [*envs, *envs]])
    host = options.host(envs, Block(layout.rows(2, 4), Block(layout)._memory))
    with pytest.warns(UserWarning, match=r"^env 3: info entries .* \['late'\]"):
        host.run(bytes([Op.RESET] * 2), None)
