"""What must hold of every outcome, whatever was simulated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.engine.matching import key_calls
from simulator.engine.outcome import CollectiveRecord, MessageRecord, Outcome
from simulator.engine.prepared import wire_bytes
from simulator.engine.programs import StartKey
from simulator.engine.routes import alone_rates, merged, payload_of_connections
from simulator.engine.traffic import Collective, Network, Program, Start

__all__ = ["validate_run"]

FloatArray = NDArray[np.float64]

_SLACK = 1e-9
"""Relative rounding allowed."""


def validate_run(
    network: Network,
    outcome: Outcome,
    programs: Sequence[Program],
    *,
    rerouted: bool = False,
) -> None:
    """Check an outcome against the laws that hold for any traffic.

    Parameters
    ----------
    network, programs
        What was simulated, without jitter; links at most at their nominal capacity.
    outcome
        What came out.
    rerouted
        Calls may have taken other routes than given: link bytes are not compared.

    Raises
    ------
    AssertionError
        A call is missing; time runs backwards; bytes received, or on links, are not those sent;
        a link or a message was faster than its capacity.
    """
    calls: dict[StartKey, Collective] = {}
    for program, keys in zip(programs, key_calls(programs), strict=True):
        for operation, key in zip(program.operations, keys, strict=True):
            if isinstance(operation, Start) and key is not None:
                calls.setdefault(key, operation.collective)
    records = {(r.communicator, r.group.tobytes(), r.index): r for r in outcome.collectives}
    names = {(key.communicator, c.group.tobytes(), key.index): c for key, c in calls.items()}
    _demand(set(records) == set(names), "the calls made are not the calls finished")
    wire = np.zeros(len(network.capacity_Bps))
    for name, collective in names.items():
        record = records[name]
        _check_record(record)
        of_call = wire_bytes(
            merged(collective.connections), payload_of_connections(collective), len(wire)
        )
        wire += of_call
        if not rerouted:
            _check_speed(network, record, of_call)
    end_s = outcome.end_s * (1 + _SLACK)
    if not rerouted:
        close = np.isclose(outcome.link_bytes, wire, rtol=_SLACK, atol=1e-6)
        _demand(bool(close.all()), "bytes on links are not those of the calls' routes")
    _demand(bool((outcome.link_busy_s <= end_s + 1e-15).all()), "a link carried more than it can")
    _demand(bool((outcome.rank_end_s <= end_s).all()), "a rank ends after the end of the run")
    _check_messages(network, outcome, names, rerouted=rerouted)
    _check_intervals(outcome)


def _demand(holds: bool, law: str) -> None:
    if not holds:
        raise AssertionError(law)


def _check_record(record: CollectiveRecord) -> None:
    what = f"call {record.index} of {record.communicator!r}: "
    _demand(bool((record.end_s >= record.call_s).all()), what + "a rank ends before it calls")
    _demand(bool((record.transfer_s >= 0).all()), what + "negative transfer time")
    _demand(bool((record.wait_s >= -1e-12).all()), what + "more transfer time than time")
    first_s = float(record.call_s.min())
    _demand(
        all(end_s >= first_s for _, end_s in record.stage_end_s),
        what + "a stage ends before anyone calls",
    )


def _check_speed(network: Network, record: CollectiveRecord, wire: FloatArray) -> None:
    """Demand that no link carried the call faster than its capacity."""
    used = wire > 0
    lasted_s = float(record.end_s.max() - record.call_s.min())
    least_s = float((wire[used] / network.capacity_Bps[used]).max(initial=0.0))
    _demand(
        lasted_s >= least_s * (1 - _SLACK),
        f"call {record.index} of {record.communicator!r} beats its bytes over capacity",
    )


def _check_messages(
    network: Network,
    outcome: Outcome,
    names: dict[tuple[str, bytes, int], Collective],
    *,
    rerouted: bool,
) -> None:
    by_call: dict[tuple[str, int, str], list[MessageRecord]] = {}
    for message in outcome.messages:
        place = (message.communicator, message.index, message.collective)
        by_call.setdefault(place, []).append(message)
    for (communicator, _, index), collective in names.items():
        found = by_call.get((communicator, index, collective.name))
        same_name = [key for key in names if key[0] == communicator and key[2] == index]
        if found is None or len(same_name) > 1:
            continue
        what = f"call {index} of {communicator!r}: "
        connection = np.concatenate([part.connection for part in found])
        size = np.concatenate([part.size_bytes for part in found])
        start_s = np.concatenate([part.start_s for part in found])
        leave_s = np.concatenate([part.leave_s for part in found])
        arrive_s = np.concatenate([part.arrive_s for part in found])
        n = len(collective.connections.src)
        _demand(
            bool(
                np.allclose(
                    np.bincount(connection, size, n), payload_of_connections(collective), rtol=1e-9
                )
            ),
            what + "bytes sent on a connection are not those of its stages",
        )
        _demand(
            bool((leave_s >= start_s).all() and (arrive_s >= leave_s).all()),
            what + "a message arrives before it leaves",
        )
        if not rerouted:
            rate = alone_rates(merged(collective.connections), network.capacity_Bps)[connection]
            quick = (leave_s - start_s) * rate < size * (1 - 1e-6) - 1e-9 * rate
            _demand(not bool(quick.any()), what + "a message is faster than its route")
        order = np.lexsort((leave_s, start_s, connection))
        same = connection[order[1:]] == connection[order[:-1]]
        overlap = same & (start_s[order[1:]] < leave_s[order[:-1]] * (1 - _SLACK))
        _demand(not bool(overlap.any()), what + "two messages at once on one connection")


def _check_intervals(outcome: Outcome) -> None:
    last: dict[tuple[int, str], float] = {}
    for interval in outcome.intervals:
        place = (interval.rank, interval.stream)
        _demand(interval.end_s >= interval.start_s, "an interval ends before it starts")
        _demand(
            interval.start_s >= last.get(place, 0.0) * (1 - _SLACK),
            f"rank {interval.rank} does two things at once on stream {interval.stream!r}",
        )
        last[place] = interval.end_s
