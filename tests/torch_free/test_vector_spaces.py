"""Every kind of space, as observation and as action, in this process and in workers, is as gymnasium's own has it.

``gymnasium.vector.SyncVectorEnv`` is the oracle, and gymnasium 1.4's ``AsyncVectorEnv`` is seen to agree with it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import custom_spaces
import gymnasium as gym
import numpy as np
import pytest
from agreement import assert_same, with_final_obs_in_space
from custom_spaces import Digits, Named, Narrowed, Unheard
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from packaging.version import Version
from vector_classes import BOTH, travels
from zoo import ObjectEnv

from gymbridge.spaces.naming import observation_tree
from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv

travels(sys.modules[__name__], custom_spaces)


HAS_DISCRETE_DTYPE = "dtype" in spaces.Discrete.__init__.__code__.co_varnames
"""Discrete spaces have had a dtype of their own since gymnasium 1.2."""

NEWEST = Version(gym.__version__) >= Version("1.4")

INF = np.inf
BOX = spaces.Box(-1, 1, (2,), np.float32)
GRAPH = spaces.Graph(BOX, spaces.Discrete(3))
SEQUENCE = spaces.Sequence(spaces.Discrete(3))
STACKED = spaces.Sequence(spaces.Dict(x=BOX, n=spaces.Discrete(3)), stack=True)
ONE_OF = spaces.OneOf([spaces.Discrete(3), spaces.Text(3), BOX])

SPACES: dict[str, spaces.Space] = {
    **{
        f"box of {np.dtype(dtype)}": spaces.Box(0, 1 if dtype is np.bool_ else 100, (2, 3), dtype)
        for dtype in (
            *(np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64),
            *(np.float16, np.float32, np.float64),
        )
    },
    "box without bounds": spaces.Box(-INF, INF, (2,), np.float32),
    "box bounded below": spaces.Box(np.array([0, -INF]), np.array([INF, INF]), dtype=np.float64),
    "box bounded above": spaces.Box(-INF, np.array([3, INF]), dtype=np.float64),
    "box without dimensions": spaces.Box(-1, 1, (), np.float32),
    "box without numbers": spaces.Box(-1, 1, (3, 0), np.float32),
    "box of one": spaces.Box(-1, 1, (1,), np.float32),
    "box of a user's type": Narrowed(-1, 1, (2,), np.float32),
    "discrete": spaces.Discrete(3),
    "discrete with start": spaces.Discrete(4, start=-2),
    "discrete of int8": spaces.Discrete(4, start=-2, **({"dtype": np.int8} if HAS_DISCRETE_DTYPE else {})),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_discrete with start": spaces.MultiDiscrete([2, 3], start=[-5, 7]),
    "multi_discrete of two dimensions": spaces.MultiDiscrete([[2, 3], [4, 5]], dtype=np.int8),
    "multi_binary": spaces.MultiBinary(3),
    "multi_binary of two dimensions": spaces.MultiBinary((2, 2)),
    "text": spaces.Text(5),
    "graph": GRAPH,
    "graph without edges": spaces.Graph(BOX, None),
    "sequence": SEQUENCE,
    "sequence of boxes": spaces.Sequence(BOX),
    "sequence stacked": spaces.Sequence(BOX, stack=True),
    "sequence of dicts, stacked": STACKED,
    "sequence of sequences": spaces.Sequence(SEQUENCE),
    "one_of": ONE_OF,
    "custom": Unheard(),
    "dict": spaces.Dict(x=BOX, n=spaces.Discrete(3)),
    "dict of a user's type": Named(x=BOX, n=spaces.Discrete(3)),
    "dict in its own order": spaces.Dict([("z", BOX), ("a", spaces.Discrete(3))]),
    "dict of dicts": spaces.Dict(a=spaces.Dict(b=spaces.Dict(c=spaces.MultiBinary(2))), z=spaces.Discrete(2)),
    "tuple": spaces.Tuple([BOX, spaces.Discrete(3)]),
    "tuple of tuples": spaces.Tuple([spaces.Tuple([spaces.Tuple([BOX])]), spaces.MultiDiscrete([2, 3])]),
    "dict without items": spaces.Dict(),
    "tuple without items": spaces.Tuple([]),
    "dict of what has no items": spaces.Dict(a=spaces.Dict(), b=spaces.Tuple([]), c=BOX),
    "tuple of what is no array": spaces.Tuple([spaces.Text(3), GRAPH, SEQUENCE, ONE_OF, STACKED, Unheard()]),
    "dict of all": spaces.Dict(
        box=BOX,
        number=spaces.Discrete(3, start=1),
        table=spaces.MultiDiscrete([2, 3]),
        bits=spaces.MultiBinary(3),
        text=spaces.Text(3),
        graph=GRAPH,
        inner=spaces.Dict(sequence=SEQUENCE, pair=spaces.Tuple([ONE_OF, BOX]), custom=Unheard()),
    ),
}

NO_ACTIONS = {"dict without items", "tuple without items", "dict of what has no items"}
"""Spaces whose batches gymnasium cannot take apart: a deviation, with a test of its own."""

MODES = tuple(AutoresetMode)

pytestmark = pytest.mark.filterwarnings("ignore:.*length of a multi-dimensional MultiDiscrete", "ignore:.*precision")


def engines() -> dict[str, Callable[..., Any]]:
    """Each way to run the envs and to hand out their observations."""
    ways: dict[str, Callable[..., Any]] = {
        "in this process": SyncVectorEnv,
        "in this process, in one buffer": lambda fns, **kwargs: SyncVectorEnv(fns, copy=False, **kwargs),
    }
    if sys.platform != "win32":
        for shared, copied in ((True, True), (False, False)):
            ways[f"in workers, shared_memory={shared}, copy={copied}"] = (
                lambda fns, shared=shared, copied=copied, **kwargs: AsyncVectorEnv(
                    fns, shared, copied, num_workers=2, **kwargs
                )
            )
    return ways


class Acting(ObjectEnv):
    """Observations and actions of two spaces."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space):
        super().__init__(observation_space)
        self.action_space = copy.deepcopy(action_space)


def in_order(sample: Any) -> Any:
    """A sample with the items of each dict in one order."""
    if isinstance(sample, dict):
        return {key: in_order(sample[key]) for key in sorted(sample)}
    return tuple(map(in_order, sample)) if type(sample) is tuple else sample


def agree(space: spaces.Space, action_space: spaces.Space, mode: AutoresetMode) -> None:
    """Each of our ways gives what gymnasium gives, call by call."""
    fns = [lambda: Acting(space, action_space)] * 3
    theirs = gym.vector.SyncVectorEnv(fns, autoreset_mode=mode)
    each = {way: make(fns, autoreset_mode=mode) for way, make in engines().items()}
    theirs.action_space.seed(3)
    reset: Any = theirs.reset(seed=1)
    in_workers = gymnasiums_async(fns, space, mode)
    if in_workers is not None:
        assert_same(in_workers.reset(seed=1), reset, "gymnasium's in workers: reset")
    for way, ours in each.items():
        assert ours.single_observation_space == space, way
        assert ours.observation_space == theirs.observation_space, way
        assert ours.action_space == theirs.action_space, way
        assert_same(ours.reset(seed=1), reset, f"{way}: reset")
    ends = 0
    for step in range(8):
        actions = theirs.action_space.sample()
        *their, infos = theirs.step(actions)
        expected = (*their, with_final_obs_in_space(infos, space))
        if in_workers is not None:
            *their_workers, infos = in_workers.step(actions)
            given = (*their_workers, in_order(with_final_obs_in_space(infos, space)))
            assert_same(given, (*their, in_order(expected[-1])), f"gymnasium's in workers: step {step}")
        for way, ours in each.items():
            assert_same(ours.step(actions), expected, f"{way}: step {step}")
        ended = their[2] | their[3]
        ends += int(ended.sum())
        if mode is AutoresetMode.DISABLED and ended.any():
            reset = theirs.reset(seed=step, options={"reset_mask": ended.copy()})
            if in_workers is not None:
                given = in_workers.reset(seed=step, options={"reset_mask": ended.copy()})
                assert_same(given, reset, f"gymnasium's in workers: reset after step {step}")
            for way, ours in each.items():
                given = ours.reset(seed=step, options={"reset_mask": ended})
                assert_same(given, reset, f"{way}: reset after step {step}")
    assert ends
    for way, ours in each.items():
        # gymnasium hands out the items of a Dict in the order of its batched space, which may be another
        taken = [[[in_order(one) for one in row] for row in envs.get_attr("actions")] for envs in (ours, theirs)]
        assert_same(*taken, f"{way}: actions")
        ours.close()
    theirs.close()
    if in_workers is not None:
        in_workers.close()


def gymnasiums_async(fns: Any, space: spaces.Space, mode: AutoresetMode) -> Any:
    """gymnasium's own ``AsyncVectorEnv``, with shared memory where that holds the space; None before gymnasium 1.4.

    In one mode, since it starts a process an env and is compared with gymnasium's own ``SyncVectorEnv``.
    """
    if not NEWEST or sys.platform == "win32" or mode is not AutoresetMode.SAME_STEP:
        return None
    shared = all(leaf.is_array for leaf in observation_tree(space).leaves)
    return gym.vector.AsyncVectorEnv(fns, shared_memory=shared, autoreset_mode=mode)


@pytest.mark.every(3, "name", "mode")
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", SPACES)
def test_each_space_as_observation_and_action(name: str, mode: AutoresetMode) -> None:
    agree(SPACES[name], spaces.Discrete(2) if name in NO_ACTIONS else SPACES[name], mode)


@BOTH
def test_items_of_an_action_have_the_order_of_the_envs_own_space(cls: Any) -> None:
    """Whichever that of the batched space is, and of the caller's dict."""
    space = spaces.Dict([("z", BOX), ("a", spaces.Discrete(3)), ("m", spaces.MultiBinary(2))])
    envs = cls([lambda: ObjectEnv(space)] * 2)
    envs.reset(seed=0)
    actions = envs.action_space.sample()
    envs.step({key: actions[key] for key in ("m", "z", "a")})
    assert [list(taken[0]) for taken in envs.get_attr("actions")] == [list(space.spaces)] * 2
    envs.close()


# ---------------------------------------------------------------- spaces that gymnasium is told how to batch


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize(
    "space",
    [Digits(), spaces.Dict(a=Digits(), b=BOX, c=Unheard()), spaces.Tuple([spaces.Tuple([Digits()]), spaces.Text(3)])],
    ids=["alone", "dict", "tuple"],
)
def test_a_space_that_gymnasium_was_told_of(space: spaces.Space, mode: AutoresetMode) -> None:
    agree(space, Digits(), mode)


@BOTH
def test_a_batch_of_a_space_that_gymnasium_was_told_of_belongs_to_the_caller(cls: Any) -> None:
    fns = [lambda: ObjectEnv(Digits())] * 3
    for copied in (True, False):
        envs = cls(fns, copy=copied)
        first = envs.reset(seed=0)[0]
        assert first.dtype == np.int16
        before = first.copy()
        second = envs.step({"digits": [1, 2, 3]})[0]
        assert (first is second) == (not copied)
        assert not copied or (first == before).all()
        envs.close()
