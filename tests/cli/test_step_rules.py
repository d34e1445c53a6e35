"""What a step's words mean, and what its header says of them."""

from __future__ import annotations

import pytest


def test_zero_and_data_parallel_are_one_spelling(collsim):
    both = [
        collsim("step", "--model", "gpt2", "-q", *words)
        for words in (("--zero", "1"), ("--data-parallel", "zero1"))
    ]
    assert both[0].out == both[1].out
    assert "framework megatron" in both[0].out.splitlines()[0]


@pytest.mark.parametrize(
    ("kind", "framework"),
    [("zero1", "megatron"), ("zero2", "deepspeed"), ("zero3", "deepspeed"), ("ddp", "megatron")],
)
def test_one_spelling_has_one_meaning(collsim, tmp_path, kind: str, framework: str):
    """--zero N, --data-parallel zeroN and a scenario say the same, and the header says whose."""
    words = ("--model", "gpt2", "--node", "4xA100")
    said = [
        collsim("step", *words, "--data-parallel", kind, "-q"),
        collsim("step", *words, "--zero", kind.removeprefix("zero").replace("ddp", "0"), "-q"),
    ]
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        f"schema_version: 1\nnode: 4xA100\ntraining: {{model: gpt2, data_parallel: {kind}}}\n"
    )
    said.append(collsim("run", scenario, "-q"))
    assert f"framework {framework}" in said[0].out.splitlines()[0]
    assert "seq 1024" in said[0].out.splitlines()[1]
    assert len({done.out for done in said}) == 1
