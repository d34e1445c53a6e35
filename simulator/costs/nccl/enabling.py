"""Which algorithms and protocols NCCL may choose for a collective, and why not the others."""

from __future__ import annotations

from simulator.costs.nccl.communicator import TuningInput
from simulator.costs.nccl.graph import PathType

__all__ = ["nvls_supports", "why_not"]

_ONLY_RING = ("broadcast", "reduce")
_SHARDED = ("all_gather", "reduce_scatter")
_NVLS_TYPES = {"int32", "uint32", "int64", "uint64", "float16", "bfloat16"}
_NVLS_SUM_TYPES = {"float32", "float64"}


def nvls_supports(collective: str, datatype: str, reduction: str) -> bool:
    """Return whether NVSwitch can reduce the data type (NCCL src/transport/nvls.cc)."""
    if collective == "all_gather":
        return True
    if datatype in _NVLS_TYPES:
        return reduction in ("sum", "min", "max")
    return datatype in _NVLS_SUM_TYPES and reduction == "sum"


def why_not(
    inp: TuningInput,
    collective: str,
    algorithm: str,
    protocol: str,
    *,
    datatype: str = "float32",
    reduction: str = "sum",
) -> str | None:
    """Return why NCCL cannot choose the pair for the collective, or None when it can.

    References
    ----------
    NCCL src/graph/tuning.cc (enabling at the end of ncclTopoTuneModel), src/enqueue.cc
    (topoGetAlgoInfo, updateCollCostTable), src/transport/nvls.cc (ncclNvlsInit).
    """
    reason = (
        _algorithm_reason(inp, collective, algorithm)
        or (
            f"NVSwitch cannot reduce {datatype} with {reduction}"
            if algorithm in ("nvls", "nvls_tree")
            and not nvls_supports(collective, datatype, reduction)
            else None
        )
        or _protocol_reason(inp, collective, algorithm, protocol)
    )
    if reason is not None:
        return reason
    if not inp.environment.allows("NCCL_ALGO", collective, algorithm):
        return "NCCL_ALGO"
    if not inp.environment.allows("NCCL_PROTO", collective, protocol):
        return "NCCL_PROTO"
    return None


def _algorithm_reason(inp: TuningInput, collective: str, algorithm: str) -> str | None:
    if collective in _ONLY_RING and algorithm != "ring":
        return f"{collective} has a ring only"
    if collective in _SHARDED and algorithm in ("tree", "collnet_chain", "nvls_tree"):
        return f"{collective} has no {algorithm}"
    if algorithm == "pat":
        return _pat_reason(inp, collective)
    if algorithm.startswith("collnet"):
        return _collnet_reason(inp, collective, algorithm)
    if algorithm.startswith("nvls"):
        return _nvls_reason(inp, collective, algorithm)
    return None


def _pat_reason(inp: TuningInput, collective: str) -> str | None:
    enable = inp.environment.integer("NCCL_PAT_ENABLE", 2)
    if not inp.version.since(2, 23):
        return "PAT came with NCCL 2.23"
    if collective not in _SHARDED:
        return f"{collective} has no PAT"
    if inp.min_sm < 60:
        return "PAT needs SM60"
    if enable == 0:
        return "NCCL_PAT_ENABLE=0"
    if enable == 2 and inp.n_nodes != inp.n_ranks:
        return "PAT is used with one GPU per node"
    return None


def _collnet_reason(inp: TuningInput, collective: str, algorithm: str) -> str | None:
    if algorithm == "collnet_direct" and collective in _SHARDED and not inp.version.since(2, 20):
        return f"CollNet {collective} came with NCCL 2.20"
    if not inp.collnet or inp.environment.integer("NCCL_COLLNET_ENABLE", 0) == 0:
        return "no CollNet: plugin and NCCL_COLLNET_ENABLE=1 are needed"
    if inp.n_nodes < inp.environment.integer("NCCL_COLLNET_NODE_THRESHOLD", 2):
        return "fewer nodes than NCCL_COLLNET_NODE_THRESHOLD"
    if inp.graph(algorithm) is None:
        return "no CollNet graph"
    if algorithm == "collnet_direct" and not inp.nvswitch:
        return "CollNetDirect needs NVSwitch"
    if algorithm == "collnet_direct" and inp.ranks_per_node > 8:
        return "CollNetDirect needs at most 8 GPUs per node"
    if algorithm == "collnet_direct" and collective in _SHARDED:
        return _heads_reason(inp, algorithm)
    return None


def _nvls_reason(inp: TuningInput, collective: str, algorithm: str) -> str | None:
    needed = (2, 17) if algorithm == "nvls" else (2, 18)
    graph = inp.graph(algorithm)
    if not inp.version.since(*needed):
        return f"{algorithm} came with NCCL {needed[0]}.{needed[1]}"
    if inp.environment.integer("NCCL_NVLS_ENABLE", 2) == 0:
        return "NCCL_NVLS_ENABLE=0"
    if not _peer_access(inp):
        return "GPUs have no direct access to each other (NCCL_P2P_DISABLE, NCCL_P2P_LEVEL)"
    if inp.min_sm < 90 or not inp.nvswitch or not inp.multicast:
        return "NVLS needs Hopper or newer with NVSwitch multicast"
    if inp.ranks_per_node <= 2 or not inp.nvls_node:
        return "NVLS needs more than two GPUs per NVLink domain"
    if graph is None or graph.n_channels == 0:
        return "no NVLS graph"
    if algorithm == "nvls_tree":
        return "NVLSTree is for several nodes" if inp.n_nodes == 1 else None
    if inp.version.since(2, 28) and graph.n_channels < 2:
        return "NVLS needs two channels"
    if inp.n_nodes == 1:
        return None
    if not inp.collnet or inp.environment.integer("NCCL_COLLNET_ENABLE", 0) == 0:
        return "NVLS over nodes needs CollNet"
    if collective in _SHARDED:
        if not inp.version.since(2, 27):
            return f"NVLS {collective} over nodes came with NCCL 2.27"
        return _heads_reason(inp, "collnet_direct")
    return None


def _peer_access(inp: TuningInput) -> bool:
    """Return whether the variables leave NVLink to the GPUs."""
    level = inp.environment.level("NCCL_P2P_LEVEL")
    forbidden = inp.environment.integer("NCCL_P2P_DISABLE", 0) == 1
    return not forbidden and (level is None or level > PathType.LOC)


def _heads_reason(inp: TuningInput, algorithm: str) -> str | None:
    """Sharded collectives in the network need a NIC per GPU."""
    graph = inp.graph(algorithm)
    if graph is None or inp.n_nodes == 1:
        return None
    heads = {channel.gpus[0] for channel in graph.channels} or set(range(graph.n_channels))
    return "fewer NICs than GPUs" if len(heads) < inp.ranks_per_node else None


def _protocol_reason(
    inp: TuningInput, collective: str, algorithm: str, protocol: str
) -> str | None:
    if algorithm not in ("ring", "tree") and protocol != "Simple":
        return f"{algorithm} has Simple only"
    # An explicit NCCL_PROTO takes LL128 even where it is off by default.
    if protocol != "LL128" or "NCCL_PROTO" in inp.environment.values:
        return None
    graph = inp.graph(algorithm)
    if graph is None:
        return None
    version = inp.version
    if inp.min_sm < 70:
        return "LL128 needs SM70"
    if not version.since(2, 23) and inp.min_sm not in (70, 80, 90):
        return "LL128 is on by default for SM70, SM80 and SM90 only"
    if not version.since(2, 16) and inp.min_sm == 90:
        return "LL128 on SM90 came with NCCL 2.16"
    mixed = inp.min_sm != inp.max_sm
    if mixed and not (version.since(2, 27) and inp.min_sm >= 90):
        return "LL128 needs GPUs of one generation"
    farthest = PathType.NVB if version.since(2, 17) else PathType.NVL
    if graph.type_intra > farthest:
        return f"LL128 needs NVLink between GPUs, not {graph.type_intra.name}"
    if inp.n_nodes == 1:
        return None
    reach = _ll128_reach(inp)
    if graph.type_inter > reach:
        return f"LL128 needs NICs at {reach.name} or closer, not {graph.type_inter.name}"
    return None


def _ll128_reach(inp: TuningInput) -> PathType:
    """Return the farthest path to a NIC that LL128 is used on by default."""
    if inp.min_sm < 90 or not inp.version.since(2, 18):
        return PathType.PXB
    if not inp.version.since(2, 27):
        return PathType.PXN
    if inp.environment.integer("NCCL_LL128_C2C", 1) == 0:
        return PathType.PXB
    return PathType.PXN if inp.version.since(2, 27, 5) else PathType.P2C
