"""The sections of a scenario file: cluster, collective, costs, engine, perturbations, output.

Every key is declared once, with its kind, unit, default, limits and meaning; the reader, the
writer and ``docs/scenario.md`` all follow these declarations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.base.fields import option
from simulator.base.limits import LEAST_SHARE, MOST_GPUS, MOST_TRANSFERS
from simulator.fabric.model import LINK_KINDS, NETWORK_KINDS
from simulator.scenario import plugins
from simulator.scenario.reader import shaped
from simulator.scenario.shapes import Counts, Nested, NestedList, Sizes, Table, Texts

__all__ = [
    "CollectiveSpec",
    "CostSpec",
    "EngineSpec",
    "FabricSpec",
    "HungRanks",
    "Jitter",
    "LateRanks",
    "LinkFault",
    "LinkNumbers",
    "NodeGroup",
    "NodeSpec",
    "OutputSpec",
    "PerturbSpec",
    "SlowRanks",
]

CABLE_KINDS = tuple(kind for kind in LINK_KINDS if kind != "memory")
"""Kinds of link between two vertices; ``memory`` belongs to one."""
REDUCTIONS = ("sum", "prod", "max", "min", "avg")
PROTOCOLS = ("auto", "LL", "LL128", "Simple")
MOST_CHANNELS = 128
"""Of any library: RCCL's MAXCHANNELS (rccl 2.22 src/include/device.h); NCCL has fewer."""
MOST_PROCESS_GPUS = 1024
"""Of one process; no node has more."""
PLOTS = ("busbw", "compare", "gantt", "link_load", "memory", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkNumbers:
    """Other numbers for one kind of link inside a node."""

    bandwidth_Bps: float | None = option(
        "rate", None, doc="Per direction and link; auto: the preset's."
    )
    latency_s: float | None = option("time", None, doc="One way; auto: the preset's.")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """A node preset and what differs from it."""

    preset: str = option(
        "name", doc="Name as `collsim topologies list` shows it, an alias, or words (`8xH100`)."
    )
    nic_rate_Bps: float | None = option(
        "rate", None, doc="Rate of each network port per direction; auto: the preset's."
    )
    nic_latency_s: float | None = option(
        "time", None, doc="Latency of each network port; auto: the preset's."
    )
    nic_kind: str | None = option(
        "name",
        None,
        doc="Kind of the network ports; null: the preset's.",
        choices=NETWORK_KINDS,
    )
    links: dict[str, LinkNumbers] = shaped(
        Table(LinkNumbers, CABLE_KINDS), doc="Numbers of the node's links, by kind of link."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes of one kind in a cluster of several kinds."""

    node: NodeSpec = shaped(Nested(NodeSpec), doc="Preset, or section with a preset.")
    nodes: int = option("count", 1, doc="How many of them.", minimum=1, maximum=MOST_GPUS)
    gpus_per_node: int | None = option(
        "count", None, doc="Use only the first GPUs of each node; auto: all.", minimum=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSpec:
    """The network between the nodes: its kind and the options of that kind."""

    kind: str
    options: Any
    """Instance of the kind's option dataclass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSpec:
    """One collective call, at one or several sizes."""

    op: str = option("name", doc="`all_reduce`, `all_gather`, …; aliases of other tools are known.")
    sizes_bytes: tuple[int, ...] = shaped(
        Sizes(),
        default=(),
        key="sizes",
        aliases=("size",),
        doc="Message sizes as nccl-tests counts them: the whole buffer of all_reduce, broadcast, "
        "reduce and send_recv, the sum of all ranks' parts of the others.  One table row each.",
    )
    algorithm: str = option(
        "name",
        "auto",
        doc="Name as `collsim list` shows it for the collective, one of NCCL's own in capitals "
        "(TREE), or auto.",
    )
    protocol: str = option("name", "auto", doc="Protocol.", choices=PROTOCOLS)
    channels: int | None = option(
        "count",
        None,
        doc="Parallel channels; auto: as the library would, which has no more than 32 or 64.",
        minimum=1,
        maximum=MOST_CHANNELS,
    )
    root: int = option("count", 0, doc="Root of broadcast, reduce, gather and scatter.")
    dtype: str = option("name", "float", doc="Type of an element, as nccl-tests or torch call it.")
    redop: str = option("name", "sum", doc="Reduction.", choices=REDUCTIONS)
    ranks: tuple[int, ...] | None = option(
        "ranks",
        None,
        doc="GPUs that take part, numbered node by node, in the order of the group; auto: all.",
    )
    counts_bytes: tuple[int, ...] | tuple[tuple[int, ...], ...] | None = shaped(
        Counts(),
        default=None,
        key="counts",
        doc="Uneven parts, instead of a size: bytes of each rank (all_gather, reduce_scatter, "
        "gather, scatter) or a row of bytes per sender (all_to_allv).",
    )
    in_place: bool = option("flag", False, doc="Shown in the table; costs no other time.")

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return plugins.element_bytes(self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSpec:
    """Cost constants of the communication library."""

    profile: str = option(
        "name",
        "auto",
        doc="Cost profile, such as `nccl` or `ideal`, or the file of one that `collsim fit` wrote, "
        "found from where the scenario stands; auto: `rccl` on AMD's GPUs, `gloo` on nodes without "
        "GPUs, `nccl` on all others.",
    )
    version: str | None = option(
        "text",
        None,
        doc="Version of the library whose rules choose, such as `2.21.5`; auto: the profile's.",
    )
    gpus_per_process: int = option(
        "count",
        1,
        doc="GPUs for which one process launches its calls one after the other: nccl-tests' `-g` "
        "(times `-t`). Short calls cannot follow each other faster.",
        minimum=1,
        maximum=MOST_PROCESS_GPUS,
    )
    buffers: str = option(
        "name",
        "auto",
        doc="Where buffers lie, for libraries that move data with the CPU (`gloo`, `mpi`, `mpich`):"
        " `gpu` copies them to the host and back; auto: `gpu` with gloo on nodes with GPUs, else "
        "`host`.",
        choices=("auto", "gpu", "host"),
    )
    overrides: dict[str, str] = shaped(
        Texts("constants by dotted key, `links.nvlink.efficiency: 90 %`"),
        doc="Other values of the profile's constants: `launch.time`, `links.KIND.efficiency`, "
        "`paths.KIND.PROTOCOL`, `protocols.NAME.payload_share`.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Level of detail."""

    level: str = option(
        "name",
        "auto",
        doc="`steps` simulates every transfer, `folded` one flow per edge and stage. "
        "`auto`: `folded` for libraries whose constants are fitted there (nccl, rccl), for "
        "programs and jobs, and where transfers are too many (docs/model.md has the rule); the "
        "level and its reason stand below the table.",
        choices=("auto", "steps", "folded"),
    )
    max_transfers: int = option(
        "count",
        20_000_000,
        doc="auto takes `folded` above this number of transfers, above a thousandth of it "
        "where they share links, and above a four-hundredth where they do so in ways that "
        "`folded` does not follow; then with a warning.",
        minimum=1,
        maximum=MOST_TRANSFERS,
    )
    record: bool | None = option(
        "flag", None, doc="Keep every message; auto: when a trace or step plot is asked for."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRanks:
    """Ranks that call late."""

    ranks: tuple[int, ...] = option("ranks", doc="Which ranks.")
    by_s: float = option("time", doc="How late.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRanks:
    """Ranks whose GPU computes slowly."""

    ranks: tuple[int, ...] = option("ranks", doc="Which ranks.")
    factor: float = option(
        "fraction", doc="Computes take so many times longer.", minimum=1, maximum=1e6
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HungRanks:
    """Ranks that leave the training loop early: the others wait for them for ever."""

    ranks: tuple[int, ...] = option("ranks", doc="Which ranks.")
    after: float = option(
        "fraction", 0.5, doc="Share of the step's operations that they still do.", maximum=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """Random variation of every message, seeded."""

    sigma: float = option(
        "fraction",
        0.0,
        doc="Spread of each message's time on the wire: log-normal factor, median 1.",
        maximum=10,
    )
    latency_s: float = option("time", 0.0, doc="Mean of an exponential extra latency.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFault:
    """A link that is slow or down for a while."""

    link: str = option(
        "text",
        doc="Name or glob (`node3.nic0*`) of links, as `collsim topologies show` lists them.",
    )
    factor: float | None = option(
        "fraction", None, doc="Share of the bandwidth that is left.", minimum=LEAST_SHARE, maximum=1
    )
    down: bool = option(
        "flag",
        False,
        doc="The link fails; traffic takes another path if there is, or waits until the link is "
        "back.",
    )
    at_s: float = option("time", 0.0, doc="When it begins.")
    until_s: float | None = option("time", None, doc="When it ends; auto: never.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PerturbSpec:
    """Everything that is not as it should be."""

    late: tuple[LateRanks, ...] = shaped(NestedList(LateRanks), doc="Ranks that call late.")
    slow: tuple[SlowRanks, ...] = shaped(
        NestedList(SlowRanks), doc="Ranks that compute slowly, in a training step."
    )
    hang: tuple[HungRanks, ...] = shaped(
        NestedList(HungRanks), doc="Ranks that leave a training step early."
    )
    skew_s: float = option(
        "time",
        0.0,
        doc="Each rank begins each call late by a seeded uniform time up to this, which counts as "
        "waiting.",
    )
    jitter: Jitter = shaped(Nested(Jitter), doc="Random variation of messages.")
    links: tuple[LinkFault, ...] = shaped(NestedList(LinkFault), doc="Slow and failing links.")
    compute_slowdown: float = option(
        "fraction",
        1.0,
        doc="Computation takes this many times longer while its GPU communicates in the same job.",
        minimum=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSpec:
    """Files to write beside the table; command line options add to them.

    An existing file is overwritten only with ``--force``.
    """

    folder: str = option("text", ".", doc="Where files go.", sweep=False)
    csv: str | None = option("text", None, doc="File of the table.", sweep=False)
    json: str | None = option("text", None, doc="File of everything, with provenance.", sweep=False)
    trace: str | None = option("text", None, doc="Chrome/Perfetto trace.", sweep=False)
    plots: tuple[str, ...] = option(
        "name", (), doc="Plots to draw.", choices=PLOTS, many=True, sweep=False
    )
    plot_format: str = option(
        "name", "png", doc="Format of plots.", choices=("png", "svg", "pdf"), sweep=False
    )
