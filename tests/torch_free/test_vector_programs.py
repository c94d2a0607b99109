"""The differential test: ours and gymnasium's vector envs are given the same programs, all that comes is compared.

A program is drawn whole: envs of any spaces, infos and episodes that may raise, the vector env's arguments, and calls
in any order, with arguments that are refused among them. It is run until gymnasium's first error that an env raised, or
to its end. Where ours differ on purpose, the comparison names the row of ``docs/deviations.md`` and what ours do
instead; the rows about infos and final observations are in ``gymnasium_oracle.py``.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import vector_programs
from agreement import assert_same
from fuzzing import examples
from generated_envs import Plan
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from gymnasium_oracle import AsyncOracle, SyncOracle, assert_results_same
from hypothesis import HealthCheck, Phase, event, given, settings
from packaging.version import Version
from space_strategies import HAS_DISCRETE_DTYPE
from vector_classes import travels
from vector_programs import Call, Program, programs

from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv

travels(vector_programs, sys.modules[__name__])

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
NEWEST = Version(gym.__version__) >= Version("1.4")
PENDING = {"reset_async": "reset", "step_async": "step", "call_async": "call"}
FACTS = ("num_envs", "render_mode", "metadata", "spec", "copy", "autoreset_mode", "closed")
SPACES = ("observation_space", "single_observation_space", "action_space", "single_action_space")


class Deviation(NamedTuple):
    """What ours raises where it is meant to differ: before any env is touched, and gymnasium's is not called."""

    row: str
    errors: tuple[type[Exception], ...]


class Raised:
    """That a call raised, and what."""

    def __init__(self, error: Exception):
        self.error = error

    def __repr__(self) -> str:
        return f"raised {self.error!r}"


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or :class:`Raised`."""
    try:
        with warnings.catch_warnings():  # gymnasium tells of errors in its workers by warnings too
            warnings.simplefilter("ignore")
            return call()
    except Exception as error:
        return Raised(error)


TABLE = Path(__file__).parents[2].joinpath("docs/deviations.md").read_text()


def has_objects(space: spaces.Space) -> bool:
    """Whether a part of the space has samples that are no arrays."""
    if isinstance(space, spaces.Dict):
        return any(map(has_objects, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return any(map(has_objects, space.spaces))
    return isinstance(space, (spaces.Text, spaces.Sequence, spaces.Graph, spaces.OneOf))


class Twins:
    """Ours and the oracle, driven together and compared call by call."""

    def __init__(self, program: Program, workers: bool):
        self.program = program
        self.workers = workers
        self.num_envs = program.num_envs
        mode = program.arguments["autoreset_mode"]
        self.mode = mode if mode == "Nonsense" else AutoresetMode(mode)
        self.pending: str | None = None
        self.closed = False
        self.over = False
        self.ended = np.zeros(self.num_envs, np.bool_)
        self.shown = np.zeros(self.num_envs, np.bool_)
        """Which envs have an observation."""
        self.kept: list[tuple[Any, Any]] = []
        self.deviations: list[str] = []
        self._make()

    # ---------------------------------------------------------------- making

    def _make(self) -> None:
        program = self.program
        arguments = dict(program.arguments)
        # rows: an environment that writes into the same arrays again, or into its observation between two calls
        by_call = any(call.name == "call" and call.arguments["name"] == "reset" for call in program.calls)
        fresh = {"own_arrays": False} if self.mode is SAME_STEP or by_call else {}
        cls: Any = AsyncOracle if self.workers else SyncOracle
        if self.workers:
            objects = has_objects(program.plan.observation_space)
            self.shared = arguments.get("shared_memory", True) and not objects  # row: Sequence, ... with shared memory
            theirs = outcome(lambda: cls(program.makers(**fresh), **{**arguments, "shared_memory": self.shared}))
            if isinstance(theirs, Raised) and self.shared and not isinstance(theirs.error, RuntimeError):
                self.shared = False  # spaces without elements
                theirs = outcome(lambda: cls(program.makers(**fresh), **{**arguments, "shared_memory": False}))
            ours = outcome(lambda: AsyncVectorEnv(program.makers(), **arguments, num_workers=program.num_workers))
        else:
            theirs = outcome(lambda: cls(program.makers(**fresh), **arguments))
            ours = outcome(lambda: SyncVectorEnv(program.makers(), **arguments))
        self.ours, self.theirs = ours, theirs
        if isinstance(theirs, Raised) or isinstance(ours, Raised):
            self.over = True
            self._compare_errors(ours, theirs, "the vector env")
            return
        self.actions = copy.deepcopy(theirs.action_space)
        self.actions.seed(5)
        self._compare_facts()

    def _compare_facts(self) -> None:
        for name in FACTS:
            assert_same(getattr(self.ours, name), getattr(self.theirs, name), name)
        for name in SPACES:
            assert getattr(self.ours, name) == getattr(self.theirs, name), name

    # ---------------------------------------------------------------- running

    def run(self) -> list[str]:
        """Runs the whole program, looks at what is left to see after it, and returns the deviations that it met."""
        try:
            for number, call in enumerate(self.program.calls):
                if self.over:
                    break
                self._do(call, f"call {number}, {call!r}")
            if not self.over:
                self._see_the_end()
            for result, as_it_was in self.kept:
                assert_same(result, as_it_was, "a result that was handed out before")
        finally:
            for envs in (self.ours, self.theirs):
                if not isinstance(envs, Raised):
                    outcome(envs.close)
        return self.deviations

    def _see_the_end(self) -> None:
        if self.pending is not None:
            self._do(Call(f"{self.pending}_wait"), "the end")
        if self.over or self.closed:
            return
        assert_same(self.ours.get_attr("calls"), self.theirs.get_attr("calls"), "what the envs were asked")
        if not self.workers:
            envs = self.ours.envs
            assert [env.times_closed for env in envs] == [0] * self.num_envs
            self.ours.close()
            assert [env.times_closed for env in envs] == [1] * self.num_envs

    def _do(self, call: Call, where: str) -> None:
        arguments = self._arguments(call)
        deviation = self._deviation(call, arguments)
        given = copy.deepcopy(arguments)
        ours = outcome(lambda: self._call(self.ours, call, given))
        assert_same(given, arguments, f"{where}: the caller's arguments")  # row: `options` with `reset_mask`
        if deviation is not None:
            self._note(deviation.row)
            assert isinstance(ours, Raised), f"{where}: {ours!r}, expected one of {deviation.errors}"
            assert isinstance(ours.error, deviation.errors), f"{where}: {ours!r}, expected one of {deviation.errors}"
            return
        theirs = outcome(lambda: self._call(self.theirs, call, arguments))
        if call.name == "close" and self.pending and isinstance(theirs, Raised):
            self._note("`AsyncVectorEnv`, `close` while a call is pending in which an environment raises")
            assert ours is None, f"{where}: {ours!r}"
            self.over = True
            return
        if isinstance(theirs, Raised) or isinstance(ours, Raised):
            self._compare_errors(ours, theirs, where)
            # what refuses an argument, or a call out of its order, does no harm; what an env raised in a round does
            if self.workers:
                self.over = any(pipe is None for pipe in self.theirs.parent_pipes)
            else:
                self.over = "env_index" in vars(ours.error) and call.name in ("step", "reset")
            return
        self._compare(call, ours, theirs, where)
        self._follow(call, ours, arguments)

    def _compare(self, call: Call, ours: Any, theirs: Any, where: str) -> None:
        if call.name == "np_random":
            ours, theirs = ([one.bit_generator.state for one in each] for each in (ours, theirs))
        assert_results_same(ours, theirs, where)
        if call.name == "set_attr":
            name = call.arguments["name"]
            assert_same(self.ours.get_attr(name), self.theirs.get_attr(name), f"{where}: what was set")
        if self.ours.copy and call.name.startswith(("reset", "step")):
            self.kept.append((ours, copy.deepcopy(ours)))

    def _compare_errors(self, ours: Any, theirs: Any, where: str) -> None:
        assert isinstance(theirs, Raised), f"{where}: ours {ours!r}, theirs returned {theirs!r}"
        assert isinstance(ours, Raised), f"{where}: ours returned {ours!r}, theirs {theirs!r}"
        if not NEWEST and isinstance(theirs.error, AssertionError):  # row: too few actions, bad masks or seeds
            assert isinstance(ours.error, (ValueError, TypeError, RuntimeError)), f"{where}: ours {ours!r}"
            return
        assert type(ours.error) is type(theirs.error), f"{where}: ours {ours!r}, theirs {theirs!r}"
        if _is_protocol(ours.error):
            assert vars(ours.error).get("name") == vars(theirs.error).get("name"), where
        if "env_index" in vars(ours.error) and not isinstance(ours.error, (AttributeError, gym.error.Error)):
            assert ours.error.args == theirs.error.args or self.workers, where

    # ---------------------------------------------------------------- what is meant to differ

    def _note(self, row: str) -> None:
        assert f"| {row}" in TABLE, row
        self.deviations.append(row)

    def _deviation(self, call: Call, arguments: dict[str, Any]) -> Deviation | None:
        """The row that says that ours refuses this call, where it does and gymnasium's does not, or does late."""
        name = call.name
        if self.closed:
            if name in ("close", "spaces"):
                return None
            return Deviation("calls after `close`", (ClosedEnvironmentError,))
        if self.pending is not None:
            return None
        if self.workers and name in ("call", "call_async") and call.arguments["name"] == "reset":
            return Deviation("`AsyncVectorEnv`, `call` of `reset`, `step` or `close`", (ValueError,))
        if name in ("step", "step_async"):
            if call.arguments["form"] in ("too few", "None"):
                row = "actions of another number, shape or kind than the space's"
                return Deviation(row, (ValueError, TypeError, KeyError))
            if self.mode is DISABLED and self.ended.any():
                return Deviation("`DISABLED`, a step after an end without a reset", (ResetNeeded,))
        if name in ("reset", "reset_async"):
            refused_late = {-1: gym.error.Error, "list with -1": gym.error.Error, "list with a float": TypeError}
            if isinstance(drawn := call.arguments["seed"], (int, str)) and drawn in refused_late:
                row = "a negative seed, or one in a list that is no integer"
                return Deviation(row, (refused_late[drawn],))
            mask = (arguments["options"] or {}).get("reset_mask")
            sound = isinstance(call.arguments["mask"], tuple) and not isinstance(call.arguments["seed"], (str, float))
            if sound and mask.any() and not (mask | self.shown).all():
                return Deviation("`reset_mask` that leaves out an environment that was never reset", (ResetNeeded,))
        return None

    # ---------------------------------------------------------------- calls

    def _call(self, envs: Any, call: Call, arguments: dict[str, Any]) -> Any:
        if call.name in ("np_random", "np_random_seed"):
            return getattr(envs, call.name)
        if call.name == "spaces":
            return [str(getattr(envs, name)) for name in SPACES]
        if call.name in ("call", "call_async"):
            return getattr(envs, call.name)(arguments["name"], *arguments["args"], **arguments["kwargs"])
        return getattr(envs, call.name)(**arguments)

    def _arguments(self, call: Call) -> dict[str, Any]:
        drawn = call.arguments
        if call.name in ("step", "step_async"):
            return {"actions": self._actions(drawn["form"])}
        if call.name in ("reset", "reset_async"):
            options = copy.deepcopy(drawn["options"])
            mask = self._mask(drawn["mask"])
            if mask is not None:
                options = {**(options or {}), "reset_mask": mask}
            return {"seed": self._seed(drawn["seed"]), "options": options}
        if call.name == "set_attr":
            values = drawn["values"]
            each = drawn["each"] or (self.pending is not None and isinstance(values, (list, tuple)))
            return {"name": drawn["name"], "values": [values] * self.num_envs if each else values}
        return drawn

    def _seed(self, drawn: Any) -> Any:
        seeds: list[Any] = [3] * self.num_envs
        if isinstance(drawn, list):
            return drawn[: self.num_envs]
        if self.pending is not None and isinstance(drawn, (str, float)):
            return None  # which of two faults is told first is nobody's business
        return {
            "too few": seeds[1:],
            "too many": [*seeds, 3],
            "list with a float": [*seeds[1:], 1.5],
            "list with -1": [*seeds[1:], -1],
        }.get(drawn, drawn)

    def _mask(self, drawn: Any) -> Any:
        if isinstance(drawn, tuple):
            mask = np.array(drawn[: self.num_envs])
            if self.mode is DISABLED:
                mask |= self.ended
            return mask
        mask = np.ones(self.num_envs, np.bool_)
        if drawn is None or self.pending is not None:
            return None
        odd = {"a list": mask.tolist(), "integers": mask.astype(np.int64), "another shape": mask[None]}
        return odd.get(drawn, ~mask)

    def _actions(self, form: str) -> Any:
        if form == "None":
            return None
        if form == "too few":
            single = self.theirs.single_action_space
            few = batch_space(single, self.num_envs - 1 or 2)
            few.seed(1)
            return few.sample()
        return _in_form(form, self.theirs.single_action_space, self.actions.sample())

    def _follow(self, call: Call, result: Any, arguments: dict[str, Any]) -> None:
        """Keeps account of what is pending, which envs have ended their episode, and which have been seen."""
        name = call.name
        if name == "close":
            self.closed, self.pending = True, None
        elif name in PENDING:
            self.pending, self._given = PENDING[name], arguments
        elif name in ("reset", "reset_wait"):
            given = arguments if name == "reset" else self._given
            self.pending = None
            mask = (given["options"] or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
            if self.workers and self.mode is NEXT_STEP and (mask & self.ended).any() and self._unshared():
                self._note("`AsyncVectorEnv(shared_memory=False)`, a reset right after an episode's end")
                self.over = True  # gymnasium's next step resets again
            self.ended, self.shown = self.ended & ~mask, self.shown | mask
        elif name in ("step", "step_wait"):
            self.pending = None
            self.ended = result[2] | result[3] if self.mode is not SAME_STEP else self.ended
            self.shown[:] = True
        elif name == "call_wait":
            self.pending = None

    def _unshared(self) -> bool:
        """Whether gymnasium's workers hold no shared memory, or none with elements, which they take for none."""
        space = self.program.plan.observation_space
        size = len(space.spaces) if isinstance(space, (spaces.Dict, spaces.Tuple)) else np.prod(space.shape or (1,))
        return not self.shared or size == 0


def _is_protocol(error: Exception) -> bool:
    return isinstance(error, (AlreadyPendingCallError, NoAsyncCallError, ClosedEnvironmentError))


def _in_form(form: str, space: spaces.Space, batch: Any) -> Any:
    """A batch of actions as lists, tuples or Python's numbers instead of arrays."""
    if isinstance(space, spaces.Dict):
        return {key: _in_form(form, part, batch[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_in_form(form, part, value) for part, value in zip(space.spaces, batch, strict=True))
    if form == "sample":
        return batch
    if form == "python" and isinstance(batch, np.ndarray):
        return batch.tolist()
    return tuple(batch) if form == "tuple" else list(batch)


MANY = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    print_blob=True,
)


@pytest.mark.parametrize("part", range(4))
def test_sync(part: int) -> None:
    """200 programs, 20,000 with ``GYMBRIDGE_EXAMPLES=100``; parts, so that several processes share them."""

    @settings(MANY, max_examples=examples(50))
    @given(program=programs(odd=NEWEST))
    def agree(program: Program) -> None:
        for row in Twins(program, workers=False).run():
            event(f"deviation: {row}")

    agree()


@pytest.mark.parametrize("part", range(4))
def test_async(part: int) -> None:
    """60 programs, 6,000 with ``GYMBRIDGE_EXAMPLES=100``."""

    @settings(MANY, max_examples=examples(15))
    @given(program=programs(workers=True, odd=NEWEST))
    def agree(program: Program) -> None:
        for row in Twins(program, workers=True).run():
            event(f"deviation: {row}")

    agree()


@pytest.mark.every(2, "workers", "space", "mode")
@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 1, (2,), np.bool_),
        spaces.Box(-1, 1, (), np.float16),
        spaces.Box(-1, 1, (3, 0), np.float32),
        spaces.Discrete(3, start=-2, **({"dtype": np.int8} if HAS_DISCRETE_DTYPE else {})),
        spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, -1], [0, 7]]),
        spaces.MultiBinary((2, 2)),
        spaces.Dict(),
        spaces.Tuple([]),
        spaces.Tuple([spaces.Dict(), spaces.Tuple([spaces.Tuple([])])]),
        spaces.Dict(
            {"reward": spaces.Discrete(2), "_x": spaces.Dict({"reward": spaces.Discrete(3)}), "": spaces.Dict()}
        ),
        spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(3)})}),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("workers", [False, True], ids=["sync", "async"])
def test_odd_spaces(workers: bool, space: spaces.Space, mode: AutoresetMode) -> None:
    """Those that are rarely drawn, or never."""
    steps = [Call("step", {"form": "sample"})] * 4
    resets = [Call("reset", {"seed": seed, "options": None, "mask": (True,) * 3}) for seed in (0, None)]
    program = Program(
        plan=Plan(space, lengths=(1, 9) if mode is DISABLED else (1, 2)),
        num_envs=3,
        observation_spaces=[space] * 3,
        odd_action_space=False,
        faults=(),
        render_mode=None,
        plain_observations=False,
        arguments={"autoreset_mode": mode},
        num_workers=2,
        calls=[resets[0], *steps, resets[1], *steps],
    )
    Twins(program, workers).run()
