"""Pipeline schedules: the order of passes on each stage, and the transfers between stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.training.plan import Task, Transfer, Wait

__all__ = ["Pass", "PassKind", "in_flight", "schedule", "stage_tasks"]

PassKind = Literal["forward", "backward", "input_gradient", "weight_gradient"]


@dataclass(frozen=True, slots=True)
class Pass:
    """One micro-batch through one chunk of a stage."""

    kind: PassKind
    chunk: int
    micro_batch: int


def schedule(
    kind: str, *, stages: int, stage: int, micro_batches: int, virtual: int = 1
) -> tuple[Pass, ...]:
    """Return the passes of one stage in order.

    Parameters
    ----------
    kind
        ``gpipe``: all forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965).
        ``1f1b``: p − s − 1 forwards, then one forward and one backward in turn (PipeDream-Flush;
        Narayanan et al. 2021, arXiv:2104.04473, section 2.2).
        ``interleaved``: the same over `virtual` chunks with 2 (p − s − 1) + (v − 1) p forwards
        ahead, micro-batches in groups of p (Megatron-LM, core/pipeline_parallel/schedules.py,
        forward_backward_pipelining_with_interleaving).
        ``zb_h1``, ``zb_h2``: weight gradients are passes of their own, put off by s and 2 s
        micro-batches; H2 begins with 2 (p − s) − 1 forwards (Qi et al. 2024, arXiv:2401.10241,
        section 2 and figures 2 and 3).

    Notes
    -----
    Bubbles of equal stages with free transfers, as shares of the ideal time: (p − 1) / m for
    gpipe and 1f1b, (p − 1) / (v m) interleaved, and (p − 1) (F + B − W) for zb_h1.
    """
    if kind == "interleaved" and virtual > 1:
        return _interleaved(stages, stage, micro_batches, virtual)
    if kind == "gpipe":
        return tuple(
            Pass(direction, 0, j)
            for direction in ("forward", "backward")
            for j in range(micro_batches)
        )
    split = kind in ("zb_h1", "zb_h2")
    ahead = 2 * (stages - stage - 1) if kind == "zb_h2" else stages - stage - 1
    put_off = {"zb_h1": stage, "zb_h2": 2 * stage}.get(kind, 0)
    ahead = min(ahead, micro_batches)
    passes = [Pass("forward", 0, j) for j in range(ahead)]
    weights = 0
    for j in range(micro_batches):
        if ahead + j < micro_batches:
            passes.append(Pass("forward", 0, ahead + j))
        passes.append(Pass("input_gradient" if split else "backward", 0, j))
        if split and j >= put_off:
            passes.append(Pass("weight_gradient", 0, weights))
            weights += 1
    if split:
        passes += [Pass("weight_gradient", 0, j) for j in range(weights, micro_batches)]
    return tuple(passes)


def _interleaved(stages: int, stage: int, micro_batches: int, virtual: int) -> tuple[Pass, ...]:
    total = micro_batches * virtual
    ahead = min(2 * (stages - stage - 1) + (virtual - 1) * stages, total)

    def at(step: int, forward: bool) -> Pass:
        group, within = divmod(step, stages * virtual)
        chunk = within // stages
        micro_batch = group * stages + within % stages
        if forward:
            return Pass("forward", chunk, micro_batch)
        return Pass("backward", virtual - 1 - chunk, micro_batch)

    passes = [at(step, True) for step in range(ahead)]
    for step in range(total):
        if ahead + step < total:
            passes.append(at(ahead + step, True))
        passes.append(at(step, False))
    return tuple(passes)


def in_flight(passes: Sequence[Pass]) -> int:
    """Return the most (micro-batch, chunk) pairs whose activations are held at once."""
    held = most = 0
    frees = "weight_gradient" if any(p.kind == "weight_gradient" for p in passes) else "backward"
    for one in passes:
        held += (one.kind == "forward") - (one.kind == frees)
        most = max(most, held)
    return most


def stage_tasks(
    passes: Sequence[Pass],
    body: Callable[[Pass], Sequence[Task]],
    *,
    stages: int,
    stage: int,
    virtual: int,
    size_bytes: int,
    overlap: bool,
) -> list[Task]:
    """Return the passes of a stage with the transfers between them.

    Parameters
    ----------
    passes
        In order.
    body
        Tasks of a pass.
    size_bytes
        What passes from stage to stage.
    overlap
        False: computes also wait until what they produced is sent.

    Notes
    -----
    Receives stand on streams of their own and begin at once, so that no sender waits for a
    receiver that computes.  Sends follow the pass that made their data.
    """
    last_part = stages * virtual - 1
    tasks: list[Task] = []

    def transfer(direction: Literal["send", "recv"], flow: str, chunk: int, to: int) -> None:
        stream = f"{direction} {flow}"
        tasks.append(
            Transfer(
                name=f"{direction} {'activations' if flow == 'forward' else 'gradients'}",
                size_bytes=size_bytes,
                peer=to % stages,
                direction=direction,
                tag=f"{flow} {chunk}",
                stream=stream,
                after="compute" if direction == "send" else None,
            )
        )
        if direction == "recv" or not overlap:
            tasks.append(Wait(on=stream))

    for one in passes:
        part = one.chunk * stages + stage
        onward = one.kind == "forward"
        if one.kind != "weight_gradient":
            source, goal = (part - 1, part + 1) if onward else (part + 1, part - 1)
            flow = "forward" if onward else "backward"
            if 0 <= source <= last_part:
                transfer("recv", flow, one.chunk, source)
            tasks.extend(body(one))
            if 0 <= goal <= last_part:
                transfer("send", flow, goal // stages, goal)
        else:
            tasks.extend(body(one))
    return tasks
