"""``rollout`` over TensorDict envs, its arguments one by one: nested flags, lazy stacks, and leaves of every kind."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from by_hand import assert_equal, is_lazy
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from tensordict_engines import ALONE, TensorDictEngine
from tensordict_zoo import (
    TENSORDICT_ENVS,
    CountingTensorDictEnv,
    EpisodicEnv,
    MultiGroupEnv,
    OnlyGroupsEnv,
)

from gymbridge.envs import EnvBase
from gymbridge.specs import Composite, Unbounded

KINDS = [kind for kind in TENSORDICT_ENVS if kind not in ("recurrent", "forgets")]  # those want a policy
WAITS = [kind for kind in KINDS if kind not in ("batched whole", "groups alone")]
FLAGS = ("done", "terminated", "truncated")


def rows(td: TensorDictBase, engine: TensorDictEngine) -> list[TensorDictBase]:
    """One rollout an env."""
    return [*td.unbind(0)] if engine.batched else [td]


def seeded(engine: TensorDictEngine, maker: Any) -> EnvBase:
    env = engine.make(maker)
    env.set_seed(2)
    return env


def test_its_arguments_stand_in_torchrls_order() -> None:
    """Those that come by position, and the defaults."""
    parameters = [*inspect.signature(EnvBase.rollout).parameters.values()][1:]
    assert [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD] == [
        "max_steps",
        "policy",
        "callback",
    ]
    defaults = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
    nothing = dict.fromkeys(["break_when_any_done", "break_when_all_done", "tensordict", "out", "storing_device"])
    off = dict.fromkeys(["auto_cast_to_device", "set_truncated", "trust_policy", "progress"], False)
    assert defaults.pop("return_contiguous") in (None, True)  # dense, where that can be
    assert defaults == {"auto_reset": True, **nothing, **off}


@pytest.mark.every(3, "td_engine", "kind")
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_dense_and_ends_in_time_unless_shapes_may_differ(td_engine: TensorDictEngine, kind: str) -> None:
    env = td_engine.make(TENSORDICT_ENVS[kind])
    with torch.no_grad():
        td = env.rollout(5, break_when_any_done=False)
    assert td.batch_size == (*env.batch_size, 5)
    assert td.names == [*[None] * env.ndim, "time"]
    assert is_lazy(td) == (kind == "dynamic shape" or (kind == "tasks" and td_engine.num_envs == 3))
    env.close()


def test_it_stops_at_the_flag_of_any_env(td_engine: TensorDictEngine) -> None:
    """The env of index 1 has an episode of one step; alone it is the env of index 0, of three."""
    env = td_engine.make(CountingTensorDictEnv)
    for told in ({}, {"break_when_any_done": True}, {"break_when_all_done": False}):
        assert env.rollout(9, **told).shape[-1] == (1 if td_engine.num_envs == 3 else 3)
        env.close(raise_if_closed=False)
        env = td_engine.make(CountingTensorDictEnv)


def test_flags_of_the_root_say_when_it_stops(td_engine: TensorDictEngine) -> None:
    """Not those of an agent, who waits for the other."""
    td = td_engine.make(lambda index: MultiGroupEnv(lengths=(1, 3))).rollout(9)
    assert td.shape[-1] == 3
    assert td["next", "agents", "done"][..., 0, :, :].any()
    assert td["next", "done"][..., -1, :].all()


def test_without_flags_at_the_root_it_stops_at_those_of_any_group(td_engine: TensorDictEngine) -> None:
    td = td_engine.make(lambda index: OnlyGroupsEnv(lengths=(2, 5, 7))).rollout(9)
    assert td.shape[-1] == 2
    assert td["next", "agents", "done"][..., -1, :, 0].reshape(-1, 2).tolist() == [[True, False]] * (
        td_engine.num_envs or 1
    )


def test_what_is_done_in_a_group_is_reset_when_it_goes_on(td_engine: TensorDictEngine) -> None:
    td = td_engine.make(lambda index: OnlyGroupsEnv(lengths=(2, 3, 5))).rollout(12, break_when_any_done=False)
    assert td.shape[-1] == 12
    for group in ("agents", "referee"):
        assert td["next", group, "done"].any()
        assert not td[group, "done"].any()


@pytest.mark.every(3, "td_engine", "kind", first=1)
@pytest.mark.parametrize("kind", WAITS)
def test_until_all_are_done_who_is_done_waits_and_repeats_its_last_step(td_engine: TensorDictEngine, kind: str) -> None:
    env = td_engine.make(TENSORDICT_ENVS[kind])
    with torch.no_grad():
        td = env.rollout(20, break_when_all_done=True)
    for row in rows(td, td_engine):
        steps = [*row.unbind(-1)]
        done = torch.stack([step["next", "done"].squeeze(-1) for step in steps])
        assert done[-1].all()
        assert not done[0].all() or len(steps) == 1 or td_engine.batched
        for before, step, was_done in zip(steps, steps[1:], done, strict=False):
            if was_done.all():
                assert_equal(step, before)
    assert not [key for key in rows(td, td_engine)[0].keys(True, True) if "_step" in key]
    env.close()


def test_groups_without_a_root_wait_too() -> None:
    """An env has ended where anyone in it has."""
    td = OnlyGroupsEnv(lengths=(2, 5, 7)).rollout(9, break_when_all_done=True)
    assert td.batch_size == (2,)


@pytest.mark.parametrize("kind", ["counting", "groups and root", "groups alone", "tasks", "strings"])
def test_set_truncated_marks_the_last_step_of_every_group(td_engine: TensorDictEngine, kind: str) -> None:
    def steps(**told: Any) -> TensorDictBase:
        env = seeded(td_engine, TENSORDICT_ENVS[kind])
        td: TensorDictBase = env.rollout(3, break_when_any_done=False, **told)
        return td

    env = td_engine.make(TENSORDICT_ENVS[kind])
    for row, plain in zip(rows(steps(set_truncated=True), td_engine), rows(steps(), td_engine), strict=True):
        last = row["next"][..., -1]
        for key in env.done_keys:
            name = key if isinstance(key, str) else key[-1]
            if name == "terminated":
                assert last[key].equal(plain["next"][..., -1][key])
            else:
                assert last[key].all()
        marked = [("next", *((key,) if isinstance(key, str) else key)) for key in env.done_keys]
        assert_equal(row[..., :-1], plain[..., :-1])
        assert_equal(row.exclude(*marked), plain.exclude(*marked))


@pytest.mark.parametrize("kind", ["counting", "nested", "groups alone", "batched", "dtypes", "tasks"])
def test_out_takes_the_result_of_nested_keys(td_engine: TensorDictEngine, kind: str) -> None:
    def steps(**told: Any) -> TensorDictBase:
        env = seeded(td_engine, TENSORDICT_ENVS[kind])
        td: TensorDictBase = env.rollout(6, break_when_any_done=False, **told)
        return td

    expected = steps()
    out = torch.zeros_like(expected)
    places = [leaf.data_ptr() for row in rows(out, td_engine) for leaf in row.values(True, True)]
    got = steps(out=out)
    assert got is out
    assert_equal(got, expected)
    assert [leaf.data_ptr() for row in rows(got, td_engine) for leaf in row.values(True, True)] == places
    assert got.names[-1] == "time"


def test_an_out_that_unlike_envs_do_not_fit_is_refused_before_a_step(td_three: TensorDictEngine) -> None:
    env: Any = td_three.make(TENSORDICT_ENVS["tasks"])
    out = torch.zeros_like(env.rollout(2, break_when_any_done=False))
    episodes = [*env.episode]
    for wrong, told in (
        (TensorDict({}, [3, 2]), "expected a lazy stack along the first dim"),
        (LazyStackedTensorDict(*[out[0]] * 3, stack_dim=0), "the keys .*of_task_1.* are missing"),
    ):
        with pytest.raises(ValueError, match=f"out: .*{told}"):
            env.rollout(2, out=wrong)
    assert [*env.episode] == episodes


@pytest.mark.parametrize("kind", ["counting", "dynamic shape", "tasks"])
def test_a_lazy_stack_has_the_same_in_it(td_engine: TensorDictEngine, kind: str) -> None:
    lazy = seeded(td_engine, TENSORDICT_ENVS[kind]).rollout(4, break_when_any_done=False, return_contiguous=False)
    assert isinstance(lazy, LazyStackedTensorDict)
    told = {"return_contiguous": False} if kind == "dynamic shape" else {}
    expected = seeded(td_engine, TENSORDICT_ENVS[kind]).rollout(4, break_when_any_done=False, **told)  # type: ignore[arg-type]
    for step, other in zip(lazy.unbind(-1), expected.unbind(-1), strict=True):
        assert_equal(step, other)


def test_shapes_that_differ_are_refused_by_key_where_dense_is_wanted() -> None:
    env = TENSORDICT_ENVS["dynamic shape"](0)
    with pytest.raises(ValueError, match=r"points: shapes .* differ: .*return_contiguous=False"):
        env.rollout(4, break_when_any_done=False, return_contiguous=True)


@pytest.mark.parametrize("kind", ["counting", "groups and root", "tasks", "dynamic shape"])
def test_storing_device_is_where_the_result_is(td_engine: TensorDictEngine, kind: str) -> None:
    env = td_engine.make(TENSORDICT_ENVS[kind])
    for told in ({"break_when_any_done": False}, {"break_when_all_done": True}, {}):
        td = env.rollout(3, storing_device="meta", **told)  # type: ignore[arg-type]
        for row in rows(td, td_engine):
            for step in row.unbind(-1):
                assert step.device == torch.device("meta")
                assert {leaf.device.type for leaf in step.values(True, True)} == {"meta"}
    assert env.reset().device is None  # the env stays where it is
    env.close()


def test_auto_cast_moves_what_a_policy_reads_and_what_it_wrote(td_engine: TensorDictEngine) -> None:
    class Policy(torch.nn.Module):
        in_keys, out_keys = ["count"], ["action"]

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.seen: list[Any] = []

        def forward(self, td: TensorDictBase) -> TensorDictBase:
            self.seen.append(td.device)
            return env.rand_action(td)

    env, policy = td_engine.make(CountingTensorDictEnv), Policy()
    td = env.rollout(3, policy, auto_cast_to_device=True, break_when_any_done=False)
    assert policy.seen == [torch.device("cpu")] * 3
    assert td.device is None
    policy.seen.clear()
    env.rollout(2, policy, break_when_any_done=False)
    assert policy.seen == [None, None]
    on_cpu = td_engine.make(lambda index: CountingTensorDictEnv(index, device="cpu"))
    assert on_cpu.rollout(2, policy, auto_cast_to_device=True).device == torch.device("cpu")


def test_a_trusted_policy_is_given_the_tensordict_whatever_it_is(td_engine: TensorDictEngine) -> None:
    class Policy(torch.nn.Module):
        def forward(self, count: Any) -> Any:
            given.append(type(count))
            if isinstance(count, TensorDictBase):
                return env.rand_action(count)
            return env.rand_action()["action"]

    class Seen(CountingTensorDictEnv):
        def __init__(self, index: int = 0):
            super().__init__(index)
            self.observation_spec = Composite(count=Unbounded((1,), dtype=torch.int64))

        def observe(self, action: float) -> TensorDict:
            return super().observe(action).select("count")

    given: list[type] = []
    env = td_engine.make(Seen)
    env.rollout(2, Policy(), break_when_any_done=False)
    env.rollout(2, Policy(), trust_policy=True, break_when_any_done=False)
    assert [issubclass(kind, TensorDictBase) for kind in given] == [False, False, True, True]


@pytest.mark.parametrize(
    "told", [{}, {"break_when_any_done": False}, {"break_when_all_done": True}], ids=["any", "no", "all"]
)
@pytest.mark.parametrize("kind", ["counting", "groups and root", "tasks"])
def test_callback_sees_each_step_but_the_last(td_engine: TensorDictEngine, kind: str, told: dict[str, bool]) -> None:
    env = td_engine.make(TENSORDICT_ENVS[kind])
    seen: list[TensorDictBase] = []

    def callback(got: EnvBase, td: TensorDictBase) -> None:
        assert got is env
        seen.append(td.clone())
        td["scribble"] = torch.ones(td.batch_size)

    td = env.rollout(6, callback=callback, **told)  # type: ignore[arg-type]
    assert len(seen) == td.shape[-1] - 1
    for step, other in zip(td.unbind(-1), seen, strict=False):
        assert_equal(step, other)
    env.close()


def test_it_begins_where_it_is_told(td_engine: TensorDictEngine) -> None:
    """Without ``auto_reset``, in two parts, it is what it is in one; who was done is reset first, by its group."""
    for kind in ("counting", "groups and root", "groups alone"):
        one, other = seeded(td_engine, TENSORDICT_ENVS[kind]), seeded(td_engine, TENSORDICT_ENVS[kind])
        torch.manual_seed(0)
        whole = one.rollout(9, break_when_any_done=False)
        torch.manual_seed(0)
        first = other.rollout(4, break_when_any_done=False)
        start = other.step_mdp(first[..., -1])
        before = start.clone()
        second = other.rollout(5, auto_reset=False, tensordict=start, break_when_any_done=False)
        assert_equal(start, before)
        assert_equal(torch.cat([first, second], -1), whole)


def test_the_first_reset_is_given_the_tensordict(td_engine: TensorDictEngine) -> None:
    """State in it steers the reset: each env has its own row of it."""
    env = td_engine.make(TENSORDICT_ENVS["stateful"])
    params = TensorDict(
        {"stiffness": torch.full(env.batch_size, 3.0), "max_steps": torch.full(env.batch_size, 2)}, env.batch_size
    )
    td = env.rollout(9, tensordict=TensorDict({"params": params}, env.batch_size), break_when_any_done=False)
    assert td["position"][..., 0, 0].eq(1.5).all()
    assert td["next", "truncated"][..., 1::2, :].all()
    assert td["params", "stiffness"].eq(3).all()


class Far(EpisodicEnv):
    """Has a leaf on another device than the others."""

    def __init__(self, index: int = 0):
        super().__init__(index)
        self.observation_spec = Composite(near=Unbounded((1,)), far=Unbounded((3,), device="meta"))

    def observe(self, action: float) -> TensorDict:
        return TensorDict(near=torch.tensor([action]), far=torch.zeros(3, device="meta"))


@pytest.mark.parametrize("told", [{}, {"break_when_any_done": False}, {"break_when_all_done": True}], ids=str)
def test_leaves_stay_on_their_own_devices(td_engine: TensorDictEngine, told: dict[str, bool]) -> None:
    env = td_engine.make(Far)
    assert env.device is None
    td = env.rollout(9, **told)  # type: ignore[arg-type]
    assert td["far"].device.type == td["next", "far"].device.type == "meta"
    assert td["near"].device.type == td["next", "near"].device.type == "cpu"
    mask = torch.zeros(env.batch_size, dtype=torch.bool)
    stepped, root = env.step_and_maybe_reset(env.rand_action(env.reset()).set("_step", mask))
    for each in (stepped["next"], root, env.fake_tensordict()):
        assert (each["far"].device.type, each["near"].device.type, each.device) == ("meta", "cpu", None)


def test_a_method_of_the_users_does_not_get_in_the_way() -> None:
    """An env may well have one that is called ``ended``; nothing here asks it."""

    class Ended(CountingTensorDictEnv):
        def ended(self) -> bool:  # type: ignore[override]
            raise AssertionError("asked")

    for told in ({}, {"break_when_any_done": False}, {"break_when_all_done": True}):
        assert ALONE.make(Ended).rollout(4, **told).shape[-1] == (4 if "break_when_any_done" in told else 3)  # type: ignore[arg-type]
    env = Ended()
    root = env.step_mdp(env.rollout(3)[..., -1])
    assert env.rollout(2, auto_reset=False, tensordict=root).batch_size == (1,)  # an episode of one step
