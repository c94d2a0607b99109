"""From the errors of a round to the one exception that the caller sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from gymbridge.errors import EnvOutputError

__all__ = ["raise_env_error"]


def raise_env_error(errors: Mapping[int, Exception]) -> NoReturn:
    """Raises the error of the first env that failed: the env's own exception, marked with where it comes from.

    The exception gets ``env_index`` as an attribute and, on Python 3.11 and later, a note that names the env and the
    others that failed in the same call; a type that takes neither comes through bare. What an env returned against its
    spaces is told with the env's index in the message.
    """
    row = min(errors)
    error = errors[row]
    if type(error) is EnvOutputError:
        error.args = (f"env {row}: {error}",)
    others = sorted(set(errors) - {row})
    note = f"raised by env {row}" + (f"; envs {others} failed in the same call" if others else "")
    try:
        error.env_index = row  # type: ignore[attr-defined]
        if hasattr(error, "add_note"):
            error.add_note(note)
    except (AttributeError, TypeError):
        pass
    raise error
