"""``TensorDictVectorEnv`` over batched envs of a user's own: each kind of spec works to the bit, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from agreement import assert_same
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDictBase

from gymbridge.envs import EnvBase
from gymbridge.errors import EnvOutputError, UnsupportedSpaceError
from gymbridge.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
    stack_specs,
)
from gymbridge.vector import TensorDictVectorEnv

MODES = tuple(AutoresetMode)
NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
N = 3
FORMS = [
    *((NEXT_STEP, "numpy", True), (SAME_STEP, "numpy", False), (DISABLED, "numpy", True)),
    *((NEXT_STEP, "torch", False), (SAME_STEP, "torch", True), (DISABLED, "torch", False)),
]
WORD = spaces.Text(4, min_length=1, charset="abc")


def of_batch(**parts: Any) -> Composite:
    return Composite(parts, shape=torch.Size([N]))


def drawn(spec: TensorSpec, row: int, episode: int, t: int) -> Any:
    """A value of one row, the same each time."""
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(int(1000 * row + 100 * episode + t))  # a tenth of the time of torch.manual_seed
    value = spec.rand()
    torch.set_rng_state(state)
    return value


class Drawing(EnvBase):
    """Shows values drawn for its row, episode and step; row ``i`` ends after ``i + 2`` steps.

    It keeps what it was given and gave.

    Args:
        observations, actions, rewards, flags, states: its specs, where they are not the usual ones.
        partial_step, partial_reset: the masks that it honours.
        changed: changes what it gives.
        options: of an ``EnvBase``.
    """

    def __init__(
        self,
        observations: Composite | None = None,
        actions: TensorSpec | None = None,
        rewards: TensorSpec | None = None,
        flags: Composite | None = None,
        *,
        partial_step: bool = True,
        partial_reset: bool = True,
        changed: Callable[[TensorDictBase], TensorDictBase] = lambda made: made,
        **options: Any,
    ):
        super().__init__(**{"batch_size": (N,), **options})
        self.observation_spec = of_batch(x=Unbounded((N, 2))) if observations is None else observations
        if isinstance(actions, Composite):
            self.full_action_spec = actions
        else:
            self.action_spec = Bounded(-1, 1, (N, 1)) if actions is None else actions
        if isinstance(rewards, Composite):
            self.full_reward_spec = rewards
        elif rewards is not None:
            self.reward_spec = rewards
        if flags is not None:
            self.done_spec = flags
        self.partial_step, self.partial_reset = partial_step, partial_reset
        self.changed = changed
        self.episodes, self.steps = [-1] * N, [0] * N
        self.given: list[TensorDictBase] = []
        self.gave: TensorDictBase | None = None

    def _reset(self, td: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        mask = td["_reset"].tolist() if td is not None and "_reset" in td.keys() else [True] * N
        for row in np.flatnonzero(mask):
            self.episodes[row], self.steps[row] = self.episodes[row] + 1, 0
        return self.made(stacked([self.observation(row) for row in range(N)]))

    def _step(self, td: TensorDictBase) -> TensorDictBase:
        self.given.append(td.clone())
        mask = td["_step"].tolist() if "_step" in td.keys() else [True] * N
        for row in np.flatnonzero(mask):
            self.steps[row] += 1
        made = stacked([self.observation(row) for row in range(N)])
        made.set("reward", stacked_leaves([self.reward(row) for row in range(N)]))
        return self.made(made.set("terminated", torch.tensor([[self.steps[row] >= row + 2] for row in range(N)])))

    def made(self, made: TensorDictBase) -> TensorDictBase:
        self.gave = self.changed(made if self.device is None else made.to(self.device))
        return self.gave

    def observation(self, row: int) -> Any:
        return drawn(self.of_row("observation", row), row, self.episodes[row], self.steps[row])

    def reward(self, row: int) -> Any:
        return drawn(self.of_row("reward", row), row, self.episodes[row], self.steps[row])["reward"]

    @cache  # noqa: B019 - the env does not outlive its test by long
    def of_row(self, kind: str, row: int) -> TensorSpec:
        spec: Composite = getattr(self, f"full_{kind}_spec")
        return spec[row].to("cpu")  # whatever the device, the values are the same

    def _set_seed(self, seed: int | None) -> None:
        pass


def stacked(rows: list[Any]) -> TensorDictBase:
    made: TensorDictBase = torch.stack(rows)
    return made


def stacked_leaves(rows: list[Any]) -> Any:
    return torch.stack(rows)


class Expected:
    """Where each row stands, told apart from the env."""

    def __init__(self, mode: AutoresetMode):
        self.mode = mode
        self.episodes, self.steps = [0] * N, [0] * N

    def step(self) -> tuple[list[bool], list[bool], list[tuple[int, int]]]:
        """Which rows were reset instead of stepped, which ended, and where each stood after its step."""
        reset = [self.mode is NEXT_STEP and self.steps[row] == row + 2 for row in range(N)]
        for row in range(N):
            if reset[row]:
                self.reset(row)
            else:
                self.steps[row] += 1
        after = [*zip(self.episodes, self.steps, strict=True)]
        ended = [not reset[row] and self.steps[row] == row + 2 for row in range(N)]
        if self.mode is SAME_STEP:
            for row in np.flatnonzero(ended):
                self.reset(row)
        return reset, ended, after

    def reset(self, row: int) -> None:
        self.episodes[row], self.steps[row] = self.episodes[row] + 1, 0


def leaf_values(value: Any) -> list[Any]:
    """The leaves of an observation or of an action, in the order of its space."""
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaf_values(part)]
    return [value.float().numpy() if getattr(value, "dtype", None) is torch.bfloat16 else _as_numpy(value)]


def _as_numpy(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


def row_of_leaves(value: Any, row: int) -> list[Any]:
    return [np.asarray(leaf[row]) for leaf in leaf_values(value)]


def leaves_of_spec(spec: Any, value: Any) -> list[Any]:
    """What gymnasium is to show of a drawn row."""
    return [np.asarray(leaf.to_numpy(value.get(key))) for key, leaf in spec.items(True, True) if key[0] != "info"]


OBSERVATIONS: dict[str, Callable[[], Composite]] = {
    "none": lambda: of_batch(),
    "scalar": lambda: of_batch(x=Unbounded((N,))),
    "three deep": lambda: of_batch(
        a=of_batch(b=of_batch(c=Unbounded((N, 3)), d=Categorical(4, (N,))), e=Binary(2, (N, 2))), f=Unbounded((N, 1))
    ),
    "agents": lambda: of_batch(agents=Composite(x=Bounded(0, 1, (N, 4, 2)), shape=(N, 4))),
    "one-hot": lambda: of_batch(x=OneHot(3, (N, 3)), y=MultiOneHot([2, 3], (N, 5))),
    "dtypes": lambda: of_batch(
        **{
            str(dtype)[6:]: Unbounded((N, 2), dtype=dtype)
            for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.uint8, torch.uint16, torch.int64)
        },
        flag=Binary(3, (N, 3), dtype=torch.bool),
    ),
    "images": lambda: of_batch(pixels=Bounded(0, 255, (N, 3, 4, 4), dtype=torch.uint8)),
    "words": lambda: of_batch(word=NonTensor((N,), example_data="a", space=WORD), x=Unbounded((N, 1))),
    "infos": lambda: of_batch(
        x=Unbounded((N, 2)), info=of_batch(lives=Bounded(0, torch.tensor([3, 1, 2]), (N,), dtype=torch.int64))
    ),
    "an info leaf is an observation": lambda: of_batch(x=Unbounded((N, 2)), information=Unbounded((N, 1))),
    "zero size": lambda: of_batch(x=Unbounded((N, 0, 2)), y=Unbounded((N, 1))),
}
ACTIONS: dict[str, Callable[[], TensorSpec]] = {
    "one-hot": lambda: OneHot(5, (N, 5)),
    "one-hot of uint8": lambda: OneHot(5, (N, 5), dtype=torch.uint8),
    "multi-one-hot": lambda: MultiOneHot([2, 3], (N, 5)),
    "multi-categorical": lambda: MultiCategorical([2, 3], (N, 2)),
    "binary": lambda: Binary(3, (N, 3)),
    "binary of bool": lambda: Binary(3, (N, 3), dtype=torch.bool),
    "categorical with a trailing dim": lambda: Categorical(5, (N, 1)),
    "categorical of int32": lambda: Categorical(5, (N,), dtype=torch.int32),
    "categorical from 3": lambda: Categorical(5, (N,), start=3),
    "bfloat16": lambda: Bounded(-1, 1, (N, 2), dtype=torch.bfloat16),
    "float64": lambda: Bounded(-1, 1, (N, 2), dtype=torch.float64),
    "zero size": lambda: Unbounded((N, 0)),
    "nested groups": lambda: of_batch(
        action=of_batch(arm=of_batch(x=Bounded(-1, 1, (N, 2)), y=OneHot(3, (N, 3))), grip=MultiOneHot([2, 2], (N, 4)))
    ),
    "agents": lambda: of_batch(agents=Composite(action=Categorical(5, (N, 4)), shape=(N, 4))),
    "two keys": lambda: of_batch(a=Categorical(3, (N,)), b=Bounded(0, 1, (N,))),
    "a masked row": lambda: Categorical(2, (N,), mask=torch.tensor([[True, True], [True, False], [True, True]])),
}
REWARDS: dict[str, Callable[[], TensorSpec]] = {
    "no trailing dim": lambda: Unbounded((N,)),
    "float64": lambda: Unbounded((N, 1), dtype=torch.float64),
    "float16": lambda: Unbounded((N, 1), dtype=torch.float16),
    "bfloat16": lambda: Unbounded((N, 1), dtype=torch.bfloat16),
    "int64": lambda: Bounded(-9, 9, (N, 1), dtype=torch.int64),
    "bounds of each row": lambda: Bounded(0, torch.tensor([[1.0], [2.0], [3.0]]), (N, 1)),
}
KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "usual": dict,
    "device": lambda: {"device": "cpu"},
    "partial_step=False": lambda: {"partial_step": False},
    "flags without a trailing dim": lambda: {"changed": lambda made: flattened_flags(made)},
    "lazy stacks": lambda: {"changed": lambda made: LazyStackedTensorDict(*made.unbind(0), stack_dim=0)},
    "more than the specs say": lambda: {"changed": lambda made: made.set("more", torch.ones(N, 2))},
    **{f"observations: {name}": lambda make=make: {"observations": make()} for name, make in OBSERVATIONS.items()},  # type: ignore[misc]
    **{f"actions: {name}": lambda make=make: {"actions": make()} for name, make in ACTIONS.items()},  # type: ignore[misc]
    **{f"rewards: {name}": lambda make=make: {"rewards": make()} for name, make in REWARDS.items()},  # type: ignore[misc]
}


def flattened_flags(made: TensorDictBase) -> TensorDictBase:
    return made.set("terminated", made["terminated"].squeeze(-1)) if "terminated" in made.keys() else made


@pytest.mark.every(3, "form", "kind")
@pytest.mark.parametrize(
    "form", FORMS, ids=lambda form: f"{form[0].value}-{form[1]}-{'copy' if form[2] else 'no copy'}"
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_an_env_gives_is_what_is_shown(kind: str, form: tuple[AutoresetMode, Any, bool]) -> None:
    mode, output, copied = form
    env = Drawing(**KINDS[kind]())
    envs = TensorDictVectorEnv(env, autoreset_mode=mode, output=output, copy=copied)
    actions = env.full_action_spec

    def leaves_at(row: int, stood: tuple[int, int]) -> list[Any]:
        return leaves_of_spec(env.of_row("observation", 0), drawn(env.of_row("observation", row), row, *stood))

    def assert_shown(shown: Any, stood: list[tuple[int, int]]) -> None:
        if output == "numpy":
            assert envs.observation_space.contains(shown)
        for row in range(N):
            assert_same(row_of_leaves(shown, row), leaves_at(row, stood[row]))

    expected = Expected(mode)
    assert_shown(envs.reset(seed=0)[0], [(0, 0)] * N)
    envs.action_space.seed(0)
    for _ in range(9):
        given = envs.action_space.sample()
        observation, reward, terminated, truncated, infos = envs.step(given)
        reset, ended, after = expected.step()
        assert_shown(observation, [*zip(expected.episodes, expected.steps, strict=True)])
        for row in range(N):
            own = drawn(env.of_row("reward", row), row, *after[row])["reward"]
            assert float(reward[row]) == (0 if reset[row] else float(own))
        assert reward.shape == (N,)
        assert reward.dtype == (np.float64 if output == "numpy" else env.full_reward_spec["reward"].dtype)
        assert terminated.tolist() == ended
        assert not truncated.any()
        assert terminated.dtype == truncated.dtype == (np.bool_ if output == "numpy" else torch.bool)
        if mode is SAME_STEP and any(ended):
            assert infos["_final_obs"].tolist() == ended
            for row in np.flatnonzero(ended):
                final = [np.asarray(leaf) for leaf in leaf_values(infos["final_obs"][row])]
                assert_same(final, leaves_at(row, after[row]))
        if not all(reset):
            taken = [leaf.to_numpy(env.given[-1][key]) for key, leaf in actions.items(True, True)]
            for mine, theirs in zip(leaf_values(given), taken, strict=True):
                rows = [row for row in range(N) if not reset[row]]
                assert np.array_equal(np.asarray(theirs)[rows], bfloat16_of(mine, kind)[rows])
        if mode is DISABLED and any(ended):
            again, _ = envs.reset(options={"reset_mask": np.array(ended)})
            for row in np.flatnonzero(ended):
                expected.reset(row)
            assert_shown(again, [*zip(expected.episodes, expected.steps, strict=True)])
    assert sum(env.episodes) >= 5


def bfloat16_of(action: Any, kind: str) -> Any:
    return torch.from_numpy(action).bfloat16().float().numpy() if kind == "actions: bfloat16" else action


# -------------------------------------------------------------------- what is refused

REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "rewards of several": (
        lambda: {"rewards": Unbounded((N, 2))},
        r"got reward of shape \[3, 2\], expected one an env",
    ),
    "rewards of agents": (
        lambda: {"rewards": of_batch(agents=Composite(reward=Unbounded((N, 4, 1)), shape=(N, 4)))},
        r"got the reward keys \[\('agents', 'reward'\)\], expected \['reward'\], none in groups",
    ),
    "no reward": (lambda: {"rewards": of_batch()}, r"got the reward keys \[\], expected \['reward'\]"),
    "flags of several": (
        lambda: {"flags": of_batch(done=Binary(4, (N, 4), dtype=torch.bool))},
        r"got done of shape \[3, 4\], expected one an env, \[3, 1\]",
    ),
    "flags of two dims": (
        lambda: {"flags": of_batch(done=Binary(2, (N, 4, 2), dtype=torch.bool))},
        r"got done of shape \[3, 4, 2\], expected one an env, \[3, 1\]",
    ),
    "flags of agents": (
        lambda: {"flags": of_batch(agents=Composite(done=Binary(1, (N, 4, 1), dtype=torch.bool), shape=(N, 4)))},
        r"got the done keys \[\('agents', 'done'\), .*expected \['done', 'terminated', 'truncated'\], none in groups",
    ),
    "flags of agents and root": (
        lambda: {
            "flags": of_batch(
                done=Binary(1, (N, 1), dtype=torch.bool),
                agents=Composite(done=Binary(1, (N, 4, 1), dtype=torch.bool), shape=(N, 4)),
            )
        },
        r"got the done keys \['done', \('agents', 'done'\), .*none in groups",
    ),
    "a dim of any size": (lambda: {"observations": of_batch(x=Unbounded((N, -1)))}, r"^x: got shape \[-1\]"),
    "data without a space": (
        lambda: {"observations": of_batch(x=NonTensor((N,), example_data="a"))},
        r"^x: no space for NonTensor",
    ),
    "shapes of its own": (
        lambda: {"observations": of_batch(x=stack_specs([Unbounded((row + 1,)) for row in range(N)], 0))},
        r"envs with observations of their own.* at 'x' env 1 has .*\[2\].*, env 0 has .*\[1\]",
    ),
    "bounds of its own": (
        lambda: {"observations": of_batch(x=Bounded(0, torch.tensor([[1.0], [1.0], [2.0]]), (N, 1)))},
        r"envs with observations of their own.* at 'x' env 2 has .*high=2.0.*, env 0 has .*high=1.0",
    ),
    "bounds of its own, below": (
        lambda: {"observations": of_batch(a=of_batch(x=Bounded(torch.tensor([0.0, -1.0, 0.0]), 1, (N,))))},
        r"at \('a', 'x'\) env 1 has .*low=-1.0.*, env 0 has .*low=0.0",
    ),
    "actions of bounds of their own": (
        lambda: {"actions": Bounded(0, torch.tensor([1, 2, 1], dtype=torch.uint16), (N,), dtype=torch.uint16)},
        r"envs with actions of their own.* at 'action' env 1 has .*high=2.*, env 0 has .*high=1",
    ),
    "an observation at an action": (
        lambda: {"observations": of_batch(x=Unbounded((N, 1)), action=Unbounded((N, 1)))},
        r"got an observation at 'action', expected it elsewhere: there is of the action spec",
    ),
    "an observation at a reward": (
        lambda: {"observations": of_batch(reward=Unbounded((N, 1)))},
        r"got an observation at 'reward', expected it elsewhere",
    ),
    "an observation at a flag": (
        lambda: {"observations": of_batch(terminated=Unbounded((N, 1)))},
        r"got an observation at 'terminated', expected it elsewhere",
    ),
    "an observation under next": (
        lambda: {"observations": of_batch(next=of_batch(x=Unbounded((N, 1))))},
        r"got an observation at 'next\.x', expected it elsewhere: there is what a step gave",
    ),
    "an observation at a mask": (
        lambda: {"observations": of_batch(_reset=Unbounded((N,), dtype=torch.bool))},
        r"got an observation at '_reset', expected it elsewhere: there is a mask",
    ),
    "no batch": (
        lambda: {
            "batch_size": (),
            "observations": Composite(x=Unbounded((2,))),
            "actions": Bounded(-1, 1, (1,)),
        },
        r"of batch size \[\], expected one batch dim",
    ),
    "a batch of two dims": (
        lambda: {
            "batch_size": (N, 4),
            "observations": Composite(x=Unbounded((N, 4, 2)), shape=(N, 4)),
            "actions": Bounded(-1, 1, (N, 4, 1)),
        },
        r"of batch size \[3, 4\], expected one batch dim",
    ),
    "an empty batch": (
        lambda: {
            "batch_size": (0,),
            "observations": Composite(x=Unbounded((0, 2)), shape=(0,)),
            "actions": Bounded(-1, 1, (0, 1)),
        },
        r"of batch size \[0\], expected one batch dim",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_specs_without_a_gymnasium_face_are_refused_at_once(name: str) -> None:
    options, error = REFUSED[name]
    env = Drawing(**options())
    for mode in MODES:
        with pytest.raises((ValueError, UnsupportedSpaceError), match=error):
            TensorDictVectorEnv(env, autoreset_mode=mode)


def only_after_a_step(change: Callable[[TensorDictBase], TensorDictBase]) -> Callable[[TensorDictBase], TensorDictBase]:
    return lambda made: change(made) if "reward" in made.keys() else made


OUTPUTS: dict[str, tuple[Callable[[TensorDictBase], TensorDictBase], str, bool]] = {
    "dtype": (
        lambda made: made.set("x", made["x"].double()),
        r"x: got \[3, 2\] of torch.float64, expected \[3, 2\] of torch.float32",
        True,
    ),
    "shape": (
        lambda made: made.set("x", torch.ones(N, 3)),
        r"x: got \[3, 3\] of torch.float32, expected \[3, 2\]",
        True,
    ),
    "missing": (lambda made: made.exclude("x"), r"x: (got nothing, expected \[3, 2\] of torch.float32|missing)", True),
    "data": (
        lambda made: made.set("x", NonTensorStack("a", "b", "c")),
        r"x: got NonTensorStack, expected \[3, 2\] of torch.float32",
        True,
    ),
    "reward without its trailing dim": (
        only_after_a_step(lambda made: made.set("reward", torch.ones(N))),
        r"reward: got \[3\] of torch.float32, expected \[3, 1\] of torch.float32",
        False,
    ),
    "reward missing": (only_after_a_step(lambda made: made.exclude("reward")), r"reward: got nothing", False),
    "flags of numbers": (
        only_after_a_step(lambda made: made.set("terminated", made["terminated"].long())),
        r"done: got \[3, 1\] of torch.int64, expected \[3, 1\] of torch.bool",
        False,
    ),
}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_that_do_not_fit_the_specs_are_refused(name: str, output: Any, mode: AutoresetMode) -> None:
    """By the first call that is given them; the rows are to be reset then."""
    change, error, in_reset = OUTPUTS[name]
    env = Drawing()
    envs = TensorDictVectorEnv(env, autoreset_mode=mode, output=output)
    action = np.zeros((N, 1), np.float32)
    if in_reset:
        env.changed = change
        with pytest.raises(EnvOutputError, match=f"^Drawing: {error}"):
            envs.reset()
        env.changed = lambda made: made
    envs.reset()
    env.changed = only_after_a_step(change)
    # what the native step misses it says itself
    with pytest.raises((EnvOutputError, KeyError), match=f"(Drawing: |next.){error}"):
        envs.step(action)
    env.changed = lambda made: made
    with pytest.raises(ResetNeeded):
        envs.step(action)
    envs.reset()
    envs.step(action)


def test_an_observation_that_comes_with_a_reset_in_a_step_is_looked_at() -> None:
    """In the modes in which a step resets."""
    for mode in (NEXT_STEP, SAME_STEP):
        env = Drawing()
        envs = TensorDictVectorEnv(env, autoreset_mode=mode)
        envs.reset()
        action = np.zeros((N, 1), np.float32)
        for _ in range(2 if mode is NEXT_STEP else 1):
            envs.step(action)
        env.changed = lambda made: made if "reward" in made.keys() else made.set("x", made["x"].double())
        with pytest.raises(EnvOutputError, match=r"^Drawing: x: got \[3, 2\] of torch.float64"):
            envs.step(action)


# -------------------------------------------------------------------- whose memory it is


def pointers(result: Any) -> list[int]:
    """Where the tensors of a step's result are: observation, reward and ``terminated``."""
    observation, reward, terminated = result[:3]
    return [value.data_ptr() for value in (observation["x"], reward, terminated)]


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_nothing_is_copied_without_copy(mode: AutoresetMode, device: Any) -> None:
    """Where no env was reset in the step, the tensors are those that the env gave."""
    env = Drawing(device=device)
    envs = TensorDictVectorEnv(env, autoreset_mode=mode, output="torch", device="cpu", copy=False)
    observation, _ = envs.reset()
    assert env.gave is not None
    assert observation["x"].data_ptr() == env.gave["x"].data_ptr()
    for _ in range(1 if mode is SAME_STEP else 2):
        result = envs.step(torch.zeros(N, 1))
        assert pointers(result) == [env.gave[key].data_ptr() for key in ("x", "reward", "terminated")]


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_results_are_the_callers_own_with_copy(mode: AutoresetMode, output: Any, device: Any) -> None:
    """They share no memory with what the env gave or keeps, nor with each other, nor with the caller's actions."""
    env = Drawing(of_batch(x=Unbounded((N, 2)), y=Unbounded((N, 2), dtype=torch.bfloat16)), device=device)
    envs = TensorDictVectorEnv(env, autoreset_mode=mode, output=output)
    seen: list[int] = []
    kept: list[Any] = []  # what is freed may be given out again

    def note(*values: Any) -> None:
        kept.append(values)
        seen.extend(it.data_ptr() if isinstance(it, torch.Tensor) else it.ctypes.data for it in values)

    observation, _ = envs.reset()
    note(observation["x"], observation["y"])
    for _ in range(6):
        action: Any = torch.zeros(N, 1) if output == "torch" else np.zeros((N, 1), np.float32)
        observation, *outcome, _ = envs.step(action)
        note(observation["x"], observation["y"], *outcome)
        held = [env.gave, env._latest, envs._root]
        kept.append(held)
        theirs = {leaf.data_ptr() for td in held if td is not None for leaf in td.values(True, True)}
        assert not theirs & set(seen)
        if mode is DISABLED and outcome[1].any():
            observation, _ = envs.reset()
            note(observation["x"], observation["y"])
    assert len(set(seen)) == len(seen)


def test_an_action_that_is_an_array_is_copied() -> None:
    """An env may keep what it is given."""
    env = Drawing()
    envs = TensorDictVectorEnv(env)
    envs.reset()
    action = np.zeros((N, 1), np.float32)
    envs.step(action)
    action[:] = 1
    assert not env.given[-1]["action"].any()


@pytest.mark.cuda
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_on_a_gpu_nothing_is_moved_that_is_there(mode: AutoresetMode) -> None:
    """A batch on a GPU gives its own tensors, and those that it moves are the same as on the CPU."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    env = Drawing(device="cuda")
    envs = TensorDictVectorEnv(env, autoreset_mode=mode, output="torch", device="cuda", copy=False)
    envs.reset()
    result = envs.step(torch.zeros(N, 1, device="cuda"))
    assert env.given[-1]["action"].device.type == "cuda"
    assert {value.device.type for value in (result[0]["x"], *result[1:4])} == {"cuda"}
    assert env.gave is not None
    assert pointers(result) == [env.gave[key].data_ptr() for key in ("x", "reward", "terminated")]
    copied = TensorDictVectorEnv(Drawing(device="cuda"), autoreset_mode=mode, output="torch")
    arrays = TensorDictVectorEnv(Drawing(device="cuda"), autoreset_mode=mode)
    for envs in (copied, arrays):
        envs.reset()
    for step in range(4):
        ours, theirs = copied.step(torch.zeros(N, 1, device="cuda")), arrays.step(np.zeros((N, 1), np.float32))
        assert ours[0]["x"].device.type == "cuda"
        assert_same(ours[0]["x"].cpu().numpy(), theirs[0]["x"], f"step {step}")
        assert_same(ours[2].cpu().numpy(), theirs[2], f"step {step}")
        if mode is DISABLED and theirs[2].any():
            copied.reset(options={"reset_mask": ours[2]}), arrays.reset(options={"reset_mask": theirs[2]})
