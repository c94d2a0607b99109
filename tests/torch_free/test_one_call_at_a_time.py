"""A vector env does one call at a time: a second one is refused, never given rows that the first is writing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import assert_same
from generated_envs import Plan, PlannedEnv, makers
from gymnasium import spaces

from gymbridge.vector import SyncVectorEnv

BOX = spaces.Box(0, 255, (2,), np.uint8)
CALLS: dict[str, Callable[[Any], Any]] = {
    "reset": lambda envs: envs.reset(seed=0),
    "step": lambda envs: envs.step([0, 0]),
    "call": lambda envs: envs.call("add", 1),
    "set_attr": lambda envs: envs.set_attr("label", "x"),
    "render": lambda envs: envs.render(),
    "close": lambda envs: envs.close(),
}


class CallsBack(PlannedEnv):
    """Calls ``hook`` in each step."""

    hook: Callable[[], Any] | None = None

    def step(self, action: Any) -> Any:
        if self.hook is not None:
            self.hook()
        return super().step(action)


def calling_back(hook: Callable[[], Any]) -> SyncVectorEnv:
    """Two envs, of which the second calls the hook in each step."""
    envs = SyncVectorEnv([lambda index=index: CallsBack(Plan(BOX), index) for index in range(2)])  # type: ignore[misc]
    envs.reset(seed=0)
    envs.envs[1].hook = hook  # type: ignore[attr-defined]
    return envs


@pytest.mark.parametrize("name", CALLS)
def test_a_second_thread_is_refused_and_the_first_gets_its_own(name: str) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert go_on.wait(30)

    envs = calling_back(hold)
    alone = SyncVectorEnv(makers(Plan(BOX), 2))
    alone.reset(seed=0)
    results: list[Any] = []
    first = threading.Thread(target=lambda: results.append(envs.step([0, 0])))
    first.start()
    try:
        assert entered.wait(30)
        with pytest.raises(RuntimeError, match=rf"^{name}: refused while a call of step is under way"):
            CALLS[name](envs)
    finally:
        go_on.set()
        first.join()
    assert_same(results, [alone.step([0, 0])])
    assert_same(envs.step([0, 0]), alone.step([0, 0]))


@pytest.mark.parametrize("name", CALLS)
def test_an_env_that_calls_its_own_batch_is_refused(name: str) -> None:
    """It is the env that gets the error; the batch is as after any other error of an env."""
    envs = calling_back(lambda: CALLS[name](envs))
    with pytest.raises(RuntimeError, match=rf"^{name}: refused while a call of step is under way") as raised:
        envs.step([0, 0])
    assert raised.value.env_index == 1  # type: ignore[attr-defined]
    envs.envs[1].hook = None  # type: ignore[attr-defined]
    envs.reset(seed=0)
    envs.step([0, 0])
    envs.close()
    assert [env.times_closed for env in envs.envs] == [1, 1]  # type: ignore[attr-defined]
