"""All NICs on one switch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.base.errors import Problem, TopologyError
from simulator.base.fields import option
from simulator.fabric.wiring import Ports, Wiring
from topologies.registry import NetworkOptions, start, topology

__all__ = ["SingleSwitchOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleSwitchOptions(NetworkOptions):
    """Options of a single switch."""

    radix: int | None = option(
        "count", None, minimum=1, doc="Ports of the switch. Default: as many as there are NICs."
    )


@topology(
    "single_switch",
    summary="one non-blocking switch for all NICs",
    reference="an ideal crossbar",
    options=SingleSwitchOptions,
)
def wire(ports: Ports, options: SingleSwitchOptions) -> Wiring:
    """Return the star; TopologyError when the radix is too small."""
    builder = start(ports, options)
    if options.radix is not None and options.radix < ports.n_nics:
        raise TopologyError(
            Problem(
                key="fabric.radix",
                message=f"{ports.n_nics} NICs do not fit on a switch of {options.radix} ports",
                allowed=f"at least {ports.n_nics} ports, or fabric.kind: leaf_spine",
            )
        )
    switch = builder.switches("leaf", 1)
    builder.attach(np.repeat(switch, ports.n_nics), options.link)
    return builder.finish()
