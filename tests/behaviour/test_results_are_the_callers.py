"""What a batch returns is the caller's: nothing of it changes later, and nothing done to it reaches the envs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import assert_equal
from tensordict import TensorDict, TensorDictBase
from tensordict_oracle import leaves_of
from tensordict_zoo import (
    BatchedEnv,
    BatchUnlockedEnv,
    CountingTensorDictEnv,
    DynamicShapeEnv,
    InfoEnv,
    MultiGroupEnv,
    NestedEnv,
    RecurrentEnv,
    StatefulEnv,
    TaskEnv,
)
from zoo import CountingEnv, DictEnv

from gymbridge import SerialEnv
from gymbridge.envs import GymEnv

KINDS: dict[str, Any] = {
    "gymnasium": CountingEnv,
    "gymnasium, nested": DictEnv,
    "gymnasium, infos": lambda: GymEnv(CountingEnv, info="auto"),
    **{
        kind.__name__: [lambda kind=kind: kind(0), lambda kind=kind: kind(1)]
        for kind in (
            CountingTensorDictEnv,
            NestedEnv,
            MultiGroupEnv,
            InfoEnv,
            StatefulEnv,
            BatchedEnv,
            BatchUnlockedEnv,
            DynamicShapeEnv,
        )
    },
    "RecurrentEnv": [lambda: RecurrentEnv(0, forgets=True), lambda: RecurrentEnv(1, forgets=True)],
    "tasks": [lambda: TaskEnv(0), lambda: TaskEnv(1)],
    "gymnasium and own": [CountingEnv, lambda: TaskEnv(1)],
    "spaces": ["CartPole-v1", "Pendulum-v1"],
}
STACKS: dict[str, dict[str, Any]] = {
    "dense": {},
    "lazy": {"share_individual_td": True},
    "pipes": {"use_buffers": False},
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of envs."""
    return str(request.param)


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> str:
    """Each way to stack what they give."""
    return str(request.param)


@pytest.fixture
def make(kind: str, stack: str, batched_env: Any) -> Any:
    """Makes a batch of two, of each kind, in each way to stack."""
    return lambda: batched_env(2, KINDS[kind], **STACKS[stack])


def tensors(td: TensorDictBase) -> list[torch.Tensor]:
    """The tensors themselves, of a lazy stack those of its rows."""
    rows = getattr(td, "tensordicts", [td])
    values = [row.get(key) for row in rows for key in leaves_of(row)]
    return [value for value in values if isinstance(value, torch.Tensor)]


def spoil(td: TensorDictBase) -> None:
    for value in tensors(td):
        value.fill_(7) if value.dtype is not torch.bool else value.logical_not_()


def mask(number: int, env: Any) -> torch.Tensor:
    """Masks that come and go."""
    picked = torch.tensor([[True, True], [True, False], [False, True], [False, False]][number % 4])
    return picked.reshape(2, *[1] * (env.ndim - 1)).expand(env.batch_size).clone()


@pytest.mark.every(3, "kind", "stack", "batched_env", "masked")
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_nothing_done_to_what_was_returned_reaches_the_envs(make: Any, masked: bool) -> None:
    """Of two batches, what one returned is spoilt after it was looked at; the other's caller does nothing to it."""
    spoilt, kept = make(), make()
    for env in (spoilt, kept):
        env.set_seed(0)
    root, twin = spoilt.reset(), kept.reset()
    assert_equal(root, twin, "reset")
    given = root.clone()
    spoil(root)
    for number in range(5):
        torch.manual_seed(number)
        td = spoilt.rand_action(given.clone())
        other = td.clone()
        if masked and number:
            for each in (td, other):
                each["_step"] = mask(number, env)
        td, root = spoilt.step_and_maybe_reset(td)
        other, twin = kept.step_and_maybe_reset(other)
        assert_equal(td, other, f"step {number}")
        assert_equal(root, twin, f"root {number}")
        given = root.clone()
        for each in (td, root):
            spoil(each)
    for env in (spoilt, kept):
        env.close()


@pytest.mark.every(3, "kind", "stack", "batched_env", "masked", first=1)
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_what_was_returned_does_not_change(make: Any, masked: bool) -> None:
    env = make()
    returned: list[tuple[TensorDictBase, TensorDictBase]] = []

    def keep(td: TensorDictBase) -> TensorDictBase:
        returned.append((td, td.clone()))
        return td

    with torch.no_grad():
        root = keep(env.reset())
        for number in range(7):
            td = env.rand_action(root.copy())
            if masked:
                td["_step"] = mask(number, env)
            td, root = env.step_and_maybe_reset(td)
            keep(td)
            keep(root)
            if masked:
                root = keep(env.reset(root.copy().set("_reset", mask(number + 1, env))))
    keep(env.reset())
    for number, (now, then) in enumerate(returned):
        assert_equal(now, then, f"result {number}")
    env.close()


@pytest.mark.every(2, "kind", "stack", "batched_env")
def test_next_shares_no_memory_with_the_roots(make: Any) -> None:
    env = make()
    root = env.reset()
    for _ in range(6):
        before = [value.data_ptr() for value in tensors(root) if value.numel()]
        td, following = env.step_and_maybe_reset(env.rand_action(root.copy()))
        of_next = {value.data_ptr() for value in tensors(td.get("next")) if value.numel()}
        assert of_next.isdisjoint(before)
        assert of_next.isdisjoint(value.data_ptr() for value in tensors(following) if value.numel())
        root = following
    env.close()


# ---------------------------------------------------------------- copy=False


@pytest.mark.parametrize("fns", [CountingEnv, DictEnv], ids=["one leaf", "nested"])
def test_views_are_right_until_the_next_call(fns: Any) -> None:
    """And no longer, or they would be no views."""
    copies, views = SerialEnv(2, fns), SerialEnv(2, fns, copy=False)
    for env in (copies, views):
        env.set_seed(0)
    expected, got = copies.reset(), views.reset()
    assert_equal(got, expected)
    previous = [value.data_ptr() for value in tensors(views.rand_step(got.clone())["next"])]
    again = [value.data_ptr() for value in tensors(views.rand_step(got.clone())["next"])]
    assert len({*previous} & {*again}) >= len(leaves_of(got)) - 3  # the observations; flags are always copies
    for env in (copies, views):
        env.set_seed(0)
    expected, got = copies.reset(), views.reset()
    for number in range(9):
        torch.manual_seed(number)
        td = copies.rand_action(expected.clone())
        if number % 3 == 2:
            td["_step"] = mask(number, env)
        mine, expected = copies.step_and_maybe_reset(td.clone())
        theirs, got = views.step_and_maybe_reset(td.clone())
        assert_equal(theirs, mine, f"step {number}")
        assert_equal(got, expected, f"root {number}")
    for env in (copies, views):
        env.close()


@pytest.mark.parametrize("how", [{"break_when_any_done": False}, {"break_when_all_done": True}, {}], ids=str)
@pytest.mark.parametrize("contiguous", [True, False])
def test_rollouts_are_copies_where_steps_are_views(batched_env: Any, how: dict[str, bool], contiguous: bool) -> None:
    copies, views = batched_env(2, CountingEnv), batched_env(2, CountingEnv, copy=False)
    rollouts = []
    for env in (copies, views):
        env.set_seed(0)
        rollouts.append(env.rollout(9, return_contiguous=contiguous, **how))
        env.reset()
    assert_equal(rollouts[1], rollouts[0])
    before = views.rand_step(views.reset())["next", "observation"].data_ptr()
    assert views.rand_step(views.reset())["next", "observation"].data_ptr() == before  # steps are views again
    for env in (copies, views):
        env.close()


# ---------------------------------------------------------------- what a caller gives stays the caller's


class TakesApart(CountingEnv):
    """Takes its options apart, as envs do that pass on the rest."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.level = None if options is None else options.pop("level")
        return super().reset(seed=seed, options=options)


def test_options_stay_as_they_are_whatever_an_env_does_to_them(engine: Any) -> None:
    """For each env of a batch they are all there."""
    env = engine.make(TakesApart)
    options = {"level": 3}
    env.reset(options=options)
    assert options == {"level": 3}
    if engine.batch_size:
        assert env.level == [3] * engine.num_envs
        each = [{"options": {"level": row}} for row in range(engine.num_envs)]
        env.reset(list_of_kwargs=each)
        assert each == [{"options": {"level": row}} for row in range(engine.num_envs)]
        assert env.level == [*range(engine.num_envs)]
        env.reset(list_of_kwargs=None)
        assert env.level == [None] * engine.num_envs
    env.close()


def test_what_a_step_is_given_is_not_changed_by_the_envs(batched_env: Any) -> None:
    class Overwrites(CountingTensorDictEnv):
        def _step(self, tensordict: TensorDictBase) -> TensorDict:
            made = super()._step(tensordict)
            tensordict["action"] = torch.ones_like(tensordict["action"])
            return made.set("extra", torch.zeros(1))

    env = batched_env(2, Overwrites)
    td = env.reset().set("action", torch.zeros((2, 1), dtype=torch.int8))
    before = td.clone()
    env.step(td)
    assert_equal(td.exclude("next"), before)
    env.close()
