"""Bad words and bad files: exit code, one clear message on stderr, nothing on stdout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = "schema_version: 1\nnode: dgx-h100\ncollective: {op: all_reduce, size: 1 MiB}\n"
SIZE = ("-b", "1M", "-e", "1M", "-q")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return path


# -- words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        # Misspelt names show the nearest.
        (["all_reduc"], "unknown collective 'all_reduc'"),
        (["all_reduc"], "Did you mean 'all_reduce'?"),
        (["all_reduce", "--node", "dgx-h10"], "Did you mean 'dgx-h100'?"),
        (["all_reduce", "-a", "rign"], "Did you mean 'ring'?"),
        (["all_reduce", "-p", "LL12"], "Did you mean 'LL128'?"),
        (["all_reduce", "-N", "2", "--fabric", "leafspine"], "Did you mean 'leaf_spine'?"),
        (["all_reduce", "--profile", "ncl"], "Did you mean 'nccl'?"),
        (["all_reduce", "-d", "flaot"], "Did you mean 'float'?"),
        (["all_reduce", "-o", "sun"], "Did you mean 'sum'?"),
        # Unknown keys.
        (["all_reduce", "--set", "colective.size=1M"], "Did you mean 'collective'?"),
        (["all_reduce", "--set", "collective.chanels=2"], "Did you mean 'channels'?"),
        (["all_reduce", "--set", "engine.level"], "'engine.level' sets nothing"),
        (["all_reduce", "--set", "=3"], "sets nothing"),
        # Units.
        (["all_reduce", "--set", "node.nic_rate=400"], "'400' has no unit"),
        (["all_reduce", "--set", "node.nic_rate=400 gbps"], "'Gbps' (bits), 'GBps' (bytes)"),
        (["all_reduce", "--set", "node.nic_rate=0 Gbps"], "not greater than zero"),
        (["all_reduce", "--set", "node.nic_rate=-1 Gbps"], "not greater than zero"),
        (["all_reduce", "--set", "node.nic_rate=inf Gbps"], "not finite"),
        (["all_reduce", "--set", "node.nic_latency=5"], "has no unit"),
        (["all_reduce", "--set", "perturb.skew=-1 us"], "is negative"),
        # Sizes.
        (["all_reduce", "-b", "nan"], "not finite"),
        (["all_reduce", "-e", "inf"], "not finite"),
        (["all_reduce", "-b", "-1K"], "is negative"),
        (["all_reduce", "-b", "0"], "give a step"),
        (["all_reduce", "-b", "1X"], "unknown unit 'X'"),
        (["all_reduce", "-b", "2M", "-e", "1M"], "sizes"),
        (["all_reduce", "-b", "3", "-e", "3"], "not a whole number of float elements"),
        (["all_reduce", "-f", "1"], "not greater than 1"),
        (["all_reduce", "-f", "nan"], "finite"),
        (["all_reduce", "-i", "0"], "sizes"),
        # Counts.
        (["all_reduce", "-N", "0"], "0 is too small"),
        (["all_reduce", "-N", "-2"], "negative"),
        (["all_reduce", "-N", "1.5"], "whole number"),
        (["all_reduce", "-N", "nan"], "not a whole number"),
        (["all_reduce", "-N", "inf"], "not a whole number"),
        (["all_reduce", "--channels", "0"], "0 is too small\n  allowed: 1 … 128"),
        (["all_reduce", "--channels", "100000"], "100000 is too large\n  allowed: 1 … 128"),
        (["all_reduce", "--channels", "33"], "version of NCCL has\n  allowed: 1 … 32"),
        (
            ["all_reduce", "--channels", "65", "--set", "costs.version=2.26"],
            "version of NCCL has\n  allowed: 1 … 64",
        ),
        (["all_reduce", "-b", "-1"], "'-1 B' is negative"),
        (["all_reduce", "-b", "1.5"], "'1.5 B' is not a whole number of bytes"),
        (["all_reduce", "-i", "-8"], "'-8 B' is "),
        # Rates, spreads and factors beyond all reason.
        (["all_reduce", "--set", "node.nic_rate=1e299 GB/s"], "1e299 GB/s is too large"),
        (["all_reduce", "--set", "node.nic_rate=1e-300 GB/s"], "1e-300 GB/s is too small"),
        (["all_reduce", "--set", "perturb.jitter.sigma=1e9"], "1e9 is too large\n  allowed: ≤ 10"),
        # Durations beyond all reason.
        (
            ["all_reduce", "--set", "perturb.late=[{ranks: 1, by: 1e300 s}]"],
            "1e300 s is too large\n  allowed: ≤ 864000 s",
        ),
        (
            ["all_reduce", "--set", "perturb.links=[{link: node0.nic0->*, down: yes, at: 1e9 h}]"],
            "1e9 h is too large",
        ),
        (["all_reduce", "--set", "perturb.skew=1e30 s"], "1e30 s is too large"),
        (["all_reduce", "--set", "costs.overrides.launch.time=1e300 s"], "too large"),
        # More ranks than GPUs; roots that are not there.
        (["all_reduce", "-g", "9"], "9 GPUs are more than dgx-h100 has"),
        (["all_reduce", "--set", "collective.ranks=0-8"], "rank 8 is outside the cluster"),
        (["broadcast", "-r", "8"], "root 8 is outside the group of 8 ranks"),
        (["broadcast", "-r", "-1"], "negative"),
        (["broadcast", "-g", "1", "-r", "1"], "root 1 is outside the group of 1 rank"),
        # Hardware and networks that do not fit.
        (["all_reduce", "--node", "pcie-l40s-4", "-a", "nvls"], "NVSwitches that reduce"),
        (["all_reduce", "-a", "nvls_tree", "--profile", "ideal"], "two nodes or more"),
        (["all_reduce", "-N", "2", "--fabric", "none"], "2 pieces"),
    ],
)
def test_bench_refuses(collsim, words: list[str], told: str):
    given = {word for word in words if word.startswith("-")}
    default = [] if given & {"-b", "-e", "-i", "-f"} else list(SIZE)
    done = collsim("bench", *words, *default)
    assert done.code == 2
    assert done.out == ""
    assert told in done.err


def test_a_factor_beyond_all_sizes_leaves_the_first(collsim):
    done = collsim("bench", "all_reduce", "-b", "1M", "-f", "1e6", "--table", "summary", "-q")
    assert done.code == 0
    assert "1 MiB" in done.out
    assert "GiB" not in done.out


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "all_reduce", "--nonsense"],
        ["bench", "all_reduce", "--workers", "0"],
        ["bench", "all_reduce", "--workers", "many"],
        ["run"],
        ["topologies", "plot", "dgx-h100"],
        ["fly"],
    ],
)
def test_words_that_no_command_knows(collsim, words: list[str]):
    done = collsim(*words)
    assert done.code == 2
    assert done.out == ""
    assert "Usage: " in done.err
    assert "Error: " in done.err


def test_all_problems_at_once(collsim):
    done = collsim("bench", "all_reduce", "-N", "0", "-p", "LL3", "--set", "sead=1", *SIZE)
    assert done.code == 2
    assert len([line for line in done.err.splitlines() if line.startswith("command line: ")]) == 3


def test_every_problem_names_the_command_line_and_the_key(collsim):
    err = collsim("bench", "broadcast", "-r", "8", *SIZE).err
    assert err.startswith("command line: collective.root: ")


@pytest.mark.parametrize("algorithm", ["halving_doubling", "recursive_doubling"])
def test_odd_worlds_on_algorithms_of_powers_of_two(collsim, algorithm: str):
    # Folded into the next lower power of two, or refused: never a wrong number.
    done = collsim("bench", "all_reduce", "-g", "7", "-a", algorithm, *SIZE)
    assert (done.code == 0) == (done.err == "")
    if done.code:
        assert "power of two" in done.err


def test_one_rank_runs(collsim):
    done = collsim("bench", "all_reduce", "-g", "1", "-b", "8", "-e", "1M", "-q")
    assert (done.code, done.err) == (0, "")
    assert "Avg bus bandwidth    : 0" in done.out


def test_sizes_below_the_number_of_ranks_run(collsim):
    for collective in ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast"):
        done = collsim("bench", collective, "-d", "uint8", "-b", "1", "-e", "4", "-q")
        assert (done.code, done.err) == (0, "")


def test_explain_and_list_refuse_as_bench_does(collsim):
    for words in (["explain", "all_reduc"], ["list", "all_reduc"]):
        done = collsim(*words)
        assert (done.code, done.out) == (2, "")
        assert "Did you mean 'all_reduce'?" in done.err
    assert collsim("explain", "all_reduce", "--size", "0").code == 2
    assert collsim("explain", "all_reduce", "--size", "nan").code == 2


# -- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "show"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", ": is empty"),
        ("# only words\n", ": is empty"),
        ("a: [1\n", ":2: "),
        ("just words\n", ": "),
        (GOOD + "node: dgx-a100\n", ":4: "),
        (GOOD + "nodes_: 2\n", "Did you mean 'nodes'?"),
        (GOOD.replace("1 MiB", "1"), "'1' has no unit"),
        (GOOD.replace("1 MiB", "0 B"), "0 B is not greater than zero"),
        (GOOD.replace("size: 1 MiB", "size: 1 MiB, algorithm: rign"), "Did you mean 'ring'?"),
        (GOOD.replace("schema_version: 1", "schema_version: 99"), "schema_version"),
        (
            "a: &a [x, x, x, x, x, x, x, x, x]\n"
            + "".join(
                f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n"
                for a, b in zip("abcdefgh", "bcdefghi", strict=True)
            ),
            ": ",
        ),
    ],
    ids=[
        *("empty", "comments", "not-yaml", "words", "twice", "unknown-key", "no-unit", "zero"),
        *("misspelt", "version", "bomb"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(
    collsim, tmp_path: Path, command: str, text: str, told: str
):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    done = collsim(command, path)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"{path}:")
    assert told in done.err


def test_binary_is_refused(collsim, tmp_path: Path):
    path = tmp_path / "bad.yaml"
    path.write_bytes(bytes(range(256)))
    done = collsim("run", path)
    assert done.code == 2
    assert str(path) in done.err


def test_no_file_shows_the_nearest(collsim, good: Path):
    done = collsim("run", good.with_name("godo.yaml"))
    assert (done.code, done.out) == (2, "")
    assert "no such file" in done.err
    assert f"Did you mean '{good}'?" in done.err


def test_a_folder_is_no_scenario(collsim, tmp_path: Path):
    done = collsim("run", tmp_path)
    assert done.code == 2
    assert "is a directory" in done.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(collsim, good: Path):
    good.chmod(0)
    done = collsim("run", good)
    assert done.code == 2
    assert str(good) in done.err


def test_two_nodes_of_one_name(collsim, tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "schema_version: 1\ntopology:\n  templates:\n"
        "  - {name: box, vertices: [{name: gpu0, kind: gpu}, {name: nic0, kind: nic}], links: "
        "[{a: gpu0, b: nic0, kind: pcie, bandwidth: 1 GB/s}]}\n"
        "  repeat: [{template: box, name: x}, {template: box, name: x}]\n"
        "  vertices: [{name: x0, kind: leaf}]\n"
        "  links: [{a: 'x*.nic0', b: x0, kind: roce, bandwidth: 1 GB/s}]\n"
        "collective: {op: barrier}\n"
    )
    done = collsim("run", path)
    assert (done.code, done.out) == (2, "")
    assert "x0" in done.err


def test_a_graph_in_pieces(collsim, tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "schema_version: 1\ntopology:\n  templates:\n"
        "  - {name: box, vertices: [{name: gpu, kind: gpu, count: 2}, {name: s, kind: nvswitch}], "
        "links: [{a: gpu0, b: s, kind: nvlink, bandwidth: 1 GB/s}]}\n"
        "  repeat: [{template: box}]\n"
        "collective: {op: barrier}\n"
    )
    done = collsim("run", path)
    assert (done.code, done.out) == (2, "")
    assert "pieces" in done.err
    assert "gpu1" in done.err
    assert done.err.startswith(f"{path}:")


# -- files that cannot be written --------------------------------------------------------------


@pytest.mark.parametrize("option", ["--csv", "--json", "--markdown", "--trace", "--plot"])
def test_a_folder_that_is_not_there_is_told_before_the_run(
    collsim, good: Path, tmp_path: Path, option: str
):
    done = collsim("run", good, option, tmp_path / "nowhere" / "a.png")
    assert (done.code, done.out) == (2, "")
    assert "there is no folder" in done.err


def test_a_folder_in_place_of_a_file(collsim, good: Path, tmp_path: Path):
    done = collsim("run", good, "--csv", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "it is a folder" in done.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_closed_folder(collsim, good: Path, tmp_path: Path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    done = collsim("run", good, "--csv", closed / "a.csv")
    assert (done.code, done.out) == (2, "")
    assert "cannot write: Permission denied" in done.err


@pytest.mark.parametrize("option", ["--csv", "--json", "--markdown", "--trace", "--plot"])
def test_a_system_folder_refuses_even_root_before_the_run(collsim, good: Path, option: str):
    if not Path("/proc/version").exists():
        pytest.skip("no /proc")
    done = collsim("run", good, "-q", option, "/proc/collsim.png")
    assert (done.code, done.out) == (2, "")
    assert "/proc/collsim.png: cannot write" in done.err


def test_trying_whether_a_file_can_be_written_leaves_nothing(collsim, good: Path, tmp_path: Path):
    there, new = tmp_path / "there.csv", tmp_path / "new.json"
    there.write_text("kept")
    done = collsim("run", good, "-q", "--csv", there, "--json", new, "--plot", "/proc/a.png")
    assert done.code == 2
    assert there.read_text() == "kept"
    assert not new.exists()


def test_all_bad_places_at_once(collsim, good: Path, tmp_path: Path):
    words = ("--csv", tmp_path / "no" / "a.csv", "--plot", tmp_path / "a.gif", "--plot", "x")
    done = collsim("run", good, *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("allowed: ") == 3
    assert "allowed: .png, .svg, .pdf" in done.err


# -- runs that cannot finish -------------------------------------------------------------------


def test_a_cut_network_ends_with_1(collsim, tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "schema_version: 1\nnode: dgx-h100\nnodes: 2\n"
        "collective: {op: all_reduce, size: 1 GiB}\n"
        "perturb: {links: [{link: 'node0.nic*<->*', down: true, at: 1 ms}]}\n"
    )
    done = collsim("run", path, "-q")
    assert (done.code, done.out) == (1, "")
    assert "node0" in done.err


def test_a_deadlock_ends_with_1_and_names_who_waits(collsim, tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "schema_version: 1\nnode: 4xH100\nprograms:\n"
        "- {ranks: 0-2, do: [{collective: {op: all_reduce, size: 1 MiB}}]}\n"
        "- {ranks: 3, do: [{compute: 1 ms}]}\n"
    )
    done = collsim("run", path, "-q")
    assert (done.code, done.out) == (1, "")
    assert "0-2" in done.err
    assert "rank 3" in done.err


def test_calls_that_do_not_match_are_told_apart(collsim, tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "schema_version: 1\nnode: 4xH100\nprograms:\n"
        "- {ranks: 0-2, do: [{collective: {op: all_reduce, size: 1 MiB}}]}\n"
        "- {ranks: 3, do: [{collective: {op: all_reduce, size: 2 MiB}}]}\n"
    )
    done = collsim("run", path, "-q")
    assert (done.code, done.out) == (1, "")
    assert "3" in done.err
    assert "size" in done.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_standard_output():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "simulator.cli", "list", "barrier"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "standard output: cannot write: No space left on device\n"


@pytest.mark.parametrize("words", [["run"], ["show"], ["topologies", "plot", "-o", "x.png"]])
def test_a_log_in_the_place_of_a_scenario_names_the_command_that_reads_it(collsim, tmp_path, words):
    log = tmp_path / "nccl.log"
    log.write_text("# nThread 1 nGpus 8 minBytes 8\n")
    done = collsim(*words, log)
    assert (done.code, done.out) == (2, "")
    assert f"collsim check {log}" in done.err
    done = collsim("bench", "all_reduce", "--node", log)
    assert done.code == 2
    assert f"collsim check {log}" in done.err
