"""What a step of TensorDict envs costs: one env, written once for gymbridge and once for TorchRL, in batches of both.

    python benchmarks/tensordict_step.py --num-envs 2,8,64 --json figures.json

The env counts and does nothing else; "the envs alone" is the cost of its own ``_step`` (and ``_reset``, where the case
has resets), called in a loop, which no batch can go below. In ``step`` no episode ends; in ``step_and_maybe_reset``
one does every 200 steps. A second table is about text: a step of envs that observe a ``Text`` space, beside no more
than putting as many texts into a ``NonTensorStack``, which TorchRL's batches do in each step.

Rounds, medians and ratios are those of ``vector_step.py``. Nothing is differentiated, and torch has one thread.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from program_options import add_names, program_parser, some_or_none
from report import Candidate, begin, figures_of, measured_how, report, table, time_cases, with_references
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase

from gymbridge.benchmarking.drivers import NUM_ACTIONS, numpy_engine, tensordict_engine, without_gradients
from gymbridge.benchmarking.rounds import Close, Run
from gymbridge.cli.option_values import positive_ints

LENGTHS = {"step": sys.maxsize, "step_and_maybe_reset": 200}
"""Case -> length of an episode."""

NUM_TEXTS = 32
"""Texts that are observed in turn."""


class Counting:
    """The env's own work, the same under both contracts."""

    length: int
    count: torch.Tensor

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        self.count = torch.zeros(1, dtype=torch.int64)
        return TensorDict({"count": self.count, "terminated": self.count < 0}, batch_size=torch.Size([]))

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.count = self.count + tensordict["action"]
        return TensorDict(
            {"count": self.count, "reward": torch.ones(1), "terminated": self.count >= self.length},
            batch_size=torch.Size([]),
        )

    def _set_seed(self, seed: int | None) -> None:
        pass


def gymbridge_env(length: int) -> Any:
    from gymbridge.envs import EnvBase
    from gymbridge.specs import Categorical, Composite, Unbounded

    class GymbridgeCounting(Counting, EnvBase):
        def __init__(self) -> None:
            super().__init__()
            self.observation_spec = Composite(count=Unbounded((1,), dtype=torch.int64))
            self.action_spec = Categorical(2)
            self.reward_spec = Unbounded((1,))
            self.length = length

    return GymbridgeCounting()


def torchrl_env(length: int) -> Any:
    from torchrl.data import Binary, Categorical, Composite, Unbounded
    from torchrl.envs import EnvBase

    class TorchRLCounting(Counting, EnvBase):
        def __init__(self) -> None:
            super().__init__()
            self.observation_spec = Composite(count=Unbounded((1,), dtype=torch.int64))
            self.action_spec = Categorical(2)
            self.reward_spec = Unbounded((1,))
            flags = ("done", "terminated", "truncated")
            self.done_spec = Composite({name: Binary(1, (1,), dtype=torch.bool) for name in flags})
            self.length = length

    return TorchRLCounting()


class TextEnv(gym.Env):
    """Observes texts that it has at hand."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Text(200, charset="abcdefghijklmnopqrstuvwxyz 0123456789")

    def __init__(self) -> None:
        self.texts = [f"you stand in room {number} and see a door" for number in range(NUM_TEXTS)]
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return self.texts[0], {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.texts[self.steps % NUM_TEXTS], 1.0, False, False, {}


# --- candidates ---


def alone(make_env: Callable[[int], Any], case: str, num_envs: int) -> tuple[Run, Close]:
    """The envs' own methods in a loop, over TensorDicts that are made beforehand."""
    envs = [make_env(LENGTHS[case]) for _ in range(num_envs)]
    for env in envs:
        env._reset(None)
    inputs = [TensorDict({"action": torch.ones((), dtype=torch.int64)}) for _ in range(NUM_ACTIONS)]
    resets = case != "step"

    def run(steps: int) -> None:
        for i in range(steps):
            given = inputs[i % NUM_ACTIONS]
            for env in envs:
                made = env._step(given)
                if resets and made["terminated"]:
                    env._reset(None)

    return without_gradients(run), lambda: None


def batch(env: Any, case: str) -> tuple[Run, Close]:
    """A batched env; the same code for gymbridge and TorchRL."""
    if case == "step_and_maybe_reset":
        return tensordict_engine(env)
    root = env.reset()
    actions = [env.rand_action(root.copy())["action"].clone() for _ in range(NUM_ACTIONS)]

    def run(steps: int) -> None:
        for i in range(steps):
            env.step(root.copy().set("action", actions[i % NUM_ACTIONS]))

    return without_gradients(run), env.close


def torchrl_serial(case: str, num_envs: int) -> tuple[Run, Close]:
    from torchrl.envs import SerialEnv

    return batch(SerialEnv(num_envs, functools.partial(torchrl_env, LENGTHS[case])), case)


def gymbridge_serial(case: str, num_envs: int) -> tuple[Run, Close]:
    from gymbridge import SerialEnv

    return batch(SerialEnv(num_envs, functools.partial(gymbridge_env, LENGTHS[case])), case)


def text_envs_alone(case: str, num_envs: int) -> tuple[Run, Close]:
    envs = [TextEnv() for _ in range(num_envs)]

    class Loop:
        def step(self, action: int) -> None:
            for env in envs:
                env.step(action)

        def close(self) -> None:
            pass

    return numpy_engine(Loop(), [0] * NUM_ACTIONS)


def text_stack(case: str, num_envs: int) -> tuple[Run, Close]:
    texts = TextEnv().texts

    def run(steps: int) -> None:
        for i in range(steps):
            NonTensorStack(*(NonTensorData(texts[(i + row) % NUM_TEXTS]) for row in range(num_envs)))

    return run, lambda: None


def gymbridge_text(case: str, num_envs: int) -> tuple[Run, Close]:
    from gymbridge import SerialEnv

    return batch(SerialEnv(num_envs, TextEnv), "step")


STEP_CANDIDATES = {
    "torchrl-alone": Candidate(
        "the TorchRL envs alone, in a loop", functools.partial(alone, torchrl_env), "gymbridge-serial"
    ),
    "gymbridge-alone": Candidate(
        "the gymbridge envs alone, in a loop", functools.partial(alone, gymbridge_env), "gymbridge-serial"
    ),
    "torchrl-serial": Candidate("TorchRL `SerialEnv`", torchrl_serial, "gymbridge-serial"),
    "gymbridge-serial": Candidate("**gymbridge `SerialEnv`**", gymbridge_serial, "gymbridge-serial"),
}

TEXT_CANDIDATES = {
    "text-alone": Candidate("the envs alone, in a loop", text_envs_alone, "gymbridge-text"),
    "text-stack": Candidate("a `NonTensorStack` of the texts, and no step", text_stack, "gymbridge-text"),
    "gymbridge-text": Candidate("**gymbridge `SerialEnv`**", gymbridge_text, "gymbridge-text"),
}

CANDIDATES = STEP_CANDIDATES | TEXT_CANDIDATES


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = program_parser(__doc__, rounds=7, seconds=0.3)
    add_names(parser, "--cases", LENGTHS)
    parser.add_argument("--num-envs", type=positive_ints, default="2,8,64")
    parser.add_argument(
        "--texts", type=some_or_none(positive_ints), default="8", help="numbers of envs that observe a text, or ''"
    )
    add_names(parser, "--peers", CANDIDATES)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    about = begin(("torch", "tensordict", "torchrl"), **measured_how(options))
    wanted = with_references(CANDIDATES, options.peers)
    step_cases = {f"{case} N={n}": (case, n) for case in options.cases for n in options.num_envs}
    text_cases = {f"text N={n}": ("step", n) for n in options.texts}
    figures = []
    for candidates, cases in ((STEP_CANDIDATES, step_cases), (TEXT_CANDIDATES, text_cases)):
        names = [name for name in wanted if name in candidates]
        if names and cases:
            columns = time_cases(names, candidates, cases, options.rounds, options.seconds)
            found = figures_of(columns, candidates)
            print("\n" + table(found, "us a step (times gymbridge's)"), flush=True)
            figures += found
    report(about, "us a step", figures, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
