"""Names that people type, in our words: collectives, element types, bus-bandwidth factors."""

from __future__ import annotations

import re

from simulator.base.errors import ScheduleError, unknown_name
from simulator.collectives.spec import COLLECTIVES

__all__ = [
    "DTYPE_BYTES",
    "NCCL_ALGORITHMS",
    "busbw_factor",
    "canonical_algorithm",
    "canonical_collective",
    "canonical_dtype",
    "dtype_bytes",
]

DTYPE_BYTES: dict[str, int] = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "half": 2,
    "float": 4,
    "double": 8,
    "bfloat16": 2,
    "f8e4m3": 1,
    "f8e5m2": 1,
}
"""Bytes per element by nccl-tests' type name (nccl-tests src/common.cu, test_typenames)."""

NCCL_ALGORITHMS: dict[str, str] = {
    "ring": "ring",
    "tree": "double_binary_tree",
    "nvls": "nvls",
    "nvls_tree": "nvls_tree",
    "pat": "pat",
    "collnet_direct": "collnet_direct",
    "collnet_chain": "collnet_chain",
}
"""NCCL's names (NCCL_ALGO, src/graph/tuning.cc) to those of the registry of algorithms.

NCCL prints them in capitals, and so do tables: its TREE is the double binary tree, ours of that
name a single one."""

_COLLECTIVE_ALIASES: dict[str, str] = {
    "all_reduce": "ar allreducecoalesced",
    "all_gather": "ag allgatherintotensor allgatherbase allgatherv allgathercoalesced "
    "allgatherintotensorcoalesced",
    "reduce_scatter": "rs reducescattertensor reducescatterbase reducescatterv "
    "reducescattercoalesced reducescattertensorcoalesced",
    "broadcast": "bcast",
    "reduce": "",
    "all_to_all": "a2a alltoallsingle alltoallbase",
    "all_to_allv": "a2av",
    "gather": "gatherv",
    "scatter": "scatterv",
    "send_recv": "send recv isend irecv p2p pointtopoint batchisendirecv",
    "barrier": "",
}
_DTYPE_ALIASES: dict[str, str] = {
    "int8": "char i8 s8",
    "uint8": "byte u8 bool",
    "int32": "int i32 s32",
    "uint32": "u32",
    "int64": "long i64 s64",
    "uint64": "u64",
    "half": "float16 fp16 f16",
    "float": "float32 fp32 f32 single",
    "double": "float64 fp64 f64",
    "bfloat16": "bf16",
    "f8e4m3": "fp8 f8 fp8e4m3 float8e4m3 float8e4m3fn float8e4m3fnuz",
    "f8e5m2": "fp8e5m2 float8e5m2 float8e5m2fnuz",
}


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _table(aliases: dict[str, str]) -> dict[str, str]:
    return {
        _fold(alias): name for name, others in aliases.items() for alias in (name, *others.split())
    }


_COLLECTIVE = _table(_COLLECTIVE_ALIASES)
_DTYPE = _table(_DTYPE_ALIASES)
# Wrappings of a collective's name: libraries before it, nccl-tests' suffix after it.
_WRAPPED = re.compile(r"^(?:torchdistributed|dist|c10d|nccl|rccl|mpi|gloo)?(.+?)(?:perf)?$")


def canonical_collective(name: str) -> str:
    """Return our name of a collective, whatever the case, underscores and wrapping.

    Understands nccl-tests' programs, torch.distributed functions and NCCL's and MPI's names.

    Raises
    ------
    ScheduleError
        Unknown name; the message has the nearest one.

    Examples
    --------
    >>> canonical_collective("all_reduce_perf"), canonical_collective("_allgather_base")
    ('all_reduce', 'all_gather')
    >>> canonical_collective("ncclAllToAll"), canonical_collective("sendrecv")
    ('all_to_all', 'send_recv')
    """
    folded = _fold(name)
    if folded in _COLLECTIVE:
        return _COLLECTIVE[folded]
    match = _WRAPPED.match(folded)
    if match is not None and match.group(1) in _COLLECTIVE:
        return _COLLECTIVE[match.group(1)]
    raise ScheduleError(unknown_name("collective", name, COLLECTIVES))


def canonical_algorithm(name: str) -> str:
    """Return the registry's name of an algorithm that is written in capitals, as NCCL prints it.

    Other names are returned as they are: whether they exist is the registry's to say.

    Examples
    --------
    >>> canonical_algorithm("TREE"), canonical_algorithm("NVLSTree"), canonical_algorithm("tree")
    ('double_binary_tree', 'nvls_tree', 'tree')
    """
    if name[:1].islower():
        return name
    plain = {theirs.replace("_", ""): ours for theirs, ours in NCCL_ALGORITHMS.items()}
    return plain.get(name.lower().replace("_", ""), name)


def canonical_dtype(name: str) -> str:
    """Return nccl-tests' name of an element type; torch names are understood.

    Raises
    ------
    ScheduleError
        Unknown name.

    Examples
    --------
    >>> canonical_dtype("torch.bfloat16"), canonical_dtype("fp16"), canonical_dtype("Float")
    ('bfloat16', 'half', 'float')
    """
    folded = _fold(name).removeprefix("torch").removeprefix("nccl")
    if folded not in _DTYPE:
        raise ScheduleError(unknown_name("element type", name, DTYPE_BYTES))
    return _DTYPE[folded]


def dtype_bytes(name: str) -> int:
    """Return the bytes of one element.

    Examples
    --------
    >>> dtype_bytes("float"), dtype_bytes("torch.float8_e4m3fn")
    (4, 1)
    """
    return DTYPE_BYTES[canonical_dtype(name)]


def busbw_factor(collective: str, world_size: int) -> float:
    """Return busbw / algbw of nccl-tests.

    Notes
    -----
    algbw is S / time, S as in `Call.size_bytes`; the factor makes it comparable with the
    bandwidth of one rank's port, whatever the world size (nccl-tests doc/PERFORMANCE.md).
    For one rank the factors of the collectives with n − 1 in them are 0.  barrier moves no data;
    its factor is 0.

    Examples
    --------
    >>> busbw_factor("all_reduce", 8), busbw_factor("all_gather", 8), busbw_factor("reduce", 8)
    (1.75, 0.875, 1.0)
    """
    if collective not in COLLECTIVES:
        raise ScheduleError(unknown_name("collective", collective, COLLECTIVES))
    if collective in ("broadcast", "reduce", "send_recv"):
        return 1.0
    if collective == "barrier":
        return 0.0
    share = (world_size - 1) / world_size
    return 2 * share if collective == "all_reduce" else share
