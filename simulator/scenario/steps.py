"""Scenarios of kind ``steps`` and ``jobs``: what ranks do in order, and generators of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from simulator.base.errors import CollsimError, nearest
from simulator.base.fields import format_ranks, option, parse_ranks
from simulator.base.limits import MOST_PARAMETERS
from simulator.scenario.plain import to_plain
from simulator.scenario.reader import FAILED, Reader, kind_of, shaped
from simulator.scenario.schema import MOST_CHANNELS, PROTOCOLS, CollectiveSpec
from simulator.scenario.shapes import Nested, NestedList, is_absent
from simulator.scenario.tree import Mapping, Node, Place, Scalar, Sequence

__all__ = [
    "CallOp",
    "ComputeOp",
    "DdpGenerator",
    "GeneratorSpec",
    "Job",
    "Operation",
    "ProgramSpec",
    "RepeatOp",
    "WaitOp",
    "ZeroGenerator",
]

GROUP_WORDS = ("world", "node", "rail")


@dataclass(frozen=True, slots=True)
class GroupShape:
    """Ranks of a call: a word, or ranks."""

    def read(self, reader: Reader, node: Node | None, path: str, place: Place) -> Any:
        """Return a word or a tuple of ranks."""
        if is_absent(node) or node is None:
            reader.origins.setdefault(path, "default")
            return "world"
        parts = node.items if isinstance(node, Sequence) else (node,)
        texts = [part.text for part in parts if isinstance(part, Scalar)]
        if len(texts) < len(parts) or not texts:
            return reader.refuse(path, f"is {kind_of(node)}", allowed="world, node, rail, ranks")
        if len(texts) == 1 and texts[0] in GROUP_WORDS:
            return texts[0]
        try:
            return parse_ranks(",".join(texts))
        except CollsimError as error:
            return reader.refuse_all(path, error, node.place)

    def plain(self, value: Any) -> Any:
        """Return the word, or ranks as ranges."""
        return value if isinstance(value, str) else format_ranks(value)

    def words(self) -> str:
        """Return what is written."""
        return (
            "`world`, `node` (one group per node), `rail` (one per GPU number in the node), ranks"
        )

    def owner(self) -> None:
        """Return None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeOp:
    """Keep a stream busy."""

    duration_s: float = option("time", key="compute", doc="Time on an idle network.")
    name: str = option("text", "compute", doc="Name in traces.")
    stream: str = option("text", "compute", doc="Stream that it occupies.", sweep=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOp:
    """Enqueue a collective on a stream."""

    collective: CollectiveSpec = shaped(
        Nested(CollectiveSpec), doc="The call, with one size; as the top-level section."
    )
    name: str | None = option("text", None, doc="Name in traces; null: made of the call.")
    group: str | tuple[int, ...] = shaped(GroupShape(), doc="Who takes part.")
    communicator: str | None = option(
        "text", None, doc="Calls match by order within it; null: one per group."
    )
    stream: str = option("text", "comm", doc="Stream that the call is enqueued on.", sweep=False)
    after: str = option(
        "text",
        "compute",
        doc="The call begins when this stream's work enqueued so far is done, as with "
        "torch.distributed; `nothing`: at once.",
        sweep=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOp:
    """Make a stream wait for another."""

    on: str = option("text", key="wait", doc="Stream whose work so far must be done.", sweep=False)
    stream: str = option("text", "compute", doc="Stream that waits.", sweep=False)
    leave: int = option(
        "count", 0, doc="So many of the latest operations there may still run (prefetched ones)."
    )


@dataclass(frozen=True, slots=True)
class OperationsShape:
    """A list of operations."""

    def read(self, reader: Reader, node: Node | None, path: str, place: Place) -> Any:
        """Return a tuple of operations."""
        if is_absent(node) or node is None:
            return reader.refuse(path, "is missing", allowed="a list of operations", place=place)
        if not isinstance(node, Sequence):
            return reader.refuse(path, f"is {kind_of(node)}", allowed="a list of operations")
        if not node.items:
            return reader.refuse(path, "is an empty list", allowed="a list of operations")
        found = [self._one(reader, part, f"{path}[{i}]") for i, part in enumerate(node.items)]
        return FAILED if any(item is None for item in found) else tuple(found)

    @staticmethod
    def _one(reader: Reader, node: Node, path: str) -> Any:
        reader.note(path, node.place)
        known = list(_operations())
        keys = list(node.items) if isinstance(node, Mapping) else []
        names = [name for name in known if name in keys]
        if len(names) != 1:
            found = " and ".join(map(repr, names or keys)) or kind_of(node)
            reader.refuse(
                path,
                f"must be one operation, found {found}",
                allowed=", ".join(known),
                suggestion=nearest(keys[0], known) if keys and not names else None,
            )
            return None
        return reader.section(_operations()[names[0]], node, path)

    def plain(self, value: Any) -> Any:
        """Return a list of dicts."""
        return [to_plain(item) for item in value]

    def words(self) -> str:
        """Return what is written."""
        return "list of operations: compute, collective, wait, repeat"

    def owner(self) -> None:
        """Return None: operations are documented by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatOp:
    """Do operations several times."""

    times: int = option("count", key="repeat", doc="How often.", minimum=1)
    do: tuple[Any, ...] = shaped(OperationsShape(), doc="What.")


Operation: TypeAlias = ComputeOp | CallOp | WaitOp | RepeatOp


def _operations() -> dict[str, type[Any]]:
    return {"compute": ComputeOp, "collective": CallOp, "wait": WaitOp, "repeat": RepeatOp}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSpec:
    """What a group of ranks does, in order."""

    ranks: tuple[int, ...] | None = option("ranks", None, doc="Which ranks; auto: all of the job.")
    start_s: float = option("time", 0.0, doc="When they begin.")
    do: tuple[Operation, ...] = shaped(OperationsShape(), doc="Operations, in order.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DdpGenerator:
    """A data-parallel training step: gradients are all-reduced in buckets during the backward.

    Buckets fill in the order in which gradients become ready (last layer first); one is closed
    when it has reached its cap (PyTorch torch/csrc/distributed/c10d/reducer.hpp).
    """

    size_bytes: int | None = option(
        "size", None, doc="Bytes of all gradients, in equal layers; or give `gradients`.", minimum=1
    )
    layers: int = option("count", 1, doc="Into how many gradients `size` is split.", minimum=1)
    gradients_bytes: tuple[int, ...] = option(
        "size", (), doc="Bytes of each gradient, in the order of the forward.", many=True, minimum=1
    )
    first_bucket_bytes: int = option("size", 2**20, doc="Cap of the first bucket.", minimum=1)
    bucket_cap_bytes: int = option("size", 25 * 2**20, doc="Cap of the others.", minimum=1)
    forward_s: float = option("time", doc="Whole forward.")
    backward_s: float = option(
        "time", doc="Whole backward; each gradient takes its share by bytes."
    )
    optimizer_s: float = option("time", 0.0, doc="Optimizer step.")
    overlap: bool = option(
        "flag", True, doc="Reduce during the backward; no: all buckets after it."
    )
    iterations: int = option("count", 1, doc="Training steps.", minimum=1)
    dtype: str = option("name", "float", doc="Type of gradients.")
    algorithm: str = option("name", "auto", doc="Algorithm of the all-reduce.")
    protocol: str = option("name", "auto", doc="Protocol.", choices=PROTOCOLS)
    channels: int | None = option("count", None, doc="Channels.", minimum=1, maximum=MOST_CHANNELS)

    def __post_init__(self) -> None:
        if (self.size_bytes is None) == (not self.gradients_bytes):
            raise CollsimError("needs either size or gradients")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroGenerator:
    """A training step with ZeRO: what each stage shards decides what it must communicate.

    Elements moved per rank and step, of Ψ parameters: stages 1 and 2 2Ψ (reduce-scatter of
    gradients, all-gather of parameters), stage 3 3Ψ (all-gather in forward and in backward,
    reduce-scatter): Rajbhandari et al. 2020, arXiv:1910.02054, section 7.
    """

    stage: int = option("count", doc="1, 2 or 3.", minimum=1, maximum=3)
    parameters: int = option(
        "count", doc="Ψ, number of parameters.", minimum=1, maximum=MOST_PARAMETERS
    )
    layers: int = option(
        "count", 1, doc="Equal layers; one collective each, or more by `bucket`.", minimum=1
    )
    forward_s: float = option("time", doc="Forward of one layer.")
    backward_s: float = option("time", doc="Backward of one layer.")
    optimizer_s: float = option("time", 0.0, doc="Optimizer step.")
    prefetch: int = option(
        "count", 1, doc="Stage 3: layers gathered ahead of the one that computes."
    )
    overlap: bool | None = option(
        "flag",
        None,
        doc="Reduce gradients during the backward; auto: stages 2 and 3, as DeepSpeed's stage 1 "
        "reduces after it.",
    )
    bucket_bytes: int | None = option(
        "size", None, doc="Largest collective; auto: a whole layer.", minimum=1
    )
    iterations: int = option("count", 1, doc="Training steps.", minimum=1)
    dtype: str = option("name", "bfloat16", doc="Type of parameters and gradients.")
    algorithm: str = option("name", "auto", doc="Algorithm of the collectives.")
    protocol: str = option("name", "auto", doc="Protocol.", choices=PROTOCOLS)
    channels: int | None = option("count", None, doc="Channels.", minimum=1, maximum=MOST_CHANNELS)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSpec:
    """A ready-made training step."""

    ddp: DdpGenerator | None = shaped(Nested(DdpGenerator, optional=True), doc="Data parallel.")
    zero: ZeroGenerator | None = shaped(Nested(ZeroGenerator, optional=True), doc="ZeRO.")

    def __post_init__(self) -> None:
        if (self.ddp is None) == (self.zero is None):
            raise CollsimError("needs either ddp or zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One of several jobs that share the cluster; it does one of the three.

    Ranks inside a job are the job's own, from 0, as in a process group of its own.
    """

    name: str = option("text", doc="Name in tables and traces.", sweep=False)
    ranks: tuple[int, ...] | None = option(
        "ranks", None, doc="GPUs of the job, numbered node by node; auto: all."
    )
    start_s: float = option("time", 0.0, doc="When it begins.")
    repeat: int = option("count", 1, doc="How often it is done.", minimum=1)
    collective: CollectiveSpec | None = shaped(
        Nested(CollectiveSpec, optional=True), doc="One call, with one size."
    )
    programs: tuple[ProgramSpec, ...] = shaped(NestedList(ProgramSpec), doc="Operations.")
    generator: GeneratorSpec | None = shaped(
        Nested(GeneratorSpec, optional=True), doc="Training step."
    )

    def __post_init__(self) -> None:
        given = [self.collective is not None, bool(self.programs), self.generator is not None]
        if sum(given) != 1:
            raise CollsimError("needs exactly one of collective, programs and generator")
