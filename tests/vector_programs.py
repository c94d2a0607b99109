"""Programs: envs, the vector env that is made of them, and the calls that it is given, in any order. No torch here."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from generated_envs import Plan, PlannedEnv, plans
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from hypothesis import strategies as st
from space_strategies import any_spaces, batchable, leaf_spaces, object_spaces

__all__ = ["Call", "Program", "ProgramEnv", "programs"]

MODES = tuple(AutoresetMode)
ERRORS: tuple[type[Exception], ...] = (RuntimeError, ValueError, KeyError, ZeroDivisionError, NotImplementedError)


@dataclass(frozen=True)
class Fault:
    """The ``count``-th call of a method of env ``row`` raises."""

    row: int
    method: str
    count: int
    error: type[Exception]


class ProgramEnv(PlannedEnv):
    """A planned env with random numbers that are told before it is seeded, and faults; it lists what it was asked."""

    def __init__(
        self,
        plan: Plan,
        index: int,
        faults: Sequence[Fault] = (),
        render_mode: str | None = None,
        plain_observations: bool = False,
    ):
        super().__init__(plan, index, render_mode)
        self._plain = plain_observations
        self.np_random, self._np_random_seed = gym.utils.seeding.np_random(1000 + index)
        self._source.seed(index)
        self._faults = [fault for fault in faults if fault.row == index]
        self._counts = {"reset": 0, "step": 0}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._fail("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._fail("step")
        return super().step(action)

    def told(self, value: Any, *, key: Any = None) -> tuple[Any, ...]:
        """A method for ``call`` that gives back what it is given."""
        return (self.index, value, key)

    def _observation(self) -> Any:
        observation = super()._observation()
        return plain(self.observation_space, observation) if self._plain else observation

    def _fail(self, method: str) -> None:
        self._counts[method] += 1
        for fault in self._faults:
            if fault.method == method and fault.count == self._counts[method]:
                raise fault.error(f"{method} {fault.count} of env {self.index}")


@dataclass(frozen=True)
class Call:
    """One call of a vector env."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.arguments.items())})"


@dataclass(frozen=True)
class Program:
    """Envs, arguments of the vector env and calls.

    Attributes:
        plan: what the envs do.
        num_envs: how many there are.
        observation_spaces: that of each env.
        odd_action_space: the last env has another action space than the others.
        faults: what raises when.
        render_mode: that of the envs.
        plain_observations: where a space's samples are numbers, the envs show Python's, and lists of floats.
        arguments: arguments of the vector env that both classes take.
        num_workers: of ours, where it has workers.
        calls: what is done.
    """

    plan: Plan
    num_envs: int
    observation_spaces: Sequence[spaces.Space]
    odd_action_space: bool
    faults: Sequence[Fault]
    render_mode: str | None
    plain_observations: bool
    arguments: dict[str, Any]
    num_workers: int | None
    calls: Sequence[Call]

    def makers(self, **changes: Any) -> list[Callable[[], ProgramEnv]]:
        """Makers of the envs; ``changes`` are made to their plan."""
        return [self._maker(row, changes) for row in range(self.num_envs)]

    def _maker(self, row: int, changes: dict[str, Any]) -> Callable[[], ProgramEnv]:
        changes = {**vars(self.plan), "observation_space": self.observation_spaces[row], **changes}
        if self.odd_action_space and row == self.num_envs - 1:
            changes["action_space"] = spaces.Discrete(17)
        rest = (Plan(**changes), row, self.faults, self.render_mode, self.plain_observations)
        return lambda: ProgramEnv(*rest)


# ---------------------------------------------------------------- envs


def plain(space: spaces.Space, observation: Any) -> Any:
    """An observation in the form that gymnasium casts into its buffers without a loss: ints, and lists of floats."""
    if isinstance(space, spaces.Dict):
        return {key: plain(part, observation[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(plain(part, value) for part, value in zip(space.spaces, observation, strict=True))
    if isinstance(space, spaces.Discrete) and space.dtype == np.int64:
        return int(observation)
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return observation.tolist() if space.shape else observation.astype(np.float64)
    return observation


def narrower(space: spaces.Space, scale: float) -> spaces.Space:
    """The space with other bounds where they are floats, its shape and dtype as they are."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: narrower(part, scale) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([narrower(part, scale) for part in space.spaces])
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        dtype = space.dtype
        return spaces.Box((space.low * scale).astype(dtype), (space.high * scale).astype(dtype), space.shape, dtype)
    return copy.deepcopy(space)


any_leaves = st.one_of(leaf_spaces(), leaf_spaces(), leaf_spaces(), object_spaces())
observation_spaces = st.one_of(
    leaf_spaces(), any_spaces(), any_spaces(leaves=any_leaves, max_leaves=4), object_spaces()
).filter(batchable)
action_spaces = st.one_of(
    st.just(spaces.Discrete(3)),
    leaf_spaces(),
    any_spaces(min_items=1, max_leaves=4),
    any_spaces(min_items=1, leaves=any_leaves, max_leaves=4),
).filter(batchable)


# ---------------------------------------------------------------- calls

seeds = st.one_of(
    st.none(),
    st.integers(0, 2**31),
    st.lists(st.one_of(st.none(), st.integers(0, 99)), min_size=5, max_size=5),
)
odd_seeds = st.sampled_from(("too few", "too many", -1, 1.5, "list with a float", "list with -1"))
odd_masks = st.sampled_from(("a list", "integers", "another shape", "all False"))
masks = st.lists(st.booleans(), min_size=5, max_size=5).map(tuple)
options = st.one_of(st.none(), st.just({}), st.fixed_dictionaries({"level": st.integers(0, 9)}))
forms = st.sampled_from(("sample", "sample", "list", "tuple", "python"))


def _resets(name: str, odd: bool) -> st.SearchStrategy[Call]:
    rarely = st.sampled_from((False,) * 5 + (odd,))
    either = lambda usual, other: rarely.flatmap(lambda is_odd: other if is_odd else usual)  # noqa: E731
    return st.fixed_dictionaries(
        {
            "seed": either(seeds, odd_seeds),
            "options": options,
            "mask": either(st.one_of(st.none(), masks), odd_masks),
        }
    ).map(lambda arguments: Call(name, arguments))


def _steps(name: str, odd: bool) -> st.SearchStrategy[Call]:
    rarely = st.sampled_from((False,) * 9 + (odd,))
    drawn = rarely.flatmap(lambda is_odd: st.sampled_from(("too few", "None")) if is_odd else forms)
    return drawn.map(lambda form: Call(name, {"form": form}))


values = st.one_of(
    st.integers(0, 9), st.text(max_size=2), st.none(), st.lists(st.integers(0, 9), max_size=6), st.just((1, 2, 3))
)
attributes = st.sampled_from(("label", "calls", "index", "np_random_seed", "render_mode", "told_later"))
_calls_of_methods = st.one_of(
    st.builds(lambda number, twice: ("add", (number,), {"twice": twice}), st.integers(0, 9), st.booleans()),
    st.builds(lambda value, key: ("told", (value,), {"key": key}), values, values),
    st.just(("label", (), {})),
    st.just(("missing", (), {})),
    st.just(("reset", (), {"seed": 7})),
)


def _method_calls(name: str) -> st.SearchStrategy[Call]:
    return _calls_of_methods.map(lambda drawn: Call(name, dict(zip(("name", "args", "kwargs"), drawn, strict=True))))


others = st.one_of(
    _method_calls("call"),
    attributes.map(lambda name: Call("get_attr", {"name": name})),
    st.builds(
        lambda name, value, each: Call("set_attr", {"name": name, "values": value, "each": each}),
        st.sampled_from(("label", "told_later")),
        values,
        st.booleans(),
    ),
    st.sampled_from((Call("render"), Call("np_random_seed"), Call("np_random"), Call("spaces"))),
)
closes = st.just(Call("close"))
closes_of_workers = st.sampled_from(({}, {"timeout": 60}, {"terminate": True})).map(lambda given: Call("close", given))
waits = st.sampled_from(({}, {"timeout": 60}))


def _sync_calls(odd: bool, close: st.SearchStrategy[Call] = closes) -> st.SearchStrategy[list[Call]]:
    calls = {"step": _steps("step", odd), "reset": _resets("reset", odd), "other": others, "close": close}
    names = st.sampled_from(("step",) * 12 + ("reset",) * 4 + ("other",) * 3 + ("close",))
    return names.flatmap(calls.__getitem__).map(lambda call: [call])


def _async_calls(odd: bool) -> st.SearchStrategy[list[Call]]:
    """One call, or one that begins something and, mostly, the one that ends it, perhaps with another in between."""
    begin = {
        "step": _steps("step_async", odd),
        "reset": _resets("reset_async", odd),
        "call": _method_calls("call_async"),
    }
    kinds = st.sampled_from(("step", "step", "reset", "call"))
    whole = _sync_calls(odd, closes_of_workers)
    pairs = kinds.flatmap(
        lambda kind: st.tuples(
            begin[kind],
            st.one_of(st.just([]), st.just([]), whole),
            st.sampled_from((kind, kind, kind, kind, None, "step", "reset", "call")),
            waits,
        )
    ).map(lambda drawn: [drawn[0], *drawn[1], *([Call(f"{drawn[2]}_wait", drawn[3])] if drawn[2] else [])])
    alone = st.builds(Call, st.sampled_from(("step_wait", "reset_wait", "call_wait")), waits).map(lambda call: [call])
    kinds_of_call = {"sync": whole, "pair": pairs, "alone": alone}
    return st.sampled_from(("sync",) * 6 + ("pair",) * 5 + ("alone",)).flatmap(kinds_of_call.__getitem__)


@st.composite
def programs(draw: st.DrawFn, *, workers: bool = False, odd: bool = True) -> Program:
    """Programs over envs of any kind.

    Args:
        draw: hypothesis'.
        workers: for ``AsyncVectorEnv``.
        odd: with arguments that are refused, in ways that only gymnasium 1.4 has.
    """
    num_envs = draw(st.integers(1, 3 if workers else 5))
    plan = draw(plans(observation_spaces, action_spaces, mixed_infos=draw(st.sampled_from((False, False, True)))))
    base = plan.observation_space
    mode = draw(st.sampled_from(("same",) * 4 + ("different", "pair", "unequal")))
    arguments: dict[str, Any] = {
        "observation_mode": "same" if mode == "unequal" else mode,
        "autoreset_mode": draw(st.sampled_from((*MODES, *MODES, *(mode.value for mode in MODES)))),
        "copy": draw(st.booleans()),
    }
    each = [base] * num_envs
    if mode != "same":
        each = [base, *(narrower(base, 1 / (row + 2)) for row in range(num_envs - 1))]
    if mode == "pair":
        arguments["observation_mode"] = (batch_space(base, num_envs), base)
    if not draw(st.integers(0, 59)):
        arguments[draw(st.sampled_from(("observation_mode", "autoreset_mode")))] = "Nonsense"
    if workers:
        arguments["shared_memory"] = draw(st.sampled_from((True, True, True, False)))
    if workers and odd:
        arguments["max_concurrency"] = draw(st.sampled_from((None, None, None, 1, 2)))
    fault = st.builds(
        Fault,
        st.integers(0, num_envs - 1),
        st.sampled_from(("step", "step", "reset")),
        st.integers(1, 6),
        st.sampled_from(ERRORS),
    )
    most = draw(st.sampled_from((0, 0, 0, 1, 1 if workers else 2)))  # gymnasium's async raises the last that comes
    calls = draw(st.lists(_async_calls(odd) if workers else _sync_calls(odd), min_size=2, max_size=14))
    begin = [[Call("reset", {"seed": 0, "options": None, "mask": None})]] if draw(st.integers(0, 7)) else []
    return Program(
        plan=plan,
        num_envs=num_envs,
        observation_spaces=each,
        odd_action_space=not draw(st.integers(0, 39)),
        faults=draw(st.lists(fault, max_size=most)),
        render_mode=draw(st.sampled_from((None, "ansi"))),
        plain_observations=draw(st.sampled_from((False, False, True))),
        arguments=arguments,
        num_workers=draw(st.integers(1, num_envs)) if workers and not arguments.get("max_concurrency") else None,
        calls=[call for part in (*begin, *calls) for call in part],
    )
