"""What ``auto`` compares, what it takes, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.base.errors import ScheduleError
from simulator.collectives.call import Call
from simulator.compose.choose import candidates, choose, lone_time_s
from simulator.compose.cluster import Choice, Cluster
from simulator.engine.simulate import simulate
from simulator.engine.traffic import Program, Start
from tests.compose.clusters import cluster


def call(made: Cluster, size_bytes: int, op: str = "all_reduce") -> tuple[Call, np.ndarray]:
    n = made.n_gpus
    return Call(collective=op, world_size=n, size_bytes=size_bytes, element_bytes=4), np.arange(n)


def names(options: list[Choice]) -> set[tuple[str, str]]:
    return {(option.algorithm, option.protocol) for option in options}


def possible(made: Cluster, what: Call, group: np.ndarray) -> list[Choice]:
    """Return the candidates whose schedule exists for this group."""
    found = []
    for option in candidates(made, what, group):
        try:
            made.schedule(what, group, option)
        except ScheduleError:
            continue
        found.append(option)
    assert len(found) > 1
    return found


def test_all_that_the_profile_lists_in_every_protocol():
    made = cluster("dgx-h100", "round")
    found = names(candidates(made, *call(made, 2**20)))
    assert {("ring", "LL"), ("ring", "Simple"), ("double_binary_tree", "LL")} <= found
    # NVLS only packs Simple (NCCL 2.21 src/graph/tuning.cc).
    assert {protocol for name, protocol in found if name.startswith("nvls")} == {"Simple"}


def test_hardware_rules_algorithms_out():
    # No switch that reduces before Hopper; no switch at all on a PCIe box.
    for where in ("dgx-1-v100", "pcie-l40s-4", "2 x perlmutter"):
        made = cluster(where, "round")
        found = names(candidates(made, *call(made, 2**20)))
        assert found
        assert not any(name.startswith("nvls") for name, _ in found)


@pytest.mark.parametrize("size", [2**13, 2**20, 2**26, 2**30])
def test_nodes_of_two_generations_get_what_both_can_do(size: int):
    # NVLS needs Hopper, which half of the nodes are not; whichever of them comes first.
    made = cluster("mixed", "nccl")
    what, group = call(made, size)
    older_first = np.roll(group, 16)
    for ranks in (group, older_first):
        assert choose(made, what, ranks).algorithm in ("ring", "double_binary_tree")
    inp, swapped = made.tuning_input(group), made.tuning_input(older_first)
    assert inp is not None
    assert swapped is not None
    assert (inp.min_sm, inp.max_sm) == (80, 90)
    # The slower NICs are the older nodes': 200 instead of 400 Gbit/s.
    old = made.tuning_input(group[16:])
    assert old is not None
    assert inp.graphs["ring"].bw_inter_GBps == old.graphs["ring"].bw_inter_GBps
    assert swapped.graphs["ring"].n_channels == inp.graphs["ring"].n_channels


def test_named_parts_are_kept():
    made = cluster("dgx-h100", "round")
    what = call(made, 2**30)
    options = candidates(made, *what, algorithm="ring", protocol="LL", channels=3)
    assert options == [Choice(algorithm="ring", protocol="LL", n_channels=3)]
    assert choose(made, *what, protocol="LL").protocol == "LL"
    assert choose(made, *what, channels=5).n_channels == 5


@pytest.mark.parametrize(
    ("where", "name", "message"),
    [
        ("pcie-l40s-4", "nvls", "NVSwitch"),
        ("dgx-h100", "rign", "Did you mean 'ring'"),
    ],
)
def test_a_named_algorithm_that_cannot_be_is_refused(where: str, name: str, message: str):
    made = cluster(where, "round")
    with pytest.raises(ScheduleError, match=message):
        choose(made, *call(made, 2**20), algorithm=name)


def test_fewer_channels_for_small_calls():
    made = cluster("dgx-h100", "round")

    def count(size_bytes: int) -> int:
        return choose(made, *call(made, size_bytes), algorithm="ring", protocol="Simple").n_channels

    # One per 512 threads · 64 bytes.
    assert [count(size) for size in (4, 64 * 1024, 128 * 1024, 2**30)] == [1, 2, 4, 24]


@pytest.mark.parametrize("where", ["dgx-h100", "2 x dgx-h100", "dgx-1-v100", "pcie-l40s-4"])
@pytest.mark.parametrize("profile", ["ideal", "round"])
def test_the_choice_is_the_fastest_candidate(where: str, profile: str):
    made = cluster(where, profile)
    for size_bytes in (8, 64 * 1024, 2**24, 2**28):
        what = call(made, size_bytes)
        times = {option: lone_time_s(made, *what, option) for option in possible(made, *what)}
        assert times[choose(made, *what)] == min(times.values())


@pytest.mark.parametrize("where", ["dgx-h100", "2 x dgx-h100", "pcie-l40s-4"])
def test_the_choice_is_the_fastest_message_by_message(where: str):
    """`auto` compares at the folded level; simulated step by step nothing is much faster."""
    made = cluster(where, "round")
    for size_bytes in (2**20, 2**25):
        what, group = call(made, size_bytes)
        times = {}
        for option in possible(made, what, group):
            started = Start(collective=made.collective(what, group, option))
            program = Program(ranks=group, operations=(started,))
            times[option] = simulate(made.network, [program], level="steps").end_s
        chosen = times[choose(made, what, group)]
        assert chosen <= min(times.values()) * 1.02, size_bytes


@pytest.mark.parametrize("where", ["dgx-h100", "2 x dgx-h100", "dgx-1-v100", "pcie-l40s-4"])
@pytest.mark.parametrize("profile", ["nccl", "rccl"])
def test_a_library_chooses_something_that_runs(where: str, profile: str):
    made = cluster(where, profile)
    for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"):
        for size_bytes in (8, 64 * 1024, 2**28):
            what = call(made, size_bytes, op)
            assert lone_time_s(made, *what, choose(made, *what)) > 0


def test_textbook_choices():
    """Latency rules small calls, bandwidth large ones."""
    made = cluster("4 x 1 of dgx-h100")
    # 4 ranks: a ring's 2·3 steps against 2·2 of halving-doubling, at equal bytes.
    assert choose(made, *call(made, 4096)).algorithm != "ring"
    assert choose(made, *call(made, 4096, "reduce_scatter")).algorithm == "recursive_halving"


def test_a_collective_without_candidates_says_so():
    made = cluster("4 x 1 of dgx-h100")
    nobody = Cluster(
        made.fabric,
        made.lowering.router,
        made.profile.__class__(
            **{
                field: getattr(made.profile, field)
                for field in made.profile.__dataclass_fields__
                if field != "candidates"
            },
            candidates={},
        ),
    )
    with pytest.raises(ScheduleError, match="lists no algorithm for all_reduce"):
        choose(nobody, *call(nobody, 4096))
