"""``PoolVectorEnv``: each env of a pool gives what it gives alone, whenever it is heard."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import tensordict_zoo
import torch
import waiting_envs
import zoo
from agreement import arrays_in, assert_same, with_final_obs_in_space
from fuzzing import examples
from generated_envs import Plan, makers
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from space_strategies import any_spaces, batchable
from tensordict_zoo import CountingTensorDictEnv, NestedEnv, StatefulEnv
from vector_classes import travels
from waiting_envs import ActingEnv
from zoo import OBJECT_SPACES, CountingEnv, DictEnv, ObjectEnv, RaisingEnv

from gymbridge import AsyncEnvPool, SerialEnv, vector
from gymbridge.envs import EnvBase, GymEnv
from gymbridge.envs.pool_calls import PoolCalls
from gymbridge.errors import WorkerDiedError
from gymbridge.vector import PoolVectorEnv, TensorDictVectorEnv

NEXT_STEP, SAME_STEP, DISABLED = MODES = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
WAIT = 60.0
"""Seconds, for what takes none."""

travels(tensordict_zoo, waiting_envs, zoo)


class Heard(NamedTuple):
    """What an env was sent, None for a reset, and what it gave."""

    action: Any
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: dict[str, Any]


def info_of(infos: dict[str, Any], row: int) -> dict[str, Any]:
    """The infos of one row of a batch, by key."""
    own = {}
    for key in sorted(infos):
        if f"_{key}" in infos and infos[f"_{key}"][row]:
            value = infos[key]
            own[key] = info_of(value, row) if isinstance(value, dict) else value[row]
    return own


def row_of(space: gym.Space, batch: Any, row: int) -> Any:
    """One env's part of a batch; gymnasium's ``iterate`` has none of a ``Dict`` or ``Tuple`` of nothing."""
    if isinstance(space, spaces.Dict):
        return {key: row_of(part, batch[key], row) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(row_of(part, value, row) for part, value in zip(space.spaces, batch, strict=True))
    return batch[row]


def batch_of(space: gym.Space, samples: Sequence[Any]) -> Any:
    """Samples of a space as a batch of them."""
    if isinstance(space, spaces.Dict):
        return {key: batch_of(part, [sample[key] for sample in samples]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(batch_of(part, [sample[at] for sample in samples]) for at, part in enumerate(space.spaces))
    is_array = isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))
    return np.array(samples, space.dtype) if is_array else tuple(samples)


def heard_alone(theirs: Any, num_steps: int, show: Callable[[dict[str, Any]], dict[str, Any]]) -> list[list[Heard]]:
    """What each env of a synchronous vector env is sent and gives, over so many steps."""
    of_actions, of_observations = theirs.single_action_space, theirs.single_observation_space
    theirs.action_space.seed(0)
    envs: list[list[Heard]] = [[] for _ in range(theirs.num_envs)]

    def hear_reset(observations: Any, infos: dict[str, Any], rows: Iterable[int]) -> None:
        for row in rows:
            shown = row_of(of_observations, observations, row)
            envs[row].append(Heard(None, shown, 0.0, False, False, show(info_of(infos, row))))

    hear_reset(*theirs.reset(seed=7), range(len(envs)))
    for _ in range(num_steps):
        actions = theirs.action_space.sample()
        observations, rewards, terminated, truncated, infos = theirs.step(actions)
        infos = with_final_obs_in_space(infos, of_observations)
        for row, env in enumerate(envs):
            outcome = float(rewards[row]), bool(terminated[row]), bool(truncated[row])
            action, shown = row_of(of_actions, actions, row), row_of(of_observations, observations, row)
            env.append(Heard(action, shown, *outcome, show(info_of(infos, row))))
        ended = terminated | truncated
        if theirs.metadata["autoreset_mode"] is DISABLED and ended.any():
            hear_reset(*theirs.reset(options={"reset_mask": ended}), np.flatnonzero(ended))
    return envs


def send_next(ours: PoolVectorEnv, expected: list[list[Heard]], position: list[int], env_ids: Sequence[int]) -> None:
    """Sends some envs what they are to do next, in an order that is not theirs."""
    env_ids = [row for row in env_ids if position[row] < len(expected[row])][::-1]
    resets = [row for row in env_ids if expected[row][position[row]].action is None]
    steps = [row for row in env_ids if row not in resets]
    if resets:
        ours.async_reset(resets)
    if steps:
        actions = [expected[row][position[row]].action for row in steps]
        ours.send(batch_of(ours.single_action_space, actions), steps)


def assert_agree(
    ours: PoolVectorEnv,
    theirs: Any,
    num_steps: int = 12,
    show: Callable[[dict[str, Any]], dict[str, Any]] = lambda info: info,
) -> int:
    """Fails unless each env gives what it gives in the other; returns how many episodes ended."""
    assert ours.single_observation_space == theirs.single_observation_space
    assert ours.single_action_space == theirs.single_action_space
    expected = heard_alone(theirs, num_steps, show)
    position = [0] * ours.num_envs
    num_ended = 0
    ours.async_reset(seed=7)
    while all(at < len(env) for at, env in zip(position, expected, strict=True)):
        observations, rewards, terminated, truncated, infos = ours.recv(WAIT)
        env_ids = infos.pop("env_id").tolist()
        assert len({*env_ids}) == len(env_ids) == ours.batch_size
        assert env_ids == sorted(env_ids)
        assert (rewards.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)
        for at, row in enumerate(env_ids):
            alone = expected[row][position[row]]
            outcome = float(rewards[at]), bool(terminated[at]), bool(truncated[at])
            shown = row_of(ours.single_observation_space, observations, at)
            heard = Heard(alone.action, shown, *outcome, show(info_of(infos, at)))
            assert_same(heard._asdict(), alone._asdict(), f"env {row}, number {position[row]}")
            position[row] += 1
            num_ended += outcome[1] or outcome[2]
        send_next(ours, expected, position, env_ids)
    return num_ended


def final_obs_alone(info: dict[str, Any]) -> dict[str, Any]:
    """Of envs whose infos a TensorDict env does not keep."""
    return {key: info[key] for key in ("final_obs",) if key in info}


def wrapped(make: Callable[[], gym.Env], info: Any = "auto") -> Callable[[], GymEnv]:
    return lambda: GymEnv(make, info=info, reward_dtype=torch.float64)


def pool_of(each: Sequence[Callable[[], gym.Env]], info: Any = "auto", **options: Any) -> AsyncEnvPool:
    return AsyncEnvPool([wrapped(make, info) for make in each], **options)


def counting(num_envs: int, kind: type[CountingEnv] = CountingEnv) -> list[Callable[[], gym.Env]]:
    return [lambda n=n: kind((3, 1, n)) for n in range(2, 2 + num_envs)]


class GatedEnv(CountingEnv):
    """Steps once its gate is open."""

    def __init__(self) -> None:
        super().__init__((1000,))
        self.gate = threading.Event()
        self.gate.set()

    def step(self, action: Any) -> Any:
        assert self.gate.wait(WAIT)
        return super().step(action)


@pytest.fixture
def gated() -> Iterator[tuple[PoolVectorEnv, list[GatedEnv]]]:
    """A pool of three, of which each ``recv`` has two."""
    envs = [GatedEnv() for _ in range(3)]
    ours = PoolVectorEnv(AsyncEnvPool([lambda env=env: env for env in envs]), 2)
    yield ours, envs
    for env in envs:
        env.gate.set()
    ours.close()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize("kind", [CountingEnv, DictEnv])
def test_each_env_gives_what_it_gives_in_a_sync_vector_env(
    kind: type[CountingEnv], batch_size: int, mode: AutoresetMode
) -> None:
    """Observations of every structure, nested actions, infos of steps, resets and ends, and final ones."""
    with PoolVectorEnv(pool_of(counting(4, kind)), batch_size, autoreset_mode=mode) as ours:
        assert assert_agree(ours, SyncVectorEnv(counting(4, kind), autoreset_mode=mode)) >= 2


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", OBJECT_SPACES)
def test_spaces_whose_samples_are_no_arrays(name: str, mode: AutoresetMode) -> None:
    """As observations and as actions."""
    each = [lambda: ObjectEnv(OBJECT_SPACES[name])] * 3
    with PoolVectorEnv(pool_of(each), 2, autoreset_mode=mode) as ours:
        assert assert_agree(ours, SyncVectorEnv(each, autoreset_mode=mode)) >= 2


@settings(max_examples=examples(15))
@given(
    observations=any_spaces().filter(batchable),
    actions=any_spaces().filter(batchable),
    mode=st.sampled_from(MODES),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    batch_size=st.integers(1, 3),
)
def test_any_spaces(
    observations: spaces.Space, actions: spaces.Space, mode: AutoresetMode, lengths: list[int], batch_size: int
) -> None:
    plan = Plan(observations, actions, lengths=lengths, ends=((True, False), (False, True)))
    with PoolVectorEnv(pool_of(makers(plan, 3), None), batch_size, autoreset_mode=mode) as ours:
        theirs = vector.SyncVectorEnv(makers(plan, 3), autoreset_mode=mode)  # gymnasium's takes no empty spaces
        assert_agree(ours, theirs, 6, final_obs_alone)


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP], ids=lambda mode: mode.value)
def test_worker_processes_give_the_same(mode: AutoresetMode) -> None:
    pool = pool_of(counting(3, DictEnv), backend="multiprocessing", envs_per_worker=2)
    with PoolVectorEnv(pool, 2, autoreset_mode=mode) as ours:
        assert assert_agree(ours, SyncVectorEnv(counting(3, DictEnv), autoreset_mode=mode)) >= 2


class AwaitedEnv(CountingEnv):
    """The same in coroutines."""

    async def reset(self, **kwargs: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().reset(**kwargs)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().step(action)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_envs_of_coroutines_give_the_same(mode: AutoresetMode) -> None:
    pool = AsyncEnvPool(counting(3, AwaitedEnv), backend="asyncio")
    with PoolVectorEnv(pool, 2, autoreset_mode=mode) as ours:
        theirs = SyncVectorEnv(counting(3), autoreset_mode=mode)
        assert assert_agree(ours, theirs, show=final_obs_alone) >= 2


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("stack", ["dense", "lazy"])
@pytest.mark.parametrize("kind", [CountingTensorDictEnv, NestedEnv, StatefulEnv])
def test_tensordict_envs_go_on_from_their_own_state(kind: type[EnvBase], stack: Any, mode: AutoresetMode) -> None:
    """What a TensorDict env has in the TensorDict alone reaches its next step, whoever is heard with it."""
    each = [lambda index=index: kind(index) for index in range(3)]  # type: ignore[call-arg]
    theirs = TensorDictVectorEnv(SerialEnv(3, each), autoreset_mode=mode)  # type: ignore[arg-type]
    with PoolVectorEnv(AsyncEnvPool(each, stack=stack), 2, autoreset_mode=mode) as ours:
        assert assert_agree(ours, theirs) >= 1


# ---------------------------------------------------------------- which results, and whose


def test_a_loop_as_envpools_users_write_it() -> None:
    """Names and order: ``async_reset``, then ``recv`` and ``send`` by the numbers that came; or ``step``."""
    envs = PoolVectorEnv(AsyncEnvPool(["CartPole-v1"] * 5), batch_size=3)
    assert (len(envs), envs.num_envs, envs.all_env_ids.tolist()) == (5, 5, [0, 1, 2, 3, 4])
    assert envs.spec.id == "CartPole-v1"
    assert envs.metadata["autoreset_mode"] is NEXT_STEP
    assert envs.observation_space.shape == (3, 4)
    assert envs.action_space == spaces.MultiDiscrete([2, 2, 2])
    envs.async_reset()
    _, rewards, terminated, truncated, infos = envs.recv()
    assert (rewards.any(), terminated.any(), truncated.any()) == (False, False, False)
    assert infos["env_id"].dtype == np.int64
    envs.send(np.zeros(3, int), infos["env_id"])
    *_, infos = envs.recv()
    _, rewards, _, _, infos = envs.step(np.ones(3, int), infos["env_id"])
    assert infos["env_id"].shape == rewards.shape == (3,)
    envs.close()


def test_the_first_that_are_ready_are_received(gated: tuple[PoolVectorEnv, list[GatedEnv]]) -> None:
    ours, envs = gated
    ours.async_reset()
    slow, quick = ours.recv(WAIT)[4]["env_id"].tolist()
    (left,) = {0, 1, 2} - {slow, quick}
    envs[slow].gate.clear()
    ours.send([1, 1], [slow, quick])
    assert ours.recv(WAIT)[4]["env_id"].tolist() == sorted([quick, left])
    envs[slow].gate.set()
    ours.send([1], [quick])
    assert ours.recv(WAIT)[4]["env_id"].tolist() == sorted([slow, quick])


def test_a_receive_in_vain_loses_nothing(gated: tuple[PoolVectorEnv, list[GatedEnv]]) -> None:
    ours, envs = gated
    ours.async_reset()
    first, second = ours.recv(WAIT)[4]["env_id"].tolist()
    envs[first].gate.clear()
    envs[second].gate.clear()
    ours.send([1, 1], [first, second])
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError, match=r"recv: \d of min_get=2 envs came in time"):
            ours.recv(timeout)
    envs[first].gate.set()
    envs[second].gate.set()
    assert len(ours.recv(WAIT)[4]["env_id"]) == 2
    with pytest.raises(ValueError, match="timeout: got -1"):
        ours.recv(-1)


def test_more_than_is_under_way_is_refused(gated: tuple[PoolVectorEnv, list[GatedEnv]]) -> None:
    """And no wait without end; ``step`` and ``reset`` see that before they send anything."""
    ours, _ = gated
    with pytest.raises(NoAsyncCallError, match="recv: got 0 envs with work under way or unread results"):
        ours.recv()
    with pytest.raises(ValueError, match="reset: got 1 envs, with 0 under way, expected batch_size=2 together"):
        ours.reset([1])
    ours.async_reset([1])
    with pytest.raises(NoAsyncCallError, match="recv: got 1 envs"):
        ours.recv()
    ours.async_reset([0])
    assert ours.recv(WAIT)[4]["env_id"].tolist() == [0, 1]
    with pytest.raises(ValueError, match="step: got 1 envs, with 0 under way"):
        ours.step([1], [0])
    assert ours.step([1, 1], [0, 1])[1].tolist() == [1, 1]  # neither had been sent anything


def numpy_of(value: Any) -> Any:
    """The same with arrays that share the memory of tensors."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, dict):
        return {key: numpy_of(part) for key, part in value.items()}
    return type(value)(map(numpy_of, value)) if isinstance(value, (tuple, list)) else value


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("kind", [CountingEnv, StatefulEnv])
def test_results_are_the_callers_own(kind: type[Any], output: Any) -> None:
    """What is done to them reaches no env, nor do later changes of actions; and no later call changes them."""

    def heard(*, spoils: bool) -> list[Any]:
        results, kept = [], []
        with PoolVectorEnv(AsyncEnvPool([kind] * 2), output=output) as ours:
            ours.single_action_space.seed(0)
            ours.async_reset(seed=3)
            for _ in range(5):
                result = numpy_of(ours.recv(WAIT))
                kept.append(copy.deepcopy(result))
                results.append(result)
                if spoils:
                    for array in arrays_in(results.pop()):
                        array[...] = 0
                actions = batch_of(ours.single_action_space, [ours.single_action_space.sample()] * 2)
                ours.send(actions)
                if spoils:
                    actions[...] = 0
        assert_same(results, [] if spoils else kept)
        return kept

    assert_same(heard(spoils=True), heard(spoils=False))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_tensors_are_what_the_arrays_are(mode: AutoresetMode) -> None:
    """With rewards in the env's dtype; also where some envs are reset and others step."""

    def heard(output: Any) -> list[Any]:
        results = []
        with PoolVectorEnv(pool_of(counting(3, DictEnv)), autoreset_mode=mode, output=output) as ours:
            ours.single_action_space.seed(0)
            ours.async_reset(seed=1)
            for _ in range(9):
                results.append(ours.recv(WAIT))
                ended = np.asarray(results[-1][2] | results[-1][3]) & (mode is DISABLED)
                if ended.any():
                    ours.async_reset(np.flatnonzero(ended))
                going_on = np.flatnonzero(~ended)
                if len(going_on):
                    actions = [ours.single_action_space.sample() for _ in going_on]
                    ours.send(batch_of(ours.single_action_space, actions), torch.from_numpy(going_on))
        return results

    tensors, arrays = heard("torch"), heard("numpy")
    assert all(isinstance(tensors[-1][at], torch.Tensor) for at in (1, 2, 3))
    assert tensors[-1][1].dtype is torch.float64
    assert isinstance(tensors[-1][0]["arm"]["angle"], torch.Tensor)
    for ours, theirs in zip(numpy_of(tensors), arrays, strict=True):
        if mode is SAME_STEP and "final_obs" in theirs[4]:
            (final, expected) = (result[4].pop("final_obs") for result in (ours, theirs))
            assert_same(numpy_of([*final]), [as_in_arrays(row) for row in expected])
        assert_same(ours, theirs)


def as_in_arrays(value: Any) -> Any:
    """The same with scalars of numpy's as arrays."""
    if isinstance(value, dict):
        return {key: as_in_arrays(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(as_in_arrays, value))
    return np.asarray(value) if isinstance(value, np.generic) else value


@pytest.mark.parametrize(
    "actions", [np.array([1, 2]), np.array([1, 2], np.int8), [1, 2], (1, 2), torch.tensor([1, 2])], ids=repr
)
def test_actions_of_any_form_go_to_the_envs_that_are_named(actions: Any) -> None:
    with PoolVectorEnv(AsyncEnvPool([CountingEnv] * 3), 2) as ours:
        ours.reset([2, 1])
        observations, *_, infos = ours.step(actions, [2, 1])
        assert infos["env_id"].tolist() == [1, 2]
        assert observations[:, 2].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        ([1], ValueError, "action: got 1 actions, expected 2"),
        ([1, 2, 0], ValueError, "action: got 3 actions, expected 2"),
        ([0.5, 1.5], ValueError, "action: got actions of dtype float64, expected int64"),
        ([[1], [2]], ValueError, r"action: got actions of shape \(1,\), expected \(\) each"),
        (1, TypeError, "action: got 1"),
        (None, TypeError, "action: got None"),
    ],
    ids=repr,
)
def test_actions_that_do_not_fit_are_refused_before_any_is_sent(
    actions: Any, error: type[Exception], message: str
) -> None:
    with PoolVectorEnv(AsyncEnvPool([CountingEnv] * 2)) as ours:
        ours.reset()
        for call in (ours.send, ours.step):
            with pytest.raises(error, match=message):
                call(actions)
        assert ours.step([1, 2])[0][:, 1].tolist() == [1, 1]  # the first step of each


@pytest.mark.parametrize(
    ("env_id", "error", "message"),
    [
        ([], ValueError, "got no env_id"),
        ([0, 3], ValueError, r"got env_id \[0, 3\], expected some of 0 to 2"),
        ([-1], ValueError, r"got env_id \[-1\], expected some of 0 to 2"),
        ([1, 1], ValueError, r"got env_id \[1, 1\], expected each env once"),
        (1, TypeError, "got env_id 1, expected the ints of some envs"),
        ([True, False, True], TypeError, "expected the ints of some envs"),
        ([0.0], TypeError, "expected the ints of some envs"),
    ],
    ids=repr,
)
def test_env_ids_that_are_none_are_refused(env_id: Any, error: type[Exception], message: str) -> None:
    with PoolVectorEnv(AsyncEnvPool([CountingEnv] * 3), 1) as ours:
        for call in (
            lambda: ours.async_reset(env_id),
            lambda: ours.reset(env_id),
            lambda: ours.send([1], env_id),
            lambda: ours.step([1], env_id),
        ):
            with pytest.raises(error, match=message):
                call()


# ---------------------------------------------------------------- where an env stands


def test_a_busy_env_is_refused_by_name(gated: tuple[PoolVectorEnv, list[GatedEnv]]) -> None:
    ours, _ = gated
    ours.async_reset()
    first, second = ours.recv(WAIT)[4]["env_id"].tolist()
    (busy,) = {0, 1, 2} - {first, second}
    message = rf"envs \[{busy}\] have work under way, or results that were not received"
    for call in (lambda: ours.send([1, 1, 1]), lambda: ours.step([1, 1], [first, busy]), ours.async_reset):
        with pytest.raises(AlreadyPendingCallError, match=message):
            call()
    with pytest.raises(AlreadyPendingCallError, match=message):
        ours.reset([first, second])  # which could not tell the result of the third apart
    assert 1 in ours.step([1, 1], [first, second])[1]


def test_a_reset_of_all_begins_anew(gated: tuple[PoolVectorEnv, list[GatedEnv]]) -> None:
    """What was under way, and what was not received, is not to be seen."""
    ours, envs = gated
    ours.reset()
    for episode in (1, 2):
        observations, infos = ours.reset()
        assert observations[:, :2].tolist() == [[episode, 0], [episode, 0]]
        ours.send([1, 1], infos["env_id"])
    assert {env.episode for env in envs} == {2}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_an_env_that_was_never_reset_is_refused(mode: AutoresetMode) -> None:
    with PoolVectorEnv(AsyncEnvPool([CountingEnv] * 2), 1, autoreset_mode=mode) as ours:
        ours.reset([0])
        with pytest.raises(ResetNeeded, match=r"send: envs \[1\] have not been reset yet: .* async_reset\(env_id\)"):
            ours.send([1, 1])
        assert ours.step([1], [0])[1].tolist() == [1]


def test_without_autoreset_an_ended_env_is_refused() -> None:
    with PoolVectorEnv(AsyncEnvPool([lambda: CountingEnv((1,))] * 2), autoreset_mode="Disabled") as ours:
        ours.reset()
        assert ours.step([1, 1])[2].all()
        with pytest.raises(ResetNeeded, match=r"send: envs \[0, 1\] ended their episode: .* async_reset\(env_id\)"):
            ours.send([1, 1])
        ours.async_reset([1])
        ours.async_reset([0])
        assert ours.recv(WAIT)[0][:, 0].tolist() == [1, 1]


# ---------------------------------------------------------------- seeds and options


def test_seeds_and_options_go_to_their_envs() -> None:
    envs = [CountingEnv() for _ in range(3)]
    with PoolVectorEnv(AsyncEnvPool([lambda env=env: env for env in envs]), 1) as ours:
        options = {"level": [1]}
        ours.async_reset([2, 0], seed=10, options=options)
        ours.async_reset([1], seed=[None])
        for _ in range(3):
            ours.recv(WAIT)
        ours.async_reset([0, 2], seed=[4, None])
        for _ in range(2):
            ours.recv(WAIT)
        _, infos = ours.reset(seed=np.int64(1))
        for call, message in (
            (lambda: ours.async_reset(infos["env_id"], seed=[1, 2]), "seed: got a list of 2, expected 1"),
            (lambda: ours.reset(seed=[1, 2]), "seed: got a list of 2, expected 3"),
            (lambda: ours.reset(seed=-1), "seed: got -1"),
            (lambda: ours.reset(seed=1.5), "seed: got 1.5"),
        ):
            for _ in range(2):  # it leaves what is under way alone
                with pytest.raises((ValueError, TypeError, gym.error.Error), match=message):
                    call()
        assert len({*ours.pool._calls.busy}) == 2
    assert [[reset["seed"] for reset in env.resets] for env in envs] == [[10, 4, 1], [None, 2], [12, None, 3]]
    assert [env.resets[0]["options"] for env in envs] == [options, None, options]


@pytest.mark.parametrize("kind", [CountingEnv, CountingTensorDictEnv])
def test_equal_seeds_give_equal_episodes(kind: type[Any]) -> None:
    with PoolVectorEnv(AsyncEnvPool([kind] * 2)) as ours:
        first, _ = ours.reset(seed=5)
        again, _ = ours.reset(seed=5)
        other, _ = ours.reset(seed=[5, 5])
    noise = [numbers_of(shown)[:, -1].tolist() for shown in (first, again, other)]
    assert noise[0] == noise[1]
    assert noise[2] == [noise[0][0]] * 2


def numbers_of(observations: Any) -> Any:
    if not isinstance(observations, dict):
        return observations
    return next(value for key, value in observations.items() if value.dtype.kind == "f")


# ---------------------------------------------------------------- faults


def raising(num_envs: int, **options: Any) -> tuple[PoolVectorEnv, list[RaisingEnv]]:
    envs = [RaisingEnv((1, 50) if row == 0 else (50,)) for row in range(num_envs)]
    return PoolVectorEnv(AsyncEnvPool([lambda env=env: env for env in envs]), **options), envs


def test_an_env_that_raises_takes_nothing_from_the_others() -> None:
    """Neither from those that step nor from those that are reset in the same batch."""
    ours, envs = raising(3)
    with ours:
        ours.reset()
        assert ours.step([1, 1, 1])[2].tolist() == [True, False, False]
        envs[1].raise_in_step = error = OSError("worn out")
        ours.send([1, 1, 1])  # which resets the first
        with pytest.raises(OSError, match="worn out") as caught:
            ours.recv(WAIT)
        assert caught.value is error
        assert caught.value.env_index == 1  # type: ignore[attr-defined]
        with pytest.raises(NoAsyncCallError, match="recv: got 2 envs with work under way or unread results"):
            ours.recv(WAIT)
        with pytest.raises(AlreadyPendingCallError, match=r"envs \[0\]"):
            ours.send([1], [0])
        with pytest.raises(ResetNeeded, match=r"envs \[1\]"):
            ours.send([1], [1])
        envs[1].raise_in_step = None
        ours.async_reset([1])
        observations, rewards, *_ = ours.recv(WAIT)
        assert observations[:, :2].tolist() == [[1, 0], [1, 0], [0, 2]]
        assert rewards.tolist() == [0, 0, 2]
        assert ours.step([1, 1, 1])[1].tolist() == [11, 11, 3]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_several_that_raise_are_heard_one_by_one(mode: AutoresetMode) -> None:
    ours, envs = raising(3, autoreset_mode=mode)
    with ours:
        ours.reset()
        for row in (1, 2):
            envs[row].raise_in_step = ValueError(f"env {row}")
        ours.send([1, 1, 1])
        heard = set()
        for _ in range(2):
            with pytest.raises(ValueError, match=r"env \d") as caught:
                ours.recv(WAIT)
            row = caught.value.env_index  # type: ignore[attr-defined]
            heard.add(row)
            ours.async_reset([row])
        assert heard == {1, 2}
        assert ours.recv(WAIT)[1].tolist() == [1, 0, 0]


def test_an_env_that_raises_in_its_reset() -> None:
    ours, envs = raising(2)
    with ours:
        envs[1].raise_in_reset = OSError("jammed")
        with pytest.raises(OSError, match="jammed"):
            ours.reset()
        envs[1].raise_in_reset = None
        ours.async_reset([1])
        assert ours.recv(WAIT)[0][:, 1].tolist() == [0, 0]


def test_a_dead_worker_is_named_and_the_others_go_on() -> None:
    each = [lambda: ActingEnv(0), lambda: ActingEnv(1, act="kill")]
    with PoolVectorEnv(AsyncEnvPool(each, backend="multiprocessing"), 1) as ours:
        ours.reset([0])
        ours.reset([1])
        with pytest.raises(WorkerDiedError) as caught:
            ours.step([1], [1])
        assert caught.value.env_indices == (1,)
        assert ours.step([2], [0])[1].tolist() == [2]
        with pytest.raises(WorkerDiedError):
            ours.async_reset([1])


def test_a_call_while_another_thread_receives_is_refused(
    gated: tuple[PoolVectorEnv, list[GatedEnv]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, envs = gated
    ours.async_reset()
    first, second = ours.recv(WAIT)[4]["env_id"].tolist()
    envs[first].gate.clear()
    envs[second].gate.clear()
    ours.send([1, 1], [first, second])
    receives, receive = threading.Event(), PoolCalls.receive_any

    def noted(*args: Any) -> None:
        receives.set()
        receive(*args)

    monkeypatch.setattr(PoolCalls, "receive_any", noted)
    results: list[Any] = []
    receiver = threading.Thread(target=lambda: results.append(ours.recv()))
    receiver.start()
    assert receives.wait(WAIT)
    with pytest.raises(RuntimeError, match="send: refused while a call of recv is under way"):
        ours.send([1], [first])
    envs[first].gate.set()
    envs[second].gate.set()
    receiver.join(WAIT)
    assert len(results) == 1


# ---------------------------------------------------------------- the end, and what cannot be


def test_a_closed_one_is_refused() -> None:
    envs = [CountingEnv() for _ in range(2)]
    pool = AsyncEnvPool([lambda env=env: env for env in envs])
    with PoolVectorEnv(pool, 1) as ours:
        ours.async_reset()
    assert ours.closed
    assert pool.is_closed
    assert [env.closed for env in envs] == [1, 1]
    ours.close()
    for call in (lambda: ours.send([1, 1]), lambda: ours.step([1, 1]), ours.recv, ours.reset, ours.async_reset):
        with pytest.raises(ClosedEnvironmentError, match="the vector env is closed"):
            call()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size: got 0, expected 1 to 2"),
        ({"batch_size": 3}, ValueError, "batch_size: got 3, expected 1 to 2"),
        ({"batch_size": 1.0}, TypeError, "batch_size: got 1.0 of type float, expected an int"),
        ({"batch_size": True}, TypeError, "batch_size: got True"),
        ({"autoreset_mode": "never"}, ValueError, "autoreset_mode: got 'never'"),
        ({"output": "jax"}, ValueError, "output: got 'jax', expected 'numpy' or 'torch'"),
        ({"device": "cpu"}, ValueError, "device: got 'cpu' with output='numpy'"),
    ],
    ids=repr,
)
def test_options_that_there_are_not(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PoolVectorEnv(AsyncEnvPool([CountingEnv] * 2), **options)


def test_what_is_no_pool_of_like_envs_is_refused() -> None:
    with pytest.raises(TypeError, match="pool: got SerialEnv, expected an AsyncEnvPool"):
        PoolVectorEnv(SerialEnv(2, CountingEnv))  # type: ignore[arg-type]
    unlike = AsyncEnvPool([CountingEnv, DictEnv], stack="lazy")
    with pytest.raises(ValueError, match="expected envs of one space"):
        PoolVectorEnv(unlike)
    unlike.close()
    nested = AsyncEnvPool([lambda: SerialEnv(2, CountingEnv)] * 2)
    with pytest.raises(ValueError, match=r"pool: got one of batch size \[2, 2\], expected one batch dim"):
        PoolVectorEnv(nested)
    nested.close()


def test_it_is_no_vector_env() -> None:
    """Wrappers that keep something for each row would mix the envs; ``TensorDictVectorEnv`` of a pool is one."""
    assert not issubclass(PoolVectorEnv, vector.VectorEnv)
    envs = TensorDictVectorEnv(AsyncEnvPool([CountingEnv] * 2))
    assert isinstance(envs, vector.VectorEnv)
    envs.close()


def test_batches_are_counted_once_each() -> None:
    """Also those in which some envs are reset and others step."""
    with PoolVectorEnv(AsyncEnvPool([lambda n=n: CountingEnv((n,)) for n in (1, 50)])) as ours:
        ours.reset()
        for _ in range(3):
            ours.step([1, 1])
        counts = ours.pool.stats()["exchange"]
    assert (counts["batches"], counts["items"], counts["batch_fill_ratio"]) == (4, 8, 1.0)
