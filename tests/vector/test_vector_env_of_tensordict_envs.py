"""``TensorDictVectorEnv`` over TensorDict envs gives what gymnasium gives over each of them alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import tensordict_zoo
import torch
from agreement import assert_same
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict, TensorDictBase
from tensordict_zoo import (
    GROUPED,
    TENSORDICT_ENVS,
    WORDS,
    BatchedEnv,
    CountingTensorDictEnv,
    DifferentiableEnv,
    EpisodicEnv,
    InfoEnv,
    NestedEnv,
    RaisingTensorDictEnv,
    RecurrentEnv,
    SeveralKeysEnv,
    StatefulEnv,
    StringsEnv,
)
from vector_classes import travels
from zoo import DictEnv

from gymbridge import AsyncEnvPool, ParallelEnv, SerialEnv
from gymbridge.envs import EnvBase, GymEnv
from gymbridge.errors import UnsupportedSpaceError
from gymbridge.spaces import spec_to_space
from gymbridge.specs import Binary, Bounded, Categorical, Composite, NonTensor, OneHot, Unbounded, stack_specs
from gymbridge.vector import TensorDictVectorEnv

travels(sys.modules[__name__], tensordict_zoo)

MODES = tuple(AutoresetMode)
NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
TEXT = spaces.Text(60, min_length=0, charset="abcdefghijklmnopqrstuvwxyz0123456789 :,-")

Maker = Callable[[int], EnvBase]


class TextEnv(StringsEnv):
    """Words in, words out, and their spaces are known."""

    def __init__(self, index: int):
        super().__init__(index, spoken=True)
        text = NonTensor((), example_data="nothing", space=TEXT)
        self.observation_spec = Composite(text=text, count=Unbounded((1,)))
        self.action_spec = NonTensor((), example_data=WORDS[0], space=TEXT)


class HiddenStateEnv(EpisodicEnv):
    """What it counts is a state that no observation shows, handed on by the TensorDict alone.

    Args:
        index: of the env in its batch.
        anew: a reset begins the count anew; else it goes on over the episodes.
    """

    def __init__(self, index: int, *, anew: bool = False):
        super().__init__(index)
        self.observation_spec = Composite(doubled=Unbounded((1,), dtype=torch.int64))
        self.state_spec = Composite(memory=Composite(total=Unbounded((1,), dtype=torch.int64)))
        self.anew = anew

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        super()._reset(tensordict, **kwargs)
        before = None if tensordict is None or self.anew else tensordict.get(("memory", "total"), None)
        return self.shown(torch.zeros(1, dtype=torch.int64) if before is None else before)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.t += 1
        total = tensordict["memory", "total"] + 1 + tensordict["action"]
        return self.shown(total).update(self.outcome(0.0))

    def observe(self, action: float) -> TensorDict:
        return TensorDict()

    def shown(self, total: torch.Tensor) -> TensorDict:
        return TensorDict(doubled=2 * total, memory=TensorDict(total=total))


class OneHotEnv(CountingTensorDictEnv):
    """Sees and takes one-hot vectors."""

    def __init__(self, index: int):
        super().__init__(index)
        self.observation_spec = Composite(turn=OneHot(3), noise=Bounded(0, 1, (1,)))
        self.action_spec = OneHot(4)

    def action_of(self, tensordict: TensorDictBase) -> float:
        return float(tensordict["action"].int().argmax())

    def observe(self, action: float) -> TensorDict:
        return TensorDict(turn=torch.arange(3) == self.t % 3, noise=self.noise())


class TwoActionsEnv(SeveralKeysEnv):
    """Several actions and one reward."""

    def __init__(self, index: int):
        super().__init__(index)
        self.reward_spec = Unbounded((1,))

    def outcome(self, action: float) -> dict[str, Any]:
        return EpisodicEnv.outcome(self, action)


REFUSED = (
    *GROUPED,
    "dynamic shape",
    "strings",
    "spoken",
    "batched",
    "batched whole",
    "recurrent",
    "several keys",
    "tasks",
)
ENVS: dict[str, Maker] = {
    **{name: make for name, make in TENSORDICT_ENVS.items() if name not in REFUSED},
    "text": TextEnv,
    "hidden state": HiddenStateEnv,
    "hidden state, anew": lambda index: HiddenStateEnv(index, anew=True),
    "one-hot": OneHotEnv,
    "several actions": TwoActionsEnv,
}


class Alone(gym.Env[Any, Any]):
    """One TensorDict env as a gymnasium env, by the rules of ``EnvBase`` and nothing else."""

    def __init__(self, env: EnvBase):
        self.env = env
        spec = env.full_observation_spec
        self.infos = spec["info"] if "info" in spec.keys() else None
        self.seen = spec.exclude("info")
        names = [*env.full_action_spec.keys()]
        self.name = names[0] if len(names) == 1 else None
        self.actions = env.full_action_spec if self.name is None else env.full_action_spec[self.name]
        self.observation_space = spec_to_space(self.seen)
        self.action_space = spec_to_space(self.actions)
        self.root: TensorDictBase | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.env.set_seed(seed)
        with torch.no_grad():
            self.root = self.env.reset(self.root)
        return self.shown(self.root)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.root is not None
        td, encoded = self.root.copy(), self.actions.encode(action)
        td = td.update(encoded) if self.name is None else td.set(self.name, encoded)
        with torch.no_grad():
            td = self.env.step(td)
        self.root = self.env.step_mdp(td)
        after = td["next"]
        observation, infos = self.shown(after)
        return observation, float(after["reward"]), bool(after["terminated"]), bool(after["truncated"]), infos

    def shown(self, td: TensorDictBase) -> tuple[Any, dict[str, Any]]:
        observation = self.seen.to_numpy(td.select(*self.seen.keys(True, True)))
        return observation, {} if self.infos is None else self.infos.to_numpy(td["info"])


def engine_of(env: EnvBase) -> Any:
    return env.engine  # type: ignore[attr-defined]


def makers(make: Maker, num_envs: int) -> list[Callable[[], EnvBase]]:
    return [lambda index=index: make(index) for index in range(num_envs)]  # type: ignore[misc]


BATCHES: dict[str, Callable[[list[Callable[[], EnvBase]]], EnvBase]] = {
    "SerialEnv": lambda made: SerialEnv(len(made), [*made]),
    "ParallelEnv": lambda made: ParallelEnv(len(made), [*made], num_workers=2),
    "pool": lambda made: AsyncEnvPool([*made]),
}
"""What runs the envs; of the pool each in a thread."""


def vector_env(
    make: Maker, num_envs: int = 3, mode: AutoresetMode = NEXT_STEP, batch: str = "SerialEnv", **options: Any
) -> TensorDictVectorEnv:
    return TensorDictVectorEnv(BATCHES[batch](makers(make, num_envs)), autoreset_mode=mode, **options)


def oracle(make: Maker, num_envs: int = 3, mode: AutoresetMode = NEXT_STEP) -> gym.vector.SyncVectorEnv:
    alone = [lambda made=made: Alone(made()) for made in makers(make, num_envs)]  # type: ignore[misc]
    return gym.vector.SyncVectorEnv(alone, autoreset_mode=mode)


def in_numpy(value: Any) -> Any:
    """Results in numpy and float64 rewards, infos with their keys in order."""
    if isinstance(value, dict):
        return {key: in_numpy(value[key]) for key in sorted(value)}
    if isinstance(value, tuple):
        return tuple(map(in_numpy, value))
    if isinstance(value, torch.Tensor):
        return (value.float() if value.dtype is torch.bfloat16 else value).numpy()[()]
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        out = np.full(value.shape, None, object)
        out[:] = [in_numpy(part) for part in value]
        return out
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def outcome(result: Any) -> Any:
    observations, rewards, *others = in_numpy(tuple(result))
    return (observations, rewards.astype(np.float64), *others)


def actions_of(space: spaces.Space[Any], num_envs: int) -> Any:
    """A batch of random actions, of words for a text."""
    return tuple(WORDS[row + 1] for row in range(num_envs)) if isinstance(space, spaces.Tuple) else space.sample()


# -------------------------------------------------------------------- the same as one by one


FORMS = [*((mode, "numpy") for mode in MODES), (SAME_STEP, "torch")]


def form_id(part: Any) -> str:
    return str(getattr(part, "value", part))


@pytest.mark.every(3, "batch", "name", "mode", "output")
@pytest.mark.parametrize(("mode", "output"), FORMS, ids=form_id)
@pytest.mark.parametrize("name", ENVS)
@pytest.mark.parametrize("batch", ["SerialEnv", "pool"])
def test_it_gives_what_gymnasium_gives_over_each_env_alone(
    batch: str, name: str, mode: AutoresetMode, output: Any
) -> None:
    """Spaces, observations, rewards, flags, infos, ``final_obs`` and ``final_info``, in one round of the engine a step;
    seeds as an int and as a list, and resets by mask."""
    ours, theirs = vector_env(ENVS[name], mode=mode, batch=batch, output=output), oracle(ENVS[name], mode=mode)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    theirs.action_space.seed(0)
    rounds = count_rounds(ours)
    ended, resets = 0, 0
    for seed in (7, [3, None, 4]):
        theirs.set_attr("root", None)  # a reset of all begins with nothing
        assert_same(in_numpy(ours.reset(seed=seed)), in_numpy(theirs.reset(seed=seed)), f"reset({seed})")
        resets += 1
        for step in range(12):
            actions = actions_of(theirs.action_space, 3)
            our, their = ours.step(actions), theirs.step(actions)
            assert_same(outcome(our), outcome(their), f"step {step}")
            done = their[2] | their[3]
            ended += int(done.sum())
            if mode is DISABLED and done.any():
                again: Any = step if step % 2 else [None, step, 9]
                own = [it.reset(seed=again, options={"reset_mask": done.copy()}) for it in (ours, theirs)]
                assert_same(in_numpy(own[0]), in_numpy(own[1]), f"masked reset at {step}")
                resets += 1
    assert ended >= 6
    if batch == "SerialEnv" or mode is not SAME_STEP:  # workers reset in a round of its own
        assert len(rounds) == 24 + resets


def count_rounds(envs: TensorDictVectorEnv) -> list[bytes]:
    """The ops of each round that the engine runs from now on."""
    engine, rounds = engine_of(envs.env), []
    run = engine.run

    def counted(ops: bytes, *args: Any) -> Any:
        rounds.append(ops)
        return run(ops, *args)

    engine.run = counted
    return rounds


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", ["counting", "stateful", "hidden state", "infos"])
@pytest.mark.parametrize("options", [{"share_individual_td": True}, {"use_buffers": False}, {"copy": False}], ids=str)
def test_options_of_the_batch_change_nothing(name: str, mode: AutoresetMode, options: dict[str, Any]) -> None:
    """Lazy stacks and all."""
    make = ENVS[name]
    ours = TensorDictVectorEnv(SerialEnv(2, makers(make, 2), **options), autoreset_mode=mode)
    theirs = vector_env(make, 2, mode)
    ours.action_space.seed(0)
    assert_same(ours.reset(seed=1), theirs.reset(seed=1))
    for _ in range(8):
        actions = ours.action_space.sample()
        our, their = ours.step(actions), theirs.step(actions)
        assert_same(our, their)
        done = our[2] | our[3]
        if mode is DISABLED and done.any():
            reset = {"reset_mask": done}
            assert_same(ours.reset(options=reset), theirs.reset(options=reset))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_gymnasium_envs_that_run_as_tensordict_envs(mode: AutoresetMode) -> None:
    """Two kinds of envs of one space make a batch; so do gymnasium envs that each have a TensorDict of their own."""
    lengths = ((1, 3), (2,))
    made: list[Any] = [
        lambda: GymEnv(lambda: DictEnv(lengths[0])),
        lambda: DictEnv(lengths[1]),
    ]
    theirs = [lambda own=own: DictEnv(own) for own in lengths]
    for options in ({}, {"share_individual_td": True}):
        ours = TensorDictVectorEnv(SerialEnv(2, made, **options), autoreset_mode=mode)
        expected = gym.vector.SyncVectorEnv(theirs, autoreset_mode=mode)
        assert ours.observation_space == expected.observation_space
        ours.action_space.seed(0)
        assert_same(in_numpy(ours.reset(seed=3)[0]), in_numpy(expected.reset(seed=3)[0]))
        for _ in range(7):
            actions = ours.action_space.sample()
            our, their = ours.step(actions), expected.step(actions)
            assert_same(in_numpy((our[0], *our[2:4])), in_numpy((their[0], *their[2:4])))
            done = our[2] | our[3]
            if mode is DISABLED and done.any():
                mask = {"reset_mask": done}
                own = [it.reset(options=dict(mask)) for it in (ours, expected)]
                assert_same(in_numpy(own[0][0]), in_numpy(own[1][0]))


# -------------------------------------------------------------------- a batch of one's own


class Batch(EnvBase):
    """TensorDict envs run by hand, row by row, inside one env; rows that a mask leaves out are garbage.

    It notes the masks that it is asked with.

    Args:
        envs: the rows.
        partial_step, partial_reset: the masks that it honours.
    """

    def __init__(self, envs: list[EnvBase], *, partial_step: bool = True, partial_reset: bool = True):
        super().__init__(batch_size=(len(envs),))
        self.rows = envs
        for kind in ("observation", "action", "reward", "done", "state"):
            name = f"full_{kind}_spec"
            setattr(self, name, stack_specs([getattr(env, name) for env in envs], 0))
        self.partial_step, self.partial_reset = partial_step, partial_reset
        self.asked: list[tuple[str, Any]] = []

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        mask = self.mask("_reset", tensordict)
        given = [None] * len(self.rows) if tensordict is None else tensordict.exclude("_reset").unbind(0)
        rows = [env._reset(td) if on else None for env, td, on in zip(self.rows, given, mask, strict=True)]
        return stacked(rows)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        mask = self.mask("_step", tensordict)
        given = tensordict.exclude("_step").unbind(0)
        return stacked([env._step(td) if on else None for env, td, on in zip(self.rows, given, mask, strict=True)])

    def mask(self, name: str, tensordict: TensorDictBase | None) -> list[bool]:
        mask = None if tensordict is None else tensordict.get(name, None)
        self.asked.append((name, None if mask is None else mask.tolist()))
        return [True] * len(self.rows) if mask is None else mask.tolist()

    def _set_seed(self, seed: int | None) -> None:
        for row, env in enumerate(self.rows):
            env.set_seed(None if seed is None else seed + row)


def stacked(rows: list[TensorDictBase | None]) -> TensorDictBase:
    """The rows as one, with ones where there is nothing."""
    garbage = torch.ones_like(next(row for row in rows if row is not None))
    made: TensorDictBase = torch.stack([garbage if row is None else row for row in rows])
    return made


IN_A_BATCH = (
    *("counting", "categorical", "nested", "stateful", "batch unlocked", "differentiable", "one-hot"),
    *("several actions", "infos", "dtypes", "hidden state"),
)


@pytest.mark.parametrize(("mode", "output"), FORMS, ids=form_id)
@pytest.mark.parametrize("name", IN_A_BATCH)
def test_a_batch_of_ones_own_gives_what_gymnasium_gives(name: str, mode: AutoresetMode, output: Any) -> None:
    ours = TensorDictVectorEnv(Batch([make() for make in makers(ENVS[name], 3)]), autoreset_mode=mode, output=output)
    theirs = oracle(ENVS[name], mode=mode)
    assert ours.observation_space == theirs.observation_space
    theirs.action_space.seed(0)
    ended = 0
    for seed in (7, 3):
        theirs.set_attr("root", None)
        assert_same(in_numpy(ours.reset(seed=seed)), in_numpy(theirs.reset(seed=seed)), f"reset({seed})")
        for step in range(12):
            actions = theirs.action_space.sample()
            our, their = ours.step(actions), theirs.step(actions)
            assert_same(outcome(our), outcome(their), f"step {step}")
            done = their[2] | their[3]
            ended += int(done.sum())
            if mode is DISABLED and done.any():
                own = [it.reset(options={"reset_mask": done.copy()}) for it in (ours, theirs)]
                assert_same(in_numpy(own[0]), in_numpy(own[1]), f"masked reset at {step}")
    assert ended >= 6


@pytest.mark.parametrize("kind", [StatefulEnv, HiddenStateEnv])
def test_a_batch_that_cannot_step_a_part_is_stepped_whole(kind: Maker) -> None:
    """The rows that had ended are stepped with the others, and then reset, from the state that they ended with."""
    env = Batch([kind(index) for index in range(3)], partial_step=False)
    ours, theirs = TensorDictVectorEnv(env), oracle(kind)
    theirs.action_space.seed(0)
    assert_same(in_numpy(ours.reset()), in_numpy(theirs.reset()))
    for _ in range(12):
        actions = theirs.action_space.sample()
        assert_same(outcome(ours.step(actions)), outcome(theirs.step(actions)))
    assert all(mask is None for name, mask in env.asked if name == "_step")
    assert [True, False, False] in [mask for name, mask in env.asked if name == "_reset"]


def test_a_batch_that_is_reset_whole() -> None:
    env = Batch([StatefulEnv(1) for _ in range(3)], partial_reset=False)
    for mode in (NEXT_STEP, SAME_STEP):
        with pytest.raises(ValueError, match=r"expected 'Disabled': Batch has partial_reset=False"):
            TensorDictVectorEnv(env, autoreset_mode=mode)
    ours, theirs = TensorDictVectorEnv(env, autoreset_mode=DISABLED), oracle(lambda _: StatefulEnv(1), mode=DISABLED)
    theirs.action_space.seed(0)
    for _ in range(3):
        assert_same(in_numpy(ours.reset()), in_numpy(theirs.reset()))
        for _ in range(3):
            actions = theirs.action_space.sample()
            our = ours.step(actions)
            assert_same(outcome(our), outcome(theirs.step(actions)))
        assert (our[2] | our[3]).all()
        with pytest.raises(ResetNeeded):
            ours.step(actions)


# -------------------------------------------------------------------- whose results are


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: mode.value)
@pytest.mark.parametrize("batch", [False, True], ids=["serial", "own batch"])
def test_what_is_done_to_results_does_not_reach_the_envs(batch: bool, mode: AutoresetMode, output: Any) -> None:
    """An observation that is an env's state too may be overwritten."""

    def made() -> EnvBase:
        envs = [StatefulEnv(index) for index in range(3)]
        return Batch(envs) if batch else SerialEnv(3, [lambda env=env: env for env in envs])  # type: ignore[misc]

    spoilt, kept = (TensorDictVectorEnv(made(), autoreset_mode=mode, output=output) for _ in range(2))
    spoilt.action_space.seed(0)
    assert_same(in_numpy(result := spoilt.reset(seed=0)), in_numpy(kept.reset(seed=0)))
    for _ in range(8):
        result[0]["position"][:] = 7
        result[0]["params"]["stiffness"][:] = 0
        actions = spoilt.action_space.sample()
        result = spoilt.step(actions)
        assert_same(outcome(result), outcome(kept.step(actions)))


def test_results_of_a_batch_that_does_not_copy_are_the_callers_own() -> None:
    """``copy`` of the vector env says so, whatever the batch does; without it memory is shared."""
    for mode in MODES[:2]:
        copied, shared = (
            TensorDictVectorEnv(SerialEnv(2, "CartPole-v1", copy=False), autoreset_mode=mode, copy=copy)
            for copy in (True, False)
        )
        for envs, stays in ((copied, True), (shared, False)):
            envs.reset(seed=0)
            first = envs.step([0, 1])[0]
            before = first.copy()
            second = envs.step([1, 0])[0]
            assert np.array_equal(first, before) is stays
            assert np.shares_memory(first, second) is not stays


def test_no_graph_grows_from_step_to_step() -> None:
    """Neither in results nor in the state that goes from root to root."""
    for env in (
        SerialEnv(2, makers(DifferentiableEnv, 2), use_buffers=False),
        Batch([make() for make in makers(DifferentiableEnv, 2)]),
    ):
        envs = TensorDictVectorEnv(env, output="torch")
        observations, _ = envs.reset()
        for _ in range(3):
            assert not any(leaf.requires_grad for leaf in observations.values())
            observations, rewards, *_ = envs.step(torch.zeros(2, 2, requires_grad=True))
            assert not rewards.requires_grad


# -------------------------------------------------------------------- state


@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: mode.value)
@pytest.mark.parametrize("batch", BATCHES)
def test_what_a_reset_in_a_step_is_shown(batch: str, mode: AutoresetMode) -> None:
    """Its env's row of the state, as natively; a reset of all begins with nothing, so that seeds repeat all."""
    envs = vector_env(HiddenStateEnv, 2, mode, batch)
    for _ in range(2):
        envs.reset(seed=0)
        totals = [int(envs.step([[0], [0]])[0]["doubled"][0, 0]) // 2 for _ in range(9)]
        dead = 2 if mode is NEXT_STEP else 0
        assert totals[-1] == 9 - dead
    envs.close()


def test_a_state_that_nobody_gives_is_named() -> None:
    envs = vector_env(RecurrentEnv)
    envs.reset()
    with pytest.raises(KeyError, match=r"hidden: missing, expected shape \[3, 2\]"):
        envs.step(envs.action_space.sample())


# -------------------------------------------------------------------- seeds


class FreshlySeededEnv(CountingTensorDictEnv):
    """Makes a generator of the seed, whatever it is, and a random one of None."""

    def _set_seed(self, seed: int | None) -> None:
        self.given = [*getattr(self, "given", []), seed]
        self.generator = torch.Generator()
        _ = self.generator.seed() if seed is None else self.generator.manual_seed(seed)


def test_envs_are_given_their_own_seeds_and_nothing_else() -> None:
    """None for an env leaves its generator alone, as does a reset that leaves the env out."""
    envs = vector_env(FreshlySeededEnv, mode=DISABLED)
    made = engine_of(envs.env).envs
    envs.reset(seed=4)
    envs.reset()
    envs.reset(seed=[7, None, 9])
    envs.reset(seed=20, options={"reset_mask": np.array([False, True, False])})
    assert [env.given for env in made] == [[4, 7], [5, 21], [6, 9]]


# -------------------------------------------------------------------- errors


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("kind", [CountingTensorDictEnv, StatefulEnv, HiddenStateEnv, InfoEnv, NestedEnv])
def test_an_env_that_raises_costs_nobody_else_anything(kind: Any, mode: AutoresetMode) -> None:
    """The others' step is in ``last_partial()``; their state goes on from it after the one is reset by mask."""

    class Raising(kind):
        error: Exception | None = None

        def _step(self, tensordict: TensorDictBase) -> Any:
            if self.error is not None:
                raise self.error
            return super()._step(tensordict)

    ours, theirs = vector_env(Raising, 3, mode), vector_env(kind, 3, mode)
    ours.action_space.seed(0)
    ours.reset(seed=0), theirs.reset(seed=0)
    actions = ours.action_space.sample()
    first = engine_of(ours.env).envs[0]
    first.error = OSError("out of order")
    with pytest.raises(OSError, match="out of order") as caught:
        ours.step(actions)
    assert caught.value.env_index == 0  # type: ignore[attr-defined]
    expected = theirs.step(actions)
    partial = ours.env.last_partial()  # type: ignore[attr-defined]
    assert partial["_failed"].tolist() == [True, False, False]
    assert partial["next", "reward"][1:].flatten().tolist() == expected[1][1:].tolist()
    with pytest.raises(ResetNeeded, match=r"envs \[0\] raised an error"):
        ours.step(actions)
    first.error = None
    mask = np.array([True, False, False])
    our = ours.reset(seed=1, options={"reset_mask": mask})
    assert_same(others(our[0]), others(expected[0]))
    own = np.zeros(1, np.bool_)
    for _ in range(3):
        actions = ours.action_space.sample()
        done = expected[2] | expected[3]
        if mode is DISABLED:
            for it, first_done in ((theirs, done[:1]), (ours, own)):
                mask = np.concatenate([first_done, done[1:]])
                if mask.any():
                    it.reset(options={"reset_mask": mask})
        result, expected = ours.step(actions), theirs.step(actions)
        own = (result[2] | result[3])[:1]
        assert_same(others(result[0]), others(expected[0]))
        assert_same([part[1:] for part in result[1:4]], [part[1:] for part in expected[1:4]])


def others(observations: Any) -> Any:
    """The rows but for the first."""
    if isinstance(observations, dict):
        return {key: others(value) for key, value in observations.items()}
    return observations[1:]


def test_a_reset_that_raises_leaves_the_others_their_step() -> None:
    envs = vector_env(lambda index: RaisingTensorDictEnv(index, (1, 9)), 2)
    envs.reset(seed=0)
    assert (lambda out: out[2] | out[3])(envs.step([[0], [0]])).tolist() == [True, False]
    first = engine_of(envs.env).envs[0]
    first.raise_in_reset = OSError("out of order")
    with pytest.raises(OSError, match="out of order"):
        envs.step([[0], [0]])
    assert envs.env.last_partial()["next", "count"][1].tolist() == [2]  # type: ignore[attr-defined]
    first.raise_in_reset = None
    assert envs.reset(options={"reset_mask": np.array([True, False])})[0]["count"].tolist() == [[0], [2]]
    assert envs.step([[0], [0]])[0]["count"].tolist() == [[1], [3]]


# -------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (TENSORDICT_ENVS["several keys"], r"got the reward keys \['reward', 'bonus'\], expected \['reward'\]"),
        (TENSORDICT_ENVS["rewards in groups"], r"got the reward keys .*'a', 'reward'.*, none in groups"),
        (TENSORDICT_ENVS["groups and root"], r"got the reward keys .*'agents', 'reward'.*, none in groups"),
        (TENSORDICT_ENVS["groups alone"], r"got the reward keys .*'referee', 'reward'.*, none in groups"),
        (TENSORDICT_ENVS["dynamic shape"], r"^points: got shape \[-1, 3\], expected sizes"),
        (TENSORDICT_ENVS["strings"], r"^text: no space for NonTensor"),
        (BatchedEnv, r"got SerialEnv of batch size \[2, 2\], expected one batch dim"),
        (
            TENSORDICT_ENVS["tasks"],
            r"envs with observations of their own.* at 'x' env 1 has .*\[2\].*, env 0 has .*\[1\]",
        ),
    ],
)
def test_envs_without_spaces_of_their_own_are_refused(make: Maker, error: str) -> None:
    with pytest.raises((ValueError, UnsupportedSpaceError), match=error):
        vector_env(make, 2)


def test_flags_in_groups_are_refused() -> None:
    """Also those of the shape that flags at the root have."""

    class Grouped(CountingTensorDictEnv):
        def __init__(self, index: int):
            super().__init__(index)
            self.done_spec = Composite(team=Composite(done=Binary(1, dtype=torch.bool)))

    with pytest.raises(ValueError, match=r"got the done keys \[\('team', 'done'\).*expected \['done', 'termin"):
        vector_env(Grouped, 2)


def test_envs_that_differ_in_their_domains_alone_are_refused() -> None:
    """Their results would be dense, but one space is not the other's."""

    class Ranged(CountingTensorDictEnv):
        def __init__(self, index: int, kind: str):
            super().__init__(index)
            if kind == "action":
                self.action_spec = Categorical(2 + index)
            else:
                self.observation_spec = Composite(count=Bounded(0, 9 + index, (1,), dtype=torch.int64))

    for kind, key in (("action", "action"), ("observation", "count")):
        error = f"got envs with {kind}s of their own, expected envs of one space: at '{key}' env 1 has .*, env 0 has "
        with pytest.raises(ValueError, match=error):
            vector_env(lambda index, kind=kind: Ranged(index, kind), 2)  # type: ignore[misc]


def test_a_selection_of_keys() -> None:
    """What is left out is in no space; a reward that is left out is missed."""
    for made, name in ((lambda: GymEnv(lambda: DictEnv((2, 3))), "count"), (NestedEnv, "clock")):
        whole = TensorDictVectorEnv(SerialEnv(2, made)).single_observation_space
        envs = TensorDictVectorEnv(SerialEnv(2, made, excluded_keys=[name]))
        rest = {key: part for key, part in whole.spaces.items() if key != name}  # type: ignore[attr-defined]
        assert envs.single_observation_space == spaces.Dict(rest)
        assert set(envs.reset()[0]) == set(rest)
        assert set(envs.step(envs.action_space.sample())[0]) == set(rest)
        with pytest.raises(ValueError, match=r"got the reward keys \[\], expected \['reward'\]"):
            TensorDictVectorEnv(SerialEnv(2, made, excluded_keys=["reward"]))


# -------------------------------------------------------------------- the envs themselves


def test_attributes_metadata_and_the_end() -> None:
    class Shown(CountingTensorDictEnv):
        metadata: ClassVar = {"render_modes": ["ansi"], "render_fps": 3}
        render_mode = "ansi"

        def render(self) -> str:
            return f"env {self.index}, step {self.t}"

        def plus(self, number: int, *, twice: bool = False) -> int:
            return self.index + number * (1 + twice)

    envs = vector_env(Shown, 2)
    assert envs.metadata == {"render_modes": ["ansi"], "render_fps": 3, "autoreset_mode": NEXT_STEP}
    assert envs.render_mode == "ansi"
    assert envs.call("plus", 3, twice=True) == (6, 7)
    envs.set_attr("label", ["a", "b"])
    assert envs.get_attr("label") == ("a", "b")
    envs.set_attr("label", 4)
    assert envs.get_attr("label") == (4, 4)
    with pytest.raises(ValueError, match="values: got 3 values, expected 2"):
        envs.set_attr("label", [1, 2, 3])
    envs.reset()
    envs.step([[0], [1]])
    assert envs.render() == ("env 0, step 1", "env 1, step 1")
    with pytest.raises(AttributeError, match="np_random"):
        _ = envs.np_random
    made = engine_of(envs.env).envs
    envs.close()
    envs.close()
    assert all(env.is_closed for env in made)
    with pytest.raises(ClosedEnvironmentError):
        envs.step([[0], [0]])
    plain = vector_env(CountingTensorDictEnv, 2)
    assert plain.metadata == {"autoreset_mode": NEXT_STEP}
    assert plain.render_mode is None


def test_options_go_to_the_reset_of_each_env() -> None:
    class Optional(CountingTensorDictEnv):
        def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> Any:
            self.given = kwargs
            return super()._reset(tensordict)

    envs = vector_env(Optional, 2)
    envs.reset(options={"level": 3})
    assert envs.get_attr("given") == ({"options": {"level": 3}},) * 2
    envs.reset(options={"level": 4, "reset_mask": np.array([False, True])})
    assert envs.get_attr("given") == ({"options": {"level": 3}}, {"options": {"level": 4}})
