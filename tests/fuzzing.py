"""How many examples random tests draw: the usual number, or more on request."""

from __future__ import annotations

import os

FACTOR = 20 if os.environ.get("GYMBRIDGE_FUZZ") else 1
"""With ``GYMBRIDGE_FUZZ=1`` in the environment, so many times the usual number; give pytest --timeout 7200 too."""


def examples(number: int) -> int:
    """The number of examples to draw where ``number`` is the usual one.

    Example:
        >>> examples(100) in (100, 2000)
        True
    """
    return FACTOR * number
