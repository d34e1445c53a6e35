"""Every fault that is simulated must be found again, and health must not be called a fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from logs import SIZES, context, faulty_text, healthy_text, table_of

from simulator.verdict.diagnose import diagnose, distance, thin_sizes
from simulator.verdict.health import Health, judge
from simulator.verdict.hypotheses import HYPOTHESES
from simulator.verdict.predict import predict_rows
from simulator.verdict.setup import SetUp

NVLINK = {"node": "dgx-a100-80gb", "nodes": "2"}
PCIE = {"node": "pcie-l40s-4+1xib200", "nodes": "1"}

FOUND = [
    *((NVLINK, name) for name in ("gpudirect_off", "one_nic", "nic_shared", "tcp", "tcp_one_nic")),
    *((NVLINK, name) for name in ("slow_nic", "pcie_generation", "ll_only")),
    (PCIE, "p2p_off"),
    (PCIE, "pcie_half_width"),
    (PCIE, "ll_only"),
]


@pytest.mark.parametrize(("words", "fault"), FOUND, ids=lambda v: v if isinstance(v, str) else "")
def test_a_simulated_fault_is_the_first_cause_or_has_its_curve(
    words: dict[str, str], fault: str
) -> None:
    text = faulty_text(words, fault)
    if text is None:
        pytest.skip(f"{fault} cannot be on {words['node']}")
    table = table_of(text)
    set_up, _ = context(words)
    rows = predict_rows(set_up, table)
    found = diagnose(set_up, table, rows)
    if found.healthy_distance < 0.12:
        pytest.skip(f"{fault} does not slow {words['node']}: nothing to find")
    assert found.explanations, found.tried
    best = found.explanations[0]
    assert fault in (best.hypothesis.name, *best.alike)
    # Its own simulation, so all that is left is the rounding of the printed times.
    assert best.distance < 0.02


def test_enough_faults_slow_these_machines_to_be_tested() -> None:
    slowed = 0
    for words, fault in FOUND:
        text = faulty_text(words, fault)
        if text is not None:
            set_up, _ = context(words)
            table = table_of(text)
            rows = predict_rows(set_up, table)
            measured = {row.size_bytes: row.measured_s for row in rows}
            healthy = {row.size_bytes: row.predicted for row in rows}
            slowed += distance(measured, healthy)[0] >= 0.12
    assert slowed >= 7


@pytest.mark.parametrize("words", [NVLINK, PCIE], ids=["nvlink", "pcie"])
def test_a_machine_as_predicted_is_healthy_and_has_no_cause(words: dict[str, str]) -> None:
    table = table_of(healthy_text(words))
    set_up, _ = context(words)
    rows = predict_rows(set_up, table)
    assert judge(rows)[0] is Health.HEALTHY
    assert diagnose(set_up, table, rows).explanations == ()


def test_a_launch_floor_alone_is_no_fault() -> None:
    # 20 µs more on every call: the small sizes take twice as long, and nothing is wrong.
    table = table_of(healthy_text(NVLINK, add_s=20e-6))
    set_up, _ = context(NVLINK)
    found = diagnose(set_up, table, predict_rows(set_up, table))
    assert found.healthy_distance < 0.02
    assert found.explanations == ()


def test_what_nccl_reports_rules_faults_out() -> None:
    text = faulty_text(NVLINK, "gpudirect_off")
    assert text is not None
    table = table_of(text)
    set_up, _ = context(NVLINK)
    rows = predict_rows(set_up, table)
    plain = {name for name, _ in diagnose(set_up, table, rows).tried}
    seen = SetUp(words=set_up.words, transports=("NET/IB/GDRDMA", "P2P/IPC"))
    told = {name for name, _ in diagnose(seen, table, rows).tried}
    assert plain - told >= {"gpudirect_off", "tcp", "tcp_one_nic"}
    assert "slow_nic" in told


def test_what_the_log_says_makes_a_cause_nearer() -> None:
    text = faulty_text(NVLINK, "gpudirect_off")
    assert text is not None
    table = table_of(text)
    set_up, _ = context(NVLINK)
    says = SetUp(words=set_up.words, evidence=("NCCL_NET_GDR_LEVEL=0 is set",))
    found = diagnose(says, table, predict_rows(set_up, table))
    assert found.explanations[0].hypothesis.name == "gpudirect_off"
    assert found.explanations[0].said == ("NCCL_NET_GDR_LEVEL=0 is set",)


def test_every_hypothesis_tells_what_to_look_at() -> None:
    assert len(HYPOTHESES) >= 14
    for entry in HYPOTHESES.values():
        assert entry.cause
        assert entry.look


def test_thinning_keeps_the_ends_and_few_small_sizes() -> None:
    sizes = [1 << e for e in range(3, 34)]
    kept = thin_sizes(sizes)
    assert len(kept) == 12
    assert kept[0] == 8
    assert kept[-1] == 1 << 33
    assert sum(size < 1 << 16 for size in kept) == 3
    assert thin_sizes(SIZES[:4]) == list(SIZES[:4])
    assert len(thin_sizes(sizes[:13])) == 12


@pytest.mark.parametrize("seed", range(3))
def test_noise_bias_and_another_floor_leave_the_fault_among_the_first_three(seed: int) -> None:
    # 6 % noise a row, 8 % bias of all, up to 15 µs of floor: healthy machines differ by as much.
    rng = np.random.default_rng(seed)
    set_up, found = context(PCIE)
    fault = "ll_only"
    assert HYPOTHESES[fault].words(found)
    text = faulty_text(PCIE, fault)
    assert text is not None
    table = table_of(text)
    bias, floor_s = float(np.exp(rng.normal(0, 0.08))), float(rng.uniform(0, 15e-6))
    rows = [
        replace(
            row, measured_s=row.measured_s * bias * float(np.exp(rng.normal(0, 0.06))) + floor_s
        )
        for row in predict_rows(set_up, table)
    ]
    causes = diagnose(set_up, table, rows).explanations[:3]
    assert any(fault in (cause.hypothesis.name, *cause.alike) for cause in causes)
