"""The committed measurements load, keep their schema and do not contradict themselves."""

import numpy as np
import pytest

from simulator.base.errors import CalibrationError
from validation import published

GOOD = """
slug: box
source: "a public log"
date: "2024"
hardware: {gpu: T4, gpus_per_node: 1, nodes: 2, ranks: 2, intra_node: none, inter_node: TCP,
  nics_per_node: 1, gdr: unknown, cpu_numa: unknown}
software: {nccl: unknown, cuda: unknown, env: {}, nccl_log: []}
health: healthy
tables:
  - {collective: all_reduce, dtype: float, redop: sum, root: "-1", in_place_columns: true,
     flagged_rows: [], rows: [[1048576, 1000.0, 1.05, 1.05, 500.0, 2.1, 2.1]]}
"""


@pytest.fixture(scope="module")
def everything():
    return published.set_ups()


def test_all_set_ups_load(everything):
    # Counted in the folder: 99 files, 9 of them faulty.
    assert len(everything) == 99
    assert len(published.healthy()) == 90
    assert {entry.health for entry in everything} == {"healthy", "faulty"}
    assert sum(entry.n_rows for entry in everything) == 17989
    assert [entry.slug for entry in everything] == list(published.slugs())


def test_every_set_up_names_its_source_and_machine(everything):
    for entry in everything:
        assert entry.source
        assert entry.hardware.gpu
        assert entry.tables


def test_time_algbw_and_busbw_agree_in_every_row(everything):
    assert [str(p) for entry in everything for p in published.check(entry)] == []
    assert [str(p) for entry in published.vtrain() for p in published.check(entry)] == []


def test_values_are_those_of_the_file():
    # oci-v100-8-large posts one row: 1 GiB in 13867 µs, 77.43 and 135.5 GB/s, in-place 13877 µs.
    entry = published.get("oci-v100-8-large")
    table = entry.tables[0]
    assert (entry.hardware.n_ranks, entry.hardware.nodes, table.n_ranks) == (8, 1, 8)
    assert table.size_bytes.tolist() == [2**30]
    assert table.time_s.tolist() == [13867.0 / 1e6]
    assert table.in_place_time_s.tolist() == [13877.0 / 1e6]
    # busbw = S / t × 2 · 7 / 8
    assert table.busbw_Bps()[0] == pytest.approx(2**30 / 13867e-6 * 1.75)
    assert table.printed_busbw_Bps[0] == 135.5e9


def test_rank_and_node_counts_that_differ_per_table_are_taken_from_the_table():
    tables = published.get("oci-b300-1n-2n").tables
    assert [(t.n_ranks, t.n_nodes) for t in tables] == [(8, 1), (16, 2), (8, 1), (16, 2)]
    assert published.get("oci-b300-1n-2n").hardware.n_ranks is None


def test_packed_file_loads():
    entry = published.get("a100pcie-2n1g-ib-gdr-on")
    assert entry.n_rows == 2317
    assert {t.collective for t in entry.tables} >= {"all_to_all", "send_recv", "reduce_scatter"}


def test_rows_without_data_or_time_are_not_usable():
    table = published.get("alcf-polaris-a100-540n").tables[0]
    assert table.size_bytes[0] == 0
    assert not table.usable()[0]
    assert table.usable().any()
    assert np.isnan(table.algbw_Bps()[0])


def test_vtrain_tables_have_every_size_and_rank_count():
    a100, v100 = published.vtrain()
    for entry in (a100, v100):
        assert [table.n_ranks for table in entry.tables] == [2, 3, 4, 5, 6, 7, 8]
        for table in entry.tables:
            assert table.size_bytes.tolist() == [k * 2**20 for k in range(1, 1025)]
    # First row of the file: A100, 2 ranks, 1 MiB: 44.21 µs, busbw 23.72.
    assert a100.tables[0].time_s[0] == pytest.approx(44.21e-6)
    assert a100.tables[0].busbw_Bps()[0] == pytest.approx(23.72e9, rel=1e-3)


def test_schema_accepts_the_good_file():
    assert published.parse(GOOD, "box.yaml").tables[0].n_nodes == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("health: healthy", "health: fine"), "healthy, faulty"),
        (("health: healthy", "healt: healthy"), "healt: unknown key"),
        (('source: "a public log"\n', ""), "source: missing"),
        (("collective: all_reduce", "collective: allreduce"), "'allreduce'"),
        (("slug: box", "slug: other"), "not the file's name"),
        (("1048576, 1000.0", "1048576.5, 1000.0"), "whole number of bytes"),
        (("2.1, 2.1]]", "2.1]]"), "seven numbers"),
        (("gdr: unknown, ", ""), "hardware.gdr: missing"),
        (("redop: sum", "redop: [sum"), "not YAML"),
        (("tables:", "tables: []\nnotes:"), "no table"),
    ],
)
def test_broken_file_is_refused_saying_where(change, words):
    assert change[0] in GOOD
    with pytest.raises(CalibrationError, match=r"box\.yaml") as caught:
        published.parse(GOOD.replace(*change), "box.yaml")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "change", [("1.05, 1.05", "1.25, 1.25"), ("1.05, 1.05", "1.05, 2.05"), ("500.0", "600.0")]
)
def test_check_finds_a_row_that_contradicts_itself(change):
    assert published.check(published.parse(GOOD, "box.yaml")) == []
    assert published.check(published.parse(GOOD.replace(*change), "box.yaml"))


def test_unknown_set_up_names_the_nearest():
    with pytest.raises(CalibrationError, match="oci-v100-8-large"):
        published.get("oci-v100-8-larg")
