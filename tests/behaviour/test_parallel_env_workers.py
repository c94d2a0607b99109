"""What ``ParallelEnv`` says of its workers that is seen only by looking into them, or from a program of its own."""

from __future__ import annotations

import os
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from tensordict_zoo import CountingTensorDictEnv, DifferentiableEnv
from worker_processes import run_script
from zoo import CountingEnv

from gymbridge import ParallelEnv, SerialEnv
from gymbridge.envs import GymEnv

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux has them")

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Telling(CountingEnv):
    """Tells of its process."""

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def draws(self) -> tuple[float, float]:
        return random.random(), np.random.random()  # noqa: NPY002

    def files(self) -> str:
        return Path("/proc/self/maps").read_text()

    def warn(self) -> str:
        try:
            warnings.warn("bad news", stacklevel=1)
        except UserWarning:
            return "raised"
        return "not raised"


class TellingTensorDictEnv(CountingTensorDictEnv):
    """The same as a TensorDict env, which has torch."""

    variable = Telling.variable
    warn = Telling.warn

    def draws(self) -> tuple[float, ...]:
        return (*Telling.draws(self), torch.rand(()).item())  # type: ignore[arg-type]


KINDS: dict[str, Any] = {"gymnasium": lambda: Telling(), "own": lambda: TellingTensorDictEnv(0)}


@pytest.fixture(params=KINDS)
def maker(request: pytest.FixtureRequest) -> Any:
    """Makers of envs that tell of their processes."""
    return KINDS[request.param]


def test_what_workers_take_over_and_what_they_do_not(maker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings filters; but neither MPI's variables nor random states, torch's included, which no two have."""
    monkeypatch.setenv("PMI_RANK", "3")
    monkeypatch.setenv("GYMBRIDGE_TEST", "3")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="bad")
        env: Any = ParallelEnv(3, maker, num_workers=3, num_sub_threads=2).start()
    draws = [draw for own in env.draws() for draw in own]
    assert len({*draws}) == len(draws) >= 6
    assert env.warn() == ["raised"] * 3
    assert env.variable("PMI_RANK") == [None] * 3
    assert env.variable("GYMBRIDGE_TEST") == ["3"] * 3
    assert env.variable("OMP_NUM_THREADS") == ["2"] * 3
    env.close()


def test_no_env_is_made_in_this_process(tmp_path: Path) -> None:
    """Whatever is asked for: each maker is called once a start, in its worker."""

    def make() -> Any:
        (tmp_path / f"{os.getpid()}-{len(list(tmp_path.iterdir()))}").touch()
        return CountingEnv()

    env = ParallelEnv(3, make, num_workers=1)
    _ = env.observation_spec, env.action_spec, env.batch_size, env.device
    env.fake_tensordict()
    env.rollout(2)
    env.close()
    pids = {int(path.name.partition("-")[0]) for path in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 3
    assert len(pids) == 1
    assert os.getpid() not in pids


@pytest.mark.parametrize(
    ("options", "mapped"),
    [({}, False), ({"shared_memory": True}, False), ({"memmap": True}, True), ({"shared_memory": False}, True)],
    ids=str,
)
def test_what_lies_between_the_processes(options: dict[str, Any], mapped: bool, tmp_path: Path) -> None:
    """A memory-mapped file in the folder for temporary files where that is asked for, else anonymous memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path))
        env: Any = ParallelEnv(2, Telling, **options)
        env.rollout(2)
        maps = [Path("/proc/self/maps").read_text(), *env.files()]
    assert [str(tmp_path) in text for text in maps] == [mapped] * 3
    assert list(tmp_path.iterdir()) == []
    env.close()


def test_threads_are_as_many_as_workers_leave() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(5)
        for num_workers, left in ((1, 4), (3, 2), (6, 1)):
            env = ParallelEnv(6, CountingEnv, num_workers=num_workers).start()
            assert torch.get_num_threads() == left
            env.close()
            assert torch.get_num_threads() == 5
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("options", [{}, {"use_buffers": False}, {"share_individual_td": True}], ids=str)
def test_nothing_is_differentiated(options: dict[str, Any]) -> None:
    """Also by the options that let gradients flow through a ``SerialEnv``, and no error is made of it."""
    env: Any = ParallelEnv(2, lambda: DifferentiableEnv(0), **options)
    action = torch.full((2, 2), 0.1, requires_grad=True)
    with torch.enable_grad():
        stepped, root = env.step_and_maybe_reset(env.reset().set("action", action))
    results = [stepped["next"].get("reward"), stepped["next"].get("x"), root.get("x")]
    assert not any(value.requires_grad for value in results)
    env.close()


def test_envs_that_do_not_fit_together_are_named() -> None:
    makers = [lambda: GymEnv("CartPole-v1"), lambda: GymEnv("Pendulum-v1")]
    with pytest.raises(ValueError, match=r"share_individual_td: got False.* env 1 has .* env 0 has "):
        ParallelEnv(2, makers, num_workers=2, share_individual_td=False).start()


def test_an_env_may_be_a_batch_with_workers_of_its_own() -> None:
    inner = ParallelEnv(2, lambda: ParallelEnv(2, CountingEnv), num_workers=2)
    other = SerialEnv(2, lambda: SerialEnv(2, CountingEnv))
    for env in (inner, other):
        env.set_seed(0)
    idle = other.full_action_spec.zero()
    ours, theirs = (
        env.rollout(4, policy=lambda td: td.update(idle.clone()), break_when_any_done=False) for env in (inner, other)
    )
    assert ours.batch_size == (2, 2, 4)
    assert (ours["next", "observation"] == theirs["next", "observation"]).all()
    inner.close()


GUARDED = """
import gymnasium as gym, torch
from gymbridge import ParallelEnv
from gymbridge.envs import GymEnv
from zoo import CountingEnv

class Mine(CountingEnv): ...

if __name__ == "__main__":
    gym.register("Mine-v0", Mine)
    for make in ("Mine-v0", lambda: GymEnv(Mine)):
        with ParallelEnv(2, make, mp_start_method=METHOD, num_workers=1) as env:
            print(tuple(env.rollout(2).batch_size))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_with_a_guard_the_program_works_by_each_start_method(
    method: str, tmp_path: Path, subprocess_env: dict[str, str]
) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1]), subprocess_env["PYTHONPATH"]])
    script = GUARDED.replace("METHOD", repr(method))
    output = run_script(tmp_path, script, {**subprocess_env, "PYTHONPATH": path})
    assert output.splitlines() == ["(2, 2)"] * 2
