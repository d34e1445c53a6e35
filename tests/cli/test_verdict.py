"""``collsim check`` from the outside: contradictions, wrong set-ups, the inverse in every form."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from simulator.cli import main

DATA = Path(__file__).parents[1] / "importers" / "data"
A100 = str(DATA / "superbench_nccl_allreduce.log")


@pytest.fixture
def collsim(capsys, monkeypatch):
    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["collsim", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


@pytest.fixture
def two_nodes(collsim, tmp_path: Path):
    """Return a function that writes the log of two nodes."""

    def write(name: str, *words: str, op: str = "all_reduce", node: str = "dgx-h100") -> Path:
        log = tmp_path / name
        sizes = ("-b", "1M", "-e", "4G", "-f", "16", "-q")
        log.write_text(collsim("bench", op, "--node", node, "-N", "2", *sizes, *words)[1])
        return log

    return write


@pytest.mark.parametrize("command", ["check", "compare", "fit"])
def test_a_log_of_other_hosts_is_refused(collsim, two_nodes, tmp_path: Path, command: str) -> None:
    log = two_nodes("h2.log")
    out = ("--out", tmp_path / "x.yaml") if command == "fit" else ()
    code, _, err = collsim(command, log, "--node", "dgx-h100", "--nodes", "16", "-q", *out)
    assert code == 2
    assert "nodes: the log's device lines say 16 ranks on 2 hosts" in err
    assert "--nodes 2" in err
    code, _, err = collsim(command, A100, "--node", "hgx-h100", "--nodes", "2", "-q", *out)
    assert code == 2
    assert "8 ranks on 1 host" in err


def test_another_gpu_is_told_on_every_output(collsim) -> None:
    words = ("check", A100, "--node", "hgx-h100", "-q")
    code, out, err = collsim(*words, "--brief")
    assert "ANOTHER GPU" in out
    assert "warning: THE LOG NAMES ANOTHER GPU: 'A100-SXM4-40GB'" in err
    _, out, _ = collsim(*words, "--json", "-")
    (machine,) = json.loads(out)["machines"]
    assert "h100" in machine["tables"][0]["doubts"][0]
    assert code == machine["exit_code"]


def test_a_machine_faster_than_its_set_up_is_not_healthy(collsim, two_nodes) -> None:
    log = two_nodes("fast.log")
    code, out, _ = collsim("check", log, "--node", "dgx-a100-40gb+1xib50", "--nodes", "2", "-q")
    assert code == 3
    assert "faster than this set-up allows" in " ".join(out.split())
    # A fault makes nothing faster, so none is looked for.
    assert "likely causes" not in out


@pytest.mark.parametrize("fault", ["node.nic_rate=200 Gbit/s", "routing.nics=[0,2,4,6]"])
def test_two_nodes_with_half_of_their_nics_are_flagged_with_causes(
    collsim, two_nodes, fault: str
) -> None:
    log = two_nodes("half.log", "--set", fault)
    code, out, _ = collsim("check", log, "--node", "dgx-h100", "--nodes", "2", "-q")
    assert code == 3
    assert ">=256M" in out
    assert "likely causes" in out
    assert "half" in out[out.index("likely causes") :]


def test_the_inverse_is_in_json_and_in_brief(collsim, two_nodes) -> None:
    node = "dgx-a100-80gb"
    log = two_nodes("half.log", "--set", "node.nic_rate=100 Gbit/s", node=node)
    words = ("check", log, "--node", node, "--nodes", "2", "-q", "--inverse", "nic")
    _, out, _ = collsim(*words, "--json", "-")
    found = json.loads(out)["machines"][0]["tables"][0]["inverse"]
    assert found["name"] == "nic"
    assert found["preset"] == 25e9
    assert found["value"] == pytest.approx(12.5e9, rel=0.1)
    _, out, _ = collsim(*words, "--brief")
    assert out.count("\n") == 1
    assert "; inverse nic 12" in out
    _, out, _ = collsim(*words)
    assert "inverse: nic of 12" in out
    assert "with the algorithms that the library chooses for ports of that speed" in out


def test_a_link_that_works_half_the_time_does_not_bind(collsim, two_nodes) -> None:
    log = two_nodes("pair.log", op="send_recv")
    _, out, _ = collsim("check", log, "--node", "dgx-h100", "--nodes", "2", "-q")
    tail = " ".join(out.split())
    assert "is bound by no link: the busiest, node0.nic0->leaf0, works" in tail
    assert "at the largest size" in tail
