"""The programs in examples/ run as they stand; those that learn do learn, from what their episodes really were.

A run that learns takes some 10 seconds here. With GYMBRIDGE_FULL_EXAMPLES=1 each also learns until the mean return is
over 450, with five seeds.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

EXAMPLES = Path(__file__).parents[1] / "examples"
PROCESS_ENGINES = {"ppo_gymnasium": "async", "ppo_tensordict": "parallel"}
LEARNERS = [*PROCESS_ENGINES]

Run = Callable[..., str]
Load = Callable[[str], Any]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path, subprocess_env: dict[str, str]) -> Run:
    """Runs an example with some options in an empty directory; what it printed."""

    def run_example(name: str, *options: str) -> str:
        command = [sys.executable, EXAMPLES / f"{name}.py", *options]
        done = subprocess.run(command, cwd=tmp_path, env=subprocess_env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_example


@pytest.fixture
def load() -> Iterator[Load]:
    """An example as a module; it sets torch's threads, which are put back."""

    def module(name: str) -> Any:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    threads = torch.get_num_threads()
    yield module
    torch.set_num_threads(threads)


def mean_return(printed: str) -> float:
    """The mean return of the last 100 episodes that an example prints at its end."""
    found = re.findall(r"mean return of the last 100 episodes: ([0-9.]+)$", printed, re.MULTILINE)
    assert found, printed
    return float(found[-1])


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"pool_serving", "quickstart", *LEARNERS}


def test_quickstart_runs(run: Run) -> None:
    assert run("quickstart").count("env steps a second") == 2


def test_pool_serving_prints_its_table(run: Run) -> None:
    """A row for each use, every one of which gives transitions, in batches of the size that it is for."""
    printed = run("pool_serving", "--num-envs=6", "--batch-size=3", "--seconds=0.2")
    rows = re.findall(r"^(\w.*?) {2,}([\d,]+) +([\d.]+)$", printed, re.MULTILINE)
    assert [name for name, *_ in rows] == [
        "AsyncEnvPool, at least 3",
        "PoolVectorEnv, 3",
        "AsyncEnvPool, all",
        "ParallelEnv",
    ]
    assert all(int(rate.replace(",", "")) > 0 for _, rate, _ in rows)
    sizes = [float(size) for *_, size in rows]
    assert 3 <= sizes[0] <= 6
    assert sizes[1:] == [3, 6, 6]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LEARNERS)
def test_it_learns_and_draws_its_curve(name: str, run: Run, tmp_path: Path) -> None:
    # A random policy's mean return is 22, and after these steps it is 200 with any seed tried.
    assert mean_return(run(name, "--total-steps=30000")) > 100
    drawing = (tmp_path / f"{name}.png").read_bytes()
    assert drawing.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = int.from_bytes(drawing[16:20], "big"), int.from_bytes(drawing[20:24], "big")
    assert (width, height) == (800, 500)
    assert len(drawing) > 10_000  # an empty figure of this size takes 3,000 bytes


@pytest.mark.parametrize("name", LEARNERS)
def test_worker_processes_give_the_same_returns(name: str, load: Load, tmp_path: Path, capsys: Capture) -> None:
    main = load(name).main
    options = ["--total-steps=3000", "--num-envs=4", "--plot="]
    here = main(options)
    assert main([*options, f"--engine={PROCESS_ENGINES[name]}"]) == here > 0
    assert mean_return(capsys.readouterr().out) == pytest.approx(here, abs=0.005)


@pytest.mark.parametrize("name", LEARNERS)
def test_without_matplotlib_it_says_what_to_install(
    name: str, load: Load, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    example = load(name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="2"):
        example.main(["--total-steps=1"])
    assert "pip install 'gymbridge[examples]'" in capsys.readouterr().err


# Two envs, three steps. The first ends at its first step, terminated, the second at its second, truncated.
REWARDS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
VALUES = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
NEXT_VALUES = torch.tensor([[9.0, 0.3, 0.7], [0.5, 7.0, 0.8]])
TERMINATED = torch.tensor([[True, False, False], [False, False, False]])
DONE = torch.tensor([[True, False, False], [False, True, False]])


def expected_advantages(example: Any) -> torch.Tensor:
    gamma, decay = example.DISCOUNT, example.DISCOUNT * example.GAE_LAMBDA
    last = 3 + gamma * 0.7 - 0.3
    first = [1 - 0.1, 2 + gamma * 0.3 - 0.2 + decay * last, last]
    truncated = 5 + gamma * 7.0 - 0.5
    second = [4 + gamma * 0.5 - 0.4 + decay * truncated, truncated, 6 + gamma * 0.8 - 0.6]
    return torch.tensor([first, second])


def test_advantages_of_tensordicts_end_with_the_episode(load: Load) -> None:
    """A truncated episode goes on with its final observation's value, a terminated one with nothing."""
    example = load("ppo_tensordict")
    following = {"observation": NEXT_VALUES, "reward": REWARDS, "terminated": TERMINATED, "done": DONE}
    entries = {key: value.unsqueeze(-1) for key, value in following.items()}
    rollout = TensorDict({"observation": VALUES.unsqueeze(-1), "next": entries}, [2, 3])

    class Critic:
        critic = torch.nn.Identity()  # an observation is its value

    example.add_advantages(Critic(), rollout)
    torch.testing.assert_close(rollout["advantage"].squeeze(-1), expected_advantages(example))
    torch.testing.assert_close(rollout["value_target"], rollout["advantage"] + rollout["observation"])


def test_advantages_of_vector_steps_end_with_the_episode(load: Load) -> None:
    """The same, where a final observation is the next row's and belongs to a step that only resets."""
    example = load("ppo_gymnasium")
    expected = expected_advantages(example)
    for env, end in enumerate((0, 1)):
        # The row after the end: its value is the final observation's, its reward 0, and no episode ends.
        rewards, values, terminated, done = ([*part[env].tolist()] for part in (REWARDS, VALUES, TERMINATED, DONE))
        rewards.insert(end + 1, 0.0)
        values.insert(end + 1, NEXT_VALUES[env, end].item())
        terminated.insert(end + 1, False)
        done.insert(end + 1, False)
        values.append(NEXT_VALUES[env, -1].item())
        columns = [torch.tensor(column).unsqueeze(-1) for column in (rewards, values, terminated, done)]
        estimates = example.advantages(*columns).squeeze(-1)
        real = [row for row in range(4) if row != end + 1]
        torch.testing.assert_close(estimates[real], expected[env])


@pytest.mark.parametrize("name", LEARNERS)
def test_no_transition_begins_where_an_episode_ended(name: str, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a final observation is a reset, which no action brought about: nothing to learn from."""
    example, seen, steps = load(name), [], 1024

    def observations_only(agent: Any, optimizer: Any, given: Any, *rest: Any) -> None:
        seen.append(given.clone() if isinstance(given, torch.Tensor) else given["observation"].flatten(0, 1))

    monkeypatch.setattr(example, "update", observations_only)
    returned = example.main([f"--total-steps={steps}", "--plot="])
    observations = torch.cat(seen)
    ended = (observations[:, 0].abs() > 2.4) | (observations[:, 2].abs() > 0.2095)  # CartPole's limits
    assert not ended.any()
    assert steps * 0.9 < len(observations) <= steps
    assert 0 < returned < 100  # episodes did end


if os.environ.get("GYMBRIDGE_FULL_EXAMPLES"):

    @pytest.mark.timeout(1200)
    @pytest.mark.parametrize("seed", range(1, 6))
    @pytest.mark.parametrize("name", LEARNERS)
    def test_it_learns_to_balance(name: str, seed: int, run: Run) -> None:
        assert mean_return(run(name, f"--seed={seed}")) > 450
