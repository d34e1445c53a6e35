"""Send and receive, and all-to-all made of them: channels, protocol, chunks, order of peers.

References
----------
NCCL src/graph/paths.cc (ncclTopoComputeP2pChannels), src/init.cc (chunk sizes, the schedule of
rounds), src/enqueue.cc (addP2pToPlan), 2.12 … 2.30.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.base.errors import ScenarioError
from simulator.costs.nccl.chunks import STEPS, default_buffer_bytes
from simulator.costs.nccl.environment import NcclEnvironment
from simulator.costs.nccl.tables import since
from simulator.costs.nccl.version import NcclVersion

__all__ = ["P2pChannels", "P2pPlan", "p2p_channels", "p2p_plan", "p2p_rounds"]

_PEERS_PER_BATCH = 8
"""Peers a kernel serves on one channel at the same time."""
_PIECE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class P2pChannels:
    """Channels of a communicator for send and receive."""

    n_channels: int
    """In all, a power of two."""
    per_peer: int
    """That one pair of ranks may use, a power of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class P2pPlan:
    """How one message is cut."""

    protocol: str
    n_channels: int
    """Channels the message is spread over."""
    part_bytes: int
    """Share of a channel (of the largest part)."""
    chunk_bytes: int
    """Data of a step."""


def _pow2_up(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def p2p_channels(
    version: NcclVersion,
    n_ranks: int,
    n_nodes: int,
    n_channels: int,
    *,
    nvlinks_between: int | None,
    net_GBps: float = 0.0,
    nics_per_gpu: int = 1,
    environment: NcclEnvironment | None = None,
) -> P2pChannels:
    """Return the channels for send and receive.

    Parameters
    ----------
    version
        The rule for remote peers changed in 2.19 and again in 2.29.
    n_ranks, n_nodes
        Size of the communicator.
    n_channels
        Its collective channels (`communicator.collective_channels`).
    nvlinks_between
        Links' worth of NVLink bandwidth between two GPUs of a node, the smallest of all pairs;
        None when they talk over PCIe or host memory, or when there is one GPU per node.
    net_GBps
        NIC bandwidth a GPU has for itself, GB/s.
    nics_per_gpu
        NICs it takes to fill the GPU's link to the CPU.
    environment
        For ``NCCL_*_P2P_NCHANNELS`` and ``NCCL_NCHANNELS_PER_NET_PEER``.

    Raises
    ------
    ScenarioError
        No ranks, nodes or channels.
    """
    if min(n_ranks, n_nodes, n_channels) < 1:
        raise ScenarioError(f"{n_ranks} ranks, {n_nodes} nodes, {n_channels} channels")
    env = environment or NcclEnvironment()
    most = int(since("tuning", "max_channels", version)["count"])
    total = min(n_channels, env.integer("NCCL_MAX_P2P_NCHANNELS", most))
    total = max(total, env.integer("NCCL_MIN_P2P_NCHANNELS", 1))
    peers = []
    if n_ranks > n_nodes:
        peers.append(2 if nvlinks_between is None else 2 * max(1, nvlinks_between))
    if n_nodes > 1:
        peers.append(_remote(version, n_ranks, total, net_GBps, nics_per_gpu, env))
    each = min([total, *peers]) if not version.since(2, 29) else min([most, *peers])
    total, each = _pow2_up(total), _pow2_up(each)
    given = "NCCL_NCHANNELS_PER_NET_PEER" in env.values
    if version.since(2, 29) and n_nodes > 1 and not given:
        # All peers should fit into one round.
        while each * -(-n_ranks // _PEERS_PER_BATCH) > total and each > 1:
            each //= 2
    return P2pChannels(n_channels=total, per_peer=min(each, total))


def _remote(
    version: NcclVersion,
    n_ranks: int,
    total: int,
    net_GBps: float,
    nics_per_gpu: int,
    env: NcclEnvironment,
) -> int:
    """Return the channels for a peer on another node."""
    given = env.integer("NCCL_NCHANNELS_PER_NET_PEER", 0)
    if given:
        return given
    if version.since(2, 29):
        each = env.integer("NCCL_P2P_PER_CHANNEL_NET_BW", 14)
        return max(nics_per_gpu, -(-int(net_GBps) // each)) if net_GBps > 0 else 2
    wanted = 2
    if version.since(2, 19):
        while wanted * n_ranks > total * 4 and wanted > 1:
            wanted //= 2
        return max(nics_per_gpu, wanted)
    return wanted


def p2p_plan(
    version: NcclVersion,
    size_bytes: int,
    channels: P2pChannels,
    *,
    n_ranks: int,
    n_nodes: int,
    remote: bool,
    all_nvlink: bool,
    environment: NcclEnvironment | None = None,
) -> P2pPlan:
    """Return how one message between two ranks is cut.

    Parameters
    ----------
    version
        NCCL's.
    size_bytes
        Of the message.
    channels
        From `p2p_channels`.
    n_ranks, n_nodes
        Of the communicator: one over nodes uses small parts inside nodes too.
    remote
        The message goes to another node.
    all_nvlink
        All GPUs of a node are joined by NVLink.
    environment
        For the ``NCCL_P2P_*`` sizes.
    """
    env = environment or NcclEnvironment()
    buffer = env.integer("NCCL_BUFFSIZE", default_buffer_bytes("Simple"))
    step = buffer // STEPS
    if n_nodes > 1:
        name, default = "NCCL_P2P_NET_CHUNKSIZE", 128 * 1024
    elif all_nvlink:
        name, default = "NCCL_P2P_NVL_CHUNKSIZE", 512 * 1024
    else:
        name, default = "NCCL_P2P_PCI_CHUNKSIZE", 128 * 1024
    chunk = min(env.integer(name, default), step)
    threshold = env.integer("NCCL_P2P_LL_THRESHOLD", 16384)
    line_step = env.integer("NCCL_LL_BUFFSIZE", default_buffer_bytes("LL")) // STEPS
    many = n_nodes > 1
    if version.since(2, 28):
        # By what each channel gets, with the parts that Simple would have.
        part = _parts(size_bytes, channels, n_ranks, chunk, least=2 if many else 8, many=many)
        used = max(1, -(-size_bytes // part))
        # LL buffers exist inside nodes by default.
        lines = not remote and size_bytes <= threshold * used
    else:
        lines = not remote and size_bytes <= threshold * channels.per_peer
        if version.since(2, 22):
            unit, least = (line_step if lines else chunk), 2 if many else 8
        else:
            unit, least = step, 8
        part = _parts(size_bytes, channels, n_ranks, unit, least=least, many=many)
    protocol = "LL" if lines else "Simple"
    if lines:
        chunk = min(chunk, line_step // 2)
    elif remote and size_bytes < step:
        chunk //= 4
    elif remote and size_bytes < 8 * step:
        chunk //= 2
    return P2pPlan(
        protocol=protocol,
        n_channels=max(1, -(-size_bytes // part)),
        part_bytes=min(part, size_bytes),
        chunk_bytes=chunk,
    )


def _parts(
    size_bytes: int, channels: P2pChannels, n_ranks: int, step: int, *, least: int, many: bool
) -> int:
    """Return the largest part of a message that is spread over channels.

    Parameters
    ----------
    size_bytes, channels, n_ranks
        The message and its communicator.
    step
        Data of a buffer's slot.
    least
        A part has at least a slot divided by this.
    many
        Several nodes: a part is no more than a slot while there are channels left.
    """
    spread = channels.per_peer
    # Few channels per pair when all ranks talk to all, more for large messages.
    while spread * n_ranks > channels.n_channels and spread > 1:
        spread //= 2
    part = max(step // least, -(-size_bytes // spread))
    most = step if many else 32 * step
    while part > most and spread <= channels.per_peer // 2:
        spread *= 2
        part = -(-size_bytes // spread)
    return -(-part // _PIECE_BYTES) * _PIECE_BYTES


def _quadratic(count: int) -> list[int]:
    """Return 0 … count−1 in the order 0, 1, 3, 6, 10 … modulo the next power of two."""
    size = _pow2_up(count)
    order, position = [], 0
    for jump in range(1, size + 1):
        if position < count:
            order.append(position)
        position = (position + jump) % size
    return order


def p2p_rounds(n_nodes: int, ranks_per_node: int) -> list[tuple[int, int]]:
    """Return the order in which a rank meets its peers, as (node, local rank) differences.

    In round (a, b) rank (i, j) sends to (i + a, j + b) and receives from (i − a, j − b), each
    modulo the number of nodes and of ranks per node.

    Parameters
    ----------
    n_nodes, ranks_per_node
        Of the communicator; nodes with different numbers of ranks count as one flat node.

    Examples
    --------
    >>> [local for _, local in p2p_rounds(1, 16)]
    [0, 1, 3, 6, 10, 15, 5, 12, 4, 13, 7, 2, 14, 11, 9, 8]
    >>> p2p_rounds(2, 2)
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    inner = _quadratic(ranks_per_node)
    return [(node, local) for node in _quadratic(n_nodes) for local in inner]
