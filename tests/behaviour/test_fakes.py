"""``fake_tensordict`` has the keys, batch sizes, shapes, dtypes and devices of a real step, and takes none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import is_lazy
from tensordict import TensorDictBase, is_leaf_nontensor, is_non_tensor
from tensordict_engines import TensorDictEngine
from tensordict_zoo import TENSORDICT_ENVS, BatchedEnv, DynamicShapeEnv

Look = dict[Any, Any]


def look_of(td: TensorDictBase, dynamic: tuple[str, ...] = ()) -> list[Look]:
    """What each row of a lazy stack, or the whole, looks like; of what is dynamic only the number of dims."""
    rows: list[TensorDictBase] = [*td.unbind(0)] if is_lazy(td) else [td]
    looks = []
    for row in rows:
        look: Look = {"": (row.batch_size, row.device)}
        for key, value in row.items(True, False, is_leaf=is_leaf_nontensor):
            name = key if isinstance(key, str) else ".".join(key)
            if is_non_tensor(value) or isinstance(value, TensorDictBase):
                look[name] = (value.batch_size, value.device)
            else:
                size = value.ndim if name.rpartition(".")[2] in dynamic else value.shape
                look[name] = (size, value.dtype, value.device)
        looks.append(look)
    return looks


def a_real_step(env: Any) -> TensorDictBase:
    """With states of the spec where a reset gives none, as a policy would write them."""
    with torch.no_grad():
        td = env.reset()
        for key, spec in env.full_state_spec.items(True, True):
            if td.get(key, None) is None:
                td.set(key, spec.rand())
        stepped: TensorDictBase = env.rand_step(td)
    return stepped


@pytest.mark.every(3, "td_engine", "kind")
@pytest.mark.parametrize("kind", TENSORDICT_ENVS)
def test_it_looks_like_a_real_step(td_engine: TensorDictEngine, kind: str) -> None:
    env = td_engine.make(TENSORDICT_ENVS[kind])
    fake = env.fake_tensordict()
    real = a_real_step(env)
    assert is_lazy(fake) == is_lazy(real)
    assert look_of(fake, ("points",)) == look_of(real, ("points",))
    for row in fake.unbind(0) if is_lazy(fake) else [fake]:
        assert all(not leaf.any() for leaf in row.values(True, True))
    env.close()


def test_a_dim_of_any_size_has_one(td_engine: TensorDictEngine) -> None:
    env = td_engine.make(DynamicShapeEnv)
    fake = env.fake_tensordict()
    for row in fake.unbind(0) if td_engine.batched else [fake]:
        assert row["points"].shape == row["next", "points"].shape == (1, 3)


def test_it_takes_no_step(td_engine: TensorDictEngine) -> None:
    env: Any = td_engine.make(BatchedEnv)
    env.fake_tensordict()
    asked = [*env.asked] if td_engine.batched else [env.asked]
    assert asked == [[]] * (td_engine.num_envs or 1)
