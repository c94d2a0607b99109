"""What ``EnvBase`` makes of an env that a user writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict_engines import TensorDictEngine
from tensordict_zoo import CountingTensorDictEnv

from gymbridge.envs import EnvBase, check_env_specs
from gymbridge.specs import Binary, Bounded, Composite, Unbounded

FLAGS = ("done", "terminated", "truncated")


class Plain(EnvBase):
    """Gives what it is told to, and remembers what it was given."""

    def __init__(self, batch_size: Any = (), *, flags: dict[str, Any] | None = None, state: bool = False):
        super().__init__(batch_size=batch_size)
        self.observation_spec = Composite(x=Unbounded((*batch_size, 2)), shape=torch.Size(batch_size))
        self.action_spec = Bounded(-1, 1, (*batch_size, 1))
        self.reward_spec = Unbounded((*batch_size, 1))
        if state:
            self.state_spec = Composite(
                hidden=Unbounded((*batch_size, 3)),
                inner=Composite(clock=Unbounded(batch_size, dtype=torch.int64), shape=torch.Size(batch_size)),
                shape=torch.Size(batch_size),
            )
        self.flags = {"terminated": False} if flags is None else flags
        self.reset_flags: dict[str, Any] = {}
        self.given: list[TensorDictBase | None] = []
        self.kwargs: list[dict[str, Any]] = []
        self.seeds: list[int | None] = []
        self.count = 0.0

    def _made(self, flags: dict[str, Any]) -> TensorDict:
        made = TensorDict({"x": torch.full((*self.batch_size, 2), self.count)}, self.batch_size)
        for name, value in flags.items():
            made.set(name, torch.tensor(value).expand((*self.batch_size, 1)).clone())
        return made

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        self.given.append(None if tensordict is None else tensordict.clone())
        self.kwargs.append(kwargs)
        self.count += 100
        if tensordict is not None:
            tensordict["scribble"] = torch.zeros(tensordict.batch_size)
        return self._made(self.reset_flags)

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        self.given.append(tensordict.clone())
        self.count += 1
        tensordict["scribble"] = torch.zeros(tensordict.batch_size)
        return self._made(self.flags).set("reward", torch.ones((*self.batch_size, 1)))

    def _set_seed(self, seed: int | None) -> None:
        self.seeds.append(seed)


class Partial(Plain):
    """The same, and it honours masks."""

    @property
    def partial_step(self) -> bool:
        return True

    @property
    def partial_reset(self) -> bool:
        return True


BATCHES = [(), (2,), (2, 3)]
over_batches = pytest.mark.parametrize("batch_size", BATCHES, ids=str)


@over_batches
def test_one_that_is_right_passes_the_check(batch_size: Any) -> None:
    check_env_specs(Plain(batch_size))
    check_env_specs(Plain(batch_size, state=True))


@over_batches
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (False, False, False)),
        ({"terminated": True}, (True, True, False)),
        ({"terminated": False}, (False, False, False)),
        ({"truncated": True}, (True, False, True)),
        ({"truncated": False}, (False, False, False)),
        ({"done": True}, (True, True, False)),
        ({"done": False}, (False, False, False)),
        ({"terminated": True, "truncated": False}, (True, True, False)),
        ({"terminated": False, "truncated": True}, (True, False, True)),
        ({"terminated": True, "truncated": True}, (True, True, True)),
        ({"done": True, "truncated": True}, (True, False, True)),
        ({"done": True, "truncated": False}, (True, True, False)),
        ({"done": True, "terminated": True}, (True, True, False)),
        ({"done": True, "terminated": False}, (True, False, True)),
        ({"done": True, "terminated": True, "truncated": True}, (True, True, True)),
    ],
    ids=str,
)
@pytest.mark.parametrize("last_dim", [True, False], ids=["[*B, 1]", "[*B]"])
def test_missing_flags_are_completed(batch_size: Any, given: Any, expected: Any, last_dim: bool) -> None:
    env = Plain(batch_size, flags=given)
    if not last_dim:
        made = env._made
        env._made = lambda flags: made({}).update(  # type: ignore[method-assign]
            {name: torch.full(batch_size, value) for name, value in flags.items()}
        )
    td = env.rand_step(env.reset())
    for name, value in zip(FLAGS, expected, strict=True):
        flag = td["next", name]
        assert flag.shape == (*batch_size, 1)
        assert flag.dtype is torch.bool
        assert flag.eq(value).all(), name


@pytest.mark.parametrize("flags", [{"done": True}, {"terminated": True}, {"truncated": True}], ids=str)
def test_still_done_after_a_reset_is_an_error_that_names_the_env(flags: dict[str, bool]) -> None:
    env = Plain((3,))
    env.reset_flags = {name: [[False], [value], [False]] for name, value in flags.items()}
    with pytest.raises(RuntimeError, match=r"Plain: envs \[1\] are still done after their reset"):
        env.reset()
    nested = Plain((2, 2))
    nested.reset_flags = {name: [[[False], [False]], [[value], [False]]] for name, value in flags.items()}
    with pytest.raises(RuntimeError, match=r"envs \[\(1, 0\)\] are still done"):
        nested.reset()


def test_an_env_without_a_batch_that_is_still_done_is_named() -> None:
    env = Plain()
    env.reset_flags = {"terminated": True}
    with pytest.raises(RuntimeError, match=r"^Plain is still done after its reset$"):
        env.reset()


def test_an_env_of_a_batch_that_is_still_done_is_named(td_three: TensorDictEngine) -> None:
    class Done(CountingTensorDictEnv):
        def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
            return super()._reset(tensordict, **kwargs).set("terminated", torch.tensor([self.index == 1]))

    with pytest.raises(RuntimeError, match="Done is still done after its reset") as caught:
        td_three.make(Done).reset()
    assert caught.value.env_index == 1  # type: ignore[attr-defined]


def test_an_env_that_is_not_reset_may_still_be_done() -> None:
    env = Partial((2,))
    env.reset_flags = {"terminated": [[False], [True]]}
    td = TensorDict({"_reset": torch.tensor([True, False])}, [2])
    assert not env.reset(td)["done"].any()  # the second was never done, whatever the env gave for it
    with pytest.raises(RuntimeError, match=r"envs \[1\] are still done"):
        env.reset(TensorDict({"_reset": torch.tensor([False, True])}, [2]))


# ---------------------------------------------------------------- what reaches the env


@over_batches
def test_actions_and_states_reach_it_and_nothing_else(batch_size: Any) -> None:
    env = Plain(batch_size, state=True)
    td = env.rand_action(env.reset())
    td.update(env.full_state_spec.rand())
    td["note"] = torch.ones(batch_size)
    td["next", "x"] = torch.full((*batch_size, 2), 5.0)
    td["next", "hidden"] = torch.full((*batch_size, 3), 6.0)
    td["next", "mine"] = torch.ones(batch_size)
    before = td.clone()
    stepped = env.step(td)
    given = env.given[-1]
    assert given is not None
    assert set(given.keys(True, True)) == {"action", "hidden", ("inner", "clock"), ("next", "x"), ("next", "hidden")}
    assert given["action"].equal(before["action"])
    assert given["inner", "clock"].equal(before["inner", "clock"])
    assert given["next", "x"].eq(5).all()
    assert stepped["next", "x"].ne(5).all()
    assert stepped["next", "hidden"].eq(6).all()
    assert stepped["next", "mine"].eq(1).all()
    assert "scribble" not in td.keys()  # what the env does to what it is given stays there


def test_a_reset_is_given_all_of_td_and_the_keyword_arguments() -> None:
    """State in td can steer a reset; what the env does to it does not reach the caller's td."""
    env = Plain((2,))
    given = TensorDict({"level": torch.tensor([1, 2])}, [2])
    td = env.reset(given, options={"a": 1})
    seen = env.given[-1]
    assert seen is not None
    assert seen["level"].tolist() == [1, 2]
    assert env.kwargs[-1] == {"options": {"a": 1}}
    assert set(given.keys()) == {"level"}
    assert set(td.keys()) == {"level", "x", *FLAGS}
    env.reset()
    assert env.given[-1] is None


@pytest.mark.parametrize("key", ["hidden", ("inner", "clock")], ids=str)
def test_a_missing_state_is_named(key: Any) -> None:
    env = Plain((2,), state=True)
    td = env.rand_action(env.reset()).update(env.full_state_spec.rand())
    del td[key]
    name = key if isinstance(key, str) else ".".join(key)
    with pytest.raises(KeyError, match=f"{name}: missing, expected shape"):
        env.step(td)
    td[key] = torch.zeros(2, 9)
    with pytest.raises(ValueError, match=rf"{name}: got shape \[2, 9\], expected"):
        env.step(td)


def test_state_keys_go_on_to_the_next_root() -> None:
    env = Plain((2,), state=True)
    td = env.rand_action(env.reset()).update(env.full_state_spec.rand())
    before = td.clone()
    stepped, root = env.step_and_maybe_reset(td)
    assert root["hidden"].equal(before["hidden"])
    assert root["inner", "clock"].equal(before["inner", "clock"])
    assert [*env.full_state_spec.keys(True, True)] == ["hidden", ("inner", "clock")]
    assert set(env.fake_tensordict().keys(True, True)) >= {"hidden", ("inner", "clock"), "action", "x"}
    assert "hidden" not in stepped["next"].keys()


# ---------------------------------------------------------------- masks


@pytest.mark.parametrize("form", ["[*B]", "[*B, 1]"])
@pytest.mark.parametrize("batch_size", [(2,), (2, 3)], ids=str)
def test_the_env_sees_masks_of_the_shape_of_its_batch(batch_size: Any, form: str) -> None:
    env = Partial(batch_size)
    td = env.rand_action(env.reset())
    picked = torch.zeros(batch_size, dtype=torch.bool)
    picked[0] = True
    mask = picked if form == "[*B]" else picked.unsqueeze(-1)
    env.step(td.clone().set("_step", mask))
    given = env.given[-1]
    assert given is not None
    assert given["_step"].equal(picked)
    env.reset(td.clone().set("_reset", mask))
    given = env.given[-1]
    assert given is not None
    assert given["_reset"].equal(picked)


def test_a_mask_of_all_is_none() -> None:
    """Also for an env that cannot do a part."""
    for env in (Plain((2,)), Partial((2,))):
        td = env.rand_action(env.reset())
        env.step(td.clone().set("_step", torch.ones(2, dtype=torch.bool)))
        assert "_step" not in env.given[-1].keys()  # type: ignore[union-attr]
        env.reset(td.clone().set("_reset", torch.ones(2, 1, dtype=torch.bool)))
        assert "_reset" not in env.given[-1].keys()  # type: ignore[union-attr]


@pytest.mark.parametrize("picked", [[True, False], [False, False]], ids=str)
def test_masks_are_refused_by_name_where_they_are_not_honoured(picked: list[bool]) -> None:
    env = Plain((2,))
    td = env.rand_action(env.reset())
    calls = len(env.given)
    for call in (env.step, env.step_and_maybe_reset):
        with pytest.raises(ValueError, match=r"_step: Plain has partial_step=False .* got the mask"):
            call(td.clone().set("_step", torch.tensor(picked)))
    with pytest.raises(ValueError, match=r"_reset: Plain has partial_reset=False .* got the mask"):
        env.reset(td.clone().set("_reset", torch.tensor(picked)))
    assert len(env.given) == calls


def test_only_some_that_ended_are_refused_where_no_part_can_be_reset() -> None:
    env = Plain((2,), flags={"terminated": [[True], [False]]})
    td = env.rand_action(env.reset())
    with pytest.raises(ValueError, match="_reset: Plain has partial_reset=False"):
        env.step_and_maybe_reset(td)
    env.flags = {"terminated": [[True], [True]]}
    _, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert not root["done"].any()


def test_masks_of_an_env_without_a_batch() -> None:
    env = Plain()
    assert env.partial_step
    assert env.partial_reset
    assert not Plain((2,)).partial_step
    assert not Plain((2,)).partial_reset
    td = env.rand_action(env.reset())
    calls = len(env.given)
    nobody = torch.tensor(False)
    stepped, root = env.step_and_maybe_reset(td.clone().set("_step", nobody))
    assert len(env.given) == calls
    assert stepped["next", "x"].equal(td["x"])
    assert stepped["next", "reward"].tolist() == [0]
    assert root["x"].equal(td["x"])
    assert env.reset(td.clone().set("_reset", nobody))["x"].equal(td["x"])
    assert len(env.given) == calls


def test_infos_of_an_env_that_is_not_stepped_are_zero() -> None:
    class Informed(Partial):
        def __init__(self) -> None:
            super().__init__((2,))
            self.observation_spec = Composite(
                x=Unbounded((2, 2)), info=Composite(t=Unbounded((2,)), shape=torch.Size([2])), shape=torch.Size([2])
            )

        def _made(self, flags: dict[str, Any]) -> TensorDict:
            return super()._made(flags).set("info", TensorDict({"t": torch.full((2,), 7.0)}, [2]))

    env = Informed()
    td = env.rand_action(env.reset())
    following = env.step(td.set("_step", torch.tensor([True, False])))["next"]
    assert following["info", "t"].tolist() == [7, 0]
    assert following["reward"].tolist() == [[1], [0]]


def test_the_latest_of_an_env_is_its_own_whatever_td_showed() -> None:
    """A made-up observation of a sleeping env is given back, but is not taken for the env's."""
    env = Partial((2,))
    env.reset()
    made_up = TensorDict({"x": torch.full((2, 2), -5.0), "_reset": torch.tensor([True, False])}, [2])
    assert env.reset(made_up)["x"].tolist() == [[200, 200], [-5, -5]]
    bare = env.reset(TensorDict({"_reset": torch.tensor([False, False])}, [2]))
    assert bare["x"].tolist() == [[200, 200], [100, 100]]


# ---------------------------------------------------------------- the rest


def test_seeds_reach_set_seed() -> None:
    env = Plain((3,))
    assert env.set_seed(4) == 7
    assert env.set_seed(4, static_seed=True) == 4
    assert env.set_seed(None) is None
    assert env.seeds == [4, 4, None]


def test_it_can_be_moved() -> None:
    env = Plain((2,), state=True)
    env.set_spec_lock_()
    assert env.device is None
    assert env.to("cpu") is env
    assert env.device == torch.device("cpu")
    assert env.is_spec_locked
    assert env.full_observation_spec.is_locked
    assert env.fake_tensordict().device == torch.device("cpu")
    on_cpu = Plain((2,))
    on_cpu.to("cpu")
    on_cpu.reward_spec = Unbounded((2, 1))
    assert on_cpu.full_reward_spec.device == torch.device("cpu")
    with pytest.raises(ValueError, match="device: got meta"):
        env.to("meta")


def test_rollouts_of_a_whole_batch_that_ends_together() -> None:
    env = Plain((2, 3), flags={"terminated": True})
    td = env.rollout(4, break_when_any_done=False)
    assert td.batch_size == (2, 3, 4)
    assert td["next", "done"].all()
    assert not td["done"].any()
    assert env.rollout(4).batch_size == (2, 3, 1)


def test_what_is_abstract_must_be_written() -> None:
    class Half(EnvBase):
        def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
            return TensorDict({}, [])

    with pytest.raises(TypeError, match="_set_seed"):
        Half()  # type: ignore[abstract]


def test_several_actions_and_rewards() -> None:
    class Several(Plain):
        def __init__(self) -> None:
            super().__init__((2,))
            lead = torch.Size([2])
            inner = Composite(right=Bounded(-1, 1, (2, 3)), shape=lead)
            self.action_spec = Composite(left=Binary(1, (2, 1)), arm=inner, shape=lead)
            self.reward_spec = Composite(reward=Unbounded((2, 1)), bonus=Unbounded((2, 1)), shape=lead)

        def _step(self, tensordict: TensorDictBase) -> TensorDict:
            return super()._step(tensordict).set("bonus", torch.full((2, 1), 2.0))

    env = Several()
    assert env.action_keys == ["left", ("arm", "right")]
    assert env.reward_keys == ["reward", "bonus"]
    assert env.action_spec == env.full_action_spec
    assert env.reward_spec == env.full_reward_spec
    check_env_specs(env)
    stepped, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert stepped["next", "bonus"].eq(2).all()
    assert set(root.keys()) == {"x", *FLAGS}
