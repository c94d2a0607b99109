"""The command line: ``gymbridge``, which is ``python -m gymbridge`` too; needs the extra ``gymbridge[cli]``.

A command is a module of this package with

- a docstring, whose first line is what ``gymbridge --help`` says of it,
- ``add_arguments(parser)``, which adds what it takes to an ``argparse.ArgumentParser``,
- ``run(arguments, console)``, which does it, writes what it finds to a ``rich.console.Console`` over standard output
  (or, if it does without rich, by itself where there is none), and returns the exit status. A :class:`CommandError`
  that it raises is told in a line.

No command is imported but the one that is run.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import textwrap
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import gymbridge

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["FAILED", "INTERRUPTED", "CommandError", "main", "own_console"]

COMMANDS = ("bench", "tune", "check", "demo", "info")
"""Modules of this package, in the order of the help."""

_WITHOUT_RICH = ("info",)
"""Those of them that do without the extra: what is missing is what they tell."""

FAILED = 2
"""Exit status: what was asked for cannot be done."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""

_PIPED_WIDTH = 200
"""Columns of what goes to no terminal."""


class CommandError(Exception):
    """What was asked for cannot be done, and the message says why in a line: exit status 2, without a traceback."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: its name and what it is given; the program's own arguments unless told.

    Returns:
        The exit status.

    Raises:
        SystemExit: arguments that it does not know, with status 2, or a call for help, with status 0.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started this; what print is told to write there would go to stdout
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # as long as the process
        elif hasattr(stream, "reconfigure"):  # what a terminal cannot show is no reason to fail
            stream.reconfigure(errors="replace")
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # who read has seen enough
        _leave_unwritten()
        return 1


def _leave_unwritten() -> None:
    """Python would complain once more of what cannot be written, when it flushes at its end."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # one that is closed, or no file
            stream.flush()
            continue
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(argv: list[str]) -> int:
    if not argv:
        _parser(None, None).print_help(sys.stderr)
        return FAILED
    named = argv[0] if argv[0] in COMMANDS else None
    has_rich = find_spec("rich") is not None
    if not has_rich and named is not None and named not in _WITHOUT_RICH:
        print(
            "gymbridge: the command line needs rich, which is not installed: pip install 'gymbridge[cli]'",
            file=sys.stderr,
        )
        return FAILED
    command = None if named is None else import_module(f"{__name__}.{named}")
    arguments = _parser(named, command).parse_args(argv)
    assert command is not None  # nothing else is parsed
    from gymbridge.benchmarking.rounds import in_short

    console = own_console() if has_rich else None
    try:
        status: int = command.run(arguments, console)
        sys.stdout.flush()  # here, where a closed pipe or a full disk is heard of
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except BaseException as error:  # an env's own, or SystemExit, of which nobody would hear
        if arguments.traceback:
            traceback.print_exception(error)
        said = str(error) if isinstance(error, CommandError) else in_short(error)
        _tell_failure(f"gymbridge {named}: ", said, has_rich)
        _leave_unwritten()
        return FAILED
    return status


def _tell_failure(label: str, said: str, has_rich: bool) -> None:
    """On standard error."""
    if not has_rich:
        print(f"{label}{said}", file=sys.stderr)
        return
    from gymbridge.cli.paragraphs import print_paragraph

    print_paragraph(own_console(stderr=True), said, label)


def own_console(*, stderr: bool = False) -> Console:
    """Over standard output, or standard error."""
    from rich.console import Console

    class OwnConsole(Console):
        def on_broken_pipe(self) -> None:  # where rich would exit
            raise BrokenPipeError

    console = OwnConsole(stderr=stderr)
    if console.file.isatty() and console.width > 0:  # COLUMNS=0 shows nothing
        return console
    return OwnConsole(stderr=stderr, width=_PIPED_WIDTH)


class _HelpFormatter(argparse.HelpFormatter):
    """Breaks no name at a hyphen, so that it can be copied."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


def _parser(named: str | None, command: ModuleType | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gymbridge",
        description="Times, tunes, checks and shows batches of environments.",
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gymbridge {gymbridge.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        summary = _summary(name)
        own = commands.add_parser(
            name, help=summary, description=summary, formatter_class=_HelpFormatter, allow_abbrev=False
        )
        if name == named and command is not None:
            command.add_arguments(own)
            own.add_argument("--traceback", action="store_true", help="show where an error comes from")
    return parser


def _summary(name: str) -> str:
    """The first line of a command's docstring, read from its source: importing it may take long."""
    spec = find_spec(f"{__name__}.{name}")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
