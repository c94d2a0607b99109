"""Large tensors of a rollout are copied step by step to where they lie in the result, which nobody can tell from it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from by_hand import assert_equal
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from tensordict_zoo import CountingTensorDictEnv, MultiGroupEnv, NestedEnv
from zoo import CountingEnv, DictEnv

from gymbridge import SerialEnv
from gymbridge.envs import EnvBase, step_record, tensordicts
from gymbridge.envs.step_record import StepRecord
from gymbridge.envs.tensordicts import dense_stack


@pytest.fixture(autouse=True)
def every_tensor_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_record, "_LARGE", 1)
    monkeypatch.setattr(step_record, "LARGE_STACK", 1)
    monkeypatch.setattr(tensordicts, "LARGE_STACK", 1)


def step_of(number: int) -> TensorDict:
    image, following = torch.full((2, 3), number), torch.full((2, 3), number + 0.5)
    nested = TensorDict(image=following, arm=TensorDict(angle=torch.tensor([number, -number]), batch_size=2))
    return TensorDict({"image": image, "next": nested.auto_batch_size_(1)}, batch_size=2)


def changed(number: int, path: Any, value: Callable[[torch.Tensor], Any]) -> TensorDict:
    step = step_of(number)
    return step.set(path, value(step[path]))


def room_for(num_steps: int) -> TensorDict:
    return dense_stack([step_of(100)] * num_steps, 1)  # type: ignore[return-value]


def recorded(steps: list[TensorDict], max_steps: int, **how: Any) -> TensorDictBase:
    record = StepRecord(max_steps, 1, all_come=len(steps) == max_steps, **how)
    for step in steps:
        record.add(step)
    return record.stacked()


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("with_out", [False, True])
def test_it_is_the_stack_of_the_steps(num_steps: int, with_out: bool) -> None:
    steps = [step_of(number) for number in range(num_steps)]
    out = room_for(3) if with_out else None
    made = recorded(steps, 3, out=out)
    assert_equal(made, dense_stack(steps, 1))
    assert [*made.keys(True)] == [*steps[0].keys(True)]
    for path in ("image", ("next", "image"), ("next", "arm", "angle")):
        if out is not None:
            assert made[path].data_ptr() == out[path].data_ptr()
        else:
            assert made[path].is_contiguous()
            assert made[path].untyped_storage().nbytes() == made[path].nbytes


def test_tensors_of_a_step_are_free_before_the_next() -> None:
    record = StepRecord(3, 1, all_come=True)
    for number in range(3):
        step = step_of(number)
        values = [weakref.ref(step.get(path)) for path in ("image", ("next", "image"))]
        record.add(step)
        del step
        assert [value() for value in values] == [None, None]


def test_an_env_that_ends_early_has_room_for_no_more_than_it_gives() -> None:
    """Where fewer steps may come, no memory is set aside for all of them."""
    made = recorded([step_of(0)], 2**60)
    assert made["image"].untyped_storage().nbytes() == made["image"].nbytes


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("with_out", [False, True])
def test_a_tensor_that_requires_grad_keeps_its_graph(at: int, with_out: bool) -> None:
    weight = torch.ones((), requires_grad=True)
    steps = [step_of(number) for number in range(3)]
    steps[at] = changed(at, ("next", "image"), lambda image: image * weight)
    made = recorded(steps, 3, out=room_for(3) if with_out else None)
    assert_equal(made.detach(), dense_stack(steps, 1).detach())
    made["next", "image"].sum().backward()
    assert weight.grad == 6 * (at + 0.5)


def refusal(stack: Callable[[list[TensorDict]], object], steps: list[TensorDict]) -> str:
    """What is said of steps that do not fit together."""
    with pytest.raises(ValueError, match=r"differ|has the keys") as refused:
        stack(steps)
    return str(refused.value)


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("image", lambda image: image.double()),
        (("next", "image"), lambda image: image[:, :2]),
        (("next", "arm", "angle"), lambda angle: angle.unsqueeze(-1)),
    ],
)
def test_steps_that_differ_are_refused_as_ever(path: Any, other: Any) -> None:
    steps = [step_of(0), step_of(1), changed(2, path, other)]
    assert refusal(lambda steps: recorded(steps, 3), steps) == refusal(lambda steps: dense_stack(steps, 1), steps)


@pytest.mark.parametrize("path", ["image", "next", ("next", "image"), ("next", "arm")])
def test_steps_that_lack_a_key_are_refused_as_ever(path: Any) -> None:
    steps = [step_of(0), step_of(1), step_of(2).exclude(path)]
    assert refusal(lambda steps: recorded(steps, 3), steps) == refusal(lambda steps: dense_stack(steps, 1), steps)


def test_lazy_stacks_among_the_steps() -> None:
    """Such a step has no tensors of its own; those before and after it are put together with it."""
    lazy = LazyStackedTensorDict(*step_of(1).unbind(0), stack_dim=0)
    steps = [step_of(0), lazy, step_of(2)]
    assert_equal(recorded(steps, 3), dense_stack(steps, 1))  # type: ignore[arg-type]


def test_an_out_of_another_dtype_is_written_in_the_end() -> None:
    out = room_for(3)
    out["image"] = out["image"].double()
    steps = [step_of(number) for number in range(3)]
    record = StepRecord(3, 1, all_come=True, out=out)
    for step in steps:
        record.add(step)
    assert record.in_out == {("next", "image"), ("next", "arm", "angle")}
    assert_equal(record.stacked(), dense_stack(steps, 1))


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64],
    ids=str,
)
def test_a_large_stack_is_that_of_torch(dtype: torch.dtype) -> None:
    """Of tensors however they lie in memory."""
    numbers = torch.arange(-12, 12).reshape(2, 3, 4).to(dtype)
    for given in (numbers, numbers.mT, numbers[:, :0], numbers[:, :1].expand(2, 3, 4), numbers[..., ::2]):
        for dim in (0, 1):
            batch = TensorDict(x=given, batch_size=given.shape[:2])
            made = dense_stack([*batch.unbind(0)], dim)["x"]
            assert made.is_contiguous()
            assert made.dtype is dtype
            assert torch.equal(made, torch.stack(given.unbind(0), dim))


# ---------------------------------------------------------------- rollouts

KINDS: dict[str, Any] = {
    "CountingEnv": lambda index: CountingEnv([2 + index]),
    "DictEnv": lambda index: DictEnv([2 + index]),
    "CountingTensorDictEnv": CountingTensorDictEnv,
    "NestedEnv": NestedEnv,
    "MultiGroupEnv": MultiGroupEnv,
}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Any:
    def made() -> EnvBase:
        env = SerialEnv(2, [lambda index=index: KINDS[request.param](index) for index in range(2)])
        env.set_seed(0)
        return env

    return made


WAYS: tuple[dict[str, Any], ...] = (
    {"break_when_any_done": False},
    {"break_when_any_done": False, "set_truncated": True},
    {"break_when_any_done": True},
    {"break_when_all_done": True},
    {"break_when_any_done": False, "storing_device": "cpu"},
)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("with_out", [False, True])
def test_rollouts_are_the_stack_of_their_steps(make: Any, way: dict[str, Any], with_out: bool) -> None:
    """The other rollout keeps its steps and stacks them in the end."""
    env, other = make(), make()
    torch.manual_seed(1)
    expected = torch.stack([*other.rollout(7, return_contiguous=False, **way).unbind(-1)], -1)
    out = None
    if with_out:
        storing = {"storing_device": way.get("storing_device")}
        out = other.rollout(7, break_when_any_done=False, **storing).apply(torch.zeros_like)
    torch.manual_seed(1)
    got = env.rollout(7, out=out, **way)
    assert_equal(got, expected)
    if out is not None:
        assert_equal(out[:, : got.shape[-1]], expected)
    for each in (env, other):
        each.close()


def test_a_result_is_not_what_a_policy_and_a_callback_have_kept(make: Any) -> None:
    env, kept = make(), []

    def policy(td: TensorDictBase) -> TensorDictBase:
        kept.append(env.rand_action(td))
        return td

    got = env.rollout(5, policy, lambda _, td: kept.append(td), break_when_any_done=False)
    before = got.clone()
    for td in kept:
        for path in td.keys(True, True):
            td.get(path).zero_()
    assert kept
    assert_equal(got, before)
    env.close()


def test_what_a_callback_changes_in_place_is_in_the_result() -> None:
    env = SerialEnv(2, CountingEnv)
    got = env.rollout(4, callback=lambda _, td: td["next", "reward"].fill_(7), break_when_any_done=False)
    assert (got["next", "reward"][:, :3] == 7).all()
    assert (got["next", "reward"][:, 3] != 7).all()
    env.close()


def test_out_may_be_where_the_rollout_goes_on_from(make: Any) -> None:
    """The root of a rollout that goes on from the last step lies in the very tensors that are written."""
    env, other = make(), make()
    torch.manual_seed(2)
    out = env.rollout(4, break_when_any_done=False)
    got = env.rollout(4, break_when_any_done=False, auto_reset=False, tensordict=env.step_mdp(out[:, -1]), out=out)
    torch.manual_seed(2)
    first = other.rollout(4, break_when_any_done=False)
    root = other.step_mdp(first[:, -1].clone())
    assert_equal(got, other.rollout(4, break_when_any_done=False, auto_reset=False, tensordict=root))
    for each in (env, other):
        each.close()
