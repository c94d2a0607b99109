"""``TensorDictVectorEnv``: a TensorDict env gives what the gymnasium face gives, and what its own rules say."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from agreement import assert_same
from fuzzing import examples
from generated_envs import Plan, PlannedEnv, makers
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from own_envs import OwnBatch
from space_strategies import any_spaces, batchable
from tensordict import TensorDict
from zoo import CountingEnv, DictEnv, RaisingEnv

from gymbridge import AsyncEnvPool, SerialEnv
from gymbridge.envs import EnvBase, GymEnv
from gymbridge.errors import SpecError
from gymbridge.specs import Binary, Bounded, Composite, OneHot, Unbounded
from gymbridge.vector import SyncVectorEnv, TensorDictVectorEnv

MODES = tuple(AutoresetMode)
NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
BOX = spaces.Box(-1, 1, (2,), np.float32)


BATCHES: dict[str, Callable[[list[Callable[[], EnvBase]]], EnvBase]] = {
    "SerialEnv": lambda made: SerialEnv(len(made), [*made]),
    "pool": lambda made: AsyncEnvPool([*made]),
}
"""What runs the envs; of the pool each in a thread."""


def wrapped(make: Callable[[], gym.Env], **kwargs: Any) -> Callable[[], GymEnv]:
    return lambda: GymEnv(make(), **kwargs)


def sorted_keys(infos: Any) -> Any:
    """Infos with their keys in order: gymnasium's order is that in which the envs came upon them."""
    if not isinstance(infos, dict):
        return infos
    return {key: sorted_keys(infos[key]) for key in sorted(infos)}


def without_infos(infos: dict[str, Any]) -> dict[str, Any]:
    return {key: infos[key] for key in ("final_obs", "_final_obs") if key in infos}


def assert_agree(
    ours: TensorDictVectorEnv,
    theirs: SyncVectorEnv,
    num_steps: int,
    show_infos: Callable[[dict[str, Any]], Any] = without_infos,
) -> int:
    """Fails unless both give the same for the same seeds and actions; returns how many episodes ended."""
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    theirs.action_space.seed(0)
    first, their_first = ours.reset(seed=7), theirs.reset(seed=7)
    assert_same((first[0], show_infos(first[1])), (their_first[0], show_infos(their_first[1])), "reset")
    num_ended = 0
    for step in range(num_steps):
        actions = theirs.action_space.sample()
        our, their = ours.step(actions), theirs.step(actions)
        assert_same((*our[:4], show_infos(our[4])), (*their[:4], show_infos(their[4])), f"step {step}")
        ended = our[2] | our[3]
        num_ended += int(ended.sum())
        if ours.autoreset_mode is DISABLED and ended.any():
            seeds = (
                [step + row for row in range(len(ended))] if isinstance(ours.env, (SerialEnv, AsyncEnvPool)) else None
            )
            our, their = (it.reset(seed=seeds, options={"reset_mask": ended}) for it in (ours, theirs))
            assert_same((our[0], show_infos(our[1])), (their[0], show_infos(their[1])), f"reset at {step}")
    return num_ended


@settings(max_examples=examples(60))
@given(
    observations=any_spaces().filter(batchable),
    actions=any_spaces().filter(batchable),
    mode=st.sampled_from(MODES),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    copied=st.booleans(),
    batch=st.sampled_from([*BATCHES]),
)
def test_a_batch_gives_what_a_sync_vector_env_gives(
    observations: spaces.Space, actions: spaces.Space, mode: AutoresetMode, lengths: list[int], copied: bool, batch: str
) -> None:
    plan = Plan(observations, actions, lengths=lengths, ends=((True, False), (False, True)))
    env = BATCHES[batch]([wrapped(make, reward_dtype=torch.float64) for make in makers(plan, 3)])
    ours = TensorDictVectorEnv(env, autoreset_mode=mode, copy=copied)
    assert_agree(ours, SyncVectorEnv(makers(plan, 3), autoreset_mode=mode), 7)
    ours.close()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", [CountingEnv, DictEnv])
@pytest.mark.parametrize("batch", BATCHES)
def test_infos_are_those_of_a_sync_vector_env(batch: str, kind: type[CountingEnv], mode: AutoresetMode) -> None:
    """Nested ones, those of resets only, those of an episode's end only, and ``final_info``."""
    env = BATCHES[batch]([lambda n=n: GymEnv(lambda: kind((3, 1, n)), info="auto") for n in range(2, 5)])  # type: ignore[misc]
    theirs = SyncVectorEnv([lambda n=n: kind((3, 1, n)) for n in range(2, 5)], autoreset_mode=mode)
    ended = assert_agree(TensorDictVectorEnv(env, autoreset_mode=mode), theirs, 20, sorted_keys)
    assert ended > 10


def test_infos_that_are_no_numbers() -> None:
    plan = Plan(BOX, step_infos=({"word": "up"}, {}, {"word": "down"}))
    spec = Composite(word=GymEnv(lambda: PlannedEnv(plan), info="auto").observation_spec["info", "word"])
    env = SerialEnv(2, [wrapped(make, info=spec) for make in makers(plan, 2)])
    assert_agree(TensorDictVectorEnv(env), SyncVectorEnv(makers(plan, 2)), 8, sorted_keys)


def test_infos_of_a_users_batch() -> None:
    """They are those of the rows that were reset, in a reset, and have no masks of their own."""

    class Tells(Countdown):
        def __init__(self) -> None:
            super().__init__()
            spec = self.observation_spec.clone()
            spec["info"] = Composite(arm=Composite(angle=Unbounded((3, 2)), shape=(3,)), shape=(3,))
            self.observation_spec = spec

        def _reset(self, td: Any, **kwargs: Any) -> TensorDict:
            return super()._reset(td, **kwargs).set(("info", "arm", "angle"), torch.ones(3, 2))

        def _step(self, td: Any) -> TensorDict:
            return super()._step(td).set(("info", "arm", "angle"), torch.full((3, 2), 2.0))

    def told(rows: list[bool], values: list[float]) -> dict[str, Any]:
        mask, angle = np.array(rows), np.repeat(np.array(values, np.float32)[:, None], 2, axis=1)
        return {"arm": {"angle": angle, "_angle": mask}, "_arm": mask}

    for mode, second in ((NEXT_STEP, [1, 2, 2]), (DISABLED, [2, 2, 2])):
        envs = TensorDictVectorEnv(Tells(), autoreset_mode=mode)
        assert "info" not in envs.single_observation_space.spaces  # type: ignore[attr-defined]
        assert_same(envs.reset()[1], told([True] * 3, [1, 1, 1]))
        assert_same(envs.step(ZERO)[4], told([True] * 3, [2, 2, 2]))
        if mode is DISABLED:
            mask = np.array([True, False, False])
            assert_same(envs.reset(options={"reset_mask": mask})[1], told([True, False, False], [1, 0, 0]))
        assert_same(envs.step(ZERO)[4], told([True] * 3, second))
    envs = TensorDictVectorEnv(Tells(), autoreset_mode=SAME_STEP)
    envs.reset()
    infos = envs.step(ZERO)[4]
    assert_same(infos["final_info"], told([True, False, False], [2, 0, 0]))
    assert_same({key: infos[key] for key in ("arm", "_arm")}, told([True] * 3, [1, 2, 2]))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", [CountingEnv, DictEnv])
def test_a_users_batch_gives_what_a_sync_vector_env_gives(kind: type[CountingEnv], mode: AutoresetMode) -> None:
    envs = [lambda n=n: kind((3, 1, n)) for n in range(2, 5)]
    ours = TensorDictVectorEnv(OwnBatch(envs), autoreset_mode=mode)
    assert assert_agree(ours, SyncVectorEnv(envs, autoreset_mode=mode), 20) > 10


def test_one_call_at_a_time() -> None:
    """An env that calls its batch back is refused: both would write the same rows."""

    class Recursive(Countdown):
        def _step(self, td: Any) -> TensorDict:
            envs.call("num")
            return super()._step(td)

    envs = TensorDictVectorEnv(Recursive())
    envs.reset()
    with pytest.raises(RuntimeError, match="call: refused while a call of step is under way"):
        envs.step(ZERO)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_one_hot_actions(mode: AutoresetMode) -> None:
    """The space is the Discrete that is encoded; the action of an env that is reset may be anything."""
    plan = Plan(BOX, spaces.Dict(a=spaces.Discrete(3, start=5), b=spaces.MultiDiscrete([2, 3])), lengths=(2, 3))
    made = [wrapped(make, categorical_action_encoding=False, reward_dtype=torch.float64) for make in makers(plan, 2)]
    ours = TensorDictVectorEnv(SerialEnv(2, made), autoreset_mode=mode)
    assert_agree(ours, SyncVectorEnv(makers(plan, 2), autoreset_mode=mode), 8)
    ours.reset()
    with pytest.raises(SpecError, match=r"^action\.a: value: out of domain"):
        ours.step({"a": [5, 8], "b": [[0, 0], [0, 0]]})


def test_actions_of_envs_that_are_reset_are_ignored() -> None:
    plan = Plan(BOX, spaces.Discrete(3), lengths=(1, 3))
    env = SerialEnv(2, [wrapped(make, categorical_action_encoding=False) for make in makers(plan, 2)])
    envs = TensorDictVectorEnv(env)
    envs.reset(seed=0)
    assert (lambda out: out[2] | out[3])(envs.step([0, 0])).tolist() == [True, False]
    *_, terminated, truncated, _ = envs.step([99, 1])
    assert not terminated[0]
    assert not truncated[0]


def test_a_step_is_one_engine_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where some envs step and others reset."""
    for mode in (NEXT_STEP, SAME_STEP):
        env = SerialEnv(2, makers(Plan(BOX, lengths=(1, 3)), 2))
        envs = TensorDictVectorEnv(env, autoreset_mode=mode)
        envs.reset()
        rounds: list[bytes] = []
        run = env.engine.run
        monkeypatch.setattr(
            env.engine, "run", lambda ops, *args, run=run, to=rounds: (to.append(ops), run(ops, *args))[1]
        )
        for _ in range(4):
            envs.step([0, 0])
        assert len(rounds) == 4
        assert len(set(rounds)) == (1 if mode is SAME_STEP else 3)


# -------------------------------------------------------------------- an env in torch


class Countdown(EnvBase):
    """Row ``i`` ends after ``i + 1`` steps; the count travels as state, and the batch notes what it was asked.

    Args:
        num_envs: rows.
        partial: honours masks.
        reuses: writes what it shows into one tensor over and over.
    """

    def __init__(self, num_envs: int = 3, partial: bool = True, reuses: bool = False):
        super().__init__(batch_size=(num_envs,))
        shape = (num_envs, 1)
        count = Unbounded(shape, dtype=torch.int64)
        self.observation_spec = Composite(left=Unbounded(shape), count=count, shape=(num_envs,))
        self.state_spec = Composite(count=count, shape=(num_envs,))
        self.action_spec = Bounded(-1, 1, shape)
        self.reward_spec = Unbounded(shape)
        self.partial_step = self.partial_reset = partial
        self.limits = torch.arange(1, num_envs + 1).unsqueeze(-1)
        self.calls: list[tuple[str, Any]] = []
        self.out = torch.zeros(shape)
        self.reuses = reuses
        self.metadata = {"render_modes": ["ansi"]}

    def _reset(self, td: Any, **kwargs: Any) -> TensorDict:
        self.calls.append(("reset", None if td is None or "_reset" not in td else td["_reset"].tolist()))
        self.kwargs = kwargs
        count = torch.zeros(self.num, 1, dtype=torch.int64)
        if td is not None and "_reset" in td:
            count = torch.where(td["_reset"].unsqueeze(-1), count, td["count"])
        return TensorDict({"left": self.left(count), "count": count}, self.batch_size)

    def left(self, count: torch.Tensor) -> torch.Tensor:
        left = (self.limits - count).float()
        self.out = self.out.copy_(left) if self.reuses else left
        return self.out

    def _step(self, td: Any) -> TensorDict:
        self.calls.append(("step", td["_step"].tolist() if "_step" in td else None))
        count = td["count"] + 1
        if "_step" in td:
            count = torch.where(td["_step"].unsqueeze(-1), count, td["count"])
        ended = count >= self.limits
        made = {"left": self.left(count), "count": count, "reward": td["action"] + 1.0, "terminated": ended}
        return TensorDict(made, self.batch_size)

    @property
    def num(self) -> int:
        return self.batch_size[0]

    def _set_seed(self, seed: int | None) -> None:
        self.seed = seed


ZERO = np.zeros((3, 1), np.float32)


@pytest.mark.parametrize("partial_step", [True, False])
def test_next_step_over_a_users_batch(partial_step: bool) -> None:
    """Ended rows show their first observation, reward 0 and no flag; without ``partial_step`` all rows are stepped."""
    env = Countdown()
    env.partial_step = partial_step
    envs = TensorDictVectorEnv(env)
    observations, infos = envs.reset(seed=3)
    assert env.seed == 3
    assert infos == {}
    assert observations["left"].ravel().tolist() == [1, 2, 3]
    env.calls.clear()
    seen = [envs.step(ZERO) for _ in range(4)]
    assert [out[0]["left"].ravel().tolist() for out in seen] == [[0, 1, 2], [1, 0, 1], [0, 2, 0], [1, 1, 3]]
    assert [out[1].tolist() for out in seen] == [[1, 1, 1], [0, 1, 1], [1, 0, 1], [0, 1, 0]]
    assert [out[2].tolist() for out in seen] == [
        [True, False, False],
        [False, True, False],
        [True, False, True],
        [False, False, False],
    ]
    mask = [[False, True, True], [True, False, True], [False, True, False]]
    steps = [("step", it if partial_step else None) for it in mask]
    resets = [("reset", [not one for one in it]) for it in mask]
    assert env.calls == [("step", None), *(call for pair in zip(steps, resets, strict=True) for call in pair)]
    assert seen[0][1].dtype == np.float64


def test_rows_that_all_end_at_once_are_reset_whole() -> None:
    env = Countdown()
    env.limits[:] = 1
    envs = TensorDictVectorEnv(env)
    envs.reset()
    envs.step(ZERO)
    observations, rewards, terminated, truncated, _ = envs.step(ZERO)
    assert env.calls == [("reset", None), ("step", None), ("reset", None)]
    assert observations["left"].ravel().tolist() == [1, 1, 1]
    assert (rewards.tolist(), terminated.any(), truncated.any()) == ([0, 0, 0], False, False)


def test_same_step_over_a_users_batch() -> None:
    envs = TensorDictVectorEnv(Countdown(), autoreset_mode="SameStep")
    envs.reset()
    observations, _, terminated, _, infos = envs.step(ZERO)
    assert observations["left"].ravel().tolist() == [1, 1, 2]
    assert terminated.tolist() == infos["_final_obs"].tolist() == [True, False, False]
    assert_same(infos["final_obs"][0], {"left": np.zeros(1, np.float32), "count": np.ones(1, np.int64)})
    assert infos["final_obs"][1] is None


def test_an_env_that_is_reset_whole_only() -> None:
    env = Countdown(partial=False)
    for mode in (NEXT_STEP, SAME_STEP):
        with pytest.raises(
            ValueError, match=r"autoreset_mode: got .*, expected 'Disabled': Countdown has partial_reset"
        ):
            TensorDictVectorEnv(env, autoreset_mode=mode)
    envs = TensorDictVectorEnv(env, autoreset_mode=DISABLED)
    envs.reset()
    envs.step(ZERO)
    with pytest.raises(ResetNeeded, match=r"envs \[0\] ended their episode"):
        envs.step(ZERO)
    mask = np.array([True, False, False])
    with pytest.raises(ValueError, match=r"options\['reset_mask'\]: Countdown has partial_reset=False"):
        envs.reset(options={"reset_mask": mask})
    with pytest.raises(ResetNeeded):
        envs.step(ZERO)
    envs.reset(options={"reset_mask": ~mask | mask})
    assert envs.step(ZERO)[2].tolist() == [True, False, False]


def test_masked_reset_and_options() -> None:
    env = Countdown()
    envs = TensorDictVectorEnv(env, autoreset_mode=DISABLED)
    mask = np.array([True, False, False])
    with pytest.raises(ResetNeeded, match=r"leaves out envs \[1, 2\], which have never been reset"):
        envs.reset(options={"reset_mask": mask})
    with pytest.raises(ResetNeeded, match=r"envs \[0, 1, 2\] have not been reset yet"):
        envs.step(ZERO)
    envs.reset()
    envs.step(ZERO)
    options = {"reset_mask": mask, "level": 4}
    observations, _ = envs.reset(options=options)
    assert env.kwargs == {"options": {"level": 4}}
    assert list(options) == ["reset_mask", "level"]
    assert observations["left"].ravel().tolist() == [1, 1, 2]
    assert envs.step(ZERO)[2].tolist() == [True, True, False]


def test_a_batch_that_raises_is_to_be_reset() -> None:
    class Breaks(Countdown):
        broken = True

        def _step(self, td: Any) -> TensorDict:
            if self.broken:
                raise OSError("out of order")
            return super()._step(td)

    env = Breaks()
    envs = TensorDictVectorEnv(env)
    envs.reset()
    with pytest.raises(OSError, match="out of order"):
        envs.step(ZERO)
    env.broken = False
    with pytest.raises(ResetNeeded, match=r"envs \[0, 1, 2\] raised an error in an earlier call"):
        envs.step(ZERO)
    envs.reset()
    envs.step(ZERO)


def test_an_engines_env_that_raises_costs_nobody_else_anything() -> None:
    for mode in MODES:
        envs = TensorDictVectorEnv(SerialEnv(2, lambda: RaisingEnv((9,))), autoreset_mode=mode)
        envs.reset(seed=0)
        first = envs.env.engine.envs[0]  # type: ignore[attr-defined]
        first.raise_in_step = OSError("out of order")
        with pytest.raises(OSError, match="out of order"):
            envs.step([0, 0])
        first.raise_in_step = None
        with pytest.raises(ResetNeeded, match=r"envs \[0\] raised an error"):
            envs.step([0, 0])
        observations, infos = envs.reset(options={"reset_mask": np.array([True, False])})
        assert infos == {}
        assert observations[:, 1].tolist() == [0, 1]
        assert envs.step([0, 0])[0][:, 1].tolist() == [1, 2]


def test_a_reset_that_raises_in_a_step_leaves_the_others_their_step() -> None:
    env = SerialEnv(2, [lambda: RaisingEnv((1, 9)), lambda: RaisingEnv((9,))])
    envs = TensorDictVectorEnv(env)
    envs.reset(seed=0)
    assert envs.step([0, 0])[2].tolist() == [True, False]
    env.engine.envs[0].raise_in_reset = OSError("out of order")  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="out of order"):
        envs.step([0, 0])
    partial = env.last_partial()
    assert partial is not None
    assert partial["_failed"].tolist() == [True, False]
    assert partial["next", "observation"][:, 1].tolist() == [1, 2]
    assert partial["next", "reward"].flatten().tolist() == [0, 2]
    env.engine.envs[0].raise_in_reset = None  # type: ignore[attr-defined]
    assert envs.reset(options={"reset_mask": np.array([True, False])})[0][:, 1].tolist() == [0, 2]
    assert envs.step([0, 0])[0][:, 1].tolist() == [1, 3]


# -------------------------------------------------------------------- seeds


def test_seeds() -> None:
    plan = Plan(BOX)
    envs = TensorDictVectorEnv(SerialEnv(3, makers(plan, 3)))
    theirs = SyncVectorEnv(makers(plan, 3))
    for seed in (5, np.int64(6), [1, None, 3], None):
        for it in (envs, theirs):
            it.reset(seed=0)
        assert_same(envs.reset(seed=seed)[0], theirs.reset(seed=seed)[0])  # type: ignore[arg-type]
    assert envs.np_random_seed == theirs.np_random_seed
    # a masked reset's seed is not kept for the envs that it leaves out
    for it in (envs, theirs):
        it.reset(seed=9, options={"reset_mask": np.array([True, False, False])})
    assert_same(envs.reset()[0], theirs.reset()[0])
    with pytest.raises(gym.error.Error, match="seed: got -1"):
        envs.reset(seed=-1)
    with pytest.raises(ValueError, match="seed: got a list of 2, expected 3"):
        envs.reset(seed=[1, 2])
    with pytest.raises(TypeError, match=r"seed: got \[1, 2, 3\], expected an int: Countdown takes one for all envs"):
        TensorDictVectorEnv(Countdown()).reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match="seeds: got 1, expected 3"):
        envs.env.seed_rows([1])  # type: ignore[attr-defined]


# -------------------------------------------------------------------- outputs


@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: mode.value)
def test_tensors_have_the_values_of_arrays(mode: AutoresetMode) -> None:
    lengths = (1, 3)
    tensors = TensorDictVectorEnv(SerialEnv(2, lambda: DictEnv(lengths)), output="torch", autoreset_mode=mode)
    arrays = TensorDictVectorEnv(SerialEnv(2, lambda: DictEnv(lengths)), autoreset_mode=mode)
    assert_same(as_numpy(tensors.reset(seed=0)), arrays.reset(seed=0))
    actions = {"go": torch.tensor([1, 2]), "push": torch.zeros(2, 2, dtype=torch.float64)}
    for _ in range(5):
        ours, theirs = tensors.step(actions), arrays.step(actions)
        assert ours[1].dtype is torch.float32
        assert_same(as_numpy((ours[0], ours[1].double(), *ours[2:])), theirs)


def as_numpy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_numpy(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(as_numpy, value))
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        out = np.full(value.shape, None, object)
        out[:] = [as_numpy(part) for part in value]
        return out
    return value.numpy()[()] if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: mode.value)
def test_results_belong_to_the_caller(output: Any, mode: AutoresetMode) -> None:
    """Also where the env writes into one tensor over and over, as one that is reset by another call may."""
    envs = TensorDictVectorEnv(Countdown(reuses=mode is NEXT_STEP), output=output, autoreset_mode=mode)
    results: list[Any] = [envs.reset()]
    copies = copy.deepcopy(results)
    for _ in range(6):
        results.append(envs.step(ZERO))
        copies.append(copy.deepcopy(results[-1]))
    assert_same(as_numpy(tuple(results)), as_numpy(tuple(copies)))


def test_without_copy_memory_is_shared() -> None:
    for output in ("numpy", "torch"):
        env = Countdown()
        envs = TensorDictVectorEnv(env, output=output, copy=False)  # type: ignore[arg-type]
        observations, _ = envs.reset()
        left = torch.as_tensor(observations["left"])
        assert left.data_ptr() == env.out.data_ptr()


@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_copy_may_be_set_later(output: Any) -> None:
    """For the calls that follow, whether it was True or False at first."""
    for first in (True, False):
        env = Countdown(reuses=True)
        envs = TensorDictVectorEnv(env, output=output, copy=first, autoreset_mode=DISABLED)
        for copied in (first, not first, first):
            envs.copy = copied
            left = torch.as_tensor(envs.reset()[0]["left"])
            assert (left.data_ptr() == env.out.data_ptr()) is not copied
    batch = SerialEnv(2, makers(Plan(BOX), 2), copy=False)  # which writes each step into the same memory
    envs = TensorDictVectorEnv(batch, output=output, copy=False)
    envs.reset()
    envs.copy = True
    steps = [torch.as_tensor(envs.step([0, 0])[0]) for _ in range(2)]
    assert steps[0].data_ptr() != steps[1].data_ptr()


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_the_autoreset_mode_may_be_set_later(mode: AutoresetMode) -> None:
    fns = makers(Plan(BOX, lengths=(2, 3)), 2)
    ours, theirs = TensorDictVectorEnv(SerialEnv(2, fns)), SyncVectorEnv(fns)
    for envs in (ours, theirs):
        envs.reset(seed=0)
        envs.step([0, 0])
        envs.autoreset_mode = mode.value  # type: ignore[assignment]
        assert envs.autoreset_mode is mode
        assert envs.metadata["autoreset_mode"] is mode
    for step in range(1 if mode is DISABLED else 7):
        our, their = ours.step([0, 0]), theirs.step([0, 0])
        assert_same((*our[:4], without_infos(our[4])), (*their[:4], without_infos(their[4])), f"step {step}")
        assert step or (our[2] | our[3]).any()


def test_a_mode_that_the_env_cannot_have_is_refused_later_too() -> None:
    envs = TensorDictVectorEnv(Countdown(partial=False), autoreset_mode=DISABLED)
    with pytest.raises(ValueError, match="autoreset_mode: got 'SameStep', expected 'Disabled': Countdown has"):
        envs.autoreset_mode = SAME_STEP
    with pytest.raises(ValueError, match="autoreset_mode: got 'x'"):
        envs.autoreset_mode = "x"  # type: ignore[assignment]
    assert envs.autoreset_mode is DISABLED


def test_one_hot_observations_and_renamed_keys() -> None:
    class Shows(Countdown):
        def __init__(self) -> None:
            super().__init__(2)
            hot = OneHot(3, (2, 3))
            self.observation_spec = Composite(
                left=Unbounded((2, 1)),
                count=Unbounded((2, 1), dtype=torch.int64),
                place=Composite(hot=hot, shape=(2,)),
                shape=(2,),
            )

        def _reset(self, td: Any, **kwargs: Any) -> TensorDict:
            bits = torch.tensor([[True, False, False], [False, False, True]])
            return super()._reset(td, **kwargs).set(("place", "hot"), bits)

    for output in ("numpy", "torch"):
        envs = TensorDictVectorEnv(Shows(), output=output)  # type: ignore[arg-type]
        assert envs.single_observation_space["place"] == spaces.Dict(hot=spaces.Discrete(3))  # type: ignore[index]
        observations, _ = envs.reset()
        assert observations["place"]["hot"].tolist() == [0, 2]
        assert torch.as_tensor(observations["place"]["hot"]).dtype is torch.int64
    own = OwnBatch([DictEnv, DictEnv])
    assert "reward" in TensorDictVectorEnv(own).reset()[0]


def test_several_action_keys_are_a_dict() -> None:
    class Two(Countdown):
        def __init__(self) -> None:
            super().__init__()
            self.full_action_spec = Composite(action=Bounded(-1, 1, (3, 1)), press=Binary(2, (3, 2)), shape=(3,))

        def _step(self, td: Any) -> TensorDict:
            self.pressed = td["press"]
            return super()._step(td)

    envs = TensorDictVectorEnv(env := Two())
    assert list(envs.single_action_space.spaces) == ["action", "press"]  # type: ignore[attr-defined]
    envs.reset()
    envs.step({"action": ZERO, "press": [[0, 1], [1, 1], [0, 0]]})
    assert env.pressed.tolist() == [[0, 1], [1, 1], [0, 0]]
    with pytest.raises(KeyError, match="lacks the item 'press'"):
        envs.step({"action": ZERO})


@pytest.mark.parametrize(
    ("actions", "error"),
    [
        (np.zeros((2, 1), np.float32), "action: got 2 actions, expected 3, one for each env"),
        (torch.zeros(2, 1), "action: got 2 actions, expected 3, one for each env"),
        (torch.zeros(3, 2), r"action: got actions of shape \(2,\), expected \(1,\) each"),
        (torch.zeros(3, 1, dtype=torch.complex64), "action: got actions of dtype torch.complex64, expected float32"),
        (torch.zeros(()), "action: got tensor.* expected one action for each env"),
        ("abc", "action: got 'abc'"),
    ],
)
def test_bad_actions_touch_no_env(actions: Any, error: str) -> None:
    envs = TensorDictVectorEnv(env := Countdown())
    envs.reset()
    env.calls.clear()
    with pytest.raises((ValueError, TypeError), match=error):
        envs.step(actions)
    assert env.calls == []
    envs.step(torch.zeros(3, 1, dtype=torch.float64, requires_grad=True))


def test_an_action_that_a_cast_would_change_is_refused() -> None:
    plan = Plan(BOX, spaces.MultiBinary(2))
    envs = TensorDictVectorEnv(SerialEnv(2, makers(plan, 2)))
    envs.reset()
    for actions in (torch.tensor([[0, 1], [300, 0]]), [[0, 1], [300, 0]]):
        with pytest.raises(ValueError, match=r"(?s)^action: .*300"):
            envs.step(actions)


# -------------------------------------------------------------------- what is refused, and the rest of the interface


def test_envs_and_options_that_are_refused() -> None:
    with pytest.raises(TypeError, match="env: got 3 of type int, expected a batched EnvBase"):
        TensorDictVectorEnv(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="of type SyncVectorEnv, expected a batched EnvBase; of a vector env, from_vec"):
        TensorDictVectorEnv(SyncVectorEnv(makers(Plan(BOX), 2)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"env: got GymEnv of batch size \[\], expected one batch dim, .*SerialEnv"):
        TensorDictVectorEnv(GymEnv("CartPole-v1"))
    with pytest.raises(ValueError, match="output: got 'jax'"):
        TensorDictVectorEnv(Countdown(), output="jax")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="device: got 'cpu' with output='numpy'"):
        TensorDictVectorEnv(Countdown(), device="cpu")
    with pytest.raises(ValueError, match="device: got meta"):
        TensorDictVectorEnv(Countdown(), output="torch", device="meta")
    with pytest.raises(ValueError, match="autoreset_mode: got 'x'"):
        TensorDictVectorEnv(Countdown(), autoreset_mode="x")
    two = Countdown()
    two.reward_spec = Unbounded((3, 2))
    with pytest.raises(ValueError, match=r"env: got reward of shape \[3, 2\], expected one an env, \[3, 1\]"):
        TensorDictVectorEnv(two)
    two.reward_spec = Composite(cost=Unbounded((3, 1)), shape=(3,))
    with pytest.raises(ValueError, match=r"env: got the reward keys \['cost'\], expected \['reward'\]"):
        TensorDictVectorEnv(two)
    wide = SerialEnv(1, [wrapped(CountingEnv, reward_dtype=torch.float64)])
    with pytest.raises(TypeError, match=r"reward: got dtype float64, which device 'mps.*' does not have"):
        TensorDictVectorEnv(wide, output="torch", device="mps:0")


def test_attributes_and_methods_of_an_engines_envs() -> None:
    envs = TensorDictVectorEnv(SerialEnv(2, makers(Plan(BOX), 2, render_mode="ansi")))
    assert envs.call("add", 3, twice=True) == (6, 7)
    envs.set_attr("label", ["a", "b"])
    assert envs.get_attr("label") == ("a", "b")
    envs.set_attr("label", "c")
    assert envs.get_attr("label") == ("c", "c")
    with pytest.raises(ValueError, match="values: got 1 values, expected 2"):
        envs.set_attr("label", ["a"])
    envs.reset(seed=4)
    assert envs.render() == ("0: step 0", "1: step 0")
    assert envs.np_random_seed == (4, 5)
    assert envs.render_mode == "ansi"
    assert envs.metadata == {"render_modes": ["ansi"], "render_fps": 7, "autoreset_mode": NEXT_STEP}
    made = envs.env.engine.envs  # type: ignore[attr-defined]
    envs.close()
    assert [env.times_closed for env in made] == [1, 1]
    envs.close()
    for call in (envs.reset, lambda: envs.step([0, 0]), lambda: envs.call("label"), lambda: envs.set_attr("label", 1)):
        with pytest.raises(ClosedEnvironmentError):
            call()


def test_attributes_and_methods_of_a_users_batch() -> None:
    env = Countdown()
    envs = TensorDictVectorEnv(env)
    assert envs.get_attr("num") == 3
    assert envs.call("numel") == 3
    envs.set_attr("label", [1])
    assert env.label == [1]  # type: ignore[attr-defined]
    assert envs.metadata == {"render_modes": ["ansi"], "autoreset_mode": NEXT_STEP}
    with pytest.raises(AttributeError, match="np_random"):
        _ = envs.np_random
    envs.close()
    assert env.is_closed


def test_the_package_loads_no_torch_before_it_is_used(subprocess_env: dict[str, str]) -> None:
    code = """
import sys
import gymbridge.vector
assert "TensorDictVectorEnv" in dir(gymbridge.vector)
assert "torch" not in sys.modules
gymbridge.vector.TensorDictVectorEnv
assert "torch" in sys.modules
try:
    gymbridge.vector.Nothing
except AttributeError as error:
    assert "Nothing" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", code], env=subprocess_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.cuda
def test_on_a_gpu() -> None:
    """Actions are taken from the GPU, and all results are there."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    serial = TensorDictVectorEnv(SerialEnv(2, lambda: DictEnv((1, 2))), output="torch", device="cuda")
    observations, _ = serial.reset(seed=0)
    assert observations["count"].device.type == "cuda"
    actions = {"go": torch.tensor([1, 2], device="cuda"), "push": torch.zeros(2, 2, device="cuda")}
    for _ in range(4):
        observations, rewards, terminated, *_ = serial.step(actions)
        assert {observations["arm"]["angle"].device.type, rewards.device.type, terminated.device.type} == {"cuda"}
