"""TensorDict envs each of which has one fault, of those that ``gymbridge.contract`` knows."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, ClassVar

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase

from gymbridge.envs import EnvBase
from gymbridge.specs import Bounded, Composite, NonTensor, Unbounded

__all__ = ["FAULTY_TENSORDICT_ENVS", "SOUND_TENSORDICT_ENVS"]


class SoundTensorDictEnv(EnvBase):
    """Shows a clock and a random number; an episode has five steps. Nothing is wrong with it."""

    length = 5
    more: ClassVar[dict[str, Any]] = {}
    """Specs of what it observes besides."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(x=Bounded(-10, 10, (2,)), **self.more)
        self.action_spec = Bounded(-1, 1, (1,))
        self.reward_spec = Unbounded((1,))
        self.generator = torch.Generator()
        self.t = 0

    def observe(self) -> dict[str, Any]:
        return {"x": torch.stack([torch.tensor(float(self.t)), torch.rand((), generator=self.generator)])}

    def outcome(self, td: TensorDictBase) -> dict[str, Any]:
        return {"reward": td["action"] + self.t, "terminated": torch.tensor([self.t >= self.length])}

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> Any:
        self.t = 0
        return TensorDict(self.observe())

    def _step(self, tensordict: TensorDictBase) -> Any:
        self.t += 1
        return TensorDict({**self.observe(), **self.outcome(tensordict)})

    def _set_seed(self, seed: int | None) -> None:
        self.generator.manual_seed(seed or 0)


class SoundBatch(EnvBase):
    """Two rows that count for themselves and honour masks. Nothing is wrong with it."""

    partial_step = partial_reset = True  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(batch_size=(2,))
        self.observation_spec = Composite(clock=Unbounded((2, 1)), noise=Bounded(0, 1, (2, 1)), shape=(2,))
        self.action_spec = Bounded(-1, 1, (2, 1))
        self.reward_spec = Unbounded((2, 1))
        self.generator = torch.Generator()
        self.clock = torch.zeros(2, 1)

    def picked(self, td: TensorDictBase | None, name: str) -> torch.Tensor:
        mask = None if td is None else td.get(name, None)
        return torch.ones(2, 1, dtype=torch.bool) if mask is None else mask.reshape(2, 1)

    def observe(self) -> TensorDict:
        noise = torch.rand(2, 1, generator=self.generator)  # of both rows: a mask has other numbers drawn
        return TensorDict({"clock": self.clock.clone(), "noise": noise}, [2])

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> Any:
        self.clock = torch.where(self.picked(tensordict, "_reset"), 0.0, self.clock)
        return self.observe()

    def _step(self, tensordict: TensorDictBase) -> Any:
        self.clock = self.clock + self.picked(tensordict, "_step")
        made = self.observe()
        return made.set("reward", tensordict["action"].clone()).set("terminated", self.clock >= 6)

    def _set_seed(self, seed: int | None) -> None:
        self.generator.manual_seed(seed or 0)


class SoundStates(SoundTensorDictEnv):
    """One whose position is in the TensorDict. Nothing is wrong with it."""

    more: ClassVar[dict[str, Any]] = {"position": Unbounded((1,))}

    def __init__(self) -> None:
        super().__init__()
        self.state_spec = Composite(position=Unbounded((1,)))
        self.position = torch.zeros(1)

    def observe(self) -> dict[str, Any]:
        return {**super().observe(), "position": self.position.clone()}

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> Any:
        self.position = torch.zeros(1)
        return super()._reset(tensordict)

    def _step(self, tensordict: TensorDictBase) -> Any:
        self.position = self.moved(tensordict)
        return super()._step(tensordict)

    def moved(self, td: TensorDictBase) -> torch.Tensor:
        return td["position"] + td["action"]


Make = Callable[[], Callable[[], EnvBase]]


def having(base: type[EnvBase] = SoundTensorDictEnv, **attributes: Any) -> Make:
    """A sound env's class but for some attributes; it goes to workers by value."""
    return lambda: type("FaultyEnv", (base,), {"__module__": "__main__", **attributes})


def observing(also: Callable[[Any], dict[str, Any]], **more: Any) -> Make:
    """One that observes something besides, or instead."""
    return having(more=more, observe=lambda env: {**SoundTensorDictEnv.observe(env), **also(env)})


def stepping(outcome: Callable[[Any, TensorDictBase], dict[str, Any]], **more: Any) -> Make:
    """One whose steps give something besides, or instead."""
    attributes = {"more": more} if more else {}
    return having(outcome=lambda env, td: {**SoundTensorDictEnv.outcome(env, td), **outcome(env, td)}, **attributes)


# ---------------------------------------------------------------- calls, seeds, instances


def refuse_negative(env: SoundTensorDictEnv, td: TensorDictBase) -> dict[str, Any]:
    if td["action"] < 0:
        raise ArithmeticError("negative")
    return {}


def raise_always(env: EnvBase, *arguments: Any, **options: Any) -> Any:
    raise ConnectionError("no more games today")


def wait_for_ever(env: EnvBase, *arguments: Any, **options: Any) -> Any:
    threading.Event().wait()


def close_badly(env: EnvBase, *, raise_if_closed: bool = True) -> None:
    raise BrokenPipeError("gone")


def once() -> Callable[[], EnvBase]:
    made: list[EnvBase] = []

    def make() -> EnvBase:
        if made:
            raise OSError("the port is in use")
        made.append(SoundTensorDictEnv())
        return made[0]

    return make


class CountsEpisodes(SoundTensorDictEnv):
    episode = 0

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> Any:
        self.episode += 1
        return super()._reset(tensordict)

    def outcome(self, td: TensorDictBase) -> dict[str, Any]:
        return {**super().outcome(td), "reward": torch.tensor([float(self.episode)])}


def numbered(differ: Callable[[Any, int], Any]) -> Callable[[], EnvBase]:
    numbers = count()

    def make() -> EnvBase:
        env = SoundTensorDictEnv()
        differ(env, next(numbers))
        return env

    return make


def give_another_spec(env: SoundTensorDictEnv, number: int) -> None:
    env.observation_spec = Composite(x=Bounded(-10, 10 + number, (2,)))


def shared_clock(env: SoundTensorDictEnv) -> dict[str, Any]:
    if env.t == 0:
        env.shared[0] = 0  # type: ignore[attr-defined]
    env.shared[0] += 1  # type: ignore[attr-defined]
    return {**SoundTensorDictEnv.observe(env), "shared": torch.tensor([float(env.shared[0])])}  # type: ignore[attr-defined]


class ElsewhereEnv(SoundTensorDictEnv):
    """Does something else where it is not in the process that it was born in."""

    def __init__(self, process: int, elsewhere: Callable[[], float]):
        super().__init__()
        self.process = process
        self.elsewhere = elsewhere

    def outcome(self, td: TensorDictBase) -> dict[str, Any]:
        reward = 0.0 if os.getpid() == self.process else self.elsewhere()
        return {**super().outcome(td), "reward": torch.tensor([reward])}


def elsewhere(does: Callable[[], float]) -> Make:
    return lambda: partial(ElsewhereEnv, os.getpid(), does)


def raise_elsewhere() -> float:
    raise FileNotFoundError("settings.toml")


def die_elsewhere() -> float:
    os._exit(3)


def hang_elsewhere() -> float:
    threading.Event().wait()
    return 0.0


def with_a_lock() -> Callable[[], EnvBase]:
    lock = threading.Lock()

    def make() -> EnvBase:
        with lock:
            return SoundTensorDictEnv()

    return make


# ---------------------------------------------------------------- specs and outputs


class NoActionSpec(SoundTensorDictEnv):
    def __init__(self) -> None:
        super().__init__()
        del self._specs["action"]


class GrowingSpec(SoundTensorDictEnv):
    high = 10

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> Any:
        self.high += 1
        self.observation_spec = Composite(x=Bounded(-10, self.high, (2,)))
        return super()._reset(tensordict)


class OneBuffer(SoundTensorDictEnv):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = torch.zeros(2)

    def observe(self) -> dict[str, Any]:
        return {"x": self.buffer.copy_(super().observe()["x"])}


class ReturnsWhatItWasGiven(SoundTensorDictEnv):
    def _step(self, tensordict: TensorDictBase) -> Any:
        return tensordict.update(super()._step(tensordict))


class UnstableRepr(SoundTensorDictEnv):
    asked = 0

    def __repr__(self) -> str:
        self.asked += 1
        return f"UnstableRepr, asked {self.asked} times"


class ResetsFromNothing(SoundTensorDictEnv):
    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> Any:
        if tensordict is not None:
            raise NotImplementedError("a reset from a TensorDict")
        return super()._reset(tensordict)


def write_into(env: SoundTensorDictEnv, td: TensorDictBase) -> dict[str, Any]:
    reward = td["action"] * 2
    td["action"].mul_(0.5)
    return {"reward": reward}


def disagree(env: SoundTensorDictEnv, td: TensorDictBase) -> dict[str, Any]:
    return {"done": torch.tensor([False]), "truncated": torch.tensor([False])}


def without(key: str) -> Callable[[Any, TensorDictBase], Any]:
    def step(env: Any, td: TensorDictBase) -> Any:
        return SoundTensorDictEnv._step(env, td).exclude(key)

    return step


class UnwrittenState(SoundTensorDictEnv):
    def __init__(self) -> None:
        super().__init__()
        self.state_spec = Composite(hidden=Bounded(-1, 1, (1,)))

    def outcome(self, td: TensorDictBase) -> dict[str, Any]:
        return {**super().outcome(td), "reward": td["hidden"].clone()}


class ResetsAllRows(SoundBatch):
    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> Any:
        return super()._reset(None)


class StepsAllRows(SoundBatch):
    def _step(self, tensordict: TensorDictBase) -> Any:
        return super()._step(tensordict.exclude("_step"))


def with_rand(draw: Callable[[], float]) -> Make:
    return observing(lambda env: {"drawn": torch.tensor([draw()])}, drawn=Unbounded((1,)))


FAULTY_TENSORDICT_ENVS: dict[str, Make] = {
    "reset-raises": having(_reset=raise_always),
    "reset-raises: seed": having(_set_seed=raise_always),
    "step-raises": stepping(refuse_negative),
    "reset-hangs": having(_reset=wait_for_ever),
    "step-hangs": having(_step=wait_for_ever),
    "make-again-raises": once,
    "close-raises": having(close=close_badly),
    "no-end": having(length=10**9, observe=lambda env: {"x": torch.rand(2, generator=env.generator)}),
    "seed-not-repeatable": having(_set_seed=lambda env, seed: env.generator.seed()),
    "reset-carries-over": lambda: CountsEpisodes,
    "seed-ignored": having(_set_seed=lambda env, seed: env.generator.manual_seed(7)),
    "instances-differ": lambda: numbered(lambda env, number: setattr(env, "length", 3 + number)),
    "instances-differ: specs": lambda: numbered(give_another_spec),
    "instances-share-state": having(more={"shared": Unbounded((1,))}, shared=[0], observe=shared_clock),
    "global-random": with_rand(lambda: float(np.random.random())),  # noqa: NPY002  # that is the fault
    "global-random: python": with_rand(lambda: random.random()),
    "torch-random": with_rand(lambda: torch.rand(()).item()),
    "maker-unpicklable": with_a_lock,
    "worker-raises": elsewhere(raise_elsewhere),
    "worker-dies": elsewhere(die_elsewhere),
    "worker-hangs": elsewhere(hang_elsewhere),
    "worker-differs": elsewhere(lambda: 1.0),
    "spec-missing": lambda: NoActionSpec,
    "spec-changes": lambda: GrowingSpec,
    "output-type": having(_step=lambda env, td: {"x": torch.zeros(2)}),
    "output-batch-size": having(_step=lambda env, td: SoundTensorDictEnv._step(env, td).expand(1).clone()),
    "entry-missing": having(_step=without("reward")),
    "entry-extra": observing(lambda env: {"more": torch.zeros(1)}),
    "entry-type": observing(lambda env: {"y": NonTensorData("up")}, y=Unbounded((1,))),
    "entry-type: a tensor": observing(lambda env: {"y": torch.zeros(())}, y=NonTensor((), example_data="up")),
    "entry-shape": observing(lambda env: {"y": torch.zeros(2)}, y=Unbounded((1,))),
    "entry-dtype": observing(lambda env: {"y": torch.zeros(1, dtype=torch.float64)}, y=Unbounded((1,))),
    "entry-device": observing(lambda env: {"y": torch.zeros(1, device="meta")}, y=Unbounded((1,))),
    "entry-domain": observing(lambda env: {"y": torch.full((1,), 2.0)}, y=Bounded(-1, 1, (1,))),
    "entry-nan": observing(lambda env: {"y": torch.full((1,), torch.nan)}, y=Unbounded((1,))),
    "flags-disagree": stepping(disagree),
    "done-after-reset": having(
        _reset=lambda env, td, **kwargs: SoundTensorDictEnv._reset(env, td).set("terminated", torch.ones(1) > 0)
    ),
    "output-aliases-input": stepping(lambda env, td: {"reward": td["action"]}),
    "output-aliases-input: all": lambda: ReturnsWhatItWasGiven,
    "output-reused": lambda: OneBuffer,
    "input-modified": stepping(write_into),
    "state-ignored": having(SoundStates, moved=lambda env, td: env.position + td["action"]),
    "state-not-written": lambda: UnwrittenState,
    "partial-reset": lambda: ResetsAllRows,
    "partial-step": lambda: StepsAllRows,
    "metadata-unstable": lambda: UnstableRepr,
    "refused": lambda: ResetsFromNothing,
}
"""Code of the fault, with what tells several of a kind apart -> what gives the maker of an env that has it alone."""

SOUND_TENSORDICT_ENVS = (SoundTensorDictEnv, SoundBatch, SoundStates)
