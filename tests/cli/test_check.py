"""``gymbridge check`` tells faults, and its exit status says whether there are any."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gymbridge.cli import main

QUICK = ["--steps=30", "--no-workers"]
FAULTY = """
import os

import gymnasium as gym
import numpy as np

class Faulty(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(size=2).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        return np.float32([0, 7]), 1.0, int(self.t == 5), False, {}

class Leaves(Faulty):
    def __init__(self):
        raise SystemExit(0)

class Stops(Faulty):
    @property
    def metadata(self):
        raise LookupError("no metadata")

class Prints(Faulty):
    def step(self, action):
        print("a step")
        os.system("echo of C")
        return super().step(action)

class OnlyWarned(Faulty):
    def step(self, action):
        return np.zeros(2, np.float32), *super().step(action)[1:]
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current folder."""
    (tmp_path / "envs_under_check.py").write_text(FAULTY)
    monkeypatch.chdir(tmp_path)
    return "envs_under_check"


def test_an_env_without_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "CartPole-v1", "--steps=30"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == ["note: a step after an episode's end is taken", "CartPole-v1: no faults"]


def test_a_fault_is_told_with_key_got_expected_and_what_to_do(faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{faulty}:Faulty", *QUICK]) == 1
    said = capsys.readouterr().out
    assert "error observation-domain  step: observation  30 times" in said
    assert "got       7.0 at [1] (1 of 2 values wrong)\n  expected  -1.0 to 1.0\n  do        Clip the value" in said
    assert f"{faulty}:Faulty: 1 error and 1 warning" in said
    assert "not looked at: worker processes: as was asked for" in said


def test_warnings_are_no_failure_unless_strict(faulty: str) -> None:
    env = f"{faulty}:OnlyWarned"
    assert main(["check", env, *QUICK]) == 0
    assert main(["check", env, *QUICK, "--strict"]) == 1
    assert main(["check", env, *QUICK, "--strict", "--ignore", "flag-not-bool"]) == 0


def test_json_has_all_of_it(faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{faulty}:Faulty", *QUICK, "--json", "--ignore=flag-not-bool"]) == 1
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert fault.pop("advice")
    assert fault == {
        "code": "observation-domain",
        "severity": "error",
        "where": "step",
        "key": "observation",
        "got": "7.0 at [1] (1 of 2 values wrong)",
        "expected": "-1.0 to 1.0",
        "count": 30,
    }


def test_what_an_env_prints_is_not_among_the_json(faulty: str, tmp_path: Path, subprocess_env: dict[str, str]) -> None:
    arguments = ["check", f"{faulty}:Prints", "--json", *QUICK]
    done = subprocess.run(
        [sys.executable, "-m", "gymbridge", *arguments],
        env=subprocess_env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert [fault["code"] for fault in json.loads(done.stdout)["faults"]] == ["observation-domain", "flag-not-bool"]
    assert {"a step", "of C"} <= {*done.stderr.splitlines()}


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ("Leaves", "making the env raised SystemExit: 0"),
        ("Stops", "the env stopped the check (spaces and signatures): it raised LookupError: no metadata"),
    ],
)
def test_an_env_that_ends_the_check_is_told(
    env: str, told: str, faulty: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{faulty}:{env}", *QUICK]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-1] == f"gymbridge check: {faulty}:{env}: {told}"


def test_a_tensordict_env(env_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(env_folder)
    assert main(["check", "faulty_tensordict_envs:SoundTensorDictEnv", *QUICK, "--strict"]) == 0
    assert main(["check", "faulty_tensordict_envs:OneBuffer", *QUICK]) == 1


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ("cli_envs:Unmade", "making the env raised LookupError: no such map: [moon]"),
        ("cli_envs:not_callable", "expected a callable that makes an env"),
        ("NoSuchEnv-v1", "got no registered id"),
        ("builtins:dict", "expected a gymnasium.Env or a gymbridge.envs.EnvBase"),
    ],
)
def test_what_cannot_be_made_is_a_line_and_status_2(
    env: str, told: str, env_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(env_folder)
    assert main(["check", env]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = (line for line in said.err.splitlines() if "…" not in line)
    assert told in line


@pytest.mark.parametrize("seed", ["-1", "one", "0.5"])
def test_a_seed_that_is_none_is_refused(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["check", "CartPole-v1", f"--seed={seed}"])
    assert f"got '{seed}', expected an integer of 0 or more" in capsys.readouterr().err


def test_an_unknown_code_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["check", "CartPole-v1", "--ignore=observation"])
    assert "got ['observation'], expected some of reset-raises" in capsys.readouterr().err
