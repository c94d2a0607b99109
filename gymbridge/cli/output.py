"""Standard output, which programs read: nothing that an env prints may get in between."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress

__all__ = ["stdout_for_findings_only"]

_STDOUT, _STDERR = 1, 2


@contextmanager
def stdout_for_findings_only(wanted: bool = True) -> Iterator[None]:
    """What is printed in the block goes to standard error, of worker processes and C code too.

    Args:
        wanted: otherwise nothing is changed.
    """
    if not wanted:
        yield
        return
    with redirect_stdout(sys.stderr), ExitStack() as undone:
        with suppress(OSError):  # one of the two is closed
            kept = os.dup(_STDOUT)
            undone.callback(os.close, kept)
            os.dup2(_STDERR, _STDOUT)
            undone.callback(os.dup2, kept, _STDOUT)
        yield
