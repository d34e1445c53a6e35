"""Names: aliases, words, the PCIe family, changes after a plus, and what is refused."""

from pathlib import Path

import pytest

from simulator.base.errors import TopologyError
from topologies import hardware
from topologies.hardware_joins import vertex_kind

ALIASES = hardware.aliases()


def count(node, kind):
    return sum(vertex.kind == kind for vertex in node.vertices)


def fold(text):
    return "".join(letter for letter in text.lower() if letter not in "-_ .")


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_an_alias_leads_to_its_preset(alias):
    assert hardware.load(alias).name == ALIASES[alias]


def test_no_alias_is_said_twice_or_hides_a_preset():
    folded = [fold(name) for name in (*ALIASES, *hardware.names())]
    assert len(folded) == len(set(folded))


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("DGX_H100", "dgx-h100"),
        ("hgx h100", "hgx-h100"),
        ("P5.48xlarge", "aws-p5"),
        ("standard_nd96isr_h100_v5", "azure-nd-h100-v5"),
        ("DGX A100 80GB", "dgx-a100-80gb"),
        ("a3-megagpu-8g", "gcp-a3-mega"),
        ("8xH100", "hgx-h100"),
        ("8 x H100", "hgx-h100"),
        ("2×B200", "hgx-b200+2gpus"),
        ("H100", "hgx-h100"),
        ("4xA100-40GB", "dgx-a100-40gb+4gpus"),
        ("8x4090", "pcie-rtx4090-8"),
        ("2xH100-PCIe", "pcie-h100-2"),
        ("PCIE_RTX-4090_8_p2p", "pcie-rtx4090-8-p2p"),
        ("pcie-a100-8-nvl-2s", "pcie-a100-8-2s-nvl"),
        ("mi100-4-xgmi", "pcie-mi100-4-nvl"),
        ("p5.48xlarge+2gpus+1xETH100", "aws-p5+2gpus+1xeth100"),
    ],
)
def test_names_as_people_say_them(said, name):
    assert hardware.load(said).name == name


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("dgx-h10", "Did you mean 'dgx-h100'"),
        ("p5.48xlrge", "Did you mean 'p5.48xlarge'"),
        ("", "unknown node preset ''"),
        ("9xH100", "has 8 GPUs, 9 were asked for"),
        ("pcie-rtx409-8", "Did you mean 'rtx4090'"),
        ("pcie-a100-0", "1 to 16 cards"),
        ("pcie-a100-8-p2", "Did you mean 'p2p'"),
        ("pcie-a100-8-p2p-nop2p", "exclude each other"),
        ("pcie-t4-4-nvl", "takes no bridge"),
        ("dgx-h100+0gpus", "has 8 GPUs, 0 were asked for"),
        ("dgx-h100+8xfoo200", "unknown change '8xfoo200'"),
        ("dgx-h100+0xib200", "at least one NIC"),
        ("dgx-h100+", "unknown change ''"),
        ("pcie-a100-4+1xib200@cpu7", "place in pcie-a100-4 'cpu7'"),
        ("dgx-h100+1xib200@swich0", "Did you mean 'switch0'"),
        ("dgx-h100+1xib200@", "unknown change"),
    ],
)
def test_what_is_not_a_name_says_so(said, words):
    with pytest.raises(TopologyError) as caught:
        hardware.load(said)
    assert words in str(caught.value)


def nics(name: str) -> tuple[list[str], float]:
    node = hardware.load(name)
    places = [link.b for link in node.links if vertex_kind(link.a) == "nic"]
    return places, node.nic_rate_Bps


def test_nics_stand_where_it_is_said_and_bonds_are_one_nic_of_their_sum():
    assert nics("pcie-a100-4-2s+2xib200@cpu1@gpu0") == (["cpu1", "cpu0"], 25e9)
    assert nics("dgx-a100+4xroce2x100@switch0@switch2") == (
        ["pcie_switch0", "pcie_switch2", "pcie_switch0", "pcie_switch2"],
        25e9,
    )
    # Beside a GPU is where its own PCIe link leads.
    (place,), _ = nics("dgx-h100+1xroce400@gpu5")
    own = [link.b for link in hardware.load("dgx-h100").links if link.a == "gpu5"]
    assert place in own


def test_a_box_has_one_socket_up_to_four_cards_unless_it_is_said():
    sockets = {
        name: count(hardware.load(name), "cpu")
        for name in ("pcie-t4-4", "pcie-t4-4-2s", "pcie-t4-8", "pcie-t4-8-1s", "pcie-t4-1-2s")
    }
    assert sockets == {
        "pcie-t4-4": 1,
        "pcie-t4-4-2s": 2,
        "pcie-t4-8": 2,
        "pcie-t4-8-1s": 1,
        "pcie-t4-1-2s": 1,
    }


def test_cards_are_spread_evenly_over_sockets_and_switches():
    for name in ("pcie-rtx3090-8", "pcie-rtx3090-8-sw"):
        node = hardware.load(name)
        numa = [v.numa for v in node.vertices if v.kind == "gpu"]
        assert numa == [0, 0, 0, 0, 1, 1, 1, 1]
    # as in a published NCCL topology of 8 RTX 3090: a switch of four cards under each socket
    assert count(node, "pcie_switch") == 2


def test_bridges_join_neighbours_at_the_rate_of_the_data_sheet():
    def bridged(name):
        return {
            (link.a, link.b): link.bandwidth_Bps
            for link in hardware.load(name).links
            if {vertex_kind(link.a), vertex_kind(link.b)} == {"gpu"}
        }

    assert bridged("pcie-a100-4-nvl") == {("gpu0", "gpu1"): 300e9, ("gpu2", "gpu3"): 300e9}
    assert bridged("pcie-a6000-3-nvl") == {("gpu0", "gpu1"): 56.25e9}
    assert bridged("pcie-rtx2080ti-2-nvl") == {("gpu0", "gpu1"): 50e9}
    # a hive of four MI100: one link of 46 GB/s between all pairs
    assert set(bridged("pcie-mi100-4-nvl").values()) == {46e9}
    assert len(bridged("pcie-mi100-8-nvl")) == 2 * 6
    # H200 NVL: 450 GB/s per card over three peers
    assert set(bridged("pcie-h200nvl-4-nvl").values()) == {150e9}


def test_peer_to_peer_is_the_drivers_default_until_it_is_said():
    said = ("rtx4090-2", "rtx4090-2-p2p", "l40s-2", "l40s-2-nop2p", "rtx3090-2-nvl")
    assert [hardware.load(f"pcie-{box}").p2p for box in said] == [False, True, True, False, False]
    assert not hardware.load("pcie-rtx4090-2").gpudirect


def test_cx8_gives_each_card_its_own_nic():
    node = hardware.load("pcie-rtxpro6000-8-cx8")
    assert count(node, "nic") == count(node, "pcie_switch") == 8
    assert node.nic_rate_Bps == 50e9


def test_a_subset_keeps_the_first_gpus_and_the_rest_of_the_node():
    whole, half = hardware.load("dgx-h100"), hardware.load("dgx-h100+4gpus")
    assert [v.name for v in half.vertices if v.kind == "gpu"] == ["gpu0", "gpu1", "gpu2", "gpu3"]
    for kind in ("nvswitch", "cpu", "nic", "pcie_switch"):
        assert count(half, kind) == count(whole, kind)
    assert not any("gpu7" in (link.a, link.b) for link in half.links)
    assert hardware.subset(whole, 8).links == whole.links


def test_a_nic_on_an_idle_die_is_reached_through_it():
    node = hardware.load("mi250x+1gpus")
    at = {link.a: link for link in node.links if link.a.startswith("nic")}
    assert {nic: link.b for nic, link in at.items()} == {
        "nic0": "gpu0",  # die 1, by the four links inside the MI250X
        "nic1": "cpu1",  # dies 3, 5 and 7 have no link to die 0 left but their CPU
        "nic2": "cpu0",
        "nic3": "cpu2",
    }
    # 25 GT/s · 128/130 · 16 / 8 is below 4 × 50 GB/s; the CPU link gives 36 GB/s
    assert at["nic0"].bandwidth_Bps == pytest.approx(49.2308e9, rel=1e-5)
    assert at["nic1"].bandwidth_Bps == 36e9
    assert at["nic0"].latency_s == pytest.approx(0.1e-6 + 0.3e-6)


def test_other_nics_are_spread_over_the_places_of_the_old_ones():
    node = hardware.load("dgx-1+2xroce100")
    places = {link.a: link.b for link in node.links if link.a.startswith("nic")}
    assert places == {"nic0": "pcie_switch0", "nic1": "pcie_switch2"}
    assert node.nic_kind == "roce"
    assert [v.numa for v in node.vertices if v.kind == "nic"] == [0, 1]
    twice = hardware.load("gb300-nvl72+8xroce400")
    assert [k.b[-1] for k in twice.links if k.a.startswith("nic")] == list("00112233")


def test_p2p_and_gpudirect_can_be_switched():
    node = hardware.load("hgx-h100+nop2p+nogdr")
    assert (node.p2p, node.gpudirect) == (False, False)
    assert hardware.load("aws-g5+p2p+gdr").p2p


def test_a_summary_tells_the_changes():
    assert hardware.summary("dgx-h100+2gpus").endswith("(2gpus)")
    assert hardware.summary("pcie-rtx4090-8").startswith("PCIe box: 8× rtx4090, 2 sockets, no P2P")


def test_the_page_of_presets_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "presets.md"
    assert page.read_text(encoding="utf-8") == hardware.markdown()


def test_every_family_pattern_is_explained():
    assert all(len(text) > 10 for text in hardware.families().values())
