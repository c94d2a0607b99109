"""Ctrl-C, which a terminal sends to the whole process group, ends a command at once, quietly, with its workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from worker_processes import PATIENCE, still_running, watch


def start(arguments: list[str], env: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "gymbridge", *arguments],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("arguments", "num_processes"),
    [
        (["bench", "ENV", "-n2", "--rounds=1000000", "--engines=gymnasium-async,gymbridge-async"], 2 + 2),
        (["tune", "ENV", "-n2", "--api=gymnasium", "--seconds=10000"], 1),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_interrupt_ends_it_and_its_workers(
    arguments: list[str], num_processes: int, tmp_path: Path, env_folder: Path, subprocess_env: dict[str, str]
) -> None:
    pipe = tmp_path / "pids"
    os.mkfifo(pipe)
    env = {**subprocess_env, "CLI_ENVS_PIPE": str(pipe)}
    descriptor = os.open(pipe, os.O_RDWR)  # so that nobody waits for the other side
    program = start([argument.replace("ENV", "cli_envs:Telling") for argument in arguments], env, env_folder)
    try:
        with os.fdopen(descriptor) as told:
            pids = {int(told.readline()) for _ in range(num_processes)}
        workers = watch(pids - {program.pid})
        os.killpg(program.pid, signal.SIGINT)
        _, errors = program.communicate(timeout=PATIENCE)
    finally:
        program.kill()
    assert program.returncode == 130
    assert "Traceback" not in errors
    assert "KeyboardInterrupt" not in errors
    assert not still_running(workers)


def test_an_interrupt_ends_the_demo(env_folder: Path, subprocess_env: dict[str, str]) -> None:
    program = start(["demo", "--seconds=10000"], subprocess_env, env_folder)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "\n"
        assert "CartPoles" in program.stdout.readline()
        os.killpg(program.pid, signal.SIGINT)
        _, errors = program.communicate(timeout=PATIENCE)
    finally:
        program.kill()
    assert program.returncode == 130
    assert "Traceback" not in errors
