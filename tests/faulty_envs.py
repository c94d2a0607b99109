"""Gymnasium envs each of which has one fault, of those that ``gymbridge.contract`` knows."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

__all__ = ["FAULTY_ENVS", "SoundEnv"]

BOX = spaces.Box(-10, 10, (2,), np.float32)


class SoundEnv(gym.Env[Any, Any]):
    """Shows a clock and a random number; an episode has five steps. Nothing is wrong with it."""

    observation_space: spaces.Space[Any] = BOX
    action_space: spaces.Space[Any] = spaces.Discrete(3)
    length = 5

    def __init__(self) -> None:
        self.observation_space = type(self).observation_space
        self.action_space = type(self).action_space
        self.t = 0

    def observe(self) -> Any:
        return np.array([self.t, self.np_random.random()], np.float32)

    def reward(self) -> Any:
        return float(self.t)

    def ended(self) -> Any:
        return self.t >= self.length

    def info(self) -> Any:
        return {"t": self.t, "position": np.zeros(2), "final": True} if self.ended() else self.info_between()

    def info_between(self) -> Any:
        return {"t": self.t, "position": np.zeros(2)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), self.info()

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observe(), self.reward(), self.ended(), False, self.info()


def having(**attributes: Any) -> Callable[[], type[SoundEnv]]:
    """A sound env's class but for some attributes; it goes to workers by value."""
    return lambda: type("FaultyEnv", (SoundEnv,), {"__module__": "__main__", **attributes})


def observing(observe: Callable[[Any], Any], space: spaces.Space[Any] = BOX) -> Callable[[], type[SoundEnv]]:
    return having(observe=observe, observation_space=space)


# ---------------------------------------------------------------- calls


def refuse_two(env: SoundEnv, action: Any) -> Any:
    if action == 2:
        raise ArithmeticError("two is too much")
    return SoundEnv.step(env, action)


def wait_for_ever(env: SoundEnv, *arguments: Any, **options: Any) -> Any:
    threading.Event().wait()


class RaisesAtTheSecondReset(SoundEnv):
    begun = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.begun += 1
        if self.begun > 1:
            raise ConnectionError("no more games today")
        return super().reset(seed=seed, options=options)


def once() -> Callable[[], SoundEnv]:
    made: list[SoundEnv] = []

    def make() -> SoundEnv:
        if made:
            raise OSError("the port is in use")
        made.append(SoundEnv())
        return made[0]

    return make


def leave(env: SoundEnv, *arguments: Any) -> None:
    raise SystemExit(0)


class SpaceRaises(SoundEnv):
    @property  # type: ignore[misc]
    def observation_space(self) -> Any:  # type: ignore[override]
        raise LookupError("not known yet")

    @observation_space.setter
    def observation_space(self, space: Any) -> None: ...


class Wordless:
    """What an env may return by mistake, and cannot be shown."""

    def __repr__(self) -> str:
        raise LookupError("no words")


def raise_always(env: SoundEnv) -> None:
    raise BrokenPipeError("gone")


class ClosesOnce(SoundEnv):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise ValueError("closed already")
        self.closed = True


# ---------------------------------------------------------------- seeds and instances


class UnseededEnv(SoundEnv):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng()

    def observe(self) -> Any:
        return np.array([self.t, self.generator.random()], np.float32)


class CountsEpisodes(SoundEnv):
    episode = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episode = self.episode + 1
        return super().reset(seed=seed, options=options)

    def reward(self) -> Any:
        return float(self.episode)


def numbered(differ: Callable[[SoundEnv, int], Any]) -> Callable[[], SoundEnv]:
    """Each instance is made to differ by its number."""
    numbers = count()

    def make() -> SoundEnv:
        env = SoundEnv()
        differ(env, next(numbers))
        return env

    return make


def with_another_space(env: SoundEnv, number: int) -> None:
    env.observation_space = spaces.Box(-10, 10 + number, (2,), np.float32)


class SharedClock(SoundEnv):
    clock: ClassVar[list[int]] = [0]

    def observe(self) -> Any:
        if self.t == 0:
            self.clock[0] = 0
        self.clock[0] += 1
        return np.array([self.clock[0], self.np_random.random()], np.float32)


def drawing(draw: Callable[[], float]) -> Callable[[], type[SoundEnv]]:
    return observing(lambda env: np.array([draw(), env.np_random.random()], np.float32))


def draw_from_torch() -> float:
    import torch

    return torch.rand(()).item()


# ---------------------------------------------------------------- other processes


class ElsewhereEnv(SoundEnv):
    """Does something else where it is not in the process that it was born in."""

    def __init__(self, process: int, elsewhere: Callable[[], float]):
        super().__init__()
        self.process = process
        self.elsewhere = elsewhere

    def reward(self) -> Any:
        return 0.0 if os.getpid() == self.process else self.elsewhere()


def elsewhere(does: Callable[[], float]) -> Callable[[], Callable[[], SoundEnv]]:
    return lambda: partial(ElsewhereEnv, os.getpid(), does)


def raise_elsewhere() -> float:
    raise FileNotFoundError("settings.toml")


def die_elsewhere() -> float:
    os._exit(3)


def hang_elsewhere() -> float:
    threading.Event().wait()
    return 0.0


def with_a_lock() -> Callable[[], SoundEnv]:
    lock = threading.Lock()

    def make() -> SoundEnv:
        with lock:
            return SoundEnv()

    return make


# ---------------------------------------------------------------- attributes and spaces


class OwnSpace(spaces.Space[str]):
    def __init__(self) -> None:
        super().__init__((), None)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "a"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnSpace)


class UnequalSpace(spaces.Box):
    """Compares by identity, as spaces of one's own do that say nothing of it."""

    def __eq__(self, other: object) -> bool:
        return self is other


class GrowingSpace(SoundEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.observation_space = spaces.Box(-10, self.observation_space.high + 1)  # type: ignore[attr-defined]
        return super().reset(seed=seed, options=options)


class NoOptions(SoundEnv):
    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


class NoSeed(SoundEnv):
    def reset(self, *, options: Any = None) -> Any:  # type: ignore[override]
        return super().reset(options=options)


class SameSeed(SoundEnv):
    def reset(self, *, seed: int | None = 42, options: Any = None) -> Any:
        return super().reset(seed=seed, options=options)


class CoroutineEnv(SoundEnv):
    async def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed, options=options)

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        return super().step(action)


# ---------------------------------------------------------------- what is returned


class ObservationAlone(SoundEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed, options=options)[0]


class OldStep(SoundEnv):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class OneBuffer(SoundEnv):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros(2, np.float32)

    def observe(self) -> Any:
        self.buffer[:] = self.t, self.np_random.random()
        return self.buffer


class OneInfo(SoundEnv):
    def __init__(self) -> None:
        super().__init__()
        self.told = {"t": 0}

    def info(self) -> Any:
        self.told["t"] = self.t
        return self.told


class HalvesActions(SoundEnv):
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action: Any) -> Any:
        action *= 0.5
        return super().step(action)


NESTED = spaces.Dict(arm=spaces.Dict(angle=BOX), count=spaces.Discrete(3))


def nested(env: SoundEnv, **items: Any) -> Any:
    return {"arm": {"angle": SoundEnv.observe(env)}, "count": 2, **items}


FAULTY_ENVS: dict[str, Callable[[], Callable[[], gym.Env[Any, Any]]]] = {
    "reset-raises": lambda: RaisesAtTheSecondReset,
    "step-raises": having(step=refuse_two),
    "step-raises: an exit": having(step=leave),
    "reset-hangs": having(reset=wait_for_ever),
    "step-hangs": having(step=wait_for_ever),
    "make-again-raises": once,
    "close-raises": having(close=raise_always),
    "close-raises: an exit": having(close=leave),
    "close-twice-raises": lambda: ClosesOnce,
    "no-end": having(length=10**9, observe=lambda env: np.array([0, env.np_random.random()], np.float32)),
    "seed-not-repeatable": lambda: UnseededEnv,
    "reset-carries-over": lambda: CountsEpisodes,
    "seed-ignored": observing(lambda env: np.array([env.t, 1], np.float32)),
    "instances-differ": lambda: numbered(lambda env, number: setattr(env, "reward", lambda: float(number))),
    "instances-differ: spaces": lambda: numbered(with_another_space),
    "instances-share-state": lambda: SharedClock,
    "global-random": drawing(lambda: np.random.random()),  # noqa: NPY002  # that is the fault
    "global-random: python": drawing(lambda: random.random()),
    "global-random: torch": drawing(draw_from_torch),
    "maker-unpicklable": with_a_lock,
    "spaces-unpicklable": lambda: numbered(lambda env, number: setattr(env, "metadata", {"lock": threading.Lock()})),
    "worker-raises": elsewhere(raise_elsewhere),
    "worker-dies": elsewhere(die_elsewhere),
    "worker-hangs": elsewhere(hang_elsewhere),
    "worker-differs": elsewhere(lambda: 1.0),
    "space-missing: raises": lambda: SpaceRaises,
    "space-missing": lambda: numbered(lambda env, number: setattr(env, "action_space", None)),
    "space-unsupported": observing(lambda env: {1: SoundEnv.observe(env)}, spaces.Dict({1: BOX})),
    "space-custom": observing(lambda env: "ab"[env.np_random.integers(2)], OwnSpace()),
    "space-unequal": observing(SoundEnv.observe, UnequalSpace(-10, 10, (2,), np.float32)),
    "space-by-message": observing(lambda env: "ab"[env.np_random.integers(2)], spaces.Text(3)),
    "space-changes": lambda: GrowingSpace,
    "metadata": having(metadata=None),
    "render-mode": having(render_mode="human"),
    "reset-signature": lambda: NoSeed,
    "reset-signature: options": lambda: NoOptions,
    "reset-seed-default": lambda: SameSeed,
    "reset-result": lambda: ObservationAlone,
    "reset-result: coroutine": lambda: CoroutineEnv,
    "step-result": lambda: OldStep,
    "observation-items": observing(lambda env: nested(env, more=1), NESTED),
    "observation-items: lacks one": observing(lambda env: {"arm": nested(env)["arm"]}, NESTED),
    "observation-type": observing(lambda env: SoundEnv.observe(env).tolist()),
    "observation-type: of an item": observing(lambda env: nested(env, count=0.5), NESTED),
    "observation-shape": observing(lambda env: SoundEnv.observe(env)[:, None]),
    "observation-dtype": observing(lambda env: SoundEnv.observe(env).astype(np.float64)),
    "observation-domain": observing(lambda env: SoundEnv.observe(env) + np.float32(10)),
    "observation-domain: of an item": observing(lambda env: nested(env, count=3), NESTED),
    "observation-nan": observing(lambda env: np.array([env.np_random.random(), np.nan], np.float32)),
    "observation-infinite": observing(
        lambda env: np.array([env.np_random.random(), np.inf], np.float32), spaces.Box(-np.inf, np.inf, (2,))
    ),
    "observation-reused": lambda: OneBuffer,
    "reward-type": having(reward=lambda env: None),
    "reward-type: cannot be shown": having(reward=lambda env: Wordless()),
    "reward-type: too large": having(reward=lambda env: 10**400),
    "reward-type: complex": having(reward=lambda env: 1j),
    "reward-array": having(reward=lambda env: np.array([1.0])),
    "reward-not-finite": having(reward=lambda env: np.inf if env.t == 3 else 0.0),
    "flag-type": having(ended=lambda env: None),
    "flag-not-bool": having(ended=lambda env: int(env.t >= 5)),
    "info-type": having(info=lambda env: None),
    "info-reserved-key": having(info=lambda env: {"_t": env.t}),
    "info-keys-change": having(info_between=lambda env: {"odd": 1} if env.t % 2 else {}),
    "info-entry-changes": having(info_between=lambda env: {"seen": np.zeros(env.t)}),
    "info-unpicklable": having(info=lambda env: {"lock": threading.Lock()}),
    "info-reused": lambda: OneInfo,
    "action-modified": lambda: HalvesActions,
}
"""Code of the fault, with what tells several of a kind apart -> what gives the maker of an env that has it alone."""
