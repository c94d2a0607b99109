"""``rollout(progress=...)``: what it shows of how many steps and episodes, to whom, and how it ends."""

from __future__ import annotations

import builtins
import io
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
import torch
from engines import ON_RAY, Engine
from tensordict import TensorDictBase
from zoo import CountingEnv

from gymbridge import SerialEnv
from gymbridge.envs.rollout_progress import RolloutProgress
from gymbridge.vector import from_vector_env

LAST = "rollout: step 7 of 7, "


class Terminal(io.StringIO):
    """Standard error that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Terminal]:
    """Has standard error be a terminal from the call on: pytest puts its own in place right before the test."""

    def replace() -> Terminal:
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "200")
        return stream

    return replace


@pytest.fixture
def without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no rich."""
    original = builtins.__import__

    def imported(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "rich":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", imported)


def counting(num_envs: int = 2) -> SerialEnv:
    return SerialEnv(num_envs, CountingEnv)


# ---------------------------------------------------------------- the figures


def of_rollout(td: TensorDictBase, *, once: bool = False) -> tuple[int, int, float]:
    """Steps of envs, episodes and the mean of their returns, by hand."""
    done, reward = (td["next", key].reshape(-1, td.shape[-1]) for key in ("done", "reward"))
    steps, returns = 0, []
    for flags, rewards in zip(done.tolist(), reward.tolist(), strict=True):
        total = 0.0
        for flag, own in zip(flags, rewards, strict=True):
            steps += 1
            total += own
            if flag:
                returns.append(total)
                total = 0.0
                if once:
                    break
    return steps, len(returns), sum(returns) / len(returns) if returns else math.nan


@pytest.mark.parametrize(
    "breaks", [{"break_when_any_done": False}, {"break_when_all_done": True}, {}], ids=["goes on", "all", "any"]
)
def test_a_function_has_the_figures_after_each_step(contract: Engine, breaks: dict[str, bool]) -> None:
    seen: list[RolloutProgress] = []
    env = contract.make(CountingEnv)
    td = env.rollout(9, progress=seen.append, **breaks)
    num_steps = td.shape[-1]
    assert [each.step for each in seen] == [*range(1, num_steps + 1)]
    assert {each.max_steps for each in seen} == {9}
    once = breaks.get("break_when_all_done", False)
    for step, each in enumerate(seen, 1):
        steps, episodes, mean_return = of_rollout(td[..., :step], once=once)
        assert each.episodes == episodes
        assert each.mean_return == pytest.approx(mean_return, nan_ok=True)
        assert each.steps_per_second * each.seconds == pytest.approx(steps)
    assert seen[-1].episodes > 0
    env.close()


@pytest.mark.skipif(ON_RAY, reason="a batch in this process")
def test_rewards_of_unlike_envs_are_summed() -> None:
    seen: list[RolloutProgress] = []
    env = SerialEnv(2, ["CartPole-v1", "Pendulum-v1"])
    env.rollout(5, progress=seen.append, break_when_any_done=False)
    assert seen[-1].steps_per_second * seen[-1].seconds == pytest.approx(10)
    env.close()


def test_dead_steps_are_none() -> None:
    seen: list[RolloutProgress] = []
    env = from_vector_env(gym.vector.SyncVectorEnv([partial(CountingEnv, (2,))] * 2), reset_mask=False)
    td = env.rollout(6, progress=seen.append, break_when_any_done=False)
    assert not td["next", "valid"].all()
    assert seen[-1].steps_per_second * seen[-1].seconds == pytest.approx(int(td["next", "valid"].sum()))
    assert seen[-1].episodes == 4
    env.close()


# ---------------------------------------------------------------- who sees them


def test_elsewhere_than_on_a_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    env = counting()
    env.rollout(7, break_when_any_done=False, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(LAST)
    assert "episodes, mean return" in err
    assert err.endswith("\n")
    assert (err.count("\n"), err.count("\r")) == (1, 0)
    env.rollout(7, break_when_any_done=False)
    assert capsys.readouterr() == ("", "")
    env.close()


@pytest.mark.usefixtures("without_rich")
def test_on_a_terminal_without_rich_a_line_is_written_over(terminal: Callable[[], Terminal]) -> None:
    stream = terminal()
    counting().rollout(7, break_when_any_done=False, progress=True)
    text = stream.getvalue()
    assert text.startswith("\r")
    assert text.rpartition("\r")[2].startswith(LAST)
    assert text.endswith("\n")
    assert text.count("\n") == 1


def test_on_a_terminal_there_is_a_bar(terminal: Callable[[], Terminal]) -> None:
    pytest.importorskip("rich")
    stream = terminal()
    counting().rollout(7, break_when_any_done=False, progress=True)
    text = stream.getvalue()
    assert "7/7" in text
    assert "steps/s" in text
    assert "mean return" in text
    assert text.rstrip().endswith("\x1b[?25h"), "the cursor is shown again"


def test_a_program_without_standard_error_sees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert counting().rollout(7, break_when_any_done=False, progress=True).shape == (2, 7)


@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
@pytest.mark.parametrize("with_rich", [True, False])
def test_it_ends_with_the_rollout_whatever_ends_that(
    with_rich: bool, error: type[BaseException], terminal: Callable[[], Terminal], request: pytest.FixtureRequest
) -> None:
    """What was shown last stays, and the terminal is the caller's again."""
    if with_rich:
        pytest.importorskip("rich")
    else:
        request.getfixturevalue("without_rich")
    env = counting()
    stream = terminal()
    calls = 0

    def policy(td: TensorDictBase) -> TensorDictBase:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise error("enough")
        return td.set("action", torch.zeros(2, dtype=torch.int64))

    with pytest.raises(error, match="enough"):
        env.rollout(7, policy, break_when_any_done=False, progress=True)
    text = stream.getvalue()
    assert ("3/7" if with_rich else "step 3 of 7") in text
    assert text.rstrip().endswith("\x1b[?25h") if with_rich else text.endswith("\n")
    env.close()


def test_what_the_function_raises_ends_the_rollout() -> None:
    def refuse(figures: RolloutProgress) -> None:
        if figures.step == 3:
            raise StopAsyncIteration("enough")

    env = counting()
    with pytest.raises(StopAsyncIteration, match="enough"):
        env.rollout(7, break_when_any_done=False, progress=refuse)
    env.close()


@pytest.mark.parametrize("given", ["yes", 1, None, [print]])
def test_what_is_neither_a_bool_nor_a_function_is_refused(contract: Engine, given: Any) -> None:
    env = contract.make(CountingEnv)
    with pytest.raises(TypeError, match=r"progress: got .*, expected True, False or a function"):
        env.rollout(2, progress=given)
    env.close()
