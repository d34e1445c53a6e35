"""``collsim compare`` and ``check`` from the outside: text, files, exit codes, bad input."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

import simulator
from simulator.cli import main
from simulator.verdict.health import limits

DATA = Path(__file__).parents[1] / "importers" / "data"
LOG = str(DATA / "superbench_nccl_allreduce.log")
ROWS = (
    "1048576 262144 float sum -1 74.78 14.02 24.54 0 76.17 13.77 24.09 0\n"
    "67108864 16777216 float sum -1 584.5 114.8 200.9 0 585.0 114.7 200.8 0\n"
)


def collsim(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["collsim", *words])
    code = 0
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_real_log_beside_its_prediction(capsys, monkeypatch, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("rows.csv", "all.json", "busbw.png")]
    code, out, _ = collsim(
        capsys,
        monkeypatch,
        *("compare", LOG, "-q", "--csv", files[0], "--json", files[1], "--plot", files[2]),
    )
    assert code == 0
    assert "set-up guessed from the log: 1 × dgx-a100-40gb" in out
    assert max(len(line) for line in out.splitlines() if "A100" not in line) <= 80
    with open(files[0], newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 32
    last = rows[-1]
    assert float(last["measured_us"]) == pytest.approx(63896)
    assert float(last["ratio"]) == pytest.approx(
        float(last["predicted_us"]) / float(last["measured_us"])
    )
    document = json.loads(Path(files[1]).read_text())
    assert document["tables"][0]["errors"][0]["name"] == "all"
    assert Path(files[2]).read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(("limit", "expected"), [("1%", 1), ("1000%", 0)])
def test_max_error_sets_the_exit_code(
    capsys, monkeypatch, tmp_path: Path, limit: str, expected: int
) -> None:
    log = tmp_path / "x.log"
    log.write_text(ROWS.replace("584.5 114.8 200.9", "1169 57.4 100.5"))
    code, _, err = collsim(
        capsys,
        monkeypatch,
        *("compare", str(log), "--node", "dgx-a100-40gb", "-q", "--max-error", limit),
    )
    assert code == expected
    assert ("is beyond" in err) == bool(expected)


@pytest.mark.parametrize("command", ["compare", "check"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\x00\x01\x02\xff" * 500, ""),
        (b"Hello, this is not a log.\n", "no table"),
        (b"1048576 262144 float sum -1 74.", ""),
    ],
    ids=["empty", "binary", "another tool", "cut"],
)
def test_what_is_no_log_is_exit_code_2(
    capsys, monkeypatch, tmp_path: Path, command: str, content: bytes, words: str
) -> None:
    log = tmp_path / "bad.log"
    log.write_bytes(content)
    code, _, err = collsim(capsys, monkeypatch, command, str(log), "--node", "dgx-a100-40gb")
    assert code == 2
    assert "bad.log" in err
    assert words in err


@pytest.mark.parametrize("command", ["compare", "check"])
def test_nothing_to_guess_from_is_refused_with_a_hint(
    capsys, monkeypatch, tmp_path: Path, command: str
) -> None:
    log = tmp_path / "bare.log"
    log.write_text(ROWS)
    code, _, err = collsim(capsys, monkeypatch, command, str(log))
    assert code == 2
    assert f"{log}:1: the set-up cannot be guessed: no GPU is named" in err
    assert "--node" in err


@pytest.mark.parametrize("command", ["compare", "check"])
def test_ranks_against_the_set_up_are_refused(
    capsys, monkeypatch, tmp_path: Path, command: str
) -> None:
    log = tmp_path / "eight.log"
    log.write_text(ROWS)
    code, _, err = collsim(
        capsys, monkeypatch, command, str(log), "--node", "dgx-a100-40gb", "--nodes", "3"
    )
    assert code == 2
    assert "the log has 8 ranks" in err
    assert "24 GPUs" in err


def test_dirt_is_read_or_warned_of_with_its_line(capsys, monkeypatch, tmp_path: Path) -> None:
    log = tmp_path / "dirty.log"
    negative = "2097152 524288 float sum -1 -5.00 0.00 0.00 0 -5.00 0.00 0.00 0\n"
    log.write_bytes(("\x1b[32m" + (ROWS + negative).replace("\n", "\x1b[0m\r\n")).encode())
    code, out, err = collsim(
        capsys, monkeypatch, "compare", str(log), "--node", "dgx-a100-40gb", "-q"
    )
    assert code == 0
    assert "64 MiB" in out
    assert "dirty.log:" in err or "line 3" in err


def test_a_scenario_file_gives_the_set_up(capsys, monkeypatch, tmp_path: Path) -> None:
    log, scenario = tmp_path / "x.log", tmp_path / "node.yaml"
    log.write_text(ROWS)
    scenario.write_text(
        "schema_version: 1\nnode: dgx-a100-40gb\ncollective: {op: all_reduce, size: 1 MiB}\n"
    )
    code, out, _ = collsim(
        capsys, monkeypatch, "compare", str(log), "--scenario", str(scenario), "-q"
    )
    assert code == 0
    assert "64 MiB" in out


def test_a_healthy_log_is_exit_code_0(capsys, monkeypatch) -> None:
    code, out, _ = collsim(capsys, monkeypatch, "check", LOG, "-q")
    assert code == 0
    assert "verdict: healthy" in out
    assert "likely causes" not in out
    assert "node0.gpu0->node0.nvswitch0" in out


@pytest.mark.parametrize("expected", [3, 4])
def test_slow_logs_have_their_own_exit_codes(
    capsys, monkeypatch, tmp_path: Path, expected: int
) -> None:
    # Halfway between the limits of large sizes, or twice as slow as the upper one.
    rule = limits()[">=256M node nvswitch"]
    slowness = (rule.suspicious + rule.sick) / 2 if expected == 3 else 2 * rule.sick
    log, report = tmp_path / "slow.log", tmp_path / "report.json"
    made = simulator.run(
        node="dgx-a100-40gb",
        collective={"op": "all_reduce", "sizes": ["256 MiB", "512 MiB", "1 GiB"]},
    )
    rows = []
    for row in made.rows:
        time_us = row.time_s * 1e6 * (1 + row.uncertainty_s / row.time_s) ** slowness
        algbw = row.size_bytes / time_us / 1e3
        half = f"{time_us:.1f} {algbw:.2f} {algbw * 1.75:.2f} 0"
        rows.append(f"{row.size_bytes} {row.count} float sum -1 {half} {half}\n")
    log.write_text("".join(rows))
    code, out, _ = collsim(
        capsys,
        monkeypatch,
        *("check", str(log), "--node", "dgx-a100-40gb", "-q", "--json", str(report)),
    )
    assert code == expected
    assert "likely causes" in out
    document = json.loads(report.read_text())["machines"][0]
    assert document["exit_code"] == expected
    assert document["tried"]


def test_brief_is_one_line_and_json_can_go_to_standard_output(capsys, monkeypatch) -> None:
    code, out, _ = collsim(capsys, monkeypatch, "check", LOG, "-q", "--brief")
    assert code == 0
    assert out.count("\n") == 1
    assert out.startswith("healthy: 1 × dgx-a100-40gb")
    code, out, _ = collsim(capsys, monkeypatch, "check", LOG, "-q", "--json", "-")
    document = json.loads(out)
    assert (document["health"], document["exit_code"], code) == ("healthy", 0, 0)
    rows = document["machines"][0]["tables"][0]["rows"]
    assert {row["verdict"] for row in rows} <= {"ok", "fast", "slow"}


def test_tables_of_one_machine_are_judged_together(capsys, monkeypatch, tmp_path: Path) -> None:
    # Two collectives of eight A100, both at an eighth of their bandwidth.
    logs = []
    for name, factor in (("all_reduce", 1.75), ("all_gather", 0.875)):
        rows = [f"# Collective test starting: {name}_perf\n"]
        for size in (1 << 26, 1 << 28, 1 << 30):
            time_us = size / 17e9 * 1e6
            count = size // 4 // (8 if name == "all_gather" else 1)
            half = f"{time_us:.1f} {size / time_us / 1e3:.2f} {size / time_us / 1e3 * factor:.2f} 0"
            redop = "sum" if name == "all_reduce" else "none"
            rows.append(f"{size} {count} float {redop} -1 {half} {half}\n")
        logs.append(tmp_path / f"{name}.log")
        logs[-1].write_text("".join(rows))
    report = tmp_path / "report.json"
    code, out, _ = collsim(
        capsys,
        monkeypatch,
        *("check", *map(str, logs), "--node", "dgx-a100-40gb", "-q", "--json", str(report)),
    )
    assert code == 4
    assert "verdict on the machine, 2 tables: sick" in out
    assert out.count("likely causes") == 1
    (machine,) = json.loads(report.read_text())["machines"]
    assert [table["collective"] for table in machine["tables"]] == ["all_reduce", "all_gather"]


def test_two_nodes_show_what_their_nics_send(capsys, monkeypatch, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    log = str(DATA / "aws_efa_eks_p4d_excerpt.log")
    code, out, _ = collsim(capsys, monkeypatch, "compare", log, "-q", "--csv", str(table))
    assert code == 0
    assert "algbw" in out
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    last = rows[-1]
    size, time_s = int(last["size_bytes"]), float(last["measured_us"]) * 1e-6
    assert float(last["measured_algbw_GBps"]) == pytest.approx(size / time_s / 1e9)
    # Four NICs carry at least what two nodes must exchange, S per node, and less than their rate.
    assert 0.999 * size / time_s / 1e9 / 4 <= float(last["measured_nic_GBps"]) <= 12.5


def test_the_load_of_a_nic_is_payload(capsys, monkeypatch, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    log = str(DATA / "coreweave_h100_mpi_readme.log")
    words = ("compare", log, "--node", "hgx-h100", "--nodes", "12", "-q", "--csv", str(table))
    # Of large clusters results list the busiest links alone, and those may be inside nodes.
    monkeypatch.setattr("simulator.compose.report.MOST_LINKS", 8)
    code, out, _ = collsim(capsys, monkeypatch, *words)
    assert code == 0
    assert "payload" in out
    with open(table, newline="") as file:
        last = list(csv.DictReader(file))[-1]
    # A ring over 12 nodes of 8 NICs: each node sends 2 (96 − 1) / 96 of the size, a NIC an eighth.
    assert last["algorithm"] == "ring"
    per_nic = float(last["measured_algbw_GBps"]) * 2 * 95 / 96 / 8
    assert float(last["measured_nic_GBps"]) == pytest.approx(per_nic, rel=1e-6)


@pytest.mark.parametrize("command", ["compare", "check"])
def test_a_value_that_nccl_refuses_is_a_warning(
    capsys, monkeypatch, tmp_path: Path, command: str
) -> None:
    log = tmp_path / "odd.log"
    log.write_text(
        "+ export NCCL_CROSS_NIC=1; export NCCL_NTHREADS=1024\n"
        "NCCL_BUFFSIZE=$SIZE\nNCCL version 2.3.7\n" + ROWS
    )
    words = (command, str(log), "--node", "dgx-a100-40gb", "-q")
    code, out, err = collsim(capsys, monkeypatch, *words)
    assert code in (0, 3, 4)
    assert f"{log}:1: NCCL_NTHREADS: 1024 is outside its range" in err
    assert f"{log}:2: NCCL_BUFFSIZE: the log does not tell what '$SIZE' stands for" in err
    assert "NCCL 2.3.7 is not modelled" in err
    assert "NCCL_CROSS_NIC=1 is set" in out
    assert "all_reduce on 8 GPUs: 1 × dgx-a100-40gb\n" in out
    assert "NCCL_NTHREADS" not in out
    # What the user says himself is checked as ever.
    code, _, err = collsim(capsys, monkeypatch, *words, "--set", "env.NCCL_NTHREADS=1024")
    assert code == 2
    assert "NCCL_NTHREADS" in err


def test_a_measured_link_names_or_rules_out_causes(capsys, monkeypatch, tmp_path: Path) -> None:
    log, link = tmp_path / "slow.log", tmp_path / "ib_write_bw.log"
    rows = []
    for size in (1 << 26, 1 << 28, 1 << 30):  # busbw 60 of some 190 GB/s on two nodes
        time_us = size * 1.875 / 60e9 * 1e6
        half = f"{time_us:.1f} {size / time_us / 1e3:.2f} 60.00 0"
        rows.append(f"{size} {size // 4} float sum -1 {half} {half}\n")
    log.write_text("".join(rows))
    text = "RDMA_Write BW Test\n #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate\n"
    tried = {}
    for gbits in (196.0, 61.0):
        link.write_text(text + f" 65536 5000 {gbits:.2f} {gbits:.2f} 0.37\n")
        report = tmp_path / f"{gbits}.json"
        words = ("--node", "dgx-a100-80gb", "-q", "--link", str(link), "--json", str(report))
        code, _, _ = collsim(capsys, monkeypatch, "check", str(log), *words)
        assert code == 4
        (machine,) = json.loads(report.read_text())["machines"]
        tried[gbits] = machine
    assert "nic_shared" not in tried[196.0]["tried"]
    first = tried[61.0]["causes"][0]
    assert "nic_shared" in (first["name"], *first["alike"])
    assert any("RDMA_Write" in text for text in first["said"])


@pytest.mark.parametrize(
    ("words", "option", "first"),
    [
        (("compare", LOG, "-q"), "--json", "{"),
        (("compare", LOG, "-q"), "--csv", "file,line,collective"),
        (("check", LOG, "-q"), "--json", "{"),
        (
            ("bench", "all_reduce", "--node", "dgx-h100", "-b", "1M", "-e", "1M", "-q"),
            "--json",
            "{",
        ),
        (
            ("bench", "all_reduce", "--node", "dgx-h100", "-b", "1M", "-e", "1M", "-q"),
            "--csv",
            "variant,",
        ),
        (
            ("bench", "all_reduce", "--node", "dgx-h100", "-b", "1M", "-e", "1M", "-q"),
            "--markdown",
            "## ",
        ),
    ],
)
def test_a_dash_is_standard_output_and_takes_it_alone(
    capsys, monkeypatch, tmp_path: Path, words: tuple[str, ...], option: str, first: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = collsim(capsys, monkeypatch, *words, option, "-")
    assert code == 0
    assert out.startswith(first)
    if option == "--json":
        json.loads(out)
    assert "wrote" not in err
    assert not list(tmp_path.iterdir())


def test_two_documents_for_standard_output_are_refused(capsys, monkeypatch) -> None:
    code, _, err = collsim(capsys, monkeypatch, "compare", LOG, "-q", "--csv", "-", "--json", "-")
    assert code == 2
    assert "several documents for standard output" in err


@pytest.mark.parametrize("command", ["compare", "check"])
def test_a_table_that_collsim_does_not_know_is_left_out(
    capsys, monkeypatch, tmp_path: Path, command: str
) -> None:
    log = tmp_path / "three.log"
    strange = (
        "# Collective test starting: hypercube_perf\n"
        "1048576 32768 float none -1 74.78 14.02 12.27 0 76.17 13.77 12.05 0\n"
        "# Collective test starting: all_reduce_perf\n"
        "1048576 524288 f4e2m1 sum -1 74.78 14.02 24.54 0 76.17 13.77 24.09 0\n"
    )
    words = (command, str(log), "--node", "dgx-a100-40gb", "-q")
    log.write_text(strange + "# Collective test starting: all_reduce_perf\n" + ROWS)
    code, out, err = collsim(capsys, monkeypatch, *words)
    assert code in (0, 3, 4)
    assert f"{log}:2: unknown collective 'hypercube': this table is left out" in err
    assert f"{log}:4: " in err
    assert "f4e2m1" in err
    assert out.count("all_reduce on 8 GPUs") == 1
    log.write_text(strange)
    code, _, err = collsim(capsys, monkeypatch, *words)
    assert code == 2
    assert f"{log}:2: unknown collective 'hypercube'" in err


def test_a_collective_that_fits_as_well_can_be_given(capsys, monkeypatch) -> None:
    log = str(DATA / "derived_two_tests_concatenated.log")
    code, out, _ = collsim(capsys, monkeypatch, "compare", log, "-q", "--collective", "alltoall")
    assert code == 0
    # The first table's columns are those of all_reduce alone.
    assert "all_reduce on 8 GPUs" in out
    assert "all_to_all on 8 GPUs" in out
    assert "all_gather" not in out


@pytest.mark.parametrize("command", ["compare", "check"])
def test_ranks_that_the_bandwidths_rule_out_are_refused(capsys, monkeypatch, command: str) -> None:
    # No header, and busbw / algbw allows 40 to 48 ranks.
    log = str(DATA / "odd_mpirun_timestamp_output.log")
    code, _, err = collsim(capsys, monkeypatch, command, log, "--node", "hgx-h100", "-q")
    assert code == 2
    assert "the log has 40 to 48 ranks (busbw / algbw)" in err
    words = (command, log, "--node", "hgx-h100", "--nodes", "6", "-q")
    code, out, _ = collsim(capsys, monkeypatch, *words)
    assert code != 2
    assert "on 48 GPUs" in out
