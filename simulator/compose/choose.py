"""The choice of algorithm, protocol and channels where the scenario says ``auto``.

Each candidate of the profile is simulated alone at the folded level, and the fastest is taken;
the channel count follows the profile's rule of bytes per channel.  This is the best choice under
the profile's own constants.  Not modelled here: the choice that a given NCCL version makes from
its tuning model, which may be a slower one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import ScheduleError
from simulator.collectives.call import Call
from simulator.compose.cluster import Choice, Cluster
from simulator.engine.simulate import simulate
from simulator.engine.traffic import Program, Start

__all__ = ["candidates", "choose", "lone_time_s"]

IntArray = NDArray[np.int64]


def lone_time_s(cluster: Cluster, call: Call, group: IntArray, choice: Choice) -> float:
    """Return the time of one call with all ranks on time and the network to itself, folded."""
    collective = cluster.collective(call, group, choice)
    program = Program(ranks=group, operations=(Start(collective=collective),))
    return simulate(cluster.network, [program], level="folded").end_s


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
    names = profile.candidates.get(call.collective, ()) if algorithm == "auto" else (algorithm,)
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
            if name.startswith("nvls") and packing != "Simple" and protocol == "auto":
                continue
            count = channels or profile.channels_for(packing, call.size_bytes, most)
            found.append(Choice(algorithm=name, protocol=packing, n_channels=count))
    return found


def choose(
    cluster: Cluster,
    call: Call,
    group: IntArray,
    *,
    algorithm: str = "auto",
    protocol: str = "auto",
    channels: int | None = None,
) -> Choice:
    """Return the fastest candidate for a call on a group of global ranks.

    Raises
    ------
    ScheduleError
        No candidate can do the call; the last refusal is told.
    """
    options = candidates(
        cluster, call, group, algorithm=algorithm, protocol=protocol, channels=channels
    )
    if len(options) == 1:
        return options[0]
    best: tuple[float, Choice] | None = None
    refusal: ScheduleError | None = None
    for option in options:
        try:
            time_s = lone_time_s(cluster, call, group, option)
        except ScheduleError as error:
            refusal = error
            continue
        if best is None or time_s < best[0]:
            best = (time_s, option)
    if best is None:
        raise refusal or ScheduleError(
            f"profile {cluster.profile.name!r} lists no algorithm for {call.collective}"
        )
    return best[1]
