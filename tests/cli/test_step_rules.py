"""What a step's words mean, and what its header says of them."""

from __future__ import annotations


def test_zero_and_data_parallel_are_one_spelling(collsim):
    both = [
        collsim("step", "--model", "gpt2", "-q", *words)
        for words in (("--zero", "1"), ("--data-parallel", "zero1"))
    ]
    assert both[0].out == both[1].out
    assert "framework megatron" in both[0].out.splitlines()[0]
