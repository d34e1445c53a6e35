"""Printing a result, and writing the files that were asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from simulator.base.errors import visible
from simulator.cli.border import debugging, report_text, stop_code

if TYPE_CHECKING:
    from simulator.base.errors import Problem
    from simulator.results.model import RunResult
    from simulator.scenario.resolved import Resolved

__all__ = [
    "Files",
    "files_of",
    "finish",
    "print_result",
    "progress_of",
    "tell_written",
    "warn",
    "write_each",
    "write_files",
]


STANDARD_OUTPUTS = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")

MOST_CALL_ROWS = 12
"""Steps with more kinds of calls than this show only the step as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where a result goes beside the terminal; None: not asked for, ``-``: standard output.

    Other names of standard output, such as ``/dev/stdout``, become ``-``.
    """

    csv: str | None = None
    json: str | None = None
    markdown: str | None = None
    trace: str | None = None
    plots: tuple[str, ...] = ()
    """Paths ending in ``.png``, ``.svg`` or ``.pdf``; the name tells the kind."""

    def __post_init__(self) -> None:
        """Give standard output one name."""
        for key in ("csv", "json", "markdown", "trace"):
            if getattr(self, key) in STANDARD_OUTPUTS:
                object.__setattr__(self, key, "-")

    @property
    def documents(self) -> tuple[str, ...]:
        """Places of what is no picture."""
        given = (self.csv, self.json, self.markdown, self.trace)
        return tuple(place for place in given if place is not None)

    @property
    def takes_output(self) -> bool:
        """True when standard output is for a document, and for nothing else."""
        return "-" in self.documents

    @property
    def needs_record(self) -> bool:
        """True when every message must be kept."""
        return self.trace is not None or any(
            word in Path(plot).stem for plot in self.plots for word in ("gantt", "timeline")
        )


def files_of(resolved: Resolved, given: Files) -> Files:
    """Return the files of a scenario's output section, overridden by the command line."""
    output = resolved.output
    folder = Path(output.folder)

    def place(name: str | None) -> str | None:
        return None if name is None else str(folder / name)

    drawn = tuple(str(folder / f"{kind}.{output.plot_format}") for kind in output.plots)
    return Files(
        csv=given.csv or place(output.csv),
        json=given.json or place(output.json),
        markdown=given.markdown,
        trace=given.trace or place(output.trace),
        plots=given.plots or drawn,
    )


def warn(text: str) -> None:
    """Print a warning on stderr."""
    typer.echo(f"warning: {visible(text)}", err=True)


@contextmanager
def progress_of(total: int, label: str, quiet: bool) -> Iterator[object]:
    """Show a progress bar on stderr for anything over two seconds; yields a callback."""
    from simulator.results.progress import progress

    if quiet:
        yield None
        return
    with progress(total, label) as bar:
        yield bar.reach


def print_result(result: RunResult, *, table: str, links: bool, ranks: bool) -> None:
    """Print a result.

    Parameters
    ----------
    result
        What to print.
    table
        ``summary`` or ``nccl-tests``.
    links, ranks
        Print the loads of links, the times of ranks.
    """
    from simulator.results import tables
    from simulator.results.nccl_tests import nccl_tests_table

    terminal = sys.stdout.isatty()
    for text in result.warnings:
        warn(text)
    if result.training:
        _print_training(result, ranks=ranks, terminal=terminal)
        return
    varied = len({row.variant for row in result.rows}) > 1 or bool(result.failures)
    if result.steps:
        typer.echo(tables.step_table(result.steps, title=result.title).render(terminal=terminal))
    if result.steps and len(result.rows) > MOST_CALL_ROWS * len(result.steps):
        pass
    elif result.steps:
        calls = tables.comparison_table(result.rows, title="calls (the longest of each kind)")
        typer.echo("\n" + calls.render(terminal=terminal))
    elif table == "nccl-tests":
        typer.echo(nccl_tests_table(result), nl=False)
    elif varied:
        shown = tables.comparison_table(result.rows, title=result.title)
        typer.echo(shown.render(terminal=terminal))
    else:
        typer.echo(tables.summary_table(result).render(terminal=terminal))
    for note in result.notes:
        typer.echo(note)
    if links and result.links:
        typer.echo("")
        typer.echo(tables.link_kind_table(result.links).render(terminal=terminal))
        typer.echo("")
        typer.echo(tables.link_table(result.links).render(terminal=terminal))
    if ranks and result.ranks is not None:
        typer.echo("")
        typer.echo(tables.rank_table(result.ranks).render(terminal=terminal))


def _print_training(result: RunResult, *, ranks: bool, terminal: bool) -> None:
    from simulator.results import training_tables as tables
    from simulator.results.goodput import goodput_comparison, goodput_table

    if len(result.training) > 1 or result.failures:
        shown = tables.comparison_table(result.training, title=result.title)
        typer.echo(shown.render(terminal=terminal))
        if result.goodput:
            table = goodput_comparison(result.goodput)
            typer.echo("\n" + table.render(terminal=terminal))
        for note in result.notes:
            typer.echo(note)
        return
    (step,) = result.training
    typer.echo(f"{result.title}\n{tables.headline(step)}\n")
    typer.echo(tables.parts_table(step).render(terminal=terminal))
    if step.calls:
        typer.echo("\n" + tables.calls_table(step).render(terminal=terminal))
    if ranks or step.straggler or len({a.stage for a in step.accounts}) > 1:
        typer.echo("\n" + tables.stage_table(step).render(terminal=terminal))
    if step.memory and (ranks or not step.fits):
        typer.echo("\n" + tables.memory_table(step).render(terminal=terminal))
    if step.remedies:
        typer.echo("\nwhat would make it fit, cheapest first:")
        for text in step.remedies:
            typer.echo(f"  {text}")
    for days in result.goodput:
        typer.echo("\n" + goodput_table(days).render(terminal=terminal))
    for note in result.notes:
        typer.echo(note)


def write_files(result: RunResult, files: Files) -> tuple[list[str], list[Problem]]:
    """Write the files that were asked for; each is whole or not there at all.

    Returns
    -------
    tuple
        Names of what was written, and why others could not be: one that fails stops no other.
    """
    from simulator.results import files as writer

    tasks: list[tuple[str, Callable[[str], object]]] = []
    if files.csv is not None:
        tasks.append((files.csv, lambda path: writer.write_csv(result, path)))
    if files.json is not None:
        tasks.append((files.json, lambda path: writer.write_json(result, path)))
    if files.markdown is not None:
        tasks.append((files.markdown, lambda path: _write_markdown(result, path)))
    if files.trace is not None:
        from simulator.results.trace import write_trace

        tasks.append((files.trace, lambda path: write_trace(result, path)))
    tasks += [(plot, lambda path: _draw(result, path)) for plot in files.plots]
    return write_each(tasks)


def write_each(
    tasks: Iterable[tuple[str, Callable[[str], object]]],
) -> tuple[list[str], list[Problem]]:
    """Do every task of (path, what writes it), standard output last; see `write_files`."""
    from simulator.base.errors import CollsimError

    written: list[str] = []
    refused: list[Problem] = []
    for path, write in sorted(tasks, key=lambda task: task[0] == "-"):
        try:
            write(path)
        except CollsimError as error:
            refused.extend(error.problems)
        else:
            written.append(path)
    return written, refused


def _write_markdown(result: RunResult, path: str) -> None:
    from simulator.results import files as writer
    from simulator.results.tables import comparison_table, summary_table

    if result.training:
        from simulator.results.training_tables import comparison_table as of_steps

        shown = of_steps(result.training)
    elif len({row.variant for row in result.rows}) > 1 or result.failures:
        shown = comparison_table(result.rows)
    else:
        shown = summary_table(result)
    writer.write_markdown(result, shown, path)


def finish(result: RunResult, refused: Sequence[Problem]) -> None:
    """Name the variants that failed and the files that were not written, and end with a code.

    Raises
    ------
    typer.Exit
        Something is missing from the result: the code of the signal that stopped the run, or
        the highest code of what failed.
    """
    codes = [entry.exit_code for entry in result.failures]
    for entry in result.failures:
        label = f"{entry.variant}: " if entry.variant else ""
        typer.echo(f"not simulated: {label}{entry.message}", err=True)
        if entry.detail:
            typer.echo(entry.detail if debugging() else report_text(), err=True)
    for problem in refused:
        typer.echo(str(problem), err=True)
        codes.append(2)
    if any(text.startswith("interrupted") for text in result.warnings):
        raise typer.Exit(stop_code())
    if codes:
        raise typer.Exit(max(codes))


def tell_written(names: list[str]) -> None:
    """Name the files that were written, on standard error."""
    for name in names:
        if name != "-":
            typer.echo(f"wrote {name}", err=True)


def _draw(result: RunResult, path: str) -> None:
    """Draw the plot that the file's name asks for; a plain name means busbw over size."""
    from simulator.results import plots, plots_gantt, plots_links

    stem = Path(path).stem
    if result.training:
        from simulator.results import plots_training

        if "memory" in stem:
            plots_training.plot_memory(result, path)
        elif "gantt" in stem or "timeline" in stem:
            plots_training.plot_timeline(result, path)
        else:
            plots_training.plot_step(result, path)
    elif "gantt" in stem:
        plots_gantt.plot_gantt(result, path)
    elif "link" in stem:
        plots_links.plot_link_load(result, path)
    elif "compar" in stem or len({row.size_bytes for row in result.rows}) == 1:
        plots.plot_comparison(result.rows, path)
    else:
        plots.plot_sweep(result, path)
