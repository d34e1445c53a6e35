"""What a log is compared with: a cluster given in words, by a scenario file, or guessed."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from simulator.base.errors import CollsimError, Problem, ScenarioError
from simulator.importers import MeasuredTable
from simulator.scenario.calls import ROOTED
from simulator.scenario.nodes import node_template
from simulator.scenario.plugins import is_profile_file
from simulator.scenario.resolve import from_words, load
from simulator.scenario.resolved import Resolved
from simulator.verdict.doubts import (
    gpu_doubt,
    host_contradiction,
    hosts_known,
    library_doubt,
    shared_gpu,
)

__all__ = ["GUESS_HINT", "SetUp", "call_words", "fitted", "gpu_total", "refuse_guess"]

GUESS_HINT = "a set-up: --node hgx-h100 --nodes 2, or --scenario FILE"

_DTYPES = {"int8": "int8", "char": "int8", "bf16": "bfloat16"}
_REDUCTIONS = ("sum", "prod", "max", "min", "avg")


Key = tuple[str | None, int, tuple[tuple[str, str], ...]]
"""File, when it was changed, words."""


@functools.lru_cache(maxsize=256)
def _resolved(key: Key) -> Resolved:
    """Return the only variant of a scenario; logs ask for the same one again and again."""
    file, _, words = key
    if file is None:
        scenarios = from_words(dict(words))
    else:
        scenarios = load(file, overrides=[f"{name}={value}" for name, value in words])
    if len(scenarios.variants) != 1:
        raise ScenarioError(
            Problem(
                file=file or "command line",
                message=f"the set-up has {len(scenarios.variants)} variants: "
                + ", ".join(scenarios.dimensions),
                allowed="one value for each key",
            )
        )
    return scenarios.variants[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """A cluster and its settings, without the call: tables bring the calls.

    Examples
    --------
    >>> set_up = SetUp(words={"node": "hgx-h100", "nodes": "2"})
    >>> set_up.resolve({"collective.op": "all_reduce", "collective.sizes": "[8]"}).nodes
    2
    """

    words: Mapping[str, str] = field(default_factory=dict)
    """Dotted key of a scenario to YAML text; laid over the file where there is one."""
    file: str | None = None
    """Scenario file; its collective is replaced by the table's."""
    reasons: tuple[str, ...] = ()
    """What a guess rests on, one sentence each; empty for a given set-up."""
    evidence: tuple[str, ...] = ()
    """What the log itself says about faults, such as ``NCCL_P2P_DISABLE=1``."""
    transports: tuple[str, ...] = ()
    """Connections that NCCL reported, such as ``NET/IB/GDRDMA``; they rule faults out."""
    nics_seen: int | None = None
    """Network devices of a node that NCCL listed; None: the log does not say."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Faults that measured links name, with what they say."""
    excluded: frozenset[str] = frozenset()
    """Faults that measured links rule out."""
    observed: Mapping[str, str] = field(default_factory=dict)
    """Words for settings that the log shows; `compare` lays them over, `check` does not."""
    unknown: str = ""
    """What neither the log nor the user told and the verdict needs; empty: nothing."""
    doubts: tuple[str, ...] = ()
    """What in the log speaks against the set-up without refuting it, a sentence each."""

    def resolve(self, words: Mapping[str, str]) -> Resolved:
        """Return the scenario with more words laid over it.

        Raises
        ------
        ScenarioError
            Everything that is wrong with it; a scenario of several variants, or without a cluster.
        """
        return _resolved(self.key(words))

    def key(self, words: Mapping[str, str], *, but: str = "") -> Key:
        """Return what a resolved scenario depends on: words and file, without one of the words."""
        merged = {**self.words, **words}
        merged.pop(but, None)
        there = self.file is not None and os.path.isfile(self.file)
        stamp = os.stat(self.file).st_mtime_ns if self.file is not None and there else 0
        return self.file, stamp, tuple(merged.items())

    def with_words(self, words: Mapping[str, str]) -> SetUp:
        """Return the set-up with more words."""
        return replace(self, words={**self.words, **words})

    def as_observed(self) -> SetUp:
        """Return the set-up with the settings that the log shows."""
        return self.with_words(
            {key: value for key, value in self.observed.items() if key not in self.words}
        )

    @property
    def profile(self) -> str:
        """The cost profile, which its GPUs tell where nothing is said."""
        return self.resolve({"collective.op": "barrier"}).costs.profile

    @property
    def title(self) -> str:
        """The set-up in a few words."""
        if self.file is not None:
            return " ".join([self.file, *(f"{k}={v}" for k, v in self.words.items())])
        words = dict(self.words)
        node, nodes = words.pop("node", "?"), words.pop("nodes", "1")
        per_node = words.pop("gpus_per_node", None)
        head = f"{nodes} × {node}" + (f", {per_node} GPUs each" if per_node else "")
        library = self.profile
        words.pop("costs.profile", None)
        library = library if is_profile_file(library) else library.upper()
        version = words.pop("costs.version", None)
        together = words.pop("costs.gpus_per_process", None)
        parts = [head]
        if version is not None or library != "NCCL":
            parts.append(f"{library} {version}" if version else library)
        if together is not None:
            parts.append(f"{together} GPUs a process")
        # What the log itself says of variables stands above the table, a line each.
        own = {
            key: value
            for key, value in words.items()
            if not key.startswith("env.") or self.observed.get(key) != value
        }
        return ", ".join([*parts, *(f"{key}={value}" for key, value in own.items())])


def call_words(table: MeasuredTable, sizes_bytes: Sequence[int]) -> dict[str, str]:
    """Return the words of a table's call at some sizes.

    Raises
    ------
    ScenarioError
        Nothing tells which collective the table is of.
    """
    if table.collective == "unknown":
        raise ScenarioError(
            Problem(
                file=table.source,
                line=table.rows[0].line,
                message="nothing tells which collective this table is of",
                allowed="--collective all_reduce",
            )
        )
    words = {
        "collective.op": table.collective,
        "collective.sizes": "[" + ",".join(str(size) for size in sizes_bytes) + "]",
        "collective.dtype": _DTYPES.get(table.dtype, table.dtype),
    }
    if table.algorithm is not None:
        words["collective.algorithm"] = table.algorithm
        words["collective.channels"] = str(table.channels or 1)
    if table.redop in _REDUCTIONS:
        words["collective.redop"] = table.redop
    if table.collective in ROOTED and table.root is not None and table.root >= 0:
        words["collective.root"] = str(table.root)
    return words


def fitted(set_up: SetUp, table: MeasuredTable) -> SetUp:
    """Return the set-up with the numbers of nodes and GPUs that the table has.

    What the user said stays; what was left open follows the log's rank count.

    Raises
    ------
    ScenarioError
        The log's ranks or hosts contradict the set-up.
    """
    n_ranks = table.n_ranks
    probe = {"collective.op": "barrier"}
    resolved = set_up.resolve(probe)
    set_up = _doubted(set_up, table, resolved)
    if n_ranks is None:
        return _checked(set_up, table, gpu_total(resolved))
    if resolved.node is None:
        return _checked(set_up, table, gpu_total(resolved))
    said = {*set_up.words}
    if set_up.file is not None:
        said |= {key for key, origin in resolved.origins.items() if origin != "default"}
    per_node = resolved.gpus_per_node or n_ranks
    if "nodes" not in said:
        nodes = table.n_nodes or -(-n_ranks // per_node)
        set_up = set_up.with_words({"nodes": str(nodes)})
    else:
        nodes = resolved.nodes or 1
        set_up = _on_hosts(set_up, table, nodes)
    if "gpus_per_node" not in said and n_ranks < nodes * per_node and n_ranks % nodes == 0:
        set_up = set_up.with_words({"gpus_per_node": str(n_ranks // nodes)})
    return _checked(set_up, table, gpu_total(set_up.resolve(probe)))


def _doubted(set_up: SetUp, table: MeasuredTable, resolved: Resolved) -> SetUp:
    """Return the set-up with a doubt where the log names another model of GPU."""
    models = [node_template(group.node).gpu.name for group in resolved.node_groups]
    texts = (
        gpu_doubt(table, models),
        library_doubt(table, resolved.costs.profile),
        shared_gpu(table),
    )
    return replace(set_up, doubts=(*set_up.doubts, *filter(None, texts)))


def _on_hosts(set_up: SetUp, table: MeasuredTable, nodes: int) -> SetUp:
    """Return the set-up where the log's ranks lie on as many hosts, or refuse it."""
    text = host_contradiction(table, nodes)
    if not text:
        return set_up
    if not hosts_known(table):
        return replace(set_up, doubts=(*set_up.doubts, text))
    raise ScenarioError(
        Problem(
            file=table.source,
            line=table.rows[0].line,
            key="nodes",
            message=f"{text} ({set_up.title})",
            allowed=f"--nodes {table.n_nodes}, or another log",
        )
    )


def gpu_total(resolved: Resolved) -> int | None:
    """Return the number of GPUs of a cluster of presets, None for an own topology."""
    if resolved.topology is not None:
        return None
    return sum(group.nodes * (group.gpus_per_node or 0) for group in resolved.node_groups)


def _checked(set_up: SetUp, table: MeasuredTable, n_gpus: int | None) -> SetUp:
    least, most = table.implied_ranks or (table.n_ranks, table.n_ranks)
    if n_gpus is not None and least is not None and not least <= n_gpus <= (most or least):
        several = f"{least}" if least == most else f"{least} to {most}"
        told = table.n_ranks_from or "busbw / algbw"
        raise ScenarioError(
            Problem(
                file=table.source,
                line=table.rows[0].line,
                message=f"the log has {several} ranks ({told}), the set-up {set_up.title} has "
                f"{n_gpus} GPUs",
                allowed="--nodes and --gpus-per-node whose product is the number of ranks",
            )
        )
    return set_up


def refuse_guess(table: MeasuredTable, message: str) -> CollsimError:
    """Return the error of a log that does not tell enough."""
    return ScenarioError(
        Problem(
            file=table.source,
            line=table.rows[0].line,
            message=f"the set-up cannot be guessed: {message}",
            allowed=GUESS_HINT,
        )
    )
