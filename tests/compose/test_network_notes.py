"""Options that act otherwise than one may think say so; those that act do, without a word."""

from __future__ import annotations

import pytest

from simulator.compose.build import build_cluster
from simulator.compose.sweep import run_set
from simulator.fabric.uplinks import leaf_uplinks
from simulator.scenario import loads

OP = "collective: {op: all_reduce, size: 64 MiB, algorithm: ring}\n"


def cluster(text: str):
    scenario = loads("schema_version: 1\n" + text + OP)
    (resolved,) = scenario.variants
    return build_cluster(resolved)


def fabric(options: str, nodes: int = 8, node: str = "dgx-h100") -> str:
    return f"node: {node}\nnodes: {nodes}\nfabric: {{{options}}}\n"


@pytest.mark.parametrize(
    "kind",
    ["leaf_spine", "rail_optimized", "fat_tree", "nvl_domain, nvl_domain: 1"],
)
@pytest.mark.parametrize("ratio", [1, 1.5, 2, 4, 0.5])
def test_the_ratio_of_the_ports_in_use_is_the_ratio_asked_for(kind: str, ratio: float) -> None:
    options = f"kind: {kind}, oversubscription: {ratio}, oversubscription_of: ports_in_use"
    uplinks = leaf_uplinks(cluster(fabric(options + ", radix: 24", nodes=12)).fabric)
    assert uplinks is not None
    assert uplinks.ratio == pytest.approx(ratio)


def test_the_ratio_of_a_full_leaf_is_less_where_ports_are_empty() -> None:
    # 64 ports at 2:1 are 42 down and 21 up; 8 of the 42 are in use.
    built = cluster(fabric("kind: rail_optimized, oversubscription: 2"))
    uplinks = leaf_uplinks(built.fabric)
    assert uplinks is not None
    assert (uplinks.n_nics, uplinks.n_uplinks) == (8, 21)
    assert uplinks.ratio == pytest.approx(8 / 21)
    (told,) = built.warnings
    assert "hardly acts" in told
    assert "8 NICs and 21 uplinks, 0.381:1" in told


def test_a_ratio_that_acts_is_a_note() -> None:
    built = cluster(fabric("kind: leaf_spine, nics_per_leaf: 16, oversubscription: 2"))
    assert not built.warnings
    (told,) = built.notes
    assert "16 NICs and 8 uplinks, 2:1" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (fabric("kind: leaf_spine, oversubscription: 4", 2), "no leaf has uplinks"),
        (
            "node: dgx-h100\nnodes: 2\nrouting: {policy: ecmp}\n",
            "routing.policy: ecmp has no effect",
        ),
        (fabric("kind: nvl_domain, nvl_domain: 9", 4, "gb200-nvl72"), "nvl_domain: 9 has no"),
        ("node: {preset: dgx-a100, nic_rate: 400 Gbit/s}\nnodes: 2\n", "does not pass the PCIe"),
    ],
)
def test_options_that_cannot_act_are_told(text: str, told: str) -> None:
    assert [word for word in cluster(text).warnings if told in word]


@pytest.mark.parametrize(
    "text",
    [
        fabric("kind: leaf_spine, nics_per_leaf: 16") + "routing: {policy: ecmp}\n",
        fabric("kind: dragonfly", 16) + "routing: {policy: adaptive}\n",
        fabric("kind: nvl_domain, nvl_domain: 9", 36, "gb200-nvl72"),
        "node: {preset: dgx-h100, nic_rate: 200 Gbit/s}\nnodes: 2\n",
        fabric("kind: leaf_spine, nics_per_leaf: 16"),
    ],
)
def test_options_that_act_are_not(text: str) -> None:
    assert not cluster(text).warnings


def test_a_tray_says_how_many_gpus_its_rack_has() -> None:
    (told,) = cluster("node: gb200-nvl72\nnodes: 2\n").notes
    assert "tray of 4 GPUs" in told
    assert "72 GPUs is 18 nodes" in told
    assert not cluster("node: gb200-nvl72\nnodes: 18\n").notes


def sweep(text: str):
    return run_set(loads("schema_version: 1\n" + text), workers=1)


def test_an_axis_that_changes_nothing_is_told() -> None:
    done = sweep(fabric("kind: leaf_spine, radix: [16, 32]", 1) + OP)
    assert "fabric.radix: 16, 32 make no difference here" in done.warnings
    done = sweep(fabric("kind: rail_optimized, link: [200 Gbit/s, 400 Gbit/s]", 2) + OP)
    assert not [text for text in done.warnings if "no difference" in text]


def test_warnings_of_some_variants_name_them() -> None:
    done = sweep("node: [dgx-h100, dgx-a100]\nenv: {NCCL_NVLS_ENABLE: 0}\n" + OP)
    (told,) = [text for text in done.warnings if "NVLS_ENABLE" in text and "no NVSwitch" in text]
    assert told.startswith("dgx-a100: ")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("link: 'node1.nic3<->*', down: true", "leaves dead ports out when it starts"),
        ("link: 'node1.nic3<->*', down: true, at: 1 ms", "before 2.29 ends with an error"),
        ("link: 'node1.nic3<->*', down: true, at: 1 ms, until: 2 ms", None),
        ("link: 'node1.nic3<->*', factor: 0.5", None),
    ],
)
def test_what_happens_without_a_nic_is_said_to_be_assumed(fault: str, told: str | None) -> None:
    done = sweep(
        fabric("kind: rail_optimized", 2) + f"perturb: {{links: [{{{fault}}}]}}\n"
        "collective: {op: all_reduce, size: 256 MiB, algorithm: ring}\n"
    )
    said = [text for text in done.warnings if "is assumed" in text]
    assert (not said) if told is None else (len(said) == 1 and told in said[0])
