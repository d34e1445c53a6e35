"""Run a scenario of kind ``training``: from its sections to a result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import simulator
from simulator.base.errors import Problem, ScenarioError
from simulator.compose.cluster import Cluster
from simulator.compose.faults import faulty_links, tell_dead_nics
from simulator.compose.lower import Lowering
from simulator.compose.step.memory import memory_of, remedies_of
from simulator.compose.step.reliability import goodput_of
from simulator.compose.step.request import model_of, strategy_of
from simulator.compose.step.simulate import simulate_step
from simulator.compose.step.trace import step_events
from simulator.engine.traffic import Network
from simulator.models import Model
from simulator.results.goodput import GoodputResult
from simulator.results.model import Provenance, RunResult
from simulator.scenario.resolved import Resolved
from simulator.scenario.schema import PerturbSpec
from simulator.training.strategy import Strategy

__all__ = ["run_training"]


def run_training(cluster: Cluster, resolved: Resolved, *, record: bool) -> RunResult:
    """Simulate the training step of a scenario.

    Parameters
    ----------
    cluster
        As built of the scenario.
    resolved
        Of kind ``training``.
    record
        Keep the timeline for a trace and a Gantt chart.

    Raises
    ------
    CollsimError
        The strategy fits neither the model nor the cluster; a fault that begins later.
    """
    from simulator.scenario.dump import to_mapping

    spec = resolved.training
    assert spec is not None
    model = model_of(spec)
    local = cluster.most_gpus_per_node
    strategy = strategy_of(spec, cluster.n_gpus, local)
    touched = _damage(cluster, resolved)
    perturb = resolved.perturb
    simulated = simulate_step(
        cluster,
        model,
        strategy,
        slow={rank: entry.factor for entry in perturb.slow for rank in entry.ranks},
        hang={rank: entry.after for entry in perturb.hang for rank in entry.ranks},
        late_s={rank: entry.by_s for entry in perturb.late for rank in entry.ranks},
        slowdown=None if spec.compute_slowdown is None else spec.compute_slowdown - 1.0,
        exact=not spec.fold,
        touched=touched,
    )
    memory = memory_of(cluster, model, strategy, simulated.plan.mesh.stage_of_rank)
    step = replace(simulated.step, memory=memory)
    if step.fits is False:
        step = replace(
            step,
            remedies=remedies_of(cluster, model, strategy, step, timed=not _perturbed(perturb)),
        )
    days: tuple[GoodputResult, ...] = ()
    if resolved.reliability is not None:
        days = (goodput_of(cluster, model, strategy, step, resolved.reliability, resolved.seed),)
    where = cluster.nodes_words(np.arange(step.world_size))
    return RunResult(
        title=f"{step.model} on {step.world_size} GPUs, {where}, "
        f"framework {spec.framework}{cluster.library_words}",
        rows=(),
        training=(step,),
        goodput=days,
        trace=step_events(cluster, simulated) if record else (),
        warnings=(*cluster.warnings, *cluster.outside, *_assumed(model, strategy)),
        notes=(*cluster.notes, *simulated.plan.notes),
        provenance=Provenance.of_this_process(
            version=simulator.__version__,
            scenario=to_mapping(resolved),
            seed=resolved.seed,
            profile_sha256=cluster.profile.file_sha256,
        ),
    )


def _assumed(model: Model, strategy: Strategy) -> tuple[str, ...]:
    """Return what neither the model nor the strategy says."""
    if strategy.seq is not None or not model.traits.get("seq_assumed"):
        return ()
    return (
        f"the configuration of {model.name} does not tell its sequence length: {model.seq} tokens "
        f"are assumed; say it with --seq (training.seq)",
    )


def _perturbed(perturb: PerturbSpec) -> bool:
    return bool(perturb.slow or perturb.late)


def _damage(cluster: Cluster, resolved: Resolved) -> frozenset[int]:
    """Lower the capacity of damaged links; return the nodes whose calls they can touch.

    Node −1 stands for links between switches, which can touch any call.
    """
    faults = resolved.perturb.links
    if cluster.calibrated is not None:
        cluster.calibrated.damaged = bool(faults)
    if not faults:
        return frozenset()
    fabric = cluster.fabric
    capacity = np.array(fabric.capacity_Bps)
    dead: set[int] = set()
    touched: set[int] = set()
    tell_dead_nics(cluster, faults)
    for index, (fault, links) in enumerate(zip(faults, faulty_links(cluster, faults), strict=True)):
        key = f"perturb.links[{index}]"
        if fault.at_s > 0 or fault.until_s is not None:
            raise ScenarioError(
                Problem(
                    key=f"{key}.{'at' if fault.at_s > 0 else 'until'}",
                    message="a training step knows only faults that last from its beginning",
                    allowed="at: 0 s, without until",
                )
            )
        for link in links:
            ends = (int(fabric.link_src[link]), int(fabric.link_dst[link]))
            owners = {int(fabric.vertex_node[end]) for end in ends} - {-1}
            touched |= owners or {-1}
            if fault.down:
                dead.add(int(link))
            else:
                capacity[link] *= fault.factor
    cluster.network = Network(capacity_Bps=capacity, link_name=fabric.link_name)
    if dead:
        router = cluster.lowering.router.without(frozenset(dead))
        cluster.lowering = Lowering(fabric, router, cluster.profile)
    return frozenset(touched)
