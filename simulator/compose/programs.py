"""From a scenario's jobs, programs and generators to the engine's programs of ranks.

Ranks that act alike share one program: the ranks of a job are split by the groups that they take
part in and by how late they are, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from simulator.base.errors import Problem, ScenarioError
from simulator.base.fields import format_ranks
from simulator.collectives.call import Call
from simulator.compose.choose import choose
from simulator.compose.cluster import Choice, Cluster
from simulator.engine.traffic import Collective, Compute, Program, Start, Wait
from simulator.scenario.calls import REDUCING
from simulator.scenario.resolved import Resolved
from simulator.scenario.schema import CollectiveSpec
from simulator.scenario.steps import CallOp, ComputeOp, GeneratorSpec, Job, RepeatOp, WaitOp

if TYPE_CHECKING:
    from simulator.training.tasks import Task

__all__ = ["Planned", "call_of", "late_by_rank", "plan_call", "plan_jobs"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Operation = Compute | Start | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Programs, and how each distinct call is carried out."""

    programs: tuple[Program, ...]
    choices: tuple[tuple[str, Choice], ...]
    """(name of the collective, choice), in order of first use."""
    calls: dict[int, tuple[Call, IntArray, Choice]]
    """By id of the engine's collective: what it was made of (for new routes after a failure)."""

    def collectives(self) -> list[Collective]:
        """Return the distinct collectives of all programs, in order of first use."""
        found = {
            id(operation.collective): operation.collective
            for program in self.programs
            for operation in program.operations
            if isinstance(operation, Start)
        }
        return list(found.values())


def call_of(spec: CollectiveSpec, world_size: int, size_bytes: int) -> Call:
    """Return the call of a scenario's section on a group of `world_size` ranks."""
    counts = None if spec.counts_bytes is None else np.asarray(spec.counts_bytes, dtype=np.int64)
    return Call(
        collective=spec.op,
        world_size=world_size,
        size_bytes=size_bytes,
        root=spec.root,
        element_bytes=1 if spec.op == "barrier" else spec.element_bytes,
        counts_bytes=counts,
    )


def late_by_rank(resolved: Resolved, n_gpus: int) -> FloatArray:
    """Return how late each global rank starts, shape (n_gpus,), seconds."""
    late_s = np.zeros(n_gpus)
    for entry in resolved.perturb.late:
        late_s[np.asarray(entry.ranks, dtype=np.int64)] += entry.by_s
    return late_s


class _Planner:
    """Makes engine collectives once per distinct call and group."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.made: dict[Any, Collective] = {}
        self.chosen: dict[Any, Choice] = {}
        self.choices: dict[str, Choice] = {}
        self.calls: dict[int, tuple[Call, IntArray, Choice]] = {}

    def collective(self, spec: CollectiveSpec, group: IntArray, name: str | None) -> Collective:
        size_bytes = spec.sizes_bytes[0] if spec.sizes_bytes else 0
        call = call_of(spec, len(group), size_bytes)
        fixed = (spec.algorithm, spec.protocol, spec.channels)
        what = (call.collective, call.size_bytes, call.root, call.element_bytes, *fixed)
        counts = b"" if call.counts_bytes is None else call.counts_bytes.tobytes()
        shape = (what, counts, self.cluster.placement(group))
        if shape not in self.chosen:
            self.chosen[shape] = choose(
                self.cluster,
                call,
                group,
                algorithm=spec.algorithm,
                protocol=spec.protocol,
                channels=spec.channels,
            )
        choice = self.chosen[shape]
        title = name or f"{call.collective} {choice.algorithm} {choice.protocol}"
        reduction = spec.redop if spec.op in REDUCING else ""
        key = (what, counts, group.tobytes(), title, spec.dtype, reduction)
        if key not in self.made:
            made = self.cluster.collective(call, group, choice, name=title)
            agreed = _agreed(spec, choice, reduction, counts)
            made = replace(made, signature=(*made.signature, *agreed))
            self.made[key] = made
            self.choices.setdefault(title, choice)
            self.calls[id(made)] = (call, group, choice)
        return self.made[key]

    def planned(self, programs: Iterable[Program]) -> Planned:
        return Planned(
            programs=tuple(programs), choices=tuple(self.choices.items()), calls=self.calls
        )


def _agreed(spec: CollectiveSpec, choice: Choice, redop: str, counts: bytes) -> tuple[str, ...]:
    """Return what ranks must agree on in a call beside its size and root, in words."""
    return (
        f"dtype {spec.dtype}",
        f"redop {redop}",
        f"algorithm {choice.algorithm}",
        f"protocol {choice.protocol}",
        f"{choice.n_channels} channels",
        f"uneven parts with the checksum {crc32(counts):08x}" if counts else "equal parts",
    )


def plan_call(
    cluster: Cluster,
    spec: CollectiveSpec,
    size_bytes: int,
    group: IntArray,
    choice: Choice,
    late_s: FloatArray,
) -> Planned:
    """Return the programs of a single call: every rank of the group makes it when it is ready."""
    planner = _Planner(cluster)
    call = call_of(spec, len(group), size_bytes)
    made = cluster.collective(call, group, choice)
    planner.calls[id(made)] = (call, group, choice)
    planner.choices[made.name] = choice
    programs = [
        Program(ranks=ranks, operations=(Start(collective=made),), start_s=start_s)
        for start_s, ranks in _by_lateness(group, late_s)
    ]
    return planner.planned(programs)


def plan_jobs(cluster: Cluster, resolved: Resolved) -> Planned:
    """Return the programs of all jobs, or of the scenario's own programs or generator.

    Raises
    ------
    ScenarioError
        A rank is in two programs of one job, or outside its job.
    """
    late_s = late_by_rank(resolved, cluster.n_gpus)
    planner = _Planner(cluster)
    jobs: Sequence[Job] = resolved.jobs
    programs: list[Program] = []
    if jobs:
        for job in jobs:
            programs += _job_programs(planner, job, late_s)
    else:
        ranks = np.arange(cluster.n_gpus)
        if resolved.generator is not None:
            operations = _generated(resolved.generator)
            programs += _expand(planner, "", ranks, ranks, operations, 0.0, late_s)
        else:
            programs += _from_specs(planner, "", ranks, resolved.programs, 0.0, late_s)
    return planner.planned(programs)


def _job_programs(planner: _Planner, job: Job, late_s: FloatArray) -> list[Program]:
    members = np.arange(planner.cluster.n_gpus) if job.ranks is None else np.asarray(job.ranks)
    if job.collective is not None:
        operations: list[Any] = [_call_op(job.collective)] * job.repeat
        return _expand(planner, job.name, members, members, operations, job.start_s, late_s)
    if job.generator is not None:
        operations = _generated(job.generator) * job.repeat
        return _expand(planner, job.name, members, members, operations, job.start_s, late_s)
    return _from_specs(planner, job.name, members, job.programs, job.start_s, late_s, job.repeat)


def _call_op(spec: CollectiveSpec) -> CallOp:
    return CallOp(collective=spec, group="world", after="nothing")


def _from_specs(
    planner: _Planner,
    job: str,
    members: IntArray,
    specs: Sequence[Any],
    start_s: float,
    late_s: FloatArray,
    repeat: int = 1,
) -> list[Program]:
    programs: list[Program] = []
    seen: set[int] = set()
    for spec in specs:
        own = range(len(members)) if spec.ranks is None else spec.ranks
        outside = [rank for rank in own if not 0 <= rank < len(members)]
        twice = sorted(seen & set(own))
        if outside or twice:
            where = f"job {job!r}" if job else "the scenario"
            what = "outside" if outside else "in two programs of"
            bad = tuple(outside or twice)
            raise ScenarioError(
                Problem(
                    key="programs",
                    message=f"ranks {format_ranks(bad)} are {what} {where}",
                    allowed=f"each of the ranks 0-{len(members) - 1} in at most one program",
                )
            )
        seen |= set(own)
        ranks = members[np.asarray(tuple(own), dtype=np.int64)]
        operations = list(spec.do) * repeat
        programs += _expand(
            planner, job, members, ranks, operations, start_s + spec.start_s, late_s
        )
    return programs


def _generated(spec: GeneratorSpec) -> list[Any]:
    """Return the operations of a ready-made training step."""
    # Only scenarios with a generator need the room of training, which takes long to import.
    from simulator.training.ddp import ddp_step
    from simulator.training.zero import zero_step

    if spec.ddp is not None:
        ddp = spec.ddp
        sizes = ddp.gradients_bytes
        if not sizes:
            assert ddp.size_bytes is not None
            borders = [ddp.size_bytes * i // ddp.layers for i in range(ddp.layers + 1)]
            sizes = tuple(borders[i + 1] - borders[i] for i in range(ddp.layers))
        tasks = ddp_step(
            sizes,
            first_bucket_bytes=ddp.first_bucket_bytes,
            bucket_cap_bytes=ddp.bucket_cap_bytes,
            forward_s=ddp.forward_s,
            backward_s=ddp.backward_s,
            optimizer_s=ddp.optimizer_s,
            overlap=ddp.overlap,
        )
        return [_as_operation(task, ddp) for task in tasks] * ddp.iterations
    zero = spec.zero
    assert zero is not None
    element = CollectiveSpec(op="all_gather", sizes_bytes=(1,), dtype=zero.dtype).element_bytes
    tasks = zero_step(
        stage=zero.stage,
        parameter_bytes=zero.parameters * element,
        layers=zero.layers,
        forward_s=zero.forward_s,
        backward_s=zero.backward_s,
        optimizer_s=zero.optimizer_s,
        prefetch=zero.prefetch,
        overlap=zero.stage > 1 if zero.overlap is None else zero.overlap,
        bucket_bytes=zero.bucket_bytes,
    )
    return [_as_operation(task, zero) for task in tasks] * zero.iterations


def _as_operation(task: Task, owner: Any) -> Any:
    from simulator.training.tasks import Call as CallTask
    from simulator.training.tasks import Compute as ComputeTask

    if isinstance(task, ComputeTask):
        return ComputeOp(duration_s=task.duration_s, name=task.name)
    if isinstance(task, CallTask):
        spec = CollectiveSpec(
            op=task.collective,
            sizes_bytes=(task.size_bytes,),
            algorithm=owner.algorithm,
            protocol=owner.protocol,
            channels=owner.channels,
            dtype=owner.dtype,
        )
        return CallOp(collective=spec, name=task.name, group="world")
    return Wait(on="comm", stream="compute", leave=task.leave)


def _by_lateness(ranks: IntArray, late_s: FloatArray) -> Iterator[tuple[float, IntArray]]:
    for value in np.unique(late_s[ranks]):
        yield float(value), ranks[late_s[ranks] == value]


def _groups(cluster: Cluster, word: Any, members: IntArray) -> dict[int, IntArray]:
    """Return all groups of a job that a word means, by number of node or rail."""
    if word == "world":
        return {0: members}
    if word in ("node", "rail"):
        owner = cluster.fabric.node_of_gpu if word == "node" else cluster.fabric.local_of_gpu
        return {int(value): members[owner[members] == value] for value in np.unique(owner[members])}
    return {0: members[np.asarray(word, dtype=np.int64)]}


def _flat(operations: Iterable[Any]) -> Iterator[Any]:
    for operation in operations:
        if isinstance(operation, RepeatOp):
            for _ in range(operation.times):
                yield from _flat(operation.do)
        else:
            yield operation


def _expand(
    planner: _Planner,
    job: str,
    members: IntArray,
    ranks: IntArray,
    operations: Sequence[Any],
    start_s: float,
    late_s: FloatArray,
) -> list[Program]:
    """Return one program per set of ranks with the same groups and the same lateness."""
    flat = list(_flat(operations))
    words: list[Any] = []
    for operation in flat:
        if isinstance(operation, CallOp) and operation.group not in words:
            words.append(operation.group)
    groups = [_groups(planner.cluster, word, members) for word in words]
    belongs = np.full((len(words) + 1, len(ranks)), -1, dtype=np.int64)
    for row, found in enumerate(groups):
        for number, group in found.items():
            belongs[row, np.isin(ranks, group)] = number
    belongs[-1] = np.unique(late_s[ranks], return_inverse=True)[1]
    classes, inverse = np.unique(belongs, axis=1, return_inverse=True)
    programs: list[Program] = []
    for index in range(classes.shape[1]):
        alike = ranks[inverse.ravel() == index]
        done: list[Operation] = []
        for operation in flat:
            if isinstance(operation, CallOp):
                row = words.index(operation.group)
                which = int(classes[row, index])
                if which < 0:
                    continue
                group = groups[row][which]
                done += _start(planner, job, operation, group, which)
            elif isinstance(operation, ComputeOp):
                done.append(
                    Compute(
                        name=operation.name,
                        duration_s=operation.duration_s,
                        stream=operation.stream,
                    )
                )
            elif isinstance(operation, WaitOp):
                done.append(Wait(on=operation.on, stream=operation.stream, leave=operation.leave))
            else:
                done.append(operation)
        programs.append(
            Program(
                ranks=alike,
                operations=tuple(done),
                start_s=start_s + float(late_s[alike[0]]),
            )
        )
    return programs


def _start(
    planner: _Planner, job: str, operation: CallOp, group: IntArray, which: int
) -> list[Operation]:
    made = planner.collective(operation.collective, group, operation.name)
    word = operation.group if isinstance(operation.group, str) else format_ranks(operation.group)
    scope = operation.communicator or (word if word == "world" else f"{word}/{which}")
    communicator = f"{job}:{scope}" if job else scope
    operations: list[Operation] = []
    if operation.after != "nothing":
        operations.append(Wait(on=operation.after, stream=operation.stream))
    operations.append(Start(collective=made, communicator=communicator, stream=operation.stream))
    return operations
