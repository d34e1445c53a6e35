"""``collsim step`` with files of other programs, and the files that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 3,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
}


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    def write(**changed: object) -> Path:
        path = tmp_path / "ds.json"
        path.write_text(json.dumps({**CONFIG, **changed}), encoding="utf-8")
        return path

    return write


def test_a_deepspeed_file_asks_for_what_words_ask_for(
    collsim: Run, config: Callable[..., Path], tmp_path: Path
) -> None:
    words = ("step", "--model", "gpt2", "-q")
    done = collsim(*words, "--deepspeed", config(), "--json", tmp_path / "file.json")
    assert done.code == 0, done.err
    assert "DP8 ZeRO-3, micro-batch 2 x 3" in done.out
    asked = json.loads((tmp_path / "file.json").read_text())["provenance"]["scenario"]["training"]
    assert asked["offload_optimizer"] == "cpu"
    assert asked["framework"] == "deepspeed"
    assert asked["precision"] == "bf16"


@pytest.mark.parametrize(
    ("changed", "words", "told"),
    [
        ({"train_micro_batch_size_per_gpu": "auto"}, (), "train_micro_batch_size_per_gpu: 'auto'"),
        ({}, ("--pp", 2), "refuses both"),
        ({}, ("--zero", 1), "stands beside"),
        ({}, ("--tp", "1,2"), "one whole number"),
        ({"train_batch_size": 7}, (), "train_batch_size"),
    ],
)
def test_what_deepspeed_refuses_is_refused(
    collsim: Run,
    config: Callable[..., Path],
    changed: dict[str, object],
    words: tuple[object, ...],
    told: str,
) -> None:
    path = config(**changed)
    done = collsim("step", "--model", "gpt2", "-q", "--deepspeed", path, *words)
    assert done.code == 2
    assert told in done.err


def test_markdown_has_the_steps(collsim: Run, tmp_path: Path) -> None:
    path = tmp_path / "steps.md"
    done = collsim("step", "--model", "gpt2", "-q", "--zero", "1,3", "--markdown", path)
    assert done.code == 0, done.err
    lines = [line for line in path.read_text().splitlines() if line.startswith("| zero")]
    assert [line.split("|")[1].strip() for line in lines] == ["zero1", "zero3"]


def test_buckets_are_pytorchs(collsim):
    words = ("--framework", "torch", "--data-parallel", "ddp", "--buckets", "-q")
    done = collsim("step", "--model", "resnet-18", *words)
    assert done.code == 0
    assert done.out.startswith("bucket 0: 1.96 MiB, 2 gradients: fc.bias … fc.weight\n")
    assert done.out.count("bucket ") == 3


def test_buckets_of_another_framework_are_refused(collsim):
    done = collsim("step", "--model", "gpt2-small", "--zero", "2", "--buckets", "-q")
    assert done.code == 2
    assert "--framework torch" in done.err
