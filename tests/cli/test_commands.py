"""Every command and option once: what they print, write and return."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from pathlib import Path

import pytest

import simulator
from simulator.importers.nccl_tests import read
from simulator.results.model import FRAME_COLUMNS
from simulator.scenario.resolve import load, loads

SMALL = ("-b", "1M", "-e", "4M", "-q")
ONE = ("-b", "1M", "-e", "1M", "-q")
COMMANDS = ("run", "bench", "explain", "show", "list", "topologies")


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(
        "schema_version: 1\ndescription: How fast is one node?\nnode: dgx-h100\n"
        "collective: {op: all_reduce, sizes: [1 MiB, 64 MiB]}\n"
    )
    return path


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    path = tmp_path / "swept.yaml"
    path.write_text(
        "schema_version: 1\nnode: [4xH100, 4xA100]\ncollective: {op: all_gather, size: 1 MiB}\n"
    )
    return path


# -- help --------------------------------------------------------------------------------------


def test_no_words_show_the_commands(collsim):
    done = collsim()
    for command in COMMANDS:
        assert command in done.out + done.err
    assert collsim("--help").code == 0
    assert collsim("-h").out == collsim("--help").out


def test_every_command_has_help(collsim):
    listed = collsim("--help").out.partition("Commands:")[2]
    commands = re.findall(r"^  ([a-z]+) ", listed, flags=re.MULTILINE)
    assert set(COMMANDS) <= set(commands)
    for command in commands:
        done = collsim(command, "--help")
        assert done.code == 0, command
        assert "usage" in done.out.lower(), command
    for command in ("list", "show", "plot"):
        assert collsim("topologies", command, "--help").code == 0


def test_version(collsim):
    done = collsim("--version")
    assert (done.code, done.out) == (0, f"collsim {simulator.__version__}\n")


# -- run ---------------------------------------------------------------------------------------


def test_run_prints_the_question_and_the_table(collsim, scenario: Path):
    done = collsim("run", scenario)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("How fast is one node?\n")
    assert "all_reduce on 8 GPUs, 1 node of dgx-h100" in done.out
    assert re.search(r"^ *64 MiB +\w+ ", done.out, flags=re.MULTILINE)
    quiet = collsim("run", scenario, "-q")
    assert "How fast" not in quiet.out


def test_run_set_overrides(collsim, scenario: Path):
    done = collsim("run", scenario, "--set", "collective.algorithm=double_binary_tree", "-q")
    assert " TREE " in done.out
    done = collsim("run", scenario, "--set", "collective.size=2 MiB", "--set", "costs=ideal", "-q")
    assert done.code in (0, 2)  # a size beside the file's sizes is refused, with its place
    assert done.code == 0 or "size" in done.err


def test_run_tables(collsim, scenario: Path):
    table = collsim("run", scenario, "--table", "nccl-tests", "-q").out
    assert "#wrong" in table
    assert "#wrong" not in collsim("run", scenario, "-q").out
    done = collsim("run", scenario, "--table", "fancy", "-q")
    assert (done.code, done.out) == (2, "")
    assert "allowed: nccl-tests, summary" in done.err


def test_run_links_and_ranks(collsim, scenario: Path):
    done = collsim("run", scenario, "--links", "--ranks", "-q")
    assert "Links by kind" in done.out
    assert "Busiest links" in done.out
    assert "node0.gpu0->node0.nvswitch0" in done.out
    assert "waiting: mean" in done.out


def test_late_ranks_are_shown_without_being_asked_for(collsim, scenario: Path):
    done = collsim("run", scenario, "-q", "--set", "perturb.late=[{ranks: 3, by: 1 ms}]")
    assert done.code == 0
    assert "last call" in done.out


def test_a_sweep_is_one_comparison(collsim, swept: Path):
    done = collsim("run", swept, "-q", "--workers", 1)
    assert done.code == 0
    assert "4xH100" in done.out
    assert "4xA100" in done.out
    assert "ratio" in done.out


def test_run_writes_every_kind_of_file(collsim, scenario: Path, tmp_path: Path):
    names = {
        "--csv": "t.csv",
        "--json": "t.json",
        "--markdown": "t.md",
        "--trace": "t.trace.json",
        "--plot": "busbw.png",
    }
    words = [word for option, name in names.items() for word in (option, tmp_path / name)]
    done = collsim("run", scenario, "-q", *words)
    assert done.code == 0
    for name in names.values():
        assert f"wrote {tmp_path / name}" in done.err
    with open(tmp_path / "t.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert tuple(rows[0]) == FRAME_COLUMNS
    assert [row["size_bytes"] for row in rows] == ["1048576", "67108864"]
    record = json.loads((tmp_path / "t.json").read_text())
    assert record["provenance"]["version"] == simulator.__version__
    assert record["provenance"]["seed"] == 0
    assert record["rows"][0]["time_s"] == pytest.approx(float(rows[0]["time_us"]) * 1e-6)
    assert "| size |" in (tmp_path / "t.md").read_text()
    events = json.loads((tmp_path / "t.trace.json").read_text())["traceEvents"]
    assert any("ncclDevKernel_AllReduce" in event["name"] for event in events)
    assert (tmp_path / "busbw.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("busbw.svg", b"<?xml"),
        ("busbw.pdf", b"%PDF"),
        ("gantt.png", b"\x89PNG"),
        ("link_load.png", b"\x89PNG"),
        ("compare.png", b"\x89PNG"),
    ],
)
def test_plots_by_name(collsim, scenario: Path, tmp_path: Path, name: str, head: bytes):
    done = collsim("run", scenario, "-q", "--plot", tmp_path / name)
    assert done.code == 0
    assert (tmp_path / name).read_bytes().startswith(head)


def test_a_compressed_trace(collsim, scenario: Path, tmp_path: Path):
    assert collsim("run", scenario, "-q", "--trace", tmp_path / "t.json.gz").code == 0
    with gzip.open(tmp_path / "t.json.gz") as stream:
        assert json.load(stream)["traceEvents"]


def test_output_section_of_the_file(collsim, scenario: Path, tmp_path: Path):
    folder = tmp_path / "out"
    folder.mkdir()
    scenario.write_text(
        scenario.read_text()
        + f"output: {{folder: {folder}, csv: a.csv, plots: [busbw], plot_format: svg}}\n"
    )
    assert collsim("run", scenario, "-q").code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["a.csv", "busbw.svg"]


def test_a_rerun_from_the_json_file_is_the_same(collsim, scenario: Path, tmp_path: Path):
    import yaml

    collsim("run", scenario, "-q", "--json", tmp_path / "a.json")
    record = json.loads((tmp_path / "a.json").read_text())
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(record["provenance"]["scenario"], sort_keys=False))
    collsim("run", again, "-q", "--json", tmp_path / "b.json")
    assert json.loads((tmp_path / "b.json").read_text())["rows"] == record["rows"]


# -- bench -------------------------------------------------------------------------------------


def test_bench_prints_what_nccl_tests_prints(collsim):
    done = collsim("bench", "all_reduce", "--node", "dgx-h100", *SMALL)
    assert (done.code, done.err) == (0, "")
    log = read(io.StringIO(done.out))
    (table,) = log.tables
    assert (table.collective, table.n_ranks, table.dtype) == ("all_reduce", 8, "float")
    assert [row.size_bytes for row in table.rows] == [2**20, 2**21, 2**22]


@pytest.mark.parametrize(
    "collective",
    [
        "all_reduce",
        "all_gather_perf",
        "ReduceScatter",
        "alltoall",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "sendrecv",
        "barrier",
    ],
)
def test_bench_every_collective_without_a_warning(collsim, collective: str):
    done = collsim("bench", collective, "--node", "4xH100", *ONE)
    assert (done.code, done.err) == (0, "")
    assert "# Avg bus bandwidth" in done.out


def test_bench_options(collsim, tmp_path: Path):
    done = collsim(
        "bench",
        "broadcast",
        *("--node", "dgx-a100", "--nodes", 2, "--gpus-per-node", 2, "--fabric", "rail_optimized"),
        *("--algorithm", "ring", "--protocol", "Simple", "--channels", 2),
        *("--begin", "1M", "--end", "5M", "--step", "2M", "--dtype", "half", "--root", 3),
        *("--profile", "nccl", "--set", "fabric.oversubscription=2", "--quiet"),
        *("--links", "--ranks", "--workers", 1),
        *("--csv", tmp_path / "t.csv", "--json", tmp_path / "t.json"),
        *("--markdown", tmp_path / "t.md", "--trace", tmp_path / "t.trace.json"),
        *("--plot", tmp_path / "a.png", "--plot", tmp_path / "gantt.png"),
    )
    assert done.code == 0, done.err
    with open(tmp_path / "t.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [int(row["size_bytes"]) for row in rows] == [2**20, 3 * 2**20, 5 * 2**20]
    assert {row["algorithm"] for row in rows} == {"ring"}
    assert {(row["protocol"], row["n_channels"], row["root"]) for row in rows} == {
        ("Simple", "2", "3")
    }
    assert {(row["dtype"], row["world_size"], row["n_nodes"]) for row in rows} == {
        ("half", "4", "2")
    }
    assert {path.name for path in tmp_path.iterdir()} == {
        *("t.csv", "t.json", "t.md", "t.trace.json", "a.png", "gantt.png")
    }


def test_bench_short_letters_are_nccl_tests_s(collsim):
    done = collsim(
        *("bench", "reduce_scatter", "-N", 1, "-g", 4, "-a", "ring", "-p", "LL"),
        *("-b", 8, "-e", 32, "-f", 2, "-d", "bfloat16", "-o", "max", "-q"),
    )
    assert done.code == 0
    found = re.findall(r"^ +(\d+) +\d+ +(\S+) +(\S+) ", done.out, flags=re.MULTILINE)
    assert found == [(size, "bfloat16", "max") for size in ("8", "16", "32")]


def test_bench_several_algorithms_are_compared(collsim):
    done = collsim("bench", "all_reduce", "-g", 4, "-a", "ring,tree", *SMALL)
    assert done.code == 0
    assert "ratio" in done.out
    assert "ring" in done.out
    assert "tree" in done.out


def test_bench_words_for_presets(collsim):
    for words in ("8xH100", "p5.48xlarge", "DGX_H100", "dgxh100"):
        assert collsim("bench", "all_reduce", "--node", words, *ONE).code == 0


def test_gbps_and_gigabytes_are_told_apart(collsim):
    def time_us(rate: str) -> float:
        words = ("--fabric", "single_switch", "-N", 2, "-g", 1, "-a", "ring", "-b", "64M")
        done = collsim(
            "bench", "all_reduce", *words, "-e", "64M", "-q", "--set", f"node.nic_rate={rate}"
        )
        assert done.code == 0, done.err
        (row,) = re.findall(r"^ +67108864 .*$", done.out, flags=re.MULTILINE)
        return float(row.split()[5])

    slow, fast = time_us("100 Gbps"), time_us("100 GBps")
    assert time_us("12.5 GB/s") == slow
    assert slow > 3 * fast  # eight times the rate, until PCIe binds


# -- explain -----------------------------------------------------------------------------------


def test_explain_puts_numbers_into_the_formula(collsim):
    words = ("-g", 4, "-a", "ring", "--profile", "ideal", "--size", "64M")
    done = collsim("explain", "all_reduce", *words)
    assert done.code == 0
    assert "2(n−1)·(α + S/(n·B))" in done.out
    # 64 MiB in four chunks over 450 GB/s, two hops of 250 ns: 500 ns + 37.28 us.
    assert "16 MiB" in done.out
    assert "37.78 us" in done.out
    assert "226.7 us" in done.out  # 6 · 37.78
    assert "step 1\n" not in done.out


def test_explain_steps_follows_every_chunk(collsim):
    words = ("-g", 4, "-a", "ring", "--profile", "ideal", "--size", "64M", "--steps")
    out = collsim("explain", "all_reduce", *words).out
    steps = out.partition("\nreduce_scatter\n")[2]
    assert steps.count("adds it") == 12  # 3 steps of 4 messages
    assert steps.count("keeps it") == 12
    # What rank 1 gets in step 1 it sends on in step 2.
    (first,) = re.findall(r"rank 0 → rank 1 +chunk (\d) .*adds it", steps)[:1]
    assert re.findall(r"rank 1 → rank 2 +chunk (\d) .*adds it", steps)[1] == first


def test_explain_says_who_chose(collsim):
    # At this size the library's model prefers what the simulation finds slower than LL128.
    words = ("all_reduce", "--node", "dgx-a100", "-N", 4, "--fabric", "rail_optimized")
    out = collsim("explain", *words, "-s", "1M").out
    assert "chosen by NCCL's own model" in out
    assert "the fastest of" not in out
    out = collsim("explain", *words, "-s", "1M", "--profile", "ideal").out
    assert "chosen by simulation: the fastest of what the profile allows" in out
    assert len(re.findall(r"us  chosen$", out, flags=re.MULTILINE)) == 1
    assert "chosen by" not in collsim("explain", *words, "-a", "ring", "-p", "Simple").out


@pytest.mark.parametrize(
    ("words", "level"),
    [
        (("--profile", "ideal"), "steps"),
        (("--profile", "nccl"), "folded"),
        (("--profile", "nccl", "--set", "engine.level=steps"), "steps"),
    ],
)
def test_explain_takes_algorithm_level_and_time_of_a_run(collsim, words, level):
    place = ("all_reduce", "-N", 2, *words)
    bench = collsim("bench", *place, "-b", "4M", "-e", "4M", "-q", "--table", "summary").out
    out = collsim("explain", *place, "-s", "4M").out
    (row,) = [line for line in bench.splitlines() if line.lstrip().startswith("4 MiB")]
    found = re.search(r"^Algorithm: (\S+?)(?: \((\w+)\))?, ", out, flags=re.MULTILINE)
    assert found is not None
    assert found[1] == row.split()[2]
    # NCCL's own names stand beside those of scenarios.
    assert (found[2] is not None) == found[1].isupper()
    time = " ".join(row.split()[5:7])
    assert f"Simulated time: {time} ({level} level" in out
    assert "Bandwidth lower bound" in out


def test_explain_of_one_rank_and_of_a_barrier(collsim):
    done = collsim("explain", "broadcast", "-g", 1, "-s", "1K")
    assert done.code == 0
    assert "nobody to talk to" in done.out
    done = collsim("explain", "barrier")
    assert (done.code, done.err) == (0, "")


def test_explain_takes_any_other_key(collsim):
    base = ("explain", "all_reduce", "-N", 2, "-a", "ring", "-p", "Simple")
    plain = collsim(*base, "--fabric", "single_switch")
    slower = collsim(*base, "--fabric", "single_switch", "--set", "node.nic_rate=100 Gbit/s")
    assert (plain.code, slower.code) == (0, 0)
    assert plain.out != slower.out


# -- show, list, topologies --------------------------------------------------------------------


def test_show_says_where_every_value_comes_from(collsim, scenario: Path):
    done = collsim("show", scenario, "--set", "seed=4")
    assert done.code == 0
    places = {
        line.split()[0]: line for line in done.out.splitlines() if line and not line.startswith("#")
    }
    assert places["node.preset"].endswith(f"{scenario}:3")
    assert places["seed"].split()[1] == "4"
    assert places["seed"].endswith("--set")
    assert places["costs.profile"].endswith("library of h100-sxm")
    assert places["gpus_per_node"].endswith("preset dgx-h100")
    assert collsim("show", scenario, "--set", "seed=4", "--resolved").out == done.out


def test_show_yaml_is_the_scenario_again(collsim, scenario: Path):
    done = collsim("show", scenario, "--yaml")
    assert loads(done.out).variants == load(scenario).variants


def test_show_every_variant(collsim, swept: Path):
    out = collsim("show", swept).out
    assert out.count("# variant: ") == 2


def test_list(collsim):
    done = collsim("list")
    assert done.code == 0
    for word in ("all_reduce", "double_binary_tree", "all_to_allv", "cost profiles", "ideal"):
        assert word in done.out
    only = collsim("list", "AllReduce").out
    assert only.startswith("all_reduce\n")
    assert "reduce_scatter\n" not in only
    done = collsim("list", "all_reduc")
    assert (done.code, done.out) == (2, "")
    assert "Did you mean 'all_reduce'?" in done.err


def test_topologies_list(collsim):
    out = collsim("topologies", "list").out
    assert "rail_optimized" in out
    assert "dgx-h100" in out
    some = collsim("topologies", "list", "gb200").out
    assert "gb200-nvl72" in some
    assert "network fabrics" not in some
    done = collsim("topologies", "list", "gb20x")
    assert done.code == 2
    assert "gb20x" in done.err


def test_topologies_show(collsim):
    done = collsim("topologies", "show", "dgx-h100")
    assert done.code == 0
    assert "source: " in done.out
    assert "450 GB/s (3.6 Tbit/s)" in done.out
    done = collsim("topologies", "show", "leaf_spine")
    assert "oversubscription" in done.out
    assert "default None" not in done.out
    assert collsim("topologies", "show", "dgx-h10").code == 2


def test_topologies_plot(collsim, scenario: Path, tmp_path: Path):
    picture = tmp_path / "a.png"
    done = collsim("topologies", "plot", "4xH100", "-N", 2, "--fabric", "rail_only", "-o", picture)
    assert done.code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert collsim("topologies", "plot", scenario, "-o", tmp_path / "b.svg").code == 0
    assert (tmp_path / "b.svg").read_bytes().startswith(b"<?xml")


def test_topologies_plot_draws_a_network_by_its_name(collsim, tmp_path: Path):
    picture = tmp_path / "torus.svg"
    assert collsim("topologies", "plot", "torus", "-N", 4, "-o", picture).code == 0
    assert "4 × dgx-h100, torus" in picture.read_text()
    # Without a number of nodes, as many as let a network be seen.
    assert collsim("topologies", "plot", "leaf_spine", "-o", picture).code == 0
    assert "8 × dgx-h100, leaf_spine" in picture.read_text()


# -- 80 columns --------------------------------------------------------------------------------


def test_tables_fit_a_terminal(collsim, scenario: Path, swept: Path):
    commands = [
        ("run", scenario, "-q", "--links", "--ranks"),
        ("run", swept, "-q", "--links", "--ranks"),
        ("run", scenario, "-q", "--set", "perturb.late=[{ranks: 3, by: 1 ms}]"),
        ("bench", "all_reduce", "-N", 2, "-a", "ring,double_binary_tree", *SMALL),
        ("bench", "all_to_all", "-N", 2, "--table", "summary", *SMALL),
    ]
    for words in commands:
        out = collsim(*words).out
        assert out
        wide = [line for line in out.splitlines() if len(line) > 80]
        assert not wide, (words, wide[0])


def test_options_of_several_commands_are_one_declaration():
    from typing import get_type_hints

    from simulator.cli import bench, explain, options, run

    def flag(kind, name=""):
        first = kind.__metadata__[0].default  # typer: the first word stands in this place
        return first if isinstance(first, str) else f"--{name}"

    by_flag = {flag(kind): kind for kind in (getattr(options, name) for name in options.__all__)}
    seen = set()
    for module in (run, bench, explain):
        hints = get_type_hints(module.command, include_extras=True)
        for name, kind in hints.items():
            if name != "return" and flag(kind, name) in by_flag:
                assert kind == by_flag[flag(kind, name)], (module.__name__, name)
                seen.add(flag(kind, name))
    assert seen == set(by_flag)
    assert len(seen) == len(options.__all__)


def test_explain_tells_what_it_learns_of_the_choice(collsim):
    done = collsim("explain", "all_reduce", "-N", "2", "--env", "NCCL_COLLNET_ENABLE=1")
    assert "Algorithm: NVLS (nvls_sharp)" in done.out
    assert done.out.count("CollNet (SHARP) is not fitted") == 1
