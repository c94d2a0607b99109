"""The errors that gymbridge raises itself; what a user's env raises comes through as it is.

Where gymnasium has an error for a case (``ClosedEnvironmentError``, ``ResetNeeded``), that one is raised.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from pickle import PicklingError
from typing import Any

__all__ = [
    "CallTimeoutError",
    "EnvOutputError",
    "EnvSpecError",
    "RemoteEnvError",
    "SpecError",
    "UnpicklableError",
    "UnsupportedSpaceError",
    "WorkerDiedError",
    "WorkerStartError",
    "WorkerTimeoutError",
    "exit_text",
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


class CallTimeoutError(multiprocessing.TimeoutError, TimeoutError):
    """A call took longer than its caller wanted to wait.

    It is the ``TimeoutError`` of ``multiprocessing`` too, since that is what gymnasium raises.
    """


class RemoteEnvError(RuntimeError):
    """An env in a worker process raised an exception that cannot be rebuilt in this one.

    Attributes:
        type_name: module and name of its type.
        env_message: its message.
    """

    def __init__(self, type_name: str, env_message: str):
        self.type_name = type_name
        self.env_message = env_message
        super().__init__(f"{type_name}: {env_message}")

    def __reduce__(self) -> tuple[type[RemoteEnvError], tuple[str, str]]:
        return type(self), (self.type_name, self.env_message)


class WorkerDiedError(RuntimeError):
    """A worker, a process or a thread, ended though nobody had asked it to.

    Of a thread the ``__cause__`` is what the env raised that ended it, a ``SystemExit`` say.

    Attributes:
        worker: its number.
        env_indices: the envs that it ran.
        exit_code: its exit code, or minus the number of the signal that killed it; None if it could not be told. Of a
            thread, that of a process which ends as the thread did.
        doing: what it was doing, ``"the step of env 3"``; empty if that is not known, or nothing.
        stderr: the last that its process wrote to standard error, 4 KiB at most; empty where it wrote nothing. Of a
            signal that kills it (but SIGKILL), Python's traceback is in it.
        how: how it ended, in words, where others than this process have seen that; else empty.
    """

    def __init__(
        self,
        worker: int,
        env_indices: Sequence[int],
        exit_code: int | None,
        doing: str = "",
        stderr: str = "",
        how: str = "",
    ):
        self.how = how
        self.worker = worker
        self.env_indices = tuple(env_indices)
        self.exit_code = exit_code
        self.doing = doing
        self.stderr = stderr
        super().__init__(self._text() + self._quoted_stderr())

    def _text(self) -> str:
        during = f", in {self.doing}" if self.doing else ""
        return f"{self._subject} has died: {self.how or exit_text(self.exit_code)}{during}"

    def _quoted_stderr(self) -> str:
        if not self.stderr.strip():
            return ""
        lines = "\n".join(f"  | {line}" for line in self.stderr.strip("\n").splitlines())
        return f"\n\nIts standard error ended with:\n{lines}"

    @property
    def _subject(self) -> str:
        return f"worker {self.worker}, which ran the envs {[*self.env_indices]},"

    def again(self) -> WorkerDiedError:
        """The same death, to be raised once more: one object would hold the frames of each call that raised it."""
        kind, arguments = self.__reduce__()
        told = kind(*arguments)
        told.__cause__ = self.__cause__
        return told

    def __reduce__(self) -> tuple[type[WorkerDiedError], tuple[Any, ...]]:
        return type(self), (self.worker, self.env_indices, self.exit_code, self.doing, self.stderr, self.how)


class WorkerTimeoutError(WorkerDiedError):
    """A worker was ended since an env took longer than ``step_timeout``.

    Attributes:
        seconds: the time that the env had.
        doing: what it was doing.
    """

    def __init__(
        self,
        worker: int,
        env_indices: Sequence[int],
        exit_code: int | None,
        seconds: float,
        doing: str,
        stderr: str = "",
    ):
        self.seconds = seconds
        super().__init__(worker, env_indices, exit_code, doing, stderr)

    def _text(self) -> str:
        doing = self.doing or "a call"
        return f"{self._subject} was ended: {doing} took longer than the step_timeout of {self.seconds:g} s"

    def __reduce__(self) -> tuple[type[WorkerTimeoutError], tuple[Any, ...]]:
        return type(self), (self.worker, self.env_indices, self.exit_code, self.seconds, self.doing, self.stderr)


def exit_text(code: int | None) -> str:
    """How a process ended, in words.

    Args:
        code: its exit code, or minus the number of the signal that killed it; None where that is not known.

    Example:
        >>> exit_text(3), exit_text(-9)
        ('exit code 3', 'killed by SIGKILL')
    """
    if code is None:
        return "nobody could tell how"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


class WorkerStartError(RuntimeError):
    """A worker could not be started, could not read what it is to run, or did not make its envs in time."""


class UnpicklableError(PicklingError, TypeError):
    """Something that is to go to a worker process cannot be pickled; the message names the part that is in the way."""
