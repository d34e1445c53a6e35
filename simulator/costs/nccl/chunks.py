"""The largest chunk of a call: from the connection's buffer, shrunk for small calls.

References
----------
NCCL src/enqueue.cc: computeColl (to 2.20), computeCollChunkInfo (2.21), calcCollChunking (2.22 and
later); src/include/device.h for steps, lines and grains; src/include/collectives.h.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.base.errors import ScenarioError, unknown_name
from simulator.costs.nccl.graph import PROTOCOLS
from simulator.costs.nccl.model import floor_log2
from simulator.costs.nccl.version import NcclVersion

__all__ = ["STEPS", "ChunkLimit", "NvlsLimits", "chunk_limit", "default_buffer_bytes"]

STEPS = 8
"""Slots of a connection's buffer, in all versions."""
_GRAINS = {"LL": 16, "LL128": 1920, "Simple": 512}
_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlsLimits:
    """Caps on the chunk of NVLS."""

    chunk_bytes: int = 128 * _KIB
    """32 KiB over nodes when NCCL expects less than 150 GB/s."""
    tree_chunk_bytes: int | None = None
    """Largest chunk of NVLSTree; None: 64 KiB from four nodes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLimit:
    """A full chunk."""

    chunk_bytes: int
    slices: int
    slots: int


def default_buffer_bytes(protocol: str) -> int:
    """Return NCCL's buffer per connection.

    Examples
    --------
    >>> [default_buffer_bytes(protocol) for protocol in ("LL", "LL128", "Simple")]
    [524288, 4915200, 4194304]
    """
    sizes = {
        # 8 lines of 16 B per thread and step.
        "LL": 8 * 512 * STEPS * 16,
        # 120 elements of 8 B per thread and step.
        "LL128": 120 * 640 * STEPS * 8,
        "Simple": 1 << 22,
    }
    if protocol not in sizes:
        raise ScenarioError(unknown_name("protocol", protocol, PROTOCOLS))
    return sizes[protocol]


def _halve(size_bytes: int, chunk: int, per_chunk: int, rules: list[tuple[float, int]]) -> int:
    """Halve the chunk while the call has fewer than so many of them and it is above a floor.

    Parameters
    ----------
    per_chunk
        Chunks in flight at the same time, over channels and heads.
    rules
        (number of chunks wanted, floor), one after the other.
    """
    for wanted, floor in rules:
        while size_bytes // (per_chunk * chunk) < wanted and chunk > floor:
            chunk //= 2
    return chunk


def _shrunk(
    algorithm: str,
    protocol: str,
    chunk: int,
    size_bytes: int,
    n_ranks: int,
    n_nodes: int,
    n_channels: int,
    version: NcclVersion,
    n_heads: int,
) -> int:
    """Return the chunk of a tree or of CollNet."""
    levels, per_node = floor_log2(n_nodes), n_ranks / n_nodes
    depth = n_ranks // n_nodes - 1 + levels
    kib = _KIB
    if algorithm == "tree" and protocol == "LL128":
        hops = 1 + levels + 0.1 * per_node
        rules = [(hops * 64 / per_node, 128 * kib), (hops * 16 / per_node, 32 * kib)]
        return _halve(size_bytes, chunk, n_channels, rules)
    if algorithm == "tree" and protocol == "Simple" and not version.since(2, 20):
        rules = [(depth * 8, 128 * kib), (depth * 4, 64 * kib), (depth, 32 * kib)]
        return _halve(size_bytes, chunk, n_channels, rules)
    if algorithm == "collnet_direct":
        depth = 1 if per_node <= 1 else 2
        rules = [(depth * 64, 128 * kib), (depth * 8, 64 * kib), (depth * 8, 32 * kib)]
        return _halve(size_bytes, chunk, n_channels * n_heads, rules)
    if algorithm == "collnet_chain":
        depth = n_ranks // n_nodes
        rules = [(depth * 64, 128 * kib), (depth * 8, 64 * kib), (depth, 32 * kib)]
        return _halve(size_bytes, min(256 * kib, chunk), n_channels, rules)
    return chunk


def _nvls_chunk(
    algorithm: str, chunk: int, size_bytes: int, n_nodes: int, in_flight: int, nvls: NvlsLimits
) -> int:
    if algorithm == "nvls":
        chunk = min(chunk, nvls.chunk_bytes)
        rules = [(64, 64), (8, 32), (2, 16)]
    else:
        most = nvls.tree_chunk_bytes or (64 * _KIB if n_nodes >= 4 else nvls.chunk_bytes)
        chunk = min(nvls.chunk_bytes, most)
        rules = [(32, 256), (16, 128), (4, 64), (1, 32)]
    for wanted, kib in rules:
        if size_bytes < wanted * in_flight * chunk and chunk > kib * _KIB:
            chunk = kib * _KIB
    return chunk


def _pat_chunk(collective: str, chunk: int, size_bytes: int, n_channels: int) -> int:
    parts = 32 if collective == "all_gather" else 16
    while chunk * n_channels * parts > size_bytes and chunk > 64 * _KIB:
        chunk //= 2
    return chunk


def chunk_limit(
    collective: str,
    algorithm: str,
    protocol: str,
    size_bytes: int,
    n_ranks: int,
    n_nodes: int,
    n_channels: int,
    version: NcclVersion,
    buffer_bytes: int,
    *,
    n_heads: int = 8,
    nvls: NvlsLimits,
) -> ChunkLimit:
    """Return the size of a full chunk, its slices and the chunks a buffer holds.

    Parameters
    ----------
    collective, algorithm, protocol, size_bytes
        The call.
    n_ranks, n_nodes, n_channels, n_heads
        Where it runs.
    version
        Tree/Simple chunks shrink to 2.19 only.
    buffer_bytes
        Buffer of a connection of this protocol.
    nvls
        Caps for NVLS.
    """
    ring_simple = algorithm == "ring" and protocol == "Simple"
    chained = collective in ("broadcast", "reduce")
    steps = STEPS // 2 if ring_simple and not chained else 1
    slices = 2 if ring_simple and not chained else 1
    chunk = buffer_bytes // STEPS * steps
    if protocol == "LL":
        chunk //= 2  # each 16 B line has 8 B of data
    elif protocol == "LL128":
        chunk = chunk // 16 * 15  # 120 B of data in a line of 128 B
    if algorithm in ("nvls", "nvls_tree"):
        in_flight = n_channels * n_heads
        chunk = _nvls_chunk(algorithm, chunk, size_bytes, n_nodes, in_flight, nvls)
    elif algorithm == "pat":
        chunk = _pat_chunk(collective, chunk, size_bytes, n_channels)
    else:
        chunk = _shrunk(
            algorithm,
            protocol,
            chunk,
            size_bytes,
            n_ranks,
            n_nodes,
            n_channels,
            version,
            n_heads,
        )
    grain = _GRAINS[protocol]
    return ChunkLimit(
        chunk_bytes=max(grain, chunk // grain * grain), slices=slices, slots=STEPS // steps
    )
