"""What a fault hypothesis is, and what its patch may ask about the set-up."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.fabric.model import NodeTemplate
from simulator.results.model import Row
from simulator.scenario.nodes import gpu_count, node_template
from simulator.scenario.resolved import Resolved

__all__ = [
    "HYPOTHESES",
    "Context",
    "Hypothesis",
    "Patch",
    "Variant",
    "Words",
    "context_of",
    "hypothesis",
    "slowed",
]

Words = Mapping[str, str]
Patch = Callable[..., Words | None]
"""Takes a `Context`, with ``node`` where it is placed and ``share`` where it has strengths."""

_NIC_WORDS = {
    "infiniband": "ib",
    "roce": "roce",
    "ethernet": "eth",
    "slingshot": "ss",
    "efa": "efa",
}


MOST_PLACES = 4.0
"""Most by which the number of nodes makes a fault of one part likelier: clusters are tested part
by part before they are whole.  An estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a patch may ask about the set-up."""

    preset: str
    template: NodeTemplate
    nodes: int
    gpus_per_node: int
    collective: str
    healthy: tuple[Row, ...]
    launch_s: float = 0.0
    """Launch time of the cost profile."""
    nics_seen: int | None = None
    """Network devices of a node that the library listed; None: the log does not say."""

    @property
    def n_nics(self) -> int:
        """Network ports of a node."""
        return sum(vertex.kind == "nic" for vertex in self.template.vertices)

    @property
    def n_gpus(self) -> int:
        """GPUs of the cluster."""
        return self.nodes * self.gpus_per_node

    @property
    def scale_up(self) -> bool:
        """True when the GPUs of a node are joined by NVLink or xGMI."""
        return any(link.kind in ("nvlink", "xgmi") for link in self.template.links)

    @property
    def networked(self) -> bool:
        """True when traffic leaves the node through NICs."""
        return self.nodes > 1 and self.n_nics > 0

    def may_use(self, count: int) -> bool:
        """Tell whether nodes may use only so many NICs, by what the library listed."""
        return self.nics_seen is None or self.nics_seen == count

    def pcie(self, *kinds: str) -> list[str]:
        """Return globs of the node's PCIe links that touch a kind of vertex (none: all)."""
        found: dict[str, None] = {}
        for link in self.template.links:
            ends = [re.sub(r"\d+$", "", end) for end in (link.a, link.b)]
            if link.kind == "pcie" and (not kinds or set(ends) & set(kinds)):
                found[f"node*.{ends[0]}*<->node*.{ends[1]}*"] = None
        return list(found)

    def with_nics(self, count: int, rate_Bps: float, kind: str | None = None) -> str:
        """Return the preset with other network ports."""
        word = _NIC_WORDS[kind or self.template.nic_kind or "ethernet"]
        return f"{self.preset}+{count}x{word}{max(1, round(rate_Bps * 8e-9))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A fault, what to look at, and its patch."""

    name: str
    cause: str
    """In plain words."""
    look: str
    """What to check or try on the machine."""
    tell: str
    """A command and what it shows when this is the cause and no other."""
    seen: bool
    """The library knows it and chooses accordingly."""
    prior: float
    """How common it is, relative to the others: an estimate from public support threads."""
    spread: float
    """Standard deviation of ln of its strength around the simulated one."""
    sign: str
    """Pattern of what a log may say about it; empty: nothing."""
    denied: str
    """Pattern of a transport in NCCL's messages that rules it out; empty: none."""
    spoken: bool
    """The library's messages would name it, so their silence speaks against it."""
    words: Patch
    """The patch; None where the fault cannot be on this set-up."""
    placed: bool = False
    """It is in one node, and *words* takes which."""
    shares: tuple[float, ...] = ()
    """What may be left of the bandwidth, the usual first; *words* takes it.  Empty: one patch."""

    def variants(self, contexts: Sequence[Context | None]) -> list[Variant]:
        """Return the patches by place and strength, each for all tables of a machine.

        Empty where the fault cannot be on it.  Nodes at the ends of chains and at the roots of
        trees send through the network what others send twice, so a fault in one of them bends the
        curve in another way; which NIC or GPU of a node it is makes no difference.
        """
        most = max((entry.nodes for entry in contexts if entry is not None), default=0)
        nodes = (0, 1) if self.placed and most > 2 else (0,)
        found: list[Variant] = []
        for node in nodes:
            # Two ends, and all others between.
            weight = 1.0 if len(nodes) == 1 else (2 / most, 1 - 2 / most)[node]
            for number, share in enumerate(self.shares or (1.0,)):
                further: dict[str, Any] = {"share": share} if self.shares else {}
                words = tuple(
                    None if entry is None else self.words(entry, **self._at(node, entry), **further)
                    for entry in contexts
                )
                if any(patch is not None for patch in words):
                    even = weight / max(1, len(self.shares))
                    found.append(Variant(words=words, node=node, weight=even, usual=number == 0))
        return found

    def prior_on(self, contexts: Sequence[Context | None]) -> float:
        """Return how common it is on a machine: one part of many nodes is likelier to be bad."""
        if not self.placed:
            return self.prior
        most = max((entry.nodes for entry in contexts if entry is not None), default=1)
        return self.prior * min(MOST_PLACES, max(1.0, most / 2))

    def _at(self, node: int, context: Context) -> dict[str, int]:
        return {"node": min(node, context.nodes - 1)} if self.placed else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A fault at one place and of one strength."""

    words: tuple[Words | None, ...]
    """Its patch of each table of a machine; None for a table that it cannot touch."""
    node: int
    weight: float
    """Its share of the fault's prior."""
    usual: bool
    """Of the usual strength."""


HYPOTHESES: dict[str, Hypothesis] = {}


def hypothesis(
    name: str,
    *,
    cause: str,
    look: str,
    tell: str,
    seen: bool,
    prior: float = 1.0,
    spread: float = 0.3,
    sign: str = "",
    denied: str = "",
    spoken: bool = False,
    placed: bool = False,
    shares: tuple[float, ...] = (),
) -> Callable[[Patch], Patch]:
    """Register the decorated patch under a name; the fields are those of `Hypothesis`."""

    def register(words: Patch) -> Patch:
        if name in HYPOTHESES:
            raise ValueError(f"two hypotheses are called {name!r}")
        HYPOTHESES[name] = Hypothesis(
            name=name,
            cause=cause,
            look=look,
            tell=tell,
            seen=seen,
            prior=prior,
            spread=spread,
            sign=sign,
            denied=denied,
            spoken=spoken,
            words=words,
            placed=placed,
            shares=shares,
        )
        return words

    return register


def context_of(
    resolved: Resolved,
    healthy: tuple[Row, ...],
    *,
    launch_s: float = 0.0,
    nics_seen: int | None = None,
) -> Context | None:
    """Return the context of a cluster of one kind of node; None for any other."""
    groups = resolved.node_groups
    if len(groups) != 1:
        return None
    group = groups[0]
    template = node_template(group.node)
    return Context(
        preset=group.node.preset,
        template=template,
        nodes=group.nodes,
        gpus_per_node=group.gpus_per_node or gpu_count(template),
        collective=healthy[0].collective,
        healthy=healthy,
        launch_s=launch_s,
        nics_seen=nics_seen,
    )


def slowed(globs: list[str], factor: float) -> Words | None:
    """Return the patch that leaves links a share of their bandwidth; None without links."""
    if not globs:
        return None
    entries = ", ".join(f'{{link: "{glob}", factor: {factor:g}}}' for glob in globs)
    return {"perturb.links": f"[{entries}]"}
