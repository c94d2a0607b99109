"""Text as it is printed: broken between words in a terminal, a line elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

__all__ = ["print_paragraph"]

_NARROWEST = 20
"""Columns of text, however long the label."""


def print_paragraph(console: Console, text: str | Text, label: str = "", label_style: str = "") -> None:
    """Prints a text, which is one line where there is no terminal.

    Args:
        console: where to.
        text: the text.
        label: what stands before its first line; in a terminal the others are indented as much.
        label_style: of the label.

    Example:
        >>> console = Console(width=30, force_terminal=True, color_system=None)
        >>> print_paragraph(console, "cast it, or change the space", "do  ")
        do  cast it, or change the
            space
    """
    text = Text(text) if isinstance(text, str) else text
    head = Text(label, label_style)
    if not console.is_terminal:
        console.print(head + text, soft_wrap=True, highlight=False)
        return
    for line in text.wrap(console, max(_NARROWEST, console.width - len(label))):
        line.rstrip()
        console.print(head + line, soft_wrap=True, highlight=False)
        head = Text(" " * len(label))
