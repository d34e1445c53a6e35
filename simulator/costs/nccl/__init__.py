"""What NCCL believes and builds: graph search, tuning model, channels and chunks, by version.

Pure functions of plain values, written after NCCL's published source.  Their results are what NCCL
decides with; the time a call really takes is another matter.
"""

from simulator.costs.nccl.channels import (
    CallThreads,
    ChunkPlan,
    call_threads,
    chunk_plan,
    plan_call,
)
from simulator.costs.nccl.communicator import TuningInput, collective_channels, nvls_channels
from simulator.costs.nccl.environment import NcclEnvironment, parse_environment
from simulator.costs.nccl.graph import ChannelGraph, GraphChannel, PathType, Pattern
from simulator.costs.nccl.links import nccl_link_GBps, socket_GBps
from simulator.costs.nccl.orders import chain_orders, channel_nets, ring_orders
from simulator.costs.nccl.p2p import P2pChannels, P2pPlan, p2p_channels, p2p_plan, p2p_rounds
from simulator.costs.nccl.search import GraphSet, search_graphs
from simulator.costs.nccl.system import SearchLink, SearchOptions, SearchSystem, SearchVertex
from simulator.costs.nccl.tuning import Choice, TuningEntry, choose, predict_table
from simulator.costs.nccl.version import NcclVersion, nearest_supported

__all__ = [
    "CallThreads",
    "ChannelGraph",
    "Choice",
    "ChunkPlan",
    "GraphChannel",
    "GraphSet",
    "NcclEnvironment",
    "NcclVersion",
    "P2pChannels",
    "P2pPlan",
    "PathType",
    "Pattern",
    "SearchLink",
    "SearchOptions",
    "SearchSystem",
    "SearchVertex",
    "TuningEntry",
    "TuningInput",
    "call_threads",
    "chain_orders",
    "channel_nets",
    "choose",
    "chunk_plan",
    "collective_channels",
    "nccl_link_GBps",
    "nearest_supported",
    "nvls_channels",
    "p2p_channels",
    "p2p_plan",
    "p2p_rounds",
    "parse_environment",
    "plan_call",
    "predict_table",
    "ring_orders",
    "search_graphs",
    "socket_GBps",
]
