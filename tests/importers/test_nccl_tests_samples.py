"""Logs that people published are read whole; expected numbers were read off by eye."""

from pathlib import Path

import pytest

from simulator.importers import ForeignFileError
from simulator.importers.nccl_tests import read

DATA = Path(__file__).parent / "data"

# file: collective, redop, root, ranks, nodes, rows, last size, last out-of-place µs, in-place µs
WHOLE = {
    "superbench_nccl_allreduce.log": ("all_reduce", "sum", None, 8, 1, 34, 2**33, 63896, 63959),
    "superbench_nccl_allgather.log": ("all_gather", None, None, 8, 1, 34, 2**33, 33646, 32669),
    "superbench_nccl_alltoall.log": ("all_to_all", None, None, 8, 1, 34, 2**33, 33508, 33234),
    "superbench_nccl_broadcast.log": ("broadcast", None, 0, 8, 1, 34, 2**33, 36896, 36599),
    "superbench_nccl_reduce.log": ("reduce", "sum", 0, 8, 1, 34, 2**33, 37613, 37539),
    "superbench_nccl_reducescatter.log": (
        *("reduce_scatter", "sum", None, 8, 1, 34, 2**33, 32464, 32502),
    ),
    "aws_srun_rankprefix_1.log": ("all_reduce", "sum", None, 16, None, 29, 2**31, 51406, 51406),
    "aws_eks_mpirun_tagoutput.log": ("all_reduce", "sum", None, 16, None, 7, 2**31, 9197.5, 9195.2),
    "aws_efa_eks_p4d_excerpt.log": ("all_reduce", "sum", None, 16, 2, 30, 2**32, 183834, 184216),
    "coreweave_gb200_1rack.log": ("all_reduce", "sum", None, 72, 18, 5, 2**33, 20299, 20006),
    "coreweave_gb200_2racks.log": ("all_reduce", "sum", None, 144, 36, 6, 2**34, 42067, 41557),
    "coreweave_h100_mpi_readme.log": ("all_reduce", "sum", None, 96, None, 5, 2**33, 43980, 44094),
    "new_2.20_gb10_version_banner.log": ("all_reduce", "sum", None, 2, 2, 4, 65536, 67.93, 64.71),
    "odd_rank_tag_in_middle_of_rows.log": (
        *("all_reduce", "sum", None, 24, None, 10, 2**29, 193909, 192903),
    ),
    "odd_mpirun_timestamp_output.log": (
        *("all_reduce", "sum", None, None, None, 1, 2**20, 354.9, 345.7),
    ),
    "pcie_4gpu_2020_no_validation_NA.log": (
        *("all_reduce", "sum", None, 4, None, 12, 2**29, 164854, None),
    ),
    "derived_interleaved_stderr_inside_row.log": (
        *("all_reduce", "sum", None, 8, 1, 34, 2**33, 63896, 63959),
    ),
    "derived_truncated_midline.log": ("all_reduce", "sum", None, 8, 1, 22, 2**21, 93.48, None),
    "derived_J_output.json": ("all_reduce", "sum", None, 8, 1, 34, 2**33, 63896, 63959),
    "vega_4gpu_all_gather_2020.log": ("all_gather", None, None, 4, 1, 1, 2**25, 11835, 11726),
}


def test_every_sample_has_an_expectation():
    files = {path.name for path in DATA.iterdir() if path.is_file()} - {
        "SOURCES.md",
        "nccl_debug_2.4.log",
    }
    others = {"derived_two_tests_concatenated.log", "odd_ray_and_mpirun_double_prefix.log"}
    assert files == set(WHOLE) | others


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_sample_gives_its_table(name):
    collective, redop, root, n_ranks, n_nodes, n_rows, size, out_us, in_us = WHOLE[name]
    log = read(DATA / name)
    assert len(log.tables) == 1
    table = log.tables[0]
    assert (table.collective, table.redop, table.root) == (collective, redop, root)
    assert (table.n_ranks, table.n_nodes, len(table.rows)) == (n_ranks, n_nodes, n_rows)
    last = table.rows[-1]
    assert last.size_bytes == size
    assert last.out_of_place.time_s == pytest.approx(out_us * 1e-6, rel=1e-12)
    assert (last.in_place is None) == (in_us is None)
    if in_us is not None:
        assert last.in_place.time_s == pytest.approx(in_us * 1e-6, rel=1e-12)


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_recomputed_bandwidths_are_the_printed_ones_to_their_places(name):
    table = read(DATA / name).tables[0]
    if name in ("vega_4gpu_all_gather_2020.log", "coreweave_gb200_2racks.log"):
        pytest.skip("prints another definition or rank count: see the warning tests")
    for row in table.rows:
        for half in (row.out_of_place, row.in_place):
            if half is None or half.busbw_Bps is None:
                continue
            # Times have four digits, bandwidths two decimals.
            error = 5.01e6 + 6e-4 * half.busbw_Bps
            assert half.algbw_Bps == pytest.approx(half.printed_algbw_Bps, abs=error)
            assert half.busbw_Bps == pytest.approx(half.printed_busbw_Bps, abs=error)


def test_line_numbers_are_those_of_the_file():
    name = "superbench_nccl_allreduce.log"
    lines = (DATA / name).read_text().splitlines()
    for row in read(DATA / name).tables[0].rows:
        assert lines[row.line - 1].split()[:2] == [str(row.size_bytes), str(row.count)]


def test_two_tests_in_one_file_are_two_tables():
    log = read(DATA / "derived_two_tests_concatenated.log")
    assert [table.collective for table in log.tables] == ["all_reduce", "all_gather"]
    assert [len(table.rows) for table in log.tables] == [34, 34]
    assert any("all_gather and all_to_all" in str(warning) for warning in log.warnings)


def test_header_tells_gpus_versions_and_parameters():
    table = read(DATA / "new_2.20_gb10_version_banner.log").tables[0]
    assert table.gpus == ("NVIDIA GB10",)
    assert table.hosts == ("host-a", "host-b")
    assert table.nccl_version == "2.31.2"
    assert table.tests_version == "2.20.0"
    assert table.parameters.iterations == 100
    assert table.parameters.warmup_iterations == 10
    assert table.parameters.step_factor == 2.0
    assert table.collective_from == "banner"


def test_debug_lines_tell_version_environment_and_transports():
    table = read(DATA / "aws_efa_eks_p4d_excerpt.log").tables[0]
    assert table.nccl_version == "2.9.9"
    assert set(table.transports) == {"NET/AWS Libfabric/GDRDMA", "P2P/IPC/read"}
    assert "10.0.0.1" not in repr(table)
    assert table.rows[0].out_of_place.wrong is None
    assert table.rows[0].out_of_place.max_error == 2e-07


def test_header_that_contradicts_the_printed_busbw_is_reported_with_the_implied_ranks():
    # 144 device lines, but busbw / algbw = 810.41 / 408.40 = 1.98435 = 2 (n - 1) / n for n = 128.
    texts = [str(w) for w in read(DATA / "coreweave_gb200_2racks.log").warnings]
    assert any("implies 128 ranks" in text for text in texts)


def test_sizes_beyond_the_headers_limit_are_reported():
    texts = [str(w) for w in read(DATA / "coreweave_h100_mpi_readme.log").warnings]
    assert any("above the header's maxBytes 2147483648" in text for text in texts)
    assert any("lines 2, 6" in text and "left out" in text for text in texts)


def test_first_definition_of_algbw_is_recognised():
    log = read(DATA / "vega_4gpu_all_gather_2020.log")
    assert any("(n − 1) / n of the size" in str(w) for w in log.warnings)
    half = log.tables[0].rows[0].out_of_place
    assert half.algbw_Bps == pytest.approx(2**25 / 11835e-6)
    assert half.busbw_Bps == pytest.approx(2**25 / 11835e-6 * 3 / 4)


def test_average_that_is_not_of_the_rows_tells_that_rows_are_missing():
    texts = [str(w) for w in read(DATA / "aws_eks_mpirun_tagoutput.log").warnings]
    assert any("printed average" in text and "missing" in text for text in texts)


def test_row_cut_in_its_in_place_half_is_kept_and_reported():
    log = read(DATA / "derived_truncated_midline.log")
    assert any("line 38" in str(w) and "cut" in str(w) for w in log.warnings)
    assert log.tables[0].rows[-1].line == 38


def test_pieces_of_rows_are_listed_by_line():
    log = read(DATA / "odd_rank_tag_in_middle_of_rows.log")
    assert log.dropped_lines == (1, 12)
    assert any("2 dropped, lines 1, 12" in str(w) for w in log.warnings)


def test_header_without_rows_is_refused_saying_so():
    with pytest.raises(ForeignFileError, match="header of a test is here, but no row"):
        read(DATA / "odd_ray_and_mpirun_double_prefix.log")


def test_debug_log_without_table_is_refused_naming_what_it_is():
    with pytest.raises(ForeignFileError, match="NCCL's debug log"):
        read(DATA / "nccl_debug_2.4.log")
