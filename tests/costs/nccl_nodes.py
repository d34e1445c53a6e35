"""Nodes for the tests of NCCL's search, written down by hand in NCCL's own constants."""

from __future__ import annotations

from collections.abc import Iterable

from simulator.costs.nccl.links import nccl_link_GBps, socket_GBps
from simulator.costs.nccl.system import SearchLink, SearchOptions, SearchSystem, SearchVertex
from simulator.costs.nccl.version import NcclVersion

CUBE_MESH = {
    **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)], 2),
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)], 1),
}
"""NVLinks of a DGX-1V by pair of GPUs, from its ``nvidia-smi topo -m``."""


def node(
    version: str = "2.21.5",
    *,
    sm: int,
    n: int,
    nvswitch_links: int = 0,
    mesh: dict[tuple[int, int], int] | None = None,
    per_switch: int = 1,
    nics: Iterable[tuple[int, float]] = (),
    pcie_GBps: float = 24.0,
    cpu: str = "x86_intel",
    cpu_model: str = "Xeon Platinum 8280",
    numa: int = 2,
    root_ports: bool = False,
    options: SearchOptions | None = None,
    p2p: bool = True,
    keep: Iterable[int] | None = None,
    gdr: bool = True,
) -> SearchSystem:
    """Return a node: GPUs in groups of *per_switch* under PCIe switches, split over *numa* CPUs.

    `nics` holds (PCIe switch, GB/s); with `root_ports` GPUs and NICs hang on the CPU itself.
    """
    release = NcclVersion.parse(version)
    keep = set(range(n)) if keep is None else set(keep)
    groups = n // per_switch
    vertices = [SearchVertex(name=f"gpu{g}", kind="gpu", sm=sm) for g in range(n) if g in keep]
    links: list[SearchLink] = []

    def join(a: str, b: str, kind: str, bw: float) -> None:
        links.append(SearchLink(a=a, b=b, kind=kind, bandwidth_GBps=bw))

    vertices += [SearchVertex(name=f"cpu{c}", kind="cpu") for c in range(numa)]
    if not root_ports:
        for s in range(groups):
            vertices.append(SearchVertex(name=f"sw{s}", kind="pcie_switch"))
            join(f"sw{s}", f"cpu{s * numa // groups}", "pcie", pcie_GBps)

    def host(s: int) -> str:
        return f"cpu{s * numa // groups}" if root_ports else f"sw{s}"

    for g in sorted(keep):
        join(f"gpu{g}", host(g // per_switch), "pcie", pcie_GBps)
    unit = nccl_link_GBps("nvlink", 50e9 if sm >= 100 else 25e9, sm=sm, version=release)
    if nvswitch_links:
        vertices.append(SearchVertex(name="nvs", kind="nvswitch"))
        for g in sorted(keep):
            join(f"gpu{g}", "nvs", "nvlink", nvswitch_links * unit)
    for (a, b), count in (mesh or {}).items():
        if a in keep and b in keep:
            join(f"gpu{a}", f"gpu{b}", "nvlink", count * unit)
    for i, (s, speed) in enumerate(nics):
        vertices.append(SearchVertex(name=f"nic{i}", kind="nic", net_GBps=speed, gpudirect=gdr))
        join(f"nic{i}", host(s), "pcie", pcie_GBps)
    return SearchSystem(
        version=release,
        vertices=tuple(vertices),
        links=tuple(links),
        cpu=cpu,
        socket_GBps=socket_GBps(cpu, cpu_model, release),
        gpu_p2p=p2p,
        options=options or SearchOptions(),
    )
