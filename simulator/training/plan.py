"""A training step as what each kind of rank does, stream by stream.

Ranks with the same coordinate on the axes that decide their work (the pipeline stage; the expert
rank where experts are loaded unevenly) play one role.  A task names the axis over which it
communicates; which ranks that is, is the mesh's matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Call", "Compute", "Mesh", "Role", "StepPlan", "Task", "Transfer", "Wait"]

IntArray = NDArray[np.int64]

Purpose = Literal["forward", "backward", "recompute", "optimizer", "compress", "copy", "other"]
Traffic = Literal["data", "tensor", "context", "expert", "pipeline", "offload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Keep a stream busy.  Work of the host link (offload) is a compute of stream ``copy``."""

    name: str
    duration_s: float
    purpose: Purpose
    stream: str = "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Enqueue a collective over the rank's group of an axis."""

    name: str
    collective: str
    size_bytes: int
    """nccl-tests' S."""
    axis: str
    """A name of `Mesh.groups`."""
    traffic: Traffic
    stream: str
    """Calls of one stream run in order.  ``compute``: the call holds up the computes after it."""
    after: str | None = "compute"
    """It begins when this stream's work enqueued so far is done; None: at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Send to, or receive from, the rank of another stage with else the same coordinates.

    The n-th send of a stream to a stage meets that stage's n-th receive of the same `tag`.
    """

    name: str
    size_bytes: int
    peer: int
    """The other's pipeline stage."""
    direction: Literal["send", "recv"]
    tag: str
    """``forward`` (activations) or ``backward`` (gradients), with the chunk's number."""
    stream: str
    after: str | None = "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Make `stream` wait for what is enqueued so far on `on`, but for its `leave` latest tasks."""

    on: str
    stream: str = "compute"
    leave: int = 0


Task: TypeAlias = Compute | Call | Transfer | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Ranks of the job and their groups.

    `groups[axis]` has shape (groups, members): job ranks 0 … world−1, each in exactly one group
    of an axis.  Members are in the order of the axis' coordinate.
    """

    world_size: int
    stage_of_rank: IntArray
    """Pipeline stage, shape (world,)."""
    groups: dict[str, IntArray]
    """`tensor`, `context`, `data` (all replicas of a parameter, context ranks included),
    `shard` and `replicate` (parts of data), `secondary` and `secondary_across` (parts of shard),
    `expert`, `expert_near` and `expert_across` (ranks of an expert group on one node; in the same
    place of its nodes), `expert_data`, `expert_shard`, `expert_replicate`, `pipeline`, `ends`
    (first and last stage, tied embeddings), `model` (all ranks of one copy of the model) and
    `world`; only those with more than one member that the plan needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What all ranks of a pipeline stage do."""

    stage: int
    tasks: tuple[Task, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step of all ranks."""

    mesh: Mesh
    roles: tuple[Role, ...]
    """One per pipeline stage, in order."""
    notes: tuple[str, ...] = ()
    """What the plan assumes that a user should know."""
