"""A progress bar on standard error for work of more than two seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["ProgressBar", "progress"]

DELAY_S = 2.0
"""Work that is done sooner shows no bar."""


class ProgressBar:
    """Counts work; shows it once `DELAY_S` has passed and standard error is a terminal."""

    def __init__(self, total: int, label: str) -> None:
        self.total = total
        self.label = label
        self.done = 0
        self._lock = threading.Lock()
        self._closed = False
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        # A timer, not a look at the clock in `advance`: the first item alone may take minutes.
        self._timer = threading.Timer(DELAY_S, self._show)
        self._timer.daemon = True

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        with self._lock:
            if self._closed:
                return
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(self.label, total=self.total, completed=self.done)
            self._bar.start()

    def advance(self, steps: int = 1) -> None:
        """Count *steps* more pieces of work as done."""
        with self._lock:
            self.done += steps
            if self._bar is not None and self._task is not None:
                self._bar.update(self._task, completed=self.done)

    def reach(self, done: int, _total: int) -> None:
        """Count *done* pieces in all: what work that tells (done, total) calls."""
        self.advance(done - self.done)

    def start(self) -> None:
        """Begin to count the delay; without a terminal nothing will ever be shown."""
        if sys.stderr.isatty():
            self._timer.start()

    def close(self) -> None:
        """Remove the bar."""
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.stop()
                self._bar = None


@contextmanager
def progress(total: int, label: str) -> Iterator[ProgressBar]:
    """Show how far a piece of work is, when it takes longer than two seconds.

    Parameters
    ----------
    total
        Number of pieces.
    label
        Text before the bar.

    Examples
    --------
    >>> with progress(3, "sweep") as bar:
    ...     for _ in range(3):
    ...         bar.advance()
    >>> bar.done
    3
    """
    bar = ProgressBar(total, label)
    bar.start()
    try:
        yield bar
    finally:
        bar.close()
