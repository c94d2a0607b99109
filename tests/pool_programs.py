"""Random programs of sends and receives over a pool, each transition compared with one env of its own, run alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from by_hand import assert_equal
from pools import VERBS, Backend, Verb
from tensordict import TensorDict, TensorDictBase
from tensordict_oracle import OneByOne, stacked
from tensordict_programs import Choices, given_row
from worker_processes import PATIENCE

from gymbridge.envs import EnvBase, GymEnv

__all__ = ["run_a_pool_program"]

RESET, STEP, STEP_MAYBE_RESET = VERBS

Kwargs = Callable[[random.Random], dict[str, Any]]


class Alone(Protocol):
    """One env, run alone."""

    env: EnvBase

    def set_seed(self, seed: int) -> int:
        """Seeds it, and gives the next seed."""

    def reset(self, row: TensorDictBase | None, kwargs: Mapping[str, Any]) -> TensorDictBase:
        """What a reset gives."""

    def step(self, row: TensorDictBase) -> TensorDictBase:
        """What stands under ``"next"`` after a step."""

    def step_and_maybe_reset(self, row: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """The same, and the next root."""

    def root(self) -> TensorDictBase:
        """What it shows."""

    def must_be_reset(self) -> bool:
        """Whether its episode, or one of those in it, has ended."""


class AloneByHand:
    """A TensorDict env, whose own ``_reset`` and ``_step`` are called."""

    def __init__(self, env: EnvBase):
        self.env = env
        self._oracle = OneByOne([env], False)

    def set_seed(self, seed: int) -> int:
        return self._oracle.set_seed(seed)

    def reset(self, row: TensorDictBase | None, kwargs: Mapping[str, Any]) -> TensorDictBase:
        return self._oracle.reset(row, [kwargs])

    def step(self, row: TensorDictBase) -> TensorDictBase:
        return self._oracle.step(row)

    def step_and_maybe_reset(self, row: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        return self._oracle.step_and_maybe_reset(row)

    def root(self) -> TensorDictBase:
        return self._oracle.latest[0].clone()

    def must_be_reset(self) -> bool:
        return not bool(self._oracle.running()[0].all())


class AloneInGymEnv:
    """A gymnasium env in a ``GymEnv``."""

    def __init__(self, env: GymEnv):
        self.env = env
        self._root = TensorDict()

    def set_seed(self, seed: int) -> int:
        return self.env.set_seed(seed) or 0

    def reset(self, row: TensorDictBase | None, kwargs: Mapping[str, Any]) -> TensorDictBase:
        made = self.env.reset(None if row is None else row.clone(), **kwargs)
        self._remember(made)
        return made

    def step(self, row: TensorDictBase) -> TensorDictBase:
        following = self.env.step(row.clone())["next"]
        self._remember(following)
        return following

    def step_and_maybe_reset(self, row: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        td, td_ = self.env.step_and_maybe_reset(row.clone())
        self._remember(td_)
        return td["next"], td_

    def root(self) -> TensorDictBase:
        return self._root.clone()

    def must_be_reset(self) -> bool:
        return bool(self._root["done"])

    def _remember(self, made: TensorDictBase) -> None:
        keys = [*self.env.full_observation_spec.keys(True, True), *self.env.full_done_spec.keys(True, True)]
        self._root = made.select(*keys)


class Expected(NamedTuple):
    """What is to come of a row's work."""

    verb: Verb
    is_lane: bool
    given: TensorDictBase | None
    made: TensorDictBase
    root: TensorDictBase | None

    def check(self, got: Any, where: str) -> None:
        """Compares one row of what has come, without its index."""
        if self.verb is RESET:
            assert_equal(got, self.made, where)
            return
        td, td_ = got if isinstance(got, tuple) else (got, None)
        assert self.given is not None
        assert_equal(td["next"], self.made, f"{where}: next")
        assert_equal(td.exclude("next"), self.given.exclude("next"), f"{where}: root")
        if self.root is not None:
            assert td_ is not None
            assert_equal(td_, self.root, f"{where}: td_")


class RandomChoices(Choices):
    """What is drawn once and holds for all envs.

    Args:
        draw: draws.
    """

    def __init__(self, draw: random.Random):
        self.draw = draw

    def __missing__(self, label: str) -> bool:
        self[label] = drawn = self.draw.random() < 0.5
        return drawn


class PoolProgram:
    """A pool and its envs run alone, with what is under way.

    What is drawn depends on what has come, and so on time: nothing of it may be drawn by hypothesis.

    Args:
        pool: the pool.
        envs: each of its envs, alone.
        draw: draws.
        kwargs: draws the keyword arguments of a reset.
    """

    def __init__(self, pool: Any, envs: Sequence[Alone], draw: random.Random, kwargs: Kwargs):
        self.pool = pool
        self.envs = envs
        self.draw = draw
        self.kwargs = kwargs
        self.under_way: dict[int, Expected] = {}
        self.received = 0
        self.choices = RandomChoices(draw)  # once for all: rows that come together have the same keys
        self.kept = draw.choice(["all", "none", "some", "made up"])
        self.resets_are_given = draw.random() < 0.5

    # ---------------------------------------------------------------- one thing after the other

    def run(self, rounds: int) -> None:
        """Draws what is done, and compares what comes."""
        for number in range(rounds):
            do = self.draw.choice([self.send, self.send_lane, self.receive, self.synchronous])
            do(f"round {number}")
        while self.under_way:
            self.receive("end")
        assert not self.pool._calls.busy

    def send(self, where: str) -> None:
        idle = self.idle()
        if not idle:
            return
        verb, may = self.draw_verb(idle)
        rows = self.draw.sample(may, len(may))
        rows = rows[: self.draw.randint(1, len(rows))]
        given, kwargs = self.work(verb, rows)
        td = None if given is None else stacked(given)
        sent = None if td is None else td.clone()
        options: dict[str, Any] = {"list_of_kwargs": kwargs} if any(kwargs) else {}
        index: Any = rows
        if td is not None and self.draw.random() < 0.5:
            lead = [1] * (td.ndim - 1)
            sent = sent.set("env_index", torch.tensor(rows).reshape(-1, *lead).expand(td.shape).clone())  # type: ignore[union-attr]
            index = None
        verb.send(self.pool, sent, index, **options)
        for row, own, each in zip(rows, given or [None] * len(rows), kwargs, strict=True):
            self.under_way[row] = self.expected(row, verb, own, each, is_lane=False)

    def send_lane(self, where: str) -> None:
        idle = self.idle()
        if not idle:
            return
        verb, may = self.draw_verb(idle)
        row = self.draw.choice(may)
        given, kwargs = self.work(verb, [row])
        own = None if given is None else given[0]
        verb.send(self.pool, None if own is None else own.clone(), row, **kwargs[0])
        self.under_way[row] = self.expected(row, verb, own, kwargs[0], is_lane=True)

    def receive(self, where: str) -> None:
        if not self.under_way:
            return
        lanes = [row for row, work in self.under_way.items() if work.is_lane]
        verbs = [verb for verb in VERBS if any(w.verb is verb and not w.is_lane for w in self.under_way.values())]
        choice = self.draw.choice([*lanes, *verbs])
        timeout = self.draw.choice([None, PATIENCE])
        if isinstance(choice, int):
            work = self.under_way[choice]
            got = getattr(self.pool, f"async_{work.verb}_recv")(env_index=choice, timeout=timeout)
            self.take([choice], [got], where)
            return
        rows = sorted(row for row, w in self.under_way.items() if w.verb is choice and not w.is_lane)
        least = self.draw.randint(1, len(rows))
        most = self.draw.choice([None, self.draw.randint(least, len(rows) + 1)])
        got = getattr(self.pool, f"async_{choice}_recv")(least, max_get=most, timeout=timeout)
        parts = got if isinstance(got, tuple) else (got,)
        index = parts[0]["env_index"]
        assert index.dtype == torch.int64
        assert index.shape == parts[0].batch_size
        come = [int(one.reshape(-1)[0]) for one in index]
        assert come == sorted({*come}), f"{where}: {come} are not in order"
        assert {*come} <= {*rows}, f"{where}: {come} of {rows}"
        assert least <= len(come) <= len(rows if most is None else rows[:most])
        each = [tuple(part[at] for part in parts) for at in range(len(come))]
        self.take(come, [one if len(one) > 1 else one[0] for one in each], where)

    def synchronous(self, where: str) -> None:
        """A call of all envs, while nothing is under way."""
        if self.under_way:
            return
        rows = [*range(len(self.envs))]
        verb, may = self.draw_verb(rows)
        if may != rows:
            verb = RESET
        given, _ = self.work(verb, rows)
        if verb is not RESET or given is None:
            td = None if given is None else stacked(given)
            got = getattr(self.pool, verb.name)(*([] if td is None else [td.clone()]))
            for row in rows:
                own = None if given is None else given[row]
                part = tuple(one[row] for one in got) if isinstance(got, tuple) else got[row]
                self.expected(row, verb, own, {}, is_lane=False).check(part, f"{where}: {verb}, env {row}")

    # ---------------------------------------------------------------- parts of it

    def idle(self) -> list[int]:
        return [row for row in range(len(self.envs)) if row not in self.under_way]

    def draw_verb(self, rows: Sequence[int]) -> tuple[Verb, list[int]]:
        """A verb, and those of the rows that it may be sent to."""
        running = [row for row in rows if not self.envs[row].must_be_reset()]
        verb = self.draw.choice(VERBS if running else VERBS[:1])
        return verb, [*rows] if verb is RESET else running

    def work(self, verb: Verb, rows: Sequence[int]) -> tuple[list[TensorDictBase] | None, list[dict[str, Any]]]:
        """What rows are given, and the keyword arguments of their resets."""
        if verb is RESET:
            kwargs = [self.kwargs(self.draw) for _ in rows]
            if not self.resets_are_given:
                return None, kwargs
        else:
            kwargs = [{} for _ in rows]
        envs = [self.envs[row] for row in rows]
        return [given_row(self.choices, own.env, own.root(), self.kept) for own in envs], kwargs

    def expected(
        self, row: int, verb: Verb, given: TensorDictBase | None, kwargs: Mapping[str, Any], *, is_lane: bool
    ) -> Expected:
        """What the env gives when it is run alone."""
        own = self.envs[row]
        copied = None if given is None else given.clone()
        if verb is RESET:
            return Expected(verb, is_lane, given, own.reset(copied, kwargs), None)
        assert copied is not None
        if verb is STEP:
            return Expected(verb, is_lane, given, own.step(copied), None)
        return Expected(verb, is_lane, given, *own.step_and_maybe_reset(copied))

    def take(self, rows: Sequence[int], got: Sequence[Any], where: str) -> None:
        for row, own in zip(rows, got, strict=True):
            parts = own if isinstance(own, tuple) else (own,)
            for part in parts:
                assert {*part["env_index"].reshape(-1).tolist()} == {row}
            bare = tuple(part.exclude("env_index") for part in parts)
            work = self.under_way.pop(row)
            work.check(bare if len(bare) > 1 else bare[0], f"{where}: {work.verb}, env {row}")
            self.received += 1


def run_a_pool_program(
    backend: Backend,
    maker: Callable[[int], Any],
    seed: int,
    *,
    kwargs: Kwargs | None = None,
    num_envs: int = 3,
    rounds: int = 16,
    **options: Any,
) -> None:
    """Draws sends, receives, lanes and synchronous calls, and compares every transition to the bit."""
    pool = backend.make([lambda index=index: maker(index) for index in range(num_envs)], **options)
    made = [maker(index) for index in range(num_envs)]
    envs: list[Alone] = [AloneByHand(one) if isinstance(one, EnvBase) else AloneInGymEnv(GymEnv(one)) for one in made]
    pool.set_seed(7)
    following = 7
    for own in envs:
        following = own.set_seed(following)
    torch.manual_seed(seed)
    with torch.no_grad():
        root = pool.reset()
        for row, own in enumerate(envs):
            assert_equal(root[row], own.reset(None, {}), f"first reset, env {row}")
        program = PoolProgram(pool, envs, random.Random(seed), kwargs or (lambda draw: {}))
        try:
            program.run(rounds)
            assert program.received > 0
        finally:
            pool.shutdown(timeout=PATIENCE)
