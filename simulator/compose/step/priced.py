"""The engine's form of a priced call: a flow whose bytes are seconds of its price.

Its greatest rate is one a second, so that alone it lasts as long as its price; a link carries the
share of it that the price says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.engine.traffic import Collective, Connections, Messages, StageTraffic

__all__ = ["flow", "meeting", "one_way"]

IntArray = NDArray[np.int64]


def _connections(
    src: Sequence[int], dst: Sequence[int], routes: Sequence[Sequence[tuple[int, float]]]
) -> Connections:
    indptr = np.concatenate([[0], np.cumsum([len(route) for route in routes])])
    flat = [hop for route in routes for hop in route]
    return Connections(
        src=np.asarray(src, dtype=np.int64),
        dst=np.asarray(dst, dtype=np.int64),
        indptr=indptr.astype(np.int64),
        link=np.array([link for link, _ in flat], dtype=np.int64),
        weight=np.array([share for _, share in flat], dtype=np.float64),
        latency_s=np.zeros(len(src)),
        max_rate_Bps=np.ones(len(src)),
    )


def _stage(name: str, connection: Sequence[int], size: float) -> StageTraffic:
    sizes = np.full(len(connection), size)
    return StageTraffic(
        name=name,
        connection=np.asarray(connection, dtype=np.int64),
        channel=np.zeros(len(connection), dtype=np.int64),
        n_steps=1,
        messages=lambda _: Messages(edge=None, size_bytes=sizes),
        edge_bytes=sizes,
        edge_messages=np.ones(len(connection), dtype=np.int64),
    )


def meeting(
    name: str, members: IntArray, time_s: float, routes: Sequence[Sequence[tuple[int, float]]]
) -> Collective:
    """Return a call in which all members wait for the last, then are busy for the price's time."""
    n = len(members)
    if n == 1:
        return _made(name, members, 2, _connections([0], [1], routes), [_stage(name, [0], time_s)])
    src, dst = [*range(n), *[n] * n], [*[n] * n, *range(n)]
    connections = _connections(src, dst, [*[()] * n, *routes])
    stages = [_stage("meet", range(n), 0.0), _stage(name, range(n, 2 * n), time_s)]
    return _made(name, members, n + 1, connections, stages)


def flow(
    name: str, ends: IntArray, time_s: float, route: Sequence[tuple[int, float]]
) -> Collective:
    """Return a transfer from the first to the second member."""
    return _made(name, ends, 2, _connections([0], [1], [route]), [_stage(name, [0], time_s)])


def _made(
    name: str,
    members: IntArray,
    n_slots: int,
    connections: Connections,
    stages: Sequence[StageTraffic],
) -> Collective:
    return Collective(
        name=name,
        signature=(name,),
        group=np.asarray(members),
        n_slots=n_slots,
        connections=connections,
        stages=tuple(stages),
        launch_s=0.0,
    )


def one_way(both: Collective) -> Collective:
    """Return the half of a two-rank exchange that goes from its first to its second rank."""
    stages = []
    for stage in both.stages:
        keep = np.flatnonzero(both.connections.src[stage.connection] == 0)
        if len(keep) == 0:
            continue
        stages.append(_kept(stage, keep))
    return replace(both, stages=tuple(stages), signature=(*both.signature, "one way"))


def _kept(stage: StageTraffic, keep: IntArray) -> StageTraffic:
    def messages(step: int) -> Messages:
        given = stage.messages(step)
        edge = np.arange(len(stage.connection)) if given.edge is None else given.edge
        size = np.broadcast_to(given.size_bytes, edge.shape)
        chosen = np.isin(edge, keep)
        return Messages(edge=np.searchsorted(keep, edge[chosen]), size_bytes=size[chosen])

    return replace(
        stage,
        connection=stage.connection[keep],
        channel=stage.channel[keep],
        messages=messages,
        edge_bytes=stage.edge_bytes[keep],
        edge_messages=stage.edge_messages[keep],
    )
