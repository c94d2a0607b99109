"""Envs that do a fault when they are told to, and that count their own episodes and steps, so that each can be checked.

The action is the deed: every front can tell every env what to do, in the middle of a batch, and nothing else has to be
arranged. An observation is ``[index, process, episode, step, payload]``, all of it float64; ``Expected`` says what the
next one is to be.
"""

from __future__ import annotations

import os
import signal
import threading
from enum import IntEnum
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

__all__ = ["HUGE", "Chaos", "ChaosGymEnv", "Deed", "Unsendable", "length_of", "reward_of"]

HUGE = 64 * 2**20
"""Bytes of a huge info."""


class Deed(IntEnum):
    """What an env is told to do in a step."""

    STEP = 0
    RAISE = 1
    RAISE_UNSENDABLE = 2
    EXIT = 3
    KILL = 4
    HANG = 5
    UNPICKLABLE_INFO = 6
    HUGE_INFO = 7
    NAN = 8
    WRONG_SHAPE = 9
    WRONG_DTYPE = 10
    ARM_RAISE_IN_RESET = 11
    ARM_EXIT_IN_RESET = 12
    ARM_RAISE_IN_CLOSE = 13
    ARM_EXIT_IN_CLOSE = 14


class Unsendable(Exception):
    """It cannot be pickled, nor made again."""

    def __init__(self, index: int, lock: Any = None):
        super().__init__(f"env {index} has a lock")
        self.lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def length_of(index: int, episode: int) -> int:
    """Steps of an episode, which ends terminated."""
    return 3 + (index * 3 + episode * 5) % 7


def reward_of(index: int, episode: int, step: int) -> float:
    """The reward of a step, which says whose it is; float32 has it exactly."""
    return float(index * 100_000 + (episode % 1000) * 100 + step)


class Chaos:
    """Mixed into an env.

    Args:
        index: of the env among those of a program.
        folder: ``hanging-INDEX`` is a FIFO into which it says that it hangs, ``gate-INDEX`` one at which it waits for a
            byte; where ``raise-INDEX`` or ``exit-INDEX`` is there, it does that while it is made.
    """

    index: int
    folder: Path

    def begin(self, index: int, folder: Path) -> None:
        self.index = index
        self.folder = folder
        self.episode = 0
        self.count = 0
        self.armed = Deed.STEP
        if (folder / f"raise-{index}").exists():
            raise LookupError("not made", index)
        if (folder / f"exit-{index}").exists():
            os._exit(4)

    def begin_episode(self) -> None:
        self.episode += 1
        self.count = 0
        armed, self.armed = self.armed, Deed.STEP
        if armed == Deed.ARM_RAISE_IN_RESET:
            raise LookupError("no reset", self.index)
        if armed == Deed.ARM_EXIT_IN_RESET:
            os._exit(5)
        self.armed = armed

    def act(self, deed: Deed) -> None:
        """What is the same for both kinds."""
        self.count += 1
        if deed == Deed.RAISE:
            raise LookupError("broken", self.index)
        if deed == Deed.RAISE_UNSENDABLE:
            raise Unsendable(self.index)
        if deed == Deed.EXIT:
            os._exit(3)
        if deed == Deed.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if deed == Deed.HANG:
            (self.folder / f"hanging-{self.index}").write_bytes(b"h")
            with (self.folder / f"gate-{self.index}").open("rb", buffering=0) as gate:
                gate.read(1)
        if deed >= Deed.ARM_RAISE_IN_RESET:
            self.armed = deed

    @property
    def is_at_end(self) -> bool:
        return self.count >= length_of(self.index, self.episode)

    @property
    def reward(self) -> float:
        return reward_of(self.index, self.episode, self.count)

    def shown(self, deed: Deed = Deed.STEP) -> list[float]:
        payload = float("nan") if deed == Deed.NAN else float(deed)
        return [self.index, os.getpid(), self.episode, self.count, payload]

    def end(self) -> None:
        armed, self.armed = self.armed, Deed.STEP
        if armed == Deed.ARM_RAISE_IN_CLOSE:
            raise OSError("cannot close")
        if armed == Deed.ARM_EXIT_IN_CLOSE:
            os._exit(6)


class ChaosGymEnv(Chaos, gym.Env[Any, Any]):
    """Of gymnasium."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (5,), np.float64)
    action_space = gym.spaces.Discrete(len(Deed))

    def __init__(self, index: int, folder: Path):
        self.begin(index, folder)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.begin_episode()
        return np.array(self.shown()), {"count": 0}

    def step(self, action: Any) -> Any:
        deed = Deed(int(action))
        self.act(deed)
        info: dict[str, Any] = {"count": self.count}
        observation = np.array(self.shown(deed))
        if deed == Deed.UNPICKLABLE_INFO:
            info["lock"] = threading.Lock()
        elif deed == Deed.HUGE_INFO:
            info["huge"] = np.full(HUGE, self.index, np.uint8)
        elif deed == Deed.WRONG_SHAPE:
            observation = observation[:3]
        elif deed == Deed.WRONG_DTYPE:
            observation = observation.astype(np.complex128)
        return observation, self.reward, self.is_at_end, False, info

    def close(self) -> None:
        self.end()
