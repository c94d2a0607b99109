"""Results that came with others and were not handed out: as long as they are unread, calls of all envs are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict_zoo import CountingTensorDictEnv
from worker_processes import PATIENCE

from gymbridge import AsyncEnvPool

CALLS: dict[str, Callable[[AsyncEnvPool, Any], Any]] = {
    "reset": lambda pool, td: pool.reset(),
    "step": lambda pool, td: pool.step(td.clone()),
    "step_and_maybe_reset": lambda pool, td: pool.step_and_maybe_reset(td.clone()),
    "rollout": lambda pool, td: pool.rollout(2),
    "set_seed": lambda pool, td: pool.set_seed(1),
    "state_dict": lambda pool, td: pool.state_dict(),
    "set_attr": lambda pool, td: pool.set_attr("anything", 1),
    "an attribute": lambda pool, td: pool.anything,
}


@pytest.mark.parametrize("backend", ["threading", "multiprocessing", "asyncio"])
def test_all_envs_are_left_alone_while_one_has_an_unread_result(backend: str) -> None:
    pool = AsyncEnvPool([partial(CountingTensorDictEnv, index) for index in range(3)], backend=backend)
    td = pool.rand_action(pool.reset())
    pool.async_step_send(td)
    engine: Any = pool.engine
    engine.wait(3, PATIENCE)  # all are heard of together, and one is handed out
    (first,) = pool.async_step_recv(min_get=1, max_get=1)["env_index"].tolist()
    left = sorted({0, 1, 2} - {first})
    for call in CALLS.values():
        with pytest.raises(RuntimeError, match=rf"refused while envs \[{left[0]}, {left[1]}\]"):
            call(pool, td)
    received = pool.async_step_recv(min_get=2)
    assert received["env_index"].tolist() == left
    assert torch.equal(pool.step_mdp(received)["count"], received["next", "count"])
    pool.reset()
    pool.shutdown()
