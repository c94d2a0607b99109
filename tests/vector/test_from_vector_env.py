"""``from_vector_env``: a gymnasium vector env gives, as a TensorDict env, what the engine gives natively."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import zoo
from by_hand import assert_equal
from generated_envs import Plan, makers
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import vector as vector_wrappers
from hypothesis import given, settings
from hypothesis import strategies as st
from own_envs import OwnBatch
from space_strategies import any_spaces, batchable
from tensordict import TensorDict, TensorDictBase
from vector_classes import travels
from zoo import OBJECT_SPACES, CountingEnv, DictEnv, ObjectEnv, RaisingEnv

import gymbridge
from gymbridge import SerialEnv, valid_transitions
from gymbridge.envs import EnvBase, GymEnv, check_env_specs
from gymbridge.envs.tensordicts import leaf_paths
from gymbridge.errors import EnvOutputError, UnpicklableError, UnsupportedSpaceError
from gymbridge.spaces import register_space
from gymbridge.specs import Binary, Categorical, Composite, NonTensor, OneHot, Unbounded
from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv, TensorDictVectorEnv, from_vector_env

travels(zoo)

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
LENGTHS = ((3, 1, 5), (2, 4), (1, 2))
MAKERS: Sequence[Callable[[], gym.Env]] = [
    lambda: CountingEnv((3, 1, 5)),
    lambda: CountingEnv((2, 4)),
    lambda: CountingEnv((1, 2)),
]
INFO = Composite(
    {
        "t": Unbounded((), dtype=torch.int64),
        "begun": Unbounded((), dtype=torch.int64),
        "final": Unbounded((2,), dtype=torch.int64),
        ("nested", "half"): Unbounded((), dtype=torch.float64),
    }
)

Maker = Callable[[], gym.Env]
Makers = Sequence[Maker]
Make = Callable[[Makers, AutoresetMode], gym.vector.VectorEnv]


class Forwarding(gym.vector.VectorWrapper):
    """A wrapper of a user's, of which nobody knows what it keeps."""


class Repeats(gym.vector.VectorWrapper):
    """Refuses masks, as a vector env that knows nothing of them would ignore them."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        assert "reset_mask" not in (options or {})
        return self.env.reset(seed=seed, options=options)


def identity(observations: Any) -> Any:
    return observations


WITH_MASKS: dict[str, Make] = {
    "gymnasium sync": lambda fns, mode: gym.vector.SyncVectorEnv(fns, autoreset_mode=mode),
    "gymnasium sync, no copy": lambda fns, mode: gym.vector.SyncVectorEnv(fns, copy=False, autoreset_mode=mode),
    "gymnasium async": lambda fns, mode: gym.vector.AsyncVectorEnv(fns, autoreset_mode=mode),
    "gymnasium async, no copy": lambda fns, mode: gym.vector.AsyncVectorEnv(fns, copy=False, autoreset_mode=mode),
    "our sync": lambda fns, mode: SyncVectorEnv(fns, autoreset_mode=mode),
    "our sync, no copy": lambda fns, mode: SyncVectorEnv(fns, copy=False, autoreset_mode=mode),
    "our async": lambda fns, mode: AsyncVectorEnv(fns, autoreset_mode=mode, num_workers=2),
    "our async, torch": lambda fns, mode: AsyncVectorEnv(fns, autoreset_mode=mode, num_workers=2, output="torch"),
    "our async without shared memory": lambda fns, mode: AsyncVectorEnv(
        fns, shared_memory=False, autoreset_mode=mode, num_workers=1
    ),
    "our sync, torch, no copy": lambda fns, mode: SyncVectorEnv(fns, False, autoreset_mode=mode, output="torch"),
    "an engine": lambda fns, mode: TensorDictVectorEnv(
        SerialEnv(len(fns), [lambda fn=fn: GymEnv(fn(), info=INFO) for fn in fns]), autoreset_mode=mode
    ),
    "an engine, torch": lambda fns, mode: TensorDictVectorEnv(
        SerialEnv(len(fns), [lambda fn=fn: GymEnv(fn(), info=INFO) for fn in fns]),
        autoreset_mode=mode,
        output="torch",
        copy=False,
    ),
    "recorded": lambda fns, mode: vector_wrappers.RecordEpisodeStatistics(SyncVectorEnv(fns, autoreset_mode=mode)),
    "infos in lists": lambda fns, mode: vector_wrappers.DictInfoToList(
        gym.vector.SyncVectorEnv(fns, autoreset_mode=mode)
    ),
}
ALIKE = [
    *(
        pytest.param(make, mode, id=f"{name} {mode.value}")
        for name, make in WITH_MASKS.items()
        for mode in AutoresetMode
    ),
    *(
        pytest.param(
            lambda fns, mode: gym.vector.AsyncVectorEnv(fns, shared_memory=False, autoreset_mode=mode),
            mode,
            id=f"gymnasium async without shared memory {mode.value}",
        )
        for mode in (SAME_STEP, DISABLED)
    ),
    pytest.param(
        lambda fns, mode: Forwarding(gym.vector.SyncVectorEnv(fns, autoreset_mode=mode)),
        SAME_STEP,
        id="a user's wrapper SameStep",
    ),
    pytest.param(
        lambda fns, mode: vector_wrappers.TransformObservation(
            gym.vector.SyncVectorEnv(fns, autoreset_mode=mode), identity
        ),
        NEXT_STEP,
        id="transformed NextStep",
    ),
]
"""Vector envs without dead steps."""

DEAD: dict[str, Callable[[Makers], gym.vector.VectorEnv]] = {
    "a user's wrapper": lambda fns: Forwarding(gym.vector.SyncVectorEnv(fns)),
    "one that ignores masks": lambda fns: Repeats(gym.vector.SyncVectorEnv(fns, copy=False)),
    "a user's wrapper of ours": lambda fns: Forwarding(SyncVectorEnv(fns, output="torch")),
    "gymnasium async without shared memory": lambda fns: gym.vector.AsyncVectorEnv(fns, shared_memory=False),
    "recorded": lambda fns: vector_wrappers.RecordEpisodeStatistics(gym.vector.SyncVectorEnv(fns)),
}
WITH_DEAD_STEPS = pytest.mark.parametrize("make", DEAD.values(), ids=DEAD.keys())


def native(fns: Makers = MAKERS, **kwargs: Any) -> EnvBase:
    return SerialEnv(len(fns), [lambda fn=fn: GymEnv(fn(), **kwargs) for fn in fns])  # type: ignore[misc]


def policy(td: TensorDictBase) -> TensorDictBase:
    """Actions that follow from what the env shows, so that equal episodes are equal in every run."""
    shown = td["observation"]
    return td.set("action", ((shown[..., 0] + 2 * shown[..., 1]) % 3).long())


def mask_of(*rows: bool) -> torch.Tensor:
    return torch.tensor(rows)


# ---------------------------------------------------------------- as the engine natively


@pytest.mark.every(2, "make", "mode", first=1)
@pytest.mark.parametrize(("make", "mode"), ALIKE)
def test_steps_are_those_of_the_engine(make: Make, mode: AutoresetMode) -> None:
    """Observations, infos, rewards and flags of ``next`` and of the root, step by step; no dead steps."""
    ours, theirs = from_vector_env(make(MAKERS, mode), info=INFO), native(info=INFO)
    assert_same_specs(ours, theirs)
    ended = 0
    for seed in (3, None):
        if seed is not None:
            assert ours.set_seed(seed) == theirs.set_seed(seed) == seed + 3
        our, their = ours.reset(), theirs.reset()
        assert_equal(our, their, "reset")
        for step in range(25):
            our, our_root = ours.step_and_maybe_reset(policy(our))
            their, their_root = theirs.step_and_maybe_reset(policy(their))
            assert_equal(our, their, f"step {step}")
            assert_equal(our_root, their_root, f"root {step}")
            ended += int(our["next", "done"].sum())
            our, their = our_root, their_root
    assert ended > 20
    ours.close()
    theirs.close()


def assert_same_specs(ours: EnvBase, theirs: EnvBase) -> None:
    for kind in ("observation", "action", "reward", "done"):
        our, their = getattr(ours, f"full_{kind}_spec"), getattr(theirs, f"full_{kind}_spec")
        assert our == their, kind
    assert ours.batch_size == theirs.batch_size


@pytest.mark.every(2, "make", "mode")
@pytest.mark.parametrize(("make", "mode"), ALIKE)
def test_rollouts_are_those_of_the_engine(make: Make, mode: AutoresetMode) -> None:
    """Also the parts of one that is taken up again, with random actions from the same seed.

    A reset of all begins anew what a vector env of mode SAME_STEP has begun itself, so that episodes are counted on.
    """
    results = []
    for env in (from_vector_env(make(MAKERS, mode), info=INFO), native(info=INFO)):
        env.set_seed(5)
        first = env.rollout(12, break_when_any_done=False)
        root = env.step_mdp(first[:, -1])
        second = env.rollout(12, break_when_any_done=False, auto_reset=False, tensordict=root)
        third = env.rollout(12) if mode is not SAME_STEP else first
        results.append((first, second, third))
        env.close()
    for part, (our, their) in enumerate(zip(*results, strict=True)):
        assert_equal(our, their, f"rollout {part}")


@pytest.mark.every(2, "make", "mode", first=1)
@pytest.mark.parametrize(("make", "mode"), [it for it in ALIKE if it.values[0] in (*WITH_MASKS.values(),)])
def test_masked_resets_are_those_of_the_engine(make: Make, mode: AutoresetMode) -> None:
    """Of envs in an episode, of ended ones, of both, of none; what is not picked keeps what the caller has."""
    ours, theirs = from_vector_env(make(MAKERS, mode), info=INFO), native(info=INFO)
    for env in (ours, theirs):
        env.set_seed(1)
    our, their = ours.reset(), theirs.reset()
    masks = [
        mask_of(True, False, True),
        mask_of(False, True, True),
        mask_of(False, False, True),
        mask_of(True, True, True),
    ]
    for turn in range(16):
        our, their = ours.step(policy(our)), theirs.step(policy(their))
        assert_equal(our, their, f"step {turn}")
        our, their = ours.step_mdp(our), theirs.step_mdp(their)
        ended = their["done"].squeeze(-1)
        for mask in (ended | masks[turn % 4], torch.zeros_like(ended)):
            our, their = ours.reset(our.set("_reset", mask)), theirs.reset(their.set("_reset", mask))
            assert_equal(our, their, f"masked reset {turn}")
    ours.close()
    theirs.close()


def test_seeds_reach_the_envs_that_are_reset_next() -> None:
    """As natively: each env has its seed at its own next reset, by mask or not; a static seed is one for all."""
    for make in (lambda mode: gym.vector.SyncVectorEnv(MAKERS, autoreset_mode=mode), lambda mode: None):
        for mode in AutoresetMode:
            vector_env = make(mode)
            env = native() if vector_env is None else from_vector_env(vector_env)
            env.set_seed(1)
            root = env.reset()
            env.set_seed(10)
            _, root = env.step_and_maybe_reset(policy(root))  # env 2 ends
            env.reset(root.set("_reset", mask_of(True, False, False)))
            env.reset()
            env.set_seed(4, static_seed=True)
            env.reset()
            envs = vector_env.envs if vector_env is not None else env._inner_envs()
            seeds = [[given["seed"] for given in one.unwrapped.resets] for one in envs]
            by_env = [[seed for seed in row if seed is not None] for row in seeds]
            assert by_env == [[1, 10, 4], [2, 11, 4], [3, 12, 4]], (mode, seeds)


def test_a_reset_is_given_options_and_seeds() -> None:
    vector_env = gym.vector.SyncVectorEnv(MAKERS)
    env = from_vector_env(vector_env)
    options = {"level": 3}
    env.set_seed(2)
    root = env.reset(options=options, seed=7)
    assert [one.resets[-1] for one in vector_env.envs] == [{"seed": seed, "options": options} for seed in (7, 8, 9)]
    env.reset(root.set("_reset", mask_of(False, True, False)), options=options, seed=[1, 2, 3])
    assert [one.resets[-1]["seed"] for one in vector_env.envs] == [7, 2, 9]
    assert options == {"level": 3}
    with pytest.raises(ValueError, match="expected the mask at '_reset'"):
        env.reset(options={"reset_mask": np.array([True, False, False])})
    with pytest.raises(TypeError, match="unexpected keyword argument 'sede'"):
        env.reset(sede=1)


# ---------------------------------------------------------------- no transition is lost or twice


def transitions_by_hand(lengths: Sequence[int], number: int) -> list[tuple[int, int]]:
    """Episode and step of the first transitions of an env, whose episodes have these lengths in turn."""
    told: list[tuple[int, int]] = []
    episode = 0
    while len(told) < number:
        told += [(episode, t) for t in range(lengths[episode % len(lengths)])]
        episode += 1
    return told[:number]


def assert_every_transition_once(steps: TensorDictBase, vector_env: Any) -> None:
    """Fails unless a rollout ``[N, T]`` has every step that the envs took, once, in order, and nothing else."""
    for row, lengths in enumerate(LENGTHS):
        own = valid_transitions(steps[row])
        before, after = own["observation"], own["next", "observation"]
        told = [(int(episode), int(t)) for episode, t in before[:, :2].tolist()]
        assert told == transitions_by_hand(lengths, len(told)), f"env {row}"
        assert torch.equal(after[:, :2], before[:, :2] + torch.tensor([0.0, 1.0])), f"env {row}"
        assert torch.equal(after[:, 2], own["action"].float()), f"env {row}: the action that the env was given"
        assert torch.equal(own["next", "reward"][:, 0], 10 * after[:, 0] + after[:, 1]), f"env {row}"
        assert own["next", "done"][:, 0].tolist() == [t + 1 == lengths[e % len(lengths)] for e, t in told], f"env {row}"
        if isinstance(vector_env, (gym.vector.SyncVectorEnv, SyncVectorEnv)):
            assert [int(action) for action in vector_env.envs[row].actions] == own["action"].tolist()  # type: ignore[attr-defined]


@pytest.mark.every(2, "make", "mode")
@pytest.mark.parametrize(("make", "mode"), ALIKE)
def test_every_step_of_the_envs_is_one_transition(make: Make, mode: AutoresetMode) -> None:
    vector_env = make(MAKERS, mode)
    env = from_vector_env(vector_env)
    steps = env.rollout(40, break_when_any_done=False)
    assert "valid" not in steps["next"].keys()
    assert valid_transitions(steps).batch_size == (120,)
    assert_every_transition_once(steps, vector_env.unwrapped)
    env.close()


@WITH_DEAD_STEPS
def test_every_step_but_the_dead_ones_is_one_transition(make: Callable[[Makers], gym.vector.VectorEnv]) -> None:
    vector_env = make(MAKERS)
    env = from_vector_env(vector_env)
    steps = env.rollout(40, break_when_any_done=False)
    assert_every_transition_once(steps, vector_env.unwrapped)
    valid = steps["next", "valid"]
    assert valid.shape == (3, 40, 1)
    # one dead step after each episode's end, but for one in the last step
    assert int((~valid).sum()) == int(steps["next", "done"][:, :-1].sum()) > 20
    env.close()


@WITH_DEAD_STEPS
def test_a_dead_step(make: Callable[[Makers], gym.vector.VectorEnv]) -> None:
    """It starts from the final observation, its action does nothing, and it ends in the next episode's first."""
    env = from_vector_env(make(MAKERS))
    root = env.reset()
    assert root["valid"].all()
    td, root = env.step_and_maybe_reset(policy(root))
    assert td["next", "valid"].all()
    assert td["next", "done"].flatten().tolist() == root["done"].flatten().tolist() == [False, False, True]
    assert torch.equal(root["observation"], td["next", "observation"])
    td, root = env.step_and_maybe_reset(policy(root))
    assert td["done"].flatten().tolist() == [False, False, True]
    assert td["next", "valid"].flatten().tolist() == [True, True, False]
    assert td["next", "observation"][2, :3].tolist() == [1, 0, -1]
    assert td["next", "reward"].flatten().tolist() == [2, 2, 0]
    assert td["next", "done"].flatten().tolist() == [False, True, False]
    # step, and step_mdp by hand, are the same
    td = env.step(policy(root))
    assert td["next", "valid"].flatten().tolist() == [True, False, True]
    env.close()


@WITH_DEAD_STEPS
def test_masks_of_an_env_with_dead_steps(make: Callable[[Makers], gym.vector.VectorEnv]) -> None:
    """A reset of the envs that the vector env is about to reset leaves them waiting; of others it is refused."""
    env = from_vector_env(make(MAKERS))
    assert env.partial_reset is env.partial_step is False
    root = env.reset()
    _, root = env.step_and_maybe_reset(policy(root))
    for mask in (mask_of(True, False, False), mask_of(True, False, True)):
        with pytest.raises(ValueError, match=r"_reset: got envs \[0\] to reset alone, expected a reset of all"):
            env.reset(root.copy().set("_reset", mask))
    for mask in (mask_of(False, False, True), mask_of(False, False, False)):
        again = env.reset(root.copy().set("_reset", mask))
        assert_equal(again, root)
    with pytest.raises(ValueError, match="partial_step=False"):
        env.step(policy(root.copy()).set("_step", mask_of(True, True, False)))
    td, _ = env.step_and_maybe_reset(policy(root))
    assert td["next", "valid"].flatten().tolist() == [True, True, False]
    assert not env.reset(td.exclude("next").set("_reset", mask_of(True, True, True)))["done"].any()
    env.close()


def test_a_reset_of_all_does_away_with_what_was_about_to_be_reset() -> None:
    env = from_vector_env(Forwarding(gym.vector.SyncVectorEnv(MAKERS)))
    env.step(policy(env.reset()))
    assert env.step(policy(env.reset()))["next", "valid"].all()


def test_where_gymnasium_resets_again_the_step_is_dead() -> None:
    """Its ``AsyncVectorEnv`` without shared memory, right after a reset of all that followed an end."""
    env = from_vector_env(gym.vector.AsyncVectorEnv(MAKERS, shared_memory=False))
    env.step(policy(env.reset()))
    td = env.step(policy(env.reset()))
    assert td["next", "valid"].flatten().tolist() == [True, True, False]
    assert td["next", "observation"][:, :2].tolist() == [[1, 1], [1, 1], [2, 0]]
    env.close()


def test_same_step_resets_no_env_twice() -> None:
    """The first observation that came with the step is what a reset gives, by ``step_and_maybe_reset`` or by mask."""
    vector_env = gym.vector.SyncVectorEnv(
        [lambda: CountingEnv((1,)), lambda: CountingEnv((2,))], autoreset_mode=SAME_STEP
    )
    env = from_vector_env(vector_env)
    td = env.step(policy(env.reset()))
    root = env.step_mdp(td)
    with pytest.raises(ResetNeeded, match=r"envs \[0\] ended their episode"):
        env.step(policy(root.copy()))
    root = env.reset(root.set("_reset", mask_of(True, False)))
    assert root["observation"][:, :2].tolist() == [[1, 0], [0, 1]]
    td, root = env.step_and_maybe_reset(policy(root))  # both end
    assert td["next", "done"].all()
    assert root["observation"][:, :2].tolist() == [[2, 0], [1, 0]]
    td = env.step(policy(root))
    root = env.reset(env.step_mdp(td).set("_reset", mask_of(True, True)))  # env 1 is in the middle of its episode
    assert root["observation"][:, :2].tolist() == [[3, 0], [2, 0]]
    assert [len(one.resets) for one in vector_env.envs] == [4, 3]
    env.step(policy(root))
    assert env.reset()["observation"][:, :2].tolist() == [[5, 0], [3, 0]]  # asked for without a mask: a new one


def test_same_step_without_masks() -> None:
    """What the vector env has reset itself can be reset, nothing else; a seed waits for a reset of all."""
    vector_env = Repeats(gym.vector.SyncVectorEnv(MAKERS, autoreset_mode=SAME_STEP))
    env = from_vector_env(vector_env)
    root = env.step_mdp(env.step(policy(env.reset())))
    env.set_seed(4)
    with pytest.raises(ValueError, match=r"_reset: got envs \[0\] to reset alone, expected envs whose episode ended"):
        env.reset(root.copy().set("_reset", mask_of(True, False, True)))
    root = env.reset(root.set("_reset", mask_of(False, False, True)))
    assert root["observation"][2, :2].tolist() == [1, 0]
    env.reset()
    assert [one.resets[-1]["seed"] for one in vector_env.unwrapped.envs] == [4, 5, 6]


def test_disabled_without_masks_is_reset_whole() -> None:
    env = from_vector_env(Repeats(gym.vector.SyncVectorEnv(MAKERS, autoreset_mode=DISABLED)))
    root = env.reset()
    with pytest.raises(ValueError, match=r"is not known to honour masks.*from_vector_env\(\.\.\., reset_mask=True\)"):
        env.step_and_maybe_reset(policy(root))
    both = [lambda: CountingEnv((2,))] * 2
    env = from_vector_env(Repeats(gym.vector.SyncVectorEnv(both, autoreset_mode=DISABLED)))
    assert env.rollout(9, policy, break_when_any_done=False)["next", "done"].sum() == 8
    told = from_vector_env(Forwarding(gym.vector.SyncVectorEnv(MAKERS, autoreset_mode=DISABLED)), reset_mask=True)
    steps = told.rollout(40, break_when_any_done=False)
    assert_every_transition_once(steps, told.unwrapped)


def test_all_may_end_in_one_step() -> None:
    for mode in AutoresetMode:
        env = from_vector_env(gym.vector.SyncVectorEnv([lambda: CountingEnv((2,))] * 2, autoreset_mode=mode))
        steps = env.rollout(7, policy, break_when_any_done=False)
        assert steps["observation"][:, :, 0].tolist() == [[0, 0, 1, 1, 2, 2, 3]] * 2
        assert steps["next", "observation"][:, :, 1].tolist() == [[1, 2, 1, 2, 1, 2, 1]] * 2


# ---------------------------------------------------------------- CartPoleVectorEnv


def cart_poles(num_envs: int = 3) -> gym.vector.VectorEnv:
    return gym.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point", max_episode_steps=20)


def test_cart_poles_against_the_vector_env_by_hand() -> None:
    env, by_hand = from_vector_env(cart_poles()), cart_poles()
    check_env_specs(env, num_steps=50)
    env.set_seed(8)
    torch.manual_seed(0)
    steps = env.rollout(60, break_when_any_done=False)
    before, _ = by_hand.reset(seed=8)
    ended = np.zeros(3, np.bool_)
    dead = 0
    for step in steps.unbind(-1):
        assert step["observation"].numpy().tobytes() == before.tobytes()
        assert step["done"].squeeze(-1).tolist() == ended.tolist()
        after, reward, terminated, truncated, _ = by_hand.step(step["action"].numpy())
        assert step["next", "observation"].numpy().tobytes() == after.tobytes()
        assert step["next", "reward"].squeeze(-1).tolist() == reward.tolist()
        assert step["next", "terminated"].squeeze(-1).tolist() == terminated.tolist()
        assert step["next", "truncated"].squeeze(-1).tolist() == truncated.tolist()
        assert step["next", "valid"].squeeze(-1).tolist() == (~ended).tolist()
        dead += int(ended.sum())
        before, ended = after, terminated | truncated
    assert valid_transitions(steps).batch_size == (180 - dead,)
    assert dead > 5


def test_a_module_that_reads_tensors_is_not_given_valid() -> None:
    class Policy(torch.nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return (observation[..., 0] > 0).long()

    assert from_vector_env(cart_poles()).rollout(30, Policy(), break_when_any_done=False).batch_size == (3, 30)


# ---------------------------------------------------------------- spaces


SPACES = {**OBJECT_SPACES, "tuple": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}


@pytest.mark.every(3, "space", "kind", "mode")
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *((kind, mode) for kind in ("gymnasium sync", "ours") for mode in AutoresetMode),
        *(("gymnasium async", mode) for mode in (SAME_STEP, DISABLED)),  # without shared memory: it has dead steps else
    ],
)
def test_objects_and_tuples_as_natively(space: spaces.Space, mode: AutoresetMode, kind: str) -> None:
    fns = [lambda: ObjectEnv(space)] * 2
    vector_env: gym.vector.VectorEnv
    if kind == "gymnasium sync":
        vector_env = gym.vector.SyncVectorEnv(fns, autoreset_mode=mode)
    elif kind == "gymnasium async":
        vector_env = gym.vector.AsyncVectorEnv(fns, shared_memory=False, autoreset_mode=mode)
    else:
        vector_env = AsyncVectorEnv(fns, autoreset_mode=mode, num_workers=2)
    ours, theirs = from_vector_env(vector_env), native(fns)
    assert_same_specs(ours, theirs)
    for env in (ours, theirs):
        env.set_seed(2)
    our, their = ours.reset(), theirs.reset()
    assert_shown(our, their, "reset")
    for step in range(8):
        action = theirs.rand_action()
        our, our_root = ours.step_and_maybe_reset(our.update(action))
        their, their_root = theirs.step_and_maybe_reset(their.update(action.clone()))
        assert_shown(our, their, f"step {step}")
        assert_shown(our_root, their_root, f"root {step}")
        our, their = our_root, their_root
    ours.close()


def assert_shown(got: TensorDictBase, expected: TensorDictBase, where: str) -> None:
    """The same keys and values, also of data that hold arrays."""
    assert set(leaf_paths(got)) == set(leaf_paths(expected)), where
    for key in leaf_paths(expected):
        mine, theirs = got.get(key), expected.get(key)
        if isinstance(theirs, torch.Tensor):
            assert torch.equal(mine, theirs), f"{where}: {key}"
        else:
            assert (type(mine), repr(mine.tolist())) == (type(theirs), repr(theirs.tolist())), f"{where}: {key}"


@settings(max_examples=60)
@given(space=any_spaces().filter(batchable), mode=st.sampled_from(AutoresetMode), is_ours=st.booleans())
def test_generated_spaces_as_natively(space: spaces.Space, mode: AutoresetMode, is_ours: bool) -> None:
    fns = makers(Plan(space, lengths=(1, 3)), 2)
    make: Any = SyncVectorEnv if is_ours else gym.vector.SyncVectorEnv
    ours, theirs = from_vector_env(make(fns, autoreset_mode=mode)), native(fns)
    for env in (ours, theirs):
        env.set_seed(0)
    our, their = ours.reset(), theirs.reset()
    for step in range(5):
        action = torch.tensor([step % 3, 1])
        our, our_root = ours.step_and_maybe_reset(our.set("action", action))
        their, their_root = theirs.step_and_maybe_reset(their.set("action", action))
        assert_equal(our, their, f"step {step}")
        assert_equal(our_root, their_root, f"root {step}")
        our, their = our_root, their_root


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("categorical", [True, False])
def test_nested_observations_and_actions_as_natively(mode: AutoresetMode, categorical: bool) -> None:
    fns = [lambda: DictEnv((2, 1)), lambda: DictEnv((3,))]
    vector_env = gym.vector.SyncVectorEnv(fns, autoreset_mode=mode)
    ours = from_vector_env(vector_env, categorical_action_encoding=categorical)
    theirs = native(fns, categorical_action_encoding=categorical)
    assert_same_specs(ours, theirs)
    results = []
    for env in (ours, theirs):
        env.set_seed(0)
        results.append(env.rollout(12, break_when_any_done=False))
    assert_equal(*results)
    given = vector_env.envs[0].actions[0]  # type: ignore[attr-defined]
    assert given in vector_env.single_action_space


def test_one_hot_actions_and_those_of_dead_steps() -> None:
    """What is no one-hot vector is refused, but where nothing is done with it."""
    env = from_vector_env(Forwarding(gym.vector.SyncVectorEnv(MAKERS)), categorical_action_encoding=False)
    assert isinstance(env.action_spec, OneHot)
    root = env.step_mdp(env.step(env.rand_action(env.reset())))
    nothing = torch.zeros(3, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="expected exactly one True"):
        env.step(root.copy().set("action", nothing))
    only = nothing.clone()
    only[:2, 1] = True
    td = env.step(root.set("action", only))
    assert td["next", "observation"][:2, 2].tolist() == [1, 1]


# ---------------------------------------------------------------- dtypes, memory, devices


def test_rewards_are_float32_unless_told() -> None:
    env = from_vector_env(gym.vector.SyncVectorEnv(MAKERS))
    assert env.reward_spec.dtype is env.step(policy(env.reset()))["next", "reward"].dtype is torch.float32
    env = from_vector_env(gym.vector.SyncVectorEnv(MAKERS), reward_dtype=torch.float64)
    assert env.reward_spec.dtype is env.step(policy(env.reset()))["next", "reward"].dtype is torch.float64


@pytest.mark.every(2, "make", "mode", first=1)
@pytest.mark.parametrize(("make", "mode"), ALIKE)
def test_results_are_the_callers_own(make: Make, mode: AutoresetMode) -> None:
    """They stay as they are when the env goes on, and nothing that the caller writes into them comes back."""
    env = from_vector_env(make(MAKERS, mode), info=INFO)
    kept: list[tuple[TensorDictBase, TensorDictBase]] = []
    root = env.reset()
    for _ in range(10):
        td, root = env.step_and_maybe_reset(policy(root.clone()))
        kept += [(td, td.clone()), (root, root.clone())]
    for got, was in kept:
        assert_equal(got, was)
    for got, _ in kept:
        got["observation"].fill_(99)
    root = env.reset(TensorDict({"_reset": mask_of(False, False, False)}, [3]))
    assert not (root["observation"] == 99).any()
    env.close()


KNOWN = [gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv, SyncVectorEnv, AsyncVectorEnv]


@pytest.mark.parametrize("cls", KNOWN)
def test_copy_of_the_vector_env_may_be_set_later(cls: Any) -> None:
    """What it returns is the caller's own with ``copy`` alone."""
    vector_env = cls(MAKERS)
    env = from_vector_env(vector_env)
    root = env.reset()
    kept: list[tuple[TensorDictBase, TensorDictBase]] = []
    for copied in (False, False, True, True, False, False):
        vector_env.copy = copied
        td, root = env.step_and_maybe_reset(policy(root.clone()))
        kept += [(td, td.clone()), (root, root.clone())]
    for got, was in kept:
        assert_equal(got, was)
    env.close()


@pytest.mark.parametrize("cls", KNOWN)
@pytest.mark.parametrize("wrap", [lambda env: env, vector_wrappers.RecordEpisodeStatistics])
def test_the_mode_of_the_vector_env_is_not_to_be_set_later(cls: Any, wrap: Any) -> None:
    """Its ends would be taken for what they no longer are."""
    vector_env = cls(MAKERS)
    env = from_vector_env(wrap(vector_env))
    td = policy(env.reset())
    vector_env.autoreset_mode = SAME_STEP
    for call in (lambda: env.step(td), lambda: env.step_and_maybe_reset(td), env.reset):
        with pytest.raises(ValueError, match=r"autoreset_mode: got <AutoresetMode\.SAME_STEP: 'SameStep'>, expected <"):
            call()
    vector_env.autoreset_mode = NEXT_STEP
    env.step(td)
    env.close()


def test_torch_output_of_ours_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    vector_env = SyncVectorEnv(MAKERS, output="torch")
    env = from_vector_env(vector_env)
    root = env.reset()
    given: list[Any] = []
    step = vector_env.step

    def seen(actions: Any) -> Any:
        given.append(step(actions))
        return given[-1]

    monkeypatch.setattr(vector_env, "step", seen)
    td = env.step(policy(root))
    assert td["next", "observation"].data_ptr() == given[0][0].data_ptr()


def test_devices() -> None:
    env = from_vector_env(gym.vector.SyncVectorEnv(MAKERS), device="cpu")
    td = env.step(policy(env.reset()))
    assert td.device == td["next"].device == torch.device("cpu")
    check_env_specs(env)
    check_env_specs(from_vector_env(gym.vector.SyncVectorEnv(MAKERS)).to("cpu"))


@pytest.mark.cuda
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
def test_on_a_gpu(mode: AutoresetMode) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    on_gpu: dict[str, Any] = {"output": "torch", "device": "cuda", "autoreset_mode": mode}
    vector_envs = (gym.vector.SyncVectorEnv(MAKERS, autoreset_mode=mode), SyncVectorEnv(MAKERS, **on_gpu))
    expected = native(info=INFO)
    expected.set_seed(0)
    steps = expected.rollout(20, policy, break_when_any_done=False)
    for vector_env in vector_envs:
        env = from_vector_env(vector_env, info=INFO, device="cuda")
        check_env_specs(env)
        env = from_vector_env(vector_env, info=INFO, device="cuda")
        env.set_seed(0)
        got = env.rollout(20, policy, break_when_any_done=False)
        assert got.device is not None
        assert got.device.type == got["next", "observation"].device.type == "cuda"
        shown = ("observation", "reward", "done")
        for key in shown:
            assert torch.equal(got["next", key].cpu(), steps["next", key])
    dead = from_vector_env(Forwarding(gym.vector.SyncVectorEnv(MAKERS)), device="cuda")
    assert valid_transitions(dead.rollout(20, policy, break_when_any_done=False)).device.type == "cuda"
    here = from_vector_env(SyncVectorEnv(MAKERS, **on_gpu))
    assert here.rollout(5, break_when_any_done=False)["next", "observation"].device.type == "cpu"


# ---------------------------------------------------------------- specs


@pytest.mark.every(2, "make", "mode")
@pytest.mark.parametrize(("make", "mode"), ALIKE)
def test_what_comes_out_is_as_the_specs_say(make: Make, mode: AutoresetMode) -> None:
    env = from_vector_env(make(MAKERS, mode), info=INFO)
    check_env_specs(env, num_steps=20)
    fake = env.fake_tensordict()
    td = env.rand_step(env.reset())
    assert set(fake.keys(True, True)) == set(td.keys(True, True))
    env.close()


@WITH_DEAD_STEPS
def test_what_comes_out_with_dead_steps_is_as_the_specs_say(make: Callable[[Makers], gym.vector.VectorEnv]) -> None:
    env = from_vector_env(make(MAKERS), info=INFO)
    assert env.full_observation_spec["valid"] == Binary(1, (3, 1), dtype=torch.bool)
    check_env_specs(env, num_steps=20)
    env.close()


# ---------------------------------------------------------------- infos


class Wordy(CountingEnv):
    """Has infos that are no numbers, and one that is there at times."""

    def step(self, action: Any) -> Any:
        *outcome, info = super().step(action)
        info["word"] = f"w{self.t}"
        if self.t == 2:
            info["maybe"] = np.array([1.5, 2.5])
        return *outcome, info


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
def test_infos_that_are_no_numbers_and_not_always_there(mode: AutoresetMode) -> None:
    kept = Composite(word=NonTensor(()), maybe=Unbounded((2,), dtype=torch.float64), never=Unbounded(()))
    fns = [lambda: Wordy((3, 1)), lambda: Wordy((2,))]
    for vector_env in (
        gym.vector.SyncVectorEnv(fns, autoreset_mode=mode),
        vector_wrappers.DictInfoToList(gym.vector.SyncVectorEnv(fns, autoreset_mode=mode)),
        SyncVectorEnv(fns, autoreset_mode=mode),
    ):
        ours, theirs = from_vector_env(vector_env, info=kept), native(fns, info=kept)
        results = [env.rollout(9, policy, break_when_any_done=False) for env in (ours, theirs) if env.set_seed(0)]
        keys = ("word", "maybe", "never", ("_mask", "word"), ("_mask", "maybe"), ("_mask", "never"))
        for key in keys:
            our, their = (result["next", "info"].get(key) for result in results)
            if isinstance(our, torch.Tensor):
                assert torch.equal(our, their), key
            else:
                assert our.tolist() == their.tolist(), key


class Batched(gym.vector.VectorEnv):
    """A vector env of a user's own, that reuses its buffers and gives everything in batches, final ones too."""

    metadata = {"autoreset_mode": SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 2, final: bool = True, info: Any = None):
        self.num_envs, self.final, self.info = num_envs, final, info
        self.single_observation_space = spaces.Dict(x=spaces.Box(-np.inf, np.inf, (1,), np.float32))
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.x = np.zeros((num_envs, 1), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.x[:] = 0
        return {"x": self.x}, {}

    def step(self, actions: Any) -> Any:
        self.x += 1
        ended = self.x[:, 0] >= [2 + row for row in range(self.num_envs)]
        before = self.x.copy()
        self.x[ended] = 0
        infos: dict[str, Any] = {"speed": before[:, 0]} if self.info is None else {"speed": self.info}
        if ended.any() and self.final:
            infos |= {"final_obs": {"x": before}, "final_info": {"speed": before[:, 0] + 100}}
        return {"x": self.x}, np.ones(self.num_envs, np.float32), ended, np.zeros_like(ended), infos


def test_a_vector_env_of_a_users_own() -> None:
    env = from_vector_env(Batched(), info=Composite(speed=Unbounded(())))
    check_env_specs(env)
    steps = env.rollout(6, break_when_any_done=False)
    assert steps["x"][..., 0].tolist() == [[0, 1, 0, 1, 0, 1], [0, 1, 2, 0, 1, 2]]
    assert steps["next", "x"][..., 0].tolist() == [[1, 2, 1, 2, 1, 2], [1, 2, 3, 1, 2, 3]]
    assert steps["next", "info", "speed"].tolist() == [[1, 102, 1, 102, 1, 102], [1, 2, 103, 1, 2, 103]]
    assert steps["info", "speed"].tolist()[0] == [0, 1, 2, 1, 2, 1]
    assert steps["info", "_mask", "speed"].tolist()[0] == [False, True, True, True, True, True]


def test_what_a_vector_env_gives_against_its_spaces_is_told_by_name() -> None:
    env = from_vector_env(Batched(final=False))
    root = env.reset()
    root = env.step_mdp(env.step(env.rand_action(root)))
    with pytest.raises(EnvOutputError, match=r"^final_obs: missing in the infos of a step in which envs \[0\] ended"):
        env.step(env.rand_action(root))
    with pytest.raises(ResetNeeded, match=r"envs \[0, 1\] raised an error in an earlier call"):
        env.step(env.rand_action(root))
    env.step(env.rand_action(env.reset()))
    for info, told in (
        (np.array([0.5, 1.5]), None),
        (np.zeros((2, 2)), r"info\.speed: got shape \(2,\)"),
        (["a", "b"], r"info\.speed: got"),
        (3.0, r"info\.speed: got 3\.0, expected one for each of 2"),
        ([torch.zeros((), device="meta")] * 2, r"info\.speed: got a tensor of torch\.strided on device 'meta'"),
    ):
        env = from_vector_env(Batched(info=info), info=Composite(speed=Unbounded((), dtype=torch.float32)))
        td = env.rand_action(env.reset())
        if told is None:
            assert env.step(td)["next", "info", "speed"].tolist() == [0.5, 1.5]
        else:
            with pytest.raises(EnvOutputError, match=told):
                env.step(td)


class Odd(Batched):
    """Gives something that does not fit."""

    def __init__(self, name: str, value: Any):
        super().__init__()
        self.name, self.value = name, value

    def step(self, actions: Any) -> Any:
        made = dict(
            zip(("observation", "reward", "terminated", "truncated", "infos"), super().step(actions), strict=True)
        )
        return tuple({**made, self.name: self.value}.values())


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("observation", {"x": np.zeros((3, 1))}, r"x: got shape \(3, 1\), expected \(2, 1\)"),
        ("observation", {"x": np.array([["a"], ["b"]])}, "x: got dtype <U1, expected float32"),
        ("observation", {"y": 1}, "observation: the root lacks the item 'x'"),
        ("observation", {"x": torch.zeros(2)}, r"x: got shape \(2,\)"),
        ("reward", np.zeros((2, 1)), r"reward: got shape \(2, 1\), expected \(2,\)"),
        ("reward", ["a", "b"], "reward: got"),
        ("terminated", np.zeros(3, np.bool_), r"terminated: got shape \(3,\)"),
        ("truncated", [0.5, 1.0], "truncated: got shape"),
        ("observation", {"x": torch.zeros(2, 1, device="meta")}, r"x: got a tensor of torch\.strided on device 'meta'"),
        ("observation", {"x": torch.zeros(2, 1).to_sparse()}, r"x: got a tensor of torch\.sparse_coo"),
        (
            "reward",
            torch.ones(2, dtype=torch.complex64),
            r"reward: got dtype torch\.complex64, expected numbers without",
        ),
        ("reward", torch.ones(2).to_sparse(), r"reward: got a tensor of torch\.sparse_coo"),
        ("terminated", torch.zeros(2, dtype=torch.bool, device="meta"), "terminated: got a tensor of"),
        ("infos", 3, r"info: got 3, expected a dict, or one for each of 2"),
        ("infos", [{"speed": 1.0}], r"info: got \[\{'speed': 1\.0\}\], expected a dict, or one for each of 2"),
        (
            "infos",
            {"speed": np.ones(2), "_speed": np.array([True])},
            r"info\._speed: got shape \(1,\), expected \(2,\)",
        ),
        (
            "infos",
            {"speed": np.ones(2), "_speed": np.ones(3, bool)},
            r"info\._speed: got shape \(3,\), expected \(2,\)",
        ),
    ],
)
def test_outputs_that_do_not_fit(name: str, value: Any, told: str) -> None:
    env = from_vector_env(Odd(name, value), info=Composite(speed=Unbounded(())))
    td = env.rand_action(env.reset())
    with pytest.raises(EnvOutputError, match=told):
        env.step(td)


def test_outputs_of_other_kinds_that_fit() -> None:
    """Tensors, lists and other dtypes of a kind."""
    for name, value in (
        ("observation", {"x": torch.full((2, 1), 3, dtype=torch.float64)}),
        ("observation", {"x": [[3.0], [3.0]]}),
        ("observation", {"x": np.full((2, 1), 3.0)}),
    ):
        env = from_vector_env(Odd(name, value))
        assert env.step(env.rand_action(env.reset()))["next", "x"].tolist() == [[3], [3]]
    env = from_vector_env(Odd("reward", torch.tensor([1, 2])))
    assert env.step(env.rand_action(env.reset()))["next", "reward"].tolist() == [[1], [2]]
    for reward in (np.array([1, 2], ">f8"), np.array([1, 2], np.longdouble), np.array([1, 2], ">i2")):
        env = from_vector_env(Odd("reward", reward))
        assert env.step(env.rand_action(env.reset()))["next", "reward"].tolist() == [[1], [2]]
    env = from_vector_env(Odd("infos", None), info=Composite(speed=Unbounded(())))
    assert env.step(env.rand_action(env.reset()))["next", "info", "_mask", "speed"].tolist() == [False, False]
    env = from_vector_env(Odd("truncated", torch.tensor([1, 0])))
    td = env.rand_action(env.reset())
    with pytest.raises(EnvOutputError, match="final_obs: missing"):
        env.step(td)


# ---------------------------------------------------------------- wrappers


def test_wrappers_that_lose_something_in_a_masked_reset_have_dead_steps() -> None:
    base = gym.vector.SyncVectorEnv
    for wrapped, is_dead in (
        (vector_wrappers.NormalizeObservation(base(MAKERS)), True),
        (vector_wrappers.NormalizeReward(base(MAKERS)), True),
        (vector_wrappers.RecordEpisodeStatistics(base(MAKERS)), True),
        (vector_wrappers.RecordEpisodeStatistics(SyncVectorEnv(MAKERS)), False),
        (vector_wrappers.ClipReward(base(MAKERS), -1, 1), False),
        (vector_wrappers.DictInfoToList(vector_wrappers.ClipReward(base(MAKERS), -1, 1)), False),
    ):
        env = from_vector_env(wrapped)
        assert ("valid" in env.full_observation_spec.keys()) == is_dead, wrapped
        check_env_specs(env)
        steps = env.rollout(20, break_when_any_done=False)
        num_dead = int(steps["next", "done"][:, :-1].sum()) if is_dead else 0
        assert valid_transitions(steps).batch_size == (60 - num_dead,)


def test_a_wrapper_that_gives_tensors() -> None:
    pytest.importorskip("array_api_compat")
    ours, theirs = from_vector_env(vector_wrappers.NumpyToTorch(gym.vector.SyncVectorEnv(MAKERS))), native()
    check_env_specs(ours)
    ours = from_vector_env(vector_wrappers.NumpyToTorch(gym.vector.SyncVectorEnv(MAKERS)))
    results = []
    for env in (ours, theirs):
        env.set_seed(0)
        results.append(env.rollout(20, policy, break_when_any_done=False))
    assert_equal(*results)


@pytest.mark.parametrize("key", ["episode", "own"])
@pytest.mark.parametrize(  # older lists want a mask at each entry of a dict, which older statistics do not have
    "in_lists", [False, pytest.param(True, marks=pytest.mark.newest_gymnasium)]
)
@pytest.mark.parametrize(
    ("of_ours", "mode"),
    [
        (True, NEXT_STEP),
        (False, NEXT_STEP),
        # older wrappers count the first step of an episode as none
        *(pytest.param(*case, marks=pytest.mark.newest_gymnasium) for case in [(True, SAME_STEP), (False, SAME_STEP)]),
        pytest.param(True, DISABLED, marks=pytest.mark.newest_gymnasium),
    ],
)
def test_recorded_statistics_are_those_of_the_episodes(
    of_ours: bool, mode: AutoresetMode, in_lists: bool, key: str
) -> None:
    """Length and return of each episode stand at its end, over masked resets, dead steps and SAME_STEP alike."""
    vector_env: Any = (SyncVectorEnv if of_ours else gym.vector.SyncVectorEnv)(MAKERS, autoreset_mode=mode)
    vector_env = vector_wrappers.RecordEpisodeStatistics(vector_env, stats_key=key)
    if in_lists:
        vector_env = vector_wrappers.DictInfoToList(vector_env)
    kept = Composite({(key, "l"): Unbounded((), dtype=torch.int64), (key, "r"): Unbounded(())})
    env = from_vector_env(vector_env, info=kept)
    for row, lengths in enumerate(LENGTHS):
        own = valid_transitions(env.rollout(30, policy, break_when_any_done=False)[row])
        assert not own["info", "_mask", key, "l"].any()
        assert not own["info", key, "l"].any()
        ended = own["next", "done"][:, 0]
        assert torch.equal(own["next", "info", "_mask", key, "l"], ended)
        assert set(own["next", "info", key, "l"][ended].tolist()) == set(lengths)
        returns, total = [], 0.0
        for reward, end in zip(own["next", "reward"][:, 0].tolist(), ended.tolist(), strict=True):
            total += reward
            if end:
                returns.append(total)
                total = 0.0
        assert own["next", "info", key, "r"][ended].tolist() == pytest.approx(returns)


def test_specs_are_those_of_the_outermost_wrapper() -> None:
    vector_env = vector_wrappers.FlattenObservation(gym.vector.SyncVectorEnv([lambda: DictEnv((2,))] * 2))
    env = from_vector_env(vector_env)
    assert [*env.full_observation_spec.keys(True, True)] == ["observation"]
    assert env.reset()["observation"].shape == (2, *vector_env.single_observation_space.shape)
    scaled = vector_wrappers.RescaleAction(
        gym.vector.SyncVectorEnv([lambda: CountingEnv((3,), continuous=True)] * 2), 0.0, 10.0
    )
    env = from_vector_env(scaled)
    assert env.action_spec.high.max() == 10
    td = env.step(env.reset().set("action", torch.full((2, 2), 10.0)))
    assert td["next", "observation"][:, 2].tolist() == [2, 2]


class OwnStep(gym.vector.SyncVectorEnv):
    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)


def test_a_subclass_with_a_reset_of_its_own_is_not_taken_to_honour_masks() -> None:
    assert "valid" in from_vector_env(OwnStep(MAKERS)).full_observation_spec.keys()
    assert "valid" not in from_vector_env(OwnStep(MAKERS), reset_mask=True).full_observation_spec.keys()
    assert "valid" in from_vector_env(gym.vector.SyncVectorEnv(MAKERS), reset_mask=False).full_observation_spec.keys()


# ---------------------------------------------------------------- modes


class Silent(Batched):
    metadata: dict[str, Any] = {}  # noqa: RUF012


def test_the_mode_is_asked_for_where_the_vector_env_does_not_tell_it() -> None:
    with pytest.raises(ValueError, match=r"autoreset_mode: .*Silent.* says nothing of it at metadata"):
        from_vector_env(Silent())
    for told in (SAME_STEP, "SameStep"):
        assert from_vector_env(Silent(), autoreset_mode=told).autoreset_mode is SAME_STEP
    with pytest.raises(ValueError, match="autoreset_mode: got 'Same', expected an AutoresetMode or one of"):
        from_vector_env(Silent(), autoreset_mode="Same")


def test_a_mode_that_is_not_the_vector_envs_own_is_refused() -> None:
    with pytest.raises(ValueError, match=r"autoreset_mode: got 'NextStep', expected 'SameStep', which .*Batched.* has"):
        from_vector_env(Batched(), autoreset_mode=NEXT_STEP)
    assert from_vector_env(Batched(), autoreset_mode=SAME_STEP).autoreset_mode is SAME_STEP


def test_the_mode_of_a_known_class_is_its_own() -> None:
    """gymnasium 1.1 writes the mode into metadata that all vector envs of a class of envs share."""
    vector_env = gym.vector.SyncVectorEnv(MAKERS, autoreset_mode=SAME_STEP)
    vector_env.metadata = {**vector_env.metadata, "autoreset_mode": NEXT_STEP}
    assert from_vector_env(vector_env).autoreset_mode is SAME_STEP


# ---------------------------------------------------------------- the vector env itself


def test_public_attributes_are_those_of_the_vector_env() -> None:
    vector_env = gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    env = from_vector_env(vector_env)
    assert env.env is vector_env  # type: ignore[attr-defined]
    env.set_seed(3)
    env.reset()
    assert env.np_random_seed == (3, 4)
    assert env.num_envs == 2
    assert env.spec is vector_env.spec
    assert env.get_attr("gravity") == (9.8, 9.8)
    with pytest.raises(AttributeError, match="GymVectorEnv has no attribute 'nonsense', and SyncVectorEnv"):
        _ = env.nonsense
    with pytest.raises(AttributeError):
        _ = env._nonsense
    cart_pole = from_vector_env(cart_poles())
    cart_pole.set_seed(5)
    cart_pole.reset()
    assert cart_pole.np_random_seed == 5
    with pytest.raises(ValueError, match=r"static_seed: .* takes one seed for all its envs"):
        cart_pole.set_seed(5, static_seed=True)


def test_close() -> None:
    vector_env = gym.vector.SyncVectorEnv(MAKERS)
    with from_vector_env(vector_env) as env:
        env.reset()
    assert vector_env.closed
    assert [one.closed for one in vector_env.envs] == [1, 1, 1]
    env.close(raise_if_closed=False)
    assert [one.closed for one in vector_env.envs] == [1, 1, 1]
    with pytest.raises(RuntimeError, match="closed already"):
        env.close()
    for call in (env.reset, lambda: env.step(TensorDict({}, [3]))):
        with pytest.raises(ClosedEnvironmentError):
            call()


def test_pickling() -> None:
    """An env goes with its vector env, if that can be pickled; if not, the error names it."""
    env = from_vector_env(cart_poles())
    env.set_seed(2)
    again = pickle.loads(pickle.dumps(env))
    assert_equal(again.reset(), env.reset())
    assert copy.deepcopy(env).batch_size == (3,)
    workers = from_vector_env(gym.vector.AsyncVectorEnv(MAKERS[:1]))
    with pytest.raises(UnpicklableError, match=r"GymVectorEnv: AsyncVectorEnv.* cannot be pickled"):
        pickle.dumps(workers)
    workers.close()


@pytest.mark.parametrize("make", [*WITH_MASKS.values(), lambda fns, mode: Forwarding(gym.vector.SyncVectorEnv(fns))])
def test_batches_of_it(make: Make) -> None:
    env = SerialEnv(2, lambda: from_vector_env(make(MAKERS, NEXT_STEP)))
    steps = env.rollout(20, break_when_any_done=False)
    assert steps.batch_size == (2, 3, 20)
    for row in range(2):
        assert_every_transition_once(steps[row], None)
    env.close()


def test_there_and_back_again_needs_a_mode_that_steps_no_ended_env() -> None:
    env = from_vector_env(gym.vector.SyncVectorEnv(MAKERS))
    with pytest.raises(ValueError, match=r"autoreset_mode: got 'NextStep', expected 'SameStep' or 'Disabled': GymVec"):
        TensorDictVectorEnv(env)
    env.close()


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
def test_there_is_no_way_back_with_dead_steps(mode: AutoresetMode) -> None:
    """No mode that one error proposes is refused by the next."""
    env = from_vector_env(cart_poles(2))
    with pytest.raises(
        ValueError, match=r"env: got from_vector_env\(...\) of CartPoleVectorEnv.*, expected that vector"
    ):
        TensorDictVectorEnv(env, autoreset_mode=mode)
    env.close()


def test_there_and_back_again() -> None:
    """The gymnasium face of what was one."""
    back = TensorDictVectorEnv(from_vector_env(gym.vector.SyncVectorEnv(MAKERS)), autoreset_mode=SAME_STEP)
    there = SyncVectorEnv(MAKERS, autoreset_mode=SAME_STEP)
    assert back.reset(seed=0)[0].tolist() == there.reset(seed=0)[0].tolist()
    for _ in range(20):
        our, their = back.step(np.array([0, 1, 2])), there.step(np.array([0, 1, 2]))
        for one, other in zip(our[:4], their[:4], strict=True):
            assert one.tolist() == other.tolist()


class Rewarding(CountingEnv):
    """Rewards just over the middle between two numbers: by way of float32 they are the middle."""

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, (1 + 2**-11 if action == 0 else 1 + 2**-8) + 2**-40, *rest


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_rewards_are_rounded_as_natively(dtype: torch.dtype) -> None:
    ours = from_vector_env(gym.vector.SyncVectorEnv([Rewarding] * 2), reward_dtype=dtype)
    native = SerialEnv(2, lambda: GymEnv(Rewarding, reward_dtype=dtype))
    rewards = []
    for env in (ours, native):
        td = env.reset().set("action", torch.tensor([0, 1]))
        rewards.append(env.step(td)["next", "reward"])
        env.close()
    assert rewards[0].dtype is dtype
    assert rewards[0].equal(rewards[1])


# ---------------------------------------------------------------- faults and misuse


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
def test_an_env_that_raises(mode: AutoresetMode) -> None:
    """Its error comes through, and all envs are to be reset before any goes on."""
    vector_env = gym.vector.SyncVectorEnv([RaisingEnv] * 2, autoreset_mode=mode)
    env = from_vector_env(vector_env)
    root = env.reset()
    vector_env.envs[1].raise_in_step = KeyError("oh")
    with pytest.raises(KeyError, match="oh"):
        env.step(policy(root.copy()))
    vector_env.envs[1].raise_in_step = None
    with pytest.raises(ResetNeeded, match=r"envs \[0, 1\] raised an error"):
        env.step(policy(root.copy()))
    with pytest.raises(ResetNeeded, match=r"leaves out envs \[0\]: .*; reset all"):
        env.reset(root.copy().set("_reset", mask_of(False, True)))
    vector_env.envs[1].raise_in_reset = KeyError("again")
    with pytest.raises(KeyError, match="again"):
        env.reset()
    vector_env.envs[1].raise_in_reset = None
    assert env.step(policy(env.reset()))["next", "reward"].min() > 0


def test_a_call_in_the_middle_of_another_is_refused() -> None:
    class CallsBack(CountingEnv):
        outer: EnvBase

        def step(self, action: Any) -> Any:
            self.outer.reset()
            return super().step(action)

    vector_env = gym.vector.SyncVectorEnv([CallsBack] * 2)
    env = from_vector_env(vector_env)
    root = env.reset()
    vector_env.envs[1].outer = env  # type: ignore[attr-defined]
    vector_env.envs[0].outer = native()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="reset: refused while a call of step is under way"):
        env.step(policy(root))


def test_misuse() -> None:
    for wrong in (gym.make("CartPole-v1"), "CartPole-v1", None):
        with pytest.raises(TypeError, match=r"vector_env: got .*, expected a gymnasium\.vector\.VectorEnv"):
            from_vector_env(wrong)  # type: ignore[arg-type]
    vector_env = gym.vector.SyncVectorEnv(MAKERS)
    with pytest.raises(TypeError, match="info: got 'auto'"):
        from_vector_env(vector_env, info="auto")  # type: ignore[arg-type]
    for no_specs in (3, {"prob": Unbounded(())}):
        with pytest.raises(TypeError, match=r"(?s)info: got .*, expected None or a Composite"):  # and no 'auto'
            from_vector_env(vector_env, info=no_specs)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="reward_dtype: got"):
        from_vector_env(vector_env, reward_dtype=torch.int64)
    with pytest.raises(TypeError, match="reset_mask: got 1, expected True, False or None"):
        from_vector_env(vector_env, reset_mask=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="device: got meta"):
        from_vector_env(vector_env, device="meta")
    with pytest.raises(ResetNeeded, match=r"envs \[0, 1, 2\] have not been reset yet"):
        from_vector_env(vector_env).rand_step()
    env = from_vector_env(vector_env)
    root = env.reset()
    for action, told in (
        (torch.zeros(3, 1, dtype=torch.int64), "action: got shape"),
        (torch.zeros(3), "action: got dtype torch.float32"),
    ):
        with pytest.raises(ValueError, match=told):
            env.step(root.copy().set("action", action))
    with pytest.raises(KeyError, match="action: missing"):
        env.step(root.copy())
    assert env.step(policy(root))["next", "reward"].shape == (3, 1)  # nothing was stepped before
    workers = gym.vector.AsyncVectorEnv(MAKERS[:1], shared_memory=False)
    with pytest.raises(ValueError, match="resets an env whose episode has ended once more"):
        from_vector_env(workers, reset_mask=True)
    workers.close()


class Compass(spaces.Space):
    """A space of a user's own, with a translation."""

    def __init__(self, seed: Any = None):
        super().__init__(None, None, seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "north" if self.np_random.random() < 0.5 else "south"

    def contains(self, x: Any) -> bool:
        return x in ("north", "south")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compass)


register_space(
    Compass,
    to_spec=lambda space: Categorical(2),
    to_space=lambda spec: Compass(),
    to_tensor=lambda space, sample: torch.tensor(["north", "south"].index(sample)),
    from_tensor=lambda space, tensor: ["north", "south"][int(tensor)],
)


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
def test_a_space_of_a_users_own_as_natively(mode: AutoresetMode) -> None:
    fns = [lambda: ObjectEnv(spaces.Dict(to=Compass(), x=spaces.Discrete(3)))] * 2
    results = []
    for env in (from_vector_env(gym.vector.SyncVectorEnv(fns, autoreset_mode=mode)), native(fns)):
        env.set_seed(3)
        results.append(env.rollout(9, break_when_any_done=False))
    assert results[0]["to"].dtype is torch.int64
    assert_equal(*results)


class Custom(spaces.Space):
    def __init__(self) -> None:
        super().__init__(None, None)


def test_a_space_without_a_translation_is_named() -> None:
    vector_env = Batched()
    vector_env.single_observation_space = Custom()
    with pytest.raises(UnsupportedSpaceError, match="observation: no translation for"):
        from_vector_env(vector_env)


def test_a_users_batched_env_and_back() -> None:
    """Over a TensorDict env of a user's own, through its gymnasium face, the steps are its own."""
    own = OwnBatch(MAKERS)
    own.set_seed(0)
    expected = own.rollout(12, policy, break_when_any_done=False)
    env = from_vector_env(TensorDictVectorEnv(OwnBatch(MAKERS)))
    env.set_seed(0)
    got = env.rollout(12, policy, break_when_any_done=False)
    assert_equal(got, expected)


def test_public_names_are_imported_when_they_are_used() -> None:
    assert gymbridge.valid_transitions is valid_transitions
    assert gymbridge.vector.from_vector_env is from_vector_env
