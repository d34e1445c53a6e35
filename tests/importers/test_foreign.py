"""Files of other tools are told by their content, and named with the command that reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.importers.foreign import recognise

HERE = Path(__file__).parent / "data"
SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))

TEXTS = {
    "the matrix of nvidia-smi topo -m": "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV12\t0-31\n",
    "a topology of NCCL in XML": '<system version="1">\n  <cpu numaid="0" arch="x86_64">\n',
    "a dump of NCCL's graphs in XML": '<graphs version="1">\n',
    "a profiler's trace": '{"schemaVersion": 1, "traceEvents": []}',
    "a DeepSpeed config": '{"zero_optimization": {"stage": 3}}',
    "a model's config.json": '{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096}',
    "a torchtitan job": '[model]\nname = "llama3"\n',
    "a link test": "#bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]\n",
}


@pytest.mark.parametrize("what", TEXTS)
def test_each_kind_is_told(what: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(TEXTS[what])
    found = recognise(str(path))
    assert found is not None
    assert found.what == what


@pytest.mark.parametrize("log", sorted(HERE.glob("*.log")), ids=lambda path: path.stem)
def test_logs_are_told(log: Path) -> None:
    found = recognise(str(log))
    assert found is not None
    assert "collsim check FILE" in found.read_by


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_are_not_foreign(path: Path) -> None:
    assert recognise(str(path)) is None


def test_what_is_no_file_is_not_foreign(tmp_path: Path) -> None:
    assert recognise(str(tmp_path)) is None
    assert recognise("dgx-h100") is None
    assert recognise("a\0b") is None
