"""From jobs, programs and generators to what each rank does."""

from __future__ import annotations

import numpy as np
import pytest

import simulator
from simulator.base.errors import CollsimError, SimulationError
from simulator.compose.build import build_cluster
from simulator.compose.programs import Planned, late_by_rank, plan_jobs
from simulator.compose.run import run_resolved
from simulator.engine.simulate import simulate
from simulator.engine.traffic import Compute, Program, Start, Wait
from simulator.engine.validate import validate_run
from simulator.scenario.resolve import loads

HEAD = """
schema_version: 1
node: dgx-h100
nodes: 2
gpus_per_node: 4
costs: {profile: ideal}
"""


def planned(text: str, head: str = HEAD) -> Planned:
    resolved = loads(head + text).variants[0]
    return plan_jobs(build_cluster(resolved), resolved)


def calls_of(program: Program) -> list[tuple[str, str, list[int]]]:
    return [
        (operation.collective.name, operation.communicator, operation.collective.group.tolist())
        for operation in program.operations
        if isinstance(operation, Start)
    ]


def by_rank(plan: Planned) -> dict[int, Program]:
    found: dict[int, Program] = {}
    for program in plan.programs:
        for rank in program.ranks.tolist():
            assert rank not in found
            found[rank] = program
    return found


def call(group: str, **more: str) -> str:
    extra = "".join(f", {key}: {value}" for key, value in more.items())
    return f"{{collective: {{op: all_reduce, size: 1 MiB}}, group: {group}, name: c{extra}}}"


def test_a_call_of_the_world_is_one_program():
    plan = planned(f"programs: [{{do: [{{compute: 1 ms}}, {call('world')}]}}]")
    (program,) = plan.programs
    assert program.ranks.tolist() == list(range(8))
    assert calls_of(program) == [("c", "world", list(range(8)))]
    compute, wait, start = program.operations
    assert isinstance(compute, Compute)
    assert compute.duration_s == pytest.approx(1e-3)
    # As in torch.distributed: the call begins when the compute enqueued before it is done.
    assert wait == Wait(on="compute", stream="comm")
    assert isinstance(start, Start)


def test_groups_of_nodes():
    programs = by_rank(planned(f"programs: [{{do: [{call('node')}]}}]"))
    assert {tuple(calls_of(p)[0][2]) for p in programs.values()} == {(0, 1, 2, 3), (4, 5, 6, 7)}
    for rank, program in programs.items():
        assert rank in calls_of(program)[0][2]


def test_programs_of_parts_of_a_node_meet_in_its_call():
    text = "".join(
        f"- {{ranks: '{ranks}', do: [{call('node')}]}}\n" for ranks in ("0-1,4-5", "2-3", "6-7")
    )
    resolved = loads(HEAD + "programs:\n" + text).variants[0]
    run_resolved(resolved)


def test_groups_of_rails():
    programs = by_rank(planned(f"programs: [{{do: [{call('rail')}]}}]"))
    for rank, program in programs.items():
        assert calls_of(program)[0][2] == [rank % 4, rank % 4 + 4]


def test_both_groupings_split_ranks_into_programs_that_act_alike():
    plan = planned(f"programs: [{{do: [{call('node')}, {call('rail')}]}}]")
    assert len(plan.programs) == 8  # every rank has its own pair of groups
    for rank, program in by_rank(plan).items():
        node, rail = calls_of(program)
        assert node[2] == [rank // 4 * 4 + i for i in range(4)]
        assert rail[2] == [rank % 4, rank % 4 + 4]
        assert node[1] != rail[1]


def test_ranks_outside_a_group_skip_its_calls():
    programs = by_rank(planned(f"programs: [{{do: [{call('1-3')}, {call('world')}]}}]"))
    assert [name for name, _, _ in calls_of(programs[0])] == ["c"]
    assert [group for _, _, group in calls_of(programs[2])] == [[1, 2, 3], list(range(8))]


def test_equal_calls_are_made_once():
    plan = planned(f"programs: [{{do: [{{repeat: 3, do: [{call('world')}]}}]}}]")
    (program,) = plan.programs
    starts = [op for op in program.operations if isinstance(op, Start)]
    assert len(starts) == 3
    assert len({id(op.collective) for op in starts}) == 1
    assert len(plan.collectives()) == 1


def test_late_ranks_split_programs():
    plan = planned(
        "perturb: {late: [{ranks: 2, by: 1 ms}, {ranks: 1-2, by: 3 ms}]}\n"
        f"programs: [{{start: 2 ms, do: [{call('world')}]}}]"
    )
    starts = {tuple(p.ranks.tolist()): p.start_s for p in plan.programs}
    assert starts == {
        (0, 3, 4, 5, 6, 7): pytest.approx(2e-3),
        (1,): pytest.approx(5e-3),
        (2,): pytest.approx(6e-3),
    }
    # All of them still make the same call.
    assert {calls_of(p)[0][1] for p in plan.programs} == {"world"}


def test_lateness_adds_up_by_rank():
    resolved = loads(
        HEAD
        + "perturb: {late: [{ranks: 2, by: 1 ms}, {ranks: 1-2, by: 3 ms}]}\n"
        + f"programs: [{{do: [{call('world')}]}}]"
    ).variants[0]
    assert late_by_rank(resolved, 8) == pytest.approx(np.array([0, 3e-3, 4e-3, 0, 0, 0, 0, 0]))


JOBS = f"""
jobs:
- name: a
  ranks: 4-7
  start: 1 ms
  programs:
  - {{ranks: 0-1, do: [{{compute: 2 ms}}, {call("0-3")}]}}
  - {{ranks: 2-3, do: [{call("0-3")}]}}
- name: b
  ranks: 0,2
  repeat: 2
  collective: {{op: all_gather, size: 1 MiB}}
"""


def test_ranks_of_a_job_are_its_own():
    programs = by_rank(planned(JOBS))
    assert set(programs) == {0, 2, 4, 5, 6, 7}
    assert programs[4] is programs[5]
    assert programs[6] is programs[7]
    assert calls_of(programs[4]) == calls_of(programs[7]) == [("c", "a:0-3/0", [4, 5, 6, 7])]
    assert [group for _, _, group in calls_of(programs[0])] == [[0, 2], [0, 2]]
    assert programs[0].start_s == 0.0
    assert programs[6].start_s == pytest.approx(1e-3)


def test_jobs_run_at_once_and_do_not_match_each_other_s_calls():
    resolved = loads(HEAD + JOBS).variants[0]
    result = run_resolved(resolved)
    labels = [row.variant for row in result.rows]
    assert any(label.startswith("a: c") for label in labels)
    assert any(label.startswith("b: all_gather") for label in labels)


def test_a_call_that_not_all_of_its_group_make_names_who_waits():
    text = f"programs: [{{ranks: 0-6, do: [{call('world')}]}}]"
    with pytest.raises(CollsimError) as found:
        run_resolved(loads(HEAD + text).variants[0])
    assert found.value.exit_code == 1
    assert "7" in str(found.value)
    assert "0-6" in str(found.value)


# -- generators end to end ---------------------------------------------------------------------

PARAMETERS = 3 * 8 * 1024
BYTES = 2 * PARAMETERS  # bfloat16


def wire(text: str) -> tuple[Planned, np.ndarray]:
    """Return the plan and the bytes that each rank's links out of the GPU carry."""
    resolved = loads(HEAD.replace("nodes: 2\n", "nodes: 1\n") + text).variants[0]
    cluster = build_cluster(resolved)
    plan = plan_jobs(cluster, resolved)
    outcome = simulate(cluster.network, plan.programs)
    validate_run(cluster.network, outcome, plan.programs)
    out = np.bincount(
        cluster.fabric.link_src, weights=outcome.link_bytes, minlength=cluster.fabric.n_vertices
    )
    return plan, out[cluster.fabric.gpu_vertex]


@pytest.mark.parametrize(("stage", "volumes"), [(1, 2), (2, 2), (3, 3)])
@pytest.mark.parametrize("layers", [1, 3])
def test_zero_moves_its_volume(stage: int, volumes: int, layers: int):
    # Rajbhandari et al. 2020, section 7: 2Ψ, 2Ψ, 3Ψ elements; a ring of n ranks moves the
    # (n−1)/n of each all-gather or reduce-scatter that a rank does not own.
    _, out = wire(
        f"generator: {{zero: {{stage: {stage}, parameters: {PARAMETERS}, layers: {layers}, "
        "forward: 1 ms, backward: 2 ms, algorithm: ring}}"
    )
    assert out == pytest.approx(volumes * BYTES * 3 / 4)


def test_ddp_moves_its_volume():
    # An all-reduce is a reduce-scatter and an all-gather: 2Ψ(n−1)/n.
    size = 40 * 2**20
    plan, out = wire(
        "generator: {ddp: {size: 40 MiB, layers: 8, forward: 1 ms, backward: 2 ms, "
        "bucket_cap: 10 MiB, algorithm: ring}}"
    )
    assert out == pytest.approx(2 * size * 3 / 4)
    # First bucket of one layer (5 MiB is over 1 MiB), then two layers each, then the rest.
    (program,) = plan.programs
    sizes = [
        plan.calls[id(op.collective)][0].size_bytes // 2**20
        for op in program.operations
        if isinstance(op, Start)
    ]
    assert sizes == [5, 10, 10, 10, 5]


def test_iterations_repeat_the_step():
    text = (
        "generator: {zero: {stage: 3, parameters: 24576, layers: 2, forward: 1 ms, "
        "backward: 2 ms, iterations: %d}}"
    )
    one, _ = wire(text % 1)
    two, _ = wire(text % 2)
    assert len(two.programs[0].operations) == 2 * len(one.programs[0].operations)


def test_overlap_hides_communication_and_its_absence_does_not():
    # 4 ranks, NVLink 450 GB/s, 40 MB in 8 layers behind 8 · 2 ms of backward: the reductions
    # take well under 2 ms together, so that with overlap only the last one's is exposed.
    ends = {}
    for overlap in ("yes", "no"):
        resolved = loads(
            HEAD + "generator: {ddp: {size: 40 MB, layers: 8, forward: 0 ms, "
            f"backward: 16 ms, bucket_cap: 1 MB, first_bucket: 1 MB, overlap: {overlap}}}}}"
        ).variants[0]
        ends[overlap] = run_resolved(resolved).ranks
    last = {key: max(ranks.end_s) for key, ranks in ends.items()}
    each = (last["no"] - 16e-3) / 8
    assert each > 0
    assert last["yes"] == pytest.approx(16e-3 + each, rel=1e-6)


def test_groups_on_unlike_nodes_choose_for_themselves():
    # H100 nodes have switches that reduce, A100 nodes do not: what is best on the one may not
    # exist on the other.
    head = (
        "schema_version: 1\n"
        "groups: [{node: dgx-h100, nodes: 1}, {node: dgx-a100, nodes: 1}]\n"
        "fabric: rail_optimized\n"
    )
    for size in ("1 MiB", "256 MiB", "4 GiB"):
        text = (
            f"programs: [{{do: [{{collective: {{op: all_reduce, size: {size}}}, group: node}}]}}]"
        )
        plan = planned(text, head)
        groups = {tuple(made.group.tolist()) for made in plan.collectives()}
        assert groups == {tuple(range(8)), tuple(range(8, 16))}


AGREED = {
    "op": "all_reduce",
    "size": "1 MiB",
    "protocol": "LL",
    "algorithm": "ring",
    "channels": "4",
}


@pytest.mark.parametrize(
    ("key", "value", "ours", "theirs"),
    [
        ("size", "2 MiB", "1048576 bytes", "2097152 bytes"),
        ("root", "1", "root 0", "root 1"),
        ("dtype", "int32", "dtype float", "dtype int32"),
        ("dtype", "half", "4-byte elements, dtype float", "2-byte elements, dtype half"),
        ("redop", "max", "redop sum", "redop max"),
        ("algorithm", "double_binary_tree", "algorithm ring", "algorithm double_binary_tree"),
        ("protocol", "LL128", "protocol LL", "protocol LL128"),
        ("channels", "2", "4 channels", "2 channels"),
    ],
)
def test_ranks_must_agree_on_all_of_a_call(key, value, ours, theirs):
    def operation(call: dict[str, str]) -> str:
        words = ", ".join(f"{name}: {text}" for name, text in call.items())
        return f"{{collective: {{{words}}}, name: c}}"

    text = (
        "schema_version: 1\nnode: dgx-h100\nprograms:\n"
        f"- {{ranks: 0-6, do: [{operation(AGREED)}]}}\n"
        f"- {{ranks: 7, do: [{operation(AGREED | {key: value})}]}}\n"
    )
    (resolved,) = loads(text, name="a.yaml").variants
    with pytest.raises(SimulationError) as found:
        run_resolved(resolved)
    assert str(found.value).startswith(
        "a.yaml:3: call 0 of communicator 'world' is not the same on all ranks: "
        f"ranks 0-6: c ({ours}); rank 7: c ({theirs})\n"
    )


def test_a_deadlock_names_file_and_line():
    call = "{collective: {op: all_reduce, size: 1 MiB}}"
    text = f"schema_version: 1\nnode: dgx-h100\nprograms: [{{ranks: 0-6, do: [{call}]}}]\n"
    (resolved,) = loads(text, name="a.yaml").variants
    with pytest.raises(SimulationError, match=r"^a\.yaml:3: ranks 0-6 wait in .* rank 7 never"):
        run_resolved(resolved)


def test_streams_that_compute_at_once_leave_nothing_negative():
    """1 ms in one stream and three times 10 us in another: the rank computes for 1 ms."""
    programs = [
        {
            "ranks": "0-3",
            "do": [
                {"compute": "1 ms", "stream": "a"},
                {"repeat": 3, "do": [{"compute": "10 us"}]},
            ],
        }
    ]
    (step,) = simulator.run(node="4xA100", programs=programs).steps
    assert step.time_s == pytest.approx(1e-3)
    assert step.compute_s == pytest.approx(1e-3)
    assert step.exposed_s == pytest.approx(0.0, abs=1e-12)
