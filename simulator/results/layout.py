"""Plain text tables that fit a width, with colour only where a terminal shows it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Column", "Table", "shorten"]

_GAP = "  "


def shorten(text: str, width: int) -> str:
    """Return *text* in at most *width* characters, cut in the middle.

    The ends of names (``node12.nic3 → leaf3``) tell more than their middles.

    Examples
    --------
    >>> shorten("node12.nic3→leaf3", 9)
    'node…eaf3'
    """
    if len(text) <= width:
        return text
    if width < 3:
        return text[:width]
    left = width // 2
    return text[:left] + "…" + text[len(text) - (width - left - 1) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a `Table`."""

    title: str
    right: bool = True
    """Numbers stand to the right."""
    flexible: bool = False
    """May be cut so that the table fits; names are, numbers are not."""
    style: str = ""
    """Style of rich for terminals, such as ``bold cyan``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells as text, with a title and remarks below.

    Examples
    --------
    >>> table = Table(columns=(Column(title="link", right=False), Column(title="GB/s")),
    ...               rows=(("nic0", "48.1"),), title="Loads")
    >>> print(table.text())
    Loads
    link  GB/s
    nic0  48.1
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    remarks: tuple[str, ...] = ()

    def _widths(self, width: int) -> list[int]:
        wanted = [
            max([len(column.title), *(len(row[i]) for row in self.rows)])
            for i, column in enumerate(self.columns)
        ]
        excess = sum(wanted) + len(_GAP) * (len(wanted) - 1) - width
        flexible = [i for i, column in enumerate(self.columns) if column.flexible]
        # The widest flexible column gives first, one character at a time, so that short names
        # stay whole; below six characters a name says nothing.
        while excess > 0 and flexible:
            widest = max(flexible, key=lambda i: wanted[i])
            if wanted[widest] <= 6:
                break
            wanted[widest] -= 1
            excess -= 1
        return wanted

    def _lines(self, width: int) -> list[list[str]]:
        widths = self._widths(width)
        cells = [tuple(column.title for column in self.columns), *self.rows]
        return [
            [
                shorten(cell, size).rjust(size) if column.right else shorten(cell, size).ljust(size)
                for cell, size, column in zip(line, widths, self.columns, strict=True)
            ]
            for line in cells
        ]

    def text(self, width: int = 80) -> str:
        """Return the table as plain text, at most *width* characters wide where names allow."""
        lines = [_GAP.join(cells).rstrip() for cells in self._lines(width)]
        title = [self.title] if self.title else []
        return "\n".join([*title, *lines, *_wrapped(self.remarks, width)])

    def terminal(self, width: int = 80) -> str:
        """Return the same text with ANSI colours, for a terminal."""
        from rich.console import Console
        from rich.text import Text

        shown = Text()
        if self.title:
            shown.append(self.title + "\n", style="bold")
        for number, cells in enumerate(self._lines(width)):
            for position, (cell, column) in enumerate(zip(cells, self.columns, strict=True)):
                last = position == len(cells) - 1
                style = "dim" if number == 0 else column.style
                shown.append((cell.rstrip() if last else cell) + ("" if last else _GAP), style)
            shown.append("\n")
        for line in _wrapped(self.remarks, width):
            shown.append(line + "\n", style="dim")
        buffer = io.StringIO()
        console = Console(
            file=buffer,
            force_terminal=True,
            color_system="standard",
            width=max(width, 400),  # the lines are laid out already: rich must not wrap them
            highlight=False,
            legacy_windows=False,
        )
        console.print(shown, end="", soft_wrap=True)
        return buffer.getvalue().rstrip("\n")

    def render(self, *, terminal: bool, width: int = 80) -> str:
        """Return `terminal` text or plain `text`, as the output needs."""
        return self.terminal(width) if terminal else self.text(width)

    def markdown(self) -> str:
        """Return the table in Markdown, cells uncut."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        rule = ["---:" if column.right else ":---" for column in self.columns]
        head = [line([column.title for column in self.columns]), line(rule)]
        body = [line(row) for row in self.rows]
        remarks = ["", *(f"- {text}" for text in self.remarks)] if self.remarks else []
        return "\n".join([*head, *body, *remarks])


def _wrapped(remarks: Sequence[str], width: int) -> list[str]:
    import textwrap

    return [line for text in remarks for line in textwrap.wrap(text, max(width, 20)) or [""]]
