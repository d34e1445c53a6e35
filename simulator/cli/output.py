"""Printing a result, and writing the files that were asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from simulator.results.model import RunResult
    from simulator.scenario.resolved import Resolved

__all__ = [
    "Files",
    "check_places",
    "files_of",
    "print_result",
    "progress_of",
    "tell_written",
    "warn",
    "write_files",
]


MOST_CALL_ROWS = 12
"""Steps with more kinds of calls than this show only the step as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Where a result goes beside the terminal; None: not asked for, ``-``: standard output."""

    csv: str | None = None
    json: str | None = None
    markdown: str | None = None
    trace: str | None = None
    plots: tuple[str, ...] = ()
    """Paths ending in ``.png``, ``.svg`` or ``.pdf``; the name tells the kind."""

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


def check_places(files: Files) -> None:
    """Refuse, before anything is simulated, files that could not be written afterwards.

    Raises
    ------
    ScenarioError
        Every file whose folder is missing or closed, and every unknown kind of picture.
    """
    from simulator.base.errors import Problem, ScenarioError, nearest

    formats: tuple[str, ...] = ()
    if files.plots:  # drawing is slow to import
        from simulator.results.plots_style import FORMATS

        formats = tuple(FORMATS)
    problems: list[Problem] = []
    if files.documents.count("-") > 1:
        problems.append(
            Problem(
                file="-",
                message="several documents for standard output",
                allowed="- for one of --csv, --json, --markdown and --trace, files for the others",
            )
        )
    for name in (*files.documents, *files.plots):
        if name == "-" and name not in files.plots:
            continue
        path, folder = Path(name), Path(name).parent
        ending = path.suffix.removeprefix(".").lower()
        reason, allowed = "", "a file in a folder that exists and may be written"
        if path.is_dir():
            reason = "it is a folder"
        elif not folder.is_dir():
            reason = f"there is no folder {folder}"
        else:
            reason = _refusal(path)
        if reason:
            problems.append(Problem(file=name, message=f"cannot write: {reason}", allowed=allowed))
        elif name in files.plots and ending not in formats:
            problems.append(
                Problem(
                    file=name,
                    message=f"unknown picture format {path.suffix or path.name!r}",
                    allowed=", ".join(f".{known}" for known in formats),
                    suggestion=nearest(ending, formats),
                )
            )
    if problems:
        raise ScenarioError(problems)


def _refusal(path: Path) -> str:
    """Return why a file cannot be written, by trying; empty: it can.

    Permissions alone do not tell: a superuser has all, and /proc takes none of them.  Of a link
    the file that it names counts.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    is_new = not path.exists()
    try:
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        return f"{error.strerror or error} ({path.parent})"
    return ""


def warn(text: str) -> None:
    """Print a warning on stderr."""
    typer.echo(f"warning: {text}", err=True)


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
    varied = len({row.variant for row in result.rows}) > 1
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

    if len(result.training) > 1:
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


def write_files(result: RunResult, files: Files) -> None:
    """Write the files that were asked for; each is whole or not there at all."""
    from simulator.results import files as writer
    from simulator.results.tables import comparison_table, summary_table

    written: list[str] = []
    if files.csv is not None:
        writer.write_csv(result, files.csv)
        written.append(files.csv)
    if files.json is not None:
        writer.write_json(result, files.json)
        written.append(files.json)
    if files.markdown is not None:
        if result.training:
            from simulator.results.training_tables import comparison_table as of_steps

            shown = of_steps(result.training)
        elif len({row.variant for row in result.rows}) > 1:
            shown = comparison_table(result.rows)
        else:
            shown = summary_table(result)
        writer.write_markdown(result, shown, files.markdown)
        written.append(files.markdown)
    if files.trace is not None:
        from simulator.results.trace import write_trace

        write_trace(result, files.trace)
        written.append(files.trace)
    for plot in files.plots:
        _draw(result, plot)
        written.append(plot)
    tell_written(written)


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
