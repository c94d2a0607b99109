"""``output="torch"``: the numbers of numpy output as tensors of the caller's own."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import waiting_envs
from agreement import assert_same
from fuzzing import examples
from generated_envs import Plan, PlannedEnv, makers
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from space_strategies import any_spaces, batchable
from vector_classes import travels
from waiting_envs import acting

from gymbridge.errors import EnvOutputError
from gymbridge.vector import AsyncVectorEnv, SyncVectorEnv
from gymbridge.vector.torch_output import require_dtype

travels(waiting_envs)

MODES = tuple(AutoresetMode)
BOX = spaces.Box(0, 255, (2,), np.uint8)


def as_numpy(value: Any) -> Any:
    """The structure with arrays for tensors."""
    if isinstance(value, dict):
        return {key: as_numpy(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(as_numpy(part) for part in value)
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        out = np.full(value.shape, None, object)
        for index in np.ndindex(value.shape):
            out[index] = as_numpy(value[index])
        return out
    return value.numpy()[()] if isinstance(value, torch.Tensor) else value


def test_workers_give_tensors_without_importing_torch() -> None:
    envs = AsyncVectorEnv(acting(3), num_workers=2, output="torch")
    envs.reset(seed=0)
    observations, rewards, terminations, _, _ = envs.step(torch.tensor([0, 1, 2]))
    assert observations.tolist() == [[0, 1], [1, 1], [2, 1]]
    assert (rewards.dtype, rewards.tolist()) == (torch.float32, [0, 1, 2])
    assert terminations.dtype == torch.bool
    assert envs.call("modules") == ([], [], [])
    envs.close()


@settings(max_examples=examples(100))
@given(space=any_spaces().filter(batchable), mode=st.sampled_from(MODES), copied=st.booleans())
def test_the_values_are_those_of_numpy_output(space: spaces.Space, mode: AutoresetMode, copied: bool) -> None:
    plan = Plan(space, lengths=(1, 3), step_infos=({"x": 1},))
    kwargs: Any = {"autoreset_mode": mode, "copy": copied}
    tensors = SyncVectorEnv(makers(plan, 3), output="torch", reward_dtype=torch.float64, **kwargs)
    arrays = SyncVectorEnv(makers(plan, 3), **kwargs)
    assert_same(as_numpy(tensors.reset(seed=0)), arrays.reset(seed=0))
    for _ in range(6):
        ours, theirs = tensors.step([0, 1, 2]), arrays.step([0, 1, 2])
        assert_same(as_numpy(ours), theirs)
        if mode is AutoresetMode.DISABLED and (theirs[2] | theirs[3]).any():
            mask = theirs[2] | theirs[3]
            reset = tensors.reset(options={"reset_mask": torch.from_numpy(mask)})
            assert_same(as_numpy(reset), arrays.reset(options={"reset_mask": mask}))


def test_types_and_dtypes() -> None:
    space = spaces.Dict(image=BOX, speed=spaces.Box(-1, 1, (), np.float16), gear=spaces.Discrete(4))
    envs = SyncVectorEnv(makers(Plan(space, lengths=(1,)), 2), output="torch", autoreset_mode="SameStep")
    envs.reset(seed=0)
    observations, rewards, terminations, truncations, infos = envs.step([0, 0])
    assert {key: (value.dtype, tuple(value.shape)) for key, value in observations.items()} == {
        "image": (torch.uint8, (2, 2)),
        "speed": (torch.float16, (2,)),
        "gear": (torch.int64, (2,)),
    }
    assert rewards.dtype is torch.float32
    assert terminations.dtype is truncations.dtype is torch.bool
    assert all(tensor.shape == (2,) for tensor in (rewards, terminations, truncations))
    final = infos["final_obs"][1]
    assert {key: (value.dtype, tuple(value.shape)) for key, value in final.items()} == {
        "image": (torch.uint8, (2,)),
        "speed": (torch.float16, ()),
        "gear": (torch.int64, ()),
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_reward_dtype(dtype: torch.dtype) -> None:
    envs = SyncVectorEnv(makers(Plan(BOX), 2), output="torch", reward_dtype=dtype)
    envs.reset(seed=0)
    assert envs.step([0, 0])[1].dtype is dtype


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
def test_results_belong_to_the_caller(mode: AutoresetMode) -> None:
    envs = SyncVectorEnv(makers(Plan(BOX, lengths=(2,)), 3), output="torch", autoreset_mode=mode)
    results: list[Any] = [envs.reset(seed=0)]
    copies = copy.deepcopy(results)
    for _ in range(8):
        if mode is AutoresetMode.DISABLED:
            envs.reset()
        results.append(envs.step([0, 0, 0]))
        copies.append(copy.deepcopy(results[-1]))
    assert_same(as_numpy(tuple(results)), as_numpy(tuple(copies)))
    pointers = [result[0].data_ptr() for result in results]
    assert len(set(pointers)) == len(pointers)


def test_one_memory_without_copy() -> None:
    envs = SyncVectorEnv(makers(Plan(BOX), 3), output="torch", copy=False)
    first = envs.reset(seed=0)[0]
    second = envs.step([0, 0, 0])[0]
    assert first.data_ptr() == second.data_ptr()


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (spaces.Discrete(3), torch.tensor([2, 1]), [np.int64(2), np.int64(1)]),
        (spaces.Discrete(3), [torch.tensor(2), torch.tensor(1)], [np.array(2), np.array(1)]),
        (spaces.Box(-1, 1, (1,)), torch.tensor([[0.5], [1.0]], requires_grad=True), [[0.5], [1.0]]),
        (spaces.Dict(a=spaces.Discrete(3)), {"a": torch.tensor([2, 1])}, [{"a": np.int64(2)}, {"a": np.int64(1)}]),
    ],
    ids=["tensor", "list of tensors", "with gradient", "dict"],
)
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_tensors_as_actions(space: spaces.Space, actions: Any, expected: list[Any], output: Any) -> None:
    envs = SyncVectorEnv(makers(Plan(BOX, space), 2), output=output)
    envs.reset(seed=0)
    envs.step(actions)
    for env, action in zip(envs.envs, expected, strict=True):
        given_action = env.calls[-1][1]  # type: ignore[attr-defined]
        if isinstance(action, list):
            action = np.array(action, np.float32)
        assert_same(given_action, action)


def test_bad_tensors_as_actions() -> None:
    envs = SyncVectorEnv(makers(Plan(BOX), 2))
    envs.reset(seed=0)
    for actions, error in (
        (torch.tensor(1), TypeError),
        (torch.ones(3).long(), ValueError),
        (torch.ones(2), ValueError),
    ):
        with pytest.raises(error, match=r"^action: got "):
            envs.step(actions)
    for tensor in (torch.zeros(2, device="meta"), torch.zeros(2, dtype=torch.bfloat16), torch.eye(2).to_sparse()):
        for actions in (tensor, list(tensor)) if tensor.layout is torch.strided else (tensor,):
            with pytest.raises(
                TypeError, match=r"^action: got a tensor of torch\..*, expected one that numpy can hold"
            ):
                envs.step(actions)
    with pytest.raises(TypeError, match=r"^options\['reset_mask'\]: got a tensor of torch.bool on device 'meta'"):
        envs.reset(options={"reset_mask": torch.ones(2, dtype=torch.bool, device="meta")})


def test_a_device_without_data_is_refused() -> None:
    with pytest.raises(ValueError, match="device: got 'meta', expected one that holds data"):
        SyncVectorEnv(makers(Plan(BOX), 1), output="torch", device="meta")


def test_a_tensor_with_a_gradient_is_no_observation() -> None:
    class Shows(PlannedEnv):
        def _observation(self) -> Any:
            return torch.zeros(2, requires_grad=True)

    expected = r"^env 0: observation: got tensor.* of type Tensor, expected an array of"
    with torch.enable_grad(), pytest.raises(EnvOutputError, match=expected):
        SyncVectorEnv([lambda: Shows(Plan(spaces.Box(-1, 1, (2,))))]).reset()


def test_what_torch_or_the_device_lacks_is_refused_before_any_step() -> None:
    with pytest.raises(TypeError, match=r"observation: got dtype (float128|longdouble).*, which torch does not have"):
        SyncVectorEnv([_LongDouble], output="torch")
    with pytest.raises(TypeError, match="reward: got dtype float64, which device 'mps' does not have"):
        SyncVectorEnv(makers(Plan(BOX), 1), output="torch", device="mps", reward_dtype=torch.float64)
    require_dtype("x", np.dtype(np.float32), torch.device("mps"))
    for dtype in (torch.int64, torch.bfloat16, np.float32):
        with pytest.raises(TypeError, match="reward_dtype: got "):
            SyncVectorEnv(makers(Plan(BOX), 1), output="torch", reward_dtype=dtype)


class _LongDouble(gym.Env[Any, Any]):
    observation_space = spaces.Box(-1, 1, (2,), np.longdouble)
    action_space = spaces.Discrete(2)


@pytest.mark.cuda
def test_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    plan = Plan(spaces.Dict(a=BOX, b=spaces.Discrete(3)), lengths=(2,))
    for mode in MODES[:2]:
        on_gpu = SyncVectorEnv(makers(plan, 2), output="torch", device="cuda", autoreset_mode=mode)
        on_cpu = SyncVectorEnv(makers(plan, 2), output="torch", autoreset_mode=mode)
        on_gpu.reset(seed=0), on_cpu.reset(seed=0)
        for _ in range(5):
            ours = on_gpu.step(torch.zeros(2, dtype=torch.int64, device="cuda"))
            theirs = on_cpu.step([0, 0])
            assert ours[0]["a"].device.type == ours[1].device.type == "cuda"
            for our, their in zip((*ours[0].values(), *ours[1:4]), (*theirs[0].values(), *theirs[1:4]), strict=True):
                assert torch.equal(our.cpu(), their)
