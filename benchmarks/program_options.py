"""What the benchmarks take on the command line, alike."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from gymbridge.cli.option_values import positive_int, positive_seconds

__all__ = ["add_names", "program_parser", "some_or_none"]

T = TypeVar("T")


def program_parser(
    description: str | None, *, rounds: int, seconds: float | None = None, turn: str = "of each candidate"
) -> argparse.ArgumentParser:
    """A parser that has ``--rounds``, ``--json`` and, where a turn takes a time that is chosen, ``--seconds``.

    Args:
        description: of the program.
        rounds: how many unless told.
        seconds: how long a turn takes unless told.
        turn: what a round has one of.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--rounds", type=positive_int, default=rounds, help=f"turns {turn} ({rounds})")
    if seconds is not None:
        parser.add_argument(
            "--seconds", type=positive_seconds, default=seconds, help=f"how long a turn takes, about ({seconds:g})"
        )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every round's figures there")
    return parser


def add_names(
    parser: argparse.ArgumentParser, option: str, known: Collection[str], default: Collection[str] | None = None
) -> None:
    """Adds an option that takes some of the names that are known: all of them unless told."""
    what = option.lstrip("-").replace("-", " ")

    def some_of_them(text: str) -> list[str]:
        names = [word for word in text.split(",") if word]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown {what} {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    chosen = list(known if default is None else default)
    parser.add_argument(
        option,
        type=some_of_them,
        default=chosen,
        metavar="NAME,…",
        help=f"some of {', '.join(known)}; {_default(chosen, known)}",
    )


def _default(chosen: Collection[str], known: Collection[str]) -> str:
    return "all unless told" if len(chosen) == len(known) else f"unless told {', '.join(chosen)}"


def some_or_none(values: Callable[[str], list[T]]) -> Callable[[str], list[T]]:
    """Values of an option that may be empty: ``''`` leaves out what it is about."""
    return lambda text: values(text) if text else []
