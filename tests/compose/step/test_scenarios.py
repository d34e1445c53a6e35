"""Scenarios of kind training from words to results: what is asked is what is simulated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import simulator
from simulator.base.errors import CollsimError, ScenarioError, SimulationError
from simulator.models import get_model
from simulator.results import training_tables
from simulator.results.files import csv_text, read_json, write_json
from simulator.results.model import RunResult


def step_of(nodes: int = 1, **training: object) -> RunResult:
    """Simulate a small model on DGX H100."""
    asked = {"model": "gpt2-small", "seq": 1024, **training}
    return simulator.run(node="dgx-h100", nodes=nodes, training=asked)


def test_tokens_flops_and_rates_follow_from_the_step() -> None:
    result = step_of(micro_batch=4, micro_batches=3)
    (step,) = result.training
    # 8 data-parallel ranks x 3 passes x 4 sequences of 1,024 tokens.
    assert step.samples == 8 * 3 * 4
    assert step.tokens == step.samples * 1024
    assert step.tokens_per_s == pytest.approx(step.tokens / step.step_s)
    # 6 N per token, embeddings counted once as they are tied, and attention: 12 L h s.
    per_token = 6 * 124_439_808 + 12 * 12 * 768 * 1024
    assert step.model_flops == pytest.approx(per_token * step.tokens, rel=0.02)
    assert step.mfu == pytest.approx(step.model_flops / 8 / step.step_s / 989.4e12, rel=1e-3)
    assert step.hfu == pytest.approx(step.mfu)


def test_full_recomputation_counts_the_blocks_forward_again() -> None:
    """96BLsh²(1 + s/6h + v/16Lh) of 72BLsh²(1 + s/6h + v/12Lh): logits are not computed again."""
    (step,) = step_of(recompute="full").training
    model = get_model(step.model)
    head = sum(la.model_flops(model.seq) for la in model.layers if la.kind != "block")
    again = step.samples * (model.flops() / 3 - head)
    assert step.hardware_flops == pytest.approx(step.model_flops + again, rel=2e-3)


@pytest.mark.parametrize("axes", [{"tensor": 2, "pipeline": 2}, {"data_parallel": "zero3"}])
def test_parts_of_the_step_sum_to_it(axes: dict[str, object]) -> None:
    (step,) = step_of(**axes, micro_batches=4).training
    total = sum(step.busy_s.values()) + sum(step.exposed_s.values())
    total += sum(step.waiting_s.values()) + step.idle_s
    assert total == pytest.approx(step.step_s, rel=1e-6)
    assert sum(len(account.ranks) for account in step.accounts) == step.world_size == 8


@pytest.mark.parametrize(
    "axes",
    [
        {"tensor": 2, "pipeline": 2, "micro_batches": 4},
        {"data_parallel": "zero3", "framework": "deepspeed"},
        {"data_parallel": "fsdp", "framework": "torch"},
        {"data_parallel": "zero1", "tensor": 2},
    ],
)
def test_folded_is_within_a_percent_of_every_rank_simulated(axes: dict[str, object]) -> None:
    (folded,) = step_of(2, **axes).training
    (exact,) = step_of(2, **axes, fold=False).training
    assert not exact.folded
    assert len(exact.accounts) == 16 > len(folded.accounts)
    assert folded.step_s == pytest.approx(exact.step_s, rel=0.01)


def test_a_sweep_gives_one_step_a_variant() -> None:
    result = step_of(data_parallel=["ddp", "zero1"], micro_batch=[1, 2])
    assert [step.variant for step in result.training] == [
        "ddp, micro_batch 1",
        "ddp, micro_batch 2",
        "zero1, micro_batch 1",
        "zero1, micro_batch 2",
    ]
    lines = csv_text(result).splitlines()
    assert lines[0].startswith("variant,model,strategy,world_size")
    assert len(lines) == 5
    shown = training_tables.comparison_table(result.training).text(80)
    assert max(map(len, shown.splitlines())) <= 80


def test_tables_of_one_step_fit_a_terminal() -> None:
    (step,) = step_of(tensor=2, pipeline=2, micro_batches=4).training
    for table in (
        training_tables.parts_table(step),
        training_tables.calls_table(step),
        training_tables.stage_table(step),
        training_tables.memory_table(step),
    ):
        assert max(map(len, table.text(80).splitlines())) <= 80
    assert "MFU" in training_tables.headline(step)


def test_a_file_of_a_step_reads_back(tmp_path: Path) -> None:
    result = step_of(tensor=2)
    write_json(result, tmp_path / "step.json")
    again = read_json(tmp_path / "step.json")
    assert again.training == result.training
    assert json.loads((tmp_path / "step.json").read_text())["provenance"]["scenario"]["training"]


def test_a_slow_rank_is_named() -> None:
    asked = {"model": "gpt2-small", "data_parallel": "ddp"}
    result = simulator.run(
        node="dgx-h100", training=asked, perturb={"slow": [{"ranks": "5", "factor": 1.5}]}
    )
    assert result.training[0].straggler.startswith("rank 5 arrives last")


def test_a_slow_link_makes_the_step_longer_and_only_it() -> None:
    asked = {"model": "gpt2-xl", "data_parallel": "zero3", "framework": "deepspeed"}
    whole = simulator.run(node="dgx-h100", nodes=2, training=asked).training[0]
    slow = simulator.run(
        node="dgx-h100",
        nodes=2,
        training=asked,
        perturb={"links": [{"link": "node1.nic3*", "factor": 0.1}]},
    ).training[0]
    assert slow.step_s > 1.05 * whole.step_s
    assert sum(slow.busy_s.values()) == pytest.approx(sum(whole.busy_s.values()), rel=0.2)


def test_a_rank_that_leaves_is_a_deadlock_that_names_it() -> None:
    asked = {"model": "gpt2-small", "data_parallel": "zero3", "framework": "deepspeed"}
    with pytest.raises(SimulationError, match="rank 5 never makes this call"):
        simulator.run(
            node="dgx-h100", training=asked, perturb={"hang": [{"ranks": "5", "after": 0.4}]}
        )


def test_what_does_not_fit_comes_with_remedies() -> None:
    result = simulator.run(
        node="dgx-a100-40gb", training={"model": "llama-2-7b", "data_parallel": "ddp"}
    )
    (step,) = result.training
    assert step.fits is False
    assert step.remedies
    assert all("step" in text and "GiB" in text for text in step.remedies)


def test_days_with_failures() -> None:
    result = simulator.run(
        node="dgx-h100",
        training={"model": "gpt2-small"},
        reliability={"duration": "30 d", "gpu_mtbf": "1000 h", "runs": 8},
    )
    (days,) = result.goodput
    assert 0 < days.useful < 1
    parts = (days.useful, days.lost, days.checkpoint, days.restart, days.waiting, days.shrunk)
    assert sum(parts) == pytest.approx(1.0)
    assert days.tokens == pytest.approx(days.useful * 30 * 86400 * result.training[0].tokens_per_s)


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"model": "lama-2-7b"}, "Did you mean 'llama-2-7b'"),
        ({"model": "gpt2-small", "tensor": 3}, "does not divide 8 GPUs"),
        ({"model": "gpt2-small", "tensor": 8}, "heads"),
        ({"model": "gpt2-small", "pipeline": 2, "virtual": 5, "micro_batches": 2}, "virtual"),
        ({"model": "gpt2-small", "expert": 2}, "expert"),
        ({"model": "gpt2-small", "global_batch": 12}, "multiple of 8"),
        ({"model": "gpt2-small", "precision": "bf61"}, "Did you mean 'bf16'"),
        ({"model": "gpt2-small", "hook": "topk"}, "Did you mean 'top_k'"),
        ({"model": "gpt2-small", "micro_batch": 0}, "too small"),
        ({"model": "gpt2-small", "model_set": {"layres": 2}}, "layers"),
        ({"model": "gpt2-small", "tensr": 2}, "Did you mean 'tensor'"),
        ({"model": "gpt2-small", "model_set": {"layers": 0}}, "training.model_set.layers"),
        ({"model": "custom", "model_set": {"layers": 2}}, "training.model_set.hidden: is missing"),
        ({"model": "gpt2-small", "global_batch": 7}, "such as 8."),
        ({"model": "nowhere/config.json"}, "nowhere/config.json"),
        (
            {
                "model": "gpt2-small",
                "framework": "deepspeed",
                "data_parallel": "zero3",
                "pipeline": 2,
                "micro_batches": 2,
            },
            "pipeline",
        ),
    ],
)
def test_bad_input_says_what_would_be_valid(training: dict[str, object], words: str) -> None:
    with pytest.raises(CollsimError) as caught:
        simulator.run(node="dgx-h100", training=training)
    assert words in str(caught.value)


def test_fp4_on_a_gpu_without_it_is_refused() -> None:
    with pytest.raises(CollsimError, match="no products of fp4"):
        simulator.run(node="dgx-h100", training={"model": "gpt2-small", "precision": "fp4"})


def test_a_fault_that_begins_later_is_refused() -> None:
    with pytest.raises(ScenarioError, match="from its beginning"):
        simulator.run(
            node="dgx-h100",
            nodes=2,
            training={"model": "gpt2-small"},
            perturb={"links": [{"link": "node1.nic3*", "factor": 0.5, "at": "1 ms"}]},
        )


@pytest.mark.parametrize(("precision", "allowed"), [("fp8", "fp16, fp32"), ("bf16", "fp16, fp32")])
def test_types_that_a_gpu_lacks_are_told_in_the_words_of_a_scenario(
    precision: str, allowed: str
) -> None:
    with pytest.raises(ScenarioError) as caught:
        simulator.run(node="dgx-1-v100", training={"model": "gpt2-small", "precision": precision})
    (problem,) = caught.value.problems
    assert (problem.key, problem.allowed) == ("training.precision", allowed)


def test_ranks_that_nobody_waits_for_give_no_step() -> None:
    # All ranks leave half way: what is left of the step is no step's time.
    with pytest.raises(ScenarioError, match="nobody waits"):
        simulator.run(
            node="dgx-h100",
            training={"model": "gpt2-small"},
            perturb={"hang": [{"ranks": "0-7"}]},
        )


def test_remedies_are_not_measured_by_a_step_that_a_slow_rank_holds_up() -> None:
    asked = {"model": "llama-2-13b", "data_parallel": "zero2", "framework": "deepspeed"}
    slow = {"slow": [{"ranks": 3, "factor": 3}]}
    node = "dgx-a100-40gb"
    assert "step" in simulator.run(node=node, training=asked).training[0].remedies[0]
    found = simulator.run(node=node, training=asked, perturb=slow).training[0].remedies
    assert found
    assert not any("step" in remedy for remedy in found)
