"""A scenario with nothing left open: the frozen tree that runs are made of."""

from __future__ import annotations

from collections.abc import Mapping as MappingType
from dataclasses import dataclass, field, replace
from typing import Any

from simulator.base.errors import CollsimError, Problem, nearest
from simulator.base.fields import option
from simulator.base.limits import MOST_GPUS, MOST_SEED
from simulator.scenario import plugins
from simulator.scenario.plain import to_plain
from simulator.scenario.reader import FAILED, Reader, join, kind_of, shaped, split_short
from simulator.scenario.reliability import ReliabilitySpec
from simulator.scenario.schema import (
    CollectiveSpec,
    CostSpec,
    EngineSpec,
    FabricSpec,
    NodeGroup,
    NodeSpec,
    OutputSpec,
    PerturbSpec,
)
from simulator.scenario.shapes import Nested, NestedList, Texts, is_absent
from simulator.scenario.steps import GeneratorSpec, Job, ProgramSpec
from simulator.scenario.topology import TopologyShape
from simulator.scenario.training import TrainingSpec
from simulator.scenario.tree import Mapping, Node, Place, Scalar

__all__ = ["SCHEMA_VERSION", "TASKS", "Resolved"]

SCHEMA_VERSION = 1
TASKS = ("collective", "training", "programs", "generator", "jobs")
"""Sections that say what is to be done."""


@dataclass(frozen=True, slots=True)
class FabricShape:
    """A kind of network and that kind's options."""

    def read(self, reader: Reader, node: Node | None, path: str, place: Place) -> Any:
        """Return a FabricSpec, or None where the section is absent."""
        node = reader.choose(split_short("fabric", node), path)
        if is_absent(node) or node is None:
            return None
        if isinstance(node, Scalar):
            node = Mapping(node.place).with_item("kind", node, node.place)
        if not isinstance(node, Mapping):
            return reader.refuse(path, f"is {kind_of(node)}", allowed="keys, or the kind alone")
        key = join(path, "kind")
        reader.note(key, node.key_place.get("kind", node.place))
        kind = reader.choose(split_short("fabric", node.get("kind")), key)
        if not isinstance(kind, Scalar) or kind.is_null:
            return reader.refuse(
                key, "is missing", allowed=", ".join(plugins.fabric_kinds()), place=node.place
            )
        known = plugins.fabric_kinds()
        if kind.text not in known:
            return reader.refuse(
                key,
                f"unknown fabric {kind.text!r}",
                allowed=", ".join(known),
                suggestion=nearest(kind.text, known),
            )
        return fabric_spec(reader, kind.text, node, path)

    def plain(self, value: Any) -> Any:
        """Return the kind beside its options."""
        return None if value is None else {"kind": value.kind, **to_plain(value.options)}

    def words(self) -> str:
        """Return what is written."""
        return "`kind` and the options of that kind, or the kind alone"

    def owner(self) -> None:
        """Return None: each kind has its own options."""


def fabric_spec(reader: Reader, kind: str, node: Node | None, path: str) -> Any:
    """Return the FabricSpec of a known kind, or FAILED."""
    options = reader.section(plugins.fabric_options(kind), node, path, skip=("kind",))
    return FAILED if options is None else FabricSpec(kind=kind, options=options)


@dataclass(frozen=True, slots=True)
class RoutingShape:
    """The routing options of the fabric room."""

    def read(self, reader: Reader, node: Node | None, path: str, place: Place) -> Any:
        """Return the options."""
        found = reader.section(plugins.routing_options(), node, path)
        return FAILED if found is None else found

    def plain(self, value: Any) -> Any:
        """Return a dict."""
        return to_plain(value)

    def words(self) -> str:
        """Return what is written."""
        return "section"

    def owner(self) -> type[Any]:
        """Return the options' dataclass."""
        return plugins.routing_options()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """One variant of a scenario; no default is missing and resolving again changes nothing.

    A cluster is given by `node`, `nodes` and `gpus_per_node`, by `groups`, or by `topology`;
    `node_groups` gives the first two in one form.
    """

    schema_version: int = option("count", doc="Version of this format: 1.", sweep=False)
    description: str = option("text", "", doc="The question that the scenario asks.", sweep=False)
    seed: int = option("count", 0, doc="Seed of everything random.", maximum=MOST_SEED)
    source: str = option("text", "", doc="Where the numbers come from.", sweep=False)
    kind: str = option(
        "name",
        None,
        doc="`collective` (table over sizes), `training` (a step of a model), `steps` (programs of "
        "operations) or `jobs` (several at once); null: by the sections that are there.",
        choices=("collective", "training", "steps", "jobs"),
        sweep=False,
    )
    node: NodeSpec | None = shaped(
        Nested(NodeSpec, optional=True), doc="Preset of all nodes, or section with a preset."
    )
    nodes: int | None = option(
        "count", None, doc="Number of nodes; auto: 1.", minimum=1, maximum=MOST_GPUS
    )
    gpus_per_node: int | None = option(
        "count", None, doc="Use only the first GPUs of each node; auto: all.", minimum=1
    )
    groups: tuple[NodeGroup, ...] = shaped(
        NestedList(NodeGroup), doc="Nodes of several kinds, instead of `node`."
    )
    topology: dict[str, Any] | None = shaped(
        TopologyShape(), doc="Own edge list, instead of `node` and `fabric`."
    )
    fabric: FabricSpec | None = shaped(FabricShape(), doc="Network between the nodes.")
    routing: Any = shaped(RoutingShape(), doc="How traffic finds its way.")
    collective: CollectiveSpec | None = shaped(
        Nested(CollectiveSpec, optional=True), doc="The call of a scenario of kind `collective`."
    )
    training: TrainingSpec | None = shaped(
        Nested(TrainingSpec, optional=True), doc="A training step, of kind `training`."
    )
    reliability: ReliabilitySpec | None = shaped(
        Nested(ReliabilitySpec, optional=True), doc="Days of that training, with failures."
    )
    programs: tuple[ProgramSpec, ...] = shaped(
        NestedList(ProgramSpec), doc="What ranks do, in a scenario of kind `steps`."
    )
    generator: GeneratorSpec | None = shaped(
        Nested(GeneratorSpec, optional=True), doc="A ready-made training step, of kind `steps`."
    )
    jobs: tuple[Job, ...] = shaped(NestedList(Job), doc="Several jobs at once, of kind `jobs`.")
    costs: CostSpec = shaped(Nested(CostSpec), doc="Cost constants, or the profile alone.")
    env: dict[str, str] = shaped(
        Texts("variables by name, `NCCL_ALGO: Ring`"), doc="Environment variables of the library."
    )
    engine: EngineSpec = shaped(Nested(EngineSpec), doc="Level of detail.")
    perturb: PerturbSpec = shaped(Nested(PerturbSpec), doc="What is not as it should be.")
    output: OutputSpec = shaped(Nested(OutputSpec), doc="Files to write.")
    labels: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """What distinguishes this variant: (dotted key, value as written); ``patch`` for a patch."""
    origins: MappingType[str, str] = field(default_factory=dict, compare=False)
    """Where each dotted key comes from: ``file:line``, ``--set``, ``default``, ``preset X``."""

    @property
    def node_groups(self) -> tuple[NodeGroup, ...]:
        """The cluster as groups of nodes; empty with an own topology."""
        if self.node is None:
            return self.groups
        return (NodeGroup(node=self.node, nodes=self.nodes or 1, gpus_per_node=self.gpus_per_node),)

    def located(self, error: CollsimError) -> CollsimError:
        """Return an error of building or running with the file and line of its keys, where known.

        Rooms below know the dotted key of an option but not where the user wrote it.  A run that
        cannot finish has no key: the section that says what is done stands for it.
        """
        return type(error)([self._located(problem) for problem in error.problems])

    def _located(self, problem: Problem) -> Problem:
        if f"env.{problem.key}" in self.origins:
            problem = replace(problem, key=f"env.{problem.key}")
        origin = self._origin_of(problem.key)
        if problem.file or origin is None:
            return problem
        file, _, line = origin.rpartition(":")
        if file and line.isdecimal():
            return replace(problem, file=file, line=int(line))
        return replace(problem, file=origin)

    def _origin_of(self, key: str) -> str | None:
        """Return where a key was written, or the nearest section above it."""
        for tried in (key,) if key else TASKS:
            while tried:
                origin = self.origins.get(tried, "default")
                if not origin.startswith(("default", "preset ")):
                    return origin
                tried = tried[: max(tried.rfind("."), tried.rfind("["), 0)]
        return None

    @property
    def label(self) -> str:
        """The variant's labels in one line; empty for a scenario without variants."""
        return ", ".join(f"{key}={value}" for key, value in self.labels)
