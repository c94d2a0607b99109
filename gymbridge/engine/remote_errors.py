"""Exceptions on their way from a worker to the caller."""

from __future__ import annotations

import traceback
from contextlib import suppress
from typing import Any, NamedTuple

from gymbridge.engine.mailbox import packed_for_caller
from gymbridge.engine.workers.pickling import loads
from gymbridge.errors import RemoteEnvError

__all__ = ["RemoteTraceback", "ToldError"]


class RemoteTraceback(Exception):
    """The traceback of an exception in a worker, as text: the cause of the exception that was rebuilt from it."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class ToldError(NamedTuple):
    """An exception in a form that can always be sent.

    Attributes:
        type_name: module and name of its type.
        message: its message.
        remote_traceback: as text, with the exceptions that led to it.
        whole: the exception, pickled as its type has it; None if that does not work.
        parts: its type, arguments and attributes, pickled; None if that does not work.
    """

    type_name: str
    message: str
    remote_traceback: str
    whole: bytes | None
    parts: bytes | None

    @classmethod
    def of(cls, error: Exception) -> ToldError:
        """What is to be told of an exception."""
        try:
            message = str(error)
        except Exception:
            message = f"(its message cannot be had: {type(error).__name__}.__str__ raises)"
        told = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        parts = (type(error), error.args, dict(getattr(error, "__dict__", {})))
        return cls(_name(type(error)), message, told, _pickled(error), _pickled(parts))

    def rebuilt(self) -> Exception:
        """The exception, with the remote traceback as its cause: of its own type and message, or ``RemoteEnvError``.

        Example:
            >>> ToldError.of(KeyError("lives")).rebuilt()
            KeyError('lives')
        """
        error = self._as_it_was() or RemoteEnvError(self.type_name, self.message)
        with suppress(Exception):
            error.__cause__ = RemoteTraceback(self.remote_traceback)
        return error

    def _as_it_was(self) -> Exception | None:
        for pickled, make in ((self.whole, lambda error: error), (self.parts, _from_parts)):
            with suppress(Exception):  # a type that is unknown here, or cannot be made again
                error: Any = make(loads(pickled or b""))
                if isinstance(error, Exception) and _name(type(error)) == self.type_name and str(error) == self.message:
                    return error
        return None


def _from_parts(parts: tuple[type[Exception], tuple[Any, ...], dict[str, Any]]) -> Exception:
    """An exception whose type's ``__init__`` takes other arguments than it keeps."""
    kind, arguments, attributes = parts
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(attributes)
    return error


def _pickled(value: Any) -> bytes | None:
    with suppress(Exception):
        return packed_for_caller(value, "an exception")
    return None


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
