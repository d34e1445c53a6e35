"""Lower bounds on the bytes that must pass each rank's port, whatever the algorithm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call
from simulator.collectives.spec import part_bytes

__all__ = ["Bound", "byte_bound"]

FloatArray = NDArray[np.float64]


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


def byte_bound(call: Call, *, in_network: bool = False) -> Bound:
    """Return the lower bounds of a call.

    Parameters
    ----------
    call
        The collective.
    in_network
        True: switches may add up and multicast (NVLS, SHARP), so that data cross each rank's
        port once; False: only ranks do.

    Notes
    -----
    all_reduce among ranks: n − 1 additions per element need n − 1 transfers of it, and the sum
    must reach n − 1 ranks more, so that 2(n − 1)·S bytes are received by n ranks: 2(n − 1)/n·S
    on average [1]_, while a single rank may get away with S in and S out.  With switches S is
    the bound.  Multicast lowers what the senders of all_gather and broadcast must send, not what
    receivers must receive, so that only the average of the sends changes; `mean_bytes` is that
    of the larger direction.

    Latency is not part of these bounds.

    References
    ----------
    .. [1] P. Patarasuk and X. Yuan, J. Parallel Distrib. Comput. 69 (2009), section 2.

    Examples
    --------
    >>> call = Call(collective="all_reduce", world_size=4, size_bytes=1000)
    >>> byte_bound(call).port_bytes, byte_bound(call, in_network=True).port_bytes
    (1500.0, 1000.0)
    """
    n, size = call.world_size, float(call.size_bytes)
    nothing = np.zeros(n)
    if n == 1 or call.collective == "barrier":
        return Bound(send_bytes=nothing, receive_bytes=nothing, mean_bytes=0.0)
    everything, root = np.full(n, size), np.arange(n) == call.root
    mean: float | None = None
    match call.collective:
        case "all_reduce":
            send, receive = everything, everything
            mean = size if in_network else 2 * (n - 1) / n * size
        case "send_recv":
            send, receive = everything, everything
        case "broadcast":
            send, receive = everything * root, everything * ~root
        case "reduce":
            send, receive = everything * ~root, everything * root
        case "all_to_all" | "all_to_allv":
            send, receive = _exchanged(call)
        case _:
            part = part_bytes(call).astype(np.float64)
            rest = part.sum() - part
            send, receive = {
                "all_gather": (part, rest),
                "reduce_scatter": (rest, part),
                "gather": (part * ~root, rest * root),
                "scatter": (rest * root, part * ~root),
            }[call.collective]
    return Bound(
        send_bytes=send,
        receive_bytes=receive,
        mean_bytes=float(max(send.mean(), receive.mean())) if mean is None else mean,
    )


def _exchanged(call: Call) -> tuple[FloatArray, FloatArray]:
    n = call.world_size
    part = part_bytes(call).astype(np.float64)
    if len(part) == n * n:
        counts = part.reshape(n, n)
        own = np.diagonal(counts)
        return counts.sum(axis=1) - own, counts.sum(axis=0) - own
    # Every source has the same parts, one per destination.
    return part.sum() - part, (n - 1) * part
