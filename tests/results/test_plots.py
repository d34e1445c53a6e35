from __future__ import annotations

import csv
import dataclasses
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from simulator.base.errors import CollsimError
from simulator.results import LinkLoad, Provenance, Row, RunResult, TraceEvent, Vertex, plots_gantt
from simulator.results import plots as figures
from simulator.results.plots_links import _layout
from simulator.results.plots_matrix import load_scale_top

Plot = Callable[..., None]


def cluster(n_nodes: int) -> RunResult:
    """Nodes of 8 GPUs, 4 NVSwitches, 2 CPUs and 8 NICs on 8 rails with 4 spines."""
    chance = random.Random(1)
    vertices: list[Vertex] = []
    links: list[LinkLoad] = []

    def duplex(a: str, b: str, kind: str) -> None:
        for src, dst in ((a, b), (b, a)):
            share = chance.random()
            links.append(
                LinkLoad(
                    name=f"{src}→{dst}",
                    kind=kind,
                    capacity_Bps=1e9,
                    wire_bytes=share * 1e9,
                    utilisation=share,
                    src=src,
                    dst=dst,
                )
            )

    for node in range(n_nodes):
        for kind, count in (("gpu", 8), ("nvswitch", 4), ("cpu", 2), ("nic", 8)):
            vertices += [
                Vertex(name=f"{node}.{kind}{i}", kind=kind, node=node) for i in range(count)
            ]
        for i in range(8):
            for switch in range(4):
                duplex(f"{node}.gpu{i}", f"{node}.nvswitch{switch}", "nvlink")
            duplex(f"{node}.gpu{i}", f"{node}.cpu{i // 4}", "pcie")
            duplex(f"{node}.cpu{i // 4}", f"{node}.nic{i}", "pcie")
            duplex(f"{node}.nic{i}", f"leaf{i}", "infiniband")
        duplex(f"{node}.cpu0", f"{node}.cpu1", "upi")
    vertices += [Vertex(name=f"leaf{i}", kind="leaf") for i in range(8)]
    vertices += [Vertex(name=f"spine{i}", kind="spine") for i in range(4)]
    for leaf in range(8):
        for spine in range(4):
            duplex(f"leaf{leaf}", f"spine{spine}", "infiniband")
    return RunResult(
        title=f"{n_nodes} nodes",
        rows=(),
        provenance=Provenance(version="0"),
        links=tuple(links),
        vertices=tuple(vertices),
    )


PLOTS: dict[str, Callable[[RunResult, Path], None]] = {
    "sweep": lambda result, path: figures.plot_sweep(result, path, with_csv=True),
    "time": lambda result, path: figures.plot_sweep(result, path, quantity="time", with_csv=True),
    "comparison": lambda result, path: figures.plot_comparison(result.rows, path, with_csv=True),
    "scaling": lambda result, path: figures.plot_scaling(result.rows[:1], path, with_csv=True),
    "gantt": lambda result, path: figures.plot_gantt(result, path, with_csv=True),
    "links": lambda result, path: figures.plot_link_load(result, path, with_csv=True),
    "matrix": lambda result, path: figures.plot_link_load(result, path, max_gpus=2, with_csv=True),
}
MAGIC = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("name", PLOTS)
def test_a_figure_is_written_with_its_numbers(name: str, result: RunResult, tmp_path: Path) -> None:
    PLOTS[name](result, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(MAGIC["png"])
    assert len(read(tmp_path / "figure.csv")) >= 1
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("suffix", ["svg", "pdf"])
@pytest.mark.parametrize("name", ["sweep", "gantt", "links"])
def test_equal_results_give_equal_bytes(
    name: str, suffix: str, result: RunResult, tmp_path: Path
) -> None:
    contents = []
    for copy in ("a", "b"):
        path = tmp_path / f"{copy}.{suffix}"
        PLOTS[name](result, path)
        contents.append(path.read_bytes())
    assert contents[0].startswith(MAGIC[suffix])
    assert contents[0] == contents[1]
    assert b"CreationDate" not in contents[0]
    assert b"<dc:date>" not in contents[0]


def test_pdf_fonts_are_embedded_as_truetype(result: RunResult, tmp_path: Path) -> None:
    figures.plot_sweep(result, tmp_path / "figure.pdf")
    content = (tmp_path / "figure.pdf").read_bytes()
    # Type 42 fonts appear as CIDFontType2 with the file embedded; the default would be Type3.
    assert b"CIDFontType2" in content
    assert b"FontFile2" in content
    assert b"/Type3" not in content


def test_matplotlib_settings_are_left_as_they_were(result: RunResult, tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    figures.plot_sweep(result, tmp_path / "figure.png")
    assert dict(matplotlib.rcParams) == before


def test_an_unknown_format_names_the_known_ones(result: RunResult, tmp_path: Path) -> None:
    with pytest.raises(CollsimError, match=r"allowed: \.png, \.svg, \.pdf\. Did you mean 'png'"):
        figures.plot_sweep(result, tmp_path / "figure.pgn")


def test_a_missing_folder_is_a_clear_error(result: RunResult, tmp_path: Path) -> None:
    with pytest.raises(CollsimError, match="folder that exists"):
        figures.plot_sweep(result, tmp_path / "no" / "figure.png")


def test_a_result_with_nothing_in_it_is_refused(result: RunResult, tmp_path: Path) -> None:
    empty = dataclasses.replace(result, rows=(), links=(), trace=())
    for plot in (figures.plot_sweep, figures.plot_gantt, figures.plot_link_load):
        with pytest.raises(CollsimError, match="nothing to plot"):
            plot(empty, tmp_path / "figure.png")
    for plot in (figures.plot_comparison, figures.plot_scaling):
        with pytest.raises(CollsimError, match="nothing to plot"):
            plot((), tmp_path / "figure.png")
    with pytest.raises(CollsimError, match="no row of 3 B"):
        figures.plot_comparison(result.rows, tmp_path / "figure.png", size_bytes=3)
    assert list(tmp_path.iterdir()) == []


def test_a_tuned_sweep_is_one_line_and_two_algorithms_are_two(
    result: RunResult, make_row: Callable[..., Row], tmp_path: Path
) -> None:
    tuned = (
        make_row(2**10, 1e-5, algorithm="tree", protocol="LL"),
        make_row(2**20, 4e-5),
        make_row(2**30, 4e-3),
    )
    both = tuple(
        make_row(size, 1e-4, algorithm=name) for name in ("ring", "tree") for size in (2**20, 2**21)
    )
    for rows, series in ((tuned, {""}), (both, {"ring", "tree"})):
        figures.plot_sweep(
            dataclasses.replace(result, rows=rows), tmp_path / "figure.png", with_csv=True
        )
        assert {line["series"] for line in read(tmp_path / "figure.csv")} == series


def test_the_bound_is_drawn_as_busbw_at_the_bound(
    result: RunResult, make_row: Callable[..., Row], tmp_path: Path
) -> None:
    # The bound of the made-up rows is 250 GB/s of algbw; times 14/8 for eight ranks: 437.5.
    measured = (make_row(2**20, 6e-5),)
    figures.plot_sweep(result, tmp_path / "figure.png", measured=measured, with_csv=True)
    lines = read(tmp_path / "figure.csv")
    predicted = [line for line in lines if line["source"] == "predicted"]
    assert [float(line["bound_busbw_GBps"]) for line in predicted] == pytest.approx([437.5] * 3)
    (dot,) = [line for line in lines if line["source"] == "measured"]
    assert float(dot["busbw_GBps"]) == pytest.approx(2**20 / 6e-5 / 1e9 * 1.75)


@pytest.mark.parametrize("n_nodes", [1, 4, 16])
def test_no_two_vertices_of_the_map_overlap(n_nodes: int) -> None:
    made = cluster(n_nodes)
    layout = _layout(made.vertices, made.links)
    assert len(layout.at) == len(made.vertices)
    half = 0.42 * min(layout.slot_in, 0.4)  # the wider of the two box sizes
    places = sorted(layout.at.values(), key=lambda at: (at[1], at[0]))
    for (x, y), (other_x, other_y) in pairwise(places):
        assert y < other_y or other_x - x >= 2 * half
    for x, y in places:
        assert half <= x <= layout.width_in - half
        assert 0 < y < layout.height_in


def test_gpus_lie_below_the_network_and_above_the_nvswitches() -> None:
    made = cluster(2)
    tiers = _layout(made.vertices, made.links).tiers
    assert sorted(tiers, key=lambda kind: tiers[kind]) == [
        "nvswitch",
        "gpu",
        "cpu",
        "nic",
        "leaf",
        "spine",
    ]


def test_large_clusters_are_a_matrix_of_a_size_that_does_not_grow(tmp_path: Path) -> None:
    sizes = []
    for n_nodes in (17, 40):
        path = tmp_path / f"{n_nodes}.png"
        figures.plot_link_load(cluster(n_nodes), path)
        # The IHDR chunk of PNG: width and height at bytes 16 to 24.
        sizes.append(path.read_bytes()[16:24])
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("utilisation", "top"), [(0.97, 1.0), (0.51, 1.0), (0.3, 0.5), (0.014, 0.02), (0.0, 1.0)]
)
def test_light_loads_get_a_finer_scale(utilisation: float, top: float) -> None:
    link = dataclasses.replace(cluster(1).links[0], utilisation=utilisation)
    assert load_scale_top([link]) == pytest.approx(top)


def test_gantt_can_be_limited_to_ranks_and_rows(result: RunResult, tmp_path: Path) -> None:
    trace = tuple(
        TraceEvent(
            rank=rank,
            node=0,
            stream="comm",
            name="reduce_scatter",
            kind="transfer",
            start_s=0.0,
            end_s=1e-5,
            args={"step": 0},
        )
        for rank in range(10)
    )
    many = dataclasses.replace(result, trace=trace)
    path = tmp_path / "figure.svg"
    figures.plot_gantt(many, path, max_rows=3, with_csv=True)
    assert [line["rank"] for line in read(tmp_path / "figure.csv")] == ["0", "1", "2"]
    figures.plot_gantt(many, path, ranks=[7, 4], with_csv=True)
    assert [line["rank"] for line in read(tmp_path / "figure.csv")] == ["7", "4"]


def test_channels_of_a_gantt_are_in_order(result: RunResult, tmp_path: Path) -> None:
    trace = tuple(
        TraceEvent(
            rank=0,
            node=0,
            stream=stream,
            name="all_gather",
            kind="transfer",
            start_s=0.0,
            end_s=1e-5,
            args={"step": 0},
        )
        for stream in ("comm", "channel 10", "channel 2", "compute", "channel 0")
    )
    figures.plot_gantt(
        dataclasses.replace(result, trace=trace), tmp_path / "figure.svg", with_csv=True
    )
    streams = [line["stream"] for line in read(tmp_path / "figure.csv")]
    assert streams == ["comm", "compute", "channel 0", "channel 2", "channel 10"]


@pytest.mark.parametrize("n_nodes", [2, 40])
def test_a_fabric_without_traffic_is_drawn_too(n_nodes: int, tmp_path: Path) -> None:
    made = cluster(n_nodes)
    idle = tuple(dataclasses.replace(x, wire_bytes=0.0, utilisation=0.0) for x in made.links)
    path = tmp_path / "figure.svg"
    figures.plot_link_load(dataclasses.replace(made, links=idle), path)
    text = path.read_text()
    # Text is drawn as glyphs, but matplotlib leaves each string as a comment before them.
    assert "Busiest" not in text
    assert "infiniband" in text
    assert "nvlink" in text


def test_names_of_links_whose_vertices_are_unknown_do_not_stop_the_map(tmp_path: Path) -> None:
    made = cluster(1)
    stray = dataclasses.replace(made.links[0], src="elsewhere")
    figures.plot_link_load(
        dataclasses.replace(made, links=(*made.links, stray)), tmp_path / "figure.png"
    )
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def _bars(n_ranks: int, late: int, slow: int) -> list[TraceEvent]:
    """One collective per rank from 0 to 10 us; one rank begins at 5 us, one ends at 12 us."""
    return [
        TraceEvent(
            rank=rank,
            node=0,
            stream="comm",
            kind="collective",
            name="AllReduce",
            start_s=5e-6 if rank == late else 0.0,
            end_s=12e-6 if rank == slow else 10e-6,
        )
        for rank in range(n_ranks)
    ]


def _gantt_of(result: RunResult, events: list[TraceEvent], monkeypatch: Any, path: Path) -> Any:
    """Return the figure, which `save` would have written."""
    kept = []
    monkeypatch.setattr(plots_gantt, "save", lambda figure, *_, **__: kept.append(figure))
    figures.plot_gantt(dataclasses.replace(result, trace=tuple(events)), path, max_rows=8)
    return kept[0]


def test_a_crowded_gantt_shows_who_is_late_and_who_is_slow(
    result: RunResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figure = _gantt_of(result, _bars(100, late=71, slow=93), monkeypatch, tmp_path / "x.png")
    (axes,) = figure.axes
    ranks = [int(label.get_text()) for label in axes.get_yticklabels()]
    assert len(ranks) == 8
    assert ranks == sorted(ranks)
    assert {71, 93} <= set(ranks)
    assert "8 of 100 rows: 8 of 100 ranks" in axes.get_title(loc="left").replace("\n", " ")


def test_the_legend_of_a_gantt_has_what_is_drawn(
    result: RunResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A send on a stream of its own covers nothing of the collective's row, so that no bar means
    # "in the collective, not sending".
    send = TraceEvent(
        rank=0,
        node=0,
        stream="channel 0",
        kind="transfer",
        name="send",
        start_s=1e-6,
        end_s=2e-6,
        args={"stage": "reduce_scatter", "step": 0},
    )
    both = [*_bars(2, late=-1, slow=-1), send]
    for stream, expected in (
        ("channel 0", {"AllReduce", "reduce_scatter"}),
        ("comm", {"AllReduce", "reduce_scatter", "in the collective, not sending"}),
    ):
        events = [*both[:-1], dataclasses.replace(send, stream=stream)]
        figure = _gantt_of(result, events, monkeypatch, tmp_path / "x.png")
        (legend,) = figure.legends
        assert {text.get_text() for text in legend.get_texts()} == expected


def test_a_missing_font_prints_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import logging

    import matplotlib

    from simulator.results import plots_style

    # A name that nobody asked for before: matplotlib complains once of each.
    monkeypatch.setitem(plots_style._SETTINGS, "font.family", "No Such Font For Plots")
    with plots_style.style():
        assert matplotlib.rcParams["font.family"] == ["No Such Font For Plots"]
        figure = plots_style.new_figure(2.0, 1.0)
        figure.add_subplot().set_title("busbw")
    plots_style.save(figure, tmp_path / "x.png", ((), ()), with_csv=False)
    assert not [record for record in caplog.records if "font" in record.name]
    assert logging.getLogger("matplotlib.font_manager").level == logging.NOTSET
