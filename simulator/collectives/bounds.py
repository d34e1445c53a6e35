"""Lower bounds on the bytes that must pass between parts of a group, whatever the algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call
from simulator.collectives.spec import part_bytes

__all__ = ["Bound", "byte_bound", "crossing_bytes", "exchange_bytes"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Bytes that no algorithm can save."""

    send_bytes: FloatArray
    """What each rank must send at least, shape (world_size,)."""
    receive_bytes: FloatArray
    """What each rank must receive at least, shape (world_size,)."""
    mean_bytes: float
    """What ranks must send at least on average, and receive on average."""

    @property
    def port_bytes(self) -> float:
        """What the busiest port must carry at least in one direction.

        With equal ports of rate B, no run of the collective takes less than ``port_bytes / B``.
        """
        return float(max(self.send_bytes.max(), self.receive_bytes.max(), self.mean_bytes))


def crossing_bytes(call: Call, label: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return the bytes that must leave and enter each part of a group.

    Parameters
    ----------
    call
        The collective; n ranks, S bytes.
    label
        Part of each rank, 0 … k − 1, shape (n,).

    Returns
    -------
    tuple of ndarray
        (out, in), bytes, each of shape (k,).

    Notes
    -----
    Sums over a part may be formed inside it, so that a reduction sends one partial result: an
    all_reduce moves at least S out of every part and into it.  A switch that adds up or multicasts
    does not lower this: what one side lacks must reach it once.
    """
    n, size = call.world_size, float(call.size_bytes)
    k = int(label.max()) + 1
    nothing: FloatArray = np.zeros(k)
    if call.collective == "barrier" or k == 1:
        return nothing, nothing
    members = _sums(label, np.ones(n), k)
    everything: FloatArray = np.full(k, size)
    rooted = np.arange(k) == label[call.root]
    if call.collective == "all_reduce":
        return everything, everything
    if call.collective == "send_recv":  # each rank to the next one, around
        leave, enter = label != np.roll(label, -1), label != np.roll(label, 1)
        return _sums(label, size * leave, k), _sums(label, size * enter, k)
    if call.collective == "broadcast":
        return everything * rooted, everything * ~rooted
    if call.collective == "reduce":
        return everything * ~rooted, everything * rooted
    part = part_bytes(call).astype(np.float64)
    if len(part) == n * n:
        between = part.reshape(n, n) * (label[:, None] != label[None, :])
        return _sums(label, between.sum(axis=1), k), _sums(label, between.sum(axis=0), k)
    own = _sums(label, part, k)
    rest = part.sum() - own
    if call.collective.startswith(
        "all_to_all"
    ):  # every source has the same parts, one per destination
        return members * rest, (n - members) * own
    return {
        "all_gather": (own, rest),
        "reduce_scatter": (rest, own),
        "gather": (own * ~rooted, rest * rooted),
        "scatter": (rest * rooted, own * ~rooted),
    }[call.collective]


def _sums(label: IntArray, weights: FloatArray, k: int) -> FloatArray:
    return np.bincount(label, weights=weights, minlength=k).astype(np.float64)


def exchange_bytes(call: Call, n_parts: int, *, in_network: bool) -> float:
    """Return what the parts of an all_reduce must send at least together; other calls: 0.

    Parameters
    ----------
    n_parts
        Parts into which the group is divided.
    in_network
        True: switches between the parts may add up and multicast (NVLS, SHARP).

    Notes
    -----
    Among k parts: k − 1 additions per element need k − 1 transfers of it, and the sum must reach
    k − 1 parts more: 2(k − 1)·S bytes [1]_, though a single part may get away with S out and S in.
    With switches each sends S.

    References
    ----------
    .. [1] P. Patarasuk and X. Yuan, J. Parallel Distrib. Comput. 69 (2009), section 2.
    """
    if call.collective != "all_reduce" or n_parts < 2:
        return 0.0
    return float(call.size_bytes) * (n_parts if in_network else 2 * (n_parts - 1))


def byte_bound(call: Call, *, in_network: bool = False) -> Bound:
    """Return the lower bounds of a call per rank.

    Parameters
    ----------
    call
        The collective.
    in_network
        True: switches may add up and multicast (NVLS, SHARP), so that data cross each rank's
        port once; False: only ranks do.

    Notes
    -----
    Multicast lowers what the senders of all_gather and broadcast must send, not what receivers
    must receive, so that only the average of the sends changes; `mean_bytes` is that of the larger
    direction.  Latency is not part of these bounds.

    Examples
    --------
    >>> call = Call(collective="all_reduce", world_size=4, size_bytes=1000)
    >>> byte_bound(call).port_bytes, byte_bound(call, in_network=True).port_bytes
    (1500.0, 1000.0)
    """
    n = call.world_size
    send, receive = crossing_bytes(call, np.arange(n, dtype=np.int64))
    together = exchange_bytes(call, n, in_network=in_network) / n
    return Bound(
        send_bytes=send,
        receive_bytes=receive,
        mean_bytes=together or float(max(send.mean(), receive.mean())),
    )
