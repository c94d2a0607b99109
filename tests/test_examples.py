"""The programs in examples/ run as they stand; those that learn do learn, from what their episodes really were.

A run that learns takes some 10 seconds here. With GYMBRIDGE_FULL_EXAMPLES=1 both PPOs of our own also learn until the
mean return is over 450, with five seeds. Examples of libraries that are not installed are skipped; tox has them run.
"""

from __future__ import annotations

import asyncio
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
from PIL import Image
from tensordict import TensorDict

EXAMPLES = Path(__file__).parents[1] / "examples"
PROCESS_ENGINES = {"ppo_gymnasium": "async", "ppo_tensordict": "parallel"}
LEARNERS = [*PROCESS_ENGINES]
OTHERS = [
    "asyncio_envs",
    "custom_tensordict_env",
    "multi_task",
    "pool_serving",
    "ppo_sb3",
    "ppo_torchrl",
    "quickstart",
    "record_video",
]

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


def needs(library: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*OTHERS, *LEARNERS}


def test_every_example_is_listed_with_how_to_run_it() -> None:
    listed = re.findall(r"^\| \[(\w+)\.py\]\((\w+)\.py\) \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted((name, name) for name in [*OTHERS, *LEARNERS])
    for name in [*OTHERS, *LEARNERS]:
        assert f"\npython examples/{name}.py" in (EXAMPLES / f"{name}.py").read_text(), name


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
    assert re.search(r"gives \d+\.\d times what stepping all together gives$", printed)


def test_asyncio_envs_play_in_the_fewest_guesses(run: Run) -> None:
    """Each env has its own conversation with the server: with a mixed-up answer an episode would take more."""
    printed = run("asyncio_envs", "--num-envs=40", "--transitions=1000")
    found = re.match(r"40 envs, (\d+) episodes of ([\d.]+) guesses, (\d) at most\n", printed)
    assert found, printed
    assert 1000 / 7 - 40 <= int(found[1]) <= 1100
    assert 4 < float(found[2]) < 7  # 5.8 over all numbers
    assert int(found[3]) == 7


def test_asyncio_envs_wait_all_at_once(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gives its first answer once all envs have asked, which one after the other they never would."""
    example, num_envs = load("asyncio_envs"), 12
    asked: list[object] = []
    all_have = asyncio.Event()

    async def think(server: object) -> None:
        asked.append(server)
        if len(asked) == num_envs:
            all_have.set()
        await all_have.wait()

    monkeypatch.setattr(example.Server, "think", think)
    guesses = example.main([f"--num-envs={num_envs}", "--transitions=200"])
    assert guesses
    assert max(guesses) <= 7
    # a request for each reset and guess, those included that were under way at the end
    assert 200 + num_envs + len(guesses) <= len(asked) <= 200 + 3 * num_envs + len(guesses)


def test_a_policy_for_a_custom_env_is_learned_through_gymnasium(run: Run) -> None:
    printed = run("custom_tensordict_env", "--num-envs=64", "--generations=10")
    shares = re.findall(r"^(.+): +(\d+)%(?: of 64)? docked", printed, re.MULTILINE)
    assert [name for name, _ in shares] == [*(f"generation {i}" for i in range(10)), "trained", "no pilot"]
    shares_of = {name: int(share) for name, share in shares}
    assert shares_of["generation 0"] < 10  # random weights
    assert shares_of["no pilot"] == 0
    assert shares_of["trained"] > 80  # all, with any seed tried


def test_the_custom_env_ends_as_it_says(load: Load) -> None:
    """A craft docks, another is lost, a third runs out of time; a fourth goes on, and one that is masked stays."""
    env = load("custom_tensordict_env").Docking(5)
    td = env.reset()
    env.position = torch.tensor([[0.1, 0.0], [5.99, 0.0], [3.0, 0.0], [3.0, 0.0], [3.0, 0.0]])
    env.velocity = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    env.steps = torch.tensor([[1], [1], [99], [98], [99]])
    td["action"] = torch.zeros(5, 2)
    td["_step"] = torch.tensor([True, True, True, True, False])
    td, td_ = env.step_and_maybe_reset(td)
    assert td["next", "terminated"].flatten().tolist() == [True, True, False, False, False]
    assert td["next", "truncated"].flatten().tolist() == [False, False, True, False, False]
    assert td["next", "reward"].flatten().tolist() == pytest.approx([10.0, -10.2, 0.0, 0.0, 0.0])
    assert env.steps.flatten().tolist() == [0, 0, 0, 99, 99]
    torch.testing.assert_close(td_["position"][:3].norm(dim=-1), torch.full((3,), 3.0))  # new episodes
    assert env.position[3:].tolist() == [[3.0, 0.0], [3.0, 0.0]]


def test_a_policy_serves_a_batch_of_three_tasks(load: Load, capsys: Capture) -> None:
    returns = load("multi_task").main(["--num-envs=1", "--steps=500"])
    assert [*returns] == ["CartPole-v1", "MountainCar-v0", "Pendulum-v1"]
    # a random policy has 22, -200 and -1200 or so
    assert returns["CartPole-v1"][1] == 500 > 5 * returns["CartPole-v1"][0]
    assert returns["MountainCar-v0"][1] > -150 > returns["MountainCar-v0"][0]
    assert returns["Pendulum-v1"][1] > -400 > returns["Pendulum-v1"][0]
    assert capsys.readouterr().out.endswith("for one network that takes them all: [3, 4]\n")


def test_a_task_whose_episodes_do_not_end_has_no_mean(load: Load, capsys: Capture) -> None:
    returns = load("multi_task").main(["--num-envs=1", "--steps=5"])
    assert {*returns.values()} == {(None, None)}
    assert len(re.findall(r" - +-$", capsys.readouterr().out, re.MULTILINE)) == 3


def test_workers_run_the_three_tasks_alike(load: Load) -> None:
    main = load("multi_task").main
    here = main(["--num-envs=2", "--steps=200"])
    assert len({value for values in here.values() for value in values}) >= 5  # it is not all zeros
    assert main(["--num-envs=2", "--steps=200", "--engine=parallel"]) == here


def test_a_film_has_a_picture_of_the_reset_and_of_each_step(load: Load, tmp_path: Path) -> None:
    path, fallen = load("record_video").main([f"--folder={tmp_path}", "--steps=60"])
    with Image.open(path) as film:
        assert (film.format, film.n_frames, film.size) == ("GIF", 61, (900, 400))
        first = film.convert("RGB").tobytes()
        film.seek(60)
        assert film.convert("RGB").tobytes() != first
        assert film.info["duration"] == 40
    assert fallen[0] > 0 == fallen[1]  # the upper row acts at random, the lower one balances


@needs("moviepy")
def test_gymnasiums_recorder_films_it(load: Load, tmp_path: Path) -> None:
    import imageio_ffmpeg

    path, fallen = load("record_video").main([f"--folder={tmp_path}", "--steps=60", "--format=mp4"])
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert (frames, seconds) == (61, pytest.approx(61 / 25, abs=0.05))
    assert fallen[0] > 0 == fallen[1]


@pytest.mark.parametrize(
    ("suffix", "library", "told"),
    [
        ("gif", "PIL", "pip install 'gymbridge[examples]'"),
        ("mp4", "moviepy", "pip install moviepy"),
        ("gif", "pygame", "pip install 'gymnasium[classic-control]'"),
    ],
)
def test_a_film_that_lacks_a_library_says_what_to_install(
    suffix: str, library: str, told: str, load: Load, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    example = load("record_video")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SystemExit, match="2"):
        example.main([f"--format={suffix}"])
    assert told in capsys.readouterr().err


@needs("stable_baselines3")
@pytest.mark.timeout(600)
def test_sb3_learns_on_workers(run: Run, tmp_path: Path) -> None:
    printed = run("ppo_sb3", "--total-steps=12000", "--folder=saved")
    found = re.search(r"^loaded, mean return of 20 episodes: ([\d.]+)", printed, re.MULTILINE)
    assert found, printed
    assert float(found[1]) > 100  # over 180 with any seed tried; a random policy has 22
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"model.zip", "normalisation.pkl"}


@needs("stable_baselines3")
def test_sb3_learns_alike_without_workers(load: Load, tmp_path: Path, capsys: Capture) -> None:
    main, printed = load("ppo_sb3").main, []
    for engine in ("workers", "in-process"):
        main(["--total-steps=1500", "--num-envs=4", f"--engine={engine}", f"--folder={tmp_path}"])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert re.match(r"1536 steps, mean return of the last \d\d episodes: \d\d\.\d\n", printed[0])


@needs("torchrl")
@pytest.mark.timeout(600)
def test_torchrl_learns_on_workers(run: Run) -> None:
    printed = run("ppo_torchrl", "--total-steps=15000")
    found = re.search(r"^15360 steps, mean return of 20 episodes: ([\d.]+)$", printed, re.MULTILINE)
    assert found, printed
    assert float(found[1]) > 100  # over 350 with any seed tried; a random policy has 22


@needs("torchrl")
def test_torchrl_learns_alike_without_workers(load: Load, capsys: Capture) -> None:
    main, printed = load("ppo_torchrl").main, []
    for engine in ("parallel", "serial"):
        main(["--total-steps=2560", "--num-envs=4", f"--engine={engine}"])
        lines = capsys.readouterr().out.splitlines()
        printed.append([line for line in lines if "[torchrl]" not in line])  # TorchRL logs there too
    assert printed[0] == printed[1]
    assert re.fullmatch(r" *2560 steps, mean return of the last \d\d+ episodes: \d\d\.\d", printed[0][0])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LEARNERS)
def test_it_learns_and_draws_its_curve(name: str, run: Run, tmp_path: Path) -> None:
    # A random policy's mean return is 22, and after these steps it is 100 with any seed tried.
    assert mean_return(run(name, "--total-steps=12000")) > 60
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
