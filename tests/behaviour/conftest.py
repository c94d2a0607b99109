"""The fixtures that run a test once over each engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pools
import pytest
from by_value import send_by_value
from engines import BATCHED_ENVS, ENGINES, ON_RAY, OWN, Engine
from tensordict_engines import ALONE, BATCHES, TensorDictEngine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    send_by_value(items, Path(__file__).parent)


@pytest.fixture(autouse=ON_RAY, scope="session")
def cluster() -> Iterator[None]:
    """A Ray cluster for all tests, where they run over one."""
    from ray_cluster import small_cluster

    with small_cluster():
        yield


@pytest.fixture(params=ENGINES, ids=str, scope="session")
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    engine: Engine = request.param
    return engine


@pytest.fixture(params=[engine for engine in ENGINES if engine.batch_size], ids=str, scope="session")
def batch(request: pytest.FixtureRequest) -> Engine:
    """Each engine that has a batch dim."""
    engine: Engine = request.param
    return engine


@pytest.fixture(params=BATCHED_ENVS, ids=lambda kind: kind.__name__, scope="session")
def batched_env(request: pytest.FixtureRequest) -> Any:
    """Each class of batches of envs, for what its arguments do."""
    return request.param


@pytest.fixture(params=[*ENGINES, OWN], ids=str, scope="session")
def contract(request: pytest.FixtureRequest) -> Engine:
    """Each engine, and an env as a user of ``EnvBase`` writes it: all that keeps the contract."""
    engine: Engine = request.param
    return engine


@pytest.fixture(params=[ALONE, *BATCHES], ids=str, scope="session")
def td_engine(request: pytest.FixtureRequest) -> TensorDictEngine:
    """Each way to run TensorDict envs, alone too."""
    engine: TensorDictEngine = request.param
    return engine


@pytest.fixture(params=[engine for engine in BATCHES if engine.num_envs == 3], ids=str, scope="session")
def td_three(request: pytest.FixtureRequest) -> TensorDictEngine:
    """Each engine of three TensorDict envs."""
    engine: TensorDictEngine = request.param
    return engine


@pytest.fixture
def in_process(request: pytest.FixtureRequest) -> None:
    """Skips a test that looks at the envs' own objects, or has them call back, where they are in other processes."""
    for name in ("engine", "batch", "contract", "td_engine", "td_three"):
        if name in request.fixturenames and not request.getfixturevalue(name).in_process:
            pytest.skip("the envs are in other processes")


@pytest.fixture(params=pools.BACKENDS, ids=str)
def backend(request: pytest.FixtureRequest) -> pools.Backend:
    """Each backend of pools."""
    backend: pools.Backend = request.param
    return backend


@pytest.fixture(params=pools.ACTING)
def kind(request: pytest.FixtureRequest) -> str:
    """Gymnasium envs and TensorDict envs that do what a test tells them to."""
    return str(request.param)
