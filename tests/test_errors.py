"""Errors travel between processes and copies."""

from __future__ import annotations

import copy
import pickle

import pytest

from gymbridge import errors


@pytest.mark.parametrize(
    "error",
    [
        errors.EnvSpecError("MyEnv", ["x: got 1, expected 2"]),
        errors.SpecError("x"),
        errors.EnvOutputError("x"),
        errors.UnsupportedSpaceError("x"),
        errors.RemoteEnvError("games.Crash", "x"),
        errors.WorkerDiedError(1, range(2, 4), -9),
        errors.CallTimeoutError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_pickled_and_copied(error: Exception) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
