"""What a smaller buffer costs a ring: more loops, and so more steps, for the same data.

A channel's block goes around the ring once per loop and moves a chunk of each rank (NCCL
src/device/all_reduce.h); a chunk is half of the buffer.  Every step waits for the neighbour's, so
each further loop pays the latency of its steps again.  The loops of the default buffer are part
of the fitted constants.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.costs.nccl import ChunkPlan, NcclEnvironment, TuningInput, plan_call

__all__ = ["further_steps"]

_BUFFERS = ("NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE")
_SHARDED = ("all_reduce", "all_gather", "reduce_scatter")


def further_steps(
    inp: TuningInput, collective: str, protocol: str, size_bytes: int, plan: ChunkPlan
) -> int:
    """Return how many steps a ring makes beyond those with NCCL's own buffers.

    Parameters
    ----------
    inp
        The communicator.
    collective, protocol, size_bytes
        The call.
    plan
        How it is cut with the buffers that the variables ask for.
    """
    values = inp.environment.values
    if collective not in _SHARDED or not any(name in values for name in _BUFFERS):
        return 0
    kept = {name: value for name, value in values.items() if name not in _BUFFERS}
    usual = replace(inp, environment=NcclEnvironment(values=kept))
    default = plan_call(usual, collective, "ring", protocol, size_bytes)
    return max(0, plan.steps - default.steps)
