"""Collective calls: names made ours, sizes derived, ranks and roots checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulator.base.errors import CollsimError, nearest
from simulator.base.units import exact_size
from simulator.scenario import plugins
from simulator.scenario.reader import Reader, join
from simulator.scenario.schema import CollectiveSpec

__all__ = [
    "REDUCING",
    "ROOTED",
    "check_ranks",
    "resolve_algorithm",
    "resolve_call",
    "resolve_dtype",
]

ROOTED = ("broadcast", "gather", "reduce", "scatter")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
UNEVEN = ("all_gather", "all_to_allv", "gather", "reduce_scatter", "scatter")


def resolve_call(
    reader: Reader, spec: CollectiveSpec, path: str, n_ranks: int | None, *, one_size: bool
) -> CollectiveSpec:
    """Return the call with our names and all sizes; problems and warnings go to *reader*.

    Parameters
    ----------
    reader
        Takes problems and warnings.
    spec
        The call as read.
    path
        Its dotted key.
    n_ranks
        Ranks that may take part; None when the cluster itself has a problem.
    one_size
        Refuse several sizes.
    """
    if spec.ranks is not None:
        check_ranks(reader, spec.ranks, join(path, "ranks"), n_ranks)
        n_ranks = len(spec.ranks)
    try:
        op = plugins.canonical_collective(spec.op)
    except CollsimError as error:
        reader.refuse_all(join(path, "op"), error)
        return spec
    spec = replace(spec, op=op, dtype=resolve_dtype(reader, spec.dtype, join(path, "dtype")))
    algorithm = resolve_algorithm(reader, op, spec.algorithm, join(path, "algorithm"))
    spec = replace(spec, algorithm=algorithm)
    if n_ranks is not None:
        _check_root(reader, spec, path, n_ranks)
    _warn(reader, spec, path)
    return _with_sizes(reader, spec, path, n_ranks, one_size)


def resolve_dtype(reader: Reader, name: str, path: str) -> str:
    """Return our name of an element type; an unknown one is recorded and read as bytes."""
    try:
        return plugins.canonical_dtype(name)
    except CollsimError as error:
        reader.refuse_all(path, error)
        return "uint8"


def resolve_algorithm(reader: Reader, op: str, name: str, path: str) -> str:
    """Return our name of an algorithm; one that the collective does not have is recorded."""
    name = plugins.canonical_algorithm(name)
    known = ["auto", *plugins.algorithm_names(op)]
    if name not in known:
        reader.refuse(
            path,
            f"unknown algorithm {name!r} for {op}",
            allowed=", ".join(known),
            suggestion=nearest(name, known),
        )
    return name


def check_ranks(
    reader: Reader, ranks: tuple[int, ...], path: str, n_ranks: int | None, who: str = "cluster"
) -> None:
    """Record a rank that does not exist."""
    if n_ranks is not None and max(ranks) >= n_ranks:
        reader.refuse(
            path,
            f"rank {max(ranks)} is outside the {who}: it has {n_ranks} GPUs",
            allowed=f"0 … {n_ranks - 1}",
        )


def _check_root(reader: Reader, spec: CollectiveSpec, path: str, n_ranks: int) -> None:
    if spec.root >= n_ranks:
        reader.refuse(
            join(path, "root"),
            f"root {spec.root} is outside the group of {n_ranks} ranks",
            allowed=f"0 … {n_ranks - 1}",
        )


def _warn(reader: Reader, spec: CollectiveSpec, path: str) -> None:
    for key, users in (("root", ROOTED), ("redop", REDUCING)):
        if join(path, key) in reader.places and spec.op not in users:
            reader.warn(
                join(path, key), f"has no effect on {spec.op}", allowed=f"for {', '.join(users)}"
            )


def _with_sizes(
    reader: Reader, spec: CollectiveSpec, path: str, n_ranks: int | None, one_size: bool
) -> CollectiveSpec:
    key = join(path, "size") if join(path, "size") in reader.places else join(path, "sizes")
    if spec.op == "barrier":
        if any(spec.sizes_bytes):
            reader.warn(key, "has no effect on barrier")
        return replace(spec, sizes_bytes=(0,), counts_bytes=None)
    if spec.counts_bytes is not None:
        return _with_counts(reader, spec, path, n_ranks, key)
    if not spec.sizes_bytes:
        if reader.has_problem(join(path, "size"), join(path, "counts")):
            return spec
        reader.refuse(
            join(path, "size"), "is missing", allowed="a size such as 1 GiB, or sizes, or counts"
        )
        return spec
    if one_size and len(spec.sizes_bytes) > 1:
        reader.refuse(key, f"has {len(spec.sizes_bytes)} sizes", allowed="one size here")
    for size in spec.sizes_bytes:
        if size <= 0:
            reader.refuse(key, f"{exact_size(size)} is not greater than zero", allowed="≥ 1 B")
        elif size % spec.element_bytes:
            below = size - size % spec.element_bytes
            near = ", ".join(
                exact_size(near) for near in (below, below + spec.element_bytes) if near
            )
            reader.refuse(
                key,
                f"{exact_size(size)} is not a whole number of {spec.dtype} elements "
                f"of {spec.element_bytes} B",
                allowed=f"such as {near}, or another dtype",
            )
    return spec


def _with_counts(
    reader: Reader, spec: CollectiveSpec, path: str, n_ranks: int | None, size_key: str
) -> CollectiveSpec:
    counts: Any = spec.counts_bytes
    where = join(path, "counts")
    if spec.op not in UNEVEN:
        reader.refuse(where, f"has no meaning for {spec.op}", allowed=f"for {', '.join(UNEVEN)}")
        return spec
    table = isinstance(counts[0], tuple)
    if table != (spec.op == "all_to_allv"):
        reader.refuse(
            where,
            f"is {'a table' if table else 'one list'} for {spec.op}",
            allowed="one row per sender" if spec.op == "all_to_allv" else "one size per rank",
        )
        return spec
    if n_ranks is not None and len(counts) != n_ranks:
        reader.refuse(
            where, f"has {len(counts)} entries for {n_ranks} ranks", allowed="one per rank"
        )
        return spec
    flat = [size for row in counts for size in row] if table else list(counts)
    # all_to_allv counts as nccl-tests' all_to_all does: bytes of all pairs over the ranks.
    total = sum(flat) // len(counts) if table else sum(flat)
    if total <= 0:
        reader.refuse(where, "adds up to nothing", allowed="at least one part above 0 B")
    if any(size % spec.element_bytes for size in flat):
        reader.refuse(
            where,
            f"holds parts that are not whole {spec.dtype} elements of {spec.element_bytes} B",
            allowed="whole elements, or another dtype",
        )
    if spec.sizes_bytes not in ((), (total,)):
        reader.refuse(size_key, "stands beside counts", allowed="only one of size and counts")
    return replace(spec, sizes_bytes=(total,))
