"""TensorDict envs whose resets and steps are coroutines, on the event loop of an ``AsyncioPoolEngine``."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from fuzzing import quick
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict_engines import TensorDictEngine
from tensordict_programs import run_a_program
from tensordict_zoo import TENSORDICT_ENVS
from worker_processes import PATIENCE
from zoo import CountingEnv

from gymbridge import ParallelEnv, SerialEnv
from gymbridge.engine.any_env import AnyEnvOptions
from gymbridge.engine.asyncio_pool import AsyncioPoolEngine
from gymbridge.engine.block import Block
from gymbridge.engine.codes import Op, RowState
from gymbridge.engine.thread_pool import ThreadPoolEngine
from gymbridge.envs import EnvBase, GymEnv
from gymbridge.envs.remote_host import RemoteTensorDictOptions
from gymbridge.envs.remote_inputs import GivenColumns, GivenRows, RoundInputs
from gymbridge.specs import Categorical, Composite, NonTensor, Unbounded

RESET, STEP = Op.RESET, Op.STEP
IN_PROCESS = partial(RemoteTensorDictOptions, in_process=True)


class OnALoop(ParallelEnv):
    """A batch whose envs are on an event loop."""

    def _start_engine(self, preload: Sequence[str]) -> Any:
        return AsyncioPoolEngine(self._makers, AnyEnvOptions())

    def _tensordict_options(self, *, buffers: bool) -> RemoteTensorDictOptions:
        return replace(super()._tensordict_options(buffers=buffers), in_process=True)


def on_a_loop(makers: Any, **options: Any) -> EnvBase:
    return OnALoop(len(makers), [*makers], num_workers=1, **options)


@cache
def awaiting_class(kind: type[Any]) -> type[Any]:
    """A class of TensorDict envs with coroutines in place of their resets and steps."""

    async def _reset(self: Any, tensordict: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return kind._reset(self, tensordict, **kwargs)

    async def _step(self: Any, tensordict: Any) -> Any:
        await asyncio.sleep(0)
        assert not torch.is_grad_enabled()
        return kind._step(self, tensordict)

    return type(kind.__name__, (kind,), {"_reset": _reset, "_step": _step})


def awaiting(maker: Callable[[int], EnvBase]) -> Callable[[int], EnvBase]:
    """A maker of such envs, of which one in three stays plain."""

    def make(index: int) -> EnvBase:
        env = maker(index)
        if index % 3 != 1:
            env.__class__ = awaiting_class(type(env))
        return env

    return make


class LikePlain(TensorDictEngine):
    """The oracle has the plain envs."""

    def make(self, maker: Callable[[int], EnvBase], first: int = 0, **options: object) -> EnvBase:
        return super().make(awaiting(maker), first, **options)


BATCHES = [
    LikePlain("whole", 3, on_a_loop),
    LikePlain("beside the block", 3, partial(on_a_loop, use_buffers=False)),
    LikePlain("lazy", 3, partial(on_a_loop, share_individual_td=True), lazy=True),
]


@pytest.mark.every(3, "engine", "kind")
@pytest.mark.parametrize("engine", BATCHES, ids=str)
@pytest.mark.parametrize("kind", TENSORDICT_ENVS)
@quick(3)
@given(data=st.data())
def test_coroutines_give_what_plain_envs_give_one_by_one(engine: Any, kind: str, data: st.DataObject) -> None:
    """Whatever is asked of a batch of both."""
    run_a_program(engine, TENSORDICT_ENVS[kind], data, rounds=5)


# ---------------------------------------------------------------- gymnasium envs


class AwaitingCountingEnv(CountingEnv):
    async def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().reset(**kwargs)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().step(action)


@pytest.mark.parametrize(
    "options", [{}, {"use_buffers": False}, {"share_individual_td": True}], ids=["direct", "wrapped", "lazy"]
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_gymnasium_envs_of_coroutines_give_what_plain_ones_give(options: dict[str, Any], wrapped: bool) -> None:
    """Alone, or in a ``GymEnv`` that knows of no coroutines."""

    def make(kind: Any) -> Any:
        return GymEnv(kind()) if wrapped else kind()

    kinds = [AwaitingCountingEnv, CountingEnv, AwaitingCountingEnv]
    env = on_a_loop([partial(make, kind) for kind in kinds], **options)
    same = SerialEnv(3, [partial(make, CountingEnv)] * 3, **options)
    assert env.set_seed(5) == same.set_seed(5)
    with torch.no_grad():
        td, expected = env.reset(), same.reset()
        for _ in range(12):
            assert (td == expected).all()
            action = same.rand_action()["action"]
            td.set("action", action)
            expected.set("action", action.clone())
            stepped, td = env.step_and_maybe_reset(td)
            other, expected = same.step_and_maybe_reset(expected)
            assert (stepped == other).all()
    env.close()
    same.close()


def test_unlike_envs_of_every_kind_go_together() -> None:
    env = on_a_loop(
        [
            lambda: awaiting(TENSORDICT_ENVS["counting"])(0),
            AwaitingCountingEnv,
            lambda: GymEnv(AwaitingCountingEnv()),
            lambda: gym.make("CartPole-v1"),
        ]
    )
    td = env.reset()
    for number in range(1, 3):
        td = env.rand_action(td)
        td = env.step(td)
        assert td[1]["next", "observation"][1] == number
        td = env.step_mdp(td)
    assert env._output_faults(4, 0) == []
    env.close()


def test_a_batch_of_coroutines_is_awaited_env_by_env() -> None:
    """One that knows of no coroutines is run in a thread, which waits for the loop."""
    make = partial(SerialEnv, 2, AwaitingCountingEnv)
    env, same = on_a_loop([make, make]), SerialEnv(2, [partial(SerialEnv, 2, CountingEnv)] * 2)
    env.set_seed(3)
    same.set_seed(3)
    td, expected = env.reset(), same.reset()
    for _ in range(4):
        assert (td == expected).all()
        td["action"] = expected["action"] = same.rand_action()["action"]
        td, expected = env.step_and_maybe_reset(td)[1], same.step_and_maybe_reset(expected)[1]
    env.close()
    same.close()


# ---------------------------------------------------------------- work


class Telling(EnvBase):
    """Shows the last action, and an object; a test may have its step wait or raise."""

    def __init__(self, index: int = 0):
        super().__init__()
        self.observation_spec = Composite(last=Unbounded((1,)), thing=NonTensor(()))
        self.action_spec = Categorical(5)
        self.reward_spec = Unbounded((1,))
        self.index = index
        self.gate: concurrent.futures.Future[None] | None = None
        self.thing: Any = threading.Lock()
        self.error: BaseException | None = None
        self.given: Any = None
        self.kept = torch.zeros(1)
        self.closed = 0

    async def _reset(self, tensordict: Any, **kwargs: Any) -> TensorDict:
        self.given = tensordict
        await asyncio.sleep(0)
        return TensorDict(last=self.kept, thing=self.thing)

    async def _step(self, tensordict: Any) -> TensorDict:
        if self.gate is not None:
            await asyncio.wrap_future(self.gate)
        if self.error is not None:
            raise self.error
        self.kept.fill_(float(tensordict["action"]))
        return TensorDict(last=self.kept, thing=self.thing, reward=torch.ones(1), terminated=torch.tensor([False]))

    def _set_seed(self, seed: int | None) -> None:
        pass

    async def close(self, *, raise_if_closed: bool = True) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().close(raise_if_closed=raise_if_closed)
        self.closed += 1


Pool = AsyncioPoolEngine[Any]


@pytest.fixture
def envs() -> list[Telling]:
    return [Telling(index) for index in range(3)]


@pytest.fixture(params=[True, False], ids=["buffers", "no buffers"])
def pool(request: pytest.FixtureRequest, envs: list[Telling]) -> Iterator[Pool]:
    makers = [partial(lambda env: env, env) for env in envs]
    pool: Pool = AsyncioPoolEngine(makers, IN_PROCESS(buffers=request.param))
    pool.allocate()
    pool.run(bytes([RESET] * 3), RoundInputs(None))
    yield pool
    pool.close(terminate=True)


def step(pool: Pool, rows: list[int], actions: list[int]) -> torch.Tensor:
    given = torch.tensor(actions)
    pool.submit(rows, bytes([STEP]) * len(rows), RoundInputs(GivenColumns((("action",),), [given])))
    return given


def taken(pool: Pool, rows: list[int]) -> tuple[Any, Block]:
    block = Block(pool.block.layout.rows(0, len(rows)))
    return pool.take(rows, block), block


def shown(pool: Pool, report: Any, block: Block, number: int, section: str = "next") -> list[dict[Any, Any]]:
    """What each row gave, from the block or beside it."""
    sent = report.steps if section == "next" else report.resets
    rows: list[dict[Any, Any]] = [{} for _ in range(number)]
    for key, array in getattr(block, section).items():
        for row in range(number):
            rows[row][key[:-1]] = torch.from_numpy(array[row].copy())
    for first, own in sent.items():
        values = own.values.unpacked()
        for row in range(first, first + max(1, own.num_rows)):
            for key, value in zip(own.keys, values, strict=True):
                rows[row][key] = value[row - first] if own.num_rows else value
    return rows


def test_rows_are_given_and_give_their_own(pool: Pool, envs: list[Telling]) -> None:
    """Copies of tensors, whatever caller and env do with theirs later; other objects are the very same."""
    envs[0].gate = concurrent.futures.Future()
    given = step(pool, [2, 0], [4, 3])
    given.zero_()
    assert pool.wait(1, PATIENCE) == [2]
    envs[0].gate.set_result(None)
    assert pool.wait(2, PATIENCE) == [2, 0]
    report, block = taken(pool, [0, 2])
    rows = shown(pool, report, block, 2)
    for env in envs:
        env.kept.fill_(9.0)
    assert [float(row["last",]) for row in rows] == [3, 4]
    things = [row["thing",] for row in rows]
    assert [getattr(thing, "data", thing) for thing in things] == [envs[0].thing, envs[2].thing]
    assert block.state.tolist()[:2] == [RowState.RUNNING] * 2


def test_what_reaches_a_reset_is_the_very_object(pool: Pool, envs: list[Telling]) -> None:
    lock, position = threading.Lock(), torch.zeros(2)
    row = TensorDict(mutex=lock, position=position)
    inputs = RoundInputs(GivenRows([row], None, True))
    pool.submit([1], bytes([RESET]), inputs)
    position.fill_(1)
    pool.wait(1, PATIENCE)
    assert not taken(pool, [1])[0].errors
    assert envs[1].given["mutex"] is lock
    assert envs[1].given["position"].tolist() == [0, 0]


def test_of_rows_that_raised_the_first_is_taken_alone(pool: Pool, envs: list[Telling]) -> None:
    for env in envs[1:]:
        env.error = LookupError(env.index)
    step(pool, [0, 1, 2], [1, 2, 3])
    pool.wait(3, PATIENCE)
    report, _ = taken(pool, [2, 0, 1])
    assert report.errors == {0: envs[2].error}
    assert report.errors[0] is envs[2].error
    assert pool.busy == {0, 1}
    report, _ = taken(pool, [0, 1])
    assert report.errors == {1: envs[1].error}
    report, block = taken(pool, [0])
    assert [float(row["last",]) for row in shown(pool, report, block, 1)] == [1]
    assert not pool.busy


def test_each_env_is_closed_once(pool: Pool, envs: list[Telling]) -> None:
    pool.close()
    assert [env.closed for env in envs] == [1, 1, 1]
    assert all(env.is_closed for env in envs)


def test_who_is_reset_after_an_end_only_the_caller_knows(pool: Pool) -> None:
    with pytest.raises(ValueError, match="STEP_MAYBE_RESET"):
        pool.submit([0], bytes([Op.STEP_MAYBE_RESET]), RoundInputs(None))
    assert not pool.busy


def test_plain_envs_have_no_gradients_either() -> None:
    """In their own threads."""
    modes: list[bool] = []

    class Plain(Telling):
        def _reset(self, tensordict: Any, **kwargs: Any) -> Any:  # type: ignore[override]
            return TensorDict(last=torch.zeros(1), thing=None)

        def _step(self, tensordict: Any) -> Any:  # type: ignore[override]
            modes.append(torch.is_grad_enabled())
            return TensorDict(last=torch.zeros(1), thing=None, reward=torch.ones(1), terminated=torch.tensor([False]))

    pool: Pool = AsyncioPoolEngine([Plain, Plain], IN_PROCESS())
    pool.allocate()
    pool.run(bytes([RESET] * 2), RoundInputs(None))
    step(pool, [0, 1], [0, 0])
    pool.wait(2, PATIENCE)
    assert not taken(pool, [0, 1])[0].errors
    assert modes == [False, False]
    assert torch.is_grad_enabled()
    pool.close()


def test_observations_of_many_envs_are_each_its_own() -> None:
    """Random parts of a hundred, taken together or one by one."""
    seed = int(np.random.default_rng().integers(2**31))
    print("seed", seed)
    random = np.random.default_rng(seed)
    pool: Pool = AsyncioPoolEngine([Telling] * 100, IN_PROCESS())
    pool.allocate()
    pool.run(bytes([RESET] * 100), RoundInputs(None))
    for _ in range(20):
        rows = random.permutation(100)[: int(random.integers(1, 101))].tolist()
        actions = random.integers(0, 5, len(rows)).tolist()
        step(pool, rows, actions)
        assert sorted(pool.wait(len(rows), PATIENCE)) == sorted(rows)
        order = random.permutation(len(rows)).tolist()
        for part in (order[: len(order) // 2], order[len(order) // 2 :]):
            report, block = taken(pool, [rows[index] for index in part])
            seen = [float(row["last",]) for row in shown(pool, report, block, len(part))]
            assert seen == [actions[index] for index in part]
    pool.close()


class Plain(EnvBase):
    """Shows the object that its reset was given."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(thing=NonTensor(()))
        self.action_spec = Categorical(5)
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: Any, **kwargs: Any) -> TensorDict:
        return TensorDict(thing=tensordict["thing"])

    def _step(self, tensordict: Any) -> TensorDict:
        raise NotImplementedError

    def _set_seed(self, seed: int | None) -> None:
        pass


@pytest.mark.parametrize("kind", [ThreadPoolEngine, AsyncioPoolEngine])
def test_nothing_is_pickled_in_this_process(kind: Any) -> None:
    """Neither on its way to an env nor back: what no pickle takes comes through."""
    pool: Any = kind([Plain] * 2, IN_PROCESS())
    pool.allocate()
    lock, position = threading.Lock(), torch.zeros(2)
    row = TensorDict(thing=lock, position=position)
    pool.submit([1], bytes([RESET]), RoundInputs(GivenRows([row], None, True)))
    pool.wait(1, PATIENCE)
    report, _ = taken(pool, [1])
    assert not report.errors
    sent = report.resets[0]
    values = dict(zip(sent.keys, sent.values.unpacked(), strict=True))
    thing = values["thing",]
    assert getattr(thing, "data", thing) is lock
    pool.close()
