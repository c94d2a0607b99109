"""Interrupts at a chosen place, as a signal's handler raises them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["interrupted"]


def interrupted(
    call: Callable[[], object],
    at: int,
    error: type[BaseException] = KeyboardInterrupt,
    events: tuple[str, ...] = ("call",),
) -> tuple[bool, bool]:
    """Interrupts a call at the ``at``-th of some events in it, which are places where a signal may.

    Args:
        call: the call.
        at: counts from 1.
        error: what is raised there.
        events: of ``sys.setprofile``; ``"call"`` is that of a Python function.

    Returns:
        Whether it came so far, and whether the interrupt came out.
    """
    left = at

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        if event in events:
            left -= 1
            if not left:
                raise error

    try:
        sys.setprofile(count)
        try:
            call()
        finally:
            sys.setprofile(None)
    except error:
        return True, True
    return left <= 0, False
