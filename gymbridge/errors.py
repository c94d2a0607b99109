"""The errors that gymbridge raises itself; what a user's env raises comes through as it is.

Where gymnasium has an error for a case (``ClosedEnvironmentError``, ``ResetNeeded``), that one is raised.
"""

from __future__ import annotations

from pickle import PicklingError

__all__ = [
    "EnvOutputError",
    "EnvSpecError",
    "SpecError",
    "UnpicklableError",
    "UnsupportedSpaceError",
    "WorkerStartError",
]


class UnsupportedSpaceError(TypeError):
    """A space, or a part of one, that has no translation."""


class SpecError(ValueError, AssertionError):
    """A value lies outside its spec.

    It is an ``AssertionError`` too, since that is what TorchRL's ``assert_is_in`` raises.
    """


class EnvSpecError(AssertionError):
    """An env's outputs disagree with its specs.

    Attributes:
        env: the env's class.
        faults: one line for each disagreement.
    """

    def __init__(self, env: str, faults: list[str]):
        self.env = env
        self.faults = faults
        super().__init__(
            f"{env} disagrees with its specs in {len(faults)} place(s):\n" + "\n".join(f"- {f}" for f in faults)
        )

    def __reduce__(self) -> tuple[type[EnvSpecError], tuple[str, list[str]]]:
        return type(self), (self.env, self.faults)


class EnvOutputError(ValueError):
    """An env returned something that its spaces do not allow; the message names env, key, got and expected."""


class WorkerStartError(RuntimeError):
    """A worker process could not be started, or could not read what it is to run."""


class UnpicklableError(PicklingError, TypeError):
    """Something that is to go to a worker process cannot be pickled; the message names the part that is in the way."""
