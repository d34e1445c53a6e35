"""Small hand-made nodes for tests of fabric and topologies; rates are round, not real."""

from __future__ import annotations

from dataclasses import replace

from simulator.fabric.model import GpuSpec, NodeTemplate, TemplateLink, TemplateVertex

GB = 1e9
US = 1e-6

GPU = GpuSpec(
    name="test",
    generation="hopper",
    memory_bytes=80 * 10**9,
    memory_Bps=3e12,
    peak_flops={"bf16": 1e15},
    source="made up",
)


def node(
    name: str,
    vertices: list[tuple[str, str]],
    links: list[tuple[str, str, str, float]],
    **changes: object,
) -> NodeTemplate:
    template = NodeTemplate(
        name=name,
        summary="for tests",
        gpu=GPU,
        vertices=tuple(TemplateVertex(name=n, kind=k) for n, k in vertices),
        links=tuple(
            TemplateLink(a=a, b=b, kind=k, bandwidth_Bps=r, latency_s=0.1 * US, source="made up")
            for a, b, k, r in links
        ),
        nic_kind="infiniband",
        nic_rate_Bps=50 * GB,
        nic_latency_s=0.5 * US,
        cpu_model="test",
        cpu_arch="x86_intel",
        p2p=True,
        gpudirect=True,
        source="made up",
        source_quality="weak",
    )
    return replace(template, **changes)  # type: ignore[arg-type]


def _hosts(gpus: int, nics: int) -> tuple[list[tuple[str, str]], list[tuple[str, str, str, float]]]:
    """Two sockets with two PCIe switches each; GPUs and NICs dealt over the switches in order."""
    vertices = [(f"gpu{i}", "gpu") for i in range(gpus)]
    vertices += [(f"pcie{i}", "pcie_switch") for i in range(4)]
    vertices += [("cpu0", "cpu"), ("cpu1", "cpu")]
    vertices += [(f"nic{i}", "nic") for i in range(nics)]
    links = [(f"gpu{i}", f"pcie{i * 4 // gpus}", "pcie", 60 * GB) for i in range(gpus)]
    links += [(f"nic{i}", f"pcie{i * 4 // nics}", "pcie", 60 * GB) for i in range(nics)]
    links += [(f"pcie{i}", f"cpu{i // 2}", "pcie", 60 * GB) for i in range(4)]
    links += [("cpu0", "cpu1", "upi", 40 * GB)]
    return vertices, links


def dgx(**changes: object) -> NodeTemplate:
    """8 GPUs on one NVSwitch, 4 PCIe switches with 2 GPUs and 2 NICs each, 2 CPUs."""
    vertices, links = _hosts(8, 8)
    vertices.append(("nvswitch0", "nvswitch"))
    links += [(f"gpu{i}", "nvswitch0", "nvlink", 450 * GB) for i in range(8)]
    return node("dgx", vertices, links, **changes)


def hgx(**changes: object) -> NodeTemplate:
    """8 GPUs on one NVSwitch, each alone with its NIC on a PCIe switch (as in a DGX H100)."""
    vertices = [(f"{kind}{i}", kind) for kind in ("gpu", "nic") for i in range(8)]
    vertices += [(f"pcie{i}", "pcie_switch") for i in range(8)]
    vertices += [("nvswitch0", "nvswitch"), ("cpu0", "cpu"), ("cpu1", "cpu")]
    links = [(f"gpu{i}", "nvswitch0", "nvlink", 450 * GB) for i in range(8)]
    links += [
        (f"{kind}{i}", f"pcie{i}", "pcie", 60 * GB) for kind in ("gpu", "nic") for i in range(8)
    ]
    links += [(f"pcie{i}", f"cpu{i // 4}", "pcie", 60 * GB) for i in range(8)]
    links += [("cpu0", "cpu1", "upi", 40 * GB)]
    return node("hgx", vertices, links, **changes)


def tray(**changes: object) -> NodeTemplate:
    """A tray of an NVLink domain: 4 GPUs on two shared NVSwitches, one NIC each."""
    vertices = [(f"{kind}{i}", kind) for kind in ("gpu", "nic") for i in range(4)]
    vertices += [("cpu0", "cpu"), ("nvswitch0", "nvswitch"), ("nvswitch1", "nvswitch")]
    links = [(f"gpu{i}", f"nvswitch{j}", "nvlink", 450 * GB) for i in range(4) for j in range(2)]
    links += [(f"gpu{i}", "cpu0", "nvlink_c2c", 300 * GB) for i in range(4)]
    links += [(f"nic{i}", "cpu0", "pcie", 60 * GB) for i in range(4)]
    return node("tray", vertices, links, **changes)


CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
"""NVLinks per pair of the hybrid cube mesh of a DGX-1 with V100."""


def cube_mesh(**changes: object) -> NodeTemplate:
    """8 GPUs in a hybrid cube mesh, two per PCIe switch with one NIC (as a DGX-1 V100)."""
    vertices, links = _hosts(8, 4)
    links += [
        (f"gpu{a}", f"gpu{b}", "nvlink", 25 * GB * count) for (a, b), count in CUBE_MESH.items()
    ]
    return node("cube_mesh", vertices, links, **changes)


def pcie_box(**changes: object) -> NodeTemplate:
    """4 GPUs without NVLink on four PCIe switches of two sockets, one NIC on the first."""
    vertices, links = _hosts(4, 4)
    vertices = [v for v in vertices if v[0] not in ("nic1", "nic2", "nic3")]
    links = [link for link in links if link[0] not in ("nic1", "nic2", "nic3")]
    return node("pcie_box", vertices, links, **changes)
