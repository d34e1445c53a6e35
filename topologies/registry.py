"""The table of network topologies: a name, its options, and the builder of its wiring."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from simulator.base.errors import Problem, TopologyError, unknown_name
from simulator.base.fields import option, option_fields
from simulator.base.registry import Entry, Registry
from simulator.fabric.fabric import Fabric
from simulator.fabric.model import NETWORK_KINDS, NodeTemplate
from simulator.fabric.wiring import Ports, Wiring, WiringBuilder

__all__ = [
    "NetworkOptions",
    "Topology",
    "build",
    "entries",
    "entry",
    "get_topology",
    "kinds",
    "option_type",
    "start",
    "topologies",
    "topology",
    "trunk_rate",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Options that every network topology has."""

    link: float | None = option(
        "rate",
        None,
        doc="Rate of each NIC's link per direction, and of links between switches unless `trunk` "
        "is given; a NIC's own rate limits it. Default: the NICs' rate.",
    )
    trunk: float | None = option(
        "rate", None, doc="Rate of each link between switches per direction. Default: `link`."
    )
    link_kind: str | None = option(
        "name",
        None,
        choices=NETWORK_KINDS,
        doc="Kind of the network's links. Default: the NICs' kind.",
    )
    hop_latency: float | None = option(
        "time",
        None,
        minimum=0.0,
        doc="Port-to-port time of a switch. Default by link kind: InfiniBand 0.15 us, Slingshot "
        "0.35 us, others 0.8 us.",
    )
    nvl_domain: int | None = option(
        "count",
        None,
        minimum=1,
        doc="Neighbouring nodes that share their NVSwitches. Default: as the node says (18 for "
        "gb200-nvl72, else 1).",
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """One registered network topology."""

    options: type[NetworkOptions]
    wire: Callable[[Ports, Any], Wiring]


_REGISTRY: Registry[Topology] = Registry("topology")

Builder = TypeVar("Builder", bound=Callable[..., Wiring])


def topology(
    name: str, *, summary: str, reference: str, options: type[NetworkOptions] = NetworkOptions
) -> Callable[[Builder], Builder]:
    """Register a function ``(ports, options) -> Wiring`` as a network topology.

    Parameters
    ----------
    name
        Value of ``fabric.kind`` in scenarios.
    summary, reference
        One line for lists, and the paper or guide that describes the network.
    options
        Dataclass of its options, see `simulator.base.fields.option`.

    Raises
    ------
    ValueError
        The name is taken.

    Examples
    --------
    A ring of one switch per node::

        @topology("switch_ring", summary="switches in a circle", reference="none")
        def wire(ports, options):
            builder = start(ports, options)
            ring = builder.switches("leaf", ports.n_nodes)
            builder.attach(ring[ports.node], options.link)
            builder.connect(ring, numpy.roll(ring, -1), trunk_rate(ports, options))
            return builder.finish()
    """

    def add(builder: Builder) -> Builder:
        added = Topology(options=options, wire=builder)
        _REGISTRY.register(name, summary=summary, reference=reference)(added)
        return builder

    return add


def topologies() -> dict[str, str]:
    """Return all names with their summaries, sorted."""
    return {entry.name: entry.summary for entry in _REGISTRY.entries()}


def kinds() -> list[str]:
    """Return all names, sorted."""
    return sorted(_REGISTRY)


def entries() -> list[Entry[Topology]]:
    """Return all topologies with summary and reference, sorted by name."""
    return _REGISTRY.entries()


def entry(name: str) -> Entry[Topology]:
    """Return a topology with summary and reference; an unknown name raises TopologyError."""
    get_topology(name)
    return _REGISTRY[name]


def get_topology(name: str) -> Topology:
    """Return a topology; an unknown name raises TopologyError."""
    if name not in _REGISTRY:
        raise TopologyError(unknown_name("topology", name, _REGISTRY))
    return _REGISTRY[name].value


def option_type(name: str) -> type[NetworkOptions]:
    """Return the options dataclass of a topology; an unknown name raises TopologyError."""
    return get_topology(name).options


def _check(options: NetworkOptions) -> None:
    """Raise TopologyError for values out of range, all at once."""
    problems = []
    for item in option_fields(type(options)):
        value = getattr(options, item.name)
        if value is None:
            continue
        key = f"fabric.{item.name}"
        if item.choices is not None and value not in item.choices:
            problem = unknown_name(item.name, str(value), item.choices)
            problems.append(dataclasses.replace(problem, key=key))
        elif item.kind == "rate" and not 0 < value < float("inf"):
            problems.append(
                Problem(key=key, message=f"the rate is {value}", allowed="a rate greater than zero")
            )
        elif item.minimum is not None and not item.minimum <= value < float("inf"):
            problems.append(
                Problem(
                    key=key, message=f"{value} is too small", allowed=f"at least {item.minimum}"
                )
            )
    if problems:
        raise TopologyError(problems)


def build(
    nodes: Sequence[tuple[NodeTemplate, int]], kind: str, options: NetworkOptions | None = None
) -> Fabric:
    """Return the fabric of some nodes joined by a network topology.

    Parameters
    ----------
    nodes
        Groups of equal nodes, (template, count), in node order.
    kind
        Name of the topology.
    options
        Its options, an object of `option_type`; None: the defaults.

    Raises
    ------
    TopologyError
        Unknown topology, options out of range or of another topology, sizes that do not fit
        (with what would), nodes without NIC, a graph in pieces.

    Examples
    --------
    >>> from topologies import build, hardware, option_type
    >>> options = option_type("rail_optimized")(oversubscription=2)
    >>> fabric = build([(hardware.load("dgx-h100"), 4)], "rail_optimized", options)
    >>> fabric.n_gpus, fabric.counts()["leaf"]
    (32, 8)
    """
    found = get_topology(kind)
    chosen = found.options() if options is None else options
    if not isinstance(chosen, found.options):
        raise TopologyError(
            Problem(
                key="fabric",
                message=f"{type(chosen).__name__} are not options of topology {kind!r}",
                allowed=found.options.__name__,
            )
        )
    _check(chosen)
    ports = Ports.of(nodes)
    wiring = found.wire(ports, chosen)
    return Fabric(nodes, wiring, nvl_domain=chosen.nvl_domain, kind=kind)


def start(ports: Ports, options: NetworkOptions) -> WiringBuilder:
    """Return the builder that a topology fills: checks that there are NICs to join.

    Raises
    ------
    TopologyError
        A node has no NIC.
    """
    bare = [node for node, nics in enumerate(ports.nics_of_node.tolist()) if nics == 0]
    if bare:
        raise TopologyError(
            Problem(
                key="node",
                message=f"node{bare[0]} ({ports.template_names[bare[0]]}) has no NIC to connect",
                allowed="nodes with NICs, or one node with fabric.kind: none",
            )
        )
    return WiringBuilder(ports, hop_latency_s=options.hop_latency, link_kind=options.link_kind)


def trunk_rate(ports: Ports, options: NetworkOptions) -> float:
    """Return the rate of a link between switches: `trunk`, `link` or the fastest NIC's."""
    if options.trunk is not None:
        return options.trunk
    return options.link if options.link is not None else float(ports.rate_Bps.max())
