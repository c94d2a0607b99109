"""An interrupt anywhere in a receive: each env is at work or idle afterwards, to the pool and to its engine alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing import FACTOR
from gymnasium.error import ResetNeeded
from interrupts import interrupted
from pools import BACKENDS, Backend, Verb, acting_pool
from tensordict import TensorDict
from worker_processes import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # interrupted generators

NUM_ENVS = 2
EVENTS = ("call", "return", "c_call", "c_return")
STRIDE = max(1, round(7 / max(1, FACTOR)))
"""Of events: there are hundreds in a receive; with ``GYMBRIDGE_EXAMPLES=7`` each is interrupted."""


@pytest.fixture(autouse=True)
def gradients() -> Iterator[None]:
    """An interrupt within torch's own contexts may leave them off."""
    before = torch.is_grad_enabled()
    yield
    torch.set_grad_enabled(before)


ACTS = {"results": ["", ""], "an error": ["", "raise"], "an end": ["end", "end"]}


@pytest.fixture(params=ACTS)
def acts(request: pytest.FixtureRequest) -> list[str]:
    """What each step of an env does; one that ends an episode is followed by a reset, in the same call."""
    return ACTS[request.param]


@pytest.fixture
def verb(acts: list[str]) -> Verb:
    return Verb("step_and_maybe_reset" if "end" in acts else "step")


@pytest.fixture
def first(backend: Backend) -> int:
    """The first event that is interrupted, from which on each ``STRIDE``-th is: another one over each backend."""
    return 1 + 2 * [*BACKENDS].index(backend) % STRIDE


@pytest.fixture
def pool(backend: Backend, kind: str, acts: list[str], tmp_path: Path) -> Iterator[Any]:
    own = acting_pool(backend, kind, NUM_ENVS, tmp_path, acts)
    own.reset()
    yield own
    own.shutdown(timeout=1.0)


def send(pool: Any, verb: Verb, rows: list[int], in_lane: bool) -> None:
    work = TensorDict(action=torch.ones(len(rows), dtype=torch.int64), batch_size=[len(rows)])
    if in_lane:
        verb.send(pool, work[0], env_index=rows[0])
    else:
        verb.send(pool, work, rows)


def lost(error: RuntimeError) -> bool:
    """The env's result was being taken, or its work given, when the interrupt came."""
    return "KeyboardInterrupt() has lost what it gave; reset it" in str(error)


def receive_the_rest(pool: Any, verb: Verb, wanted: Any) -> bool:
    """Receives from all that are busy; whether nothing was lost."""
    well = True
    while pool._calls.busy:
        try:
            with suppress(LookupError):
                verb.recv(pool, timeout=PATIENCE, **wanted)
        except RuntimeError as error:
            if not lost(error):
                raise
            well = False
    return well


@pytest.mark.parametrize("in_lane", [False, True], ids=["batch", "lane"])
def test_after_a_receive_who_is_busy_is_received_and_who_is_idle_is_stepped_or_reset(
    pool: Any, verb: Verb, acts: list[str], in_lane: bool, first: int
) -> None:
    rows = [1] if in_lane else [0, 1]
    wanted: Any = {"env_index": 1} if in_lane else {"min_get": 1}

    def receive() -> None:
        with suppress(LookupError):
            verb.recv(pool, timeout=PATIENCE, **wanted)

    at, left, well, came = first, 0, 0, True
    while came:
        send(pool, verb, rows, in_lane)
        came, _ = interrupted(receive, at, events=EVENTS)
        left += bool(pool._calls.busy)
        is_well = receive_the_rest(pool, verb, wanted)
        try:
            send(pool, verb, rows, in_lane)
        except ResetNeeded:
            is_well = False
        receive_the_rest(pool, verb, wanted)
        well += is_well
        assert pool.reset()["observation"].tolist() == [[0, 0], [1, 0]]
        at += STRIDE
    tries = at // STRIDE
    assert left > 5, "interrupts come before what the envs gave is taken"
    if "raise" not in acts:  # one whose step raised is to be reset, and the other's result stays
        assert left < tries - 5, "and after that"
        assert 5 < well < tries - 5, "and some cost a transition"


@pytest.mark.parametrize("acts", [["", ""]], ids=["results"])
@pytest.mark.parametrize("in_lane", [False, True], ids=["batch", "lane"])
def test_after_a_send_who_is_busy_is_received_and_who_is_idle_is_reset(
    pool: Any, verb: Verb, in_lane: bool, first: int
) -> None:
    rows = [1] if in_lane else [0, 1]
    wanted: Any = {"env_index": 1} if in_lane else {"min_get": 1}
    at, busy, came = first, 0, True
    while came:
        came, _ = interrupted(partial(send, pool, verb, rows, in_lane), at, events=EVENTS)
        busy += bool(pool._calls.busy)
        receive_the_rest(pool, verb, wanted)
        assert pool.reset()["observation"].tolist() == [[0, 0], [1, 0]]
        at += 3 * STRIDE
    assert at > 50
    assert busy, "the last one, at least, was not interrupted"
