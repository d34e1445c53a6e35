"""Every preset is complete, and what the vendors publish about it can be read off it."""

from collections import Counter, defaultdict

import pytest

from simulator.base.errors import TopologyError
from simulator.fabric.model import LINK_KINDS, VERTEX_KINDS
from topologies import hardware
from topologies.hardware_build import DATA, build, gpu_spec, merged, read
from topologies.hardware_joins import vertex_kind

NAMES = hardware.names()
NODES = [name for name in NAMES if not name.startswith("pcie-")]


def count(node, kind):
    return sum(vertex.kind == kind for vertex in node.vertices)


def between_gpus(node, kinds=("nvlink", "xgmi")):
    """Sum of the fast links of each GPU, those to NVSwitches included, hosts excluded."""
    total = defaultdict(float)
    for link in node.links:
        ends = {vertex_kind(link.a), vertex_kind(link.b)}
        if link.kind in kinds and ends <= {"gpu", "nvswitch"}:
            for end in (link.a, link.b):
                if vertex_kind(end) == "gpu":
                    total[end] += link.bandwidth_Bps
    return dict(total)


def reached(node):
    beside = defaultdict(set)
    for link in node.links:
        beside[link.a].add(link.b)
        beside[link.b].add(link.a)
    seen, queue = {"gpu0"}, ["gpu0"]
    while queue:
        for other in beside[queue.pop()] - seen:
            seen.add(other)
            queue.append(other)
    return seen


def test_the_list_is_not_empty():
    assert len(NODES) >= 60
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_whole(name):
    node = hardware.load(name)
    assert node.name == name
    assert node.summary == hardware.summary(name)
    assert [v.name for v in node.vertices if v.kind == "gpu"] == [
        f"gpu{place}" for place in range(count(node, "gpu"))
    ]
    names = {vertex.name for vertex in node.vertices}
    assert reached(node) == names
    assert len(names) == len(node.vertices)
    pairs = Counter(frozenset((link.a, link.b)) for link in node.links)
    assert max(pairs.values()) == 1
    assert all(vertex.kind in VERTEX_KINDS for vertex in node.vertices)
    for link in node.links:
        assert link.kind in LINK_KINDS
        assert link.bandwidth_Bps > 1e9
        assert 0 < link.latency_s < 2e-6
        ends = {vertex_kind(link.a), vertex_kind(link.b)}
        # every link of two CPUs is a socket or die link, and nothing else is
        assert (link.kind == "upi") == (ends == {"cpu"})
    assert count(node, "nic") > 0
    assert node.nic_kind in ("infiniband", "roce", "efa", "slingshot", "ethernet")
    assert node.nic_rate_Bps > 0
    assert node.nic_latency_s > 0
    assert node.cpu_arch in ("x86_intel", "x86_amd", "arm", "power")
    assert node.cpu_memory_Bps > 10e9
    assert node.source_quality in ("vendor", "measured", "weak")


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_a_source(name):
    node = hardware.load(name)
    texts = [node.source, node.gpu.source, *(link.source for link in node.links)]
    assert all(len(text.strip()) > 10 for text in texts)


def test_every_link_type_and_platform_has_a_source():
    links = read("links.yaml")
    entries = [*links["types"].values(), *links["nics"].values()]
    for platform in read("platforms.yaml").values():
        entries += [platform, *(platform[key] for key in ("socket", "on_die") if key in platform)]
    assert len(entries) > 50
    assert all(len(entry["source"]) > 5 for entry in entries)


@pytest.mark.parametrize("name", NAMES)
def test_numa_follows_the_host_link_and_nics_sit_near_a_gpu(name):
    node = hardware.load(name)
    numa = {vertex.name: vertex.numa for vertex in node.vertices}
    for vertex in node.vertices:
        assert (vertex.numa is None) == (vertex.kind == "nvswitch")
    for link in node.links:
        ends = {vertex_kind(link.a), vertex_kind(link.b)}
        if link.kind in ("pcie", "nvlink_c2c") or (link.kind == "xgmi" and ends == {"gpu", "cpu"}):
            assert numa[link.a] == numa[link.b]
    gpus_at = {numa[v.name] for v in node.vertices if v.kind == "gpu"}
    assert any(numa[v.name] in gpus_at for v in node.vertices if v.kind == "nic")


# GB/s per GPU and direction, half of the "both directions" number of each data sheet.
DATA_SHEET = {
    "v100-sxm2-16gb": 150,
    "v100-sxm2-32gb": 150,
    "v100-sxm3-32gb": 150,
    "a100-sxm4-40gb": 300,
    "a100-sxm4-64gb": 300,
    "a100-sxm4-80gb": 300,
    "a800-sxm4-80gb": 200,
    "h100-sxm": 450,
    "h100-96gb-500w": 450,
    "h200-sxm": 450,
    "h20": 450,
    "h800-sxm": 200,
    "gh200-96gb": 450,
    "b200-sxm": 900,
    "b300-sxm": 900,
    "gb200": 900,
    "gb300": 900,
    # xGMI: seven links of 64 (896 GB/s both directions over 7 links) and of 76.8 (1075.2)
    "mi300x": 448,
    "mi325x": 448,
    "mi355x": 537.6,
}


@pytest.mark.parametrize("name", NODES)
def test_fast_links_per_gpu_equal_the_data_sheet(name):
    node = hardware.load(name)
    rates = between_gpus(node)
    if name in ("mi250x", "gh200", "azure-nc-a100-v4") or not rates:
        return  # tested below, or no link between GPUs
    if name in ("ac922-4", "summit"):
        # six V100 links, shared between GPUs and the POWER9: 3 + 3, and 4 + 2
        rates = {gpu: rates[gpu] + to_host(node, gpu) for gpu in rates}
    assert len(rates) == count(node, "gpu")
    for rate in rates.values():
        assert rate == pytest.approx(DATA_SHEET[node.gpu.name] * 1e9)


def to_host(node, gpu):
    return sum(
        link.bandwidth_Bps
        for link in node.links
        if gpu in (link.a, link.b) and "cpu" in {vertex_kind(link.a), vertex_kind(link.b)}
    )


@pytest.mark.parametrize(
    ("name", "gpus", "nics", "cpus", "gbit"),
    [
        ("dgx-1", 8, 4, 2, 100),
        ("dgx-2", 16, 8, 2, 100),
        ("v100-sxm2-4", 4, 1, 2, 100),
        ("DGX A100 40GB", 8, 8, 4, 200),
        ("polaris", 4, 2, 4, 200),
        ("perlmutter", 4, 4, 4, 200),
        ("abci2", 8, 4, 2, 200),
        ("dgx-h100", 8, 8, 2, 400),
        ("hgx-h20", 8, 8, 2, 400),
        ("alps", 4, 4, 4, 200),
        ("gh200", 1, 1, 1, 400),
        ("dgx-b300", 8, 8, 2, 800),
        ("gb200-nvl72", 4, 4, 2, 400),
        ("gb300-nvl72", 4, 4, 2, 800),
        ("frontier", 8, 4, 4, 200),
        ("mi300x", 8, 8, 2, 400),
        ("p3.16xlarge", 8, 1, 2, 25),
        ("p3dn", 8, 1, 2, 100),
        ("p4d.24xlarge", 8, 4, 2, 100),
        ("p5.48xlarge", 8, 32, 2, 100),
        ("p5en", 8, 16, 2, 200),
        ("p6-b200", 8, 8, 2, 400),
        ("g4dn.12xlarge", 4, 1, 2, 50),
        ("Standard_ND40rs_v2", 8, 1, 2, 100),
        ("Standard_ND96asr_v4", 8, 8, 4, 200),
        ("Standard_ND96isr_H100_v5", 8, 8, 2, 400),
        ("a2-megagpu-16g", 16, 1, 2, 100),
        ("a3-highgpu-8g", 8, 4, 2, 200),
        ("a3-megagpu-8g", 8, 8, 2, 200),
        ("a3-ultragpu-8g", 8, 8, 2, 400),
        ("BM.GPU4.8", 8, 16, 4, 100),
        ("BM.GPU.H100.8", 8, 16, 2, 200),
    ],
)
def test_counts_are_those_that_the_vendor_states(name, gpus, nics, cpus, gbit):
    node = hardware.load(name)
    assert (count(node, "gpu"), count(node, "nic"), count(node, "cpu")) == (gpus, nics, cpus)
    assert node.nic_rate_Bps == gbit * 1e9 / 8


@pytest.mark.parametrize("name", ["dgx-1-v100", "aws-p3", "azure-nd-v2"])
def test_each_gpu_of_the_cube_mesh_uses_six_links_to_four_peers(name):
    node = hardware.load(name)
    links = defaultdict(dict)
    for link in node.links:
        if link.kind == "nvlink":
            links[link.a][link.b] = links[link.b][link.a] = link.bandwidth_Bps / 25e9
    # nvidia-smi topo -m of a DGX-1 V100, rows of GPU 0 and GPU 5
    assert links["gpu0"] == {"gpu1": 1, "gpu2": 1, "gpu3": 2, "gpu4": 2}
    assert links["gpu5"] == {"gpu1": 2, "gpu4": 1, "gpu6": 2, "gpu7": 1}
    assert {gpu: (len(to), sum(to.values())) for gpu, to in links.items()} == {
        f"gpu{place}": (4, 6) for place in range(8)
    }


def test_each_die_of_mi250x_uses_its_eight_ports():
    # CDNA 2: eight ports per die. One goes to the CPU; on the odd dies one is the PCIe of the NIC.
    node = hardware.load("mi250x")
    ports = Counter()
    for link in node.links:
        ends = (link.a, link.b)
        width = link.bandwidth_Bps / 50e9 if {*map(vertex_kind, ends)} == {"gpu"} else 1
        for end in ends:
            ports[end] += round(width)
    dies = {f"gpu{place}": ports[f"gpu{place}"] for place in range(8)}
    assert dies == dict.fromkeys(dies, 8)
    with_nic = {end for k in node.links for end in (k.a, k.b) if "nic" in k.a + k.b} - {"nic"}
    assert {end for end in with_nic if end.startswith("gpu")} == {"gpu1", "gpu3", "gpu5", "gpu7"}


def test_pcie_rates_follow_lane_rate_and_coding():
    # x16: 8 GT/s · 128/130 · 16 / 8 = 15.75 GB/s, then doubled twice; PCIe 6: 64 · 16 / 8 · 242/256
    rates = {
        generation: next(
            link.bandwidth_Bps
            for link in hardware.load(name).links
            if {link.a, link.b} == {"gpu0", host}
        )
        for generation, name, host in (
            (3, "pcie-t4-2", "cpu0"),
            (4, "pcie-a100-2", "cpu0"),
            (5, "pcie-h100-2", "cpu0"),
            (6, "hgx-b300", "pcie_switch0"),
        )
    }
    assert rates == {
        3: pytest.approx(15.7538e9, rel=1e-5),
        4: pytest.approx(31.5077e9, rel=1e-5),
        5: pytest.approx(63.0154e9, rel=1e-5),
        6: pytest.approx(121e9, rel=1e-5),
    }


def test_latency_of_a_path_is_wires_plus_passed_vertices():
    # gpu – pcie_switch – nic: two wires of 0.1 us and one switch of 0.12 us
    node = hardware.load("hgx-h100")
    path = [
        link.latency_s
        for link in node.links
        if {link.a, link.b} in ({"gpu0", "pcie_switch0"}, {"nic0", "pcie_switch0"})
    ]
    assert sum(path) == pytest.approx(0.32e-6)


def test_p5_keeps_the_interior_of_hgx_h100_and_changes_its_nics():
    p5, hgx = hardware.load("p5"), hardware.load("hgx-h100")

    def nvlinks(node):
        return [(k.a, k.b, k.bandwidth_Bps) for k in node.links if k.kind == "nvlink"]

    assert nvlinks(p5) == nvlinks(hgx)
    # p5.48xl-topo.xml of aws-ofi-nccl: EFA 4 to 7 (rdmap96s0 …) behind the switch of GPU 1
    beside = {link.b: link.a for link in p5.links if link.a.startswith("gpu") and "pcie" in link.b}
    near = [k.a for k in p5.links if k.a.startswith("nic") and beside[k.b] == "gpu1"]
    assert near == ["nic4", "nic5", "nic6", "nic7"]


def test_ndv4_numa_follows_the_published_topology_file():
    # ndv4-topo.xml: bus 1 and 2 on NUMA 1, 3 and 4 on 0, b and c on 3, d and e on 2; NVML numbers
    # GPUs in bus order
    node = hardware.load("ND v4")
    assert [v.numa for v in node.vertices if v.kind == "gpu"] == [1, 1, 0, 0, 3, 3, 2, 2]


def test_the_tray_of_an_nvl72_shares_its_switch_with_seventeen_others():
    for name in ("gb200-nvl72", "gb300-nvl72"):
        assert hardware.load(name).nvl_domain_nodes * count(hardware.load(name), "gpu") == 72
    assert hardware.load("hgx-b200").nvl_domain_nodes == 1


def test_memory_bandwidth_is_that_of_the_vertex_not_of_the_socket():
    # EPYC 7742: 8 channels · 3200 MT/s · 8 B = 204.8 GB/s in four NUMA nodes
    assert hardware.load("dgx-a100").cpu_memory_Bps == pytest.approx(51.2e9)
    assert hardware.load("hgx-h100").cpu_memory_Bps == pytest.approx(307.2e9)


def test_gpu_models_have_what_the_roofline_needs():
    models = sorted(path.stem for path in (DATA / "gpus").glob("*.yaml"))
    assert len(models) > 40
    for model in models:
        gpu = gpu_spec(model)
        assert gpu.memory_bytes > 5e9
        assert gpu.memory_Bps > 1e11
        assert gpu.peak_flops["fp32"] > 1e12
        assert set(gpu.peak_flops) <= {"fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"}
    assert gpu_spec("h100-sxm").memory_bytes == 80 * 2**30
    assert gpu_spec("a100-sxm4-80gb").peak_flops["bf16"] == pytest.approx(312e12)


def test_every_gpu_model_is_used_by_some_preset():
    used = {hardware.load(name).gpu.name for name in NAMES}
    assert used == {path.stem for path in (DATA / "gpus").glob("*.yaml")}


@pytest.mark.parametrize("missing", ["platform", "gpus", "links", "source"])
def test_a_node_without_a_key_is_refused(missing):
    data = {key: value for key, value in merged("mi300x").items() if key != missing}
    with pytest.raises(TopologyError, match=f"has no {missing}"):
        build("mine", data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"platform": "xeon-8480"}, "Did you mean 'xeon-8480c'"),
        ({"gpus": {"count": 8, "model": "mi30x"}}, "Did you mean 'mi300x'"),
        ({"gpus": {"count": 7, "model": "mi300x"}}, "do not join 7 GPUs"),
        ({"source_quality": "good"}, "unknown source_quality"),
        ({"numa": [0]}, "1 NUMA numbers for 2 CPUs"),
        ({"links": {"host": [{"join": "gpu0 - cpu0", "link": "pcie7 x16"}]}}, "unknown link type"),
        ({"links": {"host": [{"link": "pcie5 x16"}]}}, "does not say who is joined"),
    ],
)
def test_a_wrong_node_is_refused(change, words):
    with pytest.raises(TopologyError) as caught:
        build("mine", {**merged("mi300x"), **change})
    assert words in str(caught.value)
