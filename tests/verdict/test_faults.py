"""Every fault that is simulated must be found again, and health must not be called a fault."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from logs import SIZES, context, faulty_text, healthy_text, placed_text, table_of

from simulator.importers import MeasuredTable
from simulator.verdict.check import causes_of
from simulator.verdict.diagnose import Case, Diagnosis, diagnose, thin_sizes
from simulator.verdict.evidence import distance
from simulator.verdict.health import Health, judge
from simulator.verdict.hypotheses import HYPOTHESES
from simulator.verdict.predict import Clusters, PredictedRow, predict_rows
from simulator.verdict.setup import SetUp

NVLINK = {"node": "dgx-a100-80gb", "nodes": "2"}
PCIE = {"node": "pcie-l40s-4+1xib200", "nodes": "1"}


def explained(
    set_up: SetUp, table: MeasuredTable, rows: list[PredictedRow] | None = None
) -> Diagnosis:
    made = predict_rows(set_up, table) if rows is None else rows
    return diagnose([Case(set_up=set_up, table=table, rows=tuple(made))], workers=1)


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
    found = explained(set_up, table)
    if found.healthy_distance < 0.12:
        pytest.skip(f"{fault} does not slow {words['node']}: nothing to find")
    assert found.explanations, found.tried
    best = found.explanations[0]
    assert fault in (best.hypothesis.name, *best.alike)
    # Its own simulation, so all that is left is the rounding of the printed times, and one step of
    # the strengths that are tried.
    assert best.distance < 0.05
    assert best.weight > 0.2


AMPERE_4 = {"node": "dgx-a100-80gb", "nodes": "4"}
HOPPER_4 = {"node": "dgx-h100", "nodes": "4"}


@pytest.mark.parametrize(
    ("words", "part", "share"),
    [
        # Ends of the chains and trees, and nodes between; NICs of other channels; other strengths.
        (AMPERE_4, "node0.nic0", 0.5),
        (AMPERE_4, "node1.nic0", 0.5),
        (AMPERE_4, "node2.nic3", 0.5),
        (AMPERE_4, "node3.nic3", 0.3),
        (AMPERE_4, "node2.gpu3", 0.5),
        (HOPPER_4, "node2.nic3", 0.5),
        (HOPPER_4, "node2.nic1", 0.7),
        (HOPPER_4, "node2.gpu3", 0.5),
    ],
    ids=str,
)
def test_one_bad_part_is_found_wherever_it_is(
    words: dict[str, str], part: str, share: float
) -> None:
    set_up, _ = context(words)
    best = explained(set_up, table_of(placed_text(words, part, share))).explanations[0]
    fault = "slow_nic" if "nic" in part else "slow_gpu"
    # In the middle of trees one slow NIC and all slow NICs have one curve: told together.
    assert fault in (best.hypothesis.name, *best.alike)


def test_places_and_strengths_are_weighed_by_their_number() -> None:
    _, found = context(HOPPER_4)
    variants = HYPOTHESES["slow_nic"].variants([found])
    assert len(variants) == 2 * len(HYPOTHESES["slow_nic"].shares)
    assert sum(variant.weight for variant in variants) == pytest.approx(1.0)
    # Two of four nodes are ends.
    assert sum(v.weight for v in variants if v.node == 0) == pytest.approx(0.5)
    _, pair = context(NVLINK)
    assert {variant.node for variant in HYPOTHESES["slow_nic"].variants([pair])} == {0}


def test_ports_at_half_speed_are_told_with_half_of_the_nics() -> None:
    text = faulty_text(HOPPER_4, "slow_ports")
    assert text is not None
    set_up, _ = context(HOPPER_4)
    best = explained(set_up, table_of(text)).explanations[0]
    assert {"slow_ports", "half_nics"} <= {best.hypothesis.name, *best.alike}


def test_a_fault_that_the_library_does_not_see_leaves_its_rings() -> None:
    set_up, _ = context(NVLINK)
    call = {"collective.op": "all_reduce", "collective.size": "1M"}
    healthy = set_up.resolve(call)
    slow = set_up.resolve({**call, "node.nic_rate": "3 GB/s"})
    clusters = Clusters()
    # Asked first, before the healthy cluster has been searched.
    blind, seeing = clusters.of(slow, healthy), clusters.of(slow)
    group = np.arange(16)
    assert blind.tuning_input(group) is clusters.of(healthy).tuning_input(group)
    speeds = [c.tuning_input(group).graphs["ring"].bw_inter_GBps for c in (blind, seeing)]
    assert speeds[0] > speeds[1]


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
            slowed += distance(measured, healthy) >= 0.12
    assert slowed >= 7


@pytest.mark.parametrize("words", [NVLINK, PCIE], ids=["nvlink", "pcie"])
def test_a_machine_as_predicted_is_healthy_and_has_no_cause(words: dict[str, str]) -> None:
    table = table_of(healthy_text(words))
    set_up, _ = context(words)
    rows = predict_rows(set_up, table)
    assert judge(rows)[0] is Health.HEALTHY
    found = explained(set_up, table, rows)
    assert causes_of(found) == ()
    assert found.healthy_weight > 0.5


def test_a_late_start_of_every_call_is_told_as_such() -> None:
    # 60 µs more on every call: only small sizes take longer, several times as long.
    table = table_of(healthy_text(NVLINK, add_s=60e-6))
    set_up, _ = context(NVLINK)
    found = explained(set_up, table)
    names = [(told.hypothesis.name, *told.alike) for told in found.explanations[:2]]
    assert any("slow_start" in part or "network_latency" in part for part in names), names


def test_what_nccl_reports_rules_faults_out() -> None:
    text = faulty_text(NVLINK, "gpudirect_off")
    assert text is not None
    table = table_of(text)
    set_up, _ = context(NVLINK)
    rows = predict_rows(set_up, table)
    plain = {name for name, _ in explained(set_up, table, rows).tried}
    seen = SetUp(words=set_up.words, transports=("NET/IB/GDRDMA", "P2P/IPC"))
    told = {name for name, _ in explained(seen, table, rows).tried}
    assert plain - told >= {"gpudirect_off", "tcp", "tcp_one_nic"}
    assert "slow_nic" in told


def test_the_number_of_nics_that_nccl_lists_rules_out_other_numbers() -> None:
    table = table_of(healthy_text(NVLINK, factor=1.5))
    set_up, _ = context(NVLINK)
    rows = predict_rows(set_up, table)
    tried = {}
    for seen in (None, 1, 8):
        found = explained(SetUp(words=set_up.words, nics_seen=seen), table, rows)
        tried[seen] = {name for name, _ in found.tried}
    assert {"one_nic", "half_nics"} <= tried[None]
    assert "one_nic" in tried[1]
    assert "half_nics" not in tried[1]
    assert not {"one_nic", "half_nics"} & tried[8]


def test_what_the_log_says_makes_a_cause_likelier_and_silence_less_likely() -> None:
    text = faulty_text(NVLINK, "gpudirect_off")
    assert text is not None
    table = table_of(text)
    set_up, _ = context(NVLINK)
    rows = predict_rows(set_up, table)
    says = SetUp(words=set_up.words, evidence=("NCCL_NET_GDR_LEVEL=0 is set",))
    found = explained(says, table, rows)
    assert "gpudirect_off" in (found.explanations[0].hypothesis.name, *found.explanations[0].alike)
    assert found.explanations[0].said == ("NCCL_NET_GDR_LEVEL=0 is set",)
    silent = SetUp(words=set_up.words, transports=("NET/IB", "P2P/IPC"))
    weights = [
        dict(explained(entry, table, rows).tried)["gpudirect_off"]
        for entry in (silent, set_up, says)
    ]
    assert weights[1] - weights[0] == pytest.approx(-np.log(0.15))
    assert weights[2] - weights[1] == pytest.approx(np.log(20))


def test_two_tables_of_one_machine_weigh_together() -> None:
    # The evidence of independent tables multiplies: twice the log of one, but for the prior.
    text = faulty_text(PCIE, "pcie_half_width")
    assert text is not None
    table = table_of(text)
    set_up, _ = context(PCIE)
    case = Case(set_up=set_up, table=table, rows=tuple(predict_rows(set_up, table)))
    one, two = (diagnose([case] * n, workers=1) for n in (1, 2))
    name = "pcie_half_width"
    prior = np.log(HYPOTHESES[name].prior / 20.0)
    assert dict(two.tried)[name] - prior > 1.5 * (dict(one.tried)[name] - prior) > 0
    assert two.explanations[0].weight >= one.explanations[0].weight - 0.02


def test_every_hypothesis_tells_what_to_look_at() -> None:
    assert len(HYPOTHESES) >= 14
    for entry in HYPOTHESES.values():
        assert entry.cause
        assert entry.look
        assert entry.tell
        assert entry.prior > 0


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
    causes = explained(set_up, table, rows).explanations[:3]
    assert any(fault in (cause.hypothesis.name, *cause.alike) for cause in causes)
