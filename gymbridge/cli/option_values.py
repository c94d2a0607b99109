"""Values of options, for ``argparse``, which names the option where one of them raises."""

from __future__ import annotations

import argparse
import math

__all__ = ["natural_int", "positive_int", "positive_ints", "positive_seconds", "words"]


def words(text: str) -> list[str]:
    """What stands between commas.

    Example:
        >>> words("a,b,")
        ['a', 'b']
    """
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected names with commas between them")
    return found


def positive_int(text: str) -> int:
    """An integer of 1 or more."""
    return _int_from(1, text)


def natural_int(text: str) -> int:
    """An integer of 0 or more."""
    return _int_from(0, text)


def _int_from(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected an integer of {least} or more")
    return number


def positive_ints(text: str) -> list[int]:
    """Integers of 1 or more with commas between them, each once.

    Example:
        >>> positive_ints("8,2,8")
        [8, 2]
    """
    return list(dict.fromkeys(positive_int(word) for word in words(text)))


def positive_seconds(text: str) -> float:
    """A time that is not zero."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected seconds, more than 0")
    return seconds
