"""Where our vector envs differ from gymnasium's on purpose: one test for each row of the table of deviations."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from agreement import assert_same
from generated_envs import Plan, PlannedEnv, makers
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from vector_classes import BOTH, travels

from gymbridge.engine.contract import env_faults
from gymbridge.errors import EnvOutputError
from gymbridge.vector import SyncVectorEnv, make_vec

travels(sys.modules[__name__])

BOX = spaces.Box(0, 255, (2,), np.uint8)


def showing(space: spaces.Space, *observations: Any) -> list[Callable[[], gym.Env]]:
    """Envs whose first observation, and each later one, is the given one."""

    class Shows(PlannedEnv):
        def _observation(self) -> Any:
            return observations[self.index]

    return [lambda index=index: Shows(Plan(space), index) for index in range(len(observations))]  # type: ignore[misc]


# ---------------------------------------------------------------- observations of another dtype or shape


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), np.array([0.1, 0.7])),  # same_kind, rounded
        (spaces.Box(-1, 1, (2,), np.float32), [0.1, 0.7]),
        (spaces.Box(-1, 1, (2,), np.float32), np.array([0, 1])),
        (spaces.Box(-9, 9, (), np.float64), 2),
        (spaces.Discrete(3), True),
        (spaces.MultiBinary(2), np.array([True, False])),
    ],
    ids=repr,
)
@BOTH
def test_a_dtype_that_numpy_casts_as_gymnasium_does(cls: Any, space: spaces.Space, observation: Any) -> None:
    fns = showing(space, observation, observation)
    assert_same(cls(fns).reset(), gym.vector.SyncVectorEnv(fns).reset())


@pytest.mark.parametrize(
    ("space", "observation"),
    [
        (BOX, np.array([3, 4])),  # gymnasium refuses to put int64 into uint8
        (BOX, np.array([3.0, 4.0])),
        (spaces.Box(-9, 9, (2,), np.int32), np.array([3.0, -4.0], np.float16)),
        (spaces.Box(0, 1, (2,), np.bool_), [0, 1]),
    ],
    ids=repr,
)
@BOTH
def test_an_exact_value_of_another_kind_is_taken(cls: Any, space: spaces.Space, observation: Any) -> None:
    fns = showing(space, observation, observation)
    with pytest.raises(TypeError):
        gym.vector.SyncVectorEnv(fns).reset()
    got, _ = cls(fns).reset()
    assert_same(got, np.stack([np.asarray(observation).astype(space.dtype)] * 2))


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (BOX, np.array([3, 400]), r"observation: got .*400.*int64, expected uint8: the cast changes it"),
        (BOX, np.array([-1, 4]), r"observation: got .*-1.*the cast changes it"),
        (BOX, np.array([0.5, 1.0]), r"observation: got .*float64, expected uint8: the cast changes it"),
        (BOX, np.array([np.nan, 1.0]), r"observation: got .*the cast changes it"),
        (BOX, np.array(["1", "2"]), r"observation: got dtype <U1, expected uint8"),
        (BOX, np.array([1j, 2]), r"observation: got dtype complex128, expected uint8"),
        (BOX, np.array([None, 2]), r"observation: got dtype object, expected uint8"),
        (spaces.Discrete(3), 1.5, r"observation: got 1.5"),
        (
            spaces.Discrete(3),
            None,
            r"observation: got None of type NoneType, expected an array of shape \(\) and int64",
        ),
        (BOX, None, r"observation: got None of type NoneType, expected an array of shape \(2,\) and uint8"),
        (BOX, {"x": 1}, r"observation: got {'x': 1} of type dict, expected an array"),
        (BOX, [[1], [2, 3]], r"observation: got \[\[1\], \[2, 3\]\] of type list, expected an array"),
        (BOX, ["1", "2"], r"observation: got \['1', '2'\] of type list, expected an array"),
        (BOX, "12", r"observation: got '12' of type str, expected an array"),
        (spaces.Dict(a=BOX), {"a": None}, r"env 0: a: got None of type NoneType"),
    ],
    ids=repr,
)
@BOTH
def test_a_value_that_a_cast_would_change_is_refused(
    cls: Any, space: spaces.Space, observation: Any, message: str
) -> None:
    with pytest.raises(EnvOutputError, match=message):
        cls(showing(space, observation)).reset()


@pytest.mark.parametrize(
    ("space", "observation", "shape"),
    [
        (BOX, np.zeros(1, np.uint8), r"\(1,\), expected \(2,\)"),
        (BOX, np.zeros((1, 2), np.uint8), r"\(1, 2\), expected \(2,\)"),
        (BOX, np.uint8(3), r"\(\), expected \(2,\)"),
        (BOX, 3, r"\(\), expected \(2,\)"),
        (BOX, [1, 2, 3], r"\(3,\), expected \(2,\)"),
        (spaces.Discrete(3), np.array([1]), r"\(1,\), expected \(\)"),
    ],
    ids=repr,
)
@BOTH
def test_a_shape_that_would_be_broadcast_is_refused(
    cls: Any, space: spaces.Space, observation: Any, shape: str
) -> None:
    with pytest.raises(EnvOutputError, match=f"observation: got shape {shape}"):
        cls(showing(space, observation)).reset()


# ---------------------------------------------------------------- infos


def infos_of(cls: Any, *infos: dict[str, Any]) -> dict[str, Any]:
    class Tells(PlannedEnv):
        def _info(self, kind: int, plan: Any) -> dict[str, Any]:
            return infos[self.index]

    envs = cls([lambda index=index: Tells(Plan(BOX), index) for index in range(len(infos))])  # type: ignore[misc]
    return envs.reset(seed=0)[1]


@BOTH
def test_an_info_entry_widens(cls: Any) -> None:
    assert_same(infos_of(cls, {"x": 1}, {"x": 2.7}, {"x": True})["x"], np.array([1, 2.7, 1]))
    assert_same(infos_of(cls, {"x": False}, {"x": 7})["x"], np.array([0, 7]))
    assert_same(infos_of(cls, {"x": np.int8(1)}, {"x": 300})["x"], np.array([1, 300]))


@BOTH
def test_a_slippery_lakes_probability_is_not_cut_off(cls: Any) -> None:
    """Its reset says ``prob: 1``, its steps ``prob: 1/3``: gymnasium shows 0 once an env was reset in the same call."""
    fns = [lambda steps=steps: gym.make("FrozenLake-v1", max_episode_steps=steps) for steps in (1, 5)]  # type: ignore[misc]
    ours, theirs = cls(fns), gym.vector.SyncVectorEnv(fns)
    for envs in (ours, theirs):
        envs.reset(seed=0)
        envs.step(np.array([0, 0]))
    actions = np.array([0, 0])
    assert theirs.step(actions)[-1]["prob"].tolist() == [1, 0]
    assert ours.step(actions)[-1]["prob"].tolist() == pytest.approx([1, 1 / 3])


@BOTH
def test_info_arrays_of_differing_shapes_become_an_object_array(cls: Any) -> None:
    got = infos_of(cls, {"x": np.zeros(2)}, {}, {"x": np.ones(3)})
    assert got["x"].dtype == object
    assert_same(list(got["x"]), [np.zeros(2), None, np.ones(3)])
    assert got["_x"].tolist() == [True, False, True]


@BOTH
def test_info_arrays_of_objects_take_what_fits_and_no_strings_become_of_objects(cls: Any) -> None:
    objects, numbers, words = np.array([None, "a"], object), np.ones(2), np.array(["b", "c"])
    got = infos_of(cls, {"x": objects}, {"x": numbers}, {})["x"]
    assert_same(got, np.array([[None, "a"], [1.0, 1.0], [0, 0]], object))  # as gymnasium
    assert_same(list(infos_of(cls, {"x": words}, {"x": objects}, {})["x"]), [words, objects, None])


@BOTH
def test_info_entries_that_are_a_dict_here_and_a_number_there(cls: Any) -> None:
    assert_same(list(infos_of(cls, {"x": {"y": 1}}, {"x": 2})["x"]), [{"y": np.int64(1)}, 2])
    assert_same(list(infos_of(cls, {"x": 2}, {"x": {"y": 1}})["x"]), [np.int64(2), {"y": 1}])


# ---------------------------------------------------------------- final_obs


@pytest.mark.parametrize(
    ("space", "raw", "final"),
    [
        (spaces.Discrete(3), 2, np.int64(2)),
        (spaces.Box(-1, 1, (2,), np.float32), [0.5, 1], np.array([0.5, 1], np.float32)),
        (spaces.Tuple([spaces.Discrete(3), BOX]), [1, [2, 3]], (np.int64(1), np.array([2, 3], np.uint8))),
        (spaces.Dict(a=spaces.Discrete(3)), {"a": True, "more": 5}, {"a": np.int64(1)}),
    ],
    ids=repr,
)
@BOTH
def test_final_obs_is_in_the_spaces_dtype_and_structure(cls: Any, space: spaces.Space, raw: Any, final: Any) -> None:
    class Shows(PlannedEnv):
        def _observation(self) -> Any:
            return raw

    envs = cls([lambda: Shows(Plan(space, lengths=(1,)))] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    infos = envs.step([0, 0])[-1]
    assert infos["final_obs"].dtype == object
    assert_same(list(infos["final_obs"]), [final, final])


@BOTH
def test_final_obs_and_final_info_are_those_of_the_end(cls: Any) -> None:
    """Also where the env writes its next observation and info into the same arrays."""
    box = spaces.Box(0, 9, (1,), np.int64)

    class InPlace(gym.Env[Any, Any]):
        observation_space = box
        action_space = spaces.Discrete(2)

        def __init__(self) -> None:
            self.array = np.zeros(1, np.int64)
            self.info: dict[str, Any] = {"inner": {"array": self.array}, "array": self.array}

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            self.array[:] = 0
            self.info["steps"] = 0
            return self.array, self.info

        def step(self, action: Any) -> Any:
            self.array += 1
            self.info["steps"] += 1
            return self.array, 0.0, bool(self.array[0] == 2), False, self.info

    envs = cls([InPlace, InPlace], autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset()
    envs.step([0, 0])
    observation, *_, infos = envs.step([0, 0])
    assert observation.tolist() == [[0], [0]]
    assert [final.tolist() for final in infos["final_obs"]] == [[2], [2]]
    assert infos["final_info"]["array"].tolist() == [[2], [2]]
    assert infos["final_info"]["inner"]["array"].tolist() == [[2], [2]]
    assert infos["final_info"]["steps"].tolist() == [2, 2]
    assert infos["array"].tolist() == [[0], [0]]
    assert infos["steps"].tolist() == [0, 0]


def test_infos_that_envs_share_are_read_when_each_env_gives_them() -> None:
    """An info array that one env writes and another changes in the same call keeps each env's value."""
    shared = {"count": np.zeros(1, np.int64)}

    class Counts(PlannedEnv):
        def step(self, action: Any) -> Any:
            shared["count"] += 1
            return (*super().step(action)[:4], shared)

    plan = Plan(spaces.Discrete(2))
    envs = SyncVectorEnv([lambda: Counts(plan)] * 3)
    envs.reset(seed=0)
    assert envs.step([0, 0, 0])[-1]["count"].tolist() == [[1], [2], [3]]


# ---------------------------------------------------------------- autoreset


@BOTH
def test_disabled_refuses_a_step_after_an_end(cls: Any) -> None:
    """By an error that names the envs, before any env is stepped."""
    envs = cls(makers(Plan(BOX, lengths=(1, 9)), 4), autoreset_mode="Disabled")
    envs.reset(seed=0)
    envs.step([0] * 4)
    counts = [len(calls) for calls in envs.get_attr("calls")]
    with pytest.raises(ResetNeeded, match=r"envs \[0, 2\] ended their episode: .* is 'Disabled'"):
        envs.step([0] * 4)
    assert [len(calls) for calls in envs.get_attr("calls")] == counts
    envs.reset(options={"reset_mask": np.array([True, False, True, False])})
    envs.step([0] * 4)


@BOTH
def test_the_callers_options_stay_as_they_are(cls: Any) -> None:
    envs = cls(makers(Plan(BOX), 2))
    envs.reset(seed=0)
    mask = np.array([True, False])
    options = {"reset_mask": mask, "level": 3}
    envs.reset(options=options)
    assert options.keys() == {"reset_mask", "level"}
    assert options["reset_mask"] is mask
    first, second = envs.get_attr("calls")
    assert first[-1] == ("reset", None, {"level": 3})
    assert len(second) == 1


# ---------------------------------------------------------------- an env that raises


class Raises(PlannedEnv):
    """Raises in its ``at``-th step."""

    at = 2

    def step(self, action: Any) -> Any:
        if self.index in (1, 3) and sum(call[0] == "step" for call in self.calls) + 1 == self.at:
            self.calls.append(("step", action))
            raise RuntimeError(f"broken {self.index}")
        return super().step(action)


@BOTH
def test_an_env_that_raises_costs_the_others_nothing(cls: Any) -> None:
    """All other envs are stepped, what they gave is kept, and after a reset of the broken ones the run goes on."""
    plan = Plan(BOX, lengths=(9,), step_infos=({"x": 1},))
    envs = cls([lambda index=index: Raises(plan, index) for index in range(4)])  # type: ignore[misc]
    sane = gym.vector.SyncVectorEnv(makers(plan, 4))
    envs.reset(seed=0), sane.reset(seed=0)
    before, *_ = envs.step([0, 1, 2, 0])
    sane.step(np.array([0, 1, 2, 0]))
    assert envs.last_partial() is None

    with pytest.raises(RuntimeError, match="broken 1") as raised:
        envs.step([0, 1, 2, 0])
    assert raised.value.env_index == 1  # type: ignore[attr-defined]
    if hasattr(raised.value, "__notes__"):
        assert raised.value.__notes__ == ["raised by env 1; envs [3] failed in the same call"]

    observations, rewards, terminations, truncations, infos = envs.last_partial()  # type: ignore[misc]
    expected = sane.step(np.array([0, 1, 2, 0]))
    for row in (0, 2):
        assert_same(observations[row], expected[0][row])
        assert rewards[row] == expected[1][row]
    for row in (1, 3):
        assert_same(observations[row], before[row])  # the latest that there is
        assert rewards[row] == 0
    assert not terminations.any()
    assert not truncations.any()
    assert infos["_failed"].tolist() == [False, True, False, True]
    assert infos["x"].tolist() == [1, 0, 1, 0]
    assert infos["_x"].tolist() == [True, False, True, False]

    with pytest.raises(ResetNeeded, match=r"envs \[1, 3\] raised an error in an earlier call"):
        envs.step([0, 1, 2, 0])
    envs.reset(options={"reset_mask": infos["_failed"]})
    envs.step([0, 1, 2, 0])
    assert sum(call[0] == "step" for call in envs.get_attr("calls")[0]) == 3
    envs.close()


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
@BOTH
def test_an_env_that_raises_in_reset(cls: Any, mode: AutoresetMode) -> None:
    class Unready(PlannedEnv):
        ready = False

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            if self.index == 1 and not self.ready:
                raise KeyError("not ready")
            return super().reset(seed=seed, options=options)

    envs = cls([lambda index=index: Unready(Plan(BOX), index) for index in range(3)], autoreset_mode=mode)  # type: ignore[misc]
    with pytest.raises(KeyError, match="not ready") as raised:
        envs.reset(seed=0)
    assert raised.value.env_index == 1  # type: ignore[attr-defined]
    observations, infos = envs.last_partial()  # type: ignore[misc]
    assert infos["_failed"].tolist() == [False, True, False]
    assert observations[0].any()
    envs.set_attr("ready", True)
    after, _ = envs.reset(options={"reset_mask": infos["_failed"]})
    assert_same(after[[0, 2]], observations[[0, 2]])
    envs.step([0, 0, 0])


@BOTH
def test_a_reset_that_raises_after_an_end_keeps_the_end(cls: Any) -> None:
    """Same step: the last transition of the episode is whole, so it is handed over."""

    class BreaksAtItsEnd(PlannedEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            if self.index == 1 and self.calls:
                raise RuntimeError("no second episode")
            return super().reset(seed=seed, options=options)

    plan = Plan(BOX, lengths=(1,), step_infos=({"x": 4},))
    envs = cls(
        [lambda index=index: BreaksAtItsEnd(plan, index) for index in range(2)],  # type: ignore[misc]
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    sane = gym.vector.SyncVectorEnv(makers(plan, 2))
    envs.reset(seed=0), sane.reset(seed=0)
    with pytest.raises(RuntimeError, match="no second episode"):
        envs.step([0, 0])
    observations, rewards, terminations, _, infos = envs.last_partial()  # type: ignore[misc]
    expected = sane.step(np.array([0, 0]))
    assert_same(rewards, expected[1])
    assert terminations.tolist() == [True, True]
    assert_same(observations[1], expected[0][1])
    assert_same(infos["final_obs"][0], expected[0][0])
    assert infos["_final_obs"].tolist() == [True, False]
    assert infos["_x"].tolist() == [False, True]
    assert infos["_failed"].tolist() == [False, True]


ONES = np.ones(2, np.uint8)


@pytest.mark.every(3, "cls", "outcome", "mode", "steps")
@pytest.mark.parametrize(
    ("outcome", "name"),
    [
        ((np.zeros(3, np.uint8), 1.0, False, False, {}), "observation"),
        ((ONES, None, False, False, {}), "reward"),
        ((ONES, "1.5", False, False, {}), "reward"),
        ((ONES, 1j, False, False, {}), "reward"),
        ((ONES, np.ones(2), False, False, {}), "reward"),
        ((ONES, 10**400, False, False, {}), "reward"),
        ((ONES, 1.0, np.array([True, False]), False, {}), "terminated"),
        ((ONES, 1.0, False, np.array([True, False]), {}), "truncated"),
        *(((ONES, 1.0, flag, False, {}), "terminated") for flag in ([False], (False,), "False", None, np.nan, 0.0)),
        *(((ONES, 1.0, False, flag, {}), "truncated") for flag in ({}, "", np.array(1.0), np.array([False, False]))),
        ((ONES, 1.0, False, False, None), "info"),
        ((ONES, 1.0, False, False, []), "info"),
        ((ONES, 1.0, False, False, "info"), "info"),
        ((ONES, 1.0, True, False, None), "info"),
        ((ONES, 1.0, False, {}), "step"),
        ((ONES, 1.0, False, False, {}, {}), "step"),
        (None, "step"),
        (3, "step"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("steps", [0, 1])
@BOTH
def test_a_bad_outcome_is_named_and_leaves_its_row_as_it_was(
    cls: Any, outcome: Any, name: str, mode: AutoresetMode, steps: int
) -> None:
    """Never a half-written row, whether the latest observation is from a reset or from a step."""

    class Misbehaves(PlannedEnv):
        bad: Any = False

        def step(self, action: Any) -> Any:
            return outcome if self.bad else super().step(action)

    plan = Plan(BOX, lengths=(9,), ends=((False, True),))
    envs = cls([lambda index=index: Misbehaves(plan, index) for index in range(3)], autoreset_mode=mode)  # type: ignore[misc]
    before, _ = envs.reset(seed=0)
    for _ in range(steps):
        before, *_ = envs.step([0, 0, 0])
    envs.set_attr("bad", [False, True, False])
    with pytest.raises(EnvOutputError, match=rf"^env 1: {name}: got ") as raised:
        envs.step([0, 0, 0])
    assert raised.value.env_index == 1  # type: ignore[attr-defined]
    observations, rewards, terminations, truncations, infos = envs.last_partial()  # type: ignore[misc]
    assert_same(observations[1], before[1])
    assert rewards[1] == 0
    assert not (terminations | truncations).any()
    assert infos == {"_failed": infos["_failed"]}
    for row in (0, 2):
        assert not np.array_equal(observations[row], before[row])


@pytest.mark.parametrize("flag", [1, np.int8(1), np.True_, np.array(True), np.array([True]), np.array([[1]])], ids=repr)
@pytest.mark.parametrize("value", [True, False])
@BOTH
def test_flags_that_are_taken_as_gymnasium_takes_them(cls: Any, flag: Any, value: bool) -> None:
    flag = type(flag)(value) if np.ndim(flag) == 0 and not isinstance(flag, np.ndarray) else flag * 0 + value

    class Ends(PlannedEnv):
        def step(self, action: Any) -> Any:
            return (*super().step(action)[:2], flag, flag, {})

    results = []
    for each in (cls, gym.vector.SyncVectorEnv):
        envs = each([lambda: Ends(Plan(BOX))])
        envs.reset(seed=0)
        results.append(envs.step(np.array([0])))
    assert results[0][2].tolist() == [value]
    assert_same(*results)
    assert env_faults(Ends(Plan(BOX)), 3, seed=0) == []


@pytest.mark.parametrize(
    ("space", "bad"),
    [
        (spaces.Dict(a=BOX, b=spaces.Discrete(3)), {"a": np.ones(2, np.uint8), "b": 1.5}),
        (spaces.Dict(a=BOX, b=spaces.Discrete(3)), {"a": np.ones(2, np.uint8)}),
        (spaces.Dict(a=BOX, b=spaces.Discrete(3)), np.ones(2, np.uint8)),
        (spaces.Tuple([BOX, BOX]), (np.ones(2, np.uint8), np.ones(3, np.uint8))),
        (spaces.Tuple([BOX, BOX]), (np.ones(2, np.uint8),)),
        (spaces.Tuple([BOX, BOX]), 5),
    ],
    ids=repr,
)
@BOTH
def test_no_leaf_of_a_bad_observation_is_written(cls: Any, space: spaces.Space, bad: Any) -> None:
    class Misbehaves(PlannedEnv):
        bad = False

        def _observation(self) -> Any:
            return bad if self.bad else super()._observation()

    envs = cls([lambda: Misbehaves(Plan(space))] * 2)
    before, _ = envs.reset(seed=0)
    envs.set_attr("bad", [True, False])
    with pytest.raises(EnvOutputError, match=r"^env \d: (observation|a|b|observation\.[01])"):
        envs.step([0, 0])
    after = envs.last_partial()[0]  # type: ignore[index]
    for ours, theirs in zip(
        (after.values() if isinstance(after, dict) else after),
        (before.values() if isinstance(before, dict) else before),
        strict=True,
    ):
        assert_same(ours[0], theirs[0])


@pytest.mark.parametrize("result", [None, np.ones(2, np.uint8), (1, 2, 3), (np.ones(2, np.uint8), None)], ids=repr)
@BOTH
def test_a_bad_result_of_reset_is_named(cls: Any, result: Any) -> None:
    class Misbehaves(PlannedEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            return result

    with pytest.raises(EnvOutputError, match=r"^env \d: (reset|observation|info): got "):
        cls([lambda: Misbehaves(Plan(BOX))]).reset()


# ---------------------------------------------------------------- empty groups, which gymnasium cannot hand out


@pytest.mark.parametrize(
    ("space", "actions", "each"),
    [
        (spaces.Dict(), {}, {}),
        (spaces.Tuple([]), (), ()),
        (
            spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([])),
            {"a": np.array([1, 1]), "b": ()},
            {"a": np.int64(1), "b": ()},
        ),
    ],
    ids=repr,
)
@BOTH
def test_actions_with_empty_groups(cls: Any, space: spaces.Space, actions: Any, each: Any) -> None:
    envs = cls(makers(Plan(BOX, space), 2))
    envs.reset(seed=0)
    envs.step(actions)
    for calls in envs.get_attr("calls"):
        assert_same(calls[-1], ("step", each))


# ---------------------------------------------------------------- make_vec


def test_make_vec_runs_envs_over_the_engine_unless_told_otherwise() -> None:
    """gymnasium has CartPole's own vector class; with None we have it too."""
    without_a_mode = "SyncVectorEnv" if sys.platform == "win32" else "AsyncVectorEnv"
    for options, cls in (({}, without_a_mode), ({"vectorization_mode": None}, "CartPoleVectorEnv")):
        envs = make_vec("CartPole-v1", 2, **options)
        assert type(envs).__name__ == cls
        envs.close()
    envs = gym.make_vec("CartPole-v1", 2)
    assert type(envs).__name__ == "CartPoleVectorEnv"
    envs.close()
