"""Thousands of steps with a worker killed every hundred: no hang, each transition right, memory and descriptors flat.

``GYMBRIDGE_CHAOS_STEPS`` is how many, 10,000 for a long run; a tenth of these unless told.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chaos_envs
import cloudpickle
import numpy as np
import pytest
import torch
from chaos_envs import ChaosGymEnv, Deed
from chaos_programs import Expected, left_behind
from worker_processes import descendants

from gymbridge import ParallelEnv
from gymbridge.errors import WorkerDiedError
from gymbridge.vector import AsyncVectorEnv

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux has them"),
    pytest.mark.timeout(900),
]

cloudpickle.register_pickle_by_value(chaos_envs)

STEPS = int(os.environ.get("GYMBRIDGE_CHAOS_STEPS", "1000"))
NUM_ENVS = 4
MEBIBYTES = 48
"""That the process may grow by, whatever the number of steps: caches of allocators, not one leak a death."""


def makers(folder: Path) -> list[Callable[[], Any]]:
    return [lambda index=index, folder=folder: ChaosGymEnv(index, folder) for index in range(NUM_ENVS)]  # type: ignore[misc]


def resident_mebibytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


class Flat:
    """Memory, descriptors, mappings and processes, which must not grow with the deaths."""

    def __init__(self) -> None:
        self.resident = resident_mebibytes()
        self.left = left_behind()

    def check(self) -> None:
        assert resident_mebibytes() - self.resident < MEBIBYTES
        after = left_behind()
        assert {name: len(own) if isinstance(own, list) else own for name, own in after.items()} == {
            name: len(own) if isinstance(own, list) else own for name, own in self.left.items()
        }


def killed_row(draw: random.Random) -> int | None:
    """The env whose worker is to be killed, in one step of a hundred."""
    return draw.randrange(NUM_ENVS) if draw.random() < 0.01 else None


def test_workers_that_die_and_are_told_of(tmp_path: Path) -> None:
    """The others' transitions of that call are in ``last_partial``; close and start again is as new."""
    seed = 1
    print(f"seed {seed}")
    draw, deaths = random.Random(seed), 0
    env = ParallelEnv(NUM_ENVS, makers(tmp_path), num_workers=NUM_ENVS, num_threads=torch.get_num_threads())
    flat = None

    def begin() -> tuple[Any, list[Expected]]:
        root = env.reset()
        rows = [Expected(row) for row in range(NUM_ENVS)]
        for own in rows:
            own.reset()
            own.check(root["observation"][own.row].numpy())
        return root, rows

    def check(stepped: Any, of: list[Expected]) -> None:
        for own in of:
            own.step(Deed.STEP)
            own.check(stepped["next", "observation"][own.row].numpy())
            assert bool(stepped["next", "terminated"][own.row]) == own.is_at_end

    root, rows = begin()
    processes = descendants()
    for _ in range(STEPS):
        row = killed_row(draw)
        if row is not None:
            pid = rows[row].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        td = root.set("action", torch.zeros(NUM_ENVS, dtype=torch.int64))
        if row is not None:
            with pytest.raises(WorkerDiedError) as raised:
                env.step_and_maybe_reset(td)
            assert (raised.value.env_indices, raised.value.exit_code) == ((row,), -signal.SIGKILL)
            del raised  # its traceback has the engine
            partial = env.last_partial()
            assert partial["_failed"].tolist() == [other == row for other in range(NUM_ENVS)]
            check(partial, [own for own in rows if own.row != row])
            deaths += 1
            env.close()
            root, rows = begin()
            flat = flat or Flat()
            continue
        stepped, root = env.step_and_maybe_reset(td)
        check(stepped, rows)
        for own in rows:
            if own.is_at_end:
                own.reset()
            own.check(root["observation"][own.row].numpy())
    assert deaths > STEPS / 250
    assert flat is not None
    flat.check()
    assert len(descendants()) == len(processes)
    env.close()


def test_workers_that_die_and_are_replaced(tmp_path: Path) -> None:
    """The run goes on: the interrupted transition is truncated, with what was shown last, and marked."""
    seed = 2
    print(f"seed {seed}")
    draw, deaths, restarts = random.Random(seed), 0, 0
    env: Any = ParallelEnv(
        NUM_ENVS,
        makers(tmp_path),
        num_workers=NUM_ENVS,
        num_threads=torch.get_num_threads(),
        on_worker_failure="restart",
        max_restarts=(10**6, 1.0),
    )
    root = env.reset()
    rows = [Expected(row) for row in range(NUM_ENVS)]
    for own in rows:
        own.reset()
        own.check(root["observation"][own.row].numpy())
    flat, processes = None, descendants()
    for _ in range(STEPS):
        row = killed_row(draw)
        if row is not None:
            pid = rows[row].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            deaths += 1
        stepped, root = env.step_and_maybe_reset(root.set("action", torch.zeros(NUM_ENVS, dtype=torch.int64)))
        following = stepped["next"]
        for own in rows:
            observation, shown = following["observation"][own.row].numpy(), root["observation"][own.row].numpy()
            restarted = bool(following["info", "worker_restarted"][own.row])
            assert bool(following["truncated"][own.row]) == restarted
            if restarted:
                restarts += 1
                assert own.row == row or own.pid not in descendants()
                assert np.array_equal(observation, own.shown)  # type: ignore[arg-type]
                own.begin_anew()
            else:
                own.step(Deed.STEP)
                own.check(observation)
                assert bool(following["terminated"][own.row]) == own.is_at_end
                if own.is_at_end:
                    own.reset()
            own.check(shown)
        if restarts and flat is None:
            flat = Flat()
    assert deaths > STEPS / 250
    assert restarts == deaths
    assert flat is not None
    flat.check()
    assert len(descendants()) == len(processes)
    env.close()


def test_workers_of_a_vector_env_that_die_and_are_replaced(tmp_path: Path) -> None:
    """The same with ``infos["worker_restarted"]``, and a reset in the next step."""
    seed = 3
    print(f"seed {seed}")
    draw, deaths, restarts = random.Random(seed), 0, 0
    options: dict[str, Any] = {"on_worker_failure": "restart", "max_restarts": (10**6, 1.0)}
    envs = AsyncVectorEnv(makers(tmp_path), num_workers=NUM_ENVS, **options)
    observations, _ = envs.reset()
    rows = [Expected(row) for row in range(NUM_ENVS)]
    for own in rows:
        own.reset()
        own.check(observations[own.row])
        own.state = "running"
    for _ in range(STEPS):
        row = killed_row(draw)
        if row is not None and rows[row].pid is not None and rows[row].state == "running":
            os.kill(rows[row].pid, signal.SIGKILL)  # type: ignore[arg-type]
            deaths += 1
        observations, _, terminations, truncations, infos = envs.step([0] * NUM_ENVS)
        for own in rows:
            restarted = "worker_restarted" in infos and bool(infos["worker_restarted"][own.row])
            assert truncations[own.row] == restarted
            if restarted:
                restarts += 1
                assert np.array_equal(observations[own.row], own.shown)  # type: ignore[arg-type]
                own.begin_anew()
                own.state = "ended"
                continue
            if own.state == "ended":
                own.reset()
                own.state = "running"
            else:
                own.step(Deed.STEP)
                own.state = "ended" if own.is_at_end else "running"
                assert bool(terminations[own.row]) == own.is_at_end
            own.check(observations[own.row])
    assert deaths > STEPS / 250
    assert restarts == deaths
    envs.close()
