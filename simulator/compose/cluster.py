"""A cluster ready for calls: fabric, router, profile, and what has been routed so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, ScheduleError, TopologyError, unknown_name
from simulator.collectives.call import Call, Layout
from simulator.collectives.direct import pairwise_sample
from simulator.collectives.registry import get_algorithm
from simulator.collectives.schedule import Schedule
from simulator.compose.believe import environment_of, library_name, tuning_input
from simulator.compose.bulk import bulk_exchange, is_bulk, refuse_pairs
from simulator.compose.calibrated import Calibrated, scaled
from simulator.compose.fold import distinct_channels
from simulator.compose.host import Hosts
from simulator.compose.layout import domain_layout, heads, interconnect, layout_for
from simulator.compose.lower import EXCHANGES, OVER_NETWORK_SWITCHES, SWITCHED, Lowering
from simulator.compose.turns import RUN_STEPS, in_turns, runs_of
from simulator.costs.nccl import (
    NcclEnvironment,
    TuningInput,
    chain_orders,
    plan_call,
    ring_orders,
)
from simulator.costs.profile import CostProfile
from simulator.costs.rules import Picked
from simulator.engine.traffic import Collective, Network
from simulator.fabric.fabric import Fabric
from simulator.fabric.model import LINK_KINDS, NodeTemplate
from simulator.fabric.routing import Router

__all__ = ["Choice", "Cluster", "switches_add_up"]

IntArray = NDArray[np.int64]

_NETWORK_SWITCH_ALGORITHMS = OVER_NETWORK_SWITCHES
_SWITCH_ALGORITHMS = SWITCHED
_CHANNEL_VARIABLES = ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_NVLS_NCHANNELS")
_SWITCH_GENERATIONS = ("hopper", "blackwell")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How one call is carried out."""

    algorithm: str
    protocol: str
    n_channels: int
    pipeline_bytes: int = 512 * 1024
    """Piece of pipelined algorithms."""
    expected_s: float | None = None
    """What the library's tuning model expects; None where it has no formula."""
    by_library: bool = False
    """The library's tuning model took the algorithm or the protocol."""
    further_steps: int = 0
    """Steps that smaller buffers than the library's own add, see `simulator.compose.loops`."""


class Cluster:
    """Fabric, routes and costs of one variant of a scenario.

    Parameters
    ----------
    fabric
        All nodes and the network.
    router
        Routes on it.
    profile
        Cost constants.
    """

    def __init__(self, fabric: Fabric, router: Router, profile: CostProfile) -> None:
        self.fabric = fabric
        self.profile = profile
        self.lowering = Lowering(fabric, router, profile)
        self.network = Network(capacity_Bps=fabric.capacity_Bps, link_name=fabric.link_name)
        self.sums_exchanges = True
        """Exchanges of very many ranks are lowered to link loads, which only folds can time."""
        calibration = profile.calibration
        self.calibrated = None if calibration is None else Calibrated(fabric, calibration)
        """What is known of the machine beside the profile's constants."""
        self.hosts: Hosts | None = None
        """Processes of a library that moves data with the CPU."""
        self.notes: tuple[str, ...] = ()
        """What the run's environment variables change."""
        self.warnings: tuple[str, ...] = ()
        """What they do not, and why."""
        self._layouts: dict[tuple[bytes, int, int], Layout] = {}
        self._inputs: dict[bytes, TuningInput | None] = {}
        self._seen_as: Cluster | None = None

    def seen_as(self, healthy: Cluster) -> None:
        """Let the library see the hardware of another cluster of the same GPUs and NICs.

        A fault that the library does not know of leaves its rings and trees as they were.
        """
        self._seen_as = healthy

    @property
    def n_gpus(self) -> int:
        """Number of GPUs in the cluster."""
        return len(self.fabric.gpu_vertex)

    @property
    def library_words(self) -> str:
        """What a title adds on the library: nothing for NCCL and for textbook costs."""
        name = self.profile.name
        return "" if name in ("nccl", "ideal") else f", {name.upper() if 'ccl' in name else name}"

    @property
    def most_gpus_per_node(self) -> int:
        """GPUs of the node that has most."""
        return int(np.bincount(np.asarray(self.fabric.node_of_gpu)).max())

    def template_of(self, rank: int) -> NodeTemplate:
        """Return the node preset that holds a GPU."""
        return self.fabric.node_template(int(self.fabric.node_of_gpu[rank]))

    def nodes_words(self, group: IntArray | None = None) -> str:
        """Return the nodes that a group of global ranks touches, in words; None: all of them.

        ``4 nodes of dgx-h100``, or ``4 nodes: 2 dgx-a100-80gb + 2 dgx-h100``.
        """
        of_gpu = np.asarray(self.fabric.node_of_gpu)
        nodes = np.unique(of_gpu if group is None else of_gpu[group])
        presets = np.asarray(self.fabric.template_of_node)[nodes]
        counts: dict[str, int] = {}
        for preset in presets.tolist():
            name = self.fabric.compiled[preset].template.name
            counts[name] = counts.get(name, 0) + 1
        head = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
        if len(counts) == 1:
            return f"{head} of {next(iter(counts))}"
        return f"{head}: " + " + ".join(f"{count} {name}" for name, count in counts.items())

    def group_nodes(self, group: IntArray) -> int:
        """Return how many nodes a group of global ranks touches."""
        return len(np.unique(self.fabric.node_of_gpu[group]))

    def placement(self, group: IntArray) -> bytes:
        """Return what a choice depends on: kinds of nodes, GPUs in them, who shares a node.

        Groups of one placement are carried out alike.
        """
        node = np.asarray(self.fabric.node_of_gpu)[group]
        kind = np.asarray(self.fabric.template_of_node)[node]
        local = np.asarray(self.fabric.local_of_gpu)[group]
        _, together = np.unique(node, return_inverse=True)
        return np.stack([kind, local, together]).tobytes()

    def layout(self, group: IntArray, n_channels: int, pipeline_bytes: int = 512 * 1024) -> Layout:
        """Return where the ranks of a group sit and the orders of its rings and chains."""
        key = (group.tobytes(), n_channels, pipeline_bytes)
        if key not in self._layouts:
            self._layouts[key] = self._layout(group, n_channels, pipeline_bytes)
        return self._layouts[key]

    def _layout(self, group: IntArray, n_channels: int, pipeline_bytes: int) -> Layout:
        fabric = self.fabric
        node = np.asarray(fabric.node_of_gpu[group], dtype=np.int64)
        unit = self.units(group)
        if len(np.unique(unit)) < len(np.unique(node)):
            heads_of = len(heads(self.template_of(int(group[0])), (0,)))  # one a NIC
            per_unit = -(-len(np.unique(node)) // len(np.unique(unit)))
            return domain_layout(unit, n_channels, pipeline_bytes, max(1, heads_of * per_unit))
        own = self._library_layout(group, node, n_channels, pipeline_bytes)
        if own is not None:
            return own
        return layout_for(
            fabric.templates,
            node,
            np.asarray(fabric.local_of_gpu[group], dtype=np.int64),
            n_channels,
            pipeline_bytes,
        )

    def _library_layout(
        self, group: IntArray, node: IntArray, n_channels: int, pipeline_bytes: int
    ) -> Layout | None:
        """Return the orders that the library's graph search found, where nodes are alike."""
        inp = self.tuning_input(group)
        if inp is None:
            return None
        ring, tree = inp.graphs["ring"], inp.graphs["tree"]
        border = np.flatnonzero(np.diff(node)) + 1
        n_nodes = len(border) + 1
        per_node = len(group) // n_nodes
        local = np.asarray(self.fabric.local_of_gpu)[group].reshape(-1)
        alike = len(group) == n_nodes * per_node and np.array_equal(
            border, per_node * np.arange(1, n_nodes)
        )
        if not alike or not (local.reshape(n_nodes, per_node) == local[:per_node]).all():
            return None
        if any(len(c.gpus) != per_node for g in (ring, tree) for c in g.channels):
            return None
        if not ring.channels or not tree.channels:
            return None
        near = heads(self.template_of(int(group[0])), tuple(int(i) for i in local[:per_node]))
        if n_nodes > 1 and len(ring.channels) < len(set(near)):
            # Its rings name NICs that are not the nearest to their GPUs; routes take the nearest.
            return None
        return Layout(
            world_size=len(group),
            nodes=np.repeat(np.arange(n_nodes), per_node),
            n_channels=n_channels,
            rings=ring_orders(ring, n_nodes, n_channels),
            chains=chain_orders(tree, n_nodes, n_channels),
            pipeline_bytes=pipeline_bytes,
        )

    def units(self, group: IntArray) -> IntArray:
        """Return the node, or the NVLink domain of several nodes, of each rank of a group."""
        return self.fabric.unit_of_node[self.fabric.node_of_gpu[group]]

    def tuning_input(self, group: IntArray) -> TuningInput | None:
        """Return the group as the library's tuning model sees it.

        None where the profile has no such model or the hardware none of its GPUs.
        """
        if self.profile.tuning != "nccl":
            return None
        if self._seen_as is not None:
            return self._seen_as.tuning_input(group)
        key = group.tobytes()
        if key not in self._inputs:
            version, environment = environment_of(self.profile.environment, self.profile.version)
            try:
                self._inputs[key] = tuning_input(self.fabric, group, version, environment)
            except TopologyError:
                # An own topology without CPUs: the library's search has nothing to stand on.
                self._inputs[key] = None
        return self._inputs[key]

    def library_algorithm(self, algorithm: str) -> str:
        """Return what the library calls an algorithm, ``TREE``; empty where it has no name."""
        if self.profile.tuning != "nccl":
            return ""
        return (library_name(algorithm) or "").upper()

    def most_channels(self, group: IntArray) -> int:
        """Return the profile's channel count for a group, before the size lowers it."""
        template = self.template_of(int(group[0]))
        alone = self.group_nodes(group) == len(group)
        kind = "network_min" if alone and len(group) > 1 else interconnect(template)
        return self.profile.channels(kind, template.gpu.generation)

    def check_algorithm(self, collective: str, name: str, group: IntArray) -> None:
        """Raise ScheduleError when the group's hardware cannot run the algorithm."""
        get_algorithm(collective, name)
        in_node, in_network = switches_add_up(self, group)
        if name in _NETWORK_SWITCH_ALGORITHMS and not in_network and self.group_nodes(group) > 1:
            raise ScheduleError(
                Problem(
                    message=f"{name} needs network switches that reduce (SHARP), which only "
                    "InfiniBand has",
                    allowed="nodes whose NICs are all joined by InfiniBand switches",
                )
            )
        if name in _SWITCH_ALGORITHMS and not in_node:
            template = self.template_of(int(group[0]))
            raise ScheduleError(
                Problem(
                    message=f"{name} needs NVSwitches that reduce, which {template.name} "
                    f"({template.gpu.name}) does not have",
                    allowed="nodes of Hopper or Blackwell GPUs with NVSwitch",
                )
            )

    def refusal(self, collective: str, name: str, group: IntArray) -> str | None:
        """Return why no schedule does what an algorithm's name says; None where one does.

        Only algorithms of the network's switches are tried: the others refuse nothing that the
        library would choose.
        """
        try:
            self.check_algorithm(collective, name, group)
            if name in _NETWORK_SWITCH_ALGORITHMS:
                small = Call(collective=collective, world_size=len(group), size_bytes=len(group))
                get_algorithm(collective, name).function(small, self.layout(group, 1))
        except ScheduleError as error:
            return error.problems[0].message
        return None

    def warn(self, text: str) -> None:
        """Keep a warning for the result, once."""
        if text not in self.warnings:
            self.warnings = (*self.warnings, text)

    def note(self, text: str) -> None:
        """Keep a note for the result, once."""
        if text not in self.notes:
            self.notes = (*self.notes, text)

    def schedule(self, call: Call, group: IntArray, choice: Choice) -> Schedule:
        """Return the schedule of a call; ScheduleError when the algorithm refuses it."""
        return self._scheduled(call, group, choice, self._layout_of(group, choice))

    def _layout_of(self, group: IntArray, choice: Choice) -> Layout:
        return self.layout(group, choice.n_channels, choice.pipeline_bytes)

    def _scheduled(self, call: Call, group: IntArray, choice: Choice, layout: Layout) -> Schedule:
        self.check_algorithm(call.collective, choice.algorithm, group)
        return get_algorithm(call.collective, choice.algorithm).function(call, layout)

    def collective(
        self,
        call: Call,
        group: Sequence[int] | IntArray,
        choice: Choice,
        *,
        name: str | None = None,
        router: Router | None = None,
        noted: bool = True,
    ) -> Collective:
        """Return the engine's form of a call on a group of global ranks.

        With *noted* false nothing is warned of: the call is only one of those to choose from.
        """
        ranks = np.asarray(group, dtype=np.int64)
        lowered = self._lowered(call, ranks, choice, name, router)
        if self.calibrated is None:
            return lowered
        if noted:
            self.calibrated.note(call, ranks, choice.algorithm, choice.protocol)
        factor = self.factor(call, ranks, choice)
        return scaled(lowered, factor, self.lowering.link_efficiency)

    def factor(self, call: Call, group: IntArray, choice: Choice) -> float:
        """Return by what the machine's calibration multiplies a call's time alone."""
        if self.calibrated is None:
            return 1.0
        return self.calibrated.factor(call, group, choice.algorithm, choice.protocol)

    @property
    def outside(self) -> tuple[str, ...]:
        """A warning where calls lay outside what the profile was calibrated with."""
        return () if self.calibrated is None else self.calibrated.warnings

    def _lowered(
        self, call: Call, ranks: IntArray, choice: Choice, name: str | None, router: Router | None
    ) -> Collective:
        if choice.protocol not in self.profile.protocols:
            raise ScheduleError(unknown_name("protocol", choice.protocol, self.profile.protocols))
        title = name or f"{call.collective} {choice.algorithm} {choice.protocol}"
        signature = (
            call.collective,
            f"{call.size_bytes} bytes",
            f"root {call.root}",
            f"{call.element_bytes}-byte elements",
        )
        if self.sums_exchanges and is_bulk(call, choice.algorithm):
            summed = bulk_exchange(
                self.lowering,
                call,
                ranks,
                protocol=choice.protocol,
                channels=choice.n_channels,
                name=title,
                signature=signature,
                router=router,
            )
            if self.hosts is not None:
                crowding = self.hosts.crowding(self.fabric, ranks)
                summed = self.hosts.charged_exchange(call, summed, crowding=crowding)
            if choice.algorithm != "pairwise":
                return summed
            layout = self._layout_of(ranks, choice)
            sample = pairwise_sample(call, layout, runs_of(len(ranks)), RUN_STEPS)
            copies = float(choice.n_channels)
            some = self._one_by_one(call, ranks, choice, sample, copies, title, signature, router)
            return in_turns(summed, some, self.network.capacity_Bps)
        refuse_pairs(call, choice.algorithm)
        layout, copies = self._layout_of(ranks, choice), 1.0
        if choice.algorithm in EXCHANGES:
            copies = float(choice.n_channels)
        elif self.profile.per_channel:
            layout, copies = distinct_channels(layout, choice.algorithm)
        schedule = self._scheduled(call, ranks, choice, layout)
        return self._one_by_one(call, ranks, choice, schedule, copies, title, signature, router)

    def _one_by_one(
        self,
        call: Call,
        ranks: IntArray,
        choice: Choice,
        schedule: Schedule,
        copies: float,
        title: str,
        signature: tuple[object, ...],
        router: Router | None,
    ) -> Collective:
        """Return a call with a connection for each pair (and channel) of its schedule."""
        lowered = self.lowering.collective(
            schedule,
            ranks,
            copies=copies,
            switch_fill=self._switch_fill(call, ranks, choice),
            protocol=choice.protocol,
            name=title,
            signature=signature,
            router=router,
        )
        if choice.further_steps and len(lowered.connections.latency_s):
            more_s = choice.further_steps * float(lowered.connections.latency_s.mean())
            lowered = replace(lowered, launch_s=lowered.launch_s + more_s)
        if self.hosts is not None and len(lowered.connections.src):
            lowered = self.hosts.charged(
                call,
                schedule,
                lowered,
                crowding=self.hosts.crowding(self.fabric, ranks),
                path_kind=self.lowering.path_kinds(
                    lowered.connections.link, lowered.connections.indptr
                ),
                link_kind=np.asarray(self.fabric.link_kind),
            )
        return lowered

    def _switch_fill(self, call: Call, group: IntArray, choice: Choice) -> float:
        """Return the share of an NVSwitch reduction's rate that the call's channels reach.

        A channel is one block, whose loads of the switch move only so much.  Assumed: the
        library's own number of channels just fills the NVLinks (16 on Hopper, NCCL 2.27
        src/transport/nvls.cc), and fewer move in proportion; no measurement of fewer is known.
        """
        inp = self.tuning_input(group) if choice.algorithm in _SWITCH_ALGORITHMS else None
        if inp is None:
            return 1.0
        values = {k: v for k, v in inp.environment.values.items() if k not in _CHANNEL_VARIABLES}
        usual = replace(inp, environment=NcclEnvironment(values=values))
        plan = plan_call(usual, call.collective, choice.algorithm, "Simple", call.size_bytes)
        return min(1.0, choice.n_channels / plan.n_channels)

    def picked(self, call: Call, group: IntArray) -> Picked | None:
        """Return the algorithm that the library's rules or variables name; None: no rules."""
        if self.hosts is not None and call.collective in self.hosts.forced:
            forced = self.hosts.forced[call.collective]
            return Picked(algorithm=forced, reason="an environment variable names it")
        if self.profile.rules is None:
            return None
        nodes = self.group_nodes(group)
        return self.profile.rules.pick(call.collective, call.world_size, nodes, call.size_bytes)


def switches_add_up(cluster: Cluster, group: IntArray) -> tuple[bool, bool]:
    """Return whether the switches in a group's nodes, and those between them, can reduce.

    NVSwitches do since Hopper (NVLink SHARP), network switches on InfiniBand (SHARP).  That a
    library has to be told to use them (NCCL_COLLNET_ENABLE) is not looked at.
    """
    fabric = cluster.fabric
    kinds = np.unique(np.asarray(fabric.template_of_node)[fabric.node_of_gpu[group]])
    templates = [fabric.compiled[int(kind)].template for kind in kinds]
    in_node = all(
        interconnect(template) == "nvswitch" and template.gpu.generation in _SWITCH_GENERATIONS
        for template in templates
    )
    cables = np.unique(fabric.link_kind[fabric.first_cable :]).tolist()
    in_network = cables == [LINK_KINDS.index("infiniband")]
    return in_node, in_network and fabric.n_vertices > fabric.first_switch
