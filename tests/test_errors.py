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
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_pickled_and_copied(error: Exception) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert getattr(again, "faults", None) == getattr(error, "faults", None)
