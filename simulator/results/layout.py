"""Plain text tables that fit a width, with colour only where a terminal shows it."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["Column", "Table", "shorten", "shortened"]

_GAP = "  "
_WORD = re.compile(r"[A-Za-z_]*\d+")
_OF_SWITCHES = ("leaf", "spine", "core", "rail", "switch")
_TRIED = 40
"""Places tried for a piece to leave out."""


def shorten(text: str, width: int) -> str:
    """Return *text* in at most *width* characters, see `shortened`.

    Examples
    --------
    >>> shorten("node12.nic3->rail3.leaf3", 18)
    'node12.nic3->…eaf3'
    """
    return shortened([text], width)[0]


def shortened(texts: Sequence[str], width: int) -> list[str]:
    """Return texts in at most *width* characters: where they differ, they still do.

    One piece of a long text is left out, where that costs least: numbers, which tell names apart,
    stay as long as they can, those of switches less than those of nodes, GPUs and NICs; so do
    beginnings and ends.  What would then look like another text of the list is numbered.

    Examples
    --------
    >>> shortened(["dgx-a100, double_binary_tree", "dgx-h100, double_binary_tree"], 22)
    ['dgx-a100,…_binary_tree', 'dgx-h100,…_binary_tree']
    """
    shown: dict[str, str] = {text: text for text in texts if len(text) <= width}
    taken = set(shown.values())
    for text in texts:
        if text in shown:
            continue
        cuts = _cuts(text, width)
        free = next((cut for cut in cuts if cut not in taken), None)
        number = 2
        while free is None:
            mark = f"…{number}"
            candidate = (text[: max(width - len(mark), 0)] + mark)[-max(width, len(mark)) :]
            free = None if candidate in taken else candidate
            number += 1
        shown[text] = free
        taken.add(free)
    return [shown[text] for text in texts]


def _cuts(text: str, width: int) -> list[str]:
    """Return *text* without one piece, in exactly *width* characters; the best first."""
    if width < 3:
        return [text[:width]]
    length = len(text) - width + 1
    starts = range(1, len(text) - length)
    costs = _costs(text)
    sums = [0, *accumulate(costs)]
    ranked = sorted(starts, key=lambda start: (sums[start + length] - sums[start], start))
    return [text[:start] + "…" + text[start + length :] for start in ranked[:_TRIED]]


def _costs(text: str) -> list[int]:
    """Return what leaving out each character costs."""
    costs = [6 if letter in "->," else 2 for letter in text]
    for found in _WORD.finditer(text):
        of_switch = found[0].startswith(_OF_SWITCHES)
        for place in range(*found.span()):
            costs[place] = (8 if of_switch else 24) if text[place].isdecimal() else 2 - of_switch
    for end in (*range(3), *range(len(text) - 4, len(text))):
        costs[end] += 4
    return costs


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
        by_column = [
            [cell.rjust(size) if column.right else cell.ljust(size) for cell in shown]
            for column, size, shown in zip(
                self.columns, widths, self._shown(cells, widths), strict=True
            )
        ]
        return [list(line) for line in zip(*by_column, strict=True)]

    @staticmethod
    def _shown(cells: Sequence[Sequence[str]], widths: Sequence[int]) -> list[list[str]]:
        """Return the cells of each column, cut to its width."""
        columns = zip(*cells, strict=True)
        return [shortened(column, size) for column, size in zip(columns, widths, strict=True)]

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
