"""Sentences for people: headings, wrapped paragraphs, items and commands; foreign strings escaped.

Wrapped on a terminal. In a pipe each item stays on one line, so that it can be searched.
"""

import sys
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlmm_daemon.observability.escape import escape

_COLUMNS_MAX: Final = 100
_PIPE_COLUMNS: Final = 1_000


class Prose:
    """Prints to standard output."""

    def __init__(self) -> None:
        terminal = sys.stdout.isatty()
        self._console = Console(
            file=sys.stdout, highlight=False, width=None if terminal else _PIPE_COLUMNS
        )
        if terminal:
            self._console.width = min(self._console.width, _COLUMNS_MAX)

    def line(self, *parts: str | tuple[str, str]) -> None:
        """Print pieces of text, each perhaps with a style, as one line."""
        text = Text()
        for part in parts:
            words, style = part if isinstance(part, tuple) else (part, "")
            text.append(escape(words), style)
        self._console.print(text, soft_wrap=True)

    def gap(self) -> None:
        """Print an empty line."""
        self._console.print()

    def paragraph(self, words: str) -> None:
        """Print a sentence or a few."""
        self._console.print(Text(escape(words)))

    def heading(self, words: str) -> None:
        """Print the head of a section."""
        self._console.print()
        self._console.print(Text(words, "bold"))

    def item(self, words: str, *, style: str = "") -> None:
        """Print one of several; its further lines stand under its first."""
        table = Table.grid(padding=(0, 1))
        table.add_row(Text("  \u2022", "dim"), Text(escape(words), style))
        self._console.print(table)

    def command(self, words: str) -> None:
        """Print what to type, never wrapped."""
        self._console.print(Text(f"    {escape(words)}", "cyan"), soft_wrap=True)
