from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.results import (
    Column,
    LinkLoad,
    RankTimes,
    Row,
    RunResult,
    Table,
    comparison_table,
    link_kind_table,
    link_table,
    parts_table,
    rank_table,
    summary_table,
)
from simulator.results.layout import shortened

LONG = "node127.nic7→datacentre-hall-3-leaf-switch-number-42-port-17"
ANSI = re.compile(r"\x1b\[[0-9;]*m")

TABLES: dict[str, Callable[[RunResult], Table]] = {
    "summary": summary_table,
    "parts": parts_table,
    "comparison": lambda result: comparison_table(result.rows),
    "link kinds": lambda result: link_kind_table(result.links),
    "links": lambda result: link_table(result.links),
    "ranks": lambda result: rank_table(result.ranks),
}


NAMES = st.text("abcxyz019.->_, ", max_size=30)


@given(st.lists(NAMES, max_size=12), st.integers(4, 20))
def test_texts_that_differ_still_do_when_cut(texts: list[str], width: int) -> None:
    shown = shortened(texts, width)
    assert all(len(text) <= width for text in shown)
    assert len(set(shown)) == len(set(texts))
    assert all(a == b for a, b in zip(texts, shown, strict=True) if len(a) <= width)


@pytest.mark.parametrize("width", range(17, 24))
def test_a_link_keeps_the_numbers_of_its_node_and_nic(width: int) -> None:
    for name in ("node12.nic7->rail7.leaf3", "rail7.leaf3->node12.nic7"):
        shown = shortened([name], width)[0]
        assert re.search(r"12\D{1,5}7", shown)


@pytest.fixture(scope="module")
def wide(result: RunResult, make_row: Callable[..., Row]) -> RunResult:
    """Every name as long as it gets, every number as wide."""
    rows = tuple(
        make_row(
            size,
            1.23456e-3 * size / 2**20,
            world_size=16384,
            variant=f"{LONG} oversubscription {size}",
            binding_link=LONG,
            algorithm="recursive_halving_doubling",
            protocol="LL128",
            n_channels=32,
            uncertainty_s=1.2345e-6,
        )
        for size in (1234567, 2**30, 2**37 - 1)
    )
    links = tuple(
        dataclasses.replace(link, name=LONG + str(i), kind="nvlink_c2c", wire_bytes=1.2345e14)
        for i, link in enumerate(result.links)
    )
    n_ranks = 16384
    ranks = RankTimes.of(
        call_s=[i * 1.23456e-7 for i in range(n_ranks)],
        end_s=[0.0123456 + i * 1.1e-9 for i in range(n_ranks)],
        transfer_s=[0.00123456] * n_ranks,
        wait_s=[0.009] * n_ranks,
        node=[i // 8 for i in range(n_ranks)],
    )
    return dataclasses.replace(
        result, rows=rows, links=links, ranks=ranks, warnings=("word " * 60,)
    )


@pytest.mark.parametrize("name", TABLES)
def test_no_line_is_wider_than_80_characters(name: str, wide: RunResult) -> None:
    lines = TABLES[name](wide).text(80).splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 80, max(lines, key=len)


@pytest.mark.parametrize("name", TABLES)
def test_terminal_text_is_the_plain_text_in_colour(name: str, result: RunResult) -> None:
    table = TABLES[name](result)
    coloured = table.render(terminal=True, width=80)
    assert ANSI.search(coloured)
    stripped = "\n".join(line.rstrip() for line in ANSI.sub("", coloured).splitlines())
    assert stripped == table.render(terminal=False, width=80)
    assert not ANSI.search(table.text())


def test_wide_terminals_show_whole_names(wide: RunResult) -> None:
    assert LONG in summary_table(wide).text(240)
    assert "…" in summary_table(wide).text(80)


def test_markdown_has_a_rule_and_uncut_escaped_cells() -> None:
    columns = (Column(title="name", right=False, flexible=True), Column(title="n"))
    table = Table(columns=columns, rows=(("a|b" * 50, "1"),))
    head, rule, row = table.markdown().splitlines()
    assert head == "| name | n |"
    assert rule == "| :--- | ---: |"
    assert row.startswith("| a\\|ba")
    assert len(row) > 190


def test_summary_says_how_fast_and_what_binds(result: RunResult) -> None:
    line = next(x for x in summary_table(result).text(100).splitlines() if "1 GiB" in x)
    # 2**30 B / 4.5 ms · 14/8 = 417.6 GB/s; the bound is 2**30 / 250e9 s = 4.295 ms, 95 %.
    assert line.split() == [
        "1",
        "GiB",
        "ring",
        "Simple",
        "8",
        "4.5",
        "ms",
        "417.6",
        "95",
        "node0.gpu0→node0.nvswitch0",
    ]


def test_without_a_binding_link_latency_binds(make_row, result: RunResult) -> None:
    row = make_row(8, 2e-5, binding_link="", bound_s=None)
    (line,) = summary_table(dataclasses.replace(result, rows=(row,))).rows
    assert line[-1] == "latency"
    assert line[-2] == "-"


def test_parts_name_the_largest(make_row, result: RunResult) -> None:
    # 15 µs of launch and latency against 5 µs and 485 µs of moving bytes.
    rows = (make_row(2**20, 20e-6), make_row(2**27, 500e-6))
    table = parts_table(dataclasses.replace(result, rows=rows))
    assert [line[-1] for line in table.rows] == ["latency", "bandwidth"]


def test_comparison_groups_sizes_and_keeps_the_order_of_variants(make_row) -> None:
    rows = [
        make_row(size, time_s, variant=name)
        for name, factor in (("b", 1.0), ("a", 2.0))
        for size, time_s in ((2**30, 4e-3 * factor), (2**20, 1e-4 * factor))
    ]
    lines = comparison_table(rows).rows
    assert [(line[0], line[1], line[3]) for line in lines] == [
        ("1 MiB", "b", "1.00x"),
        ("1 MiB", "a", "2.00x"),
        ("1 GiB", "b", "1.00x"),
        ("1 GiB", "a", "2.00x"),
    ]


def test_comparison_of_one_size_has_no_size_column(make_row) -> None:
    rows = [make_row(2**20, 1e-4, variant=name) for name in "ab"]
    assert "size" not in [column.title for column in comparison_table(rows).columns]


def _links(kind: str, utilisations: list[float]) -> list[LinkLoad]:
    return [
        LinkLoad(
            name=f"{kind}{i}",
            kind=kind,
            capacity_Bps=1e9,
            wire_bytes=2.0**20,
            utilisation=value,
            src="a",
            dst="b",
        )
        for i, value in enumerate(utilisations)
    ]


def test_link_kinds_are_totalled_the_most_loaded_first() -> None:
    links = _links("pcie", [0.1, 0.3]) + _links("infiniband", [0.5, 0.9, 0.7])
    first, second = link_kind_table(links).rows
    # Three links of 1 MiB each; mean of 0.5, 0.9, 0.7 is 70 %.
    assert first[:5] == ("infiniband", "3", "3 MiB", "70", "90")
    assert first[6] == "infiniband1"
    assert second[:5] == ("pcie", "2", "2 MiB", "20", "30")


def test_busiest_links_come_first_and_the_rest_is_counted() -> None:
    table = link_table(_links("pcie", [0.1, 0.8, 0.4]), top=2)
    assert [line[0] for line in table.rows] == ["pcie1", "pcie2"]
    assert table.remarks[-1] == "1 more links, all with the same load or less"


def test_rank_table_names_the_late_and_the_slow(result: RunResult) -> None:
    assert result.ranks is not None
    lines = rank_table(result.ranks).rows
    assert len(lines) == 4
    assert [line[-1] for line in lines] == ["", "", "last call", "last end"]
    # Rank 0 waits 2 ms of the 5 ms between its call and its end.
    assert lines[0][-2] == "40"


def test_of_many_ranks_the_remarkable_ones_are_shown() -> None:
    n_ranks = 1000
    call_s, end_s, wait_s = [0.0] * n_ranks, [1.0] * n_ranks, [0.1] * n_ranks
    call_s[500], end_s[600], wait_s[700] = 0.5, 2.0, 0.9
    ranks = RankTimes.of(call_s=call_s, end_s=end_s, transfer_s=[0.9] * n_ranks, wait_s=wait_s)
    table = rank_table(ranks, limit=6)
    assert {"500", "600", "700"} <= {line[0] for line in table.rows}
    assert len(table.rows) <= 6
    assert "of 1000 ranks" in table.remarks[0]


def test_ranks_that_all_do_the_same_are_not_called_late() -> None:
    same = RankTimes.of(call_s=[0.0] * 3, end_s=[1.0] * 3, transfer_s=[1.0] * 3, wait_s=[0.0] * 3)
    assert {line[-1] for line in rank_table(same).rows} == {""}


def test_no_ranks_give_an_empty_table() -> None:
    assert rank_table(RankTimes.of(call_s=[], end_s=[], transfer_s=[], wait_s=[])).rows == ()
