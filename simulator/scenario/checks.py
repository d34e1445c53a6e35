"""From what was read to what is resolved: derived values, checks across sections, warnings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.base.errors import CollsimError
from simulator.scenario import plugins
from simulator.scenario.amounts import (
    check_gpus,
    check_operations,
    n_generated,
    n_operations,
)
from simulator.scenario.calls import check_ranks, resolve_algorithm, resolve_call, resolve_dtype
from simulator.scenario.library import resolve_library
from simulator.scenario.nodes import gpu_count
from simulator.scenario.reader import FAILED, Reader, join
from simulator.scenario.resolved import SCHEMA_VERSION, TASKS, Resolved, fabric_spec
from simulator.scenario.schema import NodeGroup
from simulator.scenario.steps import CallOp, GeneratorSpec, Job, ProgramSpec, RepeatOp
from simulator.scenario.streams import check_members, check_streams
from simulator.scenario.topology import count_gpus
from simulator.scenario.training import USUAL_FRAMEWORK
from simulator.scenario.tree import Mapping

__all__ = ["DEFAULT_FABRIC", "resolve"]

DEFAULT_FABRIC = "single_switch"
"""What joins several nodes when nothing is said."""


def resolve(reader: Reader, read: Resolved, root: Mapping) -> Resolved:
    """Return the scenario with everything derived.

    Parameters
    ----------
    reader
        Knows places; takes problems and warnings.
    read
        As read, with defaults.
    root
        The file's tree, for the place of what is missing.
    """
    if read.schema_version != SCHEMA_VERSION:
        reader.refuse(
            "schema_version",
            f"unknown version {read.schema_version}",
            allowed=f"{SCHEMA_VERSION}",
        )
    read = _kind(reader, read, root)
    read = _cluster(reader, read, root)
    n_gpus = _count_gpus(reader, read)
    read = _network(reader, read)
    read = _traffic(reader, read, n_gpus)
    read = resolve_library(reader, read)
    read = _profile_file(reader, read)
    wrong = _wrong_costs(read)
    for key, error in wrong.items():
        reader.refuse_all(join("costs", key), error)
    if not wrong:
        _channels(reader, read)
    _perturbations(reader, read, n_gpus)
    _without_effect(reader, read)
    return read


def _channels(reader: Reader, read: Resolved) -> None:
    """Refuse more channels than the library has."""
    channels = None if read.collective is None else read.collective.channels
    most = plugins.most_channels(read.costs.profile, read.costs.version)
    if channels is not None and most is not None and channels > most:
        reader.refuse(
            "collective.channels",
            f"{channels} channels are more than this version of NCCL has",
            allowed=f"1 … {most}",
        )


def _profile_file(reader: Reader, read: Resolved) -> Resolved:
    """Return the scenario with a profile's file found from where the scenario's file stands."""
    place = reader.place_of("costs.profile").file
    named = Path(read.costs.profile)
    if not plugins.is_profile_file(read.costs.profile) or not Path(place).is_file():
        return read
    found = str(Path(place).parent / named)
    return replace(read, costs=replace(read.costs, profile=found))


def _wrong_costs(read: Resolved) -> dict[str, CollsimError]:
    costs = read.costs
    return plugins.check_costs(costs.profile, costs.overrides, costs.version)


def _kind(reader: Reader, read: Resolved, root: Mapping) -> Resolved:
    given = {
        "collective": read.collective is not None,
        "training": read.training is not None,
        "steps": bool(read.programs) or read.generator is not None,
        "jobs": bool(read.jobs),
    }
    keys = {
        "collective": "collective",
        "training": "training",
        "steps": "generator" if read.generator is not None else "programs",
        "jobs": "jobs",
    }
    present = [kind for kind, is_there in given.items() if is_there]
    if read.programs and read.generator is not None:
        reader.refuse(
            "generator", "stands beside 'programs'", allowed="only one of programs, generator"
        )
    if not present:
        if not reader.has_problem(*TASKS):
            written = next((key for key in TASKS if key in root), None)
            reader.refuse(
                written or "collective",
                f"is {'empty' if written else 'missing'}: nothing is to be done",
                allowed="collective, training, programs, generator or jobs",
                place=root.key_place[written] if written else root.place,
            )
        return read
    kind = read.kind or present[0]
    for other in present:
        if other != kind:
            reader.refuse(
                keys[other],
                f"does not belong to kind {kind!r}",
                allowed=f"kind {other!r}, or without this section",
            )
    if kind not in present and read.kind:
        reader.refuse("kind", f"{kind!r} needs its section", allowed=f"the section {keys[kind]!r}")
    reader.origins["kind"] = reader.origins.get("kind", "default")
    return replace(read, kind=kind)


def _cluster(reader: Reader, read: Resolved, root: Mapping) -> Resolved:
    ways = [key for key in ("node", "groups", "topology") if getattr(read, key)]
    for second in ways[1:]:
        reader.refuse(second, f"stands beside {ways[0]!r}", allowed="only one way of the three")
    if not ways:
        if not reader.has_problem("node", "groups", "topology"):
            ways_in_words = "node, groups or topology"
            reader.refuse("node", "is missing", allowed=ways_in_words, place=root.place)
        return read
    if ways[0] != "node":
        for key in ("nodes", "gpus_per_node"):
            if getattr(read, key) is not None:
                reader.refuse(key, f"stands beside {ways[0]!r}", allowed=f"numbers in {ways[0]}")
    if ways[0] == "topology" and read.fabric is not None:
        reader.refuse("fabric", "stands beside 'topology'", allowed="links in the topology")
    if read.node is not None:
        group = _group(reader, read.node_groups[0], "")
        if "nodes" not in reader.places:
            reader.origins["nodes"] = "default"
        return replace(read, node=group.node, nodes=group.nodes, gpus_per_node=group.gpus_per_node)
    return replace(
        read,
        groups=tuple(
            _group(reader, group, f"groups[{index}]") for index, group in enumerate(read.groups)
        ),
    )


def _group(reader: Reader, group: NodeGroup, path: str) -> NodeGroup:
    """Return a group of nodes with its preset's own name and number of GPUs."""
    key = join(path, "node.preset")
    try:
        preset = plugins.canonical_preset(group.node.preset)
        available = gpu_count(plugins.node_template(preset))
    except CollsimError as error:
        reader.refuse_all(key if key in reader.places else join(path, "node"), error)
        return group
    gpus = group.gpus_per_node
    if gpus is None:
        gpus = available
        reader.origins[join(path, "gpus_per_node")] = f"preset {preset}"
    elif gpus > available:
        reader.refuse(
            join(path, "gpus_per_node"),
            f"{gpus} GPUs are more than {preset} has",
            allowed=f"1 … {available}",
        )
        gpus = available
    return replace(group, node=replace(group.node, preset=preset), gpus_per_node=gpus)


def _count_gpus(reader: Reader, read: Resolved) -> int | None:
    """Return the number of GPUs, or None when the cluster has a problem."""
    if read.topology is not None:
        return count_gpus(reader, read.topology)
    counts = [
        group.nodes * group.gpus_per_node
        for group in read.node_groups
        if group.gpus_per_node is not None
    ]
    if not counts or len(counts) < len(read.node_groups):
        return None
    check_gpus(reader, "groups" if read.groups else "nodes", sum(counts))
    return sum(counts)


def _network(reader: Reader, read: Resolved) -> Resolved:
    nodes = sum(group.nodes for group in read.node_groups)
    if read.topology is not None:
        return read
    if nodes == 1:
        for key in sorted(reader.places):
            if key.startswith(("fabric.", "routing.")) and key not in _INSIDE:
                reader.warn(key, "has no effect on a single node", allowed="nodes ≥ 2")
        return replace(read, fabric=None)
    if read.fabric is None and nodes > 1 and not reader.has_problem("fabric"):
        found = fabric_spec(reader, DEFAULT_FABRIC, None, "fabric")
        reader.origins["fabric.kind"] = "default"
        return read if found is FAILED else replace(read, fabric=found)
    return read


_INSIDE = ("routing.p2p", "routing.p2p_level", "routing.nvb")


def _traffic(reader: Reader, read: Resolved, n_gpus: int | None) -> Resolved:
    collective = read.collective
    if collective is not None:
        collective = resolve_call(reader, collective, "collective", n_gpus, one_size=False)
    training = read.training
    if training is not None and training.framework == "auto":
        usual = USUAL_FRAMEWORK.get(training.data_parallel, "megatron")
        training = replace(training, framework=usual)
    programs = _programs(reader, read.programs, "programs", n_gpus, "cluster")
    generator = _generator(reader, read.generator, "generator")
    names: set[str] = set()
    jobs = []
    for index, job in enumerate(read.jobs):
        path = f"jobs[{index}]"
        if job.name in names:
            reader.refuse(join(path, "name"), f"a second job is named {job.name!r}")
        names.add(job.name)
        jobs.append(_job(reader, job, path, n_gpus))
    return replace(
        read,
        collective=collective,
        training=training,
        programs=programs,
        generator=generator,
        jobs=tuple(jobs),
    )


def _job(reader: Reader, job: Job, path: str, n_gpus: int | None) -> Job:
    size = n_gpus
    if job.ranks is not None:
        check_ranks(reader, job.ranks, join(path, "ranks"), n_gpus)
        size = len(job.ranks)
    collective = job.collective
    if collective is not None:
        where = join(path, "collective")
        if collective.ranks is not None:
            reader.refuse(join(where, "ranks"), "has no meaning here", allowed="ranks of the job")
        collective = replace(collective, ranks=None)
        collective = resolve_call(reader, collective, where, size, one_size=True)
    generator = _generator(reader, job.generator, join(path, "generator"))
    programs = _programs(reader, job.programs, join(path, "programs"), size, f"job {job.name!r}")
    longest = max((n_operations(program.do) for program in programs), default=1)
    if generator is not None:
        longest = n_generated(generator)
    if not reader.has_problem(path):
        check_operations(reader, join(path, "repeat"), job.repeat * longest)
    return replace(job, collective=collective, programs=programs, generator=generator)


def _generator(reader: Reader, generator: GeneratorSpec | None, path: str) -> GeneratorSpec | None:
    if generator is None:
        return None
    found: dict[str, Any] = {}
    for name, options, ops in (
        ("ddp", generator.ddp, ["all_reduce"]),
        ("zero", generator.zero, ["all_gather", "reduce_scatter"]),
    ):
        if options is None:
            continue
        algorithm = options.algorithm
        for op in ops:
            where = join(path, f"{name}.algorithm")
            algorithm = resolve_algorithm(reader, op, options.algorithm, where)
        dtype = resolve_dtype(reader, options.dtype, join(path, f"{name}.dtype"))
        found[name] = replace(options, dtype=dtype, algorithm=algorithm)
    generator = replace(generator, **found)
    if not reader.has_problem(path):
        check_operations(reader, path, n_generated(generator))
    return generator


def _programs(
    reader: Reader, programs: tuple[ProgramSpec, ...], path: str, n_ranks: int | None, who: str
) -> tuple[ProgramSpec, ...]:
    resolved = []
    owner: dict[int, int] = {}
    for index, program in enumerate(programs):
        where = f"{path}[{index}]"
        if program.ranks is not None:
            check_ranks(reader, program.ranks, join(where, "ranks"), n_ranks, who)
        ranks = program.ranks if program.ranks is not None else range(n_ranks or 0)
        twice = next((rank for rank in ranks if rank in owner), None)
        if twice is not None:
            reader.refuse(
                join(where, "ranks"),
                f"rank {twice} has a program already, {path}[{owner[twice]}]",
                allowed="one program per rank",
            )
        owner.update(dict.fromkeys(ranks, index))
        do = _operations(reader, program.do, join(where, "do"), n_ranks, who)
        check_operations(reader, join(where, "do"), n_operations(do))
        check_members(reader, program, where, n_ranks, who)
        resolved.append(replace(program, do=do))
    check_streams(reader, resolved, path)
    return tuple(resolved)


def _operations(
    reader: Reader, operations: tuple[Any, ...], path: str, n_ranks: int | None, who: str
) -> tuple[Any, ...]:
    found: list[Any] = []
    for index, operation in enumerate(operations):
        where = f"{path}[{index}]"
        if isinstance(operation, RepeatOp):
            inner = _operations(reader, operation.do, join(where, "do"), n_ranks, who)
            found.append(replace(operation, do=inner))
        elif isinstance(operation, CallOp):
            found.append(_call(reader, operation, where, n_ranks, who))
        else:
            found.append(operation)
    return tuple(found)


def _call(reader: Reader, operation: CallOp, path: str, n_ranks: int | None, who: str) -> CallOp:
    where = join(path, "collective")
    members: int | None = n_ranks
    if isinstance(operation.group, tuple):
        check_ranks(reader, operation.group, join(path, "group"), n_ranks, who)
        members = len(operation.group)
    elif operation.group != "world":
        # Groups of node and rail differ in size only with the cluster; the schedule checks them.
        members = None
    if operation.collective.ranks is not None:
        reader.refuse(join(where, "ranks"), "has no meaning here", allowed="group, beside it")
    spec = replace(operation.collective, ranks=None)
    resolved = resolve_call(reader, spec, where, members, one_size=True)
    return replace(operation, collective=resolved)


def _perturbations(reader: Reader, read: Resolved, n_gpus: int | None) -> None:
    for index, late in enumerate(read.perturb.late):
        check_ranks(reader, late.ranks, f"perturb.late[{index}].ranks", n_gpus)
    for index, slow in enumerate(read.perturb.slow):
        check_ranks(reader, slow.ranks, f"perturb.slow[{index}].ranks", n_gpus)
    for index, hung in enumerate(read.perturb.hang):
        check_ranks(reader, hung.ranks, f"perturb.hang[{index}].ranks", n_gpus)
    for index, fault in enumerate(read.perturb.links):
        path = f"perturb.links[{index}]"
        if reader.has_problem(path):
            continue
        if fault.down == (fault.factor is not None):
            reader.refuse(
                path,
                "says both factor and down" if fault.down else "says neither factor nor down",
                allowed="factor: 0.5, or down: true",
            )
        if fault.until_s is not None and fault.until_s <= fault.at_s:
            reader.refuse(join(path, "until"), "is not after its beginning", allowed="until > at")


def _without_effect(reader: Reader, read: Resolved) -> None:
    if read.kind == "collective" and read.perturb.compute_slowdown != 1:
        reader.warn("perturb.compute_slowdown", "has no effect: nothing is computed")
    if read.kind != "training" and read.reliability is not None:
        reader.warn("reliability", "has no effect", allowed="with a section training")
    for key in ("slow", "hang"):
        if read.kind != "training" and getattr(read.perturb, key):
            reader.warn(f"perturb.{key}", "has no effect", allowed="with a section training")
    if read.kind == "training":
        for key in ("engine.level", "engine.record", "perturb.jitter", "perturb.skew"):
            if any(place == key or place.startswith(f"{key}.") for place in reader.places):
                reader.warn(key, "has no effect on a training step")
    if "engine.max_transfers" in reader.places and read.engine.level != "auto":
        reader.warn("engine.max_transfers", "has no effect", allowed="for engine.level: auto")
    if "output.plot_format" in reader.places and not read.output.plots:
        reader.warn("output.plot_format", "has no effect", allowed="with output.plots")
