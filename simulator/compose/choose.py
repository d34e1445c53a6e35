"""The choice of algorithm, protocol and channels where the scenario says ``auto``.

A profile with a tuning model of its library takes that model's choice, of the stated version:
the one the library would make, which may be a slower one than the best.  Without one, each
candidate of the profile is simulated alone at the folded level, and the fastest is taken; the
channel count follows the profile's rule of bytes per channel.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import CollsimError, RoutingError, ScenarioError, ScheduleError
from simulator.collectives.call import Call
from simulator.compose.believe import Belief, believe, library_name
from simulator.compose.cluster import Choice, Cluster
from simulator.compose.exchange import EXCHANGE_CALLS, exchange_plan
from simulator.compose.loops import further_steps
from simulator.compose.lower import OVER_NETWORK_SWITCHES, STREAMED, STREAMED_PIECES
from simulator.costs.nccl import ChunkPlan, TuningInput
from simulator.costs.nccl.enabling import why_not
from simulator.costs.nccl.graph import COLLECTIVES, PROTOCOLS
from simulator.engine.simulate import simulate
from simulator.engine.traffic import Program, Start

__all__ = ["candidates", "choose", "lone_time_s"]

IntArray = NDArray[np.int64]

MOST_PIECES = 64
"""Pieces of a pipeline that are simulated; larger calls have larger pieces, which lengthens their
fill by less than depth / 64 of the call."""
MOST_CHAIN_PIECES = 256
LEAST_SWITCH_PIECES = 16
_UNFITTED = (
    "CollNet (SHARP) is not fitted: the one published run of it (8 A100 and 4 HDR ports on 2 nodes "
    "of ABCI) took 1.5 times as long as predicted at 1 GiB and 2.3 times at 1 MiB"
)


def lone_time_s(cluster: Cluster, call: Call, group: IntArray, choice: Choice) -> float:
    """Return the time of one call with all ranks on time and the network to itself, folded."""
    collective = cluster.collective(call, group, choice, noted=False)
    program = Program(ranks=group, operations=(Start(collective=collective),))
    return simulate(cluster.network, [program], level="folded").end_s


def _believed(
    cluster: Cluster,
    call: Call,
    group: IntArray,
    algorithm: str,
    protocol: str,
    channels: int | None,
) -> Choice | None:
    """Return the choice of the library's tuning model; None where it has no say."""
    if call.world_size < 2:
        return None
    if call.collective in EXCHANGE_CALLS:
        return _exchange(cluster, call, group, algorithm, protocol, channels)
    if call.counts_bytes is not None or call.collective not in COLLECTIVES:
        return None
    if algorithm != "auto" and library_name(algorithm) is None:
        return None
    if protocol != "auto" and protocol not in PROTOCOLS:
        return None
    inp = cluster.tuning_input(group)
    if inp is None:
        return None
    if algorithm != "auto":
        cluster.check_algorithm(call.collective, algorithm, group)
    try:
        belief = _belief(cluster, inp, call, group, algorithm, protocol)
    except ScenarioError:
        if algorithm == "auto" and protocol == "auto":
            raise
        return None
    if algorithm not in ("auto", belief.algorithm):
        # NCCL takes a ring where it cannot do what was asked for; the schedule says why not.
        return None
    plan = belief.plan
    count = channels or plan.n_channels
    streams = count * _shares(belief.algorithm, call, plan)
    longest = -(-call.size_bytes // (streams * MOST_PIECES))
    chunk = max(plan.chunk_bytes, longest, 1)
    if belief.algorithm.startswith("nvls"):
        # The switch reduces and multicasts while data stream: a chunk is not stored on its way.
        chunk = max(1, min(chunk, -(-call.size_bytes // (streams * LEAST_SWITCH_PIECES))))
    if belief.algorithm == "double_binary_tree" and belief.protocol == STREAMED:
        in_flight = min(chunk, -(-call.size_bytes // streams))
        chunk = max(1, longest, -(-in_flight // STREAMED_PIECES))
    if belief.algorithm == "double_binary_tree" and belief.protocol == "Simple":
        chunk = _tree_chunk(chunk, call, cluster, group, count)
    if call.collective in ("broadcast", "reduce"):
        # Calls in a row fill the chain once for all of them: pieces so small that the fill of a
        # single call is an eighth of it.
        pieces = min(8 * max(call.world_size - 2, 1), MOST_CHAIN_PIECES)
        chunk = max(1, min(chunk, -(-call.size_bytes // (streams * pieces))))
    return Choice(
        algorithm=belief.algorithm,
        protocol=belief.protocol,
        n_channels=count,
        pipeline_bytes=chunk,
        expected_s=belief.expected_s if 0 < belief.expected_s < math.inf else None,
        by_library="auto" in (algorithm, protocol),
        further_steps=further_steps(inp, call.collective, belief.protocol, call.size_bytes, plan)
        if belief.algorithm == "ring"
        else 0,
    )


def _belief(
    cluster: Cluster,
    inp: TuningInput,
    call: Call,
    group: IntArray,
    algorithm: str,
    protocol: str,
) -> Belief:
    """Return the library's choice, or the next best one where no schedule does what it chose."""
    without: list[str] = []
    first: str | None = None
    while True:
        belief = believe(
            inp,
            call,
            algorithm=None if algorithm == "auto" else library_name(algorithm),
            protocol=None if protocol == "auto" else protocol,
            without=without,
        )
        theirs = library_name(belief.algorithm)
        refusal = cluster.refusal(call.collective, belief.algorithm, group)
        if refusal is None or theirs is None or algorithm != "auto":
            break
        without.append(theirs)
        first = first or f"{belief.algorithm}: {refusal}"
    if belief.algorithm in OVER_NETWORK_SWITCHES:
        cluster.note(_UNFITTED)
    if first is not None:
        cluster.warn(
            f"{call.collective}: {cluster.profile.name.upper()} would choose {first}; "
            f"{belief.algorithm} is taken instead"
        )
    return belief


def _shares(algorithm: str, call: Call, plan: ChunkPlan) -> int:
    """Return into how many shares a channel's data are divided."""
    if algorithm in OVER_NETWORK_SWITCHES and call.collective != "all_reduce":
        return call.world_size
    split = algorithm.startswith("nvls") or algorithm == "collnet_direct"
    return plan.chunks_per_loop if split else 1


def _exchange(
    cluster: Cluster,
    call: Call,
    group: IntArray,
    algorithm: str,
    protocol: str,
    channels: int | None,
) -> Choice | None:
    """Return how sends and receives are made; None where the library has no say."""
    plan = exchange_plan(cluster, call, group) if algorithm in ("auto", "direct") else None
    if plan is None:
        return None
    return Choice(
        algorithm="direct",
        protocol=plan.protocol if protocol == "auto" else protocol,
        n_channels=channels or plan.n_channels,
    )


def _tree_chunk(chunk: int, call: Call, cluster: Cluster, group: IntArray, count: int) -> int:
    """Return the chunk of a tree in Simple, smaller where there would be few of them.

    The rule of NCCL up to 2.19 (src/enqueue.cc computeColl); measured times of later versions,
    whose code has no such rule, still show no longer fill.
    """
    nodes = len(np.unique(cluster.units(group)))
    depth = call.world_size // nodes - 1 + nodes.bit_length() - 1
    for wanted, floor in ((8, 131072), (4, 65536), (1, 32768)):
        while call.size_bytes // (count * chunk) < depth * wanted and chunk > floor:
            chunk //= 2
    return chunk


def candidates(
    cluster: Cluster,
    call: Call,
    group: IntArray,
    *,
    algorithm: str = "auto",
    protocol: str = "auto",
    channels: int | None = None,
) -> list[Choice]:
    """Return the choices that ``auto`` compares; fixed parts are kept.

    Raises
    ------
    ScheduleError
        A named algorithm that the hardware or the call rules out.
    """
    profile = cluster.profile
    names: tuple[str, ...] = (algorithm,)
    if algorithm == "auto":
        names = (*profile.candidates.get(call.collective, ()), *_in_network(cluster, call, group))
    protocols = tuple(profile.protocols) if protocol == "auto" else (protocol,)
    most = channels or cluster.most_channels(group)
    found: list[Choice] = []
    for name in names:
        try:
            cluster.check_algorithm(call.collective, name, group)
        except ScheduleError:
            if algorithm != "auto":
                raise
            continue
        for packing in protocols:
            in_switches = name.startswith(("nvls", "collnet"))
            if in_switches and packing != "Simple" and protocol == "auto":
                continue
            planned = _believed(cluster, call, group, name, packing, channels)
            if planned is not None:
                found.append(planned)
                continue
            count = channels or profile.channels_for(packing, call.size_bytes, most)
            found.append(Choice(algorithm=name, protocol=packing, n_channels=count))
    return found


def _in_network(cluster: Cluster, call: Call, group: IntArray) -> list[str]:
    """Return the algorithms of the network's switches that the library may take (CollNet)."""
    if call.collective not in COLLECTIVES or call.world_size < 2:
        return []
    inp = cluster.tuning_input(group)
    if inp is None or not inp.collnet:
        return []
    return [
        name
        for name in OVER_NETWORK_SWITCHES
        if why_not(inp, call.collective, library_name(name) or "", "Simple") is None
        and cluster.refusal(call.collective, name, group) is None
    ]


def choose(
    cluster: Cluster,
    call: Call,
    group: IntArray,
    *,
    algorithm: str = "auto",
    protocol: str = "auto",
    channels: int | None = None,
) -> Choice:
    """Return the library's own choice, or the fastest candidate, for a call on a group.

    Raises
    ------
    ScheduleError
        No candidate can do the call; the last refusal is told.
    """
    picked = cluster.picked(call, group) if algorithm == "auto" else None
    if picked is not None:
        algorithm = picked.algorithm
    if algorithm == "auto" or protocol == "auto":
        believed = _believed(cluster, call, group, algorithm, protocol, channels)
        if believed is not None:
            return believed
    options = candidates(
        cluster, call, group, algorithm=algorithm, protocol=protocol, channels=channels
    )
    if len(options) == 1:
        return options[0]
    best: tuple[float, Choice] | None = None
    refusal: CollsimError | None = None
    for option in options:
        try:
            time_s = lone_time_s(cluster, call, group, option)
        except (RoutingError, ScheduleError) as error:
            refusal = error
            continue
        # A machine's factors were seen on what its library chose: they must not choose again.
        time_s /= cluster.factor(call, group, option)
        if best is None or time_s < best[0]:
            best = (time_s, option)
    if best is None:
        raise refusal or ScheduleError(
            f"profile {cluster.profile.name!r} lists no algorithm for {call.collective}"
        )
    return best[1]
