"""Files of calibrated profiles: constants over a shipped profile, curves, ranges, errors."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml

from simulator.base.errors import CalibrationError
from simulator.costs.calibration import Calibration, Curve, Measured, table_key, way_key
from simulator.costs.calibration_file import constants_of, identity_of, merged
from simulator.costs.profile import load_profile, profile_data

NODE = "dgx-h100"
GOOD = """\
name: mine
extends: nccl
launch: {time: 9.9 us}
generations: {ampere: {channel_GBps: {LL: 3.1}}}
discrepancy:
  first_octave: 10
  common: [0.1, 0.1, 0.1]
  ways: {ring/LL: [0.2, 0.2, 0.2]}
  tables: {all_reduce/8 ranks/1 node: [0.4, 0.4, 0.4]}
bands: {tables: {all_reduce/8 ranks/1 node: [[2048, 0.3], [1.0e+9, 0.1]]}}
fitted:
  node: dgx-h100
  base_identity: IDENTITY
  ranges:
  - {collective: all_reduce, ranks: 8, nodes: 1, sizes_bytes: [1024, 4096]}
""".replace("IDENTITY", identity_of(profile_data("nccl")))


def write(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text)
    return str(path)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(CalibrationError) as caught:
        load_profile(write(folder, text))
    return str(caught.value)


def test_constants_lie_over_the_shipped_ones(tmp_path: Path) -> None:
    found, nccl = load_profile(write(tmp_path, GOOD)), load_profile("nccl")
    assert found.launch_s == pytest.approx(9.9e-6)
    assert found.channel_Bps["ampere", "LL"] == pytest.approx(3.1e9)
    assert found.channel_Bps["ampere", "LL128"] == nccl.channel_Bps["ampere", "LL128"]
    assert found.alpha_s == nccl.alpha_s
    # The library's rules and variables go by its name.
    assert (found.name, found.tuning, found.bands) == ("nccl", "nccl", nccl.bands)
    assert found.sources["launch.time"].endswith("mine.yaml")


def test_constants_alone_are_a_profile_without_ranges(tmp_path: Path) -> None:
    found = load_profile(write(tmp_path, "extends: nccl\nlaunch: {time: 1 us}\n"))
    assert found.launch_s == pytest.approx(1e-6)
    assert found.calibration is None


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    import os

    path = write(tmp_path, "extends: nccl\nlaunch: {time: 1 us}\n")
    assert load_profile(path).launch_s == pytest.approx(1e-6)
    write(tmp_path, "extends: nccl\nlaunch: {time: 3 us}\n")
    os.utime(path, ns=(1, 1))
    assert load_profile(path).launch_s == pytest.approx(3e-6)


def test_sections_merge_deeply_and_rules_as_a_whole() -> None:
    assert merged({"a": {"x": 1, "y": {"z": 2}}}, {"a": {"y": {"w": 3}}}) == {
        "a": {"x": 1, "y": {"z": 2, "w": 3}}
    }
    assert merged({"rules": {"a": 1}}, {"rules": {"b": 2}}) == {"rules": {"b": 2}}


def test_every_number_of_a_shipped_profile_is_a_constant() -> None:
    found = constants_of(profile_data("nccl"))
    assert found["launch.time"].endswith("us")
    assert found["generations.hopper.links.nvlink"] < 1
    assert not any(key.startswith(("fitted", "bands", "algorithms")) for key in found)


def test_the_identity_follows_the_constants() -> None:
    data = profile_data("nccl")
    assert identity_of(data) != identity_of(profile_data("rccl"))
    assert identity_of({**data, "fitted": {}}) == identity_of(data)
    assert identity_of({**data, "launch": {"time": "1 us"}}) != identity_of(data)


def test_curves_are_straight_between_octaves_and_end(tmp_path: Path) -> None:
    curve = Curve(10, (0.0, 0.4))
    assert curve.at(2**10.5) == pytest.approx(0.2)
    assert curve.at(512) == curve.at(2**11 + 1) == 0.0
    assert Curve(0, ()).at(100) == 0.0


def calibration(folder: Path, text: str = GOOD) -> Calibration:
    found = load_profile(write(folder, text)).calibration
    assert found is not None
    return found


def test_a_factor_adds_what_is_common_of_the_way_and_of_the_table(tmp_path: Path) -> None:
    found = calibration(tmp_path)

    def at(way: str, ranks: int = 8, size: float = 2048, node: str = NODE) -> float:
        return found.log_factor("all_reduce", ranks, 1, way, size, nodes_of=[node])

    assert at("ring/LL") == pytest.approx(0.7)
    assert at("ring/Simple") == pytest.approx(0.5)
    assert at("ring/LL", ranks=4) == pytest.approx(0.3)
    assert at("ring/LL", size=1 << 30) == 0.0
    assert at("ring/LL", node="dgx-a100-80gb") == 0.0


def test_what_lies_outside_is_told_and_has_no_band_of_its_own(tmp_path: Path) -> None:
    found = calibration(tmp_path)

    def outside(*call: object, node: str = NODE) -> tuple[str, ...]:
        width = found.half_width(*call, nodes_of=[node])  # type: ignore[arg-type]
        reasons = found.outside(*call, nodes_of=[node])  # type: ignore[arg-type]
        assert (width is None) == bool(reasons)
        return reasons

    assert outside("all_reduce", 8, 1, 4096) == ()
    assert found.half_width("all_reduce", 8, 1, 1500, nodes_of=[NODE]) == 0.3
    assert found.half_width("all_reduce", 8, 1, 4096, nodes_of=[NODE]) == 0.1
    assert outside("all_reduce", 8, 1, 512) == ("all_reduce below 1 KiB",)
    assert outside("all_reduce", 8, 1, 8192) == ("all_reduce above 4 KiB",)
    assert outside("all_reduce", 16, 2, 2048) == (
        "all_reduce of 16 ranks",
        "all_reduce on 2 nodes",
    )
    assert outside("broadcast", 8, 1, 2048) == ("broadcast",)
    assert outside("all_reduce", 8, 1, 2048, node="gh200") == ("node gh200",)


def test_ranks_between_those_of_tables_are_inside() -> None:
    ends = [
        Measured(collective="all_reduce", ranks=n, nodes=n // 8, sizes_bytes=(8, 1 << 30))
        for n in (8, 64)
    ]
    found = Calibration(
        name="x",
        file="x.yaml",
        base="nccl",
        base_identity="a",
        base_now="a",
        node=NODE,
        measured=tuple(ends),
        bands={"other": ((math.inf, 0.2),)},
    )
    assert found.outside("all_reduce", 32, 4, 1024, nodes_of=[NODE]) == ()
    assert found.half_width("all_reduce", 32, 4, 1024, nodes_of=[NODE]) == 0.2
    assert "8 to 64 ranks, 1 to 8 nodes, 8 B to 1 GiB" in found.warning(["all_gather"])


SETTINGS = "{costs.gpus_per_process: '8', costs.version: '2.19'}"
TOLD = GOOD.replace(
    "[1024, 4096]}",
    "[1024, 4096], ways: {ring/LL: [1024, 2048], ring/Simple: [2048, 4096]}, "
    f"settings: {SETTINGS}}}",
)


def test_a_way_holds_where_it_was_measured(tmp_path: Path) -> None:
    found = calibration(tmp_path, TOLD)

    def asked(way: str, size: int, ranks: int = 8) -> tuple[tuple[str, ...], float]:
        call = ("all_reduce", ranks, 1)
        reasons = found.outside(*call, size, nodes_of=[NODE], way=way)
        width = found.half_width(*call, size, nodes_of=[NODE], way=way)
        assert (width is None) == bool(reasons)
        return reasons, round(found.log_factor(*call, way, size, nodes_of=[NODE]), 6)

    assert asked("ring/LL", 2048) == ((), 0.7)
    # Its own 0.2 is missing; 0.1 of all and 0.4 of the table stay, alike for every way.
    assert asked("ring/LL", 4096) == (("all_reduce by ring/LL above 2 KiB",), 0.5)
    assert asked("ring/Simple", 1024) == (("all_reduce by ring/Simple below 2 KiB",), 0.5)
    assert asked("tree/LL", 2048) == (("all_reduce by tree/LL",), 0.5)


def test_without_ranges_of_ways_those_with_a_curve_were_measured(tmp_path: Path) -> None:
    found = calibration(tmp_path)
    call = ("all_reduce", 8, 1, 2048)
    assert found.outside(*call, nodes_of=[NODE], way="ring/LL") == ()
    assert found.outside(*call, nodes_of=[NODE], way="tree/LL") == ("all_reduce by tree/LL",)


def test_other_settings_than_those_of_the_rows_are_outside(tmp_path: Path) -> None:
    found = calibration(tmp_path, TOLD)

    def asked(**changed: str) -> tuple[str, ...]:
        now = {"costs.gpus_per_process": "8", "costs.version": "2.19.0"}
        now |= {key.replace("__", "."): value for key, value in changed.items()}
        width = found.half_width("all_reduce", 8, 1, 2048, nodes_of=[NODE], settings=now)
        reasons = found.outside("all_reduce", 8, 1, 2048, nodes_of=[NODE], settings=now)
        assert (width is None) == bool(reasons)
        return reasons

    assert asked() == ()
    assert asked(costs__gpus_per_process="1") == ("costs.gpus_per_process 1 (fitted with 8)",)
    assert asked(costs__version="2.20.3") == ("costs.version 2.20.3 (fitted with 2.19.0)",)
    assert asked(env__NCCL_P2P_DISABLE="1") == ("env.NCCL_P2P_DISABLE 1",)
    found = calibration(tmp_path, TOLD.replace("{costs", "{env.NCCL_NTHREADS: '64', costs"))
    assert asked() == ("without env.NCCL_NTHREADS 64",)


def test_names_of_curves() -> None:
    assert way_key("ring", "LL") == "ring/LL"
    assert table_key("all_reduce", 16, 2) == "all_reduce/16 ranks/2 nodes"


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("9.9 us", "9.9", 3, "launch.time: '9.9' has no unit"),
        ("9.9 us", "9.9 GB", 3, "launch.time: '9.9 GB' has the unknown unit"),
        ("9.9 us", "-1 us", 3, "launch.time"),
        ("9.9 us", "30 d", 3, "launch.time: 30 d is too large"),
        ("9.9 us", "[1]", 3, "launch.time: is no number"),
        ("launch:", "lunch:", 3, "Did you mean 'launch'?"),
        ("LL: 3.1", "LL: 0", 4, "generations.ampere.channel_GBps.LL: 0 is out of range"),
        ("LL: 3.1", "LL: 3.1 GB/s", 4, "'3.1 GB/s' is not a number"),
        ("LL: 3.1", "LLL: 3.1", 4, "generations.ampere.channel_GBps.LLL: unknown key"),
        ("channel_GBps: {LL: 3.1}", "links: {nvlink: 1.2}", 4, "nvlink: 1.2 is out of range"),
        ("extends: nccl", "extends: ncll", 2, "Did you mean 'nccl'?"),
        ("extends: nccl\n", "", 1, "extends: is missing"),
        ("name: mine", "algorithms: {}", 1, "algorithms: unknown key"),
        ("first_octave: 10", "first_octave: x", 6, "discrepancy.first_octave"),
        ("common: [0.1,", "common: [.nan,", 7, "discrepancy.common: '.nan' is not a number"),
        ("common: [0.1,", "common: [99,", 7, "discrepancy.common: a value is out of range"),
        ("ways:", "way:", 8, "discrepancy.way: unknown key"),
        ("[2048, 0.3]", "[2048]", 10, "bands.tables.all_reduce/8 ranks/1 node: is no band"),
        ("  node: dgx-h100\n", "", 12, "fitted.node: is missing"),
        ("ranks: 8", "ranks: many", 15, "fitted.ranges[0].ranks"),
        ("[1024, 4096]", "[4096, 1024]", 15, "sizes_bytes: is no range"),
        ("launch: {", "launch: {time: 2 us, ", 3, "launch.time: stands here twice"),
        ("name: mine", "name: [", 3, "is not YAML"),
        ("name: mine", "name: [1]", 1, "name: is no text"),
        ("name: mine", "tuning: {version: abc}", 1, "tuning.version: 'abc' is not an NCCL version"),
        (
            "name: mine",
            "links: {nvlink: {efficiency: 0.4}}",
            1,
            "links.nvlink.efficiency: changes nothing: GPU generations have their own",
        ),
        ("ring/LL:", "ringo/LL:", 8, "Did you mean 'ring/LL'?"),
        ("ring/LL:", "ring/LLX:", 8, "Did you mean 'ring/LL'?"),
        (
            "tables: {all_reduce/8 ranks/1 node: [0.4",
            "tables: {all_reduce/8 ranks: [0.4",
            9,
            "Did you mean 'all_reduce/8 ranks/1 node'?",
        ),
        (
            "tables: {all_reduce/8 ranks/1 node: [0.4",
            "tables: {all_reduce/0 ranks/1 node: [0.4",
            9,
            "unknown table of fitted.ranges 'all_reduce/0 ranks/1 node'",
        ),
        (
            "bands: {tables: {all_reduce/8 ranks/1 node",
            "bands: {tables: {all_reduce/9 ranks/1 node",
            10,
            "Did you mean 'all_reduce/8 ranks/1 node'?",
        ),
        ("[0.2, 0.2, 0.2]", "[0.2, 0.2]", 8, "ring/LL: has 2 values"),
        ("first_octave: 10", "first_octave: -500", 6, "-500 is out of range"),
        ("first_octave: 10", "first_octave: 64", 6, "0 … 63"),
        ("collective: all_reduce", "collective: all_reduc", 15, "Did you mean 'all_reduce'?"),
        ("ranks: 8", "ranks: 0", 15, "fitted.ranges[0].ranks: 0 is out of range"),
        (
            "4096]}",
            "4096], ways: {ring/LLX: [1, 2]}}",
            15,
            "fitted.ranges[0].ways.ring/LLX: unknown algorithm and protocol",
        ),
    ],
)
def test_errors_have_line_and_key(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    assert old in GOOD
    told = refused(tmp_path, GOOD.replace(old, new, 1))
    assert message in told
    assert f"mine.yaml:{line}: " in told


def test_all_errors_are_told_at_once(tmp_path: Path) -> None:
    broken = (
        GOOD.replace("9.9 us", "9.9").replace("LL: 3.1", "LL: x").replace("node: dgx", "nod: x")
    )
    told = refused(tmp_path, broken)
    for words in ("has no unit", "'x' is not a number", "fitted.node"):
        assert words in told


@pytest.mark.parametrize("text", ["", "- a\n", "just text\n"])
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    assert "mine.yaml" in refused(tmp_path, text)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="cannot read: No such file"):
        load_profile(str(tmp_path / "none.yaml"))
    (tmp_path / "bin.yaml").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(CalibrationError, match="is not text"):
        load_profile(str(tmp_path / "bin.yaml"))
    with pytest.raises(CalibrationError, match="cannot read"):
        load_profile(str(tmp_path) + "/")


def test_an_efficiency_that_no_generation_has_is_taken(tmp_path: Path) -> None:
    found = load_profile(
        write(
            tmp_path, "extends: nccl\nlinks: {pcie: {efficiency: 0.4}, nvlink: {efficiency: 0.8}}"
        )
    )
    assert found.efficiency["pcie"] == 0.4


def test_files_may_name_all_collectives_and_algorithms() -> None:
    from simulator.collectives.registry import algorithms, collectives
    from simulator.costs.calibration_names import ALGORITHMS, COLLECTIVES

    assert list(COLLECTIVES) == collectives()
    assert set(ALGORITHMS) == {name for key in collectives() for name in algorithms(key)}


def test_only_regular_files_of_limited_size_are_read(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="is no regular file"):
        load_profile("/dev/zero")
    with pytest.raises(CalibrationError, match="has more than 1 MiB"):
        load_profile(write(tmp_path, GOOD + "# " + "x" * (1 << 20)))


@pytest.mark.parametrize("name", ["nccl", "rccl"])
def test_every_constant_that_a_fit_may_write_can_be_read(tmp_path: Path, name: str) -> None:
    from validation.fitting.document import with_constants
    from validation.fitting.problem import parameters, profile_values

    given = parameters(name)
    for end in ("low", "high"):
        values = {p.key: getattr(p, end) * p.scale for p in given}
        document = with_constants({"extends": name}, given, values)
        found = load_profile(write(tmp_path, yaml.safe_dump(document)))
        read = profile_values(name, found)
        for key, value in values.items():
            assert read[key] == pytest.approx(value, rel=1e-2), key
