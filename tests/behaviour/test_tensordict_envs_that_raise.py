"""A TensorDict env that raises leaves the others' transitions, and the run goes on after its reset."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import assert_equal, is_lazy
from tensordict import TensorDict, TensorDictBase
from tensordict_oracle import leaves_of
from tensordict_zoo import CountingTensorDictEnv, NestedEnv, TaskEnv
from zoo import CountingEnv

from gymbridge.errors import EnvOutputError


class Boom(Exception):
    """An error of the env's own."""


class Raises:
    """Mixed into an env: it raises where its ``at`` says so, which a reset that works takes back."""

    at = ""

    def _reset(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDict:
        if self.at == "reset":
            raise Boom("in reset")
        return super()._reset(tensordict, **kwargs)  # type: ignore[misc]

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        if self.at == "step":
            raise Boom("in step")
        made: TensorDict = super()._step(tensordict)  # type: ignore[misc]
        return made.exclude("reward") if self.at == "output" else made


class Counting(Raises, CountingTensorDictEnv):
    pass


class Nested(Raises, NestedEnv):
    pass


class Task(Raises, TaskEnv):
    pass


BATCHES: dict[str, tuple[type, dict[str, Any]]] = {
    "dense": (Counting, {}),
    "nested": (Nested, {}),
    "lazy": (Counting, {"share_individual_td": True}),
    "unlike": (Task, {}),
}
LENGTHS = (2, 2, 2)


@pytest.fixture(params=BATCHES)
def env(request: pytest.FixtureRequest, batched_env: Any) -> Any:
    """Three envs, of episodes of two steps, that raise when told to."""
    kind, options = BATCHES[request.param]
    env = batched_env(3, [lambda index=index: kind(index, LENGTHS) for index in range(3)], **options)
    yield env
    env.close()


def told(env: Any, at: str, *rows: int) -> None:
    env.set_attr("at", [at if row in rows else "" for row in range(3)])


def mask(*rows: int) -> torch.Tensor:
    return torch.tensor([row in rows for row in range(3)])


@pytest.mark.parametrize("call", ["step", "step_and_maybe_reset"])
def test_in_a_step(env: Any, call: str) -> None:
    """td stays as it was; the failed row is as one that was not stepped."""
    td = env.rand_action(env.reset())
    td["note"] = torch.arange(3)
    td["next", "hidden"] = torch.ones(3, 2)
    before = td.clone()
    told(env, "step", 1)
    with pytest.raises(Boom, match="in step") as caught:
        getattr(env, call)(td)
    assert caught.value.env_index == 1  # type: ignore[attr-defined]
    assert_equal(td, before, "the td of the call that failed")
    partial = env.last_partial()
    assert partial["_failed"].equal(mask(1))
    assert partial["note"].equal(torch.arange(3))
    assert env.t == [1, 0, 1]
    for row, one in enumerate(partial.unbind(0)):
        shown = [key for key in leaves_of(before[row]) if key in leaves_of(one["next"])]
        assert one["next", "hidden"].equal(torch.ones(2))
        if row == 1:
            assert not one["next", "reward"].any()
            assert_equal(one["next"].select(*shown), before[row].select(*shown))
        else:
            assert one["next", "reward"].any()
    told(env, "")
    root = env.reset(env.step_mdp(partial).set("_reset", partial["_failed"]))
    assert "_failed" not in leaves_names(root)
    assert env.episode == [0, 1, 0]
    stepped = env.step(env.rand_action(root))
    assert [bool(row["next", "done"]) for row in stepped.unbind(0)] == [True, False, True]


def leaves_names(td: TensorDictBase) -> set[str]:
    return {key[-1] for row in td.unbind(0) for key in leaves_of(row)}


@pytest.mark.parametrize("call", ["step", "step_and_maybe_reset"])
def test_the_failed_one_is_not_stepped_before_its_reset(env: Any, call: str) -> None:
    td = env.rand_action(env.reset())
    told(env, "step", 0, 2)
    with pytest.raises(Boom) as caught:
        getattr(env, call)(td.clone())
    notes = getattr(caught.value, "__notes__", None)
    assert notes in (None, ["raised by env 0; envs [2] failed in the same call"])
    assert env.last_partial()["_failed"].equal(mask(0, 2))
    told(env, "")
    with pytest.raises(Exception, match=r"envs \[0, 2\] raised an error in an earlier call .*reset them"):
        env.step(td.clone())
    assert env.t == [0, 1, 0]
    env.step(td.clone().set("_step", mask(1)))  # the other one goes on
    assert env.t == [0, 2, 0]
    assert is_lazy(td) == is_lazy(env.reset())
    env.step(env.rand_action(env.reset()))


def test_in_a_reset(env: Any) -> None:
    env.rand_step(env.reset())
    told(env, "reset", 2)
    given = TensorDict({"note": torch.arange(3)}, [3])
    with pytest.raises(Boom, match="in reset") as caught:
        env.reset(given)
    assert caught.value.env_index == 2  # type: ignore[attr-defined]
    assert {*given.keys()} == {"note"}
    partial = env.last_partial()
    assert partial["_failed"].equal(mask(2))
    assert partial["note"].equal(torch.arange(3))
    assert env.episode == [1, 1, 0]
    told(env, "")
    root = env.reset(partial.exclude("_failed").set("_reset", mask(2)))
    assert env.episode == [1, 1, 1]
    env.step(env.rand_action(root))
    assert env.t == [1, 1, 1]


def test_in_a_reset_that_a_mask_picks(env: Any) -> None:
    """The rows that it leaves out have what they showed, and only the failed one is flagged."""
    td = env.rand_step(env.reset())
    told(env, "reset", 1)
    with pytest.raises(Boom, match="in reset"):
        env.reset(TensorDict({"_reset": mask(0, 1)}, [3]))
    partial = env.last_partial()
    assert partial["_failed"].equal(mask(1))
    shown = [key for key in leaves_of(partial[2]) if key != ("_failed",)]
    assert_equal(partial[2].select(*shown), td[2]["next"].select(*shown))
    assert env.t == [0, 1, 1]
    told(env, "")
    root = env.reset(partial.exclude("_failed").set("_reset", mask(1)))
    env.step(env.rand_action(root))
    assert env.t == [1, 1, 2]


def test_in_the_reset_after_an_end(env: Any) -> None:
    """The others' steps and their own resets have taken place."""
    _, td = env.step_and_maybe_reset(env.rand_action(env.reset()))
    told(env, "reset", 0)
    with pytest.raises(Boom, match="in reset") as caught:
        env.step_and_maybe_reset(env.rand_action(td))
    assert caught.value.env_index == 0  # type: ignore[attr-defined]
    partial = env.last_partial()
    assert partial["_failed"].equal(mask(0))
    assert all(row["next", "done"].all() and row["next", "reward"].any() for row in partial[1:].unbind(0))
    assert env.episode == [0, 1, 1]
    told(env, "")
    root = env.reset(TensorDict({"_reset": partial["_failed"]}, [3]))
    assert env.episode == [1, 1, 1]
    assert env.t == [0, 0, 0]
    assert not any(row["done"].any() for row in root.unbind(0))
    env.step(env.rand_action(root))


def test_what_an_env_gives_against_its_specs_names_it(env: Any) -> None:
    td = env.rand_action(env.reset())
    told(env, "output", 1)
    with pytest.raises(EnvOutputError, match=r"env 1: .*_step: reward: missing, expected shape \[1\]"):
        env.step(td)
    assert env.last_partial()["_failed"].equal(mask(1))


def test_nothing_failed_before_the_first_error(env: Any) -> None:
    assert env.last_partial() is None
    env.rollout(3)
    assert env.last_partial() is None


def test_it_closes_after_an_error(env: Any) -> None:
    env.reset()
    told(env, "reset", 0, 1, 2)
    with pytest.raises(Boom):
        env.reset()
    assert env.last_partial()["_failed"].all()
    env.close()
    assert env.reset().batch_size == (3,)


class BreaksInItsSecondStep(CountingTensorDictEnv):
    def _step(self, tensordict: Any) -> Any:
        if self.t == 1:
            raise LookupError("broken")
        return super()._step(tensordict)


class GymnasiumBreaksInItsSecondStep(CountingEnv):
    def step(self, action: Any) -> Any:
        if self.t == 1:
            raise LookupError("broken")
        return super().step(action)


@pytest.mark.parametrize(
    ("makers", "shown"),
    [
        ([lambda: CountingTensorDictEnv(0, [2]), lambda: BreaksInItsSecondStep(0)], ("count", 0)),
        ([lambda: CountingEnv([2]), lambda: GymnasiumBreaksInItsSecondStep([9])], ("observation", 1)),
    ],
    ids=["TensorDict", "gymnasium"],
)
def test_where_each_env_stands_after_an_error_is_what_a_reset_of_none_shows(
    batched_env: Any, makers: list[Any], shown: tuple[str, int]
) -> None:
    """One that ended in the call has been reset since: a step goes on from there, and not from its end."""
    key, position = shown
    env = batched_env(2, makers)
    td = env.step_and_maybe_reset(env.rand_action(env.reset()))[1]
    with pytest.raises(LookupError, match="broken"):
        env.step_and_maybe_reset(env.rand_action(td))
    partial = env.last_partial()
    assert partial["_failed"].tolist() == [False, True]
    assert partial["next", "done"].tolist() == [[True], [False]]
    root = env.reset(TensorDict({"_reset": torch.zeros(2, dtype=torch.bool)}, [2]))
    assert root[key][:, position].tolist() == [0, 1]
    assert not root["done"].any()
    td = env.rand_action(root).set("_step", torch.tensor([True, False]))
    assert env.step(td)["next", key][:, position].tolist() == [1, 1]
    env.close()
