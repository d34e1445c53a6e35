"""A machine's calibration on a call: its time alone times what the model was found to be off.

All that a call's time is made of is scaled alike: wire bytes, rates of channels, latencies and the
launch.  So the call takes that many times as long alone, and traces, shared links and steps stay
consistent.  A link never carries more than its physical rate, whatever the factor: what is saved
there ends at the efficiency of its kind.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simulator.collectives.call import Call
from simulator.costs.calibration import Calibration, way_key
from simulator.engine.traffic import Collective
from simulator.fabric.fabric import Fabric

__all__ = ["Calibrated", "scaled"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def scaled(collective: Collective, factor: float, efficiency: FloatArray) -> Collective:
    """Return a call that takes *factor* times as long alone.

    Parameters
    ----------
    collective
        As lowered.
    factor
        Above zero.
    efficiency
        Payload rate over physical rate of each link, shape (links,): bytes on the wire are not
        scaled below it.
    """
    connections = collective.connections
    on_wire = np.maximum(factor, efficiency)
    stages = tuple(
        stage if stage.wire_bytes is None else replace(stage, wire_bytes=stage.wire_bytes * on_wire)
        for stage in collective.stages
    )
    return replace(
        collective,
        connections=replace(
            connections,
            weight=connections.weight * on_wire[connections.link],
            latency_s=connections.latency_s * factor,
            max_rate_Bps=connections.max_rate_Bps / factor,
        ),
        stages=stages,
        launch_s=collective.launch_s * factor,
    )


class Calibrated:
    """The calibration of a cluster's profile, and which calls lay outside of it.

    Parameters
    ----------
    fabric
        Whose node presets are compared with the calibrated one.
    calibration
        What was fitted.
    """

    def __init__(self, fabric: Fabric, calibration: Calibration) -> None:
        self.fabric = fabric
        self.calibration = calibration
        self._reasons: dict[str, None] = {}

    def factor(self, call: Call, group: IntArray, algorithm: str, protocol: str) -> float:
        """Return by what a call's time alone is multiplied; 1 for a rank alone."""
        if call.world_size == 1:
            return 1.0
        presets, n_nodes = self._nodes(group)
        return math.exp(
            self.calibration.log_factor(
                call.collective,
                call.world_size,
                n_nodes,
                way_key(algorithm, protocol),
                call.size_bytes,
                nodes_of=presets,
            )
        )

    def note(self, call: Call, group: IntArray) -> None:
        """Keep in mind in how far a call lies outside what was measured."""
        if call.world_size > 1:
            presets, n_nodes = self._nodes(group)
            reasons = self.calibration.outside(
                call.collective, call.world_size, n_nodes, call.size_bytes, nodes_of=presets
            )
            self._reasons.update(dict.fromkeys(reasons))

    def half_width(self, call: Call, group: IntArray) -> float | None:
        """Return the half width in log time of the 80 % band; None: that of the base profile."""
        presets, n_nodes = self._nodes(group)
        return self.calibration.half_width(
            call.collective, call.world_size, n_nodes, call.size_bytes, nodes_of=presets
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """One warning of all calls that lay outside, or none."""
        return (self.calibration.warning(self._reasons),) if self._reasons else ()

    def _nodes(self, group: IntArray) -> tuple[list[str], int]:
        nodes = np.unique(np.asarray(self.fabric.node_of_gpu)[group])
        kinds = np.unique(np.asarray(self.fabric.template_of_node)[nodes]).tolist()
        return [self.fabric.compiled[kind].template.name for kind in kinds], len(nodes)
