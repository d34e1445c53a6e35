"""Steps and bytes per rank equal the closed forms of the literature."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simulator.collectives import Call, Layout, Schedule, algorithms, collectives, make_schedule
from simulator.collectives.bounds import byte_bound
from tests.collectives.worlds import layouts, must_refuse

POWERS = (2, 4, 8, 16, 32)
ANY = (2, 3, 5, 6, 7, 8, 13, 16, 17, 32)


def make(
    collective: str, name: str, n: int, *, size: int | None = None, root: int = 0, **layout: object
) -> Schedule:
    size = 960 * n if size is None else size
    call = Call(collective=collective, world_size=n, size_bytes=size, root=root)
    return make_schedule(call, name, Layout(world_size=n, **layout))


def sent(schedule: Schedule) -> np.ndarray:
    """Bytes sent by each slot."""
    slots = schedule.world_size + len(schedule.virtual)
    total = np.zeros(slots)
    for stage in schedule.stages:
        total += np.bincount(stage.src, weights=stage.edge_bytes, minlength=slots)
    return total


def received(schedule: Schedule) -> np.ndarray:
    """Bytes received by each slot."""
    slots = schedule.world_size + len(schedule.virtual)
    total = np.zeros(slots)
    for stage in schedule.stages:
        total += np.bincount(stage.dst, weights=stage.edge_bytes, minlength=slots)
    return total


def between_nodes(schedule: Schedule, nodes: np.ndarray) -> np.ndarray:
    """Bytes sent by each rank to ranks of other nodes."""
    total = np.zeros(schedule.world_size)
    for stage in schedule.stages:
        leaves = nodes[stage.src] != nodes[stage.dst]
        total += np.bincount(
            stage.src[leaves], weights=stage.edge_bytes[leaves], minlength=len(total)
        )
    return total


# ------------------------------------------------------------------------------------- rings


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("n", ANY)
def test_ring_all_reduce(n: int, channels: int) -> None:
    # Patarasuk and Yuan: 2(n−1) steps of S/n per rank, split over the channels.
    schedule = make("all_reduce", "ring", n, n_channels=channels)
    size = 960 * n
    assert schedule.n_steps == 2 * (n - 1)
    assert [stage.n_steps for stage in schedule.stages] == [n - 1, n - 1]
    assert sent(schedule) == pytest.approx(2 * (n - 1) / n * size, rel=1e-15)
    assert all(s.uniform_step_bytes == size / n / channels for s in schedule.stages)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("n", ANY)
def test_ring_of_parts(n: int, collective: str) -> None:
    schedule = make(collective, "ring", n, n_channels=2)
    assert schedule.n_steps == n - 1
    assert (sent(schedule) == (n - 1) * 960).all()
    assert schedule.stages[0].uniform_step_bytes == 480


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("n", [3, 8])
def test_bidirectional_ring_sends_half_to_each_neighbour(n: int, collective: str) -> None:
    schedule = make(collective, "bidirectional_ring", n)
    twice = 2 if collective == "all_reduce" else 1
    for stage in schedule.stages:
        ahead = (stage.dst - stage.src) % n == 1
        assert ahead.sum() == n
        assert ((stage.dst - stage.src)[~ahead] % n == n - 1).all()
        assert (stage.edge_bytes == (n - 1) * 480).all()
    assert schedule.n_steps == twice * (n - 1)


def test_rings_follow_the_orders_of_the_layout() -> None:
    rings = np.array([[0, 2, 1, 3], [3, 1, 0, 2]])
    schedule = make("all_reduce", "ring", 4, n_channels=2, rings=rings)
    stage = schedule.stages[0]
    for channel, ring in enumerate(rings):
        mine = stage.channel == channel
        assert dict(zip(stage.src[mine], stage.dst[mine], strict=True)) == dict(
            zip(ring, np.roll(ring, -1), strict=True)
        )


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("n", [2, 5, 8])
def test_chain_is_pipelined(n: int, collective: str) -> None:
    # P pieces through n − 1 hops: the last piece starts in step P − 1 and takes n − 1 steps.
    schedule = make(collective, "ring", n, size=1000, root=n - 1, pipeline_bytes=100)
    assert schedule.n_steps == n - 1 + 10 - 1
    total = sent(schedule) if collective == "broadcast" else received(schedule)
    last = n - 2 if collective == "broadcast" else 0
    assert total[last] == 0
    assert (np.delete(total, last) == 1000).all()


# --------------------------------------------------------------- halving, doubling, Bruck, PAT


@pytest.mark.parametrize("n", POWERS)
def test_halving_doubling_on_powers_of_two(n: int) -> None:
    # Rabenseifner: 2·log2 n steps, 2(n−1)/n·S.
    schedule = make("all_reduce", "halving_doubling", n)
    assert schedule.n_steps == 2 * math.log2(n)
    assert (sent(schedule) == 2 * (n - 1) * 960).all()
    # The first exchange is with the neighbour and moves half of the buffer.
    first = schedule.stages[0]
    assert (first.src ^ first.dst == 1).all()
    assert (first.edge_bytes == 960 * n / 2).all()


@pytest.mark.parametrize("n", [3, 5, 6, 7, 13, 17])
def test_halving_doubling_folds_other_worlds(n: int) -> None:
    p = 2 ** math.floor(math.log2(n))
    size = 960 * p
    schedule = make("all_reduce", "halving_doubling", n, size=size)
    # Between the fold-in and the first exchange those without an extra rank get a signal.
    assert schedule.n_steps == 2 * math.log2(p) + 2 + 1
    assert (schedule.stages[0].edge_bytes == 0).sum() == p - (n - p)
    total, folded = sent(schedule), n - p
    assert (total[0 : 2 * folded : 2] == size).all()
    assert (total[1 : 2 * folded : 2] == 2 * (p - 1) / p * size + size).all()
    assert (total[2 * folded :] == 2 * (p - 1) / p * size).all()


@pytest.mark.parametrize("n", POWERS)
def test_recursive_doubling_and_halving_on_powers_of_two(n: int) -> None:
    # Thakur et al.: log2 n steps; all_reduce moves S in each, the others (n−1)/n·S in all.
    schedule = make("all_reduce", "recursive_doubling", n)
    assert schedule.n_steps == math.log2(n)
    assert (sent(schedule) == math.log2(n) * 960 * n).all()
    for collective, name in (
        ("all_gather", "recursive_doubling"),
        ("reduce_scatter", "recursive_halving"),
    ):
        schedule = make(collective, name, n)
        assert schedule.n_steps == math.log2(n)
        assert (sent(schedule) == (n - 1) * 960).all()


@pytest.mark.parametrize("n", ANY)
def test_bruck_all_gather(n: int) -> None:
    schedule = make("all_gather", "bruck", n)
    assert schedule.n_steps == math.ceil(math.log2(n))
    assert (sent(schedule) == (n - 1) * 960).all()


@pytest.mark.parametrize("n", ANY)
def test_bruck_all_to_all(n: int) -> None:
    # Bruck et al.: a part that travels distance i is sent once for each bit of i.
    schedule = make("all_to_all", "bruck", n)
    assert schedule.n_steps == math.ceil(math.log2(n))
    assert (sent(schedule) == sum(i.bit_count() for i in range(n)) * 960).all()


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("n", ANY)
def test_pat_sends_least_over_the_largest_distance(n: int, collective: str) -> None:
    schedule = make(collective, "pat", n)
    assert schedule.n_steps == math.ceil(math.log2(n))
    assert (sent(schedule) == (n - 1) * 960).all()
    stages = schedule.stages if collective == "all_gather" else schedule.stages[::-1]
    sizes = [stage.edge_bytes[0] for stage in stages]
    assert sizes[0] == 960
    assert sizes == sorted(sizes)


# ------------------------------------------------------------------------ direct and binomial


@pytest.mark.parametrize("n", ANY)
def test_all_to_all(n: int) -> None:
    pairwise, direct = (make("all_to_all", name, n) for name in ("pairwise", "direct"))
    assert pairwise.n_steps == n - 1
    assert direct.n_steps == 1
    for schedule in (pairwise, direct):
        assert (sent(schedule) == (n - 1) * 960).all()
        assert (received(schedule) == (n - 1) * 960).all()
    for stage in pairwise.stages:
        assert sorted(stage.dst) == list(range(n))


def test_shifts_pair_like_ranks_of_nodes() -> None:
    # Every permutation leads from one node to one node.
    nodes = np.arange(12) // 4
    schedule = make("all_to_all", "pairwise", 12, nodes=nodes)
    for stage in schedule.stages:
        assert len(set((nodes[stage.dst] - nodes[stage.src]) % 3)) == 1
        assert len(set((stage.dst - stage.src) % 4)) == 1


def test_large_worlds_too_exchange_all_at_once() -> None:
    n = 512
    schedule = make("all_to_all", "direct", n)
    assert [len(stage.src) for stage in schedule.stages] == [n * (n - 1)]
    assert (sent(schedule) == (n - 1) * 960).all()


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("n", ANY)
def test_binomial_of_the_whole_buffer(n: int, collective: str) -> None:
    schedule = make(collective, "binomial", n, root=1)
    steps = math.ceil(math.log2(n))
    assert schedule.n_steps == steps
    busiest = sent(schedule) if collective == "broadcast" else received(schedule)
    assert busiest[1] == steps * 960 * n
    assert sent(schedule).sum() == (n - 1) * 960 * n


@pytest.mark.parametrize("collective", ["gather", "scatter"])
@pytest.mark.parametrize("n", ANY)
def test_binomial_of_parts(n: int, collective: str) -> None:
    schedule = make(collective, "binomial", n, root=1)
    assert schedule.n_steps == math.ceil(math.log2(n))
    root = received(schedule)[1] if collective == "gather" else sent(schedule)[1]
    assert root == (n - 1) * 960


@pytest.mark.parametrize("n", [2, 5, 8])
def test_naive_loads_the_root(n: int) -> None:
    schedule = make("all_reduce", "naive", n, root=n - 1)
    assert schedule.n_steps == 2
    assert sent(schedule)[n - 1] == received(schedule)[n - 1] == (n - 1) * 960 * n
    assert (sent(schedule)[: n - 1] == 960 * n).all()


def test_send_recv_moves_the_buffer_once() -> None:
    schedule = make("send_recv", "direct", 5, size=123)
    assert schedule.n_steps == 1
    assert (sent(schedule) == 123).all()


@pytest.mark.parametrize("n", ANY)
def test_barriers(n: int) -> None:
    assert make("barrier", "dissemination", n, size=0).n_steps == math.ceil(math.log2(n))
    assert make("barrier", "ring", n, size=0).n_steps == n - 1
    assert make("barrier", "tree", n, size=0).n_steps == 2 * math.floor(math.log2(n))
    for name in algorithms("barrier"):
        assert not sent(make("barrier", name, n, size=0)).any()


# -------------------------------------------------------------------------------------- trees


@pytest.mark.parametrize("n", ANY)
def test_tree_is_pipelined(n: int) -> None:
    # P pieces, depth D = ⌊log2 n⌋ up and down: 2D + P − 1 steps.
    size, depth = 1000, math.floor(math.log2(n))
    schedule = make("all_reduce", "tree", n, size=size, pipeline_bytes=100)
    assert schedule.n_steps == 2 * depth + 10 - 1
    # Every rank but the root has one parent and sends S up; every edge down carries S.
    children = np.bincount((np.arange(1, n) - 1) // 2, minlength=n)
    assert (sent(schedule) == size * (children + (np.arange(n) > 0))).all()
    for collective in ("broadcast", "reduce"):
        one_way = make(collective, "tree", n, size=size, pipeline_bytes=100, root=n - 1)
        assert one_way.n_steps == depth + 10 - 1


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 13, 16, 32])
def test_double_binary_tree_over_single_ranks(nodes: int) -> None:
    """Half of the data in each tree; even worlds have each rank inner in at most one tree.

    In an odd world of NCCL's construction rank 0 has one child in each tree and no other rank
    is inner twice.
    """
    schedule = make("all_reduce", "double_binary_tree", nodes, nodes=np.arange(nodes))
    (stage,) = schedule.stages
    assert (stage.edge_bytes == 960 * nodes / 2).all()
    children = np.zeros((2, nodes), dtype=int)
    for tree in (0, 1):
        # Up edges start first; a rank's parent is where it sends in the first step it acts.
        mine = stage.channel == tree
        pairs = set(zip(stage.src[mine].tolist(), stage.dst[mine].tolist(), strict=True))
        assert len(pairs) == 2 * (nodes - 1)
        assert pairs == {(b, a) for a, b in pairs}
        for child, parent in parents_of(stage, tree).items():
            children[tree, parent] += 1
            assert (child, parent) in pairs
    inner = (children > 0).sum(axis=0)
    if nodes % 2 == 0:
        assert (inner <= 1).all()
    else:
        assert inner[0] == 2
        assert (inner[1:] <= 1).all()
    assert children.sum(axis=0).max() <= 2
    depth = max(tree_depth(parents_of(stage, tree)) for tree in (0, 1))
    assert depth <= math.ceil(math.log2(nodes)) + 1


def parents_of(stage: object, tree: int) -> dict[int, int]:
    """The parent of each rank: where it sends pieces that are added up."""
    found: dict[int, int] = {}
    for step in stage.steps():
        edge = np.arange(len(stage.src))[step.edge]
        adds = np.broadcast_to(step.reduce, edge.shape)
        for one in edge[adds]:
            if stage.channel[one] == tree:
                found[int(stage.src[one])] = int(stage.dst[one])
    return found


def tree_depth(parents: dict[int, int]) -> int:
    def depth(rank: int) -> int:
        return 0 if rank not in parents else 1 + depth(parents[rank])

    return max(depth(rank) for rank in parents)


def test_double_binary_tree_of_eight_is_nccls() -> None:
    # NCCL's illustration in src/graph/trees.cc, cut to 8: 0 over 4, 4 over 2 and 6, odd leaves;
    # the mirrored tree has 7 − rank in each place.
    (stage,) = make("all_reduce", "double_binary_tree", 8, nodes=np.arange(8)).stages
    first = {4: 0, 2: 4, 6: 4, 1: 2, 3: 2, 5: 6, 7: 6}
    assert parents_of(stage, 0) == first
    assert parents_of(stage, 1) == {7 - child: 7 - parent for child, parent in first.items()}


def test_double_binary_tree_has_chains_in_nodes() -> None:
    # Two nodes of three; the first of each chain faces the network.
    chains = np.array([[1, 0, 2, 4, 5, 3]])
    nodes = np.arange(6) // 3
    (stage,) = make("all_reduce", "double_binary_tree", 6, nodes=nodes, chains=chains).stages
    assert parents_of(stage, 0) == {0: 1, 2: 0, 5: 4, 3: 5, 4: 1}
    assert parents_of(stage, 1) == {0: 1, 2: 0, 5: 4, 3: 5, 1: 4}


# ------------------------------------------------------------------- hierarchical, in-network


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 8), (8, 1), (2, 4), (4, 2), (3, 5)])
def test_hierarchical(nodes: int, per_node: int) -> None:
    # m per node, N nodes: 2(m−1)/m·S inside and 2(N−1)/n·S between nodes, per rank.
    n = nodes * per_node
    size, node = 960 * n, np.arange(n) // per_node
    schedule = make("all_reduce", "hierarchical", n, nodes=node, n_channels=2)
    assert schedule.n_steps == 2 * (per_node - 1) + 2 * (nodes - 1)
    outside = between_nodes(schedule, node)
    assert outside == pytest.approx(2 * (nodes - 1) / n * size, rel=1e-15)
    assert sent(schedule) - outside == pytest.approx(2 * (per_node - 1) / per_node * size)
    for collective in ("all_gather", "reduce_scatter"):
        schedule = make(collective, "hierarchical", n, nodes=node)
        assert schedule.n_steps == per_node - 1 + nodes - 1
        assert (between_nodes(schedule, node) == (nodes - 1) * 960).all()
        assert (sent(schedule) == (n - 1) * 960).all()
    schedule = make("all_to_all", "hierarchical", n, nodes=node)
    assert schedule.n_steps == per_node - 1 + nodes - 1
    # Each message between nodes holds m parts.
    assert (between_nodes(schedule, node) == (nodes - 1) * per_node * 960).all()
    assert (sent(schedule) - between_nodes(schedule, node) == (per_node - 1) * nodes * 960).all()


@pytest.mark.parametrize(("n", "rows", "columns"), [(16, 4, 4), (12, 3, 4), (32, 4, 8), (7, 1, 7)])
def test_two_d_grid(n: int, rows: int, columns: int) -> None:
    schedule = make("all_reduce", "two_d", n)
    assert schedule.n_steps == 2 * (columns - 1) + 2 * (rows - 1)
    assert sent(schedule) == pytest.approx(2 * (n - 1) / n * 960 * n, rel=1e-12)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_nvls(n: int) -> None:
    size = 960 * n
    # 2 channels, a head's share of 960/2 in pieces of 240: P = 2.
    schedule = make("all_reduce", "nvls", n, n_channels=2, pipeline_bytes=240)
    assert schedule.n_steps == 2 + 3
    assert (sent(schedule)[:n] == size + size / n).all()
    assert (received(schedule)[:n] == size + size / n).all()
    gather = make("all_gather", "nvls", n, n_channels=2, pipeline_bytes=240)
    assert gather.n_steps == 2 + 1
    assert (sent(gather)[:n] == size / n).all()
    assert (received(gather)[:n] == size).all()
    scatter = make("reduce_scatter", "nvls", n, n_channels=2, pipeline_bytes=240)
    assert (sent(scatter)[:n] == size).all()
    assert (received(scatter)[:n] == size / n).all()
    assert [v.kind for v in schedule.virtual] == ["nvswitch"]


def test_nvls_tree_sends_shares_between_nodes() -> None:
    # 4 nodes of 4, two channels: each tree carries half of each head's share S/4.  In tree 0
    # the path is 0 – 2, 1 – 2, 3 – 2: node 2 has two children and a parent, the others one link.
    n, node = 16, np.arange(16) // 4
    size = 960 * n
    schedule = make("all_reduce", "nvls_tree", n, nodes=node, n_channels=2)
    outside = between_ranks(schedule, node)
    half_share = size / 4 / 2
    # Tree 1 mirrors it: node 1 has three links.  Every node has 1 + 3 or 1 + 1 links in all.
    links = np.array([2, 4, 4, 2])
    assert (outside == links[node] * half_share).all()
    assert [v.members for v in schedule.virtual] == [
        tuple(range(4 * k, 4 * k + 4)) for k in range(4)
    ]


def between_ranks(schedule: Schedule, nodes: np.ndarray) -> np.ndarray:
    """`between_nodes` over edges that have no switch at either end."""
    n = schedule.world_size
    total = np.zeros(n)
    for stage in schedule.stages:
        ranks = (stage.src < n) & (stage.dst < n)
        src, dst, size = stage.src[ranks], stage.dst[ranks], stage.edge_bytes[ranks]
        leaves = nodes[src] != nodes[dst]
        total += np.bincount(src[leaves], weights=size[leaves], minlength=n)
    return total


def test_collnet_sends_once_into_the_network() -> None:
    n, node = 12, np.arange(12) // 4
    size = 960 * n
    chain = make("all_reduce", "collnet_chain", n, nodes=node, pipeline_bytes=10**6)
    assert chain.n_steps == 2 * 4
    heads = np.arange(n) % 4 == 0
    to_switch = to_slots(chain)
    assert (to_switch[heads] == size).all()
    assert not to_switch[~heads].any()
    assert [v.members for v in chain.virtual] == [(0, 4, 8)]
    direct = make("all_reduce", "collnet_direct", n, nodes=node, pipeline_bytes=10**6)
    assert direct.n_steps == 4
    assert (to_slots(direct) == size / 4).all()
    inside = sent(direct)[:n] - to_slots(direct)
    assert (inside == 2 * 3 / 4 * size).all()
    assert [v.members for v in direct.virtual] == [(k, k + 4, k + 8) for k in range(4)]


@pytest.mark.parametrize("name", ["collnet_direct", "nvls_sharp"])
def test_sharded_calls_send_each_part_once_through_the_network(name: str) -> None:
    # 3 nodes of 4: a rank's part crosses the network once, and it receives those of the two
    # like ranks and its own: S/4 (all_gather); backwards in reduce_scatter.
    n, node = 12, np.arange(12) // 4
    part = 960
    for collective in ("all_gather", "reduce_scatter"):
        made = make(collective, name, n, nodes=node, pipeline_bytes=10**6, size=part * n)
        assert made.n_steps == (3 if name == "collnet_direct" else 4)
        tops = [n + i for i, v in enumerate(made.virtual) if v.kind == "sharp"]
        assert [made.virtual[t - n].members for t in tops] == [(k, k + 4, k + 8) for k in range(4)]
        up = np.zeros(n)
        down = np.zeros(n)
        for stage in made.stages:
            into, out_of = np.isin(stage.dst, tops), np.isin(stage.src, tops)
            up += np.bincount(stage.src[into], stage.edge_bytes[into], minlength=n)
            down += np.bincount(stage.dst[out_of], stage.edge_bytes[out_of], minlength=n)
        one, all_alike = (part, 3 * part) if collective == "all_gather" else (3 * part, part)
        assert (up == one).all()
        assert (down == all_alike).all()


def test_nvls_over_nodes_sends_its_share_once_into_the_network() -> None:
    n, node = 12, np.arange(12) // 4
    made = make("all_reduce", "nvls_sharp", n, nodes=node, pipeline_bytes=10**6)
    size = 960 * n
    assert made.n_steps == 6
    # To the NVSwitch S and the finished share S/4, to the network the share.
    assert (to_slots(made) == size + 2 * size / 4).all()
    kinds = [v.kind for v in made.virtual]
    assert kinds == ["nvswitch"] * 3 + ["sharp"] * 4


def to_slots(schedule: Schedule) -> np.ndarray:
    """Bytes that each rank sends to switches."""
    n = schedule.world_size
    total = np.zeros(n)
    for stage in schedule.stages:
        up = stage.dst >= n
        total += np.bincount(stage.src[up], weights=stage.edge_bytes[up], minlength=n)
    return total


# ------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("collective", "name"), [(c, name) for c in collectives() for name in algorithms(c)]
)
def test_no_schedule_beats_its_bound(collective: str, name: str) -> None:
    checked = 0
    for n in (2, 5, 8):
        for layout in layouts(n):
            if must_refuse(name, layout, collective):
                continue
            call = Call(
                collective=collective,
                world_size=n,
                size_bytes=0 if collective == "barrier" else 960 * n,
                root=n - 1,
            )
            schedule = make_schedule(call, name, layout)
            bound = byte_bound(call, in_network=bool(schedule.virtual))
            assert (sent(schedule)[:n] >= bound.send_bytes).all()
            assert (received(schedule)[:n] >= bound.receive_bytes).all()
            busiest = max(sent(schedule)[:n].mean(), received(schedule)[:n].mean())
            assert busiest >= bound.mean_bytes * (1 - 1e-12)
            checked += 1
    assert checked >= 2


# ---------------------------------------------------- scatter and gather in halves, neighbours


@pytest.mark.parametrize("n", ANY)
def test_scatter_allgather_broadcast(n: int) -> None:
    # The root sends (n − 1)/n·S into the scatter; the ring moves (n − 1)/n·S more on every rank,
    # doubling as much; steps as in Thakur et al.
    schedule = make("broadcast", "scatter_allgather_ring", n, root=n - 1)
    log = math.ceil(math.log2(n))
    assert schedule.n_steps == log + n - 1
    size, part = 960 * n, 960
    assert sent(schedule)[n - 1] == size - part + (n - 1) * part
    doubling = make("broadcast", "scatter_allgather", n)
    power = n & (n - 1) == 0
    assert doubling.n_steps == (2 * log if power else log + n - 1)
    assert sent(doubling)[0] == pytest.approx(2 * (size - part))


@pytest.mark.parametrize("n", ANY)
def test_ring_gather_reduce(n: int) -> None:
    # n − 1 steps of the ring, then everybody's part at once.
    schedule = make("reduce", "ring_gather", n)
    assert schedule.n_steps == n
    assert sent(schedule)[1] == (n - 1) * 960 + 960
    assert received(schedule)[0] == 2 * (n - 1) * 960


@pytest.mark.parametrize("n", POWERS)
def test_halving_gather_reduce(n: int) -> None:
    # Halving sends (n − 1)/n·S from every rank; the gather brings as much to the root.
    for root in (0, n - 1):
        schedule = make("reduce", "halving_gather", n, root=root)
        assert schedule.n_steps == 2 * math.log2(n)
        assert received(schedule)[root] == 2 * (n - 1) * 960


@pytest.mark.parametrize("n", ANY)
def test_neighbor_exchange_all_gather(n: int) -> None:
    schedule = make("all_gather", "neighbor_exchange", n)
    assert schedule.n_steps == (n // 2 if n % 2 == 0 else n - 1)
    assert sent(schedule) == pytest.approx(np.full(n, (n - 1) * 960))


def test_reduce_scatter_by_all_reduce_moves_twice_as_much() -> None:
    schedule = make("reduce_scatter", "all_reduce", 4)
    assert schedule.n_steps == 6
    assert sent(schedule) == pytest.approx(np.full(4, 6 * 960))
