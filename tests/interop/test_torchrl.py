"""``to_torchrl`` against TorchRL itself: its checks, its batched envs, its transforms, collectors and losses."""

from __future__ import annotations

import copy
import doctest
import functools
import gc
import os
import pickle
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torchrl")

import cloudpickle
import gymnasium as gym
import torch
from collector_envs import ImageEnv, MaskedEnv, act_by_sign, short_cartpole
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from tensordict_zoo import (
    TENSORDICT_ENVS,
    WITH_STATES_OR_INFOS,
    BatchedWholeEnv,
    CountingTensorDictEnv,
    MultiGroupEnv,
    RaisingTensorDictEnv,
    StringsEnv,
)
from torch import nn
from torchrl import data as theirs
from torchrl import envs
from torchrl.collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from torchrl.envs.utils import check_env_specs
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import gymbridge.interop.torchrl as front
import gymbridge.interop.torchrl_batch as batch_module
import gymbridge.interop.torchrl_specs as specs_module
from gymbridge import AsyncEnvPool, ParallelEnv, SerialEnv
from gymbridge.envs import EnvBase, GymEnv
from gymbridge.errors import WorkerDiedError
from gymbridge.interop.torchrl import GymbridgeEnv, to_torchrl
from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv, from_vector_env

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find the tests

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::FutureWarning")]

NUM_ENVS = 3
ENGINES: dict[str, Callable[..., EnvBase]] = {
    "serial": lambda maker: SerialEnv(NUM_ENVS, maker),
    "parallel": lambda maker: ParallelEnv(NUM_ENVS, maker),
    "threads": lambda maker: AsyncEnvPool([maker] * NUM_ENVS),
}


def new_seed() -> int:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    torch.manual_seed(seed)
    return seed


@pytest.fixture
def opened() -> Iterator[Callable[[Any], Any]]:
    """Takes envs, which are closed at the end."""
    kept: list[Any] = []

    def keep(env: Any) -> Any:
        kept.append(env)
        return env

    yield keep
    for env in kept:
        env.close(raise_if_closed=False)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Callable[..., EnvBase]:
    return ENGINES[request.param]


def check(env: Any) -> None:
    check_env_specs(env, break_when_any_done="both")


# ---------------------------------------------------------------- TorchRL's own check


@pytest.mark.parametrize(
    "maker",
    [
        "CartPole-v1",
        "Pendulum-v1",
        ImageEnv,
        lambda: GymEnv("CartPole-v1", categorical_action_encoding=False),
        lambda: GymEnv("CartPole-v1", info="auto", reward_dtype=torch.float64),
        lambda: GymEnv("CartPole-v1", device="cpu"),
    ],
    ids=["cartpole", "pendulum", "image", "one-hot", "infos", "on the cpu"],
)
def test_gymnasium_envs_pass_its_check(maker: Any, engine: Callable[..., EnvBase], opened: Any) -> None:
    env = opened(to_torchrl(engine(maker)))
    check(env)
    check_env_specs(env, seed=0)
    assert env.batch_size == (NUM_ENVS,)
    transforms = envs.Compose(envs.RewardSum(), envs.StepCounter(5), envs.InitTracker(), envs.DoubleToFloat())
    check(envs.TransformedEnv(env, transforms))


CHECKED = [name for name in TENSORDICT_ENVS if name not in ("recurrent", "forgets", "dtypes")]
"""All but those whose state a policy has to write, and those of dtypes that torch cannot compare."""


@pytest.mark.parametrize("name", CHECKED)
def test_tensordict_envs_pass_its_check(name: str, opened: Any) -> None:
    options: dict[str, Any] = {"use_buffers": False} if name == "differentiable" else {}
    for own in (TENSORDICT_ENVS[name](0), SerialEnv(2, lambda: TENSORDICT_ENVS[name](0), **options)):
        env = opened(to_torchrl(own))
        assert env.batch_locked == own.batch_locked
        check(env)
        check(envs.TransformedEnv(env, envs.StepCounter(3)))


def test_stats_are_those_of_the_engine(engine: Callable[..., EnvBase], opened: Any) -> None:
    env = opened(to_torchrl(engine(short_cartpole)))
    env.stats()
    env.rollout(5, break_when_any_done=False)
    assert sum(worker["steps"] for worker in env.stats()["workers"]) == 5 * NUM_ENVS


def test_batches_of_batches_and_single_envs_pass_its_check(opened: Any) -> None:
    for own in (
        GymEnv("CartPole-v1"),
        SerialEnv(2, lambda: SerialEnv(2, "CartPole-v1")),
        ParallelEnv(2, short_cartpole, on_worker_failure="restart"),
        from_vector_env(SyncVectorEnv([short_cartpole] * 2)),
        from_vector_env(gym.vector.SyncVectorEnv([short_cartpole] * 2)),
    ):
        env = opened(to_torchrl(own))
        check(env)
        assert env.rollout(30, break_when_any_done=False).batch_size == (*own.batch_size, 30)


def test_it_can_be_one_of_torchrls_batches(opened: Any) -> None:
    env = opened(envs.SerialEnv(2, lambda: to_torchrl(SerialEnv(2, "CartPole-v1"))))
    check(env)
    assert env.batch_size == (2, 2)


# ---------------------------------------------------------------- against TorchRL's batched envs

ORACLES: dict[str, tuple[Callable[[], gym.Env], Callable[[], torch.Tensor]]] = {
    "cartpole": (short_cartpole, lambda: torch.randint(0, 2, (NUM_ENVS,))),
    "image": (ImageEnv, lambda: torch.rand(NUM_ENVS, 2, dtype=torch.float64) * 2 - 1),
}
"""gymnasium env, whose random numbers alone tell what follows, and batches of actions for it."""


def torchrls(make: Callable[[], gym.Env]) -> Any:
    env = envs.SerialEnv(NUM_ENVS, lambda: envs.GymWrapper(make(), categorical_action_encoding=True, device=None))
    env.set_seed(5, static_seed=True)  # its batches do not seed env i with seed + i
    return env


def ours(engine: Callable[..., EnvBase], make: Callable[[], gym.Env]) -> Any:
    env = to_torchrl(engine(make))
    env.set_seed(5, static_seed=True)
    env.reset()  # TorchRL's set_seed has reset already
    return env


def require_equal(got: TensorDictBase, expected: TensorDictBase, where: str, exact: bool = True) -> None:
    keys, others = set(got.keys(True, True)), set(expected.keys(True, True))
    assert keys == others, where
    assert got.batch_size == expected.batch_size, where
    for key in keys:
        own, other = got[key], expected[key]
        assert own.dtype == other.dtype, (where, key)
        if exact:
            assert torch.equal(own, other), (where, key, own, other)
        else:
            torch.testing.assert_close(own, other, msg=f"{where}: {key}")


def program(env: Any, draw: Callable[[], torch.Tensor], seed: int, partial_steps: bool) -> list[TensorDictBase]:
    """Steps, partial resets and rollouts, one of which in partial steps; what each of them gives."""
    torch.manual_seed(seed)
    td = env.reset()
    results = [td]
    for _ in range(30):
        td["action"] = draw()
        td, following = env.step_and_maybe_reset(td)
        results += [td, following.exclude("action")]  # which TorchRL keeps in some roots
        td = following
    for _ in range(10):
        resets = torch.rand(NUM_ENVS, 1) < 0.5
        td = td.exclude("action").set("_reset", resets)
        td = env.reset(td)
        results.append(td.copy())
        td["action"] = draw()
        td = env.maybe_reset(env.step_mdp(env.step(td)))
        results.append(td.exclude("action"))
    in_partial_steps = [{"break_when_any_done": False, "break_when_all_done": True}] * partial_steps
    for breaks in ({"break_when_any_done": False}, {"break_when_any_done": True}, *in_partial_steps):
        results.append(env.rollout(20, lambda td: td.set("action", draw()), **breaks))
    return results


def require_same_program(got: Any, expected: Any, draw: Callable[[], torch.Tensor], partial_steps: bool = True) -> None:
    seed = new_seed()
    ends = 0
    results = zip(*(program(env, draw, seed, partial_steps) for env in (got, expected)), strict=True)
    for number, (own, other) in enumerate(results):
        require_equal(own, other, f"result {number}")
        done = own.get(("next", "done"), None)
        ends += 0 if done is None else int(done.sum())
    assert ends > 5


@pytest.mark.parametrize("kind", ORACLES)
def test_results_are_those_of_torchrls_serial_env(kind: str, engine: Callable[..., EnvBase], opened: Any) -> None:
    make, draw = ORACLES[kind]
    require_same_program(opened(ours(engine, make)), opened(torchrls(make)), draw)


def primer() -> envs.Transform:
    return envs.TensorDictPrimer(state=theirs.Unbounded((5,)), default_value=1.5, expand_specs=True)


TRANSFORMS: dict[str, tuple[str, Callable[[], list[envs.Transform]]]] = {
    "RewardSum": ("cartpole", lambda: [envs.RewardSum()]),
    "StepCounter": ("cartpole", lambda: [envs.StepCounter(7)]),
    "InitTracker": ("cartpole", lambda: [envs.InitTracker()]),
    "ObservationNorm": ("cartpole", lambda: [envs.ObservationNorm(1.0, 2.0, in_keys=["observation"])]),
    "RenameTransform": (
        "cartpole",
        lambda: [envs.RenameTransform(["observation", "reward"], [("agent", "seen"), "gain"])],
    ),
    "CatFrames": ("cartpole", lambda: [envs.CatFrames(4, dim=-1, in_keys=["observation"])]),
    "RewardScaling": ("cartpole", lambda: [envs.RewardScaling(0.5, 2.0)]),
    "TargetReturn": ("cartpole", lambda: [envs.TargetReturn(10.0)]),
    "TrajCounter": ("cartpole", lambda: [envs.TrajCounter()]),
    "TensorDictPrimer": ("cartpole", lambda: [primer()]),
    "DoubleToFloat": ("image", lambda: [envs.DoubleToFloat()]),
    "CatTensors": (
        "image",
        lambda: [
            envs.ToTensorImage(in_keys=["pixels"]),
            envs.FlattenObservation(-3, -1, ["pixels"]),
            envs.DoubleToFloat(in_keys=["position"]),
            envs.CatTensors(["pixels", "position"], "all"),
        ],
    ),
    "ToTensorImage": ("image", lambda: [envs.ToTensorImage(in_keys=["pixels"]), envs.GrayScale(in_keys=["pixels"])]),
    "several": (
        "cartpole",
        lambda: [envs.InitTracker(), envs.StepCounter(9), envs.RewardSum(), envs.DoubleToFloat(), primer()],
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_do_as_over_torchrls_serial_env(name: str, opened: Any) -> None:
    kind, transforms = TRANSFORMS[name]
    make, draw = ORACLES[kind]
    if name == "DoubleToFloat":
        draw = functools.partial(_as_float, draw)
    check_env_specs(opened(envs.TransformedEnv(ours(ENGINES["serial"], make), envs.Compose(*transforms()))))
    got, expected = (
        opened(envs.TransformedEnv(env, envs.Compose(*transforms())))
        for env in (ours(ENGINES["serial"], make), torchrls(make))
    )
    # TorchRL's batch puts what is in the root into its own results, which is of another dtype or shape by then.
    partial_steps = name not in ("DoubleToFloat", "ToTensorImage", "CatTensors", "CatFrames")
    require_same_program(got, expected, draw, partial_steps)


@pytest.mark.parametrize("make", [envs.VecNorm, envs.VecNormV2])
def test_running_norms_are_those_over_torchrls_serial_env(make: Any, opened: Any) -> None:
    """Until an episode ends: TorchRL's batch then shows what is old of the envs that are not reset."""
    rollouts = []
    for env in (ours(ENGINES["serial"], short_cartpole), torchrls(short_cartpole)):
        transformed = opened(envs.TransformedEnv(env, make(["observation"])))
        torch.manual_seed(0)
        rollouts.append(transformed.rollout(6, lambda td: td.set("action", torch.randint(0, 2, (NUM_ENVS,)))))
    assert not rollouts[0]["next", "done"].any()
    require_equal(*rollouts, "rollout", exact=False)
    check_env_specs(opened(envs.TransformedEnv(ours(ENGINES["serial"], short_cartpole), make(["observation"]))))


def test_rows_left_out_of_a_step_are_transformed_once(opened: Any) -> None:
    norm = envs.ObservationNorm(1.0, 2.0, in_keys=["observation"])
    env = opened(envs.TransformedEnv(to_torchrl(SerialEnv(NUM_ENVS, short_cartpole)), norm))
    td = env.reset().set("action", torch.zeros(NUM_ENVS, dtype=torch.int64))
    stepped = env.step(td.copy().set("_step", torch.tensor([[True], [False], [True]])))
    assert torch.equal(stepped["next", "observation"][1], td["observation"][1])
    assert not torch.equal(stepped["next", "observation"][0], td["observation"][0])
    assert stepped["next", "reward"].flatten().tolist() == [1, 0, 1]


def test_rows_left_out_of_a_step_may_have_other_dtypes_and_shapes_by_then(opened: Any) -> None:
    transforms = envs.Compose(envs.DoubleToFloat(), envs.ToTensorImage(in_keys=["pixels"]))
    env = opened(envs.TransformedEnv(to_torchrl(SerialEnv(NUM_ENVS, ImageEnv)), transforms))
    new_seed()
    steps = env.rollout(20, break_when_any_done=False, break_when_all_done=True)
    assert steps["next", "done"][:, -1].all()
    assert steps["next", "pixels"].shape[2:] == (3, 12, 10)
    assert steps["next", "position"].dtype == torch.float32


def _as_float(draw: Callable[[], torch.Tensor]) -> torch.Tensor:
    return draw().float()


def test_action_masks_hold(engine: Callable[..., EnvBase], opened: Any) -> None:
    new_seed()
    env = opened(envs.TransformedEnv(to_torchrl(engine(MaskedEnv)), envs.ActionMask()))
    check(env)
    steps = env.rollout(60, break_when_any_done=False)  # the env raises at a masked action
    allowed = steps["action_mask"].gather(-1, steps["action"].unsqueeze(-1))
    assert allowed.bool().all()
    assert len(steps["action"].unique()) == 4


# What agents show of which only others are reset, and keys that only some rows have, TorchRL treats in its own way.
@pytest.mark.parametrize("name", [name for name in CHECKED if name not in ("batched whole", "groups alone", "tasks")])
def test_a_transformed_env_steps_as_the_engine_itself(name: str, opened: Any) -> None:
    """In a ``TransformedEnv`` a step and the resets after it are calls of their own, without it they are one."""
    seed = new_seed()
    rollouts = []
    for wrap in (lambda env: env, lambda env: envs.TransformedEnv(env, envs.Compose())):
        options: dict[str, Any] = {"use_buffers": False} if name == "differentiable" else {}
        makers = [functools.partial(TENSORDICT_ENVS[name], index) for index in range(2)]
        env = opened(wrap(to_torchrl(SerialEnv(2, makers, **options))))
        env.set_seed(seed)
        torch.manual_seed(seed)
        rollouts.append(env.rollout(25, break_when_any_done=False, return_contiguous=name != "dynamic shape"))
    one, other = ([*_leaves(rollout)] for rollout in rollouts)
    assert len(one) > 100
    assert one == other


def _leaves(rollout: TensorDictBase) -> Iterator[tuple[Any, Any]]:
    """Leaves of each step as lists: some are of differing shapes, or no tensors."""
    for t, step in enumerate(rollout.unbind(-1)):
        for row, own in enumerate(step.unbind(0)):
            for key in sorted(own.keys(True, True), key=str):
                value = own.get(key)
                yield (t, row, key), value.tolist() if isinstance(value, torch.Tensor) else value


# ---------------------------------------------------------------- rounds


def calls_of(own: EnvBase, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the calls that the engine gets from now on."""
    calls: list[str] = []
    for name in ("reset", "step", "step_and_maybe_reset"):
        method = getattr(type(own), name)

        def counted(self: Any, *args: Any, _name: str = name, _method: Any = method, **kwargs: Any) -> Any:
            calls.append(_name)
            return _method(self, *args, **kwargs)

        monkeypatch.setattr(type(own), name, counted)
    return calls


def test_a_step_and_its_resets_are_one_call_of_the_engine(monkeypatch: pytest.MonkeyPatch, opened: Any) -> None:
    own = SerialEnv(NUM_ENVS, short_cartpole)
    env = opened(to_torchrl(own))
    td = env.reset()
    calls = calls_of(own, monkeypatch)
    ended = 0
    for _ in range(40):
        td, following = env.step_and_maybe_reset(env.rand_action(td))
        ended += int(td["next", "done"].sum())
        td = following
    assert ended
    assert calls == ["step_and_maybe_reset"] * 40


def test_a_mask_of_nobody_reaches_no_env(opened: Any) -> None:
    env = opened(to_torchrl(SerialEnv(NUM_ENVS, short_cartpole)))
    before = env.reset()
    td = env.rand_action(before.copy()).set("_step", torch.zeros(NUM_ENVS, 1, dtype=torch.bool))
    td, following = env.step_and_maybe_reset(td)
    assert torch.equal(td["next", "observation"], before["observation"])
    assert torch.equal(following["observation"], before["observation"])
    assert not td["next", "reward"].any()


def test_several_groups_of_flags(opened: Any) -> None:
    env = opened(to_torchrl(SerialEnv(2, MultiGroupEnv)))
    assert ("agents", "_reset") in env.reset_keys
    steps = env.rollout(30, break_when_any_done=False)
    assert steps["next", "agents", "done"].shape[:2] == (2, 30)
    assert steps["next", "done"].any()
    assert not steps["done"].any()


def test_data_that_is_no_tensor(engine: Callable[..., EnvBase], opened: Any) -> None:
    env, own = opened(to_torchrl(engine(StringsEnv))), opened(engine(StringsEnv))

    def act(td: TensorDictBase) -> TensorDictBase:
        return td.update(own.full_action_spec.zero())

    got, expected = (each.rollout(20, act, break_when_any_done=False) for each in (env, own))
    keys = [key for key, leaf in own.full_observation_spec.items(True, True) if leaf.dtype is None]
    assert keys
    for key in keys:
        assert got["next"].get(key).tolist() == expected["next"].get(key).tolist()


def test_envs_of_several_tasks(opened: Any) -> None:
    env = opened(to_torchrl(SerialEnv(2, ["CartPole-v1", "Acrobot-v1"])))
    assert isinstance(env.observation_spec, theirs.StackedComposite)
    assert [spec["observation"].shape for spec in env.observation_spec.unbind(0)] == [(4,), (6,)]
    assert [spec["action"].n for spec in env.full_action_spec.unbind(0)] == [2, 3]
    new_seed()

    def act(td: TensorDictBase) -> TensorDictBase:
        for row, n in zip(td.unbind(0), (2, 3), strict=True):
            row.set("action", torch.randint(0, n, ()))
        return td

    steps = env.rollout(30, act, break_when_any_done=False, return_contiguous=False)
    assert isinstance(env.reset(), LazyStackedTensorDict)
    assert steps["next", "done"].shape == (2, 30, 1)
    rows = steps[..., 7].unbind(0)
    assert [row["next", "observation"].shape for row in rows] == [(4,), (6,)]


def test_tasks_that_torchrl_has_no_stack_for_are_refused_by_key(opened: Any) -> None:
    own = opened(SerialEnv(2, ["CartPole-v1", "Pendulum-v1"]))
    with pytest.raises(front.UnsupportedSpecError, match=r"action_spec: .*'action'.*got Categorical.*, Bounded"):
        to_torchrl(own)


def test_a_state_that_a_primer_holds_reaches_the_env(opened: Any) -> None:
    """Keys of the state spec are what TorchRL gives an env, under ``next`` too."""
    own = SerialEnv(2, lambda: TENSORDICT_ENVS["recurrent"](0))
    assert "recurrent" in WITH_STATES_OR_INFOS
    env = opened(to_torchrl(own))
    td = env.rand_action(env.reset()).set("hidden", torch.full((2, 2), 3.0))
    td["next"] = TensorDict({"hidden": torch.full((2, 2), 4.0)}, [2])
    td, following = env.step_and_maybe_reset(td)
    assert torch.equal(td["next", "before"], torch.full((2, 2), 3.0))
    assert torch.equal(td["next", "seen"], torch.full((2, 2), 4.0))
    assert torch.equal(following["hidden"], torch.full((2, 2), 4.0))


def test_an_env_that_cannot_do_a_part_says_so(opened: Any) -> None:
    env = opened(to_torchrl(BatchedWholeEnv(0)))
    td = env.reset()
    with pytest.raises(ValueError, match="partial_reset=False"):
        env.reset(td.set("_reset", torch.tensor([[True], [False]])))


# ---------------------------------------------------------------- seeds, states, devices, the end


def test_seeds_are_the_engines(engine: Callable[..., EnvBase], opened: Any) -> None:
    env, own = opened(to_torchrl(engine("CartPole-v1"))), opened(engine("CartPole-v1"))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert env.set_seed(7) == 7 + NUM_ENVS
    assert env.set_seed(7, static_seed=True) == 7
    assert env.set_seed(7) == 7 + NUM_ENVS
    assert torch.equal(torch.get_rng_state(), before)
    own.set_seed(7)
    assert torch.equal(env.reset()["observation"], own.reset()["observation"])
    transformed = envs.TransformedEnv(env, envs.StepCounter())
    assert transformed.set_seed(7) == 7 + NUM_ENVS
    assert torch.equal(transformed.reset()["observation"], opened(_seeded(engine)).reset()["observation"])


def _seeded(engine: Callable[..., EnvBase]) -> EnvBase:
    own = engine("CartPole-v1")
    own.set_seed(7)
    return own


def test_states_are_the_engines(opened: Any) -> None:
    env = opened(to_torchrl(SerialEnv(2, "CartPole-v1")))
    env.set_seed(1)
    env.reset()
    state = env.state_dict()
    assert [*state] == ["worker0", "worker1"]
    first = env.reset()["observation"]
    env.load_state_dict(state)
    assert torch.equal(env.reset()["observation"], first)


def test_kwargs_of_a_reset_reach_the_envs(opened: Any) -> None:
    env = opened(to_torchrl(SerialEnv(2, CountingTensorDictEnv)))
    td = env.reset(list_of_kwargs=[{"start": 3}, {"start": 9}])
    assert td["count"].tolist() == [[3], [9]]


def test_a_move_to_a_device_moves_the_engine(opened: Any) -> None:
    own = SerialEnv(2, "CartPole-v1")
    env = opened(to_torchrl(own))
    assert env.device is None
    assert env.to("cpu") is env
    assert env.device == own.device == torch.device("cpu")
    assert env.reset().device == torch.device("cpu")
    assert env.full_observation_spec.device == torch.device("cpu")
    check(env)
    undeclared = env.rand_action(env.reset().clear_device_())
    assert env.step_and_maybe_reset(undeclared)[0]["next"].device == torch.device("cpu")
    undeclared = env.rand_action(env.reset().clear_device_())
    assert env.step(undeclared) is undeclared  # as TorchRL's step
    assert undeclared["next"].device == torch.device("cpu")
    for step in (env.step, env.step_and_maybe_reset):
        with pytest.raises(TypeError, match="got None, expected a TensorDict"):
            step(None)


def test_close_closes_the_engine_which_starts_again(opened: Any) -> None:
    own = SerialEnv(2, "CartPole-v1")
    env = opened(to_torchrl(own))
    env.reset()
    assert not env.is_closed
    env.close()
    assert env.is_closed
    assert own.is_closed
    with pytest.raises(RuntimeError, match="closed already"):
        env.close()
    env.close(raise_if_closed=False)
    assert env.reset().batch_size == (2,)
    assert not env.is_closed
    transformed = envs.TransformedEnv(env, envs.StepCounter())
    transformed.close()
    assert own.is_closed
    assert transformed.is_closed


def test_a_dropped_env_leaves_the_engine_to_its_owner(opened: Any) -> None:
    own = opened(SerialEnv(2, "CartPole-v1"))
    env = to_torchrl(own)
    env.reset()
    gone = weakref.ref(env)
    del env
    gc.collect()
    assert gone() is None
    assert not own.is_closed
    assert own.step(own.rand_action()).batch_size == (2,)  # it needs no reset: nobody has closed it


def test_copies_are_engines_of_their_own(engine: Callable[..., EnvBase], opened: Any) -> None:
    env = opened(to_torchrl(engine(short_cartpole)))
    env.set_seed(1)
    td = env.rand_action(env.reset())
    for other in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
        opened(other)
        assert type(other) is GymbridgeEnv
        assert other.engine is not env.engine
        assert other.batch_size == env.batch_size
        assert other.observation_spec == env.observation_spec
        assert other.rollout(3).batch_size[0] == NUM_ENVS
    assert env.step(td)["next", "observation"].shape == (NUM_ENVS, 4)  # goes on where it was


# ---------------------------------------------------------------- attributes, errors, what is refused


def test_attributes_are_those_of_the_engine_and_its_envs(opened: Any) -> None:
    own = SerialEnv(2, short_cartpole)
    env = opened(to_torchrl(own))
    assert env.engine is own
    assert env.num_envs == 2
    assert env.gravity == [9.8, 9.8]
    transformed = envs.TransformedEnv(env, envs.StepCounter())
    assert transformed.gravity == [9.8, 9.8]
    assert not hasattr(env, "_repr_html_")
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = env.no_such_thing
    assert repr(env) == "GymbridgeEnv(engine=SerialEnv, batch_size=[2], device=None)"


def test_what_an_env_raises_comes_through(engine: Callable[..., EnvBase], opened: Any) -> None:
    own = engine(functools.partial(RaisingTensorDictEnv, 0))
    env = opened(to_torchrl(own))
    transformed = envs.TransformedEnv(env, envs.StepCounter())
    for each, method in ((env, "step_and_maybe_reset"), (env, "step"), (transformed, "step_and_maybe_reset")):
        own.set_attr("raise_in_step", None)  # type: ignore[attr-defined]
        td = each.rand_action(each.reset())
        own.set_attr("raise_in_step", [None, ZeroDivisionError("one of three"), None])  # type: ignore[attr-defined]
        with pytest.raises(ZeroDivisionError, match="one of three") as raised:
            getattr(each, method)(td)
        assert raised.value.env_index == 1  # type: ignore[attr-defined]
        assert env.last_partial()["_failed"].flatten().tolist() == [False, True, False]


def test_a_worker_that_dies_is_named(opened: Any) -> None:
    env = opened(to_torchrl(ParallelEnv(2, lambda: MortalEnv())))
    td = env.rand_action(env.reset())
    with pytest.raises(WorkerDiedError, match="exit code 3"):
        env.step_and_maybe_reset(td)


class MortalEnv(gym.Env[Any, Any]):
    """Ends its process at the first step."""

    observation_space = action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        os._exit(3)


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "an id": (lambda: "CartPole-v1", TypeError, r"got str.*ParallelEnv\(num_envs, create_env_fn\)"),
    "a maker": (lambda: short_cartpole, TypeError, "got function.*ParallelEnv"),
    "a class": (lambda: SerialEnv, TypeError, "got SerialEnv"),
    "a gymnasium env": (short_cartpole, TypeError, "GymEnv makes one of a gymnasium.Env"),
    "a vector env": (lambda: SyncVectorEnv([short_cartpole]), TypeError, "from_vector_env makes one"),
    "gymnasium's": (lambda: gym.vector.SyncVectorEnv([short_cartpole]), TypeError, "from_vector_env makes one"),
    "TorchRL's own": (lambda: envs.GymEnv("CartPole-v1"), TypeError, "TorchRL's own env is one already"),
    "views": (lambda: SerialEnv(2, "CartPole-v1", copy=False), ValueError, "copy=False"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_engine_is_refused_with_advice(case: str) -> None:
    make, error, message = REFUSED[case]
    given = make()
    for make_env in (to_torchrl, GymbridgeEnv):
        with pytest.raises(error, match=message):
            make_env(given)
    if isinstance(given, gym.Env | gym.vector.VectorEnv | envs.EnvBase):
        given.close()


def test_an_async_vector_env_is_reached_through_from_vector_env(opened: Any) -> None:
    env = opened(to_torchrl(from_vector_env(AsyncVectorEnv([short_cartpole] * 2))))
    steps = env.rollout(40, break_when_any_done=False)
    assert steps["next", "done"].any()
    assert not steps["done"].any()


# ---------------------------------------------------------------- what policies write

WRAPS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda env: env,
    "transformed": lambda env: envs.TransformedEnv(env, envs.StepCounter()),
}


def one_hot_cartpole() -> GymEnv:
    return GymEnv(short_cartpole, categorical_action_encoding=False)


def one_hot_policies(spec: Any) -> list[Any]:
    from tensordict.nn import TensorDictSequential
    from torchrl.modules import EGreedyModule, OneHotCategorical, ProbabilisticActor, QValueActor

    logits = TensorDictModule(nn.Linear(4, 2), ["observation"], ["logits"])
    values = QValueActor(nn.Linear(4, 2), in_keys=["observation"], spec=spec)
    return [
        ProbabilisticActor(logits, in_keys=["logits"], distribution_class=OneHotCategorical),
        values,
        TensorDictSequential(values, EGreedyModule(spec, eps_init=0.5)),
        lambda tensordict: tensordict.set("action", torch.eye(2, dtype=torch.bool)[torch.zeros(NUM_ENVS).long()]),
    ]


@pytest.mark.parametrize("wrap", WRAPS)
def test_one_hot_actions_of_torchrls_policies(wrap: str, engine: Callable[..., EnvBase], opened: Any) -> None:
    """They are of integers, as the spec says; the engine takes bools, which are not shown to the caller."""
    new_seed()
    env = opened(WRAPS[wrap](to_torchrl(engine(one_hot_cartpole))))
    assert env.action_spec.dtype is torch.int64
    check(env)
    dtypes = [
        env.rollout(20, policy, break_when_any_done=breaks)["action"].dtype
        for policy in one_hot_policies(env.action_spec_unbatched)
        for breaks in (True, False)
    ]
    assert dtypes == [torch.int64] * 6 + [torch.bool] * 2
    td = env.reset().set("action", torch.ones(NUM_ENVS, 2, dtype=torch.int64))
    for step in (env.step, env.step_and_maybe_reset):
        with pytest.raises(ValueError, match="action"):
            step(td)
        assert td["action"].dtype is torch.int64
    steps = env.step(td.set("action", torch.eye(2, dtype=torch.int64)[[1, 0, 1]]))
    assert steps["action"].tolist() == [[0, 1], [1, 0], [0, 1]]


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("key", ["hidden", ("agent", "hidden")], ids=["root", "group"])
@pytest.mark.parametrize("in_root", [False, True], ids=["next alone", "both"])
def test_what_policies_write_into_next_is_not_carried(wrap: str, key: Any, in_root: bool, opened: Any) -> None:
    """A key that no spec has stays in the step that wrote it, over TorchRL's batch as over an engine."""

    def policy(tensordict: TensorDictBase) -> TensorDictBase:
        hidden = tensordict.get(key, None)
        seen.append(None if hidden is None else hidden.flatten().tolist())
        hidden = torch.zeros(NUM_ENVS, 1) if hidden is None else hidden
        if in_root:
            tensordict.set(key, hidden)
        return act_by_sign(tensordict).set(("next", *key) if isinstance(key, tuple) else ("next", key), hidden + 1)

    told = []
    for make in (ours, lambda engine, make: torchrls(make)):
        env = opened(WRAPS[wrap](make(ENGINES["serial"], short_cartpole)))
        for breaks in ({"break_when_any_done": True}, {"break_when_any_done": False}):
            seen: list[Any] = []
            steps = env.rollout(20, policy, **breaks)
            assert steps["next"].get(key).unique().tolist() == [1]
            told.append(seen)
    assert told[0] == told[2]
    assert told[1] == told[3]
    assert len(told[1]) == 20


def test_what_a_policy_wrote_into_next_is_there_after_an_error(opened: Any) -> None:
    env = opened(to_torchrl(SerialEnv(1, functools.partial(RaisingTensorDictEnv, 0))))
    td = env.rand_action(env.reset()).set(("next", "hidden"), torch.ones(1, 1))
    env.set_attr("raise_in_step", ZeroDivisionError("now"))
    with pytest.raises(ZeroDivisionError, match="now"):
        env.step_and_maybe_reset(td)
    assert td["next", "hidden"].tolist() == [[1]]


# ---------------------------------------------------------------- collectors and losses


def test_a_collectors_frames_are_those_over_torchrls_serial_env(engine: Callable[..., EnvBase]) -> None:
    batches = []
    for env in (ours(engine, short_cartpole), torchrls(short_cartpole)):
        collector = Collector(env, act_by_sign, frames_per_batch=30 * NUM_ENVS, total_frames=120 * NUM_ENVS)
        batches.append([batch.clone() for batch in collector])
        collector.shutdown()
        assert env.is_closed
    assert len(batches[0]) == len(batches[1]) == 4
    assert sum(int(batch["next", "done"].sum()) for batch in batches[0]) > 10
    for number, (own, other) in enumerate(zip(*batches, strict=True)):
        require_equal(own, other, f"batch {number}")
    assert batches[0][-1]["collector", "traj_ids"].unique().numel() > NUM_ENVS


OPTIONS: dict[str, Any] = {
    "split_trajs": True,
    "reset_at_each_iter": True,
    "max_frames_per_traj": 5,
    "device": "cpu",
    "policy_device": "cpu",
    "storing_device": "cpu",
    "init_random_frames": 50,
    "compact_obs": True,
    "set_truncated": True,
    "use_buffers": False,
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_a_collector(name: str) -> None:
    env = to_torchrl(SerialEnv(NUM_ENVS, short_cartpole))
    collector = Collector(
        env, act_by_sign, frames_per_batch=30 * NUM_ENVS, total_frames=60 * NUM_ENVS, **{name: OPTIONS[name]}
    )
    batches = [batch.clone() for batch in collector]
    collector.shutdown()
    assert len(batches) == 2
    last = batches[-1]
    if name == "split_trajs":
        assert last["collector", "mask"].sum() == 30 * NUM_ENVS
    else:
        assert last.numel() == 30 * NUM_ENVS
        assert last["next", "done"].any()
    if name == "max_frames_per_traj":
        assert int(last["step_count"].max()) < 5
    if name == "set_truncated":
        assert last["next", "truncated"][:, -1].all()
    if name in ("device", "storing_device"):
        assert last.device == torch.device("cpu")


def test_a_collector_fills_a_replay_buffer() -> None:
    buffer = theirs.ReplayBuffer(storage=theirs.LazyTensorStorage(1000, ndim=2), batch_size=16)
    env = to_torchrl(SerialEnv(NUM_ENVS, short_cartpole))
    collector = Collector(
        env, act_by_sign, frames_per_batch=30 * NUM_ENVS, total_frames=60 * NUM_ENVS, replay_buffer=buffer
    )
    assert len([*collector]) == 2
    collector.shutdown()
    assert len(buffer) == 60 * NUM_ENVS
    assert buffer.sample()["next", "observation"].shape == (16, 4)


def test_an_exception_comes_out_of_a_collector_and_the_engine_starts_again(
    engine: Callable[..., EnvBase], opened: Any
) -> None:
    """A collector closes what it gathers from when it is left by an exception."""
    own = engine(functools.partial(RaisingTensorDictEnv, 0))
    env = opened(to_torchrl(own))
    collector = Collector(env, None, frames_per_batch=10 * NUM_ENVS, total_frames=30 * NUM_ENVS)
    batches = iter(collector)
    next(batches)
    own.set_attr("raise_in_step", [None, ZeroDivisionError("one of three"), None])  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError, match="one of three") as raised:
        next(batches)
    assert raised.value.env_index == 1  # type: ignore[attr-defined]
    assert env.is_closed
    again = Collector(env, None, frames_per_batch=10 * NUM_ENVS, total_frames=20 * NUM_ENVS)
    assert [batch.numel() for batch in again] == [10 * NUM_ENVS] * 2
    again.shutdown()


def of_two_workers() -> GymbridgeEnv:
    return to_torchrl(ParallelEnv(2, short_cartpole))


@pytest.mark.timeout(300)
def test_multi_process_collectors_take_makers() -> None:
    collector = MultiSyncCollector([of_two_workers] * 2, act_by_sign, frames_per_batch=80, total_frames=160)
    try:
        collector.set_seed(3)
        batches = [batch.clone() for batch in collector]
    finally:
        collector.shutdown()
    assert [batch.numel() for batch in batches] == [80, 80]
    one, other = batches[0]["observation"].flatten(0, -2).chunk(2)
    assert not torch.equal(one, other)  # each process has seeds of its own


@pytest.mark.timeout(300)
def test_multi_process_collectors_take_envs() -> None:
    collector = MultiAsyncCollector([of_two_workers()], act_by_sign, frames_per_batch=80, total_frames=160)
    try:
        assert [batch.numel() for batch in collector] == [80, 80]
    finally:
        collector.shutdown()


def actor_critic() -> tuple[Any, Any]:
    """A policy of logits and a value, small networks both."""
    from torchrl.modules import MLP, ProbabilisticActor, ValueOperator

    net = TensorDictModule(MLP(4, 2, num_cells=[64, 64], activation_class=nn.Tanh), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        net, in_keys=["logits"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    critic = ValueOperator(MLP(4, 1, num_cells=[64, 64], activation_class=nn.Tanh), in_keys=["observation"])
    return actor, critic


def train(env: Any, frames: int, frames_per_batch: int, epochs: int, seed: int) -> Any:
    """PPO for so many frames; returns the actor."""
    torch.manual_seed(seed)
    env.set_seed(seed)
    actor, critic = actor_critic()
    loss = ClipPPOLoss(
        actor, critic, clip_epsilon=0.2, entropy_coeff=0.0, critic_coeff=0.5, loss_critic_type="l2",
        normalize_advantage=True,
    )  # fmt: skip
    advantage = GAE(gamma=0.98, lmbda=0.8, value_network=critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    collector = Collector(env, actor, frames_per_batch=frames_per_batch, total_frames=frames)
    num_batches = frames // frames_per_batch
    for number, batch in enumerate(collector):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - number / num_batches)
        for _ in range(epochs):
            with torch.no_grad():
                advantage(batch)
            flat = batch.reshape(-1)
            for part in flat[torch.randperm(len(flat))].split(256):
                losses = loss(part)
                total = losses["loss_objective"] + losses["loss_critic"]
                optimizer.zero_grad()
                total.backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
        assert torch.isfinite(total)
    collector.shutdown(close_env=False)
    return actor


def test_a_ppo_loss_takes_a_collectors_frames(opened: Any) -> None:
    env = opened(envs.TransformedEnv(to_torchrl(SerialEnv(4, short_cartpole)), envs.RewardSum()))
    actor = train(env, frames=256, frames_per_batch=128, epochs=1, seed=0)
    torch.manual_seed(0)
    untrained, _ = actor_critic()
    changed = [
        not torch.equal(own, other) for own, other in zip(actor.parameters(), untrained.parameters(), strict=True)
    ]
    assert changed
    assert all(changed)


trainings = pytest.mark.skipif(
    os.environ.get("GYMBRIDGE_TRAININGS") != "1", reason="takes minutes; GYMBRIDGE_TRAININGS=1 runs it"
)


@trainings
@pytest.mark.timeout(1800)
def test_ppo_solves_cartpole(opened: Any) -> None:
    env = opened(envs.TransformedEnv(to_torchrl(ParallelEnv(8, "CartPole-v1")), envs.RewardSum()))
    actor = train(env, frames=102_400, frames_per_batch=256, epochs=20, seed=0)
    returns = []
    with torch.no_grad(), envs.set_exploration_type(envs.ExplorationType.DETERMINISTIC):
        for _ in range(5):
            episodes = env.rollout(500, actor, break_when_any_done=False, break_when_all_done=True)
            returns.append(episodes["next", "episode_reward"].amax(1).flatten())
    mean = torch.cat(returns).mean()
    print(f"mean return {mean:.1f} of {torch.cat(returns).numel()} episodes")
    assert mean > 400


# ---------------------------------------------------------------- their docstrings


@pytest.mark.parametrize("module", [batch_module, specs_module], ids=lambda module: module.__name__)
def test_examples_of_the_modules_run(module: Any) -> None:
    runner = doctest.DocTestRunner()
    told: list[str] = []
    for example in doctest.DocTestFinder().find(module, module.__name__):
        runner.run(example, out=told.append)
    assert runner.tries > 0
    assert not runner.failures, "".join(told)


def test_public_names_are_documented() -> None:
    assert all(getattr(front, name).__doc__ for name in front.__all__)
    own = [name for name, value in vars(GymbridgeEnv).items() if not name.startswith("_") and callable(value)]
    assert own
    assert not [name for name in own if not vars(GymbridgeEnv)[name].__doc__]
