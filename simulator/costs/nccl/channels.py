"""Threads and channels NCCL gives a call, and how it cuts the data into chunks.

References
----------
NCCL src/enqueue.cc: getChannnelThreadInfo and computeCollChunkInfo (2.21), topoGetAlgoInfo,
scheduleCollTasksToPlan and calcCollChunking (2.22 and later); src/init.cc for buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.base.errors import ScenarioError
from simulator.costs.nccl.chunks import NvlsLimits, chunk_limit, default_buffer_bytes
from simulator.costs.nccl.communicator import TuningInput, nvls_channels
from simulator.costs.nccl.model import bandwidth_GBps
from simulator.costs.nccl.tables import read_table
from simulator.costs.nccl.version import NcclVersion

__all__ = ["CallThreads", "ChunkPlan", "call_threads", "chunk_plan", "plan_call"]

WARP = 32
_MIN_TRAFFIC_BYTES = 16 * 1024
"""Traffic that a channel must have since 2.22."""
_BUFFER_VARIABLES = {
    "Simple": "NCCL_BUFFSIZE",
    "LL": "NCCL_LL_BUFFSIZE",
    "LL128": "NCCL_LL128_BUFFSIZE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallThreads:
    """What a call runs on."""

    n_channels: int
    """Channels, that is blocks of the kernel."""
    threads: int
    """Threads per channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlan:
    """How a call's data is cut; one channel of a rank."""

    n_channels: int
    threads: int
    """0 when not asked for."""
    chunk_bytes: int
    """Data of a full chunk."""
    last_chunk_bytes: int
    """Data of the chunks of the last loop: what is left, spread evenly over a ring."""
    n_loops: int
    """Times the channel goes around: each loop moves `chunks_per_loop` chunks."""
    chunks_per_loop: int
    slices: int
    """Parts a chunk is sent in, so that a step can start before the chunk is whole."""
    steps: int
    """Chunk transfers a rank sends on a channel, one after the other."""
    slots: int
    """Chunks that fit into a connection's buffer: how far a sender may run ahead."""


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _max_threads(inp: TuningInput, algorithm: str, protocol: str) -> int:
    most = 640 if protocol == "LL128" else 512
    if protocol == "LL128":
        given = inp.environment.integer("NCCL_LL128_NTHREADS", most)
        return min(max(given, 160), 640)
    if algorithm not in ("ring", "tree"):
        return 640 if inp.version.since(2, 18) else 512
    default = most
    ring = inp.graphs["ring"]
    # Up to one PCIe 3 ×16 fewer threads move all the data there is.
    if algorithm == "ring" and protocol == "Simple" and ring.bandwidth_GBps <= 12.0:
        default = 256
    return min(max(inp.environment.integer("NCCL_NTHREADS", default), 2 * WARP), most)


def _threshold_bytes(inp: TuningInput, algorithm: str, protocol: str) -> int:
    table = read_table("tuning")["thread_threshold_bytes"]
    if algorithm.startswith("collnet"):
        return int(table["collnet"])
    value = int(table[protocol])
    if algorithm == "ring" and protocol == "LL":
        value *= inp.n_ranks
    given = inp.environment.values.get("NCCL_THREAD_THRESHOLDS")
    if given is not None and algorithm in ("tree", "ring"):
        index = (3 if algorithm == "ring" else 0) + ("LL", "LL128", "Simple").index(protocol)
        if given[index] >= 0:
            value = given[index]
    return value


def call_threads(
    inp: TuningInput, collective: str, algorithm: str, protocol: str, size_bytes: int
) -> CallThreads:
    """Return the channels and threads of one lone call.

    A channel, and then half of the threads, is given up while a thread would have less than its
    threshold of bytes.  Since 2.22 a channel must also have 16 KiB of traffic.

    Parameters
    ----------
    inp
        The communicator.
    collective, algorithm, protocol, size_bytes
        The call; size as nccl-tests' S.
    """
    threads = _max_threads(inp, algorithm, protocol)
    threshold = _threshold_bytes(inp, algorithm, protocol)
    count = inp.channels
    if algorithm in ("nvls", "nvls_tree"):
        count = nvls_channels(inp)
    elif algorithm == "collnet_direct":
        count = _collnet_channels(inp, count, threads, threshold, size_bytes)
    else:
        # The largest count whose threads all have their threshold of bytes.
        count = max(1, min(count, size_bytes // (threads * threshold)))
        while size_bytes < count * threads * threshold and threads % 128 == 0:
            threads //= 2
    if protocol == "Simple" and algorithm == "ring":
        threads += WARP  # one warp keeps the ranks in step
    if protocol == "Simple" and algorithm == "tree":
        threads += 4 * WARP
    threads = max(threads, 3 * WARP)
    if inp.version.since(2, 22) and algorithm in ("tree", "pat"):
        threads = 640
    if inp.version.since(2, 22) and not algorithm.startswith("collnet"):
        count = min(count, _channels_by_traffic(inp, collective, protocol, size_bytes, count))
    return CallThreads(n_channels=count, threads=threads)


def _collnet_channels(
    inp: TuningInput, count: int, threads: int, threshold: int, size_bytes: int
) -> int:
    graph = inp.graph("collnet_direct")
    heads = graph.n_channels if graph is not None else 1
    switch, too_small = 16, True
    while switch >= 1 and too_small:
        too_small = size_bytes < count * threads * heads * threshold
        while too_small and count > switch:
            if count == switch + switch // 2:
                threshold //= 2
            count -= 1
            too_small = size_bytes < count * threads * heads * threshold
        switch //= 2
    return count


def _channels_by_traffic(
    inp: TuningInput, collective: str, protocol: str, size_bytes: int, most: int
) -> int:
    """Return the channels of a lone call that is dealt out in cells of 16 KiB traffic."""
    factor = {"all_reduce": 2, "all_gather": inp.n_ranks, "reduce_scatter": inp.n_ranks}.get(
        collective, 1
    )
    # What is dealt out is the count of the call: per rank for the sharded collectives.
    count_bytes = size_bytes
    if collective in ("all_gather", "reduce_scatter"):
        count_bytes = size_bytes // inp.n_ranks
    traffic = max(_MIN_TRAFFIC_BYTES, count_bytes * factor)
    per_channel = max(_MIN_TRAFFIC_BYTES, traffic // most)
    if protocol == "LL":
        factor *= 4
    cell = _ceil_div(_ceil_div(_MIN_TRAFFIC_BYTES, factor), 16) * 16
    cells = max(1, _ceil_div(count_bytes, cell))
    cells_per_channel = min(cells, _ceil_div(per_channel, cell * factor))
    return min(most, _ceil_div(cells, cells_per_channel))


def chunk_plan(
    collective: str,
    algorithm: str,
    protocol: str,
    size_bytes: int,
    n_ranks: int,
    n_nodes: int,
    n_channels: int,
    version: NcclVersion,
    buffer_bytes: int | None = None,
    *,
    threads: int = 0,
    n_heads: int = 8,
    nvls: NvlsLimits | None = None,
) -> ChunkPlan:
    """Return how a call's data is cut into chunks and loops.

    Parameters
    ----------
    collective, algorithm, protocol, size_bytes
        The call; size as nccl-tests' S.
    n_ranks, n_nodes, n_channels
        Ranks and nodes of the communicator, channels of the call.
    version
        Decides about the shrinking of tree chunks and about who counts the channels.
    buffer_bytes
        Buffer of a connection of this protocol; None: NCCL's default.
    threads
        Only carried into the plan.
    n_heads
        GPUs per node that pull from NVSwitch or own a NIC (NVLS, CollNet).
    nvls
        Limits on the chunk of NVLS.

    Raises
    ------
    ScenarioError
        No ranks, nodes or channels, or a negative size.
    """
    if min(n_ranks, n_nodes, n_channels) < 1 or size_bytes < 0:
        raise ScenarioError(
            f"{n_ranks} ranks, {n_nodes} nodes, {n_channels} channels, {size_bytes} B"
        )
    buffer = default_buffer_bytes(protocol) if buffer_bytes is None else buffer_bytes
    limit = chunk_limit(
        collective,
        algorithm,
        protocol,
        size_bytes,
        n_ranks,
        n_nodes,
        n_channels,
        version,
        buffer,
        n_heads=n_heads,
        nvls=nvls or NvlsLimits(),
    )
    is_ring = algorithm == "ring" and collective in ("all_reduce", "all_gather", "reduce_scatter")
    if is_ring:
        per_loop = n_ranks
    elif algorithm in ("nvls", "nvls_tree", "collnet_direct"):
        per_loop = n_heads
    else:
        per_loop = 1
    loops = max(1, _ceil_div(size_bytes, n_channels * per_loop * limit.chunk_bytes))
    per_channel = _ceil_div(size_bytes, n_channels)
    rest = max(0, per_channel - (loops - 1) * per_loop * limit.chunk_bytes)
    last = min(limit.chunk_bytes, _ceil_div(_ceil_div(rest, per_loop), 16) * 16)
    steps = {"all_reduce": 2 * (n_ranks - 1)}.get(collective, n_ranks - 1) if is_ring else 1
    return ChunkPlan(
        n_channels=n_channels,
        threads=threads,
        chunk_bytes=limit.chunk_bytes,
        last_chunk_bytes=last,
        n_loops=loops,
        chunks_per_loop=per_loop,
        slices=limit.slices,
        steps=steps * loops,
        slots=limit.slots,
    )


def plan_call(
    inp: TuningInput, collective: str, algorithm: str, protocol: str, size_bytes: int
) -> ChunkPlan:
    """Return channels, threads and chunks of one lone call on a communicator.

    Parameters
    ----------
    inp
        The communicator; ``NCCL_BUFFSIZE`` and the like are taken from its environment.
    collective, algorithm, protocol, size_bytes
        The call; size as nccl-tests' S.
    """
    call = call_threads(inp, collective, algorithm, protocol, size_bytes)
    environment = inp.environment
    graph = inp.graph(algorithm)
    heads = 1 if graph is None else max(1, len({c.gpus[0] for c in graph.channels}))
    if graph is not None and not graph.channels:
        heads = max(1, graph.n_channels)
    slow = inp.n_nodes > 1 and (
        algorithm == "nvls" and bandwidth_GBps(inp, "all_reduce", "nvls", "Simple") < 150
    )
    chunk = environment.integer("NCCL_NVLS_CHUNKSIZE", 128 * 1024)
    limits = NvlsLimits(
        chunk_bytes=min(chunk, 32 * 1024) if slow else chunk,
        tree_chunk_bytes=environment.integer("NCCL_NVLSTREE_MAX_CHUNKSIZE", 0) or None,
    )
    return chunk_plan(
        collective,
        algorithm,
        protocol,
        size_bytes,
        inp.n_ranks,
        inp.n_nodes,
        call.n_channels,
        inp.version,
        environment.integer(_BUFFER_VARIABLES[protocol], default_buffer_bytes(protocol)),
        threads=call.threads,
        n_heads=heads,
        nvls=limits,
    )
