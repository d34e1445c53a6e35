"""A calibration's factor on calls: the whole time alone, parts consistent, bounds kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulator.collectives.call import Call
from simulator.compose.build import build_cluster
from simulator.compose.choose import lone_time_s
from simulator.compose.cluster import Choice
from simulator.compose.run import run_resolved
from simulator.costs.calibration_file import identity_of
from simulator.costs.profile import profile_data
from simulator.scenario.resolve import from_words
from topologies import hardware

CURVES = """\
extends: {base}
discrepancy: {{first_octave: 0, common: [{values}]}}
fitted:
  node: {node}
  base_identity: {identity}
  ranges:
  - {{collective: all_reduce, ranks: {ranks}, nodes: {nodes}, sizes_bytes: [1, 1000000000000]}}
"""


def profile(
    folder: Path,
    log_factor: float,
    *,
    base: str = "nccl",
    node: str = "dgx-a100-80gb",
    ranks: int = 8,
    nodes: int = 1,
) -> str:
    path = folder / f"{base}{log_factor}.yaml"
    path.write_text(
        CURVES.format(
            base=base,
            values=", ".join([str(log_factor)] * 41),
            node=node,
            identity=identity_of(profile_data(base)),
            ranks=ranks,
            nodes=nodes,
        )
    )
    return str(path)


def times(costs: str, *, node: str = "dgx-a100-80gb", **words: str) -> np.ndarray:
    found = run_resolved(
        from_words(
            {
                "node": node,
                "collective.op": "all_reduce",
                "collective.sizes": "[8, 64K, 4M, 1G]",
                "costs.profile": costs,
                **{key.replace("__", "."): value for key, value in words.items()},
            }
        ).variants[0]
    )
    return np.array([row.time_s for row in found.rows])


@pytest.mark.parametrize("level", ["folded", "steps"])
@pytest.mark.parametrize("op", ["all_reduce", "all_to_all", "broadcast"])
def test_a_call_alone_takes_the_factor_longer(tmp_path: Path, level: str, op: str) -> None:
    words = {"collective__op": op, "engine__level": level, "collective__sizes": "[64K, 4M]"}
    plain, slow = times("nccl", **words), times(profile(tmp_path, 0.25), **words)
    assert slow == pytest.approx(plain * np.exp(0.25), rel=1e-6)


@pytest.mark.parametrize(("node", "nodes"), [("hgx-h100", 2), ("pcie-rtx4090-8", 1)])
def test_trees_switches_and_host_memory_are_scaled_too(
    tmp_path: Path, node: str, nodes: int
) -> None:
    costs = profile(tmp_path, 0.25, node=node, ranks=8 * nodes, nodes=nodes)
    plain = times("nccl", node=node, nodes=str(nodes))
    slow = times(costs, node=node, nodes=str(nodes))
    assert slow == pytest.approx(plain * np.exp(0.25), rel=1e-6)


def test_the_launch_limit_of_processes_is_scaled(tmp_path: Path) -> None:
    # Eight GPUs of one process: eight launches one after the other are longer than the call.
    words = {"collective__sizes": "[8]", "costs__gpus_per_process": "8"}
    plain, slow = times("nccl", **words), times(profile(tmp_path, 0.25), **words)
    assert slow == pytest.approx(plain * np.exp(0.25), rel=1e-9)


def test_rccl_chooses_as_before(tmp_path: Path) -> None:
    node = "8xmi300x"
    words = {"node": node, "collective__sizes": "[64K, 16M]"}
    costs = profile(tmp_path, 0.25, base="rccl", node=hardware.canonical(node))
    assert times(costs, **words) == pytest.approx(times("rccl", **words) * np.exp(0.25), rel=1e-6)


def test_no_factor_lets_a_link_carry_more_than_it_can(tmp_path: Path) -> None:
    # e^-3 of the time would be 20 times the bandwidth; run_resolved itself refuses such rows.
    words = {"collective__sizes": "[1G]"}
    (plain,), (fast,) = times("nccl", **words), times(profile(tmp_path, -3.0), **words)
    efficiency = profile_data("nccl")["generations"]["ampere"]["links"]["nvlink"]
    assert fast == pytest.approx(plain * efficiency, rel=0.1)


def test_small_calls_may_be_faster_but_for_their_links(tmp_path: Path) -> None:
    words = {"collective__sizes": "[8]"}
    (plain,), (fast,) = times("nccl", **words), times(profile(tmp_path, -0.3), **words)
    assert fast == pytest.approx(plain * np.exp(-0.3), rel=1e-3)
    # The latency of links stays as it is.
    (fastest,) = times(profile(tmp_path, -1.0), **words)
    assert plain * np.exp(-1.0) < fastest < fast


def test_calls_that_share_links_are_slower_together(tmp_path: Path) -> None:
    words = {"node": "dgx-a100-80gb", "collective.op": "all_reduce", "collective.size": "1G"}
    cluster = build_cluster(
        from_words({**words, "costs.profile": profile(tmp_path, 0.25)}).variants[0]
    )
    base = build_cluster(from_words(words).variants[0])
    call, group = Call(collective="all_reduce", world_size=8, size_bytes=1 << 30), np.arange(8)
    choice = Choice(algorithm="ring", protocol="Simple", n_channels=24)
    slow, plain = cluster.collective(call, group, choice), base.collective(call, group, choice)
    factor = cluster.factor(call, group, choice)
    assert factor == pytest.approx(np.exp(0.25))
    # Wire bytes, rates, latencies and launch: everything that time is made of.
    assert slow.connections.weight == pytest.approx(plain.connections.weight * factor)
    assert slow.connections.max_rate_Bps == pytest.approx(plain.connections.max_rate_Bps / factor)
    assert slow.connections.latency_s == pytest.approx(plain.connections.latency_s * factor)
    assert slow.launch_s == pytest.approx(plain.launch_s * factor)
    assert lone_time_s(cluster, call, group, choice) == pytest.approx(
        factor * lone_time_s(base, call, group, choice), rel=1e-6
    )


def test_training_steps_take_the_factor_and_tell_what_lies_outside(tmp_path: Path) -> None:
    words = {
        "node": "dgx-a100-80gb",
        "training.model": "gpt2",
        "training.micro_batch": "1",
    }
    plain = run_resolved(from_words(words).variants[0])
    costs = {"costs.profile": profile(tmp_path, 1.0)}
    slow = run_resolved(from_words({**words, **costs}).variants[0])
    assert slow.training[0].step_s > plain.training[0].step_s
    assert slow.warnings == ()
    fsdp = run_resolved(
        from_words({**words, **costs, "training.data_parallel": "fsdp"}).variants[0]
    )
    (warning,) = fsdp.warnings
    assert "outside its fit: all_gather" in warning


WORDS = {
    "node": "dgx-a100-80gb",
    "collective.op": "all_reduce",
    "collective.sizes": "[64M]",
    "costs.gpus_per_process": "8",
}


def told(tmp_path: Path, **changed: str) -> tuple[tuple[str, ...], float]:
    """Return the warnings and the uncertainty, as a share, of a call on a calibrated machine."""
    path = Path(profile(tmp_path, 0.1))
    path.write_text(
        path.read_text().replace(
            "000]}",
            "000], ways: {ring/LL: [1, 4194304], ring/Simple: [1, 1000000000000]}, "
            "settings: {costs.gpus_per_process: '8', costs.version: '2.23.0'}}",
        )
        + "bands: {tables: {other: [[1.0e+15, 0.05]]}}\n"
    )
    words = WORDS | {"costs.profile": str(path)}
    words |= {key.replace("__", "."): value for key, value in changed.items()}
    found = run_resolved(from_words(words).variants[0])
    (row,) = found.rows
    assert row.uncertainty_s is not None
    return tuple(t for t in found.warnings if "outside" in t), row.uncertainty_s / row.time_s


def test_as_fitted_it_has_its_own_band(tmp_path: Path) -> None:
    warnings, share = told(tmp_path)
    assert warnings == ()
    assert share == pytest.approx(np.expm1(0.05))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("collective.algorithm", "double_binary_tree", "all_reduce by double_binary_tree/"),
        ("env.NCCL_PROTO", "LL", "all_reduce by ring/LL above 4 MiB"),
        ("env.NCCL_P2P_DISABLE", "1", "env.NCCL_P2P_DISABLE 1"),
        ("routing.p2p", "no", "routing.p2p False"),
        ("node.nic_rate", "400 Gbit/s", "node.nic_rate 50 GB/s"),
        ("node.links.nvlink.bandwidth", "100 GB/s", "node.links.nvlink.bandwidth 100 GB/s"),
        ("perturb.links", "[{link: node0.gpu0->node0.nvswitch0, factor: 0.5}]", "perturb.links"),
        ("costs.overrides.launch.time", "20 us", "costs.overrides.launch.time 20 us"),
        ("costs.version", "2.21.5", "costs.version 2.21.5 (fitted with 2.23.0)"),
        ("costs.gpus_per_process", "1", "costs.gpus_per_process 1 (fitted with 8)"),
    ],
)
def test_what_was_not_measured_is_told_and_has_the_shipped_band(
    tmp_path: Path, key: str, value: str, words: str
) -> None:
    (warning,), share = told(tmp_path, **{key: value})
    assert words in warning
    shipped = run_resolved(from_words(WORDS | {key: value}).variants[0]).rows[0]
    assert shipped.uncertainty_s is not None
    assert share == pytest.approx(shipped.uncertainty_s / shipped.time_s)


@pytest.mark.parametrize(("name", "value"), [("NCCL_DEBUG", "INFO"), ("NCCL_P2P_DISABLE", "0")])
def test_variables_that_change_nothing_are_inside(tmp_path: Path, name: str, value: str) -> None:
    assert told(tmp_path, **{f"env.{name}": value})[0] == ()


def test_ways_that_are_only_weighed_are_not_told(tmp_path: Path) -> None:
    words = WORDS | {"costs.profile": profile(tmp_path, 0.1)}
    resolved = from_words(words).variants[0]
    cluster = build_cluster(resolved)
    call, group = Call(collective="all_to_all", world_size=8, size_bytes=1 << 20), np.arange(8)
    lone_time_s(cluster, call, group, Choice(algorithm="direct", protocol="LL", n_channels=1))
    assert cluster.outside == ()


def test_a_shown_scenario_finds_its_profile_again(tmp_path: Path) -> None:
    from simulator.scenario import dump, load

    folder = tmp_path / "sub"
    folder.mkdir()
    Path(profile(folder, 0.25)).rename(folder / "own.yaml")
    (folder / "scenario.yaml").write_text(
        "schema_version: 1\nnode: dgx-a100-80gb\ncosts: own.yaml\n"
        "collective: {op: all_reduce, sizes: [64 MiB]}\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        first = load("sub/scenario.yaml").variants[0]
        (folder / "shown.yaml").write_text(dump(first))
        again = load("sub/shown.yaml").variants[0]
        assert run_resolved(again).rows == run_resolved(first).rows
    assert load(str(folder / "shown.yaml")).variants[0].costs.profile == again.costs.profile


def test_results_tell_which_file_it_was(tmp_path: Path) -> None:
    import hashlib

    path = profile(tmp_path, 0.1)
    words = WORDS | {"costs.profile": path}
    found = run_resolved(from_words(words).variants[0]).provenance
    assert found.profile_sha256 == hashlib.sha256(Path(path).read_bytes()).hexdigest()
    assert run_resolved(from_words(WORDS).variants[0]).provenance.profile_sha256 == ""


def test_variants_of_a_sweep_warn_once_together(tmp_path: Path) -> None:
    import pickle

    from simulator.compose.sweep import run_set

    words = WORDS | {"costs.profile": profile(tmp_path, 0.1), "nodes": "2,4,8"}
    (warning,) = run_set(from_words(words), workers=1).warnings
    for ranks in (16, 32, 64):
        assert f"all_reduce of {ranks} ranks" in warning
    assert warning.count("Measured:") == 1
    assert "fabric.kind" not in warning
    # Processes hand it over as it is.
    assert pickle.loads(pickle.dumps(warning)).reasons == warning.reasons  # type: ignore[attr-defined]


def test_a_warning_tells_so_many_reasons(tmp_path: Path) -> None:
    words = WORDS | {"costs.profile": profile(tmp_path, 0.1)}
    calibration = build_cluster(from_words(words).variants[0]).profile.calibration
    assert calibration is not None
    assert ", reason 7, and 4 more. Measured" in calibration.warning(
        f"reason {i}" for i in range(12)
    )
