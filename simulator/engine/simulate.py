"""The engine's front door: programs of ranks on a network, to an outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simulator.engine.jitter import JitterSpec
from simulator.engine.outcome import Outcome
from simulator.engine.run import Reroute, Run
from simulator.engine.traffic import Level, LinkChange, Network, Program

__all__ = ["simulate"]


def simulate(
    network: Network,
    programs: Sequence[Program],
    *,
    level: Level = "auto",
    max_transfers: int = 20_000_000,
    changes: Sequence[LinkChange] = (),
    reroute: Reroute | None = None,
    jitter: JitterSpec | None = None,
    rng: np.random.Generator | None = None,
    compute_slowdown: float = 0.0,
    record: bool = False,
    on_progress: Callable[[float, int], None] | None = None,
) -> Outcome:
    """Simulate programs of ranks on a network.

    Parameters
    ----------
    network
        Links.
    programs
        What sets of ranks do.  Calls match by order within a communicator and group.
    level
        ``steps``: every message.  A call whose links nobody else can fill is a max-plus wave;
        otherwise each message is a flow that shares links max-min fairly.  ``folded``: one flow
        per stage.  ``auto``: ``steps`` up to `max_transfers` messages in all, of which up to a
        thousandth may share links, a four-hundredth in calls that ``folded`` may time wrongly;
        beyond, ``folded``, with a warning where it is in doubt.
    max_transfers
        Messages of the whole run that ``auto`` simulates one by one.
    changes
        Links whose capacity changes at given times.
    reroute
        Gives new routes for a collective when links are dead (capacity 0); None: there are none.
    jitter
        Random variation; it makes ``auto`` choose ``steps``.
    rng
        Source of the jitter's seeds; default: seed 0.
    compute_slowdown
        Share by which a rank's computes take longer while it is in a collective (from its call
        to its end): 0.1 is 10 % longer.
    record
        Keep every message's times and every rank's intervals; otherwise only the intervals of
        the first rank of each program.
    on_progress
        Called now and then with (simulated time in s, events so far).

    Returns
    -------
    Outcome
        Times, link loads and records.

    Raises
    ------
    SimulationError
        Ranks that wait for ever, calls that do not match, a fabric that is cut.

    Notes
    -----
    Not modelled: receive-side flow control (a sender never waits for its receiver to call),
    packets, retransmission, and order of flows in switch buffers.

    Examples
    --------
    One rank computes for 2 s:

    >>> from simulator.engine.traffic import Compute
    >>> network = Network(capacity_Bps=np.array([1.0]), link_name=str)
    >>> work = Program(ranks=np.array([0]), operations=(Compute(name="work", duration_s=2.0),))
    >>> simulate(network, [work]).end_s
    2.0
    """
    return Run(
        network,
        programs,
        level=level,
        max_transfers=max_transfers,
        changes=changes,
        reroute=reroute,
        jitter=jitter,
        rng=rng,
        compute_slowdown=compute_slowdown,
        record=record,
        on_progress=on_progress,
    ).go()
