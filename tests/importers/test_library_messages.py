"""What NCCL's own messages say of its paths reaches the table, without secrets."""

from __future__ import annotations

import pytest

from simulator.importers.nccl_tests import read
from simulator.verdict.guess import with_observed
from simulator.verdict.setup import SetUp

ROWS = (
    "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 67108864 step: 64(factor)\n"
    "#  Rank  0 Group  0 Pid   1 on  node-a device  0 [0x0f] NVIDIA H100 80GB HBM3\n"
    "#  Rank  1 Group  0 Pid   1 on  node-b device  0 [0x0f] NVIDIA H100 80GB HBM3\n"
    "1048576 262144 float sum -1 74.78 14.02 14.02 0 76.17 13.77 13.77 0\n"
    "67108864 16777216 float sum -1 584.5 114.8 114.8 0 585.0 114.7 114.7 0\n"
)


def table_with(*messages: str):
    lines = [f"node-a:77:78 [0] NCCL {text}\n" for text in messages]
    return read("".join(lines) + ROWS).tables[0]


def test_the_devices_that_nccl_lists_are_counted() -> None:
    two = "INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB eth0:10.0.0.1<0>"
    assert table_with(two).n_nics == 2
    assert table_with("INFO NET/OFI Selected provider is efa, fabric is efa (found 32 nics)").n_nics
    # Interfaces of sockets are no sign of the ports that the data takes.
    assert table_with("INFO NET/Socket : Using [0]eth0:10.0.0.1<0>").n_nics is None
    assert table_with().n_nics is None


def test_messages_about_paths_are_kept_and_others_are_not() -> None:
    table = table_with(
        "INFO GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
        "INFO Bootstrap : Using eth0:10.0.0.1<0>",
        "INFO Could not enable P2P between dev 1(=1b000) and dev 0(=1a000)",
        "INFO Using network Socket",
    )
    assert len(table.messages) == 3
    assert table.messages[0].startswith("GPU Direct RDMA Disabled")
    said = with_observed(SetUp(words={"node": "hgx-h100"}), table).evidence
    assert any("Could not enable P2P" in text for text in said)


def test_the_line_of_nccls_source_is_no_part_of_a_warning() -> None:
    text = "node-a:77:78 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n"
    row = ROWS.splitlines()[-2]
    log = read(text + ROWS.replace(row, f"{row[:30]}{text}{row[30:]}"))
    assert log.tables[0].messages == ("NCCL WARN Failed to open libibverbs.so[.1]",)
    assert len(log.tables[0].rows) == 2


def test_warnings_are_kept_without_addresses_and_folders() -> None:
    table = table_with(
        "WARN Call to connect to 10.1.2.3<40161> failed : Connection refused",
        "WARN Cuda failure 'no device' in /home/me/nccl/src/init.cc:12",
    )
    assert "10.1.2.3" not in table.messages[0]
    assert "/home/me" not in table.messages[1]
    assert all(text.startswith("NCCL WARN") for text in table.messages)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+ export NCCL_A=1; mpirun -x NCCL_B=Ring -np 8", {"NCCL_A": "1", "NCCL_B": "Ring"}),
        ("env: NCCL_A=1: TCP sockets instead", {"NCCL_A": "1"}),
        ("with NCCL_A=1, NCCL_B=256.", {"NCCL_A": "1", "NCCL_B": "256"}),
        (
            "srun --export=ALL,NCCL_A=Ring,Tree,NCCL_B=LL,C=3 x",
            {"NCCL_A": "Ring,Tree", "NCCL_B": "LL"},
        ),
        ("bash -c 'NCCL_A=mlx5_0:1,mlx5_1:1 x'", {"NCCL_A": "mlx5_0:1,mlx5_1:1"}),
        ('declare -x NCCL_A="=mlx5_0,mlx5_1"', {"NCCL_A": "=mlx5_0,mlx5_1"}),
        ("(NCCL_A=1) `NCCL_B=2`", {"NCCL_A": "1", "NCCL_B": "2"}),
        ("NCCL_A=1&&NCCL_B=2>log", {"NCCL_A": "1", "NCCL_B": "2"}),
        ('"NCCL_A=1", "NCCL_B=2"', {"NCCL_A": "1", "NCCL_B": "2"}),
        ("NCCL_A=allreduce:ring;allgather:tree", {"NCCL_A": "allreduce:ring;allgather:tree"}),
    ],
)
def test_assignments_end_where_a_shells_words_end(text: str, expected: dict[str, str]) -> None:
    table = read(f"first\n{text}\n{ROWS}").tables[0]
    assert table.environment == expected
    assert table.environment_lines == dict.fromkeys(expected, 2)


@pytest.mark.parametrize(
    "head",
    [
        "node-a:77:78 [0]",
        "[2025-03-01 12:00:00] node-a:77:78 [0]",
        "[1,0]<stdout>:node-a:77:78 [0]",
        " 3: node-a:77:78 [0]",
        "10-4-3-3:77:78 [0]",
        "\x1b[1mnode-a:77:78 [0]",
        "[1,0]<stdout>:[2025-03-01 12:00:00] node-a:77:78 [0]",
    ],
)
def test_messages_are_read_behind_any_launchers_head(head: str) -> None:
    lines = [
        f"{head} NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/{n}/GDRDMA\n"
        f"{head} NCCL INFO NCCL_ALGO set by environment to Ring.\n"
        for n in range(3)
    ]
    table = read("".join(lines) + ROWS).tables[0]
    assert table.transports == {"NET/IB/GDRDMA": 3}
    assert table.environment == {"NCCL_ALGO": "Ring"}
    assert table.environment_lines == {"NCCL_ALGO": 6}


def test_a_variable_at_its_default_is_no_evidence() -> None:
    text = "NCCL_IB_DISABLE=0 NCCL_P2P_DISABLE=1 NCCL_MIN_NCHANNELS=8 NCCL_SOCKET_NTHREADS=4\n"
    set_up = with_observed(SetUp(words={"node": "hgx-h100"}), read(text + ROWS).tables[0])
    assert "env.NCCL_IB_DISABLE" not in set_up.observed
    assert not [text for text in set_up.evidence if "IB_DISABLE" in text]
    said = {"NCCL_P2P_DISABLE": '"1"', "NCCL_MIN_NCHANNELS": '"8"', "NCCL_SOCKET_NTHREADS": '"4"'}
    assert {f"env.{name}": value for name, value in said.items()} == set_up.observed


@pytest.mark.parametrize("host", ["node-a", "10-4-3-3"])
def test_a_number_glued_to_a_host_belongs_to_its_row(host: str) -> None:
    info = f"{host}:77:78 [0] NCCL INFO Launch mode Parallel\n"
    row = "1048576 262144 float sum -1 74.78 14.02 24.54 0 76.17 13.77 24.09 "
    for text in (
        f"{info}{row}\n0{info}",
        f"{info}{row}0{info}",
        f"{info}{row[:40]}7{info}{row[41:]}0",
    ):
        (found,) = read(text + "\n").tables[0].rows
        assert found.in_place is not None
        assert found.in_place.wrong == 0


def test_what_is_set_for_one_test_is_not_set_for_the_next() -> None:
    test = "mpirun -x NCCL_PROTO=LL -np 2 all_reduce_perf\n" + ROWS
    end = "# Avg bus bandwidth    : 64.1850\n"
    for close in (end, ""):
        log = read(
            "export NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1\n+ NCCL_ALGO=Ring\n"
            + test
            + close
            + "unset NCCL_IB_DISABLE\n+ NCCL_ALGO=Tree\n+ export NCCL_NET=Socket\n"
            + test.replace("-x NCCL_PROTO=LL ", "")
            + close
        )
        first, second = log.tables
        if close:
            assert first.environment == {
                "NCCL_P2P_DISABLE": "1",
                "NCCL_IB_DISABLE": "1",
                "NCCL_ALGO": "Ring",
                "NCCL_PROTO": "LL",
            }
        assert second.environment == {
            "NCCL_P2P_DISABLE": "1",
            "NCCL_ALGO": "Tree",
            "NCCL_NET": "Socket",
        }
