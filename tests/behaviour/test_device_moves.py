"""How results get to another device: in one copy from staging memory, which is never written too early."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import assert_equal
from tensordict_zoo import CountingTensorDictEnv
from zoo import CountingEnv, DictEnv

from gymbridge import ParallelEnv, SerialEnv
from gymbridge.envs.device_moves import SMALL_BYTES, Staging, move_to

CPU = torch.device("cpu")
CLASSES = [SerialEnv, ParallelEnv]


def leaves(fill: int) -> list[torch.Tensor]:
    return [
        torch.full((3, 2), fill, dtype=torch.float32),
        torch.full((3,), fill % 2 == 0),
        torch.full((3, 1), fill, dtype=torch.bfloat16),
        torch.tensor(fill),
        torch.zeros(3, 0),
        torch.full((3, SMALL_BYTES), fill % 256, dtype=torch.uint8),
        torch.full((4, 3), fill, dtype=torch.float64).T,
    ]


def test_staging_changes_no_value_shape_or_dtype() -> None:
    stage = Staging(CPU)
    kept = [(stage(leaves(fill)), leaves(fill)) for fill in range(5)]
    for moved, expected in kept:
        for one, other in zip(moved, expected, strict=True):
            assert one.dtype is other.dtype
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_who_keeps_a_small_leaf_keeps_no_large_one() -> None:
    for moved, given in zip(Staging(CPU)(leaves(1)), leaves(1), strict=True):
        if given.nbytes <= SMALL_BYTES:
            assert moved.untyped_storage().nbytes() == given.nbytes


def test_memory_is_written_again_only_once_its_copy_is_done() -> None:
    """Each of the two pieces waits for the copy that it was last read by, and for no other."""
    waited: list[int] = []

    class Event:
        def __init__(self, number: int):
            self.number = number

        def synchronize(self) -> None:
            waited.append(self.number)

    events = iter(map(Event, range(10)))
    stage: Any = Staging(CPU)
    stage._now = lambda: next(events)
    seen = []
    for fill in range(5):
        stage(leaves(fill))
        seen.append([*waited])
    assert seen == [[], [], [0], [0, 1], [0, 1, 2]]


def test_what_is_elsewhere_moves_by_itself() -> None:
    class There:
        """Stands for a tensor of another device."""

        device = torch.device("meta")

        def to(self, device: torch.device) -> str:
            return f"moved to {device}"

    given: Any = [torch.ones(2), There(), torch.zeros(1)]
    moved = Staging(CPU)(given)
    assert moved[1] == "moved to cpu"
    assert moved[0].tolist() == [1, 1]
    assert moved[2].tolist() == [0]


def test_a_move_that_is_waited_for_stages_nothing() -> None:
    assert not isinstance(move_to(CPU, non_blocking=True), Staging)
    assert not isinstance(move_to(torch.device("cuda:0")), Staging)
    assert isinstance(move_to(torch.device("cuda:0"), non_blocking=True), Staging)
    given = leaves(1)
    assert all(moved is one for moved, one in zip(move_to(None)(given), given, strict=True))


class Staged:
    """Has the batches of a test stage what they move to the CPU, as they do for CUDA."""

    def __init__(self) -> None:
        self.stages: list[Staging] = []

    def __call__(self, device: torch.device | None, *, non_blocking: bool = False) -> Any:
        assert non_blocking
        self.stages.append(Staging(CPU))
        return self.stages[-1]


@pytest.mark.parametrize("batch", CLASSES)
@pytest.mark.parametrize("maker", [CountingEnv, DictEnv, lambda: CountingTensorDictEnv(0)])
def test_results_that_are_staged_are_those_that_are_not(
    batch: Any, maker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whole and of partial steps; what was handed out stays as it is."""
    from gymbridge.envs import gym_face, tensordict_face

    staged = Staged()

    def programs(env: Any) -> list[Any]:
        env.set_seed(0)
        td, seen = env.reset(), []
        for number in range(7):
            td.update(env.full_action_spec.zero())
            if number % 3 == 1:
                td["_step"] = torch.tensor([True, False])
            stepped, td = env.step_and_maybe_reset(td)
            seen.append((stepped.copy(), td.copy(), stepped.clone(), td.clone()))
        env.close()
        return seen

    expected = programs(batch(2, maker, device="cpu"))
    for face in (gym_face, tensordict_face):
        monkeypatch.setattr(face, "move_to", staged)
    env = batch(2, maker, device="cpu", non_blocking=True)
    env.start()
    env._face._moves = True
    for (stepped, root, *then), (*_, other, other_root) in zip(programs(env), expected, strict=True):
        assert_equal(stepped, other)
        assert_equal(root, other_root)
        assert_equal(stepped, then[0])
        assert_equal(root, then[1])
    assert any(stage._turn or stage._pinned[0].numel() for stage in staged.stages)


@pytest.mark.parametrize("batch", CLASSES)
def test_on_the_cpu_it_changes_nothing(batch: Any) -> None:
    with batch(2, CountingEnv, non_blocking=True) as env, batch(2, CountingEnv) as other:
        env.set_seed(0)
        other.set_seed(0)
        assert_equal(env.rollout(3, policy=idle), other.rollout(3, policy=idle))


def idle(td: Any) -> Any:
    return td.set("action", torch.zeros(2, dtype=torch.int64))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("batch", CLASSES)
@pytest.mark.parametrize("maker", [CountingEnv, DictEnv, lambda: CountingTensorDictEnv(0)])
def test_on_a_gpu_nobody_waits_and_no_value_changes(batch: Any, maker: Any) -> None:
    rollouts = []
    for options in ({}, {"device": "cuda", "non_blocking": True}):
        with batch(2, maker, **options) as env:
            env.set_seed(0)
            rollouts.append(env.rollout(50, policy=lambda td, env=env: td.update(env.full_action_spec.zero())))
    assert_equal(rollouts[1].cpu().clear_device_(), rollouts[0].clear_device_())
