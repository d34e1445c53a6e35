"""What goes wrong with pasted logs: each case gives the right numbers or a clear complaint."""

import bz2
import gzip
import json
import lzma
import re
from pathlib import Path

import pytest
from nccl_table_printer import FOOTER, TITLES, header, row

from simulator.importers import ForeignFileError, nccl_tests
from simulator.importers.nccl_tests import read

DATA = Path(__file__).parent / "data"
TEXT = (DATA / "superbench_nccl_allreduce.log").read_text()
TIMES = [r.out_of_place.time_s for r in read(TEXT).tables[0].rows]
LINE = "1048576 262144 float sum -1 74.78 14.02 24.54 0 76.17 13.77 24.09 0"


def rows_only(text=TEXT):
    return [line for line in text.splitlines() if re.match(r" +\d+ +\d+ ", line)]


def warnings(log):
    return "\n".join(map(str, log.warnings))


def prefixed(prefix):
    return "\n".join(prefix + line for line in TEXT.splitlines()) + "\n"


@pytest.mark.parametrize(
    "prefix",
    [
        "0: ",
        " 0: ",
        "[1,0]<stdout>:",
        "[1,0]<stdout>: ",
        "[prterun-node1-123@1,0]<stdout>: ",
        "Thu Jul 18 15:41:05 2024<stdout>:",
        "Thu Jul 18 15:41:05 2024[1,0]<stdout>:",
        "[1,0]:",
        "(head, rank=0, pid=3808) [1,0]<stdout>:",
        "(RayWorker pid=77, ip=10.0.0.3) ",
        "[pod/nccl-test-64-launcher-lnnrw/mpi] ",
        "nccl-launcher-1  | ",
        "2024-07-18T15:41:05.123456789Z ",
        "[2024-07-18 15:41:05] ",
        "[rank0]: ",
        "[default0]:",
        "[0] ",
        "   ",
        "> ",
        "    > ",
        "\t",
        "\x1b[32m",
        "host-a: ",
    ],
)
def test_launchers_prefix_changes_nothing(prefix):
    log = read(prefixed(prefix))
    table = log.tables[0]
    assert [r.out_of_place.time_s for r in table.rows] == TIMES
    assert (table.n_ranks, table.n_nodes, table.collective) == (8, 1, "all_reduce")
    assert log.dropped_lines == ()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("  ", "\u00a0 "),
        lambda text: text.replace("  ", "\t"),
        lambda text: re.sub(r"(\d+\.\d\d)", "\x1b[1;31m\\1\x1b[0m", text),
        lambda text: "Some words.\n\n```text\n" + text + "```\nIt shows 235 GB/s (4GB and 8GB).\n",
        lambda text: "\ufeff" + text,
    ],
    ids=["crlf", "nbsp", "tabs", "colours", "markdown", "bom"],
)
def test_decoration_changes_nothing(change):
    log = read(change(TEXT).encode())
    assert [r.out_of_place.time_s for r in log.tables[0].rows] == TIMES
    assert log.dropped_lines == ()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings(tmp_path, encoding):
    path = tmp_path / "log.txt"
    path.write_bytes(TEXT.encode(encoding))
    assert [r.out_of_place.time_s for r in read(path).tables[0].rows] == TIMES


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed_files(tmp_path, pack):
    path = tmp_path / "log.packed"
    path.write_bytes(pack(TEXT.encode()))
    assert [r.out_of_place.time_s for r in read(str(path)).tables[0].rows] == TIMES


def test_cut_gzip_gives_what_is_readable_and_says_so(tmp_path):
    path = tmp_path / "log.gz"
    packed = gzip.compress(TEXT.encode(), 1)
    path.write_bytes(packed[: len(packed) * 3 // 4])
    log = read(path)
    assert 1 < len(log.tables[0].rows) < 34
    assert "damaged or cut" in warnings(log)


# ---- numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "1.048.576 262.144 float sum -1 1.162,2 0,90 1,58 0 1.162,5 0,90 1,58 0",
        "1,048,576 262,144 float sum -1 1,162.2 0.90 1.58 0 1,162.5 0.90 1.58 0",
        "1_048_576 262_144 float sum -1 1162.2 0.90 1.58 0 1162.5 0.90 1.58 0",
        "1'048'576 262'144 float sum -1 1'162.2 0.90 1.58 0 1'162.5 0.90 1.58 0",
        "1\u202f048\u202f576 262\u202f144 float sum -1 1162,2 0,90 1,58 0 1162,5 0,90 1,58 0",
        "| 1048576 | 262144 | float | sum | -1 | 1162.2 | 0.90 | 1.58 | 0 | 1162.5 | 0.90 | 1.58 "
        "| 0 |",
    ],
)
def test_number_styles(text):
    measured = read(text + "\n").tables[0].rows[0]
    assert (measured.size_bytes, measured.count) == (1048576, 262144)
    assert measured.out_of_place.time_s == pytest.approx(1162.2e-6)
    assert measured.in_place.time_s == pytest.approx(1162.5e-6)


def test_comma_before_three_digits_is_settled_by_the_printed_bandwidth():
    # 2.19 prints as many decimals as fit: 13,552 µs or 13 552 µs is told by size / time.
    short = "1048576 262144 float sum -1 13,552 77,37 135,40 0 13,552 77,37 135,40 0\n"
    long = "1048576 262144 float sum -1 13,552 0.08 0.14 0 13,552 0.08 0.14 0\n"
    assert read(short).tables[0].rows[0].out_of_place.time_s == pytest.approx(13.552e-6)
    assert read(long).tables[0].rows[0].out_of_place.time_s == pytest.approx(13552e-6)


@pytest.mark.parametrize("time", ["0.00", "-5.00", "nan", "inf"])
def test_impossible_time_is_listed_but_not_used(time):
    text = f"{LINE}\n2097152 524288 float sum -1 {time} 0.00 0.00 0 96.10 21.82 38.19 0\n"
    log = read(text)
    table = log.tables[0]
    assert len(table.rows) == 2
    assert not table.rows[1].out_of_place.usable
    assert table.rows[1].out_of_place.algbw_Bps is None
    assert [r.size_bytes for r in table.usable_rows()] == [1048576]
    assert [r.size_bytes for r in table.usable_rows(in_place=True)] == [1048576, 2097152]
    assert "line 2: a time is not greater than zero" in warnings(log)


def test_half_that_was_not_measured_is_none():
    text = "1048576 262144 float sum -1 N/A N/A N/A N/A 76.17 13.77 24.09 0\n"
    log = read(text)
    measured = log.tables[0].rows[0]
    assert measured.out_of_place is None
    assert measured.in_place.time_s == pytest.approx(76.17e-6)
    assert "greater than zero" not in warnings(log)


def test_row_without_any_time_is_dropped_and_reported():
    log = read(f"{LINE}\n2097152 524288 float sum -1 N/A N/A N/A N/A N/A N/A N/A N/A\n")
    assert log.dropped_lines == (2,)
    assert "line 2: the row has no time" in warnings(log)


def test_wrong_results_are_reported():
    log = read(LINE.replace("24.54 0", "24.54 17") + "\n")
    assert log.tables[0].rows[0].out_of_place.wrong == 17
    assert "wrong results" in warnings(log)


def test_printed_algbw_that_is_not_size_over_time_is_reported():
    log = read(LINE.replace("14.02", "28.04") + "\n")
    assert "line 1: the printed algbw is not size / time" in warnings(log)
    # The recomputed one is used: 1 MiB / 74.78 µs.
    assert log.tables[0].rows[0].out_of_place.algbw_Bps == pytest.approx(1048576 / 74.78e-6)


def test_busbw_of_another_rank_count_is_reported_with_that_count():
    text = header(16) + row(2**28, 2**26, "float", "sum", -1, [(2000.0, 0), (2000.0, 0)], 1.75)
    text += FOOTER.format(average=2**28 / 2000.0 / 1e3 * 1.75)
    assert "implies 8 ranks" in warnings(read(text))
    assert read(text).tables[0].n_ranks == 16


def test_rank_count_that_the_command_line_contradicts_is_reported():
    text = "mpirun -np 32 -x NCCL_ALGO=Ring ./build/all_reduce_perf -b 8 -e 8G -f 2 -g 1\n"
    text += header(16) + row(2**28, 2**26, "float", "sum", -1, [(2000.0, 0), (2000.0, 0)], 1.875)
    log = read(text)
    assert "the device lines say 16 ranks, the command line 32" in warnings(log)
    assert log.tables[0].environment == {"NCCL_ALGO": "Ring"}
    assert (log.tables[0].n_ranks, log.tables[0].n_nodes) == (16, 2)


def test_rank_count_of_a_command_over_several_lines():
    text = "$ mpirun -v \\\n  -np 16 \\\n  -x NCCL_PROTO=LL128 \\\n  ./all_reduce_perf -b 8 -g 1\n"
    table = read(text + LINE + "\n").tables[0]
    assert (table.n_ranks, table.n_ranks_from) == (16, "command line")
    assert table.environment == {"NCCL_PROTO": "LL128"}


def test_missing_rank_count_follows_from_busbw_and_is_a_warning():
    log = read("268435456 67108864 float sum -1 2112.2 127.09 222.40 0 2111.8 127.11 222.45 0\n")
    assert (log.tables[0].n_ranks, log.tables[0].n_ranks_from) == (8, "busbw")
    assert "no rank count in the log; busbw / algbw implies 8 ranks" in warnings(log)


# ---- interleaving, tables ---------------------------------------------------------------------

INFO = "host-b:77:78 [5] NCCL INFO Launch mode Parallel"


@pytest.mark.parametrize("place", range(1, 100, 3))
def test_info_line_anywhere_inside_a_row(place):
    lines = rows_only()
    whole = lines[20]
    if place >= len(whole):
        pytest.skip("past the end of the row")
    cut = [f"{INFO}", *lines[18:20], whole[:place] + INFO, whole[place:], *lines[21:23]]
    log = read("\n".join(cut) + "\n")
    expected = [r.out_of_place.time_s for r in read("\n".join(lines[18:23]) + "\n").tables[0].rows]
    assert [r.out_of_place.time_s for r in log.tables[0].rows] == expected
    assert log.dropped_lines == ()


def test_row_in_three_pieces_with_lines_between():
    text = f"1048576 262144 float sum -1{INFO}\n{INFO}\n   74.78 14.02 24.54 0{INFO}\n"
    text += "   76.17 13.77 24.09 0\n" + LINE.replace("1048576 262144", "2097152 524288") + "\n"
    rows = read(text).tables[0].rows
    assert [r.size_bytes for r in rows] == [1048576, 2097152]
    assert rows[0].in_place.time_s == pytest.approx(76.17e-6)


def test_changing_type_operation_and_root_make_tables():
    lines = []
    for dtype, size in (("float", 4), ("half", 2)):
        for root in (0, 1):
            lines += [
                row(n * size, n, dtype, "none", root, [(50.0, 0), (51.0, 0)], 1.0)
                for n in (1 << 20, 1 << 21)
            ]
    text = header(8) + "".join(lines)
    tables = read("./broadcast_perf -r all -d all\n" + text).tables
    assert [(t.dtype, t.root, len(t.rows)) for t in tables] == [
        ("float", 0, 2),
        ("float", 1, 2),
        ("half", 0, 2),
        ("half", 1, 2),
    ]
    assert {t.collective for t in tables} == {"broadcast"}


def test_repeated_sweep_is_another_table():
    text = "\n".join(rows_only() * 2) + "\n"
    assert [len(table.rows) for table in read(text).tables] == [34, 34]


def test_processes_that_ran_alone_are_reported():
    one = header(1, name="NVIDIA A100")
    body = "".join(
        row(1024 * k, 256 * k, "float", "sum", -1, [(9.0, 0)] * 2, 0.0) * 2 for k in (1, 2)
    )
    text = one.replace(TITLES, "") * 2 + TITLES + body
    assert "2 processes ran a test of their own" in warnings(read(text))


def test_tagged_processes_that_ran_alone_are_separate_tables():
    texts = []
    for tag in (0, 1):
        body = header(1) + row(1024, 256, "float", "sum", -1, [(9.0 + tag, 0)] * 2, 0.0)
        texts.append([f"[1,{tag}]<stdout>:{line}" for line in body.splitlines()])
    mixed = [line for pair in zip(*texts, strict=True) for line in pair]
    log = read("\n".join(mixed) + "\n")
    assert sorted(t.rows[0].out_of_place.time_s for t in log.tables) == pytest.approx([9e-6, 10e-6])
    assert "2 processes printed tables of their own" in warnings(log)


def test_columns_of_option_I_are_read():
    titles = (
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
        "    i_min    i_max    i_p99   i_cv%     time   algbw   busbw  #wrong    i_min    i_max"
        "    i_p99   i_cv%\n"
    )
    text = titles + (
        "1048576 262144 float sum -1 74.78 14.02 24.54 0 70.00 80.00 79.00 3.2 "
        "76.17 13.77 24.09 0 71.00 81.00 80.00 3.1 2026-07-09 16:03:21\n"
    )
    measured = read(text).tables[0].rows[0]
    assert measured.out_of_place.quantiles_s == pytest.approx((70e-6, 80e-6, 79e-6))
    assert measured.in_place.time_s == pytest.approx(76.17e-6)


def test_cpu_time_column_is_marked():
    text = TITLES.replace("    time", " cputime") + LINE + "\n"
    assert read(text).tables[0].cpu_time


def test_program_name_that_the_columns_refute_is_a_warning():
    log = read("./build/all_gather_perf -b 8\n" + "\n".join(rows_only()) + "\n")
    assert log.tables[0].collective == "all_reduce"
    assert "the command line says all_gather, but the columns fit all_reduce" in warnings(log)


def test_secrets_and_addresses_never_reach_the_record():
    text = (
        "mpirun -np 8 -x NCCL_COMM_ID=10.1.2.3:4000 -x NCCL_AUTH_TOKEN=abcdef "
        "-x NCCL_SOCKET_IFNAME=eth0 -x NCCL_TOPO_FILE=/home/someone/topo.xml ./all_reduce_perf\n"
        "n1:1:2 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_0,mlx5_1.\n"
    )
    assert read(text + LINE + "\n").tables[0].environment == {
        "NCCL_COMM_ID": "<address>",
        "NCCL_IB_HCA": "mlx5_0,mlx5_1",
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_TOPO_FILE": "topo.xml",
    }


# ---- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\n\n  \n", "no table"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "screenshot"),
        (b"\x7fELF" + bytes(range(256)) * 4, "ELF"),
        (bytes(range(256)) * 40, "binary"),
        (b"PK\x03\x04abc", "zip"),
        (b"\tGPU0\tGPU1\nGPU0\t X \tNV12\nGPU1\tNV12\t X \n", "nvidia-smi topo"),
        (b"nvbandwidth Version: v0.6\n0 369.36 269.33\n", "nvbandwidth"),
        (b"                    RDMA_Write BW Test\n 2 1000 3.4 3.3 1.6\n", "perftest"),
        (b"| payload |    busbw   |    algbw   |\n|   32KiB |   0.92GBps |\n", "all_reduce_bench"),
        (b'{"schemaVersion": 1, "traceEvents": [{"ph": "X"}]}', "profiler trace"),
        (b'{"zero_optimization": {"stage": 3}}', "DeepSpeed configuration"),
        (b"srun: error: node1: task 3: Exited with exit code 1\n", "launcher"),
        (b"Dear all, the busbw was 300 GB/s.\n", "no table"),
    ],
)
def test_other_files_are_refused_saying_what_they_are(tmp_path, content, words):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ForeignFileError, match=words) as caught:
        read(path)
    assert caught.value.problems[0].file == str(path)


def test_missing_file_and_folder_are_refused(tmp_path):
    with pytest.raises(ForeignFileError, match="no such file"):
        read(tmp_path / "none.log")
    with pytest.raises(ForeignFileError, match="directory"):
        read(tmp_path)


def test_rows_beyond_the_limit_are_counted_with_their_lines(monkeypatch):
    monkeypatch.setattr(nccl_tests, "MAX_ROWS", 10)
    log = read("\n".join(rows_only()) + "\n")
    assert sum(len(table.rows) for table in log.tables) == 10
    assert "24 rows beyond the first 10 were not kept, lines 11 to 34" in warnings(log)


def test_overlong_line_is_skipped(tmp_path):
    path = tmp_path / "long.log"
    path.write_text("x" * 3_000_000 + "\n" + LINE + "\n")
    rows = read(path).tables[0].rows
    assert [r.line for r in rows] == [2]


# ---- JSON -------------------------------------------------------------------------------------


def test_cut_json_keeps_the_complete_results():
    text = (DATA / "derived_J_output.json").read_text()
    place = text.index('"size": 4194304')
    log = read(text[:place] + "\n")
    assert len(log.tables[0].rows) == 22
    assert "the run was cut" in warnings(log)


def test_json_of_version_3_with_strings_for_booleans_and_iterations(tmp_path):
    half = {"time": 74.78, "alg_bw": 14.02, "bus_bw": 24.54, "nwrong": "nan"}
    document = {
        "version": 3,
        "args": ["/opt/build/all_gather_perf"],
        "env": ["NCCL_ALGO=Ring", "HF_TOKEN=secret", "NCCL_COMM_ID=10.0.0.1:99"],
        "nccl_version": 22807,
        "config": {"iterations": 20, "blocking_collectives": "false"},
        "devices": [
            {"rank": r, "group": 0, "hostname": "n0", "device": r, "device_info": "NVIDIA B200"}
            for r in range(4)
        ],
        "results": [
            {
                **{"size": 1048576, "count": 65536, "type": "float", "redop": "none"},
                **{"root": "    -1", "out_of_place": half, "in_place": None},
                "out_of_place_per_iter": {"min_us": 70.0, "max_us": 80.0, "p99_us": 79.0},
            },
            {"size": 5, "type": "float"},
        ],
        "average_bus_bandwidth": {"bandwidth": 24.54, "okay": "unchecked"},
    }
    path = tmp_path / "out.json"
    path.write_text(json.dumps(document))
    log = read(path)
    table = log.tables[0]
    assert (table.collective, table.n_ranks, table.nccl_version) == ("all_gather", 4, "2.28.7")
    assert table.environment == {"NCCL_ALGO": "Ring", "NCCL_COMM_ID": "<address>"}
    assert table.rows[0].out_of_place.quantiles_s == pytest.approx((70e-6, 80e-6, 79e-6))
    assert table.rows[0].in_place is None
    assert "1 dropped" in warnings(log)
